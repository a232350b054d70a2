//! What an operator must be before the rest of the request is even looked at.
//!
//! As extractors, so that a wrong role is refused before the body is read, and so that forgetting
//! the check is not possible: the handler gets the operator's name only from here.

use axum::extract::FromRequestParts;
use http::request::Parts;
use ledger::Role;

use super::Shared;
use crate::{auth::Operator, problem::Problem};

/// May read.
pub(super) struct AsViewer;
/// May run sales. Carries the name for the audit.
pub(super) struct AsOperator(pub(super) String);
/// May do everything. Carries the name for the audit.
pub(super) struct AsAdmin(pub(super) String);

async fn with_role(parts: &mut Parts, state: &Shared, role: Role) -> Result<String, Problem> {
    let operator = Operator::from_request_parts(parts, state).await?;
    operator.require(role)?;
    Ok(operator.name.to_string())
}

impl FromRequestParts<Shared> for AsViewer {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, Problem> {
        with_role(parts, state, Role::Viewer).await.map(|_| AsViewer)
    }
}

impl FromRequestParts<Shared> for AsOperator {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, Problem> {
        with_role(parts, state, Role::Operator).await.map(AsOperator)
    }
}

impl FromRequestParts<Shared> for AsAdmin {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, Problem> {
        with_role(parts, state, Role::Admin).await.map(AsAdmin)
    }
}

//! What an operator must be before the rest of the request is even looked at.
//!
//! As extractors, so that a wrong role is refused before the body is read, and so that forgetting
//! the check is not possible: the handler gets the operator's name only from here.

use auth::Operator;
use axum::extract::FromRequestParts;
use http::request::Parts;
use ledger::{Origin, Role};
use listener::{Peer, RequestId};

use super::Shared;
use crate::{
    access::{AccessRefusal, note, operator},
    problem::{Code, Problem},
};
use engine::actor::Actor;

/// May read. Carries who it is, for what is audited of reading.
pub(super) struct AsViewer(pub(super) Actor);
/// May run sales. Carries who it is, for the audit.
pub(super) struct AsOperator(pub(super) Actor);
/// May do everything. Carries who it is, for the audit.
pub(super) struct AsAdmin(pub(super) Actor);

pub(super) async fn with_role(
    parts: &mut Parts,
    state: &Shared,
    role: Role,
) -> Result<Actor, Problem> {
    let operator = operator(parts, &state.admins, &state.sessions).await?;
    if !operator.may(role) {
        let (needed, own) = (role.as_str(), operator.role.as_str());
        let problem = Problem::new(Code::Forbidden).detail(
            format!("This needs the role {needed}; your token has the role {own}."),
            format!("此操作需要 {needed} 角色，您的令牌角色为 {own}。"),
        );
        note(AccessRefusal::Role, Some(&operator.name), parts, &problem);
        return Err(problem);
    }
    Ok(actor(&operator, parts))
}

/// Whoever asks, and from where, for the audit.
pub(super) fn actor(operator: &Operator, parts: &Parts) -> Actor {
    let peer = parts.extensions.get::<Peer>().map(|peer| peer.0.to_string());
    // Without one it is a command that runs the router in its own process.
    let address = peer.or_else(|| Actor::from(&*operator.name).origin.address);
    let request_id = parts.extensions.get::<RequestId>().map(ToString::to_string);
    Actor { name: operator.name.to_string(), origin: Origin { address, request_id } }
}

impl FromRequestParts<Shared> for AsViewer {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, Problem> {
        with_role(parts, state, Role::Viewer).await.map(AsViewer)
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

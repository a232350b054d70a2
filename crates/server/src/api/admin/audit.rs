//! Who did what.

use axum::extract::State;
use ledger::AuditRow;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::{Shared, paging, roles::AsViewer, schemas};
use crate::{
    extract::{Json, Query, plain_id},
    problem::Problem,
};

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct AuditPage {
    /// Only entries before this id.
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    before: Option<i64>,
    /// 1 to 500, 50 unless told.
    #[param(inline, value_type = Option<schemas::PageRows>)]
    limit: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Audit {
    /// Newest first.
    entries: Vec<Entry>,
    /// The `before` of the next page; null on the last one.
    next: Option<i64>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = AuditEntry)]
pub(in super::super) struct Entry {
    id: i64,
    /// The name of the token, or `system` for what a job healed.
    who: String,
    #[schema(example = "activity.publish")]
    action: String,
    #[schema(example = "activity:7")]
    target: String,
    #[schema(schema_with = schemas::audit_detail)]
    detail: serde_json::Value,
    created_at: i64,
    /// Where it was asked from: the client's address, or `cli` for a command without a server. Null
    /// for what a job did, and in entries of before this was noted.
    #[schema(example = "192.0.2.7")]
    address: Option<String>,
    /// The `X-Request-Id` of the answer.
    request_id: Option<String>,
}

impl From<AuditRow> for Entry {
    fn from(row: AuditRow) -> Self {
        Entry {
            id: row.id,
            who: row.who,
            action: row.action,
            target: row.target,
            detail: row.detail,
            created_at: row.created_ms,
            address: row.address,
            request_id: row.request_id,
        }
    }
}

/// Everything operators did, and what jobs healed.
#[utoipa::path(get, path = "/admin/audit", tag = "admin", security(("operator" = [])),
    params(AuditPage), responses((status = OK, body = Audit)))]
pub(in super::super) async fn list(
    State(app): State<Shared>,
    _: AsViewer,
    Query(page): Query<AuditPage>,
) -> Result<Json<Audit>, Problem> {
    let rows = paging::rows(page.limit)?;
    let found = app.engine.records().audit_log(page.before, rows).await?;
    let next = paging::next(&found, rows, |row| row.id);
    Ok(Json(Audit { entries: found.into_iter().map(Into::into).collect(), next }))
}

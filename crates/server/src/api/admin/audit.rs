//! Who did what.

use axum::extract::State;
use ledger::AuditRow;
use sale::is_plain_id;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::{Shared, paging, roles::AsViewer, schemas};
use crate::{
    extract::{Json, Query, plain_id},
    problem::Problem,
};

/// The longest word that is looked for.
pub(in super::super) const AUDIT_WORD_CHARS_MAX: usize = 128;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct AuditPage {
    /// Only entries before this id.
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    before: Option<i64>,
    /// Only what this token, or `system`, did.
    #[param(inline, value_type = Option<schemas::AuditWord>)]
    who: Option<String>,
    /// Only actions that begin so, such as `activity.` or `order.refund`.
    #[param(inline, value_type = Option<schemas::AuditWord>)]
    action: Option<String>,
    /// Only what was done to this, such as `activity:7`.
    #[param(inline, value_type = Option<schemas::AuditWord>)]
    target: Option<String>,
    /// 1 to 500, 50 unless told.
    #[param(inline, value_type = Option<schemas::PageRows>)]
    limit: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Audit {
    /// Newest first.
    entries: Vec<Entry>,
    /// The `before` of the next page; null on the last one. A search looks through the latest ten thousand
    /// entries before `before` and says where it stopped, so a page of it may be short, or empty.
    next: Option<i64>,
}

/// Entries that one search looks through.
const SEARCHED_MAX: usize = 10_000;
const SEARCHED_AT_ONCE: usize = 500;

impl AuditPage {
    fn is_search(&self) -> bool {
        self.who.is_some() || self.action.is_some() || self.target.is_some()
    }

    fn fits(&self, row: &AuditRow) -> bool {
        let is = |wanted: &Option<String>, is: &str| wanted.as_ref().is_none_or(|word| word == is);
        let begins = |word: &String| row.action.starts_with(word.as_str());
        is(&self.who, &row.who)
            && is(&self.target, &row.target)
            && self.action.as_ref().is_none_or(begins)
    }

    /// Words are compared with what is read and go into no statement; nobody looks for longer ones.
    fn checked(self) -> Result<AuditPage, Problem> {
        let words = [("who", &self.who), ("action", &self.action), ("target", &self.target)];
        for (field, word) in words {
            if word.as_ref().is_some_and(|word| !is_plain_id(word, AUDIT_WORD_CHARS_MAX)) {
                let rule = format_args!("must be 1 to {AUDIT_WORD_CHARS_MAX} visible characters");
                return Err(Problem::invalid(field, rule));
            }
        }
        Ok(self)
    }
}

/// Page after page, until enough is found or enough was looked through.
async fn search(app: &Shared, page: &AuditPage, rows: usize) -> Result<Audit, Problem> {
    let (mut entries, mut before, mut looked) = (Vec::new(), page.before, 0);
    while looked < SEARCHED_MAX {
        let some = app.engine.records().audit_log(before, SEARCHED_AT_ONCE).await?;
        let last = some.len() < SEARCHED_AT_ONCE;
        for row in some {
            before = Some(row.id);
            looked += 1;
            if page.fits(&row) {
                entries.push(row.into());
            }
            if entries.len() == rows {
                return Ok(Audit { entries, next: before });
            }
        }
        if last {
            return Ok(Audit { entries, next: None });
        }
    }
    Ok(Audit { entries, next: before })
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

/// Everything operators did, and what jobs healed; all of it, or what is searched for.
#[utoipa::path(get, path = "/admin/audit", tag = "admin", security(("operator" = [])),
    params(AuditPage), responses((status = OK, body = Audit)))]
pub(in super::super) async fn list(
    State(app): State<Shared>,
    _: AsViewer,
    Query(page): Query<AuditPage>,
) -> Result<Json<Audit>, Problem> {
    let (rows, page) = (paging::rows(page.limit)?, page.checked()?);
    if page.is_search() {
        return Ok(Json(search(&app, &page, rows).await?));
    }
    let found = app.engine.records().audit_log(page.before, rows).await?;
    let next = paging::next(&found, rows, |row| row.id);
    Ok(Json(Audit { entries: found.into_iter().map(Into::into).collect(), next }))
}

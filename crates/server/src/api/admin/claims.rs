//! Looking back: what was admitted, as the claim log still has it, and what became of it.

use axum::extract::State;
use engine::{Became, CannotLookBack, ClaimFilter, PastClaim};
use sale::{BackMark, Claim, ItemId, OrderNo, OrderStatus, UserId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::super::{
    Shared,
    roles::AsViewer,
    schemas,
    times::{GivenTime, QueryTime},
};
use crate::{
    extract::{Json, Query, plain_id},
    problem::Problem,
};

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct ClaimsPage {
    /// Made at or after this time.
    #[param(value_type = Option<GivenTime>)]
    from: Option<QueryTime>,
    /// Made before this time.
    #[param(value_type = Option<GivenTime>)]
    to: Option<QueryTime>,
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    item_id: Option<i64>,
    #[param(inline, value_type = Option<schemas::StoredUserId>)]
    user_id: Option<UserId>,
    /// Say what became of each claim: `state`.
    #[serde(default)]
    #[param(inline)]
    compare: bool,
    /// Where an earlier page stopped: its `next`.
    #[param(inline, value_type = Option<schemas::BackMark>)]
    after: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum ClaimState {
    /// An order, in this state; so are the next four.
    Unpaid,
    Paid,
    Closed,
    Refunding,
    Refunded,
    /// The ledger could not honour it, or an operator gave it up.
    Void,
    /// It failed, and waits for its next try.
    Retrying,
    /// It failed, and waits for a person.
    Dead,
    /// No worker has settled it yet.
    Queued,
    /// In none of the books: a difference.
    Missing,
}

impl From<Became> for ClaimState {
    fn from(became: Became) -> Self {
        match became {
            Became::Order(OrderStatus::Unpaid) => ClaimState::Unpaid,
            Became::Order(OrderStatus::Paid) => ClaimState::Paid,
            Became::Order(OrderStatus::Closed) => ClaimState::Closed,
            Became::Order(OrderStatus::Refunding) => ClaimState::Refunding,
            Became::Order(OrderStatus::Refunded) => ClaimState::Refunded,
            Became::Order(OrderStatus::Void) | Became::Void => ClaimState::Void,
            Became::Order(OrderStatus::Queued) | Became::Queued => ClaimState::Queued,
            Became::Retrying => ClaimState::Retrying,
            Became::Dead => ClaimState::Dead,
            Became::Missing => ClaimState::Missing,
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = LoggedClaim)]
pub(in super::super) struct Entry {
    #[schema(schema_with = schemas::order_no)]
    order_no: OrderNo,
    #[schema(schema_with = schemas::stored_user_id)]
    user_id: UserId,
    item_id: i64,
    quantity: u32,
    epoch: u64,
    claimed_at: i64,
    /// No worker has told the log that it is settled.
    waits: bool,
    /// What became of it; null unless `compare` was asked for.
    #[schema(inline)]
    state: Option<ClaimState>,
}

impl From<PastClaim> for Entry {
    fn from(PastClaim { claim, waits, became }: PastClaim) -> Self {
        let Claim { order_no, item, user, quantity, epoch, claimed_ms, .. } = claim;
        Entry {
            order_no,
            user_id: user,
            item_id: item.0,
            quantity,
            epoch,
            claimed_at: claimed_ms,
            waits,
            state: became.map(Into::into),
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = LoggedClaims)]
pub(in super::super) struct Entries {
    /// As the log has them. One that is settled between two pages may be on both.
    claims: Vec<Entry>,
    /// The `after` of the next page; null at the end of the log. A page may be short, or empty, and not the
    /// last one.
    #[schema(schema_with = schemas::next_back_mark)]
    next: Option<String>,
}

impl From<CannotLookBack> for Problem {
    fn from(error: CannotLookBack) -> Self {
        match error {
            CannotLookBack::Mark(_) => no_mark(),
            CannotLookBack::Store(error) => error.into(),
        }
    }
}

fn no_mark() -> Problem {
    let problem = "is no place at which this claim log stopped";
    Problem::invalid_in("after", problem, "不是本抢购日志给出的位置")
}

/// What the audit says of it: what was asked for, and nothing that was not.
fn asked_for(filter: &ClaimFilter, page: &ClaimsPage) -> Value {
    let asked = [
        ("from", page.from.as_ref().map(|_| json!(filter.since_ms))),
        ("to", filter.until_ms.map(|ms| json!(ms))),
        ("item_id", filter.item.map(|item| json!(item.0))),
        ("user_id", filter.user.as_ref().map(|user| json!(user))),
        ("compare", page.compare.then_some(json!(true))),
        ("after", page.after.as_ref().map(|after| json!(after))),
    ];
    asked.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The claims that were admitted, as far back as the claim log keeps them (`look_back` in the settings, or a
/// broker's retention), and if asked for, what became of each. Whoever reads them is written to the audit.
#[utoipa::path(get, path = "/admin/claims", tag = "admin", security(("operator" = [])),
    params(ClaimsPage), responses((status = OK, body = Entries)))]
pub(in super::super) async fn list(
    State(app): State<Shared>,
    AsViewer(who): AsViewer,
    Query(page): Query<ClaimsPage>,
) -> Result<Json<Entries>, Problem> {
    let after = page.after.as_deref().map(str::parse::<BackMark>).transpose();
    let after = after.map_err(|_| no_mark())?;
    let filter = ClaimFilter {
        since_ms: page.from.as_ref().map_or(0, |from| from.0),
        until_ms: page.to.as_ref().map(|to| to.0),
        item: page.item_id.map(ItemId),
        user: page.user_id.clone(),
    };
    let asked = asked_for(&filter, &page);
    app.engine.operations().note_reading(&who, "claims.search", asked).await?;
    let found = app.engine.looking_back().claims(&filter, after, page.compare).await?;
    let claims = found.claims.into_iter().map(Into::into).collect();
    Ok(Json(Entries { claims, next: found.next.map(|next| next.to_string()) }))
}

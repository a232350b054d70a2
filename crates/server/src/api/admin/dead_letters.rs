//! Claims that failed: those still tried again, and those that wait for a person.

use axum::extract::State;
use ledger::{DeadLetter, DeadLetterState};
use sale::{OrderNo, UserId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::super::{
    Shared,
    finish::finish,
    paging,
    roles::{AsOperator, AsViewer},
    schemas,
};
use crate::{
    extract::{Json, Path, Query},
    problem::Problem,
};
use engine::Engine;

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct LettersPage {
    /// Unless told, those retrying and dead.
    #[param(inline)]
    state: Option<LetterState>,
    /// Only letters of this buyer.
    #[param(inline, value_type = Option<schemas::StoredUserId>)]
    user_id: Option<UserId>,
    /// Only the letter of this number, in whatever state; asked for alone.
    #[param(inline, value_type = Option<schemas::OrderNumber>)]
    order_no: Option<OrderNo>,
    /// Only letters before this one.
    #[param(inline, value_type = Option<schemas::OrderNumber>)]
    before: Option<OrderNo>,
    /// 1 to 500, 50 unless told.
    #[param(inline, value_type = Option<schemas::PageRows>)]
    limit: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum LetterState {
    /// Waiting for its next try.
    Retrying,
    /// All tries failed; waiting for a person.
    Dead,
    /// Became an order (or was refused by the ledger) after all.
    Settled,
    /// Given up by an operator.
    Voided,
}

impl From<LetterState> for DeadLetterState {
    fn from(state: LetterState) -> Self {
        match state {
            LetterState::Retrying => DeadLetterState::Retrying,
            LetterState::Dead => DeadLetterState::Dead,
            LetterState::Settled => DeadLetterState::Settled,
            LetterState::Voided => DeadLetterState::Voided,
        }
    }
}

impl From<DeadLetterState> for LetterState {
    fn from(state: DeadLetterState) -> Self {
        match state {
            DeadLetterState::Retrying => LetterState::Retrying,
            DeadLetterState::Dead => LetterState::Dead,
            DeadLetterState::Settled => LetterState::Settled,
            DeadLetterState::Voided => LetterState::Voided,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Letters {
    /// Newest first.
    dead_letters: Vec<Letter>,
    /// The `before` of the next page; null on the last one.
    #[schema(schema_with = schemas::next_order_no)]
    next: Option<OrderNo>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = DeadLetter)]
pub(in super::super) struct Letter {
    #[schema(schema_with = schemas::order_no)]
    order_no: OrderNo,
    #[schema(schema_with = schemas::stored_user_id)]
    user_id: UserId,
    item_id: i64,
    quantity: u32,
    epoch: u64,
    claimed_at: i64,
    state: LetterState,
    tries: u32,
    /// Null if it is not tried again by itself.
    next_try_at: Option<i64>,
    cause: String,
    created_at: i64,
    updated_at: i64,
}

impl From<DeadLetter> for Letter {
    fn from(letter: DeadLetter) -> Self {
        Letter {
            order_no: letter.claim.order_no,
            user_id: letter.claim.user,
            item_id: letter.claim.item.0,
            quantity: letter.claim.quantity,
            epoch: letter.claim.epoch,
            claimed_at: letter.claim.claimed_ms,
            state: letter.state.into(),
            tries: letter.tries,
            next_try_at: letter.next_try_ms,
            cause: letter.cause,
            created_at: letter.created_ms,
            updated_at: letter.updated_ms,
        }
    }
}

async fn one(engine: &Engine, no: OrderNo) -> Result<Letter, Problem> {
    Ok(engine.records().dead_letter(no).await?.ok_or_else(Problem::not_found)?.into())
}

/// Claims that failed for a reason of their own. They hold their units until settled or void. A search for
/// a buyer is written to the audit.
#[utoipa::path(get, path = "/admin/dead-letters", tag = "admin", security(("operator" = [])),
    params(LettersPage), responses((status = OK, body = Letters)))]
pub(in super::super) async fn list(
    State(app): State<Shared>,
    AsViewer(who): AsViewer,
    Query(page): Query<LettersPage>,
) -> Result<Json<Letters>, Problem> {
    let rows = paging::rows(page.limit)?;
    let records = app.engine.records();
    let state = page.state.map(Into::into);
    let found = match (page.order_no, &page.user_id) {
        (Some(no), None) if state.is_none() && page.before.is_none() => {
            records.dead_letter(no).await?.into_iter().collect()
        }
        (Some(_), _) => {
            let problem = "names one letter: ask for it alone";
            return Err(Problem::invalid_in(
                "order_no",
                problem,
                "已指定单个死信，请勿同时使用其他条件",
            ));
        }
        (None, Some(user)) => {
            let asked = json!({"user_id": user});
            app.engine.operations().note_reading(&who, "dead_letters.search", asked).await?;
            records.dead_letters(Some(user), state, page.before, rows).await?
        }
        (None, None) => records.dead_letters(None, state, page.before, rows).await?,
    };
    let next = paging::next(&found, rows, |letter| letter.claim.order_no);
    Ok(Json(Letters { dead_letters: found.into_iter().map(Into::into).collect(), next }))
}

/// One failed claim.
#[utoipa::path(get, path = "/admin/dead-letters/{no}", tag = "admin", security(("operator" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    responses((status = OK, body = Letter), (status = NOT_FOUND, description = "No such dead letter")))]
pub(in super::super) async fn show(
    State(app): State<Shared>,
    _: AsViewer,
    Path(no): Path<OrderNo>,
) -> Result<Json<Letter>, Problem> {
    Ok(Json(one(&app.engine, no).await?))
}

/// Try a failed claim again now, with all its tries anew.
#[utoipa::path(post, path = "/admin/dead-letters/{no}/replay", tag = "admin",
    security(("operator" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    responses(
        (status = OK, body = Letter),
        (status = NOT_FOUND, description = "No such dead letter"),
        (status = CONFLICT, description = "It is settled or void (see `state`)")))]
pub(in super::super) async fn replay(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(no): Path<OrderNo>,
) -> Result<Json<Letter>, Problem> {
    let letter = finish(async move {
        app.engine.operations().replay_dead_letter(&who, no).await?;
        one(&app.engine, no).await
    });
    Ok(Json(letter.await?))
}

/// Give a failed claim up; its buyer is told, its units go back on sale.
#[utoipa::path(post, path = "/admin/dead-letters/{no}/void", tag = "admin",
    security(("operator" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    responses(
        (status = OK, body = Letter, description = "It is void, now or since before"),
        (status = NOT_FOUND, description = "No such dead letter"),
        (status = CONFLICT, description = "It became an order (see `state`)")))]
pub(in super::super) async fn void(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(no): Path<OrderNo>,
) -> Result<Json<Letter>, Problem> {
    let letter = finish(async move {
        app.engine.operations().void_dead_letter(&who, no).await?;
        one(&app.engine, no).await
    });
    Ok(Json(letter.await?))
}

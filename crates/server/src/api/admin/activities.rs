//! Activities: planned, published, paused, ended, warmed.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use sale::{
    Activity, ActivityId, ActivityMove, ActivityState, Currency, Millis, NewActivity, NewItem,
    PAY_WITHIN_MS_DEFAULT,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    super::{
        Shared,
        finish::finish,
        openapi, paging,
        roles::{AsOperator, AsViewer},
        schemas,
        times::GivenTime,
    },
    items::{LedgerItem, WarmedItem},
};
use crate::{
    extract::{Json, Path, Query, plain_id},
    problem::Problem,
};
use engine::{AtGate, actor::Actor};

/// Activities of one page, unless told.
pub(in super::super) const LISTED_DEFAULT: u32 = 500;

#[derive(Serialize, ToSchema)]
pub(in super::super) struct LedgerActivities {
    /// Newest first, drafts among them.
    activities: Vec<LedgerActivity>,
    /// The `before` of the next page; null on the last one.
    next: Option<i64>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct ActivitiesPage {
    /// Only activities before this one.
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    before: Option<i64>,
    /// 1 to 500, 500 unless told.
    #[param(inline, value_type = Option<schemas::ListedActivities>)]
    limit: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct LedgerActivity {
    id: i64,
    name: String,
    opens_at: i64,
    closes_at: i64,
    pay_within_ms: i64,
    #[schema(schema_with = openapi::activity_state)]
    state: ActivityState,
    /// When a draft publishes itself; afterwards, when it was to. Null: an operator publishes it.
    publish_at: Option<i64>,
    /// Grows with every change; whoever changes it says which one they have seen.
    version: i64,
    items: Vec<LedgerItem>,
    /// In answers to publish, pause, resume and end.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_gate: Option<GateFollows>,
}

/// Does the gate know of it? The ledger does, or this were not the answer.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum GateFollows {
    /// It does as `state` says.
    Done,
    /// It did not answer; it is told as soon as it does, without anybody asking again.
    Pending,
}

impl From<AtGate> for GateFollows {
    fn from(at_gate: AtGate) -> Self {
        match at_gate {
            AtGate::Done => GateFollows::Done,
            AtGate::Pending => GateFollows::Pending,
        }
    }
}

impl From<Activity> for LedgerActivity {
    fn from(activity: Activity) -> Self {
        LedgerActivity {
            id: activity.id.0,
            name: activity.name,
            opens_at: activity.opens_ms,
            closes_at: activity.closes_ms,
            pay_within_ms: activity.pay_within_ms,
            state: activity.state,
            publish_at: activity.publish_ms,
            version: activity.version,
            items: activity.items.into_iter().map(LedgerItem::from).collect(),
            at_gate: None,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Plan {
    #[schema(schema_with = schemas::name)]
    name: String,
    opens_at: GivenTime,
    closes_at: GivenTime,
    #[serde(default = "pay_within_ms")]
    #[schema(schema_with = schemas::pay_within_ms)]
    pay_within_ms: i64,
    /// Publish it by itself at this time, which is before `closes_at`.
    publish_at: Option<GivenTime>,
    #[schema(schema_with = schemas::planned_items)]
    items: Vec<PlannedItem>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct PlannedItem {
    #[schema(schema_with = schemas::name)]
    name: String,
    #[schema(schema_with = schemas::image_url)]
    image_url: Option<String>,
    #[schema(schema_with = schemas::price)]
    price: i64,
    #[schema(schema_with = schemas::origin_price)]
    origin_price: Option<i64>,
    #[serde(default = "currency")]
    #[schema(schema_with = schemas::currency)]
    currency: Currency,
    #[schema(schema_with = schemas::stock)]
    stock: i64,
    #[serde(default = "one")]
    #[schema(schema_with = schemas::limit_per_user)]
    limit_per_user: u32,
    #[serde(default = "one")]
    #[schema(schema_with = schemas::shards)]
    shards: u32,
}

fn pay_within_ms() -> Millis {
    PAY_WITHIN_MS_DEFAULT
}

fn currency() -> Currency {
    Currency::CNY
}

fn one() -> u32 {
    1
}

impl From<Plan> for NewActivity {
    fn from(plan: Plan) -> Self {
        NewActivity {
            name: plan.name,
            opens_ms: plan.opens_at.0,
            closes_ms: plan.closes_at.0,
            pay_within_ms: plan.pay_within_ms,
            publish_ms: plan.publish_at.map(|time| time.0),
            items: plan.items.into_iter().map(NewItem::from).collect(),
        }
    }
}

impl From<PlannedItem> for NewItem {
    fn from(item: PlannedItem) -> Self {
        NewItem {
            name: item.name,
            image_url: item.image_url.unwrap_or_default(),
            price: item.price,
            origin_price: item.origin_price,
            currency: item.currency,
            stock: item.stock,
            limit_per_user: item.limit_per_user,
            shards: item.shards,
        }
    }
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct Warming {
    /// Load anew from the ledger what is at the gate already.
    #[serde(default)]
    pub(super) anew: bool,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct WarmedItems {
    items: Vec<WarmedItem>,
}

/// All activities there are, page by page.
#[utoipa::path(get, path = "/admin/activities", tag = "admin", security(("operator" = [])),
    params(ActivitiesPage), responses((status = OK, body = LedgerActivities)))]
pub(in super::super) async fn list(
    State(app): State<Shared>,
    _: AsViewer,
    Query(page): Query<ActivitiesPage>,
) -> Result<Json<LedgerActivities>, Problem> {
    let rows = paging::rows(page.limit.or(Some(LISTED_DEFAULT)))?;
    let found = app.engine.records().activities(page.before.map(ActivityId), rows).await?;
    let next = paging::next(&found, rows, |activity| activity.id.0);
    let activities = found.into_iter().map(Into::into).collect();
    Ok(Json(LedgerActivities { activities, next }))
}

/// Plan an activity; it starts as a draft.
#[utoipa::path(post, path = "/admin/activities", tag = "admin", security(("operator" = [])),
    request_body = Plan,
    responses(
        (status = CREATED, body = LedgerActivity),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`, with a `field` such as `items[0].stock`")))]
pub(in super::super) async fn create(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Json(plan): Json<Plan>,
) -> Result<Response, Problem> {
    let new = plan.into();
    let made = finish(async move { app.engine.plans().create(&who, &new).await }).await?;
    Ok((StatusCode::CREATED, Json(LedgerActivity::from(made))).into_response())
}

/// One activity as the ledger knows it.
#[utoipa::path(get, path = "/admin/activities/{id}", tag = "admin", security(("operator" = [])),
    params(("id" = i64, Path, description = "The activity")),
    responses((status = OK, body = LedgerActivity), (status = NOT_FOUND, description = "No such activity")))]
pub(in super::super) async fn show(
    State(app): State<Shared>,
    _: AsViewer,
    Path(id): Path<i64>,
) -> Result<Json<LedgerActivity>, Problem> {
    let found = app.engine.records().activity(ActivityId(id)).await?;
    Ok(Json(found.ok_or_else(Problem::not_found)?.into()))
}

async fn move_by(
    app: Shared,
    who: Actor,
    id: i64,
    step: ActivityMove,
) -> Result<Json<LedgerActivity>, Problem> {
    let id = ActivityId(id);
    let moved = finish(async move { app.engine.operations().move_activity(&who, id, step).await });
    let (activity, at_gate) = moved.await?;
    Ok(Json(LedgerActivity { at_gate: Some(at_gate.into()), ..activity.into() }))
}

/// Show a draft to buyers and sell it in its window.
#[utoipa::path(post, path = "/admin/activities/{id}/publish", tag = "admin",
    security(("operator" = [])), params(("id" = i64, Path, description = "The activity")),
    responses(
        (status = OK, body = LedgerActivity, description = "It is published, now or since before"),
        (status = NOT_FOUND, description = "No such activity"),
        (status = CONFLICT, description = "It is paused or over (see `state`)"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`: its `closes_at` is past")))]
pub(in super::super) async fn publish(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(id): Path<i64>,
) -> Result<Json<LedgerActivity>, Problem> {
    move_by(app, who, id, ActivityMove::Publish).await
}

/// Let the gate admit nobody until it is resumed.
#[utoipa::path(post, path = "/admin/activities/{id}/pause", tag = "admin",
    security(("operator" = [])), params(("id" = i64, Path, description = "The activity")),
    responses(
        (status = OK, body = LedgerActivity, description = "It is paused, now or since before"),
        (status = NOT_FOUND, description = "No such activity"),
        (status = CONFLICT, description = "It is a draft or over (see `state`)")))]
pub(in super::super) async fn pause(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(id): Path<i64>,
) -> Result<Json<LedgerActivity>, Problem> {
    move_by(app, who, id, ActivityMove::Pause).await
}

/// Let a paused activity go on.
#[utoipa::path(post, path = "/admin/activities/{id}/resume", tag = "admin",
    security(("operator" = [])), params(("id" = i64, Path, description = "The activity")),
    responses(
        (status = OK, body = LedgerActivity, description = "It goes on, now or since before"),
        (status = NOT_FOUND, description = "No such activity"),
        (status = CONFLICT, description = "It is a draft or over (see `state`)")))]
pub(in super::super) async fn resume(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(id): Path<i64>,
) -> Result<Json<LedgerActivity>, Problem> {
    move_by(app, who, id, ActivityMove::Resume).await
}

/// End an activity for good.
#[utoipa::path(post, path = "/admin/activities/{id}/end", tag = "admin",
    security(("operator" = [])), params(("id" = i64, Path, description = "The activity")),
    responses(
        (status = OK, body = LedgerActivity, description = "It is over, now or since before"),
        (status = NOT_FOUND, description = "No such activity")))]
pub(in super::super) async fn end(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(id): Path<i64>,
) -> Result<Json<LedgerActivity>, Problem> {
    move_by(app, who, id, ActivityMove::End).await
}

/// Bring the activity's items to the gate now. It happens by itself before the opening.
#[utoipa::path(post, path = "/admin/activities/{id}/warm", tag = "admin",
    security(("operator" = [])),
    params(("id" = i64, Path, description = "The activity"), Warming),
    responses(
        (status = OK, body = WarmedItems),
        (status = NOT_FOUND, description = "No such activity"),
        (status = CONFLICT, description = "It is a draft or over (see `state`)")))]
pub(in super::super) async fn warm(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(id): Path<i64>,
    Query(warming): Query<Warming>,
) -> Result<Json<WarmedItems>, Problem> {
    let (id, anew) = (ActivityId(id), warming.anew);
    let warmed =
        finish(async move { app.engine.operations().warm_activity(&who, id, anew).await }).await?;
    Ok(Json(WarmedItems { items: warmed.into_iter().map(Into::into).collect() }))
}

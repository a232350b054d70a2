//! Activities: planned, published, paused, ended, warmed.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use sale::{
    Activity, ActivityId, ActivityMove, ActivityState, Attributes, Currency, Door, DoorEdit,
    Invalid, ItemWords, Millis, NewActivity, NewItem, PAY_WITHIN_MS_DEFAULT, given_images,
    with_plain_lines,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    super::{
        Shared,
        draws::DrawJson,
        finish::finish,
        idempotency::GivenKey,
        openapi, paging,
        roles::{AsOperator, AsViewer},
        schemas,
        times::GivenTime,
    },
    door::{DoorChange, DoorJson},
    items::{LedgerItem, WarmedItem},
};
use crate::{
    extract::{Json, MaybeJson, Path, Query, ShopId, plain_id},
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
    /// Only the activity that the shop knows by this id.
    #[param(inline, value_type = Option<schemas::ShopId>)]
    external_id: Option<ShopId>,
    /// 1 to 500, 500 unless told.
    #[param(inline, value_type = Option<schemas::ListedActivities>)]
    limit: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct LedgerActivity {
    pub(super) id: i64,
    /// The shop's own id of it.
    external_id: Option<String>,
    name: String,
    opens_at: i64,
    closes_at: i64,
    pay_within_ms: i64,
    #[schema(schema_with = openapi::activity_state)]
    state: ActivityState,
    /// When a draft publishes itself; afterwards, when it was to. Null: an operator publishes it.
    publish_at: Option<i64>,
    /// When its pause is over by itself. Null: an operator resumes it, or it is not paused.
    resumes_at: Option<i64>,
    /// How buyers are let in.
    door: DoorJson,
    /// Null: claims are served as they come.
    draw: Option<DrawJson>,
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
        let draw = DrawJson::of(&activity);
        LedgerActivity {
            draw,
            id: activity.id.0,
            external_id: activity.external_id,
            name: activity.name,
            opens_at: activity.opens_ms,
            closes_at: activity.closes_ms,
            pay_within_ms: activity.pay_within_ms,
            state: activity.state,
            publish_at: activity.publish_ms,
            resumes_at: activity.resume_ms,
            door: activity.door.into(),
            version: activity.version,
            items: activity.items.into_iter().map(LedgerItem::from).collect(),
            at_gate: None,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Plan {
    /// The shop's own id of it, which no other activity has.
    #[schema(schema_with = schemas::given_shop_id)]
    external_id: Option<String>,
    #[schema(schema_with = schemas::name)]
    name: String,
    opens_at: GivenTime,
    closes_at: GivenTime,
    #[serde(default = "pay_within_ms")]
    #[schema(schema_with = schemas::pay_within_ms)]
    pay_within_ms: i64,
    /// Publish it by itself at this time, which is before `closes_at`.
    publish_at: Option<GivenTime>,
    /// How buyers are let in; absent: everybody, without a challenge.
    door: Option<DoorChange>,
    #[serde(default)]
    #[schema(schema_with = schemas::shuffle_ms)]
    shuffle_ms: i64,
    #[schema(schema_with = schemas::planned_items)]
    items: Vec<PlannedItem>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct PlannedItem {
    #[schema(schema_with = schemas::name)]
    name: String,
    /// The shop's own id of the product, once in an activity.
    #[schema(schema_with = schemas::given_shop_id)]
    sku: Option<String>,
    #[schema(schema_with = schemas::description)]
    description: Option<String>,
    #[schema(schema_with = schemas::image_url)]
    image_url: Option<String>,
    #[schema(schema_with = schemas::images)]
    images: Option<Vec<String>>,
    #[schema(schema_with = schemas::attributes)]
    attributes: Option<Attributes>,
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

impl TryFrom<Plan> for NewActivity {
    type Error = Invalid;

    fn try_from(plan: Plan) -> Result<Self, Invalid> {
        let items = plan.items.into_iter().enumerate();
        let items = items.map(|(n, item)| item.planned(&|name| format!("items[{n}].{name}")));
        Ok(NewActivity {
            external_id: plan.external_id,
            name: plan.name,
            opens_ms: plan.opens_at.0,
            closes_ms: plan.closes_at.0,
            pay_within_ms: plan.pay_within_ms,
            publish_ms: plan.publish_at.map(|time| time.0),
            door: DoorEdit::from(plan.door.unwrap_or_default()).of(&Door::default()),
            shuffle_ms: plan.shuffle_ms,
            items: items.collect::<Result<_, _>>()?,
        })
    }
}

impl PlannedItem {
    pub(super) fn planned(self, field: &dyn Fn(&str) -> String) -> Result<NewItem, Invalid> {
        let images = given_images(self.image_url, self.images, field)?;
        Ok(NewItem {
            name: self.name,
            image_url: images.first.unwrap_or_default(),
            price: self.price,
            origin_price: self.origin_price,
            currency: self.currency,
            stock: self.stock,
            limit_per_user: self.limit_per_user,
            shards: self.shards,
            words: ItemWords {
                sku: self.sku,
                description: with_plain_lines(&self.description.unwrap_or_default()),
                more_images: images.more.unwrap_or_default(),
                attributes: self.attributes.unwrap_or_default(),
            },
        })
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
    let (records, before) = (app.engine.records(), page.before.map(ActivityId));
    let found = match page.external_id {
        Some(ShopId(id)) => {
            let found = records.activity_by_external_id(&id).await?;
            found.into_iter().filter(|found| before.is_none_or(|id| found.id < id)).collect()
        }
        None => records.activities(before, rows).await?,
    };
    let next = paging::next(&found, rows, |activity| activity.id.0);
    let activities = found.into_iter().map(Into::into).collect();
    Ok(Json(LedgerActivities { activities, next }))
}

/// Plan an activity; it starts as a draft.
///
/// Asking again is safe with an `Idempotency-Key`, for a week and for the same token: it gets the activity
/// that was made the first time, as it is now.
#[utoipa::path(post, path = "/admin/activities", tag = "admin", security(("operator" = [])),
    params(("Idempotency-Key" = inline(Option<schemas::IdempotencyKey>), Header,
        description = "1 to 255 visible ASCII characters")),
    request_body = Plan,
    responses(
        (status = CREATED, body = LedgerActivity),
        (status = CONFLICT, description = "Another activity has this `external_id` (see `activity_id`)"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`, with a `field` such as `items[0].stock`, \
            or `key_reused`: the key was used for something else (see `activity_ids`)")))]
pub(in super::super) async fn create(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    key: GivenKey,
    Json(plan): Json<Plan>,
) -> Result<Response, Problem> {
    let new = NewActivity::try_from(plan)?;
    let made = finish(async move { app.engine.plans().create(&who, new, key.0).await }).await?;
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

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Pause {
    /// It goes on by itself at this time, which is before `closes_at`. Absent: when somebody resumes it.
    #[schema(required = false)]
    until: Option<GivenTime>,
}

/// Let the gate admit nobody until it is resumed, or until a time. Asked again it changes that time.
#[utoipa::path(post, path = "/admin/activities/{id}/pause", tag = "admin",
    security(("operator" = [])), params(("id" = i64, Path, description = "The activity")),
    request_body = Option<Pause>,
    responses(
        (status = OK, body = LedgerActivity, description = "It is paused, now or since before"),
        (status = NOT_FOUND, description = "No such activity"),
        (status = CONFLICT, description = "It is a draft or over (see `state`)"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`: `until` is past, or after its end")))]
pub(in super::super) async fn pause(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(id): Path<i64>,
    MaybeJson(pause): MaybeJson<Pause>,
) -> Result<Json<LedgerActivity>, Problem> {
    let resume_ms = pause.unwrap_or_default().until.map(|time| time.0);
    let (id, operations) = (ActivityId(id), app.clone());
    let paused =
        finish(async move { operations.engine.operations().pause(&who, id, resume_ms).await });
    let (activity, at_gate) = paused.await?;
    Ok(Json(LedgerActivity { at_gate: Some(at_gate.into()), ..activity.into() }))
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

//! Webhooks: endpoints of the shop's backend, and what was delivered to them.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header::CACHE_CONTROL};
use ledger::{
    DeliveryFilter, DeliveryState, WebhookChange, WebhookDelivery, WebhookEndpoint, WebhookKind,
    WebhookKinds,
};
use sale::OrderNo;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::{
    Shared,
    finish::finish,
    paging,
    roles::{AsAdmin, AsOperator, AsViewer},
    schemas,
    times::GivenTime,
};
use crate::{
    extract::{Json, Path, Query, plain_id},
    problem::{Code, Problem},
};
use engine::{OperateError, Shown};

#[derive(Serialize, ToSchema)]
pub(in super::super) struct WebhooksJson {
    webhooks: Vec<WebhookJson>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Webhook)]
pub(in super::super) struct WebhookJson {
    id: i64,
    url: String,
    description: String,
    /// The kinds of events it gets.
    #[schema(schema_with = schemas::webhook_kinds)]
    events: Vec<WebhookKind>,
    enabled: bool,
    /// Why it is switched off.
    reason: Option<String>,
    /// `settings` or `api`.
    source: &'static str,
    /// Since when it has taken nothing; null while it takes.
    failing_since: Option<i64>,
    /// Until when the secret before the present one signs as well.
    previous_secret_until: Option<i64>,
    /// Events that wait for it, up to a bound.
    pending: u64,
    /// Events that it did not take, up to a bound.
    failed: u64,
    /// When the oldest pending event happened.
    oldest_pending_at: Option<i64>,
    created_at: i64,
    updated_at: i64,
}

impl From<Shown> for WebhookJson {
    fn from(Shown { endpoint, lag }: Shown) -> Self {
        WebhookJson {
            id: endpoint.id,
            url: endpoint.url,
            description: endpoint.description,
            events: endpoint.kinds.list(),
            enabled: endpoint.enabled,
            reason: endpoint.reason,
            source: endpoint.source.as_str(),
            failing_since: endpoint.failing_since_ms,
            previous_secret_until: endpoint.previous.map(|(_, until_ms)| until_ms),
            pending: lag.pending,
            failed: lag.failed,
            oldest_pending_at: lag.oldest_ms,
            created_at: endpoint.created_ms,
            updated_at: endpoint.updated_ms,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewWebhook)]
pub(in super::super) struct NewWebhookJson {
    #[schema(schema_with = schemas::webhook_url)]
    url: String,
    #[serde(default)]
    #[schema(schema_with = schemas::webhook_description)]
    description: String,
    #[serde(default)]
    #[schema(schema_with = schemas::webhook_kinds)]
    events: Vec<WebhookKind>,
}

/// What is null or absent stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct EditedWebhook {
    #[schema(schema_with = schemas::edited_webhook_url)]
    url: Option<String>,
    #[schema(schema_with = schemas::edited_webhook_description)]
    description: Option<String>,
    #[schema(schema_with = schemas::edited_webhook_kinds)]
    events: Option<Vec<WebhookKind>>,
    /// Switched on it gets what waited for it.
    enabled: Option<bool>,
}

/// With the secret, which is shown this once.
#[derive(Serialize, ToSchema)]
pub(in super::super) struct WebhookSecret {
    id: i64,
    url: String,
    /// Verifies `webhook-signature`, with any library of Standard Webhooks. Shown this once.
    secret: String,
    /// Until when the secret before it signs as well.
    previous_secret_until: Option<i64>,
}

impl From<WebhookEndpoint> for WebhookSecret {
    fn from(endpoint: WebhookEndpoint) -> Self {
        WebhookSecret {
            id: endpoint.id,
            url: endpoint.url,
            secret: endpoint.secret.expose().to_owned(),
            previous_secret_until: endpoint.previous.map(|(_, until_ms)| until_ms),
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Ping {
    /// It answered with a 2xx.
    taken: bool,
    /// What it answered, if it did.
    status: Option<u16>,
    cause: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = WebhookDeliveryState)]
pub(in super::super) enum DeliveryStateJson {
    /// It is sent as soon as it may.
    Pending,
    /// It was taken.
    Delivered,
    /// It was not taken, and is sent again only when somebody says so.
    Failed,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct DeliveriesPage {
    /// Only those in this state.
    #[param(inline)]
    state: Option<DeliveryStateJson>,
    /// Only those about this order.
    #[param(inline, value_type = Option<schemas::OrderNumber>)]
    order_no: Option<OrderNo>,
    /// Only those before this one.
    #[serde(default, deserialize_with = "plain_id")]
    #[param(inline, value_type = Option<schemas::RowId>)]
    before: Option<i64>,
    /// 1 to 500, 50 unless told.
    #[param(inline, value_type = Option<schemas::PageRows>)]
    limit: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct WebhookDeliveries {
    /// Newest first.
    deliveries: Vec<DeliveryJson>,
    /// The `before` of the next page; null on the last one.
    next: Option<i64>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = WebhookDelivery)]
pub(in super::super) struct DeliveryJson {
    id: i64,
    /// The `webhook-id`: the same however often the event is sent.
    event_id: String,
    r#type: String,
    state: DeliveryStateJson,
    /// An earlier event about the same order, item or activity is not taken yet.
    is_behind: bool,
    tries: u32,
    /// When it is tried again at the earliest; null if it is due or over.
    next_try_at: Option<i64>,
    /// What the endpoint answered last, if it did.
    status: Option<u32>,
    /// Why it was not taken.
    cause: Option<String>,
    /// When it happened.
    created_at: i64,
    /// When it was taken or given up.
    done_at: Option<i64>,
    /// What is sent.
    #[schema(schema_with = schemas::audit_detail)]
    body: serde_json::Value,
}

impl From<WebhookDelivery> for DeliveryJson {
    fn from(one: WebhookDelivery) -> Self {
        let state = match one.state {
            DeliveryState::Pending | DeliveryState::Behind => DeliveryStateJson::Pending,
            DeliveryState::Delivered => DeliveryStateJson::Delivered,
            DeliveryState::Failed => DeliveryStateJson::Failed,
        };
        DeliveryJson {
            id: one.id,
            event_id: one.event_id,
            r#type: one.kind,
            state,
            is_behind: one.state == DeliveryState::Behind,
            tries: one.tries,
            next_try_at: (one.next_try_ms > 0).then_some(one.next_try_ms),
            status: one.status,
            cause: one.cause,
            created_at: one.created_ms,
            done_at: one.done_ms,
            body: serde_json::from_str(&one.body).unwrap_or_default(),
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ReplayFailed {
    /// Only events that happened since then; all that failed unless told.
    since: Option<GivenTime>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct ReplayedWebhooks {
    /// How many are sent again.
    replayed: usize,
}

/// Endpoints of the shop's backend, without their secrets.
#[utoipa::path(get, path = "/admin/webhooks", tag = "admin", security(("operator" = [])),
    responses((status = OK, body = WebhooksJson)))]
pub(in super::super) async fn list(
    State(app): State<Shared>,
    _: AsViewer,
) -> Result<Json<WebhooksJson>, Problem> {
    let found = app.engine.webhooks().all().await?;
    Ok(Json(WebhooksJson { webhooks: found.into_iter().map(Into::into).collect() }))
}

/// Add an endpoint. Its secret is in this answer and nowhere else. Needs the role admin.
#[utoipa::path(post, path = "/admin/webhooks", tag = "admin", security(("operator" = [])),
    request_body = NewWebhookJson,
    responses(
        (status = CREATED, body = WebhookSecret),
        (status = CONFLICT, description = "There are `webhooks.endpoints_max` already"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`, with the `field`")))]
pub(in super::super) async fn create(
    State(app): State<Shared>,
    AsAdmin(who): AsAdmin,
    Json(new): Json<NewWebhookJson>,
) -> Result<Response, Problem> {
    let made = finish(async move {
        let NewWebhookJson { url, description, events } = new;
        let made = app.engine.webhooks().add(&who, &url, &description, &events).await;
        made.map_err(full)
    });
    Ok((StatusCode::CREATED, once(made.await?)).into_response())
}

fn full(error: OperateError) -> Problem {
    let OperateError::Conflict(state @ "full") = error else { return error.into() };
    let words = (
        "There are as many endpoints as webhooks.endpoints_max allows: remove one first.",
        "回调地址数量已达 webhooks.endpoints_max 上限，请先删除一个。",
    );
    Problem::new(Code::Conflict).detail(words.0, words.1).with("state", state)
}

/// An answer that nobody keeps.
fn once(endpoint: WebhookEndpoint) -> Response {
    ([(CACHE_CONTROL, "no-store")], Json(WebhookSecret::from(endpoint))).into_response()
}

/// One endpoint.
#[utoipa::path(get, path = "/admin/webhooks/{id}", tag = "admin", security(("operator" = [])),
    params(("id" = inline(schemas::RowId), Path, description = "The endpoint's id")),
    responses((status = OK, body = WebhookJson), (status = NOT_FOUND, description = "No such endpoint")))]
pub(in super::super) async fn show(
    State(app): State<Shared>,
    _: AsViewer,
    Path(id): Path<i64>,
) -> Result<Json<WebhookJson>, Problem> {
    Ok(Json(app.engine.webhooks().one(id).await?.into()))
}

/// Change an endpoint, or switch it on or off. Of one from the settings only the latter. Needs the role
/// admin.
#[utoipa::path(patch, path = "/admin/webhooks/{id}", tag = "admin", security(("operator" = [])),
    params(("id" = inline(schemas::RowId), Path, description = "The endpoint's id")),
    request_body = EditedWebhook,
    responses(
        (status = OK, body = WebhookJson),
        (status = NOT_FOUND, description = "No such endpoint"),
        (status = CONFLICT, description = "It is in the settings (see `state`)"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`, with the `field`")))]
pub(in super::super) async fn change(
    State(app): State<Shared>,
    AsAdmin(who): AsAdmin,
    Path(id): Path<i64>,
    Json(new): Json<EditedWebhook>,
) -> Result<Json<WebhookJson>, Problem> {
    let change = WebhookChange {
        url: new.url,
        description: new.description,
        kinds: new.events.map(|kinds| WebhookKinds::of(&kinds)),
        enabled: new.enabled,
    };
    let changed = finish(async move { app.engine.webhooks().change(&who, id, &change).await });
    Ok(Json(changed.await?.into()))
}

/// Remove an endpoint, with all that waits for it. Needs the role admin.
#[utoipa::path(delete, path = "/admin/webhooks/{id}", tag = "admin", security(("operator" = [])),
    params(("id" = inline(schemas::RowId), Path, description = "The endpoint's id")),
    responses(
        (status = NO_CONTENT, description = "It is removed"),
        (status = NOT_FOUND, description = "No such endpoint"),
        (status = CONFLICT, description = "It is in the settings (see `state`)")))]
pub(in super::super) async fn remove(
    State(app): State<Shared>,
    AsAdmin(who): AsAdmin,
    Path(id): Path<i64>,
) -> Result<StatusCode, Problem> {
    finish(async move { app.engine.webhooks().remove(&who, id).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Give an endpoint a new secret. The one before signs as well for `webhooks.rotation_ms`. Needs the role
/// admin.
#[utoipa::path(post, path = "/admin/webhooks/{id}/rotate", tag = "admin", security(("operator" = [])),
    params(("id" = inline(schemas::RowId), Path, description = "The endpoint's id")),
    responses(
        (status = OK, body = WebhookSecret),
        (status = NOT_FOUND, description = "No such endpoint"),
        (status = CONFLICT, description = "It is in the settings (see `state`)")))]
pub(in super::super) async fn rotate(
    State(app): State<Shared>,
    AsAdmin(who): AsAdmin,
    Path(id): Path<i64>,
) -> Result<Response, Problem> {
    let rotated = finish(async move { app.engine.webhooks().rotate(&who, id).await });
    Ok(once(rotated.await?))
}

/// Send an endpoint an event `webhook.test` now, and tell how it took it.
#[utoipa::path(post, path = "/admin/webhooks/{id}/test", tag = "admin", security(("operator" = [])),
    params(("id" = inline(schemas::RowId), Path, description = "The endpoint's id")),
    responses((status = OK, body = Ping), (status = NOT_FOUND, description = "No such endpoint")))]
pub(in super::super) async fn test(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(id): Path<i64>,
) -> Result<Json<Ping>, Problem> {
    let ping = finish(async move { app.engine.webhooks().ping(&who, id).await }).await?;
    Ok(Json(Ping { taken: ping.cause.is_none(), status: ping.status, cause: ping.cause }))
}

/// What was sent to an endpoint, and what is still to be sent.
#[utoipa::path(get, path = "/admin/webhooks/{id}/deliveries", tag = "admin",
    security(("operator" = [])),
    params(("id" = inline(schemas::RowId), Path, description = "The endpoint's id"), DeliveriesPage),
    responses(
        (status = OK, body = WebhookDeliveries),
        (status = NOT_FOUND, description = "No such endpoint")))]
pub(in super::super) async fn deliveries(
    State(app): State<Shared>,
    _: AsViewer,
    Path(id): Path<i64>,
    Query(page): Query<DeliveriesPage>,
) -> Result<Json<WebhookDeliveries>, Problem> {
    let rows = paging::rows(page.limit)?;
    let filter = DeliveryFilter {
        endpoint: id,
        state: page.state.map(|state| match state {
            DeliveryStateJson::Pending => DeliveryState::Pending,
            DeliveryStateJson::Delivered => DeliveryState::Delivered,
            DeliveryStateJson::Failed => DeliveryState::Failed,
        }),
        subject: page.order_no.map(|no| no.to_string()),
        before: page.before,
        limit: rows,
    };
    let found = app.engine.webhooks().deliveries(&filter).await?;
    let next = paging::next(&found, rows, |one| one.id);
    Ok(Json(WebhookDeliveries { deliveries: found.into_iter().map(Into::into).collect(), next }))
}

/// Send all events again that an endpoint did not take.
#[utoipa::path(post, path = "/admin/webhooks/{id}/replay", tag = "admin", security(("operator" = [])),
    params(("id" = inline(schemas::RowId), Path, description = "The endpoint's id")),
    request_body = ReplayFailed,
    responses(
        (status = OK, body = ReplayedWebhooks),
        (status = NOT_FOUND, description = "No such endpoint"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`, with the `field`")))]
pub(in super::super) async fn replay(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path(id): Path<i64>,
    Json(asked): Json<ReplayFailed>,
) -> Result<Json<ReplayedWebhooks>, Problem> {
    let since_ms = asked.since.map_or(0, |since| since.0);
    let replayed =
        finish(async move { app.engine.webhooks().replay_failed(&who, id, since_ms).await });
    Ok(Json(ReplayedWebhooks { replayed: replayed.await? }))
}

/// Send one event again, and with it those about the same order that failed.
#[utoipa::path(post, path = "/admin/webhooks/{id}/deliveries/{delivery}/replay", tag = "admin",
    security(("operator" = [])),
    params(
        ("id" = inline(schemas::RowId), Path, description = "The endpoint's id"),
        ("delivery" = inline(schemas::RowId), Path, description = "The delivery's id")),
    responses(
        (status = OK, body = ReplayedWebhooks),
        (status = NOT_FOUND, description = "No such delivery"),
        (status = CONFLICT, description = "It is on its way (see `state`)")))]
pub(in super::super) async fn replay_one(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Path((id, delivery)): Path<(i64, i64)>,
) -> Result<Json<ReplayedWebhooks>, Problem> {
    let replayed = finish(async move { app.engine.webhooks().replay(&who, id, delivery).await });
    Ok(Json(ReplayedWebhooks { replayed: replayed.await? }))
}

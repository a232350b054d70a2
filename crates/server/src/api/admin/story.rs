//! One order's whole story: the claim, what it did to the stock, its way through the ledger, its money, and
//! what the shop's backend was told, in the order in which it happened.
//!
//! Each part is read where it is kept, and none is kept twice. What operators did to the order is in the
//! audit under `order:` and its number.

use axum::extract::State;
use engine::Engine;
use ledger::{
    DeadLetter, DeliveryFilter, DeliveryState, PaymentKind, PaymentRow, StockLogRow, StockLogType,
    WebhookDelivery,
};
use sale::{OrderNo, OrderStatus};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::super::{Shared, order::OrderJson, roles::AsViewer, schemas};
use crate::{
    extract::{Json, Path},
    problem::Problem,
};

/// Deliveries told of each endpoint.
const DELIVERIES_MAX: usize = 50;

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Story {
    #[schema(schema_with = schemas::order_no)]
    order_no: OrderNo,
    /// Oldest first.
    events: Vec<StoryEvent>,
}

#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum StoryKind {
    /// The gate admitted the claim and wrote it to the log.
    Claimed,
    /// It failed on its way to the ledger, and is or was tried again, or waits for a person.
    Failed,
    /// The ledger made it an order.
    Settled,
    /// The ledger could not honour it.
    Void,
    /// The stock of the item changed for it.
    Stock,
    /// A payment was opened at a provider.
    PaymentOpened,
    /// Money came.
    Paid,
    /// Money went back.
    Refunded,
    /// It was closed, by its buyer, an operator or time.
    Closed,
    /// The shop's backend was, or is to be, told.
    Webhook,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct StoryEvent {
    at: i64,
    kind: StoryKind,
    /// What there is to say of it.
    #[schema(schema_with = schemas::audit_detail)]
    detail: Value,
}

fn event(at: i64, kind: StoryKind, detail: Value) -> StoryEvent {
    StoryEvent { at, kind, detail }
}

fn of_order(order: &OrderJson) -> Vec<StoryEvent> {
    let claimed_ms = order.order_no.made_ms();
    let bought = json!({"quantity": order.quantity, "user_id": order.user_id});
    let mut events = vec![event(claimed_ms, StoryKind::Claimed, bought)];
    match order.status {
        OrderStatus::Queued => {}
        OrderStatus::Void => {
            events.push(event(order.created_at, StoryKind::Void, json!({"reason": order.reason})));
        }
        _ => {
            let detail = json!({"pay_deadline": order.pay_deadline});
            events.push(event(order.created_at, StoryKind::Settled, detail));
        }
    }
    if let Some(at) = order.closed_at.filter(|_| order.status != OrderStatus::Void) {
        events.push(event(at, StoryKind::Closed, json!({"reason": order.reason})));
    }
    events
}

fn of_payment(row: &PaymentRow) -> StoryEvent {
    let kind = match row.kind {
        PaymentKind::Open => StoryKind::PaymentOpened,
        PaymentKind::Pay => StoryKind::Paid,
        PaymentKind::Refund => StoryKind::Refunded,
    };
    let detail = json!({
        "provider": row.provider,
        "provider_txn": row.provider_txn,
        "amount": row.amount.minor,
        "currency": row.amount.currency,
        "method": row.method,
    });
    event(row.created_ms, kind, detail)
}

fn of_stock(row: &StockLogRow) -> StoryEvent {
    let StockLogRow { quantity, before_stock, after_stock, .. } = *row;
    let detail = json!({
        "type": row.kind,
        "quantity": if row.kind == StockLogType::Deduct { -quantity } else { quantity },
        "before": before_stock,
        "after": after_stock,
    });
    event(row.created_ms, StoryKind::Stock, detail)
}

fn of_letter(letter: &DeadLetter) -> StoryEvent {
    let detail = json!({
        "state": letter.state.as_str(),
        "tries": letter.tries,
        "cause": letter.cause,
        "next_try_at": letter.next_try_ms,
        "updated_at": letter.updated_ms,
    });
    event(letter.created_ms, StoryKind::Failed, detail)
}

fn of_delivery(endpoint: &str, one: &WebhookDelivery) -> StoryEvent {
    let state = match one.state {
        DeliveryState::Pending | DeliveryState::Behind => "pending",
        DeliveryState::Delivered => "delivered",
        DeliveryState::Failed => "failed",
    };
    let detail = json!({
        "type": one.kind,
        "endpoint": endpoint,
        "state": state,
        "tries": one.tries,
        "cause": one.cause,
        "done_at": one.done_ms,
    });
    event(one.created_ms, StoryKind::Webhook, detail)
}

async fn of_webhooks(engine: &Engine, no: OrderNo) -> Result<Vec<StoryEvent>, Problem> {
    let mut events = Vec::new();
    for shown in engine.webhooks().all().await? {
        let filter = DeliveryFilter {
            endpoint: shown.endpoint.id,
            state: None,
            subject: Some(no.to_string()),
            before: None,
            limit: DELIVERIES_MAX,
        };
        let told = engine.webhooks().deliveries(&filter).await?;
        events.extend(told.iter().map(|one| of_delivery(&shown.endpoint.url, one)));
    }
    Ok(events)
}

/// One order's whole story: claim, ledger, stock, money, and what the shop's backend was told.
#[utoipa::path(get, path = "/admin/orders/{no}/story", tag = "admin", security(("operator" = [])),
    params(("no" = inline(schemas::OrderNumber), Path, description = "The order number")),
    responses((status = OK, body = Story), (status = NOT_FOUND, description = "No such order")))]
pub(in super::super) async fn show(
    State(app): State<Shared>,
    _: AsViewer,
    Path(no): Path<OrderNo>,
) -> Result<Json<Story>, Problem> {
    let (engine, records) = (&app.engine, app.engine.records());
    let found = engine.orders().find(no).await?.ok_or_else(Problem::not_found)?;
    let mut events = of_order(&OrderJson::found(engine, found).await?);
    events.extend(engine.orders().payments(no).await?.iter().map(of_payment));
    events.extend(records.stock_log_of(no).await?.iter().map(of_stock));
    events.extend(records.dead_letter(no).await?.iter().map(of_letter));
    events.extend(of_webhooks(engine, no).await?);
    // Of the same instant they stay as they are told above.
    events.sort_by_key(|event| event.at);
    Ok(Json(Story { order_no: no, events }))
}

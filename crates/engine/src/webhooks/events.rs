//! What the shop's backend reads of an event.
//!
//! The outbox says that something happened to an order; the rest is read from the order when the event is
//! spread. Of what is read, only the status moves on: it is told as the event left it, and the times and the
//! reason of later events are left out. So an event says the same whenever it is spread.

use std::collections::{BTreeSet, HashMap};

use ledger::{
    Ledger, NewDelivery, OutboxMessage, OutboxRow, WebhookEndpoint, WebhookEvent, WebhookKind,
};
use sale::{Activity, ActivityId, Item, ItemId, Millis, Order, OrderNo, OrderStatus, iso_time};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Orders that are read at once.
const ORDERS_AT_ONCE_MAX: usize = 1_000;

#[derive(Serialize)]
struct Body<'b> {
    r#type: &'b str,
    timestamp: String,
    data: Value,
}

/// The body of an event, as Standard Webhooks wants it.
pub(crate) fn body(kind: &str, at_ms: Millis, data: Value) -> String {
    let body = Body { r#type: kind, timestamp: iso_time(at_ms), data };
    serde_json::to_string(&body).unwrap_or_default()
}

/// Deliveries of these rows for those endpoints that want them. A row that cannot be read is for nobody here.
pub(crate) async fn deliveries_of(
    ledger: &dyn Ledger,
    rows: &[OutboxRow],
    endpoints: &[WebhookEndpoint],
) -> ledger::Result<Vec<NewDelivery>> {
    let events = || {
        rows.iter().filter_map(|row| match &row.message {
            Ok(OutboxMessage::Webhook { events }) => Some((row.created_ms, events)),
            _ => None,
        })
    };
    let known = Known::read(ledger, events().flat_map(|(_, events)| events)).await?;
    let mut deliveries = Vec::new();
    for (at_ms, events) in events() {
        for event in events {
            let wants: Vec<i64> = endpoints
                .iter()
                .filter(|endpoint| endpoint.kinds.has(event.kind()))
                .map(|endpoint| endpoint.id)
                .collect();
            if wants.is_empty() {
                continue;
            }
            for told in known.told(event) {
                let body = body(event.kind().as_str(), at_ms, told.data);
                deliveries.extend(wants.iter().map(|endpoint| NewDelivery {
                    endpoint: *endpoint,
                    event_id: told.event_id.clone(),
                    kind: event.kind(),
                    subject: told.subject.clone(),
                    body: body.clone(),
                    created_ms: at_ms,
                }));
            }
        }
    }
    Ok(deliveries)
}

/// One event about one thing.
struct Told {
    event_id: String,
    subject: String,
    data: Value,
}

/// What the events are about.
struct Known {
    orders: HashMap<OrderNo, Order>,
    activities: Vec<Activity>,
}

impl Known {
    async fn read<'e>(
        ledger: &dyn Ledger,
        events: impl Iterator<Item = &'e WebhookEvent>,
    ) -> ledger::Result<Known> {
        let (mut numbers, mut items, mut activities) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for event in events {
            match event {
                WebhookEvent::Orders { orders, .. } => numbers.extend(orders.iter().copied()),
                WebhookEvent::Item { item, .. } => {
                    items.insert(*item);
                }
                WebhookEvent::Activity { activity, .. } => {
                    activities.insert(*activity);
                }
                WebhookEvent::Alert { .. } => {}
                WebhookEvent::Close { order_no, .. } | WebhookEvent::Refund { order_no, .. } => {
                    numbers.insert(*order_no);
                }
            }
        }
        let (numbers, mut orders): (Vec<OrderNo>, HashMap<_, _>) =
            (numbers.into_iter().collect(), HashMap::new());
        for some in numbers.chunks(ORDERS_AT_ONCE_MAX) {
            let found = ledger.orders_by_no(some).await?;
            orders.extend(found.into_iter().map(|order| (order.order_no, order)));
        }
        let activities: Vec<ActivityId> = activities.into_iter().collect();
        let items: Vec<ItemId> = items.into_iter().collect();
        let activities = if activities.is_empty() && items.is_empty() {
            Vec::new()
        } else {
            ledger.activities_of(&activities, &items, &[]).await?
        };
        Ok(Known { orders, activities })
    }

    fn item(&self, id: ItemId) -> Option<&Item> {
        self.activities.iter().flat_map(|activity| &activity.items).find(|item| item.id == id)
    }

    fn told(&self, event: &WebhookEvent) -> Vec<Told> {
        match event {
            WebhookEvent::Orders { kind, orders } => {
                let known = orders.iter().filter_map(|no| self.orders.get(no));
                known.map(|order| of_order(*kind, order)).collect()
            }
            WebhookEvent::Item { kind, item, version, stock } => {
                let word = word(*kind);
                let told = self.item(*item).map(|known| Told {
                    event_id: format!("evt_item{item}_v{version}_{word}"),
                    subject: format!("item:{item}"),
                    data: json!({
                        "item_id": item, "activity_id": known.activity, "name": known.name,
                        "sku": known.words.sku, "stock": stock,
                    }),
                });
                told.into_iter().collect()
            }
            WebhookEvent::Activity { kind, activity } => {
                let known = self.activities.iter().find(|known| known.id == *activity);
                let told = known.map(|known| Told {
                    event_id: format!("evt_activity{activity}_{}", word(*kind)),
                    subject: format!("activity:{activity}"),
                    data: json!({
                        "activity_id": activity, "external_id": known.external_id, "name": known.name,
                        "opens_at": known.opens_ms, "closes_at": known.closes_ms,
                    }),
                });
                told.into_iter().collect()
            }
            WebhookEvent::Alert { event_id, subject, data, .. } => vec![Told {
                event_id: event_id.clone(),
                subject: subject.clone(),
                data: data.clone(),
            }],
            WebhookEvent::Close { order_no, asked_ms, answer_by_ms } => {
                let told = self.orders.get(order_no).map(|order| Told {
                    event_id: format!("evt_{order_no}_close_{asked_ms}"),
                    subject: format!("close:{order_no}"),
                    data: with(of_payment(order), json!({"answer_by": answer_by_ms})),
                });
                told.into_iter().collect()
            }
            WebhookEvent::Refund { order_no, provider_txn, amount, ask, reason, note } => {
                let told = self.orders.get(order_no).map(|order| Told {
                    event_id: format!("evt_{order_no}_refund_{}_{ask}", digest(provider_txn)),
                    // A request is no news: it waits for no other one, and none waits for it.
                    subject: format!("refund:{}:{ask}", digest(provider_txn)),
                    data: with(
                        of_payment(order),
                        json!({
                            "transaction_id": provider_txn, "amount": amount.minor,
                            "currency": amount.currency, "reason": reason, "note": note, "ask": ask,
                        }),
                    ),
                });
                told.into_iter().collect()
            }
        }
    }
}

/// Of what the shop is asked about the money of an order. How the order stands is not said: the request may
/// be read long after.
fn of_payment(order: &Order) -> Value {
    json!({
        "order_no": order.order_no,
        "user_id": order.user,
        "activity_id": order.activity,
        "item_id": order.item,
        "item_name": order.item_name,
        "sku": order.sku,
        "quantity": order.quantity,
        "amount": order.amount.minor,
        "currency": order.amount.currency,
        "pay_deadline": order.pay_deadline_ms,
    })
}

fn with(mut data: Value, more: Value) -> Value {
    if let (Value::Object(data), Value::Object(more)) = (&mut data, more) {
        data.extend(more);
    }
    data
}

/// The shop's transaction id may be of any characters and long, and an id of an event may not.
fn digest(provider_txn: &str) -> String {
    let digest = Sha256::digest(provider_txn.as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The last part of a kind.
fn word(kind: WebhookKind) -> &'static str {
    let kind = kind.as_str();
    kind.rsplit('.').next().unwrap_or(kind)
}

/// Each of these happens to an order once, so that number and word are an id of the event.
fn of_order(kind: WebhookKind, order: &Order) -> Told {
    let status = match kind {
        WebhookKind::OrderPaid => OrderStatus::Paid,
        WebhookKind::OrderClosed => OrderStatus::Closed,
        WebhookKind::OrderRefunded => OrderStatus::Refunded,
        WebhookKind::OrderVoid => OrderStatus::Void,
        _ => OrderStatus::Unpaid,
    };
    let is_over = !status.is_live();
    let no = order.order_no;
    Told {
        event_id: format!("evt_{no}_{}", word(kind)),
        subject: no.to_string(),
        data: json!({
            "order_no": no,
            "user_id": order.user,
            "activity_id": order.activity,
            "item_id": order.item,
            "item_name": order.item_name,
            "sku": order.sku,
            "quantity": order.quantity,
            "price": order.price.minor,
            "amount": order.amount.minor,
            "currency": order.amount.currency,
            "status": status,
            "reason": order.reason.filter(|_| is_over),
            "pay_deadline": order.pay_deadline_ms,
            "created_at": order.created_ms,
            "paid_at": order.paid_ms.filter(|_| status != OrderStatus::Unpaid),
            "closed_at": order.closed_ms.filter(|_| is_over),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_engine::TestEngine;

    #[tokio::test]
    async fn the_shop_reads_its_own_ids() {
        let (_, mut activity) = TestEngine::with_a_sale(|_| {}).await;
        activity.external_id = Some("11-11".into());
        activity.items[0].words.sku = Some("A-1".into());
        let (id, item) = (activity.id, activity.items[0].id);
        let known = Known { orders: HashMap::new(), activities: vec![activity] };
        let data = |event| known.told(&event).remove(0).data;
        let kind = WebhookKind::ItemSoldOut;
        let sold_out = data(WebhookEvent::Item { kind, item, version: 1, stock: 0 });
        assert_eq!((&sold_out["sku"], &sold_out["stock"]), (&json!("A-1"), &json!(0)));
        let kind = WebhookKind::ActivityEnded;
        let ended = data(WebhookEvent::Activity { kind, activity: id });
        assert_eq!(ended["external_id"], "11-11");
    }
}

//! An order as everybody sees it: the buyer, the event stream and the operators.

use ledger::{DeadLetterState, PaymentRow};
use sale::{Claim, Currency, ItemId, Millis, Money, Order, OrderNo, OrderStatus, Reason, UserId};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    openapi,
    order_money::{OrderMoney, PayWith, PaymentJson, RefundJson},
    schemas,
};
use crate::problem::Problem;
use engine::{Engine, Found, OrderView};

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Order)]
pub(super) struct OrderJson {
    #[schema(schema_with = schemas::order_no)]
    pub(super) order_no: OrderNo,
    /// The buyer; only operators see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(super) user_id: Option<UserId>,
    pub(super) activity_id: i64,
    pub(super) item_id: i64,
    pub(super) item_name: String,
    /// The shop's own id of the product.
    pub(super) sku: Option<String>,
    pub(super) quantity: u32,
    /// Of one unit, in minor units of the currency.
    pub(super) price: i64,
    pub(super) amount: i64,
    #[schema(value_type = String, example = "CNY")]
    pub(super) currency: Currency,
    #[schema(schema_with = openapi::order_status)]
    pub(super) status: OrderStatus,
    /// Why it is closed or void.
    #[schema(schema_with = openapi::reason)]
    pub(super) reason: Option<Reason>,
    /// Absent (null) while queued.
    pub(super) pay_deadline: Option<i64>,
    pub(super) created_at: i64,
    pub(super) paid_at: Option<i64>,
    pub(super) closed_at: Option<i64>,
    /// While it is unpaid: where it may be paid. Empty: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) pay_with: Option<Vec<PayWith>>,
    /// While it is unpaid, the payment that was opened last; afterwards, the one that counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) payment: Option<PaymentJson>,
    /// Money that goes back, or went back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(super) refunds: Vec<RefundJson>,
    /// While queued: claims up to and including this one that are on their way to the ledger, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) position: Option<u64>,
    /// While queued: when it will be an order at the latest, at the rate of the last seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) eta_ms: Option<u64>,
    /// For operators, while queued: it failed, and is tried again (`retrying`) or waits for a person
    /// (`dead`), see `/admin/dead-letters`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = openapi::failed_state)]
    pub(super) failed: Option<&'static str>,
    /// Present and true if the ledger could not be asked: this is the last thing known of the order.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) stale: bool,
    /// With `stale`: when it was true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) as_of: Option<i64>,
}

impl OrderJson {
    pub(super) async fn of(engine: &Engine, view: OrderView) -> Result<OrderJson, Problem> {
        match view {
            OrderView::Known(order) => {
                // The order is known; without its payments it is still worth telling.
                let rows = engine.orders().payments(order.order_no).await.unwrap_or_default();
                Ok(OrderJson::from(order).with_money(engine, &rows))
            }
            OrderView::Queued(claim) => OrderJson::queued(engine, claim).await,
            OrderView::LastKnown(order, at_ms) => Ok(OrderJson::from(order).last_true_at(at_ms)),
            OrderView::LastQueued(claim) => {
                let claimed_ms = claim.claimed_ms;
                Ok(OrderJson::queued(engine, claim).await?.last_true_at(claimed_ms))
            }
        }
    }

    /// Many at once, for lists: their payments are read in one go.
    pub(super) async fn all(
        engine: &Engine,
        views: Vec<OrderView>,
    ) -> Result<Vec<OrderJson>, Problem> {
        let numbers: Vec<OrderNo> = views.iter().map(OrderView::order_no).collect();
        let rows = engine.orders().payments_of(&numbers).await.unwrap_or_default();
        let mut orders = Vec::with_capacity(views.len());
        for view in views {
            orders.push(match view {
                OrderView::Known(order) => {
                    let rows = rows.get(&order.order_no).map_or(&[][..], Vec::as_slice);
                    OrderJson::from(order).with_money(engine, rows)
                }
                other => OrderJson::of(engine, other).await?,
            });
        }
        Ok(orders)
    }

    /// `rows` are what is on record of its payments.
    pub(super) fn with_money(mut self, engine: &Engine, rows: &[PaymentRow]) -> OrderJson {
        if self.status == OrderStatus::Unpaid {
            self.pay_with = Some(PayWith::all(engine, self.currency));
        }
        let money = OrderMoney::of(self.status, rows);
        OrderJson { payment: money.payment, refunds: money.refunds, ..self }
    }

    /// As operators see it.
    pub(super) async fn found(engine: &Engine, found: Found) -> Result<OrderJson, Problem> {
        let user = found.view.user().clone();
        let mut order = OrderJson::of(engine, found.view).await?.with_user(user);
        order.failed = found.failed.map(DeadLetterState::as_str);
        Ok(order)
    }

    /// While queued: with a place that is better known.
    pub(super) fn at(self, position: u64, eta_ms: u64) -> OrderJson {
        OrderJson { position: Some(position), eta_ms: Some(eta_ms), ..self }
    }

    fn last_true_at(self, at_ms: Millis) -> OrderJson {
        OrderJson { stale: true, as_of: Some(at_ms), ..self }
    }

    /// With the buyer's name, for operators.
    pub(super) fn with_user(mut self, user: UserId) -> OrderJson {
        self.user_id = Some(user);
        self
    }

    /// The ledger does not have it yet, so what it is for comes from the catalogue.
    async fn queued(engine: &Engine, claim: Claim) -> Result<OrderJson, Problem> {
        let item = ClaimedItem::of(engine, claim.item).await?;
        Ok(OrderJson {
            order_no: claim.order_no,
            user_id: None,
            activity_id: item.activity_id,
            item_id: claim.item.0,
            item_name: item.name,
            sku: item.sku,
            quantity: claim.quantity,
            price: item.price.minor,
            amount: item.price.times(claim.quantity).map_or(0, |amount| amount.minor),
            currency: item.price.currency,
            status: OrderStatus::Queued,
            reason: None,
            pay_deadline: None,
            created_at: claim.claimed_ms,
            paid_at: None,
            closed_at: None,
            pay_with: None,
            payment: None,
            refunds: Vec::new(),
            // What stands before this claim is at most the whole log.
            position: engine.orders().backlog(),
            eta_ms: engine.orders().backlog_eta_ms(),
            failed: None,
            stale: false,
            as_of: None,
        })
    }
}

impl From<Order> for OrderJson {
    fn from(order: Order) -> Self {
        // A void claim never had a time to be paid in.
        let payable = order.status != OrderStatus::Void;
        OrderJson {
            order_no: order.order_no,
            user_id: None,
            activity_id: order.activity.0,
            item_id: order.item.0,
            item_name: order.item_name,
            sku: order.sku,
            quantity: order.quantity,
            price: order.price.minor,
            amount: order.amount.minor,
            currency: order.price.currency,
            status: order.status,
            reason: order.reason,
            pay_deadline: payable.then_some(order.pay_deadline_ms),
            created_at: order.created_ms,
            paid_at: order.paid_ms,
            closed_at: order.closed_ms,
            pay_with: None,
            payment: None,
            refunds: Vec::new(),
            position: None,
            eta_ms: None,
            failed: None,
            stale: false,
            as_of: None,
        }
    }
}

/// What a claim is for.
struct ClaimedItem {
    activity_id: i64,
    name: String,
    sku: Option<String>,
    price: Money,
}

impl ClaimedItem {
    async fn of(engine: &Engine, id: ItemId) -> Result<ClaimedItem, Problem> {
        let Some(shown) = engine.catalogue().item(id).await? else {
            // The gate has sold what the ledger does not know: the claim will be void, and says so then.
            let price = Money::new(0, Currency::CNY);
            return Ok(ClaimedItem { activity_id: 0, name: String::new(), sku: None, price });
        };
        let item = shown.item();
        Ok(ClaimedItem {
            activity_id: item.activity.0,
            name: item.name.clone(),
            sku: item.words.sku.clone(),
            price: item.price,
        })
    }
}

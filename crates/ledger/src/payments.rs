//! Money: opened at a provider, credited once, given back once.

use std::str::FromStr;

use async_trait::async_trait;
use sale::{Invalid, Millis, Money, OrderNo, OrderStatus};
use serde::Serialize;

use crate::{AuditEntry, Moved, Result};

/// What payment providers, buyers and operators do with the money of orders.
#[async_trait]
pub trait Payments: Send + Sync {
    /// Note that a payment is being opened at this provider, before the provider is asked, so that
    /// the time-out will close it there first. Only while the order is unpaid; idempotent, and the `method`
    /// that was asked for last stays on record.
    async fn open_payment(
        &self,
        no: OrderNo,
        provider: &str,
        method: Option<&str>,
        now_ms: Millis,
    ) -> Result<Moved<OrderStatus>>;

    /// Verified money. Credits once per (provider, provider_txn): an unpaid order becomes paid; a
    /// closed one refunding, with an outbox `Refund`; money beyond the first payment (the order is
    /// paid, refunding or refunded already, or void) is refunded without moving the order.
    async fn credit(&self, notice: &PaymentNotice, now_ms: Millis) -> Result<Credit>;

    /// An operator refunds a paid order: `Paid` → `Refunding`, units return, outbox `Refund` per
    /// payment that is not refunded yet, with the operator's words about it. `audit` is written in the
    /// same transaction, whether the refund was started now or before.
    async fn start_refund(
        &self,
        no: OrderNo,
        note: Option<&str>,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Moved<OrderStatus>>;

    /// The provider has given the money back; `Refunding` → `Refunded` once nothing credited to the
    /// order is left unrefunded (an order that was paid and stays paid keeps its status).
    async fn refunded(&self, done: &RefundDone, now_ms: Millis) -> Result<()>;

    /// Oldest first.
    async fn payments(&self, no: OrderNo) -> Result<Vec<PaymentRow>>;

    /// All that is on record of these orders' payments, oldest first.
    async fn payments_of(&self, orders: &[OrderNo]) -> Result<Vec<PaymentRow>>;

    /// The orders of this payment, by the name it has there: of these providers.
    async fn orders_of_payment(
        &self,
        providers: &[String],
        provider_txn: &str,
    ) -> Result<Vec<OrderNo>>;

    /// Payments that were opened at a provider which never told us of money, until [`Ledger::payments_over`]
    /// says that none can come any more. In the order in which they were opened, those behind
    /// `after_id`.
    async fn open_payments(&self, after_id: i64, limit: usize) -> Result<Vec<OpenPayment>>;

    /// The providers have said that these payments are closed, and money that was under way has had
    /// its time: they are not asked about again.
    async fn payments_over(&self, ids: &[i64], now_ms: Millis) -> Result<()>;

    /// Put the outbox `Refund` of this payment back, if the money is still owed and no row waits.
    async fn requeue_refund(
        &self,
        provider: &str,
        provider_txn: &str,
        now_ms: Millis,
    ) -> Result<bool>;
}

/// A payment that was opened at a provider, of which we heard nothing since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPayment {
    pub id: i64,
    pub order_no: OrderNo,
    pub provider: String,
    pub opened_ms: Millis,
    /// Since when the order is not to be paid any more (closed, or paid elsewhere); none if it is
    /// unpaid.
    pub order_over_ms: Option<Millis>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PaymentKind {
    /// Opened at the provider, not paid as far as we know.
    Open,
    /// Money received.
    Pay,
    /// Money given back.
    Refund,
}

impl PaymentKind {
    pub fn code(self) -> i64 {
        self as i64
    }

    pub fn from_code(code: i64) -> Option<Self> {
        [PaymentKind::Open, PaymentKind::Pay, PaymentKind::Refund]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// Money the provider says, and proved, it received for an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentNotice {
    pub provider: String,
    pub provider_txn: String,
    pub order_no: OrderNo,
    pub amount: Money,
    pub paid_ms: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credit {
    /// The order is paid now.
    Paid,
    /// This transaction had been credited before.
    Repeated,
    /// The order was over; the money goes back.
    Refunding(OrderStatus),
    /// No such order. Nothing recorded.
    UnknownOrder,
    /// Amount or currency differ from the order's. Nothing recorded.
    Mismatch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundDone {
    pub provider: String,
    /// The payment that was refunded.
    pub provider_txn: String,
    pub order_no: OrderNo,
    pub amount: Money,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PaymentRow {
    pub provider: String,
    pub provider_txn: String,
    pub order_no: OrderNo,
    pub kind: PaymentKind,
    pub amount: Money,
    pub created_ms: Millis,
    /// Of a payment that was opened: how the buyer came to the provider.
    pub method: Option<String>,
    /// Of money received: why it goes back, once it does.
    pub refund: Option<RefundAsked>,
}

/// Why money goes back, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefundAsked {
    pub reason: RefundReason,
    /// In an operator's words.
    pub note: Option<String>,
    pub asked_ms: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefundReason {
    /// It came when the order was closed.
    Late,
    /// The order had been paid before.
    Double,
    /// The claim was void, and could never be paid.
    Void,
    /// An operator gave it back.
    Operator,
    /// Its provider, or the shop's own cashier, gave it back without being asked by us.
    Provider,
}

impl RefundReason {
    pub const ALL: [RefundReason; 5] = [
        RefundReason::Late,
        RefundReason::Double,
        RefundReason::Void,
        RefundReason::Operator,
        RefundReason::Provider,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            RefundReason::Late => "late",
            RefundReason::Double => "double",
            RefundReason::Void => "void",
            RefundReason::Operator => "operator",
            RefundReason::Provider => "provider",
        }
    }

    /// Why money goes back that came for an order in this state.
    pub fn of_money_for(status: OrderStatus) -> RefundReason {
        match status {
            OrderStatus::Closed => RefundReason::Late,
            OrderStatus::Void => RefundReason::Void,
            _ => RefundReason::Double,
        }
    }
}

impl FromStr for RefundReason {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = RefundReason::ALL.into_iter().find(|reason| reason.as_str() == text);
        known.ok_or_else(|| format!("{text} is no reason to give money back"))
    }
}

impl PaymentRow {
    /// We only ever ask for a payment to be given back whole; anything else is somebody else's
    /// refund.
    pub(crate) fn check_refund(&self, done: &RefundDone) -> Result<(), Invalid> {
        if self.order_no != done.order_no {
            let problem = format!("the payment was for {}", self.order_no);
            return Err(Invalid::new("order_no", problem));
        }
        if self.amount != done.amount {
            return Err(Invalid::new("amount", format!("the payment was {}", self.amount)));
        }
        Ok(())
    }
}

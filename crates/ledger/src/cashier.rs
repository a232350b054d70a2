//! The shop's own cashier: what it is asked about money, and what it tells.

use async_trait::async_trait;
use sale::{Millis, Money, OrderNo, OrderStatus};

use crate::{AuditEntry, RefundDone, Result};

/// What is asked of a provider that can only be told, and hears of it by webhook.
///
/// A request is written with the note that it was made, in one transaction: so it is made once, however
/// often somebody looks whether it has been answered, and by however many processes.
#[async_trait]
pub trait Cashier: Send + Sync {
    /// Asks the provider to close the payments of these orders, unless it was asked before. One outcome for
    /// each, in their order.
    async fn ask_to_close(
        &self,
        provider: &str,
        orders: &[OrderNo],
        answer_ms_max: Millis,
        now_ms: Millis,
    ) -> Result<Vec<CloseAsked>>;

    /// The provider says that nobody can pay this order there any more. Answers since when it was asked to,
    /// `None` if it was not; not found if no payment was opened there.
    async fn payment_closed(
        &self,
        provider: &str,
        no: OrderNo,
        closed_ms: Millis,
    ) -> Result<Option<Millis>>;

    /// Asks the provider to give this payment back, unless it was asked less than `repeat_ms` ago.
    async fn ask_to_refund(
        &self,
        provider: &str,
        provider_txn: &str,
        repeat_ms: Millis,
        now_ms: Millis,
    ) -> Result<RefundRequested>;

    /// The provider gave a payment back, asked by us or by somebody else: a paid order whose money this was
    /// is refunded with its units, and no refund waits any more.
    async fn refund_told(
        &self,
        done: &RefundDone,
        audit: Option<&AuditEntry>,
        now_ms: Millis,
    ) -> Result<RefundTold>;
}

/// Asking about payments that their providers were to tell of, and about refunds.
#[async_trait]
pub trait Asking: Send + Sync {
    /// Payments at this provider that are due to be asked about, the longest due first. One that is to be
    /// asked about later than `pause_ms_max` from now was written by a clock that has been set back.
    async fn payments_to_ask(
        &self,
        provider: &str,
        now_ms: Millis,
        pause_ms_max: Millis,
        limit: usize,
    ) -> Result<Vec<PaymentToAsk>>;

    /// When these payments are asked about next; never again without a time.
    async fn payments_asked(&self, asked: &[PaymentAsked]) -> Result<()>;

    /// Does a refund of this payment wait? Then it is due at once.
    async fn refund_is_due(&self, provider: &str, provider_txn: &str) -> Result<bool>;

    /// The refunds of an order that wait to be done, and why they were not.
    async fn refunds_waiting(&self, no: OrderNo) -> Result<Vec<RefundWaiting>>;
}

/// A payment is asked about for the first time so long after it was opened.
pub const PAYMENT_ASK_MS_FIRST: Millis = 30_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentToAsk {
    pub id: i64,
    pub order_no: OrderNo,
    /// How often it was asked about.
    pub asks: u32,
    pub status: OrderStatus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaymentAsked {
    pub id: i64,
    pub asks: u32,
    pub next_ms: Option<Millis>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundWaiting {
    pub provider: String,
    pub provider_txn: String,
    pub tries: u32,
    pub cause: Option<String>,
    pub since_ms: Millis,
}

/// What an operator writes down that no provider can tell.
#[async_trait]
pub trait ByHand: Send + Sync {
    /// The whole amount of an unpaid order came in some other way. Idempotent by provider and reference; an
    /// order that is not unpaid is left as it is. `audit` is written in the same transaction, if anything is
    /// so now that was to be.
    async fn mark_paid(
        &self,
        provider: &str,
        reference: &str,
        no: OrderNo,
        paid_ms: Millis,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Marked>;

    /// Money of an order was given back in some other way: this payment, or the only one there is. A paid
    /// order is refunded with its units. No refund waits any more.
    async fn mark_refunded(
        &self,
        no: OrderNo,
        provider_txn: Option<&str>,
        note: &str,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Marked>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    Done,
    /// It was so before.
    Repeated,
    /// The order is in this status, in which it cannot be.
    Was(OrderStatus),
    /// The reference is that of money for this other order.
    UsedFor(OrderNo),
}

/// How a request to close stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseAsked {
    /// It was made, now or not long ago, and is not answered.
    Waiting,
    /// It is closed: the provider says so, or said nothing for too long, or there is nobody to ask.
    Closed,
    NeverOpened,
}

/// How a request to give money back stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundRequested {
    /// It was made so often, now for the last time.
    Asked(u32),
    /// It was made not long ago.
    Waiting,
    /// Nobody is there who wants to be asked.
    NobodyToAsk,
    /// The money is back.
    Refunded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundTold {
    /// Noted; the order is in this status now.
    Noted(OrderStatus),
    /// This payment was given back before.
    Repeated(OrderStatus),
    /// The payment was for another order, or is not the whole amount, which is this.
    Mismatch(OrderNo, Money),
    /// No such payment was credited.
    UnknownPayment,
}

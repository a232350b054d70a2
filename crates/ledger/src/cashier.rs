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

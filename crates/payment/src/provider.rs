//! What every payment provider can do for us.

use async_trait::async_trait;
use sale::{Millis, Money, OrderNo, UserId};

/// No provider's notice is near this long; longer bodies are refused unread.
pub const NOTICE_BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// Unknown: it may have been done or not. Ask again; every call here may be repeated.
    #[error("the payment provider does not answer: {0}")]
    Unavailable(String),
    /// A clear no. Asking again will not help.
    #[error("the payment provider refuses: {0}")]
    Refused(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayRequest {
    pub order_no: OrderNo,
    pub amount: Money,
    /// What the buyer reads at the cashier: the item's name.
    pub subject: String,
    /// After this the provider takes no money for it any more.
    pub deadline_ms: Millis,
    pub user: UserId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Where the buyer pays.
    pub payment_url: String,
}

/// Money that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paid {
    /// The provider's number of this one charge.
    pub provider_txn: String,
    pub amount: Money,
    pub paid_ms: Millis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseOutcome {
    /// Nobody can start paying any more (also if it was closed before). Money already under way
    /// may still land.
    Closed,
    /// Too late: the order is paid.
    AlreadyPaid(Paid),
    NeverOpened,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryOutcome {
    NeverOpened,
    /// Not paid yet. A failed try counts as this: the buyer may try again.
    Open,
    Closed,
    Paid(Paid),
    /// Paid once, and all of it given back.
    Refunded(Paid),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundRequest {
    pub order_no: OrderNo,
    /// The charge to give back, whole.
    pub provider_txn: String,
    pub amount: Money,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefundOutcome {
    /// The money is on its way back to the buyer (now, or since an earlier call).
    Done,
    /// Accepted and not finished. Ask again later.
    Pending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeOutcome {
    Paid,
    /// The buyer's try failed. The payment stays open.
    Failed,
}

/// What a provider told us, proved to come from it. Not yet compared with the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub provider_txn: String,
    pub order_no: OrderNo,
    pub amount: Money,
    pub paid_ms: Millis,
    pub outcome: NoticeOutcome,
}

/// Why a notice is not believed. None of these is worth more than a warning: anyone can post one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoticeError {
    #[error("the signature is missing or wrong")]
    BadSignature,
    #[error("the time stamp is outside the window")]
    Stale,
    #[error("the notice is for another merchant")]
    OtherMerchant,
    #[error("the notice cannot be read: {0}")]
    Malformed(String),
}

#[async_trait]
pub trait Provider: Send + Sync {
    /// As it appears in addresses and in the ledger, e.g. `sandbox`.
    fn name(&self) -> &'static str;

    /// Let the buyer pay. Idempotent by `order_no`: the same request gets the same address.
    async fn open(&self, request: &PayRequest) -> Result<Opened, ProviderError>;

    /// Let nobody pay any more. Idempotent.
    async fn close(&self, order_no: OrderNo) -> Result<CloseOutcome, ProviderError>;

    async fn query(&self, order_no: OrderNo) -> Result<QueryOutcome, ProviderError>;

    /// Give a charge back. Idempotent by `provider_txn`: money goes back once.
    async fn refund(&self, request: &RefundRequest) -> Result<RefundOutcome, ProviderError>;

    /// Is this notice from the provider, fresh, and for us? `body` must be the bytes as they came.
    fn verify_notice(&self, headers: &http::HeaderMap, body: &[u8]) -> Result<Notice, NoticeError>;

    /// What the provider wants to hear: status, content type, body. Not accepted means it will
    /// tell us again later.
    fn answer(&self, accepted: bool) -> (u16, &'static str, String);
}

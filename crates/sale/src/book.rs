//! What the workers need of the ledger: turn claims into orders, and remember those that failed.

use async_trait::async_trait;

use crate::{Claim, ItemId, Millis, OrderNo, VoidReason};

/// Why the ledger did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// Nobody's fault in the batch: the ledger is down, locked, full or unreachable. Try again
    /// later; it may even have been done, so ask again by `order_no` (settling twice is a no-op).
    #[error("the ledger does not answer: {0}")]
    Unavailable(String),
    /// Somebody else holds rows of this item and does not let go. Nothing was done, nothing is wrong
    /// with the batch, and other items are none the worse: settle those meanwhile.
    #[error("rows of the item are held by somebody else: {0}")]
    Locked(String),
    /// No answer within the ledger's limit. Like [`BookError::Unavailable`], and perhaps it was too
    /// much at once.
    #[error("the ledger does not answer in time: {0}")]
    CutOff(String),
    /// The version of the item moved under us every time we tried.
    #[error("the item's version changed {0} times in a row")]
    Contended(u32),
    /// Something in the batch itself cannot be written.
    #[error("{0}")]
    Rejected(String),
}

/// What became of each claim of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Orders made now.
    pub created: Vec<OrderNo>,
    /// Orders that were there already: a redelivery.
    pub repeated: Vec<OrderNo>,
    /// Refused by the ledger; the buyer is told the reason and the units go back to the gate.
    pub void: Vec<(OrderNo, VoidReason)>,
}

/// A claim that failed for a reason of its own, waiting for its next try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedClaim {
    pub claim: Claim,
    /// How often it was tried.
    pub tries: u32,
    /// When to try again. `None`: never again by itself, it is a dead letter.
    pub next_try_ms: Option<Millis>,
    pub cause: String,
}

#[async_trait]
pub trait OrderBook: Send + Sync {
    /// One transaction: all claims of the batch, all of one item, become orders or void. Good
    /// claims commit even if others of the batch are refused. Claims settled before are no-ops.
    async fn settle(&self, item: ItemId, claims: &[Claim]) -> Result<Settled, BookError>;

    /// Remember failed claims, replacing what was remembered of them before. After this they may
    /// be acknowledged on the log.
    async fn defer(&self, failed: &[FailedClaim]) -> Result<(), BookError>;

    /// Failed claims whose next try is due, at most `limit`, earliest first.
    async fn due(&self, now_ms: Millis, limit: usize) -> Result<Vec<FailedClaim>, BookError>;

    /// The next try of failed claims that were noted well after `now_ms`, by a clock that has been set right
    /// since, becomes due. Answers how many there were.
    async fn due_by_another_clock(&self, now_ms: Millis) -> Result<u64, BookError>;
}

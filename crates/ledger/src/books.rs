//! The ledger's side of a comparison with the gate, and what waits to be done.

use async_trait::async_trait;
use sale::{Claim, Epoch, Item, ItemId, Millis, OrderNo};
use serde::{Deserialize, Serialize};

use crate::{OrderNos, Release, Result};

/// What reconcile and the metrics read.
#[async_trait]
pub trait Books: Send + Sync {
    /// Everything the comparison needs of one item, read in one transaction.
    async fn item_books(&self, item: ItemId, in_flight: &[OrderNo]) -> Result<ItemBooks>;

    /// Payments that do not add up, at most `limit` of each kind: what nobody can heal must not hide
    /// what can be healed.
    async fn payment_problems(&self, limit: usize) -> Result<Vec<PaymentProblem>>;

    /// What waits to be done, counted: its cost follows what waits, never what is done.
    async fn outstanding(&self) -> Result<Outstanding>;

    /// The same as one of all instances has counted it within `age_ms_max`; if none has, this one does,
    /// and the others read what it found. A ledger of one process is simply counted.
    async fn outstanding_lately(&self, age_ms_max: Millis) -> Result<Outstanding>;
}

/// What waits to be done. Kept in the ledger for the other instances, which may be of another build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outstanding {
    /// By kind, in the order of their names; kinds without rows are left out.
    pub outbox: Vec<OutstandingRows>,
    /// By item; items without failed claims are left out.
    pub claims: Vec<OutstandingClaims>,
}

/// Outbox rows of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutstandingRows {
    /// `release`, `adjust`, `news`, `refund`, or what a newer binary wrote.
    pub kind: String,
    /// At most 100,000 are counted.
    pub rows: u64,
    /// When the oldest of them was written.
    pub oldest_ms: Millis,
}

/// Claims of one item that failed, and the units they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutstandingClaims {
    pub item: ItemId,
    pub retrying: u64,
    pub dead: u64,
    pub units: i64,
}

/// One item as the ledger sees it at one instant.
#[derive(Clone, Debug)]
pub struct ItemBooks {
    pub item: Item,
    /// Epoch of the item at that instant, for comparing with the gate's.
    pub epoch: Epoch,
    /// Units of unpaid and paid orders.
    pub live_units: i64,
    pub live_orders: u64,
    /// Rows of `tb_user_seckill`.
    pub user_records: u64,
    /// Live orders without a user record of theirs, or the other way round.
    pub user_record_mismatches: u64,
    /// Of the asked claims: those that are orders or void already.
    pub settled: OrderNos,
    /// Claims retrying or dead, with their units.
    pub failed: Vec<Claim>,
    /// Units that pending outbox rows will still give to the gate (releases).
    pub pending_releases: Vec<Release>,
    /// Adjustments that wait in the outbox for the gate, with their delta.
    pub pending_adjusts: Vec<(OrderNo, i64)>,
    /// Ids of stock log rows whose `before_stock` is not the `after_stock` of the row before, or
    /// whose arithmetic is wrong; at most 100.
    pub chain_breaks: Vec<i64>,
    /// `after_stock` of the last stock log row.
    pub chain_end: Option<i64>,
}

/// A payment that does not add up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "problem", rename_all = "snake_case")]
pub enum PaymentProblem {
    /// The order says paid, no money is on record.
    PaidWithoutMoney { order_no: OrderNo },
    /// Money is owed back (refunding order, or money beyond the first payment), no refund is on
    /// record and none waits in the outbox.
    RefundNotQueued { order_no: OrderNo, provider: String, provider_txn: String },
    /// More was given back than received.
    RefundedTooMuch { order_no: OrderNo },
}

//! The ledger's side of a comparison with the gate, and what waits to be done.

use async_trait::async_trait;
use sale::{Claim, Epoch, Item, ItemId, ItemState, Millis, OrderNo};
use serde::{Deserialize, Serialize};

use crate::{ActivityFilter, ActivityKey, OrderNos, Release, Result, sql::chain::Walk};

/// Rows of an item's stock log, and orders whose payments are checked, that one reading goes through: who
/// reads all of them reads page by page.
pub const BOOKS_PAGE_ROWS: usize = 10_000;

/// What reconcile and the metrics read.
#[async_trait]
pub trait Books: Send + Sync {
    /// Everything the comparison needs of one item, read in one transaction.
    async fn item_books(&self, item: ItemId, in_flight: &[OrderNo]) -> Result<ItemBooks> {
        self.item_books_behind(&LogWalk::default(), item, in_flight).await
    }

    /// The same, without what of a long stock log was walked before: rows are only ever written behind the
    /// last one. Whoever holds something up for others while it reads books walks first.
    async fn item_books_behind(
        &self,
        walk: &LogWalk,
        item: ItemId,
        in_flight: &[OrderNo],
    ) -> Result<ItemBooks>;

    /// Reads all of a long stock log but its last page, page by page. Of a shorter one it reads nothing.
    async fn walk_log(&self, item: ItemId) -> Result<LogWalk>;

    /// The same, counted on from a point at which the books agreed: the price follows what changed since.
    /// `None` if that point is not in the books any more, as after a restore, or if they do not agree now;
    /// then all has to be read.
    async fn item_books_since(
        &self,
        item: ItemId,
        in_flight: &[OrderNo],
        point: &BooksPoint,
    ) -> Result<Option<ItemBooks>>;

    /// The items of the next `limit` activities of this filter behind `after`, in a few numbers each.
    async fn item_outlines(
        &self,
        filter: &ActivityFilter,
        after: Option<ActivityKey>,
        limit: usize,
    ) -> Result<OutlinePage>;

    /// Payments that do not add up, at most `limit` of each kind: what nobody can heal must not hide
    /// what can be healed.
    async fn payment_problems(&self, limit: usize) -> Result<Vec<PaymentProblem>> {
        Ok(self.check_payments(None, limit).await?.problems)
    }

    /// The same, and what is owed. Of all payments, some orders at a time, each of which is seen in one
    /// instant; or `since` an earlier look among what may have changed:
    /// orders that could be paid since, payments that were noted since, refunds that are under way, and what
    /// it asks about again.
    async fn check_payments(
        &self,
        since: Option<&PaymentsSince>,
        limit: usize,
    ) -> Result<CheckedPayments>;

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
    pub log_end: Option<LogEnd>,
}

impl ItemBooks {
    /// Where a later reading may go on counting, if these books agree with themselves.
    pub fn point(&self) -> BooksPoint {
        BooksPoint {
            version: self.item.version,
            total: self.item.total,
            log_end: self.log_end,
            live_orders: self.live_orders,
            live_units: self.live_units,
            user_records: self.user_records,
        }
    }
}

/// As far as the stock log of an item was read.
#[derive(Clone, Debug, Default)]
pub struct LogWalk(pub(crate) Walk);

/// The last row of an item's stock log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    pub id: i64,
    pub order_no: OrderNo,
    pub after_stock: i64,
}

/// What was counted of an item whose books agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BooksPoint {
    pub version: i64,
    pub total: i64,
    pub log_end: Option<LogEnd>,
    pub live_orders: u64,
    pub live_units: i64,
    pub user_records: u64,
}

/// An item in a few numbers: two that are equal are of the same books, unless somebody changed rows of
/// orders, buyers or the middle of the stock log behind everybody's back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemOutline {
    pub item: ItemId,
    pub state: ItemState,
    pub epoch: Epoch,
    pub version: i64,
    pub stock: i64,
    pub total: i64,
    pub log_end: Option<LogEnd>,
}

/// The items of some activities.
#[derive(Clone, Debug)]
pub struct OutlinePage {
    /// What never was at the gate and whose stock nobody changed is left out.
    pub items: Vec<ItemOutline>,
    /// The last of the activities; none if there are no more.
    pub next: Option<ActivityKey>,
}

/// Money that has to go back and has not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwedPayment {
    pub provider: String,
    pub provider_txn: String,
}

/// Up to when payments were looked at, and what that found and asks about again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PaymentsSince {
    pub since_ms: Millis,
    pub owed: Vec<OwedPayment>,
    /// Orders whose payments did not add up.
    pub orders: Vec<OrderNo>,
}

/// Payments that are owed and told of, at the most.
pub const OWED_TOLD_MAX: usize = 10_000;

/// What a look at payments found.
#[derive(Clone, Debug, Default)]
pub struct CheckedPayments {
    pub problems: Vec<PaymentProblem>,
    /// Owed back, of orders by whose status it would not be found again. More than [`OWED_TOLD_MAX`]: there
    /// may be others.
    pub owed: Vec<OwedPayment>,
}

impl PaymentProblem {
    pub fn order_no(&self) -> OrderNo {
        match self {
            PaymentProblem::PaidWithoutMoney { order_no }
            | PaymentProblem::RefundNotQueued { order_no, .. }
            | PaymentProblem::RefundedTooMuch { order_no } => *order_no,
        }
    }
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

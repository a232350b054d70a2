//! Units: loaded into the gate, changed by operators, and the log of every change.

use async_trait::async_trait;
use sale::{Activity, Claim, Epoch, Item, ItemId, Millis, OrderNo};
use serde::Serialize;

use crate::{
    AuditEntry, OrderNos, Result,
    mark_pages::{MarkPages, WalkTurn},
};

/// What warming and operators do with the units of an item.
#[async_trait]
pub trait Stock: Send + Sync {
    /// Any state but `Ended` becomes `Warming` under the next epoch, if the item's epoch is still
    /// `expected`. Answers the new epoch, or `None` if somebody else was faster.
    async fn begin_warm(&self, item: ItemId, expected: Epoch) -> Result<Option<Epoch>>;

    /// The right to read all orders of this item. Few large items are read at a time, so it may have to
    /// be waited for: by whoever has not frozen anything yet. A small item waits for nobody.
    async fn walk_turn(&self, item: ItemId) -> Result<WalkTurn>;

    /// What the gate must be loaded with, all of one instant: the marks, of which there may be millions,
    /// come page by page. `in_flight` are the claims on the log; the answer says which of them are
    /// orders (or void) already.
    async fn warm_basis(
        &self,
        turn: WalkTurn,
        item: ItemId,
        in_flight: &[OrderNo],
    ) -> Result<(WarmBasis, MarkPages)>;

    /// `Warming` under `epoch` becomes `Ready`. False if it is no longer so.
    async fn finish_warm(&self, item: ItemId, epoch: Epoch) -> Result<bool>;

    /// Change `stock` and `total` by `delta`, idempotent by `adjust_no`. Refused (field `delta`)
    /// if either would fall below zero or above `STOCK_MAX`. Always leaves an
    /// `OutboxMessage::Adjust`, in both directions: when lowering, the caller took the units from the
    /// gate beforehand and the gate, which knows the number, does nothing. `audit` is written in the
    /// same transaction, with the stock before and after.
    async fn adjust_stock(
        &self,
        item: ItemId,
        delta: i64,
        adjust_no: OrderNo,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Adjusted>;

    async fn adjustment(&self, adjust_no: OrderNo) -> Result<Option<KnownAdjustment>>;

    /// What an order did to the stock: taken, and perhaps given back.
    async fn stock_log_of(&self, no: OrderNo) -> Result<Vec<StockLogRow>>;

    /// Oldest first, rows with an id above `after_id`.
    async fn stock_log(
        &self,
        item: ItemId,
        after_id: i64,
        limit: usize,
    ) -> Result<Vec<StockLogRow>>;
}

/// All that the gate must be loaded with but the marks.
#[derive(Clone, Debug)]
pub struct WarmBasis {
    pub activity: Activity,
    pub item: Item,
    /// Those of the asked claims that are orders or void already.
    pub settled: OrderNos,
    /// Claims waiting for a retry or dead: they hold units, though neither log nor orders show them.
    pub failed: Vec<Claim>,
    /// Every adjustment of this item that `item.stock` already contains, so that the gate does not
    /// apply it again when its outbox message arrives.
    pub adjusted: Vec<OrderNo>,
}

/// What the ledger has under the number of an adjustment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownAdjustment {
    pub item: ItemId,
    pub delta: i64,
}

impl From<StockLogRow> for KnownAdjustment {
    fn from(row: StockLogRow) -> Self {
        KnownAdjustment { item: row.item, delta: row.quantity }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adjusted {
    pub before: i64,
    pub after: i64,
    /// It had been done before, under the same number.
    pub repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StockLogType {
    Deduct,
    Return,
    Adjust,
}

impl StockLogType {
    pub fn code(self) -> i64 {
        match self {
            StockLogType::Deduct => 1,
            StockLogType::Return => 2,
            StockLogType::Adjust => 3,
        }
    }

    pub fn from_code(code: i64) -> Option<Self> {
        [StockLogType::Deduct, StockLogType::Return, StockLogType::Adjust]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StockLogRow {
    pub id: i64,
    pub order_no: OrderNo,
    pub item: ItemId,
    pub item_name: String,
    /// Units moved; always positive for deduct and return, signed for adjust.
    pub quantity: i64,
    pub before_stock: i64,
    pub after_stock: i64,
    #[serde(rename = "type")]
    pub kind: StockLogType,
    pub created_ms: Millis,
}

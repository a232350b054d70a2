//! The outbox: what committed transactions still owe to others.

use async_trait::async_trait;
use sale::{Claim, ItemId, Millis, Money, OrderNo, UserId};
use serde::{Deserialize, Serialize};

use crate::Result;

/// What the jobs that deliver need of the outbox.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// Due rows of a queue in the order they were written. No row waits longer than
    /// [`OUTBOX_PAUSE_MS_MAX`]: one that is to be tried later than that was written by a clock that has
    /// been set back since, and is due.
    async fn outbox_due(
        &self,
        queue: OutboxQueue,
        now_ms: Millis,
        limit: usize,
    ) -> Result<Vec<OutboxRow>>;
    async fn outbox_done(&self, ids: &[i64]) -> Result<()>;
    async fn outbox_later(&self, id: i64, next_try_ms: Millis, cause: &str) -> Result<()>;
    async fn outbox_depth(&self) -> Result<u64>;
}

/// Units to give back to the gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    pub item: ItemId,
    pub user: UserId,
    pub order_no: OrderNo,
    pub quantity: u32,
}

/// An effect outside the ledger that a committed transaction still owes. The tag carries a version:
/// yesterday's rows are read by today's binary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum OutboxMessage {
    /// Give these units back at the gate.
    #[serde(rename = "release.v1")]
    Release { releases: Vec<Release> },
    /// An operator changed the stock of an item.
    #[serde(rename = "adjust.v1")]
    Adjust { item: ItemId, adjust_no: OrderNo, delta: i64 },
    /// These orders changed: tell their buyers.
    #[serde(rename = "news.v1")]
    OrderEvents { orders: Vec<(OrderNo, UserId)> },
    /// Give money back.
    #[serde(rename = "refund.v1")]
    Refund { provider: String, provider_txn: String, order_no: OrderNo, amount: Money },
}

/// Who delivers a message. Two queues, so that a provider that takes its time over a refund holds up
/// no unit on its way back to the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboxQueue {
    /// Releases, adjustments and events of orders.
    GateAndBuyers,
    /// Refunds: to the payment providers.
    Refunds,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    pub id: i64,
    pub message: OutboxMessage,
    pub tries: u32,
    pub created_ms: Millis,
}

/// No row waits longer than this for its next try. When to try is kept as a time on the wall, so that
/// any process can take over, and a clock may be set back: a row that seems to wait longer is due.
pub const OUTBOX_PAUSE_MS_MAX: Millis = 60_000;

/// Long causes help nobody and a row should stay small.
const CAUSE_CHARS_MAX: usize = 1_000;

pub(crate) fn shortened(cause: &str) -> String {
    cause.chars().take(CAUSE_CHARS_MAX).collect()
}

/// What a row is about, in its own column so that some can be found without reading all.
pub(crate) const RELEASE: &str = "release";
pub(crate) const ADJUST: &str = "adjust";
const NEWS: &str = "news";
const REFUND: &str = "refund";

/// The kinds of rows that this binary writes.
pub const KINDS: [&str; 4] = [RELEASE, ADJUST, NEWS, REFUND];

pub(crate) fn kind_of(message: &OutboxMessage) -> &'static str {
    match message {
        OutboxMessage::Release { .. } => RELEASE,
        OutboxMessage::Adjust { .. } => ADJUST,
        OutboxMessage::OrderEvents { .. } => NEWS,
        OutboxMessage::Refund { .. } => REFUND,
    }
}

/// Which rows are of a queue, as a condition. A kind that this binary has never heard of is among those
/// for gate and buyers.
pub(crate) fn of_queue(queue: OutboxQueue) -> &'static str {
    match queue {
        OutboxQueue::GateAndBuyers => "kind <> 'refund'",
        OutboxQueue::Refunds => "kind = 'refund'",
    }
}

/// The payment a refund gives back: kept in columns of its own, so that it never waits twice.
pub(crate) fn payment_of(message: &OutboxMessage) -> (Option<&str>, Option<&str>) {
    match message {
        OutboxMessage::Refund { provider, provider_txn, .. } => {
            (Some(provider), Some(provider_txn))
        }
        _ => (None, None),
    }
}

pub(crate) fn release_of(claim: &Claim) -> Release {
    Release {
        item: claim.item,
        user: claim.user.clone(),
        order_no: claim.order_no,
        quantity: claim.quantity,
    }
}

/// The units of this item that waiting rows will still give back to the gate.
pub(crate) fn pending_releases(waiting: &[OutboxMessage], id: ItemId) -> Vec<Release> {
    let releases = waiting.iter().filter_map(|message| match message {
        OutboxMessage::Release { releases } => Some(releases),
        _ => None,
    });
    releases.flatten().filter(|release| release.item == id).cloned().collect()
}

/// The adjustments of this item that the gate has not been told of.
pub(crate) fn pending_adjusts(waiting: &[OutboxMessage], id: ItemId) -> Vec<(OrderNo, i64)> {
    let adjusts = waiting.iter().filter_map(|message| match message {
        OutboxMessage::Adjust { item, adjust_no, delta } if *item == id => {
            Some((*adjust_no, *delta))
        }
        _ => None,
    });
    adjusts.collect()
}

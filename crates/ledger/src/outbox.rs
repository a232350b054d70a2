//! The outbox: what committed transactions still owe to others.

use async_trait::async_trait;
use sale::{Claim, ItemId, Millis, Money, OrderNo, UserId};
use serde::{Deserialize, Serialize};

use crate::{Result, WebhookEvent};

/// What the jobs that deliver need of the outbox.
///
/// Each kind is a queue of its own, and within it each party that does not answer has a line of its own:
/// a row whose delivery needs that party waits there, and is not read again with those that need others.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// Due rows of a kind that wait for this party, or for [`OUTBOX_NOBODY`] in particular: first those
    /// that may be tried at once, in the order they were written, then the others by their time. No row
    /// waits longer than [`OUTBOX_PAUSE_MS_MAX`]: one that is to be tried later than that was written by
    /// a clock that has been set back since, and is due.
    async fn outbox_due(
        &self,
        kind: OutboxKind,
        waits_for: &str,
        now_ms: Millis,
        limit: usize,
    ) -> Result<Vec<OutboxRow>>;

    /// For whom rows of a kind wait, in the order of their names behind this one.
    async fn outbox_parties(
        &self,
        kind: OutboxKind,
        after: &str,
        limit: usize,
    ) -> Result<Vec<String>>;

    async fn outbox_done(&self, ids: &[i64]) -> Result<()>;

    /// A row failed for a reason of its own.
    async fn outbox_later(&self, id: i64, next_try_ms: Millis, cause: &str) -> Result<()>;

    /// These rows wait for somebody who does not answer, and are tried at `next_try_ms` at the earliest;
    /// zero is as soon as that one answers. Whether they count as `tried` is the caller's to know.
    async fn outbox_wait(&self, ids: &[i64], wait: &OutboxWait) -> Result<()>;

    /// Puts rows in the place of one that is for several parties. Nothing happens if it is gone.
    async fn outbox_split(&self, row: &OutboxRow, parts: &[OutboxMessage]) -> Result<()>;
}

/// Why and how rows wait for a party.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxWait {
    pub waits_for: String,
    pub next_try_ms: Millis,
    pub tried: bool,
    pub cause: String,
}

/// The party of rows in whose way nobody is known to be.
pub const OUTBOX_NOBODY: &str = "";

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
    /// Tell the shop's backend.
    #[serde(rename = "webhook.v1")]
    Webhook { events: Vec<WebhookEvent> },
}

/// What a row is about, in its own column: each kind is a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboxKind {
    /// Units go back to the gate.
    Release,
    /// The gate follows a changed stock.
    Adjust,
    /// Buyers hear of their orders.
    News,
    /// Providers give money back.
    Refund,
    /// The shop's backend hears of what happened.
    Webhook,
}

impl OutboxKind {
    /// The kinds that this binary writes. Rows of others are left to the newer one that wrote them.
    pub const ALL: [OutboxKind; 5] = [
        OutboxKind::Release,
        OutboxKind::Adjust,
        OutboxKind::News,
        OutboxKind::Refund,
        OutboxKind::Webhook,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            OutboxKind::Release => "release",
            OutboxKind::Adjust => "adjust",
            OutboxKind::News => "news",
            OutboxKind::Refund => "refund",
            OutboxKind::Webhook => "webhook",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    pub id: i64,
    /// Or why this binary cannot read it: a newer one wrote it, or somebody by hand.
    pub message: std::result::Result<OutboxMessage, String>,
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

impl OutboxMessage {
    pub fn kind(&self) -> OutboxKind {
        match self {
            OutboxMessage::Release { .. } => OutboxKind::Release,
            OutboxMessage::Adjust { .. } => OutboxKind::Adjust,
            OutboxMessage::OrderEvents { .. } => OutboxKind::News,
            OutboxMessage::Refund { .. } => OutboxKind::Refund,
            OutboxMessage::Webhook { .. } => OutboxKind::Webhook,
        }
    }
}

/// The item of rows that are about none, or about several.
pub(crate) const NO_ITEM: ItemId = ItemId(0);

/// The one item whose units a message is about.
pub(crate) fn item_of(message: &OutboxMessage) -> ItemId {
    match message {
        OutboxMessage::Release { releases } => {
            let first = releases.first().map_or(NO_ITEM, |release| release.item);
            if releases.iter().all(|release| release.item == first) { first } else { NO_ITEM }
        }
        OutboxMessage::Adjust { item, .. } => *item,
        OutboxMessage::OrderEvents { .. }
        | OutboxMessage::Refund { .. }
        | OutboxMessage::Webhook { .. } => NO_ITEM,
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

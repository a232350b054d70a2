//! What the outbox messages of either engine say of themselves.

use sale::{Claim, ItemId, Millis, OrderNo};

use crate::{OutboxMessage, OutboxQueue, Release};

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
        OutboxMessage::News { .. } => NEWS,
        OutboxMessage::Refund { .. } => REFUND,
    }
}

/// Which rows are of a queue, as a condition. A kind this binary has never heard of is in the house's.
pub(crate) fn of_queue(queue: OutboxQueue) -> &'static str {
    match queue {
        OutboxQueue::House => "kind <> 'refund'",
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

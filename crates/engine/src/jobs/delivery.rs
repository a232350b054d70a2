//! Delivering what waits in the outbox, row by row: at least once, and harmless where it arrives twice.
//!
//! A row that cannot be delivered is tried again after a pause that grows, for ever if need be; somebody
//! is woken for it.

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use ledger::{OUTBOX_PAUSE_MS_MAX, OutboxMessage, OutboxQueue, OutboxRow};
use orders::{Alert, AlertKind};
use sale::Millis;

use super::{JobResult, Progress};
use crate::shared::{AnyError, Shared};

/// The pauses between deliveries of an outbox row double from this to [`OUTBOX_PAUSE_MS_MAX`].
const OUTBOX_PAUSE_MS_MIN: Millis = 500;
/// A row that was not delivered so often, after about a minute, wakes somebody.
pub(super) const OUTBOX_TRIES_ALARMING: u32 = 8;

/// Where the rows of one queue go.
#[async_trait]
pub(super) trait Delivery: Sync {
    async fn deliver(&self, message: &OutboxMessage) -> Result<(), AnyError>;
}

/// Delivers what is due in a queue, so many rows at once.
pub(super) async fn deliver_due(
    shared: &Shared,
    queue: OutboxQueue,
    at_once: usize,
    delivery: &dyn Delivery,
) -> JobResult {
    let limit = shared.settings.jobs.outbox_batch_max;
    let rows = shared.ledger.outbox_due(queue, shared.now_ms(), limit).await?;
    assert!(rows.len() <= limit, "the ledger gave more outbox rows than asked for");
    let full = rows.len() == limit;
    let mut done = Vec::with_capacity(rows.len());
    let delivery = |row: OutboxRow| async move {
        let delivered = delivery.deliver(&row.message).await;
        (row, delivered)
    };
    let mut deliveries = stream::iter(rows).map(delivery).buffer_unordered(at_once);
    while let Some((row, delivered)) = deliveries.next().await {
        match delivered {
            Ok(()) => done.push(row.id),
            Err(error) => {
                tracing::warn!(outbox = row.id, tries = row.tries, %error,
                    "an outbox row could not be delivered and is tried again after a pause");
                if row.tries + 1 >= OUTBOX_TRIES_ALARMING {
                    alert_about_row(shared, &row, &error);
                }
                let pause = OUTBOX_PAUSE_MS_MIN << row.tries.min(16);
                let next = shared.now_ms() + pause.min(OUTBOX_PAUSE_MS_MAX);
                shared.ledger.outbox_later(row.id, next, &error.to_string()).await?;
            }
        }
    }
    if !done.is_empty() {
        shared.ledger.outbox_done(&done).await?;
    }
    Ok(Progress::after(full))
}

/// Units and money on their way wait for ever if need be, but not without a word.
fn alert_about_row(shared: &Shared, row: &OutboxRow, error: &AnyError) {
    let order_no = match &row.message {
        OutboxMessage::Refund { order_no, .. } => Some(*order_no),
        _ => None,
    };
    let message =
        format!("outbox row {} is still not delivered; it is tried again and again", row.id);
    let alert = Alert::new(AlertKind::Undelivered, message, shared.now_ms());
    shared.alerts.raise_once(row.id as u64, Alert { order_no, ..alert.because(error) });
}

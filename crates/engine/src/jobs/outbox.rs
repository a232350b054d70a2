//! Delivers what committed transactions still owe to the gate and to buyers: at least once, and harmless
//! where it arrives twice.

use futures_util::{StreamExt, stream};
use gate::{AdjustOutcome, GiveBack};
use ledger::{OUTBOX_PAUSE_MS_MAX, OutboxMessage, OutboxQueue, OutboxRow, RefundDone, Release};
use orders::{Alert, AlertKind};
use sale::{Millis, OrderNo, UserId};

use super::{JobError, JobResult, Progress};
use crate::{Engine, coordination::Hint, settings::Profile};

/// The pauses between deliveries of an outbox row double from this to [`OUTBOX_PAUSE_MS_MAX`].
const OUTBOX_PAUSE_MS_MIN: Millis = 500;
/// A row that was not delivered so often, after about a minute, wakes somebody.
pub(super) const OUTBOX_TRIES_ALARMING: u32 = 8;

impl Engine {
    /// Deliver what committed transactions still owe to gate and buyers, in their order.
    pub(crate) async fn deliver_outbox(&self) -> JobResult {
        self.deliver_queue(OutboxQueue::House, 1).await
    }

    pub(crate) async fn deliver_queue(&self, queue: OutboxQueue, at_once: usize) -> JobResult {
        let limit = self.settings.jobs.outbox_batch_max;
        let rows = self.ledger.outbox_due(queue, self.clock.now_ms(), limit).await?;
        let full = rows.len() == limit;
        let mut done = Vec::with_capacity(rows.len());
        let delivery = |row: OutboxRow| async move {
            let delivered = self.deliver(&row).await;
            (row, delivered)
        };
        let mut deliveries = stream::iter(rows).map(delivery).buffer_unordered(at_once);
        while let Some((row, delivered)) = deliveries.next().await {
            match delivered {
                Ok(()) => done.push(row.id),
                Err(error) => {
                    tracing::warn!(outbox = row.id, tries = row.tries, %error, "not delivered yet");
                    if row.tries + 1 >= OUTBOX_TRIES_ALARMING {
                        self.alert_about_row(&row, &error);
                    }
                    let pause = OUTBOX_PAUSE_MS_MIN << row.tries.min(16);
                    let next = self.clock.now_ms() + pause.min(OUTBOX_PAUSE_MS_MAX);
                    self.ledger.outbox_later(row.id, next, &error.to_string()).await?;
                }
            }
        }
        if !done.is_empty() {
            self.ledger.outbox_done(&done).await?;
        }
        Ok(if full { Progress::MoreToDo } else { Progress::CaughtUp })
    }

    /// Units and money on their way wait for ever if need be, but not without a word.
    fn alert_about_row(&self, row: &OutboxRow, error: &JobError) {
        let order_no = match &row.message {
            OutboxMessage::Refund { order_no, .. } => Some(*order_no),
            _ => None,
        };
        let message = format!("outbox row {} is still not delivered and is tried on", row.id);
        let alert = Alert::new(AlertKind::Undelivered, message, self.clock.now_ms());
        self.alert_once(row.id as u64, Alert { order_no, ..alert.because(error) });
    }

    /// Let buyers know, here and at the other instances, and renew the copies they look at.
    async fn spread(&self, orders: &[(OrderNo, UserId)]) -> Result<(), JobError> {
        if self.settings.profile == Profile::Cluster {
            let numbers: Vec<OrderNo> = orders.iter().map(|(no, _)| *no).collect();
            self.renew_copies(&numbers).await?;
            self.coordination.tell(&Hint::Orders { orders: orders.to_vec() }).await;
        }
        self.news.tell(orders);
        Ok(())
    }

    async fn renew_copies(&self, numbers: &[OrderNo]) -> Result<(), JobError> {
        // The time first: a copy must not pass for younger than it is.
        let read_ms = self.coordination.now_ms().await?;
        let current = self.ledger.orders_by_no(numbers).await?;
        Ok(self.coordination.keep_orders(&current, read_ms).await?)
    }

    /// Whoever has just changed an order should see it changed. The outbox does the same a moment
    /// later, so this may fail.
    pub(crate) async fn renew_copy(&self, no: OrderNo) {
        if self.settings.profile == Profile::Cluster
            && let Err(error) = self.renew_copies(&[no]).await
        {
            tracing::debug!(%error, "the copy of an order could not be renewed yet");
        }
    }

    async fn deliver(&self, row: &OutboxRow) -> Result<(), JobError> {
        match &row.message {
            OutboxMessage::Release { releases } => {
                let _turn = self.gate_turn.lock().await;
                let units: Vec<GiveBack> = releases.iter().map(give_back).collect();
                for change in self.lanes.release(&units).await? {
                    self.coordination.tell(&Hint::Units { item: change.item }).await;
                }
            }
            OutboxMessage::Adjust { item, adjust_no, delta } => {
                let _turn = self.gate_turn.lock().await;
                if let AdjustOutcome::Done(change) =
                    self.gate.adjust(*item, *adjust_no, *delta, true).await?
                {
                    self.lanes.news(change);
                    self.coordination.tell(&Hint::Units { item: *item }).await;
                }
            }
            OutboxMessage::News { orders } => self.spread(orders).await?,
            OutboxMessage::Refund { provider, provider_txn, order_no, amount } => {
                let refund = RefundDone {
                    provider: provider.clone(),
                    provider_txn: provider_txn.clone(),
                    order_no: *order_no,
                    amount: *amount,
                };
                self.refund_at_provider(&refund).await?;
            }
        }
        Ok(())
    }
}

fn give_back(release: &Release) -> GiveBack {
    GiveBack {
        item: release.item,
        user: release.user.clone(),
        order_no: release.order_no,
        quantity: release.quantity,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sale::CloseReason;

    use crate::test_engine::{NOW_MS, TestEngine};

    #[tokio::test]
    async fn nothing_reaches_the_gate_in_the_middle_of_a_load() {
        let (night, activity) = TestEngine::fall(|_| {}).await;
        let (engine, item) = (night.engine.clone(), activity.items[0].id);
        let no = night.buy(item, "ann").await;
        // What a load read of the ledger is a moment old; the order is closed in that moment.
        let load = engine.gate_turn.lock().await;
        let closed =
            engine.ledger.close(&[no.into()], CloseReason::Cancelled, NOW_MS).await.unwrap();
        assert_eq!(closed, [no]);
        let delivery = tokio::spawn({
            let engine = engine.clone();
            async move { engine.deliver_outbox().await.is_ok() }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(engine.gate.left(item), Some(9), "the release waits for the load");
        drop(load);
        assert!(delivery.await.unwrap());
        assert_eq!(engine.gate.left(item), Some(10));
    }
}

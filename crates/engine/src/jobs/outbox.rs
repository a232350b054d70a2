//! Delivers what committed transactions still owe to the gate and to buyers, in their order.

use std::sync::Arc;

use async_trait::async_trait;
use gate::{AdjustOutcome, GiveBack};
use ledger::{OutboxMessage, OutboxQueue, Release};

use super::{
    Job, JobResult,
    delivery::{Delivery, deliver_due},
};
use crate::{
    Push,
    coordination::Hint,
    shared::{AnyError, Shared},
};

pub(crate) struct Outbox {
    pub(super) shared: Arc<Shared>,
    pub(super) push: Arc<Push>,
}

#[async_trait]
impl Job for Outbox {
    async fn run(&self) -> JobResult {
        deliver_due(&self.shared, OutboxQueue::GateAndBuyers, 1, self).await
    }
}

#[async_trait]
impl Delivery for Outbox {
    async fn deliver(&self, message: &OutboxMessage) -> Result<(), AnyError> {
        match message {
            OutboxMessage::Release { releases } => {
                let _turn = self.shared.gate_turn.lock().await;
                let units: Vec<GiveBack> = releases.iter().map(give_back).collect();
                let changed = self.shared.gate.release(&units).await?;
                changed.iter().for_each(|change| self.shared.lanes.stock_changed(*change));
                for change in changed {
                    self.shared.coordination.tell(&Hint::Units { item: change.item }).await;
                }
            }
            OutboxMessage::Adjust { item, adjust_no, delta } => {
                let _turn = self.shared.gate_turn.lock().await;
                if let AdjustOutcome::Done(change) =
                    self.shared.gate.adjust(*item, *adjust_no, *delta, true).await?
                {
                    self.shared.lanes.stock_changed(change);
                    self.shared.coordination.tell(&Hint::Units { item: *item }).await;
                }
            }
            OutboxMessage::OrderEvents { orders } => self.push.tell_all(orders).await,
            OutboxMessage::Refund { .. } => return Err("a refund waits in another queue".into()),
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

    use super::*;
    use crate::test_engine::{NOW_MS, TestEngine};

    #[tokio::test]
    async fn nothing_reaches_the_gate_in_the_middle_of_a_load() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (shop.engine.clone(), activity.items[0].id);
        let no = shop.buy(item, "ann").await;
        // What a load read of the ledger is a moment old; the order is closed in that moment.
        let load = engine.shared.gate_turn.lock().await;
        let closed =
            engine.shared.ledger.close(&[no.into()], CloseReason::Cancelled, NOW_MS).await.unwrap();
        assert_eq!(closed, [no]);
        let delivery = tokio::spawn({
            let engine = engine.clone();
            async move { engine.jobs.outbox.run().await.is_ok() }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(engine.shared.gate.left(item), Some(9), "the release waits for the load");
        drop(load);
        assert!(delivery.await.unwrap());
        assert_eq!(engine.shared.gate.left(item), Some(10));
    }
}

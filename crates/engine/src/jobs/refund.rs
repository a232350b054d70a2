//! Gives money back that is owed. A provider may take its time over it, and nobody else waits for that.

use ledger::{OutboxQueue, RefundDone};
use orders::AlertKind;
use payment::{ProviderError, RefundOutcome, RefundRequest};

use super::{JobError, JobResult, PROVIDER_CALLS_MAX};
use crate::Engine;

impl Engine {
    /// Give money back. A provider may take its time over it, and nobody else waits for that.
    pub(crate) async fn deliver_refunds(&self) -> JobResult {
        self.deliver_queue(OutboxQueue::Refunds, PROVIDER_CALLS_MAX).await
    }

    pub(crate) async fn refund_at_provider(&self, refund: &RefundDone) -> Result<(), JobError> {
        let RefundDone { provider, provider_txn, order_no, amount } = refund;
        let bank = self.providers.get(provider).ok_or("no such provider")?;
        let request = RefundRequest {
            order_no: *order_no,
            provider_txn: provider_txn.clone(),
            amount: *amount,
        };
        match bank.refund(&request).await {
            Ok(RefundOutcome::Done) => {}
            Ok(RefundOutcome::Pending) => return Err("the provider is working on it".into()),
            Err(error @ ProviderError::Unavailable(_)) => return Err(error.into()),
            Err(error @ ProviderError::Refused(_)) => {
                let message = "a provider refuses to give money back that is owed";
                self.alert_about_order(AlertKind::RefundRefused, *order_no, message, &error);
                return Err(error.into());
            }
        }
        self.ledger.refunded(refund, self.clock.now_ms()).await?;
        // The buyer hears of it through the other queue.
        self.outbox_wake.notify_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ledger::Credit;
    use sale::{CloseReason, Millis, OrderStatus};

    use super::*;
    use crate::{
        jobs::outbox::OUTBOX_TRIES_ALARMING,
        test_engine::{Bank, NOW_MS, TestEngine, Webhook},
    };

    #[tokio::test]
    async fn a_slow_refund_holds_up_no_unit_on_its_way_back() {
        let (mut night, activity) = TestEngine::fall(|_| {}).await;
        let bank = night.bank(Bank::default());
        let item = activity.items[0].id;
        let (paid, free) = (night.buy(item, "ann").await, night.buy(item, "bob").await);
        let engine = night.engine.clone();
        assert_eq!(engine.credit(&bank.money(paid)).await.unwrap(), Credit::Paid);
        engine.refund("ann", paid).await.unwrap();
        engine.ledger.close(&[free.into()], CloseReason::Cancelled, NOW_MS).await.unwrap();
        bank.hang(true);
        let refunds = tokio::spawn({
            let engine = engine.clone();
            async move { engine.deliver_refunds().await.is_ok() }
        });
        bank.called().await;
        let releases = tokio::time::timeout(Duration::from_secs(5), engine.deliver_outbox()).await;
        releases.expect("the bank is not waited for").unwrap();
        assert_eq!(engine.gate.left(item), Some(10), "both units are back");
        let status = async |no| engine.ledger.order(no).await.unwrap().unwrap().status;
        assert_eq!(status(paid).await, OrderStatus::Refunding);
        bank.hang(false);
        assert!(refunds.await.unwrap());
        assert_eq!(status(paid).await, OrderStatus::Refunded);
    }

    #[tokio::test]
    async fn money_and_units_that_wait_for_ever_wake_somebody_once() {
        let webhook = Webhook::open().await;
        let url = webhook.url();
        let (mut night, activity) =
            TestEngine::fall(|settings| settings.alerts.webhook_url = url).await;
        let bank = night.bank(Bank::default());
        let (engine, item) = (night.engine.clone(), activity.items[0].id);
        let gone = night.buy(item, "ann").await;
        engine.ledger.open_payment(gone, "a provider that is gone", NOW_MS).await.unwrap();
        let (refused, slow) = (night.buy(item, "bob").await, night.buy(item, "cat").await);
        for no in [refused, slow] {
            engine.credit(&bank.money(no)).await.unwrap();
        }
        bank.refuse(true);
        engine.refund("root", refused).await.unwrap();
        engine.deliver_refunds().await.unwrap();
        engine.deliver_refunds().await.unwrap();
        let row = &engine.ledger.outbox_due(OutboxQueue::Refunds, Millis::MAX, 9).await.unwrap()[0];
        for _ in 0..OUTBOX_TRIES_ALARMING {
            engine.ledger.outbox_later(row.id, NOW_MS, "later").await.unwrap();
        }
        night.clock.advance(60_000);
        for _ in 0..3 {
            engine.time_out().await.unwrap();
            engine.deliver_refunds().await.unwrap();
            night.clock.advance(60_000);
            night.pauses_end();
        }
        engine.alerts.stop().await;
        let heard = webhook.heard();
        let of = |kind: &str| heard.iter().filter(|alert| alert.contains(kind)).count();
        assert_eq!((of("unclosable"), of("refund_refused"), of("undelivered")), (1, 1, 1));
        assert_eq!(heard.len(), 3, "{heard:?}");
    }
}

//! Gives money back that is owed. A provider may take its time over it, and nobody else waits for that.

use std::sync::Arc;

use async_trait::async_trait;
use ledger::{OutboxMessage, OutboxQueue, RefundDone};
use orders::AlertKind;
use payment::{ProviderError, RefundOutcome, RefundRequest};

use super::{
    Job, JobResult,
    delivery::{Delivery, deliver_due},
};
use crate::{
    Payments,
    payments::PROVIDER_CALLS_MAX,
    shared::{AnyError, Shared},
};

pub(crate) struct Refund {
    pub(super) shared: Arc<Shared>,
    pub(super) payments: Arc<Payments>,
}

impl Refund {
    async fn give_back(&self, refund: &RefundDone) -> Result<(), AnyError> {
        let RefundDone { provider, provider_txn, order_no, amount } = refund;
        let bank = self.payments.provider(provider).ok_or("no such provider")?;
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
                self.shared.alerts.about_order(
                    AlertKind::RefundRefused,
                    *order_no,
                    message,
                    &error,
                );
                return Err(error.into());
            }
        }
        self.shared.ledger.refunded(refund, self.shared.now_ms()).await?;
        // The buyer hears of it through the other queue.
        self.shared.wake.outbox.notify_one();
        Ok(())
    }
}

#[async_trait]
impl Job for Refund {
    async fn run(&self) -> JobResult {
        deliver_due(&self.shared, OutboxQueue::Refunds, PROVIDER_CALLS_MAX, self).await
    }
}

#[async_trait]
impl Delivery for Refund {
    async fn deliver(&self, message: &OutboxMessage) -> Result<(), AnyError> {
        let OutboxMessage::Refund { provider, provider_txn, order_no, amount } = message else {
            return Err("what is no refund waits in another queue".into());
        };
        let (provider, provider_txn) = (provider.clone(), provider_txn.clone());
        let owed = RefundDone { provider, provider_txn, order_no: *order_no, amount: *amount };
        self.give_back(&owed).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ledger::Credit;
    use sale::{CloseReason, Millis, OrderStatus};

    use super::*;
    use crate::{
        jobs::delivery::OUTBOX_TRIES_ALARMING,
        test_engine::{NOW_MS, TestEngine, Webhook},
    };

    #[tokio::test]
    async fn a_slow_refund_holds_up_no_unit_on_its_way_back() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let bank = shop.bank.clone();
        let item = activity.items[0].id;
        let (paid, free) = (shop.buy(item, "ann").await, shop.buy(item, "bob").await);
        let engine = shop.engine.clone();
        assert_eq!(engine.payments.credit(&bank.money(paid)).await.unwrap(), Credit::Paid);
        engine.operations.refund("ann", paid).await.unwrap();
        engine.shared.ledger.close(&[free.into()], CloseReason::Cancelled, NOW_MS).await.unwrap();
        bank.hang(true);
        let refunds = tokio::spawn({
            let engine = engine.clone();
            async move { engine.jobs.refund.run().await.is_ok() }
        });
        bank.called().await;
        let releases = tokio::time::timeout(Duration::from_secs(5), engine.jobs.outbox.run()).await;
        releases.expect("the bank is not waited for").unwrap();
        assert_eq!(engine.shared.gate.left(item), Some(10), "both units are back");
        let status = async |no| engine.shared.ledger.order(no).await.unwrap().unwrap().status;
        assert_eq!(status(paid).await, OrderStatus::Refunding);
        bank.hang(false);
        assert!(refunds.await.unwrap());
        assert_eq!(status(paid).await, OrderStatus::Refunded);
    }

    #[tokio::test]
    async fn money_and_units_that_wait_for_ever_wake_somebody_once() {
        let webhook = Webhook::open().await;
        let url = webhook.url();
        let (shop, activity) =
            TestEngine::with_a_sale(|settings| settings.alerts.webhook_url = url).await;
        let bank = shop.bank.clone();
        let (engine, item) = (shop.engine.clone(), activity.items[0].id);
        let gone = shop.buy(item, "ann").await;
        engine.shared.ledger.open_payment(gone, "a provider that is gone", NOW_MS).await.unwrap();
        let (refused, slow) = (shop.buy(item, "bob").await, shop.buy(item, "cat").await);
        for no in [refused, slow] {
            engine.payments.credit(&bank.money(no)).await.unwrap();
        }
        bank.refuse(true);
        engine.operations.refund("root", refused).await.unwrap();
        engine.jobs.refund.run().await.unwrap();
        engine.jobs.refund.run().await.unwrap();
        let row =
            &engine.shared.ledger.outbox_due(OutboxQueue::Refunds, Millis::MAX, 9).await.unwrap()
                [0];
        for _ in 0..OUTBOX_TRIES_ALARMING {
            engine.shared.ledger.outbox_later(row.id, NOW_MS, "later").await.unwrap();
        }
        shop.clock.advance(60_000);
        for _ in 0..3 {
            engine.jobs.timeout.run().await.unwrap();
            engine.jobs.refund.run().await.unwrap();
            shop.clock.advance(60_000);
            shop.pauses_end();
        }
        engine.shared.alerts.stop().await;
        let heard = webhook.heard();
        let of = |kind: &str| heard.iter().filter(|alert| alert.contains(kind)).count();
        assert_eq!((of("unclosable"), of("refund_refused"), of("undelivered")), (1, 1, 1));
        assert_eq!(heard.len(), 3, "{heard:?}");
    }
}

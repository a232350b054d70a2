//! Gives money back that is owed. A provider may take its time over it, and nobody else waits for that.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use ledger::{OutboxKind, OutboxMessage, PaymentRow, RefundDone, RefundReason};
use orders::AlertKind;
use payment::{ProviderError, RefundOutcome, RefundRequest};

use super::{
    Job, JobResult,
    delivery::{Courier, Delivery, Undelivered},
};
use crate::{MANUAL, Payments, payments::PROVIDER_CALLS_MAX, shared::Shared};

pub(crate) struct Refund(Courier<Refunds>);

impl Refund {
    pub(super) fn new(shared: &Arc<Shared>, payments: Arc<Payments>) -> Refund {
        let (refunds, wake) =
            (Refunds { shared: shared.clone(), payments }, shared.wake.refund.clone());
        Refund(Courier::new(shared.clone(), OutboxKind::Refund, refunds, wake))
    }

    pub(super) async fn stop(&self) {
        self.0.stop().await;
    }
}

#[async_trait]
impl Job for Refund {
    async fn run(&self) -> JobResult {
        self.0.run().await
    }
}

/// Each provider is a party of its own.
struct Refunds {
    shared: Arc<Shared>,
    payments: Arc<Payments>,
}

impl Refunds {
    async fn give_back(&self, refund: RefundDone) -> Result<(), Undelivered> {
        let RefundDone { provider, provider_txn, order_no, amount } = &refund;
        let refused = |why: &str| Undelivered::Refused(why.into());
        if provider == MANUAL {
            let message = "money that was marked as paid by hand has to be given back by hand";
            let todo = "give it back, then mark it refunded (seckill order mark-refunded)";
            self.shared.alerts.about_order(AlertKind::RefundRefused, *order_no, message, &todo);
            return Err(Undelivered::UnderWay("an operator gives it back and marks it refunded"));
        }
        let bank = self.payments.provider(provider).ok_or_else(|| refused("no such provider"))?;
        let request = RefundRequest {
            order_no: *order_no,
            provider_txn: provider_txn.clone(),
            amount: *amount,
            reason: self.reason(&refund).await?,
        };
        match bank.refund(&request).await {
            Ok(RefundOutcome::Done) => {}
            Ok(RefundOutcome::Pending) => {
                return Err(Undelivered::UnderWay("the provider is working on it"));
            }
            Err(error @ ProviderError::Unavailable(_)) => {
                let (party, cause) = (provider.clone(), error.to_string());
                return Err(Undelivered::Silent { party, cause });
            }
            Err(error @ ProviderError::Refused(_)) => {
                let message = "a provider refuses to give money back that is owed";
                self.shared.alerts.about_order(
                    AlertKind::RefundRefused,
                    *order_no,
                    message,
                    &error,
                );
                return Err(Undelivered::Refused(error.into()));
            }
        }
        let noted = self.shared.ledger.refunded(&refund, self.shared.now_ms()).await;
        noted.map_err(|error| Undelivered::Refused(error.into()))?;
        // The buyer hears of it.
        self.shared.wake.news.notify_one();
        Ok(())
    }

    /// What buyers read beside the money that came back: the operator's words, or what happened. It is the
    /// same each time it is asked for, because providers take another reason for another refund.
    async fn reason(&self, refund: &RefundDone) -> Result<String, Undelivered> {
        let payments = self.shared.ledger.payments(refund.order_no).await;
        let payments = payments.map_err(|error| Undelivered::Refused(error.into()))?;
        let is_this = |row: &&PaymentRow| {
            row.provider == refund.provider && row.provider_txn == refund.provider_txn
        };
        let asked = payments.iter().filter(is_this).find_map(|row| row.refund.clone());
        Ok(asked.map_or_else(
            || in_words(RefundReason::Operator).into(),
            |asked| asked.note.unwrap_or_else(|| in_words(asked.reason).into()),
        ))
    }
}

/// In the language of the apps that show it, WeChat and Alipay.
fn in_words(reason: RefundReason) -> &'static str {
    match reason {
        RefundReason::Late => "订单已关闭，付款原路退回",
        RefundReason::Double => "重复支付，多付款项原路退回",
        RefundReason::Void => "订单未成立，付款原路退回",
        RefundReason::Operator | RefundReason::Provider => "商家退款",
    }
}

#[async_trait]
impl Delivery for Refunds {
    fn party(&self, message: &OutboxMessage) -> String {
        match message {
            OutboxMessage::Refund { provider, .. } => provider.clone(),
            _ => String::new(),
        }
    }

    async fn deliver(&self, messages: &[OutboxMessage]) -> Vec<Result<(), Undelivered>> {
        let refund = |message: &OutboxMessage| {
            let owed = match message.clone() {
                OutboxMessage::Refund { provider, provider_txn, order_no, amount } => {
                    Ok(RefundDone { provider, provider_txn, order_no, amount })
                }
                _ => Err(Undelivered::Refused("it is no refund".into())),
            };
            async { self.give_back(owed?).await }
        };
        stream::iter(messages).map(refund).buffered(PROVIDER_CALLS_MAX).collect().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ledger::{Credit, OUTBOX_NOBODY};
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
        engine.operations.refund("ann", paid, None).await.unwrap();
        engine.shared.ledger.close(&[free.into()], CloseReason::Cancelled, NOW_MS).await.unwrap();
        bank.hang(true);
        engine.jobs.refund.run().await.unwrap();
        bank.called().await;
        let releases =
            tokio::time::timeout(Duration::from_secs(5), engine.jobs.release.run()).await;
        releases.expect("the bank is not waited for").unwrap();
        assert_eq!(engine.shared.gate.left(item), Some(10), "both units are back");
        let status = async |no| engine.shared.ledger.order(no).await.unwrap().unwrap().status;
        assert_eq!(status(paid).await, OrderStatus::Refunding);
        bank.hang(false);
        shop.rounds_until(&*engine.jobs.refund, async || {
            status(paid).await == OrderStatus::Refunded
        })
        .await;
    }

    #[tokio::test]
    async fn a_provider_hears_why_the_money_goes_back() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (bank, engine) = (shop.bank.clone(), shop.engine.clone());
        let item = activity.items[0].id;
        let (kept, late) = (shop.buy(item, "ann").await, shop.buy(item, "bob").await);
        engine.payments.credit(&bank.money(kept)).await.unwrap();
        engine.operations.refund("root", kept, Some("wrong colour")).await.unwrap();
        engine.shared.ledger.close(&[late.into()], CloseReason::Cancelled, NOW_MS).await.unwrap();
        engine.payments.credit(&bank.money(late)).await.unwrap();
        let status = async |no| engine.shared.ledger.order(no).await.unwrap().unwrap().status;
        shop.rounds_until(&*engine.jobs.refund, async || {
            let states = (status(kept).await, status(late).await);
            states == (OrderStatus::Refunded, OrderStatus::Refunded)
        })
        .await;
        let mut reasons = bank.reasons();
        reasons.sort();
        assert_eq!(reasons, ["wrong colour", in_words(RefundReason::Late)]);
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
        engine
            .shared
            .ledger
            .open_payment(gone, "a provider that is gone", None, NOW_MS)
            .await
            .unwrap();
        let (refused, slow) = (shop.buy(item, "bob").await, shop.buy(item, "cat").await);
        for no in [refused, slow] {
            engine.payments.credit(&bank.money(no)).await.unwrap();
        }
        bank.refuse(true);
        engine.operations.refund("root", refused, None).await.unwrap();
        engine.jobs.refund.run().await.unwrap();
        engine.jobs.refund.run().await.unwrap();
        let row = &engine
            .shared
            .ledger
            .outbox_due(OutboxKind::Refund, OUTBOX_NOBODY, Millis::MAX, 9)
            .await
            .unwrap()[0];
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

//! Closes orders that were not paid in time, and so gives their units back.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{StreamExt, stream};
use ledger::{Closing, LedgerError, Overdue, PaymentNotice};
use orders::AlertKind;
use payment::CloseOutcome;
use sale::{CloseReason, ItemId, Millis, OrderNo};
use tokio::time::Instant;

use super::{JobResult, PROVIDER_CALLS_MAX, Progress};
use crate::{Engine, NoticeFailure};

/// How long the time-out job looks past an order that its provider does not let go of. Longer if
/// they are many, so that asking for all of them again leaves time for the others.
const UNCLOSABLE_PAUSE_MIN: Duration = Duration::from_secs(1);
const UNCLOSABLE_PAUSE_MAX: Duration = Duration::from_secs(60);
const UNCLOSABLE_MAX: usize = 100_000;
/// Items whose orders could not be closed before the time-out job takes it for a fault of the ledger.
const CLOSE_FAILURES_MAX: usize = 3;

impl Engine {
    /// Close what was not paid in time.
    pub(crate) async fn time_out(&self) -> JobResult {
        let limit = self.settings.jobs.timeout_batch_max;
        // Due is what is due by the ledger's clock and by ours: a host whose clock is ahead must not
        // close orders early.
        let (our_ms, ledgers_ms) = (self.clock.now_ms(), self.ledger.now_ms().await?);
        let now_ms = our_ms.min(ledgers_ms);
        let (overdue, full) = self.overdue(now_ms, limit).await?;
        // Those without a payment do not wait for those whose provider has to be asked.
        let (asked, free): (Vec<_>, Vec<_>) =
            overdue.into_iter().partition(|overdue| !overdue.providers.is_empty());
        let (mut closed, failed) = self.close_by_item(free, now_ms, limit).await;
        let asked = stream::iter(asked).map(|overdue| async move {
            let closable = self.may_close(&overdue).await;
            (overdue, closable)
        });
        let asked: Vec<(Overdue, bool)> =
            asked.buffer_unordered(PROVIDER_CALLS_MAX).collect().await;
        let (closable, kept): (Vec<_>, Vec<_>) = asked.into_iter().partition(|(_, may)| *may);
        self.look_past(kept.into_iter().map(|(overdue, _)| overdue.order.order_no), limit);
        let closable = closable.into_iter().map(|(overdue, _)| overdue).collect();
        let (closed_late, failed_late) = self.close_by_item(closable, now_ms, limit).await;
        if let Some(error) = failed.or(failed_late) {
            return Err(error.into());
        }
        closed += closed_late;
        // A full batch of which nothing could be closed would come again at once: wait instead.
        Ok(if full && closed > 0 { Progress::MoreToDo } else { Progress::CaughtUp })
    }

    /// One transaction per item: an item that somebody else holds in the ledger must not keep the
    /// units of the others. Answers how many orders were closed, and the first error there was.
    async fn close_by_item(
        &self,
        orders: Vec<Overdue>,
        now_ms: Millis,
        limit: usize,
    ) -> (usize, Option<LedgerError>) {
        let mut by_item: BTreeMap<ItemId, Vec<Closing>> = BTreeMap::new();
        for overdue in orders {
            by_item.entry(overdue.order.item).or_default().push(overdue.into());
        }
        let (mut closed, mut failures, mut first) = (0, 0, None);
        for orders in by_item.into_values() {
            match self.ledger.close(&orders, CloseReason::Timeout, now_ms).await {
                Ok(now) => closed += now.len(),
                Err(error) => {
                    self.look_past(orders.into_iter().map(|order| order.order_no), limit);
                    first.get_or_insert(error);
                    failures += 1;
                }
            }
            // By then it is not the items but the ledger.
            if failures >= CLOSE_FAILURES_MAX {
                break;
            }
        }
        if closed > 0 {
            metrics::counter!("seckill_orders_timed_out_total").increment(closed as u64);
            tracing::info!(orders = closed, "unpaid orders closed, units returned");
            self.wake_outbox();
        }
        (closed, first)
    }

    /// The orders to close now, and whether there may be more. Those whose provider did not let go
    /// of them lately are looked past: they must not hold up the others.
    pub(crate) async fn overdue(
        &self,
        now_ms: Millis,
        limit: usize,
    ) -> Result<(Vec<Overdue>, bool), LedgerError> {
        let unclosable = {
            let now = Instant::now();
            let mut unclosable = self.unclosable.lock();
            unclosable.retain(|_, until| now < *until);
            unclosable.clone()
        };
        let asked = limit + unclosable.len();
        let mut overdue = self.ledger.overdue(now_ms, asked).await?;
        let full = overdue.len() == asked;
        overdue.retain(|overdue| !unclosable.contains_key(&overdue.order.order_no));
        overdue.truncate(limit);
        Ok((overdue, full))
    }

    fn look_past(&self, orders: impl Iterator<Item = OrderNo>, limit: usize) {
        let mut unclosable = self.unclosable.lock();
        let few = unclosable.len() < limit;
        // Not by the clock on the wall, which may be set back before the pause is over.
        let until = Instant::now() + if few { UNCLOSABLE_PAUSE_MIN } else { UNCLOSABLE_PAUSE_MAX };
        let room = UNCLOSABLE_MAX.saturating_sub(unclosable.len());
        unclosable.extend(orders.take(room).map(|order_no| (order_no, until)));
    }

    /// An order with an open payment is closed at the provider first. If the provider has the
    /// money, the order is paid; if it does not answer, the order stays open until it does.
    pub(crate) async fn may_close(&self, overdue: &Overdue) -> bool {
        for name in &overdue.providers {
            let Some(provider) = self.providers.get(name) else {
                let message = "an order whose time is over keeps its units: its payment is at a \
                     provider that is not configured";
                let order_no = overdue.order.order_no;
                self.alert_about_order(AlertKind::Unclosable, order_no, message, name);
                return false;
            };
            match provider.close(overdue.order.order_no).await {
                Ok(CloseOutcome::Closed | CloseOutcome::NeverOpened) => {}
                Ok(CloseOutcome::AlreadyPaid(paid)) => {
                    let notice = PaymentNotice {
                        provider: name.clone(),
                        provider_txn: paid.provider_txn,
                        order_no: overdue.order.order_no,
                        amount: paid.amount,
                        paid_ms: paid.paid_ms,
                    };
                    if let Err(NoticeFailure::Ledger(error)) = self.credit(&notice).await {
                        tracing::warn!(%error, "a payment could not be credited, will try again");
                    }
                    return false;
                }
                Err(error) => {
                    tracing::warn!(provider = name, %error, "a payment could not be closed");
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use sale::OrderStatus;

    use super::*;
    use crate::test_engine::{Bank, NOW_MS, TestEngine, Webhook};

    #[tokio::test]
    async fn orders_that_a_provider_does_not_let_go_of_hold_up_no_others() {
        let (night, activity) =
            TestEngine::fall(|settings| settings.jobs.timeout_batch_max = 1).await;
        let (engine, item) = (&night.engine, activity.items[0].id);
        let stuck = night.buy(item, "ann").await;
        engine.ledger.open_payment(stuck, "a provider that is gone", NOW_MS).await.unwrap();
        night.clock.advance(1);
        let free = night.buy(item, "bob").await;
        night.clock.advance(60_000);
        for _ in 0..2 {
            engine.time_out().await.unwrap();
        }
        let status = async |no| engine.ledger.order(no).await.unwrap().unwrap().status;
        assert_eq!(status(free).await, OrderStatus::Closed);
        assert_eq!(status(stuck).await, OrderStatus::Unpaid, "it stays until asked");
    }

    #[tokio::test]
    async fn a_clock_that_was_ahead_for_a_moment_does_not_stretch_the_pauses() {
        const HOUR_MS: Millis = 60 * 60 * 1_000;
        let (mut night, activity) = TestEngine::fall(|_| {}).await;
        let bank = night.bank(Bank::default());
        let (engine, item) = (night.engine.clone(), activity.items[0].id);
        let (kept, owed) = (night.buy(item, "ann").await, night.buy(item, "bob").await);
        engine.ledger.open_payment(kept, "a provider that is gone", NOW_MS).await.unwrap();
        engine.credit(&bank.money(owed)).await.unwrap();
        engine.refund("root", owed).await.unwrap();
        bank.refuse(true);
        // The clock jumps an hour ahead, a payment cannot be closed, a refund is refused…
        night.clock.advance(HOUR_MS + 60_000);
        engine.time_out().await.unwrap();
        engine.deliver_refunds().await.unwrap();
        // …and the clock is set right.
        night.clock.advance(-HOUR_MS);
        bank.refuse(false);
        let status = async |no| engine.ledger.order(no).await.unwrap().unwrap().status;
        engine.deliver_refunds().await.unwrap();
        assert_eq!(status(owed).await, OrderStatus::Refunded, "nobody waits an hour for a refund");
        assert!(engine.unclosable.lock().contains_key(&kept));
        let passed = async {
            while engine.unclosable.lock().contains_key(&kept) {
                tokio::time::sleep(Duration::from_millis(50)).await;
                engine.overdue(NOW_MS, 1).await.unwrap();
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(30), passed).await;
        waited.expect("the pause is a second by the clock that nobody can set");
    }

    #[tokio::test]
    async fn money_that_does_not_fit_wakes_somebody_once_and_the_order_stays_open() {
        let webhook = Webhook::open().await;
        let url = webhook.url();
        let (mut night, activity) =
            TestEngine::fall(|settings| settings.alerts.webhook_url = url).await;
        let bank = night.bank(Bank::default());
        let no = night.buy(activity.items[0].id, "ann").await;
        let engine = night.engine.clone();
        engine.ledger.open_payment(no, Bank::NAME, NOW_MS).await.unwrap();
        bank.pay(no, 2, NOW_MS);
        night.clock.advance(60_000);
        for _ in 0..3 {
            engine.time_out().await.unwrap();
            night.clock.advance(60_000);
            night.pauses_end();
        }
        engine.alerts.stop().await;
        let heard = webhook.heard();
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert!(heard[0].contains(&no.to_string()) && heard[0].contains("amount"), "{heard:?}");
        let order = engine.ledger.order(no).await.unwrap().unwrap();
        assert_eq!(order.status, OrderStatus::Unpaid);
    }

    #[tokio::test]
    async fn a_provider_that_hangs_holds_up_no_other_order_and_no_run() {
        let (mut night, activity) = TestEngine::fall(|_| {}).await;
        let bank = night.bank_within(Bank::default(), Duration::from_millis(100));
        let (engine, item) = (night.engine.clone(), activity.items[0].id);
        let mut hung = Vec::new();
        for user in ["ann", "bob"] {
            let no = night.buy(item, user).await;
            engine.ledger.open_payment(no, Bank::NAME, NOW_MS).await.unwrap();
            hung.push(no);
        }
        let free = night.buy(item, "cat").await;
        night.clock.advance(60_000);
        bank.hang(true);
        let run = tokio::time::timeout(Duration::from_secs(5), engine.time_out()).await;
        run.expect("the bank is waited for so long and no longer").unwrap();
        let status = async |no| engine.ledger.order(no).await.unwrap().unwrap().status;
        assert_eq!(status(free).await, OrderStatus::Closed);
        for no in hung {
            assert_eq!(status(no).await, OrderStatus::Unpaid, "nobody knows yet");
        }
    }
}

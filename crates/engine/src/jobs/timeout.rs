//! Closes orders that were not paid in time, and so gives their units back.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use ledger::{Closing, LedgerError, Overdue};
use parking_lot::Mutex;
use sale::{CloseReason, ItemId, Millis, OrderNo};
use tokio::time::Instant;

use super::{Job, JobResult, Progress};
use crate::{Payments, shared::Shared};

/// How long this job passes over an order that its provider does not let go of. Longer if
/// they are many, so that asking for all of them again leaves time for the others.
const UNCLOSABLE_PAUSE_MIN: Duration = Duration::from_secs(1);
const UNCLOSABLE_PAUSE_MAX: Duration = Duration::from_secs(60);
const UNCLOSABLE_MAX: usize = 100_000;
/// Items whose orders could not be closed before this job takes it for a fault of the ledger.
const CLOSE_FAILURES_MAX: usize = 3;

pub(crate) struct Timeout {
    shared: Arc<Shared>,
    payments: Arc<Payments>,
    /// Overdue orders whose payment could not be closed at its provider, and until when they are passed
    /// over.
    pub(crate) unclosable: Mutex<HashMap<OrderNo, Instant>>,
}

impl Timeout {
    pub(crate) fn new(shared: Arc<Shared>, payments: Arc<Payments>) -> Timeout {
        Timeout { shared, payments, unclosable: Mutex::default() }
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
            match self.shared.ledger.close(&orders, CloseReason::Timeout, now_ms).await {
                Ok(now) => {
                    assert!(now.len() <= orders.len(), "more orders were closed than asked for");
                    closed += now.len();
                }
                Err(error) => {
                    self.pass_over(orders.into_iter().map(|order| order.order_no), limit);
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
            self.shared.wake.outbox_written();
        }
        (closed, first)
    }

    /// The orders to close now, and whether there may be more. Those whose provider did not let go
    /// of them lately are passed over: they must not hold up the others.
    async fn overdue(
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
        let mut overdue = self.shared.ledger.overdue(now_ms, asked).await?;
        let full = overdue.len() == asked;
        overdue.retain(|overdue| !unclosable.contains_key(&overdue.order.order_no));
        overdue.truncate(limit);
        Ok((overdue, full))
    }

    fn pass_over(&self, orders: impl Iterator<Item = OrderNo>, limit: usize) {
        let mut unclosable = self.unclosable.lock();
        let few = unclosable.len() < limit;
        // Not by the clock on the wall, which may be set back before the pause is over.
        let until = Instant::now() + if few { UNCLOSABLE_PAUSE_MIN } else { UNCLOSABLE_PAUSE_MAX };
        let room = UNCLOSABLE_MAX.saturating_sub(unclosable.len());
        unclosable.extend(orders.take(room).map(|order_no| (order_no, until)));
    }
}

#[async_trait]
impl Job for Timeout {
    async fn run(&self) -> JobResult {
        let limit = self.shared.settings.jobs.timeout_batch_max;
        // Due is what is due by the ledger's clock and by ours: a host whose clock is ahead must not
        // close orders early.
        let (our_ms, ledgers_ms) = (self.shared.now_ms(), self.shared.ledger.now_ms().await?);
        let now_ms = our_ms.min(ledgers_ms);
        let (overdue, full) = self.overdue(now_ms, limit).await?;
        // Those without a payment do not wait for those whose provider has to be asked.
        let (asked, free): (Vec<_>, Vec<_>) =
            overdue.into_iter().partition(|overdue| !overdue.providers.is_empty());
        let (mut closed, failed) = self.close_by_item(free, now_ms, limit).await;
        let (closable, kept) = self.payments.close_all_at_providers(asked).await;
        self.pass_over(kept.into_iter().map(|overdue| overdue.order.order_no), limit);
        let (closed_late, failed_late) = self.close_by_item(closable, now_ms, limit).await;
        if let Some(error) = failed.or(failed_late) {
            return Err(error.into());
        }
        closed += closed_late;
        // A full batch of which nothing could be closed would come again at once: wait instead.
        Ok(if full && closed > 0 { Progress::MoreToDo } else { Progress::CaughtUp })
    }
}

#[cfg(test)]
mod tests {
    use sale::OrderStatus;

    use super::*;
    use crate::test_engine::{Bank, NOW_MS, TestEngine, Webhook};

    #[tokio::test]
    async fn orders_that_a_provider_does_not_let_go_of_hold_up_no_others() {
        let (shop, activity) =
            TestEngine::with_a_sale(|settings| settings.jobs.timeout_batch_max = 1).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        let stuck = shop.buy(item, "ann").await;
        engine
            .shared
            .ledger
            .open_payment(stuck, "a provider that is gone", None, NOW_MS)
            .await
            .unwrap();
        shop.clock.advance(1);
        let free = shop.buy(item, "bob").await;
        shop.clock.advance(60_000);
        for _ in 0..2 {
            engine.jobs.timeout.run().await.unwrap();
        }
        let status = async |no| engine.shared.ledger.order(no).await.unwrap().unwrap().status;
        assert_eq!(status(free).await, OrderStatus::Closed);
        assert_eq!(status(stuck).await, OrderStatus::Unpaid, "it stays until asked");
    }

    #[tokio::test]
    async fn a_clock_that_was_ahead_for_a_moment_does_not_stretch_the_pauses() {
        const HOUR_MS: Millis = 60 * 60 * 1_000;
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let bank = shop.bank.clone();
        let (engine, item) = (shop.engine.clone(), activity.items[0].id);
        let (kept, owed) = (shop.buy(item, "ann").await, shop.buy(item, "bob").await);
        engine
            .shared
            .ledger
            .open_payment(kept, "a provider that is gone", None, NOW_MS)
            .await
            .unwrap();
        engine.payments.credit(&bank.money(owed)).await.unwrap();
        engine.operations.refund("root", owed, None).await.unwrap();
        bank.refuse(true);
        // The clock jumps an hour ahead, a payment cannot be closed, a refund is refused…
        shop.clock.advance(HOUR_MS + 60_000);
        engine.jobs.timeout.run().await.unwrap();
        engine.jobs.refund.run().await.unwrap();
        // …and the clock is set right.
        shop.clock.advance(-HOUR_MS);
        bank.refuse(false);
        let status = async |no| engine.shared.ledger.order(no).await.unwrap().unwrap().status;
        engine.jobs.refund.run().await.unwrap();
        assert_eq!(status(owed).await, OrderStatus::Refunded, "nobody waits an hour for a refund");
        assert!(engine.jobs.timeout.unclosable.lock().contains_key(&kept));
        let passed = async {
            while engine.jobs.timeout.unclosable.lock().contains_key(&kept) {
                tokio::time::sleep(Duration::from_millis(50)).await;
                engine.jobs.timeout.overdue(NOW_MS, 1).await.unwrap();
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(30), passed).await;
        waited.expect("the pause is a second by the clock that nobody can set");
    }

    #[tokio::test]
    async fn money_that_does_not_fit_wakes_somebody_once_and_the_order_stays_open() {
        let webhook = Webhook::open().await;
        let url = webhook.url();
        let (shop, activity) =
            TestEngine::with_a_sale(|settings| settings.alerts.webhook_url = url).await;
        let bank = shop.bank.clone();
        let no = shop.buy(activity.items[0].id, "ann").await;
        let engine = shop.engine.clone();
        engine.shared.ledger.open_payment(no, Bank::NAME, None, NOW_MS).await.unwrap();
        bank.pay(no, 2, NOW_MS);
        shop.clock.advance(60_000);
        for _ in 0..3 {
            engine.jobs.timeout.run().await.unwrap();
            shop.clock.advance(60_000);
            shop.pauses_end();
        }
        engine.shared.alerts.stop().await;
        let heard = webhook.heard();
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert!(heard[0].contains(&no.to_string()) && heard[0].contains("amount"), "{heard:?}");
        let order = engine.shared.ledger.order(no).await.unwrap().unwrap();
        assert_eq!(order.status, OrderStatus::Unpaid);
    }

    #[tokio::test]
    async fn a_provider_that_hangs_holds_up_no_other_order_and_no_run() {
        let (shop, activity) = TestEngine::beside_a_bank(Duration::from_millis(100)).await;
        let bank = shop.bank.clone();
        let (engine, item) = (shop.engine.clone(), activity.items[0].id);
        let mut hung = Vec::new();
        for user in ["ann", "bob"] {
            let no = shop.buy(item, user).await;
            engine.shared.ledger.open_payment(no, Bank::NAME, None, NOW_MS).await.unwrap();
            hung.push(no);
        }
        let free = shop.buy(item, "cat").await;
        shop.clock.advance(60_000);
        bank.hang(true);
        let run = tokio::time::timeout(Duration::from_secs(5), engine.jobs.timeout.run()).await;
        run.expect("the bank is waited for so long and no longer").unwrap();
        let status = async |no| engine.shared.ledger.order(no).await.unwrap().unwrap().status;
        assert_eq!(status(free).await, OrderStatus::Closed);
        for no in hung {
            assert_eq!(status(no).await, OrderStatus::Unpaid, "nobody knows yet");
        }
    }
}

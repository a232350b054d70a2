//! Closes orders that were not paid in time, and so gives their units back.
//!
//! An order with an open payment is closed at its provider first. A provider may hang, and nobody else's
//! orders wait for that: those of the same providers are asked about by a task of their own, of which there
//! is one at a time. A run waits for it for a moment, as most answer within that, and goes on without it.
//!
//! What is due is found by its index. Where claims go by a broker that can deliver a message at a given time,
//! it also reminds of each batch of orders, and these are looked at first thing ([`crate::reminders`]).

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use ledger::{Closing, LedgerError, Overdue, OverdueKey};
use orders::broker::{Receipt, reminders_heard};
use parking_lot::Mutex;
use sale::{CloseReason, ItemId, Millis, OrderNo, UserId};
use tokio::{
    task::{Id, JoinSet},
    time::{Instant, timeout_at},
};

use super::{Job, JobResult, Progress};
use crate::{Payments, sale_tokens::Hoarding, shared::Shared};

/// How long this job passes over an order that its provider does not let go of. Longer if
/// they are many, so that asking for all of them again leaves time for the others.
const UNCLOSABLE_PAUSE_MIN: Duration = Duration::from_secs(1);
const UNCLOSABLE_PAUSE_MAX: Duration = Duration::from_secs(60);
const UNCLOSABLE_MAX: usize = 100_000;
/// Items whose orders could not be closed before this job takes it for a fault of the ledger.
const CLOSE_FAILURES_MAX: usize = 3;
/// How long a run waits for providers.
const PROVIDERS_WAIT: Duration = Duration::from_millis(250);
/// A reminder that comes before the time of its orders is over, by our clocks, waits for so long at most.
const EARLY_MAX: Duration = Duration::from_secs(10);
/// After a failure, before a reminder is heard again.
const REMINDER_PAUSE: Duration = Duration::from_secs(1);

/// Names of the providers at which an order has open payments.
type Names = Vec<String>;

pub(crate) struct Timeout {
    closings: Arc<Closings>,
    /// Who is being asked. Only runs look at it, one after the other.
    asking: tokio::sync::Mutex<Asking>,
}

#[derive(Default)]
struct Asking {
    tasks: JoinSet<Closed>,
    names: HashMap<Id, Names>,
}

/// How many orders were closed, and the first error there was.
type Closed = (usize, Option<LedgerError>);

struct Closings {
    shared: Arc<Shared>,
    payments: Arc<Payments>,
    hoarding: Arc<Hoarding>,
    /// Overdue orders whose payment could not be closed at its provider, and until when they are passed
    /// over.
    unclosable: Mutex<HashMap<OrderNo, Instant>>,
    /// Orders about which a provider is being asked. They are passed over until it has answered.
    under_way: Mutex<HashMap<OrderNo, Names>>,
    walk: Mutex<Walk>,
}

/// Where the next run looks. When very many orders cannot be closed now, reading past all of them in every
/// run costs more than all else the job does. So they are walked through a batch at a time, again and again,
/// and a run that finds nothing to do there looks behind all that were ever reached, where those are whose
/// time has just come.
#[derive(Clone, Copy, Default)]
struct Walk {
    at: Option<OverdueKey>,
    /// The furthest.
    front: Option<OverdueKey>,
}

impl Timeout {
    pub(crate) fn new(
        shared: Arc<Shared>,
        payments: Arc<Payments>,
        hoarding: Arc<Hoarding>,
    ) -> Timeout {
        let (unclosable, under_way) = (Mutex::default(), Mutex::default());
        let walk = Mutex::default();
        let closings =
            Arc::new(Closings { shared, payments, hoarding, unclosable, under_way, walk });
        Timeout { closings, asking: tokio::sync::Mutex::default() }
    }

    /// As if the pauses of all orders were over.
    #[cfg(test)]
    pub(crate) fn pauses_end(&self) {
        self.closings.unclosable.lock().clear();
    }

    /// Hears the broker's reminders for as long as it runs.
    pub(crate) async fn hear_reminders(self: Arc<Self>) {
        let Some(broker) = self.closings.shared.broker.clone() else { return };
        let Some(checks) = broker.delayed_checks() else { return };
        loop {
            let due = match checks.due().await {
                Ok(due) => due,
                Err(error) => {
                    tracing::debug!(%error, "reminders of unpaid orders cannot be heard");
                    tokio::time::sleep(REMINDER_PAUSE).await;
                    continue;
                }
            };
            let latest_ms = due.iter().map(|(_, check)| check.due_ms).max().unwrap_or_default();
            let early_ms = latest_ms.saturating_sub(self.closings.shared.now_ms());
            let early = Duration::from_millis(u64::try_from(early_ms).unwrap_or(0));
            tokio::time::sleep(early.min(EARLY_MAX)).await;
            let numbers: Vec<OrderNo> = due.iter().map(|(_, check)| check.order_no).collect();
            while let Err(error) = self.reminded(&numbers).await {
                tracing::debug!(%error, "orders that were to be looked at wait for the ledger");
                tokio::time::sleep(REMINDER_PAUSE).await;
            }
            reminders_heard(numbers.len());
            let receipts: Vec<Receipt> = due.into_iter().map(|(receipt, _)| receipt).collect();
            checks.confirm(&receipts);
        }
    }

    /// Closes those of them that are unpaid and whose time is over.
    async fn reminded(&self, numbers: &[OrderNo]) -> Result<(), LedgerError> {
        let now_ms = self.closings.now_ms().await?;
        for some in numbers.chunks(self.closings.shared.settings.jobs.timeout_batch_max) {
            let overdue = self.closings.shared.ledger.overdue_among(some, now_ms).await?;
            if let (_, Some(error)) = self.close(overdue, now_ms).await {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Those without a payment do not wait for those whose provider has to be asked.
    async fn close(&self, overdue: Vec<Overdue>, now_ms: Millis) -> Closed {
        let closings = &self.closings;
        let limit = closings.shared.settings.jobs.timeout_batch_max;
        let (asked, free): (Vec<_>, Vec<_>) =
            overdue.into_iter().partition(|overdue| !overdue.providers.is_empty());
        let (closed, failed) = closings.close_by_item(free, now_ms, limit).await;
        let mut asking = self.asking.lock().await;
        self.ask(&mut asking, asked, now_ms, limit);
        let (closed_late, failed_late) = self.answered(&mut asking).await;
        (closed + closed_late, failed.or(failed_late))
    }

    /// A task for the orders of each group of providers, unless the one before it is still at it.
    fn ask(&self, asking: &mut Asking, orders: Vec<Overdue>, now_ms: Millis, limit: usize) {
        let mut by_names: BTreeMap<Names, Vec<Overdue>> = BTreeMap::new();
        for overdue in orders {
            by_names.entry(overdue.providers.clone()).or_default().push(overdue);
        }
        for (names, orders) in by_names {
            let numbers = orders.iter().map(|overdue| overdue.order.order_no);
            if asking.names.values().any(|busy| *busy == names) {
                self.closings.pass_over(numbers, limit);
                continue;
            }
            let under_way = numbers.map(|order_no| (order_no, names.clone()));
            self.closings.under_way.lock().extend(under_way);
            let closings = self.closings.clone();
            let task = asking.tasks.spawn(async move { closings.ask(orders, now_ms, limit).await });
            asking.names.insert(task.id(), names);
        }
    }

    /// What providers answered up to now, and in the moment that a run waits for them.
    async fn answered(&self, asking: &mut Asking) -> Closed {
        let until = Instant::now() + PROVIDERS_WAIT;
        let (mut closed, mut first) = (0, None);
        while let Ok(Some(done)) = timeout_at(until, asking.tasks.join_next_with_id()).await {
            let (id, outcome) = match done {
                Ok((id, (now, error))) => {
                    closed += now;
                    (id, error)
                }
                Err(died) => (died.id(), Some(LedgerError::Unavailable(died.to_string()))),
            };
            first = first.or(outcome);
            let names = asking.names.remove(&id);
            self.closings.under_way.lock().retain(|_, of| Some(&*of) != names.as_ref());
        }
        (closed, first)
    }
}

impl Closings {
    /// Due is what is due by the ledger's clock and by ours: a host whose clock is ahead must not close
    /// orders early.
    async fn now_ms(&self) -> Result<Millis, LedgerError> {
        Ok(self.shared.now_ms().min(self.shared.ledger.now_ms().await?))
    }

    /// Close what the providers let go of.
    async fn ask(&self, orders: Vec<Overdue>, now_ms: Millis, limit: usize) -> Closed {
        let (closable, kept) = self.payments.close_all_at_providers(orders).await;
        self.pass_over(kept.into_iter().map(|overdue| overdue.order.order_no), limit);
        self.close_by_item(closable, now_ms, limit).await
    }

    /// One transaction per item: an item that somebody else holds in the ledger must not keep the
    /// units of the others. Answers how many orders were closed, and the first error there was.
    async fn close_by_item(&self, orders: Vec<Overdue>, now_ms: Millis, limit: usize) -> Closed {
        let mut by_item: BTreeMap<ItemId, Vec<Closing>> = BTreeMap::new();
        let buyers: HashMap<OrderNo, UserId> = orders
            .iter()
            .map(|overdue| (overdue.order.order_no, overdue.order.user.clone()))
            .collect();
        let mut given_up = Vec::new();
        for overdue in orders {
            by_item.entry(overdue.order.item).or_default().push(overdue.into());
        }
        let (mut closed, mut failures, mut first) = (0, 0, None);
        for orders in by_item.into_values() {
            match self.shared.ledger.close(&orders, CloseReason::Timeout, now_ms).await {
                Ok(now) => {
                    assert!(now.len() <= orders.len(), "more orders were closed than asked for");
                    closed += now.len();
                    given_up.extend(now.iter().filter_map(|no| buyers.get(no)).cloned());
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
        self.hoarding.closed(given_up).await;
        (closed, first)
    }

    /// The orders to close now, and whether there may be more. Those whose provider did not let go
    /// of them lately are passed over: they must not hold up the others.
    async fn overdue(
        &self,
        now_ms: Millis,
        limit: usize,
    ) -> Result<(Vec<Overdue>, bool), LedgerError> {
        let passed_over: HashSet<OrderNo> = {
            let now = Instant::now();
            let (mut unclosable, under_way) = (self.unclosable.lock(), self.under_way.lock());
            unclosable.retain(|_, until| now < *until);
            unclosable.keys().chain(under_way.keys()).copied().collect()
        };
        let is_due = |overdue: &Overdue| !passed_over.contains(&overdue.order.order_no);
        let mut walk = *self.walk.lock();
        let ledger = &self.shared.ledger;
        let mut found = ledger.overdue_after(now_ms, walk.at, limit).await?;
        let mut full = found.len() == limit;
        walk.at = found.last().filter(|_| full).map(Overdue::key);
        walk.front = walk.front.max(walk.at);
        found.retain(is_due);
        if found.is_empty() && full {
            found = ledger.overdue_after(now_ms, walk.front, limit).await?;
            full = found.len() == limit;
            walk.front = found.last().map(Overdue::key).or(walk.front);
            found.retain(is_due);
        } else if walk.at.is_none() {
            walk.front = None;
        }
        *self.walk.lock() = walk;
        Ok((found, full))
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
        let closings = &self.closings;
        let limit = closings.shared.settings.jobs.timeout_batch_max;
        let now_ms = closings.now_ms().await?;
        let (overdue, full) = closings.overdue(now_ms, limit).await?;
        let (closed, failed) = self.close(overdue, now_ms).await;
        if let Some(error) = failed {
            return Err(error.into());
        }
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
    async fn a_run_reads_no_more_however_many_cannot_be_closed() {
        let (shop, activity) =
            TestEngine::with_a_sale(|settings| settings.jobs.timeout_batch_max = 2).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        for n in 0..6 {
            let no = shop.buy(item, &format!("stuck{n}")).await;
            let gone = "a provider that is gone";
            engine.shared.ledger.open_payment(no, gone, None, NOW_MS).await.unwrap();
        }
        shop.clock.advance(60_000);
        let closings = &engine.jobs.timeout.closings;
        let all = engine.shared.ledger.overdue(NOW_MS + 60_000, 9).await.unwrap();
        let stuck: Vec<OrderNo> = all.iter().map(|overdue| overdue.order.order_no).collect();
        closings.pass_over(stuck.iter().copied(), 0);
        let look = async || closings.overdue(engine.shared.now_ms(), 2).await.unwrap().0;
        for _ in 0..4 {
            assert!(look().await.is_empty(), "each batch of them is passed over");
        }
        // One whose time comes now is found although the walk is in the middle of the others.
        let free = shop.buy(item, "bob").await;
        shop.clock.advance(60_000);
        let mut found = Vec::new();
        for _ in 0..5 {
            found.extend(look().await.iter().map(|overdue| overdue.order.order_no));
        }
        assert!(found.contains(&free));
        // And so are the others when their pause is over.
        shop.pauses_end();
        let mut found = Vec::new();
        for _ in 0..5 {
            found.extend(look().await.iter().map(|overdue| overdue.order.order_no));
        }
        assert!(stuck.iter().all(|no| found.contains(no)));
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
        assert!(engine.jobs.timeout.closings.unclosable.lock().contains_key(&kept));
        let passed = async {
            while engine.jobs.timeout.closings.unclosable.lock().contains_key(&kept) {
                tokio::time::sleep(Duration::from_millis(50)).await;
                engine.jobs.timeout.closings.overdue(NOW_MS, 1).await.unwrap();
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

    #[tokio::test]
    async fn the_next_runs_go_on_beside_a_provider_that_hangs() {
        let (shop, activity) = TestEngine::beside_a_bank(Duration::from_secs(60)).await;
        let bank = shop.bank.clone();
        let (engine, item) = (shop.engine.clone(), activity.items[0].id);
        let hung = shop.buy(item, "ann").await;
        engine.shared.ledger.open_payment(hung, Bank::NAME, None, NOW_MS).await.unwrap();
        shop.clock.advance(30_000);
        let later = shop.buy(item, "bob").await;
        shop.clock.advance(30_000);
        bank.hang(true);
        let status = async |no| engine.shared.ledger.order(no).await.unwrap().unwrap().status;
        let run = async || {
            let run = tokio::time::timeout(Duration::from_secs(20), engine.jobs.timeout.run());
            run.await.expect("the bank is not waited for").unwrap()
        };
        run().await;
        bank.called().await;
        shop.clock.advance(30_000);
        shop.pauses_end();
        run().await;
        assert_eq!(status(later).await, OrderStatus::Closed);
        assert_eq!((status(hung).await, bank.calls()), (OrderStatus::Unpaid, 1), "asked once");
        bank.hang(false);
        shop.rounds_until(&*engine.jobs.timeout, async || {
            status(hung).await == OrderStatus::Closed
        })
        .await;
    }
}

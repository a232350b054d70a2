//! The jobs: what has to happen although nobody asks for it.
//!
//! Each job is a loop that runs, sleeps until its time or until somebody wakes it, and runs again.
//! A run that fails is told to the log once per outage and tried again; no job ever gives up.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap},
    future::Future,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream};
use gate::{AdjustOutcome, GiveBack, Loaded, Presence, Shut};
use ledger::{
    Closing, LedgerError, OUTBOX_KINDS, OUTBOX_PAUSE_MS_MAX, OutboxMessage, OutboxQueue, OutboxRow,
    OutstandingClaims, Overdue, PaymentNotice, RefundDone, Release,
};
use orders::{Alert, AlertKind};
use payment::{CloseOutcome, ProviderError, RefundOutcome, RefundRequest};
use sale::{Activity, ActivityMove, CloseReason, Item, ItemId, ItemState, Millis, OrderNo, UserId};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::Instant,
};

use super::{
    Engine, NoticeFailure,
    due::{self, PAGE_ACTIVITIES, Pages},
};
use crate::{
    coordination::Hint,
    settings::{Profile, Role},
};

/// Calls of payment providers that a job makes at the same time.
pub(super) const PROVIDER_CALLS_MAX: usize = 16;
/// How long the time-out job looks past an order that its provider does not let go of. Longer if
/// they are many, so that asking for all of them again leaves time for the others.
const UNCLOSABLE_PAUSE_MIN: Duration = Duration::from_secs(1);
const UNCLOSABLE_PAUSE_MAX: Duration = Duration::from_secs(60);
const UNCLOSABLE_MAX: usize = 100_000;
/// Items whose orders could not be closed before the time-out job takes it for a fault of the ledger.
const CLOSE_FAILURES_MAX: usize = 3;
/// The pauses between deliveries of an outbox row double from this to [`OUTBOX_PAUSE_MS_MAX`].
const OUTBOX_PAUSE_MS_MIN: Millis = 500;
/// A row that was not delivered so often, after about a minute, wakes somebody.
const OUTBOX_TRIES_ALARMING: u32 = 8;
/// The servers of a cluster's gate have a clock each, of which we ask one.
const END_GRACE_MS: Millis = 5_000;
/// When a job that saw something move looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(20);

pub(super) type JobError = Box<dyn std::error::Error + Send + Sync>;
pub(super) type JobResult = Result<Progress, JobError>;

/// Whether a run left work behind.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    CaughtUp,
    /// It could go on at once.
    MoreToDo,
    /// What it looked at would not hold still: worth another look before the usual time.
    LookAgainSoon,
}

/// Starts the jobs of these roles; they end when `stop` says so.
pub(super) fn start(engine: &Arc<Engine>, stop: &watch::Receiver<bool>) -> Vec<JoinHandle<()>> {
    let settings = &engine.settings.jobs;
    let job = |name, every_ms, wake: &Arc<Notify>| Job {
        name,
        leased: true,
        every: Duration::from_millis(every_ms),
        wake: wake.clone(),
        engine: engine.clone(),
        stop: stop.clone(),
    };
    let nobody = Arc::new(Notify::new());
    // What every process does for itself.
    let mut handles = vec![
        job("catalogue", settings.catalogue_refresh_ms, &nobody)
            .everywhere()
            .spawn(|e| async move { e.show_catalogue().await }),
        job("upkeep", settings.warm_poll_ms, &nobody)
            .everywhere()
            .spawn(|e| async move { e.upkeep().await }),
    ];
    if engine.does(Role::Jobs) {
        handles.extend([
            job("warm", settings.warm_poll_ms, &engine.warm_wake)
                .spawn(|e| async move { e.warming().await }),
            job("publish", settings.warm_poll_ms, &nobody)
                .spawn(|e| async move { e.publish_due().await }),
            // Each for itself: whichever of them is asked for its numbers has them.
            job("count", settings.count_every_ms, &nobody)
                .everywhere()
                .spawn(|e| async move { e.count_waiting().await }),
            job("lifecycle", settings.warm_poll_ms, &nobody)
                .spawn(|e| async move { e.lifecycle().await }),
            job("timeout", settings.timeout_poll_ms, &nobody)
                .spawn(|e| async move { e.time_out().await }),
            job("outbox", settings.outbox_poll_ms, &engine.outbox_wake)
                .spawn(|e| async move { e.deliver_outbox().await }),
            job("refund", settings.outbox_poll_ms, &engine.refund_wake)
                .spawn(|e| async move { e.deliver_refunds().await }),
            job("reconcile", settings.reconcile_every_ms, &engine.reconcile_wake).after_a_pause(
                |e| async move {
                    let report = e.reconcile(true).await?;
                    // A stock change that was cut off is undone when it is old enough.
                    let unfinished = report.items.iter().any(|item| item.adjusting != 0);
                    let again = report.moving > 0 || unfinished;
                    Ok(if again { Progress::LookAgainSoon } else { Progress::CaughtUp })
                },
            ),
        ]);
    }
    handles
}

struct Job {
    name: &'static str,
    /// Run by one process of the cluster at a time.
    leased: bool,
    every: Duration,
    wake: Arc<Notify>,
    engine: Arc<Engine>,
    stop: watch::Receiver<bool>,
}

impl Job {
    fn everywhere(self) -> Job {
        Job { leased: false, ..self }
    }

    fn spawn<F>(self, run: impl Fn(Arc<Engine>) -> F + Send + 'static) -> JoinHandle<()>
    where
        F: Future<Output = JobResult> + Send + 'static,
    {
        tokio::spawn(self.rounds(run))
    }

    /// For a job that has nothing to do right after the start.
    fn after_a_pause<F>(mut self, run: impl Fn(Arc<Engine>) -> F + Send + 'static) -> JoinHandle<()>
    where
        F: Future<Output = JobResult> + Send + 'static,
    {
        tokio::spawn(async move {
            if self.pause().await {
                self.rounds(run).await;
            }
        })
    }

    async fn rounds<F>(mut self, run: impl Fn(Arc<Engine>) -> F)
    where
        F: Future<Output = JobResult>,
    {
        let mut failing = false;
        loop {
            if self.leased && self.engine.coordination.lead(self.name).await.is_none() {
                if self.pause().await {
                    continue;
                }
                return;
            }
            let done = AssertUnwindSafe(run(self.engine.clone())).catch_unwind().await;
            let done = done.unwrap_or_else(|panic| Err(self.panicked(&*panic)));
            match &done {
                Ok(_) if failing => tracing::info!(job = self.name, "job works again"),
                Err(error) if !failing => {
                    tracing::warn!(job = self.name, %error, "job failed, will try again");
                }
                _ => {}
            }
            if done.is_ok() {
                self.engine.panicking.lock().remove(self.name);
                self.engine.observe(AlertKind::JobPanicked, self.name, None);
            }
            failing = done.is_err();
            if *self.stop.borrow() {
                return;
            }
            let goes_on = match done {
                Ok(Progress::MoreToDo) => true,
                Ok(Progress::LookAgainSoon) => self.pause_for(self.every.min(LOOK_AGAIN)).await,
                Ok(Progress::CaughtUp) | Err(_) => self.pause().await,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// A bug must not end a job in silence: it wakes somebody, shows in `/readyz`, and the job is
    /// tried again like after any failure.
    fn panicked(&self, panic: &(dyn Any + Send)) -> JobError {
        let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        self.engine.panicking.lock().insert(self.name);
        self.engine.observe(AlertKind::JobPanicked, self.name, Some(said.clone()));
        format!("it panicked: {said}").into()
    }

    /// False when it is time to stop.
    async fn pause(&mut self) -> bool {
        self.pause_for(self.every).await
    }

    async fn pause_for(&mut self, pause: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            () = self.wake.notified() => true,
            _ = self.stop.wait_for(|stop| *stop) => false,
        }
    }
}

impl Engine {
    /// Look after the gate: whoever sees that it lost writes mends it.
    async fn upkeep(&self) -> JobResult {
        // A part of the gate that does not answer keeps the others from nothing.
        let kept = self.gate.upkeep().await;
        self.mend_suspects().await;
        // Reading what is there also refreshes what pages show of it.
        let read = self.gate.loaded().await;
        kept.and(read)?;
        Ok(Progress::CaughtUp)
    }

    async fn mend_suspects(&self) {
        use super::WarmError::{Ended, NotPublished, UnknownItem};
        let suspects = self.gate.suspects();
        // One process is enough; the others see the new epoch.
        if suspects.is_empty() || self.coordination.lead("rebuild").await.is_none() {
            return;
        }
        for item in suspects {
            match self.rebuild(item).await {
                Ok(warmed) => tracing::warn!(%item, epoch = warmed.epoch,
                    "the gate may have lost writes and was rebuilt"),
                // Nothing will be sold any more.
                Err(Ended | NotPublished | UnknownItem) => self.gate.forget_suspect(item),
                Err(error) => tracing::warn!(%item, %error, "the gate could not be rebuilt yet"),
            }
        }
    }

    async fn warming(&self) -> JobResult {
        self.warm_due(self.clock.now_ms()).await?;
        Ok(Progress::CaughtUp)
    }

    /// Pages of a process without jobs come from the copy that the others keep in the coordination; only
    /// if there is none is the ledger asked.
    async fn show_catalogue(&self) -> JobResult {
        match self.coordination.catalogue().await {
            Some(activities) if !self.does(Role::Jobs) => {
                self.catalogue.show(activities, self.clock.now_ms());
            }
            _ => {
                self.catalogue.refresh(&*self.ledger, self.clock.now_ms()).await?;
                self.coordination.put_catalogue(&self.catalogue.snapshot().activities).await;
            }
        }
        self.health.catalogue_is_fresh();
        Ok(Progress::CaughtUp)
    }

    /// Count what waits in the ledger, for `/metrics`.
    async fn count_waiting(&self) -> JobResult {
        let outstanding = self.ledger.outstanding().await?;
        let now_ms = self.clock.now_ms();
        for kind in OUTBOX_KINDS {
            let of_kind = outstanding.outbox.iter().find(|rows| rows.kind == kind);
            let oldest_ms = of_kind.map_or(now_ms, |rows| rows.oldest_ms);
            let age_s = (now_ms - oldest_ms).max(0) as f64 / 1_000.0;
            let rows = of_kind.map_or(0, |rows| rows.rows);
            metrics::gauge!("seckill_outbox_rows", "kind" => kind).set(rows as f64);
            metrics::gauge!("seckill_outbox_oldest_age_seconds", "kind" => kind).set(age_s);
        }
        let sum =
            |of: fn(&OutstandingClaims) -> u64| outstanding.claims.iter().map(of).sum::<u64>();
        metrics::gauge!("seckill_dead_letters").set(sum(|claims| claims.dead) as f64);
        metrics::gauge!("seckill_retrying_claims").set(sum(|claims| claims.retrying) as f64);
        *self.outstanding.lock() = Some(outstanding);
        Ok(Progress::CaughtUp)
    }

    /// End what is over, and take it from the gate when nobody needs it there any more.
    pub(super) async fn lifecycle(&self) -> JobResult {
        let now_ms = self.clock.now_ms();
        let mut loaded = self.gate.loaded().await?;
        loaded.retain(|here| here.presence != Presence::Unknown);
        let surely_ms = self.surely_ms().await?;
        let mut failed = None;
        let over = due::published().map(|filter| filter.closing_by(surely_ms));
        let mut pages = Pages::of(&*self.ledger, over);
        while let Some(page) = pages.next().await? {
            for activity in &page {
                if let Err(error) = self.end(activity, now_ms).await {
                    // Somebody may hold one of its items; the other activities end all the same.
                    tracing::warn!(activity = %activity.id, %error, "an activity could not be ended yet");
                    failed = Some(error);
                }
            }
            self.refresh_catalogue().await;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        for some in loaded.chunks(PAGE_ACTIVITIES) {
            self.take_from_gate(some, now_ms).await?;
        }
        Ok(Progress::CaughtUp)
    }

    /// Of these items at the gate those that nobody needs there any more.
    async fn take_from_gate(&self, loaded: &[Loaded], now_ms: Millis) -> Result<(), JobError> {
        let kept_ms = self.settings.gate.keep_after_close_ms as Millis;
        let ids: Vec<ItemId> = loaded.iter().map(|here| here.item).collect();
        let activities = self.ledger.activities_of(&[], &ids).await?;
        let items: HashMap<ItemId, (&Activity, &Item)> = activities
            .iter()
            .flat_map(|activity| activity.items.iter().map(move |item| (item.id, (activity, item))))
            .collect();
        let mut untold: BTreeMap<_, Vec<ItemId>> = BTreeMap::new();
        for here in loaded {
            let Some((activity, item)) = items.get(&here.item) else { continue };
            let kept = now_ms < activity.closes_ms.saturating_add(kept_ms);
            // Whoever ended it may have died before the gate heard of it.
            if item.state == ItemState::Ended && here.shut != Some(Shut::Ended) {
                untold.entry(item.activity).or_default().push(item.id);
            }
            if item.state == ItemState::Ended
                && !kept
                && self.gate.in_flight(item.id).await?.is_empty()
            {
                self.gate.unload(item.id).await?;
                self.lanes.forget(item.id);
                tracing::info!(item = %item.id, "item has left the gate");
            }
        }
        for (activity, items) in untold {
            self.tell_gate_again(activity, &items).await?;
        }
        Ok(())
    }

    /// A time that has come by the gate's clock as well as by ours. The gate closes a sale by its own;
    /// a host whose clock is ahead must not end it early.
    async fn surely_ms(&self) -> Result<Millis, JobError> {
        let now_ms = self.clock.now_ms();
        if self.settings.profile == Profile::Solo {
            // One process, one clock.
            return Ok(now_ms);
        }
        Ok(now_ms.min(self.coordination.now_ms().await?) - END_GRACE_MS)
    }

    async fn end(&self, activity: &Activity, now_ms: Millis) -> Result<(), JobError> {
        {
            // A load under way would open again what was shut in the middle of it.
            let _turn = self.gate_turn.lock().await;
            let ended = self.ledger.move_activity(activity.id, ActivityMove::End, None, now_ms);
            let ended = ended.await?.activity;
            let items: Vec<ItemId> = ended.items.iter().map(|item| item.id).collect();
            // What the gate did not hear of now, the next run tells it.
            self.tell_gate(ended.id, ended.state, &items).await?;
        }
        tracing::info!(activity = %activity.id, name = activity.name, "activity is over");
        // The books are closed with a comparison.
        self.reconcile_wake.notify_one();
        Ok(())
    }

    /// Close what was not paid in time.
    pub(super) async fn time_out(&self) -> JobResult {
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
    pub(super) async fn may_close(&self, overdue: &Overdue) -> bool {
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

    /// Deliver what committed transactions still owe to gate and buyers, in their order.
    pub(super) async fn deliver_outbox(&self) -> JobResult {
        self.deliver_queue(OutboxQueue::House, 1).await
    }

    /// Give money back. A provider may take its time over it, and nobody else waits for that.
    pub(super) async fn deliver_refunds(&self) -> JobResult {
        self.deliver_queue(OutboxQueue::Refunds, PROVIDER_CALLS_MAX).await
    }

    async fn deliver_queue(&self, queue: OutboxQueue, at_once: usize) -> JobResult {
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
    pub(super) async fn renew_copy(&self, no: OrderNo) {
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

    async fn refund_at_provider(&self, refund: &RefundDone) -> Result<(), JobError> {
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
    use ledger::Credit;
    use sale::{ActivityState, OrderStatus};

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
    async fn what_is_over_ends_and_what_opens_is_warmed_whatever_was_planned_after_it() {
        let (night, activity) = TestEngine::fall(|_| {}).await;
        let engine = &night.engine;
        let soon = night.another_sale("soon", (NOW_MS + 60_000, NOW_MS + 7_200_000), 60_000).await;
        night.plan_many(ActivityState::Draft, 10_100, (NOW_MS, NOW_MS + 9_000_000)).await;
        night
            .plan_many(ActivityState::Published, 1_100, (NOW_MS + 8_000_000, NOW_MS + 9_000_000))
            .await;
        engine.warming().await.unwrap();
        assert_eq!(engine.gate.left(soon.items[0].id), Some(10), "it opens in a minute");
        let report = engine.reconcile(true).await.unwrap();
        assert_eq!((report.compared, report.differences), (2, 0));
        for sale in [&activity, &soon] {
            let id = sale.items[0].id;
            let compared = report.items.iter().find(|item| item.item_id == id).unwrap();
            assert_eq!(compared.verdict, crate::ItemVerdict::Agree);
        }
        night.clock.advance(3_600_000);
        engine.lifecycle().await.unwrap();
        let state = async |id| engine.ledger.activity(id).await.unwrap().unwrap().state;
        assert_eq!(state(activity.id).await, ActivityState::Ended);
        assert_eq!(state(soon.id).await, ActivityState::Published);
        let answer = engine.claim(activity.items[0].id, "ann".parse().unwrap(), 1, None).await;
        assert!(matches!(answer, crate::ClaimAnswer::Ended), "{answer:?}");
    }

    #[tokio::test]
    async fn an_end_that_the_gate_never_heard_of_reaches_it() {
        let (night, activity) = TestEngine::fall(|_| {}).await;
        let (engine, item) = (&night.engine, activity.items[0].id);
        // The process that ended it died between ledger and gate.
        let end = ActivityMove::End;
        let ended = engine.ledger.move_activity(activity.id, end, None, NOW_MS).await.unwrap();
        assert!(ended.moved);
        engine.lifecycle().await.unwrap();
        let answer = engine.claim(item, "ann".parse().unwrap(), 1, None).await;
        assert!(matches!(answer, crate::ClaimAnswer::Ended), "{answer:?}");
    }

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

    #[tokio::test]
    async fn a_job_that_panics_is_told_of_and_tried_again() {
        let webhook = Webhook::open().await;
        let url = webhook.url();
        let night = TestEngine::without_a_sale(|settings| {
            settings.alerts.webhook_url = url;
            settings.alerts.resolve_after_ms = 0;
        })
        .await;
        let engine = night.engine.clone();
        let (runs, mut ran) = watch::channel(0);
        let stop = watch::Sender::new(false);
        let job = Job {
            name: "clumsy",
            leased: true,
            every: Duration::from_millis(1),
            wake: Arc::default(),
            engine: engine.clone(),
            stop: stop.subscribe(),
        };
        let job = job.spawn(move |_| {
            let runs = runs.clone();
            async move {
                runs.send_modify(|runs| *runs += 1);
                let ran = *runs.borrow();
                assert!(ran > 3, "too clumsy");
                Ok(Progress::CaughtUp)
            }
        });
        ran.wait_for(|ran| *ran == 3).await.unwrap();
        assert_eq!(engine.jobs_panicking(), ["clumsy"]);
        engine.tell_what_is_due().await;
        engine.tell_what_is_due().await;
        ran.wait_for(|ran| *ran > 4).await.unwrap();
        assert!(engine.jobs_panicking().is_empty(), "it works again");
        engine.tell_what_is_due().await;
        stop.send_replace(true);
        job.await.unwrap();
        engine.alerts.stop().await;
        let heard = webhook.heard();
        assert_eq!(heard.len(), 2, "{heard:?}");
        assert!(heard[0].contains("job_panicked") && heard[0].contains("too clumsy"), "{heard:?}");
        assert!(heard[1].contains("resolved") && heard[1].contains("clumsy"), "{heard:?}");
    }
}

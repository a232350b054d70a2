//! The jobs: what has to happen although nobody asks for it.
//!
//! Each job is a loop that runs, sleeps until its time or until somebody wakes it, and runs again.
//! A run that fails is told to the log once per outage and tried again; no job ever gives up.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use gate::{AdjustOutcome, GiveBack, Shut};
use ledger::{OutboxMessage, OutboxRow, Overdue, PaymentNotice, RefundDone, Release};
use payment::{CloseOutcome, ProviderError, RefundOutcome, RefundRequest};
use sale::{ActivityState, CloseReason, ItemState, Millis, OrderNo};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

use super::Engine;

const ACTIVITIES_MAX: usize = 10_000;
/// Payments that are closed at their provider at the same time.
const PROVIDER_CALLS_MAX: usize = 16;
/// The pauses between deliveries of an outbox row double from one to the other.
const OUTBOX_PAUSE_MS_MIN: Millis = 500;
const OUTBOX_PAUSE_MS_MAX: Millis = 60_000;

type JobError = Box<dyn std::error::Error + Send + Sync>;
type JobResult = Result<Progress, JobError>;

/// Whether a run left work behind that it could go on with at once.
#[derive(PartialEq, Eq)]
enum Progress {
    CaughtUp,
    MoreToDo,
}

/// Starts all jobs; they end when `stop` says so.
pub(super) fn start(engine: &Arc<Engine>, stop: &watch::Receiver<bool>) -> Vec<JoinHandle<()>> {
    let jobs = &engine.config.jobs;
    let job = |name, every_ms, wake: &Arc<Notify>| Job {
        name,
        every: Duration::from_millis(every_ms),
        wake: wake.clone(),
        engine: engine.clone(),
        stop: stop.clone(),
    };
    let nobody = Arc::new(Notify::new());
    vec![
        job("warm", jobs.warm_poll_ms, &engine.warm_wake)
            .spawn(|e| async move { e.warming().await }),
        job("lifecycle", jobs.warm_poll_ms, &nobody).spawn(|e| async move { e.lifecycle().await }),
        job("timeout", jobs.timeout_poll_ms, &nobody).spawn(|e| async move { e.time_out().await }),
        job("outbox", jobs.outbox_poll_ms, &engine.outbox_wake)
            .spawn(|e| async move { e.deliver_outbox().await }),
        job("catalogue", jobs.catalogue_refresh_ms, &nobody)
            .spawn(|e| async move { e.show_catalogue().await }),
        job("reconcile", jobs.reconcile_every_ms, &nobody).after_a_pause(|e| async move {
            e.reconcile(true).await?;
            Ok(Progress::CaughtUp)
        }),
    ]
}

struct Job {
    name: &'static str,
    every: Duration,
    wake: Arc<Notify>,
    engine: Arc<Engine>,
    stop: watch::Receiver<bool>,
}

impl Job {
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
            let done = run(self.engine.clone()).await;
            match &done {
                Ok(_) if failing => tracing::info!(job = self.name, "job works again"),
                Err(error) if !failing => {
                    tracing::warn!(job = self.name, %error, "job failed, will try again");
                }
                _ => {}
            }
            failing = done.is_err();
            if *self.stop.borrow() {
                return;
            }
            if !matches!(done, Ok(Progress::MoreToDo)) && !self.pause().await {
                return;
            }
        }
    }

    /// False when it is time to stop.
    async fn pause(&mut self) -> bool {
        tokio::select! {
            () = tokio::time::sleep(self.every) => true,
            () = self.wake.notified() => true,
            _ = self.stop.wait_for(|stop| *stop) => false,
        }
    }
}

impl Engine {
    async fn warming(&self) -> JobResult {
        self.warm_due(self.clock.now_ms()).await?;
        Ok(Progress::CaughtUp)
    }

    async fn show_catalogue(&self) -> JobResult {
        self.catalogue.refresh(&*self.ledger, self.clock.now_ms()).await?;
        metrics::gauge!("seckill_log_backlog_claims").set(self.gate.backlog() as f64);
        metrics::gauge!("seckill_push_streams").set(self.news.streams() as f64);
        metrics::gauge!("seckill_outbox_rows").set(self.ledger.outbox_depth().await? as f64);
        Ok(Progress::CaughtUp)
    }

    /// End what is over, and take it from the gate when nobody needs it there any more.
    async fn lifecycle(&self) -> JobResult {
        let now_ms = self.clock.now_ms();
        let kept_ms = self.config.gate.keep_after_close_ms as Millis;
        let loaded = self.gate.loaded().await?;
        for activity in self.ledger.activities(now_ms - 2 * kept_ms, ACTIVITIES_MAX).await? {
            let over = now_ms >= activity.closes_ms;
            let open = matches!(activity.state, ActivityState::Published | ActivityState::Paused);
            if over && open {
                self.ledger.move_activity(activity.id, ActivityState::Ended, now_ms).await?;
                for item in &activity.items {
                    self.gate.shut(item.id, Some(Shut::Ended)).await?;
                }
                self.refresh_catalogue().await;
                tracing::info!(activity = %activity.id, name = activity.name, "activity is over");
                // The books are closed with a comparison.
                self.reconcile(true).await?;
            }
        }
        for here in loaded {
            let Some(item) = self.ledger.item(here.item).await? else { continue };
            let activity = self.ledger.activity(item.activity).await?;
            let closed_ms = activity.map_or(0, |activity| activity.closes_ms);
            let kept = now_ms < closed_ms.saturating_add(kept_ms);
            if item.state == ItemState::Ended
                && !kept
                && self.gate.in_flight(item.id).await?.is_empty()
            {
                self.gate.unload(item.id).await?;
                self.lanes.forget(item.id);
                tracing::info!(item = %item.id, "item has left the gate");
            }
        }
        Ok(Progress::CaughtUp)
    }

    /// Close what was not paid in time.
    async fn time_out(&self) -> JobResult {
        let limit = self.config.jobs.timeout_batch_max;
        let overdue = self.ledger.overdue(self.clock.now_ms(), limit).await?;
        let full = overdue.len() == limit;
        let asked = stream::iter(overdue).map(|overdue| async move {
            let order_no = overdue.order.order_no;
            self.may_close(&overdue).await.then_some(order_no)
        });
        let closable: Vec<Option<OrderNo>> =
            asked.buffer_unordered(PROVIDER_CALLS_MAX).collect().await;
        let closable: Vec<OrderNo> = closable.into_iter().flatten().collect();
        let closed =
            self.ledger.close(&closable, CloseReason::Timeout, self.clock.now_ms()).await?;
        if !closed.is_empty() {
            metrics::counter!("seckill_orders_timed_out_total").increment(closed.len() as u64);
            tracing::info!(orders = closed.len(), "unpaid orders closed, units returned");
            self.outbox_wake.notify_one();
        }
        // A full batch of which nothing could be closed would come again at once: wait instead.
        Ok(if full && !closed.is_empty() { Progress::MoreToDo } else { Progress::CaughtUp })
    }

    /// An order with an open payment is closed at the provider first. If the provider has the
    /// money, the order is paid; if it does not answer, the order stays open until it does.
    pub(super) async fn may_close(&self, overdue: &Overdue) -> bool {
        for name in &overdue.providers {
            let Some(provider) = self.providers.get(name) else {
                tracing::error!(provider = name, order_no = %overdue.order.order_no,
                    "an order has a payment at a provider that is not configured");
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
                    if let Err(error) = self.ledger.credit(&notice, self.clock.now_ms()).await {
                        tracing::warn!(%error, "a payment could not be credited, will try again");
                    }
                    self.outbox_wake.notify_one();
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

    /// Deliver what committed transactions still owe, in their order.
    async fn deliver_outbox(&self) -> JobResult {
        let limit = self.config.jobs.outbox_batch_max;
        let rows = self.ledger.outbox_due(self.clock.now_ms(), limit).await?;
        let full = rows.len() == limit;
        let mut done = Vec::with_capacity(rows.len());
        for row in &rows {
            match self.deliver(row).await {
                Ok(()) => done.push(row.id),
                Err(error) => {
                    tracing::warn!(outbox = row.id, tries = row.tries, %error, "not delivered yet");
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

    async fn deliver(&self, row: &OutboxRow) -> Result<(), JobError> {
        match &row.message {
            OutboxMessage::Release { releases } => {
                let units: Vec<GiveBack> = releases.iter().map(give_back).collect();
                self.lanes.release(&units).await?;
            }
            OutboxMessage::Adjust { item, adjust_no, delta } => {
                if let AdjustOutcome::Done(change) =
                    self.gate.adjust(*item, *adjust_no, *delta, true).await?
                {
                    self.lanes.news(change);
                }
            }
            OutboxMessage::News { orders } => self.news.tell(orders),
            OutboxMessage::Refund { provider, provider_txn, order_no, amount } => {
                let bank = self.providers.get(provider).ok_or("no such provider")?;
                let request = RefundRequest {
                    order_no: *order_no,
                    provider_txn: provider_txn.clone(),
                    amount: *amount,
                };
                match bank.refund(&request).await {
                    Ok(RefundOutcome::Done) => {}
                    Ok(RefundOutcome::Pending) => {
                        return Err("the provider is working on it".into());
                    }
                    Err(error @ ProviderError::Unavailable(_)) => return Err(error.into()),
                    Err(error @ ProviderError::Refused(_)) => {
                        tracing::error!(%order_no, provider, %error, "a refund was refused");
                        return Err(error.into());
                    }
                }
                let done = RefundDone {
                    provider: provider.clone(),
                    provider_txn: provider_txn.clone(),
                    order_no: *order_no,
                    amount: *amount,
                };
                self.ledger.refunded(&done, self.clock.now_ms()).await?;
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

//! The main loop from the log to the ledger, and the handle by which others see and stop it.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sale::{ClaimLog, EntryId, FailedClaim, LogEntry, LogError, OrderBook, SharedClock};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tracing::info;

use crate::{
    Alert, Alerts, Options, meters,
    outage::{Backoff, Outage, StopSignal, Stopped},
    rate::Rate,
    retry::Retries,
    settler::{Settler, TriesBefore, by_item},
};

/// Starts the two loops.
pub struct Workers;

impl Workers {
    /// `options` must be valid ([`Options::validate`]). Must be called inside a tokio runtime.
    pub fn start(
        options: Options,
        log: Arc<dyn ClaimLog>,
        book: Arc<dyn OrderBook>,
        clock: SharedClock,
        alerts: Alerts,
    ) -> WorkersHandle {
        let (stop, stop_signal) = watch::channel(false);
        let (stopped_tell, stopped) = watch::channel(false);
        let shared = Arc::new(Shared {
            stop,
            stopped,
            ledger: Arc::new(Outage::new("ledger")),
            log: Outage::new("claim log"),
            rate: Rate::default(),
            retry_now: Notify::new(),
            running: AtomicBool::new(true),
        });
        let settler = Settler::new(
            &options,
            book,
            clock.clone(),
            alerts.clone(),
            shared.ledger.clone(),
            StopSignal(stop_signal.clone()),
        );
        let mut loops = JoinSet::new();
        let retries =
            Retries { settler: settler.clone(), shared: shared.clone(), options: options.clone() };
        loops.spawn(retries.run());
        let main = MainLoop {
            settler,
            shared: shared.clone(),
            log,
            stop: StopSignal(stop_signal),
            options,
        };
        loops.spawn(main.run());
        tokio::spawn(watch_over(loops, shared.clone(), stopped_tell, alerts, clock));
        WorkersHandle { shared }
    }
}

/// A loop only ends when told to. If one ends otherwise it panicked: that wakes someone, and
/// `is_running` tells the health check, because what the loop held comes back only with a restart.
/// The other loop goes on; half the work done is better than none.
async fn watch_over(
    mut loops: JoinSet<()>,
    shared: Arc<Shared>,
    stopped: watch::Sender<bool>,
    alerts: Alerts,
    clock: SharedClock,
) {
    while let Some(ended) = loops.join_next().await {
        shared.running.store(false, Ordering::SeqCst);
        if let Err(panic) = ended {
            alerts.raise(Alert {
                kind: "worker_died",
                message: "a worker loop died of a bug; restart this process".into(),
                order_no: None,
                cause: Some(panic.to_string()),
                at_ms: clock.now_ms(),
            });
        }
    }
    stopped.send_replace(true);
}

/// What the loops and the handle share.
pub(crate) struct Shared {
    stop: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
    ledger: Arc<Outage>,
    log: Outage,
    rate: Rate,
    pub(crate) retry_now: Notify,
    running: AtomicBool,
}

/// Sees, wakes and stops the workers. Clones are the same workers.
#[derive(Clone)]
pub struct WorkersHandle {
    shared: Arc<Shared>,
}

impl WorkersHandle {
    /// Say stop, and know that all stopped: both loops have ended, what was taken from the log and
    /// not settled was handed back. Takes at most about as long as one batch in the ledger.
    pub async fn stop(&self) {
        self.shared.running.store(false, Ordering::SeqCst);
        self.shared.stop.send_replace(true);
        let mut stopped = self.shared.stopped.clone();
        // An error means the runtime is going down and the loops with it.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }

    /// Look for due retries at once: an operator has just replayed a dead letter.
    pub fn retry_now(&self) {
        self.shared.retry_now.notify_one();
    }

    /// Claims the main loop settles per second while it is busy; 0 until the first batch.
    pub fn rate_per_s(&self) -> f64 {
        self.shared.rate.per_s()
    }

    /// Waiting for the ledger or the log to answer again.
    pub fn is_paused(&self) -> bool {
        self.shared.ledger.is_on() || self.shared.log.is_on()
    }

    /// False after `stop`, and after a loop died of a bug.
    pub fn is_running(&self) -> bool {
        self.shared.running.load(Ordering::SeqCst)
    }
}

struct MainLoop {
    settler: Settler,
    shared: Arc<Shared>,
    log: Arc<dyn ClaimLog>,
    stop: StopSignal,
    options: Options,
}

impl MainLoop {
    async fn run(mut self) {
        while let Ok(entries) = self.take().await {
            let started = Instant::now();
            self.settler.paused = false;
            match self.carry(&entries).await {
                Ok(settled) => self.note_rate(settled, started.elapsed()),
                // What of it was settled already is a no-op when it comes again.
                Err(Stopped) => {
                    info!(entries = entries.len(), "handed back to the claim log while stopping");
                    self.log.give_back(entries).await;
                    break;
                }
            }
            meters::backlog(self.log.backlog());
        }
    }

    async fn take(&mut self) -> Result<Vec<LogEntry>, Stopped> {
        let mut backoff = self.backoff();
        loop {
            let taken = tokio::select! {
                biased;
                () = self.stop.stopped() => return Err(Stopped),
                taken = self.log.take(self.options.batch_claims_max) => taken,
            };
            match taken {
                Ok(entries) => {
                    self.shared.log.end();
                    return Ok(entries);
                }
                Err(fault) => self.pause(&mut backoff, &fault).await?,
            }
        }
    }

    /// Settle everything in these entries, then acknowledge them. Answers how many were settled.
    async fn carry(&mut self, entries: &[LogEntry]) -> Result<usize, Stopped> {
        let (mut settled, mut stuck) = (0, HashSet::new());
        for (item, claims) in by_item(entries.iter().flat_map(|entry| entry.claims.iter().cloned()))
        {
            let pass = self.settler.settle(item, &claims, &TriesBefore::new()).await?;
            settled += pass.settled;
            stuck.extend(pass.stuck.iter().map(|one| one.claim.order_no));
            pass.stuck.iter().for_each(|one| self.report_stuck(one));
        }
        let done: Vec<EntryId> = entries
            .iter()
            .filter(|entry| !entry.claims.iter().any(|claim| stuck.contains(&claim.order_no)))
            .map(|entry| entry.id)
            .collect();
        self.ack(&done).await?;
        Ok(settled)
    }

    async fn ack(&mut self, done: &[EntryId]) -> Result<(), Stopped> {
        if done.is_empty() {
            return Ok(());
        }
        let mut backoff = self.backoff();
        while let Err(fault) = self.log.ack(done).await {
            self.pause(&mut backoff, &fault).await?;
        }
        self.shared.log.end();
        Ok(())
    }

    async fn pause(&mut self, backoff: &mut Backoff, fault: &LogError) -> Result<(), Stopped> {
        self.settler.paused = true;
        self.shared.log.begin(fault);
        if self.stop.sleep(backoff.next()).await { Ok(()) } else { Err(Stopped) }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(self.options.pause_ms_min, self.options.pause_ms_max)
    }

    /// The ledger can neither settle this claim nor remember that it failed. Its entry stays on
    /// the log, unacknowledged, and comes again after a restart; the others go on.
    fn report_stuck(&self, stuck: &FailedClaim) {
        meters::stuck();
        self.settler.alerts.raise(Alert {
            kind: "claim_stuck",
            message: "a claim can neither be settled nor be put aside; its log entry is kept"
                .into(),
            order_no: Some(stuck.claim.order_no),
            cause: Some(stuck.cause.clone()),
            at_ms: self.settler.clock.now_ms(),
        });
    }

    /// A round that waited out an outage says nothing about how fast the ledger works.
    fn note_rate(&self, settled: usize, busy: Duration) {
        if !self.settler.paused {
            self.shared.rate.record(settled, busy);
        }
    }
}

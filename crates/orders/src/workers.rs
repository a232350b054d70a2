//! The main loop from the log to the ledger, and the handle by which others see and stop all loops.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sale::{ClaimLog, EntryId, FailedClaim, ItemId, LogEntry, LogError, OrderBook, SharedClock};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tracing::info;

use crate::{
    Alert, AlertKind, Alerts, Options,
    aside::{Aside, AsideLoop},
    dead::DeadLoop,
    outage::{Backoff, Outage, StopSignal, Stopped},
    rate::Rate,
    retry::Retries,
    settler::{ClaimId, Settler, TriesBefore, by_item, id_of},
};

/// Starts the loops.
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
            aside: Aside::default(),
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
        let retries = Retries::new(settler.clone(), shared.clone(), options.clone());
        loops.spawn(retries.run());
        let aside =
            AsideLoop { settler: settler.clone(), shared: shared.clone(), log: log.clone() };
        loops.spawn(aside.run());
        let tries = u32::try_from(options.retry_ladder_ms.len()).unwrap_or(u32::MAX);
        let again = Duration::from_millis(options.pause_ms_max);
        let dead = DeadLoop {
            settler: settler.clone(),
            shared: shared.clone(),
            log: log.clone(),
            tries,
            again,
        };
        loops.spawn(dead.run());
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
/// The other loops go on; half the work done is better than none.
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
            let message = "a worker loop died of a bug; restart this process";
            let alert = Alert::new(AlertKind::WorkerDied, message, clock.now_ms());
            alerts.raise(alert.because(panic));
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
    pub(crate) aside: Aside,
    pub(crate) retry_now: Notify,
    running: AtomicBool,
}

/// Sees, wakes and stops the workers. Clones are the same workers.
#[derive(Clone)]
pub struct WorkersHandle {
    shared: Arc<Shared>,
}

impl WorkersHandle {
    /// Say stop, and know that all stopped: the loops have ended, what was taken from the log and
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

    /// Claims the main loop has settled since the start.
    pub fn settled(&self) -> u64 {
        self.shared.rate.claims()
    }

    /// Why the ledger cannot be written, while the workers wait for it.
    pub fn ledger_trouble(&self) -> Option<String> {
        self.shared.ledger.cause()
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

/// In a rush a worker rests so many times as long as it worked, so that it takes an eighth of a
/// processor.
const RUSH_REST_TIMES: u32 = 7;
const RUSH_REST_MAX: Duration = Duration::from_millis(200);
/// With so many claims waiting it does not rest any more.
const RUSH_BACKLOG_MAX: u64 = 100_000;

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
            let entries = self.shared.aside.join(entries);
            let started = Instant::now();
            self.settler.paused = false;
            match self.carry(&entries).await {
                Ok(Carried { settled, locked }) => {
                    // Told to stop in its sleep, it finds out when it takes the next batch.
                    self.stand_back(started.elapsed()).await;
                    self.note_rate(settled, started.elapsed());
                    let held = entries.into_iter().filter(|entry| locked.contains(&entry.item));
                    self.shared.aside.put(held.collect());
                }
                // What of it was settled already is a no-op when it comes again.
                Err(Stopped) => {
                    info!(entries = entries.len(), "handed back to the claim log while stopping");
                    self.log.give_back(entries).await;
                    break;
                }
            }
        }
        // The aside loop may have ended before this one put something there.
        self.log.give_back(self.shared.aside.drain()).await;
    }

    /// In a rush most of the time is left to the door: a claim on the log is safe, and becomes an
    /// order as soon as the crowd has passed. But the backlog must not grow for ever.
    async fn stand_back(&mut self, busy: Duration) {
        if self.log.is_rushing() && self.log.backlog() < RUSH_BACKLOG_MAX {
            self.stop.sleep((busy * RUSH_REST_TIMES).min(RUSH_REST_MAX)).await;
        }
    }

    async fn take(&mut self) -> Result<Vec<LogEntry>, Stopped> {
        let mut backoff = self.settler.backoff;
        let shared = self.shared.clone();
        loop {
            tokio::select! {
                biased;
                () = self.stop.stopped() => return Err(Stopped),
                () = shared.aside.room() => {}
            }
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
                Err(fault) => {
                    wait_for_log(&mut self.settler, &self.shared, &mut backoff, &fault).await?;
                }
            }
        }
    }

    /// Settle everything in these entries that is not held by somebody else, then acknowledge it.
    async fn carry(&mut self, entries: &[LogEntry]) -> Result<Carried, Stopped> {
        let (mut carried, mut stuck) = (Carried::default(), Vec::new());
        for (item, claims) in by_item(entries.iter().flat_map(|entry| entry.claims.iter().cloned()))
        {
            let pass = self.settler.settle(item, &claims, &TriesBefore::new()).await?;
            carried.settled += pass.settled;
            if pass.locked {
                carried.locked.insert(item);
                continue;
            }
            pass.stuck.iter().for_each(|one| self.settler.report_stuck(one));
            stuck.extend(pass.stuck);
        }
        let free = entries.iter().filter(|entry| !carried.locked.contains(&entry.item));
        let (done, left) = settled_whole(free, &stuck);
        acknowledge(&mut self.settler, &self.shared, &*self.log, &done).await?;
        self.log.leave(&left).await;
        Ok(carried)
    }

    /// A round that waited out an outage says nothing about how fast the ledger works.
    fn note_rate(&self, settled: usize, busy: Duration) {
        self.shared.rate.count(settled);
        if !self.settler.paused {
            self.shared.rate.record(settled, busy);
        }
    }
}

/// What became of a round.
#[derive(Default)]
struct Carried {
    settled: usize,
    /// Items whose rows somebody else holds.
    locked: HashSet<ItemId>,
}

/// The entries that hold none of the claims that are stuck, and the others.
pub(crate) fn settled_whole<'e>(
    entries: impl IntoIterator<Item = &'e LogEntry>,
    stuck: &[FailedClaim],
) -> (Vec<EntryId>, Vec<EntryId>) {
    let stuck: HashSet<ClaimId> = stuck.iter().map(|one| id_of(&one.claim)).collect();
    let (mut whole, mut others) = (Vec::new(), Vec::new());
    for entry in entries {
        let is_whole =
            stuck.is_empty() || !entry.claims.iter().any(|claim| stuck.contains(&id_of(claim)));
        if is_whole { whole.push(entry.id) } else { others.push(entry.id) }
    }
    (whole, others)
}

/// Tells the log that these are in the ledger, for as long as it takes.
pub(crate) async fn acknowledge(
    settler: &mut Settler,
    shared: &Shared,
    log: &dyn ClaimLog,
    done: &[EntryId],
) -> Result<(), Stopped> {
    if done.is_empty() {
        return Ok(());
    }
    let mut backoff = settler.backoff;
    while let Err(fault) = log.ack(done).await {
        wait_for_log(settler, shared, &mut backoff, &fault).await?;
    }
    shared.log.end();
    Ok(())
}

pub(crate) async fn wait_for_log(
    settler: &mut Settler,
    shared: &Shared,
    backoff: &mut Backoff,
    fault: &LogError,
) -> Result<(), Stopped> {
    settler.paused = true;
    shared.log.begin(fault);
    if settler.stop.sleep(backoff.next()).await { Ok(()) } else { Err(Stopped) }
}

//! Whether this process can sell, settle and show, as a watcher last saw it.
//!
//! | it can | if | who asks |
//! |---|---|---|
//! | sell | the gate can be written, lanes run, order numbers can be given | balancers of web instances |
//! | settle | ledger and gate answer, workers run, the log drains | monitors |
//! | show | there is a catalogue | balancers of pages |
//!
//! They are apart because they fail apart: with the ledger away the sale goes on, and whoever took
//! the instances out of a balancer then would stop it.
//!
//! Nobody who asks makes anybody work: [`watch`] asks gate and ledger every second, each with a time
//! limit, so one that hangs is seen within seconds and asked only once. What the watcher has not
//! looked at for a while is not known, and what is not known is not ready.

mod conditions;
mod remembered;
mod watch;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use gate::Writable;
use orders::AlertKind;
use parking_lot::Mutex;
use sale::Millis;

use self::conditions::Conditions;
pub use self::conditions::OpenAlert;
pub(crate) use self::remembered::RememberedAlerts;
use crate::{Push, settings::ProcessRole, shared::Shared};

/// What was last looked at longer ago is not known any more: the watcher itself may be stuck.
const STALE_AFTER: Duration = Duration::from_secs(10);
/// A catalogue that was not read anew for so long is still shown, and called stale.
const CATALOGUE_STALE_AFTER: Duration = Duration::from_secs(30);

/// How a part does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok,
    /// Some of the gate's partitions are away; the others sell.
    Partly,
    /// The workers wait for the ledger or the log.
    Paused,
    /// The claim log does not drain.
    Stuck,
    /// It works with what it has, which is old.
    Stale,
    Failing,
    Panicking,
    Down,
    /// Nobody has looked lately.
    Unknown,
    /// This process is not for that.
    NotHere,
    /// It is not set up.
    NotSet,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Partly => "partly",
            Status::Paused => "paused",
            Status::Stuck => "stuck",
            Status::Stale => "stale",
            Status::Failing => "failing",
            Status::Panicking => "panicking",
            Status::Down => "down",
            Status::Unknown => "unknown",
            Status::NotHere => "not_here",
            Status::NotSet => "not_set",
        }
    }
}

/// One part, as it was last seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    status: Status,
    /// Since when it is so, by the clock on the wall.
    since_ms: Millis,
    cause: Option<String>,
    looked: Instant,
}

impl Seen {
    fn ok(now_ms: Millis) -> Seen {
        Seen { status: Status::Ok, since_ms: now_ms, cause: None, looked: Instant::now() }
    }

    /// Answers whether it is so only since now.
    fn note(&mut self, status: Status, cause: Option<String>, now_ms: Millis) -> bool {
        let changed = self.status != status;
        if changed {
            self.since_ms = now_ms;
        }
        (self.status, self.cause, self.looked) = (status, cause, Instant::now());
        changed
    }
}

/// The claim log as it was last seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogSeen {
    backlog: u64,
    oldest_waits_ms: Option<u64>,
}

pub struct Health {
    shared: Arc<Shared>,
    push: Arc<Push>,
    /// The directory that is ours.
    data: PathBuf,
    gate: Mutex<Seen>,
    ledger: Mutex<Seen>,
    log: Mutex<LogSeen>,
    catalogue: Mutex<Instant>,
    conditions: Conditions,
    /// What is in the file.
    remembered: Mutex<RememberedAlerts>,
    /// Jobs whose last run ended in a panic.
    panicking: Mutex<BTreeSet<&'static str>>,
    /// Set while the watcher runs: before that what is known is what the opening showed.
    watched: AtomicBool,
}

impl Health {
    /// Gate and ledger have just been opened.
    pub(crate) fn new(
        shared: Arc<Shared>,
        push: Arc<Push>,
        data: PathBuf,
        remembered: RememberedAlerts,
    ) -> Health {
        let (alerts, now_ms) = (&shared.settings.alerts, shared.now_ms());
        let (raise, resolve) = (alerts.raise_after_ms, alerts.resolve_after_ms);
        let (raise, resolve) = (Duration::from_millis(raise), Duration::from_millis(resolve));
        Health {
            gate: Mutex::new(Seen::ok(now_ms)),
            ledger: Mutex::new(Seen::ok(now_ms)),
            log: Mutex::default(),
            catalogue: Mutex::new(Instant::now()),
            conditions: Conditions::new(remembered.open.clone(), raise, resolve),
            remembered: Mutex::new(remembered),
            panicking: Mutex::default(),
            watched: false.into(),
            shared,
            push,
            data,
        }
    }

    /// Begins to watch: until then what is known is what the opening showed. Each of these goes on until
    /// everything is stopped.
    pub(crate) fn watchers(self: &Arc<Self>) -> [BoxFuture<'static, ()>; 3] {
        self.watched.store(true, Ordering::Relaxed);
        [
            Box::pin(watch::watch_gate(self.clone())),
            Box::pin(watch::watch_ledger(self.clone())),
            Box::pin(watch::watch_the_rest(self.clone())),
        ]
    }

    /// Everything is about to be stopped, and nobody is to be woken for it.
    pub(crate) fn stop_watching(&self) {
        self.watched.store(false, Ordering::Relaxed);
    }

    /// The catalogue was read anew.
    pub(crate) fn catalogue_is_fresh(&self) {
        *self.catalogue.lock() = Instant::now();
    }

    /// A bug must not end a job in silence.
    pub(crate) fn job_panicked(&self, job: &'static str, said: &str) {
        self.panicking.lock().insert(job);
        self.observe(AlertKind::JobPanicked, job, Some(said.to_owned()));
    }

    pub(crate) fn job_works(&self, job: &'static str) {
        self.panicking.lock().remove(job);
        self.observe(AlertKind::JobPanicked, job, None);
    }

    /// The jobs that a bug keeps from working, by name.
    pub fn jobs_panicking(&self) -> Vec<&'static str> {
        self.panicking.lock().iter().copied().collect()
    }

    fn note_gate(&self, answer: Option<Writable>, now_ms: Millis) {
        let (status, cause) = match answer {
            Some(Writable { silent: 0, .. }) => (Status::Ok, None),
            Some(Writable { partitions, silent, cause }) if silent < partitions => {
                let cause = cause.unwrap_or_default();
                let text =
                    format!("{silent} of {partitions} partitions cannot be written: {cause}");
                (Status::Partly, Some(text))
            }
            Some(Writable { cause, .. }) => {
                (Status::Down, cause.or_else(|| Some("it fails".into())))
            }
            None => (Status::Down, Some("no answer in time".into())),
        };
        note("gate", &self.gate, status, cause, now_ms);
    }

    fn note_ledger(&self, trouble: Option<String>, now_ms: Millis) {
        let status = if trouble.is_none() { Status::Ok } else { Status::Down };
        note("ledger", &self.ledger, status, trouble, now_ms);
    }

    fn of(&self, seen: &Mutex<Seen>) -> Seen {
        let mut seen = seen.lock().clone();
        let watched = self.watched.load(Ordering::Relaxed);
        if watched && seen.looked.elapsed() > STALE_AFTER {
            (seen.status, seen.cause) = (Status::Unknown, Some("nobody has looked lately".into()));
        }
        seen
    }
}

/// A change is said once.
fn note(part: &str, seen: &Mutex<Seen>, status: Status, cause: Option<String>, now_ms: Millis) {
    let (since_ms, said) = (seen.lock().since_ms, cause.clone());
    if !seen.lock().note(status, cause, now_ms) {
        return;
    }
    let lasted_ms = now_ms - since_ms;
    match status {
        Status::Ok => tracing::info!(part, lasted_ms, "a watched part works again"),
        _ => tracing::warn!(
            part,
            state = status.as_str(),
            cause = said,
            "a watched part does not work"
        ),
    }
}

/// A part, for those who ask.
#[derive(Clone, Debug)]
pub struct Part {
    pub name: &'static str,
    pub status: Status,
    /// Of parts that are watched: since when.
    pub since_ms: Option<Millis>,
    /// For operators; it may name hosts.
    pub cause: Option<String>,
}

/// What the workers of a process do. One that has none is not running.
#[derive(Clone, Copy, Debug)]
pub struct WorkersState {
    /// Claims settled per second while there are any, lately.
    pub rate_per_s: f64,
    /// Claims settled since the start.
    pub settled: u64,
    pub running: bool,
    /// They wait for a ledger that does not answer.
    pub paused: bool,
}

/// What this process can do now.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// What it is for: selling, where it answers buyers.
    pub ready: bool,
    pub sell: Status,
    pub settle: Status,
    pub show: Status,
    pub parts: Vec<Part>,
}

impl Readiness {
    /// Does this part, or some of it, answer?
    pub fn is_up(&self, name: &str) -> bool {
        let part = self.parts.iter().find(|part| part.name == name);
        part.is_some_and(|part| matches!(part.status, Status::Ok | Status::Partly))
    }
}

impl Health {
    /// From memory.
    pub fn readiness(&self) -> Readiness {
        let (gate, ledger) = (self.of(&self.gate), self.of(&self.ledger));
        let lanes = if self.shared.lanes.are_running() { Status::Ok } else { Status::Down };
        let numbers = if self.shared.node.is_ours() { Status::Ok } else { Status::Down };
        let (workers, log) = (self.workers_status(), self.log_status());
        let jobs = if self.jobs_panicking().is_empty() { Status::Ok } else { Status::Panicking };
        let fresh = self.catalogue.lock().elapsed() < CATALOGUE_STALE_AFTER;
        let catalogue = if fresh { Status::Ok } else { Status::Stale };

        let gate_works = matches!(gate.status, Status::Ok | Status::Partly);
        let ledger_works = ledger.status == Status::Ok;
        let workers_work = matches!(workers, Status::Ok | Status::NotHere);
        let able = |able: bool| if able { Status::Ok } else { Status::Down };
        let web = |status| {
            if self.shared.settings.does(ProcessRole::Web) { status } else { Status::NotHere }
        };
        let sell = web(able(gate_works && lanes == Status::Ok && numbers == Status::Ok));
        let settle = able(gate_works && ledger_works && workers_work && log == Status::Ok);
        // Whatever is old is better than an empty page.
        let show = web(Status::Ok);
        let ready = if self.shared.settings.does(ProcessRole::Web) {
            sell == Status::Ok
        } else if self.shared.settings.does(ProcessRole::Worker) {
            // That the log does not drain may be the fault of others.
            gate_works && ledger_works && workers == Status::Ok
        } else {
            gate_works && ledger_works && jobs == Status::Ok
        };
        let seen = |name, seen: Seen| Part {
            name,
            status: seen.status,
            since_ms: Some(seen.since_ms),
            cause: seen.cause,
        };
        let part = |name, status| Part { name, status, since_ms: None, cause: None };
        let parts = vec![
            seen("gate", gate),
            part("lanes", lanes),
            part("numbers", numbers),
            seen("ledger", ledger),
            part("workers", workers),
            part("log", log),
            part("jobs", jobs),
            part("catalogue", catalogue),
            Part {
                cause: self.shared.alerts.handle().webhook().failing,
                ..part("alerts", self.alerts_status())
            },
        ];
        Readiness { ready, sell, settle, show, parts }
    }

    fn workers_status(&self) -> Status {
        match &self.shared.workers {
            None => Status::NotHere,
            Some(workers) if !workers.is_running() => Status::Down,
            Some(workers) if workers.is_paused() => Status::Paused,
            Some(_) => Status::Ok,
        }
    }

    fn log_status(&self) -> Status {
        if self.log_trouble().is_some() { Status::Stuck } else { Status::Ok }
    }

    /// Why the claim log is not as it should be: its oldest claim waits for too long, or it is half
    /// full. The latter matters because a full one admits nobody.
    fn log_trouble(&self) -> Option<String> {
        let LogSeen { backlog, oldest_waits_ms } = *self.log.lock();
        let age_ms_max = self.shared.settings.alerts.backlog_age_ms_max;
        let oldest_ms = oldest_waits_ms.unwrap_or(0);
        if oldest_ms > age_ms_max {
            let oldest_s = oldest_ms / 1_000;
            return Some(format!(
                "{backlog} claims wait for the ledger, the oldest for {oldest_s} s"
            ));
        }
        let claims_max = self.shared.settings.gate.log_claims_max;
        (backlog > claims_max / 2).then(|| {
            format!("{backlog} claims wait for the ledger; at {claims_max} nobody is admitted")
        })
    }

    fn alerts_status(&self) -> Status {
        let webhook = self.shared.alerts.handle().webhook();
        match webhook.failing {
            _ if !webhook.is_set => Status::NotSet,
            Some(_) => Status::Failing,
            None => Status::Ok,
        }
    }

    /// Alerts that the webhook has not taken yet.
    pub fn alerts_waiting(&self) -> usize {
        self.shared.alerts.handle().webhook().waiting
    }

    /// What the workers of this process do.
    pub fn workers(&self) -> WorkersState {
        let workers = self.shared.workers.as_ref();
        WorkersState {
            rate_per_s: self.shared.rate_per_s(),
            settled: workers.map_or(0, |workers| workers.settled()),
            running: workers.is_some_and(|workers| workers.is_running()),
            paused: workers.is_some_and(|workers| workers.is_paused()),
        }
    }

    /// The states that somebody was told of by this process and that are not over.
    pub fn open_alerts(&self) -> Vec<OpenAlert> {
        self.conditions.open_alerts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_engine::{NOW_MS, TestEngine};

    fn silent(partitions: usize, silent: usize) -> Option<Writable> {
        let cause = (silent > 0).then(|| "READONLY".to_owned());
        Some(Writable { partitions, silent, cause })
    }

    #[tokio::test]
    async fn what_nobody_has_looked_at_lately_is_not_ready() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let (engine, health) = (&shop.engine, &shop.engine.health);
        let long_ago = Instant::now().checked_sub(STALE_AFTER + Duration::from_secs(1));
        let Some(long_ago) = long_ago else { return };
        health.gate.lock().looked = long_ago;
        assert!(engine.health.readiness().ready, "nobody watches, and the opening was good");
        health.watched.store(true, Ordering::Relaxed);
        let readiness = engine.health.readiness();
        assert!(!readiness.ready && !readiness.is_up("gate"), "{readiness:?}");
        health.note_gate(silent(1, 0), NOW_MS);
        assert!(engine.health.readiness().ready);
    }

    #[tokio::test]
    async fn a_part_of_the_gate_that_is_away_stops_no_sale_and_none_of_it_does() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let (engine, health) = (&shop.engine, &shop.engine.health);
        health.note_gate(silent(16, 5), NOW_MS + 1);
        let readiness = engine.health.readiness();
        assert!(readiness.ready && readiness.sell == Status::Ok);
        let gate = &readiness.parts[0];
        assert_eq!((gate.status, gate.since_ms), (Status::Partly, Some(NOW_MS + 1)));
        let cause = "5 of 16 partitions cannot be written: READONLY";
        assert_eq!(gate.cause.as_deref(), Some(cause));
        for answer in [silent(16, 16), None] {
            health.note_gate(answer, NOW_MS + 2);
            let readiness = engine.health.readiness();
            assert!(!readiness.ready && readiness.settle == Status::Down);
            assert_eq!(readiness.show, Status::Ok);
            assert_eq!(readiness.parts[0].since_ms, Some(NOW_MS + 2), "since it began");
        }
    }

    #[tokio::test]
    async fn without_a_ledger_it_sells_and_does_not_settle() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let engine = &shop.engine;
        engine.health.note_ledger(Some("gone".into()), NOW_MS);
        let readiness = engine.health.readiness();
        assert!(readiness.ready && readiness.sell == Status::Ok);
        assert_eq!(readiness.settle, Status::Down);
    }

    #[tokio::test]
    async fn a_log_that_is_half_full_or_old_is_stuck() {
        let shop = TestEngine::without_a_sale(|settings| settings.gate.log_claims_max = 100).await;
        let engine = &shop.engine;
        let seen = |backlog, oldest_waits_ms| {
            *engine.health.log.lock() = LogSeen { backlog, oldest_waits_ms };
            engine.health.log_trouble()
        };
        assert_eq!(seen(0, None), None);
        assert_eq!(seen(50, Some(60_000)), None);
        assert!(seen(51, Some(1)).unwrap().contains("nobody is admitted"));
        assert!(seen(1, Some(60_001)).unwrap().contains("60 s"));
    }
}

//! Whether this process can sell, settle and show, as a watcher last saw it.
//!
//! | it can | if | who asks |
//! |---|---|---|
//! | sell | the gate can be written, its lanes run, order numbers can be given | balancers, about a web instance |
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
mod kept;
mod watch;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use gate::Writable;
use parking_lot::Mutex;
use sale::Millis;

use self::conditions::Conditions;
pub use self::conditions::OpenAlert;
pub(super) use self::{kept::Kept, watch::start};
use super::Engine;
use crate::settings::{Role, Settings};

/// What was last looked at longer ago is not known any more: the watcher itself may be stuck.
const STALE_AFTER: Duration = Duration::from_secs(10);
/// A catalogue that was not read anew for so long is still shown, and called stale.
const CATALOGUE_STALE_AFTER: Duration = Duration::from_secs(30);

/// How a part does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
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

impl Word {
    pub fn as_str(self) -> &'static str {
        match self {
            Word::Ok => "ok",
            Word::Partly => "partly",
            Word::Paused => "paused",
            Word::Stuck => "stuck",
            Word::Stale => "stale",
            Word::Failing => "failing",
            Word::Panicking => "panicking",
            Word::Down => "down",
            Word::Unknown => "unknown",
            Word::NotHere => "not_here",
            Word::NotSet => "not_set",
        }
    }
}

/// One part, as it was last seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    word: Word,
    /// Since when it is so, by the clock on the wall.
    since_ms: Millis,
    cause: Option<String>,
    looked: Instant,
}

impl Seen {
    fn ok(now_ms: Millis) -> Seen {
        Seen { word: Word::Ok, since_ms: now_ms, cause: None, looked: Instant::now() }
    }

    /// Answers whether it is so only since now.
    fn note(&mut self, word: Word, cause: Option<String>, now_ms: Millis) -> bool {
        let news = self.word != word;
        if news {
            self.since_ms = now_ms;
        }
        (self.word, self.cause, self.looked) = (word, cause, Instant::now());
        news
    }
}

/// The claim log as it was last seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogSeen {
    backlog: u64,
    oldest_waits_ms: Option<u64>,
}

pub struct Health {
    gate: Mutex<Seen>,
    ledger: Mutex<Seen>,
    log: Mutex<LogSeen>,
    catalogue: Mutex<Instant>,
    conditions: Conditions,
    /// What is in the file.
    kept: Mutex<Kept>,
    /// Set while the watcher runs: before that what is known is what the opening showed.
    watched: AtomicBool,
}

impl Health {
    /// Gate and ledger have just been opened.
    pub(super) fn new(settings: &Settings, kept: Kept, now_ms: Millis) -> Health {
        let alerts = &settings.alerts;
        let (raise, resolve) = (alerts.raise_after_ms, alerts.resolve_after_ms);
        let (raise, resolve) = (Duration::from_millis(raise), Duration::from_millis(resolve));
        Health {
            gate: Mutex::new(Seen::ok(now_ms)),
            ledger: Mutex::new(Seen::ok(now_ms)),
            log: Mutex::default(),
            catalogue: Mutex::new(Instant::now()),
            conditions: Conditions::new(kept.open.clone(), raise, resolve),
            kept: Mutex::new(kept),
            watched: false.into(),
        }
    }

    /// Everything is about to be stopped, and nobody is to be woken for it.
    pub(super) fn stop_watching(&self) {
        self.watched.store(false, Ordering::Relaxed);
    }

    /// The catalogue was read anew.
    pub(super) fn catalogue_is_fresh(&self) {
        *self.catalogue.lock() = Instant::now();
    }

    fn note_gate(&self, answer: Option<Writable>, now_ms: Millis) {
        let (word, cause) = match answer {
            Some(Writable { silent: 0, .. }) => (Word::Ok, None),
            Some(Writable { partitions, silent, cause }) if silent < partitions => {
                let cause = cause.unwrap_or_default();
                let text =
                    format!("{silent} of {partitions} partitions cannot be written: {cause}");
                (Word::Partly, Some(text))
            }
            Some(Writable { cause, .. }) => (Word::Down, cause.or_else(|| Some("it fails".into()))),
            None => (Word::Down, Some("no answer in time".into())),
        };
        note("gate", &self.gate, word, cause, now_ms);
    }

    fn note_ledger(&self, trouble: Option<String>, now_ms: Millis) {
        let word = if trouble.is_none() { Word::Ok } else { Word::Down };
        note("ledger", &self.ledger, word, trouble, now_ms);
    }

    fn of(&self, seen: &Mutex<Seen>) -> Seen {
        let mut seen = seen.lock().clone();
        let watched = self.watched.load(Ordering::Relaxed);
        if watched && seen.looked.elapsed() > STALE_AFTER {
            (seen.word, seen.cause) = (Word::Unknown, Some("nobody has looked lately".into()));
        }
        seen
    }
}

/// A change is said once.
fn note(part: &str, seen: &Mutex<Seen>, word: Word, cause: Option<String>, now_ms: Millis) {
    let (since_ms, said) = (seen.lock().since_ms, cause.clone());
    if !seen.lock().note(word, cause, now_ms) {
        return;
    }
    let lasted_ms = now_ms - since_ms;
    match word {
        Word::Ok => tracing::info!(part, lasted_ms, "it answers again"),
        _ => tracing::warn!(part, state = word.as_str(), cause = said, "it does not do its work"),
    }
}

/// A part, for those who ask.
#[derive(Clone, Debug)]
pub struct Part {
    pub name: &'static str,
    pub word: Word,
    /// Of parts that are watched: since when.
    pub since_ms: Option<Millis>,
    /// For operators; it may name hosts.
    pub cause: Option<String>,
}

/// What this process can do now.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// What it is for: selling, where it answers buyers.
    pub ready: bool,
    pub sell: Word,
    pub settle: Word,
    pub show: Word,
    pub parts: Vec<Part>,
}

impl Readiness {
    /// Does this part, or some of it, answer?
    pub fn is_up(&self, name: &str) -> bool {
        let part = self.parts.iter().find(|part| part.name == name);
        part.is_some_and(|part| matches!(part.word, Word::Ok | Word::Partly))
    }
}

impl Engine {
    /// From memory.
    pub fn readiness(&self) -> Readiness {
        let (gate, ledger) =
            (self.health.of(&self.health.gate), self.health.of(&self.health.ledger));
        let lanes = if self.lanes.are_running() { Word::Ok } else { Word::Down };
        let numbers = if self.coordination.node_is_ours() { Word::Ok } else { Word::Down };
        let (workers, log) = (self.workers_word(), self.log_word());
        let jobs = if self.jobs_panicking().is_empty() { Word::Ok } else { Word::Panicking };
        let fresh = self.health.catalogue.lock().elapsed() < CATALOGUE_STALE_AFTER;
        let catalogue = if fresh { Word::Ok } else { Word::Stale };

        let gate_works = matches!(gate.word, Word::Ok | Word::Partly);
        let ledger_works = ledger.word == Word::Ok;
        let workers_work = matches!(workers, Word::Ok | Word::NotHere);
        let able = |able: bool| if able { Word::Ok } else { Word::Down };
        let web = |word| if self.does(Role::Web) { word } else { Word::NotHere };
        let sell = web(able(gate_works && lanes == Word::Ok && numbers == Word::Ok));
        let settle = able(gate_works && ledger_works && workers_work && log == Word::Ok);
        // Whatever is old is better than an empty page.
        let show = web(Word::Ok);
        let ready = if self.does(Role::Web) {
            sell == Word::Ok
        } else if self.does(Role::Worker) {
            // That the log does not drain may be the fault of others.
            gate_works && ledger_works && workers == Word::Ok
        } else {
            gate_works && ledger_works && jobs == Word::Ok
        };
        let seen = |name, seen: Seen| Part {
            name,
            word: seen.word,
            since_ms: Some(seen.since_ms),
            cause: seen.cause,
        };
        let part = |name, word| Part { name, word, since_ms: None, cause: None };
        let parts = vec![
            seen("gate", gate),
            part("lanes", lanes),
            part("numbers", numbers),
            seen("ledger", ledger),
            part("workers", workers),
            part("log", log),
            part("jobs", jobs),
            part("catalogue", catalogue),
            Part { cause: self.alerts.webhook().failing, ..part("alerts", self.alerts_word()) },
        ];
        Readiness { ready, sell, settle, show, parts }
    }

    fn workers_word(&self) -> Word {
        match &self.workers {
            None => Word::NotHere,
            Some(workers) if !workers.is_running() => Word::Down,
            Some(workers) if workers.is_paused() => Word::Paused,
            Some(_) => Word::Ok,
        }
    }

    fn log_word(&self) -> Word {
        if self.log_trouble().is_some() { Word::Stuck } else { Word::Ok }
    }

    /// Why the claim log is not as it should be: its oldest claim waits for too long, or it is half
    /// full. The latter matters because a full one admits nobody.
    fn log_trouble(&self) -> Option<String> {
        let LogSeen { backlog, oldest_waits_ms } = *self.health.log.lock();
        let age_ms_max = self.settings.alerts.backlog_age_ms_max;
        let oldest_ms = oldest_waits_ms.unwrap_or(0);
        if oldest_ms > age_ms_max {
            let oldest_s = oldest_ms / 1_000;
            return Some(format!(
                "{backlog} claims wait for the ledger, the oldest for {oldest_s} s"
            ));
        }
        let claims_max = self.settings.gate.log_claims_max;
        (backlog > claims_max / 2).then(|| {
            format!("{backlog} claims wait for the ledger; at {claims_max} nobody is admitted")
        })
    }

    fn alerts_word(&self) -> Word {
        let webhook = self.alerts.webhook();
        match webhook.failing {
            _ if !webhook.is_set => Word::NotSet,
            Some(_) => Word::Failing,
            None => Word::Ok,
        }
    }

    /// The states that somebody was told of by this process and that are not over.
    pub fn open_alerts(&self) -> Vec<OpenAlert> {
        self.health.conditions.open_alerts()
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
        let night = TestEngine::without_a_sale(|_| {}).await;
        let (engine, health) = (&night.engine, &night.engine.health);
        let long_ago = Instant::now().checked_sub(STALE_AFTER + Duration::from_secs(1));
        let Some(long_ago) = long_ago else { return };
        health.gate.lock().looked = long_ago;
        assert!(engine.readiness().ready, "nobody watches, and the opening was good");
        health.watched.store(true, Ordering::Relaxed);
        let readiness = engine.readiness();
        assert!(!readiness.ready && !readiness.is_up("gate"), "{readiness:?}");
        health.note_gate(silent(1, 0), NOW_MS);
        assert!(engine.readiness().ready);
    }

    #[tokio::test]
    async fn a_part_of_the_gate_that_is_away_stops_no_sale_and_none_of_it_does() {
        let night = TestEngine::without_a_sale(|_| {}).await;
        let (engine, health) = (&night.engine, &night.engine.health);
        health.note_gate(silent(16, 5), NOW_MS + 1);
        let readiness = engine.readiness();
        assert!(readiness.ready && readiness.sell == Word::Ok);
        let gate = &readiness.parts[0];
        assert_eq!((gate.word, gate.since_ms), (Word::Partly, Some(NOW_MS + 1)));
        let cause = "5 of 16 partitions cannot be written: READONLY";
        assert_eq!(gate.cause.as_deref(), Some(cause));
        for answer in [silent(16, 16), None] {
            health.note_gate(answer, NOW_MS + 2);
            let readiness = engine.readiness();
            assert!(!readiness.ready && readiness.settle == Word::Down);
            assert_eq!(readiness.show, Word::Ok);
            assert_eq!(readiness.parts[0].since_ms, Some(NOW_MS + 2), "since it began");
        }
    }

    #[tokio::test]
    async fn without_a_ledger_it_sells_and_does_not_settle() {
        let night = TestEngine::without_a_sale(|_| {}).await;
        let engine = &night.engine;
        engine.health.note_ledger(Some("gone".into()), NOW_MS);
        let readiness = engine.readiness();
        assert!(readiness.ready && readiness.sell == Word::Ok);
        assert_eq!(readiness.settle, Word::Down);
    }

    #[tokio::test]
    async fn a_log_that_is_half_full_or_old_is_stuck() {
        let night = TestEngine::without_a_sale(|settings| settings.gate.log_claims_max = 100).await;
        let engine = &night.engine;
        let seen = |backlog, oldest_waits_ms| {
            *engine.health.log.lock() = LogSeen { backlog, oldest_waits_ms };
            engine.log_trouble()
        };
        assert_eq!(seen(0, None), None);
        assert_eq!(seen(50, Some(60_000)), None);
        assert!(seen(51, Some(1)).unwrap().contains("nobody is admitted"));
        assert!(seen(1, Some(60_001)).unwrap().contains("60 s"));
    }
}

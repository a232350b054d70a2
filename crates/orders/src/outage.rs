//! Waiting for something that does not answer, without filling the log file with it.

use std::{
    fmt,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::meters;

/// The workers were told to stop while they waited.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stopped;

/// Says when the workers must stop. Each loop owns one.
#[derive(Clone, Debug)]
pub(crate) struct StopSignal(pub(crate) watch::Receiver<bool>);

impl StopSignal {
    /// Comes back when the workers must stop; also when nobody is left who could say so.
    pub(crate) async fn stopped(&mut self) {
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// False if the workers must stop.
    pub(crate) async fn sleep(&mut self, time: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.stopped() => false,
            () = tokio::time::sleep(time) => true,
        }
    }
}

/// Whether one dependency answers. Shared by the loops, so that one outage is one outage however
/// many of them run into it: said once when it starts, once when it ends.
pub(crate) struct Outage {
    what: &'static str,
    trouble: Mutex<Option<Trouble>>,
}

struct Trouble {
    since: Instant,
    cause: String,
    /// It was met by somebody who only wanted to read.
    reading: bool,
}

impl Outage {
    pub(crate) fn new(what: &'static str) -> Self {
        Outage { what, trouble: Mutex::new(None) }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.trouble.lock().is_some()
    }

    pub(crate) fn cause(&self) -> Option<String> {
        self.trouble.lock().as_ref().map(|trouble| trouble.cause.clone())
    }

    pub(crate) fn begin(&self, cause: &dyn fmt::Display) {
        self.met(cause, false);
    }

    /// It could not be read.
    pub(crate) fn begin_reading(&self, cause: &dyn fmt::Display) {
        self.met(cause, true);
    }

    fn met(&self, cause: &dyn fmt::Display, reading: bool) {
        let mut trouble = self.trouble.lock();
        match &mut *trouble {
            Some(known) => known.reading &= reading,
            None => {
                let (since, cause) = (Instant::now(), cause.to_string());
                meters::paused(self.what, true);
                warn!(
                    what = self.what,
                    cause,
                    "this dependency does not answer: what needs it waits, and no claim is lost"
                );
                *trouble = Some(Trouble { since, cause, reading });
            }
        }
    }

    pub(crate) fn end(&self) {
        // The lock is uncontended and this runs once per batch: no need for anything cleverer.
        if let Some(trouble) = self.trouble.lock().take() {
            meters::paused(self.what, false);
            let lasted_ms = trouble.since.elapsed().as_millis() as u64;
            info!(what = self.what, lasted_ms, "the dependency answers again: what waited goes on");
        }
    }

    /// It was read. That says nothing to those who could not write: a ledger that is locked, full or
    /// made read-only lets everybody read.
    pub(crate) fn end_reading(&self) {
        if self.trouble.lock().as_ref().is_some_and(|trouble| trouble.reading) {
            self.end();
        }
    }
}

/// Pauses that double from `min` to `max`, with jitter so that a fleet of workers does not knock
/// on a waking ledger all at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    next_ms: u64,
    max_ms: u64,
}

impl Backoff {
    pub(crate) fn new(min_ms: u64, max_ms: u64) -> Self {
        assert!(0 < min_ms && min_ms <= max_ms, "validated with the options");
        Backoff { next_ms: min_ms, max_ms }
    }

    /// Between half and all of the current pause; the next one is twice as long.
    pub(crate) fn next(&mut self) -> Duration {
        let full = self.next_ms;
        self.next_ms = (full * 2).min(self.max_ms);
        Duration::from_millis(fastrand::u64(full.div_ceil(2)..=full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let mut backoff = Backoff::new(10, 35);
        for full in [10, 20, 35, 35] {
            let pause = backoff.next().as_millis() as u64;
            assert!((full / 2..=full).contains(&pause), "{pause} of {full}");
        }
    }

    #[test]
    fn a_ledger_that_can_only_be_read_is_still_away_for_those_who_write() {
        let outage = Outage::new("ledger");
        outage.begin_reading(&"gone");
        outage.end_reading();
        assert!(!outage.is_on());
        outage.begin(&"locked");
        outage.begin_reading(&"gone as well");
        outage.end_reading();
        assert_eq!(outage.cause().as_deref(), Some("locked"));
        outage.end();
        assert!(!outage.is_on());
    }

    #[test]
    fn an_outage_starts_and_ends_once() {
        let outage = Outage::new("ledger");
        outage.begin(&"gone");
        outage.begin(&"still gone");
        assert!(outage.is_on());
        outage.end();
        outage.end();
        assert!(!outage.is_on());
    }
}

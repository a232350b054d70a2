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
    since: Mutex<Option<Instant>>,
}

impl Outage {
    pub(crate) fn new(what: &'static str) -> Self {
        Outage { what, since: Mutex::new(None) }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.since.lock().is_some()
    }

    pub(crate) fn begin(&self, cause: &dyn fmt::Display) {
        let mut since = self.since.lock();
        if since.is_none() {
            *since = Some(Instant::now());
            meters::paused(self.what, true);
            warn!(what = self.what, %cause, "the workers pause until it answers again");
        }
    }

    pub(crate) fn end(&self) {
        // The lock is uncontended and this runs once per batch: no need for anything cleverer.
        if let Some(since) = self.since.lock().take() {
            meters::paused(self.what, false);
            let lasted_ms = since.elapsed().as_millis() as u64;
            info!(what = self.what, lasted_ms, "the workers go on");
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

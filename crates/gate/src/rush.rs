//! Whether there is a crowd at this process's door right now. Nothing depends on it but who goes
//! first: while it lasts, workers in the same process stand back.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// A batch that admits so many is a crowd's.
const CLAIMS: usize = 8;
/// The crowd is thought to be there for this long after such a batch.
const LASTS: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Rush {
    since: Instant,
    /// Until when, in milliseconds.
    until_ms: AtomicU64,
}

impl Default for Rush {
    fn default() -> Self {
        Rush { since: Instant::now(), until_ms: AtomicU64::new(0) }
    }
}

impl Rush {
    /// So many were admitted together.
    pub(crate) fn note(&self, admitted: usize) {
        if admitted >= CLAIMS {
            let until = self.since.elapsed() + LASTS;
            self.until_ms.store(until.as_millis() as u64, Relaxed);
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        (self.since.elapsed().as_millis() as u64) < self.until_ms.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_many_at_once_and_passes() {
        let rush = Rush::default();
        rush.note(CLAIMS - 1);
        assert!(!rush.is_on());
        rush.note(CLAIMS);
        let noted = Instant::now();
        // If this thread was held up meanwhile, the crowd may have passed.
        assert!(rush.is_on() || noted.elapsed() >= LASTS / 2);
        while rush.is_on() {
            std::thread::yield_now();
            assert!(noted.elapsed() < Duration::from_secs(60));
        }
    }
}

//! How fast claims become orders, for telling a buyer how long it will take.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Work older than about this much busy time no longer counts.
const MEMORY: Duration = Duration::from_secs(1);

/// Claims per second of *busy* time. Idle time does not count: a quiet hour before the opening
/// must not make the first buyer believe the workers are slow.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    /// An `f64` by its bits; zero until something was settled. Written by the main loop only.
    per_s: AtomicU64,
    /// All that were settled since the start, for whoever wants to know how many there were in a second.
    claims: AtomicU64,
}

impl Rate {
    pub(crate) fn per_s(&self) -> f64 {
        f64::from_bits(self.per_s.load(Ordering::Relaxed))
    }

    pub(crate) fn claims(&self) -> u64 {
        self.claims.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, claims: usize) {
        self.claims.fetch_add(claims as u64, Ordering::Relaxed);
    }

    /// `claims` were settled in `busy`. Long spans weigh more than short ones.
    pub(crate) fn record(&self, claims: usize, busy: Duration) {
        if claims == 0 {
            return;
        }
        let seconds = busy.as_secs_f64().max(1e-6);
        let sample = claims as f64 / seconds;
        let old = self.per_s();
        let weight = if old == 0.0 { 1.0 } else { 1.0 - (-seconds / MEMORY.as_secs_f64()).exp() };
        self.per_s.store((old + weight * (sample - old)).to_bits(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_work_and_not_the_silence() {
        let rate = Rate::default();
        assert_eq!(rate.per_s(), 0.0);
        rate.record(1_000, Duration::from_millis(100));
        assert_eq!(rate.per_s(), 10_000.0);
        rate.record(0, Duration::from_secs(100));
        assert_eq!(rate.per_s(), 10_000.0);
        for _ in 0..100 {
            rate.record(100, Duration::from_millis(100));
        }
        assert!((999.0..1_100.0).contains(&rate.per_s()), "{}", rate.per_s());
    }
}

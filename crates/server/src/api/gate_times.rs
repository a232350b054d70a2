//! How long the gate took to answer, second by second: a histogram that can be read while it grows.
//!
//! The recorder of metrics has one for `/metrics`, with few buckets and no way to ask for a quantile. Here
//! buckets grow by a quarter of an octave, so a quantile is at most a fifth too large, and recording is one
//! addition to one number, whoever reads meanwhile.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Quarters of 27 octaves of microseconds: up to two minutes.
const BUCKETS: usize = 27 * 4;

pub(super) struct GateTimes([AtomicU64; BUCKETS]);

/// What had been counted at one instant.
#[derive(Clone)]
pub(super) struct Counted([u64; BUCKETS]);

fn bucket(micros: u64) -> usize {
    let micros = micros.max(4);
    let octave = micros.ilog2();
    let quarter = (micros >> (octave - 2)) & 3;
    ((octave as usize - 2) * 4 + quarter as usize).min(BUCKETS - 1)
}

/// The largest time that falls into a bucket.
fn top(bucket: usize) -> u64 {
    let (octave, quarter) = (bucket / 4 + 2, bucket as u64 % 4);
    ((5 + quarter) << (octave - 2)) - 1
}

impl GateTimes {
    pub(super) fn new() -> GateTimes {
        GateTimes(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    pub(super) fn record(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.0[bucket(micros)].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counted(&self) -> Counted {
        Counted(std::array::from_fn(|n| self.0[n].load(Ordering::Relaxed)))
    }
}

impl Counted {
    /// The time, in microseconds, within which this share was answered since then; `None` if nobody was.
    pub(super) fn quantile_since(&self, before: &Counted, share: f64) -> Option<u64> {
        let since = |n: usize| self.0[n].saturating_sub(before.0[n]);
        let all: u64 = (0..BUCKETS).map(since).sum();
        let wanted = ((all as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        (0..BUCKETS).find_map(|n| {
            seen += since(n);
            (all > 0 && seen >= wanted).then(|| top(n))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_falls_into_a_bucket_that_is_little_larger() {
        for micros in (4..5_000).chain([65_536, 1_000_000, 59_999_999]) {
            let top = top(bucket(micros));
            assert!(top >= micros && top <= micros + micros / 4, "{micros} -> {top}");
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_of_what_came_since() {
        let times = GateTimes::new();
        times.record(Duration::from_secs(9));
        let before = times.counted();
        assert_eq!(times.counted().quantile_since(&before, 0.5), None);
        for _ in 0..98 {
            times.record(Duration::from_micros(300));
        }
        times.record(Duration::from_millis(40));
        times.record(Duration::from_millis(50));
        let now = times.counted();
        let (p50, p99) = (now.quantile_since(&before, 0.5), now.quantile_since(&before, 0.99));
        assert!((300..=375).contains(&p50.unwrap()), "{p50:?}");
        assert!((40_000..=50_000).contains(&p99.unwrap()), "{p99:?}");
    }
}

//! How many claims may reach the gate per second, over all lanes of a process: `lane.rate_per_s`.
//!
//! Lanes ask once per batch, so one lock for all of them costs nothing that could be measured.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use sale::ItemId;

use crate::LaneOptions;

/// What was not used may be caught up with for so long; more at once would be no even pace.
const BURST: Duration = Duration::from_millis(20);
/// A wait is looked at again after this time, so that a lane that is stopped does not sit it out.
const WAIT_MAX: Duration = Duration::from_millis(20);

pub(crate) struct Pace {
    began: Instant,
    /// How long one claim takes.
    step_ns: u64,
    /// Until when claims that went have used it up, in nanoseconds since the start.
    until_ns: Mutex<u64>,
}

impl Pace {
    /// `None` if there is no limit.
    pub(crate) fn new(rate_per_s: u32) -> Option<Pace> {
        let step_ns = 1_000_000_000_u64.checked_div(rate_per_s.into())?;
        Some(Pace { began: Instant::now(), step_ns, until_ns: Mutex::new(0) })
    }

    /// How many of so many may go now; if none may, how long to wait before one asks again.
    pub(crate) fn take(&self, wanted: usize, now: Instant) -> Result<usize, Duration> {
        let now_ns = now.saturating_duration_since(self.began).as_nanos() as u64;
        let burst_ns = (BURST.as_nanos() as u64).max(self.step_ns);
        let mut until_ns = self.until_ns.lock();
        // What was not used is caught up with, but no more than a burst of it.
        let from_ns = (*until_ns).max(now_ns.saturating_sub(burst_ns - self.step_ns));
        let free = (now_ns + self.step_ns).saturating_sub(from_ns) / self.step_ns;
        match usize::try_from(free).unwrap_or(usize::MAX).min(wanted) {
            0 => Err(Duration::from_nanos(from_ns - now_ns).min(WAIT_MAX)),
            taken => {
                *until_ns = from_ns + taken as u64 * self.step_ns;
                Ok(taken)
            }
        }
    }
}

impl LaneOptions {
    /// Claims that may wait in all lanes: no more than go in the time that one may wait.
    fn waiting_max(&self) -> usize {
        let in_time = u64::from(self.rate_per_s).saturating_mul(self.wait_ms_max) / 1_000;
        usize::try_from(in_time).unwrap_or(usize::MAX).max(1)
    }
}

/// Claims that wait, by item. Items whose ids are this far apart are counted together, which is only looked
/// at where a pace is set, and then errs towards *too hot*.
struct WaitingFor([AtomicU32; WAITING_ITEMS]);

const WAITING_ITEMS: usize = 1_024;

impl WaitingFor {
    fn of(&self, item: ItemId) -> &AtomicU32 {
        &self.0[item.0 as usize % WAITING_ITEMS]
    }
}

/// The pace of a process, and who waits because of it.
pub(crate) struct Shaping {
    pub(crate) pace: Pace,
    waiting_max: usize,
    pub(crate) waiting: AtomicUsize,
    waiting_for: WaitingFor,
}

impl Shaping {
    pub(crate) fn new(options: &LaneOptions) -> Option<Arc<Shaping>> {
        let pace = Pace::new(options.rate_per_s)?;
        let waiting_for = WaitingFor([const { AtomicU32::new(0) }; WAITING_ITEMS]);
        let waiting_max = options.waiting_max();
        Some(Arc::new(Shaping { pace, waiting_max, waiting: AtomicUsize::new(0), waiting_for }))
    }

    /// Half as many wait as may: a draw does not fill more, so that nobody is late because of it.
    pub(crate) fn is_half_full(&self) -> bool {
        self.waiting.load(Relaxed).saturating_mul(2) >= self.waiting_max
    }

    /// As many wait as may.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.load(Relaxed) >= self.waiting_max
    }

    /// Is there any use in waiting for one of so many units?
    pub(crate) fn is_hopeless(&self, item: ItemId, left: Option<i64>) -> bool {
        let before = i64::from(self.waiting_for.of(item).load(Relaxed));
        self.is_full() || left.is_some_and(|left| before > left)
    }

    pub(crate) fn entered(&self, item: ItemId) {
        self.waiting.fetch_add(1, Relaxed);
        self.waiting_for.of(item).fetch_add(1, Relaxed);
    }

    pub(crate) fn left(&self, item: ItemId) {
        self.waiting.fetch_sub(1, Relaxed);
        self.waiting_for.of(item).fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_go_in_a_second_however_they_are_asked_for() {
        for (rate, wanted) in [(1_000, 256), (1_000, 1), (50, 7), (3, 5), (1, 1)] {
            let pace = Pace::new(rate).unwrap();
            let (mut now, mut gone) = (pace.began, 0);
            let end = pace.began + Duration::from_secs(10);
            while now < end {
                match pace.take(wanted, now) {
                    Ok(taken) => gone += taken,
                    Err(wait) => {
                        assert!(wait > Duration::ZERO && wait <= WAIT_MAX, "{wait:?}");
                        now += wait;
                    }
                }
            }
            let due = 10 * rate as usize;
            assert!(gone >= due && gone <= due + due / 100 + 2, "{rate}/s, {wanted}: {gone}");
        }
        assert!(Pace::new(0).is_none());
    }

    #[test]
    fn a_pause_is_caught_up_with_by_a_burst_and_no_more() {
        let pace = Pace::new(1_000).unwrap();
        let late = pace.began + Duration::from_secs(60);
        assert_eq!(pace.take(10_000, late), Ok(20));
        assert!(pace.take(1, late).is_err());
    }
}

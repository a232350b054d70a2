//! Who has asked how often lately: a table of fixed size, looked into by every request.
//!
//! What is kept of somebody is one number, the time at which all that they asked for will be forgotten (the
//! *theoretical arrival time* of the GCRA): it grows by the same step with each request, and may lie at most
//! a burst ahead of now. Once it has passed, it says nothing, and its place is free. So nothing has to be
//! pruned, and nothing is allocated after the start.
//!
//! A key has four places to be in, chosen by a hash that nobody outside can foresee. If all of them are
//! taken, the one that would be free next is given away: whoever asks most stays remembered longest. An
//! attacker with a million addresses drives out those who asked once, who lose nothing by it but the memory
//! that they did; nobody is ever limited for what another has asked, but by a collision of 32 bits.
//!
//! This is our own and not the crate `governor`, whose keyed limiter is a map that grows with its keys until
//! somebody prunes it: a million addresses would be a million entries, and pruning visits all of them.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const PLACES: usize = 4;

/// Four places, which fit one line of a processor's cache with their lock. The lock is held for a few
/// nanoseconds, by those whose keys are here.
#[derive(Default)]
#[repr(align(64))]
struct Bucket(Mutex<Places>);

#[derive(Default)]
struct Places {
    tags: [u32; PLACES],
    /// When all that was asked is forgotten, in nanoseconds since the start of the table; in the past: free.
    until_ns: [u64; PLACES],
}

pub(crate) struct Memory {
    began: Instant,
    buckets: Box<[Bucket]>,
}

/// How one request was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// This many more could come at once.
    Within { left: u32 },
    /// One could come after this time.
    Over { wait: Duration },
}

impl Memory {
    /// Room for at least so many keys.
    pub(crate) fn new(keys_max: usize) -> Memory {
        let buckets = keys_max.div_ceil(PLACES).next_power_of_two();
        Memory { began: Instant::now(), buckets: (0..buckets).map(|_| Bucket::default()).collect() }
    }

    /// Count one request of this key, unless it is one too many. `step_ns`: how long one takes to be
    /// forgotten.
    pub(crate) fn count(&self, key: u64, step_ns: u64, burst: u32, now: Instant) -> Counted {
        let now_ns = now.saturating_duration_since(self.began).as_nanos() as u64;
        let (tag, bucket) = ((key >> 32) as u32, key as usize & (self.buckets.len() - 1));
        let mut places = self.buckets[bucket].0.lock();
        let place = places.find(tag, now_ns);
        let until_ns = places.until_ns[place].max(now_ns) + step_ns;
        let ahead_ns = until_ns - now_ns;
        let ahead_ns_max = step_ns * u64::from(burst);
        if ahead_ns > ahead_ns_max {
            return Counted::Over { wait: Duration::from_nanos(ahead_ns - ahead_ns_max) };
        }
        places.until_ns[place] = until_ns;
        Counted::Within { left: ((ahead_ns_max - ahead_ns) / step_ns) as u32 }
    }
}

impl Places {
    /// The place of this tag; if it has none, it is given the one that is free, or would be so next.
    fn find(&mut self, tag: u32, now_ns: u64) -> usize {
        let known = |place: &usize| self.tags[*place] == tag && self.until_ns[*place] > now_ns;
        if let Some(place) = (0..PLACES).find(known) {
            return place;
        }
        let place = (0..PLACES).min_by_key(|place| self.until_ns[*place]).unwrap_or(0);
        self.tags[place] = tag;
        self.until_ns[place] = 0;
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_NS: u64 = 1_000_000;

    fn key(n: u64) -> u64 {
        // Any mixing will do: what matters is that keys differ in both halves.
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }

    #[test]
    fn a_burst_at_once_and_then_one_per_step() {
        let memory = Memory::new(100);
        let at = |ms: u64| memory.began + Duration::from_millis(ms);
        let count = |ms| memory.count(key(1), STEP_NS, 3, at(ms));
        for left in [2, 1, 0] {
            assert_eq!(count(10), Counted::Within { left });
        }
        assert_eq!(count(10), Counted::Over { wait: Duration::from_millis(1) });
        assert_eq!(count(10), Counted::Over { wait: Duration::from_millis(1) }, "not counted");
        assert_eq!(count(11), Counted::Within { left: 0 });
        assert!(matches!(count(11), Counted::Over { .. }));
        assert_eq!(count(1_000), Counted::Within { left: 2 }, "all is forgotten");
        assert_eq!(memory.count(key(2), STEP_NS, 3, at(11)), Counted::Within { left: 2 });
    }

    #[test]
    fn a_clock_that_is_behind_another_thread_s_does_no_harm() {
        let memory = Memory::new(1);
        let before = memory.began.checked_sub(Duration::from_secs(1)).unwrap_or(memory.began);
        assert_eq!(memory.count(1, STEP_NS, 1, before), Counted::Within { left: 0 });
        assert!(matches!(memory.count(1, STEP_NS, 1, before), Counted::Over { .. }));
    }

    #[test]
    fn a_million_addresses_limit_nobody_and_free_nobody_who_asks_too_often() {
        let memory = Memory::new(1_024);
        let now = memory.began + Duration::from_secs(1);
        let (burst, flooding) = (100, key(u64::MAX));
        for _ in 0..burst {
            assert!(matches!(memory.count(flooding, STEP_NS, burst, now), Counted::Within { .. }));
        }
        for n in 0..1_000_000 {
            let counted = memory.count(key(n), STEP_NS, burst, now);
            assert_eq!(counted, Counted::Within { left: burst - 1 }, "the first of address {n}");
        }
        let counted = memory.count(flooding, STEP_NS, burst, now);
        assert!(matches!(counted, Counted::Over { .. }), "remembered through all of them");
        assert_eq!(size_of::<Bucket>(), 64);
    }
}

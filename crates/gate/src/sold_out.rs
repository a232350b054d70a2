//! The sold-out cache: the only cache on the claim path, and it can only say no.
//!
//! A "no" lives at most `age_ms_max` and carries the version of the stock it was read at. When
//! units come back, the version grows and older answers, also those still on their way, no longer
//! count. So a stale "no" is corrected at once where the change is heard of, and within a second where it
//! does not. The age is measured by the machine's own time, which no step of the clock changes.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::RwLock;
use sale::ItemId;

#[derive(Debug)]
pub struct SoldOut {
    /// Times in here are counted from it.
    since: Instant,
    age_max: Duration,
    /// One entry per item that was ever sold out here, removed when the item leaves the gate. The
    /// lock is taken for writing only to add or remove an item.
    items: RwLock<HashMap<ItemId, No>>,
}

#[derive(Debug, Default)]
struct No {
    /// Until when the answer may be given, in microseconds; zero: no answer.
    until_us: AtomicU64,
    /// The newest version of the stock known here.
    version: AtomicU64,
}

impl SoldOut {
    pub fn new(age_ms_max: u64) -> Self {
        SoldOut {
            since: Instant::now(),
            age_max: Duration::from_millis(age_ms_max),
            items: RwLock::default(),
        }
    }

    pub fn says_no(&self, item: ItemId, now: Instant) -> bool {
        let items = self.items.read();
        let is_young = |no: &No| self.micros(now) < no.until_us.load(Ordering::Acquire);
        items.get(&item).is_some_and(is_young)
    }

    /// The gate said at `version` that nothing is left.
    pub fn put(&self, item: ItemId, version: u64, now: Instant) {
        let until_us = self.micros(now + self.age_max);
        if let Some(no) = self.items.read().get(&item) {
            return no.put(version, until_us);
        }
        self.items.write().entry(item).or_default().put(version, until_us);
    }

    fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.since).as_micros() as u64
    }

    /// Units came back, at `version`.
    pub fn clear(&self, item: ItemId, version: u64) {
        if let Some(no) = self.items.read().get(&item) {
            return no.clear(version);
        }
        // Remember the version even so: a "no" from before may still be on its way.
        self.items.write().entry(item).or_default().clear(version);
    }

    /// The item has left the gate, or starts a new epoch, with versions counted anew.
    pub fn forget(&self, item: ItemId) {
        self.items.write().remove(&item);
    }
}

impl No {
    fn put(&self, version: u64, until_us: u64) {
        if self.version.fetch_max(version, Ordering::AcqRel) <= version {
            self.until_us.store(until_us, Ordering::Release);
            // Units may have come back between the two steps; then the answer is withdrawn.
            if self.version.load(Ordering::Acquire) > version {
                self.until_us.store(0, Ordering::Release);
            }
        }
    }

    fn clear(&self, version: u64) {
        if self.version.fetch_max(version, Ordering::AcqRel) < version {
            self.until_us.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: ItemId = ItemId(42);

    #[test]
    fn a_no_ages() {
        let cache = SoldOut::new(1_000);
        let at = |ms| cache.since + Duration::from_millis(ms);
        assert!(!cache.says_no(ITEM, at(0)));
        cache.put(ITEM, 7, at(0));
        assert!(cache.says_no(ITEM, at(999)));
        assert!(!cache.says_no(ITEM, at(1_000)));
    }

    #[test]
    fn units_that_come_back_outrun_an_older_no() {
        let cache = SoldOut::new(1_000);
        let at = |ms| cache.since + Duration::from_millis(ms);
        cache.put(ITEM, 7, at(0));
        cache.clear(ITEM, 8);
        assert!(!cache.says_no(ITEM, at(1)));
        cache.put(ITEM, 7, at(1));
        assert!(!cache.says_no(ITEM, at(2)), "this answer was read before the units came back");
        cache.put(ITEM, 9, at(3));
        assert!(cache.says_no(ITEM, at(4)));
    }

    #[test]
    fn a_change_may_be_heard_of_before_the_first_no() {
        let cache = SoldOut::new(1_000);
        cache.clear(ITEM, 8);
        cache.put(ITEM, 7, cache.since);
        assert!(!cache.says_no(ITEM, cache.since));
    }
}

//! The sold-out cache: the only cache on the claim path, and it can only say no.
//!
//! A "no" lives at most `age_ms_max` and carries the version of the stock it was read at. When
//! units come back, the version grows and older answers, also those still on their way, no longer
//! count. So a stale "no" is corrected at once where the news arrives, and within a second where it
//! does not.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
};

use parking_lot::RwLock;
use sale::{ItemId, Millis};

#[derive(Debug)]
pub struct SoldOut {
    age_ms_max: Millis,
    /// One entry per item that was ever sold out here, removed when the item leaves the gate. The
    /// lock is taken for writing only to add or remove an item.
    items: RwLock<HashMap<ItemId, No>>,
}

#[derive(Debug, Default)]
struct No {
    /// Until when the answer may be given; zero: no answer.
    until_ms: AtomicI64,
    /// The newest version of the stock known here.
    version: AtomicU64,
}

impl SoldOut {
    pub fn new(age_ms_max: Millis) -> Self {
        SoldOut { age_ms_max, items: RwLock::default() }
    }

    pub fn says_no(&self, item: ItemId, now_ms: Millis) -> bool {
        let items = self.items.read();
        items.get(&item).is_some_and(|no| now_ms < no.until_ms.load(Ordering::Acquire))
    }

    /// The gate said at `version` that nothing is left.
    pub fn put(&self, item: ItemId, version: u64, now_ms: Millis) {
        if let Some(no) = self.items.read().get(&item) {
            return no.put(version, now_ms + self.age_ms_max);
        }
        self.items.write().entry(item).or_default().put(version, now_ms + self.age_ms_max);
    }

    /// Units came back, at `version`.
    pub fn clear(&self, item: ItemId, version: u64) {
        if let Some(no) = self.items.read().get(&item) {
            return no.clear(version);
        }
        // Remember the version even so: a "no" from before may still be on its way.
        self.items.write().entry(item).or_default().clear(version);
    }

    /// The item has left the gate, or starts a new life with versions counted anew.
    pub fn forget(&self, item: ItemId) {
        self.items.write().remove(&item);
    }
}

impl No {
    fn put(&self, version: u64, until_ms: Millis) {
        if self.version.fetch_max(version, Ordering::AcqRel) <= version {
            self.until_ms.store(until_ms, Ordering::Release);
            // Units may have come back between the two steps; then the answer is withdrawn.
            if self.version.load(Ordering::Acquire) > version {
                self.until_ms.store(0, Ordering::Release);
            }
        }
    }

    fn clear(&self, version: u64) {
        if self.version.fetch_max(version, Ordering::AcqRel) < version {
            self.until_ms.store(0, Ordering::Release);
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
        assert!(!cache.says_no(ITEM, 0));
        cache.put(ITEM, 7, 0);
        assert!(cache.says_no(ITEM, 999));
        assert!(!cache.says_no(ITEM, 1_000));
    }

    #[test]
    fn units_that_come_back_outrun_an_older_no() {
        let cache = SoldOut::new(1_000);
        cache.put(ITEM, 7, 0);
        cache.clear(ITEM, 8);
        assert!(!cache.says_no(ITEM, 1));
        cache.put(ITEM, 7, 1);
        assert!(!cache.says_no(ITEM, 2), "this answer was read before the units came back");
        cache.put(ITEM, 9, 3);
        assert!(cache.says_no(ITEM, 4));
    }

    #[test]
    fn news_may_arrive_before_the_first_no() {
        let cache = SoldOut::new(1_000);
        cache.clear(ITEM, 8);
        cache.put(ITEM, 7, 0);
        assert!(!cache.says_no(ITEM, 1));
    }
}

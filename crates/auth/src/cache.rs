//! Remembers what was verified, by the hash of the token, until it expires.
//!
//! Two generations instead of a list of uses: entries go into the young one; when it holds half of
//! the maximum, it becomes the old one and the old one is dropped whole. What is asked for moves to
//! the young one again, so that what is in use stays. Every step is O(1), and there is nothing to
//! sweep.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use sale::Millis;

use crate::TokenHash;

pub(crate) struct TokenCache<T> {
    generations: Mutex<Generations<T>>,
    young_max: usize,
}

struct Generations<T> {
    young: HashMap<TokenHash, Entry<T>>,
    old: HashMap<TokenHash, Entry<T>>,
}

#[derive(Clone)]
struct Entry<T> {
    value: T,
    expires_ms: Millis,
    /// The same by a clock that nobody sets: one that steps back must not give a token that was
    /// revoked another hour.
    since: Instant,
    lives: Duration,
}

impl<T: Clone> TokenCache<T> {
    /// Holds at most `max` entries; none if that is below two.
    pub(crate) fn new(max: usize) -> Self {
        let empty = Generations { young: HashMap::new(), old: HashMap::new() };
        TokenCache { generations: Mutex::new(empty), young_max: max / 2 }
    }

    pub(crate) fn get(&self, hash: &TokenHash, now_ms: Millis) -> Option<T> {
        let mut generations = self.generations.lock();
        if let Some(entry) = generations.young.get(hash) {
            return entry.value_at(now_ms);
        }
        let entry = generations.old.remove(hash)?;
        let value = entry.value_at(now_ms)?;
        generations.add(*hash, entry, self.young_max);
        Some(value)
    }

    pub(crate) fn put(&self, hash: TokenHash, value: T, now_ms: Millis, expires_ms: Millis) {
        if self.young_max > 0 {
            let lives = Duration::from_millis(expires_ms.saturating_sub(now_ms).max(0) as u64);
            let entry = Entry { value, expires_ms, since: Instant::now(), lives };
            self.generations.lock().add(hash, entry, self.young_max);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let generations = self.generations.lock();
        generations.young.len() + generations.old.len()
    }

    pub(crate) fn clear(&self) {
        let mut generations = self.generations.lock();
        generations.young.clear();
        generations.old.clear();
    }
}

impl<T> Generations<T> {
    fn add(&mut self, hash: TokenHash, entry: Entry<T>, young_max: usize) {
        if self.young.len() >= young_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, entry);
    }
}

impl<T: Clone> Entry<T> {
    fn value_at(&self, now_ms: Millis) -> Option<T> {
        let lives = now_ms < self.expires_ms && self.since.elapsed() < self.lives;
        lives.then(|| self.value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u32) -> TokenHash {
        crate::sha256(&n.to_be_bytes())
    }

    #[test]
    fn an_entry_lives_until_it_expires() {
        let cache = TokenCache::new(10);
        cache.put(hash(1), "u1", 0, 1_000);
        assert_eq!(cache.get(&hash(1), 999), Some("u1"));
        assert_eq!(cache.get(&hash(1), 1_000), None);
        assert_eq!(cache.get(&hash(2), 0), None);
        cache.clear();
        assert_eq!(cache.get(&hash(1), 0), None);
    }

    #[test]
    fn a_clock_that_steps_back_prolongs_nothing() {
        let cache = TokenCache::new(10);
        cache.put(hash(1), "u1", 3_600_000, 3_600_001);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(cache.get(&hash(1), 0), None);
    }

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let cache = TokenCache::new(100);
        cache.put(hash(0), 0, 0, 1_000_000);
        for n in 1..10_000 {
            cache.put(hash(n), n, 0, 1_000_000);
            assert_eq!(cache.get(&hash(0), 0), Some(0), "after {n}");
            let generations = cache.generations.lock();
            assert!(generations.young.len() + generations.old.len() <= 100);
        }
        assert_eq!(cache.get(&hash(1), 0), None);
    }

    #[test]
    fn a_cache_of_nothing_remembers_nothing() {
        let cache = TokenCache::new(0);
        cache.put(hash(1), 1, 0, 1_000);
        assert_eq!(cache.get(&hash(1), 0), None);
    }
}

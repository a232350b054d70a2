//! A bounded memory: of more than it may hold, what came first is forgotten first.

use std::{collections::HashMap, hash::Hash};

/// When the young half is full it becomes the old one, and what was old is forgotten.
pub struct Recent<K, V> {
    entries_max: usize,
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    pub fn new(entries_max: usize) -> Recent<K, V> {
        Recent { entries_max, young: HashMap::new(), old: HashMap::new() }
    }

    pub fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.entries_max.div_ceil(2) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_first_is_forgotten_first() {
        let mut recent = Recent::new(10);
        (0..100).for_each(|n| recent.insert(n, n));
        assert!((95..100).all(|n| recent.get(&n) == Some(&n)));
        assert_eq!((0..100).filter(|n| recent.get(n).is_some()).count(), 10);
        recent.remove(&99);
        assert_eq!(recent.get(&99), None);
    }
}

//! Keys of claims that were given back, so that the same key still gets the same answer, and whose they
//! are.
//!
//! Both lists only grow, and stay in their order. So the file has them in pages, of which only the last
//! one is written again when there is more.

use indexmap::{IndexMap, IndexSet};
use sale::{KeyHash, OrderNo, UserId};

use crate::mark::{Bytes, Garbled, Mark, put_bare_mark, put_u64, put_user};

/// Beyond this many no more are remembered of an item, and a further one counts as new.
const SPENT_KEYS_MAX: usize = 1_000_000;
/// Of either list on one page.
const PAGE_MAX: usize = 4_096;

/// Which of the two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Keys,
    Spenders,
}

#[derive(Default)]
pub(super) struct Spent {
    keys: IndexMap<KeyHash, Mark>,
    /// The sold-out cache must not answer in their place.
    spenders: IndexSet<UserId>,
    keys_written: usize,
    spenders_written: usize,
}

impl Spent {
    pub(super) fn add(&mut self, user: UserId, mark: Mark) {
        if let Some(key) = mark.key()
            && (self.keys.len() < SPENT_KEYS_MAX || self.keys.contains_key(&key))
        {
            self.put(key, mark);
            self.spenders.insert(user);
        }
    }

    fn put(&mut self, key: KeyHash, mark: Mark) {
        let (place, before) = self.keys.insert_full(key, mark);
        if before.is_some_and(|before| before != mark) {
            self.keys_written = self.keys_written.min(place);
        }
    }

    pub(super) fn get(&self, key: KeyHash) -> Option<&Mark> {
        self.keys.get(&key)
    }

    pub(super) fn is_of(&self, user: &UserId) -> bool {
        self.spenders.contains(user)
    }

    pub(super) fn last_order_no(&self) -> Option<OrderNo> {
        self.keys.values().map(|mark| mark.order_no).max()
    }

    /// The pages of which the file does not have all.
    pub(super) fn unwritten(&self) -> Vec<(List, usize)> {
        self.pages_from(self.keys_written, self.spenders_written)
    }

    /// All pages of both lists.
    pub(super) fn pages(&self) -> Vec<(List, usize)> {
        self.pages_from(0, 0)
    }

    fn pages_from(&self, keys: usize, spenders: usize) -> Vec<(List, usize)> {
        let pages = |list, from: usize, len: usize| {
            let first = if from < len { from / PAGE_MAX } else { len.div_ceil(PAGE_MAX) };
            (first..len.div_ceil(PAGE_MAX)).map(move |page| (list, page))
        };
        let keys = pages(List::Keys, keys, self.keys.len());
        keys.chain(pages(List::Spenders, spenders, self.spenders.len())).collect()
    }

    pub(super) fn note_written(&mut self, (list, page): (List, usize)) {
        let end = (page + 1) * PAGE_MAX;
        match list {
            List::Keys => self.keys_written = end.min(self.keys.len()),
            List::Spenders => self.spenders_written = end.min(self.spenders.len()),
        }
    }

    pub(super) fn is_all_unwritten(&mut self) {
        (self.keys_written, self.spenders_written) = (0, 0);
    }

    pub(super) fn encode(&self, (list, page): (List, usize)) -> Vec<u8> {
        let (from, mut out) = (page * PAGE_MAX, Vec::new());
        match list {
            List::Keys => {
                let keys = self.keys.as_slice().iter().skip(from).take(PAGE_MAX);
                put_u64(&mut out, keys.len() as u64);
                for (key, mark) in keys {
                    put_u64(&mut out, key.0);
                    put_bare_mark(&mut out, mark);
                }
            }
            List::Spenders => {
                let spenders = self.spenders.as_slice().iter().skip(from).take(PAGE_MAX);
                put_u64(&mut out, spenders.len() as u64);
                spenders.for_each(|user| put_user(&mut out, user));
            }
        }
        out
    }

    /// Pages of a list come in their order.
    pub(super) fn restore(&mut self, list: List, from: &mut Bytes<'_>) -> Result<(), Garbled> {
        for _ in 0..from.u64()? {
            match list {
                List::Keys => drop(self.keys.insert(KeyHash(from.u64()?), from.bare_mark()?)),
                List::Spenders => drop(self.spenders.insert(from.user()?)),
            }
        }
        match list {
            List::Keys => self.keys_written = self.keys.len(),
            List::Spenders => self.spenders_written = self.spenders.len(),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_written_once_and_read_back() {
        let mut spent = Spent::default();
        let add = |spent: &mut Spent, n: u64| {
            let mark = Mark::new(OrderNo::from_u64(n + 1).unwrap(), 1, 1, Some(KeyHash(n + 1)));
            spent.add(format!("u{}", n % 5_000).parse().unwrap(), mark);
        };
        let write = |spent: &mut Spent| {
            let pages = spent.unwritten();
            pages.iter().for_each(|page| spent.note_written(*page));
            pages
        };
        (0..10_000).for_each(|n| add(&mut spent, n));
        assert_eq!(write(&mut spent), spent.pages());
        assert_eq!(spent.pages().len(), 3 + 2);
        add(&mut spent, 10_000);
        assert_eq!(write(&mut spent), [(List::Keys, 2)], "only the last page");
        let mut read = Spent::default();
        for page in spent.pages() {
            let body = spent.encode(page);
            read.restore(page.0, &mut Bytes(&body)).unwrap();
        }
        assert_eq!((&read.keys, &read.spenders), (&spent.keys, &spent.spenders));
        assert!(read.unwritten().is_empty());
    }
}

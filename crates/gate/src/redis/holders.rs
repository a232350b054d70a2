//! Buyers who are known here to hold a mark. The sold-out cache must not answer in the gate's place to
//! one of them, and asking Redis about every buyer would be as dear as asking it for the claim.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState},
};

use parking_lot::RwLock;
use sale::{ItemId, UserId};

/// Buyers remembered of one item. Beyond this everybody may hold a mark, as far as is known here.
const HOLDERS_MAX: usize = 1_000_000;

/// Hashes of user ids. Two users with one hash are taken for each other where that does no harm.
type Hashes = HashSet<u64, BuildHasherDefault<AsItIs>>;

/// The hasher of what is a hash already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only `u64`s are hashed with it; anything else is hashed badly but not wrongly.
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[derive(Default)]
pub(super) struct Holders {
    of_item: RwLock<HashMap<ItemId, Hashes>>,
    /// Of user ids, for this process only.
    hasher: RandomState,
}

impl Holders {
    pub(super) fn hash(&self, user: &UserId) -> u64 {
        self.hasher.hash_one(user)
    }

    /// These, by their hashes, hold a mark.
    pub(super) fn note(&self, item: ItemId, holders: impl IntoIterator<Item = u64>) {
        let mut holders = holders.into_iter().peekable();
        if holders.peek().is_none() {
            return;
        }
        let mut of_item = self.of_item.write();
        let known = of_item.entry(item).or_default();
        if known.len() < HOLDERS_MAX {
            known.extend(holders);
        }
    }

    pub(super) fn may_hold(&self, item: ItemId, user: &UserId) -> bool {
        let known = |users: &Hashes| users.len() >= HOLDERS_MAX || users.contains(&self.hash(user));
        self.of_item.read().get(&item).is_some_and(known)
    }

    pub(super) fn keep(&self, known: impl Fn(ItemId) -> bool) {
        self.of_item.write().retain(|item, _| known(*item));
    }

    pub(super) fn forget(&self, item: ItemId) {
        self.of_item.write().remove(&item);
    }
}

//! The directory: which items are at the gate, over how many shards each is spread, and so where a
//! buyer's mark is.
//!
//! The directory is a hash in Redis, and every process has a copy. A copy may be old in one way only:
//! an item that it lacks may have been loaded by another process a moment ago, so it is read again
//! before anybody hears that an item is not here.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use sale::{ItemId, UserId};

use super::{holders::Holders, store::Store, watch::Watch};
use crate::{Result, mark::buyer_hash};

/// What is known here of an item that is not at the gate is kept so long: a Redis that was emptied has
/// it again in a moment.
const GONE_KEPT: Duration = Duration::from_secs(600);

pub(super) struct Directory {
    store: Arc<Store>,
    watch: Arc<Watch>,
    holders: Arc<Holders>,
    /// How many shards each item at the gate has. The number never changes for an item.
    shards: RwLock<HashMap<ItemId, u32>>,
    /// When the directory was last read from the beginning. Whoever reads or changes it holds this, so
    /// that what was read earlier never replaces what was read, or written, later.
    read: tokio::sync::Mutex<Option<Instant>>,
    /// Items that are not in the directory any more, and since when.
    gone: Mutex<HashMap<ItemId, Instant>>,
}

/// The same for every instance and version: it decides where a buyer's mark is.
pub(super) fn shard_of(user: &UserId, shards: u32) -> u32 {
    (buyer_hash(user.as_str().as_bytes()) % u64::from(shards.max(1))) as u32
}

impl Directory {
    pub(super) fn new(store: Arc<Store>, watch: Arc<Watch>, holders: Arc<Holders>) -> Directory {
        Directory {
            store,
            watch,
            holders,
            shards: RwLock::default(),
            read: tokio::sync::Mutex::default(),
            gone: Mutex::default(),
        }
    }

    pub(super) fn shards(&self, item: ItemId) -> Option<u32> {
        self.shards.read().get(&item).copied()
    }

    /// All of it, to be compared with what it is later.
    pub(super) fn copy(&self) -> HashMap<ItemId, u32> {
        self.shards.read().clone()
    }

    /// Where a shard of an item is.
    pub(super) fn partition(&self, item: ItemId, shard: u32) -> usize {
        (item.0.unsigned_abs() as usize + shard as usize) % self.store.partitions
    }

    /// The partitions of an item, one per shard.
    pub(super) fn partitions_of(&self, item: ItemId) -> Vec<usize> {
        let shards = self.shards(item).unwrap_or(0);
        (0..shards).map(|shard| self.partition(item, shard)).collect()
    }

    pub(super) fn is_in(&self, item: ItemId, partition: usize) -> bool {
        self.shards(item).is_some_and(|shards| self.has_shard_in(item, shards, partition))
    }

    /// An item's shards are in as many partitions, one behind the other.
    fn has_shard_in(&self, item: ItemId, shards: u32, partition: usize) -> bool {
        let partitions = self.store.partitions;
        let first = self.partition(item, 0);
        (partition + partitions - first) % partitions < shards as usize
    }

    /// The items that have a shard in this partition.
    pub(super) fn items_in(&self, partition: usize) -> Vec<ItemId> {
        let shards = self.shards.read();
        let has = |(item, shards): &(&ItemId, &u32)| self.has_shard_in(**item, **shards, partition);
        shards.iter().filter(has).map(|(item, _)| *item).collect()
    }

    /// The partition that holds what this buyer has of the item.
    pub(super) fn home(&self, item: ItemId, user: &UserId) -> Option<usize> {
        let shards = self.shards(item)?;
        Some(self.partition(item, shard_of(user, shards)))
    }

    /// An item nobody here knows may have been loaded by somebody else a moment ago. An error means
    /// that nobody answered, which is not the same as *not here*.
    pub(super) async fn find(&self, item: ItemId) -> Result<()> {
        if self.shards(item).is_some() { Ok(()) } else { self.read_now().await }
    }

    /// Those who ask at the same time share one reading, which must have begun after they asked.
    pub(super) async fn read_now(&self) -> Result<()> {
        let asked = Instant::now();
        let mut read = self.read.lock().await;
        if read.is_none_or(|begun| begun < asked) {
            let begun = Instant::now();
            self.read_all().await?;
            *read = Some(begun);
        }
        Ok(())
    }

    /// Reads it anew if its length is another one, or somebody knows that it has changed. If it does not
    /// answer, the copy stands: the items themselves are elsewhere.
    pub(super) async fn follow(&self, changed: bool) {
        let length = redis::cmd("HLEN").arg(self.store.keys.items()).to_owned();
        let read = match self.store.ask::<usize>(&length).await {
            Ok(length) if length == self.shards.read().len() && !changed => return,
            Ok(_) => self.read_now().await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = read {
            tracing::debug!(%error, "the list of items at the gate does not answer");
        }
    }

    /// To be called by whoever holds `read`.
    async fn read_all(&self) -> Result<()> {
        let command = redis::cmd("HGETALL").arg(self.store.keys.items()).to_owned();
        let items: HashMap<String, u32> = self.store.ask(&command).await?;
        let read = items.iter().filter_map(|(item, shards)| Some((item.parse().ok()?, *shards)));
        let read: HashMap<ItemId, u32> = read.collect();
        self.note_gone(&read);
        *self.shards.write() = read;
        Ok(())
    }

    /// What is known of items that have been away for long is forgotten; the process that took them
    /// away may have been another one.
    fn note_gone(&self, read: &HashMap<ItemId, u32>) {
        let mut gone = self.gone.lock();
        gone.retain(|item, _| !read.contains_key(item));
        for item in self.shards.read().keys().filter(|item| !read.contains_key(item)) {
            gone.entry(*item).or_insert_with(Instant::now);
        }
        let over: HashSet<ItemId> = gone
            .iter()
            .filter(|(_, since)| since.elapsed() > GONE_KEPT)
            .map(|(item, _)| *item)
            .collect();
        if !over.is_empty() {
            gone.retain(|item, _| !over.contains(item));
            self.holders.keep(|item| !over.contains(&item));
            self.watch.keep(|item| !over.contains(&item));
        }
    }

    pub(super) async fn add(&self, item: ItemId, shards: u32) -> Result<()> {
        let mut known = redis::cmd("HSET");
        known.arg(self.store.keys.items()).arg(item.0).arg(shards);
        let _reader = self.read.lock().await;
        self.store.ask::<()>(&known).await?;
        self.shards.write().insert(item, shards);
        Ok(())
    }

    pub(super) async fn remove(&self, item: ItemId) -> Result<()> {
        let command = redis::cmd("HDEL").arg(self.store.keys.items()).arg(item.0).to_owned();
        let _reader = self.read.lock().await;
        self.store.ask::<i64>(&command).await?;
        self.shards.write().remove(&item);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_buyers_are_spread_evenly() {
        for shards in [2, 3, 4, 7, 16] {
            for hundreds in [0, 7, 1_234] {
                let mut counts = vec![0; shards as usize];
                for n in 0..100 * shards {
                    let user = UserId::new(&format!("u{}", hundreds * 100 + n)).unwrap();
                    counts[shard_of(&user, shards) as usize] += 1;
                }
                assert!(counts.iter().all(|count| (60..150).contains(count)), "{counts:?}");
            }
        }
    }
}

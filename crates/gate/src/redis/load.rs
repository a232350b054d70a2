//! Bringing an item to Redis and taking it away.
//!
//! A load has three steps in every partition of the item: take it over under the new epoch, frozen
//! and empty; fill in the marks, a chunk at a time; set the stock and open. A crash in between leaves
//! the item frozen under an epoch that the ledger knows to be unfinished, and the next warm starts
//! over with a later one. Two loads at once: the later epoch wins every step.

use std::collections::{HashMap, HashSet};

use sale::{Claim, Epoch, ItemId, Millis};

use super::{Inner, keys::Keys, link::Call, scripts, shard_of};
use crate::{
    Loading, Result, Shut,
    mark::{Mark, put_bare_mark},
};

/// Marks in one call of `fill.lua`.
const FILL_MARKS_MAX: usize = 1_000;

/// What `meta` holds.
#[derive(Clone, Debug)]
pub(super) struct Meta {
    pub(super) epoch: Epoch,
    pub(super) seq: u64,
    pub(super) shut: Option<Shut>,
    pub(super) opens_ms: Millis,
    pub(super) closes_ms: Millis,
    pub(super) units: i64,
    pub(super) loading: bool,
}

impl Meta {
    /// `None` if it is not there, or not whole.
    pub(super) fn read(fields: &HashMap<String, i64>) -> Option<Meta> {
        let number = |name: &str| fields.get(name).copied();
        Some(Meta {
            epoch: number("epoch")? as Epoch,
            seq: number("seq")? as u64,
            shut: match number("shut")? {
                0 => None,
                1 => Some(Shut::Paused),
                3 => Some(Shut::Ended),
                _ => Some(Shut::Frozen),
            },
            opens_ms: number("opens")?,
            closes_ms: number("closes")?,
            units: number("units").unwrap_or(0),
            loading: fields.contains_key("loading"),
        })
    }
}

/// As the scripts know it.
pub(super) fn shut_code(shut: Option<Shut>) -> i64 {
    match shut {
        None => 0,
        Some(Shut::Paused) => 1,
        Some(Shut::Frozen) => 2,
        Some(Shut::Ended) => 3,
    }
}

/// An even share of `left`, the first shards getting one more.
fn share(left: i64, shards: u32, shard: u32) -> i64 {
    let (shards, shard) = (i64::from(shards), i64::from(shard));
    let (each, rest) = (left.div_euclid(shards), left.rem_euclid(shards));
    each + i64::from(shard < rest)
}

impl Inner {
    pub(super) async fn load(&self, loading: Loading) -> Result<bool> {
        let (item, shards) = (loading.item, loading.shards.max(1));
        // Known to everybody from the first step on: an item that is being loaded is closed.
        let mut known = redis::cmd("HSET");
        known.arg(self.keys.items()).arg(item.0).arg(shards);
        self.link.ask::<()>(&known).await?;
        self.directory.write().insert(item, shards);
        let dropped = self.dropped_keys(&loading).await?;
        for shard in 0..shards {
            let partition = self.partition(item, shard);
            let call = Call::new(&scripts::BEGIN_LOAD, begin_keys(&self.keys, partition, item))
                .arg(loading.epoch)
                .arg(item.0);
            if self.link.run::<i64>(&call).await? == 0 {
                return Ok(false);
            }
        }
        for shard in 0..shards {
            let mine = |claim: &&Claim| shard_of(&claim.user, shards) == shard;
            let marks: Vec<&Claim> = loading.marks.iter().filter(mine).collect();
            if !self.fill(&loading, shard, &marks).await? {
                return Ok(false);
            }
        }
        self.spend(item, dropped).await?;
        for shard in 0..shards {
            if !self.finish(&loading, shards, shard).await? {
                return Ok(false);
            }
        }
        self.watch.forget(item);
        self.admitted_here.write().remove(&item);
        self.lefts.write().insert(item, loading.left);
        Ok(true)
    }

    /// Marks with a key that this load ends, although no release did: an order that was closed in the
    /// ledger and whose release is still on its way. Their keys were answered all the same.
    async fn dropped_keys(&self, loading: &Loading) -> Result<Vec<Claim>> {
        let stays: HashSet<_> = loading.marks.iter().map(|claim| claim.order_no).collect();
        let mut here = self.held(loading.item).await?;
        here.retain(|claim| claim.key.is_some() && !stays.contains(&claim.order_no));
        Ok(here)
    }

    async fn spend(&self, item: ItemId, claims: Vec<Claim>) -> Result<()> {
        for claim in claims {
            let (Some(key), Some(partition)) = (claim.key, self.home(item, &claim.user)) else {
                continue;
            };
            let mut mark = Vec::with_capacity(24);
            put_bare_mark(&mut mark, &Mark::of(&claim));
            let mut spent = redis::cmd("HSET");
            spent.arg(self.keys.spent(partition, item)).arg(&key.0.to_le_bytes()[..]).arg(mark);
            self.link.ask::<i64>(&spent).await?;
        }
        Ok(())
    }

    async fn fill(&self, loading: &Loading, shard: u32, marks: &[&Claim]) -> Result<bool> {
        let partition = self.partition(loading.item, shard);
        for chunk in marks.chunks(FILL_MARKS_MAX) {
            let keys = &self.keys;
            let names = [keys.meta(partition, loading.item), keys.users(partition, loading.item)];
            let units: i64 = chunk.iter().map(|claim| i64::from(claim.quantity)).sum();
            let mut call = Call::new(&scripts::FILL, names).arg(loading.epoch).arg(units);
            for claim in chunk {
                let mut mark = Vec::with_capacity(24);
                put_bare_mark(&mut mark, &Mark::of(claim));
                call.push(claim.user.as_str());
                call.push(mark);
            }
            if self.link.run::<i64>(&call).await? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn finish(&self, loading: &Loading, shards: u32, shard: u32) -> Result<bool> {
        let item = loading.item;
        let partition = self.partition(item, shard);
        let keys = &self.keys;
        let names = [
            keys.meta(partition, item),
            keys.stock(partition, item),
            keys.adjusts(partition, item),
        ];
        let mut call = Call::new(&scripts::FINISH_LOAD, names)
            .arg(loading.epoch)
            .arg(shut_code(loading.shut))
            .arg(loading.opens_ms)
            .arg(loading.closes_ms)
            .arg(u64::from(loading.limit))
            .arg(share(loading.left, shards, shard));
        for adjust_no in &loading.adjusted {
            call.push(adjust_no.to_string());
        }
        Ok(self.link.run::<i64>(&call).await? == 1)
    }

    pub(super) async fn unload(&self, item: ItemId) -> Result<()> {
        for partition in self.partitions_of(item) {
            let keys = &self.keys;
            let mut gone = redis::cmd("UNLINK");
            gone.arg(keys.meta(partition, item))
                .arg(keys.stock(partition, item))
                .arg(keys.users(partition, item))
                .arg(keys.spent(partition, item))
                .arg(keys.adjusts(partition, item));
            self.link.ask::<i64>(&gone).await?;
        }
        let command = redis::cmd("HDEL").arg(self.keys.items()).arg(item.0).to_owned();
        self.link.ask::<i64>(&command).await?;
        self.directory.write().remove(&item);
        self.lefts.write().remove(&item);
        self.admitted_here.write().remove(&item);
        self.watch.forget(item);
        Ok(())
    }
}

fn begin_keys(keys: &Keys, partition: usize, item: ItemId) -> [String; 6] {
    [
        keys.meta(partition, item),
        keys.stock(partition, item),
        keys.users(partition, item),
        keys.adjusts(partition, item),
        keys.moves(partition),
        keys.given(partition),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_are_even() {
        for (left, shards) in [(1_000, 4), (10, 3), (2, 4), (0, 5), (-3, 4)] {
            let shares: Vec<i64> = (0..shards).map(|shard| share(left, shards, shard)).collect();
            assert_eq!(shares.iter().sum::<i64>(), left, "{shares:?}");
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }
}

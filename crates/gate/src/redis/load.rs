//! Bringing an item to Redis and taking it away.
//!
//! **The life of a load.** Each step is made in every partition of the item before the next one:
//!
//! 1. *begin*: take the item over under the new epoch, frozen, with all that it holds. From here on
//!    nobody is admitted; what comes back or is adjusted is refused and comes again later; whoever
//!    loads under an earlier epoch is refused at their next step.
//! 2. Only now are log and ledger read, by the caller. What they say cannot be outdated by the gate.
//! 3. *wipe*, *fill* in the marks a chunk at a time, *put* the stock.
//! 4. *open*. Not before every shard has its stock: an open shard beside one that looks empty would
//!    tell buyers that all is sold.
//!
//! Every step may be sent twice. A crash in between leaves the item frozen under an epoch that the
//! ledger knows to be unfinished; each step notes its time, so that others see whether the loader
//! is still at it, and if it is not, somebody starts over with a later epoch.

use std::{collections::HashSet, sync::Arc};

use futures_util::future::{join_all, try_join_all};
use redis_link::Call;
use sale::{Claim, Epoch, ItemId};

use super::{
    Lefts,
    directory::{Directory, shard_of},
    holders::Holders,
    known_claims::spent_keys_max,
    reading::held_in,
    scripts,
    shards::shut_code,
    store::Store,
    watch::Watch,
};
use crate::{
    Loading, Result, Shut,
    mark::{Mark, put_bare_mark},
};

/// Marks in one call of `fill.lua`, keys in one of `spend.lua`.
const FILL_MARKS_MAX: usize = 1_000;

pub(super) struct Loader {
    pub(super) store: Arc<Store>,
    pub(super) directory: Arc<Directory>,
    pub(super) watch: Arc<Watch>,
    pub(super) holders: Arc<Holders>,
    /// Units left of each item as last known here, for pages.
    pub(super) lefts: Arc<Lefts>,
}

/// An even share of `left`, the first shards getting one more.
fn share(left: i64, shards: u32, shard: u32) -> i64 {
    let (shards, shard) = (i64::from(shards), i64::from(shard));
    let (each, rest) = (left.div_euclid(shards), left.rem_euclid(shards));
    each + i64::from(shard < rest)
}

impl Loader {
    /// Two shards in one partition would be one: there are never more than partitions.
    fn shards_that_fit(&self, wanted: u32) -> u32 {
        let partitions = u32::try_from(self.store.partitions).unwrap_or(u32::MAX);
        wanted.clamp(1, partitions.max(1))
    }

    pub(super) async fn begin(&self, item: ItemId, epoch: Epoch, shards: u32) -> Result<bool> {
        let wanted = shards;
        let shards = self.shards_that_fit(wanted);
        if shards < wanted {
            tracing::warn!(%item, wanted, shards, "there are fewer partitions than shards wanted");
        }
        // Known to everybody from the first step on: an item that is being loaded is closed.
        self.directory.add(item, shards).await?;
        self.step(item, shards, |partition| {
            Call::new(&scripts::BEGIN_LOAD, [self.store.keys.meta(partition, item)]).number(epoch)
        })
        .await
    }

    /// Whoever begins next need not wait for us. Where it cannot be said, the time will say it.
    pub(super) async fn abandon(&self, item: ItemId, epoch: Epoch) {
        let calls = self.directory.partitions_of(item).into_iter().map(|partition| async move {
            let names = [self.store.keys.meta(partition, item)];
            let call = Call::new(&scripts::ABANDON_LOAD, names).number(epoch);
            let _ = self.store.run::<i64>(&call).await;
        });
        join_all(calls).await;
    }

    /// Steps 3 and 4. False if somebody else has taken the item over.
    pub(super) async fn load(&self, loading: Loading) -> Result<bool> {
        let (item, shards) = (loading.item, self.shards_that_fit(loading.shards));
        // While the marks are still there: those that end here and whose keys were answered.
        let dropped = self.dropped_keys(&loading, shards).await?;
        if !self.spend(&loading, shards, dropped).await?
            || !self.wipe(item, shards, loading.epoch).await?
        {
            return Ok(false);
        }
        let mut chunks = Vec::new();
        for shard in 0..shards {
            let mine = |claim: &&Claim| shard_of(&claim.user, shards) == shard;
            let marks: Vec<&Claim> = loading.marks.iter().filter(mine).collect();
            chunks.push((
                self.directory.partition(item, shard),
                marks.len().div_ceil(FILL_MARKS_MAX),
            ));
            if !self.fill(&loading, shard, &marks).await? {
                return Ok(false);
            }
        }
        for (shard, (partition, chunks)) in (0..).zip(chunks) {
            let left = share(loading.left, shards, shard);
            if !self.put_stock(&loading, partition, chunks, left).await? {
                return Ok(false);
            }
        }
        let opened = self.step(item, shards, |partition| {
            Call::new(&scripts::FINISH_LOAD, [self.store.keys.meta(partition, item)])
                .number(loading.epoch)
                .number(shut_code(loading.shut))
        });
        if !opened.await? {
            return Ok(false);
        }
        self.watch.forget(item);
        self.lefts.write().insert(item, loading.left);
        Ok(true)
    }

    /// One step in every partition of the item. False if one of them refuses it.
    async fn step(
        &self,
        item: ItemId,
        shards: u32,
        call: impl Fn(usize) -> Call<'static>,
    ) -> Result<bool> {
        // Not by the directory: others may read it anew meanwhile, and an item may be gone from it.
        for shard in 0..shards {
            let partition = self.directory.partition(item, shard);
            if self.store.run::<i64>(&call(partition)).await? != 1 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn wipe(&self, item: ItemId, shards: u32, epoch: Epoch) -> Result<bool> {
        let keys = &self.store.keys;
        self.step(item, shards, |partition| {
            let names = [
                keys.meta(partition, item),
                keys.stock(partition, item),
                keys.users(partition, item),
                keys.adjusts(partition, item),
                keys.moves(partition),
                keys.given(partition),
                keys.settled(partition),
            ];
            Call::new(&scripts::WIPE, names).number(epoch).number(item.0)
        })
        .await
    }

    /// Marks with a key that this load ends, although no release did: an order that was closed in the
    /// ledger and whose release is still on its way. Their keys were answered all the same.
    async fn dropped_keys(&self, loading: &Loading, shards: u32) -> Result<Vec<Claim>> {
        let stays: HashSet<_> = loading.marks.iter().map(|claim| claim.order_no).collect();
        let partitions =
            (0..shards).map(|shard| self.directory.partition(loading.item, shard)).collect();
        let mut here = held_in(&self.store, partitions, loading.item).await?;
        here.retain(|claim| claim.key.is_some() && !stays.contains(&claim.order_no));
        Ok(here)
    }

    async fn spend(&self, loading: &Loading, shards: u32, claims: Vec<Claim>) -> Result<bool> {
        let item = loading.item;
        for shard in 0..shards {
            let partition = self.directory.partition(item, shard);
            let here = |claim: &&Claim| shard_of(&claim.user, shards) == shard;
            let claims: Vec<&Claim> = claims.iter().filter(here).collect();
            for chunk in claims.chunks(FILL_MARKS_MAX) {
                let names =
                    [self.store.keys.meta(partition, item), self.store.keys.spent(partition, item)];
                let mut call = Call::new(&scripts::SPEND, names)
                    .number(loading.epoch)
                    .number(spent_keys_max(&self.directory, item));
                for claim in chunk {
                    let Some(key) = claim.key else { continue };
                    call.push(key.0.to_le_bytes());
                    call.push(bare_mark(claim));
                }
                if self.store.run::<i64>(&call).await? != 1 {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    async fn fill(&self, loading: &Loading, shard: u32, marks: &[&Claim]) -> Result<bool> {
        let partition = self.directory.partition(loading.item, shard);
        for (n, chunk) in marks.chunks(FILL_MARKS_MAX).enumerate() {
            let keys = &self.store.keys;
            let names = [keys.meta(partition, loading.item), keys.users(partition, loading.item)];
            let units: i64 = chunk.iter().map(|claim| i64::from(claim.quantity)).sum();
            let mut call =
                Call::new(&scripts::FILL, names).number(loading.epoch).number(n).number(units);
            for claim in chunk {
                call.push(claim.user.as_str());
                call.push(bare_mark(claim));
            }
            if self.store.run::<i64>(&call).await? != 1 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn put_stock(
        &self,
        loading: &Loading,
        partition: usize,
        chunks: usize,
        left: i64,
    ) -> Result<bool> {
        let (keys, item) = (&self.store.keys, loading.item);
        let names = [
            keys.meta(partition, item),
            keys.stock(partition, item),
            keys.adjusts(partition, item),
        ];
        let mut call = Call::new(&scripts::PUT_STOCK, names)
            .number(loading.epoch)
            .number(chunks)
            .number(loading.opens_ms)
            .number(loading.closes_ms)
            .number(loading.limit)
            .number(left);
        for adjust_no in &loading.adjusted {
            call.push_number(adjust_no);
        }
        Ok(self.store.run::<i64>(&call).await? == 1)
    }

    pub(super) async fn unload(&self, item: ItemId) -> Result<()> {
        for partition in self.directory.partitions_of(item) {
            let keys = &self.store.keys;
            let mut gone = redis::cmd("UNLINK");
            gone.arg(keys.meta(partition, item))
                .arg(keys.stock(partition, item))
                .arg(keys.users(partition, item))
                .arg(keys.spent(partition, item))
                .arg(keys.adjusts(partition, item));
            self.store.ask::<i64>(&gone).await?;
        }
        // Last, so that one who dies before leaves an item that can be seen to be half gone.
        self.directory.remove(item).await?;
        self.lefts.write().remove(&item);
        self.holders.forget(item);
        self.watch.forget(item);
        Ok(())
    }

    /// Stop or resume admitting, in every shard.
    pub(super) async fn shut(&self, item: ItemId, shut: Option<Shut>) -> Result<bool> {
        self.directory.find(item).await?;
        let calls = self.directory.partitions_of(item).into_iter().map(|partition| {
            let call = Call::new(&scripts::SHUT, [self.store.keys.meta(partition, item)])
                .number(shut_code(shut));
            async move { self.store.run::<i64>(&call).await }
        });
        let done = try_join_all(calls).await?;
        Ok(!done.is_empty() && done.iter().all(|here| *here == 1))
    }
}

pub(super) fn bare_mark(claim: &Claim) -> Vec<u8> {
    let mut mark = Vec::with_capacity(24);
    put_bare_mark(&mut mark, &Mark::of(claim));
    mark
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

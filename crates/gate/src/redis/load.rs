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
//! lives, and if it does not, somebody starts over with a later epoch.

use std::collections::HashSet;

use futures_util::future::{join_all, try_join_all};
use sale::{Claim, Epoch, ItemId, Millis};

use super::{Inner, link::Call, scripts, shard_of};
use crate::{
    Loaded, Loading, Presence, Result, Shut,
    mark::{Mark, put_bare_mark},
};

/// Marks in one call of `fill.lua`, keys in one of `spend.lua`.
const FILL_MARKS_MAX: usize = 1_000;
/// Spent keys remembered of one item.
const SPENT_KEYS_MAX: u64 = 1_000_000;

/// One shard of an item at one instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) partition: usize,
    pub(super) epoch: Epoch,
    pub(super) seq: u64,
    pub(super) shut: Option<Shut>,
    pub(super) opens_ms: Millis,
    pub(super) closes_ms: Millis,
    pub(super) units: i64,
    pub(super) left: i64,
    /// It is being loaded, and the last step of that was so long ago.
    pub(super) quiet_ms: Option<u64>,
}

impl Look {
    /// `None` if it is not there, or not whole.
    fn read(partition: usize, reply: &[i64]) -> Option<Look> {
        let [epoch, seq, shut, opens_ms, closes_ms, units, left, quiet_ms] = *reply else {
            return None;
        };
        Some(Look {
            partition,
            epoch: epoch as Epoch,
            seq: seq as u64,
            shut: match shut {
                0 => None,
                1 => Some(Shut::Paused),
                3 => Some(Shut::Ended),
                _ => Some(Shut::Frozen),
            },
            opens_ms,
            closes_ms,
            units,
            left,
            quiet_ms: u64::try_from(quiet_ms).ok(),
        })
    }
}

/// The looks at all shards, if all are there, of one life, and none is being loaded.
pub(super) fn whole(looks: &[Option<Look>]) -> Option<Vec<Look>> {
    let looks: Vec<Look> = looks.iter().copied().collect::<Option<_>>()?;
    let epoch = looks.first()?.epoch;
    looks.iter().all(|look| look.epoch == epoch && look.quiet_ms.is_none()).then_some(looks)
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
    /// Two shards in one partition would be one: there are never more than partitions.
    fn shards_that_fit(&self, wanted: u32) -> u32 {
        let partitions = u32::try_from(self.options.partitions).unwrap_or(u32::MAX);
        wanted.clamp(1, partitions.max(1))
    }

    pub(super) async fn begin_load(&self, item: ItemId, epoch: Epoch, shards: u32) -> Result<bool> {
        let wanted = shards;
        let shards = self.shards_that_fit(wanted);
        if shards < wanted {
            tracing::warn!(%item, wanted, shards, "there are fewer partitions than shards wanted");
        }
        // Known to everybody from the first step on: an item that is being loaded is closed.
        let mut known = redis::cmd("HSET");
        known.arg(self.keys.items()).arg(item.0).arg(shards);
        {
            let _reader = self.directory_read.lock().await;
            self.link.ask::<()>(&known).await?;
            self.directory.write().insert(item, shards);
        }
        self.step(item, shards, |partition| {
            Call::new(&scripts::BEGIN_LOAD, [self.keys.meta(partition, item)]).arg(epoch)
        })
        .await
    }

    /// Whoever begins next need not wait for us. Where it cannot be said, the time will say it.
    pub(super) async fn abandon_load(&self, item: ItemId, epoch: Epoch) {
        let calls = self.partitions_of(item).into_iter().map(|partition| async move {
            let names = [self.keys.meta(partition, item)];
            let call = Call::new(&scripts::ABANDON_LOAD, names).arg(epoch);
            let _ = self.link.run::<i64>(&call).await;
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
            chunks.push((self.partition(item, shard), marks.len().div_ceil(FILL_MARKS_MAX)));
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
            Call::new(&scripts::FINISH_LOAD, [self.keys.meta(partition, item)])
                .arg(loading.epoch)
                .arg(shut_code(loading.shut))
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
            let partition = self.partition(item, shard);
            if self.link.run::<i64>(&call(partition)).await? != 1 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn wipe(&self, item: ItemId, shards: u32, epoch: Epoch) -> Result<bool> {
        let keys = &self.keys;
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
            Call::new(&scripts::WIPE, names).arg(epoch).arg(item.0)
        })
        .await
    }

    /// Marks with a key that this load ends, although no release did: an order that was closed in the
    /// ledger and whose release is still on its way. Their keys were answered all the same.
    async fn dropped_keys(&self, loading: &Loading, shards: u32) -> Result<Vec<Claim>> {
        let stays: HashSet<_> = loading.marks.iter().map(|claim| claim.order_no).collect();
        let partitions = (0..shards).map(|shard| self.partition(loading.item, shard)).collect();
        let mut here = self.held_in(partitions, loading.item).await?;
        here.retain(|claim| claim.key.is_some() && !stays.contains(&claim.order_no));
        Ok(here)
    }

    async fn spend(&self, loading: &Loading, shards: u32, claims: Vec<Claim>) -> Result<bool> {
        let item = loading.item;
        for shard in 0..shards {
            let partition = self.partition(item, shard);
            let here = |claim: &&Claim| shard_of(&claim.user, shards) == shard;
            let claims: Vec<&Claim> = claims.iter().filter(here).collect();
            for chunk in claims.chunks(FILL_MARKS_MAX) {
                let names = [self.keys.meta(partition, item), self.keys.spent(partition, item)];
                let mut call = Call::new(&scripts::SPEND, names)
                    .arg(loading.epoch)
                    .arg(self.spent_keys_max(item));
                for claim in chunk {
                    let Some(key) = claim.key else { continue };
                    call.push(key.0.to_le_bytes());
                    call.push(bare_mark(claim));
                }
                if self.link.run::<i64>(&call).await? != 1 {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Of one shard.
    pub(super) fn spent_keys_max(&self, item: ItemId) -> u64 {
        SPENT_KEYS_MAX.div_ceil(u64::from(self.shards(item).unwrap_or(1).max(1)))
    }

    async fn fill(&self, loading: &Loading, shard: u32, marks: &[&Claim]) -> Result<bool> {
        let partition = self.partition(loading.item, shard);
        for (n, chunk) in marks.chunks(FILL_MARKS_MAX).enumerate() {
            let keys = &self.keys;
            let names = [keys.meta(partition, loading.item), keys.users(partition, loading.item)];
            let units: i64 = chunk.iter().map(|claim| i64::from(claim.quantity)).sum();
            let mut call =
                Call::new(&scripts::FILL, names).arg(loading.epoch).arg(n as u64).arg(units);
            for claim in chunk {
                call.push(claim.user.as_str());
                call.push(bare_mark(claim));
            }
            if self.link.run::<i64>(&call).await? != 1 {
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
        let (keys, item) = (&self.keys, loading.item);
        let names = [
            keys.meta(partition, item),
            keys.stock(partition, item),
            keys.adjusts(partition, item),
        ];
        let mut call = Call::new(&scripts::PUT_STOCK, names)
            .arg(loading.epoch)
            .arg(chunks as u64)
            .arg(loading.opens_ms)
            .arg(loading.closes_ms)
            .arg(u64::from(loading.limit))
            .arg(left);
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
        // Last, so that one who dies before leaves an item that can be seen to be half gone.
        let command = redis::cmd("HDEL").arg(self.keys.items()).arg(item.0).to_owned();
        {
            let _reader = self.directory_read.lock().await;
            self.link.ask::<i64>(&command).await?;
            self.directory.write().remove(&item);
        }
        self.lefts.write().remove(&item);
        self.admitted_here.write().remove(&item);
        self.watch.forget(item);
        Ok(())
    }

    async fn look(&self, partition: usize, item: ItemId) -> Result<Option<Look>> {
        let names = [self.keys.meta(partition, item), self.keys.stock(partition, item)];
        let seen = self.watch.seen(partition, item);
        let reply: Vec<i64> = self.link.run(&Call::new(&scripts::LOOK, names)).await?;
        let look = Look::read(partition, &reply);
        if let Some(look) = &look {
            self.watch.note(partition, item, seen, (look.epoch, look.seq), false);
        }
        Ok(look)
    }

    /// Every shard of an item, in their order.
    pub(super) async fn looks(&self, item: ItemId) -> Result<Vec<Option<Look>>> {
        let partitions = self.partitions_of(item).into_iter();
        let looks = partitions.map(|partition| self.look(partition, item));
        try_join_all(looks).await
    }

    /// What is at the gate, whole or not: also what a crash left half loaded or half gone.
    pub(super) async fn loaded(&self) -> Result<Vec<Loaded>> {
        self.read_directory_now().await?;
        let mut items: Vec<ItemId> = self.directory.read().keys().copied().collect();
        items.sort_unstable();
        let mut loaded = Vec::with_capacity(items.len());
        for some in items.chunks(LOOKED_AT_ONCE) {
            let looks = join_all(some.iter().map(|item| self.looks(*item))).await;
            for (item, looks) in some.iter().zip(looks) {
                let here = presence(*item, looks.ok().as_deref());
                self.note_left(&here);
                loaded.push(here.0);
            }
        }
        let known: HashSet<ItemId> = items.into_iter().collect();
        self.lefts.write().retain(|item, _| known.contains(item));
        Ok(loaded)
    }

    fn note_left(&self, (here, left): &(Loaded, Option<i64>)) {
        match left {
            Some(left) => drop(self.lefts.write().insert(here.item, *left)),
            // What cannot be read now may still be shown as it was.
            None if here.presence == Presence::Unknown => {}
            None => drop(self.lefts.write().remove(&here.item)),
        }
    }
}

/// Items that are looked at in one go.
pub(super) const LOOKED_AT_ONCE: usize = 64;

/// How much of an item is there, and what is left of it if it is whole.
fn presence(item: ItemId, looks: Option<&[Option<Look>]>) -> (Loaded, Option<i64>) {
    let none = Loaded { item, epoch: 0, shut: None, window: (0, 0), presence: Presence::Unknown };
    let Some(looks) = looks else { return (none, None) };
    let here = || looks.iter().flatten();
    let epoch = here().map(|look| look.epoch).max().unwrap_or(0);
    let shut = here().find_map(|look| look.shut);
    let quiet_ms = here().filter_map(|look| look.quiet_ms).min();
    let whole = whole(looks);
    let presence = match (quiet_ms, &whole) {
        (Some(quiet_ms), _) => Presence::Loading { quiet_ms },
        (None, Some(_)) => Presence::Whole,
        (None, None) => Presence::Torn,
    };
    let window = here().next().map_or((0, 0), |look| (look.opens_ms, look.closes_ms));
    let left = whole.map(|looks| looks.iter().map(|look| look.left).sum());
    (Loaded { epoch, shut, window, presence, ..none }, left)
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

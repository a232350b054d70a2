//! Bringing an item to Redis and taking it away.
//!
//! **The life of a load.** Each step is made in every partition of the item before the next one:
//!
//! 1. *begin*: take the item over under the new epoch, frozen, with all that it holds. From here on
//!    nobody is admitted; what comes back or is adjusted is refused and comes again later; whoever
//!    loads under an earlier epoch is refused at their next step.
//! 2. Only now are log and ledger read, by the caller. What they say cannot be outdated by the gate.
//! 3. *wipe*, *fill* in the marks a chunk at a time, *sweep* away those that ended, *put* the stock.
//! 4. *open*. Not before every shard has its stock: an open shard beside one that looks empty would
//!    tell buyers that all is sold.
//!
//! Every step may be sent twice. A crash in between leaves the item frozen under an epoch that the
//! ledger knows to be unfinished; each step notes its time, and a loader whose ledger is slow says now
//! and then that it lives. So others see whether it is still at it, and if it is not, somebody starts
//! over with a later epoch.
//!
//! **Millions of marks** are never in memory at once, neither here nor twice at the gate. They come in
//! parts, of which several chunks are on their way at a time. Those marked before the load are put aside
//! there, and each is taken from there when it is marked again; what remains are marks whose orders were
//! closed in the ledger while their release was on its way. Their keys were answered, and stay spent.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    future::{join_all, try_join_all},
    stream,
};
use parking_lot::Mutex;
use redis_link::Call;
use sale::{Claim, Epoch, ItemId};

use super::{
    Lefts,
    directory::{Directory, shard_of},
    holders::Holders,
    known_claims::spent_keys_max,
    scripts,
    shards::shut_code,
    store::Store,
    watch::Watch,
};
use crate::{
    Loading, Result, Shut,
    mark::{Mark, put_bare_mark},
};

/// Marks in one call of `fill.lua`; rows that `gather.lua` and `sweep.lua` look at in one.
const FILL_MARKS_MAX: usize = 1_000;
/// Chunks of one shard that are on their way at the same time.
const FILLS_AT_ONCE_MAX: usize = 8;
/// How often a chunk is sent again whose answer did not come, and how long after.
const FILL_TRIES_MAX: u32 = 4;
const FILL_PAUSE: Duration = Duration::from_millis(200);
/// The answers of the steps of a load; 0 is: somebody else has taken the item over.
const DONE: i64 = 1;
/// Another step has to come first.
const TOO_EARLY: i64 = 2;

pub(super) struct Loader {
    pub(super) store: Arc<Store>,
    pub(super) directory: Arc<Directory>,
    pub(super) watch: Arc<Watch>,
    pub(super) holders: Arc<Holders>,
    /// Units left of each item as last known here, for pages.
    pub(super) lefts: Arc<Lefts>,
    /// What this process has filled in of loads under way.
    pub(super) filling: Mutex<HashMap<ItemId, Filling>>,
}

/// How far a load has come.
pub(super) struct Filling {
    epoch: Epoch,
    wiped: bool,
    /// Chunks that each shard has.
    chunks: Vec<usize>,
}

/// An even share of `left`, the first shards getting one more.
fn share(left: i64, shards: u32, shard: u32) -> i64 {
    let (shards, shard) = (i64::from(shards), i64::from(shard));
    let (each, rest) = (left.div_euclid(shards), left.rem_euclid(shards));
    each + i64::from(shard < rest)
}

impl Filling {
    fn new(epoch: Epoch, shards: u32) -> Filling {
        Filling { epoch, wiped: false, chunks: vec![0; shards as usize] }
    }
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
        let begun = self
            .step(item, shards, |partition| {
                Call::new(&scripts::BEGIN_LOAD, self.counted(partition, item)).number(epoch)
            })
            .await?;
        if begun {
            self.filling.lock().insert(item, Filling::new(epoch, shards));
        }
        Ok(begun)
    }

    /// Nothing is loaded at this moment, but it will be. False if somebody else has taken the item over.
    pub(super) async fn keep(&self, item: ItemId, epoch: Epoch) -> Result<bool> {
        let calls = self.directory.partitions_of(item).into_iter().map(|partition| async move {
            let names = [self.store.keys.meta(partition, item)];
            let call = Call::new(&scripts::KEEP_LOADING, names).number(epoch);
            self.store.run::<i64>(&call).await
        });
        let kept = try_join_all(calls).await?;
        Ok(!kept.is_empty() && kept.into_iter().all(|kept| kept == DONE))
    }

    /// Whoever begins next need not wait for us. Where it cannot be said, the time will say it.
    pub(super) async fn abandon(&self, item: ItemId, epoch: Epoch) {
        self.filling.lock().retain(|id, filling| *id != item || filling.epoch != epoch);
        let calls = self.directory.partitions_of(item).into_iter().map(|partition| async move {
            let names = [self.store.keys.meta(partition, item)];
            let call = Call::new(&scripts::ABANDON_LOAD, names).number(epoch);
            let _ = self.store.run::<i64>(&call).await;
        });
        join_all(calls).await;
    }

    /// A part of step 3. False if somebody else has taken the item over.
    pub(super) async fn fill(&self, item: ItemId, epoch: Epoch, marks: &[Claim]) -> Result<bool> {
        let Some(mut filling) = self.take_filling(item, epoch) else { return Ok(false) };
        let filled = self.fill_some(item, &mut filling, marks).await?;
        if filled {
            // Unless it was begun anew meanwhile.
            self.filling.lock().entry(item).or_insert(filling);
        }
        Ok(filled)
    }

    /// Whoever has it is the only one who fills.
    fn take_filling(&self, item: ItemId, epoch: Epoch) -> Option<Filling> {
        let mut filling = self.filling.lock();
        if filling.get(&item)?.epoch == epoch { filling.remove(&item) } else { None }
    }

    /// The rest of step 3, and step 4. False if somebody else has taken the item over.
    pub(super) async fn load(&self, loading: Loading) -> Result<bool> {
        let (item, epoch) = (loading.item, loading.epoch);
        let shards = self.shards_that_fit(loading.shards);
        let filling = self.take_filling(item, epoch);
        let mut filling = filling.unwrap_or_else(|| Filling::new(epoch, shards));
        if !self.fill_some(item, &mut filling, &loading.marks).await?
            || !self.sweep(item, shards, epoch).await?
        {
            return Ok(false);
        }
        for (shard, chunks) in (0..).zip(filling.chunks) {
            let partition = self.directory.partition(item, shard);
            let left = share(loading.left, shards, shard);
            if !self.put_stock(&loading, partition, chunks, left).await? {
                return Ok(false);
            }
        }
        let opened = self.step(item, shards, |partition| {
            Call::new(&scripts::FINISH_LOAD, self.counted(partition, item))
                .number(epoch)
                .number(shut_code(loading.shut))
        });
        if !opened.await? {
            return Ok(false);
        }
        self.watch.forget(item);
        self.lefts.write().insert(item, loading.left);
        Ok(true)
    }

    /// The state of an item, and where changes of it are counted.
    fn counted(&self, partition: usize, item: ItemId) -> [String; 2] {
        [self.store.keys.meta(partition, item), self.store.keys.changed(partition)]
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
            if self.store.run::<i64>(&call(partition)).await? != DONE {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn wipe(&self, item: ItemId, shards: u32, epoch: Epoch) -> Result<bool> {
        let keys = &self.store.keys;
        for partition in (0..shards).map(|shard| self.directory.partition(item, shard)) {
            let names = [
                keys.meta(partition, item),
                keys.stock(partition, item),
                keys.users(partition, item),
                keys.before(partition, item),
                keys.adjusts(partition, item),
                keys.moves(partition),
                keys.given(partition),
                keys.settled(partition),
            ];
            let wipe = Call::new(&scripts::WIPE, names).number(epoch).number(item.0);
            let mut wiped = self.store.run::<i64>(&wipe).await?;
            if wiped == TOO_EARLY && self.gather(partition, item, epoch).await? {
                wiped = self.store.run(&wipe).await?;
            }
            if wiped != DONE {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn gather(&self, partition: usize, item: ItemId, epoch: Epoch) -> Result<bool> {
        let keys = &self.store.keys;
        let names = [
            keys.meta(partition, item),
            keys.users(partition, item),
            keys.before(partition, item),
            keys.spent(partition, item),
        ];
        self.walk(|cursor| {
            Call::new(&scripts::GATHER, names.clone())
                .number(epoch)
                .arg(cursor)
                .number(FILL_MARKS_MAX)
                .number(spent_keys_max(&self.directory, item))
        })
        .await
    }

    async fn sweep(&self, item: ItemId, shards: u32, epoch: Epoch) -> Result<bool> {
        let keys = &self.store.keys;
        for partition in (0..shards).map(|shard| self.directory.partition(item, shard)) {
            let names = [
                keys.meta(partition, item),
                keys.before(partition, item),
                keys.spent(partition, item),
            ];
            let swept = self.walk(|cursor| {
                Call::new(&scripts::SWEEP, names.clone())
                    .number(epoch)
                    .arg(cursor)
                    .number(FILL_MARKS_MAX)
                    .number(spent_keys_max(&self.directory, item))
            });
            if !swept.await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A script that looks at some rows of a hash and answers where to go on. False if it refuses.
    async fn walk(&self, call: impl Fn(&str) -> Call<'static>) -> Result<bool> {
        let mut cursor = String::from("0");
        loop {
            match self.store.run::<Option<String>>(&call(&cursor)).await? {
                None => return Ok(false),
                Some(next) if next == "0" => return Ok(true),
                Some(next) => cursor = next,
            }
        }
    }

    async fn fill_some(
        &self,
        item: ItemId,
        filling: &mut Filling,
        marks: &[Claim],
    ) -> Result<bool> {
        let shards = filling.chunks.len() as u32;
        if !filling.wiped && !self.wipe(item, shards, filling.epoch).await? {
            return Ok(false);
        }
        filling.wiped = true;
        let mut by_shard: Vec<Vec<&Claim>> = vec![Vec::new(); filling.chunks.len()];
        for claim in marks {
            by_shard[shard_of(&claim.user, shards) as usize].push(claim);
        }
        let fills = by_shard.iter().enumerate().map(|(shard, marks)| {
            let partition = self.directory.partition(item, shard as u32);
            self.fill_shard(partition, item, filling.epoch, filling.chunks[shard], marks)
        });
        let filled = try_join_all(fills).await?;
        for (chunks, marks) in filling.chunks.iter_mut().zip(&by_shard) {
            *chunks += marks.len().div_ceil(FILL_MARKS_MAX);
        }
        Ok(filled.into_iter().all(|filled| filled))
    }

    /// Several chunks are on their way at a time; they arrive in their order, and one that overtook
    /// another, or whose answer was lost, is sent again when it is its turn.
    async fn fill_shard(
        &self,
        partition: usize,
        item: ItemId,
        epoch: Epoch,
        first: usize,
        marks: &[&Claim],
    ) -> Result<bool> {
        let chunks = marks.chunks(FILL_MARKS_MAX).enumerate();
        let calls =
            chunks.map(|(n, chunk)| self.fill_call(partition, item, epoch, first + n, chunk));
        let calls: Vec<Call<'_>> = calls.collect();
        let sent: Vec<_> = calls.iter().map(|call| self.store.run::<i64>(call)).collect();
        let mut answers = stream::iter(sent).buffered(FILLS_AT_ONCE_MAX);
        let mut n = 0;
        while let Some(mut answer) = answers.next().await {
            for _ in 1..FILL_TRIES_MAX {
                if !matches!(answer, Err(_) | Ok(TOO_EARLY)) {
                    break;
                }
                if answer.is_err() {
                    tokio::time::sleep(FILL_PAUSE).await;
                }
                answer = self.store.run(&calls[n]).await;
            }
            if answer? != DONE {
                return Ok(false);
            }
            n += 1;
        }
        Ok(true)
    }

    fn fill_call(
        &self,
        partition: usize,
        item: ItemId,
        epoch: Epoch,
        chunk: usize,
        marks: &[&Claim],
    ) -> Call<'static> {
        let keys = &self.store.keys;
        let names = [
            keys.meta(partition, item),
            keys.users(partition, item),
            keys.before(partition, item),
            keys.spent(partition, item),
        ];
        let units: i64 = marks.iter().map(|claim| i64::from(claim.quantity)).sum();
        let mut call = Call::new(&scripts::FILL, names)
            .number(epoch)
            .number(chunk)
            .number(units)
            .number(spent_keys_max(&self.directory, item));
        for claim in marks {
            call.push(claim.user.as_str());
            call.push(bare_mark(claim));
        }
        call
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
        Ok(self.store.run::<i64>(&call).await? == DONE)
    }

    pub(super) async fn unload(&self, item: ItemId) -> Result<()> {
        for partition in self.directory.partitions_of(item) {
            let keys = &self.store.keys;
            let mut gone = redis::cmd("UNLINK");
            gone.arg(keys.meta(partition, item))
                .arg(keys.stock(partition, item))
                .arg(keys.users(partition, item))
                .arg(keys.before(partition, item))
                .arg(keys.spent(partition, item))
                .arg(keys.adjusts(partition, item));
            self.store.ask::<i64>(&gone).await?;
            let uncounted = redis::cmd("ZREM").arg(keys.changed(partition)).arg(item.0).to_owned();
            self.store.ask::<i64>(&uncounted).await?;
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
            let call =
                Call::new(&scripts::SHUT, self.counted(partition, item)).number(shut_code(shut));
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

//! Reading what the gate holds: for reconcile and for operators.

use std::{collections::HashSet, sync::Arc};

use futures_util::future::join_all;
use redis_link::Call;
use sale::{Claim, ItemId, Millis, OrderNo, UserId};

use super::{
    Lefts, SCAN_ROWS,
    adjust::Adjuster,
    decision,
    directory::Directory,
    moves::Mover,
    on_log::OnLog,
    scripts,
    shards::{ShardReader, presence, whole},
    store::Store,
};
use crate::{Loaded, Presence, Reading, Result, mark::Garbled};

/// Items that are read in one go.
pub(super) const ITEMS_READ_AT_ONCE: usize = 64;

pub(super) struct Inspector {
    pub(super) store: Arc<Store>,
    pub(super) directory: Arc<Directory>,
    pub(super) shards: Arc<ShardReader>,
    pub(super) mover: Arc<Mover>,
    pub(super) adjuster: Arc<Adjuster>,
    pub(super) on_log: Arc<OnLog>,
    /// Units left of each item as last known here, for pages.
    pub(super) lefts: Arc<Lefts>,
}

impl Inspector {
    pub(super) fn left(&self, item: ItemId) -> Option<i64> {
        self.lefts.read().get(&item).map(|left| (*left).max(0))
    }

    pub(super) async fn reading(&self, item: ItemId) -> Result<Option<Reading>> {
        self.directory.find(item).await?;
        let Some(shards) = whole(&self.shards.read_all(item).await?) else { return Ok(None) };
        let in_moves = self.mover.moving_units(item).await?;
        let mut marks = 0;
        for shard in &shards {
            let users = self.store.keys.users(shard.partition, item);
            marks += self.store.ask::<u64>(redis::cmd("HLEN").arg(users)).await?;
        }
        Ok(Some(Reading {
            item,
            epoch: shards[0].epoch,
            shut: shards.iter().find_map(|shard| shard.shut),
            opens_ms: shards[0].opens_ms,
            closes_ms: shards[0].closes_ms,
            left: shards.iter().map(|shard| shard.left).sum::<i64>() + in_moves,
            marks,
            marked_units: shards.iter().map(|shard| shard.units).sum(),
            version: shards.iter().map(|shard| decision::version(shard.epoch, shard.seq)).sum(),
            in_flight: self.on_log.in_flight(item).await?,
            adjusts: self.adjuster.all(item).await?,
        }))
    }

    /// What is at the gate, whole or not: also what a crash left half loaded or half gone.
    pub(super) async fn loaded(&self) -> Result<Vec<Loaded>> {
        self.directory.read_now().await?;
        let mut items: Vec<ItemId> = self.directory.items();
        items.sort_unstable();
        let mut loaded = Vec::with_capacity(items.len());
        for some in items.chunks(ITEMS_READ_AT_ONCE) {
            let shards = join_all(some.iter().map(|item| self.shards.read_all(*item))).await;
            for (item, shards) in some.iter().zip(shards) {
                let here = presence(*item, shards.ok().as_deref());
                self.note_left(&here);
                loaded.push(here.0);
            }
        }
        let known: HashSet<ItemId> = items.into_iter().collect();
        self.lefts.write().retain(|item, _| known.contains(item));
        Ok(loaded)
    }

    pub(super) async fn loaded_item(&self, item: ItemId) -> Result<Option<Loaded>> {
        self.directory.find(item).await?;
        if self.directory.shards(item).is_none() {
            return Ok(None);
        }
        let here = presence(item, Some(&self.shards.read_all(item).await?));
        self.note_left(&here);
        Ok(Some(here.0))
    }

    fn note_left(&self, (here, left): &(Loaded, Option<i64>)) {
        match left {
            Some(left) => drop(self.lefts.write().insert(here.item, *left)),
            // What cannot be read now may still be shown as it was.
            None if here.presence == Presence::Unknown => {}
            None => drop(self.lefts.write().remove(&here.item)),
        }
    }

    /// Every buyer marked on an item.
    /// What time it is where its shards are.
    pub(super) async fn clocks(&self, item: ItemId) -> Vec<Result<Millis>> {
        if let Err(error) = self.directory.find(item).await {
            return vec![Err(error)];
        }
        let asking = self.directory.partitions_of(item).into_iter().map(async |partition| {
            let call = Call::new(&scripts::CLOCK, [self.store.keys.meta(partition, item)]);
            Ok(self.store.run(&call).await?)
        });
        join_all(asking).await
    }

    pub(super) async fn marks(&self, item: ItemId) -> Result<Vec<(UserId, OrderNo)>> {
        let held = held_in(&self.store, self.directory.partitions_of(item), item).await?;
        Ok(held.into_iter().map(|claim| (claim.user, claim.order_no)).collect())
    }
}

/// Every claim that is marked on an item in these partitions.
pub(super) async fn held_in(
    store: &Store,
    partitions: Vec<usize>,
    item: ItemId,
) -> Result<Vec<Claim>> {
    let mut found = Vec::new();
    for partition in partitions {
        let mut cursor: u64 = 0;
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(store.keys.users(partition, item)).arg(cursor).arg("COUNT").arg(SCAN_ROWS);
            let (next, rows): (u64, Vec<(String, Vec<u8>)>) = store.ask(&scan).await?;
            for (user, mark) in rows {
                let user = UserId::stored(&user).map_err(|_| Garbled("user id"))?;
                found.push(decision::claim_of(item, &user, &mark)?);
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
    }
    // A scan may show a row twice while the hash grows.
    found.sort_by_key(|claim| claim.order_no);
    found.dedup_by_key(|claim| claim.order_no);
    Ok(found)
}

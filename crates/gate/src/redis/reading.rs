//! Reading what the gate holds: for reconcile and for operators.

use std::sync::Arc;

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
    shards::{ShardReader, whole},
    store::Store,
};
use crate::{Reading, Result, mark::Garbled};

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

    /// Every buyer marked on an item.
    pub(super) async fn marks(&self, item: ItemId) -> Result<Vec<(UserId, OrderNo)>> {
        let held = held_in(&self.store, self.directory.partitions_of(item), item).await?;
        Ok(held.into_iter().map(|claim| (claim.user, claim.order_no)).collect())
    }
}

/// Every claim that is marked on an item in these partitions.
async fn held_in(store: &Store, partitions: Vec<usize>, item: ItemId) -> Result<Vec<Claim>> {
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

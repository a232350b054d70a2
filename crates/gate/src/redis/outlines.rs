//! Every item at the gate in a few numbers: for whoever wants to know which of thousands have changed since
//! they looked, whether by a script of ours or by somebody's hand.
//!
//! The survey knows what changed by counting what our scripts change. Whoever compares books must not rest
//! on that count, so here every shard is read, many in a call, all partitions at once.

use std::collections::{HashMap, HashSet};

use futures_util::future::join_all;
use redis_link::Call;
use sale::{ItemId, OrderNo, UserId};

use super::{decision, reading::Inspector, scripts, shards::shut_of};
use crate::{Outline, Result, mark::Garbled};

/// Shards that are read in one call.
const READ_AT_ONCE: usize = 64;
/// Marks that are asked for in one call.
const MARKS_AT_ONCE: usize = 500;

impl Inspector {
    pub(super) async fn outlines(&self) -> Result<HashMap<ItemId, Outline>> {
        self.directory.follow(true).await;
        let partitions = (0..self.store.partitions).map(|partition| self.outlines_in(partition));
        let mut parts: HashMap<ItemId, Vec<Outline>> = HashMap::new();
        for of_partition in join_all(partitions).await {
            // What a partition that does not answer has a share of is not whole here, and missing.
            for (item, shard) in of_partition.unwrap_or_default() {
                parts.entry(item).or_default().push(shard);
            }
        }
        let whole = parts.into_iter().filter_map(|(item, shards)| {
            let wanted = self.directory.partitions_of(item).len();
            Some((item, joined(&shards, wanted)?))
        });
        Ok(whole.collect())
    }

    async fn outlines_in(&self, partition: usize) -> Result<Vec<(ItemId, Outline)>> {
        let (items, keys) = (self.directory.items_in(partition), &self.store.keys);
        let mut found = Vec::with_capacity(items.len());
        for some in items.chunks(READ_AT_ONCE) {
            let names = some.iter().flat_map(|item| {
                let item = *item;
                [
                    keys.meta(partition, item),
                    keys.stock(partition, item),
                    keys.users(partition, item),
                ]
            });
            let call = Call::new(&scripts::OUTLINE, names);
            let replies: Vec<Vec<i64>> = self.store.run(&call).await?;
            if replies.len() != some.len() {
                return Err(Garbled("answer of outline.lua").into());
            }
            let shards = some.iter().zip(&replies);
            found.extend(shards.filter_map(|(item, reply)| Some((*item, read(reply)?))));
        }
        Ok(found)
    }

    /// Which of these claims their buyers are marked with.
    pub(super) async fn marked(
        &self,
        item: ItemId,
        claims: &[(UserId, OrderNo)],
    ) -> Result<HashSet<OrderNo>> {
        self.directory.find(item).await?;
        let mut by_home: HashMap<usize, Vec<&(UserId, OrderNo)>> = HashMap::new();
        for claim in claims {
            if let Some(home) = self.directory.home(item, &claim.0) {
                by_home.entry(home).or_default().push(claim);
            }
        }
        let mut marked = HashSet::new();
        for (partition, claims) in by_home {
            for some in claims.chunks(MARKS_AT_ONCE) {
                let mut ask = redis::cmd("HMGET");
                ask.arg(self.store.keys.users(partition, item));
                some.iter().for_each(|(user, _)| _ = ask.arg(user.as_str()));
                let marks: Vec<Option<Vec<u8>>> = self.store.ask(&ask).await?;
                for ((user, order_no), mark) in some.iter().zip(marks) {
                    let Some(mark) = mark else { continue };
                    if decision::claim_of(item, user, &mark)?.order_no == *order_no {
                        marked.insert(*order_no);
                    }
                }
            }
        }
        Ok(marked)
    }
}

fn read(reply: &[i64]) -> Option<Outline> {
    let [epoch, seq, shut, marked_units, left, marks] = *reply else { return None };
    Some(Outline {
        epoch: epoch as u64,
        version: decision::version(epoch as u64, seq as u64),
        shut: shut_of(shut),
        left,
        marks: marks as u64,
        marked_units,
    })
}

/// All shards as one item, added up as a reading adds them.
fn joined(shards: &[Outline], wanted: usize) -> Option<Outline> {
    let first = shards.first().filter(|_| shards.len() == wanted)?;
    let same = shards.iter().all(|shard| shard.epoch == first.epoch);
    same.then(|| Outline {
        epoch: first.epoch,
        version: shards.iter().map(|shard| shard.version).sum(),
        shut: shards.iter().find_map(|shard| shard.shut),
        left: shards.iter().map(|shard| shard.left).sum(),
        marks: shards.iter().map(|shard| shard.marks).sum(),
        marked_units: shards.iter().map(|shard| shard.marked_units).sum(),
    })
}

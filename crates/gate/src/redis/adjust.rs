//! Adjustments: an operator changes the stock of an item that is spread over shards.
//!
//! The number of an adjustment is its identity, and each shard notes the part of it that it has. So a
//! run that was interrupted is taken up where it ended, and one that was refused takes back what it took.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use redis::Value;
use redis_link::Call;
use sale::{ItemId, OrderNo};

use super::{Ticks, directory::Directory, scripts, shards::ShardReader, store::Store};
use crate::{AdjustOutcome, Changed, GateError, GateFailure, Result, mark::Garbled};

/// How often an adjustment is looked at anew when a shard has another part of it than was known.
const ADJUST_TRIES_MAX: u32 = 4;

pub(super) struct Adjuster {
    pub(super) store: Arc<Store>,
    pub(super) directory: Arc<Directory>,
    pub(super) shards: Arc<ShardReader>,
    pub(super) ticks: Arc<Ticks>,
}

/// What one shard did about an adjustment.
enum ShardAdjusted {
    By(i64),
    /// It has another part of it than was known.
    Otherwise,
    Short,
    NotHere,
}

impl Adjuster {
    /// The part of an adjustment that a shard has. Zero: it was contained in the load.
    async fn adjusted_by(
        &self,
        partition: usize,
        item: ItemId,
        adjust_no: OrderNo,
    ) -> Result<Option<i64>> {
        let mut known = redis::cmd("HGET");
        known.arg(self.store.keys.adjusts(partition, item)).arg(adjust_no.to_string());
        Ok(self.store.ask(&known).await?)
    }

    /// `had`: the part of it that the shard is known to have.
    async fn adjust_shard(
        &self,
        shard: (usize, Option<i64>),
        item: ItemId,
        adjust_no: OrderNo,
        delta: i64,
        mode: &str,
    ) -> Result<ShardAdjusted> {
        let (keys, (partition, had)) = (&self.store.keys, shard);
        let names = [
            keys.meta(partition, item),
            keys.stock(partition, item),
            keys.adjusts(partition, item),
            keys.changed(partition),
        ];
        let call = Call::new(&scripts::ADJUST, names)
            .number(adjust_no)
            .number(delta)
            .arg(mode)
            .arg(had.map_or_else(String::new, |had| had.to_string()));
        let reply: Vec<Value> = self.store.run(&call).await?;
        Ok(match (letter_of(&reply), &reply[..]) {
            (Some(b'D'), [_, _, Value::Int(applied)]) => ShardAdjusted::By(*applied),
            (Some(b'R'), _) => ShardAdjusted::Otherwise,
            (Some(b'S'), _) => ShardAdjusted::Short,
            (Some(b'N'), _) => ShardAdjusted::NotHere,
            _ => return Err(Garbled("answer of adjust.lua").into()),
        })
    }

    /// Raising goes to one shard (stealing spreads it); lowering takes from each what it has. A run
    /// that was interrupted is taken up where it ended: what the shards have of it is not done again.
    pub(super) async fn adjust(
        &self,
        item: ItemId,
        adjust_no: OrderNo,
        delta: i64,
        committed: bool,
    ) -> Result<AdjustOutcome> {
        self.directory.find(item).await?;
        let mut changed = false;
        for _ in 0..ADJUST_TRIES_MAX {
            let mut shards = Vec::new();
            for partition in self.directory.partitions_of(item) {
                shards.push((partition, self.adjusted_by(partition, item, adjust_no).await?));
            }
            if shards.is_empty() {
                return Ok(AdjustOutcome::NotLoaded);
            }
            let had = shards.iter().filter_map(|(_, had)| *had).sum::<i64>();
            if had == delta || shards.iter().any(|(_, had)| *had == Some(0)) {
                return Ok(if changed {
                    self.adjusted(item, delta)
                } else {
                    AdjustOutcome::Repeated
                });
            }
            if !committed && !may_be_part(had, delta) {
                return Ok(AdjustOutcome::Other { delta: had });
            }
            match self.adjust_rest(&shards, item, adjust_no, delta - had, committed).await? {
                ShardAdjusted::By(_) => return Ok(self.adjusted(item, delta)),
                ShardAdjusted::NotHere => return Ok(AdjustOutcome::NotLoaded),
                ShardAdjusted::Short => {
                    let left = self.shards.total_left(item).await?;
                    return Ok(AdjustOutcome::Short { left });
                }
                // Perhaps by ourselves, by a call whose answer was lost.
                ShardAdjusted::Otherwise => changed = true,
            }
        }
        let detail = "others keep changing the adjustment; ask again";
        Err(GateError::new(GateFailure::Unreachable, detail))
    }

    fn adjusted(&self, item: ItemId, units: i64) -> AdjustOutcome {
        AdjustOutcome::Done(Changed { item, version: self.ticks.next(), units })
    }

    async fn adjust_rest(
        &self,
        shards: &[(usize, Option<i64>)],
        item: ItemId,
        adjust_no: OrderNo,
        mut rest: i64,
        committed: bool,
    ) -> Result<ShardAdjusted> {
        let Some((last, others)) = shards.split_last() else { return Ok(ShardAdjusted::NotHere) };
        let others = if rest < 0 { others } else { &[] };
        let mut taken = Vec::new();
        for shard in others {
            match self.adjust_shard(*shard, item, adjust_no, rest, "take").await? {
                ShardAdjusted::By(applied) => {
                    rest -= applied;
                    taken.push((*shard, applied));
                }
                other => return Ok(other),
            }
            if rest == 0 {
                return Ok(ShardAdjusted::By(0));
            }
        }
        let mode = if committed { "force" } else { "refuse" };
        let done = self.adjust_shard(*last, item, adjust_no, rest, mode).await?;
        if let ShardAdjusted::Short = done {
            self.undo_taken(&taken, item, adjust_no).await?;
        }
        Ok(done)
    }

    /// Of what the shards have under this number, only that which this run took goes back: what an
    /// earlier one took may be in the ledger by now.
    async fn undo_taken(
        &self,
        taken: &[((usize, Option<i64>), i64)],
        item: ItemId,
        adjust_no: OrderNo,
    ) -> Result<()> {
        for ((partition, had), applied) in taken.iter().filter(|(_, applied)| *applied != 0) {
            let now = (*partition, Some(had.unwrap_or(0) + applied));
            self.adjust_shard(now, item, adjust_no, -applied, "force").await?;
        }
        Ok(())
    }

    pub(super) async fn forget(&self, item: ItemId, adjust_no: OrderNo) -> Result<Option<Changed>> {
        self.directory.find(item).await?;
        let mut units = 0;
        let mut known = false;
        for partition in self.directory.partitions_of(item) {
            let keys = &self.store.keys;
            let names = [
                keys.meta(partition, item),
                keys.stock(partition, item),
                keys.adjusts(partition, item),
                keys.changed(partition),
            ];
            let call = Call::new(&scripts::FORGET_ADJUST, names).number(adjust_no);
            let reply: Vec<i64> = self.store.run(&call).await?;
            if let [_, back] = reply[..] {
                known = true;
                units += back;
            }
        }
        Ok(known.then(|| Changed { item, version: self.ticks.next(), units }))
    }

    /// Every adjustment that the shards have, their parts added up.
    pub(super) async fn all(&self, item: ItemId) -> Result<Vec<(OrderNo, i64)>> {
        self.directory.find(item).await?;
        let mut adjusts: BTreeMap<OrderNo, i64> = BTreeMap::new();
        for partition in self.directory.partitions_of(item) {
            let adjusted = self.store.keys.adjusts(partition, item);
            let here: HashMap<String, i64> =
                self.store.ask(redis::cmd("HGETALL").arg(adjusted)).await?;
            for (no, delta) in here {
                let no = no.parse().map_err(|_| Garbled("adjustment number"))?;
                *adjusts.entry(no).or_default() += delta;
            }
        }
        Ok(adjusts.into_iter().collect())
    }
}

/// Could the shards have so many units of a change by `delta` because a run of it was interrupted? A
/// smaller change under the same number looks the same; which of the two counts, the ledger decides.
fn may_be_part(had: i64, delta: i64) -> bool {
    had == 0 || (had.signum() == delta.signum() && had.abs() < delta.abs())
}

fn letter_of(reply: &[Value]) -> Option<&u8> {
    match reply.first() {
        Some(Value::BulkString(bytes)) => bytes.first(),
        _ => None,
    }
}

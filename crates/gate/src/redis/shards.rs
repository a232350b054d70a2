//! One shard of an item as it is in Redis: the reading that moves, adjustments and reports are made of.

use std::sync::Arc;

use futures_util::future::try_join_all;
use redis_link::Call;
use sale::{Epoch, ItemId, Millis};

use super::{
    directory::Directory,
    scripts,
    store::Store,
    watch::{Seen, Watch},
};
use crate::{Loaded, Presence, Result, Shut, mark::Garbled};

/// What is answered for an item that cannot be read.
const UNREADABLE: i64 = -1;

/// One shard of an item at one instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardState {
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
    /// The server process it was loaded in, if that is noted.
    server: Option<u64>,
}

impl ShardState {
    /// `None` if it is not there, or not whole.
    fn read(partition: usize, reply: &[i64]) -> Option<ShardState> {
        let [epoch, seq, shut, opens_ms, closes_ms, units, left, quiet_ms, server] = *reply else {
            return None;
        };
        Some(ShardState {
            partition,
            epoch: epoch as Epoch,
            seq: seq as u64,
            shut: shut_of(shut),
            opens_ms,
            closes_ms,
            units,
            left,
            quiet_ms: u64::try_from(quiet_ms).ok(),
            server: u64::try_from(server).ok().filter(|server| *server != 0),
        })
    }

    pub(super) fn is_loading(&self) -> bool {
        self.quiet_ms.is_some()
    }

    /// Is it with another server process than the one it was loaded in? One that is being loaded or has
    /// ended is no worry.
    fn is_elsewhere(&self, server: u64) -> bool {
        let noted = self.server.is_some_and(|noted| noted != server);
        noted && !self.is_loading() && self.shut != Some(Shut::Ended)
    }
}

/// All shards, if all are there, of one epoch, and none is being loaded.
pub(super) fn whole(shards: &[Option<ShardState>]) -> Option<Vec<ShardState>> {
    let shards: Vec<ShardState> = shards.iter().copied().collect::<Option<_>>()?;
    let epoch = shards.first()?.epoch;
    shards.iter().all(|shard| shard.epoch == epoch && shard.quiet_ms.is_none()).then_some(shards)
}

/// What the scripts' number says.
pub(super) fn shut_of(code: i64) -> Option<Shut> {
    match code {
        0 => None,
        1 => Some(Shut::Paused),
        3 => Some(Shut::Ended),
        _ => Some(Shut::Frozen),
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

pub(super) struct ShardReader {
    pub(super) store: Arc<Store>,
    pub(super) directory: Arc<Directory>,
    pub(super) watch: Arc<Watch>,
}

impl ShardReader {
    async fn read(&self, partition: usize, item: ItemId) -> Result<Option<ShardState>> {
        let shard = self.read_some(partition, &[item], None).await?.pop().flatten();
        Ok(shard.ok_or(Garbled("item"))?)
    }

    /// Some items of a partition in one call: each as it is there, or nothing if it cannot be read. An
    /// item that is not with this server, if it is given, is suspect.
    pub(super) async fn read_some(
        &self,
        partition: usize,
        items: &[ItemId],
        server: Option<u64>,
    ) -> Result<Vec<Option<Option<ShardState>>>> {
        let keys = &self.store.keys;
        let names = items
            .iter()
            .flat_map(|item| [keys.meta(partition, *item), keys.stock(partition, *item)]);
        let seen: Vec<Seen> = items.iter().map(|item| self.watch.seen(partition, *item)).collect();
        let call = Call::new(&scripts::READ_SHARDS, names);
        let replies: Vec<Vec<i64>> = self.store.run(&call).await?;
        if replies.len() != items.len() {
            return Err(Garbled("answer of read_shards.lua").into());
        }
        let read = items.iter().zip(seen).zip(&replies).map(|((item, seen), reply)| {
            if reply[..] == [UNREADABLE] {
                return None;
            }
            let shard = ShardState::read(partition, reply);
            if let Some(shard) = &shard {
                self.watch.note(partition, *item, seen, (shard.epoch, shard.seq), false);
                if server.is_some_and(|server| shard.is_elsewhere(server)) {
                    self.watch.suspect(partition, *item);
                }
            }
            Some(shard)
        });
        Ok(read.collect())
    }

    /// Every shard of an item, in their order.
    pub(super) async fn read_all(&self, item: ItemId) -> Result<Vec<Option<ShardState>>> {
        let partitions = self.directory.partitions_of(item).into_iter();
        let shards = partitions.map(|partition| self.read(partition, item));
        try_join_all(shards).await
    }

    /// What all shards have left; what is on its way between them is not in it.
    pub(super) async fn total_left(&self, item: ItemId) -> Result<i64> {
        let shards = self.read_all(item).await?;
        Ok(shards.iter().flatten().map(|shard| shard.left).sum())
    }
}

/// How much of an item is there, and what is left of it if it is whole.
pub(super) fn presence(
    item: ItemId,
    shards: Option<&[Option<ShardState>]>,
) -> (Loaded, Option<i64>) {
    let none = Loaded { item, epoch: 0, shut: None, window: (0, 0), presence: Presence::Unknown };
    let Some(shards) = shards else { return (none, None) };
    let here = || shards.iter().flatten();
    let epoch = here().map(|shard| shard.epoch).max().unwrap_or(0);
    let shut = here().find_map(|shard| shard.shut);
    let quiet_ms = here().filter_map(|shard| shard.quiet_ms).min();
    let whole = whole(shards);
    let presence = match (quiet_ms, &whole) {
        (Some(quiet_ms), _) => Presence::Loading { quiet_ms },
        (None, Some(_)) => Presence::Whole,
        (None, None) => Presence::Torn,
    };
    let window = here().next().map_or((0, 0), |shard| (shard.opens_ms, shard.closes_ms));
    let left = whole.map(|shards| shards.iter().map(|shard| shard.left).sum());
    (Loaded { epoch, shut, window, presence, ..none }, left)
}

//! What is at the gate, as this process knows it.
//!
//! There may be thousands of items, and every process wants to know of all of them all the time: the warm
//! job, pages, those who look for lost writes. So what is known is kept, and brought up to date at the
//! price of what changed. Every change of an item is counted in its partition ([`Keys::changed`]), and
//! the pulse tells which items changed since it was last asked for. Those are read, and besides them:
//!
//! - items that are not whole, each time: a load under way makes no noise at every step;
//! - all of a partition at which another server process answers, or whose count went back: writes may be
//!   lost, and its items may be with another process than the one they were loaded in;
//! - all of one partition each time, in turns: somebody may have changed keys by hand, and a process of
//!   an earlier release does not count what it changes.
//!
//! A partition that does not answer keeps nobody from the others.
//!
//! [`Keys::changed`]: super::keys::Keys::changed

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use sale::ItemId;

use super::{
    Lefts,
    directory::Directory,
    pulses::{Answers, Pulse, Pulses},
    shards::{ShardReader, ShardState, presence},
};
use crate::{Loaded, Presence, Result};

/// Items of one partition that are read in one call.
const ITEMS_READ_AT_ONCE: usize = 64;
/// Jobs that look at everything all the time take what was known this long ago.
const LATELY: Duration = Duration::from_millis(1_500);

pub(super) struct Survey {
    pub(super) directory: Arc<Directory>,
    pub(super) shards: Arc<ShardReader>,
    pub(super) pulses: Arc<Pulses>,
    /// Units left of each item as last known here, for pages.
    pub(super) lefts: Arc<Lefts>,
    /// When the last survey began, and what the partitions said. Whoever makes one holds it.
    pub(super) last: tokio::sync::Mutex<Option<(Instant, Answers)>>,
    pub(super) known: Mutex<Known>,
}

/// What the last survey found.
pub(super) struct Known {
    /// Items, and how many shards each has.
    directory: HashMap<ItemId, u32>,
    /// Who answered, and how many changes there were; nothing of a partition that did not answer.
    partitions: Vec<Option<(u64, Option<u64>)>>,
    /// The shards; nothing if it is not here. One that could not be read is not in the list.
    shards: HashMap<(usize, ItemId), Option<ShardState>>,
    /// Those that are not whole.
    unsettled: HashSet<(usize, ItemId)>,
    /// The partition that is read as a whole next.
    turn: usize,
    /// What is told of each item…
    told: BTreeMap<ItemId, Loaded>,
    /// …but for those of which something has changed since.
    untold: HashSet<ItemId>,
}

impl Known {
    pub(super) fn nothing(partitions: usize) -> Known {
        Known {
            directory: HashMap::new(),
            partitions: vec![None; partitions],
            shards: HashMap::new(),
            unsettled: HashSet::new(),
            turn: 0,
            told: BTreeMap::new(),
            untold: HashSet::new(),
        }
    }

    fn note(&mut self, partition: usize, item: ItemId, read: Option<Option<ShardState>>) {
        let key = (partition, item);
        self.untold.insert(item);
        let is_whole = |shard: &Option<ShardState>| shard.is_some_and(|shard| !shard.is_loading());
        if read.as_ref().is_some_and(is_whole) {
            self.unsettled.remove(&key);
        } else {
            self.unsettled.insert(key);
        }
        match read {
            Some(shard) => drop(self.shards.insert(key, shard)),
            None => drop(self.shards.remove(&key)),
        }
    }

    /// Who answers at a partition, and how many changes there were; nothing if nobody does.
    fn heard(&mut self, partition: usize, heard: Option<(u64, Option<u64>)>) {
        if self.partitions[partition].is_some() != heard.is_some() {
            self.untold.extend(self.directory.keys());
        }
        self.partitions[partition] = heard;
    }

    /// An item as far as it is known: all its shards, or nothing.
    fn item(&self, item: ItemId, partitions: &[usize]) -> Option<Vec<Option<ShardState>>> {
        let shard = |partition: &usize| {
            self.partitions[*partition].and(self.shards.get(&(*partition, item)).copied())
        };
        partitions.iter().map(shard).collect()
    }
}

impl Survey {
    /// What is at the gate now, whole or not: also what a crash left half loaded or half gone.
    pub(super) async fn loaded(&self) -> Vec<Loaded> {
        self.make().await;
        self.tell()
    }

    /// The same, as it was a moment ago if somebody looked then.
    pub(super) async fn loaded_lately(&self) -> Vec<Loaded> {
        self.look().await;
        self.known.lock().told.values().copied().collect()
    }

    /// A survey, unless there was one a moment ago.
    pub(super) async fn look(&self) {
        let last = self.last.lock().await.as_ref().map(|(begun, _)| *begun);
        if last.is_none_or(|begun| begun.elapsed() > LATELY) {
            self.make().await;
        }
        self.note_what_changed();
    }

    /// Those who ask at the same time share a survey, which must have begun after they asked.
    /// Answers what the partitions said.
    pub(super) async fn make(&self) -> Answers {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((_, answers)) = last.as_ref().filter(|(begun, _)| *begun >= asked) {
            return answers.clone();
        }
        let begun = Instant::now();
        let (seen, turn) = {
            let mut known = self.known.lock();
            known.turn = (known.turn + 1) % known.partitions.len();
            let seen = known.partitions.iter().map(|seen| seen.and_then(|(_, changes)| changes));
            (seen.collect::<Vec<_>>(), known.turn)
        };
        let answers = self.pulses.take(&seen).await;
        let anew = self.follow_directory(&answers).await;
        let reads = answers.iter().enumerate().map(|(partition, pulse)| async move {
            if let Ok(pulse) = pulse {
                self.read(partition, pulse, anew || partition == turn).await
            } else {
                self.known.lock().heard(partition, None);
            }
        });
        join_all(reads).await;
        *last = Some((begun, answers.clone()));
        answers
    }

    /// True if it is another one than at the last survey, whoever has read or changed it since.
    async fn follow_directory(&self, answers: &Answers) -> bool {
        let before = self.directory.copy();
        let changed = answers.iter().flatten().flat_map(|pulse| &pulse.changed);
        let unknown = changed.into_iter().any(|item| !before.contains_key(item));
        self.directory.follow(unknown).await;
        let now = self.directory.copy();
        let mut known = self.known.lock();
        if known.directory == now {
            return false;
        }
        known.shards.retain(|(_, item), _| now.contains_key(item));
        known.unsettled.retain(|(_, item)| now.contains_key(item));
        known.told.retain(|item, _| now.contains_key(item));
        known.untold = now.keys().copied().collect();
        self.lefts.write().retain(|item, _| now.contains_key(item));
        known.directory = now;
        true
    }

    /// What changed in a partition, or all of it.
    async fn read(&self, partition: usize, pulse: &Pulse, all: bool) {
        let (server, changes) = (pulse.server, pulse.changes);
        let items = {
            let known = self.known.lock();
            let went_on = known.partitions[partition].is_some_and(|(before, seen)| {
                before == server && seen <= changes && (seen.is_some() || changes.is_none())
            });
            if all || !went_on {
                self.directory.items_in(partition)
            } else {
                let unsettled = known.unsettled.iter().filter(|(at, _)| *at == partition);
                let unsettled = unsettled.map(|(_, item)| *item);
                let items: HashSet<ItemId> =
                    unsettled.chain(pulse.changed.iter().copied()).collect();
                items.into_iter().filter(|item| self.directory.is_in(*item, partition)).collect()
            }
        };
        let mut heard = Some((server, changes));
        for some in items.chunks(ITEMS_READ_AT_ONCE) {
            match self.shards.read_some(partition, some, Some(server)).await {
                Ok(shards) => {
                    let mut known = self.known.lock();
                    for (item, shard) in some.iter().zip(shards) {
                        known.note(partition, *item, shard);
                    }
                }
                Err(_) => heard = None,
            }
        }
        self.known.lock().heard(partition, heard);
    }

    /// Of thousands only those are put together anew of which something has changed.
    fn tell(&self) -> Vec<Loaded> {
        self.note_what_changed();
        self.known.lock().told.values().copied().collect()
    }

    /// What has changed of items is told from now on, and shown.
    fn note_what_changed(&self) {
        let mut known = self.known.lock();
        let untold: Vec<ItemId> = known.untold.drain().collect();
        for item in untold {
            // One that somebody has brought since the survey is told of by the next.
            if !known.directory.contains_key(&item) {
                continue;
            }
            let shards = known.item(item, &self.directory.partitions_of(item));
            let (here, left) = presence(item, shards.as_deref());
            self.note_left(&here, left);
            known.told.insert(item, here);
        }
    }

    fn note_left(&self, here: &Loaded, left: Option<i64>) {
        match left {
            Some(left) => drop(self.lefts.write().insert(here.item, left)),
            // What cannot be read now may still be shown as it was.
            None if here.presence == Presence::Unknown => {}
            None => drop(self.lefts.write().remove(&here.item)),
        }
    }

    /// One item, read now.
    pub(super) async fn loaded_item(&self, item: ItemId) -> Result<Option<Loaded>> {
        self.directory.find(item).await?;
        if self.directory.shards(item).is_none() {
            return Ok(None);
        }
        let (here, left) = presence(item, Some(&self.shards.read_all(item).await?));
        self.note_left(&here, left);
        Ok(Some(here))
    }
}

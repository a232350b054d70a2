//! Stealing: units from a rich shard for a dry one.
//!
//! The life of a move: `take` on the rich shard lowers its stock and notes the move there; `give`
//! raises the stock here and notes that it did; the note on the rich shard is settled. Dying after
//! `take` leaves an open move, whose units belong to nobody for the moment: anyone who comes by gives
//! them where they were going. Dying after `give` leaves the same, and giving again is a no-op. That
//! it was given, and that it is over, is remembered until long after, because somebody slow may have
//! seen the move open and still be about to give, or a lost `take` may be sent again.
//!
//! How old an open move or a note is, everybody measures from when they first saw it, by their machine's
//! own time: the time it carries is of its writer's clock, which may be wrong or step. An open move that
//! shards old by that time is finished at once, though, for finishing early does no harm.
//!
//! Nothing is taken from or given to a shard that is being loaded. What was going there waits where
//! it is noted, and a thief who meets such a shard does not know whether all is sold.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis_link::Call;
use sale::{Epoch, ItemId};

use super::{
    directory::Directory,
    pulses::Pulse,
    scripts,
    shards::{ShardReader, ShardState, whole},
    store::Store,
};
use crate::{GateError, GateFailure, Result};

/// A move open longer than this is finished by whoever sees it.
const OPEN_MAX: Duration = Duration::from_secs(1);
/// How long it is remembered that a move was given, and that it is over.
const NOTES_KEPT: Duration = Duration::from_secs(600);
/// How often those are looked for that need not be remembered any more.
const FORGET_EVERY: Duration = Duration::from_secs(30);

pub(super) struct Mover {
    store: Arc<Store>,
    directory: Arc<Directory>,
    shards: Arc<ShardReader>,
    /// Moves are named by a random name of the process and a counter.
    name: u64,
    count: AtomicU64,
    seen: FirstSeen,
    /// When notes were last looked through.
    looked: Mutex<Option<Instant>>,
}

/// When this process first saw each note, by the place it is noted at. Holds what is noted now.
#[derive(Default)]
struct FirstSeen(Mutex<HashMap<String, HashMap<String, Instant>>>);

impl FirstSeen {
    /// These are the notes at the place now. Answers for how long each has been known here.
    fn ages<'n>(
        &self,
        place: String,
        notes: impl Iterator<Item = &'n String>,
    ) -> HashMap<&'n String, Duration> {
        let now = Instant::now();
        let mut places = self.0.lock();
        let before = places.remove(&place).unwrap_or_default();
        let first = |note: &'n String| (note, before.get(note).copied().unwrap_or(now));
        let seen: HashMap<&String, Instant> = notes.map(first).collect();
        if !seen.is_empty() {
            places.insert(place, seen.iter().map(|(note, at)| ((*note).clone(), *at)).collect());
        }
        seen.into_iter().map(|(note, at)| (note, now - at)).collect()
    }
}

impl Mover {
    pub(super) fn new(
        store: Arc<Store>,
        directory: Arc<Directory>,
        shards: Arc<ShardReader>,
    ) -> Result<Mover> {
        let mut name = [0; 8];
        getrandom::fill(&mut name)
            .map_err(|error| GateError::new(GateFailure::Unreachable, error))?;
        let (name, count) = (u64::from_le_bytes(name), AtomicU64::new(0));
        Ok(Mover {
            store,
            directory,
            shards,
            name,
            count,
            seen: FirstSeen::default(),
            looked: Mutex::default(),
        })
    }

    fn next(&self) -> String {
        format!("{:016x}-{}", self.name, self.count.fetch_add(1, Ordering::Relaxed))
    }
}

/// An open move, as it is noted on the shard the units came from.
struct Move {
    id: String,
    item: ItemId,
    epoch: Epoch,
    to: usize,
    units: i64,
    since_ms: u128,
}

impl Move {
    fn read(id: String, note: &str) -> Option<Move> {
        let mut parts = note.split(':');
        Some(Move {
            id,
            item: parts.next()?.parse().ok()?,
            epoch: parts.next()?.parse().ok()?,
            to: parts.next()?.parse().ok()?,
            units: parts.next()?.parse().ok()?,
            since_ms: parts.next()?.parse().ok()?,
        })
    }
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis())
}

/// What became of the second step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    Here,
    /// The item has another epoch by now, and the units were counted anew.
    Over,
    /// The shard is being loaded.
    NotYet,
}

impl Mover {
    /// Bring units of `item` to the shard in partition `to`, for buyers of whom none wants less than
    /// `least`. Answers how many came; 0 means that there are none for them anywhere, neither in a
    /// shard nor on their way. An error: nobody can say, for a shard is being loaded or does not answer.
    pub(super) async fn steal(
        &self,
        to: usize,
        item: ItemId,
        wanted: i64,
        least: i64,
    ) -> Result<i64> {
        if self.directory.shards(item) == Some(1) {
            return Ok(0);
        }
        let before = self.whole_shards(item).await?;
        if has_enough(&before, to, least) {
            // Another thief was here since the caller looked.
            return Ok(1);
        }
        let Some((epoch, from)) = richest_but(&before, to) else {
            let moved = self.finish_moves_of(item).await?;
            if moved > 0 {
                return Ok(moved);
            }
            // Units that moved while we went from shard to shard may have been nowhere we looked. If
            // nothing changed since, there are none.
            let after = self.whole_shards(item).await?;
            let states = |shards: &[ShardState]| -> Vec<_> {
                shards.iter().map(|shard| (shard.epoch, shard.seq)).collect()
            };
            return Ok(i64::from(states(&before) != states(&after)));
        };
        let id = self.next();
        let keys = &self.store.keys;
        let names = [
            keys.meta(from, item),
            keys.stock(from, item),
            keys.moves(from),
            keys.settled(from),
            keys.changed(from),
        ];
        let since_ms = now_ms();
        let call = Call::new(&scripts::TAKE_UNITS, names)
            .number(epoch)
            .arg(id.as_str())
            .number(item.0)
            .number(to)
            .number(wanted)
            .number(since_ms);
        let units: i64 = self.store.run(&call).await?;
        if units < 0 {
            return Err(being_loaded());
        }
        if units > 0 {
            let stock = Move { id, item, epoch, to, units, since_ms };
            if self.finish_move(from, &stock).await? == Given::NotYet {
                return Err(being_loaded());
            }
        }
        // Somebody else may have been faster; then the caller shards again.
        Ok(units.max(1))
    }

    async fn whole_shards(&self, item: ItemId) -> Result<Vec<ShardState>> {
        whole(&self.shards.read_all(item).await?).ok_or_else(being_loaded)
    }

    async fn finish_move(&self, from: usize, stock: &Move) -> Result<Given> {
        let keys = &self.store.keys;
        let names = [
            keys.meta(stock.to, stock.item),
            keys.stock(stock.to, stock.item),
            keys.given(stock.to),
            keys.changed(stock.to),
        ];
        let call = Call::new(&scripts::GIVE_UNITS, names)
            .number(stock.epoch)
            .arg(stock.id.as_str())
            .number(stock.item.0)
            .number(stock.units)
            .number(now_ms());
        let given = match self.store.run::<i64>(&call).await? {
            1 => Given::Here,
            0 => Given::Over,
            _ => return Ok(Given::NotYet),
        };
        let call = Call::new(&scripts::SETTLE_MOVE, [keys.moves(from), keys.settled(from)])
            .arg(stock.id.as_str())
            .number(stock.item.0)
            .number(now_ms());
        self.store.run::<i64>(&call).await?;
        Ok(given)
    }

    async fn open_moves(&self, partition: usize) -> Result<Vec<Move>> {
        let command = redis::cmd("HGETALL").arg(self.store.keys.moves(partition)).to_owned();
        let notes: HashMap<String, String> = self.store.ask(&command).await?;
        Ok(notes.into_iter().filter_map(|(id, note)| Move::read(id, &note)).collect())
    }

    pub(super) async fn moving_units(&self, item: ItemId) -> Result<i64> {
        let mut units = 0;
        for partition in self.directory.partitions_of(item) {
            for open in self.open_moves(partition).await? {
                if open.item == item && !self.is_given(&open).await? {
                    units += open.units;
                }
            }
        }
        Ok(units)
    }

    async fn is_given(&self, stock: &Move) -> Result<bool> {
        let command =
            redis::cmd("HEXISTS").arg(self.store.keys.given(stock.to)).arg(&stock.id).to_owned();
        Ok(self.store.ask(&command).await?)
    }

    /// Finish every open move of an item, whoever began it. Answers how many units moved.
    async fn finish_moves_of(&self, item: ItemId) -> Result<i64> {
        let mut units = 0;
        for partition in self.directory.partitions_of(item) {
            for open in self.open_moves(partition).await? {
                if open.item == item {
                    match self.finish_move(partition, &open).await? {
                        Given::NotYet => return Err(being_loaded()),
                        Given::Here | Given::Over => units += open.units,
                    }
                }
            }
        }
        Ok(units)
    }

    /// Finish what somebody left open, then forget what was over long ago. In this order: a move that
    /// is still open may have been given, and only the note of it says so.
    pub(super) async fn finish_moves(&self, answers: &[Result<Pulse>]) -> Result<()> {
        let of = |wanted: fn(&Pulse) -> bool| {
            let pulses = answers.iter().enumerate();
            pulses.filter(move |(_, pulse)| pulse.as_ref().is_ok_and(wanted)).map(|(at, _)| at)
        };
        // All at once: one that does not answer is waited for, and the others are not kept waiting.
        let open = of(|pulse| pulse.moves > 0).map(|at| self.finish_open(at));
        let finished: Vec<bool> = join_all(open).await.into_iter().collect::<Result<_>>()?;
        // One that does not answer may have open moves, of which only the notes of others tell.
        let all_answer = answers.iter().all(Result::is_ok);
        if !all_answer || !finished.into_iter().all(|all| all) || !self.may_forget() {
            return Ok(());
        }
        let notes = of(|pulse| pulse.has_notes)
            .flat_map(|at| [self.store.keys.given(at), self.store.keys.settled(at)]);
        let forgotten = notes.map(|notes| async move { self.forget_old(&notes).await });
        join_all(forgotten).await.into_iter().collect()
    }

    /// Notes are kept so long that nobody need look at them all the time.
    fn may_forget(&self) -> bool {
        let mut looked = self.looked.lock();
        let due = looked.is_none_or(|looked| looked.elapsed() > FORGET_EVERY);
        if due {
            *looked = Some(Instant::now());
        }
        due
    }

    /// False if some of those that have been open for long still are.
    async fn finish_open(&self, partition: usize) -> Result<bool> {
        let mut all = true;
        let open = self.open_moves(partition).await?;
        let place = self.store.keys.moves(partition);
        let ages = self.seen.ages(place, open.iter().map(|open| &open.id));
        for open in &open {
            let looks_old = now_ms().saturating_sub(open.since_ms) > OPEN_MAX.as_millis();
            if looks_old || ages[&open.id] > OPEN_MAX {
                all &= self.finish_move(partition, open).await? != Given::NotYet;
            }
        }
        Ok(all)
    }

    /// Notes of moves that nobody can be about to make any more.
    async fn forget_old(&self, notes: &str) -> Result<()> {
        let command = redis::cmd("HKEYS").arg(notes).to_owned();
        let all: Vec<String> = self.store.ask(&command).await?;
        let ages = self.seen.ages(notes.to_owned(), all.iter());
        for (id, _) in ages.into_iter().filter(|(_, age)| *age > NOTES_KEPT) {
            let gone = redis::cmd("HDEL").arg(notes).arg(id).to_owned();
            self.store.ask::<i64>(&gone).await?;
        }
        Ok(())
    }
}

fn has_enough(shards: &[ShardState], to: usize, least: i64) -> bool {
    shards.iter().any(|shard| shard.partition == to && shard.left >= least)
}

/// Another shard of the item that has units, and the epoch in which it has them.
fn richest_but(shards: &[ShardState], to: usize) -> Option<(Epoch, usize)> {
    let others = shards.iter().filter(|shard| shard.partition != to && shard.left > 0);
    others.max_by_key(|shard| shard.left).map(|shard| (shard.epoch, shard.partition))
}

fn being_loaded() -> GateError {
    GateError::new(GateFailure::BeingLoaded, "a part of the item is being loaded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_ages_from_when_it_was_first_seen_and_is_forgotten_with_it() {
        let seen = FirstSeen::default();
        let notes = ["a", "b"].map(String::from);
        let place = || String::from("p");
        assert_eq!(seen.ages(place(), notes.iter())[&notes[0]], Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        assert!(seen.ages(place(), notes[..1].iter())[&notes[0]] >= Duration::from_millis(2));
        let ages = seen.ages(place(), notes.iter());
        assert!(ages[&notes[0]] > ages[&notes[1]], "b was gone meanwhile");
        assert!(seen.ages(place(), [].iter()).is_empty());
        assert!(seen.0.lock().is_empty());
    }
}

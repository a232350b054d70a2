//! The pulse of the gate: one small question per partition, asked once a second, that tells who answers
//! there, whether it can be written, what waits and what has changed.
//!
//! Everybody who wants to know how the gate is shares the answers. So an idle gate costs as many calls as
//! it has partitions, however many items it holds.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis_link::Call;
use sale::ItemId;

use super::{scripts, store::Store};
use crate::{GateError, Result, Writable};

/// Whoever only wants to know how the gate is takes answers of up to this age.
const RECENT: Duration = Duration::from_millis(1_500);
/// What a pulse writes is forgotten after this.
const PROBE_KEPT_MS: u64 = 60_000;

/// More changes than a sorted set can count.
const CHANGES_MAX: u64 = 1 << 53;

/// What a partition answered.
#[derive(Clone, Debug)]
pub(super) struct Pulse {
    /// The process that serves it.
    pub(super) server: u64,
    /// Why it cannot be written.
    unwritable: Option<String>,
    pub(super) backlog: u64,
    oldest_waits_ms: Option<u64>,
    /// Moves from here that are open.
    pub(super) moves: u64,
    /// There are notes of moves that are over.
    pub(super) has_notes: bool,
    /// How often something changed here; nothing if none was ever noted.
    pub(super) changes: Option<u64>,
    /// What changed since the number that was asked for.
    pub(super) changed: Vec<ItemId>,
    /// Bytes of what is settled and kept…
    pub(super) kept_bytes: u64,
    /// …and for how long the oldest of it has been.
    pub(super) kept_ms: Option<u64>,
    /// Nothing that selling does not need may be written.
    pub(super) memory_is_short: bool,
}

#[cfg(test)]
impl Pulse {
    /// Of a partition where nothing is but what is kept.
    pub(super) fn that_keeps(kept_bytes: u64, memory_is_short: bool) -> Pulse {
        Pulse {
            server: 0,
            unwritable: None,
            backlog: 0,
            oldest_waits_ms: None,
            moves: 0,
            has_notes: false,
            changes: None,
            changed: Vec::new(),
            kept_bytes,
            kept_ms: None,
            memory_is_short,
        }
    }
}

/// The answers of all partitions, in their order.
pub(super) type Answers = Arc<Vec<Result<Pulse>>>;

pub(super) struct Pulses {
    store: Arc<Store>,
    last: Mutex<Option<(Instant, Answers)>>,
}

type Reply = (u64, String, i64, i64, u64, u64, i64, Vec<i64>, (u64, i64, u8));

impl Pulses {
    pub(super) fn new(store: Arc<Store>) -> Pulses {
        Pulses { store, last: Mutex::default() }
    }

    /// Asks every partition, all at once, for what changed since the number that was seen there.
    pub(super) async fn take(&self, seen: &[Option<u64>]) -> Answers {
        let begun = Instant::now();
        let asked = seen.iter().enumerate().map(|(partition, seen)| self.ask(partition, *seen));
        let answers = Arc::new(join_all(asked).await);
        *self.last.lock() = Some((begun, answers.clone()));
        answers
    }

    /// As they were a moment ago.
    pub(super) async fn recent(&self) -> Answers {
        let last = self.last.lock().clone();
        match last {
            Some((begun, answers)) if begun.elapsed() < RECENT => answers,
            _ => self.take(&vec![None; self.store.partitions]).await,
        }
    }

    async fn ask(&self, partition: usize, seen: Option<u64>) -> Result<Pulse> {
        let keys = &self.store.keys;
        let names = [
            keys.probe(partition),
            keys.backlog(partition),
            keys.orders(partition),
            keys.moves(partition),
            keys.given(partition),
            keys.settled(partition),
            keys.changed(partition),
            keys.kept(partition),
            keys.kept_bytes(partition),
        ];
        // Whoever has seen nothing reads everything, and needs no list.
        let seen = seen.unwrap_or(CHANGES_MAX);
        let call = Call::new(&scripts::PULSE, names).number(seen).number(PROBE_KEPT_MS);
        let reply: Reply = self.store.run(&call).await?;
        let (server, cause, backlog, oldest_ms, moves, notes, changes, changed, kept) = reply;
        let (kept_bytes, kept_ms, short) = kept;
        Ok(Pulse {
            server,
            unwritable: Some(cause).filter(|cause| !cause.is_empty()),
            backlog: u64::try_from(backlog).unwrap_or(0),
            oldest_waits_ms: u64::try_from(oldest_ms).ok(),
            moves,
            has_notes: notes > 0,
            changes: u64::try_from(changes).ok(),
            changed: changed.into_iter().map(ItemId).collect(),
            kept_bytes,
            kept_ms: u64::try_from(kept_ms).ok(),
            memory_is_short: short != 0,
        })
    }

    /// A PING would be answered by a server that cannot write, by a replica, and by any one of many;
    /// so something is written in every partition.
    pub(super) async fn check(&self) -> Writable {
        let answers = self.recent().await;
        let cause = |answer: &Result<Pulse>| match answer {
            Ok(pulse) => pulse.unwritable.clone(),
            Err(error) => Some(error.detail.clone()),
        };
        let causes: Vec<String> = answers.iter().filter_map(cause).collect();
        let (partitions, silent) = (answers.len(), causes.len());
        Writable { partitions, silent, cause: causes.into_iter().next() }
    }

    /// Of partitions that do not answer nothing is known.
    pub(super) async fn oldest_waits_ms(&self) -> Result<Option<u64>> {
        let answers = self.recent().await;
        let known = answers.iter().flatten().filter_map(|pulse| pulse.oldest_waits_ms).max();
        match first_error(&answers) {
            Some(error) if known.is_none() => Err(error),
            _ => Ok(known),
        }
    }
}

pub(super) fn first_error(answers: &[Result<Pulse>]) -> Option<GateError> {
    answers.iter().find_map(|answer| answer.as_ref().err().cloned())
}

//! What is settled and kept in Redis for those who look back.
//!
//! Beside the log of each partition there is a stream of what was acknowledged, in the order of that.
//! `ack.lua` puts an entry there in the step that takes it off the log, so it is in one of the two and never
//! in both, and keeping it costs no call. Nobody who counts what waits, what is in flight or what has to be
//! loaded sees it.
//!
//! Memory is what selling needs most. So what is kept has a bound, for all partitions together: one that is
//! hot may use what the others leave. Where memory is short it is the first thing to go: the pulse gives it
//! up before the server refuses anything, and until there is room again nothing is added.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures_util::future::join_all;
use redis_link::Call;

use super::{
    log::WORKERS,
    pulses::{Answers, Pulse},
    scripts,
    store::Store,
};
use crate::{Keep, Result};

/// Entries that go in one call, at least and at most. They pass through the script.
const TRIMMED_MIN: usize = 16;
const TRIMMED_MAX: usize = 64;
/// Calls for one partition in a round of upkeep.
const TRIM_CALLS_MAX: u32 = 16;

pub(super) struct Kept {
    store: Arc<Store>,
    keep: Keep,
    /// How many bytes each partition may keep, as the others are.
    rooms: Vec<AtomicU64>,
}

impl Kept {
    pub(super) fn new(store: Arc<Store>, keep: Keep) -> Kept {
        let bytes_max = if keep.is_nothing() { 0 } else { keep.bytes_max };
        let share = bytes_max / store.partitions as u64;
        let rooms = (0..store.partitions).map(|_| AtomicU64::new(share)).collect();
        Kept { store, keep: Keep { bytes_max, ..keep }, rooms }
    }

    /// The call that acknowledges so many entries, which are to be pushed: each with its id and its hash.
    pub(super) fn ack_call(&self, partition: usize, entries: usize) -> Call<'static> {
        let keys = &self.store.keys;
        let names = [
            keys.orders(partition),
            keys.backlog(partition),
            keys.kept(partition),
            keys.kept_bytes(partition),
        ];
        let trimmed = if entries == 0 { TRIMMED_MAX } else { entries * 2 };
        Call::new(&scripts::ACK, names)
            .arg(WORKERS)
            .number(self.keep.ms)
            .number(self.rooms[partition].load(Ordering::Relaxed))
            .number(trimmed.clamp(TRIMMED_MIN, TRIMMED_MAX))
    }

    /// What is too old or too much goes, a few entries at a time.
    pub(super) async fn trim(&self, answers: &Answers) -> Result<()> {
        for (room, now) in self.rooms.iter().zip(rooms(self.keep.bytes_max, answers)) {
            room.store(now, Ordering::Relaxed);
        }
        let due = answers.iter().enumerate().filter_map(|(partition, answer)| {
            let pulse = answer.as_ref().ok()?;
            let room = self.rooms[partition].load(Ordering::Relaxed);
            let is_old = pulse.kept_ms.is_some_and(|ms| ms > self.keep.ms);
            (pulse.kept_bytes > room || is_old).then_some(partition)
        });
        let trims = due.map(|partition| async move {
            for _ in 0..TRIM_CALLS_MAX {
                let (_, more) = self.store.run::<(u64, u64)>(&self.ack_call(partition, 0)).await?;
                if more == 0 {
                    break;
                }
            }
            Ok(())
        });
        join_all(trims).await.into_iter().collect()
    }
}

/// Of one bound for all, what each may have: its share, and what the others leave of theirs.
fn rooms(bytes_max: u64, answers: &[Result<Pulse>]) -> Vec<u64> {
    let share = bytes_max / answers.len().max(1) as u64;
    let kept = |answer: &Result<Pulse>| answer.as_ref().map_or(share, |pulse| pulse.kept_bytes);
    let all: u64 = answers.iter().map(kept).sum();
    let room = |answer: &Result<Pulse>| match answer {
        Ok(pulse) if pulse.memory_is_short => 0,
        _ => share.max(bytes_max.saturating_sub(all - kept(answer))),
    };
    answers.iter().map(room).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GateError, GateFailure};

    fn keeps(bytes: u64) -> Result<Pulse> {
        Ok(Pulse::that_keeps(bytes, false))
    }

    #[test]
    fn a_hot_partition_keeps_what_the_others_leave() {
        assert_eq!(rooms(400, &[keeps(0), keeps(0), keeps(0), keeps(0)]), [400; 4]);
        let hot = [keeps(390), keeps(0), keeps(10), keeps(0)];
        assert_eq!(rooms(400, &hot), [390, 100, 100, 100], "nobody has less than a share");
        assert_eq!(rooms(400, &[keeps(500), keeps(100), keeps(0), keeps(0)])[0], 300);
    }

    #[test]
    fn where_memory_is_short_nothing_is_kept() {
        let short = Ok(Pulse::that_keeps(0, true));
        let silent = Err(GateError::new(GateFailure::Unreachable, "it is away"));
        assert_eq!(rooms(300, &[short, keeps(0), silent]), [0, 200, 300]);
    }
}

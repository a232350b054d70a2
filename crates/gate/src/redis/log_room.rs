//! How many claims may wait for the ledger in one partition.
//!
//! The bound is of the whole log: one hot item has all of it, if the other partitions are empty. But a
//! partition decides alone, in one script, and cannot ask the others. So each call brings along what the
//! partition may hold: what it held when all were last looked at, and its share of what was free then.
//! The shares of one look are together what was free, so whoever looks alone never passes the bound.
//! Everybody looks once a second, and whoever is refused looks again: then the share of what is still
//! free is the partition's as well, and so on, until nothing is.
//!
//! Two processes that look at different times may pass the bound together, by what one of them lets into
//! partitions of which the other has an old number: in the worst case by what was free at the older
//! look, and by as much as they admit between two looks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::log::StreamLog;

/// Looks that are made because somebody was refused are at least so far apart…
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// …and wait for a partition so long: what it held before stands.
const LOOK_WITHIN: Duration = Duration::from_millis(100);

pub(super) struct LogRoom {
    log: Arc<StreamLog>,
    /// Claims that may wait in all partitions together.
    claims_max: u64,
    /// When somebody last looked because they were refused. Whoever looks holds it.
    looked: tokio::sync::Mutex<Option<Instant>>,
}

impl LogRoom {
    pub(super) fn new(log: Arc<StreamLog>, claims_max: u64) -> LogRoom {
        LogRoom { log, claims_max, looked: tokio::sync::Mutex::default() }
    }

    /// What this partition may hold.
    pub(super) fn of(&self, partition: usize) -> u64 {
        share(&self.log.backlogs(), partition, self.claims_max)
    }

    /// The partition was full with `had`. Is there more room, now that somebody has looked again?
    pub(super) async fn has_grown(&self, partition: usize, had: u64) -> bool {
        let mut looked = self.looked.lock().await;
        if self.of(partition) > had {
            return true;
        }
        if looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
            return false;
        }
        // Those that answered are known by then, and the others are as they were.
        let _ = tokio::time::timeout(LOOK_WITHIN, self.log.read_backlog()).await;
        *looked = Some(Instant::now());
        self.of(partition) > had
    }
}

fn share(backlogs: &[u64], partition: usize, claims_max: u64) -> u64 {
    let free = claims_max.saturating_sub(backlogs.iter().sum());
    backlogs[partition] + free.div_ceil(backlogs.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_together_what_is_free() {
        for backlogs in [vec![0; 16], vec![900, 0, 0, 7], vec![500, 500, 300], vec![3]] {
            let shares = (0..backlogs.len()).map(|at| share(&backlogs, at, 1_000) - backlogs[at]);
            let (free, shares) = (1_000_u64.saturating_sub(backlogs.iter().sum()), shares.sum());
            assert!((free..free + backlogs.len() as u64).contains(&shares), "{backlogs:?}");
        }
    }

    #[test]
    fn one_hot_partition_gets_nearly_all_of_the_log_in_a_few_looks() {
        let mut backlogs = vec![0; 16];
        for _ in 0..36 {
            backlogs[3] = share(&backlogs, 3, 1_000_000);
        }
        assert!((900_000..=1_000_000).contains(&backlogs[3]), "{}", backlogs[3]);
    }
}

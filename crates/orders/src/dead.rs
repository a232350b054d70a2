//! What the log itself has given up on, a broker's dead-letter queue: drained into ours.
//!
//! Such an entry had all its tries before it came here. It is settled if that is possible now; a claim
//! that fails once more is a dead letter at once, with its alert, and does not climb our ladder as
//! well. One that the ledger cannot even note stays in the broker's queue, and is looked at again and
//! again.

use std::{collections::HashSet, sync::Arc, time::Duration};

use sale::{ClaimLog, EntryId, LogEntry};
use tracing::warn;

use crate::{
    outage::Stopped,
    settler::{Settler, TriesBefore, by_item},
    workers::{Shared, acknowledge, settled_whole, wait_for_log},
};

/// Entries that can be neither settled nor noted, and wait here for another look. Beyond it nothing is
/// taken.
const LEFT_MAX: usize = 1_000;

pub(crate) struct DeadLoop {
    pub(crate) settler: Settler,
    pub(crate) shared: Arc<Shared>,
    pub(crate) log: Arc<dyn ClaimLog>,
    /// As many as our ladder has.
    pub(crate) tries: u32,
    /// How long it is until another look.
    pub(crate) again: Duration,
}

impl DeadLoop {
    pub(crate) async fn run(mut self) {
        let mut left = Vec::new();
        while let Ok(taken) = self.next(left.len()).await {
            if !taken.is_empty() {
                let entries = taken.len();
                warn!(entries, "the broker has given up on claims: settled, or dead letters now");
            }
            left.extend(taken);
            match self.carry(left).await {
                Ok(undone) => left = undone,
                Err(Stopped) => break,
            }
        }
    }

    /// What came, or nothing when it is time to look again at what is left.
    async fn next(&mut self, left: usize) -> Result<Vec<LogEntry>, Stopped> {
        let mut backoff = self.settler.backoff;
        loop {
            let taken = tokio::select! {
                biased;
                () = self.settler.stop.stopped() => return Err(Stopped),
                () = tokio::time::sleep(self.again), if left > 0 => return Ok(Vec::new()),
                taken = self.log.take_dead(), if left < LEFT_MAX => taken,
            };
            match taken {
                Ok(entries) => return Ok(entries),
                Err(fault) => {
                    wait_for_log(&mut self.settler, &self.shared, &mut backoff, &fault).await?;
                }
            }
        }
    }

    /// Answers the entries that are not done with.
    async fn carry(&mut self, entries: Vec<LogEntry>) -> Result<Vec<LogEntry>, Stopped> {
        let (mut stuck, mut locked) = (Vec::new(), HashSet::new());
        for (item, claims) in by_item(entries.iter().flat_map(|entry| entry.claims.iter().cloned()))
        {
            let tries: TriesBefore =
                claims.iter().map(|claim| (claim.order_no, self.tries)).collect();
            let pass = self.settler.settle(item, &claims, &tries).await?;
            if pass.locked {
                locked.insert(item);
            }
            pass.stuck.iter().for_each(|one| self.settler.report_stuck(one));
            stuck.extend(pass.stuck);
        }
        let free = entries.iter().filter(|entry| !locked.contains(&entry.item));
        let (done, _) = settled_whole(free, &stuck);
        acknowledge(&mut self.settler, &self.shared, &*self.log, &done).await?;
        let done: HashSet<EntryId> = done.into_iter().collect();
        Ok(entries.into_iter().filter(|entry| !done.contains(&entry.id)).collect())
    }
}

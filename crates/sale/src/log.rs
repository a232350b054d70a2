//! The claim log: the durable queue from the gate to the workers.

use async_trait::async_trait;

use crate::{Claim, Epoch, ItemId, Millis};

/// Where an entry stands in its log. Opaque to everyone but the log that made it; larger is later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    pub place: (u64, u64),
    /// What stands there, where a log may be rolled back and give a place to another entry; else zero.
    pub content: u64,
}

impl EntryId {
    /// In a log that never gives a place twice.
    pub fn at(major: u64, minor: u64) -> EntryId {
        EntryId { place: (major, minor), content: 0 }
    }
}

/// The winners of one batch of one item, as they were admitted together.
#[derive(Clone, Debug)]
pub struct LogEntry {
    pub id: EntryId,
    pub item: ItemId,
    pub epoch: Epoch,
    pub claims: Vec<Claim>,
}

#[derive(Debug, thiserror::Error)]
#[error("the claim log does not answer: {0}")]
pub struct LogError(pub String);

/// Delivery is at least once: what was taken and not acknowledged is delivered again after a
/// restart. Whoever consumes must make a repetition a no-op; the ledger does.
#[async_trait]
pub trait ClaimLog: Send + Sync {
    /// The next entries nobody took yet, oldest first, holding at most about `claims_max` claims
    /// (always at least one entry). Waits until there is one. Dropping the future loses nothing.
    async fn take(&self, claims_max: usize) -> Result<Vec<LogEntry>, LogError>;

    /// These entries are in the ledger: never deliver them again.
    async fn ack(&self, entries: &[EntryId]) -> Result<(), LogError>;

    /// Hand back what was taken, to be delivered again, in the old order.
    async fn give_back(&self, entries: Vec<LogEntry>);

    /// These can be neither settled nor noted as failed: pass them by. They stay on the log, and come again
    /// some day; where nothing else is said, after a restart.
    async fn leave(&self, _entries: &[EntryId]) {}

    /// Entries that the log itself has given up on: what had all its tries on a ladder of the log's own.
    /// They are acknowledged like others. A log without such a ladder never has any.
    async fn take_dead(&self) -> Result<Vec<LogEntry>, LogError> {
        std::future::pending().await
    }

    /// Claims on the log that are not acknowledged yet.
    fn backlog(&self) -> u64;

    /// Are claims coming in at this moment, on the machine that the workers work on? Then deciding
    /// them comes first.
    fn is_rushing(&self) -> bool {
        false
    }
}

/// The side of a claim log from which a relay carries entries to a message broker. An entry stays on the log,
/// and is counted there, until it is acknowledged: only the delivery goes by the broker.
#[async_trait]
pub trait RelaySource: ClaimLog {
    /// The next entries that no relay took yet; otherwise as [`ClaimLog::take`]. What was taken and not
    /// relayed when a process dies is taken by another one.
    async fn take_unrelayed(&self, claims_max: usize) -> Result<Vec<LogEntry>, LogError>;

    /// The broker has these for sure.
    async fn relayed(&self, entries: &[EntryId]);

    /// Entries behind this one that are still on the log although their claims were made before this time,
    /// relayed or not. One page, in the log's order; none at the end.
    async fn overdue(
        &self,
        before_ms: Millis,
        after: Option<EntryId>,
    ) -> Result<Vec<LogEntry>, LogError>;
}

//! The claim log: the durable queue from the gate to the workers.

use async_trait::async_trait;

use crate::{Claim, Epoch, ItemId};

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

    /// Claims on the log that are not acknowledged yet.
    fn backlog(&self) -> u64;

    /// Are claims coming in at this moment, on the machine that the workers work on? Then deciding
    /// them comes first.
    fn is_rushing(&self) -> bool {
        false
    }
}

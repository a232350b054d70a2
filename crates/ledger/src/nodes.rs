//! Nodes: which process makes order numbers with which of the [`sale::NODES_MAX`] node numbers.
//!
//! A node is given for hours, because its holder must be able to go on without the ledger, and to one at a
//! time. How long grows with the life of its holder: one that dies soon after its start, again and again,
//! each time without the memory of its data directory, then never holds more than a few of them. A holder
//! makes numbers for half of the time it was given; what is left over is for clocks that disagree.

use async_trait::async_trait;
use sale::Millis;

use crate::Result;

/// A node is given for as many times the life of its holder…
pub const NODE_LEASE_LIVES: i64 = 4;
/// …for an hour at least…
pub const NODE_LEASE_MS_MIN: Millis = 3_600_000;
/// …and for a day at most.
pub const NODE_LEASE_MS_MAX: Millis = 86_400_000;

/// A node that was given to somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLease {
    pub node: u16,
    /// From when it was asked for.
    pub for_ms: Millis,
}

impl NodeLease {
    pub(crate) fn of(node: u16, lived_ms: Millis) -> NodeLease {
        let for_ms = lived_ms.saturating_mul(NODE_LEASE_LIVES);
        NodeLease { node, for_ms: for_ms.clamp(NODE_LEASE_MS_MIN, NODE_LEASE_MS_MAX) }
    }

    /// For so long its holder makes numbers.
    pub fn used_for_ms(&self) -> Millis {
        self.for_ms / 2
    }
}

/// Whoever asks says of what time their latest number may be (`numbers_ms`), by their own clock: the next
/// holder's numbers begin after that, and after all that they may have made until the lease ended.
#[async_trait]
pub trait Nodes: Send + Sync {
    /// A node that nobody holds, the search beginning with `first`. Nothing if all are held.
    async fn take_node(
        &self,
        holder: &str,
        first: u16,
        numbers_ms: Millis,
    ) -> Result<Option<NodeLease>>;

    /// Nothing if somebody else holds it, or held it and may have made numbers of `numbers_ms` or later. A
    /// node of which the ledger knows nothing, because it was restored from a backup, is `holder`'s again.
    async fn renew_node(
        &self,
        node: u16,
        holder: &str,
        numbers_ms: Millis,
    ) -> Result<Option<NodeLease>>;

    /// The holder makes no more numbers. It is given to others after so long.
    async fn give_back_node(
        &self,
        node: u16,
        holder: &str,
        numbers_ms: Millis,
        after_ms: Millis,
    ) -> Result<()>;
}

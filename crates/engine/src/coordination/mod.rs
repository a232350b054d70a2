//! What several instances have in common: news, and counts of who asked lately.
//!
//! Nothing here is a truth. A hint
//! says *look again*. All of it may be lost without anybody being told
//! something untrue for longer than a poll.

mod local;
mod redis;

use std::time::Duration;

use async_trait::async_trait;
use sale::{Millis, OrderNo, UserId};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::push::QueuedClaim;

pub use local::LocalCoordination;
pub use redis::{CoordinationError, RedisCoordination, RedisCoordinationOptions};

/// Something changed; whoever cares should look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum Hint {
    /// These orders changed.
    #[serde(rename = "orders.v1")]
    Orders { orders: Vec<(OrderNo, UserId)> },
    /// Units of this item came back at the gate.
    #[serde(rename = "units.v1")]
    Units { item: sale::ItemId },
    /// These claims were admitted.
    #[serde(rename = "queued.v1")]
    Queued { claims: Vec<QueuedClaim> },
    /// Somebody has to wait, or need not any more, or a list of buyers changed.
    #[serde(rename = "door.v1")]
    Door,
    /// This buyer answered a challenge wrongly, at that instance.
    #[serde(rename = "wrong_answer.v1")]
    WrongAnswer { user: UserId, from: String },
    /// There are news in the outbox.
    #[serde(rename = "news.v1")]
    News,
    /// Nobody tells this one: it stands for those that were lost while the line was down.
    #[serde(skip)]
    Missed,
}

/// What became of a challenge that somebody solved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spending {
    Done,
    /// Somebody had spent it before.
    Before,
    /// So many were spent lately that no more can be remembered.
    NoRoom,
}

/// Challenges that are over in one minute: so many of them are remembered.
pub(crate) const SPENT_PER_MINUTE_MAX: usize = 200_000;
pub(crate) const MINUTE_MS: Millis = 60_000;

#[async_trait]
pub trait Coordination: Send + Sync {
    /// May this process be the only one to do this now? Asking takes a lease of seconds, or renews it.
    /// For what has to be decided without the ledger; all other leases are there.
    async fn hold(&self, name: &'static str) -> Result<bool, String>;

    /// Tell the other instances.
    async fn tell(&self, hint: &Hint);

    /// What the other instances tell.
    fn hints(&self) -> broadcast::Receiver<Hint>;

    /// Spends a challenge, once for all instances; it is remembered until it is over. If what is spent is
    /// forgotten, somebody may have two tokens for one piece of work, and buys no more with them.
    async fn spend(
        &self,
        challenge: u64,
        expires_ms: Millis,
        now_ms: Millis,
    ) -> Result<Spending, String>;

    /// Count one request of somebody with what all instances have seen of them: at most `burst` at once, and
    /// one every `step` in the long run. How long they have to wait, if it is one too many; nothing is known
    /// of whom nobody can be asked about.
    async fn count_together(&self, _who: &str, _step: Duration, _burst: u32) -> Option<Duration> {
        None
    }

    /// Tells the others our part of a draw; it is remembered for a minute.
    async fn put_part(&self, _draw: &str, _part: Vec<u8>) -> Result<(), String> {
        Ok(())
    }

    /// What the others have told of it.
    async fn parts_of_others(&self, _draw: &str) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Holds this node for so long as a living process is asked about, for those who are given it by a
    /// ledger that has forgotten. False if another one holds it.
    async fn witness_node(&self, node: u16, holder: &str) -> Result<bool, String>;
}

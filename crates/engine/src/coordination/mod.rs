//! What several instances have in common: news, and a copy of what pages show.
//!
//! Nothing here is a truth. A hint
//! says *look again*; a copy may be a moment old. All of it may be lost without anybody being told
//! something untrue for longer than a poll.

mod local;
mod redis;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sale::{Activity, OrderNo, UserId};
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
    /// There are news in the outbox.
    #[serde(rename = "news.v1")]
    News,
    /// Nobody tells this one: it stands for those that were lost while the line was down.
    #[serde(skip)]
    Missed,
}

#[async_trait]
pub trait Coordination: Send + Sync {
    /// May this process be the only one to do this now? Asking takes a lease of seconds, or renews it.
    /// For what has to be decided without the ledger; all other leases are there.
    async fn hold(&self, name: &'static str) -> Result<bool, String>;

    /// Tell the other instances.
    async fn tell(&self, hint: &Hint);

    /// What the other instances tell.
    fn hints(&self) -> broadcast::Receiver<Hint>;

    /// The activities that pages show, if somebody has put them there.
    async fn catalogue(&self) -> Option<Vec<Activity>>;

    async fn put_catalogue(&self, activities: &[Arc<Activity>]);

    /// Count one request of somebody with what all instances have seen of them: at most `burst` at once, and
    /// one every `step` in the long run. How long they have to wait, if it is one too many; nothing is known
    /// of whom nobody can be asked about.
    async fn count_together(&self, _who: &str, _step: Duration, _burst: u32) -> Option<Duration> {
        None
    }

    /// Holds this node for so long as a living process is asked about, for those who are given it by a
    /// ledger that has forgotten. False if another one holds it.
    async fn witness_node(&self, node: u16, holder: &str) -> Result<bool, String>;
}

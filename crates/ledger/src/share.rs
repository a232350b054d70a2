//! Whose share of the connections a piece of work uses.
//!
//! A process of a cluster answers buyers, settles claims and runs jobs over a few connections to one
//! server. So that none of the three waits for the others, each has a connection that only it may use,
//! and the rest is for whoever comes first. Who asks is known by the task that asks, for the code is the
//! same: a job and a page read the same orders.

use std::cell::Cell;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Those who answer buyers and operators, and whoever has not said otherwise.
    Web,
    Worker,
    Jobs,
}

impl Share {
    pub const ALL: [Share; 3] = [Share::Web, Share::Worker, Share::Jobs];

    /// That of the task that asks.
    #[cfg(feature = "mysql")]
    pub(crate) fn of_this_task() -> Share {
        SHARE.try_with(Cell::get).unwrap_or(Share::Web)
    }
}

tokio::task_local! {
    static SHARE: Cell<Share>;
}

/// Whatever `work` asks of the ledger is of this share. What it spawns is not.
pub fn in_share<F: Future>(share: Share, work: F) -> impl Future<Output = F::Output> {
    SHARE.scope(Cell::new(share), work)
}

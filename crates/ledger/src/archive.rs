//! The archive: activities that are over for long, moved out of the tables that selling works with.

use async_trait::async_trait;
use sale::{ActivityId, Millis};

use crate::Result;

/// Moves what is over, step by step. What was moved is found by all who look for it: nobody else knows of
/// this.
#[async_trait]
pub trait Archive: Send + Sync {
    /// Activities that ended before this time and are not archived, in the order of their ends, behind
    /// `after`.
    async fn old_activities(
        &self,
        closed_before_ms: Millis,
        after: OldActivity,
        limit: usize,
    ) -> Result<Vec<OldActivity>>;

    /// Is everything in it over?
    async fn archivable(&self, activity: ActivityId) -> Result<Archivable>;

    /// Moves at most so many orders, or rows of the stock log. Made again after a crash at any point of it,
    /// it does what was left to do.
    async fn archive_step(
        &self,
        activity: ActivityId,
        rows_max: usize,
        now_ms: Millis,
    ) -> Result<ArchiveStep>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldActivity {
    pub id: ActivityId,
    pub closes_ms: Millis,
}

impl OldActivity {
    /// Before all of them.
    pub const FIRST: OldActivity = OldActivity { id: ActivityId(0), closes_ms: 0 };
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Archivable {
    Yes,
    /// Something is open: what, for people.
    HeldBack(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveStep {
    Moved {
        orders: u64,
        log_rows: u64,
    },
    /// Something was opened meanwhile. What was moved stays moved.
    HeldBack(String),
    /// All of the activity is in the archive.
    Done,
}

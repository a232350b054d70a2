//! The journal's log as a relay to a message broker sees it.
//!
//! What was relayed is known in memory alone: a restart gives everything to the relay that the ledger does
//! not have. That costs some messages twice, and brings back what a broker has lost meanwhile.

use async_trait::async_trait;
use sale::{ClaimLog, EntryId, LogEntry, LogError, Millis, RelaySource};

use super::SoloGate;

type Result<T> = std::result::Result<T, LogError>;

#[async_trait]
impl RelaySource for SoloGate {
    /// Where there is a relay nobody else takes anything.
    async fn take_unrelayed(&self, claims_max: usize) -> Result<Vec<LogEntry>> {
        self.take(claims_max).await
    }

    /// It was taken, and is not given to anybody again.
    async fn relayed(&self, _: &[EntryId]) {}

    async fn overdue(&self, before_ms: Millis, after: Option<EntryId>) -> Result<Vec<LogEntry>> {
        let after = after.map_or(0, |id| id.place.0);
        Ok(self.0.log.lock().overdue(before_ms, after))
    }
}

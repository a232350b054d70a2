//! The streams as a relay to a message broker sees them.
//!
//! The group of the relays has its own place in each stream and its own list of what was taken and not
//! relayed. What a relay acknowledges stays on the stream, for the ledger does not have it; what a worker
//! acknowledges is gone for both groups.

use async_trait::async_trait;
use sale::{EntryId, LogEntry, LogError, Millis, RelaySource};

use super::{
    RedisGate,
    streams::{id_text, page_from, partition_of},
};
use crate::GateError;

/// Entries in one page of what is overdue.
const PAGE_ENTRIES: usize = 256;

type Result<T> = std::result::Result<T, LogError>;

#[async_trait]
impl RelaySource for RedisGate {
    async fn take_unrelayed(&self, claims_max: usize) -> Result<Vec<LogEntry>> {
        self.0.relays.take(claims_max).await
    }

    async fn relayed(&self, entries: &[EntryId]) {
        self.0.relays.relayed(entries).await;
    }

    async fn overdue(&self, before_ms: Millis, after: Option<EntryId>) -> Result<Vec<LogEntry>> {
        let store = &self.0.store;
        let mut after = after;
        let first = after.map_or(0, partition_of);
        for partition in first..store.partitions {
            let stream = store.keys.orders(partition);
            loop {
                let from = after.map_or_else(|| "-".to_owned(), |id| format!("({}", id_text(id)));
                let ends = (from.as_str(), &*before_ms.max(0).to_string());
                let page = page_from(store, partition, &stream, ends, PAGE_ENTRIES).await;
                let page = page.map_err(|error: GateError| LogError(error.detail))?;
                let Some((entries, last)) = page else { break };
                if !entries.is_empty() {
                    return Ok(entries);
                }
                // Rows that nobody can read.
                after = Some(last);
            }
            after = None;
        }
        Ok(Vec::new())
    }
}

//! The ledger as the workers see it.

use std::sync::Arc;

use async_trait::async_trait;
use gate::Gate;
use ledger::Ledger;
use sale::{BookError, Claim, FailedClaim, ItemId, Millis, OrderBook, Settled};
use tokio::sync::Notify;

use crate::adopting::Adopter;

/// Settles in the ledger, and wakes the outbox: a settled batch owes its buyers an event, and they should
/// not wait for the next poll. It also lets the gate know of orders whose claims it may have lost.
pub(crate) struct WakingBook {
    ledger: Arc<dyn Ledger>,
    outbox: Arc<Notify>,
    /// Where the gate can lose claims.
    adopter: Option<Arc<Adopter>>,
}

impl WakingBook {
    pub(crate) fn new(
        gate: &Arc<dyn Gate>,
        ledger: &Arc<dyn Ledger>,
        outbox: Arc<Notify>,
        gate_may_lose_claims: bool,
    ) -> WakingBook {
        let adopter =
            gate_may_lose_claims.then(|| Arc::new(Adopter::new(gate.clone(), ledger.clone())));
        WakingBook { ledger: ledger.clone(), outbox, adopter }
    }
}

#[async_trait]
impl OrderBook for WakingBook {
    async fn settle(&self, item: ItemId, claims: &[Claim]) -> Result<Settled, BookError> {
        let settled = self.ledger.settle(item, claims).await?;
        if let Some(adopter) = &self.adopter {
            adopter.settled(claims, &settled.created);
        }
        self.outbox.notify_one();
        Ok(settled)
    }

    async fn defer(&self, failed: &[FailedClaim]) -> Result<(), BookError> {
        self.ledger.defer(failed).await
    }

    async fn due(&self, now_ms: Millis, limit: usize) -> Result<Vec<FailedClaim>, BookError> {
        self.ledger.due(now_ms, limit).await
    }
}

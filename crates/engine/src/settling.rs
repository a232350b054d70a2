//! The ledger as the workers see it.

use std::sync::Arc;

use async_trait::async_trait;
use gate::Gate;
use ledger::{Ledger, Share, in_share};
use sale::{BookError, Claim, FailedClaim, ItemId, Millis, OrderBook, Settled};

use crate::{adopting::Adopter, reminders::Reminders, shared::WakeUps};

/// Settles in the ledger, and wakes the outbox: a settled batch owes its buyers an event, and they should
/// not wait for the next poll. It also lets the gate know of orders whose claims it may have lost.
pub(crate) struct WakingBook {
    ledger: Arc<dyn Ledger>,
    wake: Arc<WakeUps>,
    /// Where the gate can lose claims.
    adopter: Option<Arc<Adopter>>,
    /// Where a broker can remind of orders that are not paid.
    reminders: Option<Reminders>,
}

impl WakingBook {
    pub(crate) fn new(
        gate: &Arc<dyn Gate>,
        ledger: &Arc<dyn Ledger>,
        wake: Arc<WakeUps>,
        gate_may_lose_claims: bool,
        reminders: Option<Reminders>,
    ) -> WakingBook {
        let adopter =
            gate_may_lose_claims.then(|| Arc::new(Adopter::new(gate.clone(), ledger.clone())));
        WakingBook { ledger: ledger.clone(), wake, adopter, reminders }
    }
}

#[async_trait]
impl OrderBook for WakingBook {
    async fn settle(&self, item: ItemId, claims: &[Claim]) -> Result<Settled, BookError> {
        let settled = in_share(Share::Worker, self.ledger.settle(item, claims)).await?;
        if let Some(adopter) = &self.adopter {
            adopter.settled(claims, &settled.created);
        }
        if let Some(reminders) = &self.reminders {
            reminders.created(&settled.created);
        }
        if settled.void.is_empty() {
            // Nothing goes back to the gate: only buyers have to hear.
            self.wake.news_written();
            self.wake.webhooks_written();
        } else {
            self.wake.outbox_written();
        }
        Ok(settled)
    }

    async fn defer(&self, failed: &[FailedClaim]) -> Result<(), BookError> {
        in_share(Share::Worker, self.ledger.defer(failed)).await
    }

    async fn due(&self, now_ms: Millis, limit: usize) -> Result<Vec<FailedClaim>, BookError> {
        in_share(Share::Worker, self.ledger.due(now_ms, limit)).await
    }

    async fn due_by_another_clock(&self, now_ms: Millis) -> Result<u64, BookError> {
        in_share(Share::Worker, self.ledger.due_by_another_clock(now_ms)).await
    }
}

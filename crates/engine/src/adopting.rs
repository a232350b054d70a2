//! Adopting: orders whose claims the gate has lost.
//!
//! A failover of Redis may take claims from the log that a worker already has in hand. The item is then
//! loaded anew from ledger and log, which both do not know them: the gate has units too many, and their
//! buyers are not marked. A moment later the worker settles them all the same, and they are orders.
//!
//! So for every order that is made the gate is asked whether the item is in another epoch than
//! the claim's; if so, and the buyer is not marked, it takes the units and marks the buyer. In nearly all
//! cases that is one question per batch and shard. While the gate is being loaded, or does not answer,
//! it is asked again, as long as the order lives; what a crash forgets, or what comes too late,
//! reconcile finds.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use gate::Upkeep;
use ledger::{Ledger, LedgerError};
use sale::{Claim, OrderNo};

const TRIES_MAX: u32 = 120;
const PAUSE: Duration = Duration::from_millis(500);
/// Claims that may wait for a gate that does not answer. Those beyond are left to reconcile.
const WAITING_CLAIMS_MAX: usize = 100_000;

pub(crate) struct Adopter {
    gate: Arc<dyn Upkeep>,
    ledger: Arc<dyn Ledger>,
    waiting: AtomicUsize,
}

impl Adopter {
    pub(crate) fn new(gate: Arc<dyn Upkeep>, ledger: Arc<dyn Ledger>) -> Adopter {
        Adopter { gate, ledger, waiting: AtomicUsize::new(0) }
    }

    /// Of these claims those that are new orders. Nobody waits for it.
    pub(crate) fn settled(self: &Arc<Self>, claims: &[Claim], created: &[OrderNo]) {
        let created: HashSet<OrderNo> = created.iter().copied().collect();
        let new = claims.iter().filter(|claim| created.contains(&claim.order_no));
        let new: Vec<Claim> = new.cloned().collect();
        let count = new.len();
        if count == 0 {
            return;
        }
        if self.waiting.fetch_add(count, Ordering::AcqRel) > WAITING_CLAIMS_MAX {
            self.waiting.fetch_sub(count, Ordering::AcqRel);
            return;
        }
        let adopter = self.clone();
        tokio::spawn(async move {
            adopter.adopt(new).await;
            adopter.waiting.fetch_sub(count, Ordering::AcqRel);
        });
    }

    async fn adopt(&self, mut claims: Vec<Claim>) {
        for _ in 0..TRIES_MAX {
            let Err(error) = self.gate.adopt(&claims).await else { return };
            tracing::debug!(%error, "the gate does not say whether it knows new orders");
            tokio::time::sleep(PAUSE).await;
            // What is over by now has nothing to hold.
            if let Ok(live) = self.live(&claims).await {
                claims.retain(|claim| live.contains(&claim.order_no));
            }
        }
        tracing::warn!(
            claims = claims.len(),
            "the gate never said whether it has the marks of new orders; reconcile compares them"
        );
    }

    async fn live(&self, claims: &[Claim]) -> Result<HashSet<OrderNo>, LedgerError> {
        let numbers: Vec<OrderNo> = claims.iter().map(|claim| claim.order_no).collect();
        let orders = self.ledger.orders_by_no(&numbers).await?.into_iter();
        Ok(orders.filter(|order| order.status.is_live()).map(|order| order.order_no).collect())
    }
}

#[cfg(test)]
mod tests {
    use sale::CloseReason;

    use super::*;
    use crate::test_engine::{NOW_MS, TestEngine};

    #[tokio::test]
    async fn a_gate_that_cannot_tell_is_asked_again_about_what_still_lives() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let item = activity.items[0].id;
        let (ann, bob) = (shop.buy(item, "ann").await, shop.buy(item, "bob").await);
        let gate = shop.gate.clone();
        let engine = &shop.engine;
        let adopter =
            Arc::new(Adopter::new(engine.shared.gate.clone(), engine.shared.ledger.clone()));
        let claim = |order_no, user: &str| Claim {
            order_no,
            item,
            user: user.parse().unwrap(),
            quantity: 1,
            epoch: 1,
            claimed_ms: NOW_MS,
            key: None,
        };
        let repeated = engine.shared.numbers.next();
        let claims = [claim(ann, "ann"), claim(bob, "bob"), claim(repeated, "cat")];
        gate.cannot_tell.store(true, Ordering::SeqCst);
        adopter.settled(&claims, &[ann, bob]);
        let cancelled = CloseReason::Cancelled;
        engine.shared.ledger.close(&[bob.into()], cancelled, NOW_MS).await.unwrap();
        tokio::time::sleep(PAUSE / 2).await;
        gate.cannot_tell.store(false, Ordering::SeqCst);
        while adopter.waiting.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(*gate.adopted.lock(), [ann]);
    }
}

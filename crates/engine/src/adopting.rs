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
//!
//! **An order may be closed meanwhile**, and its units may be given back before they were taken: that
//! release finds no mark and does nothing. So the ledger is read *after* the gate has adopted, and what is
//! over by then is released once more. A close that comes later finds the mark.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use gate::{GiveBack, Upkeep};
use ledger::Ledger;
use sale::{Claim, OrderNo};

use crate::shared::AnyError;

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

    async fn adopt(&self, claims: Vec<Claim>) {
        for tries in 0..TRIES_MAX {
            let Err(error) = self.try_to_adopt(&claims, tries > 0).await else { return };
            tracing::debug!(%error, "the gate does not say whether it knows new orders");
            tokio::time::sleep(PAUSE).await;
        }
        tracing::warn!(
            claims = claims.len(),
            "the gate never said whether it has the marks of new orders; reconcile compares them"
        );
    }

    /// The answer to an earlier try may have been lost, so `again` what is over is given back first.
    async fn try_to_adopt(&self, claims: &[Claim], again: bool) -> Result<(), AnyError> {
        let live = if again { self.release_over(claims).await? } else { claims.to_vec() };
        let older = self.gate.adopt(&live).await?;
        self.release_over(&older).await?;
        Ok(())
    }

    /// What is over by now has nothing to hold. Answers those that live.
    async fn release_over(&self, claims: &[Claim]) -> Result<Vec<Claim>, AnyError> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let numbers: Vec<OrderNo> = claims.iter().map(|claim| claim.order_no).collect();
        let orders = self.ledger.orders_by_no(&numbers).await?.into_iter();
        let live = orders.filter(|order| order.status.is_live()).map(|order| order.order_no);
        let live: HashSet<OrderNo> = live.collect();
        let (live, over): (Vec<Claim>, Vec<Claim>) =
            claims.iter().cloned().partition(|claim| live.contains(&claim.order_no));
        if !over.is_empty() {
            let units: Vec<GiveBack> = over.into_iter().map(give_back).collect();
            self.gate.release(&units).await?;
        }
        Ok(live)
    }
}

fn give_back(claim: Claim) -> GiveBack {
    let Claim { item, user, order_no, quantity, .. } = claim;
    GiveBack { item, user, order_no, quantity }
}

#[cfg(test)]
mod tests {
    use sale::{CloseReason, ItemId};

    use super::*;
    use crate::test_engine::{NOW_MS, TestEngine};

    fn claim(item: ItemId, order_no: OrderNo, user: &str) -> Claim {
        Claim {
            order_no,
            item,
            user: user.parse().unwrap(),
            quantity: 1,
            epoch: 1,
            claimed_ms: NOW_MS,
            key: None,
        }
    }

    async fn until_all_is_told(adopter: &Adopter) {
        while adopter.waiting.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_gate_that_cannot_tell_is_asked_again_about_what_still_lives() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let item = activity.items[0].id;
        let (ann, bob) = (shop.buy(item, "ann").await, shop.buy(item, "bob").await);
        let (gate, shared) = (shop.gate.clone(), &shop.engine.shared);
        let adopter = Arc::new(Adopter::new(shared.gate.clone(), shared.ledger.clone()));
        let repeated = shared.numbers.next();
        let claims =
            [claim(item, ann, "ann"), claim(item, bob, "bob"), claim(item, repeated, "cat")];
        gate.cannot_tell.store(true, Ordering::SeqCst);
        adopter.settled(&claims, &[ann, bob]);
        let cancelled = CloseReason::Cancelled;
        shared.ledger.close(&[bob.into()], cancelled, NOW_MS).await.unwrap();
        tokio::time::sleep(PAUSE / 2).await;
        gate.cannot_tell.store(false, Ordering::SeqCst);
        until_all_is_told(&adopter).await;
        assert_eq!(*gate.adopted.lock(), [ann]);
    }

    #[tokio::test]
    async fn an_order_that_is_closed_before_it_is_adopted_holds_nothing_afterwards() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let item = activity.items[0].id;
        let (ann, bob) = (shop.buy(item, "ann").await, shop.buy(item, "bob").await);
        let shared = &shop.engine.shared;
        let adopter = Arc::new(Adopter::new(shared.gate.clone(), shared.ledger.clone()));
        // Its release came to the gate, by the outbox, when the gate knew nothing of it.
        shared.ledger.close(&[bob.into()], CloseReason::Cancelled, NOW_MS).await.unwrap();
        assert_eq!(shared.gate.left(item), Some(8));
        adopter.settled(&[claim(item, ann, "ann"), claim(item, bob, "bob")], &[ann, bob]);
        until_all_is_told(&adopter).await;
        assert_eq!(shared.gate.left(item), Some(9), "her unit is taken, his is not");
    }
}

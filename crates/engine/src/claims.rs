//! A buyer's claim, from a verified sale token to an answer that is true.

use std::{sync::Arc, time::Instant};

use gate::{Busy, ClaimRequest, Decision, PendingDecision, Readmitted};
use sale::{ActivityState, Claim, ItemId, Receipt, UserId, VoidReason};

use crate::{Catalogue, OrderView, StoreError, order_lookup::OrderLookup, shared::Shared};

/// Buying: what becomes of a claim, and of a receipt for one.
pub struct Claims {
    pub(crate) shared: Arc<Shared>,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) orders: Arc<OrderLookup>,
}

impl Claims {
    /// One claim, from its request to the decision that its buyer is told.
    pub async fn claim(&self, request: ClaimRequest) -> Decision {
        let item = request.item;
        match self.enter(request, Instant::now()) {
            Err(decision) => decision,
            Ok(pending) => self.answer(item, pending.await).await,
        }
    }

    /// Is it known that nothing is left for this buyer, who gave no key?
    pub fn is_sold_out(&self, item: ItemId, user: &UserId, now: Instant) -> bool {
        self.shared.lanes.says_sold_out(item, user, false, now)
    }

    /// A place in a lane, or the decision if it is known already.
    pub fn enter(&self, request: ClaimRequest, now: Instant) -> Result<PendingDecision, Decision> {
        self.shared.lanes.enter(request, now)
    }

    /// Is this what the buyer is told, without asking anybody else?
    pub fn is_final(decision: &Decision) -> bool {
        !matches!(decision, Decision::Busy(Busy::NotLoaded))
    }

    /// What the gate's decision means for the buyer.
    pub async fn answer(&self, item: ItemId, decision: Decision) -> Decision {
        match decision {
            Decision::Busy(Busy::NotLoaded) => self.not_at_the_gate(item).await,
            decided => decided,
        }
    }

    /// When a claim at this position will be an order, at the rate of the last seconds.
    pub fn eta_ms(&self, position: u64) -> u64 {
        self.shared.eta_ms(position)
    }

    /// The gate does not have the item. The catalogue may know a better "no" than *busy*; it never
    /// knows a yes.
    async fn not_at_the_gate(&self, item: ItemId) -> Decision {
        let shown = match self.catalogue.item(item).await {
            Ok(Some(shown)) => shown,
            Ok(None) => return Decision::UnknownItem,
            // Nobody can tell whether there is such an item.
            Err(_) => return Decision::Busy(Busy::NotLoaded),
        };
        let activity = shown.activity();
        let now_ms = self.shared.now_ms();
        if activity.state == ActivityState::Ended || now_ms >= activity.closes_ms {
            Decision::Ended
        } else if now_ms < activity.first_claim_ms() {
            Decision::NotStarted { opens_ms: activity.first_claim_ms() }
        } else {
            Decision::Busy(Busy::NotLoaded)
        }
    }

    /// Present a receipt: the claim is found, or admitted again, or told why not.
    pub async fn present(&self, receipt: &Receipt) -> Result<Option<OrderView>, StoreError> {
        match self.orders.order(receipt.order_no, Some(&receipt.user)).await? {
            Some(OrderView::Queued(claim)) if self.is_nowhere(&claim).await? => {
                return Err(only_a_mark(&claim));
            }
            None => {}
            known => return Ok(known),
        }
        let claim = Claim {
            order_no: receipt.order_no,
            item: receipt.item,
            user: receipt.user.clone(),
            quantity: receipt.quantity,
            epoch: receipt.epoch,
            claimed_ms: receipt.order_no.made_ms(),
            key: receipt.key,
        };
        let reason = match self.shared.gate.readmit(&claim).await? {
            Readmitted::Admitted => return Ok(Some(OrderView::Queued(claim))),
            Readmitted::Known => return self.on_record_by_now(claim).await,
            Readmitted::AlreadyBought { .. } => VoidReason::AlreadyBought,
            Readmitted::SoldOut => VoidReason::Lost,
            Readmitted::Frozen => return Err(not_now()),
            Readmitted::NotLoaded => {
                // The item may be gone and its claims still be on the log.
                let on_log = self.shared.gate.in_flight(claim.item).await?;
                if let Some(claim) = on_log.into_iter().find(|c| c.order_no == claim.order_no) {
                    return Ok(Some(OrderView::Queued(claim)));
                }
                // Only an item whose sale is over is gone for good.
                match self.not_at_the_gate(claim.item).await {
                    Decision::Ended | Decision::UnknownItem => VoidReason::Lost,
                    _ => return Err(not_now()),
                }
            }
        };
        tracing::warn!(order_no = %claim.order_no, ?reason, "a lost claim could not be admitted again");
        self.shared.ledger.void(&[claim], reason, self.shared.now_ms()).await?;
        self.shared.wake.outbox_written();
        self.orders.order(receipt.order_no, Some(&receipt.user)).await
    }

    /// The gate has the mark of a claim that was not on record a moment ago. Somebody else may have
    /// presented the same receipt meanwhile.
    async fn on_record_by_now(&self, claim: Claim) -> Result<Option<OrderView>, StoreError> {
        match self.orders.order(claim.order_no, Some(&claim.user)).await? {
            None => Err(only_a_mark(&claim)),
            known => Ok(known),
        }
    }

    /// A gate may take a mark for a claim on its way, for looking through the log for every buyer who
    /// asks would be too dear. A receipt is worth the look: if an older ledger was restored, neither
    /// log nor ledger have the claim, its mark will go when the item is rebuilt, and *queued* would be
    /// a promise that nobody keeps.
    async fn is_nowhere(&self, claim: &Claim) -> Result<bool, StoreError> {
        // In this order: it leaves the log for the ledger.
        Ok(!self.shared.gate.is_on_log(claim).await?
            && self.shared.ledger.order(claim.order_no).await?.is_none()
            && self.shared.ledger.dead_letter(claim.order_no).await?.is_none())
    }
}

fn only_a_mark(claim: &Claim) -> StoreError {
    let (order_no, item) = (claim.order_no, claim.item);
    tracing::warn!(%order_no, %item, "the gate has the mark of a claim that neither log nor ledger have; \
        reconcile rebuilds the item, and then its receipt is good");
    not_now()
}

fn not_now() -> StoreError {
    let reason = gate::GateFailure::BeingLoaded;
    gate::GateError::new(reason, "the item is not at the gate").into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use sale::{ActivityMove, KeyHash, OrderStatus};

    use super::*;
    use crate::test_engine::{TestEngine, one_unit};

    #[tokio::test]
    async fn a_receipt_of_an_item_that_has_left_is_looked_for_on_the_log() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        shop.engine.shared.workers.as_ref().unwrap().stop().await;
        let gate = shop.gate.clone();
        let engine = &shop.engine;
        let key = Some(KeyHash(7));
        let item = activity.items[0].id;
        let answer = engine.claims.claim(ClaimRequest { key, ..one_unit(item, "ann") }).await;
        let Decision::Admitted { claim, .. } = answer else { panic!("{answer:?}") };
        engine.operations.move_activity("op", activity.id, ActivityMove::End).await.unwrap();
        gate.has_left.store(true, Ordering::SeqCst);
        let receipt = Receipt::verify(&claim.receipt(engine.keys()), engine.keys()).unwrap();
        let view = engine.claims.present(&receipt).await.unwrap();
        assert!(matches!(&view, Some(OrderView::Queued(found)) if *found == claim), "{view:?}");
        let lost = Receipt { order_no: engine.shared.numbers.next(), ..receipt };
        let view = engine.claims.present(&lost).await.unwrap();
        assert!(
            matches!(&view, Some(OrderView::Known(order)) if order.status == OrderStatus::Void)
        );
    }
}

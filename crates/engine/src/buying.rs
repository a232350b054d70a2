//! A buyer's claim, from a verified sale token to an answer that is true.

use std::time::Duration;

use gate::{Busy, ClaimRequest, Decision, Place, Readmitted};
use ledger::LedgerError;
use sale::{
    ActivityState, Claim, ItemId, Millis, Order, OrderNo, OrderStatus, Receipt, UserId, VoidReason,
};

use super::Engine;
use crate::coordination::OrderCopy;

/// A copy of an order that is older is not told before the ledger was asked.
const COPY_MS_MAX: Millis = 10_000;
/// How long the ledger is waited for by a buyer whom something else can be told.
const LEDGER_WAIT_MAX: Duration = Duration::from_secs(2);

/// An order as its buyer sees it: a row of the ledger, or a claim still on its way there.
#[derive(Clone, Debug)]
pub enum OrderView {
    Queued(Claim),
    Known(Order),
    /// The ledger cannot be asked now. The claim was queued when it was made, and is on the log.
    LastQueued(Claim),
    /// The ledger cannot be asked now. This is what it said at that time.
    LastKnown(Order, Millis),
}

impl OrderView {
    pub fn user(&self) -> &UserId {
        match self {
            OrderView::Queued(claim) | OrderView::LastQueued(claim) => &claim.user,
            OrderView::Known(order) | OrderView::LastKnown(order, _) => &order.user,
        }
    }

    pub fn order_no(&self) -> OrderNo {
        match self {
            OrderView::Queued(claim) | OrderView::LastQueued(claim) => claim.order_no,
            OrderView::Known(order) | OrderView::LastKnown(order, _) => order.order_no,
        }
    }

    pub fn status(&self) -> OrderStatus {
        match self {
            OrderView::Queued(_) | OrderView::LastQueued(_) => OrderStatus::Queued,
            OrderView::Known(order) | OrderView::LastKnown(order, _) => order.status,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Gate(#[from] gate::GateError),
}

impl Engine {
    /// One claim, from its request to the decision that its buyer is told.
    pub async fn claim(&self, request: ClaimRequest) -> Decision {
        let item = request.item;
        match self.enter(request) {
            Err(decision) => decision,
            Ok(place) => self.answer(item, place.await).await,
        }
    }

    /// A place in a lane, or the decision if it is known already.
    pub fn enter(&self, request: ClaimRequest) -> Result<Place, Decision> {
        self.lanes.enter(request)
    }

    /// What the gate's decision means for the buyer.
    pub async fn answer(&self, item: ItemId, decision: Decision) -> Decision {
        match decision {
            Decision::Busy(Busy::NotLoaded) => self.not_at_the_gate(item).await,
            decided => decided,
        }
    }

    /// The gate does not have the item. The catalogue may know a better "no" than *busy*; it never
    /// knows a yes.
    async fn not_at_the_gate(&self, item: ItemId) -> Decision {
        let shown = match self.item_on_show(item).await {
            Ok(Some(shown)) => shown,
            Ok(None) => return Decision::UnknownItem,
            // Nobody can tell whether there is such an item.
            Err(_) => return Decision::Busy(Busy::NotLoaded),
        };
        let activity = shown.activity();
        let now_ms = self.clock.now_ms();
        if activity.state == ActivityState::Ended || now_ms >= activity.closes_ms {
            Decision::Ended
        } else if now_ms < activity.opens_ms {
            Decision::NotStarted { opens_ms: activity.opens_ms }
        } else {
            Decision::Busy(Busy::NotLoaded)
        }
    }

    /// When a claim at this position will be an order, at the rate of the last seconds.
    pub fn eta_ms(&self, position: u64) -> u64 {
        /// What a worker does at the least, for the first buyers of a quiet day.
        const RATE_PER_S_MIN: f64 = 1_000.0;
        let rate = self.rate_per_s().max(RATE_PER_S_MIN);
        (position as f64 / rate * 1_000.0).ceil() as u64
    }

    /// An order by its number. Without a buyer (for operators) a claim that is still on its way to
    /// the ledger is not found: the gate looks claims up by their buyers.
    pub async fn order(
        &self,
        no: OrderNo,
        buyer: Option<&UserId>,
    ) -> Result<Option<OrderView>, LookupError> {
        // Buyers look often while they wait; the copy that the news of the order renewed will do.
        let copy = self.coordination.order(no).await;
        if let Some(copy) = copy.as_ref().filter(|copy| is_fresh(copy)) {
            return Ok(Some(OrderView::Known(copy.order.clone())));
        }
        self.order_in_books(no, buyer, copy).await
    }

    /// The same without the copies that buyers look at. They are a yes from a cache, and may tell of
    /// an order that the ledger lost when an older backup was restored.
    async fn order_on_record(
        &self,
        no: OrderNo,
        buyer: Option<&UserId>,
    ) -> Result<Option<OrderView>, LookupError> {
        self.order_in_books(no, buyer, None).await
    }

    async fn order_in_books(
        &self,
        no: OrderNo,
        buyer: Option<&UserId>,
        copy: Option<OrderCopy>,
    ) -> Result<Option<OrderView>, LookupError> {
        // The gate first: a claim leaves it only after it is in the ledger, so what is in neither,
        // asked in this order, does not exist.
        let queued = match buyer {
            Some(user) => self.gate.queued(user, no).await,
            None => Ok(None),
        };
        let patient = copy.is_none() && !matches!(queued, Ok(Some(_)));
        let order = match self.ask_for_order(no, patient).await {
            Ok(order) => order,
            Err(LedgerError::Unavailable(why)) => return self.last_known(copy, queued, why).await,
            Err(error) => return Err(error.into()),
        };
        if let Some(order) = order {
            if let Some(copy) = copy {
                self.renew_old_copy(&order, &copy).await;
            }
            return Ok(Some(OrderView::Known(order)));
        }
        if let Ok(Some(claim)) = queued {
            return Ok(Some(OrderView::Queued(claim)));
        }
        // Failed claims have left the log and wait for their next try, or for a person. One that is
        // resolved became an order after we looked for it.
        match self.ledger.dead_letter(no).await? {
            Some(letter) if letter.state.is_open() => Ok(Some(OrderView::Queued(letter.claim))),
            Some(_) => Ok(self.ledger.order(no).await?.map(OrderView::Known)),
            // A gate that cannot tell, as while an item is loaded, is no reason to say that there is
            // no such order.
            None => Ok(queued?.map(OrderView::Queued)),
        }
    }

    /// Whoever knows something of the order already does not wait for a ledger that hangs.
    async fn ask_for_order(
        &self,
        no: OrderNo,
        patient: bool,
    ) -> Result<Option<Order>, LedgerError> {
        let asked = self.ledger.order(no);
        if patient {
            return asked.await;
        }
        let late = |_| Err(LedgerError::Unavailable("it does not answer in time".into()));
        tokio::time::timeout(LEDGER_WAIT_MAX, asked).await.unwrap_or_else(late)
    }

    /// The ledger cannot be asked. What somebody read there once was true then; and a claim that is on
    /// the log was waiting when it was made, and nobody has told since that it does not any more. That a
    /// buyer is marked at the gate says nothing: whoever has paid is marked as well.
    async fn last_known(
        &self,
        copy: Option<OrderCopy>,
        queued: gate::Result<Option<Claim>>,
        why: String,
    ) -> Result<Option<OrderView>, LookupError> {
        if let Some(copy) = copy {
            return Ok(Some(OrderView::LastKnown(copy.order, copy.read_ms)));
        }
        match queued {
            Ok(Some(claim)) if self.gate.is_on_log(&claim).await? => {
                Ok(Some(OrderView::LastQueued(claim)))
            }
            _ => Err(LedgerError::Unavailable(why).into()),
        }
    }

    /// Who asks next need not ask the ledger. If it does not work, they do.
    async fn renew_old_copy(&self, order: &Order, old: &OrderCopy) {
        let read = std::slice::from_ref(order);
        if let Err(error) = self.coordination.keep_orders(read, old.now_ms).await {
            tracing::debug!(%error, "the copy of an order could not be renewed");
        }
    }

    /// Present a receipt: the claim is found, or admitted again, or told why not.
    pub async fn present(&self, receipt: &Receipt) -> Result<Option<OrderView>, LookupError> {
        match self.order_on_record(receipt.order_no, Some(&receipt.user)).await? {
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
        let reason = match self.gate.readmit(&claim).await? {
            Readmitted::Admitted => return Ok(Some(OrderView::Queued(claim))),
            Readmitted::Known => return self.on_record_by_now(claim).await,
            Readmitted::AlreadyBought { .. } => VoidReason::AlreadyBought,
            Readmitted::SoldOut => VoidReason::Lost,
            Readmitted::Frozen => return Err(not_now()),
            Readmitted::NotLoaded => {
                // The item may be gone and its claims still be on the log.
                let on_log = self.gate.in_flight(claim.item).await?;
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
        self.ledger.void(&[claim], reason, self.clock.now_ms()).await?;
        self.wake_outbox();
        self.order_on_record(receipt.order_no, Some(&receipt.user)).await
    }
}

/// Young enough to be told without asking the ledger.
fn is_fresh(copy: &OrderCopy) -> bool {
    (0..COPY_MS_MAX).contains(&(copy.now_ms - copy.read_ms))
}

impl Engine {
    /// The gate has the mark of a claim that was not on record a moment ago. Somebody else may have
    /// presented the same receipt meanwhile.
    async fn on_record_by_now(&self, claim: Claim) -> Result<Option<OrderView>, LookupError> {
        match self.order_on_record(claim.order_no, Some(&claim.user)).await? {
            None => Err(only_a_mark(&claim)),
            known => Ok(known),
        }
    }

    /// A gate may take a mark for a claim on its way, for looking through the log for every buyer who
    /// asks would be too dear. A receipt is worth the look: if an older ledger was restored, neither
    /// log nor ledger have the claim, its mark will go when the item is rebuilt, and *queued* would be
    /// a promise that nobody keeps.
    async fn is_nowhere(&self, claim: &Claim) -> Result<bool, LookupError> {
        // In this order: it leaves the log for the ledger.
        Ok(!self.gate.is_on_log(claim).await?
            && self.ledger.order(claim.order_no).await?.is_none()
            && self.ledger.dead_letter(claim.order_no).await?.is_none())
    }
}

fn only_a_mark(claim: &Claim) -> LookupError {
    let (order_no, item) = (claim.order_no, claim.item);
    tracing::warn!(%order_no, %item, "the gate has the mark of a claim that neither log nor ledger have; \
        reconcile rebuilds the item, and then its receipt is good");
    not_now()
}

fn not_now() -> LookupError {
    let reason = gate::GateFailure::BeingLoaded;
    gate::GateError::new(reason, "the item is not at the gate").into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use sale::{ActivityMove, KeyHash};

    use super::*;
    use crate::test_engine::{TestEngine, one_unit};

    #[tokio::test]
    async fn a_receipt_of_an_item_that_has_left_is_looked_for_on_the_log() {
        let (mut night, activity) = TestEngine::fall(|_| {}).await;
        night.engine.workers.as_ref().unwrap().stop().await;
        let told = night.make_obedient();
        let engine = &night.engine;
        let key = Some(KeyHash(7));
        let item = activity.items[0].id;
        let answer = engine.claim(ClaimRequest { key, ..one_unit(item, "ann") }).await;
        let Decision::Admitted { claim, .. } = answer else { panic!("{answer:?}") };
        engine.move_activity("op", activity.id, ActivityMove::End).await.unwrap();
        told.has_left.store(true, Ordering::SeqCst);
        let receipt = Receipt::verify(&claim.receipt(&engine.keys), &engine.keys).unwrap();
        let view = engine.present(&receipt).await.unwrap();
        assert!(matches!(&view, Some(OrderView::Queued(found)) if *found == claim), "{view:?}");
        let lost = Receipt { order_no: engine.numbers.next(), ..receipt };
        let view = engine.present(&lost).await.unwrap();
        assert!(
            matches!(&view, Some(OrderView::Known(order)) if order.status == OrderStatus::Void)
        );
    }

    #[tokio::test]
    async fn a_gate_that_cannot_tell_denies_no_order() {
        let (mut night, activity) = TestEngine::fall(|_| {}).await;
        let known = night.buy(activity.items[0].id, "ann").await;
        let told = night.make_obedient();
        let (engine, ann) = (&night.engine, "ann".parse().unwrap());
        let unknown = engine.numbers.next();
        assert!(engine.order(unknown, Some(&ann)).await.unwrap().is_none());
        told.cannot_tell.store(true, Ordering::SeqCst);
        let view = engine.order(known, Some(&ann)).await.unwrap();
        assert!(matches!(view, Some(OrderView::Known(_))), "{view:?}");
        let view = engine.order(unknown, Some(&ann)).await;
        assert!(matches!(view, Err(LookupError::Gate(_))), "it may be on the log: {view:?}");
    }
}

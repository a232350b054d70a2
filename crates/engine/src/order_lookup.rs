//! Looking an order up, wherever it is on its way: for its buyer, by its number, or for an operator.
//!
//! A claim is on the log until it is an order, or failed and waits for its next try or for a person.
//! Most are orders, so the ledger is asked first; of one that it does not have the others are asked in the
//! order in which it moves, and at last the ledger again, so that one that moves meanwhile is seen twice
//! and never not at all.

use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use ledger::{DeadLetter, DeadLetterState, LedgerError, OrderFilter, PaymentRow};
use sale::{Claim, Millis, Order, OrderNo, OrderStatus, UserId};

use crate::{
    last_known::LastKnown,
    order_reads::{OrderReads, PaymentReads, by_order},
    shared::{Shared, StoreError},
};

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

/// An order or a claim, and why it is no order yet if it failed.
#[derive(Clone, Debug)]
pub struct Found {
    pub view: OrderView,
    pub failed: Option<DeadLetterState>,
}

impl Found {
    fn known(order: Order) -> Found {
        Found { view: OrderView::Known(order), failed: None }
    }

    fn failed(letter: DeadLetter) -> Found {
        Found { view: OrderView::Queued(letter.claim), failed: Some(letter.state) }
    }
}

pub struct OrderLookup {
    shared: Arc<Shared>,
    reads: OrderReads,
    payment_reads: PaymentReads,
    last_known: Arc<LastKnown>,
}

impl OrderLookup {
    pub(crate) fn new(shared: Arc<Shared>, last_known: Arc<LastKnown>) -> OrderLookup {
        let reads = OrderReads::new(shared.ledger.clone());
        let payment_reads = PaymentReads::new(shared.ledger.clone());
        OrderLookup { reads, payment_reads, shared, last_known }
    }

    /// What is on record of an order's payments, oldest first.
    pub async fn payments(&self, no: OrderNo) -> ledger::Result<Vec<PaymentRow>> {
        self.payment_reads.of(no).await
    }

    /// The same of many orders at once.
    pub async fn payments_of(
        &self,
        orders: &[OrderNo],
    ) -> ledger::Result<HashMap<OrderNo, Vec<PaymentRow>>> {
        Ok(by_order(self.shared.ledger.payments_of(orders).await?))
    }

    /// Claims on the log; `None` if none is there.
    pub fn backlog(&self) -> Option<u64> {
        Some(self.shared.gate.backlog()).filter(|backlog| *backlog > 0)
    }

    /// When the last claim on the log will be an order; `None` if none is there. A claim that waits for
    /// its next try is not on the log, and nobody knows when its time will come.
    pub fn backlog_eta_ms(&self) -> Option<u64> {
        self.backlog().map(|backlog| self.shared.eta_ms(backlog))
    }

    /// An order by its number. Without a buyer (for operators) a claim that is still on its way to
    /// the ledger is not found: the gate looks claims up by their buyers.
    pub async fn order(
        &self,
        no: OrderNo,
        buyer: Option<&UserId>,
    ) -> Result<Option<OrderView>, StoreError> {
        let asked_ms = self.shared.now_ms();
        match self.ask_ledger(no, buyer).await? {
            Some(OrderView::Known(order)) => {
                self.last_known.note(&order, asked_ms);
                Ok(Some(OrderView::Known(order)))
            }
            Some(last) => Ok(Some(last)),
            None => self.on_its_way(no, buyer).await,
        }
    }

    /// A ledger that hangs is waited for only until something else can be told.
    async fn ask_ledger(
        &self,
        no: OrderNo,
        buyer: Option<&UserId>,
    ) -> Result<Option<OrderView>, StoreError> {
        let mut asked = pin!(self.reads.order(no));
        let answer = match tokio::time::timeout(LEDGER_WAIT_MAX, &mut asked).await {
            Ok(answer) => answer,
            Err(_) => match self.without_ledger(no, buyer).await {
                Ok(Some(last)) => return Ok(Some(last)),
                Ok(None) | Err(_) => asked.await,
            },
        };
        match answer {
            Ok(order) => Ok(order.map(OrderView::Known)),
            Err(LedgerError::Unavailable(why)) => {
                let last = self.without_ledger(no, buyer).await?;
                last.map(Some).ok_or_else(|| LedgerError::Unavailable(why).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The ledger cannot be asked. What somebody read there once was true then; and a claim that is on
    /// the log was waiting when it was made, and nobody has told since that it does not any more. That a
    /// buyer is marked at the gate says nothing: whoever has paid is marked as well.
    async fn without_ledger(
        &self,
        no: OrderNo,
        buyer: Option<&UserId>,
    ) -> Result<Option<OrderView>, StoreError> {
        if let Some((order, read_ms)) = self.last_known.of(no, self.shared.now_ms()) {
            return Ok(Some(OrderView::LastKnown(order, read_ms)));
        }
        match self.queued(no, buyer).await {
            Ok(Some(claim)) if self.shared.gate.is_on_log(&claim).await? => {
                Ok(Some(OrderView::LastQueued(claim)))
            }
            _ => Ok(None),
        }
    }

    async fn queued(&self, no: OrderNo, buyer: Option<&UserId>) -> gate::Result<Option<Claim>> {
        match buyer {
            Some(user) => self.shared.gate.queued(user, no).await,
            None => Ok(None),
        }
    }

    /// What the ledger did not have a moment ago.
    async fn on_its_way(
        &self,
        no: OrderNo,
        buyer: Option<&UserId>,
    ) -> Result<Option<OrderView>, StoreError> {
        let queued = self.queued(no, buyer).await;
        if let Ok(Some(claim)) = queued {
            return Ok(Some(OrderView::Queued(claim)));
        }
        // Failed claims have left the log and wait for their next try, or for a person.
        match self.shared.ledger.dead_letter(no).await? {
            Some(letter) if letter.state.is_open() => {
                return Ok(Some(OrderView::Queued(letter.claim)));
            }
            _ => {}
        }
        // It may have become an order since we looked first.
        if let Some(order) = self.reads.order(no).await? {
            return Ok(Some(OrderView::Known(order)));
        }
        // A gate that cannot tell, as while an item is loaded, is no reason to say that there is
        // no such order.
        Ok(queued?.map(OrderView::Queued))
    }

    /// For operators, who may ask for anybody's.
    pub async fn find(&self, no: OrderNo) -> Result<Option<Found>, StoreError> {
        if let Some(order) = self.shared.ledger.order(no).await? {
            return Ok(Some(Found::known(order)));
        }
        let on_log = self.shared.gate.on_log(no).await;
        match self.shared.ledger.dead_letter(no).await? {
            Some(letter) if letter.state.is_open() => return Ok(Some(Found::failed(letter))),
            _ => {}
        }
        // It may have become one since we looked first.
        if let Some(order) = self.shared.ledger.order(no).await? {
            return Ok(Some(Found::known(order)));
        }
        // A gate that cannot tell is no reason to say that there is none.
        Ok(on_log?.map(|claim| Found { view: OrderView::Queued(claim), failed: None }))
    }

    /// Claims of a buyer that are no orders yet, newest first; of those that failed at most `rows`.
    pub async fn waiting_of(
        &self,
        user: &UserId,
        before: Option<OrderNo>,
        rows: usize,
    ) -> Result<Vec<Found>, StoreError> {
        let mut waiting = self.held_by(user, before, rows).await?;
        let numbers: Vec<OrderNo> = waiting.keys().copied().collect();
        for order in self.shared.ledger.orders_by_no(&numbers).await? {
            waiting.remove(&order.order_no);
        }
        Ok(waiting.into_values().rev().collect())
    }

    /// What a buyer holds by the gate, whether or not it has become an order, and what failed.
    async fn held_by(
        &self,
        user: &UserId,
        before: Option<OrderNo>,
        rows: usize,
    ) -> Result<BTreeMap<OrderNo, Found>, StoreError> {
        let queued = self.shared.gate.queued_of(user).await?;
        let failed = self.shared.ledger.dead_letters_of(user, None, before, rows).await?;
        let queued = queued
            .into_iter()
            .filter(|claim| before.is_none_or(|before| claim.order_no < before))
            .map(|claim| Found { view: OrderView::Queued(claim), failed: None });
        let held = queued.chain(failed.into_iter().map(Found::failed));
        Ok(held.map(|found| (found.view.order_no(), found)).collect())
    }

    /// The orders of one buyer, those on their way among them, newest first.
    pub async fn of_buyer(
        &self,
        user: &UserId,
        before: Option<OrderNo>,
        rows: usize,
    ) -> Result<Vec<OrderView>, StoreError> {
        let mut views = self.held_by(user, before, rows).await?;
        let filter =
            OrderFilter { user: Some(user.clone()), before, limit: rows, ..OrderFilter::default() };
        for order in self.shared.ledger.orders(&filter).await? {
            views.insert(order.order_no, Found::known(order));
        }
        Ok(views.into_values().rev().take(rows).map(|found| found.view).collect())
    }
}

/// For searches: does the claim fit what is asked of orders?
pub fn fits(claim: &Claim, filter: &OrderFilter) -> bool {
    filter.item.is_none_or(|item| claim.item == item)
        && filter.from_ms.is_none_or(|from_ms| claim.claimed_ms >= from_ms)
        && filter.to_ms.is_none_or(|to_ms| claim.claimed_ms < to_ms)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::test_engine::TestEngine;

    #[tokio::test]
    async fn a_gate_that_cannot_tell_denies_no_order() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let known = shop.buy(activity.items[0].id, "ann").await;
        let gate = shop.gate.clone();
        let (engine, ann) = (&shop.engine, "ann".parse().unwrap());
        let unknown = engine.shared.numbers.next();
        assert!(engine.orders.order(unknown, Some(&ann)).await.unwrap().is_none());
        gate.cannot_tell.store(true, Ordering::SeqCst);
        let view = engine.orders.order(known, Some(&ann)).await.unwrap();
        assert!(matches!(view, Some(OrderView::Known(_))), "{view:?}");
        let view = engine.orders.order(unknown, Some(&ann)).await;
        assert!(matches!(view, Err(StoreError::Gate(_))), "it may be on the log: {view:?}");
    }
}

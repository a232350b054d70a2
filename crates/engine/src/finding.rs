//! Orders as operators look for them: by number or by buyer, wherever they are on their way.
//!
//! A claim is on the log until it is an order, or failed and waits for its next try or for a person.
//! Whoever looks asks in the order in which it moves, so that one that moves meanwhile is seen twice and
//! never not at all.

use std::collections::BTreeMap;

use ledger::{DeadLetter, DeadLetterState, LedgerError, OrderFilter};
use sale::{Claim, Order, OrderNo, OrderStatus, UserId};
use serde_json::Value;

use super::{Engine, LookupError, OrderView, PayError};
use crate::actor::Actor;

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

impl Engine {
    /// Not by the copy that buyers look at: operators decide by what they see.
    pub async fn find_order(&self, no: OrderNo) -> Result<Option<Found>, LookupError> {
        if let Some(order) = self.ledger.order(no).await? {
            return Ok(Some(Found::known(order)));
        }
        let on_log = self.gate.on_log(no).await;
        match self.ledger.dead_letter(no).await? {
            Some(letter) if letter.state.is_open() => return Ok(Some(Found::failed(letter))),
            _ => {}
        }
        // It may have become one since we looked first.
        if let Some(order) = self.ledger.order(no).await? {
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
    ) -> Result<Vec<Found>, LookupError> {
        let mut waiting = self.held_by(user, before, rows).await?;
        let numbers: Vec<OrderNo> = waiting.keys().copied().collect();
        for order in self.ledger.orders_by_no(&numbers).await? {
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
    ) -> Result<BTreeMap<OrderNo, Found>, LookupError> {
        let queued = self.gate.queued_of(user).await?;
        let failed = self.ledger.dead_letters_of(user, None, before, rows).await?;
        let queued = queued
            .into_iter()
            .filter(|claim| before.is_none_or(|before| claim.order_no < before))
            .map(|claim| Found { view: OrderView::Queued(claim), failed: None });
        let held = queued.chain(failed.into_iter().map(Found::failed));
        Ok(held.map(|found| (found.view.order_no(), found)).collect())
    }

    /// The orders of one buyer, those on their way among them, newest first.
    pub async fn orders_of(
        &self,
        user: &UserId,
        before: Option<OrderNo>,
        rows: usize,
    ) -> Result<Vec<OrderView>, LookupError> {
        let mut views = self.held_by(user, before, rows).await?;
        let filter =
            OrderFilter { user: Some(user.clone()), before, limit: rows, ..OrderFilter::default() };
        for order in self.ledger.orders(&filter).await? {
            views.insert(order.order_no, Found::known(order));
        }
        Ok(views.into_values().rev().take(rows).map(|found| found.view).collect())
    }

    /// An operator gives up an unpaid order in its buyer's place, by the same steps.
    pub async fn cancel_by(&self, who: impl Into<Actor>, no: OrderNo) -> Result<Order, PayError> {
        let order = match self.find_order(no).await {
            Ok(Some(Found { view: OrderView::Known(order), .. })) => order,
            Ok(Some(_)) => return Err(PayError::Conflict(OrderStatus::Queued)),
            Ok(None) => return Err(LedgerError::NotFound.into()),
            Err(LookupError::Ledger(error)) => return Err(error.into()),
            Err(LookupError::Gate(error)) => {
                return Err(LedgerError::Unavailable(error.to_string()).into());
            }
        };
        let detail = match order.status {
            OrderStatus::Unpaid => Value::Null,
            OrderStatus::Closed => serde_json::json!({"repeated": true}),
            status => return Err(PayError::Conflict(status)),
        };
        let deed = self.deed(who, "order.cancel", format!("order:{no}"), detail);
        self.ledger.audit(&deed, self.clock.now_ms()).await?;
        self.cancel(&OrderView::Known(order)).await
    }
}

/// For searches: does the claim fit what is asked of orders?
pub fn fits(claim: &Claim, filter: &OrderFilter) -> bool {
    filter.item.is_none_or(|item| claim.item == item)
        && filter.from_ms.is_none_or(|from_ms| claim.claimed_ms >= from_ms)
        && filter.to_ms.is_none_or(|to_ms| claim.claimed_ms < to_ms)
}

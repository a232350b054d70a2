//! Reconcile: does the gate hold what the ledger says it should?
//!
//! At any moment, also in the middle of a rush:
//!
//! ```text
//! units left at the gate = ledger stock
//!                        − units of claims in flight (on the log, retrying, dead)
//!                        − units the ledger took back and the gate has not heard of yet
//!                        − units of stock changes that one of the two has made and the other has not
//! ```
//!
//! The two sides cannot be read in one instant, so the gate is read before and after the ledger; if
//! its version moved in between, the reading is thrown away and taken again, after a pause that grows
//! from try to try. An item that changed during every one of them is reported as *moving*: that says
//! nothing was compared, neither that the two agree nor that they differ; so is one that is being
//! loaded. The job compares it again soon, for a rush ends when the stock does; freezing it would make
//! the comparison sure and the sale stop.
//!
//! A provider's notice may get lost. So the providers are asked about every payment that was opened and
//! of which nothing was heard; what is paid is credited like a notice. However old the order is, a
//! payment is asked about until its provider says that it is closed and money that was under way then
//! has had a day to arrive; one that is open although its order is over is closed there.
//!
//! The bill of every day that is over is compared as well, once its provider has made it, in both directions.
//!
//! What has a rule is healed: a gate that disagrees is loaded anew from ledger and log (the same
//! steps as warming; no number of one is ever written over the other's), a refund nobody is working
//! on is put back into the outbox, unnoticed money is credited (or given back if the order is over).
//! What has no rule, such as a broken chain in the stock log, is shown to a person. Heals of the gate
//! and of payments are in the audit.

mod bills;
mod compare;
mod found_money;
mod heal;
mod payments;
mod report;

use std::{collections::HashMap, sync::Arc};

use ledger::ActivityFilter;
use parking_lot::Mutex;
use sale::{ActivityState, ItemId, Millis};

pub use self::report::{Finding, ItemReport, ItemVerdict, RECONCILE_JOB, Report};
use self::{
    bills::BillComparison,
    compare::Comparison,
    heal::Healing,
    payments::PaymentComparison,
    report::{Items, healed_among},
};
use crate::{
    Payments, StockChanges, StoreError,
    due::{self, Pages},
    shared::Shared,
    warming::Warming,
};

/// Activities are compared until this long after their end: orders may be paid, or timed out, so much
/// later, and then a week for the units to come back.
const COMPARED_AFTER_CLOSE_MS: Millis = sale::PAY_WITHIN_MS_MAX + 7 * 24 * 60 * 60 * 1_000;

pub struct Reconcile {
    shared: Arc<Shared>,
    items: Healing,
    payments: PaymentComparison,
    bills: BillComparison,
    /// One run at a time: two that heal the same item would only disturb each other.
    turn: tokio::sync::Mutex<()>,
    /// Live orders of each item, as the last run counted them.
    live_orders: Mutex<Arc<HashMap<ItemId, u64>>>,
}

impl Reconcile {
    pub(crate) fn new(
        shared: Arc<Shared>,
        warming: Arc<Warming>,
        stock: Arc<StockChanges>,
        payments: Arc<Payments>,
    ) -> Reconcile {
        let comparison = Comparison { shared: shared.clone(), stock };
        Reconcile {
            items: Healing { shared: shared.clone(), warming, comparison },
            bills: BillComparison::new(shared.clone(), payments.clone()),
            payments: PaymentComparison::new(shared.clone(), payments),
            shared,
            turn: tokio::sync::Mutex::new(()),
            live_orders: Mutex::default(),
        }
    }

    /// Live orders of each item, as the last run counted them.
    pub fn live_orders(&self) -> Arc<HashMap<ItemId, u64>> {
        self.live_orders.lock().clone()
    }

    pub(crate) async fn run(&self, heal: bool) -> Result<Report, StoreError> {
        let _turn = self.turn.lock().await;
        let started_at = self.shared.now_ms();
        let items = self.compare_items(started_at, heal).await?;
        let mut payments = self.payments.compare(heal).await?;
        payments.extend(self.bills.compare(heal).await?);
        let dead = ledger::DeadLetterState::Dead;
        let dead_letters =
            self.shared.ledger.dead_letters(Some(dead), None, 10_000).await?.len() as u64;
        let differences = items.differences + payments.len();
        let healed = items.healed + healed_among(&payments);
        assert!(healed <= differences, "{healed} healed of {differences} differences");
        let report = Report {
            started_at,
            ended_at: self.shared.now_ms(),
            backlog: self.shared.gate.backlog(),
            dead_letters,
            moving: items.moving,
            compared: items.compared,
            differences,
            healed,
            left: differences - healed,
            items: items.listed,
            payments,
        };
        let live_orders = report.items.iter().map(|item| (item.item_id, item.live_orders));
        *self.live_orders.lock() = Arc::new(live_orders.collect());
        report.write(&self.shared).await?;
        Ok(report)
    }

    /// Every item that may be at the gate, or was not long ago. What never was there, and whose stock
    /// nobody changed, has nothing that could differ.
    async fn compare_items(&self, now_ms: Millis, heal: bool) -> Result<Items, StoreError> {
        let ended = ActivityFilter::all(ActivityState::Ended);
        let ended = ended.closing_after(now_ms - COMPARED_AFTER_CLOSE_MS);
        let mut pages =
            Pages::of(&*self.shared.ledger, [ended].into_iter().chain(due::published()));
        let mut items = Items::default();
        // Does any part of the gate answer? Asked when one does not.
        let mut answers = None;
        while let Some(page) = pages.next().await? {
            let items_of = page.iter().flat_map(|activity| &activity.items);
            for item in items_of.filter(|item| item.epoch > 0 || item.version > 0) {
                match self.items.compare(item.id, heal).await {
                    Err(StoreError::Gate(error)) => {
                        if answers.is_none() {
                            answers = Some(self.shared.gate.ping().await.is_ok());
                        }
                        if answers != Some(true) {
                            return Err(error.into());
                        }
                        // A part that is away keeps nobody from comparing the others.
                        tracing::warn!(item = %item.id, %error, "the gate's side was not compared");
                        items.add(self.items.check_books(item.id).await?);
                    }
                    compared => items.add(compared?),
                }
            }
        }
        Ok(items)
    }
}

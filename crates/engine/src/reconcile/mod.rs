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
//! **Work follows what changed.** The job's runs compare what may differ from where all agreed
//! ([`points`]): every item is looked at, in a few numbers on each side, and what has moved, is under way or
//! disagreed the last time is read; books are counted on from where they agreed. What such a run by its
//! nature does not see, rows that somebody changed by hand in the middle of the past, a *whole* run does:
//! once a day at night, when an operator asks, when a process becomes the one that compares; and of an item
//! when its sale has ended. Nothing of that is written down, for whoever tampers with the books could tamper
//! with it, too.
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
mod points;
mod report;
mod runs;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use gate::Outline;
use ledger::{ActivityFilter, ItemOutline, OutlinePage};
use parking_lot::Mutex;
use sale::{ActivityState, ItemId, Millis};

use self::{
    bills::BillComparison,
    compare::Comparison,
    heal::Healing,
    payments::PaymentComparison,
    points::Points,
    report::{Findings, Items},
    runs::Runs,
};
pub use self::{
    report::{Finding, ItemReport, ItemVerdict, RECONCILE_JOB, Report},
    runs::{ReconcileRun, TooManyRuns},
};
use crate::{Payments, StockChanges, StoreError, due, shared::Shared, warming::Warming};

/// Activities are compared until this long after their end: orders may be paid, or timed out, so much
/// later, and then a week for the units to come back.
const COMPARED_AFTER_CLOSE_MS: Millis = sale::PAY_WITHIN_MS_MAX + 7 * DAY_MS;
/// Activities whose items are outlined in one reading of the ledger.
const OUTLINED_ACTIVITIES: usize = 500;
/// How old the count of dead letters in a report may be.
const COUNTED_MS_MAX: Millis = 10_000;
const HOUR_MS: Millis = 60 * 60 * 1_000;
const DAY_MS: Millis = 24 * HOUR_MS;

/// What a run is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconcileAsk {
    /// Also put right what has a rule.
    pub heal: bool,
    /// Read everything, also what nothing has touched since it agreed.
    pub whole: bool,
}

impl ReconcileAsk {
    pub fn whole(heal: bool) -> ReconcileAsk {
        ReconcileAsk { heal, whole: true }
    }
}

pub struct Reconcile {
    shared: Arc<Shared>,
    items: Healing,
    payments: PaymentComparison,
    bills: BillComparison,
    /// Where all agreed. Held during a run: two that heal the same item would only disturb each other.
    points: tokio::sync::Mutex<Points>,
    /// Live orders of each item, as they were last counted.
    live_orders: Mutex<Arc<HashMap<ItemId, u64>>>,
    runs: Runs,
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
            points: tokio::sync::Mutex::default(),
            live_orders: Mutex::default(),
            runs: Runs::default(),
        }
    }

    /// Live orders of each item, as they were last counted.
    pub fn live_orders(&self) -> Arc<HashMap<ItemId, u64>> {
        self.live_orders.lock().clone()
    }

    /// Compares everything.
    #[cfg(test)]
    pub(crate) async fn run(&self, heal: bool) -> Result<Report, StoreError> {
        self.run_as(ReconcileAsk::whole(heal), &AtomicUsize::new(0)).await
    }

    /// What the job does: all there is, if this process has not done so since last night, and otherwise
    /// what changed.
    pub(crate) async fn run_by_itself(&self) -> Result<Report, StoreError> {
        let hour = self.shared.settings.jobs.reconcile_whole_hour_utc as Millis;
        let night_ms = last_night_ms(self.shared.now_ms(), hour);
        let whole = self.points.lock().await.whole_ms.is_none_or(|last_ms| last_ms < night_ms);
        self.run_as(ReconcileAsk { heal: true, whole }, &AtomicUsize::new(0)).await
    }

    /// `compared` counts the items that have been looked at, for those who wait.
    pub(crate) async fn run_as(
        &self,
        ask: ReconcileAsk,
        compared: &AtomicUsize,
    ) -> Result<Report, StoreError> {
        let mut points = self.points.lock().await;
        let started_at = self.shared.now_ms();
        if ask.whole {
            // Whatever becomes of this run, what it has not read is read by the next.
            *points = Points::default();
        }
        let items = self.compare_items(started_at, ask, &mut points, compared).await?;
        let mut payments = Findings::default();
        let found = self.payments.compare(ask.heal, started_at, &mut points.payments).await?;
        found.into_iter().for_each(|finding| payments.add(finding));
        let found = self.bills.compare(ask.heal).await?;
        found.into_iter().for_each(|finding| payments.add(finding));
        if ask.whole {
            points.whole_ms = Some(started_at);
        }
        let dead_letters = self.shared.ledger.outstanding_lately(COUNTED_MS_MAX).await?;
        let differences = items.differences + payments.found;
        let healed = items.healed + payments.healed;
        assert!(healed <= differences, "{healed} healed of {differences} differences");
        let report = Report {
            started_at,
            ended_at: self.shared.now_ms(),
            whole: ask.whole,
            backlog: self.shared.gate.backlog(),
            dead_letters: dead_letters.claims.iter().map(|claims| claims.dead).sum(),
            moving: items.moving,
            compared: items.compared,
            unchanged: items.unchanged,
            differences,
            healed,
            left: differences - healed,
            items: items.listed,
            payments: payments.listed,
        };
        *self.live_orders.lock() = Arc::new(points.live_orders());
        drop(points);
        report.write(&self.shared).await?;
        Ok(report)
    }

    pub(crate) fn begin(
        &self,
        ask: ReconcileAsk,
    ) -> Result<(Arc<ReconcileRun>, bool), TooManyRuns> {
        self.runs.begin(ask, self.shared.now_ms())
    }

    /// A run that was started at this process, if that was not long ago.
    pub fn started(&self, number: u64) -> Option<Arc<ReconcileRun>> {
        self.runs.find(number)
    }

    /// Every item that may be at the gate, or was not long ago. What never was there, and whose stock
    /// nobody changed, has nothing that could differ.
    async fn compare_items(
        &self,
        now_ms: Millis,
        ask: ReconcileAsk,
        points: &mut Points,
        compared: &AtomicUsize,
    ) -> Result<Items, StoreError> {
        let ended = ActivityFilter::all(ActivityState::Ended);
        let ended = ended.closing_after(now_ms - COMPARED_AFTER_CLOSE_MS);
        let failed = self.shared.ledger.outstanding_lately(0).await?.claims;
        let mut round = Round {
            at_gate: self.shared.gate.outlines().await?,
            failed: failed.iter().map(|claims| claims.item).collect(),
            ask,
            answers: None,
            seen: HashSet::new(),
            items: Items::default(),
        };
        for filter in [ended].into_iter().chain(due::published()) {
            let mut after = None;
            loop {
                let page = self.shared.ledger.item_outlines(&filter, after, OUTLINED_ACTIVITIES);
                let OutlinePage { items, next } = page.await?;
                for outline in items {
                    self.compare_item(outline, points, &mut round).await?;
                    compared.fetch_add(1, Ordering::Relaxed);
                }
                if next.is_none() {
                    break;
                }
                after = next;
            }
        }
        points.keep(|item| round.seen.contains(&item));
        Ok(round.items)
    }

    async fn compare_item(
        &self,
        outline: ItemOutline,
        points: &mut Points,
        round: &mut Round,
    ) -> Result<(), StoreError> {
        let item = outline.item;
        // An activity that ended in between is met again.
        if !round.seen.insert(item) {
            return Ok(());
        }
        let here = round.at_gate.get(&item);
        let is_open = round.failed.contains(&item);
        if !round.ask.whole && !is_open && points.are_unchanged(&outline, here) {
            round.items.add_unchanged();
            return Ok(());
        }
        let from = points.books_of(&outline);
        match self.items.compare(item, from.as_ref(), round.ask.heal).await {
            Err(StoreError::Gate(error)) => {
                if round.answers.is_none() {
                    round.answers = Some(self.shared.gate.ping().await.is_ok());
                }
                if round.answers != Some(true) {
                    return Err(error.into());
                }
                // A part that is away keeps nobody from comparing the others.
                tracing::warn!(%item, %error, "the gate's side was not compared");
                let (sides, report) = self.items.check_books(item, from.as_ref()).await?;
                points.note(&sides, &report);
                round.items.add(report);
            }
            compared => {
                let (sides, report) = compared?;
                points.note(&sides, &report);
                round.items.add(report);
            }
        }
        Ok(())
    }
}

/// The comparison of all items, under way.
struct Round {
    ask: ReconcileAsk,
    at_gate: HashMap<ItemId, Outline>,
    /// Items of claims that failed: they hold units until somebody decides.
    failed: HashSet<ItemId>,
    /// Does any part of the gate answer? Asked when one does not.
    answers: Option<bool>,
    seen: HashSet<ItemId>,
    items: Items,
}

/// When it was this hour for the last time.
fn last_night_ms(now_ms: Millis, hour_utc: Millis) -> Millis {
    let today_ms = now_ms - now_ms.rem_euclid(DAY_MS) + hour_utc * HOUR_MS;
    if today_ms > now_ms { today_ms - DAY_MS } else { today_ms }
}

#[cfg(test)]
mod tests;

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
//! loaded. The job looks at it again soon, for a rush ends when the stock does; freezing it would make the comparison sure and the
//! sale stop.
//!
//! A provider's notice may get lost. So the providers are asked about every payment that was opened and
//! of which nothing was heard; what is paid is credited like a notice. However old the order is, a
//! payment is asked about until its provider says that it is closed and money that was under way then
//! has had a day to arrive; one that is open although its order is over is closed there.
//!
//! What has a rule is healed: a gate that disagrees is loaded anew from ledger and log (the same
//! steps as warming; no number of one is ever written over the other's), a refund nobody is working
//! on is put back into the outbox, unnoticed money is credited (or given back if the order is over).
//! What has no rule, such as a broken chain in the stock log, is shown to a person. Heals of the gate
//! and of payments are in the audit.

use std::collections::{HashMap, HashSet};

use futures_util::{StreamExt, stream};
use gate::{Reading, Shut};
use ledger::{
    ActivityFilter, Credit, ItemBooks, NewJobRun, OpenPayment, PaymentNotice, PaymentProblem,
};
use orders::{Alert, AlertKind};
use parking_lot::Mutex;
use payment::{CloseOutcome, Paid, Provider, ProviderError, QueryOutcome};
use sale::{ActivityState, Claim, Epoch, Item, ItemId, ItemState, Millis, OrderNo, UserId};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Engine, NoticeFailure,
    adjusting::Unconfirmed,
    due::{self, Pages},
    jobs::PROVIDER_CALLS_MAX,
    warming::WarmError,
};

/// How often an item that moves is read, and how long to wait before the second reading; before the
/// third it is twice as long, and so on: under four seconds in all.
const READINGS_MAX: u64 = 20;
const READING_PAUSE_MS: u64 = 20;
/// A lowering of the stock that the ledger has not confirmed after this long never will be.
const ADJUST_AGE_MS_MAX: Millis = 60_000;
const PAYMENT_PROBLEMS_MAX: usize = 1_000;
/// Payments whose providers are asked in one run. The next run goes on where this one ended.
const ASKED_PAYMENTS_MAX: usize = 1_000;
/// How long after the end of its order money may still arrive for a payment that its provider calls
/// closed.
const UNDER_WAY_MS_MAX: Millis = 24 * 60 * 60 * 1_000;
/// A notice takes its time; only when none has come this long after the payment is it lost.
const NOTICE_MS_MAX: Millis = 60_000;
/// Activities are compared until this long after their end: orders may be paid, or timed out, so much
/// later, and then a week for the units to come back.
const COMPARED_AFTER_CLOSE_MS: Millis = sale::PAY_WITHIN_MS_MAX + 7 * 24 * 60 * 60 * 1_000;
/// Items that a report lists of each verdict. All are compared and counted.
const ITEMS_LISTED_MAX: usize = 1_000;

/// The job's name in `tb_job_run`.
pub const RECONCILE_JOB: &str = "reconcile";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub started_at: i64,
    pub ended_at: i64,
    /// Claims on the log that are not in the ledger yet.
    pub backlog: u64,
    /// Claims that failed all their tries and wait for a person; they hold their units.
    pub dead_letters: u64,
    /// Items that were looked at.
    #[serde(default)]
    pub compared: usize,
    /// Of very many items not all are listed: at most 1000 of each verdict.
    pub items: Vec<ItemReport>,
    pub payments: Vec<Finding>,
    /// Items that changed during every reading and were not compared.
    #[serde(default)]
    pub moving: usize,
    pub differences: usize,
    pub healed: usize,
    /// Differences that are still there. Zero means that all agree.
    pub left: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ItemReport {
    pub item_id: ItemId,
    pub name: String,
    pub verdict: ItemVerdict,
    /// Units left at the gate; absent if the item is not there.
    pub gate_left: Option<i64>,
    pub in_flight: i64,
    /// Units on their way from the ledger back to the gate.
    pub returning: i64,
    /// Units of stock changes under way: taken from the gate and not from the ledger yet, or added to the
    /// ledger and not to the gate yet. `gate_left` = `ledger_stock` − `in_flight` − `returning` − this.
    #[serde(default)]
    pub adjusting: i64,
    pub ledger_stock: i64,
    pub live_units: i64,
    /// Orders unpaid or paid.
    #[serde(default)]
    pub live_orders: u64,
    pub total: i64,
    pub findings: Vec<Finding>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemVerdict {
    Agree,
    Differ,
    /// It changed during every reading and was not compared; the ledger's own books were checked.
    Moving,
    /// Not at the gate; only the ledger's own books were checked.
    NotAtGate,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// A stable name, e.g. `gate_left`.
    pub kind: String,
    pub detail: String,
    /// What was done about it; absent if it has no rule or the rule failed.
    pub healed: Option<String>,
}

impl Finding {
    fn new(kind: &str, detail: String) -> Finding {
        Finding { kind: kind.into(), detail, healed: None }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error(transparent)]
    Ledger(#[from] ledger::LedgerError),
    #[error(transparent)]
    Gate(#[from] gate::GateError),
}

/// Both sides of one item at one instant.
struct Sides {
    gate: Option<Reading>,
    marks: Vec<(UserId, OrderNo)>,
    books: ItemBooks,
    moving: bool,
}

/// What came of the comparison of all items.
#[derive(Default)]
struct Items {
    listed: Vec<ItemReport>,
    /// How many are listed of each verdict, and of those with a stock change under way.
    listed_of: [usize; 5],
    compared: usize,
    moving: usize,
    differences: usize,
    healed: usize,
}

impl Items {
    fn add(&mut self, report: ItemReport) {
        self.compared += 1;
        self.moving += usize::from(report.verdict == ItemVerdict::Moving);
        self.differences += report.findings.len();
        self.healed += healed_among(&report.findings);
        // One that agrees because a change is under way is not lost among thousands that just agree.
        let kind = if report.adjusting == 0 { report.verdict as usize } else { 4 };
        let listed_of_its_kind = &mut self.listed_of[kind];
        if *listed_of_its_kind < ITEMS_LISTED_MAX {
            *listed_of_its_kind += 1;
            self.listed.push(report);
        }
    }
}

fn healed_among(findings: &[Finding]) -> usize {
    findings.iter().filter(|finding| finding.healed.is_some()).count()
}

/// What a provider says of a payment.
enum Told {
    /// It has the money, and a notice of it is overdue.
    Money(Paid),
    /// Nobody can pay any more.
    Closed,
    /// It may be paid yet, or the provider does not answer.
    Open,
}

/// What the gate should hold by the ledger's books.
#[derive(Debug, PartialEq, Eq)]
struct Expected {
    left: i64,
    marks: u64,
    in_flight: i64,
    returning: i64,
    adjusting: i64,
}

impl Engine {
    pub async fn reconcile(&self, heal: bool) -> Result<Report, ReconcileError> {
        // One at a time: two runs healing the same item would only disturb each other.
        let _turn = self.reconcile_turn.lock().await;
        let started_at = self.clock.now_ms();
        let items = self.reconcile_items(started_at, heal).await?;
        let mut payments = self.reconcile_payments(heal).await?;
        payments.extend(self.unnoticed_payments(heal).await?);
        let dead = ledger::DeadLetterState::Dead;
        let dead_letters = self.ledger.dead_letters(Some(dead), None, 10_000).await?.len() as u64;
        let differences = items.differences + payments.len();
        let healed = items.healed + healed_among(&payments);
        let report = Report {
            started_at,
            ended_at: self.clock.now_ms(),
            backlog: self.gate.backlog(),
            dead_letters,
            moving: items.moving,
            compared: items.compared,
            differences,
            healed,
            left: differences - healed,
            items: items.listed,
            payments,
        };
        self.publish(&report).await?;
        Ok(report)
    }

    /// Every item that may be at the gate, or was not long ago. What never was there, and whose stock
    /// nobody changed, has nothing that could differ.
    async fn reconcile_items(&self, now_ms: Millis, heal: bool) -> Result<Items, ReconcileError> {
        let ended = ActivityFilter::all(ActivityState::Ended);
        let ended = ended.closing_after(now_ms - COMPARED_AFTER_CLOSE_MS);
        let mut pages = Pages::of(&*self.ledger, [ended].into_iter().chain(due::published()));
        let mut items = Items::default();
        while let Some(page) = pages.next().await? {
            let items_of = page.iter().flat_map(|activity| &activity.items);
            for item in items_of.filter(|item| item.epoch > 0 || item.version > 0) {
                items.add(self.reconcile_item(item, heal).await?);
            }
        }
        Ok(items)
    }

    async fn publish(&self, report: &Report) -> Result<(), ReconcileError> {
        metrics::gauge!("seckill_reconcile_differences_left").set(report.left as f64);
        let live_orders = report.items.iter().map(|item| (item.item_id, item.live_orders));
        *self.live_orders.lock() = live_orders.collect();
        metrics::counter!("seckill_reconcile_healed_total").increment(report.healed as u64);
        if report.differences > 0 {
            let message = format!(
                "reconcile found {} differences and healed {}",
                report.differences, report.healed
            );
            tracing::error!(differences = report.differences, healed = report.healed, "{message}");
            let cause = serde_json::to_string(&first_findings(report)).ok();
            let alert = Alert::new(AlertKind::Reconcile, message, report.ended_at);
            self.alerts.raise(Alert { cause, ..alert });
        }
        let run = NewJobRun {
            job: RECONCILE_JOB.into(),
            started_ms: report.started_at,
            ended_ms: report.ended_at,
            ok: report.left == 0,
            report: json!(report),
        };
        self.ledger.record_run(&run).await?;
        Ok(())
    }

    async fn reconcile_item(&self, item: &Item, heal: bool) -> Result<ItemReport, ReconcileError> {
        let (sides, mut report) = self.look(item.id).await?;
        if !heal || !report.findings.iter().any(|finding| finding.kind.starts_with("gate_")) {
            return Ok(report);
        }
        let how = match self.heal_gate(&sides.books.item, sides.gate.as_ref()).await {
            Ok(Some(how)) => how,
            Ok(None) => return Ok(report),
            Err(error) => {
                tracing::error!(item = %item.id, %error, "the gate could not be healed");
                return Ok(report);
            }
        };
        // Healed is what a second look no longer finds.
        let (_, again) = self.look(item.id).await?;
        for finding in &mut report.findings {
            if !again.findings.iter().any(|left| left.kind == finding.kind) {
                finding.healed = Some(how.clone());
            }
        }
        let detail = json!({"how": how, "findings": report.findings});
        let entry = ledger::AuditEntry {
            who: "system".into(),
            action: "reconcile.heal".into(),
            target: format!("item:{}", item.id),
            detail,
            origin: ledger::Origin::default(),
        };
        self.ledger.audit(&entry, self.clock.now_ms()).await?;
        Ok(report)
    }

    /// `None` if it has to wait.
    async fn heal_gate(
        &self,
        item: &Item,
        reading: Option<&Reading>,
    ) -> Result<Option<String>, WarmError> {
        if item.state == ItemState::Ended || reading.is_some_and(|r| r.shut == Some(Shut::Ended)) {
            // Whoever has a claim on the log is still told so by the gate.
            if !self.gate.in_flight(item.id).await?.is_empty() {
                return Ok(None);
            }
            // Nothing can be sold any more: the ledger's word is enough, the gate's is dropped.
            self.gate.unload(item.id).await?;
            self.lanes.forget(item.id);
            return Ok(Some("taken from the gate".into()));
        }
        let warmed = self.rebuild(item.id).await?;
        Ok(Some(format!("loaded anew from the ledger, epoch {}", warmed.epoch)))
    }

    async fn look(&self, item: ItemId) -> Result<(Sides, ItemReport), ReconcileError> {
        let mut readings = 0;
        loop {
            readings += 1;
            {
                // Not while something is on its way between the two: a load or an adjustment that is
                // half done would look like a difference. It goes on in the pauses.
                let _turn = self.gate_turn.lock().await;
                let sides = self.both_sides(item).await?;
                if !sides.moving || readings >= READINGS_MAX {
                    let report = self.compare(&sides).await?;
                    return Ok((sides, report));
                }
            }
            let pause_ms = READING_PAUSE_MS * readings;
            tokio::time::sleep(std::time::Duration::from_millis(pause_ms)).await;
        }
    }

    async fn both_sides(&self, item: ItemId) -> Result<Sides, ReconcileError> {
        let before = self.gate.reading(item).await?;
        let marks = self.gate.marks(item).await?;
        let in_flight: Vec<OrderNo> =
            before.iter().flat_map(|r| &r.in_flight).map(|claim| claim.order_no).collect();
        let books = self.ledger.item_books(item, &in_flight).await?;
        let after = self.gate.reading(item).await?;
        let version = |reading: &Option<Reading>| reading.as_ref().map(|r| r.version);
        // What is being loaded is neither what it was nor what it will be.
        let loading = books.item.state == ItemState::Warming;
        let moving = loading || version(&before) != version(&after);
        Ok(Sides { gate: before, marks, books, moving })
    }

    async fn compare(&self, sides: &Sides) -> Result<ItemReport, ReconcileError> {
        let books = &sides.books;
        let mut report = ItemReport {
            item_id: books.item.id,
            name: books.item.name.clone(),
            verdict: ItemVerdict::NotAtGate,
            gate_left: None,
            in_flight: 0,
            returning: 0,
            adjusting: 0,
            ledger_stock: books.item.stock,
            live_units: books.live_units,
            live_orders: books.live_orders,
            total: books.item.total,
            findings: ledger_findings(books),
        };
        if let Some(reading) = &sides.gate {
            let unconfirmed = self.unconfirmed_adjusts(reading.item, &reading.adjusts).await?;
            let expected = expected(reading, &sides.marks, books, &unconfirmed);
            report.gate_left = Some(reading.left);
            report.in_flight = expected.in_flight;
            report.returning = expected.returning;
            report.adjusting = expected.adjusting;
            if sides.moving {
                report.verdict = ItemVerdict::Moving;
                return Ok(report);
            }
            report.findings.extend(gate_findings(reading, books.epoch, &expected));
            let now_ms = self.clock.now_ms();
            let is_lost = |change: &&Unconfirmed| {
                change.refused || now_ms - change.adjust_no.made_ms() > ADJUST_AGE_MS_MAX
            };
            for Unconfirmed { adjust_no, delta, .. } in unconfirmed.iter().filter(is_lost) {
                let detail = format!(
                    "the gate changed the stock by {delta} and the ledger did not ({adjust_no})"
                );
                report.findings.push(Finding::new("gate_adjust", detail));
            }
            report.verdict = ItemVerdict::Agree;
        }
        if sides.moving {
            report.verdict = ItemVerdict::Moving;
        } else if !report.findings.is_empty() {
            report.verdict = ItemVerdict::Differ;
        }
        Ok(report)
    }

    async fn reconcile_payments(&self, heal: bool) -> Result<Vec<Finding>, ReconcileError> {
        let mut findings = Vec::new();
        for problem in self.ledger.payment_problems(PAYMENT_PROBLEMS_MAX).await? {
            let finding = match &problem {
                PaymentProblem::PaidWithoutMoney { order_no } => {
                    Finding::new("payment_missing", format!("{order_no} is paid without money"))
                }
                PaymentProblem::RefundedTooMuch { order_no } => Finding::new(
                    "refund_too_much",
                    format!("{order_no} got back more than it paid"),
                ),
                PaymentProblem::RefundNotQueued { order_no, provider, provider_txn } => {
                    let detail = format!("{order_no}: {provider} {provider_txn} is owed back");
                    let mut finding = Finding::new("refund_forgotten", detail);
                    let now_ms = self.clock.now_ms();
                    if heal && self.ledger.requeue_refund(provider, provider_txn, now_ms).await? {
                        self.wake_outbox();
                        finding.healed = Some("put back into the outbox".into());
                    }
                    finding
                }
            };
            findings.push(finding);
        }
        Ok(findings)
    }

    /// Payments that were made and that nobody told us of.
    async fn unnoticed_payments(&self, heal: bool) -> Result<Vec<Finding>, ReconcileError> {
        let after = self.asked_up_to.lock().unwrap_or(0);
        let page = self.ledger.open_payments(after, ASKED_PAYMENTS_MAX).await?;
        let full = page.len() == ASKED_PAYMENTS_MAX;
        *self.asked_up_to.lock() = page.last().filter(|_| full).map(|last| last.id);
        // A clock that is ahead must not give up money that is under way.
        let now_ms = self.clock.now_ms().min(self.ledger.now_ms().await?);
        let silent = Mutex::new(HashSet::new());
        let silent = &silent;
        let question = |open: OpenPayment| async move {
            let told = self.ask_provider(&open, heal, silent).await;
            (open, told)
        };
        let answers = stream::iter(page).map(question).buffer_unordered(PROVIDER_CALLS_MAX);
        let answers: Vec<_> = answers.collect().await;
        let (mut findings, mut over) = (Vec::new(), Vec::new());
        for (open, told) in answers {
            match told {
                Told::Money(paid) => {
                    findings
                        .extend(self.unnoticed(open.order_no, open.provider, paid, heal).await?);
                }
                Told::Closed if heal && nothing_is_under_way(&open, now_ms) => over.push(open.id),
                Told::Closed | Told::Open => {}
            }
        }
        if !over.is_empty() {
            self.ledger.payments_over(&over, now_ms).await?;
        }
        Ok(findings)
    }

    /// A provider that does not answer is not asked again in this run.
    async fn ask_provider(
        &self,
        open: &OpenPayment,
        heal: bool,
        silent: &Mutex<HashSet<String>>,
    ) -> Told {
        let name = &open.provider;
        let known = self.providers.get(name);
        if silent.lock().contains(name) {
            return Told::Open;
        }
        let told = match known {
            Some(provider) => self.ask_about(&**provider, open, heal).await,
            None => Err(ProviderError::Unavailable("it is not configured".into())),
        };
        told.unwrap_or_else(|error| {
            if silent.lock().insert(name.clone()) {
                tracing::warn!(provider = name, %error, "payments cannot be asked for now");
            }
            Told::Open
        })
    }

    async fn ask_about(
        &self,
        provider: &dyn Provider,
        open: &OpenPayment,
        heal: bool,
    ) -> Result<Told, ProviderError> {
        let no = open.order_no;
        Ok(match provider.query(no).await? {
            QueryOutcome::Paid(paid) => self.unless_told_soon(paid),
            QueryOutcome::Closed | QueryOutcome::NeverOpened | QueryOutcome::Refunded(_) => {
                Told::Closed
            }
            // Whoever closed the order did not reach the provider.
            QueryOutcome::Open if heal && open.order_over_ms.is_some() => {
                match provider.close(no).await? {
                    CloseOutcome::AlreadyPaid(paid) => self.unless_told_soon(paid),
                    CloseOutcome::Closed | CloseOutcome::NeverOpened => Told::Closed,
                }
            }
            QueryOutcome::Open => Told::Open,
        })
    }

    /// A notice takes its time. One from a future that is not near was made by another clock, and says
    /// nothing about how long we have waited.
    fn unless_told_soon(&self, paid: Paid) -> Told {
        let age_ms = self.clock.now_ms() - paid.paid_ms;
        if age_ms.abs() > NOTICE_MS_MAX { Told::Money(paid) } else { Told::Open }
    }

    async fn unnoticed(
        &self,
        no: OrderNo,
        provider: String,
        paid: Paid,
        heal: bool,
    ) -> Result<Option<Finding>, ReconcileError> {
        let detail = format!("{no}: {provider} has money for it and its notice never came");
        let mut finding = Finding::new("payment_unnoticed", detail);
        if !heal {
            return Ok(Some(finding));
        }
        let money = PaymentNotice {
            provider,
            provider_txn: paid.provider_txn,
            order_no: no,
            amount: paid.amount,
            paid_ms: paid.paid_ms,
        };
        let how = match self.credit(&money).await {
            Ok(Credit::Repeated) => return Ok(None),
            Ok(Credit::Refunding(_)) => "the order was over, the money goes back",
            Ok(_) => "credited",
            Err(NoticeFailure::Ledger(error)) => return Err(error.into()),
            // Somebody was woken already.
            Err(failure) => {
                finding.detail.push_str(&format!(", but {failure}"));
                return Ok(Some(finding));
            }
        };
        finding.healed = Some(how.into());
        let entry = ledger::AuditEntry {
            who: "system".into(),
            action: "reconcile.heal".into(),
            target: format!("order:{no}"),
            detail: json!({"how": how, "findings": [finding]}),
            origin: ledger::Origin::default(),
        };
        self.ledger.audit(&entry, self.clock.now_ms()).await?;
        Ok(Some(finding))
    }
}

/// The order has been over for so long that money which was under way then has arrived.
fn nothing_is_under_way(open: &OpenPayment, now_ms: Millis) -> bool {
    let over_ms = open.order_over_ms.map(|over_ms| over_ms.max(open.opened_ms));
    over_ms.is_some_and(|over_ms| now_ms - over_ms > UNDER_WAY_MS_MAX)
}

fn first_findings(report: &Report) -> Vec<&Finding> {
    report.items.iter().flat_map(|item| &item.findings).chain(&report.payments).take(10).collect()
}

/// What the ledger's own books say of themselves.
fn ledger_findings(books: &ItemBooks) -> Vec<Finding> {
    let mut findings = Vec::new();
    let item = &books.item;
    if item.stock + books.live_units != item.total {
        let detail =
            format!("stock {} and {} sold make not {}", item.stock, books.live_units, item.total);
        findings.push(Finding::new("ledger_conservation", detail));
    }
    if !books.chain_breaks.is_empty() {
        let detail = format!("stock log rows {:?} do not follow", books.chain_breaks);
        findings.push(Finding::new("ledger_chain", detail));
    }
    if let Some(end) = books.chain_end.filter(|end| *end != item.stock) {
        let detail = format!("the stock log ends at {end}, the stock is {}", item.stock);
        findings.push(Finding::new("ledger_chain_end", detail));
    }
    if books.user_record_mismatches > 0 {
        let detail = format!("{} buyers' records do not match", books.user_record_mismatches);
        findings.push(Finding::new("ledger_user_records", detail));
    }
    findings
}

fn gate_findings(reading: &Reading, epoch: Epoch, expected: &Expected) -> Vec<Finding> {
    let mut findings = Vec::new();
    if reading.epoch != epoch {
        let detail = format!("the gate is in epoch {}, the ledger in {epoch}", reading.epoch);
        findings.push(Finding::new("gate_epoch", detail));
    }
    if reading.left != expected.left {
        let detail = format!("the gate has {} left, it should be {}", reading.left, expected.left);
        findings.push(Finding::new("gate_left", detail));
    }
    if reading.marks != expected.marks {
        let detail = format!("{} buyers marked, it should be {}", reading.marks, expected.marks);
        findings.push(Finding::new("gate_marks", detail));
    }
    findings
}

/// The equation at the head of this file.
fn expected(
    reading: &Reading,
    marks: &[(UserId, OrderNo)],
    books: &ItemBooks,
    unconfirmed: &[Unconfirmed],
) -> Expected {
    let on_log = reading.in_flight.iter().filter(|claim| !books.settled.contains(&claim.order_no));
    let open: HashMap<OrderNo, &Claim> =
        on_log.chain(&books.failed).map(|claim| (claim.order_no, claim)).collect();
    let in_flight: i64 = open.values().map(|claim| i64::from(claim.quantity)).sum();
    // A release that the gate has made, but whose outbox row is not deleted yet, is not pending.
    let marked: HashSet<OrderNo> = marks.iter().map(|(_, order_no)| *order_no).collect();
    let coming: Vec<_> = books
        .pending_releases
        .iter()
        .filter(|release| {
            marked.contains(&release.order_no) && !open.contains_key(&release.order_no)
        })
        .collect();
    let returning: i64 = coming.iter().map(|release| i64::from(release.quantity)).sum();
    let at_gate: HashMap<OrderNo, i64> = reading.adjusts.iter().copied().collect();
    // What the gate has under the same number may be another change, which the ledger did not make.
    let missing = |(no, delta): &(OrderNo, i64)| match at_gate.get(no) {
        Some(0) => 0,
        Some(had) => delta - had,
        None => *delta,
    };
    let pending: i64 = books.pending_adjusts.iter().map(missing).sum();
    let taken: i64 = unconfirmed.iter().map(|change| change.delta).sum();
    let adjusting = pending - taken;
    // A void claim's units never left the ledger's stock, but its mark holds them at the gate until
    // the release arrives; a closed order's came back to the stock and are held by the mark as
    // well. Either way the gate has that many fewer than the stock says.
    Expected {
        left: books.item.stock - in_flight - returning - adjusting,
        marks: books.live_orders + open.len() as u64 + coming.len() as u64,
        in_flight,
        returning,
        adjusting,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use sale::{CloseReason, OrderStatus};

    use super::*;
    use crate::test_engine::{Bank, NOW_MS, TestEngine};

    const DAY_MS: Millis = 24 * 60 * 60 * 1_000;

    #[tokio::test]
    async fn a_payment_whose_notice_got_lost_is_found_and_credited() {
        let (mut night, activity) = TestEngine::fall(|_| {}).await;
        let bank = night.bank(Bank::default());
        let (engine, item) = (night.engine.clone(), activity.items[0].id);
        let mut orders = Vec::new();
        for user in ["ann", "bob", "cat", "dan"] {
            let no = night.buy(item, user).await;
            engine.ledger.open_payment(no, Bank::NAME, NOW_MS).await.unwrap();
            orders.push(no);
        }
        let [paid, late, wrong, unpaid] = orders[..] else { panic!() };
        bank.pay(paid, 1, NOW_MS);
        bank.pay(late, 1, NOW_MS);
        bank.pay(wrong, 7, NOW_MS);
        let asked = ledger::Closing { order_no: late, providers: vec![Bank::NAME.into()] };
        engine.ledger.close(&[asked], CloseReason::Cancelled, NOW_MS).await.unwrap();

        let soon = engine.reconcile(true).await.unwrap();
        assert_eq!(soon.differences, 0, "the notices may still come: {:?}", soon.payments);
        night.clock.advance(NOTICE_MS_MAX + 1);
        let looked = engine.reconcile(false).await.unwrap();
        assert_eq!((looked.differences, looked.left), (3, 3), "{:?}", looked.payments);
        let status = async |no| engine.ledger.order(no).await.unwrap().unwrap().status;
        assert_eq!(status(paid).await, OrderStatus::Unpaid, "only looked at");
        let healed = engine.reconcile(true).await.unwrap();
        assert!(healed.payments.iter().all(|found| found.kind == "payment_unnoticed"));
        assert_eq!((healed.differences, healed.healed), (3, 2), "{:?}", healed.payments);
        assert_eq!(status(paid).await, OrderStatus::Paid);
        assert_eq!(status(late).await, OrderStatus::Refunding);
        assert_eq!(status(wrong).await, OrderStatus::Unpaid, "not that amount");
        assert_eq!(status(unpaid).await, OrderStatus::Unpaid);
        assert_eq!(engine.reconcile(true).await.unwrap().differences, 1, "the wrong one");
        let audit = engine.ledger.audit_log(None, 10).await.unwrap();
        assert_eq!(audit.iter().filter(|row| row.action == "reconcile.heal").count(), 2);
    }

    /// An order that may be paid within three days, with its payment opened at the bank.
    async fn order_of_three_days() -> (TestEngine, Bank, OrderNo) {
        let mut night = TestEngine::without_a_sale(|_| {}).await;
        let bank = night.bank(Bank::default());
        let engine = night.engine.clone();
        let window = (NOW_MS - 1, NOW_MS + 3_600_000);
        let slow = night.another_sale("sofa", window, 3 * DAY_MS).await;
        engine.warm_activity("ann", slow.id, false).await.unwrap();
        let no = night.buy(slow.items[0].id, "ann").await;
        engine.ledger.open_payment(no, Bank::NAME, NOW_MS).await.unwrap();
        (night, bank, no)
    }

    #[tokio::test]
    async fn late_money_is_given_back_however_long_the_order_could_be_paid() {
        let (night, bank, no) = order_of_three_days().await;
        let engine = &night.engine;
        let status = async |no| engine.ledger.order(no).await.unwrap().unwrap().status;
        night.clock.advance(3 * DAY_MS);
        engine.time_out().await.unwrap();
        assert_eq!(status(no).await, OrderStatus::Closed);
        // The money was under way when the bank closed the payment, and its notice is lost.
        let landed_ms = NOW_MS + 3 * DAY_MS + 5;
        bank.pay(no, 1, landed_ms);
        night.clock.advance(NOTICE_MS_MAX + 6);
        let report = engine.reconcile(true).await.unwrap();
        assert_eq!((report.differences, report.healed), (1, 1), "{:?}", report.payments);
        assert_eq!(status(no).await, OrderStatus::Refunding);
        engine.deliver_refunds().await.unwrap();
        assert_eq!(status(no).await, OrderStatus::Refunded);
        let calls = bank.calls();
        engine.reconcile(true).await.unwrap();
        assert_eq!(bank.calls(), calls, "it told of its money and is not asked again");
    }

    #[tokio::test]
    async fn a_payment_is_asked_about_until_its_provider_says_that_it_is_closed() {
        let (night, bank, no) = order_of_three_days().await;
        let engine = &night.engine;
        // The order was closed, and whoever did it never reached the bank.
        let asked = ledger::Closing { order_no: no, providers: vec![Bank::NAME.into()] };
        engine.ledger.close(&[asked], CloseReason::Cancelled, NOW_MS).await.unwrap();
        bank.hang(true);
        night.clock.advance(30 * DAY_MS);
        let asking = tokio::spawn({
            let engine = engine.clone();
            async move { engine.reconcile(true).await.unwrap() }
        });
        bank.called().await;
        bank.hang(false);
        asking.await.unwrap();
        assert!(bank.is_closed(no), "a month later it is closed at last");
        assert!(engine.ledger.open_payments(0, 9).await.unwrap().is_empty());
        let calls = bank.calls();
        engine.reconcile(true).await.unwrap();
        assert_eq!(bank.calls(), calls);
    }

    #[tokio::test]
    async fn money_under_way_has_a_day_after_its_payment_was_closed() {
        let (night, bank, no) = order_of_three_days().await;
        let engine = &night.engine;
        night.clock.advance(3 * DAY_MS);
        engine.time_out().await.unwrap();
        assert!(bank.is_closed(no));
        night.clock.advance(UNDER_WAY_MS_MAX);
        engine.reconcile(true).await.unwrap();
        assert_eq!(engine.ledger.open_payments(0, 9).await.unwrap().len(), 1, "it may still come");
        night.clock.advance(1);
        engine.reconcile(false).await.unwrap();
        assert_eq!(engine.ledger.open_payments(0, 9).await.unwrap().len(), 1, "only looked at");
        engine.reconcile(true).await.unwrap();
        assert!(engine.ledger.open_payments(0, 9).await.unwrap().is_empty());
    }

    #[test]
    fn of_many_items_those_that_differ_are_listed() {
        let report = |n: i64, verdict, findings| ItemReport {
            item_id: ItemId(n),
            name: String::new(),
            verdict,
            gate_left: None,
            in_flight: 0,
            returning: 0,
            adjusting: 0,
            ledger_stock: 0,
            live_orders: 0,
            live_units: 0,
            total: 0,
            findings,
        };
        let mut items = Items::default();
        for n in 0..3_000 {
            items.add(report(n, ItemVerdict::NotAtGate, Vec::new()));
        }
        let findings = vec![Finding::new("gate_left", String::new())];
        let adjusting = report(2_999, ItemVerdict::NotAtGate, Vec::new());
        items.add(ItemReport { adjusting: 7, ..adjusting });
        items.add(report(3_000, ItemVerdict::Differ, findings));
        assert_eq!((items.compared, items.differences, items.healed), (3_002, 1, 0));
        assert_eq!(items.listed.len(), ITEMS_LISTED_MAX + 2);
        assert_eq!(items.listed.last().unwrap().item_id, ItemId(3_000));
    }

    #[tokio::test]
    async fn an_item_that_never_holds_still_is_said_to_move() {
        let (mut night, _) = TestEngine::fall(|_| {}).await;
        let readings = night.make_restless(u64::MAX);
        let engine = night.engine.clone();
        // What else is done at the gate meanwhile does not wait for the last reading.
        let other = tokio::spawn({
            let (engine, readings) = (engine.clone(), readings.clone());
            async move {
                while readings.load(Ordering::SeqCst) < 2 {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
                drop(engine.gate_turn.lock().await);
                readings.load(Ordering::SeqCst)
            }
        });
        let report = engine.reconcile(true).await.unwrap();
        assert_eq!((report.moving, report.differences), (1, 0));
        assert_eq!(report.items[0].verdict, ItemVerdict::Moving);
        assert_eq!(readings.load(Ordering::SeqCst), 2 * READINGS_MAX);
        assert!(other.await.unwrap() < READINGS_MAX);
    }

    #[tokio::test]
    async fn an_item_that_is_being_loaded_is_said_to_move() {
        let (night, activity) = TestEngine::fall(|_| {}).await;
        let (engine, item) = (&night.engine, &activity.items[0]);
        let now = engine.ledger.item(item.id).await.unwrap().unwrap();
        // Another process has begun to load it.
        let epoch = engine.ledger.begin_warm(item.id, now.epoch).await.unwrap().unwrap();
        let report = engine.reconcile(true).await.unwrap();
        assert_eq!((report.moving, report.differences), (1, 0), "{:?}", report.items[0]);
        let later = engine.ledger.item(item.id).await.unwrap().unwrap();
        assert_eq!(later.epoch, epoch, "nobody loaded it in between");
    }

    #[tokio::test]
    async fn an_ended_item_whose_claims_are_on_the_log_stays_at_the_gate() {
        let (night, activity) = TestEngine::fall(|_| {}).await;
        let (engine, item) = (&night.engine, activity.items[0].id);
        engine.workers.as_ref().unwrap().stop().await;
        let answer = engine.claim(item, "ann".parse().unwrap(), 1, None).await;
        assert!(matches!(answer, crate::ClaimAnswer::Admitted { .. }), "{answer:?}");
        engine.move_activity("op", activity.id, sale::ActivityMove::End).await.unwrap();
        // Units that nobody can account for.
        engine.gate.adjust(item, engine.numbers.next(), 3, true).await.unwrap();
        night.clock.advance(ADJUST_AGE_MS_MAX + 1);
        let report = engine.reconcile(true).await.unwrap();
        assert!(report.left > 0, "{report:?}");
        assert_eq!(engine.gate.loaded().await.unwrap().len(), 1);
        let entries = engine.gate.take(9).await.unwrap();
        engine.gate.ack(&[entries[0].id]).await.unwrap();
        engine.reconcile(true).await.unwrap();
        assert!(engine.gate.loaded().await.unwrap().is_empty(), "now nobody needs it there");
    }

    #[tokio::test]
    async fn an_item_that_comes_to_rest_is_compared() {
        let (mut night, _) = TestEngine::fall(|_| {}).await;
        let readings = night.make_restless(2 * READINGS_MAX - 2);
        let report = night.engine.reconcile(true).await.unwrap();
        assert_eq!((report.moving, report.items[0].verdict), (0, ItemVerdict::Agree));
        assert_eq!(readings.load(Ordering::SeqCst), 2 * READINGS_MAX);
    }
}

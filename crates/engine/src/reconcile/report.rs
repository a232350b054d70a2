//! What a comparison came to: kept in the ledger, shown to operators, told to whoever should be woken.

use ledger::NewJobRun;
use orders::{Alert, AlertKind};
use sale::ItemId;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{StoreError, shared::Shared};

/// Items that differ, and findings of payments, that a report lists in full. All are counted.
const DIFFERENCES_LISTED_MAX: usize = 300;
/// Items that a report lists of each other verdict.
const ITEMS_LISTED_MAX: usize = 100;

/// The job's name in `tb_job_run`.
pub const RECONCILE_JOB: &str = "reconcile";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub started_at: i64,
    pub ended_at: i64,
    /// Everything was read; otherwise what may have changed since it agreed. Runs of earlier releases
    /// read everything.
    #[serde(default = "yes")]
    pub whole: bool,
    /// Claims on the log that are not in the ledger yet.
    pub backlog: u64,
    /// Claims that failed all their tries and wait for a person; they hold their units.
    pub dead_letters: u64,
    /// Items that were looked at.
    #[serde(default)]
    pub compared: usize,
    /// Those of them that nothing has touched since they agreed.
    #[serde(default)]
    pub unchanged: usize,
    /// Those that were read. Of many not all are listed: at most 300 that differ, and 100 of each other
    /// verdict.
    pub items: Vec<ItemReport>,
    /// At most 300 are listed.
    pub payments: Vec<Finding>,
    /// Items that changed during every reading and were not compared.
    #[serde(default)]
    pub moving: usize,
    pub differences: usize,
    pub healed: usize,
    /// Differences that are still there. Zero means that all agree.
    pub left: usize,
}

fn yes() -> bool {
    true
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
    /// It changed during every reading, or its part of the gate did not answer, and was not compared; the
    /// ledger's own books were checked.
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
    pub(super) fn new(kind: &str, detail: String) -> Finding {
        Finding { kind: kind.into(), detail, healed: None }
    }
}

/// What came of the comparison of all items.
#[derive(Default)]
pub(super) struct Items {
    pub(super) listed: Vec<ItemReport>,
    /// How many are listed of each verdict, and of those with a stock change under way.
    listed_of: [usize; 5],
    pub(super) compared: usize,
    pub(super) unchanged: usize,
    pub(super) moving: usize,
    pub(super) differences: usize,
    pub(super) healed: usize,
}

impl Items {
    pub(super) fn add(&mut self, report: ItemReport) {
        self.compared += 1;
        self.moving += usize::from(report.verdict == ItemVerdict::Moving);
        self.differences += report.findings.len();
        self.healed += healed_among(&report.findings);
        // One that agrees because a change is under way is not lost among thousands that just agree.
        let kind = if report.adjusting == 0 { report.verdict as usize } else { 4 };
        let differs = !report.findings.is_empty();
        let listed_max = if differs { DIFFERENCES_LISTED_MAX } else { ITEMS_LISTED_MAX };
        let listed_of_its_kind = &mut self.listed_of[kind];
        if *listed_of_its_kind < listed_max {
            *listed_of_its_kind += 1;
            self.listed.push(report);
        }
    }

    /// One of which nothing was read, for nothing has changed.
    pub(super) fn add_unchanged(&mut self) {
        self.compared += 1;
        self.unchanged += 1;
    }
}

/// What was found besides.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) listed: Vec<Finding>,
    pub(super) found: usize,
    pub(super) healed: usize,
}

impl Findings {
    pub(super) fn add(&mut self, finding: Finding) {
        self.found += 1;
        self.healed += usize::from(finding.healed.is_some());
        if self.listed.len() < DIFFERENCES_LISTED_MAX {
            self.listed.push(finding);
        }
    }
}

fn healed_among(findings: &[Finding]) -> usize {
    findings.iter().filter(|finding| finding.healed.is_some()).count()
}

impl Report {
    /// Writes it into the ledger and the metrics, and wakes somebody if there were differences.
    pub(super) async fn write(&self, shared: &Shared) -> Result<(), StoreError> {
        metrics::gauge!("seckill_reconcile_differences_left").set(self.left as f64);
        metrics::counter!("seckill_reconcile_healed_total").increment(self.healed as u64);
        if self.differences > 0 {
            let message = format!(
                "reconcile found {} differences and healed {}",
                self.differences, self.healed
            );
            tracing::error!(differences = self.differences, healed = self.healed, "{message}");
            let cause = serde_json::to_string(&first_findings(self)).ok();
            let alert = Alert::new(AlertKind::Reconcile, message, self.ended_at);
            shared.alerts.raise(Alert { cause, ..alert });
        }
        let run = NewJobRun {
            job: RECONCILE_JOB.into(),
            started_ms: self.started_at,
            ended_ms: self.ended_at,
            ok: self.left == 0,
            report: json!(self),
        };
        shared.ledger.record_run(&run).await?;
        Ok(())
    }
}

fn first_findings(report: &Report) -> Vec<&Finding> {
    report.items.iter().flat_map(|item| &item.findings).chain(&report.payments).take(10).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}

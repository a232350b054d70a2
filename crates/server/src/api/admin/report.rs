//! A comparison of gate and ledger as the document shows it. The engine knows nothing of documents, so
//! its report is described here once more; a test holds the two together.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
pub(in super::super) struct Report {
    started_at: i64,
    ended_at: i64,
    /// Everything was read; otherwise what may have changed since it agreed.
    #[serde(default)]
    whole: bool,
    /// Claims on the log that are not in the ledger yet.
    backlog: u64,
    /// Claims that failed all their tries and wait for a person; they hold their units.
    dead_letters: u64,
    /// Items that were looked at.
    #[serde(default)]
    compared: usize,
    /// Those of them that nothing has touched since they agreed.
    #[serde(default)]
    unchanged: usize,
    /// Those that were read. Of many not all are listed: at most 300 that differ, and 100 of each other
    /// verdict.
    items: Vec<ItemReport>,
    /// At most 300 are listed.
    payments: Vec<Finding>,
    /// Items that changed during every reading and were not compared.
    #[serde(default)]
    moving: usize,
    differences: usize,
    healed: usize,
    /// Differences that are still there. Zero means that all agree.
    left: usize,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub(in super::super) struct ItemReport {
    item_id: i64,
    name: String,
    verdict: ItemVerdict,
    /// Units left at the gate; absent if the item is not there.
    gate_left: Option<i64>,
    in_flight: i64,
    /// Units on their way from the ledger back to the gate.
    returning: i64,
    /// Units of stock changes under way: taken from the gate and not from the ledger yet, or added to the
    /// ledger and not to the gate yet. `gate_left` = `ledger_stock` − `in_flight` − `returning` − this.
    #[serde(default)]
    adjusting: i64,
    ledger_stock: i64,
    live_units: i64,
    /// Orders unpaid or paid.
    #[serde(default)]
    live_orders: u64,
    total: i64,
    findings: Vec<Finding>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum ItemVerdict {
    Agree,
    Differ,
    /// It changed during every reading and was not compared; the ledger's own books were checked.
    Moving,
    /// Not at the gate; only the ledger's own books were checked.
    NotAtGate,
}

#[derive(Serialize, Deserialize, ToSchema)]
pub(in super::super) struct Finding {
    /// A stable name, e.g. `gate_left`.
    kind: String,
    detail: String,
    /// What was done about it; absent if it has no rule or the rule failed.
    healed: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_shows_the_report_of_the_engine() {
        let finding = || engine::Finding {
            kind: "gate_left".into(),
            detail: "3 instead of 4".into(),
            healed: Some("rebuilt".into()),
        };
        let item = |verdict| engine::ItemReport {
            item_id: sale::ItemId(7),
            name: "phone".into(),
            verdict,
            gate_left: Some(3),
            in_flight: 1,
            returning: 1,
            adjusting: 1,
            ledger_stock: 6,
            live_units: 4,
            live_orders: 4,
            total: 10,
            findings: vec![finding()],
        };
        use engine::ItemVerdict::{Agree, Differ, Moving, NotAtGate};
        let report = engine::Report {
            started_at: 1,
            ended_at: 2,
            whole: true,
            backlog: 3,
            dead_letters: 4,
            compared: 4,
            unchanged: 0,
            items: [Agree, Differ, Moving, NotAtGate].map(item).into(),
            payments: vec![finding()],
            moving: 1,
            differences: 2,
            healed: 1,
            left: 1,
        };
        let told = serde_json::to_value(report).unwrap();
        let shown: Report = serde_json::from_value(told.clone()).unwrap();
        assert_eq!(serde_json::to_value(shown).unwrap(), told);
    }
}

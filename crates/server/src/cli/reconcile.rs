//! `seckill reconcile`: the comparison that a job makes by itself, now and as a table.

use std::time::Duration;

use serde_json::{Value, json};

use super::{AdminApi, Failure};
use engine::{ItemVerdict, Report};

/// How often a comparison that takes its time is asked how far it is.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Answers how many differences are left.
pub(super) async fn reconcile(api: &AdminApi, heal: bool, json: bool) -> Result<usize, Failure> {
    let answer = api.post(&format!("/admin/reconcile?heal={heal}"), &json!({})).await?;
    let report: Report = serde_json::from_value(ended(api, answer).await?)?;
    if json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print_report(&report);
    }
    Ok(report.left)
}

/// The report, or of a run that goes on the one it ends with.
async fn ended(api: &AdminApi, mut answer: Value) -> Result<Value, Failure> {
    let Some(run) = answer["run"].as_u64() else { return Ok(answer) };
    while answer["state"] == "running" {
        eprintln!("{} items compared", answer["compared"]);
        tokio::time::sleep(LOOK_EVERY).await;
        answer = api.get(&format!("/admin/reconcile/runs/{run}")).await?;
    }
    match answer["cause"].as_str() {
        Some(cause) => Err(Failure::Cannot(format!("it could not be compared: {cause}"))),
        None => Ok(answer["report"].take()),
    }
}

fn print_report(report: &Report) {
    println!(
        "{:>8}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  item",
        "", "gate", "in flight", "returning", "adjusting", "stock", "sold"
    );
    for item in &report.items {
        let verdict = match item.verdict {
            ItemVerdict::Agree => "agree",
            ItemVerdict::Differ => "DIFFER",
            ItemVerdict::Moving => "moving",
            ItemVerdict::NotAtGate => "no gate",
        };
        let gate = item.gate_left.map_or("–".into(), |left| left.to_string());
        println!(
            "{verdict:>8}  {gate:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {} {}",
            item.in_flight,
            item.returning,
            item.adjusting,
            item.ledger_stock,
            item.live_units,
            item.item_id,
            item.name
        );
    }
    let findings = report.items.iter().flat_map(|item| &item.findings).chain(&report.payments);
    for finding in findings {
        let healed =
            finding.healed.as_deref().map_or("LEFT".into(), |how| format!("healed: {how}"));
        println!("  {}: {} ({healed})", finding.kind, finding.detail);
    }
    let read = report.compared - report.unchanged;
    if report.items.len() < read {
        println!(
            "{read} items were read; of those that agree {} are not listed",
            read - report.items.len()
        );
    }
    if report.moving > 0 {
        println!("{} items changed all the time and were not compared", report.moving);
    }
    println!(
        "{} differences, {} healed, {} left; {} claims on the log, {} dead letters",
        report.differences, report.healed, report.left, report.backlog, report.dead_letters
    );
}

//! The ledger's server: what the ledger says of it, in our words.

use std::sync::Arc;

use ledger::mysql::{self, MysqlLedger, Verdict};
use sale::SystemClock;

use super::Finding;
use crate::settings::LedgerStore;

/// One to look, one to spare.
const CONNECTIONS: usize = 2;

/// Connects, and brings the schema up to date as every start does.
pub async fn look(store: &LedgerStore) -> Vec<Finding> {
    let options = mysql::Options { connections_max: CONNECTIONS, ..mysql::Options::default() };
    match MysqlLedger::open(store.url.expose(), Arc::new(SystemClock), options).await {
        Ok(ledger) => look_at(&ledger).await,
        Err(error) => vec![Finding::Fail(error.to_string())],
    }
}

pub async fn look_at(ledger: &MysqlLedger) -> Vec<Finding> {
    match ledger.health().await {
        Ok(findings) => findings.into_iter().map(told).collect(),
        Err(error) => vec![Finding::Fail(error.to_string())],
    }
}

fn told(finding: mysql::Finding) -> Finding {
    let mysql::Finding { name, value, verdict, advice } = finding;
    let text = format!("the ledger's {name} is {value}");
    match verdict {
        Verdict::Good => Finding::Ok(text),
        Verdict::Risky => Finding::Warn(format!("{text}: {advice}")),
        Verdict::Bad => Finding::Fail(format!("{text}: {advice}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_ledger_finds_is_told_with_its_advice() {
        let finding = |verdict| mysql::Finding {
            name: "read_only",
            value: "ON".into(),
            verdict,
            advice: "use the primary",
        };
        let text = "the ledger's read_only is ON";
        assert_eq!(told(finding(Verdict::Good)), Finding::Ok(text.into()));
        let advised = format!("{text}: use the primary");
        assert_eq!(told(finding(Verdict::Risky)), Finding::Warn(advised.clone()));
        assert_eq!(told(finding(Verdict::Bad)), Finding::Fail(advised));
    }
}

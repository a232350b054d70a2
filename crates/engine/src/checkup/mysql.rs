//! The ledger's server: what the ledger says of it, in our words.

use std::sync::Arc;

use ledger::{
    LedgerError, SqlLedger,
    mysql::{self, Fitness},
};
use sale::SystemClock;

use super::CheckResult;
use crate::settings::LedgerStore;

/// Connects, and brings the schema up to date as every start does. `archives`: the shop wants an archive.
pub async fn check(store: &LedgerStore, archives: bool) -> Vec<CheckResult> {
    let (connections_max, options) = (store.connections_max, store.options());
    match mysql::open(store.url.expose(), Arc::new(SystemClock), options).await {
        Ok(ledger) => check_open(&ledger, connections_max, archives).await,
        Err(error) => vec![CheckResult::Fail(error.to_string())],
    }
}

pub async fn check_open(
    ledger: &SqlLedger,
    connections_max: usize,
    archives: bool,
) -> Vec<CheckResult> {
    let fail = |error: LedgerError| CheckResult::Fail(error.to_string());
    let mut results = match mysql::health(ledger, connections_max).await {
        Ok(settings) => settings.into_iter().map(result_of).collect(),
        Err(error) => vec![fail(error)],
    };
    if archives {
        results.push(mysql::archive_tables(ledger).await.map_or_else(fail, result_of));
    }
    results
}

fn result_of(setting: mysql::ServerSetting) -> CheckResult {
    let mysql::ServerSetting { name, value, fitness, advice } = setting;
    let text = format!("the ledger's {name} is {value}");
    match fitness {
        Fitness::Good => CheckResult::Ok(text),
        Fitness::Risky => CheckResult::Warn(format!("{text}: {advice}")),
        Fitness::Bad => CheckResult::Fail(format!("{text}: {advice}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_ledger_finds_is_told_with_its_advice() {
        let setting = |fitness| mysql::ServerSetting {
            name: "read_only",
            value: "ON".into(),
            fitness,
            advice: "use the primary",
        };
        let text = "the ledger's read_only is ON";
        assert_eq!(result_of(setting(Fitness::Good)), CheckResult::Ok(text.into()));
        let advised = format!("{text}: use the primary");
        assert_eq!(result_of(setting(Fitness::Risky)), CheckResult::Warn(advised.clone()));
        assert_eq!(result_of(setting(Fitness::Bad)), CheckResult::Fail(advised));
    }
}

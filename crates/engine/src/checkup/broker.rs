//! The message broker by which claims go to their workers, where there is one.

use std::time::Duration;

use orders::broker::BrokerFinding;

use super::CheckResult;
use crate::{Settings, parts::open_broker};

/// One that says nothing for so long does not answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A broker that is away keeps nobody from starting: claims wait on the gate's own log.
pub async fn check(settings: &Settings) -> Vec<CheckResult> {
    let broker = match open_broker(settings) {
        Ok(None) => return Vec::new(),
        Ok(Some(broker)) => broker,
        Err(refused) => return vec![CheckResult::Refuse(refused.to_string())],
    };
    let findings = tokio::time::timeout(ANSWER_MAX, broker.findings()).await;
    broker.stop().await;
    let Ok(findings) = findings else {
        return vec![CheckResult::Fail(format!("{} does not answer", broker.name()))];
    };
    findings.into_iter().map(as_result).collect()
}

fn as_result(finding: BrokerFinding) -> CheckResult {
    match finding {
        BrokerFinding::Ok(text) => CheckResult::Ok(text),
        BrokerFinding::Warn(text) => CheckResult::Warn(text),
        BrokerFinding::Fail(text) => CheckResult::Fail(text),
    }
}

//! The way that the claims of a deployment go.

use std::sync::Arc;

use client::Api;
use faults::services::wait_stopped;
use serde_json::{Value, json};

use crate::{
    broker,
    fixtures::{Deployment, blocking, until},
};

/// By the broker that all stories share, with a topic of their own.
pub(crate) fn by_broker(deployment: Deployment) -> Deployment {
    broker::by(broker::shared(), deployment)
}

/// One that a story may kill.
pub(crate) async fn own_broker() -> Arc<broker::Own> {
    Arc::new(blocking(broker::start).await)
}

pub(crate) fn signal(pid: u32, name: &str) {
    let kill =
        std::process::Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(kill.unwrap().success());
    if name == "STOP" {
        wait_stopped(pid).unwrap();
    }
}

/// A number of a process, summed over its labels.
pub(crate) async fn number_at(api: &mut Api, name: &str) -> f64 {
    let text = String::from_utf8(api.get("/metrics").await.unwrap().body).unwrap();
    let is_it = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ') || rest.starts_with('{'))
    };
    let values =
        text.lines().filter(is_it).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

/// Nothing waits at the broker either.
pub(crate) async fn nothing_waits(api: &mut Api) {
    let lag = async || number_at(api, "seckill_broker_lag_messages").await;
    until("all messages are confirmed", lag, |lag| *lag == 0.0).await;
}

/// Every claim of the log, with what the books say of it.
pub(crate) async fn looked_back(api: &mut Api) -> Vec<Value> {
    let (mut claims, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("/api/v1/admin/claims?from=1700000000000&compare=true{after}");
        let page: Value = api.read(&path).await.unwrap();
        claims.extend(page["claims"].as_array().unwrap().iter().cloned());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    claims
}

pub(crate) async fn dead_letter_becomes(api: &mut Api, no: &str, state: &str) -> Value {
    let path = format!("/api/v1/admin/dead-letters/{no}");
    let ask = async || api.get(&path).await.unwrap().json();
    until(&format!("{no} is {state}"), ask, |letter| letter["state"] == state).await
}

pub(crate) async fn command(api: &mut Api, path: &str) -> Value {
    api.write(path, &json!({})).await.unwrap()
}

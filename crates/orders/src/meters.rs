//! The numbers this crate shows. No buyer or order is ever a label.

use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use sale::Settled;

use crate::AlertKind;

const CREATED: &str = "seckill_orders_created_total";
const REPEATED: &str = "seckill_orders_repeated_total";
const VOID: &str = "seckill_orders_void_total";
const DEFERRED: &str = "seckill_orders_deferred_total";
const DEAD: &str = "seckill_orders_dead_total";
const STUCK: &str = "seckill_orders_stuck_total";
const PAUSES: &str = "seckill_orders_pauses_total";
const PAUSED: &str = "seckill_orders_paused";
const ASIDE: &str = "seckill_orders_aside_claims";
const SETTLE_SECONDS: &str = "seckill_orders_settle_seconds";
const CLAIM_SECONDS: &str = "seckill_orders_claim_to_order_seconds";
const ALERTS: &str = "seckill_alerts_total";
const ALERTS_RESOLVED: &str = "seckill_alerts_resolved_total";
const ALERTS_FOLDED: &str = "seckill_alerts_folded_total";
const ALERTS_WEBHOOK_UP: &str = "seckill_alerts_webhook_up";
const ALERTS_FAILED: &str = "seckill_alerts_failed_total";

/// Tell the recorder in force what the numbers mean. Call once, after installing it.
pub fn describe() {
    describe_counter!(CREATED, "Claims that became orders");
    describe_counter!(REPEATED, "Claims that were settled before: redeliveries");
    describe_counter!(VOID, "Claims the ledger refused");
    describe_counter!(DEFERRED, "Times a claim was put on the retry ladder");
    describe_counter!(DEAD, "Claims that became dead letters");
    describe_counter!(STUCK, "Claims that could be neither settled nor remembered as failed");
    describe_counter!(PAUSES, "Outages of the ledger or the claim log met by the workers");
    describe_gauge!(PAUSED, "1 while the workers wait for this dependency");
    describe_gauge!(ASIDE, "Claims of items whose rows somebody else holds in the ledger");
    describe_histogram!(SETTLE_SECONDS, Unit::Seconds, "Time of one settle call");
    describe_histogram!(CLAIM_SECONDS, Unit::Seconds, "From admission of a claim to its order");
    describe_counter!(ALERTS, "Alerts raised, by kind");
    describe_counter!(ALERTS_RESOLVED, "Alerts that were told to be over, by kind");
    describe_counter!(ALERTS_FOLDED, "Alerts told as \"and so many more\" with another one");
    describe_counter!(ALERTS_FAILED, "Alerts the webhook did not take after all tries");
    describe_gauge!(ALERTS_WEBHOOK_UP, "0 while the webhook of alerts does not take them");
    crate::broker::describe_metrics();
    begin();
}

/// Every number is there from the first moment on: a counter that appears with its first increment
/// hides that increment from `increase()`, and a rule about it says nothing until then.
fn begin() {
    let counters = [CREATED, REPEATED, VOID, DEFERRED, DEAD, STUCK, ALERTS_FOLDED, ALERTS_FAILED];
    for name in counters {
        counter!(name).increment(0);
    }
    for what in ["ledger", "claim log", "broker", "broker queues"] {
        counter!(PAUSES, "what" => what).increment(0);
        gauge!(PAUSED, "what" => what).set(0.0);
    }
    for kind in AlertKind::ALL {
        counter!(ALERTS, "kind" => kind.as_str()).increment(0);
        if kind.lasts() {
            counter!(ALERTS_RESOLVED, "kind" => kind.as_str()).increment(0);
        }
    }
    gauge!(ALERTS_WEBHOOK_UP).set(1.0);
    gauge!(ASIDE).set(0.0);
}

pub(crate) fn settled(settled: &Settled, took: Duration) {
    counter!(CREATED).increment(settled.created.len() as u64);
    counter!(REPEATED).increment(settled.repeated.len() as u64);
    counter!(VOID).increment(settled.void.len() as u64);
    histogram!(SETTLE_SECONDS).record(took.as_secs_f64());
}

/// The oldest claim of a batch tells how long buyers wait at most; one sample per batch is enough.
pub(crate) fn claim_to_order_ms(waited_ms: i64) {
    histogram!(CLAIM_SECONDS).record(waited_ms.max(0) as f64 / 1_000.0);
}

pub(crate) fn deferred(claims: usize) {
    counter!(DEFERRED).increment(claims as u64);
}

pub(crate) fn dead(claims: usize) {
    counter!(DEAD).increment(claims as u64);
}

pub(crate) fn stuck() {
    counter!(STUCK).increment(1);
}

pub(crate) fn paused(what: &'static str, on: bool) {
    if on {
        counter!(PAUSES, "what" => what).increment(1);
    }
    gauge!(PAUSED, "what" => what).set(if on { 1.0 } else { 0.0 });
}

pub(crate) fn aside(claims: usize) {
    gauge!(ASIDE).set(claims as f64);
}

pub(crate) fn alert_raised(kind: AlertKind) {
    counter!(ALERTS, "kind" => kind.as_str()).increment(1);
}

pub(crate) fn alert_resolved(kind: AlertKind) {
    counter!(ALERTS_RESOLVED, "kind" => kind.as_str()).increment(1);
}

pub(crate) fn alert_folded() {
    counter!(ALERTS_FOLDED).increment(1);
}

pub(crate) fn webhook_up(up: bool) {
    gauge!(ALERTS_WEBHOOK_UP).set(if up { 1.0 } else { 0.0 });
}

pub(crate) fn alert_failed() {
    counter!(ALERTS_FAILED).increment(1);
}

//! The numbers of relay and broker.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use super::{Published, QueueState};

const PUBLISHED: &str = "seckill_relay_messages_total";
const REPUBLISHED: &str = "seckill_relay_republished_total";
const UNREADABLE: &str = "seckill_relay_unreadable_total";
const UP: &str = "seckill_broker_up";
const LAG: &str = "seckill_broker_lag_messages";

/// Tell the recorder in force what the numbers mean.
pub fn describe() {
    describe_counter!(PUBLISHED, "Messages given to the broker, by what it said");
    describe_counter!(REPUBLISHED, "Entries published again by the net");
    describe_counter!(UNREADABLE, "Messages of the topic that are not ours");
    describe_gauge!(UP, "1 while the broker answers and takes what it is given");
    describe_gauge!(LAG, "Messages at the broker that no worker has confirmed");
    for result in ["done", "refused", "unknown"] {
        counter!(PUBLISHED, "result" => result).increment(0);
    }
    counter!(REPUBLISHED).increment(0);
    counter!(UNREADABLE).increment(0);
}

pub(super) fn published(results: &[Published]) {
    for result in results {
        let name = match result {
            Published::Done => "done",
            Published::Refused(_) => "refused",
            Published::Unknown(_) => "unknown",
        };
        counter!(PUBLISHED, "result" => name).increment(1);
    }
}

pub(super) fn republished(entries: usize) {
    counter!(REPUBLISHED).increment(entries as u64);
}

pub(super) fn unreadable(messages: usize) {
    counter!(UNREADABLE).increment(messages as u64);
}

pub(super) fn up(up: bool) {
    gauge!(UP).set(if up { 1.0 } else { 0.0 });
}

pub(super) fn lag(queues: &[QueueState]) {
    let lag: u64 = queues.iter().map(QueueState::lag).sum();
    gauge!(LAG).set(lag as f64);
}

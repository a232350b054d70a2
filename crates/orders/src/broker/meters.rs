//! The numbers of relay and broker.

use metrics::{counter, describe_counter, describe_gauge, gauge};

use super::{Published, QueueState};

const PUBLISHED: &str = "seckill_relay_messages_total";
const REPUBLISHED: &str = "seckill_relay_republished_total";
const UNREADABLE: &str = "seckill_relay_unreadable_total";
const UP: &str = "seckill_broker_up";
const LAG: &str = "seckill_broker_lag_messages";

const REMINDERS: &str = "seckill_unpaid_reminders_total";

/// Tell the recorder in force what the numbers mean.
pub fn describe() {
    describe_counter!(PUBLISHED, "Messages given to the broker, by what it said");
    describe_counter!(REPUBLISHED, "Entries published again by the net");
    describe_counter!(UNREADABLE, "Messages of the topic that are not ours");
    describe_gauge!(UP, "0 while a broker is set and does not answer, or takes nothing");
    describe_gauge!(LAG, "Messages at the broker that no worker has confirmed");
    for result in ["done", "refused", "unknown"] {
        counter!(PUBLISHED, "result" => result).increment(0);
    }
    describe_counter!(
        REMINDERS,
        "Orders whose reminder the broker took, did not take, or delivered"
    );
    for event in ["sent", "not_sent", "heard"] {
        counter!(REMINDERS, "event" => event).increment(0);
    }
    counter!(REPUBLISHED).increment(0);
    counter!(UNREADABLE).increment(0);
    // As it is where no broker is set.
    gauge!(UP).set(1.0);
    gauge!(LAG).set(0.0);
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

/// Of so many orders the broker will remind, of so many not.
pub fn reminders_planned(sent: usize, not_sent: usize) {
    counter!(REMINDERS, "event" => "sent").increment(sent as u64);
    counter!(REMINDERS, "event" => "not_sent").increment(not_sent as u64);
}

/// The broker has reminded of so many orders.
pub fn reminders_heard(orders: usize) {
    counter!(REMINDERS, "event" => "heard").increment(orders as u64);
}

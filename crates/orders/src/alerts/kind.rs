//! Every reason to wake somebody, in one table: its word, whether it passes by itself, and what to do.
//!
//! A kind *lasts* if it is about a state: it is raised once when the state has held for a while,
//! and resolved when it has been over for a while. The others are about one thing that happened and are
//! raised once. A test holds the table in `docs/OPERATIONS.md` to this one, and one of the
//! pages the words of the console (`web/console/words_alerts.js`).

use serde::{Deserialize, Serialize};

macro_rules! alert_kinds {
    ($($(#[$why:meta])* $name:ident, $word:literal, $span:ident, $todo:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum AlertKind {
            $($(#[$why])* #[serde(rename = $word)] $name,)*
        }

        impl AlertKind {
            pub const ALL: &[AlertKind] = &[$(AlertKind::$name,)*];

            /// As a machine reads it; also a label of metrics.
            pub fn as_str(self) -> &'static str {
                match self { $(AlertKind::$name => $word,)* }
            }

            /// What a person should do who is woken by it.
            pub fn todo(self) -> &'static str {
                match self { $(AlertKind::$name => $todo,)* }
            }

            /// It is raised when it begins and resolved when it is over; the others are only raised.
            pub fn lasts(self) -> bool {
                match self { $(AlertKind::$name => lasts!($span),)* }
            }
        }
    };
}

macro_rules! lasts {
    (lasts) => {
        true
    };
    (once) => {
        false
    };
}

alert_kinds! {
    /// Nobody, or not everybody, can be admitted.
    GateDown, "gate_down", lasts,
        "Solo: free disk space, or mend the disk. Cluster: see whether Redis runs, can be reached and \
         can write (redis-cli INFO persistence). Buyers are told to try again; nothing is lost.";
    /// Claims do not become orders.
    LedgerDown, "ledger_down", lasts,
        "See whether the database runs, can be reached and can be written. The sale goes on: claims \
         wait on the log and become orders when it is back.";
    /// The claim log does not drain, or is half full.
    Backlog, "backlog", lasts,
        "Look for ledger_down, dead workers and slow statements in the database; start more workers. \
         When the log is full (gate.log_claims_max) nobody is admitted.";
    /// Claims do not reach the message broker, or do not come from it.
    BrokerDown, "broker_down", lasts,
        "See whether the broker runs, can be reached and takes messages. The sale goes on: claims wait on \
         the gate's own log. If it stays away, set claim_log = \"native\" and restart: they become orders.";
    /// The disk of the data directory will be full before long.
    DiskLow, "disk_low", lasts, "Free space, or make the disk larger, before the next sale.";
    /// The disk of the data directory is nearly full.
    DiskFull, "disk_full", lasts,
        "Free space now. On a full disk nobody is admitted (solo) and nothing is logged.";
    /// This host and the ledger do not agree about the time.
    Clock, "clock", lasts,
        "Check NTP on this host and on the database's. Unpaid orders are closed by the clock that is \
         behind.";
    /// Alerts do not leave.
    WebhookFailing, "webhook_failing", lasts,
        "See whether alerts.webhook_url is right and can be reached from here. Alerts wait for an hour \
         and are in the log.";
    /// Buyers of one lane or all of them are told to try again.
    LanesDied, "lanes_died", lasts,
        "Restart this process, nothing is lost; the log has the panic, report it.";
    /// A job met a bug.
    JobPanicked, "job_panicked", lasts,
        "The log has the panic: report it. The job is tried again and again.";
    /// A worker loop met a bug.
    WorkerDied, "worker_died", once,
        "Restart this process, nothing is lost; the log has the panic, report it.";
    /// A claim failed all its tries.
    DeadLetter, "dead_letter", once,
        "seckill dead-letters list shows why. Mend the cause, then replay it, or void it.";
    /// A claim can be neither settled nor remembered as failed.
    ClaimStuck, "claim_stuck", once,
        "The cause says what the ledger chokes on: mend it, then restart the worker. The claim stays \
         on the log, holds its units and comes again with every start.";
    /// Gate and ledger disagree.
    Reconcile, "reconcile", once,
        "seckill reconcile shows what is left. What has a rule was healed.";
    /// Money that fits no order.
    Payment, "payment", once,
        "Compare the order with the provider's bill; give the money back there.";
    /// A provider does not give back what is owed.
    RefundRefused, "refund_refused", once,
        "Settle it with the provider. The refund is tried again until it succeeds.";
    /// The outbox owes something for a minute.
    Undelivered, "undelivered", once,
        "It says which partition of the gate, provider or row it is, and why. It is delivered again until \
         it is taken; nothing else waits for it.";
    /// A sale did not take place.
    PublishMissed, "publish_missed", once,
        "Give the activity a new window and publish it, or end it. See why no process with the role \
         jobs ran.";
    /// The shop's backend hears nothing any more.
    WebhookSwitchedOff, "webhook_switched_off", once,
        "Mend the receiver, then switch the endpoint on again (`seckill webhooks enable`): what waited for \
         it is delivered then.";
    /// The shop's backend did not take an event for days.
    WebhookGivenUp, "webhook_given_up", once,
        "See why in `seckill webhooks deliveries --state failed`, mend the receiver, and send it again \
         (`seckill webhooks replay`).";
    /// An order keeps its units after its time.
    Unclosable, "unclosable", once,
        "Configure the provider again until its orders are closed.";
}

impl std::fmt::Display for AlertKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_word_of_its_own_and_says_what_to_do() {
        let mut words: Vec<_> = AlertKind::ALL.iter().map(|kind| kind.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), AlertKind::ALL.len());
        for kind in AlertKind::ALL {
            assert!(kind.todo().ends_with('.'), "{kind}");
            assert_eq!(serde_json::to_string(kind).unwrap(), format!("\"{kind}\""));
        }
    }
}

//! The workers: they carry claims from the claim log into the ledger.
//!
//! **Parts.** The *main loop* takes entries from the log, settles their claims in the ledger in
//! batches of one item, and acknowledges the entries. The *retry loop* runs beside it and tries
//! again the claims that failed for a reason of their own, so that such a claim never delays the
//! others; the *aside loop* does the same for items whose rows somebody else holds. All settle
//! through one `Settler`, which knows what each kind of failure means:
//!
//! - the ledger does not answer: nobody's fault. The loop pauses and asks again, no try is burnt,
//!   nothing is acknowledged. The log keeps the claims meanwhile. A large batch that is cut off by
//!   the ledger's time limit twice in a row is asked for in halves;
//! - the item's rows are held by somebody else: its entries are put aside, unacknowledged, and the
//!   other items go on;
//! - the item's version kept moving: these claims go up the retry ladder;
//! - the batch was rejected: it is halved until the claims at fault stand alone. The others commit
//!   in the same pass, those at fault go up the ladder, and past its last step become dead letters.
//!
//! **The life of one claim.** Taken from the log → settled in one transaction with its neighbours
//! of the same item → its entry acknowledged. Or: taken → rejected alone → remembered by the ledger
//! as a failed claim (`defer`) → its entry acknowledged → found `due` after each step of the ladder
//! → settled, or remembered one last time as a dead letter, with an alert.
//!
//! **A crash** before the commit: the entry is delivered again, nothing happened. Between commit
//! and acknowledgement: it is delivered again and settling it is a no-op. Between `defer` and
//! acknowledgement: the claim is tried once from the log and, if it fails again, starts over at the
//! foot of the ladder. Between the recording of a dead letter and its alert: the alert is not sent,
//! the dead letter is still listed. Nowhere is a claim neither on the log nor in the ledger.
//!
//! **Where claims come by a message broker** another log is before the workers ([`broker`]); the loops are
//! the same.
//!
//! **Architecture invariant.** This crate knows the log and the ledger only as the traits in
//! `sale`, and no HTTP except the one POST of an [`Alert`].

// RocketMQ's client has futures of futures, deeper than the compiler follows by itself.
#![cfg_attr(feature = "rocketmq", recursion_limit = "256")]

mod alerts;
mod aside;
pub mod broker;
mod dead;
#[cfg(feature = "kafka")]
mod kafka;
mod ladder;
mod meters;
mod options;
mod outage;
mod rate;
mod retry;
#[cfg(feature = "rocketmq")]
mod rocketmq;
mod settler;
mod workers;

pub use alerts::{
    Alert, AlertKind, AlertOptions, AlertRecord, AlertState, Alerts, Robot, RobotKind, WebhookState,
};
pub use broker::{ClaimLogKind, KafkaOptions, RelayOptions, RocketmqOptions};
pub use ladder::{LADDER_STEP_MS_MAX, LADDER_STEPS_MAX, RETRY_LADDER_MS_DEFAULT};
pub use meters::describe as describe_metrics;
pub use options::{BATCH_CLAIMS_MAX_MAX, Options};
pub use workers::{Workers, WorkersHandle};

//! Message brokers: how claims go by RocketMQ or Kafka, and why none is lost by it.
//!
//! **Only the delivery goes by the broker.** The gate appends what it admits to its own log in the step
//! that admits it, as always, and there an entry stays, and is counted, until the ledger has it. So what is
//! in flight, what a load of the gate must leave out, the backlog, its cap, and what a buyer is told of a
//! claim do not depend on a broker: not on whether it is up, and not on whether it kept what it confirmed.
//!
//! **Parts.** The [`Relay`] runs where workers run. It takes entries from the log ([`sale::RelaySource`]),
//! publishes each as one message ([`Broker::publish`]) and notes what the broker confirmed. The
//! [`BrokerLog`] is a [`sale::ClaimLog`] for the workers of the same process: it takes from the broker
//! what any relay published, and acknowledges at both. Ladder, dead letters, halving, items put aside are the
//! code of [`Workers`](crate::Workers), which do not know where their entries come from. The *net* publishes
//! again what is on the log for too long although the broker has nothing left of that time.
//!
//! **The life of one message.**
//!
//! 1. The gate admits a batch: one entry of its log. Buyers have their answer.
//! 2. A relay takes the entry. *Crash:* another one takes it (Redis: when it was silent for `takeover_ms`;
//!    solo: after the restart).
//! 3. It is published. *Refused* (too large, say): it is given to this process's own workers. *No answer in
//!    time* is not a no: it is published again, until there is a yes. *Crash:* it is published again, too. A
//!    message that is there twice is two messages of one entry.
//! 4. The broker confirms, and the log notes that the entry is relayed (Redis: acknowledged in the
//!    group of the relays, which removes nothing; solo: in memory, so a restart publishes once more what the
//!    ledger does not have). *Crash before the note:* as in 3.
//! 5. A worker gets the message: it verifies the signature, for a topic has other writers, and settles its
//!    claims. Of two messages of one entry that it has at once the second only waits for the first. *Crash:*
//!    the broker delivers it again, and settling what is settled is a no-op.
//! 6. The ledger has committed. The worker acknowledges the entry at the log, *then* the message at the
//!    broker. *Crash before the first:* as in 5. *Between the two:* delivered again; to acknowledge an entry
//!    that is gone does nothing, because it is named by what it holds and not by its place alone.
//!
//! **What the net is for.** A message that the broker confirmed and lost (its settings allow that); an
//! acknowledgement at the log that a crash forgot after the message was done with; a claim that can be
//! neither settled nor noted as failed. Each leaves an entry on the log that nobody will deliver. So what
//! was logged longer ago than `republish_after_ms` is looked at: the ends of all queues are noted, and what
//! is still there when the consumers have passed them is published again.
//!
//! **Changing the setting** loses nothing and needs nothing to be drained. All that is owed is on the log:
//! under `native` workers read it from there, whatever a broker still holds; under a broker a relay publishes
//! all of it, whatever a worker had in hand. Processes with different settings may run at the same time. What
//! is delivered both ways is settled once.
//!
//! **A gate that lost its log** with claims that a broker has (a failover of Redis) must not sell their units
//! again: before such an item is loaded anew, what the queues held at that moment is settled ([`caught_up`]).

mod delivered;
mod look_back;
mod message;
mod meters;
mod net;
mod options;
mod relay;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sale::{Millis, OrderNo};

pub use delivered::BrokerLog;
pub use look_back::BrokerLookBack;
pub use message::{MESSAGE_BYTES_MAX, MESSAGE_CLAIMS_MAX};
pub use meters::{describe as describe_metrics, reminders_heard, reminders_planned};
pub use options::{ClaimLogKind, KafkaOptions, RelayOptions, RocketmqOptions};
pub use relay::{Relay, RelayHandle};

/// A broker does not answer, or not as it should.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the broker does not answer: {0}")]
pub struct BrokerError(pub String);

/// What is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The first order number in it. Whoever chooses a queue by it spreads one hot item over all of them,
    /// and puts a repetition into the queue of the first. What the net publishes has any other one.
    pub key: String,
    /// JSON.
    pub body: Vec<u8>,
    /// When its claims were made.
    pub made_ms: Millis,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// The broker keeps it, as far as its settings go.
    Done,
    /// It never will; why.
    Refused(String),
    /// It may have it or not; why.
    Unknown(String),
}

/// A delivered message, as the client of the broker knows it. Good once, and never again after that client's
/// end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt(pub u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub receipt: Receipt,
    pub body: Vec<u8>,
}

/// A queue of the broker (Kafka calls it a partition), as its consumers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueState {
    pub queue: u32,
    /// Behind the last message.
    pub end: u64,
    /// Behind the last message before which nothing is left to be confirmed.
    pub consumed: u64,
}

impl QueueState {
    pub fn lag(&self) -> u64 {
        self.end.saturating_sub(self.consumed)
    }
}

/// Where reading back stopped: a queue, and a place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackPlace {
    pub queue: u32,
    pub offset: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackMessages {
    pub bodies: Vec<Vec<u8>>,
    /// Where the next page begins; `None` at the end of the last queue.
    pub next: Option<BackPlace>,
}

/// What a broker is set to, for `seckill doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerFinding {
    Ok(String),
    Warn(String),
    Fail(String),
}

/// A client of a broker. Opening one waits for nobody, and so does no start: what it needs it reaches, makes
/// (a topic, a group) and reaches again by itself.
#[async_trait]
pub trait Broker: Send + Sync {
    /// As the settings call it.
    fn name(&self) -> &'static str;

    /// One answer for each message, in their order, within a time. Several callers at once.
    async fn publish(&self, messages: &[Message]) -> Vec<Published>;

    /// Messages that nobody of the group has, as they come; waits until there are some. The first call joins
    /// the group. Dropping the future loses nothing. While nobody calls, little is fetched and the place in
    /// the group is kept.
    async fn receive(&self) -> Result<Vec<Delivery>, BrokerError>;

    /// The ledger has these: never again. A receipt of before a rebalance does nothing.
    fn confirm(&self, done: &[Receipt]);

    /// These can be neither settled nor noted as failed: later, if the broker has a ladder of its own; else
    /// they are passed by, for the net.
    fn later(&self, undone: &[Receipt]);

    /// All queues, as they are now.
    async fn queues(&self) -> Result<Vec<QueueState>, BrokerError>;

    /// Messages that are still there, consumed or not, that the broker got at `since_ms` or later. One
    /// page, from the first queue or from where an earlier page stopped. Disturbs no consumer.
    async fn read_back(
        &self,
        since_ms: Millis,
        from: Option<BackPlace>,
    ) -> Result<BackMessages, BrokerError>;

    /// If it can deliver a message at a given time.
    fn delayed_checks(&self) -> Option<&dyn DelayedChecks> {
        None
    }

    /// If it has a ladder of its own ([`Broker::later`]).
    fn dead_letters(&self) -> Option<&dyn DeadLetterQueue> {
        None
    }

    /// What it and the topic are set to.
    async fn findings(&self) -> Vec<BrokerFinding>;

    /// Leave the group and end. What is not confirmed is delivered to others.
    async fn stop(&self);
}

/// An order that is to be looked at when its time to pay is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayedCheck {
    pub order_no: OrderNo,
    pub due_ms: Millis,
}

/// The side of a broker that delivers a message at a given time. That a message is lost does no harm: what is
/// due is also found by its index.
#[async_trait]
pub trait DelayedChecks: Send + Sync {
    async fn plan(&self, checks: &[DelayedCheck]) -> Vec<Published>;

    /// As [`Broker::receive`].
    async fn due(&self) -> Result<Vec<(Receipt, DelayedCheck)>, BrokerError>;

    fn confirm(&self, done: &[Receipt]);
}

/// The side of a broker whose own ladder has an end: messages that had all their tries on it.
#[async_trait]
pub trait DeadLetterQueue: Send + Sync {
    /// As [`Broker::receive`].
    async fn receive(&self) -> Result<Vec<Delivery>, BrokerError>;

    fn confirm(&self, done: &[Receipt]);
}

/// A setting that this binary cannot follow.
#[derive(Debug, thiserror::Error)]
pub enum BrokerRefused {
    #[error(
        "claim_log = \"{0}\", and this binary was built without it: build it with `cargo build --release \
         --features {0}`, or set claim_log = \"native\""
    )]
    NotBuiltIn(&'static str),
    #[error("{0} cannot be used as it is set: {1}")]
    Settings(&'static str, String),
}

/// Does this binary have the client?
pub fn check_built_in(kind: ClaimLogKind) -> Result<(), BrokerRefused> {
    match kind {
        ClaimLogKind::Kafka if !cfg!(feature = "kafka") => Err(BrokerRefused::NotBuiltIn("kafka")),
        ClaimLogKind::Rocketmq if !cfg!(feature = "rocketmq") => {
            Err(BrokerRefused::NotBuiltIn("rocketmq"))
        }
        ClaimLogKind::Kafka | ClaimLogKind::Rocketmq | ClaimLogKind::Native => Ok(()),
    }
}

/// The broker of the settings; `None` if there is none.
pub fn open(
    kind: ClaimLogKind,
    kafka: &KafkaOptions,
    rocketmq: &RocketmqOptions,
) -> Result<Option<Arc<dyn Broker>>, BrokerRefused> {
    match kind {
        ClaimLogKind::Native => Ok(None),
        ClaimLogKind::Kafka => open_kafka(kafka).map(Some),
        ClaimLogKind::Rocketmq => open_rocketmq(rocketmq).map(Some),
    }
}

#[cfg(not(feature = "kafka"))]
fn open_kafka(_: &KafkaOptions) -> Result<Arc<dyn Broker>, BrokerRefused> {
    Err(BrokerRefused::NotBuiltIn("kafka"))
}

#[cfg(feature = "kafka")]
fn open_kafka(options: &KafkaOptions) -> Result<Arc<dyn Broker>, BrokerRefused> {
    let refused =
        |error: rdkafka::error::KafkaError| BrokerRefused::Settings("kafka", error.to_string());
    Ok(Arc::new(crate::kafka::KafkaBroker::open(options).map_err(refused)?))
}

#[cfg(feature = "rocketmq")]
fn open_rocketmq(options: &RocketmqOptions) -> Result<Arc<dyn Broker>, BrokerRefused> {
    let refused = |error| BrokerRefused::Settings("rocketmq", error);
    Ok(Arc::new(crate::rocketmq::RocketmqBroker::open(options).map_err(refused)?))
}

#[cfg(not(feature = "rocketmq"))]
fn open_rocketmq(_: &RocketmqOptions) -> Result<Arc<dyn Broker>, BrokerRefused> {
    Err(BrokerRefused::NotBuiltIn("rocketmq"))
}

/// How often it is looked whether the consumers have passed a place.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Waits until the consumers have confirmed all that the queues hold at this moment, for so long at most.
/// False if they have not.
pub async fn caught_up(broker: &dyn Broker, wait_max: Duration) -> Result<bool, BrokerError> {
    let ends = broker.queues().await?;
    have_passed(broker, &ends, wait_max).await
}

async fn have_passed(
    broker: &dyn Broker,
    ends: &[QueueState],
    wait_max: Duration,
) -> Result<bool, BrokerError> {
    let passed = |now: &[QueueState]| {
        ends.iter().all(|then| {
            let same = now.iter().find(|now| now.queue == then.queue);
            same.is_some_and(|now| now.consumed >= then.end)
        })
    };
    let begun = tokio::time::Instant::now();
    let mut now = ends.to_vec();
    while !passed(&now) {
        if begun.elapsed() >= wait_max {
            return Ok(false);
        }
        tokio::time::sleep(LOOK_EVERY).await;
        now = broker.queues().await?;
    }
    Ok(true)
}

#[cfg(all(test, not(feature = "kafka")))]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_was_not_built_in_is_refused_and_the_cure_is_named() {
        let opened =
            open(ClaimLogKind::Kafka, &KafkaOptions::default(), &RocketmqOptions::default());
        let Err(refused) = opened else { panic!("there is no client") };
        assert!(refused.to_string().contains("--features kafka"), "{refused}");
        assert!(check_built_in(ClaimLogKind::Kafka).is_err());
        assert!(check_built_in(ClaimLogKind::Native).is_ok());
    }
}

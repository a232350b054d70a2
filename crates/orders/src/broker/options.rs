//! The settings of brokers, and of the relay to them. They are here whichever client is built in, so that a
//! file of settings means the same to every binary.

use sale::Secret;
use serde::{Deserialize, Serialize};

/// Which way claims go from the gate to the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimLogKind {
    /// By the gate's own log: the journal, or Redis streams.
    #[default]
    Native,
    Rocketmq,
    Kafka,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelayOptions {
    /// Claims in one call to the broker.
    pub batch_claims_max: usize,
    /// Calls under way at once.
    pub publishes_max: usize,
    /// What was logged longer ago, and what the broker has nothing left of, is published again.
    pub republish_after_ms: u64,
}

impl Default for RelayOptions {
    fn default() -> Self {
        RelayOptions { batch_claims_max: 8_000, publishes_max: 4, republish_after_ms: 300_000 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaOptions {
    /// Some of the servers, as host:port.
    pub servers: Vec<String>,
    pub topic: String,
    pub group: String,
    /// Of a topic that we make.
    pub partitions: u32,
    /// Of a topic that we make; 0: as the servers are set.
    pub replication: u32,
    /// Anything else that librdkafka understands, as "name=value". Secret, for it may be a password.
    pub properties: Vec<Secret>,
    /// The servers have answered within this, or the outcome is unknown.
    pub answer_ms_max: u64,
    /// A worker that the servers have not heard of for so long loses its queues to others.
    pub session_ms: u64,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        KafkaOptions {
            servers: Vec::new(),
            topic: "seckill-claims".into(),
            group: "seckill-workers".into(),
            partitions: 12,
            replication: 0,
            properties: Vec::new(),
            answer_ms_max: 10_000,
            session_ms: 15_000,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RocketmqOptions {
    /// Name servers, as host:port.
    pub name_servers: Vec<String>,
    pub topic: String,
    pub group: String,
    /// Where the reminders of unpaid orders wait.
    pub unpaid_topic: String,
    /// Whom the brokers know us as, if they ask; empty if they do not.
    pub access_key: String,
    pub secret_key: Secret,
    /// A send is answered within this, or the outcome is unknown.
    pub answer_ms_max: u64,
}

impl Default for RocketmqOptions {
    fn default() -> Self {
        RocketmqOptions {
            name_servers: Vec::new(),
            topic: "seckill-topic".into(),
            group: "seckill-workers".into(),
            unpaid_topic: "seckill-unpaid".into(),
            access_key: String::new(),
            secret_key: Secret::new(""),
            answer_ms_max: 10_000,
        }
    }
}

//! The broker of these stories is Kafka.

use std::io;

use faults::services::{Kafka, KafkaOptions, shared_kafka, unique_name};

use crate::fixtures::Deployment;

pub(crate) type Own = Kafka;

pub(crate) const NAME: &str = "kafka";
pub(crate) const SERVERS: &str = "SECKILL_KAFKA_SERVERS";
pub(crate) const TOPIC: &str = "SECKILL_KAFKA_TOPIC";
pub(crate) const GROUP: &str = "SECKILL_KAFKA_GROUP";
/// A worker that is frozen has lost its partitions after this.
pub(crate) const SESSION_MS: u64 = 6_000;
/// What the doctor says of one that answers, of its settings, and of one that is away.
pub(crate) const DOCTOR_SEES: &str = "Kafka answers, with 1 servers";
pub(crate) const DOCTOR_JUDGES: &str = "has one copy of each message";
pub(crate) const DOCTOR_ADVISES: &str = "check kafka.servers";

/// The one that all stories share.
pub(crate) fn shared() -> &'static Kafka {
    shared_kafka()
}

pub(crate) fn start() -> io::Result<Kafka> {
    Kafka::start(KafkaOptions::default())
}

pub(crate) fn address(kafka: &Kafka) -> String {
    kafka.address().to_string()
}

/// With a topic of its own.
pub(crate) fn by(kafka: &Kafka, deployment: Deployment) -> Deployment {
    let name = unique_name("claims");
    deployment
        .env("SECKILL_CLAIM_LOG", NAME)
        .env(SERVERS, kafka.address())
        .env(TOPIC, &name)
        .env(GROUP, &name)
        .env("SECKILL_KAFKA_PARTITIONS", 4)
        .env("SECKILL_KAFKA_ANSWER_MS_MAX", 3_000)
        .env("SECKILL_KAFKA_SESSION_MS", SESSION_MS)
        // What nobody delivers any more must not keep a story waiting for minutes.
        .env("SECKILL_RELAY_REPUBLISH_AFTER_MS", 10_000)
}

/// A consumer that does not ask for so long is out of its group.
pub(crate) fn may_be_silent_for_7_s(deployment: Deployment) -> Deployment {
    deployment.env("SECKILL_KAFKA_PROPERTIES", "max.poll.interval.ms=7000")
}

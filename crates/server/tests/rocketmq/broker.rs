//! The broker of these stories is RocketMQ.

use std::io;

use faults::services::{RocketMq, RocketMqOptions, shared_rocketmq, unique_name};

use crate::fixtures::Deployment;

pub(crate) type Own = RocketMq;

pub(crate) const NAME: &str = "rocketmq";
pub(crate) const SERVERS: &str = "SECKILL_ROCKETMQ_NAME_SERVERS";
pub(crate) const TOPIC: &str = "SECKILL_ROCKETMQ_TOPIC";
pub(crate) const GROUP: &str = "SECKILL_ROCKETMQ_GROUP";
/// A client that is silent for so long loses its queues, as the brokers of the tests are set.
pub(crate) const SESSION_MS: u64 = 15_000;
/// What the doctor says of one that answers, of its settings, and of one that is away.
pub(crate) const DOCTOR_SEES: &str = "RocketMQ's name servers answer, with 1 brokers";
pub(crate) const DOCTOR_JUDGES: &str = "has a message on its disk before it confirms it";
pub(crate) const DOCTOR_ADVISES: &str = "check rocketmq.name_servers";

/// The one that all stories share.
pub(crate) fn shared() -> &'static RocketMq {
    shared_rocketmq()
}

pub(crate) fn start() -> io::Result<RocketMq> {
    RocketMq::start(RocketMqOptions::default())
}

pub(crate) fn address(rocketmq: &RocketMq) -> String {
    rocketmq.name_server().to_string()
}

/// With topics of its own.
pub(crate) fn by(rocketmq: &RocketMq, deployment: Deployment) -> Deployment {
    let name = unique_name("claims");
    deployment
        .env("SECKILL_CLAIM_LOG", NAME)
        .env(SERVERS, rocketmq.name_server())
        .env(TOPIC, &name)
        .env(GROUP, &name)
        .env("SECKILL_ROCKETMQ_UNPAID_TOPIC", format!("{name}-unpaid"))
        .env("SECKILL_ROCKETMQ_ANSWER_MS_MAX", 3_000)
        // What nobody delivers any more must not keep a story waiting for minutes.
        .env("SECKILL_RELAY_REPUBLISH_AFTER_MS", 10_000)
}

/// A client that asks for nothing keeps its queues, for its heartbeats go on.
pub(crate) fn may_be_silent_for_7_s(deployment: Deployment) -> Deployment {
    deployment
}

//! The topic: made if it is not there, and looked at by `seckill doctor`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rdkafka::{
    admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication},
    consumer::{BaseConsumer, Consumer},
    error::{KafkaError, RDKafkaErrorCode},
};

use super::{ASK_MAX, Quiet};
use crate::broker::{BrokerError, BrokerFinding, KafkaOptions, MESSAGE_BYTES_MAX};

/// How long the servers may take to make it.
const MAKING_MAX: Duration = Duration::from_secs(5);
/// Messages must outlast a ledger that is away for a night.
const RETENTION_MS_MIN: i64 = 12 * 3_600 * 1_000;
/// With so many copies one server may be away and two still have every message.
const REPLICATION_SAFE: usize = 3;

pub(super) struct Topic {
    options: KafkaOptions,
    admin: AdminClient<Quiet>,
    is_there: AtomicBool,
    /// One at a time asks for it.
    turn: tokio::sync::Mutex<()>,
}

impl Topic {
    pub(super) fn new(options: &KafkaOptions, admin: AdminClient<Quiet>) -> Topic {
        let (is_there, turn) = (AtomicBool::new(false), tokio::sync::Mutex::default());
        Topic { options: options.clone(), admin, is_there, turn }
    }

    /// It is there, or it is made now.
    pub(super) async fn make_sure(&self) -> Result<(), BrokerError> {
        if self.is_there.load(Ordering::Acquire) {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        if !self.is_there.load(Ordering::Acquire) {
            self.make().await?;
            self.is_there.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// It may be gone: the next one who needs it makes it.
    pub(super) fn look_again(&self) {
        self.is_there.store(false, Ordering::Release);
    }

    async fn make(&self) -> Result<(), BrokerError> {
        let KafkaOptions { topic, partitions, replication, .. } = &self.options;
        let copies = if *replication == 0 { -1 } else { i32::try_from(*replication).unwrap_or(-1) };
        let count = i32::try_from(*partitions).unwrap_or(1);
        let mut new = NewTopic::new(topic, count, TopicReplication::Fixed(copies));
        if *replication as usize >= REPLICATION_SAFE {
            new = new.set("min.insync.replicas", "2");
        }
        let limits = AdminOptions::new()
            .request_timeout(Some(MAKING_MAX))
            .operation_timeout(Some(MAKING_MAX));
        let made = self.admin.create_topics([&new], &limits).await;
        let made = made.map_err(|error: KafkaError| BrokerError(error.to_string()))?;
        for one in made {
            match one {
                Ok(_) => tracing::info!(topic, partitions, "the topic of Kafka is made"),
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                // Who may not make it may use one that somebody else made.
                Err((
                    _,
                    code @ (RDKafkaErrorCode::TopicAuthorizationFailed
                    | RDKafkaErrorCode::ClusterAuthorizationFailed
                    | RDKafkaErrorCode::PolicyViolation),
                )) => {
                    tracing::warn!(topic, %code, "we may not make the topic: somebody else has to")
                }
                Err((_, code)) => {
                    return Err(BrokerError(format!("the topic {topic} cannot be made: {code}")));
                }
            }
        }
        Ok(())
    }

    pub(super) async fn findings(&self, asking: Arc<BaseConsumer<Quiet>>) -> Vec<BrokerFinding> {
        let topic = &self.options.topic;
        if let Err(error) = self.make_sure().await {
            return vec![BrokerFinding::Fail(format!("Kafka: {error}: check kafka.servers"))];
        }
        let name = topic.clone();
        let seen = tokio::task::spawn_blocking(move || Seen::now(&asking, &name));
        let seen = match seen.await {
            Ok(Ok(seen)) => seen,
            Ok(Err(error)) => return vec![BrokerFinding::Fail(format!("Kafka: {error}"))],
            Err(error) => return vec![BrokerFinding::Fail(format!("Kafka: {error}"))],
        };
        let Seen { servers, partitions, copies } = seen;
        let mut findings =
            vec![BrokerFinding::Ok(format!("Kafka answers, with {servers} servers"))];
        if partitions == 0 {
            findings.push(BrokerFinding::Fail(format!("Kafka has no topic {topic}: make it")));
            return findings;
        }
        match self.settings().await {
            Ok(settings) => findings.extend(judge(topic, partitions, copies, &settings)),
            Err(error) => findings.push(BrokerFinding::Warn(format!(
                "the settings of Kafka's topic {topic} cannot be read: {error}"
            ))),
        }
        findings
    }

    async fn settings(&self) -> Result<Settings, BrokerError> {
        let limits = AdminOptions::new().request_timeout(Some(MAKING_MAX));
        let topic = ResourceSpecifier::Topic(&self.options.topic);
        let asked = self.admin.describe_configs([&topic], &limits).await;
        let asked = asked.map_err(|error| BrokerError(error.to_string()))?.into_iter().next();
        let described = asked.ok_or_else(|| BrokerError("nothing was told".into()))?;
        let described = described.map_err(|code| BrokerError(code.to_string()))?;
        let text = |name: &str| described.get(name).and_then(|entry| entry.value.clone());
        let number = |name: &str| text(name).and_then(|value| value.parse::<i64>().ok());
        Ok(Settings {
            min_insync: number("min.insync.replicas").unwrap_or(1),
            retention_ms: number("retention.ms").unwrap_or(-1),
            message_bytes_max: number("max.message.bytes").unwrap_or(i64::MAX),
            unclean: text("unclean.leader.election.enable").as_deref() == Some("true"),
            compacts: text("cleanup.policy").is_some_and(|policy| policy.contains("compact")),
        })
    }
}

/// How many there are of what.
struct Seen {
    servers: usize,
    partitions: usize,
    /// Of each message.
    copies: usize,
}

impl Seen {
    fn now(asking: &BaseConsumer<Quiet>, topic: &str) -> Result<Seen, KafkaError> {
        let metadata = asking.fetch_metadata(Some(topic), ASK_MAX)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let partitions = found.map_or(&[][..], |found| found.partitions());
        Ok(Seen {
            servers: metadata.brokers().len(),
            partitions: partitions.len(),
            copies: partitions.iter().map(|one| one.replicas().len()).min().unwrap_or(0),
        })
    }
}

/// What of a topic's settings concerns a claim.
struct Settings {
    min_insync: i64,
    retention_ms: i64,
    message_bytes_max: i64,
    unclean: bool,
    compacts: bool,
}

fn judge(topic: &str, partitions: usize, copies: usize, is: &Settings) -> Vec<BrokerFinding> {
    let mut findings = Vec::new();
    let mut warn = |text: String| findings.push(BrokerFinding::Warn(text));
    let late = "its claims become orders all the same, but only after relay.republish_after_ms";
    if copies < 2 {
        warn(format!(
            "Kafka's topic {topic} has one copy of each message: when that server loses it, {late}"
        ));
    } else if is.min_insync < 2 {
        warn(format!(
            "Kafka's topic {topic} has min.insync.replicas = {}: a message is confirmed with one copy; when \
             that server loses it, {late}. Set 2",
            is.min_insync
        ));
    } else if usize::try_from(is.min_insync).is_ok_and(|min| min >= copies) {
        warn(format!(
            "Kafka's topic {topic} has {copies} copies and min.insync.replicas = {}: with one server away \
             nothing is taken, and no claim becomes an order. Have three copies",
            is.min_insync
        ));
    }
    if is.unclean {
        warn(format!(
            "Kafka's topic {topic} has unclean.leader.election.enable: a message may be lost; {late}"
        ));
    }
    if (0..RETENTION_MS_MIN).contains(&is.retention_ms) {
        warn(format!(
            "Kafka's topic {topic} keeps messages for {} ms: when a ledger is away for longer they are \
             gone before it is back; {late}",
            is.retention_ms
        ));
    }
    if is.compacts {
        warn(format!("Kafka's topic {topic} is compacted: set cleanup.policy = delete"));
    }
    if is.message_bytes_max < MESSAGE_BYTES_MAX as i64 {
        warn(format!(
            "Kafka's topic {topic} takes messages of {} bytes: larger batches of claims go past it. Set \
             max.message.bytes = {MESSAGE_BYTES_MAX}",
            is.message_bytes_max
        ));
    }
    if findings.is_empty() {
        findings.push(BrokerFinding::Ok(format!(
            "Kafka's topic {topic} has {partitions} partitions, {copies} copies of each message, two of them \
             written before it is confirmed"
        )));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAFE: Settings = Settings {
        min_insync: 2,
        retention_ms: 604_800_000,
        message_bytes_max: 1_048_588,
        unclean: false,
        compacts: false,
    };

    #[test]
    fn only_two_written_copies_of_three_need_no_word() {
        let warned = |copies, settings: Settings| {
            let findings = judge("claims", 12, copies, &settings);
            findings.iter().filter(|one| matches!(one, BrokerFinding::Warn(_))).count()
        };
        assert_eq!(warned(3, SAFE), 0);
        assert_eq!(warned(1, Settings { min_insync: 1, ..SAFE }), 1);
        assert_eq!(warned(2, SAFE), 1, "one away stops everything");
        assert_eq!(warned(3, Settings { min_insync: 1, ..SAFE }), 1);
        assert_eq!(warned(3, Settings { unclean: true, compacts: true, ..SAFE }), 2);
        assert_eq!(warned(3, Settings { retention_ms: 60_000, ..SAFE }), 1);
        assert_eq!(warned(3, Settings { retention_ms: -1, ..SAFE }), 0, "for ever");
        assert_eq!(warned(3, Settings { message_bytes_max: 10_000, ..SAFE }), 1);
    }
}

//! Kafka as the way from the relay to the workers.
//!
//! **Writing.** `acks=all` and an idempotent producer: a message that the client itself sends again,
//! because an answer was lost, is written once. One that was not confirmed in time is *unknown*, and the
//! relay gives it to us again; then it may be there twice. A producer that met a fatal error (its place in
//! the sequence is lost) is replaced by a new one.
//!
//! **Spreading.** The key of a message is its first order number, and its hash chooses the partition. So
//! one hot item fills all partitions evenly, and a repetition follows its first into the same one.
//!
//! **Reading** is [`consumer`]: a thread that polls all the time, so that a ledger that is down for hours
//! never costs the place in the group. An offset is stored when everything before it is in the ledger, and
//! only then committed ([`offsets`]).
//!
//! **A topic that is not there** is made by whoever needs it first. Until it is, publishing is unknown and
//! reading waits.

mod back;
mod consumer;
mod offsets;
mod topic;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use rdkafka::{
    ClientConfig, ClientContext, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    producer::{FutureProducer, FutureRecord, Producer},
};
use sale::Millis;

use self::{back::Back, consumer::Reader, topic::Topic};
use crate::broker::{
    BackMessages, BackPlace, Broker, BrokerError, BrokerFinding, Delivery, KafkaOptions, Message,
    Published, QueueState, Receipt,
};

const NAME: &str = "kafka";
/// How long a question about offsets may take.
const ASK_MAX: Duration = Duration::from_secs(3);
/// The client gives an answer within the time it was told; somewhat later it is not waited for any more.
const GRACE: Duration = Duration::from_secs(2);
/// Events that are thrown away at once.
const EVENTS_MAX: u32 = 1_000;
/// Memory of messages that wait to be sent, and of those that were fetched and not read.
const SENDING_KBYTES_MAX: &str = "65536";
const FETCHED_KBYTES_MAX: &str = "16384";

/// What librdkafka says goes to our log, quietly: what somebody should know of is told by whoever asked.
pub(super) struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        note(level, fac, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "Kafka's client met an error");
    }
}

impl rdkafka::consumer::ConsumerContext for Quiet {}

fn note(level: RDKafkaLogLevel, fac: &str, message: &str) {
    tracing::debug!(?level, fac, message, "Kafka's client says");
}

pub(crate) struct KafkaBroker {
    options: KafkaOptions,
    config: ClientConfig,
    producer: RwLock<FutureProducer<Quiet>>,
    /// Knows offsets, and reads nothing.
    asking: Arc<BaseConsumer<Quiet>>,
    topic: Arc<Topic>,
    reader: OnceLock<Reader>,
    /// One reading back at a time.
    back: Arc<Mutex<Back>>,
}

impl KafkaBroker {
    pub(crate) fn open(options: &KafkaOptions) -> KafkaResult<KafkaBroker> {
        let config = config(options);
        let mut asking = config.clone();
        asking
            .set("group.id", &options.group)
            .set("session.timeout.ms", options.session_ms.to_string())
            .set("enable.auto.commit", "false");
        let topic = Topic::new(options, config.create_with_context(Quiet)?);
        Ok(KafkaBroker {
            producer: RwLock::new(producer(&config, options)?),
            asking: Arc::new(asking.create_with_context(Quiet)?),
            topic: Arc::new(topic),
            reader: OnceLock::new(),
            back: Arc::new(Mutex::new(Back::new(&config, options))),
            options: options.clone(),
            config,
        })
    }

    /// One that has lost its place writes nothing any more.
    fn replace_if_fatal(&self) {
        let Some((code, reason)) = self.producer.read().client().fatal_error() else { return };
        tracing::warn!(%code, reason, "Kafka's producer met a fatal error and is replaced");
        match producer(&self.config, &self.options) {
            Ok(new) => *self.producer.write() = new,
            Err(error) => tracing::error!(%error, "Kafka's producer cannot be replaced"),
        }
    }

    fn reader(&self) -> &Reader {
        self.reader.get_or_init(|| Reader::start(&self.config, &self.options, self.topic.clone()))
    }
}

/// What all clients have in common.
fn config(options: &KafkaOptions) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", options.servers.join(","))
        .set("client.id", "seckill")
        .set("socket.keepalive.enable", "true")
        // A topic that was just made is found soon.
        .set("topic.metadata.refresh.interval.ms", "10000")
        .set("reconnect.backoff.max.ms", "2000");
    for property in &options.properties {
        if let Some((name, value)) = property.expose().split_once('=') {
            config.set(name.trim(), value.trim());
        }
    }
    config
}

fn producer(config: &ClientConfig, options: &KafkaOptions) -> KafkaResult<FutureProducer<Quiet>> {
    writing(config, options).create_with_context(Quiet)
}

/// After what an operator set: that a message was written is not for the settings to say.
fn writing(config: &ClientConfig, options: &KafkaOptions) -> ClientConfig {
    let mut config = config.clone();
    config
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("message.timeout.ms", options.answer_ms_max.to_string())
        .set("partitioner", "murmur2_random")
        .set("compression.type", "lz4")
        .set("linger.ms", "2")
        .set("queue.buffering.max.kbytes", SENDING_KBYTES_MAX);
    config
}

/// Some errors are about the message itself and will never be others.
fn refusal(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{
        InvalidMessage, InvalidMessageSize, InvalidTimestamp, MessageSizeTooLarge,
    };
    matches!(
        error.rdkafka_error_code(),
        Some(InvalidMessage | InvalidMessageSize | InvalidTimestamp | MessageSizeTooLarge)
    )
}

/// The servers have lost the topic, with all that was in it.
fn misses_topic(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{UnknownPartition, UnknownTopic, UnknownTopicOrPartition};
    matches!(
        error.rdkafka_error_code(),
        Some(UnknownPartition | UnknownTopic | UnknownTopicOrPartition)
    )
}

fn not_published(error: &KafkaError) -> Published {
    if refusal(error) {
        Published::Refused(error.to_string())
    } else {
        Published::Unknown(error.to_string())
    }
}

fn broker_error(error: KafkaError) -> BrokerError {
    BrokerError(error.to_string())
}

#[async_trait]
impl Broker for KafkaBroker {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Published> {
        if let Err(error) = self.topic.make_sure().await {
            return vec![Published::Unknown(error.to_string()); messages.len()];
        }
        let producer = self.producer.read().clone();
        let sent = messages.iter().map(|message| {
            // Stamped when it is sent: one that is published again long afterwards is not old.
            let record = FutureRecord::to(&self.options.topic).key(&message.key);
            producer.send_result(record.payload(&message.body)).map_err(|(error, _)| error)
        });
        let sent: Vec<_> = sent.collect();
        let limit = Duration::from_millis(self.options.answer_ms_max) + GRACE;
        let deadline = tokio::time::Instant::now() + limit;
        let failed = |error: KafkaError| {
            if misses_topic(&error) {
                self.topic.look_again();
            }
            not_published(&error)
        };
        let answers = sent.into_iter().map(|sent| async move {
            let answer = match sent {
                Ok(answer) => answer,
                Err(error) => return failed(error),
            };
            match tokio::time::timeout_at(deadline, answer).await {
                Ok(Ok(Ok(_))) => Published::Done,
                Ok(Ok(Err((error, _)))) => failed(error),
                Ok(Err(_)) => Published::Unknown("the producer was replaced".into()),
                Err(_) => Published::Unknown("no answer in time".into()),
            }
        });
        let answers = join_all(answers).await;
        if answers.iter().any(|answer| matches!(answer, Published::Unknown(_))) {
            self.replace_if_fatal();
        }
        answers
    }

    async fn receive(&self) -> Result<Vec<Delivery>, BrokerError> {
        self.reader().receive().await
    }

    fn confirm(&self, done: &[Receipt]) {
        if let Some(reader) = self.reader.get() {
            reader.confirm(done);
        }
    }

    /// Kafka has no ladder.
    fn later(&self, undone: &[Receipt]) {
        self.confirm(undone);
    }

    async fn queues(&self) -> Result<Vec<QueueState>, BrokerError> {
        let (asking, topic) = (self.asking.clone(), self.options.topic.clone());
        let asked = tokio::task::spawn_blocking(move || queues(&asking, &topic));
        asked.await.map_err(|error| BrokerError(error.to_string()))?.map_err(broker_error)
    }

    async fn read_back(
        &self,
        since_ms: Millis,
        from: Option<BackPlace>,
    ) -> Result<BackMessages, BrokerError> {
        let (back, asking) = (self.back.clone(), self.asking.clone());
        let reading = move || back.lock().page(&asking, since_ms, from);
        let read = tokio::task::spawn_blocking(reading).await;
        read.map_err(|error| BrokerError(error.to_string()))?.map_err(broker_error)
    }

    async fn findings(&self) -> Vec<BrokerFinding> {
        self.topic.findings(self.asking.clone()).await
    }

    async fn stop(&self) {
        if let Some(reader) = self.reader.get() {
            reader.stop().await;
        }
    }
}

/// How many partitions the topic has; none if it is not there yet.
fn partitions<C: rdkafka::consumer::ConsumerContext>(
    asking: &BaseConsumer<C>,
    topic: &str,
) -> KafkaResult<Vec<i32>> {
    let metadata = asking.fetch_metadata(Some(topic), ASK_MAX)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Ok(Vec::new());
    };
    match found.error().map(RDKafkaErrorCode::from) {
        None => Ok(found.partitions().iter().map(|partition| partition.id()).collect()),
        // It is not made yet.
        Some(RDKafkaErrorCode::UnknownTopicOrPartition) => Ok(Vec::new()),
        Some(code) => Err(KafkaError::MetadataFetch(code)),
    }
}

fn queues(asking: &BaseConsumer<Quiet>, topic: &str) -> KafkaResult<Vec<QueueState>> {
    // What it would tell of outages is heard by others; it must not pile up.
    for _ in 0..EVENTS_MAX {
        if asking.poll(Duration::ZERO).is_none() {
            break;
        }
    }
    let partitions = partitions(asking, topic)?;
    let mut wanted = TopicPartitionList::new();
    for partition in &partitions {
        wanted.add_partition(topic, *partition);
    }
    let committed = asking.committed_offsets(wanted, ASK_MAX)?;
    let state = |partition: i32| {
        let (begin, end) = asking.fetch_watermarks(topic, partition, ASK_MAX)?;
        let known = committed.find_partition(topic, partition);
        let known = known.and_then(|element| element.offset().to_raw()).filter(|raw| *raw >= 0);
        Ok(QueueState {
            queue: u32::try_from(partition).unwrap_or(0),
            end: u64::try_from(end).unwrap_or(0),
            // Nothing committed is read from the beginning, which moves as old messages go.
            consumed: u64::try_from(known.unwrap_or(begin).max(begin)).unwrap_or(0),
        })
    };
    partitions.into_iter().map(state).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_that_may_be_silent_for_less_than_usual_can_be_asked_for() {
        let options = KafkaOptions {
            servers: vec!["127.0.0.1:1".into()],
            properties: vec![sale::Secret::new("max.poll.interval.ms=20000")],
            ..KafkaOptions::default()
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _inside = runtime.enter();
        KafkaBroker::open(&options).map(drop).unwrap();
        Back::new(&config(&options), &options);
        let worse = vec![sale::Secret::new("no.such.property=1")];
        assert!(KafkaBroker::open(&KafkaOptions { properties: worse, ..options }).is_err());
    }

    #[test]
    fn what_a_promise_needs_is_so_whatever_is_set() {
        let set = [
            "acks=1",
            "enable.idempotence=false",
            "enable.auto.offset.store=true",
            "partition.assignment.strategy=range",
        ];
        let properties = set.map(sale::Secret::new).to_vec();
        let options = KafkaOptions { properties, ..KafkaOptions::default() };
        let common = config(&options);
        let (writing, reading) = (writing(&common, &options), consumer::reading(&common, &options));
        for (of, name, value) in [
            (&writing, "acks", "all"),
            (&writing, "enable.idempotence", "true"),
            (&reading, "enable.auto.offset.store", "false"),
            (&reading, "partition.assignment.strategy", "cooperative-sticky"),
        ] {
            assert_eq!(of.get(name), Some(value), "{name}");
        }
    }

    #[test]
    fn a_message_that_is_too_large_is_refused_and_all_else_is_unknown() {
        let of = |code| not_published(&KafkaError::MessageProduction(code));
        assert!(matches!(of(RDKafkaErrorCode::MessageSizeTooLarge), Published::Refused(_)));
        for code in [
            RDKafkaErrorCode::MessageTimedOut,
            RDKafkaErrorCode::QueueFull,
            RDKafkaErrorCode::TopicAuthorizationFailed,
            RDKafkaErrorCode::NotEnoughReplicas,
            RDKafkaErrorCode::NotEnoughReplicasAfterAppend,
        ] {
            assert!(matches!(of(code), Published::Unknown(_)), "{code:?}");
        }
    }
}

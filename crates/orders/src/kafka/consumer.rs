//! The thread that reads.
//!
//! It polls without a pause, because who does not poll for `max.poll.interval.ms` is out of the group, and
//! because rebalances happen in a poll. While nobody takes what it read, as when the ledger is down, it stops
//! fetching (`pause`) and polls on. A process that was frozen for longer is out: its partitions go to others,
//! and with its next poll it joins again and gets some.
//!
//! Rebalances are cooperative: a worker that comes or goes takes nothing from the others but what it gets.
//!
//! Offsets are stored here when the ledger has what is before them, committed by the client once a second,
//! when a partition is taken away and at the end.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdkafka::{
    ClientConfig, ClientContext, Message, Offset, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    watch,
};

use super::{FETCHED_KBYTES_MAX, offsets::Offsets, topic::Topic};
use crate::broker::{BrokerError, Delivery, KafkaOptions, Receipt};

/// Messages that were read and wait for a worker.
const WAITING_MAX: usize = 256;
/// Messages given to a worker at once.
const TAKEN_MAX: usize = 64;
/// Messages that workers have and that are not done. Beyond it nothing is fetched.
const OPEN_MAX: usize = 20_000;
const POLL: Duration = Duration::from_millis(100);
/// While there is no room, before it is looked again.
const MOMENT: Duration = Duration::from_millis(2);
/// Nobody took anything for so long: then nothing more is fetched.
const STALLED: Duration = Duration::from_secs(1);
/// A process that is told to stop does not wait for longer.
const LEAVING_MAX: Duration = Duration::from_secs(2);
/// After a failure to begin, how long before the next try.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Reader {
    waiting: tokio::sync::Mutex<mpsc::Receiver<Delivery>>,
    shared: Arc<Shared>,
    ended: watch::Receiver<bool>,
}

struct Shared {
    topic: String,
    offsets: Arc<Mutex<Offsets>>,
    /// While there is one.
    consumer: Mutex<Option<Arc<BaseConsumer<Group>>>>,
    stop: AtomicBool,
}

/// Hears of rebalances, in the thread that polls.
struct Group {
    offsets: Arc<Mutex<Offsets>>,
}

impl ClientContext for Group {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        super::note(level, fac, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "Kafka's consumer met an error");
    }
}

fn ids(partitions: &TopicPartitionList) -> Vec<i32> {
    partitions.elements().iter().map(|element| element.partition()).collect()
}

impl ConsumerContext for Group {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Group>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(partitions) => self.offsets.lock().assigned(ids(partitions)),
            Rebalance::Revoke(partitions) => {
                if consumer.assignment_lost() {
                    tracing::warn!(
                        "Kafka had not heard of this worker for too long and gave its partitions \
                        to others; it joins again, and what it settled is known"
                    );
                }
                self.offsets.lock().revoked(ids(partitions));
            }
            Rebalance::Error(error) => tracing::warn!(%error, "a rebalance of Kafka failed"),
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Group>, _: &Rebalance<'_>) {
        let count = consumer.assignment().map_or(0, |assigned| assigned.count());
        tracing::info!(partitions = count, "Kafka gives this worker its partitions anew");
    }
}

/// After what an operator set: an offset is not stored before the ledger has what is before it.
pub(super) fn reading(config: &ClientConfig, options: &KafkaOptions) -> ClientConfig {
    let mut config = config.clone();
    config
        .set("group.id", &options.group)
        .set("enable.auto.commit", "true")
        .set("auto.commit.interval.ms", "1000")
        .set("enable.auto.offset.store", "false")
        // What was published before anybody read counts, too.
        .set("auto.offset.reset", "earliest")
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("session.timeout.ms", options.session_ms.to_string())
        .set("heartbeat.interval.ms", (options.session_ms / 5).max(1).to_string())
        .set("fetch.wait.max.ms", "100")
        .set("queued.max.messages.kbytes", FETCHED_KBYTES_MAX);
    config
}

impl Reader {
    pub(super) fn start(
        config: &ClientConfig,
        options: &KafkaOptions,
        topic: Arc<Topic>,
    ) -> Reader {
        let config = reading(config, options);
        let (sender, waiting) = mpsc::channel(WAITING_MAX);
        let (ended_tell, ended) = watch::channel(false);
        let shared = Arc::new(Shared {
            topic: options.topic.clone(),
            offsets: Arc::default(),
            consumer: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let runtime = tokio::runtime::Handle::current();
        let poller = Poller { config, shared: shared.clone(), sender };
        let running = move || {
            poller.run(&runtime, &topic);
            ended_tell.send_replace(true);
        };
        if let Err(error) = thread::Builder::new().name("kafka-consumer".into()).spawn(running) {
            tracing::error!(%error, "the thread that reads Kafka cannot be started");
        }
        Reader { waiting: tokio::sync::Mutex::new(waiting), shared, ended }
    }

    pub(super) async fn receive(&self) -> Result<Vec<Delivery>, BrokerError> {
        let mut taken = Vec::new();
        let mut waiting = self.waiting.lock().await;
        match waiting.recv_many(&mut taken, TAKEN_MAX).await {
            0 => Err(BrokerError("the thread that reads it has ended".into())),
            _ => Ok(taken),
        }
    }

    pub(super) fn confirm(&self, done: &[Receipt]) {
        // Both under one lock, so that an earlier place is never stored after a later one.
        let mut offsets = self.shared.offsets.lock();
        let reached = offsets.done(done);
        if reached.is_empty() {
            return;
        }
        let mut list = TopicPartitionList::new();
        for (partition, offset) in reached {
            let added =
                list.add_partition_offset(&self.shared.topic, partition, Offset::Offset(offset));
            debug_assert!(added.is_ok(), "an offset of a message");
        }
        let consumer = self.shared.consumer.lock().clone();
        if let Some(consumer) = consumer
            && let Err(error) = consumer.store_offsets(&list)
        {
            // It was taken away in this moment: delivered again.
            tracing::debug!(%error, "offsets cannot be stored");
        }
        drop(offsets);
    }

    /// Leaves the group, so that others need not wait for its time to run out; unless the servers are away.
    pub(super) async fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let mut ended = self.ended.clone();
        if tokio::time::timeout(LEAVING_MAX, ended.wait_for(|ended| *ended)).await.is_err() {
            tracing::warn!(
                "Kafka does not answer: the group learns in time that this worker is gone"
            );
        }
    }
}

struct Poller {
    config: ClientConfig,
    shared: Arc<Shared>,
    sender: mpsc::Sender<Delivery>,
}

impl Poller {
    fn run(self, runtime: &tokio::runtime::Handle, topic: &Topic) {
        while !self.is_stopped() {
            if let Err(error) = runtime.block_on(topic.make_sure()) {
                tracing::debug!(%error, "the topic of Kafka is not there yet");
                self.rest(PAUSE);
                continue;
            }
            if let Err(error) = self.read() {
                tracing::warn!(%error, "Kafka cannot be read, will try again");
                self.rest(PAUSE);
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.shared.stop.load(Ordering::SeqCst) || self.sender.is_closed()
    }

    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.is_stopped() {
            thread::sleep(POLL.min(time));
        }
    }

    /// Until it is stopped, or the client says that it never will again.
    fn read(&self) -> KafkaResult<()> {
        let group = Group { offsets: self.shared.offsets.clone() };
        let consumer: BaseConsumer<Group> = self.config.create_with_context(group)?;
        let consumer = Arc::new(consumer);
        consumer.subscribe(&[&self.shared.topic])?;
        *self.shared.consumer.lock() = Some(consumer.clone());
        let read = self.poll_on(&consumer);
        // Nobody stores offsets of a consumer that has ended; its end commits what was stored.
        *self.shared.consumer.lock() = None;
        drop(consumer);
        self.shared.offsets.lock().forget();
        read
    }

    fn poll_on(&self, consumer: &BaseConsumer<Group>) -> KafkaResult<()> {
        // What found no room. Short, because nothing is fetched while there is something in it.
        let mut unsent: VecDeque<Delivery> = VecDeque::new();
        let mut stalled_at: Option<Instant> = None;
        let mut paused = false;
        while !self.is_stopped() {
            self.pass_on(&mut unsent);
            let is_full = !unsent.is_empty() || self.shared.offsets.lock().open() >= OPEN_MAX;
            if is_full {
                let stalled = stalled_at.get_or_insert_with(Instant::now);
                if stalled.elapsed() < STALLED && !paused {
                    thread::sleep(MOMENT);
                    continue;
                }
                // Also what a rebalance has brought meanwhile.
                consumer.pause(&consumer.assignment()?)?;
                paused = true;
            } else if !paused {
                stalled_at = None;
            } else if self.sender.capacity() >= WAITING_MAX / 2 {
                consumer.resume(&consumer.assignment()?)?;
                (paused, stalled_at) = (false, None);
            }
            match consumer.poll(POLL) {
                None => {}
                Some(Ok(message)) => {
                    let mut offsets = self.shared.offsets.lock();
                    // Of one that was taken away in this moment others get it.
                    let receipt = offsets.delivered(message.partition(), message.offset());
                    drop(offsets);
                    let body = message.payload().unwrap_or_default().to_vec();
                    unsent.extend(receipt.map(|receipt| Delivery { receipt, body }));
                }
                Some(Err(error)) if is_the_end(&error) => return Err(error),
                Some(Err(error)) => tracing::debug!(%error, "Kafka's consumer met an error"),
            }
        }
        Ok(())
    }

    fn pass_on(&self, unsent: &mut VecDeque<Delivery>) {
        while let Some(delivery) = unsent.pop_front() {
            match self.sender.try_send(delivery) {
                Ok(()) => {}
                Err(TrySendError::Full(delivery)) => {
                    unsent.push_front(delivery);
                    return;
                }
                // The process ends; it is delivered to another one.
                Err(TrySendError::Closed(_)) => return,
            }
        }
    }
}

/// Nothing comes from this client any more. All else passes, or is told by others.
fn is_the_end(error: &KafkaError) -> bool {
    matches!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::Fatal))
}

//! A group that reads topics.
//!
//! One task asks the client for what it has fetched and passes it on. It never holds more than a worker
//! can have in hand: while nobody takes, it does not ask, and the client stops fetching when its own
//! small store is full. Heartbeats are the client's and go on meanwhile, so the queues stay ours.
//!
//! Which queues are ours the members of a group work out for themselves, from who else is in it. Brokers
//! tell them of a change, and the client does not hear it while it is at work on an earlier one; by itself
//! it asks every twenty seconds. So we make it ask ([`BALANCE_EVERY`]): the queues of a worker that died are
//! another one's soon after the broker noticed, and two workers that begin together share the work.
//!
//! A client that cannot begin, or has ended, is replaced by a new one.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rocketmq_client_rust::{ClientError, ClientOptions, DefaultLitePullConsumer};
use rocketmq_model::common::{
    consumer::consume_from_where::ConsumeFromWhere,
    message::{message_ext::MessageExt, message_queue::MessageQueue},
};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::timeout,
};

use super::{
    client::{Client, END_MAX, said},
    places::Places,
    writer::Writer,
};
use crate::broker::{BrokerError, Published, Receipt};

/// Messages that were read and wait for a worker, and those given to one at once.
const WAITING_MAX: usize = 64;
/// Messages that workers have and that are not done, and their bytes. Beyond it nothing is asked for.
const OPEN_MAX: usize = 20_000;
/// Messages of one answer of a broker, and those that the client fetches ahead, of a queue and in all.
const FETCH_MAX: i32 = 32;
const AHEAD_MAX: i64 = 64;
const AHEAD_ALL_MAX: i64 = 512;
/// The same in mebibytes, of a queue.
const AHEAD_MIB_MAX: i32 = 4;
/// Queues that are asked at the same time, each for as long as a broker keeps the question.
const QUEUES_MAX: usize = 64;
/// How long a broker may keep a question when there is nothing new. The end of a client waits for it.
const HELD: Duration = Duration::from_millis(1_000);
/// How long one look for messages takes at most.
const LOOK: Duration = Duration::from_millis(200);
/// A client whose calls take so much longer hangs.
const HANGS: Duration = Duration::from_secs(30);
const COMMIT_EVERY: Duration = Duration::from_millis(300);
const COMMIT_MAX: Duration = Duration::from_secs(3);
/// A broker that was killed has forgotten the places of its last seconds, and is told them again.
const SAY_AGAIN: Duration = Duration::from_secs(5);
/// How often it is looked which queues are ours.
const OURS_EVERY: Duration = Duration::from_secs(1);
/// How often the client is made to work out anew which those are, and to tell brokers that we live.
const BALANCE_EVERY: Duration = Duration::from_secs(5);
/// After a failure, before the next try.
const PAUSE: Duration = Duration::from_secs(1);

/// What is needed to send a message again.
#[derive(Clone)]
struct Kept {
    key: String,
    body: bytes::Bytes,
    tries: i32,
}

type Read = (Receipt, Vec<u8>);

pub(super) struct Reader {
    client: Arc<Client>,
    writer: Writer,
    group: String,
    topics: Vec<String>,
    places: Mutex<Places<MessageQueue, Kept>>,
    /// Something was done: there may be room, or a place to commit.
    done: Notify,
    stop: AtomicBool,
    started: OnceLock<Started>,
}

struct Started {
    waiting: tokio::sync::Mutex<mpsc::Receiver<Read>>,
    ended: watch::Receiver<bool>,
}

impl Reader {
    pub(super) fn new(
        client: &Arc<Client>,
        writer: &Writer,
        group: String,
        topics: Vec<String>,
    ) -> Arc<Reader> {
        Arc::new(Reader {
            client: client.clone(),
            writer: writer.clone(),
            group,
            topics,
            places: Mutex::default(),
            done: Notify::new(),
            stop: AtomicBool::new(false),
            started: OnceLock::new(),
        })
    }

    /// The first call joins the group.
    pub(super) async fn receive(self: &Arc<Self>) -> Result<Vec<Read>, BrokerError> {
        let started = self.started.get_or_init(|| {
            let (sender, waiting) = mpsc::channel(WAITING_MAX);
            let (ended_tell, ended) = watch::channel(false);
            let reader = self.clone();
            tokio::spawn(async move {
                reader.run(sender).await;
                ended_tell.send_replace(true);
            });
            Started { waiting: tokio::sync::Mutex::new(waiting), ended }
        });
        let mut taken = Vec::new();
        match started.waiting.lock().await.recv_many(&mut taken, WAITING_MAX).await {
            0 => Err(BrokerError(format!("nobody reads for {} any more", self.group))),
            _ => Ok(taken),
        }
    }

    pub(super) fn confirm(&self, done: &[Receipt]) {
        let further = self.places.lock().done(done);
        if further {
            self.done.notify_one();
        }
    }

    /// Sends them again, to come after the next pause of RocketMQ's ladder, and then is done with them.
    pub(super) fn later(self: &Arc<Self>, undone: &[Receipt]) {
        let places = self.places.lock();
        let kept = undone.iter().filter_map(|receipt| Some((*receipt, places.kept(*receipt)?)));
        let mut kept: Vec<(Receipt, Kept)> = kept.collect();
        drop(places);
        let (reader, writer) = (self.clone(), self.writer.clone());
        let topic = super::client::retry_topic(&self.group);
        tokio::spawn(async move {
            while let Some((receipt, Kept { key, body, tries })) = kept.last() {
                match writer.send_later(&topic, key, body, *tries).await {
                    Published::Unknown(cause) => {
                        tracing::debug!(cause, "a message cannot be put off yet");
                        if !reader.rest(PAUSE).await {
                            return;
                        }
                    }
                    answer => {
                        if let Published::Refused(cause) = answer {
                            tracing::warn!(cause, "RocketMQ does not take a message back");
                        }
                        reader.confirm(&[*receipt]);
                        kept.pop();
                    }
                }
            }
        });
    }

    /// Leaves the group, so that others have our queues at once.
    pub(super) async fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.done.notify_waiters();
        if let Some(started) = self.started.get() {
            // What waits and is taken by nobody is delivered to others.
            let _ = started.ended.clone().wait_for(|ended| *ended).await;
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// False if it is over.
    async fn rest(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        while Instant::now() < until && !self.is_stopped() {
            tokio::time::sleep(LOOK.min(pause)).await;
        }
        !self.is_stopped()
    }

    async fn run(&self, sender: mpsc::Sender<Read>) {
        while !self.is_stopped() && !sender.is_closed() {
            let outcome = match self.open().await {
                Ok(consumer) => {
                    let outcome = tokio::select! {
                        outcome = self.read(&consumer, &sender) => outcome,
                        never = self.balance(&consumer) => match never {},
                    };
                    self.commit(&consumer).await;
                    self.close(consumer).await;
                    outcome
                }
                Err(cause) => Err(cause),
            };
            self.places.lock().keep(|_| false);
            if let Err(cause) = outcome {
                tracing::debug!(
                    group = self.group,
                    cause,
                    "RocketMQ cannot be read, will try again"
                );
                self.rest(PAUSE).await;
            }
        }
    }

    async fn open(&self) -> Result<DefaultLitePullConsumer, String> {
        self.writer.begin().await.map_err(said)?;
        let mut builder = DefaultLitePullConsumer::builder(self.client.runtime.clone())
            .client_options(ClientOptions::legacy(self.client.config()))
            .consumer_group(self.group.as_str())
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .auto_commit(false)
            .pull_thread_nums(QUEUES_MAX)
            .pull_batch_size(FETCH_MAX)
            .pull_threshold_for_queue(AHEAD_MAX)
            .pull_threshold_for_all(AHEAD_ALL_MAX)
            .pull_threshold_size_for_queue(AHEAD_MIB_MAX)
            .broker_suspend_max_time_millis(millis(HELD))
            .consumer_timeout_millis_when_suspend(millis(HELD + COMMIT_MAX))
            .topic_metadata_check_interval_millis(millis(OURS_EVERY * 2));
        if let Some(signature) = self.client.signature() {
            builder = builder.rpc_hook(signature);
        }
        let consumer = builder.build().map_err(said)?;
        let cause = match timeout(HANGS, self.join(&consumer)).await {
            Ok(Ok(())) => return Ok(consumer),
            Ok(Err(error)) => said(error),
            Err(elapsed) => hangs(elapsed),
        };
        // It may be in the group by now.
        self.close(consumer).await;
        Err(cause)
    }

    async fn join(&self, consumer: &DefaultLitePullConsumer) -> Result<(), ClientError> {
        for topic in &self.topics {
            consumer.subscribe(topic).await?;
        }
        consumer.start().await
    }

    /// Leaves the group. One that does not in time goes on leaving: its heartbeats would keep queues that
    /// nobody reads.
    async fn close(&self, consumer: DefaultLitePullConsumer) {
        let leaving = tokio::spawn(async move { consumer.shutdown().await });
        if timeout(END_MAX, leaving).await.is_err() {
            tracing::debug!(group = self.group, "a client of RocketMQ does not end in time");
        }
    }

    /// To subscribe once more to what it reads is what makes the client ask: for the topic's queues, for
    /// who is in the group, and so for which queues are ours.
    async fn balance(&self, consumer: &DefaultLitePullConsumer) -> Infallible {
        // Soon at first: a topic that was just made, or a group that others just joined, changes at once.
        let mut pause = PAUSE;
        loop {
            tokio::time::sleep(pause).await;
            pause = BALANCE_EVERY;
            let asking = consumer.subscribe(&self.topics[0]);
            match timeout(HANGS, asking).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let cause = said(error);
                    tracing::debug!(group = self.group, cause, "our queues are not known anew");
                }
                Err(_) => tracing::debug!(group = self.group, "our queues are asked for in vain"),
            }
        }
    }

    /// Until it is over, or the client hangs.
    async fn read(
        &self,
        consumer: &DefaultLitePullConsumer,
        sender: &mpsc::Sender<Read>,
    ) -> Result<(), String> {
        let mut committed_at = Instant::now();
        let (mut looked_at, mut said_at) = (committed_at, committed_at);
        while !self.is_stopped() && !sender.is_closed() {
            if committed_at.elapsed() >= COMMIT_EVERY {
                self.commit(consumer).await;
                committed_at = Instant::now();
            }
            if said_at.elapsed() >= SAY_AGAIN {
                self.places.lock().say_again();
                self.forget_said(consumer).await;
                said_at = Instant::now();
            }
            if looked_at.elapsed() >= OURS_EVERY {
                let ours = timeout(HANGS, consumer.assignment()).await.map_err(hangs)?;
                let ours = ours.map_err(said)?;
                self.places.lock().keep(|queue| ours.contains(queue));
                looked_at = Instant::now();
            }
            // Nothing is asked for that nobody takes.
            if self.places.lock().open() >= OPEN_MAX {
                let _ = timeout(COMMIT_EVERY, self.done.notified()).await;
                continue;
            }
            match timeout(COMMIT_EVERY, sender.reserve()).await {
                Ok(Ok(_)) => {}
                Ok(Err(_)) => return Ok(()),
                Err(_) => continue,
            }
            let read = consumer.poll_with_timeout_zero_copy(millis(LOOK));
            for message in timeout(HANGS, read).await.map_err(hangs)? {
                // There is room within moments, or it is over.
                let room = loop {
                    match timeout(COMMIT_EVERY, sender.reserve()).await {
                        Ok(Ok(room)) => break room,
                        Ok(Err(_)) => return Ok(()),
                        Err(_) if self.is_stopped() => return Ok(()),
                        Err(_) => self.commit(consumer).await,
                    }
                };
                room.send(self.noted(&message));
            }
        }
        Ok(())
    }

    fn noted(&self, message: &MessageExt) -> Read {
        let body = message.body().unwrap_or_default();
        let key = message.keys().map(|keys| keys.join(" ")).unwrap_or_default();
        let queue = MessageQueue::from_parts(
            message.topic().clone(),
            message.broker_name(),
            message.queue_id(),
        );
        let kept = Kept { key, body: body.clone(), tries: message.reconsume_times() };
        let receipt = self.places.lock().delivered(&queue, message.queue_offset(), kept);
        (receipt, body.to_vec())
    }

    /// The client tells a broker no place twice, not even one that was killed and has forgotten it. What it
    /// told of queues that are not among those to be committed it forgets; and this is none of ours.
    async fn forget_said(&self, consumer: &DefaultLitePullConsumer) {
        let nobodys = MessageQueue::from_parts(self.topics[0].as_str(), "nobody", 0);
        let commit = consumer.commit_with_map(HashMap::from([(nobodys, 0)]), true);
        let _ = timeout(COMMIT_MAX, commit).await;
    }

    /// What does not get there is said again.
    async fn commit(&self, consumer: &DefaultLitePullConsumer) {
        let reached = self.places.lock().reached();
        if reached.is_empty() {
            return;
        }
        if timeout(COMMIT_MAX, consumer.commit_with_map(reached, true)).await.is_err() {
            tracing::debug!(group = self.group, "places in RocketMQ's queues are committed later");
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn hangs(_: tokio::time::error::Elapsed) -> String {
    "its client hangs".into()
}

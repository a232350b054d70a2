//! Reading messages that are long done, for those who look back. It reads by place, under a name of its
//! own that shares no queues and stores nothing.

#![allow(
    deprecated,
    reason = "the client's other consumers cannot read from a place without joining a group"
)]

use std::{sync::Arc, time::Duration};

use rocketmq_client_rust::{ClientOptions, DefaultMQPullConsumer};
use rocketmq_model::common::message::message_queue::MessageQueue;
use sale::Millis;
use tokio::{sync::Mutex, time::timeout};

use super::client::{Client, END_MAX, TOPIC_NOT_THERE, said};
use crate::broker::{BackMessages, BackPlace, BrokerError};

/// What one page has at most, and one answer of the broker.
const PAGE_MESSAGES: usize = 128;
const PAGE_BYTES_MAX: usize = 4 << 20;
const PULL_MAX: i32 = 32;
/// How long one page may take to come.
const PAGE_MAX: Duration = Duration::from_secs(10);
/// A message is stamped by the clock of its broker, its claims by the gate's.
const CLOCKS_DIFFER_MS_MAX: Millis = 60_000;

pub(super) struct Back {
    client: Arc<Client>,
    /// Made when somebody first looks back. One page at a time.
    consumer: Mutex<Option<DefaultMQPullConsumer>>,
}

impl Back {
    pub(super) fn new(client: &Arc<Client>) -> Back {
        Back { client: client.clone(), consumer: Mutex::default() }
    }

    pub(super) async fn page(
        &self,
        since_ms: Millis,
        from: Option<BackPlace>,
    ) -> Result<BackMessages, BrokerError> {
        let mut known = self.consumer.lock().await;
        match timeout(PAGE_MAX, self.read(&mut known, since_ms, from)).await {
            Ok(read) => read.map_err(BrokerError),
            Err(_) => Err(BrokerError("no answer in time".into())),
        }
    }

    async fn read(
        &self,
        known: &mut Option<DefaultMQPullConsumer>,
        since_ms: Millis,
        from: Option<BackPlace>,
    ) -> Result<BackMessages, String> {
        if known.is_none() {
            *known = Some(self.open().await?);
        }
        let consumer = known.as_ref().expect("opened above");
        let topic = &self.client.options.topic;
        let mut queues = match consumer.fetch_subscribe_message_queues(topic).await {
            Ok(queues) => queues,
            // Nobody has sent anything yet.
            Err(error) if error.broker_response_code() == Some(TOPIC_NOT_THERE) => {
                return Ok(BackMessages::default());
            }
            Err(error) => return Err(said(error)),
        };
        queues.sort_by_key(|queue| (queue.broker_name().to_string(), queue.queue_id()));
        let first = from.map_or(0, |place| place.queue as usize);
        for (n, queue) in queues.iter().enumerate().skip(first) {
            let begin = consumer.min_offset(queue).await.map_err(said)?;
            let end = consumer.max_offset(queue).await.map_err(said)?;
            let start = match from.filter(|_| n == first) {
                Some(place) => i64::try_from(place.offset).unwrap_or(i64::MAX),
                None => offset_at(consumer, queue, since_ms).await?,
            };
            let start = start.max(begin);
            if start >= end {
                continue;
            }
            let (bodies, next) = pull(consumer, queue, start, end).await?;
            let place = |queue: usize, offset: i64| BackPlace {
                queue: u32::try_from(queue).unwrap_or(u32::MAX),
                offset: u64::try_from(offset).unwrap_or(0),
            };
            let next = match (next, queues.get(n + 1)) {
                (Some(offset), _) => Some(place(n, offset)),
                (None, Some(queue)) => {
                    Some(place(n + 1, offset_at(consumer, queue, since_ms).await?))
                }
                (None, None) => None,
            };
            return Ok(BackMessages { bodies, next });
        }
        Ok(BackMessages::default())
    }

    async fn open(&self) -> Result<DefaultMQPullConsumer, String> {
        let mut builder = DefaultMQPullConsumer::builder(self.client.runtime.clone())
            .client_options(ClientOptions::legacy(self.client.config()))
            .consumer_group(format!("{}-looking-back", self.client.options.group));
        if let Some(signature) = self.client.signature() {
            builder = builder.rpc_hook(signature);
        }
        let consumer = builder.build().map_err(said)?;
        consumer.start().await.map_err(said)?;
        Ok(consumer)
    }

    pub(super) async fn stop(&self) {
        if let Some(consumer) = self.consumer.lock().await.take() {
            let _ = timeout(END_MAX, consumer.shutdown()).await;
        }
    }
}

/// The first message that may hold claims since then.
async fn offset_at(
    consumer: &DefaultMQPullConsumer,
    queue: &MessageQueue,
    since_ms: Millis,
) -> Result<i64, String> {
    let since_ms = since_ms.saturating_sub(CLOCKS_DIFFER_MS_MAX).max(0);
    let since_ms = u64::try_from(since_ms).unwrap_or(0);
    consumer.search_offset(queue, since_ms).await.map_err(said)
}

/// Messages from this one on, and where the next page begins, if there is one before `end`.
async fn pull(
    consumer: &DefaultMQPullConsumer,
    queue: &MessageQueue,
    start: i64,
    end: i64,
) -> Result<(Vec<Vec<u8>>, Option<i64>), String> {
    let (mut bodies, mut bytes, mut next) = (Vec::new(), 0, start);
    while next < end && bodies.len() < PAGE_MESSAGES && bytes < PAGE_BYTES_MAX {
        let pulled = consumer.pull(queue, "*", next, PULL_MAX).await.map_err(said)?;
        for message in pulled.msg_found_list().unwrap_or_default() {
            let body = message.body().unwrap_or_default();
            bytes += body.len();
            bodies.push(body.to_vec());
        }
        let behind = i64::try_from(pulled.next_begin_offset()).unwrap_or(i64::MAX);
        if behind <= next {
            // Nothing comes although there should be something: it was just removed.
            return Ok((bodies, None));
        }
        next = behind;
    }
    Ok((bodies, (next < end).then_some(next)))
}

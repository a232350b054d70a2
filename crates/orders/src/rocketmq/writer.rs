//! Sending: claims by the batch, and single messages that are to come later.

use std::{collections::HashMap, sync::Arc, time::Duration};

use rocketmq_client_rust::{ClientError, DefaultMQProducer};
use rocketmq_model::{
    common::message::{
        MessageTrait, message_accessor::MessageAccessor, message_single::Message as Sent,
    },
    result::{SendResult, SendStatus},
};

use super::client::{Client, END_MAX, said};
use crate::broker::{Message, Published};

const GROUP: &str = "seckill-relay";
/// One call to the broker.
const BATCH_BYTES_MAX: usize = 1 << 20;
const BATCH_MESSAGES_MAX: usize = 64;
/// Brokers take four million bytes unless told otherwise.
const MESSAGE_BYTES_MAX: usize = 4_000_000;
/// Of a topic that comes into being by being sent to.
const QUEUES: u32 = 8;
/// The topic that all brokers have who let clients make topics.
const LIKE: &str = "TBW102";
/// The client answers within the time it was told; somewhat later it is not waited for any more.
const GRACE: Duration = Duration::from_secs(2);
/// More than any message has; the largest that the client allows.
const NEVER_BYTES: u32 = 64 << 20;
/// RocketMQ's number for a message that it will not take from anybody.
const MESSAGE_ILLEGAL: i32 = 13;
/// The tries of RocketMQ's ladder, and the level on it that the first one waits for: ten seconds.
const TRIES_MAX: i32 = 16;
const FIRST_LEVEL: i32 = 3;

#[derive(Clone)]
pub(super) struct Writer {
    client: Arc<Client>,
    /// Made when somebody first sends.
    producer: Arc<tokio::sync::Mutex<Option<Arc<DefaultMQProducer>>>>,
}

impl Writer {
    pub(super) fn new(client: &Arc<Client>) -> Writer {
        Writer { client: client.clone(), producer: Arc::default() }
    }

    async fn producer(&self) -> Result<Arc<DefaultMQProducer>, ClientError> {
        let mut known = self.producer.lock().await;
        if let Some(producer) = &*known {
            return Ok(producer.clone());
        }
        let mut builder = DefaultMQProducer::builder(self.client.runtime.clone())
            .client_config(self.client.config())
            .producer_group(GROUP)
            .default_topic_queue_nums(QUEUES)
            .send_msg_timeout(self.answer_ms())
            // A message says the same at every size, and is read by others as it is.
            .compress_msg_body_over_howmuch(NEVER_BYTES)
            // Whether a message is sent again the relay decides.
            .retry_times_when_send_failed(0);
        if let Some(signature) = self.client.signature() {
            builder = builder.rpc_hook(signature);
        }
        let mut producer = builder.build();
        producer.start().await?;
        let _ = tokio::time::timeout(END_MAX, self.make_topics(&mut producer)).await;
        Ok(known.insert(Arc::new(producer)).clone())
    }

    /// A topic that nobody has sent to yet is made, so that who reads it need not look for it. Where
    /// clients may not make topics, an operator has made them.
    async fn make_topics(&self, producer: &mut DefaultMQProducer) {
        let options = &self.client.options;
        for topic in [&options.topic, &options.unpaid_topic] {
            let known = producer.fetch_publish_message_queues(topic).await;
            if known.is_ok_and(|queues| !queues.is_empty()) {
                continue;
            }
            let queues = i32::try_from(QUEUES).unwrap_or(i32::MAX);
            let made = producer.create_topic(LIKE, topic, queues, HashMap::new()).await;
            if let Err(error) = made {
                tracing::debug!(topic, error = said(error), "a topic of RocketMQ cannot be made");
            }
        }
    }

    /// Begins, if nobody has begun yet.
    pub(super) async fn begin(&self) -> Result<(), ClientError> {
        self.producer().await.map(drop)
    }

    fn answer_ms(&self) -> u32 {
        u32::try_from(self.client.options.answer_ms_max).unwrap_or(u32::MAX)
    }

    /// In batches, one after the other; several callers at once make several at a time.
    pub(super) async fn publish(&self, messages: &[Message]) -> Vec<Published> {
        let topic = &self.client.options.topic;
        let mut answers = Vec::with_capacity(messages.len());
        for batch in batches(messages) {
            let sent = batch.iter().map(|message| sent(topic, &message.key, &message.body));
            let answer = match batch {
                [one] if one.body.len() > MESSAGE_BYTES_MAX => {
                    Published::Refused(format!("a message of {} bytes", one.body.len()))
                }
                _ => self.send(sent.collect()).await,
            };
            match answer {
                // Which of them it is about is not said.
                Published::Refused(_) if batch.len() > 1 => {
                    for message in batch {
                        let one = sent_alone(topic, message);
                        answers.push(self.send(vec![one]).await);
                    }
                }
                answer => answers.extend(vec![answer; batch.len()]),
            }
        }
        answers
    }

    /// To come back after the pause of its step on RocketMQ's ladder; past the last one the broker puts it
    /// into the dead-letter queue.
    pub(super) async fn send_later(
        &self,
        retry_topic: &str,
        key: &str,
        body: &[u8],
        tries: i32,
    ) -> Published {
        let mut message = sent(retry_topic, key, body);
        let level = FIRST_LEVEL + tries.clamp(0, TRIES_MAX - 1);
        message.set_delay_time_level(level);
        MessageAccessor::set_reconsume_time(&mut message, (tries + 1).to_string().into());
        MessageAccessor::set_max_reconsume_times(&mut message, TRIES_MAX.to_string().into());
        self.send_one(message).await
    }

    /// To be delivered at a time.
    pub(super) async fn send_at(
        &self,
        topic: &str,
        key: &str,
        body: &[u8],
        at_ms: u64,
    ) -> Published {
        let mut message = sent(topic, key, body);
        message.set_deliver_time_ms(at_ms);
        self.send_one(message).await
    }

    async fn send(&self, mut messages: Vec<Sent>) -> Published {
        if messages.len() == 1
            && let Some(message) = messages.pop()
        {
            return self.send_one(message).await;
        }
        let limit = u64::from(self.answer_ms());
        let sending = async {
            let producer = self.producer().await?;
            producer.send_batch_with_timeout(messages, limit).await.map(Some)
        };
        self.answer(sending).await
    }

    async fn send_one(&self, message: Sent) -> Published {
        let limit = u64::from(self.answer_ms());
        let sending = async {
            let producer = self.producer().await?;
            producer.send_with_timeout(message, limit).await
        };
        self.answer(sending).await
    }

    async fn answer(
        &self,
        sending: impl Future<Output = Result<Option<SendResult>, ClientError>>,
    ) -> Published {
        let limit = Duration::from_millis(self.client.options.answer_ms_max) + GRACE;
        match tokio::time::timeout(limit, sending).await {
            Ok(Ok(Some(result))) => published(result.send_status),
            Ok(Ok(None)) => Published::Unknown("the client says nothing of it".into()),
            Ok(Err(error)) if error.broker_response_code() == Some(MESSAGE_ILLEGAL) => {
                Published::Refused(said(error))
            }
            Ok(Err(error)) => Published::Unknown(said(error)),
            Err(_) => Published::Unknown("no answer in time".into()),
        }
    }

    pub(super) async fn stop(&self) {
        let known = self.producer.lock().await.take();
        // One that somebody still sends with ends with the client's threads.
        let Some(mut producer) = known.and_then(|known| Arc::try_unwrap(known).ok()) else {
            return;
        };
        let _ = tokio::time::timeout(END_MAX, producer.shutdown()).await;
    }
}

/// A broker that has no replica at this moment has the message on its own disk: to send it again and
/// again would only fill that. What was not flushed or copied in time may be lost with the broker.
fn published(status: SendStatus) -> Published {
    match status {
        SendStatus::SendOk => Published::Done,
        SendStatus::SlaveNotAvailable => {
            tracing::debug!("RocketMQ's broker has no replica at this moment");
            Published::Done
        }
        SendStatus::FlushDiskTimeout => {
            Published::Unknown("not on the broker's disk in time".into())
        }
        SendStatus::FlushSlaveTimeout => Published::Unknown("not at the replica in time".into()),
    }
}

fn sent(topic: &str, key: &str, body: &[u8]) -> Sent {
    Sent::builder().topic(topic).key(key).body_slice(body).build_unchecked()
}

fn sent_alone(topic: &str, message: &Message) -> Sent {
    sent(topic, &message.key, &message.body)
}

/// As many messages at once as one call may have.
fn batches(messages: &[Message]) -> impl Iterator<Item = &[Message]> {
    let mut rest = messages;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |message: &&Message| {
            bytes += message.body.len();
            bytes <= BATCH_BYTES_MAX
        };
        let fitting = rest.iter().take(BATCH_MESSAGES_MAX).take_while(fits).count();
        let (batch, left) = rest.split_at(fitting.max(1).min(rest.len()));
        rest = left;
        (!batch.is_empty()).then_some(batch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: usize) -> Message {
        Message { key: "SK1".into(), body: vec![b'x'; bytes], made_ms: 0 }
    }

    #[test]
    fn a_call_has_so_many_messages_and_bytes_and_at_least_one() {
        let messages: Vec<Message> =
            [BATCH_BYTES_MAX / 2, BATCH_BYTES_MAX / 2, 1, 2 * BATCH_BYTES_MAX].map(message).into();
        let sizes: Vec<usize> = batches(&messages).map(<[Message]>::len).collect();
        assert_eq!(sizes, [2, 1, 1]);
        let many: Vec<Message> = (0..BATCH_MESSAGES_MAX + 1).map(|_| message(1)).collect();
        assert_eq!(batches(&many).count(), 2);
        assert_eq!(batches(&[]).count(), 0);
    }

    #[test]
    fn what_may_not_be_on_a_disk_yet_is_unknown() {
        assert_eq!(published(SendStatus::SendOk), Published::Done);
        for status in [SendStatus::FlushDiskTimeout, SendStatus::FlushSlaveTimeout] {
            assert!(matches!(published(status), Published::Unknown(_)));
        }
    }
}

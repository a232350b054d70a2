//! Reading messages that are long done, for those who look back. It joins no group and stores nothing.

use std::time::{Duration, Instant};

use rdkafka::{
    ClientConfig, Message, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};
use sale::Millis;

use super::{ASK_MAX, Quiet, partitions};
use crate::broker::{BackMessages, BackPlace, KafkaOptions};

/// What one page has at most.
const PAGE_MESSAGES: usize = 128;
const PAGE_BYTES_MAX: usize = 4 << 20;
/// How long one page may take to come.
const PAGE_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);
/// A message is stamped by the clock of whoever published it, its claims by the gate's.
const CLOCKS_DIFFER_MS_MAX: Millis = 60_000;

pub(super) struct Back {
    config: ClientConfig,
    topic: String,
    /// Made when somebody first looks back.
    consumer: Option<BaseConsumer<Quiet>>,
}

impl Back {
    pub(super) fn new(config: &ClientConfig, options: &KafkaOptions) -> Back {
        let mut config = config.clone();
        config
            // It must have a name, and uses it for nothing.
            .set("group.id", format!("{}-looking-back", options.group))
            .set("session.timeout.ms", options.session_ms.to_string())
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            .set("fetch.wait.max.ms", "50")
            .set("queued.max.messages.kbytes", "4096");
        Back { config, topic: options.topic.clone(), consumer: None }
    }

    pub(super) fn page(
        &mut self,
        asking: &BaseConsumer<Quiet>,
        since_ms: Millis,
        from: Option<BackPlace>,
    ) -> KafkaResult<BackMessages> {
        let mut queues = partitions(asking, &self.topic)?;
        queues.sort_unstable();
        let first = from.map_or(0, |place| i32::try_from(place.queue).unwrap_or(i32::MAX));
        for (n, queue) in queues.iter().enumerate().filter(|(_, queue)| **queue >= first) {
            let (begin, end) = asking.fetch_watermarks(&self.topic, *queue, ASK_MAX)?;
            let start = match from.filter(|_| *queue == first) {
                Some(place) => i64::try_from(place.offset).unwrap_or(i64::MAX),
                None => self.offset_at(asking, *queue, since_ms, end)?,
            };
            let start = start.max(begin);
            if start >= end {
                continue;
            }
            let read = self.read(*queue, start, end);
            if read.is_err() {
                // The next one begins with a client that has nothing left of this.
                self.consumer = None;
            }
            let (bodies, next) = read?;
            let place = |queue: i32, offset: i64| BackPlace {
                queue: u32::try_from(queue).unwrap_or(0),
                offset: u64::try_from(offset).unwrap_or(0),
            };
            let next = match next {
                Some(offset) => Some(place(*queue, offset)),
                // From where its own time begins, which a place cannot say: from its first message.
                None => match queues.get(n + 1) {
                    Some(queue) => {
                        let (_, end) = asking.fetch_watermarks(&self.topic, *queue, ASK_MAX)?;
                        Some(place(*queue, self.offset_at(asking, *queue, since_ms, end)?))
                    }
                    None => None,
                },
            };
            if next.is_none() {
                self.consumer = None;
            }
            return Ok(BackMessages { bodies, next });
        }
        // Nobody reads on: no connection is kept for it.
        self.consumer = None;
        Ok(BackMessages::default())
    }

    /// The first message that may hold claims since then.
    fn offset_at(
        &self,
        asking: &BaseConsumer<Quiet>,
        queue: i32,
        since_ms: Millis,
        end: i64,
    ) -> KafkaResult<i64> {
        let since_ms = since_ms.saturating_sub(CLOCKS_DIFFER_MS_MAX).max(0);
        let mut times = TopicPartitionList::new();
        times.add_partition_offset(&self.topic, queue, Offset::Offset(since_ms))?;
        let found = asking.offsets_for_times(times, ASK_MAX)?;
        let found = found.find_partition(&self.topic, queue);
        let raw = found.and_then(|element| element.offset().to_raw());
        // None so late.
        Ok(raw.filter(|raw| *raw >= 0).unwrap_or(end))
    }

    /// Messages from this one on, and where the next page begins, if there is one before `end`.
    fn read(
        &mut self,
        queue: i32,
        start: i64,
        end: i64,
    ) -> KafkaResult<(Vec<Vec<u8>>, Option<i64>)> {
        if self.consumer.is_none() {
            self.consumer = Some(self.config.create_with_context(Quiet)?);
        }
        let consumer = self.consumer.as_ref().expect("made above");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, queue, Offset::Offset(start))?;
        consumer.assign(&list)?;
        let begun = Instant::now();
        let (mut bodies, mut bytes, mut next) = (Vec::new(), 0, start);
        while next < end && bodies.len() < PAGE_MESSAGES && bytes < PAGE_BYTES_MAX {
            if begun.elapsed() > PAGE_MAX {
                return Err(KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut));
            }
            match consumer.poll(POLL) {
                // Of an earlier page of this client.
                Some(Ok(message)) if message.partition() != queue || message.offset() < next => {}
                Some(Ok(message)) => {
                    let body = message.payload().unwrap_or_default();
                    bytes += body.len();
                    bodies.push(body.to_vec());
                    next = message.offset() + 1;
                }
                Some(Err(KafkaError::PartitionEOF(at))) if at == queue && next > start => break,
                Some(Err(error)) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) => {
                    return Err(error);
                }
                // What passes is asked again until the time is over.
                Some(Err(_)) | None => {}
            }
        }
        consumer.unassign()?;
        Ok((bodies, (next < end).then_some(next)))
    }
}

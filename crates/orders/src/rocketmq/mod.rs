//! RocketMQ as the way from the relay to the workers, and as what reminds of unpaid orders.
//!
//! **Writing** ([`writer`]). A batch of messages is one call, to the queues in turn, several calls at a
//! time: one call per message is bounded by the disk of a broker that flushes before it answers. What
//! the broker says it has not flushed or copied in time is *unknown*, and the relay gives it to us
//! again.
//!
//! **Spreading.** The queue is the next one, whatever the item, so one hot item fills all queues. The
//! key of a message is its first order number, by which it is found in RocketMQ's own tools.
//!
//! **Reading** ([`reader`]). A place in a queue is committed when everything before it is in the ledger.
//! A worker whose ledger is away for hours reads nothing meanwhile and keeps its queues: RocketMQ takes
//! queues from clients that send no heartbeat, and from no others.
//!
//! **Two ladders, of which a claim climbs one.** A claim that fails for a reason of its own is noted in
//! the ledger from its first failure on, where it is seen, keeps its units and climbs the ladder of
//! `[orders]`; its message is done. A message that can be neither settled nor noted climbs RocketMQ's
//! ladder, which has the same steps: it is sent to `%RETRY%group` with the pause of its step
//! ([`later`](Broker::later)). After the sixteenth the broker puts it into `%DLQ%group`. That queue is
//! drained by the workers like any other ([`DeadLetterQueue`]): what still fails then has had its
//! tries, and becomes a dead letter of ours at once.
//!
//! **Reminders** ([`checks`]). Orders of one deadline are one message, which the broker delivers when
//! their time to pay is over.
//!
//! **The client** has threads of its own ([`client`]) and never panics into ours: all of it is behind
//! channels, and every wait for it has an end.

mod back;
mod checks;
mod client;
mod places;
mod reader;
mod settings;
mod writer;

use std::sync::Arc;

use async_trait::async_trait;
use sale::Millis;

use self::{back::Back, checks::Checks, client::Client, reader::Reader, writer::Writer};
use crate::broker::{
    BackMessages, BackPlace, Broker, BrokerError, BrokerFinding, DeadLetterQueue, DelayedChecks,
    Delivery, Message, Published, QueueState, Receipt, RocketmqOptions,
};

const NAME: &str = "rocketmq";

pub(crate) struct RocketmqBroker {
    client: Arc<Client>,
    writer: Writer,
    reader: Arc<Reader>,
    dead: Dead,
    checks: Checks,
    back: Back,
}

/// Messages that RocketMQ has given up on.
struct Dead {
    reader: Arc<Reader>,
}

impl RocketmqBroker {
    /// Starts the client's threads. Nobody is connected to yet.
    pub(crate) fn open(options: &RocketmqOptions) -> Result<RocketmqBroker, String> {
        let client = Arc::new(Client::open(options)?);
        let group = &options.group;
        let claims = [options.topic.clone(), client::retry_topic(group)];
        let dead = [client::dead_letter_topic(group)];
        let writer = Writer::new(&client);
        let reader = Reader::new(&client, &writer, group.clone(), claims.into());
        let dead = Reader::new(&client, &writer, format!("{group}-dead"), dead.into());
        Ok(RocketmqBroker {
            checks: Checks::new(&client, &writer),
            writer,
            reader,
            dead: Dead { reader: dead },
            back: Back::new(&client),
            client,
        })
    }
}

#[async_trait]
impl Broker for RocketmqBroker {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Published> {
        self.writer.publish(messages).await
    }

    async fn receive(&self) -> Result<Vec<Delivery>, BrokerError> {
        let read = self.reader.receive().await?;
        Ok(read.into_iter().map(|(receipt, body)| Delivery { receipt, body }).collect())
    }

    fn confirm(&self, done: &[Receipt]) {
        self.reader.confirm(done);
    }

    fn later(&self, undone: &[Receipt]) {
        self.reader.later(undone);
    }

    async fn queues(&self) -> Result<Vec<QueueState>, BrokerError> {
        self.client.queues().await
    }

    async fn read_back(
        &self,
        since_ms: Millis,
        from: Option<BackPlace>,
    ) -> Result<BackMessages, BrokerError> {
        self.back.page(since_ms, from).await
    }

    fn delayed_checks(&self) -> Option<&dyn DelayedChecks> {
        Some(&self.checks)
    }

    fn dead_letters(&self) -> Option<&dyn DeadLetterQueue> {
        Some(&self.dead)
    }

    async fn findings(&self) -> Vec<BrokerFinding> {
        settings::findings(&self.client).await
    }

    async fn stop(&self) {
        tokio::join!(self.reader.stop(), self.dead.reader.stop(), self.checks.stop());
        tokio::join!(self.writer.stop(), self.back.stop());
        self.client.stop().await;
    }
}

#[async_trait]
impl DeadLetterQueue for Dead {
    async fn receive(&self) -> Result<Vec<Delivery>, BrokerError> {
        let read = self.reader.receive().await?;
        Ok(read.into_iter().map(|(receipt, body)| Delivery { receipt, body }).collect())
    }

    fn confirm(&self, done: &[Receipt]) {
        self.reader.confirm(done);
    }
}

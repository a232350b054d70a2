//! Tells buyers that their orders changed. A hint that says *look again*: what gets lost of it costs a
//! poll, so that nothing waits for it.

use std::sync::Arc;

use async_trait::async_trait;
use ledger::{OutboxKind, OutboxMessage};

use super::{
    Job, JobResult,
    delivery::{Courier, Delivery, Undelivered},
};
use crate::{Push, push::OrderEvent, shared::Shared};

/// The party of all news: they are told to whoever listens.
const BUYERS: &str = "buyers";
/// Orders that are told of at once.
const ORDERS_AT_ONCE_MAX: usize = 1_000;

pub(crate) struct News(Courier<Telling>);

impl News {
    pub(super) fn new(shared: &Arc<Shared>, push: Arc<Push>) -> News {
        let wake = shared.wake.news.clone();
        News(Courier::new(shared.clone(), OutboxKind::News, Telling { push }, wake))
    }

    pub(super) async fn stop(&self) {
        self.0.stop().await;
    }
}

#[async_trait]
impl Job for News {
    async fn run(&self) -> JobResult {
        self.0.run().await
    }
}

struct Telling {
    push: Arc<Push>,
}

impl Telling {
    async fn tell(&self, messages: &[OutboxMessage]) {
        let orders = messages.iter().filter_map(|message| match message {
            OutboxMessage::OrderEvents { orders } => Some(orders),
            _ => None,
        });
        let orders: Vec<OrderEvent> = orders.flatten().cloned().collect();
        for orders in orders.chunks(ORDERS_AT_ONCE_MAX) {
            self.push.tell_all(orders).await;
        }
    }
}

#[async_trait]
impl Delivery for Telling {
    fn party(&self, _: &OutboxMessage) -> String {
        BUYERS.to_owned()
    }

    async fn deliver(&self, messages: &[OutboxMessage]) -> Vec<Result<(), Undelivered>> {
        self.tell(messages).await;
        messages.iter().map(|_| Ok(())).collect()
    }
}

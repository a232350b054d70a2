//! Reminders of unpaid orders: one message for the orders of one batch, which have one deadline,
//! delivered by the broker when it is over.
//!
//! A reminder only says where to look: whether the order is unpaid and its time is over the ledger
//! decides, so nothing in it need be believed. One that is lost, or that a broker will not keep for so
//! long (three days unless told otherwise), does no harm: what is due is found by its index as well.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use sale::{Millis, OrderNo};
use serde::{Deserialize, Serialize};

use super::{client::Client, reader::Reader, writer::Writer};
use crate::broker::{BrokerError, DelayedCheck, DelayedChecks, Published, Receipt};

/// Orders of one message.
const ORDERS_MAX: usize = 1_000;
/// An order is due when the ledger's clock and ours say so, and the broker has its own.
const MARGIN_MS: Millis = 500;

pub(super) struct Checks {
    topic: String,
    writer: Writer,
    reader: Arc<Reader>,
}

#[derive(Serialize, Deserialize)]
struct Reminder {
    due_ms: Millis,
    orders: Vec<OrderNo>,
}

impl Checks {
    pub(super) fn new(client: &Arc<Client>, writer: &Writer) -> Checks {
        let options = &client.options;
        let (topic, group) = (options.unpaid_topic.clone(), format!("{}-unpaid", options.group));
        let reader = Reader::new(client, writer, group, vec![topic.clone()]);
        Checks { writer: writer.clone(), reader, topic }
    }

    pub(super) async fn stop(&self) {
        self.reader.stop().await;
    }
}

#[async_trait]
impl DelayedChecks for Checks {
    async fn plan(&self, checks: &[DelayedCheck]) -> Vec<Published> {
        let mut by_deadline: BTreeMap<Millis, Vec<OrderNo>> = BTreeMap::new();
        for check in checks {
            by_deadline.entry(check.due_ms).or_default().push(check.order_no);
        }
        let mut answers = BTreeMap::new();
        for (due_ms, numbers) in by_deadline {
            for orders in numbers.chunks(ORDERS_MAX) {
                let reminder = Reminder { due_ms, orders: orders.to_vec() };
                let body = serde_json::to_vec(&reminder).expect("plain fields");
                let at_ms = u64::try_from(due_ms.saturating_add(MARGIN_MS)).unwrap_or(0);
                let key = orders[0].to_string();
                let answer = self.writer.send_at(&self.topic, &key, &body, at_ms).await;
                answers.extend(orders.iter().map(|no| (*no, answer.clone())));
            }
        }
        let answer = |check: &DelayedCheck| answers.get(&check.order_no).cloned();
        let unknown = || Published::Unknown("it was not sent".into());
        checks.iter().map(|check| answer(check).unwrap_or_else(unknown)).collect()
    }

    async fn due(&self) -> Result<Vec<(Receipt, DelayedCheck)>, BrokerError> {
        loop {
            let mut due = Vec::new();
            for (receipt, body) in self.reader.receive().await? {
                match serde_json::from_slice::<Reminder>(&body) {
                    Ok(Reminder { due_ms, mut orders }) if !orders.is_empty() => {
                        orders.truncate(ORDERS_MAX);
                        let check = |order_no| (receipt, DelayedCheck { order_no, due_ms });
                        due.extend(orders.into_iter().map(check));
                    }
                    _ => {
                        tracing::warn!(
                            topic = self.topic,
                            "a message is no reminder and is passed by"
                        );
                        self.reader.confirm(&[receipt]);
                    }
                }
            }
            if !due.is_empty() {
                return Ok(due);
            }
        }
    }

    fn confirm(&self, done: &[Receipt]) {
        self.reader.confirm(done);
    }
}

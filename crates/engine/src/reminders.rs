//! Reminders of unpaid orders, where a message broker can deliver a message at a given time.
//!
//! When a batch of claims has become orders, their deadline is read once (one transaction, one item:
//! one deadline) and the broker is asked to deliver a message at that time; [`Timeout`](crate::jobs)
//! hears it and closes what is unpaid then. All of it may be lost: what is due is found by its index as
//! well, and workers never wait for it.

use std::{sync::Arc, time::Duration};

use ledger::{Ledger, Share, in_share};
use orders::broker::{Broker, DelayedCheck, Published, reminders_planned};
use sale::OrderNo;
use tokio::sync::mpsc;

/// Batches of orders that wait for their reminders. Beyond it the index finds them.
const BATCHES_MAX: usize = 1_000;
/// Batches whose deadlines are read at once.
const READ_MAX: usize = 64;
/// One that is not sent in so many tries is left to the index.
const TRIES_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Reminders {
    batches: mpsc::Sender<Vec<OrderNo>>,
}

impl Reminders {
    /// `None` if the broker cannot deliver at a given time. Ends when it is dropped.
    pub(crate) fn start(broker: &Arc<dyn Broker>, ledger: &Arc<dyn Ledger>) -> Option<Reminders> {
        broker.delayed_checks()?;
        let (batches, waiting) = mpsc::channel(BATCHES_MAX);
        let planner = Planner { broker: broker.clone(), ledger: ledger.clone() };
        tokio::spawn(planner.run(waiting));
        Some(Reminders { batches })
    }

    /// These are orders now, made in one transaction.
    pub(crate) fn created(&self, orders: &[OrderNo]) {
        if !orders.is_empty() && self.batches.try_send(orders.to_vec()).is_err() {
            reminders_planned(0, orders.len());
        }
    }
}

struct Planner {
    broker: Arc<dyn Broker>,
    ledger: Arc<dyn Ledger>,
}

impl Planner {
    async fn run(self, mut waiting: mpsc::Receiver<Vec<OrderNo>>) {
        let mut batches = Vec::new();
        while waiting.recv_many(&mut batches, READ_MAX).await > 0 {
            self.plan(std::mem::take(&mut batches)).await;
        }
    }

    async fn plan(&self, batches: Vec<Vec<OrderNo>>) {
        let Some(checks) = self.broker.delayed_checks() else { return };
        let all = batches.iter().map(Vec::len).sum::<usize>();
        let mut left = self.deadlines(batches).await;
        let mut sent = 0;
        for tries in 0..TRIES_MAX {
            if left.is_empty() {
                break;
            }
            if tries > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let answers = checks.plan(&left).await;
            let before = left.len();
            let unknown = |answer: &Published| matches!(answer, Published::Unknown(_));
            let refused = answers.iter().filter(|answer| matches!(answer, Published::Refused(_)));
            let refused = refused.count();
            let mut answers = answers.iter();
            left.retain(|_| answers.next().is_some_and(unknown));
            sent += before - left.len() - refused;
        }
        reminders_planned(sent, all - sent);
    }

    async fn deadlines(&self, batches: Vec<Vec<OrderNo>>) -> Vec<DelayedCheck> {
        let first: Vec<OrderNo> =
            batches.iter().filter_map(|batch| batch.first().copied()).collect();
        let read = in_share(Share::Worker, self.ledger.orders_by_no(&first)).await;
        let orders = match read {
            Ok(orders) => orders,
            Err(error) => {
                tracing::debug!(%error, "deadlines of orders cannot be read: their index finds them");
                return Vec::new();
            }
        };
        let due_of = |batch: &Vec<OrderNo>| {
            let first = orders.iter().find(|order| batch.first() == Some(&order.order_no))?;
            Some(first.pay_deadline_ms)
        };
        let due = batches.iter().filter_map(|batch| Some((batch, due_of(batch)?)));
        due.flat_map(|(batch, due_ms)| {
            batch.iter().map(move |order_no| DelayedCheck { order_no: *order_no, due_ms })
        })
        .collect()
    }
}

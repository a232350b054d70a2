//! Reading orders for buyers who poll: those who ask at the same moment share one statement.
//!
//! While a crowd waits, everybody asks for their order every second or two. Nobody keeps a copy for them:
//! an answer is what the ledger said *after* the question was asked, so whoever paid at one instance is not
//! told `unpaid` at another, and no copies fill the memory that selling needs. What makes it cheap is that
//! while one statement is under way the next questions gather, and a few hundred numbers in one statement
//! cost the ledger little more than one.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use ledger::{Ledger, LedgerError};
use parking_lot::Mutex;
use sale::{Order, OrderNo};
use tokio::sync::{Semaphore, oneshot};

/// Orders in one statement.
const ORDERS_PER_READ_MAX: usize = 500;
/// Statements under way at one time. The second goes on while the first hangs.
const READS_AT_ONCE_MAX: usize = 2;
/// Questions that wait for their turn.
const WAITING_MAX: usize = 100_000;

type Answer = Result<Option<Order>, LedgerError>;

struct Question {
    no: OrderNo,
    asker: oneshot::Sender<Answer>,
}

pub(crate) struct OrderReads {
    ledger: Arc<dyn Ledger>,
    waiting: Mutex<VecDeque<Question>>,
    turns: Semaphore,
}

impl OrderReads {
    pub(crate) fn new(ledger: Arc<dyn Ledger>) -> Arc<OrderReads> {
        let turns = Semaphore::new(READS_AT_ONCE_MAX);
        Arc::new(OrderReads { ledger, waiting: Mutex::default(), turns })
    }

    /// As it is in the ledger now. Dropping the future forgets the question.
    pub(crate) async fn order(self: &Arc<Self>, no: OrderNo) -> Answer {
        let (asker, answer) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            if waiting.len() >= WAITING_MAX {
                return Err(LedgerError::Unavailable("too many orders are asked for".into()));
            }
            waiting.push_back(Question { no, asker });
        }
        if self.turns.available_permits() > 0 {
            tokio::spawn(self.clone().read_all());
        }
        let cut_off = |_| Err(LedgerError::Unavailable("the reading was cut off".into()));
        answer.await.unwrap_or_else(cut_off)
    }

    /// Reads until nobody waits. A question that comes between the last batch and the end of the turn
    /// finds no free turn, so it is looked for once more.
    async fn read_all(self: Arc<Self>) {
        loop {
            let Ok(turn) = self.turns.try_acquire() else { return };
            let questions = self.next_questions();
            if questions.is_empty() {
                drop(turn);
                if self.waiting.lock().is_empty() {
                    return;
                }
            } else {
                self.read(questions).await;
            }
        }
    }

    /// Of those who still want to know.
    fn next_questions(&self) -> Vec<Question> {
        let mut waiting = self.waiting.lock();
        let mut questions = Vec::new();
        while questions.len() < ORDERS_PER_READ_MAX {
            let Some(question) = waiting.pop_front() else { break };
            if !question.asker.is_closed() {
                questions.push(question);
            }
        }
        questions
    }

    async fn read(&self, questions: Vec<Question>) {
        let numbers: Vec<OrderNo> = questions.iter().map(|question| question.no).collect();
        let read = self.ledger.orders_by_no(&numbers).await;
        let found = read.map(|orders| {
            orders.into_iter().map(|order| (order.order_no, order)).collect::<HashMap<_, _>>()
        });
        for Question { no, asker } in questions {
            let answer = match &found {
                Ok(orders) => Ok(orders.get(&no).cloned()),
                Err(error) => Err(same(error)),
            };
            // Whoever left does not want to know any more.
            let _ = asker.send(answer);
        }
    }
}

/// One failure for everybody who asked.
fn same(error: &LedgerError) -> LedgerError {
    match error {
        LedgerError::Unavailable(why) => LedgerError::Unavailable(why.clone()),
        LedgerError::Broken(why) => LedgerError::Broken(why.clone()),
        other => LedgerError::Broken(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_engine::TestEngine;

    #[tokio::test]
    async fn those_who_ask_at_the_same_moment_share_a_statement() {
        const ASKING: usize = ORDERS_PER_READ_MAX + 100;
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let bought = shop.buy(activity.items[0].id, "ann").await;
        let shared = &shop.engine.shared;
        let reads = OrderReads::new(shared.ledger.clone());
        let held = reads.turns.acquire_many(READS_AT_ONCE_MAX as u32).await.unwrap();
        let ask = |no| {
            tokio::spawn({
                let reads = reads.clone();
                async move { reads.order(no).await }
            })
        };
        let unknown = (1..ASKING).map(|_| ask(shared.numbers.next()));
        let unknown: Vec<_> = unknown.collect();
        let known = ask(bought);
        while reads.waiting.lock().len() < ASKING {
            tokio::task::yield_now().await;
        }
        drop(held);
        unknown[0].abort();
        while !unknown[0].is_finished() {
            tokio::task::yield_now().await;
        }
        let questions = reads.next_questions();
        assert_eq!(questions.len(), ORDERS_PER_READ_MAX, "whoever left is not asked for");
        reads.read(questions).await;
        assert_eq!(reads.waiting.lock().len(), ASKING - ORDERS_PER_READ_MAX - 1);
        // Whoever asks next finds a free turn, and reads for all who wait.
        assert!(reads.order(shared.numbers.next()).await.unwrap().is_none());
        assert_eq!(known.await.unwrap().unwrap().unwrap().order_no, bought);
        for answer in unknown.into_iter().skip(1) {
            assert!(answer.await.unwrap().unwrap().is_none());
        }
    }
}

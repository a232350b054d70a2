//! Questions that come one by one and are asked together: while one batch is under way the next gathers.
//!
//! There is no timer: whoever asks alone is asked for at once. An answer is from after its question was
//! asked, for a question never joins a batch that has left.

use std::{collections::VecDeque, sync::Arc};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

/// How many may be asked, at one time and in all.
#[derive(Clone, Copy, Debug)]
pub struct GatheredLimits {
    /// Questions in one batch.
    pub batch_max: usize,
    /// Batches under way at one time: a second goes on while the first hangs.
    pub at_once_max: usize,
    /// Questions that wait for their batch.
    pub waiting_max: usize,
}

/// Answers a batch: one answer for each question, in their order.
type AskTogether<Q, A> = dyn Fn(Vec<Q>) -> BoxFuture<'static, Vec<A>> + Send + Sync;

pub struct Gathered<Q, A> {
    limits: GatheredLimits,
    together: Box<AskTogether<Q, A>>,
    waiting: Mutex<VecDeque<(Q, oneshot::Sender<A>)>>,
    turns: Semaphore,
}

impl<Q: Send + 'static, A: Send + 'static> Gathered<Q, A> {
    pub fn new(
        limits: GatheredLimits,
        together: impl Fn(Vec<Q>) -> BoxFuture<'static, Vec<A>> + Send + Sync + 'static,
    ) -> Arc<Gathered<Q, A>> {
        let turns = Semaphore::new(limits.at_once_max);
        let together = Box::new(together);
        Arc::new(Gathered { limits, together, waiting: Mutex::default(), turns })
    }

    /// `None` if too many wait, or the batch was cut off. Dropping the future forgets the question.
    pub async fn ask(self: &Arc<Self>, question: Q) -> Option<A> {
        let (asker, answer) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            if waiting.len() >= self.limits.waiting_max {
                return None;
            }
            waiting.push_back((question, asker));
        }
        if self.turns.available_permits() > 0 {
            tokio::spawn(self.clone().ask_all());
        }
        answer.await.ok()
    }

    /// Asks until nobody waits. A question that comes between the last batch and the end of the turn
    /// finds no free turn, so it is looked for once more.
    async fn ask_all(self: Arc<Self>) {
        loop {
            let Ok(turn) = self.turns.try_acquire() else { return };
            let (questions, askers) = self.next_batch();
            if questions.is_empty() {
                drop(turn);
                if self.waiting.lock().is_empty() {
                    return;
                }
                continue;
            }
            for (asker, answer) in askers.into_iter().zip((self.together)(questions).await) {
                // Whoever left does not want to know any more.
                let _ = asker.send(answer);
            }
        }
    }

    /// Of those who still want to know.
    fn next_batch(&self) -> (Vec<Q>, Vec<oneshot::Sender<A>>) {
        let mut waiting = self.waiting.lock();
        let (mut questions, mut askers) = (Vec::new(), Vec::new());
        while questions.len() < self.limits.batch_max {
            let Some((question, asker)) = waiting.pop_front() else { break };
            if !asker.is_closed() {
                questions.push(question);
                askers.push(asker);
            }
        }
        (questions, askers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn those_who_ask_at_the_same_moment_are_asked_for_together() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let limits = GatheredLimits { batch_max: 500, at_once_max: 2, waiting_max: 600 };
        let noted = sizes.clone();
        let gathered = Gathered::new(limits, move |questions: Vec<usize>| {
            noted.lock().push(questions.len());
            Box::pin(async move { questions.into_iter().map(|n| 2 * n).collect() })
        });
        let ask = |n| {
            let gathered = gathered.clone();
            tokio::spawn(async move { gathered.ask(n).await })
        };
        let held = gathered.turns.acquire_many(2).await.unwrap();
        let mut asked: Vec<_> = (0..600).map(ask).collect();
        while gathered.waiting.lock().len() < 600 {
            tokio::task::yield_now().await;
        }
        assert_eq!(gathered.ask(600).await, None, "too many wait");
        drop(held);
        let left = asked.remove(0);
        left.abort();
        assert!(left.await.is_err());
        // The next one finds a free turn, and asks for all who wait.
        gathered.waiting.lock().pop_back();
        assert!(asked.pop().is_some_and(|cut_off| !cut_off.is_finished()));
        assert_eq!(gathered.ask(1_000).await, Some(2_000));
        for (n, answer) in (1..).zip(asked) {
            assert_eq!(answer.await.unwrap(), Some(2 * n));
        }
        assert_eq!(sizes.lock()[..], [500, 99], "whoever left is not asked for");
    }
}

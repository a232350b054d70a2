//! Lanes: the bounded queues in front of the gate, and what turns a crowd into batches.
//!
//! A lane holds at most `queue_max` waiting claims; one more is told *too hot* at once, which is the
//! whole of our traffic shaping. One thread drains each lane: it takes all that waits (at most
//! `batch_max`), passes it to the gate, answers, and takes what gathered meanwhile. A lone claim
//! leaves at once; a crowd makes its own batches while the gate is writing, and a moment longer: what
//! a batch costs (the write, the wake-ups) is the same for few and for many.
//!
//! The thread is the lane's own because the solo gate writes to disk on it; a gate that does not
//! block gets a task instead. Either way a
//! buyer who hangs up changes nothing: the request future is gone, the claim is decided all the
//! same, and asking again with the same key gives the same answer.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use parking_lot::Mutex;
use sale::{Claim, ItemId, OrderNumbers, UserId};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};

use crate::{Admission, Busy, Changed, ClaimRequest, Decision, SoldOut, spent_on::SpentOn};

/// The settings of the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneOptions {
    /// Claims that may wait in one lane.
    pub queue_max: usize,
    /// Claims that go to the gate in one step.
    pub batch_max: usize,
}

impl Default for LaneOptions {
    fn default() -> Self {
        LaneOptions { queue_max: 20_000, batch_max: 256 }
    }
}

/// After a batch of at least so many claims there is a crowd, and the next one may gather for a
/// moment. Measured with 256 connections: a few per cent more claims per second.
const GATHER_FROM: usize = 8;
const GATHER: Duration = Duration::from_micros(100);

/// Says whether order numbers may be handed out: where the node they are made of is leased, only
/// while the lease surely holds.
pub type MayNumber = Arc<dyn Fn() -> bool + Send + Sync>;

/// Hears of every claim that is admitted for the first time, and of how many are on the log before it. It is
/// called on the lane's way to the next batch, so it must not wait for anything.
pub type HearAdmitted = Arc<dyn Fn(&Claim, u64) + Send + Sync>;

/// A claim in a lane; resolves to its decision.
#[derive(Debug)]
pub struct PendingDecision(oneshot::Receiver<Decision>);

impl Future for PendingDecision {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        // A lane that is gone decided nothing.
        self.0.poll_unpin(cx).map(|decision| decision.unwrap_or(Decision::Busy(Busy::Unwritable)))
    }
}

/// A request in a lane, and where its buyer waits for the decision.
struct Queued {
    request: ClaimRequest,
    answer: oneshot::Sender<Decision>,
}

/// All lanes of one process, and the sold-out cache in front of them.
pub struct Lanes {
    gate: Arc<dyn Admission>,
    sold_out: Arc<SoldOut>,
    spent_on: Arc<SpentOn>,
    lanes: Vec<mpsc::Sender<Queued>>,
    stop: watch::Sender<bool>,
    running: Mutex<Vec<Running>>,
}

enum Running {
    Thread(std::thread::JoinHandle<()>),
    Task(tokio::task::JoinHandle<()>),
}

impl Running {
    fn is_running(&self) -> bool {
        match self {
            Running::Thread(thread) => !thread.is_finished(),
            Running::Task(task) => !task.is_finished(),
        }
    }
}

impl Lanes {
    pub fn start(
        options: LaneOptions,
        sold_out_ms_max: u64,
        gate: Arc<dyn Admission>,
        numbers: Arc<OrderNumbers>,
        may_number: MayNumber,
        hear_admitted: HearAdmitted,
    ) -> std::io::Result<Lanes> {
        let sold_out = Arc::new(SoldOut::new(sold_out_ms_max));
        let spent_on = Arc::new(SpentOn::new());
        let (stop, stopping) = watch::channel(false);
        let mut lanes = Vec::new();
        let mut running = Vec::new();
        for partition in 0..gate.partitions() {
            let (sender, waiting) = mpsc::channel(options.queue_max);
            let lane = Lane {
                waiting,
                batch_max: options.batch_max,
                gate: gate.clone(),
                numbers: numbers.clone(),
                may_number: may_number.clone(),
                hear_admitted: hear_admitted.clone(),
                sold_out: sold_out.clone(),
                spent_on: spent_on.clone(),
                stopping: stopping.clone(),
            };
            running.push(if gate.blocks() {
                let runtime = tokio::runtime::Builder::new_current_thread().build()?;
                let name = format!("lane-{partition}");
                let thread = std::thread::Builder::new().name(name);
                Running::Thread(thread.spawn(move || runtime.block_on(lane.run()))?)
            } else {
                Running::Task(tokio::spawn(lane.run()))
            });
            lanes.push(sender);
        }
        Ok(Lanes { gate, sold_out, spent_on, lanes, stop, running: Mutex::new(running) })
    }

    /// One claim, from the door to the gate's decision.
    pub async fn claim(&self, request: ClaimRequest) -> Decision {
        match self.enter(request) {
            Ok(pending) => pending.await,
            Err(decision) => decision,
        }
    }

    /// The part of a claim that takes no time: a place in a lane, or the decision if it is
    /// known already.
    pub fn enter(&self, request: ClaimRequest) -> Result<PendingDecision, Decision> {
        let ClaimRequest { item, ref user, key, .. } = request;
        if let Some(order_no) = key.and_then(|key| self.spent_on.elsewhere(key, item)) {
            return Err(Decision::KeyReused { order_no });
        }
        if self.is_sold_out(item, user, key.is_some()) {
            return Err(Decision::SoldOut { left: 0, version: 0 });
        }
        let lane = &self.lanes[self.gate.partition_of(item, user)];
        let (answer, decision) = oneshot::channel();
        match lane.try_send(Queued { request, answer }) {
            Ok(()) => Ok(PendingDecision(decision)),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Decision::TooHot),
            // The lane is stopping, and nothing was decided.
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Decision::Busy(Busy::Unwritable)),
        }
    }

    /// A cached "no" that is the truth for this buyer.
    pub fn is_sold_out(&self, item: ItemId, user: &UserId, with_key: bool) -> bool {
        self.sold_out.says_no(item, Instant::now())
            && !self.gate.may_hold_mark(item, user, with_key)
    }

    /// The stock of an item changed at the gate: a cached "sold out" from before does not count.
    pub fn stock_changed(&self, change: Changed) {
        self.sold_out.clear(change.item, change.version);
    }

    /// The item was loaded anew or taken away.
    pub fn forget(&self, item: ItemId) {
        self.sold_out.forget(item);
    }

    /// Does every lane still drain? One that panicked does not come back, and the claims that belong
    /// to it are told *busy* until the process starts anew.
    pub fn are_running(&self) -> bool {
        let running = self.running.lock();
        !running.is_empty() && running.iter().all(Running::is_running)
    }

    /// Decide what waits, then stop. Claims that come later are told to try again.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        let running: Vec<Running> = self.running.lock().drain(..).collect();
        for lane in running {
            let ended = match lane {
                Running::Task(task) => task.await.is_ok(),
                // Joining blocks, so it is done where blocking is allowed.
                Running::Thread(thread) => {
                    let joined = tokio::task::spawn_blocking(move || thread.join().is_ok());
                    joined.await.unwrap_or(false)
                }
            };
            if !ended {
                tracing::error!("a lane ended with a panic");
            }
        }
    }
}

struct Lane {
    waiting: mpsc::Receiver<Queued>,
    batch_max: usize,
    gate: Arc<dyn Admission>,
    numbers: Arc<OrderNumbers>,
    may_number: MayNumber,
    hear_admitted: HearAdmitted,
    sold_out: Arc<SoldOut>,
    spent_on: Arc<SpentOn>,
    stopping: watch::Receiver<bool>,
}

impl Lane {
    async fn run(mut self) {
        let mut batch = Vec::with_capacity(self.batch_max);
        while self.gather(&mut batch).await {
            if !(self.may_number)() {
                // A number that another process may be handing out, too, is worse than none.
                for queued in batch.drain(..) {
                    let _ = queued.answer.send(Decision::Busy(Busy::Unwritable));
                }
                continue;
            }
            let mut answers = Vec::with_capacity(batch.len());
            let requests = batch
                .drain(..)
                .map(|Queued { request, answer }| {
                    answers.push((request.item, answer));
                    (self.numbers.next(), request)
                })
                .collect();
            let decisions = self.gate.admit(requests).await;
            // A gate that answers another number of claims than it was asked about has given somebody
            // else's answer to a buyer. Then this lane stops: its buyers hear *busy*, here and from now
            // on, the process says that it is not ready, and the other lanes go on.
            assert_eq!(decisions.len(), answers.len(), "one decision per claim");
            let crowd = decisions.len() >= GATHER_FROM;
            for ((item, answer), decision) in answers.into_iter().zip(decisions) {
                match &decision {
                    Decision::SoldOut { left: ..=0, version } => {
                        self.sold_out.put(item, *version, Instant::now());
                    }
                    Decision::Admitted { claim, repeated, ahead } => {
                        if let Some(key) = claim.key {
                            self.spent_on.note(key, item, claim.order_no);
                        }
                        if !repeated {
                            (self.hear_admitted)(claim, *ahead);
                        }
                    }
                    _ => {}
                }
                // A buyer who hung up does not hear it; the claim stands.
                let _ = answer.send(decision);
            }
            // Only on a thread of our own; a gate elsewhere gives the crowd its time by itself.
            if crowd && self.gate.blocks() {
                std::thread::sleep(GATHER);
            }
        }
    }

    /// Wait for claims. False when the lane is stopped and empty.
    async fn gather(&mut self, batch: &mut Vec<Queued>) -> bool {
        loop {
            tokio::select! {
                biased;
                taken = self.waiting.recv_many(batch, self.batch_max) => return taken > 0,
                // Closing lets what waits through and refuses what comes.
                Ok(()) = self.stopping.changed() => self.waiting.close(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use sale::SystemClock;

    use super::*;
    use crate::NumberedRequest;

    /// A gate that forgets to answer the last claim of every batch.
    struct Forgetful;

    #[async_trait]
    impl Admission for Forgetful {
        fn partitions(&self) -> usize {
            1
        }

        fn partition_of(&self, _: ItemId, _: &UserId) -> usize {
            0
        }

        fn blocks(&self) -> bool {
            false
        }

        async fn admit(&self, batch: Vec<NumberedRequest>) -> Vec<Decision> {
            vec![Decision::Ended; batch.len() - 1]
        }

        fn may_hold_mark(&self, _: ItemId, _: &UserId, _: bool) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn a_lane_whose_gate_mixes_answers_up_stops_and_tells_nobody() {
        let options = LaneOptions { queue_max: 9, batch_max: 9 };
        let numbers = Arc::new(OrderNumbers::new(0, Arc::new(SystemClock)));
        let (may_number, nobody) = (Arc::new(|| true), Arc::new(|_: &Claim, _| {}));
        let gate = Arc::new(Forgetful);
        let lanes = Lanes::start(options, 1_000, gate, numbers, may_number, nobody).unwrap();
        let claim = |user: &str| {
            let user = user.parse().unwrap();
            lanes.enter(ClaimRequest { item: ItemId(1), user, quantity: 1, key: None })
        };
        let places = ["a", "b"].map(|user| claim(user).unwrap());
        for place in places {
            assert_eq!(place.await, Decision::Busy(Busy::Unwritable), "not the answer of another");
        }
        while lanes.are_running() {
            tokio::task::yield_now().await;
        }
        assert_eq!(claim("c").unwrap_err(), Decision::Busy(Busy::Unwritable));
    }
}

//! Lanes: the bounded queues in front of the gate, and what turns a crowd into batches.
//!
//! A lane holds at most `queue_max` waiting claims; one more is told *too hot* at once. One thread drains
//! each lane: it takes all that waits (at most
//! `batch_max`), passes it to the gate, answers, and takes what gathered meanwhile. A lone claim
//! leaves at once; a crowd makes its own batches while the gate is writing, and a moment longer: what
//! a batch costs (the write, the wake-ups) is the same for few and for many.
//!
//! **An even pace.** With `rate_per_s` no more than so many reach the gate per second, over all lanes of the
//! process. Then no more may wait than go in `wait_ms_max`, and whoever comes behind more claims for an item
//! than it has units is told *too hot* at once: they could not win, and asking again costs less than waiting.
//!
//! **Nobody is taken to the gate in vain.** Of what waits, those who have left, those who have waited for
//! longer than `wait_ms_max` and those whose item was sold out meanwhile are answered without it.
//!
//! The thread is the lane's own because the solo gate writes to disk on it; a gate that does not
//! block gets a task instead. Either way a buyer who hangs up while the gate decides changes nothing: the
//! request future is gone, the claim stands, and asking again with the same key gives the same answer.

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

use crate::{
    Admission, Busy, Changed, ClaimRequest, Decision, SoldOut,
    draw::{Entered, Rooms},
    pace::Shaping,
    spent_on::SpentOn,
};

/// The settings of the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneOptions {
    /// Claims that may wait in one lane.
    pub queue_max: usize,
    /// Claims that go to the gate in one step.
    pub batch_max: usize,
    /// Claims that reach the gate per second, from all lanes of a process; 0: as many as it takes.
    pub rate_per_s: u32,
    /// A claim that has waited for longer does not reach the gate.
    pub wait_ms_max: u64,
    /// Buyers who may wait for the draw of one item.
    pub draw_max: usize,
}

impl Default for LaneOptions {
    fn default() -> Self {
        LaneOptions {
            queue_max: 20_000,
            batch_max: 256,
            rate_per_s: 0,
            wait_ms_max: 5_000,
            draw_max: 100_000,
        }
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

impl PendingDecision {
    pub(crate) fn of(decision: oneshot::Receiver<Decision>) -> PendingDecision {
        PendingDecision(decision)
    }
}

impl Future for PendingDecision {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        // A lane that is gone decided nothing.
        self.0.poll_unpin(cx).map(|decision| decision.unwrap_or(Decision::Busy(Busy::Unwritable)))
    }
}

/// A request in a lane, and where its buyer waits for the decision.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) request: ClaimRequest,
    pub(crate) answer: oneshot::Sender<Decision>,
    pub(crate) entered: Instant,
}

/// All lanes of one process, and the sold-out cache in front of them.
pub struct Lanes {
    pub(crate) gate: Arc<dyn Admission>,
    sold_out: Arc<SoldOut>,
    spent_on: Arc<SpentOn>,
    pub(crate) rooms: Rooms,
    pub(crate) draw_max: usize,
    pub(crate) lanes: Vec<mpsc::Sender<Queued>>,
    pub(crate) shaping: Option<Arc<Shaping>>,
    pub(crate) stop: watch::Sender<bool>,
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
        let shaping = Shaping::new(&options);
        let (stop, stopping) = watch::channel(false);
        let mut lanes = Vec::new();
        let mut running = Vec::new();
        for partition in 0..gate.partitions() {
            let (sender, waiting) = mpsc::channel(options.queue_max);
            let lane = Lane {
                waiting,
                batch_max: options.batch_max,
                wait_max: Duration::from_millis(options.wait_ms_max),
                shaping: shaping.clone(),
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
        let (rooms, draw_max) = (Rooms::default(), options.draw_max);
        let running = Mutex::new(running);
        Ok(Lanes { gate, sold_out, spent_on, rooms, draw_max, lanes, shaping, stop, running })
    }

    /// One claim, from the door to the gate's decision.
    pub async fn claim(&self, request: ClaimRequest) -> Decision {
        match self.enter(request, Instant::now()) {
            Ok(pending) => pending.await,
            Err(decision) => decision,
        }
    }

    /// The part of a claim that takes no time: a place in a lane, or the decision if it is
    /// known already.
    pub fn enter(&self, request: ClaimRequest, now: Instant) -> Result<PendingDecision, Decision> {
        if let Some(decision) = self.known_answer(&request, now) {
            return Err(decision);
        }
        if self.rooms.are_none() {
            return self.enter_lane(request, now);
        }
        match self.rooms.enter(request, now) {
            Entered::Passes(request) => self.enter_lane(request, now),
            Entered::Waits(pending) => Ok(pending),
            Entered::Refused(decision) => Err(decision),
        }
    }

    /// What is known without the gate.
    pub(crate) fn known_answer(&self, request: &ClaimRequest, now: Instant) -> Option<Decision> {
        let ClaimRequest { item, ref user, key, .. } = *request;
        if let Some(order_no) = key.and_then(|key| self.spent_on.elsewhere(key, item)) {
            return Some(Decision::KeyReused { order_no });
        }
        let sold_out = self.says_sold_out(item, user, key.is_some(), now);
        sold_out.then_some(Decision::SoldOut { left: 0, version: 0 })
    }

    fn enter_lane(&self, request: ClaimRequest, now: Instant) -> Result<PendingDecision, Decision> {
        let ClaimRequest { item, ref user, key, .. } = request;
        if let Some(shaping) = &self.shaping
            && shaping.is_hopeless(item, self.gate.units_left(item))
            && !self.gate.may_hold_mark(item, user, key.is_some())
        {
            return Err(Decision::TooHot);
        }
        let lane = &self.lanes[self.gate.partition_of(item, user)];
        let (answer, decision) = oneshot::channel();
        // Before it is sent: the lane may be faster to take it out than we to count it.
        self.shaping.iter().for_each(|shaping| shaping.entered(item));
        let sent = lane.try_send(Queued { request, answer, entered: now });
        if sent.is_err() {
            self.shaping.iter().for_each(|shaping| shaping.left(item));
        }
        match sent {
            Ok(()) => Ok(PendingDecision(decision)),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Decision::TooHot),
            // The lane is stopping, and nothing was decided.
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Decision::Busy(Busy::Unwritable)),
        }
    }

    /// A cached "no" that is the truth for this buyer.
    pub fn is_sold_out(&self, item: ItemId, user: &UserId, with_key: bool) -> bool {
        self.says_sold_out(item, user, with_key, Instant::now())
    }

    /// The same at a time that was read already.
    pub fn says_sold_out(&self, item: ItemId, user: &UserId, with_key: bool, now: Instant) -> bool {
        self.sold_out.says_no(item, now) && !self.gate.may_hold_mark(item, user, with_key)
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
        self.rooms.close_all(&Decision::Busy(Busy::Unwritable));
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
    wait_max: Duration,
    shaping: Option<Arc<Shaping>>,
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
            while !batch.is_empty() {
                self.answer_without_the_gate(&mut batch);
                let portion = self.portion(batch.len()).await;
                let crowd = portion >= GATHER_FROM;
                self.decide(batch.drain(..portion)).await;
                // Only on a thread of our own; a gate elsewhere gives the crowd its time by itself.
                if crowd && self.gate.blocks() {
                    std::thread::sleep(GATHER);
                }
            }
        }
    }

    /// Those who have left, who have waited for too long, and whose item was sold out meanwhile.
    fn answer_without_the_gate(&self, batch: &mut Vec<Queued>) {
        let now = Instant::now();
        // Neighbours mostly want the same item: look it up once per run of them.
        let mut run: Option<(ItemId, bool)> = None;
        let mut says_no = |item| match run {
            Some((same, no)) if same == item => no,
            _ => run.insert((item, self.sold_out.says_no(item, now))).1,
        };
        let is_late = |queued: &Queued| {
            queued.answer.is_closed()
                || now.saturating_duration_since(queued.entered) > self.wait_max
        };
        let is_decided = |queued: &mut Queued| {
            let ClaimRequest { item, ref user, key, .. } = queued.request;
            is_late(queued) || says_no(item) && !self.gate.may_hold_mark(item, user, key.is_some())
        };
        for queued in batch.extract_if(.., is_decided) {
            let decision = match is_late(&queued) {
                true => Decision::TooHot,
                false => Decision::SoldOut { left: 0, version: 0 },
            };
            self.shaping.iter().for_each(|shaping| shaping.left(queued.request.item));
            // Those who have left do not hear it.
            let _ = queued.answer.send(decision);
        }
    }

    /// How many of those that are here may go to the gate now; waits until one may.
    async fn portion(&self, here: usize) -> usize {
        let Some(shaping) = &self.shaping else { return here };
        loop {
            // Whoever stops wants all of them decided.
            if here == 0 || *self.stopping.borrow() {
                return here;
            }
            match shaping.pace.take(here, Instant::now()) {
                Ok(portion) => return portion,
                Err(wait) if self.gate.blocks() => std::thread::sleep(wait),
                Err(wait) => tokio::time::sleep(wait).await,
            }
        }
    }

    async fn decide(&self, batch: impl ExactSizeIterator<Item = Queued>) {
        if batch.len() == 0 {
            return;
        }
        let may_number = (self.may_number)();
        let mut answers = Vec::with_capacity(batch.len());
        let mut requests = Vec::with_capacity(batch.len());
        for Queued { request, answer, .. } in batch {
            self.shaping.iter().for_each(|shaping| shaping.left(request.item));
            if may_number {
                answers.push((request.item, answer));
                requests.push((self.numbers.next(), request));
            } else {
                // A number that another process may be handing out, too, is worse than none.
                let _ = answer.send(Decision::Busy(Busy::Unwritable));
            }
        }
        if requests.is_empty() {
            return;
        }
        let decisions = self.gate.admit(requests).await;
        // A gate that answers another number of claims than it was asked about has given somebody
        // else's answer to a buyer. Then this lane stops: its buyers hear *busy*, here and from now
        // on, the process says that it is not ready, and the other lanes go on.
        assert_eq!(decisions.len(), answers.len(), "one decision per claim");
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
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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
        let options = LaneOptions { queue_max: 9, batch_max: 9, ..LaneOptions::default() };
        let numbers = Arc::new(OrderNumbers::new(0, Arc::new(SystemClock)));
        let (may_number, nobody) = (Arc::new(|| true), Arc::new(|_: &Claim, _| {}));
        let gate = Arc::new(Forgetful);
        let lanes = Lanes::start(options, 1_000, gate, numbers, may_number, nobody).unwrap();
        let claim = |user: &str| {
            let user = user.parse().unwrap();
            let request = ClaimRequest { item: ItemId(1), user, quantity: 1, key: None };
            lanes.enter(request, Instant::now())
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

    /// A gate that admits everybody at once, and counts.
    #[derive(Default)]
    struct Generous {
        asked: AtomicUsize,
        left: AtomicUsize,
        slow: Duration,
    }

    #[async_trait]
    impl Admission for Generous {
        fn partitions(&self) -> usize {
            2
        }

        fn partition_of(&self, _: ItemId, user: &UserId) -> usize {
            user.as_str().len() % 2
        }

        fn blocks(&self) -> bool {
            false
        }

        async fn admit(&self, batch: Vec<NumberedRequest>) -> Vec<Decision> {
            tokio::time::sleep(self.slow).await;
            self.asked.fetch_add(batch.len(), Relaxed);
            vec![Decision::Ended; batch.len()]
        }

        fn may_hold_mark(&self, _: ItemId, _: &UserId, _: bool) -> bool {
            false
        }

        fn units_left(&self, _: ItemId) -> Option<i64> {
            Some(self.left.load(Relaxed) as i64)
        }
    }

    fn start(options: LaneOptions, gate: &Arc<Generous>) -> Lanes {
        let numbers = Arc::new(OrderNumbers::new(0, Arc::new(SystemClock)));
        let (may_number, nobody) = (Arc::new(|| true), Arc::new(|_: &Claim, _| {}));
        Lanes::start(options, 1_000, gate.clone(), numbers, may_number, nobody).unwrap()
    }

    fn one(user: usize) -> ClaimRequest {
        let user = format!("u{user}").parse().unwrap();
        ClaimRequest { item: ItemId(1), user, quantity: 1, key: None }
    }

    #[tokio::test]
    async fn ten_times_too_many_reach_the_gate_at_its_pace_and_the_others_hear_so_at_once() {
        let gate = Arc::new(Generous { left: 1_000_000.into(), ..Generous::default() });
        let (rate_per_s, wait_ms_max) = (1_000, 500);
        let lanes = start(LaneOptions { rate_per_s, wait_ms_max, ..Default::default() }, &gate);
        let (began, mut places, mut refused, mut slowest) =
            (Instant::now(), Vec::new(), 0, Duration::ZERO);
        let mut n = 0;
        while began.elapsed() < Duration::from_secs(2) {
            for _ in 0..20 {
                let now = Instant::now();
                match lanes.enter(one(n), now) {
                    Ok(place) => places.push(place),
                    Err(decision) => {
                        assert_eq!(decision, Decision::TooHot);
                        refused += 1;
                        slowest = slowest.max(now.elapsed());
                    }
                }
                n += 1;
            }
            let waiting = lanes.shaping.as_ref().unwrap().waiting.load(Relaxed);
            assert!(waiting <= 500, "{waiting} wait, which takes longer than one may wait");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let reached = gate.asked.load(Relaxed) as f64 / began.elapsed().as_secs_f64();
        println!("{n} came, {refused} were refused, {reached:.0} per second reached the gate");
        assert!((800.0..=1_060.0).contains(&reached), "{reached} per second");
        assert!(refused > n / 4 && slowest < Duration::from_millis(500), "{refused}, {slowest:?}");
        for place in places {
            assert!(matches!(place.await, Decision::Ended | Decision::TooHot));
        }
        assert_eq!(lanes.shaping.as_ref().unwrap().waiting.load(Relaxed), 0, "nobody is forgotten");
        assert!(lanes.enter(one(0), Instant::now()).is_ok(), "and all is as before");
    }

    #[tokio::test]
    async fn whoever_cannot_win_any_more_does_not_reach_the_gate() {
        // More wait for the item than it has units.
        let gate = Arc::new(Generous { left: 3.into(), ..Generous::default() });
        let lanes = start(LaneOptions { rate_per_s: 1, ..Default::default() }, &gate);
        let entered = (0..10).map(|n| lanes.enter(one(n), Instant::now()));
        let entered: Vec<_> = entered.collect();
        assert_eq!(entered.iter().filter(|place| place.is_ok()).count(), 4);
        assert_eq!(entered[9].as_ref().unwrap_err(), &Decision::TooHot);
        lanes.stop().await;
        assert_eq!(gate.asked.load(Relaxed), 4, "a lane that stops decides what waits");

        // The client has left, and another has waited for too long, while the gate was busy.
        let gate = Arc::new(Generous { slow: Duration::from_millis(100), ..Generous::default() });
        let lanes = start(LaneOptions { wait_ms_max: 20, ..Default::default() }, &gate);
        let first = lanes.enter(one(0), Instant::now()).unwrap();
        while gate.asked.load(Relaxed) == 0 && lanes.lanes[0].capacity() != 20_000 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        drop(lanes.enter(one(1), Instant::now()).unwrap());
        let late = lanes.enter(one(2), Instant::now()).unwrap();
        assert_eq!(first.await, Decision::Ended);
        assert_eq!(late.await, Decision::TooHot);
        assert_eq!(gate.asked.load(Relaxed), 1);

        // The last unit went while they waited.
        let gate = Arc::new(Generous { slow: Duration::from_millis(100), ..Generous::default() });
        let lanes = start(LaneOptions::default(), &gate);
        let first = lanes.enter(one(0), Instant::now()).unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let second = lanes.enter(one(1), Instant::now()).unwrap();
        lanes.sold_out.put(ItemId(1), 1, Instant::now());
        assert_eq!(first.await, Decision::Ended);
        assert_eq!(second.await, Decision::SoldOut { left: 0, version: 0 });
        assert_eq!(gate.asked.load(Relaxed), 1);
    }
}

//! The draw itself: those in a room go to the gate, in the order of their places.
//!
//! At a gate with several partitions lanes overtake each other. So those go first, all together, for whom
//! there are units: among them the order does not matter. Who is next goes when these have been answered.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use sale::{DrawOutcome, Drawn};
use tokio::sync::oneshot;

use super::{
    DrawExchange, PostedPlace,
    room::{Claimant, Room},
};
use crate::{Busy, ClaimRequest, Decision, lane::Queued};

/// Claimants that go to the gate together.
const TOGETHER_MAX: usize = 1_024;
/// Places that rooms tell each other: more cannot win where there are fewer units.
const POSTED_MAX: usize = 50_000;
/// The gate's clock may be so far behind ours; whoever it does not let in by then is told so.
const GATE_BEHIND_MAX: Duration = Duration::from_secs(2);
const AGAIN_AFTER: Duration = Duration::from_millis(10);
/// How often a room looks whether its window is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where the claims of a draw go: the lanes, as the feed sees them.
pub(crate) trait Feeder: Send + Sync {
    /// What is known without the gate.
    fn known_answer(&self, request: &ClaimRequest) -> Option<Decision>;

    /// Into the lane, when there is room in it.
    fn put(&self, queued: Queued) -> impl Future<Output = ()> + Send;

    fn units_left(&self, room: &Room) -> Option<i64>;
}

/// Waits for the end of the window and holds the draw. What became of everybody, in the order of the places.
pub(crate) async fn hold(
    room: &Room,
    lanes: &impl Feeder,
    exchange: &dyn DrawExchange,
) -> Vec<Drawn> {
    wait_for_end(room).await;
    let (gone, here): (Vec<_>, Vec<_>) = room.begin().into_iter().partition(Claimant::has_left);
    let mut record: Vec<Drawn> = gone.iter().map(not_answered).collect();
    let mut claimants = VecDeque::from(here);
    let left = lanes.units_left(room);
    // Also where nobody is: whoever comes behind must not overtake those who wait at another instance.
    let others = exchange.swap(posted(claimants.iter(), left)).await;
    let winners_here = winners(claimants.iter(), &others, left);
    feed(room, lanes, claimants.drain(..winners_here).collect(), &mut record).await;
    exchange.fed(others.len()).await;
    while !claimants.is_empty() {
        let next = next_portion(&claimants, lanes.units_left(room));
        feed(room, lanes, claimants.drain(..next).collect(), &mut record).await;
    }
    loop {
        let behind = room.next_behind(TOGETHER_MAX);
        if behind.is_empty() {
            record.sort_by_key(|drawn| drawn.place);
            return record;
        }
        for queued in behind {
            pass(lanes, Queued { entered: Instant::now(), ..queued }).await;
        }
    }
}

async fn wait_for_end(room: &Room) {
    loop {
        let left_ms = room.window.ends_ms - room.clock.now_ms();
        if left_ms <= 0 || room.is_over() {
            return;
        }
        let left = Duration::from_millis(left_ms as u64);
        tokio::time::sleep(left.min(LOOK_EVERY)).await;
    }
}

/// Those who could win if nobody else were there.
fn posted<'c>(
    claimants: impl ExactSizeIterator<Item = &'c Claimant> + Clone,
    left: Option<i64>,
) -> Vec<PostedPlace> {
    let most = winners(claimants.clone(), &[], left).min(POSTED_MAX);
    claimants.take(most).map(posted_place).collect()
}

fn posted_place(claimant: &Claimant) -> PostedPlace {
    ((claimant.place.0 >> 64) as u64, claimant.quantity())
}

/// How many of these, who stand in their order, are among those for whom there are units, if those whom the
/// other rooms have told of stand among them. All, if nobody knows how many units there are.
fn winners<'c>(
    claimants: impl ExactSizeIterator<Item = &'c Claimant>,
    others: &[Vec<PostedPlace>],
    left: Option<i64>,
) -> usize {
    let Some(mut left) = left else { return claimants.len() };
    let mut others: Vec<PostedPlace> = others.concat();
    others.sort_unstable_by(|a, b| b.cmp(a));
    let mut winners = 0;
    for claimant in claimants {
        let ours = posted_place(claimant);
        while let Some(theirs) = others.pop_if(|theirs| *theirs < ours) {
            left -= i64::from(theirs.1);
        }
        left -= i64::from(ours.1);
        if left < 0 {
            break;
        }
        winners += 1;
    }
    winners
}

/// How many go next: those who fit into what is left; or those in front who want more than that, and hear so.
fn next_portion(claimants: &VecDeque<Claimant>, left: Option<i64>) -> usize {
    let fitting = match winners(claimants.iter(), &[], left) {
        0 => {
            let too_much = |claimant: &&Claimant| Some(i64::from(claimant.quantity())) > left;
            claimants.iter().take_while(too_much).count()
        }
        fitting => fitting,
    };
    fitting.clamp(1, TOGETHER_MAX)
}

fn not_answered(claimant: &Claimant) -> Drawn {
    let (place, quantity) = (claimant.place, claimant.quantity());
    Drawn { place, quantity, outcome: DrawOutcome::Left }
}

/// Takes these to the gate and waits for its answers.
async fn feed(room: &Room, lanes: &impl Feeder, claimants: Vec<Claimant>, record: &mut Vec<Drawn>) {
    let began = Instant::now();
    let first = record.len();
    record.extend(claimants.iter().map(not_answered));
    let lines = claimants.into_iter().enumerate().flat_map(|(n, claimant)| {
        claimant.requests.into_iter().map(move |queued| (first + n, queued))
    });
    let mut waiting: Vec<(usize, Queued)> = lines.collect();
    while !waiting.is_empty() {
        waiting.retain(|(_, queued)| !queued.answer.is_closed());
        let mut asked = Vec::with_capacity(waiting.len());
        for (line, queued) in waiting.drain(..) {
            let (answer, decision) = oneshot::channel();
            let request = queued.request.clone();
            pass(lanes, Queued { request, answer, entered: Instant::now() }).await;
            asked.push((line, queued, decision));
        }
        for (line, queued, decision) in asked {
            // A lane that is gone decided nothing.
            let decision = decision.await.unwrap_or(Decision::Busy(Busy::Unwritable));
            let opens_ms = room.window.ends_ms;
            if decision == (Decision::NotStarted { opens_ms }) && began.elapsed() < GATE_BEHIND_MAX
            {
                waiting.push((line, queued));
                continue;
            }
            // Of several requests of one buyer the best answer is on record.
            record[line].outcome = record[line].outcome.min(outcome_of(&decision));
            let _ = queued.answer.send(decision);
        }
        if !waiting.is_empty() {
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

async fn pass(lanes: &impl Feeder, queued: Queued) {
    match lanes.known_answer(&queued.request) {
        Some(decision) => _ = queued.answer.send(decision),
        None => lanes.put(queued).await,
    }
}

fn outcome_of(decision: &Decision) -> DrawOutcome {
    match decision {
        Decision::Admitted { .. } => DrawOutcome::Won,
        Decision::SoldOut { .. } => DrawOutcome::SoldOut,
        _ => DrawOutcome::Refused,
    }
}

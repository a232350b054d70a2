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
/// How often a room looks whether its window is over, in its last moments and long before: there may be a
/// thousand rooms, two minutes before they are needed.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOK_EVERY_MAX: Duration = Duration::from_millis(500);

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
    let mut left = Left { known: lanes.units_left(room) };
    // Also where nobody is: whoever comes behind must not overtake those who wait at another instance.
    let others = exchange.swap(posted(claimants.iter(), left.known)).await;
    let winners = winners(claimants.iter(), &others, left.known);
    left.take(winners.units_elsewhere);
    let winners_here = claimants.drain(..winners.here).collect();
    left.take(feed(room, lanes, winners_here, &mut record).await);
    exchange.fed(others.len()).await;
    while !claimants.is_empty() {
        let next = next_portion(&claimants, left.now(lanes.units_left(room)));
        left.take(feed(room, lanes, claimants.drain(..next).collect(), &mut record).await);
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
        tokio::time::sleep(left.min((left / 4).clamp(LOOK_EVERY, LOOK_EVERY_MAX))).await;
    }
}

/// Those who could win if nobody else were there.
fn posted<'c>(
    claimants: impl ExactSizeIterator<Item = &'c Claimant> + Clone,
    left: Option<i64>,
) -> Vec<PostedPlace> {
    let most = winners(claimants.clone(), &[], left).here.min(POSTED_MAX);
    claimants.take(most).map(posted_place).collect()
}

fn posted_place(claimant: &Claimant) -> PostedPlace {
    ((claimant.place.0 >> 64) as u64, claimant.quantity())
}

/// The units that are left for those who were not served yet. What a gate elsewhere says of them may be a
/// second old: of whom that many units are told of, too many would go together and overtake each other. So
/// what was taken in this draw is counted here as well.
struct Left {
    known: Option<i64>,
}

impl Left {
    fn take(&mut self, units: i64) {
        self.known = self.known.map(|known| known.saturating_sub(units).max(0));
    }

    fn now(&self, told: Option<i64>) -> Option<i64> {
        match (self.known, told) {
            (Some(known), Some(told)) => Some(known.min(told)),
            (known, told) => known.or(told),
        }
    }
}

/// Those for whom there are units.
#[derive(Debug, Default)]
struct Winners {
    /// So many in front, here.
    here: usize,
    units_elsewhere: i64,
}

/// How many of these, who stand in their order, are among those for whom there are units, if those whom the
/// other rooms have told of stand among them. All, if nobody knows how many units there are.
fn winners<'c>(
    claimants: impl ExactSizeIterator<Item = &'c Claimant>,
    others: &[Vec<PostedPlace>],
    left: Option<i64>,
) -> Winners {
    let mut winners = Winners::default();
    let Some(mut left) = left else { return Winners { here: claimants.len(), ..winners } };
    let mut others: Vec<PostedPlace> = others.concat();
    others.sort_unstable_by(|a, b| b.cmp(a));
    let mut ours = claimants.map(posted_place);
    loop {
        let next = ours.next();
        let is_before = |theirs: &mut PostedPlace| next.is_none_or(|ours| *theirs < ours);
        while let Some((_, quantity)) = others.pop_if(|theirs| left > 0 && is_before(theirs)) {
            winners.units_elsewhere += i64::from(quantity).min(left);
            left -= i64::from(quantity);
        }
        match next {
            Some((_, quantity)) if i64::from(quantity) <= left => left -= i64::from(quantity),
            _ => return winners,
        }
        winners.here += 1;
    }
}

/// How many go next: those who fit into what is left; or those in front who want more than that, and hear so.
fn next_portion(claimants: &VecDeque<Claimant>, left: Option<i64>) -> usize {
    let fitting = match winners(claimants.iter(), &[], left).here {
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

/// Takes these to the gate and waits for its answers. How many units they were given.
async fn feed(
    room: &Room,
    lanes: &impl Feeder,
    claimants: Vec<Claimant>,
    record: &mut Vec<Drawn>,
) -> i64 {
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
    let won = record[first..].iter().filter(|drawn| drawn.outcome == DrawOutcome::Won);
    won.map(|drawn| i64::from(drawn.quantity)).sum()
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

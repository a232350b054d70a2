//! A room in which those who come in the first moments wait for the draw.
//!
//! Who is in it, and in which order they will leave, depends on their places and on nothing else: where more
//! come than it holds, those with the smallest places stay, whether they came first or last. A buyer has one
//! place however often they ask. Whoever comes when the window is over waits *behind* the draw, as they
//! came.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Instant,
};

use parking_lot::Mutex;
use sale::{DrawOrder, DrawPlace, ItemId, Millis, SharedClock};
use tokio::sync::oneshot;

use crate::{
    ClaimRequest, Decision,
    lane::{PendingDecision, Queued},
};

/// Requests of one buyer that wait in one place: a second tab, or a second try after a broken connection.
const REPEATS_MAX: usize = 4;

/// Which claims are gathered, and how they are ordered.
#[derive(Clone, Debug)]
pub struct DrawWindow {
    pub item: ItemId,
    pub opens_ms: Millis,
    /// From then on nobody is gathered any more.
    pub ends_ms: Millis,
    pub order: DrawOrder,
}

/// One buyer in the room.
#[derive(Debug)]
pub(crate) struct Claimant {
    pub(crate) place: DrawPlace,
    pub(crate) requests: Vec<Queued>,
}

impl Claimant {
    /// How many units they want, by the first of their requests that somebody still waits for: that one is
    /// decided first.
    pub(crate) fn quantity(&self) -> u32 {
        let waiting = self.requests.iter().find(|queued| !queued.answer.is_closed());
        waiting.or(self.requests.first()).map_or(0, |queued| queued.request.quantity)
    }

    /// Nobody waits for the answer any more.
    pub(crate) fn has_left(&self) -> bool {
        self.requests.iter().all(|queued| queued.answer.is_closed())
    }
}

/// What becomes of somebody who comes to the room.
pub(crate) enum Entered {
    Waits(PendingDecision),
    /// The draw is over.
    Passes(ClaimRequest),
    Refused(Decision),
}

#[derive(Debug)]
pub struct Room {
    pub(super) window: DrawWindow,
    pub(super) clock: SharedClock,
    places_max: usize,
    /// Said without the lock, for the many who come afterwards.
    over: AtomicBool,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    drawing: bool,
    gathered: BTreeMap<DrawPlace, Vec<Queued>>,
    behind: VecDeque<Queued>,
}

impl Room {
    pub(super) fn new(window: DrawWindow, places_max: usize, clock: SharedClock) -> Room {
        let (over, inside) = (AtomicBool::new(false), Mutex::default());
        Room { window, clock, places_max, over, inside }
    }

    pub fn window(&self) -> &DrawWindow {
        &self.window
    }

    /// The draw was held, or there will be none.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    pub(super) fn enter(&self, request: ClaimRequest, now: Instant) -> Entered {
        if self.over.load(Relaxed) {
            return Entered::Passes(request);
        }
        let (now_ms, DrawWindow { opens_ms, ends_ms, order, .. }) =
            (self.clock.now_ms(), &self.window);
        if now_ms < *opens_ms {
            return Entered::Refused(Decision::NotStarted { opens_ms: *opens_ms });
        }
        let place = order.place(&request.user);
        let mut inside = self.inside.lock();
        if !inside.drawing && now_ms < *ends_ms {
            return inside.gather(place, request, now, self.places_max);
        }
        // Looked at again under the lock, so that nobody is left behind a draw that is over.
        if self.over.load(Relaxed) {
            return Entered::Passes(request);
        }
        if inside.behind.len() >= self.places_max {
            return Entered::Refused(Decision::TooHot);
        }
        let (queued, pending) = queued(request, now);
        inside.behind.push_back(queued);
        Entered::Waits(pending)
    }

    /// The draw begins: nobody is gathered from now on. Those who were, in their order.
    pub(super) fn begin(&self) -> Vec<Claimant> {
        let mut inside = self.inside.lock();
        inside.drawing = true;
        let gathered = std::mem::take(&mut inside.gathered).into_iter();
        gathered.map(|(place, requests)| Claimant { place, requests }).collect()
    }

    /// Some of those who came behind the draw; when there are none left the room is over.
    pub(super) fn next_behind(&self, most: usize) -> Vec<Queued> {
        let mut inside = self.inside.lock();
        let here = inside.behind.len().min(most);
        if here == 0 {
            self.over.store(true, Relaxed);
        }
        inside.behind.drain(..here).collect()
    }

    /// There will be no draw here: everybody is told this, and whoever comes passes.
    pub(super) fn abandon(&self, decision: &Decision) {
        let mut inside = self.inside.lock();
        self.over.store(true, Relaxed);
        let gathered = std::mem::take(&mut inside.gathered).into_values().flatten();
        for queued in gathered.chain(std::mem::take(&mut inside.behind)) {
            let _ = queued.answer.send(decision.clone());
        }
    }
}

impl Inside {
    fn gather(
        &mut self,
        place: DrawPlace,
        request: ClaimRequest,
        now: Instant,
        places_max: usize,
    ) -> Entered {
        if let Some(requests) = self.gathered.get_mut(&place) {
            requests.retain(|queued| !queued.answer.is_closed());
            if requests.len() >= REPEATS_MAX {
                return Entered::Refused(Decision::TooHot);
            }
            let (queued, pending) = queued(request, now);
            requests.push(queued);
            return Entered::Waits(pending);
        }
        if self.gathered.len() >= places_max
            && let Some(last) = self.gathered.last_entry()
        {
            if place > *last.key() {
                return Entered::Refused(Decision::TooHot);
            }
            for queued in last.remove() {
                let _ = queued.answer.send(Decision::TooHot);
            }
        }
        let (queued, pending) = queued(request, now);
        self.gathered.insert(place, vec![queued]);
        Entered::Waits(pending)
    }
}

fn queued(request: ClaimRequest, now: Instant) -> (Queued, PendingDecision) {
    let (answer, decision) = oneshot::channel();
    (Queued { request, answer, entered: now }, PendingDecision::of(decision))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use sale::{DrawSecrets, ManualClock, UserId};

    use super::*;

    const OPENS_MS: Millis = 1_800_000_000_000;
    const ITEM: ItemId = ItemId(7);

    fn order() -> DrawOrder {
        DrawSecrets::new([3; 32], [4; 32]).order(ITEM)
    }

    fn user(n: usize) -> UserId {
        format!("u{n}").parse().unwrap()
    }

    fn room(places_max: usize) -> (Room, Arc<ManualClock>) {
        let clock = ManualClock::at(OPENS_MS);
        let window =
            DrawWindow { item: ITEM, opens_ms: OPENS_MS, ends_ms: OPENS_MS + 500, order: order() };
        (Room::new(window, places_max, clock.clone()), clock)
    }

    fn enter(room: &Room, n: usize) -> Entered {
        let request = ClaimRequest { item: ITEM, user: user(n), quantity: 1, key: None };
        room.enter(request, Instant::now())
    }

    fn waits(room: &Room, n: usize) -> PendingDecision {
        match enter(room, n) {
            Entered::Waits(pending) => pending,
            Entered::Passes(_) => panic!("u{n} passed"),
            Entered::Refused(decision) => panic!("u{n}: {decision:?}"),
        }
    }

    #[test]
    fn before_the_opening_nobody_waits_and_after_the_window_everybody_stands_behind() {
        let (room, clock) = room(10);
        clock.set(OPENS_MS - 1);
        let early = enter(&room, 1);
        assert!(matches!(early, Entered::Refused(Decision::NotStarted { opens_ms: OPENS_MS })));
        clock.set(OPENS_MS);
        let first = waits(&room, 1);
        clock.set(OPENS_MS + 499);
        let last = waits(&room, 2);
        clock.set(OPENS_MS + 500);
        let _behind = [waits(&room, 3), waits(&room, 4)];
        let drawn = room.begin();
        assert_eq!(drawn.len(), 2);
        assert!(drawn.is_sorted_by_key(|claimant| claimant.place));
        // Its clock went back, and the draw has begun all the same.
        clock.set(OPENS_MS + 100);
        let _late = waits(&room, 5);
        let behind: Vec<_> = room.next_behind(2).into_iter().map(|q| q.request.user).collect();
        assert_eq!(behind, [user(3), user(4)]);
        assert_eq!(room.next_behind(2).len(), 1);
        assert_eq!(room.next_behind(2).len(), 0);
        assert!(matches!(enter(&room, 6), Entered::Passes(_)));
        drop((first, last));
    }

    #[test]
    fn a_full_room_keeps_the_smallest_places_whoever_came_first() {
        let smallest = |people: &[usize]| {
            let (room, _) = room(10);
            let mut told: Vec<(usize, Option<PendingDecision>)> = Vec::new();
            for n in people {
                match enter(&room, *n) {
                    Entered::Waits(pending) => told.push((*n, Some(pending))),
                    Entered::Refused(Decision::TooHot) => told.push((*n, None)),
                    _ => panic!("it is full, not closed"),
                }
            }
            let inside = room.begin();
            assert_eq!(inside.len(), 10);
            // Those who had to go were told so at once.
            let stayed = told.into_iter().filter_map(|(_, pending)| pending);
            let hears = |pending: PendingDecision| pending.now_or_never();
            let hopeful = stayed.map(hears).filter(Option::is_none).count();
            assert_eq!(hopeful, 10);
            inside.into_iter().map(|claimant| claimant.place).collect::<Vec<_>>()
        };
        let people: Vec<usize> = (0..100).collect();
        let backwards: Vec<usize> = people.iter().rev().copied().collect();
        let mut places: Vec<DrawPlace> = people.iter().map(|n| order().place(&user(*n))).collect();
        places.sort();
        assert_eq!(smallest(&people), places[..10]);
        assert_eq!(smallest(&backwards), places[..10]);
    }

    #[test]
    fn a_buyer_who_repeats_has_one_place_and_not_without_end() {
        let (room, _) = room(10);
        let mut waiting: Vec<_> = (0..REPEATS_MAX).map(|_| waits(&room, 1)).collect();
        assert!(matches!(enter(&room, 1), Entered::Refused(Decision::TooHot)));
        // One of them hangs up, and comes again.
        waiting.pop();
        waiting.push(waits(&room, 1));
        let _other = waits(&room, 2);
        let inside = room.begin();
        assert_eq!(inside.len(), 2);
        assert_eq!(inside.iter().map(|claimant| claimant.requests.len()).sum::<usize>(), 5);
        waiting.clear();
        let gone = inside.iter().filter(|claimant| claimant.has_left()).count();
        assert_eq!(gone, 1);
    }

    #[test]
    fn whoever_waits_for_a_draw_that_will_not_be_is_told_so() {
        let (room, clock) = room(10);
        let waiting = waits(&room, 1);
        clock.set(OPENS_MS + 600);
        let behind = waits(&room, 2);
        room.abandon(&Decision::Ended);
        assert_eq!(waiting.now_or_never(), Some(Decision::Ended));
        assert_eq!(behind.now_or_never(), Some(Decision::Ended));
        assert!(matches!(enter(&room, 3), Entered::Passes(_)));
    }
}

//! Fair start: claims of the first moments are taken in the order of a draw, so that camping on the first
//! millisecond buys nothing.
//!
//! Before the lane of an item with a draw there is a [`Room`]. From the opening until the window's end it
//! gathers the claims, by this process's clock; then it feeds them to the lane in the order of their places
//! ([`sale::DrawOrder`]), and whoever came meanwhile behind them; then claims pass it as if it were not
//! there. Where no item has a draw, a claim finds that out by reading one number.
//!
//! **The gate itself opens when the window ends**, so that nobody gets round the draw: not by an instance
//! that knows nothing of it (of a release before, or without the seed, because the ledger was away) and not
//! by a clock that is ahead. What a room feeds too early by the gate's clock it feeds again.
//!
//! **Several instances** each have a room, and whoever is at one of them competes with those at the others.
//! What matters is who wins, not when: so the rooms tell each other their smallest places
//! ([`DrawExchange`]), and each feeds first those who are among the winners of all rooms together. As many
//! as there are units all fit, in whatever order the gate sees them. Only when everybody has done that, or a
//! moment has passed, the others follow, for units that a winner did not take. Without the exchange each
//! room feeds what it has, in its order.
//!
//! **A crash** in the window, or a stop, takes nothing: what is in a room is in no log and nobody was
//! answered. Whoever asks again has the same place at every instance. A buyer whose client has gone when the
//! draw begins is passed over, for nobody could tell them that they have bought.

mod before_lanes;
mod feed;
mod room;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use async_trait::async_trait;
use parking_lot::RwLock;
use sale::{ItemId, SharedClock};

use crate::{ClaimRequest, Decision};

pub(crate) use feed::Feeder;
pub(crate) use room::Entered;
pub use room::{DrawWindow, Room};

/// Items with a room at the same time.
pub const ROOMS_MAX: usize = 1_000;

/// The first half of a place, and how many units are wanted there: what rooms tell each other.
pub type PostedPlace = (u64, u32);

/// How the rooms of several instances know of each other.
#[async_trait]
pub trait DrawExchange: Send + Sync {
    /// Tells the others these places of ours, in their order, and waits until they have had the time to tell
    /// theirs. What each of them told.
    async fn swap(&self, ours: Vec<PostedPlace>) -> Vec<Vec<PostedPlace>>;

    /// Our winners are at the gate; waits for so many others to say the same, though not for long.
    async fn fed(&self, others: usize);
}

/// There is one instance.
pub struct NobodyElse;

#[async_trait]
impl DrawExchange for NobodyElse {
    async fn swap(&self, _: Vec<PostedPlace>) -> Vec<Vec<PostedPlace>> {
        Vec::new()
    }

    async fn fed(&self, _: usize) {}
}

/// The rooms of one process.
#[derive(Default)]
pub(crate) struct Rooms {
    /// How many there are. Looked at by every claim; nothing else is where it is zero.
    count: AtomicUsize,
    rooms: RwLock<HashMap<ItemId, Arc<Room>>>,
}

impl Rooms {
    pub(crate) fn are_none(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    pub(crate) fn has(&self, item: ItemId) -> bool {
        self.rooms.read().contains_key(&item)
    }

    pub(crate) fn enter(&self, request: ClaimRequest, now: Instant) -> Entered {
        let room = self.rooms.read().get(&request.item).cloned();
        match room {
            Some(room) => room.enter(request, now),
            None => Entered::Passes(request),
        }
    }

    /// `None` if there are too many.
    pub(crate) fn open(
        &self,
        window: DrawWindow,
        places_max: usize,
        clock: SharedClock,
    ) -> Option<Arc<Room>> {
        let mut rooms = self.rooms.write();
        if rooms.len() >= ROOMS_MAX && !rooms.contains_key(&window.item) {
            return None;
        }
        let room = Arc::new(Room::new(window, places_max, clock));
        rooms.insert(room.window().item, room.clone());
        self.count.store(rooms.len(), Relaxed);
        Some(room)
    }

    /// The room goes, and whoever is still in it is told this.
    pub(crate) fn close(&self, room: &Arc<Room>, decision: &Decision) {
        let mut rooms = self.rooms.write();
        let item = room.window().item;
        if rooms.get(&item).is_some_and(|here| Arc::ptr_eq(here, room)) {
            rooms.remove(&item);
            self.count.store(rooms.len(), Relaxed);
        }
        drop(rooms);
        room.abandon(decision);
    }

    pub(crate) fn close_all(&self, decision: &Decision) {
        let rooms = std::mem::take(&mut *self.rooms.write());
        self.count.store(0, Relaxed);
        rooms.values().for_each(|room| room.abandon(decision));
    }
}

//! Rooms stand before the lanes of their items, and feed them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sale::{Drawn, ItemId, SharedClock};

use super::{DrawExchange, DrawWindow, Feeder, Room, feed};
use crate::{ClaimRequest, Decision, Lanes, lane::Queued};

/// Where a pace is set, a room waits for its turn as others do.
const PACE_LOOK: Duration = Duration::from_millis(1);

impl Lanes {
    /// From now on claims of this item are gathered in its window. In the place of another room of the item,
    /// if there is one. `None` if there are too many rooms.
    pub fn open_room(&self, window: DrawWindow, clock: SharedClock) -> Option<Arc<Room>> {
        self.rooms.open(window, self.draw_max, clock)
    }

    /// Waits for the end of a room's window and holds the draw. What became of everybody.
    pub async fn hold_draw(&self, room: &Arc<Room>, exchange: &dyn DrawExchange) -> Vec<Drawn> {
        feed::hold(room, self, exchange).await
    }

    /// The room goes, and whoever is still in it is told this.
    pub fn close_room(&self, room: &Arc<Room>, decision: &Decision) {
        self.rooms.close(room, decision);
    }

    /// Does this item have a room here?
    pub fn has_room(&self, item: ItemId) -> bool {
        self.rooms.has(item)
    }
}

impl Feeder for Lanes {
    fn known_answer(&self, request: &ClaimRequest) -> Option<Decision> {
        self.known_answer(request, Instant::now())
    }

    async fn put(&self, queued: Queued) {
        let item = queued.request.item;
        if let Some(shaping) = &self.shaping {
            while shaping.is_half_full() && !*self.stop.borrow() {
                tokio::time::sleep(PACE_LOOK).await;
            }
            shaping.entered(item);
        }
        let lane = &self.lanes[self.gate.partition_of(item, &queued.request.user)];
        // Its time in the lane begins now.
        let queued = Queued { entered: Instant::now(), ..queued };
        if lane.send(queued).await.is_err() {
            self.shaping.iter().for_each(|shaping| shaping.left(item));
        }
    }

    fn units_left(&self, room: &Room) -> Option<i64> {
        self.gate.units_left(room.window().item)
    }
}

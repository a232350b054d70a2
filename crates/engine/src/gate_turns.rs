//! Turns at the gate: one for each item.
//!
//! Whoever carries something from the ledger to the gate in two steps holds the item's turn for both: a
//! load, a stock change, a change of state, a comparison. A load replaces what the gate holds by what
//! the ledger held a moment before, so nothing may reach the gate in between: it would be lost. One turn
//! for all would be simpler, but then an item with millions of buyers, which takes long to read, would
//! keep everybody else waiting.
//!
//! Whoever needs several takes them together, in the order of the items, so that no two wait for each
//! other.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use sale::ItemId;
use tokio::sync::OwnedMutexGuard;

/// With so many items remembered, those are forgotten whose turn nobody has and nobody waits for.
const IDLE_TURNS_MAX: usize = 1_024;

#[derive(Default)]
pub(crate) struct GateTurns(Mutex<HashMap<ItemId, Arc<tokio::sync::Mutex<()>>>>);

/// The turns that somebody has. Dropped, they are those of the next.
#[must_use = "a turn lasts until it is dropped"]
pub(crate) struct GateTurn {
    _held: Vec<OwnedMutexGuard<()>>,
}

impl GateTurns {
    /// Nobody may wait for a second turn while they hold one; who needs more asks for [`Self::of_all`].
    pub(crate) async fn of(&self, item: ItemId) -> GateTurn {
        self.of_all([item]).await
    }

    pub(crate) async fn of_all(&self, items: impl IntoIterator<Item = ItemId>) -> GateTurn {
        let mut held = Vec::new();
        for item in items.into_iter().collect::<BTreeSet<_>>() {
            let turn = self.turn(item);
            held.push(turn.lock_owned().await);
        }
        GateTurn { _held: held }
    }

    fn turn(&self, item: ItemId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock();
        if turns.len() >= IDLE_TURNS_MAX {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        turns.entry(item).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Long enough for whoever need not wait.
    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn an_item_that_takes_long_holds_up_nobody_but_itself() {
        let turns = Arc::new(GateTurns::default());
        let big = turns.of(ItemId(1)).await;
        let other = tokio::time::timeout(SOON, turns.of(ItemId(2))).await;
        drop(other.expect("another item's turn is free"));
        let waits = tokio::spawn({
            let turns = turns.clone();
            async move { drop(turns.of_all([ItemId(2), ItemId(1)]).await) }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished(), "who needs the big one as well waits for it");
        drop(big);
        tokio::time::timeout(SOON, waits).await.expect("it is free now").unwrap();
    }

    #[tokio::test]
    async fn who_needs_several_cannot_be_locked_out_by_who_needs_them_the_other_way_round() {
        let turns = Arc::new(GateTurns::default());
        let both = |first, second| {
            let turns = turns.clone();
            tokio::spawn(async move {
                for _ in 0..200 {
                    let held = turns.of_all([ItemId(first), ItemId(second)]).await;
                    tokio::task::yield_now().await;
                    drop(held);
                }
            })
        };
        let (one, other) = (both(1, 2), both(2, 1));
        tokio::time::timeout(SOON, one).await.expect("no deadlock").unwrap();
        tokio::time::timeout(SOON, other).await.expect("no deadlock").unwrap();
    }

    #[tokio::test]
    async fn turns_that_nobody_has_are_forgotten() {
        let turns = GateTurns::default();
        let held = turns.of(ItemId(-1)).await;
        for item in 0..3 * IDLE_TURNS_MAX as i64 {
            drop(turns.of(ItemId(item)).await);
        }
        assert!(turns.0.lock().len() <= IDLE_TURNS_MAX);
        assert!(turns.0.lock().contains_key(&ItemId(-1)), "the one that is held is not");
        drop(held);
    }
}

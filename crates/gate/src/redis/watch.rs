//! Noticing that acknowledged writes are gone.
//!
//! A failover may bring back an older state of a partition. Every change of an item there bumps its
//! `seq`, and no call that was made after an answer may be answered with a smaller one; so what was
//! seen is noted *before* a call and compared with its answer. Answers may overtake each other, that
//! proves nothing, and therefore the comparison is never with what is noted now.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use sale::{Epoch, ItemId};

pub(super) type Seen = Option<(Epoch, u64)>;

#[derive(Default)]
pub(super) struct Watch {
    seen: Mutex<HashMap<(usize, ItemId), (Epoch, u64)>>,
    suspects: Mutex<HashSet<ItemId>>,
}

impl Watch {
    /// To be asked before a call.
    pub(super) fn seen(&self, partition: usize, item: ItemId) -> Seen {
        self.seen.lock().get(&(partition, item)).copied()
    }

    /// To be told its answer, and whether the call itself bumped `seq`: then it was one less before.
    /// False if writes were lost.
    pub(super) fn note(
        &self,
        partition: usize,
        item: ItemId,
        seen: Seen,
        answered: (Epoch, u64),
        changed: bool,
    ) -> bool {
        let before = (answered.0, answered.1.saturating_sub(u64::from(changed)));
        if seen.is_some_and(|seen| before < seen) {
            self.suspects.lock().insert(item);
            return false;
        }
        if seen.is_some_and(|seen| answered.0 > seen.0) {
            // Somebody has loaded it anew.
            self.suspects.lock().remove(&item);
        }
        let mut all = self.seen.lock();
        let known = all.entry((partition, item)).or_insert(answered);
        *known = (*known).max(answered);
        true
    }

    /// It is served by another server process than the one it was loaded in.
    pub(super) fn suspect(&self, partition: usize, item: ItemId) {
        if self.suspects.lock().insert(item) {
            tracing::warn!(%item, partition, "another server has the item now");
        }
    }

    pub(super) fn is_suspect(&self, item: ItemId) -> bool {
        self.suspects.lock().contains(&item)
    }

    pub(super) fn suspects(&self) -> Vec<ItemId> {
        self.suspects.lock().iter().copied().collect()
    }

    /// Nothing is known any more of items that are gone.
    pub(super) fn keep(&self, known: impl Fn(ItemId) -> bool) {
        self.seen.lock().retain(|(_, item), _| known(*item));
        self.suspects.lock().retain(|item| known(*item));
    }

    /// It does not matter any more what was lost.
    pub(super) fn clear(&self, item: ItemId) {
        self.suspects.lock().remove(&item);
    }

    /// The item starts anew.
    pub(super) fn forget(&self, item: ItemId) {
        self.seen.lock().retain(|(_, seen), _| *seen != item);
        self.suspects.lock().remove(&item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: ItemId = ItemId(42);

    #[test]
    fn going_back_is_noticed_and_overtaking_is_not() {
        let watch = Watch::default();
        let first = watch.seen(0, ITEM);
        let second = watch.seen(0, ITEM);
        assert!(watch.note(0, ITEM, second, (1, 8), true));
        assert!(watch.note(0, ITEM, first, (1, 7), true), "the earlier answer arrived later");
        let after = watch.seen(0, ITEM);
        assert_eq!(after, Some((1, 8)));
        assert!(
            !watch.note(0, ITEM, after, (1, 7), false),
            "this call was made after 8 was answered"
        );
        assert!(watch.is_suspect(ITEM));
        watch.forget(ITEM);
        assert!(!watch.is_suspect(ITEM));
        assert!(watch.note(0, ITEM, watch.seen(0, ITEM), (2, 1), false));
        assert!(!watch.note(0, ITEM, watch.seen(0, ITEM), (1, 99), false), "an older epoch");
    }

    #[test]
    fn one_lost_change_is_not_made_up_for_by_the_call_that_looks() {
        let watch = Watch::default();
        assert!(watch.note(0, ITEM, None, (1, 8), true));
        assert!(watch.note(0, ITEM, watch.seen(0, ITEM), (1, 9), true));
        assert!(!watch.note(0, ITEM, watch.seen(0, ITEM), (1, 9), true), "it was 8 again before");
    }
}

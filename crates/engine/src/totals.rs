//! What an activity came to: orders, units and money by item and status.
//!
//! The ledger counts, piece by piece, so that no reader waits behind two million orders. What was counted
//! is kept for a while that grows with what it took, and those who ask meanwhile share it: a page that
//! everybody reloads costs a twentieth of one reader at most. When it was counted is told with it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use ledger::{LedgerError, StatusCount};
use parking_lot::Mutex;
use sale::{Activity, ActivityId, Item, ItemId, Millis, OrderStatus};

use crate::shared::Shared;

/// Orders counted in one reading of the ledger.
const PIECE_ORDERS_MAX: usize = 50_000;
/// A count is kept so many times as long as it took to make, between these.
const KEPT_TIMES: u32 = 20;
const KEPT_MIN: Duration = Duration::from_secs(1);
const KEPT_MAX: Duration = Duration::from_secs(10 * 60);
/// Activities whose counts are kept.
const ACTIVITIES_KEPT_MAX: usize = 100;

#[derive(Clone, Debug)]
pub struct Totals {
    pub activity: Activity,
    pub counted_ms: Millis,
    pub items: Vec<ItemTotals>,
}

#[derive(Clone, Debug)]
pub struct ItemTotals {
    pub item: Item,
    pub by_status: BTreeMap<&'static str, StatusCount>,
}

impl ItemTotals {
    pub fn of(&self, status: OrderStatus) -> StatusCount {
        self.by_status.get(status.as_str()).copied().unwrap_or_default()
    }
}

struct Kept {
    totals: Arc<Totals>,
    until: Instant,
}

/// One count at a time of each activity.
type Slot = Arc<tokio::sync::Mutex<Option<Kept>>>;

pub(crate) struct TotalsCounter {
    shared: Arc<Shared>,
    slots: Mutex<HashMap<ActivityId, Slot>>,
}

impl TotalsCounter {
    pub(crate) fn new(shared: Arc<Shared>) -> TotalsCounter {
        TotalsCounter { shared, slots: Mutex::default() }
    }

    fn slot(&self, id: ActivityId) -> Slot {
        let mut slots = self.slots.lock();
        if slots.len() >= ACTIVITIES_KEPT_MAX && !slots.contains_key(&id) {
            // Counted again is better than kept for ever.
            slots.clear();
        }
        slots.entry(id).or_default().clone()
    }

    pub(crate) async fn of(&self, id: ActivityId) -> Result<Arc<Totals>, LedgerError> {
        let activity = self.shared.ledger.activity(id).await?.ok_or(LedgerError::NotFound)?;
        let slot = self.slot(id);
        let mut slot = slot.lock().await;
        if let Some(kept) = slot.as_ref().filter(|kept| Instant::now() < kept.until) {
            return Ok(kept.totals.clone());
        }
        let begun = Instant::now();
        let totals = Arc::new(self.count(activity).await?);
        let kept_for = (begun.elapsed() * KEPT_TIMES).clamp(KEPT_MIN, KEPT_MAX);
        *slot = Some(Kept { totals: totals.clone(), until: Instant::now() + kept_for });
        Ok(totals)
    }

    async fn count(&self, activity: Activity) -> Result<Totals, LedgerError> {
        let counted_ms = self.shared.now_ms();
        let mut items = Vec::with_capacity(activity.items.len());
        for item in &activity.items {
            let by_status = self.count_item(item.id).await?;
            items.push(ItemTotals { item: item.clone(), by_status });
        }
        Ok(Totals { activity, counted_ms, items })
    }

    async fn count_item(
        &self,
        item: ItemId,
    ) -> Result<BTreeMap<&'static str, StatusCount>, LedgerError> {
        let (mut counted, mut after) = (BTreeMap::<_, StatusCount>::new(), None);
        loop {
            let piece = self.shared.ledger.count_orders(item, after, PIECE_ORDERS_MAX).await?;
            for (status, count) in piece.by_status {
                *counted.entry(status.as_str()).or_default() += count;
            }
            after = piece.next;
            if after.is_none() {
                return Ok(counted);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_engine::TestEngine;

    #[tokio::test]
    async fn who_asks_again_is_told_the_same_count_for_a_while() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let totals = TotalsCounter::new(shop.engine.shared.clone());
        shop.buy(activity.items[0].id, "ann").await;
        let first = totals.of(activity.id).await.unwrap();
        assert_eq!(first.items[0].of(OrderStatus::Unpaid).orders, 1);
        let again = totals.of(activity.id).await.unwrap();
        assert!(Arc::ptr_eq(&first, &again), "it is not counted again at once");
        let missing = totals.of(ActivityId(99)).await;
        assert!(matches!(missing, Err(LedgerError::NotFound)));
        for id in 0..3 * ACTIVITIES_KEPT_MAX {
            totals.slot(ActivityId(id as i64));
        }
        assert!(totals.slots.lock().len() <= ACTIVITIES_KEPT_MAX);
    }
}

//! What pages show, kept in memory: looking at a sale never touches SQL.
//!
//! A snapshot of the published activities, replaced as a whole every second and whenever an
//! operator changes something here. How many units are left is not part of it; the gate knows.

use std::{collections::HashMap, sync::Arc, time::Instant};

use ledger::Ledger;
use parking_lot::RwLock;
use sale::{Activity, ActivityId, Item, ItemId, Millis};

/// Activities that are over stay on the pages this long.
const SHOWN_AFTER_CLOSE_MS: Millis = 24 * 60 * 60 * 1_000;
const ACTIVITIES_MAX: usize = 1_000;

#[derive(Default)]
pub struct Catalogue {
    shown: RwLock<Arc<Snapshot>>,
    /// When the ledger was last asked for an item nobody knew.
    looked: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
pub struct Snapshot {
    /// Newest first, without drafts.
    pub activities: Vec<Activity>,
    places: HashMap<ItemId, (usize, usize)>,
}

impl Snapshot {
    fn of(activities: Vec<Activity>) -> Snapshot {
        let mut places = HashMap::new();
        for (a, activity) in activities.iter().enumerate() {
            for (i, item) in activity.items.iter().enumerate() {
                places.insert(item.id, (a, i));
            }
        }
        Snapshot { activities, places }
    }

    pub fn item(&self, id: ItemId) -> Option<(&Activity, &Item)> {
        let (a, i) = *self.places.get(&id)?;
        let activity = &self.activities[a];
        Some((activity, &activity.items[i]))
    }

    pub fn activity(&self, id: ActivityId) -> Option<&Activity> {
        self.activities.iter().find(|activity| activity.id == id)
    }
}

impl Catalogue {
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shown.read().clone()
    }

    /// A snapshot that has this item, or the newest there is: an item nobody here has heard of may
    /// have been published at another instance a moment ago. Those who ask at the same time share
    /// one look at the ledger.
    pub async fn with_item(
        &self,
        id: ItemId,
        ledger: &dyn Ledger,
        now_ms: Millis,
    ) -> Arc<Snapshot> {
        let known = self.snapshot();
        if known.item(id).is_some() {
            return known;
        }
        let asked = Instant::now();
        let mut looked = self.looked.lock().await;
        if looked.is_none_or(|begun| begun < asked) {
            *looked = Some(Instant::now());
            if let Err(error) = self.refresh(ledger, now_ms).await {
                tracing::debug!(%error, "the catalogue could not be refreshed");
            }
        }
        self.snapshot()
    }

    /// Show what somebody else has read.
    pub fn show(&self, activities: Vec<Activity>) {
        *self.shown.write() = Arc::new(Snapshot::of(activities));
    }

    pub async fn refresh(&self, ledger: &dyn Ledger, now_ms: Millis) -> ledger::Result<()> {
        self.show(ledger.published(now_ms - SHOWN_AFTER_CLOSE_MS, ACTIVITIES_MAX).await?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sale::NewActivity;

    use super::*;
    use crate::engine::night::{NOW_MS, Night};

    #[tokio::test]
    async fn drafts_push_no_sale_off_the_pages() {
        let (night, activity) = Night::fall(|_| {}).await;
        let draft = NewActivity {
            name: "draft".into(),
            opens_ms: NOW_MS,
            closes_ms: NOW_MS + 1,
            pay_within_ms: 1,
            publish_ms: None,
            items: vec![],
        };
        for _ in 0..ACTIVITIES_MAX {
            night.engine.ledger.create_activity(&draft, NOW_MS).await.unwrap();
        }
        night.engine.refresh_catalogue().await;
        let shown = night.engine.catalogue.snapshot();
        assert!(shown.item(activity.items[0].id).is_some());
        assert_eq!(shown.activities.len(), 1);
    }
}

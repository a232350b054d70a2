//! What is published, as this process knows it, kept up to date at the price of what changed.
//!
//! Every second somebody looks at all that is on sale: pages, the job that warms, the one that ends. Reading
//! ten thousand activities each time took a quarter of a core of a shop in which nothing happened. So they
//! are kept here, and the ledger is asked which of them changed lately: it marks every change itself, whoever
//! makes it. A change is marked with the time of its statement and seen when that is committed, so the
//! question reaches back over [`LOOKED_BACK_MS`], and what was changed a moment ago is read again until it
//! is older, for a second change may carry the same time.
//!
//! Should a change be missed all the same, because a server's clock jumped or a commit took minutes, it is
//! found within minutes: each time a page of what is known here, and a page of what the ledger says is
//! published, are read in turns.
//!
//! What is kept is without the long words of items, which those who show them read themselves.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    ops::Bound,
    sync::Arc,
    time::{Duration, Instant},
};

use ledger::{ActivityFilter, ActivityKey, Ledger, LedgerError};
use parking_lot::Mutex;
use sale::{Activity, ActivityId, ActivityState, Item, ItemId, ItemState, Millis};

use crate::due::{self, PAGE_ACTIVITIES, Pages};

/// How far back changes are asked for: longer than a transaction lasts.
const LOOKED_BACK_MS: Millis = 60_000;
/// What was changed so lately is read again.
const YOUNG_MS: Millis = 3_000;
/// How often a page is read in turns.
const TURN_EVERY: Duration = Duration::from_secs(1);
/// Changes that are remembered for those who ask what changed since they did.
const CHANGES_KEPT_MAX: usize = 10_000;

pub(crate) struct Published {
    ledger: Arc<dyn Ledger>,
    known: Mutex<Known>,
    /// Whoever brings it up to date holds it; when a page was last read in turns.
    turn: tokio::sync::Mutex<Turn>,
}

#[derive(Default)]
struct Known {
    /// Published or paused, and others that somebody needs because their items are at the gate.
    activities: BTreeMap<ActivityId, Arc<Activity>>,
    by_item: HashMap<ItemId, ActivityId>,
    /// By what the ledger tells whether they changed again.
    traces: HashMap<ActivityId, (u32, i64)>,
    /// The changes there were, the last ones by number.
    changes: u64,
    last_changes: VecDeque<ActivityId>,
}

#[derive(Default)]
struct Turn {
    is_read: bool,
    last: Option<Instant>,
    /// Up to where what is known has been read again.
    known: Option<ActivityId>,
    /// What is read of the ledger, and up to where.
    filter: usize,
    listed: Option<ActivityKey>,
}

/// What changed since somebody asked.
pub(crate) struct Changes {
    /// With this they ask the next time.
    pub(crate) mark: u64,
    /// `None`: more than is remembered.
    pub(crate) activities: Option<HashSet<ActivityId>>,
}

impl Known {
    /// As it is in the ledger now, nothing if it is not there any more.
    fn put(&mut self, id: ActivityId, now: Option<Activity>) {
        let before = self.activities.get(&id);
        let needed = now.as_ref().is_some_and(is_published) || before.is_some();
        if !needed || before.map(|before| &**before) == now.as_ref() {
            return;
        }
        if let Some(before) = self.activities.remove(&id) {
            before.items.iter().for_each(|item| _ = self.by_item.remove(&item.id));
        }
        if let Some(now) = now {
            self.by_item.extend(now.items.iter().map(|item| (item.id, id)));
            self.activities.insert(id, Arc::new(now));
        }
        self.changes += 1;
        self.last_changes.push_back(id);
        if self.last_changes.len() > CHANGES_KEPT_MAX {
            self.last_changes.pop_front();
        }
    }
}

fn is_published(activity: &Activity) -> bool {
    matches!(activity.state, ActivityState::Published | ActivityState::Paused)
}

impl Published {
    pub(crate) fn new(ledger: Arc<dyn Ledger>) -> Published {
        Published { ledger, known: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// Brings it up to date with what the ledger says now.
    pub(crate) async fn follow(&self) -> Result<(), LedgerError> {
        let mut turn = self.turn.lock().await;
        // Asked for before anything is read: what changes meanwhile is seen the next time.
        let changed = self.ledger.changed_activities(LOOKED_BACK_MS).await?;
        if !turn.is_read {
            self.read_all().await?;
            turn.is_read = true;
        }
        let due: Vec<ActivityId> = {
            let mut known = self.known.lock();
            let lately: HashSet<ActivityId> = changed.iter().map(|changed| changed.id).collect();
            known.traces.retain(|id, _| lately.contains(id));
            let is_new = |changed: &&ledger::ChangedActivity| {
                changed.age_ms < YOUNG_MS || known.traces.get(&changed.id) != Some(&changed.trace)
            };
            changed.iter().filter(is_new).map(|changed| changed.id).collect()
        };
        self.read(&due).await?;
        self.known.lock().traces.extend(changed.iter().map(|changed| (changed.id, changed.trace)));
        if turn.last.is_none_or(|last| last.elapsed() >= TURN_EVERY) {
            turn.last = Some(Instant::now());
            self.read_in_turns(&mut turn).await?;
        }
        Ok(())
    }

    async fn read_all(&self) -> Result<(), LedgerError> {
        let mut pages = Pages::briefly(&*self.ledger, due::published());
        while let Some(page) = pages.next().await? {
            let mut known = self.known.lock();
            page.into_iter().for_each(|activity| known.put(activity.id, Some(activity)));
        }
        Ok(())
    }

    async fn read(&self, ids: &[ActivityId]) -> Result<(), LedgerError> {
        for some in ids.chunks(PAGE_ACTIVITIES) {
            let found = self.ledger.activities_of_briefly(some, &[]).await?;
            let mut found: HashMap<ActivityId, Activity> =
                found.into_iter().map(|activity| (activity.id, activity)).collect();
            let mut known = self.known.lock();
            some.iter().for_each(|id| known.put(*id, found.remove(id)));
        }
        Ok(())
    }

    async fn read_in_turns(&self, turn: &mut Turn) -> Result<(), LedgerError> {
        let after = turn.known.map_or(Bound::Unbounded, Bound::Excluded);
        let ids: Vec<ActivityId> = {
            let known = self.known.lock();
            let behind = known.activities.range((after, Bound::Unbounded));
            behind.take(PAGE_ACTIVITIES).map(|(id, _)| *id).collect()
        };
        turn.known = ids.last().copied().filter(|_| ids.len() == PAGE_ACTIVITIES);
        self.read(&ids).await?;
        let filters: [ActivityFilter; 2] = due::published();
        let filter = filters[turn.filter];
        let page = self.ledger.activities_briefly(&filter, turn.listed, PAGE_ACTIVITIES).await?;
        turn.listed = page.last().map(|last| filter.order.key_of(last));
        if page.len() < PAGE_ACTIVITIES {
            turn.listed = None;
            turn.filter = (turn.filter + 1) % filters.len();
        }
        let mut known = self.known.lock();
        page.into_iter().for_each(|activity| known.put(activity.id, Some(activity)));
        Ok(())
    }

    /// Those of the published and paused ones that are wanted, in the order of their ids.
    pub(crate) fn those(&self, is_wanted: impl Fn(&Activity) -> bool) -> Vec<Arc<Activity>> {
        let known = self.known.lock();
        let published = known.activities.values().filter(|activity| is_published(activity));
        published.filter(|activity| is_wanted(activity)).cloned().collect()
    }

    /// Of these items, which are in the order of their ids, those that are not sold any more or were never
    /// published.
    pub(crate) fn not_on_sale(&self, items: &[ItemId]) -> Vec<ItemId> {
        let known = self.known.lock();
        let published = known.activities.values().filter(|activity| is_published(activity));
        let sold = published.flat_map(|activity| &activity.items);
        let mut sold: Vec<ItemId> =
            sold.filter(|item| item.state != ItemState::Ended).map(|item| item.id).collect();
        drop(known);
        sold.sort_unstable();
        items.iter().copied().filter(|item| sold.binary_search(item).is_err()).collect()
    }

    /// What changed since the change of this number.
    pub(crate) fn changes_since(&self, mark: u64) -> Changes {
        let known = self.known.lock();
        let new = known.changes.saturating_sub(mark) as usize;
        let all = known.last_changes.len();
        let activities =
            (new <= all).then(|| known.last_changes.iter().skip(all - new).copied().collect());
        Changes { mark: known.changes, activities }
    }

    /// The activities of these items, also of those that are not on sale any more; they are kept until
    /// [`forget`](Self::forget) says that nobody needs them.
    pub(crate) async fn of_items(
        &self,
        items: &[ItemId],
    ) -> Result<HashMap<ItemId, (Arc<Activity>, usize)>, LedgerError> {
        let unknown: Vec<ItemId> = {
            let known = self.known.lock();
            items.iter().copied().filter(|item| !known.by_item.contains_key(item)).collect()
        };
        for some in unknown.chunks(PAGE_ACTIVITIES) {
            let found = self.ledger.activities_of_briefly(&[], some).await?;
            let mut known = self.known.lock();
            for activity in found {
                known.by_item.extend(activity.items.iter().map(|item| (item.id, activity.id)));
                known.activities.insert(activity.id, Arc::new(activity));
            }
        }
        let known = self.known.lock();
        let place = |item: &ItemId| {
            let activity = known.activities.get(known.by_item.get(item)?)?;
            let place = activity.items.iter().position(|of: &Item| of.id == *item)?;
            Some((*item, (activity.clone(), place)))
        };
        Ok(items.iter().filter_map(place).collect())
    }

    /// What is not on sale is kept only while one of its items is needed.
    pub(crate) fn forget(&self, is_needed: impl Fn(ItemId) -> bool) {
        let mut known = self.known.lock();
        let Known { activities, by_item, .. } = &mut *known;
        activities.retain(|_, activity| {
            let kept = is_published(activity) || activity.items.iter().any(|i| is_needed(i.id));
            if !kept {
                activity.items.iter().for_each(|item| _ = by_item.remove(&item.id));
            }
            kept
        });
    }
}

#[cfg(test)]
mod tests {
    use sale::ActivityMove;

    use super::*;
    use crate::test_engine::{NOW_MS, TestEngine};

    const WINDOW: (Millis, Millis) = (NOW_MS, NOW_MS + 9_000_000);

    fn all(published: &Published) -> usize {
        published.those(|_| true).len()
    }

    #[tokio::test]
    async fn what_is_published_is_known_and_what_changes_is_told() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let published = Published::new(shop.engine.shared.ledger.clone());
        shop.plan_many(ActivityState::Published, 350, WINDOW).await;
        shop.plan_many(ActivityState::Draft, 9, WINDOW).await;
        published.follow().await.unwrap();
        assert_eq!(all(&published), 350);
        let mark = published.changes_since(0).mark;
        let sale = shop.another_sale("sale", WINDOW, 60_000).await;
        published.follow().await.unwrap();
        let changes = published.changes_since(mark);
        assert_eq!(changes.activities, Some(HashSet::from([sale.id])));
        published.follow().await.unwrap();
        assert_eq!(published.changes_since(changes.mark).activities, Some(HashSet::new()));
        shop.engine.operations.move_activity("ann", sale.id, ActivityMove::End).await.unwrap();
        published.follow().await.unwrap();
        let changes = published.changes_since(changes.mark);
        assert_eq!(changes.activities, Some(HashSet::from([sale.id])));
        assert_eq!(all(&published), 350, "it is not on sale any more");
        let (sold, over) = (published.those(|_| true)[0].items[0].id, sale.items[0].id);
        assert_eq!(published.not_on_sale(&[sold, over]), [over]);
    }

    #[tokio::test]
    async fn a_change_that_nobody_marked_is_found_in_turns() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        shop.plan_many(ActivityState::Published, 250, WINDOW).await;
        let published = Published::new(shop.engine.shared.ledger.clone());
        published.follow().await.unwrap();
        // As if the ledger's clock had been an hour behind when they were made and changed.
        shop.change_ledger(
            "DROP TRIGGER tr_activity_changed; DROP TRIGGER tr_activity_made;
             DROP TRIGGER tr_product_made; DROP TRIGGER tr_product_changed;
             UPDATE tb_seckill_activity SET state = 3 WHERE id = 240;
             UPDATE tb_seckill_activity SET changed_at = 0;
             UPDATE tb_seckill_product SET changed_at = 0;",
        );
        shop.plan_many(ActivityState::Published, 10, WINDOW).await;
        published.follow().await.unwrap();
        let count = || all(&published);
        for _ in 0..9 {
            let mut turn = published.turn.lock().await;
            published.read_in_turns(&mut turn).await.unwrap();
        }
        assert_eq!(count(), 259);
    }

    #[tokio::test]
    async fn what_is_at_the_gate_is_known_until_nobody_needs_it() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        engine.operations.move_activity("ann", activity.id, ActivityMove::End).await.unwrap();
        let published = Published::new(engine.shared.ledger.clone());
        published.follow().await.unwrap();
        assert_eq!(all(&published), 0);
        let found = published.of_items(&[item, ItemId(99)]).await.unwrap();
        assert_eq!((found.len(), found[&item].0.state), (1, ActivityState::Ended));
        published.forget(|needed| needed == item);
        assert_eq!(published.known.lock().activities.len(), 1);
        published.forget(|_| false);
        assert!(published.known.lock().activities.is_empty());
        assert!(published.known.lock().by_item.is_empty());
    }
}

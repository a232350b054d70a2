//! What pages show, kept in memory: looking at a sale hardly ever touches SQL.
//!
//! A snapshot of what is open, of what opens next and of what has just ended, looked at every second and
//! whenever an operator changes something here: what changed is read and replaced, all of it is read anew
//! when something is over by the clock, and now and then. It has room for [`ACTIVITIES_SHOWN_MAX`],
//! the open ones first. That bounds the list and nothing else: an item beyond it is found by its id
//! ([`lookups`]) and sold like any other. How many units are left is not part of it; the gate
//! knows.

mod lookups;

use std::{
    cmp::Ordering,
    collections::{HashMap, HashSet},
    fmt,
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use ledger::{ActivityFilter, ActivityOrder, Ledger};
use parking_lot::RwLock;
use sale::{Activity, ActivityId, ActivityState, Item, ItemId, Millis, SharedClock};

use self::lookups::{Lookups, WantedId};
use crate::{due, published::Published};

/// Activities in the public list.
pub const ACTIVITIES_SHOWN_MAX: usize = 1_000;
/// Activities that are over stay in it this long.
const SHOWN_AFTER_CLOSE_MS: Millis = 24 * 60 * 60 * 1_000;

/// However little changed, everything is read anew so often.
const READ_WHOLE_EVERY: Duration = Duration::from_secs(60);

pub struct Catalogue {
    ledger: Arc<dyn Ledger>,
    published: Arc<Published>,
    clock: SharedClock,
    shown: RwLock<Arc<Snapshot>>,
    /// Of when that is. Whoever refreshes it holds it.
    read: tokio::sync::Mutex<Option<ReadAt>>,
    beyond: Lookups,
}

/// When everything was read, and what was not seen then.
struct ReadAt {
    whole: Instant,
    whole_ms: Millis,
    /// When the next thing is over, or has been for long enough.
    until_ms: Millis,
    /// Changes up to this one are seen.
    mark: u64,
}

#[derive(Debug, Default)]
pub struct Snapshot {
    /// By their places; without drafts.
    pub activities: Vec<Arc<Activity>>,
    places: Vec<Place>,
    by_item: HashMap<ItemId, usize>,
    by_activity: HashMap<ActivityId, usize>,
    by_external_id: HashMap<String, usize>,
    /// The shop may sell a product in several activities.
    by_sku: HashMap<String, Vec<ItemId>>,
}

/// An item on sale, with its activity.
#[derive(Clone, Debug)]
pub struct OnShow {
    activity: Arc<Activity>,
    item: usize,
}

impl OnShow {
    /// The item of this activity that the shop knows by this id.
    pub fn by_sku(activity: Arc<Activity>, sku: &str) -> Option<OnShow> {
        let item = activity.items.iter().position(|item| item.words.sku.as_deref() == Some(sku))?;
        Some(OnShow { activity, item })
    }

    fn of(activity: Arc<Activity>, id: ItemId) -> Option<OnShow> {
        let item = activity.items.iter().position(|item| item.id == id)?;
        Some(OnShow { activity, item })
    }

    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    pub fn item(&self) -> &Item {
        &self.activity.items[self.item]
    }
}

/// Where an activity stands in the list: open ones and those to come in the order of their opening,
/// then those that are over, the latest first. It changes only once, when the activity is over; so
/// whoever leafs through the list may see one twice, and misses none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    over: bool,
    /// Of two that are over the larger time comes first, so it is kept as its negative.
    time_ms: Millis,
    id: ActivityId,
}

impl Place {
    fn of(activity: &Activity, now_ms: Millis) -> Place {
        let over = activity.state == ActivityState::Ended || now_ms >= activity.closes_ms;
        let time_ms = if over { activity.closes_ms.saturating_neg() } else { activity.opens_ms };
        Place { over, time_ms, id: activity.id }
    }
}

/// As a cursor, which means nothing to those who carry it.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", u8::from(self.over), self.time_ms, self.id)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("is no cursor of this list")]
pub struct NoCursor;

impl FromStr for Place {
    type Err = NoCursor;

    fn from_str(text: &str) -> Result<Place, NoCursor> {
        let mut parts = text.splitn(3, '_');
        let mut part = || parts.next().ok_or(NoCursor);
        let over = match part()? {
            "0" => false,
            "1" => true,
            _ => return Err(NoCursor),
        };
        let time_ms = part()?.parse().map_err(|_| NoCursor)?;
        let id = ActivityId(part()?.parse().map_err(|_| NoCursor)?);
        Ok(Place { over, time_ms, id })
    }
}

impl Snapshot {
    fn of(activities: Vec<Arc<Activity>>, now_ms: Millis) -> Snapshot {
        let mut placed: Vec<(Place, Arc<Activity>)> = activities
            .into_iter()
            .map(|activity| (Place::of(&activity, now_ms), activity))
            .collect();
        placed.sort_by_key(|(place, _)| *place);
        placed.truncate(ACTIVITIES_SHOWN_MAX);
        let (places, activities): (Vec<Place>, Vec<Arc<Activity>>) = placed.into_iter().unzip();
        let (mut by_item, mut by_activity) = (HashMap::new(), HashMap::new());
        let mut by_external_id = HashMap::new();
        let mut by_sku: HashMap<String, Vec<ItemId>> = HashMap::new();
        for (at, activity) in activities.iter().enumerate() {
            by_activity.insert(activity.id, at);
            by_external_id.extend(activity.external_id.clone().map(|id| (id, at)));
            for item in &activity.items {
                by_item.insert(item.id, at);
                if let Some(sku) = &item.words.sku {
                    by_sku.entry(sku.clone()).or_default().push(item.id);
                }
            }
        }
        Snapshot { activities, places, by_item, by_activity, by_external_id, by_sku }
    }

    /// The items of the list that the shop knows by this id, in its order.
    pub fn items_by_sku(&self, sku: &str) -> impl Iterator<Item = OnShow> {
        let ids = self.by_sku.get(sku).map_or(&[][..], Vec::as_slice);
        ids.iter().filter_map(|id| self.item(*id))
    }

    pub fn item(&self, id: ItemId) -> Option<OnShow> {
        let at = *self.by_item.get(&id)?;
        OnShow::of(self.activities[at].clone(), id)
    }

    pub fn activity(&self, id: ActivityId) -> Option<&Arc<Activity>> {
        self.by_activity.get(&id).map(|at| &self.activities[*at])
    }

    /// The activities behind this place, at most so many, and the place of the last one if there are
    /// more.
    pub fn page(&self, after: Option<Place>, limit: usize) -> (&[Arc<Activity>], Option<Place>) {
        let begin = self.places.partition_point(|place| {
            after.is_some_and(|after| place.cmp(&after) != Ordering::Greater)
        });
        let end = begin.saturating_add(limit).min(self.places.len());
        let next = (begin < end && end < self.places.len()).then(|| self.places[end - 1]);
        (&self.activities[begin..end], next)
    }
}

impl Catalogue {
    /// Empty until it is refreshed.
    pub(crate) fn new(
        ledger: Arc<dyn Ledger>,
        published: Arc<Published>,
        clock: SharedClock,
    ) -> Catalogue {
        let (shown, read) = (RwLock::default(), tokio::sync::Mutex::default());
        Catalogue { ledger, published, clock, shown, read, beyond: Lookups::default() }
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shown.read().clone()
    }

    /// An item as pages show it, in the list or beyond it, if the ledger has published it. An error if
    /// nobody can tell.
    pub async fn item(&self, id: ItemId) -> ledger::Result<Option<OnShow>> {
        if let Some(shown) = self.snapshot().item(id) {
            return Ok(Some(shown));
        }
        let found = self.beyond.find(&WantedId::Item(id), &*self.ledger).await?;
        Ok(found.and_then(|activity| OnShow::of(activity, id)))
    }

    pub async fn activity(&self, id: ActivityId) -> ledger::Result<Option<Arc<Activity>>> {
        if let Some(shown) = self.snapshot().activity(id) {
            return Ok(Some(shown.clone()));
        }
        self.beyond.find(&WantedId::Activity(id), &*self.ledger).await
    }

    /// The activity that the shop knows by this id.
    pub async fn activity_by_external_id(
        &self,
        external_id: &str,
    ) -> ledger::Result<Option<Arc<Activity>>> {
        let snapshot = self.snapshot();
        if let Some(at) = snapshot.by_external_id.get(external_id) {
            return Ok(Some(snapshot.activities[*at].clone()));
        }
        self.beyond.find(&WantedId::External(external_id.into()), &*self.ledger).await
    }

    /// Show these, whatever the ledger says, until it is asked.
    pub fn show(&self, activities: Vec<Activity>) {
        self.replace(activities.into_iter().map(Arc::new).collect());
    }

    fn replace(&self, activities: Vec<Arc<Activity>>) {
        *self.shown.write() = Arc::new(Snapshot::of(activities, self.clock.now_ms()));
    }

    /// Shows what the ledger says now.
    pub(crate) async fn refresh(&self) -> ledger::Result<()> {
        let mut read = self.read.lock().await;
        self.published.follow().await?;
        let now_ms = self.clock.now_ms();
        let changes = self.published.changes_since(read.as_ref().map_or(0, |read| read.mark));
        let is_current = |read: &&mut ReadAt| {
            read.whole.elapsed() < READ_WHOLE_EVERY
                && (read.whole_ms..read.until_ms).contains(&now_ms)
        };
        let full = self.snapshot().activities.len() >= ACTIVITIES_SHOWN_MAX;
        match (read.as_mut().filter(is_current), changes.activities) {
            (Some(_), Some(changed)) if changed.is_empty() => {}
            // What has room when something leaves a full list only the ledger knows.
            (Some(read), Some(changed)) if !full => {
                self.show_changed(&changed, now_ms).await?;
                read.mark = changes.mark;
                read.until_ms = self.shown_until_ms(now_ms);
            }
            _ => {
                let whole = Instant::now();
                let found = self::read(&*self.ledger, now_ms).await?;
                self.show(found);
                let until_ms = self.shown_until_ms(now_ms);
                let at = ReadAt { whole, whole_ms: now_ms, until_ms, mark: changes.mark };
                *read = Some(at);
            }
        }
        Ok(())
    }

    async fn show_changed(
        &self,
        changed: &HashSet<ActivityId>,
        now_ms: Millis,
    ) -> ledger::Result<()> {
        let mut shown = self.snapshot().activities.clone();
        shown.retain(|activity| !changed.contains(&activity.id));
        let ids: Vec<ActivityId> = changed.iter().copied().collect();
        for some in ids.chunks(due::PAGE_ACTIVITIES) {
            let found = self.ledger.activities_of(some, &[], &[]).await?;
            let is_shown = |activity: &Activity| {
                activity.is_public() && activity.closes_ms > now_ms - SHOWN_AFTER_CLOSE_MS
            };
            shown.extend(found.into_iter().filter(is_shown).map(Arc::new));
        }
        self.replace(shown);
        Ok(())
    }

    /// When time alone makes the list another one.
    fn shown_until_ms(&self, now_ms: Millis) -> Millis {
        let snapshot = self.snapshot();
        let ends = snapshot.activities.iter().map(|activity| {
            let closes_ms = activity.closes_ms;
            if closes_ms > now_ms { closes_ms } else { closes_ms + SHOWN_AFTER_CLOSE_MS }
        });
        ends.filter(|end_ms| *end_ms > now_ms).min().unwrap_or(Millis::MAX)
    }

    /// Something was changed here, and pages should show it at once. What was looked up beyond the list
    /// may have changed, too.
    pub(crate) async fn reload(&self) {
        self.beyond.outdate();
        if let Err(error) = self.refresh().await {
            tracing::warn!(%error, "the catalogue could not be refreshed, the job will");
        }
    }
}

/// What the list shows: first all that is not over; what is over if there is room.
async fn read(ledger: &dyn Ledger, now_ms: Millis) -> ledger::Result<Vec<Activity>> {
    let mut shown = Vec::new();
    for filter in due::published() {
        let coming = filter.closing_after(now_ms).in_order(ActivityOrder::OpensFirst);
        shown.extend(ledger.activities_where(&coming, None, ACTIVITIES_SHOWN_MAX).await?);
    }
    let room = ACTIVITIES_SHOWN_MAX.saturating_sub(shown.len());
    if room > 0 {
        let ended = ActivityFilter::all(ActivityState::Ended);
        let ended = ended.closing_after(now_ms - SHOWN_AFTER_CLOSE_MS);
        // The job that ends activities comes a moment after the clock does.
        let over = due::published().map(|filter| filter.closing_by(now_ms));
        for filter in over.into_iter().chain([ended]) {
            let last = filter.in_order(ActivityOrder::ClosesLast);
            shown.extend(ledger.activities_where(&last, None, room).await?);
        }
    }
    shown.retain(Activity::is_public);
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use gate::Decision;

    use super::*;
    use crate::test_engine::{NOW_MS, TestEngine, one_unit};

    #[tokio::test]
    async fn an_open_sale_is_shown_and_sold_whatever_is_newer() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        let coming = (NOW_MS + 1_000, NOW_MS + 9_000);
        shop.plan_many(ActivityState::Draft, 1_100, coming).await;
        let many = shop.plan_many(ActivityState::Published, 1_100, coming).await;
        engine.catalogue.reload().await;
        let shown = engine.catalogue.snapshot();
        assert_eq!(shown.activities.len(), ACTIVITIES_SHOWN_MAX);
        assert_eq!(shown.activities[0].id, activity.id, "what is open comes first");
        // The last of them has no room in the list, and is found all the same.
        let last = ItemId(many.end - 1);
        assert!(shown.item(last).is_none());
        let found = engine.catalogue.item(last).await.unwrap().unwrap();
        assert_eq!(found.item().id, last);
        assert!(engine.catalogue.activity(found.activity().id).await.unwrap().is_some());
        assert!(engine.catalogue.item(ItemId(many.end)).await.unwrap().is_none());
        let answer = engine.claims.claim(one_unit(item, "ann")).await;
        assert!(matches!(answer, Decision::Admitted { .. }), "{answer:?}");
        let answer = engine.claims.claim(one_unit(last, "ann")).await;
        assert!(matches!(answer, Decision::NotStarted { .. }), "{answer:?}");
    }

    #[tokio::test]
    async fn an_open_sale_beyond_the_list_is_sold_like_any_other() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        // A thousand sales that have been open for a while take all places of the list.
        shop.plan_many(ActivityState::Published, 1_000, (NOW_MS - 9, NOW_MS + 9_000_000)).await;
        let sale = shop.another_sale("beyond", (NOW_MS - 1, NOW_MS + 9_000), 60_000).await;
        let (engine, item) = (&shop.engine, sale.items[0].id);
        engine.operations.warm_activity("ann", sale.id, false).await.unwrap();
        assert!(engine.catalogue.snapshot().item(item).is_none());
        assert!(engine.catalogue.item(item).await.unwrap().is_some());
        let answer = engine.claims.claim(one_unit(item, "ann")).await;
        assert!(matches!(answer, Decision::Admitted { .. }), "{answer:?}");
    }

    #[tokio::test]
    async fn what_was_looked_up_is_remembered_and_known_while_the_ledger_is_silent() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let drafts = shop.plan_many(ActivityState::Draft, 1, (NOW_MS, NOW_MS + 9)).await;
        shop.plan_many(ActivityState::Published, 1_000, (NOW_MS - 9, NOW_MS + 9_000_000)).await;
        let beyond = shop.plan_many(ActivityState::Published, 1, (NOW_MS, NOW_MS + 9_000)).await;
        let (engine, beyond) = (&shop.engine, ItemId(beyond.start));
        engine.catalogue.reload().await;
        let (draft, junk) = (ItemId(drafts.start), ItemId(i64::MAX));
        // Many at once share a look.
        let looks = (0..500).map(|n| engine.catalogue.item(ItemId(1_000_000 + n)));
        for answer in futures_util::future::join_all(looks).await {
            assert!(answer.unwrap().is_none());
        }
        for id in [draft, junk] {
            assert!(engine.catalogue.item(id).await.unwrap().is_none(), "{id}");
        }
        assert!(engine.catalogue.item(beyond).await.unwrap().is_some());
        shop.hide_activities(true);
        assert!(engine.catalogue.item(junk).await.unwrap().is_none(), "remembered");
        assert!(engine.catalogue.item(ItemId(7_000_000)).await.is_err(), "nobody knows");
        // What was found is still known when it should be asked for again; a "no" is not.
        engine.catalogue.beyond.outdate();
        assert!(engine.catalogue.item(beyond).await.unwrap().is_some());
        assert!(engine.catalogue.item(junk).await.is_err());
        shop.hide_activities(false);
        assert!(engine.catalogue.item(junk).await.unwrap().is_none());
    }

    fn activity(id: i64, opens_ms: Millis, closes_ms: Millis) -> Arc<Activity> {
        Arc::new(Activity {
            id: ActivityId(id),
            external_id: None,
            name: String::new(),
            opens_ms,
            closes_ms,
            pay_within_ms: 1,
            publish_ms: None,
            resume_ms: None,
            given_up: false,
            door: Default::default(),
            draw: None,
            version: 0,
            state: ActivityState::Published,
            items: Vec::new(),
        })
    }

    #[test]
    fn the_list_is_leafed_through_in_the_order_of_a_shop() {
        let all = [
            activity(1, 10, 20),
            activity(2, 30, 200),
            activity(3, 300, 400),
            activity(4, 25, 200),
            activity(5, 10, 40),
            activity(6, 300, 500),
        ];
        let snapshot = Snapshot::of(all.to_vec(), 100);
        let ids = |page: &[Arc<Activity>]| -> Vec<i64> { page.iter().map(|a| a.id.0).collect() };
        let (whole, next) = snapshot.page(None, 10);
        assert_eq!((ids(whole), next), (vec![4, 2, 3, 6, 5, 1], None));
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let (page, next) = snapshot.page(after, 2);
            seen.extend(ids(page));
            let Some(next) = next else { break };
            // It travels as text.
            after = Some(next.to_string().parse().unwrap());
        }
        assert_eq!(seen, ids(whole));
        for bad in ["", "2_1_1", "0_1", "0_x_1", "0_1_x", "0_1_1_1", "00_1_1"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }
}

//! Fair start: opens a room before each item that has a draw, in time for its opening, has the draw held, and
//! keeps its record.
//!
//! How a draw works is told in [`sale::Draw`] and in `gate::draw`. Here is what it needs of others: the
//! seed, which is read from the ledger a minute or two before the opening, so that nothing is read while
//! buyers claim; the other instances, who are told by way of the coordination; and the record, which is
//! written when everybody has been answered. A process that dies between the two leaves its part of the
//! record out, and nothing else.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use gate::{Decision, DrawExchange, DrawWindow, NobodyElse, PostedPlace, Room};
use ledger::DRAWN_AT_ONCE_MAX;
use parking_lot::Mutex;
use sale::{
    Activity, ActivityState, DrawOutcome, DrawPlace, DrawSecrets, Drawn, ItemId, Millis,
    SEED_SHOWN_AFTER_MS, UserId,
};
use tokio::task::JoinSet;

use crate::{Catalogue, coordination::Coordination, shared::Shared};

/// Rooms are there so long before the opening.
const PREPARED_MS: Millis = 120_000;
/// Other instances have so long to tell their places: their clocks may be behind ours.
const SWAP: Duration = Duration::from_millis(300);
/// And so long to bring their winners to the gate.
const FED_MAX: Duration = Duration::from_secs(2);
const FED_LOOK: Duration = Duration::from_millis(20);
/// A record that the ledger does not take is tried again, so many times, after a pause.
const RECORD_TRIES_MAX: u32 = 60;
const RECORD_PAUSE: Duration = Duration::from_secs(5);
/// A stop waits so long for records.
const STOP_MAX: Duration = Duration::from_secs(2);
/// Of one instance; more is not believed.
const POSTED_MAX: usize = 50_000;
const POSTED_BYTES: usize = 12;

pub struct FairStart {
    shared: Arc<Shared>,
    catalogue: Arc<Catalogue>,
    held: Arc<Mutex<HashMap<ItemId, Arc<Room>>>>,
    draws: Mutex<JoinSet<()>>,
}

/// What a buyer recognises their place by, and where it is when the draw is over.
#[derive(Clone, Debug)]
pub struct DrawTicket {
    pub ticket: String,
    pub place: Option<DrawPlace>,
    /// On record, if they took part.
    pub outcome: Option<DrawOutcome>,
}

impl FairStart {
    pub(crate) fn new(shared: Arc<Shared>, catalogue: Arc<Catalogue>) -> FairStart {
        FairStart { shared, catalogue, held: Arc::default(), draws: Mutex::default() }
    }

    /// Opens the rooms that will be needed soon, and closes those whose window was moved.
    pub(crate) async fn refresh(&self) -> ledger::Result<()> {
        let catalogue = self.catalogue.snapshot();
        let fair = catalogue.activities.iter().filter(|activity| activity.draw.is_some());
        let mut prepared = Ok(());
        for activity in fair {
            // What is wrong with one sale must not cost those after it their rooms.
            let this = self.prepare(activity).await;
            prepared = prepared.and(this);
        }
        while self.draws.lock().try_join_next().is_some() {}
        prepared
    }

    async fn prepare(&self, activity: &Activity) -> ledger::Result<()> {
        let now_ms = self.shared.now_ms();
        let is_on = matches!(activity.state, ActivityState::Published | ActivityState::Paused);
        let (opens_ms, ends_ms) = (activity.opens_ms, activity.gate_opens_ms());
        let mut secrets = None;
        for item in &activity.items {
            let held = self.held.lock().get(&item.id).cloned();
            let is_ours = |room: &Arc<Room>| room.window().ends_ms == ends_ms;
            if let Some(room) = held.as_ref().filter(|room| !is_on || !is_ours(room)) {
                let decision =
                    if is_on { Decision::NotStarted { opens_ms } } else { Decision::Ended };
                self.shared.lanes.close_room(room, &decision);
            }
            let is_soon = is_on && opens_ms - now_ms <= PREPARED_MS && now_ms < ends_ms;
            if is_soon && !held.as_ref().is_some_and(is_ours) {
                if secrets.is_none() {
                    secrets = self.secrets(activity).await?;
                }
                let Some(secrets) = &secrets else { return Ok(()) };
                self.open(activity, item.id, secrets);
            }
        }
        Ok(())
    }

    fn open(&self, activity: &Activity, item: ItemId, secrets: &DrawSecrets) {
        let window = DrawWindow {
            item,
            opens_ms: activity.opens_ms,
            ends_ms: activity.gate_opens_ms(),
            order: secrets.order(item),
        };
        let Some(room) = self.shared.lanes.open_room(window, self.shared.clock.clone()) else {
            tracing::warn!(%item, "too many draws at once: claims wait for the end of the window");
            return;
        };
        self.held.lock().insert(item, room.clone());
        let (shared, held) = (self.shared.clone(), self.held.clone());
        self.draws.lock().spawn(async move {
            let leaving = Leaving { shared: shared.clone(), held, room: room.clone() };
            let record = hold(&shared, &room).await;
            drop(leaving);
            keep(&shared, item, &record).await;
        });
    }

    /// Nothing that is not what was published: a draw that nobody can check is none.
    async fn secrets(&self, activity: &Activity) -> ledger::Result<Option<DrawSecrets>> {
        let Some(draw) = &activity.draw else { return Ok(None) };
        let secrets = self.shared.ledger.draw_secrets(activity.id).await?;
        let kept = secrets.filter(|secrets| secrets.commitment() == draw.commitment);
        if kept.is_none() {
            let activity = activity.id;
            tracing::error!(%activity, "the seed of a draw is not the one that was published: \
                nobody is drawn, and the sale opens when its window is over; look into tb_draw");
        }
        Ok(kept)
    }

    /// The seed, when nobody can gain by it any more.
    pub async fn seed(&self, activity: &Activity) -> ledger::Result<Option<String>> {
        if activity.draw.is_none() || !self.is_over(activity) {
            return Ok(None);
        }
        let secrets = self.shared.ledger.draw_secrets(activity.id).await?;
        Ok(secrets.map(|secrets| secrets.expose_seed()))
    }

    fn is_over(&self, activity: &Activity) -> bool {
        let shown_ms = activity.gate_opens_ms().saturating_add(SEED_SHOWN_AFTER_MS);
        self.shared.now_ms() >= shown_ms
    }

    /// A page of the record, in the order of the draw; nothing before it is over.
    pub async fn record(
        &self,
        activity: &Activity,
        item: ItemId,
        after: Option<DrawPlace>,
        limit: usize,
    ) -> ledger::Result<Vec<Drawn>> {
        match self.is_over(activity) {
            true => self.shared.ledger.drawn(item, after, limit).await,
            false => Ok(Vec::new()),
        }
    }

    /// What this buyer recognises themselves by. Before the draw, too, so that nobody can change it
    /// afterwards.
    pub async fn ticket(
        &self,
        activity: &Activity,
        item: ItemId,
        user: &UserId,
    ) -> ledger::Result<Option<DrawTicket>> {
        let secrets = self.shared.ledger.draw_secrets(activity.id).await?;
        let Some(secrets) = secrets.filter(|_| activity.draw.is_some()) else { return Ok(None) };
        let ticket = secrets.ticket(item, user);
        if !self.is_over(activity) {
            return Ok(Some(DrawTicket { ticket, place: None, outcome: None }));
        }
        let place = secrets.order(item).place_of_ticket(&ticket);
        let drawn = self.shared.ledger.drawn_at(item, place).await?;
        let outcome = drawn.map(|drawn| drawn.outcome);
        Ok(Some(DrawTicket { ticket, place: Some(place), outcome }))
    }

    /// The lanes have stopped, and with them the rooms; what is on its way to the record gets there.
    pub(crate) async fn stop(&self) {
        let mut draws = std::mem::take(&mut *self.draws.lock());
        let all = async { while draws.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_MAX, all).await.is_err() {
            tracing::warn!("the record of a draw is not complete: this process stops");
        }
    }
}

/// Takes the room away when its draw was held, also if that ended with a panic: a room in front of which
/// nobody stands any more would let everybody wait who comes to it.
struct Leaving {
    shared: Arc<Shared>,
    held: Arc<Mutex<HashMap<ItemId, Arc<Room>>>>,
    room: Arc<Room>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.shared.lanes.close_room(&self.room, &Decision::TooHot);
        // It may be that of a window that was moved meanwhile.
        self.held.lock().retain(|_, here| !Arc::ptr_eq(here, &self.room));
    }
}

async fn hold(shared: &Arc<Shared>, room: &Arc<Room>) -> Vec<Drawn> {
    if !shared.is_cluster() {
        return shared.lanes.hold_draw(room, &NobodyElse).await;
    }
    let name = format!("{}:{}", room.window().item, room.window().ends_ms);
    let others = OtherInstances { coordination: shared.coordination.clone(), name };
    shared.lanes.hold_draw(room, &others).await
}

/// Writes the record, as soon as the ledger takes it.
async fn keep(shared: &Shared, item: ItemId, record: &[Drawn]) {
    for lines in record.chunks(DRAWN_AT_ONCE_MAX) {
        for tries in 1.. {
            let Err(error) = shared.ledger.note_drawn(item, lines).await else { break };
            if tries >= RECORD_TRIES_MAX {
                tracing::error!(%item, %error, "the record of a draw could not be kept: buyers \
                    were served as drawn, and nobody can look it up");
                return;
            }
            if tries == 1 {
                tracing::warn!(%item, %error, "the record of a draw could not be kept yet");
            }
            tokio::time::sleep(RECORD_PAUSE).await;
        }
    }
    if !record.is_empty() {
        let won = record.iter().filter(|drawn| drawn.outcome == DrawOutcome::Won).count();
        tracing::info!(%item, claimants = record.len(), won, "a draw was held");
    }
}

/// What rooms of other instances tell, by way of the coordination.
struct OtherInstances {
    coordination: Arc<dyn Coordination>,
    name: String,
}

#[async_trait]
impl DrawExchange for OtherInstances {
    async fn swap(&self, ours: Vec<PostedPlace>) -> Vec<Vec<PostedPlace>> {
        let bytes = |(place, quantity): &PostedPlace| {
            [&place.to_be_bytes()[..], &quantity.to_be_bytes()[..]].concat()
        };
        let told = ours.iter().flat_map(bytes).collect();
        if let Err(error) = self.coordination.put_part(&self.name, told).await {
            tracing::warn!(%error, "the draw of this instance does not know of the others");
            return Vec::new();
        }
        tokio::time::sleep(SWAP).await;
        let others = self.coordination.parts_of_others(&self.name).await;
        others.iter().map(|part| posted(part)).collect()
    }

    async fn fed(&self, others: usize) {
        let (began, name) = (Instant::now(), format!("{}:fed", self.name));
        if others == 0 || self.coordination.put_part(&name, Vec::new()).await.is_err() {
            return;
        }
        while self.coordination.parts_of_others(&name).await.len() < others
            && began.elapsed() < FED_MAX
        {
            tokio::time::sleep(FED_LOOK).await;
        }
    }
}

fn posted(part: &[u8]) -> Vec<PostedPlace> {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n: u64, byte| n << 8 | u64::from(*byte));
    let places = part.chunks_exact(POSTED_BYTES).take(POSTED_MAX);
    places.map(|bytes| (number(&bytes[..8]), number(&bytes[8..]) as u32)).collect()
}

#[cfg(test)]
mod tests {
    use gate::Busy;
    use sale::{ActivityEdit, ActivityMove, NewActivity};

    use super::*;
    use crate::test_engine::{NOW_MS, TestEngine, one_unit, plan};

    const OPENS_MS: Millis = NOW_MS + 60_000;
    const SHUFFLE_MS: Millis = 500;
    const ENDS_MS: Millis = OPENS_MS + SHUFFLE_MS;

    /// A sale of ten units with a draw, which is published and at the gate.
    async fn fair_sale(shop: &TestEngine) -> Activity {
        let window = (OPENS_MS, OPENS_MS + 3_600_000);
        let new = NewActivity { shuffle_ms: SHUFFLE_MS, ..plan("fair", window, 60_000) };
        let id = shop.engine.plans.create("ann", new, None).await.unwrap().id;
        let published = shop.engine.operations.move_activity("ann", id, ActivityMove::Publish);
        let (published, _) = published.await.unwrap();
        shop.engine.operations.warm_activity("ann", id, false).await.unwrap();
        published
    }

    fn enter(
        shop: &TestEngine,
        item: ItemId,
        user: &str,
    ) -> Result<gate::PendingDecision, Decision> {
        shop.engine.claims.enter(one_unit(item, user), Instant::now())
    }

    #[tokio::test]
    async fn without_a_room_nobody_gets_round_the_draw_and_with_one_nobody_is_first() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let sale = fair_sale(&shop).await;
        let (item, fair) = (sale.items[0].id, &shop.engine.fair_start);
        // As an instance of a release before, or one that could not read the seed.
        shop.clock.set(OPENS_MS + 1);
        let early = shop.engine.claims.claim(one_unit(item, "early")).await;
        assert_eq!(early, Decision::NotStarted { opens_ms: ENDS_MS });

        fair.refresh().await.unwrap();
        let waiting: Vec<_> =
            (0..30).map(|n| enter(&shop, item, &format!("u{n}")).unwrap()).collect();
        assert!(fair.seed(&sale).await.unwrap().is_none(), "not in the window");
        let before = fair.ticket(&sale, item, &"u7".parse().unwrap()).await.unwrap().unwrap();
        assert_eq!((before.place, before.outcome), (None, None));
        shop.clock.set(ENDS_MS);
        let (mut won, mut lost) = (Vec::new(), 0);
        for (n, decision) in waiting.into_iter().enumerate() {
            match decision.await {
                Decision::Admitted { .. } => won.push(n),
                Decision::SoldOut { .. } => lost += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((won.len(), lost), (10, 20));
        fair.stop().await;

        shop.clock.set(ENDS_MS + SEED_SHOWN_AFTER_MS - 1);
        assert!(fair.seed(&sale).await.unwrap().is_none(), "an instance may be behind");
        assert!(fair.record(&sale, item, None, 99).await.unwrap().is_empty());
        shop.clock.set(ENDS_MS + SEED_SHOWN_AFTER_MS);
        assert!(fair.seed(&sale).await.unwrap().is_some());
        let record = fair.record(&sale, item, None, 99).await.unwrap();
        let outcomes: Vec<_> = record.iter().map(|drawn| drawn.outcome).collect();
        assert!(outcomes[..10].iter().all(|outcome| *outcome == DrawOutcome::Won), "{outcomes:?}");
        assert_eq!(outcomes.len(), 30);
        for n in 0..30 {
            let user = format!("u{n}").parse().unwrap();
            let found = fair.ticket(&sale, item, &user).await.unwrap().unwrap();
            assert_eq!(found.outcome == Some(DrawOutcome::Won), won.contains(&n));
        }
        let after = fair.ticket(&sale, item, &"u7".parse().unwrap()).await.unwrap().unwrap();
        assert_eq!(after.ticket, before.ticket);
    }

    #[tokio::test]
    async fn a_sale_that_is_moved_or_ended_takes_its_room_along_and_keeps_its_commitment() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let sale = fair_sale(&shop).await;
        let (item, engine) = (sale.items[0].id, &shop.engine);
        engine.fair_start.refresh().await.unwrap();
        let later = ActivityEdit { opens_ms: Some(OPENS_MS + 1_000), ..Default::default() };
        let moved = engine.plans.edit("ann", sale.id, sale.version, &later).await.unwrap();
        assert_eq!(moved.draw, sale.draw);
        // Its room is still that of the old window, and who waits in it is told the new one.
        shop.clock.set(OPENS_MS);
        let early = enter(&shop, item, "early").unwrap();
        engine.fair_start.refresh().await.unwrap();
        assert_eq!(early.await, Decision::NotStarted { opens_ms: moved.opens_ms });
        let early = enter(&shop, item, "early").err();
        assert_eq!(early, Some(Decision::NotStarted { opens_ms: moved.opens_ms }));
        shop.clock.set(moved.opens_ms);
        let waiting = enter(&shop, item, "ann").unwrap();
        let change = ActivityEdit { shuffle_ms: Some(0), ..Default::default() };
        let refused = engine.plans.edit("ann", sale.id, moved.version, &change).await;
        assert!(refused.is_err(), "what was committed to holds");
        engine.operations.move_activity("ann", sale.id, ActivityMove::End).await.unwrap();
        engine.fair_start.refresh().await.unwrap();
        assert_eq!(waiting.await, Decision::Ended);
    }

    #[tokio::test]
    async fn a_seed_that_cannot_be_read_costs_no_other_sale_its_room() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let (broken, sound) = (fair_sale(&shop).await, fair_sale(&shop).await);
        shop.change_ledger(&format!(
            "UPDATE tb_draw SET seed = 'x' WHERE activity_id = {}",
            broken.id
        ));
        assert!(shop.engine.fair_start.refresh().await.is_err(), "somebody is told");
        assert!(!shop.engine.shared.lanes.has_room(broken.items[0].id));
        assert!(shop.engine.shared.lanes.has_room(sound.items[0].id));
    }

    #[tokio::test]
    async fn a_stop_in_the_window_takes_nothing_and_a_seed_that_was_changed_draws_nobody() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let sale = fair_sale(&shop).await;
        let item = sale.items[0].id;
        shop.engine.fair_start.refresh().await.unwrap();
        shop.clock.set(OPENS_MS);
        let waiting = enter(&shop, item, "ann").unwrap();
        let shop = shop.reopen().await;
        assert_eq!(waiting.await, Decision::Busy(Busy::Unwritable));
        shop.change_ledger("UPDATE tb_draw SET seed = salt");
        shop.engine.fair_start.refresh().await.unwrap();
        let early = shop.engine.claims.claim(one_unit(item, "ann")).await;
        assert_eq!(early, Decision::NotStarted { opens_ms: ENDS_MS });
        shop.clock.set(ENDS_MS);
        let served = shop.engine.claims.claim(one_unit(item, "ann")).await;
        assert!(matches!(served, Decision::Admitted { .. }), "{served:?}");
    }
}

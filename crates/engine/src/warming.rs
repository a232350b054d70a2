//! Warming: bringing an item to the gate, and keeping it there.
//!
//! A compare-and-set state machine in the ledger: any state → warming under the next epoch → ready.
//! It may be run twice, by two people, or die at any point:
//!
//! 1. `begin_warm` bumps the epoch. Dying here leaves the item warming; the next run bumps again.
//! 2. The gate hands the item over, under this epoch, whether it has it or not: from here on no claim
//!    is added, what others carry from the ledger to the gate waits, and whoever loads it under an
//!    earlier epoch is refused. Only then is anything read, so what is read cannot be overtaken.
//! 3. The claims in flight are read from the log, *then* the ledger is read in one transaction. A
//!    claim that a worker settles in between is in both, and the ledger says so: it counts once.
//!    What is closed, settled or adjusted while the reading goes on is not in it, and comes to the
//!    gate afterwards, by the outbox or the log, as it would have without a load.
//! 4. The gate is loaded with `stock − units in flight` and the marks of everyone who holds
//!    something, page by page as they come. Of two runs the later one stands; the other one waits a
//!    moment, and if the item is at the gate by then, that is what it wanted.
//! 5. `finish_warm`. Dying before it: the scheduler sees *warming* at the gate's epoch and finishes.
//!    Dying in the middle of the load: the gate tells how long it has been quiet, and after ten seconds
//!    the next one starts over.
//!
//! **Where claims go by a message broker** it may have some that the gate has lost: a failover of Redis
//! takes them from the log, and their messages are on their way. So an item that was at the gate once and
//! is not, or whose writes were seen to be lost, is loaded after the workers have settled what is at the
//! broker when the load begins; while it does not answer such an item stays shut. All others are loaded
//! without asking it.
//!
//! However long the ledger takes, the loader tells the gate all the time that it lives: otherwise two
//! processes would take a large item from each other for ever.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{StreamExt, future::join_all, stream};
use gate::{GateFailure, Loaded, Loading, Presence, Shut};
use ledger::{LedgerError, WalkTurn};
use orders::broker::caught_up;
use sale::{
    Activity, ActivityId, ActivityState, Claim, Epoch, Item, ItemId, ItemState, Millis, OrderNo,
};

use crate::{Catalogue, shared::Shared};

/// How often the gate is told anew because somebody moved the activity meanwhile. Then the job does it.
const TELL_TRIES_MAX: u32 = 8;
/// Items of which the gate is told at the same time.
const TOLD_AT_ONCE_MAX: usize = 64;
/// How often a run starts over when somebody else moved the epoch.
const WARM_TRIES_MAX: u32 = 8;
/// Whoever was overtaken looks again after a time between these.
const OVERTAKEN_PAUSE_MS: std::ops::Range<u64> = 200..1_000;
/// So long it is waited for what a broker has of an item that the gate lost. Then the job tries again.
const BROKER_WAIT_MAX: Duration = Duration::from_secs(60);
/// A load that has made no step for so long has died.
const LOADER_QUIET_MS_MAX: u64 = 10_000;
/// So often a loader says that it lives.
const LOADER_BEAT: Duration = Duration::from_millis(LOADER_QUIET_MS_MAX / 8);
/// Items that are loaded at the same time, so that one with millions of orders does not keep the others
/// from their opening.
pub(crate) const LOADS_AT_ONCE_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warmed {
    pub item: ItemId,
    pub epoch: Epoch,
    pub left: i64,
    /// It was at the gate already, and nothing was changed.
    pub already: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum WarmError {
    #[error("no such item")]
    UnknownItem,
    #[error("the item's activity is not published")]
    NotPublished,
    #[error("the item's activity is over")]
    Ended,
    #[error("somebody else is warming this item")]
    Contended,
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Gate(#[from] gate::GateError),
}

pub(crate) struct Warming {
    pub(crate) shared: Arc<Shared>,
    pub(crate) catalogue: Arc<Catalogue>,
}

impl Warming {
    /// Bring an item to the gate if it is not there.
    pub(crate) async fn warm(&self, item: ItemId) -> Result<Warmed, WarmError> {
        self.warm_with(item, false).await
    }

    /// Load an item anew from the ledger even if the gate has it.
    pub(crate) async fn rebuild(&self, item: ItemId) -> Result<Warmed, WarmError> {
        self.warm_with(item, true).await
    }

    /// Load an item anew that may have lost writes, unless somebody is loading it: what they load is as
    /// good, and if it suffers the same fate the gate says so again.
    pub(crate) async fn mend(&self, item: ItemId) -> Result<Option<Warmed>, WarmError> {
        let here = self.shared.gate.loaded_item(item).await?;
        if here.as_ref().is_some_and(is_being_loaded) {
            return Ok(None);
        }
        self.rebuild(item).await.map(Some)
    }

    async fn warm_with(&self, id: ItemId, mut anew: bool) -> Result<Warmed, WarmError> {
        let asked_at = if anew { self.epoch_at_gate(id).await? } else { None };
        for _ in 0..WARM_TRIES_MAX {
            if let Some(warmed) = self.try_to_warm(id, anew).await? {
                return Ok(warmed);
            }
            // Whoever overtook us began after we were asked, so theirs is as new as was wanted. What was
            // there before is not: a ledger that was restored counts up to it once more.
            anew = anew && self.epoch_at_gate(id).await? == asked_at;
            tokio::time::sleep(overtaken_pause()).await;
        }
        Err(WarmError::Contended)
    }

    async fn epoch_at_gate(&self, id: ItemId) -> Result<Option<Epoch>, WarmError> {
        Ok(self.shared.gate.loaded_item(id).await?.map(|here| here.epoch))
    }

    /// `None` if somebody else is at it.
    async fn try_to_warm(&self, id: ItemId, anew: bool) -> Result<Option<Warmed>, WarmError> {
        // Before our turn at the gate, and before the item is frozen: a large one may have to wait until
        // another one is read.
        let walk = match self.shared.ledger.walk_turn(id).await {
            Err(LedgerError::NotFound) => return Err(WarmError::UnknownItem),
            walk => walk?,
        };
        let turn = self.shared.gate_turns.of(id).await;
        let item = self.shared.ledger.item(id).await?.ok_or(WarmError::UnknownItem)?;
        let activity =
            self.shared.ledger.activity(item.activity).await?.ok_or(WarmError::UnknownItem)?;
        match activity.state {
            ActivityState::Draft => return Err(WarmError::NotPublished),
            ActivityState::Ended => return Err(WarmError::Ended),
            ActivityState::Published | ActivityState::Paused => {}
        }
        let here = self.shared.gate.loaded_item(id).await?;
        let was_lost = item.epoch > 0 && here.is_none();
        let was_lost = was_lost || self.shared.gate.suspects().contains(&id);
        if !anew {
            if here.as_ref().is_some_and(is_being_loaded) {
                return Ok(None);
            }
            if let Some(warmed) = self.already_warm(&activity, &item, here).await? {
                return Ok(Some(warmed));
            }
        }
        let Some(epoch) = self.shared.ledger.begin_warm(id, item.epoch).await? else {
            return Ok(None);
        };
        assert!(epoch > item.epoch, "item {id}: epoch {epoch} does not follow {}", item.epoch);
        // At a gate that several processes share a load is fenced by its epoch, and what others carry
        // there must not wait for the end of one that takes a minute.
        let _turn = (!self.shared.is_cluster()).then_some(turn);
        let loaded = self.load(&item, epoch, walk, was_lost).await;
        if !matches!(loaded, Ok(Some(_))) {
            // Where a later epoch is, nothing is left to abandon. Where ours is, nobody need wait for us.
            self.shared.gate.abandon_load(id, epoch).await;
        }
        let warmed = loaded?;
        if warmed.is_some() {
            self.catalogue.reload().await;
        }
        Ok(warmed)
    }

    async fn already_warm(
        &self,
        activity: &Activity,
        item: &Item,
        here: Option<Loaded>,
    ) -> Result<Option<Warmed>, WarmError> {
        let here = here.is_some_and(|here| is_as_planned(activity, item, &here));
        if !here || !matches!(item.state, ItemState::Warming | ItemState::Ready) {
            return Ok(None);
        }
        if item.state == ItemState::Warming {
            self.shared.ledger.finish_warm(item.id, item.epoch).await?;
        }
        let left = self.shared.gate.left(item.id).unwrap_or(0);
        Ok(Some(Warmed { item: item.id, epoch: item.epoch, left, already: true }))
    }

    /// Steps 2 to 5. `None` if a later epoch is at the gate.
    async fn load(
        &self,
        item: &Item,
        epoch: Epoch,
        walk: WalkTurn,
        was_lost: bool,
    ) -> Result<Option<Warmed>, WarmError> {
        if !self.shared.gate.begin_load(item.id, epoch, item.shards).await? {
            return Ok(None);
        }
        let item = item.id;
        let loaded = tokio::select! {
            loaded = self.carry_to_gate(item, epoch, walk, was_lost) => loaded?,
            () = self.beat_until_overtaken(item, epoch) => None,
        };
        let Some(left) = loaded else { return Ok(None) };
        self.shared.lanes.forget(item);
        self.shared.ledger.finish_warm(item, epoch).await?;
        tracing::info!(%item, epoch, left, "item is at the gate");
        Ok(Some(Warmed { item, epoch, left, already: false }))
    }

    /// Others see that the load goes on.
    async fn beat_until_overtaken(&self, item: ItemId, epoch: Epoch) {
        loop {
            tokio::time::sleep(LOADER_BEAT).await;
            // A gate that does not answer now is told the next time.
            if let Ok(false) = self.shared.gate.keep_loading(item, epoch).await {
                return;
            }
        }
    }

    /// Steps 3 and 4. Answers how many units are left; `None` if a later epoch is at the gate.
    async fn carry_to_gate(
        &self,
        item: ItemId,
        epoch: Epoch,
        walk: WalkTurn,
        was_lost: bool,
    ) -> Result<Option<i64>, WarmError> {
        let gate = &self.shared.gate;
        if was_lost {
            self.settle_what_is_at_the_broker().await?;
        }
        let in_flight = gate.in_flight(item).await?;
        let numbers: Vec<OrderNo> = in_flight.iter().map(|claim| claim.order_no).collect();
        let (basis, mut marks) = self.shared.ledger.warm_basis(walk, item, &numbers).await?;
        while let Some(page) = marks.next().await? {
            if !gate.fill(item, epoch, page).await? {
                return Ok(None);
            }
        }
        // A claim can be on the log and deferred at once, between the two; it counts once.
        let open = in_flight.into_iter().filter(|claim| !basis.settled.contains(&claim.order_no));
        let open: HashMap<OrderNo, Claim> =
            open.chain(basis.failed).map(|claim| (claim.order_no, claim)).collect();
        let held: i64 = open.values().map(|claim| i64::from(claim.quantity)).sum();
        let left = basis.item.stock - held;
        let loading = Loading {
            item,
            epoch,
            opens_ms: basis.activity.gate_opens_ms(),
            closes_ms: basis.activity.closes_ms,
            limit: basis.item.limit_per_user,
            shards: basis.item.shards,
            left,
            marks: open.into_values().collect(),
            adjusted: basis.adjusted,
            shut: shut_of(basis.activity.state),
        };
        Ok(gate.load(loading).await?.then_some(left))
    }

    /// Claims that the gate has lost may be there: their units must not be sold again.
    async fn settle_what_is_at_the_broker(&self) -> Result<(), WarmError> {
        let Some(broker) = &self.shared.broker else { return Ok(()) };
        let cause = match caught_up(&**broker, BROKER_WAIT_MAX).await {
            Ok(true) => return Ok(()),
            Ok(false) => "the workers have not settled yet what is at the broker".to_owned(),
            Err(error) => error.to_string(),
        };
        let cause =
            format!("the gate may have lost claims of this item that the broker has: {cause}");
        Err(gate::GateError::new(GateFailure::Unreachable, cause).into())
    }

    /// Warm what opens soon, warm again what the gate lost, and see to it that the gate is shut
    /// when and only when the ledger says so. One item's failure is not another's.
    pub(crate) async fn warm_due(&self, now_ms: Millis) -> Result<(), WarmError> {
        let loaded = AtGate::of(self.shared.gate.loaded_lately().await?);
        let soon = now_ms + self.shared.settings.gate.warm_before_ms as Millis;
        self.shared.published.follow().await?;
        let is_due = |activity: &Activity| {
            activity.first_claim_ms() <= soon
                && activity.closes_ms > now_ms
                && !is_all_warm(activity, &loaded)
        };
        let mut due = self.shared.published.those(is_due);
        due.sort_unstable_by_key(|activity| activity.opens_ms);
        let each = |activity: Arc<Activity>| self.keep_all_warm(activity, &loaded);
        stream::iter(due.into_iter().map(each))
            .buffer_unordered(LOADS_AT_ONCE_MAX)
            .collect::<()>()
            .await;
        Ok(())
    }

    async fn keep_all_warm(&self, activity: Arc<Activity>, loaded: &AtGate) {
        let activity = &*activity;
        let each = |item| async move {
            let item: &Item = item;
            if let Err(error) = self.keep_warm(activity, item, loaded.get(item.id)).await {
                tracing::warn!(item = %item.id, %error, "item could not be warmed, will try again");
            }
        };
        stream::iter(&activity.items).for_each_concurrent(LOADS_AT_ONCE_MAX, each).await;
        // Both may be of before an operator's word, so this only says that it is worth a look.
        let wanted = shut_of(activity.state);
        let differs = |item: &&Item| {
            let here = loaded.get(item.id).filter(|here| is_whole(item, here));
            // One with another window stays shut until it is loaded anew.
            let here = here.filter(|here| here.window == window_of(activity));
            here.is_some_and(|here| here.shut != Some(Shut::Frozen) && here.shut != wanted)
        };
        let untold: Vec<ItemId> =
            activity.items.iter().filter(differs).map(|item| item.id).collect();
        if !untold.is_empty()
            && let Err(error) = self.tell_gate_again(activity.id, &untold).await
        {
            let state = activity.state.as_str();
            tracing::warn!(activity = %activity.id, state, %error,
                "the gate did not hear of an activity's new state and is told again in the next run");
        }
    }

    /// The gate is told what the ledger says now, not what it said before our turn came.
    pub(crate) async fn tell_gate_again(
        &self,
        id: ActivityId,
        items: &[ItemId],
    ) -> Result<(), WarmError> {
        let _turn = self.shared.gate_turns.of_all(items.iter().copied()).await;
        let activity = self.shared.ledger.activity(id).await?.ok_or(WarmError::UnknownItem)?;
        self.tell_gate(id, activity.state, items).await
    }

    /// Let the gate admit or refuse as the ledger says. To be called in one's turn, with the state that
    /// the ledger told in that turn.
    ///
    /// A turn is of one process. Another one of a cluster may move the activity while our word is on
    /// its way to the gate, and its word may arrive before ours. So whoever has told the gate looks into
    /// the ledger again, and tells it anew if that has changed: whoever speaks last has said what the
    /// ledger said afterwards. Whoever dies before that, or whose word arrives after they gave it up for
    /// lost, is put right by the warm job, which compares the two every `jobs.warm_poll_ms`.
    pub(crate) async fn tell_gate(
        &self,
        id: ActivityId,
        mut state: ActivityState,
        items: &[ItemId],
    ) -> Result<(), WarmError> {
        for _ in 0..TELL_TRIES_MAX {
            self.shut_items(items, shut_of(state)).await?;
            let now = self.shared.ledger.activity(id).await?.ok_or(WarmError::UnknownItem)?.state;
            if now == state {
                return Ok(());
            }
            state = now;
        }
        Err(WarmError::Contended)
    }

    /// What is not at the gate is closed anyway, and loads in the right state. One item that does not
    /// answer keeps the others from nothing; if none of so many does, the gate is away, and nobody waits
    /// for the rest of them one by one.
    async fn shut_items(&self, items: &[ItemId], shut: Option<Shut>) -> Result<(), WarmError> {
        let mut first = None;
        for some in items.chunks(TOLD_AT_ONCE_MAX) {
            let told = join_all(some.iter().map(|item| self.shared.gate.shut(*item, shut))).await;
            let away = told.iter().all(Result::is_err);
            first = first.or(told.into_iter().find_map(Result::err));
            if away {
                break;
            }
        }
        first.map_or(Ok(()), |error| Err(error.into()))
    }

    async fn keep_warm(
        &self,
        activity: &Activity,
        item: &Item,
        here: Option<&Loaded>,
    ) -> Result<(), WarmError> {
        match here {
            // Neither what is being loaded nor what cannot be read now gets better by another load.
            Some(here) if is_being_loaded(here) || here.presence == Presence::Unknown => Ok(()),
            Some(here) if item.state == ItemState::Ready && is_as_planned(activity, item, here) => {
                Ok(())
            }
            // What we saw may be old by now: whether it has to be loaded is decided anew, in our turn.
            _ => self.warm(item.id).await.map(drop),
        }
    }
}

/// Is there nothing to do for it? All that is asked of thousands of them every second.
/// What is at the gate, in the order of ids: looked through every second, with ten thousand items.
struct AtGate(Vec<Loaded>);

impl AtGate {
    fn of(mut loaded: Vec<Loaded>) -> AtGate {
        loaded.sort_unstable_by_key(|here| here.item);
        AtGate(loaded)
    }

    fn get(&self, item: ItemId) -> Option<&Loaded> {
        let place = self.0.binary_search_by_key(&item, |here| here.item).ok()?;
        Some(&self.0[place])
    }
}

fn is_all_warm(activity: &Activity, loaded: &AtGate) -> bool {
    let wanted = shut_of(activity.state);
    activity.items.iter().all(|item| {
        let here = loaded.get(item.id);
        item.state == ItemState::Ready
            && here.is_some_and(|here| is_as_planned(activity, item, here) && here.shut == wanted)
    })
}

/// Why the items of an activity in this state admit nobody; `None` if they do.
fn shut_of(state: ActivityState) -> Option<Shut> {
    match state {
        ActivityState::Paused => Some(Shut::Paused),
        ActivityState::Ended => Some(Shut::Ended),
        ActivityState::Draft | ActivityState::Published => None,
    }
}

fn window_of(activity: &Activity) -> (Millis, Millis) {
    (activity.gate_opens_ms(), activity.closes_ms)
}

/// Is all of it there, in the epoch that the ledger knows?
fn is_whole(item: &Item, here: &Loaded) -> bool {
    item.state == ItemState::Ready && here.epoch == item.epoch && here.presence == Presence::Whole
}

/// Is it there as the ledger wants it to be sold? Frozen is what somebody was about to load who was
/// overtaken and then died; another window is what the gate did not hear of, because whoever moved it
/// died or lost the gate before.
fn is_as_planned(activity: &Activity, item: &Item, here: &Loaded) -> bool {
    here.epoch == item.epoch
        && here.presence == Presence::Whole
        && here.shut != Some(Shut::Frozen)
        && here.window == window_of(activity)
}

/// Is somebody loading it at this moment? A loader that has been quiet for too long has died.
fn is_being_loaded(here: &Loaded) -> bool {
    matches!(here.presence, Presence::Loading { quiet_ms } if quiet_ms < LOADER_QUIET_MS_MAX)
}

/// Not the same for everybody, or they would meet again.
fn overtaken_pause() -> Duration {
    let mut dice = [0; 8];
    // Without randomness they may meet again, and the gate will decide again.
    let _ = getrandom::fill(&mut dice);
    let span = OVERTAKEN_PAUSE_MS.end - OVERTAKEN_PAUSE_MS.start;
    Duration::from_millis(OVERTAKEN_PAUSE_MS.start + u64::from_le_bytes(dice) % span)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use sale::ActivityMove;

    use super::*;
    use crate::{
        jobs::Job,
        test_engine::{NOW_MS, TestEngine},
    };

    #[tokio::test]
    async fn a_gate_that_is_away_is_not_asked_for_every_item() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (gate, engine) = (&shop.gate, &shop.engine);
        let warming =
            Warming { shared: engine.shared.clone(), catalogue: engine.catalogue.clone() };
        let items = vec![activity.items[0].id; 10 * TOLD_AT_ONCE_MAX];
        let asked = || gate.shut_asked.swap(0, Ordering::SeqCst);
        asked();
        warming.shut_items(&items, Some(Shut::Paused)).await.unwrap();
        assert_eq!(asked(), items.len() as u64);
        gate.away.store(true, Ordering::SeqCst);
        assert!(warming.shut_items(&items, None).await.is_err());
        assert_eq!(asked(), TOLD_AT_ONCE_MAX as u64);
    }

    #[tokio::test]
    async fn the_job_tells_the_gate_what_the_ledger_says_in_its_own_turn() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, id) = (shop.engine.clone(), activity.id);
        let moves =
            async |step| engine.shared.ledger.move_activity(id, step, None, NOW_MS).await.unwrap();
        // Whoever paused it has not told the gate, and resumes it before the job's turn has come.
        moves(ActivityMove::Pause).await;
        let turn = engine.shared.gate_turns.of(activity.items[0].id).await;
        let job = tokio::spawn({
            let engine = engine.clone();
            async move { engine.jobs.warm.run().await.is_ok() }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(
            engine.shared.gate.loaded().await.unwrap()[0].shut,
            None,
            "it waits for its turn"
        );
        moves(ActivityMove::Resume).await;
        drop(turn);
        assert!(job.await.unwrap());
        assert_eq!(engine.shared.gate.loaded().await.unwrap()[0].shut, None);
    }
}

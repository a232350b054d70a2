//! Ends sales that are over, and takes their items from the gate when nobody needs them there any more.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use futures_util::future::join_all;
use gate::{Loaded, Presence, Shut};
use sale::{Activity, ActivityMove, ItemId, ItemState, Millis};

use super::{Job, JobResult, Progress};
use crate::{
    Catalogue,
    shared::{AnyError, Shared},
    warming::Warming,
};

/// With more on the log nothing is taken from the gate: to know that nothing of an item waits, all of it
/// has to be read.
const UNLOADED_BACKLOG_MAX: u64 = 10_000;
/// The servers of a cluster's gate have a clock each, and so have we.
const END_GRACE_MS: Millis = 5_000;

pub(crate) struct Lifecycle {
    pub(super) shared: Arc<Shared>,
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) warming: Arc<Warming>,
}

impl Lifecycle {
    /// Of these items at the gate those that nobody needs there any more.
    async fn take_from_gate(&self, loaded: &[Loaded], now_ms: Millis) -> Result<(), AnyError> {
        let kept_ms = self.shared.settings.gate.keep_after_close_ms as Millis;
        let ids: Vec<ItemId> = loaded.iter().map(|here| here.item).collect();
        let over = self.shared.published.not_on_sale(&ids);
        let items = self.shared.published.of_items(&over).await?;
        self.shared.published.forget(|item| over.binary_search(&item).is_ok());
        let mut failed = None;
        let mut untold: BTreeMap<_, Vec<ItemId>> = BTreeMap::new();
        for here in loaded.iter().filter(|here| over.binary_search(&here.item).is_ok()) {
            let Some((activity, place)) = items.get(&here.item) else { continue };
            let item = &activity.items[*place];
            let kept = now_ms < activity.closes_ms.saturating_add(kept_ms);
            // Whoever ended it may have died before the gate heard of it.
            if item.state == ItemState::Ended && here.shut != Some(Shut::Ended) {
                untold.entry(item.activity).or_default().push(item.id);
            }
            if item.state == ItemState::Ended
                && !kept
                && self.shared.gate.backlog() <= UNLOADED_BACKLOG_MAX
                && let Err(error) = self.unload(item.id).await
            {
                failed = Some(error);
            }
        }
        for (activity, items) in untold {
            if let Err(error) = self.warming.tell_gate_again(activity, &items).await {
                failed = Some(error.into());
            }
        }
        // A part of the gate that does not answer keeps the others from nothing.
        failed.map_or(Ok(()), Err)
    }

    async fn unload(&self, item: ItemId) -> Result<(), AnyError> {
        if self.shared.gate.in_flight(item).await?.is_empty() {
            self.shared.gate.unload(item).await?;
            self.shared.lanes.forget(item);
            tracing::info!(%item, "item has left the gate");
        }
        Ok(())
    }

    /// Is it over by the clocks of the gate as well? It closes a sale by its own, and a host whose clock is
    /// ahead must not end it early. A part that does not answer sells nothing: then the others tell.
    async fn is_over_at_gate(&self, activity: &Activity) -> Result<bool, AnyError> {
        let over_ms = activity.closes_ms.saturating_add(END_GRACE_MS);
        let clocks = activity.items.iter().map(|item| self.shared.gate.clocks(item.id));
        let clocks: Vec<_> = join_all(clocks).await.into_iter().flatten().collect();
        if clocks.iter().flatten().any(|now_ms| *now_ms < over_ms) {
            return Ok(false);
        }
        let answered = clocks.iter().any(Result::is_ok);
        match clocks.into_iter().find_map(Result::err) {
            Some(error) if !answered => Err(error.into()),
            _ => Ok(true),
        }
    }

    async fn end(&self, activity: &Activity, now_ms: Millis) -> Result<(), AnyError> {
        {
            // A load under way would open again what was shut in the middle of it.
            let items = activity.items.iter().map(|item| item.id);
            let _turn = self.shared.gate_turns.of_all(items).await;
            let ended =
                self.shared.ledger.move_activity(activity.id, ActivityMove::End, None, now_ms);
            let ended = ended.await?.activity;
            let items: Vec<ItemId> = ended.items.iter().map(|item| item.id).collect();
            // What the gate did not hear of now, the next run tells it.
            self.warming.tell_gate(ended.id, ended.state, &items).await?;
        }
        tracing::info!(activity = %activity.id, name = activity.name, "activity is over");
        // The books are closed with a comparison.
        self.shared.wake.reconcile.notify_one();
        Ok(())
    }
}

#[async_trait]
impl Job for Lifecycle {
    /// End what is over, and take it from the gate when nobody needs it there any more.
    async fn run(&self) -> JobResult {
        let now_ms = self.shared.now_ms();
        let mut loaded = self.shared.gate.loaded_lately().await?;
        loaded.retain(|here| here.presence != Presence::Unknown);
        let mut failed = None;
        loaded.sort_unstable_by_key(|here| here.item);
        self.shared.published.follow().await?;
        let mut over = self.shared.published.those(|activity| activity.closes_ms <= now_ms);
        over.sort_unstable_by_key(|activity| activity.closes_ms);
        for activity in &over {
            let ended = match self.is_over_at_gate(activity).await {
                Ok(true) => self.end(activity, now_ms).await,
                not_yet => not_yet.map(drop),
            };
            if let Err(error) = ended {
                // Somebody may hold one of its items; the other activities end all the same.
                tracing::warn!(activity = %activity.id, %error, "an activity could not be ended yet");
                failed = Some(error);
            }
        }
        if !over.is_empty() {
            self.catalogue.reload().await;
        }
        if let Err(error) = self.take_from_gate(&loaded, now_ms).await {
            failed = Some(error);
        }
        failed.map_or(Ok(Progress::CaughtUp), Err)
    }
}

#[cfg(test)]
mod tests {
    use sale::ActivityState;

    use super::*;
    use crate::test_engine::{NOW_MS, TestEngine, one_unit};

    #[tokio::test]
    async fn what_is_over_ends_and_what_opens_is_warmed_whatever_was_planned_after_it() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let engine = &shop.engine;
        let soon = shop.another_sale("soon", (NOW_MS + 60_000, NOW_MS + 7_200_000), 60_000).await;
        shop.plan_many(ActivityState::Draft, 10_100, (NOW_MS, NOW_MS + 9_000_000)).await;
        shop.plan_many(ActivityState::Published, 1_100, (NOW_MS + 8_000_000, NOW_MS + 9_000_000))
            .await;
        engine.jobs.warm.run().await.unwrap();
        assert_eq!(engine.shared.gate.left(soon.items[0].id), Some(10), "it opens in a minute");
        let report = engine.reconcile.run(true).await.unwrap();
        assert_eq!((report.compared, report.differences), (2, 0));
        for sale in [&activity, &soon] {
            let id = sale.items[0].id;
            let compared = report.items.iter().find(|item| item.item_id == id).unwrap();
            assert_eq!(compared.verdict, crate::ItemVerdict::Agree);
        }
        shop.clock.advance(3_600_000);
        engine.jobs.lifecycle.run().await.unwrap();
        let state = async |id| engine.shared.ledger.activity(id).await.unwrap().unwrap().state;
        assert_eq!(state(activity.id).await, ActivityState::Ended);
        assert_eq!(state(soon.id).await, ActivityState::Published);
        let answer = engine.claims.claim(one_unit(activity.items[0].id, "ann")).await;
        assert!(matches!(answer, gate::Decision::Ended), "{answer:?}");
    }

    #[tokio::test]
    async fn an_end_that_the_gate_never_heard_of_reaches_it() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        // The process that ended it died between ledger and gate.
        let end = ActivityMove::End;
        let ended =
            engine.shared.ledger.move_activity(activity.id, end, None, NOW_MS).await.unwrap();
        assert!(ended.moved);
        engine.jobs.lifecycle.run().await.unwrap();
        let answer = engine.claims.claim(one_unit(item, "ann")).await;
        assert!(matches!(answer, gate::Decision::Ended), "{answer:?}");
    }
}

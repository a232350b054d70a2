//! Plans: drafts edited, and windows moved before they open. How they are made is in [`super::creating`].
//!
//! Whoever edits says which version they have seen; if it is another one by now, nothing is changed and
//! they are told what is true.
//!
//! **Moving the window of what buyers await.** The gate opens by the window it was loaded with, so it
//! has to learn the new one before anybody is told that it holds:
//!
//! 1. The items at the gate are shut. A gate that does not answer ends it here, with nothing changed.
//! 2. The ledger moves the window by compare-and-set, if it has not opened by the gate's clock and ours.
//! 3. Every item that is at the gate, or on its way there, is loaded anew and so with the new window:
//!    under a later epoch, so that whoever loads it with the old window is refused. Read from the ledger
//!    after step 2, for whoever begins to load after that reads the new window by themselves.
//!
//! A crash after step 1 leaves items shut, one after step 2 with the old window: the warm job compares
//! both with the ledger, and opens or loads them.

use std::sync::Arc;

use ledger::EditedActivity;
use sale::{
    Activity, ActivityEdit, ActivityId, ActivityState, DraftPlan, Invalid, Item, ItemState, Millis,
    NewActivity, check_shuffle, check_window, iso_time,
};
use serde_json::{Value, json};

use super::{OperateError, Result};
use crate::{
    Catalogue, WarmError,
    actor::{Actor, audit_entry},
    shared::Shared,
    warming::Warming,
};

pub struct Plans {
    pub(crate) shared: Arc<Shared>,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) warming: Arc<Warming>,
}

impl Plans {
    /// Two shards in one partition would be one: a cluster has no more of them than partitions.
    pub(super) fn check_shards(&self, new: &NewActivity) -> std::result::Result<(), Invalid> {
        let partitions = self.shared.gate.partitions();
        let too_many = |item: &sale::NewItem| item.shards as usize > partitions;
        match new.items.iter().position(too_many) {
            Some(n) if self.shared.is_cluster() => {
                let rule = format!("must be at most {partitions}, the number of partitions");
                Err(Invalid::new(format!("items[{n}].shards"), rule))
            }
            _ => Ok(()),
        }
    }

    /// A draft changes as a whole, items and all; what is published and not open yet may be moved to
    /// another time.
    pub async fn edit(
        &self,
        who: impl Into<Actor>,
        id: ActivityId,
        version: i64,
        edit: &ActivityEdit,
    ) -> Result<Activity> {
        let now = self.shared.ledger.activity(id).await?.ok_or(OperateError::NotFound)?;
        if now.version != version {
            return Err(OperateError::Changed(Box::new(now)));
        }
        match now.state {
            ActivityState::Draft => self.edit_draft(who.into(), &now, edit).await,
            ActivityState::Published | ActivityState::Paused if edit.door.is_some() => {
                self.change_door(who.into(), &now, edit).await
            }
            ActivityState::Published | ActivityState::Paused => {
                self.postpone(who.into(), &now, edit).await
            }
            ActivityState::Ended => Err(OperateError::Conflict(now.state.as_str())),
        }
    }

    async fn edit_draft(
        &self,
        who: Actor,
        draft: &Activity,
        edit: &ActivityEdit,
    ) -> Result<Activity> {
        let now_ms = self.shared.now_ms();
        let new = edit.of(draft)?;
        new.plan.validate(now_ms)?;
        self.check_shards(&new.plan)?;
        let target = format!("activity:{}", draft.id);
        let entry = audit_entry(who, "activity.edit", target, changes(draft, &new));
        seen(self.shared.ledger.edit_draft(draft.id, draft.version, &new, &entry, now_ms).await?)
    }

    /// How buyers are let in may be changed while they are: harder, easier, or not at all. When members may
    /// come is known to the gate, and stays.
    async fn change_door(
        &self,
        who: Actor,
        before: &Activity,
        edit: &ActivityEdit,
    ) -> Result<Activity> {
        let window = [("opens_at", edit.opens_ms), ("closes_at", edit.closes_ms)];
        let moved = window.into_iter().find(|(_, given)| given.is_some()).map(|(field, _)| field);
        if let Some(field) = moved.or(edit.beyond_window()) {
            let problem = "cannot be changed together with the door of what is published";
            return Err(Invalid::new(field, problem).zh("已发布的活动不能与 door 同时修改").into());
        }
        let door = edit.door.unwrap_or_default().of(&before.door);
        if door.members_from != before.door.members_from {
            let problem = "can only be changed while it is a draft";
            return Err(Invalid::new("door.members_from", problem)
                .zh("只能在草稿状态下修改")
                .into());
        }
        door.check(before.opens_ms)?;
        let detail = json!({"door": [before.door, door]});
        let entry = audit_entry(who, "activity.door", format!("activity:{}", before.id), detail);
        let now_ms = self.shared.now_ms();
        let changed = self
            .shared
            .ledger
            .change_door(before.id, before.version, &door, &entry, now_ms)
            .await?;
        let changed = seen(changed)?;
        self.catalogue.reload().await;
        Ok(changed)
    }

    async fn postpone(
        &self,
        who: Actor,
        before: &Activity,
        edit: &ActivityEdit,
    ) -> Result<Activity> {
        if let Some(field) = edit.beyond_window() {
            let problem = "can only be changed while it is a draft";
            return Err(Invalid::new(field, problem).zh("只能在草稿状态下修改").into());
        }
        let window =
            (edit.opens_ms.unwrap_or(before.opens_ms), edit.closes_ms.unwrap_or(before.closes_ms));
        let now_ms = self.latest_ms(&before.items).await?;
        if !before.is_awaited(now_ms) {
            return Err(OperateError::Conflict("open"));
        }
        check_window(window.0, window.1, now_ms)?;
        before.door.check(window.0)?;
        check_shuffle(before.shuffle_ms(), window.0, window.1)?;
        if window.0 <= now_ms {
            let problem = format!("is past: now it is {}", iso_time(now_ms));
            return Err(Invalid::new("opens_at", problem).zh("已经过去").into());
        }
        let detail = json!({"opens_at": window.0, "closes_at": window.1,
            "from": {"opens_at": before.opens_ms, "closes_at": before.closes_ms}});
        let entry =
            audit_entry(who, "activity.postpone", format!("activity:{}", before.id), detail);
        let turn = self.shared.gate_turns.of_all(before.items.iter().map(|item| item.id)).await;
        for item in &before.items {
            self.shared.gate.shut(item.id, Some(gate::Shut::Paused)).await?;
        }
        let moved =
            self.shared.ledger.postpone(before.id, before.version, window, &entry, now_ms).await;
        drop(turn);
        // What was shut and not moved is opened, and what nobody knows is put right, by the warm job.
        self.shared.wake.warm.notify_one();
        let moved = seen(moved?)?;
        self.load_new_window(&moved).await?;
        self.catalogue.reload().await;
        Ok(moved)
    }

    /// Step 3.
    async fn load_new_window(&self, moved: &Activity) -> Result<()> {
        let now = self.shared.ledger.activity(moved.id).await?.ok_or(OperateError::NotFound)?;
        for item in &now.items {
            if !matches!(item.state, ItemState::Warming | ItemState::Ready) {
                continue;
            }
            match self.warming.rebuild(item.id).await {
                Ok(_) | Err(WarmError::Ended | WarmError::NotPublished) => {}
                Err(error) => {
                    tracing::warn!(item = %item.id, %error,
                        "the gate has not heard of the new window yet, the warm job will tell it");
                    return Err(OperateError::NotAtGate(Box::new(now)));
                }
            }
        }
        Ok(())
    }

    /// Not before what the clocks of the gate say where these items are, nor before ours.
    async fn latest_ms(&self, items: &[Item]) -> Result<Millis> {
        let mut latest_ms = self.shared.now_ms();
        for item in items {
            for clock in self.shared.gate.clocks(item.id).await {
                latest_ms = latest_ms.max(clock?);
            }
        }
        Ok(latest_ms)
    }
}

/// The activity as it is after an edit; if it was not done, somebody else was faster.
fn seen(edited: EditedActivity) -> Result<Activity> {
    if edited.edited {
        Ok(edited.activity)
    } else {
        Err(OperateError::Changed(Box::new(edited.activity)))
    }
}

/// For the audit: what is different, before and after.
fn changes(draft: &Activity, new: &DraftPlan) -> Value {
    let plan = &new.plan;
    let mut changes = serde_json::Map::new();
    let mut note = |field: &str, before: Value, after: Value| {
        if before != after {
            changes.insert(field.into(), json!([before, after]));
        }
    };
    note("external_id", json!(draft.external_id), json!(plan.external_id));
    note("name", json!(draft.name), json!(plan.name));
    note("opens_at", json!(draft.opens_ms), json!(plan.opens_ms));
    note("closes_at", json!(draft.closes_ms), json!(plan.closes_ms));
    note("pay_within_ms", json!(draft.pay_within_ms), json!(plan.pay_within_ms));
    note("publish_at", json!(draft.publish_ms), json!(plan.publish_ms));
    note("door", json!(draft.door), json!(plan.door));
    note("shuffle_ms", json!(draft.shuffle_ms()), json!(plan.shuffle_ms));
    let items = |ids: Vec<Option<i64>>, stock: i64| json!({"ids": ids, "stock": stock});
    let before: Vec<_> = draft.items.iter().map(|item| Some(item.id.0)).collect();
    let after: Vec<_> = new.ids.iter().map(|id| id.map(|id| id.0)).collect();
    note(
        "items",
        items(before, draft.items.iter().map(|item| item.total).sum()),
        items(after, plan.items.iter().map(|item| item.stock).sum()),
    );
    Value::Object(changes)
}

#[cfg(test)]
mod tests {
    use gate::Decision;
    use sale::ItemId;

    use super::*;
    use crate::{
        jobs::Job,
        test_engine::{NOW_MS, TestEngine, one_unit},
    };

    const HOUR_MS: Millis = 3_600_000;

    /// A sale that opens in an hour and is at the gate, and its item.
    async fn awaited_sale(shop: &TestEngine) -> (Activity, ItemId) {
        let window = (NOW_MS + HOUR_MS, NOW_MS + 2 * HOUR_MS);
        let sale = shop.another_sale("sale", window, 60_000).await;
        shop.engine.operations.warm_activity("ann", sale.id, false).await.unwrap();
        let item = sale.items[0].id;
        (sale, item)
    }

    async fn claim(shop: &TestEngine, item: ItemId, user: &str) -> Decision {
        shop.engine.claims.claim(one_unit(item, user)).await
    }

    #[tokio::test]
    async fn a_sale_that_is_postponed_opens_at_its_new_time_and_not_before() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let engine = &shop.engine;
        let (published, item) = awaited_sale(&shop).await;
        let later =
            ActivityEdit { opens_ms: Some(NOW_MS + HOUR_MS + 60_000), ..Default::default() };
        let moved =
            engine.plans.edit("ann", published.id, published.version, &later).await.unwrap();
        assert_eq!(moved.opens_ms, NOW_MS + HOUR_MS + 60_000);
        let shown = engine.catalogue.snapshot();
        assert_eq!(shown.activity(published.id).unwrap().opens_ms, moved.opens_ms, "pages follow");

        shop.clock.set(NOW_MS + HOUR_MS);
        let early = claim(&shop, item, "ann").await;
        assert!(
            matches!(early, Decision::NotStarted { opens_ms } if opens_ms == moved.opens_ms),
            "{early:?}"
        );
        // Earlier again, and shorter.
        let sooner = ActivityEdit {
            opens_ms: Some(NOW_MS + HOUR_MS + 10),
            closes_ms: Some(NOW_MS + HOUR_MS + 20),
            ..Default::default()
        };
        let moved = engine.plans.edit("ann", moved.id, moved.version, &sooner).await.unwrap();
        shop.clock.set(moved.opens_ms);
        assert!(matches!(claim(&shop, item, "ann").await, Decision::Admitted { .. }));
        let late = engine.plans.edit("ann", moved.id, moved.version, &later).await;
        assert!(matches!(late, Err(OperateError::Conflict("open"))), "{late:?}");
        shop.clock.set(moved.closes_ms);
        assert!(matches!(claim(&shop, item, "bob").await, Decision::Ended));
    }

    #[tokio::test]
    async fn what_died_between_ledger_and_gate_is_finished_by_the_warm_job() {
        let shop = TestEngine::without_a_sale(|_| {}).await;
        let engine = &shop.engine;
        let (seen, item) = awaited_sale(&shop).await;
        let window = (NOW_MS + HOUR_MS + 60_000, NOW_MS + 3 * HOUR_MS);
        let entry = audit_entry("ann", "activity.postpone", "activity:1".into(), Value::Null);
        engine.shared.gate.shut(item, Some(gate::Shut::Paused)).await.unwrap();
        engine.shared.ledger.postpone(seen.id, seen.version, window, &entry, NOW_MS).await.unwrap();
        shop.clock.set(NOW_MS + HOUR_MS);
        assert!(matches!(claim(&shop, item, "ann").await, Decision::Busy(_)));
        engine.jobs.warm.run().await.unwrap();
        let here = engine.shared.gate.loaded().await.unwrap()[0];
        assert_eq!((here.window, here.shut), (window, None));
        let early = claim(&shop, item, "ann").await;
        assert!(matches!(early, Decision::NotStarted { .. }), "{early:?}");
        shop.clock.set(window.0);
        assert!(matches!(claim(&shop, item, "ann").await, Decision::Admitted { .. }));
    }
}

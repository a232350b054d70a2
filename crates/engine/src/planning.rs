//! Plans: drafts edited, windows moved before they open, drafts that publish themselves.
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

use ledger::{EditedActivity, LedgerError};
use orders::{Alert, AlertKind};
use sale::{
    Activity, ActivityEdit, ActivityId, ActivityState, DraftPlan, Invalid, ItemState, Millis,
    check_window, iso_time,
};
use serde_json::{Value, json};

use super::{
    Engine, OperateError, WarmError,
    jobs::{JobError, JobResult, Progress},
};
use crate::{actor::Actor, settings::Profile};

/// Drafts that publish themselves in one round of the job.
const PUBLISH_BATCH_MAX: usize = 100;

type Result<T> = std::result::Result<T, OperateError>;

impl Engine {
    /// A draft changes as a whole, items and all; what is published and not open yet may be moved to
    /// another time.
    pub async fn edit_activity(
        &self,
        who: impl Into<Actor>,
        id: ActivityId,
        version: i64,
        edit: &ActivityEdit,
    ) -> Result<Activity> {
        let now = self.ledger.activity(id).await?.ok_or(OperateError::NotFound)?;
        if now.version != version {
            return Err(OperateError::Changed(Box::new(now)));
        }
        match now.state {
            ActivityState::Draft => self.edit_draft(who.into(), &now, edit).await,
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
        let now_ms = self.clock.now_ms();
        let new = edit.of(draft)?;
        new.plan.validate(now_ms)?;
        self.check_shards(&new.plan)?;
        let target = format!("activity:{}", draft.id);
        let deed = self.deed(who, "activity.edit", target, changes(draft, &new));
        seen(self.ledger.edit_draft(draft.id, draft.version, &new, &deed, now_ms).await?)
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
        let now_ms = self.latest_ms().await?;
        if !before.is_awaited(now_ms) {
            return Err(OperateError::Conflict("open"));
        }
        check_window(window.0, window.1, now_ms)?;
        if window.0 <= now_ms {
            let problem = format!("is past: now it is {}", iso_time(now_ms));
            return Err(Invalid::new("opens_at", problem).zh("已经过去").into());
        }
        let detail = json!({"opens_at": window.0, "closes_at": window.1,
            "from": {"opens_at": before.opens_ms, "closes_at": before.closes_ms}});
        let deed = self.deed(who, "activity.postpone", format!("activity:{}", before.id), detail);
        let turn = self.gate_turn.lock().await;
        for item in &before.items {
            self.gate.shut(item.id, Some(gate::Shut::Paused)).await?;
        }
        let moved = self.ledger.postpone(before.id, before.version, window, &deed, now_ms).await;
        drop(turn);
        // What was shut and not moved is opened, and what nobody knows is put right, by the warm job.
        self.warm_wake.notify_one();
        let moved = seen(moved?)?;
        self.load_new_window(&moved).await?;
        self.refresh_catalogue().await;
        Ok(moved)
    }

    /// Step 3.
    async fn load_new_window(&self, moved: &Activity) -> Result<()> {
        let now = self.ledger.activity(moved.id).await?.ok_or(OperateError::NotFound)?;
        for item in &now.items {
            if !matches!(item.state, ItemState::Warming | ItemState::Ready) {
                continue;
            }
            match self.rebuild(item.id).await {
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

    /// Not before what the clock of the gate says, nor before ours.
    async fn latest_ms(&self) -> Result<Millis> {
        let our_ms = self.clock.now_ms();
        if self.settings.profile == Profile::Solo {
            return Ok(our_ms);
        }
        let gates_ms = self.coordination.now_ms().await;
        Ok(our_ms.max(gates_ms.map_err(gate::GateError)?))
    }

    /// Publishes the drafts whose time has come, also those whose time came while nobody was here.
    pub(super) async fn publish_due(&self) -> JobResult {
        let now_ms = self.clock.now_ms();
        let due = self.ledger.publish_due(now_ms, PUBLISH_BATCH_MAX).await?;
        let full = due.len() == PUBLISH_BATCH_MAX;
        let mut failed = None;
        for draft in due {
            if let Err(error) = self.publish_by_itself(&draft, now_ms).await {
                tracing::warn!(activity = %draft.id, %error, "a draft could not publish itself yet");
                failed = Some(error);
            }
        }
        match failed {
            Some(error) => Err(JobError::from(error)),
            None => Ok(if full { Progress::MoreToDo } else { Progress::CaughtUp }),
        }
    }

    async fn publish_by_itself(
        &self,
        draft: &Activity,
        now_ms: Millis,
    ) -> std::result::Result<(), LedgerError> {
        let target = format!("activity:{}", draft.id);
        let detail = json!({"publish_at": draft.publish_ms});
        if now_ms >= draft.closes_ms {
            self.alert_missed_publish(draft, now_ms);
            let deed = self.deed("system", "activity.publish_missed", target, detail);
            self.ledger.forget_publish(draft.id, draft.version, &deed, now_ms).await?;
            return Ok(());
        }
        let deed = self.deed("system", "activity.publish", target, detail);
        // Whoever has changed it meanwhile may have given it another time: the next round looks.
        if self.ledger.publish_planned(draft.id, draft.version, &deed, now_ms).await? {
            tracing::info!(activity = %draft.id, name = draft.name, "activity published itself");
            self.refresh_catalogue().await;
            self.warm_wake.notify_one();
        }
        Ok(())
    }

    fn alert_missed_publish(&self, draft: &Activity, now_ms: Millis) {
        let (id, name) = (draft.id, &draft.name);
        let closed = iso_time(draft.closes_ms);
        let message = format!(
            "activity {id} ({name}) was to publish itself, but no process was there until it was \
             over at {closed}; it stays a draft: give it a new window, or end it"
        );
        self.alerts.raise(Alert::new(AlertKind::PublishMissed, message, now_ms));
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
    note("name", json!(draft.name), json!(plan.name));
    note("opens_at", json!(draft.opens_ms), json!(plan.opens_ms));
    note("closes_at", json!(draft.closes_ms), json!(plan.closes_ms));
    note("pay_within_ms", json!(draft.pay_within_ms), json!(plan.pay_within_ms));
    note("publish_at", json!(draft.publish_ms), json!(plan.publish_ms));
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
    use sale::{Currency, ItemId, NewActivity, NewItem};

    use super::*;
    use crate::{
        ClaimAnswer,
        test_engine::{NOW_MS, TestEngine, Webhook},
    };

    const HOUR_MS: Millis = 3_600_000;

    fn plan(publish_ms: Option<Millis>) -> NewActivity {
        NewActivity {
            name: "sale".into(),
            opens_ms: NOW_MS + HOUR_MS,
            closes_ms: NOW_MS + 2 * HOUR_MS,
            pay_within_ms: 60_000,
            publish_ms,
            items: vec![NewItem {
                name: "phone".into(),
                image_url: String::new(),
                price: 1,
                origin_price: None,
                currency: Currency::CNY,
                stock: 10,
                limit_per_user: 1,
                shards: 1,
            }],
        }
    }

    async fn claim(night: &TestEngine, item: ItemId, user: &str) -> ClaimAnswer {
        night.engine.claim(item, user.parse().unwrap(), 1, None).await
    }

    #[tokio::test]
    async fn a_sale_that_is_postponed_opens_at_its_new_time_and_not_before() {
        let night = TestEngine::without_a_sale(|_| {}).await;
        let engine = &night.engine;
        let draft = engine.create_activity("ann", &plan(None)).await.unwrap();
        let item = draft.items[0].id;
        night.publish(draft.id).await;
        engine.warm_activity("ann", draft.id, false).await.unwrap();
        let published = engine.ledger.activity(draft.id).await.unwrap().unwrap();
        let later =
            ActivityEdit { opens_ms: Some(NOW_MS + HOUR_MS + 60_000), ..Default::default() };
        let moved = engine.edit_activity("ann", draft.id, published.version, &later).await.unwrap();
        assert_eq!(moved.opens_ms, NOW_MS + HOUR_MS + 60_000);
        let shown = engine.catalogue.snapshot();
        assert_eq!(shown.activity(draft.id).unwrap().opens_ms, moved.opens_ms, "pages follow");

        night.clock.set(NOW_MS + HOUR_MS);
        let early = claim(&night, item, "ann").await;
        assert!(
            matches!(early, ClaimAnswer::NotStarted { opens_ms } if opens_ms == moved.opens_ms),
            "{early:?}"
        );
        // Earlier again, and shorter.
        let sooner = ActivityEdit {
            opens_ms: Some(NOW_MS + HOUR_MS + 10),
            closes_ms: Some(NOW_MS + HOUR_MS + 20),
            ..Default::default()
        };
        let moved = engine.edit_activity("ann", draft.id, moved.version, &sooner).await.unwrap();
        night.clock.set(moved.opens_ms);
        assert!(matches!(claim(&night, item, "ann").await, ClaimAnswer::Admitted { .. }));
        let late = engine.edit_activity("ann", draft.id, moved.version, &later).await;
        assert!(matches!(late, Err(OperateError::Conflict("open"))), "{late:?}");
        night.clock.set(moved.closes_ms);
        assert!(matches!(claim(&night, item, "bob").await, ClaimAnswer::Ended));
    }

    #[tokio::test]
    async fn what_died_between_ledger_and_gate_is_finished_by_the_warm_job() {
        let night = TestEngine::without_a_sale(|_| {}).await;
        let engine = &night.engine;
        let draft = engine.create_activity("ann", &plan(None)).await.unwrap();
        let item = draft.items[0].id;
        night.publish(draft.id).await;
        engine.warm_activity("ann", draft.id, false).await.unwrap();
        let seen = engine.ledger.activity(draft.id).await.unwrap().unwrap();
        let window = (NOW_MS + HOUR_MS + 60_000, NOW_MS + 3 * HOUR_MS);
        let deed = engine.deed("ann", "activity.postpone", "activity:1".into(), Value::Null);
        engine.gate.shut(item, Some(gate::Shut::Paused)).await.unwrap();
        engine.ledger.postpone(draft.id, seen.version, window, &deed, NOW_MS).await.unwrap();
        night.clock.set(NOW_MS + HOUR_MS);
        assert!(matches!(claim(&night, item, "ann").await, ClaimAnswer::Busy(_)));
        engine.warm_due(NOW_MS + HOUR_MS).await.unwrap();
        let here = engine.gate.loaded().await.unwrap()[0];
        assert_eq!((here.window, here.shut), (window, None));
        let early = claim(&night, item, "ann").await;
        assert!(matches!(early, ClaimAnswer::NotStarted { .. }), "{early:?}");
        night.clock.set(window.0);
        assert!(matches!(claim(&night, item, "ann").await, ClaimAnswer::Admitted { .. }));
    }

    #[tokio::test]
    async fn a_draft_publishes_itself_also_when_nobody_was_here_at_its_time() {
        let webhook = Webhook::open().await;
        let night =
            TestEngine::without_a_sale(|settings| settings.alerts.webhook_url = webhook.url())
                .await;
        let engine = &night.engine;
        let soon = engine.create_activity("ann", &plan(Some(NOW_MS + 1))).await.unwrap();
        let never = engine.create_activity("ann", &plan(None)).await.unwrap();
        let state = async |id| engine.ledger.activity(id).await.unwrap().unwrap().state;
        engine.publish_due().await.unwrap();
        assert_eq!(state(soon.id).await, ActivityState::Draft, "not yet");
        night.clock.set(NOW_MS + HOUR_MS / 2);
        engine.publish_due().await.unwrap();
        assert_eq!(state(soon.id).await, ActivityState::Published);
        assert_eq!(state(never.id).await, ActivityState::Draft);
        assert!(engine.catalogue.snapshot().activity(soon.id).is_some());
        let audit = engine.ledger.audit_log(None, 1).await.unwrap();
        assert_eq!(
            (audit[0].who.as_str(), audit[0].action.as_str()),
            ("system", "activity.publish")
        );

        // One whose whole window passed by is not published to end at once: somebody is told.
        let missed = engine.create_activity("ann", &plan(Some(NOW_MS + HOUR_MS))).await.unwrap();
        night.clock.set(NOW_MS + 2 * HOUR_MS);
        engine.publish_due().await.unwrap();
        engine.publish_due().await.unwrap();
        let left = engine.ledger.activity(missed.id).await.unwrap().unwrap();
        assert_eq!((left.state, left.publish_ms), (ActivityState::Draft, None));
        while webhook.heard().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(webhook.heard().len(), 1);
        assert!(webhook.heard()[0].contains("publish_missed"), "{:?}", webhook.heard());
    }
}

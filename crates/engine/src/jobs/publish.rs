//! Publishes drafts that were planned to publish themselves.

use std::sync::Arc;

use async_trait::async_trait;
use ledger::LedgerError;
use orders::{Alert, AlertKind};
use sale::{Activity, Millis, iso_time};
use serde_json::json;

use super::{Job, JobResult, Progress};
use crate::{Catalogue, actor::audit_entry, shared::Shared};

/// Drafts that publish themselves in one round of the job.
const PUBLISH_BATCH_MAX: usize = 100;

pub(crate) struct Publish {
    pub(super) shared: Arc<Shared>,
    pub(super) catalogue: Arc<Catalogue>,
}

impl Publish {
    async fn publish_by_itself(&self, draft: &Activity, now_ms: Millis) -> Result<(), LedgerError> {
        let target = format!("activity:{}", draft.id);
        let detail = json!({"publish_at": draft.publish_ms});
        if now_ms >= draft.closes_ms {
            self.alert_missed_publish(draft, now_ms);
            let entry = audit_entry("system", "activity.publish_missed", target, detail);
            self.shared.ledger.forget_publish(draft.id, draft.version, &entry, now_ms).await?;
            return Ok(());
        }
        let entry = audit_entry("system", "activity.publish", target, detail);
        // Whoever has changed it meanwhile may have given it another time: the next round looks.
        if self.shared.ledger.publish_planned(draft.id, draft.version, &entry, now_ms).await? {
            tracing::info!(activity = %draft.id, name = draft.name, "activity published itself");
            self.catalogue.reload().await;
            self.shared.wake.warm.notify_one();
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
        self.shared.alerts.raise(Alert::new(AlertKind::PublishMissed, message, now_ms));
    }
}

#[async_trait]
impl Job for Publish {
    /// Publishes the drafts whose time has come, also those whose time came while nobody was here.
    async fn run(&self) -> JobResult {
        let now_ms = self.shared.now_ms();
        let due = self.shared.ledger.publish_due(now_ms, PUBLISH_BATCH_MAX).await?;
        let full = due.len() == PUBLISH_BATCH_MAX;
        let mut failed = None;
        for draft in due {
            if let Err(error) = self.publish_by_itself(&draft, now_ms).await {
                tracing::warn!(activity = %draft.id, %error, "a draft could not publish itself yet");
                failed = Some(error);
            }
        }
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(Progress::after(full)),
        }
    }
}

#[cfg(test)]
mod tests {
    use sale::{ActivityState, NewActivity};

    use super::*;
    use crate::test_engine::{self, NOW_MS, TestEngine, Webhook};

    const HOUR_MS: Millis = 3_600_000;

    fn plan(publish_ms: Option<Millis>) -> NewActivity {
        let window = (NOW_MS + HOUR_MS, NOW_MS + 2 * HOUR_MS);
        NewActivity { publish_ms, ..test_engine::plan("sale", window, 60_000) }
    }

    #[tokio::test]
    async fn a_draft_publishes_itself_also_when_nobody_was_here_at_its_time() {
        let webhook = Webhook::open().await;
        let shop =
            TestEngine::without_a_sale(|settings| settings.alerts.webhook_url = webhook.url())
                .await;
        let engine = &shop.engine;
        let soon = engine.plans.create("ann", plan(Some(NOW_MS + 1)), None).await.unwrap();
        let never = engine.plans.create("ann", plan(None), None).await.unwrap();
        let state = async |id| engine.shared.ledger.activity(id).await.unwrap().unwrap().state;
        engine.jobs.publish.run().await.unwrap();
        assert_eq!(state(soon.id).await, ActivityState::Draft, "not yet");
        shop.clock.set(NOW_MS + HOUR_MS / 2);
        engine.jobs.publish.run().await.unwrap();
        assert_eq!(state(soon.id).await, ActivityState::Published);
        assert_eq!(state(never.id).await, ActivityState::Draft);
        assert!(engine.catalogue.snapshot().activity(soon.id).is_some());
        let audit = engine.shared.ledger.audit_log(None, 1).await.unwrap();
        assert_eq!(
            (audit[0].who.as_str(), audit[0].action.as_str()),
            ("system", "activity.publish")
        );

        // One whose whole window passed by is not published to end at once: somebody is told.
        let missed = engine.plans.create("ann", plan(Some(NOW_MS + HOUR_MS)), None).await.unwrap();
        shop.clock.set(NOW_MS + 2 * HOUR_MS);
        engine.jobs.publish.run().await.unwrap();
        engine.jobs.publish.run().await.unwrap();
        let left = engine.shared.ledger.activity(missed.id).await.unwrap().unwrap();
        assert_eq!((left.state, left.publish_ms), (ActivityState::Draft, None));
        while webhook.heard().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(webhook.heard().len(), 1);
        assert!(webhook.heard()[0].contains("publish_missed"), "{:?}", webhook.heard());
    }
}

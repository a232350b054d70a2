//! Publishes drafts that were planned to publish themselves.

use ledger::LedgerError;
use orders::{Alert, AlertKind};
use sale::{Activity, Millis, iso_time};
use serde_json::json;

use super::{JobResult, Progress};
use crate::Engine;

/// Drafts that publish themselves in one round of the job.
const PUBLISH_BATCH_MAX: usize = 100;

impl Engine {
    /// Publishes the drafts whose time has come, also those whose time came while nobody was here.
    pub(crate) async fn publish_due(&self) -> JobResult {
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
            Some(error) => Err(error.into()),
            None => Ok(if full { Progress::MoreToDo } else { Progress::CaughtUp }),
        }
    }

    async fn publish_by_itself(&self, draft: &Activity, now_ms: Millis) -> Result<(), LedgerError> {
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

//! Lets go on what was paused until now. The gate is told by the warm job, as of everything that the ledger
//! says.

use std::sync::Arc;

use async_trait::async_trait;
use ledger::LedgerError;
use sale::{Activity, Millis};
use serde_json::json;

use super::{Job, JobResult, Progress};
use crate::{Catalogue, actor::audit_entry, shared::Shared};

pub(crate) struct Resume {
    pub(super) shared: Arc<Shared>,
    pub(super) catalogue: Arc<Catalogue>,
}

impl Resume {
    async fn resume_by_itself(&self, paused: &Activity, now_ms: Millis) -> Result<(), LedgerError> {
        let target = format!("activity:{}", paused.id);
        let detail = json!({"until": paused.resume_ms});
        let entry = audit_entry("system", "activity.resume", target, detail);
        // Whoever has paused it again or given it another time meanwhile is right: the next run looks.
        let ledger = &self.shared.ledger;
        if ledger.resume_planned(paused.id, paused.version, &entry, now_ms).await? {
            tracing::info!(activity = %paused.id, name = paused.name, "the pause is over by itself");
            self.catalogue.reload().await;
            self.shared.wake.warm.notify_one();
        }
        Ok(())
    }
}

#[async_trait]
impl Job for Resume {
    /// Also what was to go on while nobody was here, unless it is over by now.
    async fn run(&self) -> JobResult {
        let now_ms = self.shared.now_ms();
        self.shared.published.follow().await?;
        let is_due = |one: &Activity| one.resume_ms.is_some_and(|at_ms| at_ms <= now_ms);
        let due = self.shared.published.those(is_due);
        let mut failed = None;
        for activity in due.iter().filter(|one| one.closes_ms > now_ms) {
            if let Err(error) = self.resume_by_itself(activity, now_ms).await {
                tracing::warn!(activity = %activity.id, %error, "a pause could not be ended yet");
                failed = Some(error);
            }
        }
        failed.map_or(Ok(Progress::CaughtUp), |error| Err(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use gate::Decision;
    use sale::{ActivityMove, ActivityState};

    use super::*;
    use crate::{
        operations::OperateError,
        test_engine::{NOW_MS, TestEngine, one_unit},
    };

    #[tokio::test]
    async fn a_pause_is_over_at_its_time_and_not_if_somebody_paused_again() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, id, item) = (&shop.engine, activity.id, activity.items[0].id);
        let state = async || engine.shared.ledger.activity(id).await.unwrap().unwrap();
        let pass = async || {
            engine.jobs.resume.run().await.unwrap();
            engine.jobs.warm.run().await.unwrap();
        };
        for wrong_ms in [NOW_MS, activity.closes_ms] {
            let refused = engine.operations.pause("ann", id, Some(wrong_ms)).await;
            assert!(matches!(refused, Err(OperateError::Invalid(why)) if why.field == "until"));
        }
        engine.operations.pause("ann", id, Some(NOW_MS + 1_000)).await.unwrap();
        let told = engine.catalogue.snapshot().activity(id).unwrap().resume_ms;
        assert_eq!(told, Some(NOW_MS + 1_000), "pages count to it");
        pass().await;
        assert_eq!(state().await.state, ActivityState::Paused, "not yet");

        // Another operator wants more time: what was read before does not end their pause.
        let seen = state().await;
        engine.operations.pause("bob", id, Some(NOW_MS + 5_000)).await.unwrap();
        shop.clock.advance(1_000);
        let entry = audit_entry("system", "activity.resume", "activity".into(), json!({}));
        let now_ms = NOW_MS + 1_000;
        let ledger = &engine.shared.ledger;
        assert!(!ledger.resume_planned(id, seen.version, &entry, now_ms).await.unwrap());
        pass().await;
        assert_eq!(state().await.state, ActivityState::Paused);
        let answer = engine.claims.claim(one_unit(item, "u1")).await;
        assert!(matches!(answer, Decision::Busy { .. }), "{answer:?}");

        shop.clock.advance(4_000);
        pass().await;
        let resumed = state().await;
        assert_eq!((resumed.state, resumed.resume_ms), (ActivityState::Published, None));
        let answer = engine.claims.claim(one_unit(item, "u1")).await;
        assert!(matches!(answer, Decision::Admitted { .. }), "{answer:?}");
        let audit = engine.shared.ledger.audit_log(None, 1).await.unwrap();
        assert_eq!(
            (audit[0].who.as_str(), audit[0].action.as_str()),
            ("system", "activity.resume")
        );

        // Without a time it rests until somebody resumes it.
        engine.operations.pause("ann", id, None).await.unwrap();
        shop.clock.advance(60_000);
        pass().await;
        assert_eq!(state().await.state, ActivityState::Paused);
        engine.operations.move_activity("ann", id, ActivityMove::Resume).await.unwrap();
        assert_eq!(state().await.state, ActivityState::Published);
    }
}

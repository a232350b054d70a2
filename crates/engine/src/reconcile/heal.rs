//! Healing one item: a gate that disagrees with the ledger is loaded anew from it.

use gate::{Reading, Shut};
use sale::{Item, ItemState};
use serde_json::json;

use super::{ItemReport, ReconcileError};
use crate::{Engine, WarmError};

impl Engine {
    pub(super) async fn reconcile_item(
        &self,
        item: &Item,
        heal: bool,
    ) -> Result<ItemReport, ReconcileError> {
        let (sides, mut report) = self.look(item.id).await?;
        if !heal || !report.findings.iter().any(|finding| finding.kind.starts_with("gate_")) {
            return Ok(report);
        }
        let how = match self.heal_gate(&sides.books.item, sides.gate.as_ref()).await {
            Ok(Some(how)) => how,
            Ok(None) => return Ok(report),
            Err(error) => {
                tracing::error!(item = %item.id, %error, "the gate could not be healed");
                return Ok(report);
            }
        };
        // Healed is what a second look no longer finds.
        let (_, again) = self.look(item.id).await?;
        for finding in &mut report.findings {
            if !again.findings.iter().any(|left| left.kind == finding.kind) {
                finding.healed = Some(how.clone());
            }
        }
        let detail = json!({"how": how, "findings": report.findings});
        let entry = ledger::AuditEntry {
            who: "system".into(),
            action: "reconcile.heal".into(),
            target: format!("item:{}", item.id),
            detail,
            origin: ledger::Origin::default(),
        };
        self.ledger.audit(&entry, self.clock.now_ms()).await?;
        Ok(report)
    }

    /// `None` if it has to wait.
    async fn heal_gate(
        &self,
        item: &Item,
        reading: Option<&Reading>,
    ) -> Result<Option<String>, WarmError> {
        if item.state == ItemState::Ended || reading.is_some_and(|r| r.shut == Some(Shut::Ended)) {
            // Whoever has a claim on the log is still told so by the gate.
            if !self.gate.in_flight(item.id).await?.is_empty() {
                return Ok(None);
            }
            // Nothing can be sold any more: the ledger's word is enough, the gate's is dropped.
            self.gate.unload(item.id).await?;
            self.lanes.forget(item.id);
            return Ok(Some("taken from the gate".into()));
        }
        let warmed = self.rebuild(item.id).await?;
        Ok(Some(format!("loaded anew from the ledger, epoch {}", warmed.epoch)))
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        reconcile::compare::ADJUST_AGE_MS_MAX,
        test_engine::{TestEngine, one_unit},
    };

    #[tokio::test]
    async fn an_ended_item_whose_claims_are_on_the_log_stays_at_the_gate() {
        let (night, activity) = TestEngine::fall(|_| {}).await;
        let (engine, item) = (&night.engine, activity.items[0].id);
        engine.workers.as_ref().unwrap().stop().await;
        let answer = engine.claim(one_unit(item, "ann")).await;
        assert!(matches!(answer, gate::Decision::Admitted { .. }), "{answer:?}");
        engine.move_activity("op", activity.id, sale::ActivityMove::End).await.unwrap();
        // Units that nobody can account for.
        engine.gate.adjust(item, engine.numbers.next(), 3, true).await.unwrap();
        night.clock.advance(ADJUST_AGE_MS_MAX + 1);
        let report = engine.reconcile(true).await.unwrap();
        assert!(report.left > 0, "{report:?}");
        assert_eq!(engine.gate.loaded().await.unwrap().len(), 1);
        let entries = engine.gate.take(9).await.unwrap();
        engine.gate.ack(&[entries[0].id]).await.unwrap();
        engine.reconcile(true).await.unwrap();
        assert!(engine.gate.loaded().await.unwrap().is_empty(), "now nobody needs it there");
    }
}

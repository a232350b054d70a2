//! Healing one item: a gate that disagrees with the ledger is loaded anew from it.

use std::sync::Arc;

use gate::{Reading, Shut};
use ledger::BooksPoint;
use sale::{Item, ItemId, ItemState};
use serde_json::json;

use super::{
    ItemReport,
    compare::{Comparison, Sides},
};
use crate::{
    StoreError,
    shared::Shared,
    warming::{WarmError, Warming},
};

pub(super) struct Healing {
    pub(super) shared: Arc<Shared>,
    pub(super) warming: Arc<Warming>,
    pub(super) comparison: Comparison,
}

impl Healing {
    /// Compares an item and, if that is wanted, heals it. Answers what was read first.
    pub(super) async fn compare(
        &self,
        item: ItemId,
        from: Option<&BooksPoint>,
        heal: bool,
    ) -> Result<(Sides, ItemReport), StoreError> {
        let (sides, mut report) = self.comparison.compare(item, from).await?;
        if !heal || !report.findings.iter().any(|finding| finding.kind.starts_with("gate_")) {
            return Ok((sides, report));
        }
        let how = match self.heal_gate(&sides.books.item, sides.gate.as_ref()).await {
            Ok(Some(how)) => how,
            Ok(None) => return Ok((sides, report)),
            Err(error) => {
                tracing::error!(%item, %error, "the gate could not be healed");
                return Ok((sides, report));
            }
        };
        // Healed is what a second comparison no longer finds.
        let (_, again) = self.comparison.compare(item, from).await?;
        for finding in &mut report.findings {
            if !again.findings.iter().any(|left| left.kind == finding.kind) {
                finding.healed = Some(how.clone());
            }
        }
        let detail = json!({"how": how, "findings": report.findings});
        self.shared.audit("system", "reconcile.heal", format!("item:{item}"), detail).await?;
        Ok((sides, report))
    }

    /// The ledger's side alone.
    pub(super) async fn check_books(
        &self,
        item: ItemId,
        from: Option<&BooksPoint>,
    ) -> Result<(Sides, ItemReport), StoreError> {
        self.comparison.check_books(item, from).await
    }

    /// `None` if it has to wait.
    async fn heal_gate(
        &self,
        item: &Item,
        reading: Option<&Reading>,
    ) -> Result<Option<String>, WarmError> {
        if item.state == ItemState::Ended || reading.is_some_and(|r| r.shut == Some(Shut::Ended)) {
            // Whoever has a claim on the log is still told so by the gate.
            if !self.shared.gate.in_flight(item.id).await?.is_empty() {
                return Ok(None);
            }
            // Nothing can be sold any more: the ledger's word is enough, the gate's is dropped.
            self.shared.gate.unload(item.id).await?;
            self.shared.lanes.forget(item.id);
            return Ok(Some("taken from the gate".into()));
        }
        let warmed = self.warming.rebuild(item.id).await?;
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
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        engine.shared.workers.as_ref().unwrap().stop().await;
        let answer = engine.claims.claim(one_unit(item, "ann")).await;
        assert!(matches!(answer, gate::Decision::Admitted { .. }), "{answer:?}");
        engine.operations.move_activity("op", activity.id, sale::ActivityMove::End).await.unwrap();
        // Units that nobody can account for.
        engine.shared.gate.adjust(item, engine.shared.numbers.next(), 3, true).await.unwrap();
        shop.clock.advance(ADJUST_AGE_MS_MAX + 1);
        let report = engine.reconcile.run(true).await.unwrap();
        assert!(report.left > 0, "{report:?}");
        assert_eq!(engine.shared.gate.loaded().await.unwrap().len(), 1);
        let entries = engine.shared.gate.take(9).await.unwrap();
        engine.shared.gate.ack(&[entries[0].id]).await.unwrap();
        engine.reconcile.run(true).await.unwrap();
        assert!(engine.shared.gate.loaded().await.unwrap().is_empty(), "now nobody needs it there");
    }
}

//! Stock changes by operators: in ledger and gate, exactly once.
//!
//! Both directions err towards too few units. **Raising**: the ledger first, then the gate through the
//! outbox. **Lowering**: the gate first, which refuses to take away what is claimed, then the ledger. Each
//! change has a number, under which both sides know it; asking again with the number does it once.
//!
//! What a crash, or a side that does not answer, leaves behind:
//!
//! - *Before the ledger has committed*: the gate may have taken units away that the ledger still has. That
//!   is shown as `adjusting` in every comparison. Nobody was told that it was done, so it is undone: in solo
//!   when the process that owns the data starts, for nobody else can be at work; in a cluster, where another
//!   instance may be waiting for the ledger this very moment, when the number is a minute old.
//! - *After the commit*: the gate follows through the outbox.
//!
//! A number stands for one change of one item. The ledger has the last word on which one; after it has
//! refused a change, the gate is given what the ledger has under that number, and of what the ledger does
//! not know only that goes back which this call took: another call's may be in the ledger a moment later.

use std::{sync::Arc, time::Duration};

use gate::{AdjustOutcome, Changed, Reading};
use ledger::{Adjusted, AuditEntry, KnownAdjustment, LedgerError};
use sale::{Invalid, ItemId, Millis, OrderNo};
use serde_json::json;

use super::{OperateError, Result};
use crate::{
    actor::{Actor, audit_entry},
    coordination::Hint,
    shared::Shared,
};

/// How long an adjustment without an answer is asked for again before the operator is told, and how
/// often.
const ADJUST_ASKED_FOR: Duration = Duration::from_secs(5);
const ADJUST_PAUSE: Duration = Duration::from_millis(200);
/// How old the number of an adjustment may be that an operator asks for again, and how far ahead of
/// our clock that of another instance.
const ADJUST_AGE_MS_MAX: Millis = 24 * 60 * 60 * 1_000;
const ADJUST_AHEAD_MS_MAX: Millis = 60_000;

/// A change that the gate has made and the ledger has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unconfirmed {
    pub(crate) adjust_no: OrderNo,
    pub(crate) delta: i64,
    /// The ledger has the number for another item, so it never will make this one.
    pub(crate) refused: bool,
}

pub struct StockChanges {
    pub(crate) shared: Arc<Shared>,
}

impl StockChanges {
    /// Change an item's stock by `delta`. `again` is the number of a change of which it is not known
    /// whether it was made.
    pub async fn adjust(
        &self,
        who: impl Into<Actor>,
        item: ItemId,
        delta: i64,
        again: Option<OrderNo>,
    ) -> Result<Adjusted> {
        if delta == 0 {
            return Err(Invalid::new("delta", "must not be zero").into());
        }
        let adjust_no = match again {
            Some(no) => self.check_adjust_no(no)?,
            None => self.shared.number().ok_or(OperateError::NoNumber)?,
        };
        let _turn = self.shared.gate_turns.of(item).await;
        self.shared.ledger.item(item).await?.ok_or(OperateError::NotFound)?;
        // Before the gate is touched: what the ledger has made under this number stays as it is.
        let known = match again {
            Some(no) => self.shared.ledger.adjustment(no).await?,
            None => None,
        };
        if known.is_some_and(|known| known != KnownAdjustment { item, delta }) {
            return Err(bad_number("was used for another adjustment"));
        }
        let took = delta < 0 && known.is_none() && self.take_away(item, adjust_no, delta).await?;
        let detail = json!({"delta": delta, "adjust_no": adjust_no});
        let entry = audit_entry(who, "stock.adjust", format!("item:{item}"), detail);
        match self.adjust_until_known(item, delta, adjust_no, &entry).await {
            Ok(adjusted) => {
                self.shared.wake.outbox_written();
                Ok(adjusted)
            }
            Err(LedgerError::Unavailable(error)) => {
                tracing::warn!(%adjust_no, error,
                    "the ledger did not say whether it changed the stock: ask again with this number");
                Err(OperateError::Unknown(adjust_no))
            }
            Err(refused @ (LedgerError::Refused(_) | LedgerError::NotFound)) => {
                self.gate_follows_refusal(item, adjust_no, took).await;
                Err(refused.into())
            }
            Err(broken) => Err(broken.into()),
        }
    }

    /// Take units from the gate that nobody has claimed. Answers whether this call took them.
    async fn take_away(&self, item: ItemId, adjust_no: OrderNo, delta: i64) -> Result<bool> {
        match self.shared.gate.adjust(item, adjust_no, delta, false).await {
            Ok(AdjustOutcome::Done(_)) => Ok(true),
            Ok(AdjustOutcome::Repeated | AdjustOutcome::NotLoaded) => Ok(false),
            Ok(AdjustOutcome::Short { left }) => {
                let problem =
                    format!("takes more than there is: {left} units are neither sold nor claimed");
                Err(Invalid::new("delta", problem).into())
            }
            Ok(AdjustOutcome::Other { delta }) => Err(bad_number(format!(
                "stands for a change by {delta} that is not finished; ask again with that delta"
            ))),
            // It may have taken some of them.
            Err(error) => {
                tracing::warn!(%item, %adjust_no, %error,
                    "the gate did not say whether it changed the stock: ask again with this number");
                Err(OperateError::Unknown(adjust_no))
            }
        }
    }

    /// What cannot be put right now, reconcile puts right.
    async fn gate_follows_refusal(&self, item: ItemId, adjust_no: OrderNo, took: bool) {
        let changed = match self.shared.ledger.adjustment(adjust_no).await {
            Ok(Some(known)) if known.item == item => {
                let followed = self.shared.gate.adjust(item, adjust_no, known.delta, true).await;
                followed.map(|outcome| match outcome {
                    AdjustOutcome::Done(change) => Some(change),
                    _ => None,
                })
            }
            Ok(Some(_)) => self.shared.gate.forget_adjust(item, adjust_no).await,
            Ok(None) if took => self.shared.gate.forget_adjust(item, adjust_no).await,
            Ok(None) => Ok(None),
            Err(error) => {
                tracing::warn!(%item, %adjust_no, %error,
                    "a stock change that the ledger refused may be at the gate; reconcile undoes it");
                return;
            }
        };
        match changed {
            Ok(change) => self.tell_of_units(change).await,
            Err(error) => {
                tracing::warn!(%item, %adjust_no, %error,
                    "a stock change that the ledger refused may be at the gate; reconcile undoes it");
            }
        }
    }

    async fn tell_of_units(&self, change: Option<Changed>) {
        if let Some(change) = change {
            self.shared.lanes.stock_changed(change);
            self.shared.coordination.tell(&Hint::Units { item: change.item }).await;
        }
    }

    /// Only a number that was given lately can be of an adjustment that somebody waits for. One from
    /// the future would become the ledger's largest, and all new numbers would have to follow it.
    fn check_adjust_no(&self, no: OrderNo) -> Result<OrderNo> {
        let age_ms = self.shared.now_ms() - no.made_ms();
        if (-ADJUST_AHEAD_MS_MAX..ADJUST_AGE_MS_MAX).contains(&age_ms) {
            return Ok(no);
        }
        let problem = "must be the number that an unanswered adjustment of the last day named";
        Err(bad_number(problem))
    }

    /// A commit without an answer may have been done: it is asked for again under its number.
    async fn adjust_until_known(
        &self,
        item: ItemId,
        delta: i64,
        adjust_no: OrderNo,
        entry: &AuditEntry,
    ) -> std::result::Result<Adjusted, LedgerError> {
        let give_up = tokio::time::Instant::now() + ADJUST_ASKED_FOR;
        loop {
            let now_ms = self.shared.now_ms();
            match self.shared.ledger.adjust_stock(item, delta, adjust_no, entry, now_ms).await {
                Err(LedgerError::Unavailable(_)) if tokio::time::Instant::now() < give_up => {
                    tokio::time::sleep(ADJUST_PAUSE).await;
                }
                known => return known,
            }
        }
    }

    /// Changes made at the gate that the ledger does not know.
    pub(crate) async fn unconfirmed_adjusts(
        &self,
        item: ItemId,
        at_gate: &[(OrderNo, i64)],
    ) -> std::result::Result<Vec<Unconfirmed>, LedgerError> {
        let mut unconfirmed = Vec::new();
        // Those that came with the load have no delta of their own.
        for &(adjust_no, delta) in at_gate.iter().filter(|(_, delta)| *delta != 0) {
            let known = self.shared.ledger.adjustment(adjust_no).await?;
            if known.is_none_or(|known| known.item != item) {
                unconfirmed.push(Unconfirmed { adjust_no, delta, refused: known.is_some() });
            }
        }
        Ok(unconfirmed)
    }

    /// The item as the gate has it, and the units that changes under way have taken from the gate and not
    /// from the ledger yet.
    pub async fn at_gate(&self, item: ItemId) -> Result<Option<(Reading, i64)>> {
        let Some(reading) = self.shared.gate.reading(item).await? else { return Ok(None) };
        let unconfirmed = self.unconfirmed_adjusts(item, &reading.adjusts).await?;
        let taken = -unconfirmed.iter().map(|change| change.delta).sum::<i64>();
        Ok(Some((reading, taken)))
    }

    /// Undo what the process before us was cut off in. Only for who owns the data alone. What cannot be
    /// undone now, reconcile undoes.
    pub(crate) async fn undo_cut_off_adjusts(&self) {
        if let Err(error) = self.try_to_undo_cut_off_adjusts().await {
            tracing::warn!(%error, "stock changes that were cut off are not looked for now");
        }
    }

    async fn try_to_undo_cut_off_adjusts(&self) -> Result<()> {
        for here in self.shared.gate.loaded().await? {
            let item = here.item;
            let at_gate = self.shared.gate.adjusts(item).await?;
            for change in self.unconfirmed_adjusts(item, &at_gate).await? {
                let Unconfirmed { adjust_no, delta, .. } = change;
                let undone = self.shared.gate.forget_adjust(item, adjust_no).await?;
                self.tell_of_units(undone).await;
                tracing::warn!(%item, delta, %adjust_no,
                    "a stock change was cut off before it was in the books, and is undone");
                let detail = json!({"delta": delta, "adjust_no": adjust_no});
                self.shared.audit("system", "stock.undo", format!("item:{item}"), detail).await?;
            }
        }
        Ok(())
    }
}

fn bad_number(problem: impl Into<String>) -> OperateError {
    Invalid::new("adjust_no", problem).into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::{
        jobs::Job,
        test_engine::{NOW_MS, TestEngine},
    };

    #[tokio::test]
    async fn an_adjustment_asked_for_again_by_its_number_is_made_once() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        engine.stock.adjust("ann", item, 5, None).await.unwrap();
        let no = engine.shared.ledger.stock_log(item, 0, 9).await.unwrap()[0].order_no;
        let again = engine.stock.adjust("ann", item, 5, Some(no)).await.unwrap();
        assert!(again.repeated);
        assert_eq!(engine.shared.ledger.item(item).await.unwrap().unwrap().total, 15);
        let audit = engine.shared.ledger.audit_log(None, 1).await.unwrap();
        assert_eq!(
            audit[0].detail,
            json!({"delta": 5, "adjust_no": no, "before": 10, "after": 15})
        );
        // A number that nobody can have been told.
        for made_ms in [NOW_MS - 2 * ADJUST_AGE_MS_MAX, NOW_MS + 2 * ADJUST_AHEAD_MS_MAX] {
            let strange = Some(OrderNo::floor(made_ms));
            let refused = engine.stock.adjust("ann", item, 5, strange).await;
            assert!(matches!(refused, Err(OperateError::Invalid(why)) if why.field == "adjust_no"));
        }
    }

    /// Is this a refusal of the number?
    fn refuses_number(answer: &Result<Adjusted>) -> bool {
        matches!(answer, Err(OperateError::Invalid(why)) if why.field == "adjust_no")
    }

    #[tokio::test]
    async fn a_refused_change_undoes_no_other() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        let sale = shop.another_sale("pen", (NOW_MS - 1, NOW_MS + 3_600_000), 60_000).await;
        engine.operations.warm_activity("ann", sale.id, false).await.unwrap();
        let other = sale.items[0].id;
        engine.stock.adjust("ann", item, -5, None).await.unwrap();
        let no = engine.shared.ledger.stock_log(item, 0, 9).await.unwrap()[0].order_no;
        for (item, delta) in [(item, -3), (item, -30), (item, 5), (other, -5), (other, 5)] {
            let refused = engine.stock.adjust("bob", item, delta, Some(no)).await;
            assert!(refuses_number(&refused), "{item} {delta}: {refused:?}");
        }
        assert_eq!(
            (engine.shared.gate.left(item), engine.shared.gate.left(other)),
            (Some(5), Some(10))
        );
        let report = engine.reconcile.run(false).await.unwrap();
        assert_eq!(report.differences, 0, "{report:?}");
        // Too much at once is refused by the gate, and takes nothing back either.
        let short = engine.stock.adjust("bob", item, -6, None).await;
        assert!(matches!(short, Err(OperateError::Invalid(why)) if why.field == "delta"));
        assert_eq!(engine.shared.gate.left(item), Some(5));
    }

    #[tokio::test]
    async fn what_the_ledger_refuses_goes_back_to_the_gate_if_this_call_took_it() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        // The gate has a unit more than the ledger, which therefore refuses.
        engine.shared.gate.adjust(item, engine.shared.numbers.next(), 1, true).await.unwrap();
        let refused = engine.stock.adjust("ann", item, -11, None).await;
        assert!(matches!(refused, Err(OperateError::Invalid(why)) if why.field == "delta"));
        assert_eq!(engine.shared.gate.left(item), Some(11), "as it was");
        // Another call has taken them, and may be waiting for the ledger: they stay taken.
        let no = engine.shared.numbers.next();
        engine.shared.gate.adjust(item, no, -11, false).await.unwrap();
        assert!(engine.stock.adjust("ann", item, -11, Some(no)).await.is_err());
        assert_eq!(engine.shared.gate.left(item), Some(0));
    }

    #[tokio::test]
    async fn an_unfinished_change_is_seen_and_its_number_is_good_for_nothing_else() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        // Whoever asked for it died between gate and ledger.
        let no = engine.shared.numbers.next();
        engine.shared.gate.adjust(item, no, -4, false).await.unwrap();
        let compared = async || {
            let report = engine.reconcile.run(false).await.unwrap();
            assert_eq!(report.differences, 0, "{report:?}");
            let row = &report.items[0];
            (row.gate_left, row.adjusting, row.ledger_stock)
        };
        assert_eq!(compared().await, (Some(6), 4, 10));
        assert!(refuses_number(&engine.stock.adjust("bob", item, -3, Some(no)).await));
        assert_eq!(compared().await, (Some(6), 4, 10));
        let done = engine.stock.adjust("ann", item, -4, Some(no)).await.unwrap();
        assert_eq!((done.before, done.after), (10, 6));
        assert_eq!(compared().await, (Some(6), 0, 6));
    }

    #[tokio::test]
    async fn the_gate_follows_the_ledger_whatever_it_had_under_the_number() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        let no = engine.shared.numbers.next();
        engine.shared.gate.adjust(item, no, -4, false).await.unwrap();
        engine.stock.adjust("ann", item, 3, Some(no)).await.unwrap();
        let before = engine.reconcile.run(false).await.unwrap();
        let row = &before.items[0];
        assert_eq!((before.differences, row.gate_left, row.adjusting), (0, Some(6), 7), "{row:?}");
        engine.jobs.release.run().await.unwrap();
        let after = engine.reconcile.run(false).await.unwrap();
        let row = &after.items[0];
        assert_eq!((after.differences, row.gate_left, row.adjusting), (0, Some(13), 0), "{row:?}");
    }

    #[tokio::test]
    async fn a_gate_that_does_not_answer_leaves_the_operator_with_a_number() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let gate = shop.gate.clone();
        let (engine, item) = (&shop.engine, activity.items[0].id);
        gate.away.store(true, Ordering::SeqCst);
        let unknown = engine.stock.adjust("ann", item, -4, None).await;
        let Err(OperateError::Unknown(no)) = unknown else { panic!("{unknown:?}") };
        gate.away.store(false, Ordering::SeqCst);
        let done = engine.stock.adjust("ann", item, -4, Some(no)).await.unwrap();
        assert_eq!((done.before, done.after, engine.shared.gate.left(item)), (10, 6, Some(6)));
    }

    #[tokio::test]
    async fn a_start_undoes_what_the_process_before_it_was_cut_off_in() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let item = activity.items[0].id;
        let engine = &shop.engine;
        engine.stock.adjust("ann", item, -1, None).await.unwrap();
        engine.stock.adjust("ann", item, 2, None).await.unwrap();
        engine.jobs.release.run().await.unwrap();
        engine.shared.gate.adjust(item, engine.shared.numbers.next(), -4, false).await.unwrap();
        assert_eq!(engine.shared.gate.left(item), Some(7));
        let shop = shop.reopen().await;
        let engine = &shop.engine;
        assert_eq!(engine.shared.gate.left(item), Some(11), "the two that are in the books stay");
        let report = engine.reconcile.run(false).await.unwrap();
        assert_eq!((report.differences, report.items[0].adjusting), (0, 0), "{report:?}");
        let audit = engine.shared.ledger.audit_log(None, 2).await.unwrap();
        let undone = audit.iter().find(|row| row.action == "stock.undo").unwrap();
        assert_eq!((undone.who.as_str(), &undone.detail["delta"]), ("system", &json!(-4)));
        let shop = shop.reopen().await;
        assert_eq!(shop.engine.shared.gate.left(item), Some(11), "once");
    }

    #[tokio::test]
    async fn what_another_process_was_cut_off_in_is_undone_when_it_is_a_minute_old() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        engine.shared.gate.adjust(item, engine.shared.numbers.next(), -4, false).await.unwrap();
        let young = engine.reconcile.run(true).await.unwrap();
        assert_eq!((young.differences, young.items[0].adjusting), (0, 4), "{young:?}");
        shop.clock.advance(60_001);
        let old = engine.reconcile.run(true).await.unwrap();
        assert_eq!((old.differences, old.left), (1, 0), "{old:?}");
        assert_eq!(old.items[0].findings[0].kind, "gate_adjust");
        assert_eq!(engine.shared.gate.left(item), Some(10));
    }
}

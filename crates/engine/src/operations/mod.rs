//! What operators do. Nothing is done without its entry in the audit, which names who did it: money and
//! units in the same transaction, what can be undone by nobody else just before it, so that an entry
//! without what it tells of is possible and the other way round is not. What only makes or warms something
//! is written down after it. What is asked for again is written down again, for whoever asks twice may not
//! have been answered the first time.

mod by_hand;
mod console;
mod creating;
mod keys;
mod plans;
mod stock;
mod tokens;

use std::sync::Arc;

use ledger::{DeadLetterState, LedgerError, Moved};
use sale::{
    Activity, ActivityId, ActivityMove, ActivityState, Invalid, ItemId, Millis, OrderNo,
    OrderStatus, VoidReason, check_resume,
};
use serde_json::{Value, json};

pub(crate) use self::stock::Unconfirmed;
pub use self::{
    by_hand::{ByHand, MANUAL, REASON_CHARS_MAX, REFERENCE_CHARS_MAX},
    console::{CONSOLE_LINK_MS, Console},
    creating::{BadPlan, IMPORT_ACTIVITIES_MAX, IMPORT_ITEMS_MAX},
    keys::{KEY_LEAD_MS, KEY_LEAD_MS_MAX, KeyState, Keys, KnownKey},
    plans::Plans,
    stock::StockChanges,
    tokens::{LOCAL_TOKEN, TOKEN_NAME_CHARS_MAX, Tokens},
};
use crate::{
    Catalogue, StoreError, Warmed,
    actor::{Actor, audit_entry},
    reconcile::{Reconcile, ReconcileAsk, ReconcileRun, Report, TooManyRuns},
    shared::Shared,
    warming::{WarmError, Warming},
};

#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    #[error("not found")]
    NotFound,
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Of several that were to be made; none was.
    #[error("{} things make no sense", .0.len())]
    BadPlans(Vec<BadPlan>),
    /// Another activity has the `external_id` that this one was to have.
    #[error("its external_id is that of activity {0}")]
    Taken(ActivityId),
    /// The key was used for something else, of which this came.
    #[error("the key was used before")]
    KeyReused(Vec<ActivityId>),
    /// The reference of money that was written down for this other order.
    #[error("the reference was used for {0}")]
    ReferenceUsed(OrderNo),
    /// It is not in a state in which this can be done.
    #[error("it is {0}")]
    Conflict(&'static str),
    /// Somebody else has changed it since the caller saw it. This is what it is now.
    #[error("somebody else has changed it")]
    Changed(Box<Activity>),
    /// It is in the books, as it is here; the gate does not answer, and follows when it does.
    #[error("the gate has not heard of it yet")]
    NotAtGate(Box<Activity>),
    #[error("the system gives no random bytes: {0}")]
    Random(String),
    /// It may have been done. Asking again with this number does it once.
    #[error("it is not known whether {0} was done")]
    Unknown(OrderNo),
    /// No number can be given now.
    #[error("another process may hold this one's node")]
    NoNumber,
    #[error(transparent)]
    Ledger(LedgerError),
    #[error(transparent)]
    Gate(#[from] gate::GateError),
}

impl From<LedgerError> for OperateError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::NotFound => OperateError::NotFound,
            LedgerError::Refused(invalid) => OperateError::Invalid(invalid),
            other => OperateError::Ledger(other),
        }
    }
}

impl From<WarmError> for OperateError {
    fn from(error: WarmError) -> Self {
        match error {
            WarmError::UnknownItem => OperateError::NotFound,
            WarmError::NotPublished => OperateError::Conflict("draft"),
            WarmError::Ended => OperateError::Conflict("ended"),
            WarmError::Contended => OperateError::Conflict("being warmed by somebody else"),
            WarmError::Ledger(error) => error.into(),
            WarmError::Gate(error) => error.into(),
        }
    }
}

impl From<StoreError> for OperateError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Ledger(error) => error.into(),
            StoreError::Gate(error) => error.into(),
        }
    }
}

type Result<T> = std::result::Result<T, OperateError>;

/// Whether the gate has heard of what was done in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtGate {
    /// Every item that is there does as the ledger says.
    Done,
    /// It did not answer for all of them. The jobs tell it as soon as it does.
    Pending,
}

/// What operators do with what is on sale, with orders and with claims that failed.
pub struct Operations {
    pub(crate) shared: Arc<Shared>,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) warming: Arc<Warming>,
    pub(crate) reconcile: Arc<Reconcile>,
}

impl Operations {
    /// Publish, pause, resume or end. Doing it twice is doing it once.
    ///
    /// The ledger decides, in one transaction, and what it decided stands whether or not the gate answers:
    /// then the jobs make the gate follow. Answers the activity as that transaction left it.
    pub async fn move_activity(
        &self,
        who: impl Into<Actor>,
        id: ActivityId,
        step: ActivityMove,
    ) -> Result<(Activity, AtGate)> {
        self.move_until(who, id, step, None).await
    }

    /// Pause, until this time or until somebody resumes it. Of what is paused already the time is changed.
    pub async fn pause(
        &self,
        who: impl Into<Actor>,
        id: ActivityId,
        resume_ms: Option<Millis>,
    ) -> Result<(Activity, AtGate)> {
        if let Some(resume_ms) = resume_ms {
            let now = self.shared.ledger.activity(id).await?.ok_or(OperateError::NotFound)?;
            let may_be = ActivityMove::Pause.may_leave(now.state);
            if may_be || now.state == ActivityState::Paused {
                check_resume(resume_ms, now.closes_ms, self.shared.now_ms())?;
            }
        }
        self.move_until(who, id, ActivityMove::Pause, resume_ms).await
    }

    async fn move_until(
        &self,
        who: impl Into<Actor>,
        id: ActivityId,
        step: ActivityMove,
        resume_ms: Option<Millis>,
    ) -> Result<(Activity, AtGate)> {
        let action = format!("activity.{}", step.as_str());
        let detail = resume_ms.map_or(Value::Null, |at_ms| json!({"until": at_ms}));
        let entry = audit_entry(who, &action, format!("activity:{id}"), detail);
        let before = self.shared.ledger.activity(id).await?.ok_or(OperateError::NotFound)?;
        let turn = self.shared.gate_turns.of_all(before.items.iter().map(|item| item.id)).await;
        let (ledger, now_ms) = (&self.shared.ledger, self.shared.now_ms());
        let moved = match step {
            ActivityMove::Pause => ledger.pause_until(id, resume_ms, &entry, now_ms).await?,
            _ => ledger.move_activity(id, step, Some(&entry), now_ms).await?,
        };
        let activity = moved.activity;
        if activity.state != step.to() {
            return Err(OperateError::Conflict(activity.state.as_str()));
        }
        let items: Vec<ItemId> = activity.items.iter().map(|item| item.id).collect();
        let at_gate = match self.warming.tell_gate(id, activity.state, &items).await {
            Ok(()) => AtGate::Done,
            Err(error) => {
                let state = activity.state.as_str();
                tracing::warn!(activity = %id, state, %error,
                    "the gate did not hear of an activity's new state; the jobs tell it when it answers");
                AtGate::Pending
            }
        };
        drop(turn);
        if step == ActivityMove::End {
            self.shared.wake.reconcile.notify_one();
        }
        self.catalogue.reload().await;
        self.shared.wake.warm.notify_one();
        Ok((activity, at_gate))
    }

    pub async fn warm_activity(
        &self,
        who: impl Into<Actor>,
        id: ActivityId,
        anew: bool,
    ) -> Result<Vec<Warmed>> {
        let activity = self.shared.ledger.activity(id).await?.ok_or(OperateError::NotFound)?;
        let mut warmed = Vec::new();
        for item in &activity.items {
            let done = if anew {
                self.warming.rebuild(item.id).await?
            } else {
                self.warming.warm(item.id).await?
            };
            warmed.push(done);
        }
        let loaded = warmed.iter().filter(|warmed| !warmed.already).count();
        if loaded > 0 {
            let detail = json!({"loaded": loaded, "anew": anew});
            self.shared.audit(who, "activity.warm", format!("activity:{id}"), detail).await?;
        }
        Ok(warmed)
    }

    pub async fn warm_item(&self, who: impl Into<Actor>, id: ItemId, anew: bool) -> Result<Warmed> {
        let warmed =
            if anew { self.warming.rebuild(id).await? } else { self.warming.warm(id).await? };
        if !warmed.already {
            let detail = json!({"anew": anew, "epoch": warmed.epoch, "left": warmed.left});
            self.shared.audit(who, "item.warm", format!("item:{id}"), detail).await?;
        }
        Ok(warmed)
    }

    /// An operator asks for the comparison that a job makes by itself. It goes on by itself; whoever asks
    /// for the same while it does follows the one that runs.
    pub fn start_reconcile(
        self: &Arc<Self>,
        who: impl Into<Actor>,
        ask: ReconcileAsk,
    ) -> std::result::Result<Arc<ReconcileRun>, TooManyRuns> {
        let (run, is_new) = self.reconcile.begin(ask)?;
        if is_new {
            let (operations, who, run) = (self.clone(), who.into(), run.clone());
            tokio::spawn(async move {
                let found = operations.reconcile(who, ask, &run).await;
                run.has_ended(found);
            });
        }
        Ok(run)
    }

    async fn reconcile(&self, who: Actor, ask: ReconcileAsk, run: &ReconcileRun) -> Result<Report> {
        let report = self.reconcile.run_as(ask, run.count()).await?;
        let detail = json!({"heal": ask.heal, "whole": ask.whole,
            "differences": report.differences, "healed": report.healed, "left": report.left});
        self.shared.audit(who, "reconcile.run", "reconcile".into(), detail).await?;
        Ok(report)
    }

    /// Gives the money of a paid order back. The `note` is for the buyer and for whoever looks later.
    pub async fn refund(
        &self,
        who: impl Into<Actor>,
        no: OrderNo,
        note: Option<&str>,
    ) -> Result<()> {
        let detail = note.map_or(Value::Null, |note| json!({"note": note}));
        let entry = audit_entry(who, "order.refund", format!("order:{no}"), detail);
        match self.shared.ledger.start_refund(no, note, &entry, self.shared.now_ms()).await? {
            Moved::Done => {
                self.shared.wake.outbox_written();
            }
            Moved::Was(OrderStatus::Refunding | OrderStatus::Refunded) => {}
            Moved::Was(status) => return Err(OperateError::Conflict(status.as_str())),
        }
        Ok(())
    }

    /// Somebody reads personal data in bulk, or looks for a person: that they did stays known. The
    /// action begins with what is read.
    pub async fn note_reading(
        &self,
        who: impl Into<Actor>,
        action: &str,
        detail: Value,
    ) -> Result<()> {
        let what = action.split('.').next().unwrap_or(action).to_owned();
        Ok(self.shared.audit(who, action, what, detail).await?)
    }

    /// A rehearsal is started or ended from the console: it takes the processor of this machine.
    pub async fn note_rehearsal(
        &self,
        who: impl Into<Actor>,
        verb: &str,
        detail: Value,
    ) -> Result<()> {
        let action = format!("rehearsal.{verb}");
        Ok(self.shared.audit(who, &action, "rehearsal".into(), detail).await?)
    }

    pub async fn replay_dead_letter(&self, who: impl Into<Actor>, no: OrderNo) -> Result<()> {
        let letter = self.shared.ledger.dead_letter(no).await?.ok_or(OperateError::NotFound)?;
        if !letter.state.is_open() {
            return Err(OperateError::Conflict(letter.state.as_str()));
        }
        self.shared.audit(who, "dead_letter.replay", format!("order:{no}"), Value::Null).await?;
        match self.shared.ledger.replay(no, self.shared.now_ms()).await? {
            Moved::Done => {
                if let Some(workers) = &self.shared.workers {
                    workers.retry_now();
                }
            }
            Moved::Was(state) => return Err(OperateError::Conflict(state.as_str())),
        }
        Ok(())
    }

    pub async fn void_dead_letter(&self, who: impl Into<Actor>, no: OrderNo) -> Result<()> {
        let letter = self.shared.ledger.dead_letter(no).await?.ok_or(OperateError::NotFound)?;
        let repeated = letter.state == DeadLetterState::Voided;
        let detail = if repeated { json!({"repeated": true}) } else { Value::Null };
        self.shared.audit(who, "dead_letter.void", format!("order:{no}"), detail).await?;
        if repeated {
            return Ok(());
        }
        let now_ms = self.shared.now_ms();
        let voided = self.shared.ledger.void(&[letter.claim], VoidReason::Operator, now_ms).await?;
        if voided.is_empty() {
            // Somebody was faster: another operator, who wanted the same, or a worker.
            let letter = self.shared.ledger.dead_letter(no).await?.ok_or(OperateError::NotFound)?;
            if letter.state != DeadLetterState::Voided {
                return Err(OperateError::Conflict(letter.state.as_str()));
            }
        }
        self.shared.wake.outbox_written();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use gate::{Decision, Shut};
    use sale::FailedClaim;

    use super::*;
    use crate::{
        jobs::Job,
        test_engine::{NOW_MS, TestEngine, one_unit},
    };

    #[tokio::test]
    async fn a_move_that_the_gate_did_not_hear_of_is_done_and_reaches_it() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let gate = shop.gate.clone();
        let (engine, item) = (&shop.engine, activity.items[0].id);
        let claim = async |user: &str| engine.claims.claim(one_unit(item, user)).await;
        for (step, state) in [
            (ActivityMove::Pause, ActivityState::Paused),
            (ActivityMove::Resume, ActivityState::Published),
            (ActivityMove::End, ActivityState::Ended),
        ] {
            gate.away.store(true, Ordering::SeqCst);
            let (moved, at_gate) =
                engine.operations.move_activity("ann", activity.id, step).await.unwrap();
            assert_eq!((moved.state, at_gate), (state, AtGate::Pending), "{step:?}");
            let books = engine.shared.ledger.activity(activity.id).await.unwrap().unwrap();
            assert_eq!(books.state, state, "what was said is so");
            assert!(engine.jobs.warm.run().await.is_err(), "it is still away");
            gate.away.store(false, Ordering::SeqCst);
            engine.jobs.warm.run().await.unwrap();
            engine.jobs.lifecycle.run().await.unwrap();
            let answer = claim(step.as_str()).await;
            match step {
                ActivityMove::Pause => assert!(matches!(answer, Decision::Busy { .. })),
                ActivityMove::Resume => assert!(matches!(answer, Decision::Admitted { .. })),
                _ => assert!(matches!(answer, Decision::Ended)),
            }
        }
    }

    #[tokio::test]
    async fn publishing_again_does_not_undo_a_pause() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let does =
            async |step| shop.engine.operations.move_activity("ann", activity.id, step).await;
        does(ActivityMove::Pause).await.unwrap();
        let again = does(ActivityMove::Publish).await;
        assert!(matches!(again, Err(OperateError::Conflict("paused"))), "{again:?}");
        let loaded = shop.engine.shared.gate.loaded().await.unwrap();
        assert_eq!(loaded[0].shut, Some(Shut::Paused));
        assert!(does(ActivityMove::Resume).await.is_ok());
        assert!(does(ActivityMove::Publish).await.is_ok(), "it is published since before");
    }

    #[tokio::test]
    async fn a_pause_that_overtakes_a_resume_on_its_way_to_the_gate_holds() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, id, item) = (&shop.engine, activity.id, activity.items[0].id);
        engine.operations.move_activity("ann", id, ActivityMove::Pause).await.unwrap();
        // Another process of a cluster, which knows nothing of our turn, is faster.
        let (books, gate) = (engine.shared.ledger.clone(), engine.shared.gate.clone());
        *shop.gate.before_shut.lock() = Some(Box::pin(async move {
            books.move_activity(id, ActivityMove::Pause, None, NOW_MS).await.unwrap();
            gate.shut(item, Some(Shut::Paused)).await.unwrap();
        }));
        engine.operations.move_activity("bob", id, ActivityMove::Resume).await.unwrap();
        let books = engine.shared.ledger.activity(id).await.unwrap().unwrap();
        let loaded = engine.shared.gate.loaded().await.unwrap();
        assert_eq!((books.state, loaded[0].shut), (ActivityState::Paused, Some(Shut::Paused)));
    }

    #[tokio::test]
    async fn two_who_give_a_claim_up_at_once_are_both_told_that_it_is_void() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        engine.shared.workers.as_ref().unwrap().stop().await;
        let answer = engine.claims.claim(one_unit(item, "ann")).await;
        let Decision::Admitted { claim, .. } = answer else { panic!("{answer:?}") };
        let no = claim.order_no;
        let failed = FailedClaim { claim, tries: 1, next_try_ms: None, cause: "x".into() };
        engine.shared.ledger.defer(&[failed]).await.unwrap();
        let void = || engine.operations.void_dead_letter("ann", no);
        let (one, two, three) = tokio::join!(void(), void(), void());
        assert!(one.is_ok() && two.is_ok() && three.is_ok(), "{one:?} {two:?} {three:?}");
    }
}

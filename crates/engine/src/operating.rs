//! What operators do. No deed without its row in the audit, with its doer: money and units in the same
//! transaction, what can be undone by nobody else just before it, so that an entry without its deed is
//! possible and the other way round is not. What only makes or warms something is written down after
//! it. What is asked for again is written down again, for whoever asks twice may not have been answered
//! the first time.

use ledger::{AuditEntry, DeadLetterState, LedgerError, Moved, Role};
use sale::{
    Activity, ActivityId, ActivityMove, Invalid, ItemId, NewActivity, OrderNo, OrderStatus,
    VoidReason, is_plain_id,
};
use serde_json::{Value, json};

use super::{
    Engine, Warmed,
    reconcile::{ReconcileError, Report},
    warming::WarmError,
};
use crate::{
    actor::{Actor, CLI},
    settings::Profile,
};

#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    #[error("not found")]
    NotFound,
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// It is not in a state in which this can be done.
    #[error("it is {0}")]
    Conflict(&'static str),
    /// Somebody else has changed it since the caller saw it. This is what it is now.
    #[error("somebody else has changed it")]
    Changed(Box<Activity>),
    /// It is in the books, as it is here; the gate does not answer, and follows when it does.
    #[error("the gate has not heard of it yet")]
    NotAtGate(Box<Activity>),
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

impl From<ReconcileError> for OperateError {
    fn from(error: ReconcileError) -> Self {
        match error {
            ReconcileError::Ledger(error) => error.into(),
            ReconcileError::Gate(error) => error.into(),
        }
    }
}

type Result<T> = std::result::Result<T, OperateError>;

pub const TOKEN_NAME_CHARS_MAX: usize = 64;
/// Names that the audit uses for others than tokens.
const TOKEN_NAMES_RESERVED: [&str; 4] = ["system", "configured", "demo", CLI];
/// The tokens that each start makes for the commands on its machine begin so, and replace each other.
pub const LOCAL_TOKEN: &str = "local-cli";

fn check_token_name(name: &str) -> std::result::Result<(), Invalid> {
    if !is_plain_id(name, TOKEN_NAME_CHARS_MAX) {
        let rule = format!("must be 1 to {TOKEN_NAME_CHARS_MAX} visible characters");
        return Err(Invalid::new("name", rule));
    }
    if TOKEN_NAMES_RESERVED.contains(&name) || name.starts_with(LOCAL_TOKEN) {
        return Err(Invalid::new("name", "is reserved"));
    }
    Ok(())
}

/// Whether the gate has heard of what was done in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtGate {
    /// Every item that is there does as the ledger says.
    Done,
    /// It did not answer for all of them. The jobs tell it as soon as it does.
    Pending,
}

impl Engine {
    pub async fn create_activity(
        &self,
        who: impl Into<Actor>,
        new: &NewActivity,
    ) -> Result<Activity> {
        new.validate(self.clock.now_ms())?;
        self.check_shards(new)?;
        let activity = self.ledger.create_activity(new, self.clock.now_ms()).await?;
        let detail = json!({"name": activity.name, "items": activity.items.len()});
        self.audit(who, "activity.create", format!("activity:{}", activity.id), detail).await?;
        Ok(activity)
    }

    /// Two shards in one partition would be one: a cluster has no more of them than partitions.
    pub(super) fn check_shards(&self, new: &NewActivity) -> std::result::Result<(), Invalid> {
        let partitions = self.gate.partitions();
        let too_many = |item: &sale::NewItem| item.shards as usize > partitions;
        match new.items.iter().position(too_many) {
            Some(n) if self.settings.profile == Profile::Cluster => {
                let rule = format!("must be at most {partitions}, the number of partitions");
                Err(Invalid::new(format!("items[{n}].shards"), rule))
            }
            _ => Ok(()),
        }
    }

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
        let action = format!("activity.{}", step.as_str());
        let deed = self.deed(who, &action, format!("activity:{id}"), Value::Null);
        let turn = self.gate_turn.lock().await;
        let moved = self.ledger.move_activity(id, step, Some(&deed), self.clock.now_ms()).await?;
        let activity = moved.activity;
        if activity.state != step.to() {
            return Err(OperateError::Conflict(activity.state.as_str()));
        }
        let items: Vec<ItemId> = activity.items.iter().map(|item| item.id).collect();
        let at_gate = match self.tell_gate(id, activity.state, &items).await {
            Ok(()) => AtGate::Done,
            Err(error) => {
                let state = activity.state.as_str();
                tracing::warn!(activity = %id, state, %error,
                    "the gate does not know of it yet and is told as soon as it answers");
                AtGate::Pending
            }
        };
        drop(turn);
        if step == ActivityMove::End {
            self.reconcile_wake.notify_one();
        }
        self.refresh_catalogue().await;
        self.warm_wake.notify_one();
        Ok((activity, at_gate))
    }

    pub async fn warm_activity(
        &self,
        who: impl Into<Actor>,
        id: ActivityId,
        anew: bool,
    ) -> Result<Vec<Warmed>> {
        let activity = self.ledger.activity(id).await?.ok_or(OperateError::NotFound)?;
        let mut warmed = Vec::new();
        for item in &activity.items {
            let done = if anew { self.rebuild(item.id).await? } else { self.warm(item.id).await? };
            warmed.push(done);
        }
        let loaded = warmed.iter().filter(|warmed| !warmed.already).count();
        if loaded > 0 {
            let detail = json!({"loaded": loaded, "anew": anew});
            self.audit(who, "activity.warm", format!("activity:{id}"), detail).await?;
        }
        Ok(warmed)
    }

    pub async fn warm_item(&self, who: impl Into<Actor>, id: ItemId, anew: bool) -> Result<Warmed> {
        let warmed = if anew { self.rebuild(id).await? } else { self.warm(id).await? };
        if !warmed.already {
            let detail = json!({"anew": anew, "epoch": warmed.epoch, "left": warmed.left});
            self.audit(who, "item.warm", format!("item:{id}"), detail).await?;
        }
        Ok(warmed)
    }

    /// An operator asks for the comparison that a job makes by itself.
    pub async fn reconcile_by(&self, who: impl Into<Actor>, heal: bool) -> Result<Report> {
        let report = self.reconcile(heal).await?;
        let detail = json!({"heal": heal, "differences": report.differences,
            "healed": report.healed, "left": report.left});
        self.audit(who, "reconcile.run", "reconcile".into(), detail).await?;
        Ok(report)
    }

    /// `secret_hash` is the hash of a token that nobody but its owner will ever see again.
    pub async fn make_token(
        &self,
        who: impl Into<Actor>,
        name: &str,
        role: Role,
        secret_hash: &[u8],
    ) -> Result<()> {
        check_token_name(name)?;
        let deed = self.deed(who, "token.create", format!("token:{name}"), json!({"role": role}));
        let now_ms = self.clock.now_ms();
        if self.ledger.add_admin_token(name, role, secret_hash, &deed, now_ms).await? {
            return Ok(());
        }
        // The audit knows people by these names: one that was revoked is not given to another.
        let live = self.ledger.admin_tokens().await?.iter().any(|known| known.name == name);
        Err(OperateError::Conflict(if live { "in use" } else { "revoked" }))
    }

    pub async fn revoke_token(&self, who: impl Into<Actor>, name: &str) -> Result<()> {
        if !self.ledger.admin_tokens().await?.iter().any(|known| known.name == name) {
            return Err(OperateError::NotFound);
        }
        self.audit(who, "token.revoke", format!("token:{name}"), Value::Null).await?;
        let revoked = self.ledger.revoke_admin_token(name, self.clock.now_ms()).await?;
        if revoked { Ok(()) } else { Err(OperateError::NotFound) }
    }

    pub async fn refund(&self, who: impl Into<Actor>, no: OrderNo) -> Result<()> {
        let deed = self.deed(who, "order.refund", format!("order:{no}"), Value::Null);
        match self.ledger.start_refund(no, &deed, self.clock.now_ms()).await? {
            Moved::Done => {
                self.wake_outbox();
                self.renew_copy(no).await;
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
        self.audit(who, action, what, detail).await
    }

    pub async fn replay_dead_letter(&self, who: impl Into<Actor>, no: OrderNo) -> Result<()> {
        let letter = self.ledger.dead_letter(no).await?.ok_or(OperateError::NotFound)?;
        if !letter.state.is_open() {
            return Err(OperateError::Conflict(letter.state.as_str()));
        }
        self.audit(who, "dead_letter.replay", format!("order:{no}"), Value::Null).await?;
        match self.ledger.replay(no, self.clock.now_ms()).await? {
            Moved::Done => self.retry_now(),
            Moved::Was(state) => return Err(OperateError::Conflict(state.as_str())),
        }
        Ok(())
    }

    pub async fn void_dead_letter(&self, who: impl Into<Actor>, no: OrderNo) -> Result<()> {
        let letter = self.ledger.dead_letter(no).await?.ok_or(OperateError::NotFound)?;
        let repeated = letter.state == DeadLetterState::Voided;
        let detail = if repeated { json!({"repeated": true}) } else { Value::Null };
        self.audit(who, "dead_letter.void", format!("order:{no}"), detail).await?;
        if repeated {
            return Ok(());
        }
        let now_ms = self.clock.now_ms();
        let voided = self.ledger.void(&[letter.claim], VoidReason::Operator, now_ms).await?;
        if voided.is_empty() {
            // Somebody was faster: another operator, who wanted the same, or a worker.
            let letter = self.ledger.dead_letter(no).await?.ok_or(OperateError::NotFound)?;
            if letter.state != DeadLetterState::Voided {
                return Err(OperateError::Conflict(letter.state.as_str()));
            }
        }
        self.wake_outbox();
        Ok(())
    }

    pub(super) async fn audit(
        &self,
        who: impl Into<Actor>,
        action: &str,
        target: String,
        detail: Value,
    ) -> Result<()> {
        let entry = self.deed(who, action, target, detail);
        Ok(self.ledger.audit(&entry, self.clock.now_ms()).await?)
    }

    /// An entry for the audit, for deeds whose transaction writes it itself.
    pub(super) fn deed(
        &self,
        who: impl Into<Actor>,
        action: &str,
        target: String,
        detail: Value,
    ) -> AuditEntry {
        let Actor { name, origin } = who.into();
        let address = origin.address.as_deref();
        tracing::info!(who = name, address, action, target, "asked for by an operator");
        AuditEntry { who: name, action: action.into(), target, detail, origin }
    }
}

#[cfg(test)]
mod tests {
    use gate::Decision;
    use std::sync::atomic::Ordering;

    use gate::Shut;
    use sale::{ActivityState, FailedClaim};

    use super::*;
    use crate::test_engine::{NOW_MS, TestEngine, one_unit};

    #[tokio::test]
    async fn a_move_that_the_gate_did_not_hear_of_is_done_and_reaches_it() {
        let (mut night, activity) = TestEngine::fall(|_| {}).await;
        let told = night.make_obedient();
        let (engine, item) = (&night.engine, activity.items[0].id);
        let claim = async |user: &str| engine.claim(one_unit(item, user)).await;
        for (step, state) in [
            (ActivityMove::Pause, ActivityState::Paused),
            (ActivityMove::Resume, ActivityState::Published),
            (ActivityMove::End, ActivityState::Ended),
        ] {
            told.away.store(true, Ordering::SeqCst);
            let (moved, at_gate) = engine.move_activity("ann", activity.id, step).await.unwrap();
            assert_eq!((moved.state, at_gate), (state, AtGate::Pending), "{step:?}");
            let books = engine.ledger.activity(activity.id).await.unwrap().unwrap();
            assert_eq!(books.state, state, "what was said is so");
            assert!(engine.warm_due(NOW_MS).await.is_err(), "it is still away");
            told.away.store(false, Ordering::SeqCst);
            engine.warm_due(NOW_MS).await.unwrap();
            engine.lifecycle().await.unwrap();
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
        let (night, activity) = TestEngine::fall(|_| {}).await;
        let does = async |step| night.engine.move_activity("ann", activity.id, step).await;
        does(ActivityMove::Pause).await.unwrap();
        let again = does(ActivityMove::Publish).await;
        assert!(matches!(again, Err(OperateError::Conflict("paused"))), "{again:?}");
        let loaded = night.engine.gate.loaded().await.unwrap();
        assert_eq!(loaded[0].shut, Some(Shut::Paused));
        assert!(does(ActivityMove::Resume).await.is_ok());
        assert!(does(ActivityMove::Publish).await.is_ok(), "it is published since before");
    }

    #[tokio::test]
    async fn a_pause_that_overtakes_a_resume_on_its_way_to_the_gate_holds() {
        let (mut night, activity) = TestEngine::fall(|_| {}).await;
        let told = night.make_obedient();
        let (engine, id, item) = (&night.engine, activity.id, activity.items[0].id);
        engine.move_activity("ann", id, ActivityMove::Pause).await.unwrap();
        // Another process of a cluster, which knows nothing of our turn, is faster.
        let (books, gate) = (engine.ledger.clone(), engine.gate.clone());
        *told.before_shut.lock() = Some(Box::pin(async move {
            books.move_activity(id, ActivityMove::Pause, None, NOW_MS).await.unwrap();
            gate.shut(item, Some(Shut::Paused)).await.unwrap();
        }));
        engine.move_activity("bob", id, ActivityMove::Resume).await.unwrap();
        let books = engine.ledger.activity(id).await.unwrap().unwrap();
        let loaded = engine.gate.loaded().await.unwrap();
        assert_eq!((books.state, loaded[0].shut), (ActivityState::Paused, Some(Shut::Paused)));
    }

    #[tokio::test]
    async fn two_who_give_a_claim_up_at_once_are_both_told_that_it_is_void() {
        let (night, activity) = TestEngine::fall(|_| {}).await;
        let (engine, item) = (&night.engine, activity.items[0].id);
        engine.workers.as_ref().unwrap().stop().await;
        let answer = engine.claim(one_unit(item, "ann")).await;
        let Decision::Admitted { claim, .. } = answer else { panic!("{answer:?}") };
        let no = claim.order_no;
        let failed = FailedClaim { claim, tries: 1, next_try_ms: None, cause: "x".into() };
        engine.ledger.defer(&[failed]).await.unwrap();
        let void = || engine.void_dead_letter("ann", no);
        let (one, two, three) = tokio::join!(void(), void(), void());
        assert!(one.is_ok() && two.is_ok() && three.is_ok(), "{one:?} {two:?} {three:?}");
    }

    #[test]
    fn names_of_tokens_are_short_visible_and_not_reserved() {
        for good in ["ann", "值班员", &"x".repeat(64)] {
            assert!(check_token_name(good).is_ok(), "{good}");
        }
        let long = "x".repeat(65);
        for bad in [
            "",
            " ",
            "two words",
            "tab\t",
            "system",
            "configured",
            "cli",
            "local-cli",
            "local-cli-0a1b",
            "an\u{200B}n",
            "\u{202E}nna",
            &long,
        ] {
            assert_eq!(check_token_name(bad).unwrap_err().field, "name", "{bad:?}");
        }
    }
}

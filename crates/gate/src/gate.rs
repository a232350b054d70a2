//! What a gate does, by who uses it: lanes admit, jobs and operators keep it up, reports and buyers look
//! into it.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use sale::{Claim, ClaimLog, Epoch, ItemId, LookBack, Millis, OrderNo, RelaySource, UserId};

use crate::{
    AdjustOutcome, Changed, Decision, GateError, GateFailure, GiveBack, Loaded, Loading,
    NumberedRequest, Outline, Reading, Readmitted, Result, Shut, Writable,
};

/// All of a gate. Whoever needs one side of it only asks for that.
pub trait Gate: ClaimLog + RelaySource + LookBack + Admission + Upkeep + Inspection {}

impl<G: ClaimLog + RelaySource + LookBack + Admission + Upkeep + Inspection> Gate for G {}

/// The side of a gate that lanes see.
#[async_trait]
pub trait Admission: Send + Sync {
    /// How many lanes lead to it.
    fn partitions(&self) -> usize;

    /// Which of them this buyer takes.
    fn partition_of(&self, item: ItemId, user: &UserId) -> usize;

    /// Does `admit` block its thread?
    fn blocks(&self) -> bool;

    /// Decide a batch: window, limit, stock, mark and log in one step that is durable when this
    /// returns. One decision per request, in order. A failure is the decision `Busy`, never a guess.
    /// May block its thread while it writes; each lane has a thread of its own for that.
    async fn admit(&self, batch: Vec<NumberedRequest>) -> Vec<Decision>;

    /// Could this buyer hold a mark on this item? `with_key`: they sent an `Idempotency-Key`, as
    /// somebody does who may be asking again. May answer yes without knowing. The sold-out cache
    /// does not speak to a buyer who may hold one.
    fn may_hold_mark(&self, item: ItemId, user: &UserId, with_key: bool) -> bool;

    /// Units left as last known, without asking anybody; `None` if nobody here knows.
    fn units_left(&self, _item: ItemId) -> Option<i64> {
        None
    }
}

/// The side of a gate that jobs and operators see: everything that changes it and is no admission.
#[async_trait]
pub trait Upkeep: Send + Sync {
    /// Admit a claim that was acknowledged once and is gone, if there is still a unit for it.
    async fn readmit(&self, claim: &Claim) -> Result<Readmitted>;

    /// The partition that has this buyer's mark on the item; `None` if nobody here has heard of the item,
    /// and where it is has to be looked up first.
    fn home_of(&self, _item: ItemId, _user: &UserId) -> Option<usize> {
        Some(0)
    }

    /// Give units back. Twice is once.
    async fn release(&self, units: &[GiveBack]) -> Result<Vec<Changed>>;

    /// Claims of earlier epochs of an item that have just become orders. Those that the load of its
    /// present epoch did not know of take their units and mark their buyers now; of others nothing changes.
    /// Answers the claims of earlier epochs: one of them may be over by now, and then it holds nothing.
    async fn adopt(&self, _claims: &[Claim]) -> Result<Vec<Claim>> {
        Ok(Vec::new())
    }

    /// Change the units left, idempotent by `adjust_no`. Taking away is refused if it would leave
    /// less than nothing or if the number stands for another change, unless `committed`: then the ledger
    /// has done it and the gate follows, whatever it had under this number.
    async fn adjust(
        &self,
        item: ItemId,
        adjust_no: OrderNo,
        delta: i64,
        committed: bool,
    ) -> Result<AdjustOutcome>;

    /// Undo an adjustment that the ledger never confirmed.
    async fn forget_adjust(&self, item: ItemId, adjust_no: OrderNo) -> Result<Option<Changed>>;

    /// Take an item over, to load it under this epoch: from here on it admits nobody, and units that
    /// come back and adjustments are refused until it is loaded. Whoever loads reads log and ledger
    /// *after* this. False if the epoch or a later one is here already, or the item has ended.
    async fn begin_load(&self, item: ItemId, epoch: Epoch, shards: u32) -> Result<bool>;

    /// The load that was begun under this epoch goes on, although nothing of it arrives now: whoever
    /// loads says so every few seconds. False if somebody else has taken the item over.
    async fn keep_loading(&self, _item: ItemId, _epoch: Epoch) -> Result<bool> {
        Ok(true)
    }

    /// Mark some of the buyers on an item whose load was begun under this epoch. There may be millions
    /// of them, so they come in parts; the last part is in the `Loading`. False as `load`.
    async fn fill(&self, item: ItemId, epoch: Epoch, marks: Vec<Claim>) -> Result<bool>;

    /// Replace what the gate holds of an item whose load was begun under this epoch, and open it.
    /// False if a later load was begun, or this one is over.
    async fn load(&self, loading: Loading) -> Result<bool>;

    /// A load that was begun under this epoch will not be finished: nobody need wait for it.
    async fn abandon_load(&self, _item: ItemId, _epoch: Epoch) {}

    /// Stop or resume (`None`) admitting. False if the item is not at the gate.
    async fn shut(&self, item: ItemId, shut: Option<Shut>) -> Result<bool>;

    /// Take an item away for good. Claims of it that are still on the log stay there.
    async fn unload(&self, item: ItemId) -> Result<()>;

    /// Items whose acknowledged writes were seen to be lost; they admit nobody until they are
    /// loaded anew.
    fn suspects(&self) -> Vec<ItemId> {
        Vec::new()
    }

    /// Nothing will be sold of this item any more: it need not be loaded anew.
    fn forget_suspect(&self, _item: ItemId) {}

    /// What has to be done now and then: finish what a crash left half done,
    /// see whether anything was lost.
    async fn upkeep(&self) -> Result<()> {
        Ok(())
    }
}

/// The side of a gate that reconcile, operators and waiting buyers see: it changes nothing.
#[async_trait]
pub trait Inspection: ClaimLog {
    /// The items at the gate, whole or not.
    async fn loaded(&self) -> Result<Vec<Loaded>>;

    /// The same, as it may have been a moment ago: for jobs that look at everything all the time, and
    /// look again at what they are about to change.
    async fn loaded_lately(&self) -> Result<Vec<Loaded>> {
        self.loaded().await
    }

    /// Brings up to date what is told of items without asking, [`left`](Self::left) and
    /// [`loaded_lately`](Self::loaded_lately), where somebody else may have changed it.
    async fn look(&self) {}

    /// One of them, as it is now; `None` if it is not at the gate.
    async fn loaded_item(&self, item: ItemId) -> Result<Option<Loaded>> {
        Ok(self.loaded().await?.into_iter().find(|here| here.item == item))
    }

    /// `None` if the item is not at the gate, or not whole because it is being loaded.
    async fn reading(&self, item: ItemId) -> Result<Option<Reading>>;

    /// The adjustments applied since the item was loaded, or contained in the load; those have no units
    /// of their own. None if the item is not at the gate.
    async fn adjusts(&self, item: ItemId) -> Result<Vec<(OrderNo, i64)>>;

    /// Unacknowledged claims of an item that may or may not be at the gate.
    async fn in_flight(&self, item: ItemId) -> Result<Vec<Claim>>;

    /// The items that are whole at the gate, in a few numbers each. One that a part which does not answer
    /// has a share of is missing.
    async fn outlines(&self) -> Result<HashMap<ItemId, Outline>>;

    /// Which of these claims their buyers are marked with.
    async fn marked(&self, item: ItemId, claims: &[(UserId, OrderNo)]) -> Result<HashSet<OrderNo>>;

    /// Every buyer marked on an item.
    async fn marks(&self, item: ItemId) -> Result<Vec<(UserId, OrderNo)>>;

    /// This buyer's claim, if the gate holds it. It may be in the ledger already: ask there next. An
    /// error if the gate cannot tell, as while an item is being loaded.
    async fn queued(&self, user: &UserId, order_no: OrderNo) -> Result<Option<Claim>>;

    /// Is this claim on the log and not acknowledged? Then no worker has told that it is in the ledger. If
    /// it is not, only the ledger knows what became of it.
    async fn is_on_log(&self, claim: &Claim) -> Result<bool>;

    /// Claims of one buyer that the gate holds, newest first; some may be in the ledger already. Those
    /// of an item that is being loaded may be missing.
    async fn queued_of(&self, user: &UserId) -> Result<Vec<Claim>>;

    /// A claim on the log by its number alone. For operators: where the log is elsewhere, all of it may
    /// have to be read.
    async fn on_log(&self, order_no: OrderNo) -> Result<Option<Claim>>;

    /// Units left as last known, without asking anybody. For pages.
    fn left(&self, item: ItemId) -> Option<i64>;

    /// The backlog as it is now; `backlog` may be a moment old where the log is elsewhere.
    async fn measure_backlog(&self) -> Result<u64> {
        Ok(self.backlog())
    }

    /// How long the oldest claim on the log has been waiting for the ledger, in milliseconds by the
    /// gate's own clock; `None` if nothing waits.
    async fn oldest_waits_ms(&self) -> Result<Option<u64>>;

    /// What time it is at each part of the gate that has a share of the item; an error where one does not
    /// answer. Nothing where the gate goes by this process's clock, or does not have the item.
    async fn clocks(&self, _item: ItemId) -> Vec<Result<Millis>> {
        Vec::new()
    }

    /// Could it take a claim now? Really writes, unless it has just done so.
    async fn check(&self) -> Writable;

    /// Answers if the gate, or at least a part of it, could take a claim now.
    async fn ping(&self) -> Result<()> {
        let Writable { partitions, silent, cause } = self.check().await;
        if silent < partitions {
            return Ok(());
        }
        Err(GateError::new(GateFailure::Unwritable, cause.unwrap_or_default()))
    }
}

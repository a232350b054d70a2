//! Warming: bringing an item to the gate, and keeping it there.
//!
//! A compare-and-set state machine in the ledger: any state → warming under the next epoch → ready.
//! It may be run twice, by two people, or die at any point:
//!
//! 1. `begin_warm` bumps the epoch. Dying here leaves the item warming; the next run bumps again.
//! 2. The gate is frozen for the item, if it has it: from here on no claim is added.
//! 3. The claims in flight are read from the log, *then* the ledger is read in one transaction. A
//!    claim that a worker settles in between is in both, and the ledger says so: it counts once.
//! 4. The gate is loaded with `stock − units in flight` and the marks of everyone who holds
//!    something. The gate refuses an epoch it has passed, so of two runs the later one stands.
//! 5. `finish_warm`. Dying before it: the scheduler sees *warming* at the gate's epoch and finishes.

use std::collections::HashMap;

use gate::{Loaded, Loading, Shut};
use ledger::LedgerError;
use sale::{Activity, ActivityState, Claim, Epoch, Item, ItemId, ItemState, Millis, OrderNo};

use super::Engine;

/// How often a run starts over when somebody else moved the epoch.
const WARM_TRIES_MAX: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warmed {
    pub item: ItemId,
    pub epoch: Epoch,
    pub left: i64,
    /// It was at the gate already, and nothing was changed.
    pub already: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum WarmError {
    #[error("no such item")]
    UnknownItem,
    #[error("the item's activity is not published")]
    NotPublished,
    #[error("the item's activity is over")]
    Ended,
    #[error("somebody else is warming this item")]
    Contended,
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Gate(#[from] gate::GateError),
}

impl Engine {
    /// Bring an item to the gate if it is not there.
    pub async fn warm(&self, item: ItemId) -> Result<Warmed, WarmError> {
        self.warm_with(item, false).await
    }

    /// Load an item anew from the ledger even if the gate has it.
    pub async fn rebuild(&self, item: ItemId) -> Result<Warmed, WarmError> {
        self.warm_with(item, true).await
    }

    async fn warm_with(&self, id: ItemId, anew: bool) -> Result<Warmed, WarmError> {
        let _turn = self.gate_turn.lock().await;
        for _ in 0..WARM_TRIES_MAX {
            let item = self.ledger.item(id).await?.ok_or(WarmError::UnknownItem)?;
            let activity =
                self.ledger.activity(item.activity).await?.ok_or(WarmError::UnknownItem)?;
            match activity.state {
                ActivityState::Draft => return Err(WarmError::NotPublished),
                ActivityState::Ended => return Err(WarmError::Ended),
                ActivityState::Published | ActivityState::Paused => {}
            }
            if !anew && let Some(warmed) = self.already_warm(&item).await? {
                return Ok(warmed);
            }
            let Some(epoch) = self.ledger.begin_warm(id, item.epoch).await? else { continue };
            if let Some(warmed) = self.load(id, epoch).await? {
                self.refresh_catalogue().await;
                return Ok(warmed);
            }
        }
        Err(WarmError::Contended)
    }

    async fn already_warm(&self, item: &Item) -> Result<Option<Warmed>, WarmError> {
        let loaded = self.gate.loaded().await?;
        let here = loaded.iter().any(|here| here.item == item.id && here.epoch == item.epoch);
        if !here || !matches!(item.state, ItemState::Warming | ItemState::Ready) {
            return Ok(None);
        }
        if item.state == ItemState::Warming {
            self.ledger.finish_warm(item.id, item.epoch).await?;
        }
        let left = self.gate.left(item.id).unwrap_or(0);
        Ok(Some(Warmed { item: item.id, epoch: item.epoch, left, already: true }))
    }

    /// Steps 2 to 5. `None` if a later epoch is at the gate.
    async fn load(&self, item: ItemId, epoch: Epoch) -> Result<Option<Warmed>, WarmError> {
        self.gate.shut(item, Some(Shut::Frozen)).await?;
        let in_flight = self.gate.in_flight(item).await?;
        let numbers: Vec<OrderNo> = in_flight.iter().map(|claim| claim.order_no).collect();
        let basis = self.ledger.warm_basis(item, &numbers).await?;
        // A claim can be on the log and deferred at once, between the two; it counts once.
        let open = in_flight.into_iter().filter(|claim| !basis.settled.contains(&claim.order_no));
        let open: HashMap<OrderNo, Claim> =
            open.chain(basis.failed).map(|claim| (claim.order_no, claim)).collect();
        let held: i64 = open.values().map(|claim| i64::from(claim.quantity)).sum();
        let left = basis.item.stock - held;
        let loading = Loading {
            item,
            epoch,
            opens_ms: basis.activity.opens_ms,
            closes_ms: basis.activity.closes_ms,
            limit: basis.item.limit_per_user,
            shards: basis.item.shards,
            left,
            marks: basis.marks.into_iter().chain(open.into_values()).collect(),
            adjusted: basis.adjusted,
            shut: (basis.activity.state == ActivityState::Paused).then_some(Shut::Paused),
        };
        if !self.gate.load(loading).await? {
            return Ok(None);
        }
        self.lanes.forget(item);
        self.ledger.finish_warm(item, epoch).await?;
        tracing::info!(%item, epoch, left, held, "item is at the gate");
        Ok(Some(Warmed { item, epoch, left, already: false }))
    }

    /// Warm what opens soon, warm again what the gate lost, and see to it that the gate is shut
    /// when and only when the ledger says so. One item's failure is not another's.
    pub(super) async fn warm_due(&self, now_ms: Millis) -> Result<(), WarmError> {
        let loaded: HashMap<ItemId, Loaded> =
            self.gate.loaded().await?.into_iter().map(|here| (here.item, here)).collect();
        let soon = now_ms + self.config.gate.warm_before_ms as Millis;
        for activity in self.ledger.activities(now_ms, ACTIVITIES_MAX).await? {
            if !wants_warming(&activity, now_ms, soon) {
                continue;
            }
            for item in &activity.items {
                if let Err(error) = self.keep_warm(&activity, item, loaded.get(&item.id)).await {
                    tracing::warn!(item = %item.id, %error, "item could not be warmed, will try again");
                }
            }
        }
        Ok(())
    }

    async fn keep_warm(
        &self,
        activity: &Activity,
        item: &Item,
        here: Option<&Loaded>,
    ) -> Result<(), WarmError> {
        match here {
            Some(here) if item.state == ItemState::Ready && here.epoch == item.epoch => {
                let wanted = (activity.state == ActivityState::Paused).then_some(Shut::Paused);
                if here.shut == Some(Shut::Frozen) {
                    // Somebody who was about to load it was overtaken and then died.
                    return self.rebuild(item.id).await.map(drop);
                }
                if here.shut != wanted {
                    self.gate.shut(item.id, wanted).await?;
                }
                Ok(())
            }
            _ => self.warm(item.id).await.map(drop),
        }
    }
}

const ACTIVITIES_MAX: usize = 10_000;

fn wants_warming(activity: &Activity, now_ms: Millis, soon: Millis) -> bool {
    matches!(activity.state, ActivityState::Published | ActivityState::Paused)
        && activity.opens_ms <= soon
        && now_ms < activity.closes_ms
}

//! The gate: decides who may buy, fast, and writes it down before it says so.
//!
//! A claim goes through three rooms of this crate: the [`SoldOut`] cache, which may only say no;
//! a lane of [`Lanes`], a bounded queue whose one consumer turns waiting claims into batches; and a
//! [`Gate`], which decides a whole batch in one atomic, durable step. The step ends with the
//! winners on the claim log: there is no moment at which a unit is taken and the claim is not on
//! the log.
//!
//! The gate holds the *pre-deducted* stock. It may err towards too few units or a claim the ledger
//! later voids, never towards overselling, because the ledger has the last word. Everything that
//! changes it afterwards is a delta with an identity (an order number, an adjustment number), so
//! repeating it is harmless and nothing is ever overwritten with somebody else's idea of the stock.

mod draw;
mod gate;
mod gathered;
mod kept;
mod lane;
mod mark;
mod pace;
mod recent;
pub mod redis;
mod rush;
mod sold_out;
pub mod solo;
mod spent_on;

use sale::{Claim, Epoch, ItemId, KeyHash, Millis, OrderNo, UserId};

pub use draw::{DrawExchange, DrawWindow, NobodyElse, PostedPlace, ROOMS_MAX, Room};
pub use gate::{Admission, Gate, Inspection, Upkeep};
pub use gathered::{Gathered, GatheredLimits};
pub use kept::Keep;
pub use lane::{HearAdmitted, LaneOptions, Lanes, MayNumber, PendingDecision};
pub use recent::Recent;
pub use sold_out::SoldOut;

/// Who wants how much of what: a claim from the socket to the gate.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub item: ItemId,
    pub user: UserId,
    pub quantity: u32,
    /// Present if the buyer sent an `Idempotency-Key`.
    pub key: Option<KeyHash>,
}

impl ClaimRequest {
    /// The claim it becomes.
    fn claim(&self, order_no: OrderNo, epoch: Epoch, claimed_ms: Millis) -> Claim {
        let ClaimRequest { item, ref user, quantity, key } = *self;
        Claim { order_no, item, user: user.clone(), quantity, epoch, claimed_ms, key }
    }
}

/// A request, and the number its claim gets if it is admitted.
pub type NumberedRequest = (OrderNo, ClaimRequest);

/// The answer to one request, from the gate to the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The units are this buyer's. `repeated`: they already were, and this is the same
    /// `Idempotency-Key` asking again. `ahead`: claims on the log before this one.
    Admitted {
        claim: Claim,
        repeated: bool,
        ahead: u64,
    },
    /// The buyer holds a claim or order of this item already.
    AlreadyBought {
        order_no: OrderNo,
    },
    /// The buyer's `Idempotency-Key` was answered with this claim, which is for another quantity or
    /// another item.
    KeyReused {
        order_no: OrderNo,
    },
    /// Fewer units left than asked for. `version` orders this answer among changes of the stock.
    SoldOut {
        left: i64,
        version: u64,
    },
    NotStarted {
        opens_ms: Millis,
    },
    Ended,
    OverLimit {
        limit: u32,
    },
    /// The lane is full: too many claims are waiting.
    TooHot,
    /// Nobody knows such an item. The gate itself says that it is not loaded.
    UnknownItem,
    /// Not now, and nothing was decided: try again.
    Busy(Busy),
}

/// Why the gate decides nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// The item is not at the gate. Missing state is closed, never unlimited.
    NotLoaded,
    /// An operator paused the sale.
    Paused,
    /// The item is being rebuilt.
    Frozen,
    /// The workers are so far behind that no more claims are taken.
    LogFull,
    /// The gate cannot write.
    Unwritable,
}

/// Why an item that is at the gate admits nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shut {
    Paused,
    Frozen,
    Ended,
}

/// All that the gate needs to sell an item.
#[derive(Clone, Debug)]
pub struct Loading {
    pub item: ItemId,
    pub epoch: Epoch,
    pub opens_ms: Millis,
    pub closes_ms: Millis,
    pub limit: u32,
    /// Over how many partitions the stock is spread.
    pub shards: u32,
    /// Ledger stock less the units of claims in flight.
    pub left: i64,
    /// Buyers who hold a live order or a claim in flight and were not filled in before.
    pub marks: Vec<Claim>,
    /// Adjustments that `left` already contains.
    pub adjusted: Vec<OrderNo>,
    pub shut: Option<Shut>,
}

/// Units to give back. Acts only if the buyer's mark still carries this order number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveBack {
    pub item: ItemId,
    pub user: UserId,
    pub order_no: OrderNo,
    pub quantity: u32,
}

/// An item whose stock at the gate changed, and the version it has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    pub item: ItemId,
    pub version: u64,
    /// Units that came back.
    pub units: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdjustOutcome {
    Done(Changed),
    /// This number was applied before.
    Repeated,
    /// This number stands for another change here, which the ledger may yet confirm: nothing was done.
    Other {
        delta: i64,
    },
    /// Fewer units are left unclaimed than should be taken away.
    Short {
        left: i64,
    },
    /// The item is not at the gate: when it is loaded, the load contains the adjustment.
    NotLoaded,
}

/// What became of a claim that was presented again with its receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readmitted {
    /// On the log again under its old number.
    Admitted,
    /// It never was lost.
    Known,
    /// The buyer holds another claim of this item.
    AlreadyBought { order_no: OrderNo },
    /// Not enough units are left.
    SoldOut,
    /// The item is not at the gate.
    NotLoaded,
    /// The item is being rebuilt: ask again.
    Frozen,
}

/// An item that is at the gate, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub item: ItemId,
    pub epoch: Epoch,
    pub shut: Option<Shut>,
    /// Opening and closing, of one that is whole.
    pub window: (Millis, Millis),
    pub presence: Presence,
}

/// How much of an item is at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Whole,
    /// Somebody is loading it, or died before it was done; the last step was made this long ago.
    Loading {
        quiet_ms: u64,
    },
    /// Parts of it are gone, or of different epochs.
    Torn,
    /// The gate does not answer for it now.
    Unknown,
}

/// An item as the gate sees it at one instant.
#[derive(Clone, Debug)]
pub struct Reading {
    pub item: ItemId,
    pub epoch: Epoch,
    pub shut: Option<Shut>,
    pub opens_ms: Millis,
    pub closes_ms: Millis,
    pub left: i64,
    /// Buyers marked, and the units they hold.
    pub marks: u64,
    pub marked_units: i64,
    /// Grows with every change of this item at the gate: two readings with the same version are of
    /// the same state.
    pub version: u64,
    /// Claims of this item on the log that are not acknowledged.
    pub in_flight: Vec<Claim>,
    /// Adjustments applied since the item was loaded, or contained in the load.
    pub adjusts: Vec<(OrderNo, i64)>,
}

/// An item at the gate in a few numbers: two that are equal are of the same state, unless somebody has
/// changed single marks behind the gate's back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outline {
    pub epoch: Epoch,
    pub version: u64,
    pub shut: Option<Shut>,
    pub left: i64,
    pub marks: u64,
    pub marked_units: i64,
}

impl Reading {
    pub fn outline(&self) -> Outline {
        Outline {
            epoch: self.epoch,
            version: self.version,
            shut: self.shut,
            left: self.left,
            marks: self.marks,
            marked_units: self.marked_units,
        }
    }
}

/// How much of the gate can be written. Its partitions may be at different servers, and one that is
/// away stops no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writable {
    pub partitions: usize,
    /// Those that could not take a claim.
    pub silent: usize,
    /// Why, of the first of them.
    pub cause: Option<String>,
}

/// The gate did not do what was asked, or nobody knows whether it did.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the gate does not answer: {detail}")]
pub struct GateError {
    pub reason: GateFailure,
    /// For the log and for operators.
    pub detail: String,
}

/// Why the gate does not answer. Whoever acts on an error looks at this and never at its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateFailure {
    /// It cannot be reached, or not in time: what became of the call is unknown.
    Unreachable,
    /// The item, or a part of it, is being loaded: ask again.
    BeingLoaded,
    /// It cannot write, and nothing was changed.
    Unwritable,
    /// What it answered or holds cannot be read.
    Unreadable,
}

impl GateError {
    pub fn new(reason: GateFailure, detail: impl std::fmt::Display) -> GateError {
        GateError { reason, detail: detail.to_string() }
    }
}

pub type Result<T> = std::result::Result<T, GateError>;

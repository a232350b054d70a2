//! The ledger: only it can say that a unit is sold.
//!
//! One trait, one sibling module per engine with its own migrations, one story test for all of
//! them. Table names follow the documents the project was asked for (`tb_seckill_order`, …), so
//! that SQL written against those still reads.
//!
//! Three habits run through every implementation:
//!
//! - **A move is a compare-and-set.** Every change of a status says which status it expects; who
//!   comes first wins, the loser is told what is true now.
//! - **A change of stock is one transaction** with its row in the stock log, whose rows of one item
//!   form an unbroken chain: each `before_stock` is the `after_stock` of the row before.
//! - **An effect outside is a row in the outbox** of the same transaction, delivered at least once
//!   and idempotent at the other end.

mod activities;
mod columns;
mod drafts;
#[cfg(feature = "mysql")]
pub mod mysql;
mod outbox;
mod rows;
mod shelf;
pub mod sqlite;
mod verdict;

use std::collections::HashSet;

use async_trait::async_trait;
use sale::{
    Activity, ActivityId, ActivityMove, Claim, CloseReason, DraftPlan, Epoch, Invalid, Item,
    ItemId, Millis, NewActivity, Order, OrderBook, OrderNo, UserId, VoidReason,
};

pub use activities::{ActivityFilter, ActivityKey, ActivityOrder};
pub use outbox::{KINDS as OUTBOX_KINDS, OUTBOX_PAUSE_MS_MAX};
pub use rows::{
    Adjusted, AdminToken, AuditRow, Closing, Credit, DeadLetter, DeadLetterState, EditedActivity,
    ItemBooks, JobRun, KnownAdjustment, Moved, MovedActivity, NewAudit, NewJobRun, OpenPayment,
    OrderCount, OrderFilter, Origin, OutboxMessage, OutboxQueue, OutboxRow, Outstanding,
    OutstandingClaims, OutstandingRows, Overdue, PaymentKind, PaymentNotice, PaymentProblem,
    PaymentRow, RefundDone, Release, Role, StatusCount, StockLogRow, StockLogType, WarmBasis,
};

/// How many times a batch reads a fresh version after losing a race, before it gives up.
pub const VERSION_TRIES_MAX: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Down, locked, full, unreachable; or the answer to a commit was lost. Not a failure: unknown.
    #[error("the ledger does not answer: {0}")]
    Unavailable(String),
    #[error("not found")]
    NotFound,
    /// The request makes no sense in the present state; nothing was changed.
    #[error(transparent)]
    Refused(#[from] Invalid),
    /// The database holds what it must not hold, or a statement is wrong. Someone should look.
    #[error("the ledger is broken: {0}")]
    Broken(String),
}

pub type Result<T> = std::result::Result<T, LedgerError>;

#[async_trait]
pub trait Ledger: OrderBook {
    // ── activities and items ────────────────────────────────────────────────────────────────

    /// The caller has validated it. Starts as a draft. Items begin without a stock log: the first
    /// change of an item writes the first row of its chain, whose `before_stock` is the initial total.
    async fn create_activity(&self, new: &NewActivity, now_ms: Millis) -> Result<Activity>;

    async fn activity(&self, id: ActivityId) -> Result<Option<Activity>>;

    /// All there are, newest first, those before `before` if given. For people who leaf through them.
    async fn activities(&self, before: Option<ActivityId>, limit: usize) -> Result<Vec<Activity>>;

    /// The next `limit` activities of which this is true, behind `after` if given.
    async fn activities_where(
        &self,
        filter: &ActivityFilter,
        after: Option<ActivityKey>,
        limit: usize,
    ) -> Result<Vec<Activity>>;

    /// Those of these activities that exist, and those that have one of these items; each once, in
    /// any order.
    async fn activities_of(
        &self,
        activities: &[ActivityId],
        items: &[ItemId],
    ) -> Result<Vec<Activity>>;

    async fn item(&self, id: ItemId) -> Result<Option<Item>>;

    /// Compare-and-set on the activity's state: it moves only from a state that `step` may leave.
    /// Refused (field `closes_at`) if it would set going what is over.
    /// Ending it also moves its items to `Ended`. `audit` is written in the same transaction if the
    /// activity is afterwards where the step leads: as *repeated* if it was there before. What could
    /// not be done is not written down.
    async fn move_activity(
        &self,
        id: ActivityId,
        step: ActivityMove,
        audit: Option<&NewAudit>,
        now_ms: Millis,
    ) -> Result<MovedActivity>;

    /// Replaces a draft and its items, if it is still the one of this version. The caller has validated
    /// the plan. Refused (with the field) if it would change the stock of an item that was adjusted, or
    /// remove one. `audit` is written in the same transaction.
    async fn edit_draft(
        &self,
        id: ActivityId,
        version: i64,
        new: &DraftPlan,
        audit: &NewAudit,
        now_ms: Millis,
    ) -> Result<EditedActivity>;

    /// Moves the window of an activity that buyers know of and that has not opened by `now_ms`, if it is
    /// still the one of this version.
    async fn postpone(
        &self,
        id: ActivityId,
        version: i64,
        window: (Millis, Millis),
        audit: &NewAudit,
        now_ms: Millis,
    ) -> Result<EditedActivity>;

    /// Drafts whose `publish_at` has come, earliest first.
    async fn publish_due(&self, now_ms: Millis, limit: usize) -> Result<Vec<Activity>>;

    /// A draft publishes itself, if it is still the one of this version. False if it is not.
    async fn publish_planned(
        &self,
        id: ActivityId,
        version: i64,
        audit: &NewAudit,
        now_ms: Millis,
    ) -> Result<bool>;

    /// A draft that was to publish itself will not, if it is still the one of this version.
    async fn forget_publish(
        &self,
        id: ActivityId,
        version: i64,
        audit: &NewAudit,
        now_ms: Millis,
    ) -> Result<bool>;

    // ── warming ─────────────────────────────────────────────────────────────────────────────

    /// Any state but `Ended` becomes `Warming` under the next epoch, if the item's epoch is still
    /// `expected`. Answers the new epoch, or `None` if somebody else was faster.
    async fn begin_warm(&self, item: ItemId, expected: Epoch) -> Result<Option<Epoch>>;

    /// What the gate must be loaded with, read in one transaction. `in_flight` are the claims on
    /// the log; the answer says which of them are orders (or void) already.
    async fn warm_basis(&self, item: ItemId, in_flight: &[OrderNo]) -> Result<WarmBasis>;

    /// `Warming` under `epoch` becomes `Ready`. False if it is no longer so.
    async fn finish_warm(&self, item: ItemId, epoch: Epoch) -> Result<bool>;

    // ── stock ───────────────────────────────────────────────────────────────────────────────

    /// Change `stock` and `total` by `delta`, idempotent by `adjust_no`. Refused (field `delta`)
    /// if either would fall below zero or above `STOCK_MAX`. Always leaves an
    /// `OutboxMessage::Adjust`, in both directions: when lowering, the caller took the units from the
    /// gate beforehand and the gate, which knows the number, does nothing. `audit` is written in the
    /// same transaction, with the stock before and after.
    async fn adjust_stock(
        &self,
        item: ItemId,
        delta: i64,
        adjust_no: OrderNo,
        audit: &NewAudit,
        now_ms: Millis,
    ) -> Result<Adjusted>;

    async fn adjustment(&self, adjust_no: OrderNo) -> Result<Option<KnownAdjustment>>;

    /// Oldest first, rows with an id above `after_id`.
    async fn stock_log(
        &self,
        item: ItemId,
        after_id: i64,
        limit: usize,
    ) -> Result<Vec<StockLogRow>>;

    // ── orders ──────────────────────────────────────────────────────────────────────────────

    async fn order(&self, no: OrderNo) -> Result<Option<Order>>;

    /// Those of these orders that exist, in any order.
    async fn orders_by_no(&self, numbers: &[OrderNo]) -> Result<Vec<Order>>;

    /// Newest first, those before `before` if given; by payment ([`OrderFilter::by_payment`]) the
    /// latest payment first.
    async fn orders(&self, filter: &OrderFilter) -> Result<Vec<Order>>;

    /// Counts at most `limit` orders of an item, those numbered above `after`: a whole sale is counted
    /// piece by piece, so that no reader is held up by millions.
    async fn count_orders(
        &self,
        item: ItemId,
        after: Option<OrderNo>,
        limit: usize,
    ) -> Result<OrderCount>;

    /// Orders unpaid past their deadline, earliest deadline first.
    async fn overdue(&self, now_ms: Millis, limit: usize) -> Result<Vec<Overdue>>;

    /// `Unpaid` becomes `Closed` for each of these that is still unpaid: units back to the item
    /// (stock log type 2), the user record deleted, outbox `Release` and `News`. One transaction.
    /// With `CloseReason::Timeout` only orders whose deadline is at or before `now_ms` are closed.
    /// Answers the ones closed now. An order with a payment at a provider that its [`Closing`] does
    /// not name is left alone.
    async fn close(
        &self,
        orders: &[Closing],
        reason: CloseReason,
        now_ms: Millis,
    ) -> Result<Vec<OrderNo>>;

    /// Record these claims as void orders with outbox `Release` and `News`; claims that are orders
    /// already are left alone. Also resolves their dead letters. Answers the ones voided now.
    async fn void(
        &self,
        claims: &[Claim],
        reason: VoidReason,
        now_ms: Millis,
    ) -> Result<Vec<OrderNo>>;

    // ── payment ─────────────────────────────────────────────────────────────────────────────

    /// Note that a payment is being opened at this provider, before the provider is asked, so that
    /// the time-out will close it there first. Only while the order is unpaid; idempotent.
    async fn open_payment(
        &self,
        no: OrderNo,
        provider: &str,
        now_ms: Millis,
    ) -> Result<Moved<sale::OrderStatus>>;

    /// Verified money. Credits once per (provider, provider_txn): an unpaid order becomes paid; a
    /// closed one refunding, with an outbox `Refund`; money beyond the first payment (the order is
    /// paid, refunding or refunded already, or void) is refunded without moving the order.
    async fn credit(&self, notice: &PaymentNotice, now_ms: Millis) -> Result<Credit>;

    /// An operator refunds a paid order: `Paid` → `Refunding`, units return, outbox `Refund` per
    /// payment that is not refunded yet. `audit` is written in the same transaction, whether the
    /// refund was started now or before.
    async fn start_refund(
        &self,
        no: OrderNo,
        audit: &NewAudit,
        now_ms: Millis,
    ) -> Result<Moved<sale::OrderStatus>>;

    /// The provider has given the money back; `Refunding` → `Refunded` once nothing credited to the
    /// order is left unrefunded (an order that was paid and stays paid keeps its status).
    async fn refunded(&self, done: &RefundDone, now_ms: Millis) -> Result<()>;

    /// Oldest first.
    async fn payments(&self, no: OrderNo) -> Result<Vec<PaymentRow>>;

    /// The money that came in for these orders, oldest first.
    async fn money_of(&self, orders: &[OrderNo]) -> Result<Vec<PaymentRow>>;

    /// Payments that were opened at a provider which never told us of money, until [`Ledger::payments_over`]
    /// says that none can come any more. In the order in which they were opened, those behind
    /// `after_id`.
    async fn open_payments(&self, after_id: i64, limit: usize) -> Result<Vec<OpenPayment>>;

    /// The providers have said that these payments are closed, and money that was under way has had
    /// its time: they are not asked about again.
    async fn payments_over(&self, ids: &[i64], now_ms: Millis) -> Result<()>;

    // ── outbox ──────────────────────────────────────────────────────────────────────────────

    /// Due rows of a queue in the order they were written. No row waits longer than
    /// [`OUTBOX_PAUSE_MS_MAX`]: one that is to be tried later than that was written by a clock that has
    /// been set back since, and is due.
    async fn outbox_due(
        &self,
        queue: OutboxQueue,
        now_ms: Millis,
        limit: usize,
    ) -> Result<Vec<OutboxRow>>;
    async fn outbox_done(&self, ids: &[i64]) -> Result<()>;
    async fn outbox_later(&self, id: i64, next_try_ms: Millis, cause: &str) -> Result<()>;
    async fn outbox_depth(&self) -> Result<u64>;

    /// What waits to be done, counted: its cost follows what waits, never what is done.
    async fn outstanding(&self) -> Result<Outstanding>;

    // ── claims that failed ──────────────────────────────────────────────────────────────────

    /// Newest first. `state: None` means retrying and dead.
    async fn dead_letters(
        &self,
        state: Option<DeadLetterState>,
        before: Option<OrderNo>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>>;

    async fn dead_letter(&self, no: OrderNo) -> Result<Option<DeadLetter>>;

    /// Those of one buyer, newest first. `state: None` means retrying and dead.
    async fn dead_letters_of(
        &self,
        user: &UserId,
        state: Option<DeadLetterState>,
        before: Option<OrderNo>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>>;

    /// `Dead` (or `Retrying`) → `Retrying`, due now, tries counted anew.
    async fn replay(&self, no: OrderNo, now_ms: Millis) -> Result<Moved<DeadLetterState>>;

    // ── operators ───────────────────────────────────────────────────────────────────────────

    /// A new token, with its entry in the audit. False if the name is taken, be it by a token that was
    /// revoked: in the audit one name must not stand for two people. Then nothing is written.
    async fn add_admin_token(
        &self,
        name: &str,
        role: Role,
        secret_hash: &[u8],
        audit: &NewAudit,
        now_ms: Millis,
    ) -> Result<bool>;
    /// `secret_hash` is a SHA-256 of the token. Replaces a token of the same name.
    async fn put_admin_token(
        &self,
        name: &str,
        role: Role,
        secret_hash: &[u8],
        now_ms: Millis,
    ) -> Result<()>;
    /// Live tokens only.
    async fn admin_token(&self, secret_hash: &[u8]) -> Result<Option<AdminToken>>;
    async fn admin_tokens(&self) -> Result<Vec<AdminToken>>;
    async fn revoke_admin_token(&self, name: &str, now_ms: Millis) -> Result<bool>;

    /// Append only; the tables refuse update and delete.
    async fn audit(&self, entry: &NewAudit, now_ms: Millis) -> Result<()>;
    /// Newest first.
    async fn audit_log(&self, before_id: Option<i64>, limit: usize) -> Result<Vec<AuditRow>>;

    /// The secret that all instances on this ledger share (`tb_secret`, one row): the one that is
    /// there, or `candidate` if there is none yet.
    async fn shared_secret(&self, candidate: &str, now_ms: Millis) -> Result<String>;

    /// May `holder` be the only one to do what `name` says, for so long from now by the ledger's clock?
    /// Asking takes the lease or renews it. False while somebody else holds it.
    async fn take_lease(&self, name: &str, holder: &str, for_ms: Millis) -> Result<bool>;

    async fn record_run(&self, run: &NewJobRun) -> Result<i64>;
    /// Newest first.
    async fn job_runs(&self, job: &str, limit: usize) -> Result<Vec<JobRun>>;

    // ── reconcile ───────────────────────────────────────────────────────────────────────────

    /// Everything the comparison needs of one item, read in one transaction.
    async fn item_books(&self, item: ItemId, in_flight: &[OrderNo]) -> Result<ItemBooks>;

    /// Payments that do not add up, at most `limit` of each kind: what nobody can heal must not hide
    /// what can be healed.
    async fn payment_problems(&self, limit: usize) -> Result<Vec<PaymentProblem>>;

    /// Put the outbox `Refund` of this payment back, if the money is still owed and no row waits.
    async fn requeue_refund(
        &self,
        provider: &str,
        provider_txn: &str,
        now_ms: Millis,
    ) -> Result<bool>;

    /// The largest order number in the ledger, so that a new generator starts after it.
    async fn last_order_no(&self) -> Result<Option<OrderNo>>;

    /// What time it is where the ledger is kept: the one clock that all instances share.
    async fn now_ms(&self) -> Result<Millis>;

    /// Answers if the ledger can be read now.
    async fn ping(&self) -> Result<()>;
}

/// Lets callers pass sets around without naming the hasher.
pub type OrderNos = HashSet<OrderNo>;

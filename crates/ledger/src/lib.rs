//! The ledger: only it can say that a unit is sold.
//!
//! A trait for each kind of user, and [`Ledger`] for those who need them all; one sibling module per
//! engine with its own migrations, one story test for all of them. Table names follow the documents the
//! project was asked for (`tb_seckill_order`, …), so that SQL written against those still reads.
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
mod archive;
mod bills;
mod books;
mod buyers;
mod cashier;
mod console;
mod dead_letters;
mod decide;
mod draws;
mod leases;
mod mark_pages;
#[cfg(feature = "mysql")]
pub mod mysql;
mod nodes;
mod offer;
mod operators;
mod orders;
mod outbox;
mod payments;
mod share;
mod sql;
pub mod sqlite;
mod stock;
mod upkeep;
mod webhooks;

use std::collections::HashSet;

use sale::{Invalid, OrderBook, OrderNo};

pub use activities::{
    Activities, ActivityFilter, ActivityKey, ActivityOrder, CHANGED_TOLD_MAX, CREATE_KEY_KEPT_MS,
    ChangedActivity, CreateKey, CreatedActivities, CreatedActivity, EditedActivity, MovedActivity,
    NewActivities, WhenTaken,
};
pub use archive::{Archivable, Archive, ArchiveStep, OldActivity};
pub use bills::{BillDay, Bills, Noted};
pub use books::{
    BOOKS_PAGE_ROWS, Books, BooksPoint, CheckedPayments, ItemBooks, ItemOutline, LogEnd, LogWalk,
    OWED_TOLD_MAX, OutlinePage, Outstanding, OutstandingClaims, OutstandingRows, OwedPayment,
    PaymentProblem, PaymentsSince,
};
pub use buyers::{BuyerList, BuyerLists, CoolDown, LISTED_AT_ONCE_MAX, ListKind, Listed};
pub use cashier::{
    Asking, ByHand, Cashier, CloseAsked, Marked, PAYMENT_ASK_MS_FIRST, PaymentAsked, PaymentToAsk,
    RefundRequested, RefundTold, RefundWaiting,
};
pub use console::{CONSOLE_SESSIONS_MAX, ConsolePass, ConsolePasses, PassKind};
pub use dead_letters::{DeadLetter, DeadLetterState, DeadLetters};
pub use draws::{DRAWN_AT_ONCE_MAX, Draws};
pub use leases::{LEASE_MS_MAX, Leases};
pub use mark_pages::{MarkPages, WalkTurn};
pub use nodes::{NODE_LEASE_LIVES, NODE_LEASE_MS_MAX, NODE_LEASE_MS_MIN, NodeLease, Nodes};
pub use operators::{AdminToken, AuditEntry, AuditRow, Operators, Origin, Role, TokenBounds};
pub use orders::{
    Closing, OrderCount, OrderFilter, Orders, Overdue, OverdueKey, SKU_ITEMS_MAX, StatusCount,
};
pub use outbox::{
    OUTBOX_NOBODY, OUTBOX_PAUSE_MS_MAX, Outbox, OutboxKind, OutboxMessage, OutboxRow, OutboxWait,
    Release,
};
pub use payments::{
    Credit, OpenPayment, PaymentKind, PaymentNotice, PaymentRow, Payments, RefundAsked, RefundDone,
    RefundReason,
};
pub use share::{Share, in_share};
pub use sql::SqlLedger;
pub use stock::{Adjusted, KnownAdjustment, Stock, StockLogRow, StockLogType, WarmBasis};
pub use upkeep::{JobRun, LaterKey, NewJobRun, Upkeep};
pub use webhooks::{
    DeliveryFilter, DeliveryState, ForgetBefore, NewDelivery, NewWebhook, Replayed, Tried,
    TriedOutcome, WebhookAge, WebhookChange, WebhookDelivery, WebhookEndpoint, WebhookEvent,
    WebhookKind, WebhookKinds, WebhookLag, WebhookSource, Webhooks,
};

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

pub type Result<T, E = LedgerError> = std::result::Result<T, E>;

/// All that a ledger does, for those who hand it on. Whoever uses a part asks for that part's trait.
pub trait Ledger:
    OrderBook
    + Activities
    + Stock
    + Orders
    + Payments
    + Cashier
    + Asking
    + ByHand
    + Bills
    + Outbox
    + DeadLetters
    + Operators
    + Upkeep
    + Leases
    + Nodes
    + Books
    + Webhooks
    + BuyerLists
    + Draws
    + ConsolePasses
    + Archive
{
}

impl<L> Ledger for L where
    L: OrderBook
        + Activities
        + Stock
        + Orders
        + Payments
        + Cashier
        + Asking
        + ByHand
        + Bills
        + Outbox
        + DeadLetters
        + Operators
        + Upkeep
        + Leases
        + Nodes
        + Books
        + Webhooks
        + BuyerLists
        + Draws
        + ConsolePasses
        + Archive
{
}

/// The answer of a compare-and-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved<S> {
    /// This call moved it.
    Done,
    /// It was, and is, in this state; nothing was changed.
    Was(S),
}

/// Lets callers pass sets around without naming the hasher.
pub type OrderNos = HashSet<OrderNo>;

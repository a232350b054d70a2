//! The ledger in MySQL or MariaDB, shared by any number of instances.
//!
//! Many write at once here, where SQLite has one writer: what a decision rests on is locked before it
//! is read, always the order's row before the item's, and several of a kind in the order of their
//! keys. Bad luck (a deadlock, a lock waited for in vain) is tried again in a fresh transaction by
//! `connections`; a lost connection or an unanswered commit is *unknown*, and since every write is
//! idempotent by its number the caller simply asks again.
//!
//! Each other file holds the statements of one noun; this one opens the database and joins the nouns
//! to the trait. Tested against MariaDB 10.11; the SQL keeps to what MySQL 8.0.16 understands as well.

mod activities;
mod columns;
mod connections;
mod dead_letters;
mod drafts;
mod failure;
mod health;
mod migrations;
mod operators;
mod orders;
mod outbox;
mod payments;
mod reconcile;
mod settle;
mod stock;
mod text;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use mysql_async::{Opts, OptsBuilder};
use sale::{
    Activity, ActivityId, ActivityMove, BookError, Claim, CloseReason, DraftPlan, Epoch,
    FailedClaim, Item, ItemId, Millis, NewActivity, Order, OrderBook, OrderNo, OrderStatus,
    Settled, SharedClock, UserId, VoidReason,
};

use self::{
    connections::{Desk, Way, cut_off},
    failure::{Failure, Outcome},
};
use crate::{
    Activities, ActivityFilter, ActivityKey, Adjusted, AdminToken, AuditEntry, AuditRow, Books,
    Closing, Credit, DeadLetter, DeadLetterState, DeadLetters, EditedActivity, ItemBooks, JobRun,
    KnownAdjustment, Moved, MovedActivity, NewJobRun, OpenPayment, Operators, OrderCount,
    OrderFilter, Orders, Outbox, OutboxQueue, OutboxRow, Outstanding, Overdue, PaymentNotice,
    PaymentProblem, PaymentRow, Payments, RefundDone, Result, Role, Stock, StockLogRow, Upkeep,
    WarmBasis,
};

pub use connections::LOCK_TRIES_MAX;
pub use health::{Finding, Verdict};
pub use migrations::SCHEMA_VERSION;

/// Statements each connection keeps prepared. The server allows some 16,000 in all, shared by every
/// connection of every instance.
const STATEMENTS_CACHED_MAX: usize = 64;
/// Silence after which the kernel asks whether the server is still there.
const KEEPALIVE_S: u64 = 30;
/// Connecting, and waiting for another instance that migrates.
const OPEN_S_MAX: u64 = 120;

/// How the ledger uses its server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections this instance opens at most. Work beyond that waits for one to be free.
    pub connections_max: usize,
    pub connect_ms_max: u64,
    /// How long a transaction may take before its outcome counts as unknown; reads of all orders of
    /// an item may take six times as long.
    pub answer_ms_max: u64,
    /// How long a statement waits for a row somebody else holds (the server counts in seconds).
    pub lock_wait_s_max: u32,
    /// How long the server believes in a session that says nothing. Then it ends the session, and
    /// with it whatever transaction a frozen or lost process left open.
    pub silence_s_max: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            connections_max: 16,
            connect_ms_max: 5_000,
            answer_ms_max: 10_000,
            lock_wait_s_max: 2,
            silence_s_max: 20,
        }
    }
}

/// Why a database cannot be used. The place is named without user and password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// What was wrong is said without the URL, which may hold a password.
    #[error("the ledger's URL must read mysql://user:password@host:port/database: {0}")]
    BadUrl(String),
    /// A newer release has been here. Going on could break rules this binary does not know.
    #[error("{place} has schema {found}, this binary knows up to {known}: use a newer seckill")]
    NewerSchema { place: String, found: i64, known: i64 },
    #[error("{place} is {version}: MySQL 8.0.16 or MariaDB 10.6 is the oldest that will do")]
    TooOld { place: String, version: String },
    /// Not there, not listening, refusing this user, or busy with another instance's migration.
    #[error("{place} cannot be reached: {cause}")]
    Unreachable { place: String, cause: String },
    #[error("{place} cannot be used as a ledger: {cause}")]
    Other { place: String, cause: String },
}

/// A handle; clones share the connections.
#[derive(Clone)]
pub struct MysqlLedger {
    desk: Arc<Desk>,
    /// What order deadlines are reckoned by.
    clock: SharedClock,
}

/// `write!`, `read!` and `look!` run the statements of a noun on a connection of the desk: in a
/// transaction, on a snapshot, or just so. They are macros because the statements borrow the session
/// they are given, may have to be run again, and must be `Send`, which no bound on a closure can say.
macro_rules! at_the_desk {
    ($way:ident, $ledger:ident, $session:ident, $statements:expr) => {{
        let mut work = $ledger.desk.work(Way::$way);
        let whole = async move {
            loop {
                let limit = work.time_max();
                let one_try = async {
                    let $session = work.begin().await?;
                    let outcome = $statements.await;
                    work.end(outcome).await
                };
                let outcome = tokio::time::timeout(limit, one_try).await;
                let outcome = outcome.unwrap_or_else(|_| cut_off(limit));
                if let Some(outcome) = work.over(outcome).await {
                    break outcome;
                }
            }
        };
        to_the_end(whole).await
    }};
}
macro_rules! write {
    ($ledger:ident, |$session:ident| $statements:expr) => {
        at_the_desk!(Write, $ledger, $session, $statements)
    };
}
macro_rules! read {
    ($ledger:ident, |$session:ident| $statements:expr) => {
        at_the_desk!(Read, $ledger, $session, $statements)
    };
}
macro_rules! look {
    ($ledger:ident, |$session:ident| $statements:expr) => {
        at_the_desk!(Look, $ledger, $session, $statements)
    };
}

impl MysqlLedger {
    /// Connects and brings the schema up to date. Several instances may do so at once.
    pub async fn open(
        url: &str,
        clock: SharedClock,
        options: Options,
    ) -> std::result::Result<MysqlLedger, OpenError> {
        let opts = opts(url)?;
        let place = format!(
            "{}:{}/{}",
            opts.ip_or_hostname(),
            opts.tcp_port(),
            opts.db_name().unwrap_or("")
        );
        let ledger = MysqlLedger { desk: Desk::new(opts, options), clock };
        let preparing = ledger.prepare(&place);
        match tokio::time::timeout(Duration::from_secs(OPEN_S_MAX), preparing).await {
            Ok(prepared) => prepared.map(|()| ledger),
            Err(_) => Err(OpenError::Unreachable { place, cause: "no answer".into() }),
        }
    }

    async fn prepare(&self, place: &str) -> std::result::Result<(), OpenError> {
        let failed = |failure: Failure| cannot_use(place, failure);
        let mut session = self.desk.session().await.map_err(failed)?;
        let version = health::version(&mut session).await.map_err(failed)?;
        if health::too_old(&version) {
            return Err(OpenError::TooOld { place: place.into(), version });
        }
        let now_ms = self.clock.now_ms();
        let migrated = migrations::migrate(&mut session, now_ms).await.map_err(failed)?;
        migrated.map_err(|found| OpenError::NewerSchema {
            place: place.into(),
            found,
            known: SCHEMA_VERSION,
        })?;
        // Not kept: a session that migrated has no limit on its statements any more.
        drop(session);
        Ok(())
    }

    /// What the server is set to, and what of it is not good for a ledger.
    pub async fn health(&self) -> Result<Vec<Finding>> {
        let clock = self.clock.clone();
        look!(self, |session| health::findings(session, &*clock))
    }
}

fn opts(url: &str) -> std::result::Result<Opts, OpenError> {
    let opts = Opts::from_url(url).map_err(|error| OpenError::BadUrl(error.to_string()))?;
    if opts.db_name().is_none_or(str::is_empty) {
        return Err(OpenError::BadUrl("it names no database".into()));
    }
    let keepalive = Some(Duration::from_secs(KEEPALIVE_S));
    // The driver would otherwise leave the address it was given for a socket file it finds itself,
    // and there the server may know this user by other rules.
    let builder = OptsBuilder::from_opts(opts).prefer_socket(false).tcp_keepalive(keepalive);
    // A row that was found and left as it was must not count as changed, whatever the URL asks for:
    // who wrote first is told by that count.
    let builder = builder.client_found_rows(false);
    Ok(builder.stmt_cache_size(STATEMENTS_CACHED_MAX).into())
}

fn cannot_use(place: &str, failure: Failure) -> OpenError {
    let place = place.to_owned();
    match crate::LedgerError::from(failure) {
        crate::LedgerError::Unavailable(cause) => OpenError::Unreachable { place, cause },
        error => OpenError::Other { place, cause: error.to_string() },
    }
}

/// Runs work to its end even if the caller stops waiting: half a conversation with a server cannot be
/// taken up by anybody else, and a buyer who closes the page must not cost a connection.
async fn to_the_end<T, E>(
    work: impl Future<Output = Outcome<T>> + Send + 'static,
) -> std::result::Result<T, E>
where
    T: Send + 'static,
    E: From<Failure>,
{
    let outcome = tokio::spawn(work).await;
    let ended = |_| Err(Failure::Unknown("the ledger's work ended without an answer".into()));
    Ok(outcome.unwrap_or_else(ended)?)
}

#[async_trait]
impl OrderBook for MysqlLedger {
    async fn settle(
        &self,
        item: ItemId,
        claims: &[Claim],
    ) -> std::result::Result<Settled, BookError> {
        let (claims, clock) = (claims.to_vec(), self.clock.clone());
        let careful = AtomicBool::new(false);
        write!(self, |tx| {
            let careful = careful.swap(true, Ordering::Relaxed);
            settle::settle(tx, item, &claims, careful, clock.now_ms())
        })
    }

    async fn defer(&self, failed: &[FailedClaim]) -> std::result::Result<(), BookError> {
        let (failed, now_ms) = (failed.to_vec(), self.clock.now_ms());
        write!(self, |tx| dead_letters::defer(tx, &failed, now_ms))
    }

    async fn due(
        &self,
        now_ms: Millis,
        limit: usize,
    ) -> std::result::Result<Vec<FailedClaim>, BookError> {
        look!(self, |session| dead_letters::due(session, now_ms, limit))
    }
}

#[async_trait]
impl Activities for MysqlLedger {
    async fn create_activity(&self, new: &NewActivity, now_ms: Millis) -> Result<Activity> {
        let new = new.clone();
        write!(self, |tx| activities::create(tx, &new, now_ms))
    }

    async fn activity(&self, id: ActivityId) -> Result<Option<Activity>> {
        read!(self, |session| activities::one(session, id))
    }

    async fn activities(&self, before: Option<ActivityId>, limit: usize) -> Result<Vec<Activity>> {
        read!(self, |session| activities::newest(session, before, limit))
    }

    async fn activities_where(
        &self,
        filter: &ActivityFilter,
        after: Option<ActivityKey>,
        limit: usize,
    ) -> Result<Vec<Activity>> {
        let filter = *filter;
        read!(self, |session| activities::page(session, &filter, after, limit))
    }

    async fn activities_of(
        &self,
        activities: &[ActivityId],
        items: &[ItemId],
    ) -> Result<Vec<Activity>> {
        let (activities, items) = (activities.to_vec(), items.to_vec());
        read!(self, |session| activities::of(session, &activities, &items))
    }

    async fn item(&self, id: ItemId) -> Result<Option<Item>> {
        look!(self, |session| activities::item(session, id))
    }

    async fn move_activity(
        &self,
        id: ActivityId,
        step: ActivityMove,
        audit: Option<&AuditEntry>,
        now_ms: Millis,
    ) -> Result<MovedActivity> {
        let audit = audit.cloned();
        write!(self, |tx| activities::move_by(tx, id, step, audit.as_ref(), now_ms))
    }

    async fn edit_draft(
        &self,
        id: ActivityId,
        version: i64,
        new: &DraftPlan,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<EditedActivity> {
        let (new, audit) = (new.clone(), audit.clone());
        write!(self, |tx| drafts::edit(tx, id, version, &new, &audit, now_ms))
    }

    async fn postpone(
        &self,
        id: ActivityId,
        version: i64,
        window: (Millis, Millis),
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<EditedActivity> {
        let audit = audit.clone();
        write!(self, |tx| drafts::postpone(tx, id, version, window, &audit, now_ms))
    }

    async fn publish_due(&self, now_ms: Millis, limit: usize) -> Result<Vec<Activity>> {
        read!(self, |session| drafts::publish_due(session, now_ms, limit))
    }

    async fn publish_planned(
        &self,
        id: ActivityId,
        version: i64,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool> {
        let audit = audit.clone();
        write!(self, |tx| drafts::publish_planned(tx, id, version, &audit, now_ms))
    }

    async fn forget_publish(
        &self,
        id: ActivityId,
        version: i64,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool> {
        let audit = audit.clone();
        write!(self, |tx| drafts::forget_publish(tx, id, version, &audit, now_ms))
    }
}

#[async_trait]
impl Stock for MysqlLedger {
    async fn begin_warm(&self, item: ItemId, expected: Epoch) -> Result<Option<Epoch>> {
        write!(self, |tx| activities::begin_warm(tx, item, expected))
    }

    async fn warm_basis(&self, item: ItemId, in_flight: &[OrderNo]) -> Result<WarmBasis> {
        let in_flight = in_flight.to_vec();
        read!(self, |session| activities::warm_basis(session, item, &in_flight))
    }

    async fn finish_warm(&self, item: ItemId, epoch: Epoch) -> Result<bool> {
        write!(self, |tx| activities::finish_warm(tx, item, epoch))
    }

    async fn adjust_stock(
        &self,
        item: ItemId,
        delta: i64,
        adjust_no: OrderNo,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Adjusted> {
        let audit = audit.clone();
        write!(self, |tx| stock::adjust(tx, item, delta, adjust_no, &audit, now_ms))
    }

    async fn adjustment(&self, adjust_no: OrderNo) -> Result<Option<KnownAdjustment>> {
        let done: Result<_> = look!(self, |session| stock::adjusted(session, adjust_no));
        Ok(done?.map(|row: StockLogRow| row.into()))
    }

    async fn stock_log(
        &self,
        item: ItemId,
        after_id: i64,
        limit: usize,
    ) -> Result<Vec<StockLogRow>> {
        look!(self, |session| stock::log(session, item, after_id, limit))
    }
}

#[async_trait]
impl Orders for MysqlLedger {
    async fn order(&self, no: OrderNo) -> Result<Option<Order>> {
        look!(self, |session| orders::one(session, no))
    }

    async fn orders_by_no(&self, numbers: &[OrderNo]) -> Result<Vec<Order>> {
        let numbers = numbers.to_vec();
        look!(self, |session| orders::by_no(session, &numbers))
    }

    async fn orders(&self, filter: &OrderFilter) -> Result<Vec<Order>> {
        let filter = filter.clone();
        look!(self, |session| orders::list(session, &filter))
    }

    async fn count_orders(
        &self,
        item: ItemId,
        after: Option<OrderNo>,
        limit: usize,
    ) -> Result<OrderCount> {
        read!(self, |session| orders::count(session, item, after, limit))
    }

    async fn overdue(&self, now_ms: Millis, limit: usize) -> Result<Vec<Overdue>> {
        read!(self, |session| orders::overdue(session, now_ms, limit))
    }

    async fn close(
        &self,
        orders: &[Closing],
        reason: CloseReason,
        now_ms: Millis,
    ) -> Result<Vec<OrderNo>> {
        let orders = orders.to_vec();
        write!(self, |tx| orders::close(tx, &orders, reason, now_ms))
    }

    async fn void(
        &self,
        claims: &[Claim],
        reason: VoidReason,
        now_ms: Millis,
    ) -> Result<Vec<OrderNo>> {
        let claims = claims.to_vec();
        write!(self, |tx| orders::void(tx, &claims, reason, now_ms))
    }

    async fn last_order_no(&self) -> Result<Option<OrderNo>> {
        look!(self, |session| orders::last_no(session))
    }
}

#[async_trait]
impl Payments for MysqlLedger {
    async fn open_payment(
        &self,
        no: OrderNo,
        provider: &str,
        now_ms: Millis,
    ) -> Result<Moved<OrderStatus>> {
        let provider = provider.to_owned();
        write!(self, |tx| payments::open(tx, no, &provider, now_ms))
    }

    async fn credit(&self, notice: &PaymentNotice, now_ms: Millis) -> Result<Credit> {
        let notice = notice.clone();
        write!(self, |tx| payments::credit(tx, &notice, now_ms))
    }

    async fn start_refund(
        &self,
        no: OrderNo,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Moved<OrderStatus>> {
        let audit = audit.clone();
        write!(self, |tx| payments::start_refund(tx, no, &audit, now_ms))
    }

    async fn refunded(&self, done: &RefundDone, now_ms: Millis) -> Result<()> {
        let done = done.clone();
        write!(self, |tx| payments::refunded(tx, &done, now_ms))
    }

    async fn payments(&self, no: OrderNo) -> Result<Vec<PaymentRow>> {
        look!(self, |session| payments::of_order(session, no))
    }

    async fn money_of(&self, orders: &[OrderNo]) -> Result<Vec<PaymentRow>> {
        let orders = orders.to_vec();
        read!(self, |session| payments::received(session, &orders))
    }

    async fn open_payments(&self, after_id: i64, limit: usize) -> Result<Vec<OpenPayment>> {
        look!(self, |session| payments::still_open(session, after_id, limit))
    }

    async fn payments_over(&self, ids: &[i64], now_ms: Millis) -> Result<()> {
        let ids = ids.to_vec();
        write!(self, |tx| payments::over(tx, &ids, now_ms))
    }

    async fn requeue_refund(
        &self,
        provider: &str,
        provider_txn: &str,
        now_ms: Millis,
    ) -> Result<bool> {
        let (provider, txn) = (provider.to_owned(), provider_txn.to_owned());
        write!(self, |tx| payments::requeue_refund(tx, &provider, &txn, now_ms))
    }
}

#[async_trait]
impl Outbox for MysqlLedger {
    async fn outbox_due(
        &self,
        queue: OutboxQueue,
        now_ms: Millis,
        limit: usize,
    ) -> Result<Vec<OutboxRow>> {
        look!(self, |session| outbox::due(session, queue, now_ms, limit))
    }

    async fn outbox_done(&self, ids: &[i64]) -> Result<()> {
        let ids = ids.to_vec();
        write!(self, |tx| outbox::done(tx, &ids))
    }

    async fn outbox_later(&self, id: i64, next_try_ms: Millis, cause: &str) -> Result<()> {
        let cause = cause.to_owned();
        write!(self, |tx| outbox::later(tx, id, next_try_ms, &cause))
    }

    async fn outbox_depth(&self) -> Result<u64> {
        look!(self, |session| outbox::depth(session))
    }
}

#[async_trait]
impl DeadLetters for MysqlLedger {
    async fn dead_letters(
        &self,
        state: Option<DeadLetterState>,
        before: Option<OrderNo>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        look!(self, |session| dead_letters::list(session, state, before, limit))
    }

    async fn dead_letter(&self, no: OrderNo) -> Result<Option<DeadLetter>> {
        look!(self, |session| dead_letters::one(session, no))
    }

    async fn dead_letters_of(
        &self,
        user: &UserId,
        state: Option<DeadLetterState>,
        before: Option<OrderNo>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        let user = user.clone();
        read!(self, |session| dead_letters::of_user(session, &user, state, before, limit))
    }

    async fn replay(&self, no: OrderNo, now_ms: Millis) -> Result<Moved<DeadLetterState>> {
        write!(self, |tx| dead_letters::replay(tx, no, now_ms))
    }
}

#[async_trait]
impl Operators for MysqlLedger {
    async fn add_admin_token(
        &self,
        name: &str,
        role: Role,
        secret_hash: &[u8],
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool> {
        let (name, hash, audit) = (name.to_owned(), secret_hash.to_vec(), audit.clone());
        write!(self, |tx| operators::add_token(tx, &name, role, &hash, &audit, now_ms))
    }

    async fn put_admin_token(
        &self,
        name: &str,
        role: Role,
        secret_hash: &[u8],
        now_ms: Millis,
    ) -> Result<()> {
        let (name, hash) = (name.to_owned(), secret_hash.to_vec());
        write!(self, |tx| operators::put_token(tx, &name, role, &hash, now_ms))
    }

    async fn admin_token(&self, secret_hash: &[u8]) -> Result<Option<AdminToken>> {
        let hash = secret_hash.to_vec();
        look!(self, |session| operators::token(session, &hash))
    }

    async fn admin_tokens(&self) -> Result<Vec<AdminToken>> {
        look!(self, |session| operators::tokens(session))
    }

    async fn revoke_admin_token(&self, name: &str, now_ms: Millis) -> Result<bool> {
        let name = name.to_owned();
        write!(self, |tx| operators::revoke_token(tx, &name, now_ms))
    }

    async fn audit(&self, entry: &AuditEntry, now_ms: Millis) -> Result<()> {
        let entry = entry.clone();
        write!(self, |tx| operators::audit(tx, &entry, now_ms))
    }

    async fn audit_log(&self, before_id: Option<i64>, limit: usize) -> Result<Vec<AuditRow>> {
        look!(self, |session| operators::audit_log(session, before_id, limit))
    }
}

#[async_trait]
impl Upkeep for MysqlLedger {
    async fn shared_secret(&self, candidate: &str, now_ms: Millis) -> Result<String> {
        let candidate = candidate.to_owned();
        write!(self, |tx| operators::shared_secret(tx, &candidate, now_ms))
    }

    async fn take_lease(&self, name: &str, holder: &str, for_ms: Millis) -> Result<bool> {
        let (name, holder) = (name.to_owned(), holder.to_owned());
        write!(self, |tx| operators::take_lease(tx, &name, &holder, for_ms))
    }

    async fn record_run(&self, run: &NewJobRun) -> Result<i64> {
        let run = run.clone();
        write!(self, |tx| operators::record_run(tx, &run))
    }

    async fn job_runs(&self, job: &str, limit: usize) -> Result<Vec<JobRun>> {
        let job = job.to_owned();
        look!(self, |session| operators::job_runs(session, &job, limit))
    }

    async fn now_ms(&self) -> Result<Millis> {
        look!(self, |session| health::now_ms(session))
    }

    async fn ping(&self) -> Result<()> {
        look!(self, |session| orders::any(session))
    }
}

#[async_trait]
impl Books for MysqlLedger {
    async fn outstanding(&self) -> Result<Outstanding> {
        look!(self, |session| async {
            let outbox = outbox::by_kind(session).await?;
            Ok(Outstanding { outbox, claims: dead_letters::by_item(session).await? })
        })
    }

    async fn item_books(&self, item: ItemId, in_flight: &[OrderNo]) -> Result<ItemBooks> {
        let in_flight = in_flight.to_vec();
        read!(self, |session| reconcile::item_books(session, item, &in_flight))
    }

    async fn payment_problems(&self, limit: usize) -> Result<Vec<PaymentProblem>> {
        read!(self, |session| payments::problems(session, limit))
    }
}

//! The ledger in one SQLite file: nothing to install, every commit fsynced.
//!
//! All writes go through one thread, all reads through a few connections beside it (see
//! `connections`). Each other file holds the statements of one noun; this one opens the file and
//! joins the nouns to the trait.

mod activities;
mod columns;
mod connections;
mod dead_letters;
mod drafts;
mod failure;
mod migrations;
mod operators;
mod orders;
mod outbox;
mod payments;
mod reconcile;
mod settle;
mod stock;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use rusqlite::Connection;
use sale::{
    Activity, ActivityId, ActivityMove, BookError, Claim, CloseReason, DraftPlan, Epoch,
    FailedClaim, Item, ItemId, Millis, NewActivity, Order, OrderBook, OrderNo, OrderStatus,
    Settled, SharedClock, UserId, VoidReason,
};
use sqlite_file::Length;

use self::{
    connections::{Readers, WritableFile, Writer, begin},
    failure::Outcome,
};
use crate::{
    Activities, ActivityFilter, ActivityKey, Adjusted, AdminToken, AuditEntry, AuditRow, Books,
    Closing, Credit, DeadLetter, DeadLetterState, DeadLetters, EditedActivity, ItemBooks, JobRun,
    KnownAdjustment, Moved, MovedActivity, NewJobRun, OpenPayment, Operators, OrderCount,
    OrderFilter, Orders, Outbox, OutboxQueue, OutboxRow, Outstanding, Overdue, PaymentNotice,
    PaymentProblem, PaymentRow, Payments, RefundDone, Result, Role, Stock, StockLogRow, Upkeep,
    WarmBasis,
};

pub use connections::BUSY_TIMEOUT_MS;
pub use migrations::SCHEMA_VERSION;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A newer release has been here. Going on could break rules this binary does not know.
    #[error(
        "{path} has schema {found}, this binary knows up to {known}: use a newer seckill",
        path = path.display()
    )]
    NewerSchema { path: PathBuf, found: i64, known: i64 },
    /// No such directory, no permission, a read-only disk, or locked by another process.
    #[error("{path} cannot be opened for writing: {cause}", path = path.display())]
    NotWritable { path: PathBuf, cause: String },
    #[error("{path} cannot be used as a ledger: {cause}", path = path.display())]
    Other { path: PathBuf, cause: String },
}

/// A handle; clones share the writer thread and the readers. The thread ends when the last clone is
/// dropped and what it was given is written.
#[derive(Clone)]
pub struct SqliteLedger {
    writer: Arc<Writer>,
    readers: Arc<Readers>,
    /// What order deadlines are reckoned by.
    clock: SharedClock,
}

impl SqliteLedger {
    /// Opens or creates the file and brings its schema up to date. Blocks; call it at start.
    pub fn open(path: &Path, clock: SharedClock) -> std::result::Result<Self, OpenError> {
        let secured =
            sqlite_file::secure_unless_open(path).map_err(|error| not_writable(path, &error))?;
        if !secured {
            tracing::warn!(path = %path.display(), "another program has the ledger's file open");
        }
        let length = connections::wal_length();
        let conn = prepare(path, &length)?;
        let readers = Readers::new(path);
        let writer = Writer::start(WritableFile::new(path, conn, length, readers.clone()))
            .map_err(|error| OpenError::Other { path: path.into(), cause: error.to_string() })?;
        Ok(SqliteLedger { writer: Arc::new(writer), readers, clock })
    }

    /// One transaction on the writer thread, rolled back if `work` fails.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Outcome<T> {
        let in_transaction = move |conn: &mut Connection| {
            let tx = begin(conn)?;
            let answer = work(&tx)?;
            // A commit that fails leaves the transaction open; dropping `tx` rolls it back.
            tx.commit()?;
            Ok(answer)
        };
        self.writer.run(in_transaction).await
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Outcome<T> {
        self.readers.run(work).await
    }
}

/// After an I/O error, when nobody has the file open any more.
fn reopen(path: &Path, length: &Length) -> std::result::Result<Connection, OpenError> {
    sqlite_file::secure(path).map_err(|error| not_writable(path, &error))?;
    prepare(path, length)
}

fn not_writable(path: &Path, error: &io::Error) -> OpenError {
    OpenError::NotWritable { path: path.to_owned(), cause: error.to_string() }
}

/// A connection to a file of the right schema that can be written.
fn prepare(path: &Path, length: &Length) -> std::result::Result<Connection, OpenError> {
    let failed = |error: rusqlite::Error| {
        let (path, cause) = (path.to_owned(), error.to_string());
        if failure::is_unavailable(&error) {
            OpenError::NotWritable { path, cause }
        } else {
            OpenError::Other { path, cause }
        }
    };
    let newer =
        |found: i64| OpenError::NewerSchema { path: path.to_owned(), found, known: SCHEMA_VERSION };
    let mut conn = connections::open_writer(path).map_err(failed)?;
    // Looked at first, so that a newer file is left exactly as it was.
    let found = migrations::version(&conn).map_err(failed)?;
    if found > SCHEMA_VERSION {
        return Err(newer(found));
    }
    connections::configure_writer(&mut conn, length).map_err(failed)?;
    migrations::migrate(&mut conn).map_err(failed)?.map_err(newer)?;
    length.check(&conn).map_err(failed)?;
    connections::opened(&conn).map_err(failed)?;
    sqlite_file::sync_names(path).map_err(|error| not_writable(path, &error))?;
    Ok(conn)
}

#[async_trait]
impl OrderBook for SqliteLedger {
    async fn settle(
        &self,
        item: ItemId,
        claims: &[Claim],
    ) -> std::result::Result<Settled, BookError> {
        let (claims, clock) = (claims.to_vec(), self.clock.clone());
        let work = move |conn: &mut Connection| settle::settle(conn, item, &claims, clock.now_ms());
        Ok(self.writer.run(work).await?)
    }

    async fn defer(&self, failed: &[FailedClaim]) -> std::result::Result<(), BookError> {
        let (failed, now_ms) = (failed.to_vec(), self.clock.now_ms());
        Ok(self.write(move |tx| dead_letters::defer(tx, &failed, now_ms)).await?)
    }

    async fn due(
        &self,
        now_ms: Millis,
        limit: usize,
    ) -> std::result::Result<Vec<FailedClaim>, BookError> {
        Ok(self.read(move |conn| dead_letters::due(conn, now_ms, limit)).await?)
    }
}

#[async_trait]
impl Activities for SqliteLedger {
    async fn create_activity(&self, new: &NewActivity, now_ms: Millis) -> Result<Activity> {
        let new = new.clone();
        Ok(self.write(move |tx| activities::create(tx, &new, now_ms)).await?)
    }

    async fn activity(&self, id: ActivityId) -> Result<Option<Activity>> {
        Ok(self.read(move |conn| activities::one(conn, id)).await?)
    }

    async fn activities(&self, before: Option<ActivityId>, limit: usize) -> Result<Vec<Activity>> {
        Ok(self.read(move |conn| activities::newest(conn, before, limit)).await?)
    }

    async fn activities_where(
        &self,
        filter: &ActivityFilter,
        after: Option<ActivityKey>,
        limit: usize,
    ) -> Result<Vec<Activity>> {
        let filter = *filter;
        Ok(self.read(move |conn| activities::page(conn, &filter, after, limit)).await?)
    }

    async fn activities_of(
        &self,
        activities: &[ActivityId],
        items: &[ItemId],
    ) -> Result<Vec<Activity>> {
        let (activities, items) = (activities.to_vec(), items.to_vec());
        Ok(self.read(move |conn| activities::of(conn, &activities, &items)).await?)
    }

    async fn item(&self, id: ItemId) -> Result<Option<Item>> {
        Ok(self.read(move |conn| activities::item(conn, id)).await?)
    }

    async fn move_activity(
        &self,
        id: ActivityId,
        step: ActivityMove,
        audit: Option<&AuditEntry>,
        now_ms: Millis,
    ) -> Result<MovedActivity> {
        let audit = audit.cloned();
        let work = move |tx: &Connection| activities::move_by(tx, id, step, audit.as_ref(), now_ms);
        Ok(self.write(work).await?)
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
        Ok(self.write(move |tx| drafts::edit(tx, id, version, &new, &audit, now_ms)).await?)
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
        Ok(self.write(move |tx| drafts::postpone(tx, id, version, window, &audit, now_ms)).await?)
    }

    async fn publish_due(&self, now_ms: Millis, limit: usize) -> Result<Vec<Activity>> {
        Ok(self.read(move |conn| drafts::publish_due(conn, now_ms, limit)).await?)
    }

    async fn publish_planned(
        &self,
        id: ActivityId,
        version: i64,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool> {
        let audit = audit.clone();
        Ok(self.write(move |tx| drafts::publish_planned(tx, id, version, &audit, now_ms)).await?)
    }

    async fn forget_publish(
        &self,
        id: ActivityId,
        version: i64,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool> {
        let audit = audit.clone();
        Ok(self.write(move |tx| drafts::forget_publish(tx, id, version, &audit, now_ms)).await?)
    }
}

#[async_trait]
impl Stock for SqliteLedger {
    async fn begin_warm(&self, item: ItemId, expected: Epoch) -> Result<Option<Epoch>> {
        Ok(self.write(move |tx| activities::begin_warm(tx, item, expected)).await?)
    }

    async fn warm_basis(&self, item: ItemId, in_flight: &[OrderNo]) -> Result<WarmBasis> {
        let in_flight = in_flight.to_vec();
        Ok(self.read(move |conn| activities::warm_basis(conn, item, &in_flight)).await?)
    }

    async fn finish_warm(&self, item: ItemId, epoch: Epoch) -> Result<bool> {
        Ok(self.write(move |tx| activities::finish_warm(tx, item, epoch)).await?)
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
        Ok(self.write(move |tx| stock::adjust(tx, item, delta, adjust_no, &audit, now_ms)).await?)
    }

    async fn adjustment(&self, adjust_no: OrderNo) -> Result<Option<KnownAdjustment>> {
        let done = self.read(move |conn| stock::adjusted(conn, adjust_no)).await?;
        Ok(done.map(Into::into))
    }

    async fn stock_log(
        &self,
        item: ItemId,
        after_id: i64,
        limit: usize,
    ) -> Result<Vec<StockLogRow>> {
        Ok(self.read(move |conn| stock::log(conn, item, after_id, limit)).await?)
    }
}

#[async_trait]
impl Orders for SqliteLedger {
    async fn order(&self, no: OrderNo) -> Result<Option<Order>> {
        Ok(self.read(move |conn| orders::one(conn, no)).await?)
    }

    async fn orders_by_no(&self, numbers: &[OrderNo]) -> Result<Vec<Order>> {
        let numbers = numbers.to_vec();
        Ok(self.read(move |conn| orders::by_no(conn, &numbers)).await?)
    }

    async fn orders(&self, filter: &OrderFilter) -> Result<Vec<Order>> {
        let filter = filter.clone();
        Ok(self.read(move |conn| orders::list(conn, &filter)).await?)
    }

    async fn count_orders(
        &self,
        item: ItemId,
        after: Option<OrderNo>,
        limit: usize,
    ) -> Result<OrderCount> {
        Ok(self.read(move |conn| orders::count(conn, item, after, limit)).await?)
    }

    async fn overdue(&self, now_ms: Millis, limit: usize) -> Result<Vec<Overdue>> {
        Ok(self.read(move |conn| orders::overdue(conn, now_ms, limit)).await?)
    }

    async fn close(
        &self,
        orders: &[Closing],
        reason: CloseReason,
        now_ms: Millis,
    ) -> Result<Vec<OrderNo>> {
        let orders = orders.to_vec();
        Ok(self.write(move |tx| orders::close(tx, &orders, reason, now_ms)).await?)
    }

    async fn void(
        &self,
        claims: &[Claim],
        reason: VoidReason,
        now_ms: Millis,
    ) -> Result<Vec<OrderNo>> {
        let claims = claims.to_vec();
        Ok(self.write(move |tx| orders::void(tx, &claims, reason, now_ms)).await?)
    }

    async fn last_order_no(&self) -> Result<Option<OrderNo>> {
        Ok(self.read(orders::last_no).await?)
    }
}

#[async_trait]
impl Payments for SqliteLedger {
    async fn open_payment(
        &self,
        no: OrderNo,
        provider: &str,
        now_ms: Millis,
    ) -> Result<Moved<OrderStatus>> {
        let provider = provider.to_owned();
        Ok(self.write(move |tx| payments::open(tx, no, &provider, now_ms)).await?)
    }

    async fn credit(&self, notice: &PaymentNotice, now_ms: Millis) -> Result<Credit> {
        let notice = notice.clone();
        Ok(self.write(move |tx| payments::credit(tx, &notice, now_ms)).await?)
    }

    async fn start_refund(
        &self,
        no: OrderNo,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Moved<OrderStatus>> {
        let audit = audit.clone();
        Ok(self.write(move |tx| payments::start_refund(tx, no, &audit, now_ms)).await?)
    }

    async fn refunded(&self, done: &RefundDone, now_ms: Millis) -> Result<()> {
        let done = done.clone();
        Ok(self.write(move |tx| payments::refunded(tx, &done, now_ms)).await?)
    }

    async fn payments(&self, no: OrderNo) -> Result<Vec<PaymentRow>> {
        Ok(self.read(move |conn| payments::of_order(conn, no)).await?)
    }

    async fn money_of(&self, orders: &[OrderNo]) -> Result<Vec<PaymentRow>> {
        let orders = orders.to_vec();
        Ok(self.read(move |conn| payments::received(conn, &orders)).await?)
    }

    async fn open_payments(&self, after_id: i64, limit: usize) -> Result<Vec<OpenPayment>> {
        Ok(self.read(move |conn| payments::still_open(conn, after_id, limit)).await?)
    }

    async fn payments_over(&self, ids: &[i64], now_ms: Millis) -> Result<()> {
        let ids = ids.to_vec();
        Ok(self.write(move |tx| payments::over(tx, &ids, now_ms)).await?)
    }

    async fn requeue_refund(
        &self,
        provider: &str,
        provider_txn: &str,
        now_ms: Millis,
    ) -> Result<bool> {
        let (provider, txn) = (provider.to_owned(), provider_txn.to_owned());
        Ok(self.write(move |tx| payments::requeue_refund(tx, &provider, &txn, now_ms)).await?)
    }
}

#[async_trait]
impl Outbox for SqliteLedger {
    async fn outbox_due(
        &self,
        queue: OutboxQueue,
        now_ms: Millis,
        limit: usize,
    ) -> Result<Vec<OutboxRow>> {
        Ok(self.read(move |conn| outbox::due(conn, queue, now_ms, limit)).await?)
    }

    async fn outbox_done(&self, ids: &[i64]) -> Result<()> {
        let ids = ids.to_vec();
        Ok(self.write(move |tx| outbox::done(tx, &ids)).await?)
    }

    async fn outbox_later(&self, id: i64, next_try_ms: Millis, cause: &str) -> Result<()> {
        let cause = cause.to_owned();
        Ok(self.write(move |tx| outbox::later(tx, id, next_try_ms, &cause)).await?)
    }

    async fn outbox_depth(&self) -> Result<u64> {
        Ok(self.read(outbox::depth).await?)
    }
}

#[async_trait]
impl DeadLetters for SqliteLedger {
    async fn dead_letters(
        &self,
        state: Option<DeadLetterState>,
        before: Option<OrderNo>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        Ok(self.read(move |conn| dead_letters::list(conn, state, before, limit)).await?)
    }

    async fn dead_letter(&self, no: OrderNo) -> Result<Option<DeadLetter>> {
        Ok(self.read(move |conn| dead_letters::one(conn, no)).await?)
    }

    async fn dead_letters_of(
        &self,
        user: &UserId,
        state: Option<DeadLetterState>,
        before: Option<OrderNo>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        let user = user.clone();
        Ok(self.read(move |conn| dead_letters::of_user(conn, &user, state, before, limit)).await?)
    }

    async fn replay(&self, no: OrderNo, now_ms: Millis) -> Result<Moved<DeadLetterState>> {
        Ok(self.write(move |tx| dead_letters::replay(tx, no, now_ms)).await?)
    }
}

#[async_trait]
impl Operators for SqliteLedger {
    async fn add_admin_token(
        &self,
        name: &str,
        role: Role,
        secret_hash: &[u8],
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool> {
        let (name, hash, audit) = (name.to_owned(), secret_hash.to_vec(), audit.clone());
        let work =
            move |tx: &Connection| operators::add_token(tx, &name, role, &hash, &audit, now_ms);
        Ok(self.write(work).await?)
    }

    async fn put_admin_token(
        &self,
        name: &str,
        role: Role,
        secret_hash: &[u8],
        now_ms: Millis,
    ) -> Result<()> {
        let (name, hash) = (name.to_owned(), secret_hash.to_vec());
        Ok(self.write(move |tx| operators::put_token(tx, &name, role, &hash, now_ms)).await?)
    }

    async fn admin_token(&self, secret_hash: &[u8]) -> Result<Option<AdminToken>> {
        let hash = secret_hash.to_vec();
        Ok(self.read(move |conn| operators::token(conn, &hash)).await?)
    }

    async fn admin_tokens(&self) -> Result<Vec<AdminToken>> {
        Ok(self.read(operators::tokens).await?)
    }

    async fn revoke_admin_token(&self, name: &str, now_ms: Millis) -> Result<bool> {
        let name = name.to_owned();
        Ok(self.write(move |tx| operators::revoke_token(tx, &name, now_ms)).await?)
    }

    async fn audit(&self, entry: &AuditEntry, now_ms: Millis) -> Result<()> {
        let entry = entry.clone();
        Ok(self.write(move |tx| operators::audit(tx, &entry, now_ms)).await?)
    }

    async fn audit_log(&self, before_id: Option<i64>, limit: usize) -> Result<Vec<AuditRow>> {
        Ok(self.read(move |conn| operators::audit_log(conn, before_id, limit)).await?)
    }
}

#[async_trait]
impl Upkeep for SqliteLedger {
    async fn shared_secret(&self, candidate: &str, now_ms: Millis) -> Result<String> {
        let candidate = candidate.to_owned();
        Ok(self.write(move |tx| operators::shared_secret(tx, &candidate, now_ms)).await?)
    }

    async fn take_lease(&self, name: &str, holder: &str, for_ms: Millis) -> Result<bool> {
        let (name, holder) = (name.to_owned(), holder.to_owned());
        let now_ms = self.clock.now_ms();
        let taken =
            move |tx: &Connection| operators::take_lease(tx, &name, &holder, for_ms, now_ms);
        Ok(self.write(taken).await?)
    }

    async fn record_run(&self, run: &NewJobRun) -> Result<i64> {
        let run = run.clone();
        Ok(self.write(move |tx| operators::record_run(tx, &run)).await?)
    }

    async fn job_runs(&self, job: &str, limit: usize) -> Result<Vec<JobRun>> {
        let job = job.to_owned();
        Ok(self.read(move |conn| operators::job_runs(conn, &job, limit)).await?)
    }

    async fn now_ms(&self) -> Result<Millis> {
        Ok(self.clock.now_ms())
    }

    async fn ping(&self) -> Result<()> {
        let one = |conn: &Connection| {
            conn.prepare_cached("SELECT 1 FROM tb_seckill_activity LIMIT 1")?.exists([])?;
            Ok(())
        };
        self.writer.check()?;
        Ok(self.read(one).await?)
    }
}

#[async_trait]
impl Books for SqliteLedger {
    async fn outstanding(&self) -> Result<Outstanding> {
        let counted = |conn: &Connection| {
            Ok(Outstanding { outbox: outbox::by_kind(conn)?, claims: dead_letters::by_item(conn)? })
        };
        Ok(self.read(counted).await?)
    }

    async fn item_books(&self, item: ItemId, in_flight: &[OrderNo]) -> Result<ItemBooks> {
        let in_flight = in_flight.to_vec();
        Ok(self.read(move |conn| reconcile::item_books(conn, item, &in_flight)).await?)
    }

    async fn payment_problems(&self, limit: usize) -> Result<Vec<PaymentProblem>> {
        Ok(self.read(move |conn| payments::problems(conn, limit)).await?)
    }
}

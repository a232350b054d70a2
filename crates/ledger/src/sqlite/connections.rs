//! Who talks to the file: one thread that writes, a few connections that read.
//!
//! SQLite takes one writer at a time, so all writes go through one thread that owns the one
//! connection that may write; nobody ever waits for a lock held by ourselves. In WAL mode readers
//! see the last commit and neither wait for the writer nor hold it up.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::failure::{Failure, Outcome};

/// How long a statement waits for a lock somebody else holds. Short: a ledger that is locked from
/// outside should say so while the buyer still waits.
pub const BUSY_TIMEOUT_MS: u64 = 250;
/// While opening, another process may be migrating; that is worth waiting for.
const OPEN_BUSY_TIMEOUT_MS: u64 = 5_000;
/// Writes waiting for the writer thread. Beyond this the callers wait to be let in.
const WRITE_QUEUE_MAX: usize = 256;
/// A write that waited this long is not begun any more: its caller has long given up, and the queue
/// of a locked ledger must not take minutes to answer.
const WRITE_WAIT_MS_MAX: u64 = 5_000;
const READERS_MAX: usize = 4;
const STATEMENTS_CACHED_MAX: usize = 128;
/// Page cache of the writer, in KiB. The index over user ids is written all over the place.
const WRITER_CACHE_KIB: i64 = 64 * 1024;
const READER_CACHE_KIB: i64 = 32 * 1024;
/// Four times SQLite's default. The indexes over user ids are written all over the place, a page per
/// row; with larger pages a batch rewrites fewer of them (measured: 15 µs of processor
/// time per order instead of 18, and fewer waits for the disk).
const PAGE_BYTES: i64 = 16 * 1024;
/// The WAL is moved into the database file when it has grown to this. SQLite's default of 4 MB is
/// filled by one batch of orders; the longer we wait, the more often written pages are moved once.
const CHECKPOINT_BYTES: i64 = 64 * 1024 * 1024;
/// A WAL that grew under a long read is cut back to this.
const WAL_BYTES_MAX: i64 = 256 * 1024 * 1024;

/// The connection that may write, not yet given to its thread.
pub(super) fn open_writer(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(Duration::from_millis(OPEN_BUSY_TIMEOUT_MS))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_CACHED_MAX);
    Ok(conn)
}

/// WAL with `synchronous=FULL`: a commit that was answered has been fsynced.
pub(super) fn configure_writer(conn: &Connection) -> rusqlite::Result<()> {
    // Takes effect on a new file only, and only before it becomes a WAL database.
    conn.pragma_update(None, "page_size", PAGE_BYTES)?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_BYTES / PAGE_BYTES)?;
    conn.pragma_update(None, "journal_size_limit", WAL_BYTES_MAX)
}

/// From here on somebody else's lock is answered, not waited for.
pub(super) fn opened(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(Duration::from_millis(BUSY_TIMEOUT_MS))
}

fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    // Opened for writing although it never writes: a reader must be able to join the WAL.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(Duration::from_millis(BUSY_TIMEOUT_MS))?;
    conn.pragma_update(None, "query_only", true)?;
    conn.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_CACHED_MAX);
    Ok(conn)
}

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// The handle to the thread that writes. Dropping it ends the thread, once its queue is empty.
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
}

impl Writer {
    pub(super) fn start(conn: Connection) -> std::io::Result<Writer> {
        let (jobs, queue) = mpsc::channel(WRITE_QUEUE_MAX);
        std::thread::Builder::new()
            .name("ledger-writer".into())
            .spawn(move || write_until_dropped(conn, queue))?;
        Ok(Writer { jobs })
    }

    /// Runs `work` on the writer thread. The work is done even if the caller stops waiting.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Outcome<T> + Send + 'static,
    ) -> Outcome<T> {
        let (reply, answer) = oneshot::channel();
        let asked = Instant::now();
        let job: Job = Box::new(move |conn| {
            let in_time = asked.elapsed() < Duration::from_millis(WRITE_WAIT_MS_MAX);
            let outcome = if in_time {
                work(conn)
            } else {
                Err(Failure::NoAnswer("too many writes were waiting before this one"))
            };
            // Nobody may be listening any more; what was committed stays committed.
            let _ = reply.send(outcome);
        });
        let ended = || Failure::NoAnswer("the ledger's writer ended without an answer");
        self.jobs.send(job).await.map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn write_until_dropped(mut conn: Connection, mut queue: mpsc::Receiver<Job>) {
    while let Some(job) = queue.blocking_recv() {
        // A panic rolls its transaction back while unwinding and must not take the writer along.
        if catch_unwind(AssertUnwindSafe(|| job(&mut conn))).is_err() {
            tracing::error!("a ledger write panicked; its transaction was rolled back");
        }
    }
}

/// Begins a transaction that holds the write lock from its first statement, so that what it reads
/// cannot change before it writes. Dropped without a commit, it rolls back.
pub(super) fn begin(conn: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    conn.transaction_with_behavior(TransactionBehavior::Immediate)
}

/// A pool of connections for reading, opened when first needed.
pub(super) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(path: &Path) -> Arc<Self> {
        Arc::new(Readers {
            path: path.to_owned(),
            idle: Mutex::new(Vec::with_capacity(READERS_MAX)),
            permits: Arc::new(Semaphore::new(READERS_MAX)),
        })
    }

    /// Runs `work` off the async threads, inside one read transaction: everything it reads is of
    /// one instant.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Outcome<T> {
        let ended = || Failure::NoAnswer("the ledger's readers have ended");
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| ended())?;
        let readers = self.clone();
        let read = move || {
            // The permit lives as long as the connection is in use, also if the caller leaves.
            let _permit = permit;
            readers.read(work)
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| Err(ended()))
    }

    fn read<T>(&self, work: impl FnOnce(&Connection) -> Outcome<T>) -> Outcome<T> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut conn = match idle {
            Some(conn) => conn,
            None => open_reader(&self.path)?,
        };
        let outcome = {
            let tx = conn.transaction()?;
            work(&tx)
        };
        // A connection that failed is closed and not used again; the next reader opens a new one.
        if !matches!(outcome, Err(Failure::Sql(_))) {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
        }
        outcome
    }
}

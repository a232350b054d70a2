//! Who talks to the file: one thread that writes, a few connections that read.
//!
//! SQLite takes one writer at a time, so all writes go through one thread that owns the one
//! connection that may write; nobody ever waits for a lock held by ourselves. In WAL mode readers
//! see the last commit and neither wait for the writer nor hold it up.
//!
//! After an I/O error of the writer it is not known what of the file is on the disk ([`sqlite_file`]
//! says why), and nothing more may be written to it as it is. The writer closes its connection, turns
//! away what it is asked, and when some time has passed, the next one who asks makes it close the
//! readers, secure the file and open it again. What was asked with the failed write is *unknown*, as
//! after a crash: it may be found done. If the file cannot be secured, it stays that way, and is tried
//! again with growing pauses for as long as it takes.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags};
use sqlite_file::Length;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::session::Transaction;
use crate::sql::failure::{Failure, Fault, Outcome};

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
pub(super) const PAGE_BYTES: i64 = 16 * 1024;
/// The WAL is moved into the database file when it has grown to this. SQLite's default of 4 MB is
/// filled by one batch of orders; the longer we wait, the more often written pages are moved once.
const CHECKPOINT_BYTES: i64 = 64 * 1024 * 1024;
/// A WAL that grew under a long read is cut back to this.
const WAL_BYTES_MAX: i64 = 256 * 1024 * 1024;
/// Between tries to bring a file back after an I/O error: the first pause and the longest; each is
/// twice the one before.
const MEND_PAUSE_MIN: Duration = Duration::from_millis(200);
const MEND_PAUSE_MAX: Duration = Duration::from_secs(5);
/// A file that was well for this long begins with the shortest pause again.
const MEND_WELL: Duration = Duration::from_secs(10);
const MENDING: &str = "the disk failed; the ledger's file is being mended";

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
pub(super) fn configure_writer(conn: &mut Connection, length: &Length) -> rusqlite::Result<()> {
    // Takes effect on a new file only, and only before it becomes a WAL database.
    conn.pragma_update(None, "page_size", PAGE_BYTES)?;
    sqlite_file::use_wal(conn)?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    length.watch(conn)?;
    conn.pragma_update(None, "journal_size_limit", WAL_BYTES_MAX)
}

/// How long the WAL may become.
pub(super) fn wal_length() -> Length {
    Length::new((CHECKPOINT_BYTES / PAGE_BYTES) as u32)
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
    // When it is the last to close, it leaves the WAL alone, too.
    sqlite_file::leave_untouched_on_close(&conn);
    conn.pragma_update(None, "query_only", true)?;
    conn.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_CACHED_MAX);
    Ok(conn)
}

/// Gets the connection, or hears why there is none. Answers whether the file is in doubt now.
type Job = Box<dyn FnOnce(Result<&mut Connection, &'static str>) -> bool + Send>;

/// The handle to the thread that writes. Dropping it ends the thread, once its queue is empty.
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
    /// Set while the file must not be written.
    in_doubt: Arc<AtomicBool>,
}

impl Writer {
    pub(super) fn start(file: WritableFile) -> std::io::Result<Writer> {
        let (jobs, queue) = mpsc::channel(WRITE_QUEUE_MAX);
        let in_doubt = file.in_doubt.clone();
        std::thread::Builder::new()
            .name("ledger-writer".into())
            .spawn(move || file.write_until_dropped(queue))?;
        Ok(Writer { jobs, in_doubt })
    }

    /// May the file be written? If not, have it mended even though nobody wants to write.
    pub(super) fn check(&self) -> Outcome<()> {
        if !self.in_doubt.load(Ordering::Acquire) {
            return Ok(());
        }
        // If the queue is full, the first job in it has the file mended just as well.
        let _ = self.jobs.try_send(Box::new(|_| false));
        Err(Failure::Unknown(MENDING.into()))
    }

    /// Runs `work` on the writer thread. The work is done even if the caller stops waiting.
    pub(super) async fn run(
        &self,
        work: impl FnOnce(&mut Connection) -> Outcome<()> + Send + 'static,
    ) -> Outcome<()> {
        let (reply, answer) = oneshot::channel();
        let asked = Instant::now();
        let job: Job = Box::new(move |conn| {
            let in_time = asked.elapsed() < Duration::from_millis(WRITE_WAIT_MS_MAX);
            let outcome = match conn {
                Ok(conn) if in_time => work(conn),
                Ok(_) => {
                    Err(Failure::Unknown("too many writes were waiting before this one".into()))
                }
                Err(why) => Err(Failure::Unknown(why.into())),
            };
            let in_doubt =
                outcome.as_ref().is_err_and(|failure| failure.fault() == Some(Fault::Disk));
            // Nobody may be listening any more; what was committed stays committed.
            let _ = reply.send(outcome);
            in_doubt
        });
        let ended = || Failure::Unknown("the ledger's writer ended without an answer".into());
        self.jobs.send(job).await.map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}

/// The file, as the thread that writes it has it.
pub(super) struct WritableFile {
    path: PathBuf,
    /// None while it must not be written.
    conn: Option<Connection>,
    in_doubt: Arc<AtomicBool>,
    length: Length,
    readers: Arc<Readers>,
    /// Not to be tried again before this.
    mend_at: Instant,
    mend_pause: Duration,
    mended_at: Option<Instant>,
}

impl WritableFile {
    pub(super) fn new(
        path: &Path,
        conn: Connection,
        length: Length,
        readers: Arc<Readers>,
    ) -> WritableFile {
        WritableFile {
            path: path.to_owned(),
            conn: Some(conn),
            in_doubt: Arc::default(),
            length,
            readers,
            mend_at: Instant::now(),
            mend_pause: MEND_PAUSE_MIN,
            mended_at: None,
        }
    }

    fn write_until_dropped(mut self, mut queue: mpsc::Receiver<Job>) {
        while let Some(job) = queue.blocking_recv() {
            if self.conn.is_none() {
                self.mend();
            }
            let Some(conn) = &mut self.conn else {
                job(Err(MENDING));
                continue;
            };
            if let Err(cause) = write(conn, &self.length, job) {
                self.give_up(&cause);
            }
        }
        // The writer closes last, and leaves a file without a WAL behind.
        let (readers, conn) = (self.readers, self.conn);
        readers.while_closed(|| drop(conn));
    }

    /// The disk failed: close the file, and touch it no more as it is.
    fn give_up(&mut self, cause: &str) {
        let path = self.path.display();
        tracing::error!(
            %path,
            cause,
            "the ledger's disk failed; nothing is written until the file is mended"
        );
        if let Some(conn) = self.conn.take() {
            sqlite_file::close_untouched(conn);
        }
        self.in_doubt.store(true, Ordering::Release);
        if self.mended_at.is_none_or(|at| at.elapsed() > MEND_WELL) {
            self.mend_pause = MEND_PAUSE_MIN;
        }
        self.mend_at = Instant::now() + self.mend_pause;
    }

    /// Try to bring it back, unless it was tried just now.
    fn mend(&mut self) {
        if Instant::now() < self.mend_at {
            return;
        }
        let opened = self.readers.while_closed(|| super::reopen(&self.path, &self.length));
        self.mend_pause = (self.mend_pause * 2).min(MEND_PAUSE_MAX);
        match opened {
            Ok(conn) => {
                tracing::info!(path = %self.path.display(), "the ledger can be written again");
                self.conn = Some(conn);
                self.in_doubt.store(false, Ordering::Release);
                self.mended_at = Some(Instant::now());
            }
            Err(error) => {
                // Said a few times, then no more: a long outage must not fill the log.
                if self.mend_pause < MEND_PAUSE_MAX {
                    tracing::warn!(%error, "the ledger's file still cannot be mended");
                }
                self.mend_at = Instant::now() + self.mend_pause;
            }
        }
    }
}

/// One write, and what it leaves to do. An error says why the file is in doubt.
fn write(conn: &mut Connection, length: &Length, job: Job) -> Result<(), String> {
    // A panic rolls its transaction back while unwinding and must not take the writer along.
    match catch_unwind(AssertUnwindSafe(|| job(Ok(&mut *conn)))) {
        Ok(true) => return Err("an I/O error while writing".into()),
        Ok(false) => {}
        Err(_) => tracing::error!("a ledger write panicked; its transaction was rolled back"),
    }
    match length.check(conn) {
        Err(error) if sqlite_file::is_in_doubt(&error) => Err(error.to_string()),
        Err(error) => {
            tracing::warn!(%error, "the ledger's WAL could not be moved into its file");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// A pool of connections for reading, opened when first needed.
pub(super) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
    /// Held shared by whoever reads, and alone by whoever needs all connections closed.
    open: RwLock<()>,
}

impl Readers {
    pub(super) fn new(path: &Path) -> Arc<Self> {
        Arc::new(Readers {
            path: path.to_owned(),
            idle: Mutex::new(Vec::with_capacity(READERS_MAX)),
            permits: Arc::new(Semaphore::new(READERS_MAX)),
            open: RwLock::new(()),
        })
    }

    /// Runs `work` while no reader has the file open. Waits for those who read; who comes meanwhile is
    /// turned away.
    pub(super) fn while_closed<T>(&self, work: impl FnOnce() -> T) -> T {
        let _closed = self.open.write().unwrap_or_else(PoisonError::into_inner);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        work()
    }

    /// Runs `work` off the async threads, inside one read transaction: everything it reads is of
    /// one instant.
    pub(super) async fn run(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Connection) -> Outcome<()> + Send + 'static,
    ) -> Outcome<()> {
        let ended = || Failure::Unknown("the ledger's readers have ended".into());
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| ended())?;
        let readers = self.clone();
        let read = move || {
            // The permit lives as long as the connection is in use, also if the caller leaves.
            let _permit = permit;
            readers.read(work)
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| Err(ended()))
    }

    fn read(&self, work: impl FnOnce(&mut Connection) -> Outcome<()>) -> Outcome<()> {
        let _open = match self.open.try_read() {
            Ok(open) => open,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Failure::Unknown(MENDING.into())),
        };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut conn = match idle {
            Some(conn) => conn,
            None => open_reader(&self.path)?,
        };
        let outcome = Transaction::read(&mut conn).and_then(|mut tx| work(&mut tx));
        // A connection that failed is closed and not used again; the next reader opens a new one.
        if !matches!(outcome, Err(Failure::Sql(_))) {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
        }
        outcome
    }
}

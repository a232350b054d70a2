//! Who talks to the server: a few connections, each used by one piece of work at a time.
//!
//! The pool is our own because what matters is what happens to a connection that failed. One that
//! was idle while the server restarted is found dead by its first statement, before anything was
//! asked: the work then begins anew on a fresh one and nobody notices. One that is lost later is
//! thrown away and the answer is *unknown*. One that does not answer in time is thrown away too, so
//! that a server that hangs cannot eat the pool.
//!
//! **Silence.** A process that is frozen, or whose machine is gone, between two statements of a
//! transaction would keep its locks for as long as the server believes in the connection: eight hours
//! unless told. So each session tells the server to end it after `silence_s_max` without a word, which
//! rolls its transaction back; who wakes up later finds the connection gone. No idle connection is
//! used again that is anywhere near that age.
//!
//! **Isolation.** Writing transactions run READ COMMITTED: they lock the rows they decide by, and
//! want to see what others committed up to that lock; REPEATABLE READ would add gap locks, which
//! make strangers' inserts wait for (and deadlock with) each other. Reading transactions that compare
//! several tables run on one REPEATABLE READ snapshot, so that all they read is of one instant.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mysql_async::{Conn, Opts, Params, Row, prelude::Queryable};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    Options,
    columns::get,
    failure::{Failure, Outcome},
};
use crate::VERSION_TRIES_MAX;

/// How often a transaction that met a deadlock begins anew.
const DEADLOCK_TRIES_MAX: u32 = 4;
/// How often it begins anew after waiting for a lock in vain: whoever holds it that long will hold it
/// longer, and others have work that needs no lock of theirs.
pub const LOCK_TRIES_MAX: u32 = 2;
/// A pause before the next try, times a random number below one, so that two who met do not meet
/// again at once.
const LOCK_PAUSE_MS_MAX: u64 = 20;
/// A connection older than this is not used again: behind its name there may be another server by
/// now, and a session's memory on the server only ever grows.
const AGE_MS_MAX: u64 = 10 * 60 * 1_000;
/// Saying goodbye to a server that may not listen.
const GOODBYE_MS_MAX: u64 = 1_000;
/// Reads that walk through all orders of an item may take this many times as long as others.
const LONG_READ_FACTOR: u32 = 6;
/// The text of one statement. Far below what any server accepts (16 MiB and more), large enough
/// that a thousand orders go in one.
const STATEMENT_BYTES_MAX: usize = 1024 * 1024;

/// Strict: a value that does not fit is an error, never a warning and another value.
const SQL_MODE: &str = "STRICT_TRANS_TABLES,STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,\
     NO_ENGINE_SUBSTITUTION";

const BEGIN_WRITE: &str = "START TRANSACTION READ WRITE";
const BEGIN_READ: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
     START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";

/// A connection and what is known of it.
struct Line {
    /// `None` only while it is being dropped.
    conn: Option<Conn>,
    statement_bytes_max: usize,
    opened: Instant,
    idle_since: Instant,
}

impl Drop for Line {
    fn drop(&mut self) {
        // The driver would wait for the rest of an answer first, which may never come.
        if let (Some(conn), Ok(runtime)) = (self.conn.take(), tokio::runtime::Handle::try_current())
        {
            let goodbye = Duration::from_millis(GOODBYE_MS_MAX);
            runtime.spawn(tokio::time::timeout(goodbye, conn.disconnect()));
        }
    }
}

/// The use of a connection by one piece of work. Dropped, it closes the connection; only
/// [`Desk::put_back`] keeps it for others.
pub(super) struct Session {
    line: Line,
    /// It was idle before, so it may have died unnoticed.
    reused: bool,
    _permit: OwnedSemaphorePermit,
}

impl Session {
    fn conn(&mut self) -> Outcome<&mut Conn> {
        self.line.conn.as_mut().ok_or_else(|| Failure::Broken("a closed connection".into()))
    }

    pub(super) fn statement_bytes_max(&self) -> usize {
        self.line.statement_bytes_max
    }

    /// All rows of a prepared statement.
    pub(super) async fn all<T: Send>(
        &mut self,
        sql: &str,
        asked: impl Into<Params> + Send,
        read: impl Fn(&Row) -> Outcome<T> + Send + Sync,
    ) -> Outcome<Vec<T>> {
        let result = self.conn()?.exec_iter(sql, asked.into()).await?;
        result.map_and_drop(|row| read(&row)).await?.into_iter().collect()
    }

    /// The first row of a prepared statement.
    pub(super) async fn first<T: Send>(
        &mut self,
        sql: &str,
        asked: impl Into<Params> + Send,
        read: impl Fn(&Row) -> Outcome<T> + Send + Sync,
    ) -> Outcome<Option<T>> {
        let row: Option<Row> = self.conn()?.exec_first(sql, asked.into()).await?;
        row.as_ref().map(read).transpose()
    }

    /// How many rows a prepared statement changed.
    pub(super) async fn change(
        &mut self,
        sql: &str,
        asked: impl Into<Params> + Send,
    ) -> Outcome<u64> {
        let conn = self.conn()?;
        conn.exec_drop(sql, asked.into()).await?;
        Ok(conn.affected_rows())
    }

    /// All rows of a statement written out as text, for lists of values of any length.
    pub(super) async fn all_of_text<T: Send>(
        &mut self,
        sql: &str,
        read: impl Fn(&Row) -> Outcome<T> + Send + Sync,
    ) -> Outcome<Vec<T>> {
        let result = self.conn()?.query_iter(sql).await?;
        result.map_and_drop(|row| read(&row)).await?.into_iter().collect()
    }

    /// How many rows a statement written out as text changed.
    pub(super) async fn change_by_text(&mut self, sql: &str) -> Outcome<u64> {
        let conn = self.conn()?;
        conn.query_drop(sql).await?;
        Ok(conn.affected_rows())
    }

    /// The id the last insert was given; the first one if it wrote several rows.
    pub(super) fn inserted_id(&mut self) -> Outcome<i64> {
        let id = self.conn()?.last_insert_id().and_then(|id| i64::try_from(id).ok());
        id.ok_or_else(|| Failure::Broken("an insert was given no id".into()))
    }

    async fn commit(&mut self) -> Outcome<()> {
        self.conn()?.query_drop("COMMIT").await.map_err(Failure::of_commit)
    }
}

/// Where work waits for a connection.
pub(super) struct Desk {
    opts: Opts,
    options: Options,
    idle: Mutex<Vec<Line>>,
    permits: Arc<Semaphore>,
}

impl Desk {
    pub(super) fn new(opts: Opts, options: Options) -> Arc<Self> {
        let connections = options.connections_max.max(1);
        Arc::new(Desk {
            opts,
            idle: Mutex::new(Vec::with_capacity(connections)),
            permits: Arc::new(Semaphore::new(connections)),
            options,
        })
    }

    /// A connection, idle or new.
    pub(super) async fn session(&self) -> Outcome<Session> {
        let unknown = |why: &str| Failure::Unknown(why.into());
        let wait = Duration::from_millis(self.options.answer_ms_max);
        let permit = tokio::time::timeout(wait, self.permits.clone().acquire_owned())
            .await
            .map_err(|_| unknown("all connections to the database were in use for too long"))?
            .map_err(|_| unknown("the ledger is closed"))?;
        if let Some(line) = self.idle_line() {
            return Ok(Session { line, reused: true, _permit: permit });
        }
        let wait = Duration::from_millis(self.options.connect_ms_max);
        let line = tokio::time::timeout(wait, self.connect())
            .await
            .map_err(|_| unknown("the database did not accept a connection in time"))??;
        Ok(Session { line, reused: false, _permit: permit })
    }

    fn idle_line(&self) -> Option<Line> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        self.let_go(&mut idle);
        // The one used last.
        idle.pop()
    }

    /// Forgets connections that were idle for too long. They lie in the order they were put back.
    fn let_go(&self, idle: &mut Vec<Line>) {
        let idle_max = self.idle_max();
        let old = idle.partition_point(|line| line.idle_since.elapsed() >= idle_max);
        idle.drain(..old);
    }

    /// Well before the server ends a silent session.
    fn idle_max(&self) -> Duration {
        Duration::from_secs(u64::from(self.options.silence_s_max.max(1))) * 3 / 4
    }

    async fn connect(&self) -> Outcome<Line> {
        let mut conn = Conn::new(self.opts.clone()).await?;
        let lock_wait_s = self.options.lock_wait_s_max.max(1);
        let silence_s = self.options.silence_s_max.max(1);
        let limit_of_statements = limit_of_statements(self.options.answer_ms_max);
        conn.query_drop(format!(
            "SET NAMES utf8mb4 COLLATE utf8mb4_bin; \
             SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             SET SESSION sql_mode = '{SQL_MODE}', SESSION autocommit = 1, \
                 SESSION innodb_lock_wait_timeout = {lock_wait_s}, \
                 SESSION wait_timeout = {silence_s}, SESSION net_read_timeout = {silence_s}, \
                 SESSION net_write_timeout = {silence_s}; \
             {limit_of_statements}"
        ))
        .await?;
        let statement_bytes_max = check_session(&mut conn).await?;
        let now = Instant::now();
        Ok(Line { conn: Some(conn), statement_bytes_max, opened: now, idle_since: now })
    }

    /// Keeps a connection whose transaction is over for others.
    pub(super) fn put_back(&self, session: Session) {
        let Session { mut line, .. } = session;
        if line.opened.elapsed() >= Duration::from_millis(AGE_MS_MAX) {
            return;
        }
        line.idle_since = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        self.let_go(&mut idle);
        idle.push(line);
    }

    fn forget_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// A session inside a transaction. A connection that turns out dead here was dead before: those
    /// that were idle with it are let go too, and a new one is opened.
    async fn begin(&self, how: &str) -> Outcome<Session> {
        loop {
            let mut session = self.session().await?;
            match session.change_by_text(how).await {
                Ok(_) => return Ok(session),
                Err(failure) if failure.is_gone() && session.reused => self.forget_idle(),
                Err(failure) => return Err(failure),
            }
        }
    }

    /// A piece of work to be done `way`.
    pub(super) fn work(self: &Arc<Self>, way: Way) -> Work {
        Work { desk: self.clone(), way, session: None, stale: false, tries: Tries::default() }
    }
}

/// How a piece of work uses its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// One transaction, tried again by rule: see [`Tries`].
    Write,
    /// Several statements that read, all of one instant.
    Read,
    /// One statement that reads, without a transaction around it.
    Look,
}

/// One piece of work, begun as often as it must be: `begin`, the statements, `end`, and `over` says
/// whether that was it.
pub(super) struct Work {
    desk: Arc<Desk>,
    way: Way,
    /// Present between `begin` and `end`. Work that was cut off by the clock leaves it here, and
    /// `over` closes it.
    session: Option<Session>,
    /// The connection had died while it was idle; nothing was asked of the server.
    stale: bool,
    tries: Tries,
}

impl Work {
    pub(super) async fn begin(&mut self) -> Outcome<&mut Session> {
        let session = match self.way {
            Way::Write => self.desk.begin(BEGIN_WRITE).await?,
            Way::Read => self.desk.begin(BEGIN_READ).await?,
            Way::Look => self.desk.session().await?,
        };
        Ok(self.session.insert(session))
    }

    pub(super) async fn end<T>(&mut self, outcome: Outcome<T>) -> Outcome<T> {
        let Some(mut session) = self.session.take() else { return outcome };
        if let Err(failure) = &outcome
            && failure.is_lost()
        {
            self.stale = self.way == Way::Look && failure.is_gone() && session.reused;
            return outcome;
        }
        let ended = match (self.way, &outcome) {
            (Way::Write, Ok(_)) => {
                session.commit().await?;
                true
            }
            // Closing the connection rolls back as well; this only keeps it for others.
            (Way::Write | Way::Read, _) => session.change_by_text("ROLLBACK").await.is_ok(),
            (Way::Look, _) => true,
        };
        if ended {
            self.desk.put_back(session);
        }
        outcome
    }

    /// The outcome if it is the last; nothing if the work has to begin again.
    pub(super) async fn over<T>(&mut self, outcome: Outcome<T>) -> Option<Outcome<T>> {
        self.session = None;
        if std::mem::take(&mut self.stale) {
            self.desk.forget_idle();
            return None;
        }
        match &outcome {
            Err(failure) if self.way == Way::Write && self.tries.again(failure) => {
                self.tries.pause().await;
                None
            }
            _ => Some(outcome),
        }
    }

    /// How long one try may take.
    pub(super) fn time_max(&self) -> Duration {
        let usual = Duration::from_millis(self.desk.options.answer_ms_max);
        if self.way == Way::Read { usual * LONG_READ_FACTOR } else { usual }
    }
}

/// What work is told that the clock cut off. It may have been done.
pub(super) fn cut_off<T>(limit: Duration) -> Outcome<T> {
    Err(Failure::CutOff(format!("no answer within {} ms", limit.as_millis())))
}

/// Makes the server give up a statement that nobody waits for any more. MariaDB takes seconds and
/// skips comments of MySQL 5.7; MySQL takes milliseconds and skips comments of MariaDB.
fn limit_of_statements(answer_ms_max: u64) -> String {
    statements_within(answer_ms_max.max(1_000) * u64::from(LONG_READ_FACTOR))
}

/// Zero is no limit.
pub(super) fn statements_within(limit_ms: u64) -> String {
    let limit_s = limit_ms.div_ceil(1_000);
    format!(
        "/*M! SET SESSION max_statement_time = {limit_s} */ \
         /*!50708 SET SESSION max_execution_time = {limit_ms} */"
    )
}

/// Are the session's settings those the statements rely on? Answers how long a statement may be. A
/// proxy between us and the server may accept a setting and forget it.
async fn check_session(conn: &mut Conn) -> Outcome<usize> {
    let sql = "SELECT CAST(@@max_allowed_packet AS UNSIGNED), @@sql_mode, \
         @@character_set_connection, @@collation_connection";
    let row: Option<Row> = conn.query_first(sql).await?;
    let row = row.ok_or_else(|| Failure::Broken("a SELECT without FROM has no row".into()))?;
    let mode: String = get(&row, 1)?;
    let (charset, collation): (String, String) = (get(&row, 2)?, get(&row, 3)?);
    let escapes = !mode.contains("NO_BACKSLASH_ESCAPES") && !mode.contains("ANSI_QUOTES");
    if !mode.contains("STRICT_TRANS_TABLES") || !escapes {
        return Err(Failure::Broken(format!("the session's sql_mode stays {mode:?}")));
    }
    if (charset.as_str(), collation.as_str()) != ("utf8mb4", "utf8mb4_bin") {
        return Err(Failure::Broken(format!("the session speaks {charset}/{collation}")));
    }
    let packet_bytes_max: usize = get(&row, 0)?;
    Ok(STATEMENT_BYTES_MAX.min(packet_bytes_max / 2))
}

/// How often one piece of work was begun, and why it had to begin again.
#[derive(Default)]
struct Tries {
    races: u32,
    deadlocks: u32,
    locks: u32,
}

impl Tries {
    /// May it begin again after this? Counts it if so.
    fn again(&mut self, failure: &Failure) -> bool {
        if !failure.is_luck() {
            return false;
        }
        let (count, max) = if failure.is_race() {
            (&mut self.races, VERSION_TRIES_MAX)
        } else if failure.is_lock_wait() {
            (&mut self.locks, LOCK_TRIES_MAX)
        } else {
            (&mut self.deadlocks, DEADLOCK_TRIES_MAX)
        };
        *count += 1;
        *count < max
    }

    async fn pause(&self) {
        if self.deadlocks + self.locks > 0 {
            let pause_ms = jitter() % (LOCK_PAUSE_MS_MAX + 1);
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
    }
}

/// A number nobody else has at the same instant; the hasher of the standard library is seeded anew
/// each time, which is all the randomness a pause needs.
fn jitter() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

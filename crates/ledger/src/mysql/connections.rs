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
//! several tables run on one REPEATABLE READ snapshot, so that all they read is of one instant. They are
//! not begun as `READ ONLY`: TiDB has no such words behind a snapshot, and alone it refuses them.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mysql_async::{Conn, Opts, Row, prelude::Queryable};
use tokio::sync::AcquireError;

use super::{
    Options,
    permits::{LongTurn, Permit, Permits},
    session::MysqlSession,
};
use crate::{
    Share, VERSION_TRIES_MAX,
    sql::{
        Access, PieceOfWork,
        columns::get,
        failure::{Failure, Fault, Outcome},
        session::Session,
    },
};

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
/// Reads of several statements, or through all orders of an item, may take this many times as long as
/// others.
const LONG_READ_FACTOR: u32 = 6;
/// A walk is over when whoever takes its pages has waited too long for the next one; this is only so
/// that none lasts for ever.
const WALK_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The text of one statement. Far below what any server accepts (16 MiB and more), large enough
/// that a thousand orders go in one.
const STATEMENT_BYTES_MAX: usize = 1024 * 1024;

/// Strict: a value that does not fit is an error, never a warning and another value.
const SQL_MODE: &str = "STRICT_TRANS_TABLES,STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,\
     NO_ENGINE_SUBSTITUTION";

const BEGIN_WRITE: &str = "START TRANSACTION READ WRITE";
const BEGIN_READ: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
     START TRANSACTION WITH CONSISTENT SNAPSHOT";

/// A connection and what is known of it.
pub(super) struct Pooled {
    /// `None` only while it is being dropped.
    pub(super) conn: Option<Conn>,
    pub(super) statement_bytes_max: usize,
    opened: Instant,
    idle_since: Instant,
}

impl Drop for Pooled {
    fn drop(&mut self) {
        // The driver would wait for the rest of an answer first, which may never come.
        if let (Some(conn), Ok(runtime)) = (self.conn.take(), tokio::runtime::Handle::try_current())
        {
            let goodbye = Duration::from_millis(GOODBYE_MS_MAX);
            runtime.spawn(tokio::time::timeout(goodbye, conn.disconnect()));
        }
    }
}

/// Where work waits for a connection.
pub(super) struct Pool {
    opts: Opts,
    options: Options,
    idle: Mutex<Vec<Pooled>>,
    permits: Permits,
}

impl Pool {
    pub(super) fn new(opts: Opts, options: Options) -> Arc<Self> {
        let connections = options.connections_max.max(1);
        Arc::new(Pool {
            opts,
            idle: Mutex::new(Vec::with_capacity(connections)),
            permits: Permits::new(connections, &options.shares),
            options,
        })
    }

    /// The right to a connection.
    pub(super) async fn permit(&self, share: Share) -> Outcome<Permit> {
        self.in_time(1, self.permits.take(share)).await
    }

    async fn long_permit(&self, turn: LongTurn) -> Outcome<Permit> {
        self.in_time(1, self.permits.take_long(turn)).await
    }

    /// A long read may have to wait for another one.
    pub(super) async fn long_turn(&self) -> Outcome<LongTurn> {
        self.in_time(LONG_READ_FACTOR, self.permits.long_turn()).await
    }

    pub(super) fn long_turn_now(&self) -> Outcome<LongTurn> {
        let turn = self.permits.long_turn_now();
        turn.ok_or_else(|| unknown("others read all orders of an item at the moment"))
    }

    async fn in_time<T>(
        &self,
        times: u32,
        taking: impl Future<Output = Result<T, AcquireError>>,
    ) -> Outcome<T> {
        let wait = Duration::from_millis(self.options.answer_ms_max) * times;
        tokio::time::timeout(wait, taking)
            .await
            .map_err(|_| unknown("all connections to the database were in use for too long"))?
            .map_err(|_| unknown("the ledger is closed"))
    }

    /// A connection, idle or new.
    pub(super) async fn session(&self, permit: Permit) -> Outcome<MysqlSession> {
        let session = |pooled, reused| MysqlSession { pooled, reused, permit };
        if let Some(pooled) = self.idle() {
            return Ok(session(pooled, true));
        }
        let wait = Duration::from_millis(self.options.connect_ms_max);
        let pooled = tokio::time::timeout(wait, self.connect())
            .await
            .map_err(|_| unknown("the database did not accept a connection in time"))??;
        Ok(session(pooled, false))
    }

    fn idle(&self) -> Option<Pooled> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        self.let_go(&mut idle);
        // The one used last.
        idle.pop()
    }

    /// Forgets connections that were idle for too long. They lie in the order they were put back.
    fn let_go(&self, idle: &mut Vec<Pooled>) {
        let idle_max = self.idle_max();
        let old = idle.partition_point(|pooled| pooled.idle_since.elapsed() >= idle_max);
        idle.drain(..old);
    }

    /// Well before the server ends a silent session.
    fn idle_max(&self) -> Duration {
        Duration::from_secs(u64::from(self.options.silence_s_max.max(1))) * 3 / 4
    }

    async fn connect(&self) -> Outcome<Pooled> {
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
        Ok(Pooled { conn: Some(conn), statement_bytes_max, opened: now, idle_since: now })
    }

    /// Keeps a connection whose transaction is over for others.
    pub(super) fn put_back(&self, session: MysqlSession) {
        let MysqlSession { mut pooled, .. } = session;
        if pooled.opened.elapsed() >= Duration::from_millis(AGE_MS_MAX) {
            return;
        }
        pooled.idle_since = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        self.let_go(&mut idle);
        idle.push(pooled);
    }

    fn forget_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// A session inside a transaction. A connection that turns out dead here was dead before: those
    /// that were idle with it are let go too, and a new one is opened.
    async fn begin(&self, how: &str, mut permit: Permit) -> Outcome<MysqlSession> {
        loop {
            let mut session = self.session(permit).await?;
            match session.execute(how, &[]).await {
                Ok(_) => return Ok(session),
                Err(failure) if failure.is_gone() && session.reused => self.forget_idle(),
                Err(failure) => return Err(failure),
            }
            permit = session.permit;
        }
    }

    /// A piece of work that uses its connection so, perhaps in a turn that it has waited for before.
    pub(super) fn work(
        self: &Arc<Self>,
        access: Access,
        share: Share,
        turn: Option<LongTurn>,
    ) -> Work {
        let (pool, tries) = (self.clone(), Tries::default());
        Work { pool, access, share, turn, session: None, stale: false, tries }
    }
}

fn unknown(why: &str) -> Failure {
    Failure::Unknown(why.into())
}

/// One piece of work, begun as often as it must be: `begin`, the statements, `end`, and `over` says
/// whether that was it.
pub(super) struct Work {
    pool: Arc<Pool>,
    access: Access,
    share: Share,
    /// Of its first try.
    turn: Option<LongTurn>,
    /// Present between `begin` and `end`. Work that was cut off by the clock leaves it here, and
    /// `over` closes it.
    session: Option<MysqlSession>,
    /// The connection had died while it was idle; nothing was asked of the server.
    stale: bool,
    tries: Tries,
}

impl Work {
    /// From its first try to its last.
    pub(super) async fn run(mut self, work: Arc<dyn PieceOfWork>) -> Outcome<()> {
        loop {
            let limit = self.time_max();
            let outcome = tokio::time::timeout(limit, self.one_try(&*work)).await;
            if let Some(outcome) = self.over(outcome.unwrap_or_else(|_| cut_off(limit))).await {
                return outcome;
            }
        }
    }

    async fn one_try(&mut self, work: &dyn PieceOfWork) -> Outcome<()> {
        let session = self.begin().await?;
        let outcome = work.begin(session).await;
        self.end(outcome).await
    }

    async fn begin(&mut self) -> Outcome<&mut MysqlSession> {
        let permit = match self.turn.take() {
            Some(turn) => self.pool.long_permit(turn).await?,
            None if self.access.is_long() => {
                self.pool.long_permit(self.pool.long_turn().await?).await?
            }
            None => self.pool.permit(self.share).await?,
        };
        let session = match self.access {
            Access::Write => self.pool.begin(BEGIN_WRITE, permit).await?,
            Access::Snapshot | Access::LongSnapshot | Access::Walk => {
                self.pool.begin(BEGIN_READ, permit).await?
            }
            Access::Statement => self.pool.session(permit).await?,
        };
        Ok(self.session.insert(session))
    }

    async fn end(&mut self, outcome: Outcome<()>) -> Outcome<()> {
        let Some(mut session) = self.session.take() else { return outcome };
        if let Err(failure) = &outcome
            && failure.is_lost()
        {
            self.stale = self.access == Access::Statement && failure.is_gone() && session.reused;
            return outcome;
        }
        let ended = match (self.access, &outcome) {
            (Access::Write, Ok(_)) => {
                session.commit().await?;
                true
            }
            // Closing the connection rolls back as well; this only keeps it for others.
            (Access::Write | Access::Snapshot | Access::LongSnapshot | Access::Walk, _) => {
                session.execute("ROLLBACK", &[]).await.is_ok()
            }
            (Access::Statement, _) => true,
        };
        if ended {
            self.pool.put_back(session);
        }
        outcome
    }

    /// The outcome if it is the last; nothing if the work has to begin again.
    async fn over(&mut self, outcome: Outcome<()>) -> Option<Outcome<()>> {
        self.session = None;
        if std::mem::take(&mut self.stale) {
            self.pool.forget_idle();
            return None;
        }
        match &outcome {
            Err(failure) if self.access == Access::Write && self.tries.again(failure) => {
                self.tries.pause().await;
                None
            }
            _ => Some(outcome),
        }
    }

    /// How long one try may take.
    fn time_max(&self) -> Duration {
        let usual = Duration::from_millis(self.pool.options.answer_ms_max);
        match self.access {
            Access::Write | Access::Statement => usual,
            Access::Snapshot | Access::LongSnapshot => usual * LONG_READ_FACTOR,
            Access::Walk => WALK_MAX,
        }
    }
}

/// What work is told that the clock cut off. It may have been done.
fn cut_off(limit: Duration) -> Outcome<()> {
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
    let packet_bytes_max: u64 = get(&row, 0)?;
    Ok(STATEMENT_BYTES_MAX.min((packet_bytes_max / 2) as usize))
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
        let (count, max) = match failure.fault() {
            Some(Fault::Race) => (&mut self.races, VERSION_TRIES_MAX),
            Some(Fault::Held) => (&mut self.locks, LOCK_TRIES_MAX),
            Some(Fault::Deadlock) => (&mut self.deadlocks, DEADLOCK_TRIES_MAX),
            _ => return false,
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

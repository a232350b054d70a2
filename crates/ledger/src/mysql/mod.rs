//! The ledger in MySQL, MariaDB or TiDB, shared by any number of instances.
//!
//! Many write at once here, where SQLite has one writer. Bad luck (a deadlock, a lock waited for in vain)
//! is tried again in a fresh transaction by `connections`; a lost connection or an unanswered commit is
//! *unknown*, and since every write is idempotent by its number the caller simply asks again.
//!
//! The statements are those of [`crate::sql`], and keep to what all three understand. README says which were
//! really tried. What TiDB does not have is nothing that a promise rests on: no triggers (the audit is then
//! append-only by the user's rights, or by our word), CHECK only if it is switched on, and no SKIP LOCKED.
//! `health` looks for each.

mod connections;
mod failure;
mod health;
mod migrations;
mod month;
mod permits;
mod session;
mod text;
mod tls;

use std::{any::Any, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
// Named so that addresses of servers are read without tables of all of Unicode (Cargo.toml says why).
use idna_adapter as _;
use mysql_async::{Opts, OptsBuilder};
use sale::{Millis, SharedClock};

use self::connections::Pool;
use crate::{
    LedgerError, Share,
    sql::{
        Access, Engine, LongTurn, PieceOfWork, SqlLedger,
        dialect::Dialect,
        failure::{Failure, Outcome},
    },
};

pub use connections::LOCK_TRIES_MAX;
pub use health::{Fitness, ServerSetting};
pub use migrations::SCHEMA_VERSION;
pub use tls::TlsFiles;

/// Statements each connection keeps prepared. The server allows some 16,000 in all, shared by every
/// connection of every instance.
const STATEMENTS_CACHED_MAX: usize = 64;
/// Silence after which the kernel asks whether the server is still there.
const KEEPALIVE_S: u64 = 30;
/// Connecting, and waiting for another instance that migrates.
const OPEN_S_MAX: u64 = 120;

/// One for each share and one to spare. Few, because every instance has them: 31 of them open 124, and a
/// server takes 151 unless told otherwise.
pub const CONNECTIONS_MAX_DEFAULT: usize = 4;

/// How the ledger uses its server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections this instance opens at most. Work beyond that waits for one to be free.
    pub connections_max: usize,
    /// Those among whom they are shared out: each has one of its own.
    pub shares: Vec<Share>,
    pub connect_ms_max: u64,
    /// How long a transaction may take before its outcome counts as unknown; reads of all orders of
    /// an item may take six times as long.
    pub answer_ms_max: u64,
    /// How long a statement waits for a row somebody else holds (the server counts in seconds).
    pub lock_wait_s_max: u32,
    /// How long the server believes in a session that says nothing. Then it ends the session, and
    /// with it whatever transaction a frozen or lost process left open.
    pub silence_s_max: u32,
    /// Encrypts the connections, if one of them is given.
    pub tls: TlsFiles,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            connections_max: CONNECTIONS_MAX_DEFAULT,
            shares: Share::ALL.to_vec(),
            connect_ms_max: 5_000,
            answer_ms_max: 10_000,
            lock_wait_s_max: 2,
            silence_s_max: 20,
            tls: TlsFiles::default(),
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
    #[error("{place} is {version}: {}", health::OLDEST)]
    TooOld { place: String, version: String },
    /// Not there, not listening, or busy with another instance's migration. It may be there in a moment.
    #[error("{place} cannot be reached: {cause}")]
    Unreachable { place: String, cause: String },
    /// It is there, and has no such user, password or database.
    #[error("{place} refuses us: {cause}: check ledger.url")]
    Refused { place: String, cause: String },
    #[error(
        "{place} cannot be spoken to with TLS: {cause}: check ledger.tls_ca_file, ledger.tls_cert_file, \
         ledger.tls_key_file, and what the server is set to"
    )]
    Tls { place: String, cause: String },
    #[error("{setting}: {} cannot be read: {cause}", path.display())]
    TlsFile { setting: &'static str, path: PathBuf, cause: std::io::Error },
    #[error("ledger.tls_cert_file and ledger.tls_key_file belong together: set both, or neither")]
    HalfAnIdentity,
    #[error("{place} cannot be used as a ledger: {cause}")]
    Other { place: String, cause: String },
}

/// The connections to a server.
struct Mysql {
    pool: Arc<Pool>,
}

#[async_trait]
impl Engine for Mysql {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    /// In a task of its own: half a conversation with a server cannot be taken up by anybody else, and a
    /// buyer who closes the page must not cost a connection.
    async fn run(
        &self,
        access: Access,
        turn: Option<LongTurn>,
        work: Arc<dyn PieceOfWork>,
    ) -> Outcome<()> {
        let ended = |_| Err(Failure::Unknown("the ledger's work ended without an answer".into()));
        let turn: Option<Box<dyn Any>> = turn.map(|turn| turn as _);
        let turn = turn.and_then(|turn| turn.downcast::<permits::LongTurn>().ok());
        tokio::spawn(
            self.pool.work(access, Share::of_this_task(), turn.map(|turn| *turn)).run(work),
        )
        .await
        .unwrap_or_else(ended)
    }

    async fn long_turn(&self) -> Outcome<LongTurn> {
        Ok(Box::new(self.pool.long_turn().await?))
    }

    fn long_turn_now(&self) -> Outcome<LongTurn> {
        Ok(Box::new(self.pool.long_turn_now()?))
    }

    fn check(&self) -> Outcome<()> {
        Ok(())
    }
}

/// Connects and brings the schema up to date. Several instances may do so at once.
pub async fn open(url: &str, clock: SharedClock, options: Options) -> Result<SqlLedger, OpenError> {
    let opts = opts(url, &options.tls)?;
    let place = place_of(&opts);
    let pool = Pool::new(opts, options);
    let preparing = prepare(&pool, &place, clock.now_ms());
    match tokio::time::timeout(Duration::from_secs(OPEN_S_MAX), preparing).await {
        Ok(prepared) => prepared.map(|()| SqlLedger::new(Arc::new(Mysql { pool }), clock)),
        Err(_) => Err(OpenError::Unreachable { place, cause: "no answer".into() }),
    }
}

async fn prepare(pool: &Pool, place: &str, now_ms: Millis) -> Result<(), OpenError> {
    let failed = |failure: Failure| cannot_use(place, failure);
    let permit = pool.permit(Share::Web).await.map_err(failed)?;
    let mut session = pool.session(permit).await.map_err(failed)?;
    let version = health::version(&mut session).await.map_err(failed)?;
    if health::too_old(&version) {
        return Err(OpenError::TooOld { place: place.into(), version });
    }
    let migrated = migrations::migrate(&mut session, now_ms).await.map_err(failed)?;
    migrated.map_err(|found| OpenError::NewerSchema {
        place: place.into(),
        found,
        known: SCHEMA_VERSION,
    })?;
    month::follow(&mut session).await.map_err(failed)?;
    // Not kept: a session that migrated has no limit on its statements any more.
    drop(session);
    Ok(())
}

/// What the server of this ledger is set to, and what of it is not good for a ledger, or for instances
/// with so many connections each.
pub async fn health(
    ledger: &SqlLedger,
    connections_max: usize,
) -> crate::Result<Vec<ServerSetting>> {
    ledger
        .run(Access::Statement, ledger.clock.clone(), move |session, clock| {
            Box::pin(health::settings(session, &**clock, connections_max))
        })
        .await
}

/// Does the server let us make the tables that an archive needs while it runs?
pub async fn archive_tables(ledger: &SqlLedger) -> crate::Result<ServerSetting> {
    ledger.run(Access::Statement, (), |session, ()| Box::pin(health::archive_tables(session))).await
}

/// Does the server answer, and let us in? Nothing is changed there.
pub async fn try_out(url: &str, options: Options) -> Result<(), OpenError> {
    let opts = opts(url, &options.tls)?;
    let place = place_of(&opts);
    let pool = Pool::new(opts, options);
    let asking = async { pool.session(pool.permit(Share::Web).await?).await };
    asking.await.map(drop).map_err(|failure| cannot_use(&place, failure))
}

/// Without user and password.
fn place_of(opts: &Opts) -> String {
    format!("{}:{}/{}", opts.ip_or_hostname(), opts.tcp_port(), opts.db_name().unwrap_or(""))
}

fn opts(url: &str, tls: &TlsFiles) -> Result<Opts, OpenError> {
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
    let builder = tls.secure(builder.client_found_rows(false))?;
    Ok(builder.stmt_cache_size(STATEMENTS_CACHED_MAX).into())
}

fn cannot_use(place: &str, failure: Failure) -> OpenError {
    let place = place.to_owned();
    let (is_refused, is_tls) = (failure.is_refused(), failure.is_tls());
    match LedgerError::from(failure) {
        LedgerError::Unavailable(cause) if is_tls => OpenError::Tls { place, cause },
        LedgerError::Unavailable(cause) if is_refused => OpenError::Refused { place, cause },
        LedgerError::Unavailable(cause) => OpenError::Unreachable { place, cause },
        error => OpenError::Other { place, cause: error.to_string() },
    }
}

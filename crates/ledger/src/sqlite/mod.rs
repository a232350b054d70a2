//! The ledger in one SQLite file: nothing to install, every commit fsynced.
//!
//! All writes go through one thread, all reads through a few connections beside it (see
//! `connections`). The statements are those of [`crate::sql`].

mod connections;
mod failure;
mod migrations;
mod month;
mod session;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use rusqlite::Connection;
use sale::SharedClock;
use sqlite_file::Length;

use self::{
    connections::{Readers, WritableFile, Writer},
    session::{Transaction, now},
};
use crate::{
    VERSION_TRIES_MAX,
    sql::{
        Access, Engine, LongTurn, PieceOfWork, SqlLedger,
        dialect::Dialect,
        failure::{Failure, Fault, Outcome, SqlFailure},
    },
};

pub use connections::BUSY_TIMEOUT_MS;
pub use migrations::SCHEMA_VERSION;
pub use month::is_month_of_archive;

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

/// Opens or creates the file and brings its schema up to date. Blocks; call it at start. The thread that
/// writes ends when the last clone of the ledger is dropped and what it was given is written.
pub fn open(path: &Path, clock: SharedClock) -> Result<SqlLedger, OpenError> {
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
    Ok(SqlLedger::new(Arc::new(Sqlite { writer, readers }), clock))
}

/// The one who writes the file, and those who read it.
struct Sqlite {
    writer: Writer,
    readers: Arc<Readers>,
}

#[async_trait]
impl Engine for Sqlite {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    async fn run(
        &self,
        access: Access,
        _turn: Option<LongTurn>,
        work: Arc<dyn PieceOfWork>,
    ) -> Outcome<()> {
        if access != Access::Write {
            return self.readers.run(move |conn| now(work.begin(conn))).await;
        }
        let one_try = move |conn: &mut Connection| {
            let mut tx = Transaction::write(conn)?;
            now(work.begin(&mut *tx))?;
            tx.commit()
        };
        self.writer.run(move |conn| with_tries(|| one_try(conn))).await
    }

    /// There are readers enough for all who load an item.
    async fn long_turn(&self) -> Outcome<LongTurn> {
        self.long_turn_now()
    }

    fn long_turn_now(&self) -> Outcome<LongTurn> {
        Ok(Box::new(()))
    }

    fn check(&self) -> Outcome<()> {
        self.writer.check()
    }
}

/// Begins work again that met a row it did not expect. Nobody else writes while it is tried, so a unique
/// key that objects to the last try as well objects to the row itself.
fn with_tries(mut one_try: impl FnMut() -> Outcome<()>) -> Outcome<()> {
    for _ in 1..VERSION_TRIES_MAX {
        match one_try() {
            Err(failure) if failure.fault() == Some(Fault::Race) => {}
            outcome => return outcome,
        }
    }
    one_try().map_err(|failure| match failure {
        Failure::Sql(said) if said.fault == Fault::Race => {
            Failure::Sql(SqlFailure { fault: Fault::Row, ..said })
        }
        failure => failure,
    })
}

/// After an I/O error, when nobody has the file open any more.
fn reopen(path: &Path, length: &Length) -> Result<Connection, OpenError> {
    sqlite_file::secure(path).map_err(|error| not_writable(path, &error))?;
    prepare(path, length)
}

fn not_writable(path: &Path, error: &io::Error) -> OpenError {
    OpenError::NotWritable { path: path.to_owned(), cause: error.to_string() }
}

/// A connection to a file of the right schema that can be written.
fn prepare(path: &Path, length: &Length) -> Result<Connection, OpenError> {
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

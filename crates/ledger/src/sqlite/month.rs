//! A month of the archive as a file of its own beside the ledger.
//!
//! It is opened when it is needed and closed again: SQLite can have few files attached to one connection,
//! and a shop has many months. The ledger is attached to it, so that a statement finds there what is in no
//! month, such as items. Its tables are made by the words that made those of the ledger, and follow them
//! when a later schema has more columns or indexes.

use std::{
    fs::OpenOptions,
    io::ErrorKind,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags};

use super::connections::{BUSY_TIMEOUT_MS, PAGE_BYTES};
use crate::sql::{
    Working,
    archive::{Month, Purpose, TABLES},
    dialect::Dialect,
    failure::{Failure, Outcome},
    session::{MonthSession, Row, Rows, Session, Value},
};

/// Not IMMEDIATE: that would want to write the ledger, too, which whoever opens the month may be doing.
const BEGIN: &str = "BEGIN";

/// The name of the file in which a month is, in the directory of the ledger.
fn file_of(ledger: &Path, month: Month) -> PathBuf {
    ledger.with_file_name(format!("archive-{month}.db"))
}

/// Is a file of this name, beside a ledger, a month of its archive?
pub fn is_month_of_archive(name: &str) -> bool {
    let month = name.strip_prefix("archive-").and_then(|rest| rest.strip_suffix(".db"));
    month.is_some_and(|month| {
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        month.split_once('-').is_some_and(|(year, month)| {
            (year.len(), month.len()) == (4, 2) && digits(year) && digits(month)
        })
    })
}

pub(super) struct MonthFile {
    conn: Connection,
    purpose: Purpose,
}

impl MonthFile {
    pub(super) fn open(ledger: &Connection, month: Month, purpose: Purpose) -> Outcome<MonthFile> {
        let ledger = ledger.path().map(PathBuf::from);
        let ledger = ledger.ok_or_else(|| Failure::Broken("the ledger is in no file".into()))?;
        let file = file_of(&ledger, month);
        let opened = open(&ledger, &file, purpose).map_err(|failure| explain(&file, failure))?;
        Ok(MonthFile { conn: opened, purpose })
    }
}

/// A failure of this file is not one of the ledger's: that goes on.
fn explain(file: &Path, failure: Failure) -> Failure {
    let file = file.display();
    match failure {
        Failure::Sql(said) => Failure::Unknown(format!(
            "{file}, a month of the archive, cannot be used: {}",
            said.cause
        )),
        failure => failure,
    }
}

fn open(ledger: &Path, file: &Path, purpose: Purpose) -> Outcome<Connection> {
    if purpose != Purpose::Read {
        secure(file, purpose)?;
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(file, flags)?;
    conn.busy_timeout(Duration::from_millis(BUSY_TIMEOUT_MS))?;
    if purpose == Purpose::Make {
        conn.pragma_update(None, "page_size", PAGE_BYTES)?;
        sqlite_file::use_wal(&conn)?;
    }
    conn.pragma_update(None, "synchronous", "FULL")?;
    // Rows are copied over what an earlier try has left, orders before their payments.
    conn.pragma_update(None, "foreign_keys", false)?;
    let books = ledger.to_str();
    let books = books.ok_or_else(|| Failure::Broken("the ledger's path is no text".into()))?;
    conn.execute("ATTACH ? AS books", [books])?;
    if is_behind(&conn)? {
        follow(&conn)?;
    }
    if purpose == Purpose::Make {
        sqlite_file::sync_names(file).map_err(|error| Failure::Unknown(error.to_string()))?;
    }
    if purpose == Purpose::Read {
        conn.pragma_update(None, "query_only", true)?;
    }
    if purpose == Purpose::Write {
        conn.execute_batch(BEGIN)?;
    }
    Ok(conn)
}

/// What an earlier process may have failed to sync is synced before anything relies on it.
fn secure(file: &Path, purpose: Purpose) -> Outcome<()> {
    let failed = |error: std::io::Error| Failure::Unknown(format!("{}: {error}", file.display()));
    if purpose == Purpose::Make {
        let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
        match new {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
    }
    if sqlite_file::secure_unless_open(file).map_err(failed)? {
        return Ok(());
    }
    Err(Failure::Unknown(format!("{} is being read; it is tried again", file.display())))
}

/// What the ledger's tables have and this file's do not: statements that add it.
fn missing(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statements = Vec::new();
    for table in TABLES {
        let made = "SELECT sql FROM books.sqlite_master AS b
             WHERE tbl_name = ? AND sql IS NOT NULL AND type IN ('table', 'index') AND NOT EXISTS
                 (SELECT 1 FROM main.sqlite_master AS m WHERE m.type = b.type AND m.name = b.name)
             ORDER BY type = 'index', rowid";
        let mut made = conn.prepare(made)?;
        let made = made.query_map([table], |row| row.get::<_, String>(0))?;
        let made = made.collect::<rusqlite::Result<Vec<_>>>()?;
        let is_new = made.iter().any(|sql| sql.starts_with("CREATE TABLE"));
        if !is_new {
            let columns =
                "SELECT name, type, \"notnull\", dflt_value FROM pragma_table_info(?, 'books')
                 WHERE name NOT IN (SELECT name FROM pragma_table_info(?, 'main'))";
            let mut columns = conn.prepare(columns)?;
            let added = columns.query_map([table, table], |row| {
                let (name, kind): (String, String) = (row.get(0)?, row.get(1)?);
                let not_null = if row.get(2)? { " NOT NULL" } else { "" };
                let default: Option<String> = row.get(3)?;
                let default = default.map(|value| format!(" DEFAULT {value}")).unwrap_or_default();
                Ok(format!("ALTER TABLE main.{table} ADD COLUMN {name} {kind}{not_null}{default}"))
            })?;
            statements.extend(added.collect::<rusqlite::Result<Vec<_>>>()?);
        }
        statements.extend(made);
    }
    Ok(statements)
}

fn is_behind(conn: &Connection) -> rusqlite::Result<bool> {
    Ok(!missing(conn)?.is_empty())
}

fn follow(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(BEGIN)?;
    // Somebody may have done it meanwhile.
    for statement in missing(conn)? {
        conn.execute_batch(&statement)?;
    }
    conn.execute_batch("COMMIT")
}

impl Session for MonthFile {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn each<'s>(
        &'s mut self,
        sql: &'s str,
        values: &'s [Value<'_>],
        take: &'s mut (dyn FnMut(&dyn Row) -> Outcome<()> + Send),
    ) -> Working<'s, ()> {
        self.conn.each(sql, values, take)
    }

    fn execute<'s>(&'s mut self, sql: &'s str, values: &'s [Value<'_>]) -> Working<'s, u64> {
        Session::execute(&mut self.conn, sql, values)
    }

    fn insert_rows(
        &mut self,
        into: &str,
        rows: &mut dyn Rows<'_>,
        or_else: &str,
    ) -> Working<'_, ()> {
        self.conn.insert_rows(into, rows, or_else)
    }

    fn inserted_id(&mut self) -> Outcome<i64> {
        self.conn.inserted_id()
    }

    fn month(&mut self, month: Month, _: Purpose) -> Working<'_, Box<dyn MonthSession + '_>> {
        Box::pin(std::future::ready(Err(Failure::Broken(format!("{month} of a month")))))
    }
}

impl MonthSession for MonthFile {
    fn keep(self: Box<Self>) -> Outcome<()> {
        if self.purpose == Purpose::Write {
            self.conn.execute_batch("COMMIT")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_is_known_by_the_name_of_its_file() {
        let ledger = Path::new("data/ledger.db");
        let file = file_of(ledger, Month::from_code(202_611).unwrap());
        assert_eq!(file, Path::new("data/archive-2026-11.db"));
        assert!(is_month_of_archive("archive-2026-11.db"));
        for other in ["archive-2026-11.db-wal", "archive-.db", "archive-2026-1.db", "ledger.db"] {
            assert!(!is_month_of_archive(other), "{other}");
        }
    }
}

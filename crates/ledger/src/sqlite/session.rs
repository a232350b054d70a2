//! A connection to the file as a session in which the shared SQL runs.
//!
//! A statement is over when it returns, on the thread that called it: the futures below are ready when
//! they are made, and [`now`] never waits.

use std::{
    borrow::Cow,
    future::ready,
    ops::{Deref, DerefMut},
    task::{Context, Poll, Waker},
};

use rusqlite::{
    Connection, ToSql, params_from_iter,
    types::{ToSqlOutput, ValueRef},
};

use super::month::MonthFile;
use crate::sql::{
    Working,
    archive::{Month, Purpose},
    dialect::Dialect,
    failure::{Failure, Outcome},
    session::{MonthSession, Row, Rows, Session, Value},
};

/// What has become of work that cannot wait.
pub(super) fn now<T>(mut work: Working<'_, T>) -> Outcome<T> {
    match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(Failure::Broken("work on SQLite waits for something else".into())),
    }
}

impl Row for rusqlite::Row<'_> {
    fn value(&self, column: usize) -> Option<Value<'_>> {
        match self.get_ref(column).ok()? {
            ValueRef::Null => Some(Value::Null),
            ValueRef::Integer(number) => Some(Value::Int(number)),
            ValueRef::Text(text) => Some(Value::Text(Cow::Borrowed(str::from_utf8(text).ok()?))),
            ValueRef::Blob(bytes) => Some(Value::Bytes(bytes)),
            ValueRef::Real(_) => None,
        }
    }

    fn name(&self, column: usize) -> Option<String> {
        self.as_ref().column_name(column).ok().map(str::to_owned)
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Value::Null => ToSqlOutput::Borrowed(ValueRef::Null),
            Value::Int(number) => ToSqlOutput::Borrowed(ValueRef::Integer(*number)),
            Value::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Value::OrderNo(no) => ToSqlOutput::Borrowed(ValueRef::Text(no.as_str().as_bytes())),
            Value::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
            Value::List(values) => ToSqlOutput::from(json_array(values)),
        })
    }
}

/// A list as `json_each` takes it.
fn json_array(values: &[Value<'_>]) -> String {
    let values = values.iter().map(|value| match value {
        Value::Int(number) => serde_json::Value::from(*number),
        Value::Text(text) => serde_json::Value::from(text.as_ref()),
        Value::OrderNo(no) => serde_json::Value::from(no.as_str()),
        Value::Null | Value::Bytes(_) | Value::List(_) => serde_json::Value::Null,
    });
    serde_json::Value::Array(values.collect()).to_string()
}

/// The statement with each `?` that stands for a list as SQLite takes one: any length, one statement.
fn with_lists<'s>(sql: &'s str, values: &[Value<'_>]) -> Cow<'s, str> {
    if !values.iter().any(Value::is_list) {
        return sql.into();
    }
    let mut text = String::with_capacity(sql.len() + 64);
    for (n, part) in sql.split('?').enumerate() {
        if let Some(value) = n.checked_sub(1).and_then(|before| values.get(before)) {
            text.push_str(if value.is_list() { "(SELECT value FROM json_each(?))" } else { "?" });
        }
        text.push_str(part);
    }
    text.into()
}

fn each(
    conn: &Connection,
    sql: &str,
    values: &[Value<'_>],
    take: &mut dyn FnMut(&dyn Row) -> Outcome<()>,
) -> Outcome<()> {
    let mut statement = conn.prepare_cached(&with_lists(sql, values))?;
    let mut rows = statement.query(params_from_iter(values))?;
    while let Some(row) = rows.next()? {
        take(row)?;
    }
    Ok(())
}

fn execute(conn: &Connection, sql: &str, values: &[Value<'_>]) -> Outcome<u64> {
    let mut statement = conn.prepare_cached(&with_lists(sql, values))?;
    Ok(statement.execute(params_from_iter(values))? as u64)
}

fn insert_rows(
    conn: &Connection,
    into: &str,
    rows: &mut dyn Rows<'_>,
    or_else: &str,
) -> Outcome<()> {
    let marks = vec!["?"; rows.width()].join(", ");
    let sql = format!("INSERT INTO {into} VALUES ({marks}) {or_else}");
    let mut statement = conn.prepare_cached(&sql)?;
    while let Some(row) = rows.next() {
        statement.execute(params_from_iter(row))?;
    }
    Ok(())
}

impl Session for Connection {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn each<'s>(
        &'s mut self,
        sql: &'s str,
        values: &'s [Value<'_>],
        take: &'s mut (dyn FnMut(&dyn Row) -> Outcome<()> + Send),
    ) -> Working<'s, ()> {
        Box::pin(ready(each(self, sql, values, take)))
    }

    fn execute<'s>(&'s mut self, sql: &'s str, values: &'s [Value<'_>]) -> Working<'s, u64> {
        Box::pin(ready(execute(self, sql, values)))
    }

    fn insert_rows(
        &mut self,
        into: &str,
        rows: &mut dyn Rows<'_>,
        or_else: &str,
    ) -> Working<'_, ()> {
        Box::pin(ready(insert_rows(self, into, rows, or_else)))
    }

    fn inserted_id(&mut self) -> Outcome<i64> {
        Ok(self.last_insert_rowid())
    }

    fn month(&mut self, month: Month, purpose: Purpose) -> Working<'_, Box<dyn MonthSession + '_>> {
        let opened = MonthFile::open(self, month, purpose);
        Box::pin(ready(opened.map(|file| -> Box<dyn MonthSession> { Box::new(file) })))
    }
}

/// A connection inside a transaction. Dropped without a commit, also by a panic, it rolls back.
pub(super) struct Transaction<'c>(&'c mut Connection);

impl<'c> Transaction<'c> {
    /// Holds the write lock from its first statement, so that what it reads cannot change before it
    /// writes.
    pub(super) fn write(conn: &'c mut Connection) -> Outcome<Transaction<'c>> {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        Ok(Transaction(conn))
    }

    /// Everything it reads is of one instant.
    pub(super) fn read(conn: &'c mut Connection) -> Outcome<Transaction<'c>> {
        conn.execute_batch("BEGIN")?;
        Ok(Transaction(conn))
    }

    pub(super) fn commit(self) -> Outcome<()> {
        // A commit that fails leaves the transaction open; dropping it rolls it back.
        Ok(self.0.execute_batch("COMMIT")?)
    }
}

impl Deref for Transaction<'_> {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        self.0
    }
}

impl DerefMut for Transaction<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        self.0
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.0.is_autocommit() {
            // If it cannot be rolled back, the error that came before has said why.
            let _ = self.0.execute_batch("ROLLBACK");
        }
    }
}

//! A connection to the server as a session in which the shared SQL runs.
//!
//! Statements are prepared and kept by the driver, except those over lists of any length, which are
//! written out (see `text`), and those without values, which need no preparing.

use std::borrow::Cow;

use mysql_async::{Conn, Params, prelude::Queryable};

use super::{connections::Pooled, month::MonthTables, permits::Permit, text};
use crate::sql::{
    Working,
    archive::{Month, Purpose},
    dialect::Dialect,
    failure::{Failure, Outcome},
    session::{MonthSession, Row, Rows, Session, Value},
};

/// The use of a connection by one piece of work. Dropped, it closes the connection; only
/// [`Pool::put_back`](super::connections::Pool::put_back) keeps it for others.
pub(super) struct MysqlSession {
    pub(super) pooled: Pooled,
    /// It was idle before, so it may have died unnoticed.
    pub(super) reused: bool,
    pub(super) permit: Permit,
}

impl MysqlSession {
    fn conn(&mut self) -> Outcome<&mut Conn> {
        self.pooled.conn.as_mut().ok_or_else(|| Failure::Broken("a closed connection".into()))
    }

    pub(super) async fn commit(&mut self) -> Outcome<()> {
        self.conn()?.query_drop("COMMIT").await.map_err(Failure::of_commit)
    }

    /// Statements written out, one after the other. Answers how many rows they changed.
    async fn write_all(&mut self, statements: Vec<String>) -> Outcome<u64> {
        let (conn, mut changed) = (self.conn()?, 0);
        for statement in statements {
            conn.query_drop(statement).await?;
            changed += conn.affected_rows();
        }
        Ok(changed)
    }
}

impl Session for MysqlSession {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn each<'s>(
        &'s mut self,
        sql: &'s str,
        values: &'s [Value<'_>],
        take: &'s mut (dyn FnMut(&dyn Row) -> Outcome<()> + Send),
    ) -> Working<'s, ()> {
        Box::pin(async move {
            let (conn, mut taken) = (self.conn()?, Ok(()));
            // What comes after a row that failed is read from the connection all the same.
            let mut take = |row: mysql_async::Row| {
                if taken.is_ok() {
                    taken = take(&row);
                }
            };
            if is_written_out(values) {
                for statement in written_out(sql, values)? {
                    conn.query_iter(statement).await?.for_each_and_drop(&mut take).await?;
                }
            } else {
                let result = conn.exec_iter(sql, params(values)).await?;
                result.for_each_and_drop(&mut take).await?;
            }
            taken
        })
    }

    fn execute<'s>(&'s mut self, sql: &'s str, values: &'s [Value<'_>]) -> Working<'s, u64> {
        Box::pin(async move {
            if is_written_out(values) {
                return self.write_all(written_out(sql, values)?).await;
            }
            let conn = self.conn()?;
            conn.exec_drop(sql, params(values)).await?;
            Ok(conn.affected_rows())
        })
    }

    fn insert_rows(
        &mut self,
        into: &str,
        rows: &mut dyn Rows<'_>,
        or_else: &str,
    ) -> Working<'_, ()> {
        let statements = text::inserts(into, rows, or_else, self.pooled.statement_bytes_max);
        Box::pin(async move { self.write_all(statements).await.map(drop) })
    }

    fn inserted_id(&mut self) -> Outcome<i64> {
        let id = self.conn()?.last_insert_id().and_then(|id| i64::try_from(id).ok());
        id.ok_or_else(|| Failure::Broken("an insert was given no id".into()))
    }

    fn month(&mut self, month: Month, purpose: Purpose) -> Working<'_, Box<dyn MonthSession + '_>> {
        Box::pin(async move {
            let tables = MonthTables::open(self, month, purpose).await?;
            Ok(Box::new(tables) as Box<dyn MonthSession>)
        })
    }
}

fn is_written_out(values: &[Value<'_>]) -> bool {
    values.is_empty() || values.iter().any(Value::is_list)
}

fn written_out(sql: &str, values: &[Value<'_>]) -> Outcome<Vec<String>> {
    if values.is_empty() { Ok(vec![sql.to_owned()]) } else { text::pieces(sql, values) }
}

fn params(values: &[Value<'_>]) -> Params {
    let values = values.iter().map(|value| match value {
        Value::Int(number) => mysql_async::Value::Int(*number),
        Value::Text(text) => mysql_async::Value::from(text.as_ref()),
        Value::OrderNo(no) => mysql_async::Value::from(no.as_str()),
        Value::Bytes(bytes) => mysql_async::Value::from(*bytes),
        Value::Null | Value::List(_) => mysql_async::Value::NULL,
    });
    Params::Positional(values.collect())
}

impl Row for mysql_async::Row {
    fn value(&self, column: usize) -> Option<Value<'_>> {
        match self.as_ref(column)? {
            mysql_async::Value::NULL => Some(Value::Null),
            mysql_async::Value::Int(number) => Some(Value::Int(*number)),
            mysql_async::Value::UInt(number) => i64::try_from(*number).ok().map(Value::Int),
            mysql_async::Value::Bytes(bytes) => Some(match str::from_utf8(bytes) {
                Ok(text) => Value::Text(Cow::Borrowed(text)),
                Err(_) => Value::Bytes(bytes),
            }),
            _ => None,
        }
    }

    fn name(&self, column: usize) -> Option<String> {
        self.columns_ref().get(column).map(|column| column.name_str().into_owned())
    }
}

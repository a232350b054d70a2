//! Rows as they are, whatever columns they have: copied from the books into a month and back.

use std::borrow::Cow;

use super::super::{
    columns::get,
    dialect::Dialect,
    failure::{Failure, Outcome},
    session::{Row, Rows, Session, Value, values},
};

/// What a month holds, in the order in which it is made.
pub(crate) const TABLES: [&str; 3] = ["tb_seckill_order", "tb_stock_log", "tb_payment"];

/// Why a month is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    /// In one transaction, which counts when it is kept.
    Write,
    /// Make what is missing of it.
    Make,
}

/// The columns of a table of the books.
pub(super) async fn columns(books: &mut dyn Session, table: &str) -> Outcome<Vec<String>> {
    let sql = match books.dialect() {
        Dialect::Sqlite => "SELECT name FROM pragma_table_info(?) ORDER BY cid",
        Dialect::Mysql => {
            "SELECT column_name FROM information_schema.columns
             WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position"
        }
    };
    let columns = books.rows(sql, values![table], |row| get::<String>(row, 0)).await?;
    if columns.is_empty() {
        return Err(Failure::Broken(format!("{table} has no columns")));
    }
    Ok(columns)
}

/// Rows of a table, found by one of its columns.
pub(super) struct Copied {
    table: &'static str,
    columns: Vec<String>,
    rows: Vec<Vec<Value<'static>>>,
}

impl Copied {
    pub(super) async fn read(
        from: &mut dyn Session,
        (table, columns): (&'static str, Vec<String>),
        (key, keys): (&str, &[Value<'static>]),
    ) -> Outcome<Copied> {
        let width = columns.len();
        let sql = format!("SELECT {} FROM {table} WHERE {key} IN ?", columns.join(", "));
        let read = |row: &dyn Row| (0..width).map(|n| owned(row, n)).collect::<Outcome<Vec<_>>>();
        let rows = from.rows(&sql, &[Value::List(keys.to_vec())], read).await?;
        Ok(Copied { table, columns, rows })
    }

    /// Gives all rows this value in a column.
    pub(super) fn with(mut self, column: &str, value: &Value<'static>) -> Copied {
        if let Some(at) = self.columns.iter().position(|name| name == column) {
            for row in &mut self.rows {
                row[at] = value.clone();
            }
        }
        self
    }

    /// In the place of what an earlier try has left under the same keys.
    pub(super) async fn write_over(
        self,
        to: &mut dyn Session,
        (key, keys): (&str, &[Value<'static>]),
    ) -> Outcome<()> {
        let keys = [Value::List(keys.to_vec())];
        // Looked for first: what is moved for the first time is moved without the right to delete in a month.
        let sql = format!("SELECT {key} FROM {} WHERE {key} IN ? LIMIT 1", self.table);
        if to.first(&sql, &keys, |_| Ok(())).await?.is_some() {
            let sql = format!("DELETE FROM {} WHERE {key} IN ?", self.table);
            to.execute(&sql, &keys).await?;
        }
        self.write(to).await
    }

    pub(super) async fn write(self, to: &mut dyn Session) -> Outcome<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let into = format!("{} ({})", self.table, self.columns.join(", "));
        let width = self.columns.len();
        let mut rows = OwnedRows { rest: self.rows.into_iter(), row: Vec::new(), width };
        to.insert_rows(&into, &mut rows, "").await
    }
}

fn owned(row: &dyn Row, column: usize) -> Outcome<Value<'static>> {
    match row.value(column) {
        Some(Value::Null) => Ok(Value::Null),
        Some(Value::Int(number)) => Ok(Value::Int(number)),
        Some(Value::Text(text)) => Ok(Value::Text(Cow::Owned(text.into_owned()))),
        other => Err(Failure::Broken(format!("{:?} holds {other:?}", row.name(column)))),
    }
}

struct OwnedRows {
    rest: std::vec::IntoIter<Vec<Value<'static>>>,
    row: Vec<Value<'static>>,
    width: usize,
}

impl<'v> Rows<'v> for OwnedRows {
    fn next(&mut self) -> Option<&[Value<'v>]> {
        self.row = self.rest.next()?;
        Some(&self.row)
    }

    fn width(&self) -> usize {
        self.width
    }
}

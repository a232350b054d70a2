//! A conversation with a database in which SQL is written once for all engines.
//!
//! A noun's functions talk to a [`Session`], whichever it is. MySQL answers over the network; SQLite is
//! called on a thread of its own, so that its futures are ready when they are made and are never waited
//! for.
//!
//! Two words stand for what the engines write differently at every turn: a [`Value::List`] stands behind
//! `IN ?` and may have any length, and `insert` writes any number of rows.

use std::borrow::Cow;

use sale::{ActivityId, ItemId, OrderNo, OrderNoText, UserId};

use super::{
    Working,
    archive::{Month, Purpose},
    dialect::Dialect,
    failure::Outcome,
};

/// What goes into a statement, and what comes out of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'v> {
    Null,
    Int(i64),
    Text(Cow<'v, str>),
    /// Text, too.
    OrderNo(OrderNoText),
    Bytes(&'v [u8]),
    /// The values behind `IN ?`. MySQL is asked in pieces; several lists of one statement are equally
    /// long and cut at the same places.
    List(Vec<Value<'v>>),
}

/// The values of a statement, in the order of its question marks.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        &[$($crate::sql::session::Value::from($value)),*]
    };
}
pub(crate) use values;

impl<'v> Value<'v> {
    pub(crate) fn list<V: Into<Value<'v>>>(values: impl IntoIterator<Item = V>) -> Value<'v> {
        Value::List(values.into_iter().map(Into::into).collect())
    }

    pub(crate) fn is_list(&self) -> bool {
        matches!(self, Value::List(_))
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Value::Int(number)
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Value::Int(i64::from(number))
    }
}

impl From<bool> for Value<'_> {
    fn from(yes: bool) -> Self {
        Value::Int(i64::from(yes))
    }
}

/// A limit of rows. SQLite would take a negative number for none at all.
impl From<usize> for Value<'_> {
    fn from(limit: usize) -> Self {
        Value::Int(i64::try_from(limit).unwrap_or(i64::MAX))
    }
}

impl<'v> From<&'v str> for Value<'v> {
    fn from(text: &'v str) -> Self {
        Value::Text(Cow::Borrowed(text))
    }
}

impl<'v> From<&'v String> for Value<'v> {
    fn from(text: &'v String) -> Self {
        Value::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Value::Text(Cow::Owned(text))
    }
}

impl<'v> From<&'v [u8]> for Value<'v> {
    fn from(bytes: &'v [u8]) -> Self {
        Value::Bytes(bytes)
    }
}

impl From<OrderNo> for Value<'_> {
    fn from(no: OrderNo) -> Self {
        Value::OrderNo(no.into())
    }
}

impl<'v> From<&'v UserId> for Value<'v> {
    fn from(user: &'v UserId) -> Self {
        user.as_str().into()
    }
}

impl From<ItemId> for Value<'_> {
    fn from(id: ItemId) -> Self {
        Value::Int(id.0)
    }
}

impl From<ActivityId> for Value<'_> {
    fn from(id: ActivityId) -> Self {
        Value::Int(id.0)
    }
}

impl<'v, V: Into<Value<'v>>> From<Option<V>> for Value<'v> {
    fn from(value: Option<V>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

/// A row of an answer.
pub(crate) trait Row {
    /// The value of a column; nothing if there is no such column, or its value is of no kind of ours.
    fn value(&self, column: usize) -> Option<Value<'_>>;

    /// The column's name, for an error that names it.
    fn name(&self, column: usize) -> Option<String>;
}

/// Rows to be written, one after the other.
pub(crate) trait Rows<'v> {
    fn next(&mut self) -> Option<&[Value<'v>]>;
    /// How many values each of them has.
    fn width(&self) -> usize;
}

/// Rows from an iterator.
pub(crate) struct Arrays<I: Iterator> {
    rest: I,
    row: Option<I::Item>,
}

impl<I: Iterator> Arrays<I> {
    pub(crate) fn of(rest: I) -> Arrays<I> {
        Arrays { rest, row: None }
    }
}

impl<'v, const N: usize, I: Iterator<Item = [Value<'v>; N]>> Rows<'v> for Arrays<I> {
    fn next(&mut self) -> Option<&[Value<'v>]> {
        self.row = self.rest.next();
        self.row.as_ref().map(|row| &row[..])
    }

    fn width(&self) -> usize {
        N
    }
}

/// One connection, in use by one piece of work.
pub(crate) trait Session: Send {
    fn dialect(&self) -> Dialect;

    /// Hands each row of a statement's answer to `take`, until that fails.
    fn each<'s>(
        &'s mut self,
        sql: &'s str,
        values: &'s [Value<'_>],
        take: &'s mut (dyn FnMut(&dyn Row) -> Outcome<()> + Send),
    ) -> Working<'s, ()>;

    /// How many rows a statement changed.
    fn execute<'s>(&'s mut self, sql: &'s str, values: &'s [Value<'_>]) -> Working<'s, u64>;

    /// Writes rows, see `insert`. They are all taken before it returns.
    fn insert_rows(
        &mut self,
        into: &str,
        rows: &mut dyn Rows<'_>,
        or_else: &str,
    ) -> Working<'_, ()>;

    /// The id that the last insert was given; the first one if it wrote several rows.
    fn inserted_id(&mut self) -> Outcome<i64>;

    /// A month of the archive, which knows the tables that it holds by the names of the books.
    fn month(&mut self, month: Month, purpose: Purpose) -> Working<'_, Box<dyn MonthSession + '_>>;
}

pub(crate) trait MonthSession: Session {
    /// What was written to it is to stay. Dropped without this, nothing of it is kept.
    fn keep(self: Box<Self>) -> Outcome<()>;
}

impl<'c> dyn Session + 'c {
    /// All rows of a statement.
    pub(crate) fn rows<'s, T: Send + 's>(
        &'s mut self,
        sql: &'s str,
        values: &'s [Value<'_>],
        mut read: impl FnMut(&dyn Row) -> Outcome<T> + Send + 's,
    ) -> Working<'s, Vec<T>> {
        Box::pin(async move {
            let mut found = Vec::new();
            let mut take = |row: &dyn Row| {
                found.push(read(row)?);
                Ok(())
            };
            self.each(sql, values, &mut take).await?;
            Ok(found)
        })
    }

    /// The row of a statement that has one at most.
    pub(crate) fn first<'s, T: Send + 's>(
        &'s mut self,
        sql: &'s str,
        values: &'s [Value<'_>],
        mut read: impl FnMut(&dyn Row) -> Outcome<T> + Send + 's,
    ) -> Working<'s, Option<T>> {
        Box::pin(async move {
            let mut found = None;
            let mut take = |row: &dyn Row| {
                if found.is_none() {
                    found = Some(read(row)?);
                }
                Ok(())
            };
            self.each(sql, values, &mut take).await?;
            Ok(found)
        })
    }

    /// Writes rows `into` a table and its columns, as in `tb_lease (name, holder)`. What follows them,
    /// such as a [`Dialect::keep`], is `or_else`.
    pub(crate) fn insert<'v, const N: usize>(
        &mut self,
        into: &str,
        rows: impl Iterator<Item = [Value<'v>; N]>,
        or_else: &str,
    ) -> Working<'_, ()> {
        self.insert_rows(into, &mut Arrays::of(rows), or_else)
    }
}

//! Statements over many rows, written out as text.
//!
//! A batch of a thousand orders goes to the server in one statement per table, whatever its length;
//! a prepared statement would have to be prepared anew for every length and carry a placeholder per
//! value. Text is quoted by the driver, for sessions whose `sql_mode` was checked to fit.

use std::fmt::Write;

use mysql_async::Value;
use sale::OrderNo;

use super::{connections::Session, failure::Outcome};

/// Rows of one INSERT. A batch of the workers fits in one.
const ROWS_PER_INSERT_MAX: usize = 1_000;
/// Values of one `IN (…)`. MariaDB makes a temporary table of a list of a thousand and more, and
/// MySQL's optimizer gives up looking at ranges when lists grow long.
const VALUES_PER_LIST_MAX: usize = 500;

/// A value of a row.
pub(super) enum Cell<'v> {
    Number(i64),
    Text(&'v str),
    Null,
}

impl From<i64> for Cell<'_> {
    fn from(number: i64) -> Self {
        Cell::Number(number)
    }
}

impl From<u32> for Cell<'_> {
    fn from(number: u32) -> Self {
        Cell::Number(i64::from(number))
    }
}

impl<'v> From<&'v str> for Cell<'v> {
    fn from(text: &'v str) -> Self {
        Cell::Text(text)
    }
}

impl<'v, T: Into<Cell<'v>>> From<Option<T>> for Cell<'v> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Cell::Null, Into::into)
    }
}

/// Text as a literal.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).as_sql(false)
}

/// An INSERT of many rows in the making, cut where it grows too long.
pub(super) struct Insert {
    /// `INSERT INTO … (…) VALUES `
    head: &'static str,
    /// What follows the rows, such as `ON DUPLICATE KEY UPDATE …`.
    tail: &'static str,
    bytes_max: usize,
    /// The last statement is the one still growing.
    statements: Vec<String>,
    rows: usize,
}

impl Insert {
    pub(super) fn new(session: &Session, head: &'static str, tail: &'static str) -> Insert {
        Insert {
            head,
            tail,
            bytes_max: session.statement_bytes_max(),
            statements: Vec::new(),
            rows: 0,
        }
    }

    pub(super) fn row(&mut self, cells: &[Cell<'_>]) {
        let full = self.rows.is_multiple_of(ROWS_PER_INSERT_MAX)
            || self.statements.last().is_none_or(|text| text.len() > self.bytes_max);
        if full {
            self.statements.push(self.head.to_owned());
            self.rows = 0;
        }
        let Some(text) = self.statements.last_mut() else { return };
        text.push(if self.rows == 0 { '(' } else { ',' });
        if self.rows > 0 {
            text.push('(');
        }
        for (n, cell) in cells.iter().enumerate() {
            if n > 0 {
                text.push(',');
            }
            match cell {
                // Writing to a string cannot fail.
                Cell::Number(number) => drop(write!(text, "{number}")),
                Cell::Text(words) => text.push_str(&quoted(words)),
                Cell::Null => text.push_str("NULL"),
            }
        }
        text.push(')');
        self.rows += 1;
    }

    /// Sends what was gathered, which may be nothing.
    pub(super) async fn send(self, session: &mut Session) -> Outcome<()> {
        for mut statement in self.statements {
            statement.push_str(self.tail);
            session.change_by_text(&statement).await?;
        }
        Ok(())
    }
}

/// Lists for `IN`, each `('…','…')` and none empty.
pub(super) fn lists<'v>(values: impl IntoIterator<Item = &'v str>) -> Vec<String> {
    cut_lists(values.into_iter().map(quoted))
}

/// Lists of ids for `IN`.
pub(super) fn id_lists(ids: impl IntoIterator<Item = i64>) -> Vec<String> {
    cut_lists(ids.into_iter().map(|id| id.to_string()))
}

fn cut_lists(literals: impl Iterator<Item = String>) -> Vec<String> {
    let mut lists: Vec<String> = Vec::new();
    for (n, literal) in literals.enumerate() {
        match lists.last_mut() {
            Some(list) if n % VALUES_PER_LIST_MAX != 0 => list.push(','),
            _ => lists.push("(".into()),
        }
        if let Some(list) = lists.last_mut() {
            list.push_str(&literal);
        }
    }
    lists.iter_mut().for_each(|list| list.push(')'));
    lists
}

/// Lists of order numbers for `IN`.
pub(super) fn number_lists(numbers: impl IntoIterator<Item = OrderNo>) -> Vec<String> {
    let texts: Vec<String> = numbers.into_iter().map(|no| no.to_string()).collect();
    lists(texts.iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_a_buyer_calls_himself_gets_out_of_its_quotes() {
        assert_eq!(quoted("o'hara"), r"'o\'hara'");
        assert_eq!(quoted(r"\"), r"'\\'");
        assert_eq!(quoted(r"\' OR 1=1 -- "), r"'\\\' OR 1=1 -- '");
        assert_eq!(quoted("用户"), "'用户'");
    }

    #[test]
    fn long_lists_are_cut() {
        assert!(lists([]).is_empty());
        assert_eq!(lists(["a", "b"]), ["('a','b')"]);
        let many = vec!["x"; VALUES_PER_LIST_MAX + 1];
        let cut = lists(many);
        assert_eq!((cut.len(), cut[1].as_str()), (2, "('x')"));
    }
}

//! Statements over many rows, written out as text.
//!
//! A batch of a thousand orders goes to the server in one statement per table, whatever its length;
//! a prepared statement would have to be prepared anew for every length and carry a placeholder per
//! value. Text is quoted by the driver, for sessions whose `sql_mode` was checked to fit.

use std::{fmt::Write, ops::Range};

use crate::sql::{
    failure::{Failure, Outcome},
    session::{Rows, Value},
};

/// Rows of one INSERT. A batch of the workers fits in one.
const ROWS_PER_INSERT_MAX: usize = 1_000;
/// Values of one `IN (…)`. MariaDB makes a temporary table of a list of a thousand and more, and
/// MySQL's optimizer gives up looking at ranges when lists grow long.
const VALUES_PER_LIST_MAX: usize = 500;

/// Text as a literal.
pub(super) fn quoted(text: &str) -> String {
    mysql_async::Value::from(text).as_sql(false)
}

/// Most texts are ids, in which nothing has to be escaped.
fn push_quoted(text: &mut String, words: &str) {
    if words.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
        text.push('\'');
        text.push_str(words);
        text.push('\'');
    } else {
        text.push_str(&quoted(words));
    }
}

fn push_literal(text: &mut String, value: &Value<'_>) {
    match value {
        Value::Null => text.push_str("NULL"),
        // Writing to a string cannot fail.
        Value::Int(number) => drop(write!(text, "{number}")),
        Value::Text(words) => push_quoted(text, words),
        Value::OrderNo(no) => push_quoted(text, no.as_str()),
        Value::Bytes(bytes) => text.push_str(&mysql_async::Value::from(*bytes).as_sql(false)),
        Value::List(values) => push_list(text, values),
    }
}

fn push_list(text: &mut String, values: &[Value<'_>]) {
    text.push('(');
    for (n, value) in values.iter().enumerate() {
        if n > 0 {
            text.push(',');
        }
        push_literal(text, value);
    }
    text.push(')');
}

/// The INSERTs of these rows, cut where one grows too long; none if there are no rows.
pub(super) fn inserts(
    into: &str,
    rows: &mut dyn Rows<'_>,
    or_else: &str,
    bytes_max: usize,
) -> Vec<String> {
    let mut statements: Vec<String> = Vec::new();
    let mut written = 0;
    while let Some(row) = rows.next() {
        match statements.last_mut() {
            Some(text) if written % ROWS_PER_INSERT_MAX != 0 && text.len() <= bytes_max => {
                text.push(',')
            }
            _ => statements.push(format!("INSERT INTO {into} VALUES ")),
        }
        if let Some(text) = statements.last_mut() {
            push_list(text, row);
        }
        written += 1;
    }
    for text in &mut statements {
        text.push(' ');
        text.push_str(or_else);
    }
    statements
}

/// A statement with a list behind `IN ?`, written out in pieces; none if the list is empty. All lists of
/// a statement are equally long, and a piece has the same part of each.
pub(super) fn pieces(sql: &str, values: &[Value<'_>]) -> Outcome<Vec<String>> {
    let lengths: Vec<usize> = values.iter().filter_map(length).collect();
    let length = lengths.first().copied().unwrap_or_default();
    if lengths.iter().any(|other| *other != length) {
        return Err(Failure::Broken(format!("lists of different lengths in {sql}")));
    }
    let starts = (0..length).step_by(VALUES_PER_LIST_MAX);
    let ranges = starts.map(|start| start..length.min(start + VALUES_PER_LIST_MAX));
    Ok(ranges.map(|range| piece(sql, values, &range)).collect())
}

fn length(value: &Value<'_>) -> Option<usize> {
    match value {
        Value::List(values) => Some(values.len()),
        _ => None,
    }
}

fn piece(sql: &str, values: &[Value<'_>], range: &Range<usize>) -> String {
    let mut text = String::with_capacity(sql.len() + 32 * range.len());
    for (n, part) in sql.split('?').enumerate() {
        match n.checked_sub(1).and_then(|before| values.get(before)) {
            Some(Value::List(values)) => push_list(&mut text, &values[range.clone()]),
            Some(value) => push_literal(&mut text, value),
            None => {}
        }
        text.push_str(part);
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::sql::session::Arrays;

    use super::*;

    #[test]
    fn nothing_a_buyer_calls_himself_gets_out_of_its_quotes() {
        let quoted = |words| {
            let mut text = String::new();
            push_quoted(&mut text, words);
            text
        };
        assert_eq!(quoted("ann-1_B"), "'ann-1_B'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("o'hara"), r"'o\'hara'");
        assert_eq!(quoted(r"\"), r"'\\'");
        assert_eq!(quoted(r"\' OR 1=1 -- "), r"'\\\' OR 1=1 -- '");
        assert_eq!(quoted("用户"), "'用户'");
    }

    #[test]
    fn long_lists_are_cut() {
        let sql = "DELETE FROM t WHERE a = ? AND b IN ? AND c IN ?";
        let asked =
            |n: usize| [7_i64.into(), Value::list(vec!["x"; n]), Value::list(vec![1_i64; n])];
        assert!(pieces(sql, &asked(0)).unwrap().is_empty());
        let two = "DELETE FROM t WHERE a = 7 AND b IN ('x','x') AND c IN (1,1)";
        assert_eq!(pieces(sql, &asked(2)).unwrap(), [two]);
        let cut = pieces(sql, &asked(VALUES_PER_LIST_MAX + 1)).unwrap();
        assert_eq!(cut.len(), 2);
        assert_eq!(cut[1], "DELETE FROM t WHERE a = 7 AND b IN ('x') AND c IN (1)");
        let uneven = [7_i64.into(), Value::list([1_i64]), Value::list(["x", "y"])];
        assert!(pieces(sql, &uneven).is_err());
    }

    #[test]
    fn long_inserts_are_cut() {
        let rows = |n: usize| Arrays::of((0..n).map(|n| [Value::from(n), "x".into(), Value::Null]));
        assert!(inserts("t (a, b, c)", &mut rows(0), "", 100).is_empty());
        let two = "INSERT INTO t (a, b, c) VALUES (0,'x',NULL),(1,'x',NULL) AND SO ON";
        assert_eq!(inserts("t (a, b, c)", &mut rows(2), "AND SO ON", 100), [two]);
        assert_eq!(
            inserts("t (a, b, c)", &mut rows(ROWS_PER_INSERT_MAX + 1), "", usize::MAX).len(),
            2
        );
        assert_eq!(inserts("t (a, b, c)", &mut rows(3), "", 10).len(), 3, "a statement too long");
    }
}

//! Columns to domain words. What cannot be read is an error that names the column, never a guess.

use std::str::FromStr;

use rusqlite::{Error as SqlError, Row, types::Type};
use sale::{Claim, Currency, ItemId, KeyHash, Money, Order, OrderNo, Reason};

fn unreadable(column: usize, kind: Type, what: impl std::fmt::Debug) -> SqlError {
    SqlError::FromSqlConversionFailure(column, kind, format!("{what:?} makes no sense here").into())
}

/// A text column that is one of our words.
pub(super) fn parsed<T: FromStr>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    text.parse().map_err(|_| unreadable(column, Type::Text, text))
}

/// A number column that is the code of a state.
pub(super) fn coded<T>(
    row: &Row<'_>,
    column: usize,
    from_code: impl FnOnce(i64) -> Option<T>,
) -> rusqlite::Result<T> {
    let code: i64 = row.get(column)?;
    from_code(code).ok_or_else(|| unreadable(column, Type::Integer, code))
}

/// Amount in one column, currency in another.
pub(super) fn money(row: &Row<'_>, minor: usize, currency: usize) -> rusqlite::Result<Money> {
    Ok(Money::new(row.get(minor)?, parsed::<Currency>(row, currency)?))
}

/// A JSON column.
pub(super) fn json<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text)
        .map_err(|error| SqlError::FromSqlConversionFailure(column, Type::Text, error.into()))
}

pub(super) fn order(row: &Row<'_>) -> rusqlite::Result<Order> {
    let reason: Option<String> = row.get(10)?;
    Ok(Order {
        order_no: parsed(row, 0)?,
        user: parsed(row, 1)?,
        activity: sale::ActivityId(row.get(2)?),
        item: ItemId(row.get(3)?),
        item_name: row.get(4)?,
        price: money(row, 5, 6)?,
        quantity: row.get(7)?,
        amount: money(row, 8, 6)?,
        status: coded(row, 9, sale::OrderStatus::from_code)?,
        reason: match reason {
            Some(_) => Some(parsed::<Reason>(row, 10)?),
            None => None,
        },
        epoch: row.get::<_, i64>(11)? as u64,
        created_ms: row.get(12)?,
        pay_deadline_ms: row.get(13)?,
        paid_ms: row.get(14)?,
        closed_ms: row.get(15)?,
    })
}

/// The claim an order or a dead letter came from.
pub(super) fn claim(row: &Row<'_>) -> rusqlite::Result<Claim> {
    Ok(Claim {
        order_no: parsed::<OrderNo>(row, 0)?,
        item: ItemId(row.get(1)?),
        user: parsed(row, 2)?,
        quantity: row.get(3)?,
        epoch: row.get::<_, i64>(4)? as u64,
        claimed_ms: row.get(5)?,
        key: row.get::<_, Option<i64>>(6)?.map(|key| KeyHash(key as u64)),
    })
}

/// SQLite keeps signed numbers only; the bits of a hash are kept, not its value.
pub(super) fn key_bits(claim: &Claim) -> Option<i64> {
    claim.key.map(|key| key.0 as i64)
}

/// A row limit as SQLite takes it, where a negative number would mean none at all.
pub(super) fn at_most(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

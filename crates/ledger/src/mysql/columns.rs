//! Columns to domain words. What cannot be read is an error that names the column, never a guess.

use std::str::FromStr;

use mysql_async::{Row, prelude::FromValue};
use sale::{ActivityId, Claim, Currency, ItemId, KeyHash, Money, Order, OrderNo, Reason};

use super::failure::{Failure, Outcome};

fn unreadable(row: &Row, column: usize, what: impl std::fmt::Debug) -> Failure {
    let name = row.columns_ref().get(column).map(|column| column.name_str().into_owned());
    let name = name.unwrap_or_else(|| format!("column {column}"));
    Failure::Broken(format!("{name}: {what:?} makes no sense here"))
}

/// A column as it is.
pub(super) fn get<T: FromValue>(row: &Row, column: usize) -> Outcome<T> {
    match row.get_opt(column) {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => Err(unreadable(row, column, error.0)),
        None => Err(unreadable(row, column, "nothing")),
    }
}

/// A text column that is one of our words.
pub(super) fn parsed<T: FromStr>(row: &Row, column: usize) -> Outcome<T> {
    let text: String = get(row, column)?;
    text.parse().map_err(|_| unreadable(row, column, text))
}

/// A text column that is one of our words, or NULL.
pub(super) fn parsed_or_null<T: FromStr>(row: &Row, column: usize) -> Outcome<Option<T>> {
    match get::<Option<String>>(row, column)? {
        Some(_) => parsed(row, column).map(Some),
        None => Ok(None),
    }
}

/// A number column that is the code of a state.
pub(super) fn coded<T>(
    row: &Row,
    column: usize,
    from_code: impl FnOnce(i64) -> Option<T>,
) -> Outcome<T> {
    let code: i64 = get(row, column)?;
    from_code(code).ok_or_else(|| unreadable(row, column, code))
}

/// Amount in one column, currency in another.
pub(super) fn money(row: &Row, minor: usize, currency: usize) -> Outcome<Money> {
    Ok(Money::new(get(row, minor)?, parsed::<Currency>(row, currency)?))
}

/// A JSON column.
pub(super) fn json<T: serde::de::DeserializeOwned>(row: &Row, column: usize) -> Outcome<T> {
    let text: String = get(row, column)?;
    serde_json::from_str(&text).map_err(|error| unreadable(row, column, error.to_string()))
}

/// Reads [`ORDER_COLUMNS`](crate::columns::ORDER_COLUMNS).
pub(super) fn order(row: &Row) -> Outcome<Order> {
    Ok(Order {
        order_no: parsed(row, 0)?,
        user: parsed(row, 1)?,
        activity: ActivityId(get(row, 2)?),
        item: ItemId(get(row, 3)?),
        item_name: get(row, 4)?,
        price: money(row, 5, 6)?,
        quantity: get(row, 7)?,
        amount: money(row, 8, 6)?,
        status: coded(row, 9, sale::OrderStatus::from_code)?,
        reason: parsed_or_null::<Reason>(row, 10)?,
        epoch: get::<i64>(row, 11)? as u64,
        created_ms: get(row, 12)?,
        pay_deadline_ms: get(row, 13)?,
        paid_ms: get(row, 14)?,
        closed_ms: get(row, 15)?,
    })
}

/// Reads [`CLAIM_COLUMNS`](crate::columns::CLAIM_COLUMNS): the claim an order or a dead letter came
/// from.
pub(super) fn claim(row: &Row) -> Outcome<Claim> {
    Ok(Claim {
        order_no: parsed::<OrderNo>(row, 0)?,
        item: ItemId(get(row, 1)?),
        user: parsed(row, 2)?,
        quantity: get(row, 3)?,
        epoch: get::<i64>(row, 4)? as u64,
        claimed_ms: get(row, 5)?,
        key: get::<Option<i64>>(row, 6)?.map(|key| KeyHash(key as u64)),
    })
}

/// The column is signed; the bits of a hash are kept, not its value.
pub(super) fn key_bits(claim: &Claim) -> Option<i64> {
    claim.key.map(|key| key.0 as i64)
}

/// A row limit as the server takes it.
pub(super) fn at_most(limit: usize) -> u64 {
    u64::try_from(limit).unwrap_or(u64::MAX)
}

//! Columns to domain words. What cannot be read is an error that names the column, never a guess.

use std::{fmt::Debug, str::FromStr};

use sale::{ActivityId, Claim, Currency, ItemId, KeyHash, Money, Order, Reason};

use super::{
    failure::{Failure, Outcome},
    session::{Row, Value},
};

/// The item's words are not copied: once there are orders they cannot change. They are read by a
/// subquery, so that whoever locks an order does not lock the item that many others are for.
pub(super) const ORDER_COLUMNS: &str = "order_no, user_id, activity_id, product_id, product_name, \
     price, currency, quantity, amount, status, close_reason, epoch, created_at, pay_deadline, \
     paid_at, closed_at, (SELECT sku FROM tb_seckill_product AS p WHERE p.id = product_id)";

/// Orders and dead letters both have them.
pub(super) const CLAIM_COLUMNS: &str =
    "order_no, product_id, user_id, quantity, epoch, claimed_at, claim_key";

fn unreadable(row: &dyn Row, column: usize, what: impl Debug) -> Failure {
    let name = row.name(column).unwrap_or_else(|| format!("column {column}"));
    Failure::Broken(format!("{name}: {what:?} makes no sense here"))
}

/// A kind of value that a column may have.
pub(crate) trait FromValue: Sized {
    fn from_value(value: &Value<'_>) -> Option<Self>;
}

impl FromValue for i64 {
    fn from_value(value: &Value<'_>) -> Option<Self> {
        match value {
            Value::Int(number) => Some(*number),
            // MySQL answers a statement that was not prepared in text.
            Value::Text(text) => text.parse().ok(),
            _ => None,
        }
    }
}

impl FromValue for u32 {
    fn from_value(value: &Value<'_>) -> Option<Self> {
        i64::from_value(value)?.try_into().ok()
    }
}

impl FromValue for u64 {
    fn from_value(value: &Value<'_>) -> Option<Self> {
        i64::from_value(value)?.try_into().ok()
    }
}

impl FromValue for bool {
    fn from_value(value: &Value<'_>) -> Option<Self> {
        Some(i64::from_value(value)? != 0)
    }
}

impl FromValue for String {
    fn from_value(value: &Value<'_>) -> Option<Self> {
        match value {
            Value::Text(text) => Some(text.as_ref().into()),
            _ => None,
        }
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: &Value<'_>) -> Option<Self> {
        match value {
            Value::Null => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

/// A column as it is.
pub(crate) fn get<T: FromValue>(row: &dyn Row, column: usize) -> Outcome<T> {
    let value = row.value(column).ok_or_else(|| unreadable(row, column, "nothing"))?;
    T::from_value(&value).ok_or_else(|| unreadable(row, column, value))
}

/// A text column that is one of our words, or NULL.
pub(super) fn parsed_or_null<T: FromStr>(row: &dyn Row, column: usize) -> Outcome<Option<T>> {
    match row.value(column) {
        Some(Value::Null) => Ok(None),
        Some(Value::Text(text)) => match text.parse() {
            Ok(word) => Ok(Some(word)),
            Err(_) => Err(unreadable(row, column, text)),
        },
        other => Err(unreadable(row, column, other)),
    }
}

/// A text column that is one of our words.
pub(super) fn parsed<T: FromStr>(row: &dyn Row, column: usize) -> Outcome<T> {
    parsed_or_null(row, column)?.ok_or_else(|| unreadable(row, column, Value::Null))
}

/// A number column that is the code of a state.
pub(super) fn coded<T>(
    row: &dyn Row,
    column: usize,
    from_code: impl FnOnce(i64) -> Option<T>,
) -> Outcome<T> {
    let code: i64 = get(row, column)?;
    from_code(code).ok_or_else(|| unreadable(row, column, code))
}

/// Amount in one column, currency in another.
pub(super) fn money(row: &dyn Row, minor: usize, currency: usize) -> Outcome<Money> {
    Ok(Money::new(get(row, minor)?, parsed::<Currency>(row, currency)?))
}

/// A JSON column.
pub(super) fn json<T: serde::de::DeserializeOwned>(row: &dyn Row, column: usize) -> Outcome<T> {
    let text: String = get(row, column)?;
    serde_json::from_str(&text).map_err(|error| unreadable(row, column, error.to_string()))
}

/// The same, or NULL.
pub(super) fn json_or_null<T: serde::de::DeserializeOwned>(
    row: &dyn Row,
    column: usize,
) -> Outcome<Option<T>> {
    match row.value(column) {
        Some(Value::Null) => Ok(None),
        _ => json(row, column).map(Some),
    }
}

/// Reads [`ORDER_COLUMNS`].
pub(super) fn order(row: &dyn Row) -> Outcome<Order> {
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
        sku: get(row, 16)?,
    })
}

/// Reads [`CLAIM_COLUMNS`]: the claim that an order or a dead letter came from.
pub(super) fn claim(row: &dyn Row) -> Outcome<Claim> {
    Ok(Claim {
        order_no: parsed(row, 0)?,
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

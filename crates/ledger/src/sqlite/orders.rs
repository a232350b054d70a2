//! Orders: found, listed, closed, and written (live or void) from claims.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use sale::{
    Claim, CloseReason, ItemId, Millis, Order, OrderNo, OrderStatus, Reason, UserId, VoidReason,
};

use super::{
    columns::{at_most, coded, key_bits, money, order, parsed},
    dead_letters,
    failure::{Failure, Outcome},
    outbox, stock,
};
use crate::{
    Closing, DeadLetterState, OrderCount, OrderFilter, OrderNos, Overdue, PaymentKind, Release,
    StatusCount,
    columns::ORDER_COLUMNS,
    shelf::{Entry, Shelf, Terms},
    verdict::Owner,
};

/// What a new order copies from its item.
pub(super) fn shelf(tx: &Connection, item: ItemId) -> Outcome<Option<Shelf>> {
    let read = |row: &Row<'_>| {
        Ok(Shelf {
            activity_id: row.get(0)?,
            name: row.get(1)?,
            price: money(row, 2, 3)?,
            stock: row.get(4)?,
            version: row.get(5)?,
            pay_within_ms: row.get(6)?,
            limit_per_user: row.get(7)?,
        })
    };
    Ok(tx
        .prepare_cached(
            "SELECT p.activity_id, p.name, p.price, p.currency, p.stock, p.version,
                 a.pay_within_ms, p.limit_per_user
             FROM tb_seckill_product p JOIN tb_seckill_activity a ON a.id = p.activity_id
             WHERE p.id = ?1",
        )?
        .query_row([item.0], read)
        .optional()?)
}

const INSERT: &str = "INSERT INTO tb_seckill_order (order_no, user_id, activity_id, product_id, \
     product_name, price, currency, quantity, amount, status, close_reason, epoch, claim_key, \
     claimed_at, pay_deadline, created_at, closed_at) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";

/// Writes one order per claim.
pub(super) fn insert<'c>(
    tx: &Connection,
    shelf: &Shelf,
    entries: impl Iterator<Item = (&'c Claim, Entry)>,
    now_ms: Millis,
) -> Outcome<()> {
    let mut statement = tx.prepare_cached(INSERT)?;
    for (claim, entry) in entries {
        let terms = Terms::of(shelf, claim, &entry, now_ms).map_err(Failure::Rejected)?;
        statement.execute(params![
            claim.order_no.to_string(),
            claim.user.as_str(),
            shelf.activity_id,
            claim.item.0,
            shelf.name,
            shelf.price.minor,
            shelf.price.currency.as_str(),
            claim.quantity,
            terms.amount,
            terms.status.code(),
            terms.reason,
            claim.epoch as i64,
            key_bits(claim),
            claim.claimed_ms,
            terms.deadline_ms,
            now_ms,
            terms.closed_ms
        ])?;
    }
    Ok(())
}

pub(super) fn one(conn: &Connection, no: OrderNo) -> Outcome<Option<Order>> {
    let sql = format!("SELECT {ORDER_COLUMNS} FROM tb_seckill_order WHERE order_no = ?1");
    Ok(conn.prepare_cached(&sql)?.query_row([no.to_string()], order).optional()?)
}

pub(super) fn by_no(conn: &Connection, numbers: &[OrderNo]) -> Outcome<Vec<Order>> {
    let sql = format!(
        "SELECT {ORDER_COLUMNS} FROM tb_seckill_order
         WHERE order_no IN (SELECT value FROM json_each(?1))"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map([serde_json::to_string(numbers)?], order)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The one way an order changes its status. False if it was no longer `from`.
pub(super) fn move_status(
    tx: &Connection,
    no: OrderNo,
    from: OrderStatus,
    to: OrderStatus,
) -> Outcome<bool> {
    from.may_become(to).map_err(|illegal| Failure::Broken(illegal.to_string()))?;
    let moved = tx
        .prepare_cached(
            "UPDATE tb_seckill_order SET status = ?1 WHERE order_no = ?2 AND status = ?3",
        )?
        .execute(params![to.code(), no.to_string(), from.code()])?;
    Ok(moved == 1)
}

pub(super) fn list(conn: &Connection, filter: &OrderFilter) -> Outcome<Vec<Order>> {
    let number = |no: Option<OrderNo>| no.map(|no| no.to_string());
    let user = filter.user.as_ref().map(UserId::as_str);
    let (activity, item) = (filter.activity.map(|id| id.0), filter.item.map(|id| id.0));
    let status = filter.status.map(OrderStatus::code);
    let (order_no, before) = (number(filter.order_no), number(filter.before));
    let after_paid = match filter.before {
        Some(no) if filter.by_payment() => {
            let paid_ms = one(conn, no)?.and_then(|order| order.paid_ms);
            Some(OrderFilter::page_after_paid(paid_ms).map_err(Failure::Refused)?)
        }
        _ => None,
    };
    let paid_below_ms = filter.paid_below_ms(after_paid);
    // Of those that were paid at the same time, the ones before it by their numbers.
    let page = match after_paid {
        Some(_) => "(paid_at < ? OR order_no < ?)",
        None => "order_no < ?",
    };
    let asked: [(&str, Option<&dyn ToSql>); 9] = [
        ("order_no = ?", order_no.as_ref().map(|value| value as _)),
        ("user_id = ?", user.as_ref().map(|value| value as _)),
        ("activity_id = ?", activity.as_ref().map(|value| value as _)),
        ("product_id = ?", item.as_ref().map(|value| value as _)),
        ("status = ?", status.as_ref().map(|value| value as _)),
        ("created_at >= ?", filter.from_ms.as_ref().map(|value| value as _)),
        ("created_at < ?", filter.to_ms.as_ref().map(|value| value as _)),
        ("paid_at >= ?", filter.paid_from_ms.as_ref().map(|value| value as _)),
        ("paid_at < ?", paid_below_ms.as_ref().map(|value| value as _)),
    ];
    let (mut conditions, mut values) = (String::from("1"), Vec::new());
    for (condition, value) in asked {
        if let Some(value) = value {
            conditions.push_str(" AND ");
            conditions.push_str(condition);
            values.push(value);
        }
    }
    if let Some(before) = &before {
        conditions.push_str(" AND ");
        conditions.push_str(page);
        values.extend(after_paid.as_ref().map(|paid_ms| paid_ms as &dyn ToSql));
        values.push(before);
    }
    let limit = at_most(filter.limit);
    values.push(&limit);
    let sequence =
        if filter.by_payment() { "paid_at DESC, order_no DESC" } else { "order_no DESC" };
    let sql = format!(
        "SELECT {ORDER_COLUMNS} FROM tb_seckill_order WHERE {conditions}
         ORDER BY {sequence} LIMIT ?"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(values.as_slice(), order)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn count(
    conn: &Connection,
    item: ItemId,
    after: Option<OrderNo>,
    limit: usize,
) -> Outcome<OrderCount> {
    let mut statement = conn.prepare_cached(
        "SELECT status, COUNT(*), SUM(quantity), SUM(amount), MAX(order_no) FROM (
             SELECT status, quantity, amount, order_no FROM tb_seckill_order
             WHERE product_id = ?1 AND order_no > ?2 ORDER BY order_no LIMIT ?3)
         GROUP BY status",
    )?;
    let after = after.map(|no| no.to_string()).unwrap_or_default();
    let rows = statement.query_map(params![item.0, after, at_most(limit)], |row| {
        let count = StatusCount {
            orders: row.get::<_, i64>(1)? as u64,
            units: row.get(2)?,
            amount: row.get(3)?,
        };
        Ok((coded(row, 0, OrderStatus::from_code)?, count, parsed(row, 4)?))
    })?;
    Ok(OrderCount::of(rows.collect::<rusqlite::Result<_>>()?, limit))
}

pub(super) fn overdue(conn: &Connection, now_ms: Millis, limit: usize) -> Outcome<Vec<Overdue>> {
    let sql = format!(
        "SELECT {ORDER_COLUMNS} FROM tb_seckill_order
         WHERE status = ?1 AND pay_deadline <= ?2 ORDER BY pay_deadline, order_no LIMIT ?3"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let asked = params![OrderStatus::Unpaid.code(), now_ms, at_most(limit)];
    let rows = statement.query_map(asked, order)?;
    rows.map(|order| {
        let order = order?;
        Ok(Overdue { providers: providers_of(conn, order.order_no)?, order })
    })
    .collect()
}

/// Where payments were opened for an order.
fn providers_of(conn: &Connection, no: OrderNo) -> Outcome<Vec<String>> {
    let mut statement = conn.prepare_cached(
        "SELECT provider FROM tb_payment WHERE order_no = ?1 AND kind = ?2 ORDER BY id",
    )?;
    let asked = params![no.to_string(), PaymentKind::Open.code()];
    let rows = statement.query_map(asked, |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn close(
    tx: &Connection,
    orders: &[Closing],
    reason: CloseReason,
    now_ms: Millis,
) -> Outcome<Vec<OrderNo>> {
    let mut releases = Vec::new();
    for closing in orders {
        if closing.covers(&providers_of(tx, closing.order_no)?) {
            releases.extend(close_one(tx, closing.order_no, reason, now_ms)?);
        }
    }
    let closed: Vec<OrderNo> = releases.iter().map(|release| release.order_no).collect();
    let news = releases.iter().map(|release| (release.order_no, release.user.clone())).collect();
    stock::return_units(tx, releases, now_ms)?;
    outbox::push_news(tx, news, now_ms)?;
    Ok(closed)
}

/// Moves one order to closed if it is still unpaid (and, for a time-out, really due). Answers the
/// units it owned.
fn close_one(
    tx: &Connection,
    no: OrderNo,
    reason: CloseReason,
    now_ms: Millis,
) -> Outcome<Option<Release>> {
    let due_by = match reason {
        CloseReason::Timeout => now_ms,
        CloseReason::Cancelled => Millis::MAX,
    };
    let release = |row: &Row<'_>| {
        Ok(Release {
            item: ItemId(row.get(0)?),
            user: parsed(row, 1)?,
            order_no: no,
            quantity: row.get(2)?,
        })
    };
    Ok(tx
        .prepare_cached(
            "UPDATE tb_seckill_order SET status = ?1, close_reason = ?2, closed_at = ?3
             WHERE order_no = ?4 AND status = ?5 AND pay_deadline <= ?6
             RETURNING product_id, user_id, quantity",
        )?
        .query_row(
            params![
                OrderStatus::Closed.code(),
                Reason::from(reason).as_str(),
                now_ms,
                no.to_string(),
                OrderStatus::Unpaid.code(),
                due_by
            ],
            release,
        )
        .optional()?)
}

pub(super) fn void(
    tx: &Connection,
    claims: &[Claim],
    reason: VoidReason,
    now_ms: Millis,
) -> Outcome<Vec<OrderNo>> {
    let (mut voided, mut given_up): (Vec<&Claim>, Vec<&Claim>) = (Vec::new(), Vec::new());
    for claim in claims {
        // What is an order (or void) already is resolved by that, not by this call.
        if let Some(owner) = owners(tx, &[claim.order_no])?.get(&claim.order_no) {
            dead_letters::resolve(tx, [claim.order_no], DeadLetterState::Settled, now_ms)?;
            if !owner.is_of(claim) && dead_letters::give_up(tx, claim, now_ms)? {
                given_up.push(claim);
            }
            continue;
        }
        let found = shelf(tx, claim.item)?;
        let shelf = found.map_or_else(Shelf::empty, Ok).map_err(Failure::Broken)?;
        insert(tx, &shelf, std::iter::once((claim, Entry::Void(reason))), now_ms)?;
        voided.push(claim);
    }
    let numbers: Vec<OrderNo> = voided.iter().map(|claim| claim.order_no).collect();
    dead_letters::resolve(tx, numbers, DeadLetterState::Voided, now_ms)?;
    voided.extend(given_up);
    let numbers = voided.iter().map(|claim| claim.order_no).collect();
    outbox::push_releases(tx, voided.iter().copied(), now_ms)?;
    let news = voided.iter().map(|claim| (claim.order_no, claim.user.clone())).collect();
    outbox::push_news(tx, news, now_ms)?;
    Ok(numbers)
}

/// Whose those of these numbers are that are orders (or void) already.
pub(super) fn owners(conn: &Connection, numbers: &[OrderNo]) -> Outcome<HashMap<OrderNo, Owner>> {
    let mut statement = conn.prepare_cached(
        "SELECT o.order_no, o.product_id, o.user_id FROM json_each(?1) AS asked
         CROSS JOIN tb_seckill_order AS o ON o.order_no = asked.value",
    )?;
    let rows = statement.query_map([serde_json::to_string(numbers)?], |row| {
        Ok((parsed(row, 0)?, Owner { item: ItemId(row.get(1)?), user: row.get(2)? }))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Which of these are orders (or void) already. The list may hold a hundred thousand.
pub(super) fn settled_among(conn: &Connection, orders: &[OrderNo]) -> Outcome<OrderNos> {
    let mut statement = conn.prepare_cached(
        "SELECT o.order_no FROM json_each(?1) AS asked
         CROSS JOIN tb_seckill_order AS o ON o.order_no = asked.value",
    )?;
    let rows = statement.query_map([serde_json::to_string(orders)?], |row| parsed(row, 0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The largest number the ledger has seen, whatever it numbers: orders, adjustments, failed claims.
pub(super) fn last_no(conn: &Connection) -> Outcome<Option<OrderNo>> {
    let read = |row: &Row<'_>| match row.get::<_, Option<String>>(0)? {
        Some(_) => parsed(row, 0).map(Some),
        None => Ok(None),
    };
    Ok(conn
        .prepare_cached(
            "SELECT MAX(order_no) FROM (
                 SELECT MAX(order_no) AS order_no FROM tb_seckill_order
                 UNION ALL SELECT MAX(order_no) FROM tb_stock_log
                 UNION ALL SELECT MAX(order_no) FROM tb_dead_letter)",
        )?
        .query_row([], read)?)
}

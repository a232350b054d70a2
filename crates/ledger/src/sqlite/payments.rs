//! Money: opened, credited once, given back once.
//!
//! Three rules keep it so, each held by a unique index as well as by the code:
//!
//! - A payment is `(provider, provider_txn)`. It is credited once and refunded once; what the
//!   provider says again changes nothing.
//! - The first payment of an order is the one that pays it. Every other one is owed back at once,
//!   and the first too as soon as the order is anything but paid.
//! - A refund is asked for by an outbox row, at most one per payment at a time. It is on record only
//!   when the provider has done it.

use rusqlite::{Connection, OptionalExtension, Row, params};
use sale::{Invalid, Millis, Order, OrderNo, OrderStatus};

use super::{
    columns::{at_most, coded, money, parsed},
    failure::{Failure, Outcome},
    operators,
    orders::{self, move_status},
    outbox, stock,
};
use crate::{
    AuditEntry, Credit, Moved, OpenPayment, OutboxMessage, PaymentKind, PaymentNotice,
    PaymentProblem, PaymentRow, RefundDone, Release,
    columns::{NOT_REFUNDED, OPEN_PAYMENT, OPEN_PAYMENT_COLUMNS, OWED, PAYMENT_COLUMNS},
};

fn read(row: &Row<'_>) -> rusqlite::Result<PaymentRow> {
    Ok(PaymentRow {
        provider: row.get(0)?,
        provider_txn: row.get(1)?,
        order_no: parsed(row, 2)?,
        kind: coded(row, 3, PaymentKind::from_code)?,
        amount: money(row, 4, 5)?,
        created_ms: row.get(6)?,
    })
}

/// Writes a row unless this payment has one of this kind. Answers whether it wrote.
fn insert(tx: &Connection, row: &PaymentRow, paid_ms: Option<Millis>) -> Outcome<bool> {
    let written = tx
        .prepare_cached(
            "INSERT INTO tb_payment
                 (provider, provider_txn, order_no, kind, amount, currency, created_at, paid_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (provider, provider_txn, kind) DO NOTHING",
        )?
        .execute(params![
            row.provider,
            row.provider_txn,
            row.order_no.to_string(),
            row.kind.code(),
            row.amount.minor,
            row.amount.currency.as_str(),
            row.created_ms,
            paid_ms
        ])?;
    Ok(written == 1)
}

fn find(
    conn: &Connection,
    provider: &str,
    provider_txn: &str,
    kind: PaymentKind,
) -> Outcome<Option<PaymentRow>> {
    let sql = format!(
        "SELECT {PAYMENT_COLUMNS} FROM tb_payment
         WHERE provider = ?1 AND provider_txn = ?2 AND kind = ?3"
    );
    let asked = params![provider, provider_txn, kind.code()];
    Ok(conn.prepare_cached(&sql)?.query_row(asked, read).optional()?)
}

pub(super) fn of_order(conn: &Connection, no: OrderNo) -> Outcome<Vec<PaymentRow>> {
    let sql = format!("SELECT {PAYMENT_COLUMNS} FROM tb_payment WHERE order_no = ?1 ORDER BY id");
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map([no.to_string()], read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn received(conn: &Connection, orders: &[OrderNo]) -> Outcome<Vec<PaymentRow>> {
    let sql = format!(
        "SELECT {PAYMENT_COLUMNS} FROM tb_payment
         WHERE order_no IN (SELECT value FROM json_each(?1)) AND kind = ?2 ORDER BY id"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let asked = params![serde_json::to_string(orders)?, PaymentKind::Pay.code()];
    let rows = statement.query_map(asked, read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn open(
    tx: &Connection,
    no: OrderNo,
    provider: &str,
    now_ms: Millis,
) -> Outcome<Moved<OrderStatus>> {
    let order = orders::one(tx, no)?.ok_or(Failure::NotFound)?;
    if order.status != OrderStatus::Unpaid {
        return Ok(Moved::Was(order.status));
    }
    let row = PaymentRow {
        provider: provider.into(),
        provider_txn: no.to_string(),
        order_no: no,
        kind: PaymentKind::Open,
        amount: order.amount,
        created_ms: now_ms,
    };
    insert(tx, &row, None)?;
    Ok(Moved::Done)
}

pub(super) fn credit(tx: &Connection, notice: &PaymentNotice, now_ms: Millis) -> Outcome<Credit> {
    if let Some(known) = find(tx, &notice.provider, &notice.provider_txn, PaymentKind::Pay)? {
        let same = (known.order_no, known.amount) == (notice.order_no, notice.amount);
        return Ok(if same { Credit::Repeated } else { Credit::Mismatch });
    }
    let Some(order) = orders::one(tx, notice.order_no)? else {
        return Ok(Credit::UnknownOrder);
    };
    if order.amount != notice.amount {
        return Ok(Credit::Mismatch);
    }
    let row = PaymentRow {
        provider: notice.provider.clone(),
        provider_txn: notice.provider_txn.clone(),
        order_no: notice.order_no,
        kind: PaymentKind::Pay,
        amount: notice.amount,
        created_ms: now_ms,
    };
    insert(tx, &row, Some(notice.paid_ms))?;
    answered(tx, notice, now_ms)?;
    match order.status {
        OrderStatus::Unpaid => pay(tx, &order, notice.paid_ms, now_ms),
        status => {
            give_back(tx, &order, &row, now_ms)?;
            Ok(Credit::Refunding(status))
        }
    }
}

/// The first money of an unpaid order.
fn pay(tx: &Connection, order: &Order, paid_ms: Millis, now_ms: Millis) -> Outcome<Credit> {
    move_or_contended(tx, order, OrderStatus::Paid)?;
    tx.prepare_cached("UPDATE tb_seckill_order SET paid_at = ?1 WHERE order_no = ?2")?
        .execute(params![paid_ms, order.order_no.to_string()])?;
    outbox::push_news(tx, vec![(order.order_no, order.user.clone())], now_ms)?;
    Ok(Credit::Paid)
}

/// Money nobody may keep: the order was over, or this is not its first payment.
fn give_back(tx: &Connection, order: &Order, row: &PaymentRow, now_ms: Millis) -> Outcome<()> {
    if order.status == OrderStatus::Closed {
        move_or_contended(tx, order, OrderStatus::Refunding)?;
        outbox::push_news(tx, vec![(order.order_no, order.user.clone())], now_ms)?;
    }
    queue_refund(tx, row, now_ms)?;
    Ok(())
}

/// The transaction holds the write lock, so the status cannot have moved since it was read; if it
/// did all the same, nothing is committed and the provider will tell us again.
fn move_or_contended(tx: &Connection, order: &Order, to: OrderStatus) -> Outcome<()> {
    let moved = move_status(tx, order.order_no, order.status, to)?;
    if moved { Ok(()) } else { Err(Failure::Contended) }
}

/// False if a refund of this payment waits already.
fn queue_refund(tx: &Connection, payment: &PaymentRow, now_ms: Millis) -> Outcome<bool> {
    let message = OutboxMessage::Refund {
        provider: payment.provider.clone(),
        provider_txn: payment.provider_txn.clone(),
        order_no: payment.order_no,
        amount: payment.amount,
    };
    outbox::push(tx, &message, now_ms)
}

/// Payments of an order that were not given back.
fn unrefunded(conn: &Connection, no: OrderNo) -> Outcome<Vec<PaymentRow>> {
    let sql = format!(
        "SELECT {PAYMENT_COLUMNS} FROM tb_payment AS p
         WHERE order_no = ?1 AND kind = 1 AND {NOT_REFUNDED} ORDER BY id"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map([no.to_string()], read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn start_refund(
    tx: &Connection,
    no: OrderNo,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<Moved<OrderStatus>> {
    let order = orders::one(tx, no)?.ok_or(Failure::NotFound)?;
    if matches!(order.status, OrderStatus::Refunding | OrderStatus::Refunded) {
        operators::audit(tx, &audit.with("repeated", true), now_ms)?;
    }
    if order.status != OrderStatus::Paid {
        return Ok(Moved::Was(order.status));
    }
    operators::audit(tx, audit, now_ms)?;
    let owed = unrefunded(tx, no)?;
    if owed.is_empty() {
        let problem = "no money is on record that could be given back";
        return Err(Failure::Refused(Invalid::new("order_no", problem)));
    }
    move_or_contended(tx, &order, OrderStatus::Refunding)?;
    for payment in &owed {
        queue_refund(tx, payment, now_ms)?;
    }
    let release = Release {
        item: order.item,
        user: order.user.clone(),
        order_no: no,
        quantity: order.quantity,
    };
    stock::return_units(tx, vec![release], now_ms)?;
    outbox::push_news(tx, vec![(no, order.user)], now_ms)?;
    Ok(Moved::Done)
}

pub(super) fn refunded(tx: &Connection, done: &RefundDone, now_ms: Millis) -> Outcome<()> {
    let paid =
        find(tx, &done.provider, &done.provider_txn, PaymentKind::Pay)?.ok_or(Failure::NotFound)?;
    paid.check_refund(done).map_err(Failure::Refused)?;
    insert(tx, &PaymentRow { kind: PaymentKind::Refund, created_ms: now_ms, ..paid }, None)?;
    let order = orders::one(tx, done.order_no)?.ok_or(Failure::NotFound)?;
    if order.status == OrderStatus::Refunding && unrefunded(tx, order.order_no)?.is_empty() {
        move_or_contended(tx, &order, OrderStatus::Refunded)?;
        outbox::push_news(tx, vec![(order.order_no, order.user)], now_ms)?;
    }
    Ok(())
}

pub(super) fn requeue_refund(
    tx: &Connection,
    provider: &str,
    provider_txn: &str,
    now_ms: Millis,
) -> Outcome<bool> {
    let sql = format!(
        "SELECT p.provider, p.provider_txn, p.order_no, p.kind, p.amount, p.currency, p.created_at
         FROM tb_payment AS p JOIN tb_seckill_order AS o ON o.order_no = p.order_no
         WHERE p.provider = ?1 AND p.provider_txn = ?2 AND {OWED} AND {NOT_REFUNDED}"
    );
    let owed = tx.prepare_cached(&sql)?.query_row([provider, provider_txn], read).optional()?;
    owed.map_or(Ok(false), |payment| queue_refund(tx, &payment, now_ms))
}

pub(super) fn still_open(
    conn: &Connection,
    after_id: i64,
    limit: usize,
) -> Outcome<Vec<OpenPayment>> {
    let sql = format!(
        "SELECT {OPEN_PAYMENT_COLUMNS}
         FROM tb_payment AS p JOIN tb_seckill_order AS o ON o.order_no = p.order_no
         WHERE {OPEN_PAYMENT} AND p.id > ?1 ORDER BY p.id LIMIT ?2"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(params![after_id, at_most(limit)], |row| {
        Ok(OpenPayment {
            id: row.get(0)?,
            order_no: parsed(row, 1)?,
            provider: row.get(2)?,
            opened_ms: row.get(3)?,
            order_over_ms: row.get(4)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn over(tx: &Connection, ids: &[i64], now_ms: Millis) -> Outcome<()> {
    let mut end = tx.prepare_cached(
        "UPDATE tb_payment SET over_at = ?1 WHERE id = ?2 AND kind = 0 AND over_at IS NULL",
    )?;
    for id in ids {
        end.execute(params![now_ms, id])?;
    }
    Ok(())
}

/// The provider has told of the money it was opened for.
fn answered(tx: &Connection, notice: &PaymentNotice, now_ms: Millis) -> Outcome<()> {
    tx.prepare_cached(
        "UPDATE tb_payment SET over_at = ?1
         WHERE order_no = ?2 AND provider = ?3 AND kind = 0 AND over_at IS NULL",
    )?
    .execute(params![now_ms, notice.order_no.to_string(), notice.provider])?;
    Ok(())
}

pub(super) fn problems(conn: &Connection, limit: usize) -> Outcome<Vec<PaymentProblem>> {
    let mut problems = paid_without_money(conn, limit)?;
    problems.extend(refunds_not_queued(conn, limit)?);
    problems.extend(refunded_too_much(conn, limit)?);
    Ok(problems)
}

fn paid_without_money(conn: &Connection, limit: usize) -> Outcome<Vec<PaymentProblem>> {
    let sql = format!(
        "SELECT order_no FROM tb_seckill_order AS o
         WHERE status = ?1 AND NOT EXISTS (SELECT 1 FROM tb_payment AS p
             WHERE p.order_no = o.order_no AND p.kind = 1 AND {NOT_REFUNDED})
         ORDER BY order_no LIMIT ?2"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(params![OrderStatus::Paid.code(), at_most(limit)], |row| {
        Ok(PaymentProblem::PaidWithoutMoney { order_no: parsed(row, 0)? })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn refunds_not_queued(conn: &Connection, limit: usize) -> Outcome<Vec<PaymentProblem>> {
    let sql = format!(
        "SELECT p.order_no, p.provider, p.provider_txn
         FROM tb_payment AS p JOIN tb_seckill_order AS o ON o.order_no = p.order_no
         WHERE {OWED} AND {NOT_REFUNDED} AND NOT EXISTS (SELECT 1 FROM tb_outbox AS w
             WHERE w.provider = p.provider AND w.provider_txn = p.provider_txn)
         ORDER BY p.id LIMIT ?1"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map([at_most(limit)], |row| {
        Ok(PaymentProblem::RefundNotQueued {
            order_no: parsed(row, 0)?,
            provider: row.get(1)?,
            provider_txn: row.get(2)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn refunded_too_much(conn: &Connection, limit: usize) -> Outcome<Vec<PaymentProblem>> {
    let mut statement = conn.prepare_cached(
        "SELECT order_no FROM tb_payment WHERE kind IN (1, 2) GROUP BY order_no
         HAVING SUM(CASE kind WHEN 2 THEN amount ELSE -amount END) > 0 LIMIT ?1",
    )?;
    let rows = statement.query_map([at_most(limit)], |row| {
        Ok(PaymentProblem::RefundedTooMuch { order_no: parsed(row, 0)? })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

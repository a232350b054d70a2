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
//!
//! Whatever concerns the money of an order begins by locking the order's row: two callbacks that
//! arrive at once on two instances are then one after the other.

use mysql_async::Row;
use sale::{Invalid, Millis, Order, OrderNo, OrderStatus};

use super::{
    columns::{at_most, coded, get, money, parsed},
    connections::Session,
    failure::{Failure, Outcome},
    operators,
    orders::{self, move_status},
    outbox, stock,
    text::{id_lists, number_lists},
};
use crate::{
    AuditEntry, Credit, Moved, OpenPayment, OutboxMessage, PaymentKind, PaymentNotice,
    PaymentProblem, PaymentRow, RefundDone, Release,
    columns::{NOT_REFUNDED, OPEN_PAYMENT, OPEN_PAYMENT_COLUMNS, OWED, PAYMENT_COLUMNS},
};

fn read(row: &Row) -> Outcome<PaymentRow> {
    Ok(PaymentRow {
        provider: get(row, 0)?,
        provider_txn: get(row, 1)?,
        order_no: parsed(row, 2)?,
        kind: coded(row, 3, PaymentKind::from_code)?,
        amount: money(row, 4, 5)?,
        created_ms: get(row, 6)?,
    })
}

/// Writes a row unless this payment has one of this kind. Answers whether it wrote.
async fn insert(tx: &mut Session, row: &PaymentRow, paid_ms: Option<Millis>) -> Outcome<bool> {
    let written = tx
        .change(
            "INSERT INTO tb_payment
                 (provider, provider_txn, order_no, kind, amount, currency, created_at, paid_at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE kind = VALUES(kind)",
            (
                &row.provider,
                &row.provider_txn,
                row.order_no.to_string(),
                row.kind.code(),
                row.amount.minor,
                row.amount.currency.as_str(),
                row.created_ms,
                paid_ms,
            ),
        )
        .await?;
    Ok(written == 1)
}

async fn find(
    session: &mut Session,
    provider: &str,
    provider_txn: &str,
    kind: PaymentKind,
) -> Outcome<Option<PaymentRow>> {
    let sql = format!(
        "SELECT {PAYMENT_COLUMNS} FROM tb_payment
         WHERE provider = ? AND provider_txn = ? AND kind = ?"
    );
    session.first(&sql, (provider, provider_txn, kind.code()), read).await
}

pub(super) async fn of_order(session: &mut Session, no: OrderNo) -> Outcome<Vec<PaymentRow>> {
    let sql = format!("SELECT {PAYMENT_COLUMNS} FROM tb_payment WHERE order_no = ? ORDER BY id");
    session.all(&sql, (no.to_string(),), read).await
}

pub(super) async fn received(
    session: &mut Session,
    orders: &[OrderNo],
) -> Outcome<Vec<PaymentRow>> {
    let mut found = Vec::new();
    let kind = PaymentKind::Pay.code();
    for numbers in number_lists(orders.iter().copied()) {
        let sql = format!(
            "SELECT {PAYMENT_COLUMNS} FROM tb_payment
             WHERE order_no IN {numbers} AND kind = {kind} ORDER BY id"
        );
        found.extend(session.all_of_text(&sql, read).await?);
    }
    Ok(found)
}

pub(super) async fn open(
    tx: &mut Session,
    no: OrderNo,
    provider: &str,
    now_ms: Millis,
) -> Outcome<Moved<OrderStatus>> {
    let order = orders::locked(tx, no).await?.ok_or(Failure::NotFound)?;
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
    insert(tx, &row, None).await?;
    Ok(Moved::Done)
}

pub(super) async fn credit(
    tx: &mut Session,
    notice: &PaymentNotice,
    now_ms: Millis,
) -> Outcome<Credit> {
    let order = orders::locked(tx, notice.order_no).await?;
    let known = find(tx, &notice.provider, &notice.provider_txn, PaymentKind::Pay).await?;
    if let Some(known) = known {
        let same = (known.order_no, known.amount) == (notice.order_no, notice.amount);
        return Ok(if same { Credit::Repeated } else { Credit::Mismatch });
    }
    let Some(order) = order else {
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
    if !insert(tx, &row, Some(notice.paid_ms)).await? {
        // The same transaction was credited to another order at this very moment; reading again
        // tells which.
        return Err(Failure::Contended);
    }
    answered(tx, notice, now_ms).await?;
    match order.status {
        OrderStatus::Unpaid => pay(tx, &order, notice.paid_ms, now_ms).await,
        status => {
            give_back(tx, &order, &row, now_ms).await?;
            Ok(Credit::Refunding(status))
        }
    }
}

/// The first money of an unpaid order.
async fn pay(tx: &mut Session, order: &Order, paid_ms: Millis, now_ms: Millis) -> Outcome<Credit> {
    move_or_contended(tx, order, OrderStatus::Paid).await?;
    let sql = "UPDATE tb_seckill_order SET paid_at = ? WHERE order_no = ?";
    tx.change(sql, (paid_ms, order.order_no.to_string())).await?;
    outbox::push_news(tx, vec![(order.order_no, order.user.clone())], now_ms).await?;
    Ok(Credit::Paid)
}

/// Money nobody may keep: the order was over, or this is not its first payment.
async fn give_back(
    tx: &mut Session,
    order: &Order,
    row: &PaymentRow,
    now_ms: Millis,
) -> Outcome<()> {
    if order.status == OrderStatus::Closed {
        move_or_contended(tx, order, OrderStatus::Refunding).await?;
        outbox::push_news(tx, vec![(order.order_no, order.user.clone())], now_ms).await?;
    }
    queue_refund(tx, row, now_ms).await?;
    Ok(())
}

/// The transaction holds the order's lock, so the status cannot have moved since it was read; if it
/// did all the same, nothing is committed and all is read again.
async fn move_or_contended(tx: &mut Session, order: &Order, to: OrderStatus) -> Outcome<()> {
    let moved = move_status(tx, order.order_no, order.status, to).await?;
    if moved { Ok(()) } else { Err(Failure::Contended) }
}

/// False if a refund of this payment waits already.
async fn queue_refund(tx: &mut Session, payment: &PaymentRow, now_ms: Millis) -> Outcome<bool> {
    let message = OutboxMessage::Refund {
        provider: payment.provider.clone(),
        provider_txn: payment.provider_txn.clone(),
        order_no: payment.order_no,
        amount: payment.amount,
    };
    outbox::push(tx, &message, now_ms).await
}

/// Payments of an order that were not given back.
async fn unrefunded(session: &mut Session, no: OrderNo) -> Outcome<Vec<PaymentRow>> {
    let sql = format!(
        "SELECT {PAYMENT_COLUMNS} FROM tb_payment AS p
         WHERE order_no = ? AND kind = 1 AND {NOT_REFUNDED} ORDER BY id"
    );
    session.all(&sql, (no.to_string(),), read).await
}

pub(super) async fn start_refund(
    tx: &mut Session,
    no: OrderNo,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<Moved<OrderStatus>> {
    let order = orders::locked(tx, no).await?.ok_or(Failure::NotFound)?;
    if matches!(order.status, OrderStatus::Refunding | OrderStatus::Refunded) {
        operators::audit(tx, &audit.with("repeated", true), now_ms).await?;
    }
    if order.status != OrderStatus::Paid {
        return Ok(Moved::Was(order.status));
    }
    operators::audit(tx, audit, now_ms).await?;
    let owed = unrefunded(tx, no).await?;
    if owed.is_empty() {
        let problem = "no money is on record that could be given back";
        return Err(Failure::Refused(Invalid::new("order_no", problem)));
    }
    move_or_contended(tx, &order, OrderStatus::Refunding).await?;
    for payment in &owed {
        queue_refund(tx, payment, now_ms).await?;
    }
    let release = Release {
        item: order.item,
        user: order.user.clone(),
        order_no: no,
        quantity: order.quantity,
    };
    stock::return_units(tx, vec![release], now_ms).await?;
    outbox::push_news(tx, vec![(no, order.user)], now_ms).await?;
    Ok(Moved::Done)
}

pub(super) async fn refunded(tx: &mut Session, done: &RefundDone, now_ms: Millis) -> Outcome<()> {
    let order = orders::locked(tx, done.order_no).await?;
    let paid = find(tx, &done.provider, &done.provider_txn, PaymentKind::Pay).await?;
    let paid = paid.ok_or(Failure::NotFound)?;
    paid.check_refund(done).map_err(Failure::Refused)?;
    let row = PaymentRow { kind: PaymentKind::Refund, created_ms: now_ms, ..paid };
    insert(tx, &row, None).await?;
    let order = order.ok_or(Failure::NotFound)?;
    let refunding = order.status == OrderStatus::Refunding;
    if refunding && unrefunded(tx, order.order_no).await?.is_empty() {
        move_or_contended(tx, &order, OrderStatus::Refunded).await?;
        outbox::push_news(tx, vec![(order.order_no, order.user)], now_ms).await?;
    }
    Ok(())
}

pub(super) async fn requeue_refund(
    tx: &mut Session,
    provider: &str,
    provider_txn: &str,
    now_ms: Millis,
) -> Outcome<bool> {
    let sql = format!(
        "SELECT p.provider, p.provider_txn, p.order_no, p.kind, p.amount, p.currency, p.created_at
         FROM tb_payment AS p JOIN tb_seckill_order AS o ON o.order_no = p.order_no
         WHERE p.provider = ? AND p.provider_txn = ? AND {OWED} AND {NOT_REFUNDED}"
    );
    match tx.first(&sql, (provider, provider_txn), read).await? {
        Some(payment) => queue_refund(tx, &payment, now_ms).await,
        None => Ok(false),
    }
}

pub(super) async fn still_open(
    session: &mut Session,
    after_id: i64,
    limit: usize,
) -> Outcome<Vec<OpenPayment>> {
    let sql = format!(
        "SELECT {OPEN_PAYMENT_COLUMNS}
         FROM tb_payment AS p JOIN tb_seckill_order AS o ON o.order_no = p.order_no
         WHERE {OPEN_PAYMENT} AND p.id > ? ORDER BY p.id LIMIT ?"
    );
    let read = |row: &Row| {
        Ok(OpenPayment {
            id: get(row, 0)?,
            order_no: parsed(row, 1)?,
            provider: get(row, 2)?,
            opened_ms: get(row, 3)?,
            order_over_ms: get(row, 4)?,
        })
    };
    session.all(&sql, (after_id, at_most(limit)), read).await
}

pub(super) async fn over(tx: &mut Session, ids: &[i64], now_ms: Millis) -> Outcome<()> {
    for list in id_lists(ids.iter().copied()) {
        let sql = format!(
            "UPDATE tb_payment SET over_at = {now_ms}
             WHERE id IN {list} AND kind = 0 AND over_at IS NULL"
        );
        tx.change_by_text(&sql).await?;
    }
    Ok(())
}

/// The provider has told of the money it was opened for.
async fn answered(tx: &mut Session, notice: &PaymentNotice, now_ms: Millis) -> Outcome<()> {
    let sql = "UPDATE tb_payment SET over_at = ?
         WHERE order_no = ? AND provider = ? AND kind = 0 AND over_at IS NULL";
    tx.change(sql, (now_ms, notice.order_no.to_string(), &notice.provider)).await?;
    Ok(())
}

pub(super) async fn problems(session: &mut Session, limit: usize) -> Outcome<Vec<PaymentProblem>> {
    let mut problems = paid_without_money(session, limit).await?;
    problems.extend(refunds_not_queued(session, limit).await?);
    problems.extend(refunded_too_much(session, limit).await?);
    Ok(problems)
}

async fn paid_without_money(session: &mut Session, limit: usize) -> Outcome<Vec<PaymentProblem>> {
    let sql = format!(
        "SELECT order_no FROM tb_seckill_order AS o
         WHERE status = ? AND NOT EXISTS (SELECT 1 FROM tb_payment AS p
             WHERE p.order_no = o.order_no AND p.kind = 1 AND {NOT_REFUNDED})
         ORDER BY order_no LIMIT ?"
    );
    let problem = |row: &Row| Ok(PaymentProblem::PaidWithoutMoney { order_no: parsed(row, 0)? });
    session.all(&sql, (OrderStatus::Paid.code(), at_most(limit)), problem).await
}

async fn refunds_not_queued(session: &mut Session, limit: usize) -> Outcome<Vec<PaymentProblem>> {
    let sql = format!(
        "SELECT p.order_no, p.provider, p.provider_txn
         FROM tb_payment AS p JOIN tb_seckill_order AS o ON o.order_no = p.order_no
         WHERE {OWED} AND {NOT_REFUNDED} AND NOT EXISTS (SELECT 1 FROM tb_outbox AS w
             WHERE w.provider = p.provider AND w.provider_txn = p.provider_txn)
         ORDER BY p.id LIMIT ?"
    );
    let problem = |row: &Row| {
        Ok(PaymentProblem::RefundNotQueued {
            order_no: parsed(row, 0)?,
            provider: get(row, 1)?,
            provider_txn: get(row, 2)?,
        })
    };
    session.all(&sql, (at_most(limit),), problem).await
}

async fn refunded_too_much(session: &mut Session, limit: usize) -> Outcome<Vec<PaymentProblem>> {
    let sql = "SELECT order_no FROM tb_payment WHERE kind IN (1, 2) GROUP BY order_no
         HAVING SUM(CASE kind WHEN 2 THEN amount ELSE -amount END) > 0 LIMIT ?";
    let problem = |row: &Row| Ok(PaymentProblem::RefundedTooMuch { order_no: parsed(row, 0)? });
    session.all(sql, (at_most(limit),), problem).await
}

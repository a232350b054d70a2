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

use async_trait::async_trait;
use sale::{Invalid, Millis, Order, OrderNo, OrderStatus};

use super::{
    Access, SqlLedger, archive,
    columns::{coded, get, money, parsed},
    failure::{Failure, Outcome},
    operators,
    orders::{self, move_status},
    outbox,
    session::{Row, Session, Value, values},
    stock, webhooks,
};
use crate::{
    AuditEntry, Credit, Moved, OpenPayment, OutboxMessage, PAYMENT_ASK_MS_FIRST, PaymentKind,
    PaymentNotice, PaymentRow, Payments, RefundAsked, RefundDone, RefundReason, Release, Result,
    WebhookEvent, WebhookKind,
};

pub(super) const PAYMENT_COLUMNS: &str = "provider, provider_txn, order_no, kind, amount, currency, \
     created_at, method, refund_reason, refund_note, refund_asked_at";

/// Of a payment `p`: it was not given back.
pub(super) const NOT_REFUNDED: &str = "NOT EXISTS (SELECT 1 FROM tb_payment AS r
     WHERE r.provider = p.provider AND r.provider_txn = p.provider_txn AND r.kind = 2)";

/// Of a payment `p`: it was opened, its provider has not told us of money, and may still have some.
/// Yesterday's binary credits money without marking the payment as over.
pub(super) const OPEN_PAYMENT: &str = "p.kind = 0 AND p.over_at IS NULL
     AND NOT EXISTS (SELECT 1 FROM tb_payment AS m
         WHERE m.order_no = p.order_no AND m.provider = p.provider AND m.kind = 1)";

/// Of a payment `p` and its order `o`: the money is not ours to keep, and was not given back.
/// An unpaid order cannot have money; if it has, the problem is another one.
pub(super) const OWED: &str = "p.kind = 1
     AND (o.status IN (2, 3, 4, 5) OR EXISTS (SELECT 1 FROM tb_payment AS earlier
         WHERE earlier.order_no = p.order_no AND earlier.kind = 1 AND earlier.id < p.id))";

pub(super) fn read(row: &dyn Row) -> Outcome<PaymentRow> {
    Ok(PaymentRow {
        provider: get(row, 0)?,
        provider_txn: get(row, 1)?,
        order_no: parsed(row, 2)?,
        kind: coded(row, 3, PaymentKind::from_code)?,
        amount: money(row, 4, 5)?,
        created_ms: get(row, 6)?,
        method: get(row, 7)?,
        refund: read_refund(row)?,
    })
}

fn read_refund(row: &dyn Row) -> Outcome<Option<RefundAsked>> {
    let Some(asked_ms) = get(row, 10)? else { return Ok(None) };
    Ok(Some(RefundAsked { reason: parsed(row, 8)?, note: get(row, 9)?, asked_ms }))
}

/// Writes a row unless this payment has one of this kind. Answers whether it wrote.
async fn insert(tx: &mut dyn Session, row: &PaymentRow, paid_ms: Option<Millis>) -> Outcome<bool> {
    let sql = format!(
        "INSERT INTO tb_payment
             (provider, provider_txn, order_no, kind, amount, currency, created_at, paid_at, method)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) {}",
        tx.dialect().keep("kind")
    );
    let written = tx
        .execute(
            &sql,
            values![
                &row.provider,
                &row.provider_txn,
                row.order_no,
                row.kind.code(),
                row.amount.minor,
                row.amount.currency.as_str(),
                row.created_ms,
                paid_ms,
                row.method.as_deref(),
            ],
        )
        .await?;
    Ok(written == 1)
}

pub(super) async fn find(
    session: &mut dyn Session,
    provider: &str,
    provider_txn: &str,
    kind: PaymentKind,
) -> Outcome<Option<PaymentRow>> {
    let sql = format!(
        "SELECT {PAYMENT_COLUMNS} FROM tb_payment
         WHERE provider = ? AND provider_txn = ? AND kind = ?"
    );
    session.first(&sql, values![provider, provider_txn, kind.code()], read).await
}

pub(super) async fn of_order(session: &mut dyn Session, no: OrderNo) -> Outcome<Vec<PaymentRow>> {
    let sql = format!("SELECT {PAYMENT_COLUMNS} FROM tb_payment WHERE order_no = ? ORDER BY id");
    let found = session.rows(&sql, values![no], read).await?;
    if found.is_empty() { archive::payments_of(session, &[no], found).await } else { Ok(found) }
}

async fn of_orders(session: &mut dyn Session, orders: &[OrderNo]) -> Outcome<Vec<PaymentRow>> {
    let found = in_books_of(session, orders).await?;
    archive::payments_of(session, orders, found).await
}

pub(super) async fn in_books_of(
    session: &mut dyn Session,
    orders: &[OrderNo],
) -> Outcome<Vec<PaymentRow>> {
    let sql = format!("SELECT {PAYMENT_COLUMNS} FROM tb_payment WHERE order_no IN ? ORDER BY id");
    session.rows(&sql, values![Value::list(orders.iter().copied())], read).await
}

async fn open(
    tx: &mut dyn Session,
    no: OrderNo,
    (provider, method): (&str, Option<&str>),
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
        method: method.map(str::to_owned),
        refund: None,
    };
    insert(tx, &row, None).await?;
    // If it was opened before, it is open again, whatever its provider was asked and said since.
    let sql =
        "UPDATE tb_payment SET method = COALESCE(?, method), asked_at = NULL, closed_at = NULL,
             ask_at = COALESCE(ask_at, ?)
         WHERE provider = ? AND provider_txn = ? AND kind = 0";
    let ask_ms = now_ms.saturating_add(PAYMENT_ASK_MS_FIRST);
    tx.execute(sql, values![method, ask_ms, provider, &row.provider_txn]).await?;
    Ok(Moved::Done)
}

pub(super) async fn credit(
    tx: &mut dyn Session,
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
    // What was credited to an archived order: this one would have brought its payments with it.
    if archive::has_payment(tx, &notice.provider, &notice.provider_txn).await? {
        return Ok(Credit::Mismatch);
    }
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
        method: None,
        refund: None,
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
async fn pay(
    tx: &mut dyn Session,
    order: &Order,
    paid_ms: Millis,
    now_ms: Millis,
) -> Outcome<Credit> {
    move_or_contended(tx, order, OrderStatus::Paid).await?;
    let sql = "UPDATE tb_seckill_order SET paid_at = ? WHERE order_no = ?";
    tx.execute(sql, values![paid_ms, order.order_no]).await?;
    outbox::push_events(tx, vec![(order.order_no, order.user.clone())], now_ms).await?;
    tell(tx, WebhookKind::OrderPaid, order.order_no, now_ms).await?;
    Ok(Credit::Paid)
}

async fn tell(tx: &mut dyn Session, kind: WebhookKind, no: OrderNo, now_ms: Millis) -> Outcome<()> {
    webhooks::tell(tx, WebhookEvent::orders(kind, [no].into_iter()), now_ms).await
}

/// Money nobody may keep: the order was over, or this is not its first payment.
async fn give_back(
    tx: &mut dyn Session,
    order: &Order,
    row: &PaymentRow,
    now_ms: Millis,
) -> Outcome<()> {
    if order.status == OrderStatus::Closed {
        move_or_contended(tx, order, OrderStatus::Refunding).await?;
        outbox::push_events(tx, vec![(order.order_no, order.user.clone())], now_ms).await?;
    }
    let reason = RefundReason::of_money_for(order.status);
    note_refund(tx, row, reason, None, now_ms).await?;
    queue_refund(tx, row, now_ms).await?;
    Ok(())
}

/// The transaction holds the order's lock, so the status cannot have moved since it was read; if it
/// did all the same, nothing is committed and all is read again.
async fn move_or_contended(tx: &mut dyn Session, order: &Order, to: OrderStatus) -> Outcome<()> {
    let moved = move_status(tx, order.order_no, order.status, to).await?;
    if moved { Ok(()) } else { Err(Failure::Contended) }
}

/// Why a payment goes back. What was said first stays.
pub(super) async fn note_refund(
    tx: &mut dyn Session,
    payment: &PaymentRow,
    reason: RefundReason,
    note: Option<&str>,
    now_ms: Millis,
) -> Outcome<()> {
    let sql = "UPDATE tb_payment SET refund_reason = ?, refund_note = ?, refund_asked_at = ?
         WHERE provider = ? AND provider_txn = ? AND kind = 1 AND refund_asked_at IS NULL";
    let why = values![reason.as_str(), note, now_ms, &payment.provider, &payment.provider_txn];
    tx.execute(sql, why).await?;
    Ok(())
}

/// False if a refund of this payment waits already.
async fn queue_refund(tx: &mut dyn Session, payment: &PaymentRow, now_ms: Millis) -> Outcome<bool> {
    let message = OutboxMessage::Refund {
        provider: payment.provider.clone(),
        provider_txn: payment.provider_txn.clone(),
        order_no: payment.order_no,
        amount: payment.amount,
    };
    outbox::push(tx, &message, now_ms).await
}

/// Payments of an order that were not given back.
pub(super) async fn unrefunded(session: &mut dyn Session, no: OrderNo) -> Outcome<Vec<PaymentRow>> {
    let sql = format!(
        "SELECT {PAYMENT_COLUMNS} FROM tb_payment AS p
         WHERE order_no = ? AND kind = 1 AND {NOT_REFUNDED} ORDER BY id"
    );
    session.rows(&sql, values![no], read).await
}

async fn start_refund(
    tx: &mut dyn Session,
    no: OrderNo,
    note: Option<&str>,
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
    begin_refund(tx, &order, (RefundReason::Operator, note), &owed, now_ms).await?;
    Ok(Moved::Done)
}

/// A paid order is not one any more: these payments are owed back, and its units are for sale again.
pub(super) async fn begin_refund(
    tx: &mut dyn Session,
    order: &Order,
    (reason, note): (RefundReason, Option<&str>),
    owed: &[PaymentRow],
    now_ms: Millis,
) -> Outcome<()> {
    move_or_contended(tx, order, OrderStatus::Refunding).await?;
    for payment in owed {
        note_refund(tx, payment, reason, note, now_ms).await?;
        queue_refund(tx, payment, now_ms).await?;
    }
    let (no, user) = (order.order_no, order.user.clone());
    let release =
        Release { item: order.item, user: user.clone(), order_no: no, quantity: order.quantity };
    let stock = stock::return_units(tx, vec![release], now_ms).await?;
    outbox::push_events(tx, vec![(no, user)], now_ms).await?;
    webhooks::tell(tx, stock, now_ms).await
}

pub(super) async fn refunded(
    tx: &mut dyn Session,
    done: &RefundDone,
    now_ms: Millis,
) -> Outcome<()> {
    let order = orders::locked(tx, done.order_no).await?;
    let paid = find(tx, &done.provider, &done.provider_txn, PaymentKind::Pay).await?;
    let paid = paid.ok_or(Failure::NotFound)?;
    paid.check_refund(done).map_err(Failure::Refused)?;
    let row = PaymentRow { kind: PaymentKind::Refund, created_ms: now_ms, refund: None, ..paid };
    insert(tx, &row, None).await?;
    let order = order.ok_or(Failure::NotFound)?;
    let refunding = order.status == OrderStatus::Refunding;
    if refunding && unrefunded(tx, order.order_no).await?.is_empty() {
        move_or_contended(tx, &order, OrderStatus::Refunded).await?;
        outbox::push_events(tx, vec![(order.order_no, order.user)], now_ms).await?;
        tell(tx, WebhookKind::OrderRefunded, order.order_no, now_ms).await?;
    }
    Ok(())
}

async fn requeue_refund(
    tx: &mut dyn Session,
    provider: &str,
    provider_txn: &str,
    now_ms: Millis,
) -> Outcome<bool> {
    let sql = format!(
        "SELECT {PAYMENT_COLUMNS} FROM tb_payment AS p
         WHERE p.provider = ? AND p.provider_txn = ? AND {NOT_REFUNDED} AND EXISTS
             (SELECT 1 FROM tb_seckill_order AS o WHERE o.order_no = p.order_no AND {OWED})"
    );
    match tx.first(&sql, values![provider, provider_txn], read).await? {
        Some(payment) => queue_refund(tx, &payment, now_ms).await,
        None => Ok(false),
    }
}

async fn still_open(
    session: &mut dyn Session,
    after_id: i64,
    limit: usize,
) -> Outcome<Vec<OpenPayment>> {
    let sql = format!(
        "SELECT p.id, p.order_no, p.provider, p.created_at, CASE o.status WHEN 0 THEN NULL
             ELSE COALESCE(o.closed_at, o.paid_at, o.created_at) END
         FROM tb_payment AS p JOIN tb_seckill_order AS o ON o.order_no = p.order_no
         WHERE {OPEN_PAYMENT} AND p.id > ? ORDER BY p.id LIMIT ?"
    );
    let read = |row: &dyn Row| {
        Ok(OpenPayment {
            id: get(row, 0)?,
            order_no: parsed(row, 1)?,
            provider: get(row, 2)?,
            opened_ms: get(row, 3)?,
            order_over_ms: get(row, 4)?,
        })
    };
    session.rows(&sql, values![after_id, limit], read).await
}

async fn over(tx: &mut dyn Session, ids: &[i64], now_ms: Millis) -> Outcome<()> {
    let sql = "UPDATE tb_payment SET over_at = ?, ask_at = NULL
         WHERE id IN ? AND kind = 0 AND over_at IS NULL";
    tx.execute(sql, values![now_ms, Value::list(ids.iter().copied())]).await?;
    Ok(())
}

/// The provider has told of the money it was opened for.
async fn answered(tx: &mut dyn Session, notice: &PaymentNotice, now_ms: Millis) -> Outcome<()> {
    let sql = "UPDATE tb_payment SET over_at = ?, ask_at = NULL
         WHERE order_no = ? AND provider = ? AND kind = 0 AND over_at IS NULL";
    tx.execute(sql, values![now_ms, notice.order_no, &notice.provider]).await?;
    Ok(())
}

/// By the index of providers and their numbers, provider by provider.
async fn orders_of_payment(
    session: &mut dyn Session,
    providers: &[String],
    provider_txn: &str,
) -> Outcome<Vec<OrderNo>> {
    let sql = "SELECT order_no FROM tb_payment WHERE provider = ? AND provider_txn = ?";
    let mut found: Vec<OrderNo> = Vec::new();
    for provider in providers {
        let orders = session
            .rows(sql, values![provider, provider_txn], |row| parsed::<OrderNo>(row, 0))
            .await?;
        found.extend(orders);
        if let Some(month) = archive::months_of_payment(session, provider, provider_txn).await? {
            let mut kept = session.month(month, archive::Purpose::Read).await?;
            let kept: &mut dyn Session = &mut *kept;
            let orders = kept
                .rows(sql, values![provider, provider_txn], |row| parsed::<OrderNo>(row, 0))
                .await?;
            found.extend(orders);
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

#[async_trait]
impl Payments for SqlLedger {
    async fn open_payment(
        &self,
        no: OrderNo,
        provider: &str,
        method: Option<&str>,
        now_ms: Millis,
    ) -> Result<Moved<OrderStatus>> {
        let at = (provider.to_owned(), method.map(str::to_owned));
        self.run(Access::Write, at, move |tx, (provider, method)| {
            Box::pin(open(tx, no, (provider, method.as_deref()), now_ms))
        })
        .await
    }

    async fn credit(&self, notice: &PaymentNotice, now_ms: Millis) -> Result<Credit> {
        self.run(Access::Write, notice.clone(), move |tx, notice| {
            Box::pin(credit(tx, notice, now_ms))
        })
        .await
    }

    async fn start_refund(
        &self,
        no: OrderNo,
        note: Option<&str>,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Moved<OrderStatus>> {
        let why = (note.map(str::to_owned), audit.clone());
        self.run(Access::Write, why, move |tx, (note, audit)| {
            Box::pin(start_refund(tx, no, note.as_deref(), audit, now_ms))
        })
        .await
    }

    async fn refunded(&self, done: &RefundDone, now_ms: Millis) -> Result<()> {
        self.run(Access::Write, done.clone(), move |tx, done| Box::pin(refunded(tx, done, now_ms)))
            .await
    }

    async fn payments(&self, no: OrderNo) -> Result<Vec<PaymentRow>> {
        self.run(Access::Statement, (), move |session, ()| Box::pin(of_order(session, no))).await
    }

    async fn orders_of_payment(
        &self,
        providers: &[String],
        provider_txn: &str,
    ) -> Result<Vec<OrderNo>> {
        let asked = (providers.to_vec(), provider_txn.to_owned());
        self.run(Access::Statement, asked, move |session, (providers, txn)| {
            Box::pin(orders_of_payment(session, providers, txn))
        })
        .await
    }

    async fn payments_of(&self, orders: &[OrderNo]) -> Result<Vec<PaymentRow>> {
        self.run(Access::Snapshot, orders.to_vec(), |session, orders| {
            Box::pin(of_orders(session, orders))
        })
        .await
    }

    async fn open_payments(&self, after_id: i64, limit: usize) -> Result<Vec<OpenPayment>> {
        self.run(Access::Statement, (), move |session, ()| {
            Box::pin(still_open(session, after_id, limit))
        })
        .await
    }

    async fn payments_over(&self, ids: &[i64], now_ms: Millis) -> Result<()> {
        self.run(Access::Write, ids.to_vec(), move |tx, ids| Box::pin(over(tx, ids, now_ms))).await
    }

    async fn requeue_refund(
        &self,
        provider: &str,
        provider_txn: &str,
        now_ms: Millis,
    ) -> Result<bool> {
        let payment = (provider.to_owned(), provider_txn.to_owned());
        self.run(Access::Write, payment, move |tx, (provider, provider_txn)| {
            Box::pin(requeue_refund(tx, provider, provider_txn, now_ms))
        })
        .await
    }
}

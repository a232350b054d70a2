//! The shop's own cashier: what it is asked about money, and what it tells.
//!
//! That something was asked is noted in the row of the payment, and the request goes to the outbox, in the
//! same transaction. Who wants to hear of it is read there as well: a shop without an endpoint is not
//! waited for.

use std::collections::HashMap;

use async_trait::async_trait;
use sale::{Currency, Invalid, Millis, Money, Order, OrderNo, OrderStatus};

use super::{
    Access, SqlLedger,
    columns::{get, parsed},
    failure::{Failure, Outcome},
    operators, orders,
    payments::{self, find},
    session::{Row, Session, Value, values},
    webhooks,
};
use crate::{
    AuditEntry, ByHand, Cashier, CloseAsked, Credit, Marked, PaymentKind, PaymentNotice,
    PaymentRow, RefundDone, RefundReason, RefundRequested, RefundTold, Result, WebhookEvent,
    WebhookKind,
};

/// When somebody was asked, and since when it is done.
type Asked = (Option<Millis>, Option<Millis>);

async fn ask_to_close(
    tx: &mut dyn Session,
    (provider, orders): (&str, &[OrderNo]),
    answer_ms_max: Millis,
    now_ms: Millis,
) -> Outcome<Vec<CloseAsked>> {
    let sql = "SELECT order_no, asked_at, closed_at FROM tb_payment
         WHERE provider = ? AND provider_txn IN ? AND kind = ?";
    let read = |row: &dyn Row| Ok((parsed::<OrderNo>(row, 0)?, (get(row, 1)?, get(row, 2)?)));
    let numbers = || Value::list(orders.iter().copied());
    let open = PaymentKind::Open.code();
    let asked = tx.rows(sql, values![provider, numbers(), open], read).await?;
    let asked: HashMap<OrderNo, Asked> = asked.into_iter().collect();
    let unasked: Vec<OrderNo> =
        orders.iter().copied().filter(|no| asked.get(no) == Some(&(None, None))).collect();
    let nobody =
        !unasked.is_empty() && !webhooks::wanted(tx).await?.has(WebhookKind::PaymentCloseRequested);
    if !unasked.is_empty() && !nobody {
        let sql = "UPDATE tb_payment SET asked_at = ?
             WHERE provider = ? AND provider_txn IN ? AND kind = ?";
        let numbers = Value::list(unasked.iter().copied());
        tx.execute(sql, values![now_ms, provider, numbers, open]).await?;
        let (asked_ms, answer_by_ms) = (now_ms, now_ms.saturating_add(answer_ms_max));
        let request = |order_no| WebhookEvent::Close { order_no, asked_ms, answer_by_ms };
        webhooks::tell(tx, unasked.into_iter().map(request), now_ms).await?;
    }
    let outcome = |no: &OrderNo| match asked.get(no) {
        None => CloseAsked::NeverOpened,
        Some((_, Some(_))) => CloseAsked::Closed,
        Some((None, None)) if nobody => CloseAsked::Closed,
        Some((None, None)) => CloseAsked::Waiting,
        // A clock that was set back must not stretch it.
        Some((Some(at_ms), None)) if (now_ms - at_ms).abs() < answer_ms_max => CloseAsked::Waiting,
        Some((Some(_), None)) => CloseAsked::Closed,
    };
    Ok(orders.iter().map(outcome).collect())
}

async fn payment_closed(
    tx: &mut dyn Session,
    (provider, no): (&str, OrderNo),
    closed_ms: Millis,
) -> Outcome<Option<Millis>> {
    let sql =
        "SELECT asked_at FROM tb_payment WHERE provider = ? AND provider_txn = ? AND kind = ?";
    let open = PaymentKind::Open.code();
    let asked = values![provider, no, open];
    let asked_ms = tx.first(sql, asked, |row| get::<Option<Millis>>(row, 0)).await?;
    let asked_ms = asked_ms.ok_or(Failure::NotFound)?;
    let sql = "UPDATE tb_payment SET closed_at = ?
         WHERE provider = ? AND provider_txn = ? AND kind = ? AND closed_at IS NULL";
    tx.execute(sql, values![closed_ms, provider, no, open]).await?;
    Ok(asked_ms)
}

/// What is known of money that was asked back.
struct Owed {
    order_no: OrderNo,
    asked_ms: Option<Millis>,
    asks: u32,
    reason: Option<String>,
    note: Option<String>,
}

async fn owed(
    session: &mut dyn Session,
    provider: &str,
    provider_txn: &str,
) -> Outcome<Option<Owed>> {
    let sql = "SELECT order_no, asked_at, asks, refund_reason, refund_note FROM tb_payment
         WHERE provider = ? AND provider_txn = ? AND kind = ?";
    let read = |row: &dyn Row| {
        Ok(Owed {
            order_no: parsed(row, 0)?,
            asked_ms: get(row, 1)?,
            asks: get(row, 2)?,
            reason: get(row, 3)?,
            note: get(row, 4)?,
        })
    };
    session.first(sql, values![provider, provider_txn, PaymentKind::Pay.code()], read).await
}

/// Is it known without writing anything?
async fn refund_stands(
    session: &mut dyn Session,
    (provider, provider_txn): (&str, &str),
    repeat_ms: Millis,
    now_ms: Millis,
) -> Outcome<Option<RefundRequested>> {
    if find(session, provider, provider_txn, PaymentKind::Refund).await?.is_some() {
        return Ok(Some(RefundRequested::Refunded));
    }
    let owed = owed(session, provider, provider_txn).await?.ok_or(Failure::NotFound)?;
    let lately = owed.asked_ms.is_some_and(|at_ms| (now_ms - at_ms).abs() < repeat_ms);
    Ok(lately.then_some(RefundRequested::Waiting))
}

async fn ask_to_refund(
    tx: &mut dyn Session,
    (provider, provider_txn): (&str, &str),
    repeat_ms: Millis,
    now_ms: Millis,
) -> Outcome<RefundRequested> {
    let payment = find(tx, provider, provider_txn, PaymentKind::Pay).await?;
    let payment = payment.ok_or(Failure::NotFound)?;
    // Two who look at once are one after the other.
    orders::locked(tx, payment.order_no).await?;
    if let Some(known) = refund_stands(tx, (provider, provider_txn), repeat_ms, now_ms).await? {
        return Ok(known);
    }
    if !webhooks::wanted(tx).await?.has(WebhookKind::PaymentRefundRequested) {
        return Ok(RefundRequested::NobodyToAsk);
    }
    let owed = owed(tx, provider, provider_txn).await?.ok_or(Failure::NotFound)?;
    let ask = owed.asks.saturating_add(1);
    let sql = "UPDATE tb_payment SET asked_at = ?, asks = ?
         WHERE provider = ? AND provider_txn = ? AND kind = ?";
    let pay = PaymentKind::Pay.code();
    tx.execute(sql, values![now_ms, ask, provider, provider_txn, pay]).await?;
    let request = WebhookEvent::Refund {
        order_no: owed.order_no,
        provider_txn: provider_txn.to_owned(),
        amount: payment.amount,
        ask,
        reason: owed.reason,
        note: owed.note,
    };
    webhooks::tell(tx, [request], now_ms).await?;
    Ok(RefundRequested::Asked(ask))
}

async fn refund_told(
    tx: &mut dyn Session,
    (done, audit): (&RefundDone, Option<&AuditEntry>),
    now_ms: Millis,
) -> Outcome<RefundTold> {
    let order = orders::locked(tx, done.order_no).await?;
    let Some(paid) = find(tx, &done.provider, &done.provider_txn, PaymentKind::Pay).await? else {
        return Ok(RefundTold::UnknownPayment);
    };
    if paid.check_refund(done).is_err() {
        return Ok(RefundTold::Mismatch(paid.order_no, paid.amount));
    }
    let order = order.ok_or(Failure::NotFound)?;
    let known = find(tx, &done.provider, &done.provider_txn, PaymentKind::Refund).await?.is_some();
    if let Some(audit) = audit {
        let entry = if known { audit.with("repeated", true) } else { audit.clone() };
        operators::audit(tx, &entry, now_ms).await?;
    }
    if known {
        return Ok(RefundTold::Repeated(order.status));
    }
    let now = given_back(tx, &order, &paid, (RefundReason::Provider, None), now_ms).await?;
    Ok(RefundTold::Noted(now))
}

/// This payment went back, whoever wanted it so. If the order was paid with it, it is refunded with its
/// units. Answers what the order is now.
async fn given_back(
    tx: &mut dyn Session,
    order: &Order,
    paid: &PaymentRow,
    why: (RefundReason, Option<&str>),
    now_ms: Millis,
) -> Outcome<OrderStatus> {
    let unrefunded = payments::unrefunded(tx, order.order_no).await?;
    let is_first = unrefunded.first().is_some_and(|first| first == paid);
    if order.status == OrderStatus::Paid && is_first {
        payments::begin_refund(tx, order, why, &unrefunded[1..], now_ms).await?;
    }
    payments::note_refund(tx, paid, why.0, why.1, now_ms).await?;
    let done = RefundDone {
        provider: paid.provider.clone(),
        provider_txn: paid.provider_txn.clone(),
        order_no: paid.order_no,
        amount: paid.amount,
    };
    payments::refunded(tx, &done, now_ms).await?;
    let sql = "DELETE FROM tb_outbox WHERE provider = ? AND provider_txn = ?";
    tx.execute(sql, values![&paid.provider, &paid.provider_txn]).await?;
    let now = orders::locked(tx, order.order_no).await?.ok_or(Failure::NotFound)?;
    Ok(now.status)
}

async fn mark_paid(
    tx: &mut dyn Session,
    money: &PaymentNotice,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<Marked> {
    let order = orders::locked(tx, money.order_no).await?.ok_or(Failure::NotFound)?;
    let known = find(tx, &money.provider, &money.provider_txn, PaymentKind::Pay).await?;
    if let Some(known) = known {
        if known.order_no != order.order_no {
            return Ok(Marked::UsedFor(known.order_no));
        }
        operators::audit(tx, &audit.with("repeated", true), now_ms).await?;
        return Ok(Marked::Repeated);
    }
    if order.status != OrderStatus::Unpaid {
        return Ok(Marked::Was(order.status));
    }
    operators::audit(tx, audit, now_ms).await?;
    let money = PaymentNotice { amount: order.amount, ..money.clone() };
    match payments::credit(tx, &money, now_ms).await? {
        Credit::Paid => Ok(Marked::Done),
        // It was unpaid a moment ago, and this transaction holds it.
        _ => Err(Failure::Contended),
    }
}

async fn mark_refunded(
    tx: &mut dyn Session,
    no: OrderNo,
    (provider_txn, note): (Option<&str>, &str),
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<Marked> {
    let order = orders::locked(tx, no).await?.ok_or(Failure::NotFound)?;
    let mut owed = payments::unrefunded(tx, no).await?;
    if let Some(txn) = provider_txn {
        owed.retain(|payment| payment.provider_txn == txn);
    } else if owed.len() > 1 && order.status == OrderStatus::Paid {
        let problem = "must say which of the order's payments went back";
        return Err(Failure::Refused(Invalid::new("provider_txn", problem)));
    }
    if owed.is_empty() {
        let rows = payments::of_order(tx, no).await?;
        let mut back = rows.iter().filter(|row| row.kind == PaymentKind::Refund);
        if back.any(|row| provider_txn.is_none_or(|txn| row.provider_txn == txn)) {
            operators::audit(tx, &audit.with("repeated", true), now_ms).await?;
            return Ok(Marked::Repeated);
        }
        return Ok(Marked::Was(order.status));
    }
    operators::audit(tx, audit, now_ms).await?;
    for payment in &owed {
        let order = orders::locked(tx, no).await?.ok_or(Failure::NotFound)?;
        given_back(tx, &order, payment, (RefundReason::Operator, Some(note)), now_ms).await?;
    }
    Ok(Marked::Done)
}

#[async_trait]
impl Cashier for SqlLedger {
    async fn ask_to_close(
        &self,
        provider: &str,
        orders: &[OrderNo],
        answer_ms_max: Millis,
        now_ms: Millis,
    ) -> Result<Vec<CloseAsked>> {
        let asked = (provider.to_owned(), orders.to_vec());
        self.run(Access::Write, asked, move |tx, (provider, orders)| {
            Box::pin(ask_to_close(tx, (provider, orders), answer_ms_max, now_ms))
        })
        .await
    }

    async fn payment_closed(
        &self,
        provider: &str,
        no: OrderNo,
        closed_ms: Millis,
    ) -> Result<Option<Millis>> {
        self.run(Access::Write, provider.to_owned(), move |tx, provider| {
            Box::pin(payment_closed(tx, (provider, no), closed_ms))
        })
        .await
    }

    async fn ask_to_refund(
        &self,
        provider: &str,
        provider_txn: &str,
        repeat_ms: Millis,
        now_ms: Millis,
    ) -> Result<RefundRequested> {
        let payment = (provider.to_owned(), provider_txn.to_owned());
        // Most who look find it asked for already, and need write nothing.
        let known: Result<Option<RefundRequested>> = self
            .run(Access::Snapshot, payment.clone(), move |session, (provider, provider_txn)| {
                Box::pin(refund_stands(session, (provider, provider_txn), repeat_ms, now_ms))
            })
            .await;
        if let Some(known) = known? {
            return Ok(known);
        }
        self.run(Access::Write, payment, move |tx, (provider, provider_txn)| {
            Box::pin(ask_to_refund(tx, (provider, provider_txn), repeat_ms, now_ms))
        })
        .await
    }

    async fn refund_told(
        &self,
        done: &RefundDone,
        audit: Option<&AuditEntry>,
        now_ms: Millis,
    ) -> Result<RefundTold> {
        let told = (done.clone(), audit.cloned());
        self.run(Access::Write, told, move |tx, (done, audit)| {
            Box::pin(refund_told(tx, (done, audit.as_ref()), now_ms))
        })
        .await
    }
}

#[async_trait]
impl ByHand for SqlLedger {
    async fn mark_paid(
        &self,
        provider: &str,
        reference: &str,
        no: OrderNo,
        paid_ms: Millis,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Marked> {
        let money = PaymentNotice {
            provider: provider.into(),
            provider_txn: reference.into(),
            order_no: no,
            // All of it, whatever that is.
            amount: Money::new(0, Currency::CNY),
            paid_ms,
        };
        self.run(Access::Write, (money, audit.clone()), move |tx, (money, audit)| {
            Box::pin(mark_paid(tx, money, audit, now_ms))
        })
        .await
    }

    async fn mark_refunded(
        &self,
        no: OrderNo,
        provider_txn: Option<&str>,
        note: &str,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Marked> {
        let why = (provider_txn.map(str::to_owned), note.to_owned(), audit.clone());
        self.run(Access::Write, why, move |tx, (txn, note, audit)| {
            Box::pin(mark_refunded(tx, no, (txn.as_deref(), note), audit, now_ms))
        })
        .await
    }
}

//! Asking about payments that their providers were to tell of, and about refunds that wait.
//!
//! What is due is found by an index over provider and time in which those that are over have no time, so that
//! asking costs as much as there is to ask about.

use async_trait::async_trait;
use sale::{Millis, OrderNo, OrderStatus};

use super::{
    Access, SqlLedger,
    columns::{coded, get, parsed},
    failure::Outcome,
    session::{Row, Session, values},
};
use crate::{Asking, PaymentAsked, PaymentToAsk, RefundWaiting, Result};

/// Each of the two is a range of the index; asked for in one statement they would be all that a provider
/// ever had.
async fn to_ask(
    session: &mut dyn Session,
    provider: &str,
    (now_ms, pause_ms_max): (Millis, Millis),
    limit: usize,
) -> Outcome<Vec<PaymentToAsk>> {
    let mut due = in_range(session, provider, ("<=", now_ms), limit).await?;
    let too_late = (">", now_ms.saturating_add(pause_ms_max));
    due.extend(in_range(session, provider, too_late, limit - due.len()).await?);
    Ok(due)
}

async fn in_range(
    session: &mut dyn Session,
    provider: &str,
    (comparison, at_ms): (&str, Millis),
    limit: usize,
) -> Outcome<Vec<PaymentToAsk>> {
    let sql = format!(
        "SELECT p.id, p.order_no, p.asks, o.status FROM tb_payment AS p {}
         JOIN tb_seckill_order AS o ON o.order_no = p.order_no
         WHERE p.provider = ? AND p.ask_at {comparison} ? ORDER BY p.ask_at, p.id LIMIT ?",
        session.dialect().by_index("ix_payment_ask")
    );
    let read = |row: &dyn Row| {
        Ok(PaymentToAsk {
            id: get(row, 0)?,
            order_no: parsed(row, 1)?,
            asks: get(row, 2)?,
            status: coded(row, 3, OrderStatus::from_code)?,
        })
    };
    session.rows(&sql, values![provider, at_ms, limit], read).await
}

async fn asked(tx: &mut dyn Session, asked: &[PaymentAsked]) -> Outcome<()> {
    let sql = "UPDATE tb_payment SET ask_at = ?, asks = ? WHERE id = ? AND ask_at IS NOT NULL";
    for PaymentAsked { id, asks, next_ms } in asked {
        tx.execute(sql, values![*next_ms, *asks, *id]).await?;
    }
    Ok(())
}

async fn is_due(tx: &mut dyn Session, provider: &str, provider_txn: &str) -> Outcome<bool> {
    let sql = "SELECT id FROM tb_outbox WHERE provider = ? AND provider_txn = ?";
    let found = tx.first(sql, values![provider, provider_txn], |row| get::<i64>(row, 0)).await?;
    let Some(id) = found else { return Ok(false) };
    let sql = "UPDATE tb_outbox SET next_try_at = 0 WHERE id = ?";
    tx.execute(sql, values![id]).await?;
    Ok(true)
}

async fn waiting(session: &mut dyn Session, no: OrderNo) -> Outcome<Vec<RefundWaiting>> {
    let sql = "SELECT w.provider, w.provider_txn, w.tries, w.cause, w.created_at
         FROM tb_payment AS p JOIN tb_outbox AS w
             ON w.provider = p.provider AND w.provider_txn = p.provider_txn
         WHERE p.order_no = ? AND p.kind = 1 ORDER BY w.id";
    let read = |row: &dyn Row| {
        Ok(RefundWaiting {
            provider: get(row, 0)?,
            provider_txn: get(row, 1)?,
            tries: get(row, 2)?,
            cause: get(row, 3)?,
            since_ms: get(row, 4)?,
        })
    };
    session.rows(sql, values![no], read).await
}

#[async_trait]
impl Asking for SqlLedger {
    async fn payments_to_ask(
        &self,
        provider: &str,
        now_ms: Millis,
        pause_ms_max: Millis,
        limit: usize,
    ) -> Result<Vec<PaymentToAsk>> {
        self.run(Access::Snapshot, provider.to_owned(), move |session, provider| {
            Box::pin(to_ask(session, provider, (now_ms, pause_ms_max), limit))
        })
        .await
    }

    async fn payments_asked(&self, told: &[PaymentAsked]) -> Result<()> {
        self.run(Access::Write, told.to_vec(), |tx, told| Box::pin(asked(tx, told))).await
    }

    async fn refund_is_due(&self, provider: &str, provider_txn: &str) -> Result<bool> {
        let payment = (provider.to_owned(), provider_txn.to_owned());
        self.run(Access::Write, payment, |tx, (provider, provider_txn)| {
            Box::pin(is_due(tx, provider, provider_txn))
        })
        .await
    }

    async fn refunds_waiting(&self, no: OrderNo) -> Result<Vec<RefundWaiting>> {
        self.run(Access::Statement, (), move |session, ()| Box::pin(waiting(session, no))).await
    }
}

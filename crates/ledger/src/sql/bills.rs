//! Bills of providers, day by day, beside what is on record here.

use std::collections::HashSet;

use async_trait::async_trait;
use sale::Millis;

use super::{
    Access, SqlLedger, archive,
    columns::get,
    failure::Outcome,
    payments::{PAYMENT_COLUMNS, read},
    session::{Row, Session, Value, values},
};
use crate::{BillDay, Bills, Noted, PaymentKind, PaymentRow, Result};

async fn days(session: &mut dyn Session, provider: &str, from_ms: Millis) -> Outcome<Vec<BillDay>> {
    let sql = "SELECT day_at, line_count, differences, compared_at FROM tb_bill_day
         WHERE provider = ? AND day_at >= ? ORDER BY day_at";
    let read = |row: &dyn Row| {
        Ok(BillDay {
            day_ms: get(row, 0)?,
            lines: get(row, 1)?,
            differences: get(row, 2)?,
            compared_ms: get(row, 3)?,
        })
    };
    session.rows(sql, values![provider, from_ms], read).await
}

async fn compared(
    tx: &mut dyn Session,
    provider: &str,
    day: &BillDay,
    forget_ms: Millis,
) -> Outcome<()> {
    let sql = "DELETE FROM tb_bill_day WHERE provider = ? AND (day_at = ? OR day_at < ?)";
    tx.execute(sql, values![provider, day.day_ms, forget_ms]).await?;
    let sql = "INSERT INTO tb_bill_day (provider, day_at, line_count, differences, compared_at)
         VALUES (?, ?, ?, ?, ?)";
    let BillDay { day_ms, lines, differences, compared_ms } = *day;
    let (lines, differences) = (lines as i64, differences as i64);
    tx.execute(sql, values![provider, day_ms, lines, differences, compared_ms]).await?;
    Ok(())
}

async fn by_txn(
    session: &mut dyn Session,
    provider: &str,
    txns: &[String],
) -> Outcome<Vec<PaymentRow>> {
    let mut found = by_txn_in_books(session, provider, txns).await?;
    let known: HashSet<&str> = found.iter().map(|row| row.provider_txn.as_str()).collect();
    let missing = txns.iter().filter(|txn| !known.contains(txn.as_str()));
    let missing: Vec<String> = missing.cloned().collect();
    found.extend(archive::payments_by_txn(session, provider, &missing).await?);
    Ok(found)
}

pub(super) async fn by_txn_in_books(
    session: &mut dyn Session,
    provider: &str,
    txns: &[String],
) -> Outcome<Vec<PaymentRow>> {
    let sql = format!(
        "SELECT {PAYMENT_COLUMNS} FROM tb_payment
         WHERE provider = ? AND provider_txn IN ? AND kind <> 0"
    );
    session.rows(&sql, values![provider, Value::list(txns.iter())], read).await
}

async fn noted(
    session: &mut dyn Session,
    (provider, kind): (&str, PaymentKind),
    Noted { from_ms, to_ms, after_id }: Noted,
    limit: usize,
) -> Outcome<Vec<(i64, PaymentRow)>> {
    let sql = format!(
        "SELECT {PAYMENT_COLUMNS}, id FROM tb_payment {}
         WHERE provider = ? AND kind = ? AND created_at >= ? AND created_at < ?
             AND (created_at > ? OR id > ?)
         ORDER BY created_at, id LIMIT ?",
        session.dialect().by_index("ix_payment_noted")
    );
    let read = |row: &dyn Row| Ok((get(row, 11)?, read(row)?));
    let kind = kind.code();
    let asked = values![provider, kind, from_ms, to_ms, from_ms, after_id, limit];
    session.rows(&sql, asked, read).await
}

#[async_trait]
impl Bills for SqlLedger {
    async fn bill_days(&self, provider: &str, from_ms: Millis) -> Result<Vec<BillDay>> {
        self.run(Access::Statement, provider.to_owned(), move |session, provider| {
            Box::pin(days(session, provider, from_ms))
        })
        .await
    }

    async fn bill_compared(&self, provider: &str, day: &BillDay, forget_ms: Millis) -> Result<()> {
        let day = *day;
        self.run(Access::Write, provider.to_owned(), move |tx, provider| {
            Box::pin(async move { compared(tx, provider, &day, forget_ms).await })
        })
        .await
    }

    async fn payments_by_txn(&self, provider: &str, txns: &[String]) -> Result<Vec<PaymentRow>> {
        let asked = (provider.to_owned(), txns.to_vec());
        self.run(Access::Statement, asked, |session, (provider, txns)| {
            Box::pin(by_txn(session, provider, txns))
        })
        .await
    }

    async fn payments_noted(
        &self,
        provider: &str,
        kind: PaymentKind,
        page: Noted,
        limit: usize,
    ) -> Result<Vec<(i64, PaymentRow)>> {
        self.run(Access::Statement, provider.to_owned(), move |session, provider| {
            Box::pin(noted(session, (provider, kind), page, limit))
        })
        .await
    }
}

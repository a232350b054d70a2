//! The outbox: what committed transactions still owe to others.
//!
//! A row is written in the transaction that causes it and deleted once delivered. It carries when to
//! try next; zero means at once, so that clocks that differ a little delay nothing.
//!
//! Two leased jobs empty it, one per queue. Should two run at once, both deliver the same rows, which is
//! idempotent at the other end; deleting or postponing a row that is gone changes nothing.

use async_trait::async_trait;
use sale::{Claim, Millis, OrderNo, UserId};

use super::{
    Access, SqlLedger,
    columns::{get, json},
    failure::Outcome,
    session::{Row, Session, Value, values},
};
use crate::{
    Outbox, OutboxMessage, OutboxQueue, OutboxRow, OutstandingRows, Release, Result,
    outbox::{
        ADJUST, OUTBOX_PAUSE_MS_MAX, RELEASE, kind_of, of_queue, payment_of, release_of, shortened,
    },
};

/// Writes a row. A refund of a payment whose refund waits already is not written again; answers
/// whether a row was written.
pub(super) async fn push(
    tx: &mut dyn Session,
    message: &OutboxMessage,
    now_ms: Millis,
) -> Outcome<bool> {
    let (provider, provider_txn) = payment_of(message);
    let body = serde_json::to_string(message)?;
    let sql = format!(
        "INSERT INTO tb_outbox (kind, body, provider, provider_txn, created_at)
         VALUES (?, ?, ?, ?, ?) {}",
        tx.dialect().keep("tries")
    );
    let asked = values![kind_of(message), body, provider, provider_txn, now_ms];
    let written = tx.execute(&sql, asked).await?;
    Ok(written == 1)
}

/// Tells the buyers of these orders that something changed.
pub(super) async fn push_events(
    tx: &mut dyn Session,
    orders: Vec<(OrderNo, UserId)>,
    now_ms: Millis,
) -> Outcome<()> {
    if !orders.is_empty() {
        push(tx, &OutboxMessage::OrderEvents { orders }, now_ms).await?;
    }
    Ok(())
}

/// Gives the units of claims that never became live orders back to the gate.
pub(super) async fn push_releases<'c>(
    tx: &mut dyn Session,
    claims: impl Iterator<Item = &'c Claim>,
    now_ms: Millis,
) -> Outcome<()> {
    let releases: Vec<Release> = claims.map(release_of).collect();
    if !releases.is_empty() {
        push(tx, &OutboxMessage::Release { releases }, now_ms).await?;
    }
    Ok(())
}

/// A row, or only its id if this binary cannot read it (a newer one wrote it): it is passed over with
/// an alarm, must not hold up the rows after it, and must not be lost.
fn readable(row: &dyn Row) -> Outcome<(i64, Option<OutboxRow>)> {
    let id = get(row, 0)?;
    let read = || -> Outcome<OutboxRow> {
        let (message, tries, created_ms) = (json(row, 1)?, get(row, 2)?, get(row, 3)?);
        Ok(OutboxRow { id, message, tries, created_ms })
    };
    let read = read().inspect_err(|error| {
        tracing::error!(id, ?error, "an outbox row cannot be read and stays where it is");
    });
    Ok((id, read.ok()))
}

async fn due(
    session: &mut dyn Session,
    queue: OutboxQueue,
    now_ms: Millis,
    limit: usize,
) -> Outcome<Vec<OutboxRow>> {
    let sql = format!(
        "SELECT id, body, tries, created_at FROM tb_outbox
         WHERE {} AND (next_try_at <= ? OR next_try_at > ?) AND id > ? ORDER BY id LIMIT ?",
        of_queue(queue)
    );
    let too_late_ms = now_ms.saturating_add(OUTBOX_PAUSE_MS_MAX);
    let mut due = Vec::new();
    let mut last_id = i64::MIN;
    while due.len() < limit {
        let missing = limit - due.len();
        let page =
            session.rows(&sql, values![now_ms, too_late_ms, last_id, missing], readable).await?;
        let ended = page.len() < missing;
        last_id = page.last().map_or(last_id, |(id, _)| *id);
        due.extend(page.into_iter().filter_map(|(_, row)| row));
        if ended {
            break;
        }
    }
    Ok(due)
}

/// Every waiting row that is for the gate, due or not.
pub(super) async fn waiting_for_gate(session: &mut dyn Session) -> Outcome<Vec<OutboxMessage>> {
    let sql = "SELECT id, body, tries, created_at FROM tb_outbox WHERE kind IN (?, ?) ORDER BY id";
    let rows = session.rows(sql, values![RELEASE, ADJUST], readable).await?;
    Ok(rows.into_iter().filter_map(|(_, row)| row).map(|row| row.message).collect())
}

async fn done(tx: &mut dyn Session, ids: &[i64]) -> Outcome<()> {
    let ids = Value::list(ids.iter().copied());
    tx.execute("DELETE FROM tb_outbox WHERE id IN ?", &[ids]).await?;
    Ok(())
}

async fn later(tx: &mut dyn Session, id: i64, next_try_ms: Millis, cause: &str) -> Outcome<()> {
    let sql = "UPDATE tb_outbox SET tries = tries + 1, next_try_at = ?, cause = ? WHERE id = ?";
    tx.execute(sql, values![next_try_ms, shortened(cause), id]).await?;
    Ok(())
}

pub(super) async fn by_kind(session: &mut dyn Session) -> Outcome<Vec<OutstandingRows>> {
    let sql = "SELECT kind, COUNT(*), MIN(created_at) FROM tb_outbox GROUP BY kind ORDER BY kind";
    let read = |row: &dyn Row| {
        Ok(OutstandingRows { kind: get(row, 0)?, rows: get(row, 1)?, oldest_ms: get(row, 2)? })
    };
    session.rows(sql, &[], read).await
}

async fn depth(session: &mut dyn Session) -> Outcome<u64> {
    let depth = session.first("SELECT COUNT(*) FROM tb_outbox", &[], |row| get(row, 0)).await?;
    Ok(depth.unwrap_or(0))
}

#[async_trait]
impl Outbox for SqlLedger {
    async fn outbox_due(
        &self,
        queue: OutboxQueue,
        now_ms: Millis,
        limit: usize,
    ) -> Result<Vec<OutboxRow>> {
        self.run(Access::Statement, (), move |session, ()| {
            Box::pin(due(session, queue, now_ms, limit))
        })
        .await
    }

    async fn outbox_done(&self, ids: &[i64]) -> Result<()> {
        self.run(Access::Write, ids.to_vec(), |tx, ids| Box::pin(done(tx, ids))).await
    }

    async fn outbox_later(&self, id: i64, next_try_ms: Millis, cause: &str) -> Result<()> {
        self.run(Access::Write, cause.to_owned(), move |tx, cause| {
            Box::pin(later(tx, id, next_try_ms, cause))
        })
        .await
    }

    async fn outbox_depth(&self) -> Result<u64> {
        self.run(Access::Statement, (), |session, ()| Box::pin(depth(session))).await
    }
}

//! The outbox: what committed transactions still owe to others.
//!
//! A row is written in the transaction that causes it and deleted once delivered. It carries when to
//! try next; zero means at once, so that clocks that differ a little delay nothing.

use rusqlite::{Connection, Row, params};
use sale::{Claim, Millis, OrderNo, UserId};

use super::{columns::json, failure::Outcome};
use crate::{
    OutboxMessage, OutboxQueue, OutboxRow, OutstandingRows, Release,
    outbox::{
        ADJUST, OUTBOX_PAUSE_MS_MAX, RELEASE, kind_of, of_queue, payment_of, release_of, shortened,
    },
};

/// Writes a row. A refund of a payment whose refund waits already is not written again; answers
/// whether a row was written.
pub(super) fn push(tx: &Connection, message: &OutboxMessage, now_ms: Millis) -> Outcome<bool> {
    let (provider, provider_txn) = payment_of(message);
    let written = tx
        .prepare_cached(
            "INSERT INTO tb_outbox (kind, body, provider, provider_txn, created_at)
             VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (provider, provider_txn) WHERE provider_txn IS NOT NULL DO NOTHING",
        )?
        .execute(params![
            kind_of(message),
            serde_json::to_string(message)?,
            provider,
            provider_txn,
            now_ms
        ])?;
    Ok(written == 1)
}

/// Tells the buyers of these orders that something changed.
pub(super) fn push_news(
    tx: &Connection,
    orders: Vec<(OrderNo, UserId)>,
    now_ms: Millis,
) -> Outcome<()> {
    if !orders.is_empty() {
        push(tx, &OutboxMessage::News { orders }, now_ms)?;
    }
    Ok(())
}

/// Gives the units of claims that never became live orders back to the gate.
pub(super) fn push_releases<'c>(
    tx: &Connection,
    claims: impl IntoIterator<Item = &'c Claim>,
    now_ms: Millis,
) -> Outcome<()> {
    let releases: Vec<Release> = claims.into_iter().map(release_of).collect();
    if !releases.is_empty() {
        push(tx, &OutboxMessage::Release { releases }, now_ms)?;
    }
    Ok(())
}

fn read(row: &Row<'_>) -> rusqlite::Result<OutboxRow> {
    Ok(OutboxRow {
        id: row.get(0)?,
        message: json(row, 1)?,
        tries: row.get(2)?,
        created_ms: row.get(3)?,
    })
}

/// A row this binary cannot read (a newer one wrote it) is passed over with an alarm: it must not
/// hold up the rows after it, and it must not be lost.
fn readable(row: &Row<'_>) -> Option<OutboxRow> {
    read(row)
        .inspect_err(|error| {
            let id = row.get::<_, i64>(0).unwrap_or_default();
            tracing::error!(id, %error, "an outbox row cannot be read and stays where it is");
        })
        .ok()
}

pub(super) fn due(
    conn: &Connection,
    queue: OutboxQueue,
    now_ms: Millis,
    limit: usize,
) -> Outcome<Vec<OutboxRow>> {
    let sql = format!(
        "SELECT id, body, tries, created_at FROM tb_outbox
         WHERE {} AND (next_try_at <= ?1 OR next_try_at > ?2) ORDER BY id",
        of_queue(queue)
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([now_ms, now_ms.saturating_add(OUTBOX_PAUSE_MS_MAX)])?;
    let mut due = Vec::new();
    while due.len() < limit
        && let Some(row) = rows.next()?
    {
        due.extend(readable(row));
    }
    Ok(due)
}

/// Every waiting row that is for the gate, due or not.
pub(super) fn waiting_for_gate(conn: &Connection) -> Outcome<Vec<OutboxMessage>> {
    let mut statement = conn.prepare_cached(
        "SELECT id, body, tries, created_at FROM tb_outbox WHERE kind IN (?1, ?2) ORDER BY id",
    )?;
    let mut rows = statement.query([RELEASE, ADJUST])?;
    let mut waiting = Vec::new();
    while let Some(row) = rows.next()? {
        waiting.extend(readable(row).map(|row| row.message));
    }
    Ok(waiting)
}

pub(super) fn done(tx: &Connection, ids: &[i64]) -> Outcome<()> {
    let mut delete = tx.prepare_cached("DELETE FROM tb_outbox WHERE id = ?1")?;
    for id in ids {
        delete.execute([id])?;
    }
    Ok(())
}

pub(super) fn later(tx: &Connection, id: i64, next_try_ms: Millis, cause: &str) -> Outcome<()> {
    tx.prepare_cached(
        "UPDATE tb_outbox SET tries = tries + 1, next_try_at = ?1, cause = ?2 WHERE id = ?3",
    )?
    .execute(params![next_try_ms, shortened(cause), id])?;
    Ok(())
}

pub(super) fn by_kind(conn: &Connection) -> Outcome<Vec<OutstandingRows>> {
    let mut statement = conn.prepare_cached(
        "SELECT kind, COUNT(*), MIN(created_at) FROM tb_outbox GROUP BY kind ORDER BY kind",
    )?;
    let read = |row: &Row<'_>| {
        let rows = row.get::<_, i64>(1)? as u64;
        Ok(OutstandingRows { kind: row.get(0)?, rows, oldest_ms: row.get(2)? })
    };
    let counted: rusqlite::Result<Vec<_>> = statement.query_map([], read)?.collect();
    Ok(counted?)
}

pub(super) fn depth(conn: &Connection) -> Outcome<u64> {
    let depth: i64 =
        conn.prepare_cached("SELECT COUNT(*) FROM tb_outbox")?.query_row([], |row| row.get(0))?;
    Ok(depth as u64)
}

//! The outbox: what committed transactions still owe to others.
//!
//! A row is written in the transaction that causes it and deleted once delivered. It carries when to
//! try next; zero means at once, so that clocks that differ a little delay nothing.
//!
//! Two leased jobs empty it, one per queue. Should two run at once, both deliver the same rows, which is idempotent
//! at the other end; deleting or postponing a row that is gone changes nothing.

use mysql_async::Row;
use sale::{Claim, Millis, OrderNo, UserId};

use super::{
    columns::{at_most, get, json},
    connections::Session,
    failure::Outcome,
};
use crate::{
    OutboxMessage, OutboxQueue, OutboxRow, OutstandingRows, Release,
    outbox::{
        ADJUST, OUTBOX_PAUSE_MS_MAX, RELEASE, kind_of, of_queue, payment_of, release_of, shortened,
    },
};

/// Ids of one DELETE.
const IDS_PER_DELETE_MAX: usize = 500;

/// Writes a row. A refund of a payment whose refund waits already is not written again; answers
/// whether a row was written.
pub(super) async fn push(
    tx: &mut Session,
    message: &OutboxMessage,
    now_ms: Millis,
) -> Outcome<bool> {
    let (provider, provider_txn) = payment_of(message);
    let body = serde_json::to_string(message)?;
    // Not INSERT IGNORE, which would ignore a body that does not fit as well.
    let written = tx
        .change(
            "INSERT INTO tb_outbox (kind, body, provider, provider_txn, created_at)
             VALUES (?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE tries = tries",
            (kind_of(message), body, provider, provider_txn, now_ms),
        )
        .await?;
    Ok(written == 1)
}

/// Tells the buyers of these orders that something changed.
pub(super) async fn push_news(
    tx: &mut Session,
    orders: Vec<(OrderNo, UserId)>,
    now_ms: Millis,
) -> Outcome<()> {
    if !orders.is_empty() {
        push(tx, &OutboxMessage::News { orders }, now_ms).await?;
    }
    Ok(())
}

/// Gives the units of claims that never became live orders back to the gate.
pub(super) async fn push_releases<'c>(
    tx: &mut Session,
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
fn readable(row: &Row) -> Outcome<(i64, Option<OutboxRow>)> {
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

pub(super) async fn due(
    session: &mut Session,
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
            session.all(&sql, (now_ms, too_late_ms, last_id, at_most(missing)), readable).await?;
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
pub(super) async fn waiting_for_gate(session: &mut Session) -> Outcome<Vec<OutboxMessage>> {
    let sql = "SELECT id, body, tries, created_at FROM tb_outbox WHERE kind IN (?, ?) ORDER BY id";
    let rows = session.all(sql, (RELEASE, ADJUST), readable).await?;
    Ok(rows.into_iter().filter_map(|(_, row)| row).map(|row| row.message).collect())
}

pub(super) async fn done(tx: &mut Session, ids: &[i64]) -> Outcome<()> {
    for ids in ids.chunks(IDS_PER_DELETE_MAX) {
        let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
        let sql = format!("DELETE FROM tb_outbox WHERE id IN ({})", ids.join(","));
        tx.change_by_text(&sql).await?;
    }
    Ok(())
}

pub(super) async fn later(
    tx: &mut Session,
    id: i64,
    next_try_ms: Millis,
    cause: &str,
) -> Outcome<()> {
    let sql = "UPDATE tb_outbox SET tries = tries + 1, next_try_at = ?, cause = ? WHERE id = ?";
    tx.change(sql, (next_try_ms, shortened(cause), id)).await?;
    Ok(())
}

pub(super) async fn by_kind(session: &mut Session) -> Outcome<Vec<OutstandingRows>> {
    let sql = "SELECT kind, COUNT(*), MIN(created_at) FROM tb_outbox GROUP BY kind ORDER BY kind";
    let read = |row: &Row| {
        Ok(OutstandingRows { kind: get(row, 0)?, rows: get(row, 1)?, oldest_ms: get(row, 2)? })
    };
    session.all(sql, (), read).await
}

pub(super) async fn depth(session: &mut Session) -> Outcome<u64> {
    let depth = session.first("SELECT COUNT(*) FROM tb_outbox", (), |row| get(row, 0)).await?;
    Ok(depth.unwrap_or(0))
}

//! The outbox: what committed transactions still owe to others.
//!
//! A row is written in the transaction that causes it and deleted once delivered. It carries when to
//! try next; zero means at once, so that clocks that differ a little delay nothing.
//!
//! Each kind is emptied by a leased job of its own. Should two run at once, both deliver the same rows, which
//! is idempotent at the other end; deleting or postponing a row that is gone changes nothing.
//!
//! **Order.** Rows of one kind that nothing stands in the way of are read in the order they were written.
//! One that failed is overtaken by later ones, and must be able to stand it: units and adjustments are
//! deltas by number, a release acts only on the mark of its own order, news say *look again*, a refund
//! names its payment.
//!
//! **A million rows.** What is due, for whom something waits and how much waits are each found by an
//! index, so that a batch costs the same however long the queue is.

use std::collections::BTreeMap;

use async_trait::async_trait;
use sale::{ItemId, Millis, OrderNo, UserId};

use super::{
    Access, SqlLedger,
    columns::{get, json},
    failure::Outcome,
    session::{Row, Session, Value, values},
};
use crate::{
    Outbox, OutboxKind, OutboxMessage, OutboxRow, OutboxWait, OutstandingRows, Release, Result,
    outbox::{NO_ITEM, OUTBOX_PAUSE_MS_MAX, item_of, payment_of, shortened},
};

/// Rows of one kind that are counted. A queue that is longer is long, and nobody need know how long.
const COUNTED_ROWS_MAX: usize = 100_000;

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
        "INSERT INTO tb_outbox (kind, body, provider, provider_txn, product_id, created_at)
         VALUES (?, ?, ?, ?, ?, ?) {}",
        tx.dialect().keep("tries")
    );
    let (kind, item) = (message.kind().as_str(), item_of(message));
    let asked = values![kind, body, provider, provider_txn, item, now_ms];
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

/// Gives units back to the gate: a row for each item, so that those of one never wait for another.
pub(super) async fn push_releases(
    tx: &mut dyn Session,
    releases: impl Iterator<Item = Release>,
    now_ms: Millis,
) -> Outcome<()> {
    let mut by_item: BTreeMap<ItemId, Vec<Release>> = BTreeMap::new();
    releases.for_each(|release| by_item.entry(release.item).or_default().push(release));
    for releases in by_item.into_values() {
        push(tx, &OutboxMessage::Release { releases }, now_ms).await?;
    }
    Ok(())
}

const ROW_COLUMNS: &str = "id, body, tries, created_at";

/// A row whose message cannot be read must not hold up those after it, and must not be lost.
fn row_of(row: &dyn Row) -> Outcome<OutboxRow> {
    let message = json(row, 1).map_err(|failure| format!("{failure:?}"));
    Ok(OutboxRow { id: get(row, 0)?, message, tries: get(row, 2)?, created_ms: get(row, 3)? })
}

async fn due(
    session: &mut dyn Session,
    kind: OutboxKind,
    waits_for: &str,
    now_ms: Millis,
    limit: usize,
) -> Outcome<Vec<OutboxRow>> {
    let sql = format!(
        "SELECT {ROW_COLUMNS} FROM tb_outbox {}
         WHERE kind = ? AND waits_for = ? AND (next_try_at <= ? OR next_try_at > ?)
         ORDER BY next_try_at, id LIMIT ?",
        session.dialect().by_index("ix_outbox_due")
    );
    let too_late_ms = now_ms.saturating_add(OUTBOX_PAUSE_MS_MAX);
    let asked = values![kind.as_str(), waits_for, now_ms, too_late_ms, limit];
    session.rows(&sql, asked, row_of).await
}

/// The names that rows have in a column, from one to the next by its index.
async fn next_name(
    session: &mut dyn Session,
    sql: &str,
    asked: &[Value<'_>],
) -> Outcome<Option<String>> {
    Ok(session.first(sql, asked, |row| get::<Option<String>>(row, 0)).await?.flatten())
}

async fn parties(
    session: &mut dyn Session,
    kind: OutboxKind,
    after: &str,
    limit: usize,
) -> Outcome<Vec<String>> {
    let sql = "SELECT MIN(waits_for) FROM tb_outbox WHERE kind = ? AND waits_for > ?";
    let (mut found, mut last) = (Vec::new(), after.to_owned());
    while found.len() < limit
        && let Some(party) = next_name(session, sql, values![kind.as_str(), &last]).await?
    {
        last.clone_from(&party);
        found.push(party);
    }
    Ok(found)
}

/// Every waiting row that is for the gate and may be about this item, due or not.
pub(super) async fn waiting_for_gate(
    session: &mut dyn Session,
    item: ItemId,
) -> Outcome<Vec<OutboxMessage>> {
    let sql = format!(
        "SELECT {ROW_COLUMNS} FROM tb_outbox
         WHERE product_id IN (?, ?) AND kind IN (?, ?) ORDER BY id"
    );
    let [release, adjust] = [OutboxKind::Release, OutboxKind::Adjust].map(OutboxKind::as_str);
    let rows = session.rows(&sql, values![item, NO_ITEM, release, adjust], row_of).await?;
    Ok(rows.into_iter().filter_map(|row| row.message.ok()).collect())
}

async fn done(tx: &mut dyn Session, ids: &[i64]) -> Outcome<()> {
    let ids = Value::list(ids.iter().copied());
    tx.execute("DELETE FROM tb_outbox WHERE id IN ?", &[ids]).await?;
    Ok(())
}

async fn later(tx: &mut dyn Session, id: i64, next_try_ms: Millis, cause: &str) -> Outcome<()> {
    let sql = "UPDATE tb_outbox SET tries = tries + 1, next_try_at = ?, waits_for = '', cause = ?
         WHERE id = ?";
    tx.execute(sql, values![next_try_ms, shortened(cause), id]).await?;
    Ok(())
}

async fn wait(tx: &mut dyn Session, ids: &[i64], wait: &OutboxWait) -> Outcome<()> {
    let OutboxWait { waits_for, next_try_ms, tried, cause } = wait;
    let sql = "UPDATE tb_outbox SET waits_for = ?, next_try_at = ?, tries = tries + ?, cause = ?
         WHERE id IN ?";
    let ids = Value::list(ids.iter().copied());
    tx.execute(sql, values![waits_for, *next_try_ms, *tried, shortened(cause), ids]).await?;
    Ok(())
}

async fn split(
    tx: &mut dyn Session,
    (id, created_ms): (i64, Millis),
    parts: &[OutboxMessage],
) -> Outcome<()> {
    let gone = tx.execute("DELETE FROM tb_outbox WHERE id = ?", values![id]).await? == 0;
    for part in parts.iter().filter(|_| !gone) {
        push(tx, part, created_ms).await?;
    }
    Ok(())
}

pub(super) async fn by_kind(session: &mut dyn Session) -> Outcome<Vec<OutstandingRows>> {
    let counting = format!(
        "SELECT COUNT(*), MIN(created_at) FROM
             (SELECT created_at FROM tb_outbox {} WHERE kind = ? ORDER BY created_at LIMIT ?) AS oldest",
        session.dialect().by_index("ix_outbox_age")
    );
    let sql = "SELECT MIN(kind) FROM tb_outbox WHERE kind > ?";
    let (mut found, mut last) = (Vec::new(), String::new());
    while let Some(kind) = next_name(session, sql, values![&last]).await? {
        let counted = |row: &dyn Row| Ok((get::<u64>(row, 0)?, get::<Option<Millis>>(row, 1)?));
        let counted = session.first(&counting, values![&kind, COUNTED_ROWS_MAX], counted).await?;
        last.clone_from(&kind);
        // Between the two statements the last of them may have been delivered.
        if let Some((rows, Some(oldest_ms))) = counted {
            found.push(OutstandingRows { kind, rows, oldest_ms });
        }
    }
    Ok(found)
}

#[async_trait]
impl Outbox for SqlLedger {
    async fn outbox_due(
        &self,
        kind: OutboxKind,
        waits_for: &str,
        now_ms: Millis,
        limit: usize,
    ) -> Result<Vec<OutboxRow>> {
        self.run(Access::Statement, waits_for.to_owned(), move |session, waits_for| {
            Box::pin(due(session, kind, waits_for, now_ms, limit))
        })
        .await
    }

    async fn outbox_parties(
        &self,
        kind: OutboxKind,
        after: &str,
        limit: usize,
    ) -> Result<Vec<String>> {
        self.run(Access::Statement, after.to_owned(), move |session, after| {
            Box::pin(parties(session, kind, after, limit))
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

    async fn outbox_wait(&self, ids: &[i64], how: &OutboxWait) -> Result<()> {
        self.run(Access::Write, (ids.to_vec(), how.clone()), |tx, (ids, how)| {
            Box::pin(wait(tx, ids, how))
        })
        .await
    }

    async fn outbox_split(&self, row: &OutboxRow, parts: &[OutboxMessage]) -> Result<()> {
        let asked = ((row.id, row.created_ms), parts.to_vec());
        self.run(Access::Write, asked, |tx, (row, parts)| Box::pin(split(tx, *row, parts))).await
    }
}

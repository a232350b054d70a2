//! Stock: adjusted by operators, returned by orders that are over, and the log of every change.
//!
//! The rows of one item form a chain in the order of their ids: each `before_stock` is the
//! `after_stock` of the row before. Creating an item writes no row; its first change starts the
//! chain at the item's initial total.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Row, params};
use sale::{Invalid, ItemId, Millis, OrderNo};

use super::{
    columns::{at_most, coded, parsed},
    failure::{Failure, Outcome},
    operators, outbox,
};
use crate::{
    Adjusted, AuditEntry, OutboxMessage, Release, StockLogRow, StockLogType,
    columns::STOCK_LOG_COLUMNS, shelf::Level,
};

pub(super) const INSERT_LOG: &str = "INSERT INTO tb_stock_log (order_no, product_id, product_name, \
     quantity, before_stock, after_stock, type, create_time) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

fn read_log(row: &Row<'_>) -> rusqlite::Result<StockLogRow> {
    Ok(StockLogRow {
        id: row.get(0)?,
        order_no: parsed(row, 1)?,
        item: ItemId(row.get(2)?),
        item_name: row.get(3)?,
        quantity: row.get(4)?,
        before_stock: row.get(5)?,
        after_stock: row.get(6)?,
        kind: coded(row, 7, StockLogType::from_code)?,
        created_ms: row.get(8)?,
    })
}

fn level(tx: &Connection, item: ItemId) -> Outcome<Option<Level>> {
    let read = |row: &Row<'_>| {
        Ok(Level {
            name: row.get(0)?,
            stock: row.get(1)?,
            total: row.get(2)?,
            version: row.get(3)?,
        })
    };
    Ok(tx
        .prepare_cached("SELECT name, stock, total, version FROM tb_seckill_product WHERE id = ?1")?
        .query_row([item.0], read)
        .optional()?)
}

pub(super) fn adjust(
    tx: &Connection,
    item: ItemId,
    delta: i64,
    adjust_no: OrderNo,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<Adjusted> {
    if let Some(done) = adjusted(tx, adjust_no)? {
        if (done.item, done.quantity) != (item, delta) {
            let problem = "was used for another adjustment";
            return Err(Failure::Refused(Invalid::new("adjust_no", problem)));
        }
        return Ok(Adjusted { before: done.before_stock, after: done.after_stock, repeated: true });
    }
    let level = level(tx, item)?.ok_or(Failure::NotFound)?;
    let after = level.adjusted(delta).map_err(Failure::Refused)?;
    let changed = tx
        .prepare_cached(
            "UPDATE tb_seckill_product
             SET stock = stock + ?1, total = total + ?1, version = version + 1
             WHERE id = ?2 AND version = ?3",
        )?
        .execute(params![delta, item.0, level.version])?;
    if changed == 0 {
        return Err(Failure::Contended);
    }
    tx.prepare_cached(INSERT_LOG)?.execute(params![
        adjust_no.to_string(),
        item.0,
        level.name,
        delta,
        level.stock,
        after,
        StockLogType::Adjust.code(),
        now_ms
    ])?;
    outbox::push(tx, &OutboxMessage::Adjust { item, adjust_no, delta }, now_ms)?;
    let entry = audit.with("before", level.stock).with("after", after);
    operators::audit(tx, &entry, now_ms)?;
    Ok(Adjusted { before: level.stock, after, repeated: false })
}

/// The log row of an adjustment made earlier.
pub(super) fn adjusted(conn: &Connection, adjust_no: OrderNo) -> Outcome<Option<StockLogRow>> {
    let sql =
        format!("SELECT {STOCK_LOG_COLUMNS} FROM tb_stock_log WHERE order_no = ?1 AND type = ?2");
    let asked = params![adjust_no.to_string(), StockLogType::Adjust.code()];
    Ok(conn.prepare_cached(&sql)?.query_row(asked, read_log).optional()?)
}

/// The numbers of all adjustments of an item.
pub(super) fn adjustments_of(conn: &Connection, item: ItemId) -> Outcome<Vec<OrderNo>> {
    let mut statement = conn.prepare_cached(
        "SELECT order_no FROM tb_stock_log WHERE product_id = ?1 AND type = 3 ORDER BY id",
    )?;
    let rows = statement.query_map([item.0], |row| parsed(row, 0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn log(
    conn: &Connection,
    item: ItemId,
    after_id: i64,
    limit: usize,
) -> Outcome<Vec<StockLogRow>> {
    let sql = format!(
        "SELECT {STOCK_LOG_COLUMNS} FROM tb_stock_log WHERE product_id = ?1 AND id > ?2
         ORDER BY id LIMIT ?3"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(params![item.0, after_id, at_most(limit)], read_log)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Gives the units of orders that just stopped being live back to their items, forgets their
/// buyers' records, and leaves the gate's share of the work in the outbox.
///
/// The caller has moved each order out of its live status in this transaction; that move is what
/// makes a second return impossible, and the unique `(order_no, type)` of the log says so again.
pub(super) fn return_units(tx: &Connection, releases: Vec<Release>, now_ms: Millis) -> Outcome<()> {
    let mut by_item: BTreeMap<ItemId, Vec<&Release>> = BTreeMap::new();
    for release in &releases {
        by_item.entry(release.item).or_default().push(release);
    }
    for (item, releases) in by_item {
        return_to_item(tx, item, &releases, now_ms)?;
    }
    if !releases.is_empty() {
        outbox::push(tx, &OutboxMessage::Release { releases }, now_ms)?;
    }
    Ok(())
}

fn return_to_item(
    tx: &Connection,
    item: ItemId,
    releases: &[&Release],
    now_ms: Millis,
) -> Outcome<()> {
    let level = level(tx, item)?
        .ok_or_else(|| Failure::Broken(format!("item {item} has orders but no row")))?;
    let mut log = tx.prepare_cached(INSERT_LOG)?;
    let mut forget = tx.prepare_cached(
        "DELETE FROM tb_user_seckill WHERE product_id = ?1 AND user_id = ?2 AND order_no = ?3",
    )?;
    let mut stock = level.stock;
    for release in releases {
        let order_no = release.order_no.to_string();
        let after = stock + i64::from(release.quantity);
        let kind = StockLogType::Return.code();
        log.execute(params![
            order_no,
            item.0,
            level.name,
            release.quantity,
            stock,
            after,
            kind,
            now_ms
        ])?;
        forget.execute(params![item.0, release.user.as_str(), order_no])?;
        stock = after;
    }
    let changed = tx
        .prepare_cached(
            "UPDATE tb_seckill_product SET stock = ?1, version = version + 1
             WHERE id = ?2 AND version = ?3",
        )?
        .execute(params![stock, item.0, level.version])?;
    if changed == 0 { Err(Failure::Contended) } else { Ok(()) }
}

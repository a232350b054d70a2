//! Stock: adjusted by operators, returned by orders that are over, and the log of every change.
//!
//! The rows of one item form a chain in the order of their ids: each `before_stock` is the
//! `after_stock` of the row before. Creating an item writes no row; its first change starts the
//! chain at the item's initial total.
//!
//! Whoever changes the stock of an item, or writes orders or dead letters of its claims, holds the
//! lock of its row first. Changes of one item are therefore made one after the other, and the
//! version, still checked, moves under nobody's feet unless somebody comes by the back door.

use std::collections::BTreeMap;

use mysql_async::Row;
use sale::{Invalid, ItemId, Millis, OrderNo};

use super::{
    columns::{at_most, coded, get, parsed},
    connections::Session,
    failure::{Failure, Outcome},
    operators, outbox,
    text::{Insert, lists, number_lists},
};
use crate::{
    Adjusted, AuditEntry, OutboxMessage, Release, StockLogRow, StockLogType,
    columns::STOCK_LOG_COLUMNS, shelf::Level,
};

pub(super) const INSERT_LOG: &str = "INSERT INTO tb_stock_log (order_no, product_id, product_name, \
     quantity, before_stock, after_stock, type, create_time) VALUES ";

fn read_log(row: &Row) -> Outcome<StockLogRow> {
    Ok(StockLogRow {
        id: get(row, 0)?,
        order_no: parsed(row, 1)?,
        item: ItemId(get(row, 2)?),
        item_name: get(row, 3)?,
        quantity: get(row, 4)?,
        before_stock: get(row, 5)?,
        after_stock: get(row, 6)?,
        kind: coded(row, 7, StockLogType::from_code)?,
        created_ms: get(row, 8)?,
    })
}

/// The item's stock, which nobody else can change before this transaction ends.
async fn locked_level(tx: &mut Session, item: ItemId) -> Outcome<Option<Level>> {
    let read = |row: &Row| {
        Ok(Level {
            name: get(row, 0)?,
            stock: get(row, 1)?,
            total: get(row, 2)?,
            version: get(row, 3)?,
        })
    };
    let sql = "SELECT name, stock, total, version FROM tb_seckill_product WHERE id = ? FOR UPDATE";
    tx.first(sql, (item.0,), read).await
}

/// Holds the rows of these items, in the order everybody takes them in.
pub(super) async fn lock_items(
    tx: &mut Session,
    items: impl Iterator<Item = ItemId>,
) -> Outcome<()> {
    let items: std::collections::BTreeSet<ItemId> = items.collect();
    for item in items {
        let sql = "SELECT id FROM tb_seckill_product WHERE id = ? FOR UPDATE";
        tx.first(sql, (item.0,), |row| get::<i64>(row, 0)).await?;
    }
    Ok(())
}

pub(super) async fn adjust(
    tx: &mut Session,
    item: ItemId,
    delta: i64,
    adjust_no: OrderNo,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<Adjusted> {
    let level = locked_level(tx, item).await?;
    if let Some(done) = adjusted(tx, adjust_no).await? {
        if (done.item, done.quantity) != (item, delta) {
            let problem = "was used for another adjustment";
            return Err(Failure::Refused(Invalid::new("adjust_no", problem)));
        }
        return Ok(Adjusted { before: done.before_stock, after: done.after_stock, repeated: true });
    }
    let level = level.ok_or(Failure::NotFound)?;
    let after = level.adjusted(delta).map_err(Failure::Refused)?;
    let changed = tx
        .change(
            "UPDATE tb_seckill_product
             SET stock = stock + ?, total = total + ?, version = version + 1
             WHERE id = ? AND version = ?",
            (delta, delta, item.0, level.version),
        )
        .await?;
    if changed == 0 {
        return Err(Failure::Contended);
    }
    let mut log = Insert::new(tx, INSERT_LOG, "");
    log.row(&[
        adjust_no.to_string().as_str().into(),
        item.0.into(),
        level.name.as_str().into(),
        delta.into(),
        level.stock.into(),
        after.into(),
        StockLogType::Adjust.code().into(),
        now_ms.into(),
    ]);
    log.send(tx).await?;
    outbox::push(tx, &OutboxMessage::Adjust { item, adjust_no, delta }, now_ms).await?;
    let entry = audit.with("before", level.stock).with("after", after);
    operators::audit(tx, &entry, now_ms).await?;
    Ok(Adjusted { before: level.stock, after, repeated: false })
}

/// The log row of an adjustment made earlier.
pub(super) async fn adjusted(
    session: &mut Session,
    adjust_no: OrderNo,
) -> Outcome<Option<StockLogRow>> {
    let sql =
        format!("SELECT {STOCK_LOG_COLUMNS} FROM tb_stock_log WHERE order_no = ? AND type = ?");
    session.first(&sql, (adjust_no.to_string(), StockLogType::Adjust.code()), read_log).await
}

/// The numbers of all adjustments of an item.
pub(super) async fn adjustments_of(session: &mut Session, item: ItemId) -> Outcome<Vec<OrderNo>> {
    let sql = "SELECT order_no FROM tb_stock_log WHERE product_id = ? AND type = 3 ORDER BY id";
    session.all(sql, (item.0,), |row| parsed(row, 0)).await
}

pub(super) async fn log(
    session: &mut Session,
    item: ItemId,
    after_id: i64,
    limit: usize,
) -> Outcome<Vec<StockLogRow>> {
    let sql = format!(
        "SELECT {STOCK_LOG_COLUMNS} FROM tb_stock_log WHERE product_id = ? AND id > ?
         ORDER BY id LIMIT ?"
    );
    session.all(&sql, (item.0, after_id, at_most(limit)), read_log).await
}

/// Gives the units of orders that just stopped being live back to their items, forgets their
/// buyers' records, and leaves the gate's share of the work in the outbox.
///
/// The caller has moved each order out of its live status in this transaction; that move is what
/// makes a second return impossible, and the unique `(order_no, type)` of the log says so again.
pub(super) async fn return_units(
    tx: &mut Session,
    releases: Vec<Release>,
    now_ms: Millis,
) -> Outcome<()> {
    let mut by_item: BTreeMap<ItemId, Vec<&Release>> = BTreeMap::new();
    for release in &releases {
        by_item.entry(release.item).or_default().push(release);
    }
    for (item, releases) in by_item {
        return_to_item(tx, item, &releases, now_ms).await?;
    }
    if !releases.is_empty() {
        outbox::push(tx, &OutboxMessage::Release { releases }, now_ms).await?;
    }
    Ok(())
}

async fn return_to_item(
    tx: &mut Session,
    item: ItemId,
    releases: &[&Release],
    now_ms: Millis,
) -> Outcome<()> {
    let level = locked_level(tx, item).await?;
    let level =
        level.ok_or_else(|| Failure::Broken(format!("item {item} has orders but no row")))?;
    let mut log = Insert::new(tx, INSERT_LOG, "");
    let mut stock = level.stock;
    for release in releases {
        let after = stock + i64::from(release.quantity);
        log.row(&[
            release.order_no.to_string().as_str().into(),
            item.0.into(),
            level.name.as_str().into(),
            release.quantity.into(),
            stock.into(),
            after.into(),
            StockLogType::Return.code().into(),
            now_ms.into(),
        ]);
        stock = after;
    }
    log.send(tx).await?;
    forget_buyers(tx, item, releases).await?;
    let changed = tx
        .change(
            "UPDATE tb_seckill_product SET stock = ?, version = version + 1
             WHERE id = ? AND version = ?",
            (stock, item.0, level.version),
        )
        .await?;
    if changed == 0 { Err(Failure::Contended) } else { Ok(()) }
}

/// Deletes the records of these orders. A record names an order of its own buyer, so a record of one
/// of these buyers that names one of these orders is the record of one of these pairs.
async fn forget_buyers(tx: &mut Session, item: ItemId, releases: &[&Release]) -> Outcome<()> {
    let users = lists(releases.iter().map(|release| release.user.as_str()));
    let numbers = number_lists(releases.iter().map(|release| release.order_no));
    // Cut at the same places, for they are equally long.
    for (users, numbers) in users.iter().zip(&numbers) {
        let sql = format!(
            "DELETE FROM tb_user_seckill
             WHERE product_id = {item} AND user_id IN {users} AND order_no IN {numbers}"
        );
        tx.change_by_text(&sql).await?;
    }
    Ok(())
}

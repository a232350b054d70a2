//! The ledger's side of a comparison with the gate, each answer of one instant.

use rusqlite::{Connection, OptionalExtension, Row, params};
use sale::{ItemId, OrderNo};

use super::{
    activities, dead_letters,
    failure::{Failure, Outcome},
    orders, outbox,
};
use crate::{
    ItemBooks,
    outbox::{pending_adjusts, pending_releases},
};

/// A chain broken in more places than this is no longer read row by row.
const CHAIN_BREAKS_MAX: i64 = 100;

pub(super) fn item_books(
    conn: &Connection,
    id: ItemId,
    in_flight: &[OrderNo],
) -> Outcome<ItemBooks> {
    let item = activities::item(conn, id)?.ok_or(Failure::NotFound)?;
    let (live_orders, live_units) = live(conn, id)?;
    let (user_records, paired) = user_records(conn, id)?;
    let waiting = outbox::waiting_for_gate(conn)?;
    Ok(ItemBooks {
        epoch: item.epoch,
        live_units,
        live_orders,
        user_records,
        user_record_mismatches: (user_records - paired) + (live_orders - paired),
        settled: orders::settled_among(conn, in_flight)?,
        failed: dead_letters::open_of(conn, id)?,
        pending_releases: pending_releases(&waiting, id),
        pending_adjusts: pending_adjusts(&waiting, id),
        chain_breaks: chain_breaks(conn, id, item.total)?,
        chain_end: chain_end(conn, id)?,
        item,
    })
}

/// Orders and units that are live.
fn live(conn: &Connection, id: ItemId) -> Outcome<(u64, i64)> {
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)? as u64, row.get(1)?));
    Ok(conn
        .prepare_cached(
            "SELECT COUNT(*), COALESCE(SUM(quantity), 0) FROM tb_seckill_order
             WHERE product_id = ?1 AND status IN (0, 1)",
        )?
        .query_row([id.0], read)?)
}

/// User records of the item, and how many of them belong to a live order of the same buyer, number
/// and quantity. A record belongs to one order at most and an order to one record, so what is left
/// over on either side is a mismatch; counting pairs reads the tables once instead of twice.
fn user_records(conn: &Connection, id: ItemId) -> Outcome<(u64, u64)> {
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64));
    Ok(conn
        .prepare_cached(
            "SELECT (SELECT COUNT(*) FROM tb_user_seckill WHERE product_id = ?1),
                 (SELECT COUNT(*) FROM tb_seckill_order AS o CROSS JOIN tb_user_seckill AS u
                      ON u.product_id = o.product_id AND u.user_id = o.user_id
                          AND u.order_no = o.order_no AND u.quantity = o.quantity
                      WHERE o.product_id = ?1 AND o.status IN (0, 1))",
        )?
        .query_row([id.0], read)?)
}

/// Rows that do not begin where the row before ended, or whose arithmetic is wrong. The first row
/// must begin at the initial total, which is today's total without what operators added since.
fn chain_breaks(conn: &Connection, id: ItemId, total: i64) -> Outcome<Vec<i64>> {
    let mut statement = conn.prepare_cached(
        "SELECT id FROM (
             SELECT id, quantity, before_stock, after_stock, type,
                 LAG(after_stock) OVER (ORDER BY id) AS ended
             FROM tb_stock_log WHERE product_id = ?1)
         WHERE before_stock <> COALESCE(ended, ?2 - (SELECT COALESCE(SUM(quantity), 0)
                 FROM tb_stock_log WHERE product_id = ?1 AND type = 3))
             OR after_stock <> before_stock + CASE type WHEN 1 THEN -quantity ELSE quantity END
         ORDER BY id LIMIT ?3",
    )?;
    let asked = params![id.0, total, CHAIN_BREAKS_MAX];
    let rows = statement.query_map(asked, |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn chain_end(conn: &Connection, id: ItemId) -> Outcome<Option<i64>> {
    Ok(conn
        .prepare_cached(
            "SELECT after_stock FROM tb_stock_log WHERE product_id = ?1 ORDER BY id DESC LIMIT 1",
        )?
        .query_row([id.0], |row| row.get(0))
        .optional()?)
}

//! Settling: a batch of claims of one item becomes orders, or void.
//!
//! The life of a batch, all in one transaction:
//!
//! 1. Read the item's stock and version, which of the claims are orders already, and which of the
//!    buyers own an order of the item.
//! 2. Decide each claim in the order of the batch (`decide`, a pure function).
//! 3. Take the units: `stock − n, version + 1 WHERE version = … AND stock >= n`. No row means that
//!    somebody was faster: roll back, read again in a new transaction, a few times.
//! 4. Write orders, stock log, user records, and what others have to be told.
//!
//! A crash before the commit leaves nothing, a crash after it leaves a batch whose redelivery finds
//! every claim to be an order already and changes nothing. A claim the tables refuse takes the whole
//! batch with it: nothing of it is written, and the worker finds the culprit by halving.

use rusqlite::{Connection, params};
use sale::{Claim, ItemId, Millis, OrderNo, Settled, VoidReason};

use super::{
    columns::parsed,
    connections::begin,
    dead_letters,
    failure::{Failure, Outcome},
    orders, outbox,
    stock::INSERT_LOG,
};
use crate::{
    DeadLetterState, StockLogType, VERSION_TRIES_MAX,
    shelf::{Entry, Shelf},
    verdict::{Known, decide},
};

pub(super) fn settle(
    conn: &mut Connection,
    item: ItemId,
    claims: &[Claim],
    now_ms: Millis,
) -> Outcome<Settled> {
    for _ in 0..VERSION_TRIES_MAX {
        let tx = begin(conn)?;
        if let Some(settled) = try_settle(&tx, item, claims, now_ms)? {
            tx.commit()?;
            return Ok(settled);
        }
        tx.rollback()?;
    }
    Err(Failure::Contended)
}

/// One try. `None` if the version of the item moved between reading and taking.
fn try_settle(
    tx: &Connection,
    item: ItemId,
    claims: &[Claim],
    now_ms: Millis,
) -> Outcome<Option<Settled>> {
    let found = orders::shelf(tx, item)?;
    let known = known(tx, item, claims)?;
    let verdicts = decide(item, claims, &known, found.as_ref()).map_err(Failure::Rejected)?;
    let shelf = found.map_or_else(Shelf::empty, Ok).map_err(Failure::Broken)?;
    if !take_units(tx, item, &shelf, &verdicts.good)? {
        return Ok(None);
    }
    write_good(tx, &shelf, &verdicts.good, now_ms)?;
    write_void(tx, &shelf, &verdicts.void, now_ms)?;
    let news = verdicts.changed().map(|claim| (claim.order_no, claim.user.clone())).collect();
    outbox::push_news(tx, news, now_ms)?;
    let numbers = claims.iter().map(|claim| claim.order_no);
    dead_letters::resolve(tx, numbers, DeadLetterState::Settled, now_ms)?;
    Ok(Some(verdicts.into_settled()))
}

fn known(tx: &Connection, item: ItemId, claims: &[Claim]) -> Outcome<Known> {
    let numbers: Vec<OrderNo> = claims.iter().map(|claim| claim.order_no).collect();
    let mut known = Known { orders: orders::owners(tx, &numbers)?, ..Known::default() };
    let users: Vec<&str> = claims.iter().map(|claim| claim.user.as_str()).collect();
    let mut statement = tx.prepare_cached(
        "SELECT u.user_id, u.order_no FROM json_each(?1) AS asked
         CROSS JOIN tb_user_seckill AS u ON u.user_id = asked.value AND u.product_id = ?2",
    )?;
    let mut rows = statement.query(params![serde_json::to_string(&users)?, item.0])?;
    while let Some(row) = rows.next()? {
        known.buyers.insert(row.get(0)?, parsed(row, 1)?);
    }
    Ok(known)
}

/// Takes the units of the good claims. False if the version moved or the stock no longer suffices.
fn take_units(tx: &Connection, item: ItemId, shelf: &Shelf, good: &[&Claim]) -> Outcome<bool> {
    if good.is_empty() {
        return Ok(true);
    }
    let units: i64 = good.iter().map(|claim| i64::from(claim.quantity)).sum();
    let taken = tx
        .prepare_cached(
            "UPDATE tb_seckill_product SET stock = stock - ?1, version = version + 1
             WHERE id = ?2 AND version = ?3 AND stock >= ?1",
        )?
        .execute(params![units, item.0, shelf.version])?;
    Ok(taken == 1)
}

fn write_good(tx: &Connection, shelf: &Shelf, good: &[&Claim], now_ms: Millis) -> Outcome<()> {
    orders::insert(tx, shelf, good.iter().map(|claim| (*claim, Entry::Unpaid)), now_ms)?;
    let mut log = tx.prepare_cached(INSERT_LOG)?;
    let mut record = tx.prepare_cached(
        "INSERT INTO tb_user_seckill (user_id, product_id, order_no, quantity, create_time)
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    let kind = StockLogType::Deduct.code();
    let mut stock = shelf.stock;
    for claim in good {
        let no = claim.order_no.to_string();
        let (item, quantity) = (claim.item.0, claim.quantity);
        let after = stock - i64::from(quantity);
        log.execute(params![no, item, shelf.name, quantity, stock, after, kind, now_ms])?;
        record.execute(params![claim.user.as_str(), item, no, quantity, now_ms])?;
        stock = after;
    }
    Ok(())
}

fn write_void(
    tx: &Connection,
    shelf: &Shelf,
    void: &[(&Claim, VoidReason)],
    now_ms: Millis,
) -> Outcome<()> {
    let entries = void.iter().map(|(claim, reason)| (*claim, Entry::Void(*reason)));
    orders::insert(tx, shelf, entries, now_ms)?;
    outbox::push_releases(tx, void.iter().map(|(claim, _)| *claim), now_ms)
}

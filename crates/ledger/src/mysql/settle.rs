//! Settling: a batch of claims of one item becomes orders, or void.
//!
//! The life of a batch, all in one transaction:
//!
//! 1. Lock the item's row and read its stock and version; whoever settles, returns or adjusts units
//!    of the same item waits here, instead of losing a race and doing everything again.
//! 2. Decide each claim in the order of the batch (`decide`, a pure function). Almost every batch is
//!    new and all of it good, so the first try takes that for granted; if the primary keys of orders
//!    and user records object, or a claim is not good, it is read which of the claims are orders
//!    already and which of the buyers own an order of the item, and decided by that.
//! 3. Take the units: `stock − n, version + 1 WHERE version = … AND stock >= n`. No row means that
//!    somebody was faster all the same: roll back, read again in a new transaction, a few times.
//! 4. Write orders, stock log, user records, and what others have to be told: one statement per
//!    table, whatever the size of the batch.
//! 5. Commit.
//!
//! A crash of ours or the server's before the commit leaves nothing. A commit whose answer was lost
//! is *unknown*: the worker delivers the batch again, and every claim that is an order already is a
//! repetition that changes nothing. A claim the tables refuse takes the whole batch with it: nothing
//! of it is written, and the worker finds the culprit by halving.

use sale::{Claim, ItemId, Millis, OrderNo, Settled, VoidReason};

use super::{
    columns::{get, parsed},
    connections::Session,
    dead_letters,
    failure::{Failure, Outcome},
    orders, outbox,
    stock::INSERT_LOG,
    text::{Insert, lists},
};
use crate::{
    DeadLetterState, StockLogType,
    shelf::{Entry, Shelf},
    verdict::{Known, decide},
};

/// One try; a `careful` one takes nothing for granted. [`Failure::Contended`] if the version of the
/// item moved between reading and taking.
pub(super) async fn settle(
    tx: &mut Session,
    item: ItemId,
    claims: &[Claim],
    careful: bool,
    now_ms: Millis,
) -> Outcome<Settled> {
    let found = orders::locked_shelf(tx, item).await?;
    let decided =
        |known: &Known| decide(item, claims, known, found.as_ref()).map_err(Failure::Rejected);
    let mut verdicts = decided(&Known::default())?;
    if careful || verdicts.good.len() < claims.len() {
        verdicts = decided(&known(tx, item, claims).await?)?;
    }
    let shelf = found.map_or_else(Shelf::empty, Ok).map_err(Failure::Broken)?;
    take_units(tx, item, &shelf, &verdicts.good).await?;
    write_good(tx, &shelf, &verdicts.good, now_ms).await?;
    write_void(tx, &shelf, &verdicts.void, now_ms).await?;
    let news = verdicts.changed().map(|claim| (claim.order_no, claim.user.clone())).collect();
    outbox::push_news(tx, news, now_ms).await?;
    let numbers: Vec<OrderNo> = claims.iter().map(|claim| claim.order_no).collect();
    dead_letters::resolve(tx, numbers, DeadLetterState::Settled, now_ms).await?;
    Ok(verdicts.into_settled())
}

/// What the ledger knows of a batch before it decides.
async fn known(tx: &mut Session, item: ItemId, claims: &[Claim]) -> Outcome<Known> {
    let orders = orders::owners(tx, claims.iter().map(|claim| claim.order_no)).await?;
    let mut known = Known { orders, ..Known::default() };
    for users in lists(claims.iter().map(|claim| claim.user.as_str())) {
        let sql = format!(
            "SELECT user_id, order_no FROM tb_user_seckill
             WHERE product_id = {item} AND user_id IN {users}"
        );
        let read = |row: &mysql_async::Row| Ok((get(row, 0)?, parsed(row, 1)?));
        known.buyers.extend(tx.all_of_text(&sql, read).await?);
    }
    Ok(known)
}

async fn take_units(tx: &mut Session, item: ItemId, shelf: &Shelf, good: &[&Claim]) -> Outcome<()> {
    if good.is_empty() {
        return Ok(());
    }
    let units: i64 = good.iter().map(|claim| i64::from(claim.quantity)).sum();
    let taken = tx
        .change(
            "UPDATE tb_seckill_product SET stock = stock - ?, version = version + 1
             WHERE id = ? AND version = ? AND stock >= ?",
            (units, item.0, shelf.version, units),
        )
        .await?;
    if taken == 1 { Ok(()) } else { Err(Failure::Contended) }
}

async fn write_good(
    tx: &mut Session,
    shelf: &Shelf,
    good: &[&Claim],
    now_ms: Millis,
) -> Outcome<()> {
    orders::insert(tx, shelf, good.iter().map(|claim| (*claim, Entry::Unpaid)), now_ms).await?;
    let mut log = Insert::new(tx, INSERT_LOG, "");
    let mut records = Insert::new(
        tx,
        "INSERT INTO tb_user_seckill (user_id, product_id, order_no, quantity, create_time) VALUES ",
        "",
    );
    let mut stock = shelf.stock;
    for claim in good {
        let no = claim.order_no.to_string();
        let (no, item, quantity) = (no.as_str(), claim.item.0, claim.quantity);
        let after = stock - i64::from(quantity);
        log.row(&[
            no.into(),
            item.into(),
            shelf.name.as_str().into(),
            quantity.into(),
            stock.into(),
            after.into(),
            StockLogType::Deduct.code().into(),
            now_ms.into(),
        ]);
        let user = claim.user.as_str();
        records.row(&[user.into(), item.into(), no.into(), quantity.into(), now_ms.into()]);
        stock = after;
    }
    log.send(tx).await?;
    records.send(tx).await
}

async fn write_void(
    tx: &mut Session,
    shelf: &Shelf,
    void: &[(&Claim, VoidReason)],
    now_ms: Millis,
) -> Outcome<()> {
    let entries = void.iter().map(|(claim, reason)| (*claim, Entry::Void(*reason)));
    orders::insert(tx, shelf, entries, now_ms).await?;
    outbox::push_releases(tx, void.iter().map(|(claim, _)| *claim), now_ms).await
}

//! Settling: a batch of claims of one item becomes orders, or void.
//!
//! The life of a batch, all in one transaction:
//!
//! 1. Lock the item's row and read its stock and version; whoever settles, returns or adjusts units
//!    of the same item waits here, instead of losing a race and doing everything again.
//! 2. Decide each claim in the order of the batch (`decide`, a pure function). Almost every batch is
//!    new and all of it good, so the first try takes that for granted; if the unique keys of orders and
//!    user records object, or a claim is not good, it is read which of the claims are orders already and
//!    which of the buyers own an order of the item, and decided by that.
//! 3. Take the units: `stock − n, version + 1 WHERE version = … AND stock >= n`. No row means that
//!    somebody was faster all the same: roll back, read again in a new transaction, a few times.
//! 4. Write orders, stock log, user records, and what others have to be told.
//! 5. Commit.
//!
//! A crash of ours or the server's before the commit leaves nothing. A commit whose answer was lost
//! is *unknown*: the worker delivers the batch again, and every claim that is an order already is a
//! repetition that changes nothing. A claim the tables refuse takes the whole batch with it: nothing
//! of it is written, and the worker finds the culprit by halving.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use sale::{
    BookError, Claim, FailedClaim, ItemId, Millis, OrderBook, OrderNo, Settled, VoidReason,
};

use super::{
    Access, SqlLedger, archive,
    columns::{get, parsed},
    dead_letters,
    failure::{Failure, Outcome},
    orders, outbox,
    session::{Row, Session, Value, values},
    stock::{StockChange, log_changes},
    volumes::Written,
    webhooks,
};
use crate::{
    DeadLetterState, StockLogType, WebhookEvent, WebhookKind,
    decide::{Decisions, Known, decide},
    offer::{EnterAs, Offer},
    outbox::release_of,
};

/// One try; a `careful` one takes nothing for granted. [`Failure::Contended`] if the version of the item
/// moved between reading and taking.
async fn settle(
    tx: &mut dyn Session,
    item: ItemId,
    claims: &[Claim],
    careful: bool,
    now_ms: Millis,
) -> Outcome<(Settled, Written)> {
    let offer = orders::locked_offer(tx, item).await?;
    let decided =
        |known: &Known| decide(item, claims, known, offer.as_ref()).map_err(Failure::Rejected);
    let mut decisions = decided(&Known::default())?;
    let is_archived = offer.as_ref().is_some_and(|offer| offer.is_archived);
    if careful || is_archived || decisions.good.len() < claims.len() {
        decisions = decided(&known(tx, item, claims, is_archived).await?)?;
    }
    if decisions.count() != claims.len() {
        let decided = decisions.count();
        return Err(Failure::Broken(format!("{decided} of {} claims were decided", claims.len())));
    }
    let offer = offer.unwrap_or_else(Offer::unknown);
    take_units(tx, item, &offer, &decisions.good).await?;
    write_good(tx, item, &offer, &decisions.good, now_ms).await?;
    write_void(tx, &offer, &decisions.void, now_ms).await?;
    let events = decisions.changed().map(|claim| (claim.order_no, claim.user.clone())).collect();
    outbox::push_events(tx, events, now_ms).await?;
    if offer.has_webhooks {
        webhooks::tell(tx, told(item, &offer, &decisions), now_ms).await?;
    }
    let numbers: Vec<OrderNo> = claims.iter().map(|claim| claim.order_no).collect();
    dead_letters::resolve(tx, numbers, DeadLetterState::Settled, now_ms).await?;
    let orders = decisions.changed().count() as u64;
    Ok((decisions.into_settled(), Written { volume: offer.volume, orders }))
}

/// What the shop's backend hears of a batch.
fn told(
    item: ItemId,
    offer: &Offer,
    decisions: &Decisions<'_>,
) -> impl Iterator<Item = WebhookEvent> {
    let created = decisions.good.iter().map(|claim| claim.order_no);
    let void = decisions.void.iter().map(|(claim, _)| claim.order_no);
    let left = offer.stock - units(&decisions.good);
    let created = WebhookEvent::orders(WebhookKind::OrderCreated, created);
    let void = WebhookEvent::orders(WebhookKind::OrderVoid, void);
    let stock = WebhookEvent::stock_changed(item, (offer.stock, left), offer.version + 1);
    [created, void, stock].into_iter().flatten()
}

fn units(good: &[&Claim]) -> i64 {
    good.iter().map(|claim| i64::from(claim.quantity)).sum()
}

/// What the ledger knows of a batch before it decides.
async fn known(
    tx: &mut dyn Session,
    item: ItemId,
    claims: &[Claim],
    is_archived: bool,
) -> Outcome<Known> {
    let mut orders = orders::owners(tx, claims.iter().map(|claim| claim.order_no)).await?;
    if is_archived {
        let numbers = claims.iter().map(|claim| claim.order_no);
        let missing = numbers.filter(|no| !orders.contains_key(no)).collect();
        orders.extend(archive::owners_in_months(tx, missing).await?);
    }
    let sql = "SELECT user_id, order_no FROM tb_user_seckill WHERE product_id = ? AND user_id IN ?";
    let users = Value::list(claims.iter().map(|claim| &claim.user));
    let read = |row: &dyn Row| Ok((get(row, 0)?, parsed(row, 1)?));
    let buyers = tx.rows(sql, values![item, users], read).await?;
    Ok(Known { orders, buyers: buyers.into_iter().collect() })
}

async fn take_units(
    tx: &mut dyn Session,
    item: ItemId,
    offer: &Offer,
    good: &[&Claim],
) -> Outcome<()> {
    if good.is_empty() {
        return Ok(());
    }
    let units = units(good);
    let sql = "UPDATE tb_seckill_product SET stock = stock - ?, version = version + 1
         WHERE id = ? AND version = ? AND stock >= ?";
    let taken = tx.execute(sql, values![units, item, offer.version, units]).await?;
    if taken == 1 { Ok(()) } else { Err(Failure::Contended) }
}

async fn write_good(
    tx: &mut dyn Session,
    item: ItemId,
    offer: &Offer,
    good: &[&Claim],
    now_ms: Millis,
) -> Outcome<()> {
    orders::insert(tx, offer, good.iter().map(|claim| (*claim, EnterAs::Unpaid)), now_ms).await?;
    let changes = good
        .iter()
        .map(|claim| StockChange { order_no: claim.order_no, quantity: claim.quantity.into() });
    let before = (item, offer.name.as_str(), offer.stock);
    log_changes(tx, before, StockLogType::Deduct, changes, now_ms).await?;
    let records = good.iter().map(|claim| {
        let (user, item) = ((&claim.user).into(), claim.item.into());
        [user, item, claim.order_no.into(), claim.quantity.into(), now_ms.into()]
    });
    let into = "tb_user_seckill (user_id, product_id, order_no, quantity, create_time)";
    tx.insert(into, records, "").await
}

async fn write_void(
    tx: &mut dyn Session,
    offer: &Offer,
    void: &[(&Claim, VoidReason)],
    now_ms: Millis,
) -> Outcome<()> {
    let entries = void.iter().map(|(claim, reason)| (*claim, EnterAs::Void(*reason)));
    orders::insert(tx, offer, entries, now_ms).await?;
    outbox::push_releases(tx, void.iter().map(|(claim, _)| release_of(claim)), now_ms).await
}

#[async_trait]
impl OrderBook for SqlLedger {
    async fn settle(&self, item: ItemId, claims: &[Claim]) -> Result<Settled, BookError> {
        let (clock, tried) = (self.clock.clone(), AtomicBool::new(false));
        let settled: Result<(Settled, Written), BookError> = self
            .run(Access::Write, claims.to_vec(), move |tx, claims| {
                let careful = tried.swap(true, Ordering::Relaxed);
                Box::pin(settle(tx, item, claims, careful, clock.now_ms()))
            })
            .await;
        let (settled, written) = settled?;
        self.note_written(written).await;
        Ok(settled)
    }

    async fn defer(&self, failed: &[FailedClaim]) -> Result<(), BookError> {
        let now_ms = self.clock.now_ms();
        self.run(Access::Write, failed.to_vec(), move |tx, failed| {
            Box::pin(dead_letters::defer(tx, failed, now_ms))
        })
        .await
    }

    async fn due(&self, now_ms: Millis, limit: usize) -> Result<Vec<FailedClaim>, BookError> {
        self.run(Access::Statement, (), move |session, ()| {
            Box::pin(dead_letters::due(session, now_ms, limit))
        })
        .await
    }

    async fn due_by_another_clock(&self, now_ms: Millis) -> Result<u64, BookError> {
        self.run(Access::Write, (), move |tx, ()| {
            Box::pin(dead_letters::due_by_another_clock(tx, now_ms))
        })
        .await
    }
}

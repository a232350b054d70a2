//! The ledger's side of a comparison with the gate, each answer of one instant.

use async_trait::async_trait;
use sale::{Item, ItemId, Millis, OrderNo};

use super::{
    Access, SqlLedger, activities, archive, books_since,
    chain::{self, Walk},
    columns::{FromValue, get, json, parsed},
    dead_letters,
    failure::{Failure, Outcome},
    orders, outbox, payment_problems,
    session::{Row, Session, values},
    upkeep,
};
use crate::{
    ActivityFilter, ActivityKey, Books, BooksPoint, CheckedPayments, ItemBooks, LogEnd, LogWalk,
    OutlinePage, Outstanding, PaymentsSince, Result,
    outbox::{pending_adjusts, pending_releases},
};

/// Breaks of a chain that are told.
pub(super) const CHAIN_BREAKS_MAX: usize = 100;

/// A log that grows by a page while it is walked is walked on, so often; what is then left is read as it is.
const WALKS_MAX: u32 = 3;

/// Nothing if the stock log has more than a page behind the walk, and has to be walked first.
async fn item_books(
    session: &mut dyn Session,
    id: ItemId,
    in_flight: &[OrderNo],
    (walk, however_long): (&Walk, bool),
) -> Outcome<Option<ItemBooks>> {
    let item = activities::item(session, id).await?.ok_or(Failure::NotFound)?;
    let Some(walk) = chain::to_the_end(session, id, walk, however_long).await? else {
        return Ok(None);
    };
    let (chain_breaks, end) = walk.ends();
    let (live_orders, live_units) = live(session, id).await?;
    let archived = archive::archived_books(session, id).await?;
    let (user_records, paired) = user_records(session, id).await?;
    let last = log_end(session, id).await?.map(|end| end.after_stock);
    let chain_end = end.or(last).or(archived.end_stock);
    let live_units = live_units + archived.live_units;
    let counted = Counts {
        live_orders,
        live_units,
        user_records,
        user_record_mismatches: (user_records - paired) + (live_orders - paired),
        chain_breaks,
        chain_end,
    };
    with_what_is_open(session, item, counted, in_flight).await.map(Some)
}

/// What the rows of an item's past come to, counted as a whole or on from an earlier point.
pub(super) struct Counts {
    pub(super) live_orders: u64,
    pub(super) live_units: i64,
    pub(super) user_records: u64,
    pub(super) user_record_mismatches: u64,
    pub(super) chain_breaks: Vec<i64>,
    pub(super) chain_end: Option<i64>,
}

/// The rest, whose price follows what waits.
pub(super) async fn with_what_is_open(
    session: &mut dyn Session,
    item: Item,
    counts: Counts,
    in_flight: &[OrderNo],
) -> Outcome<ItemBooks> {
    let id = item.id;
    let waiting = outbox::waiting_for_gate(session, id).await?;
    let log_end = log_end(session, id).await?;
    Ok(ItemBooks {
        epoch: item.epoch,
        live_units: counts.live_units,
        live_orders: counts.live_orders,
        user_records: counts.user_records,
        user_record_mismatches: counts.user_record_mismatches,
        settled: orders::settled_among(session, in_flight).await?,
        failed: dead_letters::open_of(session, id).await?,
        pending_releases: pending_releases(&waiting, id),
        pending_adjusts: pending_adjusts(&waiting, id),
        chain_breaks: counts.chain_breaks,
        chain_end: counts.chain_end,
        log_end,
        item,
    })
}

/// Two numbers of one row.
pub(super) fn pair<A: FromValue, B: FromValue>(row: &dyn Row) -> Outcome<(A, B)> {
    Ok((get(row, 0)?, get(row, 1)?))
}

/// How many orders of the item are live, and their units.
async fn live(session: &mut dyn Session, id: ItemId) -> Outcome<(u64, i64)> {
    let sql = "SELECT COUNT(*), CAST(COALESCE(SUM(quantity), 0) AS SIGNED) FROM tb_seckill_order
         WHERE product_id = ? AND status IN (0, 1)";
    Ok(session.first(sql, values![id], pair).await?.unwrap_or_default())
}

/// User records of the item, and how many of them belong to a live order of the same buyer, number
/// and quantity. A record belongs to one order at most and an order to one record, so what is left
/// over on either side is a mismatch; counting pairs reads the tables once instead of twice.
async fn user_records(session: &mut dyn Session, id: ItemId) -> Outcome<(u64, u64)> {
    let sql = "SELECT (SELECT COUNT(*) FROM tb_user_seckill WHERE product_id = ?),
             (SELECT COUNT(*) FROM tb_seckill_order AS o CROSS JOIN tb_user_seckill AS u
                  ON u.product_id = o.product_id AND u.user_id = o.user_id
                      AND u.order_no = o.order_no AND u.quantity = o.quantity
                  WHERE o.product_id = ? AND o.status IN (0, 1))";
    Ok(session.first(sql, values![id, id], pair).await?.unwrap_or_default())
}

pub(super) async fn log_end(session: &mut dyn Session, id: ItemId) -> Outcome<Option<LogEnd>> {
    let sql = "SELECT id, order_no, after_stock FROM tb_stock_log
         WHERE product_id = ? ORDER BY id DESC LIMIT 1";
    let read = |row: &dyn Row| {
        Ok(LogEnd { id: get(row, 0)?, order_no: parsed(row, 1)?, after_stock: get(row, 2)? })
    };
    session.first(sql, values![id], read).await
}

async fn outstanding(session: &mut dyn Session) -> Outcome<Outstanding> {
    let outbox = outbox::by_kind(session).await?;
    Ok(Outstanding { outbox, claims: dead_letters::by_item(session).await? })
}

/// What an instance has counted, if that is not longer ago: by the server's clock, which all share.
async fn counted(
    session: &mut dyn Session,
    age_ms_max: Millis,
    for_update: &str,
) -> Outcome<Counted> {
    let now_ms = upkeep::now_ms(session, 0).await?;
    let sql = format!("SELECT counted_at, body FROM tb_outstanding WHERE id = 1 {for_update}");
    let read = |row: &dyn Row| Ok((get::<Millis>(row, 0)?, json::<Outstanding>(row, 1).ok()));
    let found = session.first(&sql, &[], read).await?;
    let there = found.is_some();
    // A count of the future was made before the server's clock was set back.
    let young = found.filter(|(at_ms, _)| (0..age_ms_max).contains(&(now_ms - at_ms)));
    Ok(Counted { now_ms, there, outstanding: young.and_then(|(_, outstanding)| outstanding) })
}

struct Counted {
    now_ms: Millis,
    /// Whether a row is there, though it be old.
    there: bool,
    outstanding: Option<Outstanding>,
}

/// Counts for all. Whoever comes at the same moment waits for the row and finds what was counted.
async fn count_for_all(tx: &mut dyn Session, age_ms_max: Millis) -> Outcome<Outstanding> {
    let for_update = tx.dialect().for_update();
    let Counted { now_ms, there, outstanding: young } = counted(tx, age_ms_max, for_update).await?;
    if let Some(young) = young {
        return Ok(young);
    }
    let found = outstanding(tx).await?;
    let body = serde_json::to_string(&found)?;
    let sql = if there {
        "UPDATE tb_outstanding SET counted_at = ?, body = ? WHERE id = 1".to_owned()
    } else {
        let keep = tx.dialect().keep("id");
        format!("INSERT INTO tb_outstanding (counted_at, body, id) VALUES (?, ?, 1) {keep}")
    };
    tx.execute(&sql, values![now_ms, body]).await?;
    Ok(found)
}

#[async_trait]
impl Books for SqlLedger {
    async fn walk_log(&self, item: ItemId) -> Result<LogWalk> {
        chain::walk(self, item).await.map(LogWalk)
    }

    async fn item_books_behind(
        &self,
        walk: &LogWalk,
        item: ItemId,
        in_flight: &[OrderNo],
    ) -> Result<ItemBooks> {
        let (mut walk, mut walks) = (walk.0.clone(), 0);
        loop {
            let asked = (in_flight.to_vec(), walk.clone());
            let however_long = walks == WALKS_MAX;
            let read: Result<Option<ItemBooks>> = self
                .run(Access::LongSnapshot, asked, move |session, (in_flight, walk)| {
                    Box::pin(item_books(session, item, in_flight, (walk, however_long)))
                })
                .await;
            if let Some(books) = read? {
                return Ok(books);
            }
            walk = chain::walk_on(self, item, walk).await?;
            walks += 1;
        }
    }

    async fn check_payments(
        &self,
        since: Option<&PaymentsSince>,
        limit: usize,
    ) -> Result<CheckedPayments> {
        let Some(since) = since else { return payment_problems::all(self, limit).await };
        self.run(Access::LongSnapshot, since.clone(), move |session, since| {
            Box::pin(payment_problems::since(session, since, limit))
        })
        .await
    }

    async fn item_books_since(
        &self,
        item: ItemId,
        in_flight: &[OrderNo],
        point: &BooksPoint,
    ) -> Result<Option<ItemBooks>> {
        let asked = (in_flight.to_vec(), *point);
        self.run(Access::Snapshot, asked, move |session, (in_flight, point)| {
            Box::pin(books_since::item_books(session, item, in_flight, point))
        })
        .await
    }

    async fn item_outlines(
        &self,
        filter: &ActivityFilter,
        after: Option<ActivityKey>,
        limit: usize,
    ) -> Result<OutlinePage> {
        self.run(Access::Statement, *filter, move |session, filter| {
            Box::pin(books_since::outlines(session, filter, after, limit))
        })
        .await
    }

    async fn outstanding(&self) -> Result<Outstanding> {
        self.run(Access::Statement, (), |session, ()| Box::pin(outstanding(session))).await
    }

    async fn outstanding_lately(&self, age_ms_max: Millis) -> Result<Outstanding> {
        if self.engine.dialect().server_clock().is_none() {
            return self.outstanding().await;
        }
        let lately: Result<Counted> = self
            .run(Access::Statement, (), move |session, ()| {
                Box::pin(counted(session, age_ms_max, ""))
            })
            .await;
        if let Some(young) = lately?.outstanding {
            return Ok(young);
        }
        self.run(Access::Write, (), move |tx, ()| Box::pin(count_for_all(tx, age_ms_max))).await
    }
}

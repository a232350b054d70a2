//! Stock: adjusted by operators, returned by orders that are over, and the log of every change.
//!
//! The rows of one item form a chain in the order of their ids: each `before_stock` is the
//! `after_stock` of the row before. Creating an item writes no row; its first change starts the
//! chain at the item's initial total.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use sale::{Epoch, Invalid, ItemId, Millis, OrderNo};

use super::{
    Access, SqlLedger, activities, archive,
    columns::{coded, get, parsed},
    failure::{Failure, Outcome},
    operators, outbox,
    session::{Row, Session, Value, values},
    warm_basis, webhooks,
};
use crate::{
    Adjusted, AuditEntry, KnownAdjustment, MarkPages, OutboxMessage, Release, Result, Stock,
    StockLogRow, StockLogType, WalkTurn, WarmBasis, WebhookEvent, offer::StockLevel,
};

const STOCK_LOG_COLUMNS: &str = "id, order_no, product_id, product_name, quantity, before_stock, \
     after_stock, type, create_time";

fn read_log(row: &dyn Row) -> Outcome<StockLogRow> {
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

/// One change of an item's stock, as the log has it.
#[derive(Clone)]
pub(super) struct StockChange {
    pub(super) order_no: OrderNo,
    /// Units moved; signed for an adjustment.
    pub(super) quantity: i64,
}

/// Appends changes of one kind to the chain of an item that has this much stock and whose row is locked.
/// Answers its stock after them.
pub(super) async fn log_changes(
    tx: &mut dyn Session,
    (item, name, stock): (ItemId, &str, i64),
    kind: StockLogType,
    changes: impl Iterator<Item = StockChange> + Clone + Send,
    now_ms: Millis,
) -> Outcome<i64> {
    let signed = move |change: &StockChange| match kind {
        StockLogType::Deduct => -change.quantity,
        StockLogType::Return | StockLogType::Adjust => change.quantity,
    };
    let after_all = stock + changes.clone().map(|change| signed(&change)).sum::<i64>();
    if after_all < 0 {
        return Err(Failure::Broken(format!("item {item} would have a stock of {after_all}")));
    }
    let rows = changes.scan(stock, |stock, change| {
        let before = *stock;
        *stock += signed(&change);
        Some([
            change.order_no.into(),
            item.into(),
            name.into(),
            change.quantity.into(),
            before.into(),
            (*stock).into(),
            kind.code().into(),
            now_ms.into(),
        ])
    });
    let into = "tb_stock_log (order_no, product_id, product_name, quantity, before_stock, after_stock, \
         type, create_time)";
    tx.insert(into, rows, "").await?;
    Ok(after_all)
}

/// The item's stock, which nobody else can change before this transaction ends.
async fn locked_level(tx: &mut dyn Session, item: ItemId) -> Outcome<Option<StockLevel>> {
    let read = |row: &dyn Row| {
        Ok(StockLevel {
            name: get(row, 0)?,
            stock: get(row, 1)?,
            total: get(row, 2)?,
            version: get(row, 3)?,
        })
    };
    let sql = format!(
        "SELECT name, stock, total, version FROM tb_seckill_product WHERE id = ? {}",
        tx.dialect().for_update()
    );
    tx.first(&sql, values![item], read).await
}

/// Holds the rows of these items, in the order everybody takes them in.
pub(super) async fn lock_items(
    tx: &mut dyn Session,
    items: impl Iterator<Item = ItemId>,
) -> Outcome<()> {
    let items: BTreeSet<ItemId> = items.collect();
    let for_update = tx.dialect().for_update();
    let sql = format!("SELECT id FROM tb_seckill_product WHERE id = ? {for_update}");
    for item in items {
        tx.first(&sql, values![item], |row| get::<i64>(row, 0)).await?;
    }
    Ok(())
}

async fn adjust(
    tx: &mut dyn Session,
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
    level.check(delta).map_err(Failure::Refused)?;
    let changed = tx
        .execute(
            "UPDATE tb_seckill_product
             SET stock = stock + ?, total = total + ?, version = version + 1
             WHERE id = ? AND version = ?",
            values![delta, delta, item, level.version],
        )
        .await?;
    if changed == 0 {
        return Err(Failure::Contended);
    }
    let change = StockChange { order_no: adjust_no, quantity: delta };
    let before = (item, level.name.as_str(), level.stock);
    let after = log_changes(tx, before, StockLogType::Adjust, [change].into_iter(), now_ms).await?;
    outbox::push(tx, &OutboxMessage::Adjust { item, adjust_no, delta }, now_ms).await?;
    let told = WebhookEvent::stock_changed(item, (level.stock, after), level.version + 1);
    webhooks::tell(tx, told, now_ms).await?;
    let entry = audit.with("before", level.stock).with("after", after);
    operators::audit(tx, &entry, now_ms).await?;
    Ok(Adjusted { before: level.stock, after, repeated: false })
}

/// The log row of an adjustment made earlier.
async fn adjusted(session: &mut dyn Session, adjust_no: OrderNo) -> Outcome<Option<StockLogRow>> {
    let sql =
        format!("SELECT {STOCK_LOG_COLUMNS} FROM tb_stock_log WHERE order_no = ? AND type = ?");
    let asked = values![adjust_no, StockLogType::Adjust.code()];
    match session.first(&sql, asked, read_log).await? {
        Some(found) => Ok(Some(found)),
        None => archive::find_log(session, adjust_no).await,
    }
}

/// The numbers of all adjustments of an item.
pub(super) async fn adjustments_of(
    session: &mut dyn Session,
    item: ItemId,
) -> Outcome<Vec<OrderNo>> {
    let sql = "SELECT order_no FROM tb_stock_log WHERE product_id = ? AND type = 3 ORDER BY id";
    session.rows(sql, values![item], |row| parsed(row, 0)).await
}

async fn log_of(session: &mut dyn Session, no: OrderNo) -> Outcome<Vec<StockLogRow>> {
    let found = log_of_in_books(session, no).await?;
    archive::log_of(session, no, found).await
}

pub(super) async fn log_of_in_books(
    session: &mut dyn Session,
    no: OrderNo,
) -> Outcome<Vec<StockLogRow>> {
    let sql =
        format!("SELECT {STOCK_LOG_COLUMNS} FROM tb_stock_log WHERE order_no = ? ORDER BY id");
    session.rows(&sql, values![no], read_log).await
}

async fn log(
    session: &mut dyn Session,
    item: ItemId,
    after_id: i64,
    limit: usize,
) -> Outcome<Vec<StockLogRow>> {
    let found = log_in_books(session, item, after_id, limit).await?;
    archive::log_page(session, item, (after_id, limit), found).await
}

pub(super) async fn log_in_books(
    session: &mut dyn Session,
    item: ItemId,
    after_id: i64,
    limit: usize,
) -> Outcome<Vec<StockLogRow>> {
    let sql = format!(
        "SELECT {STOCK_LOG_COLUMNS} FROM tb_stock_log WHERE product_id = ? AND id > ?
         ORDER BY id LIMIT ?"
    );
    session.rows(&sql, values![item, after_id, limit], read_log).await
}

/// Gives the units of orders that just stopped being live back to their items, forgets their
/// buyers' records, and leaves the gate's share of the work in the outbox.
///
/// The caller has moved each order out of its live status in this transaction; that move is what
/// makes a second return impossible, and the unique `(order_no, type)` of the log says so again.
/// Answers what it means to those who are told of items.
pub(super) async fn return_units(
    tx: &mut dyn Session,
    releases: Vec<Release>,
    now_ms: Millis,
) -> Outcome<Vec<WebhookEvent>> {
    let mut told = Vec::new();
    let mut by_item: BTreeMap<ItemId, Vec<&Release>> = BTreeMap::new();
    for release in &releases {
        by_item.entry(release.item).or_default().push(release);
    }
    for (item, releases) in by_item {
        told.extend(return_to_item(tx, item, &releases, now_ms).await?);
    }
    outbox::push_releases(tx, releases.into_iter(), now_ms).await?;
    Ok(told)
}

async fn return_to_item(
    tx: &mut dyn Session,
    item: ItemId,
    releases: &[&Release],
    now_ms: Millis,
) -> Outcome<Option<WebhookEvent>> {
    let level = locked_level(tx, item).await?;
    let level =
        level.ok_or_else(|| Failure::Broken(format!("item {item} has orders but no row")))?;
    let changes = releases.iter().map(|release| StockChange {
        order_no: release.order_no,
        quantity: release.quantity.into(),
    });
    let before = (item, level.name.as_str(), level.stock);
    let stock = log_changes(tx, before, StockLogType::Return, changes, now_ms).await?;
    if stock > level.total {
        let total = level.total;
        return Err(Failure::Broken(format!("item {item} would have {stock} of {total} units")));
    }
    forget_buyers(tx, item, releases).await?;
    let sql = "UPDATE tb_seckill_product SET stock = ?, version = version + 1
         WHERE id = ? AND version = ?";
    let changed = tx.execute(sql, values![stock, item, level.version]).await?;
    let told = WebhookEvent::stock_changed(item, (level.stock, stock), level.version + 1);
    if changed == 0 { Err(Failure::Contended) } else { Ok(told) }
}

/// Deletes the records of these orders. A record names an order of its own buyer, so a record of one
/// of these buyers that names one of these orders is the record of one of these pairs.
async fn forget_buyers(tx: &mut dyn Session, item: ItemId, releases: &[&Release]) -> Outcome<()> {
    let users = Value::list(releases.iter().map(|release| &release.user));
    let numbers = Value::list(releases.iter().map(|release| release.order_no));
    let sql = "DELETE FROM tb_user_seckill
         WHERE product_id = ? AND user_id IN ? AND order_no IN ?";
    tx.execute(sql, values![item, users, numbers]).await?;
    Ok(())
}

#[async_trait]
impl Stock for SqlLedger {
    async fn begin_warm(&self, item: ItemId, expected: Epoch) -> Result<Option<Epoch>> {
        self.run(Access::Write, (), move |tx, ()| {
            Box::pin(activities::begin_warm(tx, item, expected))
        })
        .await
    }

    async fn walk_turn(&self, item: ItemId) -> Result<WalkTurn> {
        warm_basis::turn(self, item).await
    }

    async fn warm_basis(
        &self,
        turn: WalkTurn,
        item: ItemId,
        in_flight: &[OrderNo],
    ) -> Result<(WarmBasis, MarkPages)> {
        warm_basis::read(self, turn, item, in_flight).await
    }

    async fn finish_warm(&self, item: ItemId, epoch: Epoch) -> Result<bool> {
        self.run(Access::Write, (), move |tx, ()| {
            Box::pin(activities::finish_warm(tx, item, epoch))
        })
        .await
    }

    async fn adjust_stock(
        &self,
        item: ItemId,
        delta: i64,
        adjust_no: OrderNo,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Adjusted> {
        self.run(Access::Write, audit.clone(), move |tx, audit| {
            Box::pin(adjust(tx, item, delta, adjust_no, audit, now_ms))
        })
        .await
    }

    async fn adjustment(&self, adjust_no: OrderNo) -> Result<Option<KnownAdjustment>> {
        let found: Result<Option<StockLogRow>> = self
            .run(Access::Statement, (), move |session, ()| Box::pin(adjusted(session, adjust_no)))
            .await;
        Ok(found?.map(Into::into))
    }

    async fn stock_log_of(&self, no: OrderNo) -> Result<Vec<StockLogRow>> {
        self.run(Access::Statement, (), move |session, ()| Box::pin(log_of(session, no))).await
    }

    async fn stock_log(
        &self,
        item: ItemId,
        after_id: i64,
        limit: usize,
    ) -> Result<Vec<StockLogRow>> {
        self.run(Access::Statement, (), move |session, ()| {
            Box::pin(log(session, item, after_id, limit))
        })
        .await
    }
}

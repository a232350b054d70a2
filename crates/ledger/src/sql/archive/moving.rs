//! Moving: some rows of one item at a time, from the books into a month.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use sale::{ActivityId, ActivityState, ItemId, Millis, OrderNo, OrderStatus, UserId};

use super::{
    super::{
        Access, SqlLedger,
        columns::{coded, get, parsed},
        failure::Outcome,
        payments::{NOT_REFUNDED, OPEN_PAYMENT, OWED},
        session::{Row, Session, Value, values},
    },
    Month, Purpose,
    reading::is_made,
    rows::{Copied, columns},
};
use crate::{Archivable, Archive, ArchiveStep, OldActivity, Result};

/// What a step came to, inside.
enum Step {
    /// There is no such month yet. It is made outside of a transaction.
    Needs(Month),
    Was(ArchiveStep),
}

async fn make(session: &mut dyn Session, month: Month) -> Outcome<()> {
    session.month(month, Purpose::Make).await?.keep()?;
    Ok(())
}

async fn note_made(tx: &mut dyn Session, month: Month) -> Outcome<()> {
    let keep = tx.dialect().keep("month");
    tx.insert("tb_archive_month (month)", [[month.code().into()]].into_iter(), &keep).await
}

async fn old_activities(
    session: &mut dyn Session,
    closed_before_ms: Millis,
    (after_ms, after): (Millis, ActivityId),
    limit: usize,
) -> Outcome<Vec<OldActivity>> {
    let sql = "SELECT id, closes_at FROM tb_seckill_activity
         WHERE archived_at IS NULL AND state = 3 AND closes_at < ?
             AND closes_at >= ? AND (closes_at > ? OR id > ?)
         ORDER BY closes_at, id LIMIT ?";
    let asked = values![closed_before_ms, after_ms, after_ms, after, limit];
    let read =
        |row: &dyn Row| Ok(OldActivity { id: ActivityId(get(row, 0)?), closes_ms: get(row, 1)? });
    session.rows(sql, asked, read).await
}

async fn items_of(session: &mut dyn Session, activity: ActivityId) -> Outcome<Vec<ItemId>> {
    let sql = "SELECT id FROM tb_seckill_product WHERE activity_id = ? ORDER BY id";
    session.rows(sql, values![activity], |row| Ok(ItemId(get(row, 0)?))).await
}

/// Money that moved in this time keeps its item in the books: for a week the bills of its provider are
/// compared with what was noted there, day by day.
const MONEY_MS: Millis = 10 * 24 * 60 * 60 * 1_000;

/// What keeps an item from being moved, if anything does.
async fn held_back(
    session: &mut dyn Session,
    item: ItemId,
    now_ms: Millis,
) -> Outcome<Option<&'static str>> {
    let unsettled =
        "SELECT 1 FROM tb_seckill_order WHERE product_id = ? AND status IN (0, 3) LIMIT 1";
    let letters = "SELECT 1 FROM tb_dead_letter WHERE product_id = ? AND state IN (0, 1) LIMIT 1";
    let outbox = "SELECT 1 FROM tb_outbox WHERE product_id = ? LIMIT 1";
    // A row with the greatest id stays: SQLite would give its number to the next one.
    let newest = "SELECT 1 FROM tb_stock_log
         WHERE product_id = ? AND id = (SELECT MAX(id) FROM tb_stock_log)";
    let newest_money =
        "SELECT 1 FROM tb_payment AS p JOIN tb_seckill_order AS o ON o.order_no = p.order_no
         WHERE o.product_id = ? AND p.id = (SELECT MAX(id) FROM tb_payment)";
    let open = format!(
        "SELECT 1 FROM tb_seckill_order AS o JOIN tb_payment AS p ON p.order_no = o.order_no
         WHERE o.product_id = ? AND ({OPEN_PAYMENT} OR ({OWED} AND {NOT_REFUNDED})
             OR p.created_at >= ?) LIMIT 1"
    );
    for (why, sql) in [
        // The cheap ones first: what is held back is asked about again in every run.
        ("nothing was sold since", newest),
        ("nothing was paid since", newest_money),
        ("claims of it failed and wait", letters),
        ("the gate has not been told of everything", outbox),
        ("orders are unpaid, or their money is on its way back", unsettled),
    ] {
        if session.first(sql, values![item], |_| Ok(())).await?.is_some() {
            return Ok(Some(why));
        }
    }
    let asked = values![item, now_ms - MONEY_MS];
    let open = session.first(&open, asked, |_| Ok(())).await?;
    Ok(open.map(|()| "payments are open, or of the last days"))
}

struct LogRow {
    id: i64,
    order_no: OrderNo,
    after_stock: i64,
}

/// The beginning of what the books have of an item's stock log.
async fn move_log(tx: &mut dyn Session, item: ItemId, rows_max: usize) -> Outcome<Option<Step>> {
    let sql = "SELECT id, order_no, after_stock FROM tb_stock_log WHERE product_id = ? ORDER BY id LIMIT ?";
    let read = |row: &dyn Row| {
        Ok(LogRow { id: get(row, 0)?, order_no: parsed(row, 1)?, after_stock: get(row, 2)? })
    };
    let rows = tx.rows(sql, values![item, rows_max], read).await?;
    let Some(last) = rows.last() else { return Ok(None) };
    let mut by_month: BTreeMap<Month, Vec<Value<'static>>> = BTreeMap::new();
    for row in &rows {
        by_month.entry(Month::of(row.order_no)).or_default().push(row.id.into());
    }
    for month in by_month.keys() {
        if !is_made(tx, *month).await? {
            return Ok(Some(Step::Needs(*month)));
        }
    }
    let names = columns(tx, "tb_stock_log").await?;
    for (month, ids) in &by_month {
        let copied = Copied::read(tx, ("tb_stock_log", names.clone()), ("id", ids)).await?;
        let mut to = tx.month(*month, Purpose::Write).await?;
        copied.write_over(&mut *to, ("id", ids)).await?;
        to.keep()?;
    }
    let keep = tx.dialect().keep("month");
    let months = by_month.keys().map(|month| [item.into(), month.code().into()]);
    tx.insert("tb_archived_log (product_id, month)", months, &keep).await?;
    let end = [[item.into(), last.id.into(), last.after_stock.into()]];
    let replace = tx.dialect().replace("product_id", &["end_id", "end_stock"]);
    let into = "tb_archived_item (product_id, end_id, end_stock)";
    tx.insert(into, end.into_iter(), &replace).await?;
    let ids = Value::list(rows.iter().map(|row| row.id));
    tx.execute("DELETE FROM tb_stock_log WHERE id IN ?", &[ids]).await?;
    let moved = ArchiveStep::Moved { orders: 0, log_rows: rows.len() as u64 };
    Ok(Some(Step::Was(moved)))
}

struct OrderRow {
    order_no: OrderNo,
    user: UserId,
    status: OrderStatus,
    quantity: i64,
    amount: i64,
    paid_ms: Option<Millis>,
}

fn read_order(row: &dyn Row) -> Outcome<OrderRow> {
    Ok(OrderRow {
        order_no: parsed(row, 0)?,
        user: parsed(row, 1)?,
        status: coded(row, 2, OrderStatus::from_code)?,
        quantity: get(row, 3)?,
        amount: get(row, 4)?,
        paid_ms: get(row, 5)?,
    })
}

/// The first orders of an item that are of one month, with their payments.
async fn move_orders(tx: &mut dyn Session, item: ItemId, rows_max: usize) -> Outcome<Option<Step>> {
    let dialect = tx.dialect();
    let sql = format!(
        "SELECT order_no, user_id, status, quantity, amount, paid_at FROM tb_seckill_order {}
         WHERE product_id = ? ORDER BY order_no LIMIT ? {}",
        dialect.by_index("ix_order_product"),
        dialect.for_update()
    );
    let mut orders = tx.rows(&sql, values![item, rows_max], read_order).await?;
    let Some(first) = orders.first() else { return Ok(None) };
    let month = Month::of(first.order_no);
    orders.retain(|order| Month::of(order.order_no) == month);
    if orders.iter().any(|o| matches!(o.status, OrderStatus::Unpaid | OrderStatus::Refunding)) {
        let why = "an order was opened again";
        return Ok(Some(Step::Was(ArchiveStep::HeldBack(why.into()))));
    }
    if !is_made(tx, month).await? {
        return Ok(Some(Step::Needs(month)));
    }
    let numbers: Vec<Value<'static>> = orders.iter().map(|order| order.order_no.into()).collect();
    copy_orders(tx, month, &numbers).await?;
    note_orders(tx, item, month, &orders).await?;
    note_payments(tx, month, &numbers).await?;
    forget_orders(tx, item, &orders, &numbers).await?;
    let moved = ArchiveStep::Moved { orders: orders.len() as u64, log_rows: 0 };
    Ok(Some(Step::Was(moved)))
}

async fn copy_orders(
    tx: &mut dyn Session,
    month: Month,
    numbers: &[Value<'static>],
) -> Outcome<()> {
    let key = ("order_no", numbers);
    let names = columns(tx, "tb_seckill_order").await?;
    let orders = Copied::read(tx, ("tb_seckill_order", names), key).await?;
    // A month has an index of all its buyers.
    let orders = orders.with("volume", &Value::Int(0));
    let names = columns(tx, "tb_payment").await?;
    let payments = Copied::read(tx, ("tb_payment", names), key).await?;
    let mut to = tx.month(month, Purpose::Write).await?;
    orders.write_over(&mut *to, key).await?;
    payments.write_over(&mut *to, key).await?;
    to.keep()
}

/// What the books say of them from now on.
async fn note_orders(
    tx: &mut dyn Session,
    item: ItemId,
    month: Month,
    orders: &[OrderRow],
) -> Outcome<()> {
    let mut by_status: BTreeMap<i64, (i64, i64, i64)> = BTreeMap::new();
    for order in orders {
        let sums = by_status.entry(order.status.code()).or_default();
        *sums = (sums.0 + 1, sums.1 + order.quantity, sums.2 + order.amount);
    }
    for (status, sums) in by_status {
        add_to_sums(tx, (item, month, status), sums).await?;
    }
    let buyers: BTreeSet<&UserId> = orders.iter().map(|order| &order.user).collect();
    let keep = tx.dialect().keep("month");
    let buyers = buyers.into_iter().map(|user| [user.into(), month.code().into()]);
    tx.insert("tb_archived_buyer (user_id, month)", buyers, &keep).await?;
    let paid = || orders.iter().filter_map(|order| order.paid_ms);
    let sql = "UPDATE tb_archive_month SET
             last_no = CASE WHEN last_no IS NULL OR last_no < ? THEN ? ELSE last_no END,
             paid_from = CASE WHEN paid_from IS NULL OR paid_from > ? THEN ? ELSE paid_from END,
             paid_to = CASE WHEN paid_to IS NULL OR paid_to < ? THEN ? ELSE paid_to END
         WHERE month = ?";
    let last = orders.last().map(|order| order.order_no);
    // Where nothing was paid the bounds stay as they are.
    let (from, to) = (paid().min(), paid().max());
    tx.execute(sql, values![last, last, from, from, to, to, month.code()]).await?;
    Ok(())
}

pub(super) async fn add_to_sums(
    tx: &mut dyn Session,
    (item, month, status): (ItemId, Month, i64),
    (orders, units, amount): (i64, i64, i64),
) -> Outcome<()> {
    let keep = tx.dialect().keep("status");
    let nothing = || Value::Int(0);
    let row = [item.into(), month.code().into(), status.into(), nothing(), nothing(), nothing()];
    let into = "tb_archived_orders (product_id, month, status, orders, units, amount)";
    tx.insert(into, [row].into_iter(), &keep).await?;
    let sql =
        "UPDATE tb_archived_orders SET orders = orders + ?, units = units + ?, amount = amount + ?
         WHERE product_id = ? AND month = ? AND status = ?";
    let more = values![orders, units, amount, item, month.code(), status];
    tx.execute(sql, more).await?;
    Ok(())
}

/// Money is known by its number, wherever it is: what a provider says again changes nothing.
async fn note_payments(
    tx: &mut dyn Session,
    month: Month,
    numbers: &[Value<'static>],
) -> Outcome<()> {
    let sql =
        "SELECT DISTINCT provider, provider_txn FROM tb_payment WHERE order_no IN ? AND kind = 1";
    let read = |row: &dyn Row| Ok((get::<String>(row, 0)?, get::<String>(row, 1)?));
    let payments = tx.rows(sql, &[Value::List(numbers.to_vec())], read).await?;
    let keep = tx.dialect().keep("month");
    let rows = payments
        .into_iter()
        .map(|(provider, txn)| [provider.into(), txn.into(), month.code().into()]);
    tx.insert("tb_archived_payment (provider, provider_txn, month)", rows, &keep).await
}

async fn forget_orders(
    tx: &mut dyn Session,
    item: ItemId,
    orders: &[OrderRow],
    numbers: &[Value<'static>],
) -> Outcome<()> {
    let numbers = || Value::List(numbers.to_vec());
    tx.execute("DELETE FROM tb_payment WHERE order_no IN ?", &[numbers()]).await?;
    let users = Value::list(orders.iter().map(|order| &order.user));
    let sql = "DELETE FROM tb_user_seckill
         WHERE product_id = ? AND user_id IN ? AND order_no IN ?";
    tx.execute(sql, &[item.into(), users, numbers()]).await?;
    tx.execute("DELETE FROM tb_archive_recalled WHERE order_no IN ?", &[numbers()]).await?;
    tx.execute("DELETE FROM tb_seckill_order WHERE order_no IN ?", &[numbers()]).await?;
    Ok(())
}

/// A step of an activity that nothing holds back.
async fn step(
    tx: &mut dyn Session,
    activity: ActivityId,
    rows_max: usize,
    now_ms: Millis,
) -> Outcome<Step> {
    let items = items_of(tx, activity).await?;
    for item in &items {
        if let Some(step) = move_log(tx, *item, rows_max).await? {
            return Ok(step);
        }
    }
    for item in &items {
        if let Some(step) = move_orders(tx, *item, rows_max).await? {
            return Ok(step);
        }
    }
    let sql = "UPDATE tb_seckill_activity SET archived_at = ?
         WHERE id = ? AND state = ? AND archived_at IS NULL";
    tx.execute(sql, values![now_ms, activity, ActivityState::Ended.code()]).await?;
    Ok(Step::Was(ArchiveStep::Done))
}

#[async_trait]
impl Archive for SqlLedger {
    async fn old_activities(
        &self,
        closed_before_ms: Millis,
        after: OldActivity,
        limit: usize,
    ) -> Result<Vec<OldActivity>> {
        self.run(Access::Statement, (), move |session, ()| {
            let after = (after.closes_ms, after.id);
            Box::pin(old_activities(session, closed_before_ms, after, limit))
        })
        .await
    }

    async fn archivable(&self, activity: ActivityId) -> Result<Archivable> {
        let now_ms = self.clock.now_ms();
        self.run(Access::LongSnapshot, (), move |session, ()| {
            Box::pin(async move {
                for item in items_of(session, activity).await? {
                    if let Some(why) = held_back(session, item, now_ms).await? {
                        return Ok(Archivable::HeldBack(format!("item {item}: {why}")));
                    }
                }
                Ok(Archivable::Yes)
            })
        })
        .await
    }

    async fn archive_step(
        &self,
        activity: ActivityId,
        rows_max: usize,
        now_ms: Millis,
    ) -> Result<ArchiveStep> {
        loop {
            let outcome: Result<Step> = self
                .run(Access::Write, (), move |tx, ()| {
                    Box::pin(step(tx, activity, rows_max, now_ms))
                })
                .await;
            match outcome? {
                Step::Was(step) => return Ok(step),
                Step::Needs(month) => self.make_month(month).await?,
            }
        }
    }
}

impl SqlLedger {
    /// Its tables are there before anything says so: DDL commits by itself at a server.
    async fn make_month(&self, month: Month) -> Result<()> {
        let made: Result<()> = self
            .run(Access::Statement, (), move |session, ()| Box::pin(make(session, month)))
            .await;
        made?;
        self.run(Access::Write, (), move |tx, ()| Box::pin(note_made(tx, month))).await
    }
}

//! Orders: found, listed, counted, and written (live or void) from claims. How they end unpaid is in
//! [`closing`].

use std::collections::HashMap;

use async_trait::async_trait;
use sale::{Claim, CloseReason, ItemId, Millis, Order, OrderNo, OrderStatus, VoidReason};

use super::{
    Access, SqlLedger,
    activities::items_by_sku,
    archive, closing,
    columns::{ORDER_COLUMNS, coded, get, key_bits, money, order, parsed, parsed_or_null},
    failure::{Failure, Outcome},
    session::{Row, Session, Value, values},
    volumes,
};
use crate::{
    Closing, OrderCount, OrderFilter, OrderNos, Orders, Overdue, OverdueKey, Result, SKU_ITEMS_MAX,
    StatusCount,
    decide::Owner,
    offer::{EnterAs, Offer, OrderTerms},
};

/// What a new order copies from its item, whose row this locks.
pub(super) async fn locked_offer(tx: &mut dyn Session, item: ItemId) -> Outcome<Option<Offer>> {
    let read = |row: &dyn Row| {
        Ok(Offer {
            activity_id: get(row, 0)?,
            name: get(row, 1)?,
            price: money(row, 2, 3)?,
            stock: get(row, 4)?,
            version: get(row, 5)?,
            pay_within_ms: get(row, 6)?,
            limit_per_user: get(row, 7)?,
            has_webhooks: get(row, 8)?,
            volume: get(row, 9)?,
            is_archived: get(row, 10)?,
        })
    };
    // The activity is read by a subquery, so that its row stays unlocked: other items share it. Whether
    // anybody is to be told, and the volume, are read here as well, so that settling need not ask.
    let sql = format!(
        "SELECT activity_id, name, price, currency, stock, version,
             (SELECT pay_within_ms FROM tb_seckill_activity AS a WHERE a.id = p.activity_id),
             limit_per_user, EXISTS (SELECT 1 FROM tb_webhook_endpoint), {},
             EXISTS (SELECT 1 FROM tb_archived_item AS i WHERE i.product_id = p.id)
         FROM tb_seckill_product AS p WHERE id = ? {}",
        volumes::LAST,
        tx.dialect().for_update()
    );
    tx.first(&sql, values![item], read).await
}

const DAY_MS: Millis = 24 * 60 * 60 * 1_000;
/// Longer than a claim waits on the log.
const WAITED_MS_MAX: Millis = 31 * DAY_MS;

const INTO_ORDERS: &str = "tb_seckill_order (order_no, user_id, activity_id, product_id, \
     product_name, price, currency, quantity, amount, status, close_reason, epoch, claim_key, \
     claimed_at, pay_deadline, created_at, closed_at, volume)";

/// Writes one order per claim.
pub(super) async fn insert<'c>(
    tx: &mut dyn Session,
    offer: &Offer,
    entries: impl Iterator<Item = (&'c Claim, EnterAs)>,
    now_ms: Millis,
) -> Outcome<()> {
    let entries = entries
        .map(|(claim, enter_as)| Ok((claim, OrderTerms::of(offer, claim, &enter_as, now_ms)?)));
    let entries: Result<Vec<(&Claim, OrderTerms)>, String> = entries.collect();
    let rows = entries.map_err(Failure::Rejected)?.into_iter().map(|(claim, terms)| {
        [
            claim.order_no.into(),
            (&claim.user).into(),
            offer.activity_id.into(),
            claim.item.into(),
            (&offer.name).into(),
            offer.price.minor.into(),
            offer.price.currency.as_str().into(),
            claim.quantity.into(),
            terms.amount.into(),
            terms.status.code().into(),
            terms.reason.into(),
            (claim.epoch as i64).into(),
            key_bits(claim).into(),
            claim.claimed_ms.into(),
            terms.deadline_ms.into(),
            now_ms.into(),
            terms.closed_ms.into(),
            offer.volume.into(),
        ]
    });
    tx.insert(INTO_ORDERS, rows, "").await
}

pub(super) async fn one(session: &mut dyn Session, no: OrderNo) -> Outcome<Option<Order>> {
    let sql = format!("SELECT {ORDER_COLUMNS} FROM tb_seckill_order WHERE order_no = ?");
    match session.first(&sql, values![no], order).await? {
        Some(order) => Ok(Some(order)),
        None => archive::find_order(session, no).await,
    }
}

pub(super) async fn by_no(session: &mut dyn Session, numbers: &[OrderNo]) -> Outcome<Vec<Order>> {
    let mut found = in_books_by_no(session, numbers).await?;
    if found.len() < numbers.len() {
        let known: OrderNos = found.iter().map(|order| order.order_no).collect();
        let missing = numbers.iter().copied().filter(|no| !known.contains(no)).collect();
        found.extend(archive::orders_in(session, missing).await?);
    }
    Ok(found)
}

pub(super) async fn in_books_by_no(
    session: &mut dyn Session,
    numbers: &[OrderNo],
) -> Outcome<Vec<Order>> {
    let sql = format!("SELECT {ORDER_COLUMNS} FROM tb_seckill_order WHERE order_no IN ?");
    session.rows(&sql, values![Value::list(numbers.iter().copied())], order).await
}

/// An order nobody else can move before this transaction ends. One that was archived is in the books again
/// then: who locks it means to change it.
pub(super) async fn locked(tx: &mut dyn Session, no: OrderNo) -> Outcome<Option<Order>> {
    let for_update = tx.dialect().for_update();
    let sql =
        format!("SELECT {ORDER_COLUMNS} FROM tb_seckill_order WHERE order_no = ? {for_update}");
    match tx.first(&sql, values![no], order).await? {
        None if archive::recall(tx, no).await? => tx.first(&sql, values![no], order).await,
        found => Ok(found),
    }
}

/// The one way a single order changes its status. False if it was no longer `from`.
pub(super) async fn move_status(
    tx: &mut dyn Session,
    no: OrderNo,
    from: OrderStatus,
    to: OrderStatus,
) -> Outcome<bool> {
    from.may_become(to).map_err(|illegal| Failure::Broken(illegal.to_string()))?;
    let sql = "UPDATE tb_seckill_order SET status = ? WHERE order_no = ? AND status = ?";
    Ok(tx.execute(sql, values![to.code(), no, from.code()]).await? == 1)
}

/// The first and the last number of those that are looked for, if that is known.
type Between = (Option<OrderNo>, Option<OrderNo>);

async fn list(session: &mut dyn Session, filter: &OrderFilter) -> Outcome<Vec<Order>> {
    match &filter.sku {
        Some(sku) => list_by_sku(session, filter, sku).await,
        None => archive::orders_page(session, filter).await,
    }
}

/// Between which numbers the orders of an activity or a time are, where nothing else tells where to look:
/// numbers are made in the order of time, so that what is asked for lies in one stretch of all orders.
/// Without, a page of an old sale would be looked for from today back through the years.
async fn numbers_of(session: &mut dyn Session, filter: &OrderFilter) -> Outcome<Between> {
    let (mut from, mut to) = (None, None);
    let has_index = filter.order_no.is_some() || filter.user.is_some() || filter.item.is_some();
    if has_index || filter.by_payment() {
        return Ok((None, None));
    }
    if let Some(activity) = filter.activity {
        // A claim has its number from while its sale is open.
        let sql = "SELECT opens_at, closes_at FROM tb_seckill_activity WHERE id = ?";
        let window = |row: &dyn Row| Ok((get::<Millis>(row, 0)?, get::<Millis>(row, 1)?));
        if let Some((opens_ms, closes_ms)) = session.first(sql, values![activity], window).await? {
            from = Some(OrderNo::floor(opens_ms.saturating_sub(DAY_MS)));
            to = Some(OrderNo::floor(closes_ms.saturating_add(DAY_MS)));
        }
    }
    if let Some(to_ms) = filter.to_ms {
        // An order is never older than its number, but for clocks that differ.
        let end = OrderNo::floor(to_ms.saturating_add(DAY_MS));
        to = Some(to.map_or(end, |to: OrderNo| to.min(end)));
    }
    if let Some(from_ms) = filter.from_ms {
        // It may be younger by as long as claims may wait, and longer only if its claim failed.
        let begin = OrderNo::floor(from_ms.saturating_sub(WAITED_MS_MAX));
        let sql =
            "SELECT MIN(order_no) FROM tb_dead_letter WHERE state IN (2, 3) AND updated_at >= ?";
        let failed = session.first(sql, values![from_ms], |row| parsed_or_null(row, 0)).await?;
        let begin = failed.flatten().map_or(begin, |failed: OrderNo| failed.min(begin));
        from = Some(from.map_or(begin, |from: OrderNo| from.max(begin)));
    }
    Ok((from, to))
}

/// A page of each item, by its own index, of which the first rows are the page of all. One statement for
/// all of them would sort all their orders for every page.
async fn list_by_sku(
    session: &mut dyn Session,
    filter: &OrderFilter,
    sku: &str,
) -> Outcome<Vec<Order>> {
    let items = items_by_sku(session, sku, filter.activity, None, SKU_ITEMS_MAX).await?;
    let mut orders = Vec::new();
    for item in items.into_iter().map(|item| item.id) {
        if filter.item.is_none_or(|only| only == item) {
            let of_item = OrderFilter { item: Some(item), sku: None, ..filter.clone() };
            orders.extend(archive::orders_page(session, &of_item).await?);
        }
    }
    filter.sort(&mut orders);
    orders.truncate(filter.limit);
    Ok(orders)
}

/// Where a page begins, wherever its orders are.
#[derive(Clone, Copy)]
pub(super) struct PageStart {
    /// When the order was paid behind which a page by payment begins.
    after_paid: Option<Millis>,
    between: Between,
}

pub(super) async fn page_start(
    session: &mut dyn Session,
    filter: &OrderFilter,
) -> Outcome<PageStart> {
    let after_paid = match filter.before {
        Some(no) if filter.by_payment() => {
            let paid_ms = one(session, no).await?.and_then(|order| order.paid_ms);
            Some(OrderFilter::page_after_paid(paid_ms).map_err(Failure::Refused)?)
        }
        _ => None,
    };
    Ok(PageStart { after_paid, between: numbers_of(session, filter).await? })
}

/// A page of the orders that are in the books, or in a month of the archive.
pub(super) async fn page_of_books(
    session: &mut dyn Session,
    filter: &OrderFilter,
    PageStart { after_paid, between: (from, to) }: PageStart,
) -> Outcome<Vec<Order>> {
    let asked: [(&str, Value<'_>); 11] = [
        ("order_no >= ?", from.into()),
        ("order_no <= ?", to.into()),
        ("order_no = ?", filter.order_no.into()),
        ("user_id = ?", filter.user.as_ref().into()),
        ("activity_id = ?", filter.activity.into()),
        ("product_id = ?", filter.item.into()),
        ("status = ?", filter.status.map(OrderStatus::code).into()),
        ("created_at >= ?", filter.from_ms.into()),
        ("created_at < ?", filter.to_ms.into()),
        ("paid_at >= ?", filter.paid_from_ms.into()),
        ("paid_at < ?", filter.paid_below_ms(after_paid).into()),
    ];
    let (mut conditions, mut values) = (String::from("TRUE"), Vec::new());
    let mut by_buyer = String::new();
    if filter.user.is_some() {
        by_buyer = session.dialect().by_index("ix_order_user");
        conditions = volumes::any(session).await?;
    }
    for (condition, value) in asked {
        if value != Value::Null {
            conditions.push_str(" AND ");
            conditions.push_str(condition);
            values.push(value);
        }
    }
    if let Some(before) = filter.before {
        // Of those that were paid at the same time, the ones before it by their numbers.
        let page = match after_paid {
            Some(_) => " AND (paid_at < ? OR order_no < ?)",
            None => " AND order_no < ?",
        };
        conditions.push_str(page);
        values.extend(after_paid.map(Value::from));
        values.push(before.into());
    }
    values.push(filter.limit.into());
    let sequence =
        if filter.by_payment() { "paid_at DESC, order_no DESC" } else { "order_no DESC" };
    let sql = format!(
        "SELECT {ORDER_COLUMNS} FROM tb_seckill_order {by_buyer} WHERE {conditions}
         ORDER BY {sequence} LIMIT ?"
    );
    session.rows(&sql, &values, order).await
}

async fn count(
    session: &mut dyn Session,
    item: ItemId,
    after: Option<OrderNo>,
    limit: usize,
) -> Outcome<OrderCount> {
    // By the item's index and no other: all orders there ever were are many more.
    let sql = format!(
        "SELECT status, COUNT(*), CAST(SUM(quantity) AS SIGNED), CAST(SUM(amount) AS SIGNED),
             MAX(order_no)
         FROM (
             SELECT status, quantity, amount, order_no FROM tb_seckill_order {}
             WHERE product_id = ? AND order_no > ? ORDER BY order_no LIMIT ?
         ) AS piece GROUP BY status",
        session.dialect().by_index("ix_order_product")
    );
    let after = after.map(|no| no.to_string()).unwrap_or_default();
    let read = |row: &dyn Row| {
        let count = StatusCount { orders: get(row, 1)?, units: get(row, 2)?, amount: get(row, 3)? };
        Ok((coded(row, 0, OrderStatus::from_code)?, count, parsed(row, 4)?))
    };
    let rows = session.rows(&sql, values![item, &after, limit], read).await?;
    let mut count = OrderCount::of(rows, limit);
    if after.is_empty() {
        count.add(archive::archived_counts(session, item).await?);
    }
    Ok(count)
}

/// The owners of those of these numbers that are orders (or void) already.
pub(super) async fn owners(
    session: &mut dyn Session,
    numbers: impl Iterator<Item = OrderNo>,
) -> Outcome<HashMap<OrderNo, Owner>> {
    owners_in(session, "tb_seckill_order", numbers).await
}

/// The same for any table that numbers claims.
pub(super) async fn owners_in(
    session: &mut dyn Session,
    table: &str,
    numbers: impl Iterator<Item = OrderNo>,
) -> Outcome<HashMap<OrderNo, Owner>> {
    let sql = format!("SELECT order_no, product_id, user_id FROM {table} WHERE order_no IN ?");
    let read = |row: &dyn Row| {
        Ok((parsed(row, 0)?, Owner { item: ItemId(get(row, 1)?), user: get(row, 2)? }))
    };
    Ok(session.rows(&sql, &[Value::list(numbers)], read).await?.into_iter().collect())
}

/// Which of these are orders (or void) already. The list may hold a hundred thousand.
pub(super) async fn settled_among(
    session: &mut dyn Session,
    orders: &[OrderNo],
) -> Outcome<OrderNos> {
    let sql = "SELECT order_no FROM tb_seckill_order WHERE order_no IN ?";
    let asked = [Value::list(orders.iter().copied())];
    Ok(session.rows(sql, &asked, |row| parsed(row, 0)).await?.into_iter().collect())
}

/// The largest number the ledger has seen, whatever it numbers: orders, adjustments, failed claims.
async fn last_no(session: &mut dyn Session) -> Outcome<Option<OrderNo>> {
    let sql = "SELECT MAX(order_no) FROM (
             SELECT MAX(order_no) AS order_no FROM tb_seckill_order
             UNION ALL SELECT MAX(order_no) FROM tb_stock_log
             UNION ALL SELECT MAX(order_no) FROM tb_dead_letter) AS seen";
    let last = session.first(sql, &[], |row| parsed_or_null(row, 0)).await?.flatten();
    Ok(last.max(archive::last_no(session).await?))
}

#[async_trait]
impl Orders for SqlLedger {
    async fn order(&self, no: OrderNo) -> Result<Option<Order>> {
        self.run(Access::Statement, (), move |session, ()| Box::pin(one(session, no))).await
    }

    async fn orders_by_no(&self, numbers: &[OrderNo]) -> Result<Vec<Order>> {
        self.run(Access::Statement, numbers.to_vec(), |session, numbers| {
            Box::pin(by_no(session, numbers))
        })
        .await
    }

    async fn orders(&self, filter: &OrderFilter) -> Result<Vec<Order>> {
        self.run(Access::Snapshot, filter.clone(), |session, filter| {
            Box::pin(list(session, filter))
        })
        .await
    }

    async fn count_orders(
        &self,
        item: ItemId,
        after: Option<OrderNo>,
        limit: usize,
    ) -> Result<OrderCount> {
        self.run(Access::Snapshot, (), move |session, ()| {
            Box::pin(count(session, item, after, limit))
        })
        .await
    }

    async fn overdue_after(
        &self,
        now_ms: Millis,
        after: Option<OverdueKey>,
        limit: usize,
    ) -> Result<Vec<Overdue>> {
        self.run(Access::Snapshot, (), move |session, ()| {
            Box::pin(closing::overdue(session, now_ms, after, limit))
        })
        .await
    }

    async fn overdue_among(&self, orders: &[OrderNo], now_ms: Millis) -> Result<Vec<Overdue>> {
        self.run(Access::Snapshot, orders.to_vec(), move |session, orders| {
            Box::pin(closing::overdue_among(session, orders, now_ms))
        })
        .await
    }

    async fn close(
        &self,
        orders: &[Closing],
        reason: CloseReason,
        now_ms: Millis,
    ) -> Result<Vec<OrderNo>> {
        if reason == CloseReason::Timeout {
            return closing::close_overdue(self, orders, now_ms).await;
        }
        self.run(Access::Write, orders.to_vec(), move |tx, orders| {
            Box::pin(closing::close(tx, orders, reason, now_ms))
        })
        .await
    }

    async fn void(
        &self,
        claims: &[Claim],
        reason: VoidReason,
        now_ms: Millis,
    ) -> Result<Vec<OrderNo>> {
        self.run(Access::Write, claims.to_vec(), move |tx, claims| {
            Box::pin(closing::void(tx, claims, reason, now_ms))
        })
        .await
    }

    async fn last_order_no(&self) -> Result<Option<OrderNo>> {
        self.run(Access::Statement, (), |session, ()| Box::pin(last_no(session))).await
    }
}

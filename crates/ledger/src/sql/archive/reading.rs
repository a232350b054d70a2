//! Reading what is in the archive as if it were in the books.

use std::collections::{BTreeMap, HashMap, HashSet};

use sale::{ItemId, Millis, OrderNo, OrderStatus};

use super::{
    super::{
        bills,
        columns::{coded, get, parsed},
        failure::{Failure, Outcome},
        orders, payments,
        session::{Row, Session, Value, values},
        stock,
    },
    Month, Purpose,
};
use crate::{OrderFilter, OrderNos, PaymentRow, StatusCount, StockLogRow, decide::Owner};
use sale::Order;

/// An order may be written so much later than it was numbered: its claim was tried again and again, or lay
/// with the dead letters.
const WRITTEN_LATER_MS_MAX: Millis = 400 * 24 * 60 * 60 * 1_000;

pub(super) async fn is_made(session: &mut dyn Session, month: Month) -> Outcome<bool> {
    let sql = "SELECT 1 FROM tb_archive_month WHERE month = ?";
    Ok(session.first(sql, values![month.code()], |_| Ok(())).await?.is_some())
}

fn month(row: &dyn Row, column: usize) -> Outcome<Month> {
    coded(row, column, Month::from_code)
}

/// An order that is not in the books.
pub(in super::super) async fn find_order(
    session: &mut dyn Session,
    no: OrderNo,
) -> Outcome<Option<Order>> {
    Ok(orders_in(session, vec![no]).await?.pop())
}

/// Those of these numbers, by the month in which they must be, if there is such a month.
async fn by_month(
    session: &mut dyn Session,
    numbers: impl IntoIterator<Item = OrderNo>,
) -> Outcome<BTreeMap<Month, Vec<OrderNo>>> {
    let mut by_month: BTreeMap<Month, Vec<OrderNo>> = BTreeMap::new();
    for no in numbers {
        by_month.entry(Month::of(no)).or_default().push(no);
    }
    let mut made = BTreeMap::new();
    for (month, numbers) in by_month {
        if is_made(session, month).await? {
            made.insert(month, numbers);
        }
    }
    Ok(made)
}

/// Orders that are not in the books, in any order.
pub(in super::super) async fn orders_in(
    session: &mut dyn Session,
    numbers: Vec<OrderNo>,
) -> Outcome<Vec<Order>> {
    let mut found = Vec::new();
    for (month, numbers) in by_month(session, numbers).await? {
        let mut kept = session.month(month, Purpose::Read).await?;
        found.extend(orders::in_books_by_no(&mut *kept, &numbers).await?);
    }
    Ok(found)
}

/// Whose these numbers are, of those that are not in the books.
pub(in super::super) async fn owners_in_months(
    session: &mut dyn Session,
    numbers: Vec<OrderNo>,
) -> Outcome<HashMap<OrderNo, Owner>> {
    let mut found = HashMap::new();
    for (month, numbers) in by_month(session, numbers).await? {
        let mut kept = session.month(month, Purpose::Read).await?;
        found.extend(orders::owners(&mut *kept, numbers.into_iter()).await?);
    }
    Ok(found)
}

/// What is on record of the money of orders, oldest first. The orders of `known` have theirs in the books.
pub(in super::super) async fn payments_of(
    session: &mut dyn Session,
    orders: &[OrderNo],
    mut known: Vec<PaymentRow>,
) -> Outcome<Vec<PaymentRow>> {
    let in_books: HashSet<OrderNo> = known.iter().map(|row| row.order_no).collect();
    let missing = orders.iter().copied().filter(|no| !in_books.contains(no));
    for (month, numbers) in by_month(session, missing).await? {
        let mut kept = session.month(month, Purpose::Read).await?;
        known.extend(payments::in_books_of(&mut *kept, &numbers).await?);
    }
    Ok(known)
}

/// The months in which a payment was archived under this number, by any of these providers.
pub(in super::super) async fn months_of_payment(
    session: &mut dyn Session,
    provider: &str,
    provider_txn: &str,
) -> Outcome<Option<Month>> {
    let sql = "SELECT month FROM tb_archived_payment WHERE provider = ? AND provider_txn = ?";
    session.first(sql, values![provider, provider_txn], |row| month(row, 0)).await
}

/// Money received and given back of these transactions, none of which are in the books.
pub(in super::super) async fn payments_by_txn(
    session: &mut dyn Session,
    provider: &str,
    txns: &[String],
) -> Outcome<Vec<PaymentRow>> {
    if txns.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT month, provider_txn FROM tb_archived_payment
         WHERE provider = ? AND provider_txn IN ?";
    let asked: [Value<'_>; 2] = [provider.into(), Value::list(txns.iter())];
    let read = |row: &dyn Row| Ok((month(row, 0)?, get::<String>(row, 1)?));
    let mut by_month: BTreeMap<Month, Vec<String>> = BTreeMap::new();
    for (month, txn) in session.rows(sql, &asked, read).await? {
        by_month.entry(month).or_default().push(txn);
    }
    let mut found = Vec::new();
    for (month, txns) in by_month {
        let mut kept = session.month(month, Purpose::Read).await?;
        found.extend(bills::by_txn_in_books(&mut *kept, provider, &txns).await?);
    }
    Ok(found)
}

/// Was money with this number credited to an order that is archived?
pub(in super::super) async fn has_payment(
    session: &mut dyn Session,
    provider: &str,
    provider_txn: &str,
) -> Outcome<bool> {
    Ok(months_of_payment(session, provider, provider_txn).await?.is_some())
}

/// A month, and when its orders were paid.
struct MonthRow {
    month: Month,
    paid: Option<(Millis, Millis)>,
}

impl MonthRow {
    fn may_have(&self, filter: &OrderFilter) -> bool {
        let made_before = filter.to_ms.is_none_or(|to_ms| self.month.begins_ms() < to_ms);
        let later_ms = self.month.ends_ms().saturating_add(WRITTEN_LATER_MS_MAX);
        let made_after = filter.from_ms.is_none_or(|from_ms| later_ms > from_ms);
        let in_page = match filter.before {
            Some(before) if !filter.by_payment() => self.month.begins_ms() <= before.made_ms(),
            _ => true,
        };
        let paid = !filter.by_payment()
            || self.paid.is_some_and(|(from_ms, to_ms)| {
                filter.paid_to_ms.is_none_or(|wanted| from_ms < wanted)
                    && filter.paid_from_ms.is_none_or(|wanted| to_ms >= wanted)
            });
        made_before && made_after && in_page && paid
    }
}

/// The months in which there may be orders that fit, newest first.
async fn months_for(session: &mut dyn Session, filter: &OrderFilter) -> Outcome<Vec<Month>> {
    let sql = "SELECT month, paid_from, paid_to FROM tb_archive_month ORDER BY month DESC";
    let read = |row: &dyn Row| {
        let paid = get::<Option<Millis>>(row, 1)?.zip(get::<Option<Millis>>(row, 2)?);
        Ok(MonthRow { month: month(row, 0)?, paid })
    };
    let all = session.rows(sql, &[], read).await?;
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let (sql, of): (_, Value<'_>) = match (&filter.user, filter.item, filter.activity) {
        (Some(user), _, _) => {
            ("SELECT month FROM tb_archived_buyer WHERE user_id = ?", user.into())
        }
        (None, Some(item), _) => {
            ("SELECT DISTINCT month FROM tb_archived_orders WHERE product_id = ?", item.into())
        }
        (None, None, Some(activity)) => (
            "SELECT DISTINCT month FROM tb_archived_orders WHERE product_id IN
                 (SELECT id FROM tb_seckill_product WHERE activity_id = ?)",
            activity.into(),
        ),
        (None, None, None) => ("SELECT month FROM tb_archive_month WHERE month > ?", Value::Int(0)),
    };
    let having = session.rows(sql, &[of], |row| month(row, 0)).await?;
    let having: HashSet<Month> = having.into_iter().collect();
    let fit = all.into_iter().filter(|row| having.contains(&row.month) && row.may_have(filter));
    Ok(fit.map(|row| row.month).collect())
}

/// Orders that are in the books again, and whose copies in the months are passed over.
async fn recalled(session: &mut dyn Session) -> Outcome<OrderNos> {
    let sql = "SELECT order_no FROM tb_archive_recalled";
    Ok(session.rows(sql, &[], |row| parsed(row, 0)).await?.into_iter().collect())
}

/// A page of all orders that fit, wherever they are. The session sees one instant of the books.
pub(in super::super) async fn orders_page(
    session: &mut dyn Session,
    filter: &OrderFilter,
) -> Outcome<Vec<Order>> {
    let start = orders::page_start(session, filter).await?;
    let months = months_for(session, filter).await?;
    let mut found = orders::page_of_books(session, filter, start).await?;
    if months.is_empty() {
        return Ok(found);
    }
    let recalled = recalled(session).await?;
    let mut seen: OrderNos = found.iter().map(|order| order.order_no).collect();
    for month in months {
        if is_full(&found, filter, month) {
            break;
        }
        let passed_over = recalled.iter().filter(|no| Month::of(**no) == month).count();
        let wanted = OrderFilter { limit: filter.limit + passed_over, ..filter.clone() };
        let mut kept = session.month(month, Purpose::Read).await?;
        let page = orders::page_of_books(&mut *kept, &wanted, start).await?;
        let is_new =
            |order: &Order| !recalled.contains(&order.order_no) && seen.insert(order.order_no);
        found.extend(page.into_iter().filter(is_new));
        filter.sort(&mut found);
        found.truncate(filter.limit);
    }
    Ok(found)
}

/// All of a full page come before any order of this month.
fn is_full(found: &[Order], filter: &OrderFilter, month: Month) -> bool {
    !filter.by_payment()
        && found.len() >= filter.limit
        && found.last().is_some_and(|last| last.order_no >= month.end())
}

/// Archived orders of an item by status.
pub(in super::super) async fn archived_counts(
    session: &mut dyn Session,
    item: ItemId,
) -> Outcome<Vec<(OrderStatus, StatusCount)>> {
    let sql = "SELECT status, CAST(SUM(orders) AS SIGNED), CAST(SUM(units) AS SIGNED),
             CAST(SUM(amount) AS SIGNED)
         FROM tb_archived_orders WHERE product_id = ? GROUP BY status HAVING SUM(orders) > 0";
    let read = |row: &dyn Row| {
        let count = StatusCount { orders: get(row, 1)?, units: get(row, 2)?, amount: get(row, 3)? };
        Ok((coded(row, 0, OrderStatus::from_code)?, count))
    };
    session.rows(sql, values![item], read).await
}

/// What of an item's books is in the archive.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct ArchivedBooks {
    /// Units of orders that are paid for.
    pub(in super::super) live_units: i64,
    /// The stock with which the archived part of the stock log ends.
    pub(in super::super) end_stock: Option<i64>,
}

pub(in super::super) async fn archived_books(
    session: &mut dyn Session,
    item: ItemId,
) -> Outcome<ArchivedBooks> {
    let end_stock = archived_end(session, item).await?.map(|(_, stock)| stock);
    let counts = archived_counts(session, item).await?;
    let live = counts.iter().filter(|(status, _)| *status == OrderStatus::Paid);
    Ok(ArchivedBooks { live_units: live.map(|(_, count)| count.units).sum(), end_stock })
}

/// The last row of an item's stock log that is archived, and the stock with which it ends.
pub(in super::super) async fn archived_end(
    session: &mut dyn Session,
    item: ItemId,
) -> Outcome<Option<(i64, i64)>> {
    let sql = "SELECT end_id, end_stock FROM tb_archived_item WHERE product_id = ?";
    session.first(sql, values![item], |row| Ok((get(row, 0)?, get(row, 1)?))).await
}

/// A page of an item's stock log, that of the books being `found`.
pub(in super::super) async fn log_page(
    session: &mut dyn Session,
    item: ItemId,
    (after_id, limit): (i64, usize),
    mut found: Vec<StockLogRow>,
) -> Outcome<Vec<StockLogRow>> {
    let end = archived_end(session, item).await?;
    if end.is_none_or(|(end_id, _)| after_id >= end_id) {
        return Ok(found);
    }
    let sql = "SELECT month FROM tb_archived_log WHERE product_id = ? ORDER BY month";
    for month in session.rows(sql, values![item], |row| month(row, 0)).await? {
        let mut kept = session.month(month, Purpose::Read).await?;
        found.extend(stock::log_in_books(&mut *kept, item, after_id, limit).await?);
    }
    found.sort_by_key(|row| row.id);
    found.dedup_by_key(|row| row.id);
    found.truncate(limit);
    Ok(found)
}

/// What an order did to the stock, that of the books being `found`.
pub(in super::super) async fn log_of(
    session: &mut dyn Session,
    no: OrderNo,
    mut found: Vec<StockLogRow>,
) -> Outcome<Vec<StockLogRow>> {
    let month = Month::of(no);
    if is_made(session, month).await? {
        let mut kept = session.month(month, Purpose::Read).await?;
        found.extend(stock::log_of_in_books(&mut *kept, no).await?);
        found.sort_by_key(|row| row.id);
        found.dedup_by_key(|row| row.id);
    }
    Ok(found)
}

/// The log row of an adjustment that is not in the books.
pub(in super::super) async fn find_log(
    session: &mut dyn Session,
    no: OrderNo,
) -> Outcome<Option<StockLogRow>> {
    let rows = log_of(session, no, Vec::new()).await?;
    Ok(rows.into_iter().find(|row| row.kind == crate::StockLogType::Adjust))
}

/// The largest number that was archived.
pub(in super::super) async fn last_no(session: &mut dyn Session) -> Outcome<Option<OrderNo>> {
    let sql = "SELECT MAX(last_no) FROM tb_archive_month";
    let text: Option<Option<String>> = session.first(sql, &[], |row| get(row, 0)).await?;
    let read = |text: String| {
        text.parse().map_err(|_| Failure::Broken(format!("{text:?} is no order number")))
    };
    text.flatten().map(read).transpose()
}

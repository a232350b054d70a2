//! Books counted on from where they agreed, and items in a few numbers.
//!
//! Every change of an item's live orders is a row of its stock log: one when an order takes units, one when
//! they come back. So the orders that were live at some row of the log, and what the log and the orders say
//! of those that changed behind it, come to what is live now. If that is not what the item's stock says,
//! somebody has changed an order, a buyer's record or the stock without the log.
//!
//! What this cannot see is a change of rows that nothing has touched since the point: an order of last week
//! made live by hand, a row in the middle of the log. A whole reading counts all of them.

use sale::{ActivityId, Item, ItemId, ItemState, Millis, OrderNo};

use super::{
    activities,
    books::{Counts, log_end, pair, with_what_is_open},
    chain,
    columns::{coded, get, parsed},
    failure::{Failure, Outcome},
    session::{Row, Session, Value, values},
};
use crate::{
    ActivityFilter, ActivityKey, ActivityOrder, BooksPoint, ItemBooks, ItemOutline, LogEnd,
    OutlinePage,
};

pub(super) async fn item_books(
    session: &mut dyn Session,
    id: ItemId,
    in_flight: &[OrderNo],
    point: &BooksPoint,
) -> Outcome<Option<ItemBooks>> {
    let item = activities::item(session, id).await?.ok_or(Failure::NotFound)?;
    if item.version < point.version || !is_there(session, id, point.log_end).await? {
        return Ok(None);
    }
    let after = point.log_end.map_or(0, |end| end.id);
    let (live, units) = live_among_changed(session, id, after).await?;
    let (gone, gone_units) = live_before(session, id, after).await?;
    let (records, paired) = records_of_changed(session, id, after).await?;
    // More gone than there were: the point was not of these books.
    let (Some(live_orders), Some(user_records)) =
        (point.live_orders.checked_sub(gone), point.user_records.checked_sub(gone))
    else {
        return Ok(None);
    };
    let starts_at = point.log_end.map_or(point.total, |end| end.after_stock);
    let counts = Counts {
        live_orders: live_orders + live,
        live_units: point.live_units - gone_units + units,
        user_records: user_records + records,
        user_record_mismatches: (records - paired) + live.saturating_sub(paired),
        chain_breaks: chain::breaks(session, id, (after, i64::MAX), starts_at).await?,
        chain_end: log_end(session, id).await?.map(|end| end.after_stock),
    };
    if !agree(&item, &counts) {
        return Ok(None);
    }
    with_what_is_open(session, item, counts, in_flight).await.map(Some)
}

/// Where they do not agree all of them are read, which says what is wrong; and on an engine that does not
/// number rows in the order they are written, rows behind a point may have smaller numbers.
fn agree(item: &Item, counts: &Counts) -> bool {
    item.stock + counts.live_units == item.total
        && counts.chain_end.unwrap_or(item.total) == item.stock
        && counts.chain_breaks.is_empty()
        && counts.user_record_mismatches == 0
}

/// A ledger that was restored may have other rows under the same ids.
async fn is_there(session: &mut dyn Session, item: ItemId, end: Option<LogEnd>) -> Outcome<bool> {
    let Some(end) = end else { return Ok(true) };
    let sql = "SELECT order_no, after_stock FROM tb_stock_log WHERE id = ? AND product_id = ?";
    let read = |row: &dyn Row| Ok((parsed::<OrderNo>(row, 0)?, get::<i64>(row, 1)?));
    let found = session.first(sql, values![end.id, item], read).await?;
    Ok(found == Some((end.order_no, end.after_stock)))
}

/// The orders that changed behind a row of the log.
const CHANGED: &str = "(SELECT DISTINCT order_no FROM tb_stock_log
     WHERE product_id = ? AND id > ? AND type IN (1, 2)) AS changed
     JOIN tb_seckill_order AS o ON o.order_no = changed.order_no AND o.product_id = ?";

async fn live_among_changed(
    session: &mut dyn Session,
    item: ItemId,
    after: i64,
) -> Outcome<(u64, i64)> {
    let sql = format!(
        "SELECT COUNT(*), CAST(COALESCE(SUM(o.quantity), 0) AS SIGNED) FROM {CHANGED}
         WHERE o.status IN (0, 1)"
    );
    Ok(session.first(&sql, values![item, after, item], pair).await?.unwrap_or_default())
}

/// Buyers' records of orders that changed, and how many of them are as their live order says.
async fn records_of_changed(
    session: &mut dyn Session,
    item: ItemId,
    after: i64,
) -> Outcome<(u64, u64)> {
    let sql = format!(
        "SELECT COUNT(*), CAST(COALESCE(SUM(CASE WHEN o.status IN (0, 1) AND u.quantity = o.quantity
             THEN 1 ELSE 0 END), 0) AS SIGNED) FROM {CHANGED}
         JOIN tb_user_seckill AS u
             ON u.product_id = o.product_id AND u.user_id = o.user_id AND u.order_no = o.order_no"
    );
    Ok(session.first(&sql, values![item, after, item], pair).await?.unwrap_or_default())
}

/// Orders that were live at that row of the log and are not any more, and their units.
async fn live_before(session: &mut dyn Session, item: ItemId, after: i64) -> Outcome<(u64, i64)> {
    let sql = "SELECT COUNT(*), CAST(COALESCE(SUM(quantity), 0) AS SIGNED) FROM tb_stock_log AS r
         WHERE product_id = ? AND id > ? AND type = 2 AND NOT EXISTS (SELECT 1 FROM tb_stock_log AS d
             WHERE d.order_no = r.order_no AND d.type = 1 AND d.id > ?)";
    Ok(session.first(sql, values![item, after, after], pair).await?.unwrap_or_default())
}

/// An activity of a page, and one of its items; none if it has none to tell of.
type OutlineRow = (ActivityKey, Option<ItemOutline>);

pub(super) async fn outlines(
    session: &mut dyn Session,
    filter: &ActivityFilter,
    after: Option<ActivityKey>,
    limit: usize,
) -> Outcome<OutlinePage> {
    let (page, asked) = filter.page_of("id, opens_at, closes_at", after);
    // What never was at the gate, and whose stock nobody changed, has nothing that could differ.
    let sql = format!(
        "SELECT a.id, a.opens_at, a.closes_at, p.id, p.state, p.epoch, p.version, p.stock, p.total,
             l.id, l.order_no, l.after_stock
         FROM ({page}) AS a
         LEFT JOIN tb_seckill_product AS p
             ON p.activity_id = a.id AND (p.epoch > 0 OR p.version > 0)
         LEFT JOIN tb_stock_log AS l
             ON l.id = (SELECT MAX(id) FROM tb_stock_log WHERE product_id = p.id)"
    );
    let mut asked = asked.map(Value::from).to_vec();
    asked.push(limit.into());
    let order = filter.order;
    let read = move |row: &dyn Row| -> Outcome<OutlineRow> {
        let window: (Millis, Millis) = (get(row, 1)?, get(row, 2)?);
        let key = order.key(ActivityId(get(row, 0)?), window);
        let Some(item) = get::<Option<i64>>(row, 3)? else { return Ok((key, None)) };
        let log_end = match get::<Option<i64>>(row, 9)? {
            Some(id) => Some(LogEnd { id, order_no: parsed(row, 10)?, after_stock: get(row, 11)? }),
            None => None,
        };
        let outline = ItemOutline {
            item: ItemId(item),
            state: coded(row, 4, ItemState::from_code)?,
            epoch: get::<i64>(row, 5)? as u64,
            version: get(row, 6)?,
            stock: get(row, 7)?,
            total: get(row, 8)?,
            log_end,
        };
        Ok((key, Some(outline)))
    };
    let rows = session.rows(&sql, &asked, read).await?;
    let mut seen: Vec<(Millis, i64)> =
        rows.iter().map(|(key, _)| (key.time_ms, key.id.0)).collect();
    seen.sort_unstable();
    seen.dedup();
    // The joins keep no order, so the end of the page is looked for.
    let full = seen.len() >= limit;
    let last = if order == ActivityOrder::ClosesLast { seen.first() } else { seen.last() };
    let last = last.filter(|_| full);
    let next = last.map(|(time_ms, id)| ActivityKey { time_ms: *time_ms, id: ActivityId(*id) });
    Ok(OutlinePage { items: rows.into_iter().filter_map(|(_, outline)| outline).collect(), next })
}

//! Orders: found, listed, closed, and written (live or void) from claims.

use std::collections::{HashMap, HashSet};

use mysql_async::{Row, Value};
use sale::{
    Claim, CloseReason, ItemId, Millis, Order, OrderNo, OrderStatus, Reason, UserId, VoidReason,
};

use super::{
    columns::{at_most, coded, get, key_bits, money, order, parsed, parsed_or_null},
    connections::Session,
    dead_letters,
    failure::{Failure, Outcome},
    outbox, stock,
    text::{Insert, number_lists, quoted},
};
use crate::{
    Closing, DeadLetterState, OrderCount, OrderFilter, OrderNos, Overdue, PaymentKind, Release,
    StatusCount,
    columns::ORDER_COLUMNS,
    shelf::{Entry, Shelf, Terms},
    verdict::Owner,
};

/// What a new order copies from its item, whose row this locks.
pub(super) async fn locked_shelf(tx: &mut Session, item: ItemId) -> Outcome<Option<Shelf>> {
    let read = |row: &Row| {
        let shelf = Shelf {
            activity_id: get(row, 0)?,
            name: get(row, 1)?,
            price: money(row, 2, 3)?,
            stock: get(row, 4)?,
            version: get(row, 5)?,
            pay_within_ms: get(row, 6)?,
            limit_per_user: get(row, 7)?,
        };
        Ok(shelf)
    };
    // The activity is read by a subquery, so that its row stays unlocked: other items share it.
    let sql = "SELECT activity_id, name, price, currency, stock, version,
             (SELECT pay_within_ms FROM tb_seckill_activity AS a WHERE a.id = p.activity_id),
             limit_per_user
         FROM tb_seckill_product AS p WHERE id = ? FOR UPDATE";
    tx.first(sql, (item.0,), read).await
}

const INSERT: &str = "INSERT INTO tb_seckill_order (order_no, user_id, activity_id, product_id, \
     product_name, price, currency, quantity, amount, status, close_reason, epoch, claim_key, \
     claimed_at, pay_deadline, created_at, closed_at) VALUES ";

/// Writes one order per claim.
pub(super) async fn insert<'c>(
    tx: &mut Session,
    shelf: &Shelf,
    entries: impl Iterator<Item = (&'c Claim, Entry)>,
    now_ms: Millis,
) -> Outcome<()> {
    let mut insert = Insert::new(tx, INSERT, "");
    for (claim, entry) in entries {
        let terms = Terms::of(shelf, claim, &entry, now_ms).map_err(Failure::Rejected)?;
        insert.row(&[
            claim.order_no.to_string().as_str().into(),
            claim.user.as_str().into(),
            shelf.activity_id.into(),
            claim.item.0.into(),
            shelf.name.as_str().into(),
            shelf.price.minor.into(),
            shelf.price.currency.as_str().into(),
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
        ]);
    }
    insert.send(tx).await
}

pub(super) async fn one(session: &mut Session, no: OrderNo) -> Outcome<Option<Order>> {
    let sql = format!("SELECT {ORDER_COLUMNS} FROM tb_seckill_order WHERE order_no = ?");
    session.first(&sql, (no.to_string(),), order).await
}

pub(super) async fn by_no(session: &mut Session, numbers: &[OrderNo]) -> Outcome<Vec<Order>> {
    let mut found = Vec::with_capacity(numbers.len());
    for list in number_lists(numbers.iter().copied()) {
        let sql = format!("SELECT {ORDER_COLUMNS} FROM tb_seckill_order WHERE order_no IN {list}");
        found.extend(session.all_of_text(&sql, order).await?);
    }
    Ok(found)
}

/// An order nobody else can move before this transaction ends.
pub(super) async fn locked(tx: &mut Session, no: OrderNo) -> Outcome<Option<Order>> {
    let sql = format!("SELECT {ORDER_COLUMNS} FROM tb_seckill_order WHERE order_no = ? FOR UPDATE");
    tx.first(&sql, (no.to_string(),), order).await
}

/// The one way a single order changes its status. False if it was no longer `from`.
pub(super) async fn move_status(
    tx: &mut Session,
    no: OrderNo,
    from: OrderStatus,
    to: OrderStatus,
) -> Outcome<bool> {
    from.may_become(to).map_err(|illegal| Failure::Broken(illegal.to_string()))?;
    let sql = "UPDATE tb_seckill_order SET status = ? WHERE order_no = ? AND status = ?";
    Ok(tx.change(sql, (to.code(), no.to_string(), from.code())).await? == 1)
}

pub(super) async fn list(session: &mut Session, filter: &OrderFilter) -> Outcome<Vec<Order>> {
    let after_paid = match filter.before {
        Some(no) if filter.by_payment() => {
            let paid_ms = one(session, no).await?.and_then(|order| order.paid_ms);
            Some(OrderFilter::page_after_paid(paid_ms).map_err(Failure::Refused)?)
        }
        _ => None,
    };
    let asked: [(&str, Option<Value>); 9] = [
        ("order_no = ?", filter.order_no.map(|no| no.to_string().into())),
        ("user_id = ?", filter.user.as_ref().map(|user| user.as_str().into())),
        ("activity_id = ?", filter.activity.map(|id| id.0.into())),
        ("product_id = ?", filter.item.map(|id| id.0.into())),
        ("status = ?", filter.status.map(|status| status.code().into())),
        ("created_at >= ?", filter.from_ms.map(Value::from)),
        ("created_at < ?", filter.to_ms.map(Value::from)),
        ("paid_at >= ?", filter.paid_from_ms.map(Value::from)),
        ("paid_at < ?", filter.paid_below_ms(after_paid).map(Value::from)),
    ];
    let (mut conditions, mut values) = (String::from("TRUE"), Vec::new());
    for (condition, value) in asked {
        if let Some(value) = value {
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
        values.push(before.to_string().into());
    }
    values.push(at_most(filter.limit).into());
    let sequence =
        if filter.by_payment() { "paid_at DESC, order_no DESC" } else { "order_no DESC" };
    let sql = format!(
        "SELECT {ORDER_COLUMNS} FROM tb_seckill_order WHERE {conditions}
         ORDER BY {sequence} LIMIT ?"
    );
    session.all(&sql, values, order).await
}

pub(super) async fn count(
    session: &mut Session,
    item: ItemId,
    after: Option<OrderNo>,
    limit: usize,
) -> Outcome<OrderCount> {
    // By the item's index and no other: all orders there ever were are many more.
    let sql = "SELECT status, COUNT(*), CAST(SUM(quantity) AS SIGNED), CAST(SUM(amount) AS SIGNED),
             MAX(order_no)
         FROM (
             SELECT status, quantity, amount, order_no
             FROM tb_seckill_order FORCE INDEX (ix_order_product)
             WHERE product_id = ? AND order_no > ? ORDER BY order_no LIMIT ?
         ) AS piece GROUP BY status";
    let after = after.map(|no| no.to_string()).unwrap_or_default();
    let read = |row: &Row| {
        let count = StatusCount { orders: get(row, 1)?, units: get(row, 2)?, amount: get(row, 3)? };
        Ok((coded(row, 0, OrderStatus::from_code)?, count, parsed(row, 4)?))
    };
    let rows = session.all(sql, (item.0, after, at_most(limit)), read).await?;
    Ok(OrderCount::of(rows, limit))
}

/// Found without a lock: before an order is closed its providers are asked, and no lock should wait
/// for them. Two instances may find the same orders; [`close`] lets one of them have each.
pub(super) async fn overdue(
    session: &mut Session,
    now_ms: Millis,
    limit: usize,
) -> Outcome<Vec<Overdue>> {
    let sql = format!(
        "SELECT {ORDER_COLUMNS} FROM tb_seckill_order
         WHERE status = ? AND pay_deadline <= ? ORDER BY pay_deadline, order_no LIMIT ?"
    );
    let asked = (OrderStatus::Unpaid.code(), now_ms, at_most(limit));
    let orders = session.all(&sql, asked, order).await?;
    let mut opened = providers_of(session, orders.iter().map(|order| order.order_no)).await?;
    let late = |order: Order| Overdue {
        providers: opened.remove(&order.order_no).unwrap_or_default(),
        order,
    };
    Ok(orders.into_iter().map(late).collect())
}

/// Where payments were opened for these orders.
async fn providers_of(
    session: &mut Session,
    orders: impl Iterator<Item = OrderNo>,
) -> Outcome<HashMap<OrderNo, Vec<String>>> {
    let mut opened: HashMap<OrderNo, Vec<String>> = HashMap::new();
    for numbers in number_lists(orders) {
        let kind = PaymentKind::Open.code();
        let sql = format!(
            "SELECT order_no, provider FROM tb_payment
             WHERE order_no IN {numbers} AND kind = {kind} ORDER BY id"
        );
        let read = |row: &Row| Ok((parsed::<OrderNo>(row, 0)?, get::<String>(row, 1)?));
        for (no, provider) in session.all_of_text(&sql, read).await? {
            opened.entry(no).or_default().push(provider);
        }
    }
    Ok(opened)
}

pub(super) async fn close(
    tx: &mut Session,
    orders: &[Closing],
    reason: CloseReason,
    now_ms: Millis,
) -> Outcome<Vec<OrderNo>> {
    let mut found = HashMap::new();
    let mut sorted: Vec<OrderNo> = orders.iter().map(|closing| closing.order_no).collect();
    sorted.sort_unstable();
    for numbers in number_lists(sorted) {
        for release in lock_closable(tx, &numbers, reason, now_ms).await? {
            found.insert(release.order_no, release);
        }
    }
    // Whoever notes a payment holds the order's lock, so none can be noted after this reading.
    let opened = providers_of(tx, found.keys().copied()).await?;
    let covered = |closing: &&Closing| {
        opened.get(&closing.order_no).is_none_or(|providers| closing.covers(providers))
    };
    let releases: Vec<Release> = orders
        .iter()
        .filter(covered)
        .filter_map(|closing| found.remove(&closing.order_no))
        .collect();
    let closed: Vec<OrderNo> = releases.iter().map(|release| release.order_no).collect();
    move_to_closed(tx, &closed, reason, now_ms).await?;
    let news = releases.iter().map(|release| (release.order_no, release.user.clone())).collect();
    stock::return_units(tx, releases, now_ms).await?;
    outbox::push_news(tx, news, now_ms).await?;
    Ok(closed)
}

/// Those of the listed orders that may be closed, now held by this transaction. A time-out passes
/// over rows somebody else holds at this moment: they are being paid or closed, and the next run
/// finds what is left. A buyer who cancels waits for them, to be told what is true.
async fn lock_closable(
    tx: &mut Session,
    numbers: &str,
    reason: CloseReason,
    now_ms: Millis,
) -> Outcome<Vec<Release>> {
    let (due_by, wait) = match reason {
        CloseReason::Timeout => (now_ms, "SKIP LOCKED"),
        CloseReason::Cancelled => (Millis::MAX, ""),
    };
    let unpaid = OrderStatus::Unpaid.code();
    // By the primary key, so that everybody takes the rows in the same order and no others.
    let sql = format!(
        "SELECT product_id, user_id, order_no, quantity
         FROM tb_seckill_order FORCE INDEX (PRIMARY)
         WHERE order_no IN {numbers} AND status = {unpaid} AND pay_deadline <= {due_by}
         ORDER BY order_no FOR UPDATE {wait}"
    );
    let read = |row: &Row| {
        Ok(Release {
            item: ItemId(get(row, 0)?),
            user: parsed::<UserId>(row, 1)?,
            order_no: parsed(row, 2)?,
            quantity: get(row, 3)?,
        })
    };
    tx.all_of_text(&sql, read).await
}

async fn move_to_closed(
    tx: &mut Session,
    orders: &[OrderNo],
    reason: CloseReason,
    now_ms: Millis,
) -> Outcome<()> {
    let (from, to) = (OrderStatus::Unpaid, OrderStatus::Closed);
    from.may_become(to).map_err(|illegal| Failure::Broken(illegal.to_string()))?;
    let reason = quoted(Reason::from(reason).as_str());
    let mut moved = 0;
    for numbers in number_lists(orders.iter().copied()) {
        let sql = format!(
            "UPDATE tb_seckill_order SET status = {}, close_reason = {reason}, closed_at = {now_ms}
             WHERE order_no IN {numbers} AND status = {}",
            to.code(),
            from.code()
        );
        moved += tx.change_by_text(&sql).await?;
    }
    if moved == orders.len() as u64 { Ok(()) } else { Err(Failure::Contended) }
}

pub(super) async fn void(
    tx: &mut Session,
    claims: &[Claim],
    reason: VoidReason,
    now_ms: Millis,
) -> Outcome<Vec<OrderNo>> {
    stock::lock_items(tx, claims.iter().map(|claim| claim.item)).await?;
    let owners = owners(tx, claims.iter().map(|claim| claim.order_no)).await?;
    // What is an order (or void) already is resolved by that, not by this call.
    let settled: Vec<OrderNo> = owners.keys().copied().collect();
    dead_letters::resolve(tx, settled, DeadLetterState::Settled, now_ms).await?;
    let mut seen = OrderNos::new();
    let (mut voided, mut given_up) = (Vec::new(), Vec::new());
    for claim in claims.iter().filter(|claim| seen.insert(claim.order_no)) {
        match owners.get(&claim.order_no) {
            None => voided.push(claim),
            Some(owner) if owner.is_of(claim) => {}
            Some(_) => given_up.extend(dead_letters::give_up(tx, claim, now_ms).await?),
        }
    }
    let items: HashSet<ItemId> = voided.iter().map(|claim| claim.item).collect();
    for item in items {
        let found = locked_shelf(tx, item).await?;
        let shelf = found.map_or_else(Shelf::empty, Ok).map_err(Failure::Broken)?;
        let of_item = voided.iter().filter(|claim| claim.item == item);
        insert(tx, &shelf, of_item.map(|claim| (*claim, Entry::Void(reason))), now_ms).await?;
    }
    let numbers: Vec<OrderNo> = voided.iter().map(|claim| claim.order_no).collect();
    dead_letters::resolve(tx, numbers, DeadLetterState::Voided, now_ms).await?;
    voided.extend(given_up);
    let numbers = voided.iter().map(|claim| claim.order_no).collect();
    outbox::push_releases(tx, voided.iter().copied(), now_ms).await?;
    let news = voided.iter().map(|claim| (claim.order_no, claim.user.clone())).collect();
    outbox::push_news(tx, news, now_ms).await?;
    Ok(numbers)
}

/// Whose those of these numbers are that are orders (or void) already.
pub(super) async fn owners(
    session: &mut Session,
    numbers: impl Iterator<Item = OrderNo>,
) -> Outcome<HashMap<OrderNo, Owner>> {
    owners_in(session, "tb_seckill_order", numbers).await
}

/// The same for any table that numbers claims.
pub(super) async fn owners_in(
    session: &mut Session,
    table: &str,
    numbers: impl Iterator<Item = OrderNo>,
) -> Outcome<HashMap<OrderNo, Owner>> {
    let mut owners = HashMap::new();
    for numbers in number_lists(numbers) {
        let sql = format!(
            "SELECT order_no, product_id, user_id FROM {table} WHERE order_no IN {numbers}"
        );
        let read = |row: &Row| {
            Ok((parsed(row, 0)?, Owner { item: ItemId(get(row, 1)?), user: get(row, 2)? }))
        };
        owners.extend(session.all_of_text(&sql, read).await?);
    }
    Ok(owners)
}

/// Which of these are orders (or void) already. The list may hold a hundred thousand.
pub(super) async fn settled_among(session: &mut Session, orders: &[OrderNo]) -> Outcome<OrderNos> {
    let mut settled = OrderNos::new();
    for numbers in number_lists(orders.iter().copied()) {
        let sql = format!("SELECT order_no FROM tb_seckill_order WHERE order_no IN {numbers}");
        settled.extend(session.all_of_text(&sql, |row| parsed::<OrderNo>(row, 0)).await?);
    }
    Ok(settled)
}

/// The largest number the ledger has seen, whatever it numbers: orders, adjustments, failed claims.
pub(super) async fn last_no(session: &mut Session) -> Outcome<Option<OrderNo>> {
    let sql = "SELECT MAX(order_no) FROM (
             SELECT MAX(order_no) AS order_no FROM tb_seckill_order
             UNION ALL SELECT MAX(order_no) FROM tb_stock_log
             UNION ALL SELECT MAX(order_no) FROM tb_dead_letter) AS seen";
    Ok(session.first(sql, (), |row| parsed_or_null(row, 0)).await?.flatten())
}

/// Can orders be read at all?
pub(super) async fn any(session: &mut Session) -> Outcome<()> {
    session.first("SELECT order_no FROM tb_seckill_order LIMIT 1", (), |_| Ok(())).await?;
    Ok(())
}

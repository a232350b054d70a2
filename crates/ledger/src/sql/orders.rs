//! Orders: found, listed, closed, and written (live or void) from claims.
//!
//! Long because whoever lists, closes, voids and counts orders shares what finds and locks them.

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use sale::{
    Claim, CloseReason, ItemId, Millis, Order, OrderNo, OrderStatus, Reason, UserId, VoidReason,
};

use super::{
    Access, SqlLedger,
    activities::items_by_sku,
    archive,
    columns::{ORDER_COLUMNS, coded, get, key_bits, money, order, parsed, parsed_or_null},
    dead_letters,
    failure::{Failure, Fault, Outcome},
    outbox,
    session::{Row, Session, Value, values},
    stock, volumes, webhooks,
};
use crate::{
    Closing, DeadLetterState, OrderCount, OrderFilter, OrderNos, Orders, Overdue, OverdueKey,
    PaymentKind, Release, Result, SKU_ITEMS_MAX, StatusCount, WebhookEvent, WebhookKind,
    decide::Owner,
    offer::{EnterAs, Offer, OrderTerms},
    outbox::release_of,
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

async fn by_no(session: &mut dyn Session, numbers: &[OrderNo]) -> Outcome<Vec<Order>> {
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

/// Found without a lock: before an order is closed its providers are asked, and no lock should wait
/// for them. Two instances may find the same orders; [`close`] lets one of them have each.
async fn overdue(
    session: &mut dyn Session,
    now_ms: Millis,
    after: Option<OverdueKey>,
    limit: usize,
) -> Outcome<Vec<Overdue>> {
    let sql = format!(
        "SELECT {ORDER_COLUMNS} FROM tb_seckill_order
         WHERE status = ? AND pay_deadline BETWEEN ? AND ? AND (pay_deadline > ? OR order_no > ?)
         ORDER BY pay_deadline, order_no LIMIT ?"
    );
    let from_ms = after.map_or(Millis::MIN, |key| key.deadline_ms);
    let after = after.map_or_else(String::new, |key| key.order_no.to_string());
    let unpaid = OrderStatus::Unpaid.code();
    let asked = values![unpaid, from_ms, now_ms, from_ms, after, limit];
    let orders = session.rows(&sql, asked, order).await?;
    with_providers(session, orders).await
}

async fn overdue_among(
    session: &mut dyn Session,
    numbers: &[OrderNo],
    now_ms: Millis,
) -> Outcome<Vec<Overdue>> {
    let mut orders = by_no(session, numbers).await?;
    orders.retain(|order| order.status == OrderStatus::Unpaid && order.pay_deadline_ms <= now_ms);
    with_providers(session, orders).await
}

async fn with_providers(session: &mut dyn Session, orders: Vec<Order>) -> Outcome<Vec<Overdue>> {
    let mut opened = providers_of(session, orders.iter().map(|order| order.order_no)).await?;
    let late = |order: Order| Overdue {
        providers: opened.remove(&order.order_no).unwrap_or_default(),
        order,
    };
    Ok(orders.into_iter().map(late).collect())
}

/// Where payments were opened for these orders.
async fn providers_of(
    session: &mut dyn Session,
    orders: impl Iterator<Item = OrderNo>,
) -> Outcome<HashMap<OrderNo, Vec<String>>> {
    let sql =
        "SELECT order_no, provider FROM tb_payment WHERE order_no IN ? AND kind = ? ORDER BY id";
    let read = |row: &dyn Row| Ok((parsed::<OrderNo>(row, 0)?, get::<String>(row, 1)?));
    let asked = [Value::list(orders), PaymentKind::Open.code().into()];
    let mut opened: HashMap<OrderNo, Vec<String>> = HashMap::new();
    for (no, provider) in session.rows(sql, &asked, read).await? {
        opened.entry(no).or_default().push(provider);
    }
    Ok(opened)
}

async fn close(
    tx: &mut dyn Session,
    orders: &[Closing],
    reason: CloseReason,
    now_ms: Millis,
) -> Outcome<Vec<OrderNo>> {
    let found = lock_closable(tx, orders, reason, now_ms).await?;
    let mut found: HashMap<OrderNo, Release> =
        found.into_iter().map(|release| (release.order_no, release)).collect();
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
    let events = releases.iter().map(|release| (release.order_no, release.user.clone())).collect();
    let stock = stock::return_units(tx, releases, now_ms).await?;
    outbox::push_events(tx, events, now_ms).await?;
    let told = WebhookEvent::orders(WebhookKind::OrderClosed, closed.iter().copied());
    webhooks::tell(tx, told.into_iter().chain(stock), now_ms).await?;
    Ok(closed)
}

/// Closes what is overdue, passing over orders that somebody else holds at this moment: they are being paid
/// or closed, and the next run finds what is left. A batch with one of these in it is halved until it is
/// alone. So one held order never keeps others from being closed, on an engine without SKIP LOCKED, too.
async fn close_overdue(
    ledger: &SqlLedger,
    orders: &[Closing],
    now_ms: Millis,
) -> Result<Vec<OrderNo>> {
    let (mut closed, mut rest) = (Vec::new(), vec![orders.to_vec()]);
    while let Some(mut piece) = rest.pop() {
        let done: Outcome<Vec<OrderNo>> = ledger
            .run(Access::Write, piece.clone(), move |tx, orders| {
                Box::pin(close(tx, orders, CloseReason::Timeout, now_ms))
            })
            .await;
        match done {
            Ok(now) => closed.extend(now),
            Err(Failure::InUse) if piece.len() > 1 => {
                let later = piece.split_off(piece.len() / 2);
                rest.extend([later, piece]);
            }
            Err(Failure::InUse) => {}
            // What was closed before is to be told of, and what was not is found again.
            Err(_) if !closed.is_empty() => break,
            Err(failure) => return Err(failure.into()),
        }
    }
    Ok(closed)
}

/// Those of the listed orders that may be closed, now held by this transaction. A time-out has all of them
/// at once or none. A buyer who cancels waits for them, to be told what is true.
async fn lock_closable(
    tx: &mut dyn Session,
    orders: &[Closing],
    reason: CloseReason,
    now_ms: Millis,
) -> Outcome<Vec<Release>> {
    let dialect = tx.dialect();
    let (due_by, for_update) = match reason {
        CloseReason::Timeout => (now_ms, dialect.for_update_at_once()),
        CloseReason::Cancelled => (Millis::MAX, dialect.for_update()),
    };
    // By the primary key, so that everybody takes the rows in the same order and no others.
    let sql = format!(
        "SELECT product_id, user_id, order_no, quantity FROM tb_seckill_order {}
         WHERE order_no IN ? AND status = ? AND pay_deadline <= ? ORDER BY order_no {for_update}",
        dialect.by_primary_key()
    );
    let sorted: BTreeSet<OrderNo> = orders.iter().map(|closing| closing.order_no).collect();
    let asked = [Value::list(sorted), OrderStatus::Unpaid.code().into(), due_by.into()];
    let read = |row: &dyn Row| {
        Ok(Release {
            item: ItemId(get(row, 0)?),
            user: parsed::<UserId>(row, 1)?,
            order_no: parsed(row, 2)?,
            quantity: get(row, 3)?,
        })
    };
    match tx.rows(&sql, &asked, read).await {
        Err(failure) if reason == CloseReason::Timeout && failure.fault() == Some(Fault::Held) => {
            Err(Failure::InUse)
        }
        found => found,
    }
}

async fn move_to_closed(
    tx: &mut dyn Session,
    orders: &[OrderNo],
    reason: CloseReason,
    now_ms: Millis,
) -> Outcome<()> {
    let (from, to) = (OrderStatus::Unpaid, OrderStatus::Closed);
    from.may_become(to).map_err(|illegal| Failure::Broken(illegal.to_string()))?;
    let sql = "UPDATE tb_seckill_order SET status = ?, close_reason = ?, closed_at = ?
         WHERE order_no IN ? AND status = ?";
    let numbers = Value::list(orders.iter().copied());
    let reason = Reason::from(reason).as_str();
    let moved = tx.execute(sql, values![to.code(), reason, now_ms, numbers, from.code()]).await?;
    if moved == orders.len() as u64 { Ok(()) } else { Err(Failure::Contended) }
}

async fn void(
    tx: &mut dyn Session,
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
    let items: BTreeSet<ItemId> = voided.iter().map(|claim| claim.item).collect();
    for item in items {
        let offer = locked_offer(tx, item).await?.unwrap_or_else(Offer::unknown);
        let of_item = voided.iter().filter(|claim| claim.item == item);
        insert(tx, &offer, of_item.map(|claim| (*claim, EnterAs::Void(reason))), now_ms).await?;
    }
    let numbers: Vec<OrderNo> = voided.iter().map(|claim| claim.order_no).collect();
    // A number that is somebody else's order is not told of: it would be taken for that order.
    let told = WebhookEvent::orders(WebhookKind::OrderVoid, numbers.iter().copied());
    webhooks::tell(tx, told, now_ms).await?;
    dead_letters::resolve(tx, numbers, DeadLetterState::Voided, now_ms).await?;
    voided.extend(given_up);
    let numbers = voided.iter().map(|claim| claim.order_no).collect();
    outbox::push_releases(tx, voided.iter().map(|claim| release_of(claim)), now_ms).await?;
    let events = voided.iter().map(|claim| (claim.order_no, claim.user.clone())).collect();
    outbox::push_events(tx, events, now_ms).await?;
    Ok(numbers)
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
            Box::pin(overdue(session, now_ms, after, limit))
        })
        .await
    }

    async fn overdue_among(&self, orders: &[OrderNo], now_ms: Millis) -> Result<Vec<Overdue>> {
        self.run(Access::Snapshot, orders.to_vec(), move |session, orders| {
            Box::pin(overdue_among(session, orders, now_ms))
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
            return close_overdue(self, orders, now_ms).await;
        }
        self.run(Access::Write, orders.to_vec(), move |tx, orders| {
            Box::pin(close(tx, orders, reason, now_ms))
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
            Box::pin(void(tx, claims, reason, now_ms))
        })
        .await
    }

    async fn last_order_no(&self) -> Result<Option<OrderNo>> {
        self.run(Access::Statement, (), |session, ()| Box::pin(last_no(session))).await
    }
}

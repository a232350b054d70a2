//! Orders that end unpaid: timed out, cancelled, or void from the beginning.
//!
//! Each ends in one transaction with all that follows from it: its units back to the item, or the claim's
//! mark taken off at the gate, and whoever is to be told.

use std::collections::{BTreeSet, HashMap};

use sale::{
    Claim, CloseReason, ItemId, Millis, Order, OrderNo, OrderStatus, Reason, UserId, VoidReason,
};

use super::{
    Access, SqlLedger,
    columns::{ORDER_COLUMNS, get, order, parsed},
    dead_letters,
    failure::{Failure, Fault, Outcome},
    orders::{by_no, insert, locked_offer, owners},
    outbox,
    session::{Row, Session, Value, values},
    stock, webhooks,
};
use crate::{
    Closing, DeadLetterState, OrderNos, Overdue, OverdueKey, PaymentKind, Release, Result,
    WebhookEvent, WebhookKind,
    offer::{EnterAs, Offer},
    outbox::release_of,
};

/// Found without a lock: before an order is closed its providers are asked, and no lock should wait
/// for them. Two instances may find the same orders; [`close`] lets one of them have each.
pub(super) async fn overdue(
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

pub(super) async fn overdue_among(
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

pub(super) async fn close(
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
pub(super) async fn close_overdue(
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

pub(super) async fn void(
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

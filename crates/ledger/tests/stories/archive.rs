//! Ten years of a shop, archived: whoever asks is told the same as before, however often the job was killed.

use ledger::{
    Archivable, ArchiveStep, Credit, OldActivity, OrderFilter, OutboxMessage, PaymentNotice,
    PaymentRow, StatusCount, StockLogRow,
};
use sale::{
    Activity, ActivityMove, Claim, CloseReason, ItemId, Millis, NewActivity, Order, OrderNo,
    OrderStatus,
};

use crate::{Shop, back_door::BackDoor, check, given_back};

const DAY_MS: Millis = 24 * 60 * 60 * 1_000;
const MONTH_MS: Millis = 30 * DAY_MS;
/// A month, and an hour in which the sale is open.
pub(crate) const CYCLE_MS: Millis = MONTH_MS + 3_700_000;
const MONTHS: usize = 120;
const BUYERS: [&str; 4] = ["ann", "bob", "eve", "zoe"];

/// A shop of some age.
pub(crate) struct Past {
    activities: Vec<Activity>,
    /// An order of each activity, by what became of it.
    paid: Vec<(Order, PaymentNotice)>,
    closed: Vec<Order>,
    claims: Vec<Claim>,
}

/// One activity each month: orders that were paid, given back, closed and void, and a change of the stock.
pub(crate) async fn live_through(shop: &Shop, months: usize) -> Past {
    let mut past = Past { activities: vec![], paid: vec![], closed: vec![], claims: vec![] };
    for _ in 0..months {
        let opens_ms = shop.now();
        let closes_ms = opens_ms + 3_600_000;
        let new = NewActivity { opens_ms, closes_ms, ..Shop::new_activity(&[4, 30]) };
        let activity = shop.create_activity(&new, opens_ms).await.unwrap();
        shop.publish(activity.id).await;
        sell(shop, &activity, &mut past).await;
        shop.clock.advance(3_700_000);
        shop.move_activity(activity.id, ActivityMove::End, shop.now()).await.unwrap();
        shop.deliver_all().await;
        past.activities.push(activity);
        shop.clock.advance(MONTH_MS);
    }
    past
}

async fn sell(shop: &Shop, activity: &Activity, past: &mut Past) {
    let (few, many) = (activity.items[0].id, activity.items[1].id);
    let batch: Vec<Claim> =
        (0..6).map(|n| shop.claim(few, &format!("{}{n}", BUYERS[n % 4]), 1)).collect();
    let settled = shop.settle(few, &batch).await.unwrap();
    assert_eq!((settled.created.len(), settled.void.len()), (4, 2));
    past.claims.push(batch[0].clone());
    for no in &settled.created {
        shop.close(&[*no], CloseReason::Cancelled, shop.now()).await.unwrap();
    }
    past.paid.push(shop.paid(many, "ann").await);
    let (order, notice) = shop.paid(many, "bob").await;
    shop.start_refund(order.order_no, shop.now()).await.unwrap();
    shop.refunded(&given_back(&notice), shop.now()).await.unwrap();
    shop.adjust_stock(many, 5, shop.number(), shop.now()).await.unwrap();
    let order = shop.bought(many, "eve", 2).await;
    shop.close(&[order.order_no], CloseReason::Cancelled, shop.now()).await.unwrap();
    past.closed.push(shop.found(order.order_no).await);
}

#[derive(Debug, PartialEq)]
struct OfItem {
    orders: Vec<Order>,
    log: Vec<StockLogRow>,
    counts: Vec<(OrderStatus, StatusCount)>,
}

/// Everything that anybody can ask about the past.
#[derive(Debug, PartialEq)]
pub(crate) struct Told {
    orders: Vec<Order>,
    money: Vec<PaymentRow>,
    by_payment: Vec<Order>,
    of_buyers: Vec<Vec<Order>>,
    closed_of_one: Vec<Order>,
    of_items: Vec<OfItem>,
    last_no: Option<OrderNo>,
}

async fn pages(shop: &Shop, filter: OrderFilter) -> Vec<Order> {
    let mut found: Vec<Order> = Vec::new();
    loop {
        let before = found.last().map(|order| order.order_no);
        let page = shop.orders(&OrderFilter { before, limit: 37, ..filter.clone() }).await.unwrap();
        found.extend(page.iter().cloned());
        if page.len() < 37 {
            return found;
        }
    }
}

pub(crate) async fn told(shop: &Shop, past: &Past) -> Told {
    let all = OrderFilter::default;
    let orders = pages(shop, all()).await;
    let numbers: Vec<OrderNo> = orders.iter().map(|order| order.order_no).collect();
    let mut money = shop.payments_of(&numbers).await.unwrap();
    money.sort_by_key(|row| (row.order_no, row.created_ms, row.kind.code()));
    let mut of_buyers = Vec::new();
    for user in BUYERS.iter().chain(&["ann0", "nobody"]) {
        of_buyers
            .push(pages(shop, OrderFilter { user: Some(user.parse().unwrap()), ..all() }).await);
    }
    let mut of_items = Vec::new();
    for item in past.activities.iter().flat_map(|activity| &activity.items) {
        let orders = pages(shop, OrderFilter { item: Some(item.id), ..all() }).await;
        let (log, counts) = (log(shop, item.id).await, counts(shop, item.id).await);
        of_items.push(OfItem { orders, log, counts });
        shop.books_add_up(item.id).await;
    }
    let (user, status) = (Some("eve".parse().unwrap()), Some(OrderStatus::Closed));
    Told {
        by_payment: pages(shop, OrderFilter { paid_from_ms: Some(0), ..all() }).await,
        closed_of_one: pages(shop, OrderFilter { user, status, ..all() }).await,
        last_no: shop.last_order_no().await.unwrap(),
        orders,
        money,
        of_buyers,
        of_items,
    }
}

/// In small pages, as somebody with a long list reads it.
async fn log(shop: &Shop, item: ItemId) -> Vec<StockLogRow> {
    let mut rows: Vec<StockLogRow> = Vec::new();
    loop {
        let page = shop.stock_log(item, rows.last().map_or(0, |row| row.id), 3).await.unwrap();
        if page.is_empty() {
            return rows;
        }
        rows.extend(page);
    }
}

async fn counts(shop: &Shop, item: ItemId) -> Vec<(OrderStatus, StatusCount)> {
    let mut counts = shop.count_orders(item, None, 1_000).await.unwrap().by_status;
    counts.sort_by_key(|(status, _)| status.code());
    counts
}

/// Every activity of before is moved as far as it may be. Answers how many are in the archive as a whole now.
pub(crate) async fn archive(shop: &Shop, closed_before_ms: Millis) -> usize {
    let (done, failed) = try_archive(shop, closed_before_ms).await;
    assert_eq!(failed, Vec::<String>::new());
    done
}

/// The same where steps may fail, and why they did.
pub(crate) async fn try_archive(shop: &Shop, closed_before_ms: Millis) -> (usize, Vec<String>) {
    let (mut done, mut failed, mut after) = (0, Vec::new(), OldActivity::FIRST);
    loop {
        let old = shop.old_activities(closed_before_ms, after, 7).await.unwrap();
        let Some(last) = old.last() else { return (done, failed) };
        after = *last;
        for activity in old {
            if shop.archivable(activity.id).await.unwrap() != Archivable::Yes {
                continue;
            }
            loop {
                match shop.archive_step(activity.id, 3, shop.now()).await {
                    Ok(ArchiveStep::Moved { orders, log_rows }) => assert!(orders + log_rows <= 3),
                    Ok(ArchiveStep::HeldBack(why)) => panic!("{why}"),
                    Ok(ArchiveStep::Done) => break,
                    Err(error) => {
                        failed.push(error.to_string());
                        break;
                    }
                }
            }
            let missing = shop.old_activities(closed_before_ms, before(activity), 1).await.unwrap();
            done += usize::from(missing.first() != Some(&activity));
        }
    }
}

/// The place in the list right before this one.
fn before(activity: OldActivity) -> OldActivity {
    OldActivity { id: sale::ActivityId(activity.id.0 - 1), ..activity }
}

async fn in_books(shop: &Shop, table: &str) -> i64 {
    shop.back_door.number(&format!("SELECT COUNT(*) FROM {table}")).await
}

/// From now on deleting a row of this table fails, after it was copied and kept.
async fn trip(shop: &Shop, table: &str) {
    let trigger = format!("CREATE TRIGGER trip BEFORE DELETE ON {table}");
    let sql = match shop.back_door {
        BackDoor::Sqlite(_) => format!("{trigger} BEGIN SELECT RAISE(ABORT, 'killed'); END"),
        BackDoor::Mysql(_) => {
            format!("{trigger} FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'killed'")
        }
    };
    shop.back_door.run(&sql).await.unwrap();
}

#[tokio::test]
async fn ten_years_are_told_the_same_before_and_after_and_while_they_are_archived() {
    check(async |shop| {
        let past = live_through(&shop, MONTHS).await;
        let before = told(&shop, &past).await;
        let (orders, rows) =
            (in_books(&shop, "tb_seckill_order").await, in_books(&shop, "tb_stock_log").await);
        let year_ago = shop.now() - 12 * CYCLE_MS;
        // Killed between what is kept in the archive and what is deleted here, at each kind of row.
        for table in ["tb_stock_log", "tb_payment", "tb_user_seckill", "tb_seckill_order"] {
            trip(&shop, table).await;
            let (done, failed) = try_archive(&shop, year_ago).await;
            assert!(done == 0 && failed.len() > 100, "{table}: {done} {failed:?}");
            assert!(failed.iter().all(|cause| cause.contains("killed")), "{failed:?}");
            shop.back_door.run("DROP TRIGGER trip").await.unwrap();
            assert_eq!(told(&shop, &past).await, before, "{table}");
        }
        assert_eq!(archive(&shop, year_ago).await, MONTHS - 12);
        assert_eq!(told(&shop, &past).await, before);
        assert_eq!(archive(&shop, year_ago).await, 0, "nothing is left to do");
        let left = in_books(&shop, "tb_seckill_order").await;
        assert_eq!(left * 10, orders, "a year of ten is left");
        assert_eq!(in_books(&shop, "tb_stock_log").await * 10, rows);
    })
    .await;
}

#[tokio::test]
async fn an_archived_order_is_found_by_its_number_and_by_its_money() {
    check(async |shop| {
        let past = live_through(&shop, 4).await;
        let (paid, notice) = &past.paid[0];
        let money = shop.payments(paid.order_no).await.unwrap();
        let log = shop.stock_log_of(paid.order_no).await.unwrap();
        // As they are on bills: two of each month, and one of which nobody knows.
        let txns: Vec<String> = (0..9).map(|n| format!("42000{n}")).collect();
        let on_bill = async || {
            let mut rows = shop.payments_by_txn("wechat", &txns).await.unwrap();
            rows.sort_by_key(|row| (row.order_no, row.kind.code()));
            rows
        };
        let billed = on_bill().await;
        archive(&shop, shop.now() - MONTH_MS).await;
        // The last one stays: nobody has sold anything since.
        assert_eq!(in_books(&shop, "tb_seckill_order").await, 9);

        assert_eq!(shop.found(paid.order_no).await, *paid);
        assert_eq!(shop.orders_by_no(&[paid.order_no]).await.unwrap(), std::slice::from_ref(paid));
        assert_eq!(shop.payments(paid.order_no).await.unwrap(), money);
        assert_eq!(shop.stock_log_of(paid.order_no).await.unwrap(), log);
        assert_eq!((on_bill().await, billed.len()), (billed, 12), "eight came in, four went back");
        let providers = ["alipay".to_owned(), notice.provider.clone()];
        let found = shop.orders_of_payment(&providers, &notice.provider_txn).await.unwrap();
        assert_eq!(found, [paid.order_no]);
        // A claim that comes again is the order that it was.
        let claim = &past.claims[0];
        let settled = shop.settle(claim.item, std::slice::from_ref(claim)).await.unwrap();
        assert_eq!(settled.repeated, [claim.order_no]);
        // Its provider says it again, or says the same number of another order.
        assert_eq!(shop.credit(notice, shop.now()).await.unwrap(), Credit::Repeated);
        let other = shop.bought(past.activities[3].items[1].id, "zoe", 1).await;
        let stolen = PaymentNotice { order_no: other.order_no, ..past.paid[1].1.clone() };
        assert_eq!(shop.credit(&stolen, shop.now()).await.unwrap(), Credit::Mismatch);
        assert!(shop.order(shop.number()).await.unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn money_that_comes_years_too_late_finds_its_order_and_goes_back() {
    check(async |shop| {
        let past = live_through(&shop, 5).await;
        let cut = shop.now() - MONTH_MS;
        archive(&shop, cut).await;
        let order = &past.closed[0];
        let late = shop.money_for(order);
        let credit = shop.credit(&late, shop.now()).await.unwrap();
        assert_eq!(credit, Credit::Refunding(OrderStatus::Closed));
        let asked = |message: &OutboxMessage| *message == crate::refund(&late);
        assert!(shop.deliver_all().await.iter().any(asked));
        // It is told once, as it is now, and its activity waits for it.
        let told_once = async |status: OrderStatus| {
            let of_buyer = OrderFilter { user: Some(order.user.clone()), ..OrderFilter::default() };
            let found = pages(&shop, of_buyer.clone()).await;
            assert_eq!(found.len(), 5);
            let [one] =
                &found.iter().filter(|o| o.order_no == order.order_no).collect::<Vec<_>>()[..]
            else {
                panic!("{found:?}")
            };
            assert_eq!(one.status, status);
            let closed = OrderFilter { status: Some(OrderStatus::Closed), ..of_buyer };
            assert_eq!(pages(&shop, closed).await.len(), 4);
            let counted = counts(&shop, order.item).await;
            let of =
                |wanted| counted.iter().find(|(known, _)| *known == wanted).map(|(_, c)| c.orders);
            assert_eq!(
                (of(OrderStatus::Closed).unwrap_or(0), of(status)),
                (0, Some(if status == OrderStatus::Refunded { 2 } else { 1 }))
            );
            shop.books_add_up(order.item).await;
        };
        told_once(OrderStatus::Refunding).await;
        assert_eq!(archive(&shop, cut).await, 0, "money is on its way");
        shop.refunded(&given_back(&late), shop.now()).await.unwrap();
        told_once(OrderStatus::Refunded).await;
        shop.deliver_all().await;
        let books = in_books(&shop, "tb_seckill_order").await;
        // Somebody pays a newer order, so that the newest payment of all is another one.
        shop.paid(past.activities[4].items[1].id, "zoe").await;
        assert_eq!(
            archive(&shop, cut).await,
            0,
            "the bills of these days are to be compared first"
        );
        shop.clock.advance(11 * DAY_MS);
        assert_eq!(archive(&shop, cut).await, 1);
        assert_eq!(in_books(&shop, "tb_seckill_order").await, books);
        told_once(OrderStatus::Refunded).await;
        let money = shop.payments(order.order_no).await.unwrap();
        assert_eq!(money.len(), 2, "in and out: {money:?}");
    })
    .await;
}

#[tokio::test]
async fn an_old_order_that_was_paid_can_be_given_back_by_hand() {
    check(async |shop| {
        let past = live_through(&shop, 4).await;
        archive(&shop, shop.now() - MONTH_MS).await;
        let (order, notice) = &past.paid[0];
        let stock = shop.stock(order.item).await;
        shop.start_refund(order.order_no, shop.now()).await.unwrap();
        assert_eq!(shop.status(order.order_no).await, OrderStatus::Refunding);
        assert_eq!(shop.stock(order.item).await, (stock.0 + 1, stock.1));
        shop.refunded(&given_back(notice), shop.now()).await.unwrap();
        shop.books_add_up(order.item).await;
        assert_eq!(shop.stock_log_of(order.order_no).await.unwrap().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn what_is_open_keeps_an_activity_in_the_books() {
    check(async |shop| {
        let past = live_through(&shop, 3).await;
        let [unpaid, refunding, ..] = &past.activities[..] else { panic!() };
        shop.bought(unpaid.items[1].id, "late", 1).await;
        let (order, _) = shop.paid(refunding.items[1].id, "late").await;
        shop.start_refund(order.order_no, shop.now()).await.unwrap();
        shop.deliver_all().await;
        for activity in &past.activities {
            let held = shop.archivable(activity.id).await.unwrap();
            assert!(
                matches!(held, Archivable::HeldBack(_)) || activity.id == past.activities[2].id
            );
        }
        assert_eq!(archive(&shop, shop.now()).await, 1);
        assert_eq!(in_books(&shop, "tb_seckill_order").await, 9 + 9 + 2);
    })
    .await;
}

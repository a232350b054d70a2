//! What of a shop is in the archive is told as before, whoever asks: buyers' lists, searches, single orders
//! and their stories, tables for spreadsheets, totals, stock logs, comparisons. Before, while and after it
//! is moved.

use config::Config;
use engine::MANUAL;
use http::Method;
use ledger::{
    Archivable, ArchiveStep, AuditEntry, Credit, Ledger, OUTBOX_NOBODY, OldActivity, Origin,
    OutboxKind, PaymentNotice, RefundDone,
};
use sale::{
    Activity, ActivityMove, Claim, CloseReason, Currency, ItemId, ItemWords, Millis, NewActivity,
    NewItem, Order, PAY_WITHIN_MS_DEFAULT,
};
use serde_json::{Value, json};

use crate::shop::{ADMIN, NOW_MS, Shop};

const HOUR_MS: Millis = 60 * 60 * 1_000;
const MONTH_MS: Millis = 31 * 24 * HOUR_MS;
const BUYERS: [&str; 4] = ["ann", "bob", "eve", "nobody"];
/// Rows moved in a step.
const STEP_ROWS: usize = 4;

fn without_limits(config: &mut Config) {
    for rate in [&mut config.limits.admin_per_address, &mut config.limits.orders_per_user] {
        *rate = "off".parse().unwrap();
    }
}

fn ledger(shop: &Shop) -> &dyn Ledger {
    &*shop.app.engine.parts().ledger
}

fn deed(action: &str) -> AuditEntry {
    let (who, target) = ("root".into(), "something".into());
    AuditEntry { who, action: action.into(), target, detail: json!({}), origin: Origin::default() }
}

fn claim(shop: &Shop, item: ItemId, user: &str, quantity: u32) -> Claim {
    let engine = &shop.app.engine;
    Claim {
        order_no: engine.parts().numbers.next(),
        item,
        user: user.parse().unwrap(),
        quantity,
        epoch: 1,
        claimed_ms: engine.now_ms(),
        key: None,
    }
}

async fn bought(shop: &Shop, item: ItemId, user: &str, quantity: u32) -> Order {
    let claim = claim(shop, item, user, quantity);
    let settled = ledger(shop).settle(item, std::slice::from_ref(&claim)).await.unwrap();
    assert_eq!(settled.created, [claim.order_no]);
    ledger(shop).order(claim.order_no).await.unwrap().unwrap()
}

/// The transaction is named after the order.
async fn paid(shop: &Shop, item: ItemId, user: &str, provider: &str) -> PaymentNotice {
    let order = bought(shop, item, user, 1).await;
    let notice = PaymentNotice {
        provider: provider.into(),
        provider_txn: format!("of-{}", order.order_no),
        order_no: order.order_no,
        amount: order.amount,
        paid_ms: shop.app.engine.now_ms(),
    };
    let credit = ledger(shop).credit(&notice, shop.app.engine.now_ms()).await.unwrap();
    assert_eq!(credit, Credit::Paid);
    notice
}

async fn published(shop: &Shop) -> Activity {
    let item = |sku: &str, stock| NewItem {
        name: sku.into(),
        image_url: String::new(),
        price: 100,
        origin_price: None,
        currency: Currency::CNY,
        stock,
        limit_per_user: 5,
        shards: 1,
        words: ItemWords { sku: Some(sku.into()), ..ItemWords::default() },
    };
    let now_ms = shop.app.engine.now_ms();
    let new = NewActivity {
        external_id: None,
        name: "of this month".into(),
        opens_ms: now_ms,
        closes_ms: now_ms + HOUR_MS,
        pay_within_ms: PAY_WITHIN_MS_DEFAULT,
        publish_ms: None,
        door: Default::default(),
        shuffle_ms: 0,
        items: vec![item("few", 2), item("many", 30)],
    };
    let activity = ledger(shop).create_activity(&new, now_ms).await.unwrap();
    ledger(shop).move_activity(activity.id, ActivityMove::Publish, None, now_ms).await.unwrap();
    activity
}

/// A sale in which orders were paid, given back, closed and void, and its stock was changed; and then so
/// much time.
async fn live_through_a_sale(shop: &Shop, then_ms: Millis) -> Activity {
    let (ledger, activity) = (ledger(shop), published(shop).await);
    let (few, many) = (activity.items[0].id, activity.items[1].id);
    let now_ms = shop.app.engine.now_ms();
    let crowd = ["ann", "bob", "eve"].map(|user| claim(shop, few, user, 1));
    let settled = ledger.settle(few, &crowd).await.unwrap();
    assert_eq!((settled.created.len(), settled.void.len()), (2, 1));
    let mut closed = settled.created;
    closed.push(bought(shop, many, "eve", 2).await.order_no);
    for no in closed {
        ledger.close(&[no.into()], CloseReason::Cancelled, now_ms).await.unwrap();
    }
    paid(shop, many, "ann", MANUAL).await;
    let PaymentNotice { provider, provider_txn, order_no, amount, .. } =
        paid(shop, many, "bob", "wechat").await;
    ledger.start_refund(order_no, None, &deed("order.refund"), now_ms).await.unwrap();
    let back = RefundDone { provider, provider_txn, order_no, amount };
    ledger.refunded(&back, now_ms).await.unwrap();
    let adjust_no = shop.app.engine.parts().numbers.next();
    ledger.adjust_stock(many, 5, adjust_no, &deed("stock.adjust"), now_ms).await.unwrap();

    shop.clock.advance(2 * HOUR_MS);
    let now_ms = shop.app.engine.now_ms();
    ledger.move_activity(activity.id, ActivityMove::End, None, now_ms).await.unwrap();
    for kind in OutboxKind::ALL {
        let due = ledger.outbox_due(kind, OUTBOX_NOBODY, now_ms, 1_000).await.unwrap();
        let ids: Vec<i64> = due.iter().map(|row| row.id).collect();
        ledger.outbox_done(&ids).await.unwrap();
    }
    shop.clock.advance(then_ms);
    activity
}

async fn asked(shop: &Shop, path: &str) -> Value {
    let heard = shop.admin(Method::GET, path).send().await;
    assert_eq!(heard.status, 200, "{path}: {}", heard.text);
    serde_json::from_str(&heard.text).unwrap_or(Value::String(heard.text))
}

/// All of a list, three rows at a time.
async fn all_pages(shop: &Shop, path: &str, token: &str) -> Vec<Value> {
    let (rows, behind) =
        if path.contains("stock-log") { ("rows", "after") } else { ("orders", "before") };
    let (mut found, mut from) = (Vec::new(), String::new());
    loop {
        let page = shop.get(&format!("{path}limit=3{from}")).bearer(token).send().await.is(200);
        found.extend(page[rows].as_array().unwrap().iter().cloned());
        let next = match &page["next"] {
            Value::Null => return found,
            Value::String(next) => next.clone(),
            next => next.to_string(),
        };
        from = format!("&{behind}={next}");
    }
}

/// Questions, each with its answer.
type Told = Vec<(String, Value)>;

async fn told(shop: &Shop, past: &[Activity]) -> Told {
    let mut told = Told::new();
    let all = all_pages(shop, "/admin/orders?", ADMIN).await;
    let first_ms = NOW_MS + 1;
    let mut lists: Vec<String> =
        ["", "user_id=ann&", "user_id=nobody&", "sku=many&", "status=paid&", "status=void&"]
            .map(|search| format!("/admin/orders?{search}"))
            .to_vec();
    lists.push(format!("/admin/orders?paid_from={first_ms}&"));
    lists.push(format!("/admin/orders?from={first_ms}&to={}&", first_ms + MONTH_MS));
    let mut once = vec!["/admin/audit?action=order.refund&limit=500".to_owned()];
    for activity in past {
        lists.push(format!("/admin/orders?activity_id={}&", activity.id));
        for item in &activity.items {
            lists.push(format!("/admin/orders?item_id={}&", item.id));
            lists.push(format!("/admin/items/{}/stock-log?", item.id));
        }
    }
    for search in ["", "&user_id=bob", "&status=refunded", "&sku=few", "&activity_id=1"] {
        once.push(format!("/admin/orders?format=csv{search}"));
    }
    once.push(format!("/admin/orders?format=csv&paid_from={first_ms}"));
    for order in &all {
        let no = order["order_no"].as_str().unwrap();
        once.extend(["", "/story"].map(|what| format!("/admin/orders/{no}{what}")));
        once.push(format!("/admin/orders?payment=of-{no}"));
        let user = order["user_id"].as_str().unwrap();
        let own = shop.get(&format!("/orders/{no}")).bearer(&shop.jwt(user)).send().await.is(200);
        told.push((format!("{no} to {user}"), own));
    }
    for path in lists {
        let list = all_pages(shop, &path, ADMIN).await;
        told.push((path, list.into()));
    }
    for path in once {
        let answer = asked(shop, &path).await;
        told.push((path, answer));
    }
    for user in BUYERS {
        let list = all_pages(shop, "/orders?", &shop.jwt(user)).await;
        told.push((format!("the list of {user}"), list.into()));
    }
    told
}

fn are_the_same(before: &Told, now: &Told) {
    assert_eq!(before.len(), now.len());
    for (before, now) in before.iter().zip(now) {
        assert_eq!(before, now);
    }
}

/// Counted now: a count is kept for a moment.
async fn totals(shop: &Shop, past: &[Activity]) -> Vec<Value> {
    shop.clock.advance(1);
    let mut totals = Vec::new();
    for activity in past {
        let path = format!("/admin/activities/{}/totals", activity.id);
        let mut counted = asked(shop, &path).await;
        while counted["counted_at"] != shop.app.engine.now_ms() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            counted = asked(shop, &path).await;
        }
        counted["counted_at"] = Value::Null;
        totals.push(counted);
    }
    totals
}

/// What a comparison says of the books of each item. It has nothing to find.
async fn compared(shop: &Shop, query: &str) -> Vec<Value> {
    let path = format!("/admin/reconcile{query}");
    let report = shop.admin(Method::POST, &path).send().await.is(200);
    assert_eq!((&report["left"], &report["moving"]), (&json!(0), &json!(0)), "{report}");
    let books = ["item_id", "verdict", "ledger_stock", "live_units", "total", "findings"];
    let items = report["items"].as_array().unwrap().iter();
    let mut said: Vec<Value> =
        items.map(|item| books.iter().map(|name| item[name].clone()).collect()).collect();
    // Each engine lists them in an order of its own.
    said.sort_by_key(|item| item[0].as_i64());
    said
}

/// Moves a little of what is over. False if nothing is left.
async fn archive_a_little(shop: &Shop) -> bool {
    let (ledger, now_ms) = (ledger(shop), shop.app.engine.now_ms());
    let old = ledger.old_activities(now_ms, OldActivity::FIRST, 50).await.unwrap();
    let Some(activity) = old.first() else { return false };
    assert_eq!(ledger.archivable(activity.id).await.unwrap(), Archivable::Yes);
    let step = ledger.archive_step(activity.id, STEP_ROWS, now_ms).await.unwrap();
    assert!(!matches!(step, ArchiveStep::HeldBack(_)), "{step:?}");
    true
}

async fn archiving_changes_nothing_that_is_told(shop: Shop) {
    let mut past = Vec::new();
    // Of the last one the bills are compared, and comparisons look at it still.
    for then_ms in [MONTH_MS, MONTH_MS, MONTH_MS, 11 * 24 * HOUR_MS] {
        past.push(live_through_a_sale(&shop, then_ms).await);
    }
    past.push(published(&shop).await);
    paid(&shop, past[4].items[1].id, "ann", "wechat").await;

    let before = told(&shop, &past).await;
    let (sums, books) = (totals(&shop, &past).await, compared(&shop, "").await);
    assert_eq!(sums[0]["currencies"][0]["revenue"], 100);
    assert_eq!(books.len(), 3, "{books:?}");
    let mut steps = 0;
    while archive_a_little(&shop).await {
        steps += 1;
        if steps % 4 == 0 {
            are_the_same(&before, &told(&shop, &past).await);
            compared(&shop, "?changed=true").await;
        }
        if steps == 10 {
            assert_eq!(totals(&shop, &past).await, sums);
            assert_eq!(compared(&shop, "").await, books);
        }
    }
    assert!(steps > 20, "{steps}");
    are_the_same(&before, &told(&shop, &past).await);
    assert_eq!(totals(&shop, &past).await, sums);
    compared(&shop, "?changed=true").await;
    assert_eq!(compared(&shop, "").await, books);
}

#[tokio::test]
async fn what_is_archived_is_told_as_before() {
    archiving_changes_nothing_that_is_told(Shop::open_with(without_limits).await).await;
}

#[tokio::test]
async fn what_is_archived_on_a_server_is_told_as_before() {
    archiving_changes_nothing_that_is_told(Shop::open_on_a_server(without_limits).await).await;
}

//! The shop's own cashier: its backend tells of money, signed or with a token that may do nothing else.

use http::Method;
use sale::{Clock, Secret};
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use crate::shop::{Heard, NOW_MS, OPENS_MS, Shop};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const PRICE: i64 = 699_900;

async fn open() -> (Shop, i64) {
    let shop = Shop::open_with(|config| {
        config.payment.external.secrets = [OLD, NEW].map(Secret::new).to_vec();
        config.payment.external.url =
            "https://shop.example/pay?no={order_no}&sum={amount}&for={subject}&by={user_id}".into();
    })
    .await;
    let (_, item) = shop.stage(5, 1).await;
    shop.clock.set(OPENS_MS);
    (shop, item)
}

async fn order(shop: &Shop, user: &str, item: i64) -> String {
    let no = shop.buy(user, item).await;
    shop.settled(user, &no).await;
    no
}

/// Signed by a library of the shop's, with the first of two secrets unless told.
async fn tell_with(shop: &Shop, secret: &str, path: &str, body: &Value) -> Heard {
    let (body, at_s) = (body.to_string(), shop.clock.now_ms() / 1_000);
    let signed = Webhook::new(secret).unwrap().sign("msg_1", at_s, body.as_bytes()).unwrap();
    shop.post(path)
        .header("webhook-id", "msg_1")
        .header("webhook-timestamp", at_s.to_string())
        .header("webhook-signature", signed)
        .raw(body)
        .send()
        .await
}

async fn tell(shop: &Shop, no: &str, verb: &str, body: &Value) -> Heard {
    tell_with(shop, OLD, &format!("/orders/{no}/{verb}"), body).await
}

fn paid(no: &str, txn: &str, amount: i64) -> Value {
    json!({"order_no": no, "transaction_id": txn, "amount": amount, "currency": "CNY", "paid_at": NOW_MS})
}

fn refunded(no: &str, txn: &str) -> Value {
    json!({"order_no": no, "transaction_id": txn, "amount": PRICE, "currency": "CNY",
        "refunded_at": "2027-01-15T16:00:00+08:00"})
}

async fn status(shop: &Shop, user: &str, no: &str) -> Value {
    shop.settled(user, no).await["status"].clone()
}

#[tokio::test]
async fn the_shop_tells_that_an_order_is_paid_and_it_counts_once() {
    let (shop, item) = open().await;
    let no = order(&shop, "ann", item).await;
    let opened = shop.post(&format!("/orders/{no}/payments")).bearer(&shop.jwt("ann"));
    let opened = opened.json(json!({"provider": "external"})).send().await.is(200);
    let url = format!("https://shop.example/pay?no={no}&sum={PRICE}&for=iPhone&by=ann");
    assert_eq!(opened["payment_url"], url);
    let told = tell(&shop, &no, "paid", &paid(&no, "T-1", PRICE)).await.is(200);
    assert_eq!((&told["status"], &told["outcome"]), (&json!("paid"), &json!("done")));
    // The other secret is as good, and the time it was told does not matter.
    let path = format!("/orders/{no}/paid");
    let mut again = paid(&no, "T-1", PRICE);
    again["paid_at"] = json!(NOW_MS + 5);
    let told = tell_with(&shop, NEW, &path, &again).await.is(200);
    assert_eq!((&told["status"], &told["outcome"]), (&json!("paid"), &json!("repeated")));
    let shown = shop.admin(Method::GET, &format!("/admin/orders/{no}")).send().await.is(200);
    let money: Vec<&Value> =
        shown["payments"].as_array().unwrap().iter().filter(|row| row["kind"] == "pay").collect();
    assert_eq!(money.len(), 1, "{shown}");
    assert_eq!(
        (&money[0]["provider"], &money[0]["provider_txn"]),
        (&json!("external"), &json!("T-1"))
    );
}

#[tokio::test]
async fn late_double_and_partial_money_is_answered_with_what_is_to_be_done() {
    let (shop, item) = open().await;
    let (late, double, partial) = (
        order(&shop, "late", item).await,
        order(&shop, "double", item).await,
        order(&shop, "partial", item).await,
    );
    shop.post(&format!("/orders/{late}/cancel")).bearer(&shop.jwt("late")).send().await.is(200);
    let told = tell(&shop, &late, "paid", &paid(&late, "T-late", PRICE)).await.is(200);
    assert_eq!((&told["outcome"], &told["reason"]), (&json!("refund_due"), &json!("late")));
    assert_eq!(told["status"], "refunding");
    assert!(told["message"].as_str().unwrap().contains("/refunded"), "{told}");
    let told = tell(&shop, &late, "refunded", &refunded(&late, "T-late")).await.is(200);
    assert_eq!((&told["outcome"], &told["status"]), (&json!("done"), &json!("refunded")));
    let told = tell(&shop, &late, "refunded", &refunded(&late, "T-late")).await.is(200);
    assert_eq!((&told["outcome"], &told["status"]), (&json!("repeated"), &json!("refunded")));

    tell(&shop, &double, "paid", &paid(&double, "T-2", PRICE)).await.is(200);
    let told = tell(&shop, &double, "paid", &paid(&double, "T-3", PRICE)).await.is(200);
    assert_eq!((&told["outcome"], &told["reason"]), (&json!("refund_due"), &json!("double")));
    assert_eq!(told["status"], "paid", "the first one pays it");
    let told = tell(&shop, &double, "refunded", &refunded(&double, "T-3")).await.is(200);
    assert_eq!((&told["outcome"], &told["status"]), (&json!("done"), &json!("paid")));

    let heard = tell(&shop, &partial, "paid", &paid(&partial, "T-4", PRICE - 1)).await;
    let told = heard.is_refused(422, "amount_mismatch", None).json();
    assert_eq!((&told["amount"], &told["currency"]), (&json!(PRICE), &json!("CNY")));
    let mut dollars = paid(&partial, "T-4", PRICE);
    dollars["currency"] = json!("USD");
    tell(&shop, &partial, "paid", &dollars).await.is_refused(422, "amount_mismatch", None);
    assert_eq!(status(&shop, "partial", &partial).await, "unpaid", "nothing was credited");
    let whole = tell(&shop, &partial, "paid", &paid(&partial, "T-4", PRICE)).await.is(200);
    assert_eq!(whole["outcome"], "done", "the whole of it may still come");
}

#[tokio::test]
async fn a_shop_that_gives_money_back_by_itself_gets_the_unit_back_on_sale() {
    let (shop, item) = open().await;
    let no = order(&shop, "ann", item).await;
    tell(&shop, &no, "paid", &paid(&no, "T-1", PRICE)).await.is(200);
    let ledger = &shop.app.engine.parts().ledger;
    let stock = async || ledger.item(sale::ItemId(item)).await.unwrap().unwrap().stock;
    assert_eq!(stock().await, 4);
    let mut less = refunded(&no, "T-1");
    less["amount"] = json!(1);
    tell(&shop, &no, "refunded", &less).await.is_refused(422, "amount_mismatch", None);
    tell(&shop, &no, "refunded", &refunded(&no, "T-9")).await.is_refused(404, "not_found", None);
    assert_eq!(status(&shop, "ann", &no).await, "paid");
    let told = tell(&shop, &no, "refunded", &refunded(&no, "T-1")).await.is(200);
    assert_eq!((&told["outcome"], &told["status"]), (&json!("done"), &json!("refunded")));
    assert_eq!(stock().await, 5);
    let report = shop.admin(Method::POST, "/admin/reconcile").json(json!({})).send().await.is(200);
    assert_eq!(report["payments"], json!([]), "{report}");
}

#[tokio::test]
async fn what_is_not_signed_for_this_very_thing_changes_nothing() {
    let (shop, item) = open().await;
    let (mine, other) = (order(&shop, "ann", item).await, order(&shop, "bob", item).await);
    let path = format!("/orders/{mine}/paid");
    let body = paid(&mine, "T-1", PRICE);
    let forged = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    tell_with(&shop, forged, &path, &body).await.is_refused(401, "unauthorized", None);
    // Signed for one order and sent to another, or for one thing and sent as another.
    tell(&shop, &other, "paid", &body).await.is_refused(422, "invalid", Some("order_no"));
    tell(&shop, &mine, "refunded", &body).await.is_refused(422, "invalid", Some("paid_at"));
    let closed = tell(&shop, &mine, "payment-closed", &body).await;
    assert_eq!(closed.status, 422);
    // Ten minutes later.
    let at_s = shop.clock.now_ms() / 1_000;
    let signed = Webhook::new(OLD).unwrap().sign("m", at_s, body.to_string().as_bytes()).unwrap();
    shop.clock.advance(600_000);
    let stale = shop
        .post(&path)
        .header("webhook-id", "m")
        .header("webhook-timestamp", at_s.to_string())
        .header("webhook-signature", &signed)
        .raw(body.to_string());
    stale.send().await.is_refused(401, "unauthorized", None);
    shop.post(&path).json(body.clone()).send().await.is_refused(401, "unauthorized", None);
    for (name, bad) in [
        ("transaction_id", json!("")),
        ("transaction_id", json!("x".repeat(129))),
        ("transaction_id", json!("a b")),
        ("amount", json!(-1)),
        ("amount", json!("1")),
        ("currency", json!("yuan")),
        ("paid_at", json!("yesterday")),
    ] {
        let mut body = body.clone();
        body[name] = bad;
        tell(&shop, &mine, "paid", &body).await.is_refused(422, "invalid", Some(name));
    }
    let nobody = "SK0381966054408192001";
    tell(&shop, nobody, "paid", &paid(nobody, "T-1", PRICE)).await.is_refused(
        404,
        "not_found",
        None,
    );
    for (user, no) in [("ann", &mine), ("bob", &other)] {
        assert_eq!(status(&shop, user, no).await, "unpaid");
    }
    tell(&shop, &mine, "paid", &paid(&mine, "T-1", PRICE)).await.is(200);
    let used = tell(&shop, &other, "paid", &paid(&other, "T-1", PRICE)).await;
    used.is_refused(409, "transaction_used", None);
}

#[tokio::test]
async fn a_token_of_the_role_cashier_tells_of_money_and_does_nothing_else() {
    let (shop, item) = open().await;
    let no = order(&shop, "ann", item).await;
    let token = async |name: &str, role: &str| -> String {
        let new = json!({"name": name, "role": role});
        let made = shop.admin(Method::POST, "/admin/tokens").json(new).send().await.is(201);
        made["token"].as_str().unwrap().to_owned()
    };
    let (till, operator) = (token("till", "cashier").await, token("ops", "operator").await);
    let path = format!("/orders/{no}/paid");
    let body = paid(&no, "T-1", PRICE);
    let by = |token: &str| shop.post(&path).bearer(token).json(body.clone()).send();
    by(&operator).await.is_refused(403, "forbidden", None);
    assert_eq!(by(&till).await.is(200)["outcome"], "done");
    for (method, path) in [
        (Method::GET, "/admin/orders"),
        (Method::GET, "/admin/overview"),
        (Method::GET, "/admin/tokens"),
        (Method::POST, "/admin/reconcile"),
    ] {
        let asked = shop.ask(method, path).bearer(&till).json(json!({}));
        asked.send().await.is_refused(403, "forbidden", None);
    }
    let audit = shop.admin(Method::GET, "/admin/audit").send().await.is(200);
    let entries = audit["entries"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["action"] == "order.paid").unwrap();
    assert_eq!((&entry["who"], &entry["target"]), (&json!("till"), &json!(format!("order:{no}"))));
}

#[tokio::test]
async fn money_for_an_order_that_is_still_queued_is_to_be_told_again() {
    let (shop, item) = open().await;
    shop.app.engine.parts().workers.as_ref().unwrap().stop().await;
    let no = shop.buy("ann", item).await;
    let heard = tell(&shop, &no, "paid", &paid(&no, "T-1", PRICE)).await;
    let told = heard.is_refused(409, "conflict", None).json();
    assert_eq!(
        (&told["state"], heard.headers["retry-after"].as_bytes()),
        (&json!("queued"), &b"1"[..])
    );
}

#[tokio::test]
async fn without_a_secret_there_is_no_cashier_of_the_shops_own() {
    let shop = Shop::open().await;
    let no = "SK0381966054408192001";
    for verb in ["paid", "refunded", "payment-closed"] {
        let heard = tell(&shop, no, verb, &paid(no, "T-1", PRICE)).await;
        heard.is_refused(404, "not_found", None);
    }
}

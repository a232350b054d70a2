//! What becomes of a claim, and of one that makes no sense.

use std::sync::atomic::Ordering;

use futures_util::StreamExt;
use http::Method;
use ledger::PaymentNotice;
use sale::{Claim, FailedClaim, ItemId, SaleToken, SigningKeys};
use serde_json::{Value, json};
use server::api::BASE;

use crate::shop::{CLOSES_MS, OPENS_MS, Shop};

#[tokio::test]
async fn a_buyer_finds_claims_follows_and_gives_up() {
    let shop = Shop::open().await;
    let (activity, item) = shop.stage(10, 2).await;
    shop.clock.set(OPENS_MS);

    let seen = shop.get("/api/v1/activities").send().await;
    assert_eq!(seen.headers["cache-control"], "public, max-age=1");
    let seen = seen.is(200);
    assert_eq!(seen["activities"][0]["state"], "published");
    assert_eq!(seen["activities"][0]["items"][0]["left"], 10);
    let one = shop.get(&format!("/items/{item}")).send().await.is(200);
    assert_eq!(
        (&one["state"], &one["stock"], &one["activity_id"]),
        (&json!("open"), &json!(10), &json!(activity))
    );
    assert_eq!(shop.get("/api/v1/time").send().await.is(200)["now_ms"], OPENS_MS);

    let login = shop.post("/api/v1/dev/login").json(json!({"user_id": "ann"})).send().await.is(200);
    let jwt = login["token"].as_str().unwrap();
    let pass = shop.post(&format!("/items/{item}/token")).bearer(jwt).send().await.is(200);
    let ask = || {
        shop.post(&format!("/items/{item}/claims"))
            .header("x-sale-token", pass["token"].as_str().unwrap())
            .header("idempotency-key", "k-1")
            .json(json!({"quantity": 2}))
    };
    let admitted = ask().send().await.is(202);
    let order_no = admitted["order_no"].as_str().unwrap();
    assert_eq!((&admitted["status"], &admitted["position"]), (&json!("queued"), &json!(1)));
    assert!(admitted["eta_ms"].as_u64().is_some());
    assert_eq!(shop.left(item), 8);

    // The same key gets the same answer; without it the buyer is told the number.
    let again = ask().send().await.is(202);
    assert_eq!(
        (&again["order_no"], &again["receipt"]),
        (&admitted["order_no"], &admitted["receipt"])
    );
    let repeat = shop.claim("ann", item).json(json!({"quantity": 1})).send().await;
    repeat.is_refused(409, "already_bought", None);
    assert_eq!(repeat.json()["order_no"], order_no);

    let order = shop.settled("ann", order_no).await;
    assert_eq!((&order["status"], &order["amount"]), (&json!("unpaid"), &json!(1_399_800)));
    assert_eq!(order["pay_deadline"], order["created_at"].as_i64().unwrap() + 1_800_000);
    assert!(order.get("user_id").is_none());
    let list = shop.get("/api/v1/orders").bearer(jwt).send().await.is(200);
    assert_eq!(list["orders"].as_array().unwrap().len(), 1);
    assert_eq!((&list["orders"][0], &list["next"]), (&order, &Value::Null));
    let receipt = json!({"receipt": admitted["receipt"]});
    let presented = shop.post("/api/v1/receipts").bearer(jwt).json(receipt).send().await.is(200);
    assert_eq!(presented, order);

    let opened = shop
        .post(&format!("/orders/{order_no}/payments"))
        .bearer(jwt)
        .json(json!({"provider": "sandbox"}))
        .send()
        .await
        .is(200);
    let url = opened["payment_url"].as_str().unwrap();
    // Its number alone, or with somebody else's token, pays nothing.
    let bare = url.split_once('?').unwrap().0;
    for stranger in [bare.to_owned(), format!("{bare}?token="), format!("{bare}?token=00ff")] {
        let path = format!("{BASE}{stranger}");
        shop.get(&path).send().await.is_refused(403, "bad_token", None);
        let press = shop.post(&path).json(json!({"action": "pay"}));
        press.send().await.is_refused(403, "bad_token", None);
    }
    let cashier = shop.get(&format!("{BASE}{url}")).send().await.is(200);
    assert_eq!((&cashier["state"], &cashier["order_no"]), (&json!("open"), &order["order_no"]));
    let pressed =
        |action: &str| shop.post(&format!("{BASE}{url}")).json(json!({"action": action})).send();
    assert_eq!(pressed("fail").await.is(200)["state"], "failed");
    pressed("steal").await.is_refused(422, "invalid", Some("action"));

    let cancelled =
        shop.post(&format!("/orders/{order_no}/cancel")).bearer(jwt).send().await.is(200);
    assert_eq!(
        (&cancelled["status"], &cancelled["reason"]),
        (&json!("closed"), &json!("cancelled"))
    );
    pressed("pay").await.is_refused(409, "conflict", None);
    let late = shop.post(&format!("/orders/{order_no}/payments")).bearer(jwt);
    late.json(json!({"provider": "sandbox"})).send().await.is_refused(409, "conflict", None);
}

#[tokio::test]
async fn an_order_says_where_it_may_be_paid_what_was_opened_and_what_goes_back() {
    let shop = Shop::open_with(|config| {
        config.http.allowed_origins = vec!["https://shop.example".into()];
    })
    .await;
    let (_, item) = shop.stage(10, 2).await;
    shop.clock.set(OPENS_MS);
    let jwt = &shop.jwt("ann");
    let no = shop.buy("ann", item).await;
    let order = shop.settled("ann", &no).await;
    let methods = json!(["page", "phone", "qr"]);
    assert_eq!(order["pay_with"], json!([{"provider": "sandbox", "methods": methods}]));
    assert!(order.get("payment").is_none() && order.get("refunds").is_none());

    let pay =
        |body: Value| shop.post(&format!("/orders/{no}/payments")).bearer(jwt).json(body).send();
    for (body, field) in [
        (json!({"provider": "paypal"}), "provider"),
        (json!({"provider": "sandbox", "method": "app"}), "method"),
        (json!({"provider": "sandbox", "method": "cash"}), "method"),
        (json!({"provider": "sandbox", "payer": ""}), "payer"),
        (json!({"provider": "sandbox", "return_url": "https://evil.example/"}), "return_url"),
        (json!({"provider": "sandbox", "return_url": "//evil.example/"}), "return_url"),
    ] {
        pay(body).await.is_refused(422, "invalid", Some(field));
    }
    let shown = async || shop.get(&format!("/orders/{no}")).bearer(jwt).send().await.is(200);
    assert!(shown().await.get("payment").is_none(), "nothing was opened");

    let code = pay(json!({"provider": "sandbox", "method": "qr"})).await.is(200);
    let text = code["qr"]["text"].as_str().unwrap();
    assert!(text.starts_with("http://") && text.contains("/cashier/"), "{text}");
    assert!(code["qr"]["svg"].as_str().unwrap().starts_with("<svg "), "{code}");
    assert_eq!((&code["payment_url"], &code["expires_at"]), (&Value::Null, &order["pay_deadline"]));
    let opened = shown().await["payment"].clone();
    assert_eq!((&opened["method"], &opened["state"]), (&json!("qr"), &json!("open")));
    for back in ["/?order=SK1", "https://shop.example/back"] {
        let page = pay(json!({"provider": "sandbox", "return_url": back})).await.is(200);
        assert_eq!((&page["qr"], &page["app"]), (&Value::Null, &Value::Null));
        let url = page["payment_url"].as_str().unwrap();
        assert!(url.contains("&return_url="), "{url}");
    }
    let ledger = &shop.app.engine.parts().ledger;
    let order_no = no.parse().unwrap();
    let amount = ledger.order(order_no).await.unwrap().unwrap().amount;
    let money = |txn: &str| PaymentNotice {
        provider: "sandbox".into(),
        provider_txn: txn.into(),
        order_no,
        amount,
        paid_ms: OPENS_MS,
    };
    for txn in ["first", "second"] {
        ledger.credit(&money(txn), OPENS_MS).await.unwrap();
    }
    let paid = shown().await;
    let payment = &paid["payment"];
    assert_eq!((&payment["provider"], &payment["state"]), (&json!("sandbox"), &json!("paid")));
    assert_eq!((&payment["method"], &payment["provider_txn"]), (&json!("page"), &json!("first")));
    let refund = json!({"provider": "sandbox", "provider_txn": "second", "amount": 699_900,
        "currency": "CNY", "reason": "double", "note": null, "state": "pending",
        "asked_at": OPENS_MS, "done_at": null});
    assert_eq!((&paid["status"], &paid["refunds"]), (&json!("paid"), &json!([refund])));
    assert!(paid.get("pay_with").is_none(), "{paid}");
}

#[tokio::test]
async fn a_claim_that_makes_no_sense_changes_nothing() {
    let shop = Shop::open().await;
    let (_, item) = shop.stage(10, 2).await;
    shop.clock.set(OPENS_MS);
    for (body, field) in [
        (r#"{"quantity":0}"#, "quantity"),
        (r#"{"quantity":-1}"#, "quantity"),
        (r#"{"quantity":1000000000}"#, "quantity"),
        (r#"{"quantity":1e9}"#, "quantity"),
        (r#"{"quantity":99999999999999999999}"#, "quantity"),
        (r#"{"quantity":3}"#, "quantity"),
        (r#"{"quantity":"x"}"#, "quantity"),
        (r#"{"quantity":"1"}"#, "quantity"),
        (r#"{"quantity":1.5}"#, "quantity"),
        (r#"{"quantity":null}"#, "quantity"),
        (r#"{"quantity":true}"#, "quantity"),
        (r#"{}"#, "quantity"),
        (r#"{"quantity":1,"price":1}"#, "price"),
        (r#"{"quantity":1,"user_id":"eve"}"#, "user_id"),
        (r#"[1]"#, "body"),
        (r#"quantity=1"#, "body"),
        ("", "body"),
    ] {
        let heard = shop.claim("ann", item).raw(body).send().await;
        heard.is_refused(422, "invalid", Some(field));
    }
    let broken = shop.claim("ann", item).raw(b"{\"quantity\":\"\xff\xfe\"}".to_vec()).send().await;
    broken.is_refused(422, "invalid", Some("quantity"));
    let large = format!(r#"{{"quantity":1{}}}"#, " ".repeat(1 << 20));
    shop.claim("ann", item).raw(large).send().await.is_refused(413, "too_large", None);
    let form = shop.claim("ann", item).header("content-type", "text/plain");
    form.send().await.is_refused(415, "unsupported_media_type", None);
    for key in [&b""[..], b"two words", "钥匙".as_bytes(), &[b'k'; 256]] {
        let heard = shop.claim("ann", item).header("idempotency-key", key);
        let heard = heard.json(json!({"quantity": 1})).send().await;
        heard.is_refused(422, "invalid", Some("Idempotency-Key"));
    }
    assert_eq!(shop.left(item), 10);
    shop.buy("ann", item).await;
    assert_eq!(shop.left(item), 9);
}

#[tokio::test]
async fn without_a_good_sale_token_the_body_is_not_even_looked_at() {
    let shop = Shop::open().await;
    let (_, item) = shop.stage(10, 1).await;
    let (_, other) = shop.stage(10, 1).await;
    shop.clock.set(OPENS_MS);
    let good = shop.sale_token("ann", item);
    let expired = SaleToken {
        user: "ann".parse().unwrap(),
        item: ItemId(item),
        expires_ms: OPENS_MS,
        from_ms: None,
    };
    let mut forged = good.clone();
    // Another last letter of the signature.
    let last = if forged.pop() == Some('A') { 'Q' } else { 'A' };
    forged.push(last);
    let keys = SigningKeys::from_secret(b"a secret of others").unwrap();
    let by_others = SaleToken { expires_ms: CLOSES_MS, ..expired.clone() }.sign(&keys);
    let receipt_like = shop.jwt("ann");
    for token in [
        "",
        "x",
        &forged,
        &good[..good.len() - 4],
        &by_others,
        &receipt_like,
        &expired.sign(shop.app.engine.keys()),
        &shop.sale_token("ann", other),
        &"A".repeat(10_000),
    ] {
        let ask = shop.post(&format!("/items/{item}/claims")).header("x-sale-token", token);
        ask.raw("nonsense").send().await.is_refused(403, "bad_token", None);
    }
    let missing = shop.post(&format!("/items/{item}/claims")).json(json!({"quantity": 1}));
    missing.send().await.is_refused(403, "bad_token", None);
    // The buyer's login does not stand in for it.
    let logged_in = shop.post(&format!("/items/{item}/claims")).bearer(&shop.jwt("ann"));
    logged_in.json(json!({"quantity": 1})).send().await.is_refused(403, "bad_token", None);
    assert_eq!((shop.left(item), shop.left(other)), (10, 10));
}

#[tokio::test]
async fn a_sale_is_open_in_its_window_only() {
    let shop = Shop::open().await;
    let (activity, item) = shop.stage(10, 1).await;
    let claim = || shop.claim("ann", item).json(json!({"quantity": 1})).send();

    shop.clock.set(OPENS_MS - 1);
    let early = claim().await;
    early.is_refused(403, "not_started", None);
    assert_eq!(early.json()["opens_at"], OPENS_MS);

    shop.clock.set(OPENS_MS);
    shop.move_to(activity, "pause").await.is(200);
    let paused = claim().await;
    paused.is_refused(503, "busy", None);
    assert_eq!(paused.headers["retry-after"], "1");
    let seen = shop.get(&format!("/items/{item}")).send().await.is(200);
    assert_eq!(seen["state"], "paused");
    shop.move_to(activity, "publish").await.is_refused(409, "conflict", None);
    shop.move_to(activity, "resume").await.is(200);

    shop.clock.set(CLOSES_MS);
    claim().await.is_refused(403, "ended", None);
    let token = shop.post(&format!("/items/{item}/token")).bearer(&shop.jwt("ann"));
    token.send().await.is_refused(403, "ended", None);
    assert_eq!(shop.left(item), 10);

    shop.clock.set(CLOSES_MS - 1);
    shop.buy("ann", item).await;
    shop.move_to(activity, "end").await.is(200);
    shop.claim("bob", item)
        .json(json!({"quantity": 1}))
        .send()
        .await
        .is_refused(403, "ended", None);
    shop.move_to(activity, "resume").await.is_refused(409, "conflict", None);
}

#[tokio::test]
async fn a_pause_while_the_gate_is_away_is_told_as_it_is() {
    let (shop, gate) = Shop::open_beside_a_gate().await;
    let (activity, _) = shop.stage(10, 1).await;
    let shown = || shop.admin(Method::GET, &format!("/admin/activities/{activity}")).send();
    for (verb, state) in [("pause", "paused"), ("resume", "published"), ("end", "ended")] {
        for (away, at_gate) in [(true, "pending"), (false, "done")] {
            gate.away.store(away, Ordering::SeqCst);
            let told = shop.move_to(activity, verb).await.is(200);
            assert_eq!((&told["state"], &told["at_gate"]), (&json!(state), &json!(at_gate)));
            let books = shown().await.is(200);
            assert_eq!(books["state"], state);
            assert!(books.get("at_gate").is_none(), "not asked for: {books}");
        }
    }
}

#[tokio::test]
async fn sold_out_is_said_in_the_buyers_language() {
    let shop = Shop::open().await;
    let (_, item) = shop.stage(1, 1).await;
    shop.clock.set(OPENS_MS);
    shop.buy("ann", item).await;
    for (language, title) in [("zh-CN,zh;q=0.9", "已售罄"), ("en", "Sold out"), ("de", "Sold out")]
    {
        let ask = shop.claim("bob", item).header("accept-language", language);
        let heard = ask.json(json!({"quantity": 1})).send().await;
        heard.is_refused(409, "sold_out", None);
        assert_eq!(heard.json()["title"], title);
    }
    let wrong = shop.claim("bob", item).header("accept-language", "zh").raw("{}").send().await;
    wrong.is_refused(422, "invalid", Some("quantity"));
    assert!(wrong.json()["detail"].as_str().unwrap().starts_with("字段 quantity 有误"));
    assert_eq!(shop.get(&format!("/items/{item}")).send().await.is(200)["state"], "sold_out");
}

#[tokio::test]
async fn a_claim_that_failed_is_queued_wherever_its_buyer_looks() {
    let shop = Shop::open().await;
    let (_, item) = shop.stage(5, 1).await;
    shop.clock.set(OPENS_MS);
    let engine = &shop.app.engine;
    let mut failed = Vec::new();
    for next_try_ms in [None, Some(CLOSES_MS)] {
        let claim = Claim {
            order_no: engine.parts().numbers.next(),
            item: ItemId(item),
            user: "ann".parse().unwrap(),
            quantity: 1,
            epoch: 1,
            claimed_ms: OPENS_MS,
            key: None,
        };
        failed.push(FailedClaim { claim, tries: 1, next_try_ms, cause: "poison".into() });
    }
    engine.parts().ledger.defer(&failed).await.unwrap();
    let [dead, retrying] = [0, 1].map(|n: usize| failed[n].claim.order_no.to_string());
    // One more, which became an order.
    let bought = shop.buy("ann", item).await;
    shop.settled("ann", &bought).await;

    let jwt = shop.jwt("ann");
    let list = async |query: &str| -> Vec<(String, String)> {
        let asked = shop.get(&format!("/api/v1/orders{query}")).bearer(&jwt);
        let orders = asked.send().await.is(200)["orders"].clone();
        let word = |order: &Value, name: &str| order[name].as_str().unwrap().to_owned();
        let orders = orders.as_array().unwrap().iter();
        orders.map(|order| (word(order, "order_no"), word(order, "status"))).collect()
    };
    let told = |no: &String, status: &str| (no.clone(), status.to_owned());
    let all = [told(&bought, "unpaid"), told(&retrying, "queued"), told(&dead, "queued")];
    assert_eq!(list("").await, all);
    assert_eq!(list("?limit=2").await, all[..2]);
    assert_eq!(list(&format!("?before={retrying}")).await, all[2..]);
    for no in [&dead, &retrying] {
        let one = shop.get(&format!("/orders/{no}")).bearer(&jwt).send().await.is(200);
        assert_eq!(one["status"], "queued");
    }
    let response = shop.get("/api/v1/events").bearer(&jwt).response().await;
    let mut events = response.into_body().into_data_stream();
    for (no, status) in all {
        let event = String::from_utf8(events.next().await.unwrap().unwrap().to_vec()).unwrap();
        assert!(
            event.contains(&no) && event.contains(&format!(r#""status":"{status}""#)),
            "{event}"
        );
    }
    let nobody = shop.get("/api/v1/orders").bearer(&shop.jwt("bob")).send().await.is(200);
    assert_eq!(nobody["orders"], json!([]));
}

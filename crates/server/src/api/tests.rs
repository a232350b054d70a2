//! Requests as clients send them, good and bad, through the whole router.

mod front_door;
mod shop;

use std::sync::atomic::Ordering;

use futures_util::StreamExt;
use http::Method;
use ledger::PaymentNotice;
use sale::{Claim, FailedClaim, ItemId, SaleToken};
use serde_json::{Value, json};

use super::BASE;
use crate::config::Secret;
use shop::{ADMIN, CLOSES_MS, NOW_MS, OPENS_MS, SECRET, Shop};

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
    let expired =
        SaleToken { user: "ann".parse().unwrap(), item: ItemId(item), expires_ms: OPENS_MS };
    let mut forged = good.clone();
    // Another last letter of the signature.
    let last = if forged.pop() == Some('A') { 'Q' } else { 'A' };
    forged.push(last);
    let keys = sale::SigningKeys::from_secret(b"a secret of others").unwrap();
    let by_others = SaleToken { expires_ms: CLOSES_MS, ..expired.clone() }.sign(&keys);
    let receipt_like = shop.jwt("ann");
    for token in [
        "",
        "x",
        &forged,
        &good[..good.len() - 4],
        &by_others,
        &receipt_like,
        &expired.sign(&shop.app.engine.keys),
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
async fn buyers_are_who_their_jwt_says_and_see_only_their_own() {
    let shop = Shop::open().await;
    let (_, item) = shop.stage(10, 1).await;
    shop.clock.set(OPENS_MS);
    let order_no = shop.buy("ann", item).await;
    shop.settled("ann", &order_no).await;
    let receipt = shop.claim("bob", item).json(json!({"quantity": 1})).send().await.is(202);

    let ann = shop.jwt("ann");
    let payload = ann.split('.').nth(1).unwrap();
    // {"alg":"none","typ":"JWT"}
    let alg_none = format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}.");
    let header = jsonwebtoken::Header { kid: Some("seckill-dev".into()), ..Default::default() };
    let claims = json!({"sub": "ann", "exp": NOW_MS / 1_000 + 3_600});
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET);
    let forged = jsonwebtoken::encode(&header, &claims, &key).unwrap();
    for token in ["x", "a.b.c", &alg_none, &forged, &format!("{ann}x"), ADMIN] {
        let heard = shop.get("/api/v1/orders").bearer(token).send().await;
        heard.is_refused(401, "unauthorized", None);
        assert_eq!(heard.headers["www-authenticate"], "Bearer");
    }
    shop.get("/api/v1/orders").send().await.is_refused(401, "unauthorized", None);

    for user in ["bob", "an", "annn"] {
        let jwt = shop.jwt(user);
        let show = shop.get(&format!("/orders/{order_no}")).bearer(&jwt);
        show.send().await.is_refused(404, "not_found", None);
        let cancel = shop.post(&format!("/orders/{order_no}/cancel")).bearer(&jwt);
        cancel.send().await.is_refused(404, "not_found", None);
        let pay = shop.post(&format!("/orders/{order_no}/payments")).bearer(&jwt);
        pay.json(json!({"provider": "sandbox"})).send().await.is_refused(404, "not_found", None);
    }
    let stolen = json!({"receipt": receipt["receipt"]});
    let present = |body: Value| shop.post("/api/v1/receipts").bearer(&ann).json(body).send();
    present(stolen).await.is_refused(404, "not_found", None);
    present(json!({"receipt": "x"})).await.is_refused(422, "invalid", Some("receipt"));
    present(json!({})).await.is_refused(422, "invalid", Some("receipt"));

    let unknown = "SK0000000000000000001";
    for no in [unknown, "SK1", "1", "SK00000000000000000xx", "%ff", "SK9999999999999999999"] {
        let show = shop.get(&format!("/orders/{no}")).bearer(&ann);
        show.send().await.is_refused(404, "not_found", None);
    }
    let page = |query: &str| shop.get(&format!("/orders?{query}")).bearer(&ann).send();
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("limit=501", "limit"),
        ("before=SK1", "before"),
        ("beforee=1", "beforee"),
    ] {
        page(query).await.is_refused(422, "invalid", Some(field));
    }
    assert_eq!(page(&format!("before={order_no}")).await.is(200)["orders"], json!([]));
    let full = page("limit=1").await.is(200);
    assert_eq!(full["next"], order_no.as_str());

    let expired = shop.jwt("ann");
    shop.clock.advance(shop.app.config.auth.dev_login_ttl_ms as i64 + 10_000);
    let heard = shop.get("/api/v1/orders").bearer(&expired).send().await;
    heard.is_refused(401, "unauthorized", None);
    assert_eq!(shop.left(item), 8);
}

#[tokio::test]
async fn unknown_things_are_not_found() {
    let shop = Shop::open().await;
    shop.stage(1, 1).await;
    shop.clock.set(OPENS_MS);
    for path in [
        "/items/999",
        "/items/abc",
        "/items/-1",
        "/items/99999999999999999999",
        "/api/v1/activities/999",
        "/api/v1/nowhere",
        "/nowhere",
        "/api/v2/time",
    ] {
        shop.get(path).send().await.is_refused(404, "not_found", None);
    }
    let token = shop.post("/items/999/token").bearer(&shop.jwt("ann"));
    token.send().await.is_refused(404, "not_found", None);
    let claim = shop.claim("ann", 999).json(json!({"quantity": 1}));
    claim.send().await.is_refused(404, "not_found", None);
    let notice = shop.post("/api/v1/payments/paypal/notify").raw("{}");
    notice.send().await.is_refused(404, "not_found", None);
    let forged = shop.post("/api/v1/payments/sandbox/notify").raw("{}").send().await;
    assert_eq!((forged.status, forged.text.as_str()), (400, r#"{"code":"FAIL"}"#));

    let wrong = shop.ask(Method::DELETE, "/api/v1/time").send().await;
    wrong.is_refused(405, "method_not_allowed", None);
    assert_eq!(wrong.headers["allow"], "GET,HEAD");
    let head = shop.ask(Method::HEAD, "/api/v1/activities").send().await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
}

#[tokio::test]
async fn the_demos_doors_are_shut_where_they_are_off() {
    let shop = Shop::open_with(|config| {
        config.auth.jwt_secret = Secret::new("the shop's own secret");
    })
    .await;
    let offered = shop.get("/api/v1/shop").send().await.is(200);
    assert_eq!(offered, json!({"dev_login": false, "providers": []}));
    let login = shop.post("/api/v1/dev/login").json(json!({"user_id": "ann"}));
    login.send().await.is_refused(404, "not_found", None);
    shop.get("/api/v1/cashier/x").send().await.is_refused(404, "not_found", None);
    let shop = Shop::open().await;
    let offered = shop.get("/api/v1/shop").send().await.is(200);
    assert_eq!(offered, json!({"dev_login": true, "providers": ["sandbox"]}));
    for bad in [json!(""), json!("two words"), json!("x".repeat(65)), json!(7), Value::Null] {
        let login = shop.post("/api/v1/dev/login").json(json!({"user_id": bad}));
        login.send().await.is_refused(422, "invalid", Some("user_id"));
    }
}

#[tokio::test]
async fn a_plan_that_makes_no_sense_is_refused_with_its_field() {
    let shop = Shop::open().await;
    let item = || json!({"name": "phone", "price": 100, "stock": 5});
    let plan = |items: Value| json!({"name": "sale", "opens_at": OPENS_MS, "closes_at": CLOSES_MS, "items": items});
    let with = |name: &str, value: Value| {
        let mut item = item();
        item[name] = value;
        plan(json!([item]))
    };
    let create = |body: Value| shop.admin(Method::POST, "/admin/activities").json(body).send();
    let mut backwards = plan(json!([item()]));
    backwards["closes_at"] = json!(OPENS_MS - 1);
    create(backwards).await.is_refused(422, "invalid", Some("closes_at"));
    let mut extra = plan(json!([item()]));
    extra["colour"] = json!("red");
    create(extra).await.is_refused(422, "invalid", Some("colour"));
    for (body, field) in [
        (plan(json!([])), "items"),
        (with("stock", json!(0)), "items[0].stock"),
        (with("stock", json!("many")), "items[0].stock"),
        (with("stock", json!(1.5)), "items[0].stock"),
        (with("price", json!(-1)), "items[0].price"),
        (with("currency", json!("yuan")), "items[0].currency"),
        (with("limit_per_user", json!(0)), "items[0].limit_per_user"),
        (with("shards", json!(0)), "items[0].shards"),
        (with("image_url", json!("javascript:alert(1)")), "items[0].image_url"),
        (with("colour", json!("red")), "items[0].colour"),
        (plan(json!([{"name": "phone", "stock": 5}])), "items[0].price"),
        (plan(json!([item(), {"name": "", "price": 1, "stock": 1}])), "items[1].name"),
        (json!({"name": "sale"}), "opens_at"),
    ] {
        create(body).await.is_refused(422, "invalid", Some(field));
    }
    assert_eq!(
        shop.admin(Method::GET, "/admin/activities").send().await.is(200)["activities"],
        json!([])
    );

    let made = create(plan(json!([item()]))).await.is(201);
    assert_eq!((&made["state"], &made["pay_within_ms"]), (&json!("draft"), &json!(1_800_000)));
    assert_eq!(made["items"][0]["currency"], "CNY");
    let id = made["id"].as_i64().unwrap();
    shop.move_to(id, "warm").await.is_refused(409, "conflict", None);
    shop.move_to(id, "resume").await.is_refused(409, "conflict", None);
    shop.move_to(id, "publish").await.is(200);
    shop.move_to(id, "publish").await.is(200);
    shop.move_to(999, "publish").await.is_refused(404, "not_found", None);
}

#[tokio::test]
async fn a_time_is_milliseconds_or_says_its_offset_and_is_refused_with_the_reason() {
    let shop = Shop::open().await;
    let create = |opens_at: Value, closes_at: Value, language: &'static str| {
        let body = json!({"name": "sale", "opens_at": opens_at, "closes_at": closes_at,
            "items": [{"name": "phone", "price": 100, "stock": 5}]});
        let asked = shop.admin(Method::POST, "/admin/activities");
        asked.header("accept-language", language).json(body).send()
    };
    let later = json!("2027-01-15T17:00:00+08:00");
    for (opens_at, closes_at, field, en, zh) in [
        (json!(OPENS_MS / 1_000), later.clone(), "opens_at", "not in seconds", "而不是秒"),
        (json!(OPENS_MS * 1_000), later.clone(), "opens_at", "micro-", "微秒"),
        (json!("2027-01-15T17:00:00"), later.clone(), "opens_at", "offset", "时区"),
        (json!("2027-02-30T17:00:00Z"), later.clone(), "opens_at", "does not exist", "不存在"),
        (json!("soon"), later.clone(), "opens_at", "ISO 8601", "ISO 8601"),
        (json!(NOW_MS - 9), json!(NOW_MS - 1), "closes_at", "is over", "已经过去"),
        (json!(NOW_MS - 9), json!(NOW_MS), "closes_at", "is over", "已经过去"),
        (later.clone(), json!(OPENS_MS), "closes_at", "after opens_at", "必须晚于"),
    ] {
        for (language, words) in [("en", en), ("zh-CN", zh)] {
            let refused = create(opens_at.clone(), closes_at.clone(), language).await;
            refused.is_refused(422, "invalid", Some(field));
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains(words), "{opens_at}: {detail}");
        }
    }
    let made = create(json!("2027-01-15 16:00:01.5+08:00"), later, "en").await.is(201);
    assert_eq!(
        (&made["opens_at"], &made["closes_at"]),
        (&json!(NOW_MS + 1_500), &json!(NOW_MS + 3_600_000))
    );

    // A draft whose window passed by is not published to end at once.
    shop.clock.set(NOW_MS + 3_600_000);
    let id = made["id"].as_i64().unwrap();
    shop.move_to(id, "publish").await.is_refused(422, "invalid", Some("closes_at"));
    let path = format!("/admin/activities/{id}");
    assert_eq!(shop.admin(Method::GET, &path).send().await.is(200)["state"], "draft");

    for (query, field) in [("from=1800000000", "from"), ("to=2027-01-15T17:00:00", "to")] {
        let found = shop.admin(Method::GET, &format!("/admin/orders?{query}")).send().await;
        found.is_refused(422, "invalid", Some(field));
    }
    let span = "from=2027-01-15T08:00:00Z&to=2027-01-15T17:00:00+08:00";
    shop.admin(Method::GET, &format!("/admin/orders?{span}")).send().await.is(200);
}

#[tokio::test]
async fn a_draft_is_edited_with_its_items_by_one_at_a_time() {
    let shop = Shop::open().await;
    let plan = json!({"name": "sale", "opens_at": OPENS_MS, "closes_at": CLOSES_MS,
        "publish_at": "2027-01-15T16:00:00.500+08:00",
        "items": [{"name": "phone", "price": 100, "stock": 5, "origin_price": 200},
            {"name": "case", "price": 10, "stock": 50}]});
    let made = shop.admin(Method::POST, "/admin/activities").json(plan).send().await.is(201);
    assert_eq!(made["publish_at"], NOW_MS + 500);
    let id = made["id"].as_i64().unwrap();
    let path = format!("/admin/activities/{id}");
    let edit = |body: Value| shop.admin(Method::PATCH, &path).json(body).send();
    let (phone, case) = (&made["items"][0]["id"], &made["items"][1]["id"]);

    edit(json!({"name": "x"})).await.is_refused(422, "invalid", Some("version"));
    let seen = &made["version"];
    for (change, field) in [
        (json!({"opens_at": CLOSES_MS}), "closes_at"),
        (json!({"closes_at": OPENS_MS / 1_000}), "closes_at"),
        (json!({"publish_at": CLOSES_MS}), "publish_at"),
        (json!({"publish_at": NOW_MS}), "publish_at"),
        (json!({"items": []}), "items"),
        (json!({"items": [{"id": 999}]}), "items[0].id"),
        (json!({"items": [{"id": phone}, {"id": phone}]}), "items[1].id"),
        (json!({"items": [{"name": "new", "price": 1}]}), "items[0].stock"),
        (json!({"items": [{"id": phone, "stock": 0}]}), "items[0].stock"),
        (json!({"items": [{"id": phone, "colour": 1}]}), "items[0].colour"),
        (json!({"opens": 1}), "opens"),
    ] {
        let mut body = change;
        body["version"] = seen.clone();
        edit(body).await.is_refused(422, "invalid", Some(field));
    }
    let change = json!({"version": seen, "name": "later", "publish_at": null,
        "items": [{"id": phone, "stock": 7, "origin_price": null}, {"name": "box", "price": 3, "stock": 4}]});
    let now = edit(change.clone()).await.is(200);
    assert_eq!((&now["name"], &now["publish_at"]), (&json!("later"), &Value::Null));
    let items = &now["items"];
    assert_eq!((&items[0]["stock"], &items[0]["price"]), (&json!(7), &json!(100)));
    assert_eq!((&items[0]["origin_price"], &items[1]["name"]), (&Value::Null, &json!("box")));
    shop.admin(Method::GET, &format!("/admin/items/{case}")).send().await.is_refused(
        404,
        "not_found",
        None,
    );

    // Somebody who has not seen that overwrites nothing, and is told what is true.
    let late = edit(change).await;
    late.is_refused(409, "conflict", None);
    assert_eq!((&late.json()["version"], &late.json()["activity"]), (&now["version"], &now));

    // Published and awaited: its window may be moved, and nothing else.
    shop.move_to(id, "publish").await.is(200);
    let seen = shop.admin(Method::GET, &path).send().await.is(200)["version"].clone();
    assert!(seen.as_i64() > now["version"].as_i64());
    edit(json!({"version": seen, "name": "x"})).await.is_refused(422, "invalid", Some("name"));
    edit(json!({"version": seen, "opens_at": NOW_MS})).await.is_refused(
        422,
        "invalid",
        Some("opens_at"),
    );
    let moved = edit(json!({"version": seen, "opens_at": OPENS_MS + 9})).await.is(200);
    assert_eq!(moved["opens_at"], OPENS_MS + 9);
    let shown = shop.get(&format!("/api/v1/activities/{id}")).send().await.is(200);
    assert_eq!(shown["opens_at"], OPENS_MS + 9);
    shop.clock.set(OPENS_MS + 9);
    let open = edit(json!({"version": moved["version"], "closes_at": CLOSES_MS + 9})).await;
    open.is_refused(409, "conflict", None);
    assert_eq!(open.json()["state"], "open");
    shop.move_to(id, "end").await.is(200);
    let seen = shop.admin(Method::GET, &path).send().await.is(200)["version"].clone();
    edit(json!({"version": seen, "name": "x"})).await.is_refused(409, "conflict", None);
    let actions = shop.admin(Method::GET, "/admin/audit").send().await.is(200).to_string();
    assert!(actions.contains("activity.edit") && actions.contains("activity.postpone"));
}

#[tokio::test]
async fn stock_cannot_be_lowered_below_what_is_sold() {
    let shop = Shop::open().await;
    let (_, item) = shop.stage(3, 1).await;
    shop.clock.set(OPENS_MS);
    let order_no = shop.buy("ann", item).await;
    shop.settled("ann", &order_no).await;
    let adjust = |delta: Value| {
        let path = format!("/admin/items/{item}/stock");
        shop.admin(Method::POST, &path).json(json!({"delta": delta})).send()
    };
    for bad in [json!(-3), json!(0), json!("1"), json!(i64::MAX), json!(i64::MIN), json!(1e30)] {
        adjust(bad).await.is_refused(422, "invalid", Some("delta"));
    }
    assert_eq!(shop.left(item), 2);
    assert_eq!(adjust(json!(-2)).await.is(200), json!({"before": 2, "after": 0}));
    assert_eq!(shop.left(item), 0);
    let log =
        shop.admin(Method::GET, &format!("/admin/items/{item}/stock-log")).send().await.is(200);
    let kinds: Vec<_> =
        log["rows"].as_array().unwrap().iter().map(|row| row["type"].clone()).collect();
    assert_eq!(kinds, ["deduct", "adjust"]);
    let sides = shop.admin(Method::GET, &format!("/admin/items/{item}")).send().await.is(200);
    assert_eq!(
        (&sides["item"]["total"], &sides["gate"]["left"], &sides["gate"]["marks"]),
        (&json!(1), &json!(0), &json!(1))
    );
    shop.admin(Method::GET, "/admin/items/999").send().await.is_refused(404, "not_found", None);
    shop.admin(Method::GET, "/admin/items/999/stock-log").send().await.is_refused(
        404,
        "not_found",
        None,
    );
}

#[tokio::test]
async fn each_role_may_do_its_part_and_no_more() {
    let shop = Shop::open().await;
    let (activity, item) = shop.stage(3, 1).await;
    let mut tokens = Vec::new();
    for role in ["viewer", "operator"] {
        let new = json!({"name": role, "role": role});
        let made = shop.admin(Method::POST, "/admin/tokens").json(new).send().await.is(201);
        tokens.push(made["token"].as_str().unwrap().to_owned());
    }
    let [viewer, operator] = &tokens[..] else { unreachable!() };
    let read = [
        "/admin/activities",
        "/admin/orders",
        "/admin/dead-letters",
        "/admin/reconcile",
        "/admin/audit",
        "/admin/overview",
    ];
    for path in read {
        shop.get(path).send().await.is_refused(401, "unauthorized", None);
        shop.get(path).bearer("sk_admin_wrong").send().await.is_refused(401, "unauthorized", None);
        shop.get(path).bearer(&shop.jwt("ann")).send().await.is_refused(401, "unauthorized", None);
        shop.get(path).bearer(viewer).send().await.is(200);
    }
    let warm = format!("/admin/items/{item}/warm?anew=true");
    let pause = format!("/admin/activities/{activity}/pause");
    let resume = format!("/admin/activities/{activity}/resume");
    for path in [warm.as_str(), &pause, &resume, "/admin/reconcile?heal=true"] {
        shop.post(path).bearer(viewer).send().await.is_refused(403, "forbidden", None);
        shop.post(path).bearer(operator).send().await.is(200);
    }
    // The role is judged before the body is.
    let stock = shop.post(&format!("/admin/items/{item}/stock")).bearer(viewer).raw("nonsense");
    stock.send().await.is_refused(403, "forbidden", None);
    assert_eq!(shop.left(item), 3);
    for token in [viewer, operator] {
        let refund = shop.post("/admin/orders/SK0000000000000000001/refund").bearer(token);
        refund.send().await.is_refused(403, "forbidden", None);
        shop.get("/admin/tokens").bearer(token).send().await.is_refused(403, "forbidden", None);
    }
    let refund = shop.admin(Method::POST, "/admin/orders/SK0000000000000000001/refund");
    refund.send().await.is_refused(404, "not_found", None);

    let again = json!({"name": "viewer", "role": "admin"});
    let again = shop.admin(Method::POST, "/admin/tokens").json(again);
    again.send().await.is_refused(409, "conflict", None);
    let listed = shop.admin(Method::GET, "/admin/tokens").send().await;
    assert!(!listed.text.contains("sk_admin_"), "{}", listed.text);
    shop.admin(Method::DELETE, "/admin/tokens/root").send().await.is_refused(409, "conflict", None);
    shop.admin(Method::DELETE, "/admin/tokens/nobody").send().await.is_refused(
        404,
        "not_found",
        None,
    );
    shop.admin(Method::DELETE, "/admin/tokens/viewer").send().await.is(204);
    // The audit knows somebody by that name: nobody else gets it.
    let reused = json!({"name": "viewer", "role": "viewer"});
    let reused = shop.admin(Method::POST, "/admin/tokens").json(reused).send().await;
    assert_eq!(reused.is_refused(409, "conflict", None).json()["state"], "revoked");
    shop.get("/admin/overview").bearer(viewer).send().await.is_refused(401, "unauthorized", None);

    let audit = shop.admin(Method::GET, "/admin/audit").send().await.is(200);
    let entries = audit["entries"].as_array().unwrap().iter();
    let done: Vec<_> = entries
        .map(|e| format!("{} {}", e["who"].as_str().unwrap(), e["action"].as_str().unwrap()))
        .collect();
    for deed in [
        "root activity.create",
        "root activity.publish",
        "operator activity.pause",
        "operator item.warm",
        "operator reconcile.run",
        "root token.create",
        "root token.revoke",
    ] {
        assert!(done.iter().any(|entry| entry == deed), "{deed} is not in {done:?}");
    }
}

#[tokio::test]
async fn the_audit_says_what_was_done() {
    let shop = Shop::open().await;
    let plan = json!({"name": "sale", "opens_at": OPENS_MS, "closes_at": CLOSES_MS,
        "items": [{"name": "iPhone", "price": 1, "stock": 1}]});
    let made = shop.admin(Method::POST, "/admin/activities").json(plan).send().await.is(201);
    shop.move_to(made["id"].as_i64().unwrap(), "end").await.is(200);
    let audit = shop.admin(Method::GET, "/admin/audit").send().await.is(200);
    assert_eq!(audit["entries"][0]["action"], "activity.end", "a draft that is given up");
}

#[tokio::test]
async fn operators_search_and_export_orders() {
    let shop = Shop::open().await;
    let (activity, item) = shop.stage(5, 1).await;
    shop.clock.set(OPENS_MS);
    let mut numbers = Vec::new();
    for user in ["ann", "=cmd|'/C calc'!A0", "bob,\"x\""] {
        let token = shop.sale_token(&user.replace(' ', "_"), item);
        let ask = shop.post(&format!("/items/{item}/claims")).header("x-sale-token", token);
        let admitted = ask.json(json!({"quantity": 1})).send().await.is(202);
        let no = admitted["order_no"].as_str().unwrap().to_owned();
        shop.settled(&user.replace(' ', "_"), &no).await;
        numbers.push(no);
    }
    let search = |query: String| shop.admin(Method::GET, &format!("/admin/orders?{query}")).send();
    let found = search(format!("user_id=ann&item_id={item}&activity_id={activity}&status=unpaid"))
        .await
        .is(200);
    assert_eq!(
        (&found["orders"][0]["order_no"], &found["orders"][0]["user_id"]),
        (&json!(numbers[0]), &json!("ann"))
    );
    assert_eq!(search(format!("from={}", OPENS_MS + 1)).await.is(200)["orders"], json!([]));
    let page = search("limit=2".into()).await.is(200);
    assert_eq!(page["next"], json!(numbers[1]));
    for (query, field) in [
        ("status=queued", "status"),
        ("status=lost", "status"),
        ("item_id=x", "item_id"),
        ("user=ann", "user"),
        ("limit=0", "limit"),
        ("format=xml", "format"),
    ] {
        search(query.into()).await.is_refused(422, "invalid", Some(field));
    }
    let accepted =
        shop.admin(Method::GET, "/admin/orders").header("accept", "text/csv").send().await;
    let table = search("format=csv".into()).await;
    assert_eq!(accepted.text, table.text);
    assert!(table.headers["content-type"].to_str().unwrap().starts_with("text/csv"));
    let lines: Vec<_> = table.text.split("\r\n").collect();
    assert!(lines[0].starts_with("order_no,user_id,"), "{}", table.text);
    assert_eq!(lines.len(), 5, "{}", table.text);
    assert!(lines[1].contains(r#","bob,""x""","#), "{}", lines[1]);
    assert!(lines[2].contains(r#","'=cmd|"#), "{}", lines[2]);

    let whole =
        shop.admin(Method::GET, &format!("/admin/orders/{}", numbers[0])).send().await.is(200);
    assert_eq!((&whole["order"]["status"], &whole["payments"]), (&json!("unpaid"), &json!([])));
    let refund = shop.admin(Method::POST, &format!("/admin/orders/{}/refund", numbers[0]));
    let refused = refund.send().await;
    refused.is_refused(409, "conflict", None);
    assert_eq!(refused.json()["state"], "unpaid");

    let overview = shop.admin(Method::GET, "/admin/overview").send().await.is(200);
    assert_eq!(overview["claims"], json!({"asked": 3, "admitted": 3}));
    let live = &overview["items"][0];
    assert_eq!(
        (&live["gate_left"], &live["ledger_stock"], &live["total"]),
        (&json!(2), &json!(2), &json!(5))
    );
    let report = shop.admin(Method::POST, "/admin/reconcile").send().await.is(200);
    assert_eq!(report["left"], 0);
    let letters = shop.admin(Method::GET, "/admin/dead-letters?state=dead").send().await.is(200);
    assert_eq!(letters["dead_letters"], json!([]));
    for verb in ["replay", "void"] {
        let path = format!("/admin/dead-letters/{}/{verb}", numbers[0]);
        shop.admin(Method::POST, &path).send().await.is_refused(404, "not_found", None);
    }
}

#[tokio::test]
async fn operators_find_a_claim_wherever_it_is_and_cancel_what_is_unpaid() {
    let shop = Shop::open().await;
    let (activity, item) = shop.stage(5, 1).await;
    shop.clock.set(OPENS_MS);
    let unpaid = shop.buy("ann", item).await;
    shop.settled("ann", &unpaid).await;
    let engine = &shop.app.engine;
    engine.workers.as_ref().unwrap().stop().await;
    let queued = shop.buy("bob", item).await;
    let claim = Claim {
        order_no: engine.numbers.next(),
        item: ItemId(item),
        user: "bob".parse().unwrap(),
        quantity: 1,
        epoch: 1,
        claimed_ms: OPENS_MS,
        key: None,
    };
    let dead = claim.order_no.to_string();
    let failed = FailedClaim { claim, tries: 16, next_try_ms: None, cause: "poison".into() };
    engine.ledger.defer(&[failed]).await.unwrap();

    let search = |query: String| shop.admin(Method::GET, &format!("/admin/orders?{query}")).send();
    let found = async |query: String| -> Vec<(String, String, Value)> {
        let found = search(query).await.is(200)["orders"].clone();
        let word = |order: &Value, name: &str| order[name].as_str().unwrap().to_owned();
        let orders = found.as_array().unwrap().iter();
        orders
            .map(|order| (word(order, "order_no"), word(order, "status"), order["failed"].clone()))
            .collect()
    };
    let told = |no: &String, status: &str, failed: Value| (no.clone(), status.to_owned(), failed);
    let bobs = [told(&dead, "queued", json!("dead")), told(&queued, "queued", Value::Null)];
    assert_eq!(found("user_id=bob".into()).await, bobs);
    assert_eq!(found("user_id=bob&status=queued&limit=1".into()).await, bobs[..1]);
    assert_eq!(found(format!("user_id=bob&before={dead}")).await, bobs[1..]);
    assert_eq!(found(format!("user_id=bob&activity_id={activity}&item_id={item}")).await, bobs);
    for nothing in ["status=unpaid", "activity_id=99", "item_id=99", "paid_from=1800000000000"] {
        assert_eq!(found(format!("user_id=bob&{nothing}")).await, [], "{nothing}");
    }
    assert_eq!(found(format!("order_no={queued}")).await, bobs[1..]);
    assert_eq!(found(format!("order_no={dead}")).await, bobs[..1]);
    assert_eq!(found(format!("order_no={unpaid}")).await, [told(&unpaid, "unpaid", Value::Null)]);
    assert_eq!(found(format!("order_no={}", engine.numbers.next())).await, []);
    let both = search(format!("order_no={unpaid}&user_id=ann")).await;
    both.is_refused(422, "invalid", Some("order_no"));
    search("status=queued".into()).await.is_refused(422, "invalid", Some("status"));
    let whole = shop.admin(Method::GET, &format!("/admin/orders/{queued}")).send().await.is(200);
    assert_eq!(
        (&whole["order"]["status"], &whole["order"]["user_id"]),
        (&json!("queued"), &json!("bob"))
    );

    let letters = async |query: String| {
        let asked = shop.admin(Method::GET, &format!("/admin/dead-letters?{query}"));
        asked.send().await.is(200)["dead_letters"].as_array().unwrap().len()
    };
    assert_eq!(letters("user_id=bob".into()).await, 1);
    assert_eq!(letters("user_id=bob&state=retrying".into()).await, 0);
    assert_eq!(letters("user_id=ann".into()).await, 0);
    assert_eq!(letters(format!("order_no={dead}")).await, 1);
    assert_eq!(letters(format!("order_no={queued}")).await, 0);

    let cancel = |no: &str| shop.admin(Method::POST, &format!("/admin/orders/{no}/cancel")).send();
    let waits = cancel(&queued).await;
    waits.is_refused(409, "conflict", None);
    assert_eq!(waits.json()["state"], "queued");
    cancel(&engine.numbers.next().to_string()).await.is_refused(404, "not_found", None);
    for _ in 0..2 {
        let closed = cancel(&unpaid).await.is(200);
        assert_eq!(
            (&closed["order"]["status"], &closed["order"]["reason"]),
            (&json!("closed"), &json!("cancelled"))
        );
    }
    let audit = shop.admin(Method::GET, "/admin/audit?limit=2").send().await.is(200);
    assert_eq!(audit["entries"][1]["action"], "order.cancel");
    assert_eq!(audit["entries"][0]["detail"], json!({"repeated": true}));
}

#[tokio::test]
async fn operators_see_what_a_sale_came_to_and_who_was_paid_how() {
    let shop = Shop::open().await;
    let (activity, item) = shop.stage(9, 2).await;
    shop.clock.set(OPENS_MS);
    let engine = &shop.app.engine;
    let mut orders = Vec::new();
    for (user, txn, paid_ms) in [
        ("ann", Some("42001"), OPENS_MS + 10),
        ("bob", Some("=1+1"), OPENS_MS + 20),
        ("eve", None, 0),
    ] {
        let no = shop.buy(user, item).await;
        shop.settled(user, &no).await;
        let order_no = no.parse().unwrap();
        if let Some(txn) = txn {
            let amount = engine.ledger.order(order_no).await.unwrap().unwrap().amount;
            let (provider, provider_txn) = ("wechat".into(), txn.into());
            let notice = PaymentNotice { provider, provider_txn, order_no, amount, paid_ms };
            engine.ledger.credit(&notice, OPENS_MS).await.unwrap();
        }
        orders.push(no);
    }
    shop.admin(Method::POST, &format!("/admin/orders/{}/refund", orders[1])).send().await.is(200);
    shop.move_to(activity, "end").await.is(200);

    let path = format!("/admin/activities/{activity}/totals");
    let totals = shop.admin(Method::GET, &path).send().await.is(200);
    assert_eq!((&totals["state"], &totals["counted_at"]), (&json!("ended"), &json!(OPENS_MS)));
    let (of_item, of_all) = (&totals["items"][0], &totals["currencies"][0]);
    let price = of_item["revenue"].as_i64().unwrap();
    assert_eq!((&of_item["units_sold"], price), (&json!(1), 699_900));
    assert_eq!(of_item["refunding"], price);
    assert_eq!(of_item["orders"]["unpaid"], json!({"orders": 1, "units": 1, "amount": price}));
    assert_eq!(of_item["orders"]["void"]["orders"], 0);
    assert_eq!((&of_all["currency"], &of_all["revenue"]), (&json!("CNY"), &json!(price)));
    shop.admin(Method::GET, "/admin/activities/99/totals").send().await.is_refused(
        404,
        "not_found",
        None,
    );

    let table = async |query: &str| {
        let path = format!("/admin/orders?format=csv&{query}");
        shop.admin(Method::GET, &path).send().await.text
    };
    let all = table("").await;
    let lines: Vec<_> = all.split("\r\n").collect();
    assert!(lines[0].ends_with(",provider,provider_txn"), "{all}");
    assert!(lines[1].starts_with(&orders[2]) && lines[1].ends_with(",,"), "{all}");
    assert!(lines[2].ends_with(r#",wechat,"'=1+1""#), "{all}");
    assert!(lines[3].ends_with(",wechat,42001"), "{all}");
    // By when it was paid, the latest first.
    let paid =
        table(&format!("paid_from={}&paid_to=2027-01-15T08:00:01.021Z", OPENS_MS + 10)).await;
    let numbers: Vec<_> =
        paid.split("\r\n").skip(1).map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(numbers, [&orders[1], &orders[0], ""]);
    let page = shop
        .admin(Method::GET, &format!("/admin/orders?paid_from={}&limit=1", OPENS_MS))
        .send()
        .await
        .is(200);
    assert_eq!(page["next"], json!(orders[1]));
    let rest = format!("/admin/orders?paid_from={}&before={}", OPENS_MS, orders[1]);
    let rest = shop.admin(Method::GET, &rest).send().await.is(200);
    assert_eq!(rest["orders"][0]["order_no"], json!(orders[0]));
}

#[tokio::test]
async fn a_stream_begins_with_what_is_true_and_ends_with_the_server() {
    let shop = Shop::open_with(|config| config.push.streams_per_user_max = 1).await;
    let (_, item) = shop.stage(5, 1).await;
    shop.clock.set(OPENS_MS);
    let order_no = shop.buy("ann", item).await;
    shop.settled("ann", &order_no).await;
    let jwt = shop.jwt("ann");
    let response = shop.get("/api/v1/events").bearer(&jwt).response().await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut events = response.into_body().into_data_stream();
    let first = String::from_utf8(events.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(first.starts_with("event: order\ndata: {"), "{first}");
    assert!(first.contains(&order_no) && first.contains(r#""status":"unpaid""#), "{first}");
    let second = shop.get("/api/v1/events").bearer(&jwt).send().await;
    second.is_refused(429, "rate_limited", None);
    assert_eq!(second.headers["retry-after"], "30");

    shop.post(&format!("/orders/{order_no}/cancel")).bearer(&jwt).send().await.is(200);
    shop.app.engine.news.tell(&[(order_no.parse().unwrap(), "ann".parse().unwrap())]);
    let news = String::from_utf8(events.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(news.contains(r#""status":"closed""#), "{news}");
    shop.app.engine.news.close();
    assert!(events.next().await.is_none());
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
            order_no: engine.numbers.next(),
            item: ItemId(item),
            user: "ann".parse().unwrap(),
            quantity: 1,
            epoch: 1,
            claimed_ms: OPENS_MS,
            key: None,
        };
        failed.push(FailedClaim { claim, tries: 1, next_try_ms, cause: "poison".into() });
    }
    engine.ledger.defer(&failed).await.unwrap();
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

#[tokio::test]
async fn machines_are_told_how_it_is() {
    let shop = Shop::open().await;
    assert_eq!(shop.get("/healthz").send().await.is(200)["status"], "ok");
    let ready = shop.get("/readyz").send().await.is(200);
    let parts = json!({"sell": "ok", "settle": "ok", "show": "ok", "gate": "ok", "lanes": "ok",
        "numbers": "ok", "ledger": "ok", "workers": "ok", "log": "ok", "jobs": "ok",
        "catalogue": "ok", "alerts": "not_set", "since": {"gate": NOW_MS, "ledger": NOW_MS}});
    assert_eq!(ready, parts);
    for what in ["sell", "settle", "show"] {
        assert_eq!(shop.get(&format!("/readyz/{what}")).send().await.is(200), parts);
    }
    // Without workers claims are admitted and wait: no reason to send buyers elsewhere.
    shop.app.engine.workers.as_ref().unwrap().stop().await;
    assert_eq!(shop.get("/readyz").send().await.is(200)["workers"], "down");
    let down = shop.get("/readyz/settle").send().await;
    assert_eq!(down.is_refused(503, "busy", None).json()["workers"], "down");
    assert_eq!((&down.json()["settle"], &down.json()["sell"]), (&json!("down"), &json!("ok")));
    shop.app.engine.lanes.stop().await;
    let down = shop.get("/readyz").send().await;
    assert_eq!(down.is_refused(503, "busy", None).json()["lanes"], "down");
    shop.get("/readyz/sell").send().await.is_refused(503, "busy", None);
    shop.get("/readyz/show").send().await.is(200);
    assert_eq!(shop.get("/metrics").send().await.status, 200);
    let document = shop.get("/openapi.json").send().await.is(200);
    assert_eq!(document["info"]["title"], "Seckill");
    assert_eq!(shop.get("/").send().await.status, 200);
}

/// What the numbers cost follows what is on sale, not what a shop has ever sold.
#[tokio::test]
async fn the_numbers_of_items_are_bounded_and_those_of_the_past_are_gone() {
    let shop = Shop::open().await;
    let (activity, item) = shop.stage(10, 1).await;
    let engine = &shop.app.engine;
    let on_sale = engine.ledger.activity(sale::ActivityId(activity)).await.unwrap().unwrap();
    let copies = |first: i64, count: i64, state| {
        let mut activity = on_sale.clone();
        let copy = |n| sale::Item { id: ItemId(first + n), ..on_sale.items[0].clone() };
        (activity.items, activity.state) = ((0..count).map(copy).collect(), state);
        activity
    };
    use sale::ActivityState::{Ended, Published};
    let known = [copies(1_000, 1_100, Published), copies(50_000, 7, Ended), on_sale.clone()];
    engine.catalogue.show(known.into(), NOW_MS);
    let text = shop.get("/metrics").send().await.text;
    let series = |name: &str| {
        let start = format!("{name}{{");
        text.lines().filter(|line| line.starts_with(&start)).collect::<Vec<_>>()
    };
    let totals = series("seckill_item_units");
    assert_eq!(totals.len(), 1_000);
    // Those at the gate come first.
    assert_eq!(
        totals[0],
        format!("seckill_item_units{{item=\"{item}\",activity=\"{activity}\"}} 10")
    );
    assert!(!totals.iter().any(|line| line.contains("item=\"50")), "what is over is gone");
    let left = format!("seckill_item_units_left{{item=\"{item}\",activity=\"{activity}\"}} 10");
    assert_eq!(series("seckill_item_units_left"), [left], "the others are not at the gate");
    assert!(text.contains("\nseckill_items_left_out 101\n"));
}

#[tokio::test]
async fn an_operators_body_may_be_longer_than_a_buyers_and_both_have_an_end() {
    let shop = Shop::open().await;
    let plan = |items: usize| {
        let item = json!({"name": "x".repeat(200), "price": 1, "stock": 1});
        json!({"name": "sale", "opens_at": OPENS_MS, "closes_at": CLOSES_MS, "items": vec![item; items]})
    };
    let create = |items| shop.admin(Method::POST, "/admin/activities").json(plan(items)).send();
    create(200).await.is(201);
    create(10_000).await.is_refused(413, "too_large", None);
    let long = vec![b' '; 20_000];
    let login = shop.post("/api/v1/dev/login").raw(long.clone());
    login.send().await.is_refused(413, "too_large", None);
    let notice = shop.post("/api/v1/payments/sandbox/notify").raw(long);
    notice.send().await.is_refused(413, "too_large", None);
}

/// Everything the document says exists, and nothing else under the same paths.
#[tokio::test]
async fn the_document_and_the_routes_agree() {
    let shop = Shop::open().await;
    let document: Value = serde_json::from_slice(&super::openapi::served()).unwrap();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let filled = path.replace("{id}", "1").replace("{no}", "SK0000000000000000001");
        let filled = filled.replace("{txn}", "x").replace("{provider}", "x").replace("{name}", "x");
        assert!(!filled.contains('{'), "{path}: give the test a value for it");
        let mut methods: Vec<String> =
            operations.as_object().unwrap().keys().map(|m| m.to_uppercase()).collect();
        if methods.iter().any(|method| method == "GET") {
            methods.push("HEAD".into());
        }
        for method in &methods {
            let router = super::router(shop.app.clone());
            let request = http::Request::builder().method(method.as_str()).uri(&filled);
            let request = request.body(axum::body::Body::empty()).unwrap();
            let response = tower::ServiceExt::oneshot(router, request).await.unwrap();
            // A handler that does not find something says so with a problem; the router is silent.
            let by_handler = response.extensions().get::<crate::problem::Problem>().is_some();
            let missing = matches!(response.status().as_u16(), 404 | 405);
            assert!(!missing || by_handler, "{method} {path} is not routed");
        }
        let wrong = shop.ask(Method::TRACE, &filled).send().await;
        wrong.is_refused(405, "method_not_allowed", None);
        let mut allowed: Vec<_> =
            wrong.headers["allow"].to_str().unwrap().split(',').map(str::to_owned).collect();
        allowed.sort();
        methods.sort();
        assert_eq!(allowed, methods, "{path} has a method that is not documented");
    }
    // Routes come into the table with their description or not at all.
    assert!(!include_str!("mod.rs").contains(".route(\""));
}

#[test]
fn every_operation_is_described() {
    let document: Value = serde_json::from_slice(&super::openapi::served()).unwrap();
    let tags: Vec<_> =
        document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
    let mut ids = std::collections::HashSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let at = format!("{method} {path}");
            assert!(ids.insert(&operation["operationId"]), "{at}: its id is another's");
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(
                    response["description"] != "" && response["description"].is_string(),
                    "{at} {status}"
                );
            }
            assert!(operation["summary"].is_string(), "{at} has no summary");
            assert!(tags.contains(&&operation["tags"][0]), "{at} has no tag");
            // Whatever is answered is listed by its status.
            assert!(operation["responses"]["default"].is_null(), "{at}");
            assert!(operation["responses"]["503"].is_object(), "{at}");
            assert_eq!(
                operation["security"].is_array(),
                ["buyer", "admin"].contains(&operation["tags"][0].as_str().unwrap()),
                "{at}"
            );
        }
    }
}

/// The document is part of the repository, so that a change of the API is seen in a review.
/// `UPDATE_SNAPSHOTS=1 cargo test -p server` writes it.
#[test]
fn the_document_in_the_repository_is_this_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let served = String::from_utf8(super::openapi::served().to_vec()).unwrap() + "\n";
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).unwrap();
        std::fs::write(path, &served).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == served,
        "docs/openapi.json is out of date: set UPDATE_SNAPSHOTS=1 and look at the difference"
    );
}

#[tokio::test]
async fn what_is_personal_is_stored_nowhere_and_nothing_is_taken_for_another_kind() {
    let shop = Shop::open().await;
    let (_, item) = shop.stage(5, 1).await;
    shop.clock.set(OPENS_MS);
    let no = shop.buy("ann", item).await;
    shop.settled("ann", &no).await;
    let ann = shop.jwt("ann");
    let opened = shop.post(&format!("/orders/{no}/payments")).bearer(&ann);
    let opened = opened.json(json!({"provider": "sandbox"})).send().await;
    let cashier = format!("{BASE}{}", opened.json()["payment_url"].as_str().unwrap());
    let mut heard = vec![("payments".to_owned(), opened)];
    for path in ["/orders".to_owned(), format!("/orders/{no}")] {
        heard.push((path.clone(), shop.get(&path).bearer(&ann).send().await));
    }
    for path in ["/activities", "/orders", "/overview", "/audit", "/tokens", "/dead-letters"] {
        let answer = shop.admin(Method::GET, &format!("/admin{path}")).send().await;
        heard.push((path.into(), answer));
    }
    let csv = shop.admin(Method::GET, "/admin/orders?format=csv").send().await;
    let token = shop.post(&format!("/items/{item}/token")).bearer(&ann).send().await;
    let login = shop.post("/api/v1/dev/login").json(json!({"user_id": "bob"})).send().await;
    let claim = shop.claim("bob", item).json(json!({"quantity": 1})).send().await;
    let receipt = json!({"receipt": claim.json()["receipt"]});
    let receipt = shop.post("/api/v1/receipts").bearer(&shop.jwt("bob")).json(receipt).send().await;
    let at_cashier = shop.get(&cashier).send().await;
    let metrics = shop.get("/metrics").send().await;
    let time = shop.get("/api/v1/time").send().await;
    let nowhere = shop.get("/nowhere").send().await;
    for (what, answer) in [
        ("csv", csv),
        ("sale token", token),
        ("login", login),
        ("claim", claim),
        ("receipt", receipt),
        ("cashier", at_cashier),
        ("metrics", metrics),
        ("time", time),
        ("nowhere", nowhere),
    ] {
        heard.push((what.into(), answer));
    }
    let mut ids = std::collections::HashSet::new();
    for (what, answer) in heard {
        assert!(answer.status < 300 || what == "nowhere", "{what}: {}", answer.text);
        assert_eq!(answer.headers["cache-control"], "no-store", "{what}");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff", "{what}");
        assert!(ids.insert(answer.headers["x-request-id"].clone()), "{what}");
    }
    // What anybody may see may be kept, and is what it says as well.
    for (path, caching) in [
        ("/api/v1/activities", "public, max-age=1"),
        ("/", "no-cache"),
        ("/openapi.json", "public, max-age=60"),
    ] {
        let answer = shop.get(path).send().await;
        assert_eq!(answer.headers["cache-control"], caching, "{path}");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff", "{path}");
    }
    let events = shop.get("/api/v1/events").bearer(&ann).response().await;
    assert_eq!(events.headers()["cache-control"], "no-store");
}

#[tokio::test]
async fn a_number_has_one_spelling() {
    let shop = Shop::open().await;
    let (activity, item) = shop.stage(5, 1).await;
    for path in [
        format!("/api/v1/items/{{}}{item}"),
        format!("/api/v1/activities/{{}}{activity}"),
        format!("/admin/items/{{}}{item}"),
        format!("/admin/items/{{}}{item}/stock-log"),
        format!("/admin/activities/{{}}{activity}"),
    ] {
        for odd in ["+", "-", "0", "00", "%2B", "%20", "０"] {
            let odd = path.replace("{}", odd);
            let odd = odd.replace('０', "%EF%BC%90");
            let heard = shop.admin(Method::GET, &odd).send().await;
            heard.is_refused(404, "not_found", None);
        }
        shop.admin(Method::GET, &path.replace("{}", "")).send().await.is(200);
    }
    for (query, field) in [
        (format!("item_id=%2B{item}"), "item_id"),
        (format!("item_id=0{item}"), "item_id"),
        (format!("activity_id=-{activity}"), "activity_id"),
        ("item_id=".into(), "item_id"),
    ] {
        let heard = shop.admin(Method::GET, &format!("/admin/orders?{query}")).send().await;
        heard.is_refused(422, "invalid", Some(field));
    }
    shop.admin(Method::GET, &format!("/admin/orders?item_id={item}")).send().await.is(200);
    let audit = shop.admin(Method::GET, "/admin/audit?before=%2B9").send().await;
    audit.is_refused(422, "invalid", Some("before"));
}

#[tokio::test]
async fn ids_and_names_that_hide_something_are_refused_with_their_field() {
    let shop = Shop::open().await;
    for hidden in ["ann\u{200B}", "\u{202E}nna", "ann\u{FEFF}", "a\u{200D}nn"] {
        let login = shop.post("/api/v1/dev/login").json(json!({"user_id": hidden})).send().await;
        login.is_refused(422, "invalid", Some("user_id"));
        let token = json!({"name": hidden, "role": "viewer"});
        let token = shop.admin(Method::POST, "/admin/tokens").json(token).send().await;
        token.is_refused(422, "invalid", Some("name"));
    }
    for (name, image, field) in [
        ("phone\u{202E}", "", "items[0].name"),
        ("phone", "http://cdn.shop/a.png", "items[0].image_url"),
        ("phone", "//cdn.shop/a.png", "items[0].image_url"),
        ("phone", "data:image/png;base64,AA", "items[0].image_url"),
        ("phone", "/a\\b", "items[0].image_url"),
    ] {
        let plan = json!({"name": "sale", "opens_at": OPENS_MS, "closes_at": CLOSES_MS,
            "items": [{"name": name, "image_url": image, "price": 1, "stock": 1}]});
        let heard = shop.admin(Method::POST, "/admin/activities").json(plan).send().await;
        heard.is_refused(422, "invalid", Some(field));
    }
}

#[tokio::test]
async fn a_body_that_says_it_is_too_long_is_refused_before_it_comes() {
    let shop = Shop::open().await;
    let (_, item) = shop.stage(5, 1).await;
    let long = shop.app.config.http.body_bytes_max + 1;
    // Nothing of it is ever sent, and nobody waits for it.
    let claim = shop.claim("ann", item).header("content-length", long.to_string());
    claim.send().await.is_refused(413, "too_large", None);
}

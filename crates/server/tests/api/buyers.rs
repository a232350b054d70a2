//! What buyers see, and nobody else.

use config::Secret;
use futures_util::StreamExt;
use http::Method;
use serde_json::{Value, json};

use crate::shop::{ADMIN, NOW_MS, OPENS_MS, SECRET, Shop};

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
    assert_eq!(offered, json!({"dev_login": false, "providers": [], "pay_with": []}));
    let login = shop.post("/api/v1/dev/login").json(json!({"user_id": "ann"}));
    login.send().await.is_refused(404, "not_found", None);
    shop.get("/api/v1/cashier/x").send().await.is_refused(404, "not_found", None);
    let shop = Shop::open().await;
    let offered = shop.get("/api/v1/shop").send().await.is(200);
    let sandbox = json!({"provider": "sandbox", "methods": ["page", "phone", "qr"],
        "title": {"en": "Sandbox", "zh": "沙盒收银台"}});
    let expected = json!({"dev_login": true, "providers": ["sandbox"], "pay_with": [sandbox]});
    assert_eq!(offered, expected);
    for bad in [json!(""), json!("two words"), json!("x".repeat(65)), json!(7), Value::Null] {
        let login = shop.post("/api/v1/dev/login").json(json!({"user_id": bad}));
        login.send().await.is_refused(422, "invalid", Some("user_id"));
    }
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
    shop.app.engine.push().tell(&[(order_no.parse().unwrap(), "ann".parse().unwrap())]);
    let news = String::from_utf8(events.next().await.unwrap().unwrap().to_vec()).unwrap();
    assert!(news.contains(r#""status":"closed""#), "{news}");
    shop.app.engine.push().close();
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn a_ticket_opens_a_stream_for_a_minute() {
    let shop = Shop::open_with(|config| config.push.streams_per_user_max = 1).await;
    let (_, item) = shop.stage(5, 1).await;
    shop.clock.set(OPENS_MS);
    let order_no = shop.buy("ann", item).await;
    shop.settled("ann", &order_no).await;
    shop.post("/api/v1/events/ticket").send().await.is_refused(401, "unauthorized", None);
    let jwt = shop.jwt("ann");
    let ticket = shop.post("/api/v1/events/ticket").bearer(&jwt).send().await.is(200);
    assert_eq!(ticket["expires_at"], OPENS_MS + 60_000);
    let path = format!("/api/v1/events?ticket={}", ticket["token"].as_str().unwrap());
    let response = shop.get(&format!("{path}&items={item}")).response().await;
    assert_eq!(response.status(), 200);
    let mut events = response.into_body().into_data_stream();
    let mut next =
        async || String::from_utf8(events.next().await.unwrap().unwrap().to_vec()).unwrap();
    let first = next().await;
    assert!(
        first.contains(&order_no) && first.contains(&format!("\nid: {OPENS_MS}-1\n")),
        "{first}"
    );
    let second = next().await;
    let item = format!("event: back_in_stock\ndata: {{\"item_id\":{item}}}\nid: {OPENS_MS}-2\n");
    assert!(second.starts_with(&item), "{second}");
    // It is for streams, and for nothing else; nor is a login good in its place.
    let token = ticket["token"].as_str().unwrap();
    shop.get("/api/v1/orders").bearer(token).send().await.is_refused(401, "unauthorized", None);
    for bad in [&jwt, "", "x"] {
        let asked = shop.get(&format!("/api/v1/events?ticket={bad}")).bearer(&jwt).send().await;
        asked.is_refused(401, "unauthorized", None);
    }
    shop.clock.set(OPENS_MS + 60_000);
    shop.get(&path).send().await.is_refused(401, "unauthorized", None);
}

#[tokio::test]
async fn what_a_listener_asks_for_must_make_sense() {
    let shop = Shop::open().await;
    let jwt = shop.jwt("ann");
    let many = vec!["1"; 51].join(",");
    for way in ["events", "ws"] {
        let ask = |query: &str| shop.get(&format!("/api/v1/{way}?{query}")).bearer(&jwt);
        for bad in ["items=", "items=x", "items=07", &format!("items={many}")] {
            ask(bad).send().await.is_refused(422, "invalid", Some("items"));
        }
        let long = "1".repeat(65);
        for bad in ["last_event_id=a%20b", &format!("last_event_id={long}")] {
            ask(bad).send().await.is_refused(422, "invalid", Some("last_event_id"));
        }
        let asked = ask("").header("last-event-id", "a b").send().await;
        asked.is_refused(422, "invalid", Some("last-event-id"));
    }
    // Whoever asks for a WebSocket without its handshake is told so; a page of elsewhere is not even heard.
    let ws = || shop.get("/api/v1/ws").bearer(&jwt).header("host", "shop.example");
    ws().send().await.is_refused(400, "bad_request", None);
    let elsewhere = ws().header("origin", "https://evil.example");
    elsewhere.send().await.is_refused(403, "forbidden", None);
    ws().header("origin", "https://shop.example").send().await.is_refused(400, "bad_request", None);
}

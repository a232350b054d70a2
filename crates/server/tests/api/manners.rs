//! What holds for every request and every answer: lengths, spellings, headers.

use std::collections::HashSet;

use http::Method;
use serde_json::json;
use server::api::BASE;

use crate::shop::{CLOSES_MS, OPENS_MS, Shop};

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
    let mut ids = HashSet::new();
    for (what, answer) in heard {
        assert!(answer.status < 300 || what == "nowhere", "{what}: {}", answer.text);
        assert_eq!(answer.headers["cache-control"], "no-store", "{what}");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff", "{what}");
        assert!(ids.insert(answer.headers["x-request-id"].clone()), "{what}");
    }
    // What anybody may see may be kept, and is what it says as well.
    for (path, caching) in [
        ("/api/v1/activities", "public, max-age=1"),
        ("/", "public, max-age=5"),
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

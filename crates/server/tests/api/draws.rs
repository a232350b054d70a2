//! Sales with a fair start, as operators plan them and anybody sees them.

use http::Method;
use serde_json::{Value, json};

use crate::shop::{CLOSES_MS, OPENS_MS, Shop};

fn plan(more: &[(&str, Value)]) -> Value {
    let item = json!({"name": "phone", "price": 100, "stock": 5});
    let mut plan =
        json!({"name": "sale", "opens_at": OPENS_MS, "closes_at": CLOSES_MS, "items": [item]});
    more.iter().for_each(|(name, value)| plan[name] = value.clone());
    plan
}

#[tokio::test]
async fn a_draw_is_planned_while_it_is_a_draft_and_holds_once_buyers_have_seen_it() {
    let shop = Shop::open().await;
    let create = |body: Value| shop.admin(Method::POST, "/admin/activities").json(body).send();
    for wrong in [json!(-1), json!(5_001), json!("2s"), json!(1.5)] {
        let refused = create(plan(&[("shuffle_ms", wrong)])).await;
        refused.is_refused(422, "invalid", Some("shuffle_ms"));
    }
    let door = json!({"members_from": OPENS_MS - 500});
    let both = create(plan(&[("shuffle_ms", json!(500)), ("door", door)])).await;
    both.is_refused(422, "invalid", Some("shuffle_ms"));
    let made = create(plan(&[("shuffle_ms", json!(500))])).await.is(201);
    let draw = &made["draw"];
    assert_eq!((&draw["shuffle_ms"], &draw["ends_at"]), (&json!(500), &json!(OPENS_MS + 500)));
    assert_eq!(draw["commitment"].as_str().unwrap().len(), 64);

    let path = format!("/admin/activities/{}", made["id"]);
    let edit = |version: &Value, more: Value| {
        let mut body = json!({"version": version});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        shop.admin(Method::PATCH, &path).json(body).send()
    };
    let longer = edit(&made["version"], json!({"shuffle_ms": 700})).await.is(200);
    assert_eq!(longer["draw"]["shuffle_ms"], 700);
    assert_eq!(longer["draw"]["commitment"], draw["commitment"], "there is one seed");
    let id = made["id"].as_i64().unwrap();
    let published = shop.move_to(id, "publish").await.is(200);
    let late = edit(&published["version"], json!({"shuffle_ms": 0})).await;
    late.is_refused(422, "invalid", Some("shuffle_ms"));
    let moved = json!({"opens_at": OPENS_MS + 200});
    let moved = edit(&published["version"], moved).await.is(200);
    assert_eq!(moved["draw"]["commitment"], draw["commitment"]);
    assert_eq!(moved["draw"]["ends_at"], OPENS_MS + 900);
}

#[tokio::test]
async fn the_seed_is_shown_to_nobody_before_the_end_and_the_ticket_to_its_buyer_alone() {
    let shop = Shop::open().await;
    let made = shop.admin(Method::POST, "/admin/activities");
    let made = made.json(plan(&[("shuffle_ms", json!(500))])).send().await.is(201);
    let (id, item) = (made["id"].as_i64().unwrap(), made["items"][0]["id"].as_i64().unwrap());
    let (draw, ticket) = (format!("/items/{item}/draw"), format!("/items/{item}/ticket"));
    shop.get(&draw).send().await.is_refused(404, "not_found", None);
    shop.move_to(id, "publish").await.is(200);
    shop.get(&ticket).send().await.is_refused(401, "unauthorized", None);
    let ann = shop.get(&ticket).bearer(&shop.jwt("ann")).send().await.is(200);
    let bob = shop.get(&ticket).bearer(&shop.jwt("bob")).send().await.is(200);
    assert_ne!(ann["ticket"], bob["ticket"]);
    assert_eq!((&ann["place"], &ann["outcome"]), (&Value::Null, &Value::Null));
    for at_ms in [OPENS_MS, OPENS_MS + 499, OPENS_MS + 10_499] {
        shop.clock.set(at_ms);
        let before = shop.get(&draw).send().await.is(200);
        assert_eq!((&before["seed"], &before["places"]), (&Value::Null, &json!([])));
        assert_eq!(before["commitment"], made["draw"]["commitment"]);
    }
    shop.clock.set(OPENS_MS + 10_500);
    let after = shop.get(&draw).send().await.is(200);
    assert_eq!(after["seed"].as_str().unwrap().len(), 64);
    let again = shop.get(&ticket).bearer(&shop.jwt("ann")).send().await.is(200);
    assert_eq!(again["ticket"], ann["ticket"]);
    assert!(again["place"].is_string() && again["outcome"].is_null(), "she did not take part");
    for (query, field) in [("after=7", "after"), ("limit=0", "limit"), ("limit=501", "limit")] {
        let refused = shop.get(&format!("{draw}?{query}")).send().await;
        refused.is_refused(422, "invalid", Some(field));
    }
    shop.get("/items/999/draw").send().await.is_refused(404, "not_found", None);
}

#[tokio::test]
async fn a_sale_without_a_draw_says_so() {
    let shop = Shop::open().await;
    let made = shop.admin(Method::POST, "/admin/activities").json(plan(&[])).send().await.is(201);
    assert_eq!(made["draw"], Value::Null);
    let (id, item) = (made["id"].as_i64().unwrap(), made["items"][0]["id"].as_i64().unwrap());
    shop.move_to(id, "publish").await.is(200);
    let shown = shop.get(&format!("/items/{item}")).send().await.is(200);
    assert_eq!(shown["draw"], Value::Null);
    shop.get(&format!("/items/{item}/draw")).send().await.is_refused(404, "not_found", None);
    let ticket = shop.get(&format!("/items/{item}/ticket")).bearer(&shop.jwt("ann")).send().await;
    ticket.is_refused(404, "not_found", None);
}

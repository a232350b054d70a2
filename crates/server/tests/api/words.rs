//! The shop's own words over HTTP: given, shown, found, imported, and asked for again.

use http::Method;
use serde_json::{Value, json};

use crate::shop::{CLOSES_MS, OPENS_MS, Shop};

fn plan(external_id: &str, skus: &[&str]) -> Value {
    let item = |sku: &&str| {
        json!({"sku": sku, "name": "Phone", "price": 1_500, "currency": "KWD", "stock": 5,
            "description": "One.\r\nTwo.", "images": ["/1.png", "https://cdn.shop/2.webp"],
            "attributes": {"colour": "blue", "weight": 187.5, "new": true}})
    };
    json!({"external_id": external_id, "name": "11.11", "opens_at": OPENS_MS, "closes_at": CLOSES_MS,
        "items": skus.iter().map(item).collect::<Vec<_>>()})
}

#[tokio::test]
async fn what_the_shop_says_is_shown_and_found() {
    let shop = Shop::open().await;
    let made =
        shop.admin(Method::POST, "/admin/activities").json(plan("s-1", &["A/1", "手机"])).send();
    let made = made.await.is(201);
    let (id, item) = (made["id"].as_i64().unwrap(), &made["items"][0]);
    assert_eq!(made["external_id"], "s-1");
    assert_eq!((&item["sku"], &item["description"]), (&json!("A/1"), &json!("One.\nTwo.")));
    assert_eq!(item["images"], json!(["/1.png", "https://cdn.shop/2.webp"]));
    assert_eq!((&item["image_url"], &item["currency"]), (&json!("/1.png"), &json!("KWD")));
    shop.move_to(id, "publish").await.is(200);

    let get = async |path: &str| shop.get(&format!("/api/v1{path}")).send().await.is(200);
    let listed = get("/activities?external_id=s-1").await;
    let brief = &listed["activities"][0];
    assert_eq!((&brief["id"], &brief["items"][0]["sku"]), (&json!(id), &json!("A/1")));
    assert_eq!(brief["items"][0]["description"], Value::Null, "the list stays short");
    assert_eq!(get("/activities?external_id=s-2").await["activities"], json!([]));
    let whole = get(&format!("/activities/{id}")).await;
    assert_eq!(whole["items"][0]["attributes"], item["attributes"]);
    let shown = get(&format!("/items/{}", item["id"])).await;
    for field in ["sku", "description", "image_url", "images", "attributes"] {
        assert_eq!(shown[field], item[field], "{field}");
    }
    assert_eq!(get("/items?sku=A/1").await["items"], json!([shown]));
    assert_eq!(get(&format!("/items?sku=A/1&activity_id={id}")).await["items"], json!([shown]));
    assert_eq!(get("/items?sku=A").await["items"], json!([]));
    assert_eq!(get(&format!("/items?sku=A/1&activity_id={}", id + 1)).await["items"], json!([]));
    for path in ["/items?sku=a%20b", "/items?sku=", "/admin/items?sku=%00"] {
        let asked = shop.admin(Method::GET, path).send().await;
        asked.is_refused(422, "invalid", Some("sku"));
    }
    let long = format!("/api/v1/activities?external_id={}", "x".repeat(65));
    shop.get(&long).send().await.is_refused(422, "invalid", Some("external_id"));
    shop.get("/api/v1/items").send().await.is_refused(422, "invalid", Some("sku"));

    let admin = async |path: &str| shop.admin(Method::GET, path).send().await.is(200);
    assert_eq!(admin("/admin/activities?external_id=s-1").await["activities"][0]["id"], id);
    assert_eq!(admin("/admin/activities?external_id=s").await["activities"], json!([]));
    let found = admin("/admin/items?sku=%E6%89%8B%E6%9C%BA").await;
    assert_eq!(found["items"][0]["id"], made["items"][1]["id"]);
    assert_eq!(admin("/admin/items?sku=x").await["items"], json!([]));
}

#[tokio::test]
async fn words_that_make_no_sense_are_refused_with_their_field() {
    let shop = Shop::open().await;
    let create = |body: Value| shop.admin(Method::POST, "/admin/activities").json(body).send();
    let with = |name: &str, value: Value| {
        let mut plan = plan("s-1", &["A"]);
        plan["items"][0][name] = value;
        plan
    };
    for (name, value, field) in [
        ("sku", json!("a b"), "items[0].sku"),
        ("sku", json!(7), "items[0].sku"),
        ("description", json!("bell\u{7}"), "items[0].description"),
        ("images", json!(["/1.png", "http://x/y"]), "items[0].images[1]"),
        ("images", json!(["javascript:1"]), "items[0].image_url"),
        ("image_url", json!("/2.png"), "items[0].image_url"),
        ("attributes", json!({"a": [1]}), "items[0].attributes.a"),
        ("attributes", json!([]), "items[0].attributes"),
    ] {
        create(with(name, value)).await.is_refused(422, "invalid", Some(field));
    }
    create(plan("two words", &["A"])).await.is_refused(422, "invalid", Some("external_id"));
    create(plan("s-1", &["A", "A"])).await.is_refused(422, "invalid", Some("items[1].sku"));

    let first = create(plan("s-1", &["A"])).await.is(201);
    let taken = create(plan("s-1", &["B"])).await;
    taken.is_refused(409, "conflict", Some("external_id"));
    assert_eq!(taken.json()["activity_id"], first["id"]);
    // A draft takes other words, and what is not named stays.
    let path = format!("/admin/activities/{}", first["id"]);
    let item = &first["items"][0];
    let edit = |body: Value| shop.admin(Method::PATCH, &path).json(body).send();
    let body = json!({"version": first["version"], "external_id": "s-2", "items": [
        {"id": item["id"], "sku": null, "images": [], "attributes": {"size": "L"}}]});
    let edited = edit(body).await.is(200);
    let now = &edited["items"][0];
    assert_eq!((&edited["external_id"], &now["sku"]), (&json!("s-2"), &Value::Null));
    assert_eq!((&now["images"], &now["image_url"]), (&json!([]), &json!("")));
    assert_eq!(
        (&now["attributes"], &now["description"]),
        (&json!({"size": "L"}), &json!("One.\nTwo."))
    );
    create(plan("s-1", &["A"])).await.is(201);
    let body = json!({"version": edited["version"], "external_id": "s-1"});
    edit(body).await.is_refused(422, "invalid", Some("external_id"));
}

#[tokio::test]
async fn an_activity_is_made_once_for_each_key() {
    let shop = Shop::open().await;
    let create = |key: &str, body: Value| {
        let asked = shop.admin(Method::POST, "/admin/activities");
        asked.header("idempotency-key", key).json(body).send()
    };
    let mut plan = plan("s-1", &["A"]);
    plan["external_id"] = Value::Null;
    let first = create("k-1", plan.clone()).await.is(201);
    assert_eq!(create("k-1", plan.clone()).await.is(201), first);
    assert_ne!(create("k-2", plan.clone()).await.is(201)["id"], first["id"]);
    let mut other = plan.clone();
    other["name"] = json!("another");
    let reused = create("k-1", other).await;
    reused.is_refused(422, "key_reused", None);
    assert_eq!(reused.json()["activity_ids"], json!([first["id"]]));
    // What was made is told also when it could not be made any more.
    shop.clock.set(CLOSES_MS + 1);
    assert_eq!(create("k-1", plan.clone()).await.is(201)["id"], first["id"]);
    create("k-3", plan.clone()).await.is_refused(422, "invalid", Some("closes_at"));
    for bad in ["", "two words", &"x".repeat(256)] {
        create(bad, plan.clone()).await.is_refused(422, "invalid", Some("Idempotency-Key"));
    }
    let listed = shop.admin(Method::GET, "/admin/activities").send().await.is(200);
    assert_eq!(listed["activities"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn an_import_makes_all_or_nothing_and_names_every_mistake() {
    let shop = Shop::open().await;
    let import = |query: &'static str, body: Value| {
        let path = format!("/admin/activities/import{query}");
        shop.admin(Method::POST, &path).header("idempotency-key", "file-1").json(body).send()
    };
    let count = async || {
        let listed = shop.admin(Method::GET, "/admin/activities").send().await.is(200);
        listed["activities"].as_array().unwrap().len()
    };
    let mut wrong = json!({"activities": [plan("s-1", &["A", "B"]), plan("s-1", &["A"]), 7]});
    wrong["activities"][0]["items"][0]["price"] = json!("cheap");
    wrong["activities"][0]["items"][1]["stock"] = json!(1.5);
    wrong["activities"][1]["opens_at"] = json!("soon");
    let refused = import("", wrong).await;
    refused.is_refused(422, "invalid", Some("activities[0].items[0].price"));
    let fields = |heard: &Value| {
        let errors = heard["errors"].as_array().unwrap().iter();
        errors.map(|error| error["field"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        fields(&refused.json()),
        [
            "activities[0].items[0].price",
            "activities[0].items[1].stock",
            "activities[1].opens_at",
            "activities[2]"
        ]
    );
    let twice = json!({"activities": [plan("s-1", &["A"]), plan("s-1", &["B b"])]});
    let refused = import("?dry_run=true", twice).await.json();
    assert_eq!(fields(&refused), ["activities[1].items[0].sku", "activities[1].external_id"]);
    let many = json!({"activities": vec![json!({}); 150]});
    let refused = import("", many).await.json();
    assert_eq!((fields(&refused).len(), &refused["errors_total"]), (100, &json!(150)));
    for query in ["", "?dry_run=true"] {
        let empty = import(query, json!({"activities": []})).await;
        empty.is_refused(422, "invalid", Some("activities"));
    }
    let good = || json!({"activities": [plan("s-1", &["A"]), plan("s-2", &["A"])]});
    assert_eq!(import("?dry_run=true", good()).await.is(200), json!({"activities": []}));
    assert_eq!(count().await, 0, "nothing was made");

    let made = import("", good()).await.is(200);
    assert_eq!((count().await, &made["activities"][0]["created"]), (2, &json!(true)));
    let again = import("", good()).await.is(200);
    assert_eq!(again["activities"][1]["created"], false);
    assert_eq!(again["activities"][1]["activity"], made["activities"][1]["activity"]);
    // Without the key the shop's ids tell.
    let one_more = json!({"activities": [plan("s-2", &["A"]), plan("s-3", &["A"])]});
    let path = "/admin/activities/import";
    let third = shop.admin(Method::POST, path).json(one_more).send().await.is(200);
    let created: Vec<_> =
        third["activities"].as_array().unwrap().iter().map(|one| &one["created"]).collect();
    assert_eq!((created, count().await), (vec![&json!(false), &json!(true)], 3));
}

//! Sales as operators write them down, and change them.

use http::Method;
use serde_json::{Value, json};

use crate::shop::{CLOSES_MS, NOW_MS, OPENS_MS, Shop};

#[tokio::test]
async fn a_plan_that_makes_no_sense_is_refused_with_its_field() {
    let shop = Shop::open().await;
    let item = || json!({"name": "phone", "price": 100, "stock": 5});
    let plan = |items: Value| {
        let (opens_at, closes_at) = (OPENS_MS, CLOSES_MS);
        json!({"name": "sale", "opens_at": opens_at, "closes_at": closes_at, "items": items})
    };
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
        (with("currency", json!("XXQ")), "items[0].currency"),
        (with("currency", json!("XAU")), "items[0].currency"),
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
async fn every_rule_of_a_plan_is_told_in_the_readers_language() {
    let shop = Shop::open().await;
    let refused = async |language: &str, change: &dyn Fn(&mut Value)| {
        let mut body = json!({"name": "sale", "opens_at": OPENS_MS, "closes_at": CLOSES_MS,
            "items": [{"name": "phone", "price": 100, "stock": 5}]});
        change(&mut body);
        let ask = shop.admin(Method::POST, "/admin/activities").header("accept-language", language);
        ask.json(body).send().await.json()["detail"].as_str().unwrap().to_owned()
    };
    let changes: [&dyn Fn(&mut Value); 8] = [
        &|plan| plan["name"] = json!(""),
        &|plan| plan["name"] = json!(7),
        &|plan| plan["items"] = json!([]),
        &|plan| plan["items"][0]["price"] = json!(-1),
        &|plan| plan["items"][0]["stock"] = json!(1.5),
        &|plan| plan["items"][0]["limit_per_user"] = json!(-1),
        &|plan| plan["colour"] = json!("red"),
        &|plan| plan["items"][0].as_object_mut().unwrap().retain(|name, _| name != "price"),
    ];
    for change in changes {
        let (en, zh) = (refused("en", change).await, refused("zh", change).await);
        for type_of_rust in ["u32", "i64", "expected", "string"] {
            assert!(!en.contains(type_of_rust), "{en}");
        }
        assert!(!zh.contains(" must ") && !zh.contains("cannot"), "{zh}");
    }
}

#[tokio::test]
async fn a_pause_says_until_when_to_operators_and_buyers() {
    let shop = Shop::open().await;
    let (activity, item) = shop.stage(5, 1).await;
    shop.clock.set(OPENS_MS);
    let pause = format!("/admin/activities/{activity}/pause");
    let pause = |body: Value| shop.admin(Method::POST, &pause).json(body).send();
    for wrong in [json!(OPENS_MS), json!(CLOSES_MS), json!("soon"), json!(OPENS_MS / 1_000)] {
        pause(json!({"until": wrong})).await.is_refused(422, "invalid", Some("until"));
    }
    pause(json!({"till": CLOSES_MS - 1})).await.is_refused(422, "invalid", Some("till"));
    let until = json!(CLOSES_MS - 1);
    let paused = pause(json!({"until": until})).await.is(200);
    assert_eq!((&paused["state"], &paused["resumes_at"]), (&json!("paused"), &until));
    for path in [format!("/api/v1/activities/{activity}"), format!("/api/v1/items/{item}")] {
        let shown = shop.get(&path).send().await.is(200);
        assert_eq!((&shown["state"], &shown["resumes_at"]), (&json!("paused"), &until));
    }
    // Another time, and none.
    assert_eq!(pause(json!({"until": CLOSES_MS - 2})).await.is(200)["resumes_at"], CLOSES_MS - 2);
    assert_eq!(pause(json!({})).await.is(200)["resumes_at"], json!(null));
    assert_eq!(shop.move_to(activity, "resume").await.is(200)["resumes_at"], json!(null));
}

/// What a shop planned and gave up is nobody's business, not even as something that is over.
#[tokio::test]
async fn a_draft_that_was_given_up_is_shown_to_no_buyer() {
    let shop = Shop::open().await;
    let plan = json!({"name": "secret", "external_id": "S-1", "opens_at": OPENS_MS, "closes_at": CLOSES_MS,
        "items": [{"name": "phone", "sku": "P-1", "price": 100, "stock": 5}]});
    let made = shop.admin(Method::POST, "/admin/activities").json(plan).send().await.is(201);
    let (id, item) = (made["id"].as_i64().unwrap(), made["items"][0]["id"].as_i64().unwrap());
    shop.move_to(id, "end").await.is(200);
    for list in ["/api/v1/activities", "/api/v1/activities?external_id=S-1"] {
        assert_eq!(shop.get(list).send().await.is(200)["activities"], json!([]), "{list}");
    }
    for path in [format!("/api/v1/activities/{id}"), format!("/items/{item}")] {
        shop.get(&path).send().await.is_refused(404, "not_found", None);
    }
    let known = shop.admin(Method::GET, &format!("/admin/activities/{id}")).send().await.is(200);
    assert_eq!((&known["state"], &known["name"]), (&json!("ended"), &json!("secret")));

    // What buyers have seen stays, as something that is over.
    let (published, _) = shop.stage(1, 1).await;
    shop.move_to(published, "end").await.is(200);
    let path = format!("/api/v1/activities/{published}");
    assert_eq!(shop.get(&path).send().await.is(200)["state"], "ended");
}

//! Who of the operators may do what, and what they find.

use http::Method;
use ledger::PaymentNotice;
use sale::{Claim, FailedClaim, ItemId};
use serde_json::{Value, json};

use crate::shop::{CLOSES_MS, OPENS_MS, Shop};

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
        "/admin/claims",
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
    for action in [
        "root activity.create",
        "root activity.publish",
        "operator activity.pause",
        "operator item.warm",
        "operator reconcile.run",
        "root token.create",
        "root token.revoke",
    ] {
        assert!(done.iter().any(|entry| entry == action), "{action} is not in {done:?}");
    }
}

#[tokio::test]
async fn claims_are_read_back_and_whoever_does_it_is_on_record() {
    let shop = Shop::open().await;
    let path = "/admin/claims?from=1700000000000&to=2030-11-11T20:00:00Z&item_id=7&compare=true";
    let page = shop.admin(Method::GET, path).send().await.is(200);
    assert_eq!(page, json!({"claims": [], "next": null}));
    for (wrong, field) in
        [("after=nothing", "after"), ("after=j-1", "after"), ("after=%E5%8F%B7", "after")]
    {
        let asked = shop.admin(Method::GET, &format!("/admin/claims?{wrong}")).send().await;
        asked.is_refused(422, "invalid", Some(field));
    }
    let audit = shop.admin(Method::GET, "/admin/audit?action=claims.search").send().await.is(200);
    let detail = &audit["entries"].as_array().unwrap().last().unwrap()["detail"];
    let asked = json!({"from": 1_700_000_000_000_i64, "to": 1_920_657_600_000_i64, "item_id": 7,
        "compare": true});
    assert_eq!(detail, &asked);
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
    engine.parts().workers.as_ref().unwrap().stop().await;
    let queued = shop.buy("bob", item).await;
    let claim = Claim {
        order_no: engine.parts().numbers.next(),
        item: ItemId(item),
        user: "bob".parse().unwrap(),
        quantity: 1,
        epoch: 1,
        claimed_ms: OPENS_MS,
        key: None,
    };
    let dead = claim.order_no.to_string();
    let failed = FailedClaim { claim, tries: 16, next_try_ms: None, cause: "poison".into() };
    engine.parts().ledger.defer(&[failed]).await.unwrap();

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
    assert_eq!(found(format!("order_no={}", engine.parts().numbers.next())).await, []);
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
    cancel(&engine.parts().numbers.next().to_string()).await.is_refused(404, "not_found", None);
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
            let amount = engine.parts().ledger.order(order_no).await.unwrap().unwrap().amount;
            let (provider, provider_txn) = ("wechat".into(), txn.into());
            let notice = PaymentNotice { provider, provider_txn, order_no, amount, paid_ms };
            engine.parts().ledger.credit(&notice, OPENS_MS).await.unwrap();
        }
        orders.push(no);
    }
    let refund = |body: Value| {
        shop.admin(Method::POST, &format!("/admin/orders/{}/refund", orders[1])).json(body).send()
    };
    for bad in ["", " ", "two  spaces", "a\nb", &"x".repeat(201)] {
        refund(json!({"note": bad})).await.is_refused(422, "invalid", Some("note"));
    }
    refund(json!({"note": "It broke on its way."})).await.is(200);
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
    let names =
        ",provider,provider_txn,sku,method,refund_state,refund_reason,refund_amount,refunded_at";
    assert!(lines[0].ends_with(names), "{all}");
    assert!(lines[1].starts_with(&orders[2]) && lines[1].ends_with(",,,,,,,,"), "{all}");
    assert!(lines[2].ends_with(r#",wechat,"'=1+1",,,pending,operator,699900,"#), "{all}");
    assert!(lines[3].ends_with(",wechat,42001,,,,,,"), "{all}");
    let refunded = shop.admin(Method::GET, "/admin/orders?user_id=bob").send().await.is(200);
    let order = &refunded["orders"][0];
    assert_eq!(order["payment"]["provider_txn"], "=1+1");
    let refund = &order["refunds"][0];
    assert_eq!((&refund["state"], &refund["reason"]), (&json!("pending"), &json!("operator")));
    assert_eq!(
        (&refund["asked_at"], &refund["note"]),
        (&json!(OPENS_MS), &json!("It broke on its way."))
    );
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
async fn money_is_written_down_by_hand_with_a_reason_and_counts_once() {
    let shop = Shop::open().await;
    let (_, item) = shop.stage(5, 1).await;
    shop.clock.set(OPENS_MS);
    let no = shop.buy("ann", item).await;
    shop.settled("ann", &no).await;
    let mark = |verb: &str, body: Value| {
        shop.admin(Method::POST, &format!("/admin/orders/{no}/{verb}")).json(body).send()
    };
    let said = json!({"reference": "BT-77", "reason": "a transfer to our bank"});
    for bad in [
        json!({"reference": "BT-77"}),
        json!({"reference": "BT-77", "reason": ""}),
        json!({"reference": "BT-77", "reason": "two\nlines"}),
        json!({"reference": "two words", "reason": "x"}),
        json!({"reference": "BT-77", "reason": "x", "amount": 1}),
    ] {
        assert_eq!(mark("mark-paid", bad).await.status, 422);
    }
    let early = mark("mark-refunded", said.clone()).await;
    early.is_refused(409, "conflict", None);
    for _ in 0..2 {
        let paid = mark("mark-paid", said.clone()).await.is(200);
        assert_eq!(paid["order"]["status"], "paid");
        let money: Vec<&Value> = paid["payments"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| row["kind"] == "pay")
            .collect();
        assert_eq!(money.len(), 1, "{paid}");
        assert_eq!(
            (&money[0]["provider"], &money[0]["provider_txn"]),
            (&json!("manual"), &json!("BT-77"))
        );
    }
    let why = json!({"note": "the box was empty"});
    let refunding = mark("refund", why).await.is(200);
    assert_eq!(refunding["order"]["status"], "refunding");
    assert_eq!(refunding["refunds_waiting"][0]["provider"], "manual", "{refunding}");
    let back = json!({"reference": "BT-78", "reason": "sent back"});
    for _ in 0..2 {
        let refunded = mark("mark-refunded", back.clone()).await.is(200);
        assert_eq!(refunded["order"]["status"], "refunded");
        assert_eq!(refunded["refunds_waiting"], json!([]));
    }
    let audit = shop.admin(Method::GET, "/admin/audit").send().await.is(200);
    let entries = audit["entries"].as_array().unwrap();
    let of = |action: &str| entries.iter().filter(|entry| entry["action"] == action).count();
    assert_eq!((of("order.mark_paid"), of("order.refund"), of("order.mark_refunded")), (2, 1, 2));
    let refund = entries.iter().find(|entry| entry["action"] == "order.refund").unwrap();
    assert_eq!(refund["detail"]["note"], "the box was empty");
}

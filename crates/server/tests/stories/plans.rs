//! What operators plan, and find again.

use std::time::Duration;

use checker::Answer;
use client::{Api, NewSale};
use serde_json::{Value, json};

use crate::fixtures::{Deployment, PACES_S, Profile, Sale, now_ms, until};

const LOOK_AGAIN: Duration = Duration::from_millis(20);

async fn activity(admin: &mut Api, id: i64) -> Value {
    admin.read(&format!("/api/v1/admin/activities/{id}")).await.unwrap()
}

/// Moves the opening. False if the sale was open before it was asked for.
async fn postponed(sale: &Sale, opens_ms: i64) -> bool {
    let mut admin = sale.admin();
    let seen = activity(&mut admin, sale.activity).await;
    let body = json!({"version": seen["version"], "opens_at": sale::iso_time(opens_ms)});
    let path = format!("/api/v1/admin/activities/{}", sale.activity);
    let body = serde_json::to_vec(&body).unwrap();
    let moved = admin.send("PATCH", &path, &[], &body).await.unwrap();
    if moved.status == 409 {
        return false;
    }
    assert_eq!((moved.status, &moved.json()["opens_at"]), (200, &json!(opens_ms)));
    true
}

async fn a_postponed_sale_opens_at_its_new_time_and_not_before(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(5)).await;
    for pace_s in PACES_S {
        let opens_ms = now_ms() + pace_s * 1_000;
        sale.instead(NewSale { opens_ms, ..NewSale::of(5).shards(2) }).await;
        let later_ms = opens_ms + 1_500;
        if !postponed(&sale, later_ms).await {
            continue;
        }
        let mut buyer = sale.buyer("u1").await;
        let mut refused = 0;
        loop {
            match buyer.claim().await {
                Answer::Refused(code) if code == "not_started" => refused += 1,
                // Whoever asks so often is told so, and nothing else.
                Answer::Refused(code) if code == "rate_limited" => {}
                Answer::Admitted { .. } => break,
                other => panic!("{other:?} after {refused} refusals"),
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        assert!(now_ms() >= later_ms, "nobody is admitted before the new opening");
        let shown: Value = buyer.api.read(&format!("/api/v1/items/{}", sale.item)).await.unwrap();
        assert_eq!(shown["opens_at"], later_ms, "pages count down to it");
        sale.must_hold().await;
        return;
    }
    panic!("it was open before it could be postponed, in {PACES_S:?} s");
}

async fn a_draft_publishes_itself_also_if_nobody_was_there_at_its_time(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(5)).await;
    let mut admin = sale.admin();
    let plan = |publish_ms: i64| {
        json!({"name": "by itself", "publish_at": publish_ms, "opens_at": now_ms() + 1_800_000,
            "closes_at": now_ms() + 3_600_000, "items": [{"name": "x", "price": 1, "stock": 5}]})
    };
    // Asked for too late on a slow machine, it is refused; then a later time will do.
    let mut drafts = Vec::new();
    for ahead_ms in [1_000, 10_000, 60_000] {
        let publish_ms = now_ms() + ahead_ms;
        let made = admin.post("/api/v1/admin/activities", &plan(publish_ms)).await.unwrap();
        if made.status == 201 {
            drafts.push((made.json()["id"].as_i64().unwrap(), publish_ms));
            break;
        }
    }
    let (id, publish_ms) = drafts[0];
    becomes_published(&mut admin, id).await;
    assert!(now_ms() >= publish_ms);
    let shown: Value = admin.read("/api/v1/admin/audit").await.unwrap();
    let entry = shown["entries"].as_array().unwrap().iter().find(|entry| {
        entry["action"] == "activity.publish" && entry["target"] == format!("activity:{id}")
    });
    assert_eq!(entry.unwrap()["who"], "system");

    // Its time comes while nothing runs.
    let publish_ms = now_ms() + 3_000;
    let made: Value = admin.write("/api/v1/admin/activities", &plan(publish_ms)).await.unwrap();
    sale.kill();
    let wait_ms = u64::try_from(publish_ms - now_ms()).unwrap_or(0);
    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
    sale.start().await;
    becomes_published(&mut sale.admin(), made["id"].as_i64().unwrap()).await;
}

async fn becomes_published(admin: &mut Api, id: i64) {
    let state = async || activity(admin, id).await["state"].clone();
    until("it is published", state, |state| state == "published").await;
}

async fn operators_find_a_claim_on_its_way_and_cancel_the_order_it_became(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let mut admin = sale.admin();
    let mut buyer = sale.buyer("u1").await;
    let blocked = sale.deployment.block_ledger();
    let no = buyer.buy().await;
    let found: Value = admin.read(&format!("/api/v1/admin/orders?order_no={no}")).await.unwrap();
    let order = &found["orders"][0];
    assert_eq!((&order["user_id"], &order["status"]), (&json!("u1"), &json!("queued")));
    drop(blocked);
    buyer.order_becomes(&no, "unpaid").await;
    let cashier = buyer.open_payment(&no).await;
    let path = format!("/api/v1/admin/orders/{no}/cancel");
    let closed: Value = admin.write(&path, &json!({})).await.unwrap();
    assert_eq!(closed["order"]["status"], "closed", "{closed}");
    // It was closed at the provider first: nobody can pay it any more.
    buyer.at_the_cashier(&cashier, "pay").await;
    assert_eq!(buyer.order(&no).await["status"], "closed");
    // And the unit is on sale again.
    let mut other = sale.buyer("u2").await;
    let admitted = |answer: &Answer| matches!(answer, Answer::Admitted { .. });
    until("the unit is sold again", async || other.claim().await, admitted).await;
    let totals: Value =
        admin.read(&format!("/api/v1/admin/activities/{}/totals", sale.activity)).await.unwrap();
    assert_eq!(totals["items"][0]["orders"]["closed"]["orders"], 1, "{totals}");
    sale.must_hold().await;
}

crate::in_every_profile! {
    a_postponed_sale_opens_at_its_new_time_and_not_before,
    a_draft_publishes_itself_also_if_nobody_was_there_at_its_time,
    operators_find_a_claim_on_its_way_and_cancel_the_order_it_became,
}

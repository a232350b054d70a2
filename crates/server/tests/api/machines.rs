//! What is said to machines: readiness and numbers.

use sale::ItemId;
use serde_json::json;

use crate::shop::{NOW_MS, Shop};

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
    shop.app.engine.parts().workers.as_ref().unwrap().stop().await;
    assert_eq!(shop.get("/readyz").send().await.is(200)["workers"], "down");
    let down = shop.get("/readyz/settle").send().await;
    assert_eq!(down.is_refused(503, "busy", None).json()["workers"], "down");
    assert_eq!((&down.json()["settle"], &down.json()["sell"]), (&json!("down"), &json!("ok")));
    shop.app.engine.parts().lanes.stop().await;
    let down = shop.get("/readyz").send().await;
    assert_eq!(down.is_refused(503, "busy", None).json()["lanes"], "down");
    shop.get("/readyz/sell").send().await.is_refused(503, "busy", None);
    shop.get("/readyz/show").send().await.is(200);
    assert_eq!(shop.get("/metrics").send().await.status, 200);
    let document = shop.get("/openapi.json").send().await.is(200);
    assert_eq!(document["info"]["title"], "Seckill");
    // To programs as it stands in the repository, and packed to whoever takes it so.
    let plain = shop.get("/openapi.json").send().await;
    assert!(plain.text == include_str!("../../../../docs/openapi.json"));
    assert!(!plain.headers.contains_key("content-encoding"));
    for packing in ["br", "gzip"] {
        let asked = shop.get("/openapi.json").header("accept-encoding", packing);
        assert_eq!(asked.response().await.headers()["content-encoding"], packing);
    }
    assert_eq!(shop.get("/").send().await.status, 200);
}

/// What the numbers cost follows what is on sale, not what a shop has ever sold.
#[tokio::test]
async fn the_numbers_of_items_are_bounded_and_those_of_the_past_are_gone() {
    let shop = Shop::open().await;
    let (activity, item) = shop.stage(10, 1).await;
    let engine = &shop.app.engine;
    let on_sale =
        engine.parts().ledger.activity(sale::ActivityId(activity)).await.unwrap().unwrap();
    let copies = |first: i64, count: i64, state| {
        let mut activity = on_sale.clone();
        let copy = |n| sale::Item { id: ItemId(first + n), ..on_sale.items[0].clone() };
        (activity.items, activity.state) = ((0..count).map(copy).collect(), state);
        activity
    };
    use sale::ActivityState::{Ended, Published};
    let known = [copies(1_000, 1_100, Published), copies(50_000, 7, Ended), on_sale.clone()];
    engine.catalogue().show(known.into());
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

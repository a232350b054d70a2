//! What operators do at midnight.

use std::process::Command;

use checker::Answer;
use client::{Api, NewSale, ServerProcess};
use serde_json::{Value, json};

use crate::fixtures::{Deployment, PACES_S, Profile, now_ms, until};

/// So many activities were planned after the sale: drafts, and some that are published.
const DRAFTS_PLANNED: i64 = 10_100;
const SALES_PLANNED: i64 = 1_100;

/// Behind the server's back, for it takes a while to plan so many one by one.
fn plan_many(deployment: &Deployment) {
    let (opens_at, closes_at) = (now_ms() + 3_600_000, now_ms() + 7_200_000);
    for (state, count) in [(0, DRAFTS_PLANNED), (1, SALES_PLANNED)] {
        let insert = "INSERT INTO tb_seckill_activity (name, opens_at, closes_at, pay_within_ms, state, \
             created_at, updated_at)";
        let row = format!("'one of many', {opens_at}, {closes_at}, 60000, {state}, 0, 0");
        let sqlite = format!(
            "{insert} WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
             SELECT {row} FROM n"
        );
        // In the words of MySQL and MariaDB alike: as many rows as five digits can count, and no more.
        let digit = "(SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL \
             SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL \
             SELECT 9)";
        let digits = ["a", "b", "c", "d", "e"].map(|name| format!("{digit} AS {name}")).join(", ");
        let mysql = format!("{insert} SELECT {row} FROM {digits} LIMIT {count}");
        deployment.change_ledger(&sqlite, &mysql);
    }
    let items = "INSERT INTO tb_seckill_product (activity_id, name, image_url, price, currency, stock, \
         total, limit_per_user, shards, state) SELECT a.id, 'pen', '', 1, 'CNY', 1, 1, 1, 1, 0 \
         FROM tb_seckill_activity AS a LEFT JOIN tb_seckill_product AS p ON p.activity_id = a.id \
         WHERE a.state = 1 AND p.id IS NULL";
    deployment.change_ledger(items, items);
}

async fn a_sale_is_warmed_sold_ended_and_compared_among_thousands_planned_later(profile: Profile) {
    let deployment = Deployment::new(profile);
    let servers = deployment.start().await;
    for pace_s in PACES_S {
        if was_sold_among_many(&deployment, &servers[0], pace_s * 1_000).await {
            return;
        }
    }
    panic!("nobody could buy it in {PACES_S:?} s");
}

/// False if it was over before somebody could buy it.
async fn was_sold_among_many(
    deployment: &Deployment,
    server: &ServerProcess,
    lasts_ms: i64,
) -> bool {
    let mut admin = server.admin();
    let (opens_at, closes_at) = (now_ms() + 500, now_ms() + lasts_ms);
    let body = json!({"name": "the old one", "opens_at": opens_at, "closes_at": closes_at,
        "items": [{"name": "x", "price": 1, "stock": 5}]});
    let created: Value = admin.write("/api/v1/admin/activities", &body).await.unwrap();
    let (id, item) = (created["id"].as_i64().unwrap(), created["items"][0]["id"].as_i64().unwrap());
    plan_many(deployment);
    let publish = format!("/api/v1/admin/activities/{id}/publish");
    if admin.post(&publish, &json!({})).await.unwrap().status != 200 {
        return false;
    }
    let page = format!("/api/v1/items/{item}");
    let mut anybody = Api::new(server.address, None);
    let state = async || anybody.read::<Value>(&page).await.unwrap()["state"].clone();
    until("it is open", state, |state| state != "waiting").await;
    let listed: Value = anybody.read("/api/v1/activities?limit=1").await.unwrap();
    let jwt = deployment.login().token(&mut anybody, "ann").await.unwrap();
    let mut ann = Api::new(server.address, Some(&jwt));
    let token = ann.post(&format!("{page}/token"), &json!({})).await.unwrap();
    let sale_token = token.json()["token"].as_str().unwrap_or_default().to_owned();
    let headers = [("x-sale-token", sale_token.as_str())];
    let claim = format!("{page}/claims");
    let claimed = ann.send("POST", &claim, &headers, br#"{"quantity":1}"#).await.unwrap();
    if now_ms() >= closes_at {
        return false;
    }
    assert_eq!(listed["activities"][0]["id"], id, "what is open comes first");
    assert!(listed["next"].is_string(), "{listed}");
    assert_eq!((token.status, claimed.status), (200, 202), "{}", claimed.json());
    // It ends by itself, and is compared.
    let activity = format!("/api/v1/admin/activities/{id}");
    let state = async || admin.read::<Value>(&activity).await.unwrap()["state"].clone();
    until("it ends", state, |state| state == "ended").await;
    let report: Value = admin.write("/api/v1/admin/reconcile", &json!({})).await.unwrap();
    let listed = report["items"].as_array().unwrap().iter();
    let ours: Vec<&Value> = listed.filter(|found| found["item_id"] == item).collect();
    assert_eq!(ours.len(), 1, "the item is in the report");
    assert_eq!(report["differences"], 0, "{}", ours[0]);
    true
}

async fn a_published_activity_is_warmed_by_itself_and_ends_by_itself(profile: Profile) {
    let deployment = Deployment::new(profile);
    let servers = deployment.start().await;
    for pace_s in PACES_S {
        if was_seen_open_and_ended(&servers[0], pace_s * 1_000).await {
            return;
        }
    }
    panic!("nobody saw it open in {PACES_S:?} s");
}

/// False if it was over before it was seen open.
async fn was_seen_open_and_ended(server: &ServerProcess, lasts_ms: i64) -> bool {
    let mut admin = server.admin();
    let closes_at = now_ms() + lasts_ms;
    let body = json!({"name": "by itself", "opens_at": now_ms() + 500, "closes_at": closes_at,
        "items": [{"name": "x", "price": 1, "stock": 5}]});
    let created: Value = admin.write("/api/v1/admin/activities", &body).await.unwrap();
    let (id, item) = (created["id"].as_i64().unwrap(), created["items"][0]["id"].as_i64().unwrap());
    let hidden = admin.get(&format!("/api/v1/items/{item}")).await.unwrap();
    assert_eq!(hidden.status, 404, "buyers do not see a draft");
    let publish = format!("/api/v1/admin/activities/{id}/publish");
    let _: Value = admin.write(&publish, &json!({})).await.unwrap();
    let state_becomes = async |wanted: &str| {
        let (mut api, page) = (Api::new(server.address, None), format!("/api/v1/items/{item}"));
        let state = async || api.read::<Value>(&page).await.unwrap()["state"].clone();
        until(wanted, state, |state| state == wanted || state == "ended").await == wanted
    };
    if !state_becomes("open").await {
        return false;
    }
    let at_gate: Value = admin.read(&format!("/api/v1/admin/items/{item}")).await.unwrap();
    if now_ms() >= closes_at {
        return false;
    }
    assert_eq!(at_gate["gate"]["left"], 5);
    state_becomes("ended").await;
    // The end of an activity closes its books with a comparison.
    let last =
        async || admin.read::<Value>("/api/v1/admin/reconcile").await.unwrap()["runs"][0].clone();
    let at_the_end = |run: &Value| run["started_at"].as_i64().is_some_and(|at| at >= closes_at);
    let run = until("a comparison at the end", last, at_the_end).await;
    assert_eq!(run["ok"], true, "{run}");
    true
}

async fn pausing_holds_everybody_and_resuming_lets_them_in(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(5)).await;
    let mut admin = sale.admin();
    let mut act = async |verb: &str| {
        let path = format!("/api/v1/admin/activities/{}/{verb}", sale.activity);
        admin.post(&path, &json!({})).await.unwrap().status
    };
    let mut buyer = sale.buyer("u1").await;
    assert_eq!(act("pause").await, 200);
    assert_eq!(buyer.claim().await, Answer::Refused("busy".into()));
    assert_eq!(act("pause").await, 200, "pausing twice is pausing once");
    assert_eq!(act("resume").await, 200);
    buyer.buy().await;
    assert_eq!(act("end").await, 200);
    assert_eq!(sale.buyer_of("u2").await, Answer::Refused("ended".into()));
    assert_eq!(act("resume").await, 409, "an ended activity stays ended");
    sale.must_hold().await;
    let audit: Value = sale.admin().read("/api/v1/admin/audit").await.unwrap();
    let actions: Vec<&str> =
        audit["entries"].as_array().unwrap().iter().filter_map(|e| e["action"].as_str()).collect();
    for action in
        ["activity.create", "activity.publish", "activity.pause", "activity.resume", "activity.end"]
    {
        assert!(actions.contains(&action), "{action} in {actions:?}");
    }
}

impl crate::fixtures::Sale {
    /// One claim of somebody whose sale token is from before the end.
    async fn buyer_of(&self, user: &str) -> Answer {
        let expires_ms = now_ms() + 60_000;
        let keys = self.deployment.keys();
        let item = sale::ItemId(self.item);
        let token =
            sale::SaleToken { user: user.parse().unwrap(), item, expires_ms, from_ms: None }
                .sign(&keys);
        let report = self.crowd(1).rush(vec![(user.into(), token)]).await;
        report.history.claims[0].answer.clone()
    }
}

async fn stock_is_raised_and_lowered_while_people_buy(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(100)).await;
    let buyers = sale.tokens((0..400).map(|n| format!("u{n}"))).await;
    let crowd = sale.crowd(16);
    let rush = tokio::spawn(async move { crowd.rush(buyers).await });
    let mut admin = sale.admin();
    let path = format!("/api/v1/admin/items/{}/stock", sale.item);
    let mut total = 100;
    for delta in [50, -20, 30, -10, -5] {
        let done = admin.post(&path, &json!({"delta": delta})).await.unwrap();
        match done.status {
            200 => total += delta,
            // Too late to take these away: they are claimed.
            422 => assert_eq!(done.json()["field"], "delta"),
            other => panic!("{other}: {:?}", done.json()),
        }
    }
    sale.history = rush.await.unwrap().history;
    sale.settle().await;
    sale.buy_the_rest("late", total as usize).await;
    let observed = sale.observe().await;
    let sold = observed.orders.iter().filter(|order| order.status.is_live()).count();
    assert_eq!((sold as i64, observed.items[0].total), (total, total));
    let below = admin.post(&path, &json!({"delta": -1})).await.unwrap();
    assert_eq!((below.status, below.json()["field"].as_str()), (422, Some("delta")));
    sale.must_hold().await;
}

async fn a_refused_stock_change_undoes_no_other(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(10).shards(2)).await;
    let other = NewSale::of(10).create(&mut sale.admin()).await.unwrap().items[0];
    let stock = |item: i64| format!("/api/v1/admin/items/{item}/stock");
    let mut admin = sale.admin();
    let _: Value = admin.write(&stock(sale.item), &json!({"delta": -5})).await.unwrap();
    let log: Value = admin.read(&format!("{}-log", stock(sale.item))).await.unwrap();
    let no = &log["rows"][0]["order_no"];
    // Through the other instance, where there is one.
    let mut elsewhere = sale.process(if profile == Profile::Solo { 0 } else { 1 }).admin();
    for (item, delta) in [(sale.item, -3), (sale.item, -30), (sale.item, 5), (other, -5)] {
        let asked = json!({"delta": delta, "adjust_no": no});
        let told = elsewhere.post(&stock(item), &asked).await.unwrap();
        assert_eq!((told.status, told.json()["field"].as_str()), (422, Some("adjust_no")));
    }
    let again = json!({"delta": -5, "adjust_no": no});
    let told: Value = elsewhere.write(&stock(sale.item), &again).await.unwrap();
    assert_eq!(told, json!({"before": 10, "after": 5}), "asked for again it is what it was");
    assert_eq!(sale.buy_the_rest("u", 12).await, 5, "nobody is promised what is not there");
    let observed = sale.observe().await;
    assert!(observed.orders.iter().all(|order| order.status.is_live()), "{observed:?}");
    sale.must_hold().await;
}

pub(crate) fn seckill(sale: &Deployment, args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(args)
        .arg("--data")
        .arg(sale.data())
        .envs(sale.launches[0].env.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap();
    // What a program would read; in words if it failed.
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

async fn reconcile_finds_what_somebody_broke_heals_it_and_says_what_it_cannot(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(10)).await;
    let mut buyer = sale.buyer("u1").await;
    let no = buyer.buy().await;
    buyer.order_becomes(&no, "unpaid").await;
    buyer.api.write::<Value>(&format!("/api/v1/orders/{no}/cancel"), &json!({})).await.unwrap();
    sale.settle().await;
    // With the server running, the command asks it.
    let (code, text) = seckill(&sale.deployment, &["reconcile"]);
    assert_eq!(code, Some(0), "{text}");
    sale.stop().await;

    // The gate forgets that the unit came back.
    let journal = rusqlite::Connection::open(sale.deployment.data().join("journal.db")).unwrap();
    assert_eq!(journal.execute("DELETE FROM entry WHERE kind = 2", []).unwrap(), 1);
    drop(journal);
    let (code, text) = seckill(&sale.deployment, &["reconcile", "--dry-run"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("gate_left") && text.contains("gate_marks"), "{text}");
    let (code, text) = seckill(&sale.deployment, &["reconcile", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    let report: Value = serde_json::from_str(text.trim()).unwrap();
    assert_eq!((&report["healed"], &report["left"]), (&json!(2), &json!(0)));
    sale.start().await;
    sale.must_hold().await;
    assert_eq!(sale.buy_the_rest("late", 12).await, 10);
    sale.stop().await;

    // A broken chain has no rule.
    let ledger = rusqlite::Connection::open(sale.deployment.ledger_file()).unwrap();
    ledger.pragma_update(None, "ignore_check_constraints", true).unwrap();
    let last = "SELECT max(id) FROM tb_stock_log";
    let change = format!("UPDATE tb_stock_log SET before_stock = 99 WHERE id = ({last})");
    ledger.execute(&change, []).unwrap();
    drop(ledger);
    let (code, text) = seckill(&sale.deployment, &["reconcile"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("ledger_chain"), "{text}");
}

async fn a_lost_claim_is_honoured_when_its_receipt_is_shown(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(2)).await;
    sale.stop().await;
    let backup = sale.deployment.dir.path().join("backup");
    copy_dir(sale.deployment.data(), &backup);
    sale.start().await;
    let mut receipts = Vec::new();
    for user in ["u1", "u2"] {
        let mut buyer = sale.buyer(user).await;
        let told = buyer.claim_with(None, r#"{"quantity":1}"#).await.json();
        receipts.push((
            user,
            told["order_no"].as_str().unwrap().to_owned(),
            told["receipt"].clone(),
        ));
    }
    sale.settle().await;
    // Somebody restores last night's backup.
    sale.stop().await;
    std::fs::remove_dir_all(sale.deployment.data()).unwrap();
    copy_dir(&backup, sale.deployment.data());
    sale.start().await;
    let mut thief = sale.buyer("u3").await;
    thief.buy().await;
    let mut answers = Vec::new();
    for (user, no, receipt) in &receipts {
        let mut buyer = sale.buyer(user).await;
        let stolen =
            thief.api.post("/api/v1/receipts", &json!({"receipt": receipt})).await.unwrap();
        assert_eq!(stolen.status, 404, "a receipt is good for its own buyer only");
        let order: Value =
            buyer.api.write("/api/v1/receipts", &json!({"receipt": receipt})).await.unwrap();
        assert_eq!(order["order_no"], *no);
        answers.push(order["status"].as_str().unwrap().to_owned());
    }
    assert_eq!(answers[0], "queued", "one unit was left for the first");
    assert_eq!(answers[1], "void", "and none for the second");
    let mut first = sale.buyer("u1").await;
    first.order_becomes(&receipts[0].1, "unpaid").await;
    let forged = first.api.post("/api/v1/receipts", &json!({"receipt": "AAAA"})).await.unwrap();
    assert_eq!((forged.status, forged.json()["field"].as_str()), (422, Some("receipt")));
    sale.must_hold().await;
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

async fn the_command_line_shows_dead_letters_tokens_and_warms(profile: Profile) {
    let deployment = Deployment::new(profile);
    // Only a server makes a data directory.
    for server in deployment.start().await {
        server.stop().await.unwrap();
    }
    let (code, text) =
        seckill(&deployment, &["token", "create", "night-shift", "--role", "viewer"]);
    assert_eq!(code, Some(0), "{text}");
    let token =
        text.split_whitespace().find(|word| word.starts_with("sk_admin_")).unwrap().to_owned();
    let (code, text) = seckill(&deployment, &["token", "create", "night-shift"]);
    assert_eq!(code, Some(2), "a name stands for one token: {text}");
    let (code, text) = seckill(&deployment, &["token", "create", "system"]);
    assert_eq!(code, Some(2), "the audit would not know who: {text}");
    let sale = deployment.open_sale(NewSale::of(1)).await;
    let audit: Value = sale.admin().read("/api/v1/admin/audit").await.unwrap();
    let by_hand = |entry: &&Value| entry["action"] == "token.create" && entry["who"] == "cli";
    let by_hand: Vec<&Value> =
        audit["entries"].as_array().unwrap().iter().filter(by_hand).collect();
    assert_eq!((by_hand.len(), &by_hand[0]["address"]), (1, &json!("cli")), "{audit}");
    let mut viewer = Api::new(sale.server().address, Some(&token));
    let _: Value = viewer.read("/api/v1/admin/overview").await.unwrap();
    let denied = viewer.post("/api/v1/admin/reconcile", &json!({})).await.unwrap();
    assert_eq!((denied.status, denied.code().as_deref()), (403, Some("forbidden")));
    for (args, expected) in [
        (vec!["dead-letters", "list"], "no dead letters"),
        (vec!["warm", &sale.activity.to_string()], "already"),
        (vec!["token", "list"], "night-shift"),
        (vec!["token", "create", "值班员"], "sk_admin_"),
        (vec!["token", "revoke", "值班员"], "revoked"),
        (vec!["doctor"], "ok"),
        (vec!["config"], "listen"),
    ] {
        let (code, text) = seckill(&sale.deployment, &args);
        assert_eq!(code, Some(0), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
    let (code, text) =
        seckill(&sale.deployment, &["dead-letters", "void", "SK0000000000000000001"]);
    assert_ne!(code, Some(0), "{text}");
}

crate::in_every_profile! {
    a_published_activity_is_warmed_by_itself_and_ends_by_itself,
    a_sale_is_warmed_sold_ended_and_compared_among_thousands_planned_later,
    pausing_holds_everybody_and_resuming_lets_them_in,
    stock_is_raised_and_lowered_while_people_buy,
    a_refused_stock_change_undoes_no_other,
    the_command_line_shows_dead_letters_tokens_and_warms,
}

crate::only_in_solo! {
    reconcile_finds_what_somebody_broke_heals_it_and_says_what_it_cannot,
    a_lost_claim_is_honoured_when_its_receipt_is_shown,
}

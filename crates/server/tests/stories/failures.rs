//! What breaks, and what the buyers notice of it.

use std::time::{Duration, Instant};

use checker::Answer;
use client::NewSale;
use serde_json::{Value, json};

use crate::fixtures::{Deployment, Profile, Sale, Webhook, becomes, until};

/// Makes every order of a buyer whose name begins with `poison` fail, for a reason of its own.
pub(crate) const POISON_SQLITE: &str = "CREATE TRIGGER poison BEFORE INSERT ON tb_seckill_order
    WHEN NEW.user_id LIKE 'poison%' AND NEW.status = 0
    BEGIN SELECT RAISE(ABORT, 'this order cannot be written'); END";
/// The same without a semicolon inside, which the client would take for the end.
pub(crate) const POISON_MYSQL: &str =
    "CREATE TRIGGER poison BEFORE INSERT ON tb_seckill_order FOR EACH ROW
    SET NEW.quantity = IF(NEW.user_id LIKE 'poison%' AND NEW.status = 0, NULL, NEW.quantity)";

pub(crate) async fn dead_letter_becomes(sale: &Sale, no: &str, state: &str) -> Value {
    let mut admin = sale.admin();
    let path = format!("/api/v1/admin/dead-letters/{no}");
    let ask = async || admin.get(&path).await.unwrap().json();
    until(&format!("{no} is {state}"), ask, |letter| letter["state"] == state).await
}

async fn a_poison_claim_delays_nobody_and_waits_for_a_person(profile: Profile) {
    let webhook = Webhook::start().await;
    let deployment = Deployment::new(profile)
        .env("SECKILL_ORDERS_RETRY_LADDER_MS", "100,100,100")
        .env("SECKILL_ORDERS_RETRY_POLL_MS", 50)
        .env("SECKILL_ALERTS_WEBHOOK_URL", &webhook.url);
    let mut sale = deployment.open_sale(NewSale::of(300)).await;
    sale.deployment.change_ledger(POISON_SQLITE, POISON_MYSQL);
    let mut users: Vec<String> = (0..298).map(|n| format!("u{n}")).collect();
    users.insert(100, "poison1".into());
    users.insert(200, "poison2".into());
    let buyers = sale.tokens(users).await;
    let report = sale.crowd(64).rush(buyers).await;
    assert_eq!(report.history.admitted(), 300);
    let number = |user: &str| {
        let claim = report.history.claims.iter().find(|claim| claim.user == user).unwrap();
        let Answer::Admitted { order_no } = claim.answer else { panic!("{claim:?}") };
        order_no.to_string()
    };
    let (first, second) = (number("poison1"), number("poison2"));
    sale.history = report.history.clone();

    // The others are orders; the two wait, visibly, and hold their units.
    let observed = sale.observe().await;
    assert_eq!(observed.orders.len(), 298);
    for no in [&first, &second] {
        let letter = dead_letter_becomes(&sale, no, "dead").await;
        let cause = letter["cause"].as_str().unwrap();
        assert!(cause.contains("cannot be written") || cause.contains("quantity"), "{letter}");
    }
    let mut poisoned = sale.buyer("poison1").await;
    assert_eq!(poisoned.order(&first).await["status"], "queued", "the buyer is still in line");
    let is_told = |no: &str| webhook.alerts().iter().any(|alert| alert["order_no"] == no);
    becomes("both are told of", async || is_told(&first) && is_told(&second)).await;
    sale.must_hold().await;

    // A person mends the cause and replays one, gives up the other.
    sale.deployment.change_ledger("DROP TRIGGER poison", "DROP TRIGGER poison");
    let mut admin = sale.admin();
    let path = |no: &str, verb: &str| format!("/api/v1/admin/dead-letters/{no}/{verb}");
    let _: Value = admin.write(&path(&first, "replay"), &json!({})).await.unwrap();
    poisoned.order_becomes(&first, "unpaid").await;
    dead_letter_becomes(&sale, &first, "settled").await;
    let _: Value = admin.write(&path(&second, "void"), &json!({})).await.unwrap();
    let mut given_up = sale.buyer("poison2").await;
    let void = given_up.order_becomes(&second, "void").await;
    assert_eq!(void["reason"], "operator");
    let again = admin.post(&path(&first, "void"), &json!({})).await.unwrap();
    assert_eq!(again.status, 409, "it is an order now");
    sale.settle().await;
    assert_eq!(sale.buy_the_rest("late", 3).await, 1, "the voided unit is sold again");
    sale.must_hold().await;
}

async fn a_ledger_blocked_for_thirty_seconds_stops_no_sale(profile: Profile) {
    const BLOCKED: Duration = Duration::from_secs(30);
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(3_000)).await;
    let buyers = sale.tokens((0..3_000).map(|n| format!("u{n}"))).await;
    let blocked = sale.deployment.block_ledger();
    let since = Instant::now();
    // Buyers keep coming while the ledger is away.
    let mut claims = Vec::new();
    for share in buyers.chunks(300) {
        let report = sale.crowd(32).rush(share.to_vec()).await;
        assert_eq!(report.history.admitted(), share.len(), "admission goes on");
        claims.extend(report.history.claims);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let Answer::Admitted { order_no } = &claims[0].answer else { panic!("{:?}", claims[0]) };
    let mut buyer = sale.buyer(&claims[0].user).await;
    assert_eq!(buyer.order(&order_no.to_string()).await["status"], "queued");
    sale.history.claims = claims;
    tokio::time::sleep(BLOCKED.saturating_sub(since.elapsed())).await;
    drop(blocked);
    assert_eq!(sale.observe().await.orders.len(), 3_000, "the backlog drained");
    let dead: Value = sale.admin().read("/api/v1/admin/dead-letters").await.unwrap();
    assert_eq!(dead["dead_letters"], json!([]), "no tries were burnt");
    sale.must_hold().await;
}

async fn a_full_disk_stops_admission_and_loses_nothing(profile: Profile) {
    // A file may grow to 6 MiB and no further; the signal for it is ignored, so writes just fail.
    let mut deployment = Deployment::new(profile);
    deployment.launches[0].wrapper =
        ["sh", "-c", "trap '' XFSZ; ulimit -f 12288; exec \"$@\"", "sh"].map(String::from).to_vec();
    let mut sale = deployment.open_sale(NewSale::of(1_000_000)).await;
    let mut refused = None;
    for round in 0..400 {
        let buyers = sale.tokens((0..200).map(|n| format!("{}-{round}-{n}", "x".repeat(40)))).await;
        let report = sale.crowd(64).rush(buyers).await;
        let full = report.history.claims.iter().find(|t| matches!(t.answer, Answer::Refused(_)));
        refused = full.cloned();
        sale.history.claims.extend(report.history.claims);
        if refused.is_some() {
            break;
        }
    }
    let refused = refused.expect("six megabytes are full at some point");
    assert_eq!(refused.answer, Answer::Refused("busy".into()));
    let mut api = sale.admin();
    assert_eq!(api.get("/api/v1/activities").await.unwrap().status, 200, "it keeps answering");
    assert_eq!(api.get("/healthz").await.unwrap().status, 200);
    // Room again.
    sale.kill();
    sale.deployment.launches[0].wrapper.clear();
    sale.start().await;
    sale.must_hold().await;
    assert_eq!(sale.buy_the_rest("after", 10).await, 10);
    sale.must_hold().await;
}

crate::in_every_profile! {
    a_poison_claim_delays_nobody_and_waits_for_a_person,
    a_ledger_blocked_for_thirty_seconds_stops_no_sale,
}

crate::only_in_solo! {
    a_full_disk_stops_admission_and_loses_nothing,
}

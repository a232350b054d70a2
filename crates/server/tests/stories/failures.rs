//! What breaks, and what the buyers notice of it.

use std::time::{Duration, Instant};

use checker::Answer;
use client::NewSale;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixtures::{Deployment, PATIENCE, Profile, Sale};

/// Makes every order of a buyer whose name begins with `poison` fail, for a reason of its own.
pub(crate) const POISON_SQLITE: &str = "CREATE TRIGGER poison BEFORE INSERT ON tb_seckill_order
    WHEN NEW.user_id LIKE 'poison%' AND NEW.status = 0
    BEGIN SELECT RAISE(ABORT, 'this order cannot be written'); END";
/// The same without a semicolon inside, which the client would take for the end.
pub(crate) const POISON_MYSQL: &str =
    "CREATE TRIGGER poison BEFORE INSERT ON tb_seckill_order FOR EACH ROW
    SET NEW.quantity = IF(NEW.user_id LIKE 'poison%' AND NEW.status = 0, NULL, NEW.quantity)";

/// Answers 200 to every POST and passes on what was posted.
async fn webhook() -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (sender, posted) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut text = String::new();
            let mut buffer = [0; 4_096];
            while !text.ends_with('}') {
                match stream.read(&mut buffer).await {
                    Ok(read) if read > 0 => {
                        text.push_str(&String::from_utf8_lossy(&buffer[..read]))
                    }
                    _ => break,
                }
            }
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                .await;
            let _ = sender.send(text);
        }
    });
    (url, posted)
}

pub(crate) async fn dead_letter_becomes(sale: &Sale, no: &str, state: &str) -> Value {
    let mut admin = sale.admin();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let response = admin.get(&format!("/api/v1/admin/dead-letters/{no}")).await.unwrap();
        let letter = response.json();
        if letter["state"] == state {
            return letter;
        }
        assert!(Instant::now() < deadline, "still {letter}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn a_poison_claim_delays_nobody_and_waits_for_a_person(profile: Profile) {
    let (url, mut posted) = webhook().await;
    let deployment = Deployment::new(profile)
        .env("SECKILL_ORDERS_RETRY_LADDER_MS", "100,100,100")
        .env("SECKILL_ORDERS_RETRY_POLL_MS", 50)
        .env("SECKILL_ALERTS_WEBHOOK_URL", url);
    let mut sale = deployment.open_sale(NewSale::of(300)).await;
    sale.deployment.change_ledger(POISON_SQLITE, POISON_MYSQL);
    let mut users: Vec<String> = (0..298).map(|n| format!("u{n}")).collect();
    users.insert(100, "poison1".into());
    users.insert(200, "poison2".into());
    let buyers = sale.tokens(users).await;
    let report = sale.crowd(64).rush(buyers).await;
    assert_eq!(report.history.admitted(), 300);
    let number = |user: &str| {
        let told = report.history.claims.iter().find(|told| told.user == user).unwrap();
        let Answer::Admitted { order_no } = told.answer else { panic!("{told:?}") };
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
    let mut alerts = String::new();
    while !(alerts.contains(&first) && alerts.contains(&second)) {
        alerts += &tokio::time::timeout(PATIENCE, posted.recv()).await.unwrap().unwrap();
    }
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
    let mut told = Vec::new();
    for share in buyers.chunks(300) {
        let report = sale.crowd(32).rush(share.to_vec()).await;
        assert_eq!(report.history.admitted(), share.len(), "admission goes on");
        told.extend(report.history.claims);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let Answer::Admitted { order_no } = &told[0].answer else { panic!("{:?}", told[0]) };
    let mut buyer = sale.buyer(&told[0].user).await;
    assert_eq!(buyer.order(&order_no.to_string()).await["status"], "queued");
    sale.history.claims = told;
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

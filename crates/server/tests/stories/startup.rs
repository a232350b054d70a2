//! Starting, stopping, and starting where one should not.

use std::{
    process::{Command, Output},
    time::{Duration, Instant},
};

use rehearsal::{Api, Login};
use serde_json::{Value, json};

use crate::house::{House, NewSale, World, now_ms};

fn serve(house: &House, env: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(house.data())
        .envs(env.iter().copied())
        .output()
        .unwrap()
}

/// One clear line and exit code 2.
fn refused(output: Output, expected: &str) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.trim().lines().count(), 1, "{text}");
    assert!(text.contains(expected), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_start_has_something_to_buy_and_the_second_goes_on_with_it() {
    let mut house = House::new(World::Solo).env("SECKILL_DEMO", "true");
    house.launches[0].env.retain(|(name, value)| name != "SECKILL_DEMO" || value == "true");
    let started = now_ms();
    let server = house.start_one().await;
    let mut api = Api::new(server.address, None);
    let shown: Value = api.read("/api/v1/activities").await.unwrap();
    let activity = &shown["activities"][0];
    let opens_in = activity["opens_at"].as_i64().unwrap() - started;
    assert!((10_000..60_000).contains(&opens_in), "opens in {opens_in} ms");
    let item = &activity["items"][0];
    assert_eq!(item["name"], "iPhone 15 Pro 256GB");
    assert_eq!((&item["price"], &item["stock"]), (&json!(699_900), &json!(10_000)));
    assert_eq!((&item["left"], &item["state"]), (&json!(10_000), &json!("waiting")));
    let server_now: Value = api.read("/api/v1/time").await.unwrap();
    assert!((server_now["now_ms"].as_i64().unwrap() - now_ms()).abs() < 5_000);
    for page in ["/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics"] {
        assert_eq!(api.get(page).await.unwrap().status, 200, "{page}");
    }
    // It drains and stops within five seconds, even with a connection held open.
    let stopping = Instant::now();
    assert_eq!(server.stop().await.unwrap(), Some(0));
    assert!(stopping.elapsed() < Duration::from_secs(5), "{:?}", stopping.elapsed());
    assert!(!house.data().join("running.json").exists());

    let server = house.start_one().await;
    let again: Value = Api::new(server.address, None).read("/api/v1/activities").await.unwrap();
    assert_eq!(again["activities"].as_array().unwrap().len(), 1, "no second demo");
    assert_eq!(again["activities"][0]["opens_at"], activity["opens_at"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_never_answers_does_not_hold_up_the_end() {
    let hole = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", hole.local_addr().unwrap());
    let house = House::new(World::Solo)
        .env("SECKILL_ALERTS_WEBHOOK_URL", url)
        .env("SECKILL_JOBS_RECONCILE_EVERY_MS", 100);
    let sale = house.open_sale(NewSale::of(5)).await;
    // Books that do not add up: every comparison raises an alert.
    let ledger = rusqlite::Connection::open(sale.house.ledger_file()).unwrap();
    ledger.busy_timeout(Duration::from_secs(10)).unwrap();
    ledger.execute("UPDATE tb_seckill_product SET total = total + 1", []).unwrap();
    drop(ledger);
    let raised = |log: String| log.matches("reconcile found").count();
    while raised(sale.house.log()) < 6 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut sale = sale;
    let stopping = Instant::now();
    sale.stop().await;
    assert!(stopping.elapsed() < Duration::from_secs(5), "{:?}", stopping.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_that_cannot_be_used_is_refused_in_one_line() {
    let house = House::new(World::Solo);
    let server = house.start_one().await;
    refused(serve(&house, &[]), "in use");
    server.stop().await.unwrap();

    let ledger = rusqlite::Connection::open(house.ledger_file()).unwrap();
    let version: i64 = ledger.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    ledger.pragma_update(None, "user_version", 9_999).unwrap();
    drop(ledger);
    refused(serve(&house, &[]), "schema");
    let ledger = rusqlite::Connection::open(house.ledger_file()).unwrap();
    ledger.pragma_update(None, "user_version", version).unwrap();
    let journal = rusqlite::Connection::open(house.data().join("journal.db")).unwrap();
    journal.pragma_update(None, "user_version", 9_999).unwrap();
    drop((ledger, journal));
    refused(serve(&house, &[]), "schema");

    let file = House::new(World::Solo);
    std::fs::remove_dir(file.data()).unwrap();
    std::fs::write(file.data(), "not a directory").unwrap();
    refused(serve(&file, &[]), "directory");
    // Nobody, not even root, can write below /proc.
    let nowhere = Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data", "/proc/seckill"])
        .output()
        .unwrap();
    refused(nowhere, "/proc/seckill");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_setting_is_named_with_the_right_one() {
    let house = House::new(World::Solo);
    let file = house.dir.path().join("seckill.toml");
    std::fs::write(&file, "[lane]\nqueu_max = 5\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(["serve", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("queu_max") && text.contains("lane.queue_max"), "{text}");
    refused(serve(&house, &[("SECKILL_LISTN", "127.0.0.1:1")]), "SECKILL_LISTEN");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_given_admin_token_and_the_shops_own_jwts_work() {
    let secret = "the shop's own secret, 32 bytes.";
    let house = House::new(World::Solo)
        .env("SECKILL_ADMIN_TOKEN", "sk_admin_given_by_the_operator")
        .env("SECKILL_JWT_SECRET", secret);
    let server = house.start_one().await;
    let mut admin = Api::new(server.address, Some("sk_admin_given_by_the_operator"));
    let (_, item) = NewSale::of(3).create(&mut admin).await;
    let shop = Login::Shop { secret: secret.into() };
    let jwt = shop.token(&mut admin, "u1002").await.unwrap();
    let mut buyer = Api::new(server.address, Some(&jwt));
    let token: Value =
        buyer.write(&format!("/api/v1/items/{item}/token"), &json!({})).await.unwrap();
    assert!(token["expires_at"].is_i64());
    let wrong = Api::new(server.address, Some("sk_admin_of_somebody_else"))
        .get("/api/v1/admin/overview")
        .await
        .unwrap();
    assert_eq!((wrong.status, wrong.code().as_deref()), (401, Some("unauthorized")));
    assert!(!house.log().contains("sk_admin_given"), "secrets do not reach the log");
}

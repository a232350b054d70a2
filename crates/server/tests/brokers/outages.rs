//! What breaks on the way: the ledger, and the broker itself.

use std::time::{Duration, Instant};

use client::NewSale;
use serde_json::{Value, json};

use crate::{
    broker::{SERVERS, address, by, may_be_silent_for_7_s},
    fixtures::{Deployment, Profile, Sale, Webhook, becomes, blocking, until},
    way::{by_broker, number_at, own_broker},
};

async fn everybody_buys(sale: &mut Sale, name: &str, count: usize) {
    let buyers = sale.tokens((0..count).map(|n| format!("{name}{n}"))).await;
    let report = sale.crowd(32).rush(buyers).await;
    assert_eq!(report.history.admitted(), count, "selling goes on");
    sale.history.claims.extend(report.history.claims);
}

async fn a_ledger_that_is_away_burns_no_tries_and_costs_no_place_in_the_group(profile: Profile) {
    // Longer than a consumer may be silent.
    const AWAY: Duration = Duration::from_secs(20);
    let deployment = may_be_silent_for_7_s(by_broker(Deployment::new(profile)));
    let mut sale = deployment.open_sale(NewSale::of(3_000)).await;
    everybody_buys(&mut sale, "before", 100).await;
    sale.settle().await;
    let blocked = sale.deployment.block_ledger();
    let since = Instant::now();
    for round in 0..5 {
        let buyers = sale.tokens((0..580).map(|n| format!("u{round}-{n}"))).await;
        let report = sale.crowd(32).rush(buyers).await;
        assert_eq!(report.history.admitted(), 580, "admission goes on");
        sale.history.claims.extend(report.history.claims);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    tokio::time::sleep(AWAY.saturating_sub(since.elapsed())).await;
    let log = sale.deployment.log();
    assert!(!log.contains("gave its partitions to others"), "nobody lost a partition: {log}");
    drop(blocked);
    assert_eq!(sale.observe().await.orders.len(), 3_000, "the backlog drained");
    let dead: Value = sale.admin().read("/api/v1/admin/dead-letters").await.unwrap();
    assert_eq!(dead["dead_letters"], json!([]), "no tries were burnt");
    sale.must_hold().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_solo_a_ledger_that_is_away_burns_no_tries() {
    a_ledger_that_is_away_burns_no_tries_and_costs_no_place_in_the_group(Profile::Solo).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_a_ledger_that_is_away_burns_no_tries() {
    a_ledger_that_is_away_burns_no_tries_and_costs_no_place_in_the_group(Profile::Cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_dies_or_hangs_stops_no_sale_and_somebody_is_told() {
    let broker = own_broker().await;
    let webhook = Webhook::start().await;
    let deployment = by(&broker, Deployment::new(Profile::Cluster))
        .env("SECKILL_ALERTS_WEBHOOK_URL", &webhook.url)
        .env("SECKILL_ALERTS_RAISE_AFTER_MS", 1_000)
        .env("SECKILL_ALERTS_RESOLVE_AFTER_MS", 1_000);
    let mut sale = deployment.open_sale(NewSale::of(10_000)).await;
    everybody_buys(&mut sale, "first", 300).await;
    sale.settle().await;
    let told = |state: &str| {
        let is_it = |alert: &&Value| alert["kind"] == "broker_down" && alert["state"] == state;
        webhook.alerts().iter().filter(is_it).count()
    };
    for (round, dies) in [true, false].into_iter().enumerate() {
        if dies {
            let dying = broker.clone();
            blocking(move || dying.kill()).await;
        } else {
            broker.pause().unwrap();
        }
        everybody_buys(&mut sale, &format!("away{round}-"), 1_000).await;
        becomes("somebody is told", async || told("raised") > round).await;
        let overview: Value = sale.admin().read("/api/v1/admin/overview").await.unwrap();
        assert!(overview["orders"]["backlog"].as_u64() > Some(0), "{overview}");
        if dies {
            let back = broker.clone();
            blocking(move || back.restart()).await;
        } else {
            broker.resume().unwrap();
        }
        sale.settle().await;
        becomes("and that it is over", async || told("resolved") > round).await;
    }
    assert_eq!(sale.observe().await.orders.len(), 2_300);
    sale.must_hold().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_lost_is_published_again() {
    let broker = own_broker().await;
    let mut sale = by(&broker, Deployment::new(Profile::Solo)).open_sale(NewSale::of(1_000)).await;
    everybody_buys(&mut sale, "first", 100).await;
    sale.settle().await;
    // Nothing is consumed while the ledger is away; and the topic, with all that is in it, is taken away.
    let blocked = sale.deployment.block_ledger();
    everybody_buys(&mut sale, "second", 200).await;
    let mut admin = sale.admin();
    let lag = async || number_at(&mut admin, "seckill_broker_lag_messages").await;
    until("the messages are at the broker", lag, |lag| *lag > 0.0).await;
    sale.kill();
    drop(blocked);
    let other = own_broker().await;
    sale.deployment = sale.deployment.env(SERVERS, address(&other));
    sale.start().await;
    assert_eq!(sale.observe().await.orders.len(), 300, "all of it came from the gate's own log");
    sale.must_hold().await;
}

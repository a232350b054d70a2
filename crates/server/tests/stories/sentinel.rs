//! The primary changes: by sentinels, under load, again and again; and behind one address, with sockets
//! that stay open.

use std::{sync::Arc, time::Instant};

use client::NewSale;
use faults::services::{RedisPair, RedisSentinels};

use crate::{
    failover::account_for,
    fixtures::{Deployment, Profile, becomes, blocking},
    traffic::{Heard, Traffic},
};

/// Visitors who ask all the time.
const VISITORS: usize = 4;
/// Sold between two changes.
const SOLD_BETWEEN: usize = 50;

async fn some_are_sold(traffic: &Traffic) {
    let before = traffic.count(Heard::is_admitted);
    let enough = before + SOLD_BETWEEN;
    becomes("some are sold", async || traffic.count(Heard::is_admitted) >= enough).await;
}

/// The primary dies and hangs in turn; each time the sentinels choose the other server.
async fn sentinels_fail_over(rounds: usize, units: i64) {
    let all = Arc::new(blocking(RedisSentinels::start).await);
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_REDIS_URL", all.url());
    let mut sale = deployment.open_sale(NewSale::of(units).shards(2)).await;
    let traffic = Traffic::start(&sale, "u", VISITORS);
    for round in 1..=rounds {
        some_are_sold(&traffic).await;
        let (failing, hangs) = (all.clone(), round % 2 == 0);
        let (address, gone) = blocking(move || {
            let primary = failing.primary()?;
            let gone = Instant::now();
            if hangs {
                primary.pause()?
            } else {
                primary.kill()?
            }
            Ok((primary.address(), gone))
        })
        .await;
        let choosing = all.clone();
        let chosen = blocking(move || choosing.wait_failed_over(address)).await;
        let reopened = traffic.until(gone, Heard::is_admitted).await;
        let how = if hangs { "hung" } else { "killed" };
        println!(
            "{round}: {how}, another primary after {chosen:.1?}, admitting after {reopened:.1?}"
        );
        let healing = all.clone();
        blocking(move || {
            if hangs {
                healing.replica()?.resume()?;
            }
            if round < rounds { healing.heal() } else { Ok(()) }
        })
        .await;
    }
    some_are_sold(&traffic).await;
    account_for(&mut sale, traffic.end().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_choose_another_primary_under_load() {
    sentinels_fail_over(2, 2_500).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "ten failovers take minutes: cargo xtask torture"]
async fn sentinels_choose_another_primary_ten_times_under_load() {
    sentinels_fail_over(10, 20_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_is_demoted_behind_its_address_while_our_sockets_to_it_stay_open() {
    let pair = Arc::new(blocking(RedisPair::start).await);
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_REDIS_URL", pair.url());
    let mut sale = deployment.open_sale(NewSale::of(3_000)).await;
    let traffic = Traffic::start(&sale, "u", VISITORS);
    for round in 1..=2 {
        some_are_sold(&traffic).await;
        let demoting = pair.clone();
        blocking(move || demoting.demote()).await;
        // The address leads to a replica for a while.
        traffic.until(Instant::now(), Heard::is_busy).await;
        let leads = Instant::now();
        pair.lead_to_the_primary();
        let reopened = traffic.until(leads, Heard::is_admitted).await;
        println!("demotion {round}: admitting {reopened:.1?} after the address led to the primary");
    }
    account_for(&mut sale, traffic.end().await).await;
}

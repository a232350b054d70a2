//! Changing `claim_log` loses nothing, whatever is where.

use client::NewSale;

use crate::{
    broker::NAME,
    fixtures::{Deployment, Profile, until},
    way::{by_broker, number_at},
};

async fn claims_that_wait_anywhere_are_settled_after_a_change_of_the_setting(profile: Profile) {
    let mut sale = by_broker(Deployment::new(profile)).open_sale(NewSale::of(3_000)).await;
    let mut bought = 0;
    // By the broker, natively, and by the broker again; each time with claims on their way and in hand.
    for (round, next) in ["native", NAME, "native"].into_iter().enumerate() {
        {
            let _blocked = sale.deployment.block_ledger();
            let buyers = sale.tokens((0..500).map(|n| format!("u{round}-{n}"))).await;
            let report = sale.crowd(32).rush(buyers).await;
            assert_eq!(report.history.admitted(), 500);
            bought += 500;
            sale.history.claims.extend(report.history.claims);
            if next == "native" {
                let worker = if profile == Profile::Solo { 0 } else { crate::fixtures::WORKERS[0] };
                let mut api = sale.process(worker).admin();
                let lag = async || number_at(&mut api, "seckill_broker_lag_messages").await;
                until("they are at the broker", lag, |lag| *lag > 0.0).await;
            }
            sale.kill();
        }
        sale.deployment = sale.deployment.env("SECKILL_CLAIM_LOG", next);
        sale.start().await;
        let observed = sale.observe().await;
        assert_eq!(observed.orders.len(), bought, "with claim_log = {next:?}");
        sale.must_hold().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_solo_a_change_of_the_setting_loses_nothing() {
    claims_that_wait_anywhere_are_settled_after_a_change_of_the_setting(Profile::Solo).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_a_change_of_the_setting_loses_nothing() {
    claims_that_wait_anywhere_are_settled_after_a_change_of_the_setting(Profile::Cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_with_different_settings_work_side_by_side() {
    let mut deployment = by_broker(Deployment::new(Profile::Cluster));
    let native = &mut deployment.launches[crate::fixtures::WORKERS[1]];
    *native = native.clone().env("SECKILL_CLAIM_LOG", "native");
    let mut sale = deployment.open_sale(NewSale::of(3_000)).await;
    let buyers = sale.tokens((0..4_000).map(|n| format!("u{n}"))).await;
    let report = sale.crowd(64).rush(buyers).await;
    sale.history = report.history;
    let observed = sale.observe().await;
    assert_eq!(observed.orders.len(), 3_000);
    sale.must_hold().await;
}

//! A gate that lost everything while a broker has claims: their units must not be sold again.

use client::NewSale;
use faults::services::{Redis, RedisOptions};

use crate::{
    fixtures::{Deployment, Profile, WORKERS, blocking, until},
    way::{by_broker, number_at},
};

#[tokio::test(flavor = "multi_thread")]
async fn units_of_claims_at_the_broker_are_not_sold_again_after_the_gate_lost_them() {
    let redis = std::sync::Arc::new(blocking(|| Redis::start(RedisOptions::default())).await);
    let deployment =
        by_broker(Deployment::new(Profile::Cluster)).env("SECKILL_REDIS_URL", redis.url());
    let mut sale = deployment.open_sale(NewSale::of(500)).await;
    {
        let _blocked = sale.deployment.block_ledger();
        let buyers = sale.tokens((0..300).map(|n| format!("u{n}"))).await;
        let report = sale.crowd(32).rush(buyers).await;
        assert_eq!(report.history.admitted(), 300);
        sale.history = report.history;
        let mut worker = sale.process(WORKERS[0]).admin();
        let lag = async || number_at(&mut worker, "seckill_broker_lag_messages").await;
        until("the messages are at the broker", lag, |lag| *lag > 0.0).await;
        // Until nothing is left to be published.
        let mut published = (-1.0, 0.0);
        while published.0 != published.1 {
            published.0 = published.1;
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            published.1 = 0.0;
            for place in WORKERS {
                let mut api = sale.process(place).admin();
                published.1 += number_at(&mut api, "seckill_relay_messages_total").await;
            }
        }
        // Redis comes back empty: no item, no mark, no claim.
        let wiped = redis.clone();
        blocking(move || wiped.wipe()).await;
    }
    // The gate is loaded again by itself, and everybody wants what is left.
    let bought = sale.buy_the_rest("late", 400).await;
    let observed = sale.observe().await;
    let live = observed.orders.iter().filter(|order| order.status.is_live()).count();
    assert_eq!(live, 500, "all units are sold");
    assert_eq!(observed.orders.len(), live, "and none was promised twice");
    assert_eq!(bought, 200);
    sale.must_hold().await;
}

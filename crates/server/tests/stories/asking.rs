//! Buyers who ask after their orders, again and again, while others still buy: what they are told, and what
//! it costs the gate.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use checker::{Answer, History};
use client::{Api, NewSale};
use faults::services::{Redis, RedisOptions, RedisPair, Reply};
use tokio::task::JoinSet;

use crate::{
    failover::{cut_replicas, heal},
    fixtures::{Deployment, Profile, Sale, blocking},
};

/// What selling may cost at the gate.
const BYTES_PER_UNIT_MAX: u64 = 200;
const CALLS_PER_CLAIM_MAX: f64 = 1.2;
/// In a small sale what every process asks each second weighs more, above all on a busy machine.
const CALLS_PER_CLAIM_SMALL_MAX: f64 = 2.0;
/// Buffers of connections come and go.
const BUFFERS_BYTES_MAX: u64 = 2 << 20;
/// Buyers who ask at the same time.
const ASKING: usize = 64;

async fn sale_at_its_own_redis(units: i64) -> (Arc<Redis>, Sale) {
    let redis = Arc::new(blocking(|| Redis::start(RedisOptions::default())).await);
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_REDIS_URL", redis.url());
    (redis, deployment.open_sale(NewSale::of(units).shards(4)).await)
}

fn used_bytes(redis: &Redis) -> u64 {
    redis.info("used_memory").unwrap().parse().unwrap()
}

/// What all keys take. What connections need comes and goes, and hides what a small sale leaves behind.
fn data_bytes(redis: &Redis) -> u64 {
    let Reply::List(keys) = redis.call(&["KEYS", "*"]).unwrap() else { return 0 };
    let bytes = |key: Reply| redis.call(&["MEMORY", "USAGE", &key.text(), "SAMPLES", "0"]).unwrap();
    keys.into_iter().map(|key| bytes(key).text().parse::<u64>().unwrap_or(0)).sum()
}

/// What clients have asked for, commands that only scripts use in a sale left out. Some of the others are in
/// scripts as well: it is rather too many than too few.
fn calls(redis: &Redis) -> u64 {
    const IN_SCRIPTS: [&str; 10] =
        ["time", "mget", "hset", "mset", "xadd", "exists", "xrange", "xack", "xdel", "decrby"];
    let stats = redis.call(&["INFO", "commandstats"]).unwrap().text();
    let called = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split_once(',')?.0.parse::<u64>().ok()?;
        (!IN_SCRIPTS.contains(&name)).then_some(calls)
    };
    stats.lines().filter_map(called).sum()
}

/// New buyers, as many as this; answers who was admitted, with their orders.
async fn buy(sale: &mut Sale, name: &str, buyers: usize) -> Vec<(String, String)> {
    let tokens = sale.tokens((0..buyers).map(|n| format!("{name}{n}"))).await;
    let report = sale.crowd(256).rush(tokens).await;
    let admitted = winners(&report.history);
    sale.history.claims.extend(report.history.claims);
    admitted
}

fn winners(history: &History) -> Vec<(String, String)> {
    let orders = history.claims.iter().filter_map(|claim| match &claim.answer {
        Answer::Admitted { order_no } => Some((claim.user.clone(), order_no.to_string())),
        _ => None,
    });
    orders.collect()
}

/// Each of them asks for their order at any instance: once, or over and over until told to stop. The
/// answer is how often they asked.
async fn ask(
    sale: &Sale,
    orders: &[(String, String)],
    until: Option<Arc<AtomicBool>>,
) -> JoinSet<u64> {
    let (addresses, login) = (sale.addresses(), sale.deployment.login());
    let mut asking = JoinSet::new();
    for (n, share) in orders.chunks(orders.len().div_ceil(ASKING)).enumerate() {
        let mut api = Api::new(addresses[n % addresses.len()], None);
        let mut questions = Vec::new();
        for (user, no) in share {
            let jwt = login.token(&mut api, user).await.unwrap();
            questions.push((format!("/api/v1/orders/{no}"), format!("Bearer {jwt}")));
        }
        let until = until.clone();
        asking.spawn(async move {
            let mut asked = 0;
            loop {
                for (path, bearer) in &questions {
                    let head = [("authorization", bearer.as_str())];
                    let order = api.send("GET", path, &head, b"").await.unwrap();
                    assert_eq!(order.status, 200, "{}", order.json());
                    asked += 1;
                }
                if until.as_ref().is_none_or(|stop| stop.load(Ordering::Relaxed)) {
                    return asked;
                }
            }
        });
    }
    asking
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_with_memory_for_the_books_alone_sells_to_the_last_unit_while_buyers_ask() {
    const UNITS: usize = 6_000;
    let (redis, mut sale) = sale_at_its_own_redis(UNITS as i64).await;
    let memory = used_bytes(&redis) + UNITS as u64 * BYTES_PER_UNIT_MAX + BUFFERS_BYTES_MAX;
    redis.call(&["CONFIG", "SET", "maxmemory", &memory.to_string()]).unwrap();
    let first = buy(&mut sale, "early", UNITS / 2).await;
    assert_eq!(first.len(), UNITS / 2);
    let stop = Arc::new(AtomicBool::new(false));
    let asking = ask(&sale, &first, Some(stop.clone())).await;
    let second = buy(&mut sale, "late", UNITS).await;
    stop.store(true, Ordering::Relaxed);
    let asked: u64 = asking.join_all().await.into_iter().sum();
    println!("{asked} times somebody asked; {} of {memory} bytes are used", used_bytes(&redis));
    assert_eq!(second.len(), UNITS / 2);
    sale.must_hold().await;
}

async fn a_sale_costs_the_gate_little(units: usize, calls_per_claim_max: f64) {
    let (redis, mut sale) = sale_at_its_own_redis(units as i64).await;
    let (bytes_before, calls_before) = (data_bytes(&redis), calls(&redis));
    let orders = buy(&mut sale, "buyer-", units).await;
    assert_eq!(orders.len(), units);
    let sold = calls(&redis) - calls_before;
    // Some of them are queued yet, some are orders.
    let asked: u64 = ask(&sale, &orders, None).await.join_all().await.into_iter().sum();
    sale.settle().await;
    let calls = calls(&redis) - calls_before;
    let bytes = data_bytes(&redis) - bytes_before;
    println!(
        "{units} units: {:.2} calls per claim, {:.2} with {asked} questions; {} bytes per unit",
        sold as f64 / units as f64,
        calls as f64 / units as f64,
        bytes / units as u64,
    );
    assert!(calls as f64 / units as f64 <= calls_per_claim_max, "{calls} calls");
    assert!(bytes / units as u64 <= BYTES_PER_UNIT_MAX, "{bytes} bytes");
    sale.must_hold().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_of_five_thousand_costs_the_gate_little() {
    a_sale_costs_the_gate_little(5_000, CALLS_PER_CLAIM_SMALL_MAX).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: cargo xtask torture"]
async fn a_sale_of_a_hundred_thousand_costs_the_gate_little() {
    a_sale_costs_the_gate_little(100_000, CALLS_PER_CLAIM_MAX).await;
}

#[tokio::test]
async fn what_was_done_at_one_instance_is_told_by_every_other() {
    const ROUNDS: usize = 10;
    let sale = Deployment::new(Profile::Cluster).open_sale(NewSale::of(2 * ROUNDS as i64)).await;
    for round in 0..ROUNDS {
        for done in ["paid", "closed"] {
            let mut buyer = sale.buyer(&format!("{done}{round}")).await;
            let order = (buyer.user.clone(), buyer.buy().await);
            buyer.order_becomes(&order.1, "unpaid").await;
            assert_eq!(told(&sale, &order).await, ["unpaid", "unpaid"]);
            if done == "paid" {
                let cashier = buyer.open_payment(&order.1).await;
                assert_eq!(buyer.at_the_cashier(&cashier, "pay").await.status, 200);
                buyer.order_becomes(&order.1, "paid").await;
            } else {
                buyer.cancel(&order.1).await;
            }
            assert_eq!(told(&sale, &order).await, [done, done]);
        }
    }
    sale.must_hold().await;
}

/// What every instance says of an order.
async fn told(sale: &Sale, (user, no): &(String, String)) -> Vec<String> {
    let mut told = Vec::new();
    for address in sale.addresses() {
        let jwt = sale.deployment.login().token(&mut Api::new(address, None), user).await.unwrap();
        let order = Api::new(address, Some(&jwt)).get(&format!("/api/v1/orders/{no}")).await;
        told.push(order.unwrap().json()["status"].as_str().unwrap_or("nothing").to_owned());
    }
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_closed_before_a_failover_read_closed_after_it() {
    const ORDERS: usize = 20;
    let pair = Arc::new(blocking(RedisPair::start).await);
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_REDIS_URL", pair.url());
    let mut sale = deployment.open_sale(NewSale::of(100)).await;
    let orders = buy(&mut sale, "buyer", ORDERS).await;
    sale.settle().await;
    for order in &orders {
        assert_eq!(told(&sale, order).await, ["unpaid", "unpaid"]);
    }
    let cutting = pair.clone();
    blocking(move || cutting.wait_in_sync().and_then(|()| cut_replicas(cutting.primary()))).await;
    // The replica has nothing of this.
    for (user, no) in &orders {
        sale.buyer(user).await.cancel(no).await;
    }
    sale.settle().await;
    let killing = pair.clone();
    blocking(move || killing.promote().map(drop)).await;
    for order in &orders {
        assert_eq!(told(&sale, order).await, ["closed", "closed"]);
    }
    println!("reconcile healed {} differences", heal(&sale).await);
    sale.must_hold().await;
}

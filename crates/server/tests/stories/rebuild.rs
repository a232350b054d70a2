//! An item with very many orders, or a ledger that is very slow: whoever brings the item to the gate is
//! left alone until it is done, and needs little memory for it.

use std::{sync::Arc, time::Duration};

use checker::Answer;
use client::NewSale;
use faults::services::{MariaDb, MariaDbOptions, Redis, RedisOptions, numbers_to};
use tokio::time::Instant;

use crate::fixtures::{Deployment, PARTITIONS, Profile, Sale, WEBS, becomes, blocking};

const SHARDS: u32 = 4;
/// Without a sign of life for so long a loader counts as dead.
const QUIET_MAX: Duration = Duration::from_secs(10);
/// What one process may take.
const RESIDENT_MB_MAX: u64 = 256;

struct Engines {
    redis: Arc<Redis>,
    ledger: Arc<MariaDb>,
}

impl Engines {
    async fn start(buffer_pool_mb: u32) -> Engines {
        let options = MariaDbOptions { buffer_pool_mb, ..MariaDbOptions::default() };
        Engines {
            redis: Arc::new(blocking(|| Redis::start(RedisOptions::default())).await),
            ledger: Arc::new(blocking(|| MariaDb::start(options)).await),
        }
    }

    /// Two processes that do everything.
    async fn open_sale(&self, stock: i64) -> Sale {
        let mut deployment = Deployment::new(Profile::Cluster);
        deployment.launches.truncate(WEBS.len());
        deployment.launches.iter_mut().for_each(|launch| launch.args.clear());
        let ledger = self.ledger.create_database(&deployment.database).unwrap();
        let deployment =
            deployment.env("SECKILL_LEDGER_URL", ledger).env("SECKILL_REDIS_URL", self.redis.url());
        deployment.open_sale(NewSale::of(stock).shards(SHARDS)).await
    }

    async fn query(&self, sale: &Sale, sql: &str) -> String {
        let (ledger, sql) =
            (self.ledger.clone(), format!("USE {}; {sql}", sale.deployment.database));
        blocking(move || ledger.query(&sql)).await
    }

    async fn epoch(&self, sale: &Sale) -> u64 {
        let sql = format!("SELECT epoch FROM tb_seckill_product WHERE id = {}", sale.item);
        self.query(sale, &sql).await.trim().parse().unwrap()
    }

    /// So many buyers have paid, and the gate has never heard of them.
    async fn sell_behind_the_gate(&self, sale: &Sale, orders: u64) {
        let (activity, item, numbers) = (sale.activity, sale.item, numbers_to(orders));
        let sql = format!(
            "INSERT INTO tb_seckill_order (order_no, user_id, activity_id, product_id, product_name,
                 price, currency, quantity, amount, status, epoch, claim_key, claimed_at, pay_deadline,
                 created_at, paid_at)
             SELECT CONCAT('SK', LPAD(seq, 19, '0')), CONCAT('buyer', seq), {activity}, {item}, 'thing',
                 100, 'CNY', 1, 100, 1, 1, seq, 0, 0, 0, 1 FROM {numbers};
             UPDATE tb_seckill_product SET stock = stock - {orders} WHERE id = {item}"
        );
        self.query(sale, &sql).await;
    }

    fn marks(&self, sale: &Sale) -> u64 {
        let marks = |p: usize| {
            let key = format!("{}:{{p{p}}}:users:{}", sale.deployment.database, sale.item);
            self.redis.call(&["HLEN", &key]).unwrap().text().parse::<u64>().unwrap()
        };
        (0..PARTITIONS).map(marks).sum()
    }

    fn is_being_loaded(&self, sale: &Sale) -> bool {
        (0..PARTITIONS).any(|p| {
            let key = format!("{}:{{p{p}}}:meta:{}", sale.deployment.database, sale.item);
            self.redis.call(&["HEXISTS", &key, "loading"]).unwrap().text() == "1"
        })
    }
}

/// Until somebody is admitted.
async fn until_it_sells(sale: &Sale, user: &str) {
    let mut buyer = sale.buyer(user).await;
    becomes("somebody is admitted", async || {
        matches!(buyer.claim().await, Answer::Admitted { .. })
    })
    .await;
}

/// The most memory that a process has had, in megabytes.
fn resident_mb_max(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// The gate is emptied, and then made to doubt what it has: twice everything comes from the ledger.
async fn rebuild(orders: u64, buffer_pool_mb: u32) -> [Duration; 2] {
    let engines = Engines::start(buffer_pool_mb).await;
    let sale = engines.open_sale(orders as i64 + 1_000).await;
    engines.sell_behind_the_gate(&sale, orders).await;
    let before = engines.epoch(&sale).await;
    let mut took = Vec::new();
    for (n, cause) in ["emptied", "in doubt"].into_iter().enumerate() {
        let begun = Instant::now();
        if n == 0 {
            engines.redis.call(&["FLUSHALL", "ASYNC"]).unwrap();
        } else {
            for p in 0..PARTITIONS {
                let key = format!("{}:{{p{p}}}:meta:{}", sale.deployment.database, sale.item);
                engines.redis.call(&["HSET", &key, "seq", "0"]).unwrap();
            }
            becomes("it is loaded anew", async || engines.epoch(&sale).await > before + 1).await;
        }
        becomes("all are marked", async || engines.marks(&sale) >= orders).await;
        until_it_sells(&sale, &format!("late{n}")).await;
        took.push(begun.elapsed());
        let resident: Vec<u64> =
            WEBS.iter().map(|web| resident_mb_max(sale.process(*web).pid())).collect();
        println!(
            "{cause}: {orders} orders at the gate again after {:.1?}, epoch {} after {before}, at most \
             {resident:?} MB per process",
            begun.elapsed(),
            engines.epoch(&sale).await
        );
        assert!(resident.iter().all(|mb| *mb <= RESIDENT_MB_MAX), "{resident:?}");
        assert_eq!(engines.marks(&sale), orders + 1 + n as u64);
        let known = sale.buyer(&format!("buyer{orders}")).await.claim().await;
        assert!(matches!(known, Answer::AlreadyBought { .. }), "{known:?}");
    }
    let after = engines.epoch(&sale).await;
    assert_eq!(after, before + 2, "nobody was overtaken");
    [took[0], took[1]]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_with_a_hundred_thousand_orders_is_loaded_once() {
    rebuild(100_000, 128).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a torture of minutes: cargo xtask torture"]
async fn an_item_with_four_million_orders_is_loaded_within_a_minute() {
    let took = rebuild(4_000_000, 1_024).await;
    // A debug build is several times as slow, and takes no figures.
    if !cfg!(debug_assertions) {
        assert!(took.iter().all(|took| *took <= Duration::from_secs(60)), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loader_whose_ledger_is_slow_is_left_alone() {
    let engines = Engines::start(64).await;
    let mut sale = engines.open_sale(100).await;
    assert_eq!(sale.buy_the_rest("early", 10).await, 10);
    sale.settle().await;
    // Of all that goes on in the ledger now, only a load reads this table.
    let lock = format!("USE {}; LOCK TABLES tb_stock_log WRITE;", sale.deployment.database);
    let held = engines.ledger.hold(&lock).unwrap();
    engines.redis.call(&["FLUSHALL"]).unwrap();
    becomes("somebody loads it", async || engines.is_being_loaded(&sale)).await;
    // Both may have begun at once; then one of them gives way.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let epoch = engines.epoch(&sale).await;
    tokio::time::sleep(QUIET_MAX + Duration::from_secs(2)).await;
    assert!(engines.is_being_loaded(&sale));
    assert_eq!(engines.epoch(&sale).await, epoch, "the other one waits, although it takes long");
    drop(held);
    until_it_sells(&sale, "late").await;
    assert_eq!(engines.epoch(&sale).await, epoch);
    assert_eq!(engines.marks(&sale), 11);
}

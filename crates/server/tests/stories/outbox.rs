//! What the ledger still owes while one of those it is owed to does not answer.

use std::time::{Duration, Instant};

use client::NewSale;
use faults::services::{RedisCluster, shared_mariadb};
use serde_json::json;

use crate::{
    cluster::partition_of,
    fixtures::{Buyer, Deployment, PARTITIONS, Profile, Sale, becomes, blocking},
};

/// Orders that are cancelled on the server that hangs.
const CANCELLED: usize = 40;
const UNITS: i64 = 50;
/// A unit on another server is back within this. It took 75 s when everything waited in one queue.
const BACK_WITHIN: Duration = Duration::from_secs(10);

/// A Redis Cluster in which nobody takes over from a primary that hangs, and the others sell on.
fn without_failover() -> std::io::Result<RedisCluster> {
    let cluster = RedisCluster::start()?;
    for node in cluster.nodes() {
        node.call(&["CONFIG", "SET", "cluster-require-full-coverage", "no"])?;
        node.call(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"])?;
    }
    Ok(cluster)
}

struct Shop {
    sale: Sale,
    cluster: RedisCluster,
    /// One for each partition.
    items: Vec<i64>,
}

impl Shop {
    fn key(&self, item: i64) -> String {
        let (prefix, p) = (&self.sale.deployment.database, partition_of(item, "", 1));
        format!("{prefix}:{{p{p}}}:stock:{item}")
    }

    fn shard(&self, item: i64) -> usize {
        self.cluster.shard_of(&self.key(item)).unwrap()
    }

    /// Units at the gate, by the server that has them.
    fn left(&self, item: i64) -> i64 {
        let primary = self.cluster.primary(self.shard(item)).unwrap();
        primary.call(&["GET", &self.key(item)]).unwrap().text().parse().unwrap()
    }

    /// Somebody with an order of this item.
    async fn buyer_of(&mut self, item: i64, user: &str) -> (Buyer, String) {
        self.sale.item = item;
        let mut buyer = self.sale.buyer(user).await;
        let no = buyer.buy().await;
        buyer.order_becomes(&no, "unpaid").await;
        (buyer, no)
    }

    fn waiting(&self, condition: &str) -> usize {
        let database = &self.sale.deployment.database;
        let sql = format!("SELECT COUNT(*) FROM {database}.tb_outbox WHERE {condition}");
        let counted = shared_mariadb().query(&sql).unwrap();
        counted.split_whitespace().last().unwrap().parse().unwrap()
    }
}

/// Not waited for: an answer may have to wait for the server that hangs, the ledger does not.
fn cancel((mut buyer, no): (Buyer, String)) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let path = format!("/api/v1/orders/{no}/cancel");
        let _ = buyer.api.post(&path, &json!({})).await;
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_unit_comes_back_while_another_server_hangs_with_news_and_releases_pending() {
    let cluster = blocking(without_failover).await;
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_REDIS_URL", cluster.urls());
    let sale = deployment.open_sale(NewSale::of(1)).await;
    let many = NewSale { items: PARTITIONS, ..NewSale::of(UNITS) };
    let items = many.create(&mut sale.admin()).await.unwrap().items;
    let mut shop = Shop { sale, cluster, items };
    let hangs = shop.items[0];
    let lives = *shop.items.iter().find(|item| shop.shard(**item) != shop.shard(hangs)).unwrap();
    // A first unit of each goes back, so that whoever does that knows the way.
    for item in [hangs, lives] {
        cancel(shop.buyer_of(item, "first").await).await.unwrap();
        becomes("the first unit is back", async || shop.left(item) == UNITS).await;
    }
    let mut orders = Vec::new();
    for n in 0..CANCELLED {
        orders.push(shop.buyer_of(hangs, &format!("a{n}")).await);
    }
    let early = shop.buyer_of(lives, "early").await;
    let late = shop.buyer_of(lives, "late").await;
    assert_eq!((shop.left(hangs), shop.left(lives)), (UNITS - CANCELLED as i64, UNITS - 2));

    let victim = shop.shard(hangs);
    shop.cluster.primary(victim).unwrap().pause().unwrap();
    let cancelled: Vec<_> = orders.into_iter().map(cancel).collect();
    becomes("the units of the hung server wait", async || {
        shop.waiting("kind = 'release'") >= CANCELLED
    })
    .await;
    for (order, left) in [(early, UNITS - 1), (late, UNITS)] {
        let asked = Instant::now();
        let answered = cancel(order);
        becomes("the unit is back", async || shop.left(lives) == left).await;
        let took = asked.elapsed();
        println!("a cancelled unit was back after {took:.1?}");
        assert!(took < BACK_WITHIN, "{took:?}");
        drop(answered);
    }
    becomes("the others wait in a line", async || shop.waiting("waits_for <> ''") >= CANCELLED)
        .await;
    assert!(shop.waiting("kind = 'release'") >= CANCELLED, "and none of them is lost");

    let awake = Instant::now();
    shop.cluster.nodes()[victim].resume().unwrap();
    becomes("all are back", async || shop.left(hangs) == UNITS).await;
    println!("the hung server had all {CANCELLED} back after {:.1?}", awake.elapsed());
    for answered in cancelled {
        answered.await.unwrap();
    }
    shop.sale.item = lives;
    shop.sale.settle().await;
    shop.sale.must_hold().await;
}

//! What only a cluster has: shards and partitions, several loaders and workers, a ledger that is away.

use std::{process::Command, sync::Arc, time::Instant};

use checker::Answer;
use client::{Api, NewSale};
use faults::services::{
    MariaDb, MariaDbOptions, Redis, RedisCluster, RedisOptions, Reply, shared_cluster,
    shared_redis, wait_stopped,
};
use serde_json::{Value, json};

use crate::fixtures::{
    Deployment, PARTITIONS, Profile, Sale, WEBS, WORKERS, becomes, blocking, now_ms, until,
};

/// Where the gate keeps a buyer: a copy of its rule, which must never change.
fn shard_of(user: &str, shards: u32) -> u32 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut hash = user.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 33;
    (hash % u64::from(shards)) as u32
}

pub(crate) fn partition_of(item: i64, user: &str, shards: u32) -> usize {
    (item as usize + shard_of(user, shards) as usize) % PARTITIONS
}

/// Names of buyers of these shards.
fn buyers_of(
    name: &str,
    shards: u32,
    wanted: impl Fn(u32) -> bool,
) -> impl Iterator<Item = String> {
    (0..).map(move |n| format!("{name}{n}")).filter(move |user| wanted(shard_of(user, shards)))
}

/// One command to whoever serves the key.
fn ask_cluster(cluster: &RedisCluster, command: &[&str]) -> Reply {
    cluster.primary(cluster.shard_of(command[1]).unwrap()).unwrap().call(command).unwrap()
}

/// How many buyers each partition has marked.
fn marks(cluster: &RedisCluster, sale: &Sale) -> Vec<String> {
    let key = |p: usize| format!("{}:{{p{p}}}:users:{}", sale.deployment.database, sale.item);
    (0..PARTITIONS).map(|p| ask_cluster(cluster, &["HLEN", &key(p)]).text()).collect()
}

async fn skewed_buyers(buyers: Vec<String>, units: i64, shards: u32) -> (Sale, Vec<String>) {
    let cluster = shared_cluster();
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_REDIS_URL", cluster.urls());
    let mut sale = deployment.open_sale(NewSale::of(units).shards(shards)).await;
    let everybody = buyers.len();
    let buyers = sale.tokens(buyers).await;
    let report = sale.crowd(2_000).rush(buyers).await;
    let per_second = report.per_second();
    println!(
        "{everybody} buyers: {} admitted, {per_second:.0} answers/s",
        report.history.admitted()
    );
    let odd = report
        .history
        .claims
        .iter()
        .find(|told| !matches!(told.answer, Answer::Admitted { .. } | Answer::SoldOut));
    assert!(odd.is_none(), "{odd:?}");
    assert_eq!(report.history.admitted() as i64, units, "none stranded, none too many");
    let winner = report.history.claims.iter().find(|t| matches!(t.answer, Answer::Admitted { .. }));
    let winner = winner.unwrap().user.clone();
    sale.history = report.history;
    // This file's copy of the gate's rule is right.
    let home = partition_of(sale.item, &winner, shards);
    let key = format!("{}:{{p{home}}}:users:{}", sale.deployment.database, sale.item);
    assert_eq!(ask_cluster(cluster, &["HEXISTS", &key, &winner]), Reply::Number(1));
    let marks = marks(cluster, &sale);
    (sale, marks)
}

async fn must_be_sold_out(sale: &mut Sale) {
    assert_eq!(sale.buy_the_rest("late", 200).await, 0);
    let observed = sale.observe().await;
    assert_eq!((observed.items[0].stock, observed.items[0].gate_left), (0, Some(0)));
    sale.must_hold().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_of_the_buyers_on_one_of_four_shards() {
    const SHARDS: u32 = 4;
    let hot = buyers_of("h", SHARDS, |shard| shard == 2).take(10_000);
    let cold = buyers_of("c", SHARDS, |shard| shard != 2).take(10_000);
    // In turns, so that both kinds come all the time.
    let buyers = hot.zip(cold).flat_map(|(hot, cold)| [hot, cold]).collect();
    let (mut sale, marks) = skewed_buyers(buyers, 1_000, SHARDS).await;
    println!("sold by partition: {}", marks.join(" + "));
    must_be_sold_out(&mut sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_buyers_on_one_of_four_shards() {
    const SHARDS: u32 = 4;
    let buyers = buyers_of("o", SHARDS, |shard| shard == 1).take(3_000).collect();
    let (mut sale, marks) = skewed_buyers(buyers, 500, SHARDS).await;
    println!("sold by partition: {}", marks.join(" + "));
    assert_eq!(marks.iter().filter(|marks| *marks != "0").count(), 1, "{marks:?}");
    must_be_sold_out(&mut sale).await;
}

/// A MariaDB that only this story uses, and the address of an empty database in it.
pub(crate) async fn own_ledger(database: &str) -> (Arc<MariaDb>, String) {
    let ledger = blocking(|| MariaDb::start(MariaDbOptions::default())).await;
    let url = ledger.create_database(database).unwrap();
    (Arc::new(ledger), url)
}

pub(crate) async fn kill_ledger(ledger: &Arc<MariaDb>) {
    let ledger = ledger.clone();
    blocking(move || ledger.kill()).await;
}

pub(crate) async fn restart_ledger(ledger: &Arc<MariaDb>) {
    let ledger = ledger.clone();
    blocking(move || ledger.restart()).await;
}

pub(crate) fn signal(pid: u32, name: &str) {
    let command = format!("kill -{name} {pid}");
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    if name == "STOP" {
        wait_stopped(pid).unwrap();
    }
}

/// How many entries of the claim log this process has taken and not acknowledged.
fn pending(redis: &Redis, sale: &Sale, pid: u32) -> usize {
    let of_pid = format!("-{pid}-");
    let streams = (0..PARTITIONS).map(|p| format!("{}:{{p{p}}}:orders", sale.deployment.database));
    let rows = streams.flat_map(|stream| {
        match redis.call(&["XPENDING", &stream, "workers", "-", "+", "10000"]) {
            Ok(Reply::List(rows)) => rows,
            _ => Vec::new(),
        }
    });
    let mine = |row: &Reply| match row {
        Reply::List(row) => row.get(1).is_some_and(|name| name.text().contains(&of_pid)),
        _ => false,
    };
    rows.filter(mine).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_worker_that_wakes_again_creates_nothing_twice() {
    const CLAIMS: usize = 600;
    let redis = shared_redis();
    let (ledger, database) = own_ledger("stopped").await;
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_LEDGER_URL", database);
    let mut sale = deployment.open_sale(NewSale::of(CLAIMS as i64 + 100).shards(4)).await;
    let buyers = sale.tokens((0..CLAIMS).map(|n| format!("u{n}"))).await;
    // Without a ledger both workers sit on what they have taken.
    kill_ledger(&ledger).await;
    let report = sale.crowd(16).rush(buyers).await;
    assert_eq!(report.history.admitted(), CLAIMS);
    sale.history = report.history;
    let [sleeper, awake] = WORKERS.map(|place| sale.process(place).pid());
    becomes("a worker has taken claims", async || pending(redis, &sale, sleeper) > 0).await;
    signal(sleeper, "STOP");
    let held = pending(redis, &sale, sleeper);
    restart_ledger(&ledger).await;
    let back = Instant::now();
    sale.settle().await;
    println!(
        "{held} entries were held by the sleeper; settled {:.1?} after the ledger was back",
        back.elapsed()
    );
    assert!(held > 0);
    assert_eq!(sale.observe().await.orders.len(), CLAIMS, "the other one has done all the work");
    assert_eq!(pending(redis, &sale, sleeper), 0);
    signal(sleeper, "CONT");
    // It works again: with the other one dead it is the only one who can.
    sale.kill_one(WORKERS[1]);
    assert_eq!(sale.buy_the_rest("late", 100).await, 100);
    let observed = sale.observe().await;
    assert_eq!(observed.orders.len(), CLAIMS + 100);
    assert_eq!(observed.items[0].stock_log.len(), CLAIMS + 100, "nothing twice");
    assert_eq!((pending(redis, &sale, sleeper), pending(redis, &sale, awake)), (0, 0));
    sale.must_hold().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_was_settled_never_reads_queued_while_the_ledger_is_away() {
    let (ledger, database) = own_ledger("away").await;
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_LEDGER_URL", database);
    let sale = deployment.open_sale(NewSale::of(10)).await;
    let (mut ann, mut bob) = (sale.buyer("ann").await, sale.buyer("bob").await);
    let paid = ann.buy().await;
    ann.order_becomes(&paid, "unpaid").await;
    let cashier = ann.open_payment(&paid).await;
    assert_eq!(ann.at_the_cashier(&cashier, "pay").await.status, 200);
    let order = ann.order_becomes(&paid, "paid").await;
    assert!(order.get("stale").is_none(), "{order}");
    // Of what is news to an instance nothing is remembered there; now there are none.
    sale.settle().await;
    assert_eq!(ann.order(&paid).await["status"], "paid");

    kill_ledger(&ledger).await;
    // A claim that waits on the log is queued, and was so when it was made.
    let queued = bob.buy().await;
    let waiting = bob.order(&queued).await;
    assert_eq!((&waiting["status"], &waiting["stale"]), (&json!("queued"), &json!(true)));
    assert!((now_ms() - waiting["as_of"].as_i64().unwrap()).abs() < 60_000, "{waiting}");
    // Where somebody has read the order, it is what it was then.
    let order = ann.order(&paid).await;
    assert_eq!((&order["status"], &order["stale"]), (&json!("paid"), &json!(true)), "{order}");
    assert!(order["as_of"].is_i64(), "{order}");
    // At the other instance nobody can tell: the gate only knows that she holds something.
    let jwt = sale.deployment.login().token(&mut ann.api, "ann").await.unwrap();
    let mut told = Vec::new();
    for address in sale.addresses() {
        let mut there = Api::new(address, Some(&jwt));
        let order = there.get(&format!("/api/v1/orders/{paid}")).await.unwrap();
        told.push((order.status, order.json()["code"].as_str().map(str::to_owned)));
    }
    told.sort();
    assert_eq!(told, [(200, None), (503, Some("busy".into()))]);
    for path in ["/api/v1/orders".to_owned(), "/api/v1/events".to_owned()] {
        assert_eq!(ann.api.get(&path).await.unwrap().status, 503, "{path}");
    }
    for verb in ["cancel", "payments"] {
        let path = format!("/api/v1/orders/{queued}/{verb}");
        let refused = bob.api.post(&path, &json!({"provider": "sandbox"})).await.unwrap();
        assert_eq!(refused.status, 503, "{verb}: {}", refused.json());
    }

    restart_ledger(&ledger).await;
    let order = bob.order_becomes(&queued, "unpaid").await;
    assert!(order.get("stale").is_none(), "{order}");
    assert_eq!(ann.order_becomes(&paid, "paid").await["status"], "paid");
    sale.must_hold().await;
}

/// Entries of the claim log that are on it, and those that some worker has taken.
fn on_log(redis: &Redis, sale: &Sale) -> (usize, usize) {
    let streams = (0..PARTITIONS).map(|p| format!("{}:{{p{p}}}:orders", sale.deployment.database));
    let counts = streams.map(|stream| {
        let length = redis.call(&["XLEN", &stream]).unwrap().text().parse::<usize>().unwrap();
        let taken = match redis.call(&["XPENDING", &stream, "workers", "-", "+", "10000"]) {
            Ok(Reply::List(rows)) => rows.len(),
            _ => 0,
        };
        (length, taken)
    });
    counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_a_worker_has_in_hand_when_the_log_loses_them_are_adopted() {
    const CLAIMS: usize = 60;
    const UNITS: usize = 100;
    let redis = shared_redis();
    let (ledger, database) = own_ledger("in_hand").await;
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_LEDGER_URL", database);
    let mut sale = deployment.open_sale(NewSale::of(UNITS as i64).shards(2)).await;
    let buyers = sale.tokens((0..CLAIMS).map(|n| format!("u{n}"))).await;
    kill_ledger(&ledger).await;
    let report = sale.crowd(16).rush(buyers).await;
    assert_eq!(report.history.admitted(), CLAIMS);
    sale.history = report.history;
    becomes("all are in the hands of workers", async || {
        let (length, taken) = on_log(redis, &sale);
        length > 0 && length == taken
    })
    .await;
    let workers = WORKERS.map(|place| sale.process(place).pid());
    workers.iter().for_each(|pid| signal(*pid, "STOP"));
    restart_ledger(&ledger).await;
    // As after a failover to a replica that had seen none of it.
    for p in 0..PARTITIONS {
        let key = |what: &str| format!("{}:{{p{p}}}:{what}", sale.deployment.database);
        redis.call(&["XTRIM", &key("orders"), "MAXLEN", "0"]).unwrap();
        redis.call(&["SET", &key("backlog"), "0"]).unwrap();
    }
    sale.act("warm?anew=true").await;
    let gate = async || sale.sides().await["gate"].clone();
    assert_eq!(gate().await["left"], UNITS, "neither log nor ledger knew of them");
    workers.iter().for_each(|pid| signal(*pid, "CONT"));
    let adopted = |gate: &Value| gate["left"] == UNITS - CLAIMS && gate["marks"] == CLAIMS;
    until("they are adopted", gate, adopted).await;
    assert_eq!(sale.observe().await.orders.len(), CLAIMS);
    assert_eq!(sale.buy_the_rest("late", UNITS).await, UNITS - CLAIMS, "none too many");
    sale.must_hold().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_is_paused_while_redis_sleeps_is_paused_when_it_wakes() {
    let redis = Arc::new(blocking(|| Redis::start(RedisOptions::default())).await);
    let deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", redis.url())
        .env("SECKILL_REDIS_ANSWER_MS_MAX", 500);
    let sale = deployment.open_sale(NewSale::of(5)).await;
    let mut buyer = sale.buyer("u1").await;
    redis.pause().unwrap();
    let told = sale.act("pause").await;
    assert_eq!((&told["state"], &told["at_gate"]), (&json!("paused"), &json!("pending")), "{told}");
    redis.resume().unwrap();
    let path = format!("/api/v1/admin/items/{}", sale.item);
    let shut = async || sale.admin().get(&path).await.unwrap().json()["gate"]["shut"].clone();
    until("the gate follows", shut, |shut| shut == "paused").await;
    assert_eq!(buyer.claim().await, Answer::Refused("busy".into()));
    let told = sale.act("resume").await;
    assert_eq!((&told["state"], &told["at_gate"]), (&json!("published"), &json!("done")), "{told}");
    buyer.buy().await;
    sale.must_hold().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_that_load_an_item_in_a_rush_sell_no_unit_twice() {
    const UNITS: i64 = 600;
    let deployment = Deployment::new(Profile::Cluster);
    let mut sale = deployment.open_sale(NewSale::of(UNITS).shards(3)).await;
    let buyers = sale.tokens((0..3_000).map(|n| format!("u{n}"))).await;
    let crowd = sale.crowd(32);
    let rush = tokio::spawn(async move { crowd.rush(buyers).await });
    let path = format!("/api/v1/admin/activities/{}/warm?anew=true", sale.activity);
    let loaders = WEBS.map(|place| {
        let (mut admin, path) = (sale.process(place).admin(), path.clone());
        async move {
            let mut loads = 0;
            while loads < 25 {
                let anew = admin.post(&path, &json!({})).await.unwrap();
                // Whoever is overtaken all the time says so.
                assert!(anew.status < 300 || anew.status == 409, "{}", anew.json());
                loads += 1;
            }
        }
    });
    futures_util::future::join_all(loaders).await;
    let report = rush.await.unwrap();
    sale.history = report.history;
    sale.buy_the_rest("late", UNITS as usize).await;
    let observed = sale.observe().await;
    let live = observed.orders.iter().filter(|order| order.status.is_live()).count();
    let void = observed.orders.len() - live;
    assert_eq!((live, void), (UNITS as usize, 0), "all are sold, none was promised twice");
    sale.must_hold().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_shards_than_partitions_are_refused() {
    let servers = Deployment::new(Profile::Cluster).start().await;
    let body = json!({
        "name": "wide", "opens_at": now_ms(), "closes_at": now_ms() + 3_600_000,
        "items": [{"name": "a", "price": 1, "currency": "CNY", "stock": 9, "limit_per_user": 1,
            "shards": PARTITIONS + 1}]
    });
    let refused = servers[0].admin().post("/api/v1/admin/activities", &body).await.unwrap();
    assert_eq!((refused.status, refused.code().as_deref()), (422, Some("invalid")));
    assert_eq!(refused.json()["field"], "items[0].shards", "{}", refused.json());
}

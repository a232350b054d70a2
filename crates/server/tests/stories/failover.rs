//! Engines that die, fail over, forget or fall asleep, and processes that are killed one at a time.
//!
//! A Redis failover may lose what was acknowledged. Claims lost by it come back with their receipts,
//! or are void with a reason; nothing is ever sold twice.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use checker::Answer;
use client::{Api, NewSale};
use faults::services::{Client, MariaDb, Redis, RedisCluster, RedisOptions, RedisPair, SHARDS};
use sale::OrderNo;
use serde_json::{Value, json};

use crate::{
    cluster::{kill_ledger, own_ledger, partition_of, restart_ledger, signal},
    fixtures::{Deployment, PARTITIONS, Profile, Sale, WEBS, WORKERS, becomes, blocking, until},
    traffic::{Heard, Traffic},
};

/// Present a receipt until there is an answer; the order as its buyer sees it then.
async fn present(sale: &Sale, user: &str, receipt: &str) -> Value {
    let addresses = sale.addresses();
    let address = addresses[fastrand::usize(..addresses.len())];
    let jwt = sale.deployment.login().token(&mut Api::new(address, None), user).await.unwrap();
    let mut api = Api::new(address, Some(&jwt));
    let body = json!({"receipt": receipt});
    let ask = async || {
        let shown = api.post("/api/v1/receipts", &body).await.unwrap();
        assert!([200, 503].contains(&shown.status), "{}", shown.json());
        (shown.status, shown.json())
    };
    until("a receipt is accepted", ask, |(status, _)| *status == 200).await.1
}

/// The numbers of all orders, void ones among them.
async fn orders(sale: &Sale) -> HashSet<OrderNo> {
    sale.observe().await.orders.iter().map(|order| order.order_no).collect()
}

/// All who were admitted and whose order is nowhere show their receipts. Answers how many that
/// were, and how they are now.
async fn show_lost_receipts(sale: &Sale, heard: &[Heard]) -> BTreeMap<String, usize> {
    let known = orders(sale).await;
    let mut shown = BTreeMap::new();
    for heard in heard {
        let Answer::Admitted { order_no } = &heard.answer else { continue };
        if known.contains(order_no) {
            continue;
        }
        let order = present(sale, &heard.user, heard.receipt.as_ref().unwrap()).await;
        assert_eq!(order["order_no"], order_no.to_string());
        let state = format!("{} {}", order["status"].as_str().unwrap(), order["reason"]);
        *shown.entry(state).or_default() += 1;
    }
    shown
}

/// Reconcile, and let it heal what a lost write left behind. Answers how much that was.
pub(crate) async fn heal(sale: &Sale) -> u64 {
    sale.settle().await;
    let report = client::reconcile(&mut sale.admin(), "heal=true").await.unwrap();
    assert_eq!(report["left"], 0, "{report:#}");
    report["differences"].as_u64().unwrap()
}

/// What every story of lost writes ends with: receipts shown, differences healed, everything true,
/// and the rest sold to the last unit.
pub(crate) async fn account_for(sale: &mut Sale, heard: Vec<Heard>) {
    sale.history.claims.extend(heard.iter().map(|heard| heard.told(sale.item)));
    let shown = show_lost_receipts(sale, &heard).await;
    println!("lost and shown again: {shown:?}");
    println!("reconcile healed {} differences", heal(sale).await);
    sale.must_hold().await;
    let left = sale.observe().await.items[0].stock as usize;
    let bought = sale.buy_the_rest("rest", left + 50).await;
    println!("{left} units were left, {bought} were bought");
    assert_eq!(bought, left);
    assert_eq!(sale.observe().await.items[0].stock, 0, "nothing stranded");
    sale.must_hold().await;
}

/// How long a primary writes alone before it is killed, where acknowledged writes are to be lost.
const BEHIND: Duration = Duration::from_millis(500);

/// No replica follows any more, and those who are connected otherwise notice nothing: a password that
/// the replicas do not have. It is gone with the process.
pub(crate) fn cut_replicas(primary: &Redis) -> io::Result<()> {
    let mut client = Client::connect(primary.address())?;
    client.call(&["CONFIG", "SET", "requirepass", "nobody knows"])?;
    client.call(&["CLIENT", "KILL", "TYPE", "replica"])?;
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Victim {
    Web(usize),
    Worker(usize),
    /// The primary of this shard of the Redis Cluster; the replica may have missed the last writes.
    Redis {
        shard: usize,
        behind: bool,
    },
    /// MariaDB, down for so long.
    Ledger(Duration),
}

impl Victim {
    fn kind(&self) -> &'static str {
        match self {
            Victim::Web(_) => "web",
            Victim::Worker(_) => "worker",
            Victim::Redis { behind: false, .. } => "Redis primary",
            Victim::Redis { behind: true, .. } => "Redis primary, writes lost",
            Victim::Ledger(_) => "MariaDB",
        }
    }

    /// Twenty-three rounds, in any order.
    fn draw(dice: &mut fastrand::Rng) -> Vec<Victim> {
        let mut victims = Vec::new();
        for n in 0..3 * SHARDS {
            victims.push(Victim::Redis { shard: n % SHARDS, behind: n < 2 * SHARDS });
        }
        for _ in 0..5 {
            victims.push(Victim::Web(WEBS[dice.usize(..WEBS.len())]));
            victims.push(Victim::Worker(WORKERS[dice.usize(..WORKERS.len())]));
        }
        for _ in 0..3 {
            victims.push(Victim::Ledger(Duration::from_millis(dice.u64(500..3_000))));
        }
        victims.push(Victim::Ledger(Duration::from_secs(30)));
        dice.shuffle(&mut victims);
        victims
    }
}

/// Under which epoch the item is open at the gate, if it is.
async fn open_epoch(sale: &Sale) -> Option<u64> {
    let sides: Value =
        sale.admin().read(&format!("/api/v1/admin/items/{}", sale.item)).await.ok()?;
    let gate = &sides["gate"];
    gate["epoch"].as_u64().filter(|_| gate["shut"].is_null())
}

/// One round: somebody is killed, buyers are admitted again, and the killed one is back. Answers the
/// time from the kill to the first admission of somebody who asked after it.
async fn round(
    victim: Victim,
    sale: &mut Sale,
    traffic: &Traffic,
    cluster: &Arc<RedisCluster>,
    ledger: &Arc<MariaDb>,
) -> Duration {
    let killed = Instant::now();
    match victim {
        Victim::Web(place) => {
            sale.kill_one(place);
            traffic.go_to(sale.addresses());
            let reopened = traffic.until(killed, Heard::is_admitted).await;
            sale.start_again(place).await;
            let new = sale.process(place).address;
            traffic.go_to(vec![new]);
            traffic.until(killed, |heard| heard.is_admitted() && heard.address == new).await;
            traffic.go_to(sale.addresses());
            reopened
        }
        Victim::Worker(place) => {
            sale.kill_one(place);
            let reopened = traffic.until(killed, Heard::is_admitted).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            sale.start_again(place).await;
            reopened
        }
        Victim::Redis { shard, behind } => {
            // The first who is admitted where the killed one decided.
            let tag = |p: usize| format!("{}:{{p{p}}}:orders", sale.deployment.database);
            let there: HashSet<usize> =
                (0..PARTITIONS).filter(|p| cluster.shard_of(&tag(*p)).unwrap() == shard).collect();
            let (item, epoch) = (sale.item, open_epoch(sale).await);
            let workers = WORKERS.map(|place| sale.process(place).pid());
            let primary = cluster.clone();
            let killed = blocking(move || {
                let primary = primary.primary(shard)?;
                if behind {
                    // What is admitted now is nowhere but there.
                    workers.iter().for_each(|pid| signal(*pid, "STOP"));
                    cut_replicas(primary)?;
                    std::thread::sleep(BEHIND);
                }
                let killed = Instant::now();
                primary.kill()?;
                if behind {
                    workers.iter().for_each(|pid| signal(*pid, "CONT"));
                }
                Ok(killed)
            })
            .await;
            let reopened = traffic
                .until(killed, |heard| {
                    let home = partition_of(item, &heard.user, KILLS_SHARDS);
                    heard.is_admitted() && (there.is_empty() || there.contains(&home))
                })
                .await;
            let healing = cluster.clone();
            blocking(move || {
                healing.wait_serving()?;
                healing.heal()
            })
            .await;
            if !there.is_empty() {
                // Without the ledger, whose turn may be next, it would be shut for as long.
                becomes("the item is rebuilt", async || open_epoch(sale).await > epoch).await;
            }
            reopened
        }
        Victim::Ledger(down) => {
            kill_ledger(ledger).await;
            let reopened = traffic.until(killed, Heard::is_admitted).await;
            tokio::time::sleep(down.saturating_sub(killed.elapsed())).await;
            // It never closed.
            traffic.until(killed + down / 2, Heard::is_admitted).await;
            restart_ledger(ledger).await;
            reopened
        }
    }
}

const KILLS_SHARDS: u32 = 4;
/// A process that could not renew its right to hand out order numbers admits nobody after this.
const LEASES_STALE: Duration = Duration::from_secs(31);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a torture of minutes: cargo xtask torture"]
async fn random_kills_under_load() {
    const UNITS: i64 = 20_000;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut dice = fastrand::Rng::with_seed(seed);
    let cluster = Arc::new(blocking(RedisCluster::start).await);
    let (ledger, database) = own_ledger("kills").await;
    let deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", cluster.urls())
        .env("SECKILL_LEDGER_URL", database);
    let mut sale = deployment.open_sale(NewSale::of(UNITS).shards(KILLS_SHARDS)).await;
    let traffic = Traffic::start(&sale, "u", 6);
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    let started = Instant::now();
    for (n, victim) in Victim::draw(&mut dice).into_iter().enumerate() {
        tokio::time::sleep(Duration::from_millis(dice.u64(100..600))).await;
        let reopened = round(victim, &mut sale, &traffic, &cluster, &ledger).await;
        let admitted = traffic.count(Heard::is_admitted);
        println!(
            "round {n} at {:.1?}: {victim:?}, admitting after {reopened:.1?}, {admitted} so far",
            started.elapsed()
        );
        times.entry(victim.kind()).or_default().push(reopened);
    }
    // Everybody who lives admits, longer after the last kill than any lease of theirs may be stale.
    tokio::time::sleep(LEASES_STALE).await;
    let calm = Instant::now();
    for address in sale.addresses() {
        traffic.until(calm, |heard| heard.is_admitted() && heard.address == address).await;
    }
    let heard = traffic.end().await;
    for (kind, times) in &mut times {
        times.sort();
        let (first, median) = (times[0], times[times.len() / 2]);
        let last = times[times.len() - 1];
        println!(
            "{kind}: admitting after {first:.1?}, {median:.1?}, {last:.1?} (best, median, worst)"
        );
    }
    let busy = heard.iter().filter(|heard| heard.is_busy()).count();
    let unknown = heard.iter().filter(|heard| heard.answer == Answer::Unknown).count();
    println!("{} answers, {busy} busy, {unknown} without an answer", heard.len());
    // A receipt that was not lost changes nothing.
    sale.settle().await;
    let known = orders(&sale).await;
    let admitted: HashMap<&str, &Heard> =
        heard.iter().filter(|h| h.is_admitted()).map(|h| (h.user.as_str(), h)).collect();
    for (user, heard) in admitted.iter().take(50) {
        let Answer::Admitted { order_no } = &heard.answer else { continue };
        let order = present(&sale, user, heard.receipt.as_ref().unwrap()).await;
        assert_eq!(order["order_no"], order_no.to_string());
    }
    let sold = known.len();
    println!("{sold} orders after {:.1?}", started.elapsed());
    account_for(&mut sale, heard).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "ten failovers take minutes: cargo xtask torture"]
async fn ten_failovers_of_a_redis_cluster_under_load() {
    let cluster = Arc::new(blocking(RedisCluster::start).await);
    let (ledger, database) = own_ledger("ten").await;
    let deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", cluster.urls())
        .env("SECKILL_LEDGER_URL", database);
    let mut sale = deployment.open_sale(NewSale::of(20_000).shards(KILLS_SHARDS)).await;
    let traffic = Traffic::start(&sale, "u", 4);
    for n in 1..=10 {
        let victim = Victim::Redis { shard: n % SHARDS, behind: n % 2 == 0 };
        let reopened = round(victim, &mut sale, &traffic, &cluster, &ledger).await;
        println!("{n}: {victim:?}, admitting there after {reopened:.1?}");
    }
    account_for(&mut sale, traffic.end().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_forgets_or_falls_asleep() {
    const UNITS: i64 = 3_000;
    let redis = Arc::new(blocking(|| Redis::start(RedisOptions::default())).await);
    let deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", redis.url())
        .env("SECKILL_REDIS_ANSWER_MS_MAX", 500);
    let mut sale = deployment.open_sale(NewSale::of(UNITS).shards(2)).await;
    let traffic = Traffic::start(&sale, "u", 6);
    for n in 1..=3 {
        let before = traffic.count(Heard::is_admitted);
        becomes("some are sold", async || traffic.count(Heard::is_admitted) >= before + 50).await;
        // The last time there is something on the log, which is then nowhere.
        let workers = WORKERS.map(|place| sale.process(place).pid());
        if n == 3 {
            workers.iter().for_each(|pid| signal(*pid, "STOP"));
            let before = traffic.count(Heard::is_admitted);
            becomes("some wait", async || traffic.count(Heard::is_admitted) >= before + 20).await;
        }
        redis.call(&["FLUSHALL"]).unwrap();
        let emptied = Instant::now();
        workers.iter().for_each(|pid| signal(*pid, "CONT"));
        let reopened = traffic.until(emptied, Heard::is_admitted).await;
        println!("emptied {n}: admitting after {reopened:.1?}");
    }
    let busy = traffic.count(Heard::is_busy);
    assert!(busy > 0, "an empty gate is closed");
    let asleep = Instant::now();
    redis.pause().unwrap();
    traffic.until(asleep, Heard::is_busy).await;
    tokio::time::sleep(Duration::from_secs(3).saturating_sub(asleep.elapsed())).await;
    redis.resume().unwrap();
    let awake = Instant::now();
    let reopened = traffic.until(awake, Heard::is_admitted).await;
    println!("asleep for {:.1?}: admitting {reopened:.1?} after", awake - asleep);
    let heard = traffic.end().await;
    println!("{} answers, {busy} busy because it was empty", heard.len());
    account_for(&mut sale, heard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promise_that_a_replica_has_survives_the_primary() {
    const UNITS: i64 = 3_000;
    let pair = Arc::new(blocking(RedisPair::start).await);
    let deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", pair.url())
        .env("SECKILL_REDIS_WAIT_REPLICAS", 1);
    let mut sale = deployment.open_sale(NewSale::of(UNITS)).await;
    let traffic = Traffic::start(&sale, "u", 8);
    for n in 1..=3 {
        let before = traffic.count(Heard::is_admitted);
        becomes("some are sold", async || traffic.count(Heard::is_admitted) >= before + 50).await;
        if n == 2 {
            // What the replica does not have is not promised.
            cut_replicas(pair.primary()).unwrap();
            traffic.until(Instant::now(), Heard::is_busy).await;
            tokio::time::sleep(BEHIND).await;
        }
        let killing = pair.clone();
        let killed = Instant::now();
        blocking(move || killing.promote().map(drop)).await;
        // Nobody is promised anything as long as there is no replica.
        traffic.until(Instant::now(), Heard::is_busy).await;
        let joining = pair.clone();
        blocking(move || joining.rejoin()).await;
        let reopened = traffic.until(killed, Heard::is_admitted).await;
        println!("promotion {n}: admitting after {reopened:.1?}");
    }
    let heard = traffic.end().await;
    // Every promise is kept without anybody showing a receipt.
    let known = orders(&sale).await;
    let promised = heard.iter().filter_map(|heard| match &heard.answer {
        Answer::Admitted { order_no } => Some(*order_no),
        _ => None,
    });
    let (kept, lost): (Vec<OrderNo>, Vec<OrderNo>) = promised.partition(|no| known.contains(no));
    println!("{} promises kept, {} lost", kept.len(), lost.len());
    assert!(lost.is_empty(), "{lost:?}");
    account_for(&mut sale, heard).await;
}

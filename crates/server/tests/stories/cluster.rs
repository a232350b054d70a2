//! What only a cluster can suffer: engines that die, fail over, forget or fall asleep, and processes
//! that go one at a time.
//!
//! A Redis failover may lose what was acknowledged. Claims lost by it come back with their receipts,
//! or are void with a reason; nothing is ever sold twice.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use checker::Answer;
use client::{Api, NewSale};
use faults::services::{
    Client, MariaDb, MariaDbOptions, Redis, RedisCluster, RedisOptions, RedisPair, Reply, SHARDS,
    shared_cluster, shared_redis, wait_stopped,
};
use sale::OrderNo;
use serde_json::{Value, json};

use crate::{
    fixtures::{Deployment, PARTITIONS, PATIENCE, Profile, Sale, WEBS, WORKERS, now_ms},
    traffic::{Heard, Traffic},
};

/// What blocks, beside a story that goes on.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> T {
    tokio::task::spawn_blocking(work).await.unwrap().unwrap()
}

/// Where the gate keeps a buyer: a copy of its rule, which must never change.
fn shard_of(user: &str, shards: u32) -> u32 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut hash = user.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 33;
    (hash % u64::from(shards)) as u32
}

fn partition_of(item: i64, user: &str, shards: u32) -> usize {
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

/// Present a receipt until there is an answer; the order as its buyer sees it then.
async fn present(sale: &Sale, user: &str, receipt: &str) -> Value {
    let addresses = sale.addresses();
    let address = addresses[fastrand::usize(..addresses.len())];
    let jwt = sale.deployment.login().token(&mut Api::new(address, None), user).await.unwrap();
    let mut api = Api::new(address, Some(&jwt));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = api.post("/api/v1/receipts", &json!({"receipt": receipt})).await.unwrap();
        if shown.status == 200 {
            return shown.json();
        }
        assert_eq!(shown.status, 503, "{}", shown.json());
        assert!(Instant::now() < deadline, "{}\n{}", shown.json(), sale.deployment.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
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
    let path = "/api/v1/admin/reconcile?heal=true";
    let report: Value = sale.admin().write(path, &json!({})).await.unwrap();
    assert_eq!(report["left"], 0, "{report:#}\n{}", sale.deployment.log());
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
    assert_eq!(bought, left, "{}", sale.deployment.log());
    assert_eq!(sale.observe().await.items[0].stock, 0, "nothing stranded");
    sale.must_hold().await;
}

fn signal(pid: u32, name: &str) {
    let command = format!("kill -{name} {pid}");
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    if name == "STOP" {
        wait_stopped(pid).unwrap();
    }
}

/// How long a primary writes alone before it is killed, where acknowledged writes are to be lost.
const BEHIND: Duration = Duration::from_millis(500);

/// No replica follows any more, and those who are connected otherwise notice nothing: a password that
/// the replicas do not have. It is gone with the process.
fn cut_replicas(primary: &Redis) -> io::Result<()> {
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
            let item = sale.item;
            let workers = WORKERS.map(|place| sale.process(place).pid());
            let primary = cluster.clone();
            let killed = aside(move || {
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
            aside(move || {
                healing.wait_serving()?;
                healing.heal()
            })
            .await;
            reopened
        }
        Victim::Ledger(down) => {
            let server = ledger.clone();
            aside(move || server.kill()).await;
            let reopened = traffic.until(killed, Heard::is_admitted).await;
            tokio::time::sleep(down.saturating_sub(killed.elapsed())).await;
            // It never closed.
            traffic.until(killed + down / 2, Heard::is_admitted).await;
            let server = ledger.clone();
            aside(move || server.restart()).await;
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
    let cluster = Arc::new(aside(RedisCluster::start).await);
    let ledger = Arc::new(aside(|| MariaDb::start(MariaDbOptions::default())).await);
    let database = ledger.create_database("kills").unwrap();
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

/// Wait until it is so.
pub(crate) async fn becomes(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_worker_that_wakes_again_creates_nothing_twice() {
    const CLAIMS: usize = 600;
    let redis = shared_redis();
    let ledger = Arc::new(aside(|| MariaDb::start(MariaDbOptions::default())).await);
    let database = ledger.create_database("stopped").unwrap();
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_LEDGER_URL", database);
    let mut sale = deployment.open_sale(NewSale::of(CLAIMS as i64 + 100).shards(4)).await;
    let buyers = sale.tokens((0..CLAIMS).map(|n| format!("u{n}"))).await;
    // Without a ledger both workers sit on what they have taken.
    let server = ledger.clone();
    aside(move || server.kill()).await;
    let report = sale.crowd(16).rush(buyers).await;
    assert_eq!(report.history.admitted(), CLAIMS);
    sale.history = report.history;
    let [sleeper, awake] = WORKERS.map(|place| sale.process(place).pid());
    becomes("a worker has taken claims", || pending(redis, &sale, sleeper) > 0).await;
    signal(sleeper, "STOP");
    let held = pending(redis, &sale, sleeper);
    let server = ledger.clone();
    aside(move || server.restart()).await;
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
    let redis = shared_redis();
    let ledger = Arc::new(aside(|| MariaDb::start(MariaDbOptions::default())).await);
    let database = ledger.create_database("away").unwrap();
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_LEDGER_URL", database);
    let sale = deployment.open_sale(NewSale::of(10)).await;
    let (mut ann, mut bob) = (sale.buyer("ann").await, sale.buyer("bob").await);
    let paid = ann.buy().await;
    ann.order_becomes(&paid, "unpaid").await;
    let cashier = ann.open_payment(&paid).await;
    assert_eq!(ann.at_the_cashier(&cashier, "pay").await.status, 200);
    let order = ann.order_becomes(&paid, "paid").await;
    assert!(order.get("stale").is_none(), "{order}");
    let copy = format!("{}:order:{paid}", sale.deployment.database);
    becomes("there is a copy of the paid order", || {
        redis.call(&["HGET", &copy, "s"]).unwrap().text() == "1"
    })
    .await;

    let server = ledger.clone();
    aside(move || server.kill()).await;
    // A claim that waits on the log is queued, and was so when it was made.
    let queued = bob.buy().await;
    let waiting = bob.order(&queued).await;
    assert_eq!((&waiting["status"], &waiting["stale"]), (&json!("queued"), &json!(true)));
    assert!((now_ms() - waiting["as_of"].as_i64().unwrap()).abs() < 60_000, "{waiting}");
    // An order of which there is a copy is what it was when the copy was made.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let order = ann.order(&paid).await;
        assert_eq!(order["status"], "paid", "{order}");
        if order["stale"] == true {
            assert!(order["as_of"].is_i64(), "{order}");
            break;
        }
        assert!(Instant::now() < deadline, "a copy is told for {:?}", PATIENCE);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // Without one nobody can tell: the gate only knows that she holds something.
    redis.call(&["DEL", &copy]).unwrap();
    let unknown = ann.api.get(&format!("/api/v1/orders/{paid}")).await.unwrap();
    assert_eq!((unknown.status, unknown.json()["code"].as_str()), (503, Some("busy")));
    for path in ["/api/v1/orders".to_owned(), "/api/v1/events".to_owned()] {
        assert_eq!(ann.api.get(&path).await.unwrap().status, 503, "{path}");
    }
    for verb in ["cancel", "payments"] {
        let path = format!("/api/v1/orders/{queued}/{verb}");
        let refused = bob.api.post(&path, &json!({"provider": "sandbox"})).await.unwrap();
        assert_eq!(refused.status, 503, "{verb}: {}", refused.json());
    }

    let server = ledger.clone();
    aside(move || server.restart()).await;
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
    let ledger = Arc::new(aside(|| MariaDb::start(MariaDbOptions::default())).await);
    let database = ledger.create_database("in_hand").unwrap();
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_LEDGER_URL", database);
    let mut sale = deployment.open_sale(NewSale::of(UNITS as i64).shards(2)).await;
    let buyers = sale.tokens((0..CLAIMS).map(|n| format!("u{n}"))).await;
    let server = ledger.clone();
    aside(move || server.kill()).await;
    let report = sale.crowd(16).rush(buyers).await;
    assert_eq!(report.history.admitted(), CLAIMS);
    sale.history = report.history;
    becomes("all are in the hands of workers", || {
        let (length, taken) = on_log(redis, &sale);
        length > 0 && length == taken
    })
    .await;
    let workers = WORKERS.map(|place| sale.process(place).pid());
    workers.iter().for_each(|pid| signal(*pid, "STOP"));
    let server = ledger.clone();
    aside(move || server.restart()).await;
    // As after a failover to a replica that had seen none of it.
    for p in 0..PARTITIONS {
        let key = |what: &str| format!("{}:{{p{p}}}:{what}", sale.deployment.database);
        redis.call(&["XTRIM", &key("orders"), "MAXLEN", "0"]).unwrap();
        redis.call(&["SET", &key("backlog"), "0"]).unwrap();
    }
    let path = format!("/api/v1/admin/activities/{}/warm?anew=true", sale.activity);
    let _: Value = sale.admin().write(&path, &json!({})).await.unwrap();
    let left = format!("/api/v1/admin/items/{}", sale.item);
    let sides: Value = sale.admin().read(&left).await.unwrap();
    assert_eq!(sides["gate"]["left"], UNITS, "neither log nor ledger knew of them");
    workers.iter().for_each(|pid| signal(*pid, "CONT"));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let sides: Value = sale.admin().read(&left).await.unwrap();
        if sides["gate"]["left"] == UNITS - CLAIMS && sides["gate"]["marks"] == CLAIMS {
            break;
        }
        assert!(Instant::now() < deadline, "{sides:#}\n{}", sale.deployment.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(sale.observe().await.orders.len(), CLAIMS);
    assert_eq!(sale.buy_the_rest("late", UNITS).await, UNITS - CLAIMS, "none too many");
    sale.must_hold().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_forgets_or_falls_asleep() {
    const UNITS: i64 = 3_000;
    let redis = Arc::new(aside(|| Redis::start(RedisOptions::default())).await);
    let deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", redis.url())
        .env("SECKILL_REDIS_ANSWER_MS_MAX", 500);
    let mut sale = deployment.open_sale(NewSale::of(UNITS).shards(2)).await;
    let traffic = Traffic::start(&sale, "u", 6);
    for n in 1..=3 {
        let before = traffic.count(Heard::is_admitted);
        becomes("some are sold", || traffic.count(Heard::is_admitted) >= before + 50).await;
        // The last time there is something on the log, which is then nowhere.
        let workers = WORKERS.map(|place| sale.process(place).pid());
        if n == 3 {
            workers.iter().for_each(|pid| signal(*pid, "STOP"));
            let before = traffic.count(Heard::is_admitted);
            becomes("some wait", || traffic.count(Heard::is_admitted) >= before + 20).await;
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
async fn a_sale_that_is_paused_while_redis_sleeps_is_paused_when_it_wakes() {
    let redis = Arc::new(aside(|| Redis::start(RedisOptions::default())).await);
    let deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", redis.url())
        .env("SECKILL_REDIS_ANSWER_MS_MAX", 500);
    let sale = deployment.open_sale(NewSale::of(5)).await;
    let mut buyer = sale.buyer("u1").await;
    let mut admin = sale.admin();
    let mut act = async |verb: &str| -> Value {
        let path = format!("/api/v1/admin/activities/{}/{verb}", sale.activity);
        admin.write(&path, &json!({})).await.unwrap()
    };
    redis.pause().unwrap();
    let told = act("pause").await;
    assert_eq!((&told["state"], &told["at_gate"]), (&json!("paused"), &json!("pending")), "{told}");
    redis.resume().unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let path = format!("/api/v1/admin/items/{}", sale.item);
        let seen = sale.admin().get(&path).await.unwrap();
        if seen.status == 200 && seen.json()["gate"]["shut"] == "paused" {
            break;
        }
        assert!(Instant::now() < deadline, "the gate never followed: {:?}", seen.json());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(buyer.claim().await, Answer::Refused("busy".into()));
    let told = act("resume").await;
    assert_eq!((&told["state"], &told["at_gate"]), (&json!("published"), &json!("done")), "{told}");
    buyer.buy().await;
    sale.must_hold().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promise_that_a_replica_has_survives_the_primary() {
    const UNITS: i64 = 3_000;
    let pair = Arc::new(aside(RedisPair::start).await);
    let deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", pair.url())
        .env("SECKILL_REDIS_WAIT_REPLICAS", 1);
    let mut sale = deployment.open_sale(NewSale::of(UNITS)).await;
    let traffic = Traffic::start(&sale, "u", 8);
    for n in 1..=3 {
        let before = traffic.count(Heard::is_admitted);
        becomes("some are sold", || traffic.count(Heard::is_admitted) >= before + 50).await;
        if n == 2 {
            // What the replica does not have is not promised.
            cut_replicas(pair.primary()).unwrap();
            traffic.until(Instant::now(), Heard::is_busy).await;
            tokio::time::sleep(BEHIND).await;
        }
        let killing = pair.clone();
        let killed = Instant::now();
        aside(move || killing.promote().map(drop)).await;
        // Nobody is promised anything as long as there is no replica.
        traffic.until(Instant::now(), Heard::is_busy).await;
        let joining = pair.clone();
        aside(move || joining.rejoin()).await;
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
    assert!(lost.is_empty(), "{lost:?}\n{}", sale.deployment.log());
    account_for(&mut sale, heard).await;
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

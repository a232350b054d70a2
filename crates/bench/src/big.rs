//! Items with millions of buyers beside others: how long a claim on another item waits while a big one
//! is warmed and rebuilt, what that takes in memory, and how much of the claim log one hot item of one
//! shard may fill.
//!
//! Both profiles over real HTTP. The big item's orders are put into the ledger by the ledger's own code
//! while no server runs; its sale opens tomorrow, so nobody warms it unasked. The claims on the other
//! item are an open loop: each has its planned instant, from which its wait is measured, so that nobody
//! who is kept waiting is left out.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use client::{Connection, NewSale, SaleTokens, ServerProcess, settled};
use ledger::{Ledger, mysql, sqlite};
use sale::{Clock, ItemId, SystemClock};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    Failure, Plan,
    claims::{Crowd, clock},
    cluster::Cluster,
    figures::{Figures, Goal},
    http::{crowd, open_sale, start, tokens},
    overload::Memory,
    server_binary,
};

const BUYERS: usize = 2_000_000;
const BUYERS_QUICK: usize = 500_000;
const SETTLED_AT_ONCE: usize = 1_000;
/// Claims on the other item.
const CLAIMS_PER_S: usize = 500;
const CONNECTIONS: usize = 16;
const REST: Duration = Duration::from_secs(4);
/// After the work, for what is still to be written.
const AFTER: Duration = Duration::from_secs(1);
/// The curve is told in pieces of this length.
const CURVE_EVERY: Duration = Duration::from_millis(100);
const SETTLED_WITHIN: Duration = Duration::from_secs(300);
/// Six seconds of saturation and more.
const HOT_BUYERS: usize = 400_000;
const HOT_CONNECTIONS: usize = 256;

pub(crate) async fn measure(
    plan: &Plan,
    data: &Path,
    figures: &mut Figures,
) -> Result<(), Failure> {
    solo(plan, &data.join("big-solo"), figures).await?;
    cluster(plan, &data.join("big-cluster"), figures).await
}

async fn solo(plan: &Plan, data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let server = start(&server_binary()?, data, &[]).await?;
    let big = draft_of_tomorrow(&server, buyers(plan)).await?;
    server.stop().await?;
    {
        let ledger = sqlite::open(&data.join("ledger.db"), clock())?;
        sell_all(&ledger, big.item, buyers(plan)).await?;
    }
    let server = start(&server_binary()?, data, &[]).await?;
    beside(&server, &big, "big", figures).await?;
    server.stop().await?;
    std::fs::remove_dir_all(data)?;
    Ok(())
}

async fn cluster(plan: &Plan, data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let cluster = Cluster::start(data).await?;
    hot_item(&cluster.server, figures).await?;
    let big = draft_of_tomorrow(&cluster.server, buyers(plan)).await?;
    // Another process of a cluster may as well make orders while this one runs.
    let ledger = mysql::open(&cluster.ledger_url, clock(), mysql::Options::default()).await?;
    sell_all(&ledger, big.item, buyers(plan)).await?;
    drop(ledger);
    beside(&cluster.server, &big, "big_cluster", figures).await
}

fn buyers(plan: &Plan) -> usize {
    if plan.quick { BUYERS_QUICK } else { BUYERS }
}

struct Big {
    activity: i64,
    item: ItemId,
}

async fn draft_of_tomorrow(server: &ServerProcess, buyers: usize) -> Result<Big, Failure> {
    let mut admin = server.admin();
    let tomorrow_ms = SystemClock.now_ms() + 86_400_000;
    let sale = NewSale {
        opens_ms: tomorrow_ms,
        closes_ms: tomorrow_ms + 3_600_000,
        // Nobody's order is closed while this is measured.
        pay_within_ms: 86_400_000,
        ..NewSale::of(2 * buyers as i64)
    };
    let sale = sale.draft(&mut admin).await?;
    let path = format!("/api/v1/admin/activities/{}/publish", sale.activity);
    let _: Value = admin.write(&path, &json!({})).await?;
    Ok(Big { activity: sale.activity, item: ItemId(sale.items[0]) })
}

async fn sell_all(ledger: &dyn Ledger, item: ItemId, buyers: usize) -> Result<(), Failure> {
    let mut crowd = Crowd::new();
    crowd.start_after(ledger.last_order_no().await?);
    let began = Instant::now();
    for _ in 0..buyers / SETTLED_AT_ONCE {
        let claims = crowd.claims(item, SETTLED_AT_ONCE)?;
        let settled = ledger.settle(item, &claims).await?;
        if settled.created.len() != SETTLED_AT_ONCE {
            return Err("not every buyer of the big item has an order".into());
        }
    }
    println!("  {buyers} orders were put into the ledger in {:.0?}", began.elapsed());
    Ok(())
}

/// Claims on another item: at rest, while the big one is warmed, and while it is rebuilt.
async fn beside(
    server: &ServerProcess,
    big: &Big,
    name: &str,
    figures: &mut Figures,
) -> Result<(), Failure> {
    let mut admin = server.admin();
    settled(&mut admin, SETTLED_WITHIN).await?;
    let other = open_sale(&mut admin, 1_000_000).await?;
    let street = Street { address: server.address, item: other };
    let rest = street.while_working("rest", tokio::time::sleep(REST)).await?;
    let memory = Memory::watch(server.pid());
    let path = format!("/api/v1/admin/activities/{}/warm", big.activity);
    let warm = street.while_working("warm", load(server, path.clone())).await?;
    let rebuild = street.while_working("anew", load(server, path + "?anew=true")).await?;
    let grown_mb = memory.seen().await?.risen_mb();
    settled(&mut admin, SETTLED_WITHIN).await?;
    for (what, walk) in [("rest", &rest), ("warm", &warm), ("rebuild", &rebuild)] {
        println!("  {what}: {:.1?}, worst ms every 100 ms: {}", walk.took, walk.curve());
        if walk.refused > 0 {
            return Err(format!("{} claims on the other item were refused", walk.refused).into());
        }
    }
    let mut add = |key: &str, what: &str, value: f64, goal| {
        figures.add(&format!("{name}_{key}"), &format!("{name}: {what}"), value, goal);
    };
    let s = |walk: &Walk| walk.took.as_secs_f64();
    let goal = Goal::AtMost(20.0);
    add("rest_p99_ms", "claims on another item at rest, p99 ms", rest.p(0.99), Goal::None);
    add("warm_p99_ms", "… while a big one is warmed", warm.p(0.99), goal);
    add("warm_max_ms", "… the longest", warm.p(1.0), Goal::None);
    add("rebuild_p99_ms", "… while it is rebuilt", rebuild.p(0.99), goal);
    add("rebuild_max_ms", "… the longest", rebuild.p(1.0), Goal::None);
    add("warm_s", "seconds to warm it", s(&warm), Goal::None);
    add("rebuild_s", "seconds to rebuild it", s(&rebuild), Goal::None);
    add("memory_mb", "MB of the server above rest meanwhile", grown_mb, Goal::AtMost(256.0));
    Ok(())
}

async fn load(server: &ServerProcess, path: String) -> Result<(), Failure> {
    let _: Value = server.admin().write(&path, &json!({})).await?;
    tokio::time::sleep(AFTER).await;
    Ok(())
}

/// Everybody wants one item of one shard, as fast as they are answered, for seconds.
async fn hot_item(server: &ServerProcess, figures: &mut Figures) -> Result<(), Failure> {
    let mut admin = server.admin();
    let item = open_sale(&mut admin, 2 * HOT_BUYERS).await?;
    let report =
        crowd(server.address, item, HOT_CONNECTIONS).rush(tokens(item, "hot", HOT_BUYERS)).await;
    let admitted = report.history.admitted();
    println!("  {admitted} of {HOT_BUYERS} were admitted in {:.1?}", report.took);
    let per_s = admitted as f64 / report.took.as_secs_f64();
    settled(&mut admin, SETTLED_WITHIN).await?;
    let waited = report.began.elapsed();
    let refused = (HOT_BUYERS - admitted) as f64 / HOT_BUYERS as f64;
    let what = "cluster: of the claims on a hot item of one shard, the part that is refused";
    figures.add("big_hot_refused", what, refused, Goal::AtMost(0.0));
    figures.add("big_hot_per_s", "… admitted per second", per_s, Goal::None);
    let orders_per_s = admitted as f64 / waited.as_secs_f64();
    figures.add(
        "big_hot_orders_per_s",
        "… orders per second to the last",
        orders_per_s,
        Goal::None,
    );
    Ok(())
}

/// Where claims on one item come from, evenly.
struct Street {
    address: SocketAddr,
    item: i64,
}

impl Street {
    /// They come until the work is done.
    async fn while_working<T: Done>(
        &self,
        name: &str,
        work: impl Future<Output = T>,
    ) -> Result<Walk, Failure> {
        // For as long as anything may take here.
        let buyers = Arc::new(tokens(self.item, name, CLAIMS_PER_S * 120));
        let (began, next) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let (stop, stopped) = watch::channel(false);
        let lines: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let line = Line { began, next: next.clone(), stopped: stopped.clone() };
                tokio::spawn(line.walk(self.address, self.item, buyers.clone()))
            })
            .collect();
        work.await.done()?;
        let took = began.elapsed();
        stop.send_replace(true);
        let mut walk = Walk { took, waits: Vec::new(), refused: 0 };
        for line in lines {
            let (waits, refused) = line.await??;
            walk.waits.extend(waits);
            walk.refused += refused;
        }
        Ok(walk)
    }
}

/// Work that may have failed.
trait Done {
    fn done(self) -> Result<(), Failure>;
}

impl Done for () {
    fn done(self) -> Result<(), Failure> {
        Ok(())
    }
}

impl Done for Result<(), Failure> {
    fn done(self) -> Result<(), Failure> {
        self
    }
}

/// One connection, which takes the next claim whose instant has come.
struct Line {
    began: Instant,
    next: Arc<AtomicUsize>,
    stopped: watch::Receiver<bool>,
}

/// When each claim was due, and how long it waited.
type Waits = Vec<(Duration, Duration)>;

impl Line {
    async fn walk(
        self,
        address: SocketAddr,
        item: i64,
        buyers: Arc<SaleTokens>,
    ) -> std::io::Result<(Waits, usize)> {
        let mut connection = Connection::open(address).await?;
        let path = format!("/api/v1/items/{item}/claims");
        let (mut waits, mut refused) = (Vec::new(), 0);
        while !*self.stopped.borrow() {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((_, token)) = buyers.get(n) else { break };
            let due = Duration::from_secs_f64(n as f64 / CLAIMS_PER_S as f64);
            tokio::time::sleep_until((self.began + due).into()).await;
            let headers = [("content-type", "application/json"), ("x-sale-token", token.as_str())];
            let answer = connection.send("POST", &path, &headers, b"{\"quantity\":1}").await?;
            refused += usize::from(answer.status != 202);
            waits.push((due, self.began.elapsed() - due));
        }
        Ok((waits, refused))
    }
}

/// What was heard while something was done.
struct Walk {
    took: Duration,
    waits: Waits,
    refused: usize,
}

impl Walk {
    /// In milliseconds.
    fn p(&self, part: f64) -> f64 {
        let mut waits: Vec<Duration> = self.waits.iter().map(|(_, wait)| *wait).collect();
        waits.sort_unstable();
        let at = ((waits.len() as f64 * part).ceil() as usize).clamp(1, waits.len().max(1)) - 1;
        waits.get(at).map_or(0.0, |wait| wait.as_secs_f64() * 1e3)
    }

    fn curve(&self) -> String {
        let mut worst: Vec<f64> = Vec::new();
        for (due, wait) in &self.waits {
            let at = (due.as_secs_f64() / CURVE_EVERY.as_secs_f64()) as usize;
            worst.resize(worst.len().max(at + 1), 0.0);
            worst[at] = worst[at].max(wait.as_secs_f64() * 1e3);
        }
        worst.iter().map(|ms| format!("{ms:.0}")).collect::<Vec<_>>().join(" ")
    }
}

//! A shop that is years old: what its past costs who sells today.
//!
//! The ledger is filled by settling, item after item, each with buyers of its own in no order, as sales do
//! it. At three sizes it is measured how many orders per second one worker writes into items that are new.
//! Every item on the way is a point of the curve. The largest and the smallest of the SQLite files then lie
//! under a server each, which a crowd saturates for ten seconds in turn.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Instant};

use client::{ServerProcess, settled};
use faults::services::{MariaDb, MariaDbOptions};
use ledger::{
    Ledger, OrderFilter,
    mysql::{self, Options},
    sqlite,
};

use crate::{
    Failure, Plan,
    claims::{Crowd, clock},
    curves::{self, Curve},
    figures::{Figures, Goal},
    http::{SETTLED_WITHIN, crowd, open_sale, start, tokens},
    ledgers::{BATCHED, batches},
};

/// Orders in the books when it is measured. `--quick` has fewer.
const SIZES: [usize; 3] = [10_000, 1_000_000, 5_000_000];
const SIZES_QUICK: [usize; 3] = [10_000, 200_000, 800_000];
const NAMES: [&str; 3] = ["few", "many", "most"];
/// Items that are sold at each size; the median of them counts.
const ITEMS: usize = 7;
/// Buyers who ask for their orders at the end.
const ASKED: u64 = 500;
/// How much of what a new shop does one with a long past must do.
const FLAT: f64 = 0.8;
/// Ten seconds' worth, and two.
const CLAIMS: usize = 600_000;
const CLAIMS_QUICK: usize = 120_000;
/// Crowds at each server in turn; the best of each counts.
const CROWDS: usize = 2;

/// The files in which a data directory has the ledger.
const LEDGER: &str = "ledger.db";

/// A point each time an item was sold: how many orders there were before it, and orders per second.
type Points = Vec<(f64, f64)>;

pub(crate) async fn sqlite(plan: &Plan, data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let (few, most) = (data.join("shop-few"), data.join("shop-most"));
    let points = of_sqlite(plan, [&few, &most], figures).await?;
    draw(plan, "SQLite", points)?;
    of_claims(plan, [&few, &most], figures).await?;
    fs::remove_dir_all(&few)?;
    fs::remove_dir_all(&most)?;
    Ok(())
}

/// A drawing for each engine.
fn draw(plan: &Plan, engine: &'static str, points: Points) -> Result<(), Failure> {
    let Some(folder) = &plan.curves else { return Ok(()) };
    let file = folder.join(format!("history-{}.svg", engine.to_lowercase()));
    Ok(fs::write(file, curves::svg(&[Curve { name: engine, points }])?)?)
}

fn sizes(plan: &Plan) -> [usize; 3] {
    if plan.quick { SIZES_QUICK } else { SIZES }
}

/// Leaves the file as it was at the first and at the last size in these directories.
async fn of_sqlite(
    plan: &Plan,
    [few, most]: [&Path; 2],
    figures: &mut Figures,
) -> Result<Points, Failure> {
    for folder in [few, most] {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    }
    let file = most.join(LEDGER);
    let mut shop = OldShop::new(Box::new(sqlite::open(&file, clock())?));
    let mut rates = Vec::new();
    for (n, size) in sizes(plan).into_iter().enumerate() {
        shop.grow_to(size).await?;
        if n == 0 {
            // Closed, it is one file.
            drop(shop.ledger.take());
            fs::copy(&file, few.join(LEDGER))?;
            shop.ledger = Some(Box::new(sqlite::open(&file, clock())?));
        }
        rates.push(shop.sold().await?);
    }
    report("sqlite", "SQLite", plan, &rates, figures);
    shop.ask("sqlite", "SQLite", figures).await?;
    Ok(shop.points)
}

pub(crate) async fn mysql(plan: &Plan, figures: &mut Figures) -> Result<(), Failure> {
    let options =
        MariaDbOptions { buffer_pool_mb: 512, redo_log_mb: 512, ..MariaDbOptions::default() };
    let server = MariaDb::start(options)?;
    let url = server.create_database("history")?;
    let ledger = mysql::open(&url, clock(), Options::default()).await?;
    let mut shop = OldShop::new(Box::new(ledger));
    let mut rates = Vec::new();
    for size in sizes(plan) {
        shop.grow_to(size).await?;
        rates.push(shop.sold().await?);
    }
    report("mysql", "MariaDB", plan, &rates, figures);
    shop.ask("mysql", "MariaDB", figures).await?;
    draw(plan, "MariaDB", shop.points)
}

fn report(key: &str, engine: &str, plan: &Plan, rates: &[f64], figures: &mut Figures) {
    for ((rate, name), size) in rates.iter().zip(NAMES).zip(sizes(plan)) {
        let what = format!("{engine}, orders/s with {size} orders in the books");
        let goal = match key {
            "sqlite" => Goal::AtLeast(70_000.0),
            _ => Goal::None,
        };
        figures.add(&format!("history_{key}_{name}_per_s"), &what, *rate, goal);
    }
    if let [few, .., most] = rates {
        let what = format!("{engine}, orders/s with the most ÷ with few");
        figures.add(&format!("history_{key}_flat"), &what, most / few, Goal::AtLeast(FLAT));
    }
}

/// A ledger that grows.
struct OldShop {
    ledger: Option<Box<dyn Ledger>>,
    crowd: Crowd,
    orders: usize,
    points: Points,
}

impl OldShop {
    fn new(ledger: Box<dyn Ledger>) -> OldShop {
        OldShop { ledger: Some(ledger), crowd: Crowd::new(), orders: 0, points: Vec::new() }
    }

    async fn grow_to(&mut self, size: usize) -> Result<(), Failure> {
        while self.orders < size {
            self.sell(BATCHED.min(size - self.orders)).await?;
        }
        Ok(())
    }

    /// An item is put on sale and sold out; answers orders per second.
    async fn sell(&mut self, orders: usize) -> Result<f64, Failure> {
        let ledger = self.ledger.as_deref().ok_or("the ledger is closed")?;
        let per_s = batches(ledger, &mut self.crowd, orders).await?;
        self.points.push((self.orders as f64, per_s));
        self.orders += orders;
        Ok(per_s)
    }

    /// How long buyers wait for their orders, who are somewhere in this past: half of them, and 99 of 100.
    async fn ask(&self, key: &str, engine: &str, figures: &mut Figures) -> Result<(), Failure> {
        let ledger = self.ledger.as_deref().ok_or("the ledger is closed")?;
        let mut took_ms = Vec::new();
        for n in 0..ASKED {
            let user = Crowd::name(n * (self.orders as u64 / ASKED))?;
            let asked = OrderFilter { user: Some(user), limit: 50, ..OrderFilter::default() };
            let began = Instant::now();
            let found = ledger.orders(&asked).await?;
            took_ms.push(began.elapsed().as_secs_f64() * 1e3);
            if found.len() != 1 {
                return Err(format!("a buyer of one order was told of {}", found.len()).into());
            }
        }
        took_ms.sort_by(f64::total_cmp);
        for (share, name) in [(50, "p50"), (99, "p99")] {
            let what = format!("{engine}, a buyer's list with the most orders, {name} ms");
            let value = took_ms[took_ms.len() * share / 100];
            figures.add(&format!("history_{key}_list_{name}_ms"), &what, value, Goal::None);
        }
        Ok(())
    }

    /// The median of some items.
    async fn sold(&mut self) -> Result<f64, Failure> {
        let before = self.orders;
        let mut rates = Vec::new();
        for _ in 0..ITEMS {
            rates.push(self.sell(BATCHED).await?);
        }
        rates.sort_by(f64::total_cmp);
        let median = rates[ITEMS / 2];
        let (least, most) = (rates[0], rates[ITEMS - 1]);
        println!("  {before} orders: {median:.0} orders/s more ({least:.0} to {most:.0})");
        Ok(median)
    }
}

/// What buyers feel of it.
async fn of_claims(plan: &Plan, shops: [&Path; 2], figures: &mut Figures) -> Result<(), Failure> {
    let binary = crate::server_binary()?;
    let servers = [start(&binary, shops[0], &[]).await?, start(&binary, shops[1], &[]).await?];
    let mut best = [f64::INFINITY; 2];
    for round in 0..plan.rounds(CROWDS, 2) {
        for (server, best) in servers.iter().zip(&mut best) {
            let p99_ms = saturated(plan, server, round).await?;
            *best = best.min(p99_ms);
        }
    }
    for server in servers {
        server.stop().await?;
    }
    let [few, _, most] = sizes(plan);
    let mut add = |name: &str, orders: usize, p99_ms: f64| {
        let what =
            format!("claims of a saturated server, p99 ms with {orders} orders in the books");
        figures.add(&format!("history_claims_{name}_p99_ms"), &what, p99_ms, Goal::None);
    };
    add("few", few, best[0]);
    add("most", most, best[1]);
    let what = "p99 of claims with the most ÷ with few";
    figures.add("history_claims_flat", what, best[1] / best[0], Goal::AtMost(1.0 / FLAT));
    Ok(())
}

/// One crowd that leaves the server no rest.
async fn saturated(plan: &Plan, server: &ServerProcess, round: usize) -> Result<f64, Failure> {
    let claims = if plan.quick { CLAIMS_QUICK } else { CLAIMS };
    let mut admin = server.admin();
    let item = open_sale(&mut admin, claims).await?;
    let side = crowd(server.address, item, plan.connections);
    let report = side.rush(tokens(item, &format!("buyer{round}"), claims)).await;
    let p99_ms = report.latency.value_at_quantile(0.99) as f64 / 1e3;
    let (per_s, took) = (report.per_second(), report.took.as_secs_f64());
    println!("  round {round}: {per_s:.0} claims/s for {took:.1} s, p99 {p99_ms:.1} ms");
    settled(&mut admin, SETTLED_WITHIN).await?;
    Ok(p99_ms)
}

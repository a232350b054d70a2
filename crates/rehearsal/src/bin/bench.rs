//! `cargo xtask bench`: what a release build does on this machine, over real HTTP.
//!
//! Starts a solo server on a data directory of the real disk (a RAM disk would make every fsync
//! free), lets a crowd buy everything, and then lets another crowd be told that it is sold out.
//! Several rounds; the best one is shown, because a shared machine only ever adds noise. Client and
//! server share the cores.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rehearsal::{Api, ApiError, Crowd, CrowdReport, Deployment, Launch, SaleTokens, settled};
use sale::{Clock, ItemId, Keys, SaleToken, SystemClock};
use serde::Serialize;
use serde_json::{Value, json};

const SECRET: &str = "only for the benchmark, on loopback";
const HELP: &str = "\
cargo xtask bench [--quick] [--connections N] [--json FILE]

  --quick           fewer buyers and rounds
  --connections N   how many sockets the crowd shares (default 256)
  --json FILE       write the figures to FILE as well
";

struct Plan {
    rounds: usize,
    buyers: usize,
    strangers: usize,
    connections: usize,
    json: Option<PathBuf>,
}

#[derive(Clone, Debug, Serialize)]
struct Rate {
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Round {
    /// Admitted and on disk, over HTTP.
    claims: Rate,
    /// Refused with 409 sold_out, over HTTP.
    sold_out: Rate,
    /// From the first claim to the last order in the ledger, while claims are still coming.
    orders_per_s: f64,
}

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let Some(plan) = plan(std::env::args().skip(1))? else {
        print!("{HELP}");
        return Ok(());
    };
    let data = PathBuf::from(format!("target/bench-{}", std::process::id()));
    std::fs::create_dir_all(&data)?;
    let measured = measure(&plan, &data).await;
    std::fs::remove_dir_all(&data)?;
    let best = best(measured?);
    println!("\nbest of {} rounds, {} connections", plan.rounds, plan.connections);
    println!("{:24} {:>10}  {:>8}  {:>8}", "", "per second", "p50 ms", "p99 ms");
    let row = |name: &str, rate: &Rate| {
        println!("{name:24} {:>10.0}  {:>8.2}  {:>8.2}", rate.per_s, rate.p50_ms, rate.p99_ms);
    };
    row("claims, fsynced", &best.claims);
    row("sold-out answers", &best.sold_out);
    println!("{:24} {:>10.0}", "orders into SQLite", best.orders_per_s);
    if let Some(path) = plan.json {
        std::fs::write(path, serde_json::to_vec_pretty(&best)?)?;
    }
    Ok(())
}

fn plan(mut args: impl Iterator<Item = String>) -> Result<Option<Plan>, Failure> {
    let mut plan =
        Plan { rounds: 5, buyers: 50_000, strangers: 100_000, connections: 256, json: None };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => (plan.rounds, plan.buyers, plan.strangers) = (2, 20_000, 40_000),
            "--connections" => {
                plan.connections = args.next().ok_or("--connections needs a number")?.parse()?;
            }
            "--json" => plan.json = Some(args.next().ok_or("--json needs a file")?.into()),
            "--help" => return Ok(None),
            other => return Err(format!("unknown option {other}\n{HELP}").into()),
        }
    }
    Ok(Some(plan))
}

async fn measure(plan: &Plan, data: &Path) -> Result<Vec<Round>, Failure> {
    let server = Launch::new("target/release/seckill", data)
        .env("SECKILL_SECRET", SECRET)
        .env("SECKILL_LOG_LEVEL", "warn")
        .log(data.join("server.log"))
        .start()
        .await?;
    let mut rounds = Vec::new();
    for n in 0..plan.rounds {
        let round = one_round(plan, &server).await?;
        println!(
            "round {n}: {:.0} claims/s, {:.0} sold-out answers/s, {:.0} orders/s",
            round.claims.per_s, round.sold_out.per_s, round.orders_per_s
        );
        rounds.push(round);
    }
    server.stop().await?;
    Ok(rounds)
}

async fn one_round(plan: &Plan, server: &Deployment) -> Result<Round, Failure> {
    let mut admin = server.admin();
    let item = open_sale(&mut admin, plan.buyers).await?;
    let crowd = Crowd {
        addresses: vec![server.address],
        item,
        quantity: 1,
        connections: plan.connections,
        keys: false,
    };
    let started = Instant::now();
    let bought = crowd.rush(tokens(item, "buyer", plan.buyers)).await;
    if bought.admitted() != plan.buyers {
        return Err(
            format!("only {} of {} claims were admitted", bought.admitted(), plan.buyers).into()
        );
    }
    settled(&mut admin, Duration::from_secs(120)).await?;
    let orders_per_s = plan.buyers as f64 / started.elapsed().as_secs_f64();
    let refused = crowd.rush(tokens(item, "stranger", plan.strangers)).await;
    Ok(Round { claims: rate(&bought), sold_out: rate(&refused), orders_per_s })
}

fn rate(report: &CrowdReport) -> Rate {
    let quantile = |q: f64| report.latency.value_at_quantile(q) as f64 / 1_000.0;
    Rate { per_s: report.per_second(), p50_ms: quantile(0.5), p99_ms: quantile(0.99) }
}

async fn open_sale(admin: &mut Api, stock: usize) -> Result<i64, ApiError> {
    let now_ms = SystemClock.now_ms();
    let body = json!({"name": "bench", "opens_at": now_ms - 1_000, "closes_at": now_ms + 3_600_000,
        "items": [{"name": "unit", "price": 100, "stock": stock}]});
    let created: Value = admin.write("/api/v1/admin/activities", &body).await?;
    for step in ["publish", "warm"] {
        let path = format!("/api/v1/admin/activities/{}/{step}", created["id"]);
        let _: Value = admin.write(&path, &json!({})).await?;
    }
    Ok(created["items"][0]["id"].as_i64().unwrap_or_default())
}

/// Signed here rather than fetched: fetching is not what is measured.
fn tokens(item: i64, name: &str, count: usize) -> SaleTokens {
    let keys = Keys::from_secret(SECRET.as_bytes()).expect("the secret is long enough");
    let expires_ms = SystemClock.now_ms() + 600_000;
    (0..count)
        .map(|n| {
            let name = format!("{name}{n}");
            let user = name.parse().expect("the name is visible");
            let token = SaleToken { user, item: ItemId(item), expires_ms }.sign(&keys);
            (name, token)
        })
        .collect()
}

/// Each figure from its own best round.
fn best(rounds: Vec<Round>) -> Round {
    let fastest = |rate: fn(&Round) -> &Rate| {
        let by_rate = |a: &&Rate, b: &&Rate| a.per_s.total_cmp(&b.per_s);
        rounds.iter().map(rate).max_by(by_rate).cloned().expect("there is at least one round")
    };
    Round {
        claims: fastest(|round| &round.claims),
        sold_out: fastest(|round| &round.sold_out),
        orders_per_s: rounds.iter().map(|round| round.orders_per_s).fold(0.0, f64::max),
    }
}

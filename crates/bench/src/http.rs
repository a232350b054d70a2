//! A whole solo server over real HTTP: a crowd buys everything, and another one is told that it is
//! sold out.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use rehearsal::{Api, ApiError, Crowd, CrowdReport, Deployment, Launch, SaleTokens, settled};
use sale::{Clock, ItemId, Keys, SaleToken, SystemClock};
use serde_json::{Value, json};

use crate::{
    Failure, Plan,
    figures::{Figures, Goal},
};

const SECRET: &str = "only for the benchmark, on loopback";

#[derive(Clone, Debug)]
struct Rate {
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

#[derive(Clone, Debug)]
struct Round {
    /// Admitted and on disk, over HTTP.
    claims: Rate,
    /// Refused with 409 sold_out, over HTTP.
    sold_out: Rate,
    /// From the first claim to the last order in the ledger, while claims are still coming.
    orders_per_s: f64,
}

/// How large the crowds are.
struct Size {
    connections: usize,
    buyers: usize,
    strangers: usize,
}

pub(crate) async fn measure(
    plan: &Plan,
    data: &Path,
    figures: &mut Figures,
) -> Result<(), Failure> {
    let (buyers, strangers) = if plan.quick { (20_000, 40_000) } else { (50_000, 100_000) };
    let size = Size { connections: plan.connections, buyers, strangers };
    let data = data.join("http");
    std::fs::create_dir_all(&data)?;
    let server = Launch::new("target/release/seckill", &data)
        .env("SECKILL_SECRET", SECRET)
        .env("SECKILL_LOG_LEVEL", "warn")
        .log(data.join("server.log"))
        .start()
        .await?;
    let mut rounds = Vec::new();
    for n in 0..plan.rounds(5, 2) {
        let round = one_round(&size, &server).await?;
        println!(
            "  round {n}: {:.0} claims/s, {:.0} sold-out answers/s, {:.0} orders/s",
            round.claims.per_s, round.sold_out.per_s, round.orders_per_s
        );
        rounds.push(round);
    }
    server.stop().await?;
    let best = best(rounds);
    let mut rate = |key: &str, what: &str, rate: &Rate| {
        figures.add(
            &format!("{key}_per_s"),
            &format!("{what}, per second"),
            rate.per_s,
            Goal::None,
        );
        for (quantile, ms) in [("p50", rate.p50_ms), ("p99", rate.p99_ms)] {
            let what = format!("{what}, {quantile} ms");
            figures.add(&format!("{key}_{quantile}_ms"), &what, ms, Goal::None);
        }
    };
    rate("claims", "fsynced claims over HTTP", &best.claims);
    rate("sold_out", "sold-out answers over HTTP", &best.sold_out);
    let what = "orders into SQLite meanwhile, per second";
    figures.add("orders_per_s", what, best.orders_per_s, Goal::None);
    Ok(())
}

async fn one_round(plan: &Size, server: &Deployment) -> Result<Round, Failure> {
    let mut admin = server.admin();
    let item = open_sale(&mut admin, plan.buyers).await?;
    let crowd = Crowd {
        addresses: vec![server.address],
        item,
        quantity: 1,
        connections: plan.connections,
        at_once: false,
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

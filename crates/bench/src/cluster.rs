//! The cluster profile over real HTTP: one process with every role, a Redis that is on disk before it
//! answers, and MariaDB.
//!
//! Two questions: how many claims per second beside the echo, and how long the seeds' own sale takes
//! (10,000 units, 100,000 buyers; they plan ten seconds for it).

use std::{
    path::Path,
    time::{Duration, Instant},
};

use client::{Api, Launch, ServerProcess, settled};
use faults::services::{MariaDb, MariaDbOptions, Redis, RedisOptions};
use serde_json::Value;

use crate::{
    Failure, Plan,
    echo::Echo,
    figures::{Figures, Goal},
    http::{BUYERS, Rate, SECRET, crowd, open_sale, served, tokens},
    server_binary,
};

const CONNECTIONS: usize = 256;
const RUSH_UNITS: usize = 10_000;
const RUSH_BUYERS: usize = 100_000;
const RUSH_CONNECTIONS: usize = 1_024;
/// Both sides of an item are read this often during the rush.
const READ_AGAIN: Duration = Duration::from_millis(10);
const RUSH_WITHIN: Duration = Duration::from_secs(120);

/// The engines and the process on them.
pub(crate) struct Cluster {
    pub(crate) server: ServerProcess,
    pub(crate) ledger_url: String,
    _redis: Redis,
    _mariadb: MariaDb,
}

impl Cluster {
    pub(crate) async fn start(data: &Path) -> Result<Cluster, Failure> {
        std::fs::create_dir_all(data)?;
        let redis = Redis::start(RedisOptions::default())?;
        let options =
            MariaDbOptions { buffer_pool_mb: 512, redo_log_mb: 512, ..MariaDbOptions::default() };
        let mariadb = MariaDb::start(options)?;
        let ledger_url = mariadb.create_database("bench")?;
        let server = Launch::new(server_binary()?, data)
            .env("SECKILL_PROFILE", "cluster")
            .env("SECKILL_REDIS_URL", redis.url())
            .env("SECKILL_LEDGER_URL", &ledger_url)
            .env("SECKILL_AUTH_JWT_SECRET", SECRET)
            .env("SECKILL_SECRET", SECRET)
            .env("SECKILL_LOG_LEVEL", "warn")
            .log(data.join("server.log"))
            .start()
            .await?;
        Ok(Cluster { server, ledger_url, _redis: redis, _mariadb: mariadb })
    }
}

/// Claims per second through Redis, beside the echo.
pub(crate) async fn claims(plan: &Plan, data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let cluster = Cluster::start(&data.join("cluster-claims")).await?;
    let echo = Echo::start()?;
    let (mut best_echo, mut best) = (Rate::default(), Rate::default());
    for n in 0..plan.rounds(30, 10) {
        let mut admin = cluster.server.admin();
        let item = open_sale(&mut admin, BUYERS).await?;
        let side = crowd(echo.address, item, CONNECTIONS);
        let (rate, _) = served(echo.pid(), side.rush(tokens(item, "buyer", BUYERS))).await?;
        best_echo = best_echo.or_better(rate);
        let side = crowd(cluster.server.address, item, CONNECTIONS);
        let rush = side.rush(tokens(item, "buyer", BUYERS));
        let (claims, bought) = served(cluster.server.pid(), rush).await?;
        if bought.history.admitted() != BUYERS {
            return Err(format!("only {} claims were admitted", bought.history.admitted()).into());
        }
        best = best.or_better(claims);
        println!("  round {n}: echo {:.0}/s, claims {:.0}/s", rate.per_s, claims.per_s);
        settled(&mut admin, RUSH_WITHIN).await?;
    }
    let what = "claims through Redis (appendfsync always) ÷ echo";
    let ratio = best.per_s / best_echo.per_s;
    figures.add("claim_cluster_vs_echo", what, ratio, Goal::AtLeast(0.55));
    figures.add("claims_cluster_per_s", "the same, per second", best.per_s, Goal::None);
    figures.add("claims_cluster_p99_ms", "the same, p99 ms", best.p99_ms, Goal::None);
    Ok(())
}

/// From the opening to the last order in MySQL.
pub(crate) async fn rush(plan: &Plan, data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let cluster = Cluster::start(&data.join("cluster-rush")).await?;
    let mut best: Option<Times> = None;
    for n in 0..plan.rounds(5, 2) {
        let times = one_rush(&cluster.server).await?;
        println!(
            "  round {n}: last unit claimed after {} ms, last order after {} ms, \
             last buyer answered after {} ms",
            times.claimed.as_millis(),
            times.ordered.as_millis(),
            times.answered.as_millis()
        );
        if best.as_ref().is_none_or(|best| times.ordered < best.ordered) {
            best = Some(times);
        }
    }
    let best = best.ok_or("no round")?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let what = "10,000 units, 100,000 buyers: opening to the last order in MySQL, ms";
    figures.add("rush_ms", what, ms(best.ordered), Goal::AtMost(2_500.0));
    figures.add("rush_claimed_ms", "… to the last unit claimed, ms", ms(best.claimed), Goal::None);
    let what = "… to the last buyer's answer, ms";
    figures.add("rush_answered_ms", what, ms(best.answered), Goal::None);
    Ok(())
}

struct Times {
    claimed: Duration,
    ordered: Duration,
    answered: Duration,
}

async fn one_rush(server: &ServerProcess) -> Result<Times, Failure> {
    let mut admin = server.admin();
    let item = open_sale(&mut admin, RUSH_UNITS).await?;
    let buyers = tokens(item, "buyer", RUSH_BUYERS);
    let side = crowd(server.address, item, RUSH_CONNECTIONS);
    // All sockets are open before the first claim leaves, so the watch starts with that claim: as
    // soon as the gate has less than it was given.
    let rush = tokio::spawn(async move { side.rush(buyers).await });
    let (claimed, ordered) = watch(server, item).await?;
    let report = rush.await?;
    if report.history.admitted() != RUSH_UNITS {
        return Err(format!("{} of {RUSH_UNITS} units were sold", report.history.admitted()).into());
    }
    let began = report.began;
    let since = |at: Instant| at.saturating_duration_since(began);
    settled(&mut admin, RUSH_WITHIN).await?;
    Ok(Times { claimed: since(claimed), ordered: since(ordered), answered: report.took })
}

/// When nothing was left at the gate, and when nothing was left in the ledger.
async fn watch(server: &ServerProcess, item: i64) -> Result<(Instant, Instant), Failure> {
    let mut admin: Api = server.admin();
    let deadline = Instant::now() + RUSH_WITHIN;
    let mut claimed = None;
    loop {
        let sides: Value = admin.read(&format!("/api/v1/admin/items/{item}")).await?;
        let now = Instant::now();
        if sides["gate"]["left"] == 0 {
            claimed.get_or_insert(now);
        }
        if let (Some(claimed), Some(0)) = (claimed, sides["item"]["stock"].as_i64()) {
            return Ok((claimed, now));
        }
        if now > deadline {
            return Err(format!("the rush did not end: {sides}").into());
        }
        tokio::time::sleep(READ_AGAIN).await;
    }
}

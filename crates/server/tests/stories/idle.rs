//! What a cluster costs its Redis when nothing happens: it follows the partitions, not the items.

use std::{collections::BTreeMap, time::Duration};

use client::NewSale;
use faults::services::{Redis, RedisOptions};
use serde_json::{Value, json};

use crate::fixtures::{Deployment, Profile, WEBS, becomes, blocking, now_ms};

const ACTIVITIES: usize = 8;
const ITEMS: usize = 200;
const SHARDS: u32 = 4;
/// As many as by default.
const PARTITIONS: usize = 16;
const MEASURED: Duration = Duration::from_secs(10);
const CALLS_PER_S_MAX: u64 = 100;

/// How often each command was called since the server started.
fn calls(redis: &Redis) -> BTreeMap<String, u64> {
    let stats = redis.call(&["INFO", "commandstats"]).unwrap().text();
    let line = |line: &str| {
        let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = figures.strip_prefix("calls=")?.split(',').next()?;
        Some((name.to_owned(), calls.parse().ok()?))
    };
    stats.lines().filter_map(line).collect()
}

/// What only clients call. Of the rest `SET` and `HLEN` are called by them, too, and once by each pulse,
/// which is the only script that calls `INFO` and the only one that runs when nothing happens.
const BY_CLIENTS: [&str; 9] = [
    "evalsha",
    "eval",
    "xreadgroup",
    "xautoclaim",
    "hgetall",
    "publish",
    "hset",
    "pexpire",
    "ping",
];
const BY_BOTH: [&str; 2] = ["set", "hlen"];

#[tokio::test(flavor = "multi_thread")]
async fn two_idle_instances_with_two_hundred_items_make_few_calls() {
    let redis = blocking(|| Redis::start(RedisOptions::default())).await;
    let mut deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", redis.url())
        .env("SECKILL_REDIS_PARTITIONS", PARTITIONS)
        .without("SECKILL_REDIS_TAKEOVER_MS");
    deployment.launches.truncate(WEBS.len());
    deployment.launches.iter_mut().for_each(|launch| launch.args.clear());
    let prefix = deployment.database.clone();
    let sale = deployment.open_sale(NewSale::of(10).shards(SHARDS)).await;
    let mut admin = sale.admin();
    let item = json!({"name": "thing", "price": 100, "origin_price": 100, "currency": "CNY", "stock": 10,
        "limit_per_user": 1, "shards": SHARDS});
    for n in 0..ACTIVITIES {
        let plan = json!({"name": format!("sale {n}"), "opens_at": now_ms() - 1_000,
            "closes_at": now_ms() + 3_600_000, "items": vec![item.clone(); ITEMS / ACTIVITIES]});
        let created: Value = admin.write("/api/v1/admin/activities", &plan).await.unwrap();
        let path = format!("/api/v1/admin/activities/{}/publish", created["id"]);
        admin.write::<Value>(&path, &json!({})).await.unwrap();
    }
    let items = format!("{prefix}:items");
    let opened = (0..PARTITIONS).map(|p| format!("{prefix}:{{p{p}}}:changed")).collect::<Vec<_>>();
    becomes("all are at the gate", async || {
        redis.call(&["HLEN", &items]).unwrap().text() == (ITEMS + 1).to_string()
    })
    .await;
    // Until nothing changes any more.
    let changes = || opened.iter().map(|key| redis.call(&["ZSCORE", key, ""]).unwrap().text());
    let mut last: Vec<String> = Vec::new();
    becomes("nothing changes", async || {
        let before = std::mem::replace(&mut last, changes().collect());
        tokio::time::sleep(Duration::from_secs(2)).await;
        before == last
    })
    .await;
    let before = calls(&redis);
    tokio::time::sleep(MEASURED).await;
    let after = calls(&redis);
    let made: BTreeMap<&String, u64> = after
        .iter()
        .map(|(name, calls)| (name, calls - before.get(name).unwrap_or(&0)))
        .filter(|(_, calls)| *calls > 0)
        .collect();
    let of = |name: &str| made.get(&name.to_owned()).copied().unwrap_or(0);
    let both = BY_BOTH.iter().map(|name| of(name).saturating_sub(of("info")));
    let per_s =
        BY_CLIENTS.iter().map(|name| of(name)).chain(both).sum::<u64>() / MEASURED.as_secs();
    let all_per_s = made.values().sum::<u64>() / MEASURED.as_secs();
    println!("{per_s} calls/s; with what scripts call, {all_per_s}/s: {made:?}");
    assert!(per_s <= CALLS_PER_S_MAX, "{made:?}");
    assert!(of("hmget") < MEASURED.as_secs() * ITEMS as u64, "items are read in turns: {made:?}");
}

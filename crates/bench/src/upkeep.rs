//! What runs by itself, in a shop that has much and in which little happens: what an instance works when
//! nothing does, and how long a comparison takes of what changed.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use client::{Launch, ServerProcess, settled};
use faults::services::{MariaDb, MariaDbOptions, Redis, RedisOptions};
use ledger::{
    CreatedActivities, Ledger, NewActivities,
    mysql::{self, Options},
    sqlite,
};
use sale::{
    Activity, ActivityMove, Clock, Currency, ItemId, NewActivity, NewItem, OrderBook,
    PAY_WITHIN_MS_DEFAULT, SystemClock,
};
use serde_json::{Value, json};

use crate::{
    Failure, Plan,
    claims::{Crowd, clock},
    cpu::cpu_us,
    figures::{Figures, Goal},
    http::{SECRET, SETTLED_WITHIN, crowd, start, tokens},
    server_binary,
    sizes::{self, Line},
};

const LEDGER_FILE: &str = "ledger.db";
const ACTIVITIES: [usize; 3] = [10, 1_000, 10_000];
/// So many are made in one transaction.
const MADE_AT_ONCE: usize = 500;
/// What changed is asked for for a minute after it did.
const REST: Duration = Duration::from_secs(75);
const MEASURED: Duration = Duration::from_secs(30);
const READY_WITHIN: Duration = Duration::from_secs(600);
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// In percent of a core.
const IDLE_GOAL: f64 = 2.0;
const CHANGED_MS_GOAL: f64 = 1_000.0;

/// Orders in the books.
const ORDERS: [usize; 2] = [1_000, 2_000_000];
const ITEMS: usize = 20;
const BATCH: usize = 1_000;
/// Claims between two comparisons.
const CLAIMS: usize = 500;
const CONNECTIONS: usize = 16;

/// A process that has all to do, and the engines under it.
struct Idle {
    what: String,
    activities: usize,
    server: ServerProcess,
    engines: Option<(Redis, MariaDb)>,
}

pub(crate) async fn idle(plan: &Plan, data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let mut all = Vec::new();
    for activities in ACTIVITIES {
        for is_cluster in [false, true] {
            let name = if is_cluster { "cluster" } else { "solo" };
            let folder = data.join(format!("idle-{name}-{activities}"));
            std::fs::create_dir_all(&folder)?;
            let started = if is_cluster {
                cluster(&folder, activities).await
            } else {
                solo(&folder, activities).await
            };
            let (server, engines) = started?;
            let what = format!("{name}_{activities}");
            is_at_rest(&server, activities).await?;
            println!("  {what}: all of {activities} activities are at the gate");
            all.push(Idle { what, activities, server, engines });
        }
    }
    tokio::time::sleep(REST).await;
    // Side by side: what a process works does not depend on who works beside it.
    let mut before = Vec::new();
    for idle in &all {
        before.push(cpu_us(idle.server.pid())?);
    }
    tokio::time::sleep(MEASURED).await;
    let mut lines = ["solo", "cluster"].map(|name| Line { name: name.into(), points: vec![] });
    for (idle, before) in all.iter().zip(&before) {
        let worked = (cpu_us(idle.server.pid())? - before) / MEASURED.as_micros() as f64 * 100.0;
        let what = format!("% of a core of an idle instance, activities: {}", idle.what);
        figures.add(&format!("idle_cpu_{}", idle.what), &what, worked, Goal::AtMost(IDLE_GOAL));
        println!("  {what}: {worked:.2}");
        lines[usize::from(idle.engines.is_some())].points.push((idle.activities as f64, worked));
    }
    let title = "% of a core of an idle instance, by published activities";
    draw(plan, "idle", &sizes::svg(title, &lines, IDLE_GOAL))?;
    for idle in all {
        idle.server.stop().await?;
    }
    Ok(())
}

type Started = (ServerProcess, Option<(Redis, MariaDb)>);

async fn solo(folder: &Path, activities: usize) -> Result<Started, Failure> {
    publish(&sqlite::open(&folder.join(LEDGER_FILE), clock())?, activities, 1, 1).await?;
    Ok((start(&server_binary()?, folder, &[]).await?, None))
}

async fn cluster(folder: &Path, activities: usize) -> Result<Started, Failure> {
    let redis = Redis::start(RedisOptions::default())?;
    let mariadb = MariaDb::start(MariaDbOptions::default())?;
    let url = mariadb.create_database("bench")?;
    publish(&mysql::open(&url, clock(), Options::default()).await?, activities, 1, 1).await?;
    let server = Launch::new(server_binary()?, folder)
        .env("SECKILL_PROFILE", "cluster")
        .env("SECKILL_REDIS_URL", redis.url())
        .env("SECKILL_LEDGER_URL", url)
        .env("SECKILL_AUTH_JWT_SECRET", SECRET)
        .env("SECKILL_SECRET", SECRET)
        .env("SECKILL_LOG_LEVEL", "warn")
        .log(folder.join("server.log"))
        .start()
        .await?;
    Ok((server, Some((redis, mariadb))))
}

/// Activities that are open, each with so many items of so many units.
async fn publish(
    ledger: &dyn Ledger,
    activities: usize,
    items: usize,
    units: usize,
) -> Result<Vec<Activity>, Failure> {
    let now_ms = SystemClock.now_ms();
    let item = NewItem {
        name: "a thing that is sold in a flash".into(),
        image_url: String::new(),
        price: 1_000,
        origin_price: None,
        currency: Currency::CNY,
        stock: units as i64,
        limit_per_user: 1,
        shards: 1,
        words: Default::default(),
    };
    let plan = NewActivity {
        external_id: None,
        name: "an open sale".into(),
        opens_ms: now_ms - 1_000,
        closes_ms: now_ms + 24 * 3_600_000,
        pay_within_ms: PAY_WITHIN_MS_DEFAULT,
        publish_ms: None,
        door: Default::default(),
        shuffle_ms: 0,
        items: vec![item; items],
    };
    let mut published = Vec::with_capacity(activities);
    while published.len() < activities {
        let count = MADE_AT_ONCE.min(activities - published.len());
        let plans = NewActivities::of(vec![plan.clone(); count]);
        let CreatedActivities::Made(made) = ledger.create_activities(&plans, now_ms).await? else {
            return Err("activities were not made".into());
        };
        for created in made {
            let id = created.activity.id;
            let moved = ledger.move_activity(id, ActivityMove::Publish, None, now_ms).await?;
            published.push(moved.activity);
        }
    }
    Ok(published)
}

/// When every item is at the gate, agrees with the ledger and has come to rest.
async fn is_at_rest(server: &ServerProcess, items: usize) -> Result<(), Failure> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        let (_, report) = compare(server, true).await?;
        if report["unchanged"] == items && report["compared"] == items {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("the items do not come to rest: {report}").into());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// A comparison, and how many milliseconds it took by its own report.
async fn compare(server: &ServerProcess, changed: bool) -> Result<(f64, Value), Failure> {
    let mut admin = server.admin();
    let path = format!("/api/v1/admin/reconcile?changed={changed}");
    let mut answer: Value = admin.write(&path, &json!({})).await?;
    while answer["state"] == "running" {
        tokio::time::sleep(LOOK_AGAIN).await;
        let path = format!("/api/v1/admin/reconcile/runs/{}", answer["run"]);
        answer = admin.read(&path).await?;
    }
    let report = if answer["state"] == "done" { answer["report"].take() } else { answer };
    let at = |name: &str| report[name].as_f64().ok_or_else(|| format!("no report: {report}"));
    let took_ms = at("ended_at")? - at("started_at")?;
    if report["left"] != 0 {
        return Err(format!("something differs: {report}").into());
    }
    Ok((took_ms, report))
}

pub(crate) async fn reconcile(
    plan: &Plan,
    data: &Path,
    figures: &mut Figures,
) -> Result<(), Failure> {
    let mut lines =
        ["what changed", "everything"].map(|name| Line { name: name.into(), points: vec![] });
    for orders in ORDERS {
        let folder = data.join(format!("reconcile-{orders}"));
        std::fs::create_dir_all(&folder)?;
        let item = fill(&folder.join(LEDGER_FILE), orders).await?;
        let server = start(&server_binary()?, &folder, &[]).await?;
        is_at_rest(&server, ITEMS).await?;
        let (mut best, mut whole) = (f64::MAX, f64::MAX);
        for round in 0..plan.rounds(5, 2) {
            let buyers = tokens(item.0, &format!("round{round}-"), CLAIMS);
            crowd(server.address, item.0, CONNECTIONS).rush(buyers).await;
            settled(&mut server.admin(), SETTLED_WITHIN).await?;
            let (took_ms, report) = compare(&server, true).await?;
            let (whole_ms, _) = compare(&server, false).await?;
            (best, whole) = (best.min(took_ms), whole.min(whole_ms));
            println!(
                "  {orders} orders, round {round}: {took_ms} ms for what changed ({} of {ITEMS} items \
                 untouched), {whole_ms} ms for everything",
                report["unchanged"]
            );
        }
        let size = if orders == ORDERS[0] { "1e3" } else { "2e6" };
        let what = format!("ms to compare what {CLAIMS} claims changed, of {orders} orders");
        figures.add(
            &format!("reconcile_changed_ms_{size}"),
            &what,
            best,
            Goal::AtMost(CHANGED_MS_GOAL),
        );
        let what = format!("ms to compare everything, of {orders} orders");
        figures.add(&format!("reconcile_whole_ms_{size}"), &what, whole, Goal::None);
        server.stop().await?;
        std::fs::remove_dir_all(folder)?;
        for (line, took_ms) in lines.iter_mut().zip([best, whole]) {
            line.points.push((orders as f64, took_ms));
        }
    }
    let title = "ms to compare gate and ledger, by orders in the books";
    draw(plan, "reconcile", &sizes::svg(title, &lines, CHANGED_MS_GOAL))
}

/// Beside the drawing of all figures, under this name.
fn draw(plan: &Plan, name: &str, svg: &str) -> Result<(), Failure> {
    if let Some(path) = &plan.svg {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        std::fs::write(path.with_file_name(format!("{stem}-{name}.svg")), svg)?;
    }
    Ok(())
}

/// Paid orders of an hour ago, on items that are still on sale.
async fn fill(file: &Path, orders: usize) -> Result<ItemId, Failure> {
    let ledger = sqlite::open(file, clock())?;
    let each = orders / ITEMS;
    let activity = publish(&ledger, 1, ITEMS, each + 100_000).await?.remove(0);
    let mut crowd = Crowd::new();
    let items: Vec<ItemId> = activity.items.iter().map(|item| item.id).collect();
    for item in &items {
        for batch in crowd.claims(*item, each)?.chunks(BATCH) {
            ledger.settle(*item, batch).await?;
        }
    }
    drop(ledger);
    // One by one, with a notice each, it would take an hour.
    let books = rusqlite::Connection::open(file)?;
    books.execute_batch(
        "BEGIN IMMEDIATE;
         INSERT INTO tb_payment (provider, provider_txn, order_no, kind, amount, currency, paid_at,
             created_at)
         SELECT 'bench', 'T' || order_no, order_no, 1, amount, currency, created_at - 3600000,
             created_at - 3600000 FROM tb_seckill_order;
         UPDATE tb_seckill_order SET status = 1, paid_at = created_at - 3600000,
             pay_deadline = pay_deadline - 7200000;
         DELETE FROM tb_outbox;
         COMMIT;",
    )?;
    Ok(items[0])
}

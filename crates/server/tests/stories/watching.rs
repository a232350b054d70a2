//! Somebody is woken, and can see: real outages, what is told of them and how often, and the numbers.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use checker::Answer;
use client::{Api, NewSale};
use faults::services::{MariaDb, MariaDbOptions, Redis, RedisOptions, find_program};
use orders::AlertKind;
use serde_json::{Value, json};

use crate::fixtures::{Deployment, PATIENCE, Profile, Sale, WORKERS, Webhook, becomes, blocking};

const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A deployment whose watchers lose no time.
fn watched(deployment: Deployment, webhook: &Webhook) -> Deployment {
    deployment
        .env("SECKILL_ALERTS_WEBHOOK_URL", &webhook.url)
        .env("SECKILL_ALERTS_RAISE_AFTER_MS", 500)
        .env("SECKILL_ALERTS_RESOLVE_AFTER_MS", 2_000)
        .env("SECKILL_ALERTS_DISK_LOW_BYTES", 0)
        .env("SECKILL_ALERTS_DISK_FULL_BYTES", 0)
}

async fn status(sale: &Sale, path: &str) -> (u16, Value) {
    let answer = sale.admin().get(path).await.unwrap();
    (answer.status, answer.json())
}

async fn is_ready(sale: &Sale, what: &str) -> bool {
    status(sale, &format!("/readyz{what}")).await.0 == 200
}

/// The journal is locked (solo), or Redis is killed (cluster).
async fn a_gate_that_is_down_is_told_of_once_and_once_when_it_is_over(profile: Profile) {
    let webhook = Webhook::start().await;
    let mut deployment = watched(Deployment::new(profile), &webhook);
    let mut redis = None;
    if profile == Profile::Cluster {
        let own = Arc::new(blocking(|| Redis::start(RedisOptions::default())).await);
        deployment =
            deployment.env("SECKILL_REDIS_URL", own.url()).env("SECKILL_REDIS_ANSWER_MS_MAX", 500);
        redis = Some(own);
    }
    let sale = deployment.open_sale(NewSale::of(10)).await;
    assert!(is_ready(&sale, "").await && is_ready(&sale, "/settle").await);
    let mut buyer = sale.buyer("ann").await;

    let mut thief = None;
    match redis.clone() {
        Some(redis) => blocking(move || redis.kill()).await,
        None => {
            let journal = sale.deployment.data().join("journal.db");
            let lock = rusqlite::Connection::open(journal).unwrap();
            lock.busy_timeout(Duration::from_secs(10)).unwrap();
            lock.execute_batch("BEGIN IMMEDIATE").unwrap();
            thief = Some(lock);
        }
    }
    webhook.receives(AlertKind::GateDown, &["raised"]).await;
    let (code, body) = status(&sale, "/readyz").await;
    assert_eq!((code, &body["sell"], &body["gate"]), (503, &json!("down"), &json!("down")));
    assert!(is_ready(&sale, "/show").await, "pages are shown");
    let refused = buyer.claim().await;
    assert!(!matches!(refused, Answer::Admitted { .. }), "{refused:?}");
    // The overview is there when it is needed. In a cluster another instance may be the one that tells.
    let overview: Value = sale.admin().read("/api/v1/admin/overview").await.unwrap();
    assert_eq!(overview["health"]["sell"], "down", "{overview}");
    assert!(overview["health"]["parts"][0]["cause"].is_string(), "{overview}");
    if profile == Profile::Solo {
        assert_eq!(overview["open_alerts"][0]["kind"], "gate_down", "{overview}");
    }

    drop(thief);
    if let Some(redis) = redis.clone() {
        blocking(move || redis.restart()).await;
    }
    webhook.receives(AlertKind::GateDown, &["raised", "resolved"]).await;
    becomes("the sale goes on", async || is_ready(&sale, "").await).await;
    becomes("it is sold again", async || {
        let somebody = format!("bob{}", fastrand::u64(..));
        matches!(sale.buyer(&somebody).await.claim().await, Answer::Admitted { .. })
    })
    .await;
    let told = webhook.alerts().clone();
    let of_gate = told.iter().find(|alert| alert["kind"] == "gate_down").unwrap();
    assert_eq!(of_gate["todo"], AlertKind::GateDown.todo());
    assert!(of_gate["instance"].as_str().is_some_and(|name| !name.is_empty()), "{of_gate}");
    assert_eq!(webhook.states(AlertKind::GateDown).len(), 2, "four processes saw it: {told:?}");
}

/// The ledger is locked (solo), or MariaDB is frozen (cluster): the sale goes on, nobody drains it, and
/// somebody is woken for what does not settle.
async fn with_the_ledger_down_the_sale_goes_on_and_somebody_is_woken(profile: Profile) {
    let webhook = Webhook::start().await;
    let mut deployment =
        watched(Deployment::new(profile), &webhook).env("SECKILL_ALERTS_BACKLOG_AGE_MS_MAX", 2_000);
    let mut ledger = None;
    if profile == Profile::Cluster {
        let own = Arc::new(blocking(|| MariaDb::start(MariaDbOptions::default())).await);
        deployment = deployment.env("SECKILL_LEDGER_URL", own.create_database("frozen").unwrap());
        ledger = Some(own);
    }
    let mut sale = deployment.open_sale(NewSale::of(10)).await;
    let mut buyer = sale.buyer("ann").await;
    let before = sale.buyer("bob").await.claim().await;
    assert!(matches!(before, Answer::Admitted { .. }), "{before:?}");
    sale.settle().await;

    let blocked = match ledger.clone() {
        Some(ledger) => {
            blocking(move || ledger.pause()).await;
            None
        }
        None => Some(sale.deployment.block_ledger()),
    };
    let admitted = buyer.claim().await;
    assert!(matches!(admitted, Answer::Admitted { .. }), "the sale goes on: {admitted:?}");
    webhook.receives(AlertKind::LedgerDown, &["raised"]).await;
    webhook.receives(AlertKind::Backlog, &["raised"]).await;
    let (code, body) = status(&sale, "/readyz").await;
    assert_eq!((code, &body["sell"], &body["settle"]), (200, &json!("ok"), &json!("down")));
    assert_eq!(body["log"], "stuck", "{body}");
    assert_eq!(status(&sale, "/readyz/settle").await.0, 503);
    if profile == Profile::Cluster {
        // For a worker to be ready means to settle, and it never sells.
        let answer = sale.process(WORKERS[0]).admin().get("/readyz").await.unwrap();
        assert_eq!((answer.status, &answer.json()["sell"]), (503, &json!("not_here")));
    }
    // Answered from memory: nobody waits for a part that hangs.
    let asked = Instant::now();
    for _ in 0..200 {
        sale.admin().get("/readyz").await.unwrap();
    }
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());

    drop(blocked);
    if let Some(ledger) = ledger.clone() {
        blocking(move || ledger.resume()).await;
    }
    webhook.receives(AlertKind::LedgerDown, &["raised", "resolved"]).await;
    webhook.receives(AlertKind::Backlog, &["raised", "resolved"]).await;
    becomes("it settles again", async || is_ready(&sale, "/settle").await).await;
    if profile == Profile::Cluster {
        becomes("the worker is ready", async || {
            let mut worker = sale.process(WORKERS[0]).admin();
            worker.get("/readyz").await.unwrap().status == 200
        })
        .await;
    }
    sale.settle().await;
    for kind in [AlertKind::LedgerDown, AlertKind::Backlog] {
        assert_eq!(webhook.states(kind).len(), 2, "once for all processes: {:?}", webhook.alerts());
    }
    sale.stop().await;
}

/// The disk is nearly full, the webhook is dead, and the process is restarted in the middle of it.
async fn a_disk_that_fills_up_is_told_when_the_webhook_is_back(profile: Profile) {
    let webhook = Webhook::start().await;
    webhook.set_out_of_order(true);
    let deployment = watched(Deployment::new(profile), &webhook)
        .env("SECKILL_ALERTS_DISK_LOW_BYTES", i64::MAX)
        .env("SECKILL_ALERTS_DISK_FULL_BYTES", i64::MAX);
    let mut sale = deployment.open_sale(NewSale::of(10)).await;
    // It cannot tell, so it shows.
    becomes("the webhook is seen to fail", async || {
        status(&sale, "/readyz").await.1["alerts"] == "failing"
    })
    .await;
    assert!(is_ready(&sale, "").await, "the sale goes on");
    becomes("the numbers show it", async || {
        let numbers = Numbers::of(&sale).await;
        numbers.get("seckill_alerts_webhook_up", &[]) == Some(0.0)
            && numbers.get("seckill_alert_open", &[("kind", "webhook_failing")]) == Some(1.0)
    })
    .await;
    assert!(webhook.alerts().is_empty());
    // Nor is forgotten what waits, whether it is stopped or killed.
    becomes("what waits is kept", async || {
        let kept = std::fs::read_to_string(sale.deployment.data().join("alerts.json"));
        kept.is_ok_and(|kept| kept.matches("\"raised\"").count() == 3)
    })
    .await;
    sale.stop().await;
    sale.start().await;
    sale.kill();
    sale.start().await;

    webhook.set_out_of_order(false);
    for kind in [AlertKind::DiskLow, AlertKind::DiskFull] {
        webhook.receives(kind, &["raised"]).await;
    }
    webhook.receives(AlertKind::WebhookFailing, &["raised", "resolved"]).await;
    assert_eq!(status(&sale, "/readyz").await.1["alerts"], "ok");

    // A restart does not tell again what was told…
    sale.kill();
    sale.start().await;
    becomes("the disk was looked at", async || {
        let open = [("kind", "disk_full")];
        Numbers::of(&sale).await.get("seckill_alert_open", &open) == Some(1.0)
    })
    .await;
    // …nor forgets to say that it is over.
    sale.stop().await;
    for launch in &mut sale.deployment.launches {
        *launch = launch
            .clone()
            .env("SECKILL_ALERTS_DISK_LOW_BYTES", 0)
            .env("SECKILL_ALERTS_DISK_FULL_BYTES", 0);
    }
    sale.start().await;
    for kind in [AlertKind::DiskLow, AlertKind::DiskFull] {
        webhook.receives(kind, &["raised", "resolved"]).await;
    }
}

type Labels<'a> = &'a [(&'a str, &'a str)];

/// What a server serves at `/metrics`.
struct Numbers {
    text: String,
    /// Name and labels → value.
    values: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

impl Numbers {
    async fn of(sale: &Sale) -> Numbers {
        let answer = Api::new(sale.server().address, None).get("/metrics").await.unwrap();
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let read = |line: &str| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.trim_end_matches('}').split("\",").filter(|one| !one.is_empty());
            let label = |one: &str| {
                let (name, value) = one.split_once("=\"").unwrap();
                (name.to_owned(), value.trim_end_matches('"').to_owned())
            };
            ((name.to_owned(), labels.map(label).collect()), value.parse().unwrap())
        };
        let values = lines.map(read).collect();
        Numbers { text, values }
    }

    /// The first with these labels among others.
    fn get(&self, name: &str, labels: Labels<'_>) -> Option<f64> {
        let fits = |of: &BTreeMap<String, String>| {
            labels.iter().all(|(name, value)| of.get(*name).is_some_and(|is| is == value))
        };
        let found = self.values.iter().find(|((of, labels), _)| of == name && fits(labels));
        found.map(|(_, value)| *value)
    }

    /// The names as they are described: a histogram has one.
    fn names(&self) -> BTreeSet<String> {
        let types = self.text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }
}

/// Every metric that a text speaks of. What a histogram consists of is called by its name.
fn spoken_of(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours = words.filter(|word| word.starts_with("seckill_"));
    let histogram = |word: &str| {
        let ends = ["_bucket", "_sum", "_count"];
        ends.iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word).to_owned()
    };
    ours.map(histogram).collect()
}

fn repository(path: &str) -> String {
    let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

async fn the_numbers_are_true_and_are_those_that_are_written_about(profile: Profile) {
    let deployment = Deployment::new(profile)
        .env("SECKILL_ORDERS_RETRY_LADDER_MS", "100")
        .env("SECKILL_ORDERS_RETRY_POLL_MS", 50)
        .env("SECKILL_JOBS_COUNT_EVERY_MS", 50);
    let mut sale = deployment.open_sale(NewSale::of(20)).await;
    sale.deployment.change_ledger(crate::failures::POISON_SQLITE, crate::failures::POISON_MYSQL);
    let mut users: Vec<String> = (0..6).map(|n| format!("u{n}")).collect();
    users.push("poison1".into());
    let buyers = sale.tokens(users).await;
    let report = sale.crowd(4).rush(buyers).await;
    assert_eq!(report.history.admitted(), 7);
    sale.history = report.history;

    let item = sale.item.to_string();
    let of_item = [("item", item.as_str())];
    becomes("the claim at fault is a dead letter", async || {
        Numbers::of(&sale).await.get("seckill_item_dead_letters", &of_item) == Some(1.0)
    })
    .await;
    sale.settle().await;
    client::reconcile(&mut sale.admin(), "").await.unwrap();
    let open = [of_item[0], ("state", "open")];
    let wanted: [(&str, Labels<'_>, f64); 14] = [
        ("seckill_item_units", &of_item, 20.0),
        ("seckill_item_units_left", &of_item, 13.0),
        ("seckill_item_units_sold", &of_item, 6.0),
        ("seckill_item_units_in_flight", &of_item, 0.0),
        ("seckill_item_retrying_claims", &of_item, 0.0),
        ("seckill_item_dead_letters", &of_item, 1.0),
        ("seckill_item_live_orders", &of_item, 6.0),
        ("seckill_item_state", &open, 1.0),
        ("seckill_gate_up", &[], 1.0),
        ("seckill_ledger_up", &[], 1.0),
        ("seckill_dead_letters", &[], 1.0),
        ("seckill_ready", &[("for", "sell")], 1.0),
        ("seckill_log_backlog_claims", &[], 0.0),
        ("seckill_outbox_rows", &[("kind", "release")], 0.0),
    ];
    // They are as old as the last count.
    let deadline = Instant::now() + PATIENCE;
    let numbers = loop {
        let numbers = Numbers::of(&sale).await;
        let wrong = wanted.iter().find(|(name, of, is)| numbers.get(name, of) != Some(*is));
        let Some(wrong) = wrong else { break numbers };
        assert!(Instant::now() < deadline, "{wrong:?} is not in\n{}", numbers.text);
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    assert!(numbers.get("seckill_disk_free_bytes", &[]).unwrap() > 0.0);
    // Nobody's name and no order is a label.
    for line in numbers.text.lines().filter(|line| line.contains('{')) {
        assert!(!line.contains("\"u1\"") && !line.contains("SK0"), "{line}");
    }

    must_please_promtool(&numbers.text);
    if profile == Profile::Solo {
        must_be_those_written_about(&numbers);
    }
}

/// Prometheus' own rules of names, types and descriptions.
fn must_please_promtool(text: &str) {
    let mut promtool = Command::new(find_program("promtool", "prometheus").unwrap())
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    let words =
        String::from_utf8_lossy(&said.stderr).into_owned() + &String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success() && words.trim().is_empty(), "{words}");
}

/// Solo does everything, so it serves everything.
fn must_be_those_written_about(numbers: &Numbers) {
    let served = numbers.names();
    for file in ["deploy/prometheus/seckill.rules.yml", "deploy/grafana/seckill.json"] {
        let named = spoken_of(&repository(file));
        let unknown: Vec<_> = named.difference(&served).collect();
        assert!(!named.is_empty() && unknown.is_empty(), "{file} speaks of {unknown:?}");
    }
    let told = spoken_of(&repository("docs/OPERATIONS.md"));
    let missing: Vec<_> = served.difference(&told).collect();
    let invented: Vec<_> = told.difference(&served).collect();
    assert!(missing.is_empty(), "docs/OPERATIONS.md does not know {missing:?}");
    assert!(invented.is_empty(), "docs/OPERATIONS.md invents {invented:?}");
}

/// The table of alerts in the handbook and the one in the code.
#[test]
fn every_alert_is_in_the_handbook_and_none_that_does_not_exist() {
    let handbook = repository("docs/OPERATIONS.md");
    let (_, section) = handbook.split_once("\n### Alerts\n").expect("there is a section on alerts");
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let told: BTreeMap<&str, bool> = rows
        .map(|row| {
            let (kind, rest) = row.split_once('`').unwrap();
            (kind, rest.split('|').nth(1).unwrap().trim() == "yes")
        })
        .collect();
    let raised: BTreeMap<&str, bool> =
        AlertKind::ALL.iter().map(|kind| (kind.as_str(), kind.lasts())).collect();
    assert_eq!(told, raised, "kind, and whether its end is told");
}

crate::in_every_profile! {
    a_gate_that_is_down_is_told_of_once_and_once_when_it_is_over,
    with_the_ledger_down_the_sale_goes_on_and_somebody_is_woken,
    the_numbers_are_true_and_are_those_that_are_written_about,
}

crate::only_in_solo! {
    a_disk_that_fills_up_is_told_when_the_webhook_is_back,
}

//! Years of webhooks in one table: what is done with them costs as much among a million rows as among a
//! thousand.

use std::time::{Duration, Instant};

use ledger::{
    DeliveryFilter, DeliveryState, ForgetBefore, NewDelivery, NewWebhook, Tried, TriedOutcome,
    WebhookKind, WebhookKinds, WebhookSource,
};
use sale::{Millis, Secret};

use crate::{NOON_MS, Shop, audit_entry, back_door::BackDoor, check};

const FEW: i64 = 1_000;
const MANY: i64 = 1_000_000;
/// Rows that one statement makes past the ledger.
const CHUNK: i64 = 50_000;
/// How often each thing is done; the quickest time is compared.
const TIMES: usize = 15;
/// What took so little is not compared: it is a matter of the disk and of who else uses it.
const NOTHING: Duration = Duration::from_millis(30);
/// So much slower it may be with a thousand times as many rows; what reads them all is far beyond.
const SLOWER_MAX: f64 = 8.0;
const PAUSE_MS_MAX: Millis = 3_600_000;

/// Old rows of an endpoint: of a hundred one is failed, one waits for its next try, one is behind another,
/// and the rest were delivered.
async fn fill(shop: &Shop, endpoint: i64, from: i64, to: i64) {
    let body = "x".repeat(400);
    for first in (from..to).step_by(CHUNK as usize) {
        let last = (first + CHUNK).min(to) - 1;
        let rows = |numbers: &str, text: &str| {
            format!(
                "INSERT INTO tb_webhook_delivery (endpoint_id, event_id, kind, subject, body, state, tries,
                     next_try_at, created_at, done_at)
                 SELECT {endpoint}, {}, 'order.paid', {}, '{body}',
                     CASE n % 100 WHEN 0 THEN 2 WHEN 1 THEN 0 WHEN 2 THEN 3 ELSE 1 END, 1,
                     CASE n % 100 WHEN 1 THEN {later} ELSE 0 END, {old} + n, {old} + n FROM {numbers}",
                text.replace('?', "evt_old_"),
                text.replace('?', "SK"),
                later = NOON_MS + PAUSE_MS_MAX,
                old = NOON_MS - 2 * MANY,
            )
        };
        let sql = match &shop.back_door {
            BackDoor::Sqlite(_) => {
                let numbers = "(WITH RECURSIVE numbers(n) AS (SELECT FIRST UNION ALL \
                               SELECT n + 1 FROM numbers WHERE n < LAST) SELECT n FROM numbers)";
                rows(numbers, "'?' || n")
            }
            BackDoor::Mysql(_) => {
                let digit = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL \
                             SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL \
                             SELECT 8 UNION ALL SELECT 9)";
                let numbers = format!(
                    "(SELECT FIRST + a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n
                      FROM {digit} a, {digit} b, {digit} c, {digit} e, {digit} f) numbers WHERE n <= LAST"
                );
                rows(&numbers, "CONCAT('?', n)")
            }
        };
        let sql = sql.replace("FIRST", &first.to_string()).replace("LAST", &last.to_string());
        shop.back_door.run(&sql).await.unwrap();
    }
}

fn filter(endpoint: i64, state: Option<DeliveryState>) -> DeliveryFilter {
    DeliveryFilter { endpoint, state, subject: None, before: None, limit: 50 }
}

struct Stopwatch(Vec<(&'static str, Duration)>);

impl Stopwatch {
    async fn time<T>(&mut self, what: &'static str, work: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let done = work.await;
        let took = began.elapsed();
        match self.0.iter_mut().find(|(known, _)| *known == what) {
            Some((_, best)) => *best = took.min(*best),
            None => self.0.push((what, took)),
        }
        done
    }
}

/// What is done with webhooks, each the quickest of several times.
async fn measured(shop: &Shop, endpoint: i64, quiet: i64, name: &str) -> Stopwatch {
    let mut watch = Stopwatch(Vec::new());
    for time in 0..TIMES {
        let new: Vec<NewDelivery> = (0..200)
            .flat_map(|n| [(n, WebhookKind::OrderCreated), (n, WebhookKind::OrderPaid)])
            .map(|(n, kind)| NewDelivery {
                endpoint,
                event_id: format!("evt_{name}_{time}_{n}_{}", kind.as_str()),
                kind,
                subject: format!("{name}_{time}_{n}"),
                body: "{}".into(),
                created_ms: NOON_MS,
            })
            .collect();
        watch.time("spread 400", shop.spread_webhooks(&[], &new)).await.unwrap();
        for _ in 0..2 {
            let due = shop.webhooks_due(endpoint, NOON_MS, PAUSE_MS_MAX, 200);
            let due = watch.time("read 200 that are due", due).await.unwrap();
            assert_eq!(due.len(), 200);
            let tried: Vec<Tried> = due
                .into_iter()
                .map(|one| Tried {
                    id: one.id,
                    subject: one.subject,
                    status: Some(200),
                    outcome: TriedOutcome::Taken,
                })
                .collect();
            let noted = shop.webhooks_tried(endpoint, &tried, NOON_MS);
            watch.time("note 200 as taken", noted).await.unwrap();
        }
        for (what, asked) in [
            ("list the newest", filter(endpoint, None)),
            ("list what is pending", filter(endpoint, Some(DeliveryState::Pending))),
            ("list what failed", filter(endpoint, Some(DeliveryState::Failed))),
            ("list what was delivered", filter(endpoint, Some(DeliveryState::Delivered))),
            ("list a quiet endpoint's", filter(quiet, None)),
            ("list a quiet endpoint's pending", filter(quiet, Some(DeliveryState::Pending))),
        ] {
            watch.time(what, shop.webhook_deliveries(&asked)).await.unwrap();
        }
        let of_one = DeliveryFilter { subject: Some("SK907".into()), ..filter(endpoint, None) };
        let found = watch.time("list those of one order", shop.webhook_deliveries(&of_one)).await;
        assert_eq!(found.unwrap().len(), 1);
        watch.time("how old the oldest is", shop.webhook_ages()).await.unwrap();
        let none = ForgetBefore { delivered_ms: 0, others_ms: 0, removed_ms: 0 };
        watch.time("find nothing to forget", shop.forget_webhooks(&none, 1_000)).await.unwrap();
        let oldest = NOON_MS - 2 * MANY + 10 * (time as i64 + 1);
        let some = ForgetBefore { delivered_ms: oldest, others_ms: 0, removed_ms: 0 };
        watch.time("forget ten", shop.forget_webhooks(&some, 1_000)).await.unwrap();
    }
    watch
}

#[tokio::test]
#[ignore = "a million rows take minutes: cargo xtask torture"]
async fn a_million_deliveries_cost_no_more_than_a_thousand() {
    check(async |shop| {
        let engine = match &shop.back_door {
            BackDoor::Sqlite(_) => "SQLite",
            BackDoor::Mysql(_) => "MySQL",
        };
        let mut ids = Vec::new();
        for n in 0..2 {
            let new = NewWebhook {
                url: format!("https://shop.example/hook{n}"),
                description: String::new(),
                kinds: WebhookKinds::ALL,
                secret: Secret::new("whsec_one"),
                source: WebhookSource::Api,
            };
            let entry = audit_entry("webhook.create");
            ids.push(shop.add_webhook(&new, 16, &entry, NOON_MS).await.unwrap().unwrap().id);
        }
        fill(&shop, ids[1], 0, 40).await;
        fill(&shop, ids[0], 0, FEW).await;
        let few = measured(&shop, ids[0], ids[1], "few").await;
        fill(&shop, ids[0], FEW, MANY).await;
        let many = measured(&shop, ids[0], ids[1], "many").await;
        let mut slow = Vec::new();
        for ((what, few), (_, many)) in few.0.into_iter().zip(many.0) {
            let slower = many.as_secs_f64() / few.as_secs_f64();
            println!(
                "{engine}: {what}: {few:.1?} among {FEW}, {many:.1?} among {MANY} ({slower:.1})"
            );
            if many > NOTHING && slower > SLOWER_MAX {
                slow.push(what);
            }
        }
        assert!(slow.is_empty(), "{engine}: {slow:?}");
    })
    .await;
}

//! The ledgers: batches of a thousand orders, beside a transaction for each order, and beside the same
//! batches for a shop whose backend is told of them.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use faults::services::{MariaDb, MariaDbOptions};
use ledger::{
    AuditEntry, Ledger, NewWebhook, Origin, WebhookKinds, WebhookSource,
    mysql::{self, Options},
    sqlite,
};
use sale::{
    Claim, Clock, Currency, Item, NewActivity, NewItem, PAY_WITHIN_MS_DEFAULT, Secret, SystemClock,
};

use crate::{
    Failure, Plan,
    claims::{Crowd, clock},
    figures::{Best, Figures, Goal},
    peers::per_order,
};

const BATCH: usize = 1_000;
/// Orders of one round: about a second's worth.
pub(crate) const BATCHED: usize = 40_000;
/// Nobody makes so many one by one in a round.
const SINGLES: usize = 20_000;
const SINGLES_FOR: Duration = Duration::from_millis(1_500);

pub(crate) async fn sqlite(plan: &Plan, data: &Path, figures: &mut Figures) -> Result<(), Failure> {
    let folder = data.join("sqlite");
    std::fs::create_dir_all(&folder)?;
    let ledger = sqlite::open(&folder.join("ledger.db"), clock())?;
    let mut crowd = Crowd::new();
    let [mut best, mut told] = [Best::default(); 2];
    for round in 0..plan.rounds(8, 4) {
        let per_s = best.note(batches(&ledger, &mut crowd, BATCHED).await?);
        let with = told.note(told_batches(&ledger, &mut crowd).await?);
        println!("  round {round}: {per_s:.0} orders/s, {with:.0} with an endpoint of the shop");
    }
    drop(ledger);
    std::fs::remove_dir_all(folder)?;
    let what = "SQLite ledger, orders/s, batches of 1,000";
    figures.add("ledger_sqlite_per_s", what, best.0, Goal::None);
    let what = "SQLite ledger with an endpoint for webhooks ÷ without";
    figures.add("ledger_sqlite_told", what, told.0 / best.0, Goal::AtLeast(0.9));
    Ok(())
}

pub(crate) async fn mysql(plan: &Plan, figures: &mut Figures) -> Result<(), Failure> {
    let options =
        MariaDbOptions { buffer_pool_mb: 512, redo_log_mb: 512, ..MariaDbOptions::default() };
    let server = MariaDb::start(options)?;
    let url = server.create_database("bench")?;
    let ledger = mysql::open(&url, clock(), Options::default()).await?;
    let mut crowd = Crowd::new();
    let [mut batched, mut told, mut one, mut eight] = [Best::default(); 4];
    for round in 0..plan.rounds(8, 4) {
        let ours = batched.note(batches(&ledger, &mut crowd, BATCHED).await?);
        let with = told.note(told_batches(&ledger, &mut crowd).await?);
        let (item, claims) = sale(&ledger, &mut crowd, SINGLES).await?;
        let alone = per_order::run(&url, item, claims, 1, SINGLES_FOR).await?;
        one.note(alone.per_s);
        let (item, claims) = sale(&ledger, &mut crowd, SINGLES).await?;
        let crowded = per_order::run(&url, item, claims, 8, SINGLES_FOR).await?;
        eight.note(crowded.per_s);
        println!(
            "  round {round}: {ours:.0} orders/s in batches, {with:.0} with an endpoint, {:.0} one by one, \
             {:.0} by eight consumers with {} version conflicts",
            alone.per_s, crowded.per_s, crowded.conflicts
        );
    }
    let mut add = |key: &str, what: &str, value: f64, goal| figures.add(key, what, value, goal);
    let what = "a transaction per order, 1 consumer, orders/s";
    add("per_order_1_per_s", what, one.0, Goal::None);
    add("per_order_8_per_s", "the same, 8 consumers", eight.0, Goal::None);
    let what = "MySQL ledger, orders/s, batches of 1,000";
    add("ledger_mysql_per_s", what, batched.0, Goal::AtLeast(25_000.0));
    let what = "MySQL ledger with an endpoint for webhooks ÷ without";
    add("ledger_mysql_told", what, told.0 / batched.0, Goal::AtLeast(0.9));
    let what = "MySQL ledger ÷ a transaction per order, 1 consumer";
    add("ledger_mysql_vs_per_order", what, batched.0 / one.0, Goal::AtLeast(25.0));
    let what = "MySQL ledger ÷ a transaction per order, 8 consumers";
    add("ledger_mysql_vs_per_order_8", what, batched.0 / eight.0, Goal::AtLeast(25.0));
    Ok(())
}

/// Orders per second by one worker.
pub(crate) async fn batches(
    ledger: &dyn Ledger,
    crowd: &mut Crowd,
    orders: usize,
) -> Result<f64, Failure> {
    let (item, claims) = sale(ledger, crowd, orders).await?;
    let began = Instant::now();
    let mut created = 0;
    for batch in claims.chunks(BATCH) {
        created += ledger.settle(item.id, batch).await?.created.len();
    }
    let took = began.elapsed();
    if created != orders {
        return Err(format!("{created} orders of {orders} claims").into());
    }
    Ok(created as f64 / took.as_secs_f64())
}

/// The same where an endpoint wants to hear of every order.
async fn told_batches(ledger: &dyn Ledger, crowd: &mut Crowd) -> Result<f64, Failure> {
    let endpoint = NewWebhook {
        url: "https://shop.example/hook".into(),
        description: "bench".into(),
        kinds: WebhookKinds::ALL,
        secret: Secret::new("whsec_bench"),
        source: WebhookSource::Api,
    };
    let now_ms = SystemClock.now_ms();
    let audit = AuditEntry {
        who: "bench".into(),
        action: "webhook.create".into(),
        target: "webhook".into(),
        detail: serde_json::Value::Null,
        origin: Origin::default(),
    };
    let endpoint = ledger.add_webhook(&endpoint, 1, &audit, now_ms).await?;
    let per_s = batches(ledger, crowd, BATCHED).await;
    if let Some(endpoint) = endpoint {
        ledger.remove_webhook(endpoint.id, &audit, now_ms).await?;
    }
    per_s
}

/// A new item with this much stock, and as many claims of it.
pub(crate) async fn sale(
    ledger: &dyn Ledger,
    crowd: &mut Crowd,
    stock: usize,
) -> Result<(Item, Vec<Claim>), Failure> {
    let item = NewItem {
        name: "iPhone 15 Pro 256GB".into(),
        image_url: String::new(),
        price: 699_900,
        origin_price: Some(799_900),
        currency: Currency::CNY,
        stock: stock as i64,
        limit_per_user: 1,
        shards: 1,
        words: Default::default(),
    };
    let activity = NewActivity {
        external_id: None,
        name: "bench".into(),
        opens_ms: 1,
        closes_ms: i64::MAX,
        pay_within_ms: PAY_WITHIN_MS_DEFAULT,
        publish_ms: None,
        door: Default::default(),
        shuffle_ms: 0,
        items: vec![item],
    };
    let mut made = ledger.create_activity(&activity, SystemClock.now_ms()).await?;
    let item = made.items.remove(0);
    crowd.start_after(ledger.last_order_no().await?);
    let claims = crowd.claims(item.id, stock)?;
    Ok((item, claims))
}

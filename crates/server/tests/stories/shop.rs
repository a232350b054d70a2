//! A shop of somebody else is kept in step, through a whole sale with faults, by nothing but the public API
//! and the webhooks: at the end its own order table equals our books.
//!
//! The shop is a program of its own, `tests/clients/python/shop.py`: its users, SKUs, cashier and order
//! table. Here is what is done to it and to the server, and the comparison.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Lines, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use checker::History;
use client::NewSale;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use crate::fixtures::{
    Deployment, JWT_SECRET, Profile, Sale, WEBS, WORKERS, becomes, now_ms, until,
};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python/shop.py");
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Units of each of the shop's two SKUs for a round.
const STOCK: i64 = 14;
/// Who comes in a round: more than there are units.
const BUYERS: i64 = 40;
/// What the books and the shop's table must agree in.
const COLUMNS: [&str; 8] =
    ["order_no", "user_id", "sku", "quantity", "amount", "currency", "status", "reason"];

/// The shop's process, which can be killed and started again on its own data.
struct Shop {
    folder: PathBuf,
    port: u16,
    running: Option<Running>,
}

struct Running {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// It ends with the story, however that ends.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Shop {
    fn open(folder: &Path) -> Shop {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = held.local_addr().unwrap().port();
        drop(held);
        let mut shop = Shop { folder: folder.to_owned(), port, running: None };
        shop.start();
        shop
    }

    fn start(&mut self) {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let python = target.join("clients/python/bin/python");
        assert!(python.exists(), "{}: `cargo xtask test` installs it", python.display());
        let operator = std::fs::read_to_string(self.folder.join("operator")).unwrap_or_default();
        let mut process = Command::new(python)
            .arg(PROGRAM)
            .env("SHOP_DB", self.database())
            .env("SHOP_PORT", self.port.to_string())
            .env("WEBHOOK_SECRET", SECRET)
            .env("JWT_SECRET", JWT_SECRET)
            .env("OPERATOR", operator)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut running = Running { process, orders, answers };
        let open = block_in_place(|| running.answers.next());
        assert!(open.is_some(), "the shop did not open");
        self.running = Some(running);
    }

    /// `kill -9`: whoever was buying is gone as well.
    fn kill(&mut self) {
        drop(self.running.take().expect("the shop is open"));
    }

    fn database(&self) -> PathBuf {
        self.folder.join("shop.db")
    }

    fn obey(&mut self, command: Value) -> Value {
        let running = self.running.as_mut().expect("the shop is open");
        block_in_place(|| {
            writeln!(running.orders, "{command}").unwrap();
            let answer = running.answers.next().expect("the shop answers").unwrap();
            serde_json::from_str(&answer).unwrap()
        })
    }

    fn behaves(&mut self, manner: &str) {
        self.obey(json!({"manner": manner}));
    }

    /// Where the server is now.
    fn find(&mut self, sale: &Sale) {
        let servers: Vec<String> =
            sale.addresses().iter().map(|address| format!("http://{address}")).collect();
        self.obey(json!({"servers": servers}));
    }

    fn rows<T>(
        &self,
        sql: &str,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Vec<T> {
        let db = rusqlite::Connection::open(self.database()).unwrap();
        db.busy_timeout(Duration::from_secs(10)).unwrap();
        let mut statement = db.prepare(sql).unwrap();
        let rows = statement.query_map([], read).unwrap();
        rows.map(|row| row.unwrap()).collect()
    }

    /// Its order table, a row for each number.
    fn table(&self) -> BTreeMap<String, Vec<String>> {
        let cell = |value: rusqlite::types::Value| match value {
            rusqlite::types::Value::Null => String::new(),
            rusqlite::types::Value::Integer(number) => number.to_string(),
            rusqlite::types::Value::Text(text) => text,
            other => panic!("{other:?}"),
        };
        let sql = format!("SELECT {} FROM orders", COLUMNS.join(", "));
        let rows = self.rows(&sql, |row| {
            (0..COLUMNS.len()).map(|n| row.get(n).map(cell)).collect::<rusqlite::Result<Vec<_>>>()
        });
        rows.into_iter().map(|row| (row[0].clone(), row)).collect()
    }

    fn count(&self, table: &str) -> i64 {
        self.rows(&format!("SELECT count(*) FROM {table}"), |row| row.get(0))[0]
    }

    async fn nobody_is_left(&mut self) {
        let what = "all buyers are done";
        until(what, async || self.obey(json!({"idle": true})), |told| told["coming"] == 0).await;
    }
}

/// The books as an operator exports them.
async fn books(sale: &Sale) -> BTreeMap<String, Vec<String>> {
    let path = format!("/api/v1/admin/orders?activity_id={}&format=csv", sale.activity);
    let csv = sale.admin().get(&path).await.unwrap();
    let csv = String::from_utf8(csv.body.to_vec()).unwrap();
    let mut lines = csv.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let places = COLUMNS.map(|name| head.iter().position(|column| *column == name).unwrap());
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            let row: Vec<String> = places.iter().map(|place| cells[*place].to_owned()).collect();
            (row[0].clone(), row)
        })
        .collect()
}

/// Everything of the server is killed and started again, in a cluster now and then only a part of it.
async fn kill_the_server(sale: &mut Sale, shop: &mut Shop, round: i64) {
    if sale.deployment.profile == Profile::Cluster && round % 2 == 1 {
        for place in [WEBS[0], WORKERS[1]] {
            sale.kill_one(place);
            sale.start_again(place).await;
        }
    } else {
        sale.kill();
        sale.start().await;
    }
    if shop.running.is_some() {
        shop.find(sale);
    }
}

async fn a_shop_is_kept_in_step_for(profile: Profile, rounds: i64) {
    let folder = tempfile::tempdir().unwrap();
    let mut shop = Shop::open(folder.path());
    let endpoint =
        format!("[{{ url = 'http://127.0.0.1:{}/hook', secret = '{SECRET}' }}]", shop.port);
    let deployment = Deployment::new(profile)
        .env("SECKILL_JWT_SECRET", JWT_SECRET)
        .env("SECKILL_WEBHOOKS_ENDPOINTS", endpoint)
        .env("SECKILL_WEBHOOKS_RETRY_LADDER_MS", "50, 100, 200")
        .env("SECKILL_WEBHOOKS_DOWN_PAUSE_MS_MAX", 300)
        .env("SECKILL_WEBHOOKS_TIMEOUT_MS", 1_000);
    let mut sale = deployment.open_sale(NewSale::of(1)).await;
    let made: Value = sale
        .admin()
        .write("/api/v1/admin/tokens", &json!({"name": "shop", "role": "admin"}))
        .await
        .unwrap();
    std::fs::write(folder.path().join("operator"), made["token"].as_str().unwrap()).unwrap();
    shop.kill();
    shop.start();
    shop.find(&sale);
    let opened = shop.obey(json!({"opens": now_ms() + 1_000, "stock": STOCK * rounds}));
    sale.activity = opened["activity"].as_i64().unwrap();
    sale.item = opened["items"][0].as_i64().unwrap();

    let began = Instant::now();
    for round in 0..rounds {
        let (first, told) = (round * BUYERS, shop.count("taken"));
        shop.behaves("takes");
        shop.obey(json!({"buyers": [first, first + BUYERS / 2]}));
        becomes("the shop hears of some", async || shop.count("taken") > told + 5).await;
        shop.behaves("hangs");
        kill_the_server(&mut sale, &mut shop, round).await;
        shop.obey(json!({"buyers": [first + BUYERS / 2, first + BUYERS]}));
        shop.behaves("repeats");
        let told = shop.count("taken");
        becomes("it takes, and the server does not know", async || shop.count("taken") > told)
            .await;
        // The shop is away, with all who were buying; and so is the server meanwhile.
        shop.kill();
        kill_the_server(&mut sale, &mut shop, round).await;
        shop.start();
        shop.find(&sale);
        shop.behaves("late");
        // Those who were cut off come again, and meet what they did before.
        shop.obey(json!({"buyers": [first, first + BUYERS]}));
        kill_the_server(&mut sale, &mut shop, round + 1).await;
        shop.nobody_is_left().await;
    }
    shop.behaves("takes");
    becomes("no order is left unpaid", async || {
        books(&sale).await.values().all(|row| !["unpaid", "refunding"].contains(&row[6].as_str()))
    })
    .await;
    sale.settle().await;
    let table = until(
        "the shop's table equals the books",
        async || (shop.table(), books(&sale).await),
        |(table, books)| table == books,
    )
    .await
    .0;
    let wrong: Vec<String> = shop.rows("SELECT what FROM wrong", |row| row.get(0));
    assert!(wrong.is_empty(), "{wrong:#?}");
    let with = |status: &str| table.values().filter(|row| row[6] == status).count();
    println!(
        "{} orders ({} paid, {} closed, {} refunded, {} void) and {} events in {:.1?}",
        table.len(),
        with("paid"),
        with("closed"),
        with("refunded"),
        with("void"),
        shop.count("taken"),
        began.elapsed()
    );
    assert!(with("paid") > 0 && with("closed") > 0 && with("refunded") > 0, "{table:#?}");
    // What the shop's cashier has taken is in the books, and nothing of it twice.
    let till = shop.rows("SELECT order_no, amount, refunded FROM till", |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, bool>(2)?))
    });
    for (no, amount, refunded) in till {
        let row = &table[&no];
        assert_eq!(row[4], amount.to_string(), "{row:?}");
        assert!(row[6] == "refunded" || (row[6] == "paid" && !refunded), "{row:?}");
    }
    let items: Vec<i64> =
        opened["items"].as_array().unwrap().iter().flat_map(Value::as_i64).collect();
    let observed = client::observe(&mut sale.admin(), &items).await.unwrap();
    let violations = checker::check(&History::default(), &observed);
    assert!(violations.is_empty(), "{violations:#?}");
    let report = client::reconcile(&mut sale.admin(), "").await.unwrap();
    assert_eq!(report["differences"], 0, "{report:#}");
}

async fn a_shop_is_kept_in_step_through_a_sale_with_faults(profile: Profile) {
    a_shop_is_kept_in_step_for(profile, 1).await;
}

crate::in_every_profile! {
    a_shop_is_kept_in_step_through_a_sale_with_faults,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: cargo xtask torture"]
async fn a_shop_is_kept_in_step_for_long() {
    for profile in [Profile::Solo, Profile::Cluster] {
        a_shop_is_kept_in_step_for(profile, 6).await;
    }
}

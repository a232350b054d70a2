//! Where the stories happen: a server process, an open sale, and the people in it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use faults::services::{shared_mariadb, shared_redis, unique_name};
use rehearsal::{
    Answer, Api, Crowd, Deployment, History, Launch, Login, Observed, Response, SaleTokens,
    Violation, check, observe, sale_tokens, settled,
};
use serde_json::{Value, json};

/// Everything comes to rest within this, or the story fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Some stories are about instants, and clocks run on while a busy machine starts a browser. Such a
/// story leaves itself this many seconds; where they were too few it begins anew with the next.
pub(crate) const PACES_S: [i64; 4] = [5, 15, 45, 120];

pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// In which profile a story happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum World {
    /// One process.
    Solo,
    /// Two that answer buyers and run the jobs, two workers; Redis and MariaDB between them.
    Cluster,
}

/// The places of the processes of a cluster.
pub(crate) const WEBS: [usize; 2] = [0, 1];
pub(crate) const WORKERS: [usize; 2] = [2, 3];
/// Into how many partitions the gate of a cluster is divided.
pub(crate) const PARTITIONS: usize = 4;

const SECRET: &str = "a secret that all instances of a story share";
pub(crate) const JWT_SECRET: &str = "the shop's own secret, for its buyers";

/// A deployment, not necessarily running: directories, settings, and who is started.
pub(crate) struct House {
    pub(crate) world: World,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) launches: Vec<Launch>,
    /// The ledger's database, and the prefix of all keys in Redis, in a cluster.
    pub(crate) database: String,
}

impl House {
    pub(crate) fn new(world: World) -> House {
        let dir = tempfile::tempdir().unwrap();
        let launch = |name: &str| {
            let data = dir.path().join(name);
            std::fs::create_dir(&data).unwrap();
            Launch::new(env!("CARGO_BIN_EXE_seckill"), data).log(dir.path().join("server.log"))
        };
        let mut house = match world {
            World::Solo => {
                House { world, launches: vec![launch("data")], database: String::new(), dir }
            }
            World::Cluster => {
                let mut launches = Vec::new();
                for (name, role) in [
                    ("web1", "web,jobs"),
                    ("web2", "web,jobs"),
                    ("worker1", "worker"),
                    ("worker2", "worker"),
                ] {
                    let mut one = launch(name);
                    one.args = vec!["--role".into(), role.into()];
                    launches.push(one);
                }
                House { world, launches, database: unique_name("story"), dir }
            }
        };
        if world == World::Cluster {
            let ledger = shared_mariadb().create_database(&house.database).unwrap();
            house = house
                .env("SECKILL_PROFILE", "cluster")
                .env("SECKILL_REDIS_URL", shared_redis().url())
                .env("SECKILL_LEDGER_URL", ledger)
                .env("SECKILL_JWT_SECRET", JWT_SECRET)
                .env("SECKILL_REDIS_PARTITIONS", PARTITIONS)
                .env("SECKILL_REDIS_TAKEOVER_MS", 2_000);
            let prefix = house.database.clone();
            let bank = house.dir.path().join("bank.db");
            house = house
                .env("SECKILL_REDIS_PREFIX", prefix)
                .env("SECKILL_PAYMENT_SANDBOX_FILE", bank.display());
        }
        house.env("SECKILL_SECRET", SECRET).env("SECKILL_PAYMENT_SANDBOX", true)
    }

    pub(crate) fn env(mut self, name: &str, value: impl ToString) -> House {
        let value = value.to_string();
        self.launches.iter_mut().for_each(|l| *l = l.clone().env(name, &value));
        self
    }

    /// As if nobody had set it.
    pub(crate) fn without(mut self, name: &str) -> House {
        self.launches.iter_mut().for_each(|launch| launch.env.retain(|(set, _)| set != name));
        self
    }

    pub(crate) fn login(&self) -> Login {
        match self.world {
            World::Solo => Login::Dev,
            World::Cluster => Login::Shop { secret: JWT_SECRET.into() },
        }
    }

    pub(crate) fn keys(&self) -> sale::Keys {
        sale::Keys::from_secret(SECRET.as_bytes()).unwrap()
    }

    pub(crate) fn data(&self) -> &Path {
        &self.launches[0].data
    }

    pub(crate) fn ledger_file(&self) -> PathBuf {
        self.data().join("ledger.db")
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        self.dir.path().join("server.log")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub(crate) async fn start(&self) -> Vec<Deployment> {
        let mut running = Vec::new();
        for launch in &self.launches {
            match launch.start().await {
                Ok(deployment) => running.push(deployment),
                Err(error) => panic!("the server did not start: {error}\n{}", self.log()),
            }
        }
        running
    }

    /// Start the one server of a solo house.
    pub(crate) async fn start_one(&self) -> Deployment {
        self.start().await.remove(0)
    }

    /// Start the servers and open a sale of one item.
    pub(crate) async fn open_sale(self, sale: NewSale) -> Sale {
        let running: BTreeMap<usize, Deployment> =
            self.start().await.into_iter().enumerate().collect();
        let (activity, item) = sale.create(&mut running[&0].admin()).await;
        Sale { house: self, running, activity, item, history: History::default() }
    }

    /// Change the ledger behind the server's back, in its engine's words.
    pub(crate) fn change_ledger(&self, sqlite: &str, mysql: &str) {
        match self.world {
            World::Solo => {
                let ledger = rusqlite::Connection::open(self.ledger_file()).unwrap();
                ledger.busy_timeout(Duration::from_secs(10)).unwrap();
                ledger.execute_batch(sqlite).unwrap();
            }
            World::Cluster => {
                let sql = format!("USE {}; {mysql}", self.database);
                shared_mariadb().query(&sql).unwrap();
            }
        }
    }

    /// Let nobody write to the ledger until the answer is dropped.
    pub(crate) fn block_ledger(&self) -> Blocked {
        match self.world {
            World::Solo => {
                let thief = rusqlite::Connection::open(self.ledger_file()).unwrap();
                thief.busy_timeout(Duration::from_secs(10)).unwrap();
                thief.execute_batch("BEGIN IMMEDIATE").unwrap();
                Blocked::File(thief)
            }
            World::Cluster => Blocked::Tables(
                shared_mariadb()
                    .hold(&format!("USE {}; LOCK TABLES tb_seckill_product READ;", self.database))
                    .unwrap(),
            ),
        }
    }
}

/// Somebody holds the ledger's lock.
pub(crate) enum Blocked {
    File(#[allow(dead_code, reason = "held, not read")] rusqlite::Connection),
    Tables(#[allow(dead_code, reason = "held, not read")] faults::services::Held),
}

pub(crate) struct NewSale {
    pub(crate) stock: i64,
    pub(crate) limit_per_user: u32,
    pub(crate) shards: u32,
    pub(crate) pay_within_ms: i64,
    pub(crate) opens_ms: i64,
    pub(crate) closes_ms: i64,
}

impl NewSale {
    /// Open now, for an hour.
    pub(crate) fn of(stock: i64) -> NewSale {
        NewSale {
            stock,
            limit_per_user: 1,
            shards: 1,
            pay_within_ms: 1_800_000,
            opens_ms: now_ms() - 1_000,
            closes_ms: now_ms() + 3_600_000,
        }
    }

    pub(crate) fn pay_within_ms(self, pay_within_ms: i64) -> NewSale {
        NewSale { pay_within_ms, ..self }
    }

    pub(crate) fn shards(self, shards: u32) -> NewSale {
        NewSale { shards, ..self }
    }

    pub(crate) async fn create(&self, admin: &mut Api) -> (i64, i64) {
        let body = json!({
            "name": "story", "opens_at": self.opens_ms, "closes_at": self.closes_ms,
            "pay_within_ms": self.pay_within_ms,
            "items": [{"name": "iPhone 15 Pro 256GB", "price": 699_900, "origin_price": 799_900,
                "currency": "CNY", "stock": self.stock, "limit_per_user": self.limit_per_user,
                "shards": self.shards}]
        });
        let created: Value = admin.write("/api/v1/admin/activities", &body).await.unwrap();
        let activity = created["id"].as_i64().unwrap();
        let item = created["items"][0]["id"].as_i64().unwrap();
        for step in ["publish", "warm"] {
            let path = format!("/api/v1/admin/activities/{activity}/{step}");
            let _: Value = admin.write(&path, &json!({})).await.unwrap();
        }
        (activity, item)
    }
}

/// A sale under way.
pub(crate) struct Sale {
    pub(crate) house: House,
    /// By their places.
    running: BTreeMap<usize, Deployment>,
    pub(crate) activity: i64,
    pub(crate) item: i64,
    pub(crate) history: History,
}

impl Sale {
    /// One that answers buyers.
    pub(crate) fn server(&self) -> &Deployment {
        self.running.values().next().expect("the server runs")
    }

    /// All that answer buyers.
    pub(crate) fn addresses(&self) -> Vec<std::net::SocketAddr> {
        let webs = if self.house.world == World::Solo { 1 } else { WEBS.len() };
        self.running.range(..webs).map(|(_, server)| server.address).collect()
    }

    /// The process at this place.
    pub(crate) fn process(&self, place: usize) -> &Deployment {
        &self.running[&place]
    }

    /// `kill -9`, one of them.
    pub(crate) fn kill_one(&mut self, place: usize) {
        self.running.remove(&place).expect("it runs").kill().unwrap();
    }

    /// SIGTERM, one of them; it ends by itself.
    pub(crate) async fn stop_one(&mut self, place: usize) {
        let server = self.running.remove(&place).expect("it runs");
        assert_eq!(server.stop().await.unwrap(), Some(0));
    }

    /// Start again what was killed.
    pub(crate) async fn start_again(&mut self, place: usize) {
        match self.house.launches[place].start().await {
            Ok(server) => drop(self.running.insert(place, server)),
            Err(error) => panic!("the server did not start: {error}\n{}", self.house.log()),
        }
    }

    pub(crate) fn admin(&self) -> Api {
        self.server().admin()
    }

    /// Begin anew, with another activity.
    pub(crate) async fn instead(&mut self, sale: NewSale) {
        (self.activity, self.item) = sale.create(&mut self.admin()).await;
        self.history = History::default();
    }

    /// `kill -9`, all of them.
    pub(crate) fn kill(&mut self) {
        let running = std::mem::take(&mut self.running);
        running.into_values().for_each(|server| server.kill().unwrap());
    }

    pub(crate) async fn stop(&mut self) {
        for server in std::mem::take(&mut self.running).into_values() {
            assert_eq!(server.stop().await.unwrap(), Some(0));
        }
    }

    pub(crate) async fn start(&mut self) {
        self.running = self.house.start().await.into_iter().enumerate().collect();
    }

    pub(crate) fn crowd(&self, connections: usize) -> Crowd {
        let addresses = self.addresses();
        Crowd { addresses, item: self.item, quantity: 1, connections, at_once: false, keys: false }
    }

    pub(crate) async fn tokens(&self, users: impl IntoIterator<Item = String>) -> SaleTokens {
        let users = users.into_iter().collect();
        let login = self.house.login();
        sale_tokens(self.server().address, &login, self.item, users).await.unwrap()
    }

    /// Somebody at one of the servers, not always the same one.
    pub(crate) async fn buyer(&self, user: &str) -> Buyer {
        let addresses = self.addresses();
        let address = addresses[fastrand::usize(..addresses.len())];
        let mut api = Api::new(address, None);
        let jwt = self.house.login().token(&mut api, user).await.unwrap();
        let mut api = Api::new(address, Some(&jwt));
        let path = format!("/api/v1/items/{}/token", self.item);
        let token: Value = api.write(&path, &json!({})).await.unwrap();
        let sale_token = token["token"].as_str().unwrap().to_owned();
        Buyer { api, user: user.into(), item: self.item, sale_token }
    }

    /// Wait until nothing is on its way.
    pub(crate) async fn settle(&self) {
        if let Err(error) = settled(&mut self.admin(), PATIENCE).await {
            panic!("{error}\n{}", self.house.log());
        }
    }

    pub(crate) async fn observe(&self) -> Observed {
        self.settle().await;
        observe(&mut self.admin(), &[self.item]).await.unwrap()
    }

    pub(crate) async fn violations(&self) -> Vec<Violation> {
        check(&self.history, &self.observe().await)
    }

    /// How every story should end.
    pub(crate) async fn must_hold(&self) {
        let violations = self.violations().await;
        assert!(violations.is_empty(), "{violations:#?}\n{}", self.house.log());
        let report: Value =
            self.admin().write("/api/v1/admin/reconcile", &json!({})).await.unwrap();
        assert_eq!(report["differences"], 0, "{report:#}\n{}", self.house.log());
    }

    /// Buy with new buyers until somebody is told there is nothing left.
    pub(crate) async fn buy_the_rest(&mut self, name: &str, at_most: usize) -> usize {
        let buyers = self.tokens((0..at_most).map(|n| format!("{name}{n}"))).await;
        let report = self.crowd(32).rush(buyers).await;
        let bought = report.history.admitted();
        self.history.told.extend(report.history.told);
        bought
    }
}

/// One person with a browser.
pub(crate) struct Buyer {
    pub(crate) api: Api,
    pub(crate) user: String,
    pub(crate) item: i64,
    pub(crate) sale_token: String,
}

impl Buyer {
    pub(crate) async fn claim_with(&mut self, key: Option<&str>, body: &str) -> Response {
        let path = format!("/api/v1/items/{}/claims", self.item);
        let mut headers = vec![("x-sale-token", self.sale_token.as_str())];
        if let Some(key) = key {
            headers.push(("idempotency-key", key));
        }
        self.api.send("POST", &path, &headers, body.as_bytes()).await.unwrap()
    }

    pub(crate) async fn claim(&mut self) -> Answer {
        rehearsal::answer(&self.claim_with(None, r#"{"quantity":1}"#).await)
    }

    /// A claim that must be admitted; answers its order number.
    pub(crate) async fn buy(&mut self) -> String {
        match self.claim().await {
            Answer::Admitted { order_no } => order_no.to_string(),
            other => panic!("{} was told {other:?}", self.user),
        }
    }

    pub(crate) async fn order(&mut self, no: &str) -> Value {
        self.api.read(&format!("/api/v1/orders/{no}")).await.unwrap()
    }

    /// Wait until the order has this status.
    pub(crate) async fn order_becomes(&mut self, no: &str, status: &str) -> Value {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let order = self.order(no).await;
            if order["status"] == status {
                return order;
            }
            assert!(tokio::time::Instant::now() < deadline, "still {order}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The path of the cashier for this order.
    pub(crate) async fn open_payment(&mut self, no: &str) -> String {
        self.open_payment_in_time(no).await.expect("the order is unpaid")
    }

    /// The path of the cashier for this order, unless the order is closed by now.
    pub(crate) async fn open_payment_in_time(&mut self, no: &str) -> Option<String> {
        let path = format!("/api/v1/orders/{no}/payments");
        let opened = self.api.post(&path, &json!({"provider": "sandbox"})).await.unwrap();
        if opened.status == 409 {
            return None;
        }
        let body = opened.json();
        let url = body["payment_url"].as_str().unwrap_or_else(|| panic!("{body}"));
        Some(format!("/api/v1{url}"))
    }

    pub(crate) async fn at_the_cashier(&mut self, cashier: &str, action: &str) -> Response {
        self.api.post(cashier, &json!({"action": action})).await.unwrap()
    }
}

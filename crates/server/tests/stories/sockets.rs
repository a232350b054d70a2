//! Ten thousand open sockets at one instance: what each of them costs, how soon its buyer hears of an order,
//! and what they hear when that instance is killed.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use client::{Api, Crowd, NewSale, SaleTokens};
use sale::{EventTicket, ItemId, SaleToken};
use serde_json::Value;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
};

use crate::fixtures::{
    Deployment, Frame, PATIENCE, Profile, Sale, WebSocket, becomes, now_ms, until,
};

const SOCKETS: usize = 10_000;
const ORDERS: usize = 1_000;
/// What a socket may cost the server in memory.
const BYTES_PER_SOCKET_MAX: u64 = 20 * 1_024;
/// How long after the commit nearly all buyers have heard of their order.
const HEARD_MS_MAX: i64 = 1_000;
/// Sockets that are opened at the same time.
const OPENING_MAX: usize = 64;
/// Opened and closed before anything is measured, so that what is needed once is there.
const WARM_UP: usize = 500;

fn buyer(n: usize) -> String {
    format!("buyer{n}")
}

/// What a process has in memory, in bytes.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1_024
}

/// Somebody hears that their claim is an order: who, which, and how long after it was written.
struct Heard {
    order_no: String,
    late_ms: i64,
}

/// People with open pages. Who loses the socket comes back, at the address that is told then.
struct Pages {
    address: watch::Sender<SocketAddr>,
    open: Arc<AtomicUsize>,
    heard: mpsc::UnboundedReceiver<Heard>,
    /// Orders that were heard of before.
    known: HashSet<String>,
    tasks: JoinSet<()>,
}

impl Pages {
    async fn open(sale: &Sale, address: SocketAddr, count: usize) -> Pages {
        let (told, heard) = mpsc::unbounded_channel();
        let mut pages = Pages {
            address: watch::Sender::new(address),
            open: Arc::default(),
            heard,
            known: HashSet::new(),
            tasks: JoinSet::new(),
        };
        let opening = Arc::new(Semaphore::new(OPENING_MAX));
        let keys = sale.deployment.keys();
        for n in 0..count {
            let page = Page {
                user: buyer(n),
                keys: keys.clone(),
                address: pages.address.subscribe(),
                opening: opening.clone(),
                open: pages.open.clone(),
                told: told.clone(),
            };
            pages.tasks.spawn(page.follow());
        }
        pages.are_open(count).await;
        pages
    }

    async fn are_open(&self, count: usize) {
        becomes("all are open", async || self.open.load(Ordering::Acquire) == count).await;
    }

    /// So many more orders are heard of; how late, the latest last.
    async fn hear_of(&mut self, orders: usize) -> Vec<i64> {
        let mut late = Vec::new();
        while late.len() < orders {
            let heard = tokio::time::timeout(PATIENCE, self.heard.recv()).await;
            let Ok(Some(Heard { order_no, late_ms })) = heard else {
                panic!("{} of {orders} are heard of", late.len());
            };
            if self.known.insert(order_no) {
                late.push(late_ms);
            }
        }
        late.sort_unstable();
        late
    }
}

struct Page {
    user: String,
    keys: sale::SigningKeys,
    address: watch::Receiver<SocketAddr>,
    opening: Arc<Semaphore>,
    open: Arc<AtomicUsize>,
    told: mpsc::UnboundedSender<Heard>,
}

impl Page {
    async fn follow(mut self) {
        let mut last_id = None;
        loop {
            let Some(mut socket) = self.connect(last_id.as_deref()).await else {
                // The next server is told.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            socket.last_id = last_id.take();
            self.open.fetch_add(1, Ordering::AcqRel);
            self.read(&mut socket).await;
            self.open.fetch_sub(1, Ordering::AcqRel);
            last_id = socket.last_id;
        }
    }

    async fn connect(&mut self, last_id: Option<&str>) -> Option<WebSocket> {
        let _permit = self.opening.acquire().await.unwrap();
        let user = self.user.parse().unwrap();
        let ticket = EventTicket { user, expires_ms: now_ms() + 60_000 }.sign(&self.keys);
        let last_id = last_id.map(|id| format!("&last_event_id={id}")).unwrap_or_default();
        let address = *self.address.borrow_and_update();
        let opened = WebSocket::try_open(address, &format!("ticket={ticket}{last_id}"), "").await;
        opened.ok()?.ok()
    }

    async fn read(&self, socket: &mut WebSocket) {
        loop {
            match socket.frame().await {
                Frame::Event(event) if event["data"]["status"] == "unpaid" => {
                    let late_ms = now_ms() - event["data"]["created_at"].as_i64().unwrap();
                    let order_no = event["data"]["order_no"].as_str().unwrap().to_owned();
                    let _ = self.told.send(Heard { order_no, late_ms });
                }
                Frame::Event(_) => {}
                Frame::Ping => socket.pong().await,
                Frame::Close(_) | Frame::End => return,
            }
        }
    }
}

/// Sale tokens of as many buyers as there are units, spread over all who listen.
fn tokens(sale: &Sale) -> SaleTokens {
    let keys = sale.deployment.keys();
    let one = |n: usize| {
        let user = buyer(n * (SOCKETS / ORDERS));
        let (item, expires_ms) = (ItemId(sale.item), now_ms() + 600_000);
        let token =
            SaleToken { user: user.parse().unwrap(), item, expires_ms, from_ms: None }.sign(&keys);
        (user, token)
    };
    (0..ORDERS).map(one).collect()
}

/// All claims at once, at the first instance.
async fn burst(sale: &Sale) {
    let crowd = Crowd { addresses: vec![sale.addresses()[0]], ..sale.crowd(64) };
    let report = crowd.rush(tokens(sale)).await;
    assert_eq!(report.history.admitted(), ORDERS);
}

async fn overview(admin: &mut Api) -> Value {
    admin.read("/api/v1/admin/overview").await.unwrap()
}

/// Answers the sale, with everybody listening at the last instance, and what the sockets cost there.
async fn ten_thousand(profile: Profile) -> (Sale, Pages) {
    rlimit::increase_nofile_limit(SOCKETS as u64 + 2_000).unwrap();
    let deployment = Deployment::new(profile)
        .env("SECKILL_HTTP_CONNECTIONS_MAX", SOCKETS + 1_000)
        .env("SECKILL_PUSH_STREAMS_MAX", SOCKETS);
    let sale = deployment.open_sale(NewSale::of(ORDERS as i64)).await;
    let place = sale.addresses().len() - 1;
    let (there, pid) = (sale.addresses()[place], sale.process(place).pid());
    drop(Pages::open(&sale, there, WARM_UP).await);
    let mut admin = sale.process(place).admin();
    until("they have left", async || overview(&mut admin).await, |seen| seen["streams"] == 0).await;
    let before = resident(pid);
    let began = std::time::Instant::now();
    let pages = Pages::open(&sale, there, SOCKETS).await;
    let per_socket = resident(pid).saturating_sub(before) / SOCKETS as u64;
    println!(
        "{profile:?}: {SOCKETS} sockets open after {:.1?}, {per_socket} bytes each ({} MB before)",
        began.elapsed(),
        before >> 20
    );
    assert!(per_socket <= BYTES_PER_SOCKET_MAX, "{per_socket} bytes per socket");
    (sale, pages)
}

async fn a_burst_is_heard_of_in_a_second(profile: Profile) -> (Sale, Pages) {
    let (sale, mut pages) = ten_thousand(profile).await;
    burst(&sale).await;
    let late = pages.hear_of(ORDERS).await;
    let [p50, p99] = [50, 99].map(|percent| late[ORDERS * percent / 100 - 1]);
    let last = late[ORDERS - 1];
    println!(
        "{profile:?}: {ORDERS} buyers hear of their orders, p50 {p50} ms, p99 {p99} ms, last {last} ms"
    );
    // A debug build is several times as slow, and takes no figures.
    if !cfg!(debug_assertions) {
        assert!(p99 < HEARD_MS_MAX, "{p99} ms after the commit");
    }
    assert_eq!(pages.open.load(Ordering::Acquire), SOCKETS, "nobody was dropped");
    (sale, pages)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a torture of minutes: cargo xtask torture"]
async fn ten_thousand_sockets_hear_of_a_burst_in_solo() {
    let (sale, _pages) = a_burst_is_heard_of_in_a_second(Profile::Solo).await;
    sale.must_hold().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a torture of minutes: cargo xtask torture"]
async fn ten_thousand_sockets_hear_of_a_burst_elsewhere_and_come_back_after_a_kill() {
    let (mut sale, mut pages) = a_burst_is_heard_of_in_a_second(Profile::Cluster).await;
    sale.instead(NewSale::of(ORDERS as i64)).await;
    // In the middle of the next burst the instance with all sockets is killed.
    let there = sale.addresses().len() - 1;
    let elsewhere = sale.addresses()[0];
    let crowd = Crowd { addresses: vec![elsewhere], ..sale.crowd(64) };
    let claims = tokio::spawn({
        let tokens = tokens(&sale);
        async move { crowd.rush(tokens).await.history.admitted() }
    });
    pages.hear_of(1).await;
    sale.kill_one(there);
    pages.address.send_replace(elsewhere);
    let began = std::time::Instant::now();
    assert_eq!(claims.await.unwrap(), ORDERS);
    let late = pages.hear_of(ORDERS - 1).await;
    pages.are_open(SOCKETS).await;
    println!(
        "killed: all {ORDERS} orders are heard of, the last {} ms after its commit; all are back after \
         {:.1?}",
        late[late.len() - 1],
        began.elapsed()
    );
    sale.must_hold().await;
}

//! How often the answers of a rush allocate. Ten thousand a second are nothing to an allocator, but
//! each one was once put there without being noticed; here it is.
//!
//! The whole process is counted, jobs and journal included; the client is made so that it allocates
//! nothing while it asks.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    alloc::System,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use client::{Api, NewSale, settled, signed_sale_tokens};
use config::{Config, Secret, Switch};
use server::serve::{Running, serve};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SECRET: &str = "only for counting allocations";
const ASKED: usize = 1_000;

/// A refusal may take this many on average. One is the name of the buyer.
const PER_REFUSAL_MAX: f64 = 2.0;
/// A claim that comes alone, so that it is a batch to itself.
const PER_CLAIM_MAX: f64 = 25.0;
/// An order of a batch of many, written to the ledger.
const PER_ORDER_MAX: f64 = 40.0;

/// A client that allocates nothing.
struct Client {
    stream: TcpStream,
    answer: [u8; 4_096],
}

impl Client {
    fn connect(address: SocketAddr) -> Client {
        Client { stream: TcpStream::connect(address).unwrap(), answer: [0; 4_096] }
    }

    /// Send a request and read its answer, which fits the buffer. Answers the status.
    fn ask(&mut self, request: &[u8]) -> u16 {
        self.stream.write_all(request).unwrap();
        let mut here = 0;
        loop {
            let read = self.stream.read(&mut self.answer[here..]).unwrap();
            assert!(read > 0, "the server hung up");
            here += read;
            // The body is one JSON object, and no other line of an answer ends so.
            if self.answer[..here].ends_with(b"}") {
                let status = std::str::from_utf8(&self.answer[9..12]).unwrap();
                return status.parse().unwrap();
            }
        }
    }
}

fn claims(item: i64, name: &str, count: usize) -> Vec<Vec<u8>> {
    let claim = |(_, token)| {
        let body = r#"{"quantity":1}"#;
        let length = body.len();
        let head = format!("POST /api/v1/items/{item}/claims HTTP/1.1\r\nhost: shop\r\n");
        let kind = "content-type: application/json\r\ncontent-length";
        format!("{head}x-sale-token: {token}\r\n{kind}: {length}\r\n\r\n{body}").into()
    };
    signed_sale_tokens(SECRET, item, name, count).into_iter().map(claim).collect()
}

/// Allocations of the process per request.
fn counted(address: SocketAddr, requests: &[Vec<u8>], status: u16) -> f64 {
    let mut client = Client::connect(address);
    let (first, rest) = requests.split_first().unwrap();
    // The connection's own buffers.
    assert_eq!(client.ask(first), status);
    let region = Region::new(ALLOCATOR);
    for request in rest {
        assert_eq!(client.ask(request), status);
    }
    let change = region.change();
    (change.allocations + change.reallocations) as f64 / rest.len() as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_allocates_next_to_nothing_and_a_claim_little() {
    let data = tempfile::tempdir().unwrap();
    let mut config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        data: data.path().into(),
        secret: Secret::new(SECRET),
        demo: Switch::Off,
        ..Config::defaults()
    };
    // So slow that none is forgotten meanwhile.
    config.limits.claims_per_user = "1/m burst 20".parse().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(serve(config, async move { drop(stopped.await) }));
    let running = loop {
        match Running::read(data.path()) {
            Some(running) => break running,
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
        assert!(!server.is_finished(), "{:?}", server.await);
    };
    let mut admin = Api::new(running.address, Some(&running.token));

    let item = NewSale::of(ASKED as i64).create(&mut admin).await.unwrap().items[0];
    let requests = claims(item, "buyer", ASKED);
    let address = running.address;
    // The workers wait for the ledger, or it would be chance how many orders they make at a time.
    let ledger = rusqlite::Connection::open(data.path().join("ledger.db")).unwrap();
    ledger.execute_batch("BEGIN IMMEDIATE").unwrap();
    let per_claim = tokio::task::spawn_blocking(move || counted(address, &requests, 202));
    let per_claim = per_claim.await.unwrap();
    let region = Region::new(ALLOCATOR);
    ledger.execute_batch("ROLLBACK").unwrap();
    settled(&mut admin, Duration::from_secs(60)).await.unwrap();
    let change = region.change();
    let per_order = (change.allocations + change.reallocations) as f64 / ASKED as f64;

    let requests = claims(item, "late", ASKED);
    let per_refusal = tokio::task::spawn_blocking(move || counted(address, &requests, 409));
    let per_refusal = per_refusal.await.unwrap();

    // One buyer who asks as fast as they can: overload must cost less than what it keeps away. What is sold
    // out costs as little and is not counted, so there are units.
    let another = NewSale::of(1_000).create(&mut admin).await.unwrap().items[0];
    let floods = vec![claims(another, "flood", 1).remove(0); 21 + ASKED];
    let per_limited = tokio::task::spawn_blocking(move || {
        let mut client = Client::connect(address);
        for request in &floods[..21] {
            client.ask(request);
        }
        counted(address, &floods[21..], 429)
    });
    let per_limited = per_limited.await.unwrap();

    println!(
        "{per_limited:.2} allocations per request too many, {per_refusal:.2} per refusal, \
         {per_claim:.1} per claim, {per_order:.1} per order"
    );
    assert!(per_refusal <= PER_REFUSAL_MAX, "{per_refusal} per refusal");
    assert!(per_limited <= PER_REFUSAL_MAX, "{per_limited} per request too many");
    assert!(per_claim <= PER_CLAIM_MAX, "{per_claim} per claim");
    assert!(per_order <= PER_ORDER_MAX, "{per_order} per order");
    stop.send(()).unwrap();
    server.await.unwrap().unwrap();
}

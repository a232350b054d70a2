//! Clients of all manners, on real sockets.

use std::time::Instant;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    routing::{get, post},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::oneshot,
    task::JoinHandle,
};

use super::*;
use crate::{edge::Edge, extract::Json};

fn options() -> NetOptions {
    NetOptions {
        connections_max: 100,
        header_timeout: Duration::from_millis(300),
        header_bytes_max: 8_192,
        body_timeout: Duration::from_millis(300),
        body_bytes_max: 1_000,
        any_body_bytes_max: 10_000,
        request_timeout: Duration::from_millis(500),
        idle_timeout: Duration::from_millis(700),
        write_timeout: Duration::from_millis(500),
        drain_max: Duration::from_millis(1_000),
        proxy_hops: 0,
    }
}

/// Answers `POST /quick` with the length of its body, and `POST /wait` when it is told to.
#[derive(Clone, Default)]
struct Till {
    bell: Arc<tokio::sync::Notify>,
}

impl Express for Till {
    type Ticket = usize;
    type Reply = ();

    fn takes(&self, method: &str, path: &str) -> bool {
        method == "POST" && ["/quick", "/wait"].contains(&path)
    }

    fn begin(&self, asked: &Asked<'_>, out: &mut Vec<u8>) -> Option<Waiting<Self>> {
        let ticket = asked.body.len();
        if asked.path == "/quick" {
            self.finish(ticket, Outcome::Reply(()), out);
            return None;
        }
        let bell = self.bell.clone();
        Some(Waiting { ticket, reply: Box::pin(async move { bell.notified().await }) })
    }

    fn finish(&self, ticket: usize, outcome: Outcome<()>, out: &mut Vec<u8>) {
        let body = match outcome {
            Outcome::Reply(()) => format!("express {ticket};"),
            Outcome::TooLate => "given up;".into(),
            Outcome::Panicked => "panicked;".into(),
        };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(body.as_bytes());
    }
}

fn post_to(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: s\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Rings when it is dropped.
struct Leaving(Arc<tokio::sync::Notify>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

struct Shop {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<Drained>,
    till: Till,
}

impl Shop {
    async fn open(options: NetOptions) -> Shop {
        let till = Till::default();
        let slow = |ms| {
            get(async move || {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                "done"
            })
        };
        let endless = get(async || {
            Body::from_stream(futures_util::stream::repeat_with(|| {
                Ok::<_, Infallible>(bytes::Bytes::from(vec![b'x'; 64 * 1_024]))
            }))
        });
        let upgrade = get(async |mut request: Request| {
            let upgraded = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut socket = TokioIo::new(upgraded.await.unwrap());
                let mut bytes = [0; 100];
                while let Ok(n @ 1..) = socket.read(&mut bytes).await {
                    socket.write_all(&bytes[..n]).await.unwrap();
                }
            });
            (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "echo")])
        });
        let began = till.bell.clone();
        let ignores = post(async move || {
            began.notify_one();
            "ignored"
        });
        let large = get(async || vec![b'x'; 24_000_000]);
        let left = till.bell.clone();
        let events = get(async move || {
            let left = Leaving(left);
            let silence = futures_util::stream::pending::<Result<bytes::Bytes, Infallible>>();
            let silence = futures_util::StreamExt::map(silence, move |event| {
                let _ = &left;
                event
            });
            ([("content-type", "text/event-stream")], Body::from_stream(silence))
        });
        let router = Router::new()
            .route("/", get(async |peer: Peer| peer.0.to_string()))
            .route("/echo", post(async |Json(value): Json<serde_json::Value>| Json(value)))
            .route("/quick", post(async |body: String| format!("router {};", body.len())))
            .route("/ignores", ignores)
            .route("/slow", slow(400))
            .route("/stuck", slow(60_000))
            .route("/endless", endless)
            .route("/upgrade", upgrade)
            .route("/large", large)
            .route("/events", events)
            .layer(DefaultBodyLimit::max(1_000));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let service = Edge::new(router, Duration::from_secs(30));
        let shutdown = async move {
            let _ = stopped.await;
        };
        let served = tokio::spawn(serve(listener, till.clone(), service, options, shutdown));
        Shop { address, stop: Some(stop), served, till }
    }

    async fn client(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    async fn close(mut self) -> Drained {
        self.stop.take().unwrap().send(()).unwrap();
        self.served.await.unwrap()
    }
}

struct Client(TcpStream);

impl Client {
    async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    async fn get(&mut self, path: &str) {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: shop\r\n\r\n")).await;
    }

    /// What comes next, at least one byte of it.
    async fn read_some(&mut self) -> String {
        let mut bytes = vec![0; 65_536];
        let n = self.0.read(&mut bytes).await.unwrap();
        assert_ne!(n, 0, "the connection is closed");
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }

    /// Everything until the other side closes, and how long that took.
    async fn read_to_end(&mut self) -> (String, Duration) {
        let began = Instant::now();
        let mut bytes = Vec::new();
        let all = self.0.read_to_end(&mut bytes);
        // A reset is a way of closing, too.
        let _ = tokio::time::timeout(Duration::from_secs(5), all).await.expect("left open");
        (String::from_utf8_lossy(&bytes).into_owned(), began.elapsed())
    }
}

fn between(took: Duration, from_ms: u64, to_ms: u64) {
    let range = Duration::from_millis(from_ms)..Duration::from_millis(to_ms);
    assert!(range.contains(&took), "took {took:?}");
}

#[tokio::test]
async fn requests_are_answered_on_one_connection_with_the_clients_address() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    for _ in 0..3 {
        client.get("/").await;
        let answer = client.read_some().await;
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("127.0.0.1"), "{answer}");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    client.send("GET /slow HTTP/1.1\r\nhost: s\r\n\r\nGET /nowhere HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n").await;
    let (answers, _) = client.read_to_end().await;
    let (done, nowhere) = (answers.find("done").unwrap(), answers.find("not_found").unwrap());
    assert!(done < nowhere, "{answers}");
}

#[tokio::test]
async fn a_client_that_never_finishes_its_head_is_closed() {
    let shop = Shop::open(options()).await;
    let mut silent = shop.client().await;
    between(silent.read_to_end().await.1, 250, 2_000);
    // One that trickles gains nothing by it.
    let mut slow = shop.client().await;
    slow.send("GET / HTTP/1.1\r\n").await;
    let began = Instant::now();
    while slow.0.write_all(b"x-slow: y\r\n").await.is_ok() {
        assert!(began.elapsed() < Duration::from_secs(3), "left open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    between(began.elapsed(), 250, 2_500);
    assert_eq!(slow.read_to_end().await.0, "");
}

#[tokio::test]
async fn a_body_that_trickles_is_told_so_and_closed() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    client.send("POST /echo HTTP/1.1\r\nhost: s\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{").await;
    let (mut reader, mut writer) = client.0.into_split();
    let trickle = tokio::spawn(async move {
        while writer.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let began = Instant::now();
    let mut bytes = Vec::new();
    let _ = reader.read_to_end(&mut bytes).await;
    let answer = String::from_utf8_lossy(&bytes);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");
    between(began.elapsed(), 250, 2_000);
    trickle.abort();
}

#[tokio::test]
async fn a_connection_without_a_request_is_kept_longer_than_a_slow_head_but_not_for_ever() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    client.get("/").await;
    client.read_some().await;
    let (rest, took) = client.read_to_end().await;
    assert_eq!(rest, "");
    between(took, 600, 2_500);
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_cut() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    client.get("/endless").await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    // What the kernel had buffered comes, and then the end of an answer that has none.
    client.read_to_end().await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_all_of_its_answer() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    client.send("GET /large HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n").await;
    let mut bytes = 0;
    let mut some = vec![0; 400_000];
    let began = Instant::now();
    // Longer than the idle time-out in all, and the shop closes meanwhile.
    let closing = tokio::spawn(async {
        tokio::time::sleep(Duration::from_millis(900)).await;
        shop.close().await
    });
    loop {
        let n = client.0.read(&mut some).await.unwrap();
        if n == 0 {
            break;
        }
        bytes += n;
        let pause = Duration::from_millis(if began.elapsed().as_millis() < 1_300 { 50 } else { 0 });
        tokio::time::sleep(pause).await;
    }
    assert!(bytes > 24_000_000, "{bytes}");
    assert_eq!(closing.await.unwrap(), Drained { finished: 1, cut: 0 });
}

#[tokio::test]
async fn an_upgraded_connection_is_not_idle_but_ends_with_the_drain() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    client
        .send("GET /upgrade HTTP/1.1\r\nhost: s\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
        .await;
    assert!(client.read_some().await.starts_with("HTTP/1.1 101"));
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    client.send("hello").await;
    assert_eq!(client.read_some().await, "hello");
    assert_eq!(shop.close().await, Drained { finished: 0, cut: 1 });
    assert_eq!(client.read_to_end().await.0, "");
}

#[tokio::test]
async fn broken_http_gets_400() {
    let shop = Shop::open(options()).await;
    for nonsense in ["nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02\r\n\r\n"] {
        let mut client = shop.client().await;
        client.send(nonsense).await;
        let (answer, took) = client.read_to_end().await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{nonsense:?}: {answer}");
        between(took, 0, 1_000);
    }
}

#[tokio::test]
async fn a_head_that_is_too_long_gets_431() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    let long = format!("GET / HTTP/1.1\r\nhost: s\r\nx-long: {}\r\n\r\n", "x".repeat(9_000));
    let _ = client.0.write_all(long.as_bytes()).await;
    let (answer, _) = client.read_to_end().await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn a_body_that_is_too_long_gets_413() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    let head = "POST /echo HTTP/1.1\r\nhost: s\r\ncontent-type: application/json\r\n";
    client.send(&format!("{head}content-length: 2000\r\n\r\n{}", "1".repeat(2_000))).await;
    let answer = client.read_some().await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("too_large"), "{answer}");
}

#[tokio::test]
async fn above_the_cap_one_is_told_to_come_back() {
    let shop = Shop::open(NetOptions { connections_max: 2, ..options() }).await;
    let (mut first, mut second) = (shop.client().await, shop.client().await);
    first.get("/").await;
    second.get("/").await;
    first.read_some().await;
    second.read_some().await;
    let mut third = shop.client().await;
    third.get("/").await;
    let (answer, _) = third.read_to_end().await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("retry-after: 1\r\n") && answer.contains("\"busy\""), "{answer}");
    drop(first);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut fourth = shop.client().await;
    fourth.get("/").await;
    assert!(fourth.read_some().await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_drain_finishes_requests_and_closes_idle_connections_at_once() {
    let shop = Shop::open(options()).await;
    let (mut idle, mut fresh, mut asking) =
        (shop.client().await, shop.client().await, shop.client().await);
    idle.get("/").await;
    idle.read_some().await;
    asking.get("/slow").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let address = shop.address;
    let closing = tokio::spawn(shop.close());
    between(idle.read_to_end().await.1, 0, 600);
    between(fresh.read_to_end().await.1, 0, 600);
    assert!(TcpStream::connect(address).await.is_err(), "still accepting");
    let (answer, _) = asking.read_to_end().await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("done"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
    assert_eq!(closing.await.unwrap(), Drained { finished: 3, cut: 0 });
}

#[tokio::test]
async fn a_drain_cuts_what_does_not_end() {
    let shop = Shop::open(options()).await;
    let (mut stuck, mut half) = (shop.client().await, shop.client().await);
    stuck.get("/stuck").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    half.send("GET / HTTP/1.1\r\nho").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let began = Instant::now();
    assert_eq!(shop.close().await, Drained { finished: 1, cut: 1 });
    between(began.elapsed(), 900, 2_500);
    assert_eq!(stuck.read_to_end().await.0, "");
    assert_eq!(half.read_to_end().await.0, "");
}

#[tokio::test]
async fn a_drain_with_nobody_there_is_over_at_once() {
    let shop = Shop::open(options()).await;
    let began = Instant::now();
    assert_eq!(shop.close().await, Drained { finished: 0, cut: 0 });
    between(began.elapsed(), 0, 600);
}

#[tokio::test]
async fn a_connection_changes_between_the_express_lane_and_the_router() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    for n in 0..3 {
        client.send(&post_to("/quick", &"x".repeat(n))).await;
        assert!(client.read_some().await.ends_with(&format!("express {n};")));
        client.get("/").await;
        assert!(client.read_some().await.ends_with("127.0.0.1"));
        client.send(&post_to("/quick", "again")).await;
        assert!(client.read_some().await.ends_with("express 5;"));
    }
}

#[tokio::test]
async fn pipelined_requests_of_both_kinds_are_answered_in_order() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    let slow = "GET /slow HTTP/1.1\r\nhost: s\r\n\r\n".to_owned();
    let last = "GET / HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n".to_owned();
    let parts = [post_to("/quick", "1"), post_to("/quick", "22"), slow, post_to("/quick", "333")];
    client.send(&(parts.concat() + &last)).await;
    let (answers, _) = client.read_to_end().await;
    let places: Vec<usize> = ["express 1;", "express 2;", "done", "express 3;", "127.0.0.1"]
        .iter()
        // Behind a request of the router hyper may have read the next one already; it then answers it.
        .map(|answer| answers.find(answer).or_else(|| answers.find("router 3;")).unwrap())
        .collect();
    assert!(places.is_sorted(), "{answers}");
}

#[tokio::test]
async fn what_is_not_plain_goes_to_the_router_and_means_the_same() {
    let shop = Shop::open(options()).await;
    for (fields, body) in [
        ("content-length: 4\r\nconnection: close\r\n", "four"),
        ("transfer-encoding: chunked\r\n", "4\r\nfour\r\n0\r\n\r\n"),
        ("expect: 100-continue\r\ncontent-length: 4\r\n", "four"),
    ] {
        let mut client = shop.client().await;
        client.send(&format!("POST /quick HTTP/1.1\r\nhost: s\r\n{fields}\r\n{body}")).await;
        let mut answer = client.read_some().await;
        while !answer.contains("router 4;") {
            answer += &client.read_some().await;
        }
    }
    // One whose body comes later is the router's as well.
    let mut client = shop.client().await;
    client.send("POST /quick HTTP/1.1\r\nhost: s\r\ncontent-length: 4\r\n\r\n").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.send("four").await;
    assert!(client.read_some().await.ends_with("router 4;"));
    client.send(&post_to("/quick", "four")).await;
    assert!(client.read_some().await.ends_with("express 4;"));
    // Two lengths are a trick.
    let two =
        "POST /quick HTTP/1.1\r\nhost: s\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nfour";
    client.send(two).await;
    assert!(client.read_some().await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn bytes_that_a_handler_left_unread_are_never_taken_for_a_request() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    // The router refuses this body unread; in it hides a request.
    let hidden = post_to("/quick", "hidden");
    let body = format!("{}{hidden}", " ".repeat(2_000));
    client.send(&post_to("/nowhere", &body)).await;
    let (answers, _) = client.read_to_end().await;
    assert!(answers.starts_with("HTTP/1.1 404") && !answers.contains("express"), "{answers}");
}

#[tokio::test]
async fn a_body_that_nobody_reads_and_that_comes_late_costs_no_connection() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    for _ in 0..3 {
        client.send("POST /ignores HTTP/1.1\r\nhost: s\r\ncontent-length: 2\r\n\r\n").await;
        // The handler has answered without it.
        shop.till.bell.notified().await;
        client.send("{}").await;
        let answer = client.read_some().await;
        assert!(answer.ends_with("ignored") && !answer.contains("connection"), "{answer}");
    }
    client.send(&post_to("/quick", "four")).await;
    assert!(client.read_some().await.ends_with("express 4;"));
}

#[tokio::test]
async fn a_body_that_nobody_reads_is_not_waited_for_for_ever() {
    let shop = Shop::open(options()).await;
    for (head, from_ms) in [
        // It does not come.
        ("content-length: 2", 250),
        // Too much to read for nothing, or not sent before it is asked for.
        ("content-length: 2000", 0),
        ("content-length: 2\r\nexpect: 100-continue", 0),
    ] {
        let mut client = shop.client().await;
        client.send(&format!("POST /ignores HTTP/1.1\r\nhost: s\r\n{head}\r\n\r\n")).await;
        let (answer, took) = client.read_to_end().await;
        assert!(answer.ends_with("ignored") && answer.contains("connection: close"), "{answer}");
        between(took, from_ms, 2_000);
    }
}

#[tokio::test]
async fn an_express_request_waits_no_longer_than_any_other() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    client.send(&post_to("/wait", "")).await;
    shop.till.bell.notify_one();
    assert!(client.read_some().await.ends_with("express 0;"));
    let began = Instant::now();
    client.send(&post_to("/wait", "")).await;
    assert!(client.read_some().await.ends_with("given up;"));
    between(began.elapsed(), 450, 2_000);
}

#[tokio::test]
async fn a_drain_lets_an_express_request_finish() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    client.send(&post_to("/wait", "x")).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let bell = shop.till.bell.clone();
    let closing = tokio::spawn(shop.close());
    tokio::time::sleep(Duration::from_millis(300)).await;
    bell.notify_one();
    assert!(client.read_to_end().await.0.ends_with("express 1;"));
    assert_eq!(closing.await.unwrap(), Drained { finished: 1, cut: 0 });
}

#[tokio::test]
async fn a_drain_answers_what_came_behind_an_express_request() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    client.send(&(post_to("/wait", "x") + "GET / HTTP/1.1\r\nhost: s\r\n\r\n")).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let bell = shop.till.bell.clone();
    let closing = tokio::spawn(shop.close());
    tokio::time::sleep(Duration::from_millis(50)).await;
    bell.notify_one();
    let (answers, _) = client.read_to_end().await;
    assert!(answers.contains("express 1;") && answers.ends_with("127.0.0.1"), "{answers}");
    assert!(answers.contains("connection: close"), "{answers}");
    assert_eq!(closing.await.unwrap(), Drained { finished: 1, cut: 0 });
}

/// A client that leaves and one that only has nothing more to say look the same until they are
/// answered, so the place is free when the decision is there.
#[tokio::test]
async fn who_leaves_during_an_express_request_gives_up_the_place_with_its_answer() {
    let shop = Shop::open(NetOptions { connections_max: 1, ..options() }).await;
    let mut client = shop.client().await;
    client.send(&post_to("/wait", "")).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(client);
    shop.till.bell.notify_one();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut next = shop.client().await;
    next.send(&post_to("/quick", "")).await;
    assert!(next.read_some().await.ends_with("express 0;"));
}

#[tokio::test]
async fn an_answer_does_not_wait_for_the_one_behind_it() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    client.send(&(post_to("/quick", "x") + &post_to("/wait", "yy"))).await;
    assert!(client.read_some().await.ends_with("express 1;"));
    shop.till.bell.notify_one();
    assert!(client.read_some().await.ends_with("express 2;"));
}

#[tokio::test]
async fn heads_that_make_no_sense_are_refused_in_words_whole_or_in_pieces() {
    let shop = Shop::open(options()).await;
    let many = "x-many: 1\r\n".repeat(120);
    let many = format!("GET / HTTP/1.1\r\nhost: s\r\n{many}\r\n");
    let long = format!("GET / HTTP/1.1\r\nhost: s\r\nx-long: {}\r\n\r\n", "x".repeat(9_000));
    let quick = |fields: &str| format!("POST /quick HTTP/1.1\r\n{fields}\r\nfour");
    for (request, status, code) in [
        ("nonsense\r\n\r\n".to_owned(), 400, "bad_request"),
        ("GET / HTTP/9.9\r\n\r\n".into(), 400, "bad_request"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), 400, "bad_request"),
        ("GET http:// HTTP/1.1\r\nhost: s\r\n\r\n".into(), 400, "bad_request"),
        ("GET / HTTP/1.1\r\nhost: s\r\n folded: x\r\n\r\n".into(), 400, "bad_request"),
        ("GET / HTTP/1.1\r\nhost : s\r\n\r\n".into(), 400, "bad_request"),
        ("GET / HTTP/1.1\r\n\r\n".into(), 400, "bad_request"),
        ("GET / HTTP/1.1\r\nhost: s\r\nhost: s\r\n\r\n".into(), 400, "bad_request"),
        (quick("content-length: 4\r\n"), 400, "bad_request"),
        (quick("host: s\r\nhost: s\r\ncontent-length: 4\r\n"), 400, "bad_request"),
        (quick("host: s\r\ncontent-length: four\r\n"), 400, "bad_request"),
        (quick("host: s\r\ncontent-length: 10001\r\n"), 413, "too_large"),
        (quick("host: s\r\ncontent-length: 9999999999999999999999\r\n"), 413, "too_large"),
        (quick("host: s\r\ncontent-length: 4\r\nexpect: 200-ok\r\n"), 417, "expectation_failed"),
        (many, 431, "head_too_large"),
        (long, 431, "head_too_large"),
    ] {
        // Not so many that a slow machine takes them for a slow client.
        for pieces in [request.len(), request.len() / 2 + 1, request.len() / 20 + 1] {
            let mut client = shop.client().await;
            client.0.set_nodelay(true).unwrap();
            for piece in request.as_bytes().chunks(pieces) {
                // Who is refused early need not send the rest.
                let _ = client.0.write_all(piece).await;
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
            let (answer, took) = client.read_to_end().await;
            let shown = &request[..request.len().min(80)];
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {answer}");
            for part in [
                "content-type: application/problem+json\r\n",
                "x-content-type-options: nosniff\r\n",
                "cache-control: no-store\r\n",
                "connection: close\r\n",
                "x-request-id: ",
                &format!("\"code\":\"{code}\""),
            ] {
                assert!(answer.contains(part), "{shown:?}: no {part:?} in {answer}");
            }
            between(took, 0, 1_500);
        }
    }
    // Also in the language of whoever can be understood that far.
    let mut client = shop.client().await;
    client.send("GET / HTTP/1.1\r\naccept-language: zh\r\n\r\n").await;
    assert!(client.read_to_end().await.0.contains("请求无法识别"));
}

#[tokio::test]
async fn chunked_requests_keep_their_connection_and_hide_nothing() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    let head =
        "HTTP/1.1\r\nhost: s\r\ncontent-type: application/json\r\ntransfer-encoding: chunked";
    let body = "1\r\n{\r\n7;x=y\r\n\"a\":42}\r\n0\r\nx-trailer: z\r\n\r\n";
    for path in ["/echo", "/quick", "/ignores", "/nowhere"] {
        for _ in 0..2 {
            client.send(&format!("POST {path} {head}\r\n\r\n{body}")).await;
            let answer = client.read_some().await;
            assert!(!answer.contains("connection: close"), "{path}: {answer}");
        }
    }
    // What comes behind it in the same packet is judged like everything else.
    for (behind, found) in [
        (post_to("/quick", "four"), "express 4;"),
        ("GET / HTTP/1.1\r\n\r\n".into(), "\"code\":\"bad_request\""),
    ] {
        client.send(&format!("POST /echo {head}\r\n\r\n{body}{behind}")).await;
        let mut answers = client.read_some().await;
        while !answers.contains(found) {
            answers += &client.read_some().await;
        }
        assert!(answers.contains("{\"a\":42}"), "{answers}");
    }
}

#[tokio::test]
async fn a_client_that_closes_its_half_still_gets_its_answer() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    client.send(&post_to("/wait", "x")).await;
    client.0.shutdown().await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    shop.till.bell.notify_one();
    assert!(client.read_to_end().await.0.ends_with("express 1;"));
    let chunked = "POST /quick HTTP/1.1\r\nhost: s\r\ntransfer-encoding: chunked\r\n\r\n4\r\nfour\r\n0\r\n\r\n";
    for (request, end) in [
        ("GET /slow HTTP/1.1\r\nhost: s\r\n\r\n".to_owned(), "done"),
        ("GET /slow HTTP/1.0\r\n\r\n".into(), "done"),
        (chunked.into(), "router 4;"),
        (post_to("/quick", "four") + &post_to("/quick", "fives"), "express 5;"),
    ] {
        let mut client = shop.client().await;
        client.send(&request).await;
        client.0.shutdown().await.unwrap();
        let (answer, _) = client.read_to_end().await;
        assert!(answer.ends_with(end), "{request:?}: {answer}");
    }
    // A body that is cut off is no request.
    let mut client = shop.client().await;
    client.send("POST /quick HTTP/1.1\r\nhost: s\r\ncontent-length: 9\r\n\r\nfour").await;
    client.0.shutdown().await.unwrap();
    assert!(!client.read_to_end().await.0.contains("router"));
}

#[tokio::test]
async fn an_endless_answer_ends_with_its_client() {
    let shop = Shop::open(options()).await;
    let mut client = shop.client().await;
    client.get("/events").await;
    assert!(client.read_some().await.starts_with("HTTP/1.1 200"));
    drop(client);
    let left = shop.till.bell.notified();
    tokio::time::timeout(Duration::from_secs(5), left).await.expect("nobody noticed");
}

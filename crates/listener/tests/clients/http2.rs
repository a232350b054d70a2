//! Clients of HTTP/2: honest ones, and those that abuse what the protocol lets them do. The latter write
//! their frames by hand.

use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::Request;
use listener::{Drained, HttpSettings};
use rustls::version::TLS13;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use crate::{server::settings, tls::TlsServer};

fn roomy() -> HttpSettings {
    HttpSettings {
        tls_handshake_timeout_ms: 20_000,
        request_timeout_ms: 20_000,
        idle_timeout_ms: 20_000,
        ..settings()
    }
}

async fn honest(shop: &TlsServer) -> SendRequest<Bytes> {
    let stream = shop.connect("h2", &[&TLS13]).await.unwrap();
    let (send, connection) = client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    send
}

async fn ask(send: &mut SendRequest<Bytes>, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut ready = send.clone().ready().await.unwrap();
    let uri = format!("https://shop.example{path}");
    let request = Request::builder().method(method).uri(uri).body(()).unwrap();
    let (answer, mut sending) = ready.send_request(request, body.is_empty()).unwrap();
    if !body.is_empty() {
        sending.send_data(Bytes::copy_from_slice(body.as_bytes()), true).unwrap();
    }
    let (head, mut incoming) = answer.await.unwrap().into_parts();
    let mut read = Vec::new();
    while let Some(data) = incoming.data().await {
        let data = data.unwrap();
        incoming.flow_control().release_capacity(data.len()).unwrap();
        read.extend_from_slice(&data);
    }
    (head.status.as_u16(), String::from_utf8(read).unwrap())
}

#[tokio::test]
async fn requests_share_a_connection() {
    let shop = TlsServer::start(roomy()).await;
    let mut send = honest(&shop).await;
    assert_eq!(ask(&mut send, "GET", "/", "").await, (200, "127.0.0.1".into()));
    assert_eq!(ask(&mut send, "POST", "/echo", "a body").await, (200, "a body".into()));
    assert_eq!(ask(&mut send, "POST", "/quick", "12345").await, (200, "router 5;".into()));
    // A slow one holds up nobody.
    let began = Instant::now();
    let slow = tokio::spawn({
        let mut send = send.clone();
        async move { ask(&mut send, "GET", "/slow", "").await }
    });
    for _ in 0..20 {
        assert_eq!(ask(&mut send, "POST", "/echo", "x").await.1, "x");
    }
    assert_eq!(slow.await.unwrap().1, "done");
    assert!(began.elapsed() < Duration::from_secs(15));
    // More than may be at once wait their turn.
    let many = (0..30).map(|_| {
        let mut send = send.clone();
        tokio::spawn(async move { ask(&mut send, "POST", "/echo", "y").await.1 })
    });
    for one in many.collect::<Vec<_>>() {
        assert_eq!(one.await.unwrap(), "y");
    }
    // A body that is too long, and one that is not read, are the stream's affair alone.
    assert_eq!(ask(&mut send, "POST", "/echo", &"x".repeat(2_000)).await.0, 413);
    assert_eq!(ask(&mut send, "POST", "/ignores", "whatever").await.1, "ignored");
    let (_, large) = ask(&mut send, "GET", "/large", "").await;
    assert_eq!(large.len(), 24_000_000);
}

#[tokio::test]
async fn a_drain_lets_the_streams_finish() {
    let shop = TlsServer::start(roomy()).await;
    let mut send = honest(&shop).await;
    let mut ready = send.clone().ready().await.unwrap();
    let slow = Request::get("https://shop.example/slow").body(()).unwrap();
    let (slow, _) = ready.send_request(slow, true).unwrap();
    // Frames come in order: once this one is answered, the slow one has begun.
    ask(&mut send, "GET", "/", "").await;
    let drained = shop.server.stop().await;
    assert_eq!(slow.await.unwrap().status(), 200);
    assert_eq!(drained, Drained { finished: 1, cut: 0 });
}

/// Writes frames by hand.
struct Abuser {
    stream: TlsStream<TcpStream>,
    streams: u32,
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
const ENHANCE_YOUR_CALM: u32 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header block for a `GET`, without Huffman and without a table.
fn block(path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x87];
    for (name, value) in [(":path", path), (":authority", "shop.example")] {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    block
}

/// What the server said before it hung up: the kinds of its frames, and the code of its good-bye.
#[derive(Debug, Default)]
struct Said {
    kinds: Vec<u8>,
    good_bye: Option<u32>,
}

impl Abuser {
    async fn connect(shop: &TlsServer) -> Abuser {
        Abuser::connect_with(shop, &[]).await
    }

    async fn connect_with(shop: &TlsServer, settings: &[u8]) -> Abuser {
        let mut stream = shop.connect("h2", &[&TLS13]).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, settings)).await.unwrap();
        Abuser { stream, streams: 0 }
    }

    /// False if the server has hung up.
    async fn send(&mut self, bytes: &[u8]) -> bool {
        let sent = tokio::time::timeout(Duration::from_secs(30), self.stream.write_all(bytes));
        sent.await.expect("neither taken nor cut").is_ok()
    }

    fn next_stream(&mut self) -> u32 {
        self.streams += 1;
        self.streams * 2 - 1
    }

    /// Until it hangs up.
    async fn read(&mut self) -> Said {
        let (mut said, mut bytes) = (Said::default(), Vec::new());
        let reading = self.stream.read_to_end(&mut bytes);
        // A reset is a way of hanging up, too.
        let _ = tokio::time::timeout(Duration::from_secs(30), reading).await.expect("left open");
        let mut rest = &bytes[..];
        while rest.len() >= 9 {
            let length = usize::from(rest[1]) << 8 | usize::from(rest[2]);
            let (kind, payload) = (rest[3], rest.get(9..9 + length).unwrap_or_default());
            said.kinds.push(kind);
            if kind == GOAWAY && payload.len() >= 8 {
                said.good_bye = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
            }
            rest = rest.get(9 + length..).unwrap_or_default();
        }
        said
    }
}

/// The shop still answers others.
async fn is_well(shop: &TlsServer) {
    let mut send = honest(shop).await;
    assert_eq!(ask(&mut send, "POST", "/echo", "well").await.1, "well");
}

#[tokio::test]
async fn who_begins_requests_and_gives_them_up_is_cut() {
    let shop = TlsServer::start(roomy()).await;
    let mut abuser = Abuser::connect(&shop).await;
    // One by one, so that each is begun before it is given up: the protocol's own limit sees none of them.
    let mut given_up = 0;
    loop {
        let stream = abuser.next_stream();
        if !abuser.send(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &block("/stuck"))).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
        if !abuser.send(&frame(RESET, 0, stream, &8u32.to_be_bytes())).await {
            break;
        }
        given_up += 1;
        assert!(given_up < 5_000, "nobody minded");
    }
    println!("cut after {given_up} requests that were given up");
    // All at once: the protocol's limit.
    let mut abuser = Abuser::connect(&shop).await;
    let mut burst = Vec::new();
    for _ in 0..1_000 {
        let stream = abuser.next_stream();
        burst.extend(frame(HEADERS, END_STREAM | END_HEADERS, stream, &block("/stuck")));
        burst.extend(frame(RESET, 0, stream, &8u32.to_be_bytes()));
    }
    abuser.send(&burst).await;
    let said = abuser.read().await;
    println!("after a burst the server said {:?}", said.good_bye);
    assert!(said.good_bye.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{said:?}");
    is_well(&shop).await;
}

#[tokio::test]
async fn more_streams_than_allowed_are_refused() {
    let shop = TlsServer::start(roomy()).await;
    let mut abuser = Abuser::connect(&shop).await;
    for _ in 0..20 {
        let stream = abuser.next_stream();
        abuser.send(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &block("/slow"))).await;
    }
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    let _ = abuser.send(&frame(GOAWAY, 0, 0, &[0; 8])).await;
    let said = abuser.read().await;
    let of = |kind| said.kinds.iter().filter(|one| **one == kind).count();
    assert_eq!((of(HEADERS), of(RESET)), (8, 12), "{said:?}");
}

#[tokio::test]
async fn fields_without_end_are_refused() {
    let shop = TlsServer::start(roomy()).await;
    // In one block that is too long, and in pieces that never end.
    let mut long = block("/");
    for n in 0..2_000 {
        long.push(0);
        long.push(10);
        long.extend(format!("x-header{:02}", n % 100).as_bytes());
        long.push(10);
        long.extend(b"0123456789");
    }
    let mut abuser = Abuser::connect(&shop).await;
    let stream = abuser.next_stream();
    abuser.send(&frame(HEADERS, END_STREAM, stream, &long[..10_000])).await;
    let mut sent = 0;
    while abuser.send(&frame(CONTINUATION, 0, stream, &long[..16_000])).await {
        sent += 1;
        assert!(sent < 5_000, "it takes fields without end");
    }
    is_well(&shop).await;
}

#[tokio::test]
async fn pings_and_settings_pile_up_nowhere_and_are_no_requests() {
    let quick = HttpSettings { idle_timeout_ms: 1_500, write_timeout_ms: 1_500, ..roomy() };
    let shop = TlsServer::start(quick).await;
    // With somebody who reads the answers, and with somebody who does not.
    for reads in [true, false] {
        for kind in [PING, SETTINGS] {
            let payload: &[u8] = if kind == PING { &[7; 8] } else { &[0, 3, 0, 0, 0, 100] };
            let burst: Vec<u8> = (0..500).flat_map(|_| frame(kind, 0, 0, payload)).collect();
            let abuser = Abuser::connect(&shop).await;
            let (mut reading, mut writing) = tokio::io::split(abuser.stream);
            let reader = tokio::spawn(async move {
                let mut bytes = vec![0; 65_536];
                while reads && reading.read(&mut bytes).await.is_ok_and(|n| n > 0) {}
                reading
            });
            let (began, mut bursts) = (Instant::now(), 0);
            while let Ok(Ok(())) =
                tokio::time::timeout(Duration::from_secs(20), writing.write_all(&burst)).await
            {
                bursts += 1;
                assert!(began.elapsed() < Duration::from_secs(30), "it is never idle");
            }
            println!(
                "kind {kind}, read: {reads}: over after {:?}, {bursts} bursts",
                began.elapsed()
            );
            drop(reader);
        }
    }
    is_well(&shop).await;
}

#[tokio::test]
async fn an_answer_that_nobody_takes_is_given_up() {
    let impatient = HttpSettings { write_timeout_ms: 800, ..roomy() };
    let shop = TlsServer::start(impatient).await;
    // Its window is shut: the socket is free, and nothing can be sent.
    let mut abuser = Abuser::connect_with(&shop, &[0, 4, 0, 0, 0, 0]).await;
    let stream = abuser.next_stream();
    abuser.send(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &block("/large"))).await;
    let began = Instant::now();
    let said = abuser.read().await;
    assert!(!said.kinds.contains(&DATA), "{said:?}");
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
    is_well(&shop).await;
}

#[tokio::test]
async fn a_connection_without_requests_is_kept_for_a_while_and_not_for_ever() {
    let quick = HttpSettings { idle_timeout_ms: 1_000, header_timeout_ms: 200, ..roomy() };
    let shop = TlsServer::start(quick).await;
    let mut silent = Abuser::connect(&shop).await;
    let began = Instant::now();
    silent.send(&frame(SETTINGS, ACK, 0, &[])).await;
    silent.read().await;
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
}

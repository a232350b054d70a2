//! What clients hear of the listener's refusals, on real sockets.

use std::time::Duration;

use listener::HttpSettings;
use server::api::{fast_path, service};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::shop::Shop;

/// A shop that can be reached, for as long as the test lasts.
async fn open(change: impl FnOnce(&mut HttpSettings)) -> (Shop, std::net::SocketAddr) {
    let shop = Shop::open().await;
    let mut settings = shop.app.config.http.clone();
    change(&mut settings);
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let (fast_path, service) = (fast_path(shop.app.clone()), service(shop.app.clone()));
    let never = std::future::pending();
    tokio::spawn(listener::serve(socket, None, fast_path, service, settings, never));
    (shop, address)
}

/// Everything until the other side closes.
async fn read_to_end(client: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let all = client.read_to_end(&mut bytes);
    // A reset is a way of closing, too.
    let _ = tokio::time::timeout(Duration::from_secs(10), all).await.expect("left open");
    String::from_utf8_lossy(&bytes).into_owned()
}

fn is_problem(answer: &str, status: u16, code: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    for part in [
        "content-type: application/problem+json\r\n",
        "x-content-type-options: nosniff\r\n",
        "cache-control: no-store\r\n",
        "connection: close\r\n",
        &format!("\"code\":\"{code}\""),
    ] {
        assert!(answer.contains(part), "no {part:?} in {answer}");
    }
}

#[tokio::test]
async fn heads_that_make_no_sense_are_refused_in_words() {
    let (_shop, address) = open(|_| ()).await;
    let long = format!("GET / HTTP/1.1\r\nhost: s\r\nx-long: {}\r\n\r\n", "x".repeat(20_000));
    for (request, status, code) in [
        ("GET / HTTP/1.1\r\n\r\n", 400, "bad_request"),
        ("POST / HTTP/1.1\r\nhost: s\r\ncontent-length: 9999999999\r\n\r\n", 413, "too_large"),
        ("POST / HTTP/1.1\r\nhost: s\r\nexpect: 200-ok\r\n\r\n", 417, "expectation_failed"),
        (&long, 431, "head_too_large"),
    ] {
        let mut client = TcpStream::connect(address).await.unwrap();
        let _ = client.write_all(request.as_bytes()).await;
        let answer = read_to_end(&mut client).await;
        is_problem(&answer, status, code);
        assert!(answer.contains("x-request-id: "), "{answer}");
    }
    // Also in the language of whoever can be understood that far.
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\naccept-language: zh\r\n\r\n").await.unwrap();
    assert!(read_to_end(&mut client).await.contains("请求无法识别"));
}

#[tokio::test]
async fn above_the_cap_one_is_told_to_come_back() {
    let (_shop, address) = open(|settings| settings.connections_max = 1).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(b"GET /healthz HTTP/1.1\r\nhost: s\r\n\r\n").await.unwrap();
    assert_ne!(first.read(&mut [0; 100]).await.unwrap(), 0);
    let mut second = TcpStream::connect(address).await.unwrap();
    let answer = read_to_end(&mut second).await;
    is_problem(&answer, 503, "busy");
    assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
}

#[tokio::test]
async fn a_body_that_trickles_is_told_so() {
    let (_shop, address) = open(|settings| settings.body_timeout_ms = 300).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = "POST /api/v1/dev/login HTTP/1.1\r\nhost: s\r\ncontent-type: application/json\r\n";
    client.write_all(format!("{head}content-length: 50\r\n\r\n{{").as_bytes()).await.unwrap();
    is_problem(&read_to_end(&mut client).await, 408, "request_timeout");
}

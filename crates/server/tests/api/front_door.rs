//! What clients hear of the listener's refusals, on real sockets.

use std::time::Duration;

use config::Config;
use listener::HttpSettings;
use server::api::{fast_path, service};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::shop::Shop;

/// A shop that can be reached, for as long as the test lasts.
async fn open(change: impl FnOnce(&mut HttpSettings)) -> (Shop, std::net::SocketAddr) {
    reach(Shop::open().await, change).await
}

async fn reach(shop: Shop, change: impl FnOnce(&mut HttpSettings)) -> (Shop, std::net::SocketAddr) {
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
    // Whoever is asking does not give way to another of the same address.
    first.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
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

/// A shop with these limits, where proxies say who asks.
async fn limited(change: impl FnOnce(&mut Config)) -> (Shop, std::net::SocketAddr) {
    let shop = Shop::open_with(|config| {
        config.http.proxy_hops = 1;
        config.auth.dev_login = config::Switch::On;
        change(config);
    });
    reach(shop.await, |_| ()).await
}

/// Ask and read one answer: its status, and all of it.
async fn ask(client: &mut TcpStream, request: &str) -> (u16, String) {
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 65_536];
    let mut here = 0;
    loop {
        let read = tokio::time::timeout(Duration::from_secs(30), client.read(&mut answer[here..]));
        let n = read.await.expect("no answer").unwrap();
        assert_ne!(n, 0, "the connection was closed");
        here += n;
        let text = String::from_utf8_lossy(&answer[..here]).into_owned();
        if text.ends_with('}') || text.contains("content-length: 0\r\n") {
            return (text[9..12].parse().unwrap(), text);
        }
    }
}

fn claim_from(address: &str, item: i64, token: &str, more: &str) -> String {
    let body = r#"{"quantity":1}"#;
    format!(
        "POST /api/v1/items/{item}/claims HTTP/1.1\r\nhost: s\r\nx-forwarded-for: 6.6.6.6, {address}\r\n\
         content-type: application/json\r\nx-sale-token: {token}\r\n{more}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn is_rate_limited((status, answer): &(u16, String), policy: &str) {
    assert_eq!(*status, 429, "{answer}");
    for part in [
        "\"code\":\"rate_limited\"",
        "retry-after: ",
        &format!("\r\nratelimit-policy: \"{policy}\";q="),
        &format!("\r\nratelimit: \"{policy}\";r=0;t="),
        "\"retry_after_ms\":",
    ] {
        assert!(answer.contains(part), "no {part:?} in {answer}");
    }
    assert!(!answer.contains("\"retry_after_ms\":1000}"), "with jitter: {answer}");
}

#[tokio::test]
async fn one_buyer_claims_only_so_often_on_either_path() {
    let (shop, address) =
        limited(|config| config.limits.claims_per_user = "1/m burst 3".parse().unwrap()).await;
    let (_, item) = shop.stage(10, 1).await;
    let token = shop.sale_token("eager", item);
    let mut client = TcpStream::connect(address).await.unwrap();
    for n in 0..6 {
        // What says something about its connection is the router's.
        let more = if n % 2 == 0 { "" } else { "connection: keep-alive, x\r\n" };
        let heard = ask(&mut client, &claim_from("1.2.3.4", item, &token, more)).await;
        if n < 3 {
            assert_ne!(heard.0, 429, "request {n}: {}", heard.1);
        } else {
            is_rate_limited(&heard, "claims-per-user");
        }
    }
    let token = shop.sale_token("calm", item);
    let heard = ask(&mut client, &claim_from("1.2.3.4", item, &token, "")).await;
    assert_ne!(heard.0, 429, "another buyer: {}", heard.1);
}

#[tokio::test]
async fn one_address_claims_only_so_often_and_its_half_of_ipv6_is_one() {
    let (shop, address) =
        limited(|config| config.limits.claims_per_address = "1/m burst 2".parse().unwrap()).await;
    let (_, item) = shop.stage(10, 1).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    for (n, (from, passes)) in [
        ("203.0.113.1", true),
        ("203.0.113.1", true),
        ("203.0.113.1", false),
        ("203.0.113.2", true),
        ("2001:db8:1:2::1", true),
        ("2001:db8:1:2::2", true),
        ("2001:db8:1:2:3::4", false),
        ("2001:db8:1:3::1", true),
        ("192.168.7.7", true),
        ("192.168.7.7", true),
        ("192.168.7.7", true),
    ]
    .into_iter()
    .enumerate()
    {
        let token = shop.sale_token(&format!("buyer{n}"), item);
        // Before the token is looked at, so a wrong one costs no more.
        let token = if passes { token } else { "nonsense".into() };
        let heard = ask(&mut client, &claim_from(from, item, &token, "")).await;
        match passes {
            true => assert_ne!(heard.0, 429, "{from}: {}", heard.1),
            false => is_rate_limited(&heard, "claims-per-address"),
        }
    }
}

#[tokio::test]
async fn each_class_of_requests_has_limits_of_its_own() {
    let (shop, address) = limited(|config| {
        config.limits.pages_per_address = "1/m burst 1".parse().unwrap();
        config.limits.tokens_per_user = "1/m burst 1".parse().unwrap();
        config.limits.orders_per_user = "1/m burst 1".parse().unwrap();
        config.limits.admin_per_address = "1/m burst 1".parse().unwrap();
    })
    .await;
    let (_, item) = shop.stage(10, 1).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    let jwt = shop.jwt("ann");
    for (method, path, policy) in [
        ("GET", "/api/v1/time".to_owned(), "pages-per-address"),
        ("POST", format!("/api/v1/items/{item}/token"), "tokens-per-user"),
        ("GET", "/api/v1/orders".to_owned(), "orders-per-user"),
        ("GET", "/api/v1/admin/activities".to_owned(), "admin-per-address"),
    ] {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: s\r\nx-forwarded-for: 203.0.113.9\r\n\
             authorization: Bearer {jwt}\r\ncontent-length: 0\r\n\r\n"
        );
        let first = ask(&mut client, &request).await;
        assert_ne!(first.0, 429, "{path}: {}", first.1);
        is_rate_limited(&ask(&mut client, &request).await, policy);
    }
    let health = "GET /healthz HTTP/1.1\r\nhost: s\r\nx-forwarded-for: 203.0.113.9\r\n\r\n";
    for _ in 0..5 {
        client.write_all(health.as_bytes()).await.unwrap();
        let mut some = [0; 4_096];
        let n = client.read(&mut some).await.unwrap();
        assert!(String::from_utf8_lossy(&some[..n]).starts_with("HTTP/1.1 200"), "never limited");
    }
}

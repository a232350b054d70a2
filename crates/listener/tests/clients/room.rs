//! A crowd of one address holds all the connections there are, in every manner that costs it nothing.

use std::{net::SocketAddr, time::Duration};

use listener::HttpSettings;
use tokio::net::{TcpSocket, TcpStream};

use crate::server::{Client, Server, post_to, settings};

/// How the crowd keeps its connections.
const MANNERS: [&str; 5] = ["silent", "half a head", "half a body", "reads nothing", "idle"];

async fn connect_from(host: &str, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(format!("{host}:0").parse().unwrap())?;
    socket.connect(to).await
}

/// Patient with everybody, so that nobody leaves but to make room.
fn patient(connections_max: usize) -> HttpSettings {
    let day_ms = 86_400_000;
    HttpSettings {
        connections_max,
        connections_per_address_max: connections_max,
        backlog_max: 4_096,
        header_timeout_ms: day_ms,
        body_timeout_ms: day_ms,
        idle_timeout_ms: day_ms,
        write_timeout_ms: day_ms,
        request_timeout_ms: day_ms,
        ..settings()
    }
}

async fn one_of_the_crowd(server: &Server, manner: &str) -> Client {
    let mut client = Client(connect_from("127.0.0.2", server.address).await.unwrap());
    match manner {
        "half a head" => client.send("GET / HTTP/1.1\r\nhost:").await,
        "half a body" => {
            client.send("POST /echo HTTP/1.1\r\nhost: s\r\ncontent-length: 9\r\n\r\nx").await;
        }
        "reads nothing" => client.get("/large").await,
        "idle" => {
            client.get("/").await;
            client.read_some().await;
        }
        _ => {}
    }
    client
}

/// Another address buys, on a new connection each time, and keeps some of them.
async fn others_get_in(server: &Server, times: usize, kept_max: usize, manner: &str) {
    let mut kept = Vec::new();
    for n in 0..times {
        let mut buyer = Client(connect_from("127.0.0.1", server.address).await.unwrap());
        buyer.send(&post_to("/quick", "one")).await;
        let answer = tokio::time::timeout(Duration::from_secs(60), buyer.read_some()).await;
        let answer = answer.unwrap_or_else(|_| panic!("buyer {n} waits, the crowd is {manner}"));
        assert!(answer.ends_with("fast 3;"), "buyer {n}, the crowd is {manner}: {answer}");
        if kept.len() < kept_max {
            kept.push(buyer);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_cannot_lock_out_another_in_any_manner() {
    for manner in MANNERS {
        // An answer that is not read holds megabytes.
        let crowd = if manner == "reads nothing" { 20 } else { 200 };
        let server = Server::start(patient(crowd)).await;
        let mut held = Vec::new();
        for _ in 0..crowd {
            held.push(one_of_the_crowd(&server, manner).await);
        }
        others_get_in(&server, crowd, crowd / 4, manner).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_has_a_share_and_gives_up_its_own_idle_ones() {
    let share = HttpSettings { connections_per_address_max: 3, ..patient(100) };
    let server = Server::start(share.clone()).await;
    let mut idle = one_of_the_crowd(&server, "idle").await;
    let _others =
        [one_of_the_crowd(&server, "silent").await, one_of_the_crowd(&server, "silent").await];
    // The newest takes the place of the idle one.
    let mut newest = one_of_the_crowd(&server, "half a head").await;
    assert_eq!(idle.read_to_end().await.0, "");
    let mut fifth = one_of_the_crowd(&server, "silent").await;
    assert!(fifth.read_to_end().await.0.ends_with("full"), "none of its own is idle");
    newest.send(" s\r\n\r\n").await;
    assert!(newest.read_some().await.ends_with("127.0.0.2"), "and is served");
    others_get_in(&server, 3, 3, "at its share").await;
    // Where everybody comes from one address, nobody's is their own.
    for exempt in [
        HttpSettings { exempt_networks: vec!["127.0.0.0/8".parse().unwrap()], ..share.clone() },
        HttpSettings { proxy_hops: 1, ..share.clone() },
    ] {
        let server = Server::start(exempt).await;
        let mut clients = Vec::new();
        for _ in 0..9 {
            clients.push(one_of_the_crowd(&server, "idle").await);
        }
        for client in &mut clients {
            client.get("/").await;
            client.read_some().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_of_a_crowd_loses_a_request_to_another_of_it() {
    let server = Server::start(patient(2)).await;
    let (mut first, mut second) = (server.client().await, server.client().await);
    for client in [&mut first, &mut second] {
        client.send(&post_to("/wait", "")).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut third = server.client().await;
    assert!(third.read_to_end().await.0.ends_with("full"));
    server.bell.notify_one();
    server.bell.notify_one();
    for client in [&mut first, &mut second] {
        assert!(client.read_some().await.ends_with("fast 0;"));
    }
}

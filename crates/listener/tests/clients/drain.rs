//! What a shutdown does to those who are connected.

use std::time::{Duration, Instant};

use listener::Drained;
use tokio::net::TcpStream;

use crate::server::{Server, between, post_to, settings};

#[tokio::test]
async fn an_upgraded_connection_is_not_idle_but_ends_with_the_drain() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    client
        .send("GET /upgrade HTTP/1.1\r\nhost: s\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
        .await;
    assert!(client.read_some().await.starts_with("HTTP/1.1 101"));
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    client.send("hello").await;
    assert_eq!(client.read_some().await, "hello");
    assert_eq!(server.stop().await, Drained { finished: 0, cut: 1 });
    assert_eq!(client.read_to_end().await.0, "");
}

#[tokio::test]
async fn a_drain_finishes_requests_and_closes_idle_connections_at_once() {
    let server = Server::start(settings()).await;
    let (mut idle, mut fresh, mut asking) =
        (server.client().await, server.client().await, server.client().await);
    idle.get("/").await;
    idle.read_some().await;
    asking.get("/slow").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let address = server.address;
    let closing = tokio::spawn(server.stop());
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
    let server = Server::start(settings()).await;
    let (mut stuck, mut half) = (server.client().await, server.client().await);
    stuck.get("/stuck").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    half.send("GET / HTTP/1.1\r\nho").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let began = Instant::now();
    assert_eq!(server.stop().await, Drained { finished: 1, cut: 1 });
    between(began.elapsed(), 900, 2_500);
    assert_eq!(stuck.read_to_end().await.0, "");
    assert_eq!(half.read_to_end().await.0, "");
}

#[tokio::test]
async fn a_drain_with_nobody_there_is_over_at_once() {
    let server = Server::start(settings()).await;
    let began = Instant::now();
    assert_eq!(server.stop().await, Drained { finished: 0, cut: 0 });
    between(began.elapsed(), 0, 600);
}

#[tokio::test]
async fn a_drain_lets_a_request_of_the_fast_path_finish() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    client.send(&post_to("/wait", "x")).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let bell = server.bell.clone();
    let closing = tokio::spawn(server.stop());
    tokio::time::sleep(Duration::from_millis(300)).await;
    bell.notify_one();
    assert!(client.read_to_end().await.0.ends_with("fast 1;"));
    assert_eq!(closing.await.unwrap(), Drained { finished: 1, cut: 0 });
}

#[tokio::test]
async fn a_drain_answers_what_came_behind_a_request_of_the_fast_path() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    client.send(&(post_to("/wait", "x") + "GET / HTTP/1.1\r\nhost: s\r\n\r\n")).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let bell = server.bell.clone();
    let closing = tokio::spawn(server.stop());
    tokio::time::sleep(Duration::from_millis(50)).await;
    bell.notify_one();
    let (answers, _) = client.read_to_end().await;
    assert!(answers.contains("fast 1;") && answers.ends_with("127.0.0.1"), "{answers}");
    assert!(answers.contains("connection: close"), "{answers}");
    assert_eq!(closing.await.unwrap(), Drained { finished: 1, cut: 0 });
}

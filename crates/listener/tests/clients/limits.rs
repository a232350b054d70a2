//! Clients that are slow, too many, or do not read.

use std::time::{Duration, Instant};

use listener::{Drained, HttpSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::server::{Server, between, post_to, settings};

#[tokio::test]
async fn a_client_that_never_finishes_its_head_is_closed() {
    let server = Server::start(settings()).await;
    let mut silent = server.client().await;
    between(silent.read_to_end().await.1, 250, 2_000);
    // One that trickles gains nothing by it.
    let mut slow = server.client().await;
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
async fn a_connection_without_a_request_is_kept_longer_than_a_slow_head_but_not_for_ever() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    client.get("/").await;
    client.read_some().await;
    let (rest, took) = client.read_to_end().await;
    assert_eq!(rest, "");
    between(took, 600, 2_500);
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_cut() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    client.get("/endless").await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    // What the kernel had buffered comes, and then the end of an answer that has none.
    client.read_to_end().await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_all_of_its_answer() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    client.send("GET /large HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n").await;
    let mut bytes = 0;
    let mut some = vec![0; 400_000];
    let began = Instant::now();
    // Longer than the idle time-out in all, and the server stops meanwhile.
    let closing = tokio::spawn(async {
        tokio::time::sleep(Duration::from_millis(900)).await;
        server.stop().await
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
async fn above_the_cap_one_is_told_so() {
    let server = Server::start(HttpSettings { connections_max: 2, ..settings() }).await;
    let (mut first, mut second) = (server.client().await, server.client().await);
    // Both wait for an answer, so that neither gives way.
    first.send(&post_to("/wait", "")).await;
    second.send(&post_to("/wait", "")).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut third = server.client().await;
    third.get("/").await;
    let (answer, _) = third.read_to_end().await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.ends_with("full"), "{answer}");
    server.bell.notify_one();
    server.bell.notify_one();
    assert!(first.read_some().await.ends_with("fast 0;"));
    assert!(second.read_some().await.ends_with("fast 0;"));
    // A connection is at rest a moment after its client has the answer; until then nobody gives way.
    let served = async {
        loop {
            let mut fourth = server.client().await;
            fourth.get("/").await;
            let answer = fourth.read_some().await;
            if answer.starts_with("HTTP/1.1 200") {
                break;
            }
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        }
    };
    tokio::time::timeout(Duration::from_secs(20), served).await.expect("one gives way");
}

#[tokio::test]
async fn a_request_of_the_fast_path_waits_no_longer_than_any_other() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    client.send(&post_to("/wait", "")).await;
    server.bell.notify_one();
    assert!(client.read_some().await.ends_with("fast 0;"));
    let began = Instant::now();
    client.send(&post_to("/wait", "")).await;
    assert!(client.read_some().await.ends_with("given up;"));
    between(began.elapsed(), 450, 2_000);
}

/// A client that leaves and one that only has nothing more to say look the same until they are
/// answered, so the place is free when the decision is there.
#[tokio::test]
async fn who_leaves_during_a_request_of_the_fast_path_gives_up_the_place_with_its_answer() {
    let server = Server::start(HttpSettings { connections_max: 1, ..settings() }).await;
    let mut client = server.client().await;
    client.send(&post_to("/wait", "")).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(client);
    server.bell.notify_one();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut next = server.client().await;
    next.send(&post_to("/quick", "")).await;
    assert!(next.read_some().await.ends_with("fast 0;"));
}

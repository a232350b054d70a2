//! One connection, two paths: a request means the same on either.

use std::time::Duration;

use crate::server::{Server, post_to, settings};

#[tokio::test]
async fn requests_are_answered_on_one_connection_with_the_clients_address() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    for _ in 0..3 {
        client.get("/").await;
        let answer = client.read_some().await;
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("127.0.0.1"), "{answer}");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    let slow = "GET /slow HTTP/1.1\r\nhost: s\r\n\r\n";
    let last = "GET /nowhere HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n";
    client.send(&format!("{slow}{last}")).await;
    let (answers, _) = client.read_to_end().await;
    let (done, nowhere) = (answers.find("done").unwrap(), answers.find("404").unwrap());
    assert!(done < nowhere, "{answers}");
}

#[tokio::test]
async fn a_connection_changes_between_the_fast_path_and_the_router() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    for n in 0..3 {
        client.send(&post_to("/quick", &"x".repeat(n))).await;
        assert!(client.read_some().await.ends_with(&format!("fast {n};")));
        client.get("/").await;
        assert!(client.read_some().await.ends_with("127.0.0.1"));
        client.send(&post_to("/quick", "again")).await;
        assert!(client.read_some().await.ends_with("fast 5;"));
    }
}

#[tokio::test]
async fn pipelined_requests_of_both_kinds_are_answered_in_order() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    let slow = "GET /slow HTTP/1.1\r\nhost: s\r\n\r\n".to_owned();
    let last = "GET / HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n".to_owned();
    let parts = [post_to("/quick", "1"), post_to("/quick", "22"), slow, post_to("/quick", "333")];
    client.send(&(parts.concat() + &last)).await;
    let (answers, _) = client.read_to_end().await;
    let places: Vec<usize> = ["fast 1;", "fast 2;", "done", "fast 3;", "127.0.0.1"]
        .iter()
        // Behind a request of the router hyper may have read the next one already; it then answers it.
        .map(|answer| answers.find(answer).or_else(|| answers.find("router 3;")).unwrap())
        .collect();
    assert!(places.is_sorted(), "{answers}");
}

#[tokio::test]
async fn what_is_not_plain_goes_to_the_router_and_means_the_same() {
    let server = Server::start(settings()).await;
    for (fields, body) in [
        ("content-length: 4\r\nconnection: close\r\n", "four"),
        ("transfer-encoding: chunked\r\n", "4\r\nfour\r\n0\r\n\r\n"),
        ("expect: 100-continue\r\ncontent-length: 4\r\n", "four"),
    ] {
        let mut client = server.client().await;
        client.send(&format!("POST /quick HTTP/1.1\r\nhost: s\r\n{fields}\r\n{body}")).await;
        let mut answer = client.read_some().await;
        while !answer.contains("router 4;") {
            answer += &client.read_some().await;
        }
    }
    // One whose body comes later is the router's as well.
    let mut client = server.client().await;
    client.send("POST /quick HTTP/1.1\r\nhost: s\r\ncontent-length: 4\r\n\r\n").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.send("four").await;
    assert!(client.read_some().await.ends_with("router 4;"));
    client.send(&post_to("/quick", "four")).await;
    assert!(client.read_some().await.ends_with("fast 4;"));
    // Two lengths are a trick.
    let two =
        "POST /quick HTTP/1.1\r\nhost: s\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nfour";
    client.send(two).await;
    assert!(client.read_some().await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn an_answer_does_not_wait_for_the_one_behind_it() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    client.send(&(post_to("/quick", "x") + &post_to("/wait", "yy"))).await;
    assert!(client.read_some().await.ends_with("fast 1;"));
    server.bell.notify_one();
    assert!(client.read_some().await.ends_with("fast 2;"));
}

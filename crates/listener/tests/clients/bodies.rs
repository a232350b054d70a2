//! Bodies that come late, in pieces, or that nobody reads.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::server::{Server, between, post_to, settings};

#[tokio::test]
async fn a_body_that_trickles_is_told_so_and_closed() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    client.send("POST /echo HTTP/1.1\r\nhost: s\r\ncontent-length: 50\r\n\r\n{").await;
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
    between(began.elapsed(), 250, 2_000);
    trickle.abort();
}

#[tokio::test]
async fn a_body_that_is_too_long_gets_413() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    client.send(&post_to("/echo", &"1".repeat(2_000))).await;
    let answer = client.read_some().await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn bytes_that_a_handler_left_unread_are_never_taken_for_a_request() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    // The router refuses this body unread; in it hides a request.
    let hidden = post_to("/quick", "hidden");
    let body = format!("{}{hidden}", " ".repeat(2_000));
    client.send(&post_to("/nowhere", &body)).await;
    let (answers, _) = client.read_to_end().await;
    assert!(answers.starts_with("HTTP/1.1 404") && !answers.contains("fast"), "{answers}");
}

#[tokio::test]
async fn a_body_that_nobody_reads_and_that_comes_late_costs_no_connection() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    for _ in 0..3 {
        client.send("POST /ignores HTTP/1.1\r\nhost: s\r\ncontent-length: 2\r\n\r\n").await;
        // The handler has answered without it.
        server.bell.notified().await;
        client.send("{}").await;
        let answer = client.read_some().await;
        assert!(answer.ends_with("ignored") && !answer.contains("connection"), "{answer}");
    }
    client.send(&post_to("/quick", "four")).await;
    assert!(client.read_some().await.ends_with("fast 4;"));
}

#[tokio::test]
async fn a_body_that_nobody_reads_is_not_waited_for_for_ever() {
    let server = Server::start(settings()).await;
    for (head, from_ms) in [
        // It does not come.
        ("content-length: 2", 250),
        // Too much to read for nothing, or not sent before it is asked for.
        ("content-length: 2000", 0),
        ("content-length: 2\r\nexpect: 100-continue", 0),
    ] {
        let mut client = server.client().await;
        client.send(&format!("POST /ignores HTTP/1.1\r\nhost: s\r\n{head}\r\n\r\n")).await;
        let (answer, took) = client.read_to_end().await;
        assert!(answer.ends_with("ignored") && answer.contains("connection: close"), "{answer}");
        between(took, from_ms, 2_000);
    }
}

#[tokio::test]
async fn chunked_requests_keep_their_connection_and_hide_nothing() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
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
    for (behind, found) in
        [(post_to("/quick", "four"), "fast 4;"), ("GET / HTTP/1.1\r\n\r\n".into(), "BadRequest")]
    {
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
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    client.send(&post_to("/wait", "x")).await;
    client.0.shutdown().await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.bell.notify_one();
    assert!(client.read_to_end().await.0.ends_with("fast 1;"));
    let head = "POST /quick HTTP/1.1\r\nhost: s\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunked = format!("{head}4\r\nfour\r\n0\r\n\r\n");
    for (request, end) in [
        ("GET /slow HTTP/1.1\r\nhost: s\r\n\r\n".to_owned(), "done"),
        ("GET /slow HTTP/1.0\r\n\r\n".into(), "done"),
        (chunked, "router 4;"),
        (post_to("/quick", "four") + &post_to("/quick", "fives"), "fast 5;"),
    ] {
        let mut client = server.client().await;
        client.send(&request).await;
        client.0.shutdown().await.unwrap();
        let (answer, _) = client.read_to_end().await;
        assert!(answer.ends_with(end), "{request:?}: {answer}");
    }
    // A body that is cut off is no request.
    let mut client = server.client().await;
    client.send("POST /quick HTTP/1.1\r\nhost: s\r\ncontent-length: 9\r\n\r\nfour").await;
    client.0.shutdown().await.unwrap();
    assert!(!client.read_to_end().await.0.contains("router"));
}

#[tokio::test]
async fn an_endless_answer_ends_with_its_client() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    client.get("/events").await;
    assert!(client.read_some().await.starts_with("HTTP/1.1 200"));
    drop(client);
    let left = server.bell.notified();
    tokio::time::timeout(Duration::from_secs(5), left).await.expect("nobody noticed");
}

//! Heads that make no sense.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::server::{Server, between, settings};

#[tokio::test]
async fn broken_http_gets_400() {
    let server = Server::start(settings()).await;
    for nonsense in ["nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02\r\n\r\n"] {
        let mut client = server.client().await;
        client.send(nonsense).await;
        let (answer, took) = client.read_to_end().await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{nonsense:?}: {answer}");
        between(took, 0, 1_000);
    }
}

#[tokio::test]
async fn a_head_that_is_too_long_gets_431() {
    let server = Server::start(settings()).await;
    let mut client = server.client().await;
    let long = format!("GET / HTTP/1.1\r\nhost: s\r\nx-long: {}\r\n\r\n", "x".repeat(9_000));
    let _ = client.0.write_all(long.as_bytes()).await;
    let (answer, _) = client.read_to_end().await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test]
async fn heads_that_make_no_sense_are_refused_whole_or_in_pieces() {
    let server = Server::start(settings()).await;
    let many = "x-many: 1\r\n".repeat(120);
    let many = format!("GET / HTTP/1.1\r\nhost: s\r\n{many}\r\n");
    let long = format!("GET / HTTP/1.1\r\nhost: s\r\nx-long: {}\r\n\r\n", "x".repeat(9_000));
    let quick = |fields: &str| format!("POST /quick HTTP/1.1\r\n{fields}\r\nfour");
    for (request, status, refusal) in [
        ("nonsense\r\n\r\n".to_owned(), 400, "BadRequest"),
        ("GET / HTTP/9.9\r\n\r\n".into(), 400, "BadRequest"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), 400, "BadRequest"),
        ("GET http:// HTTP/1.1\r\nhost: s\r\n\r\n".into(), 400, "BadRequest"),
        ("GET / HTTP/1.1\r\nhost: s\r\n folded: x\r\n\r\n".into(), 400, "BadRequest"),
        ("GET / HTTP/1.1\r\nhost : s\r\n\r\n".into(), 400, "BadRequest"),
        ("GET / HTTP/1.1\r\n\r\n".into(), 400, "BadRequest"),
        ("GET / HTTP/1.1\r\nhost: s\r\nhost: s\r\n\r\n".into(), 400, "BadRequest"),
        (quick("content-length: 4\r\n"), 400, "BadRequest"),
        (quick("host: s\r\nhost: s\r\ncontent-length: 4\r\n"), 400, "BadRequest"),
        (quick("host: s\r\ncontent-length: four\r\n"), 400, "BadRequest"),
        (quick("host: s\r\ncontent-length: 10001\r\n"), 413, "BodyTooLarge"),
        (quick("host: s\r\ncontent-length: 9999999999999999999999\r\n"), 413, "BodyTooLarge"),
        (quick("host: s\r\ncontent-length: 4\r\nexpect: 200-ok\r\n"), 417, "ExpectationFailed"),
        (many, 431, "HeadTooLarge"),
        (long, 431, "HeadTooLarge"),
    ] {
        // Not so many that a slow machine takes them for a slow client.
        for pieces in [request.len(), request.len() / 2 + 1, request.len() / 20 + 1] {
            let mut client = server.client().await;
            client.0.set_nodelay(true).unwrap();
            for piece in request.as_bytes().chunks(pieces) {
                // Who is refused early need not send the rest.
                let _ = client.0.write_all(piece).await;
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
            let (answer, took) = client.read_to_end().await;
            let shown = &request[..request.len().min(80)];
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {answer}");
            for part in ["connection: close\r\n", "x-request-id: ", refusal] {
                assert!(answer.contains(part), "{shown:?}: no {part:?} in {answer}");
            }
            between(took, 0, 1_500);
        }
    }
    // Whoever words the refusal is shown the fields, as far as they can be understood.
    let mut client = server.client().await;
    client.send("GET / HTTP/1.1\r\naccept-language: zh\r\n\r\n").await;
    assert!(client.read_to_end().await.0.contains("BadRequest in zh"));
}

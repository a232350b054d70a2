//! Alerts and the webhook they are posted to, however it behaves.

use std::{collections::BTreeMap, time::Duration};

use orders::{Alert, AlertKind, AlertOptions, Alerts, WebhookState};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
};

use crate::fakes::soon;

/// A webhook on a free port: answers each post with the next status of `answers` (then 200), and
/// passes the bodies on.
pub(crate) async fn webhook(
    answers: Vec<u16>,
) -> (String, mpsc::UnboundedReceiver<serde_json::Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hooks/s3cret", listener.local_addr().unwrap());
    let (tell, posts) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut answers = answers.into_iter();
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut seen = Vec::new();
            let body = loop {
                assert!(socket.read_buf(&mut seen).await.unwrap() > 0, "hung up early");
                let text = String::from_utf8_lossy(&seen).to_lowercase();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length = head.split("content-length: ").nth(1).unwrap();
                let length: usize = length.lines().next().unwrap().parse().unwrap();
                if body.len() >= length {
                    break seen[head.len() + 4..].to_vec();
                }
            };
            let status = answers.next().unwrap_or(200);
            let answer =
                format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            socket.write_all(answer.as_bytes()).await.unwrap();
            let _ = tell.send(serde_json::from_slice(&body).unwrap());
        }
    });
    (url, posts)
}

fn alert(n: i64) -> Alert {
    Alert::new(AlertKind::DeadLetter, "hello", n)
}

#[tokio::test]
async fn a_dead_webhook_never_blocks_and_stopping_does_not_wait_for_it() {
    // Takes connections into its backlog and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let alerts = Alerts::start(AlertOptions {
        webhook_url: Some(format!("http://{}/", silent.local_addr().unwrap())),
        waiting_per_kind_max: 20,
        webhook_timeout_ms: 50,
        ..Default::default()
    });
    for n in 0..1_000 {
        alerts.raise(alert(n));
    }
    while alerts.webhook().failing.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let waiting = alerts.webhook().waiting;
    assert!((20..=21).contains(&waiting), "{waiting} wait, one of them in hand");
    soon(alerts.stop()).await;
}

#[tokio::test]
async fn a_webhook_that_is_away_for_a_while_hears_everything_when_it_is_back() {
    // Out of order for longer than an alert was tried before.
    let (url, mut posts) = webhook(vec![503; 12]).await;
    let alerts = Alerts::start(AlertOptions {
        webhook_url: Some(url),
        waiting_per_kind_max: 2,
        webhook_pause_ms_min: 1,
        webhook_pause_ms_max: 2,
        ..Default::default()
    });
    alerts.raise(alert(0));
    while alerts.webhook().failing.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for n in 1..=5 {
        alerts.raise(alert(n));
    }
    // The tries that were refused are heard, too; each says what it has gathered by then.
    let mut heard = BTreeMap::new();
    while heard.values().map(|more| 1 + more).sum::<u64>() < 6 {
        let post = soon(posts.recv()).await.unwrap();
        heard.insert(post["at_ms"].as_i64().unwrap(), post["more"].as_u64().unwrap());
    }
    assert_eq!(heard.first_key_value(), Some((&0, &0)));
    soon(alerts.stop()).await;
    assert_eq!(alerts.webhook(), WebhookState { is_set: true, failing: None, waiting: 0 });
}

#[tokio::test]
async fn an_alert_that_the_webhook_refuses_does_not_hold_up_the_next() {
    let (url, mut posts) = webhook(vec![400; 3]).await;
    let alerts = Alerts::start(AlertOptions {
        webhook_url: Some(url),
        webhook_refusals_max: 3,
        webhook_pause_ms_min: 1,
        webhook_pause_ms_max: 2,
        ..Default::default()
    });
    alerts.raise(alert(0));
    alerts.raise(alert(1));
    let mut heard = Vec::new();
    for _ in 0..4 {
        heard.push(soon(posts.recv()).await.unwrap()["at_ms"].as_i64().unwrap());
    }
    assert_eq!(heard, [0, 0, 0, 1]);
    soon(alerts.stop()).await;
}

#[tokio::test]
async fn stopping_delivers_what_is_queued() {
    let (url, mut posts) = webhook(vec![]).await;
    let alerts = Alerts::start(AlertOptions {
        webhook_url: Some(url),
        instance: "here".into(),
        ..Default::default()
    });
    for n in 0..3 {
        alerts.raise(alert(n));
    }
    alerts.raise(Alert::new(AlertKind::GateDown, "over", 3).since(1).resolved());
    soon(alerts.stop()).await;
    for n in 0..3 {
        let post = soon(posts.recv()).await.unwrap();
        let todo = AlertKind::DeadLetter.todo();
        let text = format!("[ALERT] dead_letter at here: hello → {todo}");
        assert_eq!(
            post,
            serde_json::json!({"kind": "dead_letter", "state": "raised", "message": "hello",
                "order_no": null, "cause": null, "since_ms": null, "at_ms": n, "more": 0,
                "todo": todo, "instance": "here", "text": text})
        );
    }
    let over = soon(posts.recv()).await.unwrap();
    assert_eq!((&over["state"], &over["since_ms"]), (&"resolved".into(), &1.into()));
}

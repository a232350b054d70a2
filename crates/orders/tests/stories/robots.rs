//! Robots of chat services, each played by a stand-in that takes only what the real one takes.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use orders::{Alert, AlertKind, AlertOptions, Alerts, Robot, RobotKind};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
};

use crate::fakes::soon;

const SECRET: &str = "SEC of the robot";

fn signed(key: &str, text: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    STANDARD.encode(mac.finalize().into_bytes())
}

fn is_now(text: &str, in_a_second: u128) {
    let then: u128 = text.parse().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    assert!((then * 1_000 / in_a_second).abs_diff(now) < 60_000, "{text}");
}

/// The line of text, if the post is exactly what a robot of this kind takes.
fn read(kind: RobotKind, query: &str, mut body: Value) -> String {
    let text = match kind {
        RobotKind::Wecom | RobotKind::Dingtalk => body["text"]["content"].take(),
        RobotKind::Feishu => body["content"]["text"].take(),
        RobotKind::Slack | RobotKind::Json => body["text"].take(),
    };
    let text = text.as_str().unwrap().to_owned();
    match kind {
        RobotKind::Wecom => {
            assert_eq!(query, "key=k1");
            assert_eq!(body, json!({"msgtype": "text", "text": {"content": null}}));
        }
        RobotKind::Dingtalk => {
            assert_eq!(body, json!({"msgtype": "text", "text": {"content": null}}));
            let [key, timestamp, sign] = query.split('&').collect::<Vec<_>>()[..] else {
                panic!("{query}")
            };
            let timestamp = timestamp.strip_prefix("timestamp=").unwrap();
            is_now(timestamp, 1_000);
            let sign = sign.strip_prefix("sign=").unwrap();
            let sign = sign.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=");
            assert_eq!((key, sign), ("key=k1", signed(SECRET, &format!("{timestamp}\n{SECRET}"))));
        }
        RobotKind::Feishu => {
            let timestamp = body["timestamp"].take();
            let timestamp = timestamp.as_str().unwrap();
            is_now(timestamp, 1);
            let sign = signed(&format!("{timestamp}\n{SECRET}"), "");
            let whole = json!({"msg_type": "text", "content": {"text": null}, "timestamp": null,
                "sign": sign});
            assert_eq!(body, whole);
        }
        RobotKind::Slack => assert_eq!(body, json!({"text": null})),
        RobotKind::Json => assert_eq!(body["kind"], "gate_down"),
    }
    text
}

/// Answers 200 with the next of these bodies, the last of them again and again, and passes on what it read.
async fn robot(
    kind: RobotKind,
    answers: &'static [&'static str],
) -> (Robot, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/robot/send?key=k1", listener.local_addr().unwrap());
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        for n in 0.. {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut seen = Vec::new();
            let (query, body) = loop {
                assert!(socket.read_buf(&mut seen).await.unwrap() > 0, "hung up early");
                let text = String::from_utf8_lossy(&seen).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let line = head.lines().next().unwrap().split(' ').nth(1).unwrap();
                let query = line.split_once('?').unwrap().1.to_owned();
                if let Ok(body) = serde_json::from_str::<Value>(body) {
                    break (query, body);
                }
            };
            let text = read(kind, &query, body);
            let said = answers[n.min(answers.len() - 1)];
            let length = said.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{said}"
            );
            socket.write_all(answer.as_bytes()).await.unwrap();
            let _ = tell.send(text);
        }
    });
    let secret = match kind {
        RobotKind::Dingtalk | RobotKind::Feishu => SECRET.to_owned(),
        _ => String::new(),
    };
    (Robot { kind, url, secret }, told)
}

#[tokio::test]
async fn every_robot_is_told_in_its_own_words_and_a_no_in_a_200_is_a_no() {
    let yes_and_no: [(RobotKind, &'static [&'static str], usize); 5] = [
        (RobotKind::Wecom, &[r#"{"errcode":45009,"errmsg":"too fast"}"#, r#"{"errcode":0}"#], 2),
        (
            RobotKind::Dingtalk,
            &[r#"{"errcode":310000,"errmsg":"sign not match"}"#, r#"{"errcode":0}"#],
            2,
        ),
        (RobotKind::Feishu, &[r#"{"code":19021,"msg":"sign match fail"}"#, r#"{"code":0}"#], 2),
        (RobotKind::Slack, &["ok"], 1),
        (RobotKind::Json, &["whatever"], 1),
    ];
    for (kind, answers, posts) in yes_and_no {
        let (robot, mut told) = robot(kind, answers).await;
        let alerts = Alerts::start(AlertOptions {
            robots: vec![robot],
            instance: "here".into(),
            webhook_pause_ms_min: 1,
            webhook_pause_ms_max: 2,
            ..Default::default()
        });
        alerts.raise(Alert::new(AlertKind::GateDown, "the gate is 停了", 1));
        let mut heard = Vec::new();
        for _ in 0..posts {
            heard.push(soon(told.recv()).await.unwrap());
        }
        let text =
            format!("[ALERT] gate_down at here: the gate is 停了 → {}", AlertKind::GateDown.todo());
        assert_eq!(heard, vec![text; posts], "{kind:?}");
        while alerts.webhook().waiting > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(alerts.webhook().failing, None, "{kind:?}");
        soon(alerts.stop()).await;
    }
}

#[tokio::test]
async fn a_robot_that_hangs_keeps_no_other_waiting_and_none_is_told_more_than_it_takes() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hangs = Robot {
        kind: RobotKind::Wecom,
        url: format!("http://{}/", silent.local_addr().unwrap()),
        secret: String::new(),
    };
    let (works, mut told) = robot(RobotKind::Slack, &["ok"]).await;
    let alerts = Alerts::start(AlertOptions {
        robots: vec![hangs, works],
        webhook_timeout_ms: 60_000,
        ..Default::default()
    });
    for n in 0..100 {
        alerts.raise(Alert::new(AlertKind::DeadLetter, format!("letter {n}"), n));
    }
    // A robot takes twenty a minute.
    for _ in 0..18 {
        soon(told.recv()).await.unwrap();
    }
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(told.try_recv().is_err(), "the others wait, and are folded");
    assert!(alerts.webhook().waiting >= 20);
}

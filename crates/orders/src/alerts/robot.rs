//! Who is told of alerts, each in its own words: the operator's webhook, and the robots of chat services.
//!
//! WeCom, DingTalk, Feishu and Slack take a line of text as their own JSON. The first three answer 200 to
//! everything and say in the body whether they took it (`errcode`, or `code` at Feishu). DingTalk and Feishu
//! may ask for a signature: DingTalk in the address, an HMAC-SHA256 with the secret over `timestamp\nsecret`
//! in milliseconds; Feishu in the body, one over nothing with the key `timestamp\nsecret` in seconds.
//!
//! A robot takes twenty messages a minute and is silenced for a while if more come, so that it is told fewer;
//! what waits meanwhile is folded like for a webhook that is slow.

use std::{fmt, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::hmac;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::redacted;

/// What a robot is told in a minute at the most: a few less than it takes.
pub(super) const ROBOT_POSTS_MAX: usize = 18;
pub(super) const ROBOT_POSTS_WITHIN: Duration = Duration::from_secs(60);
/// WeCom takes 2,048 bytes.
const TEXT_BYTES_MAX: usize = 2_000;
/// It was told too much too fast, and will take it later: WeCom, DingTalk, Feishu.
const TOO_FAST: [i64; 5] = [45_009, 130_101, 410_100, 9_499, 11_232];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RobotKind {
    /// The alert itself as JSON, to whoever reads that.
    Json,
    Wecom,
    Dingtalk,
    Feishu,
    Slack,
}

impl RobotKind {
    pub const ALL: [RobotKind; 5] = [
        RobotKind::Json,
        RobotKind::Wecom,
        RobotKind::Dingtalk,
        RobotKind::Feishu,
        RobotKind::Slack,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            RobotKind::Json => "json",
            RobotKind::Wecom => "wecom",
            RobotKind::Dingtalk => "dingtalk",
            RobotKind::Feishu => "feishu",
            RobotKind::Slack => "slack",
        }
    }
}

/// Somebody who is told of alerts. The address carries a key, and so is shown without its path.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Robot {
    pub kind: RobotKind,
    pub url: String,
    /// What DingTalk and Feishu want to be signed with, if they do.
    #[serde(default)]
    pub secret: String,
}

impl fmt::Debug for Robot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.kind.as_str(), redacted(&self.url))
    }
}

/// What is posted, and where.
pub(super) struct Message {
    pub(super) url: String,
    pub(super) body: Vec<u8>,
}

/// What an answer of 200 says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Taken,
    /// It would say so again.
    Refused(String),
    Later(String),
}

impl Robot {
    /// `whole` is the alert as JSON, `text` the line of it.
    pub(super) fn message(&self, whole: &[u8], text: &str, now_ms: u128) -> Message {
        let (text, plain) = (shortened(text), self.url.clone());
        let (url, body) = match self.kind {
            RobotKind::Json => return Message { url: plain, body: whole.to_vec() },
            RobotKind::Wecom => (plain, json!({"msgtype": "text", "text": {"content": text}})),
            RobotKind::Dingtalk => {
                (self.dingtalk_url(now_ms), json!({"msgtype": "text", "text": {"content": text}}))
            }
            RobotKind::Feishu => (plain, self.feishu_body(text, now_ms / 1_000)),
            RobotKind::Slack => (plain, json!({"text": text})),
        };
        Message { url, body: body.to_string().into_bytes() }
    }

    fn dingtalk_url(&self, now_ms: u128) -> String {
        if self.secret.is_empty() {
            return self.url.clone();
        }
        let signed = signature(self.secret.as_bytes(), &format!("{now_ms}\n{}", self.secret));
        // Of the characters of base64 three mean something else in an address.
        let signed = signed.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
        let and = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{and}timestamp={now_ms}&sign={signed}", self.url)
    }

    fn feishu_body(&self, text: &str, now_s: u128) -> Value {
        let mut body = json!({"msg_type": "text", "content": {"text": text}});
        if !self.secret.is_empty() {
            let key = format!("{now_s}\n{}", self.secret);
            body["timestamp"] = now_s.to_string().into();
            body["sign"] = signature(key.as_bytes(), "").into();
        }
        body
    }

    /// Reads the body of an answer whose status is good.
    pub(super) fn said(&self, body: &[u8]) -> Said {
        let code = match self.kind {
            RobotKind::Json | RobotKind::Slack => return Said::Taken,
            RobotKind::Wecom | RobotKind::Dingtalk => "errcode",
            RobotKind::Feishu => "code",
        };
        let answer: Value = serde_json::from_slice(body).unwrap_or_default();
        let why = answer["errmsg"].as_str().or(answer["msg"].as_str()).unwrap_or_default();
        match answer[code].as_i64() {
            Some(0) => Said::Taken,
            Some(number) if TOO_FAST.contains(&number) => {
                Said::Later(format!("{code} {number} {why}"))
            }
            Some(number) => Said::Refused(format!("{code} {number} {why}")),
            None => Said::Later(format!("the answer has no {code}")),
        }
    }

    pub(super) fn has_limit(&self) -> bool {
        self.kind != RobotKind::Json
    }
}

fn signature(key: &[u8], text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    STANDARD.encode(hmac::sign(&key, text.as_bytes()))
}

/// As many whole characters as fit.
fn shortened(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn robot(kind: RobotKind, secret: &str) -> Robot {
        Robot { kind, url: "https://robots.example/send?key=k1".into(), secret: secret.into() }
    }

    fn told(robot: &Robot) -> (String, Value) {
        let Message { url, body } =
            robot.message(b"{\"kind\":\"x\"}", "[ALERT] x", 1_600_000_000_123);
        (url, serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn each_is_told_in_its_own_words() {
        let plain = "https://robots.example/send?key=k1".to_owned();
        let text = json!({"msgtype": "text", "text": {"content": "[ALERT] x"}});
        for (kind, body) in [
            (RobotKind::Json, json!({"kind": "x"})),
            (RobotKind::Wecom, text.clone()),
            (RobotKind::Dingtalk, text.clone()),
            (RobotKind::Feishu, json!({"msg_type": "text", "content": {"text": "[ALERT] x"}})),
            (RobotKind::Slack, json!({"text": "[ALERT] x"})),
        ] {
            assert_eq!(told(&robot(kind, "")), (plain.clone(), body), "{kind:?}");
        }
    }

    /// Computed apart from this code, by Python's hmac as in the services' own examples.
    #[test]
    fn signatures_are_those_of_the_services() {
        let (url, _) = told(&robot(RobotKind::Dingtalk, "SEC123"));
        assert_eq!(
            url,
            concat!(
                "https://robots.example/send?key=k1&timestamp=1600000000123",
                "&sign=mnHyazLEWmIW1rYyZSn4Jc4VbwT9ulD7BgTRQSsLbfI%3D"
            )
        );
        let (_, body) = told(&robot(RobotKind::Feishu, "s3cret"));
        assert_eq!(
            (&body["timestamp"], &body["sign"]),
            (&json!("1600000000"), &json!("t/Kln3HGSysliALPpDyyrPh+BJw2Vav9/BQ73tDHNuU="))
        );
    }

    #[test]
    fn two_hundred_with_a_code_is_no_yes() {
        let wecom = robot(RobotKind::Wecom, "");
        assert_eq!(wecom.said(br#"{"errcode":0,"errmsg":"ok"}"#), Said::Taken);
        let refused = wecom.said(br#"{"errcode":93000,"errmsg":"invalid webhook url"}"#);
        assert_eq!(refused, Said::Refused("errcode 93000 invalid webhook url".into()));
        assert!(matches!(wecom.said(br#"{"errcode":45009}"#), Said::Later(_)));
        assert!(matches!(wecom.said(b"<html>a proxy"), Said::Later(_)));
        let feishu = robot(RobotKind::Feishu, "");
        assert_eq!(feishu.said(br#"{"code":0,"msg":"success"}"#), Said::Taken);
        assert!(matches!(
            feishu.said(br#"{"code":19021,"msg":"sign match fail"}"#),
            Said::Refused(_)
        ));
        assert_eq!(robot(RobotKind::Slack, "").said(b"ok"), Said::Taken);
    }

    #[test]
    fn keys_and_secrets_are_not_shown_and_long_texts_are_cut_between_characters() {
        let shown = format!("{:?}", robot(RobotKind::Dingtalk, "SEC123"));
        assert_eq!(shown, "dingtalk at https://robots.example/…");
        let long = "秒".repeat(1_000);
        assert_eq!(shortened(&long).len(), 1_998);
    }
}

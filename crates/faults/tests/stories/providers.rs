//! The companies' stand-ins speak as the public documents say. The merchant here is written with openssl, so
//! that neither the stand-in's cryptography nor the product's is believed without proof.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use faults::providers::{Alipay, Faults, Forgery, Mood, Paying, StandIn, WeChat};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// What openssl makes of this input.
fn openssl(args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut running = Command::new("openssl")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    running.stdin.take().unwrap().write_all(input).unwrap();
    running.wait_with_output().unwrap().stdout
}

fn signature(key: &Path, message: &[u8]) -> String {
    let signed = openssl(&["dgst", "-sha256", "-sign", key.to_str().unwrap()], message);
    String::from_utf8(openssl(&["base64", "-A"], &signed)).unwrap()
}

fn is_signed_by(public: &Path, message: &[u8], signature: &str) -> bool {
    let folder = tempfile();
    let file = folder.join("signature");
    fs::write(&file, openssl(&["base64", "-A", "-d"], signature.as_bytes())).unwrap();
    let (public, file) = (public.to_str().unwrap(), file.to_str().unwrap());
    let said = openssl(&["dgst", "-sha256", "-verify", public, "-signature", file], message);
    String::from_utf8_lossy(&said).contains("Verified OK")
}

fn tempfile() -> std::path::PathBuf {
    let name = faults::services::unique_name("signature");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

struct Heard {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Heard {
    fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(this, _)| this.eq_ignore_ascii_case(name)).unwrap().1
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// One request; `None` if the connection was cut without an answer, or with half of one.
fn send(url: &str, method: &str, target: &str, headers: &str, body: &str) -> Option<Heard> {
    let address: SocketAddr = url.strip_prefix("http://").unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nhost: h\r\nuser-agent: test\r\ncontent-length: {length}\r\n\
         {headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = Vec::new();
    let mut piece = [0; 4_096];
    loop {
        if let Some(end) = text.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(text[..end].to_vec()).unwrap();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().unwrap());
            if text.len() >= end + 4 + length {
                let _ = stream.shutdown(Shutdown::Both);
                let status = head[9..12].parse().unwrap();
                return Some(Heard { status, head, body: text[end + 4..].to_vec() });
            }
        }
        match stream.read(&mut piece) {
            Ok(read) if read > 0 => text.extend(&piece[..read]),
            _ => return None,
        }
    }
}

fn now_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_secs()
}

fn authorization(wechat: &StandIn<WeChat>, method: &str, target: &str, body: &str) -> String {
    let merchant = wechat.merchant();
    let (mchid, serial, now_s) = (&wechat.mchid, &merchant.serial, now_s());
    let message = format!("{method}\n{target}\n{now_s}\nNONCE\n{body}\n");
    let signature = signature(&merchant.key.private, message.as_bytes());
    format!(
        "authorization: WECHATPAY2-SHA256-RSA2048 mchid=\"{mchid}\",nonce_str=\"NONCE\",\
         signature=\"{signature}\",timestamp=\"{now_s}\",serial_no=\"{serial}\"\r\n\
         accept: application/json\r\ncontent-type: application/json\r\n"
    )
}

fn ask(wechat: &StandIn<WeChat>, method: &str, target: &str, body: &Value) -> Option<Heard> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    send(&wechat.url(), method, target, &authorization(wechat, method, target, &body), &body)
}

fn order(wechat: &WeChat, no: &str, notify_url: &str) -> Value {
    json!({"appid": wechat.appid, "mchid": wechat.mchid, "description": "茶", "out_trade_no": no,
        "notify_url": notify_url, "amount": {"total": 699_900, "currency": "CNY"}})
}

/// A shop that hears notices and answers as it is told.
fn shop(answer: &'static str) -> (String, mpsc::Receiver<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/notify", listener.local_addr().unwrap());
    let (heard, notices) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut text = Vec::new();
            let mut piece = [0; 4_096];
            let (head, body) = loop {
                let read = stream.read(&mut piece).unwrap();
                text.extend(&piece[..read]);
                let whole = String::from_utf8_lossy(&text).into_owned();
                let Some((head, body)) = whole.split_once("\r\n\r\n") else { continue };
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if body.len() >= length.unwrap().parse().unwrap() {
                    break (head.to_owned(), body.to_owned());
                }
            };
            let _ = stream.write_all(answer.as_bytes());
            let _ = stream.shutdown(Shutdown::Write);
            if heard.send((head, body)).is_err() {
                return;
            }
        }
    });
    (url, notices)
}

const TAKEN: &str = "HTTP/1.1 204 No\r\n\r\n";
const SUCCESS: &str = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nsuccess";
const FAILED: &str = "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n";

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    head.lines().filter_map(|line| line.split_once(": ")).find(|(this, _)| *this == name).unwrap().1
}

#[test]
fn wechat_signs_its_answers_and_believes_only_its_merchant() {
    let wechat = StandIn::<WeChat>::start(1).unwrap();
    let body = order(&wechat, "SK20261118000001", "http://127.0.0.1:1/notify");
    let opened = ask(&wechat, "POST", "/v3/pay/transactions/native", &body).unwrap();
    assert_eq!(opened.status, 200, "{}", opened.json());
    let code = opened.json()["code_url"].as_str().unwrap().to_owned();
    assert_eq!(wechat.order_of_code(&code).as_deref(), Some("SK20261118000001"));
    let (time, nonce) = (opened.header("Wechatpay-Timestamp"), opened.header("Wechatpay-Nonce"));
    let message = [format!("{time}\n{nonce}\n").as_bytes(), &opened.body, b"\n"].concat();
    let platform = wechat.platform();
    assert_eq!(opened.header("Wechatpay-Serial"), platform.serial);
    let signed = opened.header("Wechatpay-Signature");
    assert!(is_signed_by(&platform.key.public, &message, signed));
    assert!(wechat.complaints().is_empty());

    // Any other byte, and any other key, is refused, and nothing is done.
    let other = order(&wechat, "SK20261118000002", "http://127.0.0.1:1/notify").to_string();
    let target = "/v3/pay/transactions/native";
    let right = authorization(&wechat, "POST", target, &other);
    let changed = other.replace("699900", "1");
    for (target, headers, body) in [
        (target, right.as_str(), changed.as_str()),
        ("/v3/pay/transactions/h5", right.as_str(), other.as_str()),
        (target, "content-type: application/json\r\n", other.as_str()),
    ] {
        let refused = send(&wechat.url(), "POST", target, headers, body).unwrap();
        assert_eq!((refused.status, &refused.json()["code"]), (401, &json!("SIGN_ERROR")));
    }
    assert!(!wechat.knows("SK20261118000002"));
    assert_eq!(wechat.complaints().len(), 3);
}

#[test]
fn wechat_asks_closes_and_gives_back() {
    let wechat = StandIn::<WeChat>::start(1).unwrap();
    let (url, notices) = shop(TAKEN);
    let target =
        |no: &str| format!("/v3/pay/transactions/out-trade-no/{no}?mchid={}", wechat.mchid);
    let state = |no: &str| {
        let told = ask(&wechat, "GET", &target(no), &Value::Null).unwrap().json();
        told["trade_state"].as_str().or(told["code"].as_str()).unwrap().to_owned()
    };
    assert_eq!(state("SK0000001"), "ORDER_NOT_EXIST");
    for no in ["SK0000001", "SK0000002"] {
        let body = order(&wechat, no, &url);
        assert_eq!(ask(&wechat, "POST", "/v3/pay/transactions/native", &body).unwrap().status, 200);
        assert_eq!(state(no), "NOTPAY");
    }
    let close = |no: &str| {
        let target = format!("/v3/pay/transactions/out-trade-no/{no}/close");
        ask(&wechat, "POST", &target, &json!({"mchid": wechat.mchid})).unwrap().status
    };
    assert_eq!(close("SK0000001"), 204);
    assert_eq!(state("SK0000001"), "CLOSED");
    assert!(wechat.pay("SK0000001", Paying::Now).is_err());
    wechat.pay("SK0000002", Paying::Now).unwrap();
    assert_eq!(state("SK0000002"), "SUCCESS");
    assert_eq!(close("SK0000002"), 400);

    // The notice, opened with the key that both know.
    let (head, body) = notices.recv_timeout(PATIENCE).unwrap();
    let (time, nonce) = (header(&head, "Wechatpay-Timestamp"), header(&head, "Wechatpay-Nonce"));
    let message = format!("{time}\n{nonce}\n{body}\n");
    let signed = header(&head, "Wechatpay-Signature");
    assert!(is_signed_by(&wechat.platform().key.public, message.as_bytes(), signed));
    let event: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(event["event_type"], "TRANSACTION.SUCCESS");
    assert_eq!(event["resource"]["algorithm"], "AEAD_AES_256_GCM");

    let bill = wechat.bill();
    assert_eq!((bill.len(), bill[0].amount, bill[0].refunded), (1, 699_900, 0));
    let refund = |number: &str, sum: i64| {
        let body = json!({"transaction_id": bill[0].txn, "out_refund_no": number,
            "amount": {"refund": sum, "total": 699_900, "currency": "CNY"}});
        ask(&wechat, "POST", "/v3/refund/domestic/refunds", &body).unwrap()
    };
    let done = refund("R1", 699_900);
    assert_eq!((done.status, &done.json()["status"]), (200, &json!("SUCCESS")));
    assert_eq!(refund("R1", 699_900).json()["refund_id"], done.json()["refund_id"]);
    assert_eq!(refund("R2", 1).status, 403, "not more than was paid");
    assert_eq!(state("SK0000002"), "REFUND");
    assert_eq!(wechat.bill()[0].refunded, 699_900);
}

#[test]
fn wechat_signs_by_what_it_is_asked_for_and_offers_new_certificates() {
    let wechat = StandIn::<WeChat>::start(1).unwrap();
    let old = wechat.platform().serial.clone();
    let new = wechat.rotate_platform().unwrap().serial.clone();
    assert_ne!(old, new);
    let asked = |serial: &str| {
        let target = "/v3/certificates";
        let headers = authorization(&wechat, "GET", target, "");
        let headers = format!("{headers}wechatpay-serial: {serial}\r\n");
        send(&wechat.url(), "GET", target, &headers, "").unwrap()
    };
    assert_eq!(asked("").header("Wechatpay-Serial"), new);
    assert_eq!(asked(&old).header("Wechatpay-Serial"), old);
    let (id, _) = wechat.public_key();
    assert_eq!(asked(&id).header("Wechatpay-Serial"), id);
    wechat.sign_by_public_key(true);
    assert_eq!(asked("").header("Wechatpay-Serial"), id);
    let offered = asked("").json();
    let offered: Vec<&str> = offered["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["serial_no"].as_str().unwrap())
        .collect();
    assert_eq!(offered, [old.as_str(), new.as_str()]);
    // A merchant with a new key, and nobody believes the old one.
    let before = authorization(&wechat, "GET", "/v3/certificates", "");
    wechat.rotate_merchant().unwrap();
    wechat.forget_old_merchants();
    assert_eq!(asked("").status, 200);
    assert_eq!(send(&wechat.url(), "GET", "/v3/certificates", &before, "").unwrap().status, 401);
}

/// Fields signed by the application's key.
fn gateway(alipay: &StandIn<Alipay>, method: &str, content: &Value, notify_url: &str) -> String {
    let mut all = vec![
        ("app_id", alipay.app_id.clone()),
        ("biz_content", content.to_string()),
        ("charset", "utf-8".into()),
        ("method", method.into()),
        ("notify_url", notify_url.into()),
        ("sign_type", "RSA2".into()),
        ("timestamp", "2026-11-18 20:00:00".into()),
        ("version", "1.0".into()),
    ];
    all.retain(|(_, value)| !value.is_empty());
    let message: Vec<String> = all.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let sign = signature(&alipay.app().key.private, message.join("&").as_bytes());
    all.push(("sign", sign));
    let encode =
        |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02X}")).collect() };
    let pairs: Vec<String> =
        all.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
    pairs.join("&")
}

/// The node of the answer, whose text openssl believes.
fn call(alipay: &StandIn<Alipay>, method: &str, content: &Value, notify_url: &str) -> Value {
    let kind = "content-type: application/x-www-form-urlencoded;charset=utf-8\r\n";
    let form = gateway(alipay, method, content, notify_url);
    let heard = send(&alipay.url(), "POST", "/gateway.do", kind, &form).unwrap();
    let text = String::from_utf8(heard.body).unwrap();
    let name = format!("\"{}_response\":", method.replace('.', "_"));
    let start = text.find(&name).unwrap() + name.len();
    let node = &text[start..text.rfind(",\"sign\"").unwrap()];
    let whole: Value = serde_json::from_str(&text).unwrap();
    let sign = whole["sign"].as_str().unwrap();
    // Over the text with the slashes escaped, or before they were.
    let plain = node.replace("\\/", "/");
    let is_over = |text: &str| is_signed_by(&alipay.own().key.public, text.as_bytes(), sign);
    assert!(is_over(node) || is_over(&plain), "{text}");
    serde_json::from_str(node).unwrap()
}

#[test]
fn alipay_knows_no_trade_before_its_buyer_comes() {
    let alipay = StandIn::<Alipay>::start(1).unwrap();
    let (url, notices) = shop(SUCCESS);
    let content = json!({"out_trade_no": "SK1", "total_amount": "6999.00", "subject": "茶"});
    let opened = call(&alipay, "alipay.trade.precreate", &content, &url);
    assert_eq!((&opened["code"], opened["qr_code"].is_string()), (&json!("10000"), true));
    let about = json!({"out_trade_no": "SK1"});
    for method in ["alipay.trade.query", "alipay.trade.close"] {
        assert_eq!(call(&alipay, method, &about, "")["sub_code"], "ACQ.TRADE_NOT_EXIST");
    }
    alipay.pay("SK1", Paying::Now).unwrap();
    let (_, body) = notices.recv_timeout(PATIENCE).unwrap();
    assert!(body.contains("trade_status=TRADE_SUCCESS") && body.contains("total_amount=6999.00"));
    let paid = call(&alipay, "alipay.trade.query", &about, "");
    assert_eq!(
        (&paid["trade_status"], &paid["total_amount"]),
        (&json!("TRADE_SUCCESS"), &json!("6999.00"))
    );
    assert_eq!(call(&alipay, "alipay.trade.close", &about, "")["code"], "40004");
    let back =
        json!({"trade_no": paid["trade_no"], "refund_amount": "6999.00", "out_request_no": "R1"});
    assert_eq!(call(&alipay, "alipay.trade.refund", &back, "")["fund_change"], "Y");
    assert_eq!(call(&alipay, "alipay.trade.refund", &back, "")["fund_change"], "N");
    let asked = call(&alipay, "alipay.trade.fastpay.refund.query", &back, "");
    assert_eq!(asked["refund_status"], "REFUND_SUCCESS");
    let closed = call(&alipay, "alipay.trade.query", &about, "");
    assert_eq!(
        (&closed["trade_status"], closed["send_pay_date"].is_string()),
        (&json!("TRADE_CLOSED"), true)
    );
    let (_, body) = notices.recv_timeout(PATIENCE).unwrap();
    assert!(body.contains("trade_status=TRADE_CLOSED") && body.contains("refund_fee=6999.00"));
    assert!(alipay.complaints().is_empty(), "{:?}", alipay.complaints());
}

#[test]
fn alipay_lets_a_browser_in_only_with_what_the_application_signed() {
    let alipay = StandIn::<Alipay>::start(1).unwrap();
    let content = json!({"out_trade_no": "SK1", "total_amount": "0.01", "subject": "tea",
        "product_code": "FAST_INSTANT_TRADE_PAY"});
    let form = gateway(&alipay, "alipay.trade.page.pay", &content, "");
    let url = format!("{}/gateway.do?{form}", alipay.url());
    let changed = url.replace("%30%2E%30%31", "%30%2E%30%32");
    assert_ne!(url, changed);
    assert!(alipay.visit(&changed).unwrap_err().contains("isv.invalid-signature"));
    assert_eq!(alipay.visit(&url).unwrap(), "SK1");
    assert_eq!(
        call(&alipay, "alipay.trade.query", &json!({"out_trade_no": "SK1"}), "")["trade_status"],
        "WAIT_BUYER_PAY"
    );
    let bad = json!({"out_trade_no": "SK2", "total_amount": "1", "subject": "tea"});
    assert_eq!(
        call(&alipay, "alipay.trade.precreate", &bad, "")["sub_code"],
        "ACQ.INVALID_PARAMETER"
    );
    assert_eq!(alipay.complaints().len(), 2);
}

#[test]
fn a_notice_is_repeated_until_it_is_taken() {
    let wechat = StandIn::<WeChat>::start(1).unwrap();
    let (url, notices) = shop(FAILED);
    ask(&wechat, "POST", "/v3/pay/transactions/native", &order(&wechat, "SK0000001", &url))
        .unwrap();
    wechat.pay("SK0000001", Paying::Twice).unwrap();
    let mut nonces = Vec::new();
    for _ in 0..4 {
        let (head, _) = notices.recv_timeout(PATIENCE).unwrap();
        nonces.push(header(&head, "Wechatpay-Nonce").to_owned());
    }
    nonces.dedup();
    assert_eq!(nonces.len(), 4, "each delivery is signed anew");
    assert_eq!(wechat.bill().len(), 2, "charged twice");
}

#[test]
fn moods_and_faults_are_what_they_are_called() {
    let wechat = StandIn::<WeChat>::start(1).unwrap();
    let target = format!("/v3/pay/transactions/out-trade-no/SK0000001?mchid={}", wechat.mchid);
    let asked = || ask(&wechat, "GET", &target, &Value::Null);
    let body = order(&wechat, "SK0000001", "http://127.0.0.1:1/notify");
    wechat.set_faults(Faults { answers_lost: 1_000, ..Faults::default() });
    assert!(ask(&wechat, "POST", "/v3/pay/transactions/native", &body).is_none());
    assert!(wechat.knows("SK0000001"), "the work is done");
    wechat.set_faults(Faults { answers_halved: 1_000, ..Faults::default() });
    assert!(asked().is_none());
    wechat.set_faults(Faults { answers_forged: 1_000, ..Faults::default() });
    assert!(asked().unwrap().header("Wechatpay-Signature").starts_with("WECHATPAY/SIGNTEST/"));
    wechat.set_faults(Faults { nonsense: 1_000, ..Faults::default() });
    assert!(asked().unwrap().body.starts_with(b"<html>"));
    wechat.set_faults(Faults { errors: 1_000, ..Faults::default() });
    assert!(asked().unwrap().status >= 429);
    wechat.set_faults(Faults::default());
    wechat.set_mood(Mood::Down);
    assert!(asked().is_none());
    wechat.set_mood(Mood::Babbles);
    assert!(asked().unwrap().body.starts_with(b"<html>"));
    wechat.set_mood(Mood::Hangs);
    thread::scope(|scope| {
        let began = Instant::now();
        let hung = scope.spawn(asked);
        thread::sleep(Duration::from_millis(300));
        assert!(!hung.is_finished());
        wechat.set_mood(Mood::Works);
        assert!(hung.join().unwrap().is_none());
        assert!(began.elapsed() < PATIENCE);
    });
    assert_eq!(asked().unwrap().json()["trade_state"], "NOTPAY");
}

#[test]
fn forgeries_are_forged() {
    let wechat = StandIn::<WeChat>::start(1).unwrap();
    let body = order(&wechat, "SK0000001", "http://127.0.0.1:1/notify");
    ask(&wechat, "POST", "/v3/pay/transactions/native", &body).unwrap();
    wechat.pay("SK0000001", Paying::Now).unwrap();
    let believed = |forgery| {
        let notice = wechat.notice_of("SK0000001", forgery).unwrap();
        let text = |name: &str| {
            let found = notice.headers.iter().find(|(header, _)| header == name);
            found.unwrap().1.clone()
        };
        let (time, nonce) = (text("Wechatpay-Timestamp"), text("Wechatpay-Nonce"));
        let message = [format!("{time}\n{nonce}\n").as_bytes(), &notice.body, b"\n"].concat();
        let public = &wechat.platform().key.public;
        is_signed_by(public, &message, &text("Wechatpay-Signature"))
    };
    assert!(believed(None));
    for forgery in [Forgery::Stranger, Forgery::Corrupted, Forgery::Probe] {
        assert!(!believed(Some(forgery)), "{forgery:?}");
    }
    // These two are refused for what they say.
    assert!(believed(Some(Forgery::Stale)) && believed(Some(Forgery::OtherMerchant)));
}

#[test]
fn bills_of_days_that_are_over_can_be_fetched() {
    let wechat = StandIn::<WeChat>::start(1).unwrap();
    let body = order(&wechat, "SK0000001", "http://127.0.0.1:1/notify");
    ask(&wechat, "POST", "/v3/pay/transactions/native", &body).unwrap();
    wechat.pay("SK0000001", Paying::Now).unwrap();
    let bill = |day: &str| {
        let target = format!("/v3/bill/tradebill?bill_date={day}&bill_type=ALL");
        ask(&wechat, "GET", &target, &Value::Null).unwrap()
    };
    assert_eq!(bill("2020-01-01").json()["code"], "NO_STATEMENT_EXIST");
    wechat.backdate(&wechat.bill()[0].txn, 1_577_880_000_000);
    let told = bill("2020-01-01").json();
    let url = told["download_url"].as_str().unwrap();
    let target = url.strip_prefix(&wechat.url()).unwrap();
    let file = ask(&wechat, "GET", target, &Value::Null).unwrap().body;
    assert!(String::from_utf8_lossy(&file).contains("`SK0000001,"));
    let hash = String::from_utf8(openssl(&["dgst", "-sha1", "-r"], &file)).unwrap();
    assert!(hash.starts_with(told["hash_value"].as_str().unwrap()));
}

//! Alipay against what is published of it, against `openssl`, and against a server that lies.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use http::HeaderMap;
use parking_lot::Mutex;
use proptest::prelude::*;
use sale::{ManualClock, UserId};

use super::{
    gateway::form,
    signing::{Parameters, of_notice, of_request, root_serial, serial},
    *,
};
use crate::{
    NoticeOutcome,
    key_files::read as read_file,
    rsa::{VerifyingKey, certificates},
    test_keys::{TestKey, openssl},
    test_server::{Asked, TestServer},
};

const NOW_MS: i64 = 1_796_126_400_000; // 2026-12-01 20:00:00 in Beijing
const ORDER: &str = "SK0000000000000000042";
const TRADE: &str = "2026120122001400000000000001";
/// In a zip, in GBK: a charge with a comma in its name, its refund, and a file of sums.
const BILL: &[u8] = include_bytes!("../testdata/alipay_bill.zip");

type Says = Box<dyn Fn(&str, &Value) -> Value + Send + Sync>;

struct Company {
    alipay: TestKey,
    app: TestKey,
    root: TestKey,
    dir: tempfile::TempDir,
    /// What it answers to a question about something.
    says: Mutex<Says>,
    /// What is done to an answer on its way.
    on_the_way: Mutex<fn(String) -> String>,
    /// The name of its certificate, if it names one.
    named: Mutex<Option<String>>,
    /// Does it sign its answers before it escapes the slashes in them?
    unescaped: AtomicBool,
}

impl Company {
    fn new() -> Arc<Company> {
        let dir = tempfile::tempdir().unwrap();
        let root = TestKey::make(dir.path(), "root", "7");
        Arc::new(Company {
            alipay: TestKey::signed_by(
                dir.path(),
                "alipay",
                "0x20250312834692C845AD500A5B420D2C",
                &root,
            ),
            app: TestKey::signed_by(dir.path(), "app", "12345678901234567890", &root),
            root,
            dir,
            says: Mutex::new(Box::new(|_, _| no("ACQ.TRADE_NOT_EXIST"))),
            on_the_way: Mutex::new(|text| text),
            named: Mutex::default(),
            unescaped: AtomicBool::new(false),
        })
    }

    fn say(&self, says: impl Fn(&str, &Value) -> Value + Send + Sync + 'static) {
        *self.says.lock() = Box::new(says);
    }

    fn answer(&self, asked: &Asked) -> String {
        let fields: Parameters =
            form_urlencoded::parse(asked.body.as_bytes()).into_owned().collect();
        let about: Value = serde_json::from_str(&fields["biz_content"]).unwrap();
        let method = fields["method"].clone();
        let public = VerifyingKey::from_text(&read_file(&self.app.public_file).unwrap()).unwrap();
        assert!(public.verify(of_request(&fields).as_bytes(), &fields["sign"]), "{fields:?}");
        // As Alipay writes it: with spaces and escapes that nobody would write again.
        let node = self.says.lock()(&method, &about).to_string().replace("\":", "\" : ");
        let escaped = node.replace("https://", "https:\\/\\/");
        let signed = if self.unescaped.load(Ordering::Relaxed) { &node } else { &escaped };
        let signature = self.alipay.key.sign(signed.as_bytes()).unwrap();
        let node = escaped;
        let named = self.named.lock().clone();
        let named = named.map(|name| format!(",\"alipay_cert_sn\":\"{name}\"")).unwrap_or_default();
        let name = method.replace('.', "_");
        format!("{{\"{name}_response\":{node}{named},\"sign\":\"{signature}\"}}")
    }

    async fn serve(self: &Arc<Self>) -> TestServer {
        let company = self.clone();
        let answering = move |asked: &Asked| {
            if asked.path == "/bill.zip" {
                return (200, HeaderMap::new(), BILL.to_vec());
            }
            let answer = company.on_the_way.lock()(company.answer(asked));
            (200, HeaderMap::new(), answer.into_bytes())
        };
        TestServer::start(Box::new(answering)).await
    }

    fn settings(&self, url: &str) -> AlipaySettings {
        AlipaySettings {
            app_id: "2021000000000001".into(),
            seller_id: "2088000000000001".into(),
            methods: vec![PayMethod::Page, PayMethod::Phone, PayMethod::Qr],
            private_key_file: self.app.key_file.clone(),
            public_key_file: self.alipay.public_file.clone(),
            base_url: format!("{url}/gateway.do"),
            ..AlipaySettings::default()
        }
    }

    fn by_certificates(&self, url: &str) -> AlipaySettings {
        AlipaySettings {
            public_key_file: Default::default(),
            app_certificate_file: self.app.certificate_file.clone(),
            alipay_certificate_file: self.alipay.certificate_file.clone(),
            root_certificate_file: self.root.certificate_file.clone(),
            ..self.settings(url)
        }
    }

    fn notice(&self, more: &[(&str, &str)]) -> Vec<u8> {
        let mut fields = Parameters::new();
        for (name, value) in [
            ("app_id", "2021000000000001"),
            ("seller_id", "2088000000000001"),
            ("out_trade_no", ORDER),
            ("trade_no", TRADE),
            ("trade_status", "TRADE_SUCCESS"),
            ("total_amount", "6999.00"),
            ("gmt_payment", "2026-12-01 19:59:59"),
            ("notify_time", "2026-12-01 20:00:00"),
            ("charset", "utf-8"),
            ("subject", "手机 & more = good+"),
            ("sign_type", "RSA2"),
        ]
        .iter()
        .chain(more)
        {
            fields.insert((*name).to_owned(), (*value).to_owned());
        }
        let signature = self.alipay.key.sign(of_notice(&fields).as_bytes()).unwrap();
        fields.insert("sign".into(), signature);
        form(&fields).into_bytes()
    }
}

fn no(sub_code: &str) -> Value {
    json!({"code": "40004", "msg": "Business Failed", "sub_code": sub_code, "sub_msg": "..."})
}

fn trade(status: &str) -> Value {
    json!({"code": "10000", "msg": "Success", "out_trade_no": ORDER, "trade_no": TRADE,
        "trade_status": status, "total_amount": "6999.00", "send_pay_date": "2026-12-01 19:59:59"})
}

fn opened(settings: &AlipaySettings) -> Alipay {
    let notify_url = "https://shop.example/api/v1/payments/alipay/notify".to_owned();
    Alipay::open(settings, notify_url, ManualClock::at(NOW_MS)).unwrap()
}

async fn pair() -> (Arc<Company>, Alipay, TestServer) {
    let company = Company::new();
    let server = company.serve().await;
    let provider = opened(&company.settings(&server.url));
    (company, provider, server)
}

fn order_no() -> OrderNo {
    OrderNo::from_u64(42).unwrap()
}

fn paid() -> Paid {
    Paid {
        provider_txn: TRADE.into(),
        amount: Money::new(699_900, Currency::CNY),
        paid_ms: NOW_MS - 1_000,
    }
}

fn request(method: PayMethod) -> PayRequest {
    PayRequest {
        order_no: order_no(),
        amount: Money::new(699_900, Currency::CNY),
        subject: "手机/大".into(),
        deadline_ms: NOW_MS + 1_800_000,
        user: UserId::new("ann").unwrap(),
        method: Some(method),
        payer: None,
        client_ip: None,
        return_url: Some("https://shop.example/orders/1".into()),
    }
}

#[test]
fn alipays_own_roots_have_the_name_that_alipay_publishes() {
    let roots = certificates(include_str!("../testdata/alipay_root.pem")).unwrap();
    let name = "687b59193f3f462dd5336e5abf83c5d8_02941eef3187dddf3d3b83462e1dfcf6";
    assert_eq!(root_serial(&roots).as_deref(), Some(name));
    assert!(roots[1].is_signed_by(&roots[1]), "Ant Financial's root is signed by itself");
    assert!(!roots[1].is_signed_by(&roots[2]));
    let issuer = "CN=Ant Financial Certification Authority R1,OU=Certification Authority,\
        O=Ant Financial,C=CN";
    assert_eq!(roots[1].issuer_text().as_deref(), Some(issuer));
}

#[test]
fn openssl_names_certificates_as_we_do() {
    let company = Company::new();
    let path = company.alipay.certificate_file.to_str().unwrap();
    let said = |what: &[&str]| {
        let text = openssl(&[&["x509", "-in", path, "-noout"], what].concat(), b"");
        String::from_utf8(text).unwrap().trim().split_once('=').unwrap().1.to_owned()
    };
    let certificate =
        &certificates(&read_file(&company.alipay.certificate_file).unwrap()).unwrap()[0];
    let issuer = said(&["-issuer", "-nameopt", "RFC2253"]);
    assert_eq!(certificate.issuer_text(), Some(issuer.clone()));
    let digest = openssl(&["dgst", "-md5"], (issuer + &certificate.serial_decimal()).as_bytes());
    let digest = String::from_utf8(digest).unwrap();
    assert_eq!(digest.trim().rsplit(' ').next(), serial(certificate).as_deref());
    assert_eq!(certificate.serial_decimal(), "42727473162846687020792101738983329068");
}

#[tokio::test]
async fn pages_are_signed_addresses_and_codes_are_asked_for() {
    let (company, provider, _server) = pair().await;
    let public = VerifyingKey::from_text(&read_file(&company.app.public_file).unwrap()).unwrap();
    for (method, name, product) in [
        (PayMethod::Page, "alipay.trade.page.pay", "FAST_INSTANT_TRADE_PAY"),
        (PayMethod::Phone, "alipay.trade.wap.pay", "QUICK_WAP_WAY"),
    ] {
        let url = provider.open(&request(method)).await.unwrap().payment_url.unwrap();
        let (base, query) = url.split_once('?').unwrap();
        assert_eq!(base, provider.settings.base_url);
        let fields: Parameters = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        assert!(public.verify(of_request(&fields).as_bytes(), &fields["sign"]));
        assert_eq!(fields["method"], name);
        assert_eq!(fields["timestamp"], "2026-12-01 20:00:00");
        assert_eq!(fields["return_url"], "https://shop.example/orders/1");
        assert_eq!(fields["notify_url"], "https://shop.example/api/v1/payments/alipay/notify");
        let about: Value = serde_json::from_str(&fields["biz_content"]).unwrap();
        assert_eq!(about["total_amount"], "6999.00");
        assert_eq!(about["time_expire"], "2026-12-01 20:30:00");
        assert_eq!(
            (about["product_code"].as_str(), &about["subject"]),
            (Some(product), &json!("手机大"))
        );
    }
    company.say(|_, about| {
        json!({"code": "10000", "out_trade_no": about["out_trade_no"], "qr_code": "https://qr.alipay.com/x"})
    });
    let qr = provider.open(&request(PayMethod::Qr)).await.unwrap().qr;
    assert_eq!(qr.as_deref(), Some("https://qr.alipay.com/x"));
    assert!(matches!(
        provider.open(&request(PayMethod::App)).await,
        Err(ProviderError::Refused(_))
    ));
}

#[tokio::test]
async fn closing_and_asking_tell_what_is_true() {
    let (company, provider, _server) = pair().await;
    assert_eq!(provider.query(order_no()).await, Ok(QueryOutcome::NeverOpened));
    assert_eq!(provider.close(order_no()).await, Ok(CloseOutcome::NeverOpened));
    company.say(|_, _| trade("WAIT_BUYER_PAY"));
    assert_eq!(provider.close(order_no()).await, Ok(CloseOutcome::Closed));
    assert_eq!(provider.query(order_no()).await, Ok(QueryOutcome::Open));
    let refuses = |status: &'static str| {
        move |method: &str, _: &Value| match method {
            "alipay.trade.close" => no("ACQ.TRADE_STATUS_ERROR"),
            _ => trade(status),
        }
    };
    for status in ["TRADE_SUCCESS", "TRADE_FINISHED"] {
        company.say(refuses(status));
        assert_eq!(provider.close(order_no()).await, Ok(CloseOutcome::AlreadyPaid(paid())));
        assert_eq!(provider.query(order_no()).await, Ok(QueryOutcome::Paid(paid())));
    }
    company.say(refuses("TRADE_CLOSED"));
    assert_eq!(provider.query(order_no()).await, Ok(QueryOutcome::Refunded(paid())));
    assert_eq!(provider.close(order_no()).await, Ok(CloseOutcome::Closed));
    company.say(|_, _| {
        let mut never_paid = trade("TRADE_CLOSED");
        never_paid["send_pay_date"] = json!("");
        never_paid
    });
    assert_eq!(provider.query(order_no()).await, Ok(QueryOutcome::Closed));
    // Alipay need not say when it was paid.
    company.say(|_, _| {
        let mut at_some_time = trade("TRADE_SUCCESS");
        at_some_time.as_object_mut().unwrap().remove("send_pay_date");
        at_some_time
    });
    let by_now = Paid { paid_ms: NOW_MS, ..paid() };
    assert_eq!(provider.query(order_no()).await, Ok(QueryOutcome::Paid(by_now)));
    // Unknown, to be asked again.
    for said in [trade("WAIT_BUYER_PAY"), trade("NEW"), no("ACQ.SYSTEM_ERROR")] {
        company.say(move |method, _| match method {
            "alipay.trade.close" => no("ACQ.TRADE_STATUS_ERROR"),
            _ => said.clone(),
        });
        let unknown = provider.close(order_no()).await;
        assert!(matches!(unknown, Err(ProviderError::Unavailable(_))), "{unknown:?}");
    }
    company.say(|_, _| json!({"code": "20000", "msg": "Service Currently Unavailable"}));
    assert!(matches!(provider.query(order_no()).await, Err(ProviderError::Unavailable(_))));
    company.say(|_, _| {
        let mut other = trade("TRADE_SUCCESS");
        other["out_trade_no"] = json!("SK1");
        other
    });
    assert!(matches!(provider.query(order_no()).await, Err(ProviderError::Unavailable(_))));
}

#[tokio::test]
async fn a_refund_is_the_same_however_often_it_is_asked_for() {
    let (company, provider, server) = pair().await;
    let asked_for = RefundRequest {
        order_no: order_no(),
        provider_txn: TRADE.into(),
        amount: paid().amount,
        reason: "late".into(),
    };
    let says = |refund: Value, query: Value| {
        move |method: &str, _: &Value| match method {
            "alipay.trade.refund" => refund.clone(),
            _ => query.clone(),
        }
    };
    let done = |change: &str| json!({"code": "10000", "trade_no": TRADE, "fund_change": change});
    let found =
        json!({"code": "10000", "refund_amount": "6999.00", "refund_status": "REFUND_SUCCESS"});
    let none = json!({"code": "10000", "msg": "Success"});
    company.say(says(done("Y"), none.clone()));
    assert_eq!(provider.refund(&asked_for).await, Ok(RefundOutcome::Done));
    company.say(says(done("N"), found.clone()));
    assert_eq!(provider.refund(&asked_for).await, Ok(RefundOutcome::Done));
    company.say(says(done("N"), none.clone()));
    assert_eq!(provider.refund(&asked_for).await, Ok(RefundOutcome::Pending));
    company.say(says(no("ACQ.TRADE_HAS_CLOSE"), found));
    assert_eq!(provider.refund(&asked_for).await, Ok(RefundOutcome::Done));
    company.say(says(no("ACQ.SELLER_BALANCE_NOT_ENOUGH"), none.clone()));
    assert!(matches!(provider.refund(&asked_for).await, Err(ProviderError::Refused(_))));
    company.say(says(no("aop.ACQ.SYSTEM_ERROR"), none));
    assert!(matches!(provider.refund(&asked_for).await, Err(ProviderError::Unavailable(_))));
    let asked = server.asked();
    let about = |one: &Asked| {
        let fields: Parameters = form_urlencoded::parse(one.body.as_bytes()).into_owned().collect();
        (fields["method"].clone(), fields["biz_content"].clone())
    };
    let refunds: Vec<_> =
        asked.iter().map(about).filter(|(method, _)| method == "alipay.trade.refund").collect();
    assert!(refunds.len() == 6 && refunds.iter().all(|one| *one == refunds[0]), "{refunds:?}");
    assert!(refunds[0].1.contains(&format!("\"out_request_no\":\"SKR{TRADE}\"")));
}

#[tokio::test]
async fn no_answer_without_a_good_signature_is_believed() {
    let (company, provider, _server) = pair().await;
    company.say(|_, _| trade("TRADE_SUCCESS"));
    assert_eq!(provider.query(order_no()).await, Ok(QueryOutcome::Paid(paid())));
    let meddles: [fn(String) -> String; 6] = [
        |text| text.replace("6999.00", "6998.00"),
        |text| text.replace(" : ", ":"),
        |text| text.replace("\"sign\"", "\"sgn\""),
        |text| text.replace("\"sign\":\"", "\"sign\":\"A"),
        |text| text.replace("alipay_trade_query_response", "error_response"),
        |text| text.replace('}', ""),
    ];
    for (n, meddle) in meddles.into_iter().enumerate() {
        *company.on_the_way.lock() = meddle;
        let heard = provider.query(order_no()).await;
        match n {
            // The same letters under the name that errors have: it was Alipay who wrote them.
            4 => assert_eq!(heard, Ok(QueryOutcome::Paid(paid()))),
            _ => assert!(matches!(heard, Err(ProviderError::Unavailable(_))), "{n}: {heard:?}"),
        }
    }
}

#[tokio::test]
async fn an_answer_that_was_signed_before_its_slashes_were_escaped_is_believed() {
    let (company, provider, _server) = pair().await;
    company.say(|_, about| {
        json!({"code": "10000", "out_trade_no": about["out_trade_no"], "qr_code": "https://qr.alipay.com/x"})
    });
    company.unescaped.store(true, Ordering::Relaxed);
    let opened = provider.open(&request(PayMethod::Qr)).await.unwrap();
    assert_eq!(opened.qr.as_deref(), Some("https://qr.alipay.com/x"));
    *company.on_the_way.lock() = |text| text.replace("alipay.com", "alipay.org");
    let forged = provider.open(&request(PayMethod::Qr)).await;
    assert!(matches!(forged, Err(ProviderError::Unavailable(_))), "{forged:?}");
}

#[tokio::test]
async fn a_notice_is_believed_whole_or_not_at_all() {
    let (company, provider, _server) = pair().await;
    let none = HeaderMap::new();
    let body = company.notice(&[]);
    let believed = Notice {
        provider_txn: TRADE.into(),
        order_no: order_no(),
        amount: paid().amount,
        paid_ms: paid().paid_ms,
        outcome: NoticeOutcome::Paid,
    };
    assert_eq!(provider.verify_notice(&none, &body).await, Ok(believed.clone()));
    let read = |body: &[u8]| -> Parameters { form_urlencoded::parse(body).into_owned().collect() };
    for at in 0..body.len() {
        for flip in [1, 0x20, 0x80] {
            let mut changed = body.clone();
            changed[at] ^= flip;
            let heard = provider.verify_notice(&none, &changed).await;
            // Another way to write the same, such as %2b for %2B, says the same.
            if read(&changed) == read(&body) {
                assert_eq!(heard, Ok(believed.clone()), "byte {at}");
            } else {
                assert!(heard.is_err(), "byte {at}: {heard:?}");
            }
        }
    }
    // A notice with an empty field is signed with it or without it.
    let with_it = company.notice(&[("body", "")]);
    let without_it = [&body[..], b"&body="].concat();
    for one in [with_it, without_it] {
        assert_eq!(provider.verify_notice(&none, &one).await, Ok(believed.clone()));
    }
    let twice = [&body[..], b"&total_amount=6999.00"].concat();
    assert!(provider.verify_notice(&none, &twice).await.is_err());
    let one_more = [&body[..], b"&refund_fee=1.00"].concat();
    assert!(provider.verify_notice(&none, &one_more).await.is_err());
    for (field, value) in [("app_id", "2021000000000009"), ("seller_id", "2088000000000009")] {
        let foreign = company.notice(&[(field, value)]);
        let refused = provider.verify_notice(&none, &foreign).await;
        assert_eq!(refused, Err(NoticeError::OtherMerchant), "{field}");
    }
    for (more, outcome) in [
        (vec![("trade_status", "TRADE_FINISHED")], NoticeOutcome::Paid),
        (vec![("trade_status", "TRADE_CLOSED")], NoticeOutcome::Failed),
        (vec![("trade_status", "WAIT_BUYER_PAY")], NoticeOutcome::Failed),
        (
            vec![
                ("trade_status", "TRADE_CLOSED"),
                ("refund_fee", "6999.00"),
                ("gmt_refund", "2026-12-01 20:00:00.123"),
            ],
            NoticeOutcome::Refunded,
        ),
    ] {
        let told = provider.verify_notice(&none, &company.notice(&more)).await.unwrap();
        assert_eq!(told.outcome, outcome, "{more:?}");
    }
    for wrong in [("total_amount", "6999.001"), ("total_amount", "-1.00"), ("out_trade_no", "X")] {
        let refused = provider.verify_notice(&none, &company.notice(&[wrong])).await;
        assert!(matches!(refused, Err(NoticeError::Malformed(_))), "{wrong:?} {refused:?}");
    }
    assert_eq!(provider.answer(NoticeAnswer::Accepted), (200, "text/plain", "success".into()));
    assert_ne!(provider.answer(NoticeAnswer::TryAgain).0, 200);
}

#[tokio::test]
async fn certificates_are_named_lead_to_the_root_and_can_be_replaced() {
    let company = Company::new();
    let server = company.serve().await;
    let settings = company.by_certificates(&server.url);
    let provider = opened(&settings);
    company.say(|_, _| trade("TRADE_SUCCESS"));
    let nameless = provider.query(order_no()).await;
    assert!(matches!(nameless, Err(ProviderError::Unavailable(_))), "{nameless:?}");
    let name = |key: &TestKey| {
        serial(&certificates(&read_file(&key.certificate_file).unwrap()).unwrap()[0]).unwrap()
    };
    *company.named.lock() = Some(name(&company.app));
    assert!(matches!(provider.query(order_no()).await, Err(ProviderError::Unavailable(_))));
    *company.named.lock() = Some(name(&company.alipay));
    assert_eq!(provider.query(order_no()).await, Ok(QueryOutcome::Paid(paid())));
    let asked = server.asked();
    let sent: Parameters = form_urlencoded::parse(asked[0].body.as_bytes()).into_owned().collect();
    assert_eq!(sent["app_cert_sn"], name(&company.app));
    assert_eq!(sent["alipay_root_cert_sn"], name(&company.root));
    // A notice that was on its way when Alipay's certificate was replaced still counts.
    let old = company.notice(&[]);
    let next = TestKey::signed_by(company.dir.path(), "next", "99", &company.root);
    std::fs::copy(&next.certificate_file, &company.alipay.certificate_file).unwrap();
    provider.gateway.look_again();
    assert!(provider.verify_notice(&HeaderMap::new(), &old).await.is_ok());
    let stranger = TestKey::make(company.dir.path(), "stranger", "5");
    let opens = |settings: &AlipaySettings| {
        Alipay::open(settings, String::new(), ManualClock::at(NOW_MS)).map(drop)
    };
    for wrong in [
        AlipaySettings {
            root_certificate_file: stranger.certificate_file.clone(),
            ..settings.clone()
        },
        AlipaySettings {
            app_certificate_file: stranger.certificate_file.clone(),
            ..settings.clone()
        },
        AlipaySettings { public_key_file: company.alipay.public_file.clone(), ..settings.clone() },
        AlipaySettings { root_certificate_file: Default::default(), ..settings.clone() },
    ] {
        assert!(opens(&wrong).is_err(), "{wrong:?}");
    }
    // Our own public key in the place of Alipay's is the most usual mistake.
    let own = AlipaySettings {
        public_key_file: company.app.public_file.clone(),
        ..company.settings(&server.url)
    };
    assert!(opens(&own).unwrap_err()[0].contains("is our own public key"));
}

#[tokio::test]
async fn a_bill_in_gbk_is_read_from_its_zip() {
    let (company, provider, server) = pair().await;
    let url = format!("{}/bill.zip", server.url);
    company.say(move |_, about| {
        assert_eq!(about["bill_date"], "2026-11-30");
        json!({"code": "10000", "bill_download_url": url})
    });
    let day = NOW_MS - 44 * beijing::HOUR_MS;
    let line = |refund: bool, at_ms: i64| BillLine {
        provider_txn: TRADE.into(),
        order_no: ORDER.into(),
        amount: paid().amount,
        at_ms,
        refund,
    };
    let lines = provider.bill(day).await.unwrap().unwrap();
    let (at, back) = (day + 20 * beijing::HOUR_MS + 5_000, day + 21 * beijing::HOUR_MS);
    assert_eq!(lines, [line(false, at), line(true, back)]);
    for at in 0..BILL.len() {
        let mut broken = BILL.to_vec();
        broken[at] ^= 0x55;
        // Whatever is broken: an error or the same lines, and no more.
        if let Ok(read) = bill::lines(&broken) {
            assert_eq!(read, lines, "byte {at}");
        }
    }
    company.say(|_, _| no("isp.bill_not_exist"));
    assert_eq!(provider.bill(day).await, Ok(None));
    assert_eq!(provider.bill(day + beijing::DAY_MS).await, Ok(None), "it is not ten o'clock yet");
}

proptest! {
    #[test]
    fn amounts_are_written_in_yuan_and_read_back(minor in 0..i64::MAX) {
        let amount = Money::new(minor, Currency::CNY);
        let text = yuan(amount);
        prop_assert_eq!(Money::from_text(&text, Currency::CNY), Ok(amount));
        // By another road: the digits with a dot before the last two.
        let digits = format!("{minor:03}");
        let (whole, cents) = digits.split_at(digits.len() - 2);
        prop_assert_eq!(text, format!("{whole}.{cents}"));
    }

    #[test]
    fn what_is_signed_is_the_sorted_parameters(
        pairs in proptest::collection::vec(("[a-z_]{1,6}", "[ -~§手]{0,6}"), 0..12)
    ) {
        let parameters: Parameters = pairs.iter().cloned().collect();
        // The simplest way there is.
        let simple = |left_out: &[&str], empty: bool| {
            let mut names: Vec<&String> = parameters.keys().collect();
            names.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
            let kept = names.into_iter().filter(|name| !left_out.contains(&name.as_str()));
            let lines = kept.filter(|name| empty || !parameters[*name].is_empty());
            lines.map(|name| format!("{name}={}", parameters[name])).collect::<Vec<_>>().join("&")
        };
        prop_assert_eq!(of_request(&parameters), simple(&["sign"], false));
        prop_assert_eq!(of_notice(&parameters), simple(&["sign", "sign_type"], true));
    }
}

//! WeChat Pay against its published samples, against `openssl`, and against a server that lies.

mod documents;
mod notices;
mod orders;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::HeaderMap;
use parking_lot::Mutex;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use sale::{ManualClock, Money, Secret, UserId};

use super::*;
use crate::{
    key_files::read as read_file,
    test_keys::TestKey,
    test_server::{Answering, Asked, TestServer},
};

const NOW_S: i64 = 1_796_126_400; // 2026-12-01T20:00:00+08:00
const NOW_MS: i64 = NOW_S * 1_000;
const API_KEY: &str = "0123456789abcdefghijklmnopqrstuv";
const SERIAL: &str = "7132D72A03E93CDDF8C03BBD1F37EEDF5D7E8D28";
const NEW_SERIAL: &str = "0A00000000000000000000000000000000000001";
const ORDER: &str = "SK0000000000000000042";

fn order_no() -> OrderNo {
    OrderNo::from_u64(42).unwrap()
}

type Says = Box<dyn Fn(&Asked) -> (u16, Value) + Send + Sync>;
type Meddle = fn(&mut HeaderMap, &mut Vec<u8>);

/// WeChat's end of the line: two platform certificates, of which it signs with one.
struct Wechat {
    keys: [TestKey; 2],
    public: TestKey,
    merchant: TestKey,
    dir: tempfile::TempDir,
    /// Which key signs: 0 and 1 are certificates, 2 is the public key.
    signs: AtomicUsize,
    /// The next so many answers are signed wrongly on purpose.
    probes: AtomicUsize,
    /// Says the rest: a status and a body.
    says: Mutex<Says>,
    /// What is done to a signed answer on its way.
    on_the_way: Mutex<Option<Meddle>>,
}

const PUBLIC_KEY_ID: &str = "PUB_KEY_ID_0119000000012026";

impl Wechat {
    fn new() -> Arc<Wechat> {
        let dir = tempfile::tempdir().unwrap();
        let serial = |hex: &str| format!("0x{hex}");
        Arc::new(Wechat {
            keys: [
                TestKey::make(dir.path(), "one", &serial(SERIAL)),
                TestKey::make(dir.path(), "two", &serial(NEW_SERIAL)),
            ],
            public: TestKey::make(dir.path(), "public", "1"),
            merchant: TestKey::make(dir.path(), "merchant", "0x408B07E79B8269FE"),
            dir,
            signs: AtomicUsize::new(0),
            probes: AtomicUsize::new(0),
            says: Mutex::new(Box::new(|_| (404, json!({"code": "ORDER_NOT_EXIST"})))),
            on_the_way: Mutex::default(),
        })
    }

    fn say(&self, says: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static) {
        *self.says.lock() = Box::new(says);
    }

    fn headers(&self, body: &[u8]) -> HeaderMap {
        let signs = self.signs.load(Ordering::SeqCst);
        let (key, serial) = match signs {
            2 => (&self.public.key, PUBLIC_KEY_ID),
            n => (&self.keys[n].key, [SERIAL, NEW_SERIAL][n]),
        };
        let message = [format!("{NOW_S}\nnonce\n").as_bytes(), body, b"\n"].concat();
        let mut signature = key.sign(&message).unwrap();
        if self.probes.load(Ordering::SeqCst) > 0 {
            self.probes.fetch_sub(1, Ordering::SeqCst);
            signature = format!("WECHATPAY/SIGNTEST/{signature}");
        }
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("wechatpay-timestamp", NOW_S.to_string().as_str()),
            ("wechatpay-nonce", "nonce"),
            ("wechatpay-signature", &signature),
            ("wechatpay-serial", serial),
            ("wechatpay-signature-type", "WECHATPAY2-SHA256-RSA2048"),
        ] {
            headers.insert(http::HeaderName::try_from(name).unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn answering(self: &Arc<Self>) -> Answering {
        let wechat = self.clone();
        Box::new(move |asked| {
            let (status, said) = match asked.path.as_str() {
                "/v3/certificates" => (200, wechat.certificates()),
                _ => wechat.says.lock()(asked),
            };
            let mut body = match &said {
                Value::Null => Vec::new(),
                Value::String(text) => text.clone().into_bytes(),
                said => said.to_string().into_bytes(),
            };
            let mut headers = wechat.headers(&body);
            if let Some(meddle) = *wechat.on_the_way.lock() {
                meddle(&mut headers, &mut body);
            }
            (status, headers, body)
        })
    }

    fn certificates(&self) -> Value {
        let all = self.keys.iter().zip([SERIAL, NEW_SERIAL]).map(|(key, serial)| {
            let pem = read_file(&key.certificate_file).unwrap();
            json!({"serial_no": serial, "encrypt_certificate": seal(pem.as_bytes(), "certificate")})
        });
        json!({"data": all.collect::<Vec<_>>()})
    }

    fn settings(&self, base_url: &str) -> WechatSettings {
        WechatSettings {
            merchant_id: "1900007291".into(),
            app_id: "wx2421b1c4370ec43b".into(),
            methods: vec![PayMethod::Qr, PayMethod::App, PayMethod::Phone],
            private_key_file: self.merchant.key_file.clone(),
            certificate_file: self.merchant.certificate_file.clone(),
            api_v3_key: Secret::new(API_KEY),
            base_url: base_url.into(),
            ..WechatSettings::default()
        }
    }
}

fn seal(plain: &[u8], about: &str) -> Value {
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, API_KEY.as_bytes()).unwrap());
    let nonce = "twelve bytes";
    let mut bytes = plain.to_vec();
    let unique = Nonce::try_assume_unique_for_key(nonce.as_bytes()).unwrap();
    key.seal_in_place_append_tag(unique, Aad::from(about.as_bytes()), &mut bytes).unwrap();
    json!({"algorithm": "AEAD_AES_256_GCM", "ciphertext": STANDARD.encode(bytes),
        "nonce": nonce, "associated_data": about})
}

fn opened(settings: &WechatSettings) -> WechatPay {
    let notify_url = "https://shop.example/api/v1/payments/wechat/notify".to_owned();
    WechatPay::open(settings, notify_url, ManualClock::at(NOW_MS)).unwrap()
}

async fn pair() -> (Arc<Wechat>, WechatPay, TestServer) {
    let wechat = Wechat::new();
    let server = TestServer::start(wechat.answering()).await;
    let provider = opened(&wechat.settings(&server.url));
    (wechat, provider, server)
}

fn request(method: PayMethod) -> PayRequest {
    PayRequest {
        order_no: order_no(),
        amount: Money::new(699_900, Currency::CNY),
        subject: "手机".repeat(40),
        deadline_ms: NOW_MS + 1_800_000,
        user: UserId::new("ann").unwrap(),
        method: Some(method),
        payer: Some("oUpF8uMuAJO_M2pxb1Q9zNjWeS6o".into()),
        client_ip: Some("203.0.113.9".parse().unwrap()),
        return_url: Some("https://shop.example/orders/1?a=b".into()),
    }
}

fn transaction(state: &str) -> Value {
    json!({
        "appid": "wx2421b1c4370ec43b", "mchid": "1900007291", "out_trade_no": ORDER,
        "transaction_id": "4200000000202612010000000001", "trade_type": "NATIVE",
        "trade_state": state, "success_time": "2026-12-01T19:59:59+08:00",
        "amount": {"total": 699900, "payer_total": 699800, "currency": "CNY", "payer_currency": "CNY"},
    })
}

fn paid() -> Paid {
    Paid {
        provider_txn: "4200000000202612010000000001".into(),
        amount: Money::new(699_900, Currency::CNY),
        paid_ms: NOW_MS - 1_000,
    }
}

/// A notice: headers and body, signed by WeChat's key of now.
fn notice(wechat: &Wechat, event: &str, resource: &Value) -> (HeaderMap, Vec<u8>) {
    let body = json!({
        "id": "EV-2018022511223320873", "create_time": "2026-12-01T20:00:00+08:00",
        "event_type": event, "resource_type": "encrypt-resource", "summary": "支付成功",
        "resource": seal(resource.to_string().as_bytes(), "transaction"),
    });
    let body = body.to_string().into_bytes();
    (wechat.headers(&body), body)
}

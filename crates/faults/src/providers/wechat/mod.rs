//! WeChat Pay, version 3 of its interface.
//!
//! **Requests** carry `Authorization: WECHATPAY2-SHA256-RSA2048 mchid="…",nonce_str="…",signature="…",
//! timestamp="…",serial_no="…"`: the merchant's signature over method, path with query, timestamp, nonce and
//! body, each followed by a line feed. **Answers and notices** carry `Wechatpay-Timestamp`, `-Nonce`,
//! `-Signature` and `-Serial`: the platform's signature over timestamp, nonce and body. The serial names a
//! platform certificate, or a public key (`PUB_KEY_ID_…`); whoever asks with a `Wechatpay-Serial` of their
//! own is answered by that one. What is secret in a notice, and the certificates on offer, are encrypted with
//! AES-256-GCM under the merchant's API key.

mod desk;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use serde_json::{Value, json};

use self::desk::refund_json;
use super::{
    Asked, Company, Forgery, Notice, Protocol, Stuck, Told, calendar,
    http::{Answer, Request},
    keys::{Certified, KeyPair},
    locked,
    news::{News, corrupted},
};

/// A request or a notice is good for this long.
const WINDOW_S: i64 = 300;
const SCHEME: &str = "WECHATPAY2-SHA256-RSA2048 ";
const PROBE: &str = "WECHATPAY/SIGNTEST/";

pub struct WeChat {
    company: Company,
    folder: PathBuf,
    pub mchid: String,
    pub appid: String,
    /// Thirty-two characters, known to both.
    pub api_key: String,
    /// The merchant's, newest last. Whoever is not here is not believed.
    merchants: Mutex<Vec<Arc<Certified>>>,
    platform: Mutex<Platform>,
    stranger: KeyPair,
}

#[derive(Default)]
struct Platform {
    /// On offer, newest last.
    certificates: Vec<Arc<Certified>>,
    /// With their ids, newest last.
    public_keys: Vec<(String, Arc<KeyPair>)>,
    /// What is not asked for by serial is signed by the newest public key and not by a certificate.
    by_public_key: bool,
}

impl Platform {
    fn current(&self) -> Option<(String, &KeyPair)> {
        if self.by_public_key {
            let (id, key) = self.public_keys.last()?;
            return Some((id.clone(), key));
        }
        let newest = self.certificates.last()?;
        Some((newest.serial.clone(), &newest.key))
    }

    fn by_serial(&self, serial: &str) -> Option<(String, &KeyPair)> {
        let certificate = self.certificates.iter().find(|one| one.serial == serial);
        let key = self.public_keys.iter().find(|(id, _)| id == serial);
        let key = certificate.map(|one| &one.key).or(key.map(|(_, key)| &**key))?;
        Some((serial.to_owned(), key))
    }
}

impl WeChat {
    /// The merchant's newest key and certificate.
    pub fn merchant(&self) -> Arc<Certified> {
        locked(&self.merchants).last().cloned().expect("there is always one")
    }

    /// A new key and certificate of the merchant's. The old ones are good until they are forgotten.
    pub fn rotate_merchant(&self) -> io::Result<Arc<Certified>> {
        let mut merchants = locked(&self.merchants);
        let name = format!("merchant{}", merchants.len());
        let made = Certified::make(&self.folder, &name, "/C=CN/O=Merchant/CN=1900", None)?;
        merchants.push(Arc::new(made));
        drop(merchants);
        Ok(self.merchant())
    }

    /// Only the newest key of the merchant's is believed from now on.
    pub fn forget_old_merchants(&self) {
        let mut merchants = locked(&self.merchants);
        let old = merchants.len().saturating_sub(1);
        merchants.drain(..old);
    }

    /// Refunds that are asked for from now on get stuck like this, or are done.
    pub fn refunds_stick(&self, stuck: Option<Stuck>) {
        self.company().accounts().refunds_stick(stuck);
    }

    /// Somebody sees to what is stuck of an order: it is done now, and the shop is told.
    pub fn unstick(&self, order_no: &str) {
        let company = self.company();
        let numbers = company.accounts().unstick(order_no, calendar::now_ms());
        numbers.into_iter().for_each(|number| company.tell(News::Refunded { number, after_ms: 0 }));
    }

    /// The platform certificate by which is signed.
    pub fn platform(&self) -> Arc<Certified> {
        locked(&self.platform).certificates.last().cloned().expect("there is always one")
    }

    /// A new platform certificate, on offer and in use from now on.
    pub fn rotate_platform(&self) -> io::Result<Arc<Certified>> {
        let mut platform = locked(&self.platform);
        let name = format!("platform{}", platform.certificates.len());
        let subject = "/C=CN/O=Tenpay.com/CN=Tenpay.com sign";
        platform.certificates.push(Arc::new(Certified::make(&self.folder, &name, subject, None)?));
        platform.by_public_key = false;
        drop(platform);
        Ok(self.platform())
    }

    /// The newest public key with its id.
    pub fn public_key(&self) -> (String, Arc<KeyPair>) {
        locked(&self.platform).public_keys.last().cloned().expect("there is always one")
    }

    /// A new public key, in use from now on.
    pub fn rotate_public_key(&self) -> io::Result<(String, Arc<KeyPair>)> {
        self.add_public_key()?;
        self.sign_by_public_key(true);
        Ok(self.public_key())
    }

    fn add_public_key(&self) -> io::Result<()> {
        let mut platform = locked(&self.platform);
        let place = platform.public_keys.len();
        let key = KeyPair::make(&self.folder, &format!("public{place}"))?;
        let id = format!("PUB_KEY_ID_0{}2026{place:016}", self.mchid);
        platform.public_keys.push((id, Arc::new(key)));
        Ok(())
    }

    /// Sign what is not asked for by serial with the newest public key, or with the newest certificate.
    pub fn sign_by_public_key(&self, by_public_key: bool) {
        locked(&self.platform).by_public_key = by_public_key;
    }

    /// What opening a payment answers: the order of a code that a buyer scans.
    pub fn order_of_code(&self, code: &str) -> Option<String> {
        let token = code.rsplit(['=', '/']).next()?;
        let accounts = self.company.accounts();
        accounts.trade(token.strip_prefix("pr-")?).map(|trade| trade.order_no.clone())
    }

    fn encrypt(&self, plain: &str, about: &str) -> Value {
        let nonce: String = (0..12).map(|_| fastrand::alphanumeric()).collect();
        let key = UnboundKey::new(&AES_256_GCM, self.api_key.as_bytes());
        let key = LessSafeKey::new(key.expect("the key has thirty-two bytes"));
        let mut bytes = plain.as_bytes().to_vec();
        let number = Nonce::try_assume_unique_for_key(nonce.as_bytes());
        let number = number.expect("a nonce has twelve bytes");
        key.seal_in_place_append_tag(number, Aad::from(about), &mut bytes)
            .expect("what is short can be sealed");
        json!({"algorithm": "AEAD_AES_256_GCM", "ciphertext": STANDARD.encode(bytes),
            "associated_data": about, "nonce": nonce})
    }

    /// The headers that prove that the platform wrote this body.
    fn proof(&self, serial: Option<&str>, body: &[u8], at_s: i64) -> Vec<(String, String)> {
        let platform = locked(&self.platform);
        let asked = serial.and_then(|serial| platform.by_serial(serial));
        let (serial, key) = asked.or(platform.current()).expect("there is always one");
        let nonce: String = (0..32).map(|_| fastrand::alphanumeric()).collect();
        let message = [format!("{at_s}\n{nonce}\n").as_bytes(), body, b"\n"].concat();
        let signature = key.sign(&message);
        let proof = [
            ("Wechatpay-Timestamp", at_s.to_string()),
            ("Wechatpay-Nonce", nonce),
            ("Wechatpay-Signature", signature),
            ("Wechatpay-Serial", serial),
            ("Wechatpay-Signature-Type", SCHEME.trim().to_owned()),
        ];
        proof.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn signed(&self, request: &Request, status: u16, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut answer = Answer::new(status, "application/json; charset=utf-8", body);
        let serial = request.header("wechatpay-serial");
        let proof = self.proof(serial, &answer.body, calendar::now_ms() / 1_000);
        answer.headers.extend(proof);
        answer.headers.push(("Request-ID".into(), format!("{:016X}", fastrand::u64(..))));
        answer
    }

    /// Who asks, proved by the signature over every byte of the request.
    fn check(&self, request: &Request) -> Result<(), String> {
        let header = request.header("authorization").ok_or("there is no Authorization")?;
        let words = header.strip_prefix(SCHEME).ok_or("the scheme is not WECHATPAY2")?;
        let part = |name: &str| {
            let found = words.split(',').find_map(|word| {
                let (this, value) = word.trim().split_once('=')?;
                (this == name).then(|| value.strip_prefix('"')?.strip_suffix('"'))?
            });
            found.ok_or(format!("Authorization has no {name}"))
        };
        let (mchid, nonce) = (part("mchid")?, part("nonce_str")?);
        let (time, serial) = (part("timestamp")?, part("serial_no")?);
        let signature = part("signature")?;
        if mchid != self.mchid {
            return Err(format!("{mchid} is not our merchant"));
        }
        let at_s: i64 = time.parse().map_err(|_| "the timestamp is no number")?;
        if (calendar::now_ms() / 1_000 - at_s).abs() > WINDOW_S {
            return Err("the timestamp is not of now".into());
        }
        if nonce.is_empty() || nonce.len() > 32 {
            return Err("the nonce has 1 to 32 characters".into());
        }
        let merchants = locked(&self.merchants);
        let merchant = merchants.iter().find(|one| one.serial == serial);
        let merchant = merchant.ok_or(format!("no certificate has the serial {serial}"))?;
        let head = format!("{}\n{}\n{time}\n{nonce}\n", request.method, request.target);
        let message = [head.as_bytes(), &request.body, b"\n"].concat();
        if !merchant.key.verify(&message, signature) {
            return Err("the signature is not over this request".into());
        }
        if request.header("user-agent").is_none_or(str::is_empty) {
            return Err("there is no User-Agent".into());
        }
        let json = request.header("content-type").is_some_and(|kind| kind.contains("json"));
        if request.method == "POST" && !json {
            return Err("the Content-Type is not JSON".into());
        }
        Ok(())
    }

    /// What the notice says, who is told, and what kind it is.
    fn event(
        &self,
        news: &News,
        other: bool,
    ) -> Option<(String, &'static str, &'static str, Value)> {
        let accounts = self.company.accounts();
        let (url, kind, original, mut said) = match news {
            News::Paid { charge, .. } => {
                let charge = accounts.charge(*charge);
                let trade = accounts.trade(&charge.order_no)?;
                let said = self.transaction(trade, Some(charge), "SUCCESS");
                (trade.notify_url.clone(), "TRANSACTION.SUCCESS", "transaction", said)
            }
            News::Refunded { number, .. } => {
                let (charge, refund) = accounts.refund_by_number(number)?;
                let trade = accounts.trade(&charge.order_no)?;
                let mut said = refund_json(charge, refund);
                said["mchid"] = json!(self.mchid);
                let (status, kind) = match refund.stuck {
                    None => ("SUCCESS", "REFUND.SUCCESS"),
                    Some(Stuck::Abnormal) => ("ABNORMAL", "REFUND.ABNORMAL"),
                    Some(Stuck::Closed) => ("CLOSED", "REFUND.CLOSED"),
                };
                said["refund_status"] = json!(status);
                (trade.notify_url.clone(), kind, "refund", said)
            }
            News::Closed { .. } => return None,
        };
        if other {
            said["mchid"] = json!("1900000000");
        }
        Some((url, kind, original, said))
    }
}

impl Protocol for WeChat {
    const TXN_PREFIX: &'static str = "4200";

    fn make(folder: &Path, company: Company) -> io::Result<WeChat> {
        let wechat = WeChat {
            company,
            folder: folder.to_owned(),
            mchid: format!("19{:08}", fastrand::u32(..100_000_000)),
            appid: format!("wx{:016x}", fastrand::u64(..)),
            api_key: (0..32).map(|_| fastrand::alphanumeric()).collect(),
            merchants: Mutex::default(),
            platform: Mutex::default(),
            stranger: KeyPair::make(folder, "stranger")?,
        };
        wechat.rotate_merchant()?;
        wechat.rotate_platform()?;
        wechat.add_public_key()?;
        Ok(wechat)
    }

    fn company(&self) -> &Company {
        &self.company
    }

    fn serve(&self, asked: &Asked) -> Told {
        let request = &asked.0;
        let (status, code, message) = match self.check(request) {
            Err(why) => (401, "SIGN_ERROR", why),
            Ok(()) => match self.route(request) {
                Ok(answer) => return Told(answer),
                Err(refusal) => refusal,
            },
        };
        if matches!(code, "SIGN_ERROR" | "PARAM_ERROR") || status == 403 {
            let Request { method, target, .. } = request;
            self.company.complain(format!("{method} {target}: {message}"));
        }
        Told(self.signed(request, status, &json!({"code": code, "message": message})))
    }

    fn out_of_order(&self, asked: &Asked) -> Told {
        let (status, code) = match self.company.roll(|_, dice| dice.u8(..4)) {
            0 => (429, "FREQUENCY_LIMITED"),
            // A gateway before the company, which signs nothing.
            1 => return Told(Answer::new(502, "text/html", "<html>502 Bad Gateway</html>")),
            _ => (500, "SYSTEM_ERROR"),
        };
        Told(self.signed(&asked.0, status, &json!({"code": code, "message": "later"})))
    }

    fn forged(&self, mut told: Told) -> Told {
        for (name, value) in &mut told.0.headers {
            if name == "Wechatpay-Signature" {
                *value = format!("{PROBE}{}", &value[PROBE.len()..]);
            }
        }
        told
    }

    fn notice(&self, news: &News, forgery: Option<Forgery>) -> Option<Notice> {
        let (url, kind, original, said) =
            self.event(news, forgery == Some(Forgery::OtherMerchant))?;
        let mut resource = self.encrypt(&said.to_string(), original);
        resource["original_type"] = json!(original);
        let now_ms = calendar::now_ms();
        let event = json!({"id": format!("EV-{:016x}", fastrand::u64(..)),
            "create_time": calendar::with_zone(now_ms), "resource_type": "encrypt-resource",
            "event_type": kind, "summary": "支付成功", "resource": resource});
        let body = event.to_string().into_bytes();
        let age_s = if forgery == Some(Forgery::Stale) { 3_600 } else { 0 };
        let at_s = now_ms / 1_000 - age_s;
        let mut headers = self.proof(None, &body, at_s);
        let text = |name: &str| {
            let found = headers.iter().find(|(header, _)| header == name);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let signature = match forgery {
            Some(Forgery::Stranger) => {
                let head = format!("{at_s}\n{}\n", text("Wechatpay-Nonce"));
                Some(self.stranger.sign(&[head.as_bytes(), &body, b"\n"].concat()))
            }
            Some(Forgery::Probe) => {
                Some(format!("{PROBE}{}", &text("Wechatpay-Signature")[PROBE.len()..]))
            }
            _ => None,
        };
        if let Some(signature) = signature {
            headers.retain(|(name, _)| name != "Wechatpay-Signature");
            headers.push(("Wechatpay-Signature".into(), signature));
        }
        headers.push(("Content-Type".into(), "application/json".into()));
        headers.push(("User-Agent".into(), "Mozilla/4.0".into()));
        let body = match forgery {
            Some(Forgery::Corrupted) => self.company.roll(|_, dice| corrupted(body, dice)),
            _ => body,
        };
        Some(Notice { url, headers, body })
    }

    /// Any 200 or 204, whatever the body says.
    fn is_taken(&self, status: u16, _body: &[u8]) -> bool {
        matches!(status, 200 | 204)
    }
}

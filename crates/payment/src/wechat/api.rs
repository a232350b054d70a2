//! Asking WeChat Pay, and being sure that it is WeChat Pay that answers.
//!
//! Every request is signed with the merchant's key over method, path, time, a number used once, and body.
//! Every answer and every notice carries a signature over time, number and raw body, and the name of the key
//! that made it: a serial number of one of WeChat's *platform certificates*, or the id of its *public key*
//! for this merchant. A merchant who moves from the first to the second gets both for a while, so both are
//! known here at once, and the name decides.
//!
//! Platform certificates are fetched from WeChat, sealed with the APIv3 key, which is what makes them
//! trustworthy; and fetched again when a name turns up that is not known, which is how they rotate. Anybody
//! can make up a name, so that is done at most once per [`FETCH_PAUSE`].

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use outgoing::{Answer, Call, Caller, Reach, Target};
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use sale::{Millis, SharedClock};
use serde::Deserialize;
use tokio::time::Instant;

use super::{
    seal::{ApiKeys, Sealed},
    settings::{PUBLIC_KEY_PREFIX, WechatSettings, public_key},
};
use crate::{
    NoticeError, ProviderError, caller_to,
    certificate::{Certificate, hex},
    key_files::{KeyFiles, Keyring},
    rsa::{SigningKey, VerifyingKey, certificates},
};

/// One question. The engine's own limit is a little longer, so that the reason is ours to tell.
const ANSWER_WITHIN: Duration = Duration::from_secs(9);
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// A file of half a million lines.
pub(super) const BILL_BYTES_MAX: usize = 128 << 20;
const BILL_WITHIN: Duration = Duration::from_secs(110);
/// How far a signature's time may be from ours.
pub(super) const WINDOW_MS: Millis = 5 * 60 * 1_000;
/// Longer headers are not WeChat's.
const HEADER_BYTES_MAX: usize = 1_024;
/// Between two fetches of the platform certificates.
const FETCH_PAUSE: Duration = Duration::from_secs(10);
const CERTIFICATES_PATH: &str = "/v3/certificates";
/// How signatures begin that are wrong on purpose.
const PROBE_PREFIX: &str = "WECHATPAY/SIGNTEST/";
const SCHEME: &str = "WECHATPAY2-SHA256-RSA2048";

/// Who we are, to WeChat.
struct Merchant {
    key: SigningKey,
    serial: String,
}

/// An answer that WeChat signed.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Bytes,
}

/// How WeChat says no.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    pub(super) code: String,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn words(&self) -> String {
        format!("{}: {}", self.code, self.message)
    }
}

pub(super) struct Api {
    merchant_id: String,
    base_url: String,
    caller: Caller,
    clock: SharedClock,
    merchant: KeyFiles<Merchant>,
    api_keys: KeyFiles<ApiKeys>,
    /// From files: public keys by their ids, platform certificates by their serials.
    given: KeyFiles<Keyring>,
    /// The id that answers should be signed for, if the merchant has a public key of WeChat's.
    preferred: Option<String>,
    fetched: Mutex<Arc<Keyring>>,
    /// When the platform certificates were last asked for. Whoever finds a fetch under way waits for it.
    fetch: tokio::sync::Mutex<Option<Instant>>,
}

impl Api {
    /// Every mistake in a sentence, if something cannot be used.
    pub(super) fn open(settings: &WechatSettings, clock: SharedClock) -> Result<Api, Vec<String>> {
        let mut problems = Vec::new();
        let mut note = |problem: String| problems.push(problem);
        let caller = caller_to(&settings.ca_file).map_err(&mut note).ok();
        let merchant = merchant_files(settings).map_err(&mut note).ok();
        let api_keys = api_key_files(settings).map_err(&mut note).ok();
        let given = given_files(settings).map_err(&mut note).ok();
        let base_url = settings.base_url.trim_end_matches('/').to_owned();
        if base_url.parse::<Target>().is_err() {
            note("payment.wechat.base_url is no address that can be called".into());
        }
        let preferred = settings.public_keys.first().and_then(|named| public_key(named));
        match (caller, merchant, api_keys, given) {
            (Some(caller), Some(merchant), Some(api_keys), Some(given)) if problems.is_empty() => {
                Ok(Api {
                    merchant_id: settings.merchant_id.clone(),
                    base_url,
                    caller,
                    clock,
                    merchant,
                    api_keys,
                    given,
                    preferred: preferred.map(|(id, _)| id.to_owned()),
                    fetched: Mutex::default(),
                    fetch: tokio::sync::Mutex::default(),
                })
            }
            _ => Err(problems),
        }
    }

    /// As if the time to look at the files again had come.
    #[cfg(test)]
    pub(super) fn look_again(&self) {
        self.merchant.look_again();
        self.api_keys.look_again();
        self.given.look_again();
    }

    pub(super) fn unseal(&self, sealed: &Sealed) -> Option<Vec<u8>> {
        self.api_keys.now().open(sealed)
    }

    /// A signature of the merchant over these lines, each of which is ended.
    pub(super) fn sign(&self, lines: &[&str]) -> Result<String, ProviderError> {
        let message: String = lines.iter().flat_map(|line| [*line, "\n"]).collect();
        self.merchant.now().key.sign(message.as_bytes()).map_err(ProviderError::Unavailable)
    }

    pub(super) fn now_s(&self) -> i64 {
        self.clock.now_ms().div_euclid(1_000)
    }

    /// Ask, and believe the answer only with WeChat's signature. What is not an answer, or not WeChat's,
    /// is unknown.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<Reply, ProviderError> {
        let body = Bytes::from(body.map(ToString::to_string).unwrap_or_default());
        let mut probed = false;
        loop {
            let answer = self.call(&method, path, body.clone()).await?;
            let whole = answer.body.clone().ok_or_else(|| unknown("the answer is too long"))?;
            if answer.status >= 500 || answer.status == 429 {
                return Err(unknown(said(answer.status, &whole)));
            }
            match self.verify(&answer.headers, &whole).await {
                Ok(()) => return Ok(Reply { status: answer.status, body: whole }),
                // To see whether we look. We do, and ask again.
                Err(NoticeError::Probe) if !probed => probed = true,
                Err(error) => {
                    let said = said(answer.status, &whole);
                    return Err(unknown(format!(
                        "an answer that is not believed, {error}: {said}"
                    )));
                }
            }
        }
    }

    /// A file whose address WeChat has given us. It carries no signature; its digest was signed.
    pub(super) async fn download(&self, url: &str) -> Result<Bytes, ProviderError> {
        let target: Target = url.parse().map_err(|_| unknown("no address to download from"))?;
        let call = Call {
            within: BILL_WITHIN,
            answer_bytes_max: BILL_BYTES_MAX,
            ..self.signed(&Method::GET, &target, Bytes::new())?
        };
        let answer = self.caller.call(&call).await.map_err(unknown)?;
        let body = answer.body.ok_or_else(|| unknown("the file is too long"))?;
        if answer.status != 200 {
            return Err(unknown(said(answer.status, &body)));
        }
        Ok(body)
    }

    async fn call(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> Result<Answer, ProviderError> {
        let target: Target = format!("{}{path}", self.base_url)
            .parse()
            .map_err(|_| ProviderError::Refused("an address that cannot be called".into()))?;
        self.caller.call(&self.signed(method, &target, body)?).await.map_err(unknown)
    }

    fn signed<'t>(
        &self,
        method: &Method,
        target: &'t Target,
        body: Bytes,
    ) -> Result<Call<'t>, ProviderError> {
        let text = std::str::from_utf8(&body).unwrap_or_default();
        let (time, nonce) = (self.now_s().to_string(), nonce()?);
        let authorization =
            self.authorization([method.as_str(), target.path(), &time, &nonce, text])?;
        let mut headers = HeaderMap::new();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::ACCEPT, json.clone());
        if !body.is_empty() || method == Method::POST {
            headers.insert(header::CONTENT_TYPE, json);
        }
        let value = |text: &str| HeaderValue::from_str(text).map_err(unknown);
        headers.insert(header::AUTHORIZATION, value(&authorization)?);
        if let Some(id) = &self.preferred {
            headers.insert("wechatpay-serial", value(id)?);
        }
        Ok(Call {
            method: method.clone(),
            target,
            reach: Reach::Anywhere,
            headers,
            body,
            within: ANSWER_WITHIN,
            answer_bytes_max: ANSWER_BYTES_MAX,
        })
    }

    /// Over method, path with query, time, number used once, and body.
    pub(super) fn authorization(&self, parts: [&str; 5]) -> Result<String, ProviderError> {
        let signature = self.sign(&parts)?;
        let [_, _, time, nonce, _] = parts;
        let (merchant_id, serial) = (&self.merchant_id, &self.merchant.now().serial);
        Ok(format!(
            "{SCHEME} mchid=\"{merchant_id}\",nonce_str=\"{nonce}\",signature=\"{signature}\",\
             timestamp=\"{time}\",serial_no=\"{serial}\""
        ))
    }

    /// Did WeChat sign this body, a moment ago?
    pub(super) async fn verify(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), NoticeError> {
        let signed = Signed::of(headers)?;
        let now_ms = self.clock.now_ms();
        if (now_ms - signed.time_s.saturating_mul(1_000)).abs() > WINDOW_MS {
            return Err(NoticeError::Stale);
        }
        let key = match self.key(signed.serial, now_ms) {
            Some(key) => key,
            None => self.key_from_wechat(signed.serial).await.ok_or(NoticeError::BadSignature)?,
        };
        signed.verify(&key, body)
    }

    fn key(&self, serial: &str, now_ms: Millis) -> Option<VerifyingKey> {
        let given = self.given.now().get(serial, now_ms).cloned();
        given.or_else(|| self.fetched.lock().get(serial, now_ms).cloned())
    }

    /// A key that is not known yet may be a new one.
    async fn key_from_wechat(&self, serial: &str) -> Option<VerifyingKey> {
        let is_serial = serial.bytes().all(|byte| byte.is_ascii_hexdigit());
        if serial.starts_with(PUBLIC_KEY_PREFIX) || !is_serial {
            return None;
        }
        let mut last = self.fetch.lock().await;
        let now_ms = self.clock.now_ms();
        if let Some(key) = self.key(serial, now_ms) {
            return Some(key);
        }
        if last.is_some_and(|at| at.elapsed() < FETCH_PAUSE) {
            return None;
        }
        *last = Some(Instant::now());
        match self.fetch_certificates().await {
            Ok(ring) => *self.fetched.lock() = Arc::new(ring),
            Err(error) => {
                tracing::warn!(%error, "the platform certificates of WeChat Pay cannot be fetched");
            }
        }
        self.key(serial, now_ms)
    }

    async fn fetch_certificates(&self) -> Result<Keyring, ProviderError> {
        let answer = self.call(&Method::GET, CERTIFICATES_PATH, Bytes::new()).await?;
        let body = answer.body.ok_or_else(|| unknown("the answer is too long"))?;
        if answer.status != 200 {
            return Err(unknown(said(answer.status, &body)));
        }
        let fetched: Fetched = serde_json::from_slice(&body).map_err(unknown)?;
        let opened = fetched.data.iter().map(|one| {
            let pem = self.unseal(&one.encrypt_certificate)?;
            certificates(std::str::from_utf8(&pem).ok()?).ok()?.into_iter().next()
        });
        let opened: Option<Vec<Certificate>> = opened.collect();
        let opened =
            opened.ok_or_else(|| unknown("a certificate that the APIv3 key does not open"))?;
        let before = self.fetched.lock().clone();
        let ring = Keyring::of(named_by_serial(&opened), Some(&before));
        // The one that signed this answer is among them, or we knew it before.
        let signed = Signed::of(&answer.headers).map_err(unknown)?;
        let now_ms = self.clock.now_ms();
        let key = ring.get(signed.serial, now_ms).cloned();
        let key = key.or_else(|| self.given.now().get(signed.serial, now_ms).cloned());
        let key = key.ok_or_else(|| unknown("signed with a key that is not among them"))?;
        match signed.verify(&key, &body) {
            // The seal has proved them already, and a trial would cost us a pause.
            Ok(()) | Err(NoticeError::Probe) => Ok(ring),
            Err(error) => Err(unknown(error)),
        }
    }
}

#[derive(Deserialize)]
struct Fetched {
    data: Vec<FetchedCertificate>,
}

#[derive(Deserialize)]
struct FetchedCertificate {
    encrypt_certificate: Sealed,
}

/// The headers that carry a signature.
struct Signed<'h> {
    time_s: i64,
    time: &'h str,
    nonce: &'h str,
    signature: &'h str,
    serial: &'h str,
}

impl<'h> Signed<'h> {
    fn of(headers: &'h HeaderMap) -> Result<Signed<'h>, NoticeError> {
        let only = |name: &str| {
            let mut all = headers.get_all(name).iter();
            let first = all.next().and_then(|value| value.to_str().ok());
            let good = first.filter(|text| !text.is_empty() && text.len() <= HEADER_BYTES_MAX);
            good.filter(|_| all.next().is_none()).ok_or(NoticeError::BadSignature)
        };
        let signature = only("wechatpay-signature")?;
        if signature.starts_with(PROBE_PREFIX) {
            return Err(NoticeError::Probe);
        }
        let time = only("wechatpay-timestamp")?;
        let digits = time.bytes().all(|byte| byte.is_ascii_digit());
        let time_s = time.parse().ok().filter(|_| digits).ok_or(NoticeError::BadSignature)?;
        let (nonce, serial) = (only("wechatpay-nonce")?, only("wechatpay-serial")?);
        Ok(Signed { time_s, time, nonce, signature, serial })
    }

    fn verify(&self, key: &VerifyingKey, body: &[u8]) -> Result<(), NoticeError> {
        let head = format!("{}\n{}\n", self.time, self.nonce);
        let message = [head.as_bytes(), body, b"\n"].concat();
        key.verify(&message, self.signature).then_some(()).ok_or(NoticeError::BadSignature)
    }
}

fn merchant_files(settings: &WechatSettings) -> Result<KeyFiles<Merchant>, String> {
    let mut files = vec![settings.private_key_file.clone()];
    if !settings.certificate_file.as_os_str().is_empty() {
        files.push(settings.certificate_file.clone());
    }
    let (names, serial) = (names(&files), settings.certificate_serial.clone());
    KeyFiles::open(files, move |texts, _| {
        let key = SigningKey::from_text(&texts[0]).map_err(|why| format!("{} {why}", names[0]))?;
        let Some(text) = texts.get(1) else { return Ok(Merchant { key, serial: serial.clone() }) };
        let all = certificates(text).map_err(|why| format!("{} {why}", names[1]))?;
        let fits = VerifyingKey::of(&all[0]).is_some_and(|public| public.is_of(&key));
        if !fits {
            return Err(format!("{} is not the certificate of the key in {}", names[1], names[0]));
        }
        Ok(Merchant { key, serial: all[0].serial_hex() })
    })
}

fn api_key_files(settings: &WechatSettings) -> Result<KeyFiles<ApiKeys>, String> {
    let file = &settings.api_v3_key_file;
    if file.as_os_str().is_empty() {
        let key = settings.api_v3_key.clone();
        return KeyFiles::open(Vec::new(), move |_, before| ApiKeys::new(key.expose(), before));
    }
    let name = file.display().to_string();
    KeyFiles::open(vec![file.clone()], move |texts, before| {
        ApiKeys::new(&texts[0], before).map_err(|why| format!("{name}: {why}"))
    })
}

fn given_files(settings: &WechatSettings) -> Result<KeyFiles<Keyring>, String> {
    let named: Vec<(String, PathBuf)> = settings
        .public_keys
        .iter()
        .filter_map(|named| public_key(named))
        .map(|(id, file)| (id.to_owned(), file))
        .collect();
    let mut files: Vec<PathBuf> = named.iter().map(|(_, file)| file.clone()).collect();
    let platform = &settings.platform_certificates_file;
    if !platform.as_os_str().is_empty() {
        files.push(platform.clone());
    }
    let names = names(&files);
    KeyFiles::open(files, move |texts, before| {
        let mut keys = Vec::new();
        for ((id, _), (text, name)) in named.iter().zip(texts.iter().zip(&names)) {
            let key = VerifyingKey::from_text(text).map_err(|why| format!("{name} {why}"))?;
            keys.push((id.clone(), key, Millis::MAX));
        }
        if let (Some(text), Some(name)) = (texts.get(named.len()), names.get(named.len())) {
            let all = certificates(text).map_err(|why| format!("{name} {why}"))?;
            keys.extend(named_by_serial(&all));
        }
        Ok(Keyring::of(keys, before))
    })
}

fn named_by_serial(all: &[Certificate]) -> Vec<(String, VerifyingKey, Millis)> {
    let named = all
        .iter()
        .filter_map(|one| Some((one.serial_hex(), VerifyingKey::of(one)?, one.not_after_ms)));
    named.collect()
}

fn names(files: &[PathBuf]) -> Vec<String> {
    files.iter().map(|file| file.display().to_string()).collect()
}

/// A number used once, of the letters that WeChat allows.
pub(super) fn nonce() -> Result<String, ProviderError> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| unknown("no random bytes"))?;
    Ok(hex(&bytes))
}

pub(super) fn unknown(why: impl std::fmt::Display) -> ProviderError {
    ProviderError::Unavailable(why.to_string())
}

/// What an answer says, for a person who reads the log.
fn said(status: u16, body: &[u8]) -> String {
    let refusal: Refusal = serde_json::from_slice(body).unwrap_or_default();
    let words = format!("{status} {} {}", refusal.code, refusal.message);
    words.chars().filter(|c| !c.is_control()).take(200).collect()
}

//! The crowd: many buyers, all at once, each remembering what it was told.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hdrhistogram::Histogram;
use hmac::{Hmac, KeyInit, Mac};
use sale::{Clock, SystemClock};
use serde::Deserialize;
use serde_json::json;
use sha2::Sha256;
use tokio::{
    sync::{Barrier, Semaphore},
    time::timeout,
};

use crate::{
    Answer, Api, ApiError, Connection, History, Response, Told,
    client::ANSWER_WITHIN,
    open_loop::{key_of, write_claim},
};

/// A sale token for each buyer.
pub type SaleTokens = Vec<(String, String)>;

/// The longest latency that is told apart, in microseconds.
const LATENCY_US_MAX: u64 = 60_000_000;
/// Connections that are being opened at the same time: more would only overflow the queue of the
/// listener and wait for the kernel's retries.
pub(crate) const OPENING_MAX: usize = 256;

#[derive(Clone)]
pub struct Crowd {
    /// The instances; connections are spread over them.
    pub addresses: Vec<SocketAddr>,
    pub item: i64,
    pub quantity: u32,
    /// Buyers share this many connections; those of one connection go one after the other, or, if
    /// `at_once`, send their claims without waiting for each other's answers.
    pub connections: usize,
    pub at_once: bool,
    /// Every buyer sends an `Idempotency-Key` of its own.
    pub keys: bool,
}

pub struct CrowdReport {
    pub history: History,
    /// When the first request left.
    pub began: Instant,
    /// From then to the last answer.
    pub took: Duration,
    /// In microseconds, from sending to the answer.
    pub latency: Histogram<u64>,
}

impl CrowdReport {
    pub fn per_second(&self) -> f64 {
        self.history.told.len() as f64 / self.took.as_secs_f64()
    }
}

impl Crowd {
    /// Every buyer claims once. All connections are open before the first claim leaves.
    pub async fn rush(&self, buyers: SaleTokens) -> CrowdReport {
        let connections = self.connections.clamp(1, buyers.len().max(1));
        let mut shares: Vec<SaleTokens> = vec![Vec::new(); connections];
        for (n, buyer) in buyers.into_iter().enumerate() {
            shares[n % connections].push(buyer);
        }
        let ready = Arc::new(Barrier::new(connections + 1));
        let opening = Arc::new(Semaphore::new(OPENING_MAX));
        let start = |(n, share): (usize, SaleTokens)| {
            let address = self.addresses[n % self.addresses.len()];
            self.clone().one_connection(address, share, opening.clone(), ready.clone())
        };
        let shares = shares.into_iter().enumerate();
        let runs: Vec<_> = shares.map(|share| tokio::spawn(start(share))).collect();
        ready.wait().await;
        let started = Instant::now();
        let mut report = CrowdReport {
            history: History::default(),
            began: started,
            took: Duration::ZERO,
            latency: new_histogram(),
        };
        for run in runs {
            let (told, latency) = run.await.expect("a buyer does not panic");
            report.history.told.extend(told);
            report.latency.add(latency).expect("all histograms are alike");
        }
        report.took = started.elapsed();
        report
    }

    async fn one_connection(
        self,
        address: SocketAddr,
        buyers: SaleTokens,
        opening: Arc<Semaphore>,
        ready: Arc<Barrier>,
    ) -> (Vec<Told>, Histogram<u64>) {
        let permit = opening.acquire().await;
        let mut connection = Connection::open(address).await.ok();
        drop(permit);
        ready.wait().await;
        let mut told = Vec::with_capacity(buyers.len());
        let mut latency = new_histogram();
        let together = if self.at_once { buyers.len() } else { 1 };
        let mut requests = Vec::new();
        for group in buyers.chunks(together.max(1)) {
            requests.clear();
            group.iter().for_each(|buyer| self.write_claim(&mut requests, address, buyer));
            let sent = Instant::now();
            let mut open = connection.take();
            if let Some(there) = &mut open
                && there.write(&requests).await.is_err()
            {
                open = None;
            }
            for (user, _) in group {
                let response = match &mut open {
                    Some(there) => timeout(ANSWER_WITHIN, there.read()).await.ok(),
                    None => None,
                };
                latency.saturating_record(sent.elapsed().as_micros() as u64);
                let response = response.and_then(Result::ok);
                if response.is_none() {
                    open = None;
                }
                let answer = response.as_ref().map_or(Answer::Unknown, answer);
                told.push(Told {
                    user: user.clone(),
                    item: self.item,
                    key: self.key(user),
                    answer,
                });
            }
            connection = match open {
                Some(there) => Some(there),
                None => Connection::open(address).await.ok(),
            };
        }
        (told, latency)
    }

    fn key(&self, user: &str) -> Option<String> {
        self.keys.then(|| key_of(user))
    }

    fn write_claim(&self, out: &mut Vec<u8>, host: SocketAddr, (user, token): &(String, String)) {
        let path = format!("/api/v1/items/{}/claims", self.item);
        let body = format!("{{\"quantity\":{}}}", self.quantity);
        let key = self.key(user);
        write_claim(out, host, &path, (token, key.as_deref()), &body);
    }
}

pub(crate) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are good")
}

/// What a response to a claim says.
pub fn answer(response: &Response) -> Answer {
    /// The two fields that matter; a text with escapes in it would not be one of ours.
    #[derive(Default, Deserialize)]
    struct Said<'a> {
        #[serde(default, borrow)]
        order_no: Option<&'a str>,
        #[serde(default, borrow)]
        code: Option<&'a str>,
    }
    let said: Said = serde_json::from_slice(&response.body).unwrap_or_default();
    let order_no = || said.order_no.and_then(|no| no.parse().ok());
    match (response.status, said.code) {
        (202, _) => order_no().map_or(Answer::Unknown, |order_no| Answer::Admitted { order_no }),
        (409, Some("already_bought")) => {
            order_no().map_or(Answer::Unknown, |order_no| Answer::AlreadyBought { order_no })
        }
        (409, Some("sold_out")) => Answer::SoldOut,
        (status, code) => Answer::Refused(code.unwrap_or(&status.to_string()).to_owned()),
    }
}

/// How buyers sign in.
#[derive(Clone, Debug)]
pub enum Login {
    /// With the demo login of a solo server.
    Dev,
    /// With a JWT of the shop, signed here with its HS256 secret.
    Shop { secret: String },
}

impl Login {
    /// A bearer token for this buyer.
    pub async fn token(&self, api: &mut Api, user: &str) -> Result<String, ApiError> {
        match self {
            Login::Dev => {
                let body = json!({"user_id": user});
                let answer: serde_json::Value = api.write("/api/v1/dev/login", &body).await?;
                Ok(answer["token"].as_str().unwrap_or_default().to_owned())
            }
            Login::Shop { secret } => Ok(jwt(secret, user)),
        }
    }
}

/// A JWT that is good for an hour.
fn jwt(secret: &str, user: &str) -> String {
    let part = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let expires = SystemClock.now_ms() / 1_000 + 3_600;
    let head = part(&json!({"alg": "HS256", "typ": "JWT"}));
    let signed = format!("{head}.{}", part(&json!({"sub": user, "exp": expires})));
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

/// Sign everybody in and fetch their sale tokens, over a few connections.
pub async fn sale_tokens(
    address: SocketAddr,
    login: &Login,
    item: i64,
    users: Vec<String>,
) -> Result<SaleTokens, ApiError> {
    const CONNECTIONS: usize = 16;
    let share = users.len().div_ceil(CONNECTIONS).max(1);
    let runs: Vec<_> = users
        .chunks(share)
        .map(|users| tokio::spawn(tokens_of(address, login.clone(), item, users.to_vec())))
        .collect();
    let mut tokens = Vec::new();
    for run in runs {
        tokens.extend(run.await.map_err(std::io::Error::other)??);
    }
    Ok(tokens)
}

async fn tokens_of(
    address: SocketAddr,
    login: Login,
    item: i64,
    users: Vec<String>,
) -> Result<SaleTokens, ApiError> {
    let mut api = Api::new(address, None);
    let mut tokens = Vec::with_capacity(users.len());
    for user in users {
        let bearer = format!("Bearer {}", login.token(&mut api, &user).await?);
        let path = format!("/api/v1/items/{item}/token");
        let response = api.send("POST", &path, &[("authorization", &bearer)], b"").await?;
        if response.status != 200 {
            let body = String::from_utf8_lossy(&response.body).into_owned();
            let method = "POST".into();
            return Err(ApiError::Status { method, path, status: response.status, body });
        }
        let token = response.json()["token"].as_str().unwrap_or_default().to_owned();
        tokens.push((user, token));
    }
    Ok(tokens)
}

//! Many buyers who claim at once and as fast as they are answered: a closed loop, for tests and
//! benchmarks. What each of them was told is written down.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use checker::{Answer, AnsweredClaim, History};
use hdrhistogram::Histogram;
use tokio::{
    sync::{Barrier, Semaphore},
    time::timeout,
};

use crate::{
    Connection, SaleTokens,
    claim::{answer_of, key_of, write_claim},
    connection::ANSWER_WITHIN,
};

/// The longest latency that is told apart, in microseconds.
const LATENCY_US_MAX: u64 = 60_000_000;
/// Connections that are being opened at the same time: more would only overflow the queue of the
/// listener and wait for the kernel's retries.
pub const OPENING_MAX: usize = 256;

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

/// What one connection heard. Plain numbers: a histogram for each of thousands of connections is a few
/// hundred megabytes, and adding them up took as long as the crowd.
struct Heard {
    claims: Vec<AnsweredClaim>,
    latencies_us: Vec<u64>,
    /// When its last answer came.
    last: Instant,
}

impl CrowdReport {
    pub fn per_second(&self) -> f64 {
        self.history.claims.len() as f64 / self.took.as_secs_f64()
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
            let heard = run.await.expect("a buyer does not panic");
            report.history.claims.extend(heard.claims);
            heard.latencies_us.into_iter().for_each(|us| report.latency.saturating_record(us));
            report.took = report.took.max(heard.last.saturating_duration_since(started));
        }
        report
    }

    async fn one_connection(
        self,
        address: SocketAddr,
        buyers: SaleTokens,
        opening: Arc<Semaphore>,
        ready: Arc<Barrier>,
    ) -> Heard {
        let permit = opening.acquire().await;
        let mut connection = Connection::open(address).await.ok();
        drop(permit);
        let mut claims = Vec::with_capacity(buyers.len());
        let mut latencies_us = Vec::with_capacity(buyers.len());
        ready.wait().await;
        let mut last = Instant::now();
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
                last = Instant::now();
                latencies_us.push(last.saturating_duration_since(sent).as_micros() as u64);
                let response = response.and_then(Result::ok);
                if response.is_none() {
                    open = None;
                }
                let answer = response.as_ref().map_or(Answer::Unknown, answer_of);
                let (user, item, key) = (user.clone(), self.item, self.key(user));
                claims.push(AnsweredClaim { user, item, key, answer });
            }
            connection = match open {
                Some(there) => Some(there),
                None => Connection::open(address).await.ok(),
            };
        }
        Heard { claims, latencies_us, last }
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

/// For latencies in microseconds.
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are good")
}

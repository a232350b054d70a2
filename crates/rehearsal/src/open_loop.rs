//! An open loop over HTTP: requests leave when they are due, however slow the answers are.
//!
//! A closed loop asks again only after it was answered, so a server that stalls is asked less just
//! when it is slow, and the figures look better than what buyers feel. Here every request has its
//! instant, planned before; latency counts from that instant, also for the time in which no
//! connection was free.
//!
//! Three things are told apart. *Latency*: from the planned instant to the answer. *Service*: from
//! sending to the answer, what a closed loop would have seen. *Lag*: how late a request left although
//! a connection was free; that is the generator's own fault, and figures with much of it say more
//! about the generator than about the server.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use checker::{Answer, AnsweredClaim, History};
use client::{
    ANSWER_WITHIN, Connection, OPENING_MAX, Response, answer_of, key_of, new_histogram, write_claim,
};
use hdrhistogram::Histogram;
use tokio::{sync::Semaphore, task::JoinHandle, time::timeout};

use crate::agenda::{Agenda, Fetched};

/// A generator that sends later than this in one of a hundred cases measures itself.
pub const LAG_P99_US_MAX: u64 = 5_000;
/// A connection idle for longer is opened anew: the server may be closing it at this very moment.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Between the last connection that opens and the first request.
const LEAD: Duration = Duration::from_millis(20);

/// When things happened to one task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) due: Instant,
    pub(crate) sent: Instant,
    pub(crate) done: Instant,
    /// No connection was free when it was due.
    pub(crate) kept_waiting: bool,
}

/// The histograms of an open loop, in microseconds.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// From the planned instant to the answer.
    pub latency: Histogram<u64>,
    /// From sending to the answer.
    pub service: Histogram<u64>,
    /// From the planned instant to sending, where a connection was free.
    pub lag: Histogram<u64>,
    /// Requests that found no connection free.
    pub kept_waiting: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies {
            latency: new_histogram(),
            service: new_histogram(),
            lag: new_histogram(),
            kept_waiting: 0,
        }
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, timing: Timing) {
        let between = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
        };
        self.latency.saturating_record(between(timing.due, timing.done));
        self.service.saturating_record(between(timing.sent, timing.done));
        if timing.kept_waiting {
            self.kept_waiting += 1;
        } else {
            self.lag.saturating_record(between(timing.due, timing.sent));
        }
    }

    /// The generator kept its own plan well enough for the figures to be the server's.
    pub fn generator_kept_up(&self) -> bool {
        self.lag.value_at_quantile(0.99) <= LAG_P99_US_MAX
    }
}

/// What is asked, and what follows from the answer.
pub(crate) trait Script: Send + Sync + 'static {
    type Task: Send + 'static;

    /// Write the request of this task as it goes over the wire.
    fn write(&self, task: &Self::Task, address: SocketAddr, out: &mut Vec<u8>);

    /// The answer, or nothing if the connection broke. Tells the tasks that follow.
    fn heard(
        &self,
        task: Self::Task,
        response: Option<Response>,
        timing: Timing,
    ) -> Vec<(Instant, Self::Task)>;
}

/// Open connections, spread over the instances, that wait for something to do.
pub(crate) struct Senders(Vec<Sender>);

impl Senders {
    /// Those that cannot be opened now are tried again when they are needed.
    pub(crate) async fn open(addresses: &[SocketAddr], count: usize) -> Senders {
        let opening = Arc::new(Semaphore::new(OPENING_MAX));
        let open = |address: SocketAddr| {
            let opening = opening.clone();
            tokio::spawn(async move {
                let _permit = opening.acquire().await;
                Sender { connection: greeted(address).await, address, used: Instant::now() }
            })
        };
        let each = addresses.iter().copied().cycle().take(count);
        let runs: Vec<JoinHandle<Sender>> = each.map(open).collect();
        let mut senders = Vec::with_capacity(count);
        for run in runs {
            senders.extend(run.await.ok());
        }
        Senders(senders)
    }

    /// Do what is on the agenda until it is over.
    pub(crate) async fn perform<S: Script>(
        self,
        script: Arc<S>,
        agenda: Arc<Agenda<S::Task>>,
    ) -> std::io::Result<()> {
        let work = |sender: Sender| tokio::spawn(sender.work(script.clone(), agenda.clone()));
        let runs: Vec<JoinHandle<()>> = self.0.into_iter().map(work).collect();
        agenda.start_pacer()?;
        for run in runs {
            run.await.map_err(std::io::Error::other)?;
        }
        Ok(())
    }
}

/// A connection over which something was said already, as a buyer's who has the page open. One that
/// was never used would soon be cut off: the server takes it for somebody who only holds it open.
async fn greeted(address: SocketAddr) -> Option<Connection> {
    let mut connection = Connection::open(address).await.ok()?;
    connection.send("GET", "/api/v1/time", &[], b"").await.ok()?;
    Some(connection)
}

struct Sender {
    address: SocketAddr,
    connection: Option<Connection>,
    used: Instant,
}

impl Sender {
    async fn work<S: Script>(mut self, script: Arc<S>, agenda: Arc<Agenda<S::Task>>) {
        let mut request = Vec::new();
        while let Some(Fetched { due, task, kept_waiting }) = agenda.next().await {
            request.clear();
            script.write(&task, self.address, &mut request);
            let sent = Instant::now();
            let response = self.exchange(&request).await;
            let done = Instant::now();
            self.used = done;
            let timing = Timing { due, sent, done, kept_waiting };
            agenda.done(script.heard(task, response, timing));
        }
    }

    async fn exchange(&mut self, request: &[u8]) -> Option<Response> {
        if self.used.elapsed() > IDLE_MAX {
            self.connection = None;
        }
        if self.connection.is_none() {
            self.connection = Connection::open(self.address).await.ok();
        }
        let open = self.connection.as_mut()?;
        let response =
            timeout(ANSWER_WITHIN, open.exchange(request)).await.ok().and_then(Result::ok);
        // Most answers are short and say nothing about the connection; looking is cheap.
        let closes = |response: &Response| response.header("connection") == Some("close");
        if response.as_ref().is_none_or(closes) {
            self.connection = None;
        }
        response
    }
}

/// A buyer who comes at a planned instant.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// After the start.
    pub at: Duration,
    pub user: String,
    /// Its sale token.
    pub token: String,
}

/// Buyers who each claim once, at their own instants, and leave.
#[derive(Clone, Debug)]
pub struct OpenLoop {
    /// The instances; connections are spread over them.
    pub addresses: Vec<SocketAddr>,
    pub item: i64,
    pub quantity: u32,
    pub connections: usize,
    /// Every buyer sends an `Idempotency-Key` of its own.
    pub keys: bool,
}

pub struct OpenLoopReport {
    pub history: History,
    /// From the start of the plan to the last answer.
    pub took: Duration,
    pub latencies: Latencies,
    /// Of those alone who were told no.
    pub refused: Latencies,
}

impl OpenLoop {
    /// All connections are open before the first claim leaves.
    pub async fn run(&self, arrivals: Vec<Arrival>) -> std::io::Result<OpenLoopReport> {
        let senders = Senders::open(&self.addresses, self.connections.max(1)).await;
        let start = Instant::now() + LEAD;
        let claims = Vec::with_capacity(arrivals.len());
        let script = Arc::new(OneClaimEach {
            path: format!("/api/v1/items/{}/claims", self.item),
            body: format!("{{\"quantity\":{}}}", self.quantity),
            item: self.item,
            keys: self.keys,
            heard: Mutex::new(Noted { claims, ..Noted::default() }),
        });
        let tasks = arrivals.into_iter().map(|arrival| (start + arrival.at, arrival)).collect();
        senders.perform(script.clone(), Agenda::new(tasks)).await?;
        let mut heard = script.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let Noted { claims, latencies, refused } = std::mem::take(&mut *heard);
        let history = History { claims };
        Ok(OpenLoopReport { history, took: start.elapsed(), latencies, refused })
    }
}

struct OneClaimEach {
    path: String,
    body: String,
    item: i64,
    keys: bool,
    heard: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    claims: Vec<AnsweredClaim>,
    latencies: Latencies,
    refused: Latencies,
}

impl Script for OneClaimEach {
    type Task = Arrival;

    fn write(&self, arrival: &Arrival, address: SocketAddr, out: &mut Vec<u8>) {
        let key = self.keys.then(|| key_of(&arrival.user));
        write_claim(out, address, &self.path, (&arrival.token, key.as_deref()), &self.body);
    }

    fn heard(
        &self,
        arrival: Arrival,
        response: Option<Response>,
        timing: Timing,
    ) -> Vec<(Instant, Arrival)> {
        let answer = response.as_ref().map_or(Answer::Unknown, answer_of);
        let key = self.keys.then(|| key_of(&arrival.user));
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(answer, Answer::Admitted { .. } | Answer::Unknown) {
            heard.refused.record(timing);
        }
        heard.claims.push(AnsweredClaim { user: arrival.user, item: self.item, key, answer });
        heard.latencies.record(timing);
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// A server that says "sold out" after a pause, to everybody.
    async fn slow_server(pause: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut heard = [0; 4_096];
                    while stream.read(&mut heard).await.is_ok_and(|bytes| bytes > 0) {
                        tokio::time::sleep(pause).await;
                        let body = r#"{"code":"sold_out"}"#;
                        let head = format!("HTTP/1.1 409 No\r\ncontent-length: {}", body.len());
                        let _ = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await;
                    }
                });
            }
        });
        address
    }

    fn arrivals(count: u64, every: Duration) -> Vec<Arrival> {
        let one =
            |n: u64| Arrival { at: every * n as u32, user: format!("u{n}"), token: "t".into() };
        (0..count).map(one).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_slow_server_cannot_slow_the_plan_down() {
        let pause = Duration::from_millis(40);
        let address = slow_server(pause).await;
        let open = |connections| OpenLoop {
            addresses: vec![address],
            item: 1,
            quantity: 1,
            connections,
            keys: false,
        };
        // Twenty requests in 100 ms over one connection that does one per 40 ms: the last one waits
        // for 700 ms, which a closed loop would call 40.
        let plan = || arrivals(20, Duration::from_millis(5));
        let report = open(1).run(plan()).await.unwrap();
        assert_eq!(report.history.count(|answer| *answer == Answer::SoldOut), 20);
        let Latencies { latency, service, kept_waiting, .. } = &report.latencies;
        assert!(latency.max() > 500_000, "{} µs", latency.max());
        assert!(service.value_at_quantile(0.5) < 200_000);
        assert_eq!(*kept_waiting, 19);
        assert_eq!(report.refused.latency.len(), 20);
        // With a connection for each nobody waits.
        let report = open(20).run(plan()).await.unwrap();
        assert!(report.latencies.latency.value_at_quantile(0.5) < 200_000);
    }

    #[tokio::test]
    async fn a_broken_connection_is_an_unknown_answer() {
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = nobody.local_addr().unwrap();
        drop(nobody);
        let open_loop =
            OpenLoop { addresses: vec![address], item: 1, quantity: 1, connections: 2, keys: true };
        let report = open_loop.run(arrivals(3, Duration::ZERO)).await.unwrap();
        assert_eq!(report.history.count(|answer| *answer == Answer::Unknown), 3);
        assert_eq!(report.history.claims[0].key.as_deref(), Some("key-u0"));
    }
}

//! One connection as the outside sees it: what it is doing, since when, and whether it must go.
//!
//! Hyper has one timer for "idle" and "head unfinished", and sets it anew for every request. Here a
//! connection only notes its stage and the time in two atomics, and one watchman for all of them
//! looks a few times per second for those that are late. A request costs no timer.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    task::Waker,
    time::{Duration, Instant},
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{NetOptions, ROUND};
use crate::metrics::{CONNECTIONS, CONNECTIONS_CUT, HttpMetrics};

/// A longer time between two rounds counts as this much.
const ROUND_MS_MAX: u64 = 2 * ROUND.as_millis() as u64;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stage {
    /// Between requests.
    Quiet,
    /// New, or part of a request's head has come.
    Head,
    /// A request is with its handler, or its answer on the way.
    Busy,
    /// An express request waits for its decision.
    Waiting,
    /// Not HTTP any more: a WebSocket.
    Upgraded,
}

pub(super) struct Link {
    id: u64,
    crew: Arc<Crew>,
    stage: AtomicU8,
    since_ms: AtomicU64,
    /// Since when the client takes nothing of what we write, or 0.
    stalled_ms: AtomicU64,
    cut: AtomicBool,
    /// Requests that are with the router.
    requests: AtomicU32,
    /// The body of a request was not read to its end, and may still be on its way.
    unread: AtomicBool,
    /// The answer under way has no end of its own: it ends with its client.
    streaming: AtomicBool,
    /// Whoever drives the connection now: its task, or after an upgrade the reader of the socket.
    driver: AtomicWaker,
}

impl Link {
    pub(super) fn stage(&self) -> Stage {
        match self.stage.load(Relaxed) {
            0 => Stage::Quiet,
            1 => Stage::Head,
            2 => Stage::Busy,
            3 => Stage::Waiting,
            _ => Stage::Upgraded,
        }
    }

    pub(super) fn crew(&self) -> &Arc<Crew> {
        &self.crew
    }

    pub(super) fn enter(&self, stage: Stage) {
        // An upgrade is for good: the answer that made it must not make the connection idle again.
        if self.stage() != Stage::Upgraded {
            self.since_ms.store(self.crew.now_ms(), Relaxed);
            self.stage.store(stage as u8, Relaxed);
        }
    }

    pub(super) fn has_read(&self) {
        if self.stage() == Stage::Quiet {
            self.enter(Stage::Head);
        }
    }

    pub(super) fn has_written(&self, stalled: bool) {
        let since = self.stalled_ms.load(Relaxed);
        if stalled && since == 0 {
            self.stalled_ms.store(self.crew.now_ms().max(1), Relaxed);
        } else if !stalled && since != 0 {
            self.stalled_ms.store(0, Relaxed);
        }
    }

    /// Does an answer wait for the client to take more of it? Hyper may have all of it in its own
    /// buffer, and the request be over as far as its handler is concerned.
    fn is_writing(&self) -> bool {
        self.stalled_ms.load(Relaxed) != 0
    }

    pub(super) fn leaves_unread(&self, unread: bool) {
        self.unread.store(unread, Relaxed);
    }

    pub(super) fn leaves_any_unread(&self) -> bool {
        self.unread.load(Relaxed)
    }

    pub(super) fn streams(&self) {
        self.streaming.store(true, Relaxed);
    }

    pub(super) fn is_streaming(&self) -> bool {
        self.streaming.load(Relaxed)
    }

    /// A request is with the router.
    pub(super) fn begin(&self) {
        self.streaming.store(false, Relaxed);
        self.requests.fetch_add(1, Relaxed);
        self.enter(Stage::Busy);
    }

    /// Its answer was taken. The next one may have begun before.
    pub(super) fn end(&self) {
        if self.requests.fetch_sub(1, Relaxed) == 1 {
            self.enter(Stage::Quiet);
        }
    }

    /// Is the last request over from its first byte to the last one of its answer?
    pub(super) fn is_free(&self) -> bool {
        self.stage() == Stage::Quiet && !self.is_writing() && !self.unread.load(Relaxed)
    }

    /// Has an express request waited for too long?
    pub(super) fn is_overdue(&self) -> bool {
        self.stage() == Stage::Waiting
            && self.is_older(self.since_ms.load(Relaxed), self.crew.options.request_timeout)
    }

    /// The time is as coarse as the watchman's rounds, so one round is added: nobody is cut before
    /// the limit.
    fn is_older(&self, since_ms: u64, limit: Duration) -> bool {
        self.crew.now_ms().saturating_sub(since_ms) > (limit + ROUND).as_millis() as u64
    }

    /// Would a cut now break off a request or an answer?
    fn is_needed(&self) -> bool {
        self.is_writing() || matches!(self.stage(), Stage::Busy | Stage::Waiting | Stage::Upgraded)
    }

    /// Wake this one when the connection is to be cut, or all are to drain.
    pub(super) fn is_driven_by(&self, waker: &Waker) {
        self.driver.register(waker);
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Relaxed)
    }

    fn cut(&self) {
        self.cut.store(true, Relaxed);
        self.driver.wake();
    }

    /// Why the connection must go, if it must.
    fn is_late(&self, options: &NetOptions) -> Option<&'static str> {
        let stalled_ms = self.stalled_ms.load(Relaxed);
        if stalled_ms != 0 && self.is_older(stalled_ms, options.write_timeout) {
            return Some("write");
        }
        let since_ms = self.since_ms.load(Relaxed);
        match self.stage() {
            _ if self.is_writing() => None,
            Stage::Head if self.is_older(since_ms, options.header_timeout) => Some("head"),
            Stage::Quiet if self.is_older(since_ms, options.idle_timeout) => Some("idle"),
            _ => None,
        }
    }
}

/// Takes the link off the books when the socket is dropped, wherever an upgrade has carried it.
pub(super) struct OnBoard(pub(super) Arc<Link>);

impl Drop for OnBoard {
    fn drop(&mut self) {
        self.0.crew.leave(self.0.id);
    }
}

/// All connections of one listener.
pub(super) struct Crew {
    links: Mutex<HashMap<u64, Arc<Link>>>,
    options: NetOptions,
    began: Instant,
    now_ms: AtomicU64,
    /// When the watchman last went round, by the clock.
    last_round_ms: AtomicU64,
    last_id: AtomicU64,
    draining: AtomicBool,
    emptied: Notify,
    /// For what is refused before anybody serves it.
    metrics: HttpMetrics,
}

impl Crew {
    pub(super) fn new(options: NetOptions) -> Arc<Self> {
        Arc::new(Crew {
            links: Mutex::default(),
            options,
            began: Instant::now(),
            now_ms: AtomicU64::new(0),
            last_round_ms: AtomicU64::new(0),
            last_id: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            emptied: Notify::new(),
            metrics: HttpMetrics::new(),
        })
    }

    pub(super) fn metrics(&self) -> &HttpMetrics {
        &self.metrics
    }

    pub(super) fn options(&self) -> &NetOptions {
        &self.options
    }

    /// Since the start, as of the watchman's last round: connections note the time several times
    /// per request, and a look at a number costs less than a look at the clock.
    fn now_ms(&self) -> u64 {
        self.now_ms.load(Relaxed)
    }

    /// `None` if there are as many as may be.
    pub(super) fn board(self: &Arc<Self>) -> Option<OnBoard> {
        let mut links = self.links.lock();
        if links.len() >= self.options.connections_max {
            return None;
        }
        let id = self.last_id.fetch_add(1, Relaxed);
        let link = Arc::new(Link {
            id,
            crew: self.clone(),
            // Whoever connects has something to ask: silence is not idleness yet.
            stage: AtomicU8::new(Stage::Head as u8),
            since_ms: AtomicU64::new(self.now_ms()),
            stalled_ms: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            requests: AtomicU32::new(0),
            unread: AtomicBool::new(false),
            streaming: AtomicBool::new(false),
            driver: AtomicWaker::new(),
        });
        links.insert(id, link.clone());
        metrics::gauge!(CONNECTIONS).set(links.len() as f64);
        Some(OnBoard(link))
    }

    fn leave(&self, id: u64) {
        let mut links = self.links.lock();
        links.remove(&id);
        metrics::gauge!(CONNECTIONS).set(links.len() as f64);
        if links.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.links.lock().len()
    }

    /// One round of the watchman.
    pub(super) fn go_round(&self) {
        // A process that slept has not been waiting: its clients were not either.
        let real_ms = self.began.elapsed().as_millis() as u64;
        let slept_ms = real_ms.saturating_sub(self.last_round_ms.swap(real_ms, Relaxed));
        self.now_ms.fetch_add(slept_ms.min(ROUND_MS_MAX), Relaxed);
        let links = self.links.lock();
        for link in links.values().filter(|link| !link.is_cut()) {
            if let Some(reason) = link.is_late(&self.options) {
                metrics::counter!(CONNECTIONS_CUT, "reason" => reason).increment(1);
                link.cut();
            } else if link.is_overdue() {
                link.driver.wake();
            }
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Tell every connection that no further request is served on it.
    pub(super) fn drain(&self) {
        self.draining.store(true, Relaxed);
        self.links.lock().values().for_each(|link| link.driver.wake());
    }

    /// Cut the connections on which nothing would be lost.
    pub(super) fn cut_unneeded(&self) {
        let links = self.links.lock();
        links.values().filter(|link| !link.is_needed()).for_each(|link| link.cut());
    }

    /// Cut all that are left; how many they were.
    pub(super) fn cut_all(&self) -> usize {
        self.links.lock().values().map(|link| link.cut()).count()
    }

    /// Wait until no connection is left.
    pub(super) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.len() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

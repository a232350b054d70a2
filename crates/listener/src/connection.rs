//! One connection as the outside sees it: what it is doing, since when, and whether it must go.
//!
//! Hyper has one timer for "idle" and "head unfinished", and sets it anew for every request. Here a
//! connection only notes its stage and the time in two atomics, and one watchman for all of them
//! (see `connections`) looks a few times per second for those that are late. A request costs no timer.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    task::Waker,
};

use futures_util::task::AtomicWaker;
use limits::Subscriber;

use crate::{
    Hosts, HttpSettings,
    connections::{Connections, ROUND_MS},
    metrics::{CONNECTIONS_CUT, CUT_HANDSHAKE, CUT_RESET},
};

/// Requests that a client may give up before they are answered, beyond as many as were. A page that is left
/// gives up what it still waits for.
const GIVEN_UP_MAX: u32 = 100;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Between requests.
    Quiet,
    /// New, or part of a request's head has come.
    Head,
    /// A request is with its handler, or its answer on the way.
    Busy,
    /// A request of the fast path waits for its decision.
    Waiting,
    /// Not HTTP any more: a WebSocket.
    Upgraded,
    /// Client and server agree on TLS.
    Handshake,
}

/// How much would be lost with a connection, from the least on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worth {
    /// Nothing: it is between two requests.
    Idle,
    /// A request that has not come whole.
    Asking,
    /// A request whose body is late, or an answer that is not taken.
    Slow,
    /// News, which can be listened for anew.
    Listening,
    /// A request that is being answered.
    Served,
}

pub(crate) struct Connection {
    id: u64,
    /// The other end of the socket.
    address: IpAddr,
    pub(crate) subscriber: Subscriber,
    connections: Arc<Connections>,
    stage: AtomicU8,
    since_ms: AtomicU64,
    /// Since when the client takes nothing of what we write, or 0.
    stalled_ms: AtomicU64,
    cut: AtomicBool,
    /// It was cut to make room, and is not counted any more.
    gave_way: AtomicBool,
    /// Requests that are with the router.
    requests: AtomicU32,
    /// The body of a request was not read to its end, and may still be on its way.
    unread: AtomicBool,
    /// The answer under way has no end of its own: it ends with its client.
    streaming: AtomicBool,
    /// It is HTTP/2: bytes that come are not always a request.
    carries_many: AtomicBool,
    /// Requests that were answered, and such as the client gave up before.
    answered: AtomicU32,
    given_up: AtomicU32,
    /// Answers under way that must move, and when the last of them did.
    answers: AtomicU32,
    moved_ms: AtomicU64,
    /// Whoever drives the connection now: its task, or after an upgrade the reader of the socket.
    driver: AtomicWaker,
}

impl Connection {
    pub(crate) fn new(id: u64, address: IpAddr, connections: &Arc<Connections>) -> Arc<Connection> {
        Arc::new(Connection {
            id,
            address: address.to_canonical(),
            subscriber: Subscriber::of(address),
            connections: connections.clone(),
            // Whoever connects has something to ask: silence is not idleness yet.
            stage: AtomicU8::new(Stage::Head as u8),
            since_ms: AtomicU64::new(connections.now_ms()),
            stalled_ms: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            gave_way: AtomicBool::new(false),
            requests: AtomicU32::new(0),
            unread: AtomicBool::new(false),
            streaming: AtomicBool::new(false),
            carries_many: AtomicBool::new(false),
            answered: AtomicU32::new(0),
            given_up: AtomicU32::new(0),
            answers: AtomicU32::new(0),
            moved_ms: AtomicU64::new(0),
            driver: AtomicWaker::new(),
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn settings(&self) -> &HttpSettings {
        self.connections.settings()
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        self.connections.hosts()
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Is no further request to be served on it?
    pub(crate) fn is_draining(&self) -> bool {
        self.connections.is_draining()
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Relaxed) {
            0 => Stage::Quiet,
            1 => Stage::Head,
            2 => Stage::Busy,
            3 => Stage::Waiting,
            4 => Stage::Upgraded,
            _ => Stage::Handshake,
        }
    }

    pub(crate) fn enter(&self, stage: Stage) {
        // An upgrade is for good: the answer that made it must not make the connection idle again.
        if self.stage() != Stage::Upgraded {
            self.since_ms.store(self.connections.now_ms(), Relaxed);
            self.stage.store(stage as u8, Relaxed);
        }
    }

    pub(crate) fn has_read(&self) {
        if self.stage() == Stage::Quiet && !self.carries_many.load(Relaxed) {
            self.enter(Stage::Head);
        }
    }

    pub(crate) fn has_written(&self, stalled: bool) {
        let since = self.stalled_ms.load(Relaxed);
        if stalled && since == 0 {
            self.stalled_ms.store(self.connections.now_ms().max(1), Relaxed);
        } else if !stalled && since != 0 {
            self.stalled_ms.store(0, Relaxed);
        }
    }

    /// Does an answer wait for the client to take more of it? Hyper may have all of it in its own
    /// buffer, and the request be over as far as its handler is concerned.
    fn is_writing(&self) -> bool {
        self.stalled_ms.load(Relaxed) != 0
    }

    pub(crate) fn leaves_unread(&self, unread: bool) {
        self.unread.store(unread, Relaxed);
    }

    pub(crate) fn leaves_any_unread(&self) -> bool {
        self.unread.load(Relaxed)
    }

    pub(crate) fn streams(&self) {
        self.streaming.store(true, Relaxed);
    }

    pub(crate) fn is_streaming(&self) -> bool {
        self.streaming.load(Relaxed)
    }

    /// From now on it is HTTP/2.
    pub(crate) fn carries_many(&self) {
        self.carries_many.store(true, Relaxed);
    }

    /// A request was answered, or its client gave it up before. Who does little else is cut.
    pub(crate) fn is_over_with(&self, answered: bool) {
        if answered {
            self.answered.fetch_add(1, Relaxed);
            return;
        }
        let given_up = self.given_up.fetch_add(1, Relaxed) + 1;
        let allowed = self.answered.load(Relaxed).saturating_add(GIVEN_UP_MAX);
        if given_up > allowed && !self.is_cut() && !self.is_draining() {
            metrics::counter!(CONNECTIONS_CUT, "reason" => CUT_RESET).increment(1);
            self.cut();
        }
    }

    pub(crate) fn begins_answer(&self) {
        self.moves_answer();
        self.answers.fetch_add(1, Relaxed);
    }

    pub(crate) fn moves_answer(&self) {
        self.moved_ms.store(self.connections.now_ms(), Relaxed);
    }

    pub(crate) fn ends_answer(&self) {
        self.moves_answer();
        self.answers.fetch_sub(1, Relaxed);
    }

    /// A request is with the router.
    pub(crate) fn begin(&self) {
        self.streaming.store(false, Relaxed);
        self.requests.fetch_add(1, Relaxed);
        self.enter(Stage::Busy);
    }

    /// Its answer was taken. The next one may have begun before.
    pub(crate) fn end(&self) {
        if self.requests.fetch_sub(1, Relaxed) == 1 {
            self.enter(Stage::Quiet);
        }
    }

    /// Is the last request over from its first byte to the last one of its answer?
    pub(crate) fn is_free(&self) -> bool {
        self.stage() == Stage::Quiet && !self.is_writing() && !self.unread.load(Relaxed)
    }

    /// Has a request of the fast path waited for too long?
    pub(crate) fn is_overdue(&self) -> bool {
        self.stage() == Stage::Waiting
            && self.is_older(self.since_ms.load(Relaxed), self.settings().request_timeout_ms)
    }

    /// The time is as coarse as the watchman's rounds, so one round is added: nobody is cut before
    /// the limit.
    fn is_older(&self, since_ms: u64, limit_ms: u64) -> bool {
        self.connections.now_ms().saturating_sub(since_ms) > limit_ms + ROUND_MS
    }

    /// Would a cut now break off a request or an answer?
    pub(crate) fn is_needed(&self) -> bool {
        self.is_writing() || matches!(self.stage(), Stage::Busy | Stage::Waiting | Stage::Upgraded)
    }

    /// Wake this one when the connection is to be cut, or all are to drain.
    pub(crate) fn is_driven_by(&self, waker: &Waker) {
        self.driver.register(waker);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Relaxed)
    }

    pub(crate) fn cut(&self) {
        self.cut.store(true, Relaxed);
        self.wake();
    }

    /// Cut it for another one.
    pub(crate) fn give_way(&self) {
        self.gave_way.store(true, Relaxed);
        self.cut();
    }

    pub(crate) fn has_given_way(&self) -> bool {
        self.gave_way.load(Relaxed)
    }

    /// How much a cut would cost its client, and since when it has been so.
    pub(crate) fn worth(&self) -> (Worth, u64) {
        let worth = match self.stage() {
            Stage::Quiet if !self.is_writing() => Worth::Idle,
            Stage::Head | Stage::Handshake => Worth::Asking,
            _ if self.is_writing() || self.leaves_any_unread() => Worth::Slow,
            Stage::Upgraded => Worth::Listening,
            _ if self.is_streaming() => Worth::Listening,
            _ => Worth::Served,
        };
        (worth, self.since_ms.load(Relaxed))
    }

    /// Let whoever drives it look at what has changed.
    pub(crate) fn wake(&self) {
        self.driver.wake();
    }

    /// Why the connection must go, if it must.
    pub(crate) fn is_late(&self) -> Option<&'static str> {
        let settings = self.settings();
        let stalled_ms = self.stalled_ms.load(Relaxed);
        if stalled_ms != 0 && self.is_older(stalled_ms, settings.write_timeout_ms) {
            return Some("write");
        }
        let moved_ms = self.moved_ms.load(Relaxed);
        if self.answers.load(Relaxed) > 0 && self.is_older(moved_ms, settings.write_timeout_ms) {
            return Some("write");
        }
        let since_ms = self.since_ms.load(Relaxed);
        match self.stage() {
            // What is written without a request, answers to pings, keeps nobody here.
            _ if self.is_writing() && !self.carries_many.load(Relaxed) => None,
            Stage::Handshake if self.is_older(since_ms, settings.tls_handshake_timeout_ms) => {
                Some(CUT_HANDSHAKE)
            }
            Stage::Head if self.is_older(since_ms, settings.header_timeout_ms) => Some("head"),
            Stage::Quiet if self.is_older(since_ms, settings.idle_timeout_ms) => Some("idle"),
            _ => None,
        }
    }
}

/// Takes the connection off the books when the socket is dropped, wherever an upgrade has carried it.
pub(crate) struct ConnectionGuard(pub(crate) Arc<Connection>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.connections.close(&self.0);
    }
}

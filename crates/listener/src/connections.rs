//! All connections of one listener: how many there may be, which are late, and how they drain.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    Hosts, HttpSettings,
    connection::{Connection, ConnectionGuard},
    metrics::{CONNECTIONS, CONNECTIONS_CUT},
};

/// The watchman's round; time limits are kept to within it.
pub(crate) const ROUND: Duration = Duration::from_millis(ROUND_MS);
pub(crate) const ROUND_MS: u64 = 100;
/// A longer time between two rounds counts as this much.
const ROUND_MS_MAX: u64 = 2 * ROUND_MS;

/// All connections of one listener.
pub(crate) struct Connections {
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    settings: HttpSettings,
    hosts: Hosts,
    began: Instant,
    now_ms: AtomicU64,
    /// When the watchman last went round, by the clock.
    last_round_ms: AtomicU64,
    last_id: AtomicU64,
    draining: AtomicBool,
    emptied: Notify,
}

impl Connections {
    pub(crate) fn new(settings: HttpSettings) -> Arc<Self> {
        Arc::new(Connections {
            open: Mutex::default(),
            hosts: Hosts::new(&settings.allowed_hosts),
            settings,
            began: Instant::now(),
            now_ms: AtomicU64::new(0),
            last_round_ms: AtomicU64::new(0),
            last_id: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            emptied: Notify::new(),
        })
    }

    pub(crate) fn settings(&self) -> &HttpSettings {
        &self.settings
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Since the start, as of the watchman's last round: connections note the time several times
    /// per request, and a look at a number costs less than a look at the clock.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms.load(Relaxed)
    }

    /// `None` if there are as many as may be.
    pub(crate) fn open(self: &Arc<Self>) -> Option<ConnectionGuard> {
        let mut open = self.open.lock();
        if open.len() >= self.settings.connections_max {
            return None;
        }
        let id = self.last_id.fetch_add(1, Relaxed);
        let connection = Connection::new(id, self);
        open.insert(id, connection.clone());
        metrics::gauge!(CONNECTIONS).increment(1);
        Some(ConnectionGuard(connection))
    }

    pub(crate) fn close(&self, id: u64) {
        let mut open = self.open.lock();
        if open.remove(&id).is_some() {
            // There may be a second listener, for operators.
            metrics::gauge!(CONNECTIONS).decrement(1);
        }
        if open.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// One round of the watchman: cut those that are late.
    pub(crate) fn cut_late(&self) {
        // A process that slept has not been waiting: its clients were not either.
        let real_ms = self.began.elapsed().as_millis() as u64;
        let slept_ms = real_ms.saturating_sub(self.last_round_ms.swap(real_ms, Relaxed));
        self.now_ms.fetch_add(slept_ms.min(ROUND_MS_MAX), Relaxed);
        let open = self.open.lock();
        for connection in open.values().filter(|connection| !connection.is_cut()) {
            if let Some(reason) = connection.is_late() {
                metrics::counter!(CONNECTIONS_CUT, "reason" => reason).increment(1);
                connection.cut();
            } else if connection.is_overdue() {
                connection.wake();
            }
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Tell every connection that no further request is served on it.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Relaxed);
        self.open.lock().values().for_each(|connection| connection.wake());
    }

    /// Cut the connections on which nothing would be lost.
    pub(crate) fn cut_unneeded(&self) {
        let open = self.open.lock();
        open.values()
            .filter(|connection| !connection.is_needed())
            .for_each(|connection| connection.cut());
    }

    /// Cut all that are left; how many they were.
    pub(crate) fn cut_all(&self) -> usize {
        self.open.lock().values().map(|connection| connection.cut()).count()
    }

    /// Wait until no connection is left.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.len() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

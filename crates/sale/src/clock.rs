//! Time comes from a handle, so that a test can own it and nobody reads the wall by accident.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use crate::Millis;

pub trait Clock: Send + Sync + fmt::Debug {
    fn now_ms(&self) -> Millis;
}

pub type SharedClock = Arc<dyn Clock>;

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> Millis {
        // A clock set before 1970 reads as 1970: every sale is then simply not open yet.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as Millis)
    }
}

/// A clock that stands still until a test moves it.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    pub fn at(now_ms: Millis) -> Arc<Self> {
        Arc::new(ManualClock(AtomicI64::new(now_ms)))
    }

    pub fn set(&self, now_ms: Millis) {
        self.0.store(now_ms, Ordering::SeqCst);
    }

    pub fn advance(&self, by_ms: Millis) {
        self.0.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> Millis {
        self.0.load(Ordering::SeqCst)
    }
}

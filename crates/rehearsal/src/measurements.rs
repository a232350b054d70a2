//! What the crowd writes down while it buys: every answer that binds the server, counts, and times.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use checker::AnsweredClaim;
use client::new_histogram;
use hdrhistogram::Histogram;

use crate::Latencies;

/// Answers nobody expected are shown, but not a page full of them.
const UNEXPECTED_MAX: usize = 10;

/// Counts of people and of answers, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Claims that were answered, repeats and bots among them.
    pub(crate) claims: u64,
    /// Buyers who got a unit.
    pub(crate) admitted: u64,
    /// Claims that were refused, for whatever reason.
    pub(crate) refused: u64,
    /// Claims that were told yes again.
    pub(crate) confirmed: u64,
    /// Requests whose connection broke.
    pub(crate) broken: u64,
    /// Buyers who saw their order in the ledger.
    pub(crate) ordered: u64,
    /// Buyers whose claim became void.
    pub(crate) void: u64,
    pub(crate) paid: u64,
    pub(crate) cancelled: u64,
    pub(crate) abandoned: u64,
    /// Buyers who wanted to pay or cancel and came too late.
    pub(crate) missed: u64,
}

pub(crate) struct Measured {
    pub(crate) claims: Vec<AnsweredClaim>,
    pub(crate) counts: Counts,
    /// By their codes.
    pub(crate) refusals: BTreeMap<String, u64>,
    pub(crate) buyers: Latencies,
    pub(crate) bots: Latencies,
    /// From coming to a word that is final, tries in between included; in microseconds.
    pub(crate) decided: Histogram<u64>,
    /// From the admission to the order seen in the ledger.
    pub(crate) ordered: Histogram<u64>,
    /// From pressing *pay* to the order seen as paid.
    pub(crate) paid: Histogram<u64>,
    pub(crate) unexpected: Vec<String>,
}

/// One mutex for all: it is held for less time than a cache line takes to travel, and keeps what one
/// buyer was told in order.
pub(crate) struct Measurements(Mutex<Measured>);

impl Measurements {
    pub(crate) fn new(claims: usize) -> Measurements {
        Measurements(Mutex::new(Measured {
            // A vector that moves while it grows would hold everybody up.
            claims: Vec::with_capacity(claims),
            counts: Counts::default(),
            refusals: BTreeMap::new(),
            buyers: Latencies::default(),
            bots: Latencies::default(),
            decided: new_histogram(),
            ordered: new_histogram(),
            paid: new_histogram(),
            unexpected: Vec::new(),
        }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self, of: impl FnOnce(&mut Counts)) {
        of(&mut self.lock().counts);
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts
    }
}

impl Measured {
    pub(crate) fn refused(&mut self, code: &str) {
        self.counts.refused += 1;
        match self.refusals.get_mut(code) {
            Some(count) => *count += 1,
            None => drop(self.refusals.insert(code.to_owned(), 1)),
        }
    }

    pub(crate) fn unexpected(&mut self, what: String) {
        if self.unexpected.len() < UNEXPECTED_MAX {
            self.unexpected.push(what);
        }
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

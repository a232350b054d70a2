//! The solo gate: in this process, on this disk.
//!
//! The parts:
//!
//! - **items**: every item at the gate, in memory ([`items`], [`item`]), its buyers in pieces ([`marks`]);
//! - **the journal**: every change of them, on disk before anybody hears of it ([`journal`]);
//! - **the log**: claims in the journal that the ledger does not have yet, in memory as well ([`log`]);
//! - **the journal lock**: the one mutex around the journal ([`writer`]). Whoever changes anything holds
//!   it from the decision to the commit, so changes have one order and that order is the journal's. Of
//!   the readers only [`Inspection::reading`](crate::Inspection::reading) takes it, to see item and log
//!   at one instant;
//! - **the tail**: what is settled and kept for those who look back ([`look_back`]);
//! - **the mender**: a thread that brings a journal back that could not be written ([`mender`]).
//!
//! What a crash does at each point: before the commit, the change never was, and nobody was told.
//! After it, the restart finds it in the journal and applies it with the same code that applied it
//! the first time.
//!
//! What a failed write does: everyone in the batch is told *busy*, and what the batch took is put back
//! in memory, which then holds exactly what was promised. The journal goes to the mender, and until it
//! is back nobody is admitted and nothing changes. Nothing is read back from the disk: what the file
//! should hold is known, and where the file is in doubt it is written anew. A full disk therefore stops
//! admission and loses nothing, and costs a small write now and then.

mod admit;
mod changes;
mod inspection;
mod item;
mod items;
mod journal;
mod loading;
mod log;
mod look_back;
mod marks;
mod mender;
mod piece;
mod record;
mod relay;
mod spent;
mod tidying;
mod writer;
mod writing;

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, mpsc},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use sale::{ClaimLog, EntryId, ItemId, LogEntry, LogError, OrderNo, SharedClock, UserId};

use self::{
    items::Items,
    journal::{Journal, JournalError},
    loading::Filling,
    log::Log,
    writer::Writer,
};
pub use self::{journal::OpenError, tidying::REWRITE_AFTER_ENTRIES};
use crate::{
    Admission, Decision, GateError, GateFailure, Keep, NumberedRequest, Result, rush::Rush,
};

/// The journal's file in the data directory.
pub const JOURNAL_FILE: &str = "journal.db";

#[derive(Clone, Copy, Debug)]
pub struct SoloOptions {
    /// Claims that may wait for the ledger; beyond it the gate admits nobody.
    pub log_claims_max: u64,
    /// What the journal keeps of what is settled.
    pub keep: Keep,
}

#[derive(Clone)]
pub struct SoloGate(Arc<Inner>);

struct Inner {
    options: SoloOptions,
    clock: SharedClock,
    /// The journal lock.
    writer: Mutex<Writer>,
    items: Items,
    /// Loads under way.
    filling: Mutex<HashMap<ItemId, Filling>>,
    log: Log,
    rush: Rush,
}

impl SoloGate {
    /// Open the journal in `data`, and rebuild the gate from it.
    pub fn open(
        data: &Path,
        options: SoloOptions,
        clock: SharedClock,
    ) -> std::result::Result<SoloGate, OpenError> {
        let path = data.join(JOURNAL_FILE);
        let journal = Journal::open(&path)?;
        let (mender, broken) = mpsc::channel();
        let gate = SoloGate(Arc::new(Inner {
            options,
            clock,
            writer: Mutex::new(Writer::new(mender)),
            items: Items::default(),
            filling: Mutex::default(),
            log: Log::default(),
            rush: Rush::default(),
        }));
        let unusable = |e: String| OpenError::Unusable(path.clone(), e);
        gate.0.begin_with(journal).map_err(|e| unusable(e.to_string()))?;
        mender::start(broken, Arc::downgrade(&gate.0)).map_err(|e| unusable(e.to_string()))?;
        Ok(gate)
    }

    /// The largest order number the journal knows, so that numbers go on after it.
    pub fn last_order_no(&self) -> Option<OrderNo> {
        self.0.items.last_order_no().max(self.0.log.lock().last_order_no())
    }

    /// Run a change on a thread that may block, holding the journal lock.
    async fn with_journal<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Inner, &mut Writer) -> std::result::Result<T, JournalError>
        + Send
        + 'static,
    ) -> Result<T> {
        let inner = self.0.clone();
        // One type for all changes of an answer: each of its own is the same task compiled anew.
        let change: Box<dyn FnOnce() -> Result<T> + Send> = Box::new(move || {
            let mut writer = inner.writer.lock();
            let done = change(&inner, &mut writer);
            done.map_err(|error| {
                writer.give_to_mender(&error);
                GateError::new(GateFailure::Unwritable, error)
            })
        });
        let done = tokio::task::spawn_blocking(change);
        // A change that panicked was not made.
        done.await.map_err(|e| GateError::new(GateFailure::Unwritable, e))?
    }
}

#[async_trait]
impl ClaimLog for SoloGate {
    async fn take(&self, claims_max: usize) -> std::result::Result<Vec<LogEntry>, LogError> {
        Ok(self.0.log.take(claims_max).await)
    }

    async fn ack(&self, entries: &[EntryId]) -> std::result::Result<(), LogError> {
        let entries = entries.to_vec();
        let acked = self.with_journal(move |inner, writer| {
            let acked = inner.log.settle(&entries, writer.last_seq);
            // That it is settled is true whether or not it can be written: at worst the entry is
            // delivered again after a restart, and the ledger knows it. So nobody waits for the disk.
            if let Err(error) = writer.journal().and_then(|journal| journal.ack(&acked)) {
                inner.log.lock().unsaved.extend(acked.beyond);
                writer.give_to_mender(&error);
            }
            Ok(())
        });
        acked.await.map_err(|e| LogError(e.detail))
    }

    async fn give_back(&self, entries: Vec<LogEntry>) {
        self.0.log.give_back(entries);
    }

    fn backlog(&self) -> u64 {
        self.0.log.backlog()
    }

    fn is_rushing(&self) -> bool {
        self.0.rush.is_on()
    }
}

#[async_trait]
impl Admission for SoloGate {
    fn partitions(&self) -> usize {
        1
    }

    fn partition_of(&self, _: ItemId, _: &UserId) -> usize {
        0
    }

    fn blocks(&self) -> bool {
        true
    }

    async fn admit(&self, batch: Vec<NumberedRequest>) -> Vec<Decision> {
        self.0.admit(&batch)
    }

    fn units_left(&self, item: ItemId) -> Option<i64> {
        crate::Inspection::left(self, item)
    }

    fn may_hold_mark(&self, item: ItemId, user: &UserId, _: bool) -> bool {
        self.0.items.get(item).is_some_and(|item| {
            let item = item.read();
            item.marks.get(user).is_some() || item.spent.is_of(user)
        })
    }
}

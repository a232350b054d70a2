//! The solo gate: in this process, on this disk.
//!
//! The parts:
//!
//! - **shelves**: every item at the gate, in memory ([`shelf`]);
//! - **the journal**: every change of them, on disk before anybody hears of it ([`journal`]);
//! - **the log**: claims in the journal that the ledger does not have yet, in memory as well;
//! - **the pen**: the one mutex around the journal. Whoever changes anything holds the pen from the
//!   decision to the commit, so changes have one order and that order is the journal's. Of the readers
//!   only [`Gate::reading`] takes it, to see item and log at one instant;
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

mod journal;
mod mender;
mod record;
mod shelf;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use sale::{
    Claim, ClaimLog, EntryId, Epoch, ItemId, LogEntry, LogError, Millis, OrderNo, SharedClock,
    UserId,
};
use tokio::sync::Notify;

pub use journal::OpenError;
use journal::{Acked, Journal, JournalError};
use mender::Broken;
use record::Record;
use shelf::Shelf;

use crate::{
    AdjustOutcome, Busy, Changed, Decision, Gate, GateError, GateFailure, GiveBack, Loaded,
    Loading, NumberedRequest, Presence, Reading, Readmitted, Result, Shut, Writable, rush::Rush,
};

/// The journal's file in the data directory.
pub const JOURNAL_FILE: &str = "journal.db";

/// Items are written anew, and the entries they contain dropped, when more entries than this lie on
/// top of them: at a start, and in a quiet moment ([`SoloGate::tidy`]).
pub const REWRITE_AFTER_ENTRIES: u64 = 20_000;
/// With this many times as many, no quiet moment is waited for: the journal must not grow for ever,
/// nor a restart take for ever.
const REWRITE_AT_ONCE_TIMES: u64 = 10;
/// A moment is quiet when nobody was admitted for this long and no more claims than this wait.
const QUIET: Duration = Duration::from_secs(1);
const QUIET_CLAIMS_MAX: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
pub struct SoloOptions {
    /// Claims that may wait for the ledger; beyond it the gate admits nobody.
    pub log_claims_max: u64,
}

#[derive(Clone)]
pub struct SoloGate(Arc<Inner>);

struct Inner {
    options: SoloOptions,
    clock: SharedClock,
    path: PathBuf,
    pen: Mutex<Pen>,
    /// Locked for writing only by the holder of the pen.
    shelves: RwLock<HashMap<ItemId, Arc<RwLock<Shelf>>>>,
    log: Mutex<Log>,
    /// Told when the log has something to take.
    arrived: Notify,
    /// Claims on the log that are not acknowledged.
    backlog: AtomicU64,
    rush: Rush,
}

struct Pen {
    /// None while it cannot be written: then the mender has it.
    journal: Option<Journal>,
    mender: mpsc::Sender<Broken>,
    last_seq: u64,
    /// The items' rows contain all entries up to about this one.
    rewritten_seq: u64,
    /// When somebody was last admitted.
    admitted: Option<Instant>,
}

impl Pen {
    /// The journal, before anything is changed that must be in it.
    fn journal(&mut self) -> std::result::Result<&mut Journal, JournalError> {
        self.journal.as_mut().ok_or(JournalError::Away)
    }
}

#[derive(Default)]
struct Log {
    /// Unacknowledged entries by number, and whether a worker has them.
    entries: BTreeMap<u64, (LogEntry, bool)>,
    /// Which entry a claim is in.
    by_order: HashMap<OrderNo, u64>,
    /// No entry at or below this number is left.
    acked: u64,
    /// Entries beyond it that were acknowledged while the journal could not be written.
    unsaved: Vec<u64>,
}

impl Log {
    fn push(&mut self, entry: LogEntry) {
        for claim in &entry.claims {
            self.by_order.insert(claim.order_no, entry.id.0);
        }
        self.entries.insert(entry.id.0, (entry, false));
    }

    fn claim(&self, order_no: OrderNo) -> Option<&Claim> {
        let (entry, _) = self.entries.get(self.by_order.get(&order_no)?)?;
        entry.claims.iter().find(|claim| claim.order_no == order_no)
    }

    /// These entries are in the ledger. Answers what the journal has to know, and how many claims it
    /// were.
    fn settle(&mut self, ids: &[EntryId], last_seq: u64) -> (Acked, u64) {
        let (mut settled, mut claims) = (Vec::new(), 0);
        for id in ids {
            if let Some((entry, _)) = self.entries.remove(&id.0) {
                for claim in &entry.claims {
                    self.by_order.remove(&claim.order_no);
                }
                claims += entry.claims.len() as u64;
                settled.push(id.0);
            }
        }
        // Everything before the oldest entry that is left.
        let oldest = self.entries.keys().next().copied();
        self.acked = oldest.map_or(last_seq, |oldest| oldest - 1);
        settled.retain(|seq| *seq > self.acked);
        (Acked { cursor: self.acked, beyond: settled }, claims)
    }

    fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.entries.values().flat_map(|(entry, _)| &entry.claims)
    }
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
            path: path.clone(),
            pen: Mutex::new(Pen {
                journal: None,
                mender,
                last_seq: 0,
                rewritten_seq: 0,
                admitted: None,
            }),
            shelves: RwLock::default(),
            log: Mutex::default(),
            arrived: Notify::new(),
            backlog: AtomicU64::new(0),
            rush: Rush::default(),
        }));
        let unusable = |e: String| OpenError::Unusable(path.clone(), e);
        gate.0.begin(journal).map_err(|e| unusable(e.to_string()))?;
        mender::start(broken, Arc::downgrade(&gate.0)).map_err(|e| unusable(e.to_string()))?;
        Ok(gate)
    }

    /// The largest order number the journal knows, so that numbers go on after it.
    pub fn last_order_no(&self) -> Option<OrderNo> {
        let shelves = self.0.shelves.read();
        let marked = shelves.values().filter_map(|shelf| {
            let shelf = shelf.read();
            let spent = shelf.spent.values().map(|mark| mark.order_no).max();
            let adjusted = shelf.adjusts.keys().max().copied();
            shelf.marks.values().map(|mark| mark.order_no).max().max(spent).max(adjusted)
        });
        marked.max().max(self.0.log.lock().by_order.keys().max().copied())
    }

    /// Write the items anew and drop the entries they contain, if there are more than `entries_max`
    /// and the moment is quiet, for nobody is admitted meanwhile. Answers whether it was done.
    pub async fn tidy(&self, entries_max: u64) -> Result<bool> {
        self.with_pen(move |inner, pen| {
            let entries = pen.last_seq - pen.rewritten_seq;
            let at_once = entries_max.saturating_mul(REWRITE_AT_ONCE_TIMES);
            if entries <= entries_max || (entries <= at_once && !inner.is_quiet(pen)) {
                return Ok(false);
            }
            inner.rewrite(pen)?;
            let trimmed = pen.journal()?.trim()?;
            tracing::info!(entries, trimmed, "the journal was tidied up");
            Ok(true)
        })
        .await
    }

    /// Run a change on a thread that may block, holding the pen.
    async fn with_pen<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Inner, &mut Pen) -> std::result::Result<T, JournalError> + Send + 'static,
    ) -> Result<T> {
        let inner = self.0.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut pen = inner.pen.lock();
            let done = change(&inner, &mut pen);
            done.map_err(|error| {
                let told = GateError::new(GateFailure::Unwritable, &error);
                inner.note_failure(&mut pen, error);
                told
            })
        });
        done.await.map_err(|e| GateError::new(GateFailure::Unwritable, e))?
    }
}

impl Inner {
    /// Something could not be written: the journal goes to the mender. What was to be written must be
    /// undone in memory, or not have been done yet.
    fn note_failure(&self, pen: &mut Pen, error: JournalError) {
        let Some(journal) = pen.journal.take() else { return };
        let path = self.path.display();
        tracing::error!(%path, %error, "the journal cannot be written; nobody is admitted until it can");
        // The mender ends only when this gate is gone.
        let _ = pen.mender.send(Broken::by(journal, &error));
    }

    /// Take what the journal holds for the truth.
    fn begin(&self, mut journal: Journal) -> std::result::Result<(), JournalError> {
        let mut pen = self.pen.lock();
        let replayed = self.read_back(&mut pen, &journal)?;
        if replayed > REWRITE_AFTER_ENTRIES {
            self.put_all(&mut journal, pen.last_seq)?;
            pen.rewritten_seq = pen.last_seq;
        }
        journal.trim()?;
        pen.journal = Some(journal);
        Ok(())
    }

    /// Answers how many entries were applied.
    fn read_back(
        &self,
        pen: &mut Pen,
        journal: &Journal,
    ) -> std::result::Result<u64, JournalError> {
        let contents = journal.read_all()?;
        pen.last_seq = contents.last_seq;
        pen.rewritten_seq = contents.last_seq - contents.replayed;
        let shelf = |shelf: Shelf| (shelf.item, Arc::new(RwLock::new(shelf)));
        *self.shelves.write() = contents.shelves.into_iter().map(shelf).collect();
        let mut log = self.log.lock();
        log.acked = contents.acked;
        for stored in contents.unsettled {
            let epoch = journal::epoch_of(&stored.record);
            let Record::Claims { claims, .. } = stored.record else { continue };
            log.push(LogEntry { id: EntryId(stored.seq, 0), item: stored.item, epoch, claims });
        }
        self.backlog.store(log.by_order.len() as u64, Ordering::Release);
        Ok(contents.replayed)
    }

    fn is_quiet(&self, pen: &Pen) -> bool {
        pen.admitted.is_none_or(|admitted| admitted.elapsed() >= QUIET)
            && self.backlog.load(Ordering::Acquire) <= QUIET_CLAIMS_MAX
    }

    /// Write every item anew, so that the next start has nothing to apply.
    fn rewrite(&self, pen: &mut Pen) -> std::result::Result<(), JournalError> {
        let last_seq = pen.last_seq;
        self.put_all(pen.journal()?, last_seq)?;
        pen.rewritten_seq = last_seq;
        Ok(())
    }

    fn put_all(&self, journal: &mut Journal, as_of: u64) -> std::result::Result<(), JournalError> {
        let shelves: Vec<_> = self.shelves.read().values().cloned().collect();
        let guards: Vec<_> = shelves.iter().map(|shelf| shelf.read()).collect();
        journal.put_items(as_of, guards.iter().map(|shelf| &**shelf))
    }

    fn shelf(&self, item: ItemId) -> Option<Arc<RwLock<Shelf>>> {
        self.shelves.read().get(&item).cloned()
    }

    /// Write changes of one item and make them, all or none.
    fn change(
        &self,
        pen: &mut Pen,
        shelf: &RwLock<Shelf>,
        records: &[Record],
    ) -> std::result::Result<Changed, JournalError> {
        let item = shelf.read().item;
        let borrowed: Vec<_> = records.iter().map(|record| (item, record)).collect();
        self.append(pen, &borrowed)?;
        let mut shelf = shelf.write();
        let units = records.iter().map(|record| shelf.apply(record).units).sum();
        Ok(Changed { item, version: shelf.version, units })
    }

    /// Decide a batch in memory. Winners are on the shelves afterwards, and in the answer grouped
    /// by item, but not yet in the journal.
    fn decide(&self, batch: &[NumberedRequest]) -> (Vec<Decision>, Vec<(ItemId, Record)>) {
        let now_ms = self.clock.now_ms();
        let mut ahead = self.backlog.load(Ordering::Acquire);
        let mut decisions = Vec::with_capacity(batch.len());
        let mut won: Vec<(ItemId, Record)> = Vec::new();
        // Neighbours mostly want the same item: look it up once per run of them.
        for run in batch.chunk_by(|(_, a), (_, b)| a.item == b.item) {
            let Some(shelf) = self.shelf(run[0].1.item) else {
                decisions.extend(run.iter().map(|_| Decision::Busy(Busy::NotLoaded)));
                continue;
            };
            let mut shelf = shelf.write();
            for numbered in run {
                let full = ahead >= self.options.log_claims_max;
                let decision = if full && shelf.answered(&numbered.1, ahead).is_none() {
                    Decision::Busy(Busy::LogFull)
                } else {
                    shelf.decide(numbered, now_ms, ahead)
                };
                if let Decision::Admitted { claim, repeated: false, .. } = &decision {
                    ahead += 1;
                    push_winner(&mut won, claim, shelf.epoch, now_ms);
                }
                decisions.push(decision);
            }
        }
        (decisions, won)
    }

    /// Write changes down. When this returns they are on disk.
    fn append(
        &self,
        pen: &mut Pen,
        records: &[(ItemId, &Record)],
    ) -> std::result::Result<(), JournalError> {
        let first = pen.last_seq + 1;
        let journal = pen.journal()?;
        journal.append(first, records)?;
        let long = journal.checkpoint();
        pen.last_seq += records.len() as u64;
        if let Err(error) = long {
            // What was written is written; what comes next waits for the mender.
            self.note_failure(pen, error);
        }
        Ok(())
    }

    /// The durable half of admitting, and the news to the workers.
    fn write_down(
        &self,
        pen: &mut Pen,
        won: Vec<(ItemId, Record)>,
    ) -> std::result::Result<(), JournalError> {
        let records: Vec<_> = won.iter().map(|(item, record)| (*item, record)).collect();
        let first = pen.last_seq + 1;
        if let Err(error) = self.append(pen, &records) {
            self.take_back(&won);
            return Err(error);
        }
        pen.admitted = Some(Instant::now());
        self.rush.note(won.iter().map(|(_, record)| record.claims()).sum());
        self.enlist(first, won);
        Ok(())
    }

    /// These winners could not be written down: nobody was told, and their units are there again.
    fn take_back(&self, won: &[(ItemId, Record)]) {
        for (item, record) in won {
            if let (Record::Claims { claims, .. }, Some(shelf)) = (record, self.shelf(*item)) {
                let mut shelf = shelf.write();
                claims.iter().for_each(|claim| shelf.untake(claim));
            }
        }
    }

    fn enlist(&self, first: u64, won: Vec<(ItemId, Record)>) {
        let mut log = self.log.lock();
        for (seq, (item, record)) in (first..).zip(won) {
            let epoch = journal::epoch_of(&record);
            let Record::Claims { claims, .. } = record else { continue };
            self.backlog.fetch_add(claims.len() as u64, Ordering::AcqRel);
            log.push(LogEntry { id: EntryId(seq, 0), item, epoch, claims });
        }
        drop(log);
        self.arrived.notify_one();
    }

    fn admit(&self, batch: Vec<NumberedRequest>) -> Vec<Decision> {
        let busy = |n: usize| vec![Decision::Busy(Busy::Unwritable); n];
        let mut pen = self.pen.lock();
        if pen.journal.is_none() {
            return busy(batch.len());
        }
        let (decisions, won) = self.decide(&batch);
        if won.is_empty() {
            return decisions;
        }
        match self.write_down(&mut pen, won) {
            Ok(()) => decisions,
            // Even a "sold out" of this batch may rest on units that were not really taken.
            Err(error) => {
                self.note_failure(&mut pen, error);
                busy(batch.len())
            }
        }
    }

    fn readmit(
        &self,
        pen: &mut Pen,
        claim: Claim,
    ) -> std::result::Result<Readmitted, JournalError> {
        let Some(shelf) = self.shelf(claim.item) else { return Ok(Readmitted::NotLoaded) };
        {
            let shelf = shelf.read();
            if shelf.shut == Some(Shut::Frozen) {
                return Ok(Readmitted::Frozen);
            }
            match shelf.marks.get(&claim.user) {
                Some(mark) if mark.order_no == claim.order_no => return Ok(Readmitted::Known),
                Some(mark) => {
                    return Ok(Readmitted::AlreadyBought { order_no: mark.order_no });
                }
                None if i64::from(claim.quantity) > shelf.left => return Ok(Readmitted::SoldOut),
                None => {}
            }
        }
        let (item, epoch) = (claim.item, shelf.read().epoch);
        let claimed_ms = claim.claimed_ms;
        let record = Record::Claims { epoch, claimed_ms, claims: vec![claim] };
        self.change(pen, &shelf, std::slice::from_ref(&record))?;
        self.enlist(pen.last_seq, vec![(item, record)]);
        Ok(Readmitted::Admitted)
    }

    fn release(
        &self,
        pen: &mut Pen,
        units: Vec<GiveBack>,
    ) -> std::result::Result<Vec<Changed>, JournalError> {
        let mut by_item: BTreeMap<ItemId, Vec<GiveBack>> = BTreeMap::new();
        for unit in units {
            let shelf = self.shelf(unit.item);
            if shelf.is_some_and(|shelf| shelf.read().holds(&unit)) {
                by_item.entry(unit.item).or_default().push(unit);
            }
        }
        let records: Vec<(ItemId, Record)> =
            by_item.into_iter().map(|(item, units)| (item, Record::Release { units })).collect();
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let borrowed: Vec<_> = records.iter().map(|(item, record)| (*item, record)).collect();
        self.append(pen, &borrowed)?;
        let apply = |(item, record): &(ItemId, Record)| {
            self.shelf(*item).map(|shelf| shelf.write().apply(record))
        };
        Ok(records.iter().filter_map(apply).collect())
    }
}

fn push_winner(won: &mut Vec<(ItemId, Record)>, claim: &Claim, epoch: Epoch, claimed_ms: Millis) {
    // Runs of an item are few per batch, so looking through them is cheaper than hashing.
    let known = won.iter_mut().find(|(item, _)| *item == claim.item);
    match known {
        Some((_, Record::Claims { claims, .. })) => claims.push(claim.clone()),
        _ => {
            let claims = vec![claim.clone()];
            won.push((claim.item, Record::Claims { epoch, claimed_ms, claims }));
        }
    }
}

#[async_trait]
impl ClaimLog for SoloGate {
    async fn take(&self, claims_max: usize) -> std::result::Result<Vec<LogEntry>, LogError> {
        loop {
            let arrived = self.0.arrived.notified();
            {
                let mut log = self.0.log.lock();
                let mut taken = Vec::new();
                let mut claims = 0;
                for (entry, with_worker) in log.entries.values_mut() {
                    if *with_worker {
                        continue;
                    }
                    if claims > 0 && claims + entry.claims.len() > claims_max {
                        break;
                    }
                    claims += entry.claims.len();
                    *with_worker = true;
                    taken.push(entry.clone());
                }
                if !taken.is_empty() {
                    return Ok(taken);
                }
            }
            arrived.await;
        }
    }

    async fn ack(&self, entries: &[EntryId]) -> std::result::Result<(), LogError> {
        let entries = entries.to_vec();
        let acked = self.with_pen(move |inner, pen| {
            let (acked, claims) = inner.log.lock().settle(&entries, pen.last_seq);
            inner.backlog.fetch_sub(claims, Ordering::AcqRel);
            // That it is settled is true whether or not it can be written: at worst the entry is
            // delivered again after a restart, and the ledger knows it. So nobody waits for the disk.
            if let Err(error) = pen.journal().and_then(|journal| journal.ack(&acked)) {
                inner.log.lock().unsaved.extend(acked.beyond);
                inner.note_failure(pen, error);
            }
            Ok(())
        });
        acked.await.map_err(|e| LogError(e.detail))
    }

    async fn give_back(&self, entries: Vec<LogEntry>) {
        let mut log = self.0.log.lock();
        for entry in entries {
            if let Some((_, with_worker)) = log.entries.get_mut(&entry.id.0) {
                *with_worker = false;
            }
        }
        drop(log);
        self.0.arrived.notify_one();
    }

    fn backlog(&self) -> u64 {
        self.0.backlog.load(Ordering::Acquire)
    }

    fn is_rushing(&self) -> bool {
        self.0.rush.is_on()
    }
}

#[async_trait]
impl Gate for SoloGate {
    fn partitions(&self) -> usize {
        1
    }

    fn partition_of(&self, _: ItemId, _: &UserId) -> usize {
        0
    }

    async fn admit(&self, batch: Vec<NumberedRequest>) -> Vec<Decision> {
        self.0.admit(batch)
    }

    async fn readmit(&self, claim: &Claim) -> Result<Readmitted> {
        let claim = claim.clone();
        self.with_pen(move |inner, pen| inner.readmit(pen, claim)).await
    }

    async fn release(&self, units: &[GiveBack]) -> Result<Vec<Changed>> {
        let units = units.to_vec();
        self.with_pen(move |inner, pen| inner.release(pen, units)).await
    }

    async fn adjust(
        &self,
        item: ItemId,
        adjust_no: OrderNo,
        delta: i64,
        committed: bool,
    ) -> Result<AdjustOutcome> {
        self.with_pen(move |inner, pen| {
            let Some(shelf) = inner.shelf(item) else { return Ok(AdjustOutcome::NotLoaded) };
            let (had, left) = {
                let shelf = shelf.read();
                (shelf.adjusts.get(&adjust_no).copied(), shelf.left)
            };
            let mut records = Vec::new();
            match had {
                // Zero: the load contained it.
                Some(had) if had == delta || had == 0 => return Ok(AdjustOutcome::Repeated),
                Some(had) if !committed => return Ok(AdjustOutcome::Other { delta: had }),
                Some(_) => records.push(Record::ForgetAdjust { adjust_no }),
                None => {}
            }
            if delta < 0 && left.saturating_add(delta) < 0 && !committed {
                return Ok(AdjustOutcome::Short { left });
            }
            records.push(Record::Adjust { adjust_no, delta });
            Ok(AdjustOutcome::Done(inner.change(pen, &shelf, &records)?))
        })
        .await
    }

    async fn adjusts(&self, item: ItemId) -> Result<Vec<(OrderNo, i64)>> {
        let Some(shelf) = self.0.shelf(item) else { return Ok(Vec::new()) };
        let shelf = shelf.read();
        Ok(shelf.adjusts.iter().map(|(no, delta)| (*no, *delta)).collect())
    }

    async fn forget_adjust(&self, item: ItemId, adjust_no: OrderNo) -> Result<Option<Changed>> {
        self.with_pen(move |inner, pen| {
            let Some(shelf) = inner.shelf(item) else { return Ok(None) };
            if !shelf.read().adjusts.contains_key(&adjust_no) {
                return Ok(None);
            }
            Ok(Some(inner.change(pen, &shelf, &[Record::ForgetAdjust { adjust_no }])?))
        })
        .await
    }

    /// Nothing of this item comes from the ledger meanwhile: in one process they take turns.
    async fn begin_load(&self, item: ItemId, epoch: Epoch, _: u32) -> Result<bool> {
        self.with_pen(move |inner, pen| {
            let Some(shelf) = inner.shelf(item) else { return Ok(true) };
            let (here, shut) = (shelf.read().epoch, shelf.read().shut);
            if here >= epoch || shut == Some(Shut::Ended) {
                return Ok(false);
            }
            if shut != Some(Shut::Frozen) {
                inner.change(pen, &shelf, &[Record::Shut { shut: Some(Shut::Frozen) }])?;
            }
            Ok(true)
        })
        .await
    }

    async fn load(&self, loading: Loading) -> Result<bool> {
        self.with_pen(move |inner, pen| {
            let before = inner.shelf(loading.item);
            let shelf = {
                let before = before.as_ref().map(|shelf| shelf.read());
                if before.as_ref().is_some_and(|before| before.epoch >= loading.epoch) {
                    return Ok(false);
                }
                Shelf::load(&loading, before.as_deref())
            };
            let last_seq = pen.last_seq;
            pen.journal()?.put_items(last_seq, [&shelf])?;
            inner.shelves.write().insert(loading.item, Arc::new(RwLock::new(shelf)));
            Ok(true)
        })
        .await
    }

    async fn shut(&self, item: ItemId, shut: Option<Shut>) -> Result<bool> {
        self.with_pen(move |inner, pen| {
            let Some(shelf) = inner.shelf(item) else { return Ok(false) };
            let now = shelf.read().shut;
            // Ended is for good. An item in doubt stays frozen until it is loaded anew, whatever an
            // operator resumes meanwhile: what it admitted would be in nobody's books.
            let stays = match now {
                Some(Shut::Ended) => true,
                Some(Shut::Frozen) => shut != Some(Shut::Ended),
                now => now == shut,
            };
            if !stays {
                inner.change(pen, &shelf, &[Record::Shut { shut }])?;
            }
            Ok(true)
        })
        .await
    }

    async fn unload(&self, item: ItemId) -> Result<()> {
        self.with_pen(move |inner, pen| {
            pen.journal()?.remove_item(item)?;
            inner.shelves.write().remove(&item);
            let trimmed = pen.journal()?.trim()?;
            tracing::debug!(%item, trimmed, "the item left the gate");
            Ok(())
        })
        .await
    }

    async fn loaded(&self) -> Result<Vec<Loaded>> {
        let shelves = self.0.shelves.read();
        let loaded = shelves.values().map(|shelf| {
            let shelf = shelf.read();
            Loaded {
                item: shelf.item,
                epoch: shelf.epoch,
                shut: shelf.shut,
                window: (shelf.opens_ms, shelf.closes_ms),
                presence: Presence::Whole,
            }
        });
        Ok(loaded.collect())
    }

    async fn reading(&self, item: ItemId) -> Result<Option<Reading>> {
        // With the pen nothing moves, so shelf and log are of one instant.
        self.with_pen(move |inner, _| {
            let Some(shelf) = inner.shelf(item) else { return Ok(None) };
            let shelf = shelf.read();
            let log = inner.log.lock();
            Ok(Some(Reading {
                item,
                epoch: shelf.epoch,
                shut: shelf.shut,
                opens_ms: shelf.opens_ms,
                closes_ms: shelf.closes_ms,
                left: shelf.left,
                marks: shelf.marks.len() as u64,
                marked_units: shelf.marked_units,
                version: shelf.version,
                in_flight: log.claims().filter(|claim| claim.item == item).cloned().collect(),
                adjusts: shelf.adjusts.iter().map(|(no, delta)| (*no, *delta)).collect(),
            }))
        })
        .await
    }

    async fn in_flight(&self, item: ItemId) -> Result<Vec<Claim>> {
        let log = self.0.log.lock();
        Ok(log.claims().filter(|claim| claim.item == item).cloned().collect())
    }

    async fn marks(&self, item: ItemId) -> Result<Vec<(UserId, OrderNo)>> {
        let Some(shelf) = self.0.shelf(item) else { return Ok(Vec::new()) };
        let shelf = shelf.read();
        Ok(shelf.marks.iter().map(|(user, mark)| (user.clone(), mark.order_no)).collect())
    }

    async fn queued(&self, user: &UserId, order_no: OrderNo) -> Result<Option<Claim>> {
        let log = self.0.log.lock();
        Ok(log.claim(order_no).filter(|claim| claim.user == *user).cloned())
    }

    async fn is_on_log(&self, claim: &Claim) -> Result<bool> {
        Ok(self.0.log.lock().by_order.contains_key(&claim.order_no))
    }

    async fn queued_of(&self, user: &UserId) -> Result<Vec<Claim>> {
        // The marks of one buyer over the items at the gate are few; the log may be a million long.
        let shelves: Vec<_> = self.0.shelves.read().values().cloned().collect();
        let marked = shelves
            .iter()
            .filter_map(|shelf| shelf.read().marks.get(user).map(|mark| mark.order_no));
        let marked: Vec<OrderNo> = marked.collect();
        let log = self.0.log.lock();
        let mut claims: Vec<Claim> =
            marked.into_iter().filter_map(|order_no| log.claim(order_no).cloned()).collect();
        claims.sort_by_key(|claim| std::cmp::Reverse(claim.order_no));
        Ok(claims)
    }

    async fn on_log(&self, order_no: OrderNo) -> Result<Option<Claim>> {
        Ok(self.0.log.lock().claim(order_no).cloned())
    }

    fn left(&self, item: ItemId) -> Option<i64> {
        self.0.shelf(item).map(|shelf| shelf.read().left.max(0))
    }

    fn may_hold_mark(&self, item: ItemId, user: &UserId, _: bool) -> bool {
        self.0.shelf(item).is_some_and(|shelf| {
            let shelf = shelf.read();
            shelf.marks.contains_key(user) || shelf.spenders.contains(user)
        })
    }

    fn blocks(&self) -> bool {
        true
    }

    async fn upkeep(&self) -> Result<()> {
        self.tidy(REWRITE_AFTER_ENTRIES).await.map(drop)
    }

    async fn oldest_waits_ms(&self) -> Result<Option<u64>> {
        let log = self.0.log.lock();
        let oldest = log.entries.values().next().and_then(|(entry, _)| entry.claims.first());
        let waited_ms = oldest.map(|claim| self.0.clock.now_ms() - claim.claimed_ms);
        Ok(waited_ms.map(|waited_ms| waited_ms.max(0) as u64))
    }

    async fn check(&self) -> Writable {
        let probed = self.with_pen(|_, pen| pen.journal()?.probe()).await;
        let cause = probed.err().map(|error| error.detail);
        Writable { partitions: 1, silent: usize::from(cause.is_some()), cause }
    }
}

//! The solo gate: in this process, on this disk.
//!
//! The parts:
//!
//! - **shelves**: every item at the gate, in memory ([`shelf`]);
//! - **the journal**: every change of them, on disk before anybody hears of it ([`journal`]);
//! - **the log**: claims in the journal that the ledger does not have yet, in memory as well;
//! - **the pen**: the one mutex around the journal. Whoever changes anything holds the pen from the
//!   decision to the commit, so changes have one order and that order is the journal's. Readers
//!   never need it.
//!
//! What a crash does at each point: before the commit, the change never was, and nobody was told.
//! After it, the restart finds it in the journal and applies it with the same code that applied it
//! the first time.
//!
//! What a failed write does: the gate then does not know whether the change is in the journal. It
//! tells everyone in the batch *busy*, decides nothing more, and before its next step reads the
//! whole journal back from disk and takes that for the truth. A full disk therefore stops
//! admission and loses nothing.

mod journal;
mod record;
mod shelf;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard, RwLock};
use sale::{
    Claim, ClaimLog, EntryId, Epoch, ItemId, LogEntry, LogError, Millis, OrderNo, SharedClock,
    UserId,
};
use tokio::sync::Notify;

pub use journal::OpenError;
use journal::{Journal, JournalError};
use record::Record;
use shelf::Shelf;

use crate::{
    AdjustOutcome, Attempt, Busy, Changed, Gate, GateError, GiveBack, Loaded, Loading, Presence,
    Reading, Readmitted, Result, Shut, Verdict, rush::Rush,
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
const QUIET_MS: Millis = 1_000;
const QUIET_CLAIMS_MAX: u64 = 1_000;

/// After a failed write, how long everyone is told *busy* before the next try.
const UNWRITABLE_MS: Millis = 200;

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
    journal: Journal,
    last_seq: u64,
    /// The items' rows contain all entries up to about this one.
    rewritten_seq: u64,
    /// When somebody was last admitted.
    admitted_ms: Millis,
    /// Set by a failed write: do nothing before this time, then read everything back.
    doubt: Option<Millis>,
}

#[derive(Default)]
struct Log {
    /// Unacknowledged entries by number, and whether a worker has them.
    entries: BTreeMap<u64, (LogEntry, bool)>,
    /// Which entry a claim is in.
    by_order: HashMap<OrderNo, u64>,
    /// No entry at or below this number is left.
    acked: u64,
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
        let gate = SoloGate(Arc::new(Inner {
            options,
            clock,
            path: path.clone(),
            pen: Mutex::new(Pen {
                journal,
                last_seq: 0,
                rewritten_seq: 0,
                admitted_ms: 0,
                doubt: None,
            }),
            shelves: RwLock::default(),
            log: Mutex::default(),
            arrived: Notify::new(),
            backlog: AtomicU64::new(0),
            rush: Rush::default(),
        }));
        let unusable = |e: JournalError| OpenError::Unusable(path.clone(), e.to_string());
        {
            let mut pen = gate.0.pen.lock();
            let replayed = gate.0.read_back(&mut pen).map_err(unusable)?;
            if replayed > REWRITE_AFTER_ENTRIES {
                gate.0.rewrite(&mut pen).map_err(unusable)?;
            }
            pen.journal.trim().map_err(unusable)?;
        }
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
            let trimmed = pen.journal.trim()?;
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
            let mut pen = inner.sure_pen()?;
            let done = change(&inner, &mut pen);
            inner.note_failure(&mut pen, done)
        });
        done.await.map_err(|e| GateError(e.to_string()))?
    }
}

impl Inner {
    /// The pen, with everything known again that a failed write left in doubt.
    fn sure_pen(&self) -> Result<MutexGuard<'_, Pen>> {
        let mut pen = self.pen.lock();
        if let Some(until_ms) = pen.doubt {
            if self.clock.now_ms() < until_ms {
                return Err(GateError("the journal cannot be written".into()));
            }
            let known = pen
                .journal
                .reopen()
                .map_err(|e| GateError(e.to_string()))
                .and_then(|()| self.read_back(&mut pen).map_err(|e| GateError(e.to_string())));
            if let Err(error) = known {
                pen.doubt = Some(self.clock.now_ms() + UNWRITABLE_MS);
                return Err(error);
            }
            pen.doubt = None;
        }
        Ok(pen)
    }

    fn note_failure<T>(
        &self,
        pen: &mut Pen,
        done: std::result::Result<T, JournalError>,
    ) -> Result<T> {
        done.map_err(|error| {
            tracing::error!(path = %self.path.display(), %error, "the journal cannot be written");
            pen.doubt = Some(self.clock.now_ms() + UNWRITABLE_MS);
            GateError(error.to_string())
        })
    }

    /// Take what the journal holds for the truth. Answers how many entries were applied.
    fn read_back(&self, pen: &mut Pen) -> std::result::Result<u64, JournalError> {
        let contents = pen.journal.read_all()?;
        pen.last_seq = contents.last_seq;
        pen.rewritten_seq = contents.last_seq - contents.replayed;
        let shelf = |shelf: Shelf| (shelf.item, Arc::new(RwLock::new(shelf)));
        *self.shelves.write() = contents.shelves.into_iter().map(shelf).collect();
        let mut log = self.log.lock();
        log.acked = log.acked.max(contents.acked);
        for stored in contents.unsettled {
            // What a worker already has, or has just put into the ledger, is not delivered again.
            if stored.seq > log.acked && !log.entries.contains_key(&stored.seq) {
                let epoch = journal::epoch_of(&stored.record);
                let Record::Claims { claims, .. } = stored.record else { continue };
                log.push(LogEntry { id: EntryId(stored.seq, 0), item: stored.item, epoch, claims });
            }
        }
        self.backlog.store(log.by_order.len() as u64, Ordering::Release);
        drop(log);
        self.arrived.notify_one();
        Ok(contents.replayed)
    }

    fn is_quiet(&self, pen: &Pen) -> bool {
        self.clock.now_ms() - pen.admitted_ms >= QUIET_MS
            && self.backlog.load(Ordering::Acquire) <= QUIET_CLAIMS_MAX
    }

    /// Write every item anew, so that the next start has nothing to apply.
    fn rewrite(&self, pen: &mut Pen) -> std::result::Result<(), JournalError> {
        let shelves: Vec<_> = self.shelves.read().values().cloned().collect();
        let guards: Vec<_> = shelves.iter().map(|shelf| shelf.read()).collect();
        pen.journal.put_items(pen.last_seq, guards.iter().map(|shelf| &**shelf))?;
        pen.rewritten_seq = pen.last_seq;
        Ok(())
    }

    fn shelf(&self, item: ItemId) -> Option<Arc<RwLock<Shelf>>> {
        self.shelves.read().get(&item).cloned()
    }

    /// Write one change and make it.
    fn change(
        &self,
        pen: &mut Pen,
        shelf: &RwLock<Shelf>,
        record: &Record,
    ) -> std::result::Result<Changed, JournalError> {
        let item = shelf.read().item;
        pen.journal.append(pen.last_seq + 1, &[(item, record)])?;
        pen.last_seq += 1;
        Ok(shelf.write().apply(record))
    }

    /// Decide a batch in memory. Winners are on the shelves afterwards, and in the answer grouped
    /// by item, but not yet in the journal.
    fn decide(&self, batch: &[Attempt]) -> (Vec<Verdict>, Vec<(ItemId, Record)>) {
        let now_ms = self.clock.now_ms();
        let mut ahead = self.backlog.load(Ordering::Acquire);
        let mut verdicts = Vec::with_capacity(batch.len());
        let mut won: Vec<(ItemId, Record)> = Vec::new();
        // Neighbours mostly want the same item: look it up once per run of them.
        for run in batch.chunk_by(|a, b| a.item == b.item) {
            let Some(shelf) = self.shelf(run[0].item) else {
                verdicts.extend(run.iter().map(|_| Verdict::Busy(Busy::NotLoaded)));
                continue;
            };
            let mut shelf = shelf.write();
            for attempt in run {
                let full = ahead >= self.options.log_claims_max;
                let verdict = if full && shelf.answered(attempt, ahead).is_none() {
                    Verdict::Busy(Busy::LogFull)
                } else {
                    shelf.decide(attempt, now_ms, ahead)
                };
                if let Verdict::Admitted { claim, repeated: false, .. } = &verdict {
                    ahead += 1;
                    push_winner(&mut won, claim, shelf.epoch, now_ms);
                }
                verdicts.push(verdict);
            }
        }
        (verdicts, won)
    }

    /// The durable half of admitting, and the news to the workers.
    fn write_down(
        &self,
        pen: &mut Pen,
        won: Vec<(ItemId, Record)>,
    ) -> std::result::Result<(), JournalError> {
        let records: Vec<_> = won.iter().map(|(item, record)| (*item, record)).collect();
        let first = pen.last_seq + 1;
        pen.journal.append(first, &records)?;
        pen.last_seq += records.len() as u64;
        pen.admitted_ms = self.clock.now_ms();
        self.rush.note(won.iter().map(|(_, record)| record.claims()).sum());
        self.enlist(first, won);
        Ok(())
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

    fn admit(&self, batch: Vec<Attempt>) -> Vec<Verdict> {
        let busy = |n: usize| vec![Verdict::Busy(Busy::Unwritable); n];
        let Ok(mut pen) = self.sure_pen() else { return busy(batch.len()) };
        let (verdicts, won) = self.decide(&batch);
        if won.is_empty() {
            return verdicts;
        }
        let written = self.write_down(&mut pen, won);
        match self.note_failure(&mut pen, written) {
            Ok(()) => verdicts,
            // Even a "sold out" of this batch may rest on units that were not really taken.
            Err(_) => busy(batch.len()),
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
        self.change(pen, &shelf, &record)?;
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
        pen.journal.append(pen.last_seq + 1, &borrowed)?;
        pen.last_seq += records.len() as u64;
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
            let acked = {
                let mut log = inner.log.lock();
                for id in entries {
                    if let Some((entry, _)) = log.entries.remove(&id.0) {
                        for claim in &entry.claims {
                            log.by_order.remove(&claim.order_no);
                        }
                        inner.backlog.fetch_sub(entry.claims.len() as u64, Ordering::AcqRel);
                    }
                }
                // Everything before the oldest entry that is left.
                let oldest = log.entries.keys().next().copied();
                log.acked = oldest.map_or(pen.last_seq, |oldest| oldest - 1);
                log.acked
            };
            pen.journal.ack(acked)
        });
        acked.await.map_err(|e| LogError(e.0))
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

    async fn admit(&self, batch: Vec<Attempt>) -> Vec<Verdict> {
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
            let (known, left) = {
                let shelf = shelf.read();
                (shelf.adjusts.contains_key(&adjust_no), shelf.left)
            };
            if known {
                return Ok(AdjustOutcome::Repeated);
            }
            if delta < 0 && left.saturating_add(delta) < 0 && !committed {
                return Ok(AdjustOutcome::Short { left });
            }
            let record = Record::Adjust { adjust_no, delta };
            Ok(AdjustOutcome::Done(inner.change(pen, &shelf, &record)?))
        })
        .await
    }

    async fn forget_adjust(&self, item: ItemId, adjust_no: OrderNo) -> Result<Option<Changed>> {
        self.with_pen(move |inner, pen| {
            let Some(shelf) = inner.shelf(item) else { return Ok(None) };
            if !shelf.read().adjusts.contains_key(&adjust_no) {
                return Ok(None);
            }
            Ok(Some(inner.change(pen, &shelf, &Record::ForgetAdjust { adjust_no })?))
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
                inner.change(pen, &shelf, &Record::Shut { shut: Some(Shut::Frozen) })?;
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
            pen.journal.put_items(pen.last_seq, [&shelf])?;
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
                inner.change(pen, &shelf, &Record::Shut { shut })?;
            }
            Ok(true)
        })
        .await
    }

    async fn unload(&self, item: ItemId) -> Result<()> {
        self.with_pen(move |inner, pen| {
            pen.journal.remove_item(item)?;
            inner.shelves.write().remove(&item);
            let trimmed = pen.journal.trim()?;
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

    async fn ping(&self) -> Result<()> {
        self.with_pen(|_, pen| pen.journal.probe()).await
    }
}

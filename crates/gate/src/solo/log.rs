//! The log: claims in the journal that the ledger does not have yet, in memory as well, so that workers
//! are served without the disk.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, MutexGuard};
use sale::{Claim, EntryId, ItemId, LogEntry, Millis, OrderNo};
use tokio::sync::Notify;

use super::{
    journal::{Acked, Stored},
    record::Record,
};

/// Entries in one page of what is overdue.
const OVERDUE_ENTRIES_MAX: usize = 256;

#[derive(Default)]
pub(super) struct Log {
    entries: Mutex<Entries>,
    /// Told when there is something to take.
    arrived: Notify,
    /// Claims on the log that are not acknowledged.
    backlog: AtomicU64,
}

#[derive(Default)]
pub(super) struct Entries {
    /// Unacknowledged entries by number, and whether a worker has them.
    by_seq: BTreeMap<u64, (LogEntry, bool)>,
    /// Which entry a claim is in.
    by_order: HashMap<OrderNo, u64>,
    /// No entry at or below this number is left.
    pub(super) acked: u64,
    /// Entries beyond it that were acknowledged while the journal could not be written.
    pub(super) unsaved: Vec<u64>,
}

impl Log {
    pub(super) fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock()
    }

    /// What the journal holds at a start.
    pub(super) fn restore(&self, acked: u64, unsettled: Vec<Stored>) {
        let mut entries = self.lock();
        entries.acked = acked;
        for Stored { seq, item, record } in unsettled {
            entries.push(seq, item, record);
        }
        self.backlog.store(entries.by_order.len() as u64, Ordering::Release);
    }

    /// These records are in the journal, the first under this number: workers may take them.
    pub(super) fn push(&self, first: u64, records: Vec<(ItemId, Record)>) {
        let mut entries = self.lock();
        for (seq, (item, record)) in (first..).zip(records) {
            self.backlog.fetch_add(record.claims() as u64, Ordering::AcqRel);
            entries.push(seq, item, record);
        }
        drop(entries);
        self.arrived.notify_one();
    }

    /// The next entries for a worker. Waits until there is one.
    pub(super) async fn take(&self, claims_max: usize) -> Vec<LogEntry> {
        loop {
            let arrived = self.arrived.notified();
            let taken = self.lock().take(claims_max);
            if !taken.is_empty() {
                return taken;
            }
            arrived.await;
        }
    }

    pub(super) fn give_back(&self, returned: Vec<LogEntry>) {
        let mut entries = self.lock();
        for entry in returned {
            if let Some((_, with_worker)) = entries.by_seq.get_mut(&entry.id.place.0) {
                *with_worker = false;
            }
        }
        drop(entries);
        self.arrived.notify_one();
    }

    /// These entries are in the ledger. Answers what the journal has to know.
    pub(super) fn settle(&self, ids: &[EntryId], last_seq: u64) -> Acked {
        let (acked, claims) = self.lock().settle(ids, last_seq);
        self.backlog.fetch_sub(claims, Ordering::AcqRel);
        acked
    }

    pub(super) fn backlog(&self) -> u64 {
        self.backlog.load(Ordering::Acquire)
    }
}

impl Entries {
    /// Only claims are for workers; other records are known to the gate alone.
    fn push(&mut self, seq: u64, item: ItemId, record: Record) {
        let Record::Claims { epoch, claims, .. } = record else { return };
        for claim in &claims {
            self.by_order.insert(claim.order_no, seq);
        }
        let id = EntryId { place: (seq, 0), content: content_of(&claims) };
        self.by_seq.insert(seq, (LogEntry { id, item, epoch, claims }, false));
    }

    fn take(&mut self, claims_max: usize) -> Vec<LogEntry> {
        let mut taken = Vec::new();
        let mut claims = 0;
        for (entry, with_worker) in self.by_seq.values_mut() {
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
        taken
    }

    /// Beside what the journal has to know, how many claims it were.
    fn settle(&mut self, ids: &[EntryId], last_seq: u64) -> (Acked, u64) {
        let (mut settled, mut claims) = (Vec::new(), 0);
        for id in ids {
            let seq = id.place.0;
            // A broker may bring an entry of a journal that is gone, whose numbers this one gives again.
            let is_same = self.by_seq.get(&seq).is_some_and(|(entry, _)| entry.id == *id);
            if is_same && let Some((entry, _)) = self.by_seq.remove(&seq) {
                for claim in &entry.claims {
                    self.by_order.remove(&claim.order_no);
                }
                claims += entry.claims.len() as u64;
                settled.push(seq);
            }
        }
        // Everything before the oldest entry that is left.
        let oldest = self.by_seq.keys().next().copied();
        self.acked = oldest.map_or(last_seq, |oldest| oldest - 1);
        settled.retain(|seq| *seq > self.acked);
        (Acked { cursor: self.acked, beyond: settled }, claims)
    }

    /// A page of those behind this one whose claims were made before this time.
    pub(super) fn overdue(&self, before_ms: Millis, after: u64) -> Vec<LogEntry> {
        let entries = self.by_seq.range(after + 1..).map(|(_, (entry, _))| entry);
        let made = |entry: &LogEntry| entry.claims.first().map_or(0, |claim| claim.claimed_ms);
        let old = entries.take_while(|entry| made(entry) < before_ms);
        old.take(OVERDUE_ENTRIES_MAX).cloned().collect()
    }

    /// All entries, oldest first.
    pub(super) fn all(&self) -> impl Iterator<Item = &LogEntry> {
        self.by_seq.values().map(|(entry, _)| entry)
    }

    /// Is this entry not settled yet?
    pub(super) fn is_owed(&self, seq: u64) -> bool {
        self.by_seq.contains_key(&seq)
    }

    pub(super) fn claim(&self, order_no: OrderNo) -> Option<&Claim> {
        let (entry, _) = self.by_seq.get(self.by_order.get(&order_no)?)?;
        entry.claims.iter().find(|claim| claim.order_no == order_no)
    }

    pub(super) fn claims_of(&self, item: ItemId) -> Vec<Claim> {
        let claims = self.all().flat_map(|entry| &entry.claims);
        claims.filter(|claim| claim.item == item).cloned().collect()
    }

    pub(super) fn last_order_no(&self) -> Option<OrderNo> {
        self.by_order.keys().max().copied()
    }
}

/// What tells an entry from another one with its number: no order number is given twice.
fn content_of(claims: &[Claim]) -> u64 {
    claims.first().map_or(0, |claim| claim.order_no.as_u64())
}

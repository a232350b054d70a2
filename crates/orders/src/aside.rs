//! Items whose rows somebody else holds in the ledger, and the loop that tries them again.
//!
//! A worker of another process may be frozen inside a transaction, or its machine may be gone; until
//! the ledger's server ends that transaction nobody can settle the item. That is no reason for the
//! other items to wait: the entries of such an item are put aside here, unacknowledged, and those that
//! come after them join them without another try. This loop asks for each item again, with pauses.
//!
//! A crash loses nothing, for nothing here is acknowledged. Stopping hands everything back to the log.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use sale::{ClaimLog, ItemId, LogEntry};
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::{
    meters,
    outage::{Backoff, Stopped},
    settler::{Settler, TriesBefore},
    workers::{Shared, acknowledge, settled_whole},
};

/// Claims that may wait aside. Beyond that the main loop waits as well: the log keeps the rest.
const ASIDE_CLAIMS_MAX: usize = 50_000;

/// What waits, by item. An item that is being tried is here too, with what came meanwhile.
#[derive(Default)]
pub(crate) struct Aside {
    waiting: Mutex<HashMap<ItemId, Vec<LogEntry>>>,
    /// Something was put aside.
    came: Notify,
    /// Something left.
    left: Notify,
}

impl Aside {
    fn count(&self) {
        let waiting = self.waiting.lock();
        let claims: usize = waiting.values().flatten().map(|entry| entry.claims.len()).sum();
        drop(waiting);
        meters::aside(claims);
    }

    /// Entries of items that wait already join them; answers the others.
    pub(crate) fn join(&self, entries: Vec<LogEntry>) -> Vec<LogEntry> {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            return entries;
        }
        let mut others = Vec::new();
        for entry in entries {
            match waiting.get_mut(&entry.item) {
                Some(queue) => queue.push(entry),
                None => others.push(entry),
            }
        }
        others
    }

    /// The rows of these entries' items are held by somebody else.
    pub(crate) fn put(&self, entries: Vec<LogEntry>) {
        if entries.is_empty() {
            return;
        }
        {
            let mut waiting = self.waiting.lock();
            for entry in entries {
                let queue = waiting.entry(entry.item).or_insert_with(|| {
                    let item = entry.item;
                    warn!(%item, "another session of the ledger has locked this item: its claims wait");
                    Vec::new()
                });
                queue.push(entry);
            }
        }
        self.count();
        self.came.notify_one();
    }

    /// Comes back when there is room for more.
    pub(crate) async fn room(&self) {
        loop {
            let left = self.left.notified();
            let claims = |queue: &Vec<LogEntry>| -> usize {
                queue.iter().map(|entry| entry.claims.len()).sum()
            };
            if self.waiting.lock().values().map(claims).sum::<usize>() < ASIDE_CLAIMS_MAX {
                return;
            }
            left.await;
        }
    }

    fn items(&self) -> Vec<ItemId> {
        self.waiting.lock().keys().copied().collect()
    }

    /// What waits of an item, oldest first. The item goes on waiting.
    fn of(&self, item: ItemId) -> Vec<LogEntry> {
        self.waiting.lock().get(&item).cloned().unwrap_or_default()
    }

    /// These entries are done with; the item waits on if more of it came meanwhile.
    fn remove(&self, item: ItemId, done: &[LogEntry]) {
        {
            let mut waiting = self.waiting.lock();
            let Some(queue) = waiting.get_mut(&item) else { return };
            queue.retain(|entry| !done.iter().any(|done| done.id == entry.id));
            if queue.is_empty() {
                waiting.remove(&item);
                info!(%item, "the claims that waited for this item's lock are settled");
            }
        }
        self.count();
        self.left.notify_waiters();
    }

    /// Everything, to be handed back.
    pub(crate) fn drain(&self) -> Vec<LogEntry> {
        let all = self.waiting.lock().drain().flat_map(|(_, entries)| entries).collect();
        self.count();
        all
    }
}

pub(crate) struct AsideLoop {
    pub(crate) settler: Settler,
    pub(crate) shared: Arc<Shared>,
    pub(crate) log: Arc<dyn ClaimLog>,
}

impl AsideLoop {
    pub(crate) async fn run(mut self) {
        while self.round().await.is_ok() {}
        self.log.give_back(self.shared.aside.drain()).await;
    }

    /// Wait until something is aside, then try it until nothing is.
    async fn round(&mut self) -> Result<(), Stopped> {
        let shared = self.shared.clone();
        tokio::select! {
            biased;
            () = self.settler.stop.stopped() => return Err(Stopped),
            () = shared.aside.came.notified() => {}
        }
        let mut backoff: Backoff = self.settler.backoff;
        loop {
            if !self.settler.stop.sleep(backoff.next()).await {
                return Err(Stopped);
            }
            let items = shared.aside.items();
            if items.is_empty() {
                return Ok(());
            }
            for item in items {
                if self.try_again(item).await? {
                    backoff = self.settler.backoff;
                }
            }
        }
    }

    /// False if the item is still held.
    async fn try_again(&mut self, item: ItemId) -> Result<bool, Stopped> {
        let entries = self.shared.aside.of(item);
        let claims: Vec<_> = entries.iter().flat_map(|entry| entry.claims.clone()).collect();
        let mut stuck = Vec::new();
        for (item, claims) in crate::settler::by_item(claims) {
            let pass = self.settler.settle(item, &claims, &TriesBefore::new()).await?;
            if pass.locked {
                return Ok(false);
            }
            stuck.extend(pass.stuck);
        }
        stuck.iter().for_each(|one| self.settler.report_stuck(one));
        let (done, left) = settled_whole(&entries, &stuck);
        acknowledge(&mut self.settler, &self.shared, &*self.log, &done).await?;
        self.log.leave(&left).await;
        self.shared.aside.remove(item, &entries);
        Ok(true)
    }
}

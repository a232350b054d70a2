//! The claim log as workers see it where claims come by a broker ([`super`] tells the whole life of one).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use sale::{ClaimLog, EntryId, LogEntry, LogError, RelaySource, SigningKeys};
use tokio::sync::Notify;
use tracing::warn;

use super::{Broker, Delivery, Receipt, message, meters};

/// Claims that a relay may hand to the workers directly and that wait for them.
const DIRECT_CLAIMS_MAX: usize = 50_000;

pub struct BrokerLog {
    log: Arc<dyn RelaySource>,
    broker: Arc<dyn Broker>,
    keys: SigningKeys,
    state: Mutex<State>,
    /// Something waits for a worker that no message brought.
    came: Notify,
    /// Some of what waited was taken.
    taken: Notify,
}

#[derive(Default)]
struct State {
    /// For the next worker, oldest first.
    waiting: VecDeque<LogEntry>,
    /// All that is not acknowledged, waiting or with a worker, and the messages that brought it.
    in_hand: HashMap<EntryId, Vec<Receipt>>,
    /// The same of what the broker has given up on.
    dead: HashMap<EntryId, Vec<Receipt>>,
}

impl State {
    fn waiting_claims(&self) -> usize {
        self.waiting.iter().map(|entry| entry.claims.len()).sum()
    }

    /// One that is in hand already only remembers that there is one message more.
    fn put(&mut self, entry: LogEntry, receipt: Option<Receipt>) {
        let known = self.in_hand.get_mut(&entry.id);
        if let Some(receipts) = known {
            receipts.extend(receipt);
            return;
        }
        self.in_hand.insert(entry.id, receipt.into_iter().collect());
        self.waiting.push_back(entry);
    }

    fn next(&mut self, claims_max: usize) -> Vec<LogEntry> {
        let (mut taken, mut claims) = (Vec::new(), 0);
        while let Some(entry) = self.waiting.front() {
            if claims > 0 && claims + entry.claims.len() > claims_max {
                break;
            }
            claims += entry.claims.len();
            taken.extend(self.waiting.pop_front());
        }
        taken
    }

    fn remove(&mut self, entries: &[EntryId]) -> Vec<Receipt> {
        entries.iter().filter_map(|id| self.in_hand.remove(id)).flatten().collect()
    }
}

impl BrokerLog {
    pub fn new(
        log: Arc<dyn RelaySource>,
        broker: Arc<dyn Broker>,
        keys: SigningKeys,
    ) -> Arc<BrokerLog> {
        let (state, came, taken) = (Mutex::default(), Notify::new(), Notify::new());
        Arc::new(BrokerLog { log, broker, keys, state, came, taken })
    }

    fn note(&self, deliveries: Vec<Delivery>) {
        let mut foreign = Vec::new();
        let mut state = self.state.lock();
        for Delivery { receipt, body } in deliveries {
            match message::open(&body, &self.keys) {
                Ok(entry) => state.put(entry, Some(receipt)),
                Err(error) => foreign.push((receipt, error)),
            }
        }
        drop(state);
        let Some((_, error)) = foreign.first() else { return };
        meters::unreadable(foreign.len());
        warn!(broker = self.broker.name(), messages = foreign.len(), %error,
            "messages of the topic are not ours and are passed by: who else writes to it?");
        let receipts: Vec<Receipt> = foreign.iter().map(|(receipt, _)| *receipt).collect();
        self.broker.confirm(&receipts);
    }

    /// For the workers of this process, past the broker, which refuses it. Waits for room.
    pub(super) async fn put_directly(&self, entry: LogEntry) {
        loop {
            let taken = self.taken.notified();
            if self.state.lock().waiting_claims() < DIRECT_CLAIMS_MAX {
                break;
            }
            taken.await;
        }
        self.state.lock().put(entry, None);
        self.came.notify_one();
    }
}

#[async_trait]
impl ClaimLog for BrokerLog {
    async fn take(&self, claims_max: usize) -> Result<Vec<LogEntry>, LogError> {
        loop {
            let next = self.state.lock().next(claims_max);
            if !next.is_empty() {
                self.taken.notify_waiters();
                return Ok(next);
            }
            tokio::select! {
                deliveries = self.broker.receive() => {
                    self.note(deliveries.map_err(|error| LogError(error.to_string()))?);
                }
                () = self.came.notified() => {}
            }
        }
    }

    /// At the log first: a message that is delivered again does no harm, an entry of which no message is left
    /// waits for the net.
    async fn ack(&self, entries: &[EntryId]) -> Result<(), LogError> {
        self.log.ack(entries).await?;
        let mut state = self.state.lock();
        let receipts = state.remove(entries);
        let dead: Vec<Receipt> =
            entries.iter().filter_map(|id| state.dead.remove(id)).flatten().collect();
        drop(state);
        self.broker.confirm(&receipts);
        if let Some(queue) = self.broker.dead_letters().filter(|_| !dead.is_empty()) {
            queue.confirm(&dead);
        }
        Ok(())
    }

    async fn give_back(&self, entries: Vec<LogEntry>) {
        let mut state = self.state.lock();
        for entry in entries.into_iter().rev() {
            state.waiting.push_front(entry);
        }
        drop(state);
        self.came.notify_one();
    }

    async fn leave(&self, entries: &[EntryId]) {
        let receipts = self.state.lock().remove(entries);
        self.broker.later(&receipts);
        self.log.leave(entries).await;
    }

    async fn take_dead(&self) -> Result<Vec<LogEntry>, LogError> {
        let Some(queue) = self.broker.dead_letters() else { return std::future::pending().await };
        loop {
            let deliveries = queue.receive().await.map_err(|error| LogError(error.to_string()))?;
            let mut entries: Vec<LogEntry> = Vec::new();
            for Delivery { receipt, body } in deliveries {
                let Ok(entry) = message::open(&body, &self.keys) else {
                    // Of whom it is nobody knows; what is ours is on the log.
                    meters::unreadable(1);
                    queue.confirm(&[receipt]);
                    continue;
                };
                self.state.lock().dead.entry(entry.id).or_default().push(receipt);
                if entries.iter().all(|known| known.id != entry.id) {
                    entries.push(entry);
                }
            }
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
    }

    /// All that is owed is on the log of the gate.
    fn backlog(&self) -> u64 {
        self.log.backlog()
    }

    fn is_rushing(&self) -> bool {
        self.log.is_rushing()
    }
}

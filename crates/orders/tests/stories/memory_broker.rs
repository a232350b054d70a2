//! A broker and a log of a gate that the test owns, and a relay between them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use orders::{
    Alerts, RelayOptions, Workers, WorkersHandle,
    broker::{
        BackMessages, BackPlace, Broker, BrokerError, BrokerFinding, BrokerLog, Delivery, Message,
        Published, QueueState, Receipt, Relay, RelayHandle,
    },
};
use sale::{
    Claim, ClaimLog, EntryId, LogEntry, LogError, Millis, RelaySource, SharedClock, SigningKeys,
};

use crate::fakes::{TestWorkers, Watched};

#[derive(Default)]
pub(crate) struct BrokerState {
    pub(crate) messages: Vec<Vec<u8>>,
    /// By place in `messages`.
    pub(crate) out: BTreeMap<usize, Receipt>,
    pub(crate) confirmed: BTreeSet<usize>,
    pub(crate) later: usize,
    receipts: HashMap<Receipt, usize>,
    pub(crate) publishes: usize,
    /// Takes nothing, and says nothing.
    pub(crate) down: bool,
    /// So many answers are lost, and what they were about is kept.
    pub(crate) answers_lost: usize,
    /// So many messages are confirmed and lost.
    pub(crate) messages_lost: usize,
    pub(crate) refuses: bool,
}

pub(crate) struct MemoryBroker(pub(crate) Watched<BrokerState>);

impl MemoryBroker {
    pub(crate) fn new() -> Arc<MemoryBroker> {
        Arc::new(MemoryBroker(Watched::new(BrokerState::default())))
    }

    /// All that is not confirmed is delivered again, as to a consumer that takes over from a dead one.
    pub(crate) fn rebalance(&self) {
        self.0.change(|broker| {
            broker.out.clear();
            broker.receipts.clear();
        });
    }

    pub(crate) async fn until_confirmed(&self, messages: usize) {
        self.0.until(|broker| broker.confirmed.len() == messages).await;
    }
}

#[async_trait]
impl Broker for MemoryBroker {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Published> {
        self.0.change(|broker| {
            broker.publishes += 1;
            let one = |message: &Message| {
                if broker.down {
                    return Published::Unknown("away".into());
                }
                if broker.refuses {
                    return Published::Refused("too large".into());
                }
                if broker.messages_lost > 0 {
                    broker.messages_lost -= 1;
                    return Published::Done;
                }
                broker.messages.push(message.body.clone());
                if broker.answers_lost > 0 {
                    broker.answers_lost -= 1;
                    return Published::Unknown("no answer in time".into());
                }
                Published::Done
            };
            messages.iter().map(one).collect()
        })
    }

    async fn receive(&self) -> Result<Vec<Delivery>, BrokerError> {
        let is_new = |broker: &BrokerState, n| {
            !broker.out.contains_key(&n) && !broker.confirmed.contains(&n)
        };
        self.0.until_for_ever(|broker| (0..broker.messages.len()).any(|n| is_new(broker, n))).await;
        Ok(self.0.change(|broker| {
            let new = (0..broker.messages.len()).filter(|n| is_new(broker, *n));
            let new: Vec<usize> = new.collect();
            let deliveries = new.into_iter().map(|n| {
                let receipt = Receipt(fastrand::u64(..));
                broker.out.insert(n, receipt);
                broker.receipts.insert(receipt, n);
                Delivery { receipt, body: broker.messages[n].clone() }
            });
            deliveries.collect()
        }))
    }

    fn confirm(&self, done: &[Receipt]) {
        self.0.change(|broker| {
            for receipt in done {
                broker.confirmed.extend(broker.receipts.remove(receipt));
            }
        });
    }

    fn later(&self, undone: &[Receipt]) {
        self.0.change(|broker| broker.later += undone.len());
        self.confirm(undone);
    }

    async fn queues(&self) -> Result<Vec<QueueState>, BrokerError> {
        self.0.see(|broker| {
            if broker.down {
                return Err(BrokerError("away".into()));
            }
            let end = broker.messages.len();
            let consumed = (0..end).find(|n| !broker.confirmed.contains(n)).unwrap_or(end);
            Ok(vec![QueueState { queue: 0, end: end as u64, consumed: consumed as u64 }])
        })
    }

    async fn read_back(
        &self,
        _: Millis,
        from: Option<BackPlace>,
    ) -> Result<BackMessages, BrokerError> {
        let from = from.map_or(0, |place| place.offset as usize);
        Ok(self.0.see(|broker| {
            let bodies: Vec<_> = broker.messages.iter().skip(from).take(1).cloned().collect();
            let offset = from as u64 + 1;
            let next = (!bodies.is_empty()).then_some(BackPlace { queue: 0, offset });
            BackMessages { bodies, next }
        }))
    }

    async fn findings(&self) -> Vec<BrokerFinding> {
        Vec::new()
    }

    async fn stop(&self) {}
}

#[derive(Default)]
pub(crate) struct GateLogState {
    pub(crate) entries: BTreeMap<EntryId, LogEntry>,
    pub(crate) taken: BTreeSet<EntryId>,
    pub(crate) relayed: BTreeSet<EntryId>,
    pub(crate) acked: Vec<EntryId>,
}

/// What a gate keeps until the ledger has it.
pub(crate) struct GateLog(pub(crate) Watched<GateLogState>);

impl GateLog {
    pub(crate) fn append(&self, claims: Vec<Claim>) -> EntryId {
        self.0.change(|log| {
            let place = (log.entries.len() + log.acked.len()) as u64;
            let id = EntryId { place: (place, 0), content: claims[0].order_no.as_u64() };
            let entry = LogEntry { id, item: claims[0].item, epoch: 1, claims };
            log.entries.insert(id, entry);
            id
        })
    }

    pub(crate) async fn until_empty(&self) {
        self.0.until(|log| log.entries.is_empty()).await;
    }
}

#[async_trait]
impl ClaimLog for GateLog {
    async fn take(&self, _: usize) -> Result<Vec<LogEntry>, LogError> {
        std::future::pending().await
    }

    async fn ack(&self, entries: &[EntryId]) -> Result<(), LogError> {
        self.0.change(|log| {
            for id in entries {
                if log.entries.remove(id).is_some() {
                    log.acked.push(*id);
                }
            }
        });
        Ok(())
    }

    async fn give_back(&self, _: Vec<LogEntry>) {}

    fn backlog(&self) -> u64 {
        self.0.see(|log| log.entries.len() as u64)
    }
}

#[async_trait]
impl RelaySource for GateLog {
    async fn take_unrelayed(&self, _: usize) -> Result<Vec<LogEntry>, LogError> {
        let is_new = |log: &GateLogState| log.entries.keys().any(|id| !log.taken.contains(id));
        self.0.until_for_ever(is_new).await;
        Ok(self.0.change(|log| {
            let new = log.entries.values().filter(|entry| !log.taken.contains(&entry.id));
            let new: Vec<LogEntry> = new.cloned().collect();
            log.taken.extend(new.iter().map(|entry| entry.id));
            new
        }))
    }

    async fn relayed(&self, entries: &[EntryId]) {
        self.0.change(|log| log.relayed.extend(entries));
    }

    async fn overdue(
        &self,
        before_ms: Millis,
        after: Option<EntryId>,
    ) -> Result<Vec<LogEntry>, LogError> {
        Ok(self.0.see(|log| {
            let old = log.entries.values().filter(|entry| entry.claims[0].claimed_ms < before_ms);
            let behind = old.filter(|entry| after.is_none_or(|after| entry.id > after));
            behind.take(2).cloned().collect()
        }))
    }
}

/// Workers behind a broker, and the relay before it.
pub(crate) struct TestRelay {
    pub(crate) test: TestWorkers,
    pub(crate) gate: Arc<GateLog>,
    pub(crate) broker: Arc<MemoryBroker>,
    pub(crate) options: RelayOptions,
}

pub(crate) fn keys(secret: &str) -> SigningKeys {
    SigningKeys::from_secret(secret.as_bytes()).unwrap()
}

impl TestRelay {
    pub(crate) fn new() -> TestRelay {
        TestRelay {
            test: TestWorkers::new(),
            gate: Arc::new(GateLog(Watched::new(GateLogState::default()))),
            broker: MemoryBroker::new(),
            options: RelayOptions { republish_after_ms: 20, ..RelayOptions::default() },
        }
    }

    /// One process of the workers.
    pub(crate) fn start(&self) -> (RelayHandle, WorkersHandle) {
        let keys = keys("a secret of the tests");
        let log = BrokerLog::new(self.gate.clone(), self.broker.clone(), keys.clone());
        let clock: SharedClock = self.test.clock.clone();
        let alerts: Alerts = self.test.alerts.clone();
        let relay = Relay::start(
            self.options.clone(),
            self.gate.clone(),
            self.broker.clone(),
            log.clone(),
            keys,
            clock.clone(),
            alerts.clone(),
        );
        let options = self.test.options.clone();
        (relay, Workers::start(options, log, self.test.book.clone(), clock, alerts))
    }
}

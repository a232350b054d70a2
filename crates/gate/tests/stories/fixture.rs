//! What every story needs: a home for either gate, buyers who ask, and short words for what they hear.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use faults::services::{shared_redis, unique_name};
use gate::{
    ClaimRequest, Decision, Gate, GiveBack, Keep, LaneOptions, Lanes, Loading, NumberedRequest,
    redis::{RedisGate, RedisOptions},
    solo::{SoloGate, SoloOptions},
};
use redis_link::{RedisAddress, RedisServers};
use sale::{
    Claim, Clock, EntryId, ItemId, KeyHash, LogEntry, ManualClock, Millis, OrderNo, OrderNumbers,
    SystemClock, UserId,
};

pub(crate) const ITEM: ItemId = ItemId(42);
pub(crate) const PARTITIONS: usize = 4;
/// What is settled is kept for an hour, as far as there is room.
pub(crate) const KEEP: Keep = Keep { ms: 3_600_000, bytes_max: 1 << 20 };

/// Where a gate keeps what it knows, and how it is opened there.
#[async_trait]
pub(crate) trait Home: Send + Sync {
    fn numbers(&self) -> &Arc<OrderNumbers>;

    /// By the clock that this gate opens and closes sales by.
    fn now_ms(&self) -> Millis;

    async fn open(&self) -> Arc<dyn Gate>;

    /// The process that had the gate open is gone, and another one opens it.
    async fn reopen(&self, gate: Arc<dyn Gate>) -> Arc<dyn Gate> {
        drop(gate);
        self.open().await
    }

    fn request(&self, user: &str, quantity: u32) -> NumberedRequest {
        (self.numbers().next(), units(user, quantity))
    }

    /// A claim that the gate does not have (any more).
    fn lost(&self, user: &str) -> Claim {
        let (order_no, user) = (self.numbers().next(), user.parse().unwrap());
        Claim { order_no, item: ITEM, user, quantity: 1, epoch: 1, claimed_ms: 5, key: None }
    }

    /// The item with so many units, on sale since a minute ago and for the next hour.
    fn loading(&self, epoch: u64, left: i64) -> Loading {
        let now_ms = self.now_ms();
        Loading {
            item: ITEM,
            epoch,
            opens_ms: now_ms - 60_000,
            closes_ms: now_ms + 3_600_000,
            limit: 2,
            shards: 1,
            left,
            marks: vec![],
            adjusted: vec![],
            shut: None,
        }
    }

    fn lanes(&self, gate: Arc<dyn Gate>, queue_max: usize) -> Lanes {
        let options = LaneOptions { queue_max, batch_max: 64, ..LaneOptions::default() };
        Lanes::start(
            options,
            1_000,
            gate,
            self.numbers().clone(),
            Arc::new(|| true),
            Arc::new(|_, _| {}),
        )
        .unwrap()
    }
}

/// A data directory, and a clock that the story sets.
pub(crate) struct SoloHome {
    dir: tempfile::TempDir,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) numbers: Arc<OrderNumbers>,
}

impl SoloHome {
    pub(crate) fn new() -> SoloHome {
        let clock = ManualClock::at(1_800_000_061_000);
        let numbers = Arc::new(OrderNumbers::new(0, clock.clone()));
        SoloHome { dir: tempfile::tempdir().unwrap(), clock, numbers }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn open_solo(&self) -> SoloGate {
        self.open_with(1_000_000)
    }

    pub(crate) fn open_with(&self, log_claims_max: u64) -> SoloGate {
        self.open_keeping(log_claims_max, Keep::NOTHING)
    }

    pub(crate) fn open_keeping(&self, log_claims_max: u64, keep: Keep) -> SoloGate {
        let options = SoloOptions { log_claims_max, keep };
        SoloGate::open(self.path(), options, self.clock.clone()).unwrap()
    }
}

#[async_trait]
impl Home for SoloHome {
    fn numbers(&self) -> &Arc<OrderNumbers> {
        &self.numbers
    }

    fn now_ms(&self) -> Millis {
        self.clock.now_ms()
    }

    async fn open(&self) -> Arc<dyn Gate> {
        Arc::new(self.open_solo())
    }
}

/// Keys of its own on a real server.
pub(crate) struct RedisHome {
    url: String,
    pub(crate) prefix: String,
    pub(crate) numbers: Arc<OrderNumbers>,
}

impl RedisHome {
    pub(crate) fn at(url: &str) -> RedisHome {
        RedisHome {
            url: url.into(),
            prefix: unique_name("gate"),
            numbers: Arc::new(OrderNumbers::new(0, Arc::new(SystemClock))),
        }
    }

    pub(crate) fn new() -> RedisHome {
        RedisHome::at(&shared_redis().url())
    }

    pub(crate) fn options(&self, consumer: &str) -> RedisOptions {
        RedisOptions {
            servers: RedisServers::new(&RedisAddress::new(&self.url)).unwrap(),
            prefix: self.prefix.clone(),
            partitions: PARTITIONS,
            answer_ms_max: 2_000,
            log_claims_max: 1_000_000,
            consumer: consumer.into(),
            takeover_ms: 300,
            wait_replicas: 0,
            wait_ms_max: 1_000,
            keep: KEEP,
        }
    }

    pub(crate) async fn open_as(&self, consumer: &str) -> RedisGate {
        RedisGate::open(self.options(consumer)).await.unwrap()
    }

    /// A bare command to the server.
    pub(crate) fn call(&self, words: &[&str]) -> String {
        shared_redis().call(words).unwrap().text()
    }
}

#[async_trait]
impl Home for RedisHome {
    fn numbers(&self) -> &Arc<OrderNumbers> {
        &self.numbers
    }

    fn now_ms(&self) -> Millis {
        SystemClock.now_ms()
    }

    async fn open(&self) -> Arc<dyn Gate> {
        // Every process is a worker of its own name.
        Arc::new(self.open_as(&unique_name("worker")).await)
    }
}

/// As the engine does, without a ledger to read in between.
pub(crate) async fn load(gate: &dyn Gate, loading: Loading) -> bool {
    let begun = gate.begin_load(loading.item, loading.epoch, loading.shards).await.unwrap();
    begun && gate.load(loading).await.unwrap()
}

pub(crate) async fn left(gate: &dyn Gate) -> i64 {
    gate.reading(ITEM).await.unwrap().unwrap().left
}

/// The decision on a request that comes alone.
pub(crate) async fn one(gate: &dyn Gate, request: NumberedRequest) -> Decision {
    gate.admit(vec![request]).await.remove(0)
}

/// One unit of the item, without a key.
pub(crate) fn one_unit(user: &str) -> ClaimRequest {
    units(user, 1)
}

pub(crate) fn units(user: &str, quantity: u32) -> ClaimRequest {
    let user: UserId = user.parse().unwrap();
    ClaimRequest { item: ITEM, user, quantity, key: None }
}

/// The same request with an `Idempotency-Key`.
pub(crate) fn keyed((order_no, request): NumberedRequest, key: u64) -> NumberedRequest {
    (order_no, ClaimRequest { key: Some(KeyHash(key)), ..request })
}

pub(crate) fn admitted(decision: &Decision) -> Claim {
    match decision {
        Decision::Admitted { claim, .. } => claim.clone(),
        other => panic!("not admitted: {other:?}"),
    }
}

pub(crate) fn give_back(claim: &Claim) -> GiveBack {
    GiveBack {
        item: claim.item,
        user: claim.user.clone(),
        order_no: claim.order_no,
        quantity: claim.quantity,
    }
}

pub(crate) fn ids(entries: &[LogEntry]) -> Vec<EntryId> {
    entries.iter().map(|entry| entry.id).collect()
}

pub(crate) fn order_numbers(entries: &[LogEntry]) -> Vec<OrderNo> {
    entries.iter().flat_map(|entry| &entry.claims).map(|claim| claim.order_no).collect()
}

//! The Redis gate: one script call per batch, everything of a partition in one slot.
//!
//! **Parts.** `partitions` hash tags `{p0}` … An item with `shards = k` lives in `k` of them; a buyer
//! belongs to `hash(user) % k`, so the buyer's mark, the stock they draw on and the stream they end
//! up in are always in one slot, and one script decides ([`keys`] names everything, `lua/` holds
//! the scripts). The stream of a partition is its claim log ([`log`]); what is settled is [`kept`] beside it
//! for a while.
//!
//! **The life of a batch.** The lane hands it over, it is split by partition and item, each part is
//! one call of `admit.lua`: window by Redis `TIME`, marks, limit, stock, then marks, stock, `seq` and
//! one `XADD` for all winners. With `appendfsync always` the answer means that it is on disk; with
//! `wait_replicas` that so many replicas have it.
//!
//! **An answer that does not come** is unknown, so the same call is made again, with the same order
//! numbers: who was admitted by the first call is found marked with the very number of the request.
//! After a few tries the buyers are told *busy*, which is true whatever happened.
//!
//! **A shard that runs dry steals** ([`moves`]): units are taken from a richer shard, noted there as an
//! open move, given here, and the note removed. Each step is idempotent by the move's id, and anyone
//! finishes a move whose mover died. An item is sold out only if every shard is dry and no move is
//! open. A thief who meets a shard that is being loaded, or that does not answer, says *busy*.
//!
//! **Loads are fenced** ([`load`]): who loads an item takes it over at the gate, under an epoch that
//! nobody else has, before log and ledger are read. What another process still carries from the ledger
//! to the gate is refused meanwhile and comes again; of two loaders the later one stands.
//!
//! **Lost writes** ([`watch`]). A failover can lose what was acknowledged. Every change bumps `seq`;
//! an instance that is answered with an older `seq` or epoch than it had seen before it asked calls
//! the item *suspect*: it admits nobody, and is loaded anew from ledger and log under a new epoch.
//! That is noticed at once, but not always: others may have made up for the lost numbers, or nobody
//! who had seen them is still running. So a load also notes which server process it was made in, and an item
//! that is served by another one is suspect as well, whoever looks. A claim that a worker had in hand
//! when a failover took it from the log becomes an order that the load did not know of: it is adopted.
//!
//! **Missing state is closed.** A Redis that is empty, evicted, restarted or unreachable is a gate
//! that says *busy*, until the item has been warmed again from the ledger.

mod adjust;
mod admit;
mod buyer_claims;
mod decision;
mod directory;
mod holders;
mod kept;
mod keys;
mod known_claims;
mod load;
mod log;
mod log_room;
mod look_back;
mod moves;
mod on_log;
mod outlines;
mod pulses;
mod reading;
mod relay;
mod scripts;
mod shards;
mod store;
mod streams;
mod survey;
mod watch;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use redis::RedisError;
use redis_link::RedisServers;
use sale::{Claim, ClaimLog, EntryId, Epoch, ItemId, LogEntry, LogError, Millis, OrderNo, UserId};

use self::{
    adjust::Adjuster,
    admit::Admitter,
    buyer_claims::BuyerClaims,
    directory::Directory,
    holders::Holders,
    kept::Kept,
    known_claims::KnownClaims,
    load::Loader,
    log::StreamLog,
    log_room::LogRoom,
    moves::Mover,
    on_log::OnLog,
    pulses::{Pulses, first_error},
    reading::Inspector,
    shards::ShardReader,
    store::Store,
    survey::{Known, Survey},
    watch::Watch,
};
use crate::{
    AdjustOutcome, Admission, Changed, Decision, GateError, GateFailure, GiveBack, Inspection,
    Keep, Loaded, Loading, NumberedRequest, Outline, Reading, Readmitted, Result, Shut, Upkeep,
    Writable, mark::Garbled, rush::Rush,
};

/// The code of the errors by which the scripts say: not while the item is being loaded.
const FROZEN: &str = "FROZEN";
/// Rows per page of a scan.
const SCAN_ROWS: usize = 1_000;

#[derive(Clone, Debug)]
pub struct RedisOptions {
    pub servers: Arc<RedisServers>,
    /// Before every key.
    pub prefix: String,
    pub partitions: usize,
    /// Every command is answered within this, or its outcome is unknown.
    pub answer_ms_max: u64,
    /// Claims that may wait for the ledger, in all partitions together.
    pub log_claims_max: u64,
    /// The name of this process among the workers.
    pub consumer: String,
    /// An entry taken by a worker that has been silent this long is taken over.
    pub takeover_ms: u64,
    /// An admission is answered when so many replicas have it.
    pub wait_replicas: u32,
    pub wait_ms_max: u64,
    /// What the streams of all partitions together keep of what is settled.
    pub keep: Keep,
}

#[derive(Clone)]
pub struct RedisGate(Arc<Parts>);

/// The parts of the gate. Each has what it needs of the others.
struct Parts {
    store: Arc<Store>,
    directory: Arc<Directory>,
    watch: Arc<Watch>,
    holders: Arc<Holders>,
    mover: Arc<Mover>,
    adjuster: Arc<Adjuster>,
    on_log: Arc<OnLog>,
    buyer_claims: Arc<BuyerClaims>,
    kept: Arc<Kept>,
    log: Arc<StreamLog>,
    relays: Arc<StreamLog>,
    admitter: Admitter,
    known_claims: KnownClaims,
    loader: Loader,
    inspector: Inspector,
    pulses: Arc<Pulses>,
    survey: Survey,
}

/// Units left of each item as last known here.
type Lefts = RwLock<HashMap<ItemId, i64>>;

/// Orders what this process hears, so that an older "sold out" never outlives newer units.
struct Ticks(AtomicU64);

impl Ticks {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::AcqRel)
    }
}

impl From<RedisError> for GateError {
    fn from(error: RedisError) -> Self {
        let reason = match error.code() {
            Some(FROZEN) => GateFailure::BeingLoaded,
            _ => GateFailure::Unreachable,
        };
        GateError::new(reason, error)
    }
}

impl From<Garbled> for GateError {
    fn from(error: Garbled) -> Self {
        GateError::new(GateFailure::Unreadable, error)
    }
}

impl RedisGate {
    pub async fn open(options: RedisOptions) -> Result<RedisGate> {
        let store = Arc::new(Store::open(&options).await?);
        let (watch, holders) = (Arc::new(Watch::default()), Arc::new(Holders::default()));
        let directory = Directory::new(store.clone(), watch.clone(), holders.clone());
        let directory = Arc::new(directory);
        directory.read_now().await?;
        Parts::join(&options, store, directory, watch, holders).map(|all| RedisGate(Arc::new(all)))
    }
}

impl Parts {
    fn join(
        options: &RedisOptions,
        store: Arc<Store>,
        directory: Arc<Directory>,
        watch: Arc<Watch>,
        holders: Arc<Holders>,
    ) -> Result<Parts> {
        let (lefts, ticks) = (Arc::<Lefts>::default(), Arc::new(Ticks(AtomicU64::new(1))));
        let shards = Arc::new(ShardReader {
            store: store.clone(),
            directory: directory.clone(),
            watch: watch.clone(),
        });
        let mover = Mover::new(store.clone(), directory.clone(), shards.clone());
        let mover = Arc::new(mover?);
        let adjuster = Arc::new(Adjuster {
            store: store.clone(),
            directory: directory.clone(),
            shards: shards.clone(),
            ticks: ticks.clone(),
        });
        let pulses = Arc::new(Pulses::new(store.clone()));
        let on_log = Arc::new(OnLog::new(store.clone(), directory.clone()));
        let buyer_claims = Arc::new(BuyerClaims::new(store.clone(), directory.clone()));
        let kept = Arc::new(Kept::new(store.clone(), options.keep));
        let log = Arc::new(StreamLog::new(log::WORKERS, store.clone(), kept.clone(), options));
        Ok(Parts {
            admitter: Admitter {
                store: store.clone(),
                directory: directory.clone(),
                watch: watch.clone(),
                holders: holders.clone(),
                mover: mover.clone(),
                ticks: ticks.clone(),
                buyer_claims: buyer_claims.clone(),
                rush: Rush::default(),
                room: LogRoom::new(log.clone(), options.log_claims_max),
            },
            known_claims: KnownClaims {
                store: store.clone(),
                directory: directory.clone(),
                watch: watch.clone(),
                holders: holders.clone(),
                mover: mover.clone(),
                ticks,
            },
            loader: Loader {
                store: store.clone(),
                directory: directory.clone(),
                watch: watch.clone(),
                holders: holders.clone(),
                lefts: lefts.clone(),
                filling: Mutex::default(),
            },
            inspector: Inspector {
                store: store.clone(),
                directory: directory.clone(),
                shards: shards.clone(),
                mover: mover.clone(),
                adjuster: adjuster.clone(),
                on_log: on_log.clone(),
                lefts: lefts.clone(),
            },
            survey: Survey {
                directory: directory.clone(),
                shards,
                pulses: pulses.clone(),
                lefts,
                last: tokio::sync::Mutex::default(),
                known: Mutex::new(Known::nothing(store.partitions)),
            },
            pulses,
            log,
            relays: Arc::new(StreamLog::new(log::RELAYS, store.clone(), kept.clone(), options)),
            kept,
            store,
            directory,
            watch,
            holders,
            mover,
            adjuster,
            on_log,
            buyer_claims,
        })
    }
}

#[async_trait]
impl ClaimLog for RedisGate {
    async fn take(&self, claims_max: usize) -> std::result::Result<Vec<LogEntry>, LogError> {
        self.0.log.take(claims_max).await
    }

    async fn ack(&self, entries: &[EntryId]) -> std::result::Result<(), LogError> {
        self.0.log.ack(entries).await;
        Ok(())
    }

    async fn give_back(&self, entries: Vec<LogEntry>) {
        self.0.log.give_back(entries);
    }

    fn backlog(&self) -> u64 {
        self.0.log.backlog()
    }

    fn is_rushing(&self) -> bool {
        self.0.admitter.rush.is_on()
    }
}

#[async_trait]
impl Admission for RedisGate {
    fn partitions(&self) -> usize {
        self.0.store.partitions
    }

    fn partition_of(&self, item: ItemId, user: &UserId) -> usize {
        let directory = &self.0.directory;
        directory.home(item, user).unwrap_or_else(|| directory.partition(item, 0))
    }

    fn blocks(&self) -> bool {
        false
    }

    async fn admit(&self, batch: Vec<NumberedRequest>) -> Vec<Decision> {
        self.0.admitter.admit(batch).await
    }

    fn units_left(&self, item: ItemId) -> Option<i64> {
        Inspection::left(self, item)
    }

    fn may_hold_mark(&self, item: ItemId, user: &UserId, with_key: bool) -> bool {
        with_key || self.0.holders.may_hold(item, user)
    }
}

#[async_trait]
impl Upkeep for RedisGate {
    async fn readmit(&self, claim: &Claim) -> Result<Readmitted> {
        self.0.known_claims.readmit(claim).await
    }

    fn home_of(&self, item: ItemId, user: &UserId) -> Option<usize> {
        self.0.directory.home(item, user)
    }

    async fn release(&self, units: &[GiveBack]) -> Result<Vec<Changed>> {
        self.0.known_claims.release(units).await
    }

    async fn adopt(&self, claims: &[Claim]) -> Result<Vec<Claim>> {
        self.0.known_claims.adopt(claims).await
    }

    async fn adjust(
        &self,
        item: ItemId,
        adjust_no: OrderNo,
        delta: i64,
        committed: bool,
    ) -> Result<AdjustOutcome> {
        self.0.adjuster.adjust(item, adjust_no, delta, committed).await
    }

    async fn forget_adjust(&self, item: ItemId, adjust_no: OrderNo) -> Result<Option<Changed>> {
        self.0.adjuster.forget(item, adjust_no).await
    }

    async fn begin_load(&self, item: ItemId, epoch: Epoch, shards: u32) -> Result<bool> {
        self.0.loader.begin(item, epoch, shards).await
    }

    async fn keep_loading(&self, item: ItemId, epoch: Epoch) -> Result<bool> {
        self.0.loader.keep(item, epoch).await
    }

    async fn fill(&self, item: ItemId, epoch: Epoch, marks: Vec<Claim>) -> Result<bool> {
        self.0.loader.fill(item, epoch, &marks).await
    }

    async fn load(&self, loading: Loading) -> Result<bool> {
        self.0.loader.load(loading).await
    }

    async fn abandon_load(&self, item: ItemId, epoch: Epoch) {
        self.0.loader.abandon(item, epoch).await;
    }

    async fn shut(&self, item: ItemId, shut: Option<Shut>) -> Result<bool> {
        self.0.loader.shut(item, shut).await
    }

    async fn unload(&self, item: ItemId) -> Result<()> {
        self.0.loader.unload(item).await
    }

    fn suspects(&self) -> Vec<ItemId> {
        self.0.watch.suspects()
    }

    fn forget_suspect(&self, item: ItemId) {
        self.0.watch.clear(item);
    }

    /// A step that fails keeps the others from nothing: each part of the gate may be at another server.
    async fn upkeep(&self) -> Result<()> {
        let Parts { survey, mover, on_log, log, relays, kept, .. } = &*self.0;
        on_log.forget_old_reads();
        let answers = survey.make().await;
        for (partition, pulse) in answers.iter().enumerate() {
            if let Ok(pulse) = pulse {
                log.note_backlog(partition, pulse.backlog);
            }
        }
        let steps = [
            first_error(&answers).map_or(Ok(()), Err),
            mover.finish_moves(&answers).await,
            log.ack_again().await,
            log.tidy_groups().await,
            relays.tidy_groups().await,
            kept.trim(&answers).await,
        ];
        steps.into_iter().collect()
    }
}

#[async_trait]
impl Inspection for RedisGate {
    async fn adjusts(&self, item: ItemId) -> Result<Vec<(OrderNo, i64)>> {
        self.0.adjuster.all(item).await
    }

    async fn loaded(&self) -> Result<Vec<Loaded>> {
        Ok(self.0.survey.loaded().await)
    }

    async fn loaded_lately(&self) -> Result<Vec<Loaded>> {
        Ok(self.0.survey.loaded_lately().await)
    }

    async fn look(&self) {
        self.0.survey.look().await;
    }

    async fn loaded_item(&self, item: ItemId) -> Result<Option<Loaded>> {
        self.0.survey.loaded_item(item).await
    }

    async fn reading(&self, item: ItemId) -> Result<Option<Reading>> {
        self.0.inspector.reading(item).await
    }

    async fn clocks(&self, item: ItemId) -> Vec<Result<Millis>> {
        self.0.inspector.clocks(item).await
    }

    async fn in_flight(&self, item: ItemId) -> Result<Vec<Claim>> {
        self.0.on_log.in_flight(item).await
    }

    async fn outlines(&self) -> Result<HashMap<ItemId, Outline>> {
        self.0.inspector.outlines().await
    }

    async fn marked(&self, item: ItemId, claims: &[(UserId, OrderNo)]) -> Result<HashSet<OrderNo>> {
        self.0.inspector.marked(item, claims).await
    }

    async fn marks(&self, item: ItemId) -> Result<Vec<(UserId, OrderNo)>> {
        self.0.inspector.marks(item).await
    }

    async fn queued(&self, user: &UserId, order_no: OrderNo) -> Result<Option<Claim>> {
        self.0.buyer_claims.queued(user, order_no).await
    }

    async fn is_on_log(&self, claim: &Claim) -> Result<bool> {
        self.0.on_log.holds(claim).await
    }

    async fn queued_of(&self, user: &UserId) -> Result<Vec<Claim>> {
        self.0.buyer_claims.queued_of(user).await
    }

    async fn on_log(&self, order_no: OrderNo) -> Result<Option<Claim>> {
        self.0.on_log.find(order_no).await
    }

    fn left(&self, item: ItemId) -> Option<i64> {
        self.0.inspector.left(item)
    }

    async fn measure_backlog(&self) -> Result<u64> {
        self.0.log.read_backlog().await?;
        Ok(self.0.log.backlog())
    }

    async fn oldest_waits_ms(&self) -> Result<Option<u64>> {
        self.0.pulses.oldest_waits_ms().await
    }

    async fn check(&self) -> Writable {
        self.0.pulses.check().await
    }
}

//! For the tests of the engine: a gate at which an item seems to change between any two readings, and
//! which can be made to say that it cannot tell.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use gate::{
    AdjustOutcome, Admission, Changed, Decision, Gate, GateError, GateFailure, GiveBack,
    Inspection, Loaded, Loading, NumberedRequest, Reading, Readmitted, Shut, Upkeep, Writable,
};
use parking_lot::Mutex;
use sale::{
    BackMark, BackPage, Claim, ClaimLog, EntryId, Epoch, ItemId, LogEntry, LogError, LookBack,
    LookBackError, Millis, OrderNo, RelaySource, UserId,
};

type Result<T> = std::result::Result<T, GateError>;

pub struct MovingGate {
    gate: Arc<dyn Gate>,
    pub controls: Arc<GateControls>,
}

/// What a test makes the gate do, and hears of it.
#[derive(Default)]
pub struct GateControls {
    /// How many claims have reached it.
    pub asked: AtomicU64,
    /// How often it was read.
    pub readings: AtomicU64,
    /// Items seem to move for so many readings; then the gate comes to rest.
    pub moves: AtomicU64,
    /// It is being loaded, and does not know what its buyers hold.
    pub cannot_tell: AtomicBool,
    /// The item has left, and its claims are still on the log.
    pub has_left: AtomicBool,
    pub adopted: Mutex<Vec<OrderNo>>,
    /// It does not answer those who ask what is there, or who shut or change something.
    pub away: AtomicBool,
    /// Items on servers that hang: no unit of theirs can be given back…
    pub hanging: Mutex<HashSet<ItemId>>,
    /// …and whoever tries hears so after this.
    pub answers_within: Mutex<Duration>,
    /// How often it was asked to take units back.
    pub releases: AtomicU64,
    /// How often it was asked to shut or open an item.
    pub shut_asked: AtomicU64,
    /// What happens before the gate is next asked to shut or open an item.
    pub before_shut: Mutex<Option<Meanwhile>>,
    /// What it may have lost writes of.
    pub suspects: Mutex<Vec<ItemId>>,
    /// How often it was looked after.
    pub upkeeps: AtomicU64,
}

pub type Meanwhile = BoxFuture<'static, ()>;

impl GateControls {
    fn can_tell(&self) -> Result<()> {
        let cannot = self.cannot_tell.load(Ordering::SeqCst);
        if cannot {
            Err(GateError::new(GateFailure::BeingLoaded, "the item is being loaded"))
        } else {
            Ok(())
        }
    }

    fn answers(&self) -> Result<()> {
        let away = self.away.load(Ordering::SeqCst);
        if away { Err(GateError::new(GateFailure::Unreachable, "it is away")) } else { Ok(()) }
    }
}

impl MovingGate {
    pub fn new(gate: Arc<dyn Gate>) -> MovingGate {
        MovingGate { gate, controls: Arc::default() }
    }
}

#[async_trait]
impl ClaimLog for MovingGate {
    async fn take(&self, claims_max: usize) -> std::result::Result<Vec<LogEntry>, LogError> {
        self.gate.take(claims_max).await
    }

    async fn ack(&self, entries: &[EntryId]) -> std::result::Result<(), LogError> {
        self.gate.ack(entries).await
    }

    async fn give_back(&self, entries: Vec<LogEntry>) {
        self.gate.give_back(entries).await;
    }

    fn backlog(&self) -> u64 {
        self.gate.backlog()
    }
}

#[async_trait]
impl RelaySource for MovingGate {
    async fn take_unrelayed(
        &self,
        claims_max: usize,
    ) -> std::result::Result<Vec<LogEntry>, LogError> {
        self.gate.take_unrelayed(claims_max).await
    }

    async fn relayed(&self, entries: &[EntryId]) {
        self.gate.relayed(entries).await;
    }

    async fn overdue(
        &self,
        before_ms: Millis,
        after: Option<EntryId>,
    ) -> std::result::Result<Vec<LogEntry>, LogError> {
        self.gate.overdue(before_ms, after).await
    }
}

#[async_trait]
impl LookBack for MovingGate {
    async fn look_back(
        &self,
        since_ms: Millis,
        from: Option<&BackMark>,
    ) -> std::result::Result<BackPage, LookBackError> {
        self.gate.look_back(since_ms, from).await
    }
}

#[async_trait]
impl Admission for MovingGate {
    fn partitions(&self) -> usize {
        self.gate.partitions()
    }

    fn partition_of(&self, item: ItemId, user: &UserId) -> usize {
        self.gate.partition_of(item, user)
    }

    fn blocks(&self) -> bool {
        self.gate.blocks()
    }

    async fn admit(&self, batch: Vec<NumberedRequest>) -> Vec<Decision> {
        self.controls.asked.fetch_add(batch.len() as u64, Ordering::SeqCst);
        self.gate.admit(batch).await
    }

    fn units_left(&self, item: ItemId) -> Option<i64> {
        self.gate.units_left(item)
    }

    fn may_hold_mark(&self, item: ItemId, user: &UserId, with_key: bool) -> bool {
        self.gate.may_hold_mark(item, user, with_key)
    }
}

#[async_trait]
impl Upkeep for MovingGate {
    async fn readmit(&self, claim: &Claim) -> Result<Readmitted> {
        if self.controls.has_left.load(Ordering::SeqCst) {
            return Ok(Readmitted::NotLoaded);
        }
        self.gate.readmit(claim).await
    }

    /// As if each item lay on a server of its own.
    fn home_of(&self, item: ItemId, _: &UserId) -> Option<usize> {
        Some(item.0.unsigned_abs() as usize)
    }

    async fn release(&self, units: &[GiveBack]) -> Result<Vec<Changed>> {
        self.controls.releases.fetch_add(1, Ordering::SeqCst);
        let hangs = |unit: &GiveBack| self.controls.hanging.lock().contains(&unit.item);
        if units.iter().any(hangs) {
            let answers_within = *self.controls.answers_within.lock();
            tokio::time::sleep(answers_within).await;
            return Err(GateError::new(GateFailure::Unreachable, "it hangs"));
        }
        self.gate.release(units).await
    }

    async fn adjust(
        &self,
        item: ItemId,
        adjust_no: OrderNo,
        delta: i64,
        committed: bool,
    ) -> Result<AdjustOutcome> {
        self.controls.answers()?;
        self.gate.adjust(item, adjust_no, delta, committed).await
    }

    async fn forget_adjust(&self, item: ItemId, adjust_no: OrderNo) -> Result<Option<Changed>> {
        self.gate.forget_adjust(item, adjust_no).await
    }

    async fn adopt(&self, claims: &[Claim]) -> Result<Vec<Claim>> {
        self.controls.can_tell()?;
        self.controls.adopted.lock().extend(claims.iter().map(|claim| claim.order_no));
        Ok(claims.to_vec())
    }

    async fn begin_load(&self, item: ItemId, epoch: Epoch, shards: u32) -> Result<bool> {
        self.gate.begin_load(item, epoch, shards).await
    }

    async fn keep_loading(&self, item: ItemId, epoch: Epoch) -> Result<bool> {
        self.gate.keep_loading(item, epoch).await
    }

    async fn fill(&self, item: ItemId, epoch: Epoch, marks: Vec<Claim>) -> Result<bool> {
        self.gate.fill(item, epoch, marks).await
    }

    async fn load(&self, loading: Loading) -> Result<bool> {
        self.gate.load(loading).await
    }

    async fn abandon_load(&self, item: ItemId, epoch: Epoch) {
        self.gate.abandon_load(item, epoch).await;
    }

    async fn shut(&self, item: ItemId, shut: Option<Shut>) -> Result<bool> {
        self.controls.shut_asked.fetch_add(1, Ordering::SeqCst);
        self.controls.answers()?;
        let meanwhile = self.controls.before_shut.lock().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile.await;
        }
        self.gate.shut(item, shut).await
    }

    async fn unload(&self, item: ItemId) -> Result<()> {
        self.gate.unload(item).await
    }

    fn suspects(&self) -> Vec<ItemId> {
        self.controls.suspects.lock().clone()
    }

    async fn upkeep(&self) -> Result<()> {
        self.controls.upkeeps.fetch_add(1, Ordering::SeqCst);
        self.gate.upkeep().await
    }
}

#[async_trait]
impl Inspection for MovingGate {
    async fn reading(&self, item: ItemId) -> Result<Option<Reading>> {
        let readings = self.controls.readings.fetch_add(1, Ordering::SeqCst) + 1;
        let moves = self.controls.moves.load(Ordering::SeqCst);
        let reading = self.gate.reading(item).await?;
        Ok(reading.map(|mut reading| {
            reading.version += readings.min(moves);
            reading
        }))
    }

    async fn adjusts(&self, item: ItemId) -> Result<Vec<(OrderNo, i64)>> {
        self.gate.adjusts(item).await
    }

    async fn loaded(&self) -> Result<Vec<Loaded>> {
        self.controls.answers()?;
        self.gate.loaded().await
    }

    async fn loaded_item(&self, item: ItemId) -> Result<Option<Loaded>> {
        self.controls.answers()?;
        self.gate.loaded_item(item).await
    }

    async fn in_flight(&self, item: ItemId) -> Result<Vec<Claim>> {
        self.gate.in_flight(item).await
    }

    async fn outlines(&self) -> Result<HashMap<ItemId, gate::Outline>> {
        self.gate.outlines().await
    }

    async fn marked(&self, item: ItemId, claims: &[(UserId, OrderNo)]) -> Result<HashSet<OrderNo>> {
        self.gate.marked(item, claims).await
    }

    async fn marks(&self, item: ItemId) -> Result<Vec<(UserId, OrderNo)>> {
        self.gate.marks(item).await
    }

    async fn queued(&self, user: &UserId, order_no: OrderNo) -> Result<Option<Claim>> {
        self.controls.can_tell()?;
        if self.controls.has_left.load(Ordering::SeqCst) {
            return Ok(None);
        }
        self.gate.queued(user, order_no).await
    }

    async fn is_on_log(&self, claim: &Claim) -> Result<bool> {
        self.gate.is_on_log(claim).await
    }

    async fn queued_of(&self, user: &UserId) -> Result<Vec<Claim>> {
        self.gate.queued_of(user).await
    }

    async fn on_log(&self, order_no: OrderNo) -> Result<Option<Claim>> {
        self.controls.can_tell()?;
        self.gate.on_log(order_no).await
    }

    fn left(&self, item: ItemId) -> Option<i64> {
        self.gate.left(item)
    }

    async fn oldest_waits_ms(&self) -> Result<Option<u64>> {
        self.gate.oldest_waits_ms().await
    }

    async fn check(&self) -> Writable {
        self.gate.check().await
    }
}

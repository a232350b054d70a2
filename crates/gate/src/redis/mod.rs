//! The Redis gate: one script call per batch, everything of a partition in one slot.
//!
//! **Parts.** `partitions` hash tags `{p0}` … An item with `shards = k` lives in `k` of them; a buyer
//! belongs to `hash(user) % k`, so the buyer's mark, the stock they draw on and the stream they end
//! up in are always in one slot, and one script decides ([`keys`] names everything, `lua/` holds
//! the scripts). The stream of a partition is its claim log ([`log`]).
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
//! who had seen them lives. So a load also notes which server process it was made in, and an item
//! that is served by another one is suspect as well, whoever looks. A claim that a worker had in hand
//! when a failover took it from the log becomes an order that the load did not know of: it is adopted.
//!
//! **Missing state is closed.** A Redis that is empty, evicted, restarted or unreachable is a gate
//! that says *busy*, until the item has been warmed again from the ledger.

mod cluster_line;
mod decision;
mod keys;
mod link;
mod load;
mod log;
mod moves;
mod on_log;
mod scripts;
mod watch;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use parking_lot::{Mutex, RwLock};
use redis::{RedisError, Value};
use sale::{Claim, ClaimLog, EntryId, Epoch, ItemId, LogEntry, LogError, OrderNo, UserId};

use crate::{
    AdjustOutcome, Busy, Changed, ClaimRequest, Decision, Gate, GateError, GateFailure, GiveBack,
    Loaded, Loading, NumberedRequest, Reading, Readmitted, Result, Shut, Writable,
    mark::{Garbled, Mark, put_mark},
    rush::Rush,
};
pub use cluster_line::ClusterLine;
use keys::Keys;
use link::{Call, Link};
use watch::{Seen, Watch};

/// How often an admission whose answer did not come is asked for again.
const ADMIT_TRIES_MAX: u32 = 3;
/// How often a dry shard looks for units elsewhere when others were faster to take what it found.
const STEALS_MAX: u32 = 32;
/// Buyers admitted here whom the sold-out cache must not lie to. Beyond this it is not asked.
const ADMITTED_HERE_MAX: usize = 1_000_000;
/// Attempts in one call of `admit.lua`, which passes twice as many values to one command; Lua can pass
/// about eight thousand.
const ADMIT_ATTEMPTS_MAX: usize = 2_000;
/// How often an adjustment is looked at anew when a shard has another part of it than was known.
const ADJUST_TRIES_MAX: u32 = 4;
/// What is known here of an item that is not at the gate is kept so long: a Redis that was emptied has
/// it again in a moment.
const GONE_KEPT: Duration = Duration::from_secs(600);
/// How often the consumers of the streams are looked through.
const TIDY_EVERY: Duration = Duration::from_secs(600);
/// What a check writes is forgotten after this.
const PROBE_KEPT_MS: u64 = 60_000;
/// The code of the errors by which the scripts say: not while the item is being loaded.
const FROZEN: &str = "FROZEN";
/// Rows per page of a scan.
const SCAN_ROWS: usize = 1_000;

#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// One address, or several of one cluster.
    pub urls: Vec<String>,
    /// Before every key.
    pub prefix: String,
    pub partitions: usize,
    /// Every command is answered within this, or its outcome is unknown.
    pub answer_ms_max: u64,
    /// Claims that may wait for the ledger in one partition.
    pub log_claims_max: u64,
    /// The name of this process among the workers.
    pub consumer: String,
    /// An entry taken by a worker that has been silent this long is taken over.
    pub takeover_ms: u64,
    /// An admission is answered when so many replicas have it.
    pub wait_replicas: u32,
    pub wait_ms_max: u64,
}

/// Hashes of user ids. Two users with one hash are taken for each other where that does no harm.
type Hashes = HashSet<u64, BuildHasherDefault<AsItIs>>;

/// The hasher of what is a hash already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only `u64`s are hashed with it; anything else is hashed badly but not wrongly.
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[derive(Clone)]
pub struct RedisGate(Arc<Inner>);

struct Inner {
    options: RedisOptions,
    keys: Keys,
    link: Link,
    /// How many shards each item at the gate has. The number never changes for an item.
    directory: RwLock<HashMap<ItemId, u32>>,
    /// When the directory was last read from the beginning. Whoever reads or changes it holds this, so
    /// that what was read earlier never replaces what was read, or written, later.
    directory_read: tokio::sync::Mutex<Option<Instant>>,
    /// Items that are not in the directory any more, and since when.
    gone: Mutex<HashMap<ItemId, Instant>>,
    lefts: RwLock<HashMap<ItemId, i64>>,
    /// As last heard of each partition.
    backlogs: Vec<AtomicU64>,
    /// What the streams held when somebody last wanted to know, by partition.
    stream_reads: Vec<tokio::sync::Mutex<on_log::StreamRead>>,
    tidied: Mutex<Option<Instant>>,
    rush: Rush,
    watch: Watch,
    admitted_here: RwLock<HashMap<ItemId, Hashes>>,
    /// Of user ids, for this process only.
    hasher: RandomState,
    /// Orders what this process hears, so that an older "sold out" never outlives newer units.
    ticks: AtomicU64,
    log: log::Streams,
    mover: moves::Mover,
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
        let answer_within = Duration::from_millis(options.answer_ms_max);
        let link = Link::open(&options.urls, answer_within).await?;
        let gate = RedisGate(Arc::new(Inner {
            keys: Keys::new(&options.prefix),
            log: log::Streams::new(),
            mover: moves::Mover::new()?,
            link,
            backlogs: (0..options.partitions).map(|_| AtomicU64::new(0)).collect(),
            stream_reads: (0..options.partitions).map(|_| Default::default()).collect(),
            options,
            directory: RwLock::default(),
            directory_read: tokio::sync::Mutex::default(),
            gone: Mutex::default(),
            lefts: RwLock::default(),
            tidied: Mutex::default(),
            rush: Rush::default(),
            watch: Watch::default(),
            admitted_here: RwLock::default(),
            hasher: RandomState::new(),
            ticks: AtomicU64::new(1),
        }));
        gate.0.read_directory_now().await?;
        Ok(gate)
    }
}

/// The same for every instance and version: it decides where a buyer's mark is.
fn shard_of(user: &UserId, shards: u32) -> u32 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut hash = user.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    // The last characters of a text have not reached all bits of FNV, and buyers are often numbered:
    // without more mixing (MurmurHash3's), a hundred in a row would all meet in one shard.
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 33;
    (hash % u64::from(shards.max(1))) as u32
}

impl Inner {
    fn shards(&self, item: ItemId) -> Option<u32> {
        self.directory.read().get(&item).copied()
    }

    fn partition(&self, item: ItemId, shard: u32) -> usize {
        (item.0.unsigned_abs() as usize + shard as usize) % self.options.partitions
    }

    /// The partitions of an item, one per shard.
    fn partitions_of(&self, item: ItemId) -> Vec<usize> {
        let shards = self.shards(item).unwrap_or(0);
        (0..shards).map(|shard| self.partition(item, shard)).collect()
    }

    fn home(&self, item: ItemId, user: &UserId) -> Option<usize> {
        let shards = self.shards(item)?;
        Some(self.partition(item, shard_of(user, shards)))
    }

    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::AcqRel)
    }

    /// To be called by whoever holds `directory_read`.
    async fn read_directory(&self) -> Result<()> {
        let command = redis::cmd("HGETALL").arg(self.keys.items()).to_owned();
        let items: HashMap<String, u32> = self.link.ask(&command).await?;
        let read = items.iter().filter_map(|(item, shards)| Some((item.parse().ok()?, *shards)));
        let read: HashMap<ItemId, u32> = read.collect();
        self.note_gone(&read);
        *self.directory.write() = read;
        Ok(())
    }

    /// What is known of items that have been away for long is forgotten; the process that took them
    /// away may have been another one.
    fn note_gone(&self, read: &HashMap<ItemId, u32>) {
        let mut gone = self.gone.lock();
        gone.retain(|item, _| !read.contains_key(item));
        for item in self.directory.read().keys().filter(|item| !read.contains_key(item)) {
            gone.entry(*item).or_insert_with(Instant::now);
        }
        let over: HashSet<ItemId> = gone
            .iter()
            .filter(|(_, since)| since.elapsed() > GONE_KEPT)
            .map(|(item, _)| *item)
            .collect();
        if !over.is_empty() {
            gone.retain(|item, _| !over.contains(item));
            self.admitted_here.write().retain(|item, _| !over.contains(item));
            self.watch.keep(|item| !over.contains(&item));
        }
    }

    /// An item nobody here knows may have been loaded by somebody else a moment ago. Unanswered is
    /// unknown, not *not here*. Those who ask at the same time share one look, which must have begun
    /// after they asked.
    async fn look_for(&self, item: ItemId) -> Result<()> {
        if self.shards(item).is_some() { Ok(()) } else { self.read_directory_now().await }
    }

    async fn read_directory_now(&self) -> Result<()> {
        let asked = Instant::now();
        let mut read = self.directory_read.lock().await;
        if read.is_none_or(|begun| begun < asked) {
            let begun = Instant::now();
            self.read_directory().await?;
            *read = Some(begun);
        }
        Ok(())
    }

    async fn admit(&self, batch: Vec<NumberedRequest>) -> Vec<Decision> {
        let mut groups: BTreeMap<(usize, ItemId), Vec<usize>> = BTreeMap::new();
        let mut decisions = vec![Decision::Busy(Busy::NotLoaded); batch.len()];
        let mut n = 0;
        // Neighbours mostly want the same item: look it up once per run of them.
        for run in batch.chunk_by(|(_, a), (_, b)| a.item == b.item) {
            let item = run[0].1.item;
            if self.look_for(item).await.is_err() {
                decisions[n..n + run.len()].fill(Decision::Busy(Busy::Unwritable));
            }
            let shards = self.shards(item);
            for (_, request) in run {
                if let Some(shards) = shards {
                    let partition = self.partition(item, shard_of(&request.user, shards));
                    groups.entry((partition, item)).or_default().push(n);
                }
                n += 1;
            }
        }
        let parts = groups.iter().flat_map(|((partition, item), members)| {
            members.chunks(ADMIT_ATTEMPTS_MAX).map(|part| (*partition, *item, part))
        });
        let calls = parts.map(|(partition, item, members)| {
            let requests: Vec<&NumberedRequest> = members.iter().map(|n| &batch[*n]).collect();
            async move { (members, self.admit_group(partition, item, requests).await) }
        });
        for (members, decided) in join_all(calls).await {
            for (n, decision) in members.iter().zip(decided) {
                decisions[*n] = decision;
            }
        }
        let won =
            |decision: &&Decision| matches!(decision, Decision::Admitted { repeated: false, .. });
        self.rush.note(decisions.iter().filter(won).count());
        decisions
    }

    /// Attempts on one item in one partition, with stealing if the shard is dry.
    async fn admit_group(
        &self,
        partition: usize,
        item: ItemId,
        requests: Vec<&NumberedRequest>,
    ) -> Vec<Decision> {
        let tick = self.tick();
        let mut decisions = self.decide(partition, item, &requests).await;
        // Each round either finds units elsewhere or finds that there are none.
        for round in 0..=STEALS_MAX {
            let dry: Vec<usize> = (0..decisions.len())
                .filter(|n| matches!(decisions[*n], Decision::SoldOut { .. }))
                .collect();
            if dry.is_empty() {
                break;
            }
            if round == STEALS_MAX {
                // There were units every time, only not for these: that is not sold out.
                dry.iter().for_each(|n| decisions[*n] = Decision::Busy(Busy::Unwritable));
                break;
            }
            let wanted = || dry.iter().map(|n| i64::from(requests[*n].1.quantity));
            let (all, least) = (wanted().sum(), wanted().min().unwrap_or(1));
            match self.steal(partition, item, all, least).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) => {
                    // Nobody knows whether there are units left elsewhere.
                    dry.iter().for_each(|n| decisions[*n] = Decision::Busy(Busy::Unwritable));
                    break;
                }
            }
            let again: Vec<&NumberedRequest> = dry.iter().map(|n| requests[*n]).collect();
            for (n, decision) in dry.into_iter().zip(self.decide(partition, item, &again).await) {
                decisions[n] = decision;
            }
        }
        self.note(item, tick, &requests, &mut decisions);
        decisions
    }

    /// Give "sold out" its place among the news, and remember who is known here to hold a mark.
    fn note(
        &self,
        item: ItemId,
        tick: u64,
        requests: &[&NumberedRequest],
        decisions: &mut [Decision],
    ) {
        let mut holders = Vec::new();
        for ((_, request), decision) in requests.iter().zip(decisions) {
            match decision {
                Decision::SoldOut { version, .. } => *version = tick,
                Decision::Admitted { .. }
                | Decision::AlreadyBought { .. }
                | Decision::KeyReused { .. } => {
                    holders.push(self.hasher.hash_one(&request.user));
                }
                _ => {}
            }
        }
        self.remember(item, holders);
    }

    fn remember(&self, item: ItemId, holders: Vec<u64>) {
        if holders.is_empty() {
            return;
        }
        let mut here = self.admitted_here.write();
        let users = here.entry(item).or_default();
        if users.len() < ADMITTED_HERE_MAX {
            users.extend(holders);
        }
    }

    async fn decide(
        &self,
        partition: usize,
        item: ItemId,
        requests: &[&NumberedRequest],
    ) -> Vec<Decision> {
        let busy = |why| vec![Decision::Busy(why); requests.len()];
        if self.watch.is_suspect(item) {
            return busy(Busy::Frozen);
        }
        for _ in 0..ADMIT_TRIES_MAX {
            let seen = self.watch.seen(partition, item);
            let call = self.admit_call(partition, item, requests, seen);
            let Ok(reply) = self.link.run::<Vec<Value>>(&call).await else { continue };
            match decision::read(reply, requests) {
                Ok(Some(decided)) => {
                    let answered = (decided.epoch, decided.seq);
                    if !self.watch.note(partition, item, seen, answered, decided.changed) {
                        tracing::error!(%item, partition, "acknowledged writes were lost, the item is frozen");
                        return busy(Busy::Frozen);
                    }
                    return self.durable(partition, decided.decisions).await;
                }
                Ok(None) => return busy(Busy::NotLoaded),
                Err(error) => {
                    tracing::error!(%item, partition, %error, "the gate's answer cannot be read");
                    return busy(Busy::Unwritable);
                }
            }
        }
        busy(Busy::Unwritable)
    }

    /// `seen`: the epoch in which everybody may win, if the item is still in it.
    fn admit_call(
        &self,
        partition: usize,
        item: ItemId,
        requests: &[&NumberedRequest],
        seen: Seen,
    ) -> Call<'static> {
        let keys = &self.keys;
        let names = [
            keys.meta(partition, item),
            keys.stock(partition, item),
            keys.users(partition, item),
            keys.spent(partition, item),
            keys.orders(partition),
            keys.backlog(partition),
        ];
        let mut users: Vec<u64> =
            requests.iter().map(|(_, request)| self.hasher.hash_one(&request.user)).collect();
        users.sort_unstable();
        let all_differ = users.windows(2).all(|two| two[0] != two[1]);
        let epoch = seen.filter(|_| all_differ).map_or(0, |(epoch, _)| epoch);
        let mut winners = Vec::with_capacity(requests.len() * 48);
        for (order_no, ClaimRequest { user, quantity, key, .. }) in requests {
            put_mark(&mut winners, user, &Mark::new(*order_no, *quantity, epoch, *key));
        }
        let quantities = || requests.iter().map(|(_, request)| u64::from(request.quantity));
        let keyed = requests.iter().any(|(_, request)| request.key.is_some());
        Call::new(&scripts::ADMIT, names)
            .arg(item.0)
            .arg(self.options.log_claims_max)
            .arg(requests.len() as u64)
            .arg(epoch)
            .arg(quantities().sum::<u64>())
            .arg(quantities().max().unwrap_or(0))
            .arg(u64::from(keyed))
            .arg(winners)
    }

    /// With `wait_replicas`, a promise that too few replicas have is no promise yet.
    async fn durable(&self, partition: usize, decisions: Vec<Decision>) -> Vec<Decision> {
        // One that is repeated, or that stands in the way of another, may be of a call whose replicas
        // did not answer.
        let promised = |v: &Decision| {
            use Decision::{Admitted, AlreadyBought, KeyReused};
            matches!(v, Admitted { .. } | AlreadyBought { .. } | KeyReused { .. })
        };
        if !decisions.iter().any(promised) || self.is_replicated(partition).await {
            return decisions;
        }
        let unsure = |v| if promised(&v) { Decision::Busy(Busy::Unwritable) } else { v };
        decisions.into_iter().map(unsure).collect()
    }

    /// Do enough replicas have all that this partition has by now?
    async fn is_replicated(&self, partition: usize) -> bool {
        let wanted = self.options.wait_replicas;
        if wanted == 0 {
            return true;
        }
        let backlog = self.keys.backlog(partition);
        let have = self.link.wait(&backlog, wanted, self.options.wait_ms_max).await.unwrap_or(0);
        if have < i64::from(wanted) {
            tracing::warn!(partition, wanted, have, "too few replicas have the claims");
        }
        have >= i64::from(wanted)
    }

    async fn release_group(
        &self,
        partition: usize,
        item: ItemId,
        units: &[&GiveBack],
    ) -> Result<Option<Changed>> {
        let keys = &self.keys;
        let names = [
            keys.meta(partition, item),
            keys.stock(partition, item),
            keys.users(partition, item),
            keys.spent(partition, item),
        ];
        let mut call = Call::new(&scripts::RELEASE, names).arg(self.spent_keys_max(item));
        for unit in units {
            call.push(unit.user.as_str());
            call.push(unit.order_no.as_u64().to_le_bytes());
        }
        let seen = self.watch.seen(partition, item);
        let reply: Vec<i64> = self.link.run(&call).await?;
        let [epoch, seq, units] = reply[..] else { return Ok(None) };
        self.watch.note(partition, item, seen, (epoch as Epoch, seq as u64), units > 0);
        Ok((units > 0).then(|| Changed { item, version: self.tick(), units }))
    }

    /// As with a new claim, a dry shard is no reason to turn a promise down.
    async fn readmit(&self, claim: &Claim) -> Result<Readmitted> {
        let item = claim.item;
        self.look_for(item).await?;
        let Some(partition) = self.home(item, &claim.user) else {
            return Ok(Readmitted::NotLoaded);
        };
        for _ in 0..STEALS_MAX {
            let answer = self.readmit_once(partition, claim).await?;
            if matches!(answer, Readmitted::Admitted | Readmitted::Known) {
                self.remember(item, vec![self.hasher.hash_one(&claim.user)]);
                let sure = self.is_replicated(partition).await;
                return Ok(if sure { answer } else { Readmitted::Frozen });
            }
            if answer != Readmitted::SoldOut {
                return Ok(answer);
            }
            let wanted = i64::from(claim.quantity);
            if self.steal(partition, item, wanted, wanted).await? == 0 {
                return Ok(Readmitted::SoldOut);
            }
        }
        // There were units every time, only others were faster: that is not sold out.
        Ok(Readmitted::Frozen)
    }

    async fn readmit_once(&self, partition: usize, claim: &Claim) -> Result<Readmitted> {
        let (item, keys) = (claim.item, &self.keys);
        let names = [
            keys.meta(partition, item),
            keys.stock(partition, item),
            keys.users(partition, item),
            keys.orders(partition),
            keys.backlog(partition),
        ];
        let call = Call::new(&scripts::READMIT, names)
            .arg(item.0)
            .arg(claim.user.as_str())
            .arg(u64::from(claim.quantity))
            .arg(claim.order_no.as_u64().to_le_bytes())
            .arg(claim.claimed_ms)
            .arg(claim.epoch)
            .arg(claim.key.map_or(0, |key| key.0).to_le_bytes());
        let reply: Vec<Vec<u8>> = self.link.run(&call).await?;
        let letter = reply.first().and_then(|bytes| bytes.first());
        Ok(match letter {
            Some(b'A') => Readmitted::Admitted,
            Some(b'K') => Readmitted::Known,
            Some(b'B') => {
                let mark = reply.get(1).ok_or(Garbled("answer of readmit.lua"))?;
                let order_no = decision::claim_of(item, &claim.user, mark)?.order_no;
                Readmitted::AlreadyBought { order_no }
            }
            Some(b'S') => Readmitted::SoldOut,
            Some(b'N') => Readmitted::NotLoaded,
            _ => Readmitted::Frozen,
        })
    }

    async fn adopt(&self, claims: &[Claim]) -> Result<()> {
        let mut groups: BTreeMap<(usize, ItemId), Vec<&Claim>> = BTreeMap::new();
        for claim in claims {
            self.look_for(claim.item).await?;
            if let Some(partition) = self.home(claim.item, &claim.user) {
                groups.entry((partition, claim.item)).or_default().push(claim);
            }
        }
        let groups = groups.into_iter();
        let calls = groups.map(|((partition, item), claims)| async move {
            self.adopt_group(partition, item, &claims).await
        });
        join_all(calls).await.into_iter().collect()
    }

    /// Nearly always the item is still in the life in which the claims were made, or their buyers are
    /// marked; one question tells the first.
    async fn adopt_group(&self, partition: usize, item: ItemId, claims: &[&Claim]) -> Result<()> {
        let keys = &self.keys;
        let question = redis::cmd("HGET").arg(keys.meta(partition, item)).arg("epoch").to_owned();
        let epoch: Option<Epoch> = self.link.ask(&question).await?;
        let older = claims.iter().filter(|claim| epoch.is_some_and(|epoch| claim.epoch < epoch));
        let older: Vec<&Claim> = older.copied().collect();
        if older.is_empty() {
            return Ok(());
        }
        let names =
            [keys.meta(partition, item), keys.stock(partition, item), keys.users(partition, item)];
        let mut call = Call::new(&scripts::ADOPT, names);
        for claim in older {
            call.push(claim.user.as_str());
            call.push(claim.epoch);
            call.push(load::bare_mark(claim));
        }
        let seen = self.watch.seen(partition, item);
        let reply: Vec<i64> = self.link.run(&call).await?;
        let [epoch, seq, units] = reply[..] else { return Ok(()) };
        self.watch.note(partition, item, seen, (epoch as Epoch, seq as u64), units > 0);
        if units > 0 {
            tracing::warn!(%item, partition, units, "orders that the gate had lost were adopted");
        }
        Ok(())
    }

    /// An error if nobody can tell now.
    async fn mark_of(&self, item: ItemId, user: &UserId) -> Result<Option<Claim>> {
        let Some(partition) = self.home(item, user) else { return Ok(None) };
        let names = [self.keys.meta(partition, item), self.keys.users(partition, item)];
        let call = Call::new(&scripts::MARK_OF, names).arg(user.as_str());
        let reply: Vec<Vec<u8>> = self.link.run(&call).await?;
        Ok(reply.first().map(|mark| decision::claim_of(item, user, mark)).transpose()?)
    }

    /// What each item has of this buyer, or that it cannot tell.
    async fn marks_of(&self, user: &UserId) -> Vec<Result<Option<Claim>>> {
        let items: Vec<ItemId> = self.directory.read().keys().copied().collect();
        join_all(items.into_iter().map(|item| self.mark_of(item, user))).await
    }

    /// A claim by its number. The number does not tell the item, so all are asked.
    async fn find(&self, user: &UserId, order_no: OrderNo) -> Result<Option<Claim>> {
        let mut nowhere = Ok(None);
        for mark in self.marks_of(user).await {
            match mark {
                Ok(Some(claim)) if claim.order_no == order_no => return Ok(Some(claim)),
                Ok(_) => {}
                Err(error) => nowhere = Err(error),
            }
        }
        nowhere
    }

    /// One that is nowhere may be of an item that somebody else has loaded, or taken away, a moment
    /// ago.
    async fn queued(&self, user: &UserId, order_no: OrderNo) -> Result<Option<Claim>> {
        let before = self.directory.read().clone();
        let found = self.find(user, order_no).await;
        if matches!(found, Ok(Some(_))) {
            return found;
        }
        self.read_directory_now().await?;
        if *self.directory.read() == before { found } else { self.find(user, order_no).await }
    }

    /// The part of an adjustment that a shard has. Zero: it was contained in the load.
    async fn adjusted_by(
        &self,
        partition: usize,
        item: ItemId,
        adjust_no: OrderNo,
    ) -> Result<Option<i64>> {
        let mut known = redis::cmd("HGET");
        known.arg(self.keys.adjusts(partition, item)).arg(adjust_no.to_string());
        Ok(self.link.ask(&known).await?)
    }

    /// `had`: the part of it that the shard is known to have.
    async fn adjust_shard(
        &self,
        shard: (usize, Option<i64>),
        item: ItemId,
        adjust_no: OrderNo,
        delta: i64,
        mode: &str,
    ) -> Result<ShardAdjusted> {
        let (keys, (partition, had)) = (&self.keys, shard);
        let names = [
            keys.meta(partition, item),
            keys.stock(partition, item),
            keys.adjusts(partition, item),
        ];
        let call = Call::new(&scripts::ADJUST, names)
            .arg(adjust_no.to_string())
            .arg(delta)
            .arg(mode)
            .arg(had.map_or_else(String::new, |had| had.to_string()));
        let reply: Vec<Value> = self.link.run(&call).await?;
        Ok(match (letter_of(&reply), &reply[..]) {
            (Some(b'D'), [_, _, Value::Int(applied)]) => ShardAdjusted::By(*applied),
            (Some(b'R'), _) => ShardAdjusted::Otherwise,
            (Some(b'S'), _) => ShardAdjusted::Short,
            (Some(b'N'), _) => ShardAdjusted::NotHere,
            _ => return Err(Garbled("answer of adjust.lua").into()),
        })
    }

    /// Raising goes to one shard (stealing spreads it); lowering takes from each what it has. A run
    /// that was interrupted is taken up where it ended: what the shards have of it is not done again.
    async fn adjust(
        &self,
        item: ItemId,
        adjust_no: OrderNo,
        delta: i64,
        committed: bool,
    ) -> Result<AdjustOutcome> {
        let mut changed = false;
        for _ in 0..ADJUST_TRIES_MAX {
            let mut shards = Vec::new();
            for partition in self.partitions_of(item) {
                shards.push((partition, self.adjusted_by(partition, item, adjust_no).await?));
            }
            if shards.is_empty() {
                return Ok(AdjustOutcome::NotLoaded);
            }
            let had = shards.iter().filter_map(|(_, had)| *had).sum::<i64>();
            if had == delta || shards.iter().any(|(_, had)| *had == Some(0)) {
                return Ok(if changed {
                    self.adjusted(item, delta)
                } else {
                    AdjustOutcome::Repeated
                });
            }
            if !committed && !may_be_part(had, delta) {
                return Ok(AdjustOutcome::Other { delta: had });
            }
            match self.adjust_rest(&shards, item, adjust_no, delta - had, committed).await? {
                ShardAdjusted::By(_) => return Ok(self.adjusted(item, delta)),
                ShardAdjusted::NotHere => return Ok(AdjustOutcome::NotLoaded),
                ShardAdjusted::Short => {
                    let left = self.total_left(item).await?;
                    return Ok(AdjustOutcome::Short { left });
                }
                // Perhaps by ourselves, by a call whose answer was lost.
                ShardAdjusted::Otherwise => changed = true,
            }
        }
        let detail = "others keep changing the adjustment; ask again";
        Err(GateError::new(GateFailure::Unreachable, detail))
    }

    fn adjusted(&self, item: ItemId, units: i64) -> AdjustOutcome {
        AdjustOutcome::Done(Changed { item, version: self.tick(), units })
    }

    async fn adjust_rest(
        &self,
        shards: &[(usize, Option<i64>)],
        item: ItemId,
        adjust_no: OrderNo,
        mut rest: i64,
        committed: bool,
    ) -> Result<ShardAdjusted> {
        let Some((last, others)) = shards.split_last() else { return Ok(ShardAdjusted::NotHere) };
        let others = if rest < 0 { others } else { &[] };
        let mut taken = Vec::new();
        for shard in others {
            match self.adjust_shard(*shard, item, adjust_no, rest, "take").await? {
                ShardAdjusted::By(applied) => {
                    rest -= applied;
                    taken.push((*shard, applied));
                }
                other => return Ok(other),
            }
            if rest == 0 {
                return Ok(ShardAdjusted::By(0));
            }
        }
        let mode = if committed { "force" } else { "refuse" };
        let done = self.adjust_shard(*last, item, adjust_no, rest, mode).await?;
        if let ShardAdjusted::Short = done {
            self.undo_taken(&taken, item, adjust_no).await?;
        }
        Ok(done)
    }

    /// Of what the shards have under this number, only that which this run took goes back: what an
    /// earlier one took may be in the ledger by now.
    async fn undo_taken(
        &self,
        taken: &[((usize, Option<i64>), i64)],
        item: ItemId,
        adjust_no: OrderNo,
    ) -> Result<()> {
        for ((partition, had), applied) in taken.iter().filter(|(_, applied)| *applied != 0) {
            let now = (*partition, Some(had.unwrap_or(0) + applied));
            self.adjust_shard(now, item, adjust_no, -applied, "force").await?;
        }
        Ok(())
    }

    async fn forget_adjust(&self, item: ItemId, adjust_no: OrderNo) -> Result<Option<Changed>> {
        let mut units = 0;
        let mut known = false;
        for partition in self.partitions_of(item) {
            let keys = &self.keys;
            let names = [
                keys.meta(partition, item),
                keys.stock(partition, item),
                keys.adjusts(partition, item),
            ];
            let call = Call::new(&scripts::FORGET_ADJUST, names).arg(adjust_no.to_string());
            let reply: Vec<i64> = self.link.run(&call).await?;
            if let [_, back] = reply[..] {
                known = true;
                units += back;
            }
        }
        Ok(known.then(|| Changed { item, version: self.tick(), units }))
    }

    async fn total_left(&self, item: ItemId) -> Result<i64> {
        let looks = self.looks(item).await?;
        Ok(looks.iter().flatten().map(|look| look.left).sum())
    }

    async fn reading(&self, item: ItemId) -> Result<Option<Reading>> {
        let Some(looks) = load::whole(&self.looks(item).await?) else { return Ok(None) };
        let in_moves = self.moving_units(item).await?;
        let mut marks = 0;
        for look in &looks {
            let users = self.keys.users(look.partition, item);
            marks += self.link.ask::<u64>(redis::cmd("HLEN").arg(users)).await?;
        }
        Ok(Some(Reading {
            item,
            epoch: looks[0].epoch,
            shut: looks.iter().find_map(|look| look.shut),
            opens_ms: looks[0].opens_ms,
            closes_ms: looks[0].closes_ms,
            left: looks.iter().map(|look| look.left).sum::<i64>() + in_moves,
            marks,
            marked_units: looks.iter().map(|look| look.units).sum(),
            version: looks.iter().map(|look| decision::version(look.epoch, look.seq)).sum(),
            in_flight: self.in_flight(item).await?,
            adjusts: self.adjusts(item).await?,
        }))
    }

    async fn adjusts(&self, item: ItemId) -> Result<Vec<(OrderNo, i64)>> {
        let mut adjusts: BTreeMap<OrderNo, i64> = BTreeMap::new();
        for partition in self.partitions_of(item) {
            let adjusted = self.keys.adjusts(partition, item);
            let here: HashMap<String, i64> =
                self.link.ask(redis::cmd("HGETALL").arg(adjusted)).await?;
            for (no, delta) in here {
                let no = no.parse().map_err(|_| Garbled("adjustment number"))?;
                *adjusts.entry(no).or_default() += delta;
            }
        }
        Ok(adjusts.into_iter().collect())
    }

    /// Every claim that is marked on an item.
    async fn held(&self, item: ItemId) -> Result<Vec<Claim>> {
        self.held_in(self.partitions_of(item), item).await
    }

    async fn held_in(&self, partitions: Vec<usize>, item: ItemId) -> Result<Vec<Claim>> {
        let mut found = Vec::new();
        for partition in partitions {
            let mut cursor: u64 = 0;
            loop {
                let mut scan = redis::cmd("HSCAN");
                scan.arg(self.keys.users(partition, item)).arg(cursor).arg("COUNT").arg(SCAN_ROWS);
                let (next, rows): (u64, Vec<(String, Vec<u8>)>) = self.link.ask(&scan).await?;
                for (user, mark) in rows {
                    let user = UserId::stored(&user).map_err(|_| Garbled("user id"))?;
                    found.push(decision::claim_of(item, &user, &mark)?);
                }
                if next == 0 {
                    break;
                }
                cursor = next;
            }
        }
        // A scan may show a row twice while the hash grows.
        found.sort_by_key(|claim| claim.order_no);
        found.dedup_by_key(|claim| claim.order_no);
        Ok(found)
    }

    async fn shut(&self, item: ItemId, shut: Option<Shut>) -> Result<bool> {
        let calls = self.partitions_of(item).into_iter().map(|partition| {
            let call = Call::new(&scripts::SHUT, [self.keys.meta(partition, item)])
                .arg(load::shut_code(shut));
            async move { self.link.run::<i64>(&call).await }
        });
        let done = try_join_all(calls).await?;
        Ok(!done.is_empty() && done.iter().all(|here| *here == 1))
    }

    /// Items that are served by another server process than the one they were loaded in.
    async fn check_servers(&self) -> Result<()> {
        let mut done = Ok(());
        let items: Vec<ItemId> = self.directory.read().keys().copied().collect();
        for some in items.chunks(load::LOOKED_AT_ONCE) {
            let shards = some.iter().flat_map(|item| {
                self.partitions_of(*item).into_iter().map(|partition| (partition, *item))
            });
            let checks = shards.map(|(partition, item)| self.check_server(partition, item));
            done = done.and(join_all(checks).await.into_iter().collect());
        }
        done
    }

    async fn check_server(&self, partition: usize, item: ItemId) -> Result<()> {
        let call = Call::new(&scripts::SAME_SERVER, [self.keys.meta(partition, item)]);
        if self.link.run::<i64>(&call).await? == 0 {
            tracing::warn!(%item, partition, "another server has the item now");
            self.watch.suspect(item);
        }
        Ok(())
    }

    /// Of partitions that do not answer the last number stands.
    async fn read_backlog(&self) -> Result<()> {
        let counts = self.backlogs.iter().enumerate().map(|(partition, known)| async move {
            let command = redis::cmd("GET").arg(self.keys.backlog(partition)).to_owned();
            let count: Option<i64> = self.link.ask(&command).await?;
            known.store(count.unwrap_or(0).max(0) as u64, Ordering::Release);
            Ok(())
        });
        join_all(counts).await.into_iter().collect()
    }

    fn backlog(&self) -> u64 {
        self.backlogs.iter().map(|known| known.load(Ordering::Acquire)).sum()
    }

    /// One that fails keeps the others from nothing: each part of the gate may be at another server.
    async fn upkeep(&self) -> Result<()> {
        self.forget_stream_reads();
        let steps = [
            self.read_backlog().await,
            self.check_servers().await,
            self.finish_moves().await,
            self.ack_again().await,
            self.tidy_groups().await,
        ];
        steps.into_iter().collect()
    }

    /// A PING would be answered by a server that cannot write, by a replica, and by any one of many;
    /// so something is written in every partition.
    async fn check(&self) -> Writable {
        let partitions = self.options.partitions;
        let probes = (0..partitions).map(|partition| async move {
            let mut set = redis::cmd("SET");
            set.arg(self.keys.probe(partition)).arg(1).arg("PX").arg(PROBE_KEPT_MS);
            self.link.ask::<()>(&set).await
        });
        let failed = join_all(probes).await.into_iter().filter_map(std::result::Result::err);
        let causes: Vec<String> = failed.map(|error| error.to_string()).collect();
        Writable { partitions, silent: causes.len(), cause: causes.into_iter().next() }
    }

    /// Of partitions that do not answer nothing is known.
    async fn oldest_waits_ms(&self) -> Result<Option<u64>> {
        let ages = (0..self.options.partitions).map(|partition| async move {
            let call = Call::new(&scripts::OLDEST, [self.keys.orders(partition)]);
            self.link.run::<Option<u64>>(&call).await
        });
        let ages = join_all(ages).await;
        let known = ages.iter().filter_map(|age| age.as_ref().ok()).flatten().max().copied();
        match ages.into_iter().find_map(std::result::Result::err) {
            Some(error) if known.is_none() => Err(error.into()),
            _ => Ok(known),
        }
    }

    async fn tidy_groups(&self) -> Result<()> {
        let due = self.tidied.lock().is_none_or(|tidied| tidied.elapsed() > TIDY_EVERY);
        if due {
            *self.tidied.lock() = Some(Instant::now());
            let all = (0..self.options.partitions).map(|partition| self.tidy_group(partition));
            return join_all(all).await.into_iter().collect();
        }
        Ok(())
    }
}

/// What one shard did about an adjustment.
enum ShardAdjusted {
    By(i64),
    /// It has another part of it than was known.
    Otherwise,
    Short,
    NotHere,
}

/// Could the shards have so many units of a change by `delta` because a run of it was interrupted? A
/// smaller change under the same number looks the same; which of the two counts, the ledger decides.
fn may_be_part(had: i64, delta: i64) -> bool {
    had == 0 || (had.signum() == delta.signum() && had.abs() < delta.abs())
}

fn letter_of(reply: &[Value]) -> Option<&u8> {
    match reply.first() {
        Some(Value::BulkString(bytes)) => bytes.first(),
        _ => None,
    }
}

#[async_trait]
impl ClaimLog for RedisGate {
    async fn take(&self, claims_max: usize) -> std::result::Result<Vec<LogEntry>, LogError> {
        log::take(&self.0, claims_max).await
    }

    async fn ack(&self, entries: &[EntryId]) -> std::result::Result<(), LogError> {
        self.0.ack(entries).await;
        Ok(())
    }

    async fn give_back(&self, entries: Vec<LogEntry>) {
        self.0.log.give_back(entries);
    }

    fn backlog(&self) -> u64 {
        self.0.backlog()
    }

    fn is_rushing(&self) -> bool {
        self.0.rush.is_on()
    }
}

#[async_trait]
impl Gate for RedisGate {
    fn partitions(&self) -> usize {
        self.0.options.partitions
    }

    fn partition_of(&self, item: ItemId, user: &UserId) -> usize {
        self.0.home(item, user).unwrap_or_else(|| self.0.partition(item, 0))
    }

    async fn admit(&self, batch: Vec<NumberedRequest>) -> Vec<Decision> {
        self.0.admit(batch).await
    }

    async fn readmit(&self, claim: &Claim) -> Result<Readmitted> {
        self.0.readmit(claim).await
    }

    /// An item that is being loaded, or a server that does not answer, holds up no others: what could
    /// not be given back is asked for again, and for the rest twice is once.
    async fn release(&self, units: &[GiveBack]) -> Result<Vec<Changed>> {
        let mut groups: BTreeMap<(usize, ItemId), Vec<&GiveBack>> = BTreeMap::new();
        let mut done = Ok(());
        for unit in units {
            let found = self.0.look_for(unit.item).await;
            if let (Ok(()), Some(partition)) = (&found, self.0.home(unit.item, &unit.user)) {
                groups.entry((partition, unit.item)).or_default().push(unit);
            }
            done = done.and(found);
        }
        let mut changed = Vec::new();
        for ((partition, item), units) in groups {
            match self.0.release_group(partition, item, &units).await {
                Ok(change) => changed.extend(change),
                Err(error) => done = done.and(Err(error)),
            }
        }
        done.map(|()| changed)
    }

    async fn adjust(
        &self,
        item: ItemId,
        adjust_no: OrderNo,
        delta: i64,
        committed: bool,
    ) -> Result<AdjustOutcome> {
        self.0.look_for(item).await?;
        self.0.adjust(item, adjust_no, delta, committed).await
    }

    async fn forget_adjust(&self, item: ItemId, adjust_no: OrderNo) -> Result<Option<Changed>> {
        self.0.look_for(item).await?;
        self.0.forget_adjust(item, adjust_no).await
    }

    async fn adjusts(&self, item: ItemId) -> Result<Vec<(OrderNo, i64)>> {
        self.0.look_for(item).await?;
        self.0.adjusts(item).await
    }

    async fn adopt(&self, claims: &[Claim]) -> Result<()> {
        self.0.adopt(claims).await
    }

    async fn begin_load(&self, item: ItemId, epoch: Epoch, shards: u32) -> Result<bool> {
        self.0.begin_load(item, epoch, shards).await
    }

    async fn abandon_load(&self, item: ItemId, epoch: Epoch) {
        self.0.abandon_load(item, epoch).await;
    }

    async fn load(&self, loading: Loading) -> Result<bool> {
        self.0.load(loading).await
    }

    async fn shut(&self, item: ItemId, shut: Option<Shut>) -> Result<bool> {
        self.0.look_for(item).await?;
        self.0.shut(item, shut).await
    }

    async fn unload(&self, item: ItemId) -> Result<()> {
        self.0.unload(item).await
    }

    async fn loaded(&self) -> Result<Vec<Loaded>> {
        self.0.loaded().await
    }

    async fn reading(&self, item: ItemId) -> Result<Option<Reading>> {
        self.0.look_for(item).await?;
        self.0.reading(item).await
    }

    async fn in_flight(&self, item: ItemId) -> Result<Vec<Claim>> {
        self.0.in_flight(item).await
    }

    async fn marks(&self, item: ItemId) -> Result<Vec<(UserId, OrderNo)>> {
        let held = self.0.held(item).await?;
        Ok(held.into_iter().map(|claim| (claim.user, claim.order_no)).collect())
    }

    async fn queued(&self, user: &UserId, order_no: OrderNo) -> Result<Option<Claim>> {
        self.0.queued(user, order_no).await
    }

    async fn is_on_log(&self, claim: &Claim) -> Result<bool> {
        self.0.is_on_log(claim).await
    }

    async fn queued_of(&self, user: &UserId) -> Result<Vec<Claim>> {
        let mut claims = Vec::new();
        for mark in self.0.marks_of(user).await {
            match mark {
                Ok(claim) => claims.extend(claim),
                // One item that is being loaded does not hide the others.
                Err(error) if error.reason == GateFailure::BeingLoaded => {}
                Err(error) => return Err(error),
            }
        }
        claims.sort_by_key(|claim| std::cmp::Reverse(claim.order_no));
        Ok(claims)
    }

    async fn on_log(&self, order_no: OrderNo) -> Result<Option<Claim>> {
        self.0.on_log(order_no).await
    }

    fn left(&self, item: ItemId) -> Option<i64> {
        self.0.lefts.read().get(&item).map(|left| (*left).max(0))
    }

    fn may_hold_mark(&self, item: ItemId, user: &UserId, with_key: bool) -> bool {
        let here = self.0.admitted_here.read();
        let of_item = here.get(&item);
        let known = |users: &Hashes| {
            users.len() >= ADMITTED_HERE_MAX || users.contains(&self.0.hasher.hash_one(user))
        };
        with_key || of_item.is_some_and(known)
    }

    async fn measure_backlog(&self) -> Result<u64> {
        self.0.read_backlog().await?;
        Ok(self.backlog())
    }

    fn blocks(&self) -> bool {
        false
    }

    fn suspects(&self) -> Vec<ItemId> {
        self.0.watch.suspects()
    }

    fn forget_suspect(&self, item: ItemId) {
        self.0.watch.clear(item);
    }

    async fn upkeep(&self) -> Result<()> {
        self.0.upkeep().await
    }

    async fn oldest_waits_ms(&self) -> Result<Option<u64>> {
        self.0.oldest_waits_ms().await
    }

    async fn check(&self) -> Writable {
        self.0.check().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_buyers_are_spread_evenly() {
        for shards in [2, 3, 4, 7, 16] {
            for hundreds in [0, 7, 1_234] {
                let mut counts = vec![0; shards as usize];
                for n in 0..100 * shards {
                    let user = UserId::new(&format!("u{}", hundreds * 100 + n)).unwrap();
                    counts[shard_of(&user, shards) as usize] += 1;
                }
                assert!(counts.iter().all(|count| (60..150).contains(count)), "{counts:?}");
            }
        }
    }
}

//! Stories of nodes, on a ledger that can be made to say nothing and on a real Redis as the witness.

use std::sync::OnceLock;

use faults::services::{Reply, shared_redis, unique_name};
use ledger::{LedgerError, SqlLedger, sqlite};
use parking_lot::Mutex;
use redis_link::{RedisAddress, RedisServers};
use sale::{Clock, ManualClock};
use tokio::sync::broadcast;

use super::*;
use crate::coordination::{
    Hint, LocalCoordination, RedisCoordination, RedisCoordinationOptions, Spending,
};

const NOON_MS: Millis = 1_800_000_000_000;
const HOUR_MS: Millis = 3_600_000;

/// A ledger that several processes share, and that can be away.
struct SharedLedger {
    books: SqlLedger,
    away: AtomicBool,
    /// It answers, and gives no new node.
    gives_none: AtomicBool,
    home: tempfile::TempDir,
}

impl SharedLedger {
    fn open(clock: &Arc<ManualClock>) -> Arc<SharedLedger> {
        let home = tempfile::tempdir().unwrap();
        let books = sqlite::open(&home.path().join("ledger.db"), clock.clone()).unwrap();
        Arc::new(SharedLedger { books, away: false.into(), gives_none: false.into(), home })
    }

    fn answers(&self) -> ledger::Result<()> {
        let away = self.away.load(Ordering::Relaxed);
        if away { Err(LedgerError::Unavailable("it is away".into())) } else { Ok(()) }
    }

    fn file(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.home.path().join("ledger.db")).unwrap()
    }

    /// How many nodes somebody holds.
    fn held(&self, now_ms: Millis) -> i64 {
        let sql = "SELECT COUNT(*) FROM tb_node WHERE until_at > ?";
        self.file().query_row(sql, [now_ms], |row| row.get(0)).unwrap()
    }

    /// Until when the node is given, and how far its numbers may have come.
    fn until_and_reach(&self, node: u16) -> (Millis, Millis) {
        let sql = "SELECT until_at, reach FROM tb_node WHERE node = ?";
        self.file().query_row(sql, [node], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    }

    /// As after a restore of a backup from before anybody had a node.
    fn forget_all(&self) {
        self.file().execute("DELETE FROM tb_node", []).unwrap();
    }

    /// The same, and all other nodes are held.
    fn forget_only(&self, node: u16) {
        self.forget_all();
        let others = (0..NODES_MAX).filter(|other| *other != node);
        let rows: Vec<String> =
            others.map(|other| format!("({other}, 'many', 0, 99999999999999, 0)")).collect();
        let columns = "node, holder, taken_at, until_at, reach";
        let sql = format!("INSERT INTO tb_node ({columns}) VALUES {}", rows.join(", "));
        self.file().execute(&sql, []).unwrap();
    }
}

#[async_trait::async_trait]
impl Nodes for SharedLedger {
    async fn take_node(
        &self,
        holder: &str,
        first: u16,
        numbers_ms: Millis,
    ) -> ledger::Result<Option<NodeLease>> {
        self.answers()?;
        if self.gives_none.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.books.take_node(holder, first, numbers_ms).await
    }

    async fn renew_node(
        &self,
        node: u16,
        holder: &str,
        numbers_ms: Millis,
    ) -> ledger::Result<Option<NodeLease>> {
        self.answers()?;
        self.books.renew_node(node, holder, numbers_ms).await
    }

    async fn give_back_node(
        &self,
        node: u16,
        holder: &str,
        numbers_ms: Millis,
        after_ms: Millis,
    ) -> ledger::Result<()> {
        self.answers()?;
        self.books.give_back_node(node, holder, numbers_ms, after_ms).await
    }
}

/// A witness that says what the story wants, and sees whether the node is used while it is asked.
#[derive(Default)]
struct Teller {
    /// To whom it leaves a node; to everybody, if nobody is named.
    leaves_to: Mutex<Option<&'static str>>,
    watched: OnceLock<Arc<Node>>,
    was_ours: AtomicBool,
}

#[async_trait::async_trait]
impl Coordination for Teller {
    async fn hold(&self, _: &'static str) -> Result<bool, String> {
        Ok(true)
    }

    async fn tell(&self, _: &Hint) {}

    fn hints(&self) -> broadcast::Receiver<Hint> {
        broadcast::Sender::new(1).subscribe()
    }

    async fn spend(&self, _: u64, _: Millis, _: Millis) -> Result<Spending, String> {
        Ok(Spending::Done)
    }

    async fn witness_node(&self, _: u16, holder: &str) -> Result<bool, String> {
        let is_ours = self.watched.get().is_some_and(|node| node.is_ours());
        self.was_ours.store(is_ours, Ordering::Relaxed);
        Ok(self.leaves_to.lock().is_none_or(|other| other == holder))
    }
}

/// The world of a story: one ledger, one clock.
struct World {
    ledger: Arc<SharedLedger>,
    clock: Arc<ManualClock>,
    witness: Arc<dyn Coordination>,
    /// Of its keys in Redis.
    prefix: String,
}

impl World {
    fn new() -> World {
        let clock = ManualClock::at(NOON_MS);
        let ledger = SharedLedger::open(&clock);
        let witness = Arc::new(LocalCoordination::default());
        World { ledger, clock, witness, prefix: unique_name("node") }
    }

    async fn with_redis() -> World {
        let alone = World::new();
        let options = RedisCoordinationOptions {
            servers: RedisServers::new(&RedisAddress::new(shared_redis().url())).unwrap(),
            prefix: alone.prefix.clone(),
            answer_ms_max: 1_000,
            instance: "all".into(),
        };
        let witness = RedisCoordination::open(options).await.unwrap();
        World { witness, ..alone }
    }

    /// The lease in Redis that tells of this node.
    fn lease_of(&self, node: u16) -> String {
        format!("{}:{{node:{node}}}:lease", self.prefix)
    }

    /// A process on this data directory.
    async fn start(&self, name: &str, data: &tempfile::TempDir) -> Result<Process, NodeError> {
        self.start_at(name, data, "here", &self.clock).await
    }

    /// On another machine, or by another clock than the ledger's.
    async fn start_at(
        &self,
        name: &str,
        data: &tempfile::TempDir,
        host: &str,
        clock: &Arc<ManualClock>,
    ) -> Result<Process, NodeError> {
        let numbers = Arc::new(OrderNumbers::new(0, clock.clone()));
        let options =
            NodeOptions { data: data.path().to_owned(), instance: name.into(), host: host.into() };
        let (ledger, witness) = (self.ledger.clone(), self.witness.clone());
        let keeper =
            NodeKeeper::open(options, ledger, witness, numbers.clone(), clock.clone()).await?;
        Ok(Process { keeper, numbers })
    }
}

struct Process {
    keeper: Arc<NodeKeeper>,
    numbers: Arc<OrderNumbers>,
}

impl Process {
    fn node(&self) -> u16 {
        self.keeper.node.number()
    }

    fn is_ours(&self) -> bool {
        self.keeper.node.is_ours()
    }

    fn make_number(&self) -> OrderNo {
        assert!(self.is_ours());
        self.numbers.set_node(self.node());
        self.numbers.next()
    }

    /// Lives for so long, and renews its node.
    async fn live(&self, world: &World, ms: Millis) {
        world.clock.advance(ms);
        assert!(self.keeper.renew().await);
    }
}

#[tokio::test]
async fn numbers_are_made_through_hours_without_the_ledger_and_not_for_ever() {
    let world = World::new();
    let data = tempfile::tempdir().unwrap();
    let ann = world.start("ann", &data).await.unwrap();
    ann.live(&world, 24 * HOUR_MS).await;
    world.ledger.away.store(true, Ordering::Relaxed);
    world.clock.advance(11 * HOUR_MS);
    assert!(!ann.keeper.renew().await);
    ann.make_number();
    world.clock.advance(HOUR_MS);
    assert!(!ann.is_ours(), "the ledger may give it to somebody else in half a day");
    world.ledger.away.store(false, Ordering::Relaxed);
    let node = ann.node();
    assert!(ann.keeper.renew().await && ann.is_ours());
    assert_eq!(ann.node(), node, "nobody else wanted it");
}

#[tokio::test]
async fn a_process_started_again_takes_another_node_and_gives_back_what_was_left() {
    let world = World::new();
    let data = tempfile::tempdir().unwrap();
    let ann = world.start("ann", &data).await.unwrap();
    let (node, last) = (ann.node(), ann.make_number());
    drop(ann);
    // Her disk was full for hours.
    world.clock.advance(5 * HOUR_MS);
    let again = world.start("ann again", &data).await.unwrap();
    assert!(again.node() != node && again.make_number() > last);
    let now_ms = world.clock.now_ms();
    let (until_ms, reach_ms) = world.ledger.until_and_reach(node);
    assert_eq!((until_ms, reach_ms), (now_ms + GIVE_BACK_AFTER_MS, now_ms + AHEAD_MS));
    let left = KeptNode::read(data.path()).unwrap();
    assert_eq!((left.node, left.used_to_ms), (again.node(), now_ms + AHEAD_MS));
    drop(again);
    // Without the ledger nobody starts, and what is in the directory stays there.
    world.ledger.away.store(true, Ordering::Relaxed);
    assert!(matches!(world.start("bob", &data).await, Err(NodeError::Ledger(_))));
    assert_eq!(KeptNode::read(data.path()), Some(left));
}

#[tokio::test]
async fn whoever_starts_on_a_copy_of_a_data_directory_leaves_the_node_to_its_holder() {
    let world = World::new();
    let (data, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ann = world.start("ann", &data).await.unwrap();
    let given = world.ledger.until_and_reach(ann.node());
    std::fs::copy(data.path().join(kept::FILE), copy.path().join(kept::FILE)).unwrap();
    let bob = world.start_at("bob", &copy, "elsewhere", &world.clock).await.unwrap();
    assert_ne!(bob.node(), ann.node());
    assert_eq!(world.ledger.until_and_reach(ann.node()), given);
}

#[tokio::test]
async fn numbers_begin_with_the_time_by_which_the_node_was_given_though_the_clock_is_set_back() {
    let world = World::new();
    let data = tempfile::tempdir().unwrap();
    let ann = world.start("ann", &data).await.unwrap();
    world.clock.set(NOON_MS - 10_000);
    assert!(ann.make_number().made_ms() >= NOON_MS, "before that another one may have made them");
    ann.live(&world, HOUR_MS).await;
    let renewed_ms = world.clock.now_ms();
    world.clock.set(renewed_ms - 10_000);
    assert!(ann.make_number().made_ms() >= renewed_ms);
}

#[tokio::test]
async fn a_process_that_slept_does_not_take_back_a_node_with_which_others_made_later_numbers() {
    let world = World::new();
    let (data, anns_clock) = (tempfile::tempdir().unwrap(), ManualClock::at(NOON_MS));
    let ann = world.start_at("ann", &data, "here", &anns_clock).await.unwrap();
    let node = ann.node();
    world.clock.advance(2 * HOUR_MS);
    let now_ms = world.clock.now_ms();
    assert_eq!(world.ledger.take_node("bob", node, now_ms).await.unwrap().unwrap().node, node);
    let bobs = OrderNumbers::new(node, world.clock.clone()).next();
    world.ledger.give_back_node(node, "bob", bobs.made_ms(), 0).await.unwrap();
    // She wakes, and her clock is a minute behind his.
    anns_clock.set(now_ms - 60_000);
    assert!(!ann.is_ours());
    assert!(ann.keeper.renew().await && ann.is_ours());
    assert_ne!(ann.node(), node);
}

#[tokio::test]
async fn a_node_that_was_lost_is_not_used_again_before_the_witness_was_asked() {
    let (teller, alone) = (Arc::new(Teller::default()), World::new());
    let world = World { witness: teller.clone(), ..alone };
    let data = tempfile::tempdir().unwrap();
    let ann = world.start("ann", &data).await.unwrap();
    teller.watched.set(ann.keeper.node()).unwrap_or_else(|_| panic!("she is the first"));
    let was_ours = || teller.was_ours.load(Ordering::Relaxed);
    // Somebody else has it, and there is no other one for her.
    *teller.leaves_to.lock() = Some("old");
    world.ledger.gives_none.store(true, Ordering::Relaxed);
    assert!(!ann.keeper.renew().await && !ann.is_ours());
    teller.was_ours.store(false, Ordering::Relaxed);
    assert!(!ann.keeper.renew().await && !ann.is_ours());
    assert!(!was_ours(), "the ledger would have given it back to her");
    *teller.leaves_to.lock() = None;
    world.ledger.gives_none.store(false, Ordering::Relaxed);
    // Only now is a node asked for, any node.
    assert!(ann.keeper.renew().await && ann.is_ours() && !was_ours());
    // Her time is over, and somebody else has it in Redis.
    world.clock.advance(HOUR_MS);
    assert!(!ann.is_ours());
    *teller.leaves_to.lock() = Some("old");
    assert!(!ann.keeper.renew().await && !ann.is_ours() && !was_ours());
}

#[tokio::test]
async fn processes_that_stop_give_their_node_back_and_those_that_crash_all_day_hold_a_few() {
    let world = World::new();
    let held = || world.ledger.held(world.clock.now_ms());
    let data = tempfile::tempdir().unwrap();
    let ann = world.start("ann", &data).await.unwrap();
    assert_eq!(held(), 1);
    ann.keeper.give_back().await;
    assert!(!ann.is_ours() && KeptNode::read(data.path()).is_none());
    assert_eq!(held(), 0);
    // With a directory that lives on, and without.
    for n in 0..100 {
        let crashing = world.start(&format!("ann {n}"), &data).await.unwrap();
        crashing.live(&world, 60_000).await;
    }
    assert!(held() <= 3, "{}", held());
    for n in 0..100 {
        let fresh = tempfile::tempdir().unwrap();
        let crashing = world.start(&format!("bob {n}"), &fresh).await.unwrap();
        crashing.live(&world, 5 * 60_000).await;
    }
    assert!(held() <= 14, "{}", held());
}

#[tokio::test]
async fn a_ledger_restored_from_a_backup_gives_nobodys_node_to_a_second_process() {
    let world = World::with_redis().await;
    let directories: Vec<_> = (0..20).map(|_| tempfile::tempdir().unwrap()).collect();
    let mut before = Vec::new();
    for (n, data) in directories[..10].iter().enumerate() {
        before.push(world.start(&format!("before {n}"), data).await.unwrap());
    }
    world.ledger.forget_all();
    let mut processes = before;
    for (n, data) in directories[10..].iter().enumerate() {
        processes.push(world.start(&format!("after {n}"), data).await.unwrap());
    }
    let mut nodes: Vec<u16> = processes.iter().map(Process::node).collect();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), processes.len());
    for process in &processes {
        let node = process.node();
        assert!(process.keeper.renew().await && process.is_ours());
        assert_eq!(process.node(), node, "nobody had to change");
    }
}

#[tokio::test]
async fn whoever_is_given_the_node_of_a_living_process_leaves_it_as_it_was() {
    let world = World::with_redis().await;
    let (data, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ann = world.start("ann", &data).await.unwrap();
    let node = ann.node();
    world.ledger.forget_only(node);
    assert!(matches!(world.start("bob", &elsewhere).await, Err(NodeError::AllHeld)));
    assert!(ann.keeper.renew().await && ann.is_ours());
    assert_eq!(ann.node(), node);
}

#[tokio::test]
async fn a_node_that_a_living_process_of_an_older_release_holds_is_left_to_it() {
    let world = World::with_redis().await;
    // Old processes hold leases in Redis and know nothing of the nodes of the ledger.
    for node in (0..NODES_MAX).step_by(2) {
        assert_eq!(world.witness.witness_node(node, "old").await, Ok(true));
    }
    let data = tempfile::tempdir().unwrap();
    let ann = world.start("ann", &data).await.unwrap();
    let node = ann.node();
    assert_eq!(node % 2, 1);
    // Redis forgets, and another old one is faster than she.
    shared_redis().call(&["DEL", &world.lease_of(node)]).unwrap();
    assert_eq!(world.witness.witness_node(node, "another old").await, Ok(true));
    assert!(ann.keeper.renew().await && ann.is_ours());
    assert!(ann.node() != node && ann.node() % 2 == 1);
}

#[tokio::test]
async fn the_witness_knows_of_those_who_go_on_without_the_ledger() {
    let world = World::with_redis().await;
    let data = tempfile::tempdir().unwrap();
    let ann = world.start("ann", &data).await.unwrap();
    let lease = world.lease_of(ann.node());
    world.ledger.away.store(true, Ordering::Relaxed);
    for _ in 0..8 {
        // As if ten seconds had passed; a lease lasts for a minute.
        let Reply::Number(ttl_ms) = shared_redis().call(&["PTTL", &lease]).unwrap() else {
            panic!()
        };
        shared_redis().call(&["PEXPIRE", &lease, &(ttl_ms - 10_000).to_string()]).unwrap();
        assert!(!ann.keeper.renew().await && ann.is_ours());
    }
    // So her node is left to her by those whom a restored ledger gives it, and by old processes.
    assert_eq!(world.witness.witness_node(ann.node(), "bob").await, Ok(false));
    // Redis forgets, and an old one is faster than she: then two have it, and she stops at once.
    shared_redis().call(&["DEL", &lease]).unwrap();
    assert_eq!(world.witness.witness_node(ann.node(), "old").await, Ok(true));
    assert!(!ann.keeper.renew().await && !ann.is_ours());
    let lost = ann.node();
    world.ledger.away.store(false, Ordering::Relaxed);
    assert!(ann.keeper.renew().await && ann.is_ours());
    assert_ne!(ann.node(), lost);
}

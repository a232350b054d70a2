//! Stories of nodes, on a ledger that can be made to say nothing and on a real Redis as the witness.

use faults::services::{shared_redis, unique_name};
use ledger::{LedgerError, SqlLedger, sqlite};
use redis_link::{RedisAddress, RedisServers};
use sale::{Clock, ManualClock};

use super::*;
use crate::coordination::{LocalCoordination, RedisCoordination, RedisCoordinationOptions};

const NOON_MS: Millis = 1_800_000_000_000;
const HOUR_MS: Millis = 3_600_000;

/// A ledger that several processes share, and that can be away.
struct SharedLedger {
    books: SqlLedger,
    away: AtomicBool,
    home: tempfile::TempDir,
}

impl SharedLedger {
    fn open(clock: &Arc<ManualClock>) -> Arc<SharedLedger> {
        let home = tempfile::tempdir().unwrap();
        let books = sqlite::open(&home.path().join("ledger.db"), clock.clone()).unwrap();
        Arc::new(SharedLedger { books, away: AtomicBool::new(false), home })
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

    /// As after a restore of a backup from before anybody had a node.
    fn forget_all(&self) {
        self.file().execute("DELETE FROM tb_node", []).unwrap();
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

    /// A process on this data directory.
    async fn start(&self, name: &str, data: &tempfile::TempDir) -> Result<Process, NodeError> {
        let numbers = Arc::new(OrderNumbers::new(0, self.clock.clone()));
        let options = NodeOptions {
            data: data.path().to_owned(),
            instance: name.into(),
            host: "here".into(),
        };
        let (ledger, witness) = (self.ledger.clone(), self.witness.clone());
        let keeper =
            NodeKeeper::open(options, ledger, witness, numbers.clone(), self.clock.clone()).await?;
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
async fn a_process_started_again_without_the_ledger_goes_on_after_its_last_numbers() {
    let world = World::new();
    let data = tempfile::tempdir().unwrap();
    let ann = world.start("ann", &data).await.unwrap();
    ann.live(&world, 24 * HOUR_MS).await;
    let (node, last) = (ann.node(), ann.make_number());
    drop(ann);
    world.ledger.away.store(true, Ordering::Relaxed);
    // Its clock was a little ahead and has been set right.
    world.clock.set(world.clock.now_ms() + 3 * HOUR_MS);
    let again = world.start("ann again", &data).await.unwrap();
    assert_eq!(again.node(), node);
    assert!(again.make_number() > last);
    let last = again.make_number();
    drop(again);
    world.clock.set(world.clock.now_ms() - 10_000);
    let again = world.start("ann once more", &data).await.unwrap();
    assert!(again.make_number() > last);
    // The ledger is back, and somebody else finds another one.
    world.ledger.away.store(false, Ordering::Relaxed);
    assert!(again.keeper.renew().await);
    let elsewhere = tempfile::tempdir().unwrap();
    let bob = world.start("bob", &elsewhere).await.unwrap();
    assert_ne!(bob.node(), again.node());
}

#[tokio::test]
async fn what_the_data_directory_keeps_is_worth_nothing_when_its_time_is_over() {
    let world = World::new();
    let data = tempfile::tempdir().unwrap();
    drop(world.start("ann", &data).await.unwrap());
    world.ledger.away.store(true, Ordering::Relaxed);
    for at_ms in [NOON_MS - 1, NOON_MS + HOUR_MS] {
        world.clock.set(at_ms);
        assert!(matches!(world.start("bob", &data).await, Err(NodeError::Ledger(_))), "{at_ms}");
    }
    world.clock.set(NOON_MS + 1);
    let kept = KeptNode::read(data.path()).unwrap();
    KeptNode { host: "elsewhere".into(), ..kept }.write(data.path()).unwrap();
    assert!(world.start("bob", &data).await.is_err(), "it is a copy from another machine");
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
    let lease = format!("{}:{{node:{node}}}:lease", world.prefix);
    shared_redis().call(&["DEL", &lease]).unwrap();
    assert_eq!(world.witness.witness_node(node, "another old").await, Ok(true));
    assert!(ann.keeper.renew().await && ann.is_ours());
    assert!(ann.node() != node && ann.node() % 2 == 1);
}

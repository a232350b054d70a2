//! The node of this process: the part of its order numbers that no other process has at the same time.
//!
//! The ledger gives it, for hours: so order numbers are made through the loss of any Redis server and through
//! hours without the ledger. A process that starts needs the ledger. Without a node that is surely ours
//! nobody is admitted.
//!
//! **Two never make numbers with one node at a time.** The ledger gives it to one. The holder uses it for
//! half of the time it was given, by the clock on the wall and by the machine's own. What a killed process
//! held is in its data directory; the next one there gives it back, and takes another.
//!
//! **Numbers of one holder are not made again by the next**, although their clocks differ or are set back:
//! the ledger remembers how far the numbers of a node may have come, and gives it only to those whose
//! numbers are past that. Whoever has told the ledger a time makes no number of an earlier one.
//!
//! **A ledger that was restored from a backup** has forgotten who holds what. So there is a witness, a lease
//! in Redis, which every holder renews, also while the ledger is away: whoever is given a node asks it, and
//! leaves the node to the living process that it names. A witness that is away changes nothing; one that
//! names another process ends what the ledger gave, for then two may have it. Processes of releases before
//! this one hold their nodes by the same lease and by nothing else, so none of theirs is taken.

mod kept;

use std::{
    path::PathBuf,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use ledger::{NodeLease, Nodes};
use sale::{Millis, NODES_MAX, OrderNo, OrderNumbers, SharedClock};

use self::kept::KeptNode;
use crate::coordination::Coordination;

/// A node that somebody took from us by the ledger's fault is noticed within this time.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// The next try when the ledger did not answer.
const RENEW_SOON: Duration = Duration::from_secs(2);
/// How far ahead of the clock the numbers are noted that may have been made when the process is killed.
const AHEAD_MS: Millis = 30_000;
/// What a process that was killed left in the data directory is given to others after this time: should it
/// live on a copy of the directory, on a machine of the same name, it renews it meanwhile.
const GIVE_BACK_AFTER_MS: Millis = 60_000;
/// How many nodes are tried that a living process holds, or for which no witness can be asked.
const TRIES_MAX: usize = 16;
/// Giving it back must not hold up the end of the process.
const GIVE_BACK_MAX: Duration = Duration::from_secs(3);
/// A disk that takes longer is left alone.
const WRITE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("the ledger gives no node for order numbers: {0}")]
    Ledger(#[from] ledger::LedgerError),
    #[error(
        "all {NODES_MAX} nodes for order numbers are held: stop instances that are not needed; what dead \
         processes hold (table tb_node) is free after a day at most"
    )]
    AllHeld,
}

/// The node that order numbers are made with.
pub(crate) struct Node {
    clock: SharedClock,
    started: Instant,
    /// Written before the times, read after them.
    node: AtomicU16,
    /// Until when it is surely ours, by the clock on the wall, which goes on while the machine sleeps…
    until_ms: AtomicI64,
    /// …and in milliseconds since `started`, which nobody can set back.
    until_tick_ms: AtomicI64,
}

/// When something was asked, by both clocks.
#[derive(Clone, Copy)]
struct Moment {
    wall_ms: Millis,
    tick_ms: Millis,
}

impl Node {
    fn nobodys(clock: SharedClock) -> Node {
        let (node, started) = (AtomicU16::new(0), Instant::now());
        let (until_ms, until_tick_ms) = (AtomicI64::new(0), AtomicI64::new(0));
        Node { clock, started, node, until_ms, until_tick_ms }
    }

    /// The node of a process that is alone.
    pub(crate) fn alone(node: u16, clock: SharedClock) -> Arc<Node> {
        let alone = Node::nobodys(clock);
        alone.hold(node, alone.now(), Millis::MAX / 2);
        Arc::new(alone)
    }

    /// May order numbers be made with it now?
    pub(crate) fn is_ours(&self) -> bool {
        let now = self.now();
        now.wall_ms < self.until_ms.load(Ordering::Acquire)
            && now.tick_ms < self.until_tick_ms.load(Ordering::Acquire)
    }

    /// It may change while it is not ours; ask [`Node::is_ours`] first.
    pub(crate) fn number(&self) -> u16 {
        self.node.load(Ordering::Relaxed)
    }

    fn now(&self) -> Moment {
        let tick_ms = self.started.elapsed().as_millis() as Millis;
        Moment { wall_ms: self.clock.now_ms(), tick_ms }
    }

    fn hold(&self, node: u16, asked: Moment, used_for_ms: Millis) {
        self.node.store(node, Ordering::Relaxed);
        self.until_tick_ms.store(asked.tick_ms + used_for_ms, Ordering::Release);
        self.until_ms.store(asked.wall_ms + used_for_ms, Ordering::Release);
    }

    fn let_go(&self) {
        self.until_ms.store(0, Ordering::Release);
    }
}

/// What a keeper is told.
pub(crate) struct NodeOptions {
    /// The data directory, which is ours alone.
    pub(crate) data: PathBuf,
    /// A name that no other process has, and that of the machine.
    pub(crate) instance: String,
    pub(crate) host: String,
}

/// Takes a node for this process, keeps it while the process lives, and gives it back.
pub(crate) struct NodeKeeper {
    node: Arc<Node>,
    numbers: Arc<OrderNumbers>,
    ledger: Arc<dyn Nodes>,
    witness: Arc<dyn Coordination>,
    options: NodeOptions,
    /// One at a time renews the node, takes another or gives it back.
    has: tokio::sync::Mutex<Has>,
    /// Somebody writes it down, or waits for a disk that does not answer.
    is_writing: Arc<AtomicBool>,
}

/// What a keeper has.
#[derive(Clone, Copy)]
enum Has {
    Node(u16),
    /// It was lost to somebody else, and there is no other one yet.
    Nothing,
    /// It was given back, and no other one is wanted.
    Ended,
}

/// A node that the ledger gave us.
struct Taken {
    lease: NodeLease,
    asked: Moment,
    /// Those who had it before made numbers of earlier times only.
    numbers_ms: Millis,
}

/// What became of a node that was to be renewed.
enum Renewed {
    Ours,
    Anothers,
    /// The ledger does not answer.
    Unknown,
}

impl NodeKeeper {
    pub(crate) async fn open(
        options: NodeOptions,
        ledger: Arc<dyn Nodes>,
        witness: Arc<dyn Coordination>,
        numbers: Arc<OrderNumbers>,
        clock: SharedClock,
    ) -> Result<Arc<NodeKeeper>, NodeError> {
        let found = KeptNode::read(&options.data);
        let keeper = NodeKeeper {
            node: Arc::new(Node::nobodys(clock)),
            numbers,
            ledger,
            witness,
            options,
            has: tokio::sync::Mutex::new(Has::Nothing),
            is_writing: Arc::default(),
        };
        if let Some(found) = found {
            keeper.give_back_found(&found).await;
        }
        let node = keeper.take().await?;
        *keeper.has.lock().await = Has::Node(node);
        keeper.write_down(node).await;
        let keeper = Arc::new(keeper);
        tokio::spawn(renewing(Arc::downgrade(&keeper)));
        Ok(keeper)
    }

    pub(crate) fn node(&self) -> Arc<Node> {
        self.node.clone()
    }

    fn holder(&self) -> &str {
        &self.options.instance
    }

    /// What a killed process left. We take another: its last numbers may be ahead of our clock. In a copy of
    /// a data directory from another machine it may be the node of a living process, which keeps it.
    async fn give_back_found(&self, found: &KeptNode) {
        if found.host != self.options.host {
            return;
        }
        // On a full disk it is of long ago.
        let used_to_ms = found.used_to_ms.max(self.latest_ms() + AHEAD_MS);
        let returning =
            self.ledger.give_back_node(found.node, &found.holder, used_to_ms, GIVE_BACK_AFTER_MS);
        log_kept(found.node, returning.await);
    }

    /// A node that the ledger gives us and the witness leaves us.
    async fn take(&self) -> Result<u16, NodeError> {
        let mut unwitnessed = Vec::new();
        let taken = match self.take_witnessed(&mut unwitnessed).await? {
            // Without Redis those of whom it would tell make no numbers either.
            None => unwitnessed.pop(),
            taken => taken,
        };
        for unused in unwitnessed {
            self.return_unused(&unused).await;
        }
        let Taken { lease, asked, .. } = taken.ok_or(NodeError::AllHeld)?;
        self.node.hold(lease.node, asked, lease.used_for_ms());
        Ok(lease.node)
    }

    async fn take_witnessed(
        &self,
        unwitnessed: &mut Vec<Taken>,
    ) -> Result<Option<Taken>, NodeError> {
        for _ in 0..TRIES_MAX {
            let (asked, numbers_ms) = (self.node.now(), self.latest_ms());
            let given = self.ledger.take_node(self.holder(), anywhere(), numbers_ms).await?;
            let Some(lease) = given else { break };
            let taken = Taken { lease, asked, numbers_ms };
            match self.witness.witness_node(lease.node, self.holder()).await {
                Ok(true) => return Ok(Some(taken)),
                Ok(false) => self.return_unused(&taken).await,
                // For another node another server of Redis may answer.
                Err(_) => unwitnessed.push(taken),
            }
        }
        Ok(None)
    }

    /// All numbers that were made with it are of times before it was given to us. The ledger is told no more,
    /// or whoever holds it would have to be past our clock to renew it.
    async fn return_unused(&self, taken: &Taken) {
        self.return_to_ledger(taken.lease.node, taken.numbers_ms - 1).await;
    }

    async fn return_to_ledger(&self, node: u16, used_to_ms: Millis) {
        let returning = self.ledger.give_back_node(node, self.holder(), used_to_ms, 0);
        log_kept(node, returning.await);
    }

    /// Of what time the latest number may be. From now on none is made of an earlier one, even if the clock
    /// is set back: by this time the ledger judges whether we are past the numbers of others.
    fn latest_ms(&self) -> Millis {
        let latest_ms = self.node.now().wall_ms.max(self.numbers.latest_ms());
        self.numbers.start_after(OrderNo::floor(latest_ms));
        latest_ms
    }

    /// False if the ledger does not answer, or there is no node: it is tried again soon.
    async fn renew(&self) -> bool {
        let mut has = self.has.lock().await;
        let renewed = match *has {
            Has::Ended => return true,
            Has::Nothing => Renewed::Anothers,
            Has::Node(node) => self.renew_node(node).await,
        };
        if let Renewed::Anothers = renewed {
            *has = self.take_another(*has).await;
        }
        let Has::Node(node) = *has else { return false };
        self.write_down(node).await;
        !matches!(renewed, Renewed::Unknown)
    }

    /// It is held only after the witness has been asked: it may have been lost meanwhile.
    async fn renew_node(&self, node: u16) -> Renewed {
        let asked = self.node.now();
        let (renewed, witnessed) = tokio::join!(
            self.ledger.renew_node(node, self.holder(), self.latest_ms()),
            self.witness.witness_node(node, self.holder()),
        );
        match renewed {
            _ if witnessed == Ok(false) => Renewed::Anothers,
            Ok(None) => Renewed::Anothers,
            Ok(Some(lease)) => {
                self.node.hold(node, asked, lease.used_for_ms());
                Renewed::Ours
            }
            Err(_) => Renewed::Unknown,
        }
    }

    /// Somebody else has ours: the ledger was restored, or Redis knows a living process.
    async fn take_another(&self, has: Has) -> Has {
        self.node.let_go();
        if let Has::Node(node) = has {
            tracing::error!(
                node,
                "another process has our node: nobody is admitted here until there is a new one"
            );
            self.return_to_ledger(node, self.latest_ms()).await;
        }
        match self.take().await {
            Ok(node) => {
                tracing::warn!(node, "order numbers go on with a new node");
                Has::Node(node)
            }
            Err(error) => {
                tracing::debug!(%error, "there is no new node yet");
                Has::Nothing
            }
        }
    }

    /// In the data directory. What cannot be written there is held until its time is over if we are killed.
    async fn write_down(&self, node: u16) {
        let kept = KeptNode {
            node,
            holder: self.holder().to_owned(),
            host: self.options.host.clone(),
            used_to_ms: self.latest_ms() + AHEAD_MS,
        };
        let (data, is_writing) = (self.options.data.clone(), self.is_writing.clone());
        if is_writing.swap(true, Ordering::Relaxed) {
            return;
        }
        let writing = tokio::task::spawn_blocking(move || {
            let written = kept.write(&data);
            is_writing.store(false, Ordering::Relaxed);
            written
        });
        match tokio::time::timeout(WRITE_MAX, writing).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::debug!(%error, "the node cannot be kept on disk"),
            Ok(Err(_)) | Err(_) => {
                tracing::debug!("the disk does not answer: the node is not kept")
            }
        }
    }

    /// No more numbers are made here, and others may have the node at once.
    pub(crate) async fn give_back(&self) {
        let giving_back = async {
            let mut has = self.has.lock().await;
            self.node.let_go();
            match std::mem::replace(&mut *has, Has::Ended) {
                Has::Node(node) => {
                    self.ledger.give_back_node(node, self.holder(), self.latest_ms(), 0).await
                }
                Has::Nothing | Has::Ended => Ok(()),
            }
        };
        match tokio::time::timeout(GIVE_BACK_MAX, giving_back).await {
            // If we are killed before this, the next process gives it back again, unless another has it.
            Ok(Ok(())) => KeptNode::forget(&self.options.data),
            _ => tracing::warn!(
                "the ledger does not answer: the node is held until the next start here gives it back, \
                 or until its time is over"
            ),
        }
    }
}

fn log_kept(node: u16, returned: ledger::Result<()>) {
    if let Err(error) = returned {
        tracing::debug!(%error, node, "a node that is not used stays held until its time is over");
    }
}

async fn renewing(keeper: Weak<NodeKeeper>) {
    let mut answered = true;
    loop {
        tokio::time::sleep(if answered { RENEW_EVERY } else { RENEW_SOON }).await;
        let Some(keeper) = keeper.upgrade() else { return };
        let answers = keeper.renew().await;
        if answered && !answers && keeper.node.is_ours() {
            tracing::warn!(
                "the node for order numbers is not renewed: it is good for hours without the ledger"
            );
        }
        answered = answers;
    }
}

/// A node to begin the search with. The hasher of the standard library is seeded anew each time.
fn anywhere() -> u16 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(()) % u64::from(NODES_MAX)) as u16
}

#[cfg(test)]
mod tests;

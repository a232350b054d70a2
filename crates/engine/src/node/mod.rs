//! The node of this process: the part of its order numbers that no other process has at the same time.
//!
//! The ledger gives it, for hours, and the data directory keeps it: so order numbers are made through the
//! loss of any Redis server and through hours without the ledger, also by a process that is started again
//! meanwhile. Without a node that is surely ours nobody is admitted.
//!
//! **Two never make numbers with one node at a time.** The ledger gives it to one. The holder uses it for
//! half of the time it was given, by the clock on the wall and by the machine's own. The data directory is
//! held by one process, which gives back what the one before it left there, and takes another.
//!
//! **Numbers of one holder are not made again by the next**, although their clocks differ or are set back:
//! the ledger remembers how far the numbers of a node may have come, and gives it only to those whose clock
//! is past that. What the data directory keeps says the same, a few seconds ahead.
//!
//! **A ledger that was restored from a backup** has forgotten who holds what. So there is a witness, a lease
//! in Redis: whoever is given a node asks it, and leaves the node to the living process that it names.
//! The witness may be away: it is asked when a node is taken, and cannot end what the ledger gave. Processes
//! of releases before this one hold their nodes by the same lease, so none of theirs is taken.

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
use parking_lot::Mutex;
use sale::{Millis, NODES_MAX, OrderNo, OrderNumbers, SharedClock};

use self::kept::KeptNode;
use crate::coordination::Coordination;

/// A node that somebody took from us by the ledger's fault is noticed within this time.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// The next try when the ledger did not answer.
const RENEW_SOON: Duration = Duration::from_secs(2);
/// How far ahead of the clock the numbers are noted that may have been made when the process is killed.
const AHEAD_MS: Millis = 30_000;
/// What a process that was killed left in the data directory is given to others after this time: should
/// somebody run on a copy of the directory, they renew it meanwhile.
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
    /// In whose name the node is held: that of the process before us if we go on with its node.
    holder: String,
    /// What the data directory should say. Nothing when the node is given back.
    kept: Mutex<Option<KeptNode>>,
    /// One at a time renews the node, takes another or gives it back.
    turn: tokio::sync::Mutex<()>,
    /// Somebody writes it down, or waits for a disk that does not answer.
    is_writing: Arc<AtomicBool>,
}

impl NodeKeeper {
    /// A node from the ledger or, without it, the one in the data directory.
    pub(crate) async fn open(
        options: NodeOptions,
        ledger: Arc<dyn Nodes>,
        witness: Arc<dyn Coordination>,
        numbers: Arc<OrderNumbers>,
        clock: SharedClock,
    ) -> Result<Arc<NodeKeeper>, NodeError> {
        let found = KeptNode::read(&options.data);
        let mut keeper = NodeKeeper {
            node: Arc::new(Node::nobodys(clock)),
            holder: options.instance.clone(),
            numbers,
            ledger,
            witness,
            options,
            kept: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            is_writing: Arc::default(),
        };
        if let Err(error) = keeper.begin(found.as_ref()).await {
            let found = found.filter(|kept| keeper.is_good(kept)).ok_or(error)?;
            keeper.go_on_with(found);
        }
        keeper.write_down().await;
        let keeper = Arc::new(keeper);
        tokio::spawn(renewing(Arc::downgrade(&keeper)));
        Ok(keeper)
    }

    pub(crate) fn node(&self) -> Arc<Node> {
        self.node.clone()
    }

    /// Another node than the one that a killed process left: its last numbers may be ahead of our clock.
    async fn begin(&self, found: Option<&KeptNode>) -> Result<(), NodeError> {
        if let Some(KeptNode { node, holder, used_to_ms, .. }) = found {
            self.ledger.give_back_node(*node, holder, *used_to_ms, GIVE_BACK_AFTER_MS).await?;
        }
        self.take().await
    }

    /// A clock that says a time before it was given was set back, by who knows how much.
    fn is_good(&self, kept: &KeptNode) -> bool {
        let now_ms = self.node.now().wall_ms;
        kept.host == self.options.host && (kept.given_ms..kept.until_ms).contains(&now_ms)
    }

    fn go_on_with(&mut self, kept: KeptNode) {
        tracing::warn!(
            node = kept.node,
            until_ms = kept.until_ms,
            "the ledger does not answer: order numbers go on with the node of the data directory"
        );
        let now = self.node.now();
        let used_for_ms = kept.until_ms - now.wall_ms;
        self.numbers.start_after(OrderNo::floor(kept.used_to_ms));
        self.node.hold(kept.node, now, used_for_ms);
        self.holder = kept.holder.clone();
        *self.kept.get_mut() = Some(kept);
    }

    /// A node that the ledger gives us and the witness leaves us.
    async fn take(&self) -> Result<(), NodeError> {
        let mut unwitnessed = Vec::new();
        let taken = match self.take_witnessed(&mut unwitnessed).await? {
            // Without Redis those of whom it would tell make no numbers either.
            None => unwitnessed.pop(),
            taken => taken,
        };
        for (lease, _) in unwitnessed {
            self.return_unused(lease.node).await;
        }
        let (lease, asked) = taken.ok_or(NodeError::AllHeld)?;
        self.hold(lease, asked);
        Ok(())
    }

    async fn take_witnessed(
        &self,
        unwitnessed: &mut Vec<(NodeLease, Moment)>,
    ) -> Result<Option<(NodeLease, Moment)>, NodeError> {
        for _ in 0..TRIES_MAX {
            let asked = self.node.now();
            let given = self.ledger.take_node(&self.holder, anywhere(), self.latest_ms()).await?;
            let Some(lease) = given else { break };
            match self.witness.witness_node(lease.node, &self.holder).await {
                Ok(true) => return Ok(Some((lease, asked))),
                Ok(false) => self.return_unused(lease.node).await,
                // For another node another server of Redis may answer.
                Err(_) => unwitnessed.push((lease, asked)),
            }
        }
        Ok(None)
    }

    async fn return_unused(&self, node: u16) {
        let returned = self.ledger.give_back_node(node, &self.holder, self.latest_ms(), 0).await;
        if let Err(error) = returned {
            tracing::debug!(%error, node, "a node that is not used stays held for an hour");
        }
    }

    /// Of what time the latest number may be.
    fn latest_ms(&self) -> Millis {
        self.node.now().wall_ms.max(self.numbers.latest_ms())
    }

    fn hold(&self, lease: NodeLease, asked: Moment) {
        self.node.hold(lease.node, asked, lease.used_for_ms());
        *self.kept.lock() = Some(KeptNode {
            node: lease.node,
            holder: self.holder.clone(),
            host: self.options.host.clone(),
            given_ms: asked.wall_ms,
            until_ms: asked.wall_ms + lease.used_for_ms(),
            used_to_ms: self.latest_ms(),
        });
    }

    /// False if the ledger does not answer.
    async fn renew(&self) -> bool {
        let _turn = self.turn.lock().await;
        if self.kept.lock().is_none() {
            return true;
        }
        let (node, asked) = (self.node.number(), self.node.now());
        let renewed = self.ledger.renew_node(node, &self.holder, self.latest_ms()).await;
        let ours = match renewed {
            Ok(Some(lease)) => {
                self.hold(lease, asked);
                self.witness.witness_node(node, &self.holder).await != Ok(false)
            }
            Ok(None) => false,
            Err(_) => {
                self.write_down().await;
                return false;
            }
        };
        let mut answered = true;
        if !ours {
            answered = self.take_another(node).await;
        }
        self.write_down().await;
        answered
    }

    /// Somebody else has it: the ledger was restored, or Redis knows a living process.
    async fn take_another(&self, node: u16) -> bool {
        self.node.let_go();
        self.return_unused(node).await;
        let taken = self.take().await;
        match &taken {
            Ok(()) => {
                let new = self.node.number();
                tracing::warn!(
                    node,
                    new,
                    "another process has our node: order numbers go on with a new one"
                );
            }
            Err(error) => tracing::error!(%error, node,
                "another process has our node, and there is no new one yet: nobody is admitted here"),
        }
        taken.is_ok()
    }

    /// In the data directory. What cannot be written is missed only by a start without the ledger.
    async fn write_down(&self) {
        let Some(mut kept) = self.kept.lock().clone() else { return };
        kept.used_to_ms = self.latest_ms() + AHEAD_MS;
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
            let _turn = self.turn.lock().await;
            self.node.let_go();
            *self.kept.lock() = None;
            let (node, latest_ms) = (self.node.number(), self.latest_ms());
            self.ledger.give_back_node(node, &self.holder, latest_ms, 0).await
        };
        match tokio::time::timeout(GIVE_BACK_MAX, giving_back).await {
            Ok(Ok(())) => KeptNode::forget(&self.options.data),
            _ => tracing::warn!(
                "the ledger does not answer: the node is held until its time is over"
            ),
        }
    }
}

async fn renewing(keeper: Weak<NodeKeeper>) {
    let mut answered = true;
    loop {
        tokio::time::sleep(if answered { RENEW_EVERY } else { RENEW_SOON }).await;
        let Some(keeper) = keeper.upgrade() else { return };
        let answers = keeper.renew().await;
        if answered && !answers {
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

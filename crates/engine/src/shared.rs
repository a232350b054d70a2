//! What the components of the engine share: the stores that they join, the clock, who waits for whom and
//! who wakes whom.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use gate::{Gate, Lanes};
use ledger::Ledger;
use orders::{
    Workers, WorkersHandle,
    broker::{Broker, BrokerFinding, BrokerLog, BrokerLookBack, Relay, RelayHandle},
};
use sale::{ClaimLog, LookBack, Millis, OrderNo, OrderNumbers, SharedClock, SigningKeys};
use serde_json::Value;
use tokio::sync::Notify;

use crate::{
    OpenError, Parts, ProcessRole, Profile, Settings,
    actor::{Actor, audit_entry},
    alerting::Alerting,
    coordination::Coordination,
    gate_turns::GateTurns,
    leases::Leases,
    node::{Node, NodeKeeper},
    published::Published,
    push::AdmittedClaims,
    reminders::Reminders,
    sale_tokens::WrongAnswers,
    settling::WakingBook,
};

/// One of the two stores did not do what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Ledger(#[from] ledger::LedgerError),
    #[error(transparent)]
    Gate(#[from] gate::GateError),
}

/// An error that is only told to the log.
pub(crate) type AnyError = Box<dyn std::error::Error + Send + Sync>;

pub struct Shared {
    pub settings: Settings,
    /// A name of this process that a person can find, and no other process has.
    pub instance: String,
    pub clock: SharedClock,
    pub numbers: Arc<OrderNumbers>,
    /// What they are made with, and who keeps it in a cluster.
    pub(crate) node: Arc<Node>,
    pub(crate) node_keeper: Option<Arc<NodeKeeper>>,
    pub gate: Arc<dyn Gate>,
    pub lanes: Lanes,
    pub ledger: Arc<dyn Ledger>,
    pub(crate) published: Arc<Published>,
    pub coordination: Arc<dyn Coordination>,
    /// Which process runs which job.
    pub(crate) leases: Leases,
    /// Where this process is a worker.
    pub workers: Option<WorkersHandle>,
    /// Where claims go to the workers by a message broker.
    pub(crate) broker: Option<Arc<dyn Broker>>,
    /// The same, where this process is a worker.
    pub(crate) relay: Option<RelayHandle>,
    pub(crate) alerts: Alerting,
    pub(crate) wake: Arc<WakeUps>,
    /// What the lanes admit, for those who listen.
    pub(crate) admitted: Arc<AdmittedClaims>,
    /// Who answered challenges wrongly, here and, by their hints, at other instances.
    pub(crate) wrong_answers: WrongAnswers,
    /// Held by whoever carries something of an item from the ledger to the gate in two steps.
    pub(crate) gate_turns: GateTurns,
}

/// Jobs that are woken when there is something for them, and do not wait for their next poll.
#[derive(Default)]
pub(crate) struct WakeUps {
    pub(crate) release: Arc<Notify>,
    pub(crate) news: Arc<Notify>,
    pub(crate) refund: Arc<Notify>,
    pub(crate) webhooks: Arc<Notify>,
    /// As the job last saw it: there is somebody to tell.
    pub(crate) has_webhooks: AtomicBool,
    pub(crate) warm: Arc<Notify>,
    /// Another instance says that somebody has to wait, or that a list changed.
    pub(crate) door: Arc<Notify>,
    pub(crate) reconcile: Arc<Notify>,
    /// News were written to the outbox here, and the job that tells them may be that of another process.
    pub(crate) news_for_others: Notify,
}

impl WakeUps {
    /// Something was written to the outbox, which a job for each kind empties.
    pub(crate) fn outbox_written(&self) {
        self.release.notify_one();
        self.refund.notify_one();
        self.news_written();
        self.webhooks_written();
    }

    /// Of all that, only news.
    pub(crate) fn news_written(&self) {
        self.news.notify_one();
        self.news_for_others.notify_one();
    }

    /// Events may have been written, which nobody need look for where there is no endpoint.
    pub(crate) fn webhooks_written(&self) {
        if self.has_webhooks.load(Ordering::Relaxed) {
            self.webhooks.notify_one();
        }
    }
}

impl Shared {
    /// Starts the lanes and, where this process is a worker, the workers: what is on the log is owed,
    /// whoever asked for the engine.
    pub(crate) fn start(
        settings: Settings,
        clock: SharedClock,
        parts: Parts,
        alerts: Alerting,
        keys: &SigningKeys,
    ) -> Result<Shared, OpenError> {
        let Parts { gate, ledger, coordination, broker, numbers, node, node_keeper, instance } =
            parts;
        let admitted = Arc::new(AdmittedClaims::new(settings.profile == Profile::Cluster));
        let lanes = start_lanes(&settings, &gate, &node, &numbers, &admitted)?;
        let wake = Arc::<WakeUps>::default();
        let workers = settings.does(ProcessRole::Worker).then(|| {
            let cluster = settings.profile == Profile::Cluster;
            let reminders = broker.as_ref().and_then(|broker| Reminders::start(broker, &ledger));
            let book = WakingBook::new(&gate, &ledger, wake.clone(), cluster, reminders);
            let options = settings.orders.clone();
            let (log, relay) = match &broker {
                None => (gate.clone() as Arc<dyn ClaimLog>, None),
                Some(broker) => {
                    let (log, relay) = by_broker(&settings, broker, &gate, keys, &clock, &alerts);
                    (log, Some(relay))
                }
            };
            let alerts = alerts.handle();
            let workers = Workers::start(options, log, Arc::new(book), clock.clone(), alerts);
            (workers, relay)
        });
        let (workers, relay) = workers.unzip();
        let door = &settings.door;
        let wrong_answers = WrongAnswers::new(door.wrong_answers_max, door.wrong_cool_down_ms);
        let leases = match settings.profile {
            Profile::Solo => Leases::Alone,
            Profile::Cluster => Leases::in_ledger(ledger.clone(), instance.clone()),
        };
        Ok(Shared {
            published: Arc::new(Published::new(ledger.clone())),
            settings,
            instance,
            clock,
            numbers,
            node,
            node_keeper,
            gate,
            lanes,
            ledger,
            coordination,
            leases,
            workers,
            broker,
            relay: relay.flatten(),
            alerts,
            wake,
            admitted,
            wrong_answers,
            gate_turns: GateTurns::default(),
        })
    }

    /// Where what was admitted can be read long afterwards.
    pub(crate) fn log_to_look_into(&self, keys: &SigningKeys) -> Arc<dyn LookBack> {
        let own: Arc<dyn LookBack> = self.gate.clone();
        match &self.broker {
            None => own,
            Some(broker) => {
                Arc::new(BrokerLookBack { own, broker: broker.clone(), keys: keys.clone() })
            }
        }
    }

    pub(crate) fn now_ms(&self) -> Millis {
        self.clock.now_ms()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.settings.profile == Profile::Cluster
    }

    /// A number for something that is done once. Nothing is numbered while another process may hold
    /// the node.
    pub(crate) fn number(&self) -> Option<OrderNo> {
        may_number(&self.node, &self.numbers).then(|| self.numbers.next())
    }

    /// Claims settled per second lately; nothing is known of it where no worker runs.
    pub(crate) fn rate_per_s(&self) -> f64 {
        self.workers.as_ref().map_or(0.0, WorkersHandle::rate_per_s)
    }

    /// When a claim at this position will be an order, at the rate of the last seconds.
    pub(crate) fn eta_ms(&self, position: u64) -> u64 {
        /// What a worker does at the least, for the first buyers of a quiet day.
        const RATE_PER_S_MIN: f64 = 1_000.0;
        let rate = self.rate_per_s().max(RATE_PER_S_MIN);
        (position as f64 / rate * 1_000.0).ceil() as u64
    }

    /// Writes an entry into the audit, for what has no transaction of its own that does.
    pub(crate) async fn audit(
        &self,
        who: impl Into<Actor>,
        action: &str,
        target: String,
        detail: Value,
    ) -> ledger::Result<()> {
        let entry = audit_entry(who, action, target, detail);
        self.ledger.audit(&entry, self.now_ms()).await
    }
}

/// The log of workers who are served by a broker, and the relay that feeds it.
fn by_broker(
    settings: &Settings,
    broker: &Arc<dyn Broker>,
    gate: &Arc<dyn Gate>,
    keys: &SigningKeys,
    clock: &SharedClock,
    alerts: &Alerting,
) -> (Arc<dyn ClaimLog>, RelayHandle) {
    let log = BrokerLog::new(gate.clone(), broker.clone(), keys.clone());
    let relay = Relay::start(
        settings.relay.clone(),
        gate.clone(),
        broker.clone(),
        log.clone(),
        keys.clone(),
        clock.clone(),
        alerts.handle(),
    );
    // No start waits for a broker.
    let broker = broker.clone();
    tokio::spawn(async move {
        for finding in broker.findings().await {
            if let BrokerFinding::Warn(text) | BrokerFinding::Fail(text) = finding {
                tracing::warn!("{text}");
            }
        }
    });
    (log, relay)
}

fn start_lanes(
    settings: &Settings,
    gate: &Arc<dyn Gate>,
    node: &Arc<Node>,
    numbers: &Arc<OrderNumbers>,
    admitted: &Arc<AdmittedClaims>,
) -> Result<Lanes, OpenError> {
    let sold_out_ms_max = settings.gate.sold_out_cache_ms_max;
    let (node, node_of) = (node.clone(), numbers.clone());
    let may_number = Arc::new(move || may_number(&node, &node_of));
    let admitted = admitted.clone();
    let lanes = Lanes::start(
        settings.lane,
        sold_out_ms_max,
        gate.clone(),
        numbers.clone(),
        may_number,
        Arc::new(move |claim, ahead| admitted.note(claim, ahead)),
    );
    lanes.map_err(OpenError::Lanes)
}

/// May this process hand out numbers now? Then they are of the node that it holds now.
fn may_number(node: &Node, numbers: &OrderNumbers) -> bool {
    let ours = node.is_ours();
    numbers.set_node(node.number());
    ours
}

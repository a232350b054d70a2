//! The engine: everything that sells, joined together, without HTTP.
//!
//! The only place where gate, workers, ledger and providers meet. The API above it translates
//! requests into these calls; the jobs beside it do what nobody asks for. Above this module nothing
//! knows which profile runs.

pub mod actor;
mod adjusting;
mod adopting;
mod buying;
mod catalogue;
pub mod checkup;
pub mod coordination;
pub mod data_dir;
mod demo;
mod due;
mod finding;
mod health;
mod jobs;
mod lookups;
#[cfg(any(test, feature = "testing"))]
pub mod moving_gate;
mod news;
mod operating;
mod parts;
mod paying;
mod planning;
mod reconcile;
mod secret;
pub mod secrets;
pub mod settings;
#[cfg(test)]
mod test_engine;
mod totals;
mod warming;
mod with_timeout;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use async_trait::async_trait;
use gate::{Gate, LaneOptions, Lanes};
use ledger::{Ledger, Outstanding};
use orders::{Alert, AlertKind, AlertOptions, Alerts, Workers, WorkersHandle};
use parking_lot::Mutex;
use payment::{
    Provider,
    sandbox::{Sandbox, SandboxOptions},
};
use sale::{
    Activity, ActivityId, BookError, Claim, FailedClaim, ItemId, Millis, OrderBook, OrderNo,
    OrderNumbers, Settled, SharedClock, SigningKeys,
};
use sha2::{Digest, Sha256};
use tokio::{
    sync::{Notify, broadcast::error::RecvError, watch},
    task::JoinHandle,
    time::Instant,
};

use adopting::Adopter;
pub use buying::{LookupError, OrderView};
pub use catalogue::{ACTIVITIES_SHOWN_MAX, Catalogue, NoCursor, OnShow, Place, Snapshot};
pub use finding::{Found, fits};
pub use health::{Health, OpenAlert, Part, Readiness, Word};
pub use news::{Listener, News, NewsOptions, TooMany};
pub use operating::{AtGate, LOCAL_TOKEN, OperateError, TOKEN_NAME_CHARS_MAX};
pub use parts::{LEDGER_FILE, OpenError, Parts};
pub use paying::{NoticeFailure, PayError, Providers};
pub use reconcile::{Finding, ItemReport, ItemVerdict, RECONCILE_JOB, ReconcileError, Report};
pub use secret::{REDACTED, Secret};
pub use settings::{Profile, Role, Settings};
pub use totals::{ItemTotals, Totals};
pub use warming::{WarmError, Warmed};

use self::{
    health::Kept,
    with_timeout::{PROVIDER_ANSWER_MAX, WithTimeout},
};
use crate::{
    coordination::{Coordination, Hint},
    data_dir::make_file_private,
};

pub const SANDBOX_FILE: &str = "sandbox.db";
/// Alerts that are remembered as raised.
const TOLD_MAX: usize = 10_000;
/// How often the listener for hints looks whether it should stop.
const HINT_ROUND: std::time::Duration = std::time::Duration::from_millis(500);

pub struct Engine {
    pub settings: Settings,
    /// A name of this process that a person can find, and no other process has.
    pub instance: String,
    /// The directory that is ours.
    data: PathBuf,
    pub clock: SharedClock,
    pub keys: SigningKeys,
    pub numbers: Arc<OrderNumbers>,
    pub gate: Arc<dyn Gate>,
    pub lanes: Lanes,
    pub ledger: Arc<dyn Ledger>,
    pub coordination: Arc<dyn Coordination>,
    /// Where this process is a worker.
    pub workers: Option<WorkersHandle>,
    pub alerts: Alerts,
    /// What can be done now, as the watcher last saw it.
    pub health: Health,
    /// What waits in the ledger, as it was last counted; `None` where nobody counts.
    pub outstanding: Mutex<Option<Outstanding>>,
    /// Live orders of each item, as the last comparison of gate and ledger counted them.
    pub live_orders: Mutex<HashMap<ItemId, u64>>,
    pub providers: Providers,
    /// The built-in cashier, if it is switched on.
    pub sandbox: Option<Sandbox>,
    pub catalogue: Catalogue,
    pub news: Arc<News>,
    outbox_wake: Arc<Notify>,
    refund_wake: Arc<Notify>,
    warm_wake: Arc<Notify>,
    reconcile_wake: Arc<Notify>,
    /// Held by whoever carries something from the ledger to the gate in two steps: a load, a release,
    /// an adjustment, a change of state. A load replaces what the gate holds by what the ledger held
    /// a moment before, so nothing may reach the gate in between: it would be lost.
    gate_turn: tokio::sync::Mutex<()>,
    reconcile_turn: tokio::sync::Mutex<()>,
    /// Overdue orders whose payment could not be closed at its provider, and until when the time-out
    /// job looks past them.
    unclosable: Mutex<HashMap<OrderNo, Instant>>,
    /// What somebody was woken for already: a kind of alert, and the order or row it was about.
    told: Mutex<HashSet<(AlertKind, u64)>>,
    /// Jobs whose last run ended in a panic.
    panicking: Mutex<BTreeSet<&'static str>>,
    /// Up to which payment the last comparison asked the providers, if it did not get to the end.
    asked_up_to: Mutex<Option<i64>>,
    totals_kept: totals::TotalsKept,
    demo: demo::Demo,
    stop: watch::Sender<bool>,
    jobs: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Join the parts. Where this process is a worker it starts at once: what is on the log is owed,
    /// whoever asked for the engine. Jobs start with [`Engine::run_jobs`].
    pub async fn open(
        settings: Settings,
        data: &Path,
        secret: &[u8],
        keys: SigningKeys,
        clock: SharedClock,
        parts: Parts,
    ) -> Result<Arc<Engine>, OpenError> {
        let Parts { gate, ledger, coordination, numbers, instance } = parts;
        let lanes = start_lanes(&settings, &gate, &coordination, &numbers)?;
        let kept = Kept::read(data);
        let sandbox = open_sandbox(&settings, data, secret, &clock)?;
        let alerts = Alerts::start_with(alert_options(&settings, &instance), kept.waiting.clone());
        let outbox_wake = Arc::new(Notify::new());
        let workers = settings.does(Role::Worker).then(|| {
            let wake = outbox_wake.clone();
            let adopter = (settings.profile == Profile::Cluster)
                .then(|| Arc::new(Adopter::new(gate.clone(), ledger.clone())));
            let book = Arc::new(WakingBook { ledger: ledger.clone(), wake, adopter });
            let options = worker_options(&settings);
            Workers::start(options, gate.clone(), book, clock.clone(), alerts.clone())
        });
        let engine = Arc::new(Engine {
            health: Health::new(&settings, kept, clock.now_ms()),
            outstanding: Mutex::default(),
            live_orders: Mutex::default(),
            data: data.to_owned(),
            instance,
            news: News::new(NewsOptions {
                streams_max: settings.push.streams_max,
                streams_per_user_max: settings.push.streams_per_user_max,
                queue_max: settings.push.queue_max,
            }),
            settings,
            clock,
            keys,
            numbers,
            gate,
            lanes,
            ledger,
            coordination,
            workers,
            alerts,
            providers: providers(&sandbox),
            sandbox,
            catalogue: Catalogue::default(),
            outbox_wake,
            refund_wake: Arc::new(Notify::new()),
            warm_wake: Arc::new(Notify::new()),
            reconcile_wake: Arc::new(Notify::new()),
            unclosable: Mutex::default(),
            told: Mutex::default(),
            panicking: Mutex::default(),
            asked_up_to: Mutex::default(),
            gate_turn: tokio::sync::Mutex::new(()),
            reconcile_turn: tokio::sync::Mutex::new(()),
            totals_kept: totals::TotalsKept::default(),
            demo: demo::Demo::default(),
            stop: watch::Sender::new(false),
            jobs: Mutex::default(),
        });
        engine.catalogue.refresh(&*engine.ledger, engine.clock.now_ms()).await?;
        if engine.settings.profile == Profile::Solo {
            // The data are ours alone, so nobody is in the middle of it.
            engine.undo_cut_off_adjusts().await;
        }
        Ok(engine)
    }

    /// Is this process for that? Solo is for everything.
    pub fn does(&self, role: Role) -> bool {
        self.settings.does(role)
    }

    /// Claims settled per second lately; nothing is known of it where no worker runs.
    pub fn rate_per_s(&self) -> f64 {
        self.workers.as_ref().map_or(0.0, WorkersHandle::rate_per_s)
    }

    /// A number for something that is done once. Nothing is numbered while another process may hold
    /// the node.
    fn number(&self) -> Option<OrderNo> {
        may_number(&*self.coordination, &self.numbers).then(|| self.numbers.next())
    }

    /// The jobs that a bug keeps from working, by name.
    pub fn jobs_panicking(&self) -> Vec<&'static str> {
        self.panicking.lock().iter().copied().collect()
    }

    /// Wakes somebody, once for each `about`: what waits is looked at again and again, and says the
    /// same each time.
    fn alert_once(&self, about: u64, alert: Alert) {
        {
            let mut told = self.told.lock();
            if told.len() >= TOLD_MAX {
                // Told twice is better than never.
                told.clear();
            }
            if !told.insert((alert.kind, about)) {
                return;
            }
        }
        self.alerts.raise(alert);
    }

    /// Failed claims that are due are looked for now and not at the next poll.
    fn retry_now(&self) {
        if let Some(workers) = &self.workers {
            workers.retry_now();
        }
    }

    /// Something was written to the outbox: both who empty it look now and not at the next poll.
    fn wake_outbox(&self) {
        self.outbox_wake.notify_one();
        self.refund_wake.notify_one();
    }

    pub fn run_jobs(self: &Arc<Self>) {
        let mut handles = jobs::start(self, &self.stop.subscribe());
        handles.extend(health::start(self, &self.stop.subscribe()));
        handles.push(tokio::spawn(hear_hints(Arc::downgrade(self))));
        // One process of the cluster plays the bank.
        if let Some(sandbox) = self.sandbox.clone().filter(|_| self.does(Role::Jobs)) {
            let sink = Arc::new(paying::Notices(self.clone()));
            let mut stop = self.stop.subscribe();
            handles.push(tokio::spawn(async move {
                let stopped = async move {
                    let _ = stop.wait_for(|stop| *stop).await;
                };
                sandbox.deliver(sink, stopped).await;
            }));
        }
        self.jobs.lock().extend(handles);
    }

    /// Decide what waits in the lanes, then stop everything. What is on the log stays there.
    pub async fn stop(self: &Arc<Self>) {
        self.health.stop_watching();
        self.news.close();
        self.lanes.stop().await;
        self.stop.send_replace(true);
        let jobs: Vec<_> = self.jobs.lock().drain(..).collect();
        for job in jobs {
            // The listener for hints has nothing to finish.
            if job.await.is_err_and(|error| error.is_panic()) {
                tracing::error!("a job ended with a panic");
            }
        }
        if let Some(workers) = &self.workers {
            workers.stop().await;
        }
        self.alerts.stop().await;
        // What could not be delivered is delivered after the next start.
        if let Err(error) = self.keep_alerts().await {
            tracing::warn!(%error, "alerts that wait for the webhook cannot be kept");
        }
    }

    /// An item as pages show it, if the ledger has published it. An error if nobody can tell.
    pub async fn item_on_show(&self, item: ItemId) -> ledger::Result<Option<OnShow>> {
        self.catalogue.item(item, &*self.ledger).await
    }

    pub async fn activity_on_show(&self, id: ActivityId) -> ledger::Result<Option<Arc<Activity>>> {
        self.catalogue.activity(id, &*self.ledger).await
    }

    pub(crate) async fn refresh_catalogue(&self) {
        self.catalogue.outdate();
        if let Err(error) = self.catalogue.refresh(&*self.ledger, self.clock.now_ms()).await {
            tracing::warn!(%error, "the catalogue could not be refreshed, the job will");
        }
    }
}

fn start_lanes(
    settings: &Settings,
    gate: &Arc<dyn Gate>,
    coordination: &Arc<dyn Coordination>,
    numbers: &Arc<OrderNumbers>,
) -> Result<Lanes, OpenError> {
    let options = LaneOptions {
        queue_max: settings.lane.queue_max,
        batch_max: settings.lane.batch_max,
        sold_out_ms_max: settings.gate.sold_out_cache_ms_max,
    };
    let (coordination, node_of) = (coordination.clone(), numbers.clone());
    let may_number = Arc::new(move || may_number(&*coordination, &node_of));
    let lanes = Lanes::start(options, gate.clone(), numbers.clone(), may_number);
    lanes.map_err(OpenError::Lanes)
}

/// May this process hand out numbers now? Then they are of the node that it holds now.
fn may_number(coordination: &dyn Coordination, numbers: &OrderNumbers) -> bool {
    let ours = coordination.node_is_ours();
    numbers.set_node(coordination.node());
    ours
}

/// What the other instances tell: pass it on to those who listen here.
async fn hear_hints(engine: Weak<Engine>) {
    let Some(mut hints) = engine.upgrade().map(|engine| engine.coordination.hints()) else {
        return;
    };
    loop {
        let hint = tokio::time::timeout(HINT_ROUND, hints.recv()).await;
        let Some(engine) = engine.upgrade() else { return };
        if *engine.stop.borrow() {
            return;
        }
        match hint {
            Ok(Ok(Hint::Orders { orders })) => engine.news.tell(&orders),
            Ok(Ok(Hint::Units { item })) => engine.lanes.forget(item),
            // Too many to keep up with: buyers poll, and a cached "no" is at most a second old.
            Ok(Err(RecvError::Lagged(_))) | Err(_) => {}
            Ok(Err(RecvError::Closed)) => return,
        }
    }
}

fn open_sandbox(
    settings: &Settings,
    data: &Path,
    secret: &[u8],
    clock: &SharedClock,
) -> Result<Option<Sandbox>, OpenError> {
    let Some(sandbox) = &settings.sandbox else { return Ok(None) };
    // Known to both companies, and to be had from our own secret without keeping another file.
    let mut notify_secret = Sha256::new();
    notify_secret.update(b"seckill sandbox notices v1");
    notify_secret.update(secret);
    let notify_secret: String =
        notify_secret.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let options = SandboxOptions {
        merchant: sandbox.merchant.clone(),
        notify_secret,
        ..SandboxOptions::default()
    };
    let file = &sandbox.file;
    let path = if file.as_os_str().is_empty() { data.join(SANDBOX_FILE) } else { file.to_owned() };
    make_file_private(&path).map_err(OpenError::SandboxFile)?;
    let sandbox = Sandbox::open(&path, options, clock.clone());
    sandbox.map(Some).map_err(OpenError::Sandbox)
}

fn providers(sandbox: &Option<Sandbox>) -> Providers {
    let mut providers = Providers::new();
    if let Some(sandbox) = sandbox {
        let provider = WithTimeout::around(Arc::new(sandbox.clone()), PROVIDER_ANSWER_MAX);
        providers.insert(sandbox.name().into(), provider);
    }
    providers
}

fn worker_options(settings: &Settings) -> orders::Options {
    let orders = &settings.orders;
    orders::Options {
        batch_claims_max: orders.batch_claims_max,
        retry_ladder_ms: orders.retry_ladder_ms.iter().map(|step| *step as Millis).collect(),
        pause_ms_min: orders.pause_ms_min,
        pause_ms_max: orders.pause_ms_max,
        retry_batch_max: orders.retry_batch_max,
        retry_poll_ms: orders.retry_poll_ms,
    }
}

fn alert_options(settings: &Settings, instance: &str) -> AlertOptions {
    let webhook_url = settings.alerts.webhook_url.expose();
    AlertOptions {
        webhook_url: (!webhook_url.is_empty()).then(|| webhook_url.to_owned()),
        instance: instance.to_owned(),
        webhook_timeout_ms: settings.alerts.webhook_timeout_ms,
        ..AlertOptions::default()
    }
}

/// The ledger as the workers see it, which also wakes the outbox: a settled batch owes news, and
/// its buyers should not wait for the next poll. And it lets the gate know of orders it may have lost.
struct WakingBook {
    ledger: Arc<dyn Ledger>,
    wake: Arc<Notify>,
    /// Where the gate can lose claims.
    adopter: Option<Arc<Adopter>>,
}

#[async_trait]
impl OrderBook for WakingBook {
    async fn settle(&self, item: ItemId, claims: &[Claim]) -> Result<Settled, BookError> {
        let settled = self.ledger.settle(item, claims).await?;
        if let Some(adopter) = &self.adopter {
            adopter.settled(claims, &settled.created);
        }
        self.wake.notify_one();
        Ok(settled)
    }

    async fn defer(&self, failed: &[FailedClaim]) -> Result<(), BookError> {
        self.ledger.defer(failed).await
    }

    async fn due(&self, now_ms: Millis, limit: usize) -> Result<Vec<FailedClaim>, BookError> {
        self.ledger.due(now_ms, limit).await
    }
}

//! The engine: everything that sells, joined together, without HTTP.
//!
//! The only place where gate, workers, ledger and providers meet. The API above it translates
//! requests into these calls; the jobs beside it do what nobody asks for. Above this module nothing
//! knows which profile runs.

mod buying;
mod catalogue;
mod demo;
mod jobs;
mod news;
mod operating;
mod paying;
mod reconcile;
mod warming;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use gate::{Gate, LaneOptions, Lanes, solo};
use ledger::{Ledger, sqlite::SqliteLedger};
use orders::{AlertOptions, Alerts, Workers, WorkersHandle};
use parking_lot::Mutex;
use payment::{
    Provider, ProviderError,
    sandbox::{Sandbox, SandboxOptions},
};
use sale::{
    BookError, Claim, FailedClaim, ItemId, Keys, Millis, OrderBook, OrderNumbers, Settled,
    SharedClock,
};
use sha2::{Digest, Sha256};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

pub use buying::{ClaimAnswer, LookupError, OrderView};
pub use catalogue::{Catalogue, Snapshot};
pub use news::{Listener, News, NewsOptions, TooMany};
pub use operating::OperateError;
pub use paying::{NoticeFailure, PayError, Providers};
pub use reconcile::{Finding, ItemReport, ItemVerdict, RECONCILE_JOB, ReconcileError, Report};
pub use warming::{WarmError, Warmed};

use crate::config::Config;

/// The files of the solo profile in the data directory.
pub const LEDGER_FILE: &str = "ledger.db";
const SANDBOX_FILE: &str = "sandbox.db";

/// Solo is one node, so its order numbers are of node 0.
const SOLO_NODE: u16 = 0;

pub struct Engine {
    pub config: Config,
    pub clock: SharedClock,
    pub keys: Keys,
    pub numbers: Arc<OrderNumbers>,
    pub gate: Arc<dyn Gate>,
    pub lanes: Lanes,
    pub ledger: Arc<dyn Ledger>,
    pub workers: WorkersHandle,
    pub alerts: Alerts,
    pub providers: Providers,
    /// The built-in cashier, if it is switched on.
    pub sandbox: Option<Sandbox>,
    pub catalogue: Catalogue,
    pub news: Arc<News>,
    outbox_wake: Arc<Notify>,
    warm_wake: Arc<Notify>,
    /// Warming is safe to run twice at once, but wasteful: the later run would only bump the epoch.
    warm_turn: tokio::sync::Mutex<()>,
    reconcile_turn: tokio::sync::Mutex<()>,
    stop: watch::Sender<bool>,
    jobs: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Ledger(#[from] ledger::sqlite::OpenError),
    #[error(transparent)]
    Gate(#[from] solo::OpenError),
    #[error("the sandbox cannot be opened: {0}")]
    Sandbox(ProviderError),
    #[error("the lanes cannot be started: {0}")]
    Lanes(std::io::Error),
    #[error("the ledger cannot be read: {0}")]
    Read(#[from] ledger::LedgerError),
}

impl Engine {
    /// Open the solo engine on a data directory that is ours alone. The workers start at once: what
    /// is on the log is owed, whoever asked for the engine. Jobs start with [`Engine::run_jobs`].
    pub async fn open(
        config: Config,
        data: &Path,
        secret: &[u8],
        keys: Keys,
        clock: SharedClock,
    ) -> Result<Arc<Engine>, OpenError> {
        let (journal, books) = open_files(data.to_owned(), &config, clock.clone()).await?;
        let numbers = Arc::new(OrderNumbers::new(SOLO_NODE, clock.clone()));
        for seen in [journal.last_order_no(), books.last_order_no().await?].into_iter().flatten() {
            numbers.start_after(seen);
        }
        let gate: Arc<dyn Gate> = Arc::new(journal);
        let ledger: Arc<dyn Ledger> = Arc::new(books);
        let lane_options = LaneOptions {
            queue_max: config.lane.queue_max,
            batch_max: config.lane.batch_max,
            sold_out_ms_max: config.gate.sold_out_cache_ms_max,
        };
        let lanes = Lanes::start(lane_options, gate.clone(), numbers.clone(), clock.clone())
            .map_err(OpenError::Lanes)?;
        let sandbox = open_sandbox(&config, data, secret, &clock)?;
        let alerts = Alerts::start(alert_options(&config));
        let outbox_wake = Arc::new(Notify::new());
        let book = Arc::new(WakingBook { ledger: ledger.clone(), wake: outbox_wake.clone() });
        let workers = Workers::start(
            worker_options(&config),
            gate.clone(),
            book,
            clock.clone(),
            alerts.clone(),
        );
        let engine = Arc::new(Engine {
            news: News::new(NewsOptions {
                streams_max: config.push.streams_max,
                streams_per_user_max: config.push.streams_per_user_max,
                queue_max: config.push.queue_max,
            }),
            config,
            clock,
            keys,
            numbers,
            gate,
            lanes,
            ledger,
            workers,
            alerts,
            providers: providers(&sandbox),
            sandbox,
            catalogue: Catalogue::default(),
            outbox_wake,
            warm_wake: Arc::new(Notify::new()),
            warm_turn: tokio::sync::Mutex::new(()),
            reconcile_turn: tokio::sync::Mutex::new(()),
            stop: watch::Sender::new(false),
            jobs: Mutex::default(),
        });
        engine.catalogue.refresh(&*engine.ledger, engine.clock.now_ms()).await?;
        Ok(engine)
    }

    pub fn run_jobs(self: &Arc<Self>) {
        let mut handles = jobs::start(self, &self.stop.subscribe());
        if let Some(sandbox) = self.sandbox.clone() {
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
        self.news.close();
        self.lanes.stop().await;
        self.stop.send_replace(true);
        let jobs: Vec<_> = self.jobs.lock().drain(..).collect();
        for job in jobs {
            if job.await.is_err() {
                tracing::error!("a job ended with a panic");
            }
        }
        self.workers.stop().await;
        self.alerts.stop().await;
    }

    pub(crate) async fn refresh_catalogue(&self) {
        if let Err(error) = self.catalogue.refresh(&*self.ledger, self.clock.now_ms()).await {
            tracing::warn!(%error, "the catalogue could not be refreshed, the job will");
        }
    }
}

/// Reading back a large journal takes a moment; not on an async thread.
async fn open_files(
    data: PathBuf,
    config: &Config,
    clock: SharedClock,
) -> Result<(solo::SoloGate, SqliteLedger), OpenError> {
    let options = solo::SoloOptions { log_claims_max: config.gate.log_claims_max };
    let opening = tokio::task::spawn_blocking(move || {
        let books = SqliteLedger::open(&data.join(LEDGER_FILE), clock.clone())?;
        let journal = solo::SoloGate::open(&data, options, clock)?;
        Ok((journal, books))
    });
    opening.await.map_err(|e| OpenError::Lanes(std::io::Error::other(e)))?
}

fn open_sandbox(
    config: &Config,
    data: &Path,
    secret: &[u8],
    clock: &SharedClock,
) -> Result<Option<Sandbox>, OpenError> {
    if !config.payment.sandbox {
        return Ok(None);
    }
    // Known to both companies, and to be had from our own secret without keeping another file.
    let mut notify_secret = Sha256::new();
    notify_secret.update(b"seckill sandbox notices v1");
    notify_secret.update(secret);
    let notify_secret: String =
        notify_secret.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let options = SandboxOptions {
        merchant: config.payment.sandbox_merchant.clone(),
        notify_secret,
        ..SandboxOptions::default()
    };
    let sandbox = Sandbox::open(&data.join(SANDBOX_FILE), options, clock.clone());
    sandbox.map(Some).map_err(OpenError::Sandbox)
}

fn providers(sandbox: &Option<Sandbox>) -> Providers {
    let mut providers = Providers::new();
    if let Some(sandbox) = sandbox {
        providers.insert(sandbox.name().into(), Arc::new(sandbox.clone()));
    }
    providers
}

fn worker_options(config: &Config) -> orders::Options {
    let orders = &config.orders;
    orders::Options {
        batch_claims_max: orders.batch_claims_max,
        retry_ladder_ms: orders.retry_ladder_ms.iter().map(|step| *step as Millis).collect(),
        pause_ms_min: orders.pause_ms_min,
        pause_ms_max: orders.pause_ms_max,
        retry_batch_max: orders.retry_batch_max,
        retry_poll_ms: orders.retry_poll_ms,
    }
}

fn alert_options(config: &Config) -> AlertOptions {
    let webhook_url = config.alerts.webhook_url.expose();
    AlertOptions {
        webhook_url: (!webhook_url.is_empty()).then(|| webhook_url.to_owned()),
        webhook_timeout_ms: config.alerts.webhook_timeout_ms,
        ..AlertOptions::default()
    }
}

/// The ledger as the workers see it, which also wakes the outbox: a settled batch owes news, and
/// its buyers should not wait for the next poll.
struct WakingBook {
    ledger: Arc<dyn Ledger>,
    wake: Arc<Notify>,
}

#[async_trait]
impl OrderBook for WakingBook {
    async fn settle(&self, item: ItemId, claims: &[Claim]) -> Result<Settled, BookError> {
        let settled = self.ledger.settle(item, claims).await?;
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

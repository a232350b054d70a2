//! The jobs: what has to happen although nobody asks for it.
//!
//! One file per job, with what it remembers between its runs; [`runner`] is the loop in which each of
//! them runs.

mod archive;
mod ask;
mod catalogue;
mod count;
mod delivery;
mod door;
mod fair_start;
mod hints;
mod lifecycle;
mod mend;
mod news;
#[cfg(test)]
mod outage;
mod publish;
mod reconcile;
mod refund;
mod release;
mod resume;
mod runner;
mod timeout;
mod upkeep;
mod warm;
mod webhooks;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

use self::{
    archive::Archive,
    ask::Ask,
    catalogue::RefreshCatalogue,
    count::Count,
    door::RefreshDoor,
    fair_start::PrepareDraws,
    hints::{hear_hints, tell_of_news},
    lifecycle::Lifecycle,
    mend::{Mend, SUSPECTS_POLL_MS},
    news::News,
    publish::Publish,
    reconcile::ReconcileAll,
    refund::Refund,
    release::Release,
    resume::Resume,
    runner::Runner,
    timeout::Timeout,
    upkeep::Upkeep,
    warm::Warm,
    webhooks::Dispatch,
};
use crate::{
    Catalogue, FairStart, Payments, Push, Webhooks,
    health::Health,
    payments::Notices,
    reconcile::Reconcile,
    sale_tokens::Hoarding,
    settings::ProcessRole,
    shared::{AnyError, Shared},
    warming::Warming,
};

/// So old is what an instance knows of those who have to wait, at the most.
const DOOR_REFRESH_MS: u64 = 1_000;
/// Rooms for draws are opened by what pages show, which is read anew every second.
const DRAWS_REFRESH_MS: u64 = 500;

/// What is to be moved to the archive has been over for months.
const ARCHIVE_POLL_MS: u64 = 10 * 60 * 1_000;

pub(crate) type JobResult = Result<Progress, AnyError>;

/// What a job does in one run. A run that was cut off, or failed, is made again.
#[async_trait]
pub(crate) trait Job: Send + Sync {
    async fn run(&self) -> JobResult;
}

/// Whether a run left work behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    CaughtUp,
    /// It could go on at once.
    MoreToDo,
    /// What it compared would not hold still: worth another run before the usual time.
    AgainSoon,
}

impl Progress {
    /// After a batch: one that was full leaves more to do.
    fn after(full: bool) -> Progress {
        if full { Progress::MoreToDo } else { Progress::CaughtUp }
    }
}

/// When a job runs.
struct Schedule {
    every: Duration,
    /// It does not wait for its time if somebody wakes it.
    wake: Arc<Notify>,
    /// Run by one process of the cluster at a time.
    leased: bool,
    /// It has nothing to do right after the start.
    pauses_first: bool,
}

impl Schedule {
    fn every_ms(every_ms: u64) -> Schedule {
        let every = Duration::from_millis(every_ms);
        Schedule { every, wake: Arc::default(), leased: true, pauses_first: false }
    }

    fn woken_by(self, wake: &Arc<Notify>) -> Schedule {
        Schedule { wake: wake.clone(), ..self }
    }

    fn everywhere(self) -> Schedule {
        Schedule { leased: false, ..self }
    }

    fn pausing_first(self) -> Schedule {
        Schedule { pauses_first: true, ..self }
    }
}

/// What is spawned, of one type for all: a task of its own type is kilobytes of the same code again.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// All jobs, and the tasks in which they run.
pub(crate) struct Jobs {
    shared: Arc<Shared>,
    health: Arc<Health>,
    push: Arc<Push>,
    payments: Arc<Payments>,
    pub(crate) archive: Arc<Archive>,
    pub(crate) ask: Arc<Ask>,
    pub(crate) count: Arc<Count>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) news: Arc<News>,
    pub(crate) publish: Arc<Publish>,
    pub(crate) refund: Arc<Refund>,
    pub(crate) release: Arc<Release>,
    pub(crate) resume: Arc<Resume>,
    pub(crate) timeout: Arc<Timeout>,
    pub(crate) warm: Arc<Warm>,
    pub(crate) webhooks: Arc<Dispatch>,
    catalogue: Arc<RefreshCatalogue>,
    door: Arc<RefreshDoor>,
    draws: Arc<PrepareDraws>,
    mend: Arc<Mend>,
    reconcile: Arc<ReconcileAll>,
    upkeep: Arc<Upkeep>,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Jobs {
    #[allow(clippy::too_many_arguments, reason = "each is a component that a job works with")]
    pub(crate) fn new(
        shared: Arc<Shared>,
        catalogue: &Arc<Catalogue>,
        warming: &Arc<Warming>,
        payments: Arc<Payments>,
        reconcile: Arc<Reconcile>,
        push: Arc<Push>,
        webhooks: &Arc<Webhooks>,
        health: Arc<Health>,
        hoarding: Arc<Hoarding>,
        fair_start: Arc<FairStart>,
    ) -> Jobs {
        let s = || shared.clone();
        let (catalogue, warming) = (|| catalogue.clone(), || warming.clone());
        Jobs {
            archive: Arc::new(Archive { shared: s() }),
            ask: Arc::new(Ask::new(s(), payments.clone())),
            count: Arc::new(Count::new(s())),
            lifecycle: Arc::new(Lifecycle {
                shared: s(),
                catalogue: catalogue(),
                warming: warming(),
            }),
            news: Arc::new(News::new(&shared, push.clone())),
            publish: Arc::new(Publish { shared: s(), catalogue: catalogue() }),
            refund: Arc::new(Refund::new(&shared, payments.clone())),
            release: Arc::new(Release::new(&shared)),
            resume: Arc::new(Resume { shared: s(), catalogue: catalogue() }),
            timeout: Arc::new(Timeout::new(s(), payments.clone(), hoarding.clone())),
            door: Arc::new(RefreshDoor { hoarding }),
            draws: Arc::new(PrepareDraws { fair_start }),
            warm: Arc::new(Warm { shared: s(), warming: warming() }),
            webhooks: Arc::new(Dispatch::new(s(), webhooks.clone())),
            catalogue: Arc::new(RefreshCatalogue {
                catalogue: catalogue(),
                health: health.clone(),
            }),
            reconcile: Arc::new(ReconcileAll { reconcile }),
            mend: Arc::new(Mend { shared: s(), warming: warming() }),
            upkeep: Arc::new(Upkeep { shared: s() }),
            stop: watch::Sender::new(false),
            tasks: Mutex::default(),
            payments,
            push,
            health,
            shared,
        }
    }

    /// Starts the jobs of the roles of this process.
    pub(crate) fn start(&self) {
        let (settings, wake) = (&self.shared.settings.jobs, &self.shared.wake);
        let every = Schedule::every_ms;
        // What every process does for itself.
        self.start_job(
            "catalogue",
            &self.catalogue,
            every(settings.catalogue_refresh_ms).everywhere(),
        );
        let door = every(DOOR_REFRESH_MS).woken_by(&wake.door).everywhere();
        self.start_job("door", &self.door, door);
        if self.shared.settings.does(ProcessRole::Web) {
            self.start_job("draws", &self.draws, every(DRAWS_REFRESH_MS).everywhere());
        }
        self.start_job("upkeep", &self.upkeep, every(settings.warm_poll_ms).everywhere());
        // A load may take minutes; one that is cut off is begun anew by another process.
        self.spawn(self.looped("mend", &self.mend, every(SUSPECTS_POLL_MS).everywhere()));
        self.spawn(hear_hints(self.shared.clone(), self.push.clone()));
        if self.shared.is_cluster() {
            self.spawn(tell_of_news(self.shared.clone()));
        }
        self.spawn(self.push.clone().pass_on_admitted());
        self.spawn(self.push.clone().watch_stock());
        if !self.shared.settings.does(ProcessRole::Jobs) {
            return;
        }
        self.start_job("warm", &self.warm, every(settings.warm_poll_ms).woken_by(&wake.warm));
        self.start_job("publish", &self.publish, every(settings.warm_poll_ms));
        self.start_job("resume", &self.resume, every(settings.warm_poll_ms));
        // Everywhere: whichever of them is asked for its numbers has them. One counts, the others read that.
        self.start_job("count", &self.count, every(settings.count_every_ms).everywhere());
        self.start_job("lifecycle", &self.lifecycle, every(settings.warm_poll_ms));
        self.start_job("ask", &self.ask, every(settings.warm_poll_ms));
        self.start_job("timeout", &self.timeout, every(settings.timeout_poll_ms));
        self.spawn(self.timeout.clone().hear_reminders());
        // The outbox: each kind of rows has a job and a lease of its own.
        let outbox = |wake| every(settings.outbox_poll_ms).woken_by(wake);
        self.start_job("release", &self.release, outbox(&wake.release));
        self.start_job("news", &self.news, outbox(&wake.news));
        self.start_job("refund", &self.refund, outbox(&wake.refund));
        self.start_job("webhooks", &self.webhooks, outbox(&wake.webhooks));
        let reconcile = every(settings.reconcile_every_ms).woken_by(&wake.reconcile);
        self.start_job("reconcile", &self.reconcile, reconcile.pausing_first());
        let archive = every(ARCHIVE_POLL_MS).pausing_first();
        self.start_job("archive", &self.archive, archive);
        self.start_sandbox();
    }

    fn start_job<J: Job + 'static>(&self, name: &'static str, job: &Arc<J>, schedule: Schedule) {
        self.tasks.lock().push(tokio::spawn(self.looped(name, job, schedule)));
    }

    fn looped<J: Job + 'static>(
        &self,
        name: &'static str,
        job: &Arc<J>,
        schedule: Schedule,
    ) -> Task {
        let (shared, health, stop) =
            (self.shared.clone(), self.health.clone(), self.stop.subscribe());
        let runner = Runner { name, job: job.clone(), schedule, shared, health, stop };
        let run: Task = Box::pin(runner.run());
        Box::pin(ledger::in_share(ledger::Share::Jobs, run))
    }

    /// One process of the cluster plays the bank.
    fn start_sandbox(&self) {
        let Some(sandbox) = self.payments.sandbox().cloned() else { return };
        let (notices, mut stop) = (Arc::new(Notices(self.payments.clone())), self.stop.subscribe());
        self.tasks.lock().push(tokio::spawn(async move {
            let stopped = async move {
                let _ = stop.wait_for(|stop| *stop).await;
            };
            sandbox.deliver(notices, stopped).await;
        }));
    }

    /// Something that goes on beside the jobs until they are stopped, when it is cut off.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_task(Box::pin(task));
    }

    fn spawn_task(&self, task: Task) {
        let mut stop = self.stop.subscribe();
        self.tasks.lock().push(tokio::spawn(async move {
            tokio::select! {
                () = task => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }));
    }

    /// Lets every job finish its run.
    pub(crate) async fn stop(&self) {
        self.stop.send_replace(true);
        let tasks: Vec<_> = self.tasks.lock().drain(..).collect();
        for task in tasks {
            if task.await.is_err_and(|error| error.is_panic()) {
                tracing::error!("a job ended with a panic");
            }
        }
        self.ask.stop().await;
        self.release.stop().await;
        self.news.stop().await;
        self.refund.stop().await;
        self.webhooks.stop().await;
    }
}

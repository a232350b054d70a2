//! The loop of a job: it runs, sleeps until its time or until somebody wakes it, and runs again.
//!
//! A run that fails is told to the log once per outage and tried again; no job ever gives up.

use std::{any::Any, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use orders::AlertKind;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

use crate::Engine;

/// When a job that saw something move looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(20);

pub(crate) type JobError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type JobResult = Result<Progress, JobError>;

/// Whether a run left work behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    CaughtUp,
    /// It could go on at once.
    MoreToDo,
    /// What it looked at would not hold still: worth another look before the usual time.
    LookAgainSoon,
}

pub(super) struct Job {
    pub(super) name: &'static str,
    /// Run by one process of the cluster at a time.
    pub(super) leased: bool,
    pub(super) every: Duration,
    pub(super) wake: Arc<Notify>,
    pub(super) engine: Arc<Engine>,
    pub(super) stop: watch::Receiver<bool>,
}

impl Job {
    pub(super) fn everywhere(self) -> Job {
        Job { leased: false, ..self }
    }

    pub(super) fn spawn<F>(self, run: impl Fn(Arc<Engine>) -> F + Send + 'static) -> JoinHandle<()>
    where
        F: Future<Output = JobResult> + Send + 'static,
    {
        tokio::spawn(self.rounds(run))
    }

    /// For a job that has nothing to do right after the start.
    pub(super) fn after_a_pause<F>(
        mut self,
        run: impl Fn(Arc<Engine>) -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = JobResult> + Send + 'static,
    {
        tokio::spawn(async move {
            if self.pause().await {
                self.rounds(run).await;
            }
        })
    }

    async fn rounds<F>(mut self, run: impl Fn(Arc<Engine>) -> F)
    where
        F: Future<Output = JobResult>,
    {
        let mut failing = false;
        loop {
            if self.leased && self.engine.coordination.lead(self.name).await.is_none() {
                if self.pause().await {
                    continue;
                }
                return;
            }
            let done = AssertUnwindSafe(run(self.engine.clone())).catch_unwind().await;
            let done = done.unwrap_or_else(|panic| Err(self.panicked(&*panic)));
            match &done {
                Ok(_) if failing => tracing::info!(job = self.name, "job works again"),
                Err(error) if !failing => {
                    tracing::warn!(job = self.name, %error, "job failed, will try again");
                }
                _ => {}
            }
            if done.is_ok() {
                self.engine.panicking.lock().remove(self.name);
                self.engine.observe(AlertKind::JobPanicked, self.name, None);
            }
            failing = done.is_err();
            if *self.stop.borrow() {
                return;
            }
            let goes_on = match done {
                Ok(Progress::MoreToDo) => true,
                Ok(Progress::LookAgainSoon) => self.pause_for(self.every.min(LOOK_AGAIN)).await,
                Ok(Progress::CaughtUp) | Err(_) => self.pause().await,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// A bug must not end a job in silence: it wakes somebody, shows in `/readyz`, and the job is
    /// tried again like after any failure.
    fn panicked(&self, panic: &(dyn Any + Send)) -> JobError {
        let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        self.engine.panicking.lock().insert(self.name);
        self.engine.observe(AlertKind::JobPanicked, self.name, Some(said.clone()));
        format!("it panicked: {said}").into()
    }

    /// False when it is time to stop.
    async fn pause(&mut self) -> bool {
        self.pause_for(self.every).await
    }

    async fn pause_for(&mut self, pause: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            () = self.wake.notified() => true,
            _ = self.stop.wait_for(|stop| *stop) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_engine::{TestEngine, Webhook};

    #[tokio::test]
    async fn a_job_that_panics_is_told_of_and_tried_again() {
        let webhook = Webhook::open().await;
        let url = webhook.url();
        let night = TestEngine::without_a_sale(|settings| {
            settings.alerts.webhook_url = url;
            settings.alerts.resolve_after_ms = 0;
        })
        .await;
        let engine = night.engine.clone();
        let (runs, mut ran) = watch::channel(0);
        let stop = watch::Sender::new(false);
        let job = Job {
            name: "clumsy",
            leased: true,
            every: Duration::from_millis(1),
            wake: Arc::default(),
            engine: engine.clone(),
            stop: stop.subscribe(),
        };
        let job = job.spawn(move |_| {
            let runs = runs.clone();
            async move {
                runs.send_modify(|runs| *runs += 1);
                let ran = *runs.borrow();
                assert!(ran > 3, "too clumsy");
                Ok(Progress::CaughtUp)
            }
        });
        ran.wait_for(|ran| *ran == 3).await.unwrap();
        assert_eq!(engine.jobs_panicking(), ["clumsy"]);
        engine.tell_what_is_due().await;
        engine.tell_what_is_due().await;
        ran.wait_for(|ran| *ran > 4).await.unwrap();
        assert!(engine.jobs_panicking().is_empty(), "it works again");
        engine.tell_what_is_due().await;
        stop.send_replace(true);
        job.await.unwrap();
        engine.alerts.stop().await;
        let heard = webhook.heard();
        assert_eq!(heard.len(), 2, "{heard:?}");
        assert!(heard[0].contains("job_panicked") && heard[0].contains("too clumsy"), "{heard:?}");
        assert!(heard[1].contains("resolved") && heard[1].contains("clumsy"), "{heard:?}");
    }
}

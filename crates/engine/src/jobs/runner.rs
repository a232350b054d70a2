//! The loop of a job: it runs, sleeps until its time or until somebody wakes it, and runs again.
//!
//! A run that fails is told to the log once per outage and tried again; no job ever gives up.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::sync::watch;

use super::{Job, Progress, Schedule};
use crate::{
    health::Health,
    shared::{AnyError, Shared},
};

/// When a job runs again that saw something move.
const AGAIN_SOON: Duration = Duration::from_secs(20);

pub(super) struct Runner<J> {
    pub(super) name: &'static str,
    pub(super) job: Arc<J>,
    pub(super) schedule: Schedule,
    pub(super) shared: Arc<Shared>,
    pub(super) health: Arc<Health>,
    pub(super) stop: watch::Receiver<bool>,
}

impl<J: Job> Runner<J> {
    pub(super) async fn run(mut self) {
        if self.schedule.pauses_first && !self.pause().await {
            return;
        }
        let mut failing = false;
        loop {
            if self.schedule.leased && self.shared.leases.lead(self.name).await.is_none() {
                if self.pause().await {
                    continue;
                }
                return;
            }
            let done = AssertUnwindSafe(self.job.run()).catch_unwind().await;
            let done = done.unwrap_or_else(|panic| Err(self.panicked(&*panic)));
            match &done {
                Ok(_) if failing => tracing::info!(job = self.name, "job works again"),
                Err(error) if !failing => {
                    tracing::warn!(job = self.name, %error, "job failed, will try again");
                }
                _ => {}
            }
            if done.is_ok() {
                self.health.job_works(self.name);
            }
            failing = done.is_err();
            if *self.stop.borrow() {
                return;
            }
            let goes_on = match done {
                Ok(Progress::MoreToDo) => true,
                Ok(Progress::AgainSoon) => {
                    let pause = self.schedule.every.min(AGAIN_SOON);
                    self.pause_for(pause).await
                }
                Ok(Progress::CaughtUp) | Err(_) => self.pause().await,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// A bug must not end a job in silence: it wakes somebody, shows in `/readyz`, and the job is
    /// tried again like after any failure.
    fn panicked(&self, panic: &(dyn Any + Send)) -> AnyError {
        let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        self.health.job_panicked(self.name, &said);
        format!("it panicked: {said}").into()
    }

    /// False when it is time to stop.
    async fn pause(&mut self) -> bool {
        self.pause_for(self.schedule.every).await
    }

    async fn pause_for(&mut self, pause: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            () = self.schedule.wake.notified() => true,
            _ = self.stop.wait_for(|stop| *stop) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::{
        jobs::JobResult,
        test_engine::{TestEngine, Webhook},
    };

    /// Counts its runs, of which the first three panic.
    struct Clumsy(watch::Sender<u32>);

    #[async_trait]
    impl Job for Clumsy {
        async fn run(&self) -> JobResult {
            self.0.send_modify(|runs| *runs += 1);
            let ran = *self.0.borrow();
            assert!(ran > 3, "too clumsy");
            Ok(Progress::CaughtUp)
        }
    }

    #[tokio::test]
    async fn a_job_that_panics_is_told_of_and_tried_again() {
        let webhook = Webhook::open().await;
        let url = webhook.url();
        let shop = TestEngine::without_a_sale(|settings| {
            settings.alerts.webhook_url = url;
            settings.alerts.resolve_after_ms = 0;
        })
        .await;
        let engine = shop.engine.clone();
        let (runs, mut ran) = watch::channel(0);
        let stop = watch::Sender::new(false);
        let runner = Runner {
            name: "clumsy",
            job: Arc::new(Clumsy(runs)),
            schedule: Schedule::every_ms(1),
            shared: engine.shared.clone(),
            health: engine.health.clone(),
            stop: stop.subscribe(),
        };
        let job = tokio::spawn(runner.run());
        ran.wait_for(|ran| *ran == 3).await.unwrap();
        assert_eq!(engine.health.jobs_panicking(), ["clumsy"]);
        engine.health.tell_what_is_due().await;
        engine.health.tell_what_is_due().await;
        ran.wait_for(|ran| *ran > 4).await.unwrap();
        assert!(engine.health.jobs_panicking().is_empty(), "it works again");
        engine.health.tell_what_is_due().await;
        stop.send_replace(true);
        job.await.unwrap();
        engine.shared.alerts.stop().await;
        let heard = webhook.heard();
        assert_eq!(heard.len(), 2, "{heard:?}");
        assert!(heard[0].contains("job_panicked") && heard[0].contains("too clumsy"), "{heard:?}");
        assert!(heard[1].contains("resolved") && heard[1].contains("clumsy"), "{heard:?}");
    }
}

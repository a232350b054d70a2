//! The jobs: what has to happen although nobody asks for it.
//!
//! One file per job; [`runner`] is the loop in which each of them runs.

mod catalogue;
mod count;
mod lifecycle;
mod outbox;
mod publish;
mod refund;
mod runner;
mod timeout;
mod upkeep;
mod warm;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

use self::runner::Job;
pub(super) use self::runner::{JobError, JobResult, Progress};
use crate::{Engine, settings::Role};

/// Calls of payment providers that a job makes at the same time.
pub(super) const PROVIDER_CALLS_MAX: usize = 16;

/// Starts the jobs of these roles; they end when `stop` says so.
pub(super) fn start(engine: &Arc<Engine>, stop: &watch::Receiver<bool>) -> Vec<JoinHandle<()>> {
    let settings = &engine.settings.jobs;
    let job = |name, every_ms, wake: &Arc<Notify>| Job {
        name,
        leased: true,
        every: Duration::from_millis(every_ms),
        wake: wake.clone(),
        engine: engine.clone(),
        stop: stop.clone(),
    };
    let nobody = Arc::new(Notify::new());
    // What every process does for itself.
    let mut handles = vec![
        job("catalogue", settings.catalogue_refresh_ms, &nobody)
            .everywhere()
            .spawn(|e| async move { e.show_catalogue().await }),
        job("upkeep", settings.warm_poll_ms, &nobody)
            .everywhere()
            .spawn(|e| async move { e.upkeep().await }),
    ];
    if engine.does(Role::Jobs) {
        handles.extend([
            job("warm", settings.warm_poll_ms, &engine.warm_wake)
                .spawn(|e| async move { e.warming().await }),
            job("publish", settings.warm_poll_ms, &nobody)
                .spawn(|e| async move { e.publish_due().await }),
            // Each for itself: whichever of them is asked for its numbers has them.
            job("count", settings.count_every_ms, &nobody)
                .everywhere()
                .spawn(|e| async move { e.count_waiting().await }),
            job("lifecycle", settings.warm_poll_ms, &nobody)
                .spawn(|e| async move { e.lifecycle().await }),
            job("timeout", settings.timeout_poll_ms, &nobody)
                .spawn(|e| async move { e.time_out().await }),
            job("outbox", settings.outbox_poll_ms, &engine.outbox_wake)
                .spawn(|e| async move { e.deliver_outbox().await }),
            job("refund", settings.outbox_poll_ms, &engine.refund_wake)
                .spawn(|e| async move { e.deliver_refunds().await }),
            job("reconcile", settings.reconcile_every_ms, &engine.reconcile_wake).after_a_pause(
                |e| async move {
                    let report = e.reconcile(true).await?;
                    // A stock change that was cut off is undone when it is old enough.
                    let unfinished = report.items.iter().any(|item| item.adjusting != 0);
                    let again = report.moving > 0 || unfinished;
                    Ok(if again { Progress::LookAgainSoon } else { Progress::CaughtUp })
                },
            ),
        ]);
    }
    handles
}

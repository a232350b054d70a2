//! Compares gate, ledger and providers by itself, and heals what differs.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Job, JobResult, Progress};
use crate::reconcile::Reconcile;

pub(crate) struct ReconcileAll {
    pub(super) reconcile: Arc<Reconcile>,
}

#[async_trait]
impl Job for ReconcileAll {
    async fn run(&self) -> JobResult {
        let report = self.reconcile.run_by_itself().await?;
        // A stock change that was cut off is undone when it is old enough.
        let unfinished = report.items.iter().any(|item| item.adjusting != 0);
        let again = report.moving > 0 || unfinished;
        Ok(if again { Progress::AgainSoon } else { Progress::CaughtUp })
    }
}

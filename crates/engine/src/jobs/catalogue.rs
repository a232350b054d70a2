//! Keeps what pages show up to date.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Job, JobResult, Progress};
use crate::{Catalogue, health::Health, settings::ProcessRole, shared::Shared};

pub(crate) struct RefreshCatalogue {
    pub(super) shared: Arc<Shared>,
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) health: Arc<Health>,
}

#[async_trait]
impl Job for RefreshCatalogue {
    /// Pages of a process without jobs come from the copy that the others keep for it; only
    /// if there is none is the ledger asked.
    async fn run(&self) -> JobResult {
        let coordination = &self.shared.coordination;
        let has_jobs = self.shared.settings.does(ProcessRole::Jobs);
        let copy = if has_jobs { None } else { coordination.catalogue().await };
        if let Some(activities) = copy {
            self.catalogue.show(activities);
        } else {
            self.catalogue.refresh().await?;
            coordination.put_catalogue(&self.catalogue.snapshot().activities).await;
        }
        self.health.catalogue_is_fresh();
        Ok(Progress::CaughtUp)
    }
}

//! Keeps what pages show up to date.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Job, JobResult, Progress};
use crate::{Catalogue, health::Health, settings::Role, shared::Shared};

pub(crate) struct RefreshCatalogue {
    shared: Arc<Shared>,
    catalogue: Arc<Catalogue>,
    health: Arc<Health>,
}

impl RefreshCatalogue {
    pub(crate) fn new(
        shared: Arc<Shared>,
        catalogue: Arc<Catalogue>,
        health: Arc<Health>,
    ) -> RefreshCatalogue {
        RefreshCatalogue { shared, catalogue, health }
    }
}

#[async_trait]
impl Job for RefreshCatalogue {
    /// Pages of a process without jobs come from the copy that the others keep for it; only
    /// if there is none is the ledger asked.
    async fn run(&self) -> JobResult {
        match self.shared.coordination.catalogue().await {
            Some(activities) if !self.shared.settings.does(Role::Jobs) => {
                self.catalogue.show(activities);
            }
            _ => {
                self.catalogue.refresh().await?;
                self.shared.coordination.put_catalogue(&self.catalogue.snapshot().activities).await;
            }
        }
        self.health.catalogue_is_fresh();
        Ok(Progress::CaughtUp)
    }
}

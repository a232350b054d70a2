//! Keeps what pages show up to date.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Job, JobResult, Progress};
use crate::{Catalogue, health::Health};

pub(crate) struct RefreshCatalogue {
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) health: Arc<Health>,
}

#[async_trait]
impl Job for RefreshCatalogue {
    async fn run(&self) -> JobResult {
        self.catalogue.refresh().await?;
        self.health.catalogue_is_fresh();
        Ok(Progress::CaughtUp)
    }
}

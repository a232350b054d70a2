//! Opens rooms for draws in time, in every process that buyers come to.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Job, JobResult, Progress};
use crate::FairStart;

pub(crate) struct PrepareDraws {
    pub(super) fair_start: Arc<FairStart>,
}

#[async_trait]
impl Job for PrepareDraws {
    async fn run(&self) -> JobResult {
        self.fair_start.refresh().await?;
        Ok(Progress::CaughtUp)
    }
}

//! Reads who has to wait and which lists of buyers there are, so that claims and tokens find it in memory.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Job, JobResult, Progress};
use crate::sale_tokens::Hoarding;

pub(crate) struct RefreshDoor {
    pub(super) hoarding: Arc<Hoarding>,
}

#[async_trait]
impl Job for RefreshDoor {
    async fn run(&self) -> JobResult {
        self.hoarding.refresh().await?;
        Ok(Progress::CaughtUp)
    }
}

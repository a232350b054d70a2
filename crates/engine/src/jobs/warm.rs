//! Brings items to the gate before their sale opens, and keeps them there.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Job, JobResult, Progress};
use crate::{shared::Shared, warming::Warming};

pub(crate) struct Warm {
    pub(super) shared: Arc<Shared>,
    pub(super) warming: Arc<Warming>,
}

#[async_trait]
impl Job for Warm {
    async fn run(&self) -> JobResult {
        self.warming.warm_due(self.shared.now_ms()).await?;
        Ok(Progress::CaughtUp)
    }
}

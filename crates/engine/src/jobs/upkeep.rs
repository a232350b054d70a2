//! Looks after the gate of this process.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Job, JobResult, Progress};
use crate::shared::Shared;

pub(crate) struct Upkeep {
    pub(super) shared: Arc<Shared>,
}

#[async_trait]
impl Job for Upkeep {
    async fn run(&self) -> JobResult {
        // A part of the gate that does not answer keeps the others from nothing.
        let kept = self.shared.gate.upkeep().await;
        // What pages show of it.
        self.shared.gate.look().await;
        kept?;
        Ok(Progress::CaughtUp)
    }
}

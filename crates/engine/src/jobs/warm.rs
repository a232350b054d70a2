//! Brings items to the gate before their sale opens, and keeps them there.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Job, JobResult, Progress};
use crate::{shared::Shared, warming::Warming};

pub(crate) struct Warm {
    shared: Arc<Shared>,
    warming: Arc<Warming>,
}

impl Warm {
    pub(crate) fn new(shared: Arc<Shared>, warming: Arc<Warming>) -> Warm {
        Warm { shared, warming }
    }
}

#[async_trait]
impl Job for Warm {
    async fn run(&self) -> JobResult {
        self.warming.warm_due(self.shared.now_ms()).await?;
        Ok(Progress::CaughtUp)
    }
}

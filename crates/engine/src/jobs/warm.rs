//! Brings items to the gate before their sale opens, and keeps them there.

use super::{JobResult, Progress};
use crate::Engine;

impl Engine {
    pub(crate) async fn warming(&self) -> JobResult {
        self.warm_due(self.clock.now_ms()).await?;
        Ok(Progress::CaughtUp)
    }
}

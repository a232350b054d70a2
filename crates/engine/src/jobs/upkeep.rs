//! Looks after the gate of this process, and mends what it may have lost.

use super::{JobResult, Progress};
use crate::{Engine, WarmError};

impl Engine {
    /// Look after the gate: whoever sees that it lost writes mends it.
    pub(crate) async fn upkeep(&self) -> JobResult {
        // A part of the gate that does not answer keeps the others from nothing.
        let kept = self.gate.upkeep().await;
        self.mend_suspects().await;
        // Reading what is there also refreshes what pages show of it.
        let read = self.gate.loaded().await;
        kept.and(read)?;
        Ok(Progress::CaughtUp)
    }

    async fn mend_suspects(&self) {
        use WarmError::{Ended, NotPublished, UnknownItem};
        let suspects = self.gate.suspects();
        // One process is enough; the others see the new epoch.
        if suspects.is_empty() || self.coordination.lead("rebuild").await.is_none() {
            return;
        }
        for item in suspects {
            match self.rebuild(item).await {
                Ok(warmed) => tracing::warn!(%item, epoch = warmed.epoch,
                    "the gate may have lost writes and was rebuilt"),
                // Nothing will be sold any more.
                Err(Ended | NotPublished | UnknownItem) => self.gate.forget_suspect(item),
                Err(error) => tracing::warn!(%item, %error, "the gate could not be rebuilt yet"),
            }
        }
    }
}

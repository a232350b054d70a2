//! Looks after the gate of this process, and mends what it may have lost.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};

use super::{Job, JobResult, Progress};
use crate::{
    shared::Shared,
    warming::{LOADS_AT_ONCE_MAX, WarmError, Warming},
};

pub(crate) struct Upkeep {
    pub(super) shared: Arc<Shared>,
    pub(super) warming: Arc<Warming>,
}

impl Upkeep {
    async fn mend_suspects(&self) {
        use WarmError::{Ended, NotPublished, UnknownItem};
        let suspects = self.shared.gate.suspects();
        // One process is enough; the others see the new epoch.
        if suspects.is_empty() || self.shared.leases.lead("rebuild").await.is_none() {
            return;
        }
        let mend = |item| async move {
            match self.warming.mend(item).await {
                Ok(Some(warmed)) => tracing::warn!(%item, epoch = warmed.epoch,
                    "the gate may have lost writes and was rebuilt"),
                // Somebody is at it.
                Ok(None) => {}
                // Nothing will be sold any more.
                Err(Ended | NotPublished | UnknownItem) => self.shared.gate.forget_suspect(item),
                Err(error) => tracing::warn!(%item, %error, "the gate could not be rebuilt yet"),
            }
        };
        stream::iter(suspects).for_each_concurrent(LOADS_AT_ONCE_MAX, mend).await;
    }
}

#[async_trait]
impl Job for Upkeep {
    /// Look after the gate: whoever sees that it lost writes mends it.
    async fn run(&self) -> JobResult {
        // A part of the gate that does not answer keeps the others from nothing.
        let kept = self.shared.gate.upkeep().await;
        self.mend_suspects().await;
        // Reading what is there also refreshes what pages show of it.
        let read = self.shared.gate.loaded_lately().await;
        kept.and(read)?;
        Ok(Progress::CaughtUp)
    }
}

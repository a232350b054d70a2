//! Mends what the gate may have lost, as this process sees it.
//!
//! Beside the upkeep and not in it: a large item takes minutes to load, and meanwhile this process still
//! acknowledges what was settled, finishes moves and counts what waits.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};

use super::{Job, JobResult, Progress};
use crate::{
    shared::Shared,
    warming::{
        LOADS_AT_ONCE_MAX,
        WarmError::{Ended, NotPublished, UnknownItem},
        Warming,
    },
};

/// How often it is looked whether anything is suspect. Nobody is asked for that, and an item that is suspect
/// is shut until it is mended.
pub(super) const SUSPECTS_POLL_MS: u64 = 50;

pub(crate) struct Mend {
    pub(super) shared: Arc<Shared>,
    pub(super) warming: Arc<Warming>,
}

#[async_trait]
impl Job for Mend {
    async fn run(&self) -> JobResult {
        let suspects = self.shared.gate.suspects();
        // One process is enough; the others see the new epoch.
        if suspects.is_empty() || self.shared.leases.lead("rebuild").await.is_none() {
            return Ok(Progress::CaughtUp);
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
        if !self.shared.gate.suspects().is_empty() {
            // Somebody else is at it, or cannot be reached.
            tokio::time::sleep(Duration::from_millis(self.shared.settings.jobs.warm_poll_ms)).await;
        }
        Ok(Progress::CaughtUp)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::Ordering, time::Duration};

    use crate::test_engine::TestEngine;

    #[tokio::test]
    async fn the_gate_is_looked_after_while_an_item_is_mended() {
        const SOON: Duration = Duration::from_secs(10);
        let (shop, activity) = TestEngine::with_a_sale(|s| s.jobs.warm_poll_ms = 1).await;
        let engine = &shop.engine;
        // It takes as long as somebody else has the turn.
        let turn = engine.shared.gate_turns.of(activity.items[0].id).await;
        shop.gate.suspects.lock().push(activity.items[0].id);
        engine.run_jobs();
        let looked_after = async |times| {
            while shop.gate.upkeeps.load(Ordering::SeqCst) < times {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(SOON, looked_after(10)).await.expect("upkeep goes on");
        // And the end does not wait for it.
        tokio::time::timeout(SOON, engine.stop()).await.expect("it is cut off");
        drop(turn);
    }
}

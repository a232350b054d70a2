//! The retry loop: claims that failed for a reason of their own get their next try when it is due.
//!
//! The ledger is asked which claims are due, rather than a timer kept per claim: a restart then has
//! nothing to restore, and any worker of a cluster may do the work. Two workers trying the same
//! claim at the same time is harmless, because settling twice is a no-op.

use std::{sync::Arc, time::Duration};

use sale::{BookError, FailedClaim};
use tracing::error;

use crate::{
    Options, meters,
    outage::Stopped,
    settler::{Settler, TriesBefore, by_item},
    workers::Shared,
};

pub(crate) struct Retries {
    pub(crate) settler: Settler,
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: Options,
}

impl Retries {
    pub(crate) async fn run(mut self) {
        while let Ok(due) = self.due().await {
            let full = due.len() >= self.options.retry_batch_max;
            if self.try_again(due).await.is_err() {
                break;
            }
            // A full round means there is more. Otherwise wait for the next round, even if some
            // claim is already due again: a claim that fails must not spin this loop.
            if !full && !self.wait().await {
                break;
            }
            if self.settler.stop.is_stopped() {
                break;
            }
        }
    }

    async fn due(&mut self) -> Result<Vec<FailedClaim>, Stopped> {
        let mut backoff = self.settler.backoff;
        loop {
            let now_ms = self.settler.clock.now_ms();
            match self.settler.book.due(now_ms, self.options.retry_batch_max).await {
                // A reading is nobody's fault: whatever the ledger says against it, ask again.
                Err(fault) => {
                    self.settler.ledger.begin_reading(&cause(fault));
                    if !self.settler.stop.sleep(backoff.next()).await {
                        return Err(Stopped);
                    }
                }
                Ok(due) => {
                    self.settler.ledger.end_reading();
                    return Ok(due);
                }
            }
        }
    }

    async fn try_again(&mut self, due: Vec<FailedClaim>) -> Result<(), Stopped> {
        let tries_before: TriesBefore =
            due.iter().map(|failed| (failed.claim.order_no, failed.tries)).collect();
        for (item, claims) in by_item(due.into_iter().map(|failed| failed.claim)) {
            // What is held by somebody else stays due, and the next round comes soon.
            let pass = self.settler.settle(item, &claims, &tries_before).await?;
            for one in pass.stuck {
                // It stays due, so it is tried in every round until the ledger can note its step.
                meters::stuck();
                error!(order_no = %one.claim.order_no, cause = one.cause,
                    "the ledger cannot note that a retry failed");
            }
        }
        Ok(())
    }

    /// Until the next round is due or somebody calls for it. False if the workers must stop.
    async fn wait(&mut self) -> bool {
        let poll = Duration::from_millis(self.options.retry_poll_ms);
        tokio::select! {
            biased;
            () = self.settler.stop.stopped() => false,
            () = self.shared.retry_now.notified() => true,
            () = tokio::time::sleep(poll) => true,
        }
    }
}

fn cause(fault: BookError) -> String {
    match fault {
        BookError::Unavailable(cause) => cause,
        other => other.to_string(),
    }
}

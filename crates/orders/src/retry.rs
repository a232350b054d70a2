//! The retry loop: claims that failed for a reason of their own get their next try when it is due.
//!
//! The ledger is asked which claims are due, rather than a timer kept per claim: a restart then has
//! nothing to restore, and any worker of a cluster may do the work. Two workers trying the same
//! claim at the same time is harmless, because settling twice is a no-op.
//!
//! A next try is noted as a time of the wall's clock. After one that was ahead has been set right it would
//! be as late as the clock was wrong; so the ledger is asked for those whenever the clock is seen to have
//! stepped back, which a process that was away meanwhile must suppose.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sale::{BookError, FailedClaim, Millis};
use tracing::{error, warn};

use crate::{
    Options, meters,
    outage::Stopped,
    settler::{Settler, TriesBefore, by_item},
    workers::Shared,
};

/// A clock that goes back by less is one that is kept in step.
const STEP_MS_MIN: Millis = 10_000;

pub(crate) struct Retries {
    settler: Settler,
    shared: Arc<Shared>,
    options: Options,
    /// When the clock was last looked at, and what it said.
    looked: Option<(Instant, Millis)>,
}

impl Retries {
    pub(crate) fn new(settler: Settler, shared: Arc<Shared>, options: Options) -> Retries {
        Retries { settler, shared, options, looked: None }
    }

    pub(crate) async fn run(mut self) {
        loop {
            self.make_up_for_a_step_back().await;
            let Ok(due) = self.due().await else { break };
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

    /// Without an answer of the ledger it is asked again in the next round.
    async fn make_up_for_a_step_back(&mut self) {
        let (now, now_ms) = (Instant::now(), self.settler.clock.now_ms());
        let stepped_back = self.looked.is_none_or(|(then, then_ms)| {
            let passed_ms = Millis::try_from((now - then).as_millis()).unwrap_or(Millis::MAX);
            then_ms.saturating_add(passed_ms).saturating_sub(now_ms) > STEP_MS_MIN
        });
        if stepped_back {
            match self.settler.book.due_by_another_clock(now_ms).await {
                Ok(0) => {}
                Ok(claims) => {
                    warn!(
                        claims,
                        "the clock was set back: claims that wait for a later try are tried now"
                    );
                }
                Err(_) => return,
            }
        }
        self.looked = Some((now, now_ms));
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

//! Claims on their way from the lanes to those who listen, here and at other instances.
//!
//! The lanes must not wait for anybody, so a claim is put into a bounded queue, and only while somebody may
//! want to hear of it: at this instance, or at another one of the cluster. What does not fit is lost, as
//! hints may be: the buyer has the same from the answer to the claim.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use sale::Claim;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::Push;
use crate::coordination::Hint;

/// Claims that wait to be passed on.
const WAITING_MAX: usize = 20_000;
/// Claims in one message to the other instances.
const CLAIMS_AT_ONCE_MAX: usize = 500;
/// So long a crowd gathers before the next message.
const GATHER: Duration = Duration::from_millis(100);

/// A claim, and how many are on the log up to and including it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedClaim {
    pub claim: Claim,
    pub position: u64,
}

pub(crate) struct AdmittedClaims {
    /// Somebody at another instance may listen.
    elsewhere: bool,
    here: AtomicBool,
    passing: mpsc::Sender<QueuedClaim>,
    /// For the one who passes them on.
    waiting: Mutex<Option<mpsc::Receiver<QueuedClaim>>>,
}

impl AdmittedClaims {
    pub(crate) fn new(elsewhere: bool) -> AdmittedClaims {
        let (passing, waiting) = mpsc::channel(WAITING_MAX);
        AdmittedClaims {
            elsewhere,
            here: AtomicBool::new(false),
            passing,
            waiting: Mutex::new(Some(waiting)),
        }
    }

    /// From a lane.
    pub(crate) fn note(&self, claim: &Claim, ahead: u64) {
        if self.elsewhere || self.here.load(Ordering::Relaxed) {
            let queued = QueuedClaim { claim: claim.clone(), position: ahead + 1 };
            let _ = self.passing.try_send(queued);
        }
    }

    pub(super) fn somebody_listens(&self, here: bool) {
        self.here.store(here, Ordering::Relaxed);
    }
}

pub(super) async fn pass_on(push: &Push) {
    let Some(mut waiting) = push.shared.admitted.waiting.lock().take() else { return };
    let mut claims = Vec::new();
    while waiting.recv_many(&mut claims, CLAIMS_AT_ONCE_MAX).await > 0 {
        push.tell_queued(&claims);
        let full = claims.len() == CLAIMS_AT_ONCE_MAX;
        let told = std::mem::take(&mut claims);
        if push.shared.is_cluster() {
            push.shared.coordination.tell(&Hint::Queued { claims: told }).await;
        }
        if !full {
            tokio::time::sleep(GATHER).await;
        }
    }
}

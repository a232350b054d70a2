//! Who may have a connection: every share has one of its own, the rest is for whoever comes first.
//!
//! Long reads (all orders of an item) take minutes where others take milliseconds, so they use none of
//! those that belong to a share, and at most half of the rest: while one is under way a lease is still
//! renewed in time.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::Share;

pub(super) struct Permits {
    own: [Arc<Semaphore>; Share::ALL.len()],
    rest: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

/// The right to one connection.
pub(super) struct Permit {
    _one: OwnedSemaphorePermit,
    /// Of a long read.
    _long: Option<OwnedSemaphorePermit>,
}

impl Permits {
    /// With fewer connections than shares and one more, nobody has one of their own.
    pub(super) fn new(connections_max: usize, shares: &[Share]) -> Permits {
        let all = connections_max.max(1);
        let own = |share: Share| usize::from(all > shares.len() && shares.contains(&share));
        let rest = all - Share::ALL.map(own).iter().sum::<usize>();
        Permits {
            own: Share::ALL.map(|share| Arc::new(Semaphore::new(own(share)))),
            rest: Arc::new(Semaphore::new(rest)),
            long: Arc::new(Semaphore::new((rest / 2).max(1))),
        }
    }

    pub(super) async fn take(&self, share: Share, is_long: bool) -> Result<Permit, AcquireError> {
        if is_long {
            let _long = Some(self.long.clone().acquire_owned().await?);
            return Ok(Permit { _one: self.rest.clone().acquire_owned().await?, _long });
        }
        let _one = tokio::select! {
            biased;
            own = self.own[share as usize].clone().acquire_owned() => own?,
            one = self.rest.clone().acquire_owned() => one?,
        };
        Ok(Permit { _one, _long: None })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    /// At once, or not at all.
    fn take(permits: &Permits, share: Share, is_long: bool) -> Option<Permit> {
        match pin!(permits.take(share, is_long)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => permit.ok(),
            Poll::Pending => None,
        }
    }

    #[test]
    fn every_share_has_one_whatever_the_others_do() {
        let permits = Permits::new(4, &Share::ALL);
        let long = take(&permits, Share::Jobs, true).unwrap();
        assert!(take(&permits, Share::Jobs, true).is_none(), "one long read at a time");
        let jobs = take(&permits, Share::Jobs, false).unwrap();
        assert!(take(&permits, Share::Jobs, false).is_none());
        let _web = take(&permits, Share::Web, false).unwrap();
        let _worker = take(&permits, Share::Worker, false).unwrap();
        assert!(Share::ALL.iter().all(|share| take(&permits, *share, false).is_none()), "four");
        drop((long, jobs));
        let _one = take(&permits, Share::Web, false).unwrap();
        assert!(take(&permits, Share::Web, false).is_none(), "that of the jobs is theirs");
        assert!(take(&permits, Share::Jobs, false).is_some());
    }

    #[test]
    fn a_process_of_one_role_uses_all_of_them() {
        let permits = Permits::new(4, &[Share::Web]);
        let taken: Vec<Permit> = (0..5).map_while(|_| take(&permits, Share::Web, false)).collect();
        assert_eq!(taken.len(), 4);
        drop(taken);
        assert!(take(&permits, Share::Jobs, false).is_some(), "a stranger uses the rest");
        let few = Permits::new(2, &Share::ALL);
        let _jobs = take(&few, Share::Jobs, false).unwrap();
        assert!(take(&few, Share::Web, false).is_some());
    }
}

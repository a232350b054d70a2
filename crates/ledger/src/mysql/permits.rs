//! Who may have a connection: every share has one of its own, the rest is for whoever comes first.
//!
//! Long reads (all orders of an item) take minutes where others take milliseconds, so they use none of
//! those that belong to a share, and at most half of the rest: while one is under way everything else
//! goes on, if by one connection for each share.

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
    _long: Option<LongTurn>,
}

/// The right to be one of the few long reads. Whoever has it waits for a connection no longer than others.
pub(super) struct LongTurn {
    _turn: OwnedSemaphorePermit,
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

    pub(super) async fn take(&self, share: Share) -> Result<Permit, AcquireError> {
        let _one = tokio::select! {
            biased;
            own = self.own[share as usize].clone().acquire_owned() => own?,
            one = self.rest.clone().acquire_owned() => one?,
        };
        Ok(Permit { _one, _long: None })
    }

    pub(super) async fn long_turn(&self) -> Result<LongTurn, AcquireError> {
        Ok(LongTurn { _turn: self.long.clone().acquire_owned().await? })
    }

    /// If it can be had at this moment.
    pub(super) fn long_turn_now(&self) -> Option<LongTurn> {
        Some(LongTurn { _turn: self.long.clone().try_acquire_owned().ok()? })
    }

    pub(super) async fn take_long(&self, turn: LongTurn) -> Result<Permit, AcquireError> {
        Ok(Permit { _one: self.rest.clone().acquire_owned().await?, _long: Some(turn) })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn at_once<T>(taking: impl Future<Output = Result<T, AcquireError>>) -> Option<T> {
        match pin!(taking).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(taken) => taken.ok(),
            Poll::Pending => None,
        }
    }

    fn take(permits: &Permits, share: Share) -> Option<Permit> {
        at_once(permits.take(share))
    }

    #[test]
    fn every_share_has_one_whatever_the_others_do() {
        let permits = Permits::new(4, &Share::ALL);
        let turn = at_once(permits.long_turn()).unwrap();
        assert!(at_once(permits.long_turn()).is_none(), "one long read at a time");
        assert!(permits.long_turn_now().is_none());
        let long = at_once(permits.take_long(turn)).unwrap();
        let jobs = take(&permits, Share::Jobs).unwrap();
        assert!(take(&permits, Share::Jobs).is_none());
        let _web = take(&permits, Share::Web).unwrap();
        let _worker = take(&permits, Share::Worker).unwrap();
        assert!(Share::ALL.iter().all(|share| take(&permits, *share).is_none()), "four");
        drop((long, jobs));
        assert!(permits.long_turn_now().is_some());
        let _one = take(&permits, Share::Web).unwrap();
        assert!(take(&permits, Share::Web).is_none(), "that of the jobs is theirs");
        assert!(take(&permits, Share::Jobs).is_some());
    }

    #[test]
    fn a_process_of_one_role_uses_all_of_them() {
        let permits = Permits::new(4, &[Share::Web]);
        let taken: Vec<Permit> = (0..5).map_while(|_| take(&permits, Share::Web)).collect();
        assert_eq!(taken.len(), 4);
        drop(taken);
        assert!(take(&permits, Share::Jobs).is_some(), "a stranger uses the rest");
        let few = Permits::new(2, &Share::ALL);
        let _jobs = take(&few, Share::Jobs).unwrap();
        assert!(take(&few, Share::Web).is_some());
    }
}

//! Runs that somebody started and follows: a comparison of thousands of items takes longer than anybody
//! should hold a request open.
//!
//! A run goes on whoever waits for it. This process remembers the last few; what a run found is in the
//! ledger besides, for everybody.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sale::Millis;
use tokio::sync::watch;

use super::{ReconcileAsk, Report};
use crate::OperateError;

/// Runs that are remembered, those under way among them.
const RUNS_MAX: usize = 16;

/// How a run ended.
type End = Option<Result<Arc<Report>, Arc<OperateError>>>;

/// A run, under way or over.
pub struct ReconcileRun {
    pub number: u64,
    pub started_ms: Millis,
    pub ask: ReconcileAsk,
    pub(super) compared: AtomicUsize,
    end: watch::Sender<End>,
}

impl ReconcileRun {
    /// Items that have been looked at.
    pub fn compared(&self) -> usize {
        self.compared.load(Ordering::Relaxed)
    }

    /// What it found, or why it found nothing; `None` while it goes on.
    pub fn end(&self) -> Option<Result<Arc<Report>, Arc<OperateError>>> {
        self.end.borrow().clone()
    }

    /// The same, waiting for so long.
    pub async fn ended_within(
        &self,
        wait: Duration,
    ) -> Option<Result<Arc<Report>, Arc<OperateError>>> {
        let mut end = self.end.subscribe();
        // Whether it has ended or not, it is told as it is.
        let _ = tokio::time::timeout(wait, end.wait_for(Option::is_some)).await;
        self.end()
    }

    pub(crate) fn count(&self) -> &AtomicUsize {
        &self.compared
    }

    pub(crate) fn has_ended(&self, end: Result<Report, OperateError>) {
        self.end.send_replace(Some(end.map(Arc::new).map_err(Arc::new)));
    }
}

/// As many are under way as may be.
#[derive(Debug, thiserror::Error)]
#[error("{RUNS_MAX} runs are under way")]
pub struct TooManyRuns;

#[derive(Default)]
pub(super) struct Runs(Mutex<VecDeque<Arc<ReconcileRun>>>);

impl Runs {
    /// A run of this kind, and whether it is a new one: whoever asks for what is under way follows that.
    pub(super) fn begin(
        &self,
        ask: ReconcileAsk,
        now_ms: Millis,
    ) -> Result<(Arc<ReconcileRun>, bool), TooManyRuns> {
        let mut runs = self.0.lock();
        let under_way = |run: &&Arc<ReconcileRun>| run.end.borrow().is_none();
        if let Some(same) = runs.iter().filter(under_way).find(|run| run.ask == ask) {
            return Ok((same.clone(), false));
        }
        if runs.len() >= RUNS_MAX {
            let over = runs.iter().position(|run| run.end.borrow().is_some()).ok_or(TooManyRuns)?;
            runs.remove(over);
        }
        // Larger than any before, also of a process before this one.
        let last = runs.back().map_or(0, |run| run.number);
        let run = ReconcileRun {
            number: (now_ms.max(0) as u64).max(last + 1),
            started_ms: now_ms,
            ask,
            compared: AtomicUsize::new(0),
            end: watch::Sender::new(None),
        };
        let run = Arc::new(run);
        runs.push_back(run.clone());
        Ok((run, true))
    }

    pub(super) fn find(&self, number: u64) -> Option<Arc<ReconcileRun>> {
        self.0.lock().iter().find(|run| run.number == number).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_ask_for_the_same_follow_one_run_and_a_few_are_remembered() {
        let runs = Runs::default();
        let look = ReconcileAsk::whole(false);
        let (first, new) = runs.begin(look, 7).unwrap();
        assert!(new);
        let (again, new) = runs.begin(look, 7).unwrap();
        assert!(!new && Arc::ptr_eq(&first, &again));
        let (other, _) = runs.begin(ReconcileAsk::whole(true), 7).unwrap();
        assert_ne!(other.number, first.number);
        other.has_ended(Err(OperateError::NotFound));
        for _ in 0..3 * RUNS_MAX {
            let (run, new) = runs.begin(ReconcileAsk::whole(true), 8).unwrap();
            assert!(new);
            run.has_ended(Err(OperateError::NotFound));
        }
        assert!(runs.0.lock().len() <= RUNS_MAX);
        assert!(runs.find(first.number).is_some(), "it is under way");
        assert!(runs.find(other.number).is_none(), "it has long been over");
    }
}

//! What is to be done when: tasks in the order in which they are due, and the pacer that calls them.
//!
//! An open loop does not wait for answers. Every task has an instant before which it must not leave
//! and from which its latency counts, whether or not a connection is free then. The pacer is a thread
//! of its own: the timers of the runtime tick once per millisecond, in which thirty tasks of a rush
//! are due, and a thread that sleeps is woken within a tenth of that. It calls what is due in due
//! order; whoever is free takes the next one. What is done may put new tasks on the agenda, so the
//! agenda is over when nothing is planned, called, or being done.

use std::{
    cmp::Ordering,
    collections::{BinaryHeap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering as Atomic},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::{Semaphore, TryAcquireError};

/// The pacer wakes at least this often, because what is put on the agenda does not wake it.
const READ_AGAIN: Duration = Duration::from_millis(1);
/// And not more often than this, so that it takes no core from what is measured.
const NAP_MIN: Duration = Duration::from_micros(200);
/// Tasks called before the lock is given back to those who fetch them.
const CALLED_AT_ONCE_MAX: usize = 256;

pub(crate) struct Agenda<E> {
    list: Mutex<List<E>>,
    /// One permit for each task that was called and not yet fetched.
    called: Semaphore,
    over: AtomicBool,
}

struct List<E> {
    planned: BinaryHeap<Planned<E>>,
    called: VecDeque<(Instant, E)>,
    /// Planned, called, or being done.
    open: usize,
    /// Orders tasks that are due in the same instant by when they were planned.
    planned_total: u64,
}

struct Planned<E> {
    due: Instant,
    place: u64,
    task: E,
}

impl<E> Planned<E> {
    fn rank(&self) -> (Instant, u64) {
        (self.due, self.place)
    }
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<E> Eq for Planned<E> {}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Planned<E> {
    /// The largest of a heap comes first, so the earliest is the largest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

/// A task that somebody fetched.
pub(crate) struct Fetched<E> {
    pub(crate) due: Instant,
    pub(crate) task: E,
    /// Nobody was free when it was called; otherwise its fetcher had been waiting for it.
    pub(crate) kept_waiting: bool,
}

impl<E: Send + 'static> Agenda<E> {
    pub(crate) fn new(tasks: Vec<(Instant, E)>) -> Arc<Agenda<E>> {
        let list = List {
            planned: BinaryHeap::with_capacity(tasks.len()),
            called: VecDeque::with_capacity(tasks.len()),
            open: 0,
            planned_total: 0,
        };
        let agenda = Agenda {
            list: Mutex::new(list),
            called: Semaphore::new(0),
            over: AtomicBool::new(false),
        };
        agenda.plan(tasks);
        if agenda.list().open == 0 {
            agenda.stop();
        }
        Arc::new(agenda)
    }

    /// Call tasks when they are due, until the agenda is over.
    pub(crate) fn start_pacer(self: &Arc<Self>) -> std::io::Result<()> {
        let agenda = self.clone();
        thread::Builder::new().name("pacer".into()).spawn(move || agenda.pace())?;
        Ok(())
    }

    fn pace(&self) {
        while !self.over.load(Atomic::Relaxed) {
            let (called, next) = self.call_due(Instant::now());
            self.called.add_permits(called);
            if called == CALLED_AT_ONCE_MAX {
                continue;
            }
            let until_next = next.map(|due| due.saturating_duration_since(Instant::now()));
            thread::sleep(until_next.unwrap_or(READ_AGAIN).clamp(NAP_MIN, READ_AGAIN));
        }
    }

    /// How many were called, and when the next one is due.
    fn call_due(&self, now: Instant) -> (usize, Option<Instant>) {
        let mut list = self.list();
        let mut called = 0;
        while called < CALLED_AT_ONCE_MAX {
            let Some(first) = list.planned.peek() else { break };
            if first.due > now {
                break;
            }
            if let Some(first) = list.planned.pop() {
                list.called.push_back((first.due, first.task));
                called += 1;
            }
        }
        (called, list.planned.peek().map(|first| first.due))
    }

    /// The next task that is due; nothing when the agenda is over. Say [`Agenda::done`] after it.
    pub(crate) async fn next(&self) -> Option<Fetched<E>> {
        let kept_waiting = match self.called.try_acquire() {
            Ok(permit) => {
                permit.forget();
                true
            }
            Err(TryAcquireError::Closed) => return None,
            Err(TryAcquireError::NoPermits) => {
                self.called.acquire().await.ok()?.forget();
                false
            }
        };
        let (due, task) = self.list().called.pop_front()?;
        Some(Fetched { due, task, kept_waiting })
    }

    /// One task is done, and these follow from it.
    pub(crate) fn done(&self, following: Vec<(Instant, E)>) {
        if !following.is_empty() {
            self.plan(following);
        }
        let mut list = self.list();
        list.open -= 1;
        if list.open == 0 {
            drop(list);
            self.stop();
        }
    }

    fn plan(&self, tasks: Vec<(Instant, E)>) {
        let mut list = self.list();
        list.open += tasks.len();
        for (due, task) in tasks {
            let place = list.planned_total;
            list.planned_total += 1;
            list.planned.push(Planned { due, place, task });
        }
    }

    /// Nothing more is called; what is being done may be finished.
    pub(crate) fn stop(&self) {
        self.over.store(true, Atomic::Relaxed);
        self.called.close();
    }

    fn list(&self) -> MutexGuard<'_, List<E>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_are_called_in_due_order_and_never_early() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let agenda = Agenda::new(vec![(after(30), 'c'), (after(10), 'a'), (after(10), 'b')]);
        agenda.start_pacer().unwrap();
        let mut order = String::new();
        while let Some(fetched) = agenda.next().await {
            assert!(Instant::now() >= fetched.due);
            order.push(fetched.task);
            let more = if fetched.task == 'a' { vec![(after(20), 'x')] } else { vec![] };
            agenda.done(more);
        }
        assert_eq!(order, "abxc", "what follows from a task takes its place among the others");
    }

    #[tokio::test]
    async fn who_was_free_is_told_apart_from_who_was_not() {
        let agenda = Agenda::new(vec![(Instant::now(), 1), (Instant::now(), 2)]);
        agenda.start_pacer().unwrap();
        agenda.next().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(agenda.next().await.unwrap().kept_waiting);
    }

    #[tokio::test]
    async fn an_agenda_that_is_empty_or_stopped_is_over() {
        let empty: Arc<Agenda<()>> = Agenda::new(vec![]);
        assert!(empty.next().await.is_none());
        let stopped = Agenda::new(vec![(Instant::now() + Duration::from_secs(60), ())]);
        stopped.start_pacer().unwrap();
        stopped.stop();
        assert!(stopped.next().await.is_none());
    }
}

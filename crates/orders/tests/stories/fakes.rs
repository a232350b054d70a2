//! A log, a ledger and a clock that the test owns, and the workers between them.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use orders::{AlertOptions, Alerts, Options, Workers, WorkersHandle};
use sale::{
    BookError, Claim, ClaimLog, EntryId, FailedClaim, ItemId, LogEntry, LogError, ManualClock,
    Millis, OrderBook, OrderNo, Settled, UserId,
};
use tokio::sync::watch;

pub(crate) const START_MS: Millis = 1_800_000_000_000;

/// State that can be waited for: tests wait for what they want to see, never for time to pass.
pub(crate) struct Watched<S>(watch::Sender<S>);

impl<S> Watched<S> {
    pub(crate) fn new(state: S) -> Self {
        Watched(watch::Sender::new(state))
    }

    pub(crate) fn change<T>(&self, with: impl FnOnce(&mut S) -> T) -> T {
        let mut answer = None;
        self.0.send_modify(|state| answer = Some(with(state)));
        answer.unwrap()
    }

    pub(crate) fn see<T>(&self, with: impl FnOnce(&S) -> T) -> T {
        with(&self.0.borrow())
    }

    /// For whoever waits as long as it takes.
    pub(crate) async fn until_for_ever(&self, want: impl FnMut(&S) -> bool) {
        let _ = self.0.subscribe().wait_for(want).await;
    }

    #[track_caller]
    pub(crate) fn until(&self, want: impl FnMut(&S) -> bool) -> impl Future<Output = ()> {
        let mut watcher = self.0.subscribe();
        let caller = std::panic::Location::caller();
        async move {
            let waited =
                tokio::time::timeout(Duration::from_secs(20), watcher.wait_for(want)).await;
            assert!(waited.is_ok(), "waited in vain at {caller}");
        }
    }
}

#[derive(Default)]
pub(crate) struct LogState {
    pub(crate) entries: BTreeMap<EntryId, LogEntry>,
    pub(crate) taken: BTreeSet<EntryId>,
    pub(crate) acked: Vec<EntryId>,
    pub(crate) ack_down: bool,
    pub(crate) ack_tries: usize,
    pub(crate) take_down: bool,
    pub(crate) take_tries: usize,
}

pub(crate) struct FakeLog(pub(crate) Watched<LogState>);

impl FakeLog {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(FakeLog(Watched::new(LogState::default())))
    }

    pub(crate) fn append(&self, claims: Vec<Claim>) -> EntryId {
        self.0.change(|log| {
            let id = EntryId::at(1, (log.entries.len() + log.acked.len()) as u64);
            let entry = LogEntry { id, item: claims[0].item, epoch: 1, claims };
            log.entries.insert(id, entry);
            id
        })
    }

    pub(crate) async fn until_acked(&self, entries: usize) {
        self.0.until(|log| log.acked.len() == entries).await;
    }
}

#[async_trait]
impl ClaimLog for FakeLog {
    async fn take(&self, claims_max: usize) -> Result<Vec<LogEntry>, LogError> {
        let untaken = |log: &LogState| log.entries.keys().any(|id| !log.taken.contains(id));
        let mut watcher = self.0.0.subscribe();
        self.0.change(|log| log.take_tries += 1);
        let _ = watcher.wait_for(|log| log.take_down || untaken(log)).await;
        self.0.change(|log| {
            if log.take_down {
                return Err(LogError("the log is away".into()));
            }
            let mut taken = Vec::new();
            let mut claims = 0;
            for entry in log.entries.values() {
                if log.taken.contains(&entry.id) {
                    continue;
                }
                if !taken.is_empty() && claims + entry.claims.len() > claims_max {
                    break;
                }
                claims += entry.claims.len();
                taken.push(entry.clone());
            }
            log.taken.extend(taken.iter().map(|entry| entry.id));
            Ok(taken)
        })
    }

    async fn ack(&self, entries: &[EntryId]) -> Result<(), LogError> {
        self.0.change(|log| {
            log.ack_tries += 1;
            if log.ack_down {
                return Err(LogError("the log is away".into()));
            }
            for id in entries {
                assert!(log.entries.remove(id).is_some(), "acknowledged twice");
                log.acked.push(*id);
            }
            Ok(())
        })
    }

    async fn give_back(&self, entries: Vec<LogEntry>) {
        self.0.change(|log| entries.iter().for_each(|entry| _ = log.taken.remove(&entry.id)));
    }

    fn backlog(&self) -> u64 {
        self.0.see(|log| log.entries.values().map(|entry| entry.claims.len() as u64).sum())
    }
}

#[derive(Default)]
pub(crate) struct BookState {
    /// In the order they were made.
    pub(crate) orders: Vec<OrderNo>,
    pub(crate) repeated: usize,
    pub(crate) failed: BTreeMap<OrderNo, FailedClaim>,
    /// The claims of every settle call, whatever became of it.
    pub(crate) calls: Vec<Vec<OrderNo>>,
    pub(crate) due_calls: usize,
    pub(crate) poison: HashSet<OrderNo>,
    /// Cannot even be remembered as failed.
    pub(crate) unspeakable: HashSet<OrderNo>,
    /// Answered for by nobody: a ledger with a bug.
    pub(crate) forgotten: HashSet<OrderNo>,
    pub(crate) contended: HashSet<ItemId>,
    /// Somebody else holds the rows of these.
    pub(crate) locked: HashSet<ItemId>,
    /// More claims at once take longer than the limit.
    pub(crate) claims_in_time: Option<usize>,
    /// Settling this item takes until it is taken out of here.
    pub(crate) held: HashSet<ItemId>,
    pub(crate) down: bool,
}

pub(crate) struct FakeBook(pub(crate) Watched<BookState>);

impl FakeBook {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(FakeBook(Watched::new(BookState::default())))
    }

    pub(crate) fn failed(&self, no: OrderNo) -> FailedClaim {
        self.0.see(|book| book.failed[&no].clone())
    }

    pub(crate) fn replay(&self, no: OrderNo, now_ms: Millis) {
        self.0.change(|book| {
            let failed = book.failed.get_mut(&no).unwrap();
            (failed.tries, failed.next_try_ms) = (0, Some(now_ms));
        });
    }
}

#[async_trait]
impl OrderBook for FakeBook {
    async fn settle(&self, item: ItemId, claims: &[Claim]) -> Result<Settled, BookError> {
        let numbers: Vec<OrderNo> = claims.iter().map(|claim| claim.order_no).collect();
        assert!(claims.iter().all(|claim| claim.item == item), "one item per transaction");
        self.0.change(|book| book.calls.push(numbers.clone()));
        self.0.until(|book| !book.held.contains(&item)).await;
        self.0.change(|book| {
            if book.down {
                return Err(BookError::Unavailable("away".into()));
            }
            if book.locked.contains(&item) {
                return Err(BookError::Locked("held".into()));
            }
            if book.claims_in_time.is_some_and(|max| numbers.len() > max) {
                return Err(BookError::CutOff("too slow".into()));
            }
            if book.contended.contains(&item) {
                return Err(BookError::Contended(3));
            }
            if numbers.iter().any(|no| book.poison.contains(no)) {
                return Err(BookError::Rejected("a claim that cannot be written".into()));
            }
            let mut settled = Settled::default();
            for no in numbers {
                if book.forgotten.contains(&no) {
                } else if book.orders.contains(&no) {
                    book.repeated += 1;
                    settled.repeated.push(no);
                } else {
                    book.orders.push(no);
                    book.failed.remove(&no);
                    settled.created.push(no);
                }
            }
            Ok(settled)
        })
    }

    async fn defer(&self, failed: &[FailedClaim]) -> Result<(), BookError> {
        self.0.change(|book| {
            if book.down {
                return Err(BookError::Unavailable("away".into()));
            }
            if failed.iter().any(|one| book.unspeakable.contains(&one.claim.order_no)) {
                return Err(BookError::Rejected("no way to say it".into()));
            }
            book.failed.extend(failed.iter().map(|one| (one.claim.order_no, one.clone())));
            Ok(())
        })
    }

    async fn due(&self, now_ms: Millis, limit: usize) -> Result<Vec<FailedClaim>, BookError> {
        self.0.change(|book| {
            book.due_calls += 1;
            if book.down {
                return Err(BookError::Unavailable("away".into()));
            }
            let due = |one: &&FailedClaim| one.next_try_ms.is_some_and(|at| at <= now_ms);
            Ok(book.failed.values().filter(due).take(limit).cloned().collect())
        })
    }

    async fn due_by_another_clock(&self, now_ms: Millis) -> Result<u64, BookError> {
        self.0.change(|book| {
            if book.down {
                return Err(BookError::Unavailable("away".into()));
            }
            // No ladder has such a step.
            let ahead_ms = now_ms + 12 * 3_600_000;
            let ahead = |one: &&mut FailedClaim| one.next_try_ms.is_some_and(|at| at > ahead_ms);
            let mut brought = 0;
            for one in book.failed.values_mut().filter(ahead) {
                one.next_try_ms = Some(now_ms);
                brought += 1;
            }
            Ok(brought)
        })
    }
}

pub(crate) fn no(n: u64) -> OrderNo {
    OrderNo::from_u64(n).unwrap()
}

pub(crate) fn claim(item: i64, n: u64) -> Claim {
    Claim {
        order_no: no(n),
        item: ItemId(item),
        user: UserId::new(&format!("u{n}")).unwrap(),
        quantity: 1,
        epoch: 1,
        claimed_ms: START_MS,
        key: None,
    }
}

pub(crate) fn claims(item: i64, numbers: std::ops::Range<u64>) -> Vec<Claim> {
    numbers.map(|n| claim(item, n)).collect()
}

/// The retry loop looks only when it is called, so that a test decides when.
pub(crate) fn options() -> Options {
    Options { retry_poll_ms: 600_000, pause_ms_min: 1, pause_ms_max: 4, ..Options::default() }
}

pub(crate) struct TestWorkers {
    pub(crate) log: Arc<FakeLog>,
    pub(crate) book: Arc<FakeBook>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) alerts: Alerts,
    pub(crate) options: Options,
}

impl TestWorkers {
    pub(crate) fn new() -> Self {
        TestWorkers {
            log: FakeLog::new(),
            book: FakeBook::new(),
            clock: ManualClock::at(START_MS),
            alerts: Alerts::start(AlertOptions::default()),
            options: options(),
        }
    }

    pub(crate) fn start(&self) -> WorkersHandle {
        self.options.validate().unwrap();
        Workers::start(
            self.options.clone(),
            self.log.clone(),
            self.book.clone(),
            self.clock.clone(),
            self.alerts.clone(),
        )
    }
}

pub(crate) async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), event).await.expect("waited in vain")
}

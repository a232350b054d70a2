//! Stories of the workers, with a log, a ledger and a clock that the test owns. The real log and
//! the real ledger are joined in the server's tests; here only the logic between them is on trial.

#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use orders::{
    Alert, AlertKind, AlertOptions, Alerts, Options, RETRY_LADDER_MS_DEFAULT, WebhookState,
    Workers, WorkersHandle,
};
use sale::{
    BookError, Claim, ClaimLog, EntryId, FailedClaim, ItemId, LogEntry, LogError, ManualClock,
    Millis, OrderBook, OrderNo, Settled, UserId,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::{mpsc, watch},
};

const START_MS: Millis = 1_800_000_000_000;

/// State that can be waited for: tests wait for what they want to see, never for time to pass.
struct Watched<S>(watch::Sender<S>);

impl<S> Watched<S> {
    fn new(state: S) -> Self {
        Watched(watch::Sender::new(state))
    }

    fn change<T>(&self, with: impl FnOnce(&mut S) -> T) -> T {
        let mut answer = None;
        self.0.send_modify(|state| answer = Some(with(state)));
        answer.unwrap()
    }

    fn see<T>(&self, with: impl FnOnce(&S) -> T) -> T {
        with(&self.0.borrow())
    }

    #[track_caller]
    fn until(&self, want: impl FnMut(&S) -> bool) -> impl Future<Output = ()> {
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
struct LogState {
    entries: BTreeMap<EntryId, LogEntry>,
    taken: BTreeSet<EntryId>,
    acked: Vec<EntryId>,
    ack_down: bool,
    ack_tries: usize,
    take_down: bool,
    take_tries: usize,
}

struct FakeLog(Watched<LogState>);

impl FakeLog {
    fn new() -> Arc<Self> {
        Arc::new(FakeLog(Watched::new(LogState::default())))
    }

    fn append(&self, claims: Vec<Claim>) -> EntryId {
        self.0.change(|log| {
            let id = EntryId(1, (log.entries.len() + log.acked.len()) as u64);
            let entry = LogEntry { id, item: claims[0].item, epoch: 1, claims };
            log.entries.insert(id, entry);
            id
        })
    }

    async fn until_acked(&self, entries: usize) {
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
struct BookState {
    /// In the order they were made.
    orders: Vec<OrderNo>,
    repeated: usize,
    failed: BTreeMap<OrderNo, FailedClaim>,
    /// The claims of every settle call, whatever became of it.
    calls: Vec<Vec<OrderNo>>,
    due_calls: usize,
    poison: HashSet<OrderNo>,
    /// Cannot even be remembered as failed.
    unspeakable: HashSet<OrderNo>,
    /// Answered for by nobody: a ledger with a bug.
    forgotten: HashSet<OrderNo>,
    contended: HashSet<ItemId>,
    /// Somebody else holds the rows of these.
    locked: HashSet<ItemId>,
    /// More claims at once take longer than the limit.
    claims_in_time: Option<usize>,
    /// Settling this item takes until it is taken out of here.
    held: HashSet<ItemId>,
    down: bool,
}

struct FakeBook(Watched<BookState>);

impl FakeBook {
    fn new() -> Arc<Self> {
        Arc::new(FakeBook(Watched::new(BookState::default())))
    }

    fn failed(&self, no: OrderNo) -> FailedClaim {
        self.0.see(|book| book.failed[&no].clone())
    }

    fn replay(&self, no: OrderNo, now_ms: Millis) {
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
}

fn no(n: u64) -> OrderNo {
    OrderNo::from_u64(n).unwrap()
}

fn claim(item: i64, n: u64) -> Claim {
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

fn claims(item: i64, numbers: std::ops::Range<u64>) -> Vec<Claim> {
    numbers.map(|n| claim(item, n)).collect()
}

/// The retry loop looks only when it is called, so that a test decides when.
fn options() -> Options {
    Options { retry_poll_ms: 600_000, pause_ms_min: 1, pause_ms_max: 4, ..Options::default() }
}

struct Shop {
    log: Arc<FakeLog>,
    book: Arc<FakeBook>,
    clock: Arc<ManualClock>,
    alerts: Alerts,
    options: Options,
}

impl Shop {
    fn new() -> Self {
        Shop {
            log: FakeLog::new(),
            book: FakeBook::new(),
            clock: ManualClock::at(START_MS),
            alerts: Alerts::start(AlertOptions::default()),
            options: options(),
        }
    }

    fn work(&self) -> WorkersHandle {
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

/// A webhook on a free port: answers each post with the next status of `answers` (then 200), and
/// passes the bodies on.
async fn webhook(answers: Vec<u16>) -> (String, mpsc::UnboundedReceiver<serde_json::Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hooks/s3cret", listener.local_addr().unwrap());
    let (tell, posts) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut answers = answers.into_iter();
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut seen = Vec::new();
            let body = loop {
                assert!(socket.read_buf(&mut seen).await.unwrap() > 0, "hung up early");
                let text = String::from_utf8_lossy(&seen).to_lowercase();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let length = head.split("content-length: ").nth(1).unwrap();
                let length: usize = length.lines().next().unwrap().parse().unwrap();
                if body.len() >= length {
                    break seen[head.len() + 4..].to_vec();
                }
            };
            let status = answers.next().unwrap_or(200);
            let answer =
                format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            socket.write_all(answer.as_bytes()).await.unwrap();
            let _ = tell.send(serde_json::from_slice(&body).unwrap());
        }
    });
    (url, posts)
}

async fn soon<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), event).await.expect("waited in vain")
}

#[tokio::test]
async fn claims_of_an_item_are_merged_and_keep_their_order() {
    let shop = Shop::new();
    shop.log.append(claims(1, 0..3));
    shop.log.append(claims(2, 3..5));
    shop.log.append(claims(1, 5..8));
    let workers = shop.work();
    shop.log.until_acked(3).await;
    let merged: Vec<OrderNo> = [0, 1, 2, 5, 6, 7].map(no).to_vec();
    shop.book.0.see(|book| assert_eq!(book.calls, [merged, vec![no(3), no(4)]]));
    workers.stop().await;
    assert!(workers.rate_per_s() > 0.0);
}

#[tokio::test]
async fn an_entry_larger_than_a_batch_is_settled_in_parts() {
    let mut shop = Shop::new();
    shop.options.batch_claims_max = 4;
    shop.log.append(claims(1, 0..10));
    let workers = shop.work();
    shop.log.until_acked(1).await;
    shop.book.0.see(|book| {
        assert_eq!(book.calls.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
        assert_eq!(book.orders, (0..10).map(no).collect::<Vec<_>>());
    });
    workers.stop().await;
}

#[tokio::test]
async fn nothing_is_acknowledged_before_the_commit() {
    let shop = Shop::new();
    shop.book.0.change(|book| book.held.insert(ItemId(1)));
    shop.log.append(claims(1, 0..3));
    let workers = shop.work();
    shop.book.0.until(|book| book.calls.len() == 1).await;
    assert_eq!(shop.log.0.see(|log| log.ack_tries), 0);
    shop.book.0.change(|book| book.held.clear());
    shop.log.until_acked(1).await;
    assert_eq!(shop.book.0.see(|book| book.orders.len()), 3);
    workers.stop().await;
}

#[tokio::test]
async fn what_was_settled_but_not_acknowledged_comes_again_and_does_no_harm() {
    let shop = Shop::new();
    shop.log.0.change(|log| log.ack_down = true);
    shop.log.append(claims(1, 0..5));
    let first = shop.work();
    shop.log.0.until(|log| log.ack_tries >= 2).await;
    assert!(first.is_paused());
    first.stop().await;
    assert!(!first.is_running());
    assert!(shop.log.0.see(|log| log.taken.is_empty() && log.acked.is_empty()), "handed back");

    shop.log.0.change(|log| log.ack_down = false);
    let second = shop.work();
    shop.log.until_acked(1).await;
    shop.book.0.see(|book| assert_eq!((book.orders.len(), book.repeated), (5, 5)));
    assert!(shop.book.0.see(|book| book.failed.is_empty()));
    second.stop().await;
}

#[tokio::test]
async fn a_ledger_that_is_down_burns_no_tries() {
    let shop = Shop::new();
    shop.book.0.change(|book| book.down = true);
    shop.log.append(claims(1, 0..5));
    shop.log.append(claims(2, 5..6));
    let workers = shop.work();
    shop.book.0.until(|book| book.calls.len() >= 20).await;
    assert!(workers.is_paused() && workers.is_running());
    assert_eq!(shop.log.0.see(|log| log.ack_tries), 0);

    shop.book.0.change(|book| book.down = false);
    shop.log.until_acked(2).await;
    shop.book.0.see(|book| {
        assert_eq!(book.orders, (0..6).map(no).collect::<Vec<_>>());
        assert!(book.failed.is_empty());
    });
    workers.stop().await;
    assert!(!workers.is_paused());
}

#[tokio::test]
async fn stopping_during_an_outage_hands_everything_back() {
    let shop = Shop::new();
    shop.book.0.change(|book| book.down = true);
    shop.log.append(claims(1, 0..5));
    let workers = shop.work();
    shop.book.0.until(|book| book.calls.len() >= 2).await;
    soon(workers.stop()).await;
    shop.log.0.see(|log| {
        assert!(log.taken.is_empty());
        assert_eq!(log.entries.len(), 1);
    });
}

#[tokio::test]
async fn a_log_that_is_down_is_asked_again() {
    let shop = Shop::new();
    shop.log.0.change(|log| log.take_down = true);
    let workers = shop.work();
    shop.log.0.until(|log| log.take_tries >= 3).await;
    assert!(workers.is_paused());
    shop.log.append(claims(1, 0..2));
    shop.log.0.change(|log| log.take_down = false);
    shop.log.until_acked(1).await;
    workers.stop().await;
    assert!(!workers.is_paused());
}

#[tokio::test]
async fn one_poison_claim_among_a_thousand_climbs_the_ladder_alone() {
    let mut shop = Shop::new();
    let (url, mut posts) = webhook(vec![500]).await;
    shop.alerts = Alerts::start(AlertOptions {
        webhook_url: Some(url),
        webhook_pause_ms_min: 1,
        webhook_pause_ms_max: 2,
        ..Default::default()
    });
    let poison = no(617);
    shop.book.0.change(|book| book.poison.insert(poison));
    shop.log.append(claims(1, 0..1_000));
    let workers = shop.work();

    shop.log.until_acked(1).await;
    shop.book.0.see(|book| {
        let good: Vec<_> = (0..1_000).map(no).filter(|no| *no != poison).collect();
        assert_eq!(book.orders, good, "the others settle in the same pass, in order");
        assert!(book.calls.len() <= 25, "halving, not trying one by one: {}", book.calls.len());
    });
    let first = shop.book.failed(poison);
    assert_eq!((first.tries, first.next_try_ms), (1, Some(START_MS + 10_000)));

    let mut due_ms = START_MS;
    for (step, wait_ms) in RETRY_LADDER_MS_DEFAULT.into_iter().enumerate() {
        due_ms += wait_ms;
        let waiting = shop.book.failed(poison);
        assert_eq!((waiting.tries, waiting.next_try_ms), (step as u32 + 1, Some(due_ms)));
        // A millisecond early it is left alone.
        shop.clock.set(due_ms - 1);
        let (looks, calls) = shop.book.0.see(|book| (book.due_calls, book.calls.len()));
        workers.retry_now();
        shop.book.0.until(|book| book.due_calls > looks).await;
        assert_eq!(shop.book.0.see(|book| book.calls.len()), calls);
        shop.clock.set(due_ms);
        workers.retry_now();
        shop.book.0.until(|book| book.failed[&poison].tries == step as u32 + 2).await;
    }
    let dead = shop.book.failed(poison);
    assert_eq!((dead.tries, dead.next_try_ms), (17, None), "sixteen retries after the first try");
    assert_eq!(dead.cause, "a claim that cannot be written");

    let refused = soon(posts.recv()).await.unwrap();
    let post = soon(posts.recv()).await.unwrap();
    assert_eq!(refused, post, "a webhook that fails once is asked again");
    assert_eq!(post["kind"], "dead_letter");
    assert_eq!(post["order_no"], poison.to_string());
    assert_eq!(post["cause"], "a claim that cannot be written");
    assert_eq!(post["at_ms"], due_ms);
    workers.stop().await;
}

#[tokio::test]
async fn a_replayed_dead_letter_is_picked_up_at_once() {
    let mut shop = Shop::new();
    shop.options.retry_ladder_ms = vec![1_000];
    shop.book.0.change(|book| book.poison.insert(no(7)));
    shop.log.append(claims(1, 7..8));
    let workers = shop.work();
    shop.log.until_acked(1).await;
    shop.clock.advance(1_000);
    workers.retry_now();
    shop.book.0.until(|book| book.failed[&no(7)].next_try_ms.is_none()).await;
    assert_eq!(shop.book.failed(no(7)).tries, 2);

    // The operator repaired the cause.
    shop.book.0.change(|book| book.poison.clear());
    shop.book.replay(no(7), START_MS);
    workers.retry_now();
    shop.book.0.until(|book| book.orders == [no(7)] && book.failed.is_empty()).await;
    workers.stop().await;
}

#[tokio::test]
async fn a_replay_that_fails_has_the_whole_ladder_again() {
    let mut shop = Shop::new();
    shop.options.retry_ladder_ms = vec![1_000, 2_000];
    let dead = FailedClaim { claim: claim(1, 7), tries: 3, next_try_ms: None, cause: "x".into() };
    shop.book.0.change(|book| {
        book.poison.insert(no(7));
        book.failed.insert(no(7), dead)
    });
    let workers = shop.work();
    shop.book.replay(no(7), START_MS);
    workers.retry_now();
    shop.book.0.until(|book| book.failed[&no(7)].tries == 1).await;
    assert_eq!(shop.book.failed(no(7)).next_try_ms, Some(START_MS + 1_000));
    workers.stop().await;
}

#[tokio::test]
async fn a_slow_retry_does_not_delay_new_claims() {
    let shop = Shop::new();
    let old = FailedClaim {
        claim: claim(9, 1),
        tries: 1,
        next_try_ms: Some(START_MS),
        cause: "x".into(),
    };
    shop.book.0.change(|book| {
        book.held.insert(ItemId(9));
        book.failed.insert(no(1), old)
    });
    let workers = shop.work();
    shop.book.0.until(|book| book.calls.contains(&vec![no(1)])).await;
    shop.log.append(claims(1, 100..200));
    shop.log.until_acked(1).await;
    assert_eq!(shop.book.0.see(|book| book.orders.len()), 100);
    shop.book.0.change(|book| book.held.clear());
    shop.book.0.until(|book| book.orders.contains(&no(1))).await;
    workers.stop().await;
}

#[tokio::test]
async fn a_contended_item_goes_to_retry_and_counts_as_a_try() {
    let shop = Shop::new();
    shop.book.0.change(|book| book.contended.insert(ItemId(1)));
    shop.log.append(claims(1, 0..3));
    let workers = shop.work();
    shop.log.until_acked(1).await;
    shop.book.0.see(|book| {
        assert_eq!(book.calls.len(), 1, "no halving: nobody in the batch is at fault");
        assert!(book.failed.values().all(|one| one.tries == 1));
        assert_eq!(book.failed.len(), 3);
    });
    shop.book.0.change(|book| book.contended.clear());
    shop.clock.advance(10_000);
    workers.retry_now();
    shop.book.0.until(|book| book.orders.len() == 3).await;
    workers.stop().await;
}

#[tokio::test]
async fn an_item_that_somebody_holds_keeps_no_other_item_waiting() {
    let shop = Shop::new();
    shop.book.0.change(|book| book.locked.insert(ItemId(1)));
    shop.log.append(claims(1, 0..3));
    shop.log.append(claims(2, 3..6));
    let workers = shop.work();
    shop.log.until_acked(1).await;
    assert!(!workers.is_paused(), "the ledger is there");
    // What comes later joins what waits, and is not tried by the main loop.
    shop.log.append(claims(1, 6..8));
    shop.log.append(claims(2, 8..10));
    shop.log.until_acked(2).await;
    let of_two: Vec<OrderNo> = (3..6).chain(8..10).map(no).collect();
    assert_eq!(shop.book.0.see(|book| book.orders.clone()), of_two);
    assert_eq!(shop.book.0.see(|book| book.failed.len()), 0, "no tries are burnt");
    shop.book.0.change(|book| book.locked.clear());
    shop.log.until_acked(4).await;
    assert_eq!(shop.book.0.see(|book| book.orders.len()), 10);
    workers.stop().await;
}

#[tokio::test]
async fn stopping_hands_back_what_was_put_aside() {
    let shop = Shop::new();
    shop.book.0.change(|book| book.locked.insert(ItemId(1)));
    shop.log.append(claims(1, 0..3));
    shop.log.append(claims(2, 3..6));
    let workers = shop.work();
    shop.log.until_acked(1).await;
    workers.stop().await;
    assert_eq!(shop.log.0.see(|log| (log.entries.len(), log.taken.len())), (1, 1));
    shop.book.0.change(|book| book.locked.clear());
    let workers = shop.work();
    shop.log.until_acked(2).await;
    workers.stop().await;
}

#[tokio::test]
async fn a_batch_that_is_too_much_for_a_slow_ledger_is_halved() {
    let shop = Shop::new();
    shop.book.0.change(|book| book.claims_in_time = Some(40));
    shop.log.append(claims(1, 0..100));
    let workers = shop.work();
    shop.log.until_acked(1).await;
    let sizes: Vec<usize> = shop.book.0.see(|book| book.calls.iter().map(Vec::len).collect());
    assert_eq!(sizes, [100, 100, 50, 50, 25, 25, 50, 50, 25, 25]);
    assert_eq!(shop.book.0.see(|book| (book.orders.len(), book.failed.len())), (100, 0));
    workers.stop().await;
}

#[tokio::test]
async fn two_buyers_with_one_number_are_two_claims() {
    let shop = Shop::new();
    let twin = Claim { user: UserId::new("twin").unwrap(), ..claim(1, 7) };
    shop.log.append(vec![claim(1, 7), twin, claim(1, 7)]);
    let workers = shop.work();
    shop.log.until_acked(1).await;
    assert_eq!(shop.book.0.see(|book| book.calls.clone()), [vec![no(7), no(7)]]);
    workers.stop().await;
}

#[tokio::test]
async fn a_claim_that_cannot_even_be_put_aside_keeps_its_entry_on_the_log() {
    let mut shop = Shop::new();
    let (url, mut posts) = webhook(vec![]).await;
    shop.alerts = Alerts::start(AlertOptions { webhook_url: Some(url), ..Default::default() });
    shop.book.0.change(|book| {
        book.poison.extend([no(2), no(3)]);
        book.unspeakable.insert(no(2));
    });
    let kept = shop.log.append(claims(1, 0..5));
    shop.log.append(claims(1, 5..8));
    let workers = shop.work();
    shop.log.until_acked(1).await;
    shop.log.0.see(|log| assert_eq!(log.entries.keys().collect::<Vec<_>>(), [&kept]));
    shop.book.0.see(|book| {
        assert_eq!(book.orders.len(), 6, "all but the two at fault");
        assert_eq!(book.failed.keys().collect::<Vec<_>>(), [&no(3)]);
    });
    let post = soon(posts.recv()).await.unwrap();
    assert_eq!(
        (post["kind"].as_str(), post["order_no"].as_str()),
        (Some("claim_stuck"), Some("SK0000000000000000002"))
    );
    workers.stop().await;
}

#[tokio::test]
async fn a_claim_the_ledger_does_not_answer_for_is_not_lost() {
    let shop = Shop::new();
    shop.book.0.change(|book| book.forgotten.insert(no(1)));
    shop.log.append(claims(1, 0..4));
    let workers = shop.work();
    shop.log.until_acked(1).await;
    assert_eq!(shop.book.failed(no(1)).cause, "the ledger answered for 0 of 1 claims");
    assert_eq!(shop.book.0.see(|book| book.orders.len()), 3);
    workers.stop().await;
}

fn alert(n: i64) -> Alert {
    Alert::new(AlertKind::DeadLetter, "hello", n)
}

#[tokio::test]
async fn a_dead_webhook_never_blocks_and_stopping_does_not_wait_for_it() {
    // Takes connections into its backlog and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let alerts = Alerts::start(AlertOptions {
        webhook_url: Some(format!("http://{}/", silent.local_addr().unwrap())),
        waiting_per_kind_max: 20,
        webhook_timeout_ms: 50,
        ..Default::default()
    });
    for n in 0..1_000 {
        alerts.raise(alert(n));
    }
    while alerts.webhook().failing.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let waiting = alerts.webhook().waiting;
    assert!((20..=21).contains(&waiting), "{waiting} wait, one of them in hand");
    soon(alerts.stop()).await;
}

#[tokio::test]
async fn a_webhook_that_is_away_for_a_while_hears_everything_when_it_is_back() {
    // Out of order for longer than an alert was tried before.
    let (url, mut posts) = webhook(vec![503; 12]).await;
    let alerts = Alerts::start(AlertOptions {
        webhook_url: Some(url),
        waiting_per_kind_max: 2,
        webhook_pause_ms_min: 1,
        webhook_pause_ms_max: 2,
        ..Default::default()
    });
    alerts.raise(alert(0));
    while alerts.webhook().failing.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for n in 1..=5 {
        alerts.raise(alert(n));
    }
    // The tries that were refused are heard, too; each says what it has gathered by then.
    let mut heard = BTreeMap::new();
    while heard.values().map(|more| 1 + more).sum::<u64>() < 6 {
        let post = soon(posts.recv()).await.unwrap();
        heard.insert(post["at_ms"].as_i64().unwrap(), post["more"].as_u64().unwrap());
    }
    assert_eq!(heard.first_key_value(), Some((&0, &0)));
    soon(alerts.stop()).await;
    assert_eq!(alerts.webhook(), WebhookState { is_set: true, failing: None, waiting: 0 });
}

#[tokio::test]
async fn an_alert_that_the_webhook_refuses_does_not_hold_up_the_next() {
    let (url, mut posts) = webhook(vec![400; 3]).await;
    let alerts = Alerts::start(AlertOptions {
        webhook_url: Some(url),
        webhook_refusals_max: 3,
        webhook_pause_ms_min: 1,
        webhook_pause_ms_max: 2,
        ..Default::default()
    });
    alerts.raise(alert(0));
    alerts.raise(alert(1));
    let mut heard = Vec::new();
    for _ in 0..4 {
        heard.push(soon(posts.recv()).await.unwrap()["at_ms"].as_i64().unwrap());
    }
    assert_eq!(heard, [0, 0, 0, 1]);
    soon(alerts.stop()).await;
}

#[tokio::test]
async fn stopping_delivers_what_is_queued() {
    let (url, mut posts) = webhook(vec![]).await;
    let alerts = Alerts::start(AlertOptions {
        webhook_url: Some(url),
        instance: "here".into(),
        ..Default::default()
    });
    for n in 0..3 {
        alerts.raise(alert(n));
    }
    alerts.raise(Alert::new(AlertKind::GateDown, "over", 3).since(1).resolved());
    soon(alerts.stop()).await;
    for n in 0..3 {
        let post = soon(posts.recv()).await.unwrap();
        let todo = AlertKind::DeadLetter.todo();
        let text = format!("[ALERT] dead_letter at here: hello → {todo}");
        assert_eq!(
            post,
            serde_json::json!({"kind": "dead_letter", "state": "raised", "message": "hello",
                "order_no": null, "cause": null, "since_ms": null, "at_ms": n, "more": 0,
                "todo": todo, "instance": "here", "text": text})
        );
    }
    let over = soon(posts.recv()).await.unwrap();
    assert_eq!((&over["state"], &over["since_ms"]), (&"resolved".into(), &1.into()));
}

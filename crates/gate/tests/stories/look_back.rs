//! Stories of those who look back: what was admitted is read long after it was settled, from either gate; it
//! goes when it is too old, too much or in the way; and nobody else sees it.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use faults::services::{Redis, RedisOptions as Server};
use gate::{
    Admission, Decision, Gate, Inspection, Keep, Upkeep,
    redis::{RedisGate, RedisOptions},
    solo::JOURNAL_FILE,
};
use sale::{BackMark, ClaimLog, LogEntry, LoggedClaim, LookBack, LookBackError, OrderNo};

use crate::fixture::{Home, ITEM, KEEP, PARTITIONS, RedisHome, SoloHome, ids, one};

/// Whatever is waited for comes within this, or the story fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Everything from this time on, page by page.
async fn since(gate: &(impl LookBack + ?Sized), since_ms: i64) -> Vec<LoggedClaim> {
    let (mut all, mut from): (_, Option<BackMark>) = (Vec::new(), None);
    loop {
        let page = gate.look_back(since_ms, from.as_ref()).await.unwrap();
        all.extend(page.claims);
        from = page.next;
        if from.is_none() {
            return all;
        }
    }
}

fn numbers(claims: &[LoggedClaim]) -> Vec<OrderNo> {
    let mut numbers: Vec<OrderNo> = claims.iter().map(|one| one.claim.order_no).collect();
    numbers.sort_unstable();
    numbers
}

/// So many buyers, in batches; answers their numbers, in order.
async fn admit(
    home: &dyn Home,
    gate: &(impl Admission + ?Sized),
    name: &str,
    batches: usize,
    of: usize,
) -> Vec<OrderNo> {
    let mut admitted = Vec::new();
    for batch in 0..batches {
        let requests = (0..of).map(|n| home.request(&format!("{name}-{batch}-{n}"), 1)).collect();
        for decision in gate.admit(requests).await {
            let Decision::Admitted { claim, .. } = decision else { panic!("{decision:?}") };
            admitted.push(claim.order_no);
        }
    }
    admitted.sort_unstable();
    admitted
}

/// Takes what waits, so many claims, and settles it.
async fn settle(gate: &(impl ClaimLog + ?Sized), claims: usize) {
    let mut settled = 0;
    while settled < claims {
        let taken: Vec<LogEntry> = gate.take(usize::MAX).await.unwrap();
        settled += taken.iter().map(|entry| entry.claims.len()).sum::<usize>();
        gate.ack(&ids(&taken)).await.unwrap();
    }
}

async fn begin(home: &dyn Home, gate: &dyn Gate, units: i64) {
    gate.begin_load(ITEM, 1, 1).await.unwrap();
    assert!(gate.load(home.loading(1, units)).await.unwrap());
}

async fn what_was_admitted_is_read_back_long_after_it_was_settled(home: &dyn Home) {
    let gate = home.open().await;
    begin(home, &*gate, 1_000).await;
    let settled = admit(home, &*gate, "early", 9, 7).await;
    settle(&*gate, settled.len()).await;
    let waiting = admit(home, &*gate, "late", 2, 3).await;
    let all: Vec<OrderNo> = settled.iter().chain(&waiting).copied().collect();

    let told = since(&*gate, 0).await;
    assert_eq!(numbers(&told), all, "each once");
    for LoggedClaim { claim, waits } in &told {
        assert_eq!(*waits, waiting.contains(&claim.order_no), "{claim:?}");
        assert_eq!((claim.item, claim.quantity), (ITEM, 1));
    }
    assert_eq!(since(&*gate, home.now_ms() + 60_000).await, [], "nobody came later");

    // Nobody else sees it.
    assert_eq!(gate.measure_backlog().await.unwrap(), waiting.len() as u64);
    assert_eq!(gate.in_flight(ITEM).await.unwrap().len(), waiting.len());
    let first = told.iter().find(|one| !one.waits).unwrap().claim.clone();
    assert!(!gate.is_on_log(&first).await.unwrap());
    assert_eq!(gate.on_log(first.order_no).await.unwrap(), None);
    for foreign in ["x1", "k99", "w1.x", "j-1", "k0.1"] {
        let told = gate.look_back(0, Some(&foreign.parse().unwrap())).await;
        assert!(matches!(told, Err(LookBackError::Mark(_))), "{foreign}");
    }

    // Another process reads the same, and what is owed is delivered to it and nothing else.
    let gate = home.reopen(gate).await;
    assert_eq!(numbers(&since(&*gate, 0).await), all);
    let taken = gate.take(usize::MAX).await.unwrap();
    assert!(taken.iter().flat_map(|e| &e.claims).all(|c| waiting.contains(&c.order_no)));
}

#[tokio::test]
async fn solo_what_was_admitted_is_read_back() {
    struct Keeping(SoloHome);
    #[async_trait::async_trait]
    impl Home for Keeping {
        fn numbers(&self) -> &std::sync::Arc<sale::OrderNumbers> {
            self.0.numbers()
        }
        fn now_ms(&self) -> i64 {
            self.0.now_ms()
        }
        async fn open(&self) -> std::sync::Arc<dyn Gate> {
            std::sync::Arc::new(self.0.open_keeping(1_000_000, KEEP))
        }
    }
    what_was_admitted_is_read_back_long_after_it_was_settled(&Keeping(SoloHome::new())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_what_was_admitted_is_read_back() {
    what_was_admitted_is_read_back_long_after_it_was_settled(&RedisHome::new()).await;
}

/// How many entries the journal's file has, and how many bytes it says are kept.
fn kept(home: &SoloHome) -> (u64, u64) {
    let file = rusqlite::Connection::open(home.path().join(JOURNAL_FILE)).unwrap();
    let entries = file.query_row("SELECT count(*) FROM entry", [], |row| row.get(0)).unwrap();
    (entries, file.query_row("SELECT bytes FROM kept", [], |row| row.get(0)).unwrap())
}

#[tokio::test]
async fn what_the_journal_keeps_goes_with_time_and_the_rest_stays() {
    let home = SoloHome::new();
    let gate = home.open_keeping(1_000_000, KEEP);
    gate.load(home.loading(1, 1_000)).await.unwrap();
    admit(&home, &gate, "first", 10, 3).await;
    settle(&gate, 30).await;
    home.clock.advance(KEEP.ms as i64 - 1_000);
    let second = admit(&home, &gate, "second", 10, 3).await;
    settle(&gate, 30).await;
    assert!(gate.tidy(0).await.unwrap());
    assert_eq!(since(&gate, 0).await.len(), 60);
    assert_eq!(kept(&home).0, 20);

    home.clock.advance(2_000);
    assert_eq!(numbers(&since(&gate, 0).await), second, "what is too old is not told");
    gate.upkeep().await.unwrap();
    let (entries, bytes) = kept(&home);
    assert_eq!(entries, 10, "nor kept");
    assert_eq!(numbers(&since(&gate, 0).await), second);

    home.clock.advance(KEEP.ms as i64);
    gate.upkeep().await.unwrap();
    assert!(bytes > 0);
    assert_eq!(kept(&home), (0, 0), "what is counted is what is there");
    assert_eq!(gate.reading(ITEM).await.unwrap().unwrap().marks, 60, "who bought is still known");
}

#[tokio::test]
async fn what_the_journal_keeps_is_never_more_than_it_may_be() {
    let home = SoloHome::new();
    let keep = Keep { bytes_max: 20_000, ..KEEP };
    let gate = home.open_keeping(1_000_000, keep);
    gate.load(home.loading(1, 10_000)).await.unwrap();
    let admitted = admit(&home, &gate, "u", 100, 20).await;
    settle(&gate, 2_000).await;
    assert!(gate.tidy(0).await.unwrap());
    gate.upkeep().await.unwrap();
    let (entries, bytes) = kept(&home);
    assert!(bytes <= 20_000 && entries > 0, "{entries} entries, {bytes} bytes");
    let told = numbers(&since(&gate, 0).await);
    assert_eq!(told, admitted[admitted.len() - told.len()..], "the latest of them");
    drop(gate);
    // Whoever wants none of it has none of it any more.
    let gate = home.open_keeping(1_000_000, Keep::NOTHING);
    gate.upkeep().await.unwrap();
    assert_eq!(kept(&home), (0, 0));
    assert_eq!(since(&gate, 0).await, []);
}

#[tokio::test]
async fn behind_a_claim_that_is_stuck_what_is_settled_is_kept_as_well_and_delivered_never() {
    let home = SoloHome::new();
    let gate = home.open_keeping(1_000_000, KEEP);
    gate.load(home.loading(1, 1_000)).await.unwrap();
    admit(&home, &gate, "stuck", 1, 1).await;
    let held = gate.take(1).await.unwrap();
    admit(&home, &gate, "other", 30, 2).await;
    settle(&gate, 60).await;
    assert!(gate.tidy(0).await.unwrap());
    drop(gate);
    let gate = home.open_keeping(1_000_000, KEEP);
    assert_eq!((gate.backlog(), since(&gate, 0).await.len()), (1, 61));
    let taken = gate.take(usize::MAX).await.unwrap();
    assert_eq!(ids(&taken), ids(&held));
    gate.ack(&ids(&taken)).await.unwrap();
    admit(&home, &gate, "last", 1, 1).await;
    settle(&gate, 1).await;
    assert!(gate.tidy(0).await.unwrap());
    drop(gate);
    let gate = home.open_keeping(1_000_000, KEEP);
    assert_eq!((gate.backlog(), since(&gate, 0).await.len()), (0, 62));
    assert_eq!(gate.reading(ITEM).await.unwrap().unwrap().marks, 62);
}

#[tokio::test]
async fn a_million_claims_that_are_settled_make_no_start_longer() {
    const BATCHES: usize = 500;
    const OF: usize = 2_000;
    let home = SoloHome::new();
    let keep = Keep { bytes_max: 1 << 30, ..KEEP };
    let gate = home.open_keeping(u64::MAX, keep);
    gate.load(home.loading(1, 1_000_000)).await.unwrap();
    admit(&home, &gate, "u", BATCHES, OF).await;
    settle(&gate, BATCHES * OF).await;
    // The item leaves, so that nothing but what is kept is in the journal.
    gate.unload(ITEM).await.unwrap();
    assert_eq!(kept(&home).0, BATCHES as u64);
    drop(gate);
    let begun = Instant::now();
    let empty = SoloHome::new();
    drop(empty.open_keeping(u64::MAX, keep));
    let of_nothing = begun.elapsed();
    let begun = Instant::now();
    let gate = home.open_keeping(u64::MAX, keep);
    let took = begun.elapsed();
    let begun = Instant::now();
    gate.upkeep().await.unwrap();
    let upkeep = begun.elapsed();
    println!(
        "a start with a million kept: {took:?}, an empty one: {of_nothing:?}; upkeep {upkeep:?}"
    );
    // To read a million claims takes longer than this on any machine; to look at one row does not.
    assert!(took < of_nothing * 20 + Duration::from_millis(100), "{took:?}");
    assert_eq!(since(&gate, 0).await.len(), BATCHES * OF);
}

/// A gate of its own at this server, with so much room for what is kept.
async fn keeping(home: &RedisHome, keep: Keep) -> RedisGate {
    RedisGate::open(RedisOptions { keep, ..home.options("one") }).await.unwrap()
}

fn kept_in_redis(home: &RedisHome) -> u64 {
    let bytes =
        |partition| home.call(&["GET", &format!("{}:{{p{partition}}}:kept_bytes", home.prefix)]);
    (0..PARTITIONS).map(|partition| bytes(partition).parse::<u64>().unwrap_or(0)).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_keeps_is_never_more_than_it_may_be_and_goes_with_time() {
    let home = RedisHome::new();
    let keep = Keep { bytes_max: 20_000, ..KEEP };
    let gate = keeping(&home, keep).await;
    begin(&home, &gate, 10_000).await;
    gate.upkeep().await.unwrap();
    admit(&home, &gate, "u", 100, 20).await;
    settle(&gate, 2_000).await;
    gate.upkeep().await.unwrap();
    let (told, bytes) = (since(&gate, 0).await.len(), kept_in_redis(&home));
    assert!(bytes <= 20_000 && told > 100, "{told} claims, {bytes} bytes");
    assert_eq!(gate.measure_backlog().await.unwrap(), 0);
    // Another process keeps them for a moment only, and trims what the first one has kept.
    let brief = keeping(&home, Keep { ms: 1, ..keep }).await;
    let begun = Instant::now();
    while !since(&brief, 0).await.is_empty() {
        assert!(begun.elapsed() < PATIENCE);
        brief.upkeep().await.unwrap();
    }
    assert_eq!(kept_in_redis(&home), 0);
    let left = home.call(&["EXISTS", &format!("{}:{{p0}}:kept", home.prefix)]);
    assert_eq!(left, "0", "an empty stream is none");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_memory_is_short_what_is_kept_is_the_first_thing_to_go() {
    let server = Redis::start(Server { appendonly: false, ..Server::default() }).unwrap();
    let home = RedisHome::at(&server.url());
    let gate = keeping(&home, Keep { bytes_max: 1 << 30, ..KEEP }).await;
    begin(&home, &gate, 1_000_000).await;
    gate.upkeep().await.unwrap();
    admit(&home, &gate, "u", 50, 100).await;
    settle(&gate, 5_000).await;
    assert_eq!(since(&gate, 0).await.len(), 5_000);
    let used: u64 = server.info("used_memory").unwrap().trim().parse().unwrap();
    let limit = |bytes: u64| {
        server.call(&["CONFIG", "SET", "maxmemory", &bytes.to_string()]).unwrap();
    };
    // Nearly full: given up before anything is refused, and nothing is kept until there is room.
    limit(used + used / 20);
    gate.upkeep().await.unwrap();
    assert_eq!(since(&gate, 0).await, []);
    admit(&home, &gate, "v", 1, 10).await;
    settle(&gate, 10).await;
    assert_eq!(since(&gate, 0).await, []);
    // Full, and nobody has looked yet: what is settled is acknowledged all the same.
    limit(0);
    gate.upkeep().await.unwrap();
    gate.upkeep().await.unwrap();
    admit(&home, &gate, "w", 1, 10).await;
    settle(&gate, 10).await;
    assert_eq!(since(&gate, 0).await.len(), 10);
    admit(&home, &gate, "x", 1, 10).await;
    limit(1);
    settle(&gate, 10).await;
    assert_eq!(gate.measure_backlog().await.unwrap(), 0);
    assert_eq!(since(&gate, 0).await, [], "all of it was given up");
    limit(0);
    let again = one(&gate, home.request("u-0-0", 1)).await;
    assert!(matches!(again, Decision::AlreadyBought { .. }), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_settled_twice_is_kept_once() {
    let home = RedisHome::new();
    let (gate, other) = (home.open_as("one").await, home.open_as("two").await);
    begin(&home, &gate, 100).await;
    let admitted = admit(&home, &gate, "u", 5, 4).await;
    let mut slow: Vec<LogEntry> = Vec::new();
    while slow.iter().map(|entry| entry.claims.len()).sum::<usize>() < 20 {
        slow.extend(gate.take(usize::MAX).await.unwrap());
    }
    // Another worker takes over what the first one has in hand for too long.
    settle(&other, 20).await;
    gate.ack(&ids(&slow)).await.unwrap();
    let told = since(&other, 0).await;
    assert_eq!(numbers(&told), admitted);
    let users: HashSet<_> = told.iter().map(|one| &one.claim.user).collect();
    assert_eq!((users.len(), gate.measure_backlog().await.unwrap()), (20, 0));
}

//! Stories of the Redis gate, on real servers: one Redis, and a cluster of six.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use faults::services::{Redis, RedisOptions as Server, shared_cluster};
use gate::{
    AdjustOutcome, Admission, Busy, ClaimRequest, Decision, GiveBack, Inspection, Loading,
    NumberedRequest, Upkeep,
    redis::{RedisGate, RedisOptions},
};
use sale::{Claim, ClaimLog, ItemId, KeyHash, OrderNo, UserId};

use crate::fixture::{
    Home, ITEM, RedisHome, admitted, ids, left, load, one, one_unit, order_numbers,
};

/// Whatever is waited for comes within this, or the story fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// The item over so many shards.
pub(crate) fn loading(home: &RedisHome, epoch: u64, left: i64, shards: u32) -> Loading {
    Loading { shards, ..home.loading(epoch, left) }
}

#[tokio::test]
async fn what_was_prepared_for_an_epoch_is_not_written_into_the_next() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 7, 10, 1)).await;
    admitted(&one(&gate, home.request("a", 1)).await);
    load(&home.open_as("other").await, loading(&home, 8, 10, 1)).await;
    let anew = admitted(&one(&gate, home.request("g", 1)).await);
    assert_eq!(anew.epoch, 8);
    assert_eq!(gate.take(1).await.unwrap()[0].claims[0].epoch, 7);
    assert_eq!(gate.take(1).await.unwrap()[0].claims, [anew]);
}

#[tokio::test]
async fn a_claim_that_the_ledger_has_is_still_marked() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 10, 2)).await;
    let claim = admitted(&one(&gate, home.request("ann", 1)).await);
    let taken = gate.take(10).await.unwrap();
    gate.ack(&ids(&taken)).await.unwrap();
    assert!(gate.queued(&claim.user, claim.order_no).await.unwrap().is_some());
}

#[tokio::test]
async fn an_answer_that_was_lost_is_found_by_its_number() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 2, 1)).await;
    let request = home.request("a", 1);
    let first = gate.admit(vec![request.clone()]).await;
    let again = gate.admit(vec![request.clone()]).await;
    assert_eq!(admitted(&first[0]).order_no, admitted(&again[0]).order_no);
    assert!(matches!(again[0], Decision::Admitted { repeated: false, .. }));
    assert_eq!(left(&gate).await, 1);
}

#[tokio::test]
async fn a_refused_adjustment_takes_back_what_it_took_from_the_shards() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 9, 3)).await;
    let no = home.numbers.next();
    assert_eq!(gate.adjust(ITEM, no, -10, false).await.unwrap(), AdjustOutcome::Short { left: 9 });
    assert!(gate.adjusts(ITEM).await.unwrap().is_empty(), "as if never asked");
    assert!(matches!(gate.adjust(ITEM, no, -9, false).await.unwrap(), AdjustOutcome::Done(_)));
    assert_eq!(left(&gate).await, 0);
}

#[tokio::test]
async fn a_dead_workers_entries_are_taken_over_and_the_stream_empties() {
    let home = RedisHome::new();
    let gate = home.open_as("first").await;
    load(&gate, loading(&home, 1, 50, 1)).await;
    for n in 0..20 {
        gate.admit(vec![home.request(&format!("u{n}"), 1)]).await;
    }
    let mut first = Vec::new();
    while first.len() < 20 {
        first.extend(gate.take(100).await.unwrap());
    }
    // The first worker settles half and is never heard of again.
    let ids: Vec<_> = first.iter().take(10).map(|entry| entry.id).collect();
    gate.ack(&ids).await.unwrap();
    gate.ack(&ids).await.unwrap();
    let second = home.open_as("second").await;
    let mut taken = Vec::new();
    while taken.len() < 10 {
        taken.extend(second.take(100).await.unwrap());
    }
    let numbers = |entries: &[sale::LogEntry]| -> HashSet<OrderNo> {
        order_numbers(entries).into_iter().collect()
    };
    assert_eq!(numbers(&taken), numbers(&first[10..]));
    second.upkeep().await.unwrap();
    assert_eq!(second.backlog(), 10);
    let ids: Vec<_> = taken.iter().map(|entry| entry.id).collect();
    second.ack(&ids).await.unwrap();
    // The first one was only asleep: acknowledging again removes nothing twice.
    gate.ack(&ids).await.unwrap();
    second.upkeep().await.unwrap();
    assert_eq!(second.backlog(), 0);
    assert!(second.in_flight(ITEM).await.unwrap().is_empty());
    assert_eq!(left(&second).await, 30, "settled claims keep their marks and units");
}

/// Buyers of whom half belong to one shard of four. The gate's own routing tells which is whose.
fn skewed(gate: &RedisGate, count: usize) -> Vec<String> {
    let home = |name: &String| gate.partition_of(ITEM, &name.parse().unwrap());
    let everybody = || (0..).map(|n| format!("buyer{n}"));
    let favourite = home(&"buyer0".to_owned());
    let half: Vec<String> = everybody().filter(|b| home(b) == favourite).take(count / 2).collect();
    let rest = everybody().filter(|b| home(b) != favourite).take(count - half.len());
    // Mixed, so that both kinds come at the same time.
    let pairs = half.clone().into_iter().zip(rest);
    pairs.flat_map(|(a, b)| [a, b]).collect()
}

async fn sell_all(
    home: &RedisHome,
    gates: &[RedisGate],
    buyers: &[String],
) -> (usize, Vec<Decision>) {
    let mut won = HashSet::new();
    let mut others = Vec::new();
    let mut runs = Vec::new();
    for (n, chunk) in buyers.chunks(50).enumerate() {
        let gate = gates[n % gates.len()].clone();
        let batch: Vec<NumberedRequest> = chunk.iter().map(|user| home.request(user, 1)).collect();
        runs.push(tokio::spawn(async move { gate.admit(batch).await }));
    }
    for run in runs {
        for decision in run.await.unwrap() {
            match decision {
                Decision::Admitted { claim, .. } => assert!(won.insert(claim.user)),
                other => others.push(other),
            }
        }
    }
    (won.len(), others)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_unit_is_stranded_in_a_shard() {
    let home = RedisHome::at(&shared_cluster().urls());
    let first = home.open_as("one").await;
    load(&first, loading(&home, 1, 300, 4)).await;
    let gates = [first, home.open_as("two").await];
    let (won, others) = sell_all(&home, &gates, &skewed(&gates[0], 2_000)).await;
    let unsure = others.iter().filter(|v| !matches!(v, Decision::SoldOut { .. })).count();
    assert_eq!((won, unsure), (300, 0));
    assert_eq!(left(&gates[1]).await, 0);
    // One unit comes back to some shard; anybody, of any shard, can buy it.
    let (user, order_no) = gates[0].marks(ITEM).await.unwrap().remove(0);
    let unit = GiveBack { item: ITEM, user, order_no, quantity: 1 };
    gates[0].release(&[unit]).await.unwrap();
    let mut sold = 0;
    for n in 0..20 {
        let decision = gates[1].admit(vec![home.request(&format!("late{n}"), 1)]).await.remove(0);
        sold += usize::from(matches!(decision, Decision::Admitted { .. }));
    }
    assert_eq!(sold, 1);
}

#[tokio::test]
async fn a_move_whose_mover_died_is_finished_by_anybody() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 2, 2)).await;
    // Item 42 lives in partitions 2 and 3 of four. Somebody took the unit of 3 and died.
    let key = |partition: usize, what: &str| format!("{}:{{p{partition}}}:{what}", home.prefix);
    home.call(&["SET", &key(3, "stock:42"), "0"]);
    home.call(&["HSET", &key(3, "moves"), "dead-1", "42:1:2:1:0"]);
    assert_eq!(left(&gate).await, 2, "units on their way are counted");
    let mut won = 0;
    for n in 0..10 {
        let decision = one(&gate, home.request(&format!("u{n}"), 1)).await;
        won += usize::from(matches!(decision, Decision::Admitted { .. }));
    }
    assert_eq!(won, 2);
    // A second slow one gives again: nothing happens.
    home.call(&["HSET", &key(3, "moves"), "dead-1", "42:1:2:1:0"]);
    gate.upkeep().await.unwrap();
    assert_eq!(left(&gate).await, 0);
    assert_eq!(home.call(&["HLEN", &key(3, "moves")]), "0");
}

#[tokio::test]
async fn a_dead_movers_clock_does_not_keep_its_units_away() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 2, 2)).await;
    let key = |partition: usize, what: &str| format!("{}:{{p{partition}}}:{what}", home.prefix);
    home.call(&["SET", &key(3, "stock:42"), "0"]);
    // It died an hour from now, or so its clock said; or ours was set back since.
    let ahead = std::time::SystemTime::now() + Duration::from_secs(3_600);
    let since = ahead.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    home.call(&["HSET", &key(3, "moves"), "dead-1", &format!("42:1:2:1:{since}")]);
    gate.upkeep().await.unwrap();
    assert_eq!(home.call(&["HLEN", &key(3, "moves")]), "1", "its mover may be about to finish it");
    tokio::time::sleep(Duration::from_millis(1_010)).await;
    gate.upkeep().await.unwrap();
    assert_eq!(home.call(&["HLEN", &key(3, "moves")]), "0");
    assert_eq!(home.call(&["GET", &key(2, "stock:42")]), "2");
}

#[tokio::test]
async fn writes_that_went_back_freeze_the_item_until_it_is_loaded_anew() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 9, 1)).await;
    let first = admitted(&one(&gate, home.request("a", 1)).await);
    admitted(&one(&gate, home.request("b", 1)).await);
    // As after a failover to a replica that had not seen the last claim.
    home.call(&["HINCRBY", &format!("{}:{{p2}}:meta:42", home.prefix), "seq", "-1"]);
    let decision = one(&gate, home.request("b2", 3)).await;
    assert_eq!(decision, Decision::Busy(Busy::Frozen));
    assert_eq!(gate.suspects(), [ITEM]);
    let calm = one(&gate, home.request("c", 1)).await;
    assert_eq!(calm, Decision::Busy(Busy::Frozen));
    load(&gate, Loading { marks: vec![first], ..loading(&home, 2, 8, 1) }).await;
    assert!(gate.suspects().is_empty());
    admitted(&one(&gate, home.request("c", 1)).await);
}

#[tokio::test]
async fn an_empty_or_silent_redis_is_a_closed_gate() {
    let server = Redis::start(Server::default()).unwrap();
    let home = RedisHome::at(&server.url());
    let gate = RedisGate::open(RedisOptions { answer_ms_max: 300, ..home.options("one") }).await;
    let gate = gate.unwrap();
    load(&gate, loading(&home, 1, 9, 1)).await;
    admitted(&one(&gate, home.request("a", 1)).await);
    server.pause().unwrap();
    let silent = gate.admit(vec![home.request("b", 1)]).await;
    assert_eq!(silent, [Decision::Busy(Busy::Unwritable)]);
    server.resume().unwrap();
    server.kill().unwrap();
    let gone = gate.admit(vec![home.request("b", 1)]).await;
    assert_eq!(gone, [Decision::Busy(Busy::Unwritable)]);
    server.restart().unwrap();
    // What was acknowledged with `appendfsync always` is still there.
    let mut back = Decision::Busy(Busy::Unwritable);
    for _ in 0..100 {
        back = one(&gate, home.request("a", 1)).await;
        if !matches!(back, Decision::Busy(_)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(matches!(back, Decision::AlreadyBought { .. }), "{back:?}");
    server.call(&["FLUSHALL"]).unwrap();
    let empty = gate.admit(vec![home.request("c", 1)]).await;
    assert_eq!(empty, [Decision::Busy(Busy::NotLoaded)]);
    assert!(gate.loaded().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_buyers_fit_into_150_megabytes() {
    const BUYERS: usize = 1_000_000;
    let server = Redis::start(Server { appendonly: false, ..Server::default() }).unwrap();
    let home = RedisHome::at(&server.url());
    let gate = home.open_as("one").await;
    let memory = || server.info("used_memory").unwrap().trim().parse::<i64>().unwrap();
    let before = memory();
    let claim = |n: usize| Claim {
        order_no: home.numbers.next(),
        item: ITEM,
        user: UserId::new(&format!("user-{n:07}")).unwrap(),
        quantity: 1,
        epoch: 1,
        claimed_ms: 0,
        key: Some(KeyHash(n as u64 + 1)),
    };
    let marks = (0..BUYERS).map(claim).collect();
    load(&gate, Loading { marks, ..loading(&home, 1, 10, 1) }).await;
    let used = memory() - before;
    println!("{} bytes per marked buyer", used / BUYERS as i64);
    assert!(used < 150_000_000, "{used} bytes");
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.marks, reading.marked_units), (BUYERS as u64, BUYERS as i64));
}

#[tokio::test]
async fn a_hot_item_of_one_shard_has_the_whole_log_and_not_more() {
    const WAITING_MAX: u64 = 40;
    let home = RedisHome::new();
    let open = async |consumer: &str| {
        let options = RedisOptions { log_claims_max: WAITING_MAX, ..home.options(consumer) };
        RedisGate::open(options).await.unwrap()
    };
    let gate = open("one").await;
    load(&gate, home.loading(1, 1_000)).await;
    let other = ItemId(ITEM.0 + 1);
    load(&gate, Loading { item: other, ..home.loading(1, 1_000) }).await;
    let full = Decision::Busy(Busy::LogFull);
    let began = Instant::now();
    let mut admitted = 0;
    while admitted < WAITING_MAX {
        assert!(began.elapsed() < PATIENCE, "refused with {admitted} on the log");
        let batch = (0..5).map(|n| home.request(&format!("u{admitted}-{n}"), 1)).collect();
        for decision in gate.admit(batch).await {
            match decision {
                Decision::Admitted { repeated: false, .. } => admitted += 1,
                refused => assert_eq!(refused, full),
            }
        }
    }
    assert_eq!(gate.measure_backlog().await.unwrap(), WAITING_MAX);
    let of_other = || (home.numbers.next(), ClaimRequest { item: other, ..one_unit("z") });
    assert_eq!(one(&gate, of_other()).await, full, "nothing is free for the others");
    // Another process knows it from its first look round.
    let second = open("two").await;
    second.upkeep().await.unwrap();
    assert_eq!(one(&second, of_other()).await, full);
    assert_eq!(one(&second, home.request("z", 1)).await, full);
    // What leaves makes room for whoever comes.
    let taken = gate.take(1).await.unwrap();
    gate.ack(&ids(&taken)).await.unwrap();
    let at_last = async || matches!(one(&gate, of_other()).await, Decision::Admitted { .. });
    while !at_last().await {
        assert!(began.elapsed() < PATIENCE, "a full log does not open again");
    }
}

//! Stories of the Redis gate, on real servers: one Redis, and a cluster of six.

use std::{collections::HashSet, sync::Arc, time::Duration};

use crate::fixture::{ITEM, admitted, give_back, keyed, lost, units};
use faults::services::{Redis, RedisOptions as Server, shared_cluster, shared_redis, unique_name};
use gate::{
    AdjustOutcome, Busy, Decision, Gate, GiveBack, Loading, NumberedRequest, Readmitted,
    redis::{RedisGate, RedisOptions},
};
use sale::{Claim, ClaimLog, Clock, KeyHash, OrderNo, OrderNumbers, SystemClock, UserId};

pub(crate) const PARTITIONS: usize = 4;

pub(crate) struct House {
    urls: Vec<String>,
    pub(crate) prefix: String,
    pub(crate) numbers: OrderNumbers,
}

impl House {
    fn at(urls: &str) -> House {
        House {
            urls: urls.split(',').map(str::to_owned).collect(),
            prefix: unique_name("gate"),
            numbers: OrderNumbers::new(0, Arc::new(SystemClock)),
        }
    }

    pub(crate) fn one() -> House {
        House::at(&shared_redis().url())
    }

    pub(crate) fn options(&self, consumer: &str) -> RedisOptions {
        RedisOptions {
            urls: self.urls.clone(),
            prefix: self.prefix.clone(),
            partitions: PARTITIONS,
            answer_ms_max: 2_000,
            log_claims_max: 1_000_000,
            consumer: consumer.into(),
            takeover_ms: 300,
            wait_replicas: 0,
            wait_ms_max: 1_000,
        }
    }

    pub(crate) async fn open(&self) -> RedisGate {
        self.open_as("one").await
    }

    pub(crate) async fn open_as(&self, consumer: &str) -> RedisGate {
        RedisGate::open(self.options(consumer)).await.unwrap()
    }

    pub(crate) fn request(&self, user: &str, quantity: u32) -> NumberedRequest {
        (self.numbers.next(), units(user, quantity))
    }

    /// A bare command to the server.
    pub(crate) fn call(&self, words: &[&str]) -> String {
        shared_redis().call(words).unwrap().text()
    }
}

pub(crate) fn loading(epoch: u64, left: i64, shards: u32) -> Loading {
    let now_ms = SystemClock.now_ms();
    Loading {
        item: ITEM,
        epoch,
        opens_ms: now_ms - 60_000,
        closes_ms: now_ms + 3_600_000,
        limit: 2,
        shards,
        left,
        marks: vec![],
        adjusted: vec![],
        shut: None,
    }
}

/// As the engine does, without a ledger to read in between.
pub(crate) async fn load(gate: &RedisGate, loading: Loading) -> bool {
    let begun = gate.begin_load(loading.item, loading.epoch, loading.shards).await.unwrap();
    begun && gate.load(loading).await.unwrap()
}

pub(crate) async fn left(gate: &RedisGate) -> i64 {
    gate.reading(ITEM).await.unwrap().unwrap().left
}

#[tokio::test]
async fn what_is_acknowledged_is_not_on_the_log_any_more() {
    let house = House::one();
    let gate = house.open().await;
    assert!(load(&gate, loading(1, 10, 2)).await);
    let claim = admitted(&gate.admit(vec![house.request("ann", 1)]).await[0]);
    assert!(gate.is_on_log(&claim).await.unwrap());
    // One that came after the log was read.
    let later = admitted(&gate.admit(vec![house.request("bob", 1)]).await[0]);
    assert!(gate.is_on_log(&later).await.unwrap());
    let stranger = Claim { order_no: house.numbers.next(), ..claim.clone() };
    assert!(!gate.is_on_log(&stranger).await.unwrap());
    let mut acked = 0;
    while acked < 2 {
        let entries = gate.take(10).await.unwrap();
        acked += entries.iter().map(|entry| entry.claims.len()).sum::<usize>();
        let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
        gate.ack(&ids).await.unwrap();
    }
    let gone = async {
        while gate.is_on_log(&claim).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("it is looked at anew");
    let held = gate.queued(&claim.user, claim.order_no).await.unwrap();
    assert!(held.is_some(), "though its buyer is marked");
}

#[tokio::test]
async fn a_batch_sells_what_there_is_and_no_more() {
    let house = House::one();
    let gate = house.open().await;
    let missing = gate.admit(vec![house.request("early", 1)]).await;
    assert_eq!(missing, [Decision::Busy(Busy::NotLoaded)], "missing state is closed");
    assert!(load(&gate, loading(1, 3, 1)).await);
    let batch = ["a", "b", "a", "c", "d"].map(|user| house.request(user, 1)).to_vec();
    let decisions = gate.admit(batch).await;
    let first = admitted(&decisions[0]);
    admitted(&decisions[1]);
    assert_eq!(decisions[2], Decision::AlreadyBought { order_no: first.order_no });
    admitted(&decisions[3]);
    assert!(matches!(decisions[4], Decision::SoldOut { left: 0, .. }));
    let over = gate.admit(vec![house.request("e", 3)]).await;
    assert_eq!(over, [Decision::OverLimit { limit: 2 }]);
    let entries = gate.take(100).await.unwrap();
    assert_eq!(entries.len(), 1, "one entry for the whole batch");
    let users: Vec<&str> = entries[0].claims.iter().map(|claim| claim.user.as_str()).collect();
    assert_eq!(users, ["a", "b", "c"]);
    assert_eq!((entries[0].item, entries[0].epoch), (ITEM, 1));
    let other = house.open_as("other").await;
    assert_eq!(left(&other).await, 0, "every instance sees the same");
    assert_eq!(
        other.queued(&first.user, first.order_no).await.unwrap().unwrap(),
        Claim { claimed_ms: first.order_no.made_ms(), ..first }
    );
}

/// A batch whose epoch is known and in which everybody wins is written as the caller prepared it;
/// any other is decided buyer by buyer. Both must leave the same behind.
#[tokio::test]
async fn a_batch_in_which_everybody_wins_is_like_any_other() {
    let house = House::one();
    let gate = house.open().await;
    load(&gate, loading(7, 10, 1)).await;
    let keyed = |user: &str, key| keyed(house.request(user, 1), key);
    let wish = vec![house.request("a", 1), house.request("b", 2), keyed("c", 5)];
    let prepared = vec![house.request("d", 2), keyed("e", 6), house.request("用户", 1)];
    let mut claims = Vec::new();
    for (before, batch) in [(0, wish), (3, prepared)] {
        let decisions = gate.admit(batch.clone()).await;
        for ((place, (order_no, request)), decision) in (before..).zip(&batch).zip(&decisions) {
            let claim = admitted(decision);
            assert_eq!((claim.order_no, &claim.user), (*order_no, &request.user));
            assert_eq!((claim.quantity, claim.key), (request.quantity, request.key));
            assert_eq!((claim.item, claim.epoch), (ITEM, 7));
            assert!(matches!(decision, Decision::Admitted { ahead, .. } if *ahead == place));
            claims.push(claim);
        }
    }
    let mixed = vec![house.request("f", 2), keyed("e", 6), house.request("f", 1)];
    let mixed = gate.admit(mixed).await;
    let last = admitted(&mixed[0]);
    assert_eq!(mixed[2], Decision::AlreadyBought { order_no: last.order_no });
    assert!(matches!(&mixed[1], Decision::Admitted { claim, repeated: true, .. }
        if claim.order_no == claims[4].order_no));
    claims.push(last);
    let entries = gate.take(100).await.unwrap();
    let logged: Vec<Claim> = entries.into_iter().flat_map(|entry| entry.claims).collect();
    assert_eq!(logged, claims, "the log says what the buyers were told");
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    let units: i64 = claims.iter().map(|claim| i64::from(claim.quantity)).sum();
    assert_eq!((reading.left, reading.marked_units), (10 - units, units));
    assert_eq!((reading.marks, reading.epoch), (claims.len() as u64, 7));
    assert_eq!(gate.measure_backlog().await.unwrap(), claims.len() as u64);

    // Another instance loads it anew: what was prepared for the old epoch is not written.
    load(&house.open_as("other").await, loading(8, 10, 1)).await;
    let anew = admitted(&gate.admit(vec![house.request("g", 1)]).await[0]);
    assert_eq!(anew.epoch, 8);
    assert_eq!(gate.take(100).await.unwrap()[0].claims, [anew]);
}

#[tokio::test]
async fn the_window_is_by_the_clock_of_redis() {
    let house = House::one();
    let gate = house.open().await;
    let soon = SystemClock.now_ms() + 60_000;
    load(&gate, Loading { opens_ms: soon, ..loading(1, 3, 1) }).await;
    let early = gate.admit(vec![house.request("a", 1)]).await;
    assert_eq!(early, [Decision::NotStarted { opens_ms: soon }]);
    load(&gate, Loading { closes_ms: soon - 120_000, opens_ms: 1, ..loading(2, 3, 1) }).await;
    assert_eq!(gate.admit(vec![house.request("a", 1)]).await, [Decision::Ended]);
}

#[tokio::test]
async fn keys_units_and_marks_across_instances() {
    let house = House::one();
    let gate = house.open().await;
    load(&gate, loading(1, 2, 1)).await;
    let with_key = |key| keyed(house.request("a", 1), key);
    let claim = admitted(&gate.admit(vec![with_key(7)]).await[0]);
    let other = house.open_as("other").await;
    let again = other.admit(vec![with_key(7)]).await.remove(0);
    assert!(matches!(again, Decision::Admitted { repeated: true, .. }), "{again:?}");
    assert_eq!(admitted(&again).order_no, claim.order_no);
    let for_two = || keyed(house.request("a", 2), 7);
    let reused = [Decision::KeyReused { order_no: claim.order_no }];
    assert_eq!(other.admit(vec![for_two()]).await, reused, "the same key for something else");
    assert_eq!(other.release(&[give_back(&claim)]).await.unwrap()[0].units, 1);
    assert_eq!(gate.release(&[give_back(&claim)]).await.unwrap(), []);
    assert_eq!(left(&gate).await, 2);
    let spent = gate.admit(vec![with_key(7)]).await.remove(0);
    assert!(matches!(spent, Decision::Admitted { repeated: true, .. }), "{spent:?}");
    assert_eq!(gate.admit(vec![for_two()]).await, reused, "also when it is spent");
    let second = admitted(&gate.admit(vec![with_key(8)]).await[0]);
    assert_ne!(second.order_no, claim.order_no);
    assert_eq!(other.marks(ITEM).await.unwrap(), [(second.user.clone(), second.order_no)]);
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.left, reading.marks, reading.marked_units), (1, 1, 1));
}

#[tokio::test]
async fn an_answer_that_was_lost_is_found_by_its_number() {
    let house = House::one();
    let gate = house.open().await;
    load(&gate, loading(1, 2, 1)).await;
    let request = house.request("a", 1);
    let first = gate.admit(vec![request.clone()]).await;
    let again = gate.admit(vec![request.clone()]).await;
    assert_eq!(admitted(&first[0]).order_no, admitted(&again[0]).order_no);
    assert!(matches!(again[0], Decision::Admitted { repeated: false, .. }));
    assert_eq!(left(&gate).await, 1);
}

#[tokio::test]
async fn warming_twice_changes_nothing_and_a_new_life_replaces_the_old() {
    let house = House::one();
    let gate = house.open().await;
    assert!(load(&gate, loading(1, 5, 2)).await);
    let claim = admitted(&gate.admit(vec![house.request("a", 1)]).await[0]);
    assert!(!load(&gate, loading(1, 5, 2)).await);
    assert_eq!(left(&gate).await, 4);
    let next = Loading { marks: vec![claim.clone()], ..loading(2, 4, 2) };
    assert!(load(&gate, next).await);
    assert!(!load(&gate, loading(1, 99, 2)).await, "a late message of the old life");
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.epoch, reading.left, reading.marks), (2, 4, 1));
    assert_eq!(reading.in_flight.len(), 1, "the claim of the old life is still owed");
    assert_eq!(gate.loaded().await.unwrap().len(), 1);
    gate.unload(ITEM).await.unwrap();
    assert!(gate.loaded().await.unwrap().is_empty());
    assert_eq!(gate.in_flight(ITEM).await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_adjustment_counts_once_over_all_shards() {
    let house = House::one();
    let gate = house.open().await;
    let number = || house.numbers.next();
    load(&gate, loading(1, 6, 3)).await;
    let more = number();
    assert!(matches!(gate.adjust(ITEM, more, 3, true).await.unwrap(), AdjustOutcome::Done(_)));
    assert_eq!(gate.adjust(ITEM, more, 3, true).await.unwrap(), AdjustOutcome::Repeated);
    assert_eq!(left(&gate).await, 9);
    let less = number();
    assert_eq!(
        gate.adjust(ITEM, less, -10, false).await.unwrap(),
        AdjustOutcome::Short { left: 9 }
    );
    assert_eq!(left(&gate).await, 9, "refused is as if never asked");
    assert!(matches!(gate.adjust(ITEM, less, -8, false).await.unwrap(), AdjustOutcome::Done(_)));
    assert_eq!(left(&gate).await, 1);
    assert_eq!(gate.forget_adjust(ITEM, less).await.unwrap().unwrap().units, 8);
    assert_eq!(left(&gate).await, 9);
}

#[tokio::test]
async fn a_number_stands_for_one_adjustment_until_the_ledger_says_otherwise() {
    for shards in [1, 3] {
        let house = House::one();
        let gate = house.open().await;
        load(&gate, loading(1, 10, shards)).await;
        let no = house.numbers.next();
        assert!(matches!(gate.adjust(ITEM, no, -5, false).await.unwrap(), AdjustOutcome::Done(_)));
        for other in [-3, 4] {
            let refused = gate.adjust(ITEM, no, other, false).await.unwrap();
            assert_eq!(refused, AdjustOutcome::Other { delta: -5 });
        }
        // More than there is: what the number took before is not undone by being refused more.
        let short = gate.adjust(ITEM, no, -30, false).await.unwrap();
        assert_eq!(short, AdjustOutcome::Short { left: 5 });
        assert_eq!(left(&gate).await, 5);
        assert_eq!(gate.adjusts(ITEM).await.unwrap(), [(no, -5)]);
        // The ledger has the number for another change: the gate follows, once.
        let followed = gate.adjust(ITEM, no, 2, true).await.unwrap();
        assert!(matches!(followed, AdjustOutcome::Done(_)), "{followed:?}");
        assert_eq!(gate.adjust(ITEM, no, 2, true).await.unwrap(), AdjustOutcome::Repeated);
        assert_eq!(left(&gate).await, 12);
        assert_eq!(gate.adjusts(ITEM).await.unwrap(), [(no, 2)]);
        assert_eq!(gate.forget_adjust(ITEM, no).await.unwrap().unwrap().units, -2);
        assert_eq!(left(&gate).await, 10);
    }
}

#[tokio::test]
async fn a_refused_adjustment_takes_back_what_it_took_from_the_shards() {
    let house = House::one();
    let gate = house.open().await;
    load(&gate, loading(1, 9, 3)).await;
    let no = house.numbers.next();
    assert_eq!(gate.adjust(ITEM, no, -10, false).await.unwrap(), AdjustOutcome::Short { left: 9 });
    assert!(gate.adjusts(ITEM).await.unwrap().is_empty(), "as if never asked");
    assert!(matches!(gate.adjust(ITEM, no, -9, false).await.unwrap(), AdjustOutcome::Done(_)));
    assert_eq!(left(&gate).await, 0);
}

#[tokio::test]
async fn a_lost_claim_is_admitted_again_even_from_another_shard() {
    let house = House::one();
    let gate = house.open().await;
    load(&gate, loading(1, 1, 4)).await;
    let lost = |user: &str| lost(house.numbers.next(), user);
    let claim = lost("a");
    assert_eq!(gate.readmit(&claim).await.unwrap(), Readmitted::Admitted);
    assert_eq!(gate.readmit(&claim).await.unwrap(), Readmitted::Known);
    assert_eq!(
        gate.readmit(&lost("a")).await.unwrap(),
        Readmitted::AlreadyBought { order_no: claim.order_no }
    );
    assert_eq!(gate.readmit(&lost("b")).await.unwrap(), Readmitted::SoldOut);
    assert_eq!(gate.take(9).await.unwrap()[0].claims[0].order_no, claim.order_no);
}

#[tokio::test]
async fn a_dead_workers_entries_are_taken_over_and_the_stream_empties() {
    let house = House::one();
    let gate = house.open_as("first").await;
    load(&gate, loading(1, 50, 1)).await;
    for n in 0..20 {
        gate.admit(vec![house.request(&format!("u{n}"), 1)]).await;
    }
    let mut first = Vec::new();
    while first.len() < 20 {
        first.extend(gate.take(100).await.unwrap());
    }
    // The first worker settles half and is never heard of again.
    let ids: Vec<_> = first.iter().take(10).map(|entry| entry.id).collect();
    gate.ack(&ids).await.unwrap();
    gate.ack(&ids).await.unwrap();
    let second = house.open_as("second").await;
    let mut taken = Vec::new();
    while taken.len() < 10 {
        taken.extend(second.take(100).await.unwrap());
    }
    let numbers = |entries: &[sale::LogEntry]| -> HashSet<OrderNo> {
        entries.iter().flat_map(|e| &e.claims).map(|c| c.order_no).collect()
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

#[tokio::test]
async fn what_is_given_back_is_delivered_again() {
    let house = House::one();
    let gate = house.open().await;
    load(&gate, loading(1, 5, 1)).await;
    gate.admit(vec![house.request("a", 1)]).await;
    let taken = gate.take(9).await.unwrap();
    let id = taken[0].id;
    gate.give_back(taken).await;
    assert_eq!(gate.take(9).await.unwrap()[0].id, id);
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

async fn sell_all(house: &House, gates: &[RedisGate], buyers: &[String]) -> (usize, Vec<Decision>) {
    let mut won = HashSet::new();
    let mut others = Vec::new();
    let mut runs = Vec::new();
    for (n, chunk) in buyers.chunks(50).enumerate() {
        let gate = gates[n % gates.len()].clone();
        let batch: Vec<NumberedRequest> = chunk.iter().map(|user| house.request(user, 1)).collect();
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
    let house = House::at(&shared_cluster().urls());
    let first = house.open_as("one").await;
    load(&first, loading(1, 300, 4)).await;
    let gates = [first, house.open_as("two").await];
    let (won, others) = sell_all(&house, &gates, &skewed(&gates[0], 2_000)).await;
    let unsure = others.iter().filter(|v| !matches!(v, Decision::SoldOut { .. })).count();
    assert_eq!((won, unsure), (300, 0));
    assert_eq!(left(&gates[1]).await, 0);
    // One unit comes back to some shard; anybody, of any shard, can buy it.
    let (user, order_no) = gates[0].marks(ITEM).await.unwrap().remove(0);
    let unit = GiveBack { item: ITEM, user, order_no, quantity: 1 };
    gates[0].release(&[unit]).await.unwrap();
    let mut sold = 0;
    for n in 0..20 {
        let decision = gates[1].admit(vec![house.request(&format!("late{n}"), 1)]).await.remove(0);
        sold += usize::from(matches!(decision, Decision::Admitted { .. }));
    }
    assert_eq!(sold, 1);
}

#[tokio::test]
async fn a_move_whose_mover_died_is_finished_by_anybody() {
    let house = House::one();
    let gate = house.open().await;
    load(&gate, loading(1, 2, 2)).await;
    // Item 42 lives in partitions 2 and 3 of four. Somebody took the unit of 3 and died.
    let key = |partition: usize, what: &str| format!("{}:{{p{partition}}}:{what}", house.prefix);
    house.call(&["SET", &key(3, "stock:42"), "0"]);
    house.call(&["HSET", &key(3, "moves"), "dead-1", "42:1:2:1:0"]);
    assert_eq!(left(&gate).await, 2, "units on their way are counted");
    let mut won = 0;
    for n in 0..10 {
        let decision = gate.admit(vec![house.request(&format!("u{n}"), 1)]).await.remove(0);
        won += usize::from(matches!(decision, Decision::Admitted { .. }));
    }
    assert_eq!(won, 2);
    // A second slow one gives again: nothing happens.
    house.call(&["HSET", &key(3, "moves"), "dead-1", "42:1:2:1:0"]);
    gate.upkeep().await.unwrap();
    assert_eq!(left(&gate).await, 0);
    assert_eq!(house.call(&["HLEN", &key(3, "moves")]), "0");
}

#[tokio::test]
async fn a_dead_movers_clock_does_not_keep_its_units_away() {
    let house = House::one();
    let gate = house.open().await;
    load(&gate, loading(1, 2, 2)).await;
    let key = |partition: usize, what: &str| format!("{}:{{p{partition}}}:{what}", house.prefix);
    house.call(&["SET", &key(3, "stock:42"), "0"]);
    // It died an hour from now, or so its clock said; or ours was set back since.
    let ahead = std::time::SystemTime::now() + Duration::from_secs(3_600);
    let since = ahead.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    house.call(&["HSET", &key(3, "moves"), "dead-1", &format!("42:1:2:1:{since}")]);
    gate.upkeep().await.unwrap();
    assert_eq!(house.call(&["HLEN", &key(3, "moves")]), "1", "its mover may be about to finish it");
    tokio::time::sleep(Duration::from_millis(1_010)).await;
    gate.upkeep().await.unwrap();
    assert_eq!(house.call(&["HLEN", &key(3, "moves")]), "0");
    assert_eq!(house.call(&["GET", &key(2, "stock:42")]), "2");
}

#[tokio::test]
async fn writes_that_went_back_freeze_the_item_until_it_is_loaded_anew() {
    let house = House::one();
    let gate = house.open().await;
    load(&gate, loading(1, 9, 1)).await;
    let first = admitted(&gate.admit(vec![house.request("a", 1)]).await[0]);
    admitted(&gate.admit(vec![house.request("b", 1)]).await[0]);
    // As after a failover to a replica that had not seen the last claim.
    house.call(&["HINCRBY", &format!("{}:{{p2}}:meta:42", house.prefix), "seq", "-1"]);
    let decision = gate.admit(vec![house.request("b2", 3)]).await.remove(0);
    assert_eq!(decision, Decision::Busy(Busy::Frozen));
    assert_eq!(gate.suspects(), [ITEM]);
    let calm = gate.admit(vec![house.request("c", 1)]).await.remove(0);
    assert_eq!(calm, Decision::Busy(Busy::Frozen));
    load(&gate, Loading { marks: vec![first], ..loading(2, 8, 1) }).await;
    assert!(gate.suspects().is_empty());
    admitted(&gate.admit(vec![house.request("c", 1)]).await[0]);
}

#[tokio::test]
async fn an_empty_or_silent_redis_is_a_closed_gate() {
    let server = Redis::start(Server::default()).unwrap();
    let house = House::at(&server.url());
    let gate = RedisGate::open(RedisOptions { answer_ms_max: 300, ..house.options("one") }).await;
    let gate = gate.unwrap();
    load(&gate, loading(1, 9, 1)).await;
    admitted(&gate.admit(vec![house.request("a", 1)]).await[0]);
    server.pause().unwrap();
    let silent = gate.admit(vec![house.request("b", 1)]).await;
    assert_eq!(silent, [Decision::Busy(Busy::Unwritable)]);
    server.resume().unwrap();
    server.kill().unwrap();
    let gone = gate.admit(vec![house.request("b", 1)]).await;
    assert_eq!(gone, [Decision::Busy(Busy::Unwritable)]);
    server.restart().unwrap();
    // What was acknowledged with `appendfsync always` is still there.
    let mut back = Decision::Busy(Busy::Unwritable);
    for _ in 0..100 {
        back = gate.admit(vec![house.request("a", 1)]).await.remove(0);
        if !matches!(back, Decision::Busy(_)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(matches!(back, Decision::AlreadyBought { .. }), "{back:?}");
    server.call(&["FLUSHALL"]).unwrap();
    let empty = gate.admit(vec![house.request("c", 1)]).await;
    assert_eq!(empty, [Decision::Busy(Busy::NotLoaded)]);
    assert!(gate.loaded().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_buyers_fit_into_150_megabytes() {
    const BUYERS: usize = 1_000_000;
    let server = Redis::start(Server { appendonly: false, ..Server::default() }).unwrap();
    let house = House::at(&server.url());
    let gate = house.open().await;
    let memory = || server.info("used_memory").unwrap().trim().parse::<i64>().unwrap();
    let before = memory();
    let claim = |n: usize| Claim {
        order_no: house.numbers.next(),
        item: ITEM,
        user: UserId::new(&format!("user-{n:07}")).unwrap(),
        quantity: 1,
        epoch: 1,
        claimed_ms: 0,
        key: Some(KeyHash(n as u64 + 1)),
    };
    let marks = (0..BUYERS).map(claim).collect();
    load(&gate, Loading { marks, ..loading(1, 10, 1) }).await;
    let used = memory() - before;
    println!("{} bytes per marked buyer", used / BUYERS as i64);
    assert!(used < 150_000_000, "{used} bytes");
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.marks, reading.marked_units), (BUYERS as u64, BUYERS as i64));
}

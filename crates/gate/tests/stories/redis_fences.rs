//! Stories of the Redis gate when several processes are at it at once, when a call is sent twice, and
//! when a part of it is broken. Processes that are in the middle of something are played by a gate of
//! their own, or by the keys they would have written.

use std::{collections::HashSet, time::Duration};

use gate::{
    AdjustOutcome, Admission, Busy, Decision, Inspection, Loading, NumberedRequest, Presence,
    Readmitted, Shut, Upkeep,
    redis::{RedisGate, RedisOptions},
};
use sale::{Claim, ClaimLog, ItemId, KeyHash, OrderNo};

use crate::{
    fixture::{Home, ITEM, PARTITIONS, RedisHome, admitted, give_back, keyed, left, load, one},
    redis::loading,
};

/// A key of the gate. Item 42 lives in the partitions 2, 3, 0, 1, in this order.
pub(crate) fn key(home: &RedisHome, partition: usize, what: &str) -> String {
    format!("{}:{{p{partition}}}:{what}", home.prefix)
}

/// A buyer whose mark is in this partition.
fn buyers_of<'a>(gate: &'a RedisGate, partition: usize) -> impl Iterator<Item = String> + 'a {
    let home = move |name: &String| gate.partition_of(ITEM, &name.parse().unwrap()) == partition;
    (0..).map(|n| format!("buyer{n}")).filter(home)
}

#[tokio::test]
async fn there_are_no_more_shards_than_partitions() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    let claim = home.lost("known");
    let wide = Loading { marks: vec![claim.clone()], ..loading(&home, 1, 10, 9) };
    assert!(load(&gate, wide).await);
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.left, reading.marks, reading.marked_units), (10, 1, 1));
    assert_eq!(home.call(&["HGET", &format!("{}:items", home.prefix), "42"]), "4");
    let batch = (0..50).map(|n| home.request(&format!("u{n}"), 1)).collect();
    let won =
        gate.admit(batch).await.into_iter().filter(|v| matches!(v, Decision::Admitted { .. }));
    assert_eq!(won.count(), 10);
    assert!(matches!(
        one(&home.open_as("other").await, home.request("known", 1)).await,
        Decision::AlreadyBought { order_no } if order_no == claim.order_no
    ));
}

#[tokio::test]
async fn of_two_loaders_the_later_one_stands_whatever_their_order() {
    let home = RedisHome::new();
    let (first, second) = (home.open_as("first").await, home.open_as("second").await);
    assert!(load(&first, loading(&home, 1, 5, 2)).await);
    assert!(first.begin_load(ITEM, 2, 2).await.unwrap());
    // What the first one reads now is five units. Then it is overtaken.
    assert!(second.begin_load(ITEM, 3, 2).await.unwrap());
    assert!(
        !first.load(loading(&home, 2, 5, 2)).await.unwrap(),
        "it does not own the item any more"
    );
    assert!(second.load(loading(&home, 3, 5, 2)).await.unwrap());
    admitted(&one(&second, home.request("a", 1)).await);
    assert!(!first.load(loading(&home, 2, 5, 2)).await.unwrap());
    assert!(!first.begin_load(ITEM, 2, 2).await.unwrap());
    // A late one who has not begun cannot wipe anything either.
    assert!(!first.load(loading(&home, 4, 99, 2)).await.unwrap());
    let reading = second.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.epoch, reading.left, reading.marks), (3, 4, 1));
    second.shut(ITEM, Some(Shut::Ended)).await.unwrap();
    assert!(!first.begin_load(ITEM, 5, 2).await.unwrap(), "ended is for good");
}

#[tokio::test]
async fn what_comes_from_the_ledger_during_a_load_comes_again() {
    let home = RedisHome::new();
    let (loader, other) = (home.open_as("loader").await, home.open_as("other").await);
    let (number, claim) = (home.numbers.next(), home.lost("a"));
    let unit = [give_back(&claim)];
    assert_eq!(other.release(&unit).await.unwrap(), [], "not here: the load will know");
    // The gate never had it, and yet it is closed for what comes.
    assert!(loader.begin_load(ITEM, 1, 2).await.unwrap());
    assert!(other.release(&unit).await.is_err());
    assert!(other.adjust(ITEM, number, 3, true).await.is_err());
    assert_eq!(one(&other, home.request("b", 1)).await, Decision::Busy(Busy::Frozen));
    assert_eq!(other.readmit(&claim).await.unwrap(), Readmitted::Frozen);
    assert!(other.reading(ITEM).await.unwrap().is_none(), "half loaded is not compared");
    let marks = vec![claim.clone()];
    assert!(loader.load(Loading { marks, ..loading(&home, 1, 4, 2) }).await.unwrap());
    assert_eq!(other.release(&unit).await.unwrap()[0].units, 1);
    assert!(matches!(other.adjust(ITEM, number, 3, true).await, Ok(AdjustOutcome::Done(_))));
    assert_eq!(left(&other).await, 8);
}

#[tokio::test]
async fn claims_admitted_until_a_load_begins_are_seen_by_it() {
    let home = RedisHome::new();
    let (gate, loader) = (home.open_as("one").await, home.open_as("loader").await);
    load(&gate, loading(&home, 1, 5, 2)).await;
    let claim = admitted(&one(&gate, home.request("a", 1)).await);
    assert!(loader.begin_load(ITEM, 2, 2).await.unwrap());
    assert_eq!(one(&gate, home.request("b", 1)).await, Decision::Busy(Busy::Frozen));
    assert_eq!(loader.in_flight(ITEM).await.unwrap().len(), 1);
    let again = gate.queued(&claim.user, claim.order_no).await.unwrap();
    assert_eq!(again.unwrap().order_no, claim.order_no, "marks stay until the load replaces them");
}

#[tokio::test]
async fn a_pause_during_a_load_is_not_forgotten() {
    let home = RedisHome::new();
    let (loader, operator) = (home.open_as("loader").await, home.open_as("operator").await);
    load(&loader, loading(&home, 1, 5, 2)).await;
    for (epoch, wish, then) in [
        (2, Some(Shut::Paused), Decision::Busy(Busy::Paused)),
        (3, Some(Shut::Ended), Decision::Ended),
    ] {
        assert!(loader.begin_load(ITEM, epoch, 2).await.unwrap());
        assert!(operator.shut(ITEM, wish).await.unwrap());
        let unit = [give_back(&home.lost("b"))];
        assert!(loader.release(&unit).await.is_err(), "not yet, even of what has ended");
        // The ledger was read before that.
        let opened = loader.load(loading(&home, epoch, 5, 2)).await.unwrap();
        assert!(opened);
        assert_eq!(one(&loader, home.request("a", 1)).await, then);
    }
}

const FILL: &str = include_str!("../../src/redis/lua/fill.lua");
const FINISH_LOAD: &str = include_str!("../../src/redis/lua/finish_load.lua");
const PUT_STOCK: &str = include_str!("../../src/redis/lua/put_stock.lua");
const TAKE_UNITS: &str = include_str!("../../src/redis/lua/take_units.lua");
const TIDY_GROUP: &str = include_str!("../../src/redis/lua/tidy_group.lua");
const WIPE: &str = include_str!("../../src/redis/lua/wipe.lua");

/// A script as the gate calls it; somebody may send it twice, or long after.
pub(crate) fn script(home: &RedisHome, text: &str, keys: &[String], args: &[&str]) -> String {
    let count = keys.len().to_string();
    let keys = keys.iter().map(String::as_str);
    let words: Vec<&str> =
        ["EVAL", text, &count].into_iter().chain(keys).chain(args.iter().copied()).collect();
    home.call(&words)
}

#[tokio::test]
async fn a_step_of_a_load_that_is_sent_twice_is_made_once() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    let of = |what: &str| key(&home, 2, &format!("{what}:42"));
    assert!(gate.begin_load(ITEM, 1, 1).await.unwrap());
    let moves = ["moves", "given", "settled"].map(|what| key(&home, 2, what));
    let items = ["meta", "stock", "users", "before", "adjusts"].map(of);
    let wiped: Vec<String> = items.into_iter().chain(moves).collect();
    let mark = "12345678\u{2}\0\0\0\u{1}\0\0\0\0\0\0\0\0\0\0\0";
    let filled = ["meta", "users", "before", "spent"].map(of);
    let fill_as = |n: &str| script(&home, FILL, &filled, &["1", n, "2", "9", "a", mark]);
    let fill = || fill_as("0");
    assert_eq!(fill(), "0", "not before it is wiped");
    assert_eq!(script(&home, WIPE, &wiped, &["1", "42"]), "1");
    assert_eq!(fill_as("1"), "2", "not before the first chunk");
    assert_eq!((fill(), fill()), ("1".into(), "1".into()));
    assert_eq!(script(&home, WIPE, &wiped, &["1", "42"]), "1", "late, and without effect");
    let put = |chunks: &str| {
        let args = ["1", chunks, "0", "9999999999999", "2", "5"];
        script(&home, PUT_STOCK, &["meta", "stock", "adjusts"].map(of), &args)
    };
    assert_eq!(put("2"), "0", "a chunk is missing");
    assert_eq!(put("1"), "1");
    let counted = [of("meta"), key(&home, 2, "changed")];
    let finish = || script(&home, FINISH_LOAD, &counted, &["1", "0"]);
    assert_eq!(finish(), "1");
    admitted(&one(&gate, home.request("b", 1)).await);
    gate.shut(ITEM, Some(Shut::Paused)).await.unwrap();
    assert_eq!(finish(), "1", "it is done already");
    assert_eq!((put("1"), fill()), ("0".into(), "0".into()), "the load is over");
    let reading = gate.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.left, reading.marks, reading.marked_units), (4, 2, 3));
    assert_eq!(reading.shut, Some(Shut::Paused));
}

#[tokio::test]
async fn what_a_loader_that_died_left_half_done_is_done_by_the_next() {
    let home = RedisHome::new();
    let (first, second) = (home.open_as("first").await, home.open_as("second").await);
    let buyer =
        |n: usize| Claim { key: Some(KeyHash(n as u64 + 1)), ..home.lost(&format!("u{n}")) };
    let buyers: Vec<Claim> = (0..3_000).map(buyer).collect();
    load(&first, Loading { marks: buyers.clone(), ..loading(&home, 1, 5, 2) }).await;
    // It dies when half of them are marked again…
    assert!(first.begin_load(ITEM, 2, 2).await.unwrap());
    assert!(first.fill(ITEM, 2, buyers[..1_500].to_vec()).await.unwrap());
    // …and by the time of the next one some orders of either half are closed.
    assert!(second.begin_load(ITEM, 3, 2).await.unwrap());
    assert!(!first.keep_loading(ITEM, 2).await.unwrap(), "it wakes up and is overtaken");
    assert!(!first.fill(ITEM, 2, buyers[1_500..].to_vec()).await.unwrap());
    let live = &buyers[100..2_900];
    assert!(second.fill(ITEM, 3, live.to_vec()).await.unwrap());
    assert!(second.load(loading(&home, 3, 205, 2)).await.unwrap());
    let reading = second.reading(ITEM).await.unwrap().unwrap();
    assert_eq!((reading.left, reading.marks, reading.marked_units), (205, 2_800, 2_800));
    for n in [0, 2_999] {
        let again = keyed(home.request(&format!("u{n}"), 1), n as u64 + 1);
        assert_eq!(admitted(&one(&second, again).await).order_no, buyers[n].order_no);
    }
    for partition in 0..PARTITIONS {
        assert_eq!(home.call(&["EXISTS", &key(&home, partition, "before:42")]), "0");
    }
}

#[tokio::test]
async fn a_loader_that_lives_is_seen_to_live_while_it_reads() {
    let home = RedisHome::new();
    let (loader, other) = (home.open_as("loader").await, home.open_as("other").await);
    assert!(loader.begin_load(ITEM, 1, 2).await.unwrap());
    let long_ago = (sale::SystemClock.now() - 60_000).to_string();
    for partition in [2, 3] {
        home.call(&["HSET", &key(&home, partition, "meta:42"), "loading", &long_ago]);
    }
    let presence = async || other.loaded_item(ITEM).await.unwrap().unwrap().presence;
    assert!(matches!(presence().await, Presence::Loading { quiet_ms: 60_000.. }));
    assert!(loader.keep_loading(ITEM, 1).await.unwrap());
    assert!(matches!(presence().await, Presence::Loading { quiet_ms: ..2_000 }));
    assert!(loader.load(loading(&home, 1, 5, 2)).await.unwrap());
    assert!(loader.keep_loading(ITEM, 1).await.unwrap(), "late, and without effect");
    assert_eq!(presence().await, Presence::Whole);
    other.unload(ITEM).await.unwrap();
    assert!(!loader.keep_loading(ITEM, 1).await.unwrap());
    assert_eq!(home.call(&["EXISTS", &key(&home, 2, "meta:42")]), "0", "it stays away");
}

#[tokio::test]
async fn others_see_that_an_item_is_being_loaded_torn_or_out_of_reach() {
    let home = RedisHome::new();
    let (gate, other) = (home.open_as("one").await, home.open_as("other").await);
    let presence = async || other.loaded_item(ITEM).await.unwrap().unwrap().presence;
    load(&gate, loading(&home, 1, 5, 2)).await;
    assert_eq!(presence().await, Presence::Whole);
    gate.begin_load(ITEM, 2, 2).await.unwrap();
    assert!(matches!(presence().await, Presence::Loading { quiet_ms: ..2_000 }));
    gate.abandon_load(ITEM, 1).await;
    assert!(matches!(presence().await, Presence::Loading { quiet_ms: ..2_000 }), "not its own");
    gate.abandon_load(ITEM, 2).await;
    assert!(matches!(presence().await, Presence::Loading { quiet_ms: 60_000.. }));
    let long_ago = (sale::SystemClock.now() - 60_000).to_string();
    for partition in [2, 3] {
        home.call(&["HSET", &key(&home, partition, "meta:42"), "loading", &long_ago]);
    }
    assert!(matches!(presence().await, Presence::Loading { quiet_ms: 60_000.. }));
    // A later one takes over from the dead one.
    assert!(load(&other, loading(&home, 3, 5, 2)).await);
    home.call(&["DEL", &key(&home, 3, "meta:42")]);
    assert_eq!(presence().await, Presence::Torn, "half gone is still to be seen");
    home.call(&["SET", &key(&home, 3, "meta:42"), "what a broken server says"]);
    let next = Loading { item: ItemId(40), ..loading(&home, 1, 7, 1) };
    assert!(load(&gate, next).await);
    let all = other.loaded().await.unwrap();
    let of = |item| all.iter().find(|here| here.item == ItemId(item)).unwrap().presence;
    assert_eq!((of(40), of(42)), (Presence::Whole, Presence::Unknown));
}

/// Milliseconds since 1970, by the clock that Redis has as well.
trait Now {
    fn now(&self) -> i64;
}

impl Now for sale::SystemClock {
    fn now(&self) -> i64 {
        sale::Clock::now_ms(self)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_promise_is_kept_while_there_are_units_in_any_shard() {
    const UNITS: usize = 60;
    let home = RedisHome::new();
    let gates = [home.open_as("one").await, home.open_as("two").await];
    load(&gates[0], loading(&home, 1, UNITS as i64, 4)).await;
    // All of them at home in one shard, which has a quarter of the units.
    let claims: Vec<Claim> =
        buyers_of(&gates[0], 2).take(UNITS).map(|user| home.lost(&user)).collect();
    let shown = claims.into_iter().enumerate().map(|(n, claim)| {
        let gate = gates[n % 2].clone();
        tokio::spawn(async move {
            loop {
                match gate.readmit(&claim).await.unwrap() {
                    Readmitted::Frozen => tokio::time::sleep(Duration::from_millis(5)).await,
                    answer => return answer,
                }
            }
        })
    });
    for shown in shown.collect::<Vec<_>>() {
        assert_eq!(shown.await.unwrap(), Readmitted::Admitted);
    }
    assert_eq!(left(&gates[0]).await, 0);
    let late = buyers_of(&gates[0], 2).nth(UNITS).unwrap();
    assert_eq!(gates[1].readmit(&home.lost(&late)).await.unwrap(), Readmitted::SoldOut);
}

#[tokio::test]
async fn units_on_their_way_to_a_shard_that_is_being_loaded_wait() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 2, 2)).await;
    home.call(&["SET", &key(&home, 3, "stock:42"), "0"]);
    home.call(&["HSET", &key(&home, 3, "moves"), "dead-1", "42:1:2:1:0"]);
    home.call(&["HSET", &key(&home, 2, "meta:42"), "loading", "1"]);
    gate.upkeep().await.unwrap();
    assert_eq!(home.call(&["HLEN", &key(&home, 3, "moves")]), "1", "still on its way");
    home.call(&["HDEL", &key(&home, 2, "meta:42"), "loading"]);
    assert_eq!(left(&gate).await, 2);
    gate.upkeep().await.unwrap();
    assert_eq!(home.call(&["HLEN", &key(&home, 3, "moves")]), "0");
    assert_eq!(home.call(&["GET", &key(&home, 2, "stock:42")]), "2");
}

#[tokio::test]
async fn a_move_that_is_over_does_not_begin_again() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 20, 2)).await;
    let keys =
        ["meta:42", "stock:42", "moves", "settled", "changed"].map(|what| key(&home, 3, what));
    let take = || script(&home, TAKE_UNITS, &keys, &["1", "mover-1", "42", "2", "4", "0"]);
    assert_eq!((take(), take()), ("5".into(), "5".into()), "noted, and told again");
    gate.upkeep().await.unwrap();
    assert_eq!(take(), "0", "sent once more after somebody else finished it");
    assert_eq!(left(&gate).await, 20);
    assert_eq!(home.call(&["GET", &key(&home, 2, "stock:42")]), "15");
}

#[tokio::test]
async fn a_shard_that_is_being_loaded_is_not_taken_for_empty() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 2, 2)).await;
    // The loader has opened one shard and is about to open the other.
    let meta = key(&home, 3, "meta:42");
    home.call(&["HSET", &meta, "loading", "1", "shut", "2"]);
    let mut hot = buyers_of(&gate, 2);
    admitted(&one(&gate, home.request(&hot.next().unwrap(), 1)).await);
    let next = hot.next().unwrap();
    assert_eq!(one(&gate, home.request(&next, 1)).await, Decision::Busy(Busy::Unwritable));
    assert!(gate.readmit(&home.lost(&next)).await.is_err(), "nobody knows yet");
    home.call(&["HSET", &meta, "shut", "0"]);
    home.call(&["HDEL", &meta, "loading"]);
    admitted(&one(&gate, home.request(&next, 1)).await);
}

#[tokio::test]
async fn an_adjustment_that_was_interrupted_is_finished() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 9, 3)).await;
    // The last shard is frozen for a moment: the others have given what they have.
    let meta = key(&home, 0, "meta:42");
    home.call(&["HSET", &meta, "shut", "2"]);
    let less = home.numbers.next();
    assert!(gate.adjust(ITEM, less, -8, true).await.is_err());
    home.call(&["HSET", &meta, "shut", "0"]);
    let units = async || -> i64 {
        let stocks = [2, 3, 0].map(|p| home.call(&["GET", &key(&home, p, "stock:42")]));
        stocks.iter().map(|stock| stock.parse::<i64>().unwrap()).sum()
    };
    assert_eq!(units().await, 3);
    assert!(matches!(gate.adjust(ITEM, less, -8, true).await.unwrap(), AdjustOutcome::Done(_)));
    assert_eq!(units().await, 1);
    assert_eq!(gate.adjust(ITEM, less, -8, true).await.unwrap(), AdjustOutcome::Repeated);
    assert_eq!(units().await, 1);
    // One that the load contained has no part left to do, whatever it was.
    let contained = home.numbers.next();
    load(&gate, Loading { adjusted: vec![contained], ..loading(&home, 2, 5, 3) }).await;
    assert_eq!(gate.adjust(ITEM, contained, -4, true).await.unwrap(), AdjustOutcome::Repeated);
    // More than there is: the ledger has done it, the gate follows below zero.
    let deep = home.numbers.next();
    assert!(matches!(gate.adjust(ITEM, deep, -7, true).await.unwrap(), AdjustOutcome::Done(_)));
    assert_eq!(gate.adjust(ITEM, deep, -7, true).await.unwrap(), AdjustOutcome::Repeated);
    assert_eq!(units().await, -2);
}

#[tokio::test]
async fn a_mark_that_cannot_be_read_is_not_missing() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    let other = home.open_as("other").await;
    load(&gate, loading(&home, 1, 5, 1)).await;
    let claim = admitted(&one(&gate, home.request("a", 1)).await);
    let asked = async |gate: &RedisGate| gate.queued(&claim.user, claim.order_no).await;
    assert!(asked(&other).await.unwrap().is_some(), "loaded since it last looked");
    gate.begin_load(ITEM, 2, 1).await.unwrap();
    assert!(asked(&gate).await.unwrap().is_some());
    home.call(&["DEL", &key(&home, 2, "users:42")]);
    assert!(asked(&gate).await.is_err(), "the load has wiped it and will fill it in");
    assert!(gate.queued_of(&claim.user).await.unwrap().is_empty());
    gate.load(Loading { marks: vec![claim.clone()], ..loading(&home, 2, 4, 1) }).await.unwrap();
    assert!(asked(&gate).await.unwrap().is_some());
    let nobody: OrderNo = home.numbers.next();
    assert!(gate.queued(&claim.user, nobody).await.unwrap().is_none());
}

#[tokio::test]
async fn an_item_nobody_can_look_for_is_not_gone() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    let claim = home.lost("a");
    home.call(&["SET", &format!("{}:items", home.prefix), "what a broken server says"]);
    assert!(gate.release(&[give_back(&claim)]).await.is_err());
    assert!(gate.adjust(ITEM, home.numbers.next(), 1, true).await.is_err());
    assert!(gate.readmit(&claim).await.is_err());
    assert!(gate.reading(ITEM).await.is_err());
    assert_eq!(one(&gate, home.request("a", 1)).await, Decision::Busy(Busy::Unwritable));
}

#[tokio::test]
async fn an_item_that_is_being_loaded_holds_up_no_others() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    let frozen = ItemId(41);
    load(&gate, Loading { item: frozen, ..loading(&home, 1, 5, 1) }).await;
    load(&gate, loading(&home, 1, 5, 1)).await;
    let claim = admitted(&one(&gate, home.request("a", 1)).await);
    gate.begin_load(frozen, 2, 1).await.unwrap();
    let first = Claim { item: frozen, ..home.lost("b") };
    assert!(gate.release(&[give_back(&first), give_back(&claim)]).await.is_err());
    assert_eq!(left(&gate).await, 5);
}

#[tokio::test]
async fn a_broken_partition_stops_no_other() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 100, 4)).await;
    let batch = (0..40).map(|n| home.request(&format!("u{n}"), 1)).collect();
    gate.admit(batch).await;
    let mut taken = Vec::new();
    while taken.len() < PARTITIONS {
        taken.extend(gate.take(100).await.unwrap());
    }
    gate.upkeep().await.unwrap();
    assert_eq!(gate.backlog(), 40);
    let broken = ["backlog", "orders"]
        .map(|what| (key(&home, 3, what), key(&home, 3, &format!("{what}-away"))));
    for (name, away) in &broken {
        home.call(&["RENAME", name, away]);
        home.call(&["HSET", name, "what", "a broken server says"]);
    }
    home.call(&["HSET", &key(&home, 2, "moves"), "dead-1", "42:1:2:1:0"]);
    let ids: Vec<_> = taken.iter().map(|entry| entry.id).collect();
    gate.ack(&ids).await.unwrap();
    assert!(gate.upkeep().await.is_err(), "it is said");
    assert!(gate.measure_backlog().await.is_err());
    assert_eq!(home.call(&["HLEN", &key(&home, 2, "moves")]), "0", "and all else is done");
    let there: u64 = home.call(&["GET", &broken[0].1]).parse().unwrap();
    assert_eq!(gate.backlog(), there, "of the broken one the last number stands");
    // It is mended: what was settled meanwhile is acknowledged there, too.
    for (name, away) in &broken {
        home.call(&["DEL", name]);
        home.call(&["RENAME", away, name]);
    }
    gate.upkeep().await.unwrap();
    assert_eq!(gate.measure_backlog().await.unwrap(), 0);
    assert!(gate.in_flight(ITEM).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_this_process_has_in_hand_is_not_delivered_again() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 5, 1)).await;
    let stream = key(&home, 2, "orders");
    home.call(&["XADD", &stream, "*", "i", "42", "b", "nonsense"]);
    let claim = admitted(&one(&gate, home.request("a", 1)).await);
    let taken = gate.take(9).await.unwrap();
    assert_eq!(taken.len(), 1, "one that cannot be read holds up nobody");
    assert_eq!(taken[0].claims, [claim]);
    assert_eq!(gate.in_flight(ITEM).await.unwrap().len(), 1);
    // The ledger takes longer than `takeover_ms`.
    let more = tokio::time::timeout(Duration::from_millis(2_500), gate.take(9)).await;
    assert!(more.is_err(), "{more:?}");
    gate.ack(&[taken[0].id]).await.unwrap();
    assert_eq!(home.call(&["XLEN", &stream]), "1", "the unreadable one is left for a person");
}

#[tokio::test]
async fn workers_that_are_gone_are_forgotten_if_they_hold_nothing() {
    let home = RedisHome::new();
    let gate = home.open_as("mine").await;
    load(&gate, loading(&home, 1, 5, 1)).await;
    one(&gate, home.request("a", 1)).await;
    gate.take(9).await.unwrap();
    let stream = key(&home, 2, "orders");
    home.call(&["XGROUP", "CREATECONSUMER", &stream, "workers", "gone"]);
    let consumers = || home.call(&["XINFO", "STREAM", &stream, "FULL"]).matches("gone").count();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let tidy = |own: &str, idle: &str| {
        script(&home, TIDY_GROUP, std::slice::from_ref(&stream), &["workers", idle, own])
    };
    assert_eq!(tidy("mine", "3600000"), "0");
    assert_eq!(tidy("other", "5"), "1", "the one that holds an entry stays");
    assert_eq!(consumers(), 0);
    assert_eq!(gate.in_flight(ITEM).await.unwrap().len(), 1);
}

#[tokio::test]
async fn nobody_who_holds_a_mark_is_forgotten_by_a_rebuild() {
    let home = RedisHome::new();
    let (gate, other) = (home.open_as("one").await, home.open_as("other").await);
    load(&gate, loading(&home, 1, 5, 1)).await;
    let claim = admitted(&one(&gate, home.request("a", 1)).await);
    assert!(!other.may_hold_mark(ITEM, &claim.user, false));
    one(&other, home.request("a", 1)).await;
    load(&gate, Loading { marks: vec![claim.clone()], ..loading(&home, 2, 0, 1) }).await;
    assert!(gate.may_hold_mark(ITEM, &claim.user, false));
    assert!(other.may_hold_mark(ITEM, &claim.user, false), "it was told `already_bought` there");
}

#[tokio::test]
async fn a_batch_may_be_larger_than_a_script_can_bear() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 9_000, 1)).await;
    let batch: Vec<NumberedRequest> =
        (0..10_000).map(|n| home.request(&format!("u{n}"), 1)).collect();
    let decisions = gate.admit(batch).await;
    let mut counts = (HashSet::new(), 0);
    for decision in decisions {
        match decision {
            Decision::Admitted { claim, .. } => assert!(counts.0.insert(claim.user)),
            Decision::SoldOut { .. } => counts.1 += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((counts.0.len(), counts.1), (9_000, 1_000));
}

#[tokio::test]
async fn what_no_replica_has_is_not_told() {
    let home = RedisHome::new();
    let options = RedisOptions { wait_replicas: 1, wait_ms_max: 50, ..home.options("one") };
    let gate = RedisGate::open(options).await.unwrap();
    load(&gate, loading(&home, 1, 5, 1)).await;
    for _ in 0..2 {
        let told = one(&gate, home.request("a", 1)).await;
        assert_eq!(told, Decision::Busy(Busy::Unwritable), "neither admitted nor already bought");
    }
    assert_eq!(gate.readmit(&home.lost("b")).await.unwrap(), Readmitted::Frozen);
}

#[tokio::test]
async fn an_order_whose_claim_a_failover_took_is_adopted() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 5, 2)).await;
    let claims: Vec<Claim> = ["a", "b"].map(|user| Claim { quantity: 2, ..home.lost(user) }).into();
    let state = async || {
        let reading = gate.reading(ITEM).await.unwrap().unwrap();
        (reading.left, reading.marks, reading.marked_units)
    };
    gate.adopt(&claims).await.unwrap();
    assert_eq!(state().await, (5, 0, 0), "of this life nothing was lost");
    gate.begin_load(ITEM, 2, 2).await.unwrap();
    assert!(gate.adopt(&claims).await.is_err(), "the load may know them: ask again");
    gate.load(Loading { marks: vec![claims[0].clone()], ..loading(&home, 2, 3, 2) }).await.unwrap();
    for _ in 0..2 {
        gate.adopt(&claims).await.unwrap();
        assert_eq!(state().await, (1, 2, 4));
    }
    let mine = one(&gate, home.request("b", 1)).await;
    assert_eq!(mine, Decision::AlreadyBought { order_no: claims[1].order_no });
    assert_eq!(gate.release(&[give_back(&claims[1])]).await.unwrap()[0].units, 2);
}

#[tokio::test]
async fn an_item_of_which_nothing_is_sold_any_more_is_no_suspect() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 9, 1)).await;
    admitted(&one(&gate, home.request("a", 1)).await);
    home.call(&["HINCRBY", &key(&home, 2, "meta:42"), "seq", "-1"]);
    one(&gate, home.request("b", 3)).await;
    assert_eq!(gate.suspects(), [ITEM]);
    gate.forget_suspect(ITEM);
    assert!(gate.suspects().is_empty());
}

//! Stories of claims on their way, as the Redis gate tells of them: to workers, and to buyers who ask.

use faults::services::{Redis, RedisOptions, shared_cluster};
use gate::{Decision, Inspection, Loading, Upkeep};
use sale::{Claim, ClaimLog, ItemId, KeyHash};

use crate::{
    fixture::{Home, ITEM, RedisHome, admitted, keyed, load, one},
    redis::loading,
    redis_fences::{key, script},
};

/// The stream loses its first entry, as in a failover, and gives the id to what was its second.
const ROLL_BACK: &str = "\
    local entries = redis.call('XRANGE', KEYS[1], '-', '+') \
    redis.call('DEL', KEYS[1]) \
    redis.call('XGROUP', 'CREATE', KEYS[1], 'workers', '0', 'MKSTREAM') \
    redis.call('XADD', KEYS[1], entries[1][1], unpack(entries[2][2])) \
    return redis.call('INCRBY', KEYS[2], -1)";

#[tokio::test]
async fn an_id_that_is_given_twice_acknowledges_only_what_was_read() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    load(&gate, loading(&home, 1, 5, 1)).await;
    let first = admitted(&one(&gate, home.request("a", 1)).await);
    let taken = gate.take(9).await.unwrap();
    assert_eq!(taken[0].claims, [first]);
    let second = admitted(&one(&gate, home.request("b", 1)).await);
    let keys = ["orders", "backlog"].map(|what| key(&home, 2, what));
    assert_eq!(script(&home, ROLL_BACK, &keys, &[]), "1");
    gate.ack(&[taken[0].id]).await.unwrap();
    let waiting = gate.in_flight(ITEM).await.unwrap();
    assert_eq!(waiting, std::slice::from_ref(&second), "the other entry of that id is still there");
    // It is read, by whoever has the first one in hand as well, and acknowledged for itself.
    let again = loop {
        let mut again = gate.take(9).await.unwrap();
        again.retain(|entry| entry.id.place == taken[0].id.place);
        if let Some(entry) = again.pop() {
            break entry;
        }
    };
    assert_eq!((&again.claims[..], again.id == taken[0].id), (&[second][..], false));
    gate.ack(&[again.id]).await.unwrap();
    assert!(gate.in_flight(ITEM).await.unwrap().is_empty());
    assert_eq!(gate.measure_backlog().await.unwrap(), 0);
}

#[tokio::test]
async fn asking_for_an_unknown_order_is_one_call_however_many_items_there_are() {
    const ITEMS: i64 = 200;
    let redis = Redis::start(RedisOptions::default()).unwrap();
    let home = RedisHome::at(&redis.url());
    let (gate, other) = (home.open_as("one").await, home.open_as("other").await);
    for item in 1..=ITEMS {
        load(&gate, Loading { item: ItemId(item), ..loading(&home, 1, 9, 4) }).await;
    }
    let claim = admitted(&one(&gate, home.request("a", 1)).await);
    let unknown = home.numbers.next();
    let calls = || -> u64 {
        let names = ["evalsha", "eval", "hgetall"].map(|name| format!("cmdstat_{name}"));
        let stats = redis.call(&["INFO", "commandstats"]).unwrap().text();
        let of = |line: &str| line.split_once("calls=")?.1.split_once(',')?.0.parse::<u64>().ok();
        let counted = stats.lines().filter(|line| {
            names
                .iter()
                .any(|name| line.strip_prefix(name.as_str()).is_some_and(|l| l.starts_with(':')))
        });
        counted.filter_map(of).sum()
    };
    // The other one learns of the items, and the server of the script.
    assert!(other.queued(&claim.user, unknown).await.unwrap().is_none());
    for gate in [&gate, &other] {
        let before = calls();
        assert!(gate.queued(&claim.user, unknown).await.unwrap().is_none());
        assert_eq!(calls() - before, 1);
        assert_eq!(gate.queued_of(&claim.user).await.unwrap().len(), 1);
        assert_eq!(calls() - before, 2);
    }
    let queued = Claim { claimed_ms: claim.order_no.made_ms(), ..claim.clone() };
    // Where it was admitted, and where it was found before, only its item is asked, without a script.
    for (gate, scripts) in [(&gate, 0), (&other, 1), (&other, 0)] {
        let before = calls();
        let found = gate.queued(&claim.user, claim.order_no).await.unwrap();
        assert_eq!((found.as_ref(), calls() - before), (Some(&queued), scripts));
    }
}

#[tokio::test]
async fn in_a_cluster_a_claim_is_found_in_whatever_partition_it_is() {
    let home = RedisHome::at(&shared_cluster().urls());
    let (gate, other) = (home.open_as("one").await, home.open_as("other").await);
    for item in 41..45 {
        load(&gate, Loading { item: ItemId(item), ..loading(&home, 1, 9, 4) }).await;
    }
    for n in 0..8 {
        let claim = admitted(&one(&gate, home.request(&format!("buyer{n}"), 1)).await);
        for gate in [&gate, &other] {
            let found = gate.queued(&claim.user, claim.order_no).await.unwrap().unwrap();
            assert_eq!((found.item, found.order_no), (claim.item, claim.order_no));
            assert!(gate.queued(&claim.user, home.numbers.next()).await.unwrap().is_none());
            assert_eq!(gate.queued_of(&claim.user).await.unwrap().len(), 1);
        }
    }
}

#[tokio::test]
async fn of_two_orders_of_a_buyer_that_two_releases_left_behind_the_later_one_counts() {
    let home = RedisHome::new();
    let gate = home.open_as("one").await;
    let claims = [1, 2].map(|key| Claim { key: Some(KeyHash(key)), ..home.lost("a") });
    let with =
        |epoch, marks: &[Claim]| Loading { marks: marks.to_vec(), ..loading(&home, epoch, 5, 1) };
    load(&gate, with(1, &claims[..1])).await;
    // A loader dies with everybody put aside. One of a release that does not know of that finishes; by then
    // the buyer has another order.
    assert!(gate.begin_load(ITEM, 2, 1).await.unwrap());
    assert!(gate.fill(ITEM, 2, Vec::new()).await.unwrap());
    let (aside, unseen) = (key(&home, 2, "before:42"), key(&home, 2, "unseen"));
    assert_eq!(home.call(&["RENAME", &aside, &unseen]), "OK");
    load(&gate, with(3, &claims[1..])).await;
    assert_eq!(home.call(&["RENAME", &unseen, &aside]), "OK");
    // At the next load that order is closed, too, and its release is on its way.
    assert!(load(&gate, with(4, &[])).await);
    for (key, claim) in (1..).zip(&claims) {
        let told = one(&gate, keyed(home.request("a", 1), key)).await;
        let Decision::Admitted { claim: told, repeated: true, .. } = &told else {
            panic!("key {key} was answered before: {told:?}");
        };
        assert_eq!(told.order_no, claim.order_no);
    }
    assert_eq!(home.call(&["EXISTS", &aside]), "0");
}

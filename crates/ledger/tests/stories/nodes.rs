//! Nodes: no two processes ever make order numbers with the same one.

use ledger::{NODE_LEASE_MS_MAX, NODE_LEASE_MS_MIN};
use sale::NODES_MAX;

use crate::{NOON_MS, Shop, check};

async fn take(shop: &Shop, holder: &str, first: u16) -> Option<u16> {
    shop.take_node(holder, first, NOON_MS).await.unwrap().map(|lease| lease.node)
}

/// As if the ledger's clock were so much later: everything was written so much earlier.
async fn later(shop: &Shop, ms: i64) {
    let sql = format!("UPDATE tb_node SET taken_at = taken_at - {ms}, until_at = until_at - {ms}");
    shop.back_door.run(&sql).await.unwrap();
}

#[tokio::test]
async fn a_node_is_given_to_one_until_its_time_is_over_and_its_clock_is_passed() {
    check(async |shop| {
        assert_eq!(take(&shop, "ann", 7).await, Some(7));
        assert_eq!(take(&shop, "bob", 7).await, Some(8), "the next one that is free");
        assert_eq!(take(&shop, "eve", NODES_MAX - 1).await, Some(NODES_MAX - 1));
        assert_eq!(take(&shop, "joe", NODES_MAX - 1).await, Some(0), "and round");
        assert!(shop.renew_node(7, "bob", NOON_MS).await.unwrap().is_none());
        later(&shop, NODE_LEASE_MS_MIN + 1).await;
        // Ann may have gone on without the ledger for half of it, and his clock is not past that.
        assert_eq!(take(&shop, "tom", 7).await, Some(9));
        let past_ms = NOON_MS + NODE_LEASE_MS_MIN;
        let taken = shop.take_node("tom", 7, past_ms).await.unwrap().unwrap();
        assert_eq!((taken.node, taken.for_ms), (7, NODE_LEASE_MS_MIN));
        assert!(shop.renew_node(7, "ann", past_ms).await.unwrap().is_none(), "it is tom's");
    })
    .await;
}

#[tokio::test]
async fn a_node_is_given_for_longer_to_those_who_live_longer() {
    check(async |shop| {
        assert_eq!(take(&shop, "ann", 7).await, Some(7));
        for (lived_ms, for_ms) in [
            (60_000, NODE_LEASE_MS_MIN),
            (3_600_000, 4 * 3_600_000),
            (5 * 86_400_000, NODE_LEASE_MS_MAX),
        ] {
            later(&shop, lived_ms).await;
            let lease = shop.renew_node(7, "ann", NOON_MS).await.unwrap().unwrap();
            // What it has lived before counts, too.
            assert!((for_ms..for_ms + 600_000).contains(&lease.for_ms), "{lease:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_node_that_is_given_back_goes_to_those_whose_clock_is_past_it() {
    check(async |shop| {
        assert_eq!(take(&shop, "ann", 7).await, Some(7));
        shop.give_back_node(7, "bob", NOON_MS, 0).await.unwrap();
        assert_eq!(take(&shop, "bob", 7).await, Some(8), "it was not his to give back");
        shop.give_back_node(7, "ann", NOON_MS + 5, 0).await.unwrap();
        assert_eq!(take(&shop, "eve", 7).await, Some(9), "her clock is behind");
        let taken = shop.take_node("joe", 7, NOON_MS + 6).await.unwrap().unwrap();
        assert_eq!(taken.node, 7);
        // One that may still be used is not given to others at once; who lives takes it back.
        shop.give_back_node(7, "joe", NOON_MS, 60_000).await.unwrap();
        assert_eq!(shop.take_node("tom", 7, NOON_MS + 9).await.unwrap().unwrap().node, 10);
        assert!(shop.renew_node(7, "joe", NOON_MS).await.unwrap().is_some());
    })
    .await;
}

#[tokio::test]
async fn a_node_is_not_taken_back_by_those_whose_clock_is_not_past_its_last_holder() {
    check(async |shop| {
        assert_eq!(take(&shop, "ann", 7).await, Some(7));
        later(&shop, NODE_LEASE_MS_MIN + 1).await;
        let past_ms = NOON_MS + NODE_LEASE_MS_MIN;
        assert_eq!(shop.take_node("bob", 7, past_ms).await.unwrap().unwrap().node, 7);
        shop.give_back_node(7, "bob", past_ms + 5, 0).await.unwrap();
        for not_past_ms in [past_ms - 60_000, past_ms + 5] {
            assert_eq!(shop.renew_node(7, "ann", not_past_ms).await.unwrap(), None);
        }
        assert!(shop.renew_node(7, "ann", past_ms + 6).await.unwrap().is_some());
    })
    .await;
}

#[tokio::test]
async fn a_ledger_that_was_restored_leaves_nodes_to_those_who_hold_them() {
    check(async |shop| {
        assert_eq!(take(&shop, "ann", 7).await, Some(7));
        assert_eq!(take(&shop, "bob", 8).await, Some(8));
        // In the backup nobody had them yet.
        shop.back_door.run("DELETE FROM tb_node").await.unwrap();
        assert_eq!(take(&shop, "eve", 7).await, Some(7), "she cannot know");
        assert!(shop.renew_node(7, "ann", NOON_MS).await.unwrap().is_none(), "ann stops");
        assert!(shop.renew_node(8, "bob", NOON_MS).await.unwrap().is_some(), "bob goes on");
        assert_eq!(take(&shop, "joe", 8).await, Some(9));
    })
    .await;
}

#[tokio::test]
async fn when_the_ledgers_clock_was_set_back_nodes_of_the_dead_are_free_after_a_day() {
    check(async |shop| {
        assert_eq!(take(&shop, "ann", 7).await, Some(7));
        later(&shop, -30 * 86_400_000).await;
        let past_ms = NOON_MS + 2 * NODE_LEASE_MS_MAX;
        assert_eq!(shop.take_node("bob", 7, past_ms).await.unwrap().unwrap().node, 8);
        later(&shop, NODE_LEASE_MS_MAX + 1).await;
        assert_eq!(shop.take_node("eve", 7, past_ms).await.unwrap().unwrap().node, 7);
    })
    .await;
}

#[tokio::test]
async fn many_who_ask_for_a_node_at_once_get_one_each_and_then_there_are_no_more() {
    check(async |shop| {
        let (a, b, c, d) = tokio::join!(
            take(&shop, "ann", 7),
            take(&shop, "bob", 7),
            take(&shop, "eve", 7),
            take(&shop, "joe", 7),
        );
        let mut taken = [a, b, c, d];
        taken.sort();
        assert_eq!(taken, [Some(7), Some(8), Some(9), Some(10)]);
        let rows: Vec<String> = (11..NODES_MAX + 7)
            .map(|n| format!("({}, 'many', 0, 99999999999999, 0)", n % NODES_MAX))
            .collect();
        let sql = format!(
            "INSERT INTO tb_node (node, holder, taken_at, until_at, reach) VALUES {}",
            rows.join(", ")
        );
        shop.back_door.run(&sql).await.unwrap();
        assert_eq!(take(&shop, "tom", 7).await, None);
    })
    .await;
}

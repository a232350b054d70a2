//! From the log to the ledger: batches, outages, items that somebody holds, broken claims.

use orders::{AlertOptions, Alerts};
use sale::{Claim, ItemId, OrderNo, UserId};

use crate::{
    alerts::webhook,
    fakes::{TestWorkers, claim, claims, no, soon},
};

#[tokio::test]
async fn claims_of_an_item_are_merged_and_keep_their_order() {
    let test = TestWorkers::new();
    test.log.append(claims(1, 0..3));
    test.log.append(claims(2, 3..5));
    test.log.append(claims(1, 5..8));
    let workers = test.start();
    test.log.until_acked(3).await;
    let merged: Vec<OrderNo> = [0, 1, 2, 5, 6, 7].map(no).to_vec();
    test.book.0.see(|book| assert_eq!(book.calls, [merged, vec![no(3), no(4)]]));
    workers.stop().await;
    assert!(workers.rate_per_s() > 0.0);
    assert_eq!(workers.settled(), 8);
}

#[tokio::test]
async fn an_entry_larger_than_a_batch_is_settled_in_parts() {
    let mut test = TestWorkers::new();
    test.options.batch_claims_max = 4;
    test.log.append(claims(1, 0..10));
    let workers = test.start();
    test.log.until_acked(1).await;
    test.book.0.see(|book| {
        assert_eq!(book.calls.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
        assert_eq!(book.orders, (0..10).map(no).collect::<Vec<_>>());
    });
    workers.stop().await;
}

#[tokio::test]
async fn nothing_is_acknowledged_before_the_commit() {
    let test = TestWorkers::new();
    test.book.0.change(|book| book.held.insert(ItemId(1)));
    test.log.append(claims(1, 0..3));
    let workers = test.start();
    test.book.0.until(|book| book.calls.len() == 1).await;
    assert_eq!(test.log.0.see(|log| log.ack_tries), 0);
    test.book.0.change(|book| book.held.clear());
    test.log.until_acked(1).await;
    assert_eq!(test.book.0.see(|book| book.orders.len()), 3);
    workers.stop().await;
}

#[tokio::test]
async fn what_was_settled_but_not_acknowledged_comes_again_and_does_no_harm() {
    let test = TestWorkers::new();
    test.log.0.change(|log| log.ack_down = true);
    test.log.append(claims(1, 0..5));
    let first = test.start();
    test.log.0.until(|log| log.ack_tries >= 2).await;
    assert!(first.is_paused());
    first.stop().await;
    assert!(!first.is_running());
    assert!(test.log.0.see(|log| log.taken.is_empty() && log.acked.is_empty()), "handed back");

    test.log.0.change(|log| log.ack_down = false);
    let second = test.start();
    test.log.until_acked(1).await;
    test.book.0.see(|book| assert_eq!((book.orders.len(), book.repeated), (5, 5)));
    assert!(test.book.0.see(|book| book.failed.is_empty()));
    second.stop().await;
}

#[tokio::test]
async fn a_ledger_that_is_down_burns_no_tries() {
    let test = TestWorkers::new();
    test.book.0.change(|book| book.down = true);
    test.log.append(claims(1, 0..5));
    test.log.append(claims(2, 5..6));
    let workers = test.start();
    test.book.0.until(|book| book.calls.len() >= 20).await;
    assert!(workers.is_paused() && workers.is_running());
    assert_eq!(test.log.0.see(|log| log.ack_tries), 0);

    test.book.0.change(|book| book.down = false);
    test.log.until_acked(2).await;
    test.book.0.see(|book| {
        assert_eq!(book.orders, (0..6).map(no).collect::<Vec<_>>());
        assert!(book.failed.is_empty());
    });
    workers.stop().await;
    assert!(!workers.is_paused());
}

#[tokio::test]
async fn stopping_during_an_outage_hands_everything_back() {
    let test = TestWorkers::new();
    test.book.0.change(|book| book.down = true);
    test.log.append(claims(1, 0..5));
    let workers = test.start();
    test.book.0.until(|book| book.calls.len() >= 2).await;
    soon(workers.stop()).await;
    test.log.0.see(|log| {
        assert!(log.taken.is_empty());
        assert_eq!(log.entries.len(), 1);
    });
}

#[tokio::test]
async fn a_log_that_is_down_is_asked_again() {
    let test = TestWorkers::new();
    test.log.0.change(|log| log.take_down = true);
    let workers = test.start();
    test.log.0.until(|log| log.take_tries >= 3).await;
    assert!(workers.is_paused());
    test.log.append(claims(1, 0..2));
    test.log.0.change(|log| log.take_down = false);
    test.log.until_acked(1).await;
    workers.stop().await;
    assert!(!workers.is_paused());
}

#[tokio::test]
async fn a_contended_item_goes_to_retry_and_counts_as_a_try() {
    let test = TestWorkers::new();
    test.book.0.change(|book| book.contended.insert(ItemId(1)));
    test.log.append(claims(1, 0..3));
    let workers = test.start();
    test.log.until_acked(1).await;
    test.book.0.see(|book| {
        assert_eq!(book.calls.len(), 1, "no halving: nobody in the batch is at fault");
        assert!(book.failed.values().all(|one| one.tries == 1));
        assert_eq!(book.failed.len(), 3);
    });
    test.book.0.change(|book| book.contended.clear());
    test.clock.advance(10_000);
    workers.retry_now();
    test.book.0.until(|book| book.orders.len() == 3).await;
    workers.stop().await;
}

#[tokio::test]
async fn an_item_that_somebody_holds_keeps_no_other_item_waiting() {
    let test = TestWorkers::new();
    test.book.0.change(|book| book.locked.insert(ItemId(1)));
    test.log.append(claims(1, 0..3));
    test.log.append(claims(2, 3..6));
    let workers = test.start();
    test.log.until_acked(1).await;
    assert!(!workers.is_paused(), "the ledger is there");
    // What comes later joins what waits, and is not tried by the main loop.
    test.log.append(claims(1, 6..8));
    test.log.append(claims(2, 8..10));
    test.log.until_acked(2).await;
    let of_two: Vec<OrderNo> = (3..6).chain(8..10).map(no).collect();
    assert_eq!(test.book.0.see(|book| book.orders.clone()), of_two);
    assert_eq!(test.book.0.see(|book| book.failed.len()), 0, "no tries are burnt");
    test.book.0.change(|book| book.locked.clear());
    test.log.until_acked(4).await;
    assert_eq!(test.book.0.see(|book| book.orders.len()), 10);
    workers.stop().await;
}

#[tokio::test]
async fn stopping_hands_back_what_was_put_aside() {
    let test = TestWorkers::new();
    test.book.0.change(|book| book.locked.insert(ItemId(1)));
    test.log.append(claims(1, 0..3));
    test.log.append(claims(2, 3..6));
    let workers = test.start();
    test.log.until_acked(1).await;
    workers.stop().await;
    assert_eq!(test.log.0.see(|log| (log.entries.len(), log.taken.len())), (1, 1));
    test.book.0.change(|book| book.locked.clear());
    let workers = test.start();
    test.log.until_acked(2).await;
    workers.stop().await;
}

#[tokio::test]
async fn a_batch_that_is_too_much_for_a_slow_ledger_is_halved() {
    let test = TestWorkers::new();
    test.book.0.change(|book| book.claims_in_time = Some(40));
    test.log.append(claims(1, 0..100));
    let workers = test.start();
    test.log.until_acked(1).await;
    let sizes: Vec<usize> = test.book.0.see(|book| book.calls.iter().map(Vec::len).collect());
    assert_eq!(sizes, [100, 100, 50, 50, 25, 25, 50, 50, 25, 25]);
    assert_eq!(test.book.0.see(|book| (book.orders.len(), book.failed.len())), (100, 0));
    workers.stop().await;
}

#[tokio::test]
async fn two_buyers_with_one_number_are_two_claims() {
    let test = TestWorkers::new();
    let twin = Claim { user: UserId::new("twin").unwrap(), ..claim(1, 7) };
    test.log.append(vec![claim(1, 7), twin, claim(1, 7)]);
    let workers = test.start();
    test.log.until_acked(1).await;
    assert_eq!(test.book.0.see(|book| book.calls.clone()), [vec![no(7), no(7)]]);
    workers.stop().await;
}

#[tokio::test]
async fn a_claim_that_cannot_even_be_put_aside_keeps_its_entry_on_the_log() {
    let mut test = TestWorkers::new();
    let (url, mut posts) = webhook(vec![]).await;
    test.alerts = Alerts::start(AlertOptions { webhook_url: Some(url), ..Default::default() });
    test.book.0.change(|book| {
        book.poison.extend([no(2), no(3)]);
        book.unspeakable.insert(no(2));
    });
    let kept = test.log.append(claims(1, 0..5));
    test.log.append(claims(1, 5..8));
    let workers = test.start();
    test.log.until_acked(1).await;
    test.log.0.see(|log| assert_eq!(log.entries.keys().collect::<Vec<_>>(), [&kept]));
    test.book.0.see(|book| {
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
    let test = TestWorkers::new();
    test.book.0.change(|book| book.forgotten.insert(no(1)));
    test.log.append(claims(1, 0..4));
    let workers = test.start();
    test.log.until_acked(1).await;
    assert_eq!(test.book.failed(no(1)).cause, "the ledger answered for 0 of 1 claims");
    assert_eq!(test.book.0.see(|book| book.orders.len()), 3);
    workers.stop().await;
}

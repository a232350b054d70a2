//! From the log of the gate by a broker to the ledger: what a crash, a lost answer or a lost message does at
//! each point of the way.

use std::{sync::Arc, time::Duration};

use orders::broker::{BrokerLookBack, caught_up};
use sale::{BackPage, ItemId, LookBack, LookBackError, Millis};

use crate::{
    fakes::{claims, no, soon},
    memory_broker::{TestRelay, keys},
};

#[tokio::test]
async fn a_claim_stays_on_the_log_of_the_gate_until_the_ledger_has_it() {
    let all = TestRelay::new();
    all.test.book.0.change(|book| book.held.insert(ItemId(1)));
    all.gate.append(claims(1, 0..3));
    let (relay, workers) = all.start();
    all.test.book.0.until(|book| book.calls.len() == 1).await;
    assert!(all.gate.0.see(|log| log.relayed.len() == 1 && log.acked.is_empty()));
    assert!(all.broker.0.see(|broker| broker.confirmed.is_empty()));
    assert!(!caught_up(&*all.broker, Duration::ZERO).await.unwrap());
    all.test.book.0.change(|book| book.held.clear());
    all.broker.until_confirmed(1).await;
    all.gate.until_empty().await;
    assert!(caught_up(&*all.broker, Duration::ZERO).await.unwrap());
    assert_eq!(all.test.book.0.see(|book| book.orders.clone()), [no(0), no(1), no(2)]);
    relay.stop().await;
    workers.stop().await;
}

#[tokio::test]
async fn a_publish_without_an_answer_is_published_again_and_settled_once() {
    let all = TestRelay::new();
    all.broker.0.change(|broker| broker.answers_lost = 2);
    all.gate.append(claims(1, 0..3));
    let (relay, workers) = all.start();
    all.broker.until_confirmed(3).await;
    all.gate.until_empty().await;
    assert_eq!(all.gate.0.see(|log| log.acked.len()), 1);
    assert_eq!(all.test.book.0.see(|book| book.orders.len()), 3);
    relay.stop().await;
    workers.stop().await;
}

#[tokio::test]
async fn a_relay_that_dies_before_it_noted_what_the_broker_has_leaves_a_repetition() {
    let all = TestRelay::new();
    all.gate.append(claims(1, 0..3));
    all.test.book.0.change(|book| book.held.insert(ItemId(1)));
    let (relay, workers) = all.start();
    all.gate.0.until(|log| log.relayed.len() == 1).await;
    relay.stop().await;
    // The note is lost with it, and another one takes the entry.
    all.gate.0.change(|log| {
        log.taken.clear();
        log.relayed.clear();
    });
    let (second, others) = all.start();
    all.broker.0.until(|broker| broker.messages.len() == 2).await;
    all.test.book.0.change(|book| book.held.clear());
    all.broker.until_confirmed(2).await;
    all.gate.until_empty().await;
    assert_eq!(all.test.book.0.see(|book| book.orders.len()), 3);
    second.stop().await;
    workers.stop().await;
    others.stop().await;
}

#[tokio::test]
async fn what_is_delivered_again_after_it_was_settled_changes_nothing() {
    let all = TestRelay::new();
    all.gate.append(claims(1, 0..3));
    let (relay, workers) = all.start();
    all.broker.until_confirmed(1).await;
    // The crash was between the two acknowledgements.
    all.broker.rebalance();
    all.broker.0.change(|broker| broker.confirmed.clear());
    all.broker.until_confirmed(1).await;
    all.test.book.0.see(|book| assert_eq!((book.orders.len(), book.repeated), (3, 3)));
    assert_eq!(all.gate.0.see(|log| log.acked.len()), 1);
    relay.stop().await;
    workers.stop().await;
}

#[tokio::test]
async fn a_message_that_comes_twice_at_once_is_settled_once() {
    let all = TestRelay::new();
    all.test.book.0.change(|book| book.held.insert(ItemId(1)));
    all.gate.append(claims(1, 0..3));
    let (relay, workers) = all.start();
    all.test.book.0.until(|book| book.calls.len() == 1).await;
    all.broker.rebalance();
    all.test.book.0.change(|book| book.held.clear());
    all.broker.until_confirmed(1).await;
    all.gate.until_empty().await;
    relay.stop().await;
    workers.stop().await;
}

#[tokio::test]
async fn what_the_broker_refuses_goes_straight_to_the_workers() {
    let all = TestRelay::new();
    all.broker.0.change(|broker| broker.refuses = true);
    all.gate.append(claims(1, 0..3));
    let (relay, workers) = all.start();
    all.gate.until_empty().await;
    assert_eq!(all.test.book.0.see(|book| book.orders.len()), 3);
    assert!(relay.trouble().is_none(), "a refusal is an answer");
    relay.stop().await;
    workers.stop().await;
}

#[tokio::test]
async fn what_the_broker_confirmed_and_lost_is_published_again_in_time() {
    let all = TestRelay::new();
    all.broker.0.change(|broker| broker.messages_lost = 3);
    for n in 0..3 {
        all.gate.append(claims(1, n..n + 1));
    }
    let (relay, workers) = all.start();
    all.gate.0.until(|log| log.relayed.len() == 3).await;
    all.test.clock.advance(1_000);
    all.gate.until_empty().await;
    assert_eq!(all.test.book.0.see(|book| book.orders.len()), 3);
    relay.stop().await;
    workers.stop().await;
}

#[tokio::test]
async fn what_waits_at_the_broker_is_not_published_again_however_long_it_waits() {
    let all = TestRelay::new();
    all.test.book.0.change(|book| book.down = true);
    all.gate.append(claims(1, 0..3));
    let (relay, workers) = all.start();
    all.test.clock.advance(1_000_000);
    all.test.book.0.until(|book| book.calls.len() >= 10).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(all.broker.0.see(|broker| broker.messages.len()), 1);
    assert!(all.test.book.0.see(|book| book.failed.is_empty()), "no try is burnt");
    all.test.book.0.change(|book| book.down = false);
    all.gate.until_empty().await;
    relay.stop().await;
    workers.stop().await;
}

#[tokio::test]
async fn a_claim_that_nobody_can_note_holds_up_nothing_and_comes_again() {
    let all = TestRelay::new();
    all.test.book.0.change(|book| {
        book.poison.insert(no(1));
        book.unspeakable.insert(no(1));
    });
    all.gate.append(claims(1, 0..3));
    let (relay, workers) = all.start();
    all.broker.0.until(|broker| broker.later == 1).await;
    assert_eq!(all.test.book.0.see(|book| book.orders.clone()), [no(0), no(2)]);
    assert_eq!(all.gate.0.see(|log| log.entries.len()), 1, "it holds its units");
    all.test.book.0.change(|book| book.poison.clear());
    all.test.clock.advance(1_000);
    all.gate.until_empty().await;
    assert_eq!(all.test.book.0.see(|book| book.orders.len()), 3);
    relay.stop().await;
    workers.stop().await;
}

#[tokio::test]
async fn a_poison_claim_goes_up_the_ladder_and_the_others_of_its_message_do_not_wait() {
    let all = TestRelay::new();
    all.test.book.0.change(|book| book.poison.insert(no(1)));
    all.gate.append(claims(1, 0..3));
    let (relay, workers) = all.start();
    all.gate.until_empty().await;
    assert_eq!(all.test.book.0.see(|book| book.orders.clone()), [no(0), no(2)]);
    assert_eq!(all.test.book.failed(no(1)).tries, 1);
    all.broker.until_confirmed(1).await;
    relay.stop().await;
    workers.stop().await;
}

#[tokio::test]
async fn messages_of_others_are_passed_by() {
    let all = TestRelay::new();
    let theirs = TestRelay::new();
    theirs.gate.append(claims(1, 7..9));
    let (relay, workers) = theirs.start();
    theirs.gate.until_empty().await;
    relay.stop().await;
    workers.stop().await;
    let mut forged = theirs.broker.0.see(|broker| broker.messages.clone());
    let text = String::from_utf8(forged.remove(0)).unwrap().replace("\"u7\"", "\"me\"");
    all.broker.0.change(|broker| broker.messages.extend([text.into_bytes(), b"hello".to_vec()]));
    all.gate.append(claims(1, 0..1));
    let (relay, workers) = all.start();
    all.broker.until_confirmed(3).await;
    assert_eq!(all.test.book.0.see(|book| book.orders.clone()), [no(0)]);
    relay.stop().await;
    workers.stop().await;
}

#[tokio::test]
async fn a_broker_that_is_away_is_named_and_waited_for() {
    let all = TestRelay::new();
    all.broker.0.change(|broker| broker.down = true);
    all.gate.append(claims(1, 0..3));
    let (relay, workers) = all.start();
    all.broker.0.until(|broker| broker.publishes >= 3).await;
    assert_eq!(relay.trouble().as_deref(), Some("away"));
    assert_eq!(all.gate.0.see(|log| log.entries.len()), 1);
    all.broker.0.change(|broker| broker.down = false);
    all.gate.until_empty().await;
    while relay.trouble().is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    soon(relay.stop()).await;
    soon(workers.stop()).await;
}

/// A log of a gate where nothing waits.
struct NothingWaits;

#[async_trait::async_trait]
impl LookBack for NothingWaits {
    async fn look_back(
        &self,
        _: Millis,
        _: Option<&sale::BackMark>,
    ) -> Result<BackPage, LookBackError> {
        Ok(BackPage::default())
    }
}

#[tokio::test]
async fn looking_back_reads_what_the_broker_still_has() {
    let all = TestRelay::new();
    for n in 0..3 {
        all.gate.append(claims(1, n * 2..n * 2 + 2));
    }
    let (relay, workers) = all.start();
    all.gate.until_empty().await;
    relay.stop().await;
    workers.stop().await;
    let looking = BrokerLookBack {
        own: Arc::new(NothingWaits),
        broker: all.broker.clone(),
        keys: keys("a secret of the tests"),
    };
    let (mut found, mut from) = (Vec::new(), None);
    loop {
        let page = looking.look_back(0, from.as_ref()).await.unwrap();
        found.extend(page.claims.into_iter().map(|logged| logged.claim.order_no));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(found, (0..6).map(no).collect::<Vec<_>>());
    assert!(looking.look_back(0, Some(&"j7".parse().unwrap())).await.is_err());
}

//! The retry ladder, dead letters and their replay.

use orders::{AlertOptions, Alerts, RETRY_LADDER_MS_DEFAULT};
use sale::{FailedClaim, ItemId};

use crate::{
    alerts::webhook,
    fakes::{START_MS, TestWorkers, claim, claims, no, soon},
};

#[tokio::test]
async fn one_poison_claim_among_a_thousand_climbs_the_ladder_alone() {
    let mut test = TestWorkers::new();
    let (url, mut posts) = webhook(vec![500]).await;
    test.alerts = Alerts::start(AlertOptions {
        webhook_url: Some(url),
        webhook_pause_ms_min: 1,
        webhook_pause_ms_max: 2,
        ..Default::default()
    });
    let poison = no(617);
    test.book.0.change(|book| book.poison.insert(poison));
    test.log.append(claims(1, 0..1_000));
    let workers = test.start();

    test.log.until_acked(1).await;
    test.book.0.see(|book| {
        let good: Vec<_> = (0..1_000).map(no).filter(|no| *no != poison).collect();
        assert_eq!(book.orders, good, "the others settle in the same pass, in order");
        assert!(book.calls.len() <= 25, "halving, not trying one by one: {}", book.calls.len());
    });
    let first = test.book.failed(poison);
    assert_eq!((first.tries, first.next_try_ms), (1, Some(START_MS + 10_000)));

    let mut due_ms = START_MS;
    for (step, wait_ms) in RETRY_LADDER_MS_DEFAULT.into_iter().enumerate() {
        due_ms += wait_ms;
        let waiting = test.book.failed(poison);
        assert_eq!((waiting.tries, waiting.next_try_ms), (step as u32 + 1, Some(due_ms)));
        // A millisecond early it is left alone.
        test.clock.set(due_ms - 1);
        let (looks, calls) = test.book.0.see(|book| (book.due_calls, book.calls.len()));
        workers.retry_now();
        test.book.0.until(|book| book.due_calls > looks).await;
        assert_eq!(test.book.0.see(|book| book.calls.len()), calls);
        test.clock.set(due_ms);
        workers.retry_now();
        test.book.0.until(|book| book.failed[&poison].tries == step as u32 + 2).await;
    }
    let dead = test.book.failed(poison);
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
    let mut test = TestWorkers::new();
    test.options.retry_ladder_ms = vec![1_000];
    test.book.0.change(|book| book.poison.insert(no(7)));
    test.log.append(claims(1, 7..8));
    let workers = test.start();
    test.log.until_acked(1).await;
    test.clock.advance(1_000);
    workers.retry_now();
    test.book.0.until(|book| book.failed[&no(7)].next_try_ms.is_none()).await;
    assert_eq!(test.book.failed(no(7)).tries, 2);

    // The operator repaired the cause.
    test.book.0.change(|book| book.poison.clear());
    test.book.replay(no(7), START_MS);
    workers.retry_now();
    test.book.0.until(|book| book.orders == [no(7)] && book.failed.is_empty()).await;
    workers.stop().await;
}

#[tokio::test]
async fn a_replay_that_fails_has_the_whole_ladder_again() {
    let mut test = TestWorkers::new();
    test.options.retry_ladder_ms = vec![1_000, 2_000];
    let dead = FailedClaim { claim: claim(1, 7), tries: 3, next_try_ms: None, cause: "x".into() };
    test.book.0.change(|book| {
        book.poison.insert(no(7));
        book.failed.insert(no(7), dead)
    });
    let workers = test.start();
    test.book.replay(no(7), START_MS);
    workers.retry_now();
    test.book.0.until(|book| book.failed[&no(7)].tries == 1).await;
    assert_eq!(test.book.failed(no(7)).next_try_ms, Some(START_MS + 1_000));
    workers.stop().await;
}

#[tokio::test]
async fn a_slow_retry_does_not_delay_new_claims() {
    let test = TestWorkers::new();
    let old = FailedClaim {
        claim: claim(9, 1),
        tries: 1,
        next_try_ms: Some(START_MS),
        cause: "x".into(),
    };
    test.book.0.change(|book| {
        book.held.insert(ItemId(9));
        book.failed.insert(no(1), old)
    });
    let workers = test.start();
    test.book.0.until(|book| book.calls.contains(&vec![no(1)])).await;
    test.log.append(claims(1, 100..200));
    test.log.until_acked(1).await;
    assert_eq!(test.book.0.see(|book| book.orders.len()), 100);
    test.book.0.change(|book| book.held.clear());
    test.book.0.until(|book| book.orders.contains(&no(1))).await;
    workers.stop().await;
}

#[tokio::test]
async fn a_clock_that_is_set_right_does_not_keep_failed_claims_waiting() {
    const DAY_MS: i64 = 24 * 3_600_000;
    let test = TestWorkers::new();
    test.book.0.change(|book| book.poison.insert(no(7)));
    test.clock.advance(DAY_MS);
    test.log.append(claims(1, 7..8));
    let workers = test.start();
    test.log.until_acked(1).await;
    assert_eq!(test.book.failed(no(7)).next_try_ms, Some(START_MS + DAY_MS + 10_000));
    let looks = test.book.0.see(|book| book.due_calls);
    workers.retry_now();
    test.book.0.until(|book| book.due_calls > looks).await;

    test.book.0.change(|book| book.poison.clear());
    test.clock.set(START_MS);
    workers.retry_now();
    test.book.0.until(|book| book.orders == [no(7)] && book.failed.is_empty()).await;
    workers.stop().await;
}

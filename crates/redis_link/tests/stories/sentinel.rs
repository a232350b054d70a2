//! Sentinels that choose another primary.

use std::{sync::Arc, time::Duration};

use faults::services::RedisSentinels;
use futures_util::StreamExt;

use super::{OPTIONS, count, count_at, servers, until_counted};

#[tokio::test(flavor = "multi_thread")]
async fn connections_and_subscriptions_follow_the_primary_that_the_sentinels_choose() {
    let all = Arc::new(RedisSentinels::start().unwrap());
    let servers = servers(&all.url());
    let link = servers.link(OPTIONS).await.unwrap();
    assert_eq!(count(&link, "a").await.unwrap(), 1);
    // One sentinel less changes nothing.
    all.sentinels()[0].kill().unwrap();
    assert_eq!(servers.link(OPTIONS).await.map(drop).map_err(|e| e.to_string()), Ok(()));
    all.sentinels()[0].restart().unwrap();

    // The primary hangs: its sockets stay open and say nothing.
    let (old, moved) = (all.primary().unwrap(), servers.moved());
    let (_, reached) = count_at(&link, "a").await.unwrap();
    assert!(link.wait(&reached, "a", 1, 1_000).await.unwrap() >= 1);
    old.pause().unwrap();
    let took = all.wait_failed_over(old.address()).unwrap();
    moved.await;
    let counting = until_counted(&link, "a").await;
    println!("hung: failed over after {took:.1?}, counting {counting:.1?} later");
    assert!(counting < Duration::from_secs(5), "{counting:?}");
    assert!(count(&link, "a").await.unwrap() >= 4, "the replica had it");
    let late = link.wait(&reached, "a", 0, 1_000).await;
    assert!(late.is_err(), "nobody else tells what the replicas of the old one had: {late:?}");
    // It wakes up as the primary it believes to be; nobody of ours goes there any more.
    old.resume().unwrap();
    until_counted(&link, "a").await;
    let mut news = servers.subscribe("news").await.unwrap();
    let told = link.ask::<i64>(redis::cmd("PUBLISH").arg("news").arg("hello")).await.unwrap();
    assert_eq!(told, 1, "the subscription is at the primary");
    let heard = news.on_message().next().await.unwrap();
    assert_eq!(heard.get_payload_bytes(), b"hello");
}

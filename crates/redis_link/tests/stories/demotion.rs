//! One address, behind which somebody else answers now.

use std::time::Duration;

use faults::services::{Redis, RedisOptions, RedisPair};
use redis_link::LinkOptions;

use super::{OPTIONS, count, count_at, link, servers, until_counted};

#[tokio::test]
async fn a_primary_that_became_a_replica_is_left_though_its_sockets_stay_open() {
    let pair = RedisPair::start().unwrap();
    let servers = servers(&pair.url());
    let (many, other) =
        (servers.link(OPTIONS).await.unwrap(), servers.link(OPTIONS).await.unwrap());
    for key in ["a", "b", "c"] {
        assert_eq!(count(&many, key).await.unwrap(), 1);
        assert_eq!(count(&other, key).await.unwrap(), 2);
    }
    pair.demote().unwrap();
    pair.lead_to_the_primary();
    for key in ["a", "b", "c"] {
        // The first one is refused by the old primary and goes to the new one without a word.
        assert_eq!(count(&many, key).await.unwrap(), 3, "{key}");
    }
    assert_eq!(count(&other, "a").await.unwrap(), 4);
}

#[tokio::test]
async fn only_who_wrote_something_tells_who_else_has_it() {
    let pair = RedisPair::start().unwrap();
    // Nothing hangs here, but a replica that takes over on a busy machine may write its file for a while.
    let patient = LinkOptions { answer_within: Duration::from_secs(10), ..OPTIONS };
    let link = servers(&pair.url()).link(patient).await.unwrap();
    let (_, reached) = count_at(&link, "a").await.unwrap();
    assert_eq!(link.wait(&reached, "a", 1, 5_000).await.unwrap(), 1);
    pair.demote().unwrap();
    let refused = link.wait(&reached, "a", 0, 100).await.unwrap_err();
    assert_eq!(refused.code(), Some("READONLY"), "it is asked itself, once");
    pair.lead_to_the_primary();
    // The next one goes to the new primary, which has replicas of its own.
    let (_, anew) = count_at(&link, "a").await.unwrap();
    assert!(link.wait(&reached, "a", 0, 100).await.is_err(), "not by way of the new primary");
    assert_eq!(link.wait(&anew, "a", 1, 5_000).await.unwrap(), 1);
}

#[tokio::test]
async fn a_server_that_stays_a_replica_is_asked_again_now_and_then() {
    let pair = RedisPair::start().unwrap();
    let link = link(&pair.url()).await;
    count(&link, "a").await.unwrap();
    pair.demote().unwrap();
    let refused = count(&link, "a").await.unwrap_err();
    assert_eq!(refused.code(), Some("READONLY"));
    let connections = || {
        let told = pair.replica().info("total_connections_received").unwrap();
        told.parse::<u64>().unwrap()
    };
    let before = connections();
    for _ in 0..200 {
        count(&link, "a").await.unwrap_err();
    }
    assert!(connections() - before < 150, "not one for every command");
    pair.lead_to_the_primary();
    let after = until_counted(&link, "a").await;
    println!("counting {after:.1?} after the address led to the primary");
}

#[tokio::test]
async fn a_server_that_hangs_is_connected_to_anew_and_one_that_blocks_is_left_in_peace() {
    let redis = Redis::start(RedisOptions::default()).unwrap();
    let link = link(&redis.url()).await;
    count(&link, "a").await.unwrap();
    redis.pause().unwrap();
    assert!(count(&link, "a").await.unwrap_err().is_timeout());
    redis.resume().unwrap();
    let after = until_counted(&link, "a").await;
    println!("counting {after:.1?} after it woke up");
    let blocking = LinkOptions { connections: 1, may_ask_twice: false, ..OPTIONS };
    let blocking = servers(&redis.url()).link(blocking).await.unwrap();
    let wait = redis::cmd("BLPOP").arg("nothing").arg(0.2).to_owned();
    blocking.ask::<Option<(String, String)>>(&wait).await.unwrap();
}

#[tokio::test]
async fn while_nobody_answers_a_failure_is_told_at_once() {
    let redis = Redis::start(RedisOptions::default()).unwrap();
    let link = link(&redis.url()).await;
    count(&link, "a").await.unwrap();
    redis.kill().unwrap();
    let started = std::time::Instant::now();
    for _ in 0..100 {
        count(&link, "a").await.unwrap_err();
    }
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    redis.restart().unwrap();
    until_counted(&link, "a").await;
}

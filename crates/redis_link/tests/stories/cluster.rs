//! A Redis Cluster whose members die, hang and take over from each other.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use faults::services::{RedisCluster, RedisOptions, SHARDS};
use redis_link::RedisLink;

use super::{count, link, until_counted};

/// A key of each shard.
fn keys(cluster: &RedisCluster) -> Vec<String> {
    let mut keys: HashMap<usize, String> = HashMap::new();
    for n in 0.. {
        let key = format!("{{k{n}}}:count");
        keys.entry(cluster.shard_of(&key).unwrap()).or_insert(key);
        if keys.len() == SHARDS {
            break;
        }
    }
    (0..SHARDS).map(|shard| keys.remove(&shard).unwrap()).collect()
}

/// Nobody takes over, and the others serve what they have.
fn without_failover() -> RedisOptions {
    let extra = ["--cluster-replica-no-failover", "yes", "--cluster-require-full-coverage", "no"];
    RedisOptions { extra: extra.map(String::from).to_vec(), ..RedisOptions::default() }
}

/// How long the slowest of some commands took.
async fn slowest(link: &RedisLink, keys: &[String], for_so_long: Duration) -> Duration {
    let (started, mut slowest) = (Instant::now(), Duration::ZERO);
    while started.elapsed() < for_so_long {
        for key in keys {
            let asked = Instant::now();
            count(link, key).await.unwrap();
            slowest = slowest.max(asked.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    slowest
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_hangs_or_dies_holds_up_only_what_is_there() {
    let cluster = RedisCluster::start_with(without_failover()).unwrap();
    let (keys, link) = (keys(&cluster), link(&cluster.urls()).await);
    for key in &keys {
        count(&link, key).await.unwrap();
    }
    let victim = cluster.primary(0).unwrap();
    for hang in [true, false] {
        if hang {
            victim.pause().unwrap()
        } else {
            victim.kill().unwrap()
        }
        // Somebody asks the dead one all the time.
        let (asking, key) = (link.clone(), keys[0].clone());
        let asking = tokio::spawn(async move {
            let mut failed = 0;
            loop {
                failed += u32::from(count(&asking, &key).await.is_err());
                assert!(failed < 1_000_000);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let slowest = slowest(&link, &keys[1..], Duration::from_secs(5)).await;
        asking.abort();
        println!("{}: others within {slowest:.1?}", if hang { "hung" } else { "dead" });
        assert!(slowest < Duration::from_millis(400), "{slowest:?}");
        if hang {
            victim.resume().unwrap();
            until_counted(&link, &keys[0]).await;
        }
    }
    victim.restart().unwrap();
    let back = until_counted(&link, &keys[0]).await;
    println!("counting {back:.1?} after it was back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_and_a_demotion_are_followed() {
    let cluster = RedisCluster::start().unwrap();
    let (keys, link) = (keys(&cluster), link(&cluster.urls()).await);
    for key in &keys {
        count(&link, key).await.unwrap();
    }
    // An operator changes the roles; the sockets to the old primary stay open.
    cluster.replica(1).unwrap().call(&["CLUSTER", "FAILOVER"]).unwrap();
    let followed = until_counted(&link, &keys[1]).await;
    println!("roles changed: counting after {followed:.1?}");
    let failed_over = cluster.kill_primary(2).unwrap();
    let followed = until_counted(&link, &keys[2]).await;
    println!("killed: failed over after {failed_over:.1?}, counting {followed:.1?} later");
    assert!(followed < Duration::from_secs(2), "{followed:?}");
    // One that moves slot by slot is followed, too.
    let (from, to) = (cluster.primary(0).unwrap(), cluster.primary(1).unwrap());
    let [from_id, to_id] = [from, to].map(|node| node.call(&["CLUSTER", "MYID"]).unwrap().text());
    let slot = from.call(&["CLUSTER", "KEYSLOT", &keys[0]]).unwrap().text();
    to.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).unwrap();
    from.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).unwrap();
    let (ip, port) = (to.address().ip().to_string(), to.address().port().to_string());
    from.call(&["MIGRATE", &ip, &port, &keys[0], "0", "1000"]).unwrap();
    count(&link, &keys[0]).await.unwrap();
    for node in [to, from] {
        node.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).unwrap();
    }
    count(&link, &keys[0]).await.unwrap();
}

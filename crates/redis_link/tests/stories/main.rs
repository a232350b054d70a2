//! Connections to real servers that die, hang, are demoted or promoted.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod cluster;
mod cut_off;
mod demotion;
mod sentinel;
mod tls;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::RedisResult;
use redis_link::{Call, LinkOptions, Reached, RedisAddress, RedisLink, RedisServers, Script};

const OPTIONS: LinkOptions =
    LinkOptions { answer_within: Duration::from_millis(500), connections: 2, may_ask_twice: true };

fn servers(url: &str) -> Arc<RedisServers> {
    RedisServers::new(&RedisAddress::new(url)).unwrap()
}

async fn link(url: &str) -> RedisLink {
    servers(url).link(OPTIONS).await.unwrap()
}

async fn count(link: &RedisLink, key: &str) -> RedisResult<i64> {
    link.ask(redis::cmd("INCR").arg(key)).await
}

/// The same by a script, and who has counted.
async fn count_at(link: &RedisLink, key: &str) -> RedisResult<(i64, Reached)> {
    static COUNT: Script = Script::new("return redis.call('INCR', KEYS[1])");
    link.run_at(&Call::new(&COUNT, [key.to_owned()])).await
}

/// Ask until it is counted; how long that took.
async fn until_counted(link: &RedisLink, key: &str) -> Duration {
    let started = Instant::now();
    loop {
        match count(link, key).await {
            Ok(_) => return started.elapsed(),
            Err(error) => assert!(started.elapsed() < Duration::from_secs(20), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

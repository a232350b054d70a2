//! The partitions of one deployment: how they are reached, and what everything in them is called.

use std::time::Duration;

use redis::{Cmd, FromRedisValue, RedisResult};
use redis_link::{Call, LinkOptions, Reached, RedisLink};

use super::{RedisOptions, keys::Keys};
use crate::Result;

/// Connections per server, shared by the partitions.
const CONNECTIONS: usize = 8;

pub(super) struct Store {
    link: RedisLink,
    pub(super) keys: Keys,
    pub(super) partitions: usize,
    /// So many replicas must have a claim before it is told…
    wait_replicas: u32,
    /// …and they are waited for so long.
    wait_ms_max: u64,
}

impl Store {
    pub(super) async fn open(options: &RedisOptions) -> Result<Store> {
        let link = LinkOptions {
            answer_within: Duration::from_millis(options.answer_ms_max),
            connections: CONNECTIONS,
            may_ask_twice: true,
        };
        Ok(Store {
            link: options.servers.link(link).await?,
            keys: Keys::new(&options.prefix),
            partitions: options.partitions,
            wait_replicas: options.wait_replicas,
            wait_ms_max: options.wait_ms_max,
        })
    }

    /// Where one script can see all partitions.
    pub(super) fn is_one_server(&self) -> bool {
        self.link.is_one_server()
    }

    pub(super) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        self.link.ask(command).await
    }

    pub(super) async fn run<T: FromRedisValue>(&self, call: &Call<'_>) -> RedisResult<T> {
        self.link.run(call).await
    }

    /// The same, and who answered: only they can tell whether it is replicated.
    pub(super) async fn run_at<T: FromRedisValue>(
        &self,
        call: &Call<'_>,
    ) -> RedisResult<(T, Reached)> {
        self.link.run_at(call).await
    }

    /// Do enough replicas have all that this partition has by now at the server that was reached? If that
    /// one cannot tell, they do not: whoever took its place may never have heard of it.
    pub(super) async fn is_replicated(&self, partition: usize, reached: &Reached) -> bool {
        let wanted = self.wait_replicas;
        if wanted == 0 {
            return true;
        }
        let backlog = self.keys.backlog(partition);
        let have = self.link.wait(reached, &backlog, wanted, self.wait_ms_max).await.unwrap_or(0);
        if have < i64::from(wanted) {
            tracing::warn!(partition, wanted, have, "too few replicas have the claims");
        }
        have >= i64::from(wanted)
    }
}

//! A connection to a Redis Cluster that does not stay broken.
//!
//! The client follows slots that move, but after failovers one was seen to go on asking for nodes
//! that are gone until its commands timed out, again and again. So failures that are not the
//! server's own answers are counted, and a connection that keeps failing is opened anew from the
//! addresses it was first opened with.
//!
//! They are counted by hash tag. The other nodes answer as ever, and their answers say nothing about
//! the one whose commands are lost.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use redis::{
    Arg, Cmd, ErrorKind, FromRedisValue, RedisResult, cluster::ClusterClient,
    cluster_async::ClusterConnection,
};

/// So many failures of one hash tag without an answer between them, over so long, and the connection
/// is replaced.
const FAILURES_MAX: u32 = 3;
const FAILING_FOR: Duration = Duration::from_secs(1);
/// Hash tags that are counted; there are as many as partitions, and some leases.
const TAGS_MAX: usize = 4_096;

pub struct ClusterLine {
    client: ClusterClient,
    connection: RwLock<ClusterConnection>,
    failing: Failing,
    /// Somebody is opening it anew.
    opening: AtomicBool,
}

impl ClusterLine {
    pub async fn open(client: ClusterClient) -> RedisResult<ClusterLine> {
        let connection = RwLock::new(client.get_async_connection().await?);
        let failing = Failing::default();
        Ok(ClusterLine { client, connection, failing, opening: AtomicBool::new(false) })
    }

    /// The connection of the moment. Whoever uses it tells [`ClusterLine::note`] how it went.
    pub fn connection(&self) -> ClusterConnection {
        self.connection.read().clone()
    }

    pub async fn query<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let done = command.query_async(&mut self.connection()).await;
        self.note_for(tag_of(command), &done).await;
        done
    }

    pub async fn note<T>(&self, done: &RedisResult<T>) {
        self.note_for(&[], done).await;
    }

    async fn note_for<T>(&self, tag: &[u8], done: &RedisResult<T>) {
        match done {
            Ok(_) => self.failing.answered(tag),
            // The server answered; the connection is fine.
            Err(error) if matches!(error.kind(), ErrorKind::Server(_)) => {}
            Err(_) if !self.failing.failed(tag, Instant::now()) => {}
            Err(_) if self.opening.swap(true, Ordering::AcqRel) => {}
            Err(_) => {
                self.open_anew().await;
                self.opening.store(false, Ordering::Release);
            }
        }
    }

    async fn open_anew(&self) {
        match self.client.get_async_connection().await {
            Ok(fresh) => {
                *self.connection.write() = fresh;
                tracing::info!("the connection to the Redis Cluster was opened anew");
            }
            Err(error) => tracing::debug!(%error, "the Redis Cluster cannot be reached"),
        }
        self.failing.forget();
    }
}

/// The hash tag of the first key that has one; without one, what follows the command's name.
fn tag_of(command: &Cmd) -> &[u8] {
    let words = || {
        command.args_iter().filter_map(|arg| match arg {
            Arg::Simple(word) => Some(word),
            _ => None,
        })
    };
    let tag = |word| {
        let from = <[u8]>::iter(word).position(|byte| *byte == b'{')? + 1;
        let length = word[from..].iter().position(|byte| *byte == b'}')?;
        Some(&word[from..from + length])
    };
    words().skip(1).find_map(tag).or_else(|| words().nth(1)).unwrap_or(&[])
}

/// Which hash tags fail, since when and how often.
#[derive(Default)]
struct Failing(Mutex<HashMap<Vec<u8>, (Instant, u32)>>);

impl Failing {
    fn answered(&self, tag: &[u8]) {
        let mut failing = self.0.lock();
        if !failing.is_empty() {
            failing.remove(tag);
        }
    }

    /// Answers whether it has failed for too long.
    fn failed(&self, tag: &[u8], now: Instant) -> bool {
        let mut failing = self.0.lock();
        if failing.len() >= TAGS_MAX && !failing.contains_key(tag) {
            return false;
        }
        let (since, count) = failing.entry(tag.to_vec()).or_insert((now, 0));
        *count += 1;
        *count >= FAILURES_MAX && now.duration_since(*since) >= FAILING_FOR
    }

    fn forget(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_other_nodes_do_not_excuse_one_that_fails() {
        let failing = Failing::default();
        let start = Instant::now();
        assert!(!failing.failed(b"p1", start));
        for second in 1..3 {
            failing.answered(b"p2");
            let now = start + Duration::from_secs(second);
            assert_eq!(failing.failed(b"p1", now), second == 2, "three in all");
        }
        failing.answered(b"p1");
        assert!(!failing.failed(b"p1", start + Duration::from_secs(9)), "counted anew");
    }

    #[test]
    fn a_command_is_counted_for_the_hash_tag_of_its_key() {
        let mut call = redis::cmd("EVALSHA");
        call.arg("ab12").arg(2).arg("seckill:{p3}:meta:42").arg("seckill:{p3}:stock:42");
        assert_eq!(tag_of(&call), b"p3");
        assert_eq!(tag_of(redis::cmd("HGETALL").arg("seckill:items")), b"seckill:items");
        assert_eq!(tag_of(&redis::cmd("PING")), b"");
    }
}

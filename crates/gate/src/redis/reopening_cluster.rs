//! A connection to a Redis Cluster that does not stay broken.
//!
//! The client follows slots that move, but after failovers one was seen to go on asking for nodes
//! that are gone until its commands timed out, again and again. So failures that are not the
//! server's own answers are counted, and a connection that keeps failing is opened anew from the
//! addresses it was first opened with.
//!
//! They are counted by where the key is: neighbouring slots are mostly at one node. The other nodes
//! answer as ever, and their answers say nothing about the one whose commands are lost.

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

/// So many failures in one neighbourhood without an answer between them, over so long, and the
/// connection is replaced.
const FAILURES_MAX: u32 = 3;
const FAILING_FOR: Duration = Duration::from_secs(1);
const SLOTS: u16 = 16_384;
/// The key is among the first words of a command.
const KEY_WITHIN_WORDS: usize = 12;
/// Slots that are neighbours, as far as the counting goes.
const NEIGHBOURS: u16 = 256;

pub struct ReopeningCluster {
    client: ClusterClient,
    connection: RwLock<ClusterConnection>,
    failing: Failing,
    /// Somebody is opening it anew.
    opening: AtomicBool,
}

impl ReopeningCluster {
    pub async fn open(client: ClusterClient) -> RedisResult<ReopeningCluster> {
        let connection = RwLock::new(client.get_async_connection().await?);
        let failing = Failing::default();
        Ok(ReopeningCluster { client, connection, failing, opening: AtomicBool::new(false) })
    }

    /// The connection of the moment. Whoever uses it tells [`ReopeningCluster::note`] how it went.
    pub fn connection(&self) -> ClusterConnection {
        self.connection.read().clone()
    }

    pub async fn query<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let done = command.query_async(&mut self.connection()).await;
        self.note_at(place_of(command), &done).await;
        done
    }

    /// How a command for this key went that was not sent by [`ReopeningCluster::query`].
    pub async fn note<T>(&self, key: &str, done: &RedisResult<T>) {
        self.note_at(neighbourhood(key.as_bytes()), done).await;
    }

    async fn note_at<T>(&self, place: u16, done: &RedisResult<T>) {
        match done {
            Ok(_) => self.failing.answered(place),
            // The server answered; the connection is fine.
            Err(error) if matches!(error.kind(), ErrorKind::Server(_)) => {}
            Err(_) if !self.failing.failed(place, Instant::now()) => {}
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

/// Where the key of a command is: the first word with a hash tag, or what follows the command's name.
fn place_of(command: &Cmd) -> u16 {
    let words = || {
        command.args_iter().skip(1).filter_map(|arg| match arg {
            Arg::Simple(word) => Some(word),
            _ => None,
        })
    };
    // Values come later, and may have braces as well.
    let is_key = |word: &&[u8]| tag_in(word).is_some() && !word.contains(&b'"');
    let key = words().take(KEY_WITHIN_WORDS).find(is_key).or_else(|| words().next());
    neighbourhood(key.unwrap_or(&[]))
}

/// What decides over the slot of a key that has it.
fn tag_in(key: &[u8]) -> Option<&[u8]> {
    let from = key.iter().position(|byte| *byte == b'{')? + 1;
    let length = key[from..].iter().position(|byte| *byte == b'}')?;
    Some(&key[from..from + length]).filter(|tag| !tag.is_empty())
}

fn neighbourhood(key: &[u8]) -> u16 {
    slot_of(tag_in(key).unwrap_or(key)) / NEIGHBOURS
}

/// The CRC that Redis Cluster uses.
fn slot_of(text: &[u8]) -> u16 {
    let bit = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    let byte = |crc: u16, byte: &u8| (0..8).fold(crc ^ (u16::from(*byte) << 8), bit);
    text.iter().fold(0, byte) % SLOTS
}

/// Which neighbourhoods fail, since when and how often.
#[derive(Default)]
struct Failing(Mutex<HashMap<u16, (Instant, u32)>>);

impl Failing {
    fn answered(&self, place: u16) {
        let mut failing = self.0.lock();
        if !failing.is_empty() {
            failing.remove(&place);
        }
    }

    /// Answers whether it has failed for too long.
    fn failed(&self, place: u16, now: Instant) -> bool {
        let mut failing = self.0.lock();
        let (since, count) = failing.entry(place).or_insert((now, 0));
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
        assert!(!failing.failed(1, start));
        for second in 1..3 {
            failing.answered(2);
            let now = start + Duration::from_secs(second);
            assert_eq!(failing.failed(1, now), second == 2, "three in all");
        }
        failing.answered(1);
        assert!(!failing.failed(1, start + Duration::from_secs(9)), "counted anew");
    }

    #[test]
    fn a_command_is_counted_where_its_key_is() {
        // As `CLUSTER KEYSLOT` says.
        assert_eq!((slot_of(b"123456789"), slot_of(b"foo")), (12_739, 12_182));
        let mut call = redis::cmd("EVALSHA");
        call.arg("ab12").arg(2).arg("seckill:{foo}:meta:42").arg("seckill:{foo}:stock:42");
        assert_eq!(place_of(&call), 12_182 / NEIGHBOURS);
        assert_eq!(place_of(redis::cmd("GET").arg("foo")), 12_182 / NEIGHBOURS);
        let catalogue = redis::cmd("SET").arg("foo").arg(r#"{"name":"bar"}"#).to_owned();
        assert_eq!(place_of(&catalogue), 12_182 / NEIGHBOURS);
        assert_eq!(place_of(&redis::cmd("PING")), 0);
    }
}

//! Real engines for tests: Redis, a primary with a replica, Sentinel, a Redis Cluster, MariaDB; nginx; and
//! the message brokers RocketMQ and Kafka.
//!
//! Each is the distribution's own program (a broker: the jars of Maven Central), started as a private
//! process on a free loopback port with a private directory under the build folder. The system's daemons
//! are never touched.
//!
//! Three promises, and who keeps them:
//!
//! - **Nothing outlives the test process**, even if that is killed: each service runs under a
//!   [`keeper`] that holds the read end of a pipe. When the last writer is gone, it kills.
//! - **Nobody takes our address while we are down**: ports are locked as long as the service's
//!   handle lives and come from below the range of outgoing connections ([`place`]).
//! - **No luck**: a service is ready when it answers, and every wait has a maximum.
//!
//! All calls block. In an async test that must keep running beside them, use
//! `tokio::task::spawn_blocking`; handles work through `&self` and can be shared.

mod certificates;
mod cluster;
mod java;
mod kafka;
mod keeper;
mod mariadb;
mod nginx;
mod pair;
mod place;
mod programs;
mod redis;
mod relay;
mod resp;
mod rocketmq;
mod sentinel;
mod tidb;

use std::{
    io,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

pub use certificates::Certificates;
pub use cluster::{RedisCluster, SHARDS};
pub use kafka::{Kafka, KafkaOptions, shared_kafka};
pub use keeper::wait_stopped;
pub use mariadb::{Held, MariaDb, MariaDbOptions};
pub use nginx::Nginx;
pub use pair::RedisPair;
pub(crate) use place::{Port, ServiceFolder, target as build_folder};
pub use programs::find as find_program;
pub use redis::{Redis, RedisOptions};
pub use relay::Relay;
pub use resp::{Client, Reply};
pub use rocketmq::{RocketMq, RocketMqOptions, shared_rocketmq};
pub use sentinel::{RedisSentinels, SENTINEL_NAME, Sentinel};
pub use tidb::{TIDB_VERSION, TidbStandIn, numbers_in_ranges};

/// Starting an engine takes a second; a machine that runs everything else too may need many.
const START_WITHIN: Duration = Duration::from_secs(60);
/// A polite stop flushes to disk first.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// A killed process is gone as soon as the kernel has let go of its memory.
const KILL_WITHIN: Duration = Duration::from_secs(20);
/// A replica copies its primary's data, and a cluster agrees on who is who.
const AGREE_WITHIN: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// The numbers from one to this, as a table with the column `seq`, in words that SQLite and every server
/// know: all combinations of so many digits. Its last word is a condition, so that more may follow.
pub fn numbers_to(last: u64) -> String {
    let digits = last.to_string().len();
    let others: String = (1..10).map(|d| format!(" UNION ALL SELECT {d}")).collect();
    let places = (0..digits).map(|n| format!("(SELECT 0 AS d{others}) AS t{n}"));
    let value = (0..digits).map(|n| format!("t{n}.d * {}", 10_u64.pow(n as u32)));
    let (places, value) =
        (places.collect::<Vec<_>>().join(" CROSS JOIN "), value.collect::<Vec<_>>().join(" + "));
    format!("(SELECT {value} AS seq FROM {places}) AS numbers WHERE seq BETWEEN 1 AND {last}")
}

/// One Redis for the whole test process, on disk before it answers. Use a key prefix per test.
pub fn shared_redis() -> &'static Redis {
    static SHARED: OnceLock<Redis> = OnceLock::new();
    SHARED.get_or_init(|| needed(Redis::start(RedisOptions::default())))
}

/// One MariaDB for the whole test process. Use a database per test.
pub fn shared_mariadb() -> &'static MariaDb {
    static SHARED: OnceLock<MariaDb> = OnceLock::new();
    SHARED.get_or_init(|| needed(MariaDb::start(MariaDbOptions::default())))
}

/// One Redis Cluster for the whole test process. A test that kills its nodes starts its own.
pub fn shared_cluster() -> &'static RedisCluster {
    static SHARED: OnceLock<RedisCluster> = OnceLock::new();
    SHARED.get_or_init(|| needed(RedisCluster::start()))
}

/// A test without its engine cannot go on, and the reason is all it has to say.
fn needed<T>(started: io::Result<T>) -> T {
    match started {
        Ok(service) => service,
        Err(error) => panic!("a service for the tests did not start: {error}"),
    }
}

/// A name nobody else uses on the shared services: a key prefix, or the name of a database.
pub fn unique_name(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{prefix}_{}_{:x}_{n}", std::process::id(), now.as_micros())
}

/// Ask until there is an answer. The last reason for "not yet" is in the error.
fn wait_for<T>(
    what: &str,
    within: Duration,
    mut ask: impl FnMut() -> Result<T, NotYet>,
) -> io::Result<T> {
    let deadline = Instant::now() + within;
    loop {
        let reason = match ask() {
            Ok(answer) => return Ok(answer),
            Err(NotYet::Never(error)) => return Err(error),
            Err(NotYet::Because(reason)) => reason,
        };
        if Instant::now() > deadline {
            let message = format!("{what} took longer than {} s: {reason}", within.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        thread::sleep(ASK_AGAIN);
    }
}

/// Why a wait is not over.
enum NotYet {
    Because(String),
    /// Waiting longer would not help.
    Never(io::Error),
}

impl From<io::Error> for NotYet {
    fn from(error: io::Error) -> NotYet {
        NotYet::Because(error.to_string())
    }
}

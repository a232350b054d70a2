//! The coordination of a cluster, in Redis.
//!
//! | key | holds |
//! |---|---|
//! | `…:{<name>}:lease`, `…:{<name>}:fence` | who tells that the ledger is down, and how many have |
//! | `…:{node:<n>}:lease`, `…:fence` | which process hands out order numbers of node n |
//! | `…:catalog`, `…:catalog:<activity>` | ids of the activities shown; a hash for each |
//! | channel `…:hints` | news, and a beat now and then |
//!
//! Leases last `LEASE_MS` and are renewed by being asked for; a holder that dies is replaced after
//! that. The node's lease is renewed by a task of its own, and when that has not worked for a while
//! no order number is handed out: by then somebody else may hold the node.
//!
//! **A Redis that lost its memory**, or the last moment of it in a failover, has forgotten leases whose
//! holders still believe in them. So whoever takes a node waits `SETTLE_IN` before using it: a holder
//! that can reach Redis renews within that time, finds somebody else there, and hands out no more
//! numbers. (One that cannot reach Redis admits nobody.) It costs every start a little more than half
//! a second. And the search begins anywhere, so that holders are hardly ever met.
//!
//! **A line that died without a word** looks like one on which nobody has news. Every instance
//! sends a beat, so that silence means a dead line: it is opened anew.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::StreamExt;
use redis::{Cmd, FromRedisValue, RedisError, RedisResult};
use redis_link::{Call, LinkOptions, RedisLink, RedisServers, Script};
use sale::{Activity, Clock, Item, Millis, SystemClock};
use tokio::sync::broadcast;

use super::{Coordination, Hint};

const LEASE_MS: i64 = 5_000;
const NODE_LEASE_MS: i64 = 60_000;
/// Often, for it is all the time that a new holder has to wait for the old one.
const NODE_RENEW: Duration = Duration::from_millis(200);
/// The next try when renewing failed: Redis may be back in a moment, and may have forgotten us.
const NODE_RENEW_SOON: Duration = Duration::from_millis(100);
/// A renewal, a second one if the first found a dead connection, and as much again.
const SETTLE_IN: Duration = Duration::from_millis(600);
/// Well before the lease ends, so that two holders never overlap even with clocks that drift.
const NODE_SAFE_MS: i64 = NODE_LEASE_MS / 2;
const CATALOGUE_KEPT_MS: i64 = 60_000;
const HINTS_WAITING_MAX: usize = 4_096;
const RECONNECT: Duration = Duration::from_millis(500);
const BEAT_EVERY: Duration = Duration::from_secs(5);
/// Without even a beat for so long, the line is dead.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// No hint; whoever hears it knows that the line lives.
const BEAT: &str = "beat";

static LEAD: Script = Script::new(include_str!("lua/lead.lua"));
static CLOCK: Script = Script::new(include_str!("lua/clock.lua"));

#[derive(Clone, Debug)]
pub struct RedisCoordinationOptions {
    pub servers: Arc<RedisServers>,
    pub prefix: String,
    pub answer_ms_max: u64,
    /// A name that no other process has.
    pub instance: String,
}

pub struct RedisCoordination {
    options: RedisCoordinationOptions,
    link: RedisLink,
    hints: broadcast::Sender<Hint>,
    /// The node whose order numbers this process hands out. Written before `node_until_ms`, read after.
    node: AtomicU16,
    /// Until when the node is surely ours, by the clock on the wall, which goes on while the machine
    /// sleeps…
    node_until_ms: AtomicI64,
    /// …and in milliseconds since `started`, which nobody can set back. Both must hold.
    node_until_tick_ms: AtomicI64,
    started: Instant,
}

#[derive(Debug, thiserror::Error)]
pub enum CoordinationError {
    #[error("Redis does not answer: {0}")]
    Redis(#[from] RedisError),
    #[error("all {0} nodes are taken")]
    NoNode(u16),
}

impl RedisCoordination {
    pub async fn open(
        options: RedisCoordinationOptions,
    ) -> Result<Arc<RedisCoordination>, CoordinationError> {
        let link = LinkOptions {
            answer_within: Duration::from_millis(options.answer_ms_max),
            connections: 1,
            may_ask_twice: true,
        };
        let coordination = RedisCoordination {
            link: options.servers.link(link).await?,
            hints: broadcast::Sender::new(HINTS_WAITING_MAX),
            node: AtomicU16::new(0),
            node_until_ms: AtomicI64::new(0),
            node_until_tick_ms: AtomicI64::new(0),
            started: Instant::now(),
            options,
        };
        coordination.take_node(anywhere()).await?;
        let coordination = Arc::new(coordination);
        tokio::spawn(renew_node(Arc::downgrade(&coordination)));
        tokio::spawn(beat(Arc::downgrade(&coordination)));
        tokio::spawn(listen(Arc::downgrade(&coordination)));
        Ok(coordination)
    }

    fn key(&self, name: impl std::fmt::Display) -> String {
        format!("{}:{name}", self.options.prefix)
    }

    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        self.link.ask(command).await
    }

    /// Take or renew a lease; its fencing number if it is ours, else 0.
    async fn take_lease(&self, name: &str, ttl_ms: i64) -> RedisResult<u64> {
        // Both keys in one slot, by the hash tag.
        let key = |what| self.key(format_args!("{{{name}}}:{what}"));
        let call = Call::new(&LEAD, [key("lease"), key("fence")]);
        self.link.run(&call.arg(&self.options.instance).number(ttl_ms)).await
    }

    fn tick_ms(&self) -> i64 {
        self.started.elapsed().as_millis() as i64
    }

    async fn hold_node(&self, node: u16) -> RedisResult<bool> {
        let (asked_ms, asked_tick_ms) = (SystemClock.now_ms(), self.tick_ms());
        let ours = self.take_lease(&format!("node:{node}"), NODE_LEASE_MS).await? > 0;
        if ours {
            self.node.store(node, Ordering::Relaxed);
        }
        let until = |now_ms: i64| if ours { now_ms + NODE_SAFE_MS } else { 0 };
        self.node_until_tick_ms.store(until(asked_tick_ms), Ordering::Release);
        self.node_until_ms.store(until(asked_ms), Ordering::Release);
        Ok(ours)
    }

    /// The first node nobody holds, beginning the search with this one.
    async fn take_node(&self, first: u16) -> Result<u16, CoordinationError> {
        for node in (0..sale::NODES_MAX).map(|n| (first + n) % sale::NODES_MAX) {
            if self.take_lease(&format!("node:{node}"), NODE_LEASE_MS).await? == 0 {
                continue;
            }
            tokio::time::sleep(SETTLE_IN).await;
            if self.hold_node(node).await? {
                return Ok(node);
            }
        }
        Err(CoordinationError::NoNode(sale::NODES_MAX))
    }

    async fn publish(&self, message: &str) {
        let publish = redis::cmd("PUBLISH").arg(self.key("hints")).arg(message).to_owned();
        if let Err(error) = self.ask::<i64>(&publish).await {
            tracing::debug!(%error, "a hint was not passed on");
        }
    }

    async fn read_catalogue(&self) -> RedisResult<Option<Vec<Activity>>> {
        let index = redis::cmd("GET").arg(self.key("catalog")).to_owned();
        let Some(index) = self.ask::<Option<String>>(&index).await? else { return Ok(None) };
        let ids: Vec<i64> = serde_json::from_str(&index).unwrap_or_default();
        let mut activities = Vec::with_capacity(ids.len());
        for id in ids {
            let key = self.key(format_args!("catalog:{id}"));
            let hash = redis::cmd("HGETALL").arg(key).to_owned();
            let fields: std::collections::HashMap<String, String> = self.ask(&hash).await?;
            let Some(head) = fields.get("activity") else { return Ok(None) };
            let Ok(mut activity) = serde_json::from_str::<Activity>(head) else { return Ok(None) };
            let mut items: Vec<Item> = fields
                .iter()
                .filter(|(field, _)| *field != "activity")
                .filter_map(|(_, json)| serde_json::from_str(json).ok())
                .collect();
            items.sort_by_key(|item| item.id);
            activity.items = items;
            activities.push(activity);
        }
        Ok(Some(activities))
    }

    async fn write_catalogue(&self, activities: &[Arc<Activity>]) -> RedisResult<()> {
        for activity in activities {
            let mut head = Activity::clone(activity);
            let items = std::mem::take(&mut head.items);
            let key = self.key(format_args!("catalog:{}", activity.id));
            let mut hash = redis::cmd("HSET");
            hash.arg(&key).arg("activity").arg(json(&head));
            for item in &items {
                hash.arg(item.id.0).arg(json(item));
            }
            self.ask::<i64>(&hash).await?;
            let expire = redis::cmd("PEXPIRE").arg(&key).arg(CATALOGUE_KEPT_MS).to_owned();
            self.ask::<i64>(&expire).await?;
        }
        let ids: Vec<i64> = activities.iter().map(|activity| activity.id.0).collect();
        let mut index = redis::cmd("SET");
        index.arg(self.key("catalog")).arg(json(&ids)).arg("PX").arg(CATALOGUE_KEPT_MS);
        self.ask::<()>(&index).await
    }
}

/// A node to begin with. The hasher of the standard library is seeded anew each time.
fn anywhere() -> u16 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(()) % u64::from(sale::NODES_MAX)) as u16
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

async fn renew_node(coordination: std::sync::Weak<RedisCoordination>) {
    let mut failing = false;
    loop {
        tokio::time::sleep(if failing { NODE_RENEW_SOON } else { NODE_RENEW }).await;
        let Some(coordination) = coordination.upgrade() else { return };
        let node = coordination.node.load(Ordering::Relaxed);
        let held = coordination.hold_node(node).await;
        match &held {
            Ok(true) => {}
            // Redis forgot whose it was, and somebody new was faster. Until there is another one
            // nobody is admitted here.
            Ok(false) => match coordination.take_node(anywhere()).await {
                Ok(new) => tracing::warn!(node, new, "order numbers go on as another node"),
                Err(error) => {
                    tracing::error!(%error, "no node for order numbers: admitting nobody")
                }
            },
            Err(error) if !failing => {
                tracing::warn!(%error, "the lease of the node could not be renewed");
            }
            Err(_) => {}
        }
        failing = held.is_err();
    }
}

/// Lets those who listen know that their lines live.
async fn beat(coordination: std::sync::Weak<RedisCoordination>) {
    loop {
        tokio::time::sleep(BEAT_EVERY).await;
        let Some(coordination) = coordination.upgrade() else { return };
        coordination.publish(BEAT).await;
    }
}

/// Hear what others tell, on a connection of its own.
async fn listen(coordination: std::sync::Weak<RedisCoordination>) {
    loop {
        let Some(strong) = coordination.upgrade() else { return };
        let (servers, channel) = (strong.options.servers.clone(), strong.key("hints"));
        let sender = strong.hints.clone();
        drop(strong);
        let heard = tokio::select! {
            heard = hear(&servers, &channel, &sender, &coordination, SILENCE_MAX) => heard,
            // News come from the primary, and that is another one now.
            () = servers.moved() => Ok(()),
        };
        if let Err(error) = heard {
            tracing::debug!(%error, "no news from Redis");
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn hear(
    servers: &RedisServers,
    channel: &str,
    sender: &broadcast::Sender<Hint>,
    coordination: &std::sync::Weak<RedisCoordination>,
    silence_max: Duration,
) -> RedisResult<()> {
    let mut subscription = servers.subscribe(channel).await?;
    let mut messages = subscription.on_message();
    while let Some(message) = in_time(silence_max, messages.next()).await? {
        if coordination.strong_count() == 0 {
            return Ok(());
        }
        if let Ok(hint) = serde_json::from_slice(message.get_payload_bytes()) {
            // Nobody may be interested.
            let _ = sender.send(hint);
        }
    }
    Ok(())
}

async fn in_time<T>(limit: Duration, event: impl Future<Output = T>) -> RedisResult<T> {
    let late = |_| RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
    tokio::time::timeout(limit, event).await.map_err(late)
}

#[async_trait]
impl Coordination for RedisCoordination {
    async fn hold(&self, name: &'static str) -> Result<bool, String> {
        let held = self.take_lease(name, LEASE_MS).await;
        held.map(|fence| fence > 0).map_err(|error| error.to_string())
    }

    async fn tell(&self, hint: &Hint) {
        self.publish(&json(hint)).await;
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn now_ms(&self) -> Result<Millis, String> {
        let now_ms = self.link.run(&Call::new(&CLOCK, [self.key("clock")])).await;
        now_ms.map_err(|error| error.to_string())
    }

    async fn catalogue(&self) -> Option<Vec<Activity>> {
        self.read_catalogue().await.ok().flatten()
    }

    async fn put_catalogue(&self, activities: &[Arc<Activity>]) {
        if let Err(error) = self.write_catalogue(activities).await {
            tracing::debug!(%error, "the catalogue could not be put into Redis");
        }
    }

    fn node(&self) -> u16 {
        self.node.load(Ordering::Relaxed)
    }

    fn node_is_ours(&self) -> bool {
        SystemClock.now_ms() < self.node_until_ms.load(Ordering::Acquire)
            && self.tick_ms() < self.node_until_tick_ms.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use faults::services::{Redis, RedisOptions, shared_redis, unique_name};
    use redis_link::RedisAddress;

    use super::*;

    fn options(url: String, instance: &str) -> RedisCoordinationOptions {
        RedisCoordinationOptions {
            servers: RedisServers::new(&RedisAddress::new(url)).unwrap(),
            prefix: unique_name("coordination"),
            answer_ms_max: 1_000,
            instance: instance.into(),
        }
    }

    #[tokio::test]
    async fn no_two_number_as_one_node_after_redis_forgot_who_held_it() {
        let server = Redis::start(RedisOptions::default()).unwrap();
        let ann_options = options(server.url(), "ann");
        let bob_options =
            RedisCoordinationOptions { instance: "bob".into(), ..ann_options.clone() };
        let ann = RedisCoordination::open(ann_options).await.unwrap();
        let bob = RedisCoordination::open(bob_options).await.unwrap();
        let node = loop {
            while !(ann.node_is_ours() && bob.node_is_ours()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let node = ann.node();
            let holds = |one: &RedisCoordination| one.node_is_ours() && one.node() == node;
            assert!(!holds(&bob));
            server.call(&["FLUSHALL"]).unwrap();
            // Bob asks for it before ann has noticed anything.
            let both_hold_it = async {
                while !(holds(&ann) && holds(&bob)) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let taken = tokio::select! {
                () = both_hold_it => panic!("both number as node {node}"),
                taken = bob.take_node(node) => taken.unwrap(),
            };
            if taken == node {
                break node;
            }
            // She renews it five times a second, and this time was the faster one.
        };
        while !ann.node_is_ours() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_ne!(ann.node(), node, "she goes on as another");
    }

    #[tokio::test]
    async fn a_line_without_a_beat_is_given_up() {
        let coordination =
            RedisCoordination::open(options(shared_redis().url(), "ann")).await.unwrap();
        let (weak, sender) = (Arc::downgrade(&coordination), coordination.hints.clone());
        let silence = Duration::from_millis(100);
        let servers = &coordination.options.servers;
        let heard = hear(servers, &unique_name("nobody"), &sender, &weak, silence).await;
        assert!(heard.unwrap_err().is_timeout());
    }
}

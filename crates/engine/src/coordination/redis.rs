//! The coordination of a cluster, in Redis.
//!
//! | key | holds |
//! |---|---|
//! | `…:{<name>}:lease`, `…:{<name>}:fence` | who tells that the ledger is down, and how many have |
//! | `…:{node:<n>}:lease`, `…:fence` | which process makes order numbers of node n, see [`crate::node`] |
//! | `…:catalog`, `…:catalog:<activity>` | ids of the activities shown; a hash for each |
//! | channel `…:hints` | news, and a beat now and then |
//!
//! Leases last for seconds and are renewed by being asked for.
//!
//! **A line that died without a word** looks like one on which nobody has news. Every instance
//! sends a beat, so that silence means a dead line: it is opened anew.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::StreamExt;
use redis::{Cmd, FromRedisValue, RedisError, RedisResult};
use redis_link::{Call, LinkOptions, RedisLink, RedisServers, Script};
use sale::{Activity, Item, Millis};
use tokio::sync::{broadcast, mpsc};

use super::{Coordination, Hint};

const LEASE_MS: i64 = 5_000;
/// The witness of a node is asked to remember it far more often.
const NODE_LEASE_MS: i64 = 60_000;
const CATALOGUE_KEPT_MS: i64 = 60_000;
const HINTS_WAITING_MAX: usize = 4_096;
/// Hints that wait to be passed on while a server takes its time; the next ones are lost.
const TELLING_MAX: usize = 1_024;
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
    /// What is to be told to the others.
    telling: mpsc::Sender<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum CoordinationError {
    #[error("Redis does not answer: {0}")]
    Redis(#[from] RedisError),
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
        let (telling, told) = mpsc::channel(TELLING_MAX);
        let coordination = RedisCoordination {
            link: options.servers.link(link).await?,
            telling,
            hints: broadcast::Sender::new(HINTS_WAITING_MAX),
            options,
        };
        let coordination = Arc::new(coordination);
        tokio::spawn(beat(Arc::downgrade(&coordination)));
        tokio::spawn(pass_on(Arc::downgrade(&coordination), told));
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
    async fn take_lease(&self, name: &str, holder: &str, ttl_ms: i64) -> RedisResult<u64> {
        // Both keys in one slot, by the hash tag.
        let key = |what| self.key(format_args!("{{{name}}}:{what}"));
        let call = Call::new(&LEAD, [key("lease"), key("fence")]);
        self.link.run(&call.arg(holder).number(ttl_ms)).await
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

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Passes on what is told, beside those who tell it.
async fn pass_on(
    coordination: std::sync::Weak<RedisCoordination>,
    mut told: mpsc::Receiver<String>,
) {
    while let Some(hint) = told.recv().await {
        let Some(coordination) = coordination.upgrade() else { return };
        coordination.publish(&hint).await;
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
        let held = self.take_lease(name, &self.options.instance, LEASE_MS).await;
        held.map(|fence| fence > 0).map_err(|error| error.to_string())
    }

    /// Whoever tells waits for nobody. Hints that find no room are lost; those they are for look by
    /// themselves.
    async fn tell(&self, hint: &Hint) {
        if self.telling.try_send(json(hint)).is_err() {
            tracing::debug!("too many hints wait to be passed on");
        }
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

    async fn witness_node(&self, node: u16, holder: &str) -> Result<bool, String> {
        let held = self.take_lease(&format!("node:{node}"), holder, NODE_LEASE_MS).await;
        held.map(|fence| fence > 0).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use faults::services::{shared_redis, unique_name};
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

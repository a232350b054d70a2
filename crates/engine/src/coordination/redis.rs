//! The coordination of a cluster, in Redis.
//!
//! | key | holds |
//! |---|---|
//! | `…:{<name>}:lease`, `…:{<name>}:fence` | who tells that the ledger is down, and how many have |
//! | `…:{node:<n>}:lease`, `…:fence` | which process makes order numbers of node n, see [`crate::node`] |
//! | `…:rate:<who>` | when all that somebody asked for lately is forgotten, see `count.lua` |
//! | `…:{spent:<n>}:<minute>` | challenges that were spent, of those that are over in this minute |
//! | `…:draw:<item>:<end>` | the smallest places of each instance in a draw; with `:fed`, who has fed them |
//! | channel `…:hints` | news |
//! | channel `…:hints:<instance>` | a beat for that instance alone |
//!
//! Leases last for seconds and are renewed by being asked for.
//!
//! **A line that died without a word** looks like one on which nobody has news. Every instance
//! sends itself a beat, so that silence means a dead line: it is opened anew, at another server.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::StreamExt;
use redis::{Cmd, FromRedisValue, RedisError, RedisResult};
use redis_link::{Call, LinkOptions, RedisLink, RedisServers, Script};
use sale::Millis;
use tokio::sync::{Semaphore, broadcast, mpsc};

use super::{Coordination, Hint, MINUTE_MS, SPENT_PER_MINUTE_MAX, Spending};

const LEASE_MS: i64 = 5_000;
/// The witness of a node is asked to remember it far more often.
const NODE_LEASE_MS: i64 = 60_000;
const HINTS_WAITING_MAX: usize = 4_096;
const RECONNECT: Duration = Duration::from_millis(500);
/// So many servers are tried with a hint, of so many that a key can name.
const PUBLISH_TRIES_MAX: u32 = 6;
const ROUTES: u32 = 64;
/// What instances tell each other of a draw.
const DRAW_KEPT_MS: i64 = 60_000;
const COUNTING_MAX: usize = 256;
/// Challenges that were spent are spread over so many keys.
const SPENT_SLOTS: u64 = 16;
/// Clocks of instances may differ by so much and no spent challenge is good again.
const CLOCKS_APART_MS: Millis = 60_000;
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// Without even a beat for so long, the line is dead.
const SILENCE_MAX: Duration = Duration::from_secs(4);
/// No hint; whoever hears it knows that the line lives.
const BEAT: &str = "beat";

static LEAD: Script = Script::new(include_str!("lua/lead.lua"));
static COUNT: Script = Script::new(include_str!("lua/count.lua"));
static SPEND: Script = Script::new(include_str!("lua/spend.lua"));
static PUBLISH: Script = Script::new(include_str!("lua/publish.lua"));

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
    outgoing: mpsc::Sender<Message>,
    /// Requests may be counted together so many at a time; with more, each instance counts for itself.
    counting: Semaphore,
}

/// What is published.
struct Message {
    channel: String,
    text: String,
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
        let (outgoing, waiting) = mpsc::channel(HINTS_WAITING_MAX);
        let coordination = RedisCoordination {
            link: options.servers.link(link).await?,
            hints: broadcast::Sender::new(HINTS_WAITING_MAX),
            outgoing,
            counting: Semaphore::new(COUNTING_MAX),
            options,
        };
        let key = coordination.key("hints");
        tokio::spawn(publish(coordination.link.clone(), key, waiting));
        let coordination = Arc::new(coordination);
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
    async fn take_lease(&self, name: &str, holder: &str, ttl_ms: i64) -> RedisResult<u64> {
        // Both keys in one slot, by the hash tag.
        let key = |what| self.key(format_args!("{{{name}}}:{what}"));
        let call = Call::new(&LEAD, [key("lease"), key("fence")]);
        self.link.run(&call.arg(holder).number(ttl_ms)).await
    }

    /// Nobody waits for a server that hangs. What does not fit is lost, as hints may be.
    fn publish(&self, channel: String, text: String) {
        if self.outgoing.try_send(Message { channel, text }).is_err() {
            tracing::debug!("too many hints wait for Redis: one was not passed on");
        }
    }

    /// On which nobody but this process speaks and listens.
    fn own_channel(&self) -> String {
        self.key(format_args!("hints:{}", self.options.instance))
    }
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Any server of a cluster passes on what is published. So what one does not take, the next one gets; the
/// key that is named decides which one that is.
async fn publish(link: RedisLink, key: String, mut waiting: mpsc::Receiver<Message>) {
    let mut route = 0;
    while let Some(Message { channel, text }) = waiting.recv().await {
        for _ in 0..PUBLISH_TRIES_MAX {
            let call = Call::new(&PUBLISH, [format!("{key}:{{{route}}}")]);
            match link.run::<i64>(&call.arg(&channel).arg(&text)).await {
                Ok(_) => break,
                Err(error) => tracing::debug!(%error, "a hint was not passed on"),
            }
            route = (route + 1) % ROUTES;
        }
    }
}

/// Lets us know that our own line lives.
async fn beat(coordination: std::sync::Weak<RedisCoordination>) {
    loop {
        tokio::time::sleep(BEAT_EVERY).await;
        let Some(coordination) = coordination.upgrade() else { return };
        coordination.publish(coordination.own_channel(), BEAT.into());
    }
}

/// Hear what others tell, on a connection of its own.
async fn listen(coordination: std::sync::Weak<RedisCoordination>) {
    let mut is_first = true;
    loop {
        let Some(strong) = coordination.upgrade() else { return };
        let (servers, channels) =
            (strong.options.servers.clone(), [strong.key("hints"), strong.own_channel()]);
        let sender = strong.hints.clone();
        drop(strong);
        let again = !std::mem::replace(&mut is_first, false);
        let heard = tokio::select! {
            heard = hear(&servers, &channels, &sender, &coordination, SILENCE_MAX, again) => heard,
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
    [channel, own_channel]: &[String; 2],
    sender: &broadcast::Sender<Hint>,
    coordination: &std::sync::Weak<RedisCoordination>,
    silence_max: Duration,
    again: bool,
) -> RedisResult<()> {
    let mut subscription = servers.subscribe(channel).await?;
    in_time(silence_max, subscription.subscribe(own_channel)).await??;
    if again {
        // Whoever listens should look at what was told while nobody heard it.
        let _ = sender.send(Hint::Missed);
    }
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
        self.publish(self.key("hints"), json(hint));
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn spend(
        &self,
        challenge: u64,
        expires_ms: Millis,
        now_ms: Millis,
    ) -> Result<Spending, String> {
        let minute = expires_ms.div_euclid(MINUTE_MS);
        // Spread over the servers of a cluster.
        let (slot, slots) = (challenge % SPENT_SLOTS, SPENT_SLOTS as usize);
        let key = self.key(format_args!("{{spent:{slot}}}:{minute}"));
        let kept_ms = (minute + 1) * MINUTE_MS - now_ms + CLOCKS_APART_MS;
        let call = Call::new(&SPEND, [key]).arg(format!("{challenge:x}"));
        let call = call.number(kept_ms).number((SPENT_PER_MINUTE_MAX / slots) as i64);
        match self.link.run::<i64>(&call).await {
            Ok(1) => Ok(Spending::Done),
            Ok(0) => Ok(Spending::Before),
            Ok(_) => Ok(Spending::NoRoom),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn count_together(&self, who: &str, step: Duration, burst: u32) -> Option<Duration> {
        let _asking = self.counting.try_acquire().ok()?;
        let call = Call::new(&COUNT, [self.key(format_args!("rate:{who}"))]);
        let call = call.number(step.as_nanos() as f64 / 1e3).number(burst);
        let wait_us: u64 = self.link.run(&call).await.ok()?;
        (wait_us > 0).then_some(Duration::from_micros(wait_us))
    }

    async fn put_part(&self, draw: &str, part: Vec<u8>) -> Result<(), String> {
        let key = self.key(format_args!("draw:{draw}"));
        let mut put = redis::cmd("HSET");
        put.arg(&key).arg(&self.options.instance).arg(part);
        let told = async {
            self.ask::<i64>(&put).await?;
            let expire = redis::cmd("PEXPIRE").arg(&key).arg(DRAW_KEPT_MS).to_owned();
            self.ask::<i64>(&expire).await
        };
        told.await.map(|_| ()).map_err(|error| error.to_string())
    }

    async fn parts_of_others(&self, draw: &str) -> Vec<Vec<u8>> {
        let all = redis::cmd("HGETALL").arg(self.key(format_args!("draw:{draw}"))).to_owned();
        let parts = self.ask::<HashMap<String, Vec<u8>>>(&all).await.unwrap_or_default();
        let others = parts.into_iter().filter(|(who, _)| *who != self.options.instance);
        others.map(|(_, part)| part).collect()
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
        let channels = [unique_name("nobody"), unique_name("nobody")];
        let heard = hear(servers, &channels, &sender, &weak, silence, false).await;
        assert!(heard.unwrap_err().is_timeout());
    }

    #[tokio::test]
    async fn instances_count_together_and_forget_in_time() {
        let options = options(shared_redis().url(), "ann");
        let ann = RedisCoordination::open(options.clone()).await.unwrap();
        let bob = RedisCoordinationOptions { instance: "bob".into(), ..options };
        let bob = RedisCoordination::open(bob).await.unwrap();
        let step = Duration::from_secs(30);
        for n in 0..6 {
            let instance = if n % 2 == 0 { &ann } else { &bob };
            let wait = instance.count_together("eve", step, 4).await;
            assert_eq!(wait.is_some(), n >= 4, "request {n}: {wait:?}");
            assert!(wait.is_none_or(|wait| wait <= step), "{wait:?}");
        }
        assert_eq!(bob.count_together("dan", step, 1).await, None, "somebody else");
        let key = ann.key("rate:eve");
        let left_ms: i64 = ann.ask(redis::cmd("PTTL").arg(key)).await.unwrap();
        assert!((1..=120_000).contains(&left_ms), "the key goes when all is forgotten: {left_ms}");
    }

    #[tokio::test]
    async fn instances_tell_each_other_their_parts_of_a_draw() {
        let options = options(shared_redis().url(), "ann");
        let ann = RedisCoordination::open(options.clone()).await.unwrap();
        let bob = RedisCoordinationOptions { instance: "bob".into(), ..options };
        let bob = RedisCoordination::open(bob).await.unwrap();
        assert!(ann.parts_of_others("7:1").await.is_empty());
        let bytes = vec![0, 255, b'\n', 7];
        bob.put_part("7:1", bytes.clone()).await.unwrap();
        ann.put_part("7:1", Vec::new()).await.unwrap();
        assert_eq!(ann.parts_of_others("7:1").await, [bytes]);
        assert_eq!(bob.parts_of_others("7:1").await, [Vec::<u8>::new()]);
        assert!(bob.parts_of_others("7:2").await.is_empty(), "another window");
        let left = redis::cmd("PTTL").arg(ann.key("draw:7:1")).to_owned();
        let left_ms: i64 = ann.ask(&left).await.unwrap();
        assert!((1..=DRAW_KEPT_MS).contains(&left_ms), "{left_ms}");
    }

    #[tokio::test]
    async fn a_challenge_is_spent_once_over_all_instances_and_forgotten_in_time() {
        let both = options(shared_redis().url(), "ann");
        let ann = RedisCoordination::open(both.clone()).await.unwrap();
        let bob = RedisCoordination::open(RedisCoordinationOptions {
            instance: "bob".into(),
            ..both.clone()
        });
        let bob = bob.await.unwrap();
        let now_ms = 1_800_000_000_000;
        let spend = async |who: &RedisCoordination, challenge| {
            who.spend(challenge, now_ms + 1_000, now_ms).await.unwrap()
        };
        assert_eq!(spend(&ann, 7).await, Spending::Done);
        assert_eq!(spend(&bob, 7).await, Spending::Before);
        assert_eq!(spend(&bob, 8).await, Spending::Done);
        let minute = (now_ms + 1_000).div_euclid(MINUTE_MS);
        let key = ann.key(format_args!("{{spent:7}}:{minute}"));
        let left = redis::cmd("PTTL").arg(&key).to_owned();
        let left_ms: i64 = ann.ask(&left).await.unwrap();
        assert!((1..=2 * MINUTE_MS + 1).contains(&left_ms), "{left_ms}");
        // As many as fit, and one more.
        let fits = SPENT_PER_MINUTE_MAX / SPENT_SLOTS as usize;
        let mut fill = redis::cmd("SADD");
        fill.arg(&key);
        (0..fits).for_each(|n| _ = fill.arg(format!("x{n}")));
        let _: i64 = ann.ask(&fill).await.unwrap();
        assert_eq!(spend(&ann, 7 + SPENT_SLOTS).await, Spending::NoRoom);
        assert_eq!(spend(&ann, 8 + SPENT_SLOTS).await, Spending::Done, "elsewhere there is");
    }
}

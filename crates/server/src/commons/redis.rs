//! The commons of a cluster, in Redis.
//!
//! | key | holds |
//! |---|---|
//! | `…:{<job>}:lease`, `…:{<job>}:fence` | who runs a job, and how many have held it |
//! | `…:{node:<n>}:lease`, `…:fence` | which process hands out order numbers of node n |
//! | `…:order:<no>` | a copy of an order, for buyers who look often; expires |
//! | `…:catalog`, `…:catalog:<activity>` | ids of the activities shown; one hash each: `activity`, and item → what pages show |
//! | channel `…:hints` | news |
//!
//! Leases last `LEASE_MS` and are renewed by being asked for; a holder that dies is replaced after
//! that. The node's lease is renewed by a task of its own, and when that has not worked for a while
//! no order number is handed out: by then somebody else may hold the node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU16, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::StreamExt;
use gate::redis::ClusterLine;
use redis::{
    Client, Cmd, FromRedisValue, RedisResult, Script,
    aio::{ConnectionManager, ConnectionManagerConfig},
    cluster::ClusterClient,
};
use sale::{Activity, Clock, Item, Order, OrderNo, SystemClock};
use tokio::sync::broadcast;

use super::{Commons, Hint};

const LEASE_MS: i64 = 5_000;
const NODE_LEASE_MS: i64 = 60_000;
const NODE_RENEW: Duration = Duration::from_secs(5);
/// Well before the lease ends, so that two holders never overlap even with clocks that drift.
const NODE_SAFE_MS: i64 = NODE_LEASE_MS / 2;
const ORDER_KEPT_MS: i64 = 600_000;
const CATALOGUE_KEPT_MS: i64 = 60_000;
const HINTS_WAITING_MAX: usize = 4_096;
const RECONNECT: Duration = Duration::from_millis(500);
/// How often a cluster's client follows a slot that moved before it gives up.
const REDIRECTS_MAX: u32 = 4;

#[derive(Clone, Debug)]
pub struct RedisCommonsOptions {
    pub urls: Vec<String>,
    pub prefix: String,
    pub answer_ms_max: u64,
    /// A name that no other process has.
    pub instance: String,
}

#[derive(Clone)]
enum Link {
    One(ConnectionManager),
    Cluster(Arc<ClusterLine>),
}

pub struct RedisCommons {
    options: RedisCommonsOptions,
    link: Link,
    lead: Script,
    keep_order: Script,
    hints: broadcast::Sender<Hint>,
    /// The node whose order numbers this process hands out. Written before `node_until_ms`, read after.
    node: AtomicU16,
    /// Until when the node is surely ours, by our clock.
    node_until_ms: AtomicI64,
}

#[derive(Debug, thiserror::Error)]
pub enum CommonsError {
    #[error("Redis does not answer: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("all {0} nodes are taken")]
    NoNode(u16),
}

impl RedisCommons {
    pub async fn open(options: RedisCommonsOptions) -> Result<Arc<RedisCommons>, CommonsError> {
        let link = open_link(&options).await?;
        let commons = RedisCommons {
            link,
            lead: Script::new(include_str!("lua/lead.lua")),
            keep_order: Script::new(include_str!("lua/keep_order.lua")),
            hints: broadcast::Sender::new(HINTS_WAITING_MAX),
            node: AtomicU16::new(0),
            node_until_ms: AtomicI64::new(0),
            options,
        };
        commons.take_node().await?;
        let commons = Arc::new(commons);
        tokio::spawn(renew_node(Arc::downgrade(&commons)));
        tokio::spawn(listen(Arc::downgrade(&commons)));
        Ok(commons)
    }

    fn key(&self, name: impl std::fmt::Display) -> String {
        format!("{}:{name}", self.options.prefix)
    }

    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        match self.link.clone() {
            Link::One(mut connection) => command.query_async(&mut connection).await,
            Link::Cluster(line) => line.query(command).await,
        }
    }

    /// Take or renew a lease; its fencing number if it is ours, else 0.
    async fn hold(&self, name: &str, ttl_ms: i64) -> RedisResult<u64> {
        // Both keys in one slot, by the hash tag.
        let mut call = self.lead.key(self.key(format_args!("{{{name}}}:lease")));
        call.key(self.key(format_args!("{{{name}}}:fence")));
        call.arg(&self.options.instance).arg(ttl_ms);
        match self.link.clone() {
            Link::One(mut connection) => call.invoke_async(&mut connection).await,
            Link::Cluster(line) => {
                let done = call.invoke_async(&mut line.connection()).await;
                line.note(&format!("{{{name}}}"), &done).await;
                done
            }
        }
    }

    async fn hold_node(&self, node: u16) -> RedisResult<bool> {
        let asked_ms = SystemClock.now_ms();
        let ours = self.hold(&format!("node:{node}"), NODE_LEASE_MS).await? > 0;
        let until_ms = if ours { asked_ms + NODE_SAFE_MS } else { 0 };
        if ours {
            self.node.store(node, Ordering::Relaxed);
        }
        self.node_until_ms.store(until_ms, Ordering::Release);
        Ok(ours)
    }

    /// The first node nobody holds.
    async fn take_node(&self) -> Result<u16, CommonsError> {
        for node in 0..sale::NODES_MAX {
            if self.hold_node(node).await? {
                return Ok(node);
            }
        }
        Err(CommonsError::NoNode(sale::NODES_MAX))
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

    async fn write_catalogue(&self, activities: &[Activity]) -> RedisResult<()> {
        for activity in activities {
            let mut head = activity.clone();
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

async fn open_link(options: &RedisCommonsOptions) -> RedisResult<Link> {
    let answer_within = Duration::from_millis(options.answer_ms_max);
    if let [url] = &options.urls[..] {
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(answer_within))
            .set_connection_timeout(Some(answer_within))
            .set_number_of_retries(1);
        let manager =
            ConnectionManager::new_with_config(Client::open(url.as_str())?, config).await?;
        return Ok(Link::One(manager));
    }
    // By default a command is retried for minutes while a node is away; a lease that is asked for
    // that long has ended.
    let client = ClusterClient::builder(options.urls.iter().map(String::as_str))
        .response_timeout(answer_within)
        .connection_timeout(answer_within)
        .retries(REDIRECTS_MAX)
        .min_retry_wait(10)
        .max_retry_wait(200)
        .build()?;
    Ok(Link::Cluster(Arc::new(ClusterLine::open(client).await?)))
}

async fn renew_node(commons: std::sync::Weak<RedisCommons>) {
    loop {
        tokio::time::sleep(NODE_RENEW).await;
        let Some(commons) = commons.upgrade() else { return };
        let node = commons.node.load(Ordering::Relaxed);
        match commons.hold_node(node).await {
            Ok(true) => {}
            // Redis forgot whose it was, and somebody new was faster. Until there is another one
            // nobody is admitted here.
            Ok(false) => match commons.take_node().await {
                Ok(new) => tracing::warn!(node, new, "order numbers go on as another node"),
                Err(error) => {
                    tracing::error!(%error, "no node for order numbers: admitting nobody")
                }
            },
            Err(error) => tracing::warn!(%error, "the lease of the node could not be renewed"),
        }
    }
}

/// Hear what others tell, on a connection of its own, at whichever server answers.
async fn listen(commons: std::sync::Weak<RedisCommons>) {
    loop {
        let Some(strong) = commons.upgrade() else { return };
        let (urls, channel) = (strong.options.urls.clone(), strong.key("hints"));
        let sender = strong.hints.clone();
        drop(strong);
        for url in urls {
            if let Err(error) = hear(&url, &channel, &sender, &commons).await {
                tracing::debug!(%error, "no news from Redis");
            }
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn hear(
    url: &str,
    channel: &str,
    sender: &broadcast::Sender<Hint>,
    commons: &std::sync::Weak<RedisCommons>,
) -> RedisResult<()> {
    let mut subscription = Client::open(url)?.get_async_pubsub().await?;
    subscription.subscribe(channel).await?;
    let mut messages = subscription.on_message();
    while let Some(message) = messages.next().await {
        if commons.strong_count() == 0 {
            return Ok(());
        }
        if let Ok(hint) = serde_json::from_slice(message.get_payload_bytes()) {
            // Nobody may be interested.
            let _ = sender.send(hint);
        }
    }
    Ok(())
}

#[async_trait]
impl Commons for RedisCommons {
    async fn lead(&self, job: &'static str) -> Option<u64> {
        self.hold(job, LEASE_MS).await.ok().filter(|token| *token > 0)
    }

    async fn tell(&self, hint: &Hint) {
        let publish = redis::cmd("PUBLISH").arg(self.key("hints")).arg(json(hint)).to_owned();
        if let Err(error) = self.ask::<i64>(&publish).await {
            tracing::debug!(%error, "a hint was not passed on");
        }
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn order(&self, no: OrderNo) -> Option<Order> {
        let mut get = redis::cmd("HGET");
        get.arg(self.key(format_args!("order:{no}"))).arg("o");
        let copy: Option<String> = self.ask(&get).await.ok()?;
        serde_json::from_str(&copy?).ok()
    }

    async fn keep_orders(&self, orders: &[Order]) -> Result<(), String> {
        let kept = orders.iter().map(|order| async move {
            let key = self.key(format_args!("order:{}", order.order_no));
            let mut call = self.keep_order.key(&key);
            call.arg(order.status.code()).arg(json(order)).arg(ORDER_KEPT_MS);
            let kept: RedisResult<i64> = match self.link.clone() {
                Link::One(mut connection) => call.invoke_async(&mut connection).await,
                Link::Cluster(line) => {
                    let done = call.invoke_async(&mut line.connection()).await;
                    line.note(&key, &done).await;
                    done
                }
            };
            kept
        });
        let kept = futures_util::future::try_join_all(kept).await;
        kept.map(drop).map_err(|error| error.to_string())
    }

    async fn catalogue(&self) -> Option<Vec<Activity>> {
        self.read_catalogue().await.ok().flatten()
    }

    async fn put_catalogue(&self, activities: &[Activity]) {
        if let Err(error) = self.write_catalogue(activities).await {
            tracing::debug!(%error, "the catalogue could not be put into Redis");
        }
    }

    fn node(&self) -> u16 {
        self.node.load(Ordering::Relaxed)
    }

    fn node_is_ours(&self) -> bool {
        SystemClock.now_ms() < self.node_until_ms.load(Ordering::Acquire)
    }
}

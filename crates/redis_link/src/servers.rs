//! Where the servers are, for all connections of a process.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, RedisError, RedisResult,
    aio::{MultiplexedConnection, PubSub},
};
use tokio::sync::watch;

use crate::{
    address::{self, Layout, RedisAddress},
    cluster::Cluster,
    link::{LinkOptions, RedisLink},
    sentinel::Sentinels,
};

/// How long a new connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// A server that says it is no primary is left for another one at most this often.
const MOVE_PAUSE: Duration = Duration::from_millis(200);
/// How often the sentinels are asked whether the primary is another one by now.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// One server, as connections are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// Whoever it is at the moment.
    Primary,
    Sentinel(usize),
    /// Of a cluster.
    Member(Arc<str>, u16),
}

/// A server by itself, for those who look at every one.
pub struct Server {
    pub name: String,
    pub connection: RedisResult<MultiplexedConnection>,
}

pub struct RedisServers {
    pub(crate) kind: Kind,
    /// Counts the primaries there have been. A connection to an earlier one is not used any more.
    version: watch::Sender<u64>,
    moved: Mutex<Option<Instant>>,
}

pub(crate) enum Kind {
    One(ConnectionInfo),
    Sentinel(Sentinels),
    Cluster(Cluster),
}

/// Where they are may be said with a password.
impl fmt::Debug for RedisServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisServers").finish_non_exhaustive()
    }
}

impl RedisServers {
    /// Understands the address and reads the files; nobody is asked for anything yet.
    pub fn new(address: &RedisAddress) -> RedisResult<Arc<RedisServers>> {
        let kind = match address.layout()? {
            Layout::One(info) => Kind::One(info),
            Layout::Cluster(seeds) => Kind::Cluster(Cluster::new(seeds)),
            Layout::Sentinel { sentinels, name, server } => {
                Kind::Sentinel(Sentinels::new(sentinels, name, server))
            }
        };
        let (version, moved) = (watch::Sender::new(0), Mutex::default());
        let servers = Arc::new(RedisServers { kind, version, moved });
        if matches!(servers.kind, Kind::Sentinel(_)) {
            tokio::spawn(follow(Arc::downgrade(&servers)));
        }
        Ok(servers)
    }

    /// Connections of one kind. Fails if nobody answers.
    pub async fn link(self: &Arc<Self>, options: LinkOptions) -> RedisResult<RedisLink> {
        if let Kind::Cluster(cluster) = &self.kind {
            cluster.read_if_unknown().await?;
        }
        let link = RedisLink::new(self.clone(), options);
        link.try_out().await?;
        Ok(link)
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster(_))
    }

    /// A subscription at the primary, or at any member of a cluster.
    pub async fn subscribe(&self, channel: &str) -> RedisResult<PubSub> {
        let info = match &self.kind {
            Kind::Cluster(cluster) => cluster.any_member(),
            _ => self.find(&Node::Primary).await?,
        };
        let opening = async {
            let mut subscription = Client::open(info)?.get_async_pubsub().await?;
            subscription.subscribe(channel).await?;
            Ok(subscription)
        };
        tokio::time::timeout(CONNECT_WITHIN, opening).await.unwrap_or_else(|_| Err(too_late()))
    }

    /// Ends when the primary is another one than now. Never in a cluster, where every member passes
    /// on what is published.
    pub async fn moved(&self) {
        let mut version = self.version.subscribe();
        let _ = version.changed().await;
    }

    /// The primary, or all masters of the cluster.
    pub async fn all(&self, answer_within: Duration) -> RedisResult<Vec<Server>> {
        let infos = match &self.kind {
            Kind::Cluster(cluster) => cluster.masters().await?,
            _ => vec![self.find(&Node::Primary).await?],
        };
        let server = async |info: ConnectionInfo| {
            let (name, asked_alone) = (info.addr().to_string(), !self.is_cluster());
            match open(info, answer_within).await {
                Err(error) if asked_alone => Err(error),
                connection => Ok(Server { name, connection }),
            }
        };
        futures_util::future::join_all(infos.into_iter().map(server)).await.into_iter().collect()
    }

    pub(crate) fn version(&self, node: &Node) -> u64 {
        if *node == Node::Primary { *self.version.borrow() } else { 0 }
    }

    /// The server that connections of this version led to is no primary. Answers whether there is
    /// reason to connect anew: its place may be taken by another one.
    pub(crate) fn move_from(&self, version: u64) -> bool {
        let mut moved = self.moved.lock();
        if *self.version.borrow() != version {
            return true;
        }
        if moved.is_some_and(|moved| moved.elapsed() < MOVE_PAUSE) {
            return false;
        }
        *moved = Some(Instant::now());
        self.version.send_modify(|version| *version += 1);
        true
    }

    pub(crate) async fn connect(
        &self,
        node: &Node,
        answer_within: Duration,
    ) -> RedisResult<MultiplexedConnection> {
        let mut connection = open(self.find(node).await?, answer_within).await?;
        if let (Kind::Sentinel(_), Node::Primary) = (&self.kind, node) {
            must_be_primary(&mut connection).await?;
        }
        Ok(connection)
    }

    async fn find(&self, node: &Node) -> RedisResult<ConnectionInfo> {
        match (&self.kind, node) {
            (Kind::One(info), _) => Ok(info.clone()),
            (Kind::Sentinel(sentinels), Node::Sentinel(n)) => Ok(sentinels.info(*n)),
            (Kind::Sentinel(sentinels), _) => {
                let (info, is_new) = sentinels.primary(self).await?;
                if is_new {
                    self.version.send_modify(|version| *version += 1);
                }
                Ok(info)
            }
            (Kind::Cluster(cluster), Node::Member(host, port)) => Ok(cluster.info(host, *port)),
            (Kind::Cluster(cluster), _) => Ok(cluster.any_member()),
        }
    }
}

/// Ask the sentinels now and then: a primary that hangs, or that is cut off from everybody else, says
/// nothing of having been replaced.
async fn follow(servers: Weak<RedisServers>) {
    loop {
        tokio::time::sleep(FOLLOW_EVERY).await;
        let Some(servers) = servers.upgrade() else { return };
        // Whoever needs the primary says that it cannot be found.
        let _ = servers.find(&Node::Primary).await;
    }
}

/// Sentinels name a server before it knows of its promotion, or after it is gone.
async fn must_be_primary(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    let role: RedisResult<Vec<redis::Value>> = redis::cmd("ROLE").query_async(connection).await;
    let role = match role {
        Ok(role) => role.into_iter().next().and_then(|role| redis::from_redis_value(role).ok()),
        // A user who may not ask; the first write will tell.
        Err(error) if error.code() == Some("NOPERM") => return Ok(()),
        Err(error) => return Err(error),
    };
    let role: String = role.unwrap_or_default();
    if role == "master" {
        return Ok(());
    }
    let what = format!("the sentinels name a server whose role is {role}");
    Err((ErrorKind::Io, "no primary", what).into())
}

pub(crate) async fn open(
    info: ConnectionInfo,
    answer_within: Duration,
) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_WITHIN))
        .set_response_timeout(Some(answer_within));
    Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
}

pub(crate) fn too_late() -> RedisError {
    RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))
}

/// A server named by somebody else, spoken to as this one is.
pub(crate) use address::at;

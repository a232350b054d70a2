//! Connections to the servers for one kind of work.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::RwLock;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, Value};

use crate::{
    call::Call,
    line::{Held, Line, Request, is_broken, is_no_primary, read},
    servers::{Kind, Node, RedisServers},
    slot,
};

/// A command goes to at most so many servers, one after the other.
const TRIES_MAX: u32 = 5;
/// While a slot moves from one member to another, some commands have to be asked for again.
const TRY_AGAIN: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
pub struct LinkOptions {
    /// Every command is answered within this, or its outcome is unknown.
    pub answer_within: Duration,
    /// Connections per server; keys of one slot share one. Redis flushes to disk once for all that it
    /// has read from all sockets, and reads 16 KiB from each: batches that arrive over several share
    /// the flush.
    pub connections: usize,
    /// May everything be asked twice? A connection that was idle while its server was away learns of
    /// it by its first command, which is then sent again.
    pub may_ask_twice: bool,
}

/// Clones share the connections.
#[derive(Clone)]
pub struct RedisLink(Arc<Inner>);

struct Inner {
    servers: Arc<RedisServers>,
    options: LinkOptions,
    lines: RwLock<HashMap<Node, Arc<[Line]>>>,
}

/// Who answered a command, over which connection.
pub struct Reached {
    held: Held,
    at: Target,
}

/// Where a command is sent.
struct Target {
    node: Node,
    /// The slot is just moving there.
    is_asking: bool,
}

impl RedisLink {
    pub(crate) fn new(servers: Arc<RedisServers>, options: LinkOptions) -> RedisLink {
        RedisLink(Arc::new(Inner { servers, options, lines: RwLock::default() }))
    }

    pub async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        read(self.send(slot::of_command(command), Request::Command(command)).await?.0)
    }

    /// Run a script by its hash; a server that does not know it yet gets the text.
    pub async fn run<T: FromRedisValue>(&self, call: &Call<'_>) -> RedisResult<T> {
        Ok(self.run_at(call).await?.0)
    }

    /// The same, and who answered.
    pub async fn run_at<T: FromRedisValue>(&self, call: &Call<'_>) -> RedisResult<(T, Reached)> {
        let slot = call.slot();
        let by_hash = call.by_hash();
        let done = self.send(slot, Request::Command(&by_hash)).await;
        let is_unknown =
            |error: &RedisError| error.kind() == ErrorKind::Server(ServerErrorKind::NoScript);
        let (answer, reached) = match done {
            Err(error) if is_unknown(&error) => {
                self.send(slot, Request::Command(&call.by_text())).await?
            }
            done => done?,
        };
        Ok((read(answer)?, reached))
    }

    /// How many replicas have all that the server that was reached has by now. Nobody else can tell, so
    /// nobody else is asked: another primary may never have heard of what was written there, and its
    /// replicas have all that it has. `WAIT` speaks of what its own connection wrote, and another one, or
    /// another process, may have written what matters; so something is written right before it, to a
    /// counter of the same slot, that comes after all of that.
    pub async fn wait(
        &self,
        reached: &Reached,
        counter: &str,
        replicas: u32,
        ms_max: u64,
    ) -> RedisResult<i64> {
        let Reached { held, at } = reached;
        if held.version != self.0.servers.version(&at.node) {
            return Err(
                (ErrorKind::Io, "the server that was asked is not the primary any more").into()
            );
        }
        let mut commands = redis::pipe();
        if at.is_asking {
            commands.cmd("ASKING");
        }
        commands.cmd("INCRBY").arg(counter).arg(0).cmd("WAIT").arg(replicas).arg(ms_max);
        read(held.ask(&commands).await?.pop().unwrap_or(Value::Nil))
    }

    /// Not a cluster: its scripts may see all keys.
    pub fn is_one_server(&self) -> bool {
        !self.0.servers.is_cluster()
    }

    /// Does anybody answer?
    pub(crate) async fn try_out(&self) -> RedisResult<()> {
        if self.0.servers.is_cluster() {
            return Ok(());
        }
        self.send(0, Request::Command(&redis::cmd("PING"))).await.map(drop)
    }

    async fn send(&self, slot: u16, request: Request<'_>) -> RedisResult<(Value, Reached)> {
        let servers = &self.0.servers;
        let mut target = Target { node: self.home_of(slot)?, is_asking: false };
        let mut tries = 1;
        loop {
            let lines = self.lines(&target.node);
            let line = &lines[usize::from(slot) % lines.len()];
            let sent = if target.is_asking { request.asking() } else { request };
            let done = line.send(servers, &target.node, self.0.options.answer_within, sent).await;
            let (error, version) = match done {
                Ok((answer, held)) => return Ok((answer, Reached { held, at: target })),
                Err((error, _)) if tries == TRIES_MAX => return Err(error),
                Err(failed) => failed,
            };
            match self.next(slot, &error, version, tries).await {
                Some(next) => target = next,
                None => return Err(error),
            }
            tries += 1;
        }
    }

    /// Where the same is sent next, if there is reason to.
    async fn next(
        &self,
        slot: u16,
        error: &RedisError,
        version: u64,
        tries: u32,
    ) -> Option<Target> {
        let servers = &self.0.servers;
        if let (Kind::Cluster(cluster), ErrorKind::Server(kind)) = (&servers.kind, error.kind()) {
            match kind {
                ServerErrorKind::Moved => {
                    let (host, port) = named_in(error)?;
                    cluster.note_moved(slot, &host, port);
                    servers.read_map_soon();
                    return Some(Target { node: Node::Member(host, port), is_asking: false });
                }
                ServerErrorKind::Ask => {
                    let (host, port) = named_in(error)?;
                    return Some(Target { node: Node::Member(host, port), is_asking: true });
                }
                ServerErrorKind::TryAgain => {
                    tokio::time::sleep(TRY_AGAIN).await;
                    return self.at_home(slot);
                }
                // It is cut off from most of the others, who may have chosen another one by now.
                ServerErrorKind::ClusterDown => {
                    servers.read_map_soon();
                    return None;
                }
                _ => {}
            }
        }
        if is_no_primary(error) {
            servers.read_map_soon();
            let is_moving = !servers.is_cluster() && servers.move_from(version);
            return if is_moving { self.at_home(slot) } else { None };
        }
        if is_broken(error) {
            servers.read_map_soon();
            let once_more = self.0.options.may_ask_twice && tries == 1;
            return if once_more && error.is_connection_dropped() {
                self.at_home(slot)
            } else {
                None
            };
        }
        None
    }

    fn at_home(&self, slot: u16) -> Option<Target> {
        Some(Target { node: self.home_of(slot).ok()?, is_asking: false })
    }

    fn home_of(&self, slot: u16) -> RedisResult<Node> {
        let servers = &self.0.servers;
        match &servers.kind {
            Kind::Cluster(cluster) => cluster.owner(slot).inspect_err(|_| servers.read_map_soon()),
            _ => Ok(Node::Primary),
        }
    }

    fn lines(&self, node: &Node) -> Arc<[Line]> {
        if let Some(lines) = self.0.lines.read().get(node) {
            return lines.clone();
        }
        let mut all = self.0.lines.write();
        if let Kind::Cluster(cluster) = &self.0.servers.kind {
            // Members come and go over the years.
            all.retain(|node, _| cluster.knows(node));
        }
        let new = || (0..self.0.options.connections.max(1)).map(|_| Line::default()).collect();
        all.entry(node.clone()).or_insert_with(new).clone()
    }
}

/// The server that a redirection names.
fn named_in(error: &RedisError) -> Option<(Arc<str>, u16)> {
    let (address, _) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    Some((Arc::from(host), port.parse().ok()?))
        .filter(|(host, _): &(Arc<str>, u16)| !host.is_empty())
}

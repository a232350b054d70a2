//! A Redis Cluster of three primaries with one replica each, all on this machine.
//!
//! It is put together by hand rather than by `redis-cli --cluster create`, which sleeps between its
//! steps: every node gets its slots and an epoch of its own, the first one meets the others, and once
//! all know each other the replicas choose their primary.
//!
//! Node `n` and node `n + 3` are shard `n`; which of the two is the primary changes with failovers.

use std::{
    io,
    time::{Duration, Instant},
};

use super::{AGREE_WITHIN, NotYet, Redis, RedisOptions, wait_for};

/// Primaries.
pub const SHARDS: usize = 3;
const NODES: usize = 2 * SHARDS;
const SLOTS: usize = 16_384;
/// A node that is silent this long is taken for dead. Production has 15 s; tests have less patience,
/// but a busy machine must not look like a dead one.
const NODE_TIMEOUT: Duration = Duration::from_millis(1_500);

#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    pub fn start() -> io::Result<RedisCluster> {
        RedisCluster::start_with(RedisOptions::default())
    }

    pub fn start_with(options: RedisOptions) -> io::Result<RedisCluster> {
        let cluster = options.cluster.or(Some(NODE_TIMEOUT));
        let options = RedisOptions { cluster, replica_of: None, ..options };
        let nodes: Vec<Redis> =
            (0..NODES).map(|_| Redis::prepare(options.clone())).collect::<io::Result<_>>()?;
        nodes.iter().try_for_each(Redis::launch)?;
        nodes.iter().try_for_each(Redis::wait_ready)?;
        let cluster = RedisCluster { nodes };
        cluster.introduce()?;
        cluster.wait_healthy()?;
        Ok(cluster)
    }

    /// All nodes, for a client to find the cluster by, separated by commas.
    pub fn urls(&self) -> String {
        self.nodes.iter().map(Redis::url).collect::<Vec<_>>().join(",")
    }

    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Who serves shard `n` (0 to 2) now. Fails while nobody does.
    pub fn primary(&self, n: usize) -> io::Result<&Redis> {
        self.member(n, "master")
    }

    pub fn replica(&self, n: usize) -> io::Result<&Redis> {
        self.member(n, "slave")
    }

    /// The shard that serves a key.
    pub fn shard_of(&self, key: &str) -> io::Result<usize> {
        let alive = self.alive().next().ok_or_else(|| io::Error::other("all nodes are down"))?;
        let slot = alive.call(&["CLUSTER", "KEYSLOT", key])?.text();
        let slot: usize = slot.parse().map_err(|_| io::Error::other(format!("slot {slot}")))?;
        (0..SHARDS)
            .find(|n| slot < first_slot(n + 1))
            .ok_or_else(|| io::Error::other(format!("no shard has slot {slot}")))
    }

    /// Kill the primary of shard `n` and wait until its replica has taken over and the cluster
    /// serves all slots again. Answers how long that took. To look at the time in between, kill
    /// [`RedisCluster::primary`] and call [`RedisCluster::wait_serving`] later.
    pub fn kill_primary(&self, n: usize) -> io::Result<Duration> {
        let primary = self.primary(n)?;
        let started = Instant::now();
        primary.kill()?;
        self.wait_serving()?;
        Ok(started.elapsed())
    }

    /// Bring back every node that is down and wait until all shards have a replica in sync.
    pub fn heal(&self) -> io::Result<()> {
        let down: Vec<&Redis> = self.nodes.iter().filter(|node| !node.is_running()).collect();
        down.iter().try_for_each(|node| node.launch())?;
        down.iter().try_for_each(|node| node.wait_ready())?;
        self.wait_healthy()
    }

    /// Wait until every shard has a primary and all living nodes agree that all slots are served.
    pub fn wait_serving(&self) -> io::Result<()> {
        wait_for("the Redis Cluster", AGREE_WITHIN, || {
            (0..SHARDS).try_for_each(|n| self.primary(n).map(drop))?;
            self.alive().try_for_each(says_ok)
        })
    }

    fn wait_healthy(&self) -> io::Result<()> {
        self.wait_serving()?;
        wait_for("the replicas of the Redis Cluster", AGREE_WITHIN, || {
            for n in 0..SHARDS {
                let (primary, replica) = (self.primary(n)?, self.replica(n)?);
                let link = replica.info("master_link_status")?;
                let online = primary.info("slave0")?;
                if link != "up" || !online.contains("state=online") {
                    let reason = format!("shard {n}: the link is {link}, the replica {online}");
                    return Err(NotYet::Because(reason));
                }
            }
            self.alive().try_for_each(says_ok)
        })
    }

    fn introduce(&self) -> io::Result<()> {
        for (n, node) in self.nodes.iter().enumerate() {
            // Two primaries with one epoch would first have to settle who keeps it.
            node.call(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()])?;
            if n < SHARDS {
                let (first, last) = (first_slot(n), first_slot(n + 1) - 1);
                let (first, last) = (first.to_string(), last.to_string());
                node.call(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
            }
        }
        for node in &self.nodes[1..] {
            let address = node.address();
            let (ip, port) = (address.ip().to_string(), address.port().to_string());
            let bus = node.bus_port().to_string();
            self.nodes[0].call(&["CLUSTER", "MEET", &ip, &port, &bus])?;
        }
        for n in 0..SHARDS {
            let id = self.nodes[n].call(&["CLUSTER", "MYID"])?.text();
            let replica = &self.nodes[n + SHARDS];
            // A node can follow only a primary whose slots it has heard of.
            wait_for("the nodes of the Redis Cluster to meet", AGREE_WITHIN, || {
                replica.call(&["CLUSTER", "REPLICATE", &id])?;
                Ok(())
            })?;
        }
        self.wait_acquainted()
    }

    /// A node that others have not heard of yet cannot be voted for.
    fn wait_acquainted(&self) -> io::Result<()> {
        wait_for("the nodes of the Redis Cluster to know each other", AGREE_WITHIN, || {
            for node in &self.nodes {
                let known = node.call(&["CLUSTER", "NODES"])?.text();
                let lines = known.lines().filter(|line| !line.contains("handshake"));
                let (all, replicas) = lines.fold((0, 0), |(all, replicas), line| {
                    (all + 1, replicas + usize::from(line.contains("slave")))
                });
                if (all, replicas) != (NODES, SHARDS) {
                    let reason = format!("{} knows {all} nodes", node.address());
                    return Err(NotYet::Because(reason));
                }
            }
            Ok(())
        })
    }

    fn alive(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.is_running())
    }

    fn member(&self, n: usize, role: &str) -> io::Result<&Redis> {
        for node in [&self.nodes[n], &self.nodes[n + SHARDS]] {
            if node.is_running() && node.info("role")? == role {
                return Ok(node);
            }
        }
        Err(io::Error::other(format!("shard {n} has no living {role}")))
    }
}

fn first_slot(shard: usize) -> usize {
    shard * SLOTS / SHARDS
}

fn says_ok(node: &Redis) -> Result<(), NotYet> {
    let info = node.call(&["CLUSTER", "INFO"])?.text();
    if info.contains("cluster_state:ok") {
        return Ok(());
    }
    Err(NotYet::Because(format!("{} does not say ok", node.address())))
}

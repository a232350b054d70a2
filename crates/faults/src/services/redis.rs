//! One Redis server.

use std::{
    fs, io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use super::{
    AGREE_WITHIN, Certificates, NotYet, START_WITHIN,
    keeper::Keeper,
    place::{Port, ServiceFolder},
    programs,
    resp::{Client, Reply},
    wait_for,
};

/// How a Redis is set up. The default is what a gate should run on: an append-only file that is on
/// disk before anybody is answered.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    pub appendonly: bool,
    /// `always` or `everysec`.
    pub appendfsync: String,
    pub replica_of: Option<SocketAddr>,
    /// The node time-out, for a member of a Redis Cluster.
    pub cluster: Option<Duration>,
    /// Beside the plain port one with TLS, for clients with a certificate. Not for a member of a cluster.
    pub tls: Option<Arc<Certificates>>,
    /// More settings, as on the command line: `["--maxmemory", "100mb"]`. They win over ours.
    pub extra: Vec<String>,
}

impl Default for RedisOptions {
    fn default() -> RedisOptions {
        RedisOptions {
            appendonly: true,
            appendfsync: "always".into(),
            replica_of: None,
            cluster: None,
            tls: None,
            extra: Vec::new(),
        }
    }
}

/// A Redis process with its port and directory, which stay its own while it is down.
#[derive(Debug)]
pub struct Redis {
    /// Comes first because it is dropped first: a process that lives would miss its folder.
    state: Mutex<RedisState>,
    program: PathBuf,
    options: RedisOptions,
    folder: ServiceFolder,
    port: Port,
    /// Where the members of a cluster talk to each other, or where TLS is spoken.
    bus: Port,
}

#[derive(Debug)]
struct RedisState {
    keeper: Option<Keeper>,
    /// Whom it follows; changes when a replica is promoted, and must survive a restart.
    replica_of: Option<SocketAddr>,
}

impl Redis {
    pub fn start(options: RedisOptions) -> io::Result<Redis> {
        let redis = Redis::prepare(options)?;
        redis.restart()?;
        Ok(redis)
    }

    /// Port and directory, but no process yet.
    pub(super) fn prepare(options: RedisOptions) -> io::Result<Redis> {
        let program = programs::gate_server()?;
        let folder = ServiceFolder::new("redis")?;
        fs::create_dir(folder.data())?;
        let (port, bus) = (Port::reserve()?, Port::reserve()?);
        let state = Mutex::new(RedisState { keeper: None, replica_of: options.replica_of });
        Ok(Redis { state, program, options, folder, port, bus })
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// With TLS.
    pub fn tls_url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.bus.number())
    }

    pub(super) fn bus_port(&self) -> u16 {
        self.bus.number()
    }

    /// The process id, if it runs.
    pub fn pid(&self) -> Option<u32> {
        self.state().keeper.as_ref().map(Keeper::pid)
    }

    pub fn is_running(&self) -> bool {
        self.state().keeper.as_mut().is_some_and(|keeper| keeper.still_runs().is_ok())
    }

    /// Where its files are, for stories about copies of them.
    pub fn folder(&self) -> PathBuf {
        self.folder.data()
    }

    /// One command over a connection of its own.
    pub fn call(&self, words: &[&str]) -> io::Result<Reply> {
        Client::connect(self.address())?.call(words)
    }

    /// `kill -9`. Nothing happens if it is down already.
    pub fn kill(&self) -> io::Result<()> {
        match self.state().keeper.take() {
            Some(mut keeper) => keeper.kill(),
            None => Ok(()),
        }
    }

    /// A polite stop: what is in memory is on disk afterwards.
    pub fn stop(&self) -> io::Result<()> {
        match self.state().keeper.take() {
            Some(mut keeper) => keeper.stop().map(drop),
            None => Ok(()),
        }
    }

    /// Start again with the same port and directory; stopped first if it still runs. Returns when
    /// it answers, that is when it has read its file back.
    pub fn restart(&self) -> io::Result<()> {
        self.launch()?;
        self.wait_ready()
    }

    /// Begin a restart; the members of a cluster are started side by side.
    pub(super) fn launch(&self) -> io::Result<()> {
        self.stop()?;
        let mut state = self.state();
        let args = self.args(state.replica_of);
        state.keeper = Some(Keeper::start(&self.program, &args, &self.folder.log())?);
        Ok(())
    }

    pub(super) fn wait_ready(&self) -> io::Result<()> {
        wait_for(&format!("the start of Redis at {}", self.address()), START_WITHIN, || {
            if let Some(keeper) = &mut self.state().keeper {
                keeper.still_runs().map_err(NotYet::Never)?;
            }
            self.call(&["PING"])?;
            Ok(())
        })
    }

    /// SIGSTOP: connections stay open and nothing is answered.
    pub fn pause(&self) -> io::Result<()> {
        self.signal("STOP")
    }

    pub fn resume(&self) -> io::Result<()> {
        self.signal("CONT")
    }

    /// Killed, and back on the same port without its data: the disk was lost.
    pub fn wipe(&self) -> io::Result<()> {
        self.kill()?;
        fs::remove_dir_all(self.folder.data())?;
        fs::create_dir(self.folder.data())?;
        self.restart()
    }

    /// Follow a primary, or nobody; also after the next restart.
    pub fn follow(&self, primary: Option<SocketAddr>) -> io::Result<()> {
        self.state().replica_of = primary;
        if !self.is_running() {
            return Ok(());
        }
        match primary {
            None => self.call(&["REPLICAOF", "NO", "ONE"])?,
            Some(address) => {
                let (ip, port) = (address.ip().to_string(), address.port().to_string());
                self.call(&["REPLICAOF", &ip, &port])?
            }
        };
        Ok(())
    }

    /// One line of `INFO`, e.g. `info("used_memory")`.
    pub fn info(&self, field: &str) -> io::Result<String> {
        let all = self.call(&["INFO", "everything"])?.text();
        let value = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value
            .map(|value| value.trim().to_owned())
            .ok_or_else(|| io::Error::other(format!("INFO has no {field}")))
    }

    /// Wait until this replica has everything its primary has had so far.
    pub(super) fn wait_in_sync(&self) -> io::Result<()> {
        wait_for(&format!("the replica at {}", self.address()), AGREE_WITHIN, || {
            match self.info("master_link_status")?.as_str() {
                "up" => Ok(()),
                other => Err(NotYet::Because(format!("its link is {other}"))),
            }
        })
    }

    fn signal(&self, signal: &str) -> io::Result<()> {
        match &mut self.state().keeper {
            Some(keeper) => keeper.signal(signal),
            None => Err(io::Error::new(io::ErrorKind::NotConnected, "this Redis is down")),
        }
    }

    fn state(&self) -> MutexGuard<'_, RedisState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn args(&self, replica_of: Option<SocketAddr>) -> Vec<String> {
        let mut args: Vec<String> = Vec::new();
        let mut set = |name: &str, values: &[&str]| {
            args.push(format!("--{name}"));
            args.extend(values.iter().map(|value| value.to_string()));
        };
        set("bind", &["127.0.0.1"]);
        set("port", &[&self.port.number().to_string()]);
        set("dir", &[&self.folder.data().to_string_lossy()]);
        set("appendonly", &[if self.options.appendonly { "yes" } else { "no" }]);
        set("appendfsync", &[&self.options.appendfsync]);
        // A snapshot that happens to be written would decide what a crash loses.
        set("save", &[""]);
        set("maxmemory-policy", &["noeviction"]);
        // Tests may use DEBUG to slow it down or to reload it.
        set("enable-debug-command", &["local"]);
        // By default a primary waits 5 s for more replicas before it sends its data.
        set("repl-diskless-sync-delay", &["0"]);
        if let Some(primary) = replica_of {
            set("replicaof", &[&primary.ip().to_string(), &primary.port().to_string()]);
        }
        if let Some(node_timeout) = self.options.cluster {
            set("cluster-enabled", &["yes"]);
            set("cluster-port", &[&self.bus_port().to_string()]);
            set("cluster-node-timeout", &[&node_timeout.as_millis().to_string()]);
            // A replica stands for election however long it has not heard from its primary: tests
            // keep primaries down longer than operators would.
            set("cluster-replica-validity-factor", &["0"]);
        }
        if let Some(certificates) = &self.options.tls {
            set("tls-port", &[&self.bus_port().to_string()]);
            set("tls-ca-cert-file", &[&certificates.cert("ca").to_string_lossy()]);
            set("tls-cert-file", &[&certificates.cert("server").to_string_lossy()]);
            set("tls-key-file", &[&certificates.key("server").to_string_lossy()]);
        }
        args.extend(self.options.extra.iter().cloned());
        args
    }
}

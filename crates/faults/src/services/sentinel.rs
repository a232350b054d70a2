//! A primary with a replica and the three sentinels that watch over them.

use std::{
    fs, io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use super::{
    AGREE_WITHIN, NotYet, Redis, RedisOptions, START_WITHIN,
    keeper::Keeper,
    place::{Port, ServiceFolder},
    programs,
    resp::{Client, Reply},
    wait_for,
};

const SENTINELS: usize = 3;
/// What the sentinels call the primary.
pub const SENTINEL_NAME: &str = "shop";
/// A server that is silent this long is taken for dead. Production has 30 s; a busy machine must not
/// look like a dead one.
const DOWN_AFTER: Duration = Duration::from_millis(1_500);
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Two Redis servers, of which the sentinels choose the primary.
#[derive(Debug)]
pub struct RedisSentinels {
    servers: [Redis; 2],
    sentinels: Vec<Sentinel>,
}

/// One sentinel process with its port and the file in which it notes what it learns.
#[derive(Debug)]
pub struct Sentinel {
    /// Comes first because it is dropped first.
    keeper: Mutex<Option<Keeper>>,
    program: PathBuf,
    folder: ServiceFolder,
    port: Port,
}

impl RedisSentinels {
    pub fn start() -> io::Result<RedisSentinels> {
        RedisSentinels::start_with(RedisOptions::default())
    }

    pub fn start_with(options: RedisOptions) -> io::Result<RedisSentinels> {
        let primary = Redis::start(RedisOptions { replica_of: None, ..options.clone() })?;
        let replica_of = Some(primary.address());
        let replica = Redis::start(RedisOptions { replica_of, ..options })?;
        let sentinel = |_| Sentinel::start(primary.address());
        let sentinels = (0..SENTINELS).map(sentinel).collect::<io::Result<_>>()?;
        let all = RedisSentinels { servers: [primary, replica], sentinels };
        all.wait_watching()?;
        Ok(all)
    }

    /// By way of the sentinels.
    pub fn url(&self) -> String {
        let places = self.sentinels.iter().map(|sentinel| sentinel.port.address().to_string());
        format!("redis+sentinel://{}/{SENTINEL_NAME}", places.collect::<Vec<_>>().join(","))
    }

    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// Whom most sentinels name.
    pub fn primary(&self) -> io::Result<&Redis> {
        let named = |server: &&Redis| {
            let names = |sentinel: &&Sentinel| sentinel.primary().ok() == Some(server.address());
            self.sentinels.iter().filter(names).count() > SENTINELS / 2
        };
        let nobody = || io::Error::other("the sentinels do not agree on a primary");
        self.servers.iter().find(named).ok_or_else(nobody)
    }

    /// The other one, up or down.
    pub fn replica(&self) -> io::Result<&Redis> {
        let primary = self.primary()?.address();
        let [first, second] = &self.servers;
        Ok(if first.address() == primary { second } else { first })
    }

    /// Wait until another server than this one is the primary and says so itself. Answers how long
    /// that took.
    pub fn wait_failed_over(&self, from: SocketAddr) -> io::Result<Duration> {
        let started = Instant::now();
        wait_for("the failover by the sentinels", AGREE_WITHIN, || {
            let primary = self.primary()?;
            if primary.address() == from || primary.info("role")? != "master" {
                return Err(NotYet::Because(format!("the primary is {}", primary.address())));
            }
            Ok(())
        })?;
        Ok(started.elapsed())
    }

    /// Bring back whoever is down. A primary that was killed comes back as one, as in real life, until
    /// the sentinels tell it to follow the new one; that is waited for.
    pub fn heal(&self) -> io::Result<()> {
        let (primary, other) = (self.primary()?, self.replica()?);
        // Also after the next restart.
        primary.follow(None)?;
        if !other.is_running() {
            other.follow(None)?;
            other.restart()?;
        }
        self.wait_watching()
    }

    /// All sentinels know each other, the replica, and that all is well.
    fn wait_watching(&self) -> io::Result<()> {
        wait_for("the sentinels", AGREE_WITHIN, || {
            let replica = self.replica()?;
            if replica.info("role")? != "slave" || replica.info("master_link_status")? != "up" {
                return Err(NotYet::Because("the replica does not follow".into()));
            }
            for sentinel in &self.sentinels {
                let master = sentinel.call(&["SENTINEL", "MASTER", SENTINEL_NAME])?;
                let told = |field: &str| field_of(&master, field).unwrap_or_default();
                let counts = (told("num-slaves"), told("num-other-sentinels"), told("flags"));
                if counts != ("1".into(), (SENTINELS - 1).to_string(), "master".into()) {
                    return Err(NotYet::Because(format!("one says {counts:?}")));
                }
            }
            Ok(())
        })
    }
}

impl Sentinel {
    fn start(primary: SocketAddr) -> io::Result<Sentinel> {
        let program = programs::gate_server()?;
        let (folder, port) = (ServiceFolder::new("sentinel")?, Port::reserve()?);
        let (ip, of_primary) = (primary.ip(), primary.port());
        let name = SENTINEL_NAME;
        let quorum = SENTINELS / 2 + 1;
        let settings = format!(
            "bind 127.0.0.1\nport {}\ndir {}\nsentinel monitor {name} {ip} {of_primary} {quorum}\n\
             sentinel down-after-milliseconds {name} {}\nsentinel failover-timeout {name} {}\n",
            port.number(),
            folder.path().display(),
            DOWN_AFTER.as_millis(),
            FAILOVER_TIMEOUT.as_millis(),
        );
        fs::write(folder.path().join("sentinel.conf"), settings)?;
        let sentinel = Sentinel { keeper: Mutex::new(None), program, folder, port };
        sentinel.restart()?;
        Ok(sentinel)
    }

    pub fn restart(&self) -> io::Result<()> {
        self.kill()?;
        let file = self.folder.path().join("sentinel.conf");
        let args = [file.to_string_lossy().into_owned(), "--sentinel".into()];
        *self.keeper() = Some(Keeper::start(&self.program, &args, &self.folder.log())?);
        wait_for("the start of a sentinel", START_WITHIN, || {
            if let Some(keeper) = &mut *self.keeper() {
                keeper.still_runs().map_err(NotYet::Never)?;
            }
            self.call(&["PING"])?;
            Ok(())
        })
    }

    pub fn kill(&self) -> io::Result<()> {
        match self.keeper().take() {
            Some(mut keeper) => keeper.kill(),
            None => Ok(()),
        }
    }

    pub fn call(&self, words: &[&str]) -> io::Result<Reply> {
        Client::connect(self.port.address())?.call(words)
    }

    fn primary(&self) -> io::Result<SocketAddr> {
        let named = self.call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SENTINEL_NAME])?;
        let Reply::List(words) = &named else { return Err(io::Error::other("no address")) };
        let words: Vec<String> = words.iter().map(Reply::text).collect();
        words.join(":").parse().map_err(|_| io::Error::other(format!("{words:?} is no address")))
    }

    fn keeper(&self) -> MutexGuard<'_, Option<Keeper>> {
        self.keeper.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// From a list of names and values in turn.
fn field_of(list: &Reply, field: &str) -> Option<String> {
    let Reply::List(words) = list else { return None };
    words.chunks(2).find(|pair| pair[0].text() == field).map(|pair| pair[1].text())
}

//! The two profiles: where gate, ledger and coordination come from. Above this file nothing knows which
//! one runs.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use gate::{
    Gate, GateFailure,
    redis::{RedisGate, RedisOptions},
    solo,
};
use ledger::{Ledger, LedgerError, Orders, Share, mysql, sqlite};
use orders::broker::{self, Broker, BrokerRefused};
use redis_link::{RedisServers, is_away};
use sale::{OrderNumbers, SharedClock};

use crate::{
    checkup,
    coordination::{
        Coordination, CoordinationError, LocalCoordination, RedisCoordination,
        RedisCoordinationOptions,
    },
    node::{Node, NodeError, NodeKeeper, NodeOptions},
    settings::{self, ProcessRole, Profile, Settings},
};

/// The files of the solo profile in the data directory.
pub const LEDGER_FILE: &str = "ledger.db";
/// Solo is one node, so its order numbers are of node 0.
const SOLO_NODE: u16 = 0;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Sqlite(#[from] sqlite::OpenError),
    #[error(transparent)]
    Mysql(#[from] mysql::OpenError),
    #[error(transparent)]
    Journal(#[from] solo::OpenError),
    #[error(transparent)]
    Redis(#[from] gate::GateError),
    #[error(
        "Redis cannot be used: {0}: check redis.url, redis.tls_ca_file, redis.tls_cert_file, \
         redis.tls_key_file"
    )]
    RedisRefused(redis::RedisError),
    #[error(transparent)]
    Coordination(#[from] CoordinationError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("the sandbox cannot be opened: {0}")]
    Sandbox(payment::ProviderError),
    #[error(transparent)]
    SandboxFile(crate::data_dir::DataDirError),
    /// One sentence for each mistake.
    #[error("payment providers cannot be used: {}", .0.join("; "))]
    Providers(Vec<String>),
    #[error("webhooks.tls_ca_file: {0}")]
    WebhookAuthorities(#[from] webhooks::BadAuthorities),
    #[error(transparent)]
    Broker(#[from] BrokerRefused),
    #[error("the lanes cannot be started: {0}")]
    Lanes(std::io::Error),
    #[error("the ledger cannot be read: {0}")]
    Read(#[from] LedgerError),
    /// An engine on which promises would be lost.
    #[error("{0}")]
    Unfit(String),
    #[error("the system gives no random bytes: {0}")]
    NoRandomness(getrandom::Error),
}

/// What an engine is made of.
pub struct Parts {
    pub gate: Arc<dyn Gate>,
    pub ledger: Arc<dyn Ledger>,
    pub coordination: Arc<dyn Coordination>,
    /// Where claims go to their workers by one.
    pub broker: Option<Arc<dyn Broker>>,
    pub numbers: Arc<OrderNumbers>,
    pub(crate) node: Arc<Node>,
    pub(crate) node_keeper: Option<Arc<NodeKeeper>>,
    /// A name of this process, see [`instance_name`].
    pub instance: String,
}

impl Parts {
    /// `data` is a directory that is ours alone.
    pub async fn open(
        settings: &Settings,
        data: &Path,
        clock: SharedClock,
    ) -> Result<Parts, OpenError> {
        let broker = open_broker(settings)?;
        let parts = match settings.profile {
            Profile::Solo => solo_parts(settings, data.to_owned(), clock).await,
            Profile::Cluster => cluster_parts(settings, data.to_owned(), clock).await,
        };
        Ok(Parts { broker, ..parts? })
    }
}

/// The message broker of these settings, if there is one. It need not answer.
pub fn open_broker(settings: &Settings) -> Result<Option<Arc<dyn Broker>>, BrokerRefused> {
    broker::open(settings.claim_log, &settings.kafka, &settings.rocketmq)
}

async fn solo_parts(
    settings: &Settings,
    data: PathBuf,
    clock: SharedClock,
) -> Result<Parts, OpenError> {
    let options = solo::SoloOptions {
        log_claims_max: settings.gate.log_claims_max,
        keep: settings.look_back.in_journal(),
    };
    let numbers = Arc::new(OrderNumbers::new(SOLO_NODE, clock.clone()));
    let node = Node::alone(SOLO_NODE, clock.clone());
    // Reading back a large journal takes a moment; not on an async thread.
    let opening = tokio::task::spawn_blocking(move || {
        let books = sqlite::open(&data.join(LEDGER_FILE), clock.clone())?;
        let journal = solo::SoloGate::open(&data, options, clock)?;
        Ok::<_, OpenError>((journal, books))
    });
    let opened = opening.await.map_err(|error| OpenError::Lanes(std::io::Error::other(error)))?;
    let (journal, books) = opened?;
    for seen in [journal.last_order_no(), books.last_order_no().await?].into_iter().flatten() {
        numbers.start_after(seen);
    }
    Ok(Parts {
        gate: Arc::new(journal),
        ledger: Arc::new(books),
        coordination: Arc::new(LocalCoordination::default()),
        broker: None,
        numbers,
        node,
        node_keeper: None,
        instance: instance_name()?,
    })
}

async fn cluster_parts(
    settings: &Settings,
    data: PathBuf,
    clock: SharedClock,
) -> Result<Parts, OpenError> {
    let instance = instance_name()?;
    let redis = &settings.redis;
    let servers = redis.servers().map_err(unreachable_gate)?;
    check_redis(redis, &servers).await?;
    let shares = settings.roles.iter().map(|role| share_of(*role)).collect();
    let options = mysql::Options { shares, ..settings.ledger.options() };
    let books = mysql::open(settings.ledger.url.expose(), clock.clone(), options).await?;
    let archives = settings.jobs.archive_after_ms > 0;
    let connections_max = settings.ledger.connections_max;
    let findings = checkup::mysql::check_open(&books, connections_max, archives).await;
    checkup::log(findings).map_err(OpenError::Unfit)?;
    let coordination = RedisCoordination::open(RedisCoordinationOptions {
        servers: servers.clone(),
        prefix: redis.prefix.clone(),
        answer_ms_max: redis.answer_ms_max,
        instance: instance.clone(),
    })
    .await?;
    let gate = RedisGate::open(RedisOptions {
        servers,
        prefix: redis.prefix.clone(),
        partitions: redis.partitions,
        answer_ms_max: redis.answer_ms_max,
        // The cap is for all of them together.
        log_claims_max: settings.gate.log_claims_max,
        consumer: instance.clone(),
        takeover_ms: redis.takeover_ms,
        wait_replicas: redis.wait_replicas,
        wait_ms_max: redis.wait_ms_max,
        keep: settings.look_back.in_redis(),
    })
    .await?;
    // The ledger gives nodes to those whose clock is past the numbers of the holder before. The largest
    // number that became an order is a second opinion.
    let numbers = Arc::new(OrderNumbers::new(SOLO_NODE, clock.clone()));
    if let Some(seen) = books.last_order_no().await? {
        numbers.start_after(seen);
    }
    let ledger: Arc<dyn Ledger> = Arc::new(books);
    let options = NodeOptions { data, instance: instance.clone(), host: host() };
    let (nodes, witness) = (ledger.clone(), coordination.clone());
    let keeper = NodeKeeper::open(options, nodes, witness, numbers.clone(), clock).await?;
    let (node, node_keeper) = (keeper.node(), Some(keeper));
    let gate: Arc<dyn Gate> = Arc::new(gate);
    let broker = None;
    Ok(Parts { gate, ledger, coordination, broker, numbers, node, node_keeper, instance })
}

/// An engine that a cluster needs and that does not answer yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingEngine {
    /// As readiness calls it: `gate` or `ledger`.
    pub part: &'static str,
    pub cause: String,
}

impl OpenError {
    /// The engine of a cluster that did not answer, if that is all there is to it: then it may be there in
    /// a moment. What it is that will never do, [`missing_engines`] has found out before.
    pub fn missing(&self) -> Option<MissingEngine> {
        let part = match self {
            OpenError::Redis(error) if error.reason == GateFailure::Unreachable => "gate",
            OpenError::Coordination(CoordinationError::Redis(error)) if is_away(error) => "gate",
            OpenError::Mysql(mysql::OpenError::Unreachable { .. })
            | OpenError::Read(LedgerError::Unavailable(_))
            | OpenError::Node(NodeError::Ledger(LedgerError::Unavailable(_))) => "ledger",
            _ => return None,
        };
        Some(MissingEngine { part, cause: self.to_string() })
    }
}

/// Which engines are not there yet. One that is there and will never do is an error, whatever the other
/// one does.
pub async fn missing_engines(settings: &Settings) -> Result<Vec<MissingEngine>, OpenError> {
    // No waiting gives a binary what was not built into it.
    broker::check_built_in(settings.claim_log)?;
    if settings.profile == Profile::Solo {
        return Ok(Vec::new());
    }
    let ledger = &settings.ledger;
    let (redis, mysql) = tokio::join!(
        checkup::redis::try_out(&settings.redis),
        mysql::try_out(ledger.url.expose(), ledger.options())
    );
    let mut missing = Vec::new();
    match redis {
        Ok(()) => {}
        Err(error) if is_away(&error) => {
            missing.push(MissingEngine { part: "gate", cause: format!("Redis: {error}") });
        }
        Err(error) => return Err(OpenError::RedisRefused(error)),
    }
    match mysql {
        Ok(()) => {}
        Err(error @ mysql::OpenError::Unreachable { .. }) => {
            missing.push(MissingEngine { part: "ledger", cause: error.to_string() });
        }
        Err(error) => return Err(error.into()),
    }
    Ok(missing)
}

fn share_of(role: ProcessRole) -> Share {
    match role {
        ProcessRole::Web => Share::Web,
        ProcessRole::Worker => Share::Worker,
        ProcessRole::Jobs => Share::Jobs,
    }
}

/// Say what is not good about it, and refuse one that would lose promises without a word.
async fn check_redis(
    redis: &settings::Redis,
    servers: &Arc<RedisServers>,
) -> Result<(), OpenError> {
    let findings = checkup::redis::check_at(redis, servers).await;
    checkup::log(findings).map_err(OpenError::Unfit)?;
    let agreed = checkup::redis::agree_on_partitions(redis, servers).await;
    let agreed = agreed.map_err(|error| match is_away(&error) {
        true => OpenError::Redis(unreachable_gate(error)),
        false => OpenError::RedisRefused(error),
    })?;
    checkup::log(vec![agreed]).map_err(OpenError::Unfit)
}

fn unreachable_gate(error: redis::RedisError) -> gate::GateError {
    gate::GateError::new(GateFailure::Unreachable, error)
}

/// A name that no other process has, and that a person can find: the host's, the process id, and
/// something random, because process ids come again.
fn instance_name() -> Result<String, OpenError> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(OpenError::NoRandomness)?;
    Ok(format!("{}-{}-{:08x}", host(), std::process::id(), u32::from_le_bytes(random)))
}

fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_over_in_a_moment_is_waited_for_and_nothing_else() {
        let away = || LedgerError::Unavailable("another instance migrates".into());
        let (place, cause) = ("db".to_owned(), "no answer".to_owned());
        let unreachable = mysql::OpenError::Unreachable { place, cause };
        let gone = std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into();
        for (error, part) in [
            (OpenError::Mysql(unreachable), "ledger"),
            (away().into(), "ledger"),
            (NodeError::Ledger(away()).into(), "ledger"),
            (unreachable_gate(gone).into(), "gate"),
        ] {
            assert_eq!(error.missing().unwrap().part, part, "{error}");
        }
        let refused = (redis::ErrorKind::AuthenticationFailed, "WRONGPASS").into();
        for error in [
            OpenError::Coordination(CoordinationError::Redis(refused)),
            OpenError::Unfit("replicas that forget".into()),
            OpenError::Read(LedgerError::Broken("a table is missing".into())),
            NodeError::AllHeld.into(),
        ] {
            assert_eq!(error.missing(), None, "{error}");
        }
    }
}

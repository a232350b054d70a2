//! `seckill serve`: open everything, say where it is, serve, drain, close.

use std::{
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use auth::{Buyers, generate_admin_token, token_hash};
use sale::{Clock, SharedClock, SigningKeys, SystemClock};
use serde::{Deserialize, Serialize};

use crate::{
    access::tell_kept_back,
    api::{self, App},
    doors::Doors,
    greeting::{self, FirstToken, Greeting},
    logging,
    metrics::Metrics,
    starting, terminal,
};
use config::{Config, Profile, Secret};
use engine::{Engine, LOCAL_TOKEN, OpenError, Parts, checkup, data_dir::DataDir, secrets};

/// In the data directory of a running server: where it listens, and a token for the command line.
const RUNNING_FILE: &str = "running.json";
/// The name of the admin token that the first start makes.
const FIRST_TOKEN: &str = "first";
/// Where it is found if nobody looks at a terminal.
const FIRST_TOKEN_FILE: &str = "first-admin-token";

/// Told to stop, the process is gone this long after, whoever does not answer. Whatever is cut off is
/// done after the next start: everything promised is on disk.
const STOP_MAX: Duration = Duration::from_millis(4_800);
/// After a drain that took all of that, the parts still get this long.
const STOP_MIN: Duration = Duration::from_millis(400);

/// How a command on the same machine finds the running server.
#[derive(Debug, Serialize, Deserialize)]
pub struct Running {
    /// Where it is asked, without TLS.
    pub address: SocketAddr,
    pub token: String,
    /// Where buyers come.
    pub public: SocketAddr,
    /// The console, as a browser on this machine finds it; absent in files of builds that had none.
    #[serde(default)]
    pub console: Option<String>,
}

impl Running {
    pub fn read(data: &Path) -> Option<Running> {
        serde_json::from_slice(&std::fs::read(data.join(RUNNING_FILE)).ok()?).ok()
    }
}

/// Why there is no server: one line, and exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CannotStart(String);

impl CannotStart {
    pub fn because(cause: impl std::fmt::Display) -> CannotStart {
        CannotStart(cause.to_string())
    }
}

/// An engine and the directory it owns.
pub struct Opened {
    pub config: Arc<Config>,
    pub engine: Arc<Engine>,
    pub data: DataDir,
    secret: Secret,
}

impl Opened {
    /// What signs here.
    pub(crate) fn secret_bytes(&self) -> &[u8] {
        self.secret.expose().as_bytes()
    }
}

/// Open the engine on its data directory, which must be free.
pub async fn open(config: Config) -> Result<Opened, CannotStart> {
    let data = DataDir::open(&config.data).map_err(CannotStart::because)?;
    open_in(config, data).await
}

pub async fn open_in(config: Config, data: DataDir) -> Result<Opened, CannotStart> {
    let opening = Parts::open(&config.engine(), data.path(), Arc::new(SystemClock)).await;
    let parts = opening.map_err(CannotStart::because)?;
    let own = secrets::load_or_create(&config.secret, &data).map_err(CannotStart::because)?;
    let secret = secret(&config, own, &parts).await.map_err(CannotStart::because)?;
    open_with(config, data, parts, secret).await
}

async fn open_with(
    config: Config,
    data: DataDir,
    parts: Parts,
    secret: Secret,
) -> Result<Opened, CannotStart> {
    let (settings, clock): (_, SharedClock) = (config.engine(), Arc::new(SystemClock));
    let bytes = secret.expose().as_bytes();
    let keys = SigningKeys::from_secret(bytes)
        .ok_or_else(|| CannotStart("the secret is too short: 16 characters at least".into()))?;
    let engine = Engine::open(settings, data.path(), bytes, keys, clock, parts)
        .await
        .map_err(CannotStart::because)?;
    Ok(Opened { config: Arc::new(config), engine, data, secret })
}

/// Solo keeps its secret beside its data; the instances of a cluster share one through the ledger.
pub(crate) async fn secret(
    config: &Config,
    own: Secret,
    parts: &Parts,
) -> Result<Secret, OpenError> {
    if config.profile == Profile::Solo || !config.secret.is_empty() {
        return Ok(own);
    }
    Ok(Secret::new(parts.ledger.shared_secret(own.expose(), SystemClock.now_ms()).await?))
}

/// Serve until `shutdown` resolves.
pub async fn serve(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), CannotStart> {
    // Before anything is opened: the counters of every part go to this recorder.
    let metrics = Metrics::install().map_err(CannotStart::because)?;
    orders::describe_metrics();
    let data = DataDir::open(&config.data).map_err(CannotStart::because)?;
    let mut doors = Doors::open(&config)?;
    let mut shutdown = std::pin::pin!(shutdown);
    let opening = async {
        let (parts, secret) = starting::open_parts(&config, &data, &doors).await?;
        open_with(config, data, parts, secret).await
    };
    let opened = tokio::select! {
        biased;
        () = &mut shutdown => {
            tracing::info!("stopped before everything was open");
            return Ok(());
        }
        opened = opening => opened?,
    };
    let engine = &opened.engine;
    crate::metrics::show_build(match opened.config.profile {
        Profile::Solo => "solo",
        Profile::Cluster => "cluster",
    });
    checkup::log(checkup::machine(opened.data.path()).map(|(_, found)| found).into())
        .map_err(CannotStart)?;
    doors.cap_connections(raise_open_files(opened.config.http.connections_max));
    let app = App::new(
        opened.config.clone(),
        engine.clone(),
        opened.secret_bytes(),
        Some(metrics.clone()),
    )
    .map_err(CannotStart::because)?;
    let chores = tokio::spawn(chores(app.buyers.clone(), metrics, engine.clone()));
    let noting = tokio::spawn(note_token_uses(app.clone()));
    let sampling = tokio::spawn(api::live::run(app.clone()));
    let watched = app.clone();
    let following = tokio::spawn(doors.follow_certificate());
    let token = first_token(&opened).await?;
    engine.run_jobs();
    let demo = if opened.config.demo_is_on() {
        engine.demo().prepare().await.map_err(CannotStart::because)?
    } else {
        None
    };
    if demo.is_some() {
        engine.await_first_look();
    }
    let running = announce(&opened, &doors).await?;
    let config = &opened.config;
    Greeting {
        config,
        address: doors.public_address()?,
        admin: doors.admin_address(),
        data: opened.data.path(),
        token,
        demo: demo.map(|latest_ms| (latest_ms, engine.now_ms())),
        program: greeting::program(),
    }
    .print();
    logging::release();

    let (push, noted) = (engine.push().clone(), app.clone());
    let told = OnceLock::new();
    let shutdown = async {
        shutdown.await;
        let _ = told.set(Instant::now());
        tracing::info!("stopping: requests under way are finished");
        // Streams last for ever; they end now so that the drain does not wait for them.
        push.close();
        watched.live.close();
        watched.rehearsing.close();
    };
    let drained = doors.serve_app(app, shutdown).await;
    chores.abort();
    following.abort();
    noting.abort();
    sampling.abort();
    let _ = std::fs::remove_file(running);
    let taken = told.get().map_or(Duration::ZERO, Instant::elapsed);
    let left = STOP_MAX.saturating_sub(taken).max(STOP_MIN);
    let stopping = async {
        // What was not written down is a matter of minutes.
        note_uses(&noted).await;
        engine.stop().await;
    };
    if tokio::time::timeout(left, stopping).await.is_err() {
        tracing::warn!("something does not stop in time and is cut off");
    }
    tracing::info!(finished = drained.finished, cut = drained.cut, "stopped");
    Ok(())
}

/// Small things that have to happen now and then as long as we serve.
async fn chores(buyers: Arc<Buyers>, metrics: Metrics, engine: Arc<Engine>) {
    const EVERY: Duration = Duration::from_secs(5);
    loop {
        tokio::time::sleep(EVERY).await;
        metrics.upkeep();
        tell_kept_back();
        if let Err(error) = engine.signing_keys().learn().await {
            tracing::debug!(%error, "whether there are new signing keys is not known");
        }
        let buyers = buyers.clone();
        // Reads a file, so not on an async thread.
        match tokio::task::spawn_blocking(move || buyers.reload()).await {
            Ok(Ok(true)) => tracing::info!("the shop's keys were read again"),
            Ok(Err(error)) => {
                tracing::error!(%error, "the shop's new keys cannot be used, the old ones stay");
            }
            Ok(Ok(false)) | Err(_) => {}
        }
    }
}

/// When admin tokens and sessions of the console were last used.
async fn note_token_uses(app: Arc<App>) {
    const EVERY: Duration = Duration::from_secs(60);
    loop {
        tokio::time::sleep(EVERY).await;
        note_uses(&app).await;
    }
}

/// A ledger that does not take it now has missed a minute.
async fn note_uses(app: &App) {
    let (tokens, sessions) = (app.admins.take_uses(), app.sessions.take_uses());
    let noted = app.engine.tokens().note_uses(&tokens).await;
    if let Err(error) = noted.and(app.engine.console().note_uses(&sessions).await) {
        tracing::debug!(%error, "when admin tokens were used is not written down");
    }
}

/// Each connection is an open file, and the usual limit of 1,024 is soon reached. Answers how many
/// connections there can be: beyond it nobody could be accepted, nor made to give way.
fn raise_open_files(connections_max: usize) -> usize {
    /// Databases, the log, the listener, connections that give way, and some to spare.
    const OTHER_FILES: u64 = 512;
    let wanted = connections_max as u64 + OTHER_FILES;
    match rlimit::increase_nofile_limit(wanted) {
        Ok(given) if given < wanted => {
            let possible = given.saturating_sub(OTHER_FILES).max(given / 2).max(1) as usize;
            let possible = possible.min(connections_max);
            tracing::warn!(
                wanted,
                given,
                possible,
                "the system allows fewer open files than http.connections_max needs, so there can be \
                 fewer connections: raise `ulimit -n`"
            );
            possible
        }
        Ok(_) => connections_max,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files could not be raised");
            connections_max
        }
    }
}

/// How operators get their token. The first one is shown once: on a terminal, or else in a file that only
/// the owner of the data directory can read, for what is printed there ends in a log.
async fn first_token(opened: &Opened) -> Result<FirstToken, CannotStart> {
    if !opened.config.auth.admin_token.is_empty() {
        return Ok(FirstToken::Configured);
    }
    let Some(token) = make_first_token(&opened.engine).await? else {
        return Ok(FirstToken::Before);
    };
    if terminal::somebody_looks() {
        return Ok(FirstToken::Shown(token));
    }
    let path = opened.data.file(FIRST_TOKEN_FILE);
    secrets::write_private(&path, format!("{token}\n").as_bytes()).map_err(CannotStart::because)?;
    tracing::info!(file = %path.display(), "the first admin token is in a file: read it, then delete it");
    Ok(FirstToken::InFile(path))
}

/// At the very first start: make one.
async fn make_first_token(engine: &Engine) -> Result<Option<String>, CannotStart> {
    let tokens = engine.tokens().all().await.map_err(CannotStart::because)?;
    if tokens.iter().any(|token| !token.name.starts_with(LOCAL_TOKEN)) {
        return Ok(None);
    }
    // Names are given once: where the first token of before was revoked, the next is the second.
    for n in 1.. {
        let name = if n == 1 { FIRST_TOKEN.into() } else { format!("{FIRST_TOKEN}-{n}") };
        let token = generate_admin_token().map_err(CannotStart::because)?;
        let added = engine.tokens().make_first(&name, &token_hash(&token)).await;
        if added.map_err(CannotStart::because)? {
            return Ok(Some(token));
        }
        let tokens = engine.tokens().all().await.map_err(CannotStart::because)?;
        if tokens.iter().any(|token| token.name == name) {
            // Another instance of the cluster was faster and shows its own.
            return Ok(None);
        }
    }
    Ok(None)
}

async fn put_token(engine: &Engine, name: &str) -> Result<String, CannotStart> {
    let token = generate_admin_token().map_err(CannotStart::because)?;
    let put = engine.tokens().put_local(name, &token_hash(&token)).await;
    put.map_err(CannotStart::because)?;
    Ok(token)
}

/// Let commands on this machine find us. Only the owner of the data directory can read it.
async fn announce(opened: &Opened, doors: &Doors) -> Result<PathBuf, CannotStart> {
    let token = put_token(&opened.engine, &local_token(opened)).await?;
    let (address, public) = (doors.commands_address()?, doors.public_address()?);
    let path = opened.data.file(RUNNING_FILE);
    let console = Some(doors.console_url(public));
    let running = Running { address, token, public, console };
    let text = serde_json::to_vec(&running).map_err(CannotStart::because)?;
    secrets::write_private(&path, &text).map_err(CannotStart::because)?;
    Ok(path)
}

/// In a cluster every data directory has a token of its own, replaced at its next start.
fn local_token(opened: &Opened) -> String {
    if opened.config.profile == Profile::Solo {
        return LOCAL_TOKEN.into();
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let place = token_hash(&format!("{host}:{}", opened.data.path().display()));
    let short: String = place[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{LOCAL_TOKEN}-{short}")
}

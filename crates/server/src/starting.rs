//! Waiting for Redis and MySQL that are still coming up.
//!
//! A machine that starts everything at once does not care who is first. An instance whose engines do not
//! answer yet says so once in the log, listens, is alive and not ready, tells everybody else to come
//! again, and goes on when both are there. So it does if one of them goes away again while everything is
//! opened. What waiting cannot mend (a password, a database, a certificate, a schema) ends it at once, also
//! while the other engine is away.

use std::{sync::Arc, time::Duration};

use axum::{Router, extract::State, response::IntoResponse, routing::get};
use engine::{MissingEngine, OpenError, Parts, data_dir::DataDir, missing_engines, secrets};
use parking_lot::RwLock;
use sale::SystemClock;
use serde_json::Value;
use tokio::sync::Notify;

use crate::{
    api,
    doors::{Doors, NothingFast},
    edge::Edge,
    logging,
    problem::{Code, Problem},
    serve::{self, CannotStart},
};
use config::{Config, Profile, Secret};

/// How often the engines are asked whether they are there.
const ASK_EVERY: Duration = Duration::from_millis(500);

type Missing = Arc<RwLock<Vec<MissingEngine>>>;

/// What was opened, or what that has to wait for.
type Tried = Result<(Parts, Secret), Vec<MissingEngine>>;

/// Open the parts of the engine and find out what signs, waiting for what is not there yet.
pub(crate) async fn open_parts(
    config: &Config,
    data: &DataDir,
    doors: &Doors,
) -> Result<(Parts, Secret), CannotStart> {
    match try_to_open(config, data).await? {
        Ok(opened) => Ok(opened),
        Err(missing) => wait(config, data, missing, doors).await,
    }
}

async fn try_to_open(config: &Config, data: &DataDir) -> Result<Tried, CannotStart> {
    let settings = config.engine();
    let missing = missing_engines(&settings).await.map_err(CannotStart::because)?;
    if !missing.is_empty() {
        return Ok(Err(missing));
    }
    let own = secrets::load_or_create(&config.secret, data).map_err(CannotStart::because)?;
    let opening = async {
        let parts = Parts::open(&settings, data.path(), Arc::new(SystemClock)).await?;
        let secret = serve::secret(config, own, &parts).await?;
        Ok::<_, OpenError>((parts, secret))
    };
    match opening.await {
        Ok(opened) => Ok(Ok(opened)),
        Err(error) => match error.missing().filter(|_| config.profile == Profile::Cluster) {
            Some(missing) => Ok(Err(vec![missing])),
            None => Err(CannotStart::because(error)),
        },
    }
}

/// Until nothing is missing any more.
async fn wait(
    config: &Config,
    data: &DataDir,
    missing: Vec<MissingEngine>,
    doors: &Doors,
) -> Result<(Parts, Secret), CannotStart> {
    logging::release();
    missing.iter().for_each(say);
    let missing: Missing = Arc::new(RwLock::new(missing));
    let over = Notify::new();
    let asking = async {
        let opened = ask(config, data, &missing).await;
        over.notify_one();
        opened
    };
    let (opened, answered) =
        tokio::join!(asking, answer(config, missing.clone(), doors, over.notified()));
    answered.and(opened)
}

async fn ask(
    config: &Config,
    data: &DataDir,
    missing: &Missing,
) -> Result<(Parts, Secret), CannotStart> {
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        let now = match try_to_open(config, data).await? {
            Ok(opened) => {
                tracing::info!("Redis and the ledger answer: starting");
                return Ok(opened);
            }
            Err(missing) => missing,
        };
        let before = std::mem::replace(&mut *missing.write(), now.clone());
        let is_new = |one: &&MissingEngine| before.iter().all(|known| known.part != one.part);
        now.iter().filter(is_new).for_each(say);
    }
}

fn say(missing: &MissingEngine) {
    let MissingEngine { part, cause } = missing;
    tracing::warn!(%cause, "waiting for the {part}, which does not answer yet");
}

/// Tell whoever asks that we are not there yet, until the wait is over.
async fn answer(
    config: &Config,
    missing: Missing,
    doors: &Doors,
    over: impl Future<Output = ()>,
) -> Result<(), CannotStart> {
    let doors = doors.another_handle().map_err(CannotStart::because)?;
    let router = Router::new()
        .route("/healthz", get(api::machine::healthz))
        .fallback(not_ready)
        .with_state(missing);
    let service = Edge::new(router, Duration::from_millis(config.http.request_timeout_ms));
    // Connections that stay open are closed: they would hear of nothing but waiting for ever.
    doors.serve(Arc::new(NothingFast), service.clone(), service, over).await;
    Ok(())
}

/// The fields are those of readiness.
async fn not_ready(State(missing): State<Missing>) -> impl IntoResponse {
    let missing = missing.read();
    let word = |part: &str| -> Value {
        if missing.iter().any(|one| one.part == part) { "down".into() } else { "ok".into() }
    };
    let down = ["sell", "settle", "show"].into_iter();
    let busy = down.fold(Problem::new(Code::Busy), |busy, what| busy.with(what, "down"));
    busy.with("gate", word("gate")).with("ledger", word("ledger"))
}

//! What load balancers, monitors and tools ask.
//!
//! Readiness is answered from memory: a job looks at gate and ledger every second, so that a thousand
//! who ask cost nothing, and one part that hangs keeps nobody waiting.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{Shared, item_metrics};
use crate::{
    extract::Json,
    problem::{Code, Problem},
    web,
};
use engine::{Readiness, Status};

#[derive(Serialize, ToSchema)]
pub(crate) struct Alive {
    #[schema(example = "ok")]
    status: &'static str,
    version: &'static str,
}

/// What can be done, and how each part does.
#[derive(Serialize, ToSchema)]
pub(super) struct Ready {
    /// Claims are admitted: `ok`, `down`, or `not_here` where no buyers are answered.
    #[schema(example = "ok")]
    sell: &'static str,
    /// Claims become orders: `ok` or `down`.
    #[schema(example = "ok")]
    settle: &'static str,
    /// Pages are shown: `ok` or `not_here`.
    #[schema(example = "ok")]
    show: &'static str,
    /// Whether it can be written: `ok`, `partly` if some of its partitions are away, `down` or
    /// `unknown`.
    #[schema(example = "ok")]
    gate: &'static str,
    /// What died comes back only with a restart: `ok` or `down`.
    #[schema(example = "ok")]
    lanes: &'static str,
    /// Order numbers can be given: `ok`, or `down` without a sure lease on them.
    #[schema(example = "ok")]
    numbers: &'static str,
    /// `ok`, `down` or `unknown`.
    #[schema(example = "ok")]
    ledger: &'static str,
    /// `ok`, `paused` while they wait for ledger or log, `down`, or `not_here`.
    #[schema(example = "ok")]
    workers: &'static str,
    /// `stuck` if the oldest claim waits for too long or the log is half full.
    #[schema(example = "ok")]
    log: &'static str,
    /// `panicking` if a bug keeps one from working.
    #[schema(example = "ok")]
    jobs: &'static str,
    /// `stale` if it was not read anew lately; it is shown all the same.
    #[schema(example = "ok")]
    catalogue: &'static str,
    /// The webhook of alerts: `ok`, `failing` or `not_set`.
    #[schema(example = "ok")]
    alerts: &'static str,
    /// Since when gate and ledger are as they are, in Unix milliseconds.
    #[schema(value_type = Object, example = json!({"gate": 1794355200000_i64, "ledger": 1794355200000_i64}))]
    since: Map<String, Value>,
}

impl Ready {
    fn of(readiness: &Readiness) -> Ready {
        let word = |name: &str| {
            let part = readiness.parts.iter().find(|part| part.name == name);
            part.map_or(Status::Unknown, |part| part.status).as_str()
        };
        let since = readiness.parts.iter().filter_map(|part| {
            let since_ms = part.since_ms?;
            Some((part.name.to_owned(), since_ms.into()))
        });
        Ready {
            sell: readiness.sell.as_str(),
            settle: readiness.settle.as_str(),
            show: readiness.show.as_str(),
            gate: word("gate"),
            lanes: word("lanes"),
            numbers: word("numbers"),
            ledger: word("ledger"),
            workers: word("workers"),
            log: word("log"),
            jobs: word("jobs"),
            catalogue: word("catalogue"),
            alerts: word("alerts"),
            since: since.collect(),
        }
    }
}

/// The process runs.
#[utoipa::path(get, path = "/healthz", tag = "machine", responses((status = OK, body = Alive)))]
pub(crate) async fn healthz() -> Json<Alive> {
    Json(Alive { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

/// This process can do what it is for: sell, where it answers buyers. For load balancers.
#[utoipa::path(get, path = "/readyz", tag = "machine",
    responses(
        (status = OK, body = Ready),
        (status = SERVICE_UNAVAILABLE,
            description = "`busy`, with the fields of the other answer beside it")))]
pub(super) async fn readyz(State(app): State<Shared>) -> Result<Json<Ready>, Problem> {
    let readiness = app.engine.health().readiness();
    answer(&readiness, readiness.ready)
}

/// Claims are admitted here.
#[utoipa::path(get, path = "/readyz/sell", tag = "machine",
    responses(
        (status = OK, body = Ready),
        (status = SERVICE_UNAVAILABLE,
            description = "`busy`, with the fields of the other answer beside it")))]
pub(super) async fn ready_to_sell(State(app): State<Shared>) -> Result<Json<Ready>, Problem> {
    let readiness = app.engine.health().readiness();
    answer(&readiness, readiness.sell == Status::Ok)
}

/// Claims become orders: ledger and gate answer, workers run, the log drains. For monitors; not for load
/// balancers, because with the ledger away the sale goes on.
#[utoipa::path(get, path = "/readyz/settle", tag = "machine",
    responses(
        (status = OK, body = Ready),
        (status = SERVICE_UNAVAILABLE,
            description = "`busy`, with the fields of the other answer beside it")))]
pub(super) async fn ready_to_settle(State(app): State<Shared>) -> Result<Json<Ready>, Problem> {
    let readiness = app.engine.health().readiness();
    answer(&readiness, readiness.settle == Status::Ok)
}

/// Pages and the catalogue are shown, if need be from memory.
#[utoipa::path(get, path = "/readyz/show", tag = "machine",
    responses(
        (status = OK, body = Ready),
        (status = SERVICE_UNAVAILABLE,
            description = "`busy`, with the fields of the other answer beside it")))]
pub(super) async fn ready_to_show(State(app): State<Shared>) -> Result<Json<Ready>, Problem> {
    let readiness = app.engine.health().readiness();
    answer(&readiness, readiness.show == Status::Ok)
}

/// Why something is down may name hosts, so it is for the log and the overview.
fn answer(readiness: &Readiness, ready: bool) -> Result<Json<Ready>, Problem> {
    let shown = Ready::of(readiness);
    if ready {
        return Ok(Json(shown));
    }
    let Ok(Value::Object(fields)) = serde_json::to_value(&shown) else {
        return Err(Problem::new(Code::Busy));
    };
    Err(fields
        .into_iter()
        .fold(Problem::new(Code::Busy), |busy, (name, value)| busy.with(&name, value)))
}

/// Numbers for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "machine",
    responses((status = OK, body = String, content_type = "text/plain")))]
pub(super) async fn metrics(State(app): State<Shared>) -> Response {
    app.claims.show();
    let mut text = app.metrics.as_ref().map(|metrics| metrics.render()).unwrap_or_default();
    item_metrics::write(&app.engine, &mut text);
    let headers = [(CONTENT_TYPE, "text/plain; version=0.0.4"), (CACHE_CONTROL, "no-store")];
    (headers, text).into_response()
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "machine",
    responses((status = OK, description = "OpenAPI 3", content_type = "application/json")))]
pub(super) async fn openapi(headers: HeaderMap) -> Result<Response, Problem> {
    web::document(&headers)
}

//! What load balancers, monitors and tools ask.

use std::{future::Future, time::Duration};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Shared, openapi};
use crate::{
    extract::Json,
    problem::{Code, Problem},
};

/// A part that takes longer to answer counts as down.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

#[derive(Serialize, ToSchema)]
pub(super) struct Alive {
    #[schema(example = "ok")]
    status: &'static str,
    version: &'static str,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Ready {
    #[schema(example = "ok")]
    gate: &'static str,
    #[schema(example = "ok")]
    lanes: &'static str,
    #[schema(example = "ok")]
    ledger: &'static str,
    #[schema(example = "ok")]
    workers: &'static str,
    /// `panicking` if a bug keeps one from working. That makes no instance unready: buyers need it
    /// less than they need the instance.
    #[schema(example = "ok")]
    jobs: &'static str,
}

/// The process runs.
#[utoipa::path(get, path = "/healthz", tag = "machine", responses((status = OK, body = Alive)))]
pub(super) async fn healthz() -> Json<Alive> {
    Json(Alive { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

/// Gate and ledger answer, and the lanes before them and the workers between them run.
#[utoipa::path(get, path = "/readyz", tag = "machine",
    responses(
        (status = OK, body = Ready),
        (status = SERVICE_UNAVAILABLE, description = "`busy`; `gate`, `lanes`, `ledger` and `workers` say which is down")))]
pub(super) async fn readyz(State(app): State<Shared>) -> Result<Json<Ready>, Problem> {
    let engine = &app.engine;
    let (gate, ledger) = tokio::join!(part(engine.gate.ping()), part(engine.ledger.ping()));
    // What died comes back only with a restart. Until then a lane's buyers are not admitted, and
    // without a worker claims do not become orders.
    let lanes = running(engine.lanes.are_running());
    let workers = running(engine.workers.as_ref().is_none_or(|workers| workers.is_running()));
    let parts = [("gate", gate), ("lanes", lanes), ("ledger", ledger), ("workers", workers)];
    let jobs = if engine.jobs_panicking().is_empty() { "ok" } else { "panicking" };
    if parts.iter().all(|(_, part)| part.is_ok()) {
        return Ok(Json(Ready { gate: "ok", lanes: "ok", ledger: "ok", workers: "ok", jobs }));
    }
    let causes = parts.iter().filter_map(|(name, part)| Some((name, part.as_ref().err()?)));
    let causes: Vec<String> = causes.map(|(name, cause)| format!("{name}: {cause}")).collect();
    let busy = Problem::new(Code::Busy).inside(causes.join("; ")).with("jobs", jobs);
    Err(parts
        .into_iter()
        .fold(busy, |busy, (name, part)| busy.with(name, if part.is_ok() { "ok" } else { "down" })))
}

fn running(runs: bool) -> Result<(), String> {
    if runs { Ok(()) } else { Err("they do not run".into()) }
}

async fn part<E: ToString>(ping: impl Future<Output = Result<(), E>>) -> Result<(), String> {
    match tokio::time::timeout(ANSWER_WITHIN, ping).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("no answer in time".into()),
    }
}

/// Numbers for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "machine",
    responses((status = OK, body = String, content_type = "text/plain")))]
pub(super) async fn metrics(State(app): State<Shared>) -> Response {
    let text = app.metrics.as_ref().map(|metrics| metrics.render()).unwrap_or_default();
    let headers = [(CONTENT_TYPE, "text/plain; version=0.0.4"), (CACHE_CONTROL, "no-store")];
    (headers, text).into_response()
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "machine",
    responses((status = OK, description = "OpenAPI 3", content_type = "application/json")))]
pub(super) async fn openapi() -> Response {
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "public, max-age=60")];
    (headers, openapi::served()).into_response()
}

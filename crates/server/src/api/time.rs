//! The server's clock, for countdowns.

use axum::{extract::State, response::IntoResponse};
use http::header::CACHE_CONTROL;
use serde::Serialize;
use utoipa::ToSchema;

use super::Shared;
use crate::extract::Json;

#[derive(Serialize, ToSchema)]
pub(super) struct Now {
    /// Unix time in milliseconds, as are all times here.
    now_ms: i64,
}

/// The time by the clock that opens and closes sales.
#[utoipa::path(get, path = "/time", tag = "public", responses((status = OK, body = Now)))]
pub(super) async fn time(State(app): State<Shared>) -> impl IntoResponse {
    ([(CACHE_CONTROL, "no-store")], Json(Now { now_ms: app.engine.now_ms() }))
}

//! What a page must know of this shop before it shows a form or a button.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::header::CACHE_CONTROL;
use serde::Serialize;
use utoipa::ToSchema;

use super::Shared;
use crate::extract::Json;

/// It changes only with a restart.
const CACHEABLE: &str = "public, max-age=60";

#[derive(Serialize, ToSchema)]
#[schema(as = Shop)]
pub(super) struct ShopJson {
    /// Can anybody sign in as anybody, with `POST /dev/login`? Otherwise buyers bring the shop's JWT.
    dev_login: bool,
    /// Where an order can be paid, by name. Empty: nowhere.
    providers: Vec<String>,
}

/// How buyers sign in and pay here.
#[utoipa::path(get, path = "/shop", tag = "public", responses((status = OK, body = ShopJson)))]
pub(super) async fn shop(State(app): State<Shared>) -> Response {
    let providers = app.engine.payments().provider_names();
    let shop = ShopJson { dev_login: app.config.dev_login_is_on(), providers };
    ([(CACHE_CONTROL, CACHEABLE)], Json(shop)).into_response()
}

//! What a page must know of this shop before it shows a form or a button.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::header::CACHE_CONTROL;
use payment::{Provider, Title};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Shared, schemas};
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
    /// The same with what people call them, and how buyers come to them. An order's `pay_with` says which of
    /// them take its currency.
    pay_with: Vec<OfferedProvider>,
}

#[derive(Serialize, ToSchema)]
struct OfferedProvider {
    #[schema(schema_with = schemas::provider)]
    provider: &'static str,
    title: ProviderTitle,
    /// The usual way first.
    #[schema(schema_with = schemas::pay_methods)]
    methods: Vec<&'static str>,
}

/// What people call a provider.
#[derive(Serialize, ToSchema)]
struct ProviderTitle {
    en: String,
    zh: String,
}

impl OfferedProvider {
    fn of(provider: &dyn Provider) -> OfferedProvider {
        let Title { en, zh } = provider.title();
        let methods = provider.methods().iter().map(|method| method.as_str()).collect();
        OfferedProvider { provider: provider.name(), title: ProviderTitle { en, zh }, methods }
    }
}

/// How buyers sign in and pay here.
#[utoipa::path(get, path = "/shop", tag = "public", responses((status = OK, body = ShopJson)))]
pub(super) async fn shop(State(app): State<Shared>) -> Response {
    let payments = app.engine.payments();
    let shop = ShopJson {
        dev_login: app.config.dev_login_is_on(),
        providers: payments.provider_names(),
        pay_with: payments.offered().map(OfferedProvider::of).collect(),
    };
    ([(CACHE_CONTROL, CACHEABLE)], Json(shop)).into_response()
}

//! The HTTP API: requests in, calls of the engine out, answers back.
//!
//! One file per noun. A handler says who may ask (an extractor of [`crate::access`] or of `roles`),
//! takes the request apart, makes one call of the engine and shows what came of it. Nothing is
//! decided here that the engine could decide.
//!
//! Two things hold for all of them:
//!
//! - **What was begun is finished even if its client has left.** A handler's future is dropped when the
//!   connection closes or the time is up, so everything that changes something runs as a task of
//!   its own (see `finish`). The claim path needs no such task: its work is done by the lane.
//! - **The document is the routing table.** Routes are registered together with their OpenAPI
//!   description, so neither can exist without the other (see `routing`).

mod admin;
mod body_limit;
mod cashier;
mod catalogue;
mod claims;
mod counts;
mod dev_login;
mod draws;
mod events;
mod external;
mod fast_path;
mod finish;
mod gate_times;
mod idempotency;
mod item_metrics;
pub(crate) mod live;
pub(crate) mod machine;
mod news;
mod openapi;
mod order;
mod order_money;
mod orders;
mod paging;
mod payments;
mod qr_code;
mod receipts;
mod refusals;
mod return_url;
mod roles;
mod routing;
mod sale_tokens;
mod schemas;
mod shop;
mod time;
mod times;
mod websocket;

use std::{ops::Deref, sync::Arc, time::Duration};

use auth::{Admins, Buyers, ConsoleSessions, KeyError, SessionLookup, TokenLookup};
use axum::{
    Router,
    extract::{FromRef, Request, State},
    middleware,
    response::{IntoResponse, Response},
};
use listener::{FastPath, HttpSettings};
use utoipa_axum::router::OpenApiRouter;

use crate::{
    edge::Edge, front_door::FrontDoor, metrics::Metrics, origins::Origins, problem::Problem,
    rehearsing::Rehearsing, web,
};
use body_limit::limited;
use config::{Config, ProcessRole};
use counts::ClaimCounts;
use engine::Engine;
use routing::routes;

/// The document as it is served, for the snapshot in the repository and for tools.
pub(crate) use admin::csv_cell;
pub(crate) use fast_path::{write_full, write_refusal};
#[cfg(debug_assertions)]
pub use openapi::document;

/// Where the API lives. The paths of machines and pages are outside it.
pub const BASE: &str = "/api/v1";

/// All that handlers share.
pub struct App {
    pub config: Arc<Config>,
    pub engine: Arc<Engine>,
    pub buyers: Arc<Buyers>,
    pub admins: Arc<Admins>,
    pub sessions: Arc<ConsoleSessions>,
    pub(crate) door: Arc<FrontDoor>,
    /// Whose pages may ask beside our own.
    pub origins: Origins,
    /// Absent where nobody installed a recorder, as in tests.
    metrics: Option<Metrics>,
    claims: ClaimCounts,
    pub(crate) live: live::Live,
    pub(crate) rehearsing: Arc<Rehearsing>,
    started_ms: sale::Millis,
}

impl App {
    /// `secret` is the process's own. Call it after the metrics recorder is installed, or the
    /// counts go nowhere.
    pub fn new(
        config: Arc<Config>,
        engine: Arc<Engine>,
        secret: &[u8],
        metrics: Option<Metrics>,
    ) -> Result<Arc<App>, KeyError> {
        let (auth, clock) = (&config.auth, engine.clock().clone());
        let dev_secret = config.dev_login_is_on().then_some(secret);
        let buyers = Buyers::new(auth, dev_secret, clock.clone())?;
        let tokens = engine.tokens().clone();
        let lookup: TokenLookup = Arc::new(move |hash| {
            let tokens = tokens.clone();
            Box::pin(async move { tokens.by_hash(&hash).await })
        });
        let admins = Admins::new(auth, lookup, clock.clone());
        let console = engine.console().clone();
        let lookup: SessionLookup = Arc::new(move |hash| {
            let console = console.clone();
            Box::pin(async move { console.session(&hash).await })
        });
        let sessions = ConsoleSessions::new(auth, lookup, clock.clone());
        let beside_sales = config.demo_is_on();
        let rehearsing = Rehearsing::new(engine.clone(), &config.data, beside_sales);
        Ok(Arc::new(App {
            door: Arc::new(FrontDoor::new(&config, engine.clone())),
            origins: Origins::new(&config.http.allowed_origins),
            config,
            buyers: Arc::new(buyers),
            admins: Arc::new(admins),
            sessions: Arc::new(sessions),
            metrics,
            claims: ClaimCounts::new(),
            live: live::Live::new(),
            rehearsing: Arc::new(rehearsing),
            started_ms: clock.now_ms(),
            engine,
        }))
    }
}

/// The state of the router. A type of ours around the [`Arc`], because the extractors of
/// [`crate::access`] take what they need out of it.
#[derive(Clone)]
pub(crate) struct Shared(Arc<App>);

impl Deref for Shared {
    type Target = App;
    fn deref(&self) -> &App {
        &self.0
    }
}

impl FromRef<Shared> for Arc<Buyers> {
    fn from_ref(shared: &Shared) -> Self {
        shared.buyers.clone()
    }
}

impl FromRef<Shared> for Arc<FrontDoor> {
    fn from_ref(shared: &Shared) -> Self {
        shared.door.clone()
    }
}

impl FromRef<Shared> for Arc<Admins> {
    fn from_ref(shared: &Shared) -> Self {
        shared.admins.clone()
    }
}

/// Everything that can be asked, without the edge: errors have a status and no body yet. A process
/// that is not for buyers answers machines and operators only.
pub fn router(app: Arc<App>) -> Router {
    let inner = inner_table(&app.config.http);
    // The pages of buyers bring the scripts of all pages.
    let alone = !app.engine.settings().does(ProcessRole::Web);
    with_buyers(&app, inner).merge(web::console(alone))
}

/// What is answered at the door of buyers where operators have one of their own.
pub fn public_router(app: Arc<App>) -> Router {
    with_buyers(&app, counted(anybody()))
}

/// These, and in a process that is for buyers what they ask.
fn with_buyers(app: &Arc<App>, others: OpenApiRouter<Shared>) -> Router {
    let http = &app.config.http;
    let shared = Shared(app.clone());
    let routes: Router<Shared> = if app.engine.settings().does(ProcessRole::Web) {
        let pages = web::routes(&http.allowed_frames)
            .route_layer(middleware::from_fn_with_state(shared.clone(), looks));
        Router::from(buyers_table(http).merge(others)).merge(pages)
    } else {
        others.into()
    };
    routes.with_state(shared)
}

/// Whoever opens the page of the shop or of the API looks: the demo waits for it. The page of an item that
/// is not there, is not there.
async fn looks(State(app): State<Shared>, request: Request, next: middleware::Next) -> Response {
    let path = request.uri().path();
    if matches!(path, "/" | "/docs") {
        app.engine.demo().somebody_looks().await;
    }
    if let Some(item) = path.strip_prefix("/items/") {
        let known = match item.parse() {
            Ok(id) => app.engine.catalogue().item(sale::ItemId(id)).await,
            Err(_) => Ok(None),
        };
        // A ledger that does not answer is the page's to tell; it asks again.
        if matches!(known, Ok(None)) {
            return Problem::not_found().into_response();
        }
    }
    next.run(request).await
}

/// The router inside its edge, as [`listener::serve`] wants it.
pub fn service(app: Arc<App>) -> Edge<Router> {
    edge(&app, router(app.clone()))
}

/// The same for the door of buyers alone.
pub fn public_service(app: Arc<App>) -> Edge<Router> {
    edge(&app, public_router(app.clone()))
}

/// The same for the door of operators and machines alone.
pub fn admin_service(app: Arc<App>) -> Edge<Router> {
    let routes: Router<Shared> = inner_table(&app.config.http).into();
    edge(&app, routes.with_state(Shared(app.clone())).merge(web::console(true)))
}

fn edge(app: &App, router: Router) -> Edge<Router> {
    let timeout = Duration::from_millis(app.config.http.request_timeout_ms);
    let (origins, door) = (app.origins.clone(), app.door.clone());
    Edge::new(router, timeout).open_to(origins).behind(door)
}

/// What is answered before the router.
pub fn fast_path(app: Arc<App>) -> Arc<dyn FastPath> {
    Arc::new(fast_path::FastClaims::new(app))
}

/// What operators and machines ask.
fn inner_table(http: &HttpSettings) -> OpenApiRouter<Shared> {
    let inner = OpenApiRouter::default()
        .nest(BASE, limited(operators(), http.admin_body_bytes_max))
        .nest(BASE, limited(imports(), http.import_body_bytes_max))
        .merge(machines());
    counted(inner.merge(anybody()))
}

fn counted(routes: OpenApiRouter<Shared>) -> OpenApiRouter<Shared> {
    routes.route_layer(middleware::from_fn(counts::by_route))
}

/// Routes and document in one.
#[cfg(debug_assertions)]
fn routing_table(http: &HttpSettings) -> OpenApiRouter<Shared> {
    buyers_table(http).merge(inner_table(http))
}

/// What buyers ask.
fn buyers_table(http: &HttpSettings) -> OpenApiRouter<Shared> {
    let buyers =
        OpenApiRouter::default().nest(BASE, limited(public_and_buyers(), http.body_bytes_max));
    // The one path that a sale is about counts for itself, and passes nothing on its way.
    let hot = OpenApiRouter::default().routes(routes!(claims::claim));
    let hot = limited(hot, http.body_bytes_max);
    counted(buyers).nest(BASE, hot)
}

fn public_and_buyers() -> OpenApiRouter<Shared> {
    OpenApiRouter::default()
        .routes(routes!(time::time))
        .routes(routes!(shop::shop))
        .routes(routes!(catalogue::activities))
        .routes(routes!(catalogue::activity))
        .routes(routes!(catalogue::items))
        .routes(routes!(catalogue::item))
        .routes(routes!(dev_login::dev_login))
        .routes(routes!(draws::show))
        .routes(routes!(draws::ticket))
        .routes(routes!(sale_tokens::challenge))
        .routes(routes!(sale_tokens::issue))
        .routes(routes!(orders::list))
        .routes(routes!(orders::show))
        .routes(routes!(orders::cancel))
        .routes(routes!(payments::open))
        .routes(routes!(payments::notify))
        .routes(routes!(external::paid))
        .routes(routes!(external::refunded))
        .routes(routes!(external::payment_closed))
        .routes(routes!(receipts::present))
        .routes(routes!(events::listen))
        .routes(routes!(news::ticket))
        .routes(routes!(websocket::connect))
        .routes(routes!(cashier::show, cashier::act))
}

fn operators() -> OpenApiRouter<Shared> {
    OpenApiRouter::default()
        .routes(routes!(admin::activities::list, admin::activities::create))
        .routes(routes!(admin::activities::show, admin::plans::edit))
        .routes(routes!(admin::totals::show))
        .routes(routes!(admin::preflight::show))
        .routes(routes!(admin::activities::publish))
        .routes(routes!(admin::activities::pause))
        .routes(routes!(admin::activities::resume))
        .routes(routes!(admin::activities::end))
        .routes(routes!(admin::activities::warm))
        .routes(routes!(admin::items::list))
        .routes(routes!(admin::items::show))
        .routes(routes!(admin::items::warm))
        .routes(routes!(admin::items::adjust_stock))
        .routes(routes!(admin::items::stock_log))
        .routes(routes!(admin::lists::all))
        .routes(routes!(admin::lists::cool_downs))
        .routes(routes!(admin::lists::let_go))
        .routes(routes!(admin::orders::list))
        .routes(routes!(admin::orders::show))
        .routes(routes!(admin::story::show))
        .routes(routes!(admin::orders::cancel))
        .routes(routes!(admin::orders::refund))
        .routes(routes!(admin::by_hand::mark_paid))
        .routes(routes!(admin::by_hand::mark_refunded))
        .routes(routes!(admin::claims::list))
        .routes(routes!(admin::dead_letters::list))
        .routes(routes!(admin::dead_letters::show))
        .routes(routes!(admin::dead_letters::replay))
        .routes(routes!(admin::dead_letters::void))
        .routes(routes!(admin::reconcile::runs, admin::reconcile::run))
        .routes(routes!(admin::reconcile::follow))
        .routes(routes!(admin::rehearsals::show, admin::rehearsals::start, admin::rehearsals::stop))
        .routes(routes!(admin::rehearsals::page))
        .routes(routes!(admin::sandbox::bill))
        .routes(routes!(admin::audit::list))
        .routes(routes!(admin::overview::overview))
        .routes(routes!(live::follow))
        .routes(routes!(admin::session::show, admin::session::sign_in, admin::session::sign_out))
        .routes(routes!(admin::session::link))
        .routes(routes!(admin::tokens::list, admin::tokens::create))
        .routes(routes!(admin::tokens::revoke))
        .routes(routes!(admin::keys::list, admin::keys::rotate))
        .routes(routes!(admin::keys::retire))
        .routes(routes!(admin::webhooks::list, admin::webhooks::create))
        .routes(routes!(admin::webhooks::show, admin::webhooks::change, admin::webhooks::remove))
        .routes(routes!(admin::webhooks::rotate))
        .routes(routes!(admin::webhooks::test))
        .routes(routes!(admin::webhooks::deliveries))
        .routes(routes!(admin::webhooks::replay))
        .routes(routes!(admin::webhooks::replay_one))
}

/// What a whole season of sales fits into, or a list of a million buyers.
fn imports() -> OpenApiRouter<Shared> {
    OpenApiRouter::default()
        .routes(routes!(admin::import::import))
        .routes(routes!(admin::lists::show, admin::lists::add, admin::lists::clear))
        .routes(routes!(admin::lists::remove))
}

/// What is answered at every door.
fn anybody() -> OpenApiRouter<Shared> {
    OpenApiRouter::default().routes(routes!(machine::healthz)).routes(routes!(machine::openapi))
}

fn machines() -> OpenApiRouter<Shared> {
    OpenApiRouter::default()
        .routes(routes!(machine::readyz))
        .routes(routes!(machine::ready_to_sell))
        .routes(routes!(machine::ready_to_settle))
        .routes(routes!(machine::ready_to_show))
        .routes(routes!(machine::metrics))
}

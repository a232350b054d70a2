//! Everything at a glance, for the console.

use std::collections::HashMap;

use axum::extract::State;
use gate::Shut;
use ledger::DeadLetterState;
use sale::{Activity, ActivityState, Item, ItemId, Millis};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    super::{App, Shared, access::AsViewer, catalogue::SaleState, openapi, schemas},
    items::shut_word,
};
use crate::{config::Profile, extract::Json, problem::Problem};

/// Items shown, those that open first before the others.
const ITEMS_MAX: usize = 1_000;
/// Dead letters are counted up to this; more are "that many and more".
const DEAD_LETTERS_MAX: usize = 1_000;
/// The claims on a longer log are not told apart by item: looking through it would hold up the very
/// rush that made it long.
const COUNTED_CLAIMS_MAX: u64 = 20_000;

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Overview {
    version: &'static str,
    #[schema(schema_with = schemas::profile)]
    profile: Profile,
    now_ms: i64,
    uptime_ms: i64,
    claims: ClaimTotals,
    orders: OrderFlow,
    /// Claims that failed all their tries; counted up to 1000.
    dead_letters: usize,
    /// Effects that committed transactions still owe.
    outbox_depth: u64,
    /// Buyers listening for news.
    streams: usize,
    /// The items of activities that are published or paused and not over, those that open first before
    /// the others; at most 1000.
    items: Vec<LiveItem>,
    /// There are more than that.
    more_items: bool,
}

/// Since the start of this process.
#[derive(Serialize, ToSchema)]
pub(in super::super) struct ClaimTotals {
    asked: u64,
    admitted: u64,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct OrderFlow {
    /// Claims on the log that are not in the ledger yet.
    backlog: u64,
    /// Claims settled per second, lately.
    rate_per_s: f64,
    /// The workers run.
    running: bool,
    /// The workers wait for a ledger that does not answer.
    paused: bool,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct LiveItem {
    item_id: i64,
    activity_id: i64,
    name: String,
    #[schema(schema_with = openapi::activity_state)]
    activity_state: ActivityState,
    state: SaleState,
    opens_at: i64,
    closes_at: i64,
    /// Units there are in all.
    total: i64,
    /// Units nobody has claimed; null if the item is not at the gate.
    gate_left: Option<i64>,
    /// Units the ledger has not sold.
    ledger_stock: i64,
    /// Units of claims on their way to the ledger; null if they are too many to count quickly.
    in_flight: Option<u64>,
    #[schema(schema_with = schemas::shut)]
    shut: Option<&'static str>,
    paused: bool,
}

/// The state of everything that is live.
#[utoipa::path(get, path = "/admin/overview", tag = "admin", security(("operator" = [])),
    responses((status = OK, body = Overview)))]
pub(in super::super) async fn overview(
    State(app): State<Shared>,
    _: AsViewer,
) -> Result<Json<Overview>, Problem> {
    let engine = &app.engine;
    let now_ms = engine.clock.now_ms();
    let dead = Some(DeadLetterState::Dead);
    let (items, more_items) = live_items(&app, now_ms).await?;
    Ok(Json(Overview {
        version: env!("CARGO_PKG_VERSION"),
        profile: engine.config.profile,
        now_ms,
        uptime_ms: now_ms - app.started_ms,
        claims: ClaimTotals {
            asked: app.claims.asked_total(),
            admitted: app.claims.admitted_total(),
        },
        orders: OrderFlow {
            backlog: engine.gate.measure_backlog().await?,
            rate_per_s: engine.rate_per_s(),
            running: engine.workers.as_ref().is_some_and(|workers| workers.is_running()),
            paused: engine.workers.as_ref().is_some_and(|workers| workers.is_paused()),
        },
        dead_letters: engine.ledger.dead_letters(dead, None, DEAD_LETTERS_MAX).await?.len(),
        outbox_depth: engine.ledger.outbox_depth().await?,
        streams: engine.news.streams(),
        items,
        more_items,
    }))
}

/// The items, and whether there are more of them.
async fn live_items(app: &App, now_ms: Millis) -> Result<(Vec<LiveItem>, bool), Problem> {
    let engine = &app.engine;
    let loaded = engine.gate.loaded().await?;
    let shut: HashMap<ItemId, Shut> =
        loaded.iter().filter_map(|here| Some((here.item, here.shut?))).collect();
    let countable = engine.gate.backlog() <= COUNTED_CLAIMS_MAX;
    let mut items = Vec::new();
    for activity in engine.live_activities(now_ms, ITEMS_MAX).await? {
        for item in &activity.items {
            if items.len() == ITEMS_MAX {
                return Ok((items, true));
            }
            let in_flight = if countable {
                let claims = engine.gate.in_flight(item.id).await?;
                Some(claims.iter().map(|claim| u64::from(claim.quantity)).sum())
            } else {
                None
            };
            let gate_left = engine.gate.left(item.id);
            let shut = shut.get(&item.id).copied();
            items.push(live_item(&activity, item, gate_left, in_flight, shut, now_ms));
        }
    }
    Ok((items, false))
}

fn live_item(
    activity: &Activity,
    item: &Item,
    gate_left: Option<i64>,
    in_flight: Option<u64>,
    shut: Option<Shut>,
    now_ms: Millis,
) -> LiveItem {
    LiveItem {
        item_id: item.id.0,
        activity_id: activity.id.0,
        name: item.name.clone(),
        activity_state: activity.state,
        state: SaleState::of(activity, gate_left, now_ms),
        opens_at: activity.opens_ms,
        closes_at: activity.closes_ms,
        total: item.total,
        gate_left,
        ledger_stock: item.stock,
        in_flight,
        shut: shut.map(shut_word),
        paused: activity.state == ActivityState::Paused,
    }
}

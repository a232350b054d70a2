//! Everything at a glance, for the console.

use std::{collections::HashMap, sync::Arc};

use axum::extract::State;
use futures_util::future::join_all;
use gate::Shut;
use sale::{Activity, ActivityState, Item, ItemId, Millis};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    super::{App, Shared, catalogue::SaleState, openapi, roles::AsViewer, schemas},
    items::shut_word,
};
use crate::{extract::Json, problem::Problem};
use config::Profile;
use engine::{OpenAlert, Part, Readiness};

/// Items shown, those that open first before the others.
const ITEMS_MAX: usize = 1_000;
/// The claims on a longer log are not told apart by item: looking through it would hold up the very
/// rush that made it long.
const COUNTED_CLAIMS_MAX: u64 = 20_000;
/// Items whose claims are counted at the same time.
const COUNTED_AT_ONCE_MAX: usize = 64;

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Overview {
    version: &'static str,
    #[schema(schema_with = schemas::profile)]
    profile: Profile,
    now_ms: i64,
    uptime_ms: i64,
    claims: ClaimTotals,
    orders: OrderFlow,
    /// Claims that failed all their tries.
    dead_letters: usize,
    /// Effects that committed transactions still owe.
    outbox_depth: u64,
    /// Buyers listening for news.
    streams: usize,
    /// What this process can do, part by part, and why not.
    health: HealthView,
    /// What somebody was told of by this process and is not over.
    open_alerts: Vec<OpenAlertView>,
    /// Alerts that wait for the webhook.
    alerts_waiting: usize,
    /// The items of activities that are published or paused and not over, those that open first before
    /// the others; at most 1000.
    items: Vec<LiveItem>,
    /// There are more than that.
    more_items: bool,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct HealthView {
    /// The process that answers.
    instance: String,
    sell: &'static str,
    settle: &'static str,
    show: &'static str,
    parts: Vec<PartView>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct PartView {
    name: &'static str,
    /// As in `/readyz`.
    status: &'static str,
    /// Since when it is so, where that is known.
    since: Option<i64>,
    cause: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct OpenAlertView {
    /// As in the alerts that are posted.
    kind: &'static str,
    /// The job it is about, or nothing.
    about: String,
    since: i64,
    /// What to do about it.
    todo: &'static str,
}

pub(in super::super) fn health(app: &App, readiness: Readiness) -> HealthView {
    let part = |part: Part| PartView {
        name: part.name,
        status: part.status.as_str(),
        since: part.since_ms,
        cause: part.cause,
    };
    HealthView {
        instance: app.engine.instance().to_owned(),
        sell: readiness.sell.as_str(),
        settle: readiness.settle.as_str(),
        show: readiness.show.as_str(),
        parts: readiness.parts.into_iter().map(part).collect(),
    }
}

pub(in super::super) fn open_alerts(app: &App) -> Vec<OpenAlertView> {
    let view = |open: OpenAlert| OpenAlertView {
        kind: open.kind.as_str(),
        about: open.about,
        since: open.since_ms,
        todo: open.kind.todo(),
    };
    app.engine.health().open_alerts().into_iter().map(view).collect()
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
    /// Units of claims on their way to the ledger; null if they are too many to count quickly,
    /// or the gate does not tell.
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
    let now_ms = engine.now_ms();
    let readiness = engine.health().readiness();
    let (waiting, workers) = (waiting(&app, &readiness).await, engine.health().workers());
    let (items, more_items) = live_items(&app, &readiness, now_ms).await?;
    Ok(Json(Overview {
        version: env!("CARGO_PKG_VERSION"),
        profile: engine.settings().profile,
        now_ms,
        uptime_ms: now_ms - app.started_ms,
        claims: ClaimTotals {
            asked: app.claims.asked_total(),
            admitted: app.claims.admitted_total(),
        },
        orders: OrderFlow {
            backlog: waiting.backlog,
            rate_per_s: workers.rate_per_s,
            running: workers.running,
            paused: workers.paused,
        },
        dead_letters: waiting.dead_letters,
        outbox_depth: waiting.outbox_depth,
        streams: engine.push().streams(),
        items,
        more_items,
        health: health(&app, readiness),
        open_alerts: open_alerts(&app),
        alerts_waiting: engine.health().alerts_waiting(),
    }))
}

/// Claims and effects that wait.
struct Waiting {
    backlog: u64,
    dead_letters: usize,
    outbox_depth: u64,
}

/// Of a part that is away, what was last known: an operator looks here when something is down.
async fn waiting(app: &App, readiness: &Readiness) -> Waiting {
    let engine = &app.engine;
    let mut waiting =
        Waiting { backlog: engine.records().backlog(), dead_letters: 0, outbox_depth: 0 };
    if readiness.is_up("gate")
        && let Ok(backlog) = engine.records().measure_backlog().await
    {
        waiting.backlog = backlog;
    }
    if readiness.is_up("ledger")
        && let Err(error) = engine.count_outstanding().await
    {
        tracing::debug!(%error, "what waits in the ledger cannot be counted now");
    }
    if let Some(outstanding) = engine.outstanding() {
        let dead: u64 = outstanding.claims.iter().map(|claims| claims.dead).sum();
        waiting.dead_letters = dead as usize;
        waiting.outbox_depth = outstanding.outbox.iter().map(|rows| rows.rows).sum();
    }
    waiting
}

/// Without the ledger, as pages show them.
async fn live_activities(
    app: &App,
    readiness: &Readiness,
    now_ms: Millis,
) -> Result<Vec<Activity>, Problem> {
    let engine = &app.engine;
    if readiness.is_up("ledger") {
        return Ok(engine.records().live_activities(now_ms, ITEMS_MAX).await?);
    }
    let snapshot = engine.catalogue().snapshot();
    let live = |activity: &&Arc<Activity>| {
        let state = activity.state;
        now_ms < activity.closes_ms
            && matches!(state, ActivityState::Published | ActivityState::Paused)
    };
    Ok(snapshot.activities.iter().filter(live).map(|activity| (**activity).clone()).collect())
}

/// The items, and whether there are more of them.
async fn live_items(
    app: &App,
    readiness: &Readiness,
    now_ms: Millis,
) -> Result<(Vec<LiveItem>, bool), Problem> {
    let engine = &app.engine;
    let gate_is_up = readiness.is_up("gate");
    let loaded = if gate_is_up { engine.records().at_gate().await? } else { Vec::new() };
    let shut: HashMap<ItemId, Shut> =
        loaded.iter().filter_map(|here| Some((here.item, here.shut?))).collect();
    let activities = live_activities(app, readiness, now_ms).await?;
    let all = activities
        .iter()
        .flat_map(|activity| activity.items.iter().map(move |item| (activity, item)));
    let mut all: Vec<(&Activity, &Item)> = all.take(ITEMS_MAX + 1).collect();
    let more = all.len() > ITEMS_MAX;
    all.truncate(ITEMS_MAX);
    let ids: Vec<ItemId> = all.iter().map(|(_, item)| item.id).collect();
    let countable = gate_is_up && engine.records().backlog() <= COUNTED_CLAIMS_MAX;
    let in_flight = if countable { units_in_flight(app, &ids).await } else { HashMap::new() };
    let view = |(activity, item): (&Activity, &Item)| {
        let (gate_left, in_flight) = (engine.records().left(item.id), in_flight.get(&item.id));
        let shut = shut.get(&item.id).copied();
        live_item(activity, item, gate_left, in_flight.copied(), shut, now_ms)
    };
    Ok((all.into_iter().map(view).collect(), more))
}

/// Of items whose part of the gate does not answer nothing is known. Once one did not, the rest is not
/// asked for: each might be waited for as long.
async fn units_in_flight(app: &App, items: &[ItemId]) -> HashMap<ItemId, u64> {
    let mut known = HashMap::new();
    for some in items.chunks(COUNTED_AT_ONCE_MAX) {
        let counts = some.iter().map(|item| app.engine.records().units_in_flight(*item));
        let counts = join_all(counts).await;
        let silent = counts.iter().any(Result::is_err);
        known.extend(some.iter().zip(counts).filter_map(|(id, count)| Some((*id, count.ok()?))));
        if silent {
            break;
        }
    }
    known
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

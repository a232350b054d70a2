//! The one that looks each second, for everybody.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use sale::{Activity, ActivityState, Item, ItemId, Millis};
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use super::super::{
    App,
    admin::overview::{HealthView, OpenAlertView, health, open_alerts},
    catalogue::SaleState,
    counts::ClaimCounted,
};
use config::Profile;
use engine::WorkersState;

const EVERY: Duration = Duration::from_secs(1);
/// What changes seldom is told every so many seconds.
const STATE_EVERY: u32 = 2;
/// Items that are told of: those at the gate first, then those that open first.
const ITEMS_MAX: usize = 100;

/// One second. Short names: fifteen minutes of them are sent at once.
#[derive(Serialize)]
struct Sample {
    t: Millis,
    /// How long it was, in milliseconds.
    ms: u64,
    asked: u64,
    admitted: u64,
    /// By code; those of nobody are left out.
    refused: BTreeMap<&'static str, u64>,
    /// Of `sold_out`: those whom the cache answered, and not the gate.
    cached: u64,
    /// In microseconds; null if the gate was not asked.
    p50: Option<u64>,
    p99: Option<u64>,
    backlog: u64,
    /// Claims that were settled in it.
    settled: u64,
    /// How many can be settled in a second, as the last ones showed.
    pace: f64,
    left: BTreeMap<i64, i64>,
}

/// What changes seldom.
#[derive(Serialize)]
struct State {
    now_ms: Millis,
    profile: Profile,
    health: HealthView,
    alerts: Vec<OpenAlertView>,
    workers_running: bool,
    workers_paused: bool,
    streams: usize,
    /// Claims that failed; null where nobody counts.
    dead_letters: Option<u64>,
    retrying: Option<u64>,
    /// Effects that committed transactions still owe, by kind.
    outbox: BTreeMap<String, u64>,
    items: Vec<LiveItem>,
    more_items: bool,
}

#[derive(Serialize)]
struct LiveItem {
    id: i64,
    name: String,
    activity: i64,
    activity_name: String,
    activity_state: ActivityState,
    /// When its pause is over by itself.
    resumes_at: Option<Millis>,
    state: SaleState,
    opens_at: Millis,
    closes_at: Millis,
    total: i64,
    left: Option<i64>,
    /// Units the ledger has not sold.
    stock: i64,
}

/// Look each second for as long as the process runs.
pub(crate) async fn run(app: Arc<App>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut before, mut sampled_ms, mut n) = (app.claims.counted(), app.engine.now_ms(), 0_u32);
    let mut settled = app.engine.health().workers().settled;
    loop {
        ticks.tick().await;
        let (now, now_ms) = (app.claims.counted(), app.engine.now_ms());
        let items = shown(&app);
        let workers = app.engine.health().workers();
        let lasted_ms = u64::try_from(now_ms - sampled_ms).unwrap_or_default();
        let did = (&workers, settled);
        let sample = sample(&app, &now, &before, (now_ms, lasted_ms), &items, did);
        app.live.add_sample(written("sample", &sample));
        if n.is_multiple_of(STATE_EVERY) {
            app.live.set_state(written("state", &state(&app, now_ms, items, &workers)));
        }
        (before, sampled_ms, n) = (now, now_ms, n.wrapping_add(1));
        settled = workers.settled;
    }
}

/// As it stands on the stream; JSON has no line breaks of its own.
fn written(event: &str, what: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(what).unwrap_or_default();
    Bytes::from(format!("event: {event}\ndata: {data}\n\n"))
}

fn sample(
    app: &App,
    now: &ClaimCounted,
    before: &ClaimCounted,
    (t, ms): (Millis, u64),
    items: &Shown,
    (workers, settled_before): (&WorkersState, u64),
) -> Sample {
    let left = items.all.iter().filter_map(|(_, item, left)| Some((item.id.0, (*left)?)));
    Sample {
        t,
        ms,
        asked: now.asked - before.asked,
        admitted: now.admitted - before.admitted,
        refused: now.refused_since(before).collect(),
        cached: now.cached - before.cached,
        p50: now.times.quantile_since(&before.times, 0.5),
        p99: now.times.quantile_since(&before.times, 0.99),
        backlog: app.engine.records().backlog(),
        settled: workers.settled - settled_before,
        pace: (workers.rate_per_s * 10.0).round() / 10.0,
        left: left.collect(),
    }
}

fn state(app: &App, now_ms: Millis, items: Shown, workers: &WorkersState) -> State {
    let engine = &app.engine;
    let waiting = engine.outstanding();
    let failed = |of: fn(&ledger::OutstandingClaims) -> u64| {
        waiting.as_ref().map(|waiting| waiting.claims.iter().map(of).sum::<u64>())
    };
    let rows = waiting.iter().flat_map(|waiting| waiting.outbox.iter());
    State {
        now_ms,
        profile: engine.settings().profile,
        health: health(app, engine.health().readiness()),
        alerts: open_alerts(app),
        workers_running: workers.running,
        workers_paused: workers.paused,
        streams: engine.push().streams(),
        dead_letters: failed(|claims| claims.dead),
        retrying: failed(|claims| claims.retrying),
        outbox: rows.map(|rows| (rows.kind.clone(), rows.rows)).collect(),
        more_items: items.more,
        items: items.all.iter().map(|shown| live_item(shown, now_ms)).collect(),
    }
}

type ShownItem = (Arc<Activity>, Item, Option<i64>);

struct Shown {
    all: Vec<ShownItem>,
    more: bool,
}

/// What is on sale or will be, as pages show it: from memory.
fn shown(app: &App) -> Shown {
    let (engine, now_ms) = (&app.engine, app.engine.now_ms());
    let snapshot = engine.catalogue().snapshot();
    let live = |activity: &&Arc<Activity>| {
        // A sale that is just over is still looked at.
        activity.closes_ms > now_ms - 15 * 60 * 1_000
            && matches!(activity.state, ActivityState::Published | ActivityState::Paused)
            || (activity.state == ActivityState::Ended && now_ms < activity.closes_ms)
    };
    let mut left: HashMap<ItemId, Option<i64>> = HashMap::new();
    let mut all: Vec<(&Arc<Activity>, &Item)> = Vec::new();
    for activity in snapshot.activities.iter().filter(live) {
        for item in &activity.items {
            left.insert(item.id, engine.records().left(item.id));
            all.push((activity, item));
        }
    }
    let left_of = |item: &Item| left.get(&item.id).copied().flatten();
    all.sort_by_key(|(activity, item)| {
        (left_of(item).is_none(), activity.opens_ms, activity.id, item.id)
    });
    let more = all.len() > ITEMS_MAX;
    all.truncate(ITEMS_MAX);
    let view =
        |(activity, item): (&Arc<Activity>, &Item)| (activity.clone(), item.clone(), left_of(item));
    Shown { all: all.into_iter().map(view).collect(), more }
}

fn live_item((activity, item, left): &ShownItem, now_ms: Millis) -> LiveItem {
    LiveItem {
        id: item.id.0,
        name: item.name.clone(),
        activity: activity.id.0,
        activity_name: activity.name.clone(),
        activity_state: activity.state,
        resumes_at: activity.resume_ms,
        state: SaleState::of(activity, *left, now_ms),
        opens_at: activity.opens_ms,
        closes_at: activity.closes_ms,
        total: item.total,
        left: *left,
        stock: item.stock,
    }
}

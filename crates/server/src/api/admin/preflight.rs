//! What should be looked at before a sale is published: its own plan, this process, its settings, and who is
//! told when something goes wrong. What `seckill doctor` says of the settings and the machine is said here of
//! the process that runs.

use axum::extract::State;
use engine::{
    Readiness, Status,
    checkup::{CheckResult, machine},
};
use sale::{Activity, ActivityId, Millis};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    super::{App, Shared, roles::AsViewer},
    rehearsals::{REHEARSED_ITEMS_MAX, REHEARSED_STOCK_MAX},
};
use crate::{
    extract::{Json, Path},
    problem::Problem,
    rehearsing::{RehearsalEnd, RehearsalNote},
};

/// A sale that opens sooner is not warmed ten minutes before.
const SOON_MS: Millis = 10 * 60 * 1_000;
const SANDBOX: &str = "sandbox";

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Preflight {
    activity_id: i64,
    /// Nothing keeps it from being published and sold.
    ready: bool,
    checks: Vec<Check>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Check {
    #[schema(example = "window")]
    name: &'static str,
    verdict: Verdict,
    /// More about it, in English; it may name hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Verdict {
    Ok,
    /// Allowed, but rarely meant.
    Warn,
    /// It would not sell, or not as it should.
    Bad,
}

fn check(name: &'static str, verdict: Verdict, detail: Option<String>) -> Check {
    Check { name, verdict, detail }
}

fn good(name: &'static str, is_good: bool, otherwise: Verdict) -> Check {
    check(name, if is_good { Verdict::Ok } else { otherwise }, None)
}

/// What the plan itself says.
fn of_plan(activity: &Activity, now_ms: Millis) -> Vec<Check> {
    let window = if now_ms >= activity.closes_ms {
        Verdict::Bad
    } else if now_ms + SOON_MS > activity.opens_ms {
        Verdict::Warn
    } else {
        Verdict::Ok
    };
    let items = &activity.items;
    let stocked = !items.is_empty() && items.iter().all(|item| item.total > 0);
    let pictured = items.iter().all(|item| !item.image_url.is_empty());
    vec![
        check("window", window, None),
        good("stock", stocked, Verdict::Bad),
        good("pictures", pictured, Verdict::Warn),
    ]
}

/// What this process can do.
fn of_health(readiness: &Readiness) -> Vec<Check> {
    let able = |name, part: &str| {
        let part = readiness.parts.iter().find(|known| known.name == part);
        let status = part.map_or(Status::Unknown, |part| part.status);
        let verdict = match status {
            Status::Ok | Status::NotHere => Verdict::Ok,
            Status::Partly | Status::Stale | Status::Paused => Verdict::Warn,
            _ => Verdict::Bad,
        };
        check(name, verdict, part.and_then(|part| part.cause.clone()))
    };
    let alerts = readiness.parts.iter().find(|part| part.name == "alerts");
    let told = match alerts.map(|part| part.status) {
        Some(Status::Ok) => Verdict::Ok,
        Some(Status::NotSet) => Verdict::Warn,
        _ => Verdict::Bad,
    };
    vec![
        able("gate", "gate"),
        able("ledger", "ledger"),
        able("log", "log"),
        able("workers", "workers"),
        able("jobs", "jobs"),
        check("alerts", told, alerts.and_then(|part| part.cause.clone())),
    ]
}

/// Where an order can be paid, and what the settings and the machine say.
fn of_settings(app: &App) -> Vec<Check> {
    let config = &app.config;
    let providers = app.engine.payments().provider_names();
    let real = providers.iter().any(|name| name != SANDBOX);
    let paid = if real { Verdict::Ok } else { Verdict::Warn };
    let mut checks = vec![check("payment", paid, Some(providers.join(", ")))];
    let said = |verdict: Verdict| move |text: String| check("settings", verdict, Some(text));
    checks.extend(config.missing().into_iter().map(said(Verdict::Bad)));
    checks.extend(config.dangers().into_iter().chain(config.warnings()).map(said(Verdict::Warn)));
    for (name, found) in machine(&config.data) {
        let (verdict, text) = match found {
            CheckResult::Ok(text) => (Verdict::Ok, text),
            CheckResult::Warn(text) | CheckResult::Danger(text) => (Verdict::Warn, text),
            CheckResult::Fail(text) | CheckResult::Refuse(text) => (Verdict::Bad, text),
        };
        checks.push(check(name, verdict, Some(text)));
    }
    checks
}

/// Whether a sale of this size was rehearsed here, and everything held. Another machine may know of one; so
/// it is no more than a warning.
fn of_rehearsal(activity: &Activity, last: Option<&RehearsalNote>) -> Check {
    let items = u32::try_from(activity.items.len()).unwrap_or(u32::MAX).min(REHEARSED_ITEMS_MAX);
    let most = activity.items.iter().map(|item| item.total).max().unwrap_or_default();
    let stock = u32::try_from(most).unwrap_or(u32::MAX).min(REHEARSED_STOCK_MAX);
    let fits = |note: &&RehearsalNote| {
        note.end == RehearsalEnd::Held && note.crowd.items >= items && note.crowd.stock >= stock
    };
    let (verdict, detail) = match last.filter(fits) {
        Some(note) => (Verdict::Ok, Some(format!("{} buyers", note.crowd.buyers))),
        None => (Verdict::Warn, None),
    };
    check("rehearsed", verdict, detail)
}

/// What should be looked at before this activity is published: its window, stock and pictures, the health of
/// every part, payment providers, who hears alerts, and what `seckill doctor` says of settings and machine.
#[utoipa::path(get, path = "/admin/activities/{id}/preflight", tag = "admin", security(("operator" = [])),
    params(("id" = i64, Path, description = "The activity")),
    responses(
        (status = OK, body = Preflight),
        (status = NOT_FOUND, description = "No such activity")))]
pub(in super::super) async fn show(
    State(app): State<Shared>,
    _: AsViewer,
    Path(id): Path<i64>,
) -> Result<Json<Preflight>, Problem> {
    let found = app.engine.records().activity(ActivityId(id)).await?;
    let activity = found.ok_or_else(Problem::not_found)?;
    let mut checks = of_plan(&activity, app.engine.now_ms());
    checks.extend(of_health(&app.engine.health().readiness()));
    checks.extend(of_settings(&app));
    let rehearsing = app.rehearsing.clone();
    let last = tokio::task::spawn_blocking(move || rehearsing.last());
    checks.push(of_rehearsal(&activity, last.await.map_err(Problem::internal)?.as_ref()));
    let ready = checks.iter().all(|check| check.verdict != Verdict::Bad);
    Ok(Json(Preflight { activity_id: id, ready, checks }))
}

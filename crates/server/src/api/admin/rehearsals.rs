//! Rehearsing from the console: start one, see how it goes, read what it found ([`crate::rehearsing`]).

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::super::{
    App, Shared,
    roles::{AsOperator, AsViewer},
    schemas,
};
use crate::{
    extract::Json,
    problem::{Code, Problem},
    rehearsing::{NoRehearsal, RehearsalEnd, RehearsalNote, RehearsalRun, RehearsedCrowd},
};

/// More would take a small machine many minutes; the command line takes a million.
pub(in super::super) const REHEARSED_BUYERS_MAX: u32 = 100_000;
pub(in super::super) const REHEARSED_ITEMS_MAX: u32 = 20;
pub(in super::super) const REHEARSED_STOCK_MAX: u32 = 1_000_000;
pub(in super::super) const REHEARSED_OVER_MS_MAX: u32 = 60_000;

/// The page may show itself and nothing else, wherever it is opened.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; sandbox";

#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum ReportLanguage {
    #[default]
    En,
    Zh,
}

/// Who comes, and for what.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NewRehearsal {
    #[schema(schema_with = schemas::rehearsed_buyers)]
    buyers: u32,
    #[schema(schema_with = schemas::rehearsed_items)]
    items: u32,
    /// Units of each item.
    #[schema(schema_with = schemas::rehearsed_stock)]
    stock: u32,
    /// In which time they come.
    #[schema(schema_with = schemas::rehearsed_over_ms)]
    over_ms: u32,
    /// Of the page that is made of the report.
    #[serde(default)]
    language: ReportLanguage,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Rehearsals {
    /// The one that runs, or null.
    running: Option<RehearsalRunJson>,
    /// The last one that ended, on this instance, or null.
    last: Option<RehearsalJson>,
    now_ms: i64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = RehearsalRun)]
pub(in super::super) struct RehearsalRunJson {
    who: String,
    buyers: u32,
    items: u32,
    stock: u32,
    over_ms: u32,
    started_at: i64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Rehearsal)]
pub(in super::super) struct RehearsalJson {
    #[serde(flatten)]
    run: RehearsalRunJson,
    ended_at: i64,
    outcome: RehearsalOutcome,
    /// What it said, if it came to no verdict; in English.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    said: String,
    /// As `seckill rehearse --json` writes it; null without a verdict.
    #[schema(schema_with = schemas::rehearsal_report)]
    report: Option<Value>,
}

#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum RehearsalOutcome {
    /// Everything held that must hold.
    Held,
    Violated,
    Failed,
    Stopped,
    /// It was ended because a sale came near.
    GaveWay,
    TookTooLong,
}

impl From<RehearsalEnd> for RehearsalOutcome {
    fn from(end: RehearsalEnd) -> Self {
        match end {
            RehearsalEnd::Held => RehearsalOutcome::Held,
            RehearsalEnd::Violated => RehearsalOutcome::Violated,
            RehearsalEnd::Failed => RehearsalOutcome::Failed,
            RehearsalEnd::Stopped => RehearsalOutcome::Stopped,
            RehearsalEnd::GaveWay => RehearsalOutcome::GaveWay,
            RehearsalEnd::TookTooLong => RehearsalOutcome::TookTooLong,
        }
    }
}

fn run_json(who: String, crowd: &RehearsedCrowd, started_at: i64) -> RehearsalRunJson {
    let RehearsedCrowd { buyers, items, stock, over_ms, .. } = *crowd;
    RehearsalRunJson { who, buyers, items, stock, over_ms, started_at }
}

impl From<RehearsalRun> for RehearsalRunJson {
    fn from(run: RehearsalRun) -> Self {
        run_json(run.who, &run.crowd, run.started_ms)
    }
}

fn ended(note: RehearsalNote, report: Option<Value>) -> RehearsalJson {
    let RehearsalNote { who, crowd, started_ms, ended_ms, end, said } = note;
    RehearsalJson {
        run: run_json(who, &crowd, started_ms),
        ended_at: ended_ms,
        outcome: end.into(),
        said,
        report: report.filter(|_| matches!(end, RehearsalEnd::Held | RehearsalEnd::Violated)),
    }
}

impl NewRehearsal {
    fn crowd(&self) -> Result<RehearsedCrowd, Problem> {
        let within = |field: &str, value: u32, least: u32, most: u32| {
            if (least..=most).contains(&value) {
                return Ok(value);
            }
            let rule = format!("must be from {least} to {most}");
            let rule_zh = format!("须在 {least} 与 {most} 之间");
            Err(Problem::invalid_in(field, &rule, &rule_zh))
        };
        Ok(RehearsedCrowd {
            buyers: within("buyers", self.buyers, 1, REHEARSED_BUYERS_MAX)?,
            items: within("items", self.items, 1, REHEARSED_ITEMS_MAX)?,
            stock: within("stock", self.stock, 1, REHEARSED_STOCK_MAX)?,
            over_ms: within("over_ms", self.over_ms, 0, REHEARSED_OVER_MS_MAX)?,
            chinese: matches!(self.language, ReportLanguage::Zh),
        })
    }
}

/// Files are read on a thread that may wait.
async fn seen(app: &Shared) -> Result<Rehearsals, Problem> {
    let rehearsing = app.rehearsing.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let running = rehearsing.run();
        let last = rehearsing.last().map(|note| ended(note, rehearsing.report()));
        (running, last)
    });
    let (running, last) = reading.await.map_err(Problem::internal)?;
    Ok(Rehearsals { running: running.map(Into::into), last, now_ms: app.engine.now_ms() })
}

/// The rehearsal that runs on this instance, and what the last one found.
#[utoipa::path(get, path = "/admin/rehearsals", tag = "admin", security(("operator" = [])),
    responses((status = OK, body = Rehearsals)))]
pub(in super::super) async fn show(
    State(app): State<Shared>,
    _: AsViewer,
) -> Result<Json<Rehearsals>, Problem> {
    Ok(Json(seen(&app).await?))
}

/// Rehearse: a crowd of programs against a server of their own, on the machine of the instance that answers.
/// It takes the processor that a sale would need, so it is refused while a sale is open or opens within ten
/// minutes, and is ended when one comes near. One at a time.
#[utoipa::path(post, path = "/admin/rehearsals", tag = "admin", security(("operator" = [])),
    request_body = NewRehearsal,
    responses(
        (status = ACCEPTED, body = Rehearsals, description = "It has begun; look again for what it finds"),
        (status = CONFLICT, description = "`conflict`, with `state`: `running`, or `sale_near`")))]
pub(in super::super) async fn start(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Json(new): Json<NewRehearsal>,
) -> Result<Response, Problem> {
    let crowd = new.crowd()?;
    let detail = json!({"buyers": crowd.buyers, "items": crowd.items, "stock": crowd.stock,
        "over_ms": crowd.over_ms});
    app.rehearsing.start(&who.name, crowd).await.map_err(explained)?;
    if let Err(unnoted) = app.engine.operations().note_rehearsal(&who, "start", detail).await {
        // Nothing is done without its entry in the audit.
        app.rehearsing.stop();
        return Err(unnoted.into());
    }
    Ok((StatusCode::ACCEPTED, Json(seen(&app).await?)).into_response())
}

fn explained(why: NoRehearsal) -> Problem {
    let conflict = |state: &str, en: &'static str, zh: &'static str| {
        Problem::new(Code::Conflict).detail(en, zh).with("state", state)
    };
    match why {
        NoRehearsal::Runs => {
            conflict("running", "A rehearsal is running already.", "已有演练正在进行。")
        }
        NoRehearsal::SaleNear => conflict(
            "sale_near",
            "A sale is open or opens within ten minutes; it needs the processor that a rehearsal would take.",
            "有活动正在进行或将在十分钟内开始，演练会占用其所需的处理器。",
        ),
        NoRehearsal::Stopping => Problem::busy("the server stops"),
        NoRehearsal::Ledger(problem) => problem.into(),
        NoRehearsal::Io(problem) => Problem::internal(problem),
    }
}

/// End the rehearsal that runs, if one does. Its server and its data are gone a moment later.
#[utoipa::path(delete, path = "/admin/rehearsals", tag = "admin", security(("operator" = [])),
    responses((status = NO_CONTENT, description = "None runs, or it has been told to end")))]
pub(in super::super) async fn stop(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
) -> Result<StatusCode, Problem> {
    if app.rehearsing.run().is_some() {
        app.engine.operations().note_rehearsal(&who, "stop", json!({})).await?;
        app.rehearsing.stop();
    }
    Ok(StatusCode::NO_CONTENT)
}

/// What the last rehearsal found, as one page to be sent around.
#[utoipa::path(get, path = "/admin/rehearsals/page", tag = "admin", security(("operator" = [])),
    responses(
        (status = OK, body = String, content_type = "text/html"),
        (status = NOT_FOUND, description = "None has come to a verdict")))]
pub(in super::super) async fn page(
    State(app): State<Shared>,
    _: AsViewer,
) -> Result<Response, Problem> {
    let app: &App = &app;
    let rehearsing = app.rehearsing.clone();
    let page = tokio::task::spawn_blocking(move || rehearsing.page());
    let page = page.await.map_err(Problem::internal)?.filter(|page| !page.is_empty());
    let page = page.ok_or_else(Problem::not_found)?;
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"report.html\"")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, page).into_response())
}

//! Comparing gate and ledger, now; and what earlier comparisons found.
//!
//! A small shop has its report at once. Where there is more to read than a request may take, the answer
//! says where to look for it: the run goes on, and its number leads to it.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use ledger::{JobRun, LedgerError};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::{
    Shared, paging,
    roles::{AsOperator, AsViewer},
    schemas,
};
use super::report;
use crate::{
    extract::{Json, Path, Query},
    problem::{Code, Problem},
};
use engine::{OperateError, RECONCILE_JOB, ReconcileAsk, ReconcileRun, Report};

/// So long a run is waited for before its number is told.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct Healing {
    /// Also put right what has a rule; otherwise only look.
    #[serde(default)]
    heal: bool,
    /// Only read what may have changed since all agreed, as the job does.
    #[serde(default)]
    changed: bool,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct RunsPage {
    /// 1 to 500, 50 unless told.
    #[param(inline, value_type = Option<schemas::PageRows>)]
    limit: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Runs {
    /// Newest first.
    runs: Vec<Run>,
}

#[derive(Serialize, ToSchema)]
pub(in super::super) struct Run {
    id: i64,
    started_at: i64,
    ended_at: i64,
    /// Nothing was left that differs.
    ok: bool,
    #[schema(value_type = report::Report)]
    report: serde_json::Value,
}

impl From<JobRun> for Run {
    fn from(run: JobRun) -> Self {
        Run {
            id: run.id,
            started_at: run.started_ms,
            ended_at: run.ended_ms,
            ok: run.ok,
            report: run.report,
        }
    }
}

#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum RunState {
    Running,
    Done,
    Failed,
}

/// A comparison that somebody started.
#[derive(Serialize, ToSchema)]
pub(in super::super) struct StartedRun {
    run: u64,
    state: RunState,
    started_at: i64,
    now_ms: i64,
    /// Items that have been looked at.
    compared: usize,
    /// When it is done.
    #[schema(value_type = Option<report::Report>)]
    report: Option<Arc<Report>>,
    /// Why it failed; in English.
    cause: Option<String>,
}

impl StartedRun {
    fn of(run: &ReconcileRun, now_ms: i64) -> StartedRun {
        let (state, report, cause) = match run.end() {
            None => (RunState::Running, None, None),
            Some(Ok(report)) => (RunState::Done, Some(report), None),
            Some(Err(error)) => (RunState::Failed, None, Some(error.to_string())),
        };
        let (started_at, compared) = (run.started_ms, run.compared());
        StartedRun { run: run.number, state, started_at, now_ms, compared, report, cause }
    }
}

/// What made a run fail is told to all who follow it.
fn copy(error: &OperateError) -> OperateError {
    match error {
        OperateError::Gate(error) => OperateError::Gate(error.clone()),
        OperateError::Ledger(error @ LedgerError::Unavailable(_)) => {
            OperateError::Ledger(LedgerError::Unavailable(error.to_string()))
        }
        other => OperateError::Ledger(LedgerError::Broken(other.to_string())),
    }
}

/// Compare gate and ledger now. If that takes longer than a few seconds, the answer is 202 with the number
/// of the run, which goes on whether or not somebody follows it.
#[utoipa::path(post, path = "/admin/reconcile", tag = "admin", security(("operator" = [])),
    params(Healing),
    responses(
        (status = OK, body = report::Report),
        (status = ACCEPTED, body = StartedRun, description = "It goes on, and can be followed"),
        (status = CONFLICT, description = "`conflict`, with `state`: `running`: too many are under way")))]
pub(in super::super) async fn run(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Query(healing): Query<Healing>,
) -> Result<Response, Problem> {
    let ask = ReconcileAsk { heal: healing.heal, whole: !healing.changed };
    let started = app.engine.operations().start_reconcile(&who, ask);
    let run = started.map_err(|_| {
        let (en, zh) = ("Too many comparisons are under way.", "正在进行的对账过多。");
        Problem::new(Code::Conflict).detail(en, zh).with("state", "running")
    })?;
    match run.ended_within(ANSWER_WITHIN).await {
        Some(Ok(report)) => Ok(Json(&*report).into_response()),
        Some(Err(error)) => Err(copy(&error).into()),
        None => {
            let run = StartedRun::of(&run, app.engine.now_ms());
            Ok((StatusCode::ACCEPTED, Json(run)).into_response())
        }
    }
}

/// A comparison that was started at this instance. What any comparison found is in the list of all, too.
#[utoipa::path(get, path = "/admin/reconcile/runs/{id}", tag = "admin", security(("operator" = [])),
    params(("id" = u64, Path)), responses((status = OK, body = StartedRun)))]
pub(in super::super) async fn follow(
    State(app): State<Shared>,
    _: AsViewer,
    Path(id): Path<u64>,
) -> Result<Json<StartedRun>, Problem> {
    let run = app.engine.reconcile().started(id).ok_or_else(|| Problem::new(Code::NotFound))?;
    Ok(Json(StartedRun::of(&run, app.engine.now_ms())))
}

/// The latest comparisons, scheduled ones among them.
#[utoipa::path(get, path = "/admin/reconcile", tag = "admin", security(("operator" = [])),
    params(RunsPage), responses((status = OK, body = Runs)))]
pub(in super::super) async fn runs(
    State(app): State<Shared>,
    _: AsViewer,
    Query(page): Query<RunsPage>,
) -> Result<Json<Runs>, Problem> {
    let rows = paging::rows(page.limit)?;
    let found = app.engine.records().job_runs(RECONCILE_JOB, rows).await?;
    Ok(Json(Runs { runs: found.into_iter().map(Into::into).collect() }))
}

//! Comparing gate and ledger, now; and what earlier comparisons found.

use axum::extract::State;
use ledger::JobRun;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::{
    Shared,
    finish::finish,
    paging,
    roles::{AsOperator, AsViewer},
    schemas,
};
use super::report;
use crate::{
    extract::{Json, Query},
    problem::Problem,
};
use engine::{RECONCILE_JOB, Report};

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct Healing {
    /// Also put right what has a rule; otherwise only look.
    #[serde(default)]
    heal: bool,
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

/// Compare gate and ledger now.
#[utoipa::path(post, path = "/admin/reconcile", tag = "admin", security(("operator" = [])),
    params(Healing), responses((status = OK, body = report::Report)))]
pub(in super::super) async fn run(
    State(app): State<Shared>,
    AsOperator(who): AsOperator,
    Query(healing): Query<Healing>,
) -> Result<Json<Report>, Problem> {
    let report = finish(async move { app.engine.operations().reconcile(&who, healing.heal).await });
    Ok(Json(report.await?))
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

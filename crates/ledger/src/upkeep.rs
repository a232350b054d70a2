//! What the instances on one ledger share: its clock, the runs of its jobs, one secret.

use async_trait::async_trait;
use sale::Millis;
use serde::Serialize;

use crate::Result;

/// What keeps instances that share a ledger going.
#[async_trait]
pub trait Upkeep: Send + Sync {
    /// The secret that all instances on this ledger share (`tb_secret`, one row): the one that is
    /// there, or `candidate` if there is none yet.
    async fn shared_secret(&self, candidate: &str, now_ms: Millis) -> Result<String>;

    async fn record_run(&self, run: &NewJobRun) -> Result<i64>;
    /// Newest first.
    async fn job_runs(&self, job: &str, limit: usize) -> Result<Vec<JobRun>>;

    /// What time it is where the ledger is kept: the one clock that all instances share.
    async fn now_ms(&self) -> Result<Millis>;

    /// Answers if the ledger can be read now.
    async fn ping(&self) -> Result<()>;
}

#[derive(Clone, Debug)]
pub struct NewJobRun {
    pub job: String,
    pub started_ms: Millis,
    pub ended_ms: Millis,
    pub ok: bool,
    pub report: serde_json::Value,
}

#[derive(Clone, Debug, Serialize)]
pub struct JobRun {
    pub id: i64,
    pub job: String,
    pub started_ms: Millis,
    pub ended_ms: Millis,
    pub ok: bool,
    pub report: serde_json::Value,
}

//! What the instances on one ledger share: its clock, the runs of its jobs, one secret, and later keys.

use async_trait::async_trait;
use sale::{Millis, Secret};
use serde::Serialize;

use crate::{AuditEntry, Result};

/// What keeps instances that share a ledger going.
#[async_trait]
pub trait Upkeep: Send + Sync {
    /// The secret that all instances on this ledger share (`tb_secret`, one row): the one that is
    /// there, or `candidate` if there is none yet.
    async fn shared_secret(&self, candidate: &str, now_ms: Millis) -> Result<String>;

    /// The keys that were made since, by number, also those that were taken away.
    async fn signing_keys(&self) -> Result<Vec<LaterKey>>;
    /// Make one that signs from then on, with its entry in the audit, and answer with its number; `None` if
    /// there are no more numbers.
    async fn add_signing_key(
        &self,
        secret: &str,
        signs_from_ms: Millis,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Option<u8>>;
    /// Take one away for good; the first one, which is in nobody's table, as well. False if it was before.
    async fn retire_signing_key(&self, id: u8, audit: &AuditEntry, now_ms: Millis) -> Result<bool>;

    async fn record_run(&self, run: &NewJobRun) -> Result<i64>;
    /// Newest first.
    async fn job_runs(&self, job: &str, limit: usize) -> Result<Vec<JobRun>>;

    /// What time it is where the ledger is kept: the one clock that all instances share.
    async fn now_ms(&self) -> Result<Millis>;

    /// Answers if the ledger can be read now.
    async fn ping(&self) -> Result<()>;
}

/// A signing key that is not the first one; of that only whether it was taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaterKey {
    pub id: u8,
    pub secret: Secret,
    pub created_ms: Millis,
    pub signs_from_ms: Millis,
    pub retired_ms: Option<Millis>,
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

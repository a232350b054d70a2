//! What the instances on one ledger share: its clock, the runs of its jobs, one secret, and later keys.

use async_trait::async_trait;
use sale::{FIRST_KEY, Millis, Secret};

use super::{
    Access, SqlLedger,
    columns::{get, json},
    failure::{Failure, Outcome},
    operators,
    session::{Row, Session, values},
};
use crate::{AuditEntry, JobRun, LaterKey, NewJobRun, Result, Upkeep};

/// Runs remembered of each job; a reconcile every few seconds would otherwise fill the disk.
const RUNS_KEPT_MAX: usize = 1_000;
/// Bytes of the reports of one job. The newest is kept whatever it takes.
const RUNS_BYTES_MAX: i64 = 8 << 20;

/// The time at the server; ours if the ledger has none.
pub(crate) async fn now_ms(session: &mut dyn Session, ours_ms: Millis) -> Outcome<Millis> {
    let Some(clock) = session.dialect().server_clock() else { return Ok(ours_ms) };
    Ok(session.first(&format!("SELECT {clock}"), &[], |row| get(row, 0)).await?.unwrap_or(0))
}

async fn shared_secret(tx: &mut dyn Session, candidate: &str, now_ms: Millis) -> Outcome<String> {
    // Whoever comes second waits here for the first, and then reads what that one wrote.
    let sql = format!(
        "INSERT INTO tb_secret (id, secret, created_at) VALUES (1, ?, ?) {}",
        tx.dialect().keep("id")
    );
    tx.execute(&sql, values![candidate, now_ms]).await?;
    let secret = tx.first("SELECT secret FROM tb_secret", &[], |row| get(row, 0)).await?;
    secret.ok_or(Failure::NotFound)
}

async fn signing_keys(session: &mut dyn Session) -> Outcome<Vec<LaterKey>> {
    let read = |row: &dyn Row| {
        Ok(LaterKey {
            id: u8::try_from(get::<i64>(row, 0)?).unwrap_or(u8::MAX),
            secret: Secret::new(get::<String>(row, 1)?),
            created_ms: get(row, 2)?,
            signs_from_ms: get(row, 3)?,
            retired_ms: get(row, 4)?,
        })
    };
    let sql =
        "SELECT id, secret, created_at, signs_from, retired_at FROM tb_signing_key ORDER BY id";
    session.rows(sql, &[], read).await
}

async fn add_signing_key(
    tx: &mut dyn Session,
    (secret, audit): &(String, AuditEntry),
    signs_from_ms: Millis,
    now_ms: Millis,
) -> Outcome<Option<u8>> {
    let sql = format!(
        "SELECT id FROM tb_signing_key ORDER BY id DESC LIMIT 1 {}",
        tx.dialect().for_update()
    );
    let last = tx.first(&sql, &[], |row| get::<i64>(row, 0)).await?.unwrap_or(0);
    let Ok(id) = u8::try_from(last + 1) else { return Ok(None) };
    let sql = "INSERT INTO tb_signing_key (id, secret, created_at, signs_from) VALUES (?, ?, ?, ?)";
    tx.execute(sql, values![i64::from(id), secret, now_ms, signs_from_ms]).await?;
    operators::audit(tx, &audit.with("id", id), now_ms).await?;
    Ok(Some(id))
}

async fn retire_signing_key(
    tx: &mut dyn Session,
    id: u8,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    if id == FIRST_KEY {
        let sql = format!(
            "INSERT INTO tb_signing_key (id, secret, created_at, signs_from) VALUES (?, '', ?, 0) {}",
            tx.dialect().keep("id")
        );
        tx.execute(&sql, values![i64::from(id), now_ms]).await?;
    }
    let sql = "UPDATE tb_signing_key SET retired_at = ? WHERE id = ? AND retired_at IS NULL";
    let retired = tx.execute(sql, values![now_ms, i64::from(id)]).await? == 1;
    if retired {
        operators::audit(tx, audit, now_ms).await?;
    }
    Ok(retired)
}

async fn record_run(tx: &mut dyn Session, run: &NewJobRun) -> Outcome<i64> {
    tx.execute(
        "INSERT INTO tb_job_run (job, started_at, ended_at, ok, report) VALUES (?, ?, ?, ?, ?)",
        values![&run.job, run.started_ms, run.ended_ms, run.ok, run.report.to_string()],
    )
    .await?;
    let id = tx.inserted_id()?;
    forget_runs(tx, &run.job).await?;
    Ok(id)
}

/// In two statements each: MySQL does not delete from a table it reads in the same statement.
async fn forget_runs(tx: &mut dyn Session, job: &str) -> Outcome<()> {
    let too_many = "SELECT id FROM tb_job_run WHERE job = ? ORDER BY id DESC LIMIT 1 OFFSET ?";
    let too_long = "SELECT id FROM (
             SELECT id, SUM(LENGTH(report)) OVER (ORDER BY id DESC) AS bytes,
                 ROW_NUMBER() OVER (ORDER BY id DESC) AS place
             FROM tb_job_run WHERE job = ?) AS kept
         WHERE bytes > ? AND place > 1 ORDER BY id DESC LIMIT 1";
    for (sql, most) in [(too_many, RUNS_KEPT_MAX as i64), (too_long, RUNS_BYTES_MAX)] {
        let old = tx.first(sql, values![job, most], |row| get::<i64>(row, 0)).await?;
        if let Some(old) = old {
            let sql = "DELETE FROM tb_job_run WHERE job = ? AND id <= ?";
            tx.execute(sql, values![job, old]).await?;
        }
    }
    Ok(())
}

async fn job_runs(session: &mut dyn Session, job: &str, limit: usize) -> Outcome<Vec<JobRun>> {
    let read = |row: &dyn Row| {
        Ok(JobRun {
            id: get(row, 0)?,
            job: get(row, 1)?,
            started_ms: get(row, 2)?,
            ended_ms: get(row, 3)?,
            ok: get(row, 4)?,
            report: json(row, 5)?,
        })
    };
    let sql = "SELECT id, job, started_at, ended_at, ok, report FROM tb_job_run
         WHERE job = ? ORDER BY id DESC LIMIT ?";
    session.rows(sql, values![job, limit], read).await
}

/// Can orders be read at all?
async fn read_any(session: &mut dyn Session) -> Outcome<()> {
    session.first("SELECT order_no FROM tb_seckill_order LIMIT 1", &[], |_| Ok(())).await?;
    Ok(())
}

#[async_trait]
impl Upkeep for SqlLedger {
    async fn shared_secret(&self, candidate: &str, now_ms: Millis) -> Result<String> {
        self.run(Access::Write, candidate.to_owned(), move |tx, candidate| {
            Box::pin(shared_secret(tx, candidate, now_ms))
        })
        .await
    }

    async fn signing_keys(&self) -> Result<Vec<LaterKey>> {
        self.run(Access::Statement, (), |session, ()| Box::pin(signing_keys(session))).await
    }

    async fn add_signing_key(
        &self,
        secret: &str,
        signs_from_ms: Millis,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Option<u8>> {
        let asked = (secret.to_owned(), audit.clone());
        self.run(Access::Write, asked, move |tx, asked| {
            Box::pin(add_signing_key(tx, asked, signs_from_ms, now_ms))
        })
        .await
    }

    async fn retire_signing_key(&self, id: u8, audit: &AuditEntry, now_ms: Millis) -> Result<bool> {
        self.run(Access::Write, audit.clone(), move |tx, audit| {
            Box::pin(retire_signing_key(tx, id, audit, now_ms))
        })
        .await
    }

    async fn record_run(&self, run: &NewJobRun) -> Result<i64> {
        self.run(Access::Write, run.clone(), |tx, run| Box::pin(record_run(tx, run))).await
    }

    async fn job_runs(&self, job: &str, limit: usize) -> Result<Vec<JobRun>> {
        self.run(Access::Statement, job.to_owned(), move |session, job| {
            Box::pin(job_runs(session, job, limit))
        })
        .await
    }

    async fn now_ms(&self) -> Result<Millis> {
        let ours_ms = self.clock.now_ms();
        if self.engine.dialect().server_clock().is_none() {
            return Ok(ours_ms);
        }
        self.run(Access::Statement, (), move |session, ()| Box::pin(now_ms(session, ours_ms))).await
    }

    async fn ping(&self) -> Result<()> {
        self.engine.check()?;
        self.run(Access::Statement, (), |session, ()| Box::pin(read_any(session))).await
    }
}

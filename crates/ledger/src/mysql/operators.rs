//! Operators: their tokens, what they did, and what the jobs that work for them found.

use mysql_async::Row;
use sale::{Invalid, Millis};

use super::{
    columns::{at_most, get, json, parsed},
    connections::Session,
    failure::{Failure, Outcome},
};
use crate::{AdminToken, AuditEntry, AuditRow, JobRun, NewJobRun, Role};

/// Runs remembered of each job; a reconcile every few seconds would otherwise fill the disk.
const RUNS_KEPT_MAX: u64 = 1_000;

fn read_token(row: &Row) -> Outcome<AdminToken> {
    Ok(AdminToken { name: get(row, 0)?, role: parsed(row, 1)?, created_ms: get(row, 2)? })
}

const INSERT_TOKEN: &str = "INSERT INTO tb_admin_token (name, role, secret_hash, created_at)
     VALUES (?, ?, ?, ?)";

pub(super) async fn add_token(
    tx: &mut Session,
    name: &str,
    role: Role,
    secret_hash: &[u8],
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    let added = tx.change(INSERT_TOKEN, (name, role.as_str(), secret_hash, now_ms)).await;
    match added {
        // Somebody was faster, perhaps a moment ago.
        Err(failure) if failure.collided_on("PRIMARY") => return Ok(false),
        added => drop(of_one_name(added)?),
    }
    self::audit(tx, audit, now_ms).await?;
    Ok(true)
}

/// One secret stands for one name.
fn of_one_name<T>(put: Outcome<T>) -> Outcome<T> {
    match put {
        Err(failure) if failure.collided_on("uk_admin_token_secret") => {
            let problem = "this secret belongs to a token of another name";
            Err(Failure::Refused(Invalid::new("name", problem)))
        }
        put => put,
    }
}

pub(super) async fn put_token(
    tx: &mut Session,
    name: &str,
    role: Role,
    secret_hash: &[u8],
    now_ms: Millis,
) -> Outcome<()> {
    let sql = "SELECT name FROM tb_admin_token WHERE name = ? FOR UPDATE";
    let known = tx.first(sql, (name,), |row| get::<String>(row, 0)).await?;
    // Not ON DUPLICATE KEY UPDATE: with another's secret it would overwrite the other's token.
    let put = if known.is_some() {
        let sql = "UPDATE tb_admin_token
             SET role = ?, secret_hash = ?, created_at = ?, revoked_at = NULL WHERE name = ?";
        tx.change(sql, (role.as_str(), secret_hash, now_ms, name)).await
    } else {
        tx.change(INSERT_TOKEN, (name, role.as_str(), secret_hash, now_ms)).await
    };
    of_one_name(put).map(drop)
}

pub(super) async fn token(
    session: &mut Session,
    secret_hash: &[u8],
) -> Outcome<Option<AdminToken>> {
    let sql = "SELECT name, role, created_at FROM tb_admin_token WHERE live_secret = ?";
    session.first(sql, (secret_hash,), read_token).await
}

pub(super) async fn tokens(session: &mut Session) -> Outcome<Vec<AdminToken>> {
    let sql = "SELECT name, role, created_at FROM tb_admin_token
         WHERE revoked_at IS NULL ORDER BY name";
    session.all(sql, (), read_token).await
}

pub(super) async fn revoke_token(tx: &mut Session, name: &str, now_ms: Millis) -> Outcome<bool> {
    let sql = "UPDATE tb_admin_token SET revoked_at = ? WHERE name = ? AND revoked_at IS NULL";
    Ok(tx.change(sql, (now_ms, name)).await? == 1)
}

pub(super) async fn audit(tx: &mut Session, entry: &AuditEntry, now_ms: Millis) -> Outcome<()> {
    tx.change(
        "INSERT INTO tb_admin_audit (who, action, target, detail, created_at, address, request_id)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            &entry.who,
            &entry.action,
            &entry.target,
            entry.detail.to_string(),
            now_ms,
            &entry.origin.address,
            &entry.origin.request_id,
        ),
    )
    .await?;
    Ok(())
}

pub(super) async fn audit_log(
    session: &mut Session,
    before_id: Option<i64>,
    limit: usize,
) -> Outcome<Vec<AuditRow>> {
    let read = |row: &Row| {
        Ok(AuditRow {
            id: get(row, 0)?,
            who: get(row, 1)?,
            action: get(row, 2)?,
            target: get(row, 3)?,
            detail: json(row, 4)?,
            created_ms: get(row, 5)?,
            address: get(row, 6)?,
            request_id: get(row, 7)?,
        })
    };
    let sql = "SELECT id, who, action, target, detail, created_at, address, request_id FROM tb_admin_audit
         WHERE id < ? ORDER BY id DESC LIMIT ?";
    session.all(sql, (before_id.unwrap_or(i64::MAX), at_most(limit)), read).await
}

pub(super) async fn shared_secret(
    tx: &mut Session,
    candidate: &str,
    now_ms: Millis,
) -> Outcome<String> {
    // Whoever comes second waits here for the first, and then reads what that one wrote.
    let sql = "INSERT INTO tb_secret (id, secret, created_at) VALUES (1, ?, ?)
         ON DUPLICATE KEY UPDATE id = id";
    tx.change(sql, (candidate, now_ms)).await?;
    let secret = tx.first("SELECT secret FROM tb_secret", (), |row| get(row, 0)).await?;
    secret.ok_or(Failure::NotFound)
}

pub(super) async fn take_lease(
    tx: &mut Session,
    name: &str,
    holder: &str,
    for_ms: Millis,
) -> Outcome<bool> {
    let now_ms = super::health::now_ms(tx).await?;
    let until_ms = now_ms.saturating_add(for_ms);
    // First a row to lock, then the decision: two who come at once find each other's.
    let sql = "INSERT INTO tb_lease (name, holder, until_at) VALUES (?, ?, ?)
         ON DUPLICATE KEY UPDATE name = name";
    tx.change(sql, (name, holder, until_ms)).await?;
    let sql = "SELECT holder, until_at FROM tb_lease WHERE name = ? FOR UPDATE";
    let held = tx.first(sql, (name,), |row| Ok((get::<String>(row, 0)?, get(row, 1)?))).await?;
    if held.is_some_and(|(by, until_ms): (String, Millis)| by != holder && until_ms > now_ms) {
        return Ok(false);
    }
    let sql = "UPDATE tb_lease SET holder = ?, until_at = ? WHERE name = ?";
    tx.change(sql, (holder, until_ms, name)).await?;
    Ok(true)
}

pub(super) async fn record_run(tx: &mut Session, run: &NewJobRun) -> Outcome<i64> {
    tx.change(
        "INSERT INTO tb_job_run (job, started_at, ended_at, ok, report) VALUES (?, ?, ?, ?, ?)",
        (&run.job, run.started_ms, run.ended_ms, run.ok, run.report.to_string()),
    )
    .await?;
    let id = tx.inserted_id()?;
    // In two statements: MySQL does not delete from a table it reads in the same statement.
    let sql = "SELECT id FROM tb_job_run WHERE job = ? ORDER BY id DESC LIMIT 1 OFFSET ?";
    let old = tx.first(sql, (&run.job, RUNS_KEPT_MAX), |row| get::<i64>(row, 0)).await?;
    if let Some(old) = old {
        tx.change("DELETE FROM tb_job_run WHERE job = ? AND id <= ?", (&run.job, old)).await?;
    }
    Ok(id)
}

pub(super) async fn job_runs(
    session: &mut Session,
    job: &str,
    limit: usize,
) -> Outcome<Vec<JobRun>> {
    let read = |row: &Row| {
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
    session.all(sql, (job, at_most(limit)), read).await
}

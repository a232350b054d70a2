//! Operators: their tokens, what they did, and what the jobs that work for them found.

use rusqlite::{Connection, OptionalExtension, Row, params};
use sale::{Invalid, Millis};

use super::{
    columns::{at_most, json, parsed},
    failure::{Failure, Outcome},
};
use crate::{AdminToken, AuditEntry, AuditRow, JobRun, NewJobRun, Role};

/// Runs remembered of each job; a reconcile every few seconds would otherwise fill the disk.
const RUNS_KEPT_MAX: i64 = 1_000;

fn read_token(row: &Row<'_>) -> rusqlite::Result<AdminToken> {
    Ok(AdminToken { name: row.get(0)?, role: parsed(row, 1)?, created_ms: row.get(2)? })
}

pub(super) fn add_token(
    tx: &Connection,
    name: &str,
    role: Role,
    secret_hash: &[u8],
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    check_secret(tx, name, secret_hash)?;
    let added = tx
        .prepare_cached(
            "INSERT INTO tb_admin_token (name, role, secret_hash, created_at)
             VALUES (?1, ?2, ?3, ?4) ON CONFLICT (name) DO NOTHING",
        )?
        .execute(params![name, role.as_str(), secret_hash, now_ms])?;
    if added == 1 {
        self::audit(tx, audit, now_ms)?;
    }
    Ok(added == 1)
}

/// One secret stands for one name.
fn check_secret(tx: &Connection, name: &str, secret_hash: &[u8]) -> Outcome<()> {
    if token(tx, secret_hash)?.is_some_and(|known| known.name != name) {
        let problem = "this secret belongs to a token of another name";
        return Err(Failure::Refused(Invalid::new("name", problem)));
    }
    Ok(())
}

pub(super) fn put_token(
    tx: &Connection,
    name: &str,
    role: Role,
    secret_hash: &[u8],
    now_ms: Millis,
) -> Outcome<()> {
    check_secret(tx, name, secret_hash)?;
    tx.prepare_cached(
        "INSERT INTO tb_admin_token (name, role, secret_hash, created_at) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (name) DO UPDATE SET role = excluded.role, secret_hash = excluded.secret_hash,
             created_at = excluded.created_at, revoked_at = NULL",
    )?
    .execute(params![name, role.as_str(), secret_hash, now_ms])?;
    Ok(())
}

pub(super) fn token(conn: &Connection, secret_hash: &[u8]) -> Outcome<Option<AdminToken>> {
    Ok(conn
        .prepare_cached(
            "SELECT name, role, created_at FROM tb_admin_token
             WHERE secret_hash = ?1 AND revoked_at IS NULL",
        )?
        .query_row([secret_hash], read_token)
        .optional()?)
}

pub(super) fn tokens(conn: &Connection) -> Outcome<Vec<AdminToken>> {
    let mut statement = conn.prepare_cached(
        "SELECT name, role, created_at FROM tb_admin_token
         WHERE revoked_at IS NULL ORDER BY name",
    )?;
    let rows = statement.query_map([], read_token)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn revoke_token(tx: &Connection, name: &str, now_ms: Millis) -> Outcome<bool> {
    let revoked = tx
        .prepare_cached(
            "UPDATE tb_admin_token SET revoked_at = ?1 WHERE name = ?2 AND revoked_at IS NULL",
        )?
        .execute(params![now_ms, name])?;
    Ok(revoked == 1)
}

pub(super) fn audit(tx: &Connection, entry: &AuditEntry, now_ms: Millis) -> Outcome<()> {
    tx.prepare_cached(
        "INSERT INTO tb_admin_audit (who, action, target, detail, created_at, address, request_id)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![
        entry.who,
        entry.action,
        entry.target,
        entry.detail.to_string(),
        now_ms,
        entry.origin.address,
        entry.origin.request_id
    ])?;
    Ok(())
}

pub(super) fn audit_log(
    conn: &Connection,
    before_id: Option<i64>,
    limit: usize,
) -> Outcome<Vec<AuditRow>> {
    let mut statement = conn.prepare_cached(
        "SELECT id, who, action, target, detail, created_at, address, request_id FROM tb_admin_audit
         WHERE id < ?1 ORDER BY id DESC LIMIT ?2",
    )?;
    let read = |row: &Row<'_>| {
        Ok(AuditRow {
            id: row.get(0)?,
            who: row.get(1)?,
            action: row.get(2)?,
            target: row.get(3)?,
            detail: json(row, 4)?,
            created_ms: row.get(5)?,
            address: row.get(6)?,
            request_id: row.get(7)?,
        })
    };
    let rows = statement.query_map([before_id.unwrap_or(i64::MAX), at_most(limit)], read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn shared_secret(tx: &Connection, candidate: &str, now_ms: Millis) -> Outcome<String> {
    tx.prepare_cached("INSERT INTO tb_secret VALUES (1, ?1, ?2) ON CONFLICT (id) DO NOTHING")?
        .execute(params![candidate, now_ms])?;
    Ok(tx.prepare_cached("SELECT secret FROM tb_secret")?.query_row([], |row| row.get(0))?)
}

pub(super) fn take_lease(
    tx: &Connection,
    name: &str,
    holder: &str,
    for_ms: Millis,
    now_ms: Millis,
) -> Outcome<bool> {
    let taken = tx
        .prepare_cached(
            "INSERT INTO tb_lease (name, holder, until_at) VALUES (?1, ?2, ?3)
             ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_at = excluded.until_at
             WHERE tb_lease.holder = excluded.holder OR tb_lease.until_at <= ?4",
        )?
        .execute(params![name, holder, now_ms.saturating_add(for_ms), now_ms])?;
    Ok(taken == 1)
}

pub(super) fn record_run(tx: &Connection, run: &NewJobRun) -> Outcome<i64> {
    tx.prepare_cached(
        "INSERT INTO tb_job_run (job, started_at, ended_at, ok, report)
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![
        run.job,
        run.started_ms,
        run.ended_ms,
        run.ok,
        run.report.to_string()
    ])?;
    let id = tx.last_insert_rowid();
    tx.prepare_cached(
        "DELETE FROM tb_job_run WHERE job = ?1 AND id <= (SELECT id FROM tb_job_run
             WHERE job = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute(params![run.job, RUNS_KEPT_MAX])?;
    Ok(id)
}

pub(super) fn job_runs(conn: &Connection, job: &str, limit: usize) -> Outcome<Vec<JobRun>> {
    let mut statement = conn.prepare_cached(
        "SELECT id, job, started_at, ended_at, ok, report FROM tb_job_run
         WHERE job = ?1 ORDER BY id DESC LIMIT ?2",
    )?;
    let read = |row: &Row<'_>| {
        Ok(JobRun {
            id: row.get(0)?,
            job: row.get(1)?,
            started_ms: row.get(2)?,
            ended_ms: row.get(3)?,
            ok: row.get(4)?,
            report: json(row, 5)?,
        })
    };
    let rows = statement.query_map(params![job, at_most(limit)], read)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

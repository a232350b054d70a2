//! Operators: their tokens, and what they did.

use async_trait::async_trait;
use sale::{Invalid, Millis};

use super::{
    Access, SqlLedger,
    columns::{get, json, parsed},
    failure::{Failure, Outcome},
    session::{Row, Session, values},
};
use crate::{AdminToken, AuditEntry, AuditRow, Operators, Result, Role, TokenBounds};

fn read_token(row: &dyn Row) -> Outcome<AdminToken> {
    let addresses: Option<String> = get(row, 4)?;
    let addresses = addresses.iter().flat_map(|list| list.split(',')).map(str::to_owned).collect();
    Ok(AdminToken {
        name: get(row, 0)?,
        role: parsed(row, 1)?,
        created_ms: get(row, 2)?,
        bounds: TokenBounds { expires_ms: get(row, 3)?, addresses },
        last_used_ms: get(row, 5)?,
    })
}

const TOKEN_COLUMNS: &str = "name, role, created_at, expires_at, addresses, last_used_at";
const INSERT_TOKEN: &str = "INSERT INTO tb_admin_token
     (name, role, secret_hash, created_at, expires_at, addresses) VALUES (?, ?, ?, ?, ?, ?)";

async fn add_token(
    tx: &mut dyn Session,
    (name, role, secret_hash): (&str, Role, &[u8]),
    TokenBounds { expires_ms, addresses }: &TokenBounds,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    check_secret(tx, name, secret_hash).await?;
    let sql = format!("{INSERT_TOKEN} {}", tx.dialect().keep("name"));
    let addresses = (!addresses.is_empty()).then(|| addresses.join(","));
    let row = values![name, role.as_str(), secret_hash, now_ms, *expires_ms, addresses.as_deref()];
    let added = tx.execute(&sql, row).await?;
    if added == 1 {
        self::audit(tx, audit, now_ms).await?;
    }
    Ok(added == 1)
}

/// One secret stands for one name.
async fn check_secret(tx: &mut dyn Session, name: &str, secret_hash: &[u8]) -> Outcome<()> {
    match token(tx, secret_hash).await? {
        Some(known) if known.name != name => {
            let problem = "this secret belongs to a token of another name";
            Err(Failure::Refused(Invalid::new("name", problem)))
        }
        _ => Ok(()),
    }
}

async fn put_token(
    tx: &mut dyn Session,
    (name, role, secret_hash): (&str, Role, &[u8]),
    now_ms: Millis,
) -> Outcome<()> {
    check_secret(tx, name, secret_hash).await?;
    let for_update = tx.dialect().for_update();
    let sql = format!("SELECT name FROM tb_admin_token WHERE name = ? {for_update}");
    let known = tx.first(&sql, values![name], |row| get::<String>(row, 0)).await?;
    if known.is_some() {
        let sql = "UPDATE tb_admin_token
             SET role = ?, secret_hash = ?, created_at = ?, revoked_at = NULL, expires_at = NULL,
                 addresses = NULL WHERE name = ?";
        tx.execute(sql, values![role.as_str(), secret_hash, now_ms, name]).await?;
    } else {
        let nothing: (Option<Millis>, Option<&str>) = (None, None);
        let row = values![name, role.as_str(), secret_hash, now_ms, nothing.0, nothing.1];
        tx.execute(INSERT_TOKEN, row).await?;
    }
    Ok(())
}

async fn token(session: &mut dyn Session, secret_hash: &[u8]) -> Outcome<Option<AdminToken>> {
    let sql = format!(
        "SELECT {TOKEN_COLUMNS} FROM tb_admin_token WHERE {}",
        session.dialect().has_live_secret()
    );
    session.first(&sql, values![secret_hash], read_token).await
}

async fn tokens(session: &mut dyn Session) -> Outcome<Vec<AdminToken>> {
    let sql = format!(
        "SELECT {TOKEN_COLUMNS} FROM tb_admin_token WHERE revoked_at IS NULL ORDER BY name"
    );
    session.rows(&sql, &[], read_token).await
}

async fn revoke_token(tx: &mut dyn Session, name: &str, now_ms: Millis) -> Outcome<bool> {
    let sql = "UPDATE tb_admin_token SET revoked_at = ? WHERE name = ? AND revoked_at IS NULL";
    Ok(tx.execute(sql, values![now_ms, name]).await? == 1)
}

async fn note_uses(tx: &mut dyn Session, uses: &[(String, Millis)]) -> Outcome<()> {
    let sql = "UPDATE tb_admin_token SET last_used_at = ?
         WHERE name = ? AND (last_used_at IS NULL OR last_used_at < ?)";
    for (name, used_ms) in uses {
        tx.execute(sql, values![*used_ms, name, *used_ms]).await?;
    }
    Ok(())
}

pub(super) async fn audit(tx: &mut dyn Session, entry: &AuditEntry, now_ms: Millis) -> Outcome<()> {
    tx.execute(
        "INSERT INTO tb_admin_audit
             (who, action, target, detail, created_at, address, request_id)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        values![
            &entry.who,
            &entry.action,
            &entry.target,
            entry.detail.to_string(),
            now_ms,
            entry.origin.address.as_deref(),
            entry.origin.request_id.as_deref(),
        ],
    )
    .await?;
    Ok(())
}

async fn audit_log(
    session: &mut dyn Session,
    before_id: Option<i64>,
    limit: usize,
) -> Outcome<Vec<AuditRow>> {
    let read = |row: &dyn Row| {
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
    let sql = "SELECT id, who, action, target, detail, created_at, address, request_id
         FROM tb_admin_audit WHERE id < ? ORDER BY id DESC LIMIT ?";
    session.rows(sql, values![before_id.unwrap_or(i64::MAX), limit], read).await
}

#[async_trait]
impl Operators for SqlLedger {
    async fn add_admin_token(
        &self,
        name: &str,
        role: Role,
        secret_hash: &[u8],
        bounds: &TokenBounds,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool> {
        let asked = (name.to_owned(), secret_hash.to_vec(), bounds.clone(), audit.clone());
        self.run(Access::Write, asked, move |tx, (name, hash, bounds, audit)| {
            Box::pin(add_token(tx, (name, role, hash), bounds, audit, now_ms))
        })
        .await
    }

    async fn put_admin_token(
        &self,
        name: &str,
        role: Role,
        secret_hash: &[u8],
        now_ms: Millis,
    ) -> Result<()> {
        let asked = (name.to_owned(), secret_hash.to_vec());
        self.run(Access::Write, asked, move |tx, (name, hash)| {
            Box::pin(put_token(tx, (name, role, hash), now_ms))
        })
        .await
    }

    async fn admin_token(&self, secret_hash: &[u8]) -> Result<Option<AdminToken>> {
        self.run(Access::Statement, secret_hash.to_vec(), |session, hash| {
            Box::pin(token(session, hash))
        })
        .await
    }

    async fn admin_tokens(&self) -> Result<Vec<AdminToken>> {
        self.run(Access::Statement, (), |session, ()| Box::pin(tokens(session))).await
    }

    async fn revoke_admin_token(&self, name: &str, now_ms: Millis) -> Result<bool> {
        self.run(Access::Write, name.to_owned(), move |tx, name| {
            Box::pin(revoke_token(tx, name, now_ms))
        })
        .await
    }

    async fn note_token_uses(&self, uses: &[(String, Millis)]) -> Result<()> {
        if uses.is_empty() {
            return Ok(());
        }
        self.run(Access::Write, uses.to_vec(), move |tx, uses| Box::pin(note_uses(tx, uses))).await
    }

    async fn audit(&self, entry: &AuditEntry, now_ms: Millis) -> Result<()> {
        self.run(Access::Write, entry.clone(), move |tx, entry| Box::pin(audit(tx, entry, now_ms)))
            .await
    }

    async fn audit_log(&self, before_id: Option<i64>, limit: usize) -> Result<Vec<AuditRow>> {
        self.run(Access::Statement, (), move |session, ()| {
            Box::pin(audit_log(session, before_id, limit))
        })
        .await
    }
}

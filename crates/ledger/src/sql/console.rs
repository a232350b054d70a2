//! Links and sessions of the console.

use async_trait::async_trait;
use sale::Millis;

use super::{
    Access, SqlLedger,
    columns::get,
    failure::Outcome,
    operators,
    session::{Row, Session, Value, values},
};
use crate::{AuditEntry, ConsolePass, ConsolePasses, PassKind, Result};

const COLUMNS: &str = "secret_hash, token, configured, created_at, used_at, expires_at";
/// Those that are over and are forgotten by whoever writes a new one.
const FORGOTTEN_MAX: usize = 100;

fn read(row: &dyn Row) -> Outcome<ConsolePass> {
    Ok(ConsolePass {
        secret_hash: get(row, 0)?,
        token: get(row, 1)?,
        configured: get(row, 2)?,
        created_ms: get(row, 3)?,
        used_ms: get(row, 4)?,
        expires_ms: get(row, 5)?,
    })
}

async fn forget(tx: &mut dyn Session, gone: Vec<String>) -> Outcome<()> {
    if !gone.is_empty() {
        let sql = "DELETE FROM tb_console_pass WHERE secret_hash IN ?";
        tx.execute(sql, &[Value::list(gone)]).await?;
    }
    Ok(())
}

/// Make room for one more of a kind.
async fn make_room(tx: &mut dyn Session, kind: PassKind, now_ms: Millis) -> Outcome<()> {
    let over = "SELECT secret_hash FROM tb_console_pass WHERE expires_at <= ? LIMIT ?";
    let over = tx.rows(over, values![now_ms, FORGOTTEN_MAX], |row| get(row, 0)).await?;
    forget(tx, over).await?;
    // The newest ones stay; MySQL knows no offset without a limit.
    let sql = "SELECT secret_hash FROM tb_console_pass WHERE kind = ?
         ORDER BY used_at DESC LIMIT ? OFFSET ?";
    let asked = values![kind.code(), FORGOTTEN_MAX, kind.kept_max() - 1];
    let too_many = tx.rows(sql, asked, |row| get(row, 0)).await?;
    forget(tx, too_many).await
}

async fn add(
    tx: &mut dyn Session,
    kind: PassKind,
    pass: &ConsolePass,
    audit: &AuditEntry,
) -> Outcome<()> {
    make_room(tx, kind, pass.created_ms).await?;
    let sql = "INSERT INTO tb_console_pass
         (kind, secret_hash, token, configured, created_at, used_at, expires_at)
         VALUES (?, ?, ?, ?, ?, ?, ?)";
    let row = values![
        kind.code(),
        &pass.secret_hash,
        &pass.token,
        pass.configured,
        pass.created_ms,
        pass.used_ms,
        pass.expires_ms
    ];
    tx.execute(sql, row).await?;
    operators::audit(tx, audit, pass.created_ms).await
}

async fn find(
    session: &mut dyn Session,
    kind: PassKind,
    secret_hash: &str,
    now_ms: Millis,
) -> Outcome<Option<ConsolePass>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM tb_console_pass WHERE secret_hash = ? AND kind = ? AND expires_at > ?"
    );
    session.first(&sql, values![secret_hash, kind.code(), now_ms], read).await
}

async fn remove(tx: &mut dyn Session, kind: PassKind, secret_hash: &str) -> Outcome<bool> {
    let sql = "DELETE FROM tb_console_pass WHERE secret_hash = ? AND kind = ?";
    Ok(tx.execute(sql, values![secret_hash, kind.code()]).await? == 1)
}

/// Whoever deletes the row has it; of two who present one link only one does.
async fn take(
    tx: &mut dyn Session,
    secret_hash: &str,
    now_ms: Millis,
) -> Outcome<Option<ConsolePass>> {
    let found = find(tx, PassKind::Link, secret_hash, now_ms).await?;
    let taken = remove(tx, PassKind::Link, secret_hash).await?;
    Ok(found.filter(|_| taken))
}

async fn note_uses(tx: &mut dyn Session, uses: &[(String, Millis)]) -> Outcome<()> {
    let sql = "UPDATE tb_console_pass SET used_at = ? WHERE secret_hash = ? AND used_at < ?";
    for (secret_hash, used_ms) in uses {
        tx.execute(sql, values![*used_ms, secret_hash, *used_ms]).await?;
    }
    Ok(())
}

async fn end(
    tx: &mut dyn Session,
    secret_hash: &str,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<bool> {
    let ended = remove(tx, PassKind::Session, secret_hash).await?;
    if ended {
        operators::audit(tx, audit, now_ms).await?;
    }
    Ok(ended)
}

#[async_trait]
impl ConsolePasses for SqlLedger {
    async fn add_console_pass(
        &self,
        kind: PassKind,
        pass: &ConsolePass,
        audit: &AuditEntry,
    ) -> Result<()> {
        let asked = (pass.clone(), audit.clone());
        self.run(Access::Write, asked, move |tx, (pass, audit)| {
            Box::pin(add(tx, kind, pass, audit))
        })
        .await
    }

    async fn take_console_link(
        &self,
        secret_hash: &str,
        now_ms: Millis,
    ) -> Result<Option<ConsolePass>> {
        self.run(Access::Write, secret_hash.to_owned(), move |tx, hash| {
            Box::pin(take(tx, hash, now_ms))
        })
        .await
    }

    async fn console_session(
        &self,
        secret_hash: &str,
        now_ms: Millis,
    ) -> Result<Option<ConsolePass>> {
        self.run(Access::Statement, secret_hash.to_owned(), move |session, hash| {
            Box::pin(find(session, PassKind::Session, hash, now_ms))
        })
        .await
    }

    async fn note_console_uses(&self, uses: &[(String, Millis)]) -> Result<()> {
        if uses.is_empty() {
            return Ok(());
        }
        self.run(Access::Write, uses.to_vec(), move |tx, uses| Box::pin(note_uses(tx, uses))).await
    }

    async fn end_console_session(
        &self,
        secret_hash: &str,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool> {
        let asked = (secret_hash.to_owned(), audit.clone());
        self.run(Access::Write, asked, move |tx, (hash, audit)| {
            Box::pin(end(tx, hash, audit, now_ms))
        })
        .await
    }
}

//! Leases: who alone does something for a while, among all instances on one ledger.
//!
//! Taken by compare-and-set, without a transaction: one would lock the leases of all jobs between its
//! statements, and a process that freezes there would stop every job of every instance until the server ends
//! its session.

use std::collections::BTreeMap;

use async_trait::async_trait;
use sale::Millis;

use super::{
    Access, SqlLedger,
    columns::get,
    dialect::Dialect,
    failure::Outcome,
    session::{Row, Session, Value},
};
use crate::{LEASE_MS_MAX, Leases, Result};

/// What a process asks for at once.
struct Asked {
    names: Vec<String>,
    holder: String,
    for_ms: Millis,
    /// The time, if the ledger has no clock of its own.
    ours_ms: Millis,
}

struct Lease {
    holder: String,
    fence: u64,
    /// One that lasts for too long is from before the clock was set back, and nobody's.
    lasts_ms: Millis,
}

impl Lease {
    fn is_anothers(&self, holder: &str) -> bool {
        self.holder != holder && (1..=LEASE_MS_MAX).contains(&self.lasts_ms)
    }
}

/// The time now, in SQL. Its value is ours, for a ledger without a clock.
fn now(dialect: Dialect) -> String {
    format!("COALESCE({}, ?)", dialect.server_clock().unwrap_or("NULL"))
}

/// Those of the leases that somebody has held before.
async fn known(session: &mut dyn Session, asked: &Asked) -> Outcome<BTreeMap<String, Lease>> {
    let (dialect, names) = (session.dialect(), Value::list(&asked.names));
    let (by_key, now) = (dialect.by_primary_key(), now(dialect));
    let sql = format!(
        "SELECT name, holder, fence, until_at - {now} FROM tb_lease {by_key} WHERE name IN ?"
    );
    let read = |row: &dyn Row| {
        let (holder, fence, lasts_ms) = (get(row, 1)?, get(row, 2)?, get(row, 3)?);
        Ok((get::<String>(row, 0)?, Lease { holder, fence, lasts_ms }))
    };
    Ok(session.rows(&sql, &[asked.ours_ms.into(), names], read).await?.into_iter().collect())
}

async fn take_leases(session: &mut dyn Session, asked: &Asked) -> Outcome<Vec<Option<u64>>> {
    let (dialect, holder) = (session.dialect(), &asked.holder);
    let found = known(session, asked).await?;
    let missing: Vec<&String> =
        asked.names.iter().filter(|name| !found.contains_key(*name)).collect();
    if !missing.is_empty() {
        let nobodys = missing.iter().map(|name| [(*name).into(), "".into(), 0i64.into()]);
        session.insert("tb_lease (name, holder, until_at)", nobodys, &dialect.keep("name")).await?;
    }
    let anothers = |name: &&String| found.get(*name).is_some_and(|lease| lease.is_anothers(holder));
    let wanted: Vec<&String> = asked.names.iter().filter(|name| !anothers(name)).collect();
    if wanted.is_empty() {
        return Ok(vec![None; asked.names.len()]);
    }
    let now = now(dialect);
    // The fence first: MySQL reckons with the holder as it was set before.
    let sql = format!(
        "UPDATE tb_lease SET fence = fence + CASE WHEN holder = ? THEN 0 ELSE 1 END, holder = ?,
             until_at = {now} + ?
         WHERE name IN ? AND (holder = ? OR until_at - {now} NOT BETWEEN 1 AND ?)"
    );
    let (wanted, ours_ms) = (Value::list(wanted), asked.ours_ms);
    let values: &[Value<'_>] = &[
        holder.into(),
        holder.into(),
        ours_ms.into(),
        asked.for_ms.into(),
        wanted,
        holder.into(),
        ours_ms.into(),
        LEASE_MS_MAX.into(),
    ];
    session.execute(&sql, values).await?;
    let found = known(session, asked).await?;
    let ours = |name| found.get(name).filter(|lease| lease.holder == *holder);
    Ok(asked.names.iter().map(|name| ours(name).map(|lease| lease.fence)).collect())
}

#[async_trait]
impl Leases for SqlLedger {
    async fn take_leases(
        &self,
        names: &[&str],
        holder: &str,
        for_ms: Millis,
    ) -> Result<Vec<Option<u64>>> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let (holder, ours_ms) = (holder.to_owned(), self.clock.now_ms());
        let asked = Asked { names, holder, for_ms: for_ms.min(LEASE_MS_MAX), ours_ms };
        let access = match self.engine.dialect() {
            // No transaction is begun: what a statement wrote is committed before it is answered.
            Dialect::Mysql => Access::Statement,
            // What writes is one thread of one process.
            Dialect::Sqlite => Access::Write,
        };
        self.run(access, asked, |session, asked| Box::pin(take_leases(session, asked))).await
    }
}

//! Leases: who alone does something for a while, among all instances on one ledger.

use std::collections::BTreeMap;

use async_trait::async_trait;
use sale::Millis;

use super::{
    Access, SqlLedger,
    columns::get,
    failure::Outcome,
    session::{Row, Session, Value},
};
use crate::{LEASE_MS_MAX, Leases, Result};

/// What a process asks for at once.
#[derive(Clone)]
struct Asked {
    names: Vec<String>,
    holder: String,
    for_ms: Millis,
    /// The time, if the ledger has no clock of its own.
    ours_ms: Millis,
}

struct Lease {
    holder: String,
    until_ms: Millis,
    fence: u64,
    now_ms: Millis,
}

impl Lease {
    fn is_anothers(&self, holder: &str) -> bool {
        let lasts_ms = self.until_ms.saturating_sub(self.now_ms);
        self.holder != holder && (1..=LEASE_MS_MAX).contains(&lasts_ms)
    }
}

/// Those of the leases that somebody has held before.
async fn known(
    session: &mut dyn Session,
    asked: &Asked,
    locked: &str,
) -> Outcome<BTreeMap<String, Lease>> {
    let (dialect, ours_ms) = (session.dialect(), asked.ours_ms);
    let (by_key, clock) = (dialect.by_primary_key(), dialect.server_clock().unwrap_or("NULL"));
    let sql = format!(
        "SELECT name, holder, until_at, fence, {clock} FROM tb_lease {by_key}
         WHERE name IN ? {locked}"
    );
    let read = |row: &dyn Row| {
        let now_ms = get::<Option<Millis>>(row, 4)?.unwrap_or(ours_ms);
        let (holder, until_ms, fence) = (get(row, 1)?, get(row, 2)?, get(row, 3)?);
        Ok((get::<String>(row, 0)?, Lease { holder, until_ms, fence, now_ms }))
    };
    let names = Value::list(&asked.names);
    Ok(session.rows(&sql, &[names], read).await?.into_iter().collect())
}

async fn take_leases(
    tx: &mut dyn Session,
    asked: &Asked,
    missing: &[String],
) -> Outcome<Vec<Option<u64>>> {
    let dialect = tx.dialect();
    if !missing.is_empty() {
        // First rows to lock, then the decision: two who come at once find each other's.
        let nobodys = missing.iter().map(|name| [name.into(), "".into(), 0i64.into()]);
        tx.insert("tb_lease (name, holder, until_at)", nobodys, &dialect.keep("name")).await?;
    }
    let mut ours = known(tx, asked, dialect.for_update()).await?;
    ours.retain(|_, lease| !lease.is_anothers(&asked.holder));
    if let Some(now_ms) = ours.values().map(|lease| lease.now_ms).max() {
        let (holder, names) = (Value::from(&asked.holder), Value::list(ours.keys()));
        let until_ms = now_ms.saturating_add(asked.for_ms).into();
        let sql =
            "UPDATE tb_lease SET fence = fence + 1, holder = ? WHERE holder <> ? AND name IN ?";
        tx.execute(sql, &[holder.clone(), holder, names.clone()]).await?;
        tx.execute("UPDATE tb_lease SET until_at = ? WHERE name IN ?", &[until_ms, names]).await?;
    }
    let fence = |name: &String| {
        let lease = ours.get(name)?;
        Some(lease.fence + u64::from(lease.holder != asked.holder))
    };
    Ok(asked.names.iter().map(fence).collect())
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
        let reading = self.run(Access::Statement, asked.clone(), |session, asked| {
            Box::pin(known(session, asked, ""))
        });
        let found: Result<BTreeMap<String, Lease>> = reading.await;
        let found = found?;
        let anothers = |lease: &&Lease| lease.is_anothers(&asked.holder);
        if found.values().filter(anothers).count() == asked.names.len() {
            return Ok(vec![None; asked.names.len()]);
        }
        let missing: Vec<String> =
            asked.names.iter().filter(|name| !found.contains_key(*name)).cloned().collect();
        self.run(Access::Write, (asked, missing), |tx, (asked, missing)| {
            Box::pin(take_leases(tx, asked, missing))
        })
        .await
    }
}

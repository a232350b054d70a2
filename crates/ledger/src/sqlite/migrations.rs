//! The schema and how a database file gets there.
//!
//! Migrations expand first and contract a release later, so that yesterday's binary may still read
//! what today's wrote. A binary never touches a file whose schema is newer than its own: it cannot
//! know which rules that schema added.

use rusqlite::{Connection, TransactionBehavior};

/// Step `n` of the list takes a file from `user_version` n to n + 1.
const STEPS: &[&str] = &[
    include_str!("migrations/0001_init.sql"),
    include_str!("migrations/0002_audit_origin.sql"),
    include_str!("migrations/0003_plans.sql"),
    include_str!("migrations/0004_due.sql"),
    include_str!("migrations/0005_lease.sql"),
    include_str!("migrations/0006_leases.sql"),
    include_str!("migrations/0007_outbox.sql"),
    include_str!("migrations/0008_words.sql"),
    include_str!("migrations/0009_webhooks.sql"),
    include_str!("migrations/0010_payment_words.sql"),
    include_str!("migrations/0011_token_bounds.sql"),
    include_str!("migrations/0012_signing_keys.sql"),
    include_str!("migrations/0013_money.sql"),
    include_str!("migrations/0014_bills.sql"),
    include_str!("migrations/0015_door.sql"),
    include_str!("migrations/0016_fair_start.sql"),
    include_str!("migrations/0017_console.sql"),
    include_str!("migrations/0018_changed.sql"),
    include_str!("migrations/0019_pause.sql"),
    include_str!("migrations/0020_volumes.sql"),
    include_str!("migrations/0021_archive.sql"),
];

/// The schema this binary writes.
pub const SCHEMA_VERSION: i64 = STEPS.len() as i64;

/// The version a file has now.
pub(super) fn version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Brings the file up to [`SCHEMA_VERSION`] in one transaction. `Err(found)` inside if it is newer.
///
/// The version is read again inside the transaction: two processes may open a new file at once.
pub(super) fn migrate(conn: &mut Connection) -> rusqlite::Result<Result<(), i64>> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = version(&tx)?;
    if found > SCHEMA_VERSION {
        return Ok(Err(found));
    }
    for step in STEPS.iter().skip(found.max(0) as usize) {
        tx.execute_batch(step)?;
    }
    if found < SCHEMA_VERSION {
        tx.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    }
    tx.commit()?;
    Ok(Ok(()))
}

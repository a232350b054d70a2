//! The schema and how a database gets there.
//!
//! Several instances may start at once, so a server-side lock lets one of them migrate while the
//! others wait. DDL commits by itself here: a step that stopped half-way is run again from its start,
//! which is why each of its statements can be repeated. Migrations expand first and contract a
//! release later, so that yesterday's binary may run beside today's schema; a binary refuses a schema
//! newer than its own, for it cannot know which rules that added.

use sale::Millis;

use super::connections::statements_within;
use crate::sql::{
    columns::get,
    failure::{Failure, Outcome},
    session::{Session, values},
};

/// Step `n` of the list takes a database from version n to n + 1.
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

/// How long an instance waits for another that migrates.
const MIGRATION_WAIT_S_MAX: i64 = 60;

/// Locks are the whole server's; the name says which database it is about, in the 64 characters a name may
/// have. MD5 comes first because builds before this one know no other, and may migrate beside us; MySQL has
/// none any more since 9.6, and no such build ever got as far there.
const LOCKS: [&str; 2] = ["MD5(DATABASE())", "LEFT(SHA2(DATABASE(), 256), 32)"];

/// Also what is asked of a server to learn whether it lets us make tables.
pub(super) const VERSIONS: &str = "CREATE TABLE IF NOT EXISTS tb_schema_version (
    version    BIGINT NOT NULL PRIMARY KEY,
    applied_at BIGINT NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin";

/// The version a database has now; zero if it has none of our tables.
pub(super) async fn version(session: &mut dyn Session) -> Outcome<i64> {
    let made = session
        .first(
            "SELECT COUNT(*) FROM information_schema.tables
             WHERE table_schema = DATABASE() AND table_name = 'tb_schema_version'",
            &[],
            |row| get::<i64>(row, 0),
        )
        .await?;
    if made.unwrap_or(0) == 0 {
        return Ok(0);
    }
    let sql = "SELECT COALESCE(MAX(version), 0) FROM tb_schema_version";
    Ok(session.first(sql, &[], |row| get(row, 0)).await?.unwrap_or(0))
}

/// Brings the database up to [`SCHEMA_VERSION`]. `Err(found)` inside if it is newer.
pub(super) async fn migrate(session: &mut dyn Session, now_ms: Millis) -> Outcome<Result<(), i64>> {
    // The usual start: nothing to do, and no lock to wait for.
    let found = version(session).await?;
    if found >= SCHEMA_VERSION {
        return Ok(if found == SCHEMA_VERSION { Ok(()) } else { Err(found) });
    }
    // A large table takes its time to change, and so may whoever is before us.
    session.execute(&statements_within(0), &[]).await?;
    let lock = lock_name(session).await?;
    let sql = "SELECT GET_LOCK(?, ?)";
    let asked = values![&lock, MIGRATION_WAIT_S_MAX];
    let got = session.first(sql, asked, |row| get::<Option<i64>>(row, 0)).await?.flatten();
    if got != Some(1) {
        return Err(Failure::Unknown("another instance has been migrating for a minute".into()));
    }
    let outcome = migrate_locked(session, now_ms).await;
    session.execute("DO RELEASE_LOCK(?)", values![&lock]).await?;
    outcome
}

/// By the first of the functions that this server has.
async fn lock_name(session: &mut dyn Session) -> Outcome<String> {
    for hash in LOCKS {
        let sql = format!("SELECT CONCAT('seckill-migrate-', {hash})");
        match session.first(&sql, &[], |row| get::<String>(row, 0)).await {
            Err(failure) if failure.is_unknown_function() => continue,
            named => {
                return named?.ok_or_else(|| Failure::Broken("a SELECT had no row".into()));
            }
        }
    }
    Err(Failure::Broken("the server has neither MD5 nor SHA2".into()))
}

/// The version is read again: whoever held the lock before may have done it all.
async fn migrate_locked(session: &mut dyn Session, now_ms: Millis) -> Outcome<Result<(), i64>> {
    session.execute(VERSIONS, &[]).await?;
    let found = version(session).await?;
    if found > SCHEMA_VERSION {
        return Ok(Err(found));
    }
    for (n, step) in STEPS.iter().enumerate().skip(found.max(0) as usize) {
        for statement in statements(step) {
            run(session, &statement).await?;
        }
        let record = "INSERT INTO tb_schema_version (version, applied_at) VALUES (?, ?)";
        session.execute(record, values![n as i64 + 1, now_ms]).await?;
    }
    Ok(Ok(()))
}

/// Triggers are a second lock on doors that the code keeps shut already. A server whose binary log is
/// on lets only a superuser make them unless `log_bin_trust_function_creators` is set, and TiDB has none; a
/// ledger without them is better than none, and [`super::health`] says that they are missing.
async fn run(session: &mut dyn Session, statement: &str) -> Outcome<()> {
    match session.execute(statement, &[]).await {
        Err(failure) if is_trigger(statement) && failure.may_not_make_triggers() => {
            tracing::warn!(
                ?failure,
                "the audit can be rewritten by whoever may write to its table, for no trigger could be \
                 made; seckill doctor says what to do"
            );
            Ok(())
        }
        // The step stopped half-way once, behind this statement.
        Err(failure) if is_alteration(statement) && failure.is_there_already() => Ok(()),
        done => done.map(drop),
    }
}

/// Each adds one thing only, so that finding it there means that nothing is left to do.
fn is_alteration(statement: &str) -> bool {
    statement.starts_with("ALTER TABLE ")
}

fn is_trigger(statement: &str) -> bool {
    statement.starts_with("DROP TRIGGER") || statement.starts_with("CREATE TRIGGER")
}

/// The names of the CHECK constraints that are there after all steps, as far as they have one.
pub(super) fn checks() -> Vec<String> {
    let words = STEPS.iter().flat_map(|step| step.split_whitespace());
    let (mut names, mut last) = (Vec::new(), "");
    for word in words {
        let word = word.trim_end_matches(['\'', ',']);
        let named = last == "CONSTRAINT" && word.starts_with("ck_");
        if named && word != DROPPED_CHECK && !names.iter().any(|known| known == word) {
            names.push(word.to_owned());
        }
        last = word;
    }
    names
}

/// It gave way to a new one.
const DROPPED_CHECK: &str = "ck_admin_token_role";

/// The tables whose rows are numbered by the server, in the order they are written.
pub(super) fn numbered_tables() -> Vec<String> {
    let statements = STEPS.iter().flat_map(|step| statements(step));
    let numbered = statements.filter(|statement| statement.contains("AUTO_INCREMENT"));
    let names = numbered.filter_map(|statement| {
        let name = statement.strip_prefix("CREATE TABLE IF NOT EXISTS ")?;
        Some(name.split_whitespace().next()?.to_owned())
    });
    names.collect()
}

/// The names of the triggers that the steps make.
pub(super) fn triggers() -> Vec<String> {
    let statements = STEPS.iter().flat_map(|step| statements(step));
    let names = statements.filter_map(|statement| {
        let name = statement.strip_prefix("CREATE TRIGGER ")?.split_whitespace().next()?;
        Some(name.to_owned())
    });
    names.collect()
}

/// The statements of a file. Ours keep semicolons out of literals and bodies.
fn statements(file: &str) -> Vec<String> {
    let code: Vec<&str> =
        file.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    let code = code.join("\n");
    let statements = code.split(';').map(str::trim).filter(|statement| !statement.is_empty());
    statements.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_triggers_of_the_steps_are_known_by_name() {
        assert_eq!(triggers(), ["tr_admin_audit_update", "tr_admin_audit_delete"]);
    }

    #[test]
    fn the_checks_of_the_steps_are_known_by_name() {
        let checks = checks();
        assert!(checks.iter().any(|name| name == "ck_product_stock"), "{checks:?}");
        assert!(checks.iter().any(|name| name == "ck_admin_token_roles"), "{checks:?}");
        assert!(checks.iter().all(|name| name != DROPPED_CHECK), "{checks:?}");
    }

    /// Without these words TiDB gives each of its servers a range of numbers of its own.
    #[test]
    fn every_table_with_numbered_rows_asks_for_numbers_in_their_order() {
        let numbered = numbered_tables();
        for name in ["tb_stock_log", "tb_outbox", "tb_admin_audit", "tb_webhook_delivery"] {
            assert!(numbered.iter().any(|known| known == name), "{numbered:?}");
        }
        for statement in STEPS.iter().flat_map(|step| statements(step)) {
            let asked = statement.ends_with("/*T![auto_id_cache] AUTO_ID_CACHE 1 */");
            assert_eq!(statement.contains("AUTO_INCREMENT"), asked, "{statement}");
        }
    }

    #[test]
    fn every_statement_of_a_step_can_be_run_again() {
        for statement in STEPS.iter().flat_map(|step| statements(step)) {
            let again = [
                "CREATE TABLE IF NOT EXISTS",
                "DROP TRIGGER IF EXISTS",
                "CREATE TRIGGER",
                // A change of a table, made only where it is missing.
                "SET @",
                "PREPARE ",
                "EXECUTE ",
                "DEALLOCATE PREPARE ",
                "UPDATE ",
            ];
            let again = again.iter().any(|start| statement.starts_with(start));
            // Or made once, and found there when it is made again.
            let adds_one = is_alteration(&statement) && statement.matches(" ADD ").count() == 1;
            // Or leaves alone what is there.
            let keeps = statement.starts_with("INSERT INTO ")
                && statement.contains("ON DUPLICATE KEY UPDATE");
            assert!(again || adds_one || keeps, "{statement}");
        }
    }
}

//! What the server is set to, and whether a ledger can keep its word on it.

use sale::Clock;

use super::{migrations, text::quoted};
use crate::sql::{
    columns::get,
    failure::{Failure, Outcome},
    session::Session,
    upkeep::now_ms,
};

/// A clock further away than this from ours deserves a look. Orders are due only when both say so, so
/// nothing breaks; but logs of the two no longer tell one story.
const CLOCK_OFFSET_MS_MAX: i64 = 1_000;
/// The oldest servers with all we use: CHECK, NOWAIT, window functions; of TiDB foreign keys, too.
const MYSQL_OLDEST: [u32; 3] = [8, 0, 16];
const MARIADB_OLDEST: [u32; 3] = [10, 6, 0];
const TIDB_OLDEST: [u32; 3] = [8, 5, 0];
pub(super) const OLDEST: &str =
    "MySQL 8.0.16, MariaDB 10.6 and TiDB 8.5 are the oldest that will do";
/// What TiDB puts between the version of MySQL that it speaks as and its own.
const TIDB: &str = "-TiDB-v";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fitness {
    Good,
    /// It works, and somebody should know.
    Risky,
    /// The ledger cannot keep its promises on this server.
    Bad,
}

/// One thing the server is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSetting {
    pub name: &'static str,
    pub value: String,
    pub fitness: Fitness,
    /// What it means, if it is not good.
    pub advice: &'static str,
}

impl ServerSetting {
    fn new(name: &'static str, value: impl ToString, bad: Option<(Fitness, &'static str)>) -> Self {
        let (fitness, advice) = bad.unwrap_or((Fitness::Good, ""));
        ServerSetting { name, value: value.to_string(), fitness, advice }
    }
}

/// The first three numbers of a version.
fn numbers(text: &str) -> [u32; 3] {
    let mut numbers = [0; 3];
    let parts = text.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    for (number, part) in numbers.iter_mut().zip(parts) {
        *number = part.parse().unwrap_or(0);
    }
    numbers
}

fn is_tidb(version: &str) -> bool {
    version.contains(TIDB)
}

/// Is this server too old for the statements we use?
pub(super) fn too_old(version: &str) -> bool {
    match version.split_once(TIDB) {
        Some((_, own)) => numbers(own) < TIDB_OLDEST,
        None if version.contains("MariaDB") => numbers(version) < MARIADB_OLDEST,
        None => numbers(version) < MYSQL_OLDEST,
    }
}

pub(super) async fn version(session: &mut dyn Session) -> Outcome<String> {
    let version = session.first("SELECT VERSION()", &[], |row| get(row, 0)).await?;
    version.ok_or_else(|| Failure::Broken("the server has no version".into()))
}

/// A global variable, if this server has it.
async fn variable(session: &mut dyn Session, name: &str) -> Outcome<Option<String>> {
    // SHOW answers no row for a variable it does not know, where SELECT @@ would be an error.
    let sql = format!("SHOW GLOBAL VARIABLES LIKE '{name}'");
    Ok(session.rows(&sql, &[], |row| get::<String>(row, 1)).await?.pop())
}

fn is_on(value: &str) -> bool {
    value == "1" || value.eq_ignore_ascii_case("on")
}

pub(super) async fn settings(
    session: &mut dyn Session,
    clock: &dyn Clock,
    connections_max: usize,
) -> Outcome<Vec<ServerSetting>> {
    let version = version(session).await?;
    let old = too_old(&version).then_some((Fitness::Bad, OLDEST));
    let mut settings = vec![ServerSetting::new("version", &version, old)];
    if is_tidb(&version) {
        settings.extend(tidb(session).await?);
    } else {
        settings.extend(durability(session).await?);
        settings.extend(role(session).await?);
    }
    settings.push(isolation(session).await?);
    settings.push(clock_offset(session, clock).await?);
    settings.push(audit(session).await?);
    settings.push(checks(session).await?);
    settings.push(room(session, connections_max).await?);
    Ok(settings)
}

/// How many instances like this one fit on the server, beside whoever else is connected.
async fn room(session: &mut dyn Session, connections_max: usize) -> Outcome<ServerSetting> {
    let number = |text: Option<String>| text.and_then(|text| text.parse::<usize>().ok());
    let allowed = number(variable(session, "max_connections").await?).unwrap_or(0);
    if allowed == 0 {
        // So TiDB says it.
        return Ok(ServerSetting::new("max_connections", "without a bound", None));
    }
    let sql = "SHOW GLOBAL STATUS LIKE 'Threads_connected'";
    let open = number(session.rows(sql, &[], |row| get::<String>(row, 1)).await?.pop());
    // One is for whoever has to mend the server.
    let fit = allowed.saturating_sub(1) / connections_max.max(1);
    let free = allowed.saturating_sub(1 + open.unwrap_or(0));
    let value = format!(
        "{allowed} ({free} free): room for {fit} instances with ledger.connections_max = {connections_max}"
    );
    let scarce = (
        Fitness::Risky,
        "two instances, or one more beside those that are connected now, do not fit: raise max_connections \
         of the server, or lower ledger.connections_max",
    );
    let short = fit < 2 || free < connections_max;
    Ok(ServerSetting::new("max_connections", value, short.then_some(scarce)))
}

/// The audit refuses changes by triggers, which a user without the right could not make and TiDB does not
/// know. Then it is as safe if our own user has no right to change it.
async fn audit(session: &mut dyn Session) -> Outcome<ServerSetting> {
    let wanted = migrations::triggers();
    let names: Vec<String> = wanted.iter().map(|name| quoted(name)).collect();
    let sql = format!(
        "SELECT COUNT(*) FROM information_schema.triggers
         WHERE trigger_schema = DATABASE() AND trigger_name IN ({})",
        names.join(",")
    );
    let found = session.first(&sql, &[], |row| get::<u64>(row, 0)).await?.unwrap_or(0);
    let value = format!("{found} of {}", wanted.len());
    if found == wanted.len() as u64 {
        return Ok(ServerSetting::new("audit_triggers", value, None));
    }
    if is_append_only(session).await? {
        let value = format!("{value}, and this user may only append");
        return Ok(ServerSetting::new("audit_triggers", value, None));
    }
    let missing = (
        Fitness::Risky,
        "the audit is append-only by our word alone, and whoever has the database's password can rewrite \
         it: make the triggers of 0001_init.sql as a superuser, or (TiDB has no triggers) let `seckill \
         migrate` make the tables and serve as a user who may only SELECT and INSERT in tb_admin_audit",
    );
    Ok(ServerSetting::new("audit_triggers", value, Some(missing)))
}

/// Is our user refused whatever would change the audit? Asked of a row that is never there.
async fn is_append_only(session: &mut dyn Session) -> Outcome<bool> {
    let changes = [
        "UPDATE tb_admin_audit SET who = who WHERE id = 0",
        "DELETE FROM tb_admin_audit WHERE id = 0",
    ];
    for change in changes {
        match session.execute(change, &[]).await {
            Err(failure) if failure.is_forbidden() => {}
            // Whatever else is in the way says nothing about rights.
            Err(_) | Ok(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// The archive makes tables for each month while it runs, which a user whose rights were given table by table
/// may not. Asked of a table that is there already, so that nothing is made.
pub(super) async fn archive_tables(session: &mut dyn Session) -> Outcome<ServerSetting> {
    let name = "archive_tables";
    let refused = (
        Fitness::Risky,
        "jobs.archive_after_ms is set, and this user may not make the tables of a month, so nothing is \
         archived: GRANT CREATE on the database, or set it to 0",
    );
    match session.execute(migrations::VERSIONS, &[]).await {
        Ok(_) => Ok(ServerSetting::new(name, "made when they are needed", None)),
        Err(failure) if failure.may_not_make_tables() => {
            Ok(ServerSetting::new(name, "refused", Some(refused)))
        }
        Err(failure) => Err(failure),
    }
}

/// The rules of columns and rows that the tables were made with. TiDB passes over them unless told not to.
async fn checks(session: &mut dyn Session) -> Outcome<ServerSetting> {
    let wanted = migrations::checks();
    let names: Vec<String> = wanted.iter().map(|name| quoted(name)).collect();
    let sql = format!(
        "SELECT COUNT(DISTINCT constraint_name) FROM information_schema.check_constraints
         WHERE constraint_schema = DATABASE() AND constraint_name IN ({})",
        names.join(",")
    );
    let found = session.first(&sql, &[], |row| get::<u64>(row, 0)).await?.unwrap_or(0);
    let missing = (
        Fitness::Risky,
        "nothing but this program keeps a stock from falling below zero: tables that were made while CHECK \
         was switched off have none, add them by hand or start on an empty database",
    );
    let few = (found < wanted.len() as u64).then_some(missing);
    Ok(ServerSetting::new("check_constraints", format!("{found} of {}", wanted.len()), few))
}

/// What only TiDB can be set to. Where it keeps its rows, and when they are safe there, are no settings of
/// this server.
async fn tidb(session: &mut dyn Session) -> Outcome<Vec<ServerSetting>> {
    let name = "tidb_enable_check_constraint";
    let value = variable(session, name).await?.unwrap_or_default();
    let ignored = (
        Fitness::Risky,
        "CHECK constraints are ignored: SET GLOBAL tidb_enable_check_constraint = ON before the tables are \
         made",
    );
    let checks = ServerSetting::new(name, &value, (!is_on(&value)).then_some(ignored));
    let name = "tidb_txn_mode";
    let value = variable(session, name).await?.unwrap_or_default();
    let optimistic = (
        Fitness::Bad,
        "rows are not locked before they are changed, so that batches of one item fail against each other: \
         SET GLOBAL tidb_txn_mode = 'pessimistic'",
    );
    let locks = value.eq_ignore_ascii_case("pessimistic");
    let mode = ServerSetting::new(name, &value, (!locks).then_some(optimistic));
    Ok(vec![checks, mode, numbers_in_order(session).await?])
}

/// Lists, pages of them, and the order in which a shop is told of one order go by the numbers of rows.
async fn numbers_in_order(session: &mut dyn Session) -> Outcome<ServerSetting> {
    let mut without = Vec::new();
    for table in migrations::numbered_tables() {
        let sql = format!("SHOW CREATE TABLE {table}");
        let made = session.first(&sql, &[], |row| get::<String>(row, 1)).await?;
        if !made.is_some_and(|made| asks_for_order(&made)) {
            without.push(table);
        }
    }
    let apart = (
        Fitness::Bad,
        "each server numbers the rows of these tables in a range of its own, so that later rows come before \
         earlier ones: make them anew with AUTO_ID_CACHE 1, as our migrations do",
    );
    Ok(if without.is_empty() {
        ServerSetting::new("auto_id_cache", 1, None)
    } else {
        ServerSetting::new("auto_id_cache", format!("not 1 of {}", without.join(", ")), Some(apart))
    })
}

/// TiDB's own words about a table whose rows are numbered by one server for all.
fn asks_for_order(made: &str) -> bool {
    made.contains("AUTO_ID_CACHE=1 ")
}

async fn durability(session: &mut dyn Session) -> Outcome<Vec<ServerSetting>> {
    let mut settings = Vec::new();
    let name = "innodb_flush_log_at_trx_commit";
    let value = variable(session, name).await?.unwrap_or_default();
    let weak = (Fitness::Bad, "a crash of the machine loses committed orders: set it to 1");
    settings.push(ServerSetting::new(name, &value, (value != "1").then_some(weak)));

    let log_bin = is_on(&variable(session, "log_bin").await?.unwrap_or_default());
    let value = variable(session, "sync_binlog").await?.unwrap_or_default();
    let late = (
        Fitness::Risky,
        "the binary log is not flushed at commit, so replicas may miss orders after a crash: set it to 1",
    );
    settings.push(ServerSetting::new(
        "sync_binlog",
        &value,
        (log_bin && value != "1").then_some(late),
    ));

    let value = variable(session, "binlog_format").await?.unwrap_or_default();
    let statements = (
        Fitness::Bad,
        "READ COMMITTED cannot be logged as statements: set binlog_format to ROW or MIXED",
    );
    let bad = log_bin && value.eq_ignore_ascii_case("statement");
    settings.push(ServerSetting::new("binlog_format", &value, bad.then_some(statements)));

    let value = variable(session, "innodb_doublewrite").await?.unwrap_or_default();
    let torn = (Fitness::Risky, "a page half written in a crash is lost: turn it on");
    let bad = value.eq_ignore_ascii_case("off") || value == "0";
    settings.push(ServerSetting::new("innodb_doublewrite", &value, bad.then_some(torn)));
    Ok(settings)
}

/// What the server is in its cluster.
async fn role(session: &mut dyn Session) -> Outcome<Vec<ServerSetting>> {
    let value = variable(session, "read_only").await?.unwrap_or_default();
    let replica = (Fitness::Bad, "this is a replica, or its primary was demoted: use the primary");
    let read_only = ServerSetting::new("read_only", &value, is_on(&value).then_some(replica));
    let value = variable(session, "wsrep_on").await?.unwrap_or_else(|| "OFF".into());
    let galera = (
        Fitness::Risky,
        "send all instances to one Galera node: conflicts show only at commit, GET_LOCK and the \
         order of stock log ids are each node's own",
    );
    let wsrep = ServerSetting::new("wsrep_on", &value, is_on(&value).then_some(galera));
    Ok(vec![read_only, wsrep])
}

/// The server's default; our own sessions set theirs.
async fn isolation(session: &mut dyn Session) -> Outcome<ServerSetting> {
    let value = match variable(session, "transaction_isolation").await? {
        Some(value) => Some(value),
        // MariaDB before 11.1.
        None => variable(session, "tx_isolation").await?,
    };
    Ok(ServerSetting::new("transaction_isolation", value.unwrap_or_default(), None))
}

async fn clock_offset(session: &mut dyn Session, clock: &dyn Clock) -> Outcome<ServerSetting> {
    let before_ms = clock.now_ms();
    let theirs_ms = now_ms(session, before_ms).await?;
    // Half of the journey there and back.
    let ours_ms = before_ms + (clock.now_ms() - before_ms) / 2;
    let offset_ms = theirs_ms - ours_ms;
    let apart = (Fitness::Risky, "the clocks differ by more than a second: check NTP on both");
    let far = offset_ms.abs() > CLOCK_OFFSET_MS_MAX;
    Ok(ServerSetting::new("clock_offset_ms", offset_ms, far.then_some(apart)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_told_by_their_version() {
        for old in [
            "5.7.44-log",
            "8.0.15",
            "10.3.39-MariaDB-0+deb10u2",
            "10.5.23-MariaDB",
            "8.0.11-TiDB-v7.5.4",
            "5.7.25-TiDB-v6.1.0",
        ] {
            assert!(too_old(old), "{old}");
        }
        for good in [
            "8.0.16",
            "8.4.3",
            "9.7.4-2",
            "10.6.0-MariaDB",
            "11.4.2-MariaDB-ubu2404",
            // It speaks as a MySQL that would be too old.
            "8.0.11-TiDB-v8.5.6",
            "8.0.11-TiDB-v9.0.0-beta.2",
        ] {
            assert!(!too_old(good), "{good}");
        }
    }

    #[test]
    fn tidb_says_of_a_table_how_its_rows_are_numbered() {
        let made = |cache: &str| {
            format!("CREATE TABLE `t` (`a` bigint NOT NULL AUTO_INCREMENT) ENGINE=InnoDB {cache}")
        };
        assert!(asks_for_order(&made("/*T![auto_id_cache] AUTO_ID_CACHE=1 */")));
        assert!(!asks_for_order(&made("/*T![auto_id_cache] AUTO_ID_CACHE=100 */")));
        assert!(!asks_for_order(&made("")));
    }
}

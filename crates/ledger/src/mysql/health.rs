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
/// The oldest servers with all we use: CHECK, SKIP LOCKED, window functions.
const MYSQL_OLDEST: [u32; 3] = [8, 0, 16];
const MARIADB_OLDEST: [u32; 3] = [10, 6, 0];

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

/// A version as numbers, and whether it is MariaDB's.
fn version_of(text: &str) -> ([u32; 3], bool) {
    let mut numbers = [0; 3];
    let parts = text.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    for (number, part) in numbers.iter_mut().zip(parts) {
        *number = part.parse().unwrap_or(0);
    }
    (numbers, text.contains("MariaDB"))
}

/// Is this server too old for the statements we use?
pub(super) fn too_old(version: &str) -> bool {
    let (numbers, mariadb) = version_of(version);
    numbers < if mariadb { MARIADB_OLDEST } else { MYSQL_OLDEST }
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
    let old = (Fitness::Bad, "MySQL 8.0.16 or MariaDB 10.6 is the oldest that will do");
    let mut settings =
        vec![ServerSetting::new("version", &version, too_old(&version).then_some(old))];
    settings.extend(durability(session).await?);
    settings.extend(role(session).await?);
    settings.push(isolation(session).await?);
    settings.push(clock_offset(session, clock).await?);
    settings.push(triggers(session).await?);
    settings.push(room(session, connections_max).await?);
    Ok(settings)
}

/// How many instances like this one fit on the server, beside whoever else is connected.
async fn room(session: &mut dyn Session, connections_max: usize) -> Outcome<ServerSetting> {
    let number = |text: Option<String>| text.and_then(|text| text.parse::<usize>().ok());
    let allowed = number(variable(session, "max_connections").await?).unwrap_or(0);
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

/// The audit refuses changes by triggers, which a user without the right could not make.
async fn triggers(session: &mut dyn Session) -> Outcome<ServerSetting> {
    let wanted = migrations::triggers();
    let names: Vec<String> = wanted.iter().map(|name| quoted(name)).collect();
    let sql = format!(
        "SELECT COUNT(*) FROM information_schema.triggers
         WHERE trigger_schema = DATABASE() AND trigger_name IN ({})",
        names.join(",")
    );
    let found = session.first(&sql, &[], |row| get::<u64>(row, 0)).await?.unwrap_or(0);
    let missing = (
        Fitness::Risky,
        "whoever has the database's password can rewrite the audit: make the triggers of \
         0001_init.sql as a superuser, or set log_bin_trust_function_creators and start on an \
         empty database",
    );
    let value = format!("{found} of {}", wanted.len());
    Ok(ServerSetting::new(
        "audit_triggers",
        value,
        (found < wanted.len() as u64).then_some(missing),
    ))
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
    use super::too_old;

    #[test]
    fn old_servers_are_told_by_their_version() {
        for old in ["5.7.44-log", "8.0.15", "10.3.39-MariaDB-0+deb10u2", "10.5.23-MariaDB"] {
            assert!(too_old(old), "{old}");
        }
        for good in ["8.0.16", "8.4.3", "9.1.0", "10.6.0-MariaDB", "11.4.2-MariaDB-ubu2404"] {
            assert!(!too_old(good), "{good}");
        }
    }
}

//! `seckill doctor`: is this machine, with these settings, fit for a sale?

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use crate::{serve::Running, terminal};
use config::{Config, Profile};
use engine::{
    LEDGER_FILE, SANDBOX_FILE, check_providers,
    checkup::{CheckResult, broker, machine, mysql, redis},
    data_dir::{DataDir, DataDirError},
};

/// A promise is one fsync away. Slower than this, buyers notice.
const FSYNC_SLOW: Duration = Duration::from_millis(20);
const FSYNC_ROUNDS: u32 = 20;
const OTHER_FILES: u64 = 256;

/// Prints what it finds. True if nothing must be mended.
pub(super) async fn doctor(config: &Config) -> bool {
    let mut findings = data(config).await;
    findings.extend(machine(nearest(&config.data)).map(|(_, found)| found));
    findings.push(open_files(config));
    findings.extend(of_settings(config));
    findings.extend(check_providers(&config.engine().providers));
    if config.profile == Profile::Cluster {
        findings.extend(redis::check(&config.redis).await);
        let archives = config.jobs.archive_after_ms > 0;
        findings.extend(mysql::check(&config.ledger, archives).await);
    }
    findings.extend(broker::check(&config.engine()).await);
    let looks = terminal::somebody_looks();
    findings.iter().for_each(|finding| println!("{}", line(finding, looks)));
    !findings.iter().any(|found| matches!(found, CheckResult::Fail(_) | CheckResult::Refuse(_)))
}

/// What the settings alone say.
fn of_settings(config: &Config) -> Vec<CheckResult> {
    let dangers = config.dangers().into_iter().map(CheckResult::Danger);
    let missing = config.missing().into_iter().chain(config.warnings());
    dangers.chain(missing.map(CheckResult::Warn)).collect()
}

fn line(finding: &CheckResult, somebody_looks: bool) -> String {
    match finding {
        CheckResult::Ok(text) => format!("  ok    {text}"),
        CheckResult::Warn(text) => format!("  warn  {text}"),
        CheckResult::Danger(text) => terminal::red(&format!("  RISK  {text}"), somebody_looks),
        CheckResult::Fail(text) | CheckResult::Refuse(text) => {
            terminal::red(&format!("  FAIL  {text}"), somebody_looks)
        }
    }
}

fn open_files(config: &Config) -> CheckResult {
    let wanted = config.http.connections_max as u64 + OTHER_FILES;
    match rlimit::increase_nofile_limit(wanted) {
        Ok(given) if given >= wanted => CheckResult::Ok(format!("{given} open files are allowed")),
        Ok(given) => CheckResult::Warn(format!(
            "{given} open files are allowed, http.connections_max wants {wanted}: raise `ulimit -n`"
        )),
        Err(error) => CheckResult::Warn(format!("the limit of open files cannot be read: {error}")),
    }
}

/// The directory itself, or where it will be made.
fn nearest(data: &Path) -> &Path {
    data.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."))
}

async fn data(config: &Config) -> Vec<CheckResult> {
    if !config.data.exists() {
        let shown = std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone());
        let text = format!("{} is not there yet: the first start makes it", shown.display());
        return vec![CheckResult::Ok(text), fsync(nearest(&config.data))];
    }
    match DataDir::open(&config.data) {
        Ok(data) => {
            let mut findings = vec![
                CheckResult::Ok(format!("{} is free and can be written", data.path().display())),
                fsync(data.path()),
            ];
            for file in [LEDGER_FILE, gate::solo::JOURNAL_FILE, SANDBOX_FILE] {
                findings.extend(database(&data.file(file)));
            }
            let elsewhere = &config.payment.sandbox_file;
            if !elsewhere.as_os_str().is_empty() {
                findings.extend(database(elsewhere));
            }
            findings
        }
        Err(DataDirError::InUse(..)) => vec![running_server(&config.data).await],
        Err(other) => vec![CheckResult::Fail(other.to_string())],
    }
}

async fn running_server(data: &Path) -> CheckResult {
    let Some(running) = Running::read(data) else {
        return CheckResult::Fail(
            "the data directory is in use, but not by a server that answers".into(),
        );
    };
    let mut api = client::Api::new(running.address, Some(&running.token));
    match api.get("/readyz").await {
        Ok(answer) if answer.status == 200 && answer.json()["settle"] == "ok" => {
            CheckResult::Ok(format!("a server is running at {} and is ready", running.address))
        }
        Ok(answer) if answer.status == 200 => CheckResult::Warn(format!(
            "the server at {} sells, but claims do not become orders: {}",
            running.address,
            String::from_utf8_lossy(&answer.body)
        )),
        Ok(answer) => CheckResult::Fail(format!(
            "the server at {} is not ready: {}",
            running.address,
            String::from_utf8_lossy(&answer.body)
        )),
        Err(error) => {
            CheckResult::Fail(format!("the server at {} is silent: {error}", running.address))
        }
    }
}

/// How long a promise takes on this disk: the median of a few small synced writes.
fn fsync(data: &Path) -> CheckResult {
    let path = data.join("doctor.tmp");
    let measured = (|| -> std::io::Result<Duration> {
        let mut file = File::create(&path)?;
        let mut times = Vec::new();
        for _ in 0..FSYNC_ROUNDS {
            let started = Instant::now();
            file.write_all(&[0; 4_096])?;
            file.sync_data()?;
            times.push(started.elapsed());
        }
        times.sort();
        Ok(times[times.len() / 2])
    })();
    let _ = fs::remove_file(&path);
    match measured {
        Ok(time) if time > FSYNC_SLOW => CheckResult::Warn(format!(
            "the disk takes {time:.1?} to keep a promise: buyers will wait for it"
        )),
        Ok(time) => CheckResult::Ok(format!("the disk keeps a promise in {time:.1?}")),
        Err(error) => CheckResult::Fail(format!("the disk cannot be written: {error}")),
    }
}

/// SQLite's own check of a file, if there is one yet.
fn database(path: &Path) -> Option<CheckResult> {
    if !path.exists() {
        return None;
    }
    let name = path.file_name()?.to_string_lossy().into_owned();
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
    let checked = rusqlite::Connection::open_with_flags(path, flags).and_then(|db| {
        // Looked at, and left as it is: whoever owns it secures it first.
        sqlite_file::leave_untouched_on_close(&db);
        db.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0))
    });
    Some(match checked {
        Ok(verdict) if verdict == "ok" => CheckResult::Ok(format!("{name} is whole")),
        Ok(verdict) => CheckResult::Fail(format!("{name} is damaged: {verdict}")),
        Err(error) => CheckResult::Fail(format!("{name} cannot be read: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Secret, Switch};

    #[tokio::test]
    async fn a_damaged_file_is_found_whichever_it_is() {
        for file in [LEDGER_FILE, gate::solo::JOURNAL_FILE, SANDBOX_FILE] {
            let home = tempfile::tempdir().unwrap();
            let mut config = Config::defaults();
            config.data = home.path().join("data");
            assert!(doctor(&config).await, "a directory that is still to be made is fine");
            assert!(!config.data.exists(), "looking makes nothing");
            fs::create_dir(&config.data).unwrap();
            fs::write(config.data.join(file), [b'x'; 4_096]).unwrap();
            assert!(!doctor(&config).await, "{file}");
        }
    }

    #[test]
    fn what_orders_can_be_paid_with_is_said_and_in_red_if_it_is_nothing() {
        let mut config = Config::defaults();
        assert_eq!(of_settings(&config), []);
        config.auth.jwt_secret = Secret::new("the shop's own secret");
        let [CheckResult::Warn(unpaid)] = &of_settings(&config)[..] else {
            panic!("it has no provider")
        };
        assert!(unpaid.starts_with("no order can be paid"), "{unpaid}");
        config.payment.sandbox = Switch::On;
        let found = of_settings(&config);
        let [danger @ CheckResult::Danger(text)] = &found[..] else { panic!("{found:?}") };
        assert!(text.contains("paid without money"), "{text}");
        assert_eq!(line(danger, true), format!("\x1b[1;31m  RISK  {text}\x1b[0m"));
        assert_eq!(line(danger, false), format!("  RISK  {text}"));
    }

    #[tokio::test]
    async fn in_a_cluster_its_engines_are_looked_at() {
        let home = tempfile::tempdir().unwrap();
        let mut config = Config::defaults();
        config.data = home.path().into();
        config.profile = Profile::Cluster;
        config.redis.url = Secret::new("redis://127.0.0.1:1");
        config.ledger.url = Secret::new("mysql://root@127.0.0.1:1/none");
        assert!(!doctor(&config).await);
    }
}

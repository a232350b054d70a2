//! A copy of a solo data directory, made while the server sells.
//!
//! Copying the files would not do: each is being written, and they change one after the other. So every
//! database is copied by SQLite in one read transaction, which holds up nobody, in this order:
//!
//! 1. the journal: all claims that were acknowledged up to now, and up to which of them the ledger has;
//! 2. the ledger: it has all that the journal's copy says it has, and perhaps more. A claim that is in
//!    both is settled again, which changes nothing. The other way round, orders that were written
//!    between the two copies would be in neither;
//! 3. the months of the archive: what the ledger's copy does not have any more is in them, for nothing is
//!    deleted there before it is kept here. What moves meanwhile is in both, and told once;
//! 4. the sandbox's bank, which is asked and never asks.
//!
//! Then the copy is opened, and the gate in it brought up to the ledger by the same comparison that runs
//! every five minutes. So a backup is known to be good when it is made, not when it is needed. It gets
//! its name last: what has it is whole.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags};

use super::{
    Failure,
    admin_api::{AdminApi, no_data_in},
    reconcile::reconcile,
};
use config::{Config, Profile, Secret};
use engine::{LEDGER_FILE, SANDBOX_FILE, secrets};

/// What the copy is called until it is whole.
const UNFINISHED: &str = "unfinished";
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// Back up the data directory to `to`. Answers how many differences are left in the copy.
pub(super) async fn backup(mut config: Config, to: &Path, json: bool) -> Result<usize, Failure> {
    if config.profile == Profile::Cluster {
        let instead = "the cluster profile keeps nothing on this machine: dump its ledger \
                       (docs/OPERATIONS.md, backup of a cluster)";
        return Err(Failure::Cannot(instead.into()));
    }
    if !config.data.join(LEDGER_FILE).is_file() {
        return Err(no_data_in(&config.data));
    }
    if to.exists() {
        return Err(Failure::Cannot(format!(
            "{} is there already; name a new folder",
            to.display()
        )));
    }
    let copy = unfinished(to)?;
    copy_all(&config.data, &copy)
        .map_err(|cause| format!("{} could not be copied: {cause}", config.data.display()))?;
    config.data = copy.clone();
    // What the comparison finds in a copy is nobody's emergency.
    config.alerts.webhook_url = Secret::new("");
    config.alerts.robots.clear();
    let api = AdminApi::open(config).await?;
    let left = reconcile(&api, true, json).await;
    api.close().await;
    let left = left?;
    wait_closed(&copy)?;
    sync_all(&copy)?;
    fs::rename(&copy, to)?;
    Ok(left)
}

/// An empty folder beside `to`, for the owner only. What an earlier try left there is removed.
fn unfinished(to: &Path) -> Result<PathBuf, Failure> {
    let name = to.file_name().ok_or("name the folder that the backup is to be")?;
    let folder = to.with_file_name(format!("{}.{UNFINISHED}", name.to_string_lossy()));
    match fs::remove_dir_all(&folder) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause.into()),
        _ => {}
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|cause| format!("{} cannot be made: {cause}", folder.display()))?;
    Ok(folder)
}

fn months_of_archive(data: &Path) -> io::Result<Vec<String>> {
    let mut months = Vec::new();
    for entry in fs::read_dir(data)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if ledger::sqlite::is_month_of_archive(&name) {
            months.push(name);
        }
    }
    Ok(months)
}

fn copy_if_there(data: &Path, copy: &Path, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let file = data.join(name);
    if file.is_file() { copy_database(&file, &copy.join(name)) } else { Ok(()) }
}

/// In this order; see above.
fn copy_all(data: &Path, copy: &Path) -> Result<(), Box<dyn std::error::Error>> {
    for name in [gate::solo::JOURNAL_FILE, LEDGER_FILE] {
        copy_if_there(data, copy, name)?;
    }
    // Looked for when the ledger is copied: a month that was made meanwhile holds nothing that is missing
    // in it.
    for name in months_of_archive(data)? {
        copy_if_there(data, copy, &name)?;
    }
    copy_if_there(data, copy, SANDBOX_FILE)?;
    let secret = data.join(secrets::FILE);
    if secret.is_file() {
        let mut private = OpenOptions::new();
        let mut file =
            private.write(true).create_new(true).mode(0o600).open(copy.join(secrets::FILE))?;
        io::copy(&mut File::open(secret)?, &mut file)?;
    }
    Ok(())
}

/// As it is at one instant. Writers go on meanwhile.
fn copy_database(from: &Path, to: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let target = to.to_str().ok_or("the name of the folder is not text")?;
    let source = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    source.execute("VACUUM INTO ?1", [target])?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o600))?;
    Ok(())
}

/// Connections are closed by threads of their own; the last of each database takes its log with it.
fn wait_closed(folder: &Path) -> io::Result<()> {
    let deadline = Instant::now() + CLOSED_WITHIN;
    loop {
        let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
        let open =
            entries.iter().any(|entry| entry.file_name().to_string_lossy().ends_with("-wal"));
        // One that is left behind is a part of its database, and no harm.
        if !open || Instant::now() >= deadline {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A backup that a power cut takes away is none.
fn sync_all(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        File::open(entry?.path())?.sync_all()?;
    }
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_has_the_months_of_the_archive_and_nothing_that_is_not_ours() {
        let home = tempfile::tempdir().unwrap();
        let (data, copy) = (home.path().join("data"), home.path().join("copy"));
        for folder in [&data, &copy] {
            fs::create_dir(folder).unwrap();
        }
        let names = [LEDGER_FILE, "archive-2026-11.db", "archive-2027-01.db", "notes.db"];
        for name in names {
            let file = Connection::open(data.join(name)).unwrap();
            file.execute_batch(
                "PRAGMA journal_mode = WAL; CREATE TABLE t (a); INSERT INTO t VALUES (7)",
            )
            .unwrap();
        }
        copy_all(&data, &copy).unwrap();
        for name in &names[..3] {
            let file = copy.join(name);
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
            let found = Connection::open(file).unwrap();
            let seven: i64 = found.query_row("SELECT a FROM t", [], |row| row.get(0)).unwrap();
            assert_eq!(seven, 7);
        }
        assert!(!copy.join("notes.db").exists());
    }
}

//! A file that promises, on a disk that fails and forgets.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use faults::disk::{self, Fault, ForgetfulDisk};
use rusqlite::Connection;
use sqlite_file::{Length, close_untouched, is_in_doubt, secure, sync_names, use_wal};

/// Tells the process that makes promises where it shall work.
const PLACE: &str = "SQLITE_FILE_STORY";
const ROUNDS: u64 = 8;
/// Tells it how long the WAL may become.
const PAGES: &str = "SQLITE_FILE_STORY_PAGES";
/// So short that the file is checkpointed often, and so long that it never is.
const WAL_PAGES_MAX: [u32; 2] = [8, 1_000];

/// One writer as the journal and the ledger have it: a connection that waits for the disk, one that
/// does not, and checkpoints in between.
struct Writer {
    file: PathBuf,
    length: Length,
    open: Option<(Connection, Connection)>,
}

impl Writer {
    fn connections(&mut self) -> Result<&(Connection, Connection), String> {
        if self.open.is_none() {
            secure(&self.file).map_err(|error| error.to_string())?;
            let durable = self.connect("FULL").map_err(|error| error.to_string())?;
            let relaxed = self.connect("NORMAL").map_err(|error| error.to_string())?;
            let table = "CREATE TABLE IF NOT EXISTS promise (n INTEGER PRIMARY KEY, filler);
                         CREATE TABLE IF NOT EXISTS scratch (n)";
            durable.execute_batch(table).map_err(|error| error.to_string())?;
            sync_names(&self.file).map_err(|error| error.to_string())?;
            self.open = Some((durable, relaxed));
        }
        Ok(self.open.as_ref().unwrap())
    }

    fn connect(&self, synchronous: &str) -> rusqlite::Result<Connection> {
        let mut connection = Connection::open(&self.file)?;
        use_wal(&connection)?;
        connection.pragma_update(None, "synchronous", synchronous)?;
        self.length.watch(&mut connection)?;
        Ok(connection)
    }

    /// True if it is promised.
    fn promise(&mut self, n: u64) -> bool {
        let length = self.length.clone();
        let Ok((durable, relaxed)) = self.connections() else { return false };
        let done = relaxed
            .execute("INSERT INTO scratch VALUES (?)", [n])
            .and_then(|_| {
                let filler = "INSERT OR REPLACE INTO promise VALUES (?, randomblob(3000))";
                durable.execute(filler, [n])
            })
            .map(|_| ());
        // A look at the file that holds a checkpoint up half way.
        let look = Connection::open(&self.file).ok();
        if let Some(look) = look.as_ref().filter(|_| n.is_multiple_of(2)) {
            let _ = look.execute_batch("BEGIN; SELECT count(*) FROM promise");
        }
        let (durable, _) = self.open.as_ref().unwrap();
        let checkpointed = length.check(durable);
        if let Some(look) = look {
            close_untouched(look);
        }
        let in_doubt =
            [&done, &checkpointed].into_iter().any(|r| r.as_ref().is_err_and(is_in_doubt));
        if in_doubt {
            let (durable, relaxed) = self.open.take().unwrap();
            close_untouched(relaxed);
            close_untouched(durable);
        }
        done.is_ok()
    }
}

#[test]
#[ignore = "started by the stories of this file, on a disk that fails"]
fn promises_are_made() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    let told = place.with_extension("told");
    let mut told = fs::File::options().create(true).append(true).open(told).unwrap();
    let length = Length::new(std::env::var(PAGES).unwrap().parse().unwrap());
    let mut writer = Writer { file: place.join("x.db"), length, open: None };
    let first = u64::from(std::process::id()) * ROUNDS;
    for n in first..first + ROUNDS {
        let tries = (0..9).find(|_| writer.promise(n));
        assert!(tries.is_some(), "one failure of the disk must not be for ever");
        writeln!(told, "{n}").unwrap();
    }
    std::process::exit(0);
}

fn promise(disk: &ForgetfulDisk, data: &Path, pages_max: u32) -> Option<i32> {
    let mut command = disk::again("promises_are_made").unwrap();
    command.envs(disk.env()).env(PLACE, data).env(PAGES, pages_max.to_string());
    command.output().unwrap().status.code()
}

/// False if nothing failed.
fn a_promise_outlives_the_power_cut(fault: Fault) -> bool {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir(&data).unwrap();
    let disk = ForgetfulDisk::under(&data).unwrap();
    disk.fail("x", fault).unwrap();
    let pages_max = WAL_PAGES_MAX[fault.at as usize % WAL_PAGES_MAX.len()];
    let ended = promise(&disk, &data, pages_max);
    let hit = disk.hits().unwrap() > 0;
    disk.heal().unwrap();
    match ended {
        // Killed, with all that was in memory still there: the next process promises more.
        Some(disk::DIED) => assert_eq!(promise(&disk, &data, pages_max), Some(0), "{fault:?}"),
        ended => assert_eq!(ended, Some(0), "{fault:?}"),
    }
    disk.power_cut().unwrap();
    let file = Connection::open(data.join("x.db")).unwrap();
    let whole: String = file.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(whole, "ok", "{fault:?}");
    for n in fs::read_to_string(data.with_extension("told")).unwrap().lines() {
        let there = file.query_row("SELECT n FROM promise WHERE n = ?", [n], |_| Ok(()));
        assert!(there.is_ok(), "{n} was promised and is gone: {fault:?}");
    }
    hit
}

#[test]
fn whatever_the_disk_does_a_promise_outlives_the_power_cut() {
    disk::at_every_operation(3, a_promise_outlives_the_power_cut);
}

//! What a SQLite file in WAL mode needs to keep its word on a disk that fails.
//!
//! **The trap.** When the kernel cannot write a page of a file to the disk, it says so once, to the
//! next `fsync`, and from then on takes the page for clean. The next `fsync` succeeds without writing
//! it. Until the page leaves memory it reads as if all were well; after a power cut it is what it was
//! before. SQLite appends to the WAL, and reads it back after a crash from its beginning up to the
//! first frame that does not fit. So a lost page in the WAL is a hole, and everything promised after
//! the hole, however well it was synced, is gone with it.
//!
//! **Which bytes can be lost.** Only such as no `fsync` has covered since they were written:
//!
//! - frames of the commit that failed: nobody was promised anything;
//! - frames of commits that did not wait for the disk, before it: nobody was promised those either,
//!   but what is promised later would be written behind them;
//! - frames of a commit that failed just before the process was killed: the next process finds them in
//!   memory, whole, takes them for committed, and writes behind them;
//! - pages that a checkpoint copied into the database file. Those are still in the WAL, which starts
//!   over only after an `fsync` of the database file has succeeded. But a checkpoint that goes on where
//!   an earlier one ended does not copy again what the earlier one copied, and lost.
//!
//! **What is done about it.** [`secure`] makes what is read be what is on the disk, while nobody else
//! has the file open: the WAL is copied into a fresh file, which is synced and put in its place, and then
//! *all* of it is copied into the database file (whoever opens a WAL first reads it from its beginning
//! and knows of no earlier checkpoint), which is synced before the WAL is cut to nothing. A power cut in
//! between finds the old WAL or its copy, and both hold every promise. It is called
//!
//! - whenever a file is opened, for the process before may have died right after a failed sync;
//! - after every [I/O error](is_in_doubt) of a connection that writes, before anything more is written.
//!
//! It costs what the WAL is long, which [`Length`] bounds, and not what the database is long. The
//! transaction whose commit failed may have become part of the file, or not: its outcome is *unknown*,
//! as it is after a crash, and whoever asked must ask again or write anew what they know to be true.
//!
//! A refused write (a full disk, a lock) is not in doubt: the kernel took nothing it could lose.
//!
//! **Names are ours, too.** SQLite syncs the directory when it has made a WAL, and takes no notice if that
//! fails; after a power cut the WAL would have no name. So whoever has opened a file, and with it its
//! WAL, makes sure of both names with [`sync_names`] before it promises anything.
//!
//! **Checkpoints are ours.** SQLite makes them after a commit on its own and keeps their errors to
//! itself, although the failed sync it swallows may be the only one that is ever reported. So that is
//! switched off, and [`Length`] says when one is due.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use rusqlite::{Connection, Error, ErrorCode, OpenFlags, config::DbConfig, ffi};

const COPY_BYTES: usize = 1 << 20;

/// Did the disk fail in a way that leaves open what of the file is on it?
pub fn is_in_doubt(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
}

/// Switch the file to WAL mode, or make sure that it is in it. When it cannot be switched, SQLite says so
/// only in passing and goes on in the mode it has, in which the last commit may not outlive a power cut.
pub fn use_wal(connection: &Connection) -> rusqlite::Result<()> {
    let mut switch = connection.prepare("PRAGMA journal_mode = WAL")?;
    let (mut rows, mut mode) = (switch.query([])?, String::new());
    // To the end: the first row says "wal", and the commit that makes it true comes after it.
    while let Some(row) = rows.next()? {
        mode = row.get(0)?;
    }
    if mode == "wal" {
        return Ok(());
    }
    let cause = format!("the file could not be switched to WAL mode, it is in mode {mode}");
    Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CANTOPEN), Some(cause)))
}

/// Close a connection without touching the file. SQLite's own way is to move the WAL into the database
/// file when the last connection closes, and after an I/O error that must not happen.
pub fn close_untouched(connection: Connection) {
    leave_untouched_on_close(&connection);
    drop(connection);
}

/// From now on closing this connection does not touch the file.
pub fn leave_untouched_on_close(connection: &Connection) {
    // It can only fail for a connection that is not open.
    let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
}

/// Make what can be read of the file be what is on the disk. An error of the kind `ResourceBusy` says
/// that somebody has it open, and that nothing was done.
pub fn secure(database: &Path) -> io::Result<()> {
    let wal = beside(database, "-wal");
    remove_if_there(&beside(database, "-wal.fresh"))?;
    match fs::metadata(&wal) {
        Ok(facts) if facts.len() > 0 => {}
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    while_alone(database, |_| renew(&wal, &beside(database, "-wal.fresh")))?;
    // By a new connection: the one above has the old WAL open.
    while_alone(database, |connection| empty_wal(connection).map_err(told))
}

/// Secure the file at a start, unless somebody looks at it: then the answer is false. Whoever they are, they
/// hold the index of the WAL, and it does not show what the process before us failed to write.
pub fn secure_unless_open(database: &Path) -> io::Result<bool> {
    match secure(database) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(false),
        secured => secured.map(|()| true),
    }
}

/// Run `work` while nobody else can open the file, and leave the file to `work` alone.
fn while_alone(
    database: &Path,
    work: impl FnOnce(&Connection) -> io::Result<()>,
) -> io::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(database, flags).map_err(told)?;
    leave_untouched_on_close(&connection);
    connection.busy_timeout(std::time::Duration::ZERO).map_err(told)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(told)?;
    // The first look at a file takes the lock, and finds the WAL.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(told)?;
    work(&connection)
}

/// Move the whole WAL into the database file.
fn empty_wal(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

fn told(error: Error) -> io::Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            io::Error::new(io::ErrorKind::ResourceBusy, "another program has the file open")
        }
        _ => io::Error::other(error),
    }
}

/// Replace the WAL by a synced copy of itself.
fn renew(wal: &Path, fresh: &Path) -> io::Result<()> {
    let copied = (|| {
        let mut old = File::open(wal)?;
        let mut new = File::create_new(fresh)?;
        new.set_permissions(old.metadata()?.permissions())?;
        copy(&mut old, &mut new)?;
        new.sync_all()
    })();
    if let Err(error) = copied {
        // It takes up room that a full disk may need to heal.
        let _ = fs::remove_file(fresh);
        return Err(error);
    }
    fs::rename(fresh, wal)?;
    sync_names(wal)
}

fn copy(from: &mut File, to: &mut File) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            read => to.write_all(&buffer[..read])?,
        }
    }
}

/// Make sure that the names of the database and of its WAL are on the disk.
pub fn sync_names(database: &Path) -> io::Result<()> {
    let folder = database.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// How long the WAL is, as the connections that write to it see it.
#[derive(Clone, Debug)]
pub struct Length {
    pages: Arc<AtomicU32>,
    pages_max: u32,
}

impl Length {
    /// A checkpoint is due when the WAL has this many pages.
    pub fn new(pages_max: u32) -> Length {
        Length { pages: Arc::default(), pages_max }
    }

    /// Watch what this connection commits, and switch SQLite's own checkpoints off.
    pub fn watch(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        // First: the setting is kept in the same place as the hook.
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        let pages = self.pages.clone();
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, in_wal: i32| {
            pages.store(in_wal.unsigned_abs(), Ordering::Relaxed);
            Ok(())
        }))
    }

    /// Move the WAL into the database file if it has grown long. To be called after a commit, which
    /// stands whatever becomes of this.
    pub fn check(&self, connection: &Connection) -> rusqlite::Result<()> {
        self.check_at(connection, self.pages_max)
    }

    /// The same from fewer pages on: whoever writes much in many commits has short checkpoints rather
    /// than few.
    pub fn check_at(&self, connection: &Connection, pages_max: u32) -> rusqlite::Result<()> {
        if self.pages.load(Ordering::Relaxed) < pages_max.min(self.pages_max) {
            return Ok(());
        }
        // Each commit says anew how long it is. One that some reader holds up is tried again then.
        self.pages.store(0, Ordering::Relaxed);
        let moved = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        match moved {
            // No room for it: the WAL stays as it is, and the next commit finds out by itself.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => Ok(()),
            moved => moved,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Connection {
        let connection = Connection::open(path).unwrap();
        use_wal(&connection).unwrap();
        connection
    }

    fn count(path: &Path) -> i64 {
        Connection::open(path)
            .unwrap()
            .query_row("SELECT count(*) FROM t", [], |row| row.get(0))
            .unwrap()
    }

    #[test]
    fn a_secured_file_holds_everything_without_its_wal() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("x.db");
        secure(&file).unwrap();
        assert!(!file.exists(), "nothing is made");
        let connection = open(&file);
        connection.execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1), (2)").unwrap();
        close_untouched(connection);
        assert!(fs::metadata(beside(&file, "-wal")).unwrap().len() > 0);
        // A copy that was under way when the power failed.
        fs::write(beside(&file, "-wal.fresh"), "half").unwrap();
        secure(&file).unwrap();
        assert!(!beside(&file, "-wal.fresh").exists());
        let _ = fs::remove_file(beside(&file, "-wal"));
        assert_eq!(count(&file), 2);
        secure(&file).unwrap();
        assert_eq!(count(&file), 2);
    }

    #[test]
    fn a_file_that_cannot_be_switched_is_not_taken_for_switched() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("x.db");
        let reader = Connection::open(&file).unwrap();
        reader.execute_batch("CREATE TABLE t (a); BEGIN; SELECT * FROM t").unwrap();
        let connection = Connection::open(&file).unwrap();
        connection.busy_timeout(std::time::Duration::ZERO).unwrap();
        assert!(use_wal(&connection).is_err());
        drop(reader);
        use_wal(&connection).unwrap();
        assert!(use_wal(&Connection::open_in_memory().unwrap()).is_err());
    }

    #[test]
    fn a_file_that_somebody_has_open_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("x.db");
        let connection = open(&file);
        connection.execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1), (2)").unwrap();
        assert_eq!(secure(&file).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert!(!secure_unless_open(&file).unwrap());
        connection.execute_batch("INSERT INTO t VALUES (3)").unwrap();
        close_untouched(connection);
        assert!(secure_unless_open(&file).unwrap());
        assert_eq!(count(&file), 3);
    }

    #[test]
    fn the_wal_is_moved_when_it_is_long_and_stays_bounded() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("x.db");
        let mut connection = open(&file);
        let length = Length::new(10);
        length.watch(&mut connection).unwrap();
        connection.execute_batch("CREATE TABLE t (a)").unwrap();
        let in_wal = |connection: &Connection| -> i64 {
            let noop = "PRAGMA wal_checkpoint(NOOP)";
            connection
                .query_row(noop, [], |row| Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?))
                .unwrap()
        };
        let mut longest = 0;
        for _ in 0..100 {
            connection.execute("INSERT INTO t VALUES (randomblob(4000))", []).unwrap();
            longest = longest.max(in_wal(&connection));
            length.check(&connection).unwrap();
        }
        assert!((10..30).contains(&longest), "{longest}");
    }
}

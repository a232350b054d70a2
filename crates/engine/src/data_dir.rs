//! The data directory: made if missing, its owner's alone, and held by one process at a time.
//!
//! Everything in it is the owner's business: the signing secret, a token for the command line, orders,
//! names of buyers. So the directory is 0700 and every file in it 0600, whatever umask the process was
//! given and however the directory was made. What can be tightened is; what somebody else owns, or what
//! leads out of the directory, is refused: we cannot answer for it.

use std::{
    fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError},
    io::{self, ErrorKind, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::{fs::Mode, process};

const LOCK_FILE: &str = "lock";
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// What a mode says of everybody but the owner.
const OF_OTHERS: u32 = 0o077;

/// Held until it is dropped; the kernel lets go of it even if the process is killed.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

/// One line, for the operator.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error("the data directory {0} is in use by another process{1}")]
    InUse(PathBuf, String),
    #[error("the data directory {0} is not writable: {1}")]
    NotWritable(PathBuf, io::Error),
    #[error("the data directory {0} is not a directory")]
    NotADirectory(PathBuf),
    #[error(
        "{path} belongs to user {owner}, and this process runs as user {ours}: run it as user {owner}, \
         or give it to user {ours} (chown)"
    )]
    Foreign { path: PathBuf, owner: u32, ours: u32 },
    #[error(
        "{0} is a link or no plain file: whatever it leads to would hold secrets; put a plain file in \
         its place"
    )]
    NotPlain(PathBuf),
    #[error("the data directory {0} cannot be used: {1}")]
    Unusable(PathBuf, io::Error),
}

impl DataDir {
    /// Makes the directory if it is not there, and takes it.
    pub fn open(path: &Path) -> Result<DataDir, DataDirError> {
        let failed = |cause: io::Error| explain(path, cause);
        // From here on whatever this process makes is its own, SQLite's files included, which have no
        // mode that we could choose.
        process::umask(Mode::from_raw_mode(OF_OTHERS));
        fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path).map_err(failed)?;
        let path = path.canonicalize().map_err(failed)?;
        // The directory first: once it is shut, nobody can change what is in it meanwhile.
        make_private(&path, DIRECTORY_MODE)?;
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(FILE_MODE)
            .open(path.join(LOCK_FILE))
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(DataDirError::InUse(path, holder(&mut lock)));
            }
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
        make_files_private(&path)?;
        write_holder(&mut lock).map_err(failed)?;
        Ok(DataDir { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Directories inside are somebody's own affair (`lost+found`, a backup); nobody else gets to them.
fn make_files_private(directory: &Path) -> Result<(), DataDirError> {
    let failed = |cause: io::Error| explain(directory, cause);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            continue;
        }
        if !kind.is_file() {
            return Err(DataDirError::NotPlain(entry.path()));
        }
        make_private(&entry.path(), FILE_MODE)?;
    }
    Ok(())
}

/// A file of ours outside the data directory, if it is there already: its owner's alone, too.
pub fn make_file_private(path: &Path) -> Result<(), DataDirError> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => Err(DataDirError::NotPlain(path.into())),
        Ok(_) => make_private(path, FILE_MODE),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(explain(path, cause)),
    }
}

/// Takes from everybody else what they may do with it. Refused if it is not ours to do so.
fn make_private(path: &Path, mode: u32) -> Result<(), DataDirError> {
    let failed = |cause: io::Error| explain(path, cause);
    let found: Metadata = fs::metadata(path).map_err(failed)?;
    let (owner, ours) = (found.uid(), process::geteuid().as_raw());
    if owner != ours {
        return Err(DataDirError::Foreign { path: path.into(), owner, ours });
    }
    let was = found.mode() & 0o7777;
    if was & OF_OTHERS != 0 {
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
        let (path, was, now) = (path.display(), format!("{was:04o}"), format!("{mode:04o}"));
        tracing::warn!(%path, was, now, "others could get at it; now only its owner can");
    }
    Ok(())
}

fn explain(path: &Path, cause: io::Error) -> DataDirError {
    let path = path.to_owned();
    match cause.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            DataDirError::NotWritable(path, cause)
        }
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => DataDirError::NotADirectory(path),
        _ => DataDirError::Unusable(path, cause),
    }
}

/// The holder writes its process id, only so that the one who comes second can name it.
fn write_holder(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    write!(lock, "{}", std::process::id())
}

fn holder(lock: &mut File) -> String {
    let mut text = String::new();
    let read = lock.take(20).read_to_string(&mut text);
    match text.trim().parse::<u32>() {
        Ok(id) if read.is_ok() => format!(" (process {id})"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_if_missing_and_held_by_one() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("deep/data");
        let held = DataDir::open(&path).unwrap();
        assert!(held.file("x").starts_with(held.path()));
        let second = DataDir::open(&path).unwrap_err();
        let id = std::process::id();
        assert_eq!(
            second.to_string(),
            format!(
                "the data directory {} is in use by another process (process {id})",
                path.canonicalize().unwrap().display()
            )
        );
        drop(held);
        DataDir::open(&path).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn what_others_could_read_they_cannot_read_after_a_start() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("data");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        for name in ["ledger.db", "ledger.db-wal", "secret", "lock"] {
            fs::write(path.join(name), "").unwrap();
            fs::set_permissions(path.join(name), Permissions::from_mode(0o644)).unwrap();
        }
        fs::create_dir(path.join("lost+found")).unwrap();
        fs::set_permissions(path.join("lost+found"), Permissions::from_mode(0o755)).unwrap();
        let held = DataDir::open(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        for name in ["ledger.db", "ledger.db-wal", "secret", "lock"] {
            assert_eq!(mode(&held.file(name)), 0o600, "{name}");
        }
        assert_eq!(mode(&held.file("lost+found")), 0o755, "nobody else gets there");
        // What is made from now on is private by itself, SQLite's files, too.
        let made = rusqlite::Connection::open(held.file("new.db")).unwrap();
        made.pragma_update(None, "journal_mode", "WAL").unwrap();
        made.execute_batch("CREATE TABLE t (x)").unwrap();
        for name in ["new.db", "new.db-wal", "new.db-shm"] {
            assert_eq!(mode(&held.file(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (home.path().join("data"), home.path().join("elsewhere"));
        fs::write(&elsewhere, "").unwrap();
        fs::create_dir(&path).unwrap();
        std::os::unix::fs::symlink(&elsewhere, path.join("ledger.db")).unwrap();
        let refused = DataDir::open(&path).unwrap_err().to_string();
        assert!(refused.contains("data/ledger.db is a link"), "{refused}");
        assert!(make_file_private(&path.join("ledger.db")).is_err());
        fs::remove_file(path.join("ledger.db")).unwrap();
        // The directory itself may be reached by a link: it is looked at where it really is.
        let link = home.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(DataDir::open(&link).unwrap().path(), path.canonicalize().unwrap());
    }

    #[test]
    fn what_belongs_to_somebody_else_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("data");
        drop(DataDir::open(&path).unwrap());
        let file = path.join("secret");
        fs::write(&file, "").unwrap();
        for foreign in [&file, &path] {
            if std::os::unix::fs::chown(foreign, Some(65_534), None).is_err() {
                // Only root can give something away.
                return;
            }
            let refused = DataDir::open(&path).unwrap_err();
            assert!(matches!(refused, DataDirError::Foreign { owner: 65_534, .. }), "{refused}");
            assert!(refused.to_string().contains(&foreign.display().to_string()), "{refused}");
        }
    }

    #[test]
    fn what_cannot_be_a_data_directory_is_named() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("below")] {
            let error = DataDir::open(&path).unwrap_err();
            assert!(matches!(error, DataDirError::NotADirectory(_)), "{error}");
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
            assert!(!error.to_string().contains('\n'));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_cannot_be_written_is_named() {
        // Nobody, not even root, may make directories here.
        let error = DataDir::open(Path::new("/sys/seckill-data")).unwrap_err();
        assert!(matches!(error, DataDirError::NotWritable(..)), "{error}");
    }
}

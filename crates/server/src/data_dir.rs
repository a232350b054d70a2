//! The data directory: made if missing, and held by one process at a time.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read, Seek, Write},
    path::{Path, PathBuf},
};

const LOCK_FILE: &str = "lock";

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
    #[error("the data directory {0} cannot be used: {1}")]
    Unusable(PathBuf, io::Error),
}

impl DataDir {
    pub fn open(path: &Path) -> Result<DataDir, DataDirError> {
        let failed = |cause: io::Error| explain(path, cause);
        // Everything in it is the owner's business: secrets, orders, names of buyers.
        make_private(path).map_err(failed)?;
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path.join(LOCK_FILE))
            .map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(DataDirError::InUse(path.into(), holder(&mut lock)));
            }
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
        write_holder(&mut lock).map_err(failed)?;
        let path = path.canonicalize().map_err(failed)?;
        Ok(DataDir { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
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
                path.display()
            )
        );
        drop(held);
        DataDir::open(&path).unwrap();
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

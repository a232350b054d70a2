//! The secret that signs sale tokens and receipts: the operator's, or one made at the first start.
//!
//! It must outlive the process, because receipts do. A new one is written beside its place, synced,
//! and moved there, so that a crash leaves either no secret or a whole one, never half of one.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{Secret, data_dir::DataDir};

pub const FILE: &str = "secret";
const BYTES: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("{0} cannot be read or written: {1}")]
    Io(PathBuf, io::Error),
    #[error(
        "{0} does not hold a secret of {BYTES} bytes in hex; restore it from a backup, or delete it \
         (which voids all receipts)"
    )]
    Damaged(PathBuf),
    #[error("the system gives no random bytes: {0}")]
    NoRandomness(getrandom::Error),
}

/// The configured secret if there is one, else the one kept in the data directory.
pub fn load_or_create(configured: &Secret, data: &DataDir) -> Result<Secret, SecretError> {
    if !configured.is_empty() {
        return Ok(configured.clone());
    }
    let path = data.file(FILE);
    match fs::read_to_string(&path) {
        Ok(text) => check(&text).ok_or(SecretError::Damaged(path)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            let secret = generate()?;
            write_private(&path, format!("{}\n", secret.expose()).as_bytes())
                .map_err(|cause| SecretError::Io(path.clone(), cause))?;
            Ok(secret)
        }
        // The bytes are there, but they are not text.
        Err(cause) if cause.kind() == io::ErrorKind::InvalidData => Err(SecretError::Damaged(path)),
        Err(cause) => Err(SecretError::Io(path, cause)),
    }
}

fn check(text: &str) -> Option<Secret> {
    let hex = text.trim();
    let whole = hex.len() == 2 * BYTES && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    whole.then(|| Secret::new(hex))
}

pub(crate) fn generate() -> Result<Secret, SecretError> {
    let mut random = [0_u8; BYTES];
    getrandom::fill(&mut random).map_err(SecretError::NoRandomness)?;
    Ok(Secret::new(random.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}

/// Write a file that only its owner may read, whole or not at all.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = &path.with_extension("new");
    // One left by a crash may have been made with other permissions.
    match fs::remove_file(new) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    // The rename itself is only durable once the directory is.
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(home: &tempfile::TempDir) -> DataDir {
        DataDir::open(home.path()).unwrap()
    }

    #[test]
    fn a_secret_is_made_once_and_kept() {
        let home = tempfile::tempdir().unwrap();
        let data = open(&home);
        let none = Secret::default();
        let first = load_or_create(&none, &data).unwrap();
        assert_eq!(first.expose().len(), 64);
        assert_eq!(load_or_create(&none, &data).unwrap(), first);
        assert!(sale::SigningKeys::from_secret(first.expose().as_bytes()).is_some());

        let other_home = tempfile::tempdir().unwrap();
        assert_ne!(load_or_create(&none, &open(&other_home)).unwrap(), first);
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_may_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let data = open(&home);
        fs::write(data.file("secret.new"), "left by a crash").unwrap();
        load_or_create(&Secret::default(), &data).unwrap();
        let mode = fs::metadata(data.file(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!data.file("secret.new").exists());
    }

    #[test]
    fn the_configured_secret_wins_and_is_not_written() {
        let home = tempfile::tempdir().unwrap();
        let data = open(&home);
        let configured = Secret::new("a long enough secret");
        assert_eq!(load_or_create(&configured, &data).unwrap(), configured);
        assert!(!data.file(FILE).exists());
    }

    #[test]
    fn a_damaged_secret_is_not_replaced_silently() {
        let home = tempfile::tempdir().unwrap();
        let data = open(&home);
        for damage in [&b""[..], b"short", b"\xff\xfe", &[b'z'; 64]] {
            fs::write(data.file(FILE), damage).unwrap();
            let error = load_or_create(&Secret::default(), &data).unwrap_err();
            assert!(matches!(error, SecretError::Damaged(_)), "{error}");
            assert_eq!(fs::read(data.file(FILE)).unwrap(), damage);
        }
    }
}

//! Where the engines' programs are, and what to install if they are not.

use std::{io, path::PathBuf};

/// Servers live in folders that are often missing from an ordinary user's PATH.
const FOLDERS_OF_SERVERS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/sbin"];

/// The full path of a program, or an error that names its Debian package.
pub fn find(program: &str, package: &str) -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(FOLDERS_OF_SERVERS.map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            let message = format!(
                "{program} is missing: `cargo xtask test` installs it, \
                 or as root: apt-get install {package}"
            );
            io::Error::new(io::ErrorKind::NotFound, message)
        })
}

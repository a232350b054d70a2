//! Where the engines' programs are, and what to install if they are not.
//!
//! `cargo xtask test --engines` lets the same stories run on other engines: it names their program in the
//! environment.

use std::{io, path::PathBuf};

/// Names the program that takes the place of `redis-server`.
const GATE_SERVER: &str = "GATE_SERVER";
/// Names the program that takes the place of `mariadbd`.
const LEDGER_SERVER: &str = "LEDGER_SERVER";

/// Servers live in folders that are often missing from an ordinary user's PATH.
const FOLDERS_OF_SERVERS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/sbin"];

/// Redis, or what shall be tested as it.
pub(super) fn gate_server() -> io::Result<PathBuf> {
    named(GATE_SERVER).map_or_else(|| find("redis-server", "redis-server"), Ok)
}

/// MariaDB, or what shall be tested as it.
pub(super) fn ledger_server() -> io::Result<PathBuf> {
    named(LEDGER_SERVER).map_or_else(|| find("mariadbd", "mariadb-server-core"), Ok)
}

fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

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

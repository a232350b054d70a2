//! Programs and scripts from npm that tests need, each set with pinned parts, in a folder of its own under
//! `target/`. Nothing of it is installed on the machine itself, or served to anybody.

use std::{fs, io, path::Path};

use crate::{python, root, run, target};

/// What reads the pages in a browser as somebody does who cannot see them.
const BROWSER: (&str, &str) = ("browser", "crates/server/tests/browser");
/// What a set is pinned by.
const PINS: [&str; 2] = ["package.json", "package-lock.json"];
/// npm writes it last, so an installation that was cut off is seen.
const INSTALLED: &str = "node_modules/.package-lock.json";

pub(crate) fn ensure_browser() -> Result<(), String> {
    let (name, pinned) = BROWSER;
    environment(name, pinned)
}

/// What the remarks of our scripts say of their types is true: checked by the TypeScript that clients are
/// made with.
pub(crate) fn check_types() -> Result<(), String> {
    let tsc = target().join("clients/typescript/node_modules/.bin/tsc");
    run(&tsc.to_string_lossy(), &["-p", "web"])
}

/// Make sure that a folder is there with what the pins name.
pub(crate) fn environment(name: &str, pinned: &str) -> Result<(), String> {
    let (folder, source) = (target().join(name), root().join(pinned));
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let current = |name: &&str| read(&folder.join(name)) == read(&source.join(name));
    if folder.join(INSTALLED).is_file() && PINS.iter().all(current) {
        return Ok(());
    }
    let failed = |e: io::Error| format!("{} cannot be filled: {e}", folder.display());
    python::remove(&folder)?;
    fs::create_dir_all(&folder).map_err(failed)?;
    for name in PINS {
        fs::copy(source.join(name), folder.join(name)).map_err(failed)?;
    }
    let quiet = ["--no-audit", "--no-fund", "--loglevel=error"];
    run("npm", &[&["ci", "--prefix", &folder.to_string_lossy()], &quiet[..]].concat())
}

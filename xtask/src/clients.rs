//! What makes clients from the OpenAPI document, for the story that buys with them: npm and Python programs
//! with pinned parts, each in a folder of its own under `target/clients`.

use std::fs;

use crate::{python, root, run, target};

const TYPESCRIPT: &str = "crates/server/tests/clients/typescript";
const PYTHON: &str = "crates/server/tests/clients/python/requirements.txt";
/// What the makers of TypeScript are pinned by.
const PINS: [&str; 2] = ["package.json", "package-lock.json"];

/// What is written in Python, among it the shop of somebody else.
pub(crate) fn ensure_python() -> Result<(), String> {
    python::environment("clients/python", PYTHON).map(drop)
}

pub(crate) fn ensure() -> Result<(), String> {
    ensure_python()?;
    let folder = target().join("clients/typescript");
    let source = root().join(TYPESCRIPT);
    let read = |path: &std::path::Path| fs::read_to_string(path).unwrap_or_default();
    let lock = "node_modules/.package-lock.json";
    let current = |name: &&str| read(&folder.join(name)) == read(&source.join(name));
    if folder.join(lock).is_file() && PINS.iter().all(current) {
        return Ok(());
    }
    let failed = |e: std::io::Error| format!("{} cannot be filled: {e}", folder.display());
    python::remove(&folder)?;
    fs::create_dir_all(&folder).map_err(failed)?;
    for name in PINS {
        fs::copy(source.join(name), folder.join(name)).map_err(failed)?;
    }
    let quiet = ["--no-audit", "--no-fund", "--loglevel=error"];
    run("npm", &[&["ci", "--prefix", &folder.to_string_lossy()], &quiet[..]].concat())
}

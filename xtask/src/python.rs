//! Python programs that tests need, such as schemathesis, which tries the API against its document: each
//! with pinned parts, in an environment of its own under `target/`. Nothing of it is installed on the
//! machine itself.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{programs, root, run, target};

/// Schemathesis and everything it is made of, each with its version.
const SCHEMATHESIS: &str = "crates/server/tests/schemathesis/requirements.txt";
/// What was installed, so that other pins make another environment.
const NOTE: &str = "pins.txt";
/// A Python that can make environments. Debian packages that part alone, and not with Python.
const CAN_MAKE_ENVIRONMENTS: &str =
    "import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 10))";
const PYTHONS: [&str; 2] = ["python3", "/usr/bin/python3"];
const PYTHON_PACKAGE: &str = "python3-venv";

pub(crate) fn ensure_schemathesis() -> Result<PathBuf, String> {
    environment("schemathesis", SCHEMATHESIS)
}

/// Make sure that an environment is there with what the pins name; answers the folder it is in.
pub(crate) fn environment(name: &str, pinned: &str) -> Result<PathBuf, String> {
    let folder = target().join(name);
    let pins = root().join(pinned);
    let wanted = fs::read_to_string(&pins).map_err(|e| format!("{pinned} cannot be read: {e}"))?;
    if fs::read_to_string(folder.join(NOTE)).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    let python = python()?;
    remove(&folder)?;
    run(python, &["-m", "venv", &folder.to_string_lossy()])?;
    let pip = folder.join("bin/pip");
    let install = ["install", "--quiet", "--disable-pip-version-check", "--requirement"];
    run(&pip.to_string_lossy(), &[&install[..], &[&pins.to_string_lossy()]].concat())?;
    fs::write(folder.join(NOTE), wanted)
        .map_err(|e| format!("{} cannot be written: {e}", folder.display()))?;
    Ok(folder)
}

fn python() -> Result<&'static str, String> {
    let can = |python: &&str| {
        let mut asked = Command::new(python);
        asked.args(["-c", CAN_MAKE_ENVIRONMENTS]).stderr(Stdio::null());
        asked.status().is_ok_and(|status| status.success())
    };
    if let Some(python) = PYTHONS.into_iter().find(|python| can(python)) {
        return Ok(python);
    }
    programs::install(&[PYTHON_PACKAGE])?;
    PYTHONS.into_iter().rev().find(|python| can(python)).ok_or_else(|| {
        format!("no Python 3.10 or newer can make environments; install {PYTHON_PACKAGE}")
    })
}

/// What is left of an older environment, or of an installation that was cut off.
pub(crate) fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{} cannot be removed: {e}", folder.display()))
        }
        _ => Ok(()),
    }
}

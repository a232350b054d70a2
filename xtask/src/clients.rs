//! What makes clients from the OpenAPI document, for the story that buys with them: npm and Python programs
//! with pinned parts, each in a folder of its own under `target/clients`.

use crate::{npm, python};

const TYPESCRIPT: &str = "crates/server/tests/clients/typescript";
const PYTHON: &str = "crates/server/tests/clients/python/requirements.txt";

/// What is written in Python, among it the shop of somebody else.
pub(crate) fn ensure_python() -> Result<(), String> {
    python::environment("clients/python", PYTHON).map(drop)
}

pub(crate) fn ensure() -> Result<(), String> {
    ensure_python()?;
    npm::environment("clients/typescript", TYPESCRIPT)
}

//! Who does something, and from where: what the audit writes down beside what was done.

use std::ops::Deref;

use ledger::{AuditEntry, Origin};
use serde_json::Value;

/// Under this name commands stand in the audit when there is no server to say whose they are.
pub const CLI: &str = "cli";

/// The name of an admin token, of a command or of a part of ours, and where its request came from. It
/// reads as its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    pub name: String,
    pub origin: Origin,
}

impl Deref for Actor {
    type Target = str;
    fn deref(&self) -> &str {
        &self.name
    }
}

/// Somebody who did not ask by a request.
impl From<&str> for Actor {
    fn from(name: &str) -> Self {
        let address = (name == CLI).then(|| CLI.to_owned());
        Actor { name: name.into(), origin: Origin { address, request_id: None } }
    }
}

impl From<&Actor> for Actor {
    fn from(actor: &Actor) -> Self {
        actor.clone()
    }
}

/// An entry for the audit.
pub(crate) fn audit_entry(
    who: impl Into<Actor>,
    action: &str,
    target: String,
    detail: Value,
) -> AuditEntry {
    let Actor { name, origin } = who.into();
    let address = origin.address.as_deref();
    tracing::info!(who = name, address, action, target, "written to the audit");
    AuditEntry { who: name, action: action.into(), target, detail, origin }
}

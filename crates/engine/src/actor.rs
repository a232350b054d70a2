//! Who does something, and from where: what the audit writes down beside the deed.

use std::ops::Deref;

use ledger::Origin;

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

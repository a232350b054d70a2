//! Tokens of operators. The ledger keeps their hashes, and nobody but its owner ever sees a token again.

use std::sync::Arc;

use ledger::{AdminToken, Role, TokenBounds};
use sale::{Invalid, Millis, is_plain_id};
use serde_json::{Value, json};

use super::{OperateError, Result};
use crate::{
    actor::{Actor, CLI, audit_entry},
    shared::Shared,
};

pub const TOKEN_NAME_CHARS_MAX: usize = 64;
/// Names that the audit uses for others than tokens.
const TOKEN_NAMES_RESERVED: [&str; 4] = ["system", "configured", "demo", CLI];
/// The tokens that each start makes for the commands on its machine begin so, and replace each other.
pub const LOCAL_TOKEN: &str = "local-cli";

fn check_token_name(name: &str) -> std::result::Result<(), Invalid> {
    if !is_plain_id(name, TOKEN_NAME_CHARS_MAX) {
        let rule = format!("must be 1 to {TOKEN_NAME_CHARS_MAX} visible characters");
        return Err(Invalid::new("name", rule));
    }
    if TOKEN_NAMES_RESERVED.contains(&name) || name.starts_with(LOCAL_TOKEN) {
        return Err(Invalid::new("name", "is reserved"));
    }
    Ok(())
}

pub struct Tokens {
    pub(crate) shared: Arc<Shared>,
}

impl Tokens {
    /// Those that were not revoked; some may have expired.
    pub async fn all(&self) -> ledger::Result<Vec<AdminToken>> {
        self.shared.ledger.admin_tokens().await
    }

    /// The token with this hash, if it was not revoked.
    pub async fn by_hash(&self, secret_hash: &[u8]) -> ledger::Result<Option<AdminToken>> {
        self.shared.ledger.admin_token(secret_hash).await
    }

    /// A token that nobody asked for by name: the first one of all. False if its name was given before.
    pub async fn make_first(&self, name: &str, secret_hash: &[u8]) -> ledger::Result<bool> {
        let (target, detail) = (format!("token:{name}"), json!({"role": Role::Admin}));
        let entry = audit_entry("system", "token.create", target, detail);
        let (ledger, now_ms) = (&self.shared.ledger, self.shared.now_ms());
        let bounds = TokenBounds::default();
        ledger.add_admin_token(name, Role::Admin, secret_hash, &bounds, &entry, now_ms).await
    }

    /// For the commands on the machine of a server: replaces the one of its last start.
    pub async fn put_local(&self, name: &str, secret_hash: &[u8]) -> ledger::Result<()> {
        let (ledger, now_ms) = (&self.shared.ledger, self.shared.now_ms());
        ledger.put_admin_token(name, Role::Admin, secret_hash, now_ms).await
    }

    /// `secret_hash` is the hash of a token that nobody but its owner will ever see again.
    pub async fn make(
        &self,
        who: impl Into<Actor>,
        name: &str,
        role: Role,
        secret_hash: &[u8],
        bounds: &TokenBounds,
    ) -> Result<()> {
        check_token_name(name)?;
        let detail = json!({
            "role": role,
            "expires_at": bounds.expires_ms,
            "addresses": bounds.addresses,
        });
        let entry = audit_entry(who, "token.create", format!("token:{name}"), detail);
        let (ledger, now_ms) = (&self.shared.ledger, self.shared.now_ms());
        if ledger.add_admin_token(name, role, secret_hash, bounds, &entry, now_ms).await? {
            return Ok(());
        }
        // The audit knows people by these names: one that was revoked is not given to another.
        let live = self.shared.ledger.admin_tokens().await?.iter().any(|known| known.name == name);
        Err(OperateError::Conflict(if live { "in use" } else { "revoked" }))
    }

    /// Write down when tokens were last used.
    pub async fn note_uses(&self, uses: &[(String, Millis)]) -> ledger::Result<()> {
        self.shared.ledger.note_token_uses(uses).await
    }

    pub async fn revoke(&self, who: impl Into<Actor>, name: &str) -> Result<()> {
        if !self.shared.ledger.admin_tokens().await?.iter().any(|known| known.name == name) {
            return Err(OperateError::NotFound);
        }
        self.shared.audit(who, "token.revoke", format!("token:{name}"), Value::Null).await?;
        let revoked = self.shared.ledger.revoke_admin_token(name, self.shared.now_ms()).await?;
        if revoked { Ok(()) } else { Err(OperateError::NotFound) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tokens_are_short_visible_and_not_reserved() {
        for good in ["ann", "值班员", &"x".repeat(64)] {
            assert!(check_token_name(good).is_ok(), "{good}");
        }
        let long = "x".repeat(65);
        for bad in [
            "",
            " ",
            "two words",
            "tab\t",
            "system",
            "configured",
            "cli",
            "local-cli",
            "local-cli-0a1b",
            "an\u{200B}n",
            "\u{202E}nna",
            &long,
        ] {
            assert_eq!(check_token_name(bad).unwrap_err().field, "name", "{bad:?}");
        }
    }
}

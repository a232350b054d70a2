//! Signing in to the console: links and sessions, and who made, used and ended them.

use std::sync::Arc;

use ledger::{ConsolePass, PassKind, Result};
use sale::Millis;
use serde_json::json;

use crate::{
    actor::{Actor, audit_entry},
    shared::Shared,
};

/// A link is opened by whoever had it printed, at once.
pub const CONSOLE_LINK_MS: Millis = 5 * 60 * 1_000;
const TARGET: &str = "console";

pub struct Console {
    pub(crate) shared: Arc<Shared>,
}

impl Console {
    /// A link that signs somebody in once, in the name of whoever asks for it.
    pub async fn add_link(&self, who: impl Into<Actor>, link: &ConsolePass) -> Result<()> {
        let detail = json!({"expires_at": link.expires_ms});
        let entry = audit_entry(who, "console.link", TARGET.into(), detail);
        self.shared.ledger.add_console_pass(PassKind::Link, link, &entry).await
    }

    /// The link with this hash, which opens nothing any more.
    pub async fn take_link(&self, secret_hash: &str) -> Result<Option<ConsolePass>> {
        self.shared.ledger.take_console_link(secret_hash, self.shared.now_ms()).await
    }

    /// `by` is what they signed in with.
    pub async fn sign_in(
        &self,
        who: impl Into<Actor>,
        session: &ConsolePass,
        by: &'static str,
    ) -> Result<()> {
        let detail = json!({"by": by, "expires_at": session.expires_ms});
        let entry = audit_entry(who, "console.sign_in", TARGET.into(), detail);
        self.shared.ledger.add_console_pass(PassKind::Session, session, &entry).await
    }

    pub async fn session(&self, secret_hash: &str) -> Result<Option<ConsolePass>> {
        self.shared.ledger.console_session(secret_hash, self.shared.now_ms()).await
    }

    /// Write down when sessions were last used.
    pub async fn note_uses(&self, uses: &[(String, Millis)]) -> Result<()> {
        self.shared.ledger.note_console_uses(uses).await
    }

    pub async fn sign_out(&self, who: impl Into<Actor>, secret_hash: &str) -> Result<bool> {
        let entry = audit_entry(who, "console.sign_out", TARGET.into(), json!({}));
        let now_ms = self.shared.now_ms();
        self.shared.ledger.end_console_session(secret_hash, &entry, now_ms).await
    }
}

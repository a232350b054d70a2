//! What signs somebody in to the console: links that are good once, and sessions.
//!
//! Both are secrets of ours, of which the ledger keeps the hash. Each stands for an admin token and is worth
//! nothing without it: whoever revokes the token has ended its sessions. They are in the ledger, and not only
//! signed, so that signing out ends a session for whoever has copied it, at every instance and after a
//! restart, and so that a link is good once wherever it is presented.

use async_trait::async_trait;
use sale::Millis;

use crate::{AuditEntry, Result};

/// Sessions there can be at once; a new one takes the place of the one that was used longest ago.
pub const CONSOLE_SESSIONS_MAX: usize = 200;
/// Links that were not used and are not over.
pub(crate) const CONSOLE_LINKS_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassKind {
    /// Good once.
    Link,
    Session,
}

impl PassKind {
    pub(crate) fn code(self) -> i64 {
        match self {
            PassKind::Link => 1,
            PassKind::Session => 2,
        }
    }

    /// So many of a kind are kept.
    pub(crate) fn kept_max(self) -> usize {
        match self {
            PassKind::Link => CONSOLE_LINKS_MAX,
            PassKind::Session => CONSOLE_SESSIONS_MAX,
        }
    }
}

/// A link or a session, by the hash of its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsolePass {
    /// In hex, as all hashes here.
    pub secret_hash: String,
    /// The hash of the admin token behind it; of the token of the settings, mixed with the secret.
    pub token: String,
    /// It is the token of the settings.
    pub configured: bool,
    pub created_ms: Millis,
    /// As far as it was written down: not at every use.
    pub used_ms: Millis,
    pub expires_ms: Millis,
}

#[async_trait]
pub trait ConsolePasses: Send + Sync {
    /// A new one, with its entry in the audit. Those that are over are forgotten, and of too many those that
    /// were used longest ago.
    async fn add_console_pass(
        &self,
        kind: PassKind,
        pass: &ConsolePass,
        audit: &AuditEntry,
    ) -> Result<()>;

    /// The link, if it is not over. It is gone with this, whoever asks next.
    async fn take_console_link(
        &self,
        secret_hash: &str,
        now_ms: Millis,
    ) -> Result<Option<ConsolePass>>;

    /// The session, if it is not over.
    async fn console_session(
        &self,
        secret_hash: &str,
        now_ms: Millis,
    ) -> Result<Option<ConsolePass>>;

    /// When sessions were last used. An earlier time than the known one changes nothing.
    async fn note_console_uses(&self, uses: &[(String, Millis)]) -> Result<()>;

    /// False if there was none.
    async fn end_console_session(
        &self,
        secret_hash: &str,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool>;
}

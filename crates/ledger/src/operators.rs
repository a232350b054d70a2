//! Operators: their tokens, and what they did.

use async_trait::async_trait;
use sale::{ActivityMove, ActivityState, Millis};
use serde::{Deserialize, Serialize};

use crate::Result;

/// Who may operate the shop, and the record of what they did.
#[async_trait]
pub trait Operators: Send + Sync {
    /// A new token, with its entry in the audit. False if the name is taken, be it by a token that was
    /// revoked: in the audit one name must not stand for two people. Then nothing is written.
    async fn add_admin_token(
        &self,
        name: &str,
        role: Role,
        secret_hash: &[u8],
        bounds: &TokenBounds,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool>;
    /// `secret_hash` is a SHA-256 of the token. Replaces a token of the same name, with all its bounds.
    async fn put_admin_token(
        &self,
        name: &str,
        role: Role,
        secret_hash: &[u8],
        now_ms: Millis,
    ) -> Result<()>;
    /// Tokens that were not revoked; they may have expired.
    async fn admin_token(&self, secret_hash: &[u8]) -> Result<Option<AdminToken>>;
    async fn admin_tokens(&self) -> Result<Vec<AdminToken>>;
    async fn revoke_admin_token(&self, name: &str, now_ms: Millis) -> Result<bool>;
    /// When tokens were last used, by name. An earlier time than the known one changes nothing.
    async fn note_token_uses(&self, uses: &[(String, Millis)]) -> Result<()>;

    /// Append only; the tables refuse update and delete.
    async fn audit(&self, entry: &AuditEntry, now_ms: Millis) -> Result<()>;
    /// Newest first.
    async fn audit_log(&self, before_id: Option<i64>, limit: usize) -> Result<Vec<AuditRow>>;
}

/// What an admin token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// May look at everything.
    Viewer,
    /// May run sales.
    Operator,
    /// May do everything: refunds and tokens, too.
    Admin,
    /// May tell of money that the shop's own cashier took or gave back, and nothing else.
    Cashier,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
            Role::Cashier => "cashier",
        }
    }

    /// May whoever has this role do what needs that one? Viewer, operator and admin each may do what the
    /// ones before them may; a cashier looks at nothing.
    pub fn may(self, needed: Role) -> bool {
        match self {
            Role::Viewer => needed == Role::Viewer,
            Role::Operator => matches!(needed, Role::Viewer | Role::Operator),
            Role::Admin => true,
            Role::Cashier => needed == Role::Cashier,
        }
    }
}

impl std::str::FromStr for Role {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        [Role::Viewer, Role::Operator, Role::Admin, Role::Cashier]
            .into_iter()
            .find(|role| role.as_str() == s)
            .ok_or_else(|| format!("{s:?} is none of viewer, operator, admin, cashier"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdminToken {
    pub name: String,
    pub role: Role,
    pub created_ms: Millis,
    pub bounds: TokenBounds,
    /// As far as it was written down: not at every use.
    pub last_used_ms: Option<Millis>,
}

/// How long a token is good, and from where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenBounds {
    /// Absent: for ever.
    pub expires_ms: Option<Millis>,
    /// Ranges of addresses; none is any address.
    pub addresses: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct AuditEntry {
    /// The name of the admin token, or `system` for what a job healed.
    pub who: String,
    /// What was done, e.g. `activity.publish`.
    pub action: String,
    /// To what, e.g. `activity:7`.
    pub target: String,
    pub detail: serde_json::Value,
    pub origin: Origin,
}

/// Where somebody asked from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The client's address, or `cli` for a command without a server. Absent for what a job did.
    pub address: Option<String>,
    /// The id of the request, as its answer and the log have it.
    pub request_id: Option<String>,
}

impl AuditEntry {
    /// The same with one more detail, which only the transaction itself knows.
    pub(crate) fn with(&self, name: &str, value: impl Into<serde_json::Value>) -> AuditEntry {
        let mut entry = self.clone();
        match &mut entry.detail {
            serde_json::Value::Object(details) => _ = details.insert(name.into(), value.into()),
            other => *other = serde_json::json!({ name: value.into() }),
        }
        entry
    }

    /// As it is written down of a move of an activity that was in this state; not at all if the move
    /// could not be made.
    pub(crate) fn of_move(&self, step: ActivityMove, from: ActivityState) -> Option<AuditEntry> {
        if step.may_leave(from) {
            return Some(self.clone());
        }
        (from == step.to()).then(|| self.with("repeated", true))
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct AuditRow {
    pub id: i64,
    pub who: String,
    pub action: String,
    pub target: String,
    pub detail: serde_json::Value,
    pub created_ms: Millis,
    /// As in [`Origin`]; absent in rows that are older than these columns.
    pub address: Option<String>,
    pub request_id: Option<String>,
}

//! Who asks: buyers by the shop's JWT, operators by an admin token, or by a
//! session of the console that stands for one.
//!
//! Whoever is not known is refused without a word about why; the reason is for the log. How the token
//! comes, and how a refusal is told, is for those who speak HTTP.

mod admins;
mod buyers;
mod cache;
mod console;
mod jwt_crypto;
mod settings;
mod shop_keys;

use sha2::{Digest, Sha256};

pub use admins::{
    AdminError, Admins, Credential, Operator, TokenLookup, generate_admin_token, token_hash,
};
pub use buyers::{BadToken, Buyers, DevToken, SigningFailed};
pub use console::{
    ConsoleSessions, SessionError, SessionLookup, SignedIn, console_hash, is_console_secret,
};
pub use settings::AuthSettings;
pub use shop_keys::KeyError;

/// Tokens are remembered and compared by this, never by themselves.
type TokenHash = [u8; 32];

fn sha256(bytes: &[u8]) -> TokenHash {
    Sha256::digest(bytes).into()
}

//! What an operator can set of those who ask: the section `[auth]` of the settings, as it is written there.

use std::path::PathBuf;

use sale::{Secret, Switch};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthSettings {
    pub jwt_secret: Secret,
    pub jwt_public_key_file: PathBuf,
    pub jwt_jwks_file: PathBuf,
    pub jwt_algorithms: Vec<String>,
    pub jwt_audience: String,
    pub jwt_issuer: String,
    pub leeway_ms: u64,
    pub token_cache_max: usize,
    pub dev_login: Switch,
    pub dev_login_ttl_ms: u64,
    pub sale_token_ttl_ms: u64,
    pub admin_token: Secret,
    pub admin_cache_max: usize,
    /// How long a new admin token is good, unless its maker says otherwise; 0 is for ever.
    pub admin_token_ttl_ms: u64,
    /// A session of the console that was not used for so long is over.
    pub console_idle_ms: u64,
    /// A session of the console is over after this in any case.
    pub console_session_ms: u64,
}

impl AuthSettings {
    /// Did the operator give a key of the shop, so that real buyers can come?
    pub fn has_shop_key(&self) -> bool {
        self.shop_keys().next().is_some()
    }

    /// The names of the keys that are set; at most one may be.
    pub fn shop_keys(&self) -> impl Iterator<Item = &'static str> {
        [
            (!self.jwt_secret.is_empty()).then_some("auth.jwt_secret"),
            (!self.jwt_public_key_file.as_os_str().is_empty())
                .then_some("auth.jwt_public_key_file"),
            (!self.jwt_jwks_file.as_os_str().is_empty()).then_some("auth.jwt_jwks_file"),
        ]
        .into_iter()
        .flatten()
    }

    /// Without any key, and with room for every token of a test.
    #[cfg(test)]
    pub(crate) fn of_a_test() -> AuthSettings {
        AuthSettings {
            jwt_secret: Secret::default(),
            jwt_public_key_file: PathBuf::new(),
            jwt_jwks_file: PathBuf::new(),
            jwt_algorithms: Vec::new(),
            jwt_audience: String::new(),
            jwt_issuer: String::new(),
            leeway_ms: 0,
            token_cache_max: 1_000,
            dev_login: Switch::Auto,
            dev_login_ttl_ms: 60_000,
            sale_token_ttl_ms: 60_000,
            admin_token: Secret::default(),
            admin_cache_max: 1_000,
            admin_token_ttl_ms: 0,
            console_idle_ms: 60_000,
            console_session_ms: 600_000,
        }
    }
}

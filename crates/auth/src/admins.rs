//! Operators, by admin token.
//!
//! The ledger keeps tokens as hashes. That a token is good is remembered for a second, so that a
//! console that polls does not become load; where a token is revoked it is forgotten at once, and the
//! other instances of a cluster ask again within that second. That a token is none is remembered
//! longer, in a cache of its own, and what does not even look like one is not asked for: rubbish costs
//! the ledger next to nothing.
//!
//! A token may expire and may be bound to addresses; both are looked at every time. When it was last used is
//! kept here, and written to the ledger by whoever asks for it now and then: no request waits for that.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use futures_util::future::BoxFuture;
use ledger::{AdminToken, ConsolePass, LedgerError, Role};
use limits::Network;
use parking_lot::Mutex;
use sale::{Millis, SharedClock};
use serde::Serialize;
use subtle::ConstantTimeEq;

use crate::{
    AuthSettings, TokenHash,
    cache::TokenCache,
    console::{from_hex, hex},
    sha256,
};

/// A token that another instance revoked may still be used this long.
const REMEMBERED_MS: Millis = 1_000;
/// How long a token that is none is not asked for again, and how many of them are remembered. Tokens
/// are random: none is made that somebody has tried before.
const REFUSED_MS: Millis = 10_000;
const REFUSED_TOKENS_MAX: usize = 10_000;
const TOKEN_PREFIX: &str = "sk_admin_";
const TOKEN_CHARS: usize = 32;
const TOKEN_CHARS_MAX: usize = 256;
/// The name under which the token of the configuration acts.
const CONFIGURED: &str = "configured";

/// Asks the ledger for the token with this hash.
pub type TokenLookup = Arc<
    dyn Fn([u8; 32]) -> BoxFuture<'static, Result<Option<AdminToken>, LedgerError>> + Send + Sync,
>;

/// The one who asks, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Operator {
    pub name: Arc<str>,
    pub role: Role,
}

impl Operator {
    /// Does the role allow what needs that one?
    pub fn may(&self, role: Role) -> bool {
        self.role.may(role)
    }
}

/// What an operator was known by, for a pass that is to stand for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    /// The token of the configuration.
    Configured,
    Token(TokenHash),
}

impl Credential {
    /// What is behind this pass.
    pub fn of(pass: &ConsolePass) -> Option<Credential> {
        if pass.configured {
            return Some(Credential::Configured);
        }
        from_hex(&pass.token).map(Credential::Token)
    }
}

fn configured() -> Operator {
    Operator { name: CONFIGURED.into(), role: Role::Admin }
}

/// Why nobody is known by a token.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error("no admin token of this deployment")]
    BadToken,
    #[error("the admin token {0} has expired")]
    Expired(Arc<str>),
    #[error("the admin token {0} may not be used from this address")]
    Elsewhere(Arc<str>),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

pub struct Admins {
    lookup: TokenLookup,
    /// The hash of the token given in the configuration.
    configured: Option<TokenHash>,
    cache: TokenCache<KnownToken>,
    refused: TokenCache<()>,
    /// When tokens were last used, by name, since that was last written down.
    uses: Mutex<HashMap<Arc<str>, Millis>>,
    clock: SharedClock,
}

/// What the ledger said of a token.
#[derive(Clone)]
struct KnownToken {
    operator: Operator,
    expires_ms: Option<Millis>,
    /// From where it may be used; none is from anywhere. Absent if one of them cannot be read, which a newer
    /// build may have written: then from nowhere.
    networks: Option<Arc<[Network]>>,
}

impl From<AdminToken> for KnownToken {
    fn from(token: AdminToken) -> KnownToken {
        let networks: Result<Arc<[Network]>, String> =
            token.bounds.addresses.iter().map(|range| range.parse()).collect();
        KnownToken {
            operator: Operator { name: token.name.into(), role: token.role },
            expires_ms: token.bounds.expires_ms,
            networks: networks.ok(),
        }
    }
}

impl KnownToken {
    fn may_ask(self, from: Option<IpAddr>, now_ms: Millis) -> Result<Operator, AdminError> {
        if self.expires_ms.is_some_and(|expires_ms| now_ms >= expires_ms) {
            return Err(AdminError::Expired(self.operator.name));
        }
        let here = self.networks.is_some_and(|networks| {
            let inside = |from| networks.iter().any(|network| network.contains(from));
            networks.is_empty() || from.is_some_and(inside)
        });
        if here { Ok(self.operator) } else { Err(AdminError::Elsewhere(self.operator.name)) }
    }
}

impl Admins {
    pub fn new(settings: &AuthSettings, lookup: TokenLookup, clock: SharedClock) -> Admins {
        let token = &settings.admin_token;
        Admins {
            lookup,
            configured: (!token.is_empty()).then(|| token_hash(token.expose())),
            cache: TokenCache::new(settings.admin_cache_max),
            refused: TokenCache::new(REFUSED_TOKENS_MAX),
            uses: Mutex::default(),
            clock,
        }
    }

    /// Who has this token, and asks from this address.
    pub async fn verify(&self, token: &str, from: Option<IpAddr>) -> Result<Operator, AdminError> {
        if token.len() > TOKEN_CHARS_MAX {
            return Err(AdminError::BadToken);
        }
        match self.credential(token) {
            Credential::Configured => Ok(configured()),
            Credential::Token(_) if !token.starts_with(TOKEN_PREFIX) => Err(AdminError::BadToken),
            Credential::Token(hash) => self.by_hash(hash, from).await,
        }
    }

    /// What stands for this token in a pass for the console. Whether it is good is not asked.
    pub fn credential(&self, token: &str) -> Credential {
        let hash = token_hash(token);
        if self.configured.is_some_and(|configured| configured.ct_eq(&hash).into()) {
            Credential::Configured
        } else {
            Credential::Token(hash)
        }
    }

    /// What a pass with this secret says of the token behind it, and whether that is the configured one.
    pub(crate) fn behind(&self, credential: Credential, secret: &str) -> (String, bool) {
        match credential {
            Credential::Token(hash) => (hex(&hash), false),
            Credential::Configured => (hex(&self.configured_for(secret).unwrap_or_default()), true),
        }
    }

    /// Whose token is behind a pass with this secret, if it is still good, here and now.
    pub async fn verify_behind(
        &self,
        pass: &ConsolePass,
        secret: &str,
        from: Option<IpAddr>,
    ) -> Result<Operator, AdminError> {
        let hash = from_hex(&pass.token).ok_or(AdminError::BadToken)?;
        if !pass.configured {
            return self.by_hash(hash, from).await;
        }
        let still = self.configured_for(secret).is_some_and(|now| now.ct_eq(&hash).into());
        if still { Ok(configured()) } else { Err(AdminError::BadToken) }
    }

    /// What stands for the configured token in one pass. It may be a word that can be guessed, so its bare
    /// hash is kept nowhere.
    fn configured_for(&self, secret: &str) -> Option<TokenHash> {
        let configured = self.configured?;
        Some(sha256(&[secret.as_bytes(), &configured].concat()))
    }

    async fn by_hash(&self, hash: TokenHash, from: Option<IpAddr>) -> Result<Operator, AdminError> {
        let now_ms = self.clock.now_ms();
        if let Some(known) = self.cache.get(&hash, now_ms) {
            return self.used(known.may_ask(from, now_ms)?, now_ms);
        }
        if self.refused.get(&hash, now_ms).is_some() {
            return Err(AdminError::BadToken);
        }
        let Some(found) = (self.lookup)(hash).await? else {
            self.refused.put(hash, (), now_ms, now_ms.saturating_add(REFUSED_MS));
            return Err(AdminError::BadToken);
        };
        let known = KnownToken::from(found);
        self.cache.put(hash, known.clone(), now_ms, now_ms + REMEMBERED_MS);
        self.used(known.may_ask(from, now_ms)?, now_ms)
    }

    fn used(&self, operator: Operator, now_ms: Millis) -> Result<Operator, AdminError> {
        self.uses.lock().insert(operator.name.clone(), now_ms);
        Ok(operator)
    }

    /// When tokens were used since this was last asked: to be written down.
    pub fn take_uses(&self) -> Vec<(String, Millis)> {
        let uses = std::mem::take(&mut *self.uses.lock());
        uses.into_iter().map(|(name, used_ms)| (name.to_string(), used_ms)).collect()
    }

    /// Forget what the ledger said, e.g. because a token was revoked here.
    pub fn forget(&self) {
        self.cache.clear();
        self.refused.clear();
    }
}

/// What the ledger keeps of a token.
pub fn token_hash(token: &str) -> [u8; 32] {
    sha256(token.as_bytes())
}

/// A new token with 160 random bits.
pub fn generate_admin_token() -> Result<String, getrandom::Error> {
    // Without the letters and digits that are taken for one another when read aloud.
    const ALPHABET: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz023456789";
    let mut random = [0; TOKEN_CHARS];
    getrandom::fill(&mut random)?;
    let chars = random.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)]));
    Ok(TOKEN_PREFIX.chars().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;
    use ledger::TokenBounds;
    use sale::{ManualClock, Secret};

    use super::*;

    const KNOWN: &str = "sk_admin_of_the_ledger";

    /// An `Admins`, what the ledger behind it knows, and how often it was asked.
    struct KnownTokens {
        admins: Admins,
        clock: Arc<ManualClock>,
        known: Arc<Mutex<Result<Option<Role>, ()>>>,
        asked: Arc<AtomicUsize>,
        bounded: Arc<Mutex<TokenBounds>>,
    }

    impl KnownTokens {
        fn new() -> KnownTokens {
            let known = Arc::new(Mutex::new(Ok(Some(Role::Operator))));
            let asked = Arc::new(AtomicUsize::new(0));
            let (answers, count) = (known.clone(), asked.clone());
            let bounded = Arc::new(Mutex::new(TokenBounds::default()));
            let bounds = bounded.clone();
            let lookup: TokenLookup = Arc::new(move |hash| {
                count.fetch_add(1, Ordering::Relaxed);
                let (known, bounds) = (*answers.lock(), bounds.clone());
                async move {
                    let role = known.map_err(|()| LedgerError::Unavailable("down".into()))?;
                    let role = role.filter(|_| hash == token_hash(KNOWN));
                    let (name, bounds) = ("ann".into(), bounds.lock().clone());
                    let token =
                        |role| AdminToken { name, role, created_ms: 0, bounds, last_used_ms: None };
                    Ok(role.map(token))
                }
                .boxed()
            });
            let clock = ManualClock::at(0);
            let admin_token = Secret::new("of the environment");
            let settings = AuthSettings { admin_token, ..AuthSettings::of_a_test() };
            KnownTokens {
                admins: Admins::new(&settings, lookup, clock.clone()),
                clock,
                known,
                asked,
                bounded,
            }
        }

        fn verify(&self, token: &str) -> Result<Operator, AdminError> {
            self.verify_from(token, None)
        }

        fn verify_from(&self, token: &str, from: Option<&str>) -> Result<Operator, AdminError> {
            let from = from.map(|from| from.parse().unwrap());
            self.admins.verify(token, from).now_or_never().unwrap()
        }

        fn is_refused(&self, token: &str) -> bool {
            matches!(self.verify(token), Err(AdminError::BadToken))
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn the_configured_token_may_do_everything_and_asks_nobody() {
        let tokens = KnownTokens::new();
        let operator = tokens.verify("of the environment").unwrap();
        assert_eq!((&*operator.name, operator.role), ("configured", Role::Admin));
        assert_eq!(tokens.asked(), 0);
    }

    #[test]
    fn a_token_of_the_ledger_is_remembered_for_a_second() {
        let tokens = KnownTokens::new();
        for _ in 0..3 {
            assert_eq!(&*tokens.verify(KNOWN).unwrap().name, "ann");
        }
        assert_eq!(tokens.asked(), 1);
        *tokens.known.lock() = Ok(None);
        assert!(tokens.verify(KNOWN).is_ok());
        tokens.clock.advance(REMEMBERED_MS);
        assert!(tokens.is_refused(KNOWN));
    }

    #[test]
    fn a_token_expires_to_the_millisecond_even_if_it_is_remembered() {
        let tokens = KnownTokens::new();
        tokens.bounded.lock().expires_ms = Some(500);
        tokens.clock.advance(499);
        assert!(tokens.verify(KNOWN).is_ok());
        tokens.clock.advance(1);
        assert!(matches!(tokens.verify(KNOWN), Err(AdminError::Expired(name)) if &*name == "ann"));
        assert_eq!(tokens.asked(), 1);
    }

    #[test]
    fn a_token_is_good_where_it_is_bound_to_and_nowhere_else() {
        let tokens = KnownTokens::new();
        tokens.bounded.lock().addresses = vec!["10.0.0.0/8".into(), "2001:db8::/32".into()];
        for from in ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8::7"] {
            assert!(tokens.verify_from(KNOWN, Some(from)).is_ok(), "{from}");
        }
        for from in [Some("11.1.2.3"), Some("::1"), None] {
            let refused = tokens.verify_from(KNOWN, from);
            assert!(matches!(refused, Err(AdminError::Elsewhere(_))), "{from:?}");
        }
        // What cannot be read opens nothing.
        tokens.bounded.lock().addresses = vec!["of a later build".into()];
        tokens.admins.forget();
        assert!(matches!(
            tokens.verify_from(KNOWN, Some("10.1.2.3")),
            Err(AdminError::Elsewhere(_))
        ));
    }

    #[test]
    fn the_last_use_is_told_once() {
        let tokens = KnownTokens::new();
        assert_eq!(tokens.admins.take_uses(), []);
        tokens.verify(KNOWN).unwrap();
        tokens.clock.advance(700);
        tokens.verify(KNOWN).unwrap();
        assert!(tokens.is_refused("sk_admin_guessed"));
        assert_eq!(tokens.admins.take_uses(), [("ann".to_owned(), 700)]);
        assert_eq!(tokens.admins.take_uses(), []);
    }

    #[test]
    fn what_is_forgotten_is_asked_again() {
        let tokens = KnownTokens::new();
        tokens.verify(KNOWN).unwrap();
        *tokens.known.lock() = Ok(None);
        tokens.admins.forget();
        assert!(tokens.is_refused(KNOWN));
    }

    #[test]
    fn rubbish_is_asked_for_once_or_not_at_all() {
        let tokens = KnownTokens::new();
        for token in ["", "nonsense", &"x".repeat(300), &"sk_admin_x".repeat(30)] {
            assert!(tokens.is_refused(token));
        }
        assert_eq!(tokens.asked(), 0, "these are no tokens of ours by their looks");
        for _ in 0..100 {
            assert!(tokens.is_refused("sk_admin_guessed"));
        }
        assert_eq!(tokens.asked(), 1);
        tokens.clock.advance(REFUSED_MS);
        assert!(tokens.is_refused("sk_admin_guessed"));
        assert_eq!(tokens.asked(), 2);
        for n in 0..REFUSED_TOKENS_MAX + 10 {
            assert!(tokens.verify(&format!("sk_admin_{n}")).is_err());
        }
        assert!(tokens.admins.refused.len() <= REFUSED_TOKENS_MAX);
    }

    #[test]
    fn a_ledger_that_is_down_refuses_nobody_for_long() {
        let tokens = KnownTokens::new();
        *tokens.known.lock() = Err(());
        assert!(matches!(tokens.verify(KNOWN), Err(AdminError::Ledger(_))));
        *tokens.known.lock() = Ok(Some(Role::Viewer));
        assert_eq!(tokens.verify(KNOWN).unwrap().role, Role::Viewer);
    }

    #[test]
    fn each_role_may_do_what_the_lower_ones_may() {
        let may = |role, needed| Operator { name: "ann".into(), role }.may(needed);
        assert!(may(Role::Admin, Role::Viewer) && may(Role::Operator, Role::Operator));
        assert!(!may(Role::Viewer, Role::Operator) && !may(Role::Operator, Role::Admin));
        assert!(may(Role::Cashier, Role::Cashier) && may(Role::Admin, Role::Cashier));
        assert!(!may(Role::Cashier, Role::Viewer), "a cashier does nothing else");
        assert!(!may(Role::Operator, Role::Cashier), "running sales is not taking money");
    }

    #[test]
    fn generated_tokens_are_long_and_differ() {
        let (one, two) = (generate_admin_token().unwrap(), generate_admin_token().unwrap());
        assert_ne!(one, two);
        for token in [&one, &two] {
            assert_eq!(token.len(), TOKEN_PREFIX.len() + TOKEN_CHARS);
            assert!(token.starts_with(TOKEN_PREFIX));
            assert!(
                token.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            );
        }
    }
}

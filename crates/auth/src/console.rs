//! Operators at the console: a browser that was signed in with an admin token, or by a link that is good
//! once.
//!
//! The browser keeps a secret of ours in a cookie, and the ledger keeps its hash and which admin token is
//! behind it. So the token itself is in no browser; a session can do what its token can do at this moment,
//! and not a second more once the token is revoked, expires or is used from elsewhere. A session also ends by
//! itself: when it was not used for a while, and after half a day in any case.
//!
//! What the ledger said is remembered for a second, as it is of tokens. When a session was last used is kept
//! here and written down by whoever asks for it now and then.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use futures_util::future::BoxFuture;
use ledger::{ConsolePass, LedgerError};
use parking_lot::Mutex;
use sale::{Millis, SharedClock};

use crate::{
    AdminError, Admins, AuthSettings, Operator, TokenHash, admins::Credential, cache::TokenCache,
    sha256,
};

/// A session that was ended at another instance may still be used this long.
const REMEMBERED_MS: Millis = 1_000;
/// How long a cookie that is none of ours is not asked for again, and how many of them are remembered.
const REFUSED_MS: Millis = 10_000;
const REFUSED_MAX: usize = 1_000;
const SESSIONS_CACHED_MAX: usize = 1_000;
const SECRET_BYTES: usize = 32;

/// Asks the ledger for the session with this hash.
pub type SessionLookup = Arc<
    dyn Fn(String) -> BoxFuture<'static, Result<Option<ConsolePass>, LedgerError>> + Send + Sync,
>;

/// Why nobody is known by a cookie.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("no session of the console, or one that is over")]
    Over,
    /// Of the token behind it.
    #[error(transparent)]
    Token(#[from] AdminError),
}

/// Somebody who is signed in.
#[derive(Clone, Debug)]
pub struct SignedIn {
    pub operator: Operator,
    pub pass: ConsolePass,
    /// When it ends unless it is used again.
    pub idle_until_ms: Millis,
}

pub struct ConsoleSessions {
    lookup: SessionLookup,
    cache: TokenCache<ConsolePass>,
    refused: TokenCache<()>,
    /// When sessions were last used, by their hash, since that was last written down.
    uses: Mutex<HashMap<String, Millis>>,
    idle_ms: Millis,
    lasts_ms: Millis,
    clock: SharedClock,
}

impl ConsoleSessions {
    pub fn new(settings: &AuthSettings, lookup: SessionLookup, clock: SharedClock) -> Self {
        let ms = |ms: u64| Millis::try_from(ms).unwrap_or(Millis::MAX);
        ConsoleSessions {
            lookup,
            cache: TokenCache::new(SESSIONS_CACHED_MAX),
            refused: TokenCache::new(REFUSED_MAX),
            uses: Mutex::default(),
            idle_ms: ms(settings.console_idle_ms),
            lasts_ms: ms(settings.console_session_ms),
            clock,
        }
    }

    /// Who has this secret in their browser, and asks from this address.
    pub async fn verify(
        &self,
        secret: &str,
        admins: &Admins,
        from: Option<IpAddr>,
    ) -> Result<SignedIn, SessionError> {
        let pass = self.known(secret).await?;
        let now_ms = self.clock.now_ms();
        let used_ms = self.uses.lock().get(&pass.secret_hash).copied();
        let used_ms = used_ms.unwrap_or(pass.used_ms).max(pass.used_ms);
        if now_ms >= pass.expires_ms || now_ms >= used_ms.saturating_add(self.idle_ms) {
            return Err(SessionError::Over);
        }
        let operator = admins.verify_behind(&pass, secret, from).await?;
        self.uses.lock().insert(pass.secret_hash.clone(), now_ms);
        let idle_until_ms = pass.expires_ms.min(now_ms.saturating_add(self.idle_ms));
        Ok(SignedIn { operator, pass, idle_until_ms })
    }

    async fn known(&self, secret: &str) -> Result<ConsolePass, SessionError> {
        if !is_console_secret(secret) {
            return Err(SessionError::Over);
        }
        let (hash, now_ms) = (sha256(secret.as_bytes()), self.clock.now_ms());
        if let Some(known) = self.cache.get(&hash, now_ms) {
            return Ok(known);
        }
        if self.refused.get(&hash, now_ms).is_some() {
            return Err(SessionError::Over);
        }
        let found = (self.lookup)(hex(&hash)).await.map_err(AdminError::from)?;
        let Some(pass) = found else {
            self.refused.put(hash, (), now_ms, now_ms.saturating_add(REFUSED_MS));
            return Err(SessionError::Over);
        };
        self.cache.put(hash, pass.clone(), now_ms, now_ms + REMEMBERED_MS);
        Ok(pass)
    }

    /// A new session of this operator: what the browser keeps, and what the ledger does.
    pub fn begin(
        &self,
        admins: &Admins,
        credential: Credential,
    ) -> Result<(String, ConsolePass), getrandom::Error> {
        self.pass(admins, credential, self.lasts_ms)
    }

    /// A new pass that stands for this operator for so long.
    pub fn pass(
        &self,
        admins: &Admins,
        credential: Credential,
        lasts_ms: Millis,
    ) -> Result<(String, ConsolePass), getrandom::Error> {
        let mut random = [0; SECRET_BYTES];
        getrandom::fill(&mut random)?;
        let secret = hex(&random);
        let (token, configured) = admins.behind(credential, &secret);
        let now_ms = self.clock.now_ms();
        let pass = ConsolePass {
            secret_hash: console_hash(&secret),
            token,
            configured,
            created_ms: now_ms,
            used_ms: now_ms,
            expires_ms: now_ms.saturating_add(lasts_ms),
        };
        Ok((secret, pass))
    }

    /// When sessions were used since this was last asked: to be written down.
    pub fn take_uses(&self) -> Vec<(String, Millis)> {
        std::mem::take(&mut *self.uses.lock()).into_iter().collect()
    }

    /// Forget what the ledger said, because a session was ended here.
    pub fn forget(&self) {
        self.cache.clear();
    }
}

/// What the ledger keeps of a link's or a session's secret.
pub fn console_hash(secret: &str) -> String {
    hex(&sha256(secret.as_bytes()))
}

/// Does it look like one? What does not is not asked for.
pub fn is_console_secret(secret: &str) -> bool {
    secret.len() == 2 * SECRET_BYTES
        && secret.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(text: &str) -> Option<TokenHash> {
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() || !text.is_ascii() {
        return None;
    }
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * n..2 * n + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use ledger::{AdminToken, Role, TokenBounds};
    use sale::{ManualClock, Secret};

    use super::*;
    use crate::{TokenLookup, token_hash};

    const TOKEN: &str = "sk_admin_of_the_ledger";
    const IDLE_MS: Millis = 60_000;
    const LASTS_MS: Millis = 600_000;

    /// A console, and what the ledger behind it has.
    struct Desk {
        sessions: ConsoleSessions,
        admins: Admins,
        clock: Arc<ManualClock>,
        passes: Arc<Mutex<HashMap<String, ConsolePass>>>,
        token_lives: Arc<Mutex<bool>>,
    }

    impl Desk {
        fn new() -> Desk {
            let clock = ManualClock::at(1_000_000);
            let passes: Arc<Mutex<HashMap<String, ConsolePass>>> = Arc::default();
            let token_lives = Arc::new(Mutex::new(true));
            let (known, lives) = (passes.clone(), token_lives.clone());
            let sessions: SessionLookup = Arc::new(move |hash| {
                let found = known.lock().get(&hash).cloned();
                async move { Ok(found) }.boxed()
            });
            let tokens: TokenLookup = Arc::new(move |hash| {
                let good = *lives.lock() && hash == token_hash(TOKEN);
                let (name, bounds) = ("ann".into(), TokenBounds::default());
                let role = Role::Operator;
                let token = AdminToken { name, role, created_ms: 0, bounds, last_used_ms: None };
                async move { Ok(good.then_some(token)) }.boxed()
            });
            let settings = AuthSettings {
                admin_token: Secret::new("of the settings"),
                console_idle_ms: IDLE_MS as u64,
                console_session_ms: LASTS_MS as u64,
                ..AuthSettings::of_a_test()
            };
            Desk {
                sessions: ConsoleSessions::new(&settings, sessions, clock.clone()),
                admins: Admins::new(&settings, tokens, clock.clone()),
                clock,
                passes,
                token_lives,
            }
        }

        fn sign_in(&self, token: &str) -> String {
            let credential = self.admins.credential(token);
            let (secret, pass) = self.sessions.begin(&self.admins, credential).unwrap();
            self.passes.lock().insert(pass.secret_hash.clone(), pass);
            secret
        }

        fn who(&self, secret: &str) -> Result<String, SessionError> {
            let verified = self.sessions.verify(secret, &self.admins, None).now_or_never().unwrap();
            verified.map(|signed_in| signed_in.operator.name.to_string())
        }
    }

    #[test]
    fn a_session_acts_as_the_token_behind_it() {
        let desk = Desk::new();
        assert_eq!(desk.who(&desk.sign_in(TOKEN)).unwrap(), "ann");
        assert_eq!(desk.who(&desk.sign_in("of the settings")).unwrap(), "configured");
        let other = desk.sign_in("sk_admin_of_nobody");
        assert!(matches!(desk.who(&other), Err(SessionError::Token(AdminError::BadToken))));
    }

    #[test]
    fn the_ledger_has_nothing_that_opens_anything() {
        let desk = Desk::new();
        let secret = desk.sign_in("of the settings");
        let pass = desk.passes.lock().values().next().unwrap().clone();
        assert_ne!(pass.secret_hash, secret);
        assert_ne!(pass.token, console_hash("of the settings"), "a short word could be guessed");
        assert!(desk.who(&pass.secret_hash).is_err());
    }

    #[test]
    fn it_ends_with_its_token() {
        let desk = Desk::new();
        let secret = desk.sign_in(TOKEN);
        assert!(desk.who(&secret).is_ok());
        *desk.token_lives.lock() = false;
        desk.admins.forget();
        assert!(matches!(desk.who(&secret), Err(SessionError::Token(AdminError::BadToken))));
    }

    #[test]
    fn it_ends_when_nobody_uses_it_and_after_its_time_in_any_case() {
        let desk = Desk::new();
        let (used, left_alone) = (desk.sign_in(TOKEN), desk.sign_in(TOKEN));
        let mut lasted_ms = 0;
        while desk.who(&used).is_ok() {
            desk.clock.advance(IDLE_MS - 1);
            lasted_ms += IDLE_MS - 1;
            // As whoever asks for the uses writes them down.
            for (hash, used_ms) in desk.sessions.take_uses() {
                desk.passes.lock().get_mut(&hash).unwrap().used_ms = used_ms;
            }
        }
        assert!((LASTS_MS..LASTS_MS + IDLE_MS).contains(&lasted_ms), "{lasted_ms}");
        assert!(matches!(desk.who(&left_alone), Err(SessionError::Over)));
    }

    #[test]
    fn signed_out_is_signed_out() {
        let desk = Desk::new();
        let secret = desk.sign_in(TOKEN);
        assert!(desk.who(&secret).is_ok());
        desk.passes.lock().clear();
        desk.sessions.forget();
        assert!(matches!(desk.who(&secret), Err(SessionError::Over)));
    }

    #[test]
    fn a_changed_secret_is_nobodys() {
        let desk = Desk::new();
        let secret = desk.sign_in(TOKEN);
        for at in [0, 31, 63] {
            let mut other = secret.clone();
            let to = if &secret[at..=at] == "0" { "1" } else { "0" };
            other.replace_range(at..=at, to);
            assert!(matches!(desk.who(&other), Err(SessionError::Over)), "{at}");
        }
        for rubbish in ["", "x", &secret[1..], &secret.to_uppercase(), &"g".repeat(64)] {
            assert!(matches!(desk.who(rubbish), Err(SessionError::Over)) || rubbish == secret);
        }
    }

    #[test]
    fn hashes_are_read_as_they_were_written() {
        let hash = sha256(b"x");
        assert_eq!(from_hex(&hex(&hash)), Some(hash));
        for bad in ["", "00", &"zz".repeat(32), &"é".repeat(32)] {
            assert_eq!(from_hex(bad), None, "{bad}");
        }
    }
}

//! Buyers, as the shop vouches for them: its JWTs, whose `sub` is the user.
//!
//! Verified tokens are remembered by hash until they expire, so a buyer pays for the signature once.
//! So are tokens whose signature was looked at in vain, for a while and in a cache of their own: the
//! same rubbish costs its signature once, and fills nobody's place but that of other rubbish.

use std::sync::Arc;

use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header,
};
use parking_lot::RwLock;
use sale::{Millis, SharedClock, UserId};
use serde::{Deserialize, Serialize};

use crate::{
    AuthSettings,
    cache::TokenCache,
    jwt_crypto, sha256,
    shop_keys::{KeyError, ShopKeys, validation},
};

/// The key id of tokens made by the dev login.
const DEV_KEY_ID: &str = "seckill-dev";
const TOKEN_BYTES_MAX: usize = 8_192;
/// How many refused tokens are remembered, and for how long.
const REFUSED_TOKENS_MAX: usize = 20_000;
const REFUSED_MS: Millis = 60_000;
/// Times in tokens are seconds, and may have a fraction.
const MS_PER_SECOND: f64 = 1_000.0;

#[derive(Deserialize)]
struct Claims {
    sub: String,
    exp: f64,
    nbf: Option<f64>,
}

/// Why a token names no buyer. For the log: whoever asks hears only that they must log in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadToken(Arc<str>);

/// A token of the dev login cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("a token cannot be signed: {0}")]
pub struct SigningFailed(#[from] jsonwebtoken::errors::Error);

pub struct Buyers {
    settings: AuthSettings,
    keys: RwLock<Arc<ShopKeys>>,
    dev: Option<Dev>,
    cache: TokenCache<UserId>,
    /// Tokens that no key and no time will make good, and why. Until the keys change.
    refused: TokenCache<Arc<str>>,
    clock: SharedClock,
}

/// A token of the dev login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevToken {
    pub token: String,
    pub expires_ms: Millis,
}

struct Dev {
    signing: EncodingKey,
    verifying: DecodingKey,
    validation: Validation,
}

impl Buyers {
    /// `dev_secret` is the process's own, where the dev login is on; it signs with a key derived from
    /// it.
    pub fn new(
        settings: &AuthSettings,
        dev_secret: Option<&[u8]>,
        clock: SharedClock,
    ) -> Result<Buyers, KeyError> {
        jwt_crypto::install();
        Ok(Buyers {
            keys: RwLock::new(Arc::new(ShopKeys::load(settings)?)),
            dev: dev_secret.and_then(Dev::new),
            cache: TokenCache::new(settings.token_cache_max),
            refused: TokenCache::new(REFUSED_TOKENS_MAX),
            settings: settings.clone(),
            clock,
        })
    }

    /// Read the key file again if it has changed; whether it had. A file that cannot be used leaves
    /// the keys as they are. Blocks for one small file: call it from a job, not from a handler.
    pub fn reload(&self) -> Result<bool, KeyError> {
        let before = self.keys.read().clone();
        let Some(keys) = before.reload(&self.settings)? else { return Ok(false) };
        *self.keys.write() = Arc::new(keys);
        // A key that was taken away must not live on in the tokens it once signed, nor may a new one
        // be told what the old ones thought of its tokens.
        self.cache.clear();
        self.refused.clear();
        Ok(true)
    }

    /// The buyer this token names.
    pub fn verify(&self, token: &str) -> Result<UserId, BadToken> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(BadToken("too long".into()));
        }
        let now_ms = self.clock.now_ms();
        let hash = sha256(token.as_bytes());
        if let Some(user) = self.cache.get(&hash, now_ms) {
            return Ok(user);
        }
        if let Some(why) = self.refused.get(&hash, now_ms) {
            return Err(BadToken(why));
        }
        let keys = self.keys.read().clone();
        match self.check(token, &keys, now_ms) {
            Ok((user, expires_ms)) => {
                self.remember(&keys, || self.cache.put(hash, user.clone(), now_ms, expires_ms));
                Ok(user)
            }
            Err(Bad { why, for_good }) => {
                let why: Arc<str> = why.into();
                if for_good {
                    let until_ms = now_ms.saturating_add(REFUSED_MS);
                    self.remember(&keys, || self.refused.put(hash, why.clone(), now_ms, until_ms));
                }
                Err(BadToken(why))
            }
        }
    }

    /// Remember something these keys said, unless they were replaced meanwhile: whoever replaces them
    /// clears what is remembered after that, and nothing may slip in behind.
    fn remember(&self, keys: &Arc<ShopKeys>, put: impl FnOnce()) {
        let now = self.keys.read();
        if Arc::ptr_eq(&now, keys) {
            put();
        }
    }

    /// The buyer and when the token stops being good.
    fn check(&self, token: &str, keys: &ShopKeys, now_ms: Millis) -> Result<(UserId, Millis), Bad> {
        let claims = self.check_signature(token, keys)?;
        let expires_ms = self.check_times(&claims, now_ms)?;
        let user = UserId::new(&claims.sub).map_err(Bad::for_good)?;
        Ok((user, expires_ms))
    }

    fn check_signature(&self, token: &str, keys: &ShopKeys) -> Result<Claims, Bad> {
        let header = decode_header(token).map_err(Bad::at_a_glance)?;
        if header.crit.is_some() {
            // RFC 7515: an extension that must be understood, and is not.
            return Err(Bad::at_a_glance("crit is not supported"));
        }
        let dev = self.dev.as_ref().filter(|_| header.kid.as_deref() == Some(DEV_KEY_ID));
        let (key, validation) = match (dev, keys.for_token(&header)) {
            (Some(dev), _) => (&dev.verifying, &dev.validation),
            (None, Some(key)) => (&key.key, &key.validation),
            (None, None) => return Err(Bad::at_a_glance("no key for it")),
        };
        let decoded = decode::<Claims>(token, key, validation);
        decoded.map(|data| data.claims).map_err(Bad::for_good)
    }

    /// When the token stops being good.
    fn check_times(&self, claims: &Claims, now_ms: Millis) -> Result<Millis, Bad> {
        let leeway_ms = self.settings.leeway_ms as Millis;
        // Casting saturates, so that an absurd time is the end of time and not an overflow.
        let ms = |seconds: f64| (seconds * MS_PER_SECOND) as Millis;
        let expires_ms = ms(claims.exp).saturating_add(leeway_ms);
        if now_ms >= expires_ms {
            return Err(Bad::for_good("expired"));
        }
        if claims.nbf.is_some_and(|nbf| ms(nbf) > now_ms.saturating_add(leeway_ms)) {
            // Its time will come.
            return Err(Bad::at_a_glance("not valid yet"));
        }
        Ok(expires_ms)
    }

    /// A token for anybody; none unless the dev login is on.
    pub fn dev_login(&self, user: &UserId) -> Result<Option<DevToken>, SigningFailed> {
        #[derive(Serialize)]
        struct Signed<'a> {
            sub: &'a str,
            exp: i64,
        }
        let Some(dev) = &self.dev else { return Ok(None) };
        let ttl_ms = self.settings.dev_login_ttl_ms as Millis;
        let expires_ms = self.clock.now_ms().saturating_add(ttl_ms);
        // Whole seconds, and never past what was promised.
        let exp = expires_ms / 1_000;
        let header = Header { kid: Some(DEV_KEY_ID.into()), ..Header::new(Algorithm::HS256) };
        let claims = Signed { sub: user.as_str(), exp };
        let token = jsonwebtoken::encode(&header, &claims, &dev.signing)?;
        Ok(Some(DevToken { token, expires_ms: exp * 1_000 }))
    }
}

impl Dev {
    fn new(secret: &[u8]) -> Option<Dev> {
        // Derived, so that a dev token can never be passed off as anything else signed here.
        let key = sha256(&[b"seckill dev login v1\0", secret].concat());
        Some(Dev {
            signing: EncodingKey::from_secret(&key),
            verifying: DecodingKey::from_secret(&key),
            validation: validation(vec![Algorithm::HS256], "", "")?,
        })
    }
}

/// Why a token is not good.
struct Bad {
    why: String,
    /// It cost a signature to find out, and will not be good later.
    for_good: bool,
}

impl Bad {
    fn for_good(why: impl ToString) -> Bad {
        Bad { why: why.to_string(), for_good: true }
    }

    /// Found out for next to nothing, or only true now.
    fn at_a_glance(why: impl ToString) -> Bad {
        Bad { why: why.to_string(), for_good: false }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use jsonwebtoken::jwk::{CommonParameters, Jwk, JwkSet};
    use sale::{Clock, ManualClock, Secret};
    use serde_json::{Value, json};

    use super::*;

    const NOW_MS: Millis = 1_800_000_000_000;
    const NOW: i64 = NOW_MS / 1_000;
    const SHOP_SECRET: &str = "a secret of the shop";

    macro_rules! test_key {
        ($name:literal) => {
            include_bytes!(concat!("test_keys/", $name))
        };
    }

    fn settings(change: impl FnOnce(&mut AuthSettings)) -> AuthSettings {
        let mut settings = AuthSettings::of_a_test();
        change(&mut settings);
        settings
    }

    fn buyers(change: impl FnOnce(&mut AuthSettings)) -> (Buyers, Arc<ManualClock>) {
        let clock = ManualClock::at(NOW_MS);
        (Buyers::new(&settings(change), None, clock.clone()).unwrap(), clock)
    }

    fn with_secret(auth: &mut AuthSettings) {
        auth.jwt_secret = Secret::new(SHOP_SECRET);
    }

    fn public(name: &str) -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "src/test_keys", name].iter().collect()
    }

    fn claims() -> Value {
        json!({ "sub": "u1002", "exp": NOW + 60 })
    }

    fn sign(header: Header, claims: &Value, key: &EncodingKey) -> String {
        jwt_crypto::install();
        jsonwebtoken::encode(&header, claims, key).unwrap()
    }

    fn hs256(claims: &Value) -> String {
        let key = EncodingKey::from_secret(SHOP_SECRET.as_bytes());
        sign(Header::new(Algorithm::HS256), claims, &key)
    }

    #[test]
    fn the_subject_of_a_good_token_is_the_buyer_until_it_expires() {
        let (buyers, clock) = buyers(with_secret);
        let token = hs256(&claims());
        for _ in 0..2 {
            assert_eq!(buyers.verify(&token).unwrap().as_str(), "u1002");
        }
        clock.advance(60_000);
        assert!(buyers.verify(&token).is_err());
    }

    #[test]
    fn claims_that_do_not_hold_are_refused() {
        let (buyers, _) = buyers(with_secret);
        for bad in [
            json!({ "sub": "u1" }),
            json!({ "exp": NOW + 60 }),
            json!({ "sub": "u1", "exp": NOW }),
            json!({ "sub": "u1", "exp": "tomorrow" }),
            json!({ "sub": "u1", "exp": -1e300 }),
            json!({ "sub": "u1", "exp": 1e300 }),
            json!({ "sub": "u1", "exp": NOW + 60, "nbf": NOW + 1 }),
            json!({ "sub": "", "exp": NOW + 60 }),
            json!({ "sub": "a b", "exp": NOW + 60 }),
            json!({ "sub": "ann\u{200B}", "exp": NOW + 60 }),
            json!({ "sub": "\u{202E}nna", "exp": NOW + 60 }),
            json!({ "sub": "x".repeat(65), "exp": NOW + 60 }),
            json!({ "sub": 7, "exp": NOW + 60 }),
        ] {
            assert!(buyers.verify(&hs256(&bad)).is_err(), "{bad}");
        }
        for good in [
            json!({ "sub": "u1", "exp": NOW as f64 + 0.5 }),
            json!({ "sub": "u1", "exp": 9_000_000_000_000_000_i64, "nbf": NOW }),
            json!({ "sub": "用户", "exp": NOW + 60, "aud": "whoever", "iss": "whoever" }),
        ] {
            assert!(buyers.verify(&hs256(&good)).is_ok(), "{good}");
        }
    }

    #[test]
    fn the_clocks_may_differ_by_the_leeway() {
        let (buyers, clock) = buyers(|auth| {
            with_secret(auth);
            auth.leeway_ms = 5_000;
        });
        let token = hs256(&json!({ "sub": "u1", "exp": NOW, "nbf": NOW + 5 }));
        assert!(buyers.verify(&token).is_ok());
        clock.advance(5_000);
        assert!(buyers.verify(&token).is_err());
    }

    #[test]
    fn audience_and_issuer_are_demanded_if_configured() {
        let (buyers, _) = buyers(|auth| {
            with_secret(auth);
            auth.jwt_audience = "seckill".into();
            auth.jwt_issuer = "shop".into();
        });
        let token = |aud: Value, iss: Value| {
            hs256(&json!({ "sub": "u1", "exp": NOW + 60, "aud": aud, "iss": iss }))
        };
        assert!(buyers.verify(&token(json!("seckill"), json!("shop"))).is_ok());
        assert!(buyers.verify(&token(json!(["x", "seckill"]), json!("shop"))).is_ok());
        assert!(buyers.verify(&token(json!("x"), json!("shop"))).is_err());
        assert!(buyers.verify(&token(json!("seckill"), json!("x"))).is_err());
        assert!(buyers.verify(&hs256(&claims())).is_err());
    }

    #[test]
    fn forged_tokens_are_refused() {
        let (buyers, _) = buyers(with_secret);
        let other = EncodingKey::from_secret(b"another secret");
        let forged = sign(Header::new(Algorithm::HS256), &claims(), &other);
        let own = EncodingKey::from_secret(SHOP_SECRET.as_bytes());
        let not_allowed = sign(Header::new(Algorithm::HS512), &claims(), &own);
        let good = hs256(&claims());
        let body = good.split('.').nth(1).unwrap();
        // {"alg":"none"} and {"typ":"JWT","alg":"NONE"}
        let none = format!("eyJhbGciOiJub25lIn0.{body}.");
        let none_again = format!("eyJ0eXAiOiJKV1QiLCJhbGciOiJOT05FIn0.{body}.");
        let unsigned = format!("{}.", good.rsplit_once('.').unwrap().0);
        let long = "x".repeat(TOKEN_BYTES_MAX + 1);
        for bad in
            [&forged, &not_allowed, &none, &none_again, &unsigned, &long, "", ".", "..", "a.b.c"]
        {
            assert!(buyers.verify(bad).is_err(), "{bad}");
        }
        let critical = Header { crit: Some(vec!["x".into()]), ..Header::new(Algorithm::HS256) };
        assert!(buyers.verify(&sign(critical, &claims(), &own)).is_err());
    }

    #[test]
    fn the_shops_public_key_verifies_its_own_algorithm() {
        let rsa = EncodingKey::from_rsa_pem(test_key!("rsa.private.pem")).unwrap();
        let p256 = EncodingKey::from_ec_pem(test_key!("p256.private.pem")).unwrap();
        let p384 = EncodingKey::from_ec_pem(test_key!("p384.private.pem")).unwrap();
        let ed = EncodingKey::from_ed_pem(test_key!("ed25519.private.pem")).unwrap();
        let cases = [
            ("rsa.public.pem", Algorithm::RS256, rsa),
            ("p256.public.pem", Algorithm::ES256, p256),
            ("p384.public.pem", Algorithm::ES384, p384),
            ("ed25519.public.pem", Algorithm::EdDSA, ed),
        ];
        for (file, _, _) in &cases {
            let (buyers, _) = buyers(|auth| auth.jwt_public_key_file = public(file));
            for (other, algorithm, key) in &cases {
                let token = sign(Header::new(*algorithm), &claims(), key);
                assert_eq!(buyers.verify(&token).is_ok(), file == other, "{file} {algorithm:?}");
            }
        }
    }

    #[test]
    fn a_public_key_is_not_a_secret() {
        let (buyers, _) = buyers(|auth| auth.jwt_public_key_file = public("rsa.public.pem"));
        let pem = EncodingKey::from_secret(test_key!("rsa.public.pem"));
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let token = sign(Header::new(algorithm), &claims(), &pem);
            assert!(buyers.verify(&token).is_err());
        }
    }

    #[test]
    fn the_operator_may_choose_among_the_algorithms_of_the_key() {
        let choose = |names: &'static [&'static str]| {
            move |auth: &mut AuthSettings| {
                auth.jwt_public_key_file = public("rsa.public.pem");
                auth.jwt_algorithms = names.iter().map(|name| (*name).into()).collect();
            }
        };
        let key = EncodingKey::from_rsa_pem(test_key!("rsa.private.pem")).unwrap();
        let (buyers, clock) = buyers(choose(&["PS256", "ES256"]));
        assert!(buyers.verify(&sign(Header::new(Algorithm::PS256), &claims(), &key)).is_ok());
        assert!(buyers.verify(&sign(Header::new(Algorithm::RS256), &claims(), &key)).is_err());
        assert!(Buyers::new(&settings(choose(&["ES256"])), None, clock).is_err());
    }

    #[test]
    fn files_that_are_no_keys_are_refused_with_their_name() {
        let load = |change: fn(&mut AuthSettings)| {
            Buyers::new(&settings(change), None, ManualClock::at(0)).err().unwrap().to_string()
        };
        let missing = load(|auth| auth.jwt_public_key_file = "/nowhere/key.pem".into());
        assert!(missing.starts_with("/nowhere/key.pem cannot be read"), "{missing}");
        let private = load(|auth| auth.jwt_public_key_file = public("rsa.private.pem"));
        assert!(private.contains("holds a private key"), "{private}");
        let nonsense = load(|auth| auth.jwt_public_key_file = public("../lib.rs"));
        assert!(nonsense.contains("is not a PEM file"), "{nonsense}");
        let short = load(|auth| auth.jwt_public_key_file = public("rsa1024.public.pem"));
        assert!(short.contains("an RSA key of 1024 bits; 2048 at least"), "{short}");
        let no_set = load(|auth| auth.jwt_jwks_file = public("rsa.public.pem"));
        assert!(no_set.contains("is not a JWKS file"), "{no_set}");
    }

    fn jwk(id: &str, key: &EncodingKey, algorithm: Algorithm) -> Jwk {
        let mut jwk = Jwk::from_encoding_key(key, algorithm).unwrap();
        jwk.common = CommonParameters { key_id: Some(id.into()), ..jwk.common };
        jwk
    }

    fn named(id: &str, algorithm: Algorithm) -> Header {
        Header { kid: Some(id.into()), ..Header::new(algorithm) }
    }

    #[test]
    fn a_set_of_keys_is_chosen_from_by_id_and_read_again_when_it_changes() {
        let rsa = EncodingKey::from_rsa_pem(test_key!("rsa.private.pem")).unwrap();
        let p256 = EncodingKey::from_ec_pem(test_key!("p256.private.pem")).unwrap();
        let hmac = EncodingKey::from_secret(b"not a public key at all");
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |keys| {
            std::fs::write(file.path(), serde_json::to_string(&JwkSet { keys }).unwrap()).unwrap();
        };
        let secret = jwk("secret", &hmac, Algorithm::HS256);
        write(vec![
            jwk("one", &rsa, Algorithm::RS256),
            jwk("two", &p256, Algorithm::ES256),
            secret.clone(),
        ]);
        let (buyers, _) = buyers(|auth| auth.jwt_jwks_file = file.path().into());
        let one = sign(named("one", Algorithm::RS256), &claims(), &rsa);
        let two = sign(named("two", Algorithm::ES256), &claims(), &p256);
        assert!(buyers.verify(&one).is_ok() && buyers.verify(&two).is_ok());
        for bad in [
            sign(named("two", Algorithm::RS256), &claims(), &rsa),
            sign(named("three", Algorithm::RS256), &claims(), &rsa),
            sign(named("secret", Algorithm::HS256), &claims(), &hmac),
            sign(Header::new(Algorithm::RS256), &claims(), &rsa),
        ] {
            assert!(buyers.verify(&bad).is_err(), "{bad}");
        }

        assert!(!buyers.reload().unwrap());
        write(vec![jwk("two", &p256, Algorithm::ES256)]);
        assert!(buyers.reload().unwrap());
        assert!(buyers.verify(&one).is_err(), "its key was taken away");
        assert!(buyers.verify(&two).is_ok());
        write(vec![secret]);
        assert!(buyers.reload().is_err());
        assert!(buyers.verify(&two).is_ok(), "a broken file leaves the keys as they are");
    }

    /// A forged token costs its signature once. With these keys that is about 170 µs; what is asked
    /// again is a look into a map.
    #[test]
    fn rubbish_costs_its_signature_once_and_is_forgotten_with_the_keys() {
        let rsa = EncodingKey::from_rsa_pem(test_key!("rsa.private.pem")).unwrap();
        let p256 = EncodingKey::from_ec_pem(test_key!("p256.private.pem")).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |keys| {
            std::fs::write(file.path(), serde_json::to_string(&JwkSet { keys }).unwrap()).unwrap();
        };
        write(vec![jwk("one", &p256, Algorithm::ES256), jwk("other", &rsa, Algorithm::RS256)]);
        let (buyers, clock) = buyers(|auth| auth.jwt_jwks_file = file.path().into());
        let remembered =
            |token: &str| buyers.refused.get(&sha256(token.as_bytes()), clock.now_ms()).is_some();
        // Signed with a key that the shop does not name so yet; not a token at all; of a key that is
        // not known; not valid yet.
        let early = json!({ "sub": "u1", "exp": NOW + 600, "nbf": NOW + 1 });
        let early = sign(named("one", Algorithm::ES256), &early, &p256);
        let good = sign(named("other", Algorithm::RS256), &claims(), &rsa);
        let (body, signature) = good.rsplit_once('.').unwrap();
        let forged = format!("{body}.{}", signature.chars().rev().collect::<String>());
        let unknown = sign(named("two", Algorithm::ES256), &claims(), &p256);
        for (token, is_remembered) in
            [(&forged, true), (&early, false), (&unknown, false), (&"a.b.c".to_owned(), false)]
        {
            for _ in 0..2 {
                assert!(buyers.verify(token).is_err());
            }
            assert_eq!(remembered(token), is_remembered, "{token}");
        }
        // Its time comes, and so does its key.
        clock.advance(1_000);
        assert!(buyers.verify(&early).is_ok());
        write(vec![jwk("two", &p256, Algorithm::ES256)]);
        assert!(buyers.reload().unwrap());
        assert!(!remembered(&forged), "new keys may think otherwise");
        assert!(buyers.verify(&unknown).is_ok());
    }

    #[test]
    fn refused_tokens_are_bounded_and_take_nobody_elses_place() {
        let (buyers, _) = buyers(with_secret);
        let good = hs256(&claims());
        assert!(buyers.verify(&good).is_ok());
        let (body, _) = good.rsplit_once('.').unwrap();
        for n in 0..REFUSED_TOKENS_MAX + 10 {
            assert!(buyers.verify(&format!("{body}.{n:043}")).is_err());
        }
        assert!(buyers.refused.len() <= REFUSED_TOKENS_MAX);
        assert_eq!(buyers.cache.len(), 1);
    }

    #[test]
    fn the_dev_login_is_for_anybody_while_it_is_on() {
        let user: UserId = "u7".parse().unwrap();
        let clock = ManualClock::at(NOW_MS);
        let settings = settings(|auth| auth.dev_login_ttl_ms = 60_000);
        let of = |secret: &[u8]| Buyers::new(&settings, Some(secret), clock.clone()).unwrap();
        let on = of(b"the process's own");
        let dev = on.dev_login(&user).unwrap().unwrap();
        assert_eq!(dev.expires_ms, NOW_MS + 60_000);
        assert_eq!(on.verify(&dev.token).unwrap(), user);
        clock.advance(60_000);
        assert!(on.verify(&dev.token).is_err());

        let (off, _) = buyers(with_secret);
        assert_eq!(off.dev_login(&user).unwrap(), None);
        assert!(off.verify(&dev.token).is_err());
        assert!(of(b"not ours").verify(&dev.token).is_err());
    }
}

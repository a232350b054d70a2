//! The keys that the shop signs its buyers' tokens with, and what each may be used for.
//!
//! A token's header says which algorithm it wants to be verified with; it is never believed. The
//! key says it: a secret verifies HMAC only, an RSA key RSA only, and so on. So neither `alg: none`
//! nor a token "signed" with the public key as an HMAC secret can pass.

use std::{fmt::Write, path::Path};

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, Header, Validation,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse},
};

use crate::{
    AuthSettings,
    jwt_crypto::{self, RSA_KEY_BITS_MIN},
};

const FILE_BYTES_MAX: u64 = 1_048_576;
const KEYS_MAX: usize = 100;

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("{file} cannot be read: {cause}")]
    Unreadable { file: String, cause: std::io::Error },
    #[error("{file} {problem}")]
    Unusable { file: String, problem: String },
}

pub(crate) struct ShopKey {
    /// From a JWKS file; tokens choose their key by it.
    id: Option<String>,
    pub(crate) key: DecodingKey,
    pub(crate) validation: Validation,
}

/// What was read, and from what.
pub(crate) struct ShopKeys {
    keys: Vec<ShopKey>,
    /// The text the keys were read from, to see whether it has changed; empty for a secret.
    text: String,
}

impl ShopKeys {
    pub(crate) fn load(settings: &AuthSettings) -> Result<ShopKeys, KeyError> {
        if !settings.jwt_secret.is_empty() {
            let key = DecodingKey::from_secret(settings.jwt_secret.expose().as_bytes());
            let keys = ShopKey::new(None, key, &[Algorithm::HS256], settings).into_iter().collect();
            return Ok(ShopKeys { keys, text: String::new() });
        }
        let text = read(settings)?;
        ShopKeys::parse(text, settings)
    }

    /// The keys anew if their file has changed.
    pub(crate) fn reload(&self, settings: &AuthSettings) -> Result<Option<ShopKeys>, KeyError> {
        if !settings.jwt_secret.is_empty() {
            return Ok(None);
        }
        let text = read(settings)?;
        if text == self.text { Ok(None) } else { ShopKeys::parse(text, settings).map(Some) }
    }

    fn parse(text: String, settings: &AuthSettings) -> Result<ShopKeys, KeyError> {
        let unusable = |problem: String| KeyError::Unusable { file: file_name(settings), problem };
        let keys = if !settings.jwt_public_key_file.as_os_str().is_empty() {
            from_pem(&text, settings).map_err(unusable)?
        } else if !settings.jwt_jwks_file.as_os_str().is_empty() {
            from_jwks(&text, settings).map_err(unusable)?
        } else {
            Vec::new()
        };
        Ok(ShopKeys { keys, text })
    }

    /// The key a token must verify with. A token without a key id fits only a single key.
    pub(crate) fn for_token(&self, header: &Header) -> Option<&ShopKey> {
        match (self.keys.as_slice(), &header.kid) {
            ([only], None) => Some(only),
            ([only], Some(_)) if only.id.is_none() => Some(only),
            (keys, Some(id)) => keys.iter().find(|key| key.id.as_ref() == Some(id)),
            _ => None,
        }
    }
}

impl ShopKey {
    /// `None` if the operator allows none of the algorithms the key can be used with.
    fn new(
        id: Option<String>,
        key: DecodingKey,
        by_default: &[Algorithm],
        settings: &AuthSettings,
    ) -> Option<ShopKey> {
        let allowed: Vec<Algorithm> = settings
            .jwt_algorithms
            .iter()
            .filter_map(|name| name.parse().ok())
            .filter(|algorithm| can_verify(&key, by_default, *algorithm))
            .collect();
        let algorithms =
            if settings.jwt_algorithms.is_empty() { by_default.to_vec() } else { allowed };
        let validation = validation(algorithms, &settings.jwt_audience, &settings.jwt_issuer)?;
        Some(ShopKey { id, key, validation })
    }
}

/// An RSA key or a secret works with every algorithm of its family; a curve with its own only.
fn can_verify(key: &DecodingKey, by_default: &[Algorithm], algorithm: Algorithm) -> bool {
    match key.family() {
        AlgorithmFamily::Hmac | AlgorithmFamily::Rsa => algorithm.family() == key.family(),
        AlgorithmFamily::Ec | AlgorithmFamily::Ed => by_default.contains(&algorithm),
    }
}

/// Times are left to the caller, who knows what the time is; the rest is checked by the library.
pub(crate) fn validation(
    algorithms: Vec<Algorithm>,
    audience: &str,
    issuer: &str,
) -> Option<Validation> {
    let mut validation = Validation::new(*algorithms.first()?);
    validation.algorithms = algorithms;
    validation.validate_exp = false;
    validation.validate_nbf = false;
    let mut required = vec!["exp", "sub"];
    if audience.is_empty() {
        validation.validate_aud = false;
    } else {
        validation.set_audience(&[audience]);
        required.push("aud");
    }
    if !issuer.is_empty() {
        validation.set_issuer(&[issuer]);
        required.push("iss");
    }
    validation.set_required_spec_claims(&required);
    Some(validation)
}

fn file(settings: &AuthSettings) -> &Path {
    if settings.jwt_jwks_file.as_os_str().is_empty() {
        &settings.jwt_public_key_file
    } else {
        &settings.jwt_jwks_file
    }
}

fn file_name(settings: &AuthSettings) -> String {
    file(settings).display().to_string()
}

fn read(settings: &AuthSettings) -> Result<String, KeyError> {
    let path = file(settings);
    if path.as_os_str().is_empty() {
        return Ok(String::new());
    }
    let unreadable = |cause| KeyError::Unreadable { file: file_name(settings), cause };
    if std::fs::metadata(path).map_err(unreadable)?.len() > FILE_BYTES_MAX {
        let problem = format!("is larger than {FILE_BYTES_MAX} bytes");
        return Err(KeyError::Unusable { file: file_name(settings), problem });
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

fn from_pem(text: &str, settings: &AuthSettings) -> Result<Vec<ShopKey>, String> {
    if text.contains("PRIVATE KEY") {
        return Err("holds a private key; only the public one belongs here".into());
    }
    let bytes = text.as_bytes();
    // An Ed25519 file is also tried as the others, and refused by them for its object identifier.
    let key = DecodingKey::from_ed_pem(bytes)
        .or_else(|_| DecodingKey::from_ec_pem(bytes))
        .or_else(|_| DecodingKey::from_rsa_pem(bytes))
        .map_err(|_| "is not a PEM file with an RSA, P-256, P-384 or Ed25519 public key")?;
    let by_default = match (key.family(), key.try_get_as_bytes().map_or(0, <[u8]>::len)) {
        (AlgorithmFamily::Rsa, _) => Algorithm::RS256,
        (AlgorithmFamily::Ed, _) => Algorithm::EdDSA,
        // An uncompressed point: one byte, then both coordinates.
        (AlgorithmFamily::Ec, 65) => Algorithm::ES256,
        (AlgorithmFamily::Ec, 97) => Algorithm::ES384,
        _ => return Err("holds a key on a curve other than P-256, P-384 or Ed25519".into()),
    };
    check_length(&key).map_err(|problem| format!("holds {problem}"))?;
    let key = ShopKey::new(None, key, &[by_default], settings)
        .ok_or_else(|| format!("holds a key for {by_default:?}, not for auth.jwt_algorithms"))?;
    Ok(vec![key])
}

/// A key that verifies nothing is told of at the start, not to every buyer.
fn check_length(key: &DecodingKey) -> Result<(), String> {
    match jwt_crypto::rsa_key_bits(key) {
        Some(bits) if bits < RSA_KEY_BITS_MIN => {
            Err(format!("an RSA key of {bits} bits; {RSA_KEY_BITS_MIN} at least are needed"))
        }
        _ => Ok(()),
    }
}

fn from_jwks(text: &str, settings: &AuthSettings) -> Result<Vec<ShopKey>, String> {
    let set: JwkSet = serde_json::from_str(text).map_err(|e| format!("is not a JWKS file: {e}"))?;
    if set.keys.len() > KEYS_MAX {
        return Err(format!("holds more than {KEYS_MAX} keys"));
    }
    let mut keys = Vec::new();
    let mut left_out = String::new();
    for jwk in &set.keys {
        match from_jwk(jwk, settings) {
            Ok(key) => keys.push(key),
            Err(why) => {
                let id = jwk.common.key_id.as_deref().unwrap_or("without kid");
                let _ = write!(left_out, "; {id}: {why}");
            }
        }
    }
    if keys.is_empty() {
        return Err(format!("holds no key that can be used{left_out}"));
    }
    if !left_out.is_empty() {
        tracing::info!(left_out = &left_out[2..], "some keys of the JWKS file are not used");
    }
    Ok(keys)
}

fn from_jwk(jwk: &Jwk, settings: &AuthSettings) -> Result<ShopKey, String> {
    if matches!(&jwk.common.public_key_use, Some(usage) if *usage != PublicKeyUse::Signature) {
        return Err("not for signatures".into());
    }
    let by_default = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => {
            Algorithm::ES256
        }
        AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P384 => {
            Algorithm::ES384
        }
        AlgorithmParameters::OctetKeyPair(_) => Algorithm::EdDSA,
        // A secret in a file of public keys is a mistake that must not become a way in.
        AlgorithmParameters::OctetKey(_) => return Err("a secret, not a public key".into()),
        _ => return Err("of a kind that is not supported".into()),
    };
    let key = DecodingKey::from_jwk(jwk).map_err(|e| format!("cannot be read: {e}"))?;
    check_length(&key)?;
    // The key may name one algorithm itself; then it is for that one.
    let named = jwk.common.key_algorithm.map(|named| named.to_string().parse::<Algorithm>());
    let by_default = match named {
        None => by_default,
        Some(Ok(named)) if can_verify(&key, &[by_default], named) => named,
        Some(_) => return Err("its alg does not go with its kind".into()),
    };
    let own = jwk.common.key_algorithm.is_some().then_some(by_default);
    ShopKey::new(jwk.common.key_id.clone(), key, &[by_default], settings)
        .filter(|key| own.is_none_or(|own| key.validation.algorithms.contains(&own)))
        .map(|mut key| {
            if let Some(own) = own {
                key.validation.algorithms = vec![own];
            }
            key
        })
        .ok_or_else(|| "not for auth.jwt_algorithms".into())
}

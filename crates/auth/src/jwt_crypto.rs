//! The cryptography of JWTs, by *ring*.
//!
//! `jsonwebtoken` brings two stacks of its own to choose from and takes a third: this one. *ring* is
//! in the build already for TLS, so buyers' tokens cost no crate more; the pure Rust stack was thirty
//! crates, and slower to look at an RSA signature, which is what junk makes it do.
//!
//! Public keys only verify. Only an HMAC secret signs here, for the demo login; tests sign with the
//! other kinds, to make the tokens that a shop would.

use std::sync::Once;

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey,
    crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils},
    errors::{ErrorKind, Result},
    signature::{Error, Signer, Verifier},
};
use ring::{hmac, signature as ring_signature};

/// Smaller RSA keys can be broken; *ring* does not look at them.
pub(crate) const RSA_KEY_BITS_MIN: usize = 2_048;

/// To be called before any token is made or looked at.
pub(crate) fn install() {
    static PROVIDER: CryptoProvider =
        CryptoProvider { signer_factory: signer, verifier_factory: verifier, key_utils: KEY_UTILS };
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Somebody else's provider would verify as well, so it may stay.
        let _ = PROVIDER.install_default();
    });
}

/// Only needed to write JWKs, which tests do; we read them.
#[cfg(not(test))]
const KEY_UTILS: KeyUtils = KeyUtils::new_unimplemented();
#[cfg(test)]
const KEY_UTILS: KeyUtils = for_tests::KEY_UTILS;

/// The length of an RSA key's modulus; `None` if it is not an RSA key.
pub(crate) fn rsa_key_bits(key: &DecodingKey) -> Option<usize> {
    if key.family() != AlgorithmFamily::Rsa {
        return None;
    }
    let modulus = match key.kind() {
        DecodingKeyKind::RsaModulusExponent { n, .. } => n.as_slice(),
        DecodingKeyKind::SecretOrDer(der) => rsa_modulus(der).unwrap_or_default(),
    };
    let leading = modulus.iter().take_while(|byte| **byte == 0).count();
    let first = modulus.get(leading).map_or(0, |byte| byte.leading_zeros() as usize);
    Some((modulus.len() - leading) * 8 - first)
}

/// The first number of an `RSAPublicKey ::= SEQUENCE { modulus INTEGER, publicExponent INTEGER }`.
fn rsa_modulus(der: &[u8]) -> Option<&[u8]> {
    const SEQUENCE: u8 = 0x30;
    const INTEGER: u8 = 0x02;
    der_value(der_value(der, SEQUENCE)?, INTEGER)
}

/// What stands in the first value of `der`, if it has this tag.
fn der_value(der: &[u8], tag: u8) -> Option<&[u8]> {
    const LONG_FORM: u8 = 0x80;
    let (&length, rest) = der.strip_prefix(&[tag])?.split_first()?;
    if length < LONG_FORM {
        return rest.get(..usize::from(length));
    }
    let (bytes, rest) = rest.split_at_checked(usize::from(length - LONG_FORM))?;
    let length = bytes.iter().try_fold(0_usize, |length, byte| {
        length.checked_mul(256)?.checked_add(usize::from(*byte))
    })?;
    rest.get(..length)
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if algorithm.family() != key.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() }))
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let verified = match (self.key.kind(), hmac_of(self.algorithm)) {
            (DecodingKeyKind::SecretOrDer(secret), Some(hash)) => {
                hmac::verify(&hmac::Key::new(hash, secret), message, signature)
            }
            (DecodingKeyKind::SecretOrDer(point), None) => match self.algorithm.family() {
                AlgorithmFamily::Rsa => rsa_of(self.algorithm).and_then(|parameters| {
                    ring_signature::UnparsedPublicKey::new(parameters, point)
                        .verify(message, signature)
                }),
                _ => curve_of(self.algorithm).and_then(|curve| {
                    ring_signature::UnparsedPublicKey::new(curve, point).verify(message, signature)
                }),
            },
            (DecodingKeyKind::RsaModulusExponent { n, e }, _) => {
                let key = ring_signature::RsaPublicKeyComponents { n, e };
                rsa_of(self.algorithm)
                    .and_then(|parameters| key.verify(parameters, message, signature))
            }
        };
        verified.map_err(|_| Error::new())
    }
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    if algorithm.family() != key.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    Ok(Box::new(RingSigner { algorithm: *algorithm, key: key.clone() }))
}

struct RingSigner {
    algorithm: Algorithm,
    key: EncodingKey,
}

impl JwtSigner for RingSigner {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Signer<Vec<u8>> for RingSigner {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        if let Some(hash) = hmac_of(self.algorithm) {
            let key = hmac::Key::new(hash, self.key.as_bytes());
            return Ok(hmac::sign(&key, message).as_ref().to_vec());
        }
        #[cfg(test)]
        return for_tests::sign(self.algorithm, self.key.as_bytes(), message);
        #[cfg(not(test))]
        Err(Error::new())
    }
}

fn hmac_of(algorithm: Algorithm) -> Option<hmac::Algorithm> {
    match algorithm {
        Algorithm::HS256 => Some(hmac::HMAC_SHA256),
        Algorithm::HS384 => Some(hmac::HMAC_SHA384),
        Algorithm::HS512 => Some(hmac::HMAC_SHA512),
        _ => None,
    }
}

type Found<T> = std::result::Result<T, ring::error::Unspecified>;

fn rsa_of(algorithm: Algorithm) -> Found<&'static ring_signature::RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Ok(&ring_signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Ok(&ring_signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Ok(&ring_signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Ok(&ring_signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Ok(&ring_signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Ok(&ring_signature::RSA_PSS_2048_8192_SHA512),
        _ => Err(ring::error::Unspecified),
    }
}

fn curve_of(algorithm: Algorithm) -> Found<&'static dyn ring_signature::VerificationAlgorithm> {
    match algorithm {
        Algorithm::ES256 => Ok(&ring_signature::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Ok(&ring_signature::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Ok(&ring_signature::ED25519),
        _ => Err(ring::error::Unspecified),
    }
}

#[cfg(test)]
mod for_tests {
    //! Signing and publishing keys as a shop does.

    use jsonwebtoken::{
        Algorithm,
        crypto::KeyUtils,
        jwk::{EllipticCurve, ThumbprintHash},
        signature::Error,
    };
    use ring::{
        rand::SystemRandom,
        signature::{
            ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
            Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaEncoding, RsaKeyPair,
        },
    };

    pub(super) const KEY_UTILS: KeyUtils = KeyUtils {
        rsa_pub_components_from_private_key: |private| {
            let pair = RsaKeyPair::from_der(private).unwrap();
            let public: ring::rsa::PublicKeyComponents<Vec<u8>> = pair.public().into();
            Ok((public.n, public.e))
        },
        ec_pub_components_from_private_key: |private, _| {
            let random = SystemRandom::new();
            let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, private, &random);
            let point = pair.unwrap().public_key().as_ref().to_vec();
            Ok((EllipticCurve::P256, point[1..33].to_vec(), point[33..].to_vec()))
        },
        rsa_pub_components_from_public_key: |_| unimplemented(),
        ed_pub_components_from_private_key: |_, _| unimplemented(),
        compute_digest: |_, _: ThumbprintHash| unimplemented(),
    };

    fn unimplemented() -> ! {
        panic!("no test needs it")
    }

    pub(super) fn sign(
        algorithm: Algorithm,
        private: &[u8],
        message: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let random = SystemRandom::new();
        let on_curve = |curve| {
            let pair = EcdsaKeyPair::from_pkcs8(curve, private, &random).unwrap();
            Ok(pair.sign(&random, message).unwrap().as_ref().to_vec())
        };
        let rsa: &'static dyn RsaEncoding = match algorithm {
            Algorithm::ES256 => return on_curve(&ECDSA_P256_SHA256_FIXED_SIGNING),
            Algorithm::ES384 => return on_curve(&ECDSA_P384_SHA384_FIXED_SIGNING),
            Algorithm::EdDSA => {
                let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(private).unwrap();
                return Ok(pair.sign(message).as_ref().to_vec());
            }
            Algorithm::RS256 => &RSA_PKCS1_SHA256,
            Algorithm::PS256 => &RSA_PSS_SHA256,
            other => panic!("no test signs with {other:?}"),
        };
        let pair = RsaKeyPair::from_der(private).unwrap();
        let mut signature = vec![0; pair.public().modulus_len()];
        pair.sign(rsa, &random, message, &mut signature).unwrap();
        Ok(signature)
    }
}

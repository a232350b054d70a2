//! The one secret that signs sale tokens, receipts and event tickets, split by purpose so that none can
//! be passed off as another.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// How much of the SHA-256 MAC is kept: 128 bits is out of reach and keeps the tokens short.
pub const MAC_BYTES: usize = 16;

/// The shortest secret accepted, in bytes.
const SECRET_BYTES_MIN: usize = 16;

#[derive(Clone)]
pub struct SigningKeys {
    pub(crate) sale_token: Signer,
    pub(crate) receipt: Signer,
    pub(crate) event_ticket: Signer,
}

impl SigningKeys {
    /// `None` if the secret is too short to be one.
    pub fn from_secret(secret: &[u8]) -> Option<Self> {
        (secret.len() >= SECRET_BYTES_MIN).then(|| SigningKeys {
            sale_token: Signer::derive(secret, "seckill sale token v1"),
            receipt: Signer::derive(secret, "seckill receipt v1"),
            event_ticket: Signer::derive(secret, "seckill event ticket v1"),
        })
    }
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKeys(redacted)")
    }
}

/// An HMAC with its key already absorbed: signing a message clones two hash states instead of
/// hashing the key again.
#[derive(Clone)]
pub(crate) struct Signer(Hmac<Sha256>);

impl Signer {
    fn derive(secret: &[u8], purpose: &str) -> Self {
        let mut root = hmac(secret);
        root.update(purpose.as_bytes());
        Signer(hmac(&root.finalize().into_bytes()))
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; MAC_BYTES] {
        let mut mac = self.0.clone();
        mac.update(message);
        let full = mac.finalize().into_bytes();
        let mut short = [0; MAC_BYTES];
        short.copy_from_slice(&full[..MAC_BYTES]);
        short
    }

    /// In constant time.
    pub(crate) fn verify(&self, message: &[u8], mac: &[u8]) -> bool {
        self.sign(message).ct_eq(mac).into()
    }
}

fn hmac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes a key of any length")
}

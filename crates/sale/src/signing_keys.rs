//! The keys that sign sale tokens, receipts and event tickets, split by purpose so that none can be passed
//! off as another.
//!
//! There may be several, each with a number. One of them signs; all of them verify, until they are taken
//! away. The first one, number 0, is made of the deployment's own secret, and what it signs says nothing of
//! a key, as it was before there were others. What a later one signs has the highest bit of its version set,
//! and the key's number in the byte behind it. So a deployment that never changes its key has the tokens it
//! always had, and a build from before reads them.
//!
//! Keys are replaced all at once, while others sign and verify: those read without a lock.

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// How much of the SHA-256 MAC is kept: 128 bits is out of reach and keeps the tokens short.
pub const MAC_BYTES: usize = 16;

/// The shortest secret accepted, in bytes.
const SECRET_BYTES_MIN: usize = 16;

/// The number of the key that is made of the deployment's own secret.
pub const FIRST_KEY: u8 = 0;
/// What the number of a later key adds to what it signs.
pub(crate) const KEY_BYTES: usize = 1;
/// Set in the version of what a later key signs.
const KEYED: u8 = 0x80;

/// All keys that are good now. A clone has the same ones, also after they were replaced.
#[derive(Clone)]
pub struct SigningKeys {
    ring: Arc<ArcSwap<KeyRing>>,
    first: Arc<SigningKey>,
}

struct KeyRing {
    /// Where the one that signs is among them.
    signing: usize,
    keys: Vec<Arc<SigningKey>>,
}

struct SigningKey {
    id: u8,
    sale_token: Signer,
    receipt: Signer,
    event_ticket: Signer,
    challenge: Signer,
    message: Signer,
}

/// What is signed. Each purpose has keys of its own, derived from the same secret.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    SaleToken,
    Receipt,
    EventTicket,
    /// What a buyer has to solve before a sale token is given.
    Challenge,
    /// Claims on their way through a message broker.
    Message,
}

impl SigningKeys {
    /// The first key alone. `None` if the secret is too short to be one.
    pub fn from_secret(secret: &[u8]) -> Option<Self> {
        let first = Arc::new(SigningKey::derive(FIRST_KEY, secret)?);
        let ring = KeyRing { signing: 0, keys: vec![first.clone()] };
        Some(SigningKeys { ring: Arc::new(ArcSwap::from_pointee(ring)), first })
    }

    /// From now on these are the later keys, by number and secret, the first one is or is not among all, and
    /// this one of them signs. False if it is none of them or a secret is too short; then nothing is changed.
    pub fn replace<'a>(
        &self,
        later: impl IntoIterator<Item = (u8, &'a [u8])>,
        with_first: bool,
        signing: u8,
    ) -> bool {
        let later =
            later.into_iter().map(|(id, secret)| SigningKey::derive(id, secret).map(Arc::new));
        let first = with_first.then(|| Some(self.first.clone()));
        let Some(keys) = first.into_iter().chain(later).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let Some(signing) = keys.iter().position(|key| key.id == signing) else { return false };
        self.ring.store(Arc::new(KeyRing { signing, keys }));
        true
    }

    /// The number of the key that signs now.
    pub fn signing(&self) -> u8 {
        let ring = self.ring.load();
        ring.keys[ring.signing].id
    }

    /// A version, the key's number if it is not the first one, the fields and the MAC over them, as a text.
    pub(crate) fn sign(
        &self,
        purpose: Purpose,
        version: u8,
        fields_bytes: usize,
        fields: impl FnOnce(&mut Vec<u8>),
    ) -> String {
        let ring = self.ring.load();
        let key = &ring.keys[ring.signing];
        let mut bytes = Vec::with_capacity(1 + KEY_BYTES + fields_bytes + MAC_BYTES);
        if key.id == FIRST_KEY {
            bytes.push(version);
        } else {
            bytes.extend([version | KEYED, key.id]);
        }
        fields(&mut bytes);
        let mac = key.signer(purpose).sign(&bytes);
        bytes.extend(mac);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The MAC of a message whose format is another's, and has no room for the number of a key.
    pub fn mac(&self, purpose: Purpose, message: &[u8]) -> [u8; MAC_BYTES] {
        let ring = self.ring.load();
        ring.keys[ring.signing].signer(purpose).sign(message)
    }

    /// Is this MAC of one of the keys?
    pub fn has_signed(&self, purpose: Purpose, message: &[u8], mac: &[u8]) -> bool {
        let ring = self.ring.load();
        ring.keys.iter().any(|key| key.signer(purpose).verify(message, mac))
    }

    /// The version and the fields of what one of the keys has signed.
    pub(crate) fn verify<'a>(&self, purpose: Purpose, bytes: &'a [u8]) -> Option<(u8, &'a [u8])> {
        let (signed, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        let (version, fields) = signed.split_first()?;
        let (id, fields) =
            if version & KEYED == 0 { (&FIRST_KEY, fields) } else { fields.split_first()? };
        let ring = self.ring.load();
        let key = ring.keys.iter().find(|key| key.id == *id)?;
        key.signer(purpose).verify(signed, mac).then_some((version & !KEYED, fields))
    }
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKeys(redacted)")
    }
}

impl SigningKey {
    fn derive(id: u8, secret: &[u8]) -> Option<SigningKey> {
        (secret.len() >= SECRET_BYTES_MIN).then(|| SigningKey {
            id,
            sale_token: Signer::derive(secret, "seckill sale token v1"),
            receipt: Signer::derive(secret, "seckill receipt v1"),
            event_ticket: Signer::derive(secret, "seckill event ticket v1"),
            challenge: Signer::derive(secret, "seckill challenge v1"),
            message: Signer::derive(secret, "seckill message v1"),
        })
    }

    fn signer(&self, purpose: Purpose) -> &Signer {
        match purpose {
            Purpose::SaleToken => &self.sale_token,
            Purpose::Receipt => &self.receipt,
            Purpose::EventTicket => &self.event_ticket,
            Purpose::Challenge => &self.challenge,
            Purpose::Message => &self.message,
        }
    }
}

/// An HMAC with its key already absorbed: signing a message clones two hash states instead of
/// hashing the key again.
struct Signer(Hmac<Sha256>);

impl Signer {
    fn derive(secret: &[u8], purpose: &str) -> Self {
        let mut root = hmac(secret);
        root.update(purpose.as_bytes());
        Signer(hmac(&root.finalize().into_bytes()))
    }

    fn sign(&self, message: &[u8]) -> [u8; MAC_BYTES] {
        let mut mac = self.0.clone();
        mac.update(message);
        let full = mac.finalize().into_bytes();
        let mut short = [0; MAC_BYTES];
        short.copy_from_slice(&full[..MAC_BYTES]);
        short
    }

    /// In constant time.
    fn verify(&self, message: &[u8], mac: &[u8]) -> bool {
        self.sign(message).ct_eq(mac).into()
    }
}

fn hmac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes a key of any length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventTicket, ItemId, OrderNo, Receipt, SaleToken};

    const SECRETS: [&[u8]; 3] =
        [b"the first of the secrets", b"the next of the secrets", b"one more of the secrets"];

    fn token() -> SaleToken {
        SaleToken { user: "ann".parse().unwrap(), item: ItemId(1), expires_ms: 10, from_ms: None }
    }

    fn receipt() -> Receipt {
        Receipt {
            order_no: OrderNo::from_u64(1).unwrap(),
            user: "ann".parse().unwrap(),
            item: ItemId(1),
            quantity: 1,
            epoch: 1,
            key: None,
        }
    }

    #[test]
    fn a_key_is_replaced_and_nothing_it_signed_is_void_until_it_is_taken_away() {
        let keys = SigningKeys::from_secret(SECRETS[0]).unwrap();
        // Whoever has a clone hears of it.
        let elsewhere = keys.clone();
        let ticket = EventTicket { user: "ann".parse().unwrap(), expires_ms: 10 };
        let all =
            || (token().sign(&elsewhere), receipt().sign(&elsewhere), ticket.sign(&elsewhere));
        let good = |(token, receipt, ticket): &(String, String, String)| {
            [
                SaleToken::verify(token, &keys, 0).is_some(),
                Receipt::verify(receipt, &keys).is_some(),
                EventTicket::verify(ticket, &keys, 0).is_some(),
            ]
        };
        let first = all();
        assert_eq!(good(&first), [true; 3]);
        let later = [(7, SECRETS[1])];
        assert!(keys.replace(later, true, 0), "known before it signs");
        assert_eq!(all(), first, "and nothing looks different");
        assert!(keys.replace(later, true, 7));
        assert_eq!(keys.signing(), 7);
        let second = all();
        assert!(second.0.len() <= first.0.len() + 2, "one byte more");
        assert_eq!((good(&first), good(&second)), ([true; 3], [true; 3]));
        assert!(keys.replace([(7, SECRETS[1]), (8, SECRETS[2])], false, 8));
        assert_eq!((good(&first), good(&second), good(&all())), ([false; 3], [true; 3], [true; 3]));
        // A number is not the key.
        assert!(keys.replace([(7, SECRETS[2])], false, 7));
        assert_eq!(good(&second), [false; 3]);
    }

    #[test]
    fn a_mac_without_a_number_is_looked_for_among_all_keys() {
        let keys = SigningKeys::from_secret(SECRETS[0]).unwrap();
        let mac = keys.mac(Purpose::Challenge, b"message");
        assert!(keys.replace([(1, SECRETS[1])], true, 1));
        assert_ne!(keys.mac(Purpose::Challenge, b"message"), mac);
        assert!(keys.has_signed(Purpose::Challenge, b"message", &mac));
        assert!(!keys.has_signed(Purpose::Challenge, b"another", &mac));
        assert!(!keys.has_signed(Purpose::Receipt, b"message", &mac));
        assert!(keys.replace([(1, SECRETS[1])], false, 1));
        assert!(!keys.has_signed(Purpose::Challenge, b"message", &mac));
    }

    #[test]
    fn what_makes_no_sense_changes_nothing() {
        let keys = SigningKeys::from_secret(SECRETS[0]).unwrap();
        assert!(!keys.replace([(1, SECRETS[1])], true, 2), "nobody would sign");
        assert!(!keys.replace([(1, &b"short"[..])], true, 1));
        assert!(!keys.replace([], false, 0));
        assert_eq!(keys.signing(), 0);
        assert!(SaleToken::verify(&token().sign(&keys), &keys, 0).is_some());
    }
}

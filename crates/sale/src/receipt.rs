//! The receipt: signed proof of a claim, held by the buyer.
//!
//! It carries all that is needed to admit the claim again, should the gate ever lose it. The bytes
//! depend on the claim and the key alone, so asking twice gives the same receipt, unless the key was replaced
//! in between. Layout, then base64url:
//! `version:1 · order_no:8 · item:8 · quantity:4 · epoch:8 · key:8 · user:1..256 · mac:16`.
//! The key is the hash of the buyer's `Idempotency-Key`, zero if there was none: a claim that is
//! admitted again answers to its old key. Receipts of version 1 have no key and are still good.
//! What a later signing key than the first one signs names it ([`SigningKeys`]).

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{
    Epoch, ItemId, KeyHash, MAC_BYTES, OrderNo, SigningKeys, UserId,
    signing_keys::{KEY_BYTES, Purpose},
};

const VERSION: u8 = 2;
/// What is before the user.
const FIELDS_BYTES: usize = 8 + 8 + 4 + 8 + 8;
/// Of version 1, which ends with the epoch.
const KEYLESS_VERSION: u8 = 1;
const KEYLESS_FIELDS_BYTES: usize = FIELDS_BYTES - 8;
/// The longest receipt. It is plain ASCII.
pub const RECEIPT_CHARS_MAX: usize =
    (1 + KEY_BYTES + FIELDS_BYTES + 256 + MAC_BYTES).div_ceil(3) * 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub order_no: OrderNo,
    pub user: UserId,
    pub item: ItemId,
    pub quantity: u32,
    pub epoch: Epoch,
    /// Present if the claim came with an `Idempotency-Key`.
    pub key: Option<KeyHash>,
}

impl Receipt {
    pub fn sign(&self, keys: &SigningKeys) -> String {
        let user = self.user.as_str().as_bytes();
        keys.sign(Purpose::Receipt, VERSION, FIELDS_BYTES + user.len(), |bytes| {
            bytes.extend(self.order_no.as_u64().to_be_bytes());
            bytes.extend(self.item.0.to_be_bytes());
            bytes.extend(self.quantity.to_be_bytes());
            bytes.extend(self.epoch.to_be_bytes());
            bytes.extend(self.key.map_or(0, |key| key.0).to_be_bytes());
            bytes.extend(user);
        })
    }

    pub fn verify(text: &str, keys: &SigningKeys) -> Option<Receipt> {
        if text.len() > RECEIPT_CHARS_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (version, fields) = keys.verify(Purpose::Receipt, &bytes)?;
        let (before_user, with_key) = match version {
            VERSION => (FIELDS_BYTES, true),
            KEYLESS_VERSION => (KEYLESS_FIELDS_BYTES, false),
            _ => return None,
        };
        let (fields, user) = fields.split_at_checked(before_user)?;
        let eight = |at: usize| Some(u64::from_be_bytes(fields[at..at + 8].try_into().ok()?));
        let key = if with_key { eight(28)?.into() } else { None };
        Some(Receipt {
            order_no: OrderNo::from_u64(eight(0)?).ok()?,
            item: ItemId(eight(8)? as i64),
            quantity: u32::from_be_bytes(fields[16..20].try_into().ok()?),
            epoch: eight(20)?,
            key: key.filter(|key| *key != 0).map(KeyHash),
            user: UserId::stored(std::str::from_utf8(user).ok()?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(key: Option<KeyHash>) -> Receipt {
        Receipt {
            order_no: "SK0000000000000000017".parse().unwrap(),
            user: "u1002".parse().unwrap(),
            item: ItemId(42),
            quantity: 2,
            epoch: 3,
            key,
        }
    }

    #[test]
    fn a_receipt_proves_one_claim() {
        let keys = SigningKeys::from_secret(b"a secret for the tests").unwrap();
        let receipt = receipt(Some(KeyHash(77)));
        let text = receipt.sign(&keys);
        assert_eq!(Receipt::verify(&text, &keys), Some(receipt.clone()));
        let forged = Receipt { quantity: 200, ..receipt };
        let body = forged.sign(&SigningKeys::from_secret(b"another secret, not ours").unwrap());
        assert_eq!(Receipt::verify(&body, &keys), None);
        for bad in ["", "AAAA", &text[1..], "ÿÿÿÿ"] {
            assert_eq!(Receipt::verify(bad, &keys), None, "{bad}");
        }
    }

    #[test]
    fn receipts_from_before_keys_were_kept_are_still_good() {
        let keys = SigningKeys::from_secret(b"a secret for the tests").unwrap();
        let receipt = receipt(None);
        let mut old = vec![1];
        old.extend(receipt.order_no.as_u64().to_be_bytes());
        old.extend(receipt.item.0.to_be_bytes());
        old.extend(receipt.quantity.to_be_bytes());
        old.extend(receipt.epoch.to_be_bytes());
        old.extend(b"u1002");
        let fields = old.split_off(1);
        let text = keys.sign(Purpose::Receipt, old[0], fields.len(), |bytes| {
            bytes.extend(&fields);
        });
        assert_eq!(Receipt::verify(&text, &keys), Some(receipt.clone()));
        let now = receipt.sign(&keys);
        assert_eq!(Receipt::verify(&now, &keys), Some(receipt));
    }
}

//! The receipt: signed proof of a claim, held by the buyer.
//!
//! It carries all that is needed to admit the claim again, should the gate ever lose it. The bytes
//! depend on the claim alone, so asking twice gives the same receipt. Layout, then base64url:
//! `version:1 · order_no:8 · item:8 · quantity:4 · epoch:8 · user:1..256 · mac:16`.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{Epoch, ItemId, Keys, MAC_BYTES, OrderNo, UserId};

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 1 + 8 + 8 + 4 + 8;
const TEXT_BYTES_MAX: usize = (HEAD_BYTES + 256 + MAC_BYTES).div_ceil(3) * 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub order_no: OrderNo,
    pub user: UserId,
    pub item: ItemId,
    pub quantity: u32,
    pub epoch: Epoch,
}

impl Receipt {
    pub fn sign(&self, keys: &Keys) -> String {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.user.as_str().len() + MAC_BYTES);
        bytes.push(VERSION);
        bytes.extend(self.order_no.as_u64().to_be_bytes());
        bytes.extend(self.item.0.to_be_bytes());
        bytes.extend(self.quantity.to_be_bytes());
        bytes.extend(self.epoch.to_be_bytes());
        bytes.extend(self.user.as_str().as_bytes());
        let mac = keys.receipt.sign(&bytes);
        bytes.extend(mac);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    pub fn verify(text: &str, keys: &Keys) -> Option<Receipt> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (signed, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        if signed.len() <= HEAD_BYTES || !keys.receipt.verify(signed, mac) || signed[0] != VERSION {
            return None;
        }
        let eight = |at: usize| Some(u64::from_be_bytes(signed[at..at + 8].try_into().ok()?));
        Some(Receipt {
            order_no: OrderNo::from_u64(eight(1)?).ok()?,
            item: ItemId(eight(9)? as i64),
            quantity: u32::from_be_bytes(signed[17..21].try_into().ok()?),
            epoch: eight(21)?,
            user: UserId::new(std::str::from_utf8(&signed[HEAD_BYTES..]).ok()?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_proves_one_claim() {
        let keys = Keys::from_secret(b"a secret for the tests").unwrap();
        let receipt = Receipt {
            order_no: "SK0000000000000000017".parse().unwrap(),
            user: "u1002".parse().unwrap(),
            item: ItemId(42),
            quantity: 2,
            epoch: 3,
        };
        let text = receipt.sign(&keys);
        assert_eq!(Receipt::verify(&text, &keys), Some(receipt.clone()));
        let forged = Receipt { quantity: 200, ..receipt };
        let body = forged.sign(&Keys::from_secret(b"another secret, not ours").unwrap());
        assert_eq!(Receipt::verify(&body, &keys), None);
        for bad in ["", "AAAA", &text[1..], "ÿÿÿÿ"] {
            assert_eq!(Receipt::verify(bad, &keys), None, "{bad}");
        }
    }
}

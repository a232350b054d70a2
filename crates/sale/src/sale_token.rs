//! The sale token: what the claim path checks instead of a login.
//!
//! Layout, then base64url without padding:
//! `version:1 · item:8 · expires_ms:8 · user:1..256 · mac:16`. The user takes what is left, so there
//! is no length field to lie about. One HMAC decides; no store is asked. What a later key than the first one
//! signs names it ([`SigningKeys`]).
//!
//! Where members buy before others the gate is open for both, and the token says whose turn it is: version 2
//! has `from_ms:8` behind the expiry, before which it is too early.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{
    ItemId, MAC_BYTES, Millis, SigningKeys, UserId,
    signing_keys::{KEY_BYTES, Purpose},
};

const VERSION: u8 = 1;
const VERSION_WITH_START: u8 = 2;
/// What is before the user, at the most.
const FIELDS_BYTES: usize = 8 + 8 + 8;
/// The longest token that can be good: a user id of 64 four-byte characters.
const TEXT_BYTES_MAX: usize = (1 + KEY_BYTES + FIELDS_BYTES + 256 + MAC_BYTES).div_ceil(3) * 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaleToken {
    pub user: UserId,
    pub item: ItemId,
    pub expires_ms: Millis,
    /// Too early before, if the gate alone does not see to that.
    pub from_ms: Option<Millis>,
}

impl SaleToken {
    pub fn sign(&self, keys: &SigningKeys) -> String {
        let user = self.user.as_str().as_bytes();
        let version = if self.from_ms.is_some() { VERSION_WITH_START } else { VERSION };
        keys.sign(Purpose::SaleToken, version, FIELDS_BYTES + user.len(), |bytes| {
            bytes.extend(self.item.0.to_be_bytes());
            bytes.extend(self.expires_ms.to_be_bytes());
            bytes.extend(self.from_ms.map(i64::to_be_bytes).into_iter().flatten());
            bytes.extend(user);
        })
    }

    /// The token, if we signed it and it has not expired. Whether it is for the item at hand is the
    /// caller's to compare.
    pub fn verify(text: &str, keys: &SigningKeys, now_ms: Millis) -> Option<SaleToken> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let mut space = [0; TEXT_BYTES_MAX];
        let length = URL_SAFE_NO_PAD.decode_slice(text, &mut space).ok()?;
        let (version, fields) = keys.verify(Purpose::SaleToken, &space[..length])?;
        let (item, rest) = fields.split_first_chunk()?;
        let (expires_ms, rest) = rest.split_first_chunk()?;
        let (from_ms, user) = match version {
            VERSION => (None, rest),
            VERSION_WITH_START => {
                let (from_ms, user) = rest.split_first_chunk()?;
                (Some(i64::from_be_bytes(*from_ms)), user)
            }
            _ => return None,
        };
        let token = SaleToken {
            item: ItemId(i64::from_be_bytes(*item)),
            expires_ms: i64::from_be_bytes(*expires_ms),
            from_ms,
            user: UserId::stored(std::str::from_utf8(user).ok()?).ok()?,
        };
        (now_ms < token.expires_ms).then_some(token)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys() -> SigningKeys {
        SigningKeys::from_secret(b"a secret for the tests").unwrap()
    }

    #[test]
    fn a_token_names_its_buyer_until_it_expires() {
        let token = SaleToken {
            user: "用户1002".parse().unwrap(),
            item: ItemId(42),
            expires_ms: 1_000,
            from_ms: None,
        };
        let text = token.sign(&keys());
        assert_eq!(SaleToken::verify(&text, &keys(), 999), Some(token));
        assert_eq!(SaleToken::verify(&text, &keys(), 1_000), None);
        let others = SigningKeys::from_secret(b"another secret, not ours").unwrap();
        assert_eq!(SaleToken::verify(&text, &others, 999), None);
    }

    #[test]
    fn the_longest_user_id_fits() {
        let user: UserId = "😀".repeat(64).parse().unwrap();
        let token = SaleToken {
            user,
            item: ItemId(i64::MAX),
            expires_ms: i64::MAX,
            from_ms: Some(i64::MIN),
        };
        assert_eq!(SaleToken::verify(&token.sign(&keys()), &keys(), 0), Some(token));
    }

    #[test]
    fn a_receipt_is_not_a_token() {
        let receipt = crate::Receipt {
            order_no: crate::OrderNo::from_u64(1).unwrap(),
            user: "u1".parse().unwrap(),
            item: ItemId(1),
            quantity: 1,
            epoch: 1,
            key: None,
        };
        assert_eq!(SaleToken::verify(&receipt.sign(&keys()), &keys(), 0), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_pass(text in "[A-Za-z0-9_-]{0,500}") {
            prop_assert_eq!(SaleToken::verify(&text, &keys(), 0), None);
        }

        #[test]
        fn one_changed_character_breaks_it(at in 0usize..60, to in "[A-Za-z0-9_-]") {
            let (user, item) = ("u1002".parse().unwrap(), ItemId(42));
            let token = SaleToken { user, item, expires_ms: 1_000, from_ms: None };
            let good = token.sign(&keys());
            let at = at % good.len();
            let mut bad = good.clone();
            bad.replace_range(at..=at, &to);
            prop_assume!(bad != good);
            prop_assert_eq!(SaleToken::verify(&bad, &keys(), 0), None);
        }
    }
}

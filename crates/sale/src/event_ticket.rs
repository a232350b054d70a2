//! The event ticket: what opens a stream of events where no `Authorization` header can be sent.
//!
//! A browser's `EventSource` and `WebSocket` send none, and a login in an address ends up in logs. So a
//! buyer trades the login for a ticket that opens streams and nothing else, for a minute. Layout, then
//! base64url without padding: `version:1 · expires_ms:8 · user:1..256 · mac:16`. One HMAC decides; no store
//! is asked, so that any instance takes it. What a later key than the first one signs names it
//! ([`SigningKeys`]).

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{
    MAC_BYTES, Millis, SigningKeys, UserId,
    signing_keys::{KEY_BYTES, Purpose},
};

const VERSION: u8 = 1;
/// What is before the user.
const FIELDS_BYTES: usize = 8;
/// The longest ticket that can be good: a user id of 64 four-byte characters.
pub const EVENT_TICKET_CHARS_MAX: usize =
    (1 + KEY_BYTES + FIELDS_BYTES + 256 + MAC_BYTES).div_ceil(3) * 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventTicket {
    pub user: UserId,
    pub expires_ms: Millis,
}

impl EventTicket {
    pub fn sign(&self, keys: &SigningKeys) -> String {
        let user = self.user.as_str().as_bytes();
        keys.sign(Purpose::EventTicket, VERSION, FIELDS_BYTES + user.len(), |bytes| {
            bytes.extend(self.expires_ms.to_be_bytes());
            bytes.extend(user);
        })
    }

    /// The ticket, if we signed it and it has not expired.
    pub fn verify(text: &str, keys: &SigningKeys, now_ms: Millis) -> Option<EventTicket> {
        if text.len() > EVENT_TICKET_CHARS_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (version, fields) = keys.verify(Purpose::EventTicket, &bytes)?;
        let (expires_ms, user) = fields.split_first_chunk()?;
        let ticket = EventTicket {
            expires_ms: i64::from_be_bytes(*expires_ms),
            user: UserId::stored(std::str::from_utf8(user).ok()?).ok()?,
        };
        (version == VERSION && now_ms < ticket.expires_ms).then_some(ticket)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ItemId, SaleToken};

    fn keys() -> SigningKeys {
        SigningKeys::from_secret(b"a secret for the tests").unwrap()
    }

    #[test]
    fn a_ticket_names_its_buyer_until_it_expires() {
        for user in ["用户1002".to_owned(), "😀".repeat(64)] {
            let ticket = EventTicket { user: user.parse().unwrap(), expires_ms: 1_000 };
            let text = ticket.sign(&keys());
            assert_eq!(EventTicket::verify(&text, &keys(), 999), Some(ticket));
            assert_eq!(EventTicket::verify(&text, &keys(), 1_000), None);
            let others = SigningKeys::from_secret(b"another secret, not ours").unwrap();
            assert_eq!(EventTicket::verify(&text, &others, 999), None);
        }
    }

    #[test]
    fn a_sale_token_is_not_a_ticket_nor_the_other_way_round() {
        let user: UserId = "u1".parse().unwrap();
        let token =
            SaleToken { user: user.clone(), item: ItemId(1), expires_ms: 1_000, from_ms: None };
        assert_eq!(EventTicket::verify(&token.sign(&keys()), &keys(), 0), None);
        let ticket = EventTicket { user, expires_ms: 1_000 };
        assert_eq!(SaleToken::verify(&ticket.sign(&keys()), &keys(), 0), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_pass(text in "[A-Za-z0-9_-]{0,500}") {
            prop_assert_eq!(EventTicket::verify(&text, &keys(), 0), None);
        }

        #[test]
        fn one_changed_character_breaks_it(at in 0usize..60, to in "[A-Za-z0-9_-]") {
            let ticket = EventTicket { user: "u1002".parse().unwrap(), expires_ms: 1_000 };
            let good = ticket.sign(&keys());
            let at = at % good.len();
            let mut bad = good.clone();
            bad.replace_range(at..=at, &to);
            prop_assume!(bad != good);
            prop_assert_eq!(EventTicket::verify(&bad, &keys(), 0), None);
        }
    }
}

//! Who is asking: buyers by the shop's JWT, operators by an admin token.

mod admin;
mod buyers;
mod cache;
mod jwt_crypto;
mod refusals;
mod shop_keys;

use http::{HeaderMap, header::AUTHORIZATION};
use sha2::{Digest, Sha256};

pub use admin::{Admins, Operator, TokenLookup, generate_admin_token, token_hash};
pub use buyers::{Buyer, Buyers, DevToken};
pub(crate) use refusals::{Refusal, note, tell_kept_back};
pub use shop_keys::KeyError;

/// The token of `Authorization: Bearer …`, if there is exactly one.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Tokens are remembered and compared by this, never by themselves.
type TokenHash = [u8; 32];

fn sha256(bytes: &[u8]) -> TokenHash {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_the_only_authorization() {
        let headers = |values: &[&str]| {
            values.iter().map(|v| (AUTHORIZATION, v.parse().unwrap())).collect::<HeaderMap>()
        };
        for (values, token) in [
            (&["Bearer abc"][..], Some("abc")),
            (&["bearer  abc "], Some("abc")),
            (&[], None),
            (&["Bearer"], None),
            (&["Bearer "], None),
            (&["Basic abc"], None),
            (&["abc"], None),
            (&["Bearer abc", "Bearer def"], None),
        ] {
            assert_eq!(bearer(&headers(values)), token, "{values:?}");
        }
    }
}

//! Names of things: activities, items, buyers.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize};

use crate::text::is_plain_id;

macro_rules! numeric_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                s.parse().map($name)
            }
        }
    };
}

numeric_id! {
    /// A sale session.
    ActivityId
}
numeric_id! {
    /// A product on sale in one activity.
    ItemId
}

/// The longest user id, in characters (at most 256 bytes, so lengths are written in two bytes).
pub const USER_ID_CHARS_MAX: usize = 64;

/// A buyer as the shop names them: opaque, 1 to [`USER_ID_CHARS_MAX`] visible characters, none of
/// which hides or turns others.
///
/// Shared, because one claim's buyer is named in the lane, at the gate, in the log and in the
/// ledger, and none of them changes it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct UserId(Arc<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a user id is 1 to 64 visible characters")]
pub struct InvalidUserId;

impl UserId {
    /// An id from outside: from a token of the shop, or from a login.
    pub fn new(id: &str) -> Result<Self, InvalidUserId> {
        if is_plain_id(id, USER_ID_CHARS_MAX) { Ok(UserId(id.into())) } else { Err(InvalidUserId) }
    }

    /// An id that was let in before and comes back from a store, or with our own signature. Earlier
    /// versions let more characters in: a journal with such a buyer must still be readable.
    pub fn stored(id: &str) -> Result<Self, InvalidUserId> {
        let visible = |c: char| !c.is_control() && !c.is_whitespace();
        let chars = id.chars().take(USER_ID_CHARS_MAX + 1).count();
        if chars == 0 || chars > USER_ID_CHARS_MAX || !id.chars().all(visible) {
            return Err(InvalidUserId);
        }
        Ok(UserId(id.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// As it was stored: this is how the ledger reads its columns.
impl FromStr for UserId {
    type Err = InvalidUserId;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        UserId::stored(s)
    }
}

impl std::borrow::Borrow<str> for UserId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// As it was stored: messages of the outbox and copies of orders are read with it. What comes from
/// outside is made with [`UserId::new`].
impl<'de> Deserialize<'de> for UserId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let s = String::deserialize(d)?;
        UserId::stored(&s).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_ids_are_visible_and_bounded() {
        let longest = "x".repeat(USER_ID_CHARS_MAX);
        for good in ["1", "u1002", "用户1002", "a@b.c", &longest] {
            assert_eq!(UserId::new(good).unwrap().as_str(), good);
        }
        let too_long = "x".repeat(USER_ID_CHARS_MAX + 1);
        for bad in ["", " ", "a b", "a\n", "\u{7}", "\u{3000}", &too_long] {
            assert_eq!(UserId::new(bad), Err(InvalidUserId), "{bad:?}");
            assert_eq!(UserId::stored(bad), Err(InvalidUserId), "{bad:?}");
        }
    }

    #[test]
    fn two_ids_that_look_alike_are_not_let_in_but_those_of_before_can_be_read() {
        for hidden in ["ann\u{200B}", "\u{202E}nna", "a\u{200D}nn", "ann\u{FEFF}", "an\u{AD}n"] {
            assert_eq!(UserId::new(hidden), Err(InvalidUserId), "{hidden:?}");
            assert_eq!(UserId::stored(hidden).unwrap().as_str(), hidden);
            let json = serde_json::to_string(hidden).unwrap();
            assert_eq!(serde_json::from_str::<UserId>(&json).unwrap().as_str(), hidden);
        }
    }
}

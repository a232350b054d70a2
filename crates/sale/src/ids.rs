//! Names of things: activities, items, buyers.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize};

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

/// A buyer as the shop names them: opaque, 1 to [`USER_ID_CHARS_MAX`] visible characters.
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
    pub fn new(id: &str) -> Result<Self, InvalidUserId> {
        let visible = |c: char| !c.is_control() && !c.is_whitespace();
        // Counting stops past the maximum, so a hostile megabyte costs no more than 65 steps.
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

impl FromStr for UserId {
    type Err = InvalidUserId;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        UserId::new(s)
    }
}

impl std::borrow::Borrow<str> for UserId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for UserId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let s = String::deserialize(d)?;
        UserId::new(&s).map_err(serde::de::Error::custom)
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
        }
    }
}

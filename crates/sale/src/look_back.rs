//! Looking back: what was admitted, read from the claim log long after the ledger has it.
//!
//! Every log keeps what is settled for a while: the solo journal and Redis as much as they were told to, a
//! broker for its retention. Whoever reads it disturbs nobody: nothing is taken, nothing is acknowledged.

use std::{fmt, str::FromStr};

use async_trait::async_trait;

use crate::{Claim, LogError, Millis};

/// The longest text of a [`BackMark`].
pub const BACK_MARK_CHARS_MAX: usize = 128;

/// Where a reading stopped. What it says only the log knows that made it; it may come back from anybody, so
/// a log trusts nothing in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackMark(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is none that this log gave")]
pub struct InvalidBackMark;

impl BackMark {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BackMark {
    type Err = InvalidBackMark;

    /// Letters, digits, points and dashes, so that it needs no escaping anywhere.
    fn from_str(text: &str) -> Result<BackMark, InvalidBackMark> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        let good = (1..=BACK_MARK_CHARS_MAX).contains(&text.len()) && text.bytes().all(plain);
        if good { Ok(BackMark(text.into())) } else { Err(InvalidBackMark) }
    }
}

impl fmt::Display for BackMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A claim as the log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedClaim {
    pub claim: Claim,
    /// No worker has told the log that it is settled.
    pub waits: bool,
}

/// Some of what a log still has.
#[derive(Clone, Debug, Default)]
pub struct BackPage {
    /// May be none, although more follow.
    pub claims: Vec<LoggedClaim>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<BackMark>,
}

#[derive(Debug, thiserror::Error)]
pub enum LookBackError {
    #[error(transparent)]
    Mark(#[from] InvalidBackMark),
    #[error(transparent)]
    Log(#[from] LogError),
}

/// The side of a claim log that is read long afterwards.
#[async_trait]
pub trait LookBack: Send + Sync {
    /// Claims that were made at `since_ms` or later and that the log still has, from its beginning or from
    /// where an earlier page stopped. One page is a bounded piece of work, however long the log is. A claim
    /// that is settled between two pages may be told twice, never not at all.
    async fn look_back(
        &self,
        since_ms: Millis,
        from: Option<&BackMark>,
    ) -> Result<BackPage, LookBackError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_short_and_plain() {
        for good in ["j7", "w0", "k3.1700000000000-4", &"x".repeat(BACK_MARK_CHARS_MAX)] {
            assert_eq!(good.parse::<BackMark>().unwrap().as_str(), good);
        }
        for bad in ["", "a b", "a&b", "号", "a\n", &"x".repeat(BACK_MARK_CHARS_MAX + 1)] {
            assert_eq!(bad.parse::<BackMark>(), Err(InvalidBackMark), "{bad:?}");
        }
    }
}

//! What is settled and kept all the same: how much of it, for those who look back.

use sale::Millis;

use crate::mark::{Bytes, Garbled};

/// How much of what is settled a log keeps: what is older than this, or more than this, goes, the oldest
/// first. If either is zero nothing is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    pub ms: u64,
    pub bytes_max: u64,
}

impl Keep {
    pub const NOTHING: Keep = Keep { ms: 0, bytes_max: 0 };

    pub fn is_nothing(self) -> bool {
        self.ms == 0 || self.bytes_max == 0
    }

    /// Claims made before this time are too old to be kept.
    pub(crate) fn since_ms(self, now_ms: Millis) -> Millis {
        now_ms.saturating_sub(Millis::try_from(self.ms).unwrap_or(Millis::MAX))
    }
}

/// When the claims of an encoded batch were made, and how many they are, without reading them.
pub(crate) fn head_of(batch: &[u8]) -> Result<(Millis, u64), Garbled> {
    let mut from = Bytes(batch);
    let _epoch = from.u64()?;
    Ok((from.u64()? as Millis, from.u64()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mark::encode_claims;

    #[test]
    fn the_head_of_a_batch_is_read_without_its_claims() {
        assert_eq!(head_of(&encode_claims(3, 1_800, &[])).unwrap(), (1_800, 0));
        assert!(head_of(&[0; 23]).is_err());
    }

    #[test]
    fn nothing_is_kept_for_no_time_and_in_no_room() {
        assert!(Keep { ms: 0, bytes_max: 9 }.is_nothing());
        assert!(Keep { ms: 9, bytes_max: 0 }.is_nothing());
        let long = Keep { ms: u64::MAX, bytes_max: 9 };
        assert!(!long.is_nothing() && long.since_ms(1_800) < 0);
    }
}

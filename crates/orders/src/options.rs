//! The settings of the workers.

use sale::{Invalid, Millis};
use serde::{Deserialize, Serialize};

use crate::ladder::{self, RETRY_LADDER_MS_DEFAULT};

/// No ledger transaction is asked to hold more claims than this, whatever the config says.
pub const BATCH_CLAIMS_MAX_MAX: usize = 100_000;
/// The longest pause or poll that still lets an operator see the workers react.
const WAIT_MS_MAX: u64 = 600_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Claims in one ledger transaction. Larger is faster until the transaction itself gets slow;
    /// DESIGN §5 measured a thousand.
    pub batch_claims_max: usize,
    /// Waits between the tries of a claim that fails for a reason of its own.
    pub retry_ladder_ms: Vec<Millis>,
    /// Failed claims tried again in one round of the retry loop.
    pub retry_batch_max: usize,
    /// How often the ledger is asked which failed claims are due.
    pub retry_poll_ms: u64,
    /// The first pause when the ledger or the log does not answer. It doubles with each failure.
    pub pause_ms_min: u64,
    /// The longest pause.
    pub pause_ms_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            batch_claims_max: 1_000,
            retry_ladder_ms: RETRY_LADDER_MS_DEFAULT.to_vec(),
            retry_batch_max: 200,
            retry_poll_ms: 1_000,
            pause_ms_min: 100,
            pause_ms_max: 10_000,
        }
    }
}

impl Options {
    pub fn validate(&self) -> Result<(), Invalid> {
        ladder::validate(&self.retry_ladder_ms)?;
        within("batch_claims_max", self.batch_claims_max, BATCH_CLAIMS_MAX_MAX)?;
        within("retry_batch_max", self.retry_batch_max, BATCH_CLAIMS_MAX_MAX)?;
        within("retry_poll_ms", self.retry_poll_ms, WAIT_MS_MAX)?;
        within("pause_ms_min", self.pause_ms_min, WAIT_MS_MAX)?;
        within("pause_ms_max", self.pause_ms_max, WAIT_MS_MAX)?;
        if self.pause_ms_max < self.pause_ms_min {
            return Err(Invalid::new("pause_ms_max", "must not be below pause_ms_min"));
        }
        Ok(())
    }
}

/// At least one, at most `max`.
pub(crate) fn within<N>(field: &str, value: N, max: N) -> Result<(), Invalid>
where
    N: From<u8> + PartialOrd + std::fmt::Display,
{
    if value < N::from(1) || value > max {
        return Err(Invalid::new(field, format!("must be from 1 to {max}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_an_empty_table_gives_them() {
        let empty: Options = toml::from_str("").unwrap();
        assert_eq!(empty, Options::default());
        empty.validate().unwrap();
        assert_eq!(empty.retry_ladder_ms.len(), 16);
    }

    #[test]
    fn nonsense_is_refused_by_the_name_of_its_field() {
        #[track_caller]
        fn check(text: &str, field: &str) {
            let options: Options = toml::from_str(text).unwrap();
            assert_eq!(options.validate().unwrap_err().field, field);
        }
        check("batch_claims_max = 0", "batch_claims_max");
        check("batch_claims_max = 1000000", "batch_claims_max");
        check("retry_ladder_ms = []", "retry_ladder_ms");
        check("retry_ladder_ms = [10, 0]", "retry_ladder_ms[1]");
        check("pause_ms_min = 10\npause_ms_max = 9", "pause_ms_max");
        check("retry_poll_ms = 0", "retry_poll_ms");
        assert!(toml::from_str::<Options>("batch_claim_max = 1").is_err(), "unknown key");
    }
}

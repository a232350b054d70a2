//! Telling a provider that is away from one that fails now and then.
//!
//! Whoever works through many payments stops asking a provider that is away. One answer that is lost is no
//! reason to: those after it would not be asked about, and in the next round it would be the same ones again.

use std::sync::atomic::{AtomicU32, Ordering};

use payment::ProviderError;

/// One that fails so often without an answer in between is away. A provider that loses every fifth answer
/// does that once in hundreds of thousands of calls.
pub(crate) const FAILURES_IN_A_ROW_MAX: u32 = 8;

#[derive(Default)]
pub(crate) struct Silence(AtomicU32);

impl Silence {
    pub(crate) fn is_away(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= FAILURES_IN_A_ROW_MAX
    }

    /// Notes how a call went. Answers whether it is away since this one.
    pub(crate) fn note<T>(&self, answer: &Result<T, ProviderError>) -> bool {
        match answer {
            Err(ProviderError::Unavailable(_)) => {
                self.0.fetch_add(1, Ordering::Relaxed) + 1 == FAILURES_IN_A_ROW_MAX
            }
            Ok(_) | Err(ProviderError::Refused(_)) => {
                self.0.store(0, Ordering::Relaxed);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_answers_now_and_then_is_not_away() {
        let silence = Silence::default();
        let failure = Err::<(), _>(ProviderError::Unavailable("lost".into()));
        for _ in 1..FAILURES_IN_A_ROW_MAX {
            assert!(!silence.note(&failure));
        }
        assert!(!silence.note(&Err::<(), _>(ProviderError::Refused("no".into()))));
        assert!(!silence.is_away(), "a no is an answer");
        let told: Vec<bool> =
            (0..2 * FAILURES_IN_A_ROW_MAX).map(|_| silence.note(&failure)).collect();
        assert!(silence.is_away());
        assert_eq!(told.iter().filter(|told| **told).count(), 1, "it is told once");
        silence.note(&Ok(()));
        assert!(!silence.is_away());
    }
}

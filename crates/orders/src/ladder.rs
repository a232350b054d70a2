//! The retry ladder: how long a failed claim waits before each of its next tries.
//!
//! Counting, precisely. A claim's first try is the one from the log. When it fails, `tries` is 1
//! and the claim waits for step 1 of the ladder. When try `n` fails, `n` tries have been made and
//! the claim waits for step `n`. The ladder of sixteen steps therefore allows sixteen *retries*,
//! as RocketMQ counts them, that is seventeen tries with the first one. When the retry that
//! followed the last step fails (`tries` = 17), there is no step 17, and the claim is a dead
//! letter. An operator's replay sets `tries` back to 0 and so allows the whole ladder again.

use sale::{Invalid, Millis};

const SECOND: Millis = 1_000;
const MINUTE: Millis = 60 * SECOND;
const HOUR: Millis = 60 * MINUTE;

/// RocketMQ's delay levels from the third on, which is where its retries start.
pub const RETRY_LADDER_MS_DEFAULT: [Millis; 16] = [
    10 * SECOND,
    30 * SECOND,
    MINUTE,
    2 * MINUTE,
    3 * MINUTE,
    4 * MINUTE,
    5 * MINUTE,
    6 * MINUTE,
    7 * MINUTE,
    8 * MINUTE,
    9 * MINUTE,
    10 * MINUTE,
    20 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
];

/// A claim on a longer ladder is one that nobody cares for.
pub const LADDER_STEPS_MAX: usize = 64;
/// The longest single step: a week.
pub const LADDER_STEP_MS_MAX: Millis = 7 * 24 * HOUR;

#[derive(Clone, Debug)]
pub(crate) struct Ladder(Vec<Millis>);

impl Ladder {
    pub(crate) fn new(steps_ms: &[Millis]) -> Self {
        Ladder(steps_ms.to_vec())
    }

    /// When a claim that failed `tries` times is due again; `None` once the ladder is used up.
    pub(crate) fn next_try_ms(&self, tries: u32, now_ms: Millis) -> Option<Millis> {
        assert!(tries > 0, "a claim that never failed has no place on the ladder");
        let step = self.0.get(tries as usize - 1)?;
        Some(now_ms.saturating_add(*step))
    }
}

pub(crate) fn validate(steps_ms: &[Millis]) -> Result<(), Invalid> {
    if steps_ms.is_empty() || steps_ms.len() > LADDER_STEPS_MAX {
        let range = format!("must have 1 to {LADDER_STEPS_MAX} steps");
        return Err(Invalid::new("retry_ladder_ms", range));
    }
    match steps_ms.iter().position(|step| !(1..=LADDER_STEP_MS_MAX).contains(step)) {
        None => Ok(()),
        Some(n) => {
            let range = format!("must be from 1 to {LADDER_STEP_MS_MAX}");
            Err(Invalid::new(format!("retry_ladder_ms[{n}]"), range))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_retries_then_no_more() {
        let ladder = Ladder::new(&RETRY_LADDER_MS_DEFAULT);
        assert_eq!(ladder.next_try_ms(1, 500), Some(10_500));
        assert_eq!(ladder.next_try_ms(2, 500), Some(30_500));
        assert_eq!(ladder.next_try_ms(16, 500), Some(2 * HOUR + 500));
        assert_eq!(ladder.next_try_ms(17, 500), None);
    }

    #[test]
    fn a_far_future_does_not_wrap() {
        assert_eq!(Ladder::new(&[10]).next_try_ms(1, Millis::MAX), Some(Millis::MAX));
    }
}

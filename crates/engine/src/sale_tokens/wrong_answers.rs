//! Buyers who answer challenges wrongly, and have to wait after too many.
//!
//! Each instance counts in its own memory, what it sees and what the others tell it of by a hint. A hint that
//! is lost gives somebody one more try.

use std::collections::HashMap;

use parking_lot::Mutex;
use sale::{Millis, UserId};

/// Buyers remembered. Beyond it somebody is forgotten, and has a few tries more.
const REMEMBERED_MAX: usize = 100_000;

pub(crate) struct WrongAnswers {
    answers_max: u32,
    cool_down_ms: Millis,
    by_user: Mutex<HashMap<UserId, Wrong>>,
}

struct Wrong {
    answers: u32,
    /// Until then they are remembered and, if there are too many, waited for.
    until_ms: Millis,
}

impl WrongAnswers {
    pub(crate) fn new(answers_max: u32, cool_down_ms: u64) -> WrongAnswers {
        let cool_down_ms = cool_down_ms as Millis;
        WrongAnswers { answers_max, cool_down_ms, by_user: Mutex::default() }
    }

    pub(crate) fn until(&self, user: &UserId, now_ms: Millis) -> Option<Millis> {
        let by_user = self.by_user.lock();
        let wrong = by_user.get(user)?;
        (wrong.answers >= self.answers_max && now_ms < wrong.until_ms).then_some(wrong.until_ms)
    }

    pub(crate) fn note(&self, user: &UserId, now_ms: Millis) {
        let mut by_user = self.by_user.lock();
        if by_user.len() >= REMEMBERED_MAX && !by_user.contains_key(user) {
            by_user.retain(|_, wrong| now_ms < wrong.until_ms);
            if by_user.len() >= REMEMBERED_MAX
                && let Some(somebody) = by_user.keys().next().cloned()
            {
                by_user.remove(&somebody);
            }
        }
        let until_ms = now_ms + self.cool_down_ms;
        let wrong = by_user.entry(user.clone()).or_insert(Wrong { answers: 0, until_ms });
        if now_ms >= wrong.until_ms {
            wrong.answers = 0;
        }
        wrong.answers += 1;
        wrong.until_ms = until_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_wrong_too_often_waits_for_a_while() {
        let wrong = WrongAnswers::new(3, 1_000);
        let ann: UserId = "ann".parse().unwrap();
        for now_ms in [0, 1] {
            wrong.note(&ann, now_ms);
            assert_eq!(wrong.until(&ann, now_ms), None);
        }
        wrong.note(&ann, 2);
        assert_eq!(wrong.until(&ann, 2), Some(1_002));
        assert_eq!(wrong.until(&"bob".parse().unwrap(), 2), None);
        assert_eq!(wrong.until(&ann, 1_002), None);
        wrong.note(&ann, 1_002);
        assert_eq!(wrong.until(&ann, 1_002), None, "and begins anew");
    }

    #[test]
    fn not_everybody_is_remembered_for_ever() {
        let wrong = WrongAnswers::new(1, 1_000);
        for n in 0..REMEMBERED_MAX + 10 {
            wrong.note(&format!("u{n}").parse().unwrap(), 0);
        }
        assert_eq!(wrong.by_user.lock().len(), REMEMBERED_MAX);
        wrong.note(&"late".parse().unwrap(), 5_000);
        assert_eq!(wrong.by_user.lock().len(), 1, "who need not wait any more goes first");
    }
}

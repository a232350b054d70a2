//! Buyers who answer challenges wrongly, and have to wait after too many.
//!
//! Each instance counts in its own memory, what it sees and what the others tell it of by a hint. A hint that
//! is lost gives somebody one more try.

use std::collections::HashMap;

use parking_lot::Mutex;
use sale::{Millis, UserId};

use super::CLOCKS_APART_MS_MAX;

/// Buyers remembered. Beyond it somebody is forgotten, and has a few tries more.
const REMEMBERED_MAX: usize = 100_000;
/// Where so many are remembered, those who need not wait any more are looked for this often and no more: it
/// means a look at all of them, and whoever has that many accounts could have it done at every wrong
/// answer.
const LOOK_EVERY_MS: Millis = 1_000;

pub(crate) struct WrongAnswers {
    answers_max: u32,
    cool_down_ms: Millis,
    remembered: Mutex<Remembered>,
}

#[derive(Default)]
struct Remembered {
    by_user: HashMap<UserId, Wrong>,
    looked_ms: Millis,
}

struct Wrong {
    answers: u32,
    /// Until then they are remembered and, if there are too many, waited for.
    until_ms: Millis,
}

impl WrongAnswers {
    pub(crate) fn new(answers_max: u32, cool_down_ms: u64) -> WrongAnswers {
        let cool_down_ms = cool_down_ms as Millis;
        WrongAnswers { answers_max, cool_down_ms, remembered: Mutex::default() }
    }

    pub(crate) fn until(&self, user: &UserId, now_ms: Millis) -> Option<Millis> {
        let remembered = self.remembered.lock();
        let wrong = remembered.by_user.get(user)?;
        let waits = wrong.answers >= self.answers_max && self.holds(wrong, now_ms);
        waits.then_some(wrong.until_ms)
    }

    /// What would last for longer than it may was noted by a clock that has been set right since.
    fn holds(&self, wrong: &Wrong, now_ms: Millis) -> bool {
        let latest_ms = now_ms + self.cool_down_ms + CLOCKS_APART_MS_MAX;
        (now_ms + 1..=latest_ms).contains(&wrong.until_ms)
    }

    pub(crate) fn note(&self, user: &UserId, now_ms: Millis) {
        let mut remembered = self.remembered.lock();
        remembered.make_room_for(user, now_ms);
        let until_ms = now_ms + self.cool_down_ms;
        let by_user = &mut remembered.by_user;
        let wrong = by_user.entry(user.clone()).or_insert(Wrong { answers: 0, until_ms });
        if !self.holds(wrong, now_ms) {
            wrong.answers = 0;
        }
        wrong.answers += 1;
        wrong.until_ms = until_ms;
    }
}

impl Remembered {
    fn make_room_for(&mut self, user: &UserId, now_ms: Millis) {
        if self.by_user.len() < REMEMBERED_MAX || self.by_user.contains_key(user) {
            return;
        }
        // Also where a clock was set back.
        if (now_ms - self.looked_ms).abs() >= LOOK_EVERY_MS {
            self.looked_ms = now_ms;
            self.by_user.retain(|_, wrong| now_ms < wrong.until_ms);
        }
        if self.by_user.len() >= REMEMBERED_MAX
            && let Some(somebody) = self.by_user.keys().next().cloned()
        {
            self.by_user.remove(&somebody);
        }
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
    fn a_clock_that_is_set_right_lets_nobody_wait_for_longer() {
        let wrong = WrongAnswers::new(2, 1_000);
        let ann: UserId = "ann".parse().unwrap();
        let hour_ms = 3_600_000;
        for _ in 0..2 {
            wrong.note(&ann, hour_ms);
        }
        assert_eq!(wrong.until(&ann, hour_ms), Some(hour_ms + 1_000));
        assert_eq!(wrong.until(&ann, 0), None);
        wrong.note(&ann, 0);
        assert_eq!(wrong.until(&ann, 0), None, "and begins anew");
    }

    #[test]
    fn not_everybody_is_remembered_for_ever() {
        let wrong = WrongAnswers::new(1, 1_000);
        for n in 0..REMEMBERED_MAX + 10 {
            wrong.note(&format!("u{n}").parse().unwrap(), 0);
        }
        assert_eq!(wrong.remembered.lock().by_user.len(), REMEMBERED_MAX);
        wrong.note(&"late".parse().unwrap(), 5_000);
        let left = wrong.remembered.lock().by_user.len();
        assert_eq!(left, 1, "who need not wait any more goes first");
    }

    /// A look at a hundred thousand takes about a millisecond: at every answer, ten thousand would take many
    /// seconds.
    #[test]
    fn many_accounts_that_answer_wrongly_cost_no_look_at_all_of_them_each() {
        let wrong = WrongAnswers::new(1, 60_000);
        let name = |n: usize| -> UserId { format!("u{n}").parse().unwrap() };
        (0..REMEMBERED_MAX).for_each(|n| wrong.note(&name(n), 5_000));
        wrong.note(&name(REMEMBERED_MAX), 5_000);
        let looked_ms = wrong.remembered.lock().looked_ms;
        for n in 0..10 {
            wrong.note(&name(REMEMBERED_MAX + 1 + n), 5_000 + n as Millis);
            assert_eq!(wrong.remembered.lock().looked_ms, looked_ms, "no second look");
        }
        wrong.note(&name(2 * REMEMBERED_MAX), 5_000 + LOOK_EVERY_MS);
        assert_eq!(wrong.remembered.lock().looked_ms, looked_ms + LOOK_EVERY_MS);
        assert_eq!(wrong.remembered.lock().by_user.len(), REMEMBERED_MAX, "and never more");
    }
}

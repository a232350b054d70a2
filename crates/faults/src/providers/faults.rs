//! What a company does wrong, how often, and by which dice.

use std::time::Duration;

/// How often of a thousand times, or how long at most. Nothing goes wrong unless it is asked for.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Notices come after up to so long, each on its own: so they overtake each other.
    pub notice_late_ms_max: u64,
    /// Notices that never come.
    pub notices_lost: u32,
    /// The same of money that landed after its payment was closed: nobody asks about that for a while.
    pub late_notices_lost: u32,
    /// Notices that come again, up to three times, although they were taken.
    pub notices_repeated: u32,
    /// Notices with one byte changed on their way come before the right one.
    pub notices_corrupted: u32,
    /// Somebody else's notice comes before the right one.
    pub notices_forged: u32,
    /// The company itself tries whether wrong signatures are noticed.
    pub probes: u32,
    /// Answers come after up to so long.
    pub answer_late_ms_max: u64,
    /// Nothing is done, and the answer is that something is out of order.
    pub errors: u32,
    /// The work is done, and the answer is that something is out of order.
    pub errors_after_work: u32,
    /// The work is done, and the connection is cut before the answer.
    pub answers_lost: u32,
    /// The work is done, and half of the answer comes.
    pub answers_halved: u32,
    /// The work is done, and the answer is signed by nobody.
    pub answers_forged: u32,
    /// Nothing is done, and the answer is a page of somebody else.
    pub nonsense: u32,
    /// Refunds are taken and done after up to so long.
    pub refund_late_ms_max: u64,
}

impl Faults {
    /// Everything at once, and yet most of what is asked is done in the end.
    pub fn every() -> Faults {
        Faults {
            notice_late_ms_max: 1_500,
            notices_lost: 100,
            late_notices_lost: 100,
            notices_repeated: 150,
            notices_corrupted: 60,
            notices_forged: 60,
            probes: 60,
            answer_late_ms_max: 60,
            errors: 40,
            errors_after_work: 30,
            answers_lost: 40,
            answers_halved: 30,
            answers_forged: 30,
            nonsense: 30,
            refund_late_ms_max: 800,
        }
    }
}

/// Who the company is today.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Works,
    /// Connections are cut as soon as they are made.
    Down,
    /// Requests are read and never answered.
    Hangs,
    /// Everything is answered with a fault of its own.
    Errs,
    /// Everything is answered with somebody else's page.
    Babbles,
}

/// What happens to one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerFate {
    Given,
    /// Not done.
    Erred,
    /// Not done.
    Nonsense,
    ErredAfterWork,
    Lost,
    Halved,
    Forged,
}

/// What happens to one notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoticeFate {
    pub(super) after: Duration,
    pub(super) lost: bool,
    pub(super) repeats: Vec<Duration>,
    pub(super) before: Vec<Forgery>,
}

/// A notice that must have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// Signed by a key that nobody knows.
    Stranger,
    /// One byte of the body is not the one that was signed.
    Corrupted,
    /// The company's own probe.
    Probe,
    /// Signed rightly, an hour ago.
    Stale,
    /// Signed rightly, for another merchant.
    OtherMerchant,
}

impl Faults {
    pub(super) fn answer_fate(&self, dice: &mut fastrand::Rng) -> AnswerFate {
        let fates = [
            (self.errors, AnswerFate::Erred),
            (self.nonsense, AnswerFate::Nonsense),
            (self.errors_after_work, AnswerFate::ErredAfterWork),
            (self.answers_lost, AnswerFate::Lost),
            (self.answers_halved, AnswerFate::Halved),
            (self.answers_forged, AnswerFate::Forged),
        ];
        let mut thrown = dice.u32(..1_000);
        for (of_thousand, fate) in fates {
            if thrown < of_thousand {
                return fate;
            }
            thrown -= of_thousand;
        }
        AnswerFate::Given
    }

    pub(super) fn answer_after(&self, dice: &mut fastrand::Rng) -> Duration {
        Duration::from_millis(dice.u64(..=self.answer_late_ms_max))
    }

    pub(super) fn refund_after_ms(&self, dice: &mut fastrand::Rng) -> i64 {
        dice.u64(..=self.refund_late_ms_max) as i64
    }

    pub(super) fn notice_fate(&self, dice: &mut fastrand::Rng, is_late_money: bool) -> NoticeFate {
        let wait =
            |dice: &mut fastrand::Rng| Duration::from_millis(dice.u64(..=self.notice_late_ms_max));
        let happens = |of_thousand: u32, dice: &mut fastrand::Rng| dice.u32(..1_000) < of_thousand;
        let after = wait(dice);
        let lost = if is_late_money { self.late_notices_lost } else { self.notices_lost };
        let lost = happens(lost, dice);
        let times = if happens(self.notices_repeated, dice) { dice.usize(1..=3) } else { 0 };
        let repeats = (0..times).map(|_| wait(dice)).collect();
        let mut before = Vec::new();
        if happens(self.notices_corrupted, dice) {
            before.push(Forgery::Corrupted);
        }
        if happens(self.notices_forged, dice) {
            let forgeries = [Forgery::Stranger, Forgery::Stale, Forgery::OtherMerchant];
            before.push(forgeries[dice.usize(..forgeries.len())]);
        }
        if happens(self.probes, dice) {
            before.push(Forgery::Probe);
        }
        NoticeFate { after, lost, repeats, before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_throws_the_same_dice_and_every_fault_comes() {
        let faults = Faults::every();
        let throws = |seed| {
            let mut dice = fastrand::Rng::with_seed(seed);
            let answers: Vec<_> = (0..1_000).map(|_| faults.answer_fate(&mut dice)).collect();
            let notices: Vec<_> =
                (0..1_000).map(|_| faults.notice_fate(&mut dice, false)).collect();
            (answers, notices)
        };
        let (answers, notices) = throws(7);
        assert_eq!((answers.clone(), notices.clone()), throws(7));
        assert_ne!(answers, throws(8).0);
        use AnswerFate::{Erred, ErredAfterWork, Forged, Given, Halved, Lost, Nonsense};
        for fate in [Given, Erred, Nonsense, ErredAfterWork, Lost, Halved, Forged] {
            assert!(answers.contains(&fate), "{fate:?}");
        }
        assert!(notices.iter().any(|fate| fate.lost));
        assert!(notices.iter().any(|fate| !fate.repeats.is_empty()));
        for forgery in [Forgery::Corrupted, Forgery::Stranger, Forgery::Probe, Forgery::Stale] {
            assert!(notices.iter().any(|fate| fate.before.contains(&forgery)), "{forgery:?}");
        }
    }

    #[test]
    fn nothing_goes_wrong_unless_it_is_asked_for() {
        let (faults, mut dice) = (Faults::default(), fastrand::Rng::with_seed(1));
        for _ in 0..1_000 {
            assert_eq!(faults.answer_fate(&mut dice), AnswerFate::Given);
            let fate = faults.notice_fate(&mut dice, false);
            assert!(!fate.lost && fate.repeats.is_empty() && fate.before.is_empty());
            assert_eq!(fate.after, Duration::ZERO);
        }
    }
}

//! What looking for room has shown in this round of the watchman, so that it is not looked for again at once.
//!
//! Whoever looks at thousands of connections for each newcomer that is refused spends more on refusing than
//! on serving, and one who comes again and again would keep all others out by that alone. So what a look
//! has found is good for the rest of the round, a tenth of a second: an address at its share has its idle
//! connections named once, and whoever comes for nothing comes for nothing until the next round.

use std::collections::HashMap;

use limits::Subscriber;

/// Idle connections that one look names at most.
const NAMED_MAX: usize = 256;

#[derive(Default)]
pub(crate) struct Looked {
    round_ms: u64,
    /// Of addresses at their share.
    idle_of: HashMap<Subscriber, IdleOnes>,
    /// The house was full, and nobody gave way to an address with so many connections. One that has more may
    /// take from nobody either.
    in_vain_with: Option<usize>,
}

/// Idle connections of one address.
#[derive(Debug, Default)]
pub(crate) struct IdleOnes {
    /// Since when they are idle, and their ids; the one that has been so for longest is the last.
    named: Vec<(u64, u64)>,
    /// There were no others.
    are_all: bool,
}

impl IdleOnes {
    /// Of these, in whatever order they are.
    pub(crate) fn of(mut found: Vec<(u64, u64)>) -> IdleOnes {
        let are_all = found.len() <= NAMED_MAX;
        if !are_all {
            found.select_nth_unstable(NAMED_MAX);
            found.truncate(NAMED_MAX);
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        IdleOnes { named: found, are_all }
    }

    /// The one that has been idle for longest, and since when.
    pub(crate) fn next(&mut self) -> Option<(u64, u64)> {
        self.named.pop()
    }

    pub(crate) fn are_all(&self) -> bool {
        self.are_all
    }
}

impl Looked {
    /// What was seen in an earlier round is forgotten.
    pub(crate) fn in_round(&mut self, round_ms: u64) {
        if self.round_ms != round_ms {
            *self = Looked { round_ms, ..Looked::default() };
        }
    }

    pub(crate) fn take_idle_of(&mut self, whose: Subscriber) -> Option<IdleOnes> {
        self.idle_of.remove(&whose)
    }

    pub(crate) fn keep_idle_of(&mut self, whose: Subscriber, idle: IdleOnes) {
        self.idle_of.insert(whose, idle);
    }

    /// Nobody gives way to somebody who has so many connections.
    pub(crate) fn note_in_vain(&mut self, of_newcomer: usize) {
        self.in_vain_with =
            Some(self.in_vain_with.map_or(of_newcomer, |so_far| so_far.min(of_newcomer)));
    }

    pub(crate) fn is_in_vain(&self, of_newcomer: usize) -> bool {
        self.in_vain_with.is_some_and(|so_many| of_newcomer >= so_many)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_idle_for_longest_are_named_first_and_not_all_of_a_crowd() {
        let mut few = IdleOnes::of(vec![(3, 30), (1, 10), (2, 20)]);
        assert!(few.are_all());
        assert_eq!(
            [few.next(), few.next(), few.next()],
            [Some((1, 10)), Some((2, 20)), Some((3, 30))]
        );
        assert_eq!(few.next(), None);
        let mut crowd = IdleOnes::of((0..1_000).rev().map(|n| (n, n)).collect());
        assert!(!crowd.are_all());
        let named: Vec<u64> = std::iter::from_fn(|| crowd.next()).map(|(_, id)| id).collect();
        assert_eq!(named, (0..NAMED_MAX as u64).collect::<Vec<_>>());
    }

    #[test]
    fn what_was_in_vain_is_so_for_those_with_more_and_until_the_next_round() {
        let mut looked = Looked::default();
        assert!(!looked.is_in_vain(0));
        looked.note_in_vain(5);
        looked.note_in_vain(7);
        assert!(looked.is_in_vain(5) && looked.is_in_vain(6) && !looked.is_in_vain(4));
        looked.in_round(0);
        assert!(looked.is_in_vain(5), "it is the same round");
        looked.in_round(100);
        assert!(!looked.is_in_vain(usize::MAX));
    }
}

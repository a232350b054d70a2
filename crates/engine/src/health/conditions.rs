//! States that somebody should know of, and whether they were told.
//!
//! Whoever sees a state says so again and again ([`Conditions::observe`]); this remembers since when
//! it lasts, and says when it is time to tell ([`Conditions::due`]): once when it has lasted for
//! `raise_after`, once when it has been over for `resolve_after`. A state that comes and goes faster
//! than that is one outage. Time is monotonic: nobody can set it.
//!
//! What was told is kept over restarts ([`super::remembered`]), because a restart in the middle of an outage
//! must neither tell of it a second time nor forget to say that it is over.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use orders::AlertKind;
use parking_lot::Mutex;
use sale::Millis;
use serde::{Deserialize, Serialize};

/// A state, and what of it: a job's name, or nothing.
type Key = (AlertKind, String);

#[derive(Debug)]
struct Condition {
    /// What is wrong; `None` if nothing is.
    trouble: Option<String>,
    /// Since when that is so. `None` until it is observed for the first time after a start.
    since: Option<Instant>,
    since_ms: Millis,
    /// Somebody was told, of an outage that began then.
    told_since_ms: Option<Millis>,
}

/// What is to be told now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) kind: AlertKind,
    pub(crate) about: String,
    /// What is wrong; `None` if it is over.
    pub(crate) trouble: Option<String>,
    pub(crate) since_ms: Millis,
}

/// A state that somebody was told of and that is not over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAlert {
    pub kind: AlertKind,
    /// The job it is about, or nothing.
    pub about: String,
    pub since_ms: Millis,
}

pub(crate) struct Conditions {
    known: Mutex<BTreeMap<Key, Condition>>,
    raise_after: Duration,
    resolve_after: Duration,
}

impl Conditions {
    /// `told` is what somebody was told of before the last stop.
    pub(crate) fn new(
        told: Vec<OpenAlert>,
        raise_after: Duration,
        resolve_after: Duration,
    ) -> Conditions {
        let known = told.into_iter().map(|OpenAlert { kind, about, since_ms }| {
            let condition =
                Condition { trouble: None, since: None, since_ms, told_since_ms: Some(since_ms) };
            ((kind, about), condition)
        });
        Conditions { known: Mutex::new(known.collect()), raise_after, resolve_after }
    }

    /// It is so now. Of something that was never wrong nothing is remembered.
    pub(crate) fn observe(
        &self,
        kind: AlertKind,
        about: &str,
        trouble: Option<String>,
        now: Instant,
        now_ms: Millis,
    ) {
        let mut known = self.known.lock();
        let key = (kind, about.to_owned());
        let Some(condition) = known.get_mut(&key) else {
            if trouble.is_some() {
                let since = Some(now);
                let new = Condition { trouble, since, since_ms: now_ms, told_since_ms: None };
                known.insert(key, new);
            }
            return;
        };
        if condition.since.is_none() || condition.trouble.is_some() != trouble.is_some() {
            (condition.since, condition.since_ms) = (Some(now), now_ms);
        }
        condition.trouble = trouble;
        if condition.trouble.is_none() && condition.told_since_ms.is_none() {
            known.remove(&key);
        }
    }

    /// What is to be told now. It stays due until [`Conditions::told`].
    pub(crate) fn due(&self, now: Instant) -> Vec<Due> {
        let lasted = |since: Instant, hold| now.saturating_duration_since(since) >= hold;
        let known = self.known.lock();
        let due = known.iter().filter_map(|((kind, about), condition)| {
            let Condition { trouble, since, since_ms, told_since_ms } = condition;
            let since_ms = match (trouble, told_since_ms) {
                (Some(_), None) if lasted((*since)?, self.holds(*kind)) => *since_ms,
                (None, Some(told)) if lasted((*since)?, self.resolve_after) => *told,
                _ => return None,
            };
            let (about, trouble) = (about.clone(), trouble.clone());
            Some(Due { kind: *kind, about, trouble, since_ms })
        });
        due.collect()
    }

    /// A bug does not pass by itself: it is told at once.
    fn holds(&self, kind: AlertKind) -> Duration {
        match kind {
            AlertKind::JobPanicked | AlertKind::LanesDied => Duration::ZERO,
            _ => self.raise_after,
        }
    }

    /// Somebody was told of this.
    pub(crate) fn told(&self, due: &Due) {
        let mut known = self.known.lock();
        let key = (due.kind, due.about.clone());
        let Some(condition) = known.get_mut(&key) else { return };
        if due.trouble.is_some() {
            condition.told_since_ms = Some(due.since_ms);
        } else {
            condition.told_since_ms = None;
            if condition.trouble.is_none() {
                known.remove(&key);
            }
        }
    }

    /// What this process has told of and is not over.
    pub(crate) fn open_alerts(&self) -> Vec<OpenAlert> {
        let known = self.known.lock();
        let open = known.iter().filter_map(|((kind, about), condition)| {
            let since_ms = condition.told_since_ms?;
            Some(OpenAlert { kind: *kind, about: about.clone(), since_ms })
        });
        open.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAISE: Duration = Duration::from_secs(5);
    const RESOLVE: Duration = Duration::from_secs(30);

    /// Conditions whose clock the test moves.
    struct Watch {
        conditions: Conditions,
        began: Instant,
    }

    impl Watch {
        fn begin() -> Watch {
            let conditions = Conditions::new(Vec::new(), RAISE, RESOLVE);
            Watch { conditions, began: Instant::now() }
        }

        fn restart(&mut self) {
            let told = self.conditions.open_alerts();
            self.conditions = Conditions::new(told, RAISE, RESOLVE);
        }

        /// At this second the gate is so; answers what is told.
        fn gate_is(&self, second: u64, trouble: Option<&str>) -> Vec<(bool, Millis)> {
            let now = self.began + Duration::from_secs(second);
            let trouble = trouble.map(str::to_owned);
            self.conditions.observe(AlertKind::GateDown, "", trouble, now, second as Millis);
            let due = self.conditions.due(now);
            due.iter().for_each(|due| self.conditions.told(due));
            due.into_iter().map(|due| (due.trouble.is_some(), due.since_ms)).collect()
        }
    }

    #[test]
    fn an_outage_is_told_once_and_once_when_it_is_over() {
        let watch = Watch::begin();
        let down = Some("no answer");
        assert_eq!(watch.gate_is(0, None), []);
        assert_eq!(watch.gate_is(1, down), []);
        assert_eq!(watch.gate_is(5, down), [], "not yet for long enough");
        assert_eq!(watch.gate_is(6, down), [(true, 1)]);
        assert_eq!(watch.gate_is(7, Some("another word")), []);
        assert_eq!(watch.gate_is(8, None), []);
        assert_eq!(watch.gate_is(37, None), [], "not yet for long enough");
        assert_eq!(watch.gate_is(38, None), [(false, 1)]);
        assert_eq!(watch.gate_is(99, None), []);
        assert!(watch.conditions.known.lock().is_empty(), "nothing is kept of it");
    }

    #[test]
    fn one_that_flaps_is_one_outage_or_none() {
        let watch = Watch::begin();
        for second in 0..20 {
            let trouble = (second % 2 == 0).then_some("down");
            assert_eq!(watch.gate_is(second, trouble), [], "never down for five seconds");
        }
        for second in 20..26 {
            watch.gate_is(second, Some("down"));
        }
        for second in 26..200 {
            let trouble = (second % 20 == 0).then_some("down");
            assert_eq!(watch.gate_is(second, trouble), [], "told already, and never up for long");
        }
        let over: Vec<_> = (200..240).flat_map(|second| watch.gate_is(second, None)).collect();
        assert_eq!(over, [(false, 20)]);
    }

    #[test]
    fn a_restart_neither_tells_again_nor_forgets_to_say_that_it_is_over() {
        let mut watch = Watch::begin();
        watch.gate_is(0, Some("down"));
        assert_eq!(watch.gate_is(6, Some("down")), [(true, 0)]);
        watch.restart();
        assert_eq!(watch.conditions.due(watch.began + RESOLVE * 9), [], "nothing was seen yet");
        for second in 10..20 {
            assert_eq!(watch.gate_is(second, Some("down")), []);
        }
        watch.restart();
        assert_eq!(watch.gate_is(30, None), [], "over, but not for long enough");
        assert_eq!(watch.gate_is(60, None), [(false, 0)]);
        watch.restart();
        assert_eq!(watch.conditions.open_alerts(), []);
    }

    #[test]
    fn a_bug_is_told_at_once() {
        let watch = Watch::begin();
        let kind = AlertKind::JobPanicked;
        watch.conditions.observe(kind, "timeout", Some("a bug".into()), watch.began, 7);
        watch.conditions.observe(kind, "outbox", Some("a bug".into()), watch.began, 7);
        let due = watch.conditions.due(watch.began);
        assert_eq!(
            due.iter().map(|due| due.about.as_str()).collect::<Vec<_>>(),
            ["outbox", "timeout"]
        );
    }
}

//! Who has to wait, and for which sales anybody is kept out: a copy in memory of what the ledger says, so
//! that claims ask nobody.
//!
//! The truth is in the ledger. Each instance reads it every second; the one where it happened knows at once,
//! and tells the others, which look at once.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering},
};

use ledger::{BuyerList, CoolDown, ListKind};
use parking_lot::RwLock;
use sale::{ActivityId, Millis, UserId};

/// Buyers who wait, in memory. Of more, those who wait longest.
pub(crate) const COOLING_MAX: usize = 100_000;
/// A reading that began before somebody was told to wait may not know of it yet.
const READING_MS_MAX: Millis = 5_000;

#[derive(Default)]
pub(crate) struct CoolDowns {
    /// Hardly ever set, and the only thing that a claim looks at while it is not.
    anybody: AtomicBool,
    by_user: RwLock<HashMap<UserId, Waiting>>,
    blocked: RwLock<Blocked>,
}

#[derive(Clone, Copy)]
struct Waiting {
    until_ms: Millis,
    /// When it happened here; absent for what was read.
    noted_ms: Option<Millis>,
}

#[derive(Default)]
struct Blocked {
    anywhere: bool,
    activities: HashSet<ActivityId>,
}

impl CoolDowns {
    /// Until when this buyer waits.
    pub(crate) fn until(&self, user: &UserId, now_ms: impl Fn() -> Millis) -> Option<Millis> {
        if !self.anybody.load(Ordering::Relaxed) {
            return None;
        }
        let until_ms = self.by_user.read().get(user)?.until_ms;
        (now_ms() < until_ms).then_some(until_ms)
    }

    pub(crate) fn add(&self, users: &[UserId], until_ms: Millis, now_ms: Millis) {
        let mut by_user = self.by_user.write();
        let room = COOLING_MAX.saturating_sub(by_user.len());
        let waiting = Waiting { until_ms, noted_ms: Some(now_ms) };
        by_user.extend(users.iter().take(room).map(|user| (user.clone(), waiting)));
        self.anybody.store(!by_user.is_empty(), Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, user: &UserId) {
        self.by_user.write().remove(user);
    }

    /// What the ledger says, and what happened here while it was being read. Nobody waits beyond `latest_ms`:
    /// who would was told so by a clock that has been set right since.
    pub(crate) fn replace(&self, read: Vec<CoolDown>, now_ms: Millis, latest_ms: Millis) {
        let mut by_user = self.by_user.write();
        let is_new = |waiting: &Waiting| {
            let noted_ms = waiting.noted_ms.unwrap_or(Millis::MIN);
            let waits = (now_ms + 1..=latest_ms).contains(&waiting.until_ms);
            now_ms.saturating_sub(noted_ms) < READING_MS_MAX && waits
        };
        by_user.retain(|_, waiting| is_new(waiting));
        let read = read.into_iter().filter(|read| read.until_ms <= latest_ms).take(COOLING_MAX);
        for CoolDown { user, until_ms } in read {
            by_user.entry(user).or_insert(Waiting { until_ms, noted_ms: None });
        }
        self.anybody.store(!by_user.is_empty(), Ordering::Relaxed);
    }

    /// Is anybody kept out of this sale?
    pub(crate) fn is_anybody_blocked(&self, activity: ActivityId) -> bool {
        let blocked = self.blocked.read();
        blocked.anywhere || blocked.activities.contains(&activity)
    }

    pub(crate) fn replace_lists(&self, lists: &[(BuyerList, u64)]) {
        let of = lists.iter().filter(|(list, _)| list.kind == ListKind::Blocked);
        let mut blocked = Blocked::default();
        for (list, _) in of {
            match list.activity {
                Some(id) => _ = blocked.activities.insert(id),
                None => blocked.anywhere = true,
            }
        }
        *self.blocked.write() = blocked;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_ledger_says_holds_and_what_it_could_not_know_yet_stays() {
        let cool_downs = CoolDowns::default();
        let user = |name: &str| -> UserId { name.parse().unwrap() };
        let waits = |name: &str, now_ms| cool_downs.until(&user(name), || now_ms).is_some();
        let read = |names: &[&str]| -> Vec<CoolDown> {
            names.iter().map(|name| CoolDown { user: user(name), until_ms: 100_000 }).collect()
        };
        assert!(!waits("ann", 0));
        let replace = |read, now_ms| cool_downs.replace(read, now_ms, 100_000);
        replace(read(&["ann"]), 0);
        cool_downs.add(&[user("bob")], 100_000, 1_000);
        replace(read(&["ann"]), 1_500);
        assert!(waits("ann", 1_500) && waits("bob", 1_500));
        assert!(!waits("ann", 100_000));
        replace(read(&["bob"]), 10_000);
        assert!(!waits("ann", 10_000), "an operator let them go");
        replace(Vec::new(), 20_000);
        assert!(!waits("bob", 20_000));
    }

    #[test]
    fn a_clock_that_is_set_right_lets_nobody_wait_for_longer() {
        let cool_downs = CoolDowns::default();
        let user = |name: &str| -> UserId { name.parse().unwrap() };
        let hour_ms = 3_600_000;
        // The clock is an hour ahead; both are told to wait for a minute.
        let waiting = |name: &str| CoolDown { user: user(name), until_ms: hour_ms + 60_000 };
        cool_downs.add(&[user("ann")], hour_ms + 60_000, hour_ms);
        cool_downs.replace(vec![waiting("bob")], hour_ms, hour_ms + 60_000);
        for name in ["ann", "bob"] {
            assert!(cool_downs.until(&user(name), || hour_ms).is_some(), "{name}");
        }
        cool_downs.replace(vec![waiting("ann"), waiting("bob")], 0, 60_000);
        for name in ["ann", "bob"] {
            assert_eq!(cool_downs.until(&user(name), || 0), None, "{name}");
        }
    }
}

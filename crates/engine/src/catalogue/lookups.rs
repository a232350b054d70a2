//! What the list of the pages has no room for, looked up by id.
//!
//! The catalogue in memory is bounded, and an item that it does not hold may be on sale all the same:
//! published a moment ago at another instance, or one of more than the list has room for. Such an id is
//! asked for at the ledger, and what it said is remembered for a moment, the "no" as well.
//!
//! Nobody can make this expensive. Ids that are asked for at the same time share one reading, one reading
//! is under way at a time, what waits and what is remembered is bounded. A ledger that does not answer is
//! told to all who wait for it at once; what was known of an id before that is still answered then.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ledger::{Ledger, LedgerError};
use parking_lot::Mutex;
use sale::{Activity, ActivityId, ItemId};
use tokio::time::Instant;

use crate::due::PAGE_ACTIVITIES;

/// An answer this old is asked for again.
const REMEMBERED: Duration = Duration::from_secs(1);
/// An answer older than this is not given even if the ledger is silent.
const KNOWN_MAX: Duration = Duration::from_secs(600);
/// Ids that wait to be read. More are told that we are busy.
const WAITING_MAX: usize = 10_000;
/// What is remembered: activities found or not found, and the items of those that were.
const REMEMBERED_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WantedId {
    Activity(ActivityId),
    Item(ItemId),
    /// The shop's own id of an activity.
    External(Arc<str>),
}

impl WantedId {
    fn is_in(&self, activity: &Activity) -> bool {
        match self {
            WantedId::Activity(id) => activity.id == *id,
            WantedId::Item(id) => activity.items.iter().any(|item| item.id == *id),
            WantedId::External(id) => activity.external_id.as_deref() == Some(id),
        }
    }
}

#[derive(Default)]
pub(super) struct Lookups {
    remembered: Mutex<Generations>,
    waiting: Mutex<HashSet<WantedId>>,
    /// Held by whoever reads; when the ledger last did not answer.
    turn: tokio::sync::Mutex<Option<Instant>>,
}

/// What was found when. Drafts count as not found.
#[derive(Clone)]
struct Answer {
    found: Option<Arc<Activity>>,
    at: Instant,
}

/// Two generations instead of a list of uses: when the young one is full it becomes the old one, and
/// the old one is dropped whole.
#[derive(Default)]
struct Generations {
    young: HashMap<WantedId, Answer>,
    old: HashMap<WantedId, Answer>,
    young_weight: usize,
    /// Answers from before this are asked for again, however young they are.
    outdated: Option<Instant>,
}

impl Generations {
    fn get(&self, wanted: &WantedId) -> Option<&Answer> {
        self.young.get(wanted).or_else(|| self.old.get(wanted))
    }

    fn put(&mut self, wanted: WantedId, answer: Answer) {
        let weight = 1 + answer.found.as_ref().map_or(0, |activity| activity.items.len());
        if self.young_weight + weight > REMEMBERED_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_weight = 0;
        }
        self.young_weight += weight;
        self.young.insert(wanted, answer);
    }
}

impl Lookups {
    /// The activity that is, or has, what is wanted; none if it is a draft or there is none.
    pub(super) async fn find(
        &self,
        wanted: &WantedId,
        ledger: &dyn Ledger,
    ) -> Result<Option<Arc<Activity>>, LedgerError> {
        if let Some(fresh) = self.fresh(wanted) {
            return Ok(fresh);
        }
        let asked = Instant::now();
        self.wait_for(wanted)?;
        let mut failed = self.turn.lock().await;
        if let Some(fresh) = self.fresh(wanted) {
            return Ok(fresh);
        }
        let silent = failed.is_some_and(|at| at > asked);
        let read = if silent { Err(silence()) } else { self.read(wanted, ledger).await };
        match read {
            Ok(found) => Ok(found),
            Err(error) => {
                *failed = Some(Instant::now());
                self.known(wanted).ok_or(error)
            }
        }
    }

    /// Something was published, paused or ended here: whoever asks now should see it.
    pub(super) fn outdate(&self) {
        self.remembered.lock().outdated = Some(Instant::now());
    }

    fn fresh(&self, wanted: &WantedId) -> Option<Option<Arc<Activity>>> {
        let remembered = self.remembered.lock();
        let answer = remembered.get(wanted)?;
        let outdated = remembered.outdated.is_some_and(|then| answer.at <= then);
        (!outdated && answer.at.elapsed() < REMEMBERED).then(|| answer.found.clone())
    }

    /// What the ledger said when it last did. A "no" is not worth keeping for so long.
    fn known(&self, wanted: &WantedId) -> Option<Option<Arc<Activity>>> {
        let remembered = self.remembered.lock();
        let answer = remembered.get(wanted)?;
        let known = answer.found.is_some() && answer.at.elapsed() < KNOWN_MAX;
        known.then(|| answer.found.clone())
    }

    fn wait_for(&self, wanted: &WantedId) -> Result<(), LedgerError> {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WAITING_MAX && !waiting.contains(wanted) {
            let why = "too many ids that are on no page are being looked up";
            return Err(LedgerError::Unavailable(why.into()));
        }
        waiting.insert(wanted.clone());
        Ok(())
    }

    /// This one and as many others that wait as one reading may have.
    fn take(&self, wanted: &WantedId) -> Vec<WantedId> {
        let mut waiting = self.waiting.lock();
        waiting.remove(wanted);
        let others: Vec<WantedId> = waiting.iter().take(PAGE_ACTIVITIES - 1).cloned().collect();
        others.iter().for_each(|other| _ = waiting.remove(other));
        [vec![wanted.clone()], others].concat()
    }

    async fn read(
        &self,
        wanted: &WantedId,
        ledger: &dyn Ledger,
    ) -> Result<Option<Arc<Activity>>, LedgerError> {
        let batch = self.take(wanted);
        let (mut activities, mut items, mut external_ids) = (Vec::new(), Vec::new(), Vec::new());
        for one in &batch {
            match one {
                WantedId::Activity(id) => activities.push(*id),
                WantedId::Item(id) => items.push(*id),
                WantedId::External(id) => external_ids.push(id.to_string()),
            }
        }
        // The time first: an answer must not pass for younger than it is.
        let at = Instant::now();
        let found = ledger.activities_of(&activities, &items, &external_ids).await?;
        let public = found.into_iter().filter(Activity::is_public);
        let public: Vec<Arc<Activity>> = public.map(Arc::new).collect();
        let mut remembered = self.remembered.lock();
        let mut answer = None;
        for one in batch {
            let found = public.iter().find(|activity| one.is_in(activity)).cloned();
            if one == *wanted {
                answer.clone_from(&found);
            }
            remembered.put(one, Answer { found, at });
        }
        Ok(answer)
    }
}

fn silence() -> LedgerError {
    LedgerError::Unavailable("it did not answer those who asked a moment ago".into())
}

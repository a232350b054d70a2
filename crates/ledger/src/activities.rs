//! Activities: made, edited, moved through their states, and asked for by what is true of them.
//!
//! A list of the newest has an end at which something may fall off that is on sale right now. So what
//! jobs and pages need is asked for as a condition, in the order of an index (`state` and a time), and
//! each page begins behind the last row of the one before it: however many there are, none is left out
//! and none is read twice.

use std::collections::HashMap;

use async_trait::async_trait;
use sale::{
    Activity, ActivityId, ActivityMove, ActivityState, Door, DraftPlan, Invalid, Item, ItemId,
    Millis, NewActivity,
};

use crate::{AuditEntry, LedgerError, Result};

pub(crate) const ACTIVITY_COLUMNS: &str = "id, name, opens_at, closes_at, pay_within_ms, state, \
     publish_at, version, external_id, door, shuffle_ms, draw_commitment, resume_at, given_up";

/// So long whoever asks again with the same key is told what was made.
pub const CREATE_KEY_KEPT_MS: Millis = 7 * 24 * 60 * 60 * 1_000;

/// Sales and their items, as pages, operators and jobs read and change them.
#[async_trait]
pub trait Activities: Send + Sync {
    /// The caller has validated them. They start as drafts; all are made or none. Items begin without a
    /// stock log: the first change of an item writes the first row of its chain, whose `before_stock` is
    /// the initial total.
    async fn create_activities(
        &self,
        new: &NewActivities,
        now_ms: Millis,
    ) -> Result<CreatedActivities>;

    /// What was made under this key, or was asked for with it, lately.
    async fn created_before(
        &self,
        key: &CreateKey,
        now_ms: Millis,
    ) -> Result<Option<CreatedActivities>>;

    /// One of them, by nobody in particular.
    async fn create_activity(&self, new: &NewActivity, now_ms: Millis) -> Result<Activity> {
        let new = NewActivities::of(vec![new.clone()]);
        match self.create_activities(&new, now_ms).await? {
            CreatedActivities::Made(made) | CreatedActivities::MadeBefore(made) => {
                let made = made.into_iter().next().map(|created| created.activity);
                made.ok_or(LedgerError::NotFound)
            }
            CreatedActivities::Taken { by, .. } => {
                let problem = format!("is that of activity {by}");
                Err(LedgerError::Refused(Invalid::new("external_id", problem)))
            }
            CreatedActivities::KeyReused { .. } => Err(LedgerError::NotFound),
        }
    }

    async fn activity(&self, id: ActivityId) -> Result<Option<Activity>>;

    /// All there are, newest first, those before `before` if given. For people who leaf through them.
    async fn activities(&self, before: Option<ActivityId>, limit: usize) -> Result<Vec<Activity>>;

    /// The next `limit` activities of which this is true, behind `after` if given.
    async fn activities_where(
        &self,
        filter: &ActivityFilter,
        after: Option<ActivityKey>,
        limit: usize,
    ) -> Result<Vec<Activity>>;

    /// Those of these activities that exist, those that have one of these items, and those to which the
    /// shop has given one of these ids; each once, in any order.
    async fn activities_of(
        &self,
        activities: &[ActivityId],
        items: &[ItemId],
        external_ids: &[String],
    ) -> Result<Vec<Activity>>;

    /// As `activities_where`, without the long words of items: for those who look at all of them.
    async fn activities_briefly(
        &self,
        filter: &ActivityFilter,
        after: Option<ActivityKey>,
        limit: usize,
    ) -> Result<Vec<Activity>>;

    /// As `activities_of`, without the long words of items.
    async fn activities_of_briefly(
        &self,
        activities: &[ActivityId],
        items: &[ItemId],
    ) -> Result<Vec<Activity>>;

    /// The activities that were changed within this time by the ledger's clock, they or their items, whoever
    /// changed them.
    async fn changed_activities(&self, within_ms: Millis) -> Result<Vec<ChangedActivity>>;

    /// The items that the shop knows by this id, of one activity or of all; newest first, those before
    /// `before` if given.
    async fn items_by_sku(
        &self,
        sku: &str,
        activity: Option<ActivityId>,
        before: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<Item>>;

    async fn item(&self, id: ItemId) -> Result<Option<Item>>;

    /// Compare-and-set on the activity's state: it moves only from a state that `step` may leave.
    /// Refused (field `closes_at`) if it would set going what is over.
    /// Ending it also moves its items to `Ended`. `audit` is written in the same transaction if the
    /// activity is afterwards where the step leads: as *repeated* if it was there before. What could
    /// not be done is not written down.
    async fn move_activity(
        &self,
        id: ActivityId,
        step: ActivityMove,
        audit: Option<&AuditEntry>,
        now_ms: Millis,
    ) -> Result<MovedActivity>;

    /// Moves it to `Paused` as [`move_activity`](Self::move_activity) does, until this time or until somebody
    /// resumes it. Of what is paused already the time is changed.
    async fn pause_until(
        &self,
        id: ActivityId,
        resume_ms: Option<Millis>,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<MovedActivity>;

    /// What is paused goes on by itself, if it is still the one of this version. False if it is not.
    async fn resume_planned(
        &self,
        id: ActivityId,
        version: i64,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool>;

    /// Replaces a draft and its items, if it is still the one of this version. The caller has validated
    /// the plan. Refused (with the field) if it would change the stock of an item that was adjusted, or
    /// remove one. `audit` is written in the same transaction.
    async fn edit_draft(
        &self,
        id: ActivityId,
        version: i64,
        new: &DraftPlan,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<EditedActivity>;

    /// Moves the window of an activity that buyers know of and that has not opened by `now_ms`, if it is
    /// still the one of this version.
    async fn postpone(
        &self,
        id: ActivityId,
        version: i64,
        window: (Millis, Millis),
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<EditedActivity>;

    /// Changes how buyers are let in to what is published, if it is still the one of this version.
    async fn change_door(
        &self,
        id: ActivityId,
        version: i64,
        door: &Door,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<EditedActivity>;

    /// Drafts whose `publish_at` has come, earliest first.
    async fn publish_due(&self, now_ms: Millis, limit: usize) -> Result<Vec<Activity>>;

    /// A draft publishes itself, if it is still the one of this version. False if it is not.
    async fn publish_planned(
        &self,
        id: ActivityId,
        version: i64,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool>;

    /// A draft that was to publish itself will not, if it is still the one of this version.
    async fn forget_publish(
        &self,
        id: ActivityId,
        version: i64,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<bool>;
}

/// Activities to be made together.
#[derive(Clone, Debug)]
pub struct NewActivities {
    pub plans: Vec<NewActivity>,
    pub when_taken: WhenTaken,
    pub key: Option<CreateKey>,
    /// Written for each that is made, with its number, its name and how many items it has.
    pub audit: Option<AuditEntry>,
}

impl NewActivities {
    pub fn of(plans: Vec<NewActivity>) -> NewActivities {
        NewActivities { plans, when_taken: WhenTaken::Refuse, key: None, audit: None }
    }
}

/// What becomes of a plan whose `external_id` another activity has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenTaken {
    /// None of them is made.
    Refuse,
    /// That activity stays as it is, and stands for the plan.
    Keep,
}

/// Whoever asks again with the same key wants what was made the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateKey {
    /// The name of the admin token: keys of two of them have nothing to do with each other.
    pub who: String,
    pub key: String,
    /// A hash, in hexadecimal, of everything that was asked for.
    pub body_hash: String,
}

/// What became of [`NewActivities`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreatedActivities {
    /// In the order of the plans.
    Made(Vec<CreatedActivity>),
    /// The key is known, and so is the answer: these, as they are now.
    MadeBefore(Vec<CreatedActivity>),
    /// The key is known, and something else was asked for with it. Nothing was made.
    KeyReused { made: Vec<ActivityId> },
    /// Another activity has the `external_id` of this plan. Nothing was made.
    Taken { n: usize, by: ActivityId },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedActivity {
    pub activity: Activity,
    /// False if it was there before.
    pub made: bool,
}

/// An activity after a compare-and-set of its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedActivity {
    /// As it is now, whoever moved it.
    pub activity: Activity,
    /// This call moved it; otherwise nothing was changed.
    pub moved: bool,
}

/// An activity after a compare-and-set of its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditedActivity {
    /// As it is now, whoever changed it.
    pub activity: Activity,
    /// This call changed it; otherwise nothing was changed.
    pub edited: bool,
}

/// Activities that are told of as changed, at the most.
pub const CHANGED_TOLD_MAX: usize = 100_000;

/// An activity that was changed a while ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedActivity {
    pub id: ActivityId,
    /// Another one after every change: how many of its rows were changed, and the sum of when.
    pub trace: (u32, i64),
    /// How long ago the last change was made.
    pub age_ms: Millis,
}

/// Activities of one state, in one order. Both ends of each range are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivityFilter {
    pub state: ActivityState,
    pub opens_by_ms: Millis,
    pub closes_from_ms: Millis,
    pub closes_by_ms: Millis,
    pub order: ActivityOrder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityOrder {
    OpensFirst,
    ClosesFirst,
    ClosesLast,
}

/// Where a page ended: the time by which it is ordered, and the id among those of one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivityKey {
    pub time_ms: Millis,
    pub id: ActivityId,
}

impl ActivityFilter {
    /// All activities of a state, the first to close first.
    pub fn all(state: ActivityState) -> ActivityFilter {
        ActivityFilter {
            state,
            opens_by_ms: Millis::MAX,
            closes_from_ms: Millis::MIN,
            closes_by_ms: Millis::MAX,
            order: ActivityOrder::ClosesFirst,
        }
    }

    pub fn opening_by(self, opens_by_ms: Millis) -> ActivityFilter {
        ActivityFilter { opens_by_ms, ..self }
    }

    /// Those that are not over at `now_ms`.
    pub fn closing_after(self, now_ms: Millis) -> ActivityFilter {
        ActivityFilter { closes_from_ms: now_ms.saturating_add(1), ..self }
    }

    /// Those that are over at `now_ms`.
    pub fn closing_by(self, now_ms: Millis) -> ActivityFilter {
        ActivityFilter { closes_by_ms: now_ms, ..self }
    }

    pub fn in_order(self, order: ActivityOrder) -> ActivityFilter {
        ActivityFilter { order, ..self }
    }

    /// The statement of one page, and the numbers it is asked with before the limit. The key is folded
    /// into the range of its column, so that a page is read from where the last one ended.
    pub(crate) fn page(&self, after: Option<ActivityKey>) -> (String, [i64; 7]) {
        self.page_of(ACTIVITY_COLUMNS, after)
    }

    /// The same for these columns.
    pub(crate) fn page_of(&self, columns: &str, after: Option<ActivityKey>) -> (String, [i64; 7]) {
        let (time, than, direction) = match self.order {
            ActivityOrder::OpensFirst => ("opens_at", '>', "ASC"),
            ActivityOrder::ClosesFirst => ("closes_at", '>', "ASC"),
            ActivityOrder::ClosesLast => ("closes_at", '<', "DESC"),
        };
        let start = if than == '>' { i64::MIN } else { i64::MAX };
        let after = after.map_or((start, start), |key| (key.time_ms, key.id.0));
        let (mut opens_from, mut closes) = (i64::MIN, (self.closes_from_ms, self.closes_by_ms));
        match self.order {
            ActivityOrder::OpensFirst => opens_from = after.0,
            ActivityOrder::ClosesFirst => closes.0 = closes.0.max(after.0),
            ActivityOrder::ClosesLast => closes.1 = closes.1.min(after.0),
        }
        let sql = format!(
            "SELECT {columns} FROM tb_seckill_activity
             WHERE state = ? AND opens_at BETWEEN ? AND ? AND closes_at BETWEEN ? AND ?
                 AND ({time} {than} ? OR id {than} ?)
             ORDER BY {time} {direction}, id {direction} LIMIT ?"
        );
        let opens = (opens_from, self.opens_by_ms);
        let state = self.state.code();
        (sql, [state, opens.0, opens.1, closes.0, closes.1, after.0, after.1])
    }
}

impl ActivityOrder {
    pub fn key_of(self, activity: &Activity) -> ActivityKey {
        self.key(activity.id, (activity.opens_ms, activity.closes_ms))
    }

    pub(crate) fn key(
        self,
        id: ActivityId,
        (opens_ms, closes_ms): (Millis, Millis),
    ) -> ActivityKey {
        let time_ms = match self {
            ActivityOrder::OpensFirst => opens_ms,
            ActivityOrder::ClosesFirst | ActivityOrder::ClosesLast => closes_ms,
        };
        ActivityKey { time_ms, id }
    }
}

/// Gives each activity its items, in the order in which they come.
pub(crate) fn put_items(activities: &mut [Activity], items: Vec<Item>) {
    let places: HashMap<ActivityId, usize> =
        activities.iter().enumerate().map(|(place, activity)| (activity.id, place)).collect();
    for item in items {
        if let Some(place) = places.get(&item.activity) {
            activities[*place].items.push(item);
        }
    }
}

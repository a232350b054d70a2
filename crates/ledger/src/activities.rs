//! Activities asked for by what is true of them, page by page.
//!
//! A list of the newest has an end at which something may fall off that is on sale right now. So what
//! jobs and pages need is asked for as a condition, in the order of an index (`state` and a time), and
//! each page begins behind the last row of the one before it: however many there are, none is left out
//! and none is read twice.

use std::collections::HashMap;

use sale::{Activity, ActivityId, ActivityState, Item, Millis};

use crate::columns::ACTIVITY_COLUMNS;

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

    /// The statement of one page, and the numbers it is asked with. The key is folded into the range
    /// of its column, so that a page is read from where the last one ended.
    pub(crate) fn page(&self, after: Option<ActivityKey>, limit: i64) -> (String, [i64; 8]) {
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
            "SELECT {ACTIVITY_COLUMNS} FROM tb_seckill_activity
             WHERE state = ? AND opens_at BETWEEN ? AND ? AND closes_at BETWEEN ? AND ?
                 AND ({time} {than} ? OR id {than} ?)
             ORDER BY {time} {direction}, id {direction} LIMIT ?"
        );
        let opens = (opens_from, self.opens_by_ms);
        let state = self.state.code();
        (sql, [state, opens.0, opens.1, closes.0, closes.1, after.0, after.1, limit])
    }
}

impl ActivityOrder {
    pub fn key_of(self, activity: &Activity) -> ActivityKey {
        let time_ms = match self {
            ActivityOrder::OpensFirst => activity.opens_ms,
            ActivityOrder::ClosesFirst | ActivityOrder::ClosesLast => activity.closes_ms,
        };
        ActivityKey { time_ms, id: activity.id }
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

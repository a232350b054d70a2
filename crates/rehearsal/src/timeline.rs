//! The sale over time: a few numbers four times a second, from the crowd and from the deployment.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use client::Api;
use serde::Serialize;
use serde_json::Value;

use crate::measurements::Counts;

pub(crate) const SAMPLE_EVERY: Duration = Duration::from_millis(250);
/// A longer rehearsal keeps its first samples: half an hour of them.
const SAMPLES_MAX: usize = 7_200;

/// The numbers at one instant. Counts are since the beginning.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// After the opening; before it, below zero.
    pub at_ms: i64,
    /// Buyers whose planned instant has come.
    pub arrived: u64,
    pub admitted: u64,
    pub refused: u64,
    /// Admitted claims that the ledger has; absent where the deployment did not answer.
    pub persisted: Option<u64>,
    /// Units that nobody has claimed, of all items of the rehearsal.
    pub stock_left: Option<i64>,
    /// Claims on their way from the gate to the ledger.
    pub backlog: Option<u64>,
}

/// What the deployment's overview says of these items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overview {
    pub(crate) stock_left: Option<i64>,
    pub(crate) backlog: Option<u64>,
    /// Of these items alone, if the deployment counts them.
    pub(crate) in_flight: Option<u64>,
}

impl Overview {
    pub(crate) async fn read(admin: &mut Api, items: &[i64]) -> Overview {
        match admin.read::<Value>("/api/v1/admin/overview").await {
            Ok(overview) => Overview::of(&overview, items),
            Err(_) => Overview::default(),
        }
    }

    fn of(overview: &Value, items: &[i64]) -> Overview {
        let all = overview["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ours = |item: &&Value| item["item_id"].as_i64().is_some_and(|id| items.contains(&id));
        let ours: Vec<&Value> = all.iter().filter(ours).collect();
        let left: Vec<i64> = ours.iter().filter_map(|item| item["gate_left"].as_i64()).collect();
        Overview {
            stock_left: (left.len() == items.len()).then(|| left.iter().sum()),
            backlog: overview["orders"]["backlog"].as_u64(),
            in_flight: ours.iter().map(|item| item["in_flight"].as_u64()).sum(),
        }
    }
}

pub(crate) struct Timeline {
    opening: Instant,
    /// When buyers are planned to come, in order.
    schedule: Vec<Instant>,
    samples: Mutex<Vec<Sample>>,
}

impl Timeline {
    pub(crate) fn new(opening: Instant, mut schedule: Vec<Instant>) -> Timeline {
        schedule.sort_unstable();
        Timeline { opening, schedule, samples: Mutex::default() }
    }

    pub(crate) fn add(&self, now: Instant, counts: Counts, overview: Overview) -> Sample {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let on_the_way = overview.in_flight.or(overview.backlog);
        let persisted = on_the_way.map(|claims| {
            // The crowd hears of an admission after the gate counts it, so this may seem to go back.
            let before = samples.iter().rev().find_map(|sample| sample.persisted).unwrap_or(0);
            counts.admitted.saturating_sub(claims).max(before)
        });
        let sample = Sample {
            at_ms: signed_ms(self.opening, now),
            arrived: self.schedule.partition_point(|due| *due <= now) as u64,
            admitted: counts.admitted,
            refused: counts.refused,
            persisted,
            stock_left: overview.stock_left,
            backlog: overview.backlog,
        };
        if samples.len() < SAMPLES_MAX {
            samples.push(sample.clone());
        }
        sample
    }

    pub(crate) fn take(&self) -> Vec<Sample> {
        std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn signed_ms(from: Instant, to: Instant) -> i64 {
    match to.checked_duration_since(from) {
        Some(after) => after.as_millis() as i64,
        None => -(from.saturating_duration_since(to).as_millis() as i64),
    }
}

/// How fast something was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rate {
    pub total: u64,
    /// While it was counted at all.
    pub mean_per_s: f64,
    /// Between two samples.
    pub peak_per_s: f64,
}

impl Rate {
    pub(crate) fn of(samples: &[Sample], count: impl Fn(&Sample) -> Option<u64>) -> Rate {
        let known: Vec<(i64, u64)> =
            samples.iter().filter_map(|sample| Some((sample.at_ms, count(sample)?))).collect();
        let steps = known.windows(2).filter_map(|pair| {
            let ms = (pair[1].0 - pair[0].0).max(1) as f64;
            let more = pair[1].1.checked_sub(pair[0].1).filter(|more| *more > 0)?;
            Some((ms, more))
        });
        let (mut busy_ms, mut total, mut peak_per_s) = (0.0, 0, 0.0_f64);
        for (ms, more) in steps {
            busy_ms += ms;
            total += more;
            peak_per_s = peak_per_s.max(more as f64 * 1_000.0 / ms);
        }
        let mean_per_s = if total == 0 { 0.0 } else { total as f64 * 1_000.0 / busy_ms };
        Rate { total: known.last().map_or(0, |last| last.1), mean_per_s, peak_per_s }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rates_come_from_the_time_in_which_something_happened() {
        let at = |at_ms, admitted| Sample { at_ms, admitted, ..Sample::default() };
        let samples = [
            at(-250, 0),
            at(0, 0),
            at(250, 1_000),
            at(500, 1_500),
            at(750, 1_500),
            at(1_000, 1_500),
        ];
        let rate = Rate::of(&samples, |sample| Some(sample.admitted));
        assert_eq!(rate, Rate { total: 1_500, mean_per_s: 3_000.0, peak_per_s: 4_000.0 });
        assert_eq!(Rate::of(&[], |sample| Some(sample.admitted)), Rate::default());
        assert_eq!(Rate::of(&samples, |sample| sample.persisted), Rate::default());
    }

    #[test]
    fn what_the_ledger_has_is_what_was_admitted_and_is_not_on_its_way() {
        let opening = Instant::now();
        let schedule = (0..10).map(|n| opening + Duration::from_millis(n * 100)).collect();
        let timeline = Timeline::new(opening, schedule);
        let counts = |admitted| Counts { admitted, ..Counts::default() };
        let overview = |in_flight, backlog| Overview { stock_left: Some(1), in_flight, backlog };
        let at = |ms| opening + Duration::from_millis(ms);
        let first = timeline.add(at(450), counts(50), overview(Some(20), Some(99)));
        assert_eq!((first.at_ms, first.arrived, first.persisted), (450, 5, Some(30)));
        let second = timeline.add(at(700), counts(60), overview(None, Some(40)));
        assert_eq!(second.persisted, Some(30), "it never goes back");
        assert_eq!(timeline.add(at(950), counts(60), Overview::default()).persisted, None);
        let early =
            timeline.add(opening - Duration::from_millis(100), counts(0), overview(None, None));
        assert_eq!((early.at_ms, early.arrived), (-100, 0));
        assert_eq!(timeline.take().len(), 4);
    }

    #[test]
    fn only_the_items_of_the_rehearsal_are_counted() {
        let overview = json!({"orders": {"backlog": 9}, "items": [
            {"item_id": 1, "gate_left": 5, "in_flight": 2},
            {"item_id": 2, "gate_left": 7, "in_flight": 3},
            {"item_id": 3, "gate_left": 100, "in_flight": 4},
        ]});
        let ours = Overview::of(&overview, &[1, 2]);
        assert_eq!((ours.stock_left, ours.backlog, ours.in_flight), (Some(12), Some(9), Some(5)));
        assert_eq!(Overview::of(&overview, &[1, 9]).stock_left, None, "one is not at the gate");
        assert_eq!(Overview::of(&json!({}), &[1]).backlog, None);
    }
}

//! What is counted of requests: claims by their answer, all others by route.
//!
//! A claim is one addition to one number of its answer, for in a rush all cores add to the same few: what the
//! recorder shows of claims is [made of these](ClaimCounts::show) when somebody asks for it. The other routes
//! are not hot, and pay for a lookup each time.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::Response,
};
use gate::Decision;
use http::StatusCode;
use metrics::{Counter, Histogram};
use parking_lot::Mutex;

use super::gate_times::{Counted, GateTimes};

use crate::{
    metrics::{CLAIM_SECONDS, CLAIMS, HTTP_REQUESTS},
    problem::Code,
};

/// The label of the claim path.
const CLAIM_ROUTE: &str = "/api/v1/items/{id}/claims";
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

fn class_of(status: StatusCode) -> usize {
    usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1
}

pub(super) async fn by_route(matched: MatchedPath, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let class = CLASSES[class_of(response.status())];
    let route = matched.as_str().to_owned();
    metrics::counter!(HTTP_REQUESTS, "route" => route, "class" => class).increment(1);
    response
}

pub(super) struct ClaimCounts {
    admitted_total: AtomicU64,
    /// In the order of [`Code::ALL`].
    refused_totals: Vec<AtomicU64>,
    seconds: Histogram,
    recorder: Mutex<Recorder>,
    /// Of those that are sold out: by the cache, before the gate.
    cached_total: AtomicU64,
    times: GateTimes,
}

/// What the recorder has been told.
struct Recorder {
    admitted: (Counter, u64),
    /// In the order of [`Code::ALL`].
    refused: Vec<(Counter, u64)>,
    by_class: [Counter; 5],
}

/// What had been counted of claims at one instant.
pub(super) struct ClaimCounted {
    pub(super) asked: u64,
    pub(super) admitted: u64,
    pub(super) cached: u64,
    refused: Vec<u64>,
    pub(super) times: Counted,
}

impl ClaimCounted {
    /// By code, those of nobody left out.
    pub(super) fn refused_since(
        &self,
        before: &ClaimCounted,
    ) -> impl Iterator<Item = (&'static str, u64)> {
        let since = self.refused.iter().zip(&before.refused).map(|(now, before)| now - before);
        Code::ALL.iter().map(|code| code.as_str()).zip(since).filter(|(_, count)| *count > 0)
    }
}

impl ClaimCounts {
    pub(super) fn new() -> ClaimCounts {
        let answer = |answer| metrics::counter!(CLAIMS, "answer" => answer);
        let class =
            |class| metrics::counter!(HTTP_REQUESTS, "route" => CLAIM_ROUTE, "class" => class);
        let recorder = Recorder {
            admitted: (answer("admitted"), 0),
            refused: Code::ALL.iter().map(|code| (answer(code.as_str()), 0)).collect(),
            by_class: CLASSES.map(class),
        };
        ClaimCounts {
            seconds: metrics::histogram!(CLAIM_SECONDS),
            recorder: Mutex::new(recorder),
            admitted_total: AtomicU64::new(0),
            refused_totals: Code::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            cached_total: AtomicU64::new(0),
            times: GateTimes::new(),
        }
    }

    pub(super) fn admitted(&self) {
        self.admitted_total.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self, code: Code) {
        self.refused_totals[code as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Tell the recorder what was counted since it was told last.
    pub(super) fn show(&self) {
        let Recorder { admitted, refused, by_class } = &mut *self.recorder.lock();
        let tell = |(counter, told): &mut (Counter, u64), total: &AtomicU64, status| {
            let total = total.load(Ordering::Relaxed);
            let new = total - *told;
            *told = total;
            counter.increment(new);
            by_class[class_of(status)].increment(new);
        };
        tell(admitted, &self.admitted_total, StatusCode::ACCEPTED);
        for ((of_code, total), code) in refused.iter_mut().zip(&self.refused_totals).zip(Code::ALL)
        {
            tell(of_code, total, code.status());
        }
    }

    pub(super) fn decided_after(&self, time: Duration) {
        self.seconds.record(time.as_secs_f64());
        self.times.record(time);
    }

    /// What was decided before the gate was asked.
    pub(super) fn decided_early(&self, decision: &Decision) {
        if matches!(decision, Decision::SoldOut { .. }) {
            self.cached_total.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counted(&self) -> ClaimCounted {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ClaimCounted {
            asked: self.asked_total(),
            admitted: read(&self.admitted_total),
            cached: read(&self.cached_total),
            refused: self.refused_totals.iter().map(read).collect(),
            times: self.times.counted(),
        }
    }

    pub(super) fn asked_total(&self) -> u64 {
        let refused = self.refused_totals.iter().map(|count| count.load(Ordering::Relaxed));
        self.admitted_total() + refused.sum::<u64>()
    }

    pub(super) fn admitted_total(&self) -> u64 {
        self.admitted_total.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn codes_are_in_the_order_of_their_list() {
        for (n, code) in Code::ALL.iter().enumerate() {
            assert_eq!(*code as usize, n);
        }
        let counts = ClaimCounts::new();
        counts.admitted();
        counts.refused(Code::Internal);
        assert_eq!((counts.asked_total(), counts.admitted_total()), (2, 1));
        let before = counts.counted();
        counts.refused(Code::SoldOut);
        counts.decided_early(&Decision::SoldOut { left: 0, version: 1 });
        counts.decided_early(&Decision::TooHot);
        let now = counts.counted();
        assert_eq!(now.refused_since(&before).collect::<Vec<_>>(), [("sold_out", 1)]);
        assert_eq!((now.asked - before.asked, now.cached - before.cached), (1, 1));
    }

    #[test]
    fn the_recorder_is_told_of_each_claim_once() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let prometheus = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            let counts = ClaimCounts::new();
            counts.show();
            counts.admitted();
            counts.refused(Code::SoldOut);
            counts.show();
            counts.refused(Code::SoldOut);
            counts.refused(Code::BadToken);
            counts.show();
            counts.show();
        });
        let text = prometheus.render();
        for line in [
            "seckill_claims_total{answer=\"admitted\"} 1",
            "seckill_claims_total{answer=\"sold_out\"} 2",
            "seckill_claims_total{answer=\"busy\"} 0",
            &format!("{HTTP_REQUESTS}{{route=\"{CLAIM_ROUTE}\",class=\"4xx\"}} 3"),
            &format!("{HTTP_REQUESTS}{{route=\"{CLAIM_ROUTE}\",class=\"2xx\"}} 1"),
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in {text}");
        }
    }

    #[test]
    fn every_status_has_a_class() {
        for (status, class) in [(100, 0), (202, 1), (304, 2), (409, 3), (503, 4), (999, 4)] {
            assert_eq!(class_of(StatusCode::from_u16(status).unwrap()), class);
        }
    }
}

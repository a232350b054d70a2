//! What is counted, under which name, and how `/metrics` shows it.
//!
//! This crate's numbers are listed here; the other crates describe their own. No label ever carries
//! a user, an order or anything else without a small, known set of values. A name says its kind by
//! its end: `_total` is a counter, `_seconds` a histogram of times, everything else a gauge.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use metrics::{Counter, Histogram, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

pub const CONNECTIONS: &str = "seckill_connections";
pub const CONNECTIONS_REFUSED: &str = "seckill_connections_refused_total";
pub const CONNECTIONS_CUT: &str = "seckill_connections_cut_total";
pub const HTTP_ANSWERS: &str = "seckill_http_answers_total";
pub const HTTP_REQUESTS: &str = "seckill_http_requests_total";
pub const HTTP_SECONDS: &str = "seckill_http_seconds";
pub const AUTH_REFUSED: &str = "seckill_auth_refused_total";
pub const CLAIMS: &str = "seckill_claims_total";
pub const CLAIM_SECONDS: &str = "seckill_claim_seconds";

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Seconds,
}

const DESCRIBED: &[(&str, Kind, &str)] = &[
    (CONNECTIONS, Kind::Gauge, "Open client connections."),
    (CONNECTIONS_REFUSED, Kind::Counter, "Connections refused because the cap was reached."),
    (CONNECTIONS_CUT, Kind::Counter, "Connections cut for being too slow, by reason."),
    (HTTP_ANSWERS, Kind::Counter, "HTTP answers by class of status."),
    (HTTP_REQUESTS, Kind::Counter, "HTTP requests by route and class of status."),
    (HTTP_SECONDS, Kind::Seconds, "From a request's head to its answer."),
    (
        AUTH_REFUSED,
        Kind::Counter,
        "Requests refused for their token or role, by kind: no_token, buyer_token, admin_token, role.",
    ),
    (CLAIMS, Kind::Counter, "Claims by answer."),
    (CLAIM_SECONDS, Kind::Seconds, "From a claim's entry into the lane to the gate's answer."),
    ("seckill_log_backlog_claims", Kind::Gauge, "Claims admitted and not yet in the ledger."),
    ("seckill_outbox_rows", Kind::Gauge, "Effects that committed transactions still owe."),
    ("seckill_push_streams", Kind::Gauge, "Buyers listening for news."),
    (
        "seckill_orders_timed_out_total",
        Kind::Counter,
        "Orders closed because they were not paid in time.",
    ),
    ("seckill_payments_credited_total", Kind::Counter, "Payments that made an order paid."),
    (
        "seckill_payments_late_total",
        Kind::Counter,
        "Payments for orders that were over; the money goes back.",
    ),
    (
        "seckill_reconcile_differences_left",
        Kind::Gauge,
        "Differences the last reconcile run could not heal.",
    ),
    ("seckill_reconcile_healed_total", Kind::Counter, "Differences healed by reconcile runs."),
];

/// From the quarter millisecond a gate step takes to the ten seconds after which a handler is given
/// up.
const SECONDS: &[f64] = &[
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0,
];

/// The recorder of this process; cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    prometheus: PrometheusHandle,
}

#[derive(Debug, thiserror::Error)]
#[error("the metrics cannot be set up: {0}")]
pub struct MetricsError(String);

impl Metrics {
    /// Once per process.
    pub fn install() -> Result<Metrics, MetricsError> {
        let prometheus =
            builder()?.install_recorder().map_err(|cause| MetricsError(cause.to_string()))?;
        describe();
        Ok(Metrics { prometheus })
    }

    /// The text for `/metrics`.
    pub fn render(&self) -> String {
        self.prometheus.render()
    }

    /// Fold what histograms have gathered since the last call. To be called every few seconds:
    /// without it, and with nobody asking for `/metrics`, they grow without bound.
    pub fn upkeep(&self) {
        self.prometheus.run_upkeep();
    }
}

fn builder() -> Result<PrometheusBuilder, MetricsError> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SECONDS)
        .map_err(|cause| MetricsError(cause.to_string()))
}

fn describe() {
    for &(name, kind, text) in DESCRIBED {
        match kind {
            Kind::Counter => metrics::describe_counter!(name, text),
            Kind::Gauge => metrics::describe_gauge!(name, text),
            Kind::Seconds => metrics::describe_histogram!(name, Unit::Seconds, text),
        }
    }
}

/// What the edge counts of every request, looked up once instead of at every request.
#[derive(Clone)]
pub(crate) struct HttpMetrics(Arc<HttpHandles>);

struct HttpHandles {
    answers: [Counter; 5],
    seconds: Histogram,
}

impl HttpMetrics {
    pub(crate) fn new() -> Self {
        let class = |class| metrics::counter!(HTTP_ANSWERS, "class" => class);
        HttpMetrics(Arc::new(HttpHandles {
            answers: ["1xx", "2xx", "3xx", "4xx", "5xx"].map(class),
            seconds: metrics::histogram!(HTTP_SECONDS),
        }))
    }

    pub(crate) fn answered(&self, status: StatusCode, after: Duration) {
        let class = usize::from(status.as_u16() / 100).clamp(1, 5) - 1;
        self.0.answers[class].increment(1);
        self.0.seconds.record(after.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_shown_with_its_description_and_buckets() {
        let recorder = builder().unwrap().build_recorder();
        let prometheus = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            describe();
            HttpMetrics::new().answered(StatusCode::CONFLICT, Duration::from_millis(3));
        });
        let text = Metrics { prometheus }.render();
        for line in [
            "# HELP seckill_http_answers_total HTTP answers by class of status.",
            "seckill_http_answers_total{class=\"4xx\"} 1",
            "seckill_http_seconds_bucket{le=\"0.0025\"} 0",
            "seckill_http_seconds_bucket{le=\"0.005\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
        }
    }

    #[test]
    fn names_are_ours_and_say_their_kind() {
        for (name, kind, text) in DESCRIBED {
            assert!(name.starts_with("seckill_"), "{name}");
            assert_eq!(name.ends_with("_total"), matches!(kind, Kind::Counter), "{name}");
            assert_eq!(name.ends_with("_seconds"), matches!(kind, Kind::Seconds), "{name}");
            assert!(text.ends_with('.'), "{name}");
        }
    }
}

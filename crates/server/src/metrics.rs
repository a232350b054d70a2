//! What is counted, under which name, and how `/metrics` shows it.
//!
//! The numbers of this crate, of the listener and of the engine are described here; the workers
//! describe their own. No label ever carries a user, an order or anything else without a small, known
//! set of values. A name says its kind by its end: `_total` is a counter, everything else a gauge, or a
//! histogram where it says so. Every number is served from the first moment on; those of items are in
//! `api/item_metrics.rs`.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use listener::metrics::{
    CONNECTIONS, CONNECTIONS_CUT, CONNECTIONS_REFUSED, CUT_REASONS, REFUSED_REASONS,
    TLS_HANDSHAKES, TLS_HANDSHAKES_FAILED,
};
use metrics::{Counter, Histogram, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::access::AccessRefusal;

pub const HTTP_ANSWERS: &str = "seckill_http_answers_total";
pub const HTTP_REQUESTS: &str = "seckill_http_requests_total";
pub const HTTP_SECONDS: &str = "seckill_http_seconds";
pub const AUTH_REFUSED: &str = "seckill_auth_refused_total";
/// Whether the files of the certificate have changed into something that cannot be used.
pub const TLS_CERTIFICATE_BAD: &str = "seckill_tls_certificate_bad";
pub const RATE_LIMITED: &str = "seckill_rate_limited_total";
pub const CLAIMS: &str = "seckill_claims_total";
pub const BUILD_INFO: &str = "seckill_build_info";
pub const CLAIM_SECONDS: &str = "seckill_claim_seconds";
pub const PUSH_DROPPED: &str = "seckill_push_dropped_total";
/// The values of the label `reason` of the streams that were ended.
const PUSH_DROPPED_REASONS: [&str; 2] = ["slow", "silent"];

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Seconds,
}

const DESCRIBED: &[(&str, Kind, &str)] = &[
    (CONNECTIONS, Kind::Gauge, "Open client connections."),
    (
        CONNECTIONS_REFUSED,
        Kind::Counter,
        "Connections refused, because the house was full or one address had its share.",
    ),
    (
        CONNECTIONS_CUT,
        Kind::Counter,
        "Connections cut for being too slow or to make room, by reason.",
    ),
    (TLS_HANDSHAKES, Kind::Counter, "Clients that agreed with us on TLS."),
    (TLS_HANDSHAKES_FAILED, Kind::Counter, "Clients that did not."),
    (
        TLS_CERTIFICATE_BAD,
        Kind::Gauge,
        "1 if the new certificate cannot be used; the old one stays.",
    ),
    (HTTP_ANSWERS, Kind::Counter, "HTTP answers by class of status."),
    (HTTP_REQUESTS, Kind::Counter, "HTTP requests by route and class of status."),
    (HTTP_SECONDS, Kind::Seconds, "From a request's head to its answer."),
    (
        AUTH_REFUSED,
        Kind::Counter,
        "Requests refused for their token, role or signature, by kind: no_token, buyer_token, admin_token, \
         role, signature, session, origin.",
    ),
    (
        RATE_LIMITED,
        Kind::Counter,
        "Requests refused for asking too often, by class and by who was counted: user, address.",
    ),
    (CLAIMS, Kind::Counter, "Claims by answer."),
    (CLAIM_SECONDS, Kind::Seconds, "From a claim's entry into the lane to the gate's answer."),
    (BUILD_INFO, Kind::Gauge, "1; the labels say which build runs, in which profile."),
    ("seckill_gate_up", Kind::Gauge, "1 if the gate, or a part of it, can be written."),
    (
        "seckill_gate_partitions_silent",
        Kind::Gauge,
        "Partitions of the gate that cannot be written.",
    ),
    ("seckill_ledger_up", Kind::Gauge, "1 if the ledger answers."),
    ("seckill_ready", Kind::Gauge, "1 if this process can sell, settle, show."),
    (
        "seckill_clock_offset_seconds",
        Kind::Gauge,
        "How far the ledger's clock is ahead of this host's.",
    ),
    ("seckill_disk_free_bytes", Kind::Gauge, "Free space on the disk of the data directory."),
    ("seckill_disk_size_bytes", Kind::Gauge, "Size of the disk of the data directory."),
    ("seckill_alert_open", Kind::Gauge, "1 while this process has told of it and it is not over."),
    ("seckill_alerts_waiting", Kind::Gauge, "Alerts that wait for the webhook."),
    ("seckill_log_backlog_claims", Kind::Gauge, "Claims admitted and not yet in the ledger."),
    (
        "seckill_log_oldest_age_seconds",
        Kind::Gauge,
        "How long the oldest of them has been waiting.",
    ),
    ("seckill_outbox_rows", Kind::Gauge, "Effects that committed transactions still owe, by kind."),
    ("seckill_outbox_oldest_age_seconds", Kind::Gauge, "How old the oldest of them is, by kind."),
    (
        "seckill_dead_letters",
        Kind::Gauge,
        "Claims that failed all their tries and wait for a person.",
    ),
    ("seckill_retrying_claims", Kind::Gauge, "Claims that failed and are tried again."),
    (
        "seckill_webhook_oldest_age_seconds",
        Kind::Gauge,
        "How old the oldest event is that waits for an endpoint; `all` is the oldest of all.",
    ),
    ("seckill_webhook_endpoints_off", Kind::Gauge, "Endpoints of webhooks that are switched off."),
    (WEBHOOK_POSTS, Kind::Counter, "Posts to endpoints of webhooks, by outcome: taken, failed."),
    ("seckill_push_streams", Kind::Gauge, "Buyers listening for news."),
    (
        PUSH_DROPPED,
        Kind::Counter,
        "Streams ended because their listener did not keep up (slow) or gave no sign of life (silent).",
    ),
    (ORDERS_TIMED_OUT, Kind::Counter, "Orders closed because they were not paid in time."),
    (COOL_DOWNS, Kind::Counter, "Buyers who had to wait after too many unpaid orders."),
    (PAYMENTS_CREDITED, Kind::Counter, "Payments that made an order paid."),
    (PAYMENTS_LATE, Kind::Counter, "Payments for orders that were over; the money goes back."),
    (
        "seckill_reconcile_differences_left",
        Kind::Gauge,
        "Differences the last reconcile run could not heal.",
    ),
    (HEALED, Kind::Counter, "Differences healed by reconcile runs."),
];

const ORDERS_TIMED_OUT: &str = "seckill_orders_timed_out_total";
const COOL_DOWNS: &str = "seckill_cool_downs_total";
const PAYMENTS_CREDITED: &str = "seckill_payments_credited_total";
const PAYMENTS_LATE: &str = "seckill_payments_late_total";
const WEBHOOK_POSTS: &str = "seckill_webhook_posts_total";
const HEALED: &str = "seckill_reconcile_healed_total";

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
    for name in [TLS_HANDSHAKES, TLS_HANDSHAKES_FAILED] {
        metrics::counter!(name).increment(0);
    }
    for name in [ORDERS_TIMED_OUT, COOL_DOWNS, PAYMENTS_CREDITED, PAYMENTS_LATE, HEALED] {
        metrics::counter!(name).increment(0);
    }
    for outcome in ["taken", "failed"] {
        metrics::counter!(WEBHOOK_POSTS, "outcome" => outcome).increment(0);
    }
    for kind in AccessRefusal::ALL {
        metrics::counter!(AUTH_REFUSED, "kind" => kind.as_str()).increment(0);
    }
    for reason in PUSH_DROPPED_REASONS {
        metrics::counter!(PUSH_DROPPED, "reason" => reason).increment(0);
    }
    for reason in REFUSED_REASONS {
        metrics::counter!(CONNECTIONS_REFUSED, "reason" => reason).increment(0);
    }
    crate::front_door::describe_counts();
    for reason in CUT_REASONS {
        metrics::counter!(CONNECTIONS_CUT, "reason" => reason).increment(0);
    }
    for name in [
        "seckill_reconcile_differences_left",
        "seckill_gate_partitions_silent",
        CONNECTIONS,
        TLS_CERTIFICATE_BAD,
    ] {
        metrics::gauge!(name).set(0.0);
    }
}

/// Which build runs, in which profile.
pub fn show_build(profile: &'static str) {
    let version = env!("CARGO_PKG_VERSION");
    metrics::gauge!(BUILD_INFO, "version" => version, "profile" => profile).set(1.0);
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
            assert!(!matches!(kind, Kind::Seconds) || name.ends_with("_seconds"), "{name}");
            assert!(text.ends_with('.'), "{name}");
        }
    }
}

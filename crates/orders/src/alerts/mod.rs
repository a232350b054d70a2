//! Alerts: telling a person, outside this system, that something needs them.
//!
//! Raising one never waits and never fails: it is logged, counted, and put into a bounded queue for each
//! who is told: the operator's webhook, and robots of chat services ([`robot`]). A task for each posts its
//! queue ([`post`]), so that one that hangs delays only its own; one more hands them to a [`record`], if
//! there is one. An alert is a
//! call, not a record: what it is about (a dead letter, a difference found by reconcile) is stored
//! elsewhere. Whoever owns this may keep what waits ([`Alerts::waiting`]) and begin with it after a
//! restart; an alert may then come twice, which is better than never.
//!
//! **A webhook that is slow or away** loses nothing for an hour: an alert is tried again until then.
//! Meanwhile the queue stays short, because of each kind only the first few wait one by one and the
//! rest are counted on the last of them (`more`). Since a webhook that fails cannot tell of it, its
//! state is there to be shown elsewhere ([`Alerts::webhook`]).
//!
//! The address of a webhook usually carries its secret in the path (`…/hooks/T00/B00/xyz`), so only
//! scheme, host and port of it are ever shown.

mod kind;
mod post;
mod record;
mod robot;

use std::{collections::VecDeque, fmt, sync::Arc, time::Instant};

use parking_lot::Mutex;
use sale::{Invalid, Millis, OrderNo};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tracing::{error, info};

pub use kind::AlertKind;
use post::Poster;
pub use record::AlertRecord;
pub use robot::{Robot, RobotKind};

use crate::{meters, options::within, outage::StopSignal};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertState {
    Raised,
    /// What was raised before is over.
    Resolved,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// What happened, as a machine reads it, e.g. `dead_letter`. Also a metric label.
    pub kind: AlertKind,
    pub state: AlertState,
    /// What happened, as a person reads it.
    pub message: String,
    pub order_no: Option<OrderNo>,
    pub cause: Option<String>,
    /// Of a state: since when it lasts.
    pub since_ms: Option<Millis>,
    pub at_ms: Millis,
    /// So many more of this kind came while this one waited for the webhook.
    pub more: u64,
}

impl Alert {
    pub fn new(kind: AlertKind, message: impl Into<String>, at_ms: Millis) -> Alert {
        Alert {
            kind,
            state: AlertState::Raised,
            message: message.into(),
            order_no: None,
            cause: None,
            since_ms: None,
            at_ms,
            more: 0,
        }
    }

    pub fn because(self, cause: impl fmt::Display) -> Alert {
        Alert { cause: Some(cause.to_string()), ..self }
    }

    pub fn about_order(self, order_no: OrderNo) -> Alert {
        Alert { order_no: Some(order_no), ..self }
    }

    pub fn since(self, since_ms: Millis) -> Alert {
        Alert { since_ms: Some(since_ms), ..self }
    }

    pub fn resolved(self) -> Alert {
        Alert { state: AlertState::Resolved, ..self }
    }
}

#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlertOptions {
    /// Where to post alerts. Without it they are only logged and counted.
    pub webhook_url: Option<String>,
    /// Who else is told, in their own words.
    pub robots: Vec<Robot>,
    /// Which process raised the alert, so that a person finds it.
    pub instance: String,
    /// Alerts of one kind that wait one by one to be posted; more are counted on the last of them.
    pub waiting_per_kind_max: usize,
    /// How long the webhook may take to answer.
    pub webhook_timeout_ms: u64,
    /// How often an alert is posted to a webhook that answers and refuses it.
    pub webhook_refusals_max: u32,
    /// For how long it is posted to one that does not answer, or is out of order.
    pub webhook_give_up_ms: u64,
    /// The first wait between tries. It doubles with each.
    pub webhook_pause_ms_min: u64,
    /// The longest wait between tries.
    pub webhook_pause_ms_max: u64,
}

impl Default for AlertOptions {
    fn default() -> Self {
        AlertOptions {
            webhook_url: None,
            robots: Vec::new(),
            instance: String::new(),
            waiting_per_kind_max: 20,
            webhook_timeout_ms: 5_000,
            webhook_refusals_max: 5,
            webhook_give_up_ms: 3_600_000,
            webhook_pause_ms_min: 500,
            webhook_pause_ms_max: 10_000,
        }
    }
}

impl fmt::Debug for AlertOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlertOptions")
            .field("webhook_url", &self.webhook_url.as_deref().map(redacted))
            .field("robots", &self.robots)
            .field("instance", &self.instance)
            .field("waiting_per_kind_max", &self.waiting_per_kind_max)
            .field("webhook_timeout_ms", &self.webhook_timeout_ms)
            .field("webhook_refusals_max", &self.webhook_refusals_max)
            .field("webhook_give_up_ms", &self.webhook_give_up_ms)
            .field("webhook_pause_ms_min", &self.webhook_pause_ms_min)
            .field("webhook_pause_ms_max", &self.webhook_pause_ms_max)
            .finish()
    }
}

impl AlertOptions {
    /// All who are told.
    fn told(&self) -> Vec<Robot> {
        let webhook = self.webhook_url.clone();
        let webhook =
            webhook.map(|url| Robot { kind: RobotKind::Json, url, secret: String::new() });
        webhook.into_iter().chain(self.robots.iter().cloned()).collect()
    }

    pub fn validate(&self) -> Result<(), Invalid> {
        for Robot { url, .. } in self.told() {
            let uri = url.parse::<ureq::http::Uri>().ok();
            let http = |uri: &ureq::http::Uri| {
                matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
            };
            if !uri.as_ref().is_some_and(http) {
                return Err(Invalid::new("webhook_url", "must be an http or https address"));
            }
        }
        within("waiting_per_kind_max", self.waiting_per_kind_max, 1_000)?;
        within("webhook_timeout_ms", self.webhook_timeout_ms, 60_000)?;
        within("webhook_refusals_max", self.webhook_refusals_max, 100)?;
        within("webhook_give_up_ms", self.webhook_give_up_ms, 86_400_000)?;
        within("webhook_pause_ms_min", self.webhook_pause_ms_min, 600_000)?;
        within("webhook_pause_ms_max", self.webhook_pause_ms_max, 600_000)?;
        if self.webhook_pause_ms_max < self.webhook_pause_ms_min {
            let problem = "must not be below webhook_pause_ms_min";
            return Err(Invalid::new("webhook_pause_ms_max", problem));
        }
        Ok(())
    }
}

/// How the webhook does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookState {
    /// There is one.
    pub is_set: bool,
    /// Why the last post failed; `None` after one that did not.
    pub failing: Option<String>,
    /// Alerts that are not delivered yet.
    pub waiting: usize,
}

/// Where alerts are raised. Clones raise into the same queue.
#[derive(Clone)]
pub struct Alerts {
    /// One for each who is told.
    queues: Arc<[Arc<Queue>]>,
    /// What is to be written down.
    record: Option<Arc<Queue>>,
    stop: Arc<watch::Sender<bool>>,
    stopped: watch::Receiver<bool>,
}

impl Alerts {
    /// `options` must be valid. Must be called inside a tokio runtime.
    pub fn start(options: AlertOptions) -> Alerts {
        Alerts::start_with(options, Vec::new(), None)
    }

    /// With what waited when the process ended; it was logged and counted then.
    pub fn start_with(
        options: AlertOptions,
        waiting: Vec<Alert>,
        record: Option<Arc<dyn AlertRecord>>,
    ) -> Alerts {
        let told = options.told();
        let queues: Arc<[Arc<Queue>]> =
            told.iter().map(|_| Arc::new(Queue::new(&options))).collect();
        let (stop, stop_signal) = watch::channel(false);
        let (stopped_tell, stopped) = watch::channel(false);
        let mut posting = tokio::task::JoinSet::new();
        for (robot, queue) in told.into_iter().zip(queues.iter().cloned()) {
            let (queues, stop) = (queues.clone(), StopSignal(stop_signal.clone()));
            posting.spawn(Poster::new(&options, robot, (queue, queues), stop).run());
        }
        let record = record.map(|record| {
            let queue = Arc::new(Queue::new(&options));
            let stop = StopSignal(stop_signal);
            posting.spawn(record::run(record, queue.clone(), options, stop));
            queue
        });
        tokio::spawn(async move {
            while posting.join_next().await.is_some() {}
            stopped_tell.send_replace(true);
        });
        let alerts = Alerts { queues, record, stop: Arc::new(stop), stopped };
        waiting.iter().for_each(|alert| alerts.put(alert));
        alerts
    }

    /// Log, count, and queue for the webhook. Never waits.
    pub fn raise(&self, alert: Alert) {
        let Alert { kind, message, order_no, cause, .. } = &alert;
        let (kind, order_no) = (kind.as_str(), order_no.map(|no| no.to_string()));
        match alert.state {
            AlertState::Raised => {
                error!(kind, order_no, cause, "{message}");
                meters::alert_raised(alert.kind);
            }
            AlertState::Resolved => {
                info!(kind, order_no, cause, "{message}");
                meters::alert_resolved(alert.kind);
            }
        }
        self.put(&alert);
    }

    fn put(&self, alert: &Alert) {
        self.all_queues().for_each(|queue| queue.put(alert.clone()));
    }

    fn all_queues(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.queues.iter().chain(&self.record)
    }

    /// How all who are told do together: failing if one is, and as many wait as for the slowest.
    pub fn webhook(&self) -> WebhookState {
        let states = || self.queues.iter().map(|queue| queue.waiting.lock());
        WebhookState {
            is_set: !self.queues.is_empty(),
            failing: states().find_map(|waiting| waiting.failing.clone()),
            waiting: states().map(|waiting| waiting.len()).max().unwrap_or(0),
        }
    }

    /// What is not delivered to all yet, oldest first. After a restart all are told of it.
    pub fn waiting(&self) -> Vec<Alert> {
        let mut all: Vec<Alert> = Vec::new();
        for queue in self.all_queues() {
            let waiting = queue.waiting.lock();
            let queued = waiting.alerts.iter().map(|queued| &queued.alert);
            for alert in waiting.in_hand.iter().chain(queued) {
                if !all.contains(alert) {
                    all.push(alert.clone());
                }
            }
        }
        all.sort_by_key(|alert| alert.at_ms);
        all
    }

    /// Post what is queued until one fails, and end.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        let mut stopped = self.stopped.clone();
        // An error means the runtime is going down and the task with it.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}

/// An alert, and when it came.
struct Queued {
    alert: Alert,
    came: Instant,
}

#[derive(Default)]
struct Waiting {
    alerts: VecDeque<Queued>,
    /// The one that is being posted.
    in_hand: Option<Alert>,
    failing: Option<String>,
}

impl Waiting {
    fn len(&self) -> usize {
        self.alerts.len() + usize::from(self.in_hand.is_some())
    }
}

/// What waits for one who is told.
struct Queue {
    waiting: Mutex<Waiting>,
    came: Notify,
    per_kind_max: usize,
}

impl Queue {
    fn new(options: &AlertOptions) -> Queue {
        Queue {
            waiting: Mutex::default(),
            came: Notify::new(),
            per_kind_max: options.waiting_per_kind_max,
        }
    }

    fn put(&self, alert: Alert) {
        {
            let mut waiting = self.waiting.lock();
            let alike =
                |one: &Queued| one.alert.kind == alert.kind && one.alert.state == alert.state;
            if waiting.alerts.iter().filter(|one| alike(one)).count() >= self.per_kind_max {
                if let Some(last) = waiting.alerts.iter_mut().rfind(|one| alike(one)) {
                    last.alert.more += 1 + alert.more;
                }
                meters::alert_folded();
            } else {
                waiting.alerts.push_back(Queued { alert, came: Instant::now() });
            }
        }
        self.came.notify_one();
    }

    fn take(&self) -> Option<Queued> {
        let mut waiting = self.waiting.lock();
        let next = waiting.alerts.pop_front();
        waiting.in_hand = next.as_ref().map(|next| next.alert.clone());
        next
    }

    /// What was in hand is delivered, or given up.
    fn done(&self) {
        self.waiting.lock().in_hand = None;
    }

    /// Answers whether that has changed.
    fn note(&self, failing: Option<String>) -> bool {
        let mut waiting = self.waiting.lock();
        let has_changed = waiting.failing.is_some() != failing.is_some();
        waiting.failing = failing;
        has_changed
    }

    fn len(&self) -> usize {
        self.waiting.lock().alerts.len()
    }

    fn is_failing(&self) -> bool {
        self.waiting.lock().failing.is_some()
    }
}

/// Scheme, host and port; neither user info nor path.
fn redacted(url: &str) -> String {
    let Ok(uri) = url.parse::<ureq::http::Uri>() else { return "(not an address)".into() };
    let port = uri.port().map_or(String::new(), |port| format!(":{port}"));
    format!("{}://{}{port}/…", uri.scheme_str().unwrap_or("?"), uri.host().unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_in_the_address_is_never_shown() {
        let options = AlertOptions {
            webhook_url: Some("https://me:pw@hooks.example:8443/T00/s3cret?k=s3cret".into()),
            ..Default::default()
        };
        options.validate().unwrap();
        let shown = format!("{options:?}");
        assert!(shown.contains("https://hooks.example:8443/…"), "{shown}");
        assert!(!shown.contains("s3cret") && !shown.contains("pw"), "{shown}");
        assert_eq!(redacted("not an address s3cret"), "(not an address)");
    }

    #[test]
    fn only_http_addresses_are_webhooks() {
        for bad in ["", "ftp://x/y", "/relative", "mailto:me@example"] {
            let options = AlertOptions { webhook_url: Some(bad.into()), ..Default::default() };
            assert_eq!(options.validate().unwrap_err().field, "webhook_url", "{bad}");
        }
    }

    #[test]
    fn of_a_kind_that_comes_in_crowds_a_few_wait_and_the_rest_are_counted() {
        let options = AlertOptions {
            webhook_url: Some("http://127.0.0.1:1/".into()),
            waiting_per_kind_max: 3,
            ..Default::default()
        };
        let queue = Queue::new(&options);
        let letter = |n| Alert::new(AlertKind::DeadLetter, format!("letter {n}"), n);
        for n in 0..1_000 {
            queue.put(letter(n));
        }
        // Another kind is not crowded out.
        queue.put(Alert::new(AlertKind::GateDown, "down", 1_000));
        queue.put(Alert::new(AlertKind::GateDown, "up", 1_001).resolved());
        let waiting = queue.waiting.lock();
        let more: Vec<u64> = waiting.alerts.iter().map(|one| one.alert.more).collect();
        assert_eq!(more, [0, 0, 997, 0, 0]);
    }
}

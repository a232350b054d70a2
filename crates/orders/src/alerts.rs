//! Alerts: telling a person, outside this system, that something needs them.
//!
//! Raising one never waits and never fails: it is logged (`error!`), counted, and put into a
//! bounded queue. One task posts the queue as JSON to the operator's webhook, if there is one, with
//! a time-out and a few tries. An alert is a call, not a record: what it is about (a dead letter, a
//! difference found by reconcile) is stored elsewhere, so a crash that loses the queue loses a
//! call and no fact.
//!
//! The address of a webhook usually carries its secret in the path (`…/hooks/T00/B00/xyz`), so only
//! scheme, host and port of it are ever shown.

use std::{fmt, sync::Arc, time::Duration};

use sale::{Invalid, Millis, OrderNo};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tracing::{error, info};

use crate::{
    meters,
    options::within,
    outage::{Backoff, StopSignal},
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alert {
    /// What happened, as a machine reads it, e.g. `dead_letter`. Also a metric label: one of a few
    /// fixed words.
    pub kind: &'static str,
    /// The same for a person.
    pub message: String,
    pub order_no: Option<OrderNo>,
    pub cause: Option<String>,
    pub at_ms: Millis,
}

#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlertOptions {
    /// Where to post alerts. Without it they are only logged and counted.
    pub webhook_url: Option<String>,
    /// Alerts waiting to be posted; more are logged and counted but not posted.
    pub queue_alerts_max: usize,
    /// How long the webhook may take to answer.
    pub webhook_timeout_ms: u64,
    /// How often one alert is posted before it is given up.
    pub webhook_tries_max: u32,
    /// The first wait between tries. It doubles with each.
    pub webhook_pause_ms_min: u64,
    /// The longest wait between tries.
    pub webhook_pause_ms_max: u64,
}

impl Default for AlertOptions {
    fn default() -> Self {
        AlertOptions {
            webhook_url: None,
            queue_alerts_max: 1_000,
            webhook_timeout_ms: 5_000,
            webhook_tries_max: 5,
            webhook_pause_ms_min: 500,
            webhook_pause_ms_max: 30_000,
        }
    }
}

impl fmt::Debug for AlertOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlertOptions")
            .field("webhook_url", &self.webhook_url.as_deref().map(redacted))
            .field("queue_alerts_max", &self.queue_alerts_max)
            .field("webhook_timeout_ms", &self.webhook_timeout_ms)
            .field("webhook_tries_max", &self.webhook_tries_max)
            .field("webhook_pause_ms_min", &self.webhook_pause_ms_min)
            .field("webhook_pause_ms_max", &self.webhook_pause_ms_max)
            .finish()
    }
}

impl AlertOptions {
    pub fn validate(&self) -> Result<(), Invalid> {
        if let Some(url) = &self.webhook_url {
            let uri = url.parse::<ureq::http::Uri>().ok();
            let http = |uri: &ureq::http::Uri| {
                matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
            };
            if !uri.as_ref().is_some_and(http) {
                return Err(Invalid::new("webhook_url", "must be an http or https address"));
            }
        }
        within("queue_alerts_max", self.queue_alerts_max, 100_000)?;
        within("webhook_timeout_ms", self.webhook_timeout_ms, 60_000)?;
        within("webhook_tries_max", self.webhook_tries_max, 100)?;
        within("webhook_pause_ms_min", self.webhook_pause_ms_min, 600_000)?;
        within("webhook_pause_ms_max", self.webhook_pause_ms_max, 600_000)?;
        if self.webhook_pause_ms_max < self.webhook_pause_ms_min {
            let problem = "must not be below webhook_pause_ms_min";
            return Err(Invalid::new("webhook_pause_ms_max", problem));
        }
        Ok(())
    }
}

/// Where alerts are raised. Clones raise into the same queue.
#[derive(Clone)]
pub struct Alerts {
    queue: mpsc::Sender<Alert>,
    stop: Arc<watch::Sender<bool>>,
    stopped: watch::Receiver<bool>,
}

impl Alerts {
    /// `options` must be valid. Must be called inside a tokio runtime.
    pub fn start(options: AlertOptions) -> Alerts {
        let (queue, waiting) = mpsc::channel(options.queue_alerts_max);
        let (stop, stop_signal) = watch::channel(false);
        let (stopped_tell, stopped) = watch::channel(false);
        let poster = Poster::new(options, StopSignal(stop_signal));
        tokio::spawn(async move {
            poster.run(waiting).await;
            stopped_tell.send_replace(true);
        });
        Alerts { queue, stop: Arc::new(stop), stopped }
    }

    /// Log, count, and queue for the webhook. Never waits.
    pub fn raise(&self, alert: Alert) {
        let Alert { kind, message, order_no, cause, .. } = &alert;
        let order_no = order_no.map(|no| no.to_string());
        error!(kind, order_no, cause, "{message}");
        meters::alert_raised(kind);
        if let Err(full) = self.queue.try_send(alert) {
            meters::alert_dropped();
            let alert = full.into_inner();
            error!(kind = alert.kind, "an alert was not sent: the queue is full or closed");
        }
    }

    /// Post what is queued, one try each, and end.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        let mut stopped = self.stopped.clone();
        // An error means the runtime is going down and the task with it.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }
}

/// The task that posts.
struct Poster {
    options: AlertOptions,
    agent: ureq::Agent,
    stop: StopSignal,
}

impl Poster {
    fn new(options: AlertOptions, stop: StopSignal) -> Self {
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_millis(options.webhook_timeout_ms)))
            // A webhook that redirects is set up wrongly; do not carry alerts elsewhere.
            .max_redirects(0)
            .build()
            .new_agent();
        Poster { options, agent, stop }
    }

    async fn run(mut self, mut waiting: mpsc::Receiver<Alert>) {
        loop {
            let alert = tokio::select! {
                biased;
                () = self.stop.stopped() => break,
                alert = waiting.recv() => alert,
            };
            match alert {
                Some(alert) => self.deliver(alert).await,
                None => return,
            }
        }
        waiting.close();
        while let Some(alert) = waiting.recv().await {
            self.deliver(alert).await;
        }
    }

    async fn deliver(&mut self, alert: Alert) {
        let Some(url) = self.options.webhook_url.clone() else { return };
        let body: Arc<[u8]> = match serde_json::to_vec(&alert) {
            Ok(body) => body.into(),
            Err(fault) => return error!(%fault, kind = alert.kind, "an alert has no JSON form"),
        };
        let options = &self.options;
        let mut backoff = Backoff::new(options.webhook_pause_ms_min, options.webhook_pause_ms_max);
        let tries_max = options.webhook_tries_max;
        for tries in 1..=tries_max {
            match self.post(&url, body.clone()).await {
                Ok(()) => return info!(kind = alert.kind, tries, "alert delivered"),
                Err(cause) if tries == tries_max || self.stop.is_stopped() => {
                    meters::alert_failed();
                    let webhook = redacted(&url);
                    return error!(kind = alert.kind, tries, webhook, cause, "alert not delivered");
                }
                // A stop cuts the wait short and leaves one last try.
                Err(_) => _ = self.stop.sleep(backoff.next()).await,
            }
        }
    }

    async fn post(&self, url: &str, body: Arc<[u8]>) -> Result<(), String> {
        let (agent, address) = (self.agent.clone(), url.to_owned());
        let posting = tokio::task::spawn_blocking(move || {
            agent
                .post(&address)
                .header("content-type", "application/json")
                .send(&body[..])
                .map(drop)
        });
        match posting.await {
            Ok(Ok(())) => Ok(()),
            // Some of these errors quote the address they failed on.
            Ok(Err(fault)) => Err(fault.to_string().replace(url, &redacted(url))),
            Err(panic) => Err(panic.to_string()),
        }
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
}

//! Alerts as events for the shop's endpoints: `alert.raised` and `alert.resolved`.
//!
//! An alert is raised in memory, by whatever process, also while the ledger is away. From there it is written
//! to the outbox as soon as that can be, and goes the way of every event: signed, at least once, those of
//! one kind in order. Its id is made of what it says, so that one that is handed over again after a restart
//! is the same event.

use std::sync::Arc;

use async_trait::async_trait;
use ledger::{Ledger, Share, WebhookEvent, WebhookKind, in_share};
use orders::{Alert, AlertRecord, AlertState};
use serde_json::json;
use sha2::{Digest, Sha256};

/// What is told of a message and of a cause.
const TEXT_CHARS_MAX: usize = 2_000;

pub(crate) struct AlertEvents {
    ledger: Arc<dyn Ledger>,
    instance: String,
}

impl AlertEvents {
    pub(crate) fn new(ledger: Arc<dyn Ledger>, instance: String) -> AlertEvents {
        AlertEvents { ledger, instance }
    }
}

#[async_trait]
impl AlertRecord for AlertEvents {
    async fn keep(&self, alert: &Alert) -> Result<(), String> {
        let event = event(alert, &self.instance);
        let told = in_share(Share::Jobs, self.ledger.tell_webhooks(&event, alert.at_ms));
        told.await.map_err(|error| error.to_string())
    }
}

fn event(alert: &Alert, instance: &str) -> WebhookEvent {
    let (kind, word, todo) = match alert.state {
        AlertState::Raised => (WebhookKind::AlertRaised, "raised", Some(alert.kind.todo())),
        AlertState::Resolved => (WebhookKind::AlertResolved, "resolved", None),
    };
    let text = |text: &str| text.chars().take(TEXT_CHARS_MAX).collect::<String>();
    let said = format!("{:?} {:?} {}", alert.order_no, alert.cause, alert.message);
    let digest = Sha256::digest(said);
    let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    WebhookEvent::Alert {
        kind,
        event_id: format!("evt_alert_{}_{word}_{}_{digest}", alert.kind, alert.at_ms),
        subject: format!("alert:{}", alert.kind),
        data: json!({
            "kind": alert.kind,
            "message": text(&alert.message),
            "cause": alert.cause.as_deref().map(text),
            "order_no": alert.order_no,
            "since": alert.since_ms,
            "at": alert.at_ms,
            "more": alert.more,
            "todo": todo,
            "instance": instance,
        }),
    }
}

#[cfg(test)]
mod tests {
    use orders::AlertKind;

    use super::*;

    #[test]
    fn ids_and_subjects_of_all_kinds_fit_their_columns_and_stay() {
        for kind in AlertKind::ALL {
            let alert = Alert::new(*kind, "x".repeat(9_000), 1_794_355_200_000).because("äöü");
            for alert in [alert.clone(), alert.resolved()] {
                let told = event(&alert, "host-1");
                let WebhookEvent::Alert { event_id, subject, data, .. } = &told else { panic!() };
                assert!(event_id.len() <= 80 && subject.len() <= 40, "{event_id} {subject}");
                assert_eq!(data["message"].as_str().unwrap().len(), TEXT_CHARS_MAX);
                assert_eq!(told, event(&alert, "host-1"));
                let WebhookEvent::Alert { event_id: after_a_restart, .. } = event(&alert, "host-2")
                else {
                    panic!()
                };
                assert_eq!(*event_id, after_a_restart);
            }
        }
    }
}

//! Waking a person: alerts that go to those who are told, and to the shop's endpoints as signed events. Some
//! are raised once for each thing they are about.

use std::{collections::HashSet, fmt::Display, sync::Arc};

use orders::{Alert, AlertKind, AlertOptions, Alerts, Robot};
use parking_lot::Mutex;
use sale::{OrderNo, SharedClock};

use crate::{Parts, Settings, webhooks::AlertEvents};

/// Alerts that are remembered as raised.
const RAISED_MAX: usize = 10_000;

pub(crate) struct Alerting {
    alerts: Alerts,
    clock: SharedClock,
    /// What somebody was woken for already: a kind of alert, and the order or row it was about.
    raised: Mutex<HashSet<(AlertKind, u64)>>,
}

impl Alerting {
    /// `waiting` are those that the process before this one could not deliver.
    pub(crate) fn start(
        settings: &Settings,
        parts: &Parts,
        waiting: Vec<Alert>,
        clock: SharedClock,
    ) -> Alerting {
        let webhook_url = settings.alerts.webhook_url.expose();
        let robots = settings.alerts.robots.iter().map(|robot| Robot {
            kind: robot.kind,
            url: robot.url.expose().to_owned(),
            secret: robot.secret.expose().to_owned(),
        });
        let options = AlertOptions {
            robots: robots.collect(),
            webhook_url: (!webhook_url.is_empty()).then(|| webhook_url.to_owned()),
            instance: parts.instance.clone(),
            webhook_timeout_ms: settings.alerts.webhook_timeout_ms,
            ..AlertOptions::default()
        };
        let record = AlertEvents::new(parts.ledger.clone(), parts.instance.clone());
        let alerts = Alerts::start_with(options, waiting, Some(Arc::new(record)));
        Alerting { alerts, clock, raised: Mutex::default() }
    }

    /// For the workers, who raise alerts of their own, and for those who ask after the webhook.
    pub(crate) fn handle(&self) -> Alerts {
        self.alerts.clone()
    }

    pub(crate) fn raise(&self, alert: Alert) {
        self.alerts.raise(alert);
    }

    /// Wakes somebody, once for each `about`: what waits is checked again and again, and says the same
    /// each time.
    pub(crate) fn raise_once(&self, about: u64, alert: Alert) {
        {
            let mut raised = self.raised.lock();
            if raised.len() >= RAISED_MAX {
                // To be woken twice is better than never.
                raised.clear();
            }
            if !raised.insert((alert.kind, about)) {
                return;
            }
        }
        self.raise(alert);
    }

    /// Wakes somebody, once per order and kind.
    pub(crate) fn about_order(
        &self,
        kind: AlertKind,
        order_no: OrderNo,
        message: &str,
        cause: &dyn Display,
    ) {
        let alert = Alert::new(kind, message, self.clock.now_ms());
        self.raise_once(order_no.as_u64(), alert.about_order(order_no).because(cause));
    }

    pub(crate) async fn stop(&self) {
        self.alerts.stop().await;
    }
}

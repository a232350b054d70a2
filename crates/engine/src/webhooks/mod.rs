//! Webhooks to the shop's backend: what operators do with endpoints, and how one event is sent.
//!
//! An address that came over the API is not trusted: it is resolved, and judged, at every post (see the crate
//! `webhooks`). One from the settings file is. Secrets are made here, shown once, and kept in the ledger,
//! because every process that delivers must sign with them.

mod alerts;
mod events;

use std::{str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use ledger::{
    DeliveryFilter, NewWebhook, Replayed, WebhookChange, WebhookDelivery, WebhookEndpoint,
    WebhookKind, WebhookKinds, WebhookLag, WebhookSource,
};
use sale::{Invalid, Millis, Secret};
use serde_json::json;
use webhooks::{
    Answer, BadAuthorities, NotAnswered, Poster, Reach, SigningSecret, Target, signatures,
};

pub(crate) use self::{
    alerts::AlertEvents,
    events::{body, deliveries_of},
};
use crate::{
    OperateError,
    actor::{Actor, audit_entry},
    shared::Shared,
};

pub const WEBHOOK_DESCRIPTION_CHARS_MAX: usize = 200;
pub const WEBHOOK_URL_CHARS_MAX: usize = webhooks::TARGET_CHARS_MAX;
/// Failed deliveries that are sent again in one transaction.
const REPLAYED_AT_ONCE: usize = 500;
/// How long an operator who enters an address waits for its name to be resolved.
const JUDGED_WITHIN: Duration = Duration::from_secs(5);
/// What is kept of an answer as the cause of a failure.
const ANSWER_CHARS_MAX: usize = 200;

type Result<T> = std::result::Result<T, OperateError>;

pub struct Webhooks {
    shared: Arc<Shared>,
    poster: Poster,
}

/// An endpoint, and what waits for it.
#[derive(Clone, Debug)]
pub struct Shown {
    pub endpoint: WebhookEndpoint,
    pub lag: WebhookLag,
}

/// How a ping went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingOutcome {
    pub status: Option<u16>,
    /// Why it was not taken.
    pub cause: Option<String>,
}

/// One post of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    Taken(u16),
    /// The endpoint says that it is there no more.
    Gone,
    Refused {
        status: Option<u16>,
        cause: String,
    },
}

impl Webhooks {
    pub(crate) fn new(shared: Arc<Shared>) -> std::result::Result<Webhooks, BadAuthorities> {
        let poster = Poster::trusting(&shared.settings.webhooks.tls_ca_file)?;
        Ok(Webhooks { shared, poster })
    }

    pub async fn all(&self) -> ledger::Result<Vec<Shown>> {
        let mut shown = Vec::new();
        for endpoint in self.shared.ledger.webhook_endpoints().await? {
            let lag = self.shared.ledger.webhook_lag(endpoint.id).await?;
            shown.push(Shown { endpoint, lag });
        }
        Ok(shown)
    }

    pub async fn one(&self, id: i64) -> Result<Shown> {
        let endpoint = self.shared.ledger.webhook_endpoint(id).await?;
        let endpoint = endpoint.ok_or(OperateError::NotFound)?;
        let lag = self.shared.ledger.webhook_lag(id).await?;
        Ok(Shown { endpoint, lag })
    }

    /// Answers the endpoint with its secret, which nobody is shown again.
    pub async fn add(
        &self,
        who: impl Into<Actor>,
        url: &str,
        description: &str,
        kinds: &[WebhookKind],
    ) -> Result<WebhookEndpoint> {
        self.check_url(url).await?;
        check_description(description)?;
        let new = NewWebhook {
            url: url.to_owned(),
            description: description.to_owned(),
            kinds: WebhookKinds::of(kinds),
            secret: new_secret()?,
            source: WebhookSource::Api,
        };
        let detail = json!({"url": shown_url(url), "events": kinds});
        let entry = audit_entry(who, "webhook.create", "webhook".into(), detail);
        let endpoints_max = self.shared.settings.webhooks.endpoints_max;
        let (ledger, now_ms) = (&self.shared.ledger, self.shared.now_ms());
        let made = ledger.add_webhook(&new, endpoints_max, &entry, now_ms).await?;
        made.ok_or(OperateError::Conflict("full"))
    }

    pub async fn change(
        &self,
        who: impl Into<Actor>,
        id: i64,
        change: &WebhookChange,
    ) -> Result<Shown> {
        let known = self.one(id).await?.endpoint;
        let of_settings = known.source == WebhookSource::Settings;
        let only_on_or_off = WebhookChange { enabled: change.enabled, ..WebhookChange::default() };
        if of_settings && *change != only_on_or_off {
            return Err(OperateError::Conflict("in the settings"));
        }
        if let Some(url) = &change.url {
            self.check_url(url).await?;
        }
        if let Some(description) = &change.description {
            check_description(description)?;
        }
        let detail = json!({
            "url": change.url.as_deref().map(shown_url), "enabled": change.enabled,
            "events": change.kinds.map(WebhookKinds::list),
        });
        let entry = audit_entry(who, "webhook.change", format!("webhook:{id}"), detail);
        let now_ms = self.shared.now_ms();
        self.shared.ledger.change_webhook(id, change, &entry, now_ms).await?;
        self.shared.wake.webhooks.notify_one();
        self.one(id).await
    }

    pub async fn remove(&self, who: impl Into<Actor>, id: i64) -> Result<()> {
        let known = self.one(id).await?.endpoint;
        if known.source == WebhookSource::Settings {
            return Err(OperateError::Conflict("in the settings"));
        }
        let detail = json!({"url": shown_url(&known.url)});
        let entry = audit_entry(who, "webhook.remove", format!("webhook:{id}"), detail);
        let removed = self.shared.ledger.remove_webhook(id, &entry, self.shared.now_ms()).await?;
        if removed { Ok(()) } else { Err(OperateError::NotFound) }
    }

    /// A new secret. The one before signs as well for `webhooks.rotation_ms`.
    pub async fn rotate(&self, who: impl Into<Actor>, id: i64) -> Result<WebhookEndpoint> {
        if self.one(id).await?.endpoint.source == WebhookSource::Settings {
            return Err(OperateError::Conflict("in the settings"));
        }
        let entry =
            audit_entry(who, "webhook.rotate", format!("webhook:{id}"), serde_json::Value::Null);
        let now_ms = self.shared.now_ms();
        let until_ms = now_ms.saturating_add(self.shared.settings.webhooks.rotation_ms);
        let secret = new_secret()?;
        Ok(self.shared.ledger.rotate_webhook(id, &secret, until_ms, &entry, now_ms).await?)
    }

    /// Posts a ping now, whatever waits, and tells how it went.
    pub async fn ping(&self, who: impl Into<Actor>, id: i64) -> Result<PingOutcome> {
        let endpoint = self.one(id).await?.endpoint;
        let target = format!("webhook:{id}");
        self.shared.audit(who, "webhook.test", target, serde_json::Value::Null).await?;
        let now_ms = self.shared.now_ms();
        let body = body("webhook.test", now_ms, json!({"webhook_id": id}));
        let event_id = format!("evt_test{id}_{now_ms}_{:08x}", fastrand::u32(..));
        Ok(match self.post(&endpoint, &event_id, &body).await {
            Posted::Taken(status) => PingOutcome { status: Some(status), cause: None },
            Posted::Gone => PingOutcome { status: Some(410), cause: Some("410 Gone".into()) },
            Posted::Refused { status, cause } => PingOutcome { status, cause: Some(cause) },
        })
    }

    pub async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<WebhookDelivery>> {
        self.one(filter.endpoint).await?;
        Ok(self.shared.ledger.webhook_deliveries(filter).await?)
    }

    /// Sends one again, with those that failed behind it. Answers how many.
    pub async fn replay(&self, who: impl Into<Actor>, id: i64, delivery: i64) -> Result<usize> {
        let target = format!("webhook:{id}");
        let entry = audit_entry(who, "webhook.replay", target, json!({"delivery": delivery}));
        let (ledger, now_ms) = (&self.shared.ledger, self.shared.now_ms());
        match ledger.replay_webhook(id, delivery, &entry, now_ms).await? {
            Replayed::Again(deliveries) => {
                self.shared.wake.webhooks.notify_one();
                Ok(deliveries)
            }
            Replayed::OnItsWay => Err(OperateError::Conflict("pending")),
            Replayed::NotFound => Err(OperateError::NotFound),
        }
    }

    /// Sends all again that failed and happened since then. Answers how many.
    pub async fn replay_failed(
        &self,
        who: impl Into<Actor>,
        id: i64,
        since_ms: Millis,
    ) -> Result<usize> {
        self.one(id).await?;
        let (target, detail) = (format!("webhook:{id}"), json!({"failed_since": since_ms}));
        self.shared.audit(who, "webhook.replay", target, detail).await?;
        let mut replayed = 0;
        loop {
            let ledger = &self.shared.ledger;
            let page = ledger.replay_failed_webhooks(id, since_ms, REPLAYED_AT_ONCE).await?;
            replayed += page;
            self.shared.wake.webhooks.notify_one();
            if page < REPLAYED_AT_ONCE {
                return Ok(replayed);
            }
        }
    }

    /// Posts one event, signed with every secret that is good now.
    pub(crate) async fn post(
        &self,
        endpoint: &WebhookEndpoint,
        event_id: &str,
        body: &str,
    ) -> Posted {
        let refused = |cause: String| Posted::Refused { status: None, cause };
        let Ok(target) = Target::from_str(&endpoint.url) else {
            return refused("its address cannot be read".into());
        };
        let now_ms = self.shared.now_ms();
        let previous = endpoint.previous.iter().filter(|(_, until_ms)| now_ms < *until_ms);
        let texts = [&endpoint.secret].into_iter().chain(previous.map(|(secret, _)| secret));
        let secrets: Vec<SigningSecret> =
            texts.filter_map(|text| SigningSecret::parse(text.expose()).ok()).collect();
        if secrets.is_empty() {
            return refused("its secret cannot be read".into());
        }
        let timestamp_s = now_ms.div_euclid(1_000);
        let signed = signatures(&secrets, event_id, timestamp_s, body.as_bytes());
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("webhook-id", event_id),
            ("webhook-timestamp", &timestamp_s.to_string()),
            ("webhook-signature", &signed),
        ] {
            let Ok(value) = HeaderValue::from_str(value) else {
                return refused(format!("{name} cannot be written"));
            };
            headers.insert(name, value);
        }
        let reach = match endpoint.source {
            WebhookSource::Settings => Reach::Anywhere,
            WebhookSource::Api => self.reach_of(&target),
        };
        let within = Duration::from_millis(self.shared.settings.webhooks.timeout_ms);
        let body = Bytes::copy_from_slice(body.as_bytes());
        judged(self.poster.post(&target, reach, headers, body, within).await)
    }

    /// Hosts that the settings name may be anywhere.
    fn reach_of(&self, target: &Target) -> Reach {
        let allowed = &self.shared.settings.webhooks.allowed_hosts;
        let named = allowed.iter().any(|host| host.eq_ignore_ascii_case(target.host()));
        if named { Reach::Anywhere } else { Reach::Public }
    }

    /// An address that leads inside now is refused now; later ones are refused when they are posted to.
    async fn check_url(&self, url: &str) -> Result<()> {
        let target = Target::from_str(url);
        let target = target.map_err(|bad| Invalid::new("url", bad.to_string()))?;
        match Poster::judge(&target, self.reach_of(&target), JUDGED_WITHIN).await {
            Err(inside @ NotAnswered::Forbidden(_)) => {
                Err(Invalid::new("url", inside.to_string()).into())
            }
            // A name that nobody knows yet may be known tomorrow.
            _ => Ok(()),
        }
    }
}

fn judged(posted: std::result::Result<Answer, NotAnswered>) -> Posted {
    let Answer { status, body, .. } = match posted {
        Ok(answer) => answer,
        Err(error) => return Posted::Refused { status: None, cause: error.to_string() },
    };
    match status {
        200..=299 => Posted::Taken(status),
        410 => Posted::Gone,
        _ => {
            let said: String = String::from_utf8_lossy(&body.unwrap_or_default())
                .chars()
                .filter(|c| !c.is_control())
                .take(ANSWER_CHARS_MAX)
                .collect();
            let what =
                if (300..400).contains(&status) { ", redirects are not followed" } else { "" };
            Posted::Refused {
                status: Some(status),
                cause: format!("{status}{what} {said}").trim().into(),
            }
        }
    }
}

fn new_secret() -> Result<Secret> {
    let secret = SigningSecret::generate();
    let failed = |error: getrandom::Error| ledger::LedgerError::Unavailable(error.to_string());
    Ok(Secret::new(secret.map_err(failed)?))
}

fn check_description(description: &str) -> Result<()> {
    let chars = description.chars();
    if chars.clone().count() > WEBHOOK_DESCRIPTION_CHARS_MAX
        || chars.into_iter().any(char::is_control)
    {
        let rule =
            format!("must be at most {WEBHOOK_DESCRIPTION_CHARS_MAX} characters on one line");
        return Err(Invalid::new("description", rule).into());
    }
    Ok(())
}

/// Without its path, which may carry a secret.
fn shown_url(url: &str) -> String {
    Target::from_str(url).map_or_else(|_| "?".into(), |target| target.to_string())
}

/// Could it be posted to? For the settings, whose addresses may be anywhere.
pub fn is_webhook_url(url: &str) -> bool {
    Target::from_str(url).is_ok()
}

/// Could it sign?
pub fn is_webhook_secret(secret: &str) -> bool {
    SigningSecret::parse(secret).is_ok()
}

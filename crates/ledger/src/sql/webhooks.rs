//! Webhooks: the endpoints, and the events that transactions leave for them in the outbox.
//!
//! Whether anybody wants an event is read in the transaction that causes it, so that none is lost between
//! an operator's "from now on" and what a process remembers of it. Where there is no endpoint, that one
//! reading of an empty table is all it costs, and settling has it from a statement that it makes anyway.

use async_trait::async_trait;
use sale::{ActivityId, ActivityState, Millis, Secret};

use super::{
    Access, SqlLedger,
    columns::{get, parsed},
    deliveries,
    failure::{Failure, Outcome},
    operators, outbox,
    session::{Row, Session, Value, values},
};
use crate::{
    AuditEntry, DeliveryFilter, ForgetBefore, NewDelivery, NewWebhook, OutboxMessage, Replayed,
    Result, Tried, WebhookAge, WebhookChange, WebhookDelivery, WebhookEndpoint, WebhookEvent,
    WebhookKind, WebhookKinds, WebhookLag, WebhookSource, Webhooks, outbox::shortened,
};

const ENABLED: i64 = 0;
const SWITCHED_OFF: i64 = 1;
pub(super) const REMOVED: i64 = 2;

/// Activities that are told of at once.
const OPENED_MAX: usize = 100;

const ENDPOINT_COLUMNS: &str = "id, url, description, events, state, reason, secret, previous_secret, \
     previous_until, source, failing_since, created_at, updated_at";

fn read(row: &dyn Row) -> Outcome<WebhookEndpoint> {
    let previous = get::<Option<String>>(row, 7)?.zip(get::<Option<Millis>>(row, 8)?);
    Ok(WebhookEndpoint {
        id: get(row, 0)?,
        url: get(row, 1)?,
        description: get(row, 2)?,
        kinds: WebhookKinds::from_bits(get(row, 3)?),
        enabled: get::<i64>(row, 4)? == ENABLED,
        reason: get(row, 5)?,
        secret: Secret::new(get::<String>(row, 6)?),
        previous: previous.map(|(secret, until_ms)| (Secret::new(secret), until_ms)),
        source: parsed(row, 9)?,
        failing_since_ms: get(row, 10)?,
        created_ms: get(row, 11)?,
        updated_ms: get(row, 12)?,
    })
}

/// Leaves what happened in this transaction to those who want to be told, as one row for all of it.
pub(super) async fn tell(
    tx: &mut dyn Session,
    events: impl IntoIterator<Item = WebhookEvent>,
    now_ms: Millis,
) -> Outcome<()> {
    let mut events: Vec<WebhookEvent> = events.into_iter().collect();
    if events.is_empty() {
        return Ok(());
    }
    let wanted = wanted(tx).await?;
    events.retain(|event| wanted.has(event.kind()));
    if !events.is_empty() {
        outbox::push(tx, &OutboxMessage::Webhook { events }, now_ms).await?;
    }
    Ok(())
}

/// What anybody wants to be told of. One that is switched off is told when it is on again.
pub(super) async fn wanted(session: &mut dyn Session) -> Outcome<WebhookKinds> {
    let sql = "SELECT events FROM tb_webhook_endpoint WHERE state <> ?";
    let bits = session.rows(sql, values![REMOVED], |row| get::<i64>(row, 0)).await?;
    Ok(WebhookKinds::from_bits(bits.into_iter().fold(0, |all, bits| all | bits)))
}

pub(super) async fn all(session: &mut dyn Session) -> Outcome<Vec<WebhookEndpoint>> {
    let sql =
        format!("SELECT {ENDPOINT_COLUMNS} FROM tb_webhook_endpoint WHERE state <> ? ORDER BY id");
    session.rows(&sql, values![REMOVED], read).await
}

async fn one(session: &mut dyn Session, id: i64) -> Outcome<Option<WebhookEndpoint>> {
    let sql =
        format!("SELECT {ENDPOINT_COLUMNS} FROM tb_webhook_endpoint WHERE id = ? AND state <> ?");
    session.first(&sql, values![id, REMOVED], read).await
}

/// One that nobody else can change before this transaction ends.
async fn locked(tx: &mut dyn Session, id: i64) -> Outcome<WebhookEndpoint> {
    let sql = format!(
        "SELECT {ENDPOINT_COLUMNS} FROM tb_webhook_endpoint WHERE id = ? AND state <> ? {}",
        tx.dialect().for_update()
    );
    tx.first(&sql, values![id, REMOVED], read).await?.ok_or(Failure::NotFound)
}

async fn insert(tx: &mut dyn Session, new: &NewWebhook, now_ms: Millis) -> Outcome<i64> {
    let sql = "INSERT INTO tb_webhook_endpoint
             (url, description, events, state, secret, source, created_at, updated_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    let (bits, secret) = (new.kinds.bits(), new.secret.expose());
    let (url, source) = (&new.url, new.source.as_str());
    let row = values![url, &new.description, bits, ENABLED, secret, source, now_ms, now_ms];
    tx.execute(sql, row).await?;
    tx.inserted_id()
}

async fn add(
    tx: &mut dyn Session,
    new: &NewWebhook,
    endpoints_max: usize,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<Option<WebhookEndpoint>> {
    if all(tx).await?.len() >= endpoints_max {
        return Ok(None);
    }
    let id = insert(tx, new, now_ms).await?;
    operators::audit(tx, &AuditEntry { target: format!("webhook:{id}"), ..audit.clone() }, now_ms)
        .await?;
    one(tx, id).await
}

async fn change(
    tx: &mut dyn Session,
    id: i64,
    change: &WebhookChange,
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<WebhookEndpoint> {
    let was = locked(tx, id).await?;
    let enabled = change.enabled.unwrap_or(was.enabled);
    let url = change.url.as_ref().unwrap_or(&was.url);
    let description = change.description.as_ref().unwrap_or(&was.description);
    let bits = change.kinds.unwrap_or(was.kinds).bits();
    let state = if enabled { ENABLED } else { SWITCHED_OFF };
    // Whoever switches it on, or gives it another address, begins anew with it.
    let anew = enabled && (!was.enabled || *url != was.url);
    let failing_since = was.failing_since_ms.filter(|_| !anew);
    let reason = match (enabled, was.enabled) {
        (true, _) => None,
        (false, true) => Some("an operator switched it off".to_owned()),
        (false, false) => was.reason.clone(),
    };
    let sql = "UPDATE tb_webhook_endpoint SET url = ?, description = ?, events = ?, state = ?,
             reason = ?, failing_since = ?, updated_at = ? WHERE id = ?";
    let row = values![url, description, bits, state, reason, failing_since, now_ms, id];
    tx.execute(sql, row).await?;
    if anew {
        deliveries::all_due(tx, id).await?;
    }
    operators::audit(tx, audit, now_ms).await?;
    locked(tx, id).await
}

async fn remove(
    tx: &mut dyn Session,
    id: i64,
    audit: Option<&AuditEntry>,
    now_ms: Millis,
) -> Outcome<bool> {
    // The secrets go at once, the rest by and by.
    let sql = "UPDATE tb_webhook_endpoint
         SET state = ?, secret = '', previous_secret = NULL, updated_at = ?
         WHERE id = ? AND state <> ?";
    let removed = tx.execute(sql, values![REMOVED, now_ms, id, REMOVED]).await? == 1;
    if let Some(audit) = audit.filter(|_| removed) {
        operators::audit(tx, audit, now_ms).await?;
    }
    Ok(removed)
}

async fn set_secret(
    tx: &mut dyn Session,
    id: i64,
    secret: &Secret,
    previous_until_ms: Millis,
    now_ms: Millis,
) -> Outcome<()> {
    // In SQLite and MySQL alike the column to the left is not yet changed in the expression of the next but
    // one: MySQL assigns from left to right, so the old one is moved first.
    let sql = "UPDATE tb_webhook_endpoint
         SET previous_secret = secret, previous_until = ?, secret = ?, updated_at = ? WHERE id = ?";
    tx.execute(sql, values![previous_until_ms, secret.expose(), now_ms, id]).await?;
    Ok(())
}

async fn rotate(
    tx: &mut dyn Session,
    id: i64,
    (secret, previous_until_ms): (&Secret, Millis),
    audit: &AuditEntry,
    now_ms: Millis,
) -> Outcome<WebhookEndpoint> {
    locked(tx, id).await?;
    set_secret(tx, id, secret, previous_until_ms, now_ms).await?;
    operators::audit(tx, audit, now_ms).await?;
    locked(tx, id).await
}

async fn put_settings(
    tx: &mut dyn Session,
    wanted: &[NewWebhook],
    previous_until_ms: Millis,
    now_ms: Millis,
) -> Outcome<()> {
    let known = all(tx).await?;
    let known = known.iter().filter(|known| known.source == WebhookSource::Settings);
    let known: Vec<&WebhookEndpoint> = known.collect();
    for gone in known.iter().filter(|known| wanted.iter().all(|new| new.url != known.url)) {
        remove(tx, gone.id, None, now_ms).await?;
    }
    for new in wanted {
        let Some(known) = known.iter().find(|known| known.url == new.url) else {
            insert(tx, new, now_ms).await?;
            continue;
        };
        if known.kinds != new.kinds || known.description != new.description {
            let sql = "UPDATE tb_webhook_endpoint SET events = ?, description = ?, updated_at = ?
                 WHERE id = ?";
            let row = values![new.kinds.bits(), &new.description, now_ms, known.id];
            tx.execute(sql, row).await?;
        }
        if known.secret != new.secret {
            set_secret(tx, known.id, &new.secret, previous_until_ms, now_ms).await?;
        }
    }
    Ok(())
}

async fn failing(tx: &mut dyn Session, id: i64, since_ms: Option<Millis>) -> Outcome<()> {
    let sql = "UPDATE tb_webhook_endpoint SET failing_since = ? WHERE id = ?";
    tx.execute(sql, values![since_ms, id]).await?;
    if since_ms.is_none() {
        deliveries::all_due(tx, id).await?;
    }
    Ok(())
}

async fn switch_off(tx: &mut dyn Session, id: i64, reason: &str, now_ms: Millis) -> Outcome<bool> {
    let sql = "UPDATE tb_webhook_endpoint SET state = ?, reason = ?, updated_at = ?
         WHERE id = ? AND state = ?";
    let row = values![SWITCHED_OFF, shortened(reason), now_ms, id, ENABLED];
    Ok(tx.execute(sql, row).await? == 1)
}

/// Activities that are open, and of which nobody was told.
async fn opened(session: &mut dyn Session, now_ms: Millis) -> Outcome<Vec<i64>> {
    if !wanted(session).await?.has(WebhookKind::ActivityOpened) {
        return Ok(Vec::new());
    }
    let sql = "SELECT id FROM tb_seckill_activity AS a
         WHERE state = ? AND opens_at <= ? AND closes_at > ? AND NOT EXISTS
             (SELECT 1 FROM tb_webhook_opened AS told WHERE told.activity_id = a.id)
         ORDER BY opens_at, id LIMIT ?";
    let asked = values![ActivityState::Published.code(), now_ms, now_ms, OPENED_MAX];
    session.rows(sql, asked, |row| get(row, 0)).await
}

/// Whoever comes first tells.
async fn tell_opened(tx: &mut dyn Session, opened: &[i64], now_ms: Millis) -> Outcome<usize> {
    let sql = format!(
        "INSERT INTO tb_webhook_opened (activity_id, told_at) VALUES (?, ?) {}",
        tx.dialect().keep("told_at")
    );
    let mut events = Vec::new();
    for id in opened {
        if tx.execute(&sql, values![*id, now_ms]).await? == 1 {
            let kind = WebhookKind::ActivityOpened;
            events.push(WebhookEvent::Activity { kind, activity: ActivityId(*id) });
        }
    }
    let told = events.len();
    tell(tx, events, now_ms).await?;
    Ok(told)
}

async fn ages(session: &mut dyn Session) -> Outcome<Vec<WebhookAge>> {
    let mut ages = Vec::new();
    for WebhookEndpoint { id, enabled, .. } in all(session).await? {
        let oldest_ms = deliveries::oldest(session, id).await?;
        ages.push(WebhookAge { endpoint: id, enabled, oldest_ms });
    }
    Ok(ages)
}

/// Endpoints that were removed and of which nothing is left.
pub(super) async fn forget_removed(
    tx: &mut dyn Session,
    removed: &[i64],
    before_ms: Millis,
) -> Outcome<()> {
    let sql = "DELETE FROM tb_webhook_endpoint WHERE id IN ? AND state = ? AND updated_at < ?";
    let removed = Value::list(removed.iter().copied());
    tx.execute(sql, values![removed, REMOVED, before_ms]).await?;
    Ok(())
}

#[async_trait]
impl Webhooks for SqlLedger {
    async fn webhook_endpoints(&self) -> Result<Vec<WebhookEndpoint>> {
        self.run(Access::Statement, (), |session, ()| Box::pin(all(session))).await
    }

    async fn webhook_endpoint(&self, id: i64) -> Result<Option<WebhookEndpoint>> {
        self.run(Access::Statement, (), move |session, ()| Box::pin(one(session, id))).await
    }

    async fn add_webhook(
        &self,
        new: &NewWebhook,
        endpoints_max: usize,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Option<WebhookEndpoint>> {
        self.run(Access::Write, (new.clone(), audit.clone()), move |tx, (new, audit)| {
            Box::pin(add(tx, new, endpoints_max, audit, now_ms))
        })
        .await
    }

    async fn change_webhook(
        &self,
        id: i64,
        wanted: &WebhookChange,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<WebhookEndpoint> {
        self.run(Access::Write, (wanted.clone(), audit.clone()), move |tx, (wanted, audit)| {
            Box::pin(change(tx, id, wanted, audit, now_ms))
        })
        .await
    }

    async fn remove_webhook(&self, id: i64, audit: &AuditEntry, now_ms: Millis) -> Result<bool> {
        self.run(Access::Write, audit.clone(), move |tx, audit| {
            Box::pin(remove(tx, id, Some(audit), now_ms))
        })
        .await
    }

    async fn rotate_webhook(
        &self,
        id: i64,
        secret: &Secret,
        previous_until_ms: Millis,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<WebhookEndpoint> {
        self.run(Access::Write, (secret.clone(), audit.clone()), move |tx, (secret, audit)| {
            Box::pin(rotate(tx, id, (secret, previous_until_ms), audit, now_ms))
        })
        .await
    }

    async fn put_settings_webhooks(
        &self,
        wanted: &[NewWebhook],
        previous_until_ms: Millis,
        now_ms: Millis,
    ) -> Result<()> {
        self.run(Access::Write, wanted.to_vec(), move |tx, wanted| {
            Box::pin(put_settings(tx, wanted, previous_until_ms, now_ms))
        })
        .await
    }

    async fn webhook_failing(&self, id: i64, since_ms: Option<Millis>) -> Result<()> {
        self.run(Access::Write, (), move |tx, ()| Box::pin(failing(tx, id, since_ms))).await
    }

    async fn switch_webhook_off(&self, id: i64, reason: &str, now_ms: Millis) -> Result<bool> {
        self.run(Access::Write, reason.to_owned(), move |tx, reason| {
            Box::pin(switch_off(tx, id, reason, now_ms))
        })
        .await
    }

    async fn tell_opened(&self, now_ms: Millis) -> Result<usize> {
        let found: Result<Vec<i64>> = self
            .run(Access::Snapshot, (), move |session, ()| Box::pin(opened(session, now_ms)))
            .await;
        let found = found?;
        if found.is_empty() {
            return Ok(0);
        }
        self.run(Access::Write, found, move |tx, found| Box::pin(tell_opened(tx, found, now_ms)))
            .await
    }

    async fn tell_webhooks(&self, event: &WebhookEvent, at_ms: Millis) -> Result<()> {
        // Most shops want none of it, and nobody waits for a writer for their sake.
        let wanted: Result<WebhookKinds> =
            self.run(Access::Statement, (), |session, ()| Box::pin(wanted(session))).await;
        if !wanted?.has(event.kind()) {
            return Ok(());
        }
        self.run(Access::Write, event.clone(), move |tx, event| {
            Box::pin(tell(tx, [event.clone()], at_ms))
        })
        .await
    }

    async fn spread_webhooks(&self, outbox: &[i64], new: &[NewDelivery]) -> Result<()> {
        self.run(Access::Write, (outbox.to_vec(), new.to_vec()), |tx, (outbox, new)| {
            Box::pin(deliveries::spread(tx, outbox, new))
        })
        .await
    }

    async fn webhooks_due(
        &self,
        endpoint: i64,
        now_ms: Millis,
        pause_ms_max: Millis,
        limit: usize,
    ) -> Result<Vec<WebhookDelivery>> {
        self.run(Access::Statement, (), move |session, ()| {
            Box::pin(deliveries::due(session, endpoint, (now_ms, pause_ms_max), limit))
        })
        .await
    }

    async fn webhooks_tried(&self, endpoint: i64, tried: &[Tried], now_ms: Millis) -> Result<()> {
        self.run(Access::Write, tried.to_vec(), move |tx, tried| {
            Box::pin(deliveries::tried(tx, endpoint, tried, now_ms))
        })
        .await
    }

    async fn webhook_deliveries(&self, filter: &DeliveryFilter) -> Result<Vec<WebhookDelivery>> {
        self.run(Access::Snapshot, filter.clone(), |session, filter| {
            Box::pin(deliveries::list(session, filter))
        })
        .await
    }

    async fn replay_webhook(
        &self,
        endpoint: i64,
        delivery: i64,
        audit: &AuditEntry,
        now_ms: Millis,
    ) -> Result<Replayed> {
        self.run(Access::Write, audit.clone(), move |tx, audit| {
            Box::pin(async move {
                let replayed = deliveries::replay(tx, endpoint, delivery).await?;
                if matches!(replayed, Replayed::Again(_)) {
                    operators::audit(tx, audit, now_ms).await?;
                }
                Ok(replayed)
            })
        })
        .await
    }

    async fn replay_failed_webhooks(
        &self,
        endpoint: i64,
        since_ms: Millis,
        limit: usize,
    ) -> Result<usize> {
        self.run(Access::Write, (), move |tx, ()| {
            Box::pin(deliveries::replay_failed(tx, endpoint, since_ms, limit))
        })
        .await
    }

    async fn webhook_lag(&self, endpoint: i64) -> Result<WebhookLag> {
        self.run(Access::Snapshot, (), move |session, ()| {
            Box::pin(deliveries::lag(session, endpoint))
        })
        .await
    }

    async fn webhook_ages(&self) -> Result<Vec<WebhookAge>> {
        self.run(Access::Snapshot, (), |session, ()| Box::pin(ages(session))).await
    }

    async fn forget_webhooks(&self, before: &ForgetBefore, limit: usize) -> Result<bool> {
        self.run(Access::Write, *before, move |tx, before| {
            Box::pin(deliveries::forget(tx, before, limit))
        })
        .await
    }
}

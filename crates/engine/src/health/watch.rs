//! The watcher: asks gate and ledger, looks at log, disk and clocks, and tells a person.
//!
//! Gate and ledger have a loop each, so that one that hangs does not hide the other; a third loop
//! looks at the rest and tells. Every question has a time limit, and one that is not answered stays
//! the only one: a part that hangs for two minutes costs one task, not a hundred and twenty.
//!
//! **Who tells, in a cluster?** All instances see the same outage, and one call is enough. So whoever
//! wants to tell of something that others see, too, takes a lease on telling it first, and keeps it
//! until it is over; the others keep quiet, and take over if the holder dies. What happens while the
//! ledger is down is leased in Redis and all else in the ledger, for what is down cannot give leases;
//! without an answer the other one is asked. If neither answers, everybody tells, with their name: too
//! many calls are better than none. What concerns one host or process only (its disk, its lanes, its
//! jobs) that one tells.

use std::{
    future::Future,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use orders::{Alert, AlertKind};
use sale::Millis;
use tokio::task::JoinHandle;

use super::{Health, LogSeen, RememberedAlerts, Status, conditions::Due};
use crate::shared::AnyError;

/// How often each part is asked.
const EVERY: Duration = Duration::from_secs(1);
/// A part that takes longer to answer is down.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Clocks that differ by more wake somebody.
const CLOCKS_APART_MS_MAX: Millis = 10_000;
/// How long the others keep quiet after the last status of the one who tells.
const TELLING_LEASE_MS: Millis = 30_000;

/// Asks the same question again and again, one at a time.
struct Asker<T>(Option<JoinHandle<T>>);

impl<T: Send + 'static> Asker<T> {
    /// `None` if there is no answer within the time limit. Then the next call waits for the same answer.
    async fn ask(&mut self, question: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let asked = self.0.get_or_insert_with(|| tokio::spawn(question));
        let answer = tokio::time::timeout(ANSWER_MAX, asked).await.ok()?;
        self.0 = None;
        // A question that panics has no answer either.
        answer.ok()
    }
}

pub(crate) async fn watch_gate(health: Arc<Health>) {
    let mut asker = Asker(None);
    loop {
        let gate = health.shared.gate.clone();
        let answer = asker.ask(async move { gate.check().await }).await;
        if let Some(seen) = &answer {
            metrics::gauge!("seckill_gate_partitions_silent").set(seen.silent as f64);
        }
        health.note_gate(answer, health.shared.now_ms());
        let up = health.gate.lock().status != Status::Down;
        metrics::gauge!("seckill_gate_up").set(f64::from(u8::from(up)));
        tokio::time::sleep(EVERY).await;
    }
}

pub(crate) async fn watch_ledger(health: Arc<Health>) {
    let mut asker = Asker(None);
    loop {
        let (ledger, clock) = (health.shared.ledger.clone(), health.shared.clock.clone());
        let answer = asker.ask(async move {
            ledger.ping().await?;
            Ok(ledger.now_ms().await? - clock.now_ms())
        });
        let answer: Option<ledger::Result<Millis>> = answer.await;
        let trouble = match &answer {
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(error.to_string()),
            None => Some("no answer in time".into()),
        };
        metrics::gauge!("seckill_ledger_up").set(f64::from(u8::from(trouble.is_none())));
        health.note_ledger(trouble, health.shared.now_ms());
        if let Some(Ok(offset_ms)) = answer {
            health.check_clocks(offset_ms);
        }
        tokio::time::sleep(EVERY).await;
    }
}

pub(crate) async fn watch_the_rest(health: Arc<Health>) {
    let (mut log, mut disk) = (Asker(None), Asker(None));
    loop {
        let (gate, data) = (health.shared.gate.clone(), health.data.clone());
        let oldest = log.ask(async move { gate.oldest_waits_ms().await });
        let room = disk.ask(async move {
            tokio::task::spawn_blocking(move || room(&data)).await.ok().flatten()
        });
        let (oldest, room) = tokio::join!(oldest, room);
        if let Some(Ok(oldest_waits_ms)) = oldest {
            health.note_log(oldest_waits_ms);
        }
        if let Some(Some(room)) = room {
            health.check_disk(room);
        }
        health.check_parts();
        health.tell_what_is_due().await;
        health.show_health();
        tokio::time::sleep(EVERY).await;
    }
}

/// How much of the data directory's disk is free, and how much there is.
#[derive(Clone, Copy, Debug)]
struct Room {
    free_bytes: u64,
    size_bytes: u64,
}

fn room(data: &Path) -> Option<Room> {
    let disk = rustix::fs::statvfs(data).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Some(Room { free_bytes: bytes(disk.f_bavail), size_bytes: bytes(disk.f_blocks) })
}

impl Health {
    /// It is so now; what comes of it is told by the watcher.
    pub(crate) fn observe(&self, kind: AlertKind, about: &str, trouble: Option<String>) {
        let now_ms = self.shared.now_ms();
        self.conditions.observe(kind, about, trouble, Instant::now(), now_ms);
    }

    fn note_log(&self, oldest_waits_ms: Option<u64>) {
        let backlog = self.shared.gate.backlog();
        *self.log.lock() = LogSeen { backlog, oldest_waits_ms };
        let oldest_s = oldest_waits_ms.unwrap_or(0) as f64 / 1_000.0;
        metrics::gauge!("seckill_log_backlog_claims").set(backlog as f64);
        metrics::gauge!("seckill_log_oldest_age_seconds").set(oldest_s);
    }

    /// Orders wait for the slower clock. If it is slow by much, somebody should know.
    fn check_clocks(&self, offset_ms: Millis) {
        metrics::gauge!("seckill_clock_offset_seconds").set(offset_ms as f64 / 1_000.0);
        let apart = offset_ms.abs() > CLOCKS_APART_MS_MAX;
        let trouble = apart.then(|| format!("the ledger's is {offset_ms} ms ahead of this host's"));
        self.observe(AlertKind::Clock, "", trouble);
    }

    fn check_disk(&self, Room { free_bytes, size_bytes }: Room) {
        metrics::gauge!("seckill_disk_free_bytes").set(free_bytes as f64);
        metrics::gauge!("seckill_disk_size_bytes").set(size_bytes as f64);
        let alerts = &self.shared.settings.alerts;
        let below = |bytes: u64| {
            let (free, data) = (free_bytes >> 20, self.data.display());
            (free_bytes < bytes).then(|| format!("{free} MiB are free at {data}"))
        };
        self.observe(AlertKind::DiskLow, "", below(alerts.disk_low_bytes));
        self.observe(AlertKind::DiskFull, "", below(alerts.disk_full_bytes));
    }

    fn check_parts(&self) {
        // While everything is being stopped, what stops is no reason to wake anybody.
        if !self.watched.load(Ordering::Relaxed) {
            return;
        }
        let gate = self.of(&self.gate);
        self.observe(AlertKind::GateDown, "", gate.cause.filter(|_| gate.status != Status::Ok));
        let ledger = self.of(&self.ledger);
        // One that can be read and not written is down for those who write.
        let unwritable = || self.shared.workers.as_ref()?.ledger_trouble();
        self.observe(AlertKind::LedgerDown, "", ledger.cause.or_else(unwritable));
        self.observe(AlertKind::Backlog, "", self.log_trouble());
        let broker = self.shared.relay.as_ref().and_then(|relay| relay.trouble());
        self.observe(AlertKind::BrokerDown, "", broker);
        let lanes = (!self.shared.lanes.are_running()).then(|| "a lane has ended".into());
        self.observe(AlertKind::LanesDied, "", lanes);
        self.observe(AlertKind::WebhookFailing, "", self.shared.alerts.handle().webhook().failing);
    }

    /// Tell what has held for long enough.
    pub(crate) async fn tell_what_is_due(&self) {
        let conditions = &self.conditions;
        for open in conditions.open_alerts() {
            // The others go on keeping quiet.
            self.may_tell(open.kind).await;
        }
        for due in conditions.due(Instant::now()) {
            // That it is over is told by whoever told that it began.
            if due.trouble.is_some() && !self.may_tell(due.kind).await {
                continue;
            }
            self.tell(&due);
            conditions.told(&due);
            if due.trouble.is_none() {
                self.give_up_telling(due.kind).await;
            }
        }
        if let Err(error) = self.remember_alerts().await {
            tracing::warn!(%error, "the file of alerts cannot be written: a restart may tell alerts again");
        }
    }

    /// Remember what is open and what waits, if that has changed.
    pub(crate) async fn remember_alerts(&self) -> Result<(), AnyError> {
        let waiting = self.shared.alerts.handle().waiting();
        let now = RememberedAlerts { open: self.open_alerts(), waiting };
        if *self.remembered.lock() == now {
            return Ok(());
        }
        let (data, new) = (self.data.clone(), now.clone());
        let writing = tokio::task::spawn_blocking(move || new.write(&data));
        tokio::time::timeout(ANSWER_MAX, writing).await???;
        *self.remembered.lock() = now;
        Ok(())
    }

    fn tell(&self, due: &Due) {
        let now_ms = self.shared.now_ms();
        let what = what(due.kind, &due.about);
        let alert = match &due.trouble {
            Some(trouble) => Alert::new(due.kind, what, now_ms).because(trouble),
            None => {
                let lasted_s = (now_ms - due.since_ms).max(0) / 1_000;
                let message = format!("over after {lasted_s} s: {what}");
                Alert::new(due.kind, message, now_ms).resolved()
            }
        };
        self.shared.alerts.raise(alert.since(due.since_ms));
    }

    /// May this process be the one to tell?
    async fn may_tell(&self, kind: AlertKind) -> bool {
        let Some(lease) = lease_of(kind).filter(|_| self.shared.is_cluster()) else {
            return true;
        };
        let (in_ledger, in_redis) =
            (self.telling_in_ledger(lease, TELLING_LEASE_MS), self.telling_in_redis(lease));
        let told = if is_leased_in_redis(kind) {
            first_answer(in_redis, in_ledger).await
        } else {
            first_answer(in_ledger, in_redis).await
        };
        told.unwrap_or(true)
    }

    async fn telling_in_ledger(&self, lease: &'static str, for_ms: Millis) -> Option<bool> {
        let (ledger, holder, leases) = (&self.shared.ledger, &self.shared.instance, [lease]);
        let held = ledger.take_leases(&leases, holder, for_ms);
        Some(tokio::time::timeout(ANSWER_MAX, held).await.ok()?.ok()?[0].is_some())
    }

    async fn telling_in_redis(&self, lease: &'static str) -> Option<bool> {
        tokio::time::timeout(ANSWER_MAX, self.shared.coordination.hold(lease)).await.ok()?.ok()
    }

    /// Another that still sees it may tell at once. Leases in Redis end by themselves after seconds.
    async fn give_up_telling(&self, kind: AlertKind) {
        if !is_leased_in_redis(kind)
            && let Some(lease) = lease_of(kind).filter(|_| self.shared.is_cluster())
        {
            // If it cannot be given up, it ends by itself.
            self.telling_in_ledger(lease, 0).await;
        }
    }

    fn show_health(&self) {
        let readiness = self.readiness();
        let able = |status| f64::from(u8::from(status == Status::Ok));
        for (purpose, status) in
            [("sell", readiness.sell), ("settle", readiness.settle), ("show", readiness.show)]
        {
            // Of what this process is not for there is no number, or every worker would look broken.
            if status != Status::NotHere {
                metrics::gauge!("seckill_ready", "for" => purpose).set(able(status));
            }
        }
        let open = self.open_alerts();
        for kind in AlertKind::ALL.iter().filter(|kind| kind.lasts()) {
            let is_open = open.iter().any(|open| open.kind == *kind);
            metrics::gauge!("seckill_alert_open", "kind" => kind.as_str())
                .set(f64::from(u8::from(is_open)));
        }
        metrics::gauge!("seckill_alerts_waiting")
            .set(self.shared.alerts.handle().webhook().waiting as f64);
        metrics::gauge!("seckill_push_streams").set(self.push.streams() as f64);
    }
}

/// What happens while the ledger does not work.
fn is_leased_in_redis(kind: AlertKind) -> bool {
    matches!(kind, AlertKind::LedgerDown | AlertKind::Backlog)
}

/// The answer of the one that is asked first, or, without one, that of the other.
async fn first_answer<T>(
    one: impl Future<Output = Option<T>>,
    other: impl Future<Output = Option<T>>,
) -> Option<T> {
    match one.await {
        None => other.await,
        answer => answer,
    }
}

/// The lease on telling of what other instances see as well.
fn lease_of(kind: AlertKind) -> Option<&'static str> {
    match kind {
        AlertKind::GateDown => Some("alert:gate_down"),
        AlertKind::LedgerDown => Some("alert:ledger_down"),
        AlertKind::Backlog => Some("alert:backlog"),
        AlertKind::BrokerDown => Some("alert:broker_down"),
        AlertKind::Clock => Some("alert:clock"),
        _ => None,
    }
}

/// What is so while the state lasts, for a person.
fn what(kind: AlertKind, about: &str) -> String {
    match kind {
        AlertKind::GateDown => "buyers are not admitted: the gate cannot be written".into(),
        AlertKind::LedgerDown => "claims do not become orders: the ledger does not work".into(),
        AlertKind::Backlog => "the claim log does not drain".into(),
        AlertKind::BrokerDown => {
            "claims do not become orders: the message broker does not work".into()
        }
        AlertKind::DiskLow => "the disk of the data directory fills up".into(),
        AlertKind::DiskFull => "the disk of the data directory is nearly full".into(),
        AlertKind::Clock => "the clocks of this host and of the ledger differ".into(),
        AlertKind::WebhookFailing => "the webhook of alerts does not take them".into(),
        AlertKind::LanesDied => "buyers are told to try again: a lane died of a bug".into(),
        AlertKind::JobPanicked => format!("the job {about} met a bug; it is tried again and again"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_engine::{TestEngine, Webhook};

    #[tokio::test]
    async fn clocks_that_are_apart_wake_somebody_once_and_once_when_they_agree() {
        let webhook = Webhook::open().await;
        let shop = TestEngine::without_a_sale(|settings| {
            settings.alerts.webhook_url = webhook.url();
            (settings.alerts.raise_after_ms, settings.alerts.resolve_after_ms) = (0, 0);
        })
        .await;
        let health = &shop.engine.health;
        for (offset_ms, told) in [(10_000, 0), (-10_001, 1), (-20_000, 1), (3, 2), (0, 2)] {
            health.check_clocks(offset_ms);
            health.tell_what_is_due().await;
            let heard = async {
                while webhook.heard().len() < told {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let heard = tokio::time::timeout(Duration::from_secs(20), heard).await;
            heard.expect("somebody is told");
            assert_eq!(webhook.heard().len(), told, "{offset_ms} ms");
        }
        let told = webhook.heard();
        for (post, part) in told.iter().zip(["-10001 ms", "\"resolved\""]) {
            assert!(post.contains("\"clock\"") && post.contains(part), "{post}");
        }
    }
}

//! The task that posts alerts to the operator's webhook or a robot, one after the other.
//!
//! Who answers with a refusal (a 4xx) is asked a few times and the alert then given up: it would be
//! refused for ever, and others wait behind it. Who does not answer, or says that it is out of order,
//! is asked until the alert is an hour old. Each try ends after `webhook_timeout_ms`.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;
use tracing::{error, info, warn};

use super::{
    Alert, AlertOptions, AlertState, Queue, Queued, Robot, redacted,
    robot::{Message, ROBOT_POSTS_MAX, ROBOT_POSTS_WITHIN, Said},
};
use crate::{
    meters,
    outage::{Backoff, StopSignal},
};

/// A post is abandoned this long after its own time limit: looking up a name may hang before it counts.
const TIMEOUT_SLACK: Duration = Duration::from_secs(1);

/// What is read of an answer.
const ANSWER_BYTES_MAX: u64 = 4_096;

pub(super) struct Poster {
    options: AlertOptions,
    robot: Robot,
    queue: Arc<Queue>,
    /// Those of all who are told.
    queues: Arc<[Arc<Queue>]>,
    agent: ureq::Agent,
    stop: StopSignal,
    /// When it was told lately.
    told: VecDeque<Instant>,
}

/// Why an alert was not taken.
enum Failed {
    /// The webhook answered, and will answer the same again.
    Refused(String),
    Unavailable(String),
}

/// What is posted: the alert, who tells, what to do, and all of it as one line for chat services.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    alert: &'a Alert,
    todo: &'static str,
    instance: &'a str,
    text: String,
}

impl<'a> Body<'a> {
    fn of(alert: &'a Alert, instance: &'a str) -> Body<'a> {
        let todo = if alert.state == AlertState::Resolved { "" } else { alert.kind.todo() };
        let word = if alert.state == AlertState::Resolved { "RESOLVED" } else { "ALERT" };
        let mut text = format!("[{word}] {} at {instance}: {}", alert.kind, alert.message);
        if let Some(cause) = &alert.cause {
            text.push_str(&format!(" ({cause})"));
        }
        if alert.more > 0 {
            text.push_str(&format!(" And {} more like it.", alert.more));
        }
        if !todo.is_empty() {
            text.push_str(&format!(" → {todo}"));
        }
        Body { alert, todo, instance, text }
    }
}

impl Poster {
    pub(super) fn new(
        options: &AlertOptions,
        robot: Robot,
        (queue, queues): (Arc<Queue>, Arc<[Arc<Queue>]>),
        stop: StopSignal,
    ) -> Self {
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_millis(options.webhook_timeout_ms)))
            // A webhook that redirects is set up wrongly; do not carry alerts elsewhere.
            .max_redirects(0)
            .build()
            .new_agent();
        let (options, told) = (options.clone(), VecDeque::new());
        Poster { options, robot, queue, queues, agent, stop, told }
    }

    pub(super) async fn run(mut self) {
        let queue = self.queue.clone();
        loop {
            let came = queue.came.notified();
            while let Some(next) = queue.take() {
                let delivered = self.deliver(&next).await;
                // Cut off by a stop, it still waits: whoever keeps what waits keeps it, too.
                if !delivered && self.stop.is_stopped() {
                    let left = queue.len();
                    if left > 0 {
                        error!(left, "alerts are not delivered: the process stops");
                    }
                    return;
                }
                queue.done();
            }
            if self.stop.is_stopped() {
                return;
            }
            tokio::select! {
                () = self.stop.stopped() => {}
                () = came => {}
            }
        }
    }

    async fn deliver(&mut self, Queued { alert, came }: &Queued) -> bool {
        let kind = alert.kind.as_str();
        let told = Body::of(alert, &self.options.instance);
        let text = told.text.clone();
        let body = match serde_json::to_vec(&told) {
            Ok(body) => body,
            Err(fault) => {
                error!(%fault, kind, "an alert cannot be written as JSON and is dropped");
                return true;
            }
        };
        let options = &self.options;
        let mut backoff = Backoff::new(options.webhook_pause_ms_min, options.webhook_pause_ms_max);
        let give_up = Duration::from_millis(options.webhook_give_up_ms);
        let (mut tries, mut refusals) = (0, 0);
        loop {
            tries += 1;
            self.keep_pace().await;
            let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let message = self.robot.message(&body, &text, now_ms.as_millis());
            let cause = match self.post(message).await {
                Ok(()) => {
                    self.note(None);
                    info!(kind, tries, "alert delivered");
                    return true;
                }
                Err(Failed::Refused(cause)) => {
                    refusals += 1;
                    cause
                }
                Err(Failed::Unavailable(cause)) => cause,
            };
            self.note(Some(&cause));
            let over = refusals >= self.options.webhook_refusals_max || came.elapsed() >= give_up;
            if over || self.stop.is_stopped() {
                meters::alert_failed();
                error!(
                    kind,
                    tries,
                    webhook = ?self.robot,
                    cause,
                    "an alert was not delivered and is given up"
                );
                return false;
            }
            // A stop cuts the wait short and leaves one last try.
            self.stop.sleep(backoff.next()).await;
        }
    }

    /// Said once when it begins to fail and once when it works again.
    fn note(&self, failing: Option<&str>) {
        let has_changed = self.queue.note(failing.map(str::to_owned));
        meters::webhook_up(!self.queues.iter().any(|queue| queue.is_failing()));
        if has_changed {
            let webhook = &self.robot;
            match failing {
                Some(cause) => warn!(
                    ?webhook,
                    cause, "the alerts' webhook fails; its alerts wait and are tried again"
                ),
                None => info!(?webhook, "the alerts' webhook works again"),
            }
        }
    }

    /// A robot that is told too much too fast is silenced: it waits, and what comes meanwhile is folded.
    async fn keep_pace(&mut self) {
        if !self.robot.has_limit() {
            return;
        }
        while self.told.len() >= ROBOT_POSTS_MAX {
            let since = self.told[0].elapsed();
            if since < ROBOT_POSTS_WITHIN && !self.stop.sleep(ROBOT_POSTS_WITHIN - since).await {
                break;
            }
            self.told.pop_front();
        }
        self.told.push_back(Instant::now());
    }

    async fn post(&self, Message { url, body }: Message) -> Result<(), Failed> {
        let (agent, address) = (self.agent.clone(), url.clone());
        let posting = tokio::task::spawn_blocking(move || {
            let post = agent.post(&address).header("content-type", "application/json");
            let mut answer = post.send(&body[..])?;
            answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec()
        });
        let within = Duration::from_millis(self.options.webhook_timeout_ms) + TIMEOUT_SLACK;
        let fault = match tokio::time::timeout(within, posting).await {
            Ok(Ok(Ok(answer))) => {
                return match self.robot.said(&answer) {
                    Said::Taken => Ok(()),
                    Said::Refused(why) => Err(Failed::Refused(why)),
                    Said::Later(why) => Err(Failed::Unavailable(why)),
                };
            }
            // Its status was good, and nobody reads the rest.
            Ok(Ok(Err(ureq::Error::BodyExceedsLimit(_)))) if !self.robot.has_limit() => {
                return Ok(());
            }
            Ok(Ok(Err(fault))) => fault,
            Ok(Err(panic)) => return Err(Failed::Unavailable(panic.to_string())),
            Err(_) => return Err(Failed::Unavailable("no answer in time".into())),
        };
        // Some of these errors quote the address they failed on.
        let cause = fault.to_string().replace(&url, &redacted(&url));
        match fault {
            // Later, too early, too many: ask again. Redirects are refusals as well.
            ureq::Error::StatusCode(408 | 425 | 429) => Err(Failed::Unavailable(cause)),
            ureq::Error::StatusCode(300..=499) => Err(Failed::Refused(cause)),
            _ => Err(Failed::Unavailable(cause)),
        }
    }
}

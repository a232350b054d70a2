//! What all our clients of RocketMQ have in common: threads, addresses, and questions about queues.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rocketmq_client_rust::{
    AclClientRPCHook, ClientConfig, ClientError, ClientRuntime, ClientRuntimeConfig,
    DefaultMQAdminExt, MQAdminReadExt, SessionCredentials,
};
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};

use crate::broker::{BrokerError, QueueState, RocketmqOptions};

/// The client's own threads.
const THREADS: usize = 2;
/// How often the client asks the name servers who is there, and tells the brokers that we are. Its own
/// thirty seconds would be how long claims wait for a broker that has come back. It allows no less.
const ASK_EVERY_MS: u32 = 10_000;
/// Queues whose numbers are remembered.
const NUMBERS_MAX: usize = 65_536;
/// How long a question about queues may take.
pub(super) const ASK_MAX: Duration = Duration::from_secs(3);
/// How long the end of a client may take. What it has not done by then is done by nobody.
pub(super) const END_MAX: Duration = Duration::from_secs(5);
const ADMIN_GROUP: &str = "seckill-asking";

/// Where messages go whose consumer wants them later.
pub(super) fn retry_topic(group: &str) -> String {
    format!("%RETRY%{group}")
}

/// Where they go when they had all their tries.
pub(super) fn dead_letter_topic(group: &str) -> String {
    format!("%DLQ%{group}")
}

pub(super) struct Client {
    pub(super) options: RocketmqOptions,
    pub(super) runtime: Arc<ClientRuntime>,
    owner: Mutex<Option<RuntimeOwner>>,
    /// Its metrics and traces are not ours.
    _telemetry: TelemetryRuntimeGuard,
    /// One question at a time.
    asking: tokio::sync::Mutex<Asking>,
}

#[derive(Default)]
struct Asking {
    /// Made when somebody first asks.
    admin: Option<DefaultMQAdminExt>,
    /// A queue keeps its number while others come and go: whoever waits for it to be read up to a place
    /// must not be answered with another one's.
    numbers: HashMap<(String, i32), u32>,
}

impl Asking {
    fn number(&mut self, queue: (String, i32)) -> u32 {
        if self.numbers.len() >= NUMBERS_MAX && !self.numbers.contains_key(&queue) {
            self.numbers.clear();
        }
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(queue).or_insert(next)
    }
}

impl Client {
    pub(super) fn open(options: &RocketmqOptions) -> Result<Client, String> {
        if options.name_servers.is_empty() {
            return Err("rocketmq.name_servers names none".into());
        }
        let threads = RuntimeConfig::for_parallelism("rocketmq", THREADS);
        let plan = RuntimeOwner::plan(threads).map_err(|error| error.to_string())?;
        let owner = plan.build().map_err(|error| error.to_string())?;
        let telemetry = TelemetryRuntimeGuard::noop();
        let context = owner.root_context().component("seckill");
        let runtime =
            ClientRuntime::try_new(context, ClientRuntimeConfig::default(), telemetry.handle());
        Ok(Client {
            options: options.clone(),
            runtime: runtime.map_err(|error| error.to_string())?,
            owner: Mutex::new(Some(owner)),
            _telemetry: telemetry,
            asking: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set_namesrv_addr(self.options.name_servers.join(";").into());
        config.set_poll_name_server_interval(ASK_EVERY_MS);
        config.set_heartbeat_broker_interval(ASK_EVERY_MS);
        config
    }

    /// Signs what is sent, where the brokers want to know who it is.
    pub(super) fn signature(&self) -> Option<Arc<AclClientRPCHook>> {
        let options = &self.options;
        let is_set = !options.access_key.is_empty();
        is_set.then(|| {
            let (name, secret) = (options.access_key.as_str(), options.secret_key.expose());
            Arc::new(AclClientRPCHook::new(SessionCredentials::with_keys(name, secret)))
        })
    }

    /// How far the queues of the claims are read.
    pub(super) async fn queues(&self) -> Result<Vec<QueueState>, BrokerError> {
        let mut asking = self.asking.lock().await;
        let asked = tokio::time::timeout(ASK_MAX, self.ask_queues(&mut asking)).await;
        match asked {
            Ok(Ok(queues)) => Ok(queues),
            Ok(Err(error)) => Err(BrokerError(error)),
            Err(_) => Err(BrokerError("no answer in time about its queues".into())),
        }
    }

    async fn ask_queues(&self, asking: &mut Asking) -> Result<Vec<QueueState>, String> {
        let admin = self.admin(&mut asking.admin).await.map_err(said)?;
        let (group, topic) = (self.options.group.as_str(), self.options.topic.as_str());
        let route = admin.examine_topic_route_info(topic.into()).await;
        if !matches!(route, Ok(Some(_))) {
            // A topic that nobody has sent to is not there, and holds nothing. Name servers that do not
            // answer say something else.
            return match route {
                Ok(_) => Ok(Vec::new()),
                Err(error) if error.broker_response_code() == Some(TOPIC_NOT_THERE) => {
                    Ok(Vec::new())
                }
                Err(error) => Err(said(error)),
            };
        }
        let limit_ms = u64::try_from(ASK_MAX.as_millis()).unwrap_or(u64::MAX);
        let stats = admin
            .examine_consume_stats(group.into(), Some(topic.into()), None, None, Some(limit_ms))
            .await
            .map_err(said)?;
        let mut queues: Vec<((String, i32), (i64, i64))> = stats
            .get_offset_table()
            .iter()
            .map(|(queue, offsets)| {
                let place = (queue.broker_name().to_string(), queue.queue_id());
                (place, (offsets.get_broker_offset(), offsets.get_consumer_offset()))
            })
            .collect();
        if queues.is_empty() {
            return Err("no worker has joined its group yet".into());
        }
        queues.sort_unstable();
        let states = queues.into_iter().map(|(queue, (end, consumed))| QueueState {
            queue: asking.number(queue),
            end: u64::try_from(end).unwrap_or(0),
            consumed: u64::try_from(consumed).unwrap_or(0),
        });
        Ok(states.collect())
    }

    async fn admin<'a>(
        &self,
        admin: &'a mut Option<DefaultMQAdminExt>,
    ) -> Result<&'a DefaultMQAdminExt, ClientError> {
        if admin.is_none() {
            let runtime = self.runtime.clone();
            let mut new = match self.signature() {
                None => DefaultMQAdminExt::with_admin_ext_group_and_timeout(
                    runtime,
                    ADMIN_GROUP,
                    ASK_MAX,
                ),
                Some(signature) => DefaultMQAdminExt::with_admin_ext_group_rpc_hook_and_timeout(
                    runtime,
                    ADMIN_GROUP,
                    signature,
                    ASK_MAX,
                ),
            };
            *new.client_config_mut() = self.config();
            new.set_namesrv_addr(self.options.name_servers.join(";"));
            MQAdminReadExt::start(&mut new).await?;
            *admin = Some(new);
        }
        Ok(admin.as_ref().expect("made above"))
    }

    pub(super) async fn stop(&self) {
        let ending = async {
            if let Some(mut admin) = self.asking.lock().await.admin.take() {
                MQAdminReadExt::shutdown(&mut admin).await;
            }
            self.runtime.shutdown().await
        };
        if tokio::time::timeout(END_MAX, ending).await.is_err() {
            tracing::warn!("RocketMQ's client does not end in time and is left");
        }
        self.end_threads();
    }

    fn end_threads(&self) {
        let owner = self.owner.lock().take();
        drop(owner.map(RuntimeOwner::shutdown_background));
    }
}

impl Drop for Client {
    /// One that was never stopped: its threads must not be waited for where nobody may wait.
    fn drop(&mut self) {
        self.end_threads();
    }
}

/// RocketMQ's number for it.
pub(super) const TOPIC_NOT_THERE: i32 = 17;
/// And that of a broker that takes no messages.
const TAKES_NOTHING: i32 = 14;

pub(super) fn said(error: ClientError) -> String {
    match error.broker_response_code() {
        Some(TAKES_NOTHING) => format!(
            "{error} (code {TAKES_NOTHING}: the broker takes no messages, as one does whose disk is \
             fuller than 90 %)"
        ),
        Some(code) => format!("{error} (code {code})"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_keeps_its_number_while_others_come_and_go() {
        let mut asking = Asking::default();
        let queue = |broker: &str, id| (broker.to_owned(), id);
        let first: Vec<u32> = (0..3).map(|id| asking.number(queue("b", id))).collect();
        assert_eq!(first, [0, 1, 2]);
        assert_eq!(asking.number(queue("a", 0)), 3, "a broker that sorts before it came");
        assert_eq!(asking.number(queue("b", 1)), 1);
    }
}

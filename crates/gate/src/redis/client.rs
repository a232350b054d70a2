//! The connection to Redis, whether it is one server or a cluster.

use std::{fmt::Display, io::Write, sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use redis::{
    Client, Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, Value,
    aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig},
    cluster::ClusterClient,
    cluster_routing::{Route, SingleNodeRoutingInfo, SlotAddr},
};

use super::{keys, reopening_cluster::ReopeningCluster};

/// How long a new connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How often a cluster's client follows a slot that moved before it gives up.
const REDIRECTS_MAX: u32 = 4;

/// Connections to one server for the scripts, by partition. Redis flushes to disk once for all that
/// it has read from all sockets, and reads 16 KiB from each: batches that arrive over several share
/// the flush.
const CONNECTIONS: usize = 8;

/// Clones share the connections.
#[derive(Clone)]
pub(super) enum RedisClient {
    One(Arc<[ConnectionManager]>),
    Cluster(Arc<ReopeningCluster>),
}

impl RedisClient {
    /// One address, or several of one cluster. `answer_within` bounds every command.
    pub(super) async fn open(urls: &[String], answer_within: Duration) -> RedisResult<RedisClient> {
        RedisClient::open_some(urls, answer_within, CONNECTIONS).await
    }

    /// With a single connection, for commands that block it.
    pub(super) async fn open_alone(
        urls: &[String],
        answer_within: Duration,
    ) -> RedisResult<RedisClient> {
        RedisClient::open_some(urls, answer_within, 1).await
    }

    async fn open_some(
        urls: &[String],
        answer_within: Duration,
        connections: usize,
    ) -> RedisResult<RedisClient> {
        if let [url] = urls {
            let config = ConnectionManagerConfig::new()
                .set_response_timeout(Some(answer_within))
                .set_connection_timeout(Some(CONNECT_WITHIN))
                // Failing fast is our business: the buyer is told "busy" and asks again.
                .set_number_of_retries(1)
                .set_max_delay(Duration::from_millis(200));
            let client = Client::open(url.as_str())?;
            let connection = |_| ConnectionManager::new_with_config(client.clone(), config.clone());
            return Ok(RedisClient::One(
                try_join_all((0..connections).map(connection)).await?.into(),
            ));
        }
        let client = ClusterClient::builder(urls.iter().map(String::as_str))
            .response_timeout(answer_within)
            .connection_timeout(CONNECT_WITHIN)
            .retries(REDIRECTS_MAX)
            .min_retry_wait(10)
            .max_retry_wait(200)
            .build()?;
        Ok(RedisClient::Cluster(Arc::new(ReopeningCluster::open(client).await?)))
    }

    pub(super) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        self.ask_by(0, command).await
    }

    /// A connection that was idle while the server was away learns of it by its first command, which is
    /// therefore sent again. Whatever is asked may be asked twice.
    async fn ask_by<T: FromRedisValue>(&self, connection: usize, command: &Cmd) -> RedisResult<T> {
        match self.ask_once(connection, command).await {
            Err(error) if error.is_connection_dropped() && self.has_several() => {
                self.ask_once(connection, command).await
            }
            done => done,
        }
    }

    async fn ask_once<T: FromRedisValue>(
        &self,
        connection: usize,
        command: &Cmd,
    ) -> RedisResult<T> {
        match self {
            RedisClient::One(connections) => {
                query(&mut connections[connection % connections.len()].clone(), command).await
            }
            RedisClient::Cluster(connection) => connection.query(command).await,
        }
    }

    /// Not a cluster: its scripts may see all keys.
    pub(super) fn is_one_server(&self) -> bool {
        !matches!(self, RedisClient::Cluster(_))
    }

    fn has_several(&self) -> bool {
        matches!(self, RedisClient::One(connections) if connections.len() > 1)
    }

    /// How many replicas have all that the node that holds this counter has by now. `WAIT` speaks of
    /// what its own connection wrote, and another one, or another process, may have written what
    /// matters; so something is written right before it that comes after all of that.
    pub(super) async fn wait(&self, counter: &str, replicas: u32, ms_max: u64) -> RedisResult<i64> {
        let mut both = redis::pipe();
        both.cmd("INCRBY").arg(counter).arg(0).cmd("WAIT").arg(replicas).arg(ms_max);
        let answers: Vec<Value> = match self {
            RedisClient::One(connections) => {
                let mut connection =
                    connections[keys::partition_in(counter) % connections.len()].clone();
                both.query_async(&mut connection).await?
            }
            RedisClient::Cluster(connection) => {
                let mut connection = connection.connection();
                let slot: u16 = redis::cmd("CLUSTER")
                    .arg("KEYSLOT")
                    .arg(counter)
                    .query_async(&mut connection)
                    .await?;
                let route = Route::new(slot, SlotAddr::Master);
                let node = SingleNodeRoutingInfo::SpecificNode(route);
                connection.route_pipeline(both, 0, 2, node).await?
            }
        };
        Ok(redis::from_redis_value(answers.into_iter().next_back().unwrap_or(Value::Nil))?)
    }

    /// Run a script by its hash; a server that does not know it yet gets the text.
    pub(super) async fn run<T: FromRedisValue>(&self, call: &Call<'_>) -> RedisResult<T> {
        let connection = call.keys.first().map_or(0, |key| keys::partition_in(key));
        match self.ask_by(connection, &call.command("EVALSHA", call.script.sha())).await {
            Err(error) if is_no_script(&error) => {
                self.ask_by(connection, &call.command("EVAL", call.script.text)).await
            }
            done => done,
        }
    }
}

fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

async fn query<T: FromRedisValue>(
    connection: &mut (impl ConnectionLike + Send),
    command: &Cmd,
) -> RedisResult<T> {
    command.query_async(connection).await
}

/// A script and its hash.
pub(super) struct Script {
    text: &'static str,
    sha: std::sync::OnceLock<String>,
}

impl Script {
    pub(super) const fn new(text: &'static str) -> Script {
        Script { text, sha: std::sync::OnceLock::new() }
    }

    fn sha(&self) -> &str {
        self.sha.get_or_init(|| sha1_smol::Sha1::from(self.text).digest().to_string())
    }
}

/// One call of a script: all keys are of one slot.
pub(super) struct Call<'s> {
    script: &'s Script,
    keys: Vec<String>,
    /// The arguments one behind the other, and where each ends: a batch has hundreds.
    args: Vec<u8>,
    ends: Vec<usize>,
}

impl<'s> Call<'s> {
    pub(super) fn new(script: &'s Script, keys: impl IntoIterator<Item = String>) -> Call<'s> {
        let keys = keys.into_iter().collect();
        Call { script, keys, args: Vec::new(), ends: Vec::new() }
    }

    pub(super) fn arg(mut self, arg: impl AsRef<[u8]>) -> Call<'s> {
        self.push(arg);
        self
    }

    /// A number, in decimal digits.
    pub(super) fn number(mut self, number: impl Display) -> Call<'s> {
        self.push_number(number);
        self
    }

    pub(super) fn push(&mut self, arg: impl AsRef<[u8]>) {
        self.args.extend_from_slice(arg.as_ref());
        self.ends.push(self.args.len());
    }

    pub(super) fn push_number(&mut self, number: impl Display) {
        write!(self.args, "{number}").expect("a vector takes everything");
        self.ends.push(self.args.len());
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let words = 3 + self.keys.len() + self.ends.len();
        let keys_bytes: usize = self.keys.iter().map(String::len).sum();
        let bytes = name.len() + script.len() + 8 + keys_bytes + self.args.len();
        let mut command = Cmd::with_capacity(words, bytes);
        command.arg(name).arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(key);
        }
        let mut from = 0;
        for end in &self.ends {
            command.arg(&self.args[from..*end]);
            from = *end;
        }
        command
    }
}

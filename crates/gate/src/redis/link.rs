//! The connection to Redis, whether it is one server or a cluster.

use std::time::Duration;

use redis::{
    Client, Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind,
    aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};

/// How long a new connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How often a cluster's client follows a slot that moved before it gives up.
const REDIRECTS_MAX: u32 = 4;

/// Clones share the connection.
#[derive(Clone)]
pub(super) enum Link {
    One(ConnectionManager),
    Cluster(ClusterConnection),
}

impl Link {
    /// One address, or several of one cluster. `answer_within` bounds every command.
    pub(super) async fn open(urls: &[String], answer_within: Duration) -> RedisResult<Link> {
        if let [url] = urls {
            let config = ConnectionManagerConfig::new()
                .set_response_timeout(Some(answer_within))
                .set_connection_timeout(Some(CONNECT_WITHIN))
                // Failing fast is our business: the buyer is told "busy" and asks again.
                .set_number_of_retries(1)
                .set_max_delay(Duration::from_millis(200));
            let manager = ConnectionManager::new_with_config(Client::open(url.as_str())?, config);
            return Ok(Link::One(manager.await?));
        }
        let client = ClusterClient::builder(urls.iter().map(String::as_str))
            .response_timeout(answer_within)
            .connection_timeout(CONNECT_WITHIN)
            .retries(REDIRECTS_MAX)
            .min_retry_wait(10)
            .max_retry_wait(200)
            .build()?;
        Ok(Link::Cluster(client.get_async_connection().await?))
    }

    pub(super) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        match self.clone() {
            Link::One(mut connection) => query(&mut connection, command).await,
            Link::Cluster(mut connection) => query(&mut connection, command).await,
        }
    }

    /// How many replicas have what this connection wrote to the node that holds `key`.
    pub(super) async fn wait(&self, key: &str, replicas: u32, ms_max: u64) -> RedisResult<i64> {
        let command = redis::cmd("WAIT").arg(replicas).arg(ms_max).to_owned();
        match self.clone() {
            Link::One(mut connection) => query(&mut connection, &command).await,
            Link::Cluster(mut connection) => {
                let slot: u16 = redis::cmd("CLUSTER")
                    .arg("KEYSLOT")
                    .arg(key)
                    .query_async(&mut connection)
                    .await?;
                let route = Route::new(slot, SlotAddr::Master);
                let node = SingleNodeRoutingInfo::SpecificNode(route);
                let routing = RoutingInfo::SingleNode(node);
                Ok(redis::from_redis_value(connection.route_command(command, routing).await?)?)
            }
        }
    }

    /// Run a script by its hash; a server that does not know it yet gets the text.
    pub(super) async fn run<T: FromRedisValue>(&self, call: &Call<'_>) -> RedisResult<T> {
        match self.ask(&call.command("EVALSHA", call.script.sha())).await {
            Err(error) if is_no_script(&error) => {
                self.ask(&call.command("EVAL", call.script.text)).await
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
    args: Vec<Vec<u8>>,
}

impl<'s> Call<'s> {
    pub(super) fn new(script: &'s Script, keys: impl IntoIterator<Item = String>) -> Call<'s> {
        Call { script, keys: keys.into_iter().collect(), args: Vec::new() }
    }

    pub(super) fn arg(mut self, arg: impl ToArg) -> Call<'s> {
        self.push(arg);
        self
    }

    pub(super) fn push(&mut self, arg: impl ToArg) {
        self.args.push(arg.to_arg());
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(key);
        }
        for arg in &self.args {
            command.arg(arg.as_slice());
        }
        command
    }
}

/// What may be passed to a script.
pub(super) trait ToArg {
    fn to_arg(self) -> Vec<u8>;
}

impl ToArg for &str {
    fn to_arg(self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

impl ToArg for String {
    fn to_arg(self) -> Vec<u8> {
        self.into_bytes()
    }
}

impl ToArg for Vec<u8> {
    fn to_arg(self) -> Vec<u8> {
        self
    }
}

impl ToArg for i64 {
    fn to_arg(self) -> Vec<u8> {
        self.to_string().into_bytes()
    }
}

impl ToArg for u64 {
    fn to_arg(self) -> Vec<u8> {
        self.to_string().into_bytes()
    }
}

impl ToArg for [u8; 8] {
    fn to_arg(self) -> Vec<u8> {
        self.to_vec()
    }
}

//! One connection to one server, opened when it is needed and replaced when it is no good any more.

use std::{
    error::Error,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
    aio::MultiplexedConnection,
};

use crate::servers::{Node, RedisServers};

/// After a failed try to connect the next one waits so long, then twice as long…
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// …up to this.
const PAUSE_MAX: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct Line {
    held: Mutex<Option<Held>>,
    opening: tokio::sync::Mutex<Failures>,
}

/// A connection, and what is known of it.
#[derive(Clone)]
pub(crate) struct Held {
    connection: MultiplexedConnection,
    /// Which primary it leads to, see [`RedisServers::version`].
    pub(crate) version: u64,
    pulse: Arc<Pulse>,
}

/// When something came back over a connection for the last time.
struct Pulse {
    opened: Instant,
    answered_ms: AtomicU64,
}

#[derive(Default)]
struct Failures {
    count: u32,
    last: Option<(Instant, RedisError)>,
}

/// What is sent in one piece.
#[derive(Clone, Copy)]
pub(crate) enum Request<'r> {
    Command(&'r Cmd),
    /// Redirected by a server that is just giving the slot away.
    Asking(&'r Cmd),
    /// Several commands of one slot, and all their answers.
    Answers(&'r Pipeline),
}

impl Line {
    /// The version is told even if it fails: which primary it was that failed.
    pub(crate) async fn send(
        &self,
        servers: &RedisServers,
        node: &Node,
        answer_within: Duration,
        request: Request<'_>,
    ) -> Result<(Value, Held), (RedisError, u64)> {
        let version = servers.version(node);
        let held = match self.connection(servers, node, answer_within).await {
            Ok(held) => held,
            Err(error) => return Err((error, version)),
        };
        let sent_ms = held.pulse.now_ms();
        let done = request.send(&mut held.connection.clone()).await;
        match &done {
            Err(error) if is_silence(error) => {
                if held.pulse.answered_ms.load(Ordering::Relaxed) <= sent_ms {
                    self.give_up(&held);
                }
            }
            Err(error) if is_broken(error) => self.give_up(&held),
            _ => held.pulse.answered_ms.store(held.pulse.now_ms(), Ordering::Relaxed),
        }
        match done {
            Ok(answer) => Ok((answer, held)),
            Err(error) => Err((error, held.version)),
        }
    }

    /// The connection that there is, or a new one.
    async fn connection(
        &self,
        servers: &RedisServers,
        node: &Node,
        answer_within: Duration,
    ) -> RedisResult<Held> {
        if let Some(held) = self.current(servers, node) {
            return Ok(held);
        }
        let mut failures = self.opening.lock().await;
        if let Some(held) = self.current(servers, node) {
            return Ok(held);
        }
        failures.pause_is_over()?;
        let version = servers.version(node);
        match Box::pin(servers.connect(node, answer_within)).await {
            Ok(connection) => {
                let pulse = Pulse { opened: Instant::now(), answered_ms: AtomicU64::new(0) };
                let held = Held { connection, version, pulse: Arc::new(pulse) };
                *self.held.lock() = Some(held.clone());
                *failures = Failures::default();
                Ok(held)
            }
            Err(error) => {
                failures.count += 1;
                failures.last = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    fn current(&self, servers: &RedisServers, node: &Node) -> Option<Held> {
        let held = self.held.lock().clone();
        held.filter(|held| held.version == servers.version(node))
    }

    /// Those who wait for answers over it go on waiting; the next to ask gets a new one.
    fn give_up(&self, given_up: &Held) {
        let mut held = self.held.lock();
        if held.as_ref().is_some_and(|held| Arc::ptr_eq(&held.pulse, &given_up.pulse)) {
            *held = None;
        }
    }
}

impl Held {
    /// All answers to several commands, over this connection and no other.
    pub(crate) async fn ask(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        commands.query_async(&mut self.connection.clone()).await
    }
}

impl Pulse {
    /// From one on, so that nothing was answered at zero.
    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64 + 1
    }
}

impl Failures {
    fn pause_is_over(&self) -> RedisResult<()> {
        let Some((at, error)) = &self.last else { return Ok(()) };
        let pause = PAUSE_MIN.saturating_mul(1 << self.count.saturating_sub(1).min(16));
        if at.elapsed() < pause.min(PAUSE_MAX) { Err(error.clone()) } else { Ok(()) }
    }
}

impl<'r> Request<'r> {
    /// The same, where a slot is just moving to.
    pub(crate) fn asking(self) -> Request<'r> {
        match self {
            Request::Command(command) => Request::Asking(command),
            several => several,
        }
    }

    async fn send(self, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        match self {
            Request::Command(command) => command.query_async(connection).await,
            Request::Asking(command) => {
                let mut both = redis::pipe();
                both.cmd("ASKING").add_command(command.clone());
                let answers: Vec<Value> = both.query_async(connection).await?;
                Ok(answers.into_iter().next_back().unwrap_or(Value::Nil))
            }
            Request::Answers(pipeline) => Ok(Value::Array(pipeline.query_async(connection).await?)),
        }
    }
}

/// Nothing came in time; the outcome is unknown, and the server or the way to it may be gone.
pub(crate) fn is_silence(error: &RedisError) -> bool {
    error.is_timeout()
}

/// The connection will not carry anything any more.
pub(crate) fn is_broken(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse | ErrorKind::AuthenticationFailed)
}

/// The server is not the one to write to (any more). It has done nothing of what was asked.
pub(crate) fn is_no_primary(error: &RedisError) -> bool {
    let refused = [ServerErrorKind::ReadOnly, ServerErrorKind::MasterDown];
    refused.iter().any(|kind| error.kind() == ErrorKind::Server(*kind))
        // A blocking read at a server that became a replica meanwhile.
        || error.code() == Some("UNBLOCKED")
}

/// Nobody answers, or somebody who is not ready yet: worth waiting for. All else (a password, a
/// certificate, an address that cannot be meant) will be the same in an hour.
pub fn is_away(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly, TryAgain};
    type Cause = Arc<dyn Error + Send + Sync>;
    match error.kind() {
        ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly | TryAgain)
        | ErrorKind::ClusterConnectionNotFound => true,
        ErrorKind::Io => {
            let cause = error.source().and_then(|cause| cause.downcast_ref::<Cause>());
            let cause = cause.and_then(|cause| cause.downcast_ref::<io::Error>());
            // So rustls says that it does not like the other side, or is not liked there.
            cause.is_none_or(|cause| cause.kind() != io::ErrorKind::InvalidData)
        }
        _ => false,
    }
}

/// What an answer means to the one who asked for it.
pub(crate) fn read<T: FromRedisValue>(value: Value) -> RedisResult<T> {
    Ok(redis::from_redis_value(value)?)
}

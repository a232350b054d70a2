//! Accepts connections and speaks HTTP/1.1 on them. It knows nothing of what is asked and answered.
//!
//! It is our own loop rather than `axum::serve`, which has neither a cap on connections nor a limit
//! on how long a client may take. The parts:
//!
//! - [`serve`] accepts, and hands each socket to a task of its own;
//! - the task lets the [`FastPath`] answer what is meant for it, refuses what has no sensible `head`,
//!   and lets hyper and the `router` answer the rest;
//! - every socket has a `Connection` that notes what it is doing; one watchman task cuts
//!   those that dawdle: over the head of a request, between requests, or at taking our answer
//!   (slow bodies are ended by a timer of their own, because their handler must be told);
//! - on shutdown nothing more is accepted, idle connections close at once, those with a request
//!   finish it, and what is not done after `drain_ms_max` is cut.
//!
//! A client that closes its half after its request gets its answer; whether one has left altogether
//! shows only when it is written to. The handler's future is dropped when its client is cut or breaks
//! the connection. What must not be given up half way therefore runs in tasks of its own.

mod body;
mod connection;
mod connections;
mod fast_path;
mod head;
pub mod metrics;
mod peer;
mod refusal;
mod request_id;
mod router;
mod settings;
mod stream;

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    time::Duration,
};

use axum::{extract::Request, response::Response};
use bytes::BytesMut;
use tokio::{
    io::AsyncWrite,
    net::{TcpListener, TcpStream},
};
use tower::Service;

pub use body::BodyTooSlow;
pub use fast_path::{FastPath, FastRequest, NoReply, Pending};
pub use head::Fields;
pub use peer::Peer;
pub use refusal::Refusal;
pub use request_id::{REQUEST_ID, RequestId};
pub use settings::HttpSettings;

use connection::{ConnectionGuard, Stage};
use connections::{Connections, ROUND};
use fast_path::Handover;
use refusal::{RefusedSockets, part};
use stream::Stream;

/// During a drain, a request whose first bytes are here may still complete its head this long.
const HEAD_GRACE: Duration = Duration::from_millis(250);
/// How long the tasks of connections that were cut may take to notice it.
const CUT_GRACE: Duration = Duration::from_millis(250);
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(5);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How a shutdown went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were open when it began and closed by themselves.
    pub finished: usize,
    /// Those that were still busy at the end and were cut.
    pub cut: usize,
}

/// Serve until `shutdown` resolves, then drain. The service must always be ready, as axum's are:
/// what is full says so in its answer.
///
/// WebSockets and endless answers (SSE) are busy for as long as they live: whoever made them should
/// end them on shutdown, or the drain waits for them until `drain_ms_max` and cuts them.
pub async fn serve<F, S>(
    listener: TcpListener,
    fast_path: F,
    service: S,
    settings: HttpSettings,
    shutdown: impl Future<Output = ()>,
) -> Drained
where
    F: FastPath,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let connections = Connections::new(settings);
    let watchman = tokio::spawn(watch(Arc::downgrade(&connections)));
    let mut shutdown = pin!(shutdown);
    let mut pause = Duration::ZERO;
    let refused = RefusedSockets::new(&fast_path);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&listener, pause) => accepted,
        };
        match accepted {
            Ok((socket, address)) => {
                pause = Duration::ZERO;
                match connections.open() {
                    Some(guard) => {
                        let (fast_path, service) = (fast_path.clone(), service.clone());
                        tokio::spawn(run(socket, address, fast_path, service, guard));
                    }
                    None => refused.refuse(socket),
                }
            }
            Err(error) => pause = after_accept_error(&error, pause),
        }
    }
    drop(listener);
    let drained = drain(&connections).await;
    watchman.abort();
    drained
}

async fn accept(listener: &TcpListener, pause: Duration) -> io::Result<(TcpStream, SocketAddr)> {
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    listener.accept().await
}

/// A client that left before it was accepted is nothing. Everything else (most likely: no file
/// descriptors left) does not go away by asking again at once.
fn after_accept_error(error: &io::Error, pause: Duration) -> Duration {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        return Duration::ZERO;
    }
    tracing::error!(
        %error,
        "connections cannot be accepted; is http.connections_max above the limit on open files?"
    );
    (pause * 2).clamp(ACCEPT_PAUSE_MIN, ACCEPT_PAUSE_MAX)
}

/// Ends with the last connection, even if `serve` itself was dropped.
async fn watch(connections: Weak<Connections>) {
    while let Some(connections) = connections.upgrade() {
        connections.cut_late();
        drop(connections);
        tokio::time::sleep(ROUND).await;
    }
}

/// One connection, from its first byte to its last, or until an upgrade takes the socket away.
async fn run<F, S>(
    socket: TcpStream,
    address: SocketAddr,
    fast_path: F,
    service: S,
    guard: ConnectionGuard,
) where
    F: FastPath,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    // Answers are small and written whole; waiting to fill a packet would only delay them. A socket
    // that cannot be set is one whose client has left.
    let _ = socket.set_nodelay(true);
    let connection = guard.0.clone();
    let mut stream = Stream::new(socket, guard);
    let mut buffer = BytesMut::new();
    loop {
        let handover = fast_path::serve(&mut stream, &mut buffer, &fast_path, &connection).await;
        let extent = match handover {
            Handover::Router(extent) => extent,
            Handover::Refused => return part(&mut stream).await,
            Handover::Closed => {
                let _ = poll_fn(|cx| Pin::new(&mut stream).poll_shutdown(cx)).await;
                return;
            }
        };
        stream.put_back(buffer.split().freeze());
        stream.show(extent);
        match router::serve(stream, address, &service, &connection).await {
            Some(back) => stream = back,
            None => return,
        }
        buffer.extend_from_slice(&stream.take_unused());
        if !buffer.is_empty() {
            connection.enter(Stage::Head);
        }
    }
}

async fn drain(connections: &Connections) -> Drained {
    let open = connections.len();
    connections.drain();
    let limit = Duration::from_millis(connections.settings().drain_ms_max);
    let grace = HEAD_GRACE.min(limit);
    if tokio::time::timeout(grace, connections.emptied()).await.is_err() {
        connections.cut_unneeded();
        let _ = tokio::time::timeout(limit - grace, connections.emptied()).await;
    }
    let cut = connections.cut_all();
    let _ = tokio::time::timeout(CUT_GRACE, connections.emptied()).await;
    Drained { finished: open.saturating_sub(cut), cut }
}

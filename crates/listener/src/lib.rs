//! Accepts connections, with TLS or without, and speaks HTTP on them. It knows nothing of what is asked and
//! answered.
//!
//! It is our own loop rather than `axum::serve`, which has neither a cap on connections nor a limit
//! on how long a client may take. The parts:
//!
//! - [`serve`] accepts, and hands each socket to a task of its own;
//! - with a certificate ([`Tls`]), client and server shake hands first, and may agree on HTTP/2, which is
//!   all hyper's and the service's;
//! - the task lets the [`FastPath`] answer what is meant for it, refuses what has no sensible `head`,
//!   and lets hyper and the `router` answer the rest;
//! - every socket has a `Connection` that notes what it is doing; one watchman task cuts
//!   those that dawdle: over the head of a request, between requests, or at taking our answer
//!   (slow bodies are ended by a timer of their own, because their handler must be told);
//! - when there is no room for one more, whoever has most gives way, idle connections first;
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
mod handshake;
mod head;
mod hosts;
mod http2;
mod looked;
pub mod metrics;
mod peer;
mod refusal;
mod request_id;
mod router;
mod settings;
mod socket;
mod stream;
mod tls;

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use axum::{extract::Request, response::Response};
use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream};
use tower::Service;

pub use body::BodyTooSlow;
pub use fast_path::{FastPath, FastRequest, NoReply, Pending};
pub use head::Fields;
pub use hosts::Hosts;
pub use peer::Peer;
pub use refusal::Refusal;
pub use request_id::{REQUEST_ID, RequestId};
pub use settings::HttpSettings;
pub use tls::{Look, Tls, TlsError};

use connection::{ConnectionGuard, Stage};
use connections::{Connections, ROUND};
use fast_path::Handover;
use handshake::{Greeted, Handshakes};
use refusal::{RefusedSockets, part, shut};
use socket::Socket;
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

/// Serve until `shutdown` resolves, then drain; all connections with TLS, or none. The service must always
/// be ready, as axum's are: what is full says so in its answer.
///
/// WebSockets and endless answers (SSE) are busy for as long as they live: whoever made them should
/// end them on shutdown, or the drain waits for them until `drain_ms_max` and cuts them.
pub async fn serve<S>(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    fast_path: Arc<dyn FastPath>,
    service: S,
    settings: HttpSettings,
    shutdown: impl Future<Output = ()>,
) -> Drained
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let handshakes = Arc::new(Handshakes::new(settings.tls_handshakes_max));
    let connections = Connections::new(settings);
    let watchman = tokio::spawn(watch(Arc::downgrade(&connections)));
    let mut shutdown = pin!(shutdown);
    let mut pause = Duration::ZERO;
    let refused = RefusedSockets::new(&*fast_path);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&listener, pause) => accepted,
        };
        match accepted {
            Ok((socket, address)) => {
                pause = Duration::ZERO;
                // Answers are small and written whole; waiting to fill a packet would only delay them. A
                // socket that cannot be set is one whose client has left.
                let _ = socket.set_nodelay(true);
                match connections.open(address.ip()) {
                    Ok(guard) => {
                        let (fast_path, service) = (fast_path.clone(), service.clone());
                        match &tls {
                            None => {
                                let socket = Socket::Plain(socket);
                                tokio::spawn(run(socket, fast_path, service, guard));
                            }
                            Some(tls) => {
                                let (tls, hands) = (tls.clone(), handshakes.clone());
                                tokio::spawn(async move {
                                    greet(socket, fast_path, service, guard, tls, hands).await;
                                });
                            }
                        }
                    }
                    // A client of TLS would not understand a word of the answer.
                    Err(reason) if tls.is_some() => refused.drop(socket, reason),
                    Err(reason) => refused.refuse(socket, reason),
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

/// A connection that is to speak TLS.
async fn greet<S>(
    socket: TcpStream,
    fast_path: Arc<dyn FastPath>,
    service: S,
    guard: ConnectionGuard,
    tls: Arc<Tls>,
    handshakes: Arc<Handshakes>,
) where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let greeted = handshakes.shake(socket, &tls, &guard.0).await;
    drop((handshakes, tls));
    match greeted {
        Greeted::Tls(socket) => run(socket, fast_path, service, guard).await,
        Greeted::Gone => {}
        Greeted::Plain(socket) => {
            let connection = guard.0.clone();
            let mut stream = Stream::new(Socket::Plain(socket), guard);
            let (id, mut out) = (RequestId::generate(), Vec::new());
            fast_path.write_refusal(Refusal::PlainHttp, id, Fields(&[]), &mut out);
            if fast_path::write(&mut stream, &out, &connection).await.is_continue() {
                part(&mut stream).await;
            }
        }
    }
}

/// One connection, from its first byte to its last, or until an upgrade takes the socket away.
async fn run<S>(socket: Socket, fast_path: Arc<dyn FastPath>, service: S, guard: ConnectionGuard)
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let connection = guard.0.clone();
    let speaks_http2 = socket.speaks_http2();
    let mut stream = Stream::new(socket, guard);
    if speaks_http2 {
        return http2::serve(stream, service, &connection).await;
    }
    let mut buffer = BytesMut::new();
    loop {
        let handover = fast_path::serve(&mut stream, &mut buffer, &*fast_path, &connection).await;
        let extent = match handover {
            Handover::Router(extent) => extent,
            Handover::Refused => return part(&mut stream).await,
            Handover::Closed => {
                shut(&mut stream).await;
                return;
            }
        };
        stream.put_back(buffer.split().freeze());
        stream.show(extent);
        match router::serve(stream, &service, &connection).await {
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

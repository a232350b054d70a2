//! The front door: accepts connections and speaks HTTP/1.1 on them.
//!
//! It is our own loop rather than `axum::serve`, which has neither a cap on connections nor a limit
//! on how long a client may take. The parts:
//!
//! - `serve` accepts, and hands each socket to a task of its own;
//! - the task answers what is `express` by itself, refuses what has no sensible `head`, and lets hyper
//!   and the router answer the rest;
//! - every socket has a `Link` that notes what the connection is doing; one watchman task cuts
//!   those that dawdle: over the head of a request, between requests, or at taking our answer
//!   (slow bodies are ended by a timer of their own, because their handler must be told);
//! - on shutdown nothing more is accepted, idle connections close at once, those with a request
//!   finish it, and what is not done after `drain_max` is cut.
//!
//! A client that closes its half after its request gets its answer; whether one has left altogether
//! shows only when it is written to. The handler's future is dropped when its client is cut or breaks
//! the connection. What must not be given up half way (admission, ledger work) therefore runs in tasks
//! of its own.

mod body;
mod express;
mod head;
mod link;
mod peer;
mod refuse;
mod request_id;
mod stream;

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::Poll,
    time::Duration,
};

use axum::{body::Body, extract::Request, response::Response};
use bytes::BytesMut;
use http::{
    HeaderValue, StatusCode,
    header::{CONNECTION, CONTENT_TYPE, EXPECT},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::AsyncWrite,
    net::{TcpListener, TcpStream},
};
use tower::Service;

pub use body::BodyTooSlow;
pub use express::{Asked, Express, Outcome, Waiting};
pub use peer::Peer;
pub use request_id::RequestId;

use body::{Answer, Busy, Rest, TimedBody};
use express::Ended;
use link::{Crew, Link, OnBoard, Stage};
use refuse::{Refusals, part};
pub(crate) use request_id::REQUEST_ID;
use stream::Stream;

/// The watchman's round; time limits are kept to within it.
const ROUND: Duration = Duration::from_millis(100);
/// During a drain, a request whose first bytes are here may still complete its head this long.
const HEAD_GRACE: Duration = Duration::from_millis(250);
/// How long the tasks of connections that were cut may take to notice it.
const CUT_GRACE: Duration = Duration::from_millis(250);
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(5);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct NetOptions {
    pub connections_max: usize,
    pub header_timeout: Duration,
    pub header_bytes_max: usize,
    pub body_timeout: Duration,
    /// A longer body is no matter for the express lane, and is not read for a handler that ignores it.
    pub body_bytes_max: usize,
    /// A longer body is for nobody: it is refused by its head.
    pub any_body_bytes_max: usize,
    /// An express request is given up after this time; the router's have a limit of their own.
    pub request_timeout: Duration,
    pub idle_timeout: Duration,
    pub write_timeout: Duration,
    pub drain_max: Duration,
    pub proxy_hops: usize,
}

impl From<&crate::config::Http> for NetOptions {
    fn from(http: &crate::config::Http) -> Self {
        NetOptions {
            connections_max: http.connections_max,
            header_timeout: Duration::from_millis(http.header_timeout_ms),
            header_bytes_max: http.header_bytes_max,
            body_timeout: Duration::from_millis(http.body_timeout_ms),
            body_bytes_max: http.body_bytes_max,
            any_body_bytes_max: http.body_bytes_max.max(http.admin_body_bytes_max),
            request_timeout: Duration::from_millis(http.request_timeout_ms),
            idle_timeout: Duration::from_millis(http.idle_timeout_ms),
            write_timeout: Duration::from_millis(http.write_timeout_ms),
            drain_max: Duration::from_millis(http.drain_ms_max),
            proxy_hops: http.proxy_hops,
        }
    }
}

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
/// end them on shutdown, or the drain waits for them until `drain_max` and cuts them.
pub async fn serve<E, S>(
    listener: TcpListener,
    express: E,
    service: S,
    options: NetOptions,
    shutdown: impl Future<Output = ()>,
) -> Drained
where
    E: Express,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let crew = Crew::new(options);
    let watchman = tokio::spawn(watch(Arc::downgrade(&crew)));
    let mut shutdown = pin!(shutdown);
    let mut pause = Duration::ZERO;
    let refusals = Refusals::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&listener, pause) => accepted,
        };
        match accepted {
            Ok((socket, address)) => {
                pause = Duration::ZERO;
                match crew.board() {
                    Some(on_board) => {
                        let (express, service) = (express.clone(), service.clone());
                        tokio::spawn(run(socket, address, express, service, on_board));
                    }
                    None => refusals.refuse(socket),
                }
            }
            Err(error) => pause = after_accept_error(&error, pause),
        }
    }
    drop(listener);
    let drained = drain(&crew).await;
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
    tracing::error!(%error, "connections cannot be accepted; is http.connections_max above the limit on open files?");
    (pause * 2).clamp(ACCEPT_PAUSE_MIN, ACCEPT_PAUSE_MAX)
}

/// Ends with the last connection, even if `serve` itself was dropped.
async fn watch(crew: Weak<Crew>) {
    while let Some(crew) = crew.upgrade() {
        crew.go_round();
        drop(crew);
        tokio::time::sleep(ROUND).await;
    }
}

/// One connection, from its first byte to its last, or until an upgrade takes the socket away.
async fn run<E, S>(
    socket: TcpStream,
    address: SocketAddr,
    express: E,
    service: S,
    on_board: OnBoard,
) where
    E: Express,
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    // Answers are small and written whole; waiting to fill a packet would only delay them. A socket
    // that cannot be set is one whose client has left.
    let _ = socket.set_nodelay(true);
    let link = on_board.0.clone();
    let crew = link.crew().clone();
    let mut stream = Stream::new(socket, on_board);
    let mut buffer = BytesMut::new();
    loop {
        let extent = match express::serve(&mut stream, &mut buffer, &express, &link, &crew).await {
            Ended::Router(extent) => extent,
            Ended::Refused => return part(&mut stream).await,
            Ended::Over => {
                let _ = poll_fn(|cx| Pin::new(&mut stream).poll_shutdown(cx)).await;
                return;
            }
        };
        stream.put_back(buffer.split().freeze());
        stream.show(extent);
        match by_router(stream, address, &service, &link, &crew).await {
            Some(back) => stream = back,
            None => return,
        }
        buffer.extend_from_slice(&stream.take_unused());
        if !buffer.is_empty() {
            link.enter(Stage::Head);
        }
    }
}

/// Let hyper and the router serve one request, which is all that they are shown. Answers with the
/// connection if it can be used further.
async fn by_router<S>(
    stream: Stream,
    address: SocketAddr,
    service: &S,
    link: &Arc<Link>,
    crew: &Arc<Crew>,
) -> Option<Stream>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let each = service_fn(|request: http::Request<Incoming>| {
        let busy = Busy::new(link);
        let (request, rest) = prepare(request, address, link, crew.options());
        let answer = service.clone().call(request);
        async move {
            let mut response = answer.await?;
            if !rest.is_read_off(crew.options().body_bytes_max).await {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                busy.upgraded();
            }
            if is_event_stream(&response) {
                link.streams();
            }
            Ok::<_, Infallible>(response.map(|body| Answer { body, _busy: busy }))
        }
    });
    // Told to drain before it has read anything, hyper would close at once; told from the start that
    // there is no next request, it serves the one that is here and says `close`.
    let mut told_to_drain = crew.is_draining();
    let mut http = http1(crew.options());
    http.keep_alive(!told_to_drain);
    let mut connection = http.serve_connection(TokioIo::new(stream), each).with_upgrades();
    let goes_on = poll_fn(|cx| {
        link.is_driven_by(cx.waker());
        if link.is_cut() {
            return Poll::Ready(false);
        }
        loop {
            match Pin::new(&mut connection).poll(cx) {
                // Errors here are the client's: gone, broken HTTP (answered with 400 by hyper), slow.
                Poll::Ready(_) => return Poll::Ready(false),
                Poll::Pending if crew.is_draining() && !told_to_drain => {
                    told_to_drain = true;
                    Pin::new(&mut connection).graceful_shutdown();
                }
                Poll::Pending if link.is_free() && !told_to_drain => return Poll::Ready(true),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
    let parts = connection.into_parts()?;
    let mut stream = parts.io.into_inner();
    if !goes_on {
        if link.leaves_any_unread() && !link.is_cut() {
            part(&mut stream).await;
        }
        return None;
    }
    let unread = [parts.read_buf, stream.take_unused()].concat();
    stream.put_back(unread.into());
    Some(stream)
}

/// It lasts until its client leaves, so it must be noticed that the client has.
fn is_event_stream(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"))
}

fn http1(options: &NetOptions) -> http1::Builder {
    let mut http = http1::Builder::new();
    // The watchman does the timing. Hyper's own limit of 100 header fields stays: another number
    // would make it allocate for every request.
    http.header_read_timeout(None)
        .max_buf_size(options.header_bytes_max)
        .max_header_size(options.header_bytes_max);
    http
}

fn prepare(
    request: http::Request<Incoming>,
    address: SocketAddr,
    link: &Arc<Link>,
    options: &NetOptions,
) -> (http::Request<Body>, Rest) {
    let (mut parts, body) = request.into_parts();
    let peer = Peer::of(address, &parts.headers, options.proxy_hops);
    parts.extensions.insert(peer);
    let given = parts.headers.get_all(REQUEST_ID).into_iter().map(HeaderValue::as_bytes);
    let id = RequestId::of(given, options.proxy_hops);
    parts.extensions.insert(id);
    let is_announced = parts.headers.contains_key(EXPECT);
    let (body, rest) = TimedBody::wrap(body, is_announced, options.body_timeout, link);
    (http::Request::from_parts(parts, body), rest)
}

async fn drain(crew: &Crew) -> Drained {
    let open = crew.len();
    crew.drain();
    let limit = crew.options().drain_max;
    let grace = HEAD_GRACE.min(limit);
    if tokio::time::timeout(grace, crew.emptied()).await.is_err() {
        crew.cut_unneeded();
        let _ = tokio::time::timeout(limit - grace, crew.emptied()).await;
    }
    let cut = crew.cut_all();
    let _ = tokio::time::timeout(CUT_GRACE, crew.emptied()).await;
    Drained { finished: open.saturating_sub(cut), cut }
}

#[cfg(test)]
mod tests;

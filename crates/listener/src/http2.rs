//! HTTP/2, for clients that agreed on it while they shook hands: hyper reads it, the service answers it.
//!
//! One connection carries many requests at once, so what one client may ask for is bounded twice: by the
//! number of connections, and by what is here. A buyer's page needs a dozen streams; more are refused by the
//! protocol itself. What the protocol does not bound:
//!
//! - **Requests that are begun and given up at once** (rapid reset) make work for nobody. A connection may
//!   give up as many as it has let finish, and a hundred.
//! - **Answers that nobody takes**, held back by a window that the client keeps shut, block no socket, so
//!   that nobody would notice. An answer under way must move within `write_timeout_ms`.
//! - **Pings and settings** are answered one by one, each before the next is read, so they pile up nowhere;
//!   they are no requests, so that a connection that sends nothing else is idle and closed as such.
//!
//! Windows and buffers are small, because they are what a connection can cost: see the constants.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{body::Body, extract::Request, response::Response};
use bytes::Bytes;
use http::{HeaderValue, header::HOST};
use hyper::{
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tower::Service;

use crate::{
    HttpSettings,
    body::Busy,
    connection::{Connection, Stage},
    router::{is_event_stream, prepare},
    stream::{Extent, Stream},
};

/// What a client may send of one body, and of all together, before somebody has read it.
const STREAM_WINDOW_BYTES: u32 = 64 * 1_024;
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1_024;
/// What we keep of one answer that its client has not taken yet.
const SEND_BYTES_MAX: usize = 16 * 1_024;
/// Streams that the client gave up before anybody has looked at them, and those in which it broke the rules.
const RESETS_PENDING_MAX: usize = 20;
const RESETS_FOR_ERRORS_MAX: usize = 64;
/// Header fields that client and we remember for each other.
const HEADER_TABLE_BYTES: u32 = 4_096;

/// Serve the connection until it is over.
pub(crate) async fn serve<S>(mut stream: Stream, service: S, connection: &Arc<Connection>)
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    connection.carries_many();
    // A browser that expects to be needed connects before it has anything to ask.
    connection.enter(Stage::Quiet);
    stream.show(Extent::Everything);
    let each = {
        let connection = connection.clone();
        service_fn(move |request: http::Request<Incoming>| {
            answer(request, service.clone(), connection.clone())
        })
    };
    let http = http2(connection.settings());
    let mut served = std::pin::pin!(http.serve_connection(TokioIo::new(stream), each));
    let mut told_to_drain = false;
    poll_fn(|cx| {
        connection.is_driven_by(cx.waker());
        if connection.is_cut() {
            return Poll::Ready(());
        }
        loop {
            match served.as_mut().poll(cx) {
                // Errors here are the client's: gone, or broken HTTP, of which hyper tells it.
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending if connection.is_draining() && !told_to_drain => {
                    told_to_drain = true;
                    served.as_mut().graceful_shutdown();
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}

fn http2(settings: &HttpSettings) -> http2::Builder<TokioExecutor> {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.max_concurrent_streams(settings.http2_streams_max)
        .max_header_list_size(u32::try_from(settings.header_bytes_max).unwrap_or(u32::MAX))
        .header_table_size(HEADER_TABLE_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
        .max_local_error_reset_streams(RESETS_FOR_ERRORS_MAX);
    http
}

/// One request. Hyper runs it as a task of its own, and drops it if the client gives it up.
async fn answer<S>(
    mut request: http::Request<Incoming>,
    mut service: S,
    connection: Arc<Connection>,
) -> Result<http::Response<Answer>, Infallible>
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    let busy = Busy::new(&connection);
    let unanswered = Unanswered { connection: &connection, answered: false };
    name_host(&mut request);
    // What is left of a body here holds up no other request.
    let (request, _) = prepare(request, &connection);
    let response = service.call(request).await;
    unanswered.answered();
    let response = response?;
    let moving = (!is_event_stream(&response)).then(|| Moving::new(&connection));
    Ok(response.map(|body| Answer { body, moving, _busy: busy }))
}

/// Whom the request is for is said in another place than in HTTP/1.1. Handlers read it in one.
fn name_host(request: &mut http::Request<Incoming>) {
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    if let Some(Ok(host)) = authority.map(HeaderValue::from_bytes) {
        request.headers_mut().insert(HOST, host);
    }
}

/// A request whose answer has not begun. If it is dropped, its client has given it up.
struct Unanswered<'a> {
    connection: &'a Connection,
    answered: bool,
}

impl Unanswered<'_> {
    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.connection.is_over_with(self.answered);
    }
}

/// While it lives, an answer is under way that must move.
struct Moving(Arc<Connection>);

impl Moving {
    fn new(connection: &Arc<Connection>) -> Moving {
        connection.begins_answer();
        Moving(connection.clone())
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.ends_answer();
    }
}

/// A response's body; the connection is busy until hyper has taken the last of it.
struct Answer {
    body: Body,
    /// Absent for one that has no end of its own.
    moving: Option<Moving>,
    _busy: Busy,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(Moving(connection)) = &self.moving {
            connection.moves_answer();
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

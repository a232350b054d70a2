//! The way of everything that is not for the fast path: hyper reads it, the service answers it.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use axum::{body::Body, extract::Request, response::Response};
use http::{
    HeaderValue, StatusCode,
    header::{CONNECTION, CONTENT_TYPE, EXPECT},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tower::Service;

use crate::{
    HttpSettings, Peer, REQUEST_ID, RequestId,
    body::{Answer, Busy, Rest, TimedBody},
    connection::Connection,
    peer::FORWARDED_FOR,
    refusal::part,
    stream::Stream,
};

/// Let hyper and the service serve one request, which is all that they are shown. Answers with the
/// socket if it can be used further.
pub(crate) async fn serve<S>(
    stream: Stream,
    service: &S,
    connection: &Arc<Connection>,
) -> Option<Stream>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let settings = connection.settings();
    let each = service_fn(|request: http::Request<Incoming>| {
        let busy = Busy::new(connection);
        let (request, rest) = prepare(request, connection);
        let answer = service.clone().call(request);
        async move {
            let mut response = answer.await?;
            if !rest.is_read_off(settings.body_bytes_max).await {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                busy.upgraded();
            }
            if is_event_stream(&response) {
                connection.streams();
            }
            Ok::<_, Infallible>(response.map(|body| Answer { body, _busy: busy }))
        }
    });
    // Told to drain before it has read anything, hyper would close at once; told from the start that
    // there is no next request, it serves the one that is here and says `close`.
    let mut told_to_drain = connection.is_draining();
    let mut http = http1(settings);
    http.keep_alive(!told_to_drain);
    let mut served = http.serve_connection(TokioIo::new(stream), each).with_upgrades();
    let goes_on = poll_fn(|cx| {
        connection.is_driven_by(cx.waker());
        if connection.is_cut() {
            return Poll::Ready(false);
        }
        loop {
            match Pin::new(&mut served).poll(cx) {
                // Errors here are the client's: gone, broken HTTP (answered with 400 by hyper), slow.
                Poll::Ready(_) => return Poll::Ready(false),
                Poll::Pending if connection.is_draining() && !told_to_drain => {
                    told_to_drain = true;
                    Pin::new(&mut served).graceful_shutdown();
                }
                Poll::Pending if connection.is_free() && !told_to_drain => {
                    return Poll::Ready(true);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
    let parts = served.into_parts()?;
    let mut stream = parts.io.into_inner();
    if !goes_on {
        if connection.leaves_any_unread() && !connection.is_cut() {
            part(&mut stream).await;
        }
        return None;
    }
    let unread = [parts.read_buf, stream.take_unused()].concat();
    stream.put_back(unread.into());
    Some(stream)
}

/// It lasts until its client leaves, so it must be noticed that the client has.
pub(crate) fn is_event_stream(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"))
}

fn http1(settings: &HttpSettings) -> http1::Builder {
    let mut http = http1::Builder::new();
    // The watchman does the timing. Hyper's own limit of 100 header fields stays: another number
    // would make it allocate for every request.
    http.header_read_timeout(None)
        .max_buf_size(settings.header_bytes_max)
        .max_header_size(settings.header_bytes_max);
    http
}

pub(crate) fn prepare(
    request: http::Request<Incoming>,
    connection: &Arc<Connection>,
) -> (http::Request<Body>, Rest) {
    let settings = connection.settings();
    let (mut parts, body) = request.into_parts();
    let forwarded = parts.headers.get_all(FORWARDED_FOR);
    let peer = Peer::of(connection.address(), settings.proxy_hops, || {
        forwarded.iter().map(HeaderValue::as_bytes)
    });
    parts.extensions.insert(peer);
    let given = parts.headers.get_all(REQUEST_ID).into_iter().map(HeaderValue::as_bytes);
    let id = RequestId::of(given, settings.proxy_hops);
    parts.extensions.insert(id);
    let is_announced = parts.headers.contains_key(EXPECT);
    let timeout = Duration::from_millis(settings.body_timeout_ms);
    let (body, rest) = TimedBody::wrap(body, is_announced, timeout, connection);
    (http::Request::from_parts(parts, body), rest)
}

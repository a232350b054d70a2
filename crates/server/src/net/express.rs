//! The express lane: requests that are answered before the router, and without hyper.
//!
//! In a rush nearly every request is a claim and nearly every answer a short refusal. Such a request
//! comes whole in one packet, so nothing of what makes HTTP hard (bodies in pieces, chunks,
//! upgrades) concerns it. This loop reads heads with the same parser as hyper, lets an [`Express`]
//! answer what is meant for it, and hands everything else, untouched and with whatever was already
//! read, to hyper and the router; when those are done with a request, the connection comes back.
//!
//! What counts as express is decided narrowly: HTTP/1.1, one `host`, one `content-length`, the body
//! here in full, nothing said about the connection but `keep-alive`. Whatever is odd, slow or long is
//! judged by its head (see `head`) and goes to hyper, or is refused here.

use std::{
    future::{Future, poll_fn},
    io,
    mem::MaybeUninit,
    ops::ControlFlow,
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use futures_util::FutureExt;
use httparse::{Header, ParserConfig, Request, Status};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    NetOptions,
    head::{BodyLength, Chunks, is_host, judge, read_length},
    link::{Crew, Link, Stage},
    refuse::Refused,
    request_id::{REQUEST_ID, RequestId},
    stream::{Extent, Stream},
};
use crate::problem::{Code, Lang};

/// Fields that an express request may have; a browser sends about fifteen.
const EXPRESS_HEADERS_MAX: usize = 32;
/// Fields that any request may have: as many as hyper takes.
const HEADERS_MAX: usize = 100;
/// What is read at once: a claim has about half a kilobyte.
const READ_BYTES: usize = 4 * 1_024;
/// Answers to pipelined requests are written together until they are this long.
const WRITE_BYTES: usize = 16 * 1_024;
const WRITE_BYTES_KEPT: usize = 1_024;

/// A request that waits for its decision.
pub struct Waiting<E: Express> {
    pub ticket: E::Ticket,
    pub reply: Pin<Box<dyn Future<Output = E::Reply> + Send>>,
}

/// Answers some requests by itself.
pub trait Express: Clone + Send + Sync + 'static {
    /// What is remembered of a request while it waits.
    type Ticket: Send;
    /// What it waits for.
    type Reply: Send;

    /// Is a request with this method and path answered here?
    fn takes(&self, method: &str, path: &str) -> bool;

    /// Answer it at once, by writing a whole response to `out`, or say what to wait for.
    fn begin(&self, asked: &Asked<'_>, out: &mut Vec<u8>) -> Option<Waiting<Self>>;

    /// The wait is over: write the response.
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome<Self::Reply>, out: &mut Vec<u8>);
}

/// How a wait ended.
pub enum Outcome<R> {
    Reply(R),
    TooLate,
    Panicked,
}

/// Nothing is answered here: everything goes to the router.
impl Express for () {
    type Ticket = ();
    type Reply = ();

    fn takes(&self, _: &str, _: &str) -> bool {
        false
    }

    fn begin(&self, _: &Asked<'_>, _: &mut Vec<u8>) -> Option<Waiting<()>> {
        None
    }

    fn finish(&self, (): (), _: Outcome<()>, _: &mut Vec<u8>) {}
}

/// A request that is here from the first byte to the last.
pub struct Asked<'a> {
    pub path: &'a str,
    pub body: &'a [u8],
    pub id: RequestId,
    headers: &'a [Header<'a>],
}

impl<'a> Asked<'a> {
    /// The values of all fields of this name.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        values(self.headers, name)
    }

    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }
}

/// What the bytes at the start of the buffer are.
enum Next<E: Express> {
    /// Not a whole head yet.
    Partial,
    /// A request that was answered, or will be; it ends after this many bytes.
    Taken(usize, Option<Waiting<E>>),
    /// The router's, and how far it goes.
    Router(Extent),
    /// Nobody's.
    Refused(Refused),
}

/// Why the loop below has ended.
pub(super) enum Ended {
    /// The client has left, or is told to.
    Over,
    /// There is a request for the router in the buffer.
    Router(Extent),
    /// The client was told that its request is none.
    Refused,
}

/// Serve express requests until there is something for the router, or the connection is over.
pub(super) async fn serve<E: Express>(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    express: &E,
    link: &Link,
    crew: &Crew,
) -> Ended {
    match serve_on(stream, buffer, express, link, crew).await {
        ControlFlow::Continue(ended) => ended,
        ControlFlow::Break(()) => Ended::Over,
    }
}

async fn serve_on<E: Express>(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    express: &E,
    link: &Link,
    crew: &Crew,
) -> ControlFlow<(), Ended> {
    let mut out = Vec::new();
    stream.show(Extent::Everything);
    loop {
        let mut next = Next::Partial;
        while !buffer.is_empty() && out.len() < WRITE_BYTES {
            next = look(buffer, express, crew, &mut out);
            let Next::Taken(length, waiting) = next else { break };
            buffer.advance(length);
            if let Some(waiting) = waiting {
                // Nobody waits for the decision about somebody else.
                write(stream, &out, link).await?;
                out.clear();
                wait(waiting, stream, buffer, express, link, &mut out).await?;
            }
            next = Next::Partial;
        }
        if !out.is_empty() {
            write(stream, &out, link).await?;
            out.clear();
            if buffer.is_empty() {
                // A connection that rests keeps no more than it needs for its next request.
                out.shrink_to(WRITE_BYTES_KEPT);
                if buffer.capacity() > READ_BYTES {
                    *buffer = BytesMut::new();
                }
            }
            link.enter(if buffer.is_empty() { Stage::Quiet } else { Stage::Head });
            continue;
        }
        match next {
            Next::Router(extent) => return ControlFlow::Continue(Ended::Router(extent)),
            Next::Refused(refused) => {
                refused.write(&mut out);
                write(stream, &out, link).await?;
                crew.metrics().answered(refused.code.status(), Duration::ZERO);
                return ControlFlow::Continue(Ended::Refused);
            }
            Next::Partial | Next::Taken(..) => {}
        }
        if crew.is_draining() && buffer.is_empty() {
            return ControlFlow::Continue(Ended::Over);
        }
        read(stream, buffer, link, crew).await?;
    }
}

/// Look at what is in the buffer; if it is an express request, begin its answer.
fn look<E: Express>(buffer: &[u8], express: &E, crew: &Crew, out: &mut Vec<u8>) -> Next<E> {
    let options = crew.options();
    let mut space = [const { MaybeUninit::uninit() }; EXPRESS_HEADERS_MAX];
    let mut request = Request::new(&mut []);
    let parsed =
        ParserConfig::default().parse_request_with_uninit_headers(&mut request, buffer, &mut space);
    let head = match parsed {
        Ok(Status::Complete(length)) if length <= options.header_bytes_max => length,
        Ok(Status::Partial) if buffer.len() < options.header_bytes_max => return Next::Partial,
        Ok(_) => return refuse(Code::HeadTooLarge, request.headers, options),
        Err(httparse::Error::TooManyHeaders) => return look_at_many(buffer, options),
        Err(_) => return refuse(Code::BadRequest, &[], options),
    };
    let (Some(method), Some(path), Some(version)) = (request.method, request.path, request.version)
    else {
        return refuse(Code::BadRequest, request.headers, options);
    };
    // During a drain the router answers, which then says that the connection closes.
    if version == 1 && express.takes(method, path) && !crew.is_draining() {
        match body_length(request.headers) {
            Some(length) if length <= options.body_bytes_max && buffer.len() - head >= length => {
                let body = &buffer[head..head + length];
                let headers: &[Header<'_>] = request.headers;
                let asked = Asked { path, body, id: id_of(headers, options), headers };
                return Next::Taken(head + length, express.begin(&asked, out));
            }
            _ => {}
        }
    }
    route(head, version, path, request.headers, options)
}

/// More fields than usual, which is never express.
fn look_at_many<E: Express>(buffer: &[u8], options: &NetOptions) -> Next<E> {
    let mut space = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = Request::new(&mut []);
    let parsed =
        ParserConfig::default().parse_request_with_uninit_headers(&mut request, buffer, &mut space);
    match (parsed, request.path, request.version) {
        (Ok(Status::Complete(head)), Some(path), Some(version))
            if head <= options.header_bytes_max =>
        {
            route(head, version, path, request.headers, options)
        }
        (Ok(Status::Partial), _, _) if buffer.len() < options.header_bytes_max => Next::Partial,
        (Ok(_) | Err(httparse::Error::TooManyHeaders), _, _) => {
            refuse(Code::HeadTooLarge, request.headers, options)
        }
        (Err(_), _, _) => refuse(Code::BadRequest, &[], options),
    }
}

/// Not for the express lane: the router's, unless its head makes no sense.
fn route<E: Express>(
    head: usize,
    version: u8,
    path: &str,
    headers: &[Header<'_>],
    options: &NetOptions,
) -> Next<E> {
    match judge(version, path, headers, options.any_body_bytes_max) {
        Ok(BodyLength::Bytes(length)) => Next::Router(Extent::Bytes(head + length)),
        Ok(BodyLength::Chunked) => Next::Router(Extent::Chunked(head, Chunks::begin())),
        Err(code) => refuse(code, headers, options),
    }
}

fn refuse<E: Express>(code: Code, headers: &[Header<'_>], options: &NetOptions) -> Next<E> {
    let language = values(headers, "accept-language").next();
    let lang = language.map_or(Lang::En, Lang::of_bytes);
    Next::Refused(Refused { code, lang, id: id_of(headers, options) })
}

fn id_of(headers: &[Header<'_>], options: &NetOptions) -> RequestId {
    RequestId::of(values(headers, REQUEST_ID), options.proxy_hops)
}

fn values<'a>(headers: &'a [Header<'a>], name: &str) -> impl Iterator<Item = &'a [u8]> {
    let named = move |header: &&Header<'a>| header.name.eq_ignore_ascii_case(name);
    headers.iter().filter(named).map(|header| header.value)
}

/// The length of the body, if the head says nothing that asks for more than a plain answer.
fn body_length(headers: &[Header<'_>]) -> Option<usize> {
    let (mut length, mut hosts) = (None, 0);
    for header in headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        // By the length of the name first: most fields are none of these.
        match header.name.len() {
            4 if is("host") && is_host(header.value) => hosts += 1,
            4 if is("host") => return None,
            14 if is("content-length") => {
                let number = usize::try_from(read_length(header.value)?).ok()?;
                if length.replace(number).is_some() {
                    return None;
                }
            }
            10 if is("connection") && !header.value.eq_ignore_ascii_case(b"keep-alive") => {
                return None;
            }
            17 if is("transfer-encoding") => return None,
            6 if is("expect") => return None,
            7 if is("upgrade") => return None,
            _ => {}
        }
    }
    if hosts == 1 { length } else { None }
}

/// Wait for a decision, but not longer than a request may take. A panic on the way is this client's
/// alone. One who has sent its last byte meanwhile may still wait for the answer.
async fn wait<E: Express>(
    waiting: Waiting<E>,
    stream: &mut Stream,
    buffer: &mut BytesMut,
    express: &E,
    link: &Link,
    out: &mut Vec<u8>,
) -> ControlFlow<()> {
    link.enter(Stage::Waiting);
    let Waiting { ticket, reply } = waiting;
    let mut pending = AssertUnwindSafe(reply).catch_unwind();
    let mut more_may_come = true;
    let outcome = poll_fn(|cx| {
        link.is_driven_by(cx.waker());
        if link.is_cut() {
            return Poll::Ready(ControlFlow::Break(()));
        }
        match pending.poll_unpin(cx) {
            Poll::Ready(Ok(reply)) => {
                return Poll::Ready(ControlFlow::Continue(Outcome::Reply(reply)));
            }
            Poll::Ready(Err(_)) => return Poll::Ready(ControlFlow::Continue(Outcome::Panicked)),
            Poll::Pending if link.is_overdue() => {
                return Poll::Ready(ControlFlow::Continue(Outcome::TooLate));
            }
            Poll::Pending => {}
        }
        while more_may_come && buffer.len() < READ_BYTES {
            match poll_read(stream, buffer, cx) {
                Poll::Ready(Ok(0)) => more_may_come = false,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(ControlFlow::Break(())),
                Poll::Pending => break,
            }
        }
        Poll::Pending
    })
    .await?;
    express.finish(ticket, outcome, out);
    ControlFlow::Continue(())
}

async fn write(stream: &mut Stream, mut out: &[u8], link: &Link) -> ControlFlow<()> {
    poll_fn(|cx| {
        while !out.is_empty() {
            match Pin::new(&mut *stream).poll_write(cx, out) {
                Poll::Ready(Ok(written @ 1..)) => out = &out[written..],
                // The client has left, or was cut.
                Poll::Ready(_) => return Poll::Ready(ControlFlow::Break(())),
                Poll::Pending => {
                    link.is_driven_by(cx.waker());
                    // It may have been cut before it was known whom to wake.
                    if link.is_cut() {
                        return Poll::Ready(ControlFlow::Break(()));
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(ControlFlow::Continue(()))
    })
    .await
}

/// Wait for more bytes, or for the drain.
async fn read(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    link: &Link,
    crew: &Crew,
) -> ControlFlow<()> {
    // A head that has begun is waited for; the drain cuts it if it takes too long.
    let between_requests = buffer.is_empty();
    poll_fn(|cx| match poll_read(stream, buffer, cx) {
        Poll::Ready(Ok(1..)) => Poll::Ready(ControlFlow::Continue(())),
        Poll::Ready(_) => Poll::Ready(ControlFlow::Break(())),
        Poll::Pending if link.is_cut() => Poll::Ready(ControlFlow::Break(())),
        Poll::Pending if between_requests && crew.is_draining() => {
            Poll::Ready(ControlFlow::Continue(()))
        }
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Append what there is to the buffer; nothing if the client has sent its last byte.
fn poll_read(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let mut space = [MaybeUninit::uninit(); READ_BYTES];
    let mut read = ReadBuf::uninit(&mut space);
    ready!(Pin::new(stream).poll_read(cx, &mut read))?;
    buffer.extend_from_slice(read.filled());
    Poll::Ready(Ok(read.filled().len()))
}

//! The express lane: requests that are answered before the router, and without hyper.
//!
//! In a rush nearly every request is a claim and nearly every answer a short refusal. Such a request
//! comes whole in one packet, so nothing of what makes HTTP hard (bodies in pieces, chunks,
//! upgrades) concerns it. This loop reads heads with the same parser as hyper, lets an [`Express`]
//! answer what is meant for it, and hands everything else, untouched and with whatever was already
//! read, to hyper and the router; when those are done with a request, the connection comes back.
//!
//! What counts as express is decided narrowly: HTTP/1.1, one `content-length`, the body here in
//! full, nothing said about the connection but `keep-alive`. Whatever is odd, broken, slow or too
//! long goes to hyper, which knows how to refuse it.

use std::{
    future::{Future, poll_fn},
    mem::MaybeUninit,
    ops::ControlFlow,
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, BytesMut};
use futures_util::FutureExt;
use httparse::{Header, ParserConfig, Request, Status};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    NetOptions,
    link::{Crew, Link, Stage},
    stream::Stream,
};

/// Fields that an express request may have; a browser sends about fifteen.
const HEADERS_MAX: usize = 32;
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
    headers: &'a [Header<'a>],
}

impl<'a> Asked<'a> {
    /// The values of all fields of this name.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let named = move |header: &&Header<'a>| header.name.eq_ignore_ascii_case(name);
        self.headers.iter().filter(named).map(|header| header.value)
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
    /// Somebody else's.
    Other,
}

/// Serve express requests until there is something for the router (`Continue`: it is in `buffer`),
/// or the connection is over (`Break`).
pub(super) async fn serve<E: Express>(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    express: &E,
    link: &Link,
    crew: &Crew,
) -> ControlFlow<()> {
    let mut out = Vec::new();
    loop {
        let mut next = Next::Partial;
        while !buffer.is_empty() && out.len() < WRITE_BYTES && !crew.is_draining() {
            next = look(buffer, express, crew.options(), &mut out);
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
        let too_long = buffer.len() >= crew.options().header_bytes_max;
        if matches!(next, Next::Other) || too_long {
            return ControlFlow::Continue(());
        }
        if crew.is_draining() {
            // The router finishes what has begun, and says `close`.
            return if buffer.is_empty() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            };
        }
        read(stream, buffer, link, crew).await?;
    }
}

/// Look at what is in the buffer; if it is an express request, begin its answer.
fn look<E: Express>(
    buffer: &[u8],
    express: &E,
    options: &NetOptions,
    out: &mut Vec<u8>,
) -> Next<E> {
    let mut space = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = Request::new(&mut []);
    let parsed =
        ParserConfig::default().parse_request_with_uninit_headers(&mut request, buffer, &mut space);
    let head = match parsed {
        Ok(Status::Complete(length)) if length <= options.header_bytes_max => length,
        Ok(Status::Complete(_)) => return Next::Other,
        Ok(Status::Partial) => return Next::Partial,
        Err(_) => return Next::Other,
    };
    let (Some(method), Some(path), Some(1)) = (request.method, request.path, request.version)
    else {
        return Next::Other;
    };
    if !express.takes(method, path) {
        return Next::Other;
    }
    let length = match body_length(request.headers) {
        Some(length) if length <= options.body_bytes_max && buffer.len() - head >= length => length,
        _ => return Next::Other,
    };
    let body = &buffer[head..head + length];
    let asked = Asked { path, body, headers: request.headers };
    Next::Taken(head + length, express.begin(&asked, out))
}

/// The length of the body, if the head says nothing that asks for more than a plain answer.
fn body_length(headers: &[Header<'_>]) -> Option<usize> {
    let mut length = None;
    for header in headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        // By the length of the name first: most fields are none of these.
        match header.name.len() {
            14 if is("content-length") => {
                let digits =
                    !header.value.is_empty() && header.value.iter().all(u8::is_ascii_digit);
                let number = std::str::from_utf8(header.value).ok()?.parse().ok()?;
                if !digits || length.replace(number).is_some() {
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
    length
}

/// Wait for a decision, but not longer than a request may take. A panic on the way is this client's
/// alone, and one who leaves meanwhile gives up its place; the claim is decided all the same.
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
        while buffer.len() < READ_BYTES {
            match poll_read(stream, buffer, cx) {
                Poll::Ready(ControlFlow::Continue(())) => {}
                Poll::Ready(ControlFlow::Break(())) => return Poll::Ready(ControlFlow::Break(())),
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
    poll_fn(|cx| match poll_read(stream, buffer, cx) {
        Poll::Pending if link.is_cut() => Poll::Ready(ControlFlow::Break(())),
        Poll::Pending if crew.is_draining() => Poll::Ready(ControlFlow::Continue(())),
        polled => polled,
    })
    .await
}

/// Append what there is to the buffer; `Break` if nothing more will come.
fn poll_read(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    cx: &mut Context<'_>,
) -> Poll<ControlFlow<()>> {
    let mut space = [MaybeUninit::uninit(); READ_BYTES];
    let mut read = ReadBuf::uninit(&mut space);
    match Pin::new(stream).poll_read(cx, &mut read) {
        Poll::Ready(Ok(())) if !read.filled().is_empty() => {
            buffer.extend_from_slice(read.filled());
            Poll::Ready(ControlFlow::Continue(()))
        }
        Poll::Ready(_) => Poll::Ready(ControlFlow::Break(())),
        Poll::Pending => Poll::Pending,
    }
}

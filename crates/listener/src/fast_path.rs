//! The fast path: requests that are answered before the router, and without hyper.
//!
//! In a rush nearly every request is of one kind and nearly every answer a short refusal. Such a request
//! comes whole in one packet, so nothing of what makes HTTP hard (bodies in pieces, chunks,
//! upgrades) concerns it. This loop reads heads with the same parser as hyper, lets a [`FastPath`]
//! answer what is meant for it, and hands everything else, untouched and with whatever was already
//! read, to hyper and the router; when those are done with a request, the connection comes back.
//!
//! What the fast path takes is decided narrowly: HTTP/1.1, one `host`, one `content-length`, the body
//! here in full, nothing said about the connection but `keep-alive`. Whatever is odd, slow or long is
//! checked by its head (see `head`) and goes to hyper, or is refused here.

use std::{
    future::poll_fn,
    io,
    mem::MaybeUninit,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use httparse::{Header, ParserConfig, Request, Status};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    Hosts, HttpSettings, Peer, REQUEST_ID, Refusal, RequestId,
    connection::{Connection, Stage},
    head::{self, BodyLength, Chunks, Fields, is_host, read_length},
    peer::FORWARDED_FOR,
    stream::{Extent, Stream},
};

/// Fields that a request of the fast path may have; a browser sends about fifteen.
const FAST_HEADERS_MAX: usize = 32;
/// Fields that any request may have: as many as hyper takes.
const HEADERS_MAX: usize = 100;
/// What is read at once: a request of the fast path has about half a kilobyte.
const READ_BYTES: usize = 4 * 1_024;
/// Answers to pipelined requests are written together until they are this long.
const WRITE_BYTES: usize = 16 * 1_024;
const WRITE_BYTES_KEPT: usize = 1_024;

/// Answers some requests by itself, and words what the listener refuses. All answers are whole
/// responses, from the status line on. It is asked by way of a pointer, so that the loop below is compiled
/// here, once and for speed, and not wherever somebody has a fast path.
pub trait FastPath: Send + Sync + 'static {
    /// What a request with this method and path is about, if it is answered here: a number.
    fn target(&self, method: &str, path: &str) -> Option<i64>;

    /// Answer it at once, by writing to `out`, or say what to wait for.
    fn begin(
        &self,
        target: i64,
        request: &FastRequest<'_>,
        out: &mut Vec<u8>,
    ) -> Option<Box<dyn Pending>>;

    /// Write why nobody serves this request. The connection is closed after it, which the answer says:
    /// where the next request would begin is not known.
    fn write_refusal(&self, refusal: Refusal, id: RequestId, fields: Fields<'_>, out: &mut Vec<u8>);

    /// Write what a connection above the cap is told before it is closed.
    fn write_full(&self, out: &mut Vec<u8>);
}

/// A request of the fast path that waits for what it is told.
pub trait Pending: Send {
    /// Ready when there is something to be told. Not polled again then.
    fn poll_decided(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// The wait is over: write the answer.
    fn write(self: Box<Self>, decided: Result<(), NoReply>, out: &mut Vec<u8>);
}

/// Why a wait ended without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReply {
    TooLate,
    Panicked,
}

/// A request that is here from the first byte to the last.
pub struct FastRequest<'a> {
    pub fields: Fields<'a>,
    pub body: &'a [u8],
    pub id: RequestId,
    pub peer: Peer,
}

/// What the bytes at the start of the buffer are.
enum Parsed {
    /// Not a whole head yet.
    Partial,
    /// A request that was answered, or will be; it ends after this many bytes.
    Taken(usize, Option<Box<dyn Pending>>),
    /// The router's, and how far it goes.
    Router(Extent),
    /// Nobody's; that was written.
    Refused,
}

/// Who has the connection after the loop below.
pub(crate) enum Handover {
    /// The client has left, or is told to.
    Closed,
    /// The router: its request is in the buffer.
    Router(Extent),
    /// Nobody: the client was told that its request is none.
    Refused,
}

/// Serve requests of the fast path until there is one for the router, or the connection is over.
pub(crate) async fn serve(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    fast_path: &dyn FastPath,
    connection: &Connection,
) -> Handover {
    match serve_on(stream, buffer, fast_path, connection).await {
        ControlFlow::Continue(handover) => handover,
        ControlFlow::Break(()) => Handover::Closed,
    }
}

async fn serve_on(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    fast_path: &dyn FastPath,
    connection: &Connection,
) -> ControlFlow<(), Handover> {
    let mut out = Vec::new();
    stream.show(Extent::Everything);
    loop {
        let mut parsed = Parsed::Partial;
        while !buffer.is_empty() && out.len() < WRITE_BYTES {
            parsed = parse(buffer, fast_path, connection, &mut out);
            let Parsed::Taken(length, pending) = parsed else { break };
            buffer.advance(length);
            if let Some(pending) = pending {
                // Nobody waits for the decision about somebody else.
                write(stream, &out, connection).await?;
                out.clear();
                wait(pending, stream, buffer, connection, &mut out).await?;
            }
            parsed = Parsed::Partial;
        }
        if matches!(parsed, Parsed::Refused) {
            write(stream, &out, connection).await?;
            return ControlFlow::Continue(Handover::Refused);
        }
        if !out.is_empty() {
            write(stream, &out, connection).await?;
            out.clear();
            if buffer.is_empty() {
                // A connection that rests keeps no more than it needs for its next request.
                out.shrink_to(WRITE_BYTES_KEPT);
                if buffer.capacity() > READ_BYTES {
                    *buffer = BytesMut::new();
                }
            }
            connection.enter(if buffer.is_empty() { Stage::Quiet } else { Stage::Head });
            continue;
        }
        if let Parsed::Router(extent) = parsed {
            return ControlFlow::Continue(Handover::Router(extent));
        }
        if connection.is_draining() && buffer.is_empty() {
            return ControlFlow::Continue(Handover::Closed);
        }
        read(stream, buffer, connection).await?;
    }
}

/// Read what is at the start of the buffer; if the fast path takes it, begin its answer.
fn parse(
    buffer: &[u8],
    fast_path: &dyn FastPath,
    connection: &Connection,
    out: &mut Vec<u8>,
) -> Parsed {
    let settings = connection.settings();
    let mut space = [const { MaybeUninit::uninit() }; FAST_HEADERS_MAX];
    let mut request = Request::new(&mut []);
    let parsed =
        ParserConfig::default().parse_request_with_uninit_headers(&mut request, buffer, &mut space);
    let headers: &[Header<'_>] = request.headers;
    let fields = Fields(headers);
    let mut refuse = |refusal, fields| refuse(fast_path, refusal, fields, settings, out);
    let head = match parsed {
        Ok(Status::Complete(length)) if length <= settings.header_bytes_max => length,
        Ok(Status::Partial) if buffer.len() < settings.header_bytes_max => return Parsed::Partial,
        Ok(_) => return refuse(Refusal::HeadTooLarge, fields),
        Err(httparse::Error::TooManyHeaders) => {
            return parse_many_fields(buffer, fast_path, settings, out);
        }
        Err(_) => return refuse(Refusal::BadRequest, Fields(&[])),
    };
    let (Some(method), Some(path), Some(version)) = (request.method, request.path, request.version)
    else {
        return refuse(Refusal::BadRequest, fields);
    };
    // During a drain the router answers, which then says that the connection closes.
    if version == 1
        && !connection.is_draining()
        && let Some(target) = fast_path.target(method, path)
        && let Some(length) = plain_body_length(headers, connection.hosts())
        && length <= settings.body_bytes_max
        && buffer.len() - head >= length
    {
        let (body, id) = (&buffer[head..head + length], id_of(fields, settings));
        let forwarded = || fields.all(FORWARDED_FOR);
        let peer = Peer::of(connection.address(), settings.proxy_hops, forwarded);
        let request = FastRequest { fields, body, id, peer };
        return Parsed::Taken(head + length, fast_path.begin(target, &request, out));
    }
    match extent_of(head, version, path, fields, settings) {
        Ok(extent) => Parsed::Router(extent),
        Err(refusal) => refuse(refusal, fields),
    }
}

/// A head with more fields than usual, which is never for the fast path.
fn parse_many_fields(
    buffer: &[u8],
    fast_path: &dyn FastPath,
    settings: &HttpSettings,
    out: &mut Vec<u8>,
) -> Parsed {
    let mut space = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = Request::new(&mut []);
    let parsed =
        ParserConfig::default().parse_request_with_uninit_headers(&mut request, buffer, &mut space);
    let fields = Fields(request.headers);
    let (refusal, fields) = match (parsed, request.path, request.version) {
        (Ok(Status::Complete(head)), Some(path), Some(version))
            if head <= settings.header_bytes_max =>
        {
            match extent_of(head, version, path, fields, settings) {
                Ok(extent) => return Parsed::Router(extent),
                Err(refusal) => (refusal, fields),
            }
        }
        (Ok(Status::Partial), _, _) if buffer.len() < settings.header_bytes_max => {
            return Parsed::Partial;
        }
        (Ok(_) | Err(httparse::Error::TooManyHeaders), _, _) => (Refusal::HeadTooLarge, fields),
        (Err(_), _, _) => (Refusal::BadRequest, Fields(&[])),
    };
    refuse(fast_path, refusal, fields, settings, out)
}

/// How far a request of the router goes, unless its head makes no sense.
fn extent_of(
    head: usize,
    version: u8,
    path: &str,
    fields: Fields<'_>,
    settings: &HttpSettings,
) -> Result<Extent, Refusal> {
    Ok(match head::check(version, path, fields, settings.any_body_bytes_max())? {
        BodyLength::Bytes(length) => Extent::Bytes(head + length),
        BodyLength::Chunked => Extent::Chunked(head, Chunks::begin()),
    })
}

fn refuse(
    fast_path: &dyn FastPath,
    refusal: Refusal,
    fields: Fields<'_>,
    settings: &HttpSettings,
    out: &mut Vec<u8>,
) -> Parsed {
    fast_path.write_refusal(refusal, id_of(fields, settings), fields, out);
    Parsed::Refused
}

fn id_of(fields: Fields<'_>, settings: &HttpSettings) -> RequestId {
    RequestId::of(fields.all(REQUEST_ID), settings.proxy_hops)
}

/// The length of the body, if the head says nothing that asks for more than a plain answer.
fn plain_body_length(headers: &[Header<'_>], allowed: &Hosts) -> Option<usize> {
    let (mut length, mut hosts) = (None, 0);
    for header in headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        // By the length of the name first: most fields are none of these.
        match header.name.len() {
            4 if is("host") && is_host(header.value) && allowed.allow(header.value) => hosts += 1,
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
async fn wait(
    mut pending: Box<dyn Pending>,
    stream: &mut Stream,
    buffer: &mut BytesMut,
    connection: &Connection,
    out: &mut Vec<u8>,
) -> ControlFlow<()> {
    connection.enter(Stage::Waiting);
    let mut more_may_come = true;
    let decided = poll_fn(|cx| {
        connection.is_driven_by(cx.waker());
        if connection.is_cut() {
            return Poll::Ready(ControlFlow::Break(()));
        }
        match catch_unwind(AssertUnwindSafe(|| pending.poll_decided(cx))) {
            Ok(Poll::Ready(())) => return Poll::Ready(ControlFlow::Continue(Ok(()))),
            Err(_) => return Poll::Ready(ControlFlow::Continue(Err(NoReply::Panicked))),
            Ok(Poll::Pending) if connection.is_overdue() => {
                return Poll::Ready(ControlFlow::Continue(Err(NoReply::TooLate)));
            }
            Ok(Poll::Pending) => {}
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
    pending.write(decided, out);
    ControlFlow::Continue(())
}

pub(crate) async fn write(
    stream: &mut Stream,
    mut out: &[u8],
    connection: &Connection,
) -> ControlFlow<()> {
    poll_fn(|cx| {
        while !out.is_empty() {
            match Pin::new(&mut *stream).poll_write(cx, out) {
                Poll::Ready(Ok(written @ 1..)) => out = &out[written..],
                // The client has left, or was cut.
                Poll::Ready(_) => return Poll::Ready(ControlFlow::Break(())),
                Poll::Pending => {
                    connection.is_driven_by(cx.waker());
                    // It may have been cut before it was known whom to wake.
                    if connection.is_cut() {
                        return Poll::Ready(ControlFlow::Break(()));
                    }
                    return Poll::Pending;
                }
            }
        }
        match Pin::new(&mut *stream).poll_flush(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(ControlFlow::Continue(())),
            Poll::Ready(Err(_)) => Poll::Ready(ControlFlow::Break(())),
            Poll::Pending => {
                connection.is_driven_by(cx.waker());
                if connection.is_cut() {
                    return Poll::Ready(ControlFlow::Break(()));
                }
                Poll::Pending
            }
        }
    })
    .await
}

/// Wait for more bytes, or for the drain.
async fn read(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    connection: &Connection,
) -> ControlFlow<()> {
    // A head that has begun is waited for; the drain cuts it if it takes too long.
    let between_requests = buffer.is_empty();
    poll_fn(|cx| match poll_read(stream, buffer, cx) {
        Poll::Ready(Ok(1..)) => Poll::Ready(ControlFlow::Continue(())),
        Poll::Ready(_) => Poll::Ready(ControlFlow::Break(())),
        Poll::Pending if connection.is_cut() => Poll::Ready(ControlFlow::Break(())),
        Poll::Pending if between_requests && connection.is_draining() => {
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

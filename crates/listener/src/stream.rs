//! A socket that keeps its [`Connection`](crate::connection::Connection) informed, and ends when it is cut.
//!
//! Hyper is shown one request at a time: what comes behind it stays here until the connection is back
//! with the loop that reads heads, so that every head is judged by the same rules. Nor is hyper shown
//! that the client has sent its last byte once the request is whole: a client may close its half and
//! still wait for the answer. Only an endless answer ends with its client.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    connection::{ConnectionGuard, Stage},
    head::Chunks,
    socket::Socket,
};

/// What is read from the socket at once while a request is handed on.
const READ_BYTES: usize = 8 * 1_024;
/// Of what comes behind a request that is being served, so much is taken off the socket; more waits
/// in the kernel.
const AHEAD_BYTES_MAX: usize = 4 * 1_024;

pub(crate) struct Stream {
    socket: Socket,
    guard: ConnectionGuard,
    /// Bytes that were taken off the socket and not used: they are read again first.
    unused: Bytes,
    extent: Extent,
}

/// How much of what comes is for whoever reads now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extent {
    /// All of it.
    Everything,
    /// So many bytes.
    Bytes(usize),
    /// So many bytes of head, and then a body that says itself where it ends.
    Chunked(usize, Chunks),
}

impl Extent {
    /// How many of these bytes are for the reader. They count as read.
    fn take(&mut self, bytes: &[u8]) -> usize {
        match self {
            Extent::Everything => bytes.len(),
            Extent::Bytes(left) => {
                let taken = bytes.len().min(*left);
                *left -= taken;
                taken
            }
            Extent::Chunked(head, chunks) => {
                let of_head = bytes.len().min(*head);
                *head -= of_head;
                of_head + chunks.take(&bytes[of_head..])
            }
        }
    }

    fn is_over(&self) -> bool {
        matches!(self, Extent::Bytes(0) | Extent::Chunked(0, Chunks::Ended))
    }
}

impl Stream {
    pub(crate) fn new(socket: Socket, guard: ConnectionGuard) -> Self {
        Stream { socket, guard, unused: Bytes::new(), extent: Extent::Everything }
    }

    pub(crate) fn put_back(&mut self, unused: Bytes) {
        debug_assert!(self.unused.is_empty());
        self.unused = unused;
    }

    /// From now on whoever reads gets this much.
    pub(crate) fn show(&mut self, extent: Extent) {
        self.extent = extent;
    }

    /// What was put back and is still there.
    pub(crate) fn take_unused(&mut self) -> Bytes {
        std::mem::take(&mut self.unused)
    }

    fn still_connected(&self) -> io::Result<()> {
        if self.guard.0.is_cut() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    fn wrote<T>(&self, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.guard.0.has_written(poll.is_pending());
        poll
    }
}

impl Stream {
    fn shows_everything(&self) -> bool {
        matches!(self.extent, Extent::Everything) || self.guard.0.stage() == Stage::Upgraded
    }

    /// Hand on what is here already.
    fn read_unused(&mut self, buf: &mut ReadBuf<'_>) {
        let length = self.unused.len().min(buf.remaining());
        let taken =
            if self.shows_everything() { length } else { self.extent.take(&self.unused[..length]) };
        buf.put_slice(&self.unused.split_to(taken));
    }

    /// Take what has come off the socket, and put it behind what is here.
    fn poll_fetch(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [MaybeUninit::uninit(); READ_BYTES];
        let mut read = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut read))?;
        let bytes = read.filled();
        // The connection does not note it: what comes behind a request must not look like one that is being
        // read before the loop that reads heads has the connection back.
        if !bytes.is_empty() {
            let mut all = BytesMut::with_capacity(self.unused.len() + bytes.len());
            all.extend_from_slice(&self.unused);
            all.extend_from_slice(bytes);
            self.unused = all.freeze();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    /// Read and forget until the client has left or this many bytes have come.
    pub(crate) fn poll_discard(&mut self, cx: &mut Context<'_>, bytes_max: &mut usize) -> Poll<()> {
        self.guard.0.is_driven_by(cx.waker());
        let mut space = [MaybeUninit::uninit(); READ_BYTES];
        while *bytes_max > 0 && self.still_connected().is_ok() {
            let mut read = ReadBuf::uninit(&mut space);
            match ready!(Pin::new(&mut self.socket).poll_read(cx, &mut read)) {
                Ok(()) if !read.filled().is_empty() => {
                    *bytes_max = bytes_max.saturating_sub(read.filled().len());
                }
                _ => break,
            }
        }
        Poll::Ready(())
    }

    /// The request is whole. Look whether its client has left; pending while it has not, or while
    /// that does not matter yet.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.unused.len() < AHEAD_BYTES_MAX {
            if ready!(self.poll_fetch(cx))? == 0 {
                if self.guard.0.is_streaming() {
                    return Poll::Ready(Ok(()));
                }
                break;
            }
        }
        Poll::Pending
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.guard.0.is_driven_by(cx.waker());
        self.still_connected()?;
        if self.shows_everything() {
            if !self.unused.is_empty() {
                self.read_unused(buf);
                return Poll::Ready(Ok(()));
            }
            let before = buf.filled().len();
            let poll = Pin::new(&mut self.socket).poll_read(cx, buf);
            if buf.filled().len() > before {
                self.guard.0.has_read();
            }
            return poll;
        }
        if self.extent.is_over() {
            return self.poll_left(cx);
        }
        if self.unused.is_empty() && ready!(self.poll_fetch(cx))? == 0 {
            // In the middle of a request: whoever reads must know that no more comes.
            return Poll::Ready(Ok(()));
        }
        self.read_unused(buf);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.still_connected()?;
        let poll = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.wrote(poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.still_connected()?;
        let poll = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.wrote(poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // With TLS it is only here that what was written meets the client.
        let poll = Pin::new(&mut self.socket).poll_flush(cx);
        if let Socket::Plain(_) = self.socket { poll } else { self.wrote(poll) }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

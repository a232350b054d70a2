//! A socket that keeps its [`Link`] informed, and ends when the link is cut.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::link::OnBoard;

pub(super) struct Stream {
    socket: TcpStream,
    on_board: OnBoard,
    /// Bytes that were taken off the socket and not used: they are read again first.
    unused: Bytes,
}

impl Stream {
    pub(super) fn new(socket: TcpStream, on_board: OnBoard) -> Self {
        Stream { socket, on_board, unused: Bytes::new() }
    }

    pub(super) fn put_back(&mut self, unused: Bytes) {
        debug_assert!(self.unused.is_empty());
        self.unused = unused;
    }

    /// What was put back and is still there.
    pub(super) fn take_unused(&mut self) -> Bytes {
        std::mem::take(&mut self.unused)
    }

    fn still_connected(&self) -> io::Result<()> {
        if self.on_board.0.is_cut() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    fn wrote<T>(&self, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.on_board.0.has_written(poll.is_pending());
        poll
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.on_board.0.is_driven_by(cx.waker());
        self.still_connected()?;
        if !self.unused.is_empty() {
            let length = self.unused.len().min(buf.remaining());
            buf.put_slice(&self.unused.split_to(length));
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.socket).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.on_board.0.has_read();
        }
        poll
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
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

//! What is not served: connections above the cap, and requests whose head makes no sense.
//!
//! A connection above the cap is accepted, told so and closed, rather than left waiting in the
//! kernel's queue: a browser then shows "busy" at once instead of hanging, a load balancer looks
//! elsewhere, and a place that becomes free goes to whoever comes then, not to someone who gave up a
//! minute ago. The answer is one static write, and few sockets linger for it, so the cap is still a cap.
//!
//! What the answers say is for the [`FastPath`] to write.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{io::AsyncWrite, net::TcpStream};

use crate::{FastPath, metrics::CONNECTIONS_REFUSED, stream::Stream};

/// Sockets that wait for their client to read the answer; further ones are closed unanswered.
const LINGERING_MAX: usize = 256;
const LINGER: Duration = Duration::from_millis(500);
/// Of the request that nobody will read, this much is taken off the socket. Closing with unread
/// bytes would reset the connection, and the answer with it.
const UNREAD_BYTES_MAX: usize = 32 * 1_024;
/// Of a request that is refused as it comes, at most this much is still taken.
const PARTING_BYTES_MAX: usize = 1_024 * 1_024;

/// Why nobody serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is no HTTP, or could be read in two ways.
    BadRequest,
    /// It expects something else than to be told to go on.
    ExpectationFailed,
    HeadTooLarge,
    BodyTooLarge,
    /// It is HTTP, at a port where TLS is spoken.
    PlainHttp,
}

/// Say that nothing more is answered, and take off the socket what still comes, for a moment: closing
/// on unread bytes would reset the connection, and the client might lose the answer.
pub(crate) async fn part(stream: &mut Stream) {
    if !shut(stream).await {
        return;
    }
    let mut bytes_max = PARTING_BYTES_MAX;
    let gone = poll_fn(|cx| stream.poll_discard(cx, &mut bytes_max));
    let _ = tokio::time::timeout(LINGER, gone).await;
}

/// Say that nothing more comes. With TLS that is a message, which a client that does not read never takes.
pub(crate) async fn shut(stream: &mut Stream) -> bool {
    let shut = poll_fn(|cx| Pin::new(&mut *stream).poll_shutdown(cx));
    matches!(tokio::time::timeout(LINGER, shut).await, Ok(Ok(())))
}

/// Turns away sockets above the cap.
pub(crate) struct RefusedSockets {
    answer: Bytes,
    lingering: Arc<AtomicUsize>,
}

impl RefusedSockets {
    pub(crate) fn new(fast_path: &dyn FastPath) -> RefusedSockets {
        let mut answer = Vec::new();
        fast_path.write_full(&mut answer);
        RefusedSockets { answer: answer.into(), lingering: Arc::default() }
    }

    /// Close it without a word.
    pub(crate) fn drop(&self, socket: TcpStream, reason: &'static str) {
        metrics::counter!(CONNECTIONS_REFUSED, "reason" => reason).increment(1);
        drop(socket);
    }

    pub(crate) fn refuse(&self, socket: TcpStream, reason: &'static str) {
        metrics::counter!(CONNECTIONS_REFUSED, "reason" => reason).increment(1);
        if self.lingering.fetch_add(1, Relaxed) >= LINGERING_MAX {
            self.lingering.fetch_sub(1, Relaxed);
            return;
        }
        let (answer, lingering) = (self.answer.clone(), self.lingering.clone());
        tokio::spawn(async move {
            // How it ends is the client's affair: it was told, or it is gone.
            let _ = tokio::time::timeout(LINGER, tell(socket, &answer)).await;
            lingering.fetch_sub(1, Relaxed);
        });
    }
}

async fn tell(mut socket: TcpStream, answer: &[u8]) -> io::Result<()> {
    socket.writable().await?;
    socket.try_write(answer)?;
    poll_fn(|cx| Pin::new(&mut socket).poll_shutdown(cx)).await?;
    let mut unread = [0; 1_024];
    let mut bytes = 0;
    while bytes < UNREAD_BYTES_MAX {
        socket.readable().await?;
        match socket.try_read(&mut unread) {
            Ok(0) => break,
            Ok(n) => bytes += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

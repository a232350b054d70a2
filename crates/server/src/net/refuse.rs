//! What is said to those who are not served: connections above the cap, and requests whose head
//! makes no sense.
//!
//! A connection above the cap is accepted, told 503 and closed, rather than left waiting in the
//! kernel's queue: a browser then shows "busy" at once instead of hanging, a load balancer looks
//! elsewhere, and a place that becomes free goes to whoever comes then, not to someone who gave up a
//! minute ago. The answer is one static write, and few sockets linger for it, so the cap is still a cap.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{io::AsyncWrite, net::TcpStream};

use super::{
    request_id::{REQUEST_ID, RequestId},
    stream::Stream,
};
use crate::{
    metrics::CONNECTIONS_REFUSED,
    problem::{Code, Lang, Problem},
};

/// Sockets that wait for their client to read the answer; further ones are closed unanswered.
const LINGERING_MAX: usize = 256;
const LINGER: Duration = Duration::from_millis(500);
/// Of the request that nobody will read, this much is taken off the socket. Closing with unread
/// bytes would reset the connection, and the answer with it.
const UNREAD_BYTES_MAX: usize = 32 * 1_024;

static BUSY: LazyLock<Bytes> = LazyLock::new(|| {
    let mut answer = Vec::new();
    let problem = Problem::new(Code::Busy);
    problem.write_http(&mut answer, Lang::En, &[("connection", b"close")]);
    Bytes::from(answer)
});

/// Of a request that is refused as it comes, at most this much is still taken.
const PARTING_BYTES_MAX: usize = 1_024 * 1_024;

/// A request that nobody serves, and how it is told so.
pub(super) struct Refused {
    pub(super) code: Code,
    pub(super) lang: Lang,
    pub(super) id: RequestId,
}

impl Refused {
    /// The answer, after which the connection closes: where the next request would begin is not known.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let fields: [(&str, &[u8]); 2] =
            [("connection", b"close"), (REQUEST_ID, self.id.as_bytes())];
        Problem::new(self.code).write_http(out, self.lang, &fields);
    }
}

/// Say that nothing more is answered, and take off the socket what still comes, for a moment: closing
/// on unread bytes would reset the connection, and the client might lose the answer.
pub(super) async fn part(stream: &mut Stream) {
    let told = poll_fn(|cx| Pin::new(&mut *stream).poll_shutdown(cx));
    if told.await.is_err() {
        return;
    }
    let mut bytes_max = PARTING_BYTES_MAX;
    let gone = poll_fn(|cx| stream.poll_discard(cx, &mut bytes_max));
    let _ = tokio::time::timeout(LINGER, gone).await;
}

#[derive(Default)]
pub(super) struct Refusals {
    lingering: Arc<AtomicUsize>,
}

impl Refusals {
    pub(super) fn refuse(&self, socket: TcpStream) {
        metrics::counter!(CONNECTIONS_REFUSED).increment(1);
        if self.lingering.fetch_add(1, Relaxed) >= LINGERING_MAX {
            self.lingering.fetch_sub(1, Relaxed);
            return;
        }
        let lingering = self.lingering.clone();
        tokio::spawn(async move {
            // How it ends is the client's affair: it was told, or it is gone.
            let _ = tokio::time::timeout(LINGER, tell(socket)).await;
            lingering.fetch_sub(1, Relaxed);
        });
    }
}

async fn tell(mut socket: TcpStream) -> io::Result<()> {
    socket.writable().await?;
    socket.try_write(&BUSY)?;
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

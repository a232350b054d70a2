//! What is said to a connection above the cap.
//!
//! It is accepted, told 503 and closed, rather than left waiting in the kernel's queue: a browser
//! then shows "busy" at once instead of hanging, a load balancer looks elsewhere, and a place that
//! becomes free goes to whoever comes then, not to someone who gave up a minute ago. The answer is
//! one static write, and few sockets linger for it, so the cap is still a cap.

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

use crate::{
    metrics::CONNECTIONS_REFUSED,
    problem::{CONTENT_TYPE_PROBLEM, Code, Lang, Problem},
};

/// Sockets that wait for their client to read the answer; further ones are closed unanswered.
const LINGERING_MAX: usize = 256;
const LINGER: Duration = Duration::from_millis(500);
/// Of the request that nobody will read, this much is taken off the socket. Closing with unread
/// bytes would reset the connection, and the answer with it.
const UNREAD_BYTES_MAX: usize = 32 * 1_024;

static BUSY: LazyLock<Bytes> = LazyLock::new(|| {
    let body = Problem::new(Code::Busy).render(Lang::En);
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: {CONTENT_TYPE_PROBLEM}\r\n\
         retry-after: 1\r\ncache-control: no-store\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    Bytes::from([head.as_bytes(), &body].concat())
});

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

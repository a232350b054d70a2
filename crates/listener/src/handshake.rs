//! From a socket to a connection that speaks TLS.
//!
//! Shaking hands costs a signature and some tens of kilobytes, and nothing is known of the client yet. So
//! those under way are counted, and when there are too many the one that has taken the longest gives way: an
//! honest client is done after two exchanges, and who dawdles cannot keep others out. Time limits are kept by
//! the watchman, as all others (see `connection`).

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Poll, ready},
};

use parking_lot::Mutex;
use tokio::{io::ReadBuf, net::TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::{
    connection::{Connection, Stage},
    metrics::{CONNECTIONS_CUT, CUT_HANDSHAKE, TLS_HANDSHAKES, TLS_HANDSHAKES_FAILED},
    socket::Socket,
    tls::Tls,
};

/// The first byte of whatever a client of TLS says.
const TLS_HANDSHAKE: u8 = 22;

/// Handshakes under way at one listener, the oldest first.
pub(crate) struct Handshakes {
    under_way: Mutex<BTreeMap<u64, Arc<Connection>>>,
    max: usize,
}

/// How a client began.
pub(crate) enum Greeted {
    Tls(Socket),
    /// It speaks HTTP where TLS is spoken.
    Plain(TcpStream),
    /// It left, was cut, or there is no version or cipher that both know.
    Gone,
}

impl Handshakes {
    pub(crate) fn new(max: usize) -> Handshakes {
        Handshakes { under_way: Mutex::default(), max }
    }

    pub(crate) async fn shake(
        &self,
        socket: TcpStream,
        tls: &Tls,
        connection: &Arc<Connection>,
    ) -> Greeted {
        let _under_way = self.begin(connection);
        match driven(connection, first_byte(&socket)).await {
            Some(Some(TLS_HANDSHAKE)) => {}
            Some(Some(_)) => return Greeted::Plain(socket),
            Some(None) | None => return Greeted::Gone,
        }
        let accepted = TlsAcceptor::from(tls.config()).accept(socket);
        match driven(connection, accepted).await {
            Some(Ok(stream)) => {
                metrics::counter!(TLS_HANDSHAKES).increment(1);
                connection.enter(Stage::Head);
                Greeted::Tls(Socket::Tls(Box::new(stream)))
            }
            failed => {
                metrics::counter!(TLS_HANDSHAKES_FAILED).increment(1);
                if let Some(Err(error)) = failed {
                    tracing::debug!(%error, "a client and we did not agree on TLS");
                }
                Greeted::Gone
            }
        }
    }

    fn begin(&self, connection: &Arc<Connection>) -> UnderWay<'_> {
        connection.enter(Stage::Handshake);
        let mut under_way = self.under_way.lock();
        under_way.insert(connection.id(), connection.clone());
        if under_way.len() > self.max
            && let Some((_, oldest)) = under_way.pop_first()
        {
            metrics::counter!(CONNECTIONS_CUT, "reason" => CUT_HANDSHAKE).increment(1);
            oldest.cut();
        }
        UnderWay { handshakes: self, id: connection.id() }
    }
}

struct UnderWay<'a> {
    handshakes: &'a Handshakes,
    id: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.handshakes.under_way.lock().remove(&self.id);
    }
}

/// `None` if the connection was cut first.
async fn driven<T>(connection: &Connection, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        connection.is_driven_by(cx.waker());
        if connection.is_cut() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

/// It stays where it is, to be read again. `None` if the client has left.
async fn first_byte(socket: &TcpStream) -> Option<u8> {
    poll_fn(|cx| {
        let mut space = [0; 1];
        let mut byte = ReadBuf::new(&mut space);
        let peeked = ready!(Pin::new(&socket).poll_peek(cx, &mut byte));
        Poll::Ready(peeked.ok().and_then(|_| byte.filled().first().copied()))
    })
    .await
}

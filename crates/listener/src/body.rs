//! Bodies on their way in (which must arrive in time) and out (whose end is the request's end).

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{BoxError, body::Body};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use crate::connection::{Connection, Stage};

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the body did not arrive in time")]
pub struct BodyTooSlow;

/// A request's body that must be complete at a given time, however steadily it trickles.
pub(crate) struct TimedBody {
    /// Present until it is dropped.
    arriving: Option<Arriving>,
    rest: Rest,
}

struct Arriving {
    incoming: Incoming,
    connection: Arc<Connection>,
    deadline: Instant,
    /// The client sends it only when it is asked for.
    is_announced: bool,
    /// Set when the body is first waited for; nearly all come in one piece with their head.
    alarm: Option<Pin<Box<Sleep>>>,
    /// Its end was seen. One in chunks does not know before it is there.
    ended: bool,
}

/// What a handler left of a body. It has to be read off the connection before the next request can
/// come, and a client may send it a moment after the head: closing on it would cost the client its
/// connection, and perhaps the request it was about to send.
///
/// Empty where there was no body.
#[derive(Clone)]
pub(crate) struct Rest(Option<Arc<Mutex<Option<Arriving>>>>);

impl TimedBody {
    pub(crate) fn wrap(
        incoming: Incoming,
        is_announced: bool,
        timeout: Duration,
        connection: &Arc<Connection>,
    ) -> (Body, Rest) {
        if incoming.is_end_stream() {
            return (Body::empty(), Rest(None));
        }
        // Until it has been read to its end, nothing behind it can be taken for a request.
        connection.leaves_unread(true);
        let (connection, deadline) = (connection.clone(), Instant::now() + timeout);
        let rest = Rest(Some(Arc::default()));
        let arriving =
            Arriving { incoming, connection, deadline, is_announced, alarm: None, ended: false };
        (Body::new(TimedBody { arriving: Some(arriving), rest: rest.clone() }), rest)
    }
}

impl Drop for TimedBody {
    fn drop(&mut self) {
        if let (Some(arriving), Rest(Some(rest))) = (self.arriving.take(), &self.rest) {
            *rest.lock() = arriving.unless_complete();
        }
    }
}

impl Rest {
    /// Read what is left, if it is no more than this and comes in time. False if it is not.
    pub(crate) async fn is_read_off(&self, bytes_max: usize) -> bool {
        // `None`: it was read, or is still with somebody who reads.
        let left_behind = self.0.as_ref().and_then(|rest| rest.lock().take());
        let Some(mut arriving) = left_behind else { return true };
        let mut left = bytes_max as u64;
        if arriving.is_announced || arriving.incoming.size_hint().lower() > left {
            return false;
        }
        while let Some(frame) = poll_fn(|cx| arriving.poll_frame(cx)).await {
            let Ok(frame) = frame else { return false };
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => return false,
            }
        }
        arriving.unless_complete().is_none()
    }
}

impl Arriving {
    fn unless_complete(self) -> Option<Arriving> {
        if self.ended || self.incoming.is_end_stream() {
            self.connection.leaves_unread(false);
            return None;
        }
        Some(self)
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) {
            self.ended |= frame.is_none();
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let deadline = self.deadline;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        ready!(alarm.as_mut().poll(cx));
        Poll::Ready(Some(Err(BodyTooSlow.into())))
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.arriving {
            Some(arriving) => arriving.poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.arriving.as_ref().is_none_or(|arriving| arriving.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.arriving.as_ref().map(|arriving| arriving.incoming.size_hint()).unwrap_or_default()
    }
}

/// While it lives, its connection is busy with a request.
pub(crate) struct Busy(Arc<Connection>);

impl Busy {
    pub(crate) fn new(connection: &Arc<Connection>) -> Busy {
        connection.begin();
        Busy(connection.clone())
    }

    /// From now on the connection is not HTTP any more.
    pub(crate) fn upgraded(&self) {
        self.0.enter(Stage::Upgraded);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A response's body; the connection is busy until hyper has taken the last of it.
pub(crate) struct Answer {
    pub(crate) body: Body,
    pub(crate) _busy: Busy,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

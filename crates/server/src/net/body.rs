//! Bodies on their way in (which must arrive in time) and out (whose end is the request's end).

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{BoxError, body::Body};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use super::link::{Link, Stage};

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the body did not arrive in time")]
pub struct BodyTooSlow;

/// A request's body that must be complete at a given time, however steadily it trickles.
pub(super) struct TimedBody {
    incoming: Incoming,
    link: Arc<Link>,
    deadline: Instant,
    /// Set when the body is first waited for; nearly all come in one piece with their head.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl TimedBody {
    pub(super) fn wrap(incoming: Incoming, timeout: Duration, link: &Arc<Link>) -> Body {
        if incoming.is_end_stream() {
            return Body::empty();
        }
        // Until it has been read to its end, nothing behind it can be taken for a request.
        link.leaves_unread(true);
        let (link, deadline) = (link.clone(), Instant::now() + timeout);
        Body::new(TimedBody { incoming, link, deadline, alarm: None })
    }
}

impl Drop for TimedBody {
    fn drop(&mut self) {
        if self.incoming.is_end_stream() {
            self.link.leaves_unread(false);
        }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let deadline = self.deadline;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        ready!(alarm.as_mut().poll(cx));
        Poll::Ready(Some(Err(BodyTooSlow.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// While it lives, its connection is busy with a request.
pub(super) struct Busy(Arc<Link>);

impl Busy {
    pub(super) fn new(link: &Arc<Link>) -> Busy {
        link.begin();
        Busy(link.clone())
    }

    /// From now on the connection is not HTTP any more.
    pub(super) fn upgraded(&self) {
        self.0.enter(Stage::Upgraded);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A response's body; the connection is busy until hyper has taken the last of it.
pub(super) struct Answer {
    pub(super) body: Body,
    pub(super) _busy: Busy,
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

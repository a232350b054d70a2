//! The live board: what happens, second by second, pushed to every console that looks.
//!
//! One sampler per process reads counters from memory each second, writes what it found once, and keeps the
//! last fifteen minutes of it. A console that connects is given those and then each second as it is written;
//! a hundred consoles are told the same bytes, so they make no more work than one, and none of them makes
//! the gate or the ledger work at all. A console that is too slow misses seconds and sees a gap.
//!
//! The figures are this process's own, and so says the stream: in a cluster each instance counts what it was
//! asked. Units left, the log and what waits in the ledger are everybody's.

mod sampler;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use http::{StatusCode, header::CONTENT_TYPE, request::Parts};
use parking_lot::Mutex;
use tokio::{
    sync::broadcast::{self, Receiver, Sender, error::RecvError},
    time::Instant,
};

use super::{Shared, admin::session::Head, roles::AsViewer, schemas};
use crate::{
    access::operator,
    problem::{Code, Problem},
};
use ledger::Role;
pub(crate) use sampler::run;

/// Fifteen minutes of seconds.
const SAMPLES_MAX: usize = 900;
/// Consoles that look at one process.
const STREAMS_MAX: usize = 200;
/// Seconds a console may be behind before it misses some.
const BEHIND_MAX: usize = 32;
/// Whoever looks must still be allowed to.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// What was sampled, and whoever is told.
pub(crate) struct Live {
    told: Mutex<Told>,
    streams: Arc<AtomicUsize>,
}

struct Told {
    /// Oldest first, each as it stands on the stream.
    samples: VecDeque<Bytes>,
    /// The last word on what changes seldom.
    state: Bytes,
    /// Absent when the server stops.
    sender: Option<Sender<Bytes>>,
}

impl Live {
    pub(super) fn new() -> Live {
        let (sender, _) = broadcast::channel(BEHIND_MAX);
        let told = Told { samples: VecDeque::new(), state: Bytes::new(), sender: Some(sender) };
        Live { told: Mutex::new(told), streams: Arc::default() }
    }

    fn add_sample(&self, sample: Bytes) {
        let mut told = self.told.lock();
        if told.samples.len() >= SAMPLES_MAX {
            told.samples.pop_front();
        }
        told.samples.push_back(sample.clone());
        told.tell(sample);
    }

    fn set_state(&self, state: Bytes) {
        let mut told = self.told.lock();
        told.state = state.clone();
        told.tell(state);
    }

    /// All streams end, so that a drain does not wait for them.
    pub(crate) fn close(&self) {
        self.told.lock().sender = None;
    }

    /// What was told, and what will be; nothing in between is missed or told twice.
    fn follow(&self) -> Option<(Vec<Bytes>, Receiver<Bytes>)> {
        let told = self.told.lock();
        let receiver = told.sender.as_ref()?.subscribe();
        Some((told.samples.iter().chain([&told.state]).cloned().collect(), receiver))
    }

    /// A place for one more console, given back when it is dropped.
    fn place(&self) -> Option<Place> {
        let place = Place(self.streams.clone());
        (self.streams.fetch_add(1, Ordering::Relaxed) < STREAMS_MAX).then_some(place)
    }
}

impl Told {
    fn tell(&self, event: Bytes) {
        // Nobody may be looking.
        let _ = self.sender.as_ref().map(|sender| sender.send(event));
    }
}

struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The last fifteen minutes second by second, and each second from now on, as server-sent events.
///
/// `sample` is one second: claims asked, admitted and refused by `code`, the gate's p50 and p99 in
/// microseconds, claims on the log, units left by item. `state` is what changes seldom: items on sale, the
/// health of each part, alerts that are open, what waits in the ledger. Counts are those of the process that
/// answers, which names itself in `state`.
#[utoipa::path(get, path = "/admin/live", tag = "admin", security(("operator" = [])),
    responses(
        (status = OK, description = "Events", body = inline(schemas::LiveEvent),
            content_type = "text/event-stream"),
        (status = SERVICE_UNAVAILABLE, description = "`busy`: too many look, or the server stops")))]
pub(super) async fn follow(
    State(app): State<Shared>,
    _: AsViewer,
    Head(parts): Head,
) -> Result<Response, Problem> {
    let place = app.live.place();
    let followed = app.live.follow().zip(place);
    let ((history, news), place) = followed.ok_or_else(|| Problem::new(Code::Busy))?;
    let history = stream::iter(history.into_iter().map(Ok::<_, std::convert::Infallible>));
    let watching = Watching { app, parts, news, asked: Instant::now(), _place: place };
    let body = Body::from_stream(futures_util::StreamExt::chain(history, watching.stream()));
    let headers = [
        (CONTENT_TYPE.as_str(), "text/event-stream"),
        ("cache-control", "no-store"),
        // Without it nginx gathers events until a buffer is full.
        ("x-accel-buffering", "no"),
    ];
    Ok((StatusCode::OK, headers, body).into_response())
}

/// One console that looks.
struct Watching {
    app: Shared,
    parts: Parts,
    news: Receiver<Bytes>,
    /// When it was last asked whether they may look.
    asked: Instant,
    _place: Place,
}

impl Watching {
    fn stream(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> {
        stream::unfold(self, |mut watching| async move {
            loop {
                if !watching.may_still().await {
                    return None;
                }
                match watching.news.recv().await {
                    Ok(event) => return Some((Ok(event), watching)),
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                }
            }
        })
    }

    /// A ledger that does not answer sends nobody away: that is when they want to look.
    async fn may_still(&mut self) -> bool {
        if self.asked.elapsed() < ASK_AGAIN {
            return true;
        }
        self.asked = Instant::now();
        match operator(&self.parts, &self.app.admins, &self.app.sessions).await {
            Ok(operator) => operator.may(Role::Viewer),
            Err(problem) => problem.code() == Code::Busy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    #[test]
    fn who_comes_late_is_told_what_was_and_then_what_is() {
        let live = Live::new();
        for n in 0..SAMPLES_MAX + 5 {
            live.add_sample(event(&n.to_string()));
        }
        live.set_state(event("all is well"));
        let (history, mut news) = live.follow().unwrap();
        assert_eq!(history.len(), SAMPLES_MAX + 1);
        assert_eq!((&history[0], &history[SAMPLES_MAX]), (&event("5"), &event("all is well")));
        live.add_sample(event("new"));
        assert_eq!(news.try_recv().unwrap(), event("new"));
        assert!(news.try_recv().is_err());
        live.close();
        assert!(matches!(news.try_recv(), Err(broadcast::error::TryRecvError::Closed)));
        assert!(live.follow().is_none());
    }

    #[test]
    fn there_is_room_for_so_many_and_a_place_is_given_back() {
        let live = Live::new();
        let mut places: Vec<_> = (0..STREAMS_MAX).map(|_| live.place().unwrap()).collect();
        assert!(live.place().is_none());
        assert!(live.place().is_none());
        places.pop();
        assert!(live.place().is_some());
    }
}

//! Hears what the other instances tell, and passes it on to those who listen here; and lets them know that
//! there are news to be told.

use std::{sync::Arc, time::Duration};

use tokio::sync::broadcast::error::RecvError;

use crate::{Push, coordination::Hint, shared::Shared};

pub(super) async fn hear_hints(shared: Arc<Shared>, push: Arc<Push>) {
    let mut hints = shared.coordination.hints();
    loop {
        match hints.recv().await {
            Ok(Hint::Orders { orders }) => push.tell(&orders),
            Ok(Hint::Queued { claims }) => push.tell_queued(&claims),
            Ok(Hint::Units { item }) => shared.lanes.forget(item),
            Ok(Hint::Door) => shared.wake.door.notify_one(),
            // What was told here comes back to us, and is counted.
            Ok(Hint::WrongAnswer { from, .. }) if from == shared.instance => {}
            Ok(Hint::WrongAnswer { user, .. }) => shared.wrong_answers.note(&user, shared.now_ms()),
            Ok(Hint::News) => shared.wake.news.notify_one(),
            // Too many to keep up with, or the line was down: those who listen read again, and a cached
            // "no" is at most a second old.
            Ok(Hint::Missed) | Err(RecvError::Lagged(_)) => push.missed_hints(),
            Err(RecvError::Closed) => return,
        }
    }
}

/// What is written in so short a time is told once.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// News are told by one process of the cluster, and written by all: buyers should not wait for the next poll.
pub(super) async fn tell_of_news(shared: Arc<Shared>) {
    loop {
        shared.wake.news_for_others.notified().await;
        shared.coordination.tell(&Hint::News).await;
        tokio::time::sleep(TELL_EVERY).await;
    }
}

//! How the shop is told: a notice, posted until it is taken, late, twice, never, after forgeries of it.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Semaphore, mpsc};

use super::{Forgery, Protocol, http};

const NOTICES_IN_FLIGHT_MAX: usize = 64;
/// The real ones pause for seconds, then minutes, then hours, for a day.
const TRIES_MAX: u32 = 60;
const PAUSE_MS_MIN: u64 = 250;
const PAUSE_MS_MAX: u64 = 4_000;

/// Something that the shop is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Of a charge, by its place in the accounts. It lands so much later. A second one for the same order
    /// cannot be asked about: its notice is never lost.
    Paid { charge: usize, after_ms: i64, doubled: bool },
    /// Of a refund, by the shop's number. It is done so much later.
    Refunded { number: String, after_ms: i64 },
    /// Nobody can pay this order any more. Only a shop with a cashier of its own says so.
    Closed { order_no: String },
}

impl News {
    /// When it happens, from now.
    fn after_ms(&self) -> i64 {
        match self {
            News::Paid { after_ms, .. } | News::Refunded { after_ms, .. } => *after_ms,
            News::Closed { .. } => 0,
        }
    }
}

/// A notice as it goes over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

pub(super) async fn tell_all<P: Protocol>(protocol: Arc<P>, mut told: mpsc::Receiver<News>) {
    let room = Arc::new(Semaphore::new(NOTICES_IN_FLIGHT_MAX));
    while let Some(news) = told.recv().await {
        tokio::spawn(tell(protocol.clone(), news, room.clone()));
    }
}

async fn tell<P: Protocol>(protocol: Arc<P>, news: News, room: Arc<Semaphore>) {
    let company = protocol.company();
    let is_late_money = matches!(news, News::Paid { after_ms, .. } if after_ms > 0);
    let fate = company.roll(|faults, dice| faults.notice_fate(dice, is_late_money));
    let lands = Duration::from_millis(news.after_ms().max(0) as u64);
    tokio::time::sleep(lands + fate.after).await;
    for forgery in fate.before {
        company.count("forgeries");
        match post(&*protocol, &news, Some(forgery), &room).await {
            Some(true) => company.complain(format!("{forgery:?} of {news:?} was taken")),
            Some(false) => company.count("forgeries_refused"),
            None => {}
        }
    }
    let is_doubled = matches!(news, News::Paid { doubled: true, .. });
    if fate.lost && !is_doubled {
        return company.count("notices_lost");
    }
    let mut pause_ms = PAUSE_MS_MIN;
    for _ in 0..TRIES_MAX {
        if post(&*protocol, &news, None, &room).await == Some(true) {
            company.count("notices_taken");
            for pause in fate.repeats {
                tokio::time::sleep(pause).await;
                company.count("notices_repeated");
                post(&*protocol, &news, None, &room).await;
            }
            return;
        }
        company.count("notices_not_taken");
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        pause_ms = (pause_ms * 2).min(PAUSE_MS_MAX);
    }
    company.count("notices_given_up");
}

/// Was it taken? `None` if the shop does not answer, or is not to be told.
async fn post<P: Protocol>(
    protocol: &P,
    news: &News,
    forgery: Option<Forgery>,
    room: &Semaphore,
) -> Option<bool> {
    let _permit = room.acquire().await.ok()?;
    let notice = protocol.notice(news, forgery)?;
    let answer = http::post(&notice.url, &notice.headers, &notice.body).await.ok()?;
    Some(protocol.is_taken(answer.0, &answer.1))
}

/// Change one byte, not always the same one, so that the text is still text.
pub(super) fn corrupted(mut body: Vec<u8>, dice: &mut fastrand::Rng) -> Vec<u8> {
    if body.is_empty() {
        return b"x".to_vec();
    }
    let at = dice.usize(..body.len());
    body[at] = if body[at] == b'a' { b'b' } else { b'a' };
    body
}

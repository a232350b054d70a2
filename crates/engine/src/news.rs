//! News of orders to the buyers who listen.
//!
//! A hint, not a promise: it says *look again*, and the listener reads the order where it is true.
//! So news may be dropped (a slow listener is disconnected, and reads everything when it comes
//! back), and a lost one costs a buyer a poll, never the truth.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use sale::{OrderNo, UserId};
use tokio::sync::mpsc;

#[derive(Clone, Copy, Debug)]
pub struct NewsOptions {
    /// Streams open in all.
    pub streams_max: usize,
    pub streams_per_user_max: usize,
    /// News that may wait for one listener.
    pub queue_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many listeners")]
pub struct TooMany;

pub struct News {
    options: NewsOptions,
    open: AtomicUsize,
    listeners: Mutex<HashMap<UserId, Vec<Stream>>>,
    next_id: Mutex<u64>,
}

/// The sending end of one open stream.
struct Stream {
    id: u64,
    changed: mpsc::Sender<OrderNo>,
}

/// One open stream. Dropping it stops listening.
pub struct Listener {
    id: u64,
    user: UserId,
    news: Weak<News>,
    changed: mpsc::Receiver<OrderNo>,
}

impl News {
    pub fn new(options: NewsOptions) -> Arc<News> {
        Arc::new(News {
            options,
            open: AtomicUsize::new(0),
            listeners: Mutex::default(),
            next_id: Mutex::new(0),
        })
    }

    pub fn listen(self: &Arc<Self>, user: &UserId) -> Result<Listener, TooMany> {
        let mut listeners = self.listeners.lock();
        let of_user = listeners.get(user).map_or(0, Vec::len);
        if self.open.load(Ordering::Acquire) >= self.options.streams_max
            || of_user >= self.options.streams_per_user_max
        {
            return Err(TooMany);
        }
        let (stream, changed) = mpsc::channel(self.options.queue_max);
        let id = {
            let mut next = self.next_id.lock();
            *next += 1;
            *next
        };
        listeners.entry(user.clone()).or_default().push(Stream { id, changed: stream });
        self.open.fetch_add(1, Ordering::AcqRel);
        Ok(Listener { id, user: user.clone(), news: Arc::downgrade(self), changed })
    }

    /// These orders changed.
    pub fn tell(&self, orders: &[(OrderNo, UserId)]) {
        let mut listeners = self.listeners.lock();
        if listeners.is_empty() {
            return;
        }
        for (order_no, user) in orders {
            if let Some(streams) = listeners.get_mut(user) {
                // A stream that is full or gone loses its sender, and so ends.
                streams.retain(|stream| stream.changed.try_send(*order_no).is_ok());
            }
        }
    }

    pub fn streams(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// End every stream.
    pub fn close(&self) {
        self.listeners.lock().clear();
    }
}

impl Listener {
    /// The next order of this buyer that changed; `None` when the stream is over.
    pub async fn next(&mut self) -> Option<OrderNo> {
        self.changed.recv().await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(news) = self.news.upgrade() else { return };
        news.open.fetch_sub(1, Ordering::AcqRel);
        let mut listeners = news.listeners.lock();
        if let Some(streams) = listeners.get_mut(&self.user) {
            streams.retain(|stream| stream.id != self.id);
            if streams.is_empty() {
                listeners.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no(n: u64) -> OrderNo {
        OrderNo::from_u64(n).unwrap()
    }

    #[tokio::test]
    async fn buyers_hear_of_their_own_orders_and_are_counted() {
        let news = News::new(NewsOptions { streams_max: 3, streams_per_user_max: 2, queue_max: 1 });
        let (ann, bob): (UserId, UserId) = ("ann".parse().unwrap(), "bob".parse().unwrap());
        let mut first = news.listen(&ann).unwrap();
        let second = news.listen(&ann).unwrap();
        assert!(news.listen(&ann).is_err(), "two streams per buyer");
        let mut bobs = news.listen(&bob).unwrap();
        assert!(news.listen(&"eve".parse().unwrap()).is_err(), "three streams in all");
        news.tell(&[(no(1), ann.clone()), (no(2), bob.clone())]);
        assert_eq!((first.next().await, bobs.next().await), (Some(no(1)), Some(no(2))));
        drop(second);
        assert_eq!(news.streams(), 2);
        // A listener that does not read is let go.
        news.tell(&[(no(3), ann.clone()), (no(4), ann.clone())]);
        assert_eq!(first.next().await, Some(no(3)));
        assert_eq!(first.next().await, None);
        drop((first, bobs));
        assert_eq!(news.streams(), 0);
    }
}

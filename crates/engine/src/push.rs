//! Push: events of orders to the buyers who listen.
//!
//! An event is a hint, not a promise: it says *look again*, and the listener reads the order where it is
//! true. So events may be dropped (a slow listener is disconnected, and reads everything when it comes
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

use crate::{
    coordination::Hint, last_known::LastKnown, settings::Push as PushOptions, shared::Shared,
};

/// An order changed, and this is its buyer.
pub(crate) type OrderEvent = (OrderNo, UserId);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many listeners")]
pub struct TooMany;

pub struct Push {
    shared: Arc<Shared>,
    last_known: Arc<LastKnown>,
    streams: Arc<Streams>,
}

impl Push {
    pub(crate) fn new(shared: Arc<Shared>, last_known: Arc<LastKnown>) -> Push {
        let streams = Streams::new(shared.settings.push.clone());
        Push { shared, last_known, streams }
    }

    /// Opens a stream of what changes of this buyer's orders.
    pub fn listen(&self, user: &UserId) -> Result<Listener, TooMany> {
        self.streams.listen(user)
    }

    /// Streams that are open.
    pub fn streams(&self) -> usize {
        self.streams.open.load(Ordering::Acquire)
    }

    /// Ends every stream.
    pub fn close(&self) {
        self.streams.listeners.lock().clear();
    }

    /// Lets the buyers know who listen at this instance.
    pub fn tell(&self, orders: &[OrderEvent]) {
        self.last_known.forget(orders.iter().map(|(no, _)| *no));
        self.streams.tell(orders);
    }

    /// Lets buyers know, here and at the other instances.
    pub(crate) async fn tell_all(&self, orders: &[OrderEvent]) {
        if self.shared.is_cluster() {
            self.shared.coordination.tell(&Hint::Orders { orders: orders.to_vec() }).await;
        }
        self.tell(orders);
    }
}

/// The streams that are open at this instance.
struct Streams {
    options: PushOptions,
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
    streams: Weak<Streams>,
    changed: mpsc::Receiver<OrderNo>,
}

impl Streams {
    fn new(options: PushOptions) -> Arc<Streams> {
        Arc::new(Streams {
            options,
            open: AtomicUsize::new(0),
            listeners: Mutex::default(),
            next_id: Mutex::new(0),
        })
    }

    fn listen(self: &Arc<Self>, user: &UserId) -> Result<Listener, TooMany> {
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
        Ok(Listener { id, user: user.clone(), streams: Arc::downgrade(self), changed })
    }

    fn tell(&self, orders: &[OrderEvent]) {
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
}

impl Listener {
    /// The next order of this buyer that changed; `None` when the stream is over.
    pub async fn next(&mut self) -> Option<OrderNo> {
        self.changed.recv().await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(streams) = self.streams.upgrade() else { return };
        streams.open.fetch_sub(1, Ordering::AcqRel);
        let mut listeners = streams.listeners.lock();
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
        let streams =
            Streams::new(PushOptions { streams_max: 3, streams_per_user_max: 2, queue_max: 1 });
        let (ann, bob): (UserId, UserId) = ("ann".parse().unwrap(), "bob".parse().unwrap());
        let mut first = streams.listen(&ann).unwrap();
        let second = streams.listen(&ann).unwrap();
        assert!(streams.listen(&ann).is_err(), "two streams per buyer");
        let mut bobs = streams.listen(&bob).unwrap();
        assert!(streams.listen(&"eve".parse().unwrap()).is_err(), "three streams in all");
        streams.tell(&[(no(1), ann.clone()), (no(2), bob.clone())]);
        assert_eq!((first.next().await, bobs.next().await), (Some(no(1)), Some(no(2))));
        drop(second);
        assert_eq!(streams.open.load(Ordering::Acquire), 2);
        // A listener that does not read is let go.
        streams.tell(&[(no(3), ann.clone()), (no(4), ann.clone())]);
        assert_eq!(first.next().await, Some(no(3)));
        assert_eq!(first.next().await, None);
        drop((first, bobs));
        assert_eq!(streams.open.load(Ordering::Acquire), 0);
    }
}

//! The hub: who listens at this instance, and what waits for them.
//!
//! Every stream has one bounded queue, which its buyer's orders and the items it watches write to. A queue
//! that is full ends its stream: whoever cannot keep up is better told everything anew when they come back.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use sale::{ItemId, OrderNo, UserId};
use tokio::sync::Notify;

use super::{AdmittedClaims, FollowError, OrderEvent, QueuedClaim};
use crate::settings::Push as PushOptions;

/// Streams that ended because their queue was full.
const DROPPED: &str = "seckill_push_dropped_total";

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many listeners")]
pub struct TooMany;

/// What a stream hears of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// This order changed.
    Order(OrderNo),
    /// This claim was admitted.
    Queued(Arc<QueuedClaim>),
    /// A watched item has no units any more, or has some again.
    Stock { item: ItemId, sold_out: bool },
    /// Something may have been missed.
    Missed,
}

/// Why a stream is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// The server stops.
    Closing,
    /// Its listener does not keep up.
    Slow,
}

/// What waits for one listener. A stream that nobody has anything to tell takes no room for it.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Event>,
    over: Option<Over>,
}

struct Stream {
    id: u64,
    queue: Mutex<Queue>,
    /// There is something in the queue.
    filled: Notify,
}

impl Stream {
    /// Nobody waits for a listener: one who does not keep up is let go.
    fn offer(&self, event: Event, queue_max: usize) {
        let mut queue = self.queue.lock();
        if queue.over.is_some() {
            return;
        }
        if queue.waiting.len() < queue_max {
            queue.waiting.push_back(event);
        } else {
            queue.over = Some(Over::Slow);
            metrics::counter!(DROPPED, "reason" => "slow").increment(1);
        }
        drop(queue);
        self.filled.notify_one();
    }

    fn end(&self, over: Over) {
        self.queue.lock().over.get_or_insert(over);
        self.filled.notify_one();
    }
}

/// An item that somebody watches.
#[derive(Default)]
struct Watched {
    /// Nothing is left of it, as last told; unknown until the gate has it.
    sold_out: Option<bool>,
    streams: HashMap<u64, Arc<Stream>>,
}

pub(super) struct Hub {
    options: PushOptions,
    open: AtomicUsize,
    last_id: AtomicU64,
    closing: AtomicBool,
    listeners: Mutex<HashMap<UserId, Vec<Arc<Stream>>>>,
    watched: Mutex<HashMap<ItemId, Watched>>,
    /// Claims are brought here only while somebody listens.
    admitted: Arc<AdmittedClaims>,
}

impl Hub {
    pub(super) fn new(options: PushOptions, admitted: Arc<AdmittedClaims>) -> Arc<Hub> {
        Arc::new(Hub {
            options,
            open: AtomicUsize::new(0),
            last_id: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            listeners: Mutex::default(),
            watched: Mutex::default(),
            admitted,
        })
    }

    pub(super) fn streams(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    pub(super) fn listen(self: &Arc<Self>, user: &UserId) -> Result<Listener, FollowError> {
        let mut listeners = self.listeners.lock();
        // Under the lock, so that nobody comes in behind `close`.
        if self.closing.load(Ordering::Acquire) {
            return Err(FollowError::Closing);
        }
        let of_user = listeners.get(user).map_or(0, Vec::len);
        if self.streams() >= self.options.streams_max
            || of_user >= self.options.streams_per_user_max
        {
            return Err(TooMany.into());
        }
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(Stream { id, queue: Mutex::default(), filled: Notify::new() });
        listeners.entry(user.clone()).or_default().push(stream.clone());
        self.open.fetch_add(1, Ordering::AcqRel);
        self.admitted.somebody_listens(true);
        let (user, hub) = (user.clone(), Arc::downgrade(self));
        Ok(Listener { stream, user, hub, watches: Vec::new() })
    }

    pub(super) fn close(&self) {
        let listeners = self.listeners.lock();
        self.closing.store(true, Ordering::Release);
        listeners.values().flatten().for_each(|stream| stream.end(Over::Closing));
    }

    pub(super) fn tell(&self, orders: &[OrderEvent]) {
        self.tell_each(orders.iter().map(|(order_no, user)| (user, Event::Order(*order_no))));
    }

    pub(super) fn tell_queued(&self, claims: &[QueuedClaim]) {
        let event = |queued: &QueuedClaim| Event::Queued(Arc::new(queued.clone()));
        self.tell_each(claims.iter().map(|queued| (&queued.claim.user, event(queued))));
    }

    fn tell_each<'u>(&self, events: impl Iterator<Item = (&'u UserId, Event)>) {
        let listeners = self.listeners.lock();
        if listeners.is_empty() {
            return;
        }
        for (user, event) in events {
            for stream in listeners.get(user).into_iter().flatten() {
                stream.offer(event.clone(), self.options.queue_max);
            }
        }
    }

    pub(super) fn missed_hints(&self) {
        let listeners = self.listeners.lock();
        for stream in listeners.values().flatten() {
            stream.offer(Event::Missed, self.options.queue_max);
        }
    }

    /// Compares what is left of the watched items with what was told last.
    pub(super) fn look_at_stock(&self, left: impl Fn(ItemId) -> Option<i64>) {
        for (item, watched) in self.watched.lock().iter_mut() {
            // What the gate does not have at the moment stays as it was.
            let Some(sold_out) = left(*item).map(|left| left <= 0) else { continue };
            if watched.sold_out.replace(sold_out) == Some(sold_out) {
                continue;
            }
            for stream in watched.streams.values() {
                stream.offer(Event::Stock { item: *item, sold_out }, self.options.queue_max);
            }
        }
    }

    fn forget(&self, listener: &mut Listener) {
        self.unwatch(listener);
        let mut listeners = self.listeners.lock();
        if let Some(streams) = listeners.get_mut(&listener.user) {
            streams.retain(|stream| stream.id != listener.stream.id);
            if streams.is_empty() {
                listeners.remove(&listener.user);
            }
        }
        let before = self.open.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "more streams ended than began");
        if listeners.is_empty() {
            self.admitted.somebody_listens(false);
        }
    }

    fn unwatch(&self, listener: &mut Listener) {
        if listener.watches.is_empty() {
            return;
        }
        let mut watched = self.watched.lock();
        for item in listener.watches.drain(..) {
            if let Some(entry) = watched.get_mut(&item) {
                entry.streams.remove(&listener.stream.id);
                if entry.streams.is_empty() {
                    watched.remove(&item);
                }
            }
        }
    }
}

/// One open stream. Dropping it stops listening.
pub(super) struct Listener {
    stream: Arc<Stream>,
    user: UserId,
    hub: Weak<Hub>,
    watches: Vec<ItemId>,
}

impl Listener {
    /// The next event. May be dropped while it waits, and nothing is lost by that.
    pub(super) async fn next(&mut self) -> Result<Event, Over> {
        loop {
            {
                let mut queue = self.stream.queue.lock();
                if let Some(over) = queue.over {
                    return Err(over);
                }
                if let Some(event) = queue.waiting.pop_front() {
                    return Ok(event);
                }
            }
            self.stream.filled.notified().await;
        }
    }

    /// Watches these items and no others. Answers what is known of each now.
    pub(super) fn watch(
        &mut self,
        items: Vec<ItemId>,
        left: impl Fn(ItemId) -> Option<i64>,
    ) -> Vec<(ItemId, bool)> {
        let Some(hub) = self.hub.upgrade() else { return Vec::new() };
        hub.unwatch(self);
        let mut watched = hub.watched.lock();
        let mut known = Vec::new();
        for item in &items {
            let entry = watched.entry(*item).or_default();
            entry.streams.insert(self.stream.id, self.stream.clone());
            // Whoever watches it already hears of a change when the stock is next looked at.
            let sold_out = entry.sold_out.or_else(|| left(*item).map(|left| left <= 0));
            entry.sold_out = sold_out;
            known.extend(sold_out.map(|sold_out| (*item, sold_out)));
        }
        self.watches = items;
        known
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            hub.forget(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn no(n: u64) -> OrderNo {
        OrderNo::from_u64(n).unwrap()
    }

    fn hub(streams_max: usize, streams_per_user_max: usize, queue_max: usize) -> Arc<Hub> {
        let options =
            PushOptions { streams_max, streams_per_user_max, queue_max, ..PushOptions::default() };
        Hub::new(options, Arc::new(AdmittedClaims::new(false)))
    }

    #[tokio::test]
    async fn buyers_hear_of_their_own_orders_and_are_counted() {
        let hub = hub(3, 2, 1);
        let (ann, bob): (UserId, UserId) = ("ann".parse().unwrap(), "bob".parse().unwrap());
        let mut first = hub.listen(&ann).unwrap();
        let second = hub.listen(&ann).unwrap();
        assert!(hub.listen(&ann).is_err(), "two streams per buyer");
        let mut bobs = hub.listen(&bob).unwrap();
        assert!(hub.listen(&"eve".parse().unwrap()).is_err(), "three streams in all");
        hub.tell(&[(no(1), ann.clone()), (no(2), bob.clone())]);
        assert_eq!(first.next().await, Ok(Event::Order(no(1))));
        assert_eq!(bobs.next().await, Ok(Event::Order(no(2))));
        drop(second);
        assert_eq!(hub.streams(), 2);
        // A listener that does not read is let go.
        hub.tell(&[(no(3), ann.clone()), (no(4), ann.clone())]);
        assert_eq!(first.next().await, Err(Over::Slow));
        drop((first, bobs));
        assert_eq!(hub.streams(), 0);
        assert!(hub.listeners.lock().is_empty());
    }

    #[tokio::test]
    async fn a_hub_that_closes_says_so_and_lets_nobody_in() {
        let hub = hub(3, 2, 1);
        let ann: UserId = "ann".parse().unwrap();
        let mut listener = hub.listen(&ann).unwrap();
        hub.close();
        assert_eq!(listener.next().await, Err(Over::Closing));
        assert!(matches!(hub.listen(&ann), Err(FollowError::Closing)));
    }

    /// All that has been heard by now.
    fn heard(listener: &mut Listener) -> Vec<Event> {
        std::iter::from_fn(|| listener.next().now_or_never()?.ok()).collect()
    }

    #[tokio::test]
    async fn a_change_of_stock_is_told_once_to_those_who_watch() {
        let hub = hub(9, 9, 9);
        let (here, gone, other) = (ItemId(1), ItemId(2), ItemId(3));
        let left = |item: ItemId| (item != gone).then_some(5);
        let mut ann = hub.listen(&"ann".parse().unwrap()).unwrap();
        let mut bob = hub.listen(&"bob".parse().unwrap()).unwrap();
        assert_eq!(ann.watch(vec![here, gone], left), [(here, false)], "of one nobody knows");
        assert_eq!(bob.watch(vec![other], left), [(other, false)]);
        hub.look_at_stock(left);
        assert_eq!(heard(&mut ann), []);
        let stock = |item, sold_out| Event::Stock { item, sold_out };
        for _ in 0..2 {
            hub.look_at_stock(|item| Some(if item == here { 0 } else { 5 }));
        }
        let told = heard(&mut ann);
        assert!(
            told.contains(&stock(here, true)) && told.contains(&stock(gone, false)),
            "{told:?}"
        );
        assert_eq!(told.len(), 2);
        assert_eq!(bob.watch(vec![here, gone], left), [(here, true), (gone, false)]);
        hub.look_at_stock(left);
        assert_eq!(heard(&mut ann), [stock(here, false)]);
        assert_eq!(heard(&mut bob), [stock(here, false)]);
        drop((ann, bob));
        assert!(hub.watched.lock().is_empty());
    }
}

//! Push: events of orders and of watched items to the buyers who listen.
//!
//! An event is a hint, not a promise: it says *look again*, and the listener is told what the ledger says
//! then. So events may be dropped, and a lost one costs a buyer a poll, never the truth. The parts:
//!
//! - the [`hub`] knows who listens at this instance, and puts events into their bounded queues;
//! - a [`Feed`] is one listener: it turns events into what is true, which SSE and WebSocket write down;
//! - [`admitted`] brings claims from the lanes to the hub, with their place on the log;
//! - [`stock`] looks at the items that somebody watches.
//!
//! **The life of an event.** A transaction that changes an order puts an outbox row beside it. The `news`
//! job of one instance takes it, tells its own hub and, over the coordination, those of all others; each
//! puts the number into the queues of that buyer's streams, and the feed reads the order. If the job dies
//! the row is told again; if a hint is lost on the way, nobody hears of it, and:
//!
//! **Coming back.** Every event carries an id, and the id says when its stream last read *all* orders of its
//! buyer. Whoever comes back with it, here or at another instance, is told the present state of every order
//! that may have changed since then ([`EventId`]). That needs no memory of what was sent to whom, and is
//! right whatever was lost in between. An instance that has missed hints itself lets its streams do the same.

mod admitted;
mod feed;
mod hub;
mod stock;

use std::sync::Arc;

use sale::{ItemId, OrderNo, UserId};

use crate::{
    Catalogue, StoreError, coordination::Hint, last_known::LastKnown, order_lookup::OrderLookup,
    shared::Shared,
};

pub(crate) use admitted::AdmittedClaims;
pub use admitted::QueuedClaim;
pub use feed::{EventId, Feed, FeedEnd, News};
pub use hub::TooMany;

use hub::Hub;

/// Items that one stream may watch.
pub const WATCHED_ITEMS_MAX: usize = 50;

/// An order changed, and this is its buyer.
pub(crate) type OrderEvent = (OrderNo, UserId);

/// Why nobody can listen now.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error(transparent)]
    TooMany(#[from] TooMany),
    #[error("the server is stopping")]
    Closing,
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub struct Push {
    shared: Arc<Shared>,
    orders: Arc<OrderLookup>,
    catalogue: Arc<Catalogue>,
    last_known: Arc<LastKnown>,
    hub: Arc<Hub>,
}

impl Push {
    pub(crate) fn new(
        shared: Arc<Shared>,
        orders: Arc<OrderLookup>,
        catalogue: Arc<Catalogue>,
        last_known: Arc<LastKnown>,
    ) -> Push {
        let hub = Hub::new(shared.settings.push.clone(), shared.admitted.clone());
        Push { shared, orders, catalogue, last_known, hub }
    }

    /// Opens a stream of what happens to this buyer's orders and to these items. It begins with what is
    /// true now, and with what changed since the last event that the buyer has seen.
    pub async fn follow(
        self: &Arc<Self>,
        user: &UserId,
        last: Option<EventId>,
        items: &[ItemId],
    ) -> Result<Feed, FollowError> {
        // It listens before it reads, so that nothing falls in between.
        let listener = self.hub.listen(user)?;
        let mut feed = Feed::new(self.clone(), user.clone(), listener);
        feed.begin(last).await?;
        feed.watch(items).await;
        Ok(feed)
    }

    /// Streams that are open.
    pub fn streams(&self) -> usize {
        self.hub.streams()
    }

    /// Ends every stream, and lets nobody open another.
    pub fn close(&self) {
        self.hub.close();
    }

    /// Lets the buyers know who listen at this instance.
    pub fn tell(&self, orders: &[OrderEvent]) {
        self.last_known.forget(orders.iter().map(|(no, _)| *no));
        self.hub.tell(orders);
    }

    /// Lets buyers know, here and at the other instances.
    pub(crate) async fn tell_all(&self, orders: &[OrderEvent]) {
        if self.shared.is_cluster() {
            self.shared.coordination.tell(&Hint::Orders { orders: orders.to_vec() }).await;
        }
        self.tell(orders);
    }

    /// Lets the buyers of these claims know who listen at this instance.
    pub(crate) fn tell_queued(&self, claims: &[QueuedClaim]) {
        self.hub.tell_queued(claims);
    }

    /// Hints may have been lost: whoever listens reads again.
    pub(crate) fn missed_hints(&self) {
        self.hub.missed_hints();
    }

    /// Passes on what the lanes admit, until it is cut off.
    pub(crate) async fn pass_on_admitted(self: Arc<Self>) {
        admitted::pass_on(&self).await;
    }

    /// Looks at the items that somebody watches, until it is cut off.
    pub(crate) async fn watch_stock(self: Arc<Self>) {
        stock::watch(&self.hub, &*self.shared.gate).await;
    }
}

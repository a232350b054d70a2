//! A feed: what one listener is told, in the order in which it became true.
//!
//! An event from the hub names an order; the feed reads it and tells what the ledger says then. So however
//! often and however late it is told, nobody hears something that was overtaken. Of an order that is told
//! twice in the same status the second time is left out, and a claim that is heard of as admitted after it
//! was seen as an order is not called queued any more.
//!
//! While a claim is queued, its place on the log is looked at every second. That asks nobody: the gate knows
//! how long the log is. What stands before a claim is never more than when it was admitted, nor more than
//! there is; so its place only falls. Because a hint may be lost, the claim itself is read now and then.

use std::{collections::VecDeque, fmt, str::FromStr, sync::Arc, time::Duration};

use sale::{ItemId, Millis, OrderNo, OrderStatus, UserId};
use tokio::time::Instant;

use super::{
    Push, WATCHED_ITEMS_MAX,
    admitted::QueuedClaim,
    hub::{Event, Listener, Over},
};
use crate::{OrderView, StoreError};

/// A buyer's newest orders that are looked through at the beginning, and when a buyer comes back.
const BEGIN_ORDERS_MAX: usize = 50;
const RETURN_ORDERS_MAX: usize = 200;
/// What was written longer than this before the last reading is surely in it: clocks of two instances may
/// differ, and a transaction carries the time at which it began.
const OVERLAP_MS: Millis = 300_000;
/// Claims of one buyer whose place is followed; of further ones the changes are told.
const QUEUED_MAX: usize = 16;
/// Orders of which it is remembered what was told.
const TOLD_MAX: usize = 32;
const PLACE_EVERY: Duration = Duration::from_secs(1);
const READ_QUEUED_EVERY: Duration = Duration::from_secs(10);
/// After hints were missed, the listeners of an instance read again within this time, not all at once.
const REREAD_WITHIN: Duration = Duration::from_secs(5);

/// Where a stream stands. It says when the stream last read all orders of its buyer, and numbers its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventId {
    read_ms: Millis,
    n: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.read_ms, self.n)
    }
}

/// Whoever shows an id that cannot be read has seen something, some time.
impl FromStr for EventId {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<EventId, Self::Err> {
        let (read_ms, n) = text.split_once('-').unwrap_or((text, ""));
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let read_ms = if plain(read_ms) { read_ms.parse().unwrap_or(0) } else { 0 };
        Ok(EventId { read_ms, n: n.parse().unwrap_or(0) })
    }
}

/// What a listener is told.
#[derive(Clone, Debug)]
pub enum News {
    /// An order as it is now; with its place on the log while it is queued.
    Order { view: OrderView, position: Option<u64> },
    /// A watched item has no units, or has some.
    Stock { item: ItemId, sold_out: bool },
    /// The buyer has more orders than are looked through: the list knows of them all.
    LookAgain,
}

/// Why nothing more is told.
#[derive(Debug, thiserror::Error)]
pub enum FeedEnd {
    #[error("the server is stopping")]
    Closing,
    #[error("the listener does not keep up")]
    Slow,
    #[error("an order cannot be read now: {0}")]
    Unreadable(StoreError),
}

/// A claim that is no order yet, and the place that was told last.
struct Waiting {
    order_no: OrderNo,
    view: OrderView,
    /// Unknown of one that is not on the log: it failed, and nobody knows when its time will come.
    position: Option<u64>,
}

pub struct Feed {
    push: Arc<Push>,
    user: UserId,
    listener: Listener,
    id: EventId,
    /// To be told before anything else is looked at.
    ready: VecDeque<News>,
    /// Orders that have to be read. One stays here until it was.
    reads: VecDeque<OrderNo>,
    queued: Vec<Waiting>,
    told: VecDeque<(OrderNo, OrderStatus)>,
    place_at: Instant,
    read_queued_at: Instant,
    reread_at: Option<Instant>,
}

impl Feed {
    pub(super) fn new(push: Arc<Push>, user: UserId, listener: Listener) -> Feed {
        let now = Instant::now();
        Feed {
            push,
            user,
            listener,
            id: EventId { read_ms: 0, n: 0 },
            ready: VecDeque::new(),
            reads: VecDeque::new(),
            queued: Vec::new(),
            told: VecDeque::new(),
            place_at: now,
            read_queued_at: now,
            reread_at: None,
        }
    }

    /// The id of what was told last.
    pub fn id(&self) -> EventId {
        self.id
    }

    /// Reads all orders of the buyer that may change, and those that may have changed since `last`.
    pub(super) async fn begin(&mut self, last: Option<EventId>) -> Result<(), StoreError> {
        let read_ms = self.push.shared.now_ms();
        let rows = if last.is_some() { RETURN_ORDERS_MAX } else { BEGIN_ORDERS_MAX };
        let views = self.push.orders.of_buyer(&self.user, None, rows).await?;
        let may_be_more = last.is_some() && views.len() == rows;
        for view in views {
            if may_change(view.status()) || last.is_some_and(|last| changed_since(&view, last)) {
                let news = self.tell_order(view);
                self.ready.extend(news);
            }
        }
        if may_be_more {
            self.ready.push_back(News::LookAgain);
        }
        // A clock that was set back must not make the next reading forget what this one has seen.
        self.id.read_ms = read_ms;
        Ok(())
    }

    /// Watches these items and no others; those that nobody has heard of are passed over.
    pub async fn watch(&mut self, items: &[ItemId]) {
        let mut known = Vec::new();
        for item in items.iter().take(WATCHED_ITEMS_MAX) {
            let shown = self.push.catalogue.item(*item).await;
            if shown.is_ok_and(|shown| shown.is_some()) && !known.contains(item) {
                known.push(*item);
            }
        }
        let gate = &self.push.shared.gate;
        let told = self.listener.watch(known, |item| gate.left(item));
        let news = told.into_iter().map(|(item, sold_out)| News::Stock { item, sold_out });
        self.ready.extend(news);
    }

    /// The next thing to tell. May be dropped while it waits, and nothing is lost by that.
    pub async fn next(&mut self) -> Result<News, FeedEnd> {
        loop {
            if let Some(news) = self.ready.pop_front() {
                self.id.n += 1;
                return Ok(news);
            }
            if let Some(no) = self.reads.front().copied() {
                // In a box, because a listener waits far longer than it reads, and there are many.
                let read = Box::pin(self.push.orders.order(no, Some(&self.user))).await;
                self.reads.pop_front();
                let view = read.map_err(FeedEnd::Unreadable)?;
                if let Some(view) = view.filter(|view| *view.user() == self.user) {
                    let news = self.tell_order(view);
                    self.ready.extend(news);
                }
                continue;
            }
            let wakes_at = self.wakes_at();
            let sleep = tokio::time::sleep_until(wakes_at.unwrap_or_else(Instant::now));
            tokio::select! {
                biased;
                event = self.listener.next() => self.hear(event.map_err(FeedEnd::from)?),
                () = sleep, if wakes_at.is_some() => self.look().await?,
            }
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Order(no) => self.reads.push_back(no),
            Event::Queued(queued) => {
                let news = self.tell_admitted(&queued);
                self.ready.extend(news);
            }
            Event::Stock { item, sold_out } => {
                self.ready.push_back(News::Stock { item, sold_out });
            }
            Event::Missed => {
                let within_ms = REREAD_WITHIN.as_millis() as u64;
                let after = Duration::from_millis(some_number() % within_ms);
                self.reread_at.get_or_insert(Instant::now() + after);
            }
        }
    }

    fn wakes_at(&self) -> Option<Instant> {
        let place_at = (!self.queued.is_empty()).then_some(self.place_at);
        [place_at, self.reread_at].into_iter().flatten().min()
    }

    async fn look(&mut self) -> Result<(), FeedEnd> {
        let now = Instant::now();
        if self.reread_at.is_some_and(|at| at <= now) {
            let id = self.id;
            Box::pin(self.begin(Some(id))).await.map_err(FeedEnd::Unreadable)?;
            self.reread_at = None;
        }
        if self.place_at <= now {
            self.place_at = now + PLACE_EVERY;
            self.look_at_places();
        }
        if self.read_queued_at <= now {
            self.read_queued_at = now + READ_QUEUED_EVERY;
            self.reads.extend(self.queued.iter().map(|waiting| waiting.order_no));
        }
        Ok(())
    }

    fn look_at_places(&mut self) {
        // An empty log has no places: whoever still waits is about to hear more, or has failed.
        let Some(backlog) = self.push.orders.backlog() else { return };
        for waiting in &mut self.queued {
            if waiting.position.is_some_and(|position| position > backlog) {
                waiting.position = Some(backlog);
                let (view, position) = (waiting.view.clone(), waiting.position);
                self.ready.push_back(News::Order { view, position });
            }
        }
    }

    fn tell_admitted(&mut self, queued: &QueuedClaim) -> Option<News> {
        let QueuedClaim { claim, position } = queued;
        if self.told.iter().any(|(no, _)| *no == claim.order_no) {
            return None;
        }
        self.tell_queued(OrderView::Queued(claim.clone()), Some(*position))
    }

    /// `None` if it was told before.
    fn tell_order(&mut self, view: OrderView) -> Option<News> {
        let (no, status) = (view.order_no(), view.status());
        if status == OrderStatus::Queued {
            if self.queued.iter().any(|waiting| waiting.order_no == no) {
                return None;
            }
            let backlog = self.push.orders.backlog();
            return self.tell_queued(view, backlog);
        }
        self.queued.retain(|waiting| waiting.order_no != no);
        self.note_told(no, status).then_some(News::Order { view, position: None })
    }

    fn tell_queued(&mut self, view: OrderView, position: Option<u64>) -> Option<News> {
        let order_no = view.order_no();
        if !self.note_told(order_no, OrderStatus::Queued) {
            return None;
        }
        if self.queued.len() < QUEUED_MAX {
            if self.queued.is_empty() {
                let now = Instant::now();
                (self.place_at, self.read_queued_at) = (now + PLACE_EVERY, now + READ_QUEUED_EVERY);
            }
            self.queued.push(Waiting { order_no, view: view.clone(), position });
        }
        Some(News::Order { view, position })
    }

    /// False if just that was told last of this order.
    fn note_told(&mut self, no: OrderNo, status: OrderStatus) -> bool {
        if let Some(at) = self.told.iter().position(|(told, _)| *told == no)
            && self.told.remove(at) == Some((no, status))
        {
            self.told.push_back((no, status));
            return false;
        }
        if self.told.len() >= TOLD_MAX {
            self.told.pop_front();
        }
        self.told.push_back((no, status));
        true
    }
}

impl From<Over> for FeedEnd {
    fn from(over: Over) -> FeedEnd {
        match over {
            Over::Closing => FeedEnd::Closing,
            Over::Slow => FeedEnd::Slow,
        }
    }
}

fn may_change(status: OrderStatus) -> bool {
    status.is_live() || status == OrderStatus::Refunding
}

/// Of an order that changes no more: may it have changed since that reading? When money was given back the
/// order does not say, so those are always told again.
fn changed_since(view: &OrderView, last: EventId) -> bool {
    match view {
        OrderView::Known(order) | OrderView::LastKnown(order, _) => {
            order.status == OrderStatus::Refunded
                || order.closed_ms.unwrap_or(order.created_ms) >= last.read_ms - OVERLAP_MS
        }
        OrderView::Queued(_) | OrderView::LastQueued(_) => true,
    }
}

/// Any number; only so that not all do the same at the same time.
fn some_number() -> u64 {
    getrandom::u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use sale::{Claim, CloseReason};

    use super::*;
    use crate::{
        FollowError,
        test_engine::{TestEngine, one_unit},
    };

    fn order_of(news: Result<News, FeedEnd>) -> (OrderNo, OrderStatus, Option<u64>) {
        match news {
            Ok(News::Order { view, position }) => (view.order_no(), view.status(), position),
            other => panic!("{other:?}"),
        }
    }

    /// As a lane tells of it.
    fn queued(order_no: OrderNo, item: ItemId) -> QueuedClaim {
        let (user, claimed_ms) = ("ann".parse().unwrap(), order_no.made_ms());
        let claim = Claim { order_no, item, user, quantity: 1, epoch: 1, claimed_ms, key: None };
        QueuedClaim { claim, position: 7 }
    }

    async fn follow(shop: &TestEngine, last: Option<EventId>) -> Feed {
        shop.engine.push().follow(&"ann".parse().unwrap(), last, &[]).await.unwrap()
    }

    fn nothing_more(feed: &mut Feed) -> bool {
        futures_util::FutureExt::now_or_never(feed.next()).is_none()
    }

    #[test]
    fn an_id_is_read_back_and_anything_else_is_long_ago() {
        let id = EventId { read_ms: 1_794_355_200_000, n: 17 };
        assert_eq!(id.to_string().parse(), Ok(id));
        for strange in ["", "-", "x", "-5-1", "99999999999999999999", "５-1", "+5"] {
            assert_eq!(strange.parse::<EventId>().unwrap().read_ms, 0, "{strange}");
        }
    }

    #[tokio::test]
    async fn whoever_comes_back_hears_what_changed_meanwhile() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let ann: UserId = "ann".parse().unwrap();
        let no = shop.buy(activity.items[0].id, "ann").await;
        let ledger = &shop.engine.shared.ledger;
        let mut feed = follow(&shop, None).await;
        assert_eq!(order_of(feed.next().await), (no, OrderStatus::Unpaid, None));
        let last = feed.id();
        drop(feed);
        // It is closed while nobody listens, and nobody tells of it.
        let closed = ledger.close(&[no.into()], CloseReason::Cancelled, shop.engine.now_ms()).await;
        assert_eq!(closed.unwrap(), [no]);
        assert!(nothing_more(&mut follow(&shop, None).await), "what is over is not told to all");
        let mut feed = follow(&shop, Some(last)).await;
        assert_eq!(order_of(feed.next().await), (no, OrderStatus::Closed, None));
        assert!(nothing_more(&mut feed));
        shop.engine.push().tell(&[(no, ann.clone()), (no, ann)]);
        tokio::task::yield_now().await;
        assert!(nothing_more(&mut feed), "told before");
        // Long after, it is history.
        shop.clock.set(shop.engine.now_ms() + 2 * OVERLAP_MS);
        let last = Some(follow(&shop, None).await.id());
        assert!(nothing_more(&mut follow(&shop, last).await));
    }

    #[tokio::test]
    async fn a_claim_is_queued_and_then_an_order_in_whatever_order_it_is_heard_of() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let ann: UserId = "ann".parse().unwrap();
        let mut feed = follow(&shop, None).await;
        let no = shop.buy(activity.items[0].id, "ann").await;
        let queued = [queued(no, activity.items[0].id)];
        let push = shop.engine.push();
        push.tell_queued(&queued);
        assert_eq!(order_of(feed.next().await), (no, OrderStatus::Queued, Some(7)));
        push.tell(&[(no, ann)]);
        assert_eq!(order_of(feed.next().await), (no, OrderStatus::Unpaid, None));
        push.tell_queued(&queued);
        assert!(nothing_more(&mut feed), "it is an order by now");
    }

    #[tokio::test]
    async fn a_place_falls_and_a_lost_hint_is_made_up_for() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let (engine, item) = (&shop.engine, activity.items[0].id);
        let mut feed = follow(&shop, None).await;
        let no = shop.buy(item, "ann").await;
        engine.shared.workers.as_ref().unwrap().stop().await;
        let waits = engine.claims.claim(one_unit(item, "bob")).await;
        assert!(matches!(waits, gate::Decision::Admitted { .. }), "{waits:?}");
        shop.engine.push().tell_queued(&[queued(no, activity.items[0].id)]);
        assert_eq!(order_of(feed.next().await), (no, OrderStatus::Queued, Some(7)));
        // There is one on the log, and nobody tells that ours has become an order.
        feed.place_at = Instant::now();
        assert_eq!(order_of(feed.next().await), (no, OrderStatus::Queued, Some(1)));
        (feed.place_at, feed.read_queued_at) = (Instant::now(), Instant::now());
        assert_eq!(order_of(feed.next().await), (no, OrderStatus::Unpaid, None));
    }

    #[tokio::test]
    async fn an_instance_that_missed_hints_reads_again() {
        let (shop, activity) = TestEngine::with_a_sale(|_| {}).await;
        let no = shop.buy(activity.items[0].id, "ann").await;
        let mut feed = follow(&shop, None).await;
        assert_eq!(order_of(feed.next().await), (no, OrderStatus::Unpaid, None));
        let (ledger, now_ms) = (&shop.engine.shared.ledger, shop.engine.now_ms());
        ledger.close(&[no.into()], CloseReason::Cancelled, now_ms).await.unwrap();
        shop.engine.push().missed_hints();
        assert!(nothing_more(&mut feed), "not all at once");
        assert!(feed.reread_at.is_some_and(|at| at <= Instant::now() + REREAD_WITHIN));
        feed.reread_at = Some(Instant::now());
        assert_eq!(order_of(feed.next().await), (no, OrderStatus::Closed, None));
        assert!(feed.reread_at.is_none());
    }

    #[tokio::test]
    async fn a_stopping_server_is_told_from_a_slow_listener() {
        let (shop, _) = TestEngine::with_a_sale(|settings| settings.push.queue_max = 1).await;
        let push = shop.engine.push();
        let mut slow = follow(&shop, None).await;
        push.missed_hints();
        push.missed_hints();
        assert!(matches!(slow.next().await, Err(FeedEnd::Slow)));
        let mut feed = follow(&shop, None).await;
        push.close();
        assert!(matches!(feed.next().await, Err(FeedEnd::Closing)));
        let refused = push.follow(&"bob".parse().unwrap(), None, &[]).await;
        assert!(matches!(refused, Err(FollowError::Closing)));
    }
}

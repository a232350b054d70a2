//! The event stream: news of a buyer's orders, as server-sent events.
//!
//! The stream begins with what is true now (one event per order that may still change) and then
//! tells of each change. It listens before it reads, so that nothing falls in between. Should it
//! ever have to skip something it ends instead, and the buyer who comes back reads everything anew.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::{
    extract::State,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::stream::{self, Stream};
use sale::{OrderStatus, UserId};

use super::{Shared, order::OrderJson, orders::own, schemas};
use crate::{
    access::Buyer,
    problem::{Code, Problem},
};
use engine::{Listener, OrderView};

/// Proxies close what is silent for long; most wait a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How many of a buyer's newest orders are looked through at the beginning.
const RECENT_MAX: usize = 50;
/// A buyer over the cap should poll; this is when it is worth asking again.
const RETRY_AFTER_MS: u64 = 30_000;

/// News of the buyer's orders: events named `order`, each with the order as its data.
#[utoipa::path(get, path = "/events", tag = "buyer", security(("buyer" = [])),
    responses(
        (status = OK, description = "Events named `order`", body = inline(schemas::OrderEvent),
            content_type = "text/event-stream"),
        (status = TOO_MANY_REQUESTS, description = "`rate_limited`: too many streams are open")))]
pub(super) async fn listen(
    State(app): State<Shared>,
    Buyer(user): Buyer,
) -> Result<Response, Problem> {
    let listener = app.engine.push().listen(&user).map_err(|error| {
        Problem::new(Code::RateLimited).retry_after_ms(RETRY_AFTER_MS).inside(error)
    })?;
    let mut first = VecDeque::new();
    for view in app.engine.orders().of_buyer(&user, None, RECENT_MAX).await? {
        if may_change(view.status()) {
            first.push_back(OrderJson::of(&app.engine, view).await?);
        }
    }
    let stream = OrderStream { app, user, listener, first };
    let answer = Sse::new(stream.into_events()).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // Without the first nginx gathers events until a buffer is full; axum would allow storing them.
    let headers = [("x-accel-buffering", "no"), ("cache-control", "no-store")];
    Ok((headers, answer).into_response())
}

fn may_change(status: OrderStatus) -> bool {
    status.is_live() || status == OrderStatus::Refunding
}

struct OrderStream {
    app: Shared,
    user: UserId,
    listener: Listener,
    first: VecDeque<OrderJson>,
}

impl OrderStream {
    fn into_events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut orders| async move {
            let order = orders.next().await?;
            let event = Event::default().event("order").json_data(&order).ok()?;
            Some((Ok(event), orders))
        })
    }

    /// `None` ends the stream: the server stops, this listener was too slow, or the order cannot be
    /// read now.
    async fn next(&mut self) -> Option<OrderJson> {
        if let Some(order) = self.first.pop_front() {
            return Some(order);
        }
        loop {
            let no = self.listener.next().await?;
            match self.read(no).await {
                Ok(order) => return Some(order),
                Err(problem) if problem.code() == Code::NotFound => {}
                Err(_) => return None,
            }
        }
    }

    async fn read(&self, no: sale::OrderNo) -> Result<OrderJson, Problem> {
        let view: OrderView = own(&self.app.engine, no, &self.user).await?;
        OrderJson::of(&self.app.engine, view).await
    }
}

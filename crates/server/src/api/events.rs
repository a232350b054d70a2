//! The event stream: news of a buyer's orders and watched items, as server-sent events.
//!
//! The stream begins with what is true now (one event per order that may still change) and then tells of
//! each change. Should it ever have to skip something it ends instead, and the buyer who comes back with the
//! id of the last event hears what happened meanwhile.

use std::{convert::Infallible, time::Duration};

use axum::{
    extract::State,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event as SseEvent, KeepAlive},
    },
};
use engine::Feed;
use futures_util::stream::{self, Stream};

use super::{
    Shared,
    news::{Event, Listener, Listening},
    schemas,
};
use crate::problem::Problem;

/// News of the buyer's orders and of watched items.
///
/// Events named `order` have the order as their data. `sold_out` and `back_in_stock` name a watched item;
/// one of them is told of each at the beginning. `look_again` says that there is more than is told: read
/// the list of orders.
#[utoipa::path(get, path = "/events", tag = "buyer", security(("buyer" = [])),
    params(Listening,
        ("Last-Event-ID" = inline(Option<schemas::LastEventId>), Header,
            description = "As `last_event_id`; a browser that connects again sends it by itself")),
    responses(
        (status = OK, description = "Events", body = inline(schemas::ServerSentEvent),
            content_type = "text/event-stream"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`: too many `items`, or none at all"),
        (status = TOO_MANY_REQUESTS, description = "`rate_limited`: too many streams are open"),
        (status = SERVICE_UNAVAILABLE, description = "`busy`: the orders cannot be read now")))]
pub(super) async fn listen(
    State(app): State<Shared>,
    listener: Listener,
) -> Result<Response, Problem> {
    let feed = listener.follow(&app).await?;
    // Proxies close what is silent for long; most wait a minute.
    let heartbeat = Duration::from_millis(app.config.push.heartbeat_ms);
    let answer = Sse::new(into_events(app, feed)).keep_alive(KeepAlive::new().interval(heartbeat));
    // Without the first nginx gathers events until a buffer is full; axum would allow storing them.
    let headers = [("x-accel-buffering", "no"), ("cache-control", "no-store")];
    Ok((headers, answer).into_response())
}

/// It ends when the server stops, this listener was too slow, or an order cannot be read now.
fn into_events(app: Shared, feed: Feed) -> impl Stream<Item = Result<SseEvent, Infallible>> {
    stream::unfold((app, feed), |(app, mut feed)| async move {
        let news = feed.next().await.ok()?;
        let Event { id, name, data } = Event::of(&app, feed.id(), news).await?;
        Some((Ok(SseEvent::default().event(name).data(data).id(id.to_string())), (app, feed)))
    })
}

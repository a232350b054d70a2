//! What listeners are told, the same over SSE and WebSocket, and who may listen.
//!
//! Browsers send no `Authorization` with an `EventSource` or a `WebSocket`, and a login does not belong into
//! an address. So a buyer is known by the JWT in the header, or by a ticket got for it a moment before.

use axum::extract::{FromRequestParts, State};
use engine::{EventId, Feed, FollowError, News, WATCHED_ITEMS_MAX};
use http::{HeaderValue, request::Parts};
use sale::{EventTicket, ItemId, Millis, UserId};
use serde::Deserialize;
use serde_json::json;

use super::{Shared, dev_login::Token, order::OrderJson, schemas};
use crate::{
    access::{AccessRefusal, Buyer, note},
    extract::{Json, Query, is_plain_number},
    problem::{Code, Problem},
};

/// A page asks for a ticket and opens the stream at once.
const TICKET_TTL_MS: Millis = 60_000;
/// A buyer over the cap should poll; this is when it is worth asking again.
const RETRY_AFTER_MS: u64 = 30_000;
/// The header in which a browser's `EventSource` says what it has seen.
const LAST_EVENT_ID_HEADER: &str = "last-event-id";
/// A time and a number; nobody was given a longer one.
pub(super) const LAST_EVENT_ID_CHARS_MAX: usize = 64;

/// A ticket for one's events, good for a minute: `GET /events?ticket=…` or `GET /ws?ticket=…`.
///
/// For browsers, whose `EventSource` and `WebSocket` cannot send the `Authorization` header.
#[utoipa::path(post, path = "/events/ticket", tag = "buyer", security(("buyer" = [])),
    responses((status = OK, body = Token)))]
pub(super) async fn ticket(State(app): State<Shared>, Buyer(user): Buyer) -> Json<Token> {
    let expires_ms = app.engine.now_ms() + TICKET_TTL_MS;
    let ticket = EventTicket { user, expires_ms };
    Json(Token { token: ticket.sign(app.engine.keys()), expires_at: expires_ms })
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Listening {
    /// From `POST /events/ticket`, in place of the `Authorization` header.
    #[param(inline, value_type = Option<schemas::Ticket>)]
    ticket: Option<String>,
    /// Items to be told of when they are sold out or have units again, separated by commas.
    #[param(inline, style = Form, explode = false, value_type = Option<schemas::WatchedItems>)]
    items: Option<String>,
    /// The id of the last event that was seen. What changed since is told first.
    #[param(inline, value_type = Option<schemas::LastEventId>)]
    last_event_id: Option<String>,
}

/// A buyer who wants to listen, and to what.
pub(super) struct Listener {
    user: UserId,
    items: Vec<ItemId>,
    last: Option<EventId>,
}

impl FromRequestParts<Shared> for Listener {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Shared) -> Result<Self, Problem> {
        let Query(asked) = Query::<Listening>::from_request_parts(parts, app).await?;
        let user = match &asked.ticket {
            Some(ticket) => by_ticket(ticket, parts, app)?,
            None => Buyer::from_request_parts(parts, app).await?.0,
        };
        let items = asked.items.as_deref().map_or(Ok(Vec::new()), read_items)?;
        let header = parts.headers.get(LAST_EVENT_ID_HEADER).map(HeaderValue::as_bytes);
        let header = read_last(LAST_EVENT_ID_HEADER, header.unwrap_or_default())?;
        let query = asked.last_event_id.unwrap_or_default();
        let query = read_last("last_event_id", query.as_bytes())?;
        // A browser that connects again sends the header; the address is still that of the beginning.
        Ok(Listener { user, items, last: header.or(query) })
    }
}

fn by_ticket(text: &str, parts: &Parts, app: &Shared) -> Result<UserId, Problem> {
    let ticket = EventTicket::verify(text, app.engine.keys(), app.engine.now_ms());
    ticket.map(|ticket| ticket.user).ok_or_else(|| {
        let problem = Problem::new(Code::Unauthorized).detail(
            "The ticket is not good, or has expired. Please get a new one.",
            "凭票无效或已过期，请重新获取。",
        );
        note(AccessRefusal::BuyerToken, None, parts, &problem);
        problem
    })
}

fn read_items(text: &str) -> Result<Vec<ItemId>, Problem> {
    let number =
        |part: &str| is_plain_number(part).then(|| part.parse().ok().map(ItemId)).flatten();
    let items: Option<Vec<ItemId>> = text.split(',').map(number).collect();
    let rule = format_args!("must be at most {WATCHED_ITEMS_MAX} ids, separated by commas");
    items
        .filter(|items| items.len() <= WATCHED_ITEMS_MAX)
        .ok_or_else(|| Problem::invalid("items", rule))
}

/// An empty one is what somebody has who has seen nothing.
fn read_last(field: &str, id: &[u8]) -> Result<Option<EventId>, Problem> {
    let text = std::str::from_utf8(id).ok().filter(|text| {
        text.len() <= LAST_EVENT_ID_CHARS_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
    });
    let rule = format_args!("must be at most {LAST_EVENT_ID_CHARS_MAX} visible ASCII characters");
    let text = text.ok_or_else(|| Problem::invalid(field, rule))?;
    Ok(if text.is_empty() { None } else { text.parse().ok() })
}

impl Listener {
    pub(super) async fn follow(self, app: &Shared) -> Result<Feed, Problem> {
        let followed = app.engine.push().follow(&self.user, self.last, &self.items).await;
        followed.map_err(|error| match error {
            FollowError::TooMany(error) => {
                Problem::new(Code::RateLimited).retry_after_ms(RETRY_AFTER_MS).inside(error)
            }
            FollowError::Closing => Code::Busy.into(),
            FollowError::Store(error) => error.into(),
        })
    }
}

/// One event as it is sent.
pub(super) struct Event {
    pub(super) id: EventId,
    pub(super) name: &'static str,
    /// JSON.
    pub(super) data: String,
}

impl Event {
    /// `None` if it cannot be shown now.
    pub(super) async fn of(app: &Shared, id: EventId, news: News) -> Option<Event> {
        let (name, data) = match news {
            News::Order { view, position } => {
                // In a box, because a listener waits far longer than it shows, and there are many.
                let mut order = Box::pin(OrderJson::of(&app.engine, view)).await.ok()?;
                if let Some(position) = position {
                    order = order.at(position, app.engine.claims().eta_ms(position));
                }
                ("order", serde_json::to_string(&order).ok()?)
            }
            News::Stock { item, sold_out } => {
                let name = if sold_out { "sold_out" } else { "back_in_stock" };
                (name, json!({"item_id": item.0}).to_string())
            }
            News::LookAgain => ("look_again", "{}".to_owned()),
        };
        Some(Event { id, name, data })
    }

    /// As a message of a WebSocket.
    pub(super) fn message(&self) -> String {
        let Event { id, name, data } = self;
        format!("{{\"id\":\"{id}\",\"event\":\"{name}\",\"data\":{data}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_plain_numbers_and_not_too_many() {
        assert_eq!(read_items("7,8").unwrap(), [ItemId(7), ItemId(8)]);
        let many = |n: usize| vec!["1"; n].join(",");
        assert_eq!(read_items(&many(WATCHED_ITEMS_MAX)).unwrap().len(), WATCHED_ITEMS_MAX);
        for bad in ["", ",", "7,", "+7", "07", "x", "7 ,8", &many(WATCHED_ITEMS_MAX + 1)] {
            assert_eq!(read_items(bad).unwrap_err().code(), Code::Invalid, "{bad}");
        }
    }
}

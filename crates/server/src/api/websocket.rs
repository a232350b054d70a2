//! The same events as in `events`, over a WebSocket.
//!
//! **The handshake** is an ordinary request: who asks, too many, a ledger that does not answer, all that is
//! refused as everywhere else, before the connection is anything but HTTP. Browsers let any page open a
//! WebSocket to anywhere, and say in `Origin` which page it is: one of our own, one of the shop's, or none.
//!
//! **The conversation.** The server tells; each message is one event as JSON. The client may say which items
//! it watches, `{"watch":[1,2]}`, and nothing else. Every so often the server pings. A client that answers
//! none of two is gone, and so is one that does not take what it is sent: the listener cuts a connection on
//! which nothing can be written, and the hub ends a stream whose queue is full.
//!
//! **The end.** When the server stops it says 1001 (going away), to whoever is too slow 1013 (try again
//! later), to nonsense 1008. The client comes back with the id of the last event it has seen.
//!
//! Thousands of sockets are idle at a time, so what each of them keeps is small: the buffers of the protocol
//! are as large as one short message, and reading and showing an order take room only while they happen.

use std::time::Duration;

use axum::{
    extract::{
        State, WebSocketUpgrade,
        ws::{CloseFrame, Message, WebSocket, rejection::WebSocketUpgradeRejection},
    },
    response::Response,
};
use engine::{Feed, FeedEnd, WATCHED_ITEMS_MAX};
use http::{
    HeaderMap,
    header::{HOST, ORIGIN},
};
use sale::ItemId;
use serde::Deserialize;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::{
    Shared,
    news::{Event, Listener, Listening},
};
use crate::{
    metrics::PUSH_DROPPED,
    origins::Origins,
    problem::{Code, Problem},
};

/// A client has little to say.
const MESSAGE_BYTES_MAX: usize = 4 * 1_024;
/// Kept for every socket, so as small as it can be.
const READ_BUFFER_BYTES: usize = 512;
/// More than the longest event; what does not fit is an error rather than memory.
const WRITE_BUFFER_BYTES_MAX: usize = 64 * 1_024;
/// How long a client may take to say goodbye.
const GOODBYE: Duration = Duration::from_millis(500);

const GOING_AWAY: u16 = 1001;
const POLICY: u16 = 1008;
const TRY_AGAIN_LATER: u16 = 1013;

/// News as in `GET /events`, over a WebSocket.
///
/// Each message is `{"id":…,"event":…,"data":…}`. The client may send `{"watch":[…]}` to watch other items.
#[utoipa::path(get, path = "/ws", tag = "buyer", security(("buyer" = [])), params(Listening),
    responses(
        (status = SWITCHING_PROTOCOLS, description = "It is a WebSocket now"),
        (status = BAD_REQUEST, description = "`bad_request`: not the handshake of a WebSocket"),
        (status = FORBIDDEN, description = "`forbidden`: opened by a page of another origin"),
        (status = UNPROCESSABLE_ENTITY, description = "`invalid`: too many `items`, or none at all"),
        (status = TOO_MANY_REQUESTS, description = "`rate_limited`: too many streams are open"),
        (status = SERVICE_UNAVAILABLE, description = "`busy`: the orders cannot be read now")))]
pub(super) async fn connect(
    State(app): State<Shared>,
    listener: Listener,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    if !is_welcome(&headers, &app.origins) {
        return Err(Problem::new(Code::Forbidden).detail(
            "A page of this origin may not listen here.",
            "不允许该来源的页面在此建立连接。",
        ));
    }
    let upgrade = upgrade.map_err(|error| {
        let detail = "This address speaks WebSocket: the request must be its handshake.";
        Problem::new(Code::BadRequest)
            .detail(detail, "该地址仅支持 WebSocket 握手请求。")
            .inside(error)
    })?;
    let feed = listener.follow(&app).await?;
    let upgrade = upgrade
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_write_buffer_size(WRITE_BUFFER_BYTES_MAX)
        .max_message_size(MESSAGE_BYTES_MAX)
        .max_frame_size(MESSAGE_BYTES_MAX);
    Ok(upgrade.on_upgrade(move |socket| converse(app, socket, feed)))
}

/// Was it opened by a page that may: one of the host that it asks, one of these origins, or none at all?
fn is_welcome(headers: &HeaderMap, allowed: &Origins) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let (Some(origin), None) = (origins.next(), origins.next()) else {
        // No browser asks; of two origins nobody knows which is meant.
        return !headers.contains_key(ORIGIN);
    };
    if allowed.find(origin.as_bytes()).is_some() {
        return true;
    }
    let Ok(origin) = origin.to_str() else { return false };
    let (page, default_port) = match origin.split_once("://") {
        Some(("https", page)) => (page, ":443"),
        Some(("http", page)) => (page, ":80"),
        _ => return false,
    };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let plain = |name: &str| name.strip_suffix(default_port).unwrap_or(name).to_ascii_lowercase();
    !host.is_empty() && plain(page) == plain(host)
}

/// What a client may say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    watch: Vec<i64>,
}

/// How a conversation ends.
enum End {
    /// The client has left, or cannot be reached.
    Gone,
    Close(u16, &'static str),
}

async fn converse(app: Shared, mut socket: WebSocket, mut feed: Feed) {
    match talk(&app, &mut socket, &mut feed).await {
        End::Gone => {}
        End::Close(code, reason) => {
            drop(feed);
            close(socket, code, reason).await;
        }
    }
}

async fn talk(app: &Shared, socket: &mut WebSocket, feed: &mut Feed) -> End {
    let heartbeat = Duration::from_millis(app.config.push.heartbeat_ms);
    let mut beat = interval_at(Instant::now() + heartbeat, heartbeat);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silent_beats = 0;
    loop {
        tokio::select! {
            news = feed.next() => {
                let event = match news {
                    Ok(news) => Event::of(app, feed.id(), news).await,
                    Err(FeedEnd::Closing) => return End::Close(GOING_AWAY, "the server stops"),
                    Err(FeedEnd::Slow) => return End::Close(TRY_AGAIN_LATER, "too slow"),
                    Err(FeedEnd::Unreadable(_)) => None,
                };
                let Some(event) = event else { return End::Close(TRY_AGAIN_LATER, "busy") };
                if socket.send(Message::text(event.message())).await.is_err() {
                    return End::Gone;
                }
            }
            said = socket.recv() => {
                silent_beats = 0;
                match said {
                    Some(Ok(Message::Text(text))) => match read_wish(&text) {
                        Some(items) => Box::pin(feed.watch(&items)).await,
                        None => return End::Close(POLICY, "only {\"watch\":[…]} is understood"),
                    },
                    Some(Ok(Message::Binary(_))) => return End::Close(POLICY, "only text is understood"),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_))) => return End::Close(0, ""),
                    Some(Err(_)) => return End::Close(POLICY, "not understood, or too long"),
                    None => return End::Gone,
                }
            }
            _ = beat.tick() => {
                if silent_beats == 2 {
                    metrics::counter!(PUSH_DROPPED, "reason" => "silent").increment(1);
                    return End::Gone;
                }
                silent_beats += 1;
                if socket.send(Message::Ping(Default::default())).await.is_err() {
                    return End::Gone;
                }
            }
        }
    }
}

fn read_wish(text: &str) -> Option<Vec<ItemId>> {
    let Wish { watch } = serde_json::from_str(text).ok()?;
    (watch.len() <= WATCHED_ITEMS_MAX).then(|| watch.into_iter().map(ItemId).collect())
}

/// Says goodbye, and waits a moment for the client's: whoever closes before it has read everything resets
/// the connection, and the client might never see why. Code 0: the client has said it first.
async fn close(mut socket: WebSocket, code: u16, reason: &'static str) {
    let farewell = async {
        if code != 0 {
            let frame = CloseFrame { code, reason: reason.into() };
            if socket.send(Message::Close(Some(frame))).await.is_err() {
                return;
            }
        }
        // The protocol answers the client's goodbye by itself.
        while let Some(Ok(_)) = socket.recv().await {}
    };
    let _ = tokio::time::timeout(GOODBYE, farewell).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(origins: &[&str], host: &str, allowed: &[&str], expected: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        origins.iter().for_each(|origin| {
            headers.append(ORIGIN, origin.parse().unwrap());
        });
        let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        assert_eq!(
            is_welcome(&headers, &Origins::new(&allowed)),
            expected,
            "{origins:?} at {host}"
        );
    }

    #[test]
    fn a_page_may_listen_at_its_own_host_or_where_it_is_named() {
        check(&[], "shop.example", &[], true);
        check(&["https://shop.example"], "shop.example", &[], true);
        check(&["https://Shop.example"], "shop.example:443", &[], true);
        check(&["http://127.0.0.1:8080"], "127.0.0.1:8080", &[], true);
        check(&["http://shop.example:80"], "shop.example", &[], true);
        check(&["http://shop.example:8080"], "shop.example", &[], false);
        check(&["https://shop.example:80"], "shop.example", &[], false);
        check(&["https://evil.example"], "shop.example", &[], false);
        check(&["https://shop.example.evil"], "shop.example", &[], false);
        check(&["null"], "null", &[], false);
        check(&["file://"], "", &[], false);
        check(&["https://"], "", &[], false);
        check(&["https://shop.example", "https://evil.example"], "shop.example", &[], false);
        check(&["https://www.example"], "shop.example", &["https://www.example"], true);
        check(&["https://www.example.evil"], "shop.example", &["https://www.example"], false);
    }

    #[test]
    fn a_client_can_only_watch() {
        assert_eq!(read_wish(r#"{"watch":[1,2]}"#), Some(vec![ItemId(1), ItemId(2)]));
        assert_eq!(read_wish(r#"{"watch":[]}"#), Some(vec![]));
        let many = format!(r#"{{"watch":{:?}}}"#, vec![1; WATCHED_ITEMS_MAX + 1]);
        for bad in ["", "[]", "{}", r#"{"watch":["1"]}"#, r#"{"watch":[1],"x":1}"#, &many] {
            assert_eq!(read_wish(bad), None, "{bad}");
        }
    }
}

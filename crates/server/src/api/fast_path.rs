//! Claims on the fast path of the listener: the same claim as in `claims`, read from and written to bytes.
//!
//! The router costs as much as the rest of a refusal, so claims, which are nearly all there is in a
//! rush, do not pass it. What they are told is decided in `claims`; here is only how it is written,
//! and how the listener's own refusals are worded.

use std::{
    cell::RefCell,
    io::Write,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant, SystemTime},
};

use futures_util::FutureExt;
use gate::{Decision, PendingDecision};
use http::{
    HeaderValue, Method, StatusCode,
    header::{ACCEPT_LANGUAGE, CONTENT_TYPE, ORIGIN},
};
use limits::Class;
use listener::{FastPath, FastRequest, Fields, NoReply, Pending, REQUEST_ID, Refusal, RequestId};
use sale::{ItemId, Millis};

use super::{
    App, BASE,
    claims::{
        ADMITTED_BYTES, ClaimBody, ClaimHead, IDEMPOTENCY_KEY, Moment, SALE_TOKEN, Wish, answer,
    },
};
use crate::{
    edge::ONLY_TLS,
    extract::is_plain_number,
    metrics::HttpMetrics,
    origins::EXPOSED,
    problem::{Code, Lang, Problem, write_field},
};
use config::ProcessRole;

/// More digits than this are no item.
const ID_DIGITS_MAX: usize = 18;

/// What is answered depends on whose page asks.
const VARIES: (&str, &[u8]) = ("vary", b"origin");
const NAMES_ORIGIN: &str = "access-control-allow-origin";
/// What such a page may read of the answer.
const EXPOSES: (&str, &[u8]) = ("access-control-expose-headers", EXPOSED.as_bytes());
/// Where TLS is spoken, browsers are to come by it alone.
const BY_TLS: (&str, &[u8]) = ("strict-transport-security", ONLY_TLS.as_bytes());

/// The fast path of one process.
pub(super) struct FastClaims(Arc<Claims>);

struct Claims {
    app: Arc<App>,
    metrics: HttpMetrics,
    open: bool,
    tls: bool,
}

/// What is remembered of a claim in the lane.
struct Ticket {
    lang: Lang,
    began: Instant,
    id: RequestId,
    /// Whose page asks, if it is one that may; nothing at all where there is none.
    origin: Option<HeaderValue>,
}

/// A claim in the lane.
struct Waiting {
    claims: Arc<Claims>,
    item: ItemId,
    ticket: Ticket,
    stage: Stage,
}

enum Stage {
    InLane(PendingDecision),
    /// The gate does not have the item: somebody else is asked what that means.
    Asking(Pin<Box<dyn Future<Output = Decision> + Send>>),
    Decided(Decision),
}

impl FastClaims {
    pub(super) fn new(app: Arc<App>) -> FastClaims {
        let open = app.engine.settings().does(ProcessRole::Web);
        let tls = !app.config.http.tls_cert_file.as_os_str().is_empty();
        FastClaims(Arc::new(Claims { app, metrics: HttpMetrics::new(), open, tls }))
    }
}

impl Claims {
    fn read(&self, item: ItemId, now: Moment, request: &FastRequest<'_>) -> Result<Wish, Problem> {
        self.app.door.count_address(Class::Claims, request.peer.0, now.at)?;
        let fields = request.fields;
        let (tokens, keys) = (fields.all(SALE_TOKEN), fields.all(IDEMPOTENCY_KEY));
        let head = ClaimHead::read(&self.app, item, now, tokens, keys)?;
        head.with(ClaimBody::read(fields.first(CONTENT_TYPE.as_str()), request.body)?)
    }

    fn refuse(&self, problem: &Problem, ticket: &Ticket, now_ms: Millis, out: &mut Vec<u8>) {
        self.app.claims.refused(problem.code());
        self.metrics.answered(problem.code().status(), ticket.began.elapsed());
        problem.log(&Method::POST, "a claim", ticket.id);
        with_date(now_ms, |date| {
            problem.write_http(out, ticket.lang, self.fields(ticket, date));
        });
    }

    /// What every answer has beside its own, and what [`crate::origins`] gives to those of the router.
    fn fields<'a>(
        &self,
        ticket: &'a Ticket,
        date: &'a [u8],
    ) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let named = ticket.origin.as_ref().map(|origin| (NAMES_ORIGIN, origin.as_bytes()));
        [
            Some(("date", date)),
            Some((REQUEST_ID, ticket.id.as_bytes())),
            self.tls.then_some(BY_TLS),
            (!self.app.origins.is_empty()).then_some(VARIES),
            named,
            named.map(|_| EXPOSES),
        ]
        .into_iter()
        .flatten()
    }

    /// Whose page asks, if it is one that may.
    fn origin_of(&self, fields: Fields<'_>) -> Option<HeaderValue> {
        if self.app.origins.is_empty() {
            return None;
        }
        let mut given = fields.all(ORIGIN.as_str());
        let origin = given.next().filter(|_| given.next().is_none())?;
        self.app.origins.find(origin).cloned()
    }

    fn tell(&self, decision: Decision, ticket: &Ticket, now_ms: Millis, out: &mut Vec<u8>) {
        let engine = &self.app.engine;
        match answer(decision, engine.keys(), |position| engine.claims().eta_ms(position)) {
            Err(problem) => self.refuse(&problem, ticket, now_ms, out),
            Ok(admitted) => {
                self.app.claims.admitted();
                self.metrics.answered(StatusCode::ACCEPTED, ticket.began.elapsed());
                let mut body = Vec::with_capacity(ADMITTED_BYTES);
                admitted.write(&mut body);
                out.extend_from_slice(
                    b"HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\n\
                      cache-control: no-store\r\nx-content-type-options: nosniff",
                );
                with_date(now_ms, |date| {
                    for (name, value) in self.fields(ticket, date) {
                        write_field(out, name, value);
                    }
                });
                let written = write!(out, "\r\ncontent-length: {}\r\n\r\n", body.len());
                written.expect("a vector takes everything");
                out.extend_from_slice(&body);
            }
        }
    }
}

impl FastPath for FastClaims {
    fn target(&self, method: &str, path: &str) -> Option<i64> {
        if self.0.open && method == "POST" { item_of(path).map(|item| item.0) } else { None }
    }

    fn begin(
        &self,
        item: i64,
        request: &FastRequest<'_>,
        out: &mut Vec<u8>,
    ) -> Option<Box<dyn Pending>> {
        let (claims, item) = (&self.0, ItemId(item));
        let lang = lang_of(request.fields);
        let origin = claims.origin_of(request.fields);
        let engine = &claims.app.engine;
        let now = Moment::read(engine);
        let ticket = Ticket { lang, began: now.at, id: request.id, origin };
        let wish = match claims.read(item, now, request) {
            Ok(wish) => wish,
            Err(problem) => {
                claims.refuse(&problem, &ticket, now.ms, out);
                return None;
            }
        };
        match wish.and_then(|claim| engine.claims().enter(claim, now.at)) {
            Err(decision) => {
                claims.app.claims.decided_early(&decision);
                claims.tell(decision, &ticket, now.ms, out);
                None
            }
            Ok(place) => {
                let (claims, stage) = (claims.clone(), Stage::InLane(place));
                Some(Box::new(Waiting { claims, item, ticket, stage }))
            }
        }
    }

    fn write_refusal(
        &self,
        refusal: Refusal,
        id: RequestId,
        fields: Fields<'_>,
        out: &mut Vec<u8>,
    ) {
        let code = write_refusal(refusal, id, fields, out);
        self.0.metrics.answered(code.status(), Duration::ZERO);
    }

    fn write_full(&self, out: &mut Vec<u8>) {
        write_full(out);
    }
}

impl Pending for Waiting {
    fn poll_decided(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Stage::InLane(place) = &mut self.stage {
            let decision = ready!(place.poll_unpin(cx));
            self.stage = if engine::Claims::is_final(&decision) {
                Stage::Decided(decision)
            } else {
                let (engine, item) = (self.claims.app.engine.clone(), self.item);
                Stage::Asking(Box::pin(async move { engine.claims().answer(item, decision).await }))
            };
        }
        if let Stage::Asking(asking) = &mut self.stage {
            self.stage = Stage::Decided(ready!(asking.as_mut().poll(cx)));
        }
        Poll::Ready(())
    }

    fn write(self: Box<Self>, decided: Result<(), NoReply>, out: &mut Vec<u8>) {
        let Waiting { claims, ticket, stage, .. } = *self;
        let now_ms = claims.app.engine.now_ms();
        let problem = match (decided, stage) {
            (Ok(()), Stage::Decided(decision)) => {
                claims.app.claims.decided_after(ticket.began.elapsed());
                return claims.tell(decision, &ticket, now_ms, out);
            }
            (Err(NoReply::TooLate), _) => Problem::new(Code::Unknown).inside("no answer in time"),
            (Ok(()) | Err(NoReply::Panicked), _) => Problem::internal("a claim panicked"),
        };
        claims.refuse(&problem, &ticket, now_ms, out);
    }
}

/// Why nobody serves a request.
pub(crate) fn write_refusal(
    refusal: Refusal,
    id: RequestId,
    fields: Fields<'_>,
    out: &mut Vec<u8>,
) -> Code {
    let code = match refusal {
        Refusal::BadRequest => Code::BadRequest,
        Refusal::ExpectationFailed => Code::ExpectationFailed,
        Refusal::HeadTooLarge => Code::HeadTooLarge,
        Refusal::BodyTooLarge => Code::TooLarge,
        Refusal::PlainHttp => Code::BadRequest,
    };
    let problem = match refusal {
        Refusal::PlainHttp => {
            Problem::new(code).detail("Only https is spoken here.", "仅支持 https。")
        }
        _ => Problem::new(code),
    };
    let closing: [(&str, &[u8]); 2] = [("connection", b"close"), (REQUEST_ID, id.as_bytes())];
    problem.write_http(out, lang_of(fields), closing);
    code
}

/// What a connection above the cap is told.
pub(crate) fn write_full(out: &mut Vec<u8>) {
    Problem::new(Code::Busy).write_http(out, Lang::En, [("connection", &b"close"[..])]);
}

fn lang_of(fields: Fields<'_>) -> Lang {
    fields.first(ACCEPT_LANGUAGE.as_str()).map_or(Lang::En, Lang::of_bytes)
}

/// The item of a claim's path. One that is written in an unusual way is the router's to understand.
fn item_of(path: &str) -> Option<ItemId> {
    let id = path.strip_prefix(BASE)?.strip_prefix("/items/")?.strip_suffix("/claims")?;
    if id.len() <= ID_DIGITS_MAX && is_plain_number(id) { id.parse().ok() } else { None }
}

/// The date as HTTP writes it, which is the same for a whole second.
fn with_date(now_ms: Millis, write: impl FnOnce(&[u8])) {
    thread_local! {
        static DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    let second = now_ms.max(0) as u64 / 1_000;
    DATE.with_borrow_mut(|(written, text)| {
        if *written != second || text.is_empty() {
            *text = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(second));
            *written = second;
        }
        write(text.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_are_fast() {
        assert_eq!(item_of("/api/v1/items/42/claims"), Some(ItemId(42)));
        for other in [
            "/api/v1/items/42/claims?x=1",
            "/api/v1/items//claims",
            "/api/v1/items/+4/claims",
            "/api/v1/items/-4/claims",
            "/api/v1/items/042/claims",
            "/api/v1/items/4%32/claims",
            "/api/v1/items/9999999999999999999/claims",
            "/api/v1/items/42/token",
            "/items/42/claims",
        ] {
            assert_eq!(item_of(other), None, "{other}");
        }
    }

    #[test]
    fn the_date_is_written_as_http_wants_it() {
        with_date(784_111_777_123, |date| {
            assert_eq!(date.len(), "Sun, 06 Nov 1994 08:49:37 GMT".len());
            assert_eq!(date, b"Sun, 06 Nov 1994 08:49:37 GMT");
        });
    }
}

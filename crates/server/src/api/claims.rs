//! The claim: the one request that a sale is about.
//!
//! Everything here is bounded and cheap, in this order: the sale token (one HMAC, no I/O) before the
//! body is looked at, the few bytes of the body, then the lane. Most buyers hear `sold_out`, whose
//! answer is written once per language and shared.
//!
//! It comes in on two ways, the fast path (see `fast_path`) and the router, and both lead here:
//! [`ClaimHead`] and its body make the [`ClaimRequest`], [`answer`] says what came of it.

use std::{io::Write, time::Instant};

use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts, Request, State},
    response::{IntoResponse, Response},
};
use engine::{CoolReason, Engine};
use gate::{Busy, ClaimRequest, Decision};
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use sale::{Claim, ItemId, KeyHash, Millis, OrderNo, SaleToken, SigningKeys, UserId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{App, Shared, sale_tokens::cooling_down, schemas};
use crate::{
    extract::{Json, Path},
    problem::{Code, Problem},
};

pub(super) const SALE_TOKEN: &str = "x-sale-token";
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";
pub(super) const IDEMPOTENCY_KEY_CHARS_MAX: usize = 255;
/// An admitted answer is a little over 200 bytes.
pub(super) const ADMITTED_BYTES: usize = 320;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Wish)]
pub(super) struct ClaimBody {
    #[schema(schema_with = schemas::quantity)]
    quantity: u32,
}

/// How nearly every claim says that it wants one unit.
const ONE_UNIT: &[u8] = br#"{"quantity":1}"#;

impl ClaimBody {
    /// From a body that is here in full, and its `content-type`.
    pub(super) fn read(kind: Option<&[u8]>, bytes: &[u8]) -> Result<Json<ClaimBody>, Problem> {
        if bytes == ONE_UNIT && kind == Some(b"application/json") {
            return Ok(Json(ClaimBody { quantity: 1 }));
        }
        Json::read(kind, bytes)
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct Admitted {
    #[schema(schema_with = schemas::order_no)]
    order_no: OrderNo,
    /// Signed proof of the claim. Keep it: should the claim ever be lost, it brings it back.
    receipt: String,
    #[schema(example = "queued")]
    status: &'static str,
    /// Claims up to and including this one that are on their way to the ledger.
    position: u64,
    /// When it will be an order, at the rate of the last seconds.
    eta_ms: u64,
}

/// Claim units of an item. The buyer is the one the sale token names.
///
/// Asking again is safe. The same `Idempotency-Key` gets the same 202; without one a buyer who holds
/// a claim or order hears `already_bought` with its number. A key is for one claim: with another
/// quantity or item it is refused.
#[utoipa::path(post, path = "/items/{id}/claims", tag = "buyer", security(("sale_token" = [])),
    params(
        ("id" = i64, Path, description = "The item"),
        ("Idempotency-Key" = inline(Option<schemas::IdempotencyKey>), Header,
            description = "1 to 255 visible ASCII characters")),
    request_body = ClaimBody,
    responses(
        (status = ACCEPTED, body = Admitted),
        (status = BAD_REQUEST, description = "`bad_request`, e.g. two sale tokens"),
        (status = FORBIDDEN, description = "`bad_token`, `not_started` (with `opens_at`) or `ended`"),
        (status = NOT_FOUND, description = "No such item"),
        (status = CONFLICT, description = "`sold_out`, or `already_bought` (with `order_no`)"),
        (status = UNPROCESSABLE_ENTITY,
            description = "`invalid` (with `field`), or `key_reused` (with the `order_no` it was used for)"),
        (status = TOO_MANY_REQUESTS, description = "`too_hot` or `cooling_down`, with Retry-After"),
        (status = SERVICE_UNAVAILABLE, description = "`busy`: nothing was decided, with Retry-After")))]
pub(super) async fn claim(State(app): State<Shared>, request: Request) -> Response {
    match decide(&app, request).await {
        Ok(admitted) => {
            app.claims.admitted();
            admitted.into_response()
        }
        Err(problem) => {
            app.claims.refused(problem.code());
            problem.into_response()
        }
    }
}

async fn decide(app: &App, request: Request) -> Result<Admitted, Problem> {
    let (mut parts, body) = request.into_parts();
    let Path(id) = Path::<i64>::from_request_parts(&mut parts, &()).await?;
    let engine = &app.engine;
    let all = |name| parts.headers.get_all(name).into_iter().map(HeaderValue::as_bytes);
    let now = Moment::read(engine);
    let head = ClaimHead::read(app, ItemId(id), now, all(SALE_TOKEN), all(IDEMPOTENCY_KEY))?;
    // Whoever has no good token is not waited for to send the rest.
    let wish = head.with(Json::from_request(Request::from_parts(parts, body), &()).await?)?;
    let (item, began) = (ItemId(id), Instant::now());
    let decision = match wish.and_then(|request| engine.claims().enter(request, began)) {
        Err(early) => {
            app.claims.decided_early(&early);
            early
        }
        Ok(place) => {
            let decision = engine.claims().answer(item, place.await).await;
            app.claims.decided_after(began.elapsed());
            decision
        }
    };
    answer(decision, engine.keys(), |position| engine.claims().eta_ms(position))
}

/// When a claim came, by both clocks, which are read once for all that is to be judged by them.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) at: Instant,
    pub(super) ms: Millis,
}

impl Moment {
    pub(super) fn read(engine: &Engine) -> Moment {
        Moment { at: Instant::now(), ms: engine.now_ms() }
    }
}

/// What the head of a claim says; how much is wanted is not known yet.
pub(super) struct ClaimHead {
    item: ItemId,
    user: UserId,
    key: Option<KeyHash>,
    /// It is known that nothing is left for this buyer.
    sold_out: bool,
}

/// A claim that may enter the lane, or what is known without one.
pub(super) type Wish = Result<ClaimRequest, Decision>;

impl ClaimHead {
    /// From the item of the path and the values of the two fields that concern it.
    pub(super) fn read<'a>(
        app: &App,
        item: ItemId,
        now: Moment,
        tokens: impl Iterator<Item = &'a [u8]>,
        idempotency_keys: impl Iterator<Item = &'a [u8]>,
    ) -> Result<ClaimHead, Problem> {
        let token = only_token(tokens)?;
        let (engine, now_ms) = (&app.engine, now.ms);
        let SaleToken { user, from_ms, .. } = named_by_token(token, item, engine.keys(), now_ms)?;
        let key = idempotency_key(idempotency_keys, &user);
        // To be told so costs less than to be counted.
        let sold_out = matches!(key, Ok(None)) && engine.claims().is_sold_out(item, &user, now.at);
        if !sold_out {
            app.door.count_claim(&user, now.at)?;
        }
        if let Some(from_ms) = from_ms.filter(|from_ms| now_ms < *from_ms) {
            return Err(Problem::not_started(from_ms));
        }
        // A token that was given before does not get round it.
        if let Some(until_ms) = engine.sale_tokens().cooling_down(&user) {
            return Err(cooling_down(until_ms, CoolReason::UnpaidOrders, now_ms));
        }
        Ok(ClaimHead { item, user, key: key?, sold_out })
    }

    pub(super) fn with(self, Json(body): Json<ClaimBody>) -> Result<Wish, Problem> {
        if body.quantity == 0 {
            return Err(Problem::invalid("quantity", "must be at least 1"));
        }
        let ClaimHead { item, user, key, sold_out } = self;
        if sold_out {
            return Ok(Err(Decision::SoldOut { left: 0, version: 0 }));
        }
        Ok(Ok(ClaimRequest { item, user, quantity: body.quantity, key }))
    }
}

/// The sale token, if there is one. Of two nobody can say which was meant.
fn only_token<'a>(mut tokens: impl Iterator<Item = &'a [u8]>) -> Result<Option<&'a [u8]>, Problem> {
    match (tokens.next(), tokens.next()) {
        (token, None) => Ok(token),
        (_, Some(_)) => Err(Problem::new(Code::BadRequest).detail(
            "There must be one X-Sale-Token, not several.",
            "X-Sale-Token 请求头只能出现一次。",
        )),
    }
}

/// The token, if it is good for this item; it names the buyer.
fn named_by_token(
    token: Option<&[u8]>,
    item: ItemId,
    keys: &SigningKeys,
    now_ms: Millis,
) -> Result<SaleToken, Problem> {
    let text = token.and_then(|value| std::str::from_utf8(value).ok());
    let token = text.and_then(|text| SaleToken::verify(text, keys, now_ms));
    match token {
        Some(token) if token.item == item => Ok(token),
        _ => Err(Code::BadToken.into()),
    }
}

fn idempotency_key<'a>(
    mut values: impl Iterator<Item = &'a [u8]>,
    user: &UserId,
) -> Result<Option<KeyHash>, Problem> {
    let Some(key) = values.next() else { return Ok(None) };
    let good = (1..=IDEMPOTENCY_KEY_CHARS_MAX).contains(&key.len())
        && key.iter().all(u8::is_ascii_graphic)
        && values.next().is_none();
    if !good {
        let rule =
            format_args!("must be 1 to {IDEMPOTENCY_KEY_CHARS_MAX} visible ASCII characters");
        return Err(Problem::invalid("Idempotency-Key", rule));
    }
    Ok(Some(KeyHash::of(user, key)))
}

/// What the buyer hears. `eta_ms`: when the claim at a position will be an order.
pub(super) fn answer(
    decision: Decision,
    keys: &SigningKeys,
    eta_ms: impl FnOnce(u64) -> u64,
) -> Result<Admitted, Problem> {
    Err(match decision {
        Decision::Admitted { claim, ahead, .. } => {
            let position = ahead + 1;
            return Ok(Admitted::of(&claim, keys, position, eta_ms(position)));
        }
        Decision::AlreadyBought { order_no } => Problem::already_bought(order_no),
        Decision::KeyReused { order_no } => {
            Problem::new(Code::KeyReused).with("order_no", order_no.to_string())
        }
        Decision::SoldOut { left: ..=0, .. } => Code::SoldOut.into(),
        Decision::SoldOut { left, .. } => too_few(left),
        Decision::NotStarted { opens_ms } => Problem::not_started(opens_ms),
        Decision::Ended => Code::Ended.into(),
        Decision::OverLimit { limit } => {
            Problem::invalid("quantity", format_args!("must be from 1 to {limit}"))
        }
        Decision::TooHot => Code::TooHot.into(),
        Decision::Busy(Busy::Paused) => paused(),
        // The same for all other reasons, and without an inside: a gate that is busy in a rush
        // must not write a line to the log for every buyer. It says once itself what ails it.
        Decision::Busy(_) => Code::Busy.into(),
        Decision::UnknownItem => Problem::not_found(),
    })
}

fn too_few(left: i64) -> Problem {
    Problem::new(Code::SoldOut)
        .detail(
            format!("Only {left} units are left, fewer than you asked for."),
            format!("仅剩 {left} 件，少于您所需的数量。"),
        )
        .with("left", left)
}

fn paused() -> Problem {
    Problem::new(Code::Busy)
        .detail("The sale is paused. Please try again in a moment.", "活动已暂停，请稍后再试。")
        .with("reason", "paused")
}

impl Admitted {
    fn of(claim: &Claim, keys: &SigningKeys, position: u64, eta_ms: u64) -> Admitted {
        Admitted {
            order_no: claim.order_no,
            receipt: claim.receipt(keys),
            status: "queued",
            position,
            eta_ms,
        }
    }
}

impl Admitted {
    /// The body of the answer. All of it is numbers and plain letters, so nothing needs escaping.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let Admitted { order_no, receipt, status, position, eta_ms } = self;
        let written = write!(
            out,
            "{{\"order_no\":\"{order_no}\",\"receipt\":\"{receipt}\",\"status\":\"{status}\",\
             \"position\":{position},\"eta_ms\":{eta_ms}}}"
        );
        written.expect("a vector takes everything");
    }
}

impl IntoResponse for Admitted {
    fn into_response(self) -> Response {
        let mut body = Vec::with_capacity(ADMITTED_BYTES);
        self.write(&mut body);
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = StatusCode::ACCEPTED;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::problem::Lang;

    fn keys() -> SigningKeys {
        SigningKeys::from_secret(b"a secret of the tests").unwrap()
    }

    fn check(decision: Decision, status: u16, code: &str, extra: &[(&str, Value)]) {
        let problem = answer(decision.clone(), &keys(), |_| 0).err().unwrap();
        let body: Value = serde_json::from_slice(&problem.render(Lang::En)).unwrap();
        assert_eq!((problem.code().status().as_u16(), problem.code().as_str()), (status, code));
        for (name, value) in extra {
            assert_eq!(body[name], *value, "{decision:?}");
        }
    }

    #[test]
    fn a_body_is_read_alike_however_it_is_written() {
        let read = |kind: &str, body: &[u8]| {
            let read = ClaimBody::read(Some(kind.as_bytes()), body);
            read.map(|Json(body)| body.quantity).map_err(|problem| problem.code())
        };
        let json = "application/json";
        for (kind, body, is) in [
            (json, ONE_UNIT, Ok(1)),
            ("application/json; charset=utf-8", ONE_UNIT, Ok(1)),
            (json, b" { \"quantity\" : 1 } ", Ok(1)),
            (json, b"{\"quantity\":2}", Ok(2)),
            (json, b"{\"quantity\":1,\"x\":1}", Err(Code::Invalid)),
        ] {
            assert_eq!(read(kind, body), is, "{}", String::from_utf8_lossy(body));
        }
        assert!(read("text/plain", ONE_UNIT).is_err());
        assert!(ClaimBody::read(None, ONE_UNIT).is_err());
    }

    #[test]
    fn every_answer_has_its_status_and_code() {
        let order_no = OrderNo::from_u64(7).unwrap();
        let text = order_no.to_string().into();
        check(Decision::AlreadyBought { order_no }, 409, "already_bought", &[("order_no", text)]);
        let text = order_no.to_string().into();
        check(Decision::KeyReused { order_no }, 422, "key_reused", &[("order_no", text)]);
        check(Decision::SoldOut { left: 0, version: 1 }, 409, "sold_out", &[("left", Value::Null)]);
        check(Decision::SoldOut { left: 1, version: 1 }, 409, "sold_out", &[("left", 1.into())]);
        let opens_ms = 1_700_000_000_000;
        let opens_at = ("opens_at", opens_ms.into());
        check(Decision::NotStarted { opens_ms }, 403, "not_started", &[opens_at]);
        check(Decision::Ended, 403, "ended", &[]);
        let field = ("field", "quantity".into());
        check(Decision::OverLimit { limit: 2 }, 422, "invalid", &[field]);
        let retry = || ("retry_after_ms", 1_000.into());
        check(Decision::TooHot, 429, "too_hot", &[retry()]);
        check(Decision::Busy(Busy::NotLoaded), 503, "busy", &[retry()]);
        check(Decision::Busy(Busy::LogFull), 503, "busy", &[retry()]);
        let paused = ("reason", "paused".into());
        check(Decision::Busy(Busy::Paused), 503, "busy", &[retry(), paused]);
        check(Decision::UnknownItem, 404, "not_found", &[]);
    }

    #[test]
    fn an_admission_is_written_as_the_document_says() {
        let (order_no, receipt) = (OrderNo::from_u64(7).unwrap(), "AQ_-x".to_owned());
        let admitted = Admitted { order_no, receipt, status: "queued", position: 3, eta_ms: 9 };
        let mut written = Vec::new();
        admitted.write(&mut written);
        assert_eq!(written, serde_json::to_vec(&admitted).unwrap());
    }

    #[test]
    fn a_key_is_visible_ascii_and_there_is_one() {
        let user: UserId = "ann".parse().unwrap();
        let read = |keys: &[&[u8]]| idempotency_key(keys.iter().copied(), &user);
        assert!(read(&[]).unwrap().is_none());
        assert_eq!(read(&[b"k-1"]).unwrap(), Some(KeyHash::of(&user, b"k-1")));
        assert!(read(&[&[b'x'; 255]]).unwrap().is_some());
        for bad in [&b""[..], b"two words", "钥匙".as_bytes(), &[b'x'; 256], b"tab\t"] {
            assert_eq!(read(&[bad]).unwrap_err().code(), Code::Invalid, "{bad:?}");
        }
        assert!(read(&[b"one", b"two"]).is_err());
    }
}

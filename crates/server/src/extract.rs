//! What handlers take apart a request with. They differ from axum's own in one thing: what they
//! refuse, they refuse as a [`Problem`] that names the field.

use std::{borrow::Cow, error::Error};

use axum::{
    extract::{FromRequest, FromRequestParts, RawPathParams, Request, rejection::BytesRejection},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderValue, header::CONTENT_TYPE, request::Parts};
use listener::BodyTooSlow;
use sale::{Invalid, InvalidTime, SHOP_ID_CHARS_MAX, is_plain_id};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

use crate::problem::{Code, Problem, plain_cause};

/// A message that quotes the client is cut to this length.
const QUOTE_CHARS_MAX: usize = 200;

/// A JSON body, in or out.
#[derive(Clone, Copy, Debug)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).cloned();
        // A body of another kind is not worth waiting for.
        check_is_json(kind.as_ref().map(HeaderValue::as_bytes))?;
        let bytes = Bytes::from_request(request, state).await.map_err(body_problem)?;
        Json::parse(&bytes)
    }
}

/// A JSON body that may be left out.
#[derive(Clone, Copy, Debug)]
pub struct MaybeJson<T>(pub Option<T>);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for MaybeJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).cloned();
        let bytes = Bytes::from_request(request, state).await.map_err(body_problem)?;
        if bytes.is_empty() {
            return Ok(MaybeJson(None));
        }
        let Json(body) = Json::read(kind.as_ref().map(HeaderValue::as_bytes), &bytes)?;
        Ok(MaybeJson(Some(body)))
    }
}

impl<T: DeserializeOwned> Json<T> {
    /// From a body that is here in full, and its `content-type`.
    pub fn read(kind: Option<&[u8]>, bytes: &[u8]) -> Result<Self, Problem> {
        check_is_json(kind)?;
        Json::parse(bytes)
    }

    fn parse(bytes: &[u8]) -> Result<Self, Problem> {
        // Serde would also take an array for a struct, its elements in the order of the fields.
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::invalid("body", "must be a JSON object"));
        }
        // Only a body that is wrong is read a second time, now noting the path to the mistake.
        serde_json::from_slice(bytes).map(Json).or_else(|_| {
            axum::Json::from_bytes(bytes).map(|axum::Json(value)| Json(value)).map_err(|error| {
                let message = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                invalid(&message, "body").into()
            })
        })
    }
}

/// A part of a body that is read by itself, so that one mistake does not hide those of the other parts.
/// The field is the path within the part.
pub(crate) fn read_part<T: DeserializeOwned>(part: &serde_json::Value) -> Result<T, Invalid> {
    if !part.is_object() {
        return Err(Invalid::new("", "must be a JSON object").zh("必须是 JSON 对象"));
    }
    let read = axum::Json::from_bytes(part.to_string().as_bytes());
    read.map(|axum::Json(value)| value).map_err(|error| {
        let message = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        invalid(&message, "")
    })
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

/// Is this a number as we write it: digits, without a sign and without zeros before it? Rust reads
/// `+1` and `007`, too; then one thing would have many addresses, and whoever counts, caches or
/// limits by address would see many things.
pub(crate) fn is_plain_number(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'))
}

/// For numbers of the query that name something.
pub(crate) fn plain_id<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    let Some(text) = Option::<Cow<'de, str>>::deserialize(from)? else { return Ok(None) };
    let number = is_plain_number(&text).then(|| text.parse().ok()).flatten();
    let rule = || serde::de::Error::custom("must be digits, without a sign or zeros before them");
    number.map(Some).ok_or_else(rule)
}

/// An id that the shop gave, to look for. What cannot be one is refused, and remembered by nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShopId(pub(crate) String);

impl<'de> Deserialize<'de> for ShopId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let id = String::deserialize(from)?;
        if is_plain_id(&id, SHOP_ID_CHARS_MAX) {
            return Ok(ShopId(id));
        }
        let rule = format!("must be 1 to {SHOP_ID_CHARS_MAX} visible characters");
        Err(serde::de::Error::custom(rule))
    }
}

/// The name of every part of a path that is a number.
const NUMBER: &str = "id";

/// The parts of the path. One that cannot be read names nothing, so it is not found; nor is a number
/// in another spelling than ours.
#[derive(Clone, Copy, Debug)]
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let raw = RawPathParams::from_request_parts(parts, state).await;
        let raw = raw.map_err(|error| Problem::not_found().inside(error))?;
        if raw.iter().any(|(name, text)| name == NUMBER && !is_plain_number(text)) {
            return Err(Problem::not_found());
        }
        axum::extract::Path::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Path(value)| Path(value))
            .map_err(|error| Problem::not_found().inside(error))
    }
}

/// The query string.
#[derive(Clone, Copy, Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        axum::extract::Query::try_from_uri(&parts.uri)
            .map(|axum::extract::Query(value)| Query(value))
            .map_err(|error| {
                let message = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                invalid(&message, "query").into()
            })
    }
}

fn check_is_json(kind: Option<&[u8]>) -> Result<(), Problem> {
    if is_json(kind) { Ok(()) } else { Err(Code::UnsupportedMediaType.into()) }
}

fn is_json(kind: Option<&[u8]>) -> bool {
    // What nearly everybody sends costs no copy.
    if kind == Some(b"application/json") {
        return true;
    }
    let value = kind.and_then(|value| std::str::from_utf8(value).ok());
    let essence = value.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

pub(crate) fn body_problem(rejection: BytesRejection) -> Problem {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&rejection);
    while let Some(error) = cause {
        if error.is::<BodyTooSlow>() {
            return Code::RequestTimeout.into();
        }
        cause = error.source();
    }
    match Code::of_status(rejection.status()) {
        Code::TooLarge => Code::TooLarge.into(),
        _ => Problem::new(Code::BadRequest).inside(rejection),
    }
}

/// The field is taken from the message of serde, `path: cause at line 1 column 2`; a field that is
/// missing or unknown is named in the cause, the path then being that of the object around it.
fn invalid(message: &str, whole: &str) -> Invalid {
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    let (path, cause) = match message.split_once(": ") {
        Some((path, cause)) if is_path(path) => (path, cause),
        _ => ("", message),
    };
    let named = ["missing field `", "unknown field `", "duplicate field `"]
        .iter()
        .find_map(|start| cause.strip_prefix(start)?.split('`').next());
    let last = path.rsplit('.').next().unwrap_or_default();
    let field = match named {
        // Serde has already stepped into an unknown field when it finds out that it is one.
        Some(name) if last == name => path.to_owned(),
        Some(name) if path.is_empty() => name.to_owned(),
        Some(name) => format!("{path}.{name}"),
        None if path.is_empty() => whole.to_owned(),
        None => path.to_owned(),
    };
    let cut = |text: &str| text.chars().take(QUOTE_CHARS_MAX).collect::<String>();
    // What is said of times is known in both languages.
    if let Some(why) = InvalidTime::ALL.into_iter().find(|why| why.en() == cause) {
        return Invalid::time(cut(&field), why);
    }
    Invalid::new(cut(&field), plain_cause(&cut(cause)))
}

/// Is this the path of a field, and not the beginning of a sentence that happens to have a colon?
fn is_path(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "_.[]?-".contains(c))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::Value;

    use super::*;
    use crate::problem::Lang;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only whether it can be read matters")]
    struct Outer {
        quantity: u32,
        #[serde(default)]
        items: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only whether it can be read matters")]
    struct Inner {
        stock: i64,
    }

    fn refused(body: &[u8]) -> (String, String) {
        let problem = Json::<Outer>::parse(body).unwrap_err();
        assert_eq!(problem.code(), Code::Invalid);
        let body: Value = serde_json::from_slice(&problem.render(Lang::En)).unwrap();
        (body["field"].as_str().unwrap().into(), body["detail"].as_str().unwrap().into())
    }

    #[test]
    fn a_wrong_body_is_refused_with_its_field() {
        for (body, field) in [
            (&br#"{"quantity":"1"}"#[..], "quantity"),
            (br#"{"quantity":-1}"#, "quantity"),
            (br#"{"quantity":1.5}"#, "quantity"),
            (br#"{"quantity":99999999999}"#, "quantity"),
            (br#"{"quantity":null}"#, "quantity"),
            (br#"{}"#, "quantity"),
            (br#"{"quantity":1,"price":1}"#, "price"),
            (br#"{"quantity":1,"quantity":1}"#, "quantity"),
            (br#"{"quantity":1,"items":[{"stock":1},{"stock":"x"}]}"#, "items[1].stock"),
            (br#"{"quantity":1,"items":[{}]}"#, "items[0].stock"),
            (br#"{"quantity":1,"items":[{"stock":1,"x":2}]}"#, "items[0].x"),
            (br#"{"quantity":1,"items":7}"#, "items"),
            (br#"{"quantity":1} x"#, "body"),
            (br#"{"quantity":"#, "quantity"),
            (br#"[]"#, "body"),
            (br#""#, "body"),
            (b"\xff\xfe", "body"),
            (b"{\"quantity\":\"\xff\"}", "quantity"),
            (b"{\"\xff\":1}", "body"),
        ] {
            let text = String::from_utf8_lossy(body);
            let (found, detail) = refused(body);
            assert_eq!(found, field, "{text}: {detail}");
            assert!(!detail.contains(" at line "), "{detail}");
        }
        assert!(Json::<Outer>::parse(br#"{"quantity":1}"#).is_ok());
    }

    #[test]
    fn a_hostile_field_name_is_cut() {
        let name = "长".repeat(10_000);
        let (field, detail) = refused(format!(r#"{{"{name}":1}}"#).as_bytes());
        assert!(field.chars().count() <= QUOTE_CHARS_MAX);
        assert!(detail.chars().count() <= 3 * QUOTE_CHARS_MAX);
        // Deep nesting ends in an error, not in an exhausted stack.
        refused("[".repeat(100_000).as_bytes());
    }

    #[test]
    fn a_wrong_query_is_refused_with_its_field() {
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only whether it can be read matters")]
        struct Page {
            limit: u32,
        }
        let read = |uri: &str| {
            let (mut parts, ()) = http::Request::get(uri).body(()).unwrap().into_parts();
            futures_util::FutureExt::now_or_never(Query::<Page>::from_request_parts(
                &mut parts,
                &(),
            ))
            .unwrap()
        };
        assert!(read("/?limit=3").is_ok());
        for uri in ["/?limit=x", "/", "/?limit=", "/?limit=%ff"] {
            let problem = read(uri).unwrap_err();
            let body: Value = serde_json::from_slice(&problem.render(Lang::En)).unwrap();
            assert_eq!(body["field"], "limit", "{uri}: {body}");
        }
    }

    #[test]
    fn json_is_recognised_by_its_type() {
        for (value, json) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/merge-patch+json", true),
            ("application/x-www-form-urlencoded", false),
            ("text/json", false),
            ("", false),
        ] {
            assert_eq!(is_json(Some(value.as_bytes())), json, "{value}");
        }
        assert!(!is_json(None));
    }
}

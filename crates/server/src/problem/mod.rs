//! The one error type at the HTTP edge: RFC 9457 `application/problem+json`.
//!
//! A handler returns a [`Problem`], which says what happened but not yet in which language. Turned
//! into a response it is only a status and a note of itself in the response's extensions; on the
//! way out [`crate::edge`] writes the body in the language of the request. So handlers need not know
//! the language, a success pays nothing, and the bodies of plain problems (`sold_out` is most of
//! what a sale answers) are written once per language and shared.
//!
//! A problem has an outside and an inside: the inside is logged and never sent.

mod code;
mod lang;
mod rules;

use std::{
    borrow::Cow,
    fmt,
    io::Write,
    ops::Range,
    sync::{Arc, LazyLock},
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        CACHE_CONTROL, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, VARY,
        WWW_AUTHENTICATE,
    },
};
use ledger::LedgerError;
use limits::Exceeded;
use listener::RequestId;
use sale::{Invalid, Millis, OrderNo};
use serde::Serialize;
use serde_json::{Map, Value};

pub use code::Code;
pub use lang::Lang;
pub(crate) use rules::plain_cause;

pub const CONTENT_TYPE_PROBLEM: &str = "application/problem+json";
/// What an answer has beside its body, about: room for it is made at once.
const ANSWER_BYTES: usize = 448;

#[derive(Clone, Debug)]
pub struct Problem {
    code: Code,
    /// Shared and absent in most cases, so that a problem is small enough to be returned by value
    /// and to be put among the extensions of a response.
    more: Option<Arc<More>>,
    /// The limit that was exceeded. Whoever floods us is told so without an allocation for the answer.
    limit: Option<Exceeded>,
}

#[derive(Clone, Debug, Default)]
struct More {
    /// In place of the code's own sentence.
    detail: Option<(Cow<'static, str>, Cow<'static, str>)>,
    extra: Map<String, Value>,
    retry_after_ms: Option<u64>,
    inside: Option<String>,
}

impl Problem {
    pub fn new(code: Code) -> Self {
        Problem { code, more: None, limit: None }
    }

    /// A field of the request does not make sense. `problem` continues a sentence that begins with
    /// the field, as those of [`sale::Invalid`] do.
    pub fn invalid(field: impl Into<String>, problem: impl fmt::Display) -> Self {
        let problem = problem.to_string();
        Problem::invalid_in(field, &problem, &rules::in_chinese(&problem))
    }

    /// The same, where the problem is known in both languages.
    pub fn invalid_in(field: impl Into<String>, en: &str, zh: &str) -> Self {
        let field = field.into();
        let (en, zh) = (format!("{field} {en}"), format!("字段 {field} 有误：{zh}"));
        Problem::new(Code::Invalid).detail(en, zh).with("field", field)
    }

    pub fn not_found() -> Self {
        Problem::new(Code::NotFound)
    }

    /// Our fault. The cause is logged as an error and never sent.
    pub fn internal(cause: impl fmt::Display) -> Self {
        Problem::new(Code::Internal).inside(cause)
    }

    /// Something we depend on does not answer; the cause is logged and never sent.
    pub fn busy(cause: impl fmt::Display) -> Self {
        Problem::new(Code::Busy).inside(cause)
    }

    pub fn already_bought(order_no: OrderNo) -> Self {
        Problem::new(Code::AlreadyBought).with("order_no", order_no.to_string())
    }

    pub fn not_started(opens_at: Millis) -> Self {
        Problem::new(Code::NotStarted).with("opens_at", opens_at)
    }

    pub fn code(&self) -> Code {
        self.code
    }

    /// Say this instead of the code's own sentence.
    pub fn detail(
        mut self,
        en: impl Into<Cow<'static, str>>,
        zh: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.more_mut().detail = Some((en.into(), zh.into()));
        self
    }

    /// A further field of the answer.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more_mut().extra.insert(name.into(), value.into());
        self
    }

    pub fn retry_after_ms(mut self, ms: u64) -> Self {
        self.more_mut().retry_after_ms = Some(ms);
        self
    }

    /// This limit was exceeded: when to come again, and what it is.
    pub(crate) fn limit(mut self, over: Exceeded) -> Self {
        self.limit = Some(over);
        self
    }

    /// What to write to the log and never to the client.
    pub fn inside(mut self, cause: impl fmt::Display) -> Self {
        self.more_mut().inside = Some(cause.to_string());
        self
    }

    fn more_mut(&mut self) -> &mut More {
        Arc::make_mut(self.more.get_or_insert_default())
    }

    /// The body in one language.
    pub fn render(&self, lang: Lang) -> Bytes {
        match self.more.as_deref() {
            Some(more) if !more.is_plain() => write_body(self.code, lang, more),
            _ => {
                let (start, pause_ms, end) = self.plain_body(lang);
                match pause_ms {
                    None => Bytes::from_static(start),
                    Some(ms) => [start, ms.to_string().as_bytes(), end].concat().into(),
                }
            }
        }
    }

    /// The body of a problem that carries nothing of its own but perhaps when to come again, which is
    /// written between two parts.
    fn plain_body(&self, lang: Lang) -> (&'static [u8], Option<u32>, &'static [u8]) {
        let PlainBody { whole, pause } = &PLAIN[self.code as usize][lang as usize];
        match (&self.limit, pause) {
            (Some(over), Some(pause)) => {
                (&whole[..pause.start], Some(over.retry_after_ms), &whole[pause.end..])
            }
            _ => (whole, None, &[]),
        }
    }

    /// Make the answer complete: the body in this language, and the headers that go with it.
    pub(crate) fn write_into(&self, response: Response, lang: Lang) -> Response {
        let (mut parts, _) = response.into_parts();
        parts.status = self.code.status();
        parts.headers.remove(CONTENT_LENGTH);
        parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE_PROBLEM));
        parts.headers.insert(CONTENT_LANGUAGE, HeaderValue::from_static(lang.as_str()));
        parts.headers.insert(VARY, HeaderValue::from_static("accept-language"));
        parts.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        self.advise(&mut parts.headers);
        Response::from_parts(parts, Body::from(self.render(lang)))
    }

    /// The same answer as bytes, from the status line on, with these fields besides.
    pub(crate) fn write_http<'f>(
        &self,
        out: &mut Vec<u8>,
        lang: Lang,
        fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
    ) {
        // Written in parts: the answer to those who flood us allocates nothing.
        let own = self.more.as_deref().filter(|more| !more.is_plain());
        let own = own.map(|more| write_body(self.code, lang, more));
        let (start, pause_ms, end) = match &own {
            Some(body) => (&body[..], None, &[][..]),
            None => self.plain_body(lang),
        };
        out.reserve(ANSWER_BYTES + start.len() + end.len());
        out.extend_from_slice(&HEADS[self.code as usize][lang as usize]);
        for (name, value) in fields {
            write_field(out, name, value);
        }
        out.extend_from_slice(b"\r\ncontent-length: ");
        write_number(out, start.len() + pause_ms.map_or(0, digits_of) + end.len());
        out.extend_from_slice(b"\r\n");
        if let Some(seconds) = self.retry_after_s() {
            let pause = write!(out, "retry-after: {seconds}\r\n");
            pause.expect("a vector takes everything");
        }
        if self.code == Code::Unauthorized {
            out.extend_from_slice(b"www-authenticate: Bearer\r\n");
        }
        for (name, value) in self.limit.iter().flat_map(limit_fields) {
            write!(out, "{name}: {value}\r\n").expect("a vector takes everything");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(start);
        if let Some(ms) = pause_ms {
            write_number(out, ms as usize);
        }
        out.extend_from_slice(end);
    }

    /// The header counts in seconds; a pause of a few milliseconds must not become none.
    fn retry_after_s(&self) -> Option<u64> {
        let more = self.more.as_deref();
        let limit = self.limit.map(|over| u64::from(over.retry_after_ms));
        let own = limit.or_else(|| more.and_then(|more| more.retry_after_ms));
        let pause_ms = own.or(self.code.retry_after_ms());
        pause_ms.map(|ms| ms.div_ceil(1_000).max(1))
    }

    fn advise(&self, headers: &mut HeaderMap) {
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        for (name, value) in self.limit.iter().flat_map(limit_fields) {
            if let Ok(value) = HeaderValue::try_from(value.to_string()) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        if self.code == Code::Unauthorized {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
    }

    /// Write the inside to the log. Only our own faults are errors: they should wake someone.
    pub(crate) fn log(&self, method: &http::Method, path: &str, request: RequestId) {
        let code = self.code.as_str();
        let Some(cause) = self.cause() else { return };
        match self.code {
            Code::Internal => tracing::error!(%request, %method, path, cause, "a request failed"),
            Code::Busy | Code::Unknown => {
                tracing::warn!(%request, %method, path, code, cause, "a request could not be served");
            }
            _ => tracing::debug!(%request, %method, path, code, cause, "a request was refused"),
        }
    }

    /// What is for the log only.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.more.as_deref()?.inside.as_deref()
    }
}

impl More {
    fn is_plain(&self) -> bool {
        self.detail.is_none() && self.extra.is_empty() && self.retry_after_ms.is_none()
    }
}

/// The bodies of problems that carry nothing of their own, by code and language.
static PLAIN: LazyLock<Vec<[PlainBody; 2]>> = LazyLock::new(|| {
    let body = |code, lang| PlainBody::of(&write_body(code, lang, &More::default()));
    Code::ALL.iter().map(|&code| Lang::ALL.map(|lang| body(code, lang))).collect()
});

/// How an answer begins, by code and language.
static HEADS: LazyLock<Vec<[Vec<u8>; 2]>> = LazyLock::new(|| {
    let head = |code: Code, lang: Lang| {
        let status = code.status();
        let reason = status.canonical_reason().unwrap_or_default();
        format!(
            "HTTP/1.1 {} {reason}\r\ncontent-type: {CONTENT_TYPE_PROBLEM}\r\ncontent-language: {}\r\n\
             vary: accept-language\r\ncache-control: no-store\r\nx-content-type-options: nosniff",
            status.as_str(),
            lang.as_str()
        )
        .into_bytes()
    };
    Code::ALL.iter().map(|&code| Lang::ALL.map(|lang| head(code, lang))).collect()
});

fn digits_of(number: u32) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

/// In decimal digits, without the machinery that can write anything.
fn write_number(out: &mut Vec<u8>, mut number: usize) {
    let (mut digits, mut at) = ([0; 20], 20);
    while at == 20 || number > 0 {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits[at..]);
}

struct PlainBody {
    whole: Vec<u8>,
    /// Where the number is that says when to come again.
    pause: Option<Range<usize>>,
}

impl PlainBody {
    fn of(body: &[u8]) -> PlainBody {
        const FIELD: &[u8] = b"\"retry_after_ms\":";
        let field = body.windows(FIELD.len()).position(|part| part == FIELD);
        let pause = field.map(|field| {
            let start = field + FIELD.len();
            let digits = body[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            start..start + digits
        });
        PlainBody { whole: body.to_vec(), pause }
    }
}

/// Write one field of a head, after whatever is there.
pub(crate) fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [b"\r\n", name.as_bytes(), b": ", value] {
        out.extend_from_slice(part);
    }
}

/// What a limit is called in the fields that say what it is, which are those of the IETF's draft
/// *RateLimit header fields for HTTP*.
fn limit_fields(over: &Exceeded) -> [(&'static str, LimitField<'_>); 2] {
    [("ratelimit-policy", LimitField::Policy(over)), ("ratelimit", LimitField::State(over))]
}

enum LimitField<'a> {
    Policy(&'a Exceeded),
    State(&'a Exceeded),
}

impl fmt::Display for LimitField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (LimitField::Policy(over) | LimitField::State(over)) = self;
        write!(f, "\"{}-per-{}\"", over.class.as_str(), over.by.as_str())?;
        match self {
            LimitField::Policy(over) => write!(f, ";q={};w={}", over.burst, over.window_s),
            LimitField::State(over) => write!(f, ";r=0;t={}", over.retry_after_ms.div_ceil(1_000)),
        }
    }
}

fn write_body(code: Code, lang: Lang, more: &More) -> Bytes {
    #[derive(Serialize)]
    struct Written<'a> {
        r#type: &'a str,
        title: &'a str,
        status: u16,
        detail: &'a str,
        code: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
        #[serde(flatten)]
        extra: &'a Map<String, Value>,
    }
    let detail = more.detail.as_ref().map(|(en, zh)| match lang {
        Lang::En => en.as_ref(),
        Lang::Zh => zh.as_ref(),
    });
    let written = Written {
        r#type: code.uri(),
        title: code.title(lang),
        status: code.status().as_u16(),
        detail: detail.unwrap_or_else(|| code.detail(lang)),
        code: code.as_str(),
        retry_after_ms: more.retry_after_ms.or(code.retry_after_ms()),
        extra: &more.extra,
    };
    // Strings, numbers and JSON values always serialize; an empty body would still carry a status.
    Bytes::from(serde_json::to_vec(&written).unwrap_or_default())
}

impl IntoResponse for Problem {
    /// A status and a note; [`crate::edge`] writes the body.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.code.status();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Code> for Problem {
    fn from(code: Code) -> Self {
        Problem::new(code)
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        match invalid.problem_zh {
            Some(zh) => Problem::invalid_in(invalid.field, &invalid.problem, &zh),
            None => Problem::invalid(invalid.field, invalid.problem),
        }
    }
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Unavailable(_) => Problem::busy(error),
            LedgerError::NotFound => Problem::not_found(),
            LedgerError::Refused(invalid) => invalid.into(),
            LedgerError::Broken(_) => Problem::internal(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(problem: &Problem, lang: Lang) -> Value {
        serde_json::from_slice(&problem.render(lang)).unwrap()
    }

    #[test]
    fn a_plain_problem_says_what_its_code_says() {
        let en = json(&Code::SoldOut.into(), Lang::En);
        assert_eq!(en["type"], "/docs#sold_out");
        assert_eq!(en["status"], 409);
        assert_eq!(en["code"], "sold_out");
        assert_eq!(en["title"], "Sold out");
        assert_eq!(json(&Code::SoldOut.into(), Lang::Zh)["title"], "已售罄");
    }

    #[test]
    fn a_problem_carries_its_own_fields_but_not_its_inside() {
        let problem = Problem::invalid("quantity", "must be 1").inside("the secret cause");
        let body = json(&problem, Lang::En);
        assert_eq!(body["field"], "quantity");
        assert_eq!(body["detail"], "quantity must be 1");
        assert!(!body.to_string().contains("secret cause"));
        let plain_with_inside = Problem::internal("the secret cause");
        assert!(!json(&plain_with_inside, Lang::Zh).to_string().contains("secret cause"));
        assert_eq!(json(&Problem::not_started(17), Lang::En)["opens_at"], 17);
    }

    #[test]
    fn those_told_to_wait_are_told_how_long() {
        for (problem, header, ms) in [
            (Problem::new(Code::TooHot), "1", 1_000),
            (Problem::new(Code::TooHot).retry_after_ms(40), "1", 40),
            (Problem::new(Code::RateLimited).retry_after_ms(2_001), "3", 2_001),
            (Problem::busy("x"), "1", 1_000),
        ] {
            let response = problem.write_into(Response::default(), Lang::En);
            assert_eq!(response.headers()[RETRY_AFTER], header);
            assert_eq!(json(&problem, Lang::En)["retry_after_ms"], ms);
        }
        let response = Problem::new(Code::SoldOut).write_into(Response::default(), Lang::En);
        assert!(!response.headers().contains_key(RETRY_AFTER));
    }

    #[test]
    fn whoever_asks_too_often_is_told_the_limit_and_when_to_come_again() {
        use limits::{By, Class};
        let over = Exceeded {
            class: Class::Claims,
            by: By::User,
            burst: 20,
            window_s: 4,
            retry_after_ms: 1_234,
        };
        let problem = Problem::new(Code::RateLimited).limit(over);
        let response = problem.write_into(Response::default(), Lang::En);
        let fields = [
            ("retry-after", "2"),
            ("ratelimit-policy", "\"claims-per-user\";q=20;w=4"),
            ("ratelimit", "\"claims-per-user\";r=0;t=2"),
        ];
        for lang in Lang::ALL {
            assert_eq!(json(&problem, lang)["retry_after_ms"], 1_234);
            let mut written = Vec::new();
            problem.write_http(&mut written, lang, []);
            let written = String::from_utf8(written).unwrap();
            let (head, body) = written.split_once("\r\n\r\n").unwrap();
            assert_eq!(body.as_bytes(), &problem.render(lang)[..], "both ways say the same");
            assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
            for (name, value) in fields {
                assert!(head.contains(&format!("\r\n{name}: {value}")), "{head}");
                assert_eq!(response.headers()[name], value);
            }
        }
    }

    #[test]
    fn the_ledgers_words_become_ours() {
        let code = |error: LedgerError| Problem::from(error).code();
        assert_eq!(code(LedgerError::Unavailable("x".into())), Code::Busy);
        assert_eq!(code(LedgerError::NotFound), Code::NotFound);
        assert_eq!(code(LedgerError::Refused(Invalid::new("stock", "no"))), Code::Invalid);
        assert_eq!(code(LedgerError::Broken("x".into())), Code::Internal);
    }
}

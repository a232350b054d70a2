//! Pages of other origins: which of them may ask (CORS), and which may show us in a frame.
//!
//! A browser lets a page read answers of another origin only if they name the page's. Those that
//! `http.allowed_origins` lists are named, exactly and one at a time; there is no `*`, and nobody is asked
//! for cookies: a page brings its tokens in headers. Operators' requests, which may come by the console's
//! cookie, are left out: a shop's page has no business there.
//!
//! Before a request that is not a plain one the browser asks whether it may (a *preflight*). That is answered
//! here, before the router, from memory, and remembered by the browser for [`PREFLIGHT_S_MAX`].
//!
//! What is answered depends on who asks, and says so (`Vary`), or a cache would give one page's answer to
//! another.
//! Where no origins are allowed, none of this is there: one look at an empty list.

use std::sync::Arc;

use axum::{body::Body, extract::Request, response::Response};
use http::{
    HeaderMap, HeaderValue, Method, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD,
        ORIGIN, VARY,
    },
};

/// Two hours: no browser remembers it for longer than Chromium does.
const PREFLIGHT_S_MAX: u32 = 7_200;
const METHODS: &str = "GET, POST";
/// What our requests carry beside what any page may send.
const HEADERS: &str = "authorization, content-type, idempotency-key, last-event-id, x-sale-token";
/// What a page may read of an answer beside what it always may.
pub(crate) const EXPOSED: &str = "ratelimit, ratelimit-policy, retry-after, x-request-id";
/// Operators come from the console or from a program, not from a page of the shop.
const OPERATORS: &str = "/api/v1/admin";

/// The origins whose pages may ask. A clone is a reference.
#[derive(Clone, Debug, Default)]
pub struct Origins(Arc<[HeaderValue]>);

impl Origins {
    /// The settings have been checked; what cannot be a header is no origin either.
    pub fn new(allowed: &[String]) -> Origins {
        Origins(allowed.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect())
    }

    /// Nobody but our own pages.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one that this is, if it may ask: bytes that are compared as they are.
    pub fn find(&self, origin: &[u8]) -> Option<&HeaderValue> {
        self.0.iter().find(|allowed| allowed.as_bytes() == origin)
    }

    /// Whose page asks, if this is a request for which that matters.
    pub(crate) fn asker(&self, request: &Request) -> Asker {
        if self.is_empty() || request.uri().path().starts_with(OPERATORS) {
            return Asker::Anybody;
        }
        let mut given = request.headers().get_all(ORIGIN).iter();
        match (given.next(), given.next()) {
            (Some(origin), None) => match self.find(origin.as_bytes()) {
                Some(allowed) => Asker::Page(allowed.clone()),
                None => Asker::Stranger,
            },
            _ => Asker::Stranger,
        }
    }
}

/// Whose page a request comes from.
#[derive(Clone, Debug)]
pub(crate) enum Asker {
    /// It makes no difference.
    Anybody,
    /// One of ours, no page at all, or a page that may not ask: it is not named.
    Stranger,
    Page(HeaderValue),
}

impl Asker {
    /// The answer to a preflight, if this is one of a page that may ask.
    pub(crate) fn preflight(&self, request: &Request) -> Option<Response> {
        let Asker::Page(_) = self else { return None };
        let asks = request.method() == Method::OPTIONS
            && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        if !asks {
            return None;
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(HEADERS));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(PREFLIGHT_S_MAX));
        Some(response)
    }

    /// Names the page, if it may ask, and says that others get another answer.
    pub(crate) fn name(self, headers: &mut HeaderMap) {
        match self {
            Asker::Anybody => return,
            Asker::Stranger => {}
            Asker::Page(origin) => {
                headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
                headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
            }
        }
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins() -> Origins {
        Origins::new(&["https://shop.example".into(), "http://127.0.0.1:8000".into()])
    }

    fn request(method: Method, path: &str, origins: &[&str]) -> Request {
        let mut request = Request::builder().method(method).uri(path);
        for origin in origins {
            request = request.header(ORIGIN, *origin);
        }
        request.header(ACCESS_CONTROL_REQUEST_METHOD, "POST").body(Body::empty()).unwrap()
    }

    fn named(origins: &Origins, request: &Request) -> (Option<String>, bool) {
        let mut headers = HeaderMap::new();
        headers.insert(VARY, HeaderValue::from_static("accept-language"));
        origins.asker(request).name(&mut headers);
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let varies = headers.get_all(VARY).iter().any(|value| value == "origin");
        (headers.get(ACCESS_CONTROL_ALLOW_ORIGIN).map(text), varies)
    }

    #[test]
    fn only_an_origin_that_is_allowed_is_named() {
        let get = |origin: &[&str]| request(Method::GET, "/api/v1/items/1", origin);
        for allowed in ["https://shop.example", "http://127.0.0.1:8000"] {
            assert_eq!(named(&origins(), &get(&[allowed])), (Some(allowed.into()), true));
        }
        for other in [
            &[][..],
            &["null"],
            &["https://shop.example.evil"],
            &["http://shop.example"],
            &["https://shop.example:443"],
            &["https://SHOP.example"],
            &["https://shop.example", "https://shop.example"],
        ] {
            assert_eq!(named(&origins(), &get(other)), (None, true), "{other:?}");
        }
        let operators = request(Method::GET, "/api/v1/admin/orders", &["https://shop.example"]);
        assert_eq!(named(&origins(), &operators), (None, false));
        let nobody = Origins::new(&[]);
        assert_eq!(named(&nobody, &get(&["https://shop.example"])), (None, false));
    }

    #[test]
    fn a_preflight_is_answered_to_those_who_may_ask() {
        let path = "/api/v1/items/1/claims";
        let ask = |method: Method, path: &str, origin: &str| {
            let request = request(method, path, &[origin]);
            origins().asker(&request).preflight(&request)
        };
        let answer = ask(Method::OPTIONS, path, "https://shop.example").unwrap();
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        assert_eq!(answer.headers()[ACCESS_CONTROL_MAX_AGE], "7200");
        assert!(
            answer.headers()[ACCESS_CONTROL_ALLOW_HEADERS]
                .to_str()
                .unwrap()
                .contains("x-sale-token")
        );
        assert!(!answer.headers().contains_key("access-control-allow-credentials"));
        assert!(ask(Method::OPTIONS, path, "https://evil.example").is_none());
        assert!(ask(Method::POST, path, "https://shop.example").is_none());
        assert!(ask(Method::OPTIONS, "/api/v1/admin/orders", "https://shop.example").is_none());
    }
}

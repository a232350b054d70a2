//! What a person sees in a browser at an address that is none of ours: a page, in their language, with
//! the way to the shop. Programs, and whoever asks the API, are told by problem+json as ever.
//!
//! The page is complete in itself: it is shown where everything else is missing, so it asks for nothing but
//! what browsers ask for anyway, and what was asked for does not stand in it.

use std::sync::LazyLock;

use axum::{body::Body, response::Response};
use base64::{Engine, prelude::BASE64_STANDARD};
use http::{
    HeaderMap, HeaderValue, Method,
    header::{
        ACCEPT, CACHE_CONTROL, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_SECURITY_POLICY,
        CONTENT_TYPE, VARY,
    },
};
use sha2::{Digest, Sha256};

use crate::{api::BASE, problem::Lang};

const ICON: &str = include_str!("../../../web/icon.svg");
const STYLE: &str = "\
:root{color-scheme:light dark;--page:#f2f3f5;--ink:#0f1115;--soft:#575e6a;--hot:#de2410}\
@media(prefers-color-scheme:dark){:root{--page:#0b0d11;--ink:#f1f3f7;--soft:#a0a8b6;--hot:#dd2c18}}\
body{margin:0;min-height:100vh;display:grid;place-content:center;padding:24px;box-sizing:border-box;\
background:var(--page);color:var(--ink);text-align:center;\
font:16px/1.5 system-ui,-apple-system,\"Segoe UI\",\
\"PingFang SC\",\"Microsoft YaHei\",\"Noto Sans CJK SC\",sans-serif}\
main{display:grid;justify-items:center;gap:8px}svg{width:56px;height:56px}\
h1{margin:8px 0 0;font-size:26px;line-height:1.25;text-wrap:balance}\
p{margin:0;max-width:40ch;color:var(--soft)}\
a{margin-top:16px;padding:12px 22px;border-radius:12px;background:var(--hot);color:#fff;font-weight:600;\
text-decoration:none}a:focus-visible{outline:3px solid var(--ink);outline-offset:2px}";

/// Its own style, by hash, and the icon that browsers fetch; nothing else, and in no frame.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = BASE64_STANDARD.encode(Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; img-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    )
});

static PAGES: LazyLock<[String; 2]> = LazyLock::new(|| Lang::ALL.map(page));

/// Is it a browser that wants to show something, and not a program, and not a question to the API?
pub(crate) fn wants_a_page(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    let shows = |kinds: &HeaderValue| {
        let kinds = kinds.to_str().unwrap_or_default();
        kinds.split([',', ';']).any(|kind| kind.trim().eq_ignore_ascii_case("text/html"))
    };
    matches!(*method, Method::GET | Method::HEAD)
        && !path.starts_with(BASE)
        && headers.get(ACCEPT).is_some_and(shows)
}

/// The same answer with a page in it.
pub(crate) fn shown(answer: Response, lang: Lang) -> Response {
    let (mut parts, _) = answer.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_LANGUAGE, lang.as_str()),
        (VARY, "accept, accept-language"),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY.as_str()),
    ] {
        parts.headers.insert(name, HeaderValue::from_static(value));
    }
    Response::from_parts(parts, Body::from(PAGES[lang as usize].as_str()))
}

fn page(lang: Lang) -> String {
    let [tag, title, says, shop] = match lang {
        Lang::En => [
            "en",
            "There is nothing here",
            "Perhaps the address was mistyped, or the sale it led to is gone.",
            "To the shop",
        ],
        Lang::Zh => ["zh-CN", "这里什么也没有", "地址可能有误，或对应的活动已经下线。", "前往商城"],
    };
    format!(
        "<!doctype html><html lang=\"{tag}\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>404 · {title}</title><style>{STYLE}</style></head>\
         <body><main>{ICON}<h1>{title}</h1><p>{says}</p><a href=\"/\">{shop}</a></main></body></html>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_that_open_an_address_want_a_page_and_nobody_else() {
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for (method, path, accept, page) in [
            (Method::GET, "/nowhere", Some(browser), true),
            (Method::HEAD, "/nowhere", Some("Text/HTML;q=0.1"), true),
            (Method::GET, "/nowhere", Some("*/*"), false),
            (Method::GET, "/nowhere", None, false),
            (Method::POST, "/nowhere", Some(browser), false),
            (Method::GET, "/api/v1/nowhere", Some(browser), false),
        ] {
            let mut headers = HeaderMap::new();
            headers.extend(accept.map(|kinds| (ACCEPT, HeaderValue::from_static(kinds))));
            assert_eq!(wants_a_page(&method, path, &headers), page, "{method} {path} {accept:?}");
        }
    }
}

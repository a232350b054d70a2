//! Operators who are signed in to the console: by a cookie, which the browser sends by itself.
//!
//! That it sends it by itself is the danger. A page of somebody else may make a browser ask us anything,
//! and the cookie would come along (*cross-site request forgery*). Four things stand against it, each of them
//! enough where the others hold:
//!
//! - The cookie is `SameSite=Strict`: browsers do not send it with what another site has begun.
//! - Every request by cookie must carry [`HEADER`]. A form cannot send it, and a script of another origin may
//!   only after it was allowed to, which we never answer for operators' requests (see [`crate::origins`]).
//! - What changes something must name the page it comes from (`Origin`), and that must be a page of the host
//!   that is asked. A page beside ours on the same site, at another name or port, is a stranger, too.
//! - `Sec-Fetch-Site`, where a browser says it, must say the same.
//!
//! The same is asked of signing in, or a page of somebody else could sign an operator in as somebody else.
//! Reading needs the header as well: then no answer can be had by a script tag, and an address that an
//! operator was lured to shows nothing.
//!
//! The cookie is `HttpOnly`, so that no script can read it, bound to the paths of operators, and `Secure`
//! where the page came by TLS, be it ours or a proxy's. Whoever sends two of them has one that is not ours:
//! neither counts. A bearer token beside a cookie wins; programs have no cookies.

use auth::{AdminError, Admins, ConsoleSessions, SessionError, SignedIn};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{COOKIE, HOST, ORIGIN},
    request::Parts,
};
use listener::Peer;

use super::{AccessRefusal, note, refused};
use crate::problem::{Code, Problem};

const NAME: &str = "seckill_console";
/// The cookie goes nowhere else.
const PATH: &str = "/api/v1/admin";
/// What a form of another page cannot send.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-seckill-console");
const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// The secret of the cookie, if there is exactly one of ours.
pub(crate) fn session_secret(headers: &HeaderMap) -> Option<&str> {
    let pairs = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = pairs.flat_map(|value| value.split(';')).filter_map(|pair| pair.split_once('='));
    let mut ours = pairs.filter(|(name, _)| name.trim() == NAME).map(|(_, value)| value.trim());
    match (ours.next(), ours.next()) {
        (Some(secret), None) => Some(secret),
        _ => None,
    }
}

/// Does the request come from a page of ours?
pub(crate) fn check_is_our_page(parts: &Parts) -> Result<(), Problem> {
    let headers = &parts.headers;
    let foreign = || {
        let problem = Problem::new(Code::Forbidden).detail(
            "Requests by cookie are taken from our own console only.",
            "基于 Cookie 的请求仅接受来自本系统控制台页面的调用。",
        );
        note(AccessRefusal::Origin, None, parts, &problem);
        problem
    };
    let site = headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes);
    let told = headers.get(HEADER).is_some_and(|value| value == "1");
    if !told || site.is_some_and(|site| site != b"same-origin") {
        return Err(foreign());
    }
    let reads = matches!(parts.method, Method::GET | Method::HEAD);
    match headers.get(ORIGIN) {
        None if reads => Ok(()),
        Some(origin) if is_of_host(origin, parts) => Ok(()),
        _ => Err(foreign()),
    }
}

/// Is it the origin of a page of the host that is asked? Whether by TLS only the browser knows: there may be
/// a proxy before us.
fn is_of_host(origin: &HeaderValue, parts: &Parts) -> bool {
    let host = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| parts.uri.authority().map(|authority| authority.as_str()));
    let named = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let (Some(host), Some((scheme, named))) = (host, named) else { return false };
    matches!(scheme, "http" | "https") && named.eq_ignore_ascii_case(host)
}

/// For a browser that is signed in.
pub(crate) fn cookie(secret: &str, lasts_ms: i64, headers: &HeaderMap) -> HeaderValue {
    let by_tls = headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https:"));
    let secure = if by_tls { "; Secure" } else { "" };
    let seconds = lasts_ms.max(0) / 1_000;
    let text = format!(
        "{NAME}={secret}; Path={PATH}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    );
    // Hex and plain letters: it is always one.
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// For a browser that is not signed in any more.
pub(crate) fn no_cookie(headers: &HeaderMap) -> HeaderValue {
    cookie("", 0, headers)
}

/// Who is signed in.
pub(crate) async fn signed_in(
    secret: &str,
    parts: &Parts,
    sessions: &ConsoleSessions,
    admins: &Admins,
) -> Result<SignedIn, Problem> {
    check_is_our_page(parts)?;
    let from = parts.extensions.get::<Peer>().map(|peer| peer.0);
    let verified = sessions.verify(secret, admins, from).await;
    verified.map_err(|error| match error {
        SessionError::Over | SessionError::Token(AdminError::BadToken) => {
            let problem = refused().detail(
                "You are signed out: the session is over. Please sign in again.",
                "会话已结束，请重新登录。",
            );
            note(AccessRefusal::Session, None, parts, &problem);
            problem
        }
        SessionError::Token(error) => super::explain(error, parts),
    })
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(method: Method, fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri("/api/v1/admin/overview");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn one_cookie_of_ours_is_found_among_others() {
        for (values, secret) in [
            (&["seckill_console=ab"][..], Some("ab")),
            (&["a=b; seckill_console=ab; c=d"], Some("ab")),
            (&["a=b", "seckill_console=ab"], Some("ab")),
            (&["seckill_console=ab; seckill_console=cd"], None),
            (&["seckill_console=ab", "seckill_console=ab"], None),
            (&["xseckill_console=ab"], None),
            (&["seckill_console"], None),
            (&[], None),
        ] {
            let headers: HeaderMap = values.iter().map(|v| (COOKIE, v.parse().unwrap())).collect();
            assert_eq!(session_secret(&headers), secret, "{values:?}");
        }
    }

    #[test]
    fn only_our_own_page_may_use_the_cookie() {
        let (ours, told) = (("host", "shop.example:8080"), ("x-seckill-console", "1"));
        let origin = ("origin", "http://shop.example:8080");
        let ok = |method: Method, fields: &[(&str, &str)]| {
            check_is_our_page(&parts(method, fields)).is_ok()
        };
        assert!(ok(Method::GET, &[ours, told]));
        assert!(ok(Method::POST, &[ours, told, origin]));
        assert!(ok(Method::POST, &[ours, told, origin, ("sec-fetch-site", "same-origin")]));
        assert!(ok(Method::POST, &[ours, told, ("origin", "https://SHOP.example:8080")]));
        // Without the header, by anything that a form can do.
        assert!(!ok(Method::GET, &[ours]) && !ok(Method::POST, &[ours, origin]));
        assert!(!ok(Method::POST, &[ours, ("x-seckill-console", "0"), origin]));
        // Without a page, or from that of somebody else.
        assert!(!ok(Method::POST, &[ours, told]));
        for foreign in [
            "null",
            "http://shop.example",
            "http://shop.example:8081",
            "http://shop.example:8080.evil.example",
            "http://evil.example",
            "file://shop.example:8080",
            "shop.example:8080",
        ] {
            for method in [Method::GET, Method::POST, Method::DELETE] {
                assert!(!ok(method, &[ours, told, ("origin", foreign)]), "{foreign}");
            }
        }
        for site in ["cross-site", "same-site", "none"] {
            assert!(!ok(Method::GET, &[ours, told, ("sec-fetch-site", site)]), "{site}");
        }
        assert!(!ok(Method::POST, &[told, origin]), "nobody knows which host is asked");
    }

    #[test]
    fn the_cookie_is_kept_from_scripts_and_other_sites() {
        let plain = cookie("ab", 3_600_999, &HeaderMap::new());
        let expected =
            "seckill_console=ab; Path=/api/v1/admin; Max-Age=3600; HttpOnly; SameSite=Strict";
        assert_eq!(plain, expected);
        let by_tls = [(ORIGIN, HeaderValue::from_static("https://shop.example"))];
        let by_tls: HeaderMap = by_tls.into_iter().collect();
        assert_eq!(cookie("ab", 3_600_999, &by_tls), format!("{expected}; Secure"));
        assert!(no_cookie(&by_tls).to_str().unwrap().contains("seckill_console=; "));
    }
}

//! The pages, which are in the binary: the shop, the sandbox cashier, the reader of the API; and the button
//! for pages of others. What they are made of was joined, packed and named when the binary was built
//! ([`pages`]).
//!
//! Everything is served from static memory with an `ETag` made of its content, in the smallest packing that
//! whoever asks understands. Pages may be seconds old, what they name never changes.

use std::{collections::HashMap, io::Read, sync::LazyLock};

use axum::{
    Router,
    body::Body,
    extract::Path,
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{
        ACCEPT_ENCODING, ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_ENCODING,
        CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, VARY,
        X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
    },
};
use pages::{File, Found};

use crate::problem::Problem;

/// Each page and the file it is made of: a line here, and a folder in `web`.
const PAGES: &[(&str, &str)] = &[
    ("/", "shop/index.html"),
    ("/items/{id}", "shop/index.html"),
    ("/cashier/{txn}", "cashier/index.html"),
    ("/docs", "docs/index.html"),
];
/// What other people's pages fetch.
const SCRIPTS: &[(&str, &str)] =
    &[("/embed.js", pages::BUTTON), ("/embed-challenge.js", pages::SOLVER)];
const FAVICON: &str = "favicon.ico";

/// Served where operators are, and nowhere else.
const CONSOLE: &str = "console/index.html";

/// Scripts and styles of our own only, nothing inline. Pictures of items may come from the shop's image
/// server. Who may frame us follows.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' https: data:; connect-src 'self'; base-uri 'none'; form-action 'self'; \
    frame-ancestors ";
const NOBODY: &str = "'none'";
/// Never in a frame: nobody shops there.
const UNFRAMED: &str = "/docs";

/// A page is the same for everybody, so a crowd that reloads is answered by whatever cache stands before us.
/// It is short, because a page names scripts of its own build.
const PAGE_CACHING: &str = "public, max-age=5";
/// What is named after what is in it never changes.
const NAMED_CACHING: &str = "public, max-age=31536000, immutable";
const PLAIN_CACHING: &str = "public, max-age=60";
/// A page of yesterday's build meets today's scripts for a moment; no cache may keep them under yesterday's
/// name.
const OTHER_BUILD_CACHING: &str = "no-store";

/// The policy of a page that only pages of these origins may frame.
fn policy(frames: &[String]) -> HeaderValue {
    let framed = if frames.is_empty() { NOBODY.to_owned() } else { frames.join(" ") };
    // The settings let nothing else in than what may stand in a header.
    let policy = HeaderValue::try_from(format!("{POLICY}{framed}"));
    policy
        .unwrap_or_else(|_| HeaderValue::from_static("frame-ancestors 'none'; default-src 'none'"))
}

/// Pages may be framed by pages of these origins.
pub fn routes<S: Clone + Send + Sync + 'static>(frames: &[String]) -> Router<S> {
    let (framed, unframed) = (policy(frames), policy(&[]));
    let mut routes = Router::new();
    for &(path, file) in PAGES {
        let policy = if path == UNFRAMED { &unframed } else { &framed };
        let policy = policy.clone();
        let shown = async move |headers: HeaderMap| page(file, policy.clone(), &headers);
        routes = routes.route(path, get(shown));
    }
    for &(path, file) in SCRIPTS {
        routes = routes.route(path, get(async move |headers: HeaderMap| script(file, &headers)));
    }
    let favicon = async |headers: HeaderMap| favicon(&headers);
    // As some people type it.
    let docs = get(async || Redirect::permanent("/docs"));
    routes.route("/favicon.ico", get(favicon)).route("/docs/", docs).merge(assets())
}

/// The console of operators; nobody frames it. Where [`routes`] are not served beside it, it brings its
/// scripts and styles.
pub fn console<S: Clone + Send + Sync + 'static>(with_assets: bool) -> Router<S> {
    let shown = async |headers: HeaderMap| page(CONSOLE, policy(&[]), &headers);
    let typed = get(async || Redirect::permanent("/console"));
    let router = Router::new().route("/console", get(shown)).route("/console/", typed);
    if with_assets { router.merge(assets()) } else { router }
}

fn assets<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let given = async |Path(path): Path<String>, headers: HeaderMap| asset(&path, &headers);
    Router::new().route("/assets/{*path}", get(given))
}

fn page(file: &str, policy: HeaderValue, asked: &HeaderMap) -> Result<Response, Problem> {
    let found = pages::file(file).ok_or_else(Problem::not_found)?;
    let mut response = answer(found, PAGE_CACHING, asked);
    let headers = response.headers_mut();
    // For those who do not know frame-ancestors; it cannot name anybody.
    if policy.as_bytes().ends_with(NOBODY.as_bytes()) {
        headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    }
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    // The address of a cashier's page names a payment; it is nobody else's business.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let opener = HeaderName::from_static("cross-origin-opener-policy");
    headers.insert(opener, HeaderValue::from_static("same-origin"));
    Ok(response)
}

/// The names are looked up in a table, so a path with dots in it can only miss.
fn asset(path: &str, asked: &HeaderMap) -> Result<Response, Problem> {
    match pages::asset(path).ok_or_else(Problem::not_found)? {
        Found::Named(file) => Ok(answer(file, NAMED_CACHING, asked)),
        Found::Plain(file) => Ok(answer(file, PLAIN_CACHING, asked)),
        Found::OfAnotherBuild(file) => Ok(answer(file, OTHER_BUILD_CACHING, asked)),
    }
}

fn favicon(asked: &HeaderMap) -> Result<Response, Problem> {
    let icon = pages::file(FAVICON).ok_or_else(Problem::not_found)?;
    Ok(answer(icon, PLAIN_CACHING, asked))
}

/// What the API promises.
pub(crate) fn document(asked: &HeaderMap) -> Result<Response, Problem> {
    let found = pages::file(pages::DOCUMENT).ok_or_else(Problem::not_found)?;
    Ok(answer(found, PLAIN_CACHING, asked))
}

/// A script for pages of others, who may import it.
fn script(file: &str, asked: &HeaderMap) -> Result<Response, Problem> {
    let found = pages::file(file).ok_or_else(Problem::not_found)?;
    let mut response = answer(found, PLAIN_CACHING, asked);
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    Ok(response)
}

fn answer(file: &'static File, caching: &'static str, asked: &HeaderMap) -> Response {
    let (bytes, encoding) = packing(file, asked);
    // Each packing is a representation of its own.
    let tag = format!("\"{}{}\"", file.hash, encoding.unwrap_or_default());
    let mut response = if is_current(asked, &tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        Response::new(Body::from(Bytes::from_static(bytes)))
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(ETAG, tag);
    }
    if let Some(encoding) = encoding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
    }
    if file.brotli.or(file.gzip).is_some() {
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(caching));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The smallest of what the asker takes.
fn packing(file: &'static File, asked: &HeaderMap) -> (&'static [u8], Option<&'static str>) {
    let packings = [(file.brotli, "br"), (file.gzip, "gzip")];
    let only_so = file.plain.is_empty() && file.brotli.is_none();
    let taken = packings.into_iter().find_map(|(bytes, name)| {
        bytes.filter(|_| only_so || takes(asked, name)).map(|bytes| (bytes, Some(name)))
    });
    taken.unwrap_or_else(|| match file.gzip {
        Some(_) if file.plain.is_empty() => (unpacked(file), None),
        _ => (file.plain, None),
    })
}

/// Of the files that are in the binary packed alone, for those who take no packing: programs, mostly.
fn unpacked(file: &File) -> &'static [u8] {
    static UNPACKED: LazyLock<HashMap<&str, Vec<u8>>> = LazyLock::new(|| {
        let unpack = |file: &'static File| {
            let (packed, mut bytes) = (file.gzip.filter(|_| file.plain.is_empty())?, Vec::new());
            // What was packed by our own build is whole; the tests read it.
            let _ = flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes);
            Some((file.path, bytes))
        };
        pages::files().iter().filter(|file| file.brotli.is_some()).filter_map(unpack).collect()
    });
    UNPACKED.get(file.path).map_or(&[], Vec::as_slice)
}

/// Does whoever asks understand this encoding? Only what is named is believed, and not at a quality of
/// nothing.
fn takes(asked: &HeaderMap, encoding: &str) -> bool {
    let named = asked.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    named.flat_map(|value| value.split(',')).any(|one| {
        let (name, quality) = one.split_once(';').unwrap_or((one, ""));
        let quality = quality.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse::<f32>);
        name.trim().eq_ignore_ascii_case(encoding) && quality.is_ok_and(|quality| quality > 0.0)
    })
}

fn is_current(asked: &HeaderMap, tag: &str) -> bool {
    let known = asked.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut known = known.flat_map(|value| value.split(',')).map(str::trim);
    known.any(|known| known == "*" || known.trim_start_matches("W/") == tag)
}

#[cfg(test)]
mod tests {
    use axum::extract::Request;
    use http_body_util::BodyExt;
    use sha2::{Digest, Sha256};
    use tower::ServiceExt;

    use super::*;

    async fn get(path: &str, known: Option<&str>) -> (StatusCode, HeaderMap, Bytes) {
        get_framed(path, known, &[]).await
    }

    async fn get_framed(
        path: &str,
        known: Option<&str>,
        frames: &[String],
    ) -> (StatusCode, HeaderMap, Bytes) {
        let known = known.map(|known| (IF_NONE_MATCH, known));
        get_with(path, known.as_slice(), frames).await
    }

    async fn get_with(
        path: &str,
        asked: &[(HeaderName, &str)],
        frames: &[String],
    ) -> (StatusCode, HeaderMap, Bytes) {
        let mut request = Request::get(path);
        for (name, value) in asked {
            request = request.header(name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = routes::<()>(frames).oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, body.collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn pages_come_with_a_strict_policy_and_are_revalidated() {
        for path in ["/", "/items/42", "/cashier/T123", "/docs"] {
            let (status, headers, body) = get(path, None).await;
            assert_eq!(status, StatusCode::OK, "{path}");
            assert_eq!(headers[CONTENT_TYPE], "text/html; charset=utf-8");
            assert_eq!(headers[CONTENT_SECURITY_POLICY], format!("{POLICY}'none'"));
            assert_eq!(headers[X_FRAME_OPTIONS], "DENY");
            assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
            assert_eq!(headers[REFERRER_POLICY], "no-referrer");
            assert_eq!(headers[CACHE_CONTROL], PAGE_CACHING);
            assert!(!body.is_empty());
            let tag = headers[ETAG].to_str().unwrap();
            for known in [tag.to_owned(), format!("\"x\", W/{tag}"), "*".into()] {
                let (status, headers, body) = get(path, Some(&known)).await;
                assert_eq!((status, body.len()), (StatusCode::NOT_MODIFIED, 0), "{known}");
                assert_eq!(headers[ETAG], tag);
            }
            assert_eq!(get(path, Some("\"x\"")).await.0, StatusCode::OK);
        }
    }

    #[tokio::test]
    async fn a_page_is_framed_by_those_who_are_named() {
        let frames = ["https://shop.example".to_owned(), "https://m.shop.example".to_owned()];
        for path in ["/", "/cashier/T123"] {
            let (_, headers, _) = get_framed(path, None, &frames).await;
            let policy = headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
            let named = "frame-ancestors https://shop.example https://m.shop.example";
            assert!(policy.ends_with(named), "{policy}");
            assert!(!headers.contains_key(X_FRAME_OPTIONS));
        }
        let (_, headers, _) = get_framed("/docs", None, &frames).await;
        assert_eq!(headers[X_FRAME_OPTIONS], "DENY");
    }

    /// A page that names what is not there, or what the policy forbids, is broken.
    #[tokio::test]
    async fn what_a_page_names_is_served_for_ever() {
        let mut assets = 0;
        for (_, file) in PAGES {
            let page = std::str::from_utf8(pages::file(file).unwrap().plain).unwrap();
            for path in page.split('"').filter(|text| text.starts_with("/assets/")) {
                let (status, headers, _) = get(path, None).await;
                assert_eq!(status, StatusCode::OK, "{file} names {path}");
                assert_eq!(headers[CACHE_CONTROL], NAMED_CACHING);
                assets += 1;
            }
        }
        assert!(assets > 0);
        // An instance of another build names it otherwise; nobody may keep what it is told then.
        let (status, headers, _) = get("/assets/shop/shop.0123456789abcdef.js", None).await;
        assert_eq!(
            (status, &headers[CACHE_CONTROL]),
            (StatusCode::OK, &OTHER_BUILD_CACHING.parse().unwrap())
        );
        let (_, headers, _) = get("/favicon.ico", None).await;
        assert_eq!(headers[CONTENT_TYPE], "image/x-icon");
    }

    #[tokio::test]
    async fn everybody_gets_the_smallest_packing_they_understand() {
        let asked = async |accepted: &str| {
            let (_, headers, body) = get_with("/", &[(ACCEPT_ENCODING, accepted)], &[]).await;
            assert_eq!(headers[VARY], "accept-encoding");
            let encoding =
                headers.get(CONTENT_ENCODING).map(|name| name.to_str().unwrap().to_owned());
            (encoding.unwrap_or_default(), headers[ETAG].clone(), body)
        };
        let (_, plain_tag, plain) = asked("").await;
        for (accepted, expected) in [
            ("gzip, deflate, br, zstd", "br"),
            ("gzip;q=1.0, br;q=0", "gzip"),
            ("GZIP", "gzip"),
            ("identity", ""),
            ("br;q=nonsense, x", ""),
        ] {
            let (encoding, tag, body) = asked(accepted).await;
            assert_eq!(encoding, expected, "{accepted}");
            assert_eq!(
                tag == plain_tag,
                expected.is_empty(),
                "{accepted}: each packing has a tag of its own"
            );
            assert!(expected.is_empty() || body.len() < plain.len());
        }
        let mut gzip = Vec::new();
        let (_, _, packed) = asked("gzip").await;
        Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed[..]), &mut gzip).unwrap();
        assert_eq!(gzip, plain);
    }

    #[test]
    fn everything_can_be_had_without_any_packing_but_what_came_packed() {
        let asks = HeaderMap::new();
        for file in pages::files() {
            assert!(!packing(file, &asks).0.is_empty(), "{}", file.path);
        }
        for file in pages::files().iter().filter(|file| file.brotli.is_some()) {
            let (bytes, encoding) = packing(file, &asks);
            let hash: String =
                Sha256::digest(bytes)[..16].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!((encoding, &*hash), (None, file.hash), "{}", file.path);
        }
    }

    #[tokio::test]
    async fn other_peoples_pages_may_import_the_button() {
        for (path, file) in SCRIPTS {
            let (status, headers, body) = get(path, None).await;
            assert_eq!((status, &*body), (StatusCode::OK, pages::file(file).unwrap().plain));
            assert_eq!(headers[CONTENT_TYPE], "text/javascript; charset=utf-8");
            assert_eq!(headers[ACCESS_CONTROL_ALLOW_ORIGIN], "*", "any page may import it");
            let tag = headers[ETAG].to_str().unwrap();
            assert_eq!(get(path, Some(tag)).await.0, StatusCode::NOT_MODIFIED);
        }
    }

    #[tokio::test]
    async fn nothing_else_is_served() {
        for path in [
            "/assets/nothing.js",
            "/assets/shop/shop.js",
            "/assets/embed/button.js",
            "/assets/tests/claim.test.js",
            "/assets/package.json",
            "/assets/shop/index.html",
            "/assets/../Cargo.toml",
            "/assets/%2e%2e/Cargo.toml",
            "/assets/..%2f..%2fetc/passwd.js",
            "/assets//etc/passwd.js",
            "/assets/",
            "/nowhere",
        ] {
            assert_eq!(get(path, None).await.0, StatusCode::NOT_FOUND, "{path}");
        }
    }
}

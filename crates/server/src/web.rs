//! The pages, embedded in the binary: the shop, the sandbox cashier, the reader of the API; and the
//! button for pages of others ([`crate::embed`]).
//!
//! Everything is served from static memory with an `ETag` made of its content. Pages are asked for
//! anew each time (which costs a 304); their scripts and styles may be a minute old.

use std::borrow::Cow;

use axum::{
    Router,
    body::Body,
    extract::Path,
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
        IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
    },
};
use rust_embed::{EmbeddedFile, RustEmbed};
use sha2::{Digest, Sha256};

use crate::{
    embed::{SCRIPT, SOLVER},
    problem::Problem,
};

#[derive(RustEmbed)]
#[folder = "../../web"]
#[allow_missing = true]
pub(crate) struct Files;

/// Each page and the file it is made of.
const PAGES: &[(&str, &str)] = &[
    ("/", "shop/index.html"),
    ("/cashier/{txn}", "cashier/index.html"),
    ("/docs", "docs/index.html"),
];

/// Scripts and styles of our own only, nothing inline. Pictures of items may come from the shop's image
/// server. Who may frame us follows.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' https: data:; connect-src 'self'; base-uri 'none'; form-action 'self'; \
    frame-ancestors ";
const NOBODY: &str = "'none'";
/// Never in a frame: nobody shops there.
const UNFRAMED: &str = "/docs";

/// What may be fetched under `/assets`, by the end of its name. Whatever else lies in the folder
/// (tests, notes) is not served.
const KINDS: &[(&str, &str)] = &[
    ("js", "text/javascript; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("webp", "image/webp"),
    ("ico", "image/x-icon"),
    ("woff2", "font/woff2"),
];
const NOT_SERVED: &str = "tests/";

const ASSET_CACHING: &str = "public, max-age=60";
const PAGE_CACHING: &str = "no-cache";

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
    let pages = PAGES.iter().fold(Router::new(), |router, &(path, file)| {
        let policy = if path == UNFRAMED { &unframed } else { &framed };
        let policy = policy.clone();
        let shown = move |headers: HeaderMap| {
            let policy = policy.clone();
            async move { page(file, policy, &headers) }
        };
        router.route(path, get(shown))
    });
    let button = async |headers: HeaderMap| script(&SCRIPT, &headers);
    let solver = async |headers: HeaderMap| script(&SOLVER, &headers);
    pages.route("/embed.js", get(button)).route("/embed-challenge.js", get(solver)).route(
        "/assets/{*path}",
        get(async |Path(path): Path<String>, headers: HeaderMap| asset(&path, &headers)),
    )
}

fn page(file: &str, policy: HeaderValue, asked: &HeaderMap) -> Result<Response, Problem> {
    let found = Files::get(file).ok_or_else(Problem::not_found)?;
    let mut response = answer(found, "text/html; charset=utf-8", PAGE_CACHING, asked);
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

fn asset(path: &str, asked: &HeaderMap) -> Result<Response, Problem> {
    let end = path.rsplit_once('.').map_or("", |(_, end)| end);
    let kind = KINDS.iter().find(|(name, _)| *name == end).map(|(_, kind)| *kind);
    let kind = kind.filter(|_| !path.starts_with(NOT_SERVED)).ok_or_else(Problem::not_found)?;
    // The files are looked up in a table, so a path with dots in it can only miss.
    let found = Files::get(path).ok_or_else(Problem::not_found)?;
    Ok(answer(found, kind, ASSET_CACHING, asked))
}

/// The button for other people's pages.
/// A script that was joined for pages of others, who may import it.
fn script(joined: &Bytes, asked: &HeaderMap) -> Response {
    let tag = tag(&Sha256::digest(joined));
    let kind = "text/javascript; charset=utf-8";
    let mut response = answer_with(joined.clone(), &tag, kind, ASSET_CACHING, asked);
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}

fn answer(
    file: EmbeddedFile,
    kind: &'static str,
    caching: &'static str,
    asked: &HeaderMap,
) -> Response {
    let tag = tag(&file.metadata.sha256_hash());
    let bytes = match file.data {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => Bytes::from(bytes),
    };
    answer_with(bytes, &tag, kind, caching, asked)
}

fn answer_with(
    bytes: Bytes,
    tag: &str,
    kind: &'static str,
    caching: &'static str,
    asked: &HeaderMap,
) -> Response {
    let mut response = if is_current(asked, tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        Response::new(Body::from(bytes))
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(ETAG, tag);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(caching));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Half of the hash of the content.
fn tag(hash: &[u8]) -> String {
    let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
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
        let mut request = Request::get(path);
        if let Some(known) = known {
            request = request.header(IF_NONE_MATCH, known);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = routes::<()>(frames).oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, body.collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn pages_come_with_a_strict_policy_and_are_revalidated() {
        for path in ["/", "/cashier/T123", "/docs"] {
            let (status, headers, body) = get(path, None).await;
            assert_eq!(status, StatusCode::OK, "{path}");
            assert_eq!(headers[CONTENT_TYPE], "text/html; charset=utf-8");
            assert_eq!(headers[CONTENT_SECURITY_POLICY], format!("{POLICY}'none'"));
            assert_eq!(headers[X_FRAME_OPTIONS], "DENY");
            assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
            assert_eq!(headers[REFERRER_POLICY], "no-referrer");
            assert_eq!(headers[CACHE_CONTROL], "no-cache");
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

    /// A page that names a file which is not there, or which the policy forbids, is broken.
    #[tokio::test]
    async fn every_asset_a_page_names_is_served_with_its_kind() {
        let mut assets = 0;
        for (_, file) in PAGES {
            let page = String::from_utf8(Files::get(file).unwrap().data.into_owned()).unwrap();
            assert!(!page.contains("<style") && !page.contains(" style="), "{file}: inline style");
            assert!(
                !page.contains("<script>") && !page.contains(" onclick="),
                "{file}: inline script"
            );
            for path in page.split('"').filter(|text| text.starts_with("/assets/")) {
                let (status, headers, _) = get(path, None).await;
                assert_eq!(status, StatusCode::OK, "{file} names {path}");
                assert_eq!(headers[CACHE_CONTROL], ASSET_CACHING);
                let end = path.rsplit_once('.').unwrap().1;
                let kind = KINDS.iter().find(|(name, _)| *name == end).unwrap().1;
                assert_eq!(headers[CONTENT_TYPE], kind);
                assets += 1;
            }
        }
        assert!(assets > 0);
    }

    #[tokio::test]
    async fn the_button_is_one_script() {
        for (path, script) in [("/embed.js", &*SCRIPT), ("/embed-challenge.js", &*SOLVER)] {
            let (status, headers, body) = get(path, None).await;
            assert_eq!((status, &body), (StatusCode::OK, script));
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
        for path in Files::iter().filter(|path| path.starts_with(NOT_SERVED)) {
            assert_eq!(get(&format!("/assets/{path}"), None).await.0, StatusCode::NOT_FOUND);
        }
    }
}

//! What every request passes on its way in and every answer on its way out.
//!
//! One service around the whole router: it bounds how long a handler may think, turns a panic into
//! a 500 for that one client, writes [`Problem`]s in the client's language, and gives a code to the
//! bare errors that axum makes itself (no such path, wrong method, body too large). The body of a
//! success is passed on untouched.
//!
//! Every answer says which request it is for and is not to be taken for another kind than it says;
//! nobody stores it unless its handler says that one may. So a new handler is private until somebody
//! decides otherwise. Pages of other origins are let in here as well (see [`crate::origins`]).

use std::{
    convert::Infallible,
    future::Future,
    net::IpAddr,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use futures_util::{
    FutureExt,
    future::{BoxFuture, Either},
};
use http::{
    HeaderMap, HeaderValue, Method, Uri,
    header::{
        ACCEPT_LANGUAGE, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST,
        REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
    },
};
use limits::{Class, Passed, Who};
use listener::{Hosts, Peer, REQUEST_ID, RequestId};
use tower::Service;
use tracing::Instrument;

use crate::{
    front_door::{FrontDoor, class_of},
    lost,
    metrics::HttpMetrics,
    origins::Origins,
    problem::{Code, Lang, Problem},
};

#[derive(Clone)]
pub struct Edge<S> {
    inner: S,
    request_timeout: Duration,
    metrics: HttpMetrics,
    origins: Origins,
    hosts: Hosts,
    tls: bool,
    door: Option<Arc<FrontDoor>>,
}

impl<S> Edge<S> {
    /// Build it after the metrics recorder is installed, or its counts go nowhere.
    pub fn new(inner: S, request_timeout: Duration) -> Self {
        let (metrics, origins) = (HttpMetrics::new(), Origins::default());
        let (hosts, tls) = (Hosts::default(), false);
        Edge { inner, request_timeout, metrics, origins, hosts, tls, door: None }
    }

    /// Whoever asks for another name has come to the wrong door.
    pub fn known_as(self, hosts: Hosts) -> Self {
        Edge { hosts, ..self }
    }

    /// Browsers that came by TLS are told to come by nothing else.
    pub fn with_tls(self, tls: bool) -> Self {
        Edge { tls, ..self }
    }

    /// Whoever asks too often hears so before anything else is looked at.
    pub fn behind(self, door: Arc<FrontDoor>) -> Self {
        Edge { door: Some(door), ..self }
    }

    /// Pages of these origins may ask, too.
    pub fn open_to(self, origins: Origins) -> Self {
        Edge { origins, ..self }
    }
}

impl<S> Service<Request> for Edge<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let id = *request.extensions_mut().get_or_insert_with(RequestId::generate);
        // These are counted references, not copies.
        let note = RequestNote {
            method: request.method().clone(),
            uri: request.uri().clone(),
            language: request.headers().get(ACCEPT_LANGUAGE).cloned(),
            page: lost::wants_a_page(request.method(), request.uri().path(), request.headers()),
            id,
        };
        // Whatever is logged on the way names the request.
        let span = tracing::info_span!("request", %id);
        let began = Instant::now();
        let metrics = self.metrics.clone();
        let asker = self.origins.asker(&request);
        let tls = self.tls;
        if !is_for_us(&self.hosts, &request) {
            let misdirected = Problem::new(Code::Misdirected).into_response();
            metrics.answered(misdirected.status(), began.elapsed());
            let mut refused = note.explain(misdirected);
            say_always(refused.headers_mut(), id, tls);
            return Box::pin(async { Ok(refused) });
        }
        if let Some(mut allowed) = asker.preflight(&request) {
            metrics.answered(allowed.status(), began.elapsed());
            say_always(allowed.headers_mut(), id, tls);
            asker.name(allowed.headers_mut());
            return Box::pin(async { Ok(allowed) });
        }
        let answer = match self.counted(&mut request, began) {
            Ok(None) => Either::Left(self.inner.call(request)),
            Ok(Some(together)) => Either::Right(together.then(self.inner.clone(), request)),
            Err(problem) => Either::Right(async { Ok(problem.into_response()) }.boxed()),
        };
        let answer = AssertUnwindSafe(answer).catch_unwind();
        let answer = tokio::time::timeout(self.request_timeout, answer);
        Box::pin(
            async move {
                let response = match answer.await {
                    Ok(Ok(Ok(response))) => response,
                    Ok(Err(panic)) => Problem::internal(panic_message(&*panic)).into_response(),
                    Err(_) => {
                        Problem::new(Code::Unknown).inside("no answer in time").into_response()
                    }
                };
                metrics.answered(response.status(), began.elapsed());
                let failed =
                    response.status().is_client_error() || response.status().is_server_error();
                let mut response = if failed { note.explain(response) } else { response };
                say_always(response.headers_mut(), id, tls);
                asker.name(response.headers_mut());
                Ok(response)
            }
            .instrument(span),
        )
    }
}

/// A request that passed here, and should be counted together with what other instances have seen.
struct CountTogether {
    door: Arc<FrontDoor>,
    class: Class,
    address: IpAddr,
    passed: Passed,
}

impl CountTogether {
    fn then<S>(
        self,
        mut inner: S,
        request: Request,
    ) -> BoxFuture<'static, Result<Response, Infallible>>
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        async move {
            let CountTogether { door, class, address, passed } = self;
            match door.count_together(class, Who::Address(address), passed).await {
                Ok(()) => inner.call(request).await,
                Err(problem) => Ok(problem.into_response()),
            }
        }
        .boxed()
    }
}

impl<S> Edge<S> {
    /// Count a request for its address, and note what kind it is for those who will know its buyer.
    fn counted(
        &self,
        request: &mut Request,
        now: Instant,
    ) -> Result<Option<CountTogether>, Problem> {
        // A command that runs the router in its own process has no address.
        let Some((door, Peer(address))) =
            self.door.as_ref().zip(request.extensions().get().copied())
        else {
            return Ok(None);
        };
        let Some(class) = class_of(request.uri().path()) else { return Ok(None) };
        request.extensions_mut().insert(class);
        let passed = door.count_address(class, address, now)?;
        let together = || CountTogether { door: door.clone(), class, address, passed };
        Ok((passed != Passed::Wholly).then(together))
    }
}

/// A year, as browsers want it before they remember it.
pub(crate) const ONLY_TLS: &str = "max-age=31536000";
/// What is no page is shown as none: it loads nothing, and nobody frames it.
const NO_PAGE: &str = "default-src 'none'; frame-ancestors 'none'";

/// Is it for one of our names? Whoever names us twice must be right twice.
fn is_for_us(hosts: &Hosts, request: &Request) -> bool {
    let named = request.headers().get_all(HOST).iter().map(HeaderValue::as_bytes);
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let mut named = named.chain(authority).peekable();
    match named.peek() {
        None => hosts.allow(b""),
        Some(_) => named.all(|host| hosts.allow(host)),
    }
}

fn say_always(headers: &mut HeaderMap, id: RequestId, tls: bool) {
    if tls {
        headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static(ONLY_TLS));
    }
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(NO_PAGE));
    headers.entry(REFERRER_POLICY).or_insert(HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let caching = headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    // What a cache gives to everybody is no answer to this one request any more.
    let shared = caching.as_bytes().starts_with(b"public");
    if let Some(id) = id.header().filter(|_| !shared) {
        headers.insert(REQUEST_ID, id);
    }
}

/// What must be known of a request after the handler has taken it.
struct RequestNote {
    method: Method,
    uri: Uri,
    language: Option<HeaderValue>,
    /// Whoever asked would rather see a page than JSON.
    page: bool,
    id: RequestId,
}

impl RequestNote {
    fn explain(&self, mut response: Response) -> Response {
        let problem = match response.extensions_mut().remove::<Problem>() {
            Some(problem) => problem,
            None if is_bare(&response) => Code::of_status(response.status()).into(),
            // Somebody chose these words, e.g. what a payment provider wants to read.
            None => return response,
        };
        // The query may carry what does not belong into a log.
        problem.log(&self.method, self.uri.path(), self.id);
        let lang = self.language.as_ref().map_or(Lang::En, Lang::of_header);
        if self.page && problem.code() == Code::NotFound {
            return lost::shown(response, lang);
        }
        problem.write_into(response, lang)
    }
}

/// Axum's own errors are empty or plain text.
fn is_bare(response: &Response<Body>) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_none_or(|kind| kind.starts_with(b"text/plain"))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("a handler panicked: {}", text.unwrap_or_else(|| "without a message".into()))
}

#[cfg(test)]
mod tests {
    use axum::{
        Router,
        extract::DefaultBodyLimit,
        routing::{get, post},
    };
    use http::{StatusCode, header::CONTENT_LANGUAGE};
    use http_body_util::BodyExt;
    use sale::ItemId;
    use serde::{Deserialize, Serialize};
    use serde_json::Value;
    use tower::ServiceExt;

    use super::*;
    use crate::extract::{Json, Path};

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Order {
        quantity: u32,
    }

    fn shop() -> Edge<Router> {
        let panics = get(async || -> &'static str { panic!("the secret cause") });
        let sleeps = get(async || tokio::time::sleep(Duration::from_secs(60)).await);
        let router = Router::new()
            .route("/claims", post(async |Json(order): Json<Order>| Json(order)))
            .route("/items/{id}", get(async |Path(id): Path<ItemId>| id.to_string()))
            .route("/sold-out", get(async || Problem::new(Code::SoldOut)))
            .route("/panics", panics)
            .route("/sleeps", sleeps)
            .route(
                "/html",
                get(async || (StatusCode::NOT_FOUND, axum::response::Html("own words"))),
            )
            .layer(DefaultBodyLimit::max(100));
        Edge::new(router, Duration::from_millis(50))
    }

    async fn ask(request: http::request::Builder, body: &str) -> (Response<()>, String) {
        let response =
            shop().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (Response::from_parts(parts, ()), String::from_utf8(body.to_vec()).unwrap())
    }

    async fn problem(request: http::request::Builder, body: &str) -> (u16, Value) {
        let (response, body) = ask(request, body).await;
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json", "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["status"], response.status().as_u16());
        (response.status().as_u16(), body)
    }

    fn claim() -> http::request::Builder {
        http::Request::post("/claims").header(CONTENT_TYPE, "application/json")
    }

    #[tokio::test]
    async fn every_refusal_is_a_problem() {
        let get = http::Request::get::<&str>;
        let long = format!("{{\"quantity\":{}1}}", " ".repeat(100));
        for (request, body, status, code) in [
            (get("/nowhere"), "", 404, "not_found"),
            (get("/claims"), "", 405, "method_not_allowed"),
            (get("/items/abc"), "", 404, "not_found"),
            (get("/items/99999999999999999999"), "", 404, "not_found"),
            (get("/items/%ff"), "", 404, "not_found"),
            (get("/sold-out"), "", 409, "sold_out"),
            (get("/panics"), "", 500, "internal"),
            (get("/sleeps"), "", 504, "unknown"),
            (claim(), "{\"quantity\":0.5}", 422, "invalid"),
            (claim(), "nonsense", 422, "invalid"),
            (claim(), &long, 413, "too_large"),
            (http::Request::post("/claims"), "{}", 415, "unsupported_media_type"),
        ] {
            let uri = request.uri_ref().cloned();
            let (found, body) = problem(request, body).await;
            assert_eq!((found, body["code"].as_str()), (status, Some(code)), "{uri:?}");
            assert!(!body.to_string().contains("secret cause"));
        }
    }

    #[tokio::test]
    async fn a_problem_speaks_the_clients_language() {
        let request = || http::Request::get("/sold-out");
        let chinese = || request().header(ACCEPT_LANGUAGE, "zh-CN,en;q=0.5");
        assert_eq!(problem(request(), "").await.1["title"], "Sold out");
        assert_eq!(problem(chinese(), "").await.1["title"], "已售罄");
        assert_eq!(ask(chinese(), "").await.0.headers()[CONTENT_LANGUAGE], "zh");
    }

    #[tokio::test]
    async fn successes_and_chosen_words_pass_untouched() {
        let (response, body) = ask(claim(), "{\"quantity\":1}").await;
        assert_eq!((response.status(), body.as_str()), (StatusCode::OK, "{\"quantity\":1}"));
        let (response, body) = ask(http::Request::get("/html"), "").await;
        assert_eq!((response.status(), body.as_str()), (StatusCode::NOT_FOUND, "own words"));
    }

    #[tokio::test]
    async fn a_wrong_method_is_told_the_right_ones() {
        let (response, _) = ask(http::Request::get("/claims"), "").await;
        assert_eq!(response.headers()["allow"], "POST");
    }
}

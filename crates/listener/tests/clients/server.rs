//! A small server with a route for every manner of answering, and a client that writes HTTP by hand.

use std::{
    convert::Infallible,
    error::Error,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::Request,
    routing::{get, post},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use hyper_util::rt::TokioIo;
use listener::{
    BodyTooSlow, Drained, FastPath, FastRequest, Fields, HttpSettings, NoReply, Peer, Pending,
    Refusal, RequestId, Tls, serve,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, oneshot},
    task::JoinHandle,
};

pub(crate) fn settings() -> HttpSettings {
    HttpSettings {
        connections_max: 100,
        connections_per_address_max: 10_000,
        exempt_networks: Vec::new(),
        backlog_max: 100,
        header_timeout_ms: 300,
        header_bytes_max: 8_192,
        body_timeout_ms: 300,
        body_bytes_max: 1_000,
        admin_body_bytes_max: 10_000,
        import_body_bytes_max: 10_000,
        request_timeout_ms: 500,
        idle_timeout_ms: 700,
        write_timeout_ms: 500,
        drain_ms_max: 1_000,
        proxy_hops: 0,
        allowed_origins: Vec::new(),
        allowed_frames: Vec::new(),
        allowed_hosts: Vec::new(),
        admin_listen: None,
        tls_cert_file: Default::default(),
        tls_key_file: Default::default(),
        redirect_listen: None,
        tls_handshake_timeout_ms: 400,
        tls_handshakes_max: 50,
        http2_streams_max: 8,
    }
}

/// Answers `POST /quick` with the length of its body, and `POST /wait` when it is told to.
#[derive(Clone, Default)]
struct Quick {
    bell: Arc<Notify>,
}

/// Where a request of the fast path goes.
const QUICK: i64 = 1;
const WAIT: i64 = 2;

/// Waits for the bell.
struct Waiting {
    length: usize,
    bell: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Pending for Waiting {
    fn poll_decided(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.bell.as_mut().poll(cx)
    }

    fn write(self: Box<Self>, decided: Result<(), NoReply>, out: &mut Vec<u8>) {
        let body = match decided {
            Ok(()) => format!("fast {};", self.length),
            Err(NoReply::TooLate) => "given up;".into(),
            Err(NoReply::Panicked) => "panicked;".into(),
        };
        write_answer(out, 200, "", &body);
    }
}

impl FastPath for Quick {
    fn target(&self, method: &str, path: &str) -> Option<i64> {
        match (method, path) {
            ("POST", "/quick") => Some(QUICK),
            ("POST", "/wait") => Some(WAIT),
            _ => None,
        }
    }

    fn begin(
        &self,
        target: i64,
        request: &FastRequest<'_>,
        out: &mut Vec<u8>,
    ) -> Option<Box<dyn Pending>> {
        let (length, bell) = (request.body.len(), self.bell.clone());
        let bell = Box::pin(async move { bell.notified().await });
        let waiting = Box::new(Waiting { length, bell });
        if target == WAIT {
            return Some(waiting);
        }
        waiting.write(Ok(()), out);
        None
    }

    fn write_refusal(
        &self,
        refusal: Refusal,
        id: RequestId,
        fields: Fields<'_>,
        out: &mut Vec<u8>,
    ) {
        let status = match refusal {
            Refusal::BadRequest | Refusal::PlainHttp => 400,
            Refusal::BodyTooLarge => 413,
            Refusal::ExpectationFailed => 417,
            Refusal::HeadTooLarge => 431,
        };
        let language = String::from_utf8_lossy(fields.first("accept-language").unwrap_or(b"en"));
        let body = format!("{refusal:?} in {language}");
        write_answer(out, status, &format!("connection: close\r\nx-request-id: {id}\r\n"), &body);
    }

    fn write_full(&self, out: &mut Vec<u8>) {
        write_answer(out, 503, "connection: close\r\n", "full");
    }
}

fn write_answer(out: &mut Vec<u8>, status: u16, fields: &str, body: &str) {
    let length = body.len();
    let answer = format!("HTTP/1.1 {status} So\r\n{fields}content-length: {length}\r\n\r\n{body}");
    out.extend_from_slice(answer.as_bytes());
}

pub(crate) fn post_to(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: s\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Rings when it is dropped.
struct Leaving(Arc<Notify>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

async fn echo(request: Request) -> Result<Bytes, StatusCode> {
    let read = to_bytes(request.into_body(), settings().body_bytes_max).await;
    read.map_err(|error| {
        let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
        while let Some(error) = cause {
            if error.is::<BodyTooSlow>() {
                return StatusCode::REQUEST_TIMEOUT;
            }
            cause = error.source();
        }
        StatusCode::PAYLOAD_TOO_LARGE
    })
}

async fn endless() -> Body {
    let chunk = || Ok::<_, Infallible>(Bytes::from(vec![b'x'; 64 * 1_024]));
    Body::from_stream(stream::repeat_with(chunk))
}

async fn upgrade(mut request: Request) -> (StatusCode, [(&'static str, &'static str); 2]) {
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut socket = TokioIo::new(upgraded.await.unwrap());
        let mut bytes = [0; 100];
        while let Ok(n @ 1..) = socket.read(&mut bytes).await {
            socket.write_all(&bytes[..n]).await.unwrap();
        }
    });
    (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "echo")])
}

fn router(bell: &Arc<Notify>) -> Router {
    let slow = |ms| {
        get(async move || {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            "done"
        })
    };
    let began = bell.clone();
    let ignores = post(async move || {
        began.notify_one();
        "ignored"
    });
    let left = bell.clone();
    let events = get(async move || {
        let left = Leaving(left);
        let silence = stream::pending::<Result<Bytes, Infallible>>().map(move |event| {
            let _ = &left;
            event
        });
        ([("content-type", "text/event-stream")], Body::from_stream(silence))
    });
    Router::new()
        .route("/", get(async |Extension(peer): Extension<Peer>| peer.0.to_string()))
        .route("/echo", post(echo))
        .route("/quick", post(async |body: String| format!("router {};", body.len())))
        .route("/ignores", ignores)
        .route("/slow", slow(400))
        .route("/stuck", slow(60_000))
        .route("/endless", get(endless))
        .route("/upgrade", get(upgrade))
        .route("/large", get(async || vec![b'x'; 24_000_000]))
        .route("/events", events)
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// Ends the wait of one `POST /wait`; rings when `/ignores` has begun or a client of `/events` left.
    pub(crate) bell: Arc<Notify>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Drained>,
}

impl Server {
    pub(crate) async fn start(settings: HttpSettings) -> Server {
        Server::start_with(settings, None).await
    }

    pub(crate) async fn start_with(settings: HttpSettings, tls: Option<Arc<Tls>>) -> Server {
        let quick = Quick::default();
        let bell = quick.bell.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let served =
            tokio::spawn(serve(listener, tls, Arc::new(quick), router(&bell), settings, shutdown));
        Server { address, bell, stop, served }
    }

    pub(crate) async fn client(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    pub(crate) async fn stop(self) -> Drained {
        self.stop.send(()).unwrap();
        self.served.await.unwrap()
    }
}

pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    pub(crate) async fn get(&mut self, path: &str) {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: shop\r\n\r\n")).await;
    }

    /// What comes next, at least one byte of it.
    pub(crate) async fn read_some(&mut self) -> String {
        let mut bytes = vec![0; 65_536];
        let n = self.0.read(&mut bytes).await.unwrap();
        assert_ne!(n, 0, "the connection is closed");
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }

    /// Everything until the other side closes, and how long that took.
    pub(crate) async fn read_to_end(&mut self) -> (String, Duration) {
        let began = Instant::now();
        let mut bytes = Vec::new();
        let all = self.0.read_to_end(&mut bytes);
        // A reset is a way of closing, too.
        let _ = tokio::time::timeout(Duration::from_secs(5), all).await.expect("left open");
        (String::from_utf8_lossy(&bytes).into_owned(), began.elapsed())
    }
}

pub(crate) fn between(took: Duration, from_ms: u64, to_ms: u64) {
    let range = Duration::from_millis(from_ms)..Duration::from_millis(to_ms);
    assert!(range.contains(&took), "took {took:?}");
}

//! One call: resolve, judge, connect, send, and read what comes back.
//!
//! Connections are kept for a moment, because a sale makes thousands of calls to one address; one that was
//! made to an address that was judged good stays with that judgement. A kept connection may have been closed
//! by the other end just before it was used: then the call is made once more on a new one. It may have
//! arrived the first time; whatever is asked here may be asked twice, because it carries a number of ours.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::{Reach, Target};

/// Connections to one address that are kept for the next call.
const IDLE_PER_TARGET_MAX: usize = 16;
const IDLE_TARGETS_MAX: usize = 64;
/// Shorter than servers usually wait for the next request.
const IDLE: Duration = Duration::from_secs(4);
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;

type Sender = http1::SendRequest<Full<Bytes>>;

/// What is asked of somebody.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    pub method: Method,
    pub target: &'a Target,
    pub reach: Reach,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Everything together takes at most so long.
    pub within: Duration,
    /// A longer body is not read to its end, and its connection not kept.
    pub answer_bytes_max: usize,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// None if it was longer than it may be, or broken off.
    pub body: Option<Bytes>,
}

/// Why nothing came back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnswered {
    #[error("the name cannot be resolved: {0}")]
    NoAddress(String),
    /// It leads to where it must not.
    #[error("{0} is not a public address; webhooks.allowed_hosts can name its host")]
    Forbidden(std::net::IpAddr),
    #[error("no connection: {0}")]
    NoConnection(String),
    #[error("no answer: {0}")]
    NoAnswer(String),
    #[error("no answer within {0} ms")]
    TimeOut(u128),
}

/// The authorities that should be trusted cannot be.
#[derive(Debug, thiserror::Error)]
#[error("{file} holds no certificates that can be trusted: {problem}")]
pub struct BadAuthorities {
    file: String,
    problem: String,
}

/// Calls, and keeps connections.
pub struct Caller {
    tls: TlsConnector,
    idle: Mutex<HashMap<Place, Vec<Idle>>>,
}

/// Connections may be shared by calls that agree in this.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    tls: bool,
    host: String,
    port: u16,
    anywhere: bool,
}

struct Idle {
    sender: Sender,
    since: Instant,
}

impl Default for Caller {
    fn default() -> Self {
        Caller::trusting(public_roots())
    }
}

fn public_roots() -> RootCertStore {
    RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned())
}

/// The authorities of a PEM file, of which there must be one.
fn add_file(mut roots: RootCertStore, file: &Path) -> Result<RootCertStore, BadAuthorities> {
    let bad = |problem: String| BadAuthorities { file: file.display().to_string(), problem };
    let pem = std::fs::read(file).map_err(|cause| bad(cause.to_string()))?;
    let before = roots.len();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|cause| bad(cause.to_string()))?;
        roots.add(certificate).map_err(|cause| bad(cause.to_string()))?;
    }
    if roots.len() == before {
        return Err(bad("there are none".into()));
    }
    Ok(roots)
}

impl Caller {
    /// Trusts the authorities of this PEM file instead of the public ones.
    pub fn trusting_file(file: &Path) -> Result<Self, BadAuthorities> {
        Ok(Caller::trusting(add_file(RootCertStore::empty(), file)?))
    }

    /// Trusts the authorities of this PEM file besides the public ones.
    pub fn trusting_also(file: &Path) -> Result<Self, BadAuthorities> {
        Ok(Caller::trusting(add_file(public_roots(), file)?))
    }

    fn trusting(roots: RootCertStore) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has the versions of TLS that rustls thinks safe")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Caller { tls: TlsConnector::from(Arc::new(config)), idle: Mutex::default() }
    }

    pub async fn call(&self, call: &Call<'_>) -> Result<Answer, NotAnswered> {
        let until = Instant::now() + call.within;
        let called = timeout(call.within, self.call_until(call, until));
        called.await.unwrap_or(Err(NotAnswered::TimeOut(call.within.as_millis())))
    }

    /// Would a call be let through now? For whoever enters an address and wants to hear of it at once.
    pub async fn judge(target: &Target, reach: Reach, within: Duration) -> Result<(), NotAnswered> {
        let judged = timeout(within, addresses(target, reach));
        judged.await.unwrap_or(Err(NotAnswered::TimeOut(within.as_millis()))).map(drop)
    }

    async fn call_until(&self, call: &Call<'_>, until: Instant) -> Result<Answer, NotAnswered> {
        let Call { target, reach, .. } = *call;
        let place = Place {
            tls: target.tls,
            host: target.host.clone(),
            port: target.port,
            anywhere: reach == Reach::Anywhere,
        };
        if let Some(mut sender) = self.kept(&place)
            && sender.ready().await.is_ok()
            && let Ok(answer) = sender.send_request(request(call)?).await
        {
            return self.read(place, sender, answer, call.answer_bytes_max).await;
        }
        let mut sender = self.connect(target, reach, until).await?;
        let answer = sender.send_request(request(call)?).await;
        let answer = answer.map_err(|error| NotAnswered::NoAnswer(in_words(&error)))?;
        self.read(place, sender, answer, call.answer_bytes_max).await
    }

    fn kept(&self, place: &Place) -> Option<Sender> {
        let mut idle = self.idle.lock();
        let kept = idle.get_mut(place)?;
        while let Some(Idle { sender, since }) = kept.pop() {
            if since.elapsed() < IDLE && !sender.is_closed() {
                return Some(sender);
            }
        }
        idle.remove(place);
        None
    }

    fn keep(&self, place: Place, sender: Sender) {
        let mut idle = self.idle.lock();
        if idle.len() >= IDLE_TARGETS_MAX {
            idle.retain(|_, kept| kept.iter().any(|one| one.since.elapsed() < IDLE));
        }
        if idle.len() < IDLE_TARGETS_MAX || idle.contains_key(&place) {
            let kept = idle.entry(place).or_default();
            kept.retain(|one| one.since.elapsed() < IDLE);
            if kept.len() < IDLE_PER_TARGET_MAX {
                kept.push(Idle { sender, since: Instant::now() });
            }
        }
    }

    async fn connect(
        &self,
        target: &Target,
        reach: Reach,
        until: Instant,
    ) -> Result<Sender, NotAnswered> {
        let mut judged = addresses(target, reach).await?;
        judged.truncate(ADDRESSES_MAX);
        // To these very addresses, and by no name: they are the ones that were judged.
        let stream = first_that_connects(&judged, until).await?;
        let _ = stream.set_nodelay(true);
        if !target.tls {
            return shake_hands(stream).await;
        }
        let no_tls = |error: &dyn std::fmt::Display| NotAnswered::NoConnection(error.to_string());
        let name = ServerName::try_from(target.host.clone()).map_err(|error| no_tls(&error))?;
        let secured = self.tls.connect(name, stream).await.map_err(|error| no_tls(&error))?;
        shake_hands(secured).await
    }

    async fn read(
        &self,
        place: Place,
        sender: Sender,
        answer: http::Response<Incoming>,
        bytes_max: usize,
    ) -> Result<Answer, NotAnswered> {
        let (head, body) = answer.into_parts();
        // Whoever has answered with a status has answered, whatever becomes of the rest.
        let body = match Limited::new(body, bytes_max).collect().await {
            Ok(body) => {
                self.keep(place, sender);
                Some(body.to_bytes())
            }
            Err(_) => None,
        };
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
    }
}

/// Where a target is, all of it judged: one address inside is enough to trust none of them.
async fn addresses(target: &Target, reach: Reach) -> Result<Vec<SocketAddr>, NotAnswered> {
    let found: Vec<SocketAddr> = match target.ip() {
        Some(ip) => vec![SocketAddr::new(ip, target.port)],
        None => {
            let found = lookup_host((target.host.as_str(), target.port)).await;
            found.map_err(|error| NotAnswered::NoAddress(error.to_string()))?.collect()
        }
    };
    match found.iter().find(|address| !reach.allows(address.ip())) {
        Some(inside) => Err(NotAnswered::Forbidden(inside.ip())),
        None => Ok(found),
    }
}

/// One that swallows what is sent to it must not use up the time of those after it: it gets the same share of
/// what is left as each of them, and as the answer. The last one has nobody to leave time to.
async fn first_that_connects(
    addresses: &[SocketAddr],
    until: Instant,
) -> Result<TcpStream, NotAnswered> {
    let mut failed = NotAnswered::NoAddress("it has no address".into());
    for (place, address) in addresses.iter().enumerate() {
        let left = until.saturating_duration_since(Instant::now());
        let share = match addresses.len() - place {
            1 => left,
            waiting => left / (waiting as u32 + 1),
        };
        failed = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => NotAnswered::NoConnection(error.to_string()),
            Err(_) => NotAnswered::TimeOut(share.as_millis()),
        };
    }
    Err(failed)
}

async fn shake_hands<S>(stream: S) -> Result<Sender, NotAnswered>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) =
        shaken.map_err(|error| NotAnswered::NoConnection(in_words(&error)))?;
    // Ends when the sender is dropped, or the other end closes.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

fn request(call: &Call<'_>) -> Result<Request<Full<Bytes>>, NotAnswered> {
    let built = Request::builder()
        .method(&call.method)
        .uri(&call.target.path)
        .header(header::HOST, &call.target.authority)
        .body(Full::new(call.body.clone()));
    let mut request = built.map_err(|error| NotAnswered::NoConnection(error.to_string()))?;
    let all = request.headers_mut();
    all.extend(call.headers.clone());
    all.insert(
        header::USER_AGENT,
        HeaderValue::from_static(concat!("Seckill/", env!("CARGO_PKG_VERSION"))),
    );
    Ok(request)
}

/// Hyper says what failed in its own words, and why in those of its source.
fn in_words(error: &hyper::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

#[cfg(test)]
mod tests {
    use faults::services::Certificates;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    const WITHIN: Duration = Duration::from_secs(10);

    /// Answers so many posts on each connection, and counts connections.
    async fn receiver(answer: &'static str, per_connection: usize) -> (Target, Arc<Mutex<usize>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target =
            format!("http://{}/hook?key=1", listener.local_addr().unwrap()).parse().unwrap();
        let connections = Arc::<Mutex<usize>>::default();
        let counted = connections.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                *counted.lock() += 1;
                tokio::spawn(async move {
                    for _ in 0..per_connection {
                        let mut heard = Vec::new();
                        while !heard.ends_with(b"}") {
                            if stream.read_buf(&mut heard).await.unwrap_or(0) == 0 {
                                return;
                            }
                        }
                        let _ = stream.write_all(answer.as_bytes()).await;
                    }
                });
            }
        });
        (target, connections)
    }

    fn post_to(target: &Target, reach: Reach, within: Duration) -> Call<'_> {
        Call {
            method: Method::POST,
            target,
            reach,
            headers: HeaderMap::new(),
            body: Bytes::from_static(b"{}"),
            within,
            answer_bytes_max: 4_096,
        }
    }

    async fn post(caller: &Caller, target: &Target, reach: Reach) -> Result<Answer, NotAnswered> {
        caller.call(&post_to(target, reach, WITHIN)).await
    }

    #[tokio::test]
    async fn connections_are_kept_and_one_that_was_closed_costs_nothing() {
        let ok = "HTTP/1.1 204 No Content\r\n\r\n";
        let (target, connections) = receiver(ok, 3).await;
        let caller = Caller::default();
        for n in 0..9 {
            let answer = post(&caller, &target, Reach::Anywhere).await;
            assert_eq!(answer.map(|answer| answer.status), Ok(204), "{n}");
        }
        assert_eq!(*connections.lock(), 3, "three posts on each");
    }

    /// An address at which nobody takes what is sent: its queue is full.
    async fn swallows() -> (SocketAddr, Vec<TcpStream>, TcpListener) {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let (address, mut queue) = (listener.local_addr().unwrap(), Vec::new());
        while let Ok(Ok(stream)) =
            timeout(Duration::from_millis(200), TcpStream::connect(address)).await
        {
            queue.push(stream);
        }
        (address, queue, listener)
    }

    #[tokio::test]
    async fn an_address_that_swallows_everything_leaves_time_to_the_next_one() {
        let (silent, _queue, _kept) = swallows().await;
        let good = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = (good.local_addr().unwrap(), good);
        let until = Instant::now() + Duration::from_secs(3);
        let stream = first_that_connects(&[silent, silent, good.0], until).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), good.0);
        assert!(Instant::now() < until, "and to the answer");
        let until = Instant::now() + Duration::from_millis(200);
        let failed = first_that_connects(&[silent], until).await;
        assert!(matches!(failed, Err(NotAnswered::TimeOut(_))), "{failed:?}");
    }

    #[tokio::test]
    async fn a_redirect_is_an_answer_and_is_not_followed() {
        let moved =
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
        let (target, connections) = receiver(moved, 9).await;
        let answer = post(&Caller::default(), &target, Reach::Anywhere).await.unwrap();
        assert_eq!((answer.status, *connections.lock()), (302, 1));
    }

    #[tokio::test]
    async fn nobody_inside_hears_of_a_post_that_may_only_go_outside() {
        let (target, connections) =
            receiver("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 9).await;
        let port = target.port;
        let caller = Caller::default();
        // A connection that a trusted post has made is not lent to others.
        post(&caller, &target, Reach::Anywhere).await.unwrap();
        for host in
            ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1", "0x7f.1"]
        {
            let target: Target = format!("http://{host}:{port}/").parse().unwrap();
            let refused = post(&caller, &target, Reach::Public).await.unwrap_err();
            // Some machines do not take the last ones for addresses at all.
            let is_refused =
                matches!(refused, NotAnswered::Forbidden(_) | NotAnswered::NoAddress(_));
            assert!(is_refused, "{host}: {refused:?}");
        }
        assert_eq!(*connections.lock(), 1);
    }

    #[tokio::test]
    async fn an_https_receiver_must_be_who_its_certificate_says() {
        let made = Certificates::make().unwrap();
        let cert = |name| CertificateDer::from_pem_file(made.cert(name)).unwrap();
        let key = PrivateKeyDer::from_pem_file(made.key("server")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert("server")], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // Who does not trust us hangs up in the middle of the handshake.
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut heard = Vec::new();
                while !heard.ends_with(b"}") && stream.read_buf(&mut heard).await.unwrap_or(0) > 0 {
                }
                let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
                let _ = stream.flush().await;
                let _ = stream.read_buf(&mut heard).await;
            }
        });
        let trusting = |name| Caller::trusting_file(&made.cert(name)).unwrap();
        for bad in [made.key("server"), made.cert("nobody")] {
            assert!(Caller::trusting_file(&bad).is_err(), "a key is no authority");
            assert!(Caller::trusting_also(&bad).is_err());
        }
        for host in ["localhost", "127.0.0.1"] {
            let target: Target = format!("https://{host}:{port}/hook").parse().unwrap();
            let answer = post(&trusting("ca"), &target, Reach::Anywhere).await;
            assert_eq!(answer.map(|answer| answer.status), Ok(204), "{host}");
            let also = |name| Caller::trusting_also(&made.cert(name)).unwrap();
            assert!(post(&also("ca"), &target, Reach::Anywhere).await.is_ok(), "{host}");
            let other = also("stranger");
            for stranger in [trusting("stranger"), other, Caller::default()] {
                let refused = post(&stranger, &target, Reach::Anywhere).await.unwrap_err();
                assert!(matches!(refused, NotAnswered::NoConnection(_)), "{refused:?}");
            }
        }
        // Who it is, and not only who signed for it.
        let target: Target = format!("https://127.0.0.2:{port}/").parse().unwrap();
        assert!(post(&trusting("ca"), &target, Reach::Anywhere).await.is_err());
    }

    #[tokio::test]
    async fn who_hangs_or_says_too_much_costs_no_more_than_it_may() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target: Target = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
        let within = Duration::from_millis(50);
        let caller = Caller::default();
        let hung = caller.call(&post_to(&target, Reach::Anywhere, within)).await;
        assert_eq!(hung, Err(NotAnswered::TimeOut(50)));
        let (target, connections) =
            receiver("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\nand so on", 9).await;
        for _ in 0..2 {
            // The head may come without the end of the body.
            let answer = caller.call(&post_to(&target, Reach::Anywhere, within)).await;
            assert!(answer.is_err() || answer.is_ok_and(|answer| answer.body.is_none()));
        }
        assert_eq!(*connections.lock(), 2, "it is not kept");
    }
}

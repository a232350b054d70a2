//! Clients that come with TLS: those that agree with us, those that do not, and a new certificate.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream as BlockingStream,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use faults::services::{Certificates, find_program};
use listener::{Drained, HttpSettings, Look, Tls};
use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
    version::{TLS12, TLS13},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::server::{Server, between, post_to, settings};

/// A server with a certificate of its own authority.
pub(crate) struct TlsServer {
    pub(crate) server: Server,
    pub(crate) certificates: Certificates,
    pub(crate) tls: Arc<Tls>,
}

impl TlsServer {
    pub(crate) async fn start(settings: HttpSettings) -> TlsServer {
        let certificates = tokio::task::spawn_blocking(Certificates::make).await.unwrap().unwrap();
        let tls = Tls::open(&certificates.cert("server"), &certificates.key("server")).unwrap();
        let tls = Arc::new(tls);
        let server = Server::start_with(settings, Some(tls.clone())).await;
        TlsServer { server, certificates, tls }
    }

    pub(crate) async fn connect(
        &self,
        protocol: &str,
        versions: &[&'static SupportedProtocolVersion],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = TcpStream::connect(self.server.address).await?;
        let config = trusting(&self.certificates.cert("ca"), protocol, versions);
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, socket).await
    }

    async fn client(&self) -> TlsStream<TcpStream> {
        self.connect("http/1.1", &[&TLS13]).await.unwrap()
    }
}

fn trusting(
    ca: &Path,
    protocol: &str,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    config
}

async fn ask(client: &mut TlsStream<TcpStream>, request: &str, ends: &str) -> String {
    client.write_all(request.as_bytes()).await.unwrap();
    let (mut answer, mut bytes) = (String::new(), [0; 4_096]);
    while !answer.ends_with(ends) {
        let n = client.read(&mut bytes).await.unwrap();
        assert_ne!(n, 0, "closed after {answer}");
        answer.push_str(&String::from_utf8_lossy(&bytes[..n]));
    }
    answer
}

#[tokio::test]
async fn both_paths_are_served_over_tls_and_one_connection_changes_between_them() {
    let shop = TlsServer::start(settings()).await;
    for version in [&TLS12, &TLS13] {
        let mut client = shop.connect("http/1.1", &[version]).await.unwrap();
        for _ in 0..3 {
            ask(&mut client, &post_to("/quick", "12345"), "fast 5;").await;
            let get = "GET / HTTP/1.1\r\nhost: s\r\n\r\n";
            ask(&mut client, get, "127.0.0.1").await;
            ask(&mut client, &post_to("/echo", "a body"), "a body").await;
        }
        // Many at once, and one that waits.
        let many: String = (0..50).map(|_| post_to("/quick", "1")).collect();
        let answer =
            ask(&mut client, &format!("{many}{}", post_to("/quick", "last")), "fast 4;").await;
        assert_eq!(answer.matches("fast 1;").count(), 50);
        shop.server.bell.notify_one();
        ask(&mut client, &post_to("/wait", "12"), "fast 2;").await;
    }
}

#[tokio::test]
async fn a_large_answer_comes_whole_and_one_that_is_not_read_is_cut() {
    let shop = TlsServer::start(settings()).await;
    let mut client = shop.client().await;
    client.write_all(b"GET /large HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert!(answer.len() > 24_000_000, "{}", answer.len());
    let mut idler = shop.client().await;
    idler.write_all(b"GET /endless HTTP/1.1\r\nhost: s\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    // What was on its way comes, and then the end of an answer that has none.
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), idler.read_to_end(&mut rest));
    assert!(read.await.is_ok(), "it was not cut");
}

#[tokio::test]
async fn a_drain_lets_requests_over_tls_finish() {
    let shop = TlsServer::start(settings()).await;
    let mut busy = shop.client().await;
    let mut idle = shop.client().await;
    ask(&mut idle, "GET / HTTP/1.1\r\nhost: s\r\n\r\n", "127.0.0.1").await;
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: s\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopping = tokio::spawn(shop.server.stop());
    let mut answer = Vec::new();
    busy.read_to_end(&mut answer).await.unwrap();
    assert!(answer.ends_with(b"done"), "{}", String::from_utf8_lossy(&answer));
    // Closed with a word, as TLS wants it.
    assert_eq!(idle.read(&mut [0; 10]).await.unwrap(), 0);
    assert_eq!(stopping.await.unwrap(), Drained { finished: 2, cut: 0 });
}

#[tokio::test]
async fn who_does_not_shake_hands_in_time_is_closed() {
    let shop = TlsServer::start(settings()).await;
    for hello in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01"] {
        let mut silent = shop.server.client().await;
        silent.0.write_all(hello).await.unwrap();
        let (said, took) = silent.read_to_end().await;
        assert!(said.is_empty(), "{said:?}");
        between(took, 350, 3_000);
    }
}

#[tokio::test]
async fn whoever_dawdles_over_the_handshake_keeps_nobody_out() {
    let patient = HttpSettings {
        tls_handshake_timeout_ms: 60_000,
        connections_max: 10_000,
        tls_handshakes_max: 50,
        ..settings()
    };
    let shop = TlsServer::start(patient).await;
    let mut dawdlers = Vec::new();
    for _ in 0..200 {
        let mut dawdler = shop.server.client().await;
        dawdler.0.write_all(b"\x16\x03\x01").await.unwrap();
        dawdlers.push(dawdler);
    }
    let mut client = shop.client().await;
    ask(&mut client, &post_to("/quick", ""), "fast 0;").await;
    // The oldest gave way, the youngest are still at it.
    let (_, took) = dawdlers[0].read_to_end().await;
    assert!(took < Duration::from_secs(5));
    let last = dawdlers.last_mut().unwrap();
    let still_open =
        tokio::time::timeout(Duration::from_millis(300), last.0.read(&mut [0; 1])).await;
    assert!(still_open.is_err(), "{still_open:?}");
}

#[tokio::test]
async fn who_speaks_http_where_tls_is_spoken_is_told_so() {
    let shop = TlsServer::start(settings()).await;
    let mut plain = shop.server.client().await;
    plain.get("/").await;
    let (answer, _) = plain.read_to_end().await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("PlainHttp"), "{answer}");
}

/// What `openssl s_client` says of a connection with these options.
fn openssl(shop: &TlsServer, options: &[&str]) -> String {
    let output = Command::new(find_program("openssl", "openssl").unwrap())
        .args([
            "s_client",
            "-connect",
            &shop.server.address.to_string(),
            "-servername",
            "localhost",
        ])
        .arg("-CAfile")
        .arg(shop.certificates.cert("ca"))
        .args(options)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_versions_that_are_sound_are_spoken() {
    let shop = TlsServer::start(settings()).await;
    let modern = openssl(&shop, &["-tls1_3", "-alpn", "h2,http/1.1"]);
    assert!(modern.contains("Verify return code: 0"), "{modern}");
    assert!(modern.contains("TLSv1.3") && modern.contains("ALPN protocol: h2"), "{modern}");
    let old_client = openssl(&shop, &["-tls1_2", "-alpn", "http/1.1"]);
    assert!(old_client.contains("ALPN protocol: http/1.1"), "{old_client}");
    assert!(old_client.contains("Cipher    : ECDHE-"), "{old_client}");
    for (version, lax) in [("-tls1_1", "ALL@SECLEVEL=0"), ("-tls1", "ALL@SECLEVEL=0")] {
        let refused = openssl(&shop, &[version, "-cipher", lax]);
        assert!(refused.contains("Cipher is (NONE)"), "{refused}");
    }
    // Whoever comes back is spared the signature, though nothing is remembered of it here.
    let again = openssl(&shop, &["-tls1_2", "-reconnect"]);
    assert!(again.contains("Reused, TLSv1.2"), "{again}");
    // What has no cipher worth the name finds none.
    let weak = openssl(&shop, &["-tls1_2", "-cipher", "AES128-SHA:DES-CBC3-SHA:@SECLEVEL=0"]);
    assert!(weak.contains("Cipher is (NONE)"), "{weak}");
}

/// The certificate that a new connection is shown.
async fn shown(shop: &TlsServer) -> Vec<u8> {
    let client = shop.client().await;
    client.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_replaced_under_load_and_a_bad_one_is_not() {
    let patient = HttpSettings {
        tls_handshake_timeout_ms: 30_000,
        header_timeout_ms: 30_000,
        idle_timeout_ms: 60_000,
        request_timeout_ms: 30_000,
        ..settings()
    };
    let shop = Arc::new(TlsServer::start(patient).await);
    let (cert, key) = (shop.certificates.cert("server"), shop.certificates.key("server"));
    let first = shown(&shop).await;
    let mut old_friend = shop.client().await;

    // Clients come and go all the time.
    let (over, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let crowd: Vec<_> = (0..4)
        .map(|_| {
            let (shop, over, served) = (shop.clone(), over.clone(), served.clone());
            tokio::spawn(async move {
                while !over.load(Relaxed) {
                    let mut client = shop.client().await;
                    ask(&mut client, &post_to("/quick", "1"), "fast 1;").await;
                    served.fetch_add(1, Relaxed);
                }
            })
        })
        .collect();
    let some_more = async || {
        let before = served.load(Relaxed);
        while served.load(Relaxed) < before + 10 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };

    some_more().await;
    assert!(matches!(shop.tls.look(), Look::Same));
    // Half of a new pair is not believed, and then it is whole.
    let (good_cert, good_key) = (fs::read(&cert).unwrap(), fs::read(&key).unwrap());
    fs::copy(shop.certificates.cert("client"), &cert).unwrap();
    assert!(matches!(shop.tls.look(), Look::Doubtful));
    fs::copy(shop.certificates.key("client"), &key).unwrap();
    assert!(matches!(shop.tls.look(), Look::Renewed));
    let second = shown(&shop).await;
    assert_ne!(first, second);
    some_more().await;

    // Rubbish, a wrong key, an empty file, no file: the second stays, and somebody hears of it.
    let bad: [&dyn Fn(); 4] = [
        &|| fs::write(&cert, "rubbish").unwrap(),
        &|| fs::write(&cert, &good_cert).unwrap(),
        &|| fs::write(&key, "").unwrap(),
        &|| fs::remove_file(&key).unwrap(),
    ];
    for make in bad {
        make();
        assert!(matches!(shop.tls.look(), Look::Doubtful));
        let look = shop.tls.look();
        let Look::Bad(error) = look else { panic!("{look:?}") };
        println!("{error}");
        assert_eq!(shown(&shop).await, second);
        some_more().await;
    }
    fs::write(&key, &good_key).unwrap();
    assert!(matches!(shop.tls.look(), Look::Renewed));
    assert!(matches!(shop.tls.look(), Look::Same));
    assert_eq!(shown(&shop).await, first);
    // Nobody was disconnected.
    ask(&mut old_friend, &post_to("/quick", "1"), "fast 1;").await;
    over.store(true, Relaxed);
    for client in crowd {
        client.await.unwrap();
    }
}

#[test]
fn a_pair_that_cannot_be_used_is_told_by_its_files() {
    let certificates = Certificates::make().unwrap();
    let (cert, key) = (certificates.cert("server"), certificates.key("server"));
    for (cert, key, said) in [
        (cert.clone(), certificates.key("client"), "cannot be used together"),
        (cert.clone(), cert.clone(), "holds no private key"),
        (key.clone(), key.clone(), "holds no certificate"),
        (cert.with_extension("nowhere"), key.clone(), "cannot be read"),
        (cert, "/dev/null".into(), "holds no private key"),
    ] {
        let error = Tls::open(&cert, &key).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// So that the figure in the documents can be looked up.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_resting_connection_costs() {
    const CONNECTIONS: usize = 300;
    let shop = TlsServer::start(HttpSettings {
        connections_max: 2_000,
        tls_handshakes_max: 2_000,
        idle_timeout_ms: 600_000,
        ..settings()
    })
    .await;
    let resident = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1_024
    };
    // The clients are in this process as well, so they come without a library that remembers anything: the
    // same number of plain ones is taken off.
    let mut costs = Vec::new();
    for protocol in ["http/1.1", "h2"] {
        let mut kept = Vec::new();
        let began = Instant::now();
        let before = resident();
        for _ in 0..CONNECTIONS {
            kept.push(shop.connect(protocol, &[&TLS13]).await.unwrap());
        }
        let each = resident().saturating_sub(before) / CONNECTIONS;
        println!("{protocol}: {each} bytes for client and server, {:?} in all", began.elapsed());
        costs.push(each);
    }
    assert!(costs.iter().all(|each| *each < 200_000), "{costs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_comes_with_either_protocol() {
    let shop = TlsServer::start(settings()).await;
    for (option, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let output = Command::new(find_program("curl", "curl").unwrap())
            .args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "20", option])
            .args(["--write-out", " over %{http_version}", "--data", "12345", "--cacert"])
            .arg(shop.certificates.cert("ca"))
            .arg(format!("https://localhost:{}/quick", shop.server.address.port()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        // The fast path is there for HTTP/1.1.
        let way = if version == "2" { "router" } else { "fast" };
        assert_eq!(said, format!("{way} 5; over {version}"), "{output:?}");
    }
}

/// A client that shuts its half of the socket without a word of TLS has left.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_vanishes_leaves_nothing_behind() {
    let shop = TlsServer::start(HttpSettings { connections_max: 1, ..settings() }).await;
    for _ in 0..3 {
        let client = shop.client().await;
        drop(client.into_inner().0);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Above the cap one is closed without an answer that nobody could read.
    let _holds = shop.client().await;
    let address = shop.server.address;
    let answer = tokio::task::spawn_blocking(move || {
        let mut second = BlockingStream::connect(address).unwrap();
        let _ = second.write_all(b"GET / HTTP/1.1\r\n\r\n");
        let mut answer = Vec::new();
        let _ = second.read_to_end(&mut answer);
        answer
    });
    assert_eq!(answer.await.unwrap(), b"");
}

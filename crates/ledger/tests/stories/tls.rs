//! A ledger that speaks TLS alone, and wants to know who we are.

use faults::services::{Certificates, MariaDb, MariaDbOptions, unique_name};
use ledger::mysql::{self, OpenError, Options, TlsFiles};
use sale::ManualClock;

/// Certificates, a server that insists on them, and the address of a database there.
fn strict_server() -> (Certificates, MariaDb, String) {
    let files = Certificates::make().unwrap();
    let server = MariaDb::start(MariaDbOptions::with_tls(&files)).unwrap();
    let name = unique_name("tls");
    server.create_database(&name).unwrap();
    let user = "CREATE USER shop@127.0.0.1 IDENTIFIED BY 'a password' REQUIRE X509";
    server.query(&format!("{user}; GRANT ALL ON `{name}`.* TO shop@127.0.0.1")).unwrap();
    server.query("SET GLOBAL require_secure_transport = ON").unwrap();
    let url = format!("mysql://shop:a%20password@{}/{name}", server.address());
    (files, server, url)
}

#[tokio::test]
async fn only_certificates_that_fit_open_the_ledger_and_there_is_no_other_way() {
    let (files, _server, url) = strict_server();
    let good =
        TlsFiles { ca: files.cert("ca"), cert: files.cert("client"), key: files.key("client") };
    let open = async |url: &str, tls: TlsFiles| {
        let options = Options { tls, ..Options::default() };
        let opened = mysql::open(url, ManualClock::at(1_800_000_000_000), options).await;
        opened.map(drop).map_err(|error| (error.to_string(), error))
    };
    open(&url, good.clone()).await.map_err(|(text, _)| text).unwrap();
    let stranger = TlsFiles { ca: files.cert("stranger"), ..good.clone() };
    let (text, error) = open(&url, stranger).await.unwrap_err();
    assert!(
        matches!(error, OpenError::Tls { .. }) && text.contains("ledger.tls_ca_file"),
        "{text}"
    );
    let public = format!("{url}?require_ssl=true");
    let (text, error) = open(&public, TlsFiles::default()).await.unwrap_err();
    assert!(matches!(error, OpenError::Tls { .. }), "{text}");
    let nobody = TlsFiles { cert: "".into(), key: "".into(), ..good.clone() };
    let (text, error) = open(&url, nobody).await.unwrap_err();
    assert!(matches!(error, OpenError::Refused { .. }), "{text}");
    let (text, error) = open(&url, TlsFiles::default()).await.unwrap_err();
    assert!(matches!(error, OpenError::Refused { .. }), "plain: {text}");
    let half = TlsFiles { key: "".into(), ..good.clone() };
    assert!(matches!(open(&url, half).await.unwrap_err().1, OpenError::HalfAnIdentity));
    let missing = TlsFiles { ca: "/nowhere.pem".into(), ..good };
    assert!(open(&url, missing).await.unwrap_err().0.starts_with("ledger.tls_ca_file"));
}

#[tokio::test]
async fn a_server_without_tls_is_not_spoken_to_in_plain_words() {
    let files = Certificates::make().unwrap();
    let plain = MariaDbOptions { tls: false, ..MariaDbOptions::default() };
    let server = MariaDb::start(plain).unwrap();
    let url = server.create_database(&unique_name("plain")).unwrap();
    let tls = TlsFiles { ca: files.cert("ca"), ..TlsFiles::default() };
    let options = Options { tls, ..Options::default() };
    let opened = mysql::open(&url, ManualClock::at(1_800_000_000_000), options).await;
    let error = opened.map(drop).unwrap_err();
    assert!(matches!(error, OpenError::Tls { .. }), "{error}");
}

//! Where a process is reached: with TLS and over HTTP/2, at a door for operators alone, by its own names.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use client::{Api, NewSale};
use faults::services::{Certificates, find_program};
use sale::{Clock, ItemId, SaleToken, SystemClock};
use server::serve::Running;

use crate::{
    fixtures::{Deployment, Profile, Sale},
    operators::seckill,
};

const PAGES: [&str; 4] = ["/", "/cashier/T1", "/docs", "/nowhere"];

/// Status, headers and body. `path` may be a whole address.
fn curl(address: SocketAddr, ca: &Path, path: &str, options: &[&str]) -> String {
    let ca = ca.display().to_string();
    let mut all = vec!["--cacert", &ca];
    all.extend(options);
    match path.starts_with('/') {
        true => run_curl(&format!("https://localhost:{}{path}", address.port()), &all),
        false => run_curl(path, &all),
    }
}

fn run_curl(url: &str, options: &[&str]) -> String {
    let output = Command::new(find_program("curl", "curl").unwrap())
        .args(["--silent", "--show-error", "--include", "--max-time", "30", "--noproxy", "*"])
        .args(options)
        .arg(url)
        .output()
        .unwrap();
    assert!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn public(sale: &Sale) -> SocketAddr {
    Running::read(sale.deployment.data()).unwrap().public
}

/// A token as the shop itself would give it.
fn token_of(sale: &Sale, user: &str) -> String {
    let expires_ms = SystemClock.now_ms() + 600_000;
    let token = SaleToken { user: user.parse().unwrap(), item: ItemId(sale.item), expires_ms };
    format!("x-sale-token: {}", token.sign(&sale.deployment.keys()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_over_tls_by_either_protocol_and_a_new_certificate() {
    let certificates = Certificates::make().unwrap();
    let redirect = free_port();
    let deployment = Deployment::new(Profile::Solo)
        .env("SECKILL_HTTP_TLS_CERT_FILE", certificates.cert("server").display())
        .env("SECKILL_HTTP_TLS_KEY_FILE", certificates.key("server").display())
        .env("SECKILL_HTTP_REDIRECT_LISTEN", redirect);
    let sale = deployment.open_sale(NewSale::of(2)).await;
    let (at, ca) = (public(&sale), certificates.cert("ca"));

    // Buyers come by either protocol, and by the fast path or not.
    let claims = format!("/api/v1/items/{}/claims", sale.item);
    for (user, protocol, status) in [
        ("ann", "--http1.1", "HTTP/1.1 202"),
        ("bob", "--http2", "HTTP/2 202"),
        ("eve", "--http1.1", "HTTP/1.1 409"),
        ("eva", "--http2", "HTTP/2 409"),
    ] {
        let token = token_of(&sale, user);
        let json = "content-type: application/json";
        let claim = [protocol, "--header", &token, "--header", json, "--data", "{\"quantity\":1}"];
        let answer = curl(at, &ca, &claims, &claim);
        assert!(answer.starts_with(status), "{user}: {answer}");
    }
    // Browsers are told to come by TLS alone, on every page and with every error.
    for path in PAGES {
        let answer = curl(at, &ca, path, &["--http2"]).to_lowercase();
        assert!(answer.contains("strict-transport-security: max-age=31536000"), "{path}: {answer}");
    }
    // Without TLS there is only the way to it.
    let plain = curl(at, &ca, &format!("http://localhost:{redirect}/x?y=z"), &[]);
    assert!(plain.starts_with("HTTP/1.1 308"), "{plain}");
    assert!(
        plain.contains(&format!("location: https://localhost:{}/x?y=z\r\n", at.port())),
        "{plain}"
    );
    let wrong = curl(at, &ca, &format!("http://localhost:{}/", at.port()), &[]);
    assert!(wrong.starts_with("HTTP/1.1 400") && wrong.contains("Only https"), "{wrong}");
    // Commands on this machine need no certificate.
    let (code, said) = seckill(&sale.deployment, &["sale", "list"]);
    assert_eq!(code, Some(0), "{said}");

    // A bad pair changes nothing and is told; a good one is used within moments.
    let shown = |name: &str| {
        let ca = certificates.cert(name);
        let output = Command::new(find_program("curl", "curl").unwrap())
            .args(["--silent", "--noproxy", "*", "--max-time", "30", "--cacert"])
            .arg(ca)
            .arg(format!("https://localhost:{}/healthz", at.port()))
            .output();
        output.unwrap().status.success()
    };
    let (cert, key) = (certificates.cert("server"), certificates.key("server"));
    fs::write(&cert, "rubbish").unwrap();
    until("the bad certificate is told of", || {
        sale.deployment.log().contains("the new certificate cannot be used, the old one stays")
    })
    .await;
    assert!(shown("ca"));
    // The other authority signed for itself alone, so its own certificate serves as one.
    fs::copy(certificates.cert("stranger"), &cert).unwrap();
    fs::copy(certificates.key("stranger"), &key).unwrap();
    until("the new certificate is in use", || !shown("ca")).await;
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Each process of a deployment has its own door for operators.
async fn operators_and_machines_have_a_door_of_their_own(profile: Profile) {
    let deployment = Deployment::new(profile).env("SECKILL_HTTP_ADMIN_LISTEN", "127.0.0.1:0");
    // Everything that a test does as an operator goes there.
    let sale = deployment.open_sale(NewSale::of(1)).await;
    let server = sale.server();
    let (mut outside, mut inside) = (Api::new(public(&sale), Some(&server.token)), server.admin());
    for path in ["/metrics", "/readyz", "/readyz/sell", "/api/v1/admin/overview"] {
        assert_eq!(outside.get(path).await.unwrap().status, 404, "{path}");
        assert_eq!(inside.get(path).await.unwrap().status, 200, "{path}");
    }
    for path in ["/healthz", "/openapi.json"] {
        assert_eq!(outside.get(path).await.unwrap().status, 200, "{path}");
        assert_eq!(inside.get(path).await.unwrap().status, 200, "{path}");
    }
    for path in ["/", "/api/v1/activities", "/docs", "/embed.js"] {
        assert_eq!(outside.get(path).await.unwrap().status, 200, "{path}");
        assert_eq!(inside.get(path).await.unwrap().status, 404, "{path}");
    }
    let token = token_of(&sale, "ann");
    let (name, token) = token.split_once(": ").unwrap();
    let claims = format!("/api/v1/items/{}/claims", sale.item);
    let body = br#"{"quantity":1}"#;
    let claim = inside.send("POST", &claims, &[(name, token)], body).await.unwrap();
    assert_eq!(claim.status, 404);
    let claim = outside.send("POST", &claims, &[(name, token)], body).await.unwrap();
    assert_eq!(claim.status, 202);
    let (code, said) = seckill(&sale.deployment, &["sale", "list"]);
    assert_eq!(code, Some(0), "{said}");
}

crate::in_every_profile!(operators_and_machines_have_a_door_of_their_own);

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_another_name_is_refused_on_either_path() {
    let deployment =
        Deployment::new(Profile::Solo).env("SECKILL_HTTP_ALLOWED_HOSTS", "shop.example, 127.0.0.1");
    let sale = deployment.open_sale(NewSale::of(1)).await;
    let at = public(&sale);
    let url = |path: &str| format!("http://127.0.0.1:{}{path}", at.port());
    let claims = url(&format!("/api/v1/items/{}/claims", sale.item));
    let ask = |url: &str, host: &str, options: &[&str]| {
        let host = format!("host: {host}");
        let mut all = vec!["--header", &host];
        all.extend(options);
        run_curl(url, &all)
    };
    let token = token_of(&sale, "ann");
    let json = "content-type: application/json";
    let claim = ["--header", &token, "--header", json, "--data", "{\"quantity\":1}"];
    for (url, options) in
        [(url("/"), &[][..]), (url("/api/v1/time"), &[]), (claims.clone(), &claim)]
    {
        for host in ["evil.example", "shop.example.evil.example", "127.0.0.2:80"] {
            let answer = ask(&url, host, options);
            assert!(answer.starts_with("HTTP/1.1 421"), "{url} as {host}: {answer}");
            assert!(answer.contains("\"code\":\"misdirected\""), "{answer}");
        }
    }
    assert!(ask(&url("/"), "SHOP.example:8080", &[]).starts_with("HTTP/1.1 200"));
    assert!(ask(&claims, "shop.example", &claim).starts_with("HTTP/1.1 202"));
}

/// Pages, answers of the API, errors and scripts: nothing is shown as what it is not.
#[tokio::test(flavor = "multi_thread")]
async fn every_answer_carries_its_policy() {
    let sale = Deployment::new(Profile::Solo).open_sale(NewSale::of(1)).await;
    let mut api = Api::new(sale.server().address, None);
    for path in PAGES.iter().chain(&["/api/v1/time", "/embed.js", "/healthz", "/api/v1/orders"]) {
        let answer = api.get(path).await.unwrap();
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("default-src 'none';"), "{path}: {policy}");
        assert!(policy.ends_with("frame-ancestors 'none'"), "{path}: {policy}");
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"), "{path}");
        // Only where TLS is spoken.
        assert_eq!(answer.header("strict-transport-security"), None, "{path}");
    }
}

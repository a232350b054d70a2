//! Where a process is reached: with TLS and over HTTP/2, at a door for operators alone, by its own names.

use std::{
    collections::BTreeMap,
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use client::{Api, NewSale};
use faults::services::{Certificates, Nginx, find_program};
use sale::{Clock, ItemId, SaleToken, SystemClock};
use serde_json::json;
use server::serve::Running;

use crate::{
    fixtures::{Buyer, Deployment, Profile, Sale},
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
    let token = SaleToken {
        user: user.parse().unwrap(),
        item: ItemId(sale.item),
        expires_ms,
        from_ms: None,
    };
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
    let mut answers = Vec::new();
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
        answers.push(answer);
    }
    same_but_for_the_way(&answers[2], &answers[3]);
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

/// A refusal by the fast path and by the router over HTTP/2 says the same, in its body byte by byte. Beside
/// that the router has what is for pages.
fn same_but_for_the_way(fast: &str, router: &str) {
    let parts = |answer: &str| -> (BTreeMap<String, String>, String) {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let field = |line: &str| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_lowercase(), value.to_owned()))
        };
        (head.lines().filter_map(field).collect(), body.to_owned())
    };
    let ((mut fast, fast_body), (mut router, router_body)) = (parts(fast), parts(router));
    assert_eq!(fast_body, router_body);
    for own in ["date", "x-request-id"] {
        assert!(fast.remove(own).is_some() && router.remove(own).is_some(), "{own}");
    }
    for for_pages in ["content-security-policy", "referrer-policy"] {
        assert!(router.remove(for_pages).is_some(), "{for_pages}");
    }
    assert_eq!(fast, router);
    assert!(fast.contains_key("strict-transport-security"), "{fast:?}");
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

async fn an_admin_token_expires_is_bound_to_addresses_and_shows_its_last_use(profile: Profile) {
    // Behind one proxy of ours, so that a test can come from anywhere.
    let deployment = Deployment::new(profile).env("SECKILL_HTTP_PROXY_HOPS", 1);
    let deployment = deployment.env("SECKILL_AUTH_DEV_LOGIN", profile == Profile::Solo);
    let servers = deployment.start().await;
    let (server, mut admin) = (&servers[0], servers[0].admin());
    let mut make = async |body: serde_json::Value| {
        admin.send("POST", "/api/v1/admin/tokens", &[], body.to_string().as_bytes()).await.unwrap()
    };
    // Bad bounds make nothing.
    for (field, value) in [
        ("addresses", json!(["10.1.2.3/8"])),
        ("addresses", json!(["everywhere"])),
        ("addresses", json!(vec!["10.0.0.1"; 33])),
        ("ttl_ms", json!(u64::MAX)),
        ("ttl_ms", json!(-1)),
    ] {
        let mut body = json!({"name": "bad", "role": "viewer"});
        body[field] = value;
        assert_eq!(make(body.clone()).await.status, 422, "{body}");
    }
    let begun = SystemClock.now_ms();
    let mut tokens = Vec::new();
    for (name, ttl_ms, addresses) in [
        ("default", None, &[][..]),
        ("for-ever", Some(0), &[]),
        ("short", Some(1_500), &[]),
        ("bound", None, &["10.0.0.0/8", "2001:db8::7"]),
    ] {
        let mut body = json!({"name": name, "role": "viewer", "addresses": addresses});
        if let Some(ttl_ms) = ttl_ms {
            body["ttl_ms"] = json!(ttl_ms);
        }
        let made: serde_json::Value = serde_json::from_slice(&make(body).await.body).unwrap();
        let lives_ms = made["expires_at"].as_i64().map(|at| at - begun);
        match name {
            "for-ever" => assert_eq!(lives_ms, None),
            "short" => assert!((1_500..60_000).contains(&lives_ms.unwrap())),
            _ => assert!((7_776_000_000..7_776_060_000).contains(&lives_ms.unwrap()), "90 days"),
        }
        tokens.push(made["token"].as_str().unwrap().to_owned());
    }
    let ask = async |token: &str, from: &str| {
        let mut api = Api::new(server.address, Some(token));
        let headers = [("x-forwarded-for", from)];
        api.send("GET", "/api/v1/admin/overview", &headers, b"").await.unwrap()
    };
    let [default, _, short, bound] = &tokens[..] else { panic!() };
    assert_eq!(ask(default, "192.0.2.1").await.status, 200);
    for (from, status) in [
        ("10.9.8.7", 200),
        ("2001:db8::7", 200),
        ("2001:db8::8", 403),
        ("192.0.2.1", 403),
        // What the client says of itself is left of what the proxy says.
        ("10.9.8.7, 192.0.2.1", 403),
    ] {
        assert_eq!(ask(bound, from).await.status, status, "{from}");
    }
    let began = Instant::now();
    while ask(short, "192.0.2.1").await.status == 200 {
        assert!(began.elapsed() < Duration::from_secs(60), "it never expires");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let expired = ask(short, "192.0.2.1").await;
    assert_eq!(expired.status, 401);
    assert!(String::from_utf8_lossy(&expired.body).contains("has expired"));

    // The last use is written down when the process stops, at the latest.
    for server in servers {
        server.stop().await.unwrap();
    }
    let (code, said) = seckill(&deployment, &["token", "list"]);
    assert_eq!(code, Some(0), "{said}");
    let line = |name: &str| said.lines().find(|line| line.contains(&format!(" {name} "))).unwrap();
    assert!(
        line("default").contains("used 20") && line("default").contains("from anywhere"),
        "{said}"
    );
    assert!(line("for-ever").contains("expires never, used never"), "{said}");
    assert!(line("bound").contains("from 10.0.0.0/8 2001:db8::7/128"), "{said}");
    let words = ["token", "create", "dave", "--expires", "30d", "--from", "10.0.0.0/8"];
    let (code, said) = seckill(&deployment, &words);
    assert_eq!(code, Some(0), "{said}");
}

async fn a_signing_key_is_replaced_and_nothing_that_was_signed_is_void(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(10)).await;
    let addresses = sale.addresses();
    let claims = format!("/api/v1/items/{}/claims", sale.item);
    let claim = async |at: usize, token: &str| {
        let mut api = Api::new(addresses[at % addresses.len()], None);
        let headers = [("x-sale-token", token)];
        api.send("POST", &claims, &headers, br#"{"quantity":1}"#).await.unwrap()
    };
    let text = |answer: &client::Response, name: &str| {
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        body[name].as_str().unwrap().to_owned()
    };
    // Before: a claim with its receipt, and a token that is not used yet.
    let mut ann = sale.buyer("ann").await;
    let early = sale.buyer("early").await.sale_token.clone();
    let old_receipt = text(&claim(0, &ann.sale_token).await, "receipt");

    // Known everywhere before it signs, and then it signs everywhere.
    let key = |words: &[&str]| {
        let (code, said) = seckill(&sale.deployment, words);
        assert_eq!(code, Some(0), "{said}");
        said
    };
    assert!(key(&["key", "list"]).contains("0  signing"));
    key(&["key", "rotate", "--after", "12s"]);
    assert!(key(&["key", "list"]).contains("1  next"));
    let began = Instant::now();
    let mut new_tokens = 0;
    for n in 0.. {
        // At every moment of it, what one instance signs is good at all of them.
        let bob = sale.buyer_at(n % addresses.len(), &format!("bob{n}")).await.sale_token.clone();
        for address in &addresses {
            let mut api = Api::new(*address, None);
            let headers = [("x-sale-token", bob.as_str())];
            // Too many units: the token is looked at first, and no unit is taken.
            let told = api.send("POST", &claims, &headers, br#"{"quantity":9999}"#).await.unwrap();
            assert_eq!(told.status, 422, "{}", String::from_utf8_lossy(&told.body));
        }
        let is_new = bob.starts_with("gQ");
        assert!(is_new || bob.starts_with("AQ"), "{bob}");
        new_tokens += usize::from(is_new);
        if new_tokens >= 6 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(90), "the new key never signs");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(key(&["key", "list"]).contains("1  signing"));

    // What the old key signed is good: the token, and the receipt.
    assert_eq!(claim(1, &early).await.status, 202);
    let present = async |buyer: &mut Buyer, receipt: &str| {
        let body = json!({"receipt": receipt});
        buyer.api.post("/api/v1/receipts", &body).await.unwrap().status
    };
    assert_eq!(present(&mut ann, &old_receipt).await, 200);
    let mut zoe = sale.buyer("zoe").await;
    let admitted = claim(1, &zoe.sale_token).await;
    assert_eq!(admitted.status, 202);
    let new_receipt = text(&admitted, "receipt");
    assert!(new_receipt.starts_with("gg") && new_receipt.len() <= old_receipt.len() + 8);

    // A process that starts knows them all.
    sale.stop().await;
    sale.start().await;
    (ann, zoe) = (sale.buyer("ann").await, sale.buyer("zoe").await);
    assert_eq!(present(&mut ann, &old_receipt).await, 200);
    assert_eq!(present(&mut zoe, &new_receipt).await, 200);
    // The one that signs stays; the other goes by hand, and with it what it signed.
    let (code, said) = seckill(&sale.deployment, &["key", "retire", "1"]);
    assert!(code != Some(0) && said.contains("signing"), "{said}");
    let (code, said) = seckill(&sale.deployment, &["key", "retire", "0"]);
    assert_eq!(code, Some(0), "{said}");
    let began = Instant::now();
    while present(&mut ann, &old_receipt).await == 200 {
        assert!(began.elapsed() < Duration::from_secs(60), "a retired key verifies");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

crate::in_every_profile!(
    operators_and_machines_have_a_door_of_their_own,
    an_admin_token_expires_is_bound_to_addresses_and_shows_its_last_use,
    a_signing_key_is_replaced_and_nothing_that_was_signed_is_void,
);

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

/// Through nginx until it is admitted. A 504 says that the outcome is not known, and asking again with the
/// same key is safe.
fn claim_through(nginx: &Nginx, sale: &Sale, user: &str) -> String {
    let (token, key) = (token_of(sale, user), format!("idempotency-key: {user}"));
    let (ca, json) = (nginx.certificate().display().to_string(), "content-type: application/json");
    let url = format!("{}/api/v1/items/{}/claims", nginx.url(), sale.item);
    let headers = ["--cacert", &ca, "--header", &token, "--header", &key, "--header", json];
    for _ in 0..60 {
        let answer = run_curl(&url, &[&headers[..], &["--data", "{\"quantity\":1}"]].concat());
        let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
        if !["502", "503", "504"].contains(&status.as_str()) {
            return status;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    panic!("{user} never heard anything");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_behind_nginx_goes_on_without_one_of_two_instances() {
    let deployment = Deployment::new(Profile::Cluster).env("SECKILL_HTTP_PROXY_HOPS", 1);
    let mut sale = deployment.open_sale(NewSale::of(30)).await;
    let nginx = Nginx::start(&sale.addresses()).unwrap();
    for n in 0..30 {
        if n == 10 {
            sale.kill_one(0);
        }
        assert_eq!(claim_through(&nginx, &sale, &format!("buyer{n}")), "202", "{n}");
    }
    // Each unit once: the thirty-first buyer comes too late, and so does everybody after the switch.
    assert_eq!(claim_through(&nginx, &sale, "late"), "409");
    nginx.end_the_sale(true).unwrap();
    assert_eq!(claim_through(&nginx, &sale, "later"), "403");
}

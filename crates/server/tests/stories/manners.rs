//! Clients that write HTTP by hand, well or badly: a claim is the same claim whether it comes whole in
//! one packet (the fast path) or in pieces (the long way), and what nobody can understand is said
//! so in words that a program can read.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use client::{Api, Connection, NewSale, Response};
use sale::{ItemId, SaleToken};
use serde_json::{Value, json};

use crate::fixtures::{Deployment, Profile, Sale, now_ms};

/// How a request is cut up on its way.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Whole,
    /// The head ends in one packet, the body comes in another.
    BodyLater,
    Pieces(usize),
}

const CUTS: [Cut; 3] = [Cut::Whole, Cut::BodyLater, Cut::Pieces(40)];
/// Longer than a packet takes on this machine, so that pieces are not put together again.
const BETWEEN_PIECES: Duration = Duration::from_millis(3);

async fn send(connection: &mut Connection, request: &[u8], cut: Cut) -> Response {
    let head = request.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |at| at + 4);
    let pieces: Vec<&[u8]> = match cut {
        Cut::Whole => vec![request],
        Cut::BodyLater => vec![&request[..head], &request[head..]],
        Cut::Pieces(bytes) => request.chunks(bytes).collect(),
    };
    for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
        // One that was refused by its head is not read to its end.
        if connection.write(piece).await.is_err() {
            break;
        }
        tokio::time::sleep(BETWEEN_PIECES).await;
    }
    connection.read().await.unwrap()
}

async fn ask(address: SocketAddr, request: &[u8], cut: Cut) -> Response {
    let mut connection = Connection::open(address).await.unwrap();
    send(&mut connection, request, cut).await
}

/// What every answer says, whoever wrote it.
#[track_caller]
fn has_manners(answer: &Response, what: &str) {
    let header = |name| answer.header(name).unwrap_or_else(|| panic!("{what}: no {name}"));
    assert_eq!(header("x-content-type-options"), "nosniff", "{what}");
    assert_eq!(header("cache-control"), "no-store", "{what}");
    assert!(header("x-request-id").len() >= 16, "{what}");
}

#[track_caller]
fn is_refused(answer: &Response, status: u16, code: &str, what: &str) {
    has_manners(answer, what);
    assert_eq!((answer.status, answer.code().as_deref()), (status, Some(code)), "{what}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{what}");
}

/// A claim, written by hand.
struct Claim<'a> {
    path: &'a str,
    host: &'a str,
    token: String,
    fields: &'a str,
    body: &'a str,
}

impl Claim<'_> {
    fn bytes(&self) -> Vec<u8> {
        let Claim { path, host, token, fields, body } = self;
        let length = if fields.contains("content-length") || fields.contains("transfer-encoding") {
            String::new()
        } else {
            format!("content-length: {}\r\n", body.len())
        };
        format!(
            "POST {path} HTTP/1.1\r\n{host}x-sale-token: {token}\r\ncontent-type: application/json\r\n\
             {fields}{length}\r\n{body}"
        )
        .into()
    }
}

fn sale_token(sale: &Sale, item: i64, user: &str) -> String {
    let (user, item) = (user.parse().unwrap(), ItemId(item));
    SaleToken { user, item, expires_ms: now_ms() + 600_000, from_ms: None }
        .sign(&sale.deployment.keys())
}

async fn a_claim_means_the_same_whole_or_in_pieces(profile: Profile) {
    let new = || NewSale { limit_per_user: 2, ..NewSale::of(50) };
    let sale = Deployment::new(profile).open_sale(new()).await;
    let other = new().create(&mut sale.admin()).await.unwrap().items[0];
    let (address, item) = (sale.server().address, sale.item);
    let path = format!("/api/v1/items/{item}/claims");
    let signed = format!("/api/v1/items/+{item}/claims");
    let padded = format!("/api/v1/items/00{item}/claims");
    let minus = format!("/api/v1/items/-{item}/claims");
    let two_tokens = format!("X-Sale-Token: {}\r\n", sale_token(&sale, item, "eve"));
    let chunked = "1\r\n{\r\nd\r\n\"quantity\":1}\r\n0\r\n\r\n";
    for (n, cut) in CUTS.into_iter().enumerate() {
        let user = format!("ann{n}");
        let token = || sale_token(&sale, item, &user);
        let key = format!("Idempotency-Key: k-{n}\r\n");
        let good = || Claim {
            path: &path,
            host: "Host: shop\r\n",
            token: token(),
            fields: &key,
            body: r#"{"quantity":1}"#,
        };
        let admitted = ask(address, &good().bytes(), cut).await;
        has_manners(&admitted, "an admission");
        assert_eq!(admitted.status, 202, "{cut:?}: {}", admitted.json());
        // The same key: the same claim, however it is cut, also with a body in chunks.
        for again in CUTS {
            let repeated = ask(address, &good().bytes(), again).await;
            assert_eq!(repeated.json()["order_no"], admitted.json()["order_no"], "{again:?}");
        }
        let in_chunks = format!("{key}transfer-encoding: chunked\r\n");
        let in_chunks = Claim { fields: &in_chunks, body: chunked, ..good() };
        let mut connection = Connection::open(address).await.unwrap();
        for _ in 0..3 {
            let repeated = send(&mut connection, &in_chunks.bytes(), cut).await;
            assert_eq!((repeated.status, repeated.header("connection")), (202, None), "{cut:?}");
        }

        for (what, claim, status, code) in [
            (
                "the key with another quantity",
                Claim { body: r#"{"quantity":2}"#, ..good() },
                422,
                "key_reused",
            ),
            ("two sale tokens", Claim { fields: &two_tokens, ..good() }, 400, "bad_request"),
            ("a signed number", Claim { path: &signed, ..good() }, 404, "not_found"),
            ("a padded number", Claim { path: &padded, ..good() }, 404, "not_found"),
            ("a negative number", Claim { path: &minus, ..good() }, 404, "not_found"),
            ("no host", Claim { host: "", ..good() }, 400, "bad_request"),
            ("two hosts", Claim { host: "Host: a\r\nhost: a\r\n", ..good() }, 400, "bad_request"),
            ("no host at all", Claim { host: "Host: a/b\r\n", ..good() }, 400, "bad_request"),
            (
                "a strange expectation",
                Claim { fields: "Expect: a miracle\r\n", ..good() },
                417,
                "expectation_failed",
            ),
            (
                "an absurd length",
                Claim { fields: "content-length: 99999999999999999999999\r\n", ..good() },
                413,
                "too_large",
            ),
            (
                "a length that is no number",
                Claim { fields: "content-length: +14\r\n", ..good() },
                400,
                "bad_request",
            ),
            (
                "two lengths",
                Claim { fields: "content-length: 14\r\ncontent-length: 15\r\n", ..good() },
                400,
                "bad_request",
            ),
            (
                "a length beside chunks",
                Claim {
                    fields: "content-length: 14\r\ntransfer-encoding: chunked\r\n",
                    body: chunked,
                    ..good()
                },
                400,
                "bad_request",
            ),
            ("a bad token", Claim { token: "x".into(), ..good() }, 403, "bad_token"),
            ("no quantity", Claim { body: "{}", ..good() }, 422, "invalid"),
        ] {
            let answer = ask(address, &claim.bytes(), cut).await;
            is_refused(&answer, status, code, &format!("{what}, {cut:?}"));
        }
        // The key was spent here; for another item it is refused where that is remembered.
        let elsewhere = format!("/api/v1/items/{other}/claims");
        let elsewhere =
            Claim { path: &elsewhere, token: sale_token(&sale, other, &user), ..good() };
        let answer = ask(address, &elsewhere.bytes(), cut).await;
        is_refused(&answer, 422, "key_reused", "the key for another item");
        assert_eq!(answer.json()["order_no"], admitted.json()["order_no"]);
    }
    sale.must_hold().await;
}

async fn a_client_that_closes_its_half_still_hears_of_its_claim(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(10)).await;
    let path = format!("/api/v1/items/{}/claims", sale.item);
    for (n, cut) in CUTS.into_iter().enumerate() {
        let claim = Claim {
            path: &path,
            host: "Host: shop\r\n",
            token: sale_token(&sale, sale.item, &format!("bob{n}")),
            fields: "",
            body: r#"{"quantity":1}"#,
        };
        let (bytes, address) = (claim.bytes(), sale.server().address);
        let answer = tokio::task::spawn_blocking(move || half_closing(address, &bytes, cut));
        let answer = answer.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 202"), "{cut:?}: {answer}");
    }
    let get = b"GET /api/v1/activities HTTP/1.1\r\nhost: shop\r\n\r\n".to_vec();
    let address = sale.server().address;
    let page = tokio::task::spawn_blocking(move || half_closing(address, &get, Cut::Pieces(9)));
    assert!(page.await.unwrap().starts_with("HTTP/1.1 200"));
    sale.must_hold().await;
}

/// Send, say that nothing more comes, and read to the end.
fn half_closing(address: SocketAddr, request: &[u8], cut: Cut) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let bytes = match cut {
        Cut::Whole | Cut::BodyLater => request.len(),
        Cut::Pieces(bytes) => bytes,
    };
    for piece in request.chunks(bytes) {
        stream.write_all(piece).unwrap();
        std::thread::sleep(BETWEEN_PIECES);
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

async fn the_audit_and_the_log_say_from_where_and_by_which_request(profile: Profile) {
    let deployment = Deployment::new(profile).env("SECKILL_HTTP_PROXY_HOPS", 1);
    let sale = deployment.open_sale(NewSale::of(1)).await;
    let address = sale.server().address;
    // As a proxy of ours would send it; what the client wrote before it counts for nothing.
    let through_proxy =
        [("x-forwarded-for", "6.6.6.6, 203.0.113.9"), ("x-request-id", "from-the-proxy-1")];
    let mut admin = sale.admin();
    let exported = admin.send("GET", "/api/v1/admin/orders?format=csv", &through_proxy, b"").await;
    let exported = exported.unwrap();
    assert_eq!((exported.status, exported.header("x-request-id")), (200, Some("from-the-proxy-1")));
    has_manners(&exported, "an export");
    let search = "/api/v1/admin/orders?user_id=ann";
    let searched = admin.send("GET", search, &[], b"").await.unwrap();
    assert_eq!(searched.status, 200);
    let audit: Value = admin.read("/api/v1/admin/audit?limit=2").await.unwrap();
    let letters: Value = admin.read("/api/v1/admin/dead-letters?user_id=bob").await.unwrap();
    assert_eq!(letters["dead_letters"], json!([]));
    let last: Value = admin.read("/api/v1/admin/audit?limit=1").await.unwrap();
    assert_eq!(last["entries"][0]["action"], "dead_letters.search");
    assert_eq!(last["entries"][0]["detail"], json!({"user_id": "bob"}));
    let of = |n: usize, field: &str| audit["entries"][n][field].as_str().unwrap().to_owned();
    assert_eq!(
        (of(0, "action"), of(1, "action")),
        ("orders.search".into(), "orders.export".into())
    );
    assert_eq!(audit["entries"][0]["detail"], json!({"user_id": "ann"}));
    assert_eq!(of(0, "address"), "127.0.0.1");
    assert_eq!(of(0, "request_id"), searched.header("x-request-id").unwrap());
    assert_eq!(of(1, "address"), "203.0.113.9");
    assert_eq!(of(1, "request_id"), "from-the-proxy-1");

    // Strangers and those without the role: all are counted, few are written down.
    const STRANGERS: usize = 40;
    let mut stranger = Api::new(address, Some("sk_admin_guessed_by_a_stranger"));
    for n in 0..STRANGERS {
        let answer =
            stranger.send("GET", "/api/v1/admin/audit", &through_proxy, b"").await.unwrap();
        is_refused(&answer, 401, "unauthorized", &format!("stranger {n}"));
    }
    let viewer = json!({"name": "viewer", "role": "viewer"});
    let viewer: Value = admin.write("/api/v1/admin/tokens", &viewer).await.unwrap();
    let mut viewer = Api::new(address, viewer["token"].as_str());
    // A second later, so that the line has its place.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(viewer.post("/api/v1/admin/reconcile", &json!({})).await.unwrap().status, 403);
    let metrics = admin.send("GET", "/metrics", &[], b"").await.unwrap();
    has_manners(&metrics, "the metrics");
    let metrics = String::from_utf8(metrics.body).unwrap();
    for line in [
        format!("seckill_auth_refused_total{{kind=\"admin_token\"}} {STRANGERS}"),
        "seckill_auth_refused_total{kind=\"role\"} 1".into(),
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line}");
    }
    let log = sale.deployment.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("access was refused")).collect();
    let of_strangers = lines.iter().filter(|line| line.contains("203.0.113.9")).count();
    assert!((1..STRANGERS / 2).contains(&of_strangers), "{of_strangers} lines\n{log}");
    assert!(lines.iter().any(|line| line.contains("more=")), "how many more: {lines:#?}");
    let role = lines.iter().find(|line| line.contains("viewer")).expect("the role is written down");
    assert!(role.contains("127.0.0.1") && role.contains("request"), "{role}");
    assert!(!log.contains("guessed_by_a_stranger"), "a token in the log");
    let stock = format!("/api/v1/admin/items/{}/stock", sale.item);
    let adjusted = admin.post(&stock, &json!({"delta": 1})).await.unwrap();
    let id = adjusted.header("x-request-id").unwrap();
    let log = sale.deployment.log();
    let entry = log
        .lines()
        .find(|line| line.contains("stock.adjust"))
        .expect("what operators do is logged");
    assert!(entry.contains(id), "{id} is not in {entry}");
}

async fn a_revoked_token_is_dead_everywhere_within_a_second(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let new = json!({"name": "night-shift", "role": "viewer"});
    let made: Value = sale.admin().write("/api/v1/admin/tokens", &new).await.unwrap();
    let token = made["token"].as_str().unwrap();
    let audit = "/api/v1/admin/audit?limit=1";
    let mut desks: Vec<Api> =
        sale.addresses().into_iter().map(|address| Api::new(address, Some(token))).collect();
    for desk in &mut desks {
        let _: Value = desk.read(audit).await.unwrap();
    }
    let path = "/api/v1/admin/tokens/night-shift";
    let revoked = sale.admin().send("DELETE", path, &[], b"").await.unwrap();
    assert_eq!(revoked.status, 204);
    let since = Instant::now();
    for (n, desk) in desks.iter_mut().enumerate() {
        // When it was last sent and still good.
        let mut last = None;
        loop {
            let sent = since.elapsed();
            if desk.send("GET", audit, &[], b"").await.unwrap().status == 401 {
                break;
            }
            last = Some(sent);
            assert!(sent < Duration::from_secs(60), "it is never dead");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Where it was revoked it is dead at once; the others may not have asked since.
        let limit = if n == 0 { None } else { Some(Duration::from_secs(2)) };
        assert!(last <= limit, "instance {n} believed it for {last:?}");
    }
    // Nobody else becomes the night shift.
    let again = sale.admin().post("/api/v1/admin/tokens", &new).await.unwrap();
    assert_eq!((again.status, again.json()["state"].as_str()), (409, Some("revoked")));
}

crate::in_every_profile! {
    a_revoked_token_is_dead_everywhere_within_a_second,
    a_claim_means_the_same_whole_or_in_pieces,
    a_client_that_closes_its_half_still_hears_of_its_claim,
    the_audit_and_the_log_say_from_where_and_by_which_request,
}

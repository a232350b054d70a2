//! Attacks, row by row of the OWASP API Security Top 10 of 2023; docs/SAFETY.md says which test is whose.
//! Those that go over all routes take them from the document, so that a new route is attacked from its first
//! day.

use http::Method;
use sale::{ItemId, SaleToken, SigningKeys};
use serde_json::{Value, json};
use server::api::{self, BASE};

use crate::shop::{OPENS_MS, SECRET, Shop};

/// Every operation of the document: method, path with something in its holes, and who may ask.
fn operations() -> Vec<(Method, String, Option<String>)> {
    let document = serde_json::to_value(api::document()).unwrap();
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let Ok(method) = method.to_uppercase().parse::<Method>() else { continue };
            if !["GET", "POST", "PUT", "PATCH", "DELETE"].contains(&method.as_str()) {
                continue;
            }
            let security = operation["security"][0].as_object();
            let who = security.and_then(|names| names.keys().next().cloned());
            let path = path
                .replace("{id}", "1")
                .replace("{delivery}", "1")
                .replace("{no}", "SK0000000000000000001")
                .replace("{kind}", "members")
                .replace(['{', '}'], "");
            found.push((method, path, who));
        }
    }
    assert!(found.len() > 60, "{}", found.len());
    found
}

/// API1: the number of somebody else's order, its receipt, its payment and its news open nothing.
#[tokio::test]
async fn somebody_elses_orders_receipts_payments_and_news_are_not_there() {
    let shop = Shop::open().await;
    let (_, item) = shop.stage(5, 1).await;
    shop.clock.set(OPENS_MS);
    let claimed = shop.claim("ann", item).json(json!({"quantity": 1})).send().await.is(202);
    let no = claimed["order_no"].as_str().unwrap();
    let order = shop.settled("ann", no).await;
    let (ann, eve) = (shop.jwt("ann"), shop.jwt("eve"));
    let not_found = |heard: crate::shop::Heard| {
        heard.is_refused(404, "not_found", None);
        assert!(!heard.text.contains("iPhone"), "{}", heard.text);
    };
    not_found(shop.get(&format!("/orders/{no}")).bearer(&eve).send().await);
    not_found(shop.post(&format!("/orders/{no}/cancel")).bearer(&eve).send().await);
    let pay = json!({"provider": "sandbox"});
    not_found(
        shop.post(&format!("/orders/{no}/payments")).bearer(&eve).json(pay.clone()).send().await,
    );
    let receipt = json!({"receipt": claimed["receipt"]});
    let presented = shop.post("/api/v1/receipts").bearer(&eve).json(receipt).send().await;
    assert!((400..500).contains(&presented.status), "{}", presented.text);
    assert!(!presented.text.contains("unpaid"), "{}", presented.text);
    let mine = shop.get("/api/v1/orders").bearer(&eve).send().await.is(200);
    assert_eq!(mine["orders"], json!([]));
    // Another's sale token claims for its owner, and the thief has nothing of it.
    let stolen = shop.claim("ann", item).json(json!({"quantity": 1})).send().await;
    stolen.is_refused(409, "already_bought", None);
    not_found(shop.get(&format!("/orders/{no}")).bearer(&eve).send().await);
    // The payment's address is of no use without its own token.
    let opened = shop.post(&format!("/orders/{no}/payments")).bearer(&ann).json(pay).send().await;
    let url = opened.is(200)["payment_url"].as_str().unwrap().to_owned();
    let bare = url.split('?').next().unwrap();
    shop.get(&format!("{BASE}{bare}")).bearer(&eve).send().await.is_refused(403, "bad_token", None);
    assert_eq!(shop.settled("ann", no).await["status"], order["status"], "and nothing has changed");
}

/// API2: no route takes a login that is none, is over, is another's or names its own algorithm.
#[tokio::test]
async fn no_route_takes_a_login_that_is_none() {
    let shop = Shop::open().await;
    let (_, item) = shop.stage(5, 1).await;
    shop.clock.set(OPENS_MS);
    // {"alg":"none"} and {"sub":"ann","exp":9999999999}, unsigned.
    let unsigned = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4iLCJleHAiOjk5OTk5OTk5OTl9.";
    let mut changed = shop.jwt("ann");
    let middle = changed.len() / 2;
    changed
        .replace_range(middle..=middle, if &changed[middle..=middle] == "A" { "B" } else { "A" });
    let keys = SigningKeys::from_secret(SECRET).unwrap();
    let token = SaleToken {
        user: "ann".parse().unwrap(),
        item: ItemId(item),
        expires_ms: OPENS_MS * 2,
        from_ms: None,
    };
    let sale_token = token.sign(&keys);
    let mut tried = 0;
    for (method, path, who) in operations() {
        let Some(who) = who.filter(|who| who == "buyer" || who == "operator") else { continue };
        for login in ["", "x", unsigned, &changed, &sale_token] {
            let asked = shop.ask(method.clone(), &path).bearer(login).send().await;
            assert_eq!(
                asked.status, 401,
                "{method} {path} as {who} with {login:.20}: {}",
                asked.text
            );
        }
        let asked = shop.ask(method.clone(), &path).send().await;
        assert_eq!(asked.status, 401, "{method} {path} as {who} without a login: {}", asked.text);
        tried += 1;
    }
    assert!(tried > 50, "{tried}");
}

/// API3: what nobody may set cannot be sent along, and what nobody need know is not told.
#[tokio::test]
async fn fields_that_are_not_for_buyers_are_neither_taken_nor_told() {
    let shop = Shop::open().await;
    let (_, item) = shop.stage(5, 1).await;
    shop.clock.set(OPENS_MS);
    for extra in ["price", "amount", "user_id", "status", "order_no", "epoch", "role"] {
        let wish = json!({"quantity": 1, extra: 1});
        shop.claim("ann", item).json(wish).send().await.is_refused(422, "invalid", Some(extra));
    }
    assert_eq!(shop.left(item), 5);
    let no = shop.buy("ann", item).await;
    let order = shop.settled("ann", &no).await;
    let pay = json!({"provider": "sandbox", "amount": 1});
    let pay = shop.post(&format!("/orders/{no}/payments")).bearer(&shop.jwt("ann")).json(pay);
    pay.send().await.is_refused(422, "invalid", Some("amount"));
    for secret in ["user_id", "epoch", "claim_key", "version"] {
        assert_eq!(order.get(secret), None, "{order}");
    }
    let shown = shop.get(&format!("/items/{item}")).send().await.is(200);
    for secret in ["epoch", "version", "shards", "door"] {
        assert_eq!(shown.get(secret), None, "{shown}");
    }
}

/// API5: every route of operators, asked by everybody who is none, and by those whose role is too small.
#[tokio::test]
async fn every_route_of_operators_asks_for_its_role() {
    let shop = Shop::open().await;
    let mut tokens = Vec::new();
    for role in ["viewer", "operator"] {
        let new = json!({"name": role, "role": role});
        let made = shop.admin(Method::POST, "/admin/tokens").json(new).send().await.is(201);
        tokens.push(made["token"].as_str().unwrap().to_owned());
    }
    let [viewer, operator] = &tokens[..] else { unreachable!() };
    let ann = shop.jwt("ann");
    let mut tried = 0;
    for (method, path, _) in operations() {
        if !path.starts_with("/api/v1/admin/") {
            continue;
        }
        // Whoever may look may sign in and out, and make a link for themselves; `console` attacks those.
        if path.starts_with("/api/v1/admin/session") && method != Method::GET {
            continue;
        }
        for nobody in ["", "sk_admin_guessed", &ann] {
            let asked = shop.ask(method.clone(), &path).bearer(nobody).send().await;
            asked.is_refused(401, "unauthorized", None);
        }
        if method != Method::GET {
            let asked = shop.ask(method.clone(), &path).bearer(viewer).json(json!({})).send().await;
            assert_eq!(asked.status, 403, "{method} {path} as viewer: {}", asked.text);
        }
        let is_admins = path.ends_with("/refund") || path.starts_with("/api/v1/admin/tokens");
        if is_admins {
            let asked =
                shop.ask(method.clone(), &path).bearer(operator).json(json!({})).send().await;
            assert_eq!(asked.status, 403, "{method} {path} as operator: {}", asked.text);
        }
        tried += 1;
    }
    assert!(tried > 40, "{tried}");
}

/// API8: whatever is answered cannot be taken for another kind, and what fails tells nothing of the inside.
#[tokio::test]
async fn every_answer_is_plain_about_what_it_is() {
    let shop = Shop::open().await;
    for path in ["/", "/docs", "/favicon.ico", "/embed.js", "/api/v1/activities", "/nowhere"] {
        let heard = shop.get(path).response().await;
        assert_eq!(heard.headers()["x-content-type-options"], "nosniff", "{path}");
        for leak in ["server", "x-powered-by"] {
            assert!(!heard.headers().contains_key(leak), "{path}: {leak}");
        }
    }
    for page in ["/", "/docs"] {
        let heard = shop.get(page).send().await;
        let policy = heard.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(heard.headers["x-frame-options"], "DENY");
    }
    let wrong = shop.post("/api/v1/dev/login").raw("{\"user_id\": ").send().await;
    for inside in ["src/", "panicked", "serde", "rust"] {
        assert!(!wrong.text.contains(inside), "{}", wrong.text);
    }
}

/// API9: there is nothing that the document does not know, however it is spelled.
#[tokio::test]
async fn what_the_document_does_not_know_is_not_there() {
    let shop = Shop::open().await;
    for path in [
        "/api/v1/admin",
        "/api/v1/admin/debug",
        "/api/v0/activities",
        "/api/v2/activities",
        "/api/activities",
        "/api/v1/users",
        "/api/v1/items/1/claims/1",
        "/api/v1//activities",
        "/API/v1/activities",
        "/.env",
        "/.git/config",
        "/debug/pprof",
        "/actuator/health",
        "/assets/../Cargo.toml",
        "/assets/tests/claim.test.js",
    ] {
        shop.get(path).bearer(crate::shop::ADMIN).send().await.is_refused(404, "not_found", None);
    }
    let known: Vec<String> = operations().into_iter().map(|(_, path, _)| path).collect();
    for path in known.iter().filter(|path| path.starts_with(BASE)) {
        for method in [Method::TRACE, Method::CONNECT, Method::PUT] {
            let heard = shop.ask(method.clone(), path).bearer(crate::shop::ADMIN).send().await;
            assert!(matches!(heard.status, 404 | 405), "{method} {path}: {}", heard.status);
        }
    }
    let served: Value = shop.get("/openapi.json").send().await.is(200);
    assert_eq!(served["paths"].as_object().unwrap().len(), api::document().paths.paths.len());
}

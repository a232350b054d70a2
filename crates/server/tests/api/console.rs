//! The console: who is signed in, whose pages may use the cookie, and when it is over.

use http::Method;
use serde_json::{Value, json};

use crate::shop::{ADMIN, Ask, Heard, OPENS_MS, Shop};

const HOST: &str = "shop.example";

/// As a page of ours asks: with the header, its origin and its host.
fn ours(ask: Ask<'_>) -> Ask<'_> {
    ask.header("host", HOST)
        .header("origin", "http://shop.example")
        .header("sec-fetch-site", "same-origin")
        .header("x-seckill-console", "1")
}

/// The cookie that an answer sets, as a browser sends it back.
fn cookie(answer: &Heard) -> String {
    let set = answer.headers["set-cookie"].to_str().unwrap();
    set.split(';').next().unwrap().to_owned()
}

async fn sign_in(shop: &Shop, with: Value) -> Heard {
    ours(shop.post("/admin/session")).json(with).send().await
}

/// With the header, and from a page of this origin.
async fn told(ask: Ask<'_>, origin: &str) -> Heard {
    ask.header("x-seckill-console", "1").header("origin", origin).send().await
}

async fn token_of(shop: &Shop, name: &str, role: &str) -> String {
    let new = json!({"name": name, "role": role});
    let made = shop.admin(Method::POST, "/admin/tokens").json(new).send().await.is(201);
    made["token"].as_str().unwrap().to_owned()
}

async fn signed_in(shop: &Shop, name: &str, role: &str) -> String {
    let token = token_of(shop, name, role).await;
    let answer = sign_in(shop, json!({"token": token})).await;
    answer.is(200);
    cookie(&answer)
}

#[tokio::test]
async fn an_operator_signs_in_acts_and_signs_out() {
    let shop = Shop::open().await;
    let (activity, _) = shop.stage(3, 1).await;
    let token = token_of(&shop, "ann", "operator").await;
    let answer = sign_in(&shop, json!({"token": token})).await;
    let me = answer.is(200);
    assert_eq!((&me["name"], &me["role"]), (&json!("ann"), &json!("operator")));
    let set = answer.headers["set-cookie"].to_str().unwrap();
    for word in ["HttpOnly", "SameSite=Strict", "Path=/api/v1/admin"] {
        assert!(set.contains(word), "{set}");
    }
    assert!(!set.contains("Secure") && !set.contains(&token) && !answer.text.contains(&token));
    let cookie = cookie(&answer);
    let get = |path: &str| ours(shop.get(path)).header("cookie", &cookie).send();
    assert_eq!(get("/admin/session").await.is(200)["name"], "ann");
    get("/admin/overview").await.is(200);
    let pause = format!("/admin/activities/{activity}/pause");
    let paused = ours(shop.post(&pause)).header("cookie", &cookie).send().await.is(200);
    assert_eq!(paused["state"], "paused");
    let audit = get("/admin/audit").await.is(200);
    let done: Vec<_> = audit["entries"].as_array().unwrap().iter().take(2).collect();
    assert_eq!((&done[0]["who"], &done[0]["action"]), (&json!("ann"), &json!("activity.pause")));
    assert_eq!((&done[1]["who"], &done[1]["action"]), (&json!("ann"), &json!("console.sign_in")));

    let out = ours(shop.ask(Method::DELETE, "/admin/session")).header("cookie", &cookie);
    let out = out.send().await;
    out.is(204);
    assert!(out.headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    // Whoever copied it has nothing.
    get("/admin/overview").await.is_refused(401, "unauthorized", None);
}

#[tokio::test]
async fn a_page_of_somebody_else_cannot_use_the_cookie() {
    let shop = Shop::open().await;
    let (activity, _) = shop.stage(3, 1).await;
    let cookie = signed_in(&shop, "ann", "operator").await;
    let pause = format!("/admin/activities/{activity}/pause");
    let by_cookie = |method: Method, path: &str| {
        shop.ask(method, path).header("cookie", &cookie).header("host", HOST)
    };
    // A form sends the cookie, and no header.
    let form = by_cookie(Method::POST, &pause).header("origin", "http://shop.example");
    form.send().await.is_refused(403, "forbidden", None);
    for origin in
        ["http://evil.example", "null", "http://shop.example.evil", "http://shop.example:81"]
    {
        let foreign = told(by_cookie(Method::POST, &pause), origin);
        foreign.await.is_refused(403, "forbidden", None);
        let read = told(by_cookie(Method::GET, "/admin/orders"), origin);
        read.await.is_refused(403, "forbidden", None);
    }
    let nowhere = by_cookie(Method::POST, &pause).header("x-seckill-console", "1");
    nowhere.send().await.is_refused(403, "forbidden", None);
    let bare = by_cookie(Method::GET, "/admin/orders").send().await;
    bare.is_refused(403, "forbidden", None);
    let site = by_cookie(Method::GET, "/admin/orders").header("x-seckill-console", "1");
    site.header("sec-fetch-site", "same-site").send().await.is_refused(403, "forbidden", None);
    told(by_cookie(Method::POST, &pause), "http://shop.example").await.is(200);
    // Nor can it sign anybody in.
    let foreign = shop.post("/admin/session").header("host", HOST).header("x-seckill-console", "1");
    let foreign = foreign.header("origin", "http://evil.example").json(json!({"token": ADMIN}));
    foreign.send().await.is_refused(403, "forbidden", None);
    let form = shop.post("/admin/session").header("host", HOST).json(json!({"token": ADMIN}));
    form.send().await.is_refused(403, "forbidden", None);
}

#[tokio::test]
async fn a_session_may_what_its_token_may_and_ends_with_it() {
    let shop = Shop::open().await;
    let (activity, _) = shop.stage(3, 1).await;
    let cookie = signed_in(&shop, "eve", "viewer").await;
    let get = || ours(shop.get("/admin/overview")).header("cookie", &cookie).send();
    get().await.is(200);
    let pause = format!("/admin/activities/{activity}/pause");
    let pause = ours(shop.post(&pause)).header("cookie", &cookie).send().await;
    pause.is_refused(403, "forbidden", None);
    shop.admin(Method::DELETE, "/admin/tokens/eve").send().await.is(204);
    get().await.is_refused(401, "unauthorized", None);
    let cashier = token_of(&shop, "till", "cashier").await;
    let cashier = sign_in(&shop, json!({"token": cashier})).await;
    cashier.is_refused(403, "forbidden", None);
    assert!(!cashier.headers.contains_key("set-cookie"));
}

#[tokio::test]
async fn a_session_that_nobody_uses_is_over_and_so_is_an_old_one() {
    let settings = |config: &mut config::Config| {
        config.auth.console_idle_ms = 60_000;
        config.auth.console_session_ms = 150_000;
    };
    let shop = Shop::open_with(settings).await;
    let (left, used) =
        (signed_in(&shop, "ann", "viewer").await, signed_in(&shop, "bob", "viewer").await);
    let get = |cookie: &str| ours(shop.get("/admin/session")).header("cookie", cookie).send();
    for _ in 0..2 {
        shop.clock.advance(59_000);
        get(&used).await.is(200);
    }
    get(&left).await.is_refused(401, "unauthorized", None);
    shop.clock.advance(40_000);
    get(&used).await.is_refused(401, "unauthorized", None);
}

#[tokio::test]
async fn a_changed_cookie_opens_nothing() {
    let shop = Shop::open().await;
    let cookie = signed_in(&shop, "ann", "viewer").await;
    let (name, secret) = cookie.split_once('=').unwrap();
    let other = |at: usize| {
        let to = if &secret[at..=at] == "0" { "1" } else { "0" };
        format!("{name}={}{to}{}", &secret[..at], &secret[at + 1..])
    };
    let twice = format!("{cookie}; {cookie}");
    let upper = format!("{name}={}", secret.to_uppercase());
    for bad in [other(0), other(63), format!("{name}="), format!("{name}={ADMIN}"), twice] {
        let asked = ours(shop.get("/admin/overview")).header("cookie", &bad).send().await;
        asked.is_refused(401, "unauthorized", None);
    }
    if upper != cookie {
        let asked = ours(shop.get("/admin/overview")).header("cookie", &upper).send().await;
        asked.is_refused(401, "unauthorized", None);
    }
}

#[tokio::test]
async fn a_link_signs_in_once_and_as_whoever_made_it() {
    let shop = Shop::open().await;
    let token = token_of(&shop, "ann", "operator").await;
    let link = async |ask: Ask<'_>| {
        let made = ask.send().await.is(201);
        made["link"].as_str().unwrap().to_owned()
    };
    let first = link(shop.post("/admin/session/links").bearer(&token)).await;
    let answer = sign_in(&shop, json!({"link": first})).await;
    assert_eq!(answer.is(200)["name"], "ann");
    let again = sign_in(&shop, json!({"link": first})).await;
    again.is_refused(401, "unauthorized", None);
    // For the phone beside it.
    let cookie = cookie(&answer);
    let second = link(ours(shop.post("/admin/session/links")).header("cookie", &cookie)).await;
    assert_eq!(sign_in(&shop, json!({"link": second})).await.is(200)["role"], "operator");
    let late = link(shop.post("/admin/session/links").bearer(&token)).await;
    shop.clock.advance(5 * 60_000);
    sign_in(&shop, json!({"link": late})).await.is_refused(401, "unauthorized", None);
    let void = link(shop.post("/admin/session/links").bearer(&token)).await;
    shop.admin(Method::DELETE, "/admin/tokens/ann").send().await.is(204);
    sign_in(&shop, json!({"link": void})).await.is_refused(401, "unauthorized", None);
    for (body, field) in [
        (json!({}), "token"),
        (json!({"token": ADMIN, "link": first}), "token"),
        (json!({"password": "x"}), "password"),
    ] {
        sign_in(&shop, body).await.is_refused(422, "invalid", Some(field));
    }
    for bad in ["", "x", &"0".repeat(64)] {
        let refused = sign_in(&shop, json!({"link": bad})).await;
        refused.is_refused(401, "unauthorized", None);
    }
    sign_in(&shop, json!({"token": "sk_admin_x"})).await.is_refused(401, "unauthorized", None);
}

#[tokio::test]
async fn the_console_is_a_page_that_nobody_frames() {
    let shop = Shop::open_with(|config| {
        config.http.allowed_frames = vec!["https://shop.example".into()];
    });
    let shop = shop.await;
    for page in ["/console", "/docs"] {
        let typed = shop.get(&format!("{page}/")).send().await;
        assert_eq!((typed.status, typed.headers["location"].as_bytes()), (308, page.as_bytes()));
    }
    let page = shop.get("/console").send().await;
    assert_eq!(page.status, 200);
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.ends_with("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
}

#[tokio::test]
async fn an_order_tells_its_story_and_is_found_by_its_payment() {
    let shop = Shop::open().await;
    let (activity, item) = shop.stage(3, 1).await;
    shop.clock.set(OPENS_MS);
    let no = shop.buy("ann", item).await;
    shop.settled("ann", &no).await;
    let mark = json!({"reference": "bank-7", "reason": "by transfer"});
    let mark_paid = format!("/admin/orders/{no}/mark-paid");
    shop.admin(Method::POST, &mark_paid).json(mark).send().await.is(200);
    let get = |path: &str| shop.admin(Method::GET, path).send();

    let story = get(&format!("/admin/orders/{no}/story")).await.is(200);
    let events = story["events"].as_array().unwrap().iter();
    let mut kinds: Vec<_> = events.map(|event| event["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds[0], "claimed");
    kinds.sort_unstable();
    assert_eq!(kinds, ["claimed", "paid", "settled", "stock"]);
    get("/admin/orders/SK0000000000000000001/story").await.is_refused(404, "not_found", None);

    let found = get("/admin/orders?payment=bank-7").await.is(200);
    assert_eq!(found["orders"][0]["order_no"], json!(no));
    assert_eq!(get("/admin/orders?payment=bank-8").await.is(200)["orders"], json!([]));
    let both = get("/admin/orders?payment=bank-7&status=paid").await;
    both.is_refused(422, "invalid", Some("payment"));

    let deeds = get(&format!("/admin/audit?target=order:{no}")).await.is(200);
    assert_eq!(deeds["entries"].as_array().unwrap().len(), 1, "{deeds}");
    let deeds = get("/admin/audit?who=root&action=activity.").await.is(200);
    let entries = deeds["entries"].as_array().unwrap();
    assert!(!entries.is_empty() && entries.iter().all(|entry| entry["who"] == "root"), "{deeds}");
    assert_eq!(get("/admin/audit?who=nobody").await.is(200)["entries"], json!([]));

    let preflight = get(&format!("/admin/activities/{activity}/preflight")).await.is(200);
    let names: Vec<_> = preflight["checks"].as_array().unwrap().iter().collect();
    let verdict =
        |name: &str| &names.iter().find(|check| check["name"] == name).unwrap()["verdict"];
    assert_eq!((verdict("stock"), verdict("alerts")), (&json!("ok"), &json!("warn")));
    assert_eq!(verdict("window"), "warn", "it is open already");
}

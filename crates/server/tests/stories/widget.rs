//! ALTCHA's own widget, as a shop would put it on its page, in a real Chromium: what we call ALTCHA is what
//! it solves, and what it says is what we take.
//!
//! `cargo xtask test` installs the widget under `target/clients`; nothing of it is ours.

use std::path::Path;

use client::{Api, NewSale};
use serde_json::{Value, json};

use crate::fixtures::{Browser, Deployment, Pages, Profile, now_ms};

/// The widget asks for a challenge by GET and as nobody; a shop tells it how to ask as its buyer.
const PAGE: &str = "<!doctype html><html lang=\"en\"><title>shop</title>\
    <script type=\"module\" src=\"/altcha.js\"></script>\
    <form><altcha-widget></altcha-widget></form></html>";

fn answer(kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn widget() -> Vec<u8> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let file = target.join("clients/typescript/node_modules/altcha/dist/main/altcha.min.js");
    std::fs::read(&file)
        .unwrap_or_else(|why| panic!("{}: {why}; `cargo xtask test` installs it", file.display()))
}

#[tokio::test(flavor = "multi_thread")]
async fn altchas_own_widget_solves_our_challenge_and_its_answer_is_taken() {
    let (listener, origin) = Pages::listen().await;
    let deployment = Deployment::new(Profile::Solo).env("SECKILL_HTTP_ALLOWED_ORIGINS", origin);
    let sale = deployment.open_sale(NewSale::of(1)).await;
    let mut admin = sale.admin();
    let plan = json!({"name": "with a challenge", "opens_at": now_ms() - 1_000,
        "closes_at": now_ms() + 3_600_000, "door": {"challenge": "pow", "difficulty": 14},
        "items": [{"name": "Phone", "price": 1, "stock": 1}]});
    let made: Value = admin.write("/api/v1/admin/activities", &plan).await.unwrap();
    for verb in ["publish", "warm"] {
        let path = format!("/api/v1/admin/activities/{}/{verb}", made["id"]);
        let _: Value = admin.write(&path, &json!({})).await.unwrap();
    }
    let item = made["items"][0]["id"].as_i64().unwrap();

    let script = widget();
    let shop = Pages::serve(listener, move |path| match path {
        "/altcha.js" => answer("text/javascript", &script),
        "/" => answer("text/html", PAGE.as_bytes()),
        _ => answer("text/plain", b""),
    });
    let address = sale.server().address;
    let mut buyer = Api::new(address, None);
    let jwt = sale.deployment.login().token(&mut buyer, "ann").await.unwrap();
    let mut browser = Browser::open().await;
    browser.go(&shop.origin()).await;
    let element = "document.querySelector('altcha-widget')";
    browser.until(&format!("return typeof {element}.configure === 'function'")).await;
    let set_up = format!(
        "const widget = {element};
         widget.addEventListener('verified', (event) => {{ window.solution = event.detail.payload; }});
         widget.configure({{
           challenge: 'http://{address}/api/v1/items/{item}/challenge',
           fetch: (url, options) => fetch(url, {{...options, method: 'POST',
             headers: {{...options?.headers, Authorization: 'Bearer {jwt}'}}}}),
         }});
         widget.verify();"
    );
    browser.run(&set_up).await;
    let altcha = browser.until("return window.solution").await;

    let mut buyer = Api::new(address, Some(&jwt));
    let path = format!("/api/v1/items/{item}/token");
    let token: Value = buyer.write(&path, &json!({"altcha": altcha})).await.unwrap();
    let headers = [("x-sale-token", token["token"].as_str().unwrap())];
    let path = format!("/api/v1/items/{item}/claims");
    let claimed = buyer.send("POST", &path, &headers, b"{\"quantity\":1}").await.unwrap();
    assert_eq!(claimed.status, 202, "{}", claimed.json());
}

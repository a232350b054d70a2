//! The button on a page of another origin, under a strict policy, in a real Chromium.

use std::net::SocketAddr;

use client::{Api, NewSale};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::browser::change_door;
use crate::fixtures::{Browser, Deployment, PACES_S, Pages, Profile, Sale, now_ms};

/// What the shop's own page does: it notes what the button tells, and what its policy forbade. While
/// `noPolls` is set, whoever asks after an order or an item hears nothing.
const SCRIPT: &str = "window.heard = []; window.forbidden = []; window.noPolls = false;\n\
    const ask = window.fetch;\n\
    window.fetch = (url, options) => window.noPolls && options.method === 'GET' && /orders|items/.test(url)\n\
      ? Promise.reject(new TypeError('no polls')) : ask(url, options);\n\
    for (const name of ['ready', 'claimed', 'order', 'pay', 'sign-in', 'error']) {\n\
      document.addEventListener(`seckill-${name}`, ({detail}) => window.heard.push([name, detail]));\n\
    }\n\
    document.addEventListener('securitypolicyviolation', (event) =>\n\
      window.forbidden.push(event.blockedURI + event.violatedDirective));\n";

/// A shop of somebody else: a page with the button of the server at `sale`, and nothing inline. The path of
/// a page is the item, behind the kind of script: `/classic/42`, `/module/42`.
fn other_shop(listener: TcpListener, sale: SocketAddr) -> Pages {
    Pages::serve(listener, move |path| respond(path, sale).into_bytes())
}

fn respond(path: &str, sale: SocketAddr) -> String {
    let (kind, body) = match path.trim_start_matches('/').split_once('/') {
        Some((script, item)) => {
            let module = if script == "module" { " type=\"module\"" } else { "" };
            let page = format!(
                "<!doctype html><html lang=\"en\"><title>shop</title><script src=\"/page.js\"></script>\
                 <h1>Phone</h1><seckill-button item=\"{item}\"></seckill-button>\
                 <script{module} src=\"http://{sale}/embed.js\"></script></html>"
            );
            ("text/html", page)
        }
        None if path == "/page.js" => ("text/javascript", SCRIPT.to_owned()),
        None => ("text/plain", String::new()),
    };
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\
         content-security-policy: default-src 'none'; script-src 'self' http://{sale}; \
         connect-src http://{sale}; style-src 'none'; img-src 'none'; base-uri 'none'\r\n\r\n{body}",
        body.len()
    )
}

const BUTTON: &str = "document.querySelector('seckill-button')";

async fn jwt(sale: &Sale, user: &str) -> String {
    let mut api = Api::new(sale.server().address, None);
    sale.deployment.login().token(&mut api, user).await.unwrap()
}

async fn sign_in(sale: &Sale, browser: &mut Browser, user: &str) {
    let token = jwt(sale, user).await;
    browser.run(&format!("{BUTTON}.token = () => Promise.resolve('{token}')")).await;
}

/// The button of a sale that is not open yet.
async fn before_the_opening(sale: &mut Sale, browser: &mut Browser, shop: &Pages) -> i64 {
    for pace_s in PACES_S {
        let opens_ms = now_ms() + pace_s * 1_000;
        sale.instead(NewSale { opens_ms, ..NewSale::of(2) }).await;
        browser.go(&format!("{}/classic/{}", shop.origin(), sale.item)).await;
        sign_in(sale, browser, "u1").await;
        let text =
            format!("const text = {BUTTON}.shadowRoot?.querySelector('button').textContent;");
        let shown =
            browser.until(&format!("{text} return text && !text.includes('moment') && text")).await;
        if now_ms() < opens_ms {
            assert!(shown.as_str().unwrap().starts_with("Opens in 00:"), "{shown}");
            return opens_ms;
        }
    }
    panic!("this machine does not load a page in {PACES_S:?} s");
}

async fn a_button_on_another_origins_page_counts_down_claims_and_follows_its_order(
    profile: Profile,
) {
    let (listener, allowed) = Pages::listen().await;
    let (stranger, _) = Pages::listen().await;
    let deployment = Deployment::new(profile).env("SECKILL_HTTP_ALLOWED_ORIGINS", allowed);
    let mut sale = deployment.open_sale(NewSale::of(5)).await;
    let shop = other_shop(listener, sale.server().address);
    let stranger = other_shop(stranger, sale.server().address);
    let mut browser = Browser::open().await;

    let opens_ms = before_the_opening(&mut sale, &mut browser, &shop).await;
    browser.until(&format!("return {BUTTON}.dataset.state === 'ready'")).await;
    assert!(now_ms() >= opens_ms - 1_000, "lit before the opening");
    // From here on it hears of its order by push alone.
    browser.run("window.noPolls = true").await;
    browser.click("seckill-button").await;
    let unpaid = "return window.heard.find(([name, order]) => \
                  name === 'order' && order.status === 'unpaid')?.[1]";
    let order = browser.until(unpaid).await;
    let no = order["order_no"].as_str().unwrap().to_owned();
    let claimed = browser
        .run("return window.heard.filter(([name]) => name === 'claimed').map(([, claim]) => claim)")
        .await;
    assert_eq!(claimed.as_array().map(Vec::len), Some(1), "{claimed}");
    assert_eq!(
        (&claimed[0]["order_no"], claimed[0]["receipt"].is_string()),
        (&order["order_no"], true)
    );
    assert_eq!(browser.run(&format!("return {BUTTON}.dataset.state")).await, "unpaid");
    assert_eq!(browser.run("return window.forbidden").await, Value::Array(vec![]));

    // Pressed again it asks the page to let the buyer pay, and the page follows.
    browser.click("seckill-button").await;
    browser.until("return window.heard.some(([name]) => name === 'pay')").await;
    let url = format!("{BUTTON}.pay('sandbox').then((url) => {{ window.url = url; }})");
    browser.run(&url).await;
    let url = browser.until("return window.url").await;
    let cashier = format!("http://{}/cashier", sale.server().address);
    assert!(url.as_str().unwrap().starts_with(&cashier), "{url}");
    let mut buyer = sale.buyer("u1").await;
    let cashier = buyer.open_payment(&no).await;
    assert_eq!(buyer.at_the_cashier(&cashier, "pay").await.status, 200);
    browser.until(&format!("return {BUTTON}.dataset.state === 'paid'")).await;

    // As a module, and somebody who has not signed in.
    browser.go(&format!("{}/module/{}", shop.origin(), sale.item)).await;
    browser.until(&format!("return {BUTTON}.dataset.state === 'ready'")).await;
    browser.click("seckill-button").await;
    browser.until("return window.heard.some(([name]) => name === 'sign-in')").await;

    // Without push it asks, and so gets the last unit.
    browser.go(&format!("{}/classic/{}", shop.origin(), sale.item)).await;
    browser.run("window.EventSource = undefined").await;
    sign_in(&sale, &mut browser, "u2").await;
    browser.until(&format!("return {BUTTON}.dataset.state === 'ready'")).await;
    browser.click("seckill-button").await;
    let last = browser.until(unpaid).await;

    // Whoever finds nothing left is told when it is back.
    browser.go(&format!("{}/classic/{}", shop.origin(), sale.item)).await;
    sign_in(&sale, &mut browser, "u3").await;
    browser.until(&format!("return {BUTTON}.dataset.state === 'sold_out'")).await;
    browser.run("window.noPolls = true").await;
    sale.buyer("u2").await.cancel(last["order_no"].as_str().unwrap()).await;
    browser.until(&format!("return {BUTTON}.dataset.state === 'ready'")).await;
    assert_eq!(browser.run("return window.forbidden").await, Value::Array(vec![]));

    // On a page that may not ask the button learns nothing, and says so.
    browser.go(&format!("{}/classic/{}", stranger.origin(), sale.item)).await;
    let refused = "return window.heard.find(([name]) => name === 'error')?.[1].code";
    assert_eq!(browser.until(refused).await, "offline");
    assert_eq!(browser.run(&format!("return {BUTTON}.dataset.state")).await, "waiting");
    browser.close().await;
    sale.must_hold().await;
}

/// What solves a challenge comes from the server of the sale, when there is one to be solved, and works
/// under the policy of the page; where there is a picture the button lets the machine work instead.
async fn a_button_solves_the_challenge_of_a_sale(profile: Profile) {
    let (listener, allowed) = Pages::listen().await;
    let deployment = Deployment::new(profile).env("SECKILL_HTTP_ALLOWED_ORIGINS", allowed);
    let mut sale = deployment.open_sale(NewSale::of(5)).await;
    let shop = other_shop(listener, sale.server().address);
    let mut browser = Browser::open().await;
    let solver = "return performance.getEntriesByType('resource').some(\
                  ({name}) => name.endsWith('/embed-challenge.js'))";
    for (user, door) in [
        ("u1", Value::Null),
        ("u2", json!({"challenge": "pow", "difficulty": 12})),
        ("u3", json!({"challenge": "captcha", "difficulty": 12})),
    ] {
        sale.instead(NewSale::of(5)).await;
        if !door.is_null() {
            change_door(&sale, door.clone()).await;
        }
        browser.go(&format!("{}/classic/{}", shop.origin(), sale.item)).await;
        sign_in(&sale, &mut browser, user).await;
        browser.until(&format!("return {BUTTON}.dataset.state === 'ready'")).await;
        browser.click("seckill-button").await;
        browser.until(&format!("return {BUTTON}.dataset.state === 'unpaid'")).await;
        assert_eq!(browser.run(solver).await, !door.is_null(), "{door}: who needs it fetches it");
        let heard = browser.run("return window.heard.filter(([name]) => name === 'error')").await;
        assert_eq!(heard, Value::Array(vec![]));
        assert_eq!(browser.run("return window.forbidden").await, Value::Array(vec![]));
    }
    browser.close().await;
}

crate::in_every_profile! {
    a_button_solves_the_challenge_of_a_sale,
    a_button_on_another_origins_page_counts_down_claims_and_follows_its_order,
}

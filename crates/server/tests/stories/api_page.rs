//! The page of the API in a real Chromium: an engineer tries the calls before writing a line of code.

use std::process::Command;

use client::NewSale;
use serde_json::Value;

use crate::fixtures::{Browser, Deployment, JWT_SECRET, Profile, Sale};

const CALL: &str = "return document.querySelector('[data-call=\"$\"] code').textContent";

/// The page, with everything on it.
async fn opened(sale: &Sale, browser: &mut Browser, anchor: &str) {
    browser.go(&format!("http://{}/docs{anchor}", sale.server().address)).await;
    browser.until("return document.querySelectorAll('.opblock').length > 60").await;
}

/// Type what the page says, as it stands there; answers what the server said.
async fn typed(browser: &mut Browser, call: &str, more: (&str, &str)) -> Value {
    let command = browser.run(&CALL.replace('$', call)).await;
    let command = command.as_str().unwrap().replace(more.0, more.1);
    let output = Command::new("bash").args(["-c", &command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

async fn a_claim_is_tried_from_the_page_of_the_api(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(5)).await;
    let mut browser = Browser::open().await;
    opened(&sale, &mut browser, "").await;
    browser.click("#demo").await;
    browser.until("return !!document.querySelector('.opblock.is-open .execute')").await;
    browser.click(".opblock.is-open .execute").await;
    let answered = "return document.querySelector(
        '.live-responses-table tbody .response-col_status')?.innerText";
    let status = browser.until(answered).await;
    assert!(status.as_str().unwrap().starts_with("202"), "{status}");
    browser.is_sound().await;

    // The same in a shell: another demo token, and each call as it is to be copied.
    opened(&sale, &mut browser, "").await;
    browser.click("#demo").await;
    browser
        .until("return document.querySelector('#demo-note').textContent.includes('item 1')")
        .await;
    assert!(typed(&mut browser, "token", ("", "")).await["token"].is_string());
    let claimed = typed(&mut browser, "claim", ("", "")).await;
    let no = claimed["order_no"].as_str().unwrap().to_owned();
    // Place and wait are those of the moment of asking; what was promised is the same.
    let repeated = typed(&mut browser, "claim", ("", "")).await;
    for promised in ["order_no", "receipt", "status"] {
        assert_eq!(repeated[promised], claimed[promised], "the same key, the same answer");
    }
    assert_eq!(typed(&mut browser, "order", ("ORDER_NO", &no)).await["order_no"], no.as_str());

    // What a problem says of its type leads to what the code means, in the reader's language.
    let again = typed(&mut browser, "claim", ("Idempotency-Key: ", "Idempotency-Key: x")).await;
    let link = again["type"].as_str().unwrap();
    let anchor = link.strip_prefix("/docs").unwrap();
    assert_eq!(anchor, "#already_bought");
    browser.go("about:blank").await;
    opened(&sale, &mut browser, anchor).await;
    let seen = "const row = document.querySelector('#already_bought.asked');
        const {top, bottom} = row?.getBoundingClientRect() ?? {};
        return top >= 0 && bottom <= innerHeight && row.innerText.includes('Already bought')";
    browser.until(seen).await;
    browser.click("#language").await;
    browser
        .until("return document.querySelector('#already_bought').innerText.includes('您已抢购过')")
        .await;
    browser.no_complaints().await;
    browser.close().await;
    sale.must_hold().await;
}

async fn where_there_is_no_demo_login_the_page_says_how_to_get_a_token(profile: Profile) {
    let deployment = Deployment::new(profile).env("SECKILL_JWT_SECRET", JWT_SECRET);
    let sale = deployment.open_sale(NewSale::of(1)).await;
    let mut browser = Browser::open().await;
    opened(&sale, &mut browser, "").await;
    browser
        .until("return document.querySelector('#demo-note').textContent.includes('Authorize')")
        .await;
    assert_eq!(browser.run("return document.querySelector('#demo').hidden").await, true);
    browser.close().await;
}

async fn a_browser_that_is_lost_is_shown_the_way(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let mut browser = Browser::open().await;
    browser.go(&format!("http://{}/nowhere/<b>bold</b>?x=<i>", sale.server().address)).await;
    browser
        .until("return document.querySelector('h1').textContent === 'There is nothing here'")
        .await;
    assert_eq!(browser.run("return !!document.querySelector('b, i')").await, false);
    for scheme in ["dark", "light"] {
        browser.prefers("prefers-color-scheme", scheme).await;
        browser.no_serious_axe_violations().await;
    }
    browser.go(&format!("http://{}/items/424242", sale.server().address)).await;
    browser
        .until("return document.querySelector('h1').textContent === 'There is nothing here'")
        .await;
    browser.click("main a").await;
    browser.until("return location.pathname === '/' && 'ready' in document.body.dataset").await;
    browser.close().await;
}

crate::only_in_solo! {
    a_claim_is_tried_from_the_page_of_the_api,
    where_there_is_no_demo_login_the_page_says_how_to_get_a_token,
    a_browser_that_is_lost_is_shown_the_way,
}

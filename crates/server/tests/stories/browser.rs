//! A real Chromium buys and pays.

use std::net::SocketAddr;

use client::Api;
use client::NewSale;
use serde_json::{Value, json};

use crate::fixtures::{Browser, Deployment, PACES_S, Profile, Sale, now_ms};

pub(crate) async fn signed_in(sale: &Sale, user: &str) -> Browser {
    signed_in_at(sale, sale.server().address, user).await
}

/// Where the buyers of this sale find it.
pub(super) async fn signed_in_at(sale: &Sale, address: SocketAddr, user: &str) -> Browser {
    let mut browser = Browser::open().await;
    browser.go(&format!("http://{address}/")).await;
    browser.until("return 'ready' in document.body.dataset").await;
    match sale.deployment.profile {
        Profile::Solo => {
            let name = format!("document.querySelector('#user-id').value = '{user}'; return true");
            browser.run(&name).await;
            browser.click("#sign-in").await;
        }
        // Here the shop signs its buyers in and hands over its token.
        Profile::Cluster => {
            let mut api = Api::new(sale.server().address, None);
            let jwt = sale.deployment.login().token(&mut api, user).await.unwrap();
            browser.run(&format!("localStorage.seckill_jwt = '{jwt}'")).await;
            browser.go(&format!("http://{address}/")).await;
            browser.until("return 'ready' in document.body.dataset").await;
        }
    }
    browser
}

/// A page that shows a sale which is not open yet, so that the button must light up by itself.
/// Answers the button and the opening.
pub(crate) async fn before_the_opening(sale: &mut Sale, browser: &mut Browser) -> (String, i64) {
    for pace_s in PACES_S {
        let opens_ms = now_ms() + pace_s * 1_000;
        sale.instead(NewSale { opens_ms, ..NewSale::of(5) }).await;
        browser.go(&format!("http://{}/", sale.server().address)).await;
        browser.until("return 'ready' in document.body.dataset").await;
        let buy = format!("[data-buy=\"{}\"]", sale.item);
        // The list of what is on sale may be a moment old.
        let state = format!("return document.querySelector('{buy}')?.dataset.state");
        let state = browser.until(&state).await;
        if now_ms() < opens_ms {
            assert_eq!(state, "waiting");
            return (buy, opens_ms);
        }
    }
    panic!("this machine does not load a page in {PACES_S:?} s");
}

async fn somebody_buys_and_pays_in_a_browser(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(5)).await;
    let mut browser = signed_in(&sale, "u1002").await;
    browser
        .until(&format!("return !!document.querySelector('[data-buy=\"{}\"]')", sale.item))
        .await;
    browser.is_sound().await;
    let (buy, opens_ms) = before_the_opening(&mut sale, &mut browser).await;
    browser
        .until(&format!("return document.querySelector('{buy}').dataset.state === 'ready'"))
        .await;
    assert!(now_ms() >= opens_ms - 1_000, "lit before the opening");
    browser.click(&buy).await;
    browser.until("return !!document.querySelector('[data-order][data-status=\"unpaid\"]')").await;
    let no = browser.run("return document.querySelector('[data-order]').dataset.order").await;
    let no = no.as_str().unwrap().to_owned();
    browser.click("[data-pay]").await;
    browser.until("return location.pathname.startsWith('/cashier/')").await;
    browser.until("return !!document.querySelector('[data-action=\"pay\"]')").await;
    browser.is_sound().await;
    browser.click("[data-action=\"pay\"]").await;
    // The cashier shows a tick and leads back to the shop by itself.
    browser.until("return !!document.querySelector('[data-order][data-status=\"paid\"]')").await;
    let place = browser.run("return location.pathname + location.search").await;
    assert_eq!(place, "/", "where they came from is told once and then forgotten");
    browser.is_sound().await;
    browser.close().await;

    let mut buyer = sale.buyer("u1002").await;
    assert_eq!(buyer.order(&no).await["status"], "paid");
    sale.must_hold().await;
}

pub(super) const CODE_IS_SHOWN: &str = "
    const code = document.querySelector('.code:not([hidden])'), image = code?.querySelector('img');
    return !!image && image.complete && image.naturalWidth > 0 && document.activeElement === code
        && code.querySelector('strong').textContent.includes('6,999.00')
        && /^\\d+:\\d\\d$/.test(code.querySelector('[role=timer]').textContent)";

async fn somebody_scans_a_code_and_gets_the_money_back_in_a_browser(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(5)).await;
    let mut browser = signed_in(&sale, "u11").await;
    let buy = format!("[data-buy=\"{}\"]", sale.item);
    let ready = format!("return document.querySelector('{buy}')?.dataset.state === 'ready'");
    browser.until(&ready).await;
    browser.click(&buy).await;
    browser.until("return !!document.querySelector('[data-order][data-status=\"unpaid\"]')").await;
    let no = browser.run("return document.querySelector('[data-order]').dataset.order").await;
    let no = no.as_str().unwrap().to_owned();
    browser.click("[data-pay-code]").await;
    browser.until(CODE_IS_SHOWN).await;
    browser.click("[data-close-code]").await;
    browser.until("return document.querySelector('.code').hidden").await;
    browser.until("return document.querySelector('.money').textContent.includes('is open')").await;
    browser.click("[data-pay-code]").await;
    browser.until(CODE_IS_SHOWN).await;

    // They scan it, and pay on the phone. What is on the desk learns of it by itself.
    let mut buyer = sale.buyer("u11").await;
    let cashier = buyer.open_payment(&no).await;
    buyer.at_the_cashier(&cashier, "pay").await;
    let paid = "const order = document.querySelector('[data-order]');
        return order.dataset.status === 'paid' && order.querySelector('.code').hidden
            && order.querySelector('.money').textContent === 'Paid with Sandbox.'";
    browser.until(paid).await;

    let refund = format!("/api/v1/admin/orders/{no}/refund");
    let _: Value = sale.admin().write(&refund, &json!({})).await.unwrap();
    let refunded = "const order = document.querySelector('[data-order]');
        const told = order?.querySelector('.refunds').textContent;
        return order?.dataset.status === 'refunded' && told.includes('The shop gives your money back.')
            && told.includes('6,999.00 went back to Sandbox')";
    // Whoever looks again is told at once, as well as whoever is pushed to.
    browser.go(&format!("http://{}/", sale.server().address)).await;
    browser.until(refunded).await;
    browser.no_complaints().await;
    browser.close().await;
    sale.must_hold().await;
}

async fn somebody_buys_and_changes_their_mind_in_a_browser(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let mut browser = signed_in(&sale, "u7").await;
    let buy = format!("[data-buy=\"{}\"]", sale.item);
    browser
        .until(&format!("return document.querySelector('{buy}').dataset.state === 'ready'"))
        .await;
    browser.click(&buy).await;
    browser.click("[data-cancel]").await;
    browser.click("[data-cancel-confirm]").await;
    browser.until("return !!document.querySelector('[data-order][data-status=\"closed\"]')").await;
    sale.settle().await;
    assert_eq!(sale.buy_the_rest("next", 2).await, 1);
    browser.no_complaints().await;
    browser.close().await;
    sale.must_hold().await;
}

/// What buyers of the sale have to do from now on.
pub(crate) async fn change_door(sale: &Sale, door: Value) {
    let path = format!("/api/v1/admin/activities/{}", sale.activity);
    let mut admin = sale.admin();
    let now: Value = admin.read(&path).await.unwrap();
    let edit = json!({"version": now["version"], "door": door}).to_string();
    let changed = admin.send("PATCH", &path, &[], edit.as_bytes()).await.unwrap();
    assert_eq!(changed.status, 200, "{}", changed.json());
}

/// The page solves what it is given, quietly; where there is a picture the buyer may let the machine work.
async fn a_browser_solves_the_challenge_of_a_sale(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(5)).await;
    change_door(&sale, json!({"challenge": "pow", "difficulty": 14})).await;
    let mut browser = signed_in(&sale, "u14").await;
    let buy = async |browser: &mut Browser, item: i64| {
        let buy = format!("[data-buy=\"{item}\"]");
        let ready = format!("return document.querySelector('{buy}')?.dataset.state === 'ready'");
        browser.until(&ready).await;
        buy
    };
    let button = buy(&mut browser, sale.item).await;
    browser.click(&button).await;
    browser.until("return !!document.querySelector('[data-order][data-status=\"unpaid\"]')").await;

    sale.instead(NewSale::of(5)).await;
    change_door(&sale, json!({"challenge": "captcha", "difficulty": 12})).await;
    browser.go(&format!("http://{}/", sale.server().address)).await;
    // Whoever does not look at an item is asked nothing about it.
    let looks = format!(
        "const button = document.querySelector('[data-buy=\"{}\"]');
         button?.scrollIntoView({{block: 'center'}}); return !!button",
        sale.item
    );
    browser.until(&looks).await;
    browser.until("return !!document.querySelector('dialog.picture img')?.naturalWidth").await;
    browser.click("dialog.picture [value=\"skip\"]").await;
    let button = buy(&mut browser, sale.item).await;
    browser.click(&button).await;
    let bought =
        "return document.querySelectorAll('[data-order][data-status=\"unpaid\"]').length === 2";
    browser.until(bought).await;
    browser.close().await;
}

crate::in_every_profile! {
    a_browser_solves_the_challenge_of_a_sale,
    somebody_buys_and_pays_in_a_browser,
    somebody_scans_a_code_and_gets_the_money_back_in_a_browser,
    somebody_buys_and_changes_their_mind_in_a_browser,
}

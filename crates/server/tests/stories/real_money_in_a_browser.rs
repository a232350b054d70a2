//! A buyer with a browser pays at WeChat Pay and at Alipay, and the page learns of it by push alone.

use client::NewSale;
use faults::providers::Paying;

use crate::{
    browser::{CODE_IS_SHOWN, signed_in_at},
    fixtures::{Browser, Companies, Deployment, Payee, Profile, Sale},
};

/// From here on nobody who asks after an order hears anything: what the page knows it was told.
const NO_POLLS: &str = "const ask = window.fetch;
    window.fetch = (url, options) => /[/]orders/.test(String(url)) && (options?.method ?? 'GET') === 'GET'
        ? Promise.reject(new TypeError('no polls')) : ask(url, options);
    return true";

/// Buys in the browser; answers the order.
async fn buys(browser: &mut Browser, item: i64) -> String {
    let buy = format!("[data-buy=\"{item}\"]");
    let ready = format!("return document.querySelector('{buy}')?.dataset.state === 'ready'");
    browser.until(&ready).await;
    browser.click(&buy).await;
    browser.until("return !!document.querySelector('[data-order][data-status=\"unpaid\"]')").await;
    let no = browser.run("return document.querySelector('[data-order]').dataset.order").await;
    no.as_str().unwrap().to_owned()
}

async fn chooses(browser: &mut Browser, way: &str) {
    browser.click("[data-pay]").await;
    browser.click(&format!("[data-way=\"{way}\"]")).await;
}

const PAID: &str = "return !!document.querySelector('[data-order][data-status=\"paid\"]')";

async fn shop_with_both(profile: Profile) -> (Companies, Sale) {
    let companies = Companies::start(1).await;
    let sale = companies.known_to(Deployment::new(profile)).open_sale(NewSale::of(5)).await;
    companies.find(&sale);
    (companies, sale)
}

async fn somebody_scans_the_code_of_wechat_in_a_browser(profile: Profile) {
    let (companies, mut sale) = shop_with_both(profile).await;
    let mut browser = signed_in_at(&sale, companies.relay.address(), "u21").await;
    let no = buys(&mut browser, sale.item).await;
    chooses(&mut browser, "wechat qr").await;
    browser.until(CODE_IS_SHOWN).await;
    browser.run(NO_POLLS).await;
    companies.pay(Payee::WeChat, &no, Paying::Now).unwrap();
    browser.until(PAID).await;
    browser.until("return document.querySelector('.code').hidden").await;
    browser.close().await;
    ends_well(&companies, &mut sale).await;
}

async fn somebody_pays_at_the_page_of_alipay_in_a_browser(profile: Profile) {
    let (companies, mut sale) = shop_with_both(profile).await;
    let mut browser = signed_in_at(&sale, companies.relay.address(), "u22").await;
    buys(&mut browser, sale.item).await;
    chooses(&mut browser, "alipay page").await;
    browser.until("return document.title === 'Alipay'").await;
    let shop = format!("return location.origin === '{}'", companies.public_url());
    assert_eq!(browser.run(&shop).await, false, "they are at Alipay");
    browser.click("#pay").await;
    browser.until(&shop).await;
    browser.until(PAID).await;
    browser.close().await;
    ends_well(&companies, &mut sale).await;
}

async fn ends_well(companies: &Companies, sale: &mut Sale) {
    let mut observed = sale.observe().await;
    observed.bill = Some(companies.bill());
    assert_eq!(checker::check(&sale.history, &observed), []);
    companies.no_complaints();
}

crate::only_in_solo! {
    somebody_pays_at_the_page_of_alipay_in_a_browser,
    somebody_scans_the_code_of_wechat_in_a_browser,
}

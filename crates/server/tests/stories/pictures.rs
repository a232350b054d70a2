//! The pictures of the shop and the console that README shows, taken from the pages as they are. Every run
//! takes them and looks at their size; `UPDATE_PICTURES=1` also keeps them in `docs/images`.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use client::{Api, NewSale};
use serde_json::{Value, json};

use crate::{
    browser::signed_in,
    console,
    fixtures::{Browser, Deployment, Profile, Sale, now_ms},
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images");
/// Whoever reads README on a train should not wait for it.
const PICTURE_BYTES_MAX: usize = 150 * 1_024;
const QUALITY: u32 = 84;
/// What the console shows of a crowd.
const CROWD_LASTS: Duration = Duration::from_secs(18);
const OPENS_IN_MS: i64 = 6_000;
const PAID_MAX: usize = 60;
const DESK: Screen = Screen { name: "desk", width: 1_280, height: 860, phone: false };
const PHONE: Screen = Screen { name: "phone", width: 390, height: 800, phone: true };

struct Screen {
    name: &'static str,
    width: u32,
    height: u32,
    phone: bool,
}

impl Browser {
    async fn on(&mut self, screen: &Screen) {
        let params = json!({"width": screen.width, "height": screen.height, "deviceScaleFactor": 1,
            "mobile": screen.phone});
        self.devtools("Emulation.setDeviceMetricsOverride", params).await;
    }

    /// What can be seen, as a picture of this name.
    async fn picture(&mut self, name: &str) {
        let still = "return document.getAnimations()
            .every(({playState, effect}) =>
                playState !== 'running' || effect.getComputedTiming().endTime === Infinity)
            && [...document.images].every((one) => one.complete)";
        self.until(still).await;
        let params = json!({"format": "webp", "quality": QUALITY});
        let taken = self.devtools("Page.captureScreenshot", params).await;
        let picture = BASE64_STANDARD.decode(taken["data"].as_str().unwrap()).unwrap();
        println!("{name}: {} bytes", picture.len());
        assert!((10_000..PICTURE_BYTES_MAX).contains(&picture.len()), "{name}: {}", picture.len());
        if std::env::var_os("UPDATE_PICTURES").is_some() {
            fs::create_dir_all(FOLDER).unwrap();
            fs::write(Path::new(FOLDER).join(format!("{name}.webp")), picture).unwrap();
        }
    }
}

/// A sale as the demo has it, open for a while: one thing is gone, one nearly.
async fn evening(sale: &Sale, language: &str) -> Vec<i64> {
    let words = |en: &'static str, zh: &'static str| if language == "zh" { zh } else { en };
    let item = |name: &str, scene: &str, price: i64, before: i64, stock: i64, limit: u32| {
        json!({"name": name, "price": price, "origin_price": before, "currency": "CNY",
            "stock": stock, "limit_per_user": limit, "image_url": format!("/assets/art/demo.svg#{scene}")})
    };
    let plan = json!({"name": words("Tonight at eight", "今晚八点"),
        "opens_at": now_ms() - 1_000, "closes_at": now_ms() + 3_600_000, "items": [
        item(words("Phone, 256 GB", "手机 256GB"), "phone", 699_900, 799_900, 20, 1),
        item(words("Earphones", "降噪耳机"), "earphones", 149_900, 189_900, 25, 2),
        item(words("Coffee gift box", "手冲咖啡礼盒"), "coffee", 9_900, 19_900, 6, 1)]});
    let mut admin = sale.admin();
    let created: Value = admin.write("/api/v1/admin/activities", &plan).await.unwrap();
    for step in ["publish", "warm"] {
        let path = format!("/api/v1/admin/activities/{}/{step}", created["id"]);
        let _: Value = admin.write(&path, &json!({})).await.unwrap();
    }
    let items = created["items"].as_array().unwrap();
    let items: Vec<i64> = items.iter().map(|item| item["id"].as_i64().unwrap()).collect();
    let mut api = Api::new(sale.server().address, None);
    for (item, claims) in items.iter().zip([8, 21, 6]) {
        for n in 0..claims {
            let jwt = sale.deployment.login().token(&mut api, &format!("crowd{n}")).await.unwrap();
            let mut buyer = Api::new(sale.server().address, Some(&jwt));
            let path = format!("/api/v1/items/{item}");
            let token: Value = buyer.write(&format!("{path}/token"), &json!({})).await.unwrap();
            let headers = [("X-Sale-Token", token["token"].as_str().unwrap())];
            let claim = buyer
                .send("POST", &format!("{path}/claims"), &headers, b"{\"quantity\":1}")
                .await
                .unwrap();
            assert_eq!(claim.status, 202, "{}", claim.json());
        }
    }
    items
}

async fn pictures_in(language: &str) {
    let sale = Deployment::new(Profile::Solo).open_sale(NewSale::of(1)).await;
    sale.act("end").await;
    let items = evening(&sale, language).await;
    let mut browser = signed_in(&sale, "ann").await;
    browser.run(&format!("localStorage.seckill_lang = '{language}'")).await;
    browser.devtools("Emulation.setLocaleOverride", json!({"locale": language})).await;
    browser.prefers("prefers-reduced-motion", "reduce").await;
    let page = format!("http://{}/", sale.server().address);
    for screen in [&DESK, &PHONE] {
        browser.on(screen).await;
        browser.go(&page).await;
        let shown = format!(
            "return document.querySelector('[data-buy=\"{}\"]')?.dataset.state === 'sold_out'
                && 'ready' in document.body.dataset",
            items[2]
        );
        browser.until(&shown).await;
        if screen.phone {
            browser.click(&format!("[data-buy=\"{}\"]", items[0])).await;
            browser
                .until("return document.querySelector('#won:not([hidden]) .pay:not([hidden])')")
                .await;
            browser.run("scrollTo(0, 0)").await;
        }
        browser.picture(&format!("shop-{}-{language}", screen.name)).await;
    }
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shop_can_be_shown_in_english() {
    pictures_in("en").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shop_can_be_shown_in_chinese() {
    pictures_in("zh").await;
}

/// A sale that opens in a moment, with more units than are claimed while it is looked at.
async fn midnight(sale: &Sale, language: &str) -> Vec<i64> {
    let words = |en: &'static str, zh: &'static str| if language == "zh" { zh } else { en };
    let item =
        |name: &str, price: i64, stock: i64| json!({"name": name, "price": price, "stock": stock});
    let plan = json!({"name": words("Midnight drop", "零点开抢"),
        "opens_at": now_ms() + OPENS_IN_MS, "closes_at": now_ms() + 3_600_000, "items": [
        item(words("Phone, 256 GB", "手机 256GB"), 699_900, 400),
        item(words("Earphones", "降噪耳机"), 149_900, 400)]});
    let mut admin = sale.admin();
    let created: Value = admin.write("/api/v1/admin/activities", &plan).await.unwrap();
    for step in ["publish", "warm"] {
        let path = format!("/api/v1/admin/activities/{}/{step}", created["id"]);
        let _: Value = admin.write(&path, &json!({})).await.unwrap();
    }
    let items = created["items"].as_array().unwrap();
    items.iter().map(|item| item["id"].as_i64().unwrap()).collect()
}

/// Claims over some seconds: the first too early, each third buyer comes again. The orders that came of them.
async fn crowd(sale: &Sale, items: &[i64]) -> Vec<String> {
    let until = Instant::now() + CROWD_LASTS;
    let mut api = Api::new(sale.server().address, None);
    let mut orders = Vec::new();
    let mut n = 0_usize;
    while Instant::now() < until {
        let user = format!("night{}", n - usize::from(n % 3 == 1));
        let jwt = sale.deployment.login().token(&mut api, &user).await.unwrap();
        let mut buyer = Api::new(sale.server().address, Some(&jwt));
        let path = format!("/api/v1/items/{}", items[usize::from(n % 5 > 2)]);
        let token = buyer.post(&format!("{path}/token"), &json!({})).await.unwrap().json();
        let headers = [("X-Sale-Token", token["token"].as_str().unwrap_or("none"))];
        let claim = b"{\"quantity\":1}";
        let path = format!("{path}/claims");
        let told = buyer.send("POST", &path, &headers, claim).await.unwrap().json();
        orders.extend(told["receipt"].as_str().and(told["order_no"].as_str()).map(str::to_owned));
        n += 1;
    }
    orders
}

/// Half of them are paid.
async fn pay(sale: &Sale, orders: &[String]) {
    sale.settle().await;
    for (n, no) in orders.iter().step_by(2).take(PAID_MAX).enumerate() {
        let path = format!("/api/v1/admin/orders/{no}/mark-paid");
        let body = json!({"reference": format!("T{n}"), "reason": "a picture"});
        let _: Value = sale.admin().write(&path, &body).await.unwrap();
    }
}

async fn the_board_in(language: &str, name: &str) {
    let sale = Deployment::new(Profile::Solo).open_sale(NewSale::of(1)).await;
    sale.act("end").await;
    let mut browser = console::signed_in(&sale).await;
    browser.on(&DESK).await;
    browser.run(&format!("localStorage.seckill_lang = '{language}'")).await;
    browser.devtools("Emulation.setLocaleOverride", json!({"locale": language})).await;
    browser.prefers("prefers-reduced-motion", "reduce").await;
    let items = midnight(&sale, language).await;
    browser.go(&format!("http://{}/console", sale.server().address)).await;
    browser.until("return document.querySelectorAll('.plot canvas').length === 4").await;
    let orders = crowd(&sale, &items).await;
    pay(&sale, &orders).await;
    // The orders are counted now and then.
    let counted = "const tiles = [...document.querySelectorAll('.tile b')];
        return !!document.querySelector('.reasons li b')
            && tiles.some(({textContent: text}) => /[1-9].*\\d\\d\\.\\d\\d$/.test(text))";
    browser.until(counted).await;
    browser.picture(name).await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_can_be_shown_in_english() {
    the_board_in("en", "console").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_can_be_shown_in_chinese() {
    the_board_in("zh", "console.zh").await;
}

//! What operators do at the console on a quiet day, in a real Chromium on a phone: two of them at one sale,
//! its window moved, units added, its end, and what the shop's backend was told of it.

use client::NewSale;
use serde_json::{Value, json};

use crate::{
    console::{press, says, signed_in, view},
    fixtures::{Browser, Deployment, Profile, Receiver, Sale, becomes, now_ms},
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const HOUR_MS: i64 = 3_600_000;
const STOCK: i64 = 5;

async fn on_a_phone(browser: &mut Browser) {
    let phone = json!({"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": true});
    browser.devtools("Emulation.setDeviceMetricsOverride", phone).await;
    browser.until("return innerWidth === 360").await;
}

/// Nothing is wider than the phone.
async fn fits(browser: &mut Browser) {
    assert_eq!(browser.run("return document.documentElement.scrollWidth").await, 360);
}

async fn sale_now(sale: &Sale) -> Value {
    sale.admin().read(&format!("/api/v1/admin/activities/{}", sale.activity)).await.unwrap()
}

/// The other operator is quicker: the dialog says so and changes nothing; asked again it does.
async fn two_operators_move_the_window(browser: &mut Browser, sale: &Sale) {
    view(browser, &format!("#/sale/{}", sale.activity)).await;
    press(browser, "Postpone").await;
    browser.until("return document.querySelectorAll('dialog input').length === 2").await;
    let seen = sale_now(sale).await;
    let theirs = seen["opens_at"].as_i64().unwrap() + HOUR_MS;
    let path = format!("/api/v1/admin/activities/{}", sale.activity);
    let window =
        json!({"version": seen["version"], "opens_at": theirs, "closes_at": theirs + HOUR_MS});
    let moved =
        sale.admin().send("PATCH", &path, &[], window.to_string().as_bytes()).await.unwrap();
    assert_eq!(moved.status, 200, "{}", moved.json());

    let later = "const [opens, closes] = document.querySelectorAll('dialog input');
        const zone = (at) => new Date(at).getTimezoneOffset() * 60000;
        const local = (at) => new Date(at - zone(at)).toISOString().slice(0, 19);
        opens.value = local($at); closes.value = local($at + 3600000);"
        .replace("$at", &(theirs + HOUR_MS).to_string());
    browser.run(&later).await;
    press(browser, "Postpone").await;
    let refused = "return document.querySelector('dialog .note.bad')?.textContent";
    let why = browser.until(refused).await;
    assert!(why.as_str().unwrap().contains("Somebody else has changed it"), "{why}");
    browser.is_sound().await;
    assert_eq!(sale_now(sale).await["opens_at"], theirs, "theirs stands");
    press(browser, "Not now").await;

    // Whoever looks again sees theirs, and moves it.
    view(browser, "#/sales").await;
    view(browser, &format!("#/sale/{}", sale.activity)).await;
    press(browser, "Postpone").await;
    browser.run(&later).await;
    press(browser, "Postpone").await;
    let ours = async || sale_now(sale).await["opens_at"] == theirs + HOUR_MS;
    becomes("it is moved", ours).await;
}

/// Beside the countdown, the choice of sales and the button it is still read as words.
async fn a_long_name_has_room_at_a_desk(browser: &mut Browser, sale: &Sale) {
    let name = "Members first, drawn: a long name of a sale that does not end where it should";
    let plan = json!({"name": name, "opens_at": now_ms() + HOUR_MS, "closes_at": now_ms() + 50 * 24 * HOUR_MS,
        "items": [{"name": "Tea", "price": 100, "stock": 5}]});
    let mut admin = sale.admin();
    let made: Value = admin.write("/api/v1/admin/activities", &plan).await.unwrap();
    let publish = format!("/api/v1/admin/activities/{}/publish", made["id"]);
    let _: Value = admin.write(&publish, &json!({})).await.unwrap();
    let desk = json!({"width": 1_280, "height": 800, "deviceScaleFactor": 1, "mobile": false});
    browser.devtools("Emulation.setDeviceMetricsOverride", desk).await;
    view(browser, &format!("#/live/{}", made["id"])).await;
    let room = format!(
        "const title = document.querySelector('#board-title');
         return title?.textContent === '{name}' && document.querySelector('.do select:not([hidden])')
            && [title.offsetWidth, title.offsetHeight]"
    );
    let room = browser.until(&room).await;
    assert!(room[0].as_i64().unwrap() > 180 && room[1].as_i64().unwrap() < 180, "{room}");
    let wide = browser.run("return document.documentElement.scrollWidth").await;
    assert!(wide.as_i64().unwrap() <= 1_280, "{wide}");
    let path = format!("/api/v1/admin/activities/{}/end", made["id"]);
    let _: Value = admin.write(&path, &json!({})).await.unwrap();
}

async fn what_operators_do_on_a_quiet_day(profile: Profile) {
    let receiver = Receiver::start(SECRET).await;
    let endpoints = format!("[{{ url = {:?}, secret = {SECRET:?} }}]", receiver.url());
    let deployment = Deployment::new(profile).env("SECKILL_WEBHOOKS_ENDPOINTS", endpoints);
    let mut sale = deployment.open_sale(NewSale::of(STOCK)).await;
    sale.act("end").await;
    let opens_ms = now_ms() / 1_000 * 1_000 + HOUR_MS;
    sale.instead(NewSale { opens_ms, ..NewSale::of(STOCK) }).await;
    let mut browser = signed_in(&sale).await;
    on_a_phone(&mut browser).await;
    view(&mut browser, "#/sales/new").await;
    browser.until("return !!document.querySelector('.item-row select')").await;
    fits(&mut browser).await;
    two_operators_move_the_window(&mut browser, &sale).await;

    a_long_name_has_room_at_a_desk(&mut browser, &sale).await;
    on_a_phone(&mut browser).await;
    view(&mut browser, &format!("#/sale/{}", sale.activity)).await;

    // Ten more, and the log says who.
    browser.until("return !document.querySelector('dialog')").await;
    press(&mut browser, "Change stock").await;
    browser.run("document.querySelector('dialog input').value = '10'").await;
    press(&mut browser, "Change stock").await;
    let more = async || sale_now(&sale).await["items"][0]["total"] == STOCK + 10;
    becomes("there are ten more", more).await;
    view(&mut browser, &format!("#/item/{}/stock-log", sale.item)).await;
    says(&mut browser, "changed by hand").await;
    fits(&mut browser).await;
    browser.is_sound().await;

    // The end is asked for twice over, and told to the shop.
    view(&mut browser, &format!("#/sale/{}", sale.activity)).await;
    press(&mut browser, "End").await;
    says_in_dialog(&mut browser, "cannot be opened again").await;
    press(&mut browser, "End").await;
    says(&mut browser, "ended").await;
    assert_eq!(sale_now(&sale).await["state"], "ended");
    let ended = || receiver.taken().iter().filter(|one| one.kind == "activity.ended").count();
    becomes("the shop hears of all ends", async || ended() == 3).await;
    view(&mut browser, "#/webhooks").await;
    says(&mut browser, "activity.ended").await;
    fits(&mut browser).await;
    let posts = receiver.posts();
    press(&mut browser, "Replay").await;
    says(&mut browser, "It is sent again.").await;
    becomes("it is sent again", async || receiver.posts() > posts).await;
    press(&mut browser, "Send a test").await;
    says(&mut browser, "Delivered: 2").await;
    browser.is_sound().await;
    browser.close().await;
}

async fn says_in_dialog(browser: &mut Browser, words: &str) {
    let text = "document.querySelector('dialog')?.innerText";
    browser.until(&format!("return {text}?.includes('{words}')")).await;
}

crate::only_in_solo! {
    what_operators_do_on_a_quiet_day,
}

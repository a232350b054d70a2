//! The operator's midnight, in a real Chromium: sign in by a link, plan a sale, look at the pre-flight,
//! publish, watch, pause, find an order, replay a dead letter, reconcile, export, sign out.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use client::{Api, NewSale, Response};
use serde_json::{Value, json};

use crate::{
    commands::seckill,
    failures::{POISON_MYSQL, POISON_SQLITE, dead_letter_becomes},
    fixtures::{Browser, Deployment, Profile, Sale, becomes},
};

const STOCK: i64 = 50;

/// Press the button with these words, in a dialog if there is one, once it can be pressed.
pub(crate) async fn press(browser: &mut Browser, words: &str) {
    let script = format!(
        "const place = document.querySelector('dialog[open]') ?? document.querySelector('#main');
         const all = [...place.querySelectorAll('button')];
         const found = all.find((one) => one.textContent === '{words}' && !one.disabled && one.offsetParent);
         found?.click();
         return !!found"
    );
    browser.until(&script).await;
}

pub(crate) async fn view(browser: &mut Browser, path: &str) {
    browser.run(&format!("location.hash = '{path}'")).await;
}

/// Until the view says this.
pub(crate) async fn says(browser: &mut Browser, words: &str) {
    let text = "document.querySelector('#main').innerText";
    browser.until(&format!("return {text}.includes('{words}')")).await;
}

/// At the console, by a link that is good once.
pub(crate) async fn signed_in(sale: &Sale) -> Browser {
    let printed = seckill(&sale.deployment, &["console"]).done();
    let (page, link) = printed.trim().split_once('#').unwrap();
    assert_eq!(page, format!("http://{}/console", sale.server().address));
    let mut browser = Browser::open().await;
    browser.go(printed.trim()).await;
    browser.until("return !document.querySelector('#shell').hidden").await;
    let hash = browser.run("return location.hash").await;
    assert!(!hash.as_str().unwrap().contains(link), "the link is not kept in the address");
    browser
}

/// A draft with three items from a table, one of them in yen, through the wizard; its id.
async fn plan(browser: &mut Browser) -> i64 {
    view(browser, "#/sales/new").await;
    browser.until("return !!document.querySelector('fieldset input[maxlength]')").await;
    browser
        .run(
            "document.querySelector('fieldset input[maxlength]').value = 'Midnight sale';
             document.querySelector('details').open = true;
             document.querySelector('textarea').value =
                 'name,price,stock,limit_per_user,currency\\nPhone,6999.00,10,1,\\n' +
                 '壳,\"1,299.50\",5,2,CNY\\n茶,980,3,1,JPY\\n'",
        )
        .await;
    press(browser, "Take these items").await;
    browser.until("return document.querySelectorAll('.item-row').length === 3").await;
    browser.is_sound().await;
    press(browser, "Save as draft").await;
    says(browser, "Midnight sale").await;
    let id = browser.until("return location.hash.match(/^#.sale.(\\d+)$/)?.[1]").await;
    says(browser, "¥1,299.50").await;
    id.as_str().unwrap().parse().unwrap()
}

async fn publish(browser: &mut Browser) {
    press(browser, "Publish").await;
    browser.until("return document.querySelectorAll('dialog .checks li').length > 8").await;
    let checks = browser.run("return document.querySelector('dialog').innerText").await;
    let checks = checks.as_str().unwrap();
    assert!(checks.contains("The window is in the future."), "{checks}");
    assert!(checks.contains("Nobody is told when something goes wrong"), "{checks}");
    browser.is_sound().await;
    press(browser, "Publish").await;
    browser
        .until("return document.querySelector('dialog').innerText.includes('not rehearsed')")
        .await;
    browser.run("document.querySelector('dialog [type=checkbox]').click()").await;
    press(browser, "Publish").await;
    says(browser, "opens soon").await;
}

async fn watch_and_pause(browser: &mut Browser, sale: &Sale) -> String {
    view(browser, &format!("#/live/{}", sale.activity)).await;
    let left = "document.querySelector('.tile.wide > b').textContent";
    browser.until(&format!("return {left} === '{STOCK}'")).await;
    let mut buyer = sale.buyer("u1").await;
    let no = buyer.buy().await;
    browser.until(&format!("return {left} === '{}'", STOCK - 1)).await;
    browser.until("return document.querySelectorAll('.plot canvas').length === 4").await;
    browser.until("return document.querySelector('.funnel').innerText.includes('Admitted')").await;
    browser.is_sound().await;
    browser.click(".pause").await;
    press(browser, "Pause now").await;
    browser.until("return document.querySelector('.pause').textContent === 'Resume'").await;
    let path = format!("/api/v1/admin/activities/{}", sale.activity);
    let now: Value = sale.admin().read(&path).await.unwrap();
    assert_eq!(now["state"], "paused");
    browser.click(".pause").await;
    press(browser, "Resume").await;
    browser.until("return document.querySelector('.pause').textContent === 'Pause'").await;
    no
}

async fn the_operators_midnight(profile: Profile) {
    let deployment = Deployment::new(profile)
        .env("SECKILL_ORDERS_RETRY_LADDER_MS", "100,100")
        .env("SECKILL_ORDERS_RETRY_POLL_MS", 50);
    let sale = deployment.open_sale(NewSale::of(STOCK)).await;
    let mut browser = signed_in(&sale).await;
    let planned = plan(&mut browser).await;
    publish(&mut browser).await;
    let path = format!("/api/v1/admin/activities/{planned}");
    let published: Value = sale.admin().read(&path).await.unwrap();
    let items = published["items"].as_array().unwrap().iter();
    let prices: Vec<_> = items.map(|item| (&item["price"], &item["currency"])).collect();
    assert_eq!(published["state"], "published");
    let of = |minor: i64, code: &str| (json!(minor), json!(code));
    let planned = [of(699_900, "CNY"), of(129_950, "CNY"), of(980, "JPY")];
    assert_eq!(prices, planned.each_ref().map(|(minor, code)| (minor, code)));
    let no = watch_and_pause(&mut browser, &sale).await;

    // An order is found by its buyer, and tells its story.
    sale.settle().await;
    view(&mut browser, "#/orders?user_id=u1").await;
    browser.until(&format!("return !!document.querySelector('a[href=\"#/order/{no}\"]')")).await;
    browser.click(&format!("a[href=\"#/order/{no}\"]")).await;
    says(&mut browser, "Settled: it is an order").await;
    says(&mut browser, "50 → 49").await;
    browser.is_sound().await;

    // A claim that cannot be written waits for a person, who mends the cause and replays it.
    sale.deployment.change_ledger(POISON_SQLITE, POISON_MYSQL);
    let letter = sale.buyer("poison1").await.buy().await;
    dead_letter_becomes(&sale, &letter, "dead").await;
    sale.deployment.change_ledger("DROP TRIGGER poison", "DROP TRIGGER poison");
    view(&mut browser, "#/dead-letters").await;
    says(&mut browser, &letter).await;
    press(&mut browser, "Replay").await;
    dead_letter_becomes(&sale, &letter, "settled").await;

    sale.settle().await;
    view(&mut browser, "#/reconcile").await;
    press(&mut browser, "Compare now").await;
    browser.until("return document.querySelector('.light').className === 'light good'").await;
    browser.is_sound().await;
    view(&mut browser, "#/orders").await;
    press(&mut browser, "CSV").await;
    let exported = async || {
        let path = "/api/v1/admin/audit?action=orders.export";
        let audit: Value = sale.admin().read(path).await.unwrap();
        !audit["entries"].as_array().unwrap().is_empty()
    };
    becomes("the export is on record", exported).await;
    view(&mut browser, "#/audit?action=orders.").await;
    says(&mut browser, "orders.export").await;

    browser.click("#sign-out").await;
    browser.until("return !document.querySelector('#gate').hidden").await;
    browser.go(&format!("http://{}/console", sale.server().address)).await;
    browser.until("return !document.querySelector('#gate').hidden").await;
    browser.is_sound().await;
    browser.close().await;
    sale.must_hold().await;
}

/// Long enough for a small crowd on a machine that has other things to do; it runs below all of them.
const REHEARSED_WITHIN: Duration = Duration::from_secs(8 * 60);

/// Not beside a sale. Afterwards: started, watched, and its report read, saved and known to the pre-flight.
async fn a_rehearsal_is_played_from_the_console(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let mut browser = signed_in(&sale).await;
    let rehearse = async |browser: &mut Browser| {
        view(browser, "#/rehearse").await;
        browser.until("return document.querySelectorAll('#main input').length === 2").await;
        browser
            .run(
                "const [buyers, within] = document.querySelectorAll('#main input');
                 buyers.value = 150; within.value = 1;",
            )
            .await;
        press(browser, "Rehearse…").await;
        press(browser, "Start").await;
    };
    rehearse(&mut browser).await;
    says(&mut browser, "it needs the processor").await;
    sale.act("end").await;

    view(&mut browser, "#/sales").await;
    rehearse(&mut browser).await;
    says(&mut browser, "150 buyers…").await;
    browser.is_sound().await;
    let rehearsals = "/api/v1/admin/rehearsals";
    let again = json!({"buyers": 10, "items": 1, "stock": 1, "over_ms": 0});
    let refused = sale.admin().post(rehearsals, &again).await.unwrap();
    assert_eq!((refused.status, &refused.json()["state"]), (409, &json!("running")));

    let deadline = Instant::now() + REHEARSED_WITHIN;
    let ended = loop {
        let seen: Value = sale.admin().read(rehearsals).await.unwrap();
        if seen["running"].is_null() {
            break seen["last"].clone();
        }
        assert!(Instant::now() < deadline, "{seen}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(
        (&ended["outcome"], &ended["report"]["ok"]),
        (&json!("held"), &json!(true)),
        "{ended}"
    );
    says(&mut browser, "All checks passed.").await;
    browser.until("return document.querySelectorAll('.checks li').length === 10").await;
    browser.until("return document.querySelectorAll('.figure b').length === 3").await;
    browser.is_sound().await;
    let page = format!("{rehearsals}/page");
    let page = sale.admin().send("GET", &page, &[], b"").await.unwrap();
    let text = String::from_utf8_lossy(&page.body);
    assert_eq!(page.status, 200);
    assert!(text.starts_with("<!doctype html>") && text.contains("<svg"), "{text}");
    assert!(page.header("content-security-policy").unwrap().contains("sandbox"));
    let path = format!("/api/v1/admin/activities/{}/preflight", sale.activity);
    let checks: Value = sale.admin().read(&path).await.unwrap();
    let checks = checks["checks"].as_array().unwrap();
    let known = checks.iter().find(|check| check["name"] == "rehearsed").unwrap();
    assert_eq!(known["verdict"], "ok", "{known}");
    browser.close().await;
}

/// As a page of the console at this address asks.
async fn ask_by_cookie(at: SocketAddr, method: &str, cookie: &str, body: &str) -> Response {
    let origin = format!("http://{at}");
    let mut headers = vec![("x-seckill-console", "1"), ("origin", origin.as_str())];
    if !cookie.is_empty() {
        headers.push(("cookie", cookie));
    }
    let path = "/api/v1/admin/session";
    Api::new(at, None).send(method, path, &headers, body.as_bytes()).await.unwrap()
}

async fn a_session_is_good_at_every_instance_and_ends_at_all_of_them(profile: Profile) {
    let sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    let new = json!({"name": "ann", "role": "viewer"});
    let made: Value = sale.admin().write("/api/v1/admin/tokens", &new).await.unwrap();
    let places = sale.addresses();
    let (first, last) = (places[0], places[places.len() - 1]);
    let sign_in = json!({"token": made["token"]}).to_string();
    let answer = ask_by_cookie(first, "POST", "", &sign_in).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    let set = answer.header("set-cookie").unwrap().to_owned();
    let cookie = set.split(';').next().unwrap();
    for at in &places {
        let me = ask_by_cookie(*at, "GET", cookie, "").await.json();
        assert_eq!(me["name"], "ann", "{me}");
    }
    assert_eq!(ask_by_cookie(first, "DELETE", cookie, "").await.status, 204);
    assert_eq!(ask_by_cookie(first, "GET", cookie, "").await.status, 401);
    let over = async || ask_by_cookie(last, "GET", cookie, "").await.status == 401;
    becomes("the session is over at the other instance", over).await;
}

crate::only_in_solo! {
    a_rehearsal_is_played_from_the_console,
}

crate::in_every_profile! {
    the_operators_midnight,
    a_session_is_good_at_every_instance_and_ends_at_all_of_them,
}

//! Fair start: those who come in the first moments are drawn, and anybody can check the draw.

use std::{collections::BTreeSet, process::Command, time::Duration};

use checker::Answer;
use client::NewSale;
use sale::{DrawPlace, DrawSecrets, ItemId};
use serde_json::{Value, json};

use crate::fixtures::{Deployment, Profile, Sale, blocking, now_ms, until};

/// As long as it may be, for machines that are slow today.
const SHUFFLE_MS: i64 = 5_000;
const PAGE: &str = include_str!("../../../../docs/FAIRNESS.md");

/// The program of the page.
fn program() -> String {
    let begin = PAGE.find("```python\n").expect("the page has a program") + 10;
    let program = PAGE[begin..].split("```").next().expect("it ends");
    assert!(program.lines().count() <= 20, "short enough to be read");
    program.to_owned()
}

/// A sale with a draw that opens far from now: buyers take their tokens, and then it is moved.
async fn planned(deployment: Deployment, stock: i64) -> Sale {
    let opens_ms = now_ms() + 3_600_000;
    let closes_ms = opens_ms + 3_600_000;
    let fair = NewSale { opens_ms, closes_ms, shuffle_ms: SHUFFLE_MS, ..NewSale::of(stock) };
    deployment.open_sale(fair).await
}

/// The sale is moved to open in a few seconds; answers when that is.
async fn moved_to_now(sale: &Sale) -> i64 {
    let path = format!("/api/v1/admin/activities/{}", sale.activity);
    let mut admin = sale.admin();
    let before: Value = admin.read(&path).await.unwrap();
    let opens_ms = now_ms() + 4_000;
    let edit = json!({"version": before["version"], "opens_at": opens_ms,
        "closes_at": opens_ms + 3_600_000});
    let body = edit.to_string();
    let json = [("content-type", "application/json")];
    let moved = admin.send("PATCH", &path, &json, body.as_bytes()).await.unwrap();
    assert_eq!(moved.status, 200, "{}", moved.json());
    assert_eq!(moved.json()["draw"]["commitment"], before["draw"]["commitment"]);
    opens_ms
}

async fn wait_until(at_ms: i64) {
    let left_ms = (at_ms - now_ms()).max(0) as u64;
    tokio::time::sleep(Duration::from_millis(left_ms)).await;
}

/// Everything that anybody, and a viewer among operators, can be shown of a sale.
async fn all_that_is_shown(sale: &Sale) -> String {
    let (activity, item) = (sale.activity, sale.item);
    let mut shown = String::new();
    for path in [
        "/api/v1/activities".to_owned(),
        format!("/api/v1/activities/{activity}"),
        format!("/api/v1/items/{item}"),
        format!("/api/v1/items/{item}/draw"),
        "/api/v1/admin/activities".to_owned(),
        format!("/api/v1/admin/activities/{activity}"),
        format!("/api/v1/admin/items/{item}"),
        "/api/v1/admin/audit".to_owned(),
        "/api/v1/admin/overview".to_owned(),
    ] {
        let read: Value = sale.admin().read(&path).await.unwrap();
        shown += &read.to_string();
    }
    shown
}

/// The draw when its seed is shown.
async fn shown_draw(sale: &Sale) -> Value {
    let path = format!("/api/v1/items/{}/draw", sale.item);
    let read = async || -> Value { sale.admin().read(&path).await.unwrap() };
    until("the seed is shown", read, |draw| draw["seed"].is_string()).await
}

fn outcomes(draw: &Value, outcome: &str) -> Vec<String> {
    let places = draw["places"].as_array().unwrap().iter();
    let with = places.filter(|place| place["outcome"] == outcome);
    with.map(|place| place["place"].as_str().unwrap().to_owned()).collect()
}

async fn the_first_buyers_are_drawn_and_anybody_can_check_it(profile: Profile) {
    const BUYERS: usize = 200;
    const UNITS: i64 = 20;
    let mut sale = planned(Deployment::new(profile), UNITS).await;
    let buyers = sale.tokens((0..BUYERS).map(|n| format!("u{n}"))).await;
    let ticket_path = format!("/api/v1/items/{}/ticket", sale.item);
    let mut ann = sale.buyer("u7").await;
    let ticket: Value = ann.api.read(&ticket_path).await.unwrap();
    let draw: Value = ann.api.read(&format!("/api/v1/items/{}/draw", sale.item)).await.unwrap();
    assert_eq!((&draw["seed"], &draw["places"]), (&Value::Null, &json!([])), "{draw}");
    let opens_ms = moved_to_now(&sale).await;
    let mut shown = all_that_is_shown(&sale).await;

    wait_until(opens_ms).await;
    let crowd = sale.crowd(BUYERS);
    let rush = tokio::spawn(async move { crowd.rush(buyers).await });
    wait_until(opens_ms + SHUFFLE_MS / 2).await;
    shown += &all_that_is_shown(&sale).await;
    assert_eq!(sale.sides().await["gate"]["left"], UNITS, "nothing is taken in the window");
    let report = rush.await.unwrap();
    assert_eq!(report.history.admitted(), UNITS as usize);
    let sold_out = report.history.count(|answer| *answer == Answer::SoldOut);
    assert_eq!(sold_out, BUYERS - UNITS as usize);
    sale.history = report.history;
    assert!(now_ms() >= opens_ms + SHUFFLE_MS);
    shown += &all_that_is_shown(&sale).await;

    let path = format!("/api/v1/items/{}/draw", sale.item);
    let read = async || -> Value { sale.admin().read(&path).await.unwrap() };
    let whole = |draw: &Value| draw["places"].as_array().is_some_and(|p| p.len() == BUYERS);
    let drawn = until("all of the record is there", read, whole).await;
    let seed = drawn["seed"].as_str().unwrap();
    assert!(!shown.contains(seed) && !sale.deployment.log().contains(seed), "it was shown before");
    // Those with the smallest places have it all, over all instances.
    let first = drawn["places"].as_array().unwrap()[..UNITS as usize].iter();
    assert!(first.clone().all(|place| place["outcome"] == "won"), "{first:?}");
    let (server, commitment) = (format!("http://{}", sale.server().address), &draw["commitment"]);
    let ticket = ticket["ticket"].as_str().unwrap().to_owned();
    let (item, commitment) = (sale.item.to_string(), commitment.as_str().unwrap().to_owned());
    let said = blocking(move || {
        let mut python = Command::new("python3");
        let run = python.args(["-c", &program(), &server, &item, &commitment, &ticket]).output()?;
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        Ok(String::from_utf8_lossy(&run.stdout).into_owned())
    });
    let said = said.await;
    println!("{said}");
    let after: Value = ann.api.read(&ticket_path).await.unwrap();
    let outcome = after["outcome"].as_str().unwrap();
    assert!(said.contains(&format!("of {BUYERS}: {outcome}; 0 out of turn")), "{said}");
    assert_eq!(
        outcome == "won",
        sale.history
            .claims
            .iter()
            .any(|claim| { claim.user == "u7" && matches!(claim.answer, Answer::Admitted { .. }) })
    );
    sale.must_hold().await;
}

async fn a_kill_in_the_window_answers_nobody_and_takes_nothing(profile: Profile) {
    const BUYERS: usize = 50;
    const UNITS: i64 = 100;
    let mut sale = planned(Deployment::new(profile), UNITS).await;
    let buyers = sale.tokens((0..BUYERS).map(|n| format!("u{n}"))).await;
    let opens_ms = moved_to_now(&sale).await;
    wait_until(opens_ms).await;
    let (crowd, asking) = (sale.crowd(BUYERS), buyers.clone());
    let rush = tokio::spawn(async move { crowd.rush(asking).await });
    wait_until(opens_ms + SHUFFLE_MS / 2).await;
    sale.kill();
    let report = rush.await.unwrap();
    let unknown = report.history.count(|answer| *answer == Answer::Unknown);
    assert_eq!(unknown, BUYERS, "nobody was told anything");
    sale.history = report.history;
    sale.start().await;
    assert_eq!(sale.observe().await.items[0].stock, UNITS);
    // They ask again, in what is left of the window or after it.
    wait_until(opens_ms + SHUFFLE_MS).await;
    let bought =
        async || -> usize { sale.crowd(BUYERS).rush(buyers.clone()).await.history.admitted() };
    assert_eq!(until("all of them buy", bought, |bought| *bought > 0).await, BUYERS);
    assert_eq!(sale.observe().await.orders.len(), BUYERS);
}

async fn a_full_room_keeps_the_best_places_and_tells_the_others(profile: Profile) {
    const BUYERS: usize = 120;
    const ROOM: usize = 30;
    const UNITS: i64 = 10;
    let deployment = Deployment::new(profile).env("SECKILL_LANE_DRAW_MAX", ROOM);
    let mut sale = planned(deployment, UNITS).await;
    let buyers = sale.tokens((0..BUYERS).map(|n| format!("u{n}"))).await;
    let opens_ms = moved_to_now(&sale).await;
    wait_until(opens_ms).await;
    let report = sale.crowd(BUYERS).rush(buyers).await;
    let too_hot = |answer: &Answer| matches!(answer, Answer::Refused(code) if code == "too_hot");
    assert_eq!(report.history.count(too_hot), BUYERS - ROOM);
    assert_eq!(report.history.admitted(), UNITS as usize);
    sale.history = report.history;
    shown_draw(&sale).await;
    let path = format!("/api/v1/items/{}/draw", sale.item);
    let read = async || -> Value { sale.admin().read(&path).await.unwrap() };
    let whole = |draw: &Value| draw["places"].as_array().is_some_and(|p| p.len() == ROOM);
    let draw = until("the record is there", read, whole).await;
    // By the secrets that only the ledger has: who stayed are the best of all who came.
    let (seed, salt): (String, String) = {
        let ledger = rusqlite::Connection::open(sale.deployment.ledger_file()).unwrap();
        ledger.busy_timeout(Duration::from_secs(10)).unwrap();
        let sql = "SELECT seed, salt FROM tb_draw";
        ledger.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    };
    assert_eq!(draw["seed"], seed);
    let order = DrawSecrets::from_hex(&seed, &salt).unwrap().order(ItemId(sale.item));
    let places = (0..BUYERS).map(|n| order.place(&format!("u{n}").parse().unwrap()));
    let best: Vec<DrawPlace> = places.collect::<BTreeSet<_>>().into_iter().take(ROOM).collect();
    let best: Vec<String> = best.iter().map(DrawPlace::to_string).collect();
    assert_eq!(outcomes(&draw, "won"), best[..UNITS as usize]);
    assert_eq!(outcomes(&draw, "sold_out"), best[UNITS as usize..]);
    sale.must_hold().await;
}

crate::in_every_profile! {
    the_first_buyers_are_drawn_and_anybody_can_check_it,
    a_kill_in_the_window_answers_nobody_and_takes_nothing,
}

crate::only_in_solo! {
    a_full_room_keeps_the_best_places_and_tells_the_others,
}

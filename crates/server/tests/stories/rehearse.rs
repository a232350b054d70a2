//! An operator rehearses before the night of the sale.

use std::{
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use client::{Api, ServerProcess};
use serde_json::{Value, json};

use crate::fixtures::{Browser, Deployment, JWT_SECRET, Profile, WEBS, until};

/// Small enough for a test, with everything in it: repeats, bots, payers, and units that come back.
const CROWD: &[&str] = &[
    "--buyers",
    "2000",
    "--stock",
    "100",
    "--items",
    "2",
    "--over",
    "1s",
    "--think",
    "50ms",
    "--pay-within",
    "2s",
    "--connections",
    "64",
    "--bot-share",
    "0.02",
    "--seed",
    "7",
];

fn rehearse(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seckill"));
    command.arg("rehearse").args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What it said, and its exit code.
fn told(output: &Output) -> (Option<i32>, String) {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

async fn finished(child: Child) -> Output {
    tokio::task::spawn_blocking(|| child.wait_with_output()).await.unwrap().unwrap()
}

/// Aimed at a running deployment.
fn aimed_at(deployment: &Deployment, running: &[ServerProcess]) -> Command {
    let mut command = rehearse(CROWD);
    let webs = if deployment.profile == Profile::Solo { 1 } else { WEBS.len() };
    for server in &running[..webs] {
        command.arg("--target").arg(format!("http://{}", server.address));
    }
    if deployment.profile == Profile::Cluster {
        command.args(["--jwt-secret", JWT_SECRET, "--shards", "2"]);
    }
    command.arg("--admin-token").arg(&running[0].token);
    command
}

fn good_report(report: &Value) {
    assert_eq!(report["ok"], true, "{report:#}");
    for key in [
        "violations",
        "notes",
        "plan",
        "repeat_with",
        "target",
        "generator",
        "funnel",
        "rates",
        "refusals",
        "latency",
        "reconcile",
        "timeline",
    ] {
        assert!(!report[key].is_null(), "{key} is missing");
    }
    assert_eq!((&report["plan"]["buyers"], &report["plan"]["seed"]), (&2_000.into(), &7.into()));
    let number = |path: &str| report.pointer(path).and_then(Value::as_u64).unwrap_or_default();
    assert_eq!(number("/funnel/buyers"), 2_000);
    let admitted = number("/funnel/admitted");
    assert!(admitted > 200, "what was abandoned is sold again: {admitted}");
    assert_eq!(number("/funnel/ordered"), admitted);
    assert_eq!(number("/rates/accepted/total"), admitted);
    assert_eq!(number("/rates/persisted/total"), admitted);
    assert!(number("/rates/rejected/total") > 1_000);
    assert!(number("/funnel/paid") > 0 && number("/funnel/cancelled") > 0);
    assert!(number("/latency/claims/p99_us") >= number("/latency/claims/p50_us"));
    assert!(number("/refusals/already_bought") > 0, "bots have more fingers than luck");
    let timeline = report["timeline"].as_array().unwrap();
    assert!(timeline.len() > 8, "{timeline:?}");
    assert!(timeline.iter().any(|sample| sample["stock_left"] == 0));
}

fn good_page(page: &Path) {
    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 4);
    for outside in ["://", "<script", "src=", "href=", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn by_itself_it_starts_a_server_and_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let temporary = home.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let page = home.path().join("report.html");
    let mut command = rehearse(CROWD);
    command.args(["--json", "-", "--html"]).arg(&page).env("TMPDIR", &temporary);
    // The settings of somebody's real shop, which are not to be rehearsed on by accident.
    std::fs::write(home.path().join("seckill.toml"), "[auth]\ndev_login = false\n").unwrap();
    command.current_dir(home.path()).env("SECKILL_JWT_SECRET", "the secret of a real shop");
    let output = finished(command.spawn().unwrap()).await;
    let (code, text) = told(&output);
    assert_eq!(code, Some(0), "{text}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    good_report(&report);
    assert_eq!(report["target"]["own"], true);
    good_page(&page);
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
}

const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images");
const PICTURE_BYTES_MAX: usize = 150 * 1_024;

/// What can be seen of the page; with `UPDATE_PICTURES=1` it is kept for README.
async fn picture(browser: &mut Browser, name: &str) {
    let params = json!({"format": "webp", "quality": 84});
    let taken = browser.devtools("Page.captureScreenshot", params).await;
    let taken = BASE64_STANDARD.decode(taken["data"].as_str().unwrap()).unwrap();
    assert!((10_000..PICTURE_BYTES_MAX).contains(&taken.len()), "{name}: {}", taken.len());
    if std::env::var_os("UPDATE_PICTURES").is_some() {
        std::fs::create_dir_all(PICTURES).unwrap();
        std::fs::write(Path::new(PICTURES).join(name), taken).unwrap();
    }
}

/// Opened from a disk, as an attachment is: on a desk and a phone, in the light and in the dark.
#[tokio::test(flavor = "multi_thread")]
async fn its_page_is_sent_around_and_read_anywhere() {
    let home = tempfile::tempdir().unwrap();
    let page = home.path().join("report.html");
    let mut browser = Browser::open().await;
    for (lang, verdict, name) in
        [("en", "All checks passed.", "report.webp"), ("zh", "全部检查通过。", "report.zh.webp")]
    {
        let mut command = rehearse(CROWD);
        command.args(["--lang", lang, "--html"]).arg(&page);
        let (code, text) = told(&finished(command.spawn().unwrap()).await);
        assert_eq!(code, Some(0), "{text}");
        for (width, phone) in [(360, true), (1_280, false)] {
            let screen =
                json!({"width": width, "height": 860, "deviceScaleFactor": 1, "mobile": phone});
            browser.devtools("Emulation.setDeviceMetricsOverride", screen).await;
            browser.go(&format!("file://{}", page.display())).await;
            assert_eq!(browser.run("return document.querySelector('h1').innerText").await, verdict);
            let fits = "return document.documentElement.scrollWidth <= innerWidth";
            assert_eq!(browser.run(fits).await, true, "{width}");
            assert_eq!(browser.run("return document.querySelectorAll('.held').length").await, 10);
            browser.is_sound().await;
        }
        picture(&mut browser, name).await;
    }
    browser.close().await;
}

async fn a_deployment_is_rehearsed_on_and_its_activity_ended(profile: Profile) {
    let deployment = Deployment::new(profile);
    let running = deployment.start().await;
    let file = deployment.dir.path().join("report.json");
    let mut command = aimed_at(&deployment, &running);
    command.arg("--json").arg(&file);
    let output = finished(command.spawn().unwrap()).await;
    let (code, text) = told(&output);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("All checks passed."), "{text}");
    good_report(&serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap());
    assert_eq!(activities(&mut running[0].admin()).await, ["ended"]);
}

async fn activities(admin: &mut Api) -> Vec<String> {
    let all: Value = admin.read("/api/v1/admin/activities").await.unwrap();
    let all = all["activities"].as_array().unwrap();
    all.iter().map(|activity| activity["state"].as_str().unwrap().to_owned()).collect()
}

/// Wait until somebody has bought something.
async fn selling(admin: &mut Api) {
    let path = "/api/v1/admin/orders?limit=1";
    let orders = async || admin.read::<Value>(path).await.unwrap()["orders"].clone();
    until("somebody buys", orders, |orders| orders != &json!([])).await;
}

async fn a_violation_is_named_and_exit_code_1(profile: Profile) {
    let deployment = Deployment::new(profile);
    let running = deployment.start().await;
    let child = aimed_at(&deployment, &running).spawn().unwrap();
    selling(&mut running[0].admin()).await;
    // Somebody writes units into the books that nobody made.
    let forgery = "UPDATE tb_seckill_product SET total = total + 7, stock = stock + 7";
    deployment.change_ledger(forgery, forgery);
    let (code, text) = told(&finished(child).await);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("VIOLATED I2 conservation"), "{text}");
    assert_eq!(activities(&mut running[0].admin()).await, ["ended"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_interrupts_it_leaves_no_open_sale() {
    let deployment = Deployment::new(Profile::Solo);
    let running = deployment.start().await;
    let child = aimed_at(&deployment, &running).spawn().unwrap();
    selling(&mut running[0].admin()).await;
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let (code, text) = told(&finished(child).await);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("interrupted"), "{text}");
    assert_eq!(activities(&mut running[0].admin()).await, ["ended"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_rehearsed_is_refused_before_anything_happens() {
    let deployment = Deployment::new(Profile::Solo).env("SECKILL_AUTH_DEV_LOGIN", "false");
    let running = deployment.start().await;
    let here = format!("http://{}", running[0].address);
    let token = running[0].token.as_str();
    let elsewhere = tempfile::tempdir().unwrap();
    let check = |args: &[&str], expected: &str| {
        let output = rehearse(args).current_dir(&elsewhere).output().unwrap();
        let (code, text) = told(&output);
        assert_eq!(code, Some(2), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    };
    // An address of the documentation: nobody has it.
    let public = ["--target", "http://192.0.2.1:8080", "--admin-token", "x"];
    check(&public, "--i-own-this-target");
    check(&["--target", "https://127.0.0.1:1", "--admin-token", "x"], "https is not supported");
    check(&["--target", "http://no-such-host.invalid", "--admin-token", "x"], "cannot be resolved");
    check(&["--target", "http://127.0.0.1:1", "--admin-token", "x"], "nobody answers");
    check(&["--target", &here], "needs --admin-token");
    check(&["--target", &here, "--admin-token", "wrong"], "admin token is not accepted");
    check(&["--target", &here, "--admin-token", token], "the dev login is off");
    let data = deployment.data().to_str().unwrap();
    check(&["--target", &here, "--data", data], "the dev login is off");
    check(&["--buyers", "0"], "buyers must be from 1");
    check(&["--pay-share", "0.9", "--abandon-share", "0.2"], "together must not be above 1");
    check(&["--repeat-share", "1.5"], "repeat-share must be from 0 to 1");
    check(&["--over", "soon"], "must begin with a number, such as 90s");
    check(&["--json", "/nowhere/report.json"], "cannot be written");
    assert_eq!(activities(&mut running[0].admin()).await, Vec::<String>::new());
}

crate::in_every_profile! {
    a_deployment_is_rehearsed_on_and_its_activity_ended,
}

crate::only_in_solo! {
    a_violation_is_named_and_exit_code_1,
}

#[tokio::test(flavor = "multi_thread")]
async fn bots_win_less_of_the_stock_with_each_defence() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("report.json");
    let mut command =
        rehearse(&["--buyers", "20", "--stock", "5", "--over", "200ms", "--think", "10ms"]);
    command.args(["--pay-within", "1s", "--connections", "8", "--seed", "7", "--bots"]);
    command.args(["--bot-clients", "20", "--bot-accounts", "6", "--bot-stock", "8"]);
    command.args(["--solve-price", "2", "--bot-budget", "4", "--json"]).arg(&file);
    let (code, said) = told(&finished(command.spawn().unwrap()).await);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("Bot drill: 18 people, 2 bots with 6 accounts each, 8 units a row"),
        "{said}"
    );
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let rows = report["bots"]["rows"].as_array().unwrap();
    let row = |defence: &str| rows.iter().find(|row| row["defence"] == defence).unwrap();
    let share = |defence: &str| row(defence)["bot_share"].as_f64().unwrap();
    assert!(share("off") > 0.5, "early and many: {rows:?}");
    assert_eq!(share("challenge_unsolved"), 0.0, "{rows:?}");
    assert_eq!(share("members_only"), 0.0, "{rows:?}");
    let paid = row("challenge_paid");
    assert_eq!((&paid["bot_tokens"], &paid["spent"]), (&json!(4), &json!(8)), "{rows:?}");
    assert!(share("challenge_paid") <= 0.5, "no more than they paid for: {rows:?}");
    // The same money, and no use in being early.
    assert_eq!(row("fair_start_and_challenge")["spent"], 8, "{rows:?}");
    assert!(share("fair_start") < 1.0, "{rows:?}");
    // Five tokens for an address, which is that of one bot, in a minute.
    let limited = row("address_limits");
    assert!((10..12).contains(&limited["bot_tokens"].as_u64().unwrap()), "{rows:?}");
    assert_eq!(report["bots"]["cycles_before_wait"], 5);
}

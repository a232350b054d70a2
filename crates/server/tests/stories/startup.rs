//! Starting, stopping, and starting where one should not.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use client::{Api, Login, NewSale};
use serde_json::{Value, json};
use server::serve::Running;

use crate::fixtures::{Deployment, JWT_SECRET, Profile, now_ms, until};

fn serve(deployment: &Deployment, env: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(deployment.data())
        .envs(env.iter().copied())
        .output()
        .unwrap()
}

/// One clear line and exit code 2.
fn refused(output: Output, expected: &str) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.trim().lines().count(), 1, "{text}");
    assert!(text.contains(expected), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_start_has_something_to_buy_and_the_second_goes_on_with_it() {
    let deployment = Deployment::new(Profile::Solo).without("SECKILL_DEMO");
    let started = now_ms();
    let server = deployment.start_one().await;
    let mut api = Api::new(server.address, None);
    let before_look = now_ms();
    assert_eq!(api.get("/").await.unwrap().status, 200);
    let after_look = now_ms();
    let shown: Value = api.read("/api/v1/activities").await.unwrap();
    let activity = &shown["activities"][0];
    let opens_at = activity["opens_at"].as_i64().unwrap();
    let latest = now_ms() + 60_000;
    let by_the_look = (before_look + 30_000..=after_look + 30_000).contains(&opens_at);
    assert!(by_the_look || opens_at <= latest, "{started} {before_look} {opens_at}");
    if after_look < started + 25_000 {
        assert!(by_the_look, "half a minute after the first look: {before_look} {opens_at}");
    }
    let item = &activity["items"][0];
    assert_eq!(item["name"], "iPhone 15 Pro 256GB");
    assert_eq!((&item["price"], &item["stock"]), (&json!(699_900), &json!(10_000)));
    assert_eq!((&item["left"], &item["state"]), (&json!(10_000), &json!("waiting")));
    let server_now: Value = api.read("/api/v1/time").await.unwrap();
    assert!((server_now["now_ms"].as_i64().unwrap() - now_ms()).abs() < 5_000);
    for page in ["/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics"] {
        assert_eq!(api.get(page).await.unwrap().status, 200, "{page}");
    }
    // It drains and stops within five seconds, even with a connection held open.
    let stopping = Instant::now();
    assert_eq!(server.stop().await.unwrap(), Some(0));
    assert!(stopping.elapsed() < Duration::from_secs(5), "{:?}", stopping.elapsed());
    assert!(!deployment.data().join("running.json").exists());

    let server = deployment.start_one().await;
    let again: Value = Api::new(server.address, None).read("/api/v1/activities").await.unwrap();
    assert_eq!(again["activities"].as_array().unwrap().len(), 1, "no second demo");
    assert_eq!(again["activities"][0]["opens_at"], activity["opens_at"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_never_answers_does_not_hold_up_the_end() {
    let hole = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", hole.local_addr().unwrap());
    let deployment = Deployment::new(Profile::Solo)
        .env("SECKILL_ALERTS_WEBHOOK_URL", url)
        .env("SECKILL_JOBS_RECONCILE_EVERY_MS", 100);
    let sale = deployment.open_sale(NewSale::of(5)).await;
    // Books that do not add up: every comparison raises an alert.
    let ledger = rusqlite::Connection::open(sale.deployment.ledger_file()).unwrap();
    ledger.busy_timeout(Duration::from_secs(10)).unwrap();
    ledger.execute("UPDATE tb_seckill_product SET total = total + 1", []).unwrap();
    drop(ledger);
    let raised = async || sale.deployment.log().matches("reconcile found").count();
    until("six alerts", raised, |raised| *raised >= 6).await;
    let mut sale = sale;
    let stopping = Instant::now();
    sale.stop().await;
    assert!(stopping.elapsed() < Duration::from_secs(5), "{:?}", stopping.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_that_cannot_be_used_is_refused_in_one_line() {
    let deployment = Deployment::new(Profile::Solo);
    let server = deployment.start_one().await;
    refused(serve(&deployment, &[]), "in use");
    server.stop().await.unwrap();

    let ledger = rusqlite::Connection::open(deployment.ledger_file()).unwrap();
    let version: i64 = ledger.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    ledger.pragma_update(None, "user_version", 9_999).unwrap();
    drop(ledger);
    refused(serve(&deployment, &[]), "schema");
    let ledger = rusqlite::Connection::open(deployment.ledger_file()).unwrap();
    ledger.pragma_update(None, "user_version", version).unwrap();
    let journal = rusqlite::Connection::open(deployment.data().join("journal.db")).unwrap();
    journal.pragma_update(None, "user_version", 9_999).unwrap();
    drop((ledger, journal));
    refused(serve(&deployment, &[]), "schema");

    let file = Deployment::new(Profile::Solo);
    fs::remove_dir(file.data()).unwrap();
    fs::write(file.data(), "not a directory").unwrap();
    refused(serve(&file, &[]), "directory");
    // Nobody, not even root, can write below /proc.
    let nowhere = Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data", "/proc/seckill"])
        .output()
        .unwrap();
    refused(nowhere, "/proc/seckill");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_setting_is_named_with_the_right_one() {
    let deployment = Deployment::new(Profile::Solo);
    let file = deployment.dir.path().join("seckill.toml");
    fs::write(&file, "[lane]\nqueu_max = 5\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(["serve", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("queu_max") && text.contains("lane.queue_max"), "{text}");
    refused(serve(&deployment, &[("SECKILL_LISTN", "127.0.0.1:1")]), "SECKILL_LISTEN");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_given_admin_token_and_the_shops_own_jwts_work() {
    let secret = "the shop's own secret, 32 bytes.";
    let deployment = Deployment::new(Profile::Solo)
        .env("SECKILL_ADMIN_TOKEN", "sk_admin_given_by_the_operator")
        .env("SECKILL_JWT_SECRET", secret);
    let server = deployment.start_one().await;
    let mut admin = Api::new(server.address, Some("sk_admin_given_by_the_operator"));
    let item = NewSale::of(3).create(&mut admin).await.unwrap().items[0];
    let shop = Login::Shop { secret: secret.into() };
    let jwt = shop.token(&mut admin, "u1002").await.unwrap();
    let mut buyer = Api::new(server.address, Some(&jwt));
    let token: Value =
        buyer.write(&format!("/api/v1/items/{item}/token"), &json!({})).await.unwrap();
    assert!(token["expires_at"].is_i64());
    let wrong = Api::new(server.address, Some("sk_admin_of_somebody_else"))
        .get("/api/v1/admin/overview")
        .await
        .unwrap();
    assert_eq!((wrong.status, wrong.code().as_deref()), (401, Some("unauthorized")));
    assert!(!deployment.log().contains("sk_admin_given"), "secrets do not reach the log");
}

/// A server that a person started, and all it said, on both outputs, in one file.
struct ByHand {
    child: Child,
    running: Running,
    said: std::path::PathBuf,
}

impl ByHand {
    /// `wrapper` is put in front of the command.
    async fn start(deployment: &Deployment, wrapper: &[&str], args: &[&str]) -> ByHand {
        let said = deployment.dir.path().join("said");
        let file = fs::File::create(&said).unwrap();
        let mut words = wrapper.to_vec();
        words.push(env!("CARGO_BIN_EXE_seckill"));
        let child = Command::new(words[0])
            .args(&words[1..])
            .args(args)
            .envs(deployment.launches[0].env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let read = async || Running::read(deployment.data()).ok_or(fs::read_to_string(&said));
        let running = until("it runs", read, Result::is_ok).await.unwrap();
        ByHand { child, running, said }
    }

    /// Waits until this was said; answers everything.
    async fn says(&self, part: &str) -> String {
        written(&self.said, part).await
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until this stands in the file; answers everything in it.
async fn written(file: &Path, part: &str) -> String {
    let text = async || fs::read_to_string(file).unwrap_or_default();
    until(part, text, |text| text.contains(part)).await
}

fn doctor(deployment: &Deployment) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(["doctor", "--data"])
        .arg(deployment.data())
        .envs(deployment.launches[0].env.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A shop that set nothing but its own key, a cluster, a public address: nothing of the demo is there.
async fn nothing_of_the_demo_is_there_beside_a_shops_own_key(profile: Profile) {
    let deployment = Deployment::new(profile)
        .without("SECKILL_DEMO")
        .without("SECKILL_PAYMENT_SANDBOX")
        .env("SECKILL_JWT_SECRET", JWT_SECRET);
    let servers = deployment.start().await;
    let mut api = Api::new(servers[0].address, None);
    let shop: Value = api.read("/api/v1/shop").await.unwrap();
    assert_eq!(shop, json!({"dev_login": false, "pay_with": [], "providers": []}));
    let login = api.post("/api/v1/dev/login", &json!({"user_id": "u1"})).await.unwrap();
    assert_eq!(login.status, 404);
    let shown: Value = api.read("/api/v1/activities").await.unwrap();
    assert_eq!(shown["activities"], json!([]), "no demo sale");
    assert!(deployment.log().contains("no order can be paid"));
    drop(servers);
    assert!(doctor(&deployment).contains("warn  no order can be paid"));
}

async fn what_is_switched_on_by_name_is_said_at_every_start(profile: Profile) {
    let deployment = Deployment::new(profile).env("SECKILL_JWT_SECRET", JWT_SECRET);
    for _ in 0..2 {
        let servers = deployment.start().await;
        let shop: Value = Api::new(servers[0].address, None).read("/api/v1/shop").await.unwrap();
        assert_eq!(shop["providers"], json!(["sandbox"]));
        let log = deployment.log();
        let warning =
            log.lines().find(|line| line.contains("every order can be paid without money"));
        assert!(warning.is_some_and(|line| line.contains("WARN")), "{log}");
        fs::write(deployment.log_file(), "").unwrap();
    }
    let found = doctor(&deployment);
    assert!(found.contains("RISK  payment.sandbox is switched on"), "{found}");
}

crate::in_every_profile! {
    nothing_of_the_demo_is_there_beside_a_shops_own_key,
    what_is_switched_on_by_name_is_said_at_every_start,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_address_without_a_key_says_what_to_set() {
    let deployment =
        Deployment::new(Profile::Solo).without("SECKILL_PAYMENT_SANDBOX").without("SECKILL_DEMO");
    let data = deployment.data().display().to_string();
    let server = ByHand::start(&deployment, &[], &["--listen", "0.0.0.0:0", "--data", &data]).await;
    let said = server.says("nobody can buy").await;
    assert!(said.contains("Set SECKILL_JWT_SECRET"), "{said}");
    assert!(said.contains("no order can be paid"), "{said}");
    let mut api = Api::new(server.running.address, None);
    let login = api.post("/api/v1/dev/login", &json!({"user_id": "u1"})).await.unwrap();
    assert_eq!(login.status, 404);
    let shown: Value = api.read("/api/v1/activities").await.unwrap();
    assert_eq!(shown["activities"], json!([]));
}

/// The mode of a file or directory, as `chmod` writes it.
fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_can_read_the_data_whatever_it_was_before() {
    let mut deployment = Deployment::new(Profile::Solo);
    fs::set_permissions(deployment.data(), fs::Permissions::from_mode(0o755)).unwrap();
    for old in ["secret", "ledger.db", "journal.db"] {
        fs::write(deployment.data().join(old), "").unwrap();
        fs::set_permissions(deployment.data().join(old), fs::Permissions::from_mode(0o644))
            .unwrap();
    }
    fs::remove_file(deployment.data().join("secret")).unwrap();
    // The most careless of all shells.
    deployment.launches[0].wrapper =
        ["sh", "-c", "umask 000; exec \"$@\"", "sh"].map(String::from).to_vec();
    let sale = deployment.open_sale(NewSale::of(3)).await;
    let mut buyer = sale.buyer("u1").await;
    let no = buyer.buy().await;
    buyer.order_becomes(&no, "unpaid").await;
    assert_eq!(mode(sale.deployment.data()), 0o700);
    let mut names = Vec::new();
    for entry in fs::read_dir(sale.deployment.data()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(mode(&entry.path()), 0o600, "{:?}", entry.path());
        names.push(entry.file_name().into_string().unwrap());
    }
    for name in ["ledger.db", "ledger.db-wal", "journal.db", "sandbox.db", "running.json", "lock"] {
        assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
    }
    assert!(sale.deployment.log().contains("others could get at it"));
    sale.must_hold().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_admin_token_is_on_a_terminal_or_in_a_private_file_and_in_no_log() {
    let deployment = Deployment::new(Profile::Solo);
    let data = deployment.data().display().to_string();
    let server = ByHand::start(&deployment, &[], &["--listen", "0", "--data", &data]).await;
    let said = server.says("first-admin-token").await;
    assert!(!said.contains("sk_admin_"), "{said}");
    let file = deployment.data().join("first-admin-token");
    assert_eq!(mode(&file), 0o600);
    let token = fs::read_to_string(&file).unwrap();
    let mut admin = Api::new(server.running.address, Some(token.trim()));
    let _: Value = admin.read("/api/v1/admin/tokens").await.unwrap();
    drop(server);
    let _ = fs::remove_file(deployment.data().join("running.json"));
    // Later starts make no other one, and say how to get one.
    let server = ByHand::start(&deployment, &[], &["--listen", "0", "--data", &data]).await;
    server.says("token create NAME --role admin").await;
    drop(server);

    let deployment = Deployment::new(Profile::Solo);
    let data = deployment.data().display();
    let command = format!("{} --listen 0 --data {data}", env!("CARGO_BIN_EXE_seckill"));
    let typed = deployment.dir.path().join("typed");
    let mut terminal = Command::new("script")
        .args(["--quiet", "--flush", "--command", &command])
        .arg(&typed)
        .envs(deployment.launches[0].env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("script, of Debian's bsdutils");
    let shown = written(&typed, "sk_admin_").await;
    assert!(!deployment.data().join("first-admin-token").exists());
    // The deployment has the sandbox on by name.
    assert!(shown.contains("\u{1b}[1;31mpayment.sandbox is switched on"), "{shown}");
    terminal.kill().unwrap();
    terminal.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_greets_first_and_logs_after_it() {
    let deployment = Deployment::new(Profile::Solo).without("SECKILL_DEMO");
    // Others could read it, which the log says at the very beginning.
    fs::set_permissions(deployment.data(), fs::Permissions::from_mode(0o755)).unwrap();
    let data = deployment.data().display().to_string();
    let server =
        ByHand::start(&deployment, &[], &["--listen", "localhost:0", "--data", &data]).await;
    let said = server.says("others could get at it").await;
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("Seckill ") && lines[0].ends_with(" is open"), "{said}");
    let (greeting, log) = said.split_once("WARN").unwrap();
    let address = server.running.address;
    for part in [
        format!("http://{address}/"),
        format!("http://{address}/docs"),
        data.clone(),
        "opens 30 s after somebody looks, at the latest in ".into(),
        format!("--data {data} sale create"),
    ] {
        assert!(greeting.contains(&part), "{part} in\n{said}");
    }
    assert!(log.contains("every order can be paid without money"), "{said}");
    // What is to be copied works.
    let copied = greeting.lines().find(|line| line.contains(" sale create ")).unwrap().trim();
    let made = Command::new("sh").args(["-c", copied]).output().unwrap();
    let made = String::from_utf8(made.stdout).unwrap();
    assert!(made.contains("First sale") && made.contains("waiting"), "{copied}\n{made}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_takes_its_time_does_not_keep_its_log_back() {
    // Redis takes the connection and never answers.
    let hole = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let deployment = Deployment::new(Profile::Solo);
    let log = deployment.dir.path().join("slow");
    let mut child = Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(["serve", "--listen", "0", "--data"])
        .arg(deployment.data())
        .env("SECKILL_PROFILE", "cluster")
        .env("SECKILL_REDIS_URL", format!("redis://{}", hole.local_addr().unwrap()))
        .env("SECKILL_LEDGER_URL", "mysql://root@127.0.0.1:1/none")
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    written(&log, "nobody can buy").await;
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_port_that_is_taken_is_named_with_one_that_is_free() {
    let deployment = Deployment::new(Profile::Solo);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let output = Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(["serve", "--listen", &port.to_string(), "--data"])
        .arg(deployment.data())
        .env("SECKILL_LOG_LEVEL", "off")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    refused(output, &format!("cannot listen on 127.0.0.1:{port}: another program has port {port}"));
    let free = text.trim().rsplit("--listen ").next().unwrap();
    std::net::TcpListener::bind(free).unwrap_or_else(|why| panic!("{free}: {why}\n{text}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_greets_with_what_it_serves() {
    let deployment = Deployment::new(Profile::Cluster);
    let data = deployment.data().display().to_string();
    let args = ["serve", "--role", "worker", "--listen", "0", "--data", &data];
    let server = ByHand::start(&deployment, &[], &args).await;
    let said = server.says("turns claims into orders").await;
    let address = server.running.address;
    assert!(said.contains(&format!("http://{address}/healthz")), "{said}");
    assert!(!said.contains("/docs") && !said.contains(&format!("http://{address}/\n")), "{said}");
    let mut api = Api::new(address, None);
    assert_eq!(api.get("/healthz").await.unwrap().status, 200);
    assert_eq!(api.get("/").await.unwrap().status, 404);
}

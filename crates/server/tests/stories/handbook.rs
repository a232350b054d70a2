//! What OPERATIONS tells an operator to do is done: its commands are taken from the page, word for word
//! but for the names of machines, and typed.

use std::{
    collections::HashSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Instant,
};

use checker::Answer;
use client::NewSale;
use faults::services::{Redis, RedisOptions, shared_mariadb};
use sale::OrderNo;
use serde_json::{Value, json};

use crate::{
    failover::{account_for, heal},
    fixtures::{Deployment, Profile, Sale, WEBS, WORKERS, becomes, blocking, until},
    operators::seckill,
    traffic::{Heard, Traffic},
};

/// The address that the page uses for a server.
const PAGE_ADDRESS: &str = "127.0.0.1:8080";
/// How the page reaches the database.
const PAGE_DATABASE: &str = "--host=db --user=seckill --password seckill";
/// The ledger of the first release, as it made it.
const FIRST_SCHEMA: &str = include_str!("../../../ledger/src/mysql/migrations/0001_init.sql");

/// The block of commands that follows these words.
fn commands_after(words: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/OPERATIONS.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, after) = page.split_once(words).unwrap_or_else(|| panic!("no {words:?}"));
    let block = after.split("```").nth(1).unwrap();
    let lines = block.lines().map(str::trim_start);
    lines.collect::<Vec<_>>().join("\n")
}

/// Type it in this folder, as an operator whose `seckill` is this one and whose data are the story's.
async fn type_in(deployment: &Deployment, commands: String, token: &str) -> String {
    let binaries = Path::new(env!("CARGO_BIN_EXE_seckill")).parent().unwrap();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default());
    let mut typed = Command::new("bash");
    typed
        .args(["-e", "-u", "-o", "pipefail", "-c", &commands])
        .env("PATH", path)
        .env("SECKILL_DATA", deployment.data())
        .env("TOKEN", token)
        .current_dir(deployment.dir.path());
    blocking(move || {
        let typed = typed.output()?;
        let (said, complaints) =
            (String::from_utf8_lossy(&typed.stdout), String::from_utf8_lossy(&typed.stderr));
        assert!(typed.status.success(), "{commands}\n{said}\n{complaints}");
        Ok(said.into_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sale_of_the_page_is_created_changed_and_published() {
    let deployment = Deployment::new(Profile::Solo);
    let server = deployment.start_one().await;
    let (publish, create) = {
        let commands = commands_after("Create the sale, look at it, publish it:");
        let (create, publish) = commands.trim_end().rsplit_once('\n').unwrap();
        (publish.to_owned(), create.to_owned())
    };
    assert!(publish.starts_with("seckill sale publish"), "{publish}");
    let said = type_in(&deployment, create, "").await;
    assert!(said.contains("iPhone 15 Pro 256GB"), "{said}");
    let change =
        commands_after("two operators do not overwrite each other (409, with what it is now):");
    let change = change.replace(PAGE_ADDRESS, &server.address.to_string());
    let said = type_in(&deployment, change.replace("curl ", "curl --fail "), &server.token).await;
    assert!(said.contains("Case"), "{said}");
    type_in(&deployment, publish, "").await;
    let shown: Value = server.admin().read("/api/v1/activities").await.unwrap();
    assert_eq!(shown["activities"][0]["state"], "published", "{shown}");
    assert_eq!(shown["activities"][0]["items"][0]["left"], 12_000, "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_the_page_is_imported() {
    let deployment = Deployment::new(Profile::Solo);
    let _server = deployment.start_one().await;
    let import = commands_after("Prices are in the currency's own units.");
    let said = type_in(&deployment, import.clone(), "").await;
    assert!(said.contains("6999.00 CNY") && said.contains("980 JPY"), "{said}");
    let again = type_in(&deployment, import, "").await;
    assert!(again.contains("it was there before"), "{again}");
}

/// A backup of a solo server under load is of one piece, and the receipts bring back what came later.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_made_while_it_sells_is_whole() {
    const UNITS: i64 = 3_000;
    let mut sale = Deployment::new(Profile::Solo).open_sale(NewSale::of(UNITS)).await;
    let backup = sale.deployment.dir.path().join("backup");
    let traffic = Traffic::start(&sale, "u", 6);
    becomes("some are sold", async || traffic.count(Heard::is_admitted) >= 100).await;
    let command = ["backup", backup.to_str().unwrap()];
    let (code, text) = tokio::task::block_in_place(|| seckill(&sale.deployment, &command));
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = tokio::task::block_in_place(|| seckill(&sale.deployment, &command));
    assert_eq!(code, Some(2), "a backup is not written over: {text}");
    let modes = fs::read_dir(&backup).unwrap().map(|entry| entry.unwrap().metadata());
    for metadata in modes.chain([fs::metadata(&backup)]) {
        assert_eq!(metadata.unwrap().permissions().mode() & 0o077, 0, "only its owner can read it");
    }
    let sold = traffic.count(Heard::is_admitted);
    becomes("more are sold", async || traffic.count(Heard::is_admitted) >= sold + 100).await;
    let heard = traffic.end().await;
    sale.kill();

    fs::remove_dir_all(sale.deployment.data()).unwrap();
    fs::rename(&backup, sale.deployment.data()).unwrap();
    sale.start().await;
    let report = client::reconcile(&mut sale.admin(), "").await.unwrap();
    assert_eq!(report["differences"], 0, "{report:#}");
    let lost = admitted(&heard) - orders_on_record(&sale).await;
    println!("{lost} orders were made after the backup");
    assert!(lost >= 100);
    account_for(&mut sale, heard).await;
}

/// The commands of the page, for the database of this story.
fn for_our_database(commands: String, sale: &Sale) -> String {
    assert!(commands.contains(PAGE_DATABASE), "{commands}");
    let port = shared_mariadb().address().port();
    let ours = format!("--protocol=tcp --host=127.0.0.1 --port={port} --user=root");
    commands.replace(PAGE_DATABASE, &format!("{ours} {}", sale.deployment.database))
}

/// Backup under load, then the worst that a restore can meet: a ledger that lacks the newest orders
/// beside a Redis that has them all, and whose items have lived on since.
#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_restored_from_its_dump_agrees_with_a_redis_that_knows_more() {
    const UNITS: i64 = 3_000;
    let mut sale = Deployment::new(Profile::Cluster).open_sale(NewSale::of(UNITS).shards(2)).await;
    let folder = sale.deployment.dir.path().to_owned();
    let traffic = Traffic::start(&sale, "u", 6);
    becomes("some are sold", async || traffic.count(Heard::is_admitted) >= 100).await;
    let dump = for_our_database(commands_after("The ledger, while it sells:"), &sale);
    type_in(&sale.deployment, dump, "").await;
    assert!(fs::metadata(folder.join("ledger.sql")).unwrap().len() > 10_000);
    let sold = traffic.count(Heard::is_admitted);
    // The gate's epoch leaves that of the dump behind.
    for _ in 0..3 {
        let path = format!("/api/v1/admin/items/{}/warm?anew=true", sale.item);
        let _: Value = sale.admin().write(&path, &json!({})).await.unwrap();
    }
    becomes("more are sold", async || traffic.count(Heard::is_admitted) >= sold + 200).await;
    let heard = traffic.end().await;
    sale.settle().await;
    sale.stop().await;

    let (server, database) = (shared_mariadb(), sale.deployment.database.clone());
    blocking(move || server.query(&format!("DROP DATABASE {database}"))).await;
    let (server, database) = (shared_mariadb(), sale.deployment.database.clone());
    blocking(move || server.create_database(&database)).await;
    let restore = for_our_database(
        commands_after("With all instances stopped, into an empty database:"),
        &sale,
    );
    type_in(&sale.deployment, restore, "").await;
    sale.start().await;
    let lost = admitted(&heard) - orders_on_record(&sale).await;
    println!("{lost} orders were made after the dump");
    assert!(lost >= 100);
    // The gate has a mark of each of them and the books have nothing: nobody is told *queued*.
    let known: HashSet<OrderNo> =
        sale.observe().await.orders.iter().map(|order| order.order_no).collect();
    let is_lost = |heard: &&Heard| order_no(heard).is_some_and(|no| !known.contains(&no));
    let early = heard.iter().find(is_lost).unwrap();
    let mut buyer = sale.buyer(&early.user).await;
    let receipt = json!({"receipt": early.receipt});
    let shown = buyer.api.post("/api/v1/receipts", &receipt).await.unwrap();
    assert_eq!(shown.status, 503, "{}", shown.json());
    println!("reconcile healed {} differences first", heal(&sale).await);
    account_for(&mut sale, heard).await;
}

fn order_no(heard: &Heard) -> Option<OrderNo> {
    match &heard.answer {
        Answer::Admitted { order_no } => Some(*order_no),
        _ => None,
    }
}

fn admitted(heard: &[Heard]) -> usize {
    heard.iter().filter_map(order_no).collect::<HashSet<_>>().len()
}

async fn orders_on_record(sale: &Sale) -> usize {
    sale.observe().await.orders.len()
}

/// The reverse: Redis is put back to an earlier copy of its files, and the ledger has gone on.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_restored_from_an_older_copy_is_noticed_and_rebuilt() {
    const UNITS: i64 = 3_000;
    let redis = Arc::new(blocking(|| Redis::start(RedisOptions::default())).await);
    let deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", redis.url())
        .env("SECKILL_REDIS_ANSWER_MS_MAX", 500);
    let mut sale = deployment.open_sale(NewSale::of(UNITS).shards(2)).await;
    let copy = sale.deployment.dir.path().join("redis-copy");
    let traffic = Traffic::start(&sale, "u", 6);
    becomes("some are sold", async || traffic.count(Heard::is_admitted) >= 100).await;
    let (server, to) = (redis.clone(), copy.clone());
    blocking(move || {
        server.stop()?;
        copy_folder(&server.folder(), &to)?;
        server.restart()
    })
    .await;
    let copied = Instant::now();
    traffic.until(copied, Heard::is_admitted).await;
    let sold = traffic.count(Heard::is_admitted);
    becomes("more are sold", async || traffic.count(Heard::is_admitted) >= sold + 200).await;
    let server = redis.clone();
    blocking(move || {
        server.stop()?;
        fs::remove_dir_all(server.folder())?;
        copy_folder(&copy, &server.folder())?;
        server.restart()
    })
    .await;
    let restored = Instant::now();
    let reopened = traffic.until(restored, Heard::is_admitted).await;
    println!("restored: admitting after {reopened:.1?}");
    let heard = traffic.end().await;
    account_for(&mut sale, heard).await;
}

fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target: PathBuf = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// From the schema of the first release to today's, one process after the other, while it sells.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_upgraded_one_process_at_a_time_while_it_sells() {
    const UNITS: i64 = 5_000;
    let deployment = Deployment::new(Profile::Cluster);
    let (server, database) = (shared_mariadb(), deployment.database.clone());
    let first = format!(
        "USE {database}; {FIRST_SCHEMA}; CREATE TABLE tb_schema_version (version BIGINT NOT NULL \
         PRIMARY KEY, applied_at BIGINT NOT NULL) ENGINE = InnoDB; \
         INSERT INTO tb_schema_version VALUES (1, 1);"
    );
    blocking(move || server.query(&first)).await;
    let mut sale = deployment.open_sale(NewSale::of(UNITS).shards(2)).await;
    let traffic = Traffic::start(&sale, "u", 6);
    for place in WEBS.into_iter().chain(WORKERS) {
        let before = traffic.count(Heard::is_admitted);
        becomes("some are sold", async || traffic.count(Heard::is_admitted) >= before + 50).await;
        // As the page says: out of the balancer, stopped, started, back into the balancer when ready.
        let leaving = sale.process(place).address;
        traffic.go_to(sale.addresses().into_iter().filter(|at| *at != leaving).collect());
        sale.stop_one(place).await;
        let gone = Instant::now();
        traffic.until(gone, Heard::is_admitted).await;
        sale.start_again(place).await;
        let new = sale.process(place).address;
        ready(new).await;
        traffic.go_to(sale.addresses());
        if WEBS.contains(&place) {
            traffic.until(gone, |heard| heard.is_admitted() && heard.address == new).await;
        }
    }
    let heard = traffic.end().await;
    let troubled: Vec<&Heard> = heard.iter().filter(|heard| !heard.is_admitted()).collect();
    println!("{} answers, {} of them no admission", heard.len(), troubled.len());
    assert!(troubled.is_empty(), "{troubled:#?}");
    account_for(&mut sale, heard).await;
}

/// Wait until the instance says that it can sell.
async fn ready(address: std::net::SocketAddr) {
    let mut api = client::Api::new(address, None);
    let ask = async || api.get("/readyz").await.map_or(200, |answer| answer.status);
    until("it is ready", ask, |status| *status == 200).await;
}

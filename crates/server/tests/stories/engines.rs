//! Engines that are still coming up when an instance starts, that do not let it in, or that speak TLS.

use std::{
    net::{SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use client::{Api, NewSale, Response};
use faults::services::{Certificates, MariaDb, MariaDbOptions, Redis, RedisOptions};

use crate::{
    cluster::{kill_ledger, own_ledger, restart_ledger, signal},
    fixtures::{Deployment, Profile, blocking, until},
    one_of_many::start_cluster,
};

/// Told to stop, or refused, it ends within this.
const AT_ONCE: Duration = Duration::from_secs(8);

/// The first process of a deployment, which may not get as far as saying where it listens.
struct Starting {
    child: Child,
    address: SocketAddr,
}

impl Starting {
    fn begin(deployment: &Deployment) -> Starting {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let launch = &deployment.launches[0];
        let log = std::fs::File::options().create(true).append(true).open(deployment.log_file());
        let child = Command::new(env!("CARGO_BIN_EXE_seckill"))
            .args(["serve", "--listen", &address.to_string(), "--data"])
            .arg(&launch.data)
            .envs(launch.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .unwrap();
        Starting { child, address }
    }

    async fn get(&self, path: &str) -> Option<Response> {
        Api::new(self.address, None).get(path).await.ok()
    }

    /// Wait until readiness says this of gate and ledger.
    async fn says(&self, status: u16, gate: &str, ledger: &str) {
        let told = async || {
            let answer = self.get("/readyz").await?;
            let body = answer.json();
            let word = |part: &str| body[part].as_str().unwrap_or_default().to_owned();
            Some((answer.status, word("gate"), word("ledger")))
        };
        let wanted = (status, gate.to_owned(), ledger.to_owned());
        until("readiness says so", told, |told| told.as_ref() == Some(&wanted)).await;
    }

    /// Its exit code, and how long it took to end.
    async fn ends(mut self) -> (Option<i32>, Duration) {
        let started = Instant::now();
        let ended = async || self.child.try_wait().unwrap();
        let status = until("it ends", ended, Option::is_some).await;
        (status.and_then(|status| status.code()), started.elapsed())
    }
}

/// Nothing is left behind by a story that fails.
impl Drop for Starting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Engines of its own, both down, and a deployment that wants them.
async fn before_the_engines(name: &str) -> (Deployment, Arc<Redis>, Arc<MariaDb>) {
    let redis = Arc::new(blocking(|| Redis::start(RedisOptions::default())).await);
    let (ledger, url) = own_ledger(name).await;
    redis.kill().unwrap();
    kill_ledger(&ledger).await;
    let deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", redis.url())
        .env("SECKILL_LEDGER_URL", url);
    (deployment, redis, ledger)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_waits_for_engines_that_come_up_in_either_order() {
    let (deployment, redis, ledger) = before_the_engines("order").await;
    for redis_first in [true, false] {
        redis.kill().unwrap();
        kill_ledger(&ledger).await;
        let starting = Starting::begin(&deployment);
        starting.says(503, "down", "down").await;
        assert_eq!(starting.get("/healthz").await.unwrap().status, 200, "it lives");
        let buyers = starting.get("/api/v1/activities").await.unwrap();
        assert_eq!((buyers.status, buyers.json()["code"].as_str()), (503, Some("busy")));
        assert!(buyers.header("retry-after").is_some());
        // Somebody keeps a connection, and is not left with the one who waits.
        let mut kept = Api::new(starting.address, None);
        assert_eq!(kept.get("/readyz").await.unwrap().status, 503);
        if redis_first {
            redis.restart().unwrap();
            starting.says(503, "ok", "down").await;
            restart_ledger(&ledger).await;
        } else {
            restart_ledger(&ledger).await;
            starting.says(503, "down", "ok").await;
            redis.restart().unwrap();
        }
        let there = Instant::now();
        starting.says(200, "ok", "ok").await;
        println!("ready {:.1?} after both answered", there.elapsed());
        let ready = async || kept.get("/readyz").await.map(|answer| answer.status).ok();
        until("the kept connection is served, too", ready, |status| *status == Some(200)).await;
        signal(starting.child.id(), "TERM");
        assert_eq!(starting.ends().await.0, Some(0));
    }
    let log = deployment.log();
    for part in ["gate", "ledger"] {
        let said = log.matches(&format!("waiting for the {part}")).count();
        assert_eq!(said, 2, "once in each start: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_waits_for_whichever_master_is_away() {
    const PREFIX: &str = "seckill";
    let cluster = Arc::new(blocking(start_cluster).await);
    let deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", cluster.urls())
        .env("SECKILL_REDIS_PREFIX", PREFIX);
    let shard = |key: &str| cluster.shard_of(&format!("{PREFIX}:{key}")).unwrap();
    let (items, partitions) = (shard("items"), shard("partitions"));
    assert_ne!(items, partitions, "what is there first is known by two masters");
    for away in [items, partitions] {
        let serving = cluster.clone();
        blocking(move || serving.wait_serving()).await;
        let hung = cluster.primary(away).unwrap();
        hung.pause().unwrap();
        let mut starting = Starting::begin(&deployment);
        starting.says(503, "down", "ok").await;
        // It stays so for as long as it takes.
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_secs(6) {
            assert_eq!(starting.child.try_wait().unwrap(), None, "{}", deployment.log());
            assert_eq!(starting.get("/healthz").await.unwrap().status, 200, "it lives");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        hung.resume().unwrap();
        let back = Instant::now();
        starting.says(200, "ok", "ok").await;
        println!("ready {:.1?} after the master was back", back.elapsed());
        signal(starting.child.id(), "TERM");
        assert_eq!(starting.ends().await.0, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_waits_ends_when_told_to_and_when_waiting_cannot_help() {
    let (deployment, redis, ledger) = before_the_engines("told").await;
    let starting = Starting::begin(&deployment);
    starting.says(503, "down", "down").await;
    signal(starting.child.id(), "TERM");
    let (code, took) = starting.ends().await;
    assert_eq!(code, Some(0));
    assert!(took < AT_ONCE, "{took:?}");

    // The ledger is there and refuses; Redis is not there.
    restart_ledger(&ledger).await;
    let url = format!("mysql://nobody:wrong@{}/told", ledger.address());
    let refused = deployment.env("SECKILL_LEDGER_URL", url);
    let (code, took) = Starting::begin(&refused).ends().await;
    println!("a wrong password of the ledger: ended after {took:.1?}");
    assert_eq!(code, Some(2), "{}", refused.log());
    assert!(took < AT_ONCE && refused.log().contains("check ledger.url"), "{}", refused.log());
    // The other way round.
    kill_ledger(&ledger).await;
    redis.restart().unwrap();
    redis.call(&["CONFIG", "SET", "requirepass", "another one"]).unwrap();
    let (code, took) = Starting::begin(&refused).ends().await;
    println!("a wrong password of Redis: ended after {took:.1?}");
    assert_eq!(code, Some(2), "{}", refused.log());
    assert!(took < AT_ONCE && refused.log().contains("check redis.url"), "{}", refused.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_with_tls_to_both_engines_and_none_with_a_certificate_of_a_stranger() {
    let files = Arc::new(Certificates::make().unwrap());
    let options = RedisOptions { tls: Some(files.clone()), ..RedisOptions::default() };
    let redis = Redis::start(options).unwrap();
    let ledger = MariaDb::start(MariaDbOptions::with_tls(&files)).unwrap();
    ledger.create_database("safe").unwrap();
    let user = "CREATE USER shop@127.0.0.1 IDENTIFIED BY 'secret' REQUIRE X509";
    ledger.query(&format!("{user}; GRANT ALL ON safe.* TO shop@127.0.0.1")).unwrap();
    ledger.query("SET GLOBAL require_secure_transport = ON").unwrap();
    let mut deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_REDIS_URL", redis.tls_url())
        .env("SECKILL_LEDGER_URL", format!("mysql://shop:secret@{}/safe", ledger.address()));
    for engine in ["REDIS", "LEDGER"] {
        let name = |what: &str| format!("SECKILL_{engine}_TLS_{what}_FILE");
        deployment = deployment
            .env(&name("CA"), files.cert("ca").display())
            .env(&name("CERT"), files.cert("client").display())
            .env(&name("KEY"), files.key("client").display());
    }
    let mut sale = deployment.open_sale(NewSale::of(20)).await;
    assert_eq!(sale.buy_the_rest("ann", 30).await, 20);
    sale.must_hold().await;
    sale.stop().await;
    for engine in ["redis", "ledger"] {
        let name = format!("SECKILL_{}_TLS_CA_FILE", engine.to_uppercase());
        let good = files.cert("ca").display().to_string();
        let launch = &mut sale.deployment.launches[0];
        launch.env.push((name.clone(), files.cert("stranger").display().to_string()));
        let (code, took) = Starting::begin(&sale.deployment).ends().await;
        assert_eq!(code, Some(2), "{}", sale.deployment.log());
        assert!(took < AT_ONCE, "{took:?}");
        let said = sale.deployment.log();
        let reason = said.lines().rfind(|line| line.starts_with("seckill: ")).unwrap();
        println!("{reason}");
        assert!(
            reason.contains("certificate") && reason.contains(&format!("{engine}.tls_ca_file")),
            "{reason}"
        );
        sale.deployment.launches[0].env.push((name, good));
    }
}

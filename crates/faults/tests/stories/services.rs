//! Each service starts, dies, comes back with what it promised to keep, and leaves nothing behind.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use faults::services::{
    Client, MariaDb, MariaDbOptions, Redis, RedisCluster, RedisOptions, RedisPair, Reply, SHARDS,
    find_program, shared_mariadb, shared_redis, unique_name,
};

fn get(redis: &Redis, key: &str) -> Reply {
    redis.call(&["GET", key]).unwrap()
}

fn text(value: &str) -> Reply {
    Reply::Text(value.into())
}

/// How long something took, for whoever reads the output of the tests.
fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let done = work();
    println!("{what}: {} ms", started.elapsed().as_millis());
    done
}

fn is_alive(pid: u32) -> bool {
    // A process that ended but was not waited for yet still has its folder, as a zombie.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_redis_keeps_its_data_over_kill_and_stop_and_loses_it_with_its_disk() {
    let redis = timed("redis start", || Redis::start(RedisOptions::default()).unwrap());
    let address = redis.address();
    assert_eq!(redis.info("aof_enabled").unwrap(), "1");
    let policy = redis.call(&["CONFIG", "GET", "maxmemory-policy"]).unwrap();
    assert_eq!(policy, Reply::List(vec![text("maxmemory-policy"), text("noeviction")]));

    redis.call(&["SET", "sold", "17"]).unwrap();
    let pid = redis.pid().unwrap();
    timed("redis kill", || redis.kill().unwrap());
    assert!(!is_alive(pid) && !redis.is_running());
    redis.call(&["PING"]).unwrap_err();
    timed("redis restart", || redis.restart().unwrap());
    assert_eq!(get(&redis, "sold"), text("17"));
    assert_eq!(redis.address(), address);

    redis.stop().unwrap();
    redis.restart().unwrap();
    assert_eq!(get(&redis, "sold"), text("17"));

    redis.wipe().unwrap();
    assert_eq!(get(&redis, "sold"), Reply::Nil);
}

#[test]
fn a_paused_redis_answers_only_after_it_is_resumed() {
    let redis = Arc::new(Redis::start(RedisOptions::default()).unwrap());
    redis.pause().unwrap();
    let asking = thread::spawn({
        let redis = Arc::clone(&redis);
        move || redis.call(&["PING"])
    });
    thread::sleep(Duration::from_millis(200));
    assert!(!asking.is_finished());
    redis.resume().unwrap();
    assert_eq!(asking.join().unwrap().unwrap(), text("PONG"));
    // A paused one can be stopped and killed, too.
    redis.pause().unwrap();
    redis.restart().unwrap();
    redis.pause().unwrap();
    redis.kill().unwrap();
}

#[test]
fn a_redis_that_cannot_start_says_why() {
    let extra = vec!["--no-such-setting".into(), "1".into()];
    let error = Redis::start(RedisOptions { extra, ..RedisOptions::default() }).unwrap_err();
    assert!(error.to_string().contains("no-such-setting"), "{error}");
}

#[test]
fn a_missing_program_names_its_package() {
    let error = find_program("no-such-server", "some-package").unwrap_err();
    assert!(error.to_string().contains("apt-get install some-package"), "{error}");
}

#[test]
fn a_replica_is_promoted_and_the_old_primary_comes_back_as_its_replica() {
    let pair = timed("pair start", || RedisPair::start().unwrap());
    pair.primary().call(&["SET", "sold", "17"]).unwrap();
    pair.wait_in_sync().unwrap();
    let old = pair.primary().address();
    let mut client = Client::connect(pair.front().address()).unwrap();
    assert_eq!(client.call(&["GET", "sold"]).unwrap(), text("17"));
    let new = timed("pair promote", || pair.promote().unwrap());
    // The connection is gone with the old primary; a new one finds the new primary.
    client.call(&["GET", "sold"]).unwrap_err();
    assert_eq!(pair.url(), format!("redis://{}", pair.front().address()));
    let mut client = Client::connect(pair.front().address()).unwrap();
    assert_eq!(client.call(&["ROLE"]).unwrap().first().unwrap().text(), "master");
    assert_ne!(new.address(), old);
    assert_eq!(get(new, "sold"), text("17"));
    new.call(&["SET", "sold", "18"]).unwrap();

    timed("pair rejoin", || pair.rejoin().unwrap());
    assert_eq!(pair.replica().address(), old);
    assert_eq!(get(pair.replica(), "sold"), text("18"));
    // The new primary remembers that it is one.
    pair.primary().kill().unwrap();
    pair.primary().restart().unwrap();
    assert_eq!(pair.primary().info("role").unwrap(), "master");
    // And back again.
    pair.wait_in_sync().unwrap();
    assert_eq!(pair.promote().unwrap().address(), old);
    assert_eq!(get(pair.primary(), "sold"), text("18"));
}

#[test]
fn a_cluster_fails_over_and_heals() {
    let cluster = timed("cluster start", || RedisCluster::start().unwrap());
    assert_eq!(cluster.urls().split(',').count(), 2 * SHARDS);
    let shard = cluster.shard_of("{p7}:sold").unwrap();
    let old = cluster.primary(shard).unwrap();
    old.call(&["SET", "{p7}:sold", "17"]).unwrap();
    old.call(&["WAIT", "1", "5000"]).unwrap();

    let took = cluster.kill_primary(shard).unwrap();
    println!("cluster failover: {} ms", took.as_millis());
    let new = cluster.primary(shard).unwrap();
    assert_ne!(new.address(), old.address());
    assert_eq!(get(new, "{p7}:sold"), text("17"));

    timed("cluster heal", || cluster.heal().unwrap());
    assert_eq!(cluster.replica(shard).unwrap().address(), old.address());
    // The healed one can take over in its turn.
    cluster.kill_primary(shard).unwrap();
    assert_eq!(cluster.primary(shard).unwrap().address(), old.address());
    assert_eq!(get(old, "{p7}:sold"), text("17"));
}

#[test]
fn a_mariadb_keeps_what_it_committed() {
    let start = || MariaDb::start(MariaDbOptions::default()).unwrap();
    let mariadb = timed("mariadb start", start);
    let url = mariadb.create_database("shop").unwrap();
    assert_eq!(url, format!("mysql://root@{}/shop", mariadb.address()));
    mariadb.query("CREATE TABLE shop.sold (n INT); INSERT INTO shop.sold VALUES (17)").unwrap();
    let pid = mariadb.pid().unwrap();
    timed("mariadb kill", || mariadb.kill().unwrap());
    assert!(!is_alive(pid) && !mariadb.is_running());
    mariadb.query("SELECT 1").unwrap_err();
    timed("mariadb restart", || mariadb.restart().unwrap());
    assert_eq!(mariadb.query("SELECT n FROM shop.sold").unwrap(), "17\n");
    let durable = "SELECT @@innodb_flush_log_at_trx_commit, @@character_set_server";
    assert_eq!(mariadb.query(durable).unwrap(), "1\tutf8mb4\n");
    timed("mariadb stop", || mariadb.stop().unwrap());
}

#[test]
fn a_paused_mariadb_answers_only_after_it_is_resumed() {
    let mariadb = shared_mariadb();
    mariadb.pause().unwrap();
    let asking = thread::spawn(|| shared_mariadb().query("SELECT 1"));
    thread::sleep(Duration::from_millis(200));
    assert!(!asking.is_finished());
    mariadb.resume().unwrap();
    assert_eq!(asking.join().unwrap().unwrap(), "1\n");
}

#[test]
fn only_this_machine_can_reach_the_engines_and_root_comes_from_loopback_only() {
    let hosts = shared_mariadb().query("SELECT DISTINCT host FROM mysql.user ORDER BY host");
    let hosts = hosts.unwrap();
    assert!(hosts.lines().any(|host| host == "127.0.0.1"), "{hosts}");
    assert!(!hosts.contains('%'), "{hosts}");
    assert!(shared_mariadb().address().ip().is_loopback());
    assert!(shared_redis().address().ip().is_loopback());
}

#[test]
fn the_shared_ones_are_the_same_for_everybody_and_names_are_not() {
    assert_eq!(shared_redis().address(), shared_redis().address());
    let (a, b) = (unique_name("story"), unique_name("story"));
    assert_ne!(a, b);
    assert!(a.len() <= 64 && a.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
    shared_mariadb().create_database(&a).unwrap();
}

#[test]
fn a_dropped_service_is_gone_with_its_folder() {
    let redis = Redis::start(RedisOptions::default()).unwrap();
    let (pid, address) = (redis.pid().unwrap(), redis.address());
    let folder = redis.call(&["CONFIG", "GET", "dir"]).unwrap();
    let Reply::List(folder) = folder else { panic!("{folder:?}") };
    let folder = folder[1].text();
    assert!(Path::new(&folder).is_dir() && folder.contains("target/"));
    drop(redis);
    assert!(!is_alive(pid) && !Path::new(&folder).exists());
    std::net::TcpStream::connect(address).unwrap_err();
}

/// The test process is another run of this test binary, so that it can be killed.
#[test]
fn nothing_outlives_a_test_process_that_is_killed() {
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "services::somebody_elses_tests", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(other.stdout.take().unwrap()).lines();
    let pids: Vec<u32> = lines
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("engine ")?.parse().ok())
        .take(2)
        .collect();
    assert!(pids.len() == 2 && pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
    other.kill().unwrap();
    other.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while pids.iter().any(|pid| is_alive(*pid)) {
        assert!(Instant::now() < deadline, "engines {pids:?} outlived their test process");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Not a test: what `nothing_outlives_a_test_process_that_is_killed` starts and kills.
#[test]
#[ignore = "run by another test"]
fn somebody_elses_tests() {
    println!("\nengine {}", shared_redis().pid().unwrap());
    let paused = Redis::start(RedisOptions::default()).unwrap();
    paused.pause().unwrap();
    println!("engine {}", paused.pid().unwrap());
    // Until the pipe is closed, or the kill comes first.
    let _ = std::io::stdin().lines().next();
}

/// What the lines printed for a developer lead to.
#[test]
fn a_developer_gets_engines_that_end_with_the_command() {
    let mut up = Command::new(env!("CARGO_BIN_EXE_services"))
        .arg("up")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let line = BufReader::new(up.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find(|line| line.starts_with("SECKILL_PROFILE=cluster "))
        .unwrap();
    let word = |name: &str| {
        let word = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.unwrap_or_else(|| panic!("{line}")).to_owned()
    };
    assert!(line.ends_with(" cargo run --release"), "{line}");
    let redis = word("SECKILL_REDIS_URL");
    let redis = redis.strip_prefix("redis://").unwrap().parse().unwrap();
    let mut client = Client::connect(redis).unwrap();
    let fsync = client.call(&["CONFIG", "GET", "appendfsync"]).unwrap();
    assert_eq!(fsync, Reply::List(vec![text("appendfsync"), text("always")]));
    let ledger = word("SECKILL_LEDGER_URL");
    let ledger = ledger.strip_prefix("mysql://root@").unwrap().strip_suffix("/seckill").unwrap();
    let ledger: std::net::SocketAddr = ledger.parse().unwrap();
    std::net::TcpStream::connect(ledger).unwrap();

    up.kill().unwrap();
    up.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while [redis, ledger].iter().any(|engine| std::net::TcpStream::connect(engine).is_ok()) {
        assert!(Instant::now() < deadline, "the engines outlived the command");
        thread::sleep(Duration::from_millis(5));
    }
}

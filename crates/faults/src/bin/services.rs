//! `cargo xtask services up`: the engines of the tests, for a developer's own server.
//!
//! Everything is private and new, and thrown away at the end. The end is Ctrl-C or any other death
//! of this process: the engines cannot outlive it.

use std::{io, process::ExitCode, thread, time::Duration};

use faults::services::{MariaDb, MariaDbOptions, Redis, RedisCluster, RedisOptions};

const DATABASE: &str = "seckill";
const LOOK_AGAIN: Duration = Duration::from_millis(500);
const HELP: &str = "\
cargo xtask services up [--redis-cluster]

  Starts a Redis that is on disk before it answers and a MariaDB with the database `seckill`, prints
  how to use them, and runs until Ctrl-C. Their data is thrown away then.

  --redis-cluster   three primaries with a replica each, instead of one Redis
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let up = match words[..] {
        ["up"] => up(false),
        ["up", "--redis-cluster"] => up(true),
        _ => {
            print!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match up {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("services: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One server or several, whichever the developer asked for.
enum Gate {
    One(Box<Redis>),
    Cluster(RedisCluster),
}

impl Gate {
    fn url(&self) -> String {
        match self {
            Gate::One(redis) => redis.url(),
            Gate::Cluster(cluster) => cluster.urls(),
        }
    }

    fn nodes(&self) -> &[Redis] {
        match self {
            Gate::One(redis) => std::slice::from_ref(redis),
            Gate::Cluster(cluster) => cluster.nodes(),
        }
    }
}

fn up(redis_cluster: bool) -> io::Result<()> {
    let gate = if redis_cluster {
        Gate::Cluster(RedisCluster::start()?)
    } else {
        Gate::One(Box::new(Redis::start(RedisOptions::default())?))
    };
    // As small as in tests would make a developer's own figures worse than they are.
    let options =
        MariaDbOptions { buffer_pool_mb: 256, redo_log_mb: 256, ..MariaDbOptions::default() };
    let ledger = MariaDb::start(options)?;
    let ledger_url = ledger.create_database(DATABASE)?;
    println!("\nRedis and MariaDB are up. In another terminal:\n");
    println!(
        "SECKILL_PROFILE=cluster SECKILL_REDIS_URL={} SECKILL_LEDGER_URL={ledger_url} \
         SECKILL_JWT_SECRET=only-to-play-with-it SECKILL_PAYMENT_SANDBOX=true cargo run --release\n",
        gate.url()
    );
    println!("Or look inside:\n");
    println!("redis-cli -p {}", gate.nodes()[0].address().port());
    println!("mariadb -h 127.0.0.1 -P {} -u root {DATABASE}\n", ledger.address().port());
    println!("Ctrl-C ends them and throws their data away.");
    while ledger.is_running() && gate.nodes().iter().any(Redis::is_running) {
        thread::sleep(LOOK_AGAIN);
    }
    Err(io::Error::other("an engine has ended by itself"))
}

//! What a contributor runs. `cargo xtask test` does all set-up and all checks on a fresh machine;
//! it is also exactly what CI runs. Nothing here needs a crate, so it is built in a second.

mod brokers;
mod clients;
mod engines;
mod npm;
mod programs;
mod python;
mod tidy;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Tests that take longer hang, and whoever waits for them should hear so.
const TESTS_MAX: Duration = Duration::from_secs(75 * 60);

const HELP: &str = "\
cargo xtask <command>

  test          set up what the checks need, then run all of them
                --brokers: and those with real RocketMQ and Kafka, as CI does
                --engines: and those of gate, ledger and cluster on Valkey, Redis 8 and MySQL 9
  setup         only that
  brokers       only the stories with brokers; `brokers rocketmq`, `brokers kafka`: only of one of them
  engines [..]  only the stories on other engines, on all of them or on those that are named
  tidy          only the rules of the repository: who depends on whom, files, links, left-overs
  contract [N]  the API against its document, with N random requests of each kind (default 200)
  torture [N]   the long stories, N times: any one of web, worker, Redis and MariaDB killed at random
  bench         measure a release build on this machine (options are passed on; try --help)
  services up   a private Redis and MariaDB for the cluster profile, until Ctrl-C
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let done = match command.as_str() {
        "test" => test(&rest),
        "setup" => setup(),
        "brokers" => brokers::only(&rest),
        "engines" => engines::test(&rest).map(|said| println!("\nxtask: {said}")),
        "tidy" => tidy::check(),
        "contract" => contract(&rest),
        "torture" => torture(&rest),
        "bench" => bench(&rest),
        "services" => services(&rest),
        _ => {
            print!("{HELP}");
            return if command.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) };
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("\nxtask: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Whatever the checks need beside Rust.
fn setup() -> Result<(), String> {
    programs::ensure(&[programs::BROWSER, programs::ENGINES, programs::DEPLOYMENT].concat())?;
    python::ensure_schemathesis()?;
    clients::ensure()?;
    npm::ensure_browser()
}

fn test(options: &[String]) -> Result<(), String> {
    const KNOWN: [&str; 2] = ["--brokers", "--engines"];
    if let Some(unknown) = options.iter().find(|option| !KNOWN.contains(&option.as_str())) {
        return Err(format!("cargo xtask test knows {}, not {unknown}", KNOWN.join(" and ")));
    }
    let asked = |option: &str| options.iter().any(|given| given == option);
    setup()?;
    let started = Instant::now();
    tidy::check()?;
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    run("node", &["--test", "web/tests/"])?;
    npm::check_types()?;
    // One that fails does not hide the others.
    let all = ["test", "--workspace", "--no-fail-fast"];
    run_within(TESTS_MAX, &cargo_program(), &all, &[])?;
    let mut said = Vec::new();
    if asked("--brokers") {
        said.push(brokers::test()?);
    }
    if asked("--engines") {
        said.push(engines::test(&[])?);
    }
    println!("\nxtask: all checks passed in {} s", started.elapsed().as_secs());
    // Last, so that nobody takes what was not run for something that passed.
    said.iter().for_each(|told_or_skipped| println!("xtask: {told_or_skipped}"));
    Ok(())
}

/// The story of the contract with more requests, and with a seed of its own each time.
fn contract(options: &[String]) -> Result<(), String> {
    programs::ensure(programs::ENGINES)?;
    python::ensure_schemathesis()?;
    let examples = options.first().map_or("200", String::as_str);
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seed = std::env::var("CONTRACT_SEED").unwrap_or(seed.to_string());
    println!("to have it again: CONTRACT_SEED={seed} cargo xtask contract {examples}");
    let story = ["test", "-p", "server", "--test", "stories", "contract::", "--", "--nocapture"];
    run_with(&cargo_program(), &story, &[("CONTRACT_EXAMPLES", examples), ("CONTRACT_SEED", &seed)])
}

/// What takes minutes and is run before a release rather than for every change.
fn torture(options: &[String]) -> Result<(), String> {
    programs::ensure(&[programs::ENGINES, programs::DEPLOYMENT].concat())?;
    clients::ensure_python()?;
    let times = options.first().map_or("1", String::as_str);
    let times: u32 = times.parse().map_err(|_| format!("{times} is not a number of times"))?;
    for _ in 0..times {
        // One after the other: each measures how long a recovery takes.
        let alone = ["--ignored", "--nocapture", "--test-threads=1"];
        let stories = ["test", "-p", "ledger", "-p", "server", "--test", "stories", "--"];
        cargo(&[&stories[..], &alone[..]].concat())?;
    }
    Ok(())
}

fn bench(options: &[String]) -> Result<(), String> {
    programs::ensure(programs::ENGINES)?;
    let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
    // What is measured over HTTP is the real binary.
    let mut build =
        vec!["build", "--release", "--package", "server", "--package", "bench", "--bins"];
    if let Some(at) = options.iter().position(|option| *option == "--brokers") {
        options.remove(at);
        brokers::ensure()?;
        build.extend(["--features", "bench/brokers"]);
    }
    cargo(&build)?;
    // Not with `cargo run`: for one package alone it would choose other features, and build it anew.
    let bench = target().join("release/bench");
    run(&bench.to_string_lossy(), &options)
}

fn services(options: &[String]) -> Result<(), String> {
    programs::ensure(programs::ENGINES)?;
    let mut args = vec!["run", "--quiet", "--package", "faults", "--bin", "services", "--"];
    args.extend(options.iter().map(String::as_str));
    cargo(&args)
}

fn cargo(args: &[&str]) -> Result<(), String> {
    run(&cargo_program(), args)
}

fn cargo_program() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    run_with(program, args, &[])
}

fn run_with(program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    run_within(Duration::MAX, program, args, env)
}

fn run_within(
    limit: Duration,
    program: &str,
    args: &[&str],
    env: &[(&str, &str)],
) -> Result<(), String> {
    let name = if program.ends_with("cargo") { "cargo" } else { program };
    println!("\n$ {name} {}", args.join(" "));
    let started = Instant::now();
    let mut child = Command::new(program)
        .args(args)
        .envs(env.iter().copied())
        .current_dir(root())
        .spawn()
        .map_err(|e| format!("{name} could not be started: {e}"))?;
    let status = loop {
        match child.try_wait().map_err(|e| format!("{name} cannot be waited for: {e}"))? {
            Some(status) => break status,
            None if started.elapsed() > limit => {
                let _ = child.kill();
                let limit_min = limit.as_secs() / 60;
                return Err(format!("{name} still ran after {limit_min} min: the last test hangs"));
            }
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    println!("  … {} s", started.elapsed().as_secs());
    if status.success() { Ok(()) } else { Err(format!("`{name} {}` failed", args.join(" "))) }
}

/// The top of the repository, wherever the command was called.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Where everything is built.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

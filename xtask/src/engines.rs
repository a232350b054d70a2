//! Other engines for the stories: newer ones than the distribution here has, from its newer suites.
//!
//! Nothing of the machine is changed. Packages are looked for with lists of our own, fetched with all that
//! they need, and unpacked under `target/engines`: a program there runs on the loader and the libraries that
//! came with it. Where the packages come from is what the machine's own apt says when it is asked.
//!
//! A machine without apt, or whose mirror cannot be reached, can still run every other check. What it cannot
//! run is counted as skipped, in one line, and never as passed.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    brokers::tests_in, cargo_program, programs, python::remove, root, run_with, target, tidy,
};

/// Names the program in the place of `redis-server`, and in that of `mariadbd`, to the stories.
const GATE: &str = "GATE_SERVER";
const LEDGER: &str = "LEDGER_SERVER";
/// Written last into a folder: which packages are in it.
const NOTE: &str = "packages";
/// Debian signs all its suites with keys in this file, of its package debian-archive-keyring.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An engine: the suite and the package it is in, its program there, and in whose place it is tested.
struct Engine {
    name: &'static str,
    suite: &'static str,
    package: &'static str,
    program: &'static str,
    place: &'static str,
    suites: &'static [Suite],
}

/// Stories that are told on it: the package, which of its stories, and those that it cannot tell.
struct Suite {
    package: &'static str,
    only: &'static [&'static str],
    skip: &'static [&'static str],
}

/// With those of other files that are told in both profiles, in modules `in_cluster`.
const CLUSTER: &[&str] = &["cluster::", "engines::"];

const OF_A_GATE: &[Suite] = &[
    Suite { package: "gate", only: &[], skip: &[] },
    Suite { package: "redis_link", only: &[], skip: &[] },
    Suite { package: "server", only: CLUSTER, skip: &[] },
];

const OF_A_LEDGER: &[Suite] = &[
    // The stand-in for TiDB is made of words that only MariaDB has.
    Suite { package: "ledger", only: &[], skip: &["tidb::"] },
    // Who loads an item anew reads all of its orders.
    Suite { package: "server", only: &["cluster::", "engines::", "rebuild::"], skip: &[] },
];

const ENGINES: [Engine; 4] = [
    Engine {
        name: "valkey-8",
        suite: "trixie",
        package: "valkey-server",
        program: "usr/bin/valkey-server",
        place: GATE,
        suites: OF_A_GATE,
    },
    Engine {
        name: "valkey-9",
        suite: "forky",
        package: "valkey-server",
        program: "usr/bin/valkey-server",
        place: GATE,
        suites: OF_A_GATE,
    },
    Engine {
        name: "redis-8",
        suite: "forky",
        package: "redis-server",
        program: "usr/bin/redis-server",
        place: GATE,
        suites: OF_A_GATE,
    },
    Engine {
        name: "mysql-9",
        suite: "sid",
        package: "mysql-server-core",
        program: "usr/sbin/mysqld",
        place: LEDGER,
        suites: OF_A_LEDGER,
    },
];

/// Fetch what is missing, then tell the stories on each of them. Answers what to say at the end.
pub(crate) fn test(only: &[String]) -> Result<String, String> {
    if let Some(unknown) = only.iter().find(|name| ENGINES.iter().all(|one| one.name != **name)) {
        let known: Vec<&str> = ENGINES.iter().map(|engine| engine.name).collect();
        return Err(format!("{unknown} is no engine; there are {}", known.join(", ")));
    }
    programs::ensure(programs::ENGINES)?;
    let (mut told, mut skipped, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for engine in ENGINES.iter().filter(|one| only.is_empty() || only.iter().any(|n| n == one.name))
    {
        match ensure(engine) {
            Err(reason) => {
                let reason = reason.lines().next().unwrap_or_default();
                let stories = stories_of(engine);
                skipped.push(format!("{} ({stories} stories and more: {reason})", engine.name));
            }
            Ok(engine_there) => match tell(engine, &engine_there.program) {
                Ok(()) => told.push(engine_there.version),
                Err(problem) => failed.push(format!("{}: {problem}", engine_there.version)),
            },
        }
    }
    let list = |all: &[String]| if all.is_empty() { "none".into() } else { all.join(", ") };
    let said = format!(
        "engines: {} passed: {}; {} skipped: {}",
        told.len(),
        list(&told),
        skipped.len(),
        list(&skipped)
    );
    if failed.is_empty() { Ok(said) } else { Err(format!("{}; {said}", failed.join("; "))) }
}

fn tell(engine: &Engine, program: &Path) -> Result<(), String> {
    let program = program.to_string_lossy();
    let mut failed = Vec::new();
    for Suite { package, only, skip } in engine.suites {
        let mut args = vec!["test", "-p", package, "--test", "stories", "--no-fail-fast", "--"];
        args.extend(*only);
        args.extend(skip.iter().flat_map(|name| ["--skip", name]));
        println!("\non {}:", engine.name);
        // One that fails does not hide the others.
        if let Err(problem) = run_with(&cargo_program(), &args, &[(engine.place, &program)]) {
            failed.push(problem);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join(", ")) }
}

/// An engine that can be started.
struct There {
    program: PathBuf,
    /// Its package and version.
    version: String,
}

fn ensure(engine: &Engine) -> Result<There, String> {
    let folder = target().join("engines").join(engine.name);
    let program = folder.join("start").join(engine.package);
    if !folder.join(NOTE).is_file() {
        fill(engine, &folder)?;
    }
    // Where the folder lies may have changed, and who started this before may have ended before it.
    start_script(engine, &folder, &program)?;
    let note = fs::read_to_string(folder.join(NOTE)).map_err(|e| format!("{NOTE}: {e}"))?;
    Ok(There { program, version: version_in(&note, engine.package)? })
}

fn fill(engine: &Engine, folder: &Path) -> Result<(), String> {
    println!("fetching {} of {}", engine.package, engine.suite);
    // Another xtask may be at it too.
    let new = folder.with_file_name(format!("{}.new-{}", engine.name, std::process::id()));
    remove(&new)?;
    let filled = fetch(engine, &new).and_then(|()| {
        remove(folder)?;
        fs::rename(&new, folder)
            .map_err(|e| format!("{} cannot be put in its place: {e}", new.display()))
    });
    remove(&new)?;
    filled
}

/// The package and all it needs, unpacked into `folder/root`.
fn fetch(engine: &Engine, folder: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{} cannot be filled: {e}", folder.display());
    let mirror = mirror()?;
    let apt = folder.join("apt");
    for part in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(apt.join(part)).map_err(failed)?;
    }
    // No package is installed in here, so all that is needed is fetched, to the last library.
    fs::write(apt.join("status"), "").map_err(failed)?;
    let source = format!("deb [signed-by={KEYS}] {mirror} {} main\n", engine.suite);
    fs::write(apt.join("sources.list"), source).map_err(failed)?;
    apt_get(&apt, &["update"])?;
    let download =
        ["--yes", "--no-install-recommends", "--download-only", "install", engine.package];
    apt_get(&apt, &download)?;
    let mut packages: Vec<String> = Vec::new();
    for entry in fs::read_dir(apt.join("cache/archives")).map_err(failed)?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            quietly(Command::new("dpkg-deb").arg("-x").arg(&path).arg(folder.join("root")))?;
            packages.push(entry.file_name().to_string_lossy().replace("%3a", ":"));
        }
    }
    fs::remove_dir_all(&apt).map_err(failed)?;
    packages.sort();
    fs::write(folder.join(NOTE), packages.join("\n")).map_err(failed)
}

/// Where this machine has its packages of Debian from. Nobody else is asked.
fn mirror() -> Result<String, String> {
    let format = ["indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"];
    let output = Command::new("apt-get").args(format).output();
    let output = output.map_err(|e| format!("apt-get could not be started: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    mirror_in(&said).ok_or_else(|| "apt knows no mirror of Debian".into())
}

/// The one with all suites: not that of security updates, and nobody else's.
fn mirror_in(said: &str) -> Option<String> {
    let mirrors = said.lines().filter_map(|line| line.strip_prefix("Debian "));
    let whole = |uri: &&str| uri.trim_end_matches('/').ends_with("/debian");
    mirrors.map(str::trim).find(whole).map(str::to_owned)
}

fn apt_get(apt: &Path, args: &[&str]) -> Result<(), String> {
    let setting = |name: &str, value: &Path| format!("-oDir::{name}={}", value.display());
    let nothing = Path::new("/dev/null");
    let mut command = Command::new("apt-get");
    command.args([
        setting("Etc::main", nothing),
        setting("Etc::sourcelist", &apt.join("sources.list")),
        setting("Etc::sourceparts", nothing),
        setting("State", apt),
        setting("State::lists", &apt.join("lists")),
        setting("State::status", &apt.join("status")),
        setting("Cache", &apt.join("cache")),
    ]);
    // Whoever runs this may be anybody: nothing of the machine is locked, and no other user takes part.
    command.args([
        "-q",
        "-oDebug::NoLocking=true",
        "-oAPT::Sandbox::User=",
        "-oAcquire::Retries=1",
    ]);
    quietly(command.args(args))
}

/// Runs it; what it said is of interest only if it failed.
fn quietly(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{name} could not be started: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let reason = words.lines().find(|line| line.starts_with("E:")).unwrap_or("it failed");
    Err(format!("{name}: {reason}"))
}

/// A script that starts the program on what came with it. It becomes the program: a signal to it is one to
/// that.
fn start_script(engine: &Engine, folder: &Path, script: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{} cannot be written: {e}", script.display());
    let root = folder.join("root");
    let libraries = library_folder(&root)?;
    let loader = root.join("usr/lib64/ld-linux-x86-64.so.2");
    let loader = if loader.exists() { loader } else { libraries.join("ld-linux-aarch64.so.1") };
    let more = match engine.place {
        LEDGER => format!(" --basedir='{}'", root.join("usr").display()),
        _ => String::new(),
    };
    let text = format!(
        "#!/bin/sh\n# written by cargo xtask test --engines\n\
         exec '{}' --library-path '{}' '{}' \"$@\"{more}\n",
        loader.display(),
        libraries.display(),
        root.join(engine.program).display()
    );
    fs::create_dir_all(script.parent().unwrap_or(folder)).map_err(failed)?;
    fs::write(script, text).map_err(failed)?;
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).map_err(failed)
}

/// Named after the kind of machine.
fn library_folder(root: &Path) -> Result<PathBuf, String> {
    let parts = fs::read_dir(root.join("usr/lib")).map_err(|e| format!("no libraries: {e}"))?;
    let is_it = |path: &PathBuf| path.to_string_lossy().ends_with("-linux-gnu");
    parts.flatten().map(|part| part.path()).find(is_it).ok_or_else(|| "no libraries".into())
}

/// `valkey-server_9.1.2-1_amd64.deb`, among others.
fn version_in(note: &str, package: &str) -> Result<String, String> {
    let file = note.lines().find_map(|line| line.strip_prefix(package)?.strip_prefix('_'));
    let version = file.and_then(|rest| rest.split('_').next());
    let version = version.ok_or_else(|| format!("{package} is not among its packages"))?;
    Ok(format!("{package} {version}"))
}

/// Stories that could not be told, counted without building them: those of both profiles are not among them.
fn stories_of(engine: &Engine) -> usize {
    let of_suite = |suite: &Suite| {
        let folder = root().join("crates").join(suite.package).join("tests/stories");
        let mut files = Vec::new();
        tidy::walk(&folder, &mut files);
        let told = |file: &&PathBuf| {
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let named =
                |parts: &[&str]| parts.iter().any(|part| part.trim_end_matches(':') == name);
            (suite.only.is_empty() || named(suite.only)) && !named(suite.skip)
        };
        let read = |file: &PathBuf| fs::read_to_string(file).unwrap_or_default();
        files.iter().filter(told).map(|file| tests_in(&read(file))).sum::<usize>()
    };
    engine.suites.iter().map(of_suite).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_come_from_where_the_machine_has_its_own() {
        let said = "Other http://packages.invalid/apt/\nDebian http://mirror.invalid/debian-security/\n\
                    Debian http://mirror.invalid/debian/\n";
        assert_eq!(mirror_in(said).as_deref(), Some("http://mirror.invalid/debian/"));
        assert_eq!(mirror_in("Ubuntu http://mirror.invalid/ubuntu/\n"), None);
        assert_eq!(mirror_in(""), None);
    }

    #[test]
    fn an_engine_is_named_with_its_version() {
        let note = "libc6_2.43-7_amd64.deb\nvalkey-server_9.1.2-1_amd64.deb\nvalkey-tools_9.1.2-1_amd64.deb";
        assert_eq!(version_in(note, "valkey-server").as_deref(), Ok("valkey-server 9.1.2-1"));
        assert!(version_in(note, "mysql-server-core").is_err());
    }

    #[test]
    fn every_engine_has_stories() {
        for engine in &ENGINES {
            assert!(stories_of(engine) > 20, "{}", engine.name);
        }
    }
}

//! Message brokers for the tests: Apache RocketMQ and Apache Kafka, as they come from Maven Central.
//!
//! Each is a folder of jars under `target/brokers`, named by version. It is filled beside its place and moved
//! there when it is whole, with a note of what was asked for, so that a download that was cut off is never
//! taken for one, and other versions are fetched anew. Maven knows where its registry is; nothing here does.
//!
//! A machine without Java, Maven or the registry can still run every other check. What it cannot run is
//! counted as skipped, in one line, and never as passed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    cargo, programs,
    programs::Needed,
    python::{self},
    root, target,
};

const JAVA: &[Needed] = &[("java", "openjdk-17-jre-headless"), ("mvn", "maven")];
/// The oldest that Kafka's broker starts on.
const JAVA_VERSION_MIN: u32 = 17;
/// Pinned, so that today's copy is tomorrow's.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";
/// What a folder was filled with. Written last.
const NOTE: &str = "pom.xml";

/// A broker: the name of its folder, which `faults` knows too, and what it is made of.
type Broker = (&'static str, &'static [(&'static str, &'static str, &'static str)]);

const BROKERS: [Broker; 2] = [
    (
        "rocketmq-5.3.3",
        &[
            ("org.apache.rocketmq", "rocketmq-namesrv", "5.3.3"),
            ("org.apache.rocketmq", "rocketmq-broker", "5.3.3"),
        ],
    ),
    (
        "kafka-4.1.0",
        &[
            ("org.apache.kafka", "kafka_2.13", "4.1.0"),
            // Where its log goes; without one it says nothing at all.
            ("org.slf4j", "slf4j-simple", "1.7.36"),
        ],
    ),
];

/// What is run with brokers: a package, its features, test targets, and where the stories of each are.
struct Suite {
    package: &'static str,
    features: &'static str,
    targets: &'static [Target],
}

/// A test target: what `cargo xtask brokers` calls it, its name, and where its stories are; some are told
/// by several.
#[derive(Clone, Copy)]
struct Target {
    name: &'static str,
    tests: &'static str,
    stories: &'static [&'static str],
}

const SUITES: [Suite; 2] = [
    Suite {
        package: "faults",
        features: "brokers",
        targets: &[Target {
            name: "processes",
            tests: "brokers",
            stories: &["crates/faults/tests/brokers"],
        }],
    },
    // With the clients of both, so that the server is built once.
    Suite {
        package: "server",
        features: "kafka,rocketmq",
        targets: &[
            Target { name: "kafka", tests: "brokers", stories: &["crates/server/tests/brokers"] },
            Target {
                name: "rocketmq",
                tests: "rocketmq",
                stories: &["crates/server/tests/brokers", "crates/server/tests/rocketmq"],
            },
        ],
    },
];
/// Stories of brokers wait more than they work: for a process that was frozen to be missed, for a broker
/// that was killed to be back.
const STORIES_AT_ONCE: &str = "--test-threads=4";

/// Fetch what is missing, then tell every story of the brokers. Answers what to say at the end.
pub(crate) fn test() -> Result<String, String> {
    let stories: usize = SUITES.iter().flat_map(|suite| suite.targets).map(Target::count).sum();
    if let Err(missing) = ensure() {
        let missing = missing.lines().next().unwrap_or_default();
        return Ok(format!("{stories} skipped: the stories with brokers, because {missing}"));
    }
    SUITES.iter().try_for_each(|suite| suite.tell(suite.targets))?;
    Ok(format!("{stories} stories with brokers were told"))
}

/// `cargo xtask brokers` with this option.
pub(crate) fn only(options: &[String]) -> Result<(), String> {
    let said = match options {
        [] => test()?,
        [option] => {
            let one = |suite: &Suite| {
                let target = suite.targets.iter().find(|target| target.name == option);
                target.map(|target| suite.tell(&[*target]))
            };
            ensure()?;
            SUITES.iter().find_map(one).unwrap_or_else(|| Err(unknown(option)))?;
            format!("the stories of {option} were told")
        }
        _ => return Err(unknown(&options.join(" "))),
    };
    println!("\nxtask: {said}");
    Ok(())
}

fn unknown(option: &str) -> String {
    format!("cargo xtask brokers knows processes, kafka and rocketmq, not {option}")
}

impl Suite {
    fn tell(&self, targets: &[Target]) -> Result<(), String> {
        let mut with = vec!["-p", self.package, "--features", self.features];
        with.extend(targets.iter().flat_map(|target| ["--test", target.tests]));
        cargo(&[&["clippy"], &with[..], &["--", "-D", "warnings"]].concat())?;
        cargo(&[&["test"], &with[..], &["--no-fail-fast", "--", STORIES_AT_ONCE]].concat())
    }
}

impl Target {
    /// Its stories, counted without building them.
    fn count(&self) -> usize {
        self.stories.iter().map(|folder| stories_in(&root().join(folder))).sum()
    }
}

/// Java, and the jars of every broker.
pub(crate) fn ensure() -> Result<(), String> {
    programs::ensure(JAVA)?;
    let version = java_version()?;
    if version < JAVA_VERSION_MIN {
        return Err(format!("Java is {version}, and {JAVA_VERSION_MIN} is needed"));
    }
    BROKERS.iter().try_for_each(fetch)
}

fn fetch((name, parts): &Broker) -> Result<(), String> {
    let folder = target().join("brokers").join(name);
    let pom = pom(parts);
    if is_whole(&folder, &pom) {
        return Ok(());
    }
    println!("fetching {name}");
    // Another xtask may be at it too.
    let new = folder.with_file_name(format!("{name}.new-{}", std::process::id()));
    let filled = fill(&new, &pom).and_then(|()| {
        python::remove(&folder)?;
        fs::rename(&new, &folder)
            .map_err(|e| format!("{} cannot be put in its place: {e}", new.display()))
    });
    if filled.is_err() {
        python::remove(&new)?;
    }
    filled
}

fn is_whole(folder: &Path, pom: &str) -> bool {
    fs::read_to_string(folder.join(NOTE)).is_ok_and(|noted| noted == pom)
}

fn fill(folder: &Path, pom: &str) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{} cannot be filled: {e}", folder.display());
    python::remove(folder)?;
    fs::create_dir_all(folder).map_err(failed)?;
    let asked: PathBuf = folder.join("asked.xml");
    fs::write(&asked, pom).map_err(failed)?;
    let output = Command::new("mvn")
        .args(["--quiet", "--batch-mode", "--file"])
        .arg(&asked)
        .arg(COPY)
        .arg(format!("-DoutputDirectory={}", folder.display()))
        .arg("-DincludeScope=runtime")
        .output()
        .map_err(|e| format!("mvn could not be started: {e}"))?;
    if !output.status.success() {
        let words = [output.stdout, output.stderr].concat();
        let words = String::from_utf8_lossy(&words).into_owned();
        let reason = words.lines().find(|line| line.contains("ERROR")).unwrap_or("it failed");
        return Err(format!("Maven did not fetch the brokers: {}", reason.trim()));
    }
    fs::rename(asked, folder.join(NOTE)).map_err(failed)
}

fn pom(parts: &[(&str, &str, &str)]) -> String {
    let parts: String = parts
        .iter()
        .map(|(group, name, version)| {
            format!(
                "    <dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>\
                 <version>{version}</version></dependency>\n"
            )
        })
        .collect();
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\">\n  <modelVersion>4.0.0</modelVersion>\n  \
         <groupId>seckill</groupId><artifactId>brokers</artifactId><version>1</version>\n  \
         <packaging>pom</packaging>\n  <dependencies>\n{parts}  </dependencies>\n</project>\n"
    )
}

fn java_version() -> Result<u32, String> {
    let failed = |e: std::io::Error| format!("java could not be started: {e}");
    let output = Command::new("java").arg("-version").output().map_err(failed)?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    version_in(&words).ok_or_else(|| "java does not say its version".into())
}

/// `openjdk version "17.0.15" 2025-04-15`, and before Java 9 `"1.8.0_302"`.
fn version_in(words: &str) -> Option<u32> {
    let mut numbers = words.split('"').nth(1)?.split(['.', '-', '+']).map(str::parse);
    match numbers.next()? {
        Ok(1) => numbers.next()?.ok(),
        first => first.ok(),
    }
}

fn stories_in(folder: &Path) -> usize {
    let mut files = Vec::new();
    crate::tidy::walk(folder, &mut files);
    let read = |file: &PathBuf| fs::read_to_string(file).unwrap_or_default();
    files.iter().map(|file| tests_in(&read(file))).sum()
}

pub(crate) fn tests_in(code: &str) -> usize {
    let starts = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    code.lines().map(str::trim).filter(starts).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn javas_of_all_ages_say_their_version() {
        assert_eq!(version_in("openjdk version \"17.0.15\" 2025-04-15\nmore"), Some(17));
        assert_eq!(version_in("java version \"1.8.0_302\""), Some(8));
        assert_eq!(version_in("openjdk version \"25-ea\" 2025-09-16"), Some(25));
        assert_eq!(version_in("no such thing"), None);
    }

    #[test]
    fn a_folder_counts_as_whole_only_with_the_note_of_what_is_wanted_now() {
        let folder = std::env::temp_dir().join(format!("brokers-{}", std::process::id()));
        let wanted = pom(&[("group", "name", "1")]);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("name-1.jar"), "half of it").unwrap();
        assert!(!is_whole(&folder, &wanted), "it was cut off");
        fs::write(folder.join(NOTE), &wanted).unwrap();
        assert!(is_whole(&folder, &wanted));
        assert!(!is_whole(&folder, &pom(&[("group", "name", "2")])), "it is of another version");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn stories_that_cannot_be_told_are_counted() {
        let code =
            "#[test]\nfn a() {}\n  #[tokio::test(flavor = \"x\")]\nasync fn b() {}\n// #[test]\n";
        assert_eq!(tests_in(code), 2);
        for target in SUITES.iter().flat_map(|suite| suite.targets) {
            assert!(target.count() > 0, "{} has no stories", target.name);
        }
    }
}

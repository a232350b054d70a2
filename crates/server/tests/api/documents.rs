//! Documents name commands, settings, routes and codes. What they name must exist, or an operator at
//! midnight types what nobody understands.

use std::{collections::BTreeSet, fs, path::PathBuf};

use clap::error::ErrorKind;
use config::DEFAULT_TOML;
use server::{api, cli, problem::Code};

/// Names of settings that are not made of a section and a key.
const SHORT_NAMES: [&str; 2] = ["SECKILL_ADMIN_TOKEN", "SECKILL_JWT_SECRET"];
/// Names that begin like a setting: files by how they end, the actions of the audit, and events.
const FILE_ENDS: [&str; 5] = ["conf", "db", "json", "rs", "sql"];
const DEEDS: [&str; 2] = ["orders.export", "orders.search"];
const EVENTS: [&str; 2] = ["payment.close_requested", "payment.refund_requested"];
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "DELETE", "HEAD"];

fn top() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Every page that people read, by its name.
fn documents() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in ["", "docs", "deploy"] {
        for entry in fs::read_dir(top().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "md") {
                let name = format!("{folder}/{}", path.file_name().unwrap().to_string_lossy());
                files.push((name, fs::read_to_string(path).unwrap()));
            }
        }
    }
    assert!(files.len() >= 9, "{files:?}");
    files
}

/// What is set as code: the lines of blocks, those that end in a backslash joined with the next, and
/// the pieces between single backticks.
fn code(text: &str) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    let mut block = false;
    let mut goes_on = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            block = !block;
        } else if block {
            let line = line.trim();
            match pieces.last_mut() {
                Some(last) if goes_on => last.push_str(line),
                _ => pieces.push(line.to_owned()),
            }
            goes_on = line.ends_with('\\');
            if goes_on && let Some(last) = pieces.last_mut() {
                last.pop();
            }
        } else {
            pieces.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    pieces
}

/// The words of a command of ours: without the settings before it, the remark after it, where its output
/// goes, and what a table says about it two spaces further on.
fn command_of(piece: &str) -> Option<Vec<String>> {
    let ends = [" #", " > ", " | "].iter().filter_map(|end| piece.find(end)).min();
    let command = &piece[..ends.unwrap_or(piece.len())];
    let start = command.find("seckill").filter(|at| {
        let before = &command[..*at];
        before.is_empty() || before.split_whitespace().all(|word| word.contains('='))
    })?;
    let command = command[start..].split("  ").next().unwrap_or_default();
    let words = words(command);
    (words[0] == "seckill").then_some(words)
}

/// As a shell would: what is quoted is one word.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in command.chars().chain([' ']) {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c.is_whitespace() => {
                words.extend(Some(std::mem::take(&mut word)).filter(|w| !w.is_empty()))
            }
            _ => word.push(c),
        }
    }
    words
}

#[test]
fn commands_in_the_documents_are_commands_of_ours() {
    let mut commands = 0;
    for (file, text) in documents() {
        for piece in code(&text) {
            let Some(words) = command_of(&piece) else { continue };
            commands += 1;
            // Values are examples or stand for something; names must be right.
            if let Err(error) = cli::command().try_get_matches_from(&words) {
                let wrong = [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand];
                assert!(!wrong.contains(&error.kind()), "{file}: {piece}\n{error}");
            }
        }
    }
    assert!(commands > 30, "{commands}");
}

/// Every setting as `section.key`.
fn settings() -> BTreeSet<String> {
    let mut section = String::new();
    let mut names = BTreeSet::new();
    for line in DEFAULT_TOML.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = format!("{}.", name.trim_end_matches(']'));
        } else if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            names.insert(format!("{section}{key}"));
        }
    }
    names
}

#[test]
fn settings_in_the_documents_exist() {
    let settings = settings();
    let sections: BTreeSet<&str> =
        settings.iter().filter_map(|name| name.split_once('.')).map(|(s, _)| s).collect();
    let in_environment = |name: &str| format!("SECKILL_{}", name.replace('.', "_").to_uppercase());
    let variables: BTreeSet<String> = settings
        .iter()
        .map(|name| in_environment(name))
        .chain(SHORT_NAMES.map(String::from))
        .collect();
    let mut found = 0;
    for (file, text) in documents() {
        for piece in code(&text) {
            let name = piece.split([' ', '=']).next().unwrap_or_default();
            if let Some((section, key)) = name.split_once('.')
                && sections.contains(section)
                && !FILE_ENDS.contains(&key)
                && !DEEDS.contains(&name)
                && !EVENTS.contains(&name)
                && key.bytes().all(|b| b.is_ascii_lowercase() || b"_.0123456789".contains(&b))
            {
                found += 1;
                assert!(settings.contains(name), "{file}: {piece}");
            }
        }
        let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        for variable in text.split(|c| !is_name(c)).filter(|word| word.starts_with("SECKILL_")) {
            // `SECKILL_…` stands for any of them.
            if variable != "SECKILL_" {
                found += 1;
                assert!(variables.contains(variable), "{file}: {variable}");
            }
        }
    }
    assert!(found > 30, "{found}");
}

/// Does the document have this path? `…` stands for anything, and an example for what it is of.
fn is_route(paths: &[String], named: &str) -> bool {
    let full =
        if named.starts_with("/api/") { named.to_owned() } else { format!("/api/v1{named}") };
    let fits = |route: &str, named: &str| {
        let (route, named): (Vec<_>, Vec<_>) =
            (route.split('/').collect(), named.split('/').collect());
        let same = |(route, named): (&&str, &&str)| {
            route.starts_with('{') || route == named || *named == "…"
        };
        let open = named.last() == Some(&"…");
        (route.len() == named.len() || (open && route.len() > named.len()))
            && route.iter().zip(&named).all(same)
    };
    paths.iter().any(|route| fits(route, &full) || fits(route, named))
}

#[test]
fn routes_in_the_documents_and_in_the_proxy_are_routes_of_ours() {
    let paths: Vec<String> = api::document().paths.paths.keys().cloned().collect();
    let mut routes = 0;
    for (file, text) in documents() {
        for piece in code(&text) {
            let words: Vec<&str> = piece.split([' ', '"']).collect();
            for (n, word) in words.iter().enumerate() {
                let asked = n > 0 && METHODS.contains(&words[n - 1]) && word.starts_with('/');
                let Some(at) = word.find("/api/v1/").or(asked.then_some(0)) else { continue };
                let path = word[at..].split(['?', ',', ';', '\'']).next().unwrap_or_default();
                routes += 1;
                assert!(is_route(&paths, path.trim_end_matches('/')), "{file}: {piece}");
            }
        }
    }
    assert!(routes > 15, "{routes}");

    let proxy = fs::read_to_string(top().join("deploy/nginx/seckill.conf")).unwrap();
    let mut locations = 0;
    for line in proxy.lines().filter(|line| line.trim_start().starts_with("location")) {
        for path in line.split([' ', '^', '$']).flat_map(alternatives) {
            let path = path.replace("[0-9]+", "1").replace("[a-z]+", "sandbox");
            if path.starts_with("/api/v1/") && path != "/api/v1/admin/" {
                locations += 1;
                assert!(is_route(&paths, &path), "deploy/nginx: {line}: {path}");
            }
        }
    }
    assert!(locations >= 6, "{locations}");
}

/// `/(a|b)/c` is `/a/c` and `/b/c`.
fn alternatives(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('(') else {
        return vec![pattern.trim_end_matches('$').to_owned()];
    };
    let (inside, after) = rest.split_once(')').unwrap_or((rest, ""));
    inside
        .split('|')
        .flat_map(|one| alternatives(&format!("{before}{}{after}", one.trim_end_matches('$'))))
        .collect()
}

/// `409 sold_out`, in one piece of code or as ``409 `sold_out` ``.
#[test]
fn codes_in_the_documents_have_their_status() {
    let mut codes = 0;
    for (file, text) in documents() {
        let plain = text.replace('`', "");
        let words: Vec<&str> = plain.split_whitespace().collect();
        for pair in words.windows(2) {
            let word = pair[1].trim_end_matches(|c: char| !c.is_ascii_alphabetic());
            let Ok(status @ 400..=599) = pair[0].parse::<u16>() else { continue };
            let is_code =
                word.len() > 3 && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            let Some(code) =
                Code::ALL.iter().find(|code| code.as_str() == word).filter(|_| is_code)
            else {
                assert!(!word.contains('_'), "{file}: {status} {word}: no such code");
                continue;
            };
            codes += 1;
            assert_eq!(code.status().as_u16(), status, "{file}: {status} {word}");
        }
    }
    assert!(codes > 12, "{codes}");
}

/// All that our crates say in Rust.
fn sources(folder: PathBuf, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(path, all);
        } else if path.extension().is_some_and(|end| end == "rs") {
            all.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn attacks_of_the_safety_page_are_tests_of_ours() {
    let safety = fs::read_to_string(top().join("docs/SAFETY.md")).unwrap();
    let table = safety.split("## Attacks").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| API")).collect();
    assert_eq!(rows.len(), 10, "every row of the ten");
    let mut all = String::new();
    sources(top().join("crates"), &mut all);
    for row in rows {
        let tests = row.split('|').nth(3).unwrap();
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "{row}");
        for name in named {
            assert!(all.contains(&format!("fn {name}(")), "there is no test {name}");
        }
    }
}

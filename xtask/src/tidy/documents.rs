//! Documents: their links lead somewhere, and the commands they tell people to run and the tests that vouch
//! for what they say exist.

use std::{collections::HashSet, fs, path::Path};

use super::Breach;
use crate::HELP;

/// Everything that is wrong with one document. `functions`: the names of all there are in Rust.
pub(super) fn check(file: &Path, text: &str, functions: &HashSet<String>) -> Vec<Breach> {
    let mut found = links(file, text);
    found.extend(tasks(text));
    found.extend(tests_named(text, functions));
    found
}

/// The names of the functions of a Rust file.
pub(super) fn functions_of(text: &str) -> impl Iterator<Item = String> + '_ {
    text.lines().filter_map(|line| {
        let (before, rest) = line.split_once("fn ")?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let starts = before.is_empty() || before.ends_with(' ');
        let name = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
        (starts && !name.is_empty()).then(|| name.to_owned())
    })
}

/// In a table whose last column is headed *test* or *tests*, all names there are names of functions.
fn tests_named(text: &str, functions: &HashSet<String>) -> Vec<Breach> {
    let (mut found, mut in_table) = (Vec::new(), false);
    for (n, line) in text.lines().enumerate() {
        let Some(last) = line.strip_suffix('|').and_then(|row| row.rsplit('|').next()) else {
            in_table = false;
            continue;
        };
        in_table |= ["test", "tests"].contains(&last.trim());
        if !in_table {
            continue;
        }
        for name in last.split('`').skip(1).step_by(2) {
            let function = name.rsplit("::").next().unwrap_or(name);
            if !functions.contains(function) {
                found.push((n + 1, format!("there is no test {name}")));
            }
        }
    }
    found
}

/// What a document tells people to run with `cargo xtask` must be one of our commands.
fn tasks(text: &str) -> Vec<Breach> {
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        for rest in line.split("cargo xtask ").skip(1) {
            let is_letter = |c: char| c.is_ascii_lowercase();
            let command = &rest[..rest.find(|c| !is_letter(c)).unwrap_or(rest.len())];
            let known = HELP.lines().any(|help| help.split_whitespace().next() == Some(command));
            if !command.is_empty() && !known {
                found.push((n + 1, format!("there is no cargo xtask {command}")));
            }
        }
    }
    found
}

/// The anchor of a heading: small letters and digits, hyphens for blanks, nothing else.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

/// Relative links of a document must lead somewhere, those within a document to a heading.
fn links(file: &Path, text: &str) -> Vec<Breach> {
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        for rest in line.split("](").skip(1) {
            let Some(target) = rest.split(')').next() else { continue };
            let (target, place) = target.split_once('#').unwrap_or((target, ""));
            let outside = target.contains("://") || target.starts_with("mailto:");
            if outside || target.starts_with('/') {
                continue;
            }
            let folder = file.parent().unwrap_or(Path::new("."));
            let path = if target.is_empty() { file.to_owned() } else { folder.join(target) };
            if !path.exists() {
                found.push((n + 1, format!("the link to {target} leads nowhere")));
            } else if !place.is_empty() && !has_heading(&path, place) {
                found.push((n + 1, format!("{} has no heading #{place}", path.display())));
            }
        }
    }
    found
}

fn has_heading(document: &Path, place: &str) -> bool {
    let text = fs::read_to_string(document).unwrap_or_default();
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| anchor(line.trim_start_matches('#')) == place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_made_as_readers_of_markdown_make_them() {
        assert_eq!(anchor(" On a cluster"), "on-a-cluster");
        assert_eq!(anchor(" The shop's JWT"), "the-shops-jwt");
        assert_eq!(anchor(" Backup, restore and upgrade"), "backup-restore-and-upgrade");
    }

    #[test]
    fn a_test_that_does_not_exist_is_a_breach() {
        let rust = "    async fn one_is(profile: Profile) {\nfn two_are<T>() {\nlet fn_three = 3;";
        let functions: HashSet<String> = functions_of(rust).collect();
        assert_eq!(functions.len(), 2, "{functions:?}");
        let text = "| what | test |\n|---|---|\n| `x` | `one_is`, `mod::two_are` |\n\
                    | y | `gone_is` (slow) |\n\n| what | how |\n|---|---|\n| x | `gone_is` |";
        let found = tests_named(text, &functions);
        assert_eq!(found, [(4, "there is no test gone_is".to_owned())]);
    }

    #[test]
    fn a_task_that_does_not_exist_is_a_breach() {
        let found = tasks("run `cargo xtask test`, then\ncargo xtask frobnicate");
        assert_eq!(found, [(2, "there is no cargo xtask frobnicate".to_owned())]);
    }
}

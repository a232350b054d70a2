//! The rules of the repository that no compiler checks.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{HELP, root};

/// Find every breach, so that one run shows all of them.
pub(crate) fn check() -> Result<(), String> {
    let root = root();
    let mut files = Vec::new();
    walk(&root, &mut files);
    let mut breaches = Vec::new();
    for file in &files {
        let Ok(text) = fs::read_to_string(file) else { continue };
        let name = file.strip_prefix(&root).unwrap_or(file).display().to_string();
        let mut breach = |line: usize, rule: &str| breaches.push(format!("{name}:{line}: {rule}"));
        match file.extension().and_then(|e| e.to_str()) {
            Some("rs") => rust(&name, &text, &mut breach),
            Some("md") => {
                links(file, &text, &mut breach);
                tasks(&text, &mut breach);
            }
            _ => {}
        }
        let shown = [
            "rs", "md", "toml", "c", "js", "css", "html", "sql", "lua", "conf", "cnf", "env",
            "yaml", "service",
        ];
        if file.extension().and_then(|e| e.to_str()).is_some_and(|e| shown.contains(&e)) {
            for (n, line) in text.lines().enumerate() {
                if line.ends_with([' ', '\t']) {
                    breach(n + 1, "white space at the end of the line");
                }
            }
        }
    }
    println!("tidy: {} files, {} breaches", files.len(), breaches.len());
    if breaches.is_empty() { Ok(()) } else { Err(format!("\n{}", breaches.join("\n"))) }
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let skip = ["target", "data", "node_modules"].iter().any(|skip| name == *skip);
        if skip || name.to_string_lossy().starts_with('.') {
            continue;
        }
        if path.is_dir() {
            walk(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn rust(name: &str, text: &str, breach: &mut impl FnMut(usize, &str)) {
    if !text.starts_with("//!") {
        breach(1, "a file opens with a `//!` that says why it exists");
    }
    // This file names what it looks for.
    if name.ends_with("tidy.rs") {
        return;
    }
    for (n, line) in text.lines().enumerate() {
        for left_over in ["TODO", "FIXME", "dbg!("] {
            if line.contains(left_over) {
                breach(n + 1, "a left-over: do it, or write an issue");
            }
        }
    }
}

/// What a document tells people to run with `cargo xtask` must be one of our commands.
fn tasks(text: &str, breach: &mut impl FnMut(usize, &str)) {
    for (n, line) in text.lines().enumerate() {
        for rest in line.split("cargo xtask ").skip(1) {
            let is_letter = |c: char| c.is_ascii_lowercase();
            let command = &rest[..rest.find(|c| !is_letter(c)).unwrap_or(rest.len())];
            let known = HELP.lines().any(|help| help.split_whitespace().next() == Some(command));
            if !command.is_empty() && !known {
                breach(n + 1, &format!("there is no cargo xtask {command}"));
            }
        }
    }
}

/// The anchor of a heading: small letters and digits, hyphens for blanks, nothing else.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

/// Relative links of a document must lead somewhere, those within a document to a heading.
fn links(file: &Path, text: &str, breach: &mut impl FnMut(usize, &str)) {
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
                breach(n + 1, &format!("the link to {target} leads nowhere"));
            } else if !place.is_empty() && !has_heading(&path, place) {
                breach(n + 1, &format!("{} has no heading #{place}", path.display()));
            }
        }
    }
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
    fn a_task_that_does_not_exist_is_a_breach() {
        let mut found = Vec::new();
        tasks("run `cargo xtask test`, then\ncargo xtask frobnicate", &mut |line, rule| {
            found.push((line, rule.to_owned()));
        });
        assert_eq!(found, [(2, "there is no cargo xtask frobnicate".to_owned())]);
    }
}

//! The rules of the repository that no compiler checks.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::root;

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
            Some("md") => links(file, &text, &mut breach),
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

/// Relative links of a document must lead somewhere.
fn links(file: &Path, text: &str, breach: &mut impl FnMut(usize, &str)) {
    for (n, line) in text.lines().enumerate() {
        for rest in line.split("](").skip(1) {
            let Some(target) = rest.split(')').next() else { continue };
            let target = target.split('#').next().unwrap_or_default();
            let outside = target.contains("://") || target.starts_with("mailto:");
            if target.is_empty() || outside || target.starts_with('/') {
                continue;
            }
            let folder = file.parent().unwrap_or(Path::new("."));
            if !folder.join(target).exists() {
                breach(n + 1, &format!("the link to {target} leads nowhere"));
            }
        }
    }
}

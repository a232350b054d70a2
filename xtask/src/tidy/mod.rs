//! The rules of the repository that no compiler checks: `cargo xtask tidy`.
//!
//! `files` looks at each file by itself, `documents` at links and commands in documents, `crates` at who
//! depends on whom. Every rule is a function from text to breaches, with a test beside it.

mod crates;
mod documents;
mod files;

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use crate::root;

/// A line, counted from 1, and what is wrong there.
type Breach = (usize, String);

/// Find every breach, so that one run shows all of them.
pub(crate) fn check() -> Result<(), String> {
    let root = root();
    let mut files = Vec::new();
    walk(&root, &mut files);
    files.sort();
    let mut breaches = crates::check(&root);
    let read = |file: &PathBuf| Some((file.clone(), fs::read_to_string(file).ok()?));
    let texts: Vec<(PathBuf, String)> = files.iter().filter_map(read).collect();
    let rust = texts.iter().filter(|(file, _)| file.extension().is_some_and(|kind| kind == "rs"));
    let functions: HashSet<String> =
        rust.flat_map(|(_, text)| documents::functions_of(text)).collect();
    for (file, text) in &texts {
        let name = file.strip_prefix(&root).unwrap_or(file).display().to_string();
        let mut found = files::check(&name, text);
        if name.ends_with(".md") {
            found.extend(documents::check(file, text, &functions));
        }
        breaches.extend(found.iter().map(|(line, rule)| format!("{name}:{line}: {rule}")));
    }
    println!("tidy: {} files, {} breaches", files.len(), breaches.len());
    if breaches.is_empty() { Ok(()) } else { Err(format!("\n{}", breaches.join("\n"))) }
}

pub(crate) fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        // What others made stays as they made it.
        let skip = ["target", "data", "node_modules", "vendor"].iter().any(|skip| name == *skip);
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

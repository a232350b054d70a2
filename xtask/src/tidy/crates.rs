//! Who depends on whom: exactly what the code map of ARCHITECTURE.md says, and one way only.
//!
//! The map is a table with one row per crate: its name as a link, its reason, whom it knows. A crate
//! knows only crates above it. What stands there as *dev only* is known to no other crate, but tests of
//! any crate may use it, as they may use whatever stands above them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

const MAP: &str = "ARCHITECTURE.md";
const DEV_ONLY: &str = "dev only";

/// One row of the map.
#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    dev_only: bool,
    knows: BTreeSet<String>,
}

/// What a manifest depends on, the workspace's own crates and others alike.
#[derive(Debug, Default, PartialEq)]
struct Manifest {
    normal: BTreeSet<String>,
    dev: BTreeSet<String>,
}

/// Everything that is wrong between the crates.
pub(super) fn check(root: &Path) -> Vec<String> {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let map = rows(&read(&root.join(MAP)));
    let folders = fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let folders = folders.map(|entry| entry.path()).chain([root.join("xtask")]);
    let mut members = BTreeMap::new();
    let mut found = Vec::new();
    for folder in folders.filter(|folder| folder.join("Cargo.toml").is_file()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let manifest = manifest(&read(&folder.join("Cargo.toml")));
        let mut files = Vec::new();
        super::walk(&folder, &mut files);
        let code: String = files
            .iter()
            .filter(|file| file.extension().is_some_and(|kind| kind == "rs"))
            .map(|file| read(file))
            .collect();
        found.extend(unused_by(&name, &manifest, &code));
        members.insert(name, manifest);
    }
    found.extend(edges(&map, &members));
    found.extend(unused(&read(&root.join("Cargo.toml")), &members));
    found
}

/// The rows whose first column is a link to a crate.
fn rows(map: &str) -> Vec<Row> {
    let row = |line: &str| {
        let mut columns = line.strip_prefix("| [`")?.split(" | ");
        let (name, link) = columns.next()?.split_once("`](")?;
        let reason = columns.next()?;
        let knows = columns.next()?;
        let is_crate = link.contains("/src/");
        let knows = knows.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let dev_only = reason.starts_with(DEV_ONLY);
        is_crate.then(|| Row { name: name.to_owned(), dev_only, knows })
    };
    map.lines().filter_map(row).collect()
}

fn manifest(text: &str) -> Manifest {
    let names = |section: &str| names(text, |header| header == section);
    let mut normal = names("[dependencies]");
    normal.extend(names("[build-dependencies]"));
    Manifest { normal, dev: names("[dev-dependencies]") }
}

/// The keys of the sections with such a header.
fn names(text: &str, wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with('[') {
            inside = wanted(line.trim());
        } else if inside && line.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let end = line.find(['.', ' ', '=']).unwrap_or(line.len());
            found.insert(line[..end].to_owned());
        }
    }
    found
}

/// The crates' dependencies on each other against the map.
fn edges(map: &[Row], members: &BTreeMap<String, Manifest>) -> Vec<String> {
    let mut found = Vec::new();
    let place = |name: &str| map.iter().position(|row| row.name == name);
    for (name, manifest) in members {
        let Some(here) = place(name) else {
            found.push(format!("{MAP}: the code map has no row for `{name}`"));
            continue;
        };
        let row = &map[here];
        let ours = |names: &BTreeSet<String>| -> BTreeSet<String> {
            names.iter().filter(|name| members.contains_key(*name)).cloned().collect()
        };
        let knows = ours(&manifest.normal);
        for other in knows.difference(&row.knows) {
            found.push(format!("{name} depends on {other}, which the map in {MAP} does not say"));
        }
        for other in row.knows.difference(&knows) {
            found.push(format!("{name} does not depend on {other}, and the map in {MAP} says so"));
        }
        let above = |other: &String| place(other).is_some_and(|there| there < here);
        let dev_only = |other: &String| place(other).is_some_and(|there| map[there].dev_only);
        for other in knows.iter().filter(|other| !above(other)) {
            found.push(format!("{name} depends on {other}, which is not above it in {MAP}"));
        }
        for other in knows.iter().filter(|other| dev_only(other) && !row.dev_only) {
            found.push(format!("{name} depends on {other}, which is for tests alone"));
        }
        for other in ours(&manifest.dev).iter().filter(|other| !above(other) && !dev_only(other)) {
            found.push(format!("the tests of {name} use {other}, which is not above it in {MAP}"));
        }
    }
    for row in map.iter().filter(|row| !members.contains_key(&row.name)) {
        found.push(format!("{MAP}: the code map has a row for `{}`, which is no crate", row.name));
    }
    found
}

/// What the workspace declares and no member takes.
fn unused(workspace: &str, members: &BTreeMap<String, Manifest>) -> Vec<String> {
    let declared = names(workspace, |header| header == "[workspace.dependencies]");
    let taken = |name: &&String| {
        members.values().any(|member| member.normal.contains(*name) || member.dev.contains(*name))
    };
    let unused = declared.iter().filter(|name| !taken(name));
    unused.map(|name| format!("Cargo.toml: no crate uses `{name}`")).collect()
}

/// What a member declares and no file of it names.
fn unused_by(member: &str, manifest: &Manifest, code: &str) -> Vec<String> {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    let words: BTreeSet<&str> = code.split(|c| !is_letter(c)).collect();
    let declared = manifest.normal.iter().chain(&manifest.dev);
    declared
        .filter(|name| !words.contains(name.replace('-', "_").as_str()))
        .map(|name| format!("{member}/Cargo.toml: no file of {member} names `{name}`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
| crate | reason | knows |
|---|---|---|
| [`sale`](crates/sale/src/lib.rs) | words | nobody |
| [`gate`](crates/gate/src/lib.rs) | who may buy; `solo/` too | `sale` |
| [`faults`](crates/faults/src/lib.rs) | dev only: real services | nobody |
| [`web`](web) | pages | the HTTP API |
";

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn member(name: &str, normal: &[&str], dev: &[&str]) -> (String, Manifest) {
        (name.to_owned(), Manifest { normal: set(normal), dev: set(dev) })
    }

    /// What is said of these dependencies of `gate`.
    fn said(normal: &[&str], dev: &[&str]) -> Vec<String> {
        let members =
            [member("sale", &[], &[]), member("gate", normal, dev), member("faults", &[], &[])];
        edges(&rows(TABLE), &members.into())
    }

    #[test]
    fn the_map_is_read_row_by_row() {
        let gate = Row { name: "gate".into(), dev_only: false, knows: set(&["sale"]) };
        let map = rows(TABLE);
        assert_eq!(map.len(), 3, "pages are no crate");
        assert_eq!((&map[1], map[2].dev_only), (&gate, true));
    }

    #[test]
    fn a_manifest_is_read_section_by_section() {
        let text = "[package]\nname = \"gate\"\n\n[dependencies]\nsale.workspace = true\n\
            # why\ntokio = { workspace = true }\n\n[dev-dependencies]\nfaults.workspace = true\n";
        let read = Manifest { normal: set(&["sale", "tokio"]), dev: set(&["faults"]) };
        assert_eq!(manifest(text), read);
    }

    #[test]
    fn edges_are_those_of_the_map_and_go_one_way() {
        assert_eq!(said(&["sale", "tokio"], &["faults"]), Vec::<String>::new());
        assert!(said(&[], &[])[0].contains("does not depend on sale"));
        let known = said(&["sale", "faults"], &[]);
        assert!(known[0].contains("does not say") && known[2].contains("for tests alone"));
        let row = "| [`gate`](crates/gate/src/lib.rs) | who | `sale`, `orders` |";
        let below = format!("{row}\n| [`sale`](crates/sale/src/lib.rs) | words | nobody |");
        let members = [member("sale", &[], &["gate"]), member("gate", &["sale"], &[])];
        let found = edges(&rows(&below), &members.into());
        assert!(found[0].contains("does not depend on orders"));
        assert!(found[1].contains("gate depends on sale, which is not above it"));
        let found = edges(&rows(TABLE), &[member("sale", &[], &["gate"])].into());
        assert!(found.is_empty() || !found[0].contains("tests of sale"), "gate is no member here");
    }

    #[test]
    fn tests_may_use_what_is_above_them_or_dev_only() {
        let members = [member("sale", &[], &["gate", "faults"]), member("gate", &["sale"], &[])];
        let found = edges(&rows(TABLE), &members.into());
        assert!(found[0].contains("the tests of sale use gate"), "{found:?}");
        assert!(!found.iter().any(|found| found.contains("sale use faults")));
    }

    #[test]
    fn a_crate_without_a_row_and_a_row_without_a_crate_are_named() {
        let found = edges(&rows(TABLE), &[member("orders", &[], &[])].into());
        assert!(
            found[0].contains("no row for `orders`") && found[1].contains("`sale`, which is no")
        );
    }

    #[test]
    fn what_nobody_uses_is_named() {
        let workspace = "[workspace.dependencies]\nsale = { path = \"s\" }\nidle = \"1\"\n";
        let members = [member("gate", &["sale"], &[])].into();
        assert_eq!(unused(workspace, &members), ["Cargo.toml: no crate uses `idle`"]);
        let code = "use hyper_util::rt; // serde";
        let (_, gate) = member("gate", &["hyper-util"], &["idle"]);
        let found = unused_by("gate", &gate, code);
        assert_eq!(found, ["gate/Cargo.toml: no file of gate names `idle`"]);
    }
}

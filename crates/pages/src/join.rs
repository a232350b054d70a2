//! Joins a module with all that it imports into one script.
//!
//! Browsers fetch modules one after the other, because only a module tells what it imports; joined they come
//! at once. Joining is a matter of leaving out: each module stands behind those that it imports, and
//! comments and the words `import` and `export` go. It relies on how our files are written, and says so if
//! one is not: names are imported as they are, never `as` others nor as a default, and no two modules of one
//! script use a name of the top for two things.

use std::collections::BTreeMap;

/// The files of the folder `web`, by their paths in it.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// The statements of this module and of all that it imports, one after the other.
pub(crate) fn joined(files: &Files, entry: &str) -> Result<String, String> {
    let mut script =
        Script { files, begun: Vec::new(), names: BTreeMap::new(), text: String::new() };
    script.take(entry)?;
    Ok(script.text)
}

struct Script<'f> {
    files: &'f Files,
    begun: Vec<String>,
    /// Who declares each name of the top.
    names: BTreeMap<String, String>,
    text: String,
}

impl Script<'_> {
    fn take(&mut self, path: &str) -> Result<(), String> {
        if self.begun.iter().any(|begun| begun == path) {
            return Ok(());
        }
        self.begun.push(path.to_owned());
        let file = self.files.get(path).ok_or_else(|| format!("web/{path} is not there"))?;
        let module = Module::read(&String::from_utf8_lossy(file))
            .map_err(|problem| format!("web/{path}: {problem}"))?;
        for import in &module.imports {
            self.take(&beside(path, import))?;
        }
        for name in module.names {
            if let Some(other) = self.names.insert(name.clone(), path.to_owned()) {
                return Err(format!(
                    "web/{path} and web/{other} both declare `{name}`; rename one"
                ));
            }
        }
        self.text.push_str(&module.statements);
        self.text.push('\n');
        Ok(())
    }
}

/// Where `import` leads from the module at `path`.
fn beside(path: &str, import: &str) -> String {
    let mut folders: Vec<&str> = path.split('/').collect();
    folders.pop();
    for part in import.split('/') {
        match part {
            "." => {}
            ".." => drop(folders.pop()),
            part => folders.push(part),
        }
    }
    folders.join("/")
}

#[derive(Debug, Default, PartialEq)]
struct Module {
    imports: Vec<String>,
    names: Vec<String>,
    statements: String,
}

impl Module {
    fn read(text: &str) -> Result<Module, String> {
        let mut module = Module::default();
        let mut lines = text.lines();
        let mut in_comment = false;
        while let Some(mut line) = lines.next() {
            if in_comment || line.trim_start().starts_with("/**") {
                let end = line.split_once("*/");
                in_comment = end.is_none();
                // Code may stand behind a type.
                line = end.map_or("", |(_, behind)| behind);
            }
            if line.starts_with("import ") || line.starts_with("export {") {
                let mut statement = line.to_owned();
                while !statement.ends_with(';') {
                    let more = lines.next().ok_or("an import does not end with a semicolon")?;
                    statement.push_str(more.trim());
                }
                module.imports.extend(imported(&statement)?);
                continue;
            }
            let line = line.strip_prefix("export ").unwrap_or(line);
            if line.starts_with("default ") {
                return Err("exports have names".into());
            }
            module.names.extend(declared(line).map(str::to_owned));
            let line = line.trim();
            if !line.is_empty() && !line.starts_with("//") {
                module.statements.push_str(line);
                module.statements.push('\n');
            }
        }
        Ok(module)
    }
}

/// The module that is named by `import { a } from "./b.js";` or `export { a } from "./b.js";`.
fn imported(statement: &str) -> Result<Option<String>, String> {
    if statement.contains(" as ") {
        return Err(format!("names are imported as they are: {statement}"));
    }
    let path = statement.split('"').nth(1);
    match path {
        Some(path) if path.starts_with('.') && path.ends_with(".js") => Ok(Some(path.to_owned())),
        None if statement.starts_with("export {") => Ok(None),
        _ => Err(format!("imports lead to a file of ours: {statement}")),
    }
}

/// The name that a line of the top declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.strip_prefix("async ").unwrap_or(line);
    let kinds = ["const ", "let ", "function ", "class "];
    let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '$'));
    Some(&rest[..end.unwrap_or(rest.len())]).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> Files {
        files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn each_module_stands_once_and_behind_what_it_imports() {
        let files = files(&[
            (
                "a/a.js",
                "// Why.\nimport { b } from \"../b.js\";\nimport {\n  c,\n} from \"./c.js\";\nb(c);\n",
            ),
            (
                "b.js",
                "import { c } from \"./a/c.js\";\nexport { c } from \"./a/c.js\";\nexport const b = c;\n",
            ),
            (
                "a/c.js",
                "/** What\n * it is. */\n  /** @type {A} */ (d).e();\n\
                 export async function c() {\n  return 1;\n}\n",
            ),
        ]);
        let text = "(d).e();\nasync function c() {\nreturn 1;\n}\n\nconst b = c;\n\nb(c);\n\n";
        assert_eq!(joined(&files, "a/a.js").unwrap(), text);
    }

    #[test]
    fn what_cannot_be_joined_is_said() {
        let refused = |text: &str| {
            let files = files(&[("a.js", text), ("b.js", "export const b = 1;\n")]);
            joined(&files, "a.js").unwrap_err()
        };
        assert!(refused("import { c } from \"./c.js\";").contains("web/c.js is not there"));
        assert!(refused("import { b as c } from \"./b.js\";").contains("as they are"));
        assert!(refused("import b from \"uplot\";").contains("a file of ours"));
        assert!(refused("export default 1;").contains("have names"));
        let twice = refused("import { b } from \"./b.js\";\nfunction b() {}");
        assert!(twice.contains("both declare `b`"), "{twice}");
    }
}

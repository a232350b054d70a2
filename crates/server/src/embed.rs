//! `/embed.js`: the button for any page, made of the modules that our own pages use.
//!
//! Browsers fetch a module with all that it imports, one after the other, from another server; so they are
//! joined here into one script, which is good as a classic script and as a module. There is no build
//! step: joining is done once, at the first request, and is a matter of leaving out. Comments, blanks, the
//! words `import` and `export` go, and names that nobody outside can see (`#private`, `LIKE_THIS`) are made
//! short. It relies on how these files are written: statements end with a semicolon, an import is one line,
//! comments stand on lines of their own, and no two modules use one name for two things. A test holds them
//! to the last, and a browser runs what comes out.

use std::{collections::HashMap, iter::Peekable, str::Chars, sync::LazyLock};

use crate::web::Files;
use bytes::Bytes;

/// Each behind those that it imports.
const MODULES: [&str; 9] = [
    "answer.js",
    "backoff.js",
    "clock.js",
    "countdown.js",
    "shop/sale_token.js",
    "shop/claim.js",
    "shop/buy_state.js",
    "embed/words.js",
    "embed/button.js",
];

/// The script, as it is served.
pub(crate) static SCRIPT: LazyLock<Bytes> = LazyLock::new(|| {
    let modules = MODULES.map(|path| {
        let file = Files::get(path).map(|file| file.data.into_owned()).unwrap_or_default();
        statements(&String::from_utf8_lossy(&file))
    });
    Bytes::from(format!("(()=>{{{}}})();\n", squeezed(&modules.join("\n"))))
});

/// The lines of a module that do something.
fn statements(module: &str) -> String {
    let mut lines = Vec::new();
    let mut in_comment = false;
    for line in module.lines().map(str::trim) {
        let begins = line.starts_with("/**");
        if in_comment || begins {
            in_comment = !line.ends_with("*/");
        } else if !line.is_empty() && !line.starts_with("//") && !line.starts_with("import ") {
            lines.push(line.strip_prefix("export ").unwrap_or(line));
        }
    }
    lines.join("\n")
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$' | '#')
}

/// The same with fewer letters. What stands in quotes is left alone.
fn squeezed(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    ShortNames::default().squeeze(&mut code.chars().peekable(), &mut out, false);
    out
}

type Code<'c> = Peekable<Chars<'c>>;

/// Names that only this script knows, in the order in which they come.
#[derive(Default)]
struct ShortNames(HashMap<String, String>);

impl ShortNames {
    /// To the end, or to the brace that ends what is filled into a text.
    fn squeeze(&mut self, rest: &mut Code<'_>, out: &mut String, filled_in: bool) {
        let mut depth = 0;
        while let Some(c) = rest.next() {
            let before = out.chars().next_back().unwrap_or(';');
            match c {
                '"' | '\'' | '`' => self.quoted(c, rest, out),
                '/' if rest.peek() == Some(&'*') => skip_comment(rest),
                ' ' => {
                    let after = rest.peek().copied().unwrap_or(';');
                    let signs = |c: char| matches!(c, '+' | '-' | '/');
                    if (in_word(before) && in_word(after)) || (signs(before) && signs(after)) {
                        out.push(' ');
                    }
                }
                '\n' if matches!(before, '{' | '}' | ',' | ';' | '(' | '[') => {}
                '}' if filled_in && depth == 0 => return out.push('}'),
                '}' => {
                    depth -= 1;
                    // Behind the last one of a list or a block nothing need be said.
                    if matches!(before, ',' | ';') {
                        out.pop();
                    }
                    out.push('}');
                }
                c if in_word(c) => {
                    let mut word = String::from(c);
                    while let Some(c) = rest.next_if(|c| in_word(*c)) {
                        word.push(c);
                    }
                    out.push_str(&self.short(word));
                }
                c => {
                    depth += i32::from(c == '{');
                    out.push(c);
                }
            }
        }
    }

    fn quoted(&mut self, quote: char, rest: &mut Code<'_>, out: &mut String) {
        out.push(quote);
        while let Some(c) = rest.next() {
            out.push(c);
            match c {
                '\\' => out.extend(rest.next()),
                '$' if quote == '`' && rest.next_if_eq(&'{').is_some() => {
                    out.push('{');
                    self.squeeze(rest, out, true);
                }
                c if c == quote => return,
                _ => {}
            }
        }
    }

    fn short(&mut self, word: String) -> String {
        let private = word.starts_with('#');
        let capitals = word.contains('_')
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        if !private && !capitals {
            return match word.as_str() {
                "true" => "!0".into(),
                "false" => "!1".into(),
                "undefined" => "void 0".into(),
                "Infinity" => "1/0".into(),
                // 10_000
                number if number.starts_with(|c: char| c.is_ascii_digit()) => word.replace('_', ""),
                _ => word,
            };
        }
        let mark = if private { '#' } else { '$' };
        let next = self.0.values().filter(|short| short.starts_with(mark)).count();
        let short = self.0.entry(word).or_insert_with(|| {
            let letter = |n: usize| char::from(b'a' + (n % 26) as u8);
            match next / 26 {
                0 => format!("{mark}{}", letter(next)),
                rounds => format!("{mark}{}{}", letter(rounds - 1), letter(next)),
            }
        });
        short.clone()
    }
}

fn skip_comment(rest: &mut Code<'_>) {
    let mut before = ' ';
    for c in rest.by_ref() {
        if before == '*' && c == '/' {
            return;
        }
        before = c;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 15 * 1_024;

    #[test]
    fn the_script_is_small_and_whole() {
        let script = String::from_utf8(SCRIPT.to_vec()).unwrap();
        assert!(script.len() < BYTES_MAX, "{} bytes", script.len());
        for part in [
            "customElements.define(\"seckill-button\"",
            "立即抢购",
            "X-Sale-Token",
            "adoptedStyleSheets",
        ] {
            assert!(script.contains(part), "{part}");
        }
        for other in ["import ", "export ", "innerHTML", "/**", "eval("] {
            assert!(!script.contains(other), "{other}");
        }
    }

    #[test]
    fn every_module_stands_behind_what_it_imports_and_names_are_used_once() {
        let mut names: HashMap<String, &str> = HashMap::new();
        for (n, path) in MODULES.iter().enumerate() {
            let text = String::from_utf8(Files::get(path).unwrap().data.into_owned()).unwrap();
            for import in text.lines().filter(|line| line.starts_with("import ")) {
                assert!(!import.contains(" as "), "{path}: {import}");
                let from = import.split('"').nth(1).unwrap();
                let file = from.trim_start_matches("./").trim_start_matches("../");
                let known = MODULES[..n].iter().any(|known| known.ends_with(file));
                assert!(known, "{path}: {from} comes later, or not at all");
            }
            let top = text.lines().filter_map(|line| {
                let line = line.strip_prefix("export ").unwrap_or(line);
                let line = line.strip_prefix("async ").unwrap_or(line);
                let kind = ["const ", "let ", "function ", "class "];
                let name = kind.iter().find_map(|kind| line.strip_prefix(kind))?;
                name.split(|c: char| !in_word(c)).next().filter(|name| !name.is_empty())
            });
            for name in top {
                let other = names.insert(name.to_owned(), path);
                assert_eq!(other, None, "{path}: {name}");
            }
        }
    }

    #[test]
    fn what_is_in_quotes_stays_as_it_is() {
        let code = "const A_B = [1, 2];\nclass X {\n  #long = `a  ${ this.#long + f({ a: \"}\" }) } #long`;\n\
                    get() { return this.#long; }\n}\nx = \"a , b\" + +1 / 2_000;\n\
                    try { y(); } catch { /* it may; */ }\nif (true) y();";
        assert_eq!(
            squeezed(&statements(code)),
            "const $a=[1,2];class X{#a=`a  ${this.#a+f({a:\"}\"})} #long`;get(){return this.#a}}\
             x=\"a , b\"+ +1/2000;try{y()}catch{}if(!0)y();"
        );
    }
}

//! What a page names, and the page with the names under which those things are served.

/// Something that a page names, as it stands there.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mention {
    /// The whole tag, to its end.
    pub(crate) tag: String,
    /// The path in `web`.
    pub(crate) path: String,
    pub(crate) role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Role {
    /// A module, which is joined with all that it imports.
    Module,
    Sheet,
    /// Served as it is.
    Other,
}

/// Everything under `/assets/` that the tags of a page name, in its order.
pub(crate) fn mentions(html: &str) -> Vec<Mention> {
    let tags = html.split('<').skip(1).filter_map(|rest| rest.split_once('>'));
    tags.filter_map(|(tag, _)| {
        let path = tag.split('"').find_map(|value| value.strip_prefix("/assets/"))?.to_owned();
        let role = match tag {
            tag if tag.contains("type=\"module\"") => Role::Module,
            tag if tag.contains("rel=\"stylesheet\"") => Role::Sheet,
            _ => Role::Other,
        };
        Some(Mention { tag: format!("<{tag}>"), path, role })
    })
    .collect()
}

/// Every `/assets/…` of a text whose path `name_of` knows, under its name.
pub(crate) fn renamed(text: &str, name_of: &mut dyn FnMut(&str) -> Option<String>) -> String {
    const ROOT: &str = "/assets/";
    let mut parts = text.split(ROOT);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let in_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
        let end = part.find(|c| !in_path(c)).unwrap_or(part.len());
        let (path, rest) = part.split_at(end);
        out.push_str(ROOT);
        out.push_str(&name_of(path).unwrap_or_else(|| path.to_owned()));
        out.push_str(rest);
    }
    out
}

/// A page without the blanks at the beginning of its lines and without empty ones.
pub(crate) fn trimmed(html: &str) -> String {
    let lines = html.lines().map(str::trim_start).filter(|line| !line.is_empty());
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// A sheet without remarks and blanks that mean nothing. Strings keep theirs.
pub(crate) fn dense_sheet(css: &str) -> String {
    let mut out = String::with_capacity(css.len());
    let mut rest = css.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '/' if rest.peek() == Some(&'*') => {
                let mut before = ' ';
                rest.next();
                while let Some(c) = rest.next().filter(|c| !(before == '*' && *c == '/')) {
                    before = c;
                }
            }
            '"' | '\'' => {
                out.push(c);
                while let Some(inside) = rest.next() {
                    out.push(inside);
                    match inside {
                        '\\' => out.extend(rest.next()),
                        end if end == c => break,
                        _ => {}
                    }
                }
            }
            c if c.is_whitespace() => {
                while rest.next_if(|c| c.is_whitespace()).is_some() {}
                let needless = |c: char| matches!(c, '{' | '}' | ';' | ',');
                let after = rest.peek().copied().unwrap_or('}');
                if !(out.is_empty() || out.ends_with(needless) || needless(after)) {
                    out.push(' ');
                }
            }
            '}' => {
                if out.ends_with(';') {
                    out.pop();
                }
                out.push('}');
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_what_it_is_made_of() {
        let html = "<link rel=\"stylesheet\" href=\"/assets/style.css\">\n\
            <script type=\"module\" src=\"/assets/a/a.js\"></script><img alt=\"\" src=\"/assets/b.svg\">";
        let found = mentions(html);
        let found: Vec<_> = found.iter().map(|found| (&*found.path, found.role)).collect();
        let sheet = ("style.css", Role::Sheet);
        assert_eq!(found, [sheet, ("a/a.js", Role::Module), ("b.svg", Role::Other)]);
    }

    #[test]
    fn only_what_is_known_gets_another_name() {
        let mut names = |path: &str| (path == "a/b.svg").then(|| "a/b.1.svg".to_owned());
        let text = "url(/assets/a/b.svg) \"/assets/a/b.svg#x\" \"/assets/\" `/assets/c.svg`";
        let expected =
            "url(/assets/a/b.1.svg) \"/assets/a/b.1.svg#x\" \"/assets/\" `/assets/c.svg`";
        assert_eq!(renamed(text, &mut names), expected);
    }

    #[test]
    fn blanks_that_mean_something_stay() {
        let css = "/* why */\n:root {\n  --a: 1px;\n  --font: \"A  B\", c;\n}\n\
            .a .b > p,\n.c :is(a, b) { margin: calc(1px + 2px) 0; }\n";
        let dense =
            ":root{--a: 1px;--font: \"A  B\",c}.a .b > p,.c :is(a,b){margin: calc(1px + 2px) 0}";
        assert_eq!(dense_sheet(css), dense);
        assert_eq!(trimmed("<a>\n\n  <b>\n"), "<a>\n<b>\n");
    }
}

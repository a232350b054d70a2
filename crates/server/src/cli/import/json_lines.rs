//! On which line of a JSON text a value stands, so that whoever wrote the file finds what is wrong with it.

use std::collections::HashMap;

/// The line of every value by its path, such as `activities[1].items[0].price`.
pub(super) struct Lines(HashMap<String, usize>);

impl Lines {
    /// Of a text that is good JSON.
    pub(super) fn of(text: &str) -> Lines {
        let mut reader = Reader { rest: text.chars().peekable(), line: 1, lines: HashMap::new() };
        reader.value(String::new());
        Lines(reader.lines)
    }

    /// As if the text were `{"activities": [...]}`: it is that (`activities`), the list alone (empty), or
    /// the only one of the list (`one`).
    pub(super) fn under(self, prefix: &str) -> Lines {
        let renamed = |path: String| match (prefix, path.as_str()) {
            ("activities", _) => path,
            ("one", "") => "activities[0]".into(),
            ("one", _) => format!("activities[0].{path}"),
            _ => format!("activities{path}"),
        };
        Lines(self.0.into_iter().map(|(path, line)| (renamed(path), line)).collect())
    }

    /// Of the value, or of what is around it if there is none.
    pub(super) fn find(&self, path: &str) -> usize {
        let mut path = path;
        loop {
            if let Some(line) = self.0.get(path) {
                return *line;
            }
            path = match path.rfind(['.', '[']) {
                Some(end) => &path[..end],
                None if path.is_empty() => return 1,
                None => "",
            };
        }
    }
}

struct Reader<'t> {
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    line: usize,
    lines: HashMap<String, usize>,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    /// The next character that is no blank, comma or colon; it is not taken.
    fn peek(&mut self) -> Option<char> {
        while self.rest.peek().is_some_and(|c| c.is_whitespace() || matches!(c, ',' | ':')) {
            self.next();
        }
        self.rest.peek().copied()
    }

    fn value(&mut self, path: String) {
        let Some(first) = self.peek() else { return };
        self.lines.insert(path.clone(), self.line);
        match first {
            '"' => _ = self.text(),
            '[' => {
                self.next();
                let mut n = 0;
                while self.peek().is_some_and(|c| c != ']') {
                    self.value(format!("{path}[{n}]"));
                    n += 1;
                }
                self.next();
            }
            '{' => {
                self.next();
                while self.peek().is_some_and(|c| c != '}') {
                    let name = self.text();
                    let dot = if path.is_empty() { "" } else { "." };
                    self.value(format!("{path}{dot}{name}"));
                }
                self.next();
            }
            _ => {
                let ends = |c: &char| c.is_whitespace() || matches!(c, ',' | ']' | '}');
                while self.rest.peek().is_some_and(|c| !ends(c)) {
                    self.next();
                }
                // Not reached in good JSON, and nobody is to turn in circles in any other.
                if self.rest.peek().is_none() {
                    self.next();
                }
            }
        }
    }

    /// Between its quotes, as it is written.
    fn text(&mut self) -> String {
        let mut text = String::new();
        self.next();
        while let Some(c) = self.next() {
            match c {
                '"' => break,
                '\\' => {
                    text.push(c);
                    text.extend(self.next());
                }
                _ => text.push(c),
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_path() {
        let text = "{\"activities\": [\n {\"name\": \"a \\\" ]\",\n  \"items\": [{\"price\": 1},\n\
                    {\"price\":\n 2}]},\n {}\n]}";
        let lines = Lines::of(text);
        for (path, line) in [
            ("activities", 1),
            ("activities[0].name", 2),
            ("activities[0].items", 3),
            ("activities[0].items[0].price", 3),
            ("activities[0].items[1]", 4),
            ("activities[0].items[1].price", 5),
            ("activities[1]", 6),
            ("activities[1].name", 6),
            ("activities[0].items[1].stock", 4),
            ("nothing", 1),
        ] {
            assert_eq!(lines.find(path), line, "{path}");
        }
        for strange in ["", "[", "{\"a\"", "tru", "[1,"] {
            Lines::of(strange);
        }
    }
}

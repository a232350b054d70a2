//! One file by itself: it opens with why it exists, it is not too long, its lines are neither too long
//! nor unfinished.

use super::Breach;

/// A longer file says why at its top; otherwise it is several files.
const LINES_MAX: usize = 600;
/// How a file says why it is longer: a line of its opening that begins like this.
const LONG_BECAUSE: &str = "//! Long because ";
/// rustfmt breaks code at 100 and leaves strings and comments alone.
const COLUMNS_MAX: usize = 110;
/// Marks of what was put off.
const LEFT_OVERS: [&str; 3] = ["TODO", "FIXME", "dbg!("];

/// How a file of each kind opens: with a remark that says why it exists.
const OPENINGS: [(&str, &str); 12] = [
    ("rs", "//!"),
    ("lua", "--"),
    ("sql", "--"),
    ("js", "//"),
    ("css", "/*"),
    ("py", "\"\"\""),
    ("conf", "#"),
    ("cnf", "#"),
    ("env", "#"),
    ("yaml", "#"),
    ("yml", "#"),
    ("service", "#"),
];
/// Kinds that open as their formats want, and are looked at for blanks alone.
const OTHER_KINDS: [&str; 4] = ["md", "toml", "c", "html"];

/// Everything that is wrong with one file.
pub(super) fn check(name: &str, text: &str) -> Vec<Breach> {
    let kind = name.rsplit('.').next().unwrap_or_default();
    let opening = OPENINGS.iter().find(|(of, _)| *of == kind);
    let mut found = Vec::new();
    if let Some((_, opening)) = opening {
        found.extend(opens(text, opening));
    }
    if opening.is_some() || OTHER_KINDS.contains(&kind) {
        found.extend(each_line(text, "white space at the end of the line", |line| {
            line.ends_with([' ', '\t'])
        }));
    }
    if kind != "rs" {
        return found;
    }
    found.extend(length(text));
    found.extend(width(text));
    // This file names what it looks for.
    if !name.ends_with("tidy/files.rs") {
        found.extend(left_overs(text));
    }
    found
}

fn opens(text: &str, opening: &str) -> Option<Breach> {
    let rule = format!("a file opens with `{opening}` and why it exists");
    (!text.starts_with(opening)).then_some((1, rule))
}

fn length(text: &str) -> Option<Breach> {
    let lines = text.lines().count();
    let mut top = text.lines().take_while(|line| line.starts_with("//!"));
    let excused = top.any(|line| line.starts_with(LONG_BECAUSE));
    let rule = format!(
        "{lines} lines, more than {LINES_MAX}: divide it, or say at its top `{LONG_BECAUSE}…`"
    );
    (lines > LINES_MAX && !excused).then_some((lines, rule))
}

fn width(text: &str) -> Vec<Breach> {
    let rule = format!("a line of more than {COLUMNS_MAX} characters");
    each_line(text, &rule, |line| line.chars().count() > COLUMNS_MAX)
}

fn left_overs(text: &str) -> Vec<Breach> {
    each_line(text, "a left-over: do it, or write an issue", |line| {
        LEFT_OVERS.iter().any(|left_over| line.contains(left_over))
    })
}

fn each_line(text: &str, rule: &str, breaks: impl Fn(&str) -> bool) -> Vec<Breach> {
    let lines = text.lines().enumerate();
    lines.filter(|(_, line)| breaks(line)).map(|(n, _)| (n + 1, rule.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(breaches: &[Breach]) -> Vec<usize> {
        breaches.iter().map(|(line, _)| *line).collect()
    }

    #[test]
    fn a_file_opens_with_why_it_exists() {
        assert!(check("a.rs", "//! Why.\n").is_empty());
        assert_eq!(lines_of(&check("a.rs", "use b;\n")), [1]);
        assert!(check("a.lua", "-- Why.\nreturn 1\n").is_empty());
        assert_eq!(lines_of(&check("a.lua", "return 1\n")), [1]);
        assert!(check("a.html", "<!doctype html>\n").is_empty(), "its format wants that first");
    }

    #[test]
    fn a_long_file_says_why_at_its_top() {
        let lines = |opening: &str| format!("//! Why.\n{opening}\n{}", "x\n".repeat(LINES_MAX));
        assert_eq!(lines_of(&check("a.rs", &lines("//!"))), [LINES_MAX + 2]);
        assert!(check("a.rs", &lines("//! Long because it is one table.")).is_empty());
        assert_eq!(check("a.rs", &lines("\n//! Long because it is late.")).len(), 1);
        assert!(check("a.md", &lines("")).is_empty());
    }

    #[test]
    fn a_long_line_is_counted_in_characters() {
        let line = |characters: usize| format!("//! Why.\n// {}\n", "数".repeat(characters));
        assert!(check("a.rs", &line(COLUMNS_MAX - 3)).is_empty());
        assert_eq!(lines_of(&check("a.rs", &line(COLUMNS_MAX - 2))), [2]);
    }

    #[test]
    fn nothing_is_left_over() {
        assert_eq!(lines_of(&check("a.rs", "//! Why.\n\n// TODO: more\ndbg!(x);\n")), [3, 4]);
        assert_eq!(lines_of(&check("a.toml", "a = 1 \nb = 2\n")), [1]);
    }
}

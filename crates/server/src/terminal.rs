//! Colour for people, and none for files.

use std::io::IsTerminal;

/// Red, where somebody looks at it; <https://no-color.org> is respected.
pub fn red(text: &str, somebody_looks: bool) -> String {
    if somebody_looks && std::env::var_os("NO_COLOR").is_none_or(|off| off.is_empty()) {
        format!("\x1b[1;31m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// Does a person read what is printed?
pub fn somebody_looks() -> bool {
    std::io::stdout().is_terminal()
}

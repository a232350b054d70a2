//! Comma-separated values as spreadsheets write them (RFC 4180): quotes, line breaks in quotes, CRLF or LF,
//! a byte order mark. What cannot be meant is refused with its line, not guessed.

/// A line, or several if a cell has line breaks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Where it begins; the first line of a file is 1.
    pub(super) line: usize,
    pub(super) cells: Vec<String>,
}

/// Where and why it cannot be read any further.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) line: usize,
    pub(super) problem: &'static str,
}

/// Where in a cell the reader is.
enum At {
    /// Before its first character.
    Start,
    Plain,
    Quoted {
        since: usize,
    },
    /// Behind a quote that ends the cell, unless another one follows.
    Quote,
}

/// The records of a text, without empty lines.
pub(super) fn records(text: &str) -> Result<Vec<Record>, Unreadable> {
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    let mut records = Vec::new();
    let (mut line, mut at) = (1, At::Start);
    let mut record = Record { line, cells: vec![String::new()] };
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\r' && chars.peek() == Some(&'\n') && !matches!(at, At::Quoted { .. }) {
            continue;
        }
        let cell = record.cells.last_mut().expect("a record has a cell");
        let wrong = |problem| Err(Unreadable { line, problem });
        match (&at, c) {
            (At::Quoted { .. }, '"') => at = At::Quote,
            (At::Quoted { .. }, c) => {
                line += usize::from(c == '\n');
                cell.push(c);
            }
            (At::Quote, '"') => {
                cell.push('"');
                at = At::Quoted { since: line };
            }
            (_, ',') => {
                record.cells.push(String::new());
                at = At::Start;
            }
            (_, '\n') => {
                line += 1;
                let next = Record { line, cells: vec![String::new()] };
                keep(&mut records, std::mem::replace(&mut record, next));
                at = At::Start;
            }
            (At::Start, '"') => at = At::Quoted { since: line },
            (At::Quote, _) => return wrong("has something between a closing quote and the comma"),
            (At::Plain, '"') => {
                return wrong(
                    "has a quote inside a cell: put the whole cell in quotes, and double it",
                );
            }
            (At::Start | At::Plain, c) => {
                cell.push(c);
                at = At::Plain;
            }
        }
    }
    if let At::Quoted { since } = at {
        let problem = "has a quote that is never closed";
        return Err(Unreadable { line: since, problem });
    }
    keep(&mut records, record);
    Ok(records)
}

fn keep(records: &mut Vec<Record>, record: Record) {
    if record.cells.iter().any(|cell| !cell.trim().is_empty()) {
        records.push(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_read_as_spreadsheets_write_them() {
        let text = "\u{FEFF}a,b\r\n1,\"x, \"\"y\"\"\"\r\n\r\n ,\r\n\"two\nlines\",\r\n3,手机\n4";
        let records = records(text).unwrap();
        let found: Vec<(usize, Vec<&str>)> = records
            .iter()
            .map(|record| (record.line, record.cells.iter().map(String::as_str).collect()))
            .collect();
        assert_eq!(
            found,
            [
                (1, vec!["a", "b"]),
                (2, vec!["1", "x, \"y\""]),
                (5, vec!["two\nlines", ""]),
                (7, vec!["3", "手机"]),
                (8, vec!["4"]),
            ]
        );
        assert_eq!(super::records(""), Ok(vec![]));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_line() {
        for (text, line) in
            [("a\n\"b\n\nc", 2), ("a\nb\"c", 2), ("a\n\"b\"c", 2), ("\"a\"\n\"b\"\"", 2)]
        {
            assert_eq!(records(text).unwrap_err().line, line, "{text:?}");
        }
    }
}

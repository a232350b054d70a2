//! `seckill list`: members, buyers who are kept out, and buyers who have to wait.
//!
//! A file may have millions of ids, so it is never held as a whole: it is read once to look at every line,
//! and once more to send the ids in pieces.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum};
use ledger::LISTED_AT_ONCE_MAX;
use sale::{UserId, iso_time};
use serde_json::json;

use super::{AdminApi, Failure, admin_api::in_path};

/// The head of a table, if it has one.
const HEAD: &str = "user_id";
/// A line of a table; the id is at its beginning.
const LINE_BYTES_MAX: u64 = 64 * 1_024;

#[derive(Subcommand)]
pub(super) enum List {
    /// The lists there are, and how many buyers are on each
    All {
        /// As JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Who is on a list, one id on each line
    Show(Which),
    /// Put buyers on a list: those named, or those of a file, of which every line is looked at first
    Add {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        who: Who,
    },
    /// Take buyers off a list
    Remove {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        who: Who,
    },
    /// Take everybody off a list
    Clear(Which),
    /// Buyers who have to wait because they let too many orders go unpaid
    Waiting,
    /// Let such a buyer buy again
    LetGo {
        /// The buyer's id
        user: String,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// They may buy before others, or nobody else may
    Members,
    /// They may not buy
    Blocked,
}

#[derive(Args)]
pub(super) struct Which {
    /// Which list
    kind: Kind,
    /// The list of this sale, by its number; of the whole shop unless told
    #[arg(long, value_name = "ID")]
    activity: Option<i64>,
}

#[derive(Args)]
pub(super) struct Who {
    /// Ids of buyers
    #[arg(required_unless_present = "file")]
    users: Vec<String>,
    /// A file with one id on each line, or a table with the ids in its first column
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
}

impl Which {
    fn path(&self, step: &str) -> String {
        let kind = match self.kind {
            Kind::Members => "members",
            Kind::Blocked => "blocked",
        };
        match self.activity {
            Some(id) => format!("/admin/lists/{kind}{step}?activity={id}"),
            None => format!("/admin/lists/{kind}{step}"),
        }
    }
}

pub(super) async fn run(api: &AdminApi, command: List) -> Result<(), Failure> {
    match command {
        List::All { json } => all(api, json).await,
        List::Show(which) => show(api, &which).await,
        List::Add { which, who } => change(api, &which.path(""), &who, "added").await,
        List::Remove { which, who } => change(api, &which.path("/remove"), &who, "removed").await,
        List::Clear(which) => {
            api.delete(&which.path("")).await?;
            println!("the list is empty");
            Ok(())
        }
        List::Waiting => waiting(api).await,
        List::LetGo { user } => {
            api.delete(&format!("/admin/cool-downs/{}", in_path(&user))).await?;
            println!("{user} may buy again");
            Ok(())
        }
    }
}

async fn all(api: &AdminApi, as_json: bool) -> Result<(), Failure> {
    let lists = api.get("/admin/lists").await?;
    if as_json {
        println!("{lists}");
        return Ok(());
    }
    println!("{:8}  {:>9}  {:>12}", "list", "sale", "buyers");
    for list in lists["lists"].as_array().into_iter().flatten() {
        let sale = list["activity_id"].as_i64().map_or("all".to_owned(), |id| id.to_string());
        let kind = list["kind"].as_str().unwrap_or_default();
        println!("{kind:8}  {sale:>9}  {:>12}", list["buyers"].as_u64().unwrap_or_default());
    }
    Ok(())
}

async fn show(api: &AdminApi, which: &Which) -> Result<(), Failure> {
    let (path, mut after) = (which.path(""), None::<String>);
    loop {
        let sign = if path.contains('?') { '&' } else { '?' };
        let behind = after.map(|id| format!("&after={}", in_path(&id))).unwrap_or_default();
        let page = api.get(&format!("{path}{sign}limit=500{behind}")).await?;
        for user in page["users"].as_array().into_iter().flatten() {
            println!("{}", user.as_str().unwrap_or_default());
        }
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            return Ok(());
        }
    }
}

/// In pieces, each of which may be sent again.
async fn change(api: &AdminApi, path: &str, who: &Who, done: &str) -> Result<(), Failure> {
    for user in &who.users {
        check(user).map_err(|why| format!("{user:?} {why}"))?;
    }
    if let Some(file) = &who.file {
        // Before anything is changed, so that one bad line changes nothing.
        let ids = Ids::of(file)?.try_fold(0_u64, |ids, id| id.map(|_| ids + 1))?;
        if ids == 0 {
            return Err(Failure::Cannot(format!("{}: there is no id in it", file.display())));
        }
    }
    let (mut given, mut changed) = (0, 0);
    let mut send = async |piece: &mut Vec<String>| -> Result<(), Failure> {
        let answer = api.post(path, &json!({"users": piece})).await?;
        changed += answer["changed"].as_u64().unwrap_or_default();
        given += piece.len();
        piece.clear();
        Ok(())
    };
    let mut piece = who.users.clone();
    for id in who.file.as_deref().map(Ids::of).transpose()?.into_iter().flatten() {
        piece.push(id?);
        if piece.len() >= LISTED_AT_ONCE_MAX {
            send(&mut piece).await?;
        }
    }
    if !piece.is_empty() {
        send(&mut piece).await?;
    }
    println!("{changed} {done}, of {given} given");
    Ok(())
}

fn check(user: &str) -> Result<(), String> {
    UserId::new(user).map(drop).map_err(|why| why.to_string())
}

/// The ids of a file, one after the other; what is no id is an error that names its line.
struct Ids {
    name: String,
    lines: BufReader<File>,
    number: u64,
    line: Vec<u8>,
}

impl Ids {
    fn of(path: &Path) -> Result<Ids, String> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|why| format!("{name}: {why}"))?;
        // A pipe is empty when it is read again.
        if !file.metadata().is_ok_and(|known| known.is_file()) {
            return Err(format!("{name}: it is read twice, so it must be a file"));
        }
        Ok(Ids { name, lines: BufReader::new(file), number: 0, line: Vec::new() })
    }

    /// The id of the next line, which may be empty; `None` at the end.
    fn id(&mut self) -> Result<Option<String>, String> {
        self.line.clear();
        let mut lines = (&mut self.lines).take(LINE_BYTES_MAX);
        if lines.read_until(b'\n', &mut self.line).map_err(|why| why.to_string())? == 0 {
            return Ok(None);
        }
        if self.line.len() as u64 == LINE_BYTES_MAX {
            return Err(format!("is longer than {LINE_BYTES_MAX} bytes"));
        }
        let line = std::str::from_utf8(&self.line).map_err(|why| why.to_string())?;
        let line = if self.number == 0 { line.trim_start_matches('\u{feff}') } else { line };
        let id = line.split(',').next().unwrap_or_default().trim().trim_matches('"');
        if id.is_empty() || (self.number == 0 && id == HEAD) {
            return Ok(Some(String::new()));
        }
        check(id)?;
        Ok(Some(id.to_owned()))
    }
}

impl Iterator for Ids {
    type Item = Result<String, String>;

    fn next(&mut self) -> Option<Result<String, String>> {
        loop {
            let id = self.id();
            self.number += 1;
            match id {
                Ok(None) => return None,
                Ok(Some(id)) if id.is_empty() => {}
                Ok(Some(id)) => return Some(Ok(id)),
                Err(why) => {
                    return Some(Err(format!("{}, line {}: {why}", self.name, self.number)));
                }
            }
        }
    }
}

async fn waiting(api: &AdminApi) -> Result<(), Failure> {
    let waiting = api.get("/admin/cool-downs").await?;
    for one in waiting["cool_downs"].as_array().into_iter().flatten() {
        let until = iso_time(one["until"].as_i64().unwrap_or_default());
        println!("{until}  {}", one["user_id"].as_str().unwrap_or_default());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_lines_or_a_table_and_a_bad_line_is_named() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("list.csv");
        let read_text = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Ids::of(&path).unwrap().collect::<Result<Vec<String>, String>>()
        };
        let names = vec!["ann".to_owned(), "用户2".to_owned()];
        assert_eq!(read_text("ann\n\n用户2\n"), Ok(names.clone()));
        assert_eq!(read_text("\u{feff}user_id,name\r\n\"ann\",Ann\r\n用户2,Bob\r\n"), Ok(names));
        assert!(read_text("ann\nb ob\n").unwrap_err().contains("line 2"));
        assert_eq!(read_text("\n"), Ok(Vec::new()));
        let long = "x".repeat(LINE_BYTES_MAX as usize);
        assert!(read_text(&format!("ann\n{long}\n")).unwrap_err().contains("line 2"));
        assert!(Ids::of(Path::new("/nowhere")).is_err());
        // What can be read once only would be looked at, and then nothing of it be sent.
        assert!(Ids::of(Path::new("/dev/null")).is_err_and(|why| why.contains("twice")));
    }
}

//! `seckill list`: members, buyers who are kept out, and buyers who have to wait.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum};
use ledger::LISTED_AT_ONCE_MAX;
use sale::{UserId, iso_time};
use serde_json::json;

use super::{AdminApi, Failure, admin_api::in_path};

/// The head of a table, if it has one.
const HEAD: &str = "user_id";

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
    let mut users: BTreeSet<String> = who.users.iter().cloned().collect();
    for user in &users {
        check(user).map_err(|why| format!("{user:?} {why}"))?;
    }
    if let Some(file) = &who.file {
        users.extend(read(file)?);
    }
    let users: Vec<String> = users.into_iter().collect();
    let mut changed = 0;
    for piece in users.chunks(LISTED_AT_ONCE_MAX) {
        let answer = api.post(path, &json!({"users": piece})).await?;
        changed += answer["changed"].as_u64().unwrap_or_default();
    }
    println!("{changed} {done}, of {} given", users.len());
    Ok(())
}

fn check(user: &str) -> Result<(), String> {
    UserId::new(user).map(drop).map_err(|why| why.to_string())
}

/// The ids of a file, or the first line that is none.
fn read(path: &Path) -> Result<Vec<String>, String> {
    let name = path.display();
    let file = File::open(path).map_err(|why| format!("{name}: {why}"))?;
    let mut users = Vec::new();
    for (n, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|why| format!("{name}, line {}: {why}", n + 1))?;
        let line = if n == 0 { line.trim_start_matches('\u{feff}') } else { &line };
        let id = line.split(',').next().unwrap_or_default().trim().trim_matches('"');
        if id.is_empty() || (n == 0 && id == HEAD) {
            continue;
        }
        check(id).map_err(|why| format!("{name}, line {}: {why}", n + 1))?;
        users.push(id.to_owned());
    }
    if users.is_empty() {
        return Err(format!("{name}: there is no id in it"));
    }
    Ok(users)
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
            read(&path)
        };
        let names = vec!["ann".to_owned(), "用户2".to_owned()];
        assert_eq!(read_text("ann\n\n用户2\n"), Ok(names.clone()));
        assert_eq!(read_text("\u{feff}user_id,name\r\n\"ann\",Ann\r\n用户2,Bob\r\n"), Ok(names));
        assert!(read_text("ann\nb ob\n").unwrap_err().contains("line 2"));
        assert!(read_text("\n").unwrap_err().contains("no id"));
        assert!(read(Path::new("/nowhere")).is_err());
    }
}

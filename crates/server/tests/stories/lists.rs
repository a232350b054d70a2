//! Lists of buyers as long as a shop has customers: added from a file and by upload, in bounded memory, and
//! asked at token time by their keys.

use std::{
    io::{BufWriter, Write},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use client::{Api, NewSale};
use serde_json::{Value, json};

use crate::{
    fixtures::{Deployment, Profile, Sale, now_ms},
    operators::seckill,
};

/// More than two pieces of what is sent at once.
const MANY: usize = 45_000;
const MILLION: usize = 1_000_000;
/// What a command, or a server, may need more for a list, however long it is. A whole million of ids would be
/// three times as much.
const GROWN_MB_MAX: f64 = 64.0;
const TOKENS_ASKED: usize = 200;

fn member(n: usize) -> String {
    format!("member-{n:09}")
}

/// A table, as a shop exports it.
fn write_members(path: &Path, ids: impl Iterator<Item = usize>) {
    let mut file = BufWriter::new(std::fs::File::create(path).unwrap());
    writeln!(file, "user_id,name").unwrap();
    ids.for_each(|n| writeln!(file, "{},\"Member {n}\"", member(n)).unwrap());
    file.flush().unwrap();
}

/// A sale for members alone.
async fn for_members(sale: &mut Sale) {
    let mut admin = sale.admin();
    let plan = json!({"name": "for members", "opens_at": now_ms() - 1_000,
        "closes_at": now_ms() + 3_600_000, "door": {"members_only": true},
        "items": [{"name": "Phone", "price": 1, "stock": 5}]});
    let made: Value = admin.write("/api/v1/admin/activities", &plan).await.unwrap();
    let path = format!("/api/v1/admin/activities/{}/publish", made["id"]);
    let _: Value = admin.write(&path, &json!({})).await.unwrap();
    sale.activity = made["id"].as_i64().unwrap();
    sale.item = made["items"][0]["id"].as_i64().unwrap();
}

/// Is this one given a token?
async fn is_let_in(sale: &Sale, user: &str) -> bool {
    let mut api = Api::new(sale.server().address, None);
    let jwt = sale.deployment.login().token(&mut api, user).await.unwrap();
    let path = format!("/api/v1/items/{}/token", sale.item);
    let told = Api::new(sale.server().address, Some(&jwt)).post(&path, &json!({})).await.unwrap();
    assert!(told.status == 200 || told.json()["reason"] == "members_only", "{}", told.json());
    told.status == 200
}

async fn a_long_list_is_added_in_pieces_and_one_bad_line_changes_nothing(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    for_members(&mut sale).await;
    let (folder, activity) = (tempfile::tempdir().unwrap(), sale.activity.to_string());
    let path = folder.path().join("members.csv");
    let file = path.display().to_string();
    let list = |verb: &str| {
        let words = ["list", verb, "members", "--file", &file, "--activity", &activity];
        seckill(&sale.deployment, &words)
    };
    write_members(&path, 0..MANY);
    std::fs::write(&path, [&std::fs::read(&path).unwrap()[..], b"b ad\n"].concat()).unwrap();
    let (code, said) = list("add");
    assert!(code != Some(0) && said.contains(&format!("line {}", MANY + 2)), "{said}");
    assert!(!is_let_in(&sale, &member(0)).await, "nobody was added");

    write_members(&path, 0..MANY);
    assert_eq!(list("add"), (Some(0), format!("{MANY} added, of {MANY} given\n")));
    assert_eq!(list("add"), (Some(0), format!("0 added, of {MANY} given\n")), "again is safe");
    // An upload over the API, half of which is new, with lines that say nothing.
    let ids = (MANY / 2..MANY + MANY / 2).map(|n| format!("{}\r\n\r\n", member(n)));
    let upload = ids.collect::<String>();
    let to = format!("/api/v1/admin/lists/members?activity={activity}");
    let kind = [("content-type", "text/csv")];
    let told = sale.admin().send("POST", &to, &kind, upload.as_bytes()).await.unwrap();
    assert_eq!(told.json()["changed"], MANY / 2, "{}", told.json());
    for n in [0, MANY - 1, MANY + MANY / 2 - 1] {
        assert!(is_let_in(&sale, &member(n)).await, "{n}");
    }
    assert!(!is_let_in(&sale, &member(2 * MANY)).await);
    assert_eq!(list("remove"), (Some(0), format!("{MANY} removed, of {MANY} given\n")));
    assert!(!is_let_in(&sale, &member(0)).await);
    assert!(is_let_in(&sale, &member(MANY)).await);
}

/// What a process has had in memory at the most.
fn peak_mb(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1_024.0)
}

/// Run a command to its end: how long it took, and what it had in memory at the most.
fn watched(deployment: &Deployment, words: &[&str]) -> (Duration, f64) {
    let began = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(words)
        .arg("--data")
        .arg(deployment.data())
        .envs(deployment.launches[0].env.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut peak = 0.0_f64;
    let status = loop {
        peak = peak.max(peak_mb(child.id()).unwrap_or_default());
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert!(status.success(), "{words:?}: {status}");
    (began.elapsed(), peak)
}

/// How long a token takes, in the middle.
async fn token_time(sale: &Sale, user: impl Fn(usize) -> String) -> Duration {
    let mut api = Api::new(sale.server().address, None);
    let path = format!("/api/v1/items/{}/token", sale.item);
    let mut times = Vec::new();
    for n in 0..TOKENS_ASKED {
        let jwt = sale.deployment.login().token(&mut api, &user(n)).await.unwrap();
        let bearer = format!("Bearer {jwt}");
        let began = Instant::now();
        api.send("POST", &path, &[("authorization", &bearer)], b"").await.unwrap();
        times.push(began.elapsed());
    }
    times.sort();
    times[TOKENS_ASKED / 2]
}

async fn a_list_of_a_million_takes_no_memory_and_tokens_no_longer(profile: Profile) {
    let mut sale = Deployment::new(profile).open_sale(NewSale::of(1)).await;
    for_members(&mut sale).await;
    let (folder, activity) = (tempfile::tempdir().unwrap(), sale.activity.to_string());
    let (path, few) = (folder.path().join("members.csv"), folder.path().join("few.csv"));
    // What is needed once is there after a few.
    write_members(&few, MILLION..MILLION + 10);
    let add = |file: &Path| {
        let file = file.display().to_string();
        let words = ["list", "add", "members", "--file", &file, "--activity", &activity];
        watched(&sale.deployment, &words)
    };
    let (_, command_mb) = add(&few);
    let before = token_time(&sale, |n| format!("stranger{n}")).await;
    let server_mb = peak_mb(sale.server().pid()).unwrap();

    write_members(&path, 0..MILLION);
    let (took, peak) = add(&path);
    let grown = [peak - command_mb, peak_mb(sale.server().pid()).unwrap() - server_mb];
    let (stranger, known) = (
        token_time(&sale, |n| format!("stranger{n}")).await,
        token_time(&sale, |n| member(n * 4_999)).await,
    );
    println!(
        "{profile:?}: {MILLION} ids from a file in {took:.1?}; the command had {peak:.0} MB, {:.0} more than \
         for ten ids, the server {:.0} MB more; a token took {before:?} before, {stranger:?} and {known:?} \
         (a member's) after",
        grown[0], grown[1]
    );
    assert!(grown.iter().all(|mb| *mb < GROWN_MB_MAX), "{grown:?}");
    assert!(is_let_in(&sale, &member(MILLION - 1)).await);
    assert!(known.max(stranger) < 3 * before + Duration::from_millis(5));
}

/// A million lines take minutes in a build that is not optimised.
mod long {
    use crate::fixtures::Profile;

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "long: a million ids"]
    async fn a_million_in_solo() {
        super::a_list_of_a_million_takes_no_memory_and_tokens_no_longer(Profile::Solo).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "long: a million ids"]
    async fn a_million_in_a_cluster() {
        super::a_list_of_a_million_takes_no_memory_and_tokens_no_longer(Profile::Cluster).await;
    }
}

crate::in_every_profile! {
    a_long_list_is_added_in_pieces_and_one_bad_line_changes_nothing,
}

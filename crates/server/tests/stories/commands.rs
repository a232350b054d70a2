//! A whole sale from the command line: nobody needs curl, and nobody is told of a place they did not mean.

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

use crate::fixtures::{Deployment, Manner, Profile, Receiver};

pub(crate) struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn of(output: Output) -> Said {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    #[track_caller]
    pub(crate) fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    /// Done, and something is not as it should be.
    #[track_caller]
    pub(crate) fn found_a_difference(self) -> String {
        assert_eq!(self.code, Some(1), "{}{}", self.out, self.err);
        self.out
    }

    /// Refused in one line of words beside the place that was asked, and nothing on standard output.
    #[track_caller]
    pub(crate) fn refused(self, words: &str) {
        assert_eq!((self.code, self.out.as_str()), (Some(2), ""), "{}", self.err);
        let last = self.err.trim().lines().last().unwrap_or_default();
        assert!(last.starts_with("seckill: ") && last.contains(words), "{}", self.err);
        assert!(!last.contains('{'), "words, not JSON: {}", self.err);
    }
}

/// What an operator types on the machine of the first server.
pub(crate) fn seckill(deployment: &Deployment, args: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(args)
        .arg("--data")
        .arg(deployment.data())
        .envs(deployment.launches[0].env.iter().map(|(name, value)| (name, value)))
        .output();
    Said::of(output.unwrap())
}

/// A command in a folder where nothing is, with nothing set.
fn lost(folder: &Path, args: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_seckill"))
        .args(args)
        .current_dir(folder)
        .env_remove("SECKILL_DATA")
        .output();
    Said::of(output.unwrap())
}

const PLAN: &[&str] = &[
    "sale",
    "create",
    "--name",
    "11.11",
    "--opens",
    "in 1h",
    "--lasts",
    "30m",
    "--pay-within",
    "15m",
    "--item",
    "iPhone 15 Pro;price=6999.00;stock=1000;limit=2;was=7999.00",
    "--item",
    "耳机；price=1499；stock=500",
];

async fn a_sale_is_planned_run_and_ended_from_the_command_line(profile: Profile) {
    let deployment = Deployment::new(profile);
    // The directory is made by a server; then nobody needs one.
    let servers = deployment.start().await;
    for server in servers {
        server.stop().await.unwrap();
    }
    let made = seckill(&deployment, PLAN).done();
    for part in
        ["draft: buyers do not see it", "6999.00 CNY", "1499.00 CNY", "(lasts 30 min)", "耳机"]
    {
        assert!(made.contains(part), "{part} in {made}");
    }
    let asked = seckill(&deployment, &["sale", "list"]);
    let place = match profile {
        Profile::Solo => format!("asked: the data directory {}", deployment.data().display()),
        Profile::Cluster => "asked: the cluster of redis://".into(),
    };
    assert!(asked.err.contains(&place), "{}", asked.err);
    assert!(asked.done().contains("11.11"));
    let list = seckill(&deployment, &["sale", "list", "--json"]).done();
    let list: Value = serde_json::from_str(&list).unwrap();
    let id = list["activities"][0]["id"].to_string();

    // The same commands, with the server running.
    let servers = deployment.start().await;
    let asked = seckill(&deployment, &["sale", "publish", &id]);
    let place = format!("asked: the server at {}", servers[0].address);
    assert!(asked.err.contains(&place), "{}", asked.err);
    assert!(asked.done().contains("waiting: buyers see it"));
    let shown = seckill(&deployment, &["warm", &id]).done();
    assert!(shown.contains("brought to the gate, 1000 units left") || shown.contains("already"));
    let shown = seckill(&deployment, &["sale", "show", &id]).done();
    assert!(shown.contains("1000") && shown.contains("iPhone 15 Pro"), "{shown}");
    let shown = seckill(&deployment, &["sale", "show", &id, "--json"]).done();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let item = shown["items"][0]["id"].to_string();
    assert_eq!(shown["pay_within_ms"], 900_000);
    let more = seckill(&deployment, &["sale", "stock", &item, "+5"]).done();
    assert!(more.contains("+5 units;") && !more.contains('{'), "{more}");
    seckill(&deployment, &["sale", "stock", &item, "-3"]).done();
    let shown = seckill(&deployment, &["sale", "show", &id]).done();
    assert!(shown.contains("1002"), "{shown}");
    assert!(
        seckill(&deployment, &["sale", "pause", &id]).done().contains("paused: nobody is let in")
    );
    assert!(seckill(&deployment, &["sale", "resume", &id]).done().contains("waiting"));
    seckill(&deployment, &["sale", "end", &id]).refused("say --yes");
    assert!(seckill(&deployment, &["sale", "end", &id, "--yes"]).done().contains("over for good"));
    seckill(&deployment, &["sale", "resume", &id]).refused("ended");
    seckill(&deployment, &["sale", "show", "999"]).refused("");
    let too_many = [
        "sale",
        "create",
        "--name",
        "x",
        "--opens",
        "in 1h",
        "--lasts",
        "1h",
        "--item",
        "x;price=1;stock=1;limit=5000",
    ];
    seckill(&deployment, &too_many).refused("items[0].limit_per_user");
}

async fn a_plan_comes_from_a_file_too_and_can_be_edited(profile: Profile) {
    let deployment = Deployment::new(profile);
    let _servers = deployment.start().await;
    let file = deployment.dir.path().join("sale.toml");
    let text = "name = 'from a file'\nopens_at = 'in 2h'\nlasts = '1h'\n\
                [[items]]\nname = 'Tea'\nprice = '9.90'\nstock = 20\n";
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let made = seckill(&deployment, &["sale", "create", "--file", &file, "--json"]).done();
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!((&made["items"][0]["price"], &made["state"]), (&990.into(), &"draft".into()));
    let id = made["id"].to_string();
    let edited =
        seckill(&deployment, &["sale", "edit", &id, "--opens", "in 3h", "--name", "later"]).done();
    assert!(edited.contains("later") && edited.contains("(lasts 1 h)"), "{edited}");
    let by_itself = seckill(&deployment, &["sale", "edit", &id, "--publish-at", "in 1h"]).done();
    assert!(by_itself.contains("draft: it publishes itself at"), "{by_itself}");
    // What is published can be moved, as long as it is not open.
    assert!(seckill(&deployment, &["sale", "publish", &id]).done().contains("waiting"));
    let moved = seckill(&deployment, &["sale", "edit", &id, "--opens", "in 5h"]).done();
    assert!(moved.contains("(in 4 h 59 min)") && moved.contains("(lasts 1 h)"), "{moved}");
    let published = seckill(&deployment, &["sale", "create", "--file", &file, "--publish"]).done();
    assert!(published.contains("waiting"), "{published}");
}

async fn a_table_of_sales_is_imported_whole_or_every_bad_line_is_named(profile: Profile) {
    let deployment = Deployment::new(profile);
    let _servers = deployment.start().await;
    let file = |name: &str, text: &str| {
        let path = deployment.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let head = "external_id,activity,opens_at,lasts,sku,name,price,currency,stock,limit_per_user,\
                description,attributes.colour\r\n";
    let row = "s-1,11.11,2030-11-11 20:00+08:00,1h,A-1,\"Phone, 256 GB\",6999.00,CNY,10,1,\
               \"Two\r\nlines\",blue\r\n";
    let rows = ",,,,A-2,Tea,500,JPY,5,2,,\r\ns-2,Later,2030-11-12 20:00+08:00,1h,A-1,Oil,1.234,KWD,3,1,,\r\n";
    let bad =
        ",,,,A-1,Pen,1.005,CNY,none,1,,\r\ns-3,Later,2030-11-12 20:00,1h,A-1,Oil,1,KWD,3,0,,\r\n";
    let wrong = file("wrong.csv", &format!("\u{FEFF}{head}{row}{rows}{bad}"));
    let said = seckill(&deployment, &["sale", "import", &wrong]);
    assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{}", said.err);
    for part in [
        "nothing was imported, 5 mistakes",
        "wrong.csv:6: price: \"1.005\" has more decimals",
        "wrong.csv:6: stock: \"none\" must be a whole number",
        "wrong.csv:6: sku: is that of another item",
        "wrong.csv:7: opens_at: ",
        "wrong.csv:7: limit_per_user: must be from 1",
    ] {
        assert!(said.err.contains(part), "{part} in {}", said.err);
    }
    let list = || seckill(&deployment, &["sale", "list", "--json"]).done();
    let count = || {
        let list: Value = serde_json::from_str(&list()).unwrap();
        list["activities"].as_array().unwrap().len()
    };
    let before = count();

    let good = file("sales.csv", &format!("\u{FEFF}{head}{row}{rows}"));
    let made = seckill(&deployment, &["sale", "import", &good, "--publish"]).done();
    for part in ["6999.00 CNY", "500 JPY", "1.234 KWD", "waiting: buyers see it", "Phone, 256 GB"] {
        assert!(made.contains(part), "{part} in {made}");
    }
    assert_eq!(count(), before + 2);
    let again = seckill(&deployment, &["sale", "import", &good, "--publish", "--json"]).done();
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(count(), before + 2, "nothing is made twice");
    let (one, item) = (&again["activities"][0], &again["activities"][0]["activity"]["items"][0]);
    assert_eq!((&one["created"], &one["activity"]["state"]), (&false.into(), &"published".into()));
    assert_eq!((&item["sku"], &item["description"]), (&"A-1".into(), &"Two\nlines".into()));
    assert_eq!(item["attributes"]["colour"], "blue");

    let json = file(
        "sales.json",
        "[{\"name\": \"x\", \"opens_at\": \"2030-11-11 20:00+08:00\", \"lasts\": \"1h\",\n\
         \"items\": [{\"name\": \"Tea\", \"price\": \"9.90\",\n\"stock\": 0}]}]",
    );
    let said = seckill(&deployment, &["sale", "import", &json]);
    assert!(said.err.contains("sales.json:3: items[0].stock: must be from 1"), "{}", said.err);
    let text = std::fs::read_to_string(&json).unwrap().replace("\"stock\": 0", "\"stock\": 5");
    let json = file("sales.json", &text);
    let made = seckill(&deployment, &["sale", "import", &json]).done();
    assert!(made.contains("draft: buyers do not see it") && made.contains("9.90 CNY"), "{made}");
    let again = seckill(&deployment, &["sale", "import", &json]).done();
    assert!(again.contains("it was there before"), "{again}");
    assert_eq!(count(), before + 3);
    let table = file("gbk.csv", "");
    std::fs::write(&table, b"activity,name\n\xca\xd6").unwrap();
    seckill(&deployment, &["sale", "import", &table]).refused("gbk.csv:2: is not UTF-8");
    seckill(&deployment, &["sale", "import", "no-such-file.csv"]).refused("no-such-file.csv");
}

async fn endpoints_of_the_shop_are_run_from_the_command_line(profile: Profile) {
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let receiver = Receiver::start(SECRET).await;
    let deployment = Deployment::new(profile).env("SECKILL_WEBHOOKS_ALLOWED_HOSTS", "127.0.0.1");
    let servers = deployment.start().await;
    let say = |args: &[&str]| {
        let args = [&["webhooks"], args].concat();
        tokio::task::block_in_place(|| seckill(&deployment, &args))
    };
    assert_eq!(say(&["list"]).done(), "no endpoints\n");
    say(&["add", "http://10.0.0.1/"]).refused("is not a public address");
    say(&["add", &receiver.url(), "--events", "order.eaten"]).refused("events");
    let secret = say(&["add", &receiver.url(), "--events", "order.paid,order.refunded"]).done();
    assert!(secret.starts_with("whsec_"), "{secret}");
    receiver.knows(&[secret.trim()]);
    let listed: Value = serde_json::from_str(&say(&["list", "--json"]).done()).unwrap();
    assert_eq!(listed[0]["events"], serde_json::json!(["order.paid", "order.refunded"]));
    let id = listed[0]["id"].to_string();
    assert_eq!(say(&["test", &id]).done(), "taken, with 204\n");
    receiver.behaves(Manner::Answers(404));
    let not_taken = say(&["test", &id]);
    assert_eq!((not_taken.code, not_taken.out.as_str()), (Some(1), "not taken: 404\n"));
    assert_ne!(say(&["rotate", &id]).done(), secret);
    assert_eq!(say(&["deliveries", &id, "--state", "failed"]).done(), "no deliveries\n");
    assert_eq!(
        say(&["replay", &id, "--since", "2026-01-01T00:00:00Z"]).done(),
        "0 are sent again\n"
    );
    say(&["replay", &id, "--delivery", "77"]).refused("");
    assert!(say(&["disable", &id]).done().contains("switched off"));
    assert!(say(&["list"]).done().contains("an operator switched it off"));
    assert!(say(&["enable", &id]).done().contains("switched on"));
    assert!(say(&["remove", &id]).done().contains("removed"));
    say(&["remove", &id]).refused("");
    drop(servers);
}

crate::in_every_profile! {
    a_table_of_sales_is_imported_whole_or_every_bad_line_is_named,
    a_sale_is_planned_run_and_ended_from_the_command_line,
    a_plan_comes_from_a_file_too_and_can_be_edited,
}

#[test]
fn a_command_that_finds_no_data_says_so_and_makes_none() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["reconcile"][..],
        &["reconcile", "--dry-run", "--json"],
        &["sale", "list"],
        &["dead-letters", "list"],
        &["token", "list"],
        &["token", "create", "ann"],
        &["warm", "1"],
        &["migrate"],
        &["claims", "--since", "1h"],
        &["order", "show", "SK0381966054408192001"],
        &["key", "list"],
        &["list", "all"],
        &["webhooks", "list"],
        &["backup", "copy"],
        &["reconcile", "--data", "no-such-folder"],
        // A folder that is there, and is not Seckill's.
        &["reconcile", "--data", "."],
    ] {
        let said = lost(folder.path(), args);
        let place = folder.path().canonicalize().unwrap().display().to_string();
        assert!(
            said.err.contains(&place)
                || said.err.contains("./data")
                || said.err.contains("no-such"),
            "{}",
            said.err
        );
        said.refused("give --data DIR or SECKILL_DATA");
    }
    lost(folder.path(), &["console"]).refused("no server runs on");
    let doctor = lost(folder.path(), &["doctor"]);
    assert!(doctor.done().contains("data is not there yet: the first start makes it"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
}

crate::only_in_solo! {
    endpoints_of_the_shop_are_run_from_the_command_line,
}

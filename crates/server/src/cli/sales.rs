//! `seckill sale`: a sale from its plan to its end, without a console and without curl.

use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
};

use clap::{Args, Subcommand};
use sale::{Clock, Currency, Millis, Money, SystemClock, iso_time};
use serde_json::{Value, json};

use super::{
    AdminApi, Failure,
    durations::roughly,
    import::{self, Import},
    sale_plan::{self, When},
};

const EXAMPLES: &str = "\
Examples:
  seckill sale create --name '11.11' --opens '2030-11-11 20:00+08:00' --lasts 1h \\
      --item 'iPhone 15 Pro;price=6999.00;stock=1000' \\
      --item 'AirPods;price=1499.00;stock=500;limit=2' --publish
  seckill sale create --name 'Try it' --opens 'in 1m' --lasts 10m --item 'Tea;price=9.90;stock=20' --publish
  seckill sale create --file sale.toml

A file is the body of POST /api/v1/admin/activities as JSON or TOML; in it times and lengths may be typed as
here (opens_at = \"in 10m\", lasts = \"1h\", pay_within = \"15m\"), and a price that is a text (\"6999.00\")
is in the currency's own units, a number in its smallest.";

#[derive(Subcommand)]
pub(super) enum Sale {
    /// Plan a sale; buyers see it when it is published
    #[command(after_help = EXAMPLES)]
    Create(Box<Create>),
    /// Sales from a file, a table (CSV) or JSON: all of them, or none and every bad line named
    #[command(after_help = import::EXAMPLES)]
    Import(Import),
    /// The latest sales, drafts among them
    List {
        /// Only sales before this one, for those that had no room in the list
        #[arg(long, value_name = "ID")]
        before: Option<i64>,
        /// As JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// One sale with its items, and what is left of them
    Show {
        /// The sale's number
        id: i64,
        /// As JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Show a draft to buyers, and sell it in its window
    Publish {
        /// The sale's number
        id: i64,
    },
    /// Let nobody in until it is resumed, or until a time
    Pause {
        /// The sale's number
        id: i64,
        /// It goes on by itself then: 'in 10m' or '2030-11-11 20:10+08:00'
        #[arg(long, value_name = "TIME", value_parser = sale_plan::when)]
        until: Option<When>,
    },
    /// Let a paused sale go on
    Resume {
        /// The sale's number
        id: i64,
    },
    /// End a sale for good
    End {
        /// The sale's number
        id: i64,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Change a draft, or move what is published and not open yet to another time
    ///
    /// With --opens alone the sale stays as long as it was. What is published can only be moved, or be given
    /// another challenge, also while it sells.
    Edit(Edit),
    /// Add units to an item, or take away what is neither sold nor claimed
    Stock {
        /// The item's number, as `seckill sale show` has it
        item: i64,
        /// How many, e.g. +100 or -20
        #[arg(allow_hyphen_values = true)]
        by: i64,
        /// The number of a change of which it is not known whether it was done
        #[arg(long, value_name = "SK…")]
        again: Option<String>,
    },
}

#[derive(Args)]
pub(super) struct Create {
    /// What buyers read above it
    #[arg(long, required_unless_present = "file", conflicts_with = "file")]
    name: Option<String>,
    /// When it opens: '2030-11-11 20:00+08:00', 'in 10m' or 'now'
    #[arg(long, value_name = "TIME", value_parser = sale_plan::when)]
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    opens: Option<When>,
    /// When it closes, in the same words
    #[arg(long, value_name = "TIME", value_parser = sale_plan::when)]
    #[arg(required_unless_present_any = ["file", "lasts"], conflicts_with_all = ["file", "lasts"])]
    closes: Option<When>,
    /// How long it lasts instead: 90s, 30m, 1h30m or 2d
    #[arg(long, value_name = "LENGTH", value_parser = sale_plan::length_ms, conflicts_with = "file")]
    lasts: Option<Millis>,
    /// How long a buyer may take to pay [default: 30m]
    #[arg(long, value_name = "LENGTH", value_parser = sale_plan::length_ms, conflicts_with = "file")]
    pay_within: Option<Millis>,
    /// What is sold: 'NAME;price=6999.00;stock=1000', and if you like limit=1 (per buyer), was=7999.00,
    /// currency=CNY, sku=A-1, image=https://…, shards=4; may be given several times
    #[arg(long, value_name = "ITEM", value_parser = sale_plan::item)]
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    item: Vec<Value>,
    /// The plan from a file, .json or .toml
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Publish it at once
    #[arg(long)]
    publish: bool,
    /// Let it publish itself at this time
    #[arg(long, value_name = "TIME", value_parser = sale_plan::when,
        conflicts_with_all = ["file", "publish"])]
    publish_at: Option<When>,
    #[command(flatten)]
    door: DoorFlags,
    /// Whoever claims in this time from the opening on has the same chance: they are drawn, at most 5s
    #[arg(long, value_name = "LENGTH", value_parser = sale_plan::length_ms, conflicts_with = "file")]
    fair_start: Option<Millis>,
    /// As JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// How buyers are let in.
#[derive(Args)]
struct DoorFlags {
    /// What buyers do for a sale token: off, pow (their machine works) or captcha (they read letters)
    #[arg(long, value_parser = ["off", "pow", "captcha"])]
    challenge: Option<String>,
    /// How long a machine works on it, 12 to 28; one more is twice as long
    #[arg(long, value_name = "BITS")]
    difficulty: Option<u32>,
    /// How long before the opening sale tokens are given
    #[arg(long, value_name = "LENGTH", value_parser = sale_plan::length_ms)]
    token_before: Option<Millis>,
    /// When members may buy, up to a day before the others
    #[arg(long, value_name = "TIME", value_parser = sale_plan::when)]
    members_from: Option<When>,
    /// Nobody but members may buy: true or false
    #[arg(long, value_name = "BOOL")]
    members_only: Option<bool>,
}

impl DoorFlags {
    /// As the API wants it; nothing if nothing was said.
    fn given(&self, now_ms: Millis) -> Option<Value> {
        let mut door = serde_json::Map::new();
        let mut note = |name: &str, value: Option<Value>| {
            door.extend(value.map(|value| (name.to_owned(), value)));
        };
        note("challenge", self.challenge.clone().map(Value::from));
        note("difficulty", self.difficulty.map(Value::from));
        note("token_before_ms", self.token_before.map(Value::from));
        note("members_from", self.members_from.map(|when| when.at_ms(now_ms).into()));
        note("members_only", self.members_only.map(Value::from));
        (!door.is_empty()).then_some(Value::Object(door))
    }
}

#[derive(Args)]
pub(super) struct Edit {
    /// The sale's number
    id: i64,
    /// What buyers read above it
    #[arg(long)]
    name: Option<String>,
    /// When it opens: '2030-11-11 20:00+08:00' or 'in 10m'
    #[arg(long, value_name = "TIME", value_parser = sale_plan::when)]
    opens: Option<When>,
    /// When it closes, in the same words
    #[arg(long, value_name = "TIME", value_parser = sale_plan::when, conflicts_with = "lasts")]
    closes: Option<When>,
    /// How long it lasts instead
    #[arg(long, value_name = "LENGTH", value_parser = sale_plan::length_ms)]
    lasts: Option<Millis>,
    /// How long a buyer may take to pay
    #[arg(long, value_name = "LENGTH", value_parser = sale_plan::length_ms)]
    pay_within: Option<Millis>,
    /// Let a draft publish itself at this time
    #[arg(long, value_name = "TIME", value_parser = sale_plan::when)]
    publish_at: Option<When>,
    #[command(flatten)]
    door: DoorFlags,
    /// How long from the opening on claims of a draft are gathered and drawn; 0s: they are not
    #[arg(long, value_name = "LENGTH", value_parser = sale_plan::length_ms)]
    fair_start: Option<Millis>,
}

type Result<T = ()> = std::result::Result<T, Failure>;

pub(super) async fn run(api: &AdminApi, command: Sale) -> Result {
    match command {
        Sale::Create(create) => create.run(api).await,
        Sale::Import(import) => import.run(api).await,
        Sale::List { before, json } => list(api, before, json).await,
        Sale::Show { id, json } => show(api, id, json).await,
        Sale::Publish { id } => step(api, id, "publish").await,
        Sale::Pause { id, until } => pause(api, id, until).await,
        Sale::Resume { id } => step(api, id, "resume").await,
        Sale::End { id, yes } => end(api, id, yes).await,
        Sale::Edit(edit) => edit.run(api).await,
        Sale::Stock { item, by, again } => stock(api, item, by, again).await,
    }
}

/// Brings the items to the gate before their time.
pub(super) async fn warm(api: &AdminApi, id: i64, anew: bool) -> Result {
    let warmed = api.post(&format!("/admin/activities/{id}/warm?anew={anew}"), &json!({})).await?;
    for item in warmed["items"].as_array().into_iter().flatten() {
        let how =
            if item["already"] == true { "already at the gate" } else { "brought to the gate" };
        println!("item {}: {how}, {} units left", item["item_id"], item["left"]);
    }
    Ok(())
}

impl Create {
    async fn run(self, api: &AdminApi) -> Result {
        let now_ms = SystemClock.now_ms();
        let plan = match &self.file {
            Some(path) => sale_plan::from_file(path, now_ms)?,
            None => self.plan(now_ms),
        };
        let mut made = api.post("/admin/activities", &plan).await?;
        let id = number(&made, "id");
        if self.publish {
            let published = api.post(&format!("/admin/activities/{id}/publish"), &json!({})).await;
            made = published.map_err(|failure| match failure {
                Failure::Cannot(why) => Failure::Cannot(format!(
                    "sale {id} was made and is a draft, but it was not published: {why}"
                )),
                no => no,
            })?;
        }
        if self.json {
            println!("{made}");
        } else {
            print_sale(&made, &[]);
        }
        Ok(())
    }

    /// The command line has seen to it that nothing is missing.
    fn plan(&self, now_ms: Millis) -> Value {
        let opens_ms = self.opens.map_or(now_ms, |opens| opens.at_ms(now_ms));
        let lasts_ms = self.lasts.unwrap_or_default();
        let closes_ms =
            self.closes.map_or(opens_ms.saturating_add(lasts_ms), |closes| closes.at_ms(now_ms));
        let mut plan = json!({
            "name": self.name, "opens_at": opens_ms, "closes_at": closes_ms, "items": self.item,
        });
        if let Some(within_ms) = self.pay_within {
            plan["pay_within_ms"] = within_ms.into();
        }
        if let Some(publish_at) = self.publish_at {
            plan["publish_at"] = publish_at.at_ms(now_ms).into();
        }
        if let Some(door) = self.door.given(now_ms) {
            plan["door"] = door;
        }
        if let Some(shuffle_ms) = self.fair_start {
            plan["shuffle_ms"] = shuffle_ms.into();
        }
        plan
    }
}

impl Edit {
    async fn run(self, api: &AdminApi) -> Result {
        let now_ms = SystemClock.now_ms();
        let path = format!("/admin/activities/{}", self.id);
        let before = api.get(&path).await?;
        // The version that these changes are made to: if somebody else was faster, nothing is changed.
        let mut edit = json!({"version": number(&before, "version")});
        let opened_ms = number(&before, "opens_at");
        let opens_ms = self.opens.map_or(opened_ms, |opens| opens.at_ms(now_ms));
        if self.opens.is_some() {
            edit["opens_at"] = opens_ms.into();
        }
        let lasted_ms = number(&before, "closes_at").saturating_sub(opened_ms);
        if let Some(closes) = self.closes {
            edit["closes_at"] = closes.at_ms(now_ms).into();
        } else if self.opens.is_some() || self.lasts.is_some() {
            edit["closes_at"] = opens_ms.saturating_add(self.lasts.unwrap_or(lasted_ms)).into();
        }
        if let Some(name) = self.name {
            edit["name"] = name.into();
        }
        if let Some(within_ms) = self.pay_within {
            edit["pay_within_ms"] = within_ms.into();
        }
        if let Some(publish_at) = self.publish_at {
            edit["publish_at"] = publish_at.at_ms(now_ms).into();
        }
        if let Some(door) = self.door.given(now_ms) {
            edit["door"] = door;
        }
        if let Some(shuffle_ms) = self.fair_start {
            edit["shuffle_ms"] = shuffle_ms.into();
        }
        print_sale(&api.patch(&path, &edit).await?, &[]);
        Ok(())
    }
}

async fn list(api: &AdminApi, before: Option<i64>, as_json: bool) -> Result {
    let page = match before {
        Some(id) => api.get(&format!("/admin/activities?before={id}")).await?,
        None => api.get("/admin/activities").await?,
    };
    if as_json {
        println!("{page}");
        return Ok(());
    }
    let sales = page["activities"].as_array().cloned().unwrap_or_default();
    if sales.is_empty() {
        println!("no sales; make one with `seckill sale create` (--help has examples)");
        return Ok(());
    }
    let now_ms = SystemClock.now_ms();
    let head = ["sale", "state", "opens", "closes", "items", "stock"];
    let mut rows = vec![row(&head.map(String::from), "name")];
    for sale in &sales {
        let items = sale["items"].as_array().map_or(&[][..], Vec::as_slice);
        let stock: i64 = items.iter().map(|item| number(item, "stock")).sum();
        let columns = [
            number(sale, "id").to_string(),
            state_now(sale, now_ms),
            iso_time(number(sale, "opens_at")),
            iso_time(number(sale, "closes_at")),
            items.len().to_string(),
            stock.to_string(),
        ];
        rows.push(row(&columns, text(sale, "name")));
    }
    println!("{}", rows.join("\n"));
    if let Some(id) = page["next"].as_i64() {
        println!("there are earlier ones: seckill sale list --before {id}");
    }
    Ok(())
}

fn row(columns: &[String; 6], name: &str) -> String {
    let [id, state, opens, closes, items, stock] = columns;
    format!("{id:>5}  {state:9}  {opens:24}  {closes:24}  {items:>5}  {stock:>9}  {name}")
}

async fn show(api: &AdminApi, id: i64, as_json: bool) -> Result {
    let sale = api.get(&format!("/admin/activities/{id}")).await?;
    if as_json {
        println!("{sale}");
        return Ok(());
    }
    let mut at_gate = Vec::new();
    for item in sale["items"].as_array().into_iter().flatten() {
        let both = api.get(&format!("/admin/items/{}", number(item, "id"))).await?;
        at_gate.push(both["gate"]["left"].as_i64());
    }
    print_sale(&sale, &at_gate);
    Ok(())
}

async fn step(api: &AdminApi, id: i64, verb: &str) -> Result {
    print_sale(&api.post(&format!("/admin/activities/{id}/{verb}"), &json!({})).await?, &[]);
    Ok(())
}

async fn pause(api: &AdminApi, id: i64, until: Option<When>) -> Result {
    let until = until.map(|when| when.at_ms(SystemClock.now_ms()));
    let asked = until.map_or_else(|| json!({}), |at_ms| json!({"until": at_ms}));
    print_sale(&api.post(&format!("/admin/activities/{id}/pause"), &asked).await?, &[]);
    Ok(())
}

async fn end(api: &AdminApi, id: i64, yes: bool) -> Result {
    if !yes {
        let sale = api.get(&format!("/admin/activities/{id}")).await?;
        if !std::io::stdin().is_terminal() {
            return Err(Failure::Cannot(format!(
                "ending sale {id}, {:?}, is for good: say --yes",
                text(&sale, "name")
            )));
        }
        print!("End sale {id}, {:?}, for good? Type {id} to end it: ", text(&sale, "name"));
        std::io::stdout().flush()?;
        let mut typed = String::new();
        std::io::stdin().read_line(&mut typed)?;
        if typed.trim() != id.to_string() {
            return Err(Failure::Cannot(format!("sale {id} goes on")));
        }
    }
    step(api, id, "end").await
}

async fn stock(api: &AdminApi, item: i64, by: i64, again: Option<String>) -> Result {
    let mut body = json!({"delta": by});
    if let Some(no) = again {
        body["adjust_no"] = no.into();
    }
    let done = api.post(&format!("/admin/items/{item}/stock"), &body).await?;
    let (before, after) = (number(&done, "before"), number(&done, "after"));
    println!("item {item}: {by:+} units; {after} are not sold, {before} were before");
    Ok(())
}

fn number(of: &Value, name: &str) -> i64 {
    of[name].as_i64().unwrap_or_default()
}

fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or_default()
}

/// What buyers would call it: a published sale waits, is open, or is over.
fn state_now(sale: &Value, now_ms: Millis) -> String {
    match text(sale, "state") {
        "published" if now_ms < number(sale, "opens_at") => "waiting".into(),
        "published" if now_ms < number(sale, "closes_at") => "open".into(),
        other => other.into(),
    }
}

fn from_now(at_ms: Millis, now_ms: Millis) -> String {
    let apart = roughly(at_ms.abs_diff(now_ms));
    if at_ms >= now_ms { format!("in {apart}") } else { format!("{apart} ago") }
}

/// `at_gate` has the units left at the gate for each item, where somebody asked for them.
pub(super) fn print_sale(sale: &Value, at_gate: &[Option<i64>]) {
    print!("{}", sale_text(sale, at_gate, SystemClock.now_ms()));
}

fn sale_text(sale: &Value, at_gate: &[Option<i64>], now_ms: Millis) -> String {
    let id = number(sale, "id");
    let (opens_ms, closes_ms) = (number(sale, "opens_at"), number(sale, "closes_at"));
    let state = state_now(sale, now_ms);
    let meaning = match state.as_str() {
        "draft" => match sale["publish_at"].as_i64() {
            Some(at_ms) => format!(": it publishes itself at {}", iso_time(at_ms)),
            None => format!(": buyers do not see it; `seckill sale publish {id}` shows it to them"),
        },
        "waiting" => ": buyers see it, and it opens by itself".into(),
        "open" => ": it is selling now".into(),
        "paused" => match sale["resumes_at"].as_i64() {
            Some(at_ms) => {
                let (at, wait) = (iso_time(at_ms), from_now(at_ms, now_ms));
                format!(": nobody is let in until {at} ({wait}), or `seckill sale resume {id}`")
            }
            None => format!(": nobody is let in; `seckill sale resume {id}` lets it go on"),
        },
        "ended" => ": it is over for good".into(),
        _ => String::new(),
    };
    let lasts = roughly(closes_ms.saturating_sub(opens_ms).max(0) as u64);
    let pay_within = roughly(number(sale, "pay_within_ms").max(0) as u64);
    // Only where something was changed and the gate could not be told.
    let meaning = match text(sale, "at_gate") {
        "pending" => format!(" (the gate does not answer; it is told as soon as it does){meaning}"),
        _ => meaning,
    };
    let drawn = sale["draw"]["shuffle_ms"].as_u64().map(|shuffle_ms| {
        let (length, commitment) = (roughly(shuffle_ms), text(&sale["draw"], "commitment"));
        format!("  drawn   claims of the first {length}; the seed's SHA-256 is {commitment}")
    });
    let mut lines = vec![
        format!("sale {id}  {}", text(sale, "name")),
        format!("  state   {state}{meaning}"),
        format!("  opens   {} ({})", iso_time(opens_ms), from_now(opens_ms, now_ms)),
        format!("  closes  {} (lasts {lasts})", iso_time(closes_ms)),
        format!("  to pay  {pay_within}"),
    ];
    lines.extend(drawn);
    lines.push(format!(
        "  {:>6}  {:>16}  {:>9}  {:>9}  {:>9}  {:>5}  name",
        "item", "price", "units", "unsold", "at gate", "limit"
    ));
    for (n, item) in sale["items"].as_array().into_iter().flatten().enumerate() {
        let currency: Currency = text(item, "currency").parse().unwrap_or(Currency::CNY);
        let left = at_gate.get(n).copied().flatten();
        lines.push(format!(
            "  {:>6}  {:>16}  {:>9}  {:>9}  {:>9}  {:>5}  {}",
            number(item, "id"),
            Money::new(number(item, "price"), currency).to_string(),
            number(item, "total"),
            number(item, "stock"),
            left.map_or("–".into(), |left| left.to_string()),
            number(item, "limit_per_user"),
            text(item, "name")
        ));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: Millis = 1_796_126_400_000;

    fn sale() -> Value {
        json!({"id": 7, "name": "11.11", "state": "published", "opens_at": NOW_MS + 600_000,
            "closes_at": NOW_MS + 4_200_000, "pay_within_ms": 1_800_000,
            "items": [{"id": 42, "name": "手机", "price": 699_900, "currency": "CNY", "stock": 990,
                "total": 1_000, "limit_per_user": 1}]})
    }

    #[test]
    fn a_sale_is_shown_as_an_operator_reads_it() {
        let shown = sale_text(&sale(), &[Some(985)], NOW_MS);
        for part in [
            "sale 7  11.11\n",
            "waiting: buyers see it",
            "2026-12-01T12:10:00Z (in 10 min)",
            "2026-12-01T13:10:00Z (lasts 1 h)",
            "to pay  30 min",
            "6999.00 CNY",
            " 985 ",
            "手机",
        ] {
            assert!(shown.contains(part), "{part:?} in\n{shown}");
        }
        let mut pending = sale();
        pending["at_gate"] = "pending".into();
        assert!(sale_text(&pending, &[], NOW_MS).contains("the gate does not answer"));
        let open = sale_text(&sale(), &[], NOW_MS + 700_000);
        assert!(
            open.contains("open: it is selling now") && open.contains("(1 min 40 s ago)"),
            "{open}"
        );
    }
}

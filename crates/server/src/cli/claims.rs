//! `seckill claims`: what was admitted, as the claim log still has it, and whether the books know it.
//!
//! It is written as it is read, page by page, so that it may be longer than memory.

use std::{
    collections::{BTreeMap, HashSet},
    io::{BufWriter, Write},
};

use clap::{Args, ValueEnum};
use sale::{Clock, Millis, OrderNo, SystemClock, UserId, iso_time, parse_time};
use serde_json::Value;

use super::{AdminApi, Failure, admin_api::in_path, durations::duration_ms};
use crate::api::csv_cell;

/// Numbers remembered so that a claim that is settled meanwhile is shown once, eight bytes each and as much
/// again. Of a longer log later ones may be shown twice.
const REMEMBERED_MAX: usize = 8_000_000;
const HEAD: &str = "order_no,user_id,item_id,quantity,epoch,claimed_at,waits,state\r\n";
/// What the books say of a claim that they do not know.
const MISSING: &str = "missing";

#[derive(Args)]
pub(super) struct Claims {
    /// Made at this time or later: 2030-11-11T20:00+08:00, milliseconds, or how long ago, such as 2h or 1d
    #[arg(long, value_name = "T", value_parser = when)]
    since: Millis,
    /// Made before this time; unless told, now
    #[arg(long, value_name = "T", value_parser = when)]
    until: Option<Millis>,
    /// Only of this item
    #[arg(long, value_name = "ID")]
    item: Option<i64>,
    /// Only of this buyer
    #[arg(long, value_name = "ID")]
    user: Option<UserId>,
    /// Say what became of each: an order and its state, void, retrying, dead, queued, or missing
    #[arg(long)]
    compare: bool,
    /// How they are written
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For a person
    Table,
    /// One object on each line
    Json,
    /// For a spreadsheet
    Csv,
}

/// A time, or how long ago it was.
fn when(text: &str) -> Result<Millis, String> {
    if let Ok(ago) = duration_ms(text) {
        return Ok(SystemClock.now_ms().saturating_sub_unsigned(ago));
    }
    parse_time(text.trim()).map_err(|why| {
        format!("{why}; for example '2030-11-11 20:00+08:00', or 2h for two hours ago")
    })
}

/// What was seen of the claims so far.
#[derive(Default)]
struct Seen {
    numbers: HashSet<u64>,
    claims: u64,
    /// How many there are of each state.
    states: BTreeMap<String, u64>,
}

impl Seen {
    fn is_new(&mut self, claim: &Value) -> bool {
        let number = claim["order_no"].as_str().and_then(|no| no.parse::<OrderNo>().ok());
        let Some(number) = number.map(OrderNo::as_u64) else { return true };
        if self.numbers.len() < REMEMBERED_MAX {
            return self.numbers.insert(number);
        }
        !self.numbers.contains(&number)
    }

    fn note(&mut self, claim: &Value) {
        self.claims += 1;
        if let Some(state) = claim["state"].as_str() {
            *self.states.entry(state.to_owned()).or_default() += 1;
        }
    }

    fn missing(&self) -> u64 {
        self.states.get(MISSING).copied().unwrap_or(0)
    }

    fn in_words(&self) -> String {
        let states = self.states.iter().map(|(state, count)| format!(", {count} {state}"));
        format!("{} claims{}", self.claims, states.collect::<String>())
    }
}

pub(super) async fn run(api: &AdminApi, command: Claims) -> Result<(), Failure> {
    let until = command.until.unwrap_or_else(|| SystemClock.now_ms().saturating_add(1));
    if until <= command.since {
        return Err("--until must be later than --since: 2h is two hours ago".into());
    }
    let mut asked =
        format!("/admin/claims?from={}&to={until}", command.since.max(sale::TIME_MS_MIN));
    if let Some(item) = command.item {
        asked.push_str(&format!("&item_id={item}"));
    }
    if let Some(user) = &command.user {
        asked.push_str(&format!("&user_id={}", in_path(user.as_str())));
    }
    if command.compare {
        asked.push_str("&compare=true");
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    if command.format == Format::Csv {
        out.write_all(HEAD.as_bytes())?;
    }
    let (mut seen, mut path) = (Seen::default(), asked.clone());
    loop {
        let page = api.get(&path).await?;
        for claim in page["claims"].as_array().into_iter().flatten() {
            if seen.is_new(claim) {
                seen.note(claim);
                out.write_all(written(claim, command.format).as_bytes())?;
            }
        }
        out.flush()?;
        let Some(next) = page["next"].as_str() else { break };
        path = format!("{asked}&after={next}");
    }
    // Not among what a program may read.
    eprintln!("{}", seen.in_words());
    match seen.missing() {
        0 => Ok(()),
        missing => {
            eprintln!("{missing} claims were promised and are in none of the books");
            Err(Failure::No)
        }
    }
}

fn written(claim: &Value, format: Format) -> String {
    let text = |name: &str| claim[name].as_str().unwrap_or_default().to_owned();
    let claimed_ms = claim["claimed_at"].as_i64().unwrap_or_default();
    match format {
        Format::Json => format!("{claim}\n"),
        Format::Table => format!(
            "{}  {}  item {}  {} units  {}  {}{}\n",
            text("order_no"),
            iso_time(claimed_ms),
            claim["item_id"],
            claim["quantity"],
            text("user_id"),
            if claim["waits"] == true { "on the log  " } else { "" },
            text("state"),
        ),
        Format::Csv => {
            let mut line = format!("{},", text("order_no"));
            csv_cell(&mut line, &text("user_id"));
            for name in ["item_id", "quantity", "epoch", "claimed_at", "waits"] {
                line.push_str(&format!(",{}", claim[name]));
            }
            line.push_str(&format!(",{}\r\n", text("state")));
            line
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(order_no: &str, state: Value) -> Value {
        json!({
            "order_no": order_no, "user_id": "=cmd", "item_id": 7, "quantity": 2, "epoch": 1,
            "claimed_at": 1_796_126_400_000_i64, "waits": false, "state": state,
        })
    }

    #[test]
    fn a_time_is_given_or_is_so_long_ago() {
        assert_eq!(when("1796126400000"), Ok(1_796_126_400_000));
        assert_eq!(when("2026-12-01T20:00:00+08:00"), Ok(1_796_126_400_000));
        let ago = SystemClock.now_ms() - when("2h").unwrap();
        assert!((7_200_000..7_260_000).contains(&ago), "{ago}");
        assert!(when("yesterday").is_err());
    }

    #[test]
    fn a_claim_is_one_line_in_each_format() {
        let one = claim("SK1", json!("paid"));
        let table = "SK1  2026-12-01T12:00:00Z  item 7  2 units  =cmd  paid\n";
        assert_eq!(written(&one, Format::Table), table);
        let csv = "SK1,\"'=cmd\",7,2,1,1796126400000,false,paid\r\n";
        assert_eq!(written(&one, Format::Csv), csv);
        assert_eq!(serde_json::from_str::<Value>(&written(&one, Format::Json)).unwrap(), one);
    }

    #[test]
    fn a_claim_that_is_on_two_pages_counts_once() {
        let mut seen = Seen::default();
        let numbers = [1, 2].map(|n| OrderNo::from_u64(n).unwrap().to_string());
        for (n, state) in [(0, "queued"), (1, "missing"), (0, "unpaid")] {
            let claim = claim(&numbers[n], json!(state));
            if seen.is_new(&claim) {
                seen.note(&claim);
            }
        }
        assert_eq!(
            (seen.in_words().as_str(), seen.missing()),
            ("2 claims, 1 missing, 1 queued", 1)
        );
    }
}

//! `seckill sale import`: sales from a file, as a spreadsheet or a shop's system writes it.
//!
//! Everything in the file is judged before anything is made, and every mistake is named with its line:
//! what cannot be read here, what makes no sense by the server (a dry run). Then all of it is made in one
//! transaction, under a key that is the file's own hash. So the same file can be imported again after
//! whatever went wrong, and makes nothing twice.

mod csv;
mod json_lines;
mod table;

use std::path::{Path, PathBuf};

use clap::Args;
use sale::{Clock, Millis, SystemClock};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{AdminApi, Failure, sale_plan, sales::print_sale};
use json_lines::Lines;

/// A file may be this long; the server has its own limit, `http.import_body_bytes_max`.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
const PATH: &str = "/admin/activities/import";

pub(super) const EXAMPLES: &str = "\
A table (CSV, UTF-8, with commas) has a row per item:
  external_id,activity,opens_at,lasts,sku,name,price,currency,stock,attributes.colour
  11-11,11.11,2030-11-11 20:00+08:00,1h,A-1,\"Phone, 256 GB\",6999.00,CNY,1000,blue
  ,,,,A-2,Earphones,1499.00,CNY,500,white
Rows of one external_id (or else of one activity) are one sale; a row with neither belongs to the sale above.
Sales: external_id activity opens_at closes_at|lasts pay_within publish_at
  challenge difficulty members_from members_only fair_start
Items: sku name description image_url images price origin_price currency stock limit_per_user shards
attributes.NAME. Prices are in the currency's own units; several images are separated by spaces.

JSON is one body of POST /api/v1/admin/activities, a list of them, or {\"activities\": [...]}; times, lengths
and prices may be written as in `seckill sale create --file`.

Importing the same file again makes nothing twice, and a sale whose external_id is known stays as it is.";

#[derive(Args)]
pub(super) struct Import {
    /// The file: .json, or else a table (CSV)
    file: PathBuf,
    /// Publish what it holds, unless it is over or paused
    #[arg(long)]
    publish: bool,
    /// As JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// What is wrong where.
#[derive(Debug, PartialEq, Eq)]
struct Mistake {
    line: usize,
    /// Empty: the whole line.
    field: String,
    problem: String,
}

impl Mistake {
    fn new(line: usize, field: impl Into<String>, problem: impl Into<String>) -> Mistake {
        Mistake { line, field: field.into(), problem: problem.into() }
    }
}

/// What a file holds: bodies of `POST /admin/activities`, and where they stand in it.
#[derive(Default)]
struct Sales {
    plans: Vec<Value>,
    /// The line of each sale, and of each of its items.
    lines: Vec<(usize, Vec<usize>)>,
    /// The lines of a JSON file, where a value has one of its own.
    by_path: Option<Lines>,
    mistakes: Vec<Mistake>,
}

type Result<T = ()> = std::result::Result<T, Failure>;

impl Import {
    pub(super) async fn run(self, api: &AdminApi) -> Result {
        let bytes = read(&self.file)?;
        let text = std::str::from_utf8(&bytes).map_err(|bad| {
            let line = 1 + bytes[..bad.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
            let file = self.file.display();
            format!("{file}:{line}: is not UTF-8: save the table as \"CSV UTF-8\"")
        })?;
        let is_json = self.file.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
        let now_ms = SystemClock.now_ms();
        let sales = if is_json { from_json(text, now_ms) } else { from_table(text, now_ms) };
        let imported = self.import(api, sales, &key_of(&bytes)).await?;
        let mut shown = Vec::new();
        for one in imported["activities"].as_array().into_iter().flatten() {
            shown.push(self.publish(api, one).await?);
        }
        if self.json {
            println!("{}", json!({"activities": shown}));
            return Ok(());
        }
        for one in &shown {
            if one["created"] != true {
                println!("it was there before, and is as it was:");
            }
            print_sale(&one["activity"], &[]);
        }
        Ok(())
    }

    /// All of it, or nothing and every reason why.
    async fn import(&self, api: &AdminApi, mut sales: Sales, key: &str) -> Result<Value> {
        let body = json!({"activities": sales.plans});
        if !sales.plans.is_empty() {
            let judged = api.try_post(&format!("{PATH}?dry_run=true"), &[], &body).await?;
            if let Err(problem) = judged {
                let named = sales.mistakes_in(&problem);
                if named.is_empty() {
                    return Err(Failure::Cannot(super::admin_api::told(&problem)));
                }
                sales.mistakes.extend(named);
            }
        }
        if !sales.mistakes.is_empty() {
            return Err(Failure::Cannot(in_lines(&self.file, sales.mistakes)));
        }
        let made = api.try_post(PATH, &[("idempotency-key", key)], &body).await?;
        made.map_err(|problem| {
            if problem["code"] == "key_reused" {
                // Only what is counted from now on can differ in a file that is the same.
                let ids = &problem["activity_ids"];
                return Failure::Cannot(format!(
                    "this file was imported before, as sales {ids}; its times are counted from now, so \
                     that it would mean another sale each time: give sales an external_id, or fixed times"
                ));
            }
            Failure::Cannot(super::admin_api::told(&problem))
        })
    }

    async fn publish(&self, api: &AdminApi, imported: &Value) -> Result<Value> {
        let activity = &imported["activity"];
        if !self.publish || activity["state"] != "draft" {
            return Ok(imported.clone());
        }
        let id = &activity["id"];
        let path = format!("/admin/activities/{id}/publish");
        let published = api.post(&path, &json!({})).await.map_err(|failure| match failure {
            Failure::Cannot(why) => Failure::Cannot(format!(
                "all of it was imported, but sale {id} was not published: {why}"
            )),
            no => no,
        })?;
        Ok(json!({"created": imported["created"], "activity": published}))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let name = path.display();
    let cannot = |why: std::io::Error| Failure::Cannot(format!("{name}: {why}"));
    let bytes = std::fs::metadata(path).map_err(cannot)?.len();
    if bytes > FILE_BYTES_MAX {
        let problem = format!("{name}: is {bytes} bytes long, {FILE_BYTES_MAX} at most");
        return Err(Failure::Cannot(problem));
    }
    std::fs::read(path).map_err(cannot)
}

/// The same file, the same key.
fn key_of(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let hex: Vec<String> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("import-{}", hex.concat())
}

fn from_table(text: &str, now_ms: Millis) -> Sales {
    match csv::records(text) {
        Ok(records) => table::sales(&records, now_ms),
        Err(bad) => {
            Sales { mistakes: vec![Mistake::new(bad.line, "", bad.problem)], ..Default::default() }
        }
    }
}

/// One plan, a list of them, or an object that has the list.
fn from_json(text: &str, now_ms: Millis) -> Sales {
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    let mut sales = Sales::default();
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(bad) => {
            sales.mistakes.push(Mistake::new(bad.line(), "", bad.to_string()));
            return sales;
        }
    };
    let (prefix, plans) = match value {
        Value::Array(plans) => ("", plans),
        Value::Object(mut whole) => match whole.remove("activities") {
            Some(Value::Array(plans)) => ("activities", plans),
            Some(_) => {
                sales.mistakes.push(Mistake::new(1, "activities", "must be a list"));
                return sales;
            }
            None => ("one", vec![Value::Object(whole)]),
        },
        _ => {
            sales.mistakes.push(Mistake::new(1, "", "must be an object or a list of them"));
            return sales;
        }
    };
    if plans.is_empty() {
        sales.mistakes.push(Mistake::new(1, "activities", "there are none"));
    }
    let lines = Lines::of(text).under(prefix);
    for (n, mut plan) in plans.into_iter().enumerate() {
        let fields = plan.as_object_mut();
        for (field, problem) in
            fields.map(|plan| sale_plan::translate(plan, now_ms)).unwrap_or_default()
        {
            let line = lines.find(&format!("activities[{n}].{field}"));
            sales.mistakes.push(Mistake::new(line, field, problem));
        }
        sales.plans.push(plan);
    }
    sales.by_path = Some(lines);
    sales
}

impl Sales {
    /// What the server says is wrong, by its lines in the file.
    fn mistakes_in(&self, problem: &Value) -> Vec<Mistake> {
        let errors = problem["errors"].as_array().map_or(&[][..], Vec::as_slice);
        let named = errors.iter().map(|error| {
            let text = |name: &str| error[name].as_str().unwrap_or_default();
            let (path, problem) = (text("field"), text("problem"));
            let field = path.split_once("].").map_or("", |(_, field)| field);
            match &self.by_path {
                Some(lines) => Mistake::new(lines.find(path), field, problem),
                None => {
                    let (line, field) = self.row_of(path, field);
                    Mistake::new(line, field, problem)
                }
            }
        });
        let mut named: Vec<Mistake> = named.collect();
        let total = problem["errors_total"].as_u64().unwrap_or_default() as usize;
        if total > named.len() && !named.is_empty() {
            let last = named.iter().map(|mistake| mistake.line).max().unwrap_or(1);
            let more = format!("and {} more mistakes, here or below", total - named.len());
            named.push(Mistake::new(last, "", more));
        }
        named
    }

    /// Of a table: the row of an item, or the first one of a sale; and the column.
    fn row_of<'f>(&self, path: &str, field: &'f str) -> (usize, &'f str) {
        let number = |after: &str| {
            let begin = path.find(after)? + after.len();
            path[begin..].split(']').next()?.parse::<usize>().ok()
        };
        let sale = number("activities[").and_then(|n| self.lines.get(n));
        let Some((sale_line, item_lines)) = sale else { return (1, field) };
        let item = number("items[").and_then(|n| item_lines.get(n));
        match item {
            Some(line) => (*line, field.split_once("].").map_or("", |(_, column)| column)),
            None if field == "name" => (*sale_line, "activity"),
            None => (*sale_line, field),
        }
    }
}

/// Every mistake on a line of its own, as compilers write them.
fn in_lines(file: &Path, mut mistakes: Vec<Mistake>) -> String {
    mistakes.sort_by_key(|mistake| mistake.line);
    let count = mistakes.len();
    let lines = mistakes.iter().map(|Mistake { line, field, problem }| {
        let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
        format!("{}:{line}: {field}{problem}\n", file.display())
    });
    let lines: String = lines.collect();
    let them = if count == 1 { "1 mistake".into() } else { format!("{count} mistakes") };
    format!("nothing was imported, {them}:\n{}", lines.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: Millis = 1_796_126_400_000;

    fn told(sales: &Sales) -> Vec<(usize, &str)> {
        let mut told: Vec<_> =
            sales.mistakes.iter().map(|wrong| (wrong.line, wrong.field.as_str())).collect();
        told.sort();
        told
    }

    #[test]
    fn a_table_is_sales_with_their_items() {
        let text = "\u{FEFF}external_id,activity,opens_at,lasts,sku,name,price,currency,stock,images,\
                    attributes.colour\r\n\
                    s-1,\"11.11, 晚场\",2026-12-01 20:00+08:00,1h,A-1,Phone,6999.00,,10,/1.png /2.png,blue\r\n\
                    ,,,,A-2,\"Tea \"\"fine\"\"\",500,JPY,5,,\r\n\
                    s-2,Later,in 1h,1h,A-1,Phone,1.5,KWD,1,,\r\n\
                    s-1,,,,A-3,Pen,1,,1,,\r\n";
        let sales = from_table(text, NOW_MS);
        assert_eq!(told(&sales), []);
        assert_eq!(sales.lines, [(2, vec![2, 3, 5]), (4, vec![4])]);
        let [first, second] = &sales.plans[..] else { panic!("{:?}", sales.plans) };
        assert_eq!(first["name"], "11.11, 晚场");
        assert_eq!(
            (&first["opens_at"], &first["closes_at"]),
            (&json!(NOW_MS), &json!(NOW_MS + 3_600_000))
        );
        assert_eq!(
            first["items"][0],
            json!({"sku": "A-1", "name": "Phone", "price": 699_900, "currency": "CNY", "stock": 10,
                "images": ["/1.png", "/2.png"], "attributes": {"colour": "blue"}})
        );
        let tea = &first["items"][1];
        assert_eq!((&tea["name"], &tea["price"]), (&json!("Tea \"fine\""), &json!(500)));
        assert_eq!(first["items"][2]["sku"], "A-3");
        assert_eq!(
            (&second["external_id"], &second["items"][0]["price"]),
            (&json!("s-2"), &json!(1_500))
        );
    }

    #[test]
    fn every_bad_line_of_a_table_is_named() {
        let head = "activity,opens_at,closes_at,name,price,stock\n";
        for (text, wrong) in [
            ("", vec![(1, "")]),
            (head, vec![(1, "")]),
            ("activity;opens_at\nx", vec![(1, "")]),
            (
                "activity,opens_at,lasts,name,price,stock,stock,colour\nx",
                vec![(1, "colour"), (1, "stock")],
            ),
            (
                "name,price\nx,1",
                vec![(1, "activity"), (1, "closes_at"), (1, "opens_at"), (1, "stock")],
            ),
        ] {
            assert_eq!(told(&from_table(text, NOW_MS)), wrong, "{text:?}");
        }
        let rows = "x,now,in 1h,Phone,6999.00,10\n\
                    x,now,in 1h,Phone,6999.001,many\n\
                    x,soon,in 1h,,1,1\n\
                    \n\
                    x,,,Phone,1,1,1\n\
                    y,,,Tea,1e3,1\n";
        let sales = from_table(&format!("{head}{rows}"), NOW_MS);
        let wrong = [
            (3, "price"),
            (3, "stock"),
            (4, "name"),
            (4, "opens_at"),
            (6, ""),
            (7, "closes_at"),
            (7, "opens_at"),
            (7, "price"),
        ];
        assert_eq!(told(&sales), wrong);
        let problem = json!({"errors_total": 3, "errors": [
            {"field": "activities[0].items[1].sku", "problem": "no"},
            {"field": "activities[1].name", "problem": "no"}]});
        let named: Vec<_> =
            sales.mistakes_in(&problem).into_iter().map(|m| (m.line, m.field)).collect();
        assert_eq!(named, [(3, "sku".into()), (7, "activity".into()), (7, String::new())]);
    }

    #[test]
    fn json_is_one_sale_or_many_and_its_lines_are_known() {
        let one =
            r#"{"name": "x", "opens_at": "now", "lasts": "1h", "items": [{"price": "1.50"}]}"#;
        for (text, count) in [
            (one.to_owned(), 1),
            (format!("[{one},\n{one}]"), 2),
            (format!("{{\"activities\": [{one}]}}"), 1),
        ] {
            let sales = from_json(&text, NOW_MS);
            assert_eq!(told(&sales), [], "{text}");
            assert_eq!(sales.plans.len(), count);
            assert_eq!(sales.plans[0]["items"][0]["price"], 150);
        }
        let text = "[{\"name\": \"x\",\n\"opens_at\": \"tomorrow\",\n\
                    \"items\": [{\"price\":\n\"cheap\"}]},\n{}]";
        let sales = from_json(text, NOW_MS);
        assert_eq!(told(&sales), [(2, "opens_at"), (4, "items[0].price")]);
        let problem = json!({"errors": [{"field": "activities[1].name", "problem": "is missing"}]});
        assert_eq!(sales.mistakes_in(&problem), [Mistake::new(5, "name", "is missing")]);
        let whole = from_json("{\"name\": 1,\n\"items\": 7}", NOW_MS);
        let problem = json!({"errors": [{"field": "activities[0].items", "problem": "no"}]});
        assert_eq!(whole.mistakes_in(&problem), [Mistake::new(2, "items", "no")]);
        for bad in ["", "7", "{\"a\":\n", "[]", "{\"activities\": 7}"] {
            assert_eq!(from_json(bad, NOW_MS).mistakes.len(), 1, "{bad}");
        }
    }
}

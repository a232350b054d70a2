//! A table of items as sales: a row per item, and in it the columns of the sale that it is part of.
//!
//! Rows of one `external_id` are one sale; without one, rows of one `activity` (its name) are. A row that
//! names neither belongs to the sale of the row before. What is said of a sale in several of its rows must
//! be the same in all of them, or be left empty. A cell that cannot be read is told of, and something
//! harmless is put in its place, so that the server can judge the rest of the row all the same.

use std::collections::HashMap;

use engine::IMPORT_ITEMS_MAX;
use sale::{Currency, Millis, Money};
use serde_json::{Map, Value, json};

use super::{Mistake, Sales, csv::Record};
use crate::cli::sale_plan::{length_ms, when};

const SALE_COLUMNS: [&str; 12] = [
    "external_id",
    "activity",
    "opens_at",
    "closes_at",
    "lasts",
    "pay_within",
    "publish_at",
    "challenge",
    "difficulty",
    "members_from",
    "members_only",
    "fair_start",
];
const ITEM_COLUMNS: [&str; 11] = [
    "sku",
    "name",
    "description",
    "image_url",
    "images",
    "price",
    "origin_price",
    "currency",
    "stock",
    "limit_per_user",
    "shards",
];
/// Before the name of an attribute.
const ATTRIBUTE: &str = "attributes.";
const NEEDED: [&str; 5] = ["activity", "opens_at", "name", "price", "stock"];

/// A sale as its rows tell of it.
#[derive(Default)]
struct Told {
    line: usize,
    cells: HashMap<&'static str, String>,
    items: Vec<Value>,
    item_lines: Vec<usize>,
}

pub(super) fn sales(records: &[Record], now_ms: Millis) -> Sales {
    let mut mistakes = Vec::new();
    let Some((head, rows)) = records.split_first() else {
        mistakes.push(Mistake::new(1, "", "the file is empty"));
        return Sales { mistakes, ..Default::default() };
    };
    check_head(head, &mut mistakes);
    if rows.is_empty() {
        mistakes.push(Mistake::new(head.line, "", "there is no row below the head"));
    }
    if rows.len() > IMPORT_ITEMS_MAX {
        let problem = format!("the file has {} rows, {IMPORT_ITEMS_MAX} at most", rows.len());
        mistakes.push(Mistake::new(head.line, "", problem));
    }
    if !mistakes.is_empty() {
        return Sales { mistakes, ..Default::default() };
    }
    let mut told: Vec<Told> = Vec::new();
    for row in rows {
        read_row(&head.cells, row, &mut told, &mut mistakes);
    }
    let mut sales = Sales { mistakes, ..Default::default() };
    for sale in told {
        sales.lines.push((sale.line, sale.item_lines.clone()));
        let plan = plan(sale, now_ms, &mut sales.mistakes);
        sales.plans.push(plan);
    }
    sales
}

fn check_head(head: &Record, mistakes: &mut Vec<Mistake>) {
    let known = |name: &str| {
        let attribute = name.strip_prefix(ATTRIBUTE).is_some_and(|name| !name.is_empty());
        attribute || SALE_COLUMNS.contains(&name) || ITEM_COLUMNS.contains(&name)
    };
    let names: Vec<&str> = head.cells.iter().map(|cell| cell.trim()).collect();
    if let [only] = names[..]
        && only.contains(';')
    {
        let problem = "the columns are separated by ';': save the table with commas";
        return mistakes.push(Mistake::new(head.line, "", problem));
    }
    for (n, name) in names.iter().enumerate() {
        if !known(name) {
            let all = [&SALE_COLUMNS[..], &ITEM_COLUMNS[..]].concat().join(", ");
            let problem = format!("is no column; there are {all} and {ATTRIBUTE}NAME");
            mistakes.push(Mistake::new(head.line, *name, problem));
        } else if names[..n].contains(name) {
            mistakes.push(Mistake::new(head.line, *name, "is there twice"));
        }
    }
    for name in NEEDED {
        if !names.contains(&name) {
            mistakes.push(Mistake::new(head.line, name, "is missing: each row needs it"));
        }
    }
    if !names.contains(&"closes_at") && !names.contains(&"lasts") {
        mistakes.push(Mistake::new(head.line, "closes_at", "is missing, and so is lasts"));
    }
}

fn read_row(head: &[String], row: &Record, told: &mut Vec<Told>, mistakes: &mut Vec<Mistake>) {
    if row.cells.len() > head.len() {
        let problem = format!("has {} cells, and the head has {}", row.cells.len(), head.len());
        return mistakes.push(Mistake::new(row.line, "", problem));
    }
    let cell = |name: &str| {
        let at = head.iter().position(|column| column.trim() == name)?;
        row.cells.get(at).map(|cell| cell.trim()).filter(|cell| !cell.is_empty())
    };
    let given: Vec<(&'static str, &str)> =
        SALE_COLUMNS.into_iter().filter_map(|name| Some((name, cell(name)?))).collect();
    let same = |name: &'static str, told: &Told| {
        cell(name).is_some_and(|cell| told.cells.get(name).is_some_and(|known| known == cell))
    };
    let place = match (cell("external_id"), cell("activity")) {
        (Some(_), _) => told.iter().position(|told| same("external_id", told)),
        (None, Some(_)) => told.iter().position(|told| same("activity", told)),
        (None, None) if told.is_empty() => {
            return mistakes.push(Mistake::new(
                row.line,
                "activity",
                "is empty: which sale is it of?",
            ));
        }
        (None, None) => Some(told.len() - 1),
    };
    let place = place.unwrap_or_else(|| {
        told.push(Told { line: row.line, ..Told::default() });
        told.len() - 1
    });
    let sale = &mut told[place];
    for (name, cell) in given {
        let known = sale.cells.entry(name).or_insert_with(|| cell.to_owned());
        if known != cell {
            let problem =
                format!("is {cell:?} here, and {known:?} in another row of the same sale");
            mistakes.push(Mistake::new(row.line, name, problem));
        }
    }
    sale.item_lines.push(row.line);
    sale.items.push(item(&cell, head, row.line, mistakes));
}

fn item<'r>(
    cell: &impl Fn(&str) -> Option<&'r str>,
    head: &[String],
    line: usize,
    mistakes: &mut Vec<Mistake>,
) -> Value {
    let mut wrong = |name: &str, problem: String| mistakes.push(Mistake::new(line, name, problem));
    let mut item = Map::new();
    let currency: Currency = match cell("currency").map_or(Ok(Currency::CNY), str::parse) {
        Ok(currency) => currency,
        Err(why) => {
            wrong("currency", why.to_string());
            Currency::CNY
        }
    };
    item.insert("currency".into(), currency.as_str().into());
    for name in ["sku", "name", "description", "image_url"] {
        item.extend(cell(name).map(|text| (name.to_owned(), text.into())));
    }
    if let Some(images) = cell("images") {
        // No address has a blank in it.
        item.insert("images".into(), images.split_whitespace().collect());
    }
    for name in ["price", "origin_price"] {
        let Some(text) = cell(name) else { continue };
        let minor = Money::from_text(text, currency).map(|money| money.minor);
        let minor = minor.unwrap_or_else(|why| {
            wrong(name, format!("{text:?} {why}"));
            0
        });
        item.insert(name.into(), minor.into());
    }
    for name in ["stock", "limit_per_user", "shards"] {
        let Some(text) = cell(name) else { continue };
        let number = text.parse::<u32>().unwrap_or_else(|_| {
            wrong(name, format!("{text:?} must be a whole number"));
            1
        });
        item.insert(name.into(), number.into());
    }
    for name in ["name", "price", "stock"] {
        if !item.contains_key(name) {
            wrong(name, "is empty".into());
            let harmless = if name == "name" { json!("x") } else { json!(1) };
            item.insert(name.into(), harmless);
        }
    }
    let attributes = head.iter().filter_map(|column| {
        let name = column.trim().strip_prefix(ATTRIBUTE)?;
        Some((name.to_owned(), Value::from(cell(column.trim())?)))
    });
    let attributes: Map<String, Value> = attributes.collect();
    if !attributes.is_empty() {
        item.insert("attributes".into(), attributes.into());
    }
    Value::Object(item)
}

fn plan(sale: Told, now_ms: Millis, mistakes: &mut Vec<Mistake>) -> Value {
    let cell = |name: &str| sale.cells.get(name).map(String::as_str);
    let mut wrong =
        |name: &str, problem: String| mistakes.push(Mistake::new(sale.line, name, problem));
    let mut time = |name: &str| {
        let read = when(cell(name)?).map(|when| when.at_ms(now_ms));
        Some(read.map_err(|why| wrong(name, why)))
    };
    let (opens, closes, publish) = (time("opens_at"), time("closes_at"), time("publish_at"));
    let members_from = time("members_from");
    let mut length = |name: &str| Some(length_ms(cell(name)?).map_err(|why| wrong(name, why)));
    let (lasts, pay_within) = (length("lasts"), length("pay_within"));
    let fair_start = length("fair_start");
    if cell("activity").is_none() {
        wrong("activity", "is empty: the sale needs a name".into());
    }
    if opens.is_none() {
        wrong("opens_at", "is empty".into());
    }
    match (&closes, &lasts) {
        (None, None) => wrong("closes_at", "is empty, and so is lasts".into()),
        (Some(_), Some(_)) => wrong("lasts", "is given beside closes_at: keep one".into()),
        _ => {}
    }
    // What cannot be read has been told of; what stands in its place offends nobody.
    let opens_ms = opens.and_then(Result::ok).unwrap_or(now_ms);
    let harmless_ms = now_ms.max(opens_ms).saturating_add(3_600_000);
    let closes_ms = match (closes, lasts) {
        (Some(Ok(closes_ms)), _) => closes_ms,
        (None, Some(Ok(lasts_ms))) => opens_ms.saturating_add(lasts_ms),
        _ => harmless_ms,
    };
    let mut plan = json!({"name": cell("activity").unwrap_or("x"), "opens_at": opens_ms,
        "closes_at": closes_ms, "items": sale.items});
    if let Some(id) = cell("external_id") {
        plan["external_id"] = id.into();
    }
    if let Some(Ok(within_ms)) = pay_within {
        plan["pay_within_ms"] = within_ms.into();
    }
    if let Some(Ok(shuffle_ms)) = fair_start {
        plan["shuffle_ms"] = shuffle_ms.into();
    }
    if let Some(Ok(publish_ms)) = publish {
        plan["publish_at"] = publish_ms.into();
    }
    let mut door = Map::new();
    door.extend(cell("challenge").map(|kind| ("challenge".to_owned(), kind.into())));
    for name in ["difficulty", "members_only"] {
        // What is no number and neither true nor false is told of by the server, with its field.
        let value = cell(name).map(|text| text.parse().unwrap_or_else(|_| Value::from(text)));
        door.extend(value.map(|value| (name.to_owned(), value)));
    }
    if let Some(Ok(members_ms)) = members_from {
        door.insert("members_from".into(), members_ms.into());
    }
    if !door.is_empty() {
        plan["door"] = door.into();
    }
    plan
}

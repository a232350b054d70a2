//! What an operator types to plan a sale, as the API wants it.
//!
//! Somebody types this at midnight, so nothing is guessed that could be meant otherwise: a time says its
//! offset, a length its unit, a price is in the currency's own units with its decimals, and whatever is
//! wrong is refused with an example of what is right.

use std::path::Path;

use sale::{Currency, Millis, Money, parse_time};
use serde_json::{Map, Value, json};

use super::durations::duration_ms;

/// An instant as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    At(Millis),
    /// So long from now.
    In(Millis),
}

impl When {
    pub(super) fn at_ms(self, now_ms: Millis) -> Millis {
        match self {
            When::At(ms) => ms,
            When::In(ms) => now_ms.saturating_add(ms),
        }
    }
}

/// `2030-11-11 20:00+08:00`, `in 10m` or `now`.
pub(super) fn when(text: &str) -> Result<When, String> {
    let text = text.trim();
    if text == "now" {
        return Ok(When::In(0));
    }
    if let Some(length) = text.strip_prefix("in ") {
        return length_ms(length).map(When::In);
    }
    parse_time(text)
        .map(When::At)
        .map_err(|why| format!("{why}; for example '2030-11-11 20:00+08:00', 'in 10m' or 'now'"))
}

/// A length of time, signed as times are.
pub(super) fn length_ms(text: &str) -> Result<Millis, String> {
    Ok(duration_ms(text)? as Millis)
}

/// `NAME;price=6999.00;stock=1000`, and what else is known of an item.
pub(super) fn item(text: &str) -> Result<Value, String> {
    const EXAMPLE: &str = "write NAME;price=6999.00;stock=1000, and if you like limit=1, was=7999.00, \
                           currency=CNY, sku=A-1, image=https://…, shards=4";
    // The wide form is what a Chinese keyboard gives.
    let mut parts = text.split([';', '；']).map(str::trim);
    let name = parts.next().unwrap_or_default();
    let name = name.strip_prefix("name=").unwrap_or(name);
    if name.is_empty() || name.starts_with("price=") || name.starts_with("stock=") {
        return Err(format!("the name comes first: {EXAMPLE}"));
    }
    let mut given: Vec<(&str, &str)> = Vec::new();
    for part in parts.filter(|part| !part.is_empty()) {
        let (key, value) =
            part.split_once('=').ok_or_else(|| format!("{part:?} has no value: {EXAMPLE}"))?;
        let (key, value) = (key.trim(), value.trim());
        if given.iter().any(|(known, _)| *known == key) {
            return Err(format!("{key} is given twice"));
        }
        given.push((key, value));
    }
    let find = |key: &str| given.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
    let currency: Currency = match find("currency") {
        Some(code) => code.parse().map_err(|why| format!("currency: {why}"))?,
        None => Currency::CNY,
    };
    let mut item = Map::new();
    item.insert("name".into(), name.into());
    item.insert("currency".into(), currency.as_str().into());
    for (key, value) in &given {
        let whole = || {
            let number = value.parse::<u64>();
            number.map(Value::from).map_err(|_| format!("{key}={value}: must be a whole number"))
        };
        let money = || price(value, currency).map_err(|why| format!("{key}={value}: {why}"));
        let (field, value) = match *key {
            "price" => ("price", money()?),
            "was" => ("origin_price", money()?),
            "stock" => ("stock", whole()?),
            "limit" => ("limit_per_user", whole()?),
            "shards" => ("shards", whole()?),
            "image" => ("image_url", Value::from(*value)),
            "sku" => ("sku", Value::from(*value)),
            "currency" => continue,
            other => return Err(format!("{other:?} is not known: {EXAMPLE}")),
        };
        item.insert(field.into(), value);
    }
    for needed in ["price", "stock"] {
        if !item.contains_key(needed) {
            return Err(format!("{needed} is missing: {EXAMPLE}"));
        }
    }
    Ok(Value::Object(item))
}

/// An amount as people write it, in minor units.
fn price(text: &str, currency: Currency) -> Result<Value, String> {
    Ok(Money::from_text(text, currency).map_err(|why| why.to_string())?.minor.into())
}

/// A plan from a file: the body of `POST /admin/activities` as JSON or TOML, in which times may also be
/// typed as on the command line, `lasts`, `pay_within` and `fair_start` are lengths, and a price that is a
/// text (`"6999.00"`) is in the currency's own units.
pub(super) fn from_file(path: &Path, now_ms: Millis) -> Result<Value, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|why| format!("{name}: {why}"))?;
    let wrong = |why: String| format!("{name}: {why}");
    let is_toml = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("toml"));
    let mut plan: Value = if is_toml {
        let table: toml::Table =
            text.parse().map_err(|why: toml::de::Error| wrong(why.to_string()))?;
        toml_as_json(toml::Value::Table(table))
    } else {
        serde_json::from_str(&text).map_err(|why| wrong(why.to_string()))?
    };
    let fields = plan.as_object_mut().ok_or_else(|| wrong("must be one object".into()))?;
    match translate(fields, now_ms).into_iter().next() {
        Some((field, why)) => Err(wrong(format!("{field}: {why}"))),
        None => Ok(plan),
    }
}

/// Friendlier words become the API's. What cannot be read is told of, each with its field, and something
/// harmless stands in its place.
pub(super) fn translate(plan: &mut Map<String, Value>, now_ms: Millis) -> Vec<(String, String)> {
    let mut wrong: Vec<(String, String)> = Vec::new();
    let opens_ms = instant(plan, "opens_at", now_ms, now_ms, &mut wrong);
    let harmless_ms = opens_ms.unwrap_or(now_ms).max(now_ms).saturating_add(3_600_000);
    instant(plan, "closes_at", now_ms, harmless_ms, &mut wrong);
    if plan.get("publish_at").is_some_and(Value::is_string) {
        instant(plan, "publish_at", now_ms, harmless_ms - 1, &mut wrong);
    }
    let mut length = |plan: &mut Map<String, Value>, key: &str, harmless_ms: Millis| {
        let given = plan.remove(key)?;
        let read = given.as_str().ok_or_else(|| "must be a text such as \"1h\"".to_owned());
        Some(read.and_then(length_ms).unwrap_or_else(|why| {
            wrong.push((key.into(), why));
            harmless_ms
        }))
    };
    let lasts_ms = length(plan, "lasts", 3_600_000);
    if let Some(within_ms) = length(plan, "pay_within", sale::PAY_WITHIN_MS_DEFAULT) {
        plan.insert("pay_within_ms".into(), within_ms.into());
    }
    if let Some(shuffle_ms) = length(plan, "fair_start", 0) {
        plan.insert("shuffle_ms".into(), shuffle_ms.into());
    }
    if let Some(lasts_ms) = lasts_ms {
        let closes = match (plan.contains_key("closes_at"), opens_ms) {
            (true, _) => Err("closes_at and lasts: keep one"),
            (false, None) => Err("needs opens_at"),
            (false, Some(opens_ms)) => Ok(opens_ms.saturating_add(lasts_ms)),
        };
        match closes {
            Ok(closes_ms) => _ = plan.insert("closes_at".into(), closes_ms.into()),
            Err(why) => wrong.push(("lasts".into(), why.into())),
        }
    }
    let items = plan.get_mut("items").and_then(Value::as_array_mut);
    for (n, item) in items.into_iter().flatten().enumerate() {
        if let Some(item) = item.as_object_mut() {
            translate_item(item, &format!("items[{n}]."), &mut wrong);
        }
    }
    wrong
}

/// A time that is typed as on the command line; the time, however it is written.
fn instant(
    plan: &mut Map<String, Value>,
    key: &str,
    now_ms: Millis,
    harmless_ms: Millis,
    wrong: &mut Vec<(String, String)>,
) -> Option<Millis> {
    let Some(Value::String(text)) = plan.get(key) else {
        return plan.get(key).and_then(Value::as_i64);
    };
    let at_ms = when(text).map(|when| when.at_ms(now_ms)).unwrap_or_else(|why| {
        wrong.push((key.into(), why));
        harmless_ms
    });
    plan.insert(key.into(), at_ms.into());
    Some(at_ms)
}

fn translate_item(item: &mut Map<String, Value>, at: &str, wrong: &mut Vec<(String, String)>) {
    let code = item.get("currency").and_then(Value::as_str);
    let currency: Result<Currency, _> = code.map_or(Ok(Currency::CNY), str::parse);
    for key in ["price", "origin_price"] {
        let Some(Value::String(text)) = item.get(key) else { continue };
        // A currency that is none is told of by the API.
        let Ok(currency) = currency else {
            item.insert(key.into(), 0.into());
            continue;
        };
        let minor = price(text, currency).unwrap_or_else(|why| {
            wrong.push((format!("{at}{key}"), why));
            0.into()
        });
        item.insert(key.into(), minor);
    }
}

/// A date of TOML is a text that says its offset, or is refused for not doing so.
fn toml_as_json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => json!(number),
        toml::Value::Boolean(flag) => flag.into(),
        toml::Value::Datetime(at) => at.to_string().into(),
        toml::Value::Array(list) => list.into_iter().map(toml_as_json).collect(),
        toml::Value::Table(table) => {
            table.into_iter().map(|(key, value)| (key, toml_as_json(value))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: Millis = 1_796_126_400_000;

    #[test]
    fn an_instant_is_unmistakable() {
        for (text, at_ms) in [
            ("2026-12-01 20:00+08:00", NOW_MS),
            ("2026-12-01T12:00:00Z", NOW_MS),
            ("1796126400000", NOW_MS),
            ("in 10m", NOW_MS + 600_000),
            ("in 1h30m", NOW_MS + 5_400_000),
            (" now ", NOW_MS),
        ] {
            assert_eq!(when(text).map(|when| when.at_ms(NOW_MS)), Ok(at_ms), "{text}");
        }
        for bad in ["", "20:00", "2026-12-01 20:00", "1796126400", "in ten minutes", "tomorrow"] {
            let refused = when(bad).unwrap_err();
            assert!(refused.contains("10m") || refused.contains("90s"), "{bad}: {refused}");
        }
    }

    #[test]
    fn an_item_is_typed_on_one_line() {
        let full = "iPhone 15 Pro; price=6999.00; stock=1000; limit=2; was=7999; shards=4; \
                    sku=A-1; image=https://cdn.example/a=b.png";
        assert_eq!(
            item(full).unwrap(),
            json!({"name": "iPhone 15 Pro", "price": 699_900, "stock": 1000, "limit_per_user": 2,
                "origin_price": 799_900, "shards": 4, "sku": "A-1",
                "image_url": "https://cdn.example/a=b.png",
                "currency": "CNY"})
        );
        let chinese = item("手机；price=6999.5；stock=10").unwrap();
        assert_eq!((&chinese["name"], &chinese["price"]), (&json!("手机"), &json!(699_950)));
        let yen = item("Tea;currency=JPY;price=500;stock=1").unwrap();
        assert_eq!((&yen["price"], &yen["currency"]), (&json!(500), &json!("JPY")));
        for (bad, part) in [
            ("", "the name comes first"),
            ("price=1;stock=1", "the name comes first"),
            ("Phone", "price is missing"),
            ("Phone;price=1", "stock is missing"),
            ("Phone;price=1;stock", "has no value"),
            ("Phone;price=1;stock=many", "whole number"),
            ("Phone;price=1;stock=-1", "whole number"),
            ("Phone;price=1;stock=1;stock=2", "twice"),
            ("Phone;price=1;stock=1;colour=red", "not known"),
            ("Phone;price=1,000;stock=1", "price=1,000"),
            ("Phone;price=1.005;stock=1", "decimals"),
            ("Phone;price=1;stock=1;currency=yuan", "currency"),
        ] {
            let refused = item(bad).unwrap_err();
            assert!(refused.contains(part), "{bad}: {refused}");
        }
    }

    #[test]
    fn a_file_is_the_apis_body_in_friendlier_words() {
        let home = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = home.path().join(name);
            std::fs::write(&path, text).unwrap();
            from_file(&path, NOW_MS)
        };
        let toml = file(
            "sale.toml",
            "name = '11.11'\nopens_at = 2026-12-01T20:00:00+08:00\nlasts = '1h'\n\
             pay_within = '15m'\n[[items]]\nname = 'Phone'\nprice = '6999.00'\nstock = 5\n",
        );
        let json_file = file(
            "sale.json",
            r#"{"name":"11.11","opens_at":"now","closes_at":1796130000000,"pay_within_ms":900000,
                "items":[{"name":"Phone","price":699900,"stock":5}]}"#,
        );
        let plan = json!({"name": "11.11", "opens_at": NOW_MS, "closes_at": NOW_MS + 3_600_000,
            "pay_within_ms": 900_000, "items": [{"name": "Phone", "price": 699_900, "stock": 5}]});
        assert_eq!(toml, Ok(plan.clone()));
        assert_eq!(json_file, Ok(plan));
        for (text, part) in [
            ("[]", "one object"),
            ("{", "sale.json"),
            (r#"{"opens_at":"tomorrow"}"#, "opens_at"),
            (r#"{"lasts":"1h"}"#, "needs opens_at"),
            (r#"{"opens_at":"now","closes_at":"now","lasts":"1h"}"#, "keep one"),
            (r#"{"items":[{"price":"cheap"}]}"#, "items[0].price"),
        ] {
            let refused = file("sale.json", text).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
        assert!(from_file(&home.path().join("none.json"), NOW_MS).is_err());
    }
}

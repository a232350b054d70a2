//! The shop's own words for what is sold: its ids, texts, pictures and whatever else it wants to keep
//! beside an item. The engine finds things by the ids and hands the rest back as it came; it decides
//! nothing by any of it.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Invalid, NewActivity, URL_CHARS_MAX,
    text::{is_image_address, is_plain_id, is_plain_name, is_plain_text},
};

/// Of a `sku` and of an `external_id`.
pub const SHOP_ID_CHARS_MAX: usize = 64;
pub const DESCRIPTION_CHARS_MAX: usize = 4_000;
/// The first of them is `image_url`.
pub const IMAGES_MAX: usize = 10;
pub const ATTRIBUTES_MAX: usize = 32;
pub const ATTRIBUTE_NAME_CHARS_MAX: usize = 64;
pub const ATTRIBUTE_TEXT_CHARS_MAX: usize = 500;
/// The largest number, either way, that every language and browser keeps exactly (2^53 − 1).
pub const ATTRIBUTE_NUMBER_MAX: i64 = (1 << 53) - 1;

/// Names and values: texts, numbers, true and false.
pub type Attributes = Map<String, Value>;

/// What a shop says of an item beside its name and price. All of it may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ItemWords {
    /// The shop's id of the product, once in an activity.
    pub sku: Option<String>,
    /// Plain text; several lines if need be.
    pub description: String,
    /// Those after `image_url`, which is the first one and is known to builds that know no others.
    pub more_images: Vec<String>,
    pub attributes: Attributes,
}

impl ItemWords {
    /// All pictures, the first one first.
    pub fn images<'w>(&'w self, image_url: &'w str) -> impl Iterator<Item = &'w str> {
        let first = (!image_url.is_empty()).then_some(image_url);
        first.into_iter().chain(self.more_images.iter().map(String::as_str))
    }

    /// Whatever makes no sense, each under its name as `field` spells it.
    pub(crate) fn problems(
        &self,
        image_url: &str,
        field: &dyn Fn(&str) -> String,
        note: &mut dyn FnMut(Result<(), Invalid>),
    ) {
        if let Some(sku) = &self.sku {
            note(check_shop_id(&field("sku"), sku));
        }
        note(check_description(&field("description"), &self.description));
        note(check_images(&field("images"), image_url, &self.more_images));
        check_attributes(&field("attributes"), &self.attributes, note);
    }
}

/// The lines of a text are ended in one way, whichever way they came in.
pub fn with_plain_lines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// The first picture and the others, from what somebody gave: a list, the first one alone, or both, if
/// they agree. Nothing if neither was given.
pub fn given_images(
    image_url: Option<String>,
    images: Option<Vec<String>>,
    field: &dyn Fn(&str) -> String,
) -> Result<GivenImages, Invalid> {
    let Some(images) = images else {
        return Ok(GivenImages { first: image_url, more: None });
    };
    let mut images = images.into_iter();
    let first = images.next().unwrap_or_default();
    if image_url.is_some_and(|image_url| image_url != first) {
        let problem = "must be the first of images, or be left out";
        return Err(Invalid::new(field("image_url"), problem).zh("必须是 images 的第一张，或不填"));
    }
    Ok(GivenImages { first: Some(first), more: Some(images.collect()) })
}

/// What of an item's pictures was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenImages {
    pub first: Option<String>,
    pub more: Option<Vec<String>>,
}

/// The shop's own id of something.
pub(crate) fn check_shop_id(field: &str, id: &str) -> Result<(), Invalid> {
    if is_plain_id(id, SHOP_ID_CHARS_MAX) {
        return Ok(());
    }
    let rule = format!("must be 1 to {SHOP_ID_CHARS_MAX} visible characters without spaces");
    Err(Invalid::new(field, rule)
        .zh(format!("必须为 1 到 {SHOP_ID_CHARS_MAX} 个可见字符，不含空格")))
}

/// No two items of an activity have the same one.
pub(crate) fn check_skus(plan: &NewActivity, note: &mut dyn FnMut(Result<(), Invalid>)) {
    let mut seen = HashSet::new();
    for (n, item) in plan.items.iter().enumerate() {
        if item.words.sku.as_ref().is_some_and(|sku| !seen.insert(sku)) {
            let problem = "is that of another item of this activity";
            let twice = Invalid::new(format!("items[{n}].sku"), problem);
            note(Err(twice.zh("与本活动的另一商品重复")));
        }
    }
}

fn check_description(field: &str, text: &str) -> Result<(), Invalid> {
    if text.chars().count() <= DESCRIPTION_CHARS_MAX && is_plain_text(text) {
        return Ok(());
    }
    let rule = format!(
        "must be at most {DESCRIPTION_CHARS_MAX} characters of plain text, none that hide or turn others"
    );
    Err(Invalid::new(field, rule)
        .zh(format!("最多 {DESCRIPTION_CHARS_MAX} 个字符的纯文本，不含隐藏或改变方向的字符")))
}

/// Is this where a page may fetch a picture from?
pub(crate) fn check_image(field: &str, address: &str) -> Result<(), Invalid> {
    if address.chars().count() > URL_CHARS_MAX {
        return Err(Invalid::new(field, "is too long").zh("过长"));
    }
    if !is_image_address(address) {
        let rule = "must be an https address, or a path that starts with one /";
        return Err(Invalid::new(field, rule).zh("必须是 https 地址，或以单个 / 开头的路径"));
    }
    Ok(())
}

fn check_images(field: &str, first: &str, more: &[String]) -> Result<(), Invalid> {
    if more.len() >= IMAGES_MAX {
        let rule = format!("must be {IMAGES_MAX} at most");
        return Err(Invalid::new(field, rule).zh(format!("最多 {IMAGES_MAX} 张")));
    }
    let all = [first].into_iter().chain(more.iter().map(String::as_str));
    for (n, address) in all.enumerate() {
        let here = format!("{field}[{n}]");
        if address.is_empty() && !more.is_empty() {
            return Err(Invalid::new(here, "must not be empty").zh("不能为空"));
        }
        // The first one is told of by its own name.
        if n > 0 {
            check_image(&here, address)?;
        }
    }
    Ok(())
}

fn check_attributes(
    field: &str,
    attributes: &Attributes,
    note: &mut dyn FnMut(Result<(), Invalid>),
) {
    if attributes.len() > ATTRIBUTES_MAX {
        let rule = format!("must be {ATTRIBUTES_MAX} at most");
        return note(Err(Invalid::new(field, rule).zh(format!("最多 {ATTRIBUTES_MAX} 个"))));
    }
    for (name, value) in attributes {
        note(check_attribute(field, name, value));
    }
}

fn check_attribute(field: &str, name: &str, value: &Value) -> Result<(), Invalid> {
    let chars = name.chars().count();
    if name.trim().is_empty() || chars > ATTRIBUTE_NAME_CHARS_MAX || !is_plain_name(name) {
        let rule = format!("must have names of 1 to {ATTRIBUTE_NAME_CHARS_MAX} plain characters");
        let zh = format!("名称必须为 1 到 {ATTRIBUTE_NAME_CHARS_MAX} 个普通字符");
        return Err(Invalid::new(field, rule).zh(zh));
    }
    let here = format!("{field}.{name}");
    let refused = |en: String, zh: String| Err(Invalid::new(&here, en).zh(zh));
    let limit = ATTRIBUTE_NUMBER_MAX as f64;
    match value {
        Value::Bool(_) => Ok(()),
        Value::Number(number) => match number.as_f64() {
            Some(number) if (-limit..=limit).contains(&number) => Ok(()),
            _ => refused(
                format!("must be from -{ATTRIBUTE_NUMBER_MAX} to {ATTRIBUTE_NUMBER_MAX}"),
                format!("必须在 ±{ATTRIBUTE_NUMBER_MAX} 之间"),
            ),
        },
        Value::String(text) => {
            if text.chars().count() <= ATTRIBUTE_TEXT_CHARS_MAX && is_plain_text(text) {
                return Ok(());
            }
            refused(
                format!("must be at most {ATTRIBUTE_TEXT_CHARS_MAX} characters of plain text"),
                format!("最多 {ATTRIBUTE_TEXT_CHARS_MAX} 个字符的纯文本"),
            )
        }
        Value::Null | Value::Array(_) | Value::Object(_) => refused(
            "must be a text, a number, true or false".into(),
            "必须是文本、数字、true 或 false".into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(image_url: &str, words: &ItemWords) -> Vec<String> {
        let mut found = Vec::new();
        let mut note = |checked: Result<(), Invalid>| {
            if let Err(why) = checked {
                assert!(why.problem_zh.as_ref().is_some_and(|zh| !zh.is_ascii()), "{why:?}");
                found.push(why.field);
            }
        };
        words.problems(image_url, &|name| name.into(), &mut note);
        found
    }

    fn attributes(value: Value) -> ItemWords {
        let Value::Object(attributes) = value else { panic!("{value}") };
        ItemWords { attributes, ..Default::default() }
    }

    #[test]
    fn words_of_a_shop_are_taken_as_they_are() {
        let words = ItemWords {
            sku: Some("SKU-手机/256".into()),
            description: "Titan.\n\n六种颜色，\t带盒".into(),
            more_images: vec!["https://cdn.shop/2.webp".into(), "/img/3.png".into()],
            attributes: attributes(json!({"colour": "blue", "weight g": 187.5, "new": true,
                "年": -1}))
            .attributes,
        };
        assert_eq!(problems("/img/1.png", &words), [""; 0]);
        assert_eq!(
            words.images("/img/1.png").collect::<Vec<_>>(),
            ["/img/1.png", "https://cdn.shop/2.webp", "/img/3.png"]
        );
        assert_eq!(problems("", &ItemWords::default()), [""; 0]);
        assert_eq!(with_plain_lines("a\r\nb\rc\n"), "a\nb\nc\n");
    }

    #[test]
    fn nonsense_is_named() {
        let some = ItemWords::default;
        for sku in ["", "a b", "x\u{200B}", &"x".repeat(65)] {
            assert_eq!(problems("", &ItemWords { sku: Some(sku.into()), ..some() }), ["sku"]);
        }
        for description in ["bell\u{7}", "gpj.\u{202E}x", &"x".repeat(4_001)] {
            let words = ItemWords { description: description.into(), ..some() };
            assert_eq!(problems("", &words), ["description"]);
        }
        let pictured = |more: &[&str]| {
            let more_images = more.iter().map(|image| image.to_string()).collect();
            problems("/1.png", &ItemWords { more_images, ..some() })
        };
        assert_eq!(pictured(&["http://cdn.shop/a.png"]), ["images[1]"]);
        assert_eq!(pictured(&["/2.png", ""]), ["images[2]"]);
        assert_eq!(pictured(&["/x.png"; 10]), ["images"]);
        let headless = ItemWords { more_images: vec!["/2.png".into()], ..some() };
        assert_eq!(problems("", &headless), ["images[0]"]);
        for (value, field) in [
            (json!({"": 1}), "attributes"),
            (json!({"a\nb": 1}), "attributes"),
            (json!({"a": null}), "attributes.a"),
            (json!({"a": [1]}), "attributes.a"),
            (json!({"a": {"b": 1}}), "attributes.a"),
            (json!({"a": "x".repeat(501)}), "attributes.a"),
            (json!({"a": 9_007_199_254_740_993_i64}), "attributes.a"),
            (json!({"a": 1e300}), "attributes.a"),
        ] {
            assert_eq!(problems("", &attributes(value.clone())), [field], "{value}");
        }
        let many: Map<String, Value> = (0..33).map(|n| (n.to_string(), n.into())).collect();
        assert_eq!(problems("", &attributes(Value::Object(many))), ["attributes"]);
    }

    #[test]
    fn pictures_come_as_a_list_or_as_the_first_one() {
        let given = |image_url: Option<&str>, images: Option<&[&str]>| {
            let images = images.map(|images| images.iter().map(|i| i.to_string()).collect());
            let given = given_images(image_url.map(Into::into), images, &|name| name.into());
            given.map(|given| (given.first, given.more)).map_err(|why| why.field)
        };
        let text = |text: &str| text.to_owned();
        assert_eq!(given(None, None), Ok((None, None)));
        assert_eq!(given(Some("/1"), None), Ok((Some(text("/1")), None)));
        assert_eq!(given(None, Some(&[])), Ok((Some(text("")), Some(vec![]))));
        let both = Ok((Some(text("/1")), Some(vec![text("/2")])));
        assert_eq!(given(Some("/1"), Some(&["/1", "/2"])), both);
        assert_eq!(given(Some("/2"), Some(&["/1", "/2"])), Err(text("image_url")));
    }
}

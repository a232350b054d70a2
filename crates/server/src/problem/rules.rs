//! The rules that requests break, in plain words of both languages.
//!
//! Most rules are written where they are checked, in English, and many are alike: so what they are in
//! Chinese stands here once for each pattern. What serde says of a body names types of Rust,
//! which nobody outside need know; that is said in other words, in both languages.

/// English rules by their pattern, and the same in Chinese with the same gaps.
const RULES: &[(&str, &str)] = &[
    ("must be from {} to {}", "必须在 {} 到 {} 之间"),
    ("must be at least {}", "至少为 {}"),
    ("must hold 1 to {} items", "必须包含 1 到 {} 个商品"),
    ("must be 1 to {} characters on one line", "必须为 1 到 {} 个字符，且只有一行"),
    (
        "must be 1 to {} characters without control characters, and none that hide or turn others",
        "必须为 1 到 {} 个字符，不能含控制字符，也不能含隐藏或改变显示方向的字符",
    ),
    ("must be 1 to {} visible characters without spaces", "必须为 1 到 {} 个可见字符，不能有空格"),
    ("must be 1 to {} visible characters", "必须为 1 到 {} 个可见字符"),
    ("must be 1 to {} visible ASCII characters", "必须为 1 到 {} 个可见的 ASCII 字符"),
    (
        "must be one, of 1 to {} visible ASCII characters",
        "只能有一个，为 1 到 {} 个可见的 ASCII 字符",
    ),
    ("must be a user id of 1 to {} visible characters", "必须为 1 到 {} 个可见字符的用户编号"),
    (
        "cannot be used: a user id is 1 to {} visible characters",
        "无法使用：用户编号为 1 到 {} 个可见字符",
    ),
    ("must be at most {}, the number of partitions", "最多为 {}，即分区数"),
    ("must be at most {} ids, separated by commas", "最多 {} 个编号，以逗号分隔"),
    ("must be at most {} ranges", "最多 {} 个网段"),
    ("must be at most {}; 0 is for ever", "最多为 {}；0 表示永久"),
    ("must be at most {} visible ASCII characters", "最多 {} 个可见的 ASCII 字符"),
    ("must be at most {} characters on one line", "最多 {} 个字符，且只有一行"),
    ("must be at most {} characters of plain text", "最多 {} 个字符的纯文本"),
    ("must be at most {} characters", "最多 {} 个字符"),
    ("must be at most {}", "最多为 {}"),
    ("must be {} at most", "最多为 {}"),
    (
        "must be words of at most {} characters in all, a space between them",
        "必须是总共不超过 {} 个字符的词，词间以一个空格分隔",
    ),
    ("must be digits, without a sign or zeros before them", "必须是数字，不带正负号，前面没有 0"),
    ("must be a JSON object", "必须是 JSON 对象"),
    ("must not be zero", "不能为 0"),
    ("must not be negative", "不能为负数"),
    ("must be an order that was paid", "必须是已付款的订单"),
    ("must be given, or a link; one of the two", "令牌与链接须提供其一"),
    (
        "must be a path of this site, or an address at an origin of http.allowed_origins",
        "必须是本站路径，或 http.allowed_origins 所列来源的地址",
    ),
    ("must have names of 1 to {} plain characters", "名称必须为 1 到 {} 个普通字符"),
    ("takes more than there is: {} units are not sold", "超出可减少的数量：未售出的有 {} 件"),
    (
        "takes more than there is: {} units are neither sold nor claimed",
        "超出可减少的数量：既未售出也未被抢到的有 {} 件",
    ),
    ("adds too much: an item has at most {} units", "增加过多：一件商品最多 {} 件库存"),
    ("is that of activity {}", "已被活动 {} 使用"),
    ("is not a receipt of ours", "不是本站的凭证"),
    ("is not a payment provider of this shop", "不是本店的支付渠道"),
    ("is not a way to pay that this provider has here", "该支付渠道在此不支持这种付款方式"),
    ("does not take the currency of this order", "不支持该订单的币种"),
    ("is too long", "过长"),
    ("is reserved", "为保留名称"),
    ("is missing", "缺失"),
    ("is given twice", "重复"),
    ("is not known here; known are {}", "无法识别，可用的有：{}"),
    ("is not known here", "无法识别"),
    ("ends too early", "内容不完整"),
    ("goes on after its end", "结尾之后还有多余内容"),
    ("must be {}, not {}", "必须是{}，而不是{}"),
    ("cannot be used: {}", "无法使用：{}"),
];

/// What serde expects, as people call it.
const KINDS: &[(&str, &str, &str)] = &[
    ("u8", "a whole number from 0 on", "非负整数"),
    ("u16", "a whole number from 0 on", "非负整数"),
    ("u32", "a whole number from 0 on", "非负整数"),
    ("u64", "a whole number from 0 on", "非负整数"),
    ("usize", "a whole number from 0 on", "非负整数"),
    ("i32", "a whole number", "整数"),
    ("i64", "a whole number", "整数"),
    ("a string", "a text", "文本"),
    ("a boolean", "true or false", " true 或 false "),
    ("a sequence", "a list", "列表"),
    ("a map", "an object", "对象"),
    ("null", "nothing", "空值"),
    ("sequence", "a list", "列表"),
    ("map", "an object", "对象"),
];

/// A rule as it is in Chinese; itself if nobody wrote that down.
pub(super) fn in_chinese(rule: &str) -> String {
    let found = RULES.iter().find_map(|(en, zh)| Some((gaps(en, rule)?, *zh)));
    let Some((gaps, zh)) = found else { return rule.to_owned() };
    let mut parts = zh.split("{}");
    let mut told = parts.next().unwrap_or_default().to_owned();
    for (gap, part) in gaps.iter().zip(parts) {
        let known = KINDS.iter().find(|(_, en, _)| en == gap);
        told.push_str(known.map_or(gap, |(_, _, zh)| zh));
        told.push_str(part);
    }
    told
}

/// What stands in the gaps of this pattern, if the text is of it.
fn gaps<'t>(pattern: &str, text: &'t str) -> Option<Vec<&'t str>> {
    let mut parts = pattern.split("{}");
    let mut rest = text.strip_prefix(parts.next()?)?;
    let mut found = Vec::new();
    for part in parts {
        // The last gap takes all that is left.
        let end = if part.is_empty() { rest.len() } else { rest.find(part)? };
        found.push(&rest[..end]);
        rest = &rest[end + part.len()..];
    }
    rest.is_empty().then_some(found)
}

/// What serde says of a body or a query, in words that need no Rust; it goes on after the field.
pub(crate) fn plain_cause(cause: &str) -> String {
    if let Some(expected) = cause.strip_prefix("invalid type: ").or_else(|| {
        cause.strip_prefix("invalid value: ").or_else(|| cause.strip_prefix("invalid length "))
    }) && let Some((given, wanted)) = expected.rsplit_once(", expected ")
    {
        return format!("must be {}, not {}", kind(wanted), given_value(given));
    }
    if cause.starts_with("missing field `") {
        return "is missing".into();
    }
    if cause.starts_with("duplicate field `") {
        return "is given twice".into();
    }
    if cause.starts_with("unknown field `") || cause.starts_with("unknown variant `") {
        let known = cause.split_once(", expected ").map(|(_, known)| known);
        let known = known.map(|known| known.strip_prefix("one of ").unwrap_or(known));
        return known.map_or("is not known here".into(), |known| {
            format!("is not known here; known are {}", known.replace('`', ""))
        });
    }
    if cause.starts_with("EOF while parsing") {
        return "ends too early".into();
    }
    if cause.starts_with("trailing characters") {
        return "goes on after its end".into();
    }
    if cause.starts_with("must be ") {
        return cause.into();
    }
    format!("cannot be used: {cause}")
}

fn kind(name: &str) -> &str {
    if name.starts_with("struct ") {
        return "an object";
    }
    KINDS.iter().find(|(serde, _, _)| *serde == name).map_or(name, |(_, en, _)| en)
}

/// `integer `-1`` and `string "x"`, as they stood in the body.
fn given_value(given: &str) -> &str {
    let quoted = given.split_once('`').and_then(|(_, rest)| rest.strip_suffix('`'));
    quoted.or_else(|| given.strip_prefix("string ")).unwrap_or_else(|| kind(given))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serde_says_is_said_without_its_types() {
        for (cause, en, zh) in [
            (
                "invalid value: integer `-1`, expected u32",
                "must be a whole number from 0 on, not -1",
                "必须是非负整数，而不是-1",
            ),
            (
                "invalid type: floating point `1.5`, expected i64",
                "must be a whole number, not 1.5",
                "必须是整数，而不是1.5",
            ),
            (
                "invalid type: string \"1\", expected u32",
                "must be a whole number from 0 on, not \"1\"",
                "必须是非负整数，而不是\"1\"",
            ),
            (
                "invalid type: map, expected a string",
                "must be a text, not an object",
                "必须是文本，而不是对象",
            ),
            (
                "invalid type: null, expected u32",
                "must be a whole number from 0 on, not nothing",
                "必须是非负整数，而不是空值",
            ),
            ("missing field `price`", "is missing", "缺失"),
            ("duplicate field `price`", "is given twice", "重复"),
            (
                "unknown field `a`, expected `quantity`",
                "is not known here; known are quantity",
                "无法识别，可用的有：quantity",
            ),
            (
                "unknown variant `z`, expected one of `paid`, `void`",
                "is not known here; known are paid, void",
                "无法识别，可用的有：paid, void",
            ),
            ("unknown field `a`, there are no fields", "is not known here", "无法识别"),
            ("EOF while parsing an object", "ends too early", "内容不完整"),
            (
                "key must be a string",
                "cannot be used: key must be a string",
                "无法使用：key must be a string",
            ),
        ] {
            let plain = plain_cause(cause);
            assert_eq!((plain.as_str(), in_chinese(&plain).as_str()), (en, zh));
        }
    }

    #[test]
    fn a_rule_keeps_its_numbers_in_chinese_and_an_unknown_one_stays() {
        assert_eq!(in_chinese("must be from 1 to 2"), "必须在 1 到 2 之间");
        assert_eq!(in_chinese("must hold 1 to 1000 items"), "必须包含 1 到 1000 个商品");
        assert_eq!(in_chinese("must be odd"), "must be odd");
        assert_eq!(in_chinese("must not be zero, ever"), "must not be zero, ever");
    }

    #[test]
    fn every_pattern_has_as_many_gaps_in_both_languages() {
        for (en, zh) in RULES {
            assert_eq!(en.matches("{}").count(), zh.matches("{}").count(), "{en}");
            assert!(!zh.is_ascii(), "{zh}");
        }
    }
}

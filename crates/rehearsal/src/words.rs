//! What the page of a rehearsal says, in both languages. The details of violations are written where they are
//! found, and are in English on both.

use std::fmt;

use serde::{Serialize, Serializer};

/// The language of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Language {
    #[default]
    English,
    Chinese,
}

impl Language {
    /// What HTML calls it.
    pub(crate) fn tag(self) -> &'static str {
        self.say("en", "zh-CN")
    }

    pub(crate) fn say(self, english: &'static str, chinese: &'static str) -> &'static str {
        match self {
            Language::English => english,
            Language::Chinese => chinese,
        }
    }

    /// A name that the table for the terminal uses, as the page says it.
    pub(crate) fn name(self, english: &'static str) -> &'static str {
        let known = NAMES.iter().find(|(name, _)| *name == english);
        self.say(english, known.map_or(english, |(_, chinese)| chinese))
    }
}

/// What the reader should know before believing the figures, written where it is found. In data and in the
/// table for the terminal it is in English.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    english: String,
    chinese: String,
}

impl Note {
    pub(crate) fn new(english: impl Into<String>, chinese: impl Into<String>) -> Note {
        Note { english: english.into(), chinese: chinese.into() }
    }

    pub(crate) fn in_words_of(&self, language: Language) -> &str {
        match language {
            Language::English => &self.english,
            Language::Chinese => &self.chinese,
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.english)
    }
}

impl Serialize for Note {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.english)
    }
}

/// Rates, latencies and stages of the funnel by their English names, and the invariants.
const NAMES: &[(&str, &str)] = &[
    ("buyers arrived", "到场买家"),
    ("claims accepted", "抢购成功"),
    ("claims persisted", "已入账"),
    ("claims rejected", "被拒绝"),
    ("claim", "抢购"),
    ("claim, once sent", "抢购（自发出起）"),
    ("claim of a bot", "机器人抢购"),
    ("final answer", "最终答复"),
    ("order in the ledger", "订单入账"),
    ("payment", "支付"),
    ("generator's lag", "发压端延迟"),
    ("buyers", "买家"),
    ("admitted", "抢到"),
    ("ordered", "已下单"),
    ("paid", "已支付"),
    ("sold out", "售罄"),
    ("sent away", "离开"),
    ("cancelled", "已取消"),
    ("left unpaid", "未支付"),
    ("too late to pay", "支付超时"),
    ("void", "作废"),
    ("arrived", "到场"),
    ("accepted", "成功"),
    ("persisted", "入账"),
    ("rejected", "拒绝"),
    ("units left", "剩余库存"),
    ("claims on the log", "待处理"),
    ("burst", "蜂拥而至"),
    ("ramp", "逐渐增多"),
    ("steady", "匀速"),
    ("I1 no oversell", "I1 不超卖"),
    ("I2 conservation", "I2 库存守恒"),
    ("I3 limit per buyer", "I3 每人限购"),
    ("I4 one claim, one order", "I4 一次抢购一张订单"),
    ("I5 no silent loss", "I5 不无声丢单"),
    ("I7 money once", "I7 款项只记一次"),
    ("I8 units returned once", "I8 库存只退回一次"),
    ("I10 same key, same answer", "I10 同键同答复"),
    ("L1 nothing stranded", "L1 无滞留库存"),
    ("L2 the backlog drains", "L2 积压排空"),
];

#[cfg(test)]
mod tests {
    use checker::CHECKED;

    use super::*;
    use crate::report::tests::report;

    #[test]
    fn whatever_the_page_names_has_a_chinese_name() {
        let report = report();
        let names = CHECKED
            .into_iter()
            .chain(report.rates.named().map(|(name, _)| name))
            .chain(report.latency.named().into_iter().map(|(name, _)| name))
            .chain(report.funnel.stages().map(|(name, _)| name))
            .chain(report.funnel.ways_out().map(|(name, _)| name));
        for name in names {
            assert!(!Language::Chinese.name(name).is_ascii(), "{name}");
            assert_eq!(Language::English.name(name), name);
        }
    }
}
